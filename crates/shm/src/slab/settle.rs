//! What becomes of the objects that a dead thread had in hand: free, or as live as they were.
//!
//! For the owners of slabs, whose [`Reaper`] knows what an object refers to. The dead thread's hands say which objects; their state words,
//! whether it still had them.

use super::{HAND_KIND, Slab, SlabRef};
use crate::error::Result;
use crate::facade::Ordering;
use crate::layout::ArenaOffset;
use crate::reap::{DeadThread, Reaper};
use crate::slab_word;

/// An object that a dead thread had in hand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeldByDead {
    /// First byte of the object.
    pub at: ArenaOffset,
    /// Its name.
    pub reference: SlabRef,
    /// Whether it had been live and was being taken apart; else it was being made.
    pub was_live: bool,
}

/// What becomes of an object that a dead thread had in hand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AfterDeath {
    /// It is free.
    Freed,
    /// It is live, as it was before.
    Live,
}

impl Slab {
    /// For the owner's [`Reaper`]: frees the objects of this slab that `dead` had in hand, each
    /// after `clean` has undone what it refers to.
    pub fn settle(&self, dead: &DeadThread<'_>, mut clean: impl FnMut(HeldByDead) -> Result<()>) -> Result<()> {
        self.settle_or_revive(dead, |held| clean(held).map(|()| AfterDeath::Freed))
    }

    /// [`Slab::settle`] for owners who may want an object that was being taken apart back to be live.
    pub fn settle_or_revive(
        &self,
        dead: &DeadThread<'_>,
        mut clean: impl FnMut(HeldByDead) -> Result<AfterDeath>,
    ) -> Result<()> {
        let arena = dead.reaper().arena();
        for (hand, content) in dead.hands() {
            let Some(index) = self.index_of_state(content.a).filter(|_| content.kind == HAND_KIND) else { continue };
            let value = self.state(arena, index)?.load(Ordering::Acquire);
            if let Some(was_live) = slab_word::held_by(value, dead.slot()) {
                let reference = SlabRef::new(index, slab_word::generation(value));
                match clean(HeldByDead { at: self.object(reference)?, reference, was_live })? {
                    AfterDeath::Freed => self.free_index(arena, index, dead.slot())?,
                    AfterDeath::Live => slab_word::publish(self.state(arena, index)?, reference.generation()),
                }
            }
            dead.clear_hand(hand);
        }
        Ok(())
    }
}

/// Settles a slab whose objects need nothing undone.
#[derive(Debug)]
pub struct SlabReaper(pub Slab);

impl Reaper for SlabReaper {
    fn settle(&self, dead: &DeadThread<'_>) -> Result<()> {
        self.0.settle(dead, |_| Ok(()))
    }
}
