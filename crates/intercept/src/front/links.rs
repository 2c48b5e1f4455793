//! Symbolic links of the host that lead to a volume.
//!
//! The kernel follows the host's links and ends at a mount's place, which need not exist: ENOENT. Only then is the path looked at
//! here: one `openat2` that refuses links tells whether any is on the way; if so, they are followed in text, and the call
//! is made anew with the path in the volume.

use super::call::{CWD, Call, perform};
use super::{Front, paths};
use crate::dispatch::Outcome;
use crate::memory;
use crate::number::*;
use crate::raw::{is_error, syscall};
use crate::thread::Scratch;

/// Added to a system call's number when the kernel has answered ENOENT.
pub(crate) const RECHECK: usize = 0x1_0000;

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

/// A call for which the kernel answered ENOENT.
pub(crate) fn recheck(call: &mut Call<'_>, scratch: &mut Scratch) -> Outcome {
    const ENOENT: isize = -2;
    let mut found: [Vec<u8>; 2] = [Vec::new(), Vec::new()];
    let mut any = false;
    for (argument, path) in path_arguments(call.number, &call.arguments).into_iter().flatten().zip(&mut found) {
        let directory = if argument.directory == NONE { CWD } else { call.arguments[argument.directory] };
        let Some(inside) = call.front.through_links(directory, call.arguments[argument.path], argument.follows) else {
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
    if !any && call.table().directory().is_none() {
        return Outcome::Done(ENOENT);
    }
    match perform(call, scratch) {
        Ok(Outcome::Done(result)) => Outcome::Done(result),
        // What is to be opened in the kernel (a FIFO) keeps its place in the room for paths.
        Ok(Outcome::Pass) if call.passed.is_some() => Outcome::Pass,
        Ok(Outcome::Again) => Outcome::Again,
        Ok(Outcome::Pass) => Outcome::Done(ENOENT),
        Err(errno) => Outcome::Done(-(errno.raw_os_error() as isize)),
    }
}

impl Front {
    /// The path in a volume that the host path at `address` leads to by symbolic links, if it does.
    pub(crate) fn through_links(&self, directory: usize, address: usize, follows: bool) -> Option<Vec<u8>> {
        const O_PATH_CLOEXEC: u64 = 0o12000000;
        const RESOLVE_NO_SYMLINKS: u64 = 4;
        const ELOOP: isize = -40;
        if super::filters::is_filtered() {
            return None;
        }
        let how = [O_PATH_CLOEXEC, 0, RESOLVE_NO_SYMLINKS];
        // SAFETY: the program's path; at worst an address that the kernel refuses.
        let tried = unsafe { syscall(OPENAT2, [directory, address, how.as_ptr() as usize, size_of_val(&how)]) };
        if !is_error(tried) {
            // SAFETY: the descriptor just made.
            unsafe { syscall(CLOSE, [tried as usize]) };
        }
        if tried != ELOOP {
            return None;
        }
        let mut given = [0u8; PATH_BYTES_MAX];
        let given = memory::read_string(address, &mut given).ok()?;
        let mut rest: Vec<u8> = Vec::new();
        if given.first() != Some(&b'/') {
            rest = directory_path(directory)?;
            rest.push(b'/');
        }
        rest.extend_from_slice(given);
        self.walk_host(rest, follows)
    }

    fn walk_host(&self, mut rest: Vec<u8>, follows: bool) -> Option<Vec<u8>> {
        let mut links = 0;
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
                    if self.mount_of(&current).is_some() {
                        current.extend_from_slice(&remaining);
                        return Some(current);
                    }
                    let is_last = remaining.iter().all(|byte| *byte == b'/');
                    if (!is_last || follows || !remaining.is_empty())
                        && let Some(mut target) = read_host_link(&current)
                    {
                        links += 1;
                        if links > LINKS_MAX || target.is_empty() {
                            return None;
                        }
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
