//! Programs: those of a volume are executed from a memory file, scripts through their interpreter; those of the host that
//! cannot be intercepted are named on standard error.

use super::call::{CWD, Call};
use super::paths::Target;
use super::status::{empty_of, mode_of};
use super::{Front, complain, credentials, libraries};
use crate::dispatch::Outcome;
use crate::entry::Frame;
use crate::exec::Scratch;
use crate::library;
use crate::memory;
use crate::number::*;
use crate::raw::{is_error, syscall};
use crate::thread::{self, PathScratch, Record};
use gannet_usermem::Destination;
use gannet_vfs::namespace::{Access, Last, Namespace, Place};
use gannet_vfs::{Errno, FileType, NodeId};

const HEAD_BYTES: usize = 4096;
const AT_SYMLINK_NOFOLLOW: usize = 0x100;
const AT_EMPTY_PATH: usize = 0x1000;
/// Only whether the file may be executed is asked (Linux 6.14).
const AT_EXECVE_CHECK: usize = 0x10000;
/// Scripts whose interpreter is a script, as the kernel bounds them.
const SCRIPTS_MAX: usize = 5;
const ARGUMENTS_MAX: usize = 1 << 20;

/// Where a program is.
enum Program {
    /// On the host, under this path (relative ones as the program gave them).
    Host(Vec<u8>),
    /// In a volume: mount, inode, and the path it is known by.
    Volume(usize, NodeId, Vec<u8>),
}

/// Looks at what is to be executed and changes the call's arguments if needed.
pub(crate) fn before_exec(front: &'static Front, frame: &mut Frame, record: &mut Record, in_child: bool) -> Outcome {
    // SAFETY: the thread is busy; this is the only reference.
    let scratch = unsafe { thread::scratch() };
    match prepare(front, frame, record, in_child, &mut scratch.paths[0]) {
        Ok(()) => Outcome::Pass,
        Err(errno) => Outcome::Done(-(errno.raw_os_error() as isize)),
    }
}

