//! Thread slots: how a thread gets its record in the arena, finds it again within a nanosecond,
//! and gives it back.
//!
//! The fast path compares one thread-local number with one word of a page that a forked child
//! finds zeroed, and that detaching zeroes: fork, other sessions and detach are all noticed by it.

use crate::arena::Arena;
use crate::error::{Error, Result};
use crate::facade::{Ordering, Word, Word32};
use crate::layout::ArenaOffset;
use crate::life::RobustNode;
use crate::session::Session;
use crate::slot::{self, Kind, OWNER_DIED, SLOT_WORDS, State};
use std::cell::{Cell, RefCell};
use std::fmt;
use std::marker::PhantomData;
use std::sync::Weak;

/// The number is that of volumes.
const TOO_MANY: &str = "no room for another thread: all processes together have 4096 on the volume, the most there can be; end some, or let them use a mount (gannet mount)";
const _: () = assert!(crate::layout::THREADS_DEFAULT == 4096);

thread_local! {
    /// Incarnation of a session and our slot in it, the last one used.
    static CACHE: Cell<(u64, u32)> = const { Cell::new((u64::MAX, 0)) };
    static OWNED: RefCell<Vec<Owned>> = const { RefCell::new(Vec::new()) };
}

/// A slot that the calling thread has; given back when the thread ends.
struct Owned {
    incarnation: u64,
    session: Weak<Session>,
    slot: u32,
    generation: u32,
    life: Option<RobustNode>,
}

impl Drop for Owned {
    fn drop(&mut self) {
        if let Some(session) = self.session.upgrade() {
            // In a forked child, or after a detach, the slot is not ours to return.
            if session.incarnation() == self.incarnation && !abandoned() {
                give_back(&session, self.slot, self.generation);
            }
        }
        // The life entry leaves the kernel's list only after that.
        let Some(life) = self.life.take() else { return };
        if self.session.upgrade().is_some_and(|session| session.is_ending()) {
            life.take_out();
        }
    }
}

/// The slot that the calling thread took in a session, and which of its lives that is.
fn owned(incarnation: u64) -> Option<(u32, u32)> {
    let found = OWNED.try_with(|owned| {
        let owned = owned.borrow();
        owned.iter().find(|o| o.incarnation == incarnation).map(|o| (o.slot, o.generation))
    });
    found.ok().flatten()
}

fn abandoned() -> bool {
    #[cfg(any(test, feature = "abandon"))]
    return crate::testing::is_abandoned();
    #[cfg(not(any(test, feature = "abandon")))]
    false
}

/// The calling thread's place in a session: what takes locks and has hands.
#[derive(Clone, Copy)]
pub struct Thread<'s> {
    session: &'s Session,
    words: &'s [Word; SLOT_WORDS],
    slot: u32,
    /// A slot belongs to one thread.
    not_send: PhantomData<*const ()>,
}

impl fmt::Debug for Thread<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Thread(slot {})", self.slot)
    }
}

impl<'s> Thread<'s> {
    /// The session.
    #[inline(always)]
    pub fn session(&self) -> &'s Session {
        self.session
    }

    /// The session's arena.
    #[inline(always)]
    pub fn arena(&self) -> &'s Arena {
        self.session.arena()
    }

    /// Index of the slot, below the layout's number of threads: unique among live threads. Owners
    /// can keep things per slot.
    #[inline(always)]
    pub fn slot(&self) -> u32 {
        self.slot
    }

    /// Tells this use of the slot from those before and after it; not 0. What a former user of the slot left in words of
    /// the slot's own is known by it.
    #[inline(always)]
    pub fn tenure(&self) -> u64 {
        slot::tenure(self.words[slot::STATE].load(Ordering::Relaxed))
    }

    /// The word at `at`; see [`Arena::word`].
    #[inline(always)]
    pub fn word(&self, at: ArenaOffset) -> Result<&'s Word> {
        self.session.arena().word(at)
    }

    #[inline(always)]
    pub(crate) fn words(&self) -> &'s [Word; SLOT_WORDS] {
        self.words
    }

    /// Whether no lock names this thread and its hands are empty.
    pub(crate) fn holds_nothing(&self) -> bool {
        let dead = crate::reap::DeadThread::examine(*self);
        dead.locks().next().is_none() && dead.hands().next().is_none()
    }

    /// Whether the thread that took the slot lives and has it: for a `vfork` child, which is not told when that thread is killed.
    pub(crate) fn is_still_ours(&self) -> Result<bool> {
        let state = self.state()?;
        let is_marked = life(self.arena(), self.slot).load(Ordering::Acquire) & OWNER_DIED != 0;
        let taken = Some((self.slot, state.generation));
        Ok(!is_marked && state.kind == Kind::Live && owned(self.session.incarnation()) == taken)
    }

    pub(crate) fn state(&self) -> Result<State> {
        load_state(self.session.arena(), self.slot)
    }
}

