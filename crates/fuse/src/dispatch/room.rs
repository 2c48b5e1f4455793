//! Room in a full file system: what the kernel has dropped, but not told yet, is waited for.
//!
//! A program that removed a file and now writes another expects the room of the first. Through FUSE the kernel tells of the
//! last close (RELEASE) and of the inode's end (FORGET) after `close(2)` and `unlink(2)` have returned, and the write may
//! overtake them. It waits on a thread of its own, with a copy of the request: a serving thread that waited would hold up
//! everybody's. Relies on `users` for what is kept without a name.

use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use gannet_vfs::{Errno, Result};

use super::waiting::WaitsFor;
use super::{Dispatcher, FixedOutcome, Outcome};
use crate::protocol::constants::InitFlags;
use crate::protocol::request::{Header, Operation, Request};

/// Serves what the kernel has dropped and told, but nobody has read yet. True if there was some.
pub(crate) type Relief = Box<dyn Fn() -> bool + Send + Sync>;

/// A request waits this long altogether for files that were removed: the server's other threads need to run meanwhile, on a
/// machine that may be busy. A program may as well keep files without names and fill the rest: each wait in vain makes the
/// next one a quarter as long, and one that was not makes up for half of those.
const PATIENCE: Duration = Duration::from_secs(2);
const PAUSE_MIN: Duration = Duration::from_micros(200);
const PAUSE_MAX: Duration = Duration::from_millis(20);
/// So many requests of a mount wait for room at a time, each with a copy of a megabyte at most.
const WAITERS_MAX: usize = 64;

/// The bytes of a request as they came.
#[derive(Clone, Copy)]
pub(super) enum Raw<'a> {
    Whole(&'a [u8]),
    /// What has the operation's structure, and what follows it.
    Split(&'a [u8], &'a [u8]),
}

/// A copy of them, for later.
pub(super) struct Kept {
    structure: Option<Vec<u8>>,
    bytes: Vec<u8>,
    _seat: Seat,
}

/// One of those that wait for room.
struct Seat(Arc<Dispatcher>);

impl Drop for Seat {
    fn drop(&mut self) {
        self.0.room.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

/// What a mount knows about room to come.
#[derive(Default)]
pub(super) struct Room {
    relief: OnceLock<Relief>,
    /// How many files lost their last name while the kernel held them.
    removals: AtomicU64,
    /// The highest such count for which somebody waited in vain: nobody waits for the same files again.
    in_vain: AtomicU64,
    /// How many waits were in vain, and not made up for.
    failures: AtomicU32,
    waiting: AtomicUsize,
}

impl Room {
    pub(super) fn note_removal(&self) {
        self.removals.fetch_add(1, Ordering::Relaxed);
    }

    /// A wait had an end.
    pub(super) fn was_not_in_vain(&self) {
        let _ = self.failures.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |before| Some(before / 2));
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

    /// Serves an operation with a reply of fixed size, or has it wait for room.
    pub(super) fn fixed(self: &Arc<Self>, header: &Header, operation: &Operation<'_>, raw: Raw<'_>) -> FixedOutcome {
        let outcome = self.with_room_now(|| self.fixed_once(header, operation));
        if full(&outcome) && self.room_may_come() {
            return FixedOutcome::Other(self.wait_for_room(header, raw));
        }
        outcome.unwrap_or_else(|error| FixedOutcome::Other(self.error(header, &error)))
    }

    pub(super) fn wait_for_room(self: &Arc<Self>, header: &Header, raw: Raw<'_>) -> Outcome {
        let before = self.room.waiting.fetch_add(1, Ordering::Relaxed);
        let _seat = Seat(Arc::clone(self));
        if before >= WAITERS_MAX {
            return Outcome::Error(Errno::NOSPC);
        }
        let (structure, bytes) = match raw {
            Raw::Whole(bytes) => (None, bytes),
            Raw::Split(structure, payload) => (Some(structure.to_vec()), payload),
        };
        self.waits(header, WaitsFor::Room(Kept { structure, bytes: bytes.to_vec(), _seat }))
    }

    /// Serves a request that waits, on a thread of its own.
    pub(super) fn serve_with_room(self: &Arc<Self>, header: &Header, kept: &Kept) -> Outcome {
        let parsed = match &kept.structure {
            Some(structure) => Request::parse_split(*header, structure, &kept.bytes),
            None => Request::parse_contiguous(&kept.bytes, self.agreed(InitFlags::SETXATTR_EXT)),
        };
        let Ok(Request { operation: Some(operation), .. }) = parsed else { return Outcome::Error(Errno::INVAL) };
        match self.with_room(|| self.fixed_once(header, &operation)) {
            Ok(FixedOutcome::Reply(reply)) => Outcome::late(reply),
            Ok(FixedOutcome::Other(outcome)) => outcome,
            Err(error) => self.error(header, &error),
        }
    }

    /// Whether the kernel holds files that were removed, and that nobody has waited for in vain.
    fn room_may_come(&self) -> bool {
        self.room.in_vain.load(Ordering::Relaxed) < self.room.removals.load(Ordering::Relaxed)
    }

    /// Tries `attempt`; where the file system is full, again when the kernel has let go of something. Waits for nothing.
    pub(super) fn with_room_now<T>(&self, attempt: impl Fn() -> Result<T>) -> Result<T> {
        let outcome = attempt();
        if full(&outcome) && self.relieve() { attempt() } else { outcome }
    }

    /// The same, and again as long as the kernel holds files that were removed a moment ago. Not on a thread that serves others.
    pub(super) fn with_room<T>(&self, attempt: impl Fn() -> Result<T>) -> Result<T> {
        // The mount may be gone meanwhile, and the file system left.
        let attempt = || self.goes_on().and_then(|()| attempt());
        let mut outcome = self.with_room_now(attempt);
        if !full(&outcome) {
            return outcome;
        }
        let removals = self.room.removals.load(Ordering::Relaxed);
        let patience = PATIENCE / 4u32.pow(self.room.failures.load(Ordering::Relaxed).min(8));
        let (mut pause, mut waited) = (PAUSE_MIN, Duration::ZERO);
        while self.room.in_vain.load(Ordering::Relaxed) < removals {
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
                self.room.was_not_in_vain();
                return outcome;
            }
            if last || waited >= patience {
                // Another may have waited for later ones.
                self.room.in_vain.fetch_max(removals, Ordering::Relaxed);
                if !waited.is_zero() {
                    self.room.failures.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
        outcome
    }
}

fn full<T>(outcome: &Result<T>) -> bool {
    matches!(outcome, Err(error) if error.errno() == Errno::NOSPC)
}
