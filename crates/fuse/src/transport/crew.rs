//! Who reads `/dev/fuse`: no more threads than there is work for, and a single one where its callers are (`follow`).
//!
//! The kernel wakes whichever thread has waited longest. With more of them than callers each request meets one that is cold, on
//! another core. So only as many read as were busy at the same time lately; the others are parked.
//!
//! | what is seen | what is done |
//! | --- | --- |
//! | others wait when a thread has taken a request (a look at every [`LOOK_PERIOD`]th) | twice as many read |
//! | threads rarely serve at the same time (a window of requests) | half as many read |
//! | all who read are busy with the same requests for [`TICK`] | all read |
//! | a caller flees from the core of the one that reads alone: others are idle | two read, for a good while; where there are two cores, one on each |
//!
//! Touches nothing of requests but their callers' thread numbers.

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::Thread;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::follow::{Chase, Follower};
use super::notify::Turn;

/// A thread looks whether requests wait after so many of its own. A prime: programs repeat themselves.
const LOOK_PERIOD: u32 = 17;
/// Looks that are judged together, and how many of them must have seen requests waiting.
const LOOKS: u32 = 8;
const LOOKS_BUSY: u32 = 5;
/// Requests after which it is judged how many threads were busy at a time.
const WINDOW: u32 = 512;
/// How many judgements it takes to have fewer read doubles with each that was wrong, up to this.
const PATIENCE_MAX: u32 = 64;
/// A judgement was wrong if more are needed again within this time.
const WRONG_WITHIN_MS: u64 = 20;
/// How long nothing may be finished before others are called.
const TICK: Duration = Duration::from_millis(1);
/// Ticks without a request after which the watch sleeps until there is one.
const IDLE_TICKS: u32 = 20;

/// The threads on `/dev/fuse` of a session.
pub(super) struct Crew {
    members: usize,
    /// The first so many read, the others are parked.
    readers: AtomicUsize,
    /// Two read because a caller flees.
    paired: AtomicBool,
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
    watch: Mutex<Option<Thread>>,
    watch_sleeps: AtomicBool,
    ended: AtomicBool,
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
            parked: Mutex::default(),
            called: Condvar::new(),
            serving: AtomicUsize::new(0),
            seen: AtomicU32::new(0),
            beside: AtomicU32::new(0),
            patience: AtomicU32::new(1),
            calm: AtomicU32::new(0),
            lowered_ms: AtomicU64::new(0),
            turns: Mutex::default(),
            watch: Mutex::default(),
            watch_sleeps: AtomicBool::new(false),
            ended: AtomicBool::new(false),
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
        index >= self.readers.load(Ordering::SeqCst) && !self.ended.load(Ordering::SeqCst)
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
            self.ended.store(true, Ordering::SeqCst);
        }
        self.called.notify_all();
        self.wake_watch();
    }

    fn wake_watch(&self) {
        if let Some(thread) = &*lock(&self.watch) {
            thread.unpark();
        }
    }

    /// Calls all threads when those who read are held up, until the session ends.
    pub(super) fn watch(&self) {
        *lock(&self.watch) = Some(std::thread::current());
        let mut before = self.counts();
        let mut idle_ticks = 0;
        while !self.ended.load(Ordering::SeqCst) {
            if idle_ticks >= IDLE_TICKS {
                self.watch_sleeps.store(true, Ordering::SeqCst);
                // Whoever took a request before it could see that we sleep is seen here.
                if self.counts() == before && !self.ended.load(Ordering::SeqCst) {
                    std::thread::park();
                }
                self.watch_sleeps.store(false, Ordering::SeqCst);
                idle_ticks = 0;
            }
            std::thread::sleep(TICK);
            let now = self.counts();
            let readers = self.readers.load(Ordering::SeqCst);
            let stuck = |index: usize| now[index] == before[index] && !now[index].is_multiple_of(2);
            if readers < self.members && (0..readers).all(stuck) {
                self.set_readers(self.members);
            }
            let idle = now == before && now.iter().all(|count| count.is_multiple_of(2));
            idle_ticks = if idle { idle_ticks + 1 } else { 0 };
            before = now;
        }
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
    served: u32,
    looks: u32,
    looks_busy: u32,
}

impl Member {
    /// The thread of that index; they are made in order.
    pub(super) fn new(crew: &Arc<Crew>, index: usize, turn: Arc<Turn>) -> Self {
        lock(&crew.turns).push(Arc::clone(&turn));
        Self { crew: Arc::clone(crew), index, turn, place: Follower::new(), served: 0, looks: 0, looks_busy: 0 }
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
        self.crew.begin();
        self.served += 1;
        if self.served.is_multiple_of(LOOK_PERIOD) {
            self.look(device);
        }
        if self.crew.watch_sleeps.load(Ordering::SeqCst) && self.crew.watch_sleeps.swap(false, Ordering::SeqCst) {
            self.crew.wake_watch();
        }
    }

