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
/// Against everything: seals, shrinking, growing, writing.
pub(super) const SEALS: usize = 1 | 2 | 4 | 8;

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
    loop {
        let template = front.template();
        let made = duplicate(template, flags, closes_on_exec);
        if front.template() == template {
            return made;
        }
        // The template has made way: by now another file may have been there.
        if let Ok(made) = made {
            // SAFETY: the descriptor just made.
            unsafe { syscall(CLOSE, [made]) };
        }
    }
}

/// Makes a duplicate of `template`, or one that is opened with `O_PATH`.
fn duplicate(template: usize, flags: u32, closes_on_exec: bool) -> Result<usize, Errno> {
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
    if !is_error(made) {
        return Ok(made as usize);
    }
    Err(match Errno::from_raw_os_error(-made as i32) {
        // Where the limit is none at all.
        Errno::INVAL => Errno::MFILE,
        errno => errno,
    })
}

/// This number becomes a placeholder, whatever it was.
pub(super) fn put(front: &Front, flags: u32, descriptor: usize, closes_on_exec: bool) -> bool {
    let made = if flags & O_PATH != 0 { make(front, flags, true).ok() } else { None };
    let close_flag = if closes_on_exec { O_CLOEXEC } else { 0 };
    loop {
        let template = front.template();
        // SAFETY: descriptors of our own, and one that is to be replaced.
        let put = unsafe { syscall(DUP3, [made.unwrap_or(template), descriptor, close_flag]) };
        if made.is_none() && front.template() != template {
            continue;
        }
        if let Some(made) = made {
            // SAFETY: the descriptor made above.
            unsafe { syscall(CLOSE, [made]) };
        }
        return !is_error(put);
    }
}

/// Whether a descriptor is of an empty file that nobody can change and that is open for writing only, as the template is. Not asked of others' memory files.
#[unsafe(link_section = ".text.hot.gannet")]
pub(super) fn is_template(descriptor: usize) -> bool {
    const F_GET_SEALS: usize = 1034;
    const F_GETFL: usize = 3;
    const O_ACCMODE: isize = 3;
    const O_WRONLY: isize = 1;
    // SAFETY: asks about a descriptor.
    let (seals, flags) = unsafe { (syscall(FCNTL, [descriptor, F_GET_SEALS]), syscall(FCNTL, [descriptor, F_GETFL])) };
    !is_error(seals) && seals as usize & SEALS == SEALS && !is_error(flags) && flags & O_ACCMODE == O_WRONLY
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
