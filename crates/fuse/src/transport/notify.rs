//! What the server tells the kernel unasked, and how it knows that its answers have arrived.
//!
//! Notifications are written to `/dev/fuse`, with either transport. A thread's [`Turn`] tells when what it was serving has been
//! answered: replies leave by a system call of that thread, so nobody else can know.

use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::Builder;
use std::time::Duration;

use rustix::io::Errno;

use super::hand_off;
use super::ring::Inbox;
use crate::dispatch::Kernel;
use crate::protocol::reply::invalidate;

/// How often who waits for a thread looks.
const LOOK: Duration = Duration::from_micros(100);

/// So many threads have the kernel drop pages at a time.
const DROPPING_MAX: usize = 16;
const STACK_BYTES: usize = 128 << 10;

/// What one serving thread has answered.
pub(super) struct Turn {
    /// Of a thread on `/dev/fuse`: odd while it serves. Of one on a ring: grows when it has sent what it had.
    count: AtomicU64,
    /// Its number, 0 until it runs.
    thread: AtomicU32,
    /// Wakes a thread on a ring, which sends its answers when it goes to sleep and says so when it wakes.
    inbox: Option<Arc<Inbox>>,
}

impl Turn {
    /// A step, by the thread itself. Before it looks at anything that an answer depends on.
    pub(super) fn step(&self) {
        self.count.fetch_add(1, Ordering::SeqCst);
    }

    /// The calling thread is the one.
    pub(super) fn bind(&self) {
        self.thread.store(rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned(), Ordering::Relaxed);
    }

    /// The thread's number, once it runs.
    pub(super) fn thread(&self) -> Option<u32> {
        Some(self.thread.load(Ordering::Relaxed)).filter(|&thread| thread != 0)
    }

    /// How many steps there were.
    pub(super) fn count(&self) -> u64 {
        self.count.load(Ordering::SeqCst)
    }

    fn wait(&self, give_up: &dyn Fn() -> bool) {
        let before = self.count.load(Ordering::SeqCst);
        match &self.inbox {
            None if before.is_multiple_of(2) => return,
            None => {}
            Some(inbox) => inbox.nudge(),
        }
        while self.count.load(Ordering::SeqCst) == before && !give_up() {
            std::thread::sleep(LOOK);
        }
    }
}

/// The turns of all threads that serve a session.
#[derive(Clone, Default)]
pub(super) struct Turns(Arc<Mutex<Vec<Arc<Turn>>>>);

impl Turns {
    /// The turn of a new thread.
    pub(super) fn add(&self, inbox: Option<Arc<Inbox>>) -> Arc<Turn> {
        let turn = Arc::new(Turn { count: AtomicU64::new(0), thread: AtomicU32::new(0), inbox });
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::clone(&turn));
        turn
    }

    /// Those that were added after the first so many.
    pub(super) fn since(&self, count: usize) -> Vec<Arc<Turn>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)[count..].to_vec()
    }
}

/// The way to the kernel for what it did not ask.
pub(super) struct Notifier {
    device: Arc<OwnedFd>,
    turns: Turns,
    /// Threads that have the kernel drop pages.
    dropping: Arc<AtomicUsize>,
}

/// One of those.
struct Busy {
    count: Arc<AtomicUsize>,
    before: usize,
}

impl Busy {
    fn new(count: &Arc<AtomicUsize>) -> Self {
        Self { count: Arc::clone(count), before: count.fetch_add(1, Ordering::Relaxed) }
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.count.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Notifier {
    pub(super) fn new(device: &OwnedFd, turns: Turns) -> rustix::io::Result<Self> {
        let device = Arc::new(device.try_clone().map_err(|_| Errno::MFILE)?);
        Ok(Self { device, turns, dropping: Arc::default() })
    }
}

impl Kernel for Notifier {
    // An inode that the kernel does not have any more has neither; nor has a connection that has ended.
    fn forget_attributes(&self, id: u64) {
        let _ = rustix::io::write(&*self.device, &invalidate(id, None));
    }

    fn drop_range(&self, id: u64, bytes: Range<u64>) {
        let _ = rustix::io::write(&*self.device, &invalidate(id, Some(bytes)));
    }

    fn drop_later(&self, id: u64, bytes: Range<u64>) -> bool {
        let busy = Busy::new(&self.dropping);
        if busy.before >= DROPPING_MAX {
            return false;
        }
        let device = Arc::clone(&self.device);
        let drop_range = move || {
            let _busy = busy;
            hand_off::be_ordinary();
            let _ = rustix::io::write(&*device, &invalidate(id, Some(bytes)));
        };
        Builder::new().name("fuse-drop".into()).stack_size(STACK_BYTES).spawn(drop_range).is_ok()
    }

    fn wait_for_answers(&self, give_up: &dyn Fn() -> bool) {
        let turns = self.turns.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        turns.iter().for_each(|turn| turn.wait(give_up));
    }
}
