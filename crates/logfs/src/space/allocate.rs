//! Blocks from the pools into a thread's hands, and back.
//!
//! May touch: one pool at a time, under its lock, and the thread's hands. Relies on: the caller to end what it holds
//! (`keep` after its commit, `release` otherwise) before it unlocks the inode.

use gannet_shm::{HandContent, Thread};

use super::near::PoolOrder;
use super::pool::Pool;
use super::{Extent, GROUP_BLOCKS, Held, Space, SpaceError, SpaceLayout};

/// The most blocks of one extent: what the count in a hand and in a file map can say.
pub(super) const EXTENT_BLOCKS_MAX: u64 = (1 << 24) - 1;

/// The part of a pool that is left when only crumbs are.
const POOL_CRUMBS: u64 = 16;

impl SpaceLayout {
    /// As [`Space::hold`], which needs none of the maps.
    ///
    /// # Errors
    /// Those of [`Space::hold`].
    #[inline]
    pub fn hold(&self, thread: &Thread<'_>, extent: Extent) -> Result<Held, SpaceError> {
        self.check(extent)?;
        let hand = thread.hand_set(HandContent { kind: self.hand_kind(), a: extent.pack(), b: 0 })?;
        Ok(Held { extent, hand })
    }
}

impl<'a> Space<'a> {
    /// Takes 1 to `want` contiguous blocks into the thread's hands.
    ///
    /// `goal` is the block one would like to continue with: if it is free, the run from there is taken, where 512 blocks and more
    /// are wanted and it is too short only as far as the end of a group. Else 512
    /// blocks and more come as whole aligned groups if there are any, and fewer from partly used groups before a
    /// whole one is opened. The thread's own pool is looked at first, then the others; where media lie on several NUMA
    /// nodes, those on the caller's before. With `whole_2m` only whole
    /// aligned groups will do, and `want` is rounded down to such.
    ///
    /// # Errors
    /// [`SpaceError::Full`] or [`SpaceError::Damaged`]; [`SpaceError::Shared`] if a lock, a hand, or memory for a pool's bits is not to be had.
    pub fn allocate(
        &self,
        thread: &Thread<'_>,
        want: u32,
        goal: Option<u64>,
        whole_2m: bool,
    ) -> Result<Held, SpaceError> {
        let mut want = u64::from(want).clamp(1, EXTENT_BLOCKS_MAX);
        if want == 1
            && !whole_2m
            && let Some(goal) = goal
            && let Some(held) = self.take_block(thread, goal)?
        {
            return Ok(held);
        }
        if whole_2m {
            want -= want % GROUP_BLOCKS;
            if want == 0 {
                return Err(SpaceError::Full);
            }
        }
        if let Some(goal) = goal.filter(|&goal| self.may_be_free(goal)) {
            let found = |pool: &Pool<'_>| {
                let start = goal - pool.first_block;
                let mut length = pool.run(start, want, true);
                if whole_2m {
                    length = if start.is_multiple_of(GROUP_BLOCKS) { length - length % GROUP_BLOCKS } else { 0 };
                } else if length < want && want >= GROUP_BLOCKS {
                    // What follows comes as whole groups: this ends where one ends, so that a map of the file can have
                    // huge pages in all of its extents.
                    length = length.saturating_sub((start + length) % GROUP_BLOCKS);
                }
                (length > 0).then_some((start, length))
            };
            if let Some(held) = self.take_from(thread, self.layout.pool_of(goal), found)? {
                return Ok(held);
            }
        }
        let order = PoolOrder::of(self.layout.pools(), thread.slot(), self.nearness);
        let in_order = || order.all();
        if want >= GROUP_BLOCKS {
            for index in in_order() {
                if self.free_hint(index) >= GROUP_BLOCKS
                    && self.pool(index).has_whole()
                    && let Some(held) = self.take_from(thread, index, |pool| pool.find_whole(want))?
                {
                    return Ok(held);
                }
            }
        }
        if whole_2m {
            return Err(self.full());
        }
        if want > 1 {
            // A pool that is nearly full has only crumbs; before a file is made of those, others are asked.
            for index in in_order() {
                if self.free_hint(index) >= self.layout.pool_blocks() / POOL_CRUMBS
                    && let Some(held) = self.take_from(thread, index, |pool| {
                        pool.find_small(want).filter(|run| run.1 * 2 >= want.min(GROUP_BLOCKS))
                    })?
                {
                    return Ok(held);
                }
            }
        }
        for index in in_order() {
            if self.free_hint(index) > 0
                && let Some(held) = self.take_from(thread, index, |pool| {
                    // A counter that promises what the summaries do not have is not to be believed, nor are they.
                    pool.find_small(want).or_else(|| {
                        pool.recount();
                        pool.find_small(want)
                    })
                })?
            {
                return Ok(held);
            }
        }
        Err(self.full())
    }

    /// Takes `count` blocks in one run, wherever on the volume one is: all pools are searched, if need be bit by bit.
    ///
    /// # Errors
    /// [`SpaceError::Full`] or [`SpaceError::Damaged`] if there is no such run within a pool; [`SpaceError::Shared`].
    pub fn allocate_run(&self, thread: &Thread<'_>, count: u32) -> Result<Held, SpaceError> {
        let count = u64::from(count).clamp(1, EXTENT_BLOCKS_MAX);
        for index in PoolOrder::of(self.layout.pools(), thread.slot(), self.nearness).all() {
            if self.free_hint(index) >= count
                && let Some(held) = self.take_from(thread, index, |pool| Some((pool.find_run(count)?, count)))?
            {
                return Ok(held);
            }
        }
        Err(self.full())
    }

    /// Takes one block from `first` on, of `count` that lie in one pool, if any is free. Looks at their bits without the lock first.
    ///
    /// # Errors
    /// [`SpaceError::Shared`].
    pub fn allocate_within(&self, thread: &Thread<'_>, first: u64, count: u64) -> Result<Option<Held>, SpaceError> {
        let index = self.layout.pool_of(first);
        let find = |pool: &Pool<'_>| {
            let start = first - pool.first_block;
            let used = pool.run(start, count, false);
            (used < count && start + used < pool.blocks).then_some((start + used, 1))
        };
        let pool = self.pool(index);
        if first >= self.layout.blocks() || (!pool.is_unread() && find(&pool).is_none()) {
            return Ok(None);
        }
        self.take_from(thread, index, find)
    }

    /// Takes one block if it is free, as most appends do behind a file's last: no more of its pool is looked at than its group.
    ///
    /// # Errors
    /// [`SpaceError::Shared`].
    pub fn take_block(&self, thread: &Thread<'_>, block: u64) -> Result<Option<Held>, SpaceError> {
        if !self.may_be_free(block) {
            return Ok(None);
        }
        let (guard, pool) = self.lock_pool(thread, self.layout.pool_of(block))?;
        if !self.is_free(block) {
            guard.unlock();
            return Ok(None);
        }
        let extent = Extent { start: block, count: 1 };
        let hand = thread.hand_set(HandContent { kind: self.layout.hand_kind(), a: extent.pack(), b: 0 })?;
        pool.take(self.layout.within_pool(block), 1);
        guard.unlock();
        Ok(Some(Held { extent, hand }))
    }

    /// Under the lock of pool `index`: what `find` finds goes into the hand, then out of the pool.
    fn take_from(
        &self,
        thread: &Thread<'_>,
        index: u64,
        find: impl Fn(&Pool<'a>) -> Option<(u64, u64)>,
    ) -> Result<Option<Held>, SpaceError> {
        let (guard, pool) = self.lock_pool(thread, index)?;
        let Some((start, count)) = find(&pool) else {
            guard.unlock();
            return Ok(None);
        };
        let extent = Extent { start: pool.first_block + start, count: count as u32 };
        let hand = thread.hand_set(HandContent { kind: self.layout.hand_kind(), a: extent.pack(), b: 0 })?;
        pool.take(start, count);
        guard.unlock();
        Ok(Some(Held { extent, hand }))
    }

    /// Takes blocks that are in use into the thread's hands, because the operation that begins will free them. To be
    /// called before its commit. If the thread dies, the log decides whether they are free.
    ///
    /// # Errors
    /// [`SpaceError::Invalid`] outside of the volume; [`SpaceError::Shared`] if all hands are in use.
    pub fn hold(&self, thread: &Thread<'_>, extent: Extent) -> Result<Held, SpaceError> {
        self.layout.hold(thread, extent)
    }

    /// As [`Held::keep`].
    pub fn keep(&self, thread: &Thread<'_>, held: Held) {
        held.keep(thread);
    }

    /// Empties the hand of blocks of which the settled log references only the first `used`; the rest is free again.
    ///
    /// # Errors
    /// As [`Space::release`].
    pub fn keep_first(&self, thread: &Thread<'_>, held: Held, used: u32) -> Result<(), SpaceError> {
        if used >= held.extent.count {
            self.keep(thread, held);
            return Ok(());
        }
        let rest = Extent { start: held.extent.start + u64::from(used), count: held.extent.count - used };
        thread.hand_update_a(&held.hand, rest.pack());
        self.release(thread, Held { extent: rest, hand: held.hand })
    }

    /// Frees blocks that nothing durable references any more, or never did. What somebody has pinned becomes free
    /// when the last pin goes.
    ///
    /// # Errors
    /// [`SpaceError::Shared`] if a lock is not to be had; the blocks then stay in the hand.
    pub fn release(&self, thread: &Thread<'_>, held: Held) -> Result<(), SpaceError> {
        let Held { extent, hand } = held;
        let mut rest = extent;
        loop {
            let part = self.first_part(rest);
            let index = self.layout.pool_of(part.start);
            let (guard, pool) = self.lock_pool(thread, index)?;
            pool.free_unpinned(part.start - pool.first_block, u64::from(part.count));
            // The hand lets go under the lock: once others can take the blocks nobody may free them again.
            if part.count == rest.count {
                thread.hand_clear(hand);
                guard.unlock();
                return Ok(());
            }
            rest = Extent { start: part.end(), count: rest.count - part.count };
            thread.hand_update_a(&hand, rest.pack());
            guard.unlock();
        }
    }
}
