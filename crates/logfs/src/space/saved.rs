//! The whole map at once: built after a crash, saved by a clean detach.
//!
//! May touch: all pools. Relies on: nobody else using the space meanwhile (attach and detach are behind a gate).

use gannet_shm::Ordering::Relaxed;

use super::pool::masks;
use super::{Extent, Space, SpaceError};

impl<'a> Space<'a> {
    /// Replaces the map by saved words, lowest block first, 1 is free. Words that are missing count as used; bits
    /// behind the end of the volume are ignored. Returns the number of free blocks.
    pub fn load(&self, words: impl IntoIterator<Item = u64>) -> u64 {
        let mut words = words.into_iter();
        let mut free = 0;
        for index in 0..self.layout.pools() {
            let pool = self.pool(index);
            for word in pool.bits {
                word.store(words.next().unwrap_or(0), Relaxed);
            }
            free += pool.recount();
        }
        free
    }

    /// The words of pool `index`, lowest block first, without those behind the end of the volume; bits behind it are 0.
    pub fn words_of(&self, index: u64) -> impl Iterator<Item = u64> + use<'a> {
        let pool = self.pool(index);
        pool.bits.iter().take(pool.blocks.div_ceil(64) as usize).map(|word| word.load(Relaxed))
    }

    /// Makes all blocks of an extent used or free. Only the bits: [`Space::recount_all`] is to follow.
    fn mark(&self, extent: Extent, free: bool) -> Result<(), SpaceError> {
        self.layout.check(extent)?;
        for (index, part) in self.parts(extent) {
            let pool = self.pool(index);
            for (word, mask) in masks(part.start - pool.first_block, u64::from(part.count)) {
                let word = &pool.bits[word];
                let old = word.load(Relaxed);
                word.store(if free { old | mask } else { old & !mask }, Relaxed);
            }
        }
        Ok(())
    }

    /// Makes everything free: the beginning of a build. [`Space::recount_all`] ends it.
    pub fn mark_all_free(&self) {
        for index in 0..self.layout.pools() {
            self.pool(index).bits.iter().for_each(|word| word.store(u64::MAX, Relaxed));
        }
    }

    /// Makes an extent free while the map is built.
    ///
    /// # Errors
    /// [`SpaceError::Invalid`].
    pub fn mark_free(&self, extent: Extent) -> Result<(), SpaceError> {
        self.mark(extent, true)
    }

    /// Makes an extent used while the map is built. May be said of a block any number of times, but of the same word
    /// of bits (64 blocks) only by one thread at a time; see [`Space::mark_used_shared`].
    ///
    /// # Errors
    /// [`SpaceError::Invalid`].
    pub fn mark_used(&self, extent: Extent) -> Result<(), SpaceError> {
        self.mark(extent, false)
    }

    /// [`Space::mark_used`] for several threads at once. Returns how many of the blocks were marked before.
    ///
    /// # Errors
    /// [`SpaceError::Invalid`].
    pub fn mark_used_shared(&self, extent: Extent) -> Result<u64, SpaceError> {
        self.layout.check(extent)?;
        let mut already = 0;
        for (index, part) in self.parts(extent) {
            let pool = self.pool(index);
            for (word, mask) in masks(part.start - pool.first_block, u64::from(part.count)) {
                let old = pool.bits[word].fetch_and(!mask, Relaxed);
                already += u64::from((mask & !old).count_ones());
            }
        }
        Ok(already)
    }

    /// Makes counters and summaries from the bits: the end of a build. Returns the number of free blocks.
    pub fn recount_all(&self) -> u64 {
        (0..self.layout.pools()).map(|index| self.pool(index).recount()).sum()
    }

    /// Makes one pool's counters and summaries again from its bits. The caller has the pool to itself.
    pub fn recount(&self, pool: u64) -> u64 {
        self.pool(pool).recount()
    }

    /// Calls `visit` with every run of blocks that are not free, in ascending order. A run of more than one pool
    /// comes in pieces.
    pub fn for_each_used_run(&self, visit: &mut dyn FnMut(Extent)) {
        for index in 0..self.layout.pools() {
            let pool = self.pool(index);
            let mut at = 0;
            while at < pool.blocks {
                at += pool.run(at, pool.blocks - at, true);
                let mut used = pool.run(at, pool.blocks - at, false);
                while used > 0 {
                    let count = used.min((1 << 24) - 1);
                    visit(Extent { start: pool.first_block + at, count: count as u32 });
                    at += count;
                    used -= count;
                }
            }
        }
    }

    /// Checks that counters and summaries are what the bits say, and that no block is both free and deferred. For
    /// tests and fsck; the caller has the space to itself.
    ///
    /// # Errors
    /// The number of the first pool that is wrong.
    pub fn verify(&self) -> Result<(), u64> {
        let is_wrong = |pool: &super::pool::Pool<'_>| !pool.is_unread() && !pool.is_consistent();
        match (0..self.layout.pools()).find(|&index| is_wrong(&self.pool(index))) {
            Some(index) => Err(index),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
impl Space<'_> {
    /// Blocks that are freed but pinned.
    pub(super) fn deferred_blocks(&self) -> Vec<u64> {
        let pools = (0..self.layout.pools()).map(|index| self.pool(index));
        pools
            .flat_map(|pool| {
                let bit = |at: u64| pool.deferred[(at / 64) as usize].load(Relaxed) >> (at % 64) & 1 == 1;
                (0..pool.blocks).filter(|&at| bit(at)).map(|at| pool.first_block + at).collect::<Vec<_>>()
            })
            .collect()
    }
}
