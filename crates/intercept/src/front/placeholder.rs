//! What the kernel has in the place of a descriptor of ours: for most a duplicate of the template, for those opened with `O_PATH` one that was
//! opened so, since the kernel treats them as closed in nearly every call: `poll`, `select`, `epoll_ctl`, whatever is for sockets.

use super::Front;
use crate::number::{CLOSE, DUP3, FCNTL, FSTAT, OPEN};
use crate::raw::{is_error, syscall};
use core::fmt::Write;
use gannet_vfs::Errno;

pub(super) const O_PATH: u32 = 0o10000000;
const O_CLOEXEC: usize = 0o2000000;
const F_DUPFD: usize = 0;
const F_DUPFD_CLOEXEC: usize = 1030;
const F_DUPFD_QUERY: usize = 1027;

/// A path of `/proc`, on the stack.
struct Path {
    bytes: [u8; 32],
    used: usize,
}

impl Write for Path {
    fn write_str(&mut self, text: &str) -> core::fmt::Result {
        // The last byte stays zero.
        let room = self.bytes.get_mut(self.used..self.used + text.len()).ok_or(core::fmt::Error)?;
        room.copy_from_slice(text.as_bytes());
        self.used += text.len();
        Ok(())
    }
}

/// The lowest free number becomes a placeholder, for a file that was opened with these flags.
pub(super) fn make(front: &Front, flags: u32, closes_on_exec: bool) -> Result<usize, Errno> {
    let template = front.template();
    if flags & O_PATH != 0 {
        let mut path = Path { bytes: [0; 32], used: 0 };
        let _ = write!(path, "/proc/self/fd/{template}");
        let flags = O_PATH as usize | if closes_on_exec { O_CLOEXEC } else { 0 };
        // SAFETY: a path that ends with a zero byte.
        let made = unsafe { syscall(OPEN, [path.bytes.as_ptr() as usize, flags, 0]) };
        const ENOENT: isize = -2;
        if made != ENOENT {
            return if is_error(made) { Err(Errno::from_raw_os_error(-made as i32)) } else { Ok(made as usize) };
        }
        // There is no /proc.
    }
    let command = if closes_on_exec { F_DUPFD_CLOEXEC } else { F_DUPFD };
    // SAFETY: duplicates our own descriptor.
    let made = unsafe { syscall(FCNTL, [template, command, 0]) };
    if is_error(made) { Err(Errno::from_raw_os_error(-made as i32)) } else { Ok(made as usize) }
}

/// This number becomes a placeholder, whatever it was.
pub(super) fn put(front: &Front, flags: u32, descriptor: usize, closes_on_exec: bool) -> bool {
    let made = if flags & O_PATH != 0 { make(front, flags, true).ok() } else { None };
    let close_flag = if closes_on_exec { O_CLOEXEC } else { 0 };
    // SAFETY: descriptors of our own, and one that is to be replaced.
    unsafe {
        let put = syscall(DUP3, [made.unwrap_or_else(|| front.template()), descriptor, close_flag]);
        if let Some(made) = made {
            syscall(CLOSE, [made]);
        }
        !is_error(put)
    }
}

/// Whether two descriptors of the kernel are of one file.
fn is_same_file(descriptor: usize, other: usize) -> bool {
    let identity = |descriptor: usize| {
        let mut status = [0u64; 18];
        // SAFETY: struct stat is 144 bytes.
        let result = unsafe { syscall(FSTAT, [descriptor, status.as_mut_ptr() as usize]) };
        (result == 0).then_some((status[0], status[1]))
    };
    identity(descriptor).is_some() && identity(descriptor) == identity(other)
}

/// Whether a descriptor is a placeholder still, of a file that was opened with these flags. `template` is what it would be one of.
#[unsafe(link_section = ".text.hot.gannet")]
pub(super) fn is_one(descriptor: usize, template: usize, flags: u32) -> bool {
    if flags & O_PATH == 0 {
        // SAFETY: asks about descriptors only.
        let answer = unsafe { syscall(FCNTL, [descriptor, F_DUPFD_QUERY, template]) };
        const EINVAL: isize = -22;
        if answer != EINVAL {
            return answer == 1;
        }
        // A kernel before 6.10: the same file then, if not the same description.
    }
    is_same_file(descriptor, template)
}
