//! What one process knows of a slab: which objects its threads freed last, and for whom there were none a moment ago.
//!
//! For those who allocate and free all the time. Nothing of it is shared with other processes, and all of it may be wrong: an object that is
//! remembered may be taken, and what was full may have room again, which who is refused learns a moment later.

use std::sync::atomic::{AtomicU64, Ordering};

use super::{FULL, Held, Share, Slab};
use crate::error::Result;
use crate::slab_word;
use crate::thread::Thread;

/// Objects that are remembered, and shares.
const RECENT: usize = 16;
/// For how long nobody looks for an object of a share that had none, in milliseconds.
const REFUSED_MS: u64 = 10;
/// Bits of the time in a word of [`Recent`]; those above say whose.
const TIME_BITS: u32 = 40;

/// Objects of one slab that threads of this process freed last: where they take the next from, without a search and without
/// touching the bitmap. Forgetting one leaves a bit set, which a search that finds nothing repairs.
///
/// And shares of it that were found to be full: a search that finds nothing looks at all there are, and who is refused may try again and again.
/// Until this process frees an object, or some milliseconds have gone by, it is refused without one.
#[derive(Debug, Default)]
pub struct Recent {
    /// Indices, plus one; 0 is none. A thread has a word that it shares with few.
    freed: [AtomicU64; RECENT],
    /// When a search found nothing, and whose share it was. 0 is none.
    refused: [AtomicU64; RECENT],
    /// Not 0 while one of those may be said.
    refusals: AtomicU64,
}

impl Recent {
    /// Whether one is remembered for a thread that is of its share: most likely it is free.
    #[inline]
    pub fn has(&self, thread: &Thread<'_>, share: &Share) -> bool {
        let index = self.freed[thread.slot() as usize % RECENT].load(Ordering::Relaxed);
        index != 0 && share.has(index - 1)
    }

    /// Whether nothing was found for a share a moment ago, and this process has freed nothing since.
    fn is_refused(&self, share: &Share) -> bool {
        if self.refusals.load(Ordering::Relaxed) == 0 {
            return false;
        }
        let (word, name) = self.refusal(share);
        let since = now_ms().wrapping_sub(word.load(Ordering::Relaxed) ^ name);
        // Somebody else's, and one of a clock that was ahead, is further away than any time.
        since < REFUSED_MS
    }

    #[cold]
    fn note_refusal(&self, share: &Share) {
        let (word, name) = self.refusal(share);
        word.store(now_ms() | name, Ordering::Relaxed);
        self.refusals.store(1, Ordering::Relaxed);
    }

    fn refusal(&self, share: &Share) -> (&AtomicU64, u64) {
        let name = share.name() & (u64::MAX >> TIME_BITS);
        let mixed = name.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
        (&self.refused[mixed as usize % RECENT], name << TIME_BITS)
    }

    #[cold]
    fn forget_refusals(&self) {
        self.refusals.store(0, Ordering::Relaxed);
        for word in &self.refused {
            word.store(0, Ordering::Relaxed);
        }
    }
}

/// A clock that says how much time has gone by, in milliseconds, never 0.
fn now_ms() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::MonotonicCoarse);
    let now_ms = (now.tv_sec as u64).wrapping_mul(1000) + now.tv_nsec as u64 / 1_000_000;
    (now_ms & ((1 << TIME_BITS) - 1)).max(1)
}

impl Slab {
    /// [`Slab::allocate_of`], an object first that [`Slab::free_to`] freed to `recent`. `Full` without a search where one found nothing a moment ago.
    #[inline]
    pub fn allocate_from(&self, thread: &Thread<'_>, recent: &Recent, share: &Share) -> Result<Held> {
        let word = &recent.freed[thread.slot() as usize % RECENT];
        if let Some(held) = self.take_remembered(thread, word, share)? {
            return Ok(held);
        }
        if !recent.is_refused(share) {
            let found = self.find(thread, share)?;
            if found.is_none() {
                recent.note_refusal(share);
            }
            return found.ok_or(FULL);
        }
        // What other threads of this process freed before, whose bits are still set.
        for word in &recent.freed {
            if let Some(held) = self.take_remembered(thread, word, share)? {
                return Ok(held);
            }
        }
        Err(FULL)
    }

    /// The object that a word of a [`Recent`] names, if it is one of a share and free.
    #[inline]
    fn take_remembered(&self, thread: &Thread<'_>, word: &AtomicU64, share: &Share) -> Result<Option<Held>> {
        let index = word.load(Ordering::Relaxed);
        if index == 0 || !share.has(index - 1) {
            return Ok(None);
        }
        word.store(0, Ordering::Relaxed);
        // Of two threads that share a word, and of others that search, one gets it.
        if index <= self.count { self.try_take(thread, index - 1) } else { Ok(None) }
    }

    /// [`Slab::free`]; the object's bit stays set, and `recent` remembers it for the next [`Slab::allocate_from`].
    #[inline]
    pub fn free_to(&self, thread: &Thread<'_>, recent: &Recent, held: Held) -> Result<()> {
        let arena = thread.arena();
        let word = &recent.freed[thread.slot() as usize % RECENT];
        slab_word::free(self.state(arena, held.reference.index())?, thread.slot());
        let before = word.load(Ordering::Relaxed);
        word.store(held.reference.index() + 1, Ordering::Relaxed);
        if before != 0 && before <= self.count {
            self.clear_bit(arena, before - 1)?;
        }
        if recent.refusals.load(Ordering::Relaxed) != 0 {
            recent.forget_refusals();
        }
        thread.hand_clear(held.hand);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_of_a_share_and_forgotten() {
        let (recent, one, other) = (Recent::default(), Share::new(64, &(64..128)), Share::new(64, &(128..192)));
        assert!(!recent.is_refused(&one));
        recent.note_refusal(&one);
        assert!(recent.is_refused(&one) && !recent.is_refused(&other) && !recent.is_refused(&Share::ALL));
        recent.note_refusal(&Share::ALL);
        assert!(recent.is_refused(&one) && recent.is_refused(&Share::ALL));
        // Time goes by.
        let (word, name) = recent.refusal(&one);
        word.store((now_ms() - REFUSED_MS) | name, Ordering::Relaxed);
        assert!(!recent.is_refused(&one) && recent.is_refused(&Share::ALL));
        // A clock that was ahead says nothing.
        word.store((now_ms() + 1000) | name, Ordering::Relaxed);
        assert!(!recent.is_refused(&one));
        recent.forget_refusals();
        assert!(!recent.is_refused(&Share::ALL));
    }
}