impl Session {
    /// The calling thread's place, taken at its first use. In a forked child the first call joins
    /// the child as a participant of its own. `Full` when the arena has no slot left, `Detached`
    /// after [`Session::detach`] or if everybody else has closed the volume since the fork.
    #[inline(always)]
    pub fn thread(&self) -> Result<Thread<'_>> {
        let (incarnation, slot) = CACHE.get();
        if incarnation == self.incarnation() {
            return Ok(self.at_slot(slot));
        }
        // The slow path returns a number, not the whole: what a cold call fills in lives in memory.
        match self.slot_slowly() {
            Ok(slot) => Ok(self.at_slot(slot)),
            Err(error) => Err(error),
        }
    }

    #[inline(always)]
    pub(crate) fn at_slot(&self, slot: u32) -> Thread<'_> {
        Thread { session: self, words: slot::words(self.arena(), slot), slot, not_send: PhantomData }
    }

    #[cold]
    #[inline(never)]
    fn slot_slowly(&self) -> Result<u32> {
        let incarnation = self.joined()?;
        if let Some((slot, _)) = owned(incarnation) {
            CACHE.set((incarnation, slot));
            return Ok(slot);
        }
        let is_ending = self.is_ending();
        if !is_ending {
            self.describe_self();
        }
        let owned = take(self, incarnation)?;
        let slot = owned.slot;
        if !is_ending {
            let _ = self.for_reapers(|owner| {
                owner.slot_taken(&self.arena, slot);
                Ok(())
            });
        }
        let mut owned = Some(owned);
        let kept = OWNED.try_with(|list| {
            let mut list = list.borrow_mut();
            // Sessions that are gone, and those of the process that we were forked from.
            if !is_ending {
                list.retain(|o| o.session.upgrade().is_some_and(|s| s.incarnation() == o.incarnation));
            }
            list.extend(owned.take());
        });
        if kept.is_err() {
            // The thread is ending and its list is gone: the kernel marks the slot when it is over.
            std::mem::forget(owned);
        }
        CACHE.set((incarnation, slot));
        Ok(slot)
    }

    /// Forgets the calling thread's slot without freeing it and marks it dead, so that others
    /// settle what it had in hand: for a thread that cannot go on where it was (a panic inside an
    /// operation). Its next operation takes a new slot.
    pub fn abandon_thread(&self) {
        let incarnation = self.incarnation();
        CACHE.set((u64::MAX, 0));
        let _ = OWNED.try_with(|list| {
            let mut list = list.borrow_mut();
            if let Some(index) = list.iter().position(|o| o.incarnation == incarnation) {
                let mut owned = list.swap_remove(index);
                owned.session = Weak::new();
                owned.life = None;
                mark_dead(self.arena(), owned.slot);
            }
        });
    }

    /// The calling thread's slot, if it has one already.
    pub(crate) fn forget_thread(&self, incarnation: u64) {
        CACHE.set((u64::MAX, 0));
        let _ = OWNED.try_with(|list| list.borrow_mut().retain(|o| o.incarnation != incarnation));
    }
}

/// What the kernel does when the calling thread ends: marks the life words that carry its number.
#[cfg(any(test, feature = "abandon"))]
pub(crate) fn mark_own_dead(session: &Session) {
    let tid = rustix::thread::gettid().as_raw_pid() as u32;
    for slot in 0..session.slots_used() {
        if life(session.arena(), slot).load(Ordering::Relaxed) & slot::LIFE_TID == tid {
            mark_dead(session.arena(), slot);
        }
    }
}

