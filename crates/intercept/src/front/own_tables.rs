//! Tables of descriptors that single threads would have for themselves, by `unshare`, `close_range` or `clone`.
//!
//! There is one table of what descriptors stand for in a process ([`super::table`]): behind a thread with other descriptors than the rest it would
//! take a file of the host for a volume's that has the same number, and write to that. So these calls are refused (`EPERM`) where they
//! would part threads. Where there is one thread they change nothing, and pass.

use super::call::{Answer, Call};
use crate::dispatch::Outcome;
use crate::number::{NANOSLEEP, STAT};
use crate::process;
use crate::raw::{is_error, syscall};
use crate::thread::{self, Record};
use gannet_vfs::Errno;

/// Of `clone` and `unshare`.
pub(crate) const CLONE_FILES: usize = 0x400;

/// `unshare`.
pub(crate) fn unshare(call: &Call<'_>) -> Answer {
    if call.arguments[0] & CLONE_FILES != 0 {
        refuse_if_shared(call.in_child, call.record)?;
    }
    Ok(Outcome::Pass)
}

/// `EPERM` if others have the caller's table of descriptors, too.
pub(crate) fn refuse_if_shared(in_child: bool, record: &Record) -> Result<(), Errno> {
    let is_shared = if in_child {
        record.vfork_shares_descriptors
    } else {
        process::is_shared() || !thread::is_alone() && !is_only_thread()
    };
    if is_shared { Err(Errno::PERM) } else { Ok(()) }
}

/// Whether the kernel knows no other thread of this process. One that has ended, and for which another has waited, is there for a moment still.
fn is_only_thread() -> bool {
    const TURNS: u32 = 50;
    const TURN_NANOSECONDS: u64 = 100_000;
    /// Of a directory with one directory in it.
    const LINKS: u64 = 3;
    const LINKS_WORD: usize = 2;
    for _ in 0..TURNS {
        let mut status = [0u64; 18];
        let time = [0u64, TURN_NANOSECONDS];
        // SAFETY: a path that ends in zero, and room for struct stat.
        let result = unsafe { syscall(STAT, [c"/proc/self/task".as_ptr() as usize, status.as_mut_ptr() as usize]) };
        if is_error(result) {
            return false;
        }
        if status[LINKS_WORD] == LINKS {
            return true;
        }
        // SAFETY: a pointer to a timespec of ours.
        unsafe { syscall(NANOSLEEP, [time.as_ptr() as usize, 0]) };
    }
    false
}
