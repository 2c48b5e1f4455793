//! Hands: what a thread has taken from somewhere and not yet put anywhere. If it dies, its reaper
//! finds them and asks the owner of that kind to put things right.
//!
//! A hand is three words; it counts exactly while its first, the kind, is not 0. So setting and
//! clearing are single stores, and a kill leaves a whole hand or none.

use crate::error::{Error, Result};
use crate::facade::{Ordering, Word};
use crate::slot::{HAND_WORDS, HANDS, HANDS_MAX, HANDS_USED, SLOT_WORDS};
use crate::thread::Thread;

/// What a hand holds. `kind` is a number that owners of structures agree on, not 0; kinds from
/// 2^63 up belong to this crate. `a` and `b` are the owner's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HandContent {
    /// Who knows what it means.
    pub kind: u64,
    /// First word of the owner.
    pub a: u64,
    /// Second word of the owner.
    pub b: u64,
}

/// Index of a hand of the calling thread. Not clearing it is a leak until the thread ends.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a hand stays in use until it is cleared"]
pub struct Hand(u8);

impl Hand {
    /// Its index, below [`HANDS_MAX`].
    pub fn index(&self) -> usize {
        self.0 as usize
    }
}

impl Thread<'_> {
    /// Takes `content` into a free hand. Later stores of this thread are ordered behind it (as
    /// others see them; the medium knows nothing of hands). `Full` if all are in use.
    #[inline]
    pub fn hand_set(&self, content: HandContent) -> Result<Hand> {
        debug_assert_ne!(content.kind, 0);
        let words = self.words();
        let used = words[HANDS_USED].load(Ordering::Relaxed);
        let index = (!used).trailing_zeros() as usize;
        if index >= HANDS_MAX {
            return Err(Error::Full { what: "no room for another thing in this thread's hands" });
        }
        let [kind, a, b] = hand_words(words, index);
        a.store(content.a, Ordering::Relaxed);
        b.store(content.b, Ordering::Relaxed);
        // The note first: between the two a kill leaves nothing to settle.
        words[HANDS_USED].store(used | 1 << index, Ordering::Relaxed);
        kind.store(content.kind, Ordering::Release);
        crate::facade::fence(Ordering::Release);
        Ok(Hand(index as u8))
    }

    /// Replaces the first word of a hand, in one store.
    #[inline]
    pub fn hand_update_a(&self, hand: &Hand, a: u64) {
        hand_words(self.words(), hand.index())[1].store(a, Ordering::Release);
        crate::facade::fence(Ordering::Release);
    }

    /// Replaces the second word of a hand, in one store.
    #[inline]
    pub fn hand_update_b(&self, hand: &Hand, b: u64) {
        hand_words(self.words(), hand.index())[2].store(b, Ordering::Release);
        crate::facade::fence(Ordering::Release);
    }

    /// What is in a hand.
    pub fn hand_content(&self, hand: &Hand) -> HandContent {
        content(self.words(), hand.index())
    }

    /// Empties a hand: what it held has found its place, as stores before this one say.
    #[inline]
    pub fn hand_clear(&self, hand: Hand) {
        let words = self.words();
        hand_words(words, hand.index())[0].store(0, Ordering::Release);
        let used = words[HANDS_USED].load(Ordering::Relaxed);
        words[HANDS_USED].store(used & !(1 << hand.0), Ordering::Relaxed);
    }
}

#[inline(always)]
fn hand_words(words: &[Word; SLOT_WORDS], index: usize) -> [&Word; HAND_WORDS] {
    let at = HANDS + index * HAND_WORDS;
    [&words[at], &words[at + 1], &words[at + 2]]
}

/// What hand `index` of a slot holds; kind 0 if nothing.
pub(crate) fn content(words: &[Word; SLOT_WORDS], index: usize) -> HandContent {
    let [kind, a, b] = hand_words(words, index);
    let kind = kind.load(Ordering::Acquire);
    HandContent { kind, a: a.load(Ordering::Relaxed), b: b.load(Ordering::Relaxed) }
}

/// Empties hand `index` of a dead thread's slot.
pub(crate) fn clear(words: &[Word; SLOT_WORDS], index: usize) {
    hand_words(words, index)[0].store(0, Ordering::Release);
}

/// Replaces the first word of hand `index` of a dead thread's slot.
pub(crate) fn update_a(words: &[Word; SLOT_WORDS], index: usize, a: u64) {
    hand_words(words, index)[1].store(a, Ordering::Release);
}
