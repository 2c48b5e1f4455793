//! Stopping a thread dead after its n-th store, so that a test can let another take over.
//!
//! Two ways. *Unwinding*: the store panics with [`Abandoned`]; whatever the thread does to the medium while it unwinds (in
//! destructors) is ignored, as a dead thread does nothing; quick, but destructors do run, so locks outside the medium are
//! released unless their guards look at `std::thread::panicking`. *Parked*: a thread of its own stops inside the store for
//! ever; nothing of it runs, at the price of a thread that is never joined. Or it is *stopped* there until it is told to go on,
//! so that others meet it in the middle of its work.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc;

use super::record::Simulation;

/// The thread was stopped after the store it was to be stopped after.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Abandoned;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Runs without a limit.
    Free,
    /// To unwind after so many more stores.
    Unwind(u64),
    /// To park after so many more stores.
    Park(u64),
    /// Unwinding; does nothing to a simulated medium any more.
    Dead,
}

static NEXT_THREAD: AtomicU32 = AtomicU32::new(0);

thread_local! {
    static STATE: Cell<State> = const { Cell::new(State::Free) };
    static NUMBER: Cell<u32> = Cell::new(NEXT_THREAD.fetch_add(1, Ordering::Relaxed));
    /// A parked thread goes on when it is told so, if it can be.
    static GO_ON: Cell<Option<mpsc::Receiver<()>>> = const { Cell::new(None) };
    static TELL: Cell<Option<mpsc::Sender<bool>>> = const { Cell::new(None) };
}

/// The simulated identity of this thread. It changes when the thread is abandoned: whoever runs on it next is another.
pub(super) fn thread_number() -> u32 {
    NUMBER.get()
}

/// Whether this thread was abandoned and is unwinding: its stores have no effect.
#[must_use]
pub fn is_abandoned() -> bool {
    STATE.get() == State::Dead
}

/// Called after each store, with no lock held.
pub(super) fn after_store() {
    match STATE.get() {
        State::Free | State::Dead => {}
        State::Unwind(1) => {
            STATE.set(State::Dead);
            resume_unwind(Box::new(Abandoned));
        }
        State::Unwind(left) => STATE.set(State::Unwind(left - 1)),
        State::Park(1) => {
            if let Some(tell) = TELL.take() {
                let _ = tell.send(false);
            }
            if let Some(go_on) = GO_ON.take() {
                STATE.set(State::Free);
                // Who would tell may be gone: then it goes on, too.
                let _ = go_on.recv();
                return;
            }
            loop {
                std::thread::park();
            }
        }
        State::Park(left) => STATE.set(State::Park(left - 1)),
    }
}

/// A thread that stands in the middle of its work. It goes on when this is dropped.
#[derive(Debug)]
pub struct Stopped<R> {
    go_on: mpsc::Sender<()>,
    thread: std::thread::JoinHandle<R>,
}

impl<R> Stopped<R> {
    /// Lets it go on, and returns what came of its work.
    ///
    /// # Panics
    /// When the work panics.
    pub fn finish(self) -> R {
        drop(self.go_on);
        self.thread.join().unwrap_or_else(|payload| resume_unwind(payload))
    }
}

impl Simulation {
    /// Runs `work` on a new thread and stops it after its `stores`-th store of a word to any simulated medium.
    ///
    /// # Panics
    /// If `work` ends before, and if no thread can be made.
    pub fn stop_after<R: Send + 'static>(stores: u64, work: impl FnOnce() -> R + Send + 'static) -> Stopped<R> {
        let (tell, told) = mpsc::channel();
        let (go_on, wait) = mpsc::channel();
        let thread = std::thread::Builder::new().name("stopped".to_owned()).spawn(move || {
            TELL.set(Some(tell));
            GO_ON.set(Some(wait));
            STATE.set(State::Park(stores.max(1)));
            let result = work();
            STATE.set(State::Free);
            // Dropped by now, unless it never came to the store.
            drop(TELL.take());
            result
        });
        let thread = thread.expect("a thread");
        assert_eq!(told.recv(), Ok(false), "it ended before it could be stopped");
        Stopped { go_on, thread }
    }

    /// Runs `work` on this thread and abandons it after its `stores`-th store of a word to any simulated medium, by
    /// unwinding. `Ok` if it ended before.
    ///
    /// # Errors
    /// [`Abandoned`].
    ///
    /// # Panics
    /// If `stores` is zero, and when `work` panics by itself.
    pub fn abandon_unwinding<R>(stores: u64, work: impl FnOnce() -> R) -> Result<R, Abandoned> {
        assert!(stores > 0, "abandoned before the first store is not run at all");
        STATE.set(State::Unwind(stores));
        let result = catch_unwind(AssertUnwindSafe(work));
        STATE.set(State::Free);
        result.map_err(|payload| {
            if !payload.is::<Abandoned>() {
                resume_unwind(payload);
            }
            NUMBER.set(NEXT_THREAD.fetch_add(1, Ordering::Relaxed));
            Abandoned
        })
    }

    /// Runs `work` on a new thread and abandons it after its `stores`-th store of a word to any simulated medium, by
    /// parking it for ever. `Ok` if it ended before.
    ///
    /// # Errors
    /// [`Abandoned`].
    ///
    /// # Panics
    /// If `stores` is zero, when `work` panics, and if no thread can be made.
    pub fn abandon_parked<R: Send + 'static>(
        stores: u64,
        work: impl FnOnce() -> R + Send + 'static,
    ) -> Result<R, Abandoned> {
        assert!(stores > 0, "abandoned before the first store is not run at all");
        let (tell, told) = mpsc::channel();
        let thread = std::thread::Builder::new().name("abandoned".to_owned()).stack_size(1 << 20).spawn(move || {
            TELL.set(Some(tell.clone()));
            STATE.set(State::Park(stores));
            let result = catch_unwind(AssertUnwindSafe(work));
            let _ = tell.send(true);
            result
        });
        let thread = thread.expect("a thread");
        match told.recv() {
            Ok(false) => Err(Abandoned),
            Ok(true) | Err(_) => match thread.join().and_then(|result| result) {
                Ok(result) => Ok(result),
                Err(payload) => resume_unwind(payload),
            },
        }
    }
}
