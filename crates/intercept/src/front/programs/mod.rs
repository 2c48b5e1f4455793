//! Programs: those of a volume are executed from a memory file, scripts through their interpreter; those of the host that
//! cannot be intercepted are named on standard error.
//!
//! | | |
//! | --- | --- |
//! | here | what is executed in the end, and with what call |
//! | [`reading`] | what a file holds: its first bytes, its interpreter |
//! | [`mod@memory_file`] | a volume's program as a file that the kernel can execute |
//! | [`arguments`] | its arguments, with the interpreter's in front |

mod arguments;
mod memory_file;
mod reading;

pub(crate) use memory_file::memory_file;
pub(crate) use reading::interpreter_of;

use super::call::{CWD, Call};
use super::paths::Target;
use super::status::{empty_of, mode_of};
use super::{Front, complain, credentials, libraries};
use crate::dispatch::Outcome;
use crate::entry::Frame;
use crate::library;
use crate::memory;
use crate::number::*;
use crate::thread::{self, PathScratch, Record};
use arguments::put_arguments;
use gannet_vfs::namespace::{Last, Place};
use gannet_vfs::{Errno, NodeId};
use reading::{is_host_script, is_missing, read_host, read_volume, read_whole_host};

const HEAD_BYTES: usize = 4096;
const AT_SYMLINK_NOFOLLOW: usize = 0x100;
const AT_EMPTY_PATH: usize = 0x1000;
/// Only whether the file may be executed is asked (Linux 6.14).
const AT_EXECVE_CHECK: usize = 0x10000;
/// Scripts whose interpreter is a script, as the kernel bounds them.
const SCRIPTS_MAX: usize = 5;

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
    let target = front.resolve_asking(
        credentials::effective,
        call.table(),
        (directory as i32, path),
        mode_of(flags),
        empty_of(flags),
        scratch,
    )?;
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
                    match front.through_links(call.table(), directory, text.as_ptr() as usize, true) {
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
    let from = (super::paths::AT_FDCWD, text.as_ptr() as usize);
    match front.resolve_asking(credentials::effective, call.table(), from, follow, none, scratch)? {
        Target::Place(mount, place) => {
            let node = place.existing().map_err(|e| e.errno())?.node;
            Ok(Program::Volume(mount, node, path_of(call, mount, &place)))
        }
        Target::HostPath(path) => Ok(Program::Host(path[..path.len() - 1].to_vec())),
        Target::Descriptor(descriptor) => {
            let file = call.open_file(descriptor).ok_or(Errno::NOENT)?;
            Ok(Program::Volume(
                file.mount,
                file.node,
                front.path_of(call.table(), descriptor, &file).unwrap_or_default(),
            ))
        }
        Target::Host => Ok(Program::Host(path.to_vec())),
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
