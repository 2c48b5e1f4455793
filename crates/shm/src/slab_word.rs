//! The state word of a slab object, alone: every step of an object's life is one swap of it.
//! Relies on nothing but a word, so that a model checker can run it.
//!
//! `kind:8 | holder slot + 1:16 | generation:40`. FREE → HELD (taken by a thread, in its hand) →
//! LIVE → RETIRING (taken back by one thread, in its hand) → FREE of the next generation. A word
//! that was never used (0) is free.

use crate::facade::{Ordering, Word, fence};

const KIND_SHIFT: u32 = 56;
const HOLDER_SHIFT: u32 = 40;
const GENERATION_MASK: u64 = (1 << HOLDER_SHIFT) - 1;
const FREE: u64 = 0;
const HELD: u64 = 1;
const LIVE: u64 = 2;
const RETIRING: u64 = 3;

#[inline]
fn encode(kind: u64, slot: Option<u32>, generation: u64) -> u64 {
    let holder = slot.map_or(0, |slot| u64::from(slot) + 1);
    (kind << KIND_SHIFT) | (holder << HOLDER_SHIFT) | (generation & GENERATION_MASK)
}

#[inline]
pub(crate) fn generation(value: u64) -> u64 {
    value & GENERATION_MASK
}

#[inline]
pub(crate) fn is_free(value: u64) -> bool {
    value >> KIND_SHIFT == FREE
}

/// Whether `slot` has it in hand, and whether it was live before.
#[inline]
pub(crate) fn held_by(value: u64, slot: u32) -> Option<bool> {
    let kind = value >> KIND_SHIFT;
    let holder = (value >> HOLDER_SHIFT) & 0xffff;
    (holder == u64::from(slot) + 1 && (kind == HELD || kind == RETIRING)).then_some(kind == RETIRING)
}

/// Takes a free object: its generation, or `None` if it is not free.
#[inline]
pub(crate) fn take(word: &Word, slot: u32) -> Option<u64> {
    take_from(word, word.load(Ordering::Relaxed), slot)
}

/// Takes an object whose word still has the value `found`, a free one.
#[inline]
pub(crate) fn take_from(word: &Word, found: u64, slot: u32) -> Option<u64> {
    if !is_free(found) {
        return None;
    }
    let generation = generation(found);
    let held = encode(HELD, Some(slot), generation);
    word.compare_exchange(found, held, Ordering::AcqRel, Ordering::Relaxed).ok()?;
    // A reader of the object's last life that sees a store of this one then sees the swap, too.
    fence(Ordering::Release);
    Some(generation)
}

/// Makes a held object live: a plain store, nobody else changes a held object's word.
#[inline]
pub(crate) fn publish(word: &Word, generation: u64) {
    word.store(encode(LIVE, None, generation), Ordering::Release);
}

/// Takes a live object of that generation back: false if another was faster or it is long gone.
#[inline]
pub(crate) fn retire(word: &Word, slot: u32, generation: u64) -> bool {
    let retired = swap_to_retiring(word, slot, generation);
    // As in `take_from`.
    fence(Ordering::Release);
    retired
}

#[inline]
pub(crate) fn swap_to_retiring(word: &Word, slot: u32, generation: u64) -> bool {
    let live = encode(LIVE, None, generation);
    let retiring = encode(RETIRING, Some(slot), generation);
    word.compare_exchange(live, retiring, Ordering::AcqRel, Ordering::Relaxed).is_ok()
}

/// Frees an object that `slot` holds: false if it does not.
#[inline]
pub(crate) fn free(word: &Word, slot: u32) -> bool {
    let found = word.load(Ordering::Relaxed);
    if held_by(found, slot).is_none() {
        return false;
    }
    let free = encode(FREE, None, generation(found) + 1);
    word.compare_exchange(found, free, Ordering::AcqRel, Ordering::Relaxed).is_ok()
}

/// Whether the object is live in that generation.
#[inline]
pub(crate) fn is_live(value: u64, wanted: u64) -> bool {
    value == encode(LIVE, None, wanted)
}
