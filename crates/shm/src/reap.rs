//! Settling what the dead left behind.
//!
//! Whoever waits for a lock and finds its owner dead becomes the reaper: it claims the dead
//! thread's slot by one swap that names itself and its own generation, lets the owners of structures
//! settle (medium, then hands, then indexes), releases the dead thread's locks, and frees the slot.
//! Every step can be repeated: a reaper that dies is found dead by the next one, whose claim
//! replaces the void one. The slot is read *before* its thread is probed and swapped from exactly
//! the value read, or a newcomer in the slot could be reaped alive.

use crate::arena::Arena;
use crate::error::{Error, Result};
use crate::facade::{Ordering, Word};
use crate::hand::{self, HandContent};
use crate::layout::ArenaOffset;
use crate::lock;
use crate::lock_word;
use crate::participant::{ParticipantId, ParticipantInfo, View};
use crate::session::Session;
use crate::slot::{self, HANDS_MAX, Kind, LOCK_INTENTS, LOCKS_MAX, OWNER_DIED, SLOT_WORDS, State};
use crate::sys;
use crate::thread::{Thread, life, load_state, mark_dead, swap_state};
use rustix::fd::BorrowedFd;
use std::sync::atomic::Ordering as Plain;

/// Order in which owners settle. Within a stage: order of registration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ReapStage {
    /// Operations in flight on the medium: forward or back.
    Medium,
    /// What the thread had in its hands: to where it is referenced, or back to where it came from.
    Hands,
    /// Volatile indexes of what it had locked.
    Indexes,
}

/// An owner of structures that a thread may leave half done.
///
/// `settle` acts in the dead thread's name: what that thread had locked is still locked and safe
/// to change. It must be restartable after any store, must not assume that it runs once, and may
/// take other locks only if nobody holds those while waiting for a lock that others can die with.
pub trait Reaper: Send + Sync {
    /// Puts right what `dead` left behind, and clears the hands that were this owner's. Hands still
    /// set after all stages are cleared.
    fn settle(&self, dead: &DeadThread<'_>) -> Result<()>;

    /// A participant is gone and all its threads are settled: drop what it referenced. Called also
    /// by a participant that leaves, for itself. Restartable.
    fn participant_gone(&self, gone: &GoneParticipant<'_>) -> Result<()> {
        let _ = gone;
        Ok(())
    }

    /// A slot is about to be used for the first time: what the owner's regions have for it gets memory. `Full` if there is none; the slot is
    /// not used then. May happen several times for one slot, and in a thread that is about to end.
    fn slot_reserved(&self, arena: &Arena, slot: u32) -> Result<()> {
        let _ = (arena, slot);
        Ok(())
    }

    /// A thread of this process, which is not about to end, has taken a slot: what it is sure to use of the owner's regions can be mapped now
    /// ([`crate::Arena::map_page`]). Nothing else: it may be on its way out.
    fn slot_taken(&self, arena: &Arena, slot: u32) {
        let _ = (arena, slot);
    }
}

/// A dead thread in the hands of its reaper.
#[derive(Debug)]
pub struct DeadThread<'s> {
    reaper: Thread<'s>,
    slot: u32,
    words: &'s [Word; SLOT_WORDS],
}

/// A participant that is gone.
#[derive(Debug)]
pub struct GoneParticipant<'s> {
    /// The thread that settles.
    pub reaper: Thread<'s>,
    /// Who is gone.
    pub info: ParticipantInfo,
}

/// What became of an attempt to reap.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It lives, or is being reaped by somebody who lives: wait.
    Alive,
    /// It was dead and is settled, or the slot is free.
    Gone,
}

/// Looks that a reaper leaves the processor for, before it sleeps between them: whoever it waits for may be stopped for long.
const LOOKS_AWAKE: u32 = 1000;
const LOOK_PAUSE: rustix::thread::Timespec = rustix::thread::Timespec { tv_sec: 0, tv_nsec: 100_000 };

/// Lets others run before the next look at a lock or a slot that somebody alive has.
fn wait_a_moment(looks: &mut u32) {
    *looks = looks.saturating_add(1);
    if *looks < LOOKS_AWAKE {
        std::thread::yield_now();
    } else {
        // The kernel's own call: the C library's would end a thread that is asked to end.
        let _ = rustix::thread::nanosleep(&LOOK_PAUSE);
    }
}

impl<'s> DeadThread<'s> {
    /// Looks at a thread's slot as its reaper would.
    pub(crate) fn examine(thread: Thread<'s>) -> Self {
        Self { reaper: thread, slot: thread.slot(), words: thread.words() }
    }

