//! Robust locks: taken in the name of a thread slot, taken over when that thread is dead.
//!
//! Before the swap that takes the lock, its offset is stored as an *intent* in the slot; whoever
//! settles a dead thread looks at the intents and acts where the lock word names the slot. So the
//! intent needs no clearing. Taking is one atomic read-modify-write and plain stores, releasing is
//! plain stores.
//!
//! Order of locks is the owners' affair, with one rule from here: whoever waits for a lock may
//! find its owner dead and become the reaper, so **hold nothing that a registered
//! [`Reaper`](crate::Reaper) takes while waiting**. Locks that reapers take are taken last.

use crate::error::{Error, Result};
use crate::facade::{Ordering, Word};
use crate::layout::ArenaOffset;
use crate::lock_word;
use crate::reap::Verdict;
use crate::session::Session;
use crate::slot::{
    self, LOCK_INTENTS, LOCKS_MAX, LOCKS_USED, SLEEPS, SLEPT_NS, WAITERS, WAITING_ON, WAITING_SINCE, WAITS,
};
use crate::thread::{Thread, load_state};
use rustix::thread::futex;
use std::sync::atomic::AtomicU32;
use std::time::{Duration, Instant};

/// How long a waiter spins before it looks at the owner and sleeps.
const SPIN: Duration = Duration::from_micros(20);
/// How long it sleeps at most before it looks again: wakers die, and a releaser that checks for
/// sleepers without a full fence can miss one.
const SLEEP_NS: i64 = 1_000_000;

/// A lock held by the calling thread. Dropped: released; if the thread is panicking the lock
/// stays and the slot counts as dead, so that what it left half done is settled by the next to come.
#[derive(Debug)]
#[must_use = "dropping the guard releases the lock"]
pub struct Guard<'s> {
    thread: Thread<'s>,
    word: &'s Word,
    held: u64,
    entry: u32,
}

impl<'s> Thread<'s> {
    /// Takes the lock whose word stands at `at`; waits while a living thread, a stopped one
    /// included, has it; settles and takes over from a dead one.
    ///
    /// Errors: `Deadlock` if this thread has it, `Full` beyond [`LOCKS_MAX`] locks, `Corrupt`, and
    /// what a [`Reaper`](crate::Reaper) fails with.
    #[inline(always)]
    pub fn lock(&self, at: ArenaOffset) -> Result<Guard<'s>> {
        let word = self.word(at)?;
        let entry = self.intend(at)?;
        match lock_word::try_acquire(word, self.slot()) {
            Ok(held) => Ok(self.taken(word, held, entry)),
            // Takes and returns numbers only: what a cold call sees or fills in must live in memory.
            Err(_) => match lock_slowly(self.session(), self.slot(), word, at) {
                Ok(held) => Ok(self.taken(word, held, entry)),
                Err(error) => Err(error),
            },
        }
    }

    /// Takes the lock unless somebody, dead or alive, has it: then `None`.
    #[inline]
    pub fn try_lock(&self, at: ArenaOffset) -> Result<Option<Guard<'s>>> {
        let word = self.word(at)?;
        let entry = self.intend(at)?;
        match lock_word::try_acquire(word, self.slot()) {
            Ok(held) => Ok(Some(self.taken(word, held, entry))),
            Err(found) if lock_word::is_sound(found) => Ok(None),
            Err(_) => Err(corrupt(at)),
        }
    }

    /// Takes several locks in ascending order of their offsets, each once, however often and in
    /// whatever order they are named. At most [`LOCKS_MAX`].
    pub fn lock_sorted(&self, at: &[ArenaOffset]) -> Result<GuardSet<'s>> {
        let mut sorted = [ArenaOffset::new(u64::MAX); LOCKS_MAX];
        let wanted = sorted.get_mut(..at.len()).ok_or(Error::Full { what: "lock held by this thread" })?;
        wanted.copy_from_slice(at);
        wanted.sort_unstable();
        let mut set = GuardSet { guards: [const { None }; LOCKS_MAX], count: 0 };
        let mut previous = None;
        for at in wanted.iter() {
            if previous != Some(*at) {
                set.guards[set.count] = Some(self.lock(*at)?);
                set.count += 1;
            }
            previous = Some(*at);
        }
        Ok(set)
    }

    /// Begins an optimistic read of what the lock at `at` protects: the sequence to validate with,
    /// or `None` while somebody owns it. Takes nothing, writes nothing.
    #[inline(always)]
    pub fn read_begin(&self, at: ArenaOffset) -> Result<Option<u64>> {
        Ok(lock_word::read_begin(self.word(at)?))
    }

    /// Whether nothing changed under the lock at `at` since [`Thread::read_begin`] returned
    /// `sequence`. Until then what was read may be torn: use it for nothing but validated copies.
    #[inline(always)]
    pub fn read_validate(&self, at: ArenaOffset, sequence: u64) -> Result<bool> {
        Ok(lock_word::read_validate(self.word(at)?, sequence))
    }

    /// Stores the intent to take `at`; the index of the entry used.
    #[inline(always)]
    fn intend(&self, at: ArenaOffset) -> Result<u32> {
        let used = self.words()[LOCKS_USED].load(Ordering::Relaxed);
        let entry = (!used).trailing_zeros() as usize;
        if entry >= LOCKS_MAX {
            return Err(Error::Full { what: "lock held by this thread" });
        }
        self.words()[LOCK_INTENTS + entry].store(at.get(), Ordering::Relaxed);
        Ok(entry as u32)
    }

    #[inline(always)]
    fn taken(&self, word: &'s Word, held: u64, entry: u32) -> Guard<'s> {
        let used = &self.words()[LOCKS_USED];
        used.store(used.load(Ordering::Relaxed) | 1 << entry, Ordering::Relaxed);
        Guard { thread: *self, word, held, entry }
    }
}

