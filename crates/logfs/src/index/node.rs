//! One node: 64 words in the arena, read and written word by word.
//!
//! May touch: the words of the node it is given. Relies on: nothing; any content is survived.
//!
//! | word | content |
//! | --- | --- |
//! | 0 | header: owner in the high half, epoch in the low half; 0 is free |
//! | 1 | shape: level in the high half (0 is a leaf), number of entries in the low half |
//! | 2..33 | keys, ascending |
//! | 33..64 | values: of a leaf the caller's, else numbers of child nodes |
//!
//! In an inner node the key at position `i ≥ 1` separates: child `i - 1` holds smaller keys, child `i` none smaller.
//! The key at position 0 means nothing.

use gannet_shm::{Ordering::Relaxed, Word};

/// Entries that fit a node.
pub(super) const ENTRIES_MAX: usize = 31;
/// Levels a tree may have. Fifteen-fold fan-out at the least after splits makes this unreachable in practice.
pub(super) const LEVELS_MAX: usize = 12;

pub(super) const NODE_WORDS: usize = 64;
const SHAPE: usize = 1;
const KEYS: usize = 2;
const VALUES: usize = KEYS + ENTRIES_MAX;
const _: () = assert!(VALUES + ENTRIES_MAX == NODE_WORDS);

/// A view of one node's words.
#[derive(Clone, Copy)]
pub(super) struct Node<'a> {
    words: &'a [Word; NODE_WORDS],
}

impl<'a> Node<'a> {
    pub(super) fn new(words: &'a [Word; NODE_WORDS]) -> Self {
        Node { words }
    }

    #[inline]
    pub(super) fn header(self) -> &'a Word {
        &self.words[0]
    }

    /// Asks for all of it to come into the cache at once: a search would fetch its lines one after the other.
    #[inline]
    pub(super) fn expect(self) {
        for line in self.words.chunks(8) {
            line[0].expect_load();
        }
    }

    /// Level and number of entries, if they are possible ones.
    #[inline]
    pub(super) fn shape(self) -> Option<(usize, usize)> {
        let shape = self.words[SHAPE].load(Relaxed);
        let (level, count) = ((shape >> 32) as usize, (shape & 0xffff_ffff) as usize);
        (level < LEVELS_MAX && (1..=ENTRIES_MAX).contains(&count)).then_some((level, count))
    }

    #[inline]
    #[track_caller]
    pub(super) fn set_shape(self, level: usize, count: usize) {
        debug_assert!(level < LEVELS_MAX && count <= ENTRIES_MAX);
        self.words[SHAPE].store((level as u64) << 32 | count as u64, Relaxed);
    }

    // The masks change no position that occurs; they spare the bounds check in the search.
    #[inline]
    pub(super) fn key(self, position: usize) -> u64 {
        self.words[KEYS + (position & 31)].load(Relaxed)
    }

    #[inline]
    pub(super) fn value(self, position: usize) -> u64 {
        self.words[(VALUES + (position & 31)) & 63].load(Relaxed)
    }

    #[inline]
    #[track_caller]
    pub(super) fn set_key(self, position: usize, key: u64) {
        debug_assert!(position < ENTRIES_MAX);
        self.words[KEYS + (position & 31)].store(key, Relaxed);
    }

    #[inline]
    #[track_caller]
    pub(super) fn set_value(self, position: usize, value: u64) {
        debug_assert!(position < ENTRIES_MAX);
        self.words[(VALUES + (position & 31)) & 63].store(value, Relaxed);
    }

    #[inline]
    #[track_caller]
    pub(super) fn set(self, position: usize, key: u64, value: u64) {
        self.set_key(position, key);
        self.set_value(position, value);
    }

    /// How many of the first `count` keys are at most `key`: for leaves.
    #[inline]
    pub(super) fn at_most(self, count: usize, key: u64) -> usize {
        self.at_most_behind(0, count, key)
    }

    /// The position of the child that covers `key`: for inner nodes. The key at position 0 is not looked at. It may be
    /// greater than separators behind it, after the child it stood for was freed and the next one was split.
    #[inline]
    pub(super) fn child_position(self, count: usize, key: u64) -> usize {
        self.at_most_behind(1, count - 1, key)
    }

    /// How many of `count` keys from position `first` on are at most `key`. Five steps without a branch that depends
    /// on the keys; for a few keys (most files have one extent) looking at each is faster.
    #[inline]
    fn at_most_behind(self, first: usize, count: usize, key: u64) -> usize {
        if count < 6 {
            return (first..first + count).filter(|&position| self.key(position) <= key).count();
        }
        let mut found = 0;
        for log2 in [4, 3, 2, 1, 0] {
            let next = found + (1 << log2);
            // `next` is at most 31. Arithmetic instead of a choice: compilers like to make that a branch, which costs
            // twice as much as the search.
            let take = (next <= count) & (self.key(first + next - 1) <= key);
            found += usize::from(take) << log2;
        }
        found
    }

    /// Makes room at `position` among `count` entries and stores the pair there. `count` must be below the maximum.
    #[track_caller]
    pub(super) fn insert_at(self, level: usize, count: usize, position: usize, key: u64, value: u64) {
        for from in (position..count).rev() {
            self.set(from + 1, self.key(from), self.value(from));
        }
        self.set(position, key, value);
        self.set_shape(level, count + 1);
    }

    /// Takes the entry at `position` out of `count` entries.
    #[track_caller]
    pub(super) fn remove_at(self, level: usize, count: usize, position: usize) {
        for to in position..count - 1 {
            self.set(to, self.key(to + 1), self.value(to + 1));
        }
        self.set_shape(level, count - 1);
    }

    /// Copies `count` entries of `source` from position `from` to position `to` of this node.
    #[track_caller]
    pub(super) fn copy_from(self, to: usize, source: Node<'_>, from: usize, count: usize) {
        for offset in 0..count {
            self.set(to + offset, source.key(from + offset), source.value(from + offset));
        }
    }
}