    /// The thread that settles; it can take locks, in its own name.
    pub fn reaper(&self) -> Thread<'s> {
        self.reaper
    }

    /// The dead thread's slot.
    pub fn slot(&self) -> u32 {
        self.slot
    }

    /// Offsets of the locks that it holds.
    pub fn locks(&self) -> impl Iterator<Item = ArenaOffset> + '_ {
        (0..LOCKS_MAX).filter_map(|entry| {
            let at = ArenaOffset::new(self.words[LOCK_INTENTS + entry].load(Ordering::Acquire));
            // A stale entry can name the same lock twice; the first counts.
            let again = (0..entry).any(|e| self.words[LOCK_INTENTS + e].load(Ordering::Relaxed) == at.get());
            (!again && self.holds(at)).then_some(at)
        })
    }

    /// Whether it holds the lock at `at`.
    pub fn holds(&self, at: ArenaOffset) -> bool {
        let word = self.reaper.word(at);
        word.is_ok_and(|word| {
            let value = word.load(Ordering::Acquire);
            lock_word::is_sound(value) && lock_word::owner(value) == Some(self.slot)
        })
    }

    /// What it has in its hands, with the index of each.
    pub fn hands(&self) -> impl Iterator<Item = (usize, HandContent)> + '_ {
        (0..HANDS_MAX).map(|i| (i, hand::content(self.words, i))).filter(|(_, content)| content.kind != 0)
    }

    /// Empties a hand, after what it held has been put right.
    pub fn clear_hand(&self, index: usize) {
        if index < HANDS_MAX {
            hand::clear(self.words, index);
        }
    }

    /// Replaces the first word of a hand, in one store: for one that is put right part by part.
    pub fn hand_update_a(&self, index: usize, a: u64) {
        if index < HANDS_MAX {
            hand::update_a(self.words, index, a);
        }
    }

    /// Takes the lock at `at` in the dead thread's name, unless it has it already. Whoever goes on
    /// after a reaper that died then finds it held, and nobody has been in between: so a step that
    /// must not be repeated once others saw its effect is made under such a lock, and the note that
    /// it is done (clearing the hand) before [`DeadThread::release`]. Waits as [`Thread::lock`] does.
    ///
    /// Errors: `Deadlock` if the reaper itself, or another dead thread that it is settling, has it; `Corrupt`.
    pub fn lock(&self, at: ArenaOffset) -> Result<()> {
        if self.holds(at) {
            return Ok(());
        }
        let word = self.reaper.word(at)?;
        let unused = |entry: &usize| {
            let named = self.words[LOCK_INTENTS + entry].load(Ordering::Relaxed);
            !self.holds(ArenaOffset::new(named))
        };
        let entry = (0..LOCKS_MAX)
            .find(unused)
            .ok_or(Error::Full { what: "no room for another lock held by a dead thread" })?;
        self.words[LOCK_INTENTS + entry].store(at.get(), Ordering::Relaxed);
        let mut looks = 0_u32;
        loop {
            let Err(found) = lock_word::try_acquire(word, self.slot) else { return Ok(()) };
            if !lock_word::is_sound(found) {
                return Err(Error::Corrupt { what: "lock", at: at.get() });
            }
            match lock_word::owner(found) {
                None => {}
                Some(owner) if owner == self.reaper.slot() || owner == self.slot => return Err(Error::Deadlock(at)),
                Some(owner) if owner >= self.reaper.arena().layout().threads => {
                    return Err(Error::Corrupt { what: "lock", at: at.get() });
                }
                Some(owner) => {
                    let session = self.reaper.session();
                    let verdict = session.reap_slot(&self.reaper, owner, true)?;
                    if !lock::can_own(session, owner, at) && word.load(Ordering::Acquire) == found {
                        return Err(Error::Corrupt { what: "lock", at: at.get() });
                    }
                    if verdict == Verdict::Alive {
                        wait_a_moment(&mut looks);
                    }
                }
            }
        }
    }

    /// Releases one of its locks before the others: for an owner who cares about the order. What
    /// is still held after all stages is released then.
    pub fn release(&self, at: ArenaOffset) -> Result<()> {
        let word = self.reaper.word(at)?;
        let value = word.load(Ordering::Acquire);
        if lock_word::is_sound(value) && lock_word::owner(value) == Some(self.slot) {
            // A swap: a repeated step of another reaper finds it done.
            let free = lock_word::released(value);
            let _ = word.compare_exchange(value, free, Ordering::AcqRel, Ordering::Relaxed);
            lock::wake_all(word);
        }
        Ok(())
    }
}

