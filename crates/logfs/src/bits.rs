//! A set of block or inode numbers as words of bits, filled by several threads: private memory of recovery and fsck.

use std::sync::atomic::{AtomicU64, Ordering};

/// A fixed-size set of numbers.
pub(crate) struct Bits {
    words: Vec<AtomicU64>,
    length: u64,
}

impl Bits {
    /// An empty set of numbers below `length`.
    pub(crate) fn new(length: u64) -> Self {
        Self { words: (0..length.div_ceil(64)).map(|_| AtomicU64::new(0)).collect(), length }
    }

    /// Takes words as they stand on the medium.
    pub(crate) fn from_words(length: u64, words: impl Iterator<Item = u64>) -> Self {
        Self { words: words.map(AtomicU64::new).collect(), length }
    }

    /// Adds a number; returns whether it was in the set already. Numbers out of range are ignored.
    pub(crate) fn set(&self, number: u64) -> bool {
        self.change(number, |word, bit| word.fetch_or(bit, Ordering::Relaxed))
    }

    /// Removes a number; returns whether it was in the set.
    pub(crate) fn clear(&self, number: u64) -> bool {
        self.change(number, |word, bit| word.fetch_and(!bit, Ordering::Relaxed))
    }

    /// Whether the set has a number.
    pub(crate) fn has(&self, number: u64) -> bool {
        self.change(number, |word, _| word.load(Ordering::Relaxed))
    }

    fn change(&self, number: u64, change: impl Fn(&AtomicU64, u64) -> u64) -> bool {
        let bit = 1 << (number % 64);
        number < self.length && self.words.get((number / 64) as usize).is_some_and(|word| change(word, bit) & bit != 0)
    }

    /// How many numbers the set has.
    pub(crate) fn count(&self) -> u64 {
        self.words().map(|word| word.count_ones() as u64).sum()
    }

    /// The words, least significant bit first.
    pub(crate) fn words(&self) -> impl Iterator<Item = u64> + '_ {
        self.words.iter().map(|word| word.load(Ordering::Relaxed))
    }
}
