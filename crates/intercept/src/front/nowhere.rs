//! Where a program is whose working directory is in a volume that it cannot see: in a directory that has been removed. Its relative paths
//! lead nowhere (ENOENT), instead of to whatever the host has in the place that the kernel knows, `/`.

use crate::number::{CHDIR, GETTID, MKDIR, RMDIR};
use crate::raw::{is_error, syscall};
use core::fmt::Write;

/// Names that are tried: one may be left from a process that was killed here.
const ATTEMPTS: u32 = 8;

/// Goes there. False if that cannot be, and nothing has changed.
pub(crate) fn enter() -> bool {
    const MODE: usize = 0o555;
    // SAFETY: no arguments.
    let thread = unsafe { syscall(GETTID, []) };
    (0..ATTEMPTS).any(|attempt| {
        let mut path = String::with_capacity(64);
        let _ = write!(path, "/dev/shm/gannet-nowhere-{thread}-{attempt}\0");
        let path = path.as_ptr() as usize;
        // SAFETY: a path that ends in zero. Nothing can be put into what was just made but by who made it, the caller.
        unsafe {
            if is_error(syscall(MKDIR, [path, MODE])) {
                return false;
            }
            let entered = !is_error(syscall(CHDIR, [path]));
            syscall(RMDIR, [path]);
            entered
        }
    })
}

/// Comes back: while the working directory is in a volume the kernel's is `/`.
pub(crate) fn leave() {
    // SAFETY: a path that ends in zero.
    unsafe { syscall(CHDIR, [c"/".as_ptr() as usize]) };
}

/// Goes there if what was inherited, as [`super::inherit`] has it, says that the working directory is in a volume: in a program that
/// turns out not to be intercepted only once it runs.
pub(crate) fn enter_if_inside(inherited: &[u8]) {
    if inherited.split(|byte| *byte == b';').nth(1).is_some_and(|directory| !directory.is_empty()) {
        enter();
    }
}
