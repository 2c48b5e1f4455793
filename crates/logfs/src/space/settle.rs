//! What becomes of blocks that a dead thread had in its hands, and of pools that it had locked.
//!
//! May touch: pools, and the dead thread's hands. Relies on: the medium being settled, so that the log of every inode
//! the dead thread still has locked says what it references; and those inodes staying locked meanwhile.
//!
//! The rule for old and new blocks alike: referenced by such a log, drop them from the hand; else they are free. It
//! is applied under the pool's lock *in the dead thread's name*. If the reaper dies, the lock is still the dead
//! thread's, nobody has taken the blocks, and the next reaper can do it all again.

use gannet_shm::DeadThread;

use super::{Extent, Space, SpaceError};

impl Space<'_> {
    /// Settles everything of `dead` that concerns blocks: its hands, the pools it had locked. `referenced` says
    /// whether the settled log of an inode that `dead` still has locked references a block. Can be repeated.
    ///
    /// To be called at the stage of hands. Pools are unlocked at the end, other locks are left alone.
    ///
    /// # Errors
    /// [`SpaceError::Shared`] if a lock is not to be had. Then nothing is lost; it can be tried again.
    pub fn settle(&self, dead: &DeadThread<'_>, referenced: &dyn Fn(u64) -> bool) -> Result<(), SpaceError> {
        // What it has locked first: waiting for one pool while it has another could be waiting for each other.
        for index in 0..self.layout.pools() {
            if dead.holds(self.lock_of(index)) {
                self.settle_pool(dead, index, referenced)?;
            }
        }
        // Every round settles one pool's part of a hand, so this ends; parts are at most this many.
        for _ in 0..=gannet_shm::HANDS_MAX as u64 * (self.layout.pools() + 1) {
            let hand = dead.hands().find(|(_, content)| content.kind == self.layout.hand_kind());
            let Some((hand, content)) = hand else { return Ok(()) };
            let extent = Extent::unpack(content.a).filter(|&extent| self.layout.check(extent).is_ok());
            let Some(extent) = extent else {
                // No thread stores such a hand.
                dead.clear_hand(hand);
                continue;
            };
            let index = self.layout.pool_of(extent.start);
            dead.lock(self.lock_of(index))?;
            self.settle_pool(dead, index, referenced)?;
        }
        Ok(())
    }

    /// Settles a pool whose lock is the dead thread's: every hand whose blocks begin there, then the pool itself.
    fn settle_pool(
        &self,
        dead: &DeadThread<'_>,
        index: u64,
        referenced: &dyn Fn(u64) -> bool,
    ) -> Result<(), SpaceError> {
        self.ready(dead, index)?;
        let pool = self.pool(index);
        // Before anything is freed: counters must be right, and pins count from their extent's store on.
        pool.repair();
        for (hand, content) in dead.hands().filter(|(_, content)| content.kind == self.layout.hand_kind()) {
            let extent = Extent::unpack(content.a).filter(|&extent| self.layout.check(extent).is_ok());
            let Some(extent) = extent else { continue };
            if self.layout.pool_of(extent.start) != index {
                continue;
            }
            let part = self.first_part(extent);
            for block in part.start..part.end() {
                if !referenced(block) {
                    pool.free_unpinned(block - pool.first_block, 1);
                }
            }
            if part.count == extent.count {
                dead.clear_hand(hand);
            } else {
                dead.hand_update_a(hand, Extent { start: part.end(), count: extent.count - part.count }.pack());
            }
        }
        dead.release(self.lock_of(index))?;
        Ok(())
    }
}
