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
    self, LATE_WAKES, LIFE_KIND, LIFE_WAITERS, LOCK_INTENTS, LOCKS_MAX, LOCKS_USED, OWNER_DIED, SLEEPS, SLEPT_NS,
    WAITERS, WAITING_ON, WAITING_SINCE, WAITS,
};
use crate::thread::{Thread, life, load_state};
use rustix::io::Errno;
use rustix::thread::futex;
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::time::{Duration, Instant};

/// How long a waiter spins before it looks at the owner and sleeps.
const SPIN: Duration = Duration::from_micros(20);
/// How long a waiter sleeps at most before it looks again: wakers die, a releaser that checks for sleepers
/// without a full fence can miss one, and older kernels do not wake who waits for a dead owner.
pub const SLEEP_MAX: Duration = Duration::from_millis(1);

/// Not by anything that a user does.
const HELD: &str = "no room for another lock held by this thread: it has 16";
const _: () = assert!(LOCKS_MAX == 16);

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
        self.lock_if(at, || true)
    }

    /// As [`Thread::lock`], for who wants the lock only as long as something holds: where it had to be waited for, `still_wanted` is asked,
    /// under the lock. Who gets it at once has asked before.
    ///
    /// Errors: those, and `Unwanted`: the lock has been released again.
    #[inline(always)]
    pub fn lock_if(&self, at: ArenaOffset, still_wanted: impl FnOnce() -> bool) -> Result<Guard<'s>> {
        let word = self.word(at)?;
        let entry = self.intend(at)?;
        match lock_word::try_acquire(word, self.slot()) {
            Ok(held) => Ok(self.taken(word, held, entry)),
            // Takes and returns numbers only: what a cold call sees or fills in must live in memory.
            Err(_) => match lock_slowly(self.session(), self.slot(), word, at) {
                Ok(held) => {
                    let guard = self.taken(word, held, entry);
                    if still_wanted() {
                        return Ok(guard);
                    }
                    guard.unlock();
                    Err(Error::Unwanted)
                }
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
        let wanted = sorted.get_mut(..at.len()).ok_or(Error::Full { what: HELD })?;
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
            return Err(Error::Full { what: HELD });
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
    // Somebody is dead: there is nothing to spin for.
    let mut is_marked = false;
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
        if !is_marked && (!spins.is_multiple_of(32) || began.elapsed() < SPIN) {
            std::hint::spin_loop();
            continue;
        }
        let was_marked = std::mem::take(&mut is_marked);
        if session.reap_slot(&me, owner, slept)? == Verdict::Alive {
            if !slept {
                me.words()[WAITING_SINCE].store(coarse_ns(), Ordering::Relaxed);
            }
            is_marked = sleep(&me, word, at, found, owner, was_marked);
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
pub(crate) fn can_own(session: &Session, owner: u32, at: ArenaOffset) -> bool {
    let words = slot::words(session.arena(), owner);
    let intents = &words[LOCK_INTENTS..LOCK_INTENTS + LOCKS_MAX];
    load_state(session.arena(), owner).is_ok_and(|state| state.kind != slot::Kind::Free)
        && intents.iter().any(|intent| intent.load(Ordering::Acquire) == at.get())
}

/// Sleeps until the word changes, its owner dies, somebody wakes us, or a millisecond has passed. Whether the owner is marked
/// dead now. If it `was_marked` before, somebody else acts in its name, or is settling it: then only the word is waited for.
///
/// The kernel marks the owner's life word and wakes one who waits for it, if the word says that somebody does. Who is woken
/// settles the dead thread, and releases its locks, which wakes the others.
fn sleep(me: &Thread<'_>, word: &Word, at: ArenaOffset, found: u64, owner: u32, was_marked: bool) -> bool {
    let owned = slot::words(me.arena(), owner);
    let life = life(me.arena(), owner);
    let alive = life.load(Ordering::Acquire);
    if alive & OWNER_DIED != 0 && !was_marked {
        return true;
    }
    let mine = &me.words()[WAITING_ON];
    mine.store(at.get(), Ordering::Relaxed);
    owned[WAITERS].store(1, Ordering::Relaxed);
    // In the slot of a thread that has come since, the mark costs a needless look of the kernel's at its end.
    let is_listed = owned[LIFE_KIND].load(Ordering::Relaxed) != 0
        && alive & OWNER_DIED == 0
        && (alive & LIFE_WAITERS != 0
            || life.compare_exchange(alive, alive | LIFE_WAITERS, Ordering::Relaxed, Ordering::Relaxed).is_ok());
    let lock = (low_half(word), found as u32);
    let timed_out = if is_listed { sleep_on(&[lock, (life.futex(), alive | LIFE_WAITERS)]) } else { sleep_on(&[lock]) };
    mine.store(0, Ordering::Relaxed);
    let is_marked = life.load(Ordering::Acquire) & OWNER_DIED != 0;
    if timed_out && (is_marked && !was_marked || word.load(Ordering::Relaxed) != found) {
        count(me, LATE_WAKES, 1);
    }
    is_marked
}

/// Nobody may wait for several words at once: the kernel cannot (before Linux 5.16), or [`wait_for_one_word`].
static ONE_WORD: AtomicBool = AtomicBool::new(false);

/// From now on this process waits for locks by plain `futex` calls alone, for a program whose filter of system calls may not know `futex_waitv`.
/// Who waits then hears of its owner's death a millisecond late at most.
pub fn wait_for_one_word() {
    ONE_WORD.store(true, Ordering::Relaxed);
}

/// Sleeps while all words have these values, or while the first has ([`ONE_WORD`]). Whether only time ended it.
fn sleep_on(words: &[(&AtomicU32, u32)]) -> bool {
    let sleep_ns = sleep_ns();
    if words.len() > 1 && !ONE_WORD.load(Ordering::Relaxed) {
        let mut waits = [futex::Wait::new(); 2];
        for (wait, (word, value)) in waits.iter_mut().zip(words) {
            wait.val = u64::from(*value);
            wait.uaddr = futex::WaitPtr::new(word.as_ptr().cast());
            wait.flags = futex::WaitFlags::SIZE_U32;
        }
        let clock = rustix::time::ClockId::Monotonic;
        let now = rustix::time::clock_gettime(clock);
        let until = now.tv_nsec as u64 + sleep_ns;
        let until = futex::Timespec {
            tv_sec: now.tv_sec + (until / 1_000_000_000) as i64,
            tv_nsec: (until % 1_000_000_000) as i64,
        };
        // Woken, changed, timed out, interrupted: all mean look again.
        match futex::waitv(&waits[..words.len().min(2)], futex::WaitvFlags::empty(), Some(&until), clock) {
            Err(Errno::NOSYS | Errno::PERM) => ONE_WORD.store(true, Ordering::Relaxed),
            other => return other == Err(Errno::TIMEDOUT),
        }
    }
    let (word, value) = words[0];
    let timeout = futex::Timespec { tv_sec: 0, tv_nsec: sleep_ns.min(999_999_999) as i64 };
    futex::wait(word, futex::Flags::empty(), value, Some(&timeout)) == Err(Errno::TIMEDOUT)
}

/// [`SLEEP_MAX`] in nanoseconds, or what a test wants.
fn sleep_ns() -> u64 {
    #[cfg(any(test, feature = "abandon"))]
    if let Some(sleep_ns) = crate::testing::sleep_ns() {
        return sleep_ns;
    }
    SLEEP_MAX.as_nanos() as u64
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
