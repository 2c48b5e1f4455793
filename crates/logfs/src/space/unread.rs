//! Pools whose bits stand on the medium alone: a clean detach saved them, and nobody has needed them since.
//!
//! May touch: the pool, under its lock. Relies on: nobody changing a pool without its lock, for whoever has it for the first time reads the
//! bits; and on the saved ones staying as they are until all of the pool's bits are saved again.
//!
//! So opening a volume costs the same whatever its size, in time and in memory. The word that says where the bits stand comes last:
//! who is killed while reading has read nothing.

use gannet_shm::{DeadThread, Guard, Ordering, Thread};

use super::pool::{FREE, HASH, Pool, STATE};
use super::{Extent, Space, SpaceError};

/// A pool's bits are in the arena.
const READ: u64 = 0;
/// They stand on the medium.
const UNREAD: u64 = 1;
/// They stood there, and were not what their hash says: nothing of the pool is free but what was freed since.
const DAMAGED: u64 = 2;

/// Where the bits of pools stand that were not read yet.
pub trait SavedBits: Send + Sync {
    /// Calls `store` with the words of pool `index`, 1 is free, and their places in it. Returns whether they are what `hash` says.
    fn read(&self, index: u64, hash: u64, store: &mut dyn FnMut(usize, u64)) -> bool;

    /// What is never free, whatever the bits say.
    fn never_free(&self) -> &[Extent];
}

impl<'a> Space<'a> {
    /// The same, where pools may stand on the medium.
    pub fn with_saved(self, saved: Option<&'a dyn SavedBits>) -> Self {
        Space { saved, ..self }
    }

    /// Leaves pool `index` where it stands, with so many free blocks, while the space is made.
    pub fn leave(&self, index: u64, free: u64, hash: u64) {
        let pool = self.pool(index);
        pool.control[FREE].store(free.min(pool.blocks), Ordering::Relaxed);
        pool.control[HASH].store(hash, Ordering::Relaxed);
        pool.control[STATE].store(UNREAD, Ordering::Release);
    }

    /// What [`Space::leave`] was told of a pool that is still where it was.
    pub fn left(&self, index: u64) -> Option<(u64, u64)> {
        let pool = self.pool(index);
        let load = |word: usize| pool.control[word].load(Ordering::Relaxed);
        pool.is_unread().then(|| (load(FREE), load(HASH)))
    }

    /// Whether a pool was not what its hash says.
    pub fn is_damaged(&self) -> bool {
        (0..self.layout.pools()).any(|index| self.pool(index).control[STATE].load(Ordering::Relaxed) == DAMAGED)
    }

    /// Why there is nothing free.
    #[cold]
    pub(super) fn full(&self) -> SpaceError {
        if self.is_damaged() { SpaceError::Damaged } else { SpaceError::Full }
    }

    /// The lock of pool `index`, and a view of it with its bits.
    #[inline]
    pub(super) fn lock_pool<'t>(&self, thread: &Thread<'t>, index: u64) -> Result<(Guard<'t>, Pool<'a>), SpaceError> {
        let pool = self.pool(index);
        let guard = thread.lock(self.lock_of(index))?;
        if pool.is_unread() {
            self.read(index)?;
        }
        Ok((guard, pool))
    }

    /// Reads a pool that is locked in the name of a dead thread.
    pub(super) fn ready(&self, _: &DeadThread<'_>, index: u64) -> Result<(), SpaceError> {
        if self.pool(index).is_unread() { self.read(index) } else { Ok(()) }
    }

    /// Whether a block is free, for a caller who has the space to itself.
    pub fn is_free_alone(&self, block: u64) -> bool {
        let index = self.layout.pool_of(block);
        let is_read = block < self.layout.blocks() && (!self.pool(index).is_unread() || self.read(index).is_ok());
        is_read && self.is_free(block)
    }

    /// Reads the bits of a pool whose lock the caller has.
    #[cold]
    #[inline(never)]
    fn read(&self, index: u64) -> Result<(), SpaceError> {
        let (pool, layout) = (self.pool(index), &self.layout);
        let reserve =
            |from: usize, to: usize| self.arena.reserve(self.start.add(from as u64 * 8), (to - from) as u64 * 8);
        reserve(layout.summary_at(index), layout.summary_at(index + 1))?;
        reserve(layout.bits_at(index), layout.bits_at(index + 1))?;
        let hash = pool.control[HASH].load(Ordering::Relaxed);
        let mut store = |at: usize, word: u64| {
            if let Some(bits) = pool.bits.get(at) {
                bits.store(word, Ordering::Relaxed);
            }
        };
        let is_whole = self.saved.is_some_and(|saved| saved.read(index, hash, &mut store));
        if !is_whole {
            pool.bits.iter().for_each(|word| word.store(0, Ordering::Relaxed));
        }
        for extent in self.saved.map_or(&[][..], SavedBits::never_free) {
            for (at, mask) in pool.masks_of(*extent) {
                let bits = &pool.bits[at];
                // Unnoticed [word]: the maps that are saved say so themselves.
                bits.store(bits.load(Ordering::Relaxed) & !mask, Ordering::Relaxed);
            }
        }
        pool.recount();
        pool.control[STATE].store(if is_whole { READ } else { DAMAGED }, Ordering::Release);
        Ok(())
    }
}

impl Pool<'_> {
    /// Whether the bits stand on the medium alone.
    #[inline]
    pub(super) fn is_unread(&self) -> bool {
        self.control[STATE].load(Ordering::Acquire) == UNREAD
    }
}
