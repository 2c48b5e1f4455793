//! What one process knows of a slab: which objects its threads freed last.
//!
//! For those who allocate and free all the time. Nothing of it is shared with other processes, and all of it may be wrong: an object that is
//! remembered may be taken.

use std::sync::atomic::{AtomicU64, Ordering};

use super::{Held, Share, Slab};
use crate::error::Result;
use crate::slab_word;
use crate::thread::Thread;

/// Words of a [`Recent`].
const RECENT: usize = 16;

/// Objects of one slab that threads of this process freed last: where they take the next from, without a search and without
/// touching the bitmap. Forgetting one leaves a bit set, which a search that finds nothing repairs.
///
/// Indices, plus one; 0 is none. A thread has a word that it shares with few.
#[derive(Debug, Default)]
pub struct Recent([AtomicU64; RECENT]);

impl Recent {
    /// Whether one is remembered for a thread that is of its share: most likely it is free.
    #[inline]
    pub fn has(&self, thread: &Thread<'_>, share: &Share) -> bool {
        let index = self.word(thread).load(Ordering::Relaxed);
        index != 0 && share.has(index - 1)
    }

    #[inline]
    fn word(&self, thread: &Thread<'_>) -> &AtomicU64 {
        &self.0[thread.slot() as usize % RECENT]
    }
}

impl Slab {
    /// [`Slab::allocate_of`], the object that `recent` names first: one that [`Slab::free_to`] freed.
    #[inline]
    pub fn allocate_from(&self, thread: &Thread<'_>, recent: &Recent, share: &Share) -> Result<Held> {
        let word = recent.word(thread);
        let index = word.load(Ordering::Relaxed);
        if index != 0 && share.has(index - 1) {
            word.store(0, Ordering::Relaxed);
            // Of two threads that share a word, and of others that search, one gets it.
            if index <= self.count
                && let Some(held) = self.try_take(thread, index - 1)?
            {
                return Ok(held);
            }
        }
        self.allocate_of(thread, share)
    }

    /// [`Slab::free`]; the object's bit stays set, and `recent` remembers it for the next [`Slab::allocate_from`].
    #[inline]
    pub fn free_to(&self, thread: &Thread<'_>, recent: &Recent, held: Held) -> Result<()> {
        let arena = thread.arena();
        let word = recent.word(thread);
        slab_word::free(self.state(arena, held.reference.index())?, thread.slot());
        let before = word.load(Ordering::Relaxed);
        word.store(held.reference.index() + 1, Ordering::Relaxed);
        if before != 0 && before <= self.count {
            self.clear_bit(arena, before - 1)?;
        }
        thread.hand_clear(held.hand);
        Ok(())
    }
}