/// Says in the arena that the thread of `slot` will never act again. Not counted as a store of the
/// thread: it is the kernel's, or a test's.
pub(crate) fn mark_dead(arena: &Arena, slot: u32) {
    let life = life(arena, slot);
    let value = life.load(Ordering::Relaxed);
    #[cfg(any(test, feature = "abandon"))]
    crate::testing::as_the_kernel(|| life.store(value | OWNER_DIED, Ordering::Release));
    #[cfg(not(any(test, feature = "abandon")))]
    life.store(value | OWNER_DIED, Ordering::Release);
}

pub(crate) fn life(arena: &Arena, slot: u32) -> &Word32 {
    let address = arena.address(slot::life_at(arena, slot));
    // SAFETY: inside the slot table of the mapping, aligned to 8.
    unsafe { &*address.cast::<Word32>() }
}

pub(crate) fn load_state(arena: &Arena, slot: u32) -> Result<State> {
    let value = slot::words(arena, slot)[slot::STATE].load(Ordering::Acquire);
    let at = slot::slot_at(arena, slot);
    State::decode(value).ok_or(Error::Corrupt { what: "thread slot", at })
}

/// Swaps the state of `slot`; false if it was not `from` any more.
pub(crate) fn swap_state(arena: &Arena, slot: u32, from: State, to: State) -> bool {
    let word = &slot::words(arena, slot)[slot::STATE];
    word.compare_exchange(from.encode(), to.encode(), Ordering::AcqRel, Ordering::Relaxed).is_ok()
}

/// Takes a free slot for the calling thread.
fn take(session: &Session, incarnation: u64) -> Result<Owned> {
    let arena = session.arena();
    let by = session.participant().index as u16;
    let count = arena.layout().threads;
    let hint = session.slot_hint().load(Ordering::Relaxed) as u32 % count;
    for step in 0..count {
        let slot = (hint + step) % count;
        // Memory first: nobody touches a slot at or above the mark.
        session.reserve_slot(slot)?;
        let free = load_state(arena, slot)?;
        if free.kind != Kind::Free {
            continue;
        }
        let join = State { kind: Kind::Join, generation: free.generation, by, by_generation: 0 };
        if !swap_state(arena, slot, free, join) {
            continue;
        }
        // Who frees a slot clears its life word first, so from here on a mark in it is about us.
        let tid = rustix::thread::gettid().as_raw_pid() as u32;
        life(arena, slot).store(tid, Ordering::Relaxed);
        // Not for the few steps of a process's end: should it be killed in them, its byte tells.
        let node = if session.is_ending() { None } else { RobustNode::enlist(arena, &session.page, slot) };
        if node.is_none() && !session.is_ending() {
            // It has joined, so this cannot fail; and the slot is half taken.
            let _ = session.say_namespace();
        }
        let words = slot::words(arena, slot);
        words[slot::LIFE_KIND].store(u64::from(node.is_some()), Ordering::Relaxed);
        words[slot::TID].store(u64::from(tid), Ordering::Relaxed);
        words[slot::PARTICIPANT].store(u64::from(by), Ordering::Relaxed);
        for word in [slot::WAITERS, slot::LOCKS_USED, slot::HANDS_USED, slot::WAITING_ON, slot::ACTING_CHILD] {
            words[word].store(0, Ordering::Relaxed);
        }
        session.slot_hint().store(u64::from(slot) + 1, Ordering::Relaxed);
        let live = State { kind: Kind::Live, ..join };
        if !swap_state(arena, slot, join, live) {
            return Err(Error::Corrupt { what: "thread slot", at: slot::life_at(arena, slot) });
        }
        let session = session.weak();
        return Ok(Owned { incarnation, session, slot, generation: free.generation, life: node });
    }
    Err(Error::Full { what: TOO_MANY })
}

/// Frees a slot whose thread ends, if it has nothing in hand; else the thread counts as killed.
fn give_back(session: &Session, slot: u32, generation: u32) {
    let arena = session.arena();
    let words = slot::words(arena, slot);
    let Ok(state) = load_state(arena, slot) else { return };
    if state.kind != Kind::Live || state.generation != generation {
        return;
    }
    let busy = [slot::LOCKS_USED, slot::HANDS_USED].iter().any(|w| words[*w].load(Ordering::Relaxed) != 0);
    if busy {
        mark_dead(arena, slot);
        return;
    }
    session.slot_hint().store(u64::from(slot), Ordering::Relaxed);
    life(arena, slot).store(0, Ordering::Relaxed);
    swap_state(arena, slot, state, State::freed(generation));
}
