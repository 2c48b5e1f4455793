//! Abandonment: a thread stops for ever after any one of its stores to shared state, as a kill
//! would stop it, and another takes over. And disturbance: a thread pauses after some of its stores and loads, so that others come in
//! between where they hardly ever would.
//!
//! Stores to an arena are counted by `Word`; a medium's simulation calls [`store_point`] for its
//! own. The thread is stopped by unwinding, and its later stores (of destructors) are swallowed.
//! Only in tests and with the feature `abandon`. Faults in shared memory: `stores`.

mod stores;

pub(crate) use stores::is_left_out;
pub use stores::{Line, collect_stores, in_time, without_stores};

use crate::session::Session;
use crate::thread::mark_own_dead;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;

/// Not counting.
const OFF: u64 = u64::MAX;
/// The thread was abandoned.
const DEAD: u64 = u64::MAX - 1;

thread_local! {
    /// Stores left until the thread is abandoned.
    static LEFT: Cell<u64> = const { Cell::new(OFF) };
    /// Where the drawing of pauses stands; 0: there are none.
    static PAUSES: Cell<u64> = const { Cell::new(0) };
    static SLEEP_NS: Cell<Option<u64>> = const { Cell::new(None) };
}

/// How long the calling thread sleeps at most, in nanoseconds, before it looks again whether it can have a lock. `None`: as ever.
pub fn sleep_at_most(sleep_ns: Option<u64>) {
    SLEEP_NS.set(sleep_ns);
}

/// Whether the kernel can wake who waits for a dead owner (Linux 5.16).
#[cfg(test)]
pub(crate) fn kernel_waits_for_several() -> bool {
    let word = std::sync::atomic::AtomicU32::new(1);
    let mut wait = rustix::thread::futex::Wait::new();
    wait.uaddr = rustix::thread::futex::WaitPtr::new(word.as_ptr().cast());
    wait.flags = rustix::thread::futex::WaitFlags::SIZE_U32;
    let flags = rustix::thread::futex::WaitvFlags::empty();
    let clock = rustix::time::ClockId::Monotonic;
    // Its value is another: whoever knows the call says so.
    rustix::thread::futex::waitv(&[wait], flags, None, clock) == Err(rustix::io::Errno::AGAIN)
}

pub(crate) fn sleep_ns() -> Option<u64> {
    SLEEP_NS.get()
}

/// One in so many stores is followed by a pause of a thread that is disturbed, and one in so many loads.
const STORES_PER_PAUSE: u64 = 24;
const LOADS_PER_PAUSE: u64 = 128;

/// From now on the calling thread pauses after some of its stores to shared state, and of its loads, for as short a time as the kernel
/// knows (some 50 microseconds): which, follows from `seed` alone. 0: no more.
pub fn disturb(seed: u64) {
    PAUSES.set(seed);
}

/// To be called after every load from shared state.
#[inline]
pub(crate) fn load_point() {
    stores::check_time();
    let pauses = PAUSES.get();
    if pauses != 0 {
        pause_perhaps(pauses, LOADS_PER_PAUSE);
    }
}

#[cold]
fn pause_perhaps(state: u64, every: u64) {
    let drawn = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    PAUSES.set(drawn.max(1));
    if (drawn >> 33).is_multiple_of(every) {
        std::thread::sleep(std::time::Duration::from_nanos(1));
    }
}

/// What an abandoned thread unwinds with.
struct Stopped;

/// Whether the calling thread has been abandoned: nothing that it does may have an effect any more.
#[inline]
pub fn is_abandoned() -> bool {
    LEFT.get() == DEAD
}

/// To be called after every store to shared state. Does not return if the thread is to stop here.
#[inline]
pub fn store_point() {
    let left = LEFT.get();
    if left >= DEAD {
        let pauses = PAUSES.get();
        if pauses != 0 {
            pause_perhaps(pauses, STORES_PER_PAUSE);
        }
        return;
    }
    if left > 1 {
        LEFT.set(left - 1);
        return;
    }
    LEFT.set(DEAD);
    resume_unwind(Box::new(Stopped));
}

/// To be called where the thread is to stop whatever it has stored: it is abandoned here. Only inside of [`run_abandoned`].
pub fn stop_here() -> ! {
    LEFT.set(DEAD);
    resume_unwind(Box::new(Stopped));
}

/// Runs `store` as something that is not the thread's own doing.
pub(crate) fn as_the_kernel(store: impl FnOnce()) {
    let left = LEFT.replace(OFF);
    store();
    LEFT.set(left);
}

/// How a run ended.
#[derive(Debug, PartialEq, Eq)]
pub enum Outcome<R> {
    /// The closure came to its end before that many stores.
    Completed(R),
    /// The thread was abandoned after its last store allowed.
    Abandoned,
}

/// Runs `work` on a new thread that is abandoned after `stores` stores (at least 1), and marks its
/// slots in `sessions` dead. Panics of `work` pass through.
pub fn run_abandoned<R: Send>(sessions: &[&Arc<Session>], stores: u64, work: impl FnOnce() -> R + Send) -> Outcome<R> {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            LEFT.set(stores.max(1));
            let result = catch_unwind(AssertUnwindSafe(work));
            match result {
                Ok(result) if !is_abandoned() => {
                    LEFT.set(OFF);
                    Outcome::Completed(result)
                }
                Err(payload) if !payload.is::<Stopped>() => {
                    LEFT.set(OFF);
                    resume_unwind(payload)
                }
                _ => {
                    for session in sessions {
                        session.abandon_thread();
                        mark_own_dead(session);
                    }
                    Outcome::Abandoned
                }
            }
        });
        match thread.join() {
            Ok(outcome) => outcome,
            Err(payload) => resume_unwind(payload),
        }
    })
}

/// Calls `attempt(n)` for n = 1, 2, … until it reports that its work completed: every store has
/// then been the last one once. Returns how many stores the work makes.
pub fn after_every_store<R>(mut attempt: impl FnMut(u64) -> Outcome<R>) -> u64 {
    const STORES_MAX: u64 = 10_000_000;
    for stores in 1..STORES_MAX {
        if let Outcome::Completed(_) = attempt(stores) {
            return stores - 1;
        }
    }
    panic!("the work does not come to an end");
}