/// Spins, then looks after the owner and sleeps, in turns, until the lock is taken.
#[cold]
#[inline(never)]
fn lock_slowly(session: &Session, slot: u32, word: &Word, at: ArenaOffset) -> Result<u64> {
    let me = session.at_slot(slot);
    let mut slept = false;
    let first = Instant::now();
    let mut began = first;
    count(&me, WAITS, 1);
    let mut spins = 0u32;
    loop {
        let found = match lock_word::try_acquire(word, slot) {
            Ok(held) => {
                if slept {
                    // Others may sleep on it; the one that woke us woke nobody else.
                    me.words()[WAITERS].store(1, Ordering::Relaxed);
                    count(&me, SLEEPS, 1);
                    count(&me, SLEPT_NS, first.elapsed().as_nanos() as u64);
                }
                return Ok(held);
            }
            Err(found) => found,
        };
        if !lock_word::is_sound(found) {
            return Err(corrupt(at));
        }
        let Some(owner) = lock_word::owner(found) else { continue };
        if owner == slot {
            return Err(Error::Deadlock(at));
        }
        if owner >= session.arena().layout().threads {
            return Err(corrupt(at));
        }
        #[cfg(any(test, feature = "abandon"))]
        if crate::testing::is_abandoned() {
            return Err(Error::Abandoned);
        }
        spins = spins.wrapping_add(1);
        if !spins.is_multiple_of(32) || began.elapsed() < SPIN {
            std::hint::spin_loop();
            continue;
        }
        if session.reap_slot(&me, owner, slept)? == Verdict::Alive {
            if !slept {
                me.words()[WAITING_SINCE].store(coarse_ns(), Ordering::Relaxed);
            }
            sleep(&me, word, at, found, owner);
            slept = true;
        }
        if !can_own(session, owner, at) && word.load(Ordering::Acquire) == found {
            return Err(corrupt(at));
        }
        began = Instant::now();
    }
}

/// Adds to a count of the thread's slot, which it alone stores to.
fn count(me: &Thread<'_>, which: usize, by: u64) {
    let word = &me.words()[which];
    word.store(word.load(Ordering::Relaxed).wrapping_add(by), Ordering::Relaxed);
}

/// The coarse monotonic clock.
pub(crate) fn coarse_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::MonotonicCoarse);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Whether the slot can be the owner of the lock at `at`: it is in use and meant to take it. If
/// not, and the word still names it, nobody would ever release the lock.
fn can_own(session: &Session, owner: u32, at: ArenaOffset) -> bool {
    let words = slot::words(session.arena(), owner);
    let intents = &words[LOCK_INTENTS..LOCK_INTENTS + LOCKS_MAX];
    load_state(session.arena(), owner).is_ok_and(|state| state.kind != slot::Kind::Free)
        && intents.iter().any(|intent| intent.load(Ordering::Acquire) == at.get())
}

