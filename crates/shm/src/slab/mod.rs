//! Slabs: objects of one size in a region, whose memory never becomes anything else. A reader with
//! an old reference sees that its generation is over, never another kind of thing.
//!
//! The truth about an object is its state word (see `slab_word`), which names the thread that has
//! it in hand; the bitmap is a hint where to look, repaired by whoever finds it wrong. So a kill
//! after any store loses nothing: what a dead thread held is in its hands, a stale bit costs a look.
//!
//! ```text
//! head     search hint : 64 B | reserved count : 64 B
//! groups   of 64 objects: bits, 1 = probably in use : 64 B | state words : 512 B | objects
//! ```
//! So what the first objects take, which is all that most processes use, lies side by side, and the head in the arena's header.
//!
//! Threads begin to search in lanes of eight objects, whose state words fill a cache line: so those of different threads rarely
//! share one, and none of the objects' lines either.
//!
//! | | |
//! | --- | --- |
//! | here | the name and the life of an object: taken, published, retired, freed |
//! | [`places`] | where it stands, and whether it has memory |
//! | [`recent`] | what a process knows of it: objects that it freed last |
//! | [`share`] | which of them somebody may take |
//! | [`settle`] | what a dead thread had in hand |

mod places;
mod recent;
mod settle;
mod share;

pub use places::{SLAB_HEAD_BYTES, SLAB_OBJECTS_MAX, Slab};
pub use recent::Recent;
pub use settle::{AfterDeath, HeldByDead, SlabReaper};
pub use share::Share;

use crate::arena::Arena;
use crate::error::{Error, Result};
use crate::facade::{Ordering, Word, fence};
use crate::hand::{Hand, HandContent};
use crate::layout::ArenaOffset;
use crate::slab_word;
use crate::thread::Thread;
use places::HINT_AT;

/// Kind of the hand that holds an object of a slab; `a` is the offset of its state word.
const HAND_KIND: u64 = 1 << 63 | 1;
/// Objects of a lane; their states fill a line.
const LANE: u32 = 8;
const INDEX_SHIFT: u32 = 40;

/// An object and its generation in one word, never 0: what shared structures store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SlabRef(u64);

impl SlabRef {
    /// From a word of shared memory; `None` for 0. Not trusted: every use checks it.
    pub fn from_word(word: u64) -> Option<Self> {
        (word >> INDEX_SHIFT != 0).then_some(Self(word))
    }

    /// As a word; never 0.
    pub fn word(self) -> u64 {
        self.0
    }

    fn new(index: u64, generation: u64) -> Self {
        Self((index + 1) << INDEX_SHIFT | generation)
    }

    /// Index of the object in its slab.
    pub fn index(self) -> u64 {
        (self.0 >> INDEX_SHIFT) - 1
    }

    fn generation(self) -> u64 {
        self.0 & ((1 << INDEX_SHIFT) - 1)
    }
}

/// An object in the calling thread's hand: nobody else changes it. To be published or freed.
#[derive(Debug)]
#[must_use = "publish it or free it"]
pub struct Held {
    hand: Hand,
    reference: SlabRef,
    at: ArenaOffset,
}

impl Held {
    /// First byte of the object.
    pub fn at(&self) -> ArenaOffset {
        self.at
    }

    /// What will name it once it is published.
    pub fn reference(&self) -> SlabRef {
        self.reference
    }
}

impl Slab {
    /// Whether the object is live in the reference's generation. What was read from it before this
    /// returns true was read from that very object.
    #[inline]
    pub fn is_live(&self, arena: &Arena, reference: SlabRef) -> Result<bool> {
        self.object(reference)?;
        if reference.index() >= self.reserved(arena)? {
            return Ok(false);
        }
        fence(Ordering::Acquire);
        let value = self.state(arena, reference.index())?.load(Ordering::Acquire);
        Ok(slab_word::is_live(value, reference.generation()))
    }

    /// All live objects. A snapshot of a moving thing: check again under the owner's lock.
    pub fn live<'a>(&'a self, arena: &'a Arena) -> Result<impl Iterator<Item = SlabRef> + 'a> {
        if self.reserved(arena)? > 0 {
            arena.map_page(self.group_at(0));
        }
        Ok(self.states(arena)?.filter_map(|(index, word)| {
            let value = word.load(Ordering::Acquire);
            let generation = slab_word::generation(value);
            slab_word::is_live(value, generation).then(|| SlabRef::new(index, generation))
        }))
    }

    /// Takes a free object into the calling thread's hand. Its content is what its last user left.
    /// `Full` if all are in use, or memory or hands are short.
    pub fn allocate(&self, thread: &Thread<'_>) -> Result<Held> {
        self.allocate_of(thread, &Share::ALL)
    }

    /// [`Slab::allocate`], one of a share.
    pub fn allocate_of(&self, thread: &Thread<'_>, share: &Share) -> Result<Held> {
        if let Some(held) = self.search(thread, share)? {
            return Ok(held);
        }
        // A thread that died between freeing an object and its bit left the bit, and so does who remembers one: look at the truth.
        let found = if self.repair_bitmap(thread.arena(), share)? { self.search(thread, share)? } else { None };
        found.ok_or(Error::Full { what: "no room for another object in a table of the shared state" })
    }