    /// It was answered; `caller` is the thread that asked, 0 if that is not known.
    pub(super) fn end(&mut self, caller: u32) {
        self.crew.serving.fetch_sub(1, Ordering::Relaxed);
        if self.served.is_multiple_of(LOOK_PERIOD) {
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
        if self.place.follow(caller) == Chase::GivenUp {
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
mod tests {
    use super::*;
    use crate::transport::notify::Turns;
    use rustix::thread::{CpuSet, sched_getaffinity};

    fn crew(members: usize) -> (Arc<Crew>, Vec<Member>) {
        let (crew, turns) = (Crew::new(members), Turns::default());
        let members = (0..members).map(|index| Member::new(&crew, index, turns.add(None))).collect();
        (crew, members)
    }

    fn quiet() -> std::os::fd::OwnedFd {
        rustix::event::eventfd(0, rustix::event::EventfdFlags::empty()).unwrap()
    }

    #[test]
    fn fewer_suffice_when_threads_rarely_meet() {
        assert!(few_suffice(512, 0, 2) && few_suffice(512, 70, 2) && !few_suffice(512, 80, 2));
        assert!(few_suffice(512, 400, 8) && !few_suffice(512, 600, 8));
    }

    #[test]
    fn one_reads_until_requests_wait_and_again_when_threads_do_not_meet() {
        let (crew, mut members) = crew(4);
        let reading = |crew: &Crew| (0..4).filter(|&index| !crew.parks(index)).count();
        assert_eq!(reading(&crew), 1);
        let busy = rustix::event::eventfd(1, rustix::event::EventfdFlags::empty()).unwrap();
        for _ in 0..LOOK_PERIOD * LOOKS_BUSY {
            members[0].begin(&busy);
            members[0].end(0);
        }
        assert_eq!(reading(&crew), 2);
        for _ in 0..LOOK_PERIOD * LOOKS_BUSY {
            members[1].begin(&busy);
            members[1].end(0);
        }
        assert_eq!(reading(&crew), 4);
        let quiet = quiet();
        for _ in 0..2 * WINDOW * PATIENCE_MAX {
            members[3].begin(&quiet);
            members[3].end(0);
        }
        assert_eq!(reading(&crew), 1);
        // Two that serve at the same time all the while are both needed.
        crew.set_readers(2);
        for _ in 0..2 * WINDOW * PATIENCE_MAX {
            members[0].begin(&quiet);
            members[1].begin(&quiet);
            members[0].end(0);
            members[1].end(0);
        }
        assert_eq!(reading(&crew), 2);
    }

    #[test]
    fn who_is_parked_is_called_when_the_only_reader_is_held_up() {
        let (crew, members) = crew(2);
        let [mut first, mut second] = <[Member; 2]>::try_from(members).ok().unwrap();
        let watching = std::thread::spawn({
            let crew = Arc::clone(&crew);
            move || crew.watch()
        });
        // Idle for longer than the watch stays awake; the request that comes then must wake it.
        while !crew.watch_sleeps.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
        first.begin(&quiet());
        second.wait_for_duty();
        assert!(!crew.parks(1));
        first.end(0);
        drop(first);
        watching.join().unwrap();
    }

    #[test]
    fn all_read_when_one_has_ended() {
        let (crew, mut members) = crew(3);
        let mut last = members.pop().unwrap();
        let parked = std::thread::spawn(move || last.wait_for_duty());
        drop(members.pop());
        parked.join().unwrap();
        assert!(!crew.parks(1) && !crew.parks(2));
    }

    #[test]
    fn of_two_that_read_for_a_caller_that_flees_each_keeps_to_its_core() {
        std::thread::scope(|scope| {
            // A thread of its own: its mask is changed.
            scope.spawn(|| {
                let before = sched_getaffinity(None).unwrap();
                let cores: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|&core| before.is_set(core)).collect();
                let (crew, mut members) = crew(4);
                crew.pair();
                for (index, member) in members[..2].iter_mut().enumerate() {
                    member.follow(0);
                    assert_eq!(member.place.pinned(), (cores.len() == 2).then(|| cores[index]));
                    member.place.unpin();
                }
                // Not where two read because requests waited.
                crew.set_readers(2);
                members[1].follow(0);
                assert_eq!((members[1].place.pinned(), sched_getaffinity(None).unwrap()), (None, before));
            });
        });
    }

    #[test]
    fn a_lone_reader_goes_where_its_caller_is_and_comes_back() {
        std::thread::scope(|scope| {
            // A thread of its own: its mask is changed.
            scope.spawn(|| {
                let before = sched_getaffinity(None).unwrap();
                let (crew, mut members) = crew(2);
                let caller = rustix::thread::gettid().as_raw_nonzero().get() as u32;
                let mut looks = 0;
                while members[0].place.pinned().is_none() && looks < 1000 {
                    members[0].follow(caller);
                    looks += 1;
                }
                assert_eq!(sched_getaffinity(None).unwrap().count(), 1);
                crew.set_readers(2);
                members[0].follow(caller);
                assert_eq!(sched_getaffinity(None).unwrap(), before);
            });
        });
    }
}
