//! Filters of system calls that a program puts on itself (seccomp).
//!
//! What a filter does not know often ends the process, so from then on nothing is called that the program could not have meant to allow and that
//! can be left out: `openat2`, by which symbolic links of the host are found that lead to a volume ([`super::links`]), and
//! `futex_waitv`, by which who waits for a lock hears of its owner's death at once instead of a millisecond later. Volumes are opened
//! before, since a filter may forbid that. It stays over `fork`, as this note does, and over `execve`, which hands the note on ([`super::inherit`]).

use super::Front;
use super::call::Call;
use crate::number::{PRCTL, SECCOMP};
use core::sync::atomic::{AtomicBool, Ordering};

static FILTERED: AtomicBool = AtomicBool::new(false);

/// Whether this process, or one that it comes from, has put a filter on itself.
pub(crate) fn is_filtered() -> bool {
    FILTERED.load(Ordering::Relaxed)
}

/// There is a filter, or will be.
pub(crate) fn note() {
    FILTERED.store(true, Ordering::Relaxed);
    gannet_vfs::shared::shm::wait_for_one_word();
}

/// Before a call that may install a filter.
pub(crate) fn before(call: &Call<'_>) {
    const PR_SET_SECCOMP: usize = 22;
    const SECCOMP_SET_MODE_FILTER: usize = 1;
    let installs = match call.number {
        PRCTL => call.arguments[0] as u32 as usize == PR_SET_SECCOMP,
        SECCOMP => call.arguments[0] as u32 as usize <= SECCOMP_SET_MODE_FILTER,
        _ => false,
    };
    if installs && !is_filtered() {
        call.front.join_all();
        note();
    }
}

impl Front {
    /// Opens the volumes, as far as they can be opened: who cannot is told when it uses one.
    pub(super) fn join_all(&self) {
        for mount in &self.mounts {
            if let Ok(fs) = self.open_now(mount, false) {
                let _ = fs.shared().process_owner();
            }
        }
    }
}