    fn search(&self, thread: &Thread<'_>, share: &Share) -> Result<Option<Held>> {
        let arena = thread.arena();
        let words = self.count.div_ceil(64);
        let hint = arena.word(self.head.add(HINT_AT))?;
        let mut place = hint.load(Ordering::Relaxed);
        // Somebody else's part was reached: what all may take is full.
        if !share.has_group(place) {
            place = share.first_own_group();
        }
        let lane = thread.slot() % (64 / LANE) * LANE;
        for step in 0..words {
            // Without divisions, which this would spend most of its time on.
            if place >= words {
                place = 0;
            }
            if !share.has_group(place) {
                place += 1;
                continue;
            }
            self.reserve_group(arena, place)?;
            if step == 0 {
                arena.map_page(self.group_at(place));
            }
            let bits = arena.word(self.group_at(place))?;
            let mut candidates = (!bits.load(Ordering::Relaxed)).rotate_right(lane);
            while candidates != 0 {
                let bit = u64::from(candidates.trailing_zeros() + lane) % 64;
                candidates &= candidates - 1;
                let index = place * 64 + bit;
                if index >= self.count {
                    continue;
                }
                let held = self.try_take(thread, index)?;
                bits.fetch_or(1 << bit, Ordering::Relaxed);
                if held.is_some() {
                    if step > 0 {
                        hint.store(place, Ordering::Relaxed);
                    }
                    return Ok(held);
                }
            }
            place += 1;
        }
        Ok(None)
    }

    #[inline]
    fn try_take(&self, thread: &Thread<'_>, index: u64) -> Result<Option<Held>> {
        let state = self.state(thread.arena(), index)?;
        if !slab_word::is_free(state.load(Ordering::Relaxed)) {
            return Ok(None);
        }
        let hand = thread.hand_set(self.hand(index))?;
        match slab_word::take(state, thread.slot()) {
            Some(generation) => Ok(Some(self.held(hand, index, generation))),
            None => {
                thread.hand_clear(hand);
                Ok(None)
            }
        }
    }

    #[inline]
    fn held(&self, hand: Hand, index: u64, generation: u64) -> Held {
        Held { hand, reference: SlabRef::new(index, generation), at: self.object_at(index) }
    }

    #[inline]
    fn hand(&self, index: u64) -> HandContent {
        HandContent { kind: HAND_KIND, a: self.state_at(index).get(), b: 0 }
    }

    /// Makes a held object live: from here on others may use what names it, and nobody settles it
    /// for this thread any more.
    #[inline]
    pub fn publish(&self, thread: &Thread<'_>, held: Held) -> Result<SlabRef> {
        slab_word::publish(self.state(thread.arena(), held.reference.index())?, held.reference.generation());
        thread.hand_clear(held.hand);
        Ok(held.reference)
    }

    /// Takes a live object back into the calling thread's hand, to take it apart and free it.
    /// `None` if it is not live any more: somebody else did, or does.
    #[inline]
    pub fn retire(&self, thread: &Thread<'_>, reference: SlabRef) -> Result<Option<Held>> {
        if !self.is_live(thread.arena(), reference)? {
            return Ok(None);
        }
        let index = reference.index();
        let hand = thread.hand_set(self.hand(index))?;
        if slab_word::retire(self.state(thread.arena(), index)?, thread.slot(), reference.generation()) {
            return Ok(Some(self.held(hand, index, reference.generation())));
        }
        thread.hand_clear(hand);
        Ok(None)
    }

    /// Frees a held object.
    pub fn free(&self, thread: &Thread<'_>, held: Held) -> Result<()> {
        self.free_index(thread.arena(), held.reference.index(), thread.slot())?;
        thread.hand_clear(held.hand);
        Ok(())
    }

    fn free_index(&self, arena: &Arena, index: u64, slot: u32) -> Result<()> {
        slab_word::free(self.state(arena, index)?, slot);
        self.clear_bit(arena, index)
    }

    /// Says where to search. Wrong if somebody took the object meanwhile: then a look at its word tells.
    #[inline]
    fn clear_bit(&self, arena: &Arena, index: u64) -> Result<()> {
        let place = index / 64;
        arena.word(self.group_at(place))?.fetch_and(!(1 << (index % 64)), Ordering::Relaxed);
        let hint = arena.word(self.head.add(HINT_AT))?;
        if hint.load(Ordering::Relaxed) > place {
            hint.store(place, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Makes the bits of a share's objects right; whether one of them is free.
    fn repair_bitmap(&self, arena: &Arena, share: &Share) -> Result<bool> {
        let mut found = false;
        for (group, states) in self.states_by_group(arena)?.filter(|&(group, _)| share.has_group(group)) {
            let free =
                |(bit, state): (usize, &Word)| u64::from(slab_word::is_free(state.load(Ordering::Acquire))) << bit;
            let free = states.iter().enumerate().map(free).fold(0, |all, bit| all | bit);
            if free != 0 {
                arena.word(self.group_at(group))?.fetch_and(!free, Ordering::Relaxed);
                found = true;
            }
        }
        Ok(found)
    }
}
