//! A thread that looks at those who serve, each millisecond while there are requests, and sleeps otherwise.
//!
//! May touch: the calling thread, which it puts to sleep. What there is to look at is its user's affair.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread::Thread;
use std::time::Duration;

/// Time between two looks.
pub(super) const TICK: Duration = Duration::from_millis(1);
/// Looks in a row that saw nothing happen after which it sleeps until there is a request.
const IDLE_TICKS: u32 = 20;

/// The watch of a session.
#[derive(Default)]
pub(super) struct Watch {
    thread: Mutex<Option<Thread>>,
    number: AtomicU32,
    sleeps: AtomicBool,
    ended: AtomicBool,
}

impl Watch {
    /// A request has come, and whoever counts requests has counted it.
    pub(super) fn stir(&self) {
        if self.sleeps.load(Ordering::SeqCst) && self.sleeps.swap(false, Ordering::SeqCst) {
            self.wake();
        }
    }

    /// The session ends.
    pub(super) fn end(&self) {
        self.ended.store(true, Ordering::SeqCst);
        self.wake();
    }

    pub(super) fn ended(&self) -> bool {
        self.ended.load(Ordering::SeqCst)
    }

    /// The number of the thread that looks, 0 if there is none.
    pub(super) fn thread(&self) -> u32 {
        self.number.load(Ordering::Relaxed)
    }

    #[cfg(test)]
    pub(super) fn sleeps(&self) -> bool {
        self.sleeps.load(Ordering::SeqCst)
    }

    fn wake(&self) {
        if let Some(thread) = &*self.thread.lock().unwrap_or_else(PoisonError::into_inner) {
            thread.unpark();
        }
    }

    /// Looks until the session ends; `look` says whether anything has happened, or goes on, since it looked last.
    pub(super) fn run(&self, mut look: impl FnMut() -> bool) {
        *self.thread.lock().unwrap_or_else(PoisonError::into_inner) = Some(std::thread::current());
        self.number.store(rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned(), Ordering::Relaxed);
        let mut idle_ticks = 0;
        while !self.ended() {
            if idle_ticks >= IDLE_TICKS {
                self.sleeps.store(true, Ordering::SeqCst);
                // A request that was counted before it could see that we sleep is seen here.
                if !look() && !self.ended() {
                    std::thread::park();
                }
                self.sleeps.store(false, Ordering::SeqCst);
                idle_ticks = 0;
            }
            std::thread::sleep(TICK);
            idle_ticks = if look() { 0 } else { idle_ticks + 1 };
        }
    }
}
