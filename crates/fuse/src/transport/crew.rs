//! Who reads `/dev/fuse`: no more threads than there is work for, and a single one where its callers are (`follow`).
//!
//! The kernel wakes whichever thread has waited longest. With more of them than callers each request meets one that is cold, on
//! another core. So only as many read as were busy at the same time lately; the others are parked.
//!
//! | what is seen | what is done |
//! | --- | --- |
//! | others wait when a thread has taken a request (a look at every [`LOOK_PERIOD`]th) | twice as many read |
//! | threads rarely serve at the same time (a window of requests) | half as many read |
//! | all who read are busy with the same requests for a tick of the watch | all read |
//! | a caller flees from the core of the one that reads alone: others are idle | that one hands off on its core (`hand_off`); where it may not, two read, for a good while; where there are two cores, one on each |
//!
//! Touches nothing of requests but their callers' thread numbers.

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::follow::{Chase, Follower};
use super::hand_off::{self, HandOff};
use super::notify::Turn;
use super::watch::Watch;

/// A thread looks whether requests wait after so many of its own. A prime: programs repeat themselves.
const LOOK_PERIOD: u32 = 17;
/// One that hands off looks where its caller is after so many.
const CALLER_PERIOD: u32 = 7;
/// Looks that are judged together, and how many of them must have seen requests waiting.
const LOOKS: u32 = 8;
const LOOKS_BUSY: u32 = 5;
/// Requests after which it is judged how many threads were busy at a time.
const WINDOW: u32 = 512;
/// How many judgements it takes to have fewer read doubles with each that was wrong, up to this.
const PATIENCE_MAX: u32 = 64;
/// A judgement was wrong if more are needed again within this time.
const WRONG_WITHIN_MS: u64 = 20;

/// The threads on `/dev/fuse` of a session.
pub(super) struct Crew {
    members: usize,
    /// The first so many read, the others are parked.
    readers: AtomicUsize,
    /// Two read because a caller flees.
    paired: AtomicBool,
    /// The first is SCHED_IDLE, so that its callers stay where they are.
    hands_off: AtomicBool,
    parked: Mutex<()>,
    called: Condvar,
    /// How many serve a request now.
    serving: AtomicUsize,
    /// Requests in this window, and the sum of how many others were being served when each came.
    seen: AtomicU32,
    beside: AtomicU32,
    /// Windows that must pass before fewer read, those passed, and when fewer read last.
    patience: AtomicU32,
    calm: AtomicU32,
    lowered_ms: AtomicU64,
    turns: Mutex<Vec<Arc<Turn>>>,
    watch: Watch,
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Crew {
    pub(super) fn new(members: usize) -> Arc<Self> {
        Arc::new(Self {
            members,
            readers: AtomicUsize::new(1),
            paired: AtomicBool::new(false),
            hands_off: AtomicBool::new(false),
            parked: Mutex::default(),
            called: Condvar::new(),
            serving: AtomicUsize::new(0),
            seen: AtomicU32::new(0),
            beside: AtomicU32::new(0),
            patience: AtomicU32::new(1),
            calm: AtomicU32::new(0),
            lowered_ms: AtomicU64::new(0),
            turns: Mutex::default(),
            watch: Watch::default(),
        })
    }

    /// Has so many read.
    fn set_readers(&self, count: usize) {
        self.paired.store(false, Ordering::Relaxed);
        {
            // Under the lock: who is about to park sees it.
            let _parked = lock(&self.parked);
            self.readers.store(count, Ordering::SeqCst);
        }
        self.seen.store(0, Ordering::Relaxed);
        self.beside.store(0, Ordering::Relaxed);
        self.calm.store(0, Ordering::Relaxed);
        self.called.notify_all();
    }

    fn parks(&self, index: usize) -> bool {
        index >= self.readers.load(Ordering::SeqCst) && !self.watch.ended()
    }

    /// A request begins to be served.
    fn begin(&self) {
        let others = self.serving.fetch_add(1, Ordering::Relaxed) as u32;
        if self.readers.load(Ordering::Relaxed) > 1 {
            if others > 0 {
                self.beside.fetch_add(others, Ordering::Relaxed);
            }
            if self.seen.fetch_add(1, Ordering::Relaxed) + 1 >= WINDOW {
                self.judge();
            }
        }
    }

    /// Whether fewer would do.
    fn judge(&self) {
        let (seen, beside) = (self.seen.swap(0, Ordering::Relaxed), self.beside.swap(0, Ordering::Relaxed));
        let readers = self.readers.load(Ordering::Relaxed);
        if seen < WINDOW || readers == 1 {
            // Another thread has just judged.
            return;
        }
        if !few_suffice(seen, beside, readers) {
            self.calm.store(0, Ordering::Relaxed);
        } else if self.calm.fetch_add(1, Ordering::Relaxed) + 1 >= self.patience.load(Ordering::Relaxed) {
            self.lowered_ms.store(now_ms(), Ordering::Relaxed);
            self.set_readers(readers / 2);
        }
    }

    /// More are needed.
    fn call(&self) {
        let readers = self.readers.load(Ordering::Relaxed);
        if readers < self.members {
            let wrong = now_ms() - self.lowered_ms.load(Ordering::Relaxed) < WRONG_WITHIN_MS;
            let patience = if wrong { self.patience.load(Ordering::Relaxed) * 2 } else { 1 };
            self.patience.store(patience.min(PATIENCE_MAX), Ordering::Relaxed);
            self.set_readers((readers * 2).min(self.members));
        }
    }

    /// Two read for a good while: where cores are idle one alone is never where its caller is, and of two one often is.
    fn pair(&self) {
        self.lowered_ms.store(0, Ordering::Relaxed);
        self.patience.store(PATIENCE_MAX, Ordering::Relaxed);
        self.set_readers(self.members.min(2));
        self.paired.store(true, Ordering::Relaxed);
    }

    fn end(&self) {
        {
            let _parked = lock(&self.parked);
            self.watch.end();
        }
        self.called.notify_all();
    }

    /// Calls all threads when those who read are held up, and has the one that reads alone hand off on its core, until the session ends.
    pub(super) fn watch(&self, mut hand_off: Option<HandOff>) {
        let mut before = self.counts();
        self.watch.run(|| {
            let now = self.counts();
            let readers = self.readers.load(Ordering::SeqCst);
            let stuck = |index: usize| now[index] == before[index] && !now[index].is_multiple_of(2);
            if readers < self.members && (0..readers).all(stuck) {
                self.set_readers(self.members);
            }
            let awake = hand_off.as_mut().is_some_and(|hand_off| self.hand_off(hand_off, readers));
            let idle = now == before && now.iter().all(|count| count.is_multiple_of(2));
            before = now;
            !idle || awake
        });
    }

    /// Has the thread that reads alone hand off on its core where that can be, also instead of two that read for a caller that flees.
    fn hand_off(&self, hand_off: &mut HandOff, readers: usize) -> bool {
        if self.paired.load(Ordering::Relaxed) {
            if self.hands_off.load(Ordering::Relaxed) {
                hand_off.rest(0);
            } else if hand_off.ready(0) {
                self.set_readers(1);
            }
        }
        let awake = hand_off.tick(|index| readers == 1 && index == 0);
        self.hands_off.store(hand_off.stands_back(0), Ordering::Relaxed);
        awake
    }

    fn counts(&self) -> Vec<u64> {
        lock(&self.turns).iter().map(|turn| turn.count()).collect()
    }
}

fn now_ms() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::MonotonicCoarse);
    now.tv_sec as u64 * 1000 + now.tv_nsec as u64 / 1_000_000
}