fn prepare(
    front: &'static Front,
    frame: &mut Frame,
    record: &mut Record,
    in_child: bool,
    scratch: &mut PathScratch,
) -> Result<(), Errno> {
    let (directory, path, argument_position, flags) = match frame.rax {
        EXECVE => (CWD, frame.arguments[0], 1, 0),
        // A C library may pass the low half only.
        _ => (frame.arguments[0] as i32 as isize as usize, frame.arguments[1], 2, frame.arguments[4]),
    };
    if flags & !(AT_SYMLINK_NOFOLLOW | AT_EMPTY_PATH | AT_EXECVE_CHECK) != 0 {
        // The kernel refuses it before any look at the path.
        return Ok(());
    }
    let only_checks = flags & AT_EXECVE_CHECK != 0;
    record.exec_without_library = false;
    record.exec_nowhere = false;
    let mut call = Call { front, number: frame.rax, arguments: frame.arguments, in_child, record, passed: None };
    let given = memory::read_string(path, &mut scratch.given).map_or_else(|_| Vec::new(), <[u8]>::to_vec);
    let target = front.resolve(call.table(), directory as i32, path, mode_of(flags), empty_of(flags), scratch)?;
    let from_host_path = matches!(target, Target::HostPath(_));
    let mut program = match target {
        Target::Host => {
            if directory != CWD && given.first() != Some(&b'/') {
                return Ok(());
            }
            Program::Host(given.clone())
        }
        Target::HostPath(path) => Program::Host(path[..path.len() - 1].to_vec()),
        Target::Place(mount, place) => {
            let node = place.existing().map_err(|error| error.errno())?.node;
            let path = match call.open_file(directory).filter(|_| given.is_empty()) {
                Some(file) => front.path_of(call.table(), directory, &file).unwrap_or_default(),
                None => path_of(&call, mount, &place),
            };
            Program::Volume(mount, node, path)
        }
        Target::Descriptor(descriptor) => {
            let file = call.open_file(descriptor).ok_or(Errno::NOENT)?;
            Program::Volume(file.mount, file.node, front.path_of(call.table(), descriptor, &file).unwrap_or_default())
        }
    };
    // What the interpreter is told to run: the path as given, or the descriptor.
    let mut script = given;
    // As the kernel names it: from a descriptor, which has to be there still.
    let by_descriptor = directory != CWD && script.first() != Some(&b'/');
    if script.is_empty() {
        script = format!("/proc/self/fd/{}", directory as i32).into_bytes();
    } else if by_descriptor {
        let mut path = format!("/proc/self/fd/{}/", directory as i32).into_bytes();
        path.append(&mut script);
        script = path;
    }
    let mut prefix: Vec<Vec<u8>> = Vec::new();
    let mut changed = from_host_path;
    // A host path is followed into a volume once.
    let mut in_host_round = 0;
    let mut scripts = 0;
    loop {
        let mut head = vec![0u8; HEAD_BYTES];
        let length = match &program {
            Program::Host(path) => match read_host(path, &mut head) {
                Some(length) => length,
                None => {
                    let mut text = path.clone();
                    text.push(0);
                    match front.through_links(directory, text.as_ptr() as usize, true) {
                        Some(inside) if in_host_round == 0 => {
                            in_host_round += 1;
                            changed = true;
                            program = volume_program(front, &call, &inside, scratch)?;
                            continue;
                        }
                        // So the kernel would say of the program itself; of an interpreter it is the kernel's to say.
                        _ if prefix.is_empty() && is_missing(path) => return Err(Errno::NOENT),
                        _ => break,
                    }
                }
            },
            Program::Volume(mount, node, _) => read_volume(front, *mount, *node, &mut head)?,
        };
        head.truncate(length);
        if only_checks {
            // The file alone, whatever it takes to run it.
            break;
        }
        let interpreter = interpreter_of(&head);
        let in_volume = matches!(program, Program::Volume(..));
        match interpreter {
            Some(_) if in_volume && by_descriptor && prefix.is_empty() && super::inherit::closes_on_exec(directory) => {
                return Err(Errno::NOENT);
            }
            // The kernel does it, unless the interpreter or the script is a volume's.
            Some((name, _)) if !in_volume && !leads_inside(front, &call, name) && !is_host_script(name) => {
                let mut head = vec![0u8; HEAD_BYTES];
                if let Some(length) = read_host(name, &mut head) {
                    judge(&mut call, name, crate::launch::why_not(name, &head[..length]).or_else(library::why_not));
                }
                break;
            }
            Some(_) if scripts == SCRIPTS_MAX => return Err(Errno::LOOP),
            Some((name, argument)) => {
                scripts += 1;
                let mut new = vec![name.to_vec()];
                new.extend(argument.map(<[u8]>::to_vec));
                new.push(script.clone());
                // What an outer script was given follows behind the inner one's path.
                new.extend(prefix.drain(..).skip(1));
                prefix = new;
                script = name.to_vec();
                changed = true;
                program = if leads_inside(front, &call, name) {
                    volume_program(front, &call, name, scratch)?
                } else {
                    Program::Host(name.to_vec())
                };
            }
            None => {
                match &program {
                    Program::Host(path) => {
                        judge(&mut call, path, crate::launch::why_not(path, &head).or_else(library::why_not));
                    }
                    Program::Volume(_, _, path) => {
                        judge(&mut call, path, crate::launch::why_not_itself(path, &head).or_else(library::why_not));
                    }
                }
                break;
            }
        }
    }
    let environment = frame.arguments[argument_position + 1];
    let search_path = libraries::variable(environment, b"LD_LIBRARY_PATH").unwrap_or_default();
    let in_volume = call.table().directory().is_some();
    // No search path names no directory; an empty entry of one names the working directory.
    let searched = !search_path.is_empty() && libraries::concerns(front, &search_path, in_volume);
    if !only_checks && (matches!(program, Program::Volume(..)) || searched) {
        // The program's own path: what it was called by, or the last interpreter.
        let path = &script;
        let origin = path.iter().rposition(|byte| *byte == b'/').map_or(&b"."[..], |slash| &path[..slash]);
        let content = match &program {
            Program::Volume(mount, node, _) => libraries::content(front, *mount, *node),
            Program::Host(path) => read_whole_host(path),
        };
        if let Some(content) = content {
            libraries::prepare(front, &mut call, &content, origin, &search_path, scratch);
        }
    }
    if !changed && matches!(program, Program::Host(_)) {
        return Ok(());
    }
    let arguments = frame.arguments[argument_position];
    let new_arguments = put_arguments(call.record, &prefix, arguments, &program)?;
    match program {
        // A filter of system calls may know only the older call.
        Program::Host(_) if flags & (AT_SYMLINK_NOFOLLOW | AT_EXECVE_CHECK) == 0 => {
            frame.rax = EXECVE;
            frame.arguments = [new_arguments.path, new_arguments.list, environment, 0, 0, 0];
        }
        Program::Host(_) => {
            let flags = flags & (AT_SYMLINK_NOFOLLOW | AT_EXECVE_CHECK);
            frame.rax = EXECVEAT;
            frame.arguments = [CWD, new_arguments.path, new_arguments.list, environment, flags, 0];
        }
        Program::Volume(mount, node, _) => {
            let descriptor = memory_file(front, mount, node, &super::running::begin(front, mount, node)?)?;
            call.record.exec_descriptor = (crate::process::process_id(), descriptor);
            frame.rax = EXECVEAT;
            let flags = AT_EMPTY_PATH | flags & AT_EXECVE_CHECK;
            frame.arguments = [descriptor as usize, new_arguments.path, new_arguments.list, environment, flags, 0];
        }
    }
    Ok(())
}

