//! Symbolic links of the host that lead to a volume.
//!
//! The kernel follows the host's links and ends at a mount's place, which need not exist (ENOENT), or at a placeholder, which is no directory
//! (ENOTDIR) and is known by its inode number ([`super::process_links`]). Only then is the path looked at here: one `openat2` that refuses links
//! tells whether any is on the way; if so, they are followed in text, and the call is made anew with the path in the volume.

use super::call::{CWD, Call, perform};
use super::process_links::{EACCES, ELOOP, ENOENT, ENOTDIR, RESOLVE_NO_SYMLINKS, probe};
use super::table::Table;
use super::{Front, filters, held, internal, paths, running};
use crate::dispatch::Outcome;
use crate::memory;
use crate::number::*;
use crate::raw::{is_error, syscall};
use crate::thread::Scratch;

/// Added to a system call's number when the kernel's answer is to be looked at. From [`ANSWER_SHIFT`] on the error that it was, 0: none.
pub(crate) const RECHECK: usize = 0x1_0000;
/// Above the numbers that the kernel does not know.
pub(crate) const ANSWER_SHIFT: u8 = 20;
/// Which of those a number is: of these bits one only, [`RECHECK`], is in one with an answer.
pub(crate) const NUMBER_KINDS: usize = 0xf_0000;

/// The kernel's answer in such a number.
pub(crate) fn answer_in(number: usize) -> isize {
    -((number as u32 >> ANSWER_SHIFT) as isize)
}

/// The kernel's answer in a number of any call's, where nobody looks at it.
pub(crate) fn answer_unlooked(number: usize, arguments: [usize; 6]) -> isize {
    match (number as u32 as usize & (RECHECK - 1), answer_in(number)) {
        (RECVMSG | RECVMMSG, _) => (number >> u32::BITS) as isize,
        // How long the link is that was read is no longer known.
        // SAFETY: the call that was made, once more.
        (call @ (READLINK | READLINKAT), 0) => unsafe { syscall(call, arguments) },
        (_, answer) => answer,
    }
}

const PATH_BYTES_MAX: usize = 4096;
const LINKS_MAX: u32 = 40;
const NONE: usize = usize::MAX;

/// A path among the arguments of a call: positions of directory (or [`NONE`]) and path, and whether its last component is followed.
#[derive(Clone, Copy)]
struct PathArgument {
    directory: usize,
    path: usize,
    follows: bool,
}

/// The paths that a call takes, as far as they are looked at here.
fn path_arguments(number: usize, arguments: &[usize; 6]) -> [Option<PathArgument>; 2] {
    const AT_SYMLINK_NOFOLLOW: usize = 0x100;
    let one = |directory, path, follows| [Some(PathArgument { directory, path, follows }), None];
    let two = |first: (usize, usize), second: (usize, usize)| {
        [first, second].map(|(directory, path)| Some(PathArgument { directory, path, follows: false }))
    };
    let by_flag = |position: usize| arguments[position] & AT_SYMLINK_NOFOLLOW == 0;
    match number {
        OPEN | CREAT | STAT | ACCESS | CHMOD | CHOWN | TRUNCATE | STATFS | SETXATTR | GETXATTR | LISTXATTR
        | REMOVEXATTR | UTIME | UTIMES | CHDIR => one(NONE, 0, true),
        LSTAT | MKDIR | RMDIR | UNLINK | READLINK | LCHOWN | MKNOD | LSETXATTR | LGETXATTR | LLISTXATTR
        | LREMOVEXATTR => one(NONE, 0, false),
        OPENAT | OPENAT2 | FUTIMESAT | FCHMODAT | FACCESSAT => one(0, 1, true),
        MKDIRAT | MKNODAT | UNLINKAT | READLINKAT => one(0, 1, false),
        NEWFSTATAT | UTIMENSAT | FACCESSAT2 | FCHMODAT2 => one(0, 1, by_flag(3)),
        STATX | SETXATTRAT | GETXATTRAT | LISTXATTRAT | REMOVEXATTRAT => one(0, 1, by_flag(2)),
        FCHOWNAT => one(0, 1, by_flag(4)),
        SYMLINK => one(NONE, 1, false),
        SYMLINKAT => one(1, 2, false),
        RENAME | LINK => two((NONE, 0), (NONE, 1)),
        RENAMEAT | RENAMEAT2 | LINKAT => two((0, 1), (2, 3)),
        _ => [None; 2],
    }
}