/// Whether half as many threads are enough, if so many others were being served when a request came, in sum.
fn few_suffice(seen: u32, beside: u32, readers: usize) -> bool {
    u64::from(beside) * 100 < u64::from(seen) * 15 * (readers as u64 - 1)
}

/// One thread of the crew.
pub(super) struct Member {
    crew: Arc<Crew>,
    index: usize,
    turn: Arc<Turn>,
    place: Follower,
    /// As the crew's, when it was looked at last.
    hands_off: bool,
    served: u32,
    looks: u32,
    looks_busy: u32,
}

impl Member {
    /// The thread of that index; they are made in order.
    pub(super) fn new(crew: &Arc<Crew>, index: usize, turn: Arc<Turn>) -> Self {
        lock(&crew.turns).push(Arc::clone(&turn));
        Self {
            crew: Arc::clone(crew),
            index,
            turn,
            place: Follower::new(),
            hands_off: false,
            served: 0,
            looks: 0,
            looks_busy: 0,
        }
    }

    /// The calling thread is the one.
    pub(super) fn bind(&self) {
        hand_off::join(&self.turn);
    }

    /// Parks unless it is this thread's turn to read. On the thread itself.
    pub(super) fn wait_for_duty(&mut self) {
        if !self.crew.parks(self.index) {
            return;
        }
        self.place.unpin();
        let mut parked = lock(&self.crew.parked);
        while self.crew.parks(self.index) {
            parked = self.crew.called.wait(parked).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// A request was read.
    pub(super) fn begin(&mut self, device: &impl AsFd) {
        self.turn.step();
        self.place.go(self.crew.watch.thread());
        self.crew.begin();
        self.served += 1;
        if self.served.is_multiple_of(LOOK_PERIOD) {
            self.look(device);
        }
        self.crew.watch.stir();
    }

    /// It was answered; `caller` is the thread that asked, 0 if that is not known.
    pub(super) fn end(&mut self, caller: u32) {
        self.crew.serving.fetch_sub(1, Ordering::Relaxed);
        if self.served.is_multiple_of(if self.hands_off { CALLER_PERIOD } else { LOOK_PERIOD }) {
            // Still as one that serves: the watch calls the others should the look have to wait.
            self.follow(caller);
        }
        self.turn.step();
    }

    fn look(&mut self, device: &impl AsFd) {
        let mut watched = [PollFd::from_borrowed_fd(device.as_fd(), PollFlags::IN)];
        let waiting = poll(&mut watched, Some(&Timespec::default())).is_ok_and(|count| count > 0);
        self.looks += 1;
        self.looks_busy += u32::from(waiting);
        if self.looks_busy >= LOOKS_BUSY {
            self.crew.call();
        }
        if self.looks == LOOKS || self.looks_busy >= LOOKS_BUSY {
            (self.looks, self.looks_busy) = (0, 0);
        }
    }

    /// Moves to the caller's core, if this thread reads alone.
    fn follow(&mut self, caller: u32) {
        match self.crew.readers.load(Ordering::Relaxed) {
            1 => {}
            2 if self.crew.paired.load(Ordering::Relaxed) => return self.place.keep_to_own(self.index),
            _ => return self.place.unpin(),
        }
        // A look may wait for the caller (`execve` holds what the kernel takes to show a process, while it closes files), and the caller
        // for us: so only one thread looks, and only where there are others.
        if self.index != 0 || self.crew.members == 1 {
            return self.place.unpin();
        }
        let hands_off = self.crew.hands_off.load(Ordering::Relaxed);
        if hands_off && !self.hands_off {
            self.place.begin_anew();
        }
        self.hands_off = hands_off;
        if self.place.follow(caller, hands_off) == Chase::GivenUp {
            self.crew.pair();
        }
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.crew.end();
    }
}

#[cfg(test)]
mod tests;