/// Whether a path begins in a volume: as text, or from a working directory there.
fn leads_inside(front: &Front, call: &Call<'_>, path: &[u8]) -> bool {
    front.mount_of(path).is_some() || path.first() != Some(&b'/') && call.table().directory().is_some()
}

fn volume_program(front: &Front, call: &Call<'_>, path: &[u8], scratch: &mut PathScratch) -> Result<Program, Errno> {
    let mut text = path.to_vec();
    text.push(0);
    let none = gannet_vfs::namespace::ResolveFlags::empty();
    let follow = gannet_vfs::namespace::LastMode::Follow;
    match front.resolve(call.table(), super::paths::AT_FDCWD, text.as_ptr() as usize, follow, none, scratch)? {
        Target::Place(mount, place) => {
            let node = place.existing().map_err(|e| e.errno())?.node;
            Ok(Program::Volume(mount, node, path_of(call, mount, &place)))
        }
        Target::HostPath(path) => Ok(Program::Host(path[..path.len() - 1].to_vec())),
        Target::Host | Target::Descriptor(_) => Ok(Program::Host(path.to_vec())),
    }
}

/// The path that a program of a volume is known by, without links on the way.
fn path_of(call: &Call<'_>, mount: usize, place: &Place<'_>) -> Vec<u8> {
    let mut path = call.front.path_of_directory(mount, place.directory).unwrap_or_default();
    if let Last::Name(name) = place.last {
        path.push(b'/');
        path.extend_from_slice(name.bytes());
    }
    path
}

/// The interpreter and its argument that a `#!` line names, as the kernel reads it (`load_script` in `fs/binfmt_script.c`).
pub(crate) fn interpreter_of(head: &[u8]) -> Option<(&[u8], Option<&[u8]>)> {
    const LOOKED_AT_BYTES: usize = 256;
    let is_blank = |byte: &u8| matches!(byte, b' ' | b'\t');
    let ends_word = |byte: &u8| matches!(byte, b' ' | b'\t' | 0);
    let rest = head[..head.len().min(LOOKED_AT_BYTES)].strip_prefix(b"#!")?;
    let line = match rest.iter().position(|&byte| byte == b'\n') {
        Some(end) => &rest[..end],
        // A short file ends the word.
        None if head.len() < LOOKED_AT_BYTES => rest,
        None => &rest[..rest.len() - 1],
    };
    let is_cut = line.len() + 3 == LOOKED_AT_BYTES;
    let line = &line[line.iter().position(|byte| !is_blank(byte))?..];
    let line = &line[..=line.iter().rposition(|byte| !is_blank(byte))?];
    let end = match line.iter().position(ends_word) {
        Some(end) => end,
        // There may be more of the name.
        None if is_cut && !rest.contains(&b'\n') => return None,
        None => line.len(),
    };
    let name = Some(&line[..end]).filter(|name| !name.is_empty())?;
    let behind = line[end..].split(|&byte| byte == 0).next()?;
    let argument = behind.iter().position(|byte| !is_blank(byte)).map(|start| &behind[start..]);
    Some((name, argument))
}