/// Whether a call takes a path that is looked at here.
pub(crate) fn takes_path(number: usize) -> bool {
    path_arguments(number, &[0; 6])[0].is_some()
}

/// A call whose answer by the kernel is to be looked at.
pub(crate) fn recheck(call: &mut Call<'_>, answer: isize, scratch: &mut Scratch) -> Outcome {
    // A placeholder may be neither read nor executed, but by root.
    let is_denied = answer == EACCES && matches!(call.number, ACCESS | FACCESSAT | FACCESSAT2);
    if !matches!(answer, 0 | ENOENT | ENOTDIR | ELOOP) && !is_denied {
        return Outcome::Done(answer);
    }
    let given = call.arguments;
    let mut found: [Vec<u8>; 2] = [Vec::new(), Vec::new()];
    let mut any = false;
    for (argument, path) in path_arguments(call.number, &call.arguments).into_iter().flatten().zip(&mut found) {
        let directory = if argument.directory == NONE { CWD } else { call.arguments[argument.directory] };
        let address = call.arguments[argument.path];
        let Some(inside) = call.front.through_links(call.table(), directory, address, argument.follows) else {
            continue;
        };
        *path = inside;
        path.push(0);
        call.arguments[argument.path] = path.as_ptr() as usize;
        if argument.directory != NONE {
            call.arguments[argument.directory] = CWD;
        }
        any = true;
    }
    // Another thread may have entered a volume when the call was on its way, with the kernel's directory elsewhere.
    if !any && (answer != ENOENT || call.table().directory().is_none()) {
        return as_answered(call, given, answer);
    }
    match perform(call, scratch) {
        Ok(Outcome::Done(result)) => Outcome::Done(result),
        // What is to be opened in the kernel (a FIFO) keeps its place in the room for paths.
        Ok(Outcome::Pass) if call.passed.is_some() => Outcome::Pass,
        Ok(Outcome::Again) => Outcome::Again,
        Ok(Outcome::Pass) => as_answered(call, given, answer),
        Err(errno) => Outcome::Done(-(errno.raw_os_error() as isize)),
    }
}

/// The kernel's answer was right. How long a link is that was read is no longer known.
fn as_answered(call: &Call<'_>, given: [usize; 6], answer: isize) -> Outcome {
    match call.number {
        READLINK | READLINKAT if answer == 0 => Call::on_host(call.number, given),
        _ => Outcome::Done(answer),
    }
}

/// What a path of the host leads to.
pub(super) struct Led {
    /// A path that begins, as text, with a mount's place or a link of this process to what is ours.
    pub(super) path: Vec<u8>,
    /// A link of `/proc` that the kernel makes up was followed, or is to be.
    pub(super) by_process: bool,
}

impl Front {
    /// The path in a volume, or by a link of this process to what is ours, that the host path at `address` leads to by symbolic links, if it does.
    pub(crate) fn through_links(
        &self,
        table: &Table,
        directory: usize,
        address: usize,
        follows: bool,
    ) -> Option<Vec<u8>> {
        if filters::is_filtered() || probe(directory, address, true, RESOLVE_NO_SYMLINKS) != ELOOP {
            return None;
        }
        self.led_through(table, directory, address, follows)
    }

    /// The same, where it is known that there are links on the way.
    pub(super) fn led_through(
        &self,
        table: &Table,
        directory: usize,
        address: usize,
        follows: bool,
    ) -> Option<Vec<u8>> {
        let mut given = [0u8; PATH_BYTES_MAX];
        let given = memory::read_string(address, &mut given).ok()?;
        let mut rest: Vec<u8> = Vec::new();
        if given.first() != Some(&b'/') {
            rest = directory_path(directory)?;
            rest.push(b'/');
        }
        rest.extend_from_slice(given);
        self.walk_host(table, rest, follows).map(|led| led.path)
    }

