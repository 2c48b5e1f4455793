//! The lock word, alone: how it is taken, released and validated by readers who take nothing.
//! Relies on nothing but a word, so that a model checker can run it.
//!
//! `owner slot + 1 : 16 | sequence : 48`, the sequence low so that its low half can be a futex;
//! odd exactly while owned. A word that was never used (0) is free.

use crate::facade::{Ordering, Word, fence};

const SEQUENCE_BITS: u32 = 48;
const SEQUENCE_MASK: u64 = (1 << SEQUENCE_BITS) - 1;

/// The slot that owns a lock whose word has this value.
#[inline(always)]
pub(crate) fn owner(value: u64) -> Option<u32> {
    ((value >> SEQUENCE_BITS) as u32).checked_sub(1)
}

/// Whether this value can have been stored by us: odd exactly while owned.
#[inline(always)]
pub(crate) fn is_sound(value: u64) -> bool {
    (value & 1 == 1) == (value >> SEQUENCE_BITS != 0)
}

/// What a free word becomes when `slot` takes it.
#[inline(always)]
pub(crate) fn taken_by(value: u64, slot: u32) -> u64 {
    ((u64::from(slot) + 1) << SEQUENCE_BITS) | ((value + 1) & SEQUENCE_MASK)
}

/// What a taken word becomes when it is released.
#[inline(always)]
pub(crate) fn released(value: u64) -> u64 {
    (value.wrapping_add(1)) & SEQUENCE_MASK
}

/// Takes the lock if it is free: `Ok(word's value while held)`, else `Err(value found)`.
#[inline(always)]
pub(crate) fn try_acquire(word: &Word, slot: u32) -> Result<u64, u64> {
    try_acquire_from(word, word.load(Ordering::Relaxed), slot)
}

/// Takes the lock if its word still has the value `found`, a free one.
///
/// The swap releases, so that the intent stored before it is visible to whoever sees the owner;
/// the fence after it keeps the holder's stores from being seen by a reader before the odd value.
#[inline(always)]
pub(crate) fn try_acquire_from(word: &Word, found: u64, slot: u32) -> Result<u64, u64> {
    if found & 1 == 1 || !is_sound(found) {
        return Err(found);
    }
    let held = taken_by(found, slot);
    word.compare_exchange(found, held, Ordering::AcqRel, Ordering::Relaxed)?;
    fence(Ordering::Release);
    Ok(held)
}

/// Releases a lock taken with [`try_acquire`]; a plain store on x86.
#[inline(always)]
pub(crate) fn release(word: &Word, held: u64) {
    word.store(released(held), Ordering::Release);
}

/// Begins an optimistic read: the sequence to validate with, unless somebody owns the lock.
#[inline(always)]
pub(crate) fn read_begin(word: &Word) -> Option<u64> {
    let value = word.load(Ordering::Acquire);
    (value & 1 == 0).then_some(value)
}

/// Whether nothing changed under the lock since `sequence` was read.
#[inline(always)]
pub(crate) fn read_validate(word: &Word, sequence: u64) -> bool {
    fence(Ordering::Acquire);
    word.load(Ordering::Relaxed) == sequence
}
