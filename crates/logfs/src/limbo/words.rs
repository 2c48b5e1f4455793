//! The words in which limbo stands: a run of blocks, and two inode numbers.
//!
//! May touch: the word that it is given.

use crate::space::Extent;
use gannet_shm::Ordering::{AcqRel, Acquire, Relaxed, Release};
use gannet_shm::Word;

const RUN_COUNT_BITS: u32 = 8;
const RUN_TAG_BITS: u32 = 16;

pub(super) fn pack_run(extent: Extent, tag: u64) -> u64 {
    let tag = tag & ((1 << RUN_TAG_BITS) - 1);
    (extent.start << RUN_TAG_BITS | tag) << RUN_COUNT_BITS | extent.count as u64
}

pub(super) fn unpack_run(word: u64) -> Option<Extent> {
    let count = (word & ((1 << RUN_COUNT_BITS) - 1)) as u32;
    (count > 0).then_some(Extent { start: word >> (RUN_TAG_BITS + RUN_COUNT_BITS), count })
}

/// The inode numbers in a word's halves.
pub(super) fn halves(word: u64) -> impl Iterator<Item = u32> {
    [word as u32, (word >> 32) as u32].into_iter().filter(|&half| half != 0)
}

/// Whether `number` is in one of a word's halves, or one is empty.
pub(super) fn has_half(word: u64, number: u32) -> bool {
    word as u32 == 0 || word >> 32 == 0 || halves(word).any(|half| half == number)
}

#[track_caller]
pub(super) fn add_half(word: &Word, number: u32) {
    let found = word.load(Relaxed);
    if halves(found).all(|half| half != number) {
        word.store(found | in_empty_half(found, number), Release);
    }
}

/// A number where a word has an empty half.
pub(super) fn in_empty_half(word: u64, number: u32) -> u64 {
    if word as u32 == 0 { number as u64 } else { (number as u64) << 32 }
}

/// Adds a number to those that are ready; false if there is no room.
#[track_caller]
pub(super) fn make_ready(ready: &Word, number: u32) -> bool {
    let mut found = ready.load(Relaxed);
    loop {
        let added = match (found as u32, found >> 32) {
            (0, _) => found | number as u64,
            (_, 0) => found | (number as u64) << 32,
            _ => return false,
        };
        match ready.compare_exchange(found, added, AcqRel, Relaxed) {
            Ok(_) => return true,
            Err(other) => found = other,
        }
    }
}

/// Takes a number that is ready.
#[track_caller]
pub(super) fn take_ready(ready: &Word) -> Option<u32> {
    let mut found = ready.load(Acquire);
    loop {
        let (number, left) = match (found as u32, found >> 32) {
            (0, 0) => return None,
            (0, high) => (high as u32, 0),
            (low, _) => (low, found & !0xFFFF_FFFF),
        };
        match ready.compare_exchange(found, left, AcqRel, Acquire) {
            Ok(_) => return Some(number),
            Err(other) => found = other,
        }
    }
}