    /// Follows an absolute path of the host until it is a volume's, or leads on by what the kernel does not know.
    pub(super) fn walk_host(&self, table: &Table, mut rest: Vec<u8>, follows: bool) -> Option<Led> {
        let mut links = 0;
        let mut by_process = false;
        let mut current: Vec<u8> = Vec::new();
        // Each round takes a component away or follows a link, which are counted; links do not grow a path without bound.
        while rest.len() < 2 * PATH_BYTES_MAX {
            let start = rest.iter().position(|byte| *byte != b'/')?;
            let end = rest[start..].iter().position(|byte| *byte == b'/').map_or(rest.len(), |length| start + length);
            let component = rest[start..end].to_vec();
            let remaining = rest.split_off(end);
            match &component[..] {
                b"." => {}
                b".." => current.truncate(current.iter().rposition(|byte| *byte == b'/').unwrap_or(0)),
                name => {
                    let parent_length = current.len();
                    current.push(b'/');
                    current.extend_from_slice(name);
                    let is_ours = is_link_to_ours(table, &current);
                    if is_ours || self.mount_of(&current).is_some() {
                        current.extend_from_slice(&remaining);
                        return Some(Led { path: current, by_process: by_process || is_ours });
                    }
                    let is_last = remaining.iter().all(|byte| *byte == b'/');
                    if (!is_last || follows || !remaining.is_empty())
                        && let Some(mut target) = read_host_link(&current)
                    {
                        links += 1;
                        if links > LINKS_MAX || target.is_empty() {
                            return None;
                        }
                        by_process |= running::own_entry(&current).is_some();
                        current.truncate(if target[0] == b'/' { 0 } else { parent_length });
                        target.extend_from_slice(&remaining);
                        rest = target;
                        continue;
                    }
                }
            }
            rest = remaining;
        }
        None
    }
}

/// Whether a path is that of a link of this process to what is ours, as far as it is one: a descriptor of a volume, one that is kept from the
/// program, the working directory in a volume.
fn is_link_to_ours(table: &Table, path: &[u8]) -> bool {
    let Some(entry) = running::own_entry(path) else { return false };
    if entry == b"cwd" {
        return table.directory().is_some();
    }
    if entry.strip_prefix(b"fd/").is_none() {
        return false;
    }
    // Kept placeholders are of closed descriptors.
    if held::any() {
        held::flush();
    }
    paths::named_descriptor(path).is_some_and(|(descriptor, length)| {
        length == path.len() && (table.get(descriptor).is_some() || internal::is_internal(descriptor as i32))
    })
}

/// Where the directory of a call is on the host.
fn directory_path(directory: usize) -> Option<Vec<u8>> {
    if directory as i32 == paths::AT_FDCWD {
        let mut buffer = [0u8; PATH_BYTES_MAX];
        // SAFETY: a buffer of that length.
        let length = unsafe { syscall(GETCWD, [buffer.as_mut_ptr() as usize, buffer.len()]) };
        return (!is_error(length) && buffer[0] == b'/').then(|| buffer[..length as usize - 1].to_vec());
    }
    read_host_link(format!("/proc/self/fd/{}", directory as i32).as_bytes()).filter(|path| path.first() == Some(&b'/'))
}

/// What a symbolic link of the host says; `None` if it is none.
fn read_host_link(path: &[u8]) -> Option<Vec<u8>> {
    let mut text = path.to_vec();
    text.push(0);
    let mut target = vec![0u8; PATH_BYTES_MAX];
    // SAFETY: a path that ends in zero, and a buffer of that length.
    let length = unsafe { syscall(READLINK, [text.as_ptr() as usize, target.as_mut_ptr() as usize, target.len()]) };
    target.truncate(usize::try_from(length).ok()?);
    Some(target)
}
