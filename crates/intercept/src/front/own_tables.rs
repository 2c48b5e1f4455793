//! Tables of descriptors that single threads would have for themselves, by `unshare`, `close_range` or `clone`.
//!
//! There is one table of what descriptors stand for in a process ([`super::table`]): behind a thread with other descriptors than the rest it would
//! take a file of the host for a volume's that has the same number, and write to that. So these calls are refused (`EPERM`) where they
//! would part threads. Where there is one thread they change nothing, and pass.

use super::call::{Answer, Call};
use super::{ends, enter_users, users};
use crate::dispatch::Outcome;
use crate::number::NANOSLEEP;
use crate::process;
use crate::raw::syscall;
use crate::thread::{self, Record};
use gannet_vfs::Errno;

/// Of `clone` and `unshare`.
pub(crate) const CLONE_FILES: usize = 0x400;

/// `unshare`.
pub(crate) fn unshare(call: &Call<'_>) -> Answer {
    if call.arguments[0] & CLONE_FILES != 0 {
        refuse_if_shared(call.in_child, call.record)?;
    }
    if call.arguments[0] & users::CLONE_NEWUSER != 0 {
        return enter_users::unshare(call);
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
    for _ in 0..TURNS {
        if ends::is_single_threaded() {
            return true;
        }
        let time = [0u64, TURN_NANOSECONDS];
        // SAFETY: a pointer to a timespec of ours.
        unsafe { syscall(NANOSLEEP, [time.as_ptr() as usize, 0]) };
    }
    false
}
