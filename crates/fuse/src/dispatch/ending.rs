//! The end of a mount: threads that requests wait on end before the file system is left.
//!
//! They work on the file system like those that serve, but the kernel's end of the session reaches them only as a mark that they look at. Whoever
//! closes a volume after that, or lets others take what its threads held, must know that none of them is in a call. Relies on `transport` to
//! hand in each thread that it makes.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use gannet_vfs::{Errno, Error, Result};

use super::Dispatcher;

/// How long such a thread may take to see that the mount is gone. It is in one call at most: a wait in between ends sooner.
const PATIENCE: Duration = Duration::from_secs(10);
const PAUSE_MIN: Duration = Duration::from_micros(100);
const PAUSE_MAX: Duration = Duration::from_millis(10);

/// What is known of a mount's end.
#[derive(Default)]
pub(super) struct Ending {
    begun: AtomicBool,
    waiting: Mutex<Vec<JoinHandle<()>>>,
}

impl Ending {
    /// Joins those that have ended; says how many are left.
    fn join_ended(&self) -> usize {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        for thread in waiting.extract_if(.., |thread| thread.is_finished()) {
            // A panic cost its request, and was reported then.
            let _ = thread.join();
        }
        waiting.len()
    }
}

impl Dispatcher {
    /// A thread was made for a request that waits.
    pub(crate) fn waits_on(&self, thread: JoinHandle<()>) {
        self.ending.join_ended();
        self.ending.waiting.lock().unwrap_or_else(PoisonError::into_inner).push(thread);
    }

    /// Whether the mount is gone, and whoever waits must leave the file system alone.
    pub(super) fn has_ended(&self) -> bool {
        self.ending.begun.load(Ordering::SeqCst)
    }

    /// An error when it is.
    pub(super) fn goes_on(&self) -> Result<()> {
        if self.has_ended() { Err(Error::new(Errno::NOTCONN)) } else { Ok(()) }
    }

    /// Drops everything the kernel held: the mount is gone, and nobody serves it any more. False, and nothing is dropped, if somebody who waited
    /// still works on the file system after ten seconds.
    #[must_use]
    pub(crate) fn finish(&self) -> bool {
        self.finish_within(PATIENCE)
    }

    pub(super) fn finish_within(&self, patience: Duration) -> bool {
        self.ending.begun.store(true, Ordering::SeqCst);
        let deadline = Instant::now() + patience;
        let mut pause = PAUSE_MIN;
        // One that still serves something may make another: that is known before the first one ends.
        while self.ending.join_ended() > 0 {
            if Instant::now() >= deadline {
                return false;
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(PAUSE_MAX);
        }
        self.end_locks();
        self.drop_users();
        self.nodes.forget_all(|node| {
            let _ = self.file_system.retire(node);
        });
        true
    }
}
