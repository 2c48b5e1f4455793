//! Programs of volumes that are running: nobody may write to them (ETXTBSY), what is open for writing cannot be executed, and
//! `/proc/self/exe` names their path.
//!
//! They run from memory files whose names say which inode they are copies of, so that the kernel's own view of who
//! runs what, `/proc/PID/exe`, is asked: nothing is kept that a killed process could leave behind. It is asked only when an
//! existing file that somebody may execute is opened for writing or cut, and only if that was executed, as far as a filter in
//! the arena knows ([`Shared::may_be_executed`](gannet_vfs::shared::Shared::may_be_executed)).

use super::Front;
use super::paths::parse_number;
use crate::environment;
use crate::number::*;
use crate::raw::{is_error, syscall};
use gannet_vfs::shared::AccessMode;
use gannet_vfs::{Errno, FileSystem, FileType, NodeId};

/// How the names of the memory files begin that programs of a volume run from; as links they begin with `/memfd:`.
fn names_of(fs: &dyn FileSystem) -> String {
    format!("gannet-program:{:x}:", fs.identity())
}

/// The name of the memory file that a program runs from.
fn name_of(fs: &dyn FileSystem, node: NodeId) -> String {
    format!("{}{}:{}.", names_of(fs), node.number, node.generation)
}

/// The number of the inode in a link that begins with `prefix`.
fn number_in(link: &[u8], prefix: &[u8]) -> Option<u64> {
    let digits = link.strip_prefix(prefix)?.split(|byte| *byte == b':').next()?;
    core::str::from_utf8(digits).ok()?.parse().ok()
}

/// `ETXTBSY` if a file is a running program. Before it is opened for writing, or cut.
pub(crate) fn check_not_running(fs: &dyn FileSystem, node: NodeId, file_type: FileType) -> Result<(), Errno> {
    const EXECUTABLE: u32 = 0o111;
    if file_type != FileType::Regular {
        return Ok(());
    }
    let known = fs.permissions(node).map_err(|error| error.errno())?;
    if known.mode & EXECUTABLE == 0 {
        return Ok(());
    }
    let find = || {
        let ours = format!("/memfd:{}", names_of(fs)).into_bytes();
        let mut noted = Ok(());
        each_program(|link| {
            if let Some(number) = number_in(link, &ours) {
                // The filter goes by the number alone.
                noted = fs.shared().note_executed(NodeId::new(number, 0));
            }
            noted.is_err()
        });
        noted
    };
    if !fs.shared().may_be_executed(node, find).map_err(|error| error.errno())? {
        return Ok(());
    }
    let wanted = format!("/memfd:{}", name_of(fs, node)).into_bytes();
    let mut runs = false;
    each_program(|link| {
        runs = link.starts_with(&wanted);
        runs
    });
    if runs { Err(Errno::TXTBSY) } else { Ok(()) }
}

/// A program of a volume is about to be executed: the name for its memory file, `ETXTBSY` if it is open for writing.
pub(crate) fn begin(front: &Front, mount: usize, node: NodeId) -> Result<String, Errno> {
    let fs = front.file_system(mount)?;
    fs.shared().note_executed(node).map_err(|error| error.errno())?;
    let is_written = || fs.shared().is_open_for(node, AccessMode::WRITE).map_err(|error| error.errno());
    if is_written()? {
        // Or was, by somebody who was killed just now.
        let _ = fs.shared().reap(fs);
        if is_written()? {
            return Err(Errno::TXTBSY);
        }
    }
    Ok(name_of(fs, node))
}

/// Calls `look` with the link in `/proc` to each process's program, until it says true.
fn each_program(mut look: impl FnMut(&[u8]) -> bool) {
    const O_DIRECTORY_CLOEXEC: usize = 0o2200000;
    // SAFETY: a path that ends in zero; the descriptor just made; a buffer of that length.
    unsafe {
        let descriptor = syscall(OPEN, [c"/proc".as_ptr() as usize, O_DIRECTORY_CLOEXEC, 0]);
        if is_error(descriptor) {
            return;
        }
        let mut buffer = vec![0u8; 32 * 1024];
        let mut found = false;
        loop {
            let length = syscall(GETDENTS64, [descriptor as usize, buffer.as_mut_ptr() as usize, buffer.len()]);
            if length <= 0 || found {
                break;
            }
            let mut rest = &buffer[..length as usize];
            // Each entry: inode, cookie, length, type, name.
            while let Some(head) = rest.get(..19) {
                let entry_bytes = usize::from(u16::from_le_bytes([head[16], head[17]])).clamp(19, rest.len());
                let name = &rest[19..entry_bytes];
                found = found || name.first().is_some_and(u8::is_ascii_digit) && look_at(name, &mut look);
                rest = &rest[entry_bytes..];
            }
        }
        syscall(CLOSE, [descriptor as usize]);
    }
}

fn look_at(process: &[u8], look: &mut impl FnMut(&[u8]) -> bool) -> bool {
    let mut path = b"/proc/".to_vec();
    path.extend(process.iter().take_while(|byte| **byte != 0));
    path.extend_from_slice(b"/exe\0");
    let mut link = [0u8; 128];
    // SAFETY: a path that ends in zero, and a buffer of that length.
    let length = unsafe { syscall(READLINK, [path.as_ptr() as usize, link.as_mut_ptr() as usize, link.len()]) };
    usize::try_from(length).is_ok_and(|length| look(&link[..length]))
}

/// What a path names in the directory of this process, or of a thread of it, in `/proc`.
pub(crate) fn own_entry(path: &[u8]) -> Option<&[u8]> {
    let rest = path.strip_prefix(b"/proc/")?;
    let slash = rest.iter().position(|byte| *byte == b'/')?;
    let who = &rest[..slash];
    if who != b"self" && who != b"thread-self" && parse_number(who)? != crate::process::process_id() as usize {
        return None;
    }
    let rest = &rest[slash + 1..];
    // What `/proc/thread-self` is a link to.
    let of_thread = rest.strip_prefix(b"task/").and_then(|rest| {
        let end = rest.iter().position(|byte| *byte == b'/')?;
        parse_number(&rest[..end]).map(|_| &rest[end + 1..])
    });
    Some(of_thread.unwrap_or(rest))
}

/// How much of a path leads to this process's working directory by its link in `/proc`, the slashes behind it included. `follows`: also a link that
/// the path ends with is followed.
pub(crate) fn own_directory_bytes(path: &[u8], follows: bool) -> Option<usize> {
    let behind = own_entry(path)?.strip_prefix(b"cwd")?;
    let slashes = behind.iter().take_while(|byte| **byte == b'/').count();
    (slashes > 0 || behind.is_empty() && follows).then_some(path.len() - behind.len() + slashes)
}

/// The path of the program that this process runs, if that is a volume's.
pub(crate) fn own_program() -> Option<&'static [u8]> {
    let program = environment::settings()?.program();
    (!program.is_empty()).then_some(program)
}