/// Whether a program of the host is a script, which may have its interpreter in a volume.
fn is_host_script(path: &[u8]) -> bool {
    let mut start = [0; 2];
    read_host(path, &mut start).is_some_and(|_| start == *b"#!")
}

/// A program of the host that a search path in a volume concerns.
fn read_whole_host(path: &[u8]) -> Option<Vec<u8>> {
    const SIZE_WORD: usize = 6;
    with_host(path, |descriptor| {
        let mut status = [0u64; 18];
        // SAFETY: room for struct stat.
        let result = unsafe { syscall(FSTAT, [descriptor, status.as_mut_ptr() as usize]) };
        if is_error(result) || status[SIZE_WORD] > libraries::LIBRARY_BYTES_MAX {
            return None;
        }
        let mut content = vec![0u8; status[SIZE_WORD] as usize];
        let length = read_start(descriptor, &mut content)?;
        content.truncate(length);
        Some(content)
    })
}

/// Whether there is nothing under a path of the host, as is found out for most directories of a search path.
fn is_missing(path: &[u8]) -> bool {
    const ENOENT: isize = -2;
    let mut text = path.to_vec();
    text.push(0);
    // SAFETY: a path that ends in zero.
    unsafe { syscall(FACCESSAT, [CWD, text.as_ptr() as usize, 0]) == ENOENT }
}

/// The first bytes of a program of the host.
fn read_host(path: &[u8], head: &mut [u8]) -> Option<usize> {
    with_host(path, |descriptor| read_start(descriptor, head))
}

fn with_host<T>(path: &[u8], use_it: impl FnOnce(usize) -> Option<T>) -> Option<T> {
    const O_CLOEXEC_NONBLOCK: usize = 0o2000000 | 0o4000;
    let mut text = path.to_vec();
    text.push(0);
    // SAFETY: a path that ends in zero.
    let descriptor = unsafe { syscall(OPENAT, [CWD, text.as_ptr() as usize, O_CLOEXEC_NONBLOCK, 0]) };
    if is_error(descriptor) {
        return None;
    }
    let result = use_it(descriptor as usize);
    // SAFETY: the descriptor just opened.
    unsafe { syscall(CLOSE, [descriptor as usize]) };
    result
}

/// What a file begins with; returns how many bytes.
fn read_start(descriptor: usize, buffer: &mut [u8]) -> Option<usize> {
    // SAFETY: our own buffer.
    let length = unsafe { syscall(PREAD64, [descriptor, buffer.as_mut_ptr() as usize, buffer.len(), 0]) };
    usize::try_from(length).ok()
}

/// The first bytes of a program of a volume, which must be executable by the caller.
fn read_volume(front: &Front, mount: usize, node: NodeId, head: &mut [u8]) -> Result<usize, Errno> {
    let fs = front.file_system(mount)?;
    let known = fs.permissions(node).map_err(|error| error.errno())?;
    if known.file_type == FileType::Symlink {
        return Err(Errno::LOOP);
    }
    if known.file_type != FileType::Regular {
        return Err(Errno::ACCESS);
    }
    let namespace = Namespace::new(fs, credentials::effective());
    namespace.check_access(node, Access::EXECUTE).map_err(|error| error.errno())?;
    fs.read(node, 0, &mut Destination::from_slice(head)).map_err(|error| error.errno())
}