impl Session {
    /// Reaps the thread of `owner` if it is dead. With `thorough`, the processes are asked where the
    /// life word says nothing.
    pub(crate) fn reap_slot(&self, me: &Thread<'_>, owner: u32, thorough: bool) -> Result<Verdict> {
        let arena = self.arena();
        let mine = me.state()?;
        loop {
            let found = load_state(arena, owner)?;
            match found.kind {
                Kind::Free => return Ok(Verdict::Gone),
                Kind::Join | Kind::Live => {
                    if !self.is_dead(owner, found, thorough)? {
                        return Ok(Verdict::Alive);
                    }
                }
                Kind::Reap => {
                    let by = u32::from(found.by);
                    if by == me.slot() && found.by_generation == mine.generation {
                        // We are settling it, and what we do for it needs what it holds.
                        return Err(Error::Deadlock(ArenaOffset::new(slot::life_at(arena, owner))));
                    }
                    if !self.claim_is_void(found, thorough)? {
                        return Ok(Verdict::Alive);
                    }
                }
            }
            let generation = found.generation;
            let claim = State { kind: Kind::Reap, generation, by: me.slot() as u16, by_generation: mine.generation };
            if swap_state(arena, owner, found, claim) {
                return self.settle(me, owner, claim).map(|()| Verdict::Gone);
            }
        }
    }

    fn claim_is_void(&self, claim: State, thorough: bool) -> Result<bool> {
        let by = u32::from(claim.by);
        if by >= self.arena().layout().threads {
            return Ok(true);
        }
        let claimant = load_state(self.arena(), by)?;
        Ok(match claimant.kind {
            _ if claimant.generation != claim.by_generation => true,
            Kind::Free | Kind::Reap => true,
            Kind::Join | Kind::Live => self.is_dead(by, claimant, thorough)?,
        })
    }

    /// Whether the thread whose slot was found in `state` is dead, and no child acts in its name. In doubt it lives.
    pub(crate) fn is_dead(&self, slot: u32, state: State, thorough: bool) -> Result<bool> {
        Ok(self.has_ended(slot, state, thorough)? && !self.participants().is_acted_for(slot)?)
    }

    fn has_ended(&self, slot: u32, state: State, thorough: bool) -> Result<bool> {
        let words = slot::words(self.arena(), slot);
        if matches!(state.kind, Kind::Join | Kind::Live) {
            if life(self.arena(), slot).load(Ordering::Acquire) & OWNER_DIED != 0 {
                return Ok(true);
            }
            if state.kind == Kind::Live && words[slot::LIFE_KIND].load(Ordering::Relaxed) != 0 && !thorough {
                return Ok(false);
            }
        }
        // A slot being taken has not yet named its participant except in its state.
        let participant = match state.kind {
            Kind::Join | Kind::Live => u32::from(state.by),
            Kind::Free | Kind::Reap => words[slot::PARTICIPANT].load(Ordering::Relaxed) as u32,
        };
        let Some(id) = self.participants().live(participant) else { return Ok(true) };
        let thread = words[slot::TID].load(Ordering::Relaxed) as u32;
        if id == self.participant() && self.incarnation() != 0 {
            // The caller may be a `vfork` child, which has our memory but another number.
            let caller = rustix::process::getpid().as_raw_pid() as u32;
            let processes = [caller, self.participants().pid(id)];
            return Ok(state.kind == Kind::Live && self.is_gone(&processes, thread));
        }
        if !self.participants().is_alive(id, || self.namespace(), &mut View::None)? {
            return Ok(true);
        }
        let info = self.participants().info(id, || self.namespace());
        Ok(state.kind == Kind::Live && info.same_namespace && self.is_gone(&[info.pid], thread))
    }

    /// Whether none of the processes has such a thread. In doubt one has.
    fn is_gone(&self, processes: &[u32], thread: u32) -> bool {
        !processes.iter().any(|process| sys::thread_exists(*process, thread))
            && sys::is_in_pid_namespace(self.namespace())
    }

    /// Settles a claimed slot. On an owner's error the claim is given up, so that another attempt
    /// can be made, by anyone.
    fn settle(&self, me: &Thread<'_>, owner: u32, claim: State) -> Result<()> {
        let arena = self.arena();
        let words = slot::words(arena, owner);
        let dead = DeadThread { reaper: *me, slot: owner, words };
        if let Err(error) = self.for_reapers(|reaper| reaper.settle(&dead)) {
            let by = words[slot::PARTICIPANT].load(Ordering::Relaxed) as u16;
            // A reaper before us may have cleared the mark already.
            mark_dead(arena, owner);
            let dead_again = State { kind: Kind::Live, by, by_generation: 0, ..claim };
            swap_state(arena, owner, claim, dead_again);
            return Err(error);
        }
        for index in 0..HANDS_MAX {
            hand::clear(words, index);
        }
        for at in dead.locks() {
            dead.release(at)?;
        }
        words[slot::ACTING_CHILD].store(0, Ordering::Relaxed);
        life(arena, owner).store(0, Ordering::Relaxed);
        if swap_state(arena, owner, claim, State::freed(claim.generation)) {
            self.slot_hint().store(u64::from(owner), Ordering::Relaxed);
        }
        Ok(())
    }

