//! Room in a full file system: what the kernel has dropped, but not told yet, is waited for.
//!
//! A program that removed a file and now writes another expects the room of the first. Through FUSE the kernel tells of the
//! last close (RELEASE) and of the inode's end (FORGET) after `close(2)` and `unlink(2)` have returned, and the write may
//! overtake them. Relies on `users` for what is kept without a name.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use gannet_vfs::{Errno, Result};

use super::Dispatcher;

/// Serves what the kernel has dropped and told, but nobody has read yet. True if there was some.
pub(crate) type Relief = Box<dyn Fn() -> bool + Send + Sync>;

/// A request waits this long altogether for files that were removed: the server's other threads need to run meanwhile, on a
/// machine that may be busy. A program may as well keep files without names and fill the rest: each wait in vain makes the
/// next one a quarter as long.
const PATIENCE: Duration = Duration::from_secs(2);
const PAUSE_MIN: Duration = Duration::from_micros(200);
const PAUSE_MAX: Duration = Duration::from_millis(20);

/// What a mount knows about room to come.
#[derive(Default)]
pub(super) struct Room {
    relief: OnceLock<Relief>,
    /// How many files lost their last name while the kernel held them.
    removals: AtomicU64,
    /// That count when somebody last waited in vain: nobody waits for the same files again.
    in_vain: AtomicU64,
    /// How many waits in a row were in vain.
    failures: AtomicU32,
}

impl Room {
    pub(super) fn note_removal(&self) {
        self.removals.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether nothing was waited for in vain lately.
    #[cfg(test)]
    pub(super) fn has_patience(&self) -> bool {
        self.failures.load(Ordering::Relaxed) == 0
    }

    /// Waits no longer than a moment from now on.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(super) fn lose_patience(&self) {
        self.failures.store(8, Ordering::Relaxed);
    }
}

impl Dispatcher {
    /// Installs the way to serve what waits beside a transport's own requests.
    pub(crate) fn set_relief(&self, relief: Relief) {
        let _ = self.room.relief.set(relief);
    }

    /// Serves what the kernel has told; true if that was something.
    pub(super) fn relieve(&self) -> bool {
        self.room.relief.get().is_some_and(|relief| relief())
    }

    /// Tries `attempt`; where the file system is full, again when the kernel has let go of something, and as long as it holds
    /// files that were removed a moment ago.
    pub(super) fn with_room<T>(&self, attempt: impl Fn() -> Result<T>) -> Result<T> {
        let mut outcome = attempt();
        let full = |outcome: &Result<T>| matches!(outcome, Err(error) if error.errno() == Errno::NOSPC);
        if full(&outcome) && self.relieve() {
            outcome = attempt();
        }
        if !full(&outcome) {
            return outcome;
        }
        let removals = self.room.removals.load(Ordering::Relaxed);
        let patience = PATIENCE / 4u32.pow(self.room.failures.load(Ordering::Relaxed).min(8));
        let (mut pause, mut waited) = (PAUSE_MIN, Duration::ZERO);
        while self.room.in_vain.load(Ordering::Relaxed) != removals {
            let last = !self.keeps_nameless();
            if !last {
                std::thread::sleep(pause);
                waited += pause;
                pause = (pause * 2).min(PAUSE_MAX);
                self.relieve();
            }
            // Also after the last one went: that may have been between the former attempt and the look.
            outcome = attempt();
            if !full(&outcome) {
                self.room.failures.store(0, Ordering::Relaxed);
                return outcome;
            }
            if last || waited >= patience {
                self.room.in_vain.store(removals, Ordering::Relaxed);
                if !waited.is_zero() {
                    self.room.failures.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
        outcome
    }
}