/// A copy of a program of a volume that the kernel can execute.
pub(crate) fn memory_file(front: &Front, mount: usize, node: NodeId, name: &str) -> Result<i32, Errno> {
    const MFD_CLOEXEC: usize = 1;
    const MFD_EXEC: usize = 0x10;
    const STEP_BYTES: usize = 1 << 20;
    let fs = front.file_system(mount)?;
    let size = fs.attributes(node).map_err(|error| error.errno())?.size_bytes;
    let _lifted = super::limits::Lifted::to(size)?;
    let name = format!("{name}\0");
    let name = name.as_ptr() as usize;
    // SAFETY: a string that ends in zero.
    let mut descriptor = unsafe { syscall(MEMFD_CREATE, [name, MFD_CLOEXEC | MFD_EXEC]) };
    if is_error(descriptor) {
        // A kernel before 6.3.
        // SAFETY: as above.
        descriptor = unsafe { syscall(MEMFD_CREATE, [name, MFD_CLOEXEC]) };
    }
    if is_error(descriptor) {
        return Err(Errno::from_raw_os_error(-descriptor as i32));
    }
    let mut buffer = vec![0u8; STEP_BYTES];
    let mut offset = 0;
    loop {
        let result = fs.read(node, offset, &mut Destination::from_slice(&mut buffer));
        let count = match result {
            Ok(0) => return Ok(descriptor as i32),
            Ok(count) => count,
            Err(error) => {
                // SAFETY: the descriptor made above.
                unsafe { syscall(CLOSE, [descriptor as usize]) };
                return Err(error.errno());
            }
        };
        let arguments = [descriptor as usize, buffer.as_ptr() as usize, count, offset as usize];
        // SAFETY: our own buffer and descriptor.
        let written = unsafe { syscall(PWRITE64, arguments) };
        if written != count as isize {
            // SAFETY: the descriptor made above.
            unsafe { syscall(CLOSE, [descriptor as usize]) };
            return Err(if is_error(written) { Errno::from_raw_os_error(-written as i32) } else { Errno::NOMEM });
        }
        offset += count as u64;
    }
}

/// Addresses of what the kernel is given.
struct Arguments {
    path: usize,
    list: usize,
}

/// Puts path and argument list where they live until the call is over.
fn put_arguments(
    record: &mut Record,
    prefix: &[Vec<u8>],
    arguments: usize,
    program: &Program,
) -> Result<Arguments, Errno> {
    let mut count = 0;
    let mut entry = 0usize;
    loop {
        if arguments == 0 {
            break;
        }
        memory::read_value(arguments + count * 8, &mut entry).map_err(|_| Errno::FAULT)?;
        if entry == 0 {
            break;
        }
        count += 1;
        if count > ARGUMENTS_MAX {
            return Err(Errno::TOOBIG);
        }
    }
    let (path, known_by): (&[u8], &[u8]) = match program {
        Program::Host(path) => (path, b""),
        Program::Volume(_, _, path) => (b"", path),
    };
    let text: usize = prefix.iter().map(|part| part.len() + 1).sum::<usize>() + path.len() + known_by.len() + 2;
    let mut room = Scratch::new(record, text + (count + prefix.len() + 2) * 8 + 64).ok_or(Errno::NOMEM)?;
    let path = room.string(&[path]).ok_or(Errno::NOMEM)?;
    record.exec_path = (room.string(&[known_by]).ok_or(Errno::NOMEM)?, known_by.len());
    if prefix.is_empty() {
        return Ok(Arguments { path, list: arguments });
    }
    let mut addresses = Vec::with_capacity(prefix.len());
    for part in prefix {
        addresses.push(room.string(&[part]).ok_or(Errno::NOMEM)?);
    }
    let words = room.words(count + prefix.len() + 2).ok_or(Errno::NOMEM)?;
    words[..addresses.len()].copy_from_slice(&addresses);
    let mut used = addresses.len();
    // The script's own name was argument 0; the path in the prefix stands for it.
    for index in 1..count {
        memory::read_value(arguments + index * 8, &mut words[used]).map_err(|_| Errno::FAULT)?;
        used += 1;
    }
    words[used] = 0;
    Ok(Arguments { path, list: words.as_ptr() as usize })
}

/// Says that a program will not see the volumes, if there is a reason why, and has it start [`nowhere`] if the working directory is in one.
/// A program that could not even start with the injected library does not get it.
fn judge(call: &mut Call<'_>, path: &[u8], why: Option<&str>) {
    let Some(why) = why else { return };
    call.record.exec_unseeing = true;
    call.record.exec_without_library = crate::launch::cannot_load(why);
    call.record.exec_nowhere = call.table().directory().is_some();
    let sees = b": this program will not see the volume (`gannet mount` shows it to every program)";
    let is_redirected = (0..3).any(|descriptor| call.open_file(descriptor).is_some());
    let loses: &[u8] =
        if is_redirected { b"; what it writes to a file there that it was given open is lost" } else { b"" };
    complain(&[path, b": ", why.as_bytes(), sees, loses]);
}
