//! Abandonment: a thread stops for ever after any one of its stores to shared state, as a kill
//! would stop it, and another takes over.
//!
//! Stores to an arena are counted by `Word`; a medium's simulation calls [`store_point`] for its
//! own. The thread is stopped by unwinding, and its later stores (of destructors) are swallowed.
//! Only in tests and with the feature `abandon`.

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
