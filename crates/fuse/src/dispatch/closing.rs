//! Locks of open files that are being closed: the kernel tells of the last close (RELEASE) after `close(2)` has returned.
//!
//! A program that closes a file and takes its lock anew, or whose child has ended, must not be refused for that. FLUSH comes with
//! every close, and before it returns; so whoever would be refused for the lock of an open file that was flushed tries again for a
//! moment first. If the descriptor was not the last, that was in vain, and nobody waits for this open file until another of its
//! descriptors is closed. Touches nothing but handles of open files; `locks` says what they hold.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// How long the last close of an open file is waited for, and whatever else others are about to do; not counting what a busy machine adds to each pause.
const PATIENCE: Duration = Duration::from_millis(250);
const PAUSE_MIN: Duration = Duration::from_micros(200);
const PAUSE_MAX: Duration = Duration::from_millis(20);

/// Somebody who waits for a close, or the like, in pauses that grow.
pub(super) struct Patience {
    pause: Duration,
    waited: Duration,
}

impl Patience {
    pub(super) fn new() -> Self {
        Self { pause: PAUSE_MIN, waited: Duration::ZERO }
    }

    /// Waits a little; `false`, at once, when it was enough.
    pub(super) fn lasts(&mut self) -> bool {
        if self.waited >= PATIENCE {
            return false;
        }
        std::thread::sleep(self.pause);
        self.waited += self.pause;
        self.pause = (self.pause * 2).min(PAUSE_MAX);
        true
    }
}

/// The open files through which locks were taken.
#[derive(Default)]
pub(super) struct Closing {
    /// By handle: whether one of its descriptors was closed and it was not used for a lock since.
    by_handle: Mutex<HashMap<u64, bool>>,
    /// How many they are: closing a file asks nothing else while there are none.
    count: AtomicUsize,
}

impl Closing {
    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<u64, bool>> {
        self.by_handle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A lock is taken through the open file: it is in use.
    pub(super) fn used(&self, handle: u64) {
        if self.lock().insert(handle, false).is_none() {
            self.count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// A descriptor of the open file was closed, maybe the last.
    pub(super) fn flushed(&self, handle: u64) {
        if self.count.load(Ordering::Relaxed) > 0
            && let Some(closing) = self.lock().get_mut(&handle)
        {
            *closing = true;
        }
    }

    /// The open file is gone.
    pub(super) fn released(&self, handle: u64) {
        if self.count.load(Ordering::Relaxed) > 0 && self.lock().remove(&handle).is_some() {
            self.count.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Whether the open file may be gone in a moment.
    pub(super) fn is_closing(&self, handle: u64) -> bool {
        self.lock().get(&handle).copied().unwrap_or(false)
    }

    /// It was waited for in vain.
    pub(super) fn stays(&self, handle: u64) {
        if let Some(closing) = self.lock().get_mut(&handle) {
            *closing = false;
        }
    }

    /// The mount is gone.
    pub(super) fn clear(&self) {
        self.lock().clear();
        self.count.store(0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_close_is_waited_for_once() {
        let closing = Closing::default();
        closing.flushed(1);
        assert!(!closing.is_closing(1), "it holds nothing");
        closing.used(1);
        assert!(!closing.is_closing(1));
        closing.flushed(1);
        assert!(closing.is_closing(1) && !closing.is_closing(2));
        closing.stays(1);
        assert!(!closing.is_closing(1), "a duplicate is open");
        closing.flushed(1);
        closing.used(1);
        assert!(!closing.is_closing(1), "it is in use");
        closing.flushed(1);
        closing.released(1);
        closing.flushed(1);
        assert!(!closing.is_closing(1));
        assert_eq!(closing.count.load(Ordering::Relaxed), 0);
    }
}
