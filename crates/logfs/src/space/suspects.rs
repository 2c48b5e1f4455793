//! Blocks that count as used and may be nobody's: what killed users lost, found beside living ones.
//!
//! May touch: all pools, under their locks; the bits of suspects without. Relies on: the caller to trust all that somebody has, before
//! the rest is freed.
//!
//! A snapshot at the beginning, as a concurrent garbage collector takes one: suspect is what is neither free nor deferred at
//! [`Space::suspect`]. Such a block can only change hands by being freed first, and who frees it trusts it: so nobody who allocates has
//! anything to do, and who frees looks at one more word of a line that it has. What no longer is suspect never becomes so again before the
//! next snapshot.
//!
//! Who is killed in between leaves suspects that cost others a little, and nothing else: nobody frees them, the next snapshot replaces them.

use gannet_shm::{Ordering::AcqRel, Ordering::Relaxed, Ordering::Release, Thread};

use super::pool::{PINS_BACKED, Pool, SUSPECTED, masks};
use super::{Extent, Space, SpaceError};

impl Pool<'_> {
    /// Blocks of which somebody says whose they are, counted from the start of the pool.
    #[inline]
    pub(super) fn trust(&self, start: u64, count: u64) {
        if self.control[SUSPECTED].load(Relaxed) != 0 {
            self.trust_suspects(start, count);
        }
    }

    #[cold]
    #[inline(never)]
    fn trust_suspects(&self, start: u64, count: u64) {
        for (word, mask) in masks(start, count) {
            self.suspects[word].fetch_and(!mask, AcqRel);
        }
    }

    /// What is neither free nor waits for a pin, in word `at`.
    fn used_in(&self, at: usize) -> u64 {
        let deferred = if self.control[PINS_BACKED].load(Relaxed) == 0 { 0 } else { self.deferred[at].load(Relaxed) };
        let behind = self.blocks.saturating_sub(at as u64 * 64);
        let inside = if behind >= 64 { u64::MAX } else { (1 << behind) - 1 };
        !self.bits[at].load(Relaxed) & !deferred & inside
    }
}

impl Space<'_> {
    /// Makes everything suspect that is in use.
    ///
    /// # Errors
    /// [`SpaceError::Shared`] if there is no memory, or a lock is not to be had. [`Space::suspect_nobody`] ends what was begun.
    pub fn suspect(&self, thread: &Thread<'_>) -> Result<(), SpaceError> {
        let (from, to) = (self.layout.suspects_at(0), self.layout.suspects_at(self.layout.pools()));
        self.arena.reserve(self.start.add(from as u64 * 8), (to - from) as u64 * 8)?;
        for index in 0..self.layout.pools() {
            let (guard, pool) = self.lock_pool(thread, index)?;
            for (at, suspects) in pool.suspects.iter().enumerate() {
                suspects.store(pool.used_in(at), Relaxed);
            }
            pool.control[SUSPECTED].store(1, Release);
            guard.unlock();
        }
        Ok(())
    }

    /// Blocks of which somebody says whose they are. Needs no lock. What is outside of the volume is nobody's.
    pub fn trust(&self, extent: Extent) {
        if self.layout.check(extent).is_ok() {
            for (index, part) in self.parts(extent) {
                let pool = self.pool(index);
                pool.trust(part.start - pool.first_block, u64::from(part.count));
            }
        }
    }

    /// Frees the suspects that are left and of which `is_lost` says so, and ends the suspicion. Those that somebody has pinned become free when the
    /// last pin goes. Returns how many are free now.
    ///
    /// # Errors
    /// [`SpaceError::Shared`] if a lock is not to be had, and what `is_lost` fails with.
    pub fn free_suspects(
        &self,
        thread: &Thread<'_>,
        is_lost: &mut dyn FnMut(u64) -> Result<bool, SpaceError>,
    ) -> Result<u64, SpaceError> {
        let mut freed = 0;
        for index in 0..self.layout.pools() {
            let (guard, pool) = self.lock_pool(thread, index)?;
            if pool.control[SUSPECTED].load(Relaxed) != 0 {
                for (at, suspects) in pool.suspects.iter().enumerate() {
                    // First, for a kill in between: what is free is suspect to nobody.
                    let (suspects, first) = (suspects.swap(0, AcqRel) & pool.used_in(at), at as u64 * 64);
                    if suspects == 0 {
                        continue;
                    }
                    let mut lost = 0;
                    for bit in (0..64).filter(|bit| suspects >> bit & 1 != 0) {
                        lost |= u64::from(is_lost(pool.first_block + first + bit)?) << bit;
                    }
                    while lost != 0 {
                        let from = u64::from(lost.trailing_zeros());
                        let count = u64::from((lost >> from).trailing_ones());
                        // Somebody may have it mapped still.
                        pool.free_unpinned(first + from, count);
                        lost &= !masks(from, count).next().map_or(0, |(_, mask)| mask);
                    }
                    freed += u64::from((pool.bits[at].load(Relaxed) & suspects).count_ones());
                }
            }
            pool.control[SUSPECTED].store(0, Release);
            guard.unlock();
        }
        Ok(freed)
    }

    /// Ends the suspicion.
    ///
    /// # Errors
    /// [`SpaceError::Shared`] if a lock is not to be had.
    pub fn suspect_nobody(&self, thread: &Thread<'_>) -> Result<(), SpaceError> {
        for index in 0..self.layout.pools() {
            let (guard, pool) = self.lock_pool(thread, index)?;
            pool.control[SUSPECTED].store(0, Release);
            guard.unlock();
        }
        Ok(())
    }
}