/// Sleeps until the word changes, somebody wakes us, or a millisecond has passed.
fn sleep(me: &Thread<'_>, word: &Word, at: ArenaOffset, found: u64, owner: u32) {
    let mine = &me.words()[WAITING_ON];
    mine.store(at.get(), Ordering::Relaxed);
    slot::words(me.arena(), owner)[WAITERS].store(1, Ordering::Relaxed);
    let timeout = futex::Timespec { tv_sec: 0, tv_nsec: SLEEP_NS };
    // Woken, changed, timed out, interrupted: all mean look again.
    let _ = futex::wait(low_half(word), futex::Flags::empty(), found as u32, Some(&timeout));
    mine.store(0, Ordering::Relaxed);
}

impl<'s> Guard<'s> {
    /// Where the lock's word stands.
    pub fn at(&self) -> ArenaOffset {
        // The entry is ours alone while the lock is held.
        let entry = LOCK_INTENTS + self.entry as usize % LOCKS_MAX;
        ArenaOffset::new(self.thread.words()[entry].load(Ordering::Relaxed))
    }

    /// The thread that holds it.
    pub fn thread(&self) -> Thread<'s> {
        self.thread
    }

    /// The sequence that readers will validate against once this is released.
    pub fn sequence_after(&self) -> u64 {
        lock_word::released(self.held)
    }

    /// Releases the lock: a plain store, and a system call only if somebody sleeps on it.
    #[inline(always)]
    pub fn unlock(self) {
        self.release();
        std::mem::forget(self);
    }

    #[inline(always)]
    fn release(&self) {
        lock_word::release(self.word, self.held);
        let words = self.thread.words();
        let used = words[LOCKS_USED].load(Ordering::Relaxed) & !(1 << self.entry);
        words[LOCKS_USED].store(used, Ordering::Relaxed);
        if words[WAITERS].load(Ordering::Relaxed) != 0 {
            wake_sleeper(self.word, &words[WAITERS], used == 0);
        }
    }
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.thread.session().abandon_thread();
        } else {
            self.release();
        }
    }
}

/// Several locks, released together.
#[derive(Debug)]
#[must_use = "dropping the set releases the locks"]
pub struct GuardSet<'s> {
    guards: [Option<Guard<'s>>; LOCKS_MAX],
    count: usize,
}

impl<'s> GuardSet<'s> {
    /// The guards, by ascending offset.
    pub fn iter(&self) -> impl Iterator<Item = &Guard<'s>> {
        self.guards.iter().flatten()
    }

    /// Number of locks held.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether no lock is held.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Releases all of them, the last taken first.
    pub fn unlock(mut self) {
        for guard in self.guards.iter_mut().rev() {
            if let Some(guard) = guard.take() {
                guard.unlock();
            }
        }
    }
}

/// Wakes one sleeper on `word`. The mark stays while other locks are held: it may be for them.
#[cold]
fn wake_sleeper(word: &Word, waiters: &Word, last: bool) {
    if last {
        waiters.store(0, Ordering::Relaxed);
    }
    let _ = futex::wake(low_half(word), futex::Flags::empty(), 1);
}

/// Wakes everybody who sleeps on `word`.
pub(crate) fn wake_all(word: &Word) {
    let _ = futex::wake(low_half(word), futex::Flags::empty(), i32::MAX as u32);
}

/// The half of a lock word that changes with every use, for the kernel to compare.
pub(crate) fn low_half(word: &Word) -> &AtomicU32 {
    let address = std::ptr::from_ref(word).cast::<AtomicU32>();
    let index = usize::from(cfg!(target_endian = "big"));
    // SAFETY: one half of a live, aligned word; the reference only carries the address to the kernel.
    unsafe { &*address.add(index) }
}

#[cold]
fn corrupt(at: ArenaOffset) -> Error {
    Error::Corrupt { what: "lock", at: at.get() }
}