    /// Looks for dead threads and dead participants and settles what they left. For whoever has
    /// time; locks of the dead are taken over without it.
    pub fn reap_dead(&self) -> Result<Reaped> {
        self.reap(true, &mut |id, view| self.participants().is_alive(id, || self.namespace(), view))
    }

    /// Likewise by who joins: participants that seem to live are not looked at closely, which would take a walk through `/proc`, nor
    /// their threads as long as there are enough slots, which would take a page of memory for each. Where nobody is dead the caller takes no
    /// slot for it either: its first operation does, in whichever thread that is.
    pub fn reap_evidently_dead(&self) -> Result<Reaped> {
        let looks_at_threads = self.slots_used() > self.arena().layout().threads / 2;
        self.reap(looks_at_threads, &mut |id, view| self.participants().seems_alive(id, || self.namespace(), view))
    }

    fn reap(
        &self,
        looks_at_threads: bool,
        is_alive: &mut dyn FnMut(ParticipantId, &mut View<'_>) -> Result<bool>,
    ) -> Result<Reaped> {
        // In a forked child this is what joins.
        self.joined()?;
        let mut reaped = Reaped::default();
        let mut view = match self.held_gate.load(Plain::Relaxed) {
            -1 => View::None,
            // SAFETY: open as long as the owner's guard runs, which is who calls this then.
            gate => View::Lent(unsafe { BorrowedFd::borrow_raw(gate) }),
        };
        for index in 0..self.participants().used() {
            let Some(id) = self.participants().live(index) else { continue };
            if id != self.participant() && !is_alive(id, &mut view)? {
                reaped.threads += self.reap_participant(&self.thread()?, id)?;
                reaped.participants += 1;
            }
        }
        if !looks_at_threads {
            return Ok(reaped);
        }
        let me = self.thread()?;
        for slot in 0..self.slots_used() {
            let state = load_state(self.arena(), slot)?;
            if slot != me.slot() && state.kind != Kind::Free && self.reap_slot(&me, slot, false)? == Verdict::Gone {
                reaped.threads += 1;
            }
        }
        Ok(reaped)
    }

    /// Settles a participant that is gone: its threads, then what it referenced. One reaper of
    /// participants at a time, by a robust lock.
    fn reap_participant(&self, me: &Thread<'_>, id: ParticipantId) -> Result<u64> {
        let roster = me.lock(self.roster_lock())?;
        if self.participants().live(id.index) != Some(id) {
            return Ok(0);
        }
        let threads = self.reap_threads_of(me, id)?;
        self.tell_gone(me, id)?;
        self.participants().leave(id);
        roster.unlock();
        Ok(threads)
    }

    /// Reaps all threads of a participant that is gone, or that leaves and has none at work.
    pub(crate) fn reap_threads_of(&self, me: &Thread<'_>, id: ParticipantId) -> Result<u64> {
        let mut threads = 0;
        for slot in 0..self.slots_used() {
            if slot == me.slot() {
                continue;
            }
            let mut looks = 0;
            // Asked each time: whoever settled it meanwhile freed the slot, and the next tenant may live for ever.
            while self.is_thread_of(slot, id)? {
                if self.reap_slot(me, slot, true)? == Verdict::Gone {
                    threads += 1;
                    break;
                }
                // Somebody else is settling it.
                wait_a_moment(&mut looks);
            }
        }
        Ok(threads)
    }

    /// Whether a slot is a thread's of participant `id`, dead or alive.
    fn is_thread_of(&self, slot: u32, id: ParticipantId) -> Result<bool> {
        let state = load_state(self.arena(), slot)?;
        let words = slot::words(self.arena(), slot);
        Ok(match state.kind {
            Kind::Free => false,
            Kind::Join | Kind::Live => u32::from(state.by) == id.index,
            Kind::Reap => words[slot::PARTICIPANT].load(Ordering::Relaxed) == u64::from(id.index),
        })
    }

    pub(crate) fn tell_gone(&self, me: &Thread<'_>, id: ParticipantId) -> Result<()> {
        let gone = GoneParticipant { reaper: *me, info: self.participants().info(id, || self.namespace()) };
        self.for_reapers(|reaper| reaper.participant_gone(&gone))
    }
}

/// What [`Session::reap_dead`] found.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Reaped {
    /// Participants that were gone.
    pub participants: u64,
    /// Threads that were dead.
    pub threads: u64,
}
