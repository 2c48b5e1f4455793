//! Where a slab and its parts stand in the arena, and which of them have memory.
//!
//! For the rest of [`super`], which never computes an offset itself. Every place is checked against the arena when the slab is made, and
//! by whoever reads a word; memory comes by groups, in their order.

use super::SlabRef;
use crate::arena::Arena;
use crate::error::{Error, Result};
use crate::facade::{Ordering, Word};
use crate::layout::{ArenaOffset, Region, align_up};

/// Bytes of a slab's head.
pub const SLAB_HEAD_BYTES: u64 = 128;
pub(super) const HINT_AT: u64 = 0;
/// In a line that changes rarely: it is read with each use of an object.
const RESERVED_AT: u64 = 64;
/// Objects of a group: they get memory together.
pub(super) const GROUP: u64 = 64;
/// What stands in front of a group's objects: the line with their bits, and their states.
const STATES_IN_GROUP: u64 = 64;
const OBJECTS_IN_GROUP: u64 = STATES_IN_GROUP + GROUP * 8;
/// Most objects of one slab.
pub const SLAB_OBJECTS_MAX: u64 = (1 << 24) - 2;

/// Where a slab and its parts stand. Computed by every process from the same region.
#[derive(Debug, Clone, Copy)]
pub struct Slab {
    pub(super) head: ArenaOffset,
    groups: ArenaOffset,
    group_bytes: u64,
    object_bytes: u64,
    pub(super) count: u64,
}

fn group_bytes(object_bytes: u64) -> u64 {
    align_up(OBJECTS_IN_GROUP + GROUP * object_bytes, 64)
}

impl Slab {
    /// Bytes that a region needs for `count` objects of `object_bytes`, besides the head.
    pub fn region_bytes(count: u64, object_bytes: u64) -> u64 {
        let bytes = align_up(object_bytes, 8);
        let rest = count % GROUP;
        count / GROUP * group_bytes(bytes) + if rest == 0 { 0 } else { OBJECTS_IN_GROUP + rest * bytes }
    }

    /// The slab in `region`, with as many objects of `object_bytes` as fit, and with its head ([`SLAB_HEAD_BYTES`]) in `head`; all zero is
    /// an empty slab. Both must be aligned to 64. `Full` if the head cannot get memory.
    pub fn new(arena: &Arena, head: Region, region: Region, object_bytes: u64) -> Result<Self> {
        let bad = || Error::Region("slab".to_owned());
        let object_bytes = align_up(object_bytes.clamp(8, 1 << 32), 8);
        let aligned = head.start.get().is_multiple_of(64) && region.start.get().is_multiple_of(64);
        if !aligned || head.bytes < SLAB_HEAD_BYTES || region.bytes < Self::region_bytes(1, object_bytes) {
            return Err(bad());
        }
        let group_bytes = group_bytes(object_bytes);
        let whole = region.bytes / group_bytes;
        let rest = (region.bytes % group_bytes).saturating_sub(OBJECTS_IN_GROUP) / object_bytes;
        let count = (whole * GROUP + rest.min(GROUP)).min(SLAB_OBJECTS_MAX);
        let slab = Self { head: head.start, groups: region.start, group_bytes, object_bytes, count };
        arena.word(slab.object_at(count - 1).add(object_bytes - 8))?;
        arena.reserve_first(slab.head, SLAB_HEAD_BYTES)?;
        Ok(slab)
    }

    /// Where a group begins: with its bits.
    #[inline]
    pub(super) fn group_at(&self, group: u64) -> ArenaOffset {
        self.groups.add(group * self.group_bytes)
    }

    #[inline]
    pub(super) fn state_at(&self, index: u64) -> ArenaOffset {
        self.group_at(index / GROUP).add(STATES_IN_GROUP + index % GROUP * 8)
    }

    #[inline]
    pub(super) fn object_at(&self, index: u64) -> ArenaOffset {
        self.group_at(index / GROUP).add(OBJECTS_IN_GROUP + index % GROUP * self.object_bytes)
    }

    /// The object whose state stands at `at`, if one does.
    pub(super) fn index_of_state(&self, at: u64) -> Option<u64> {
        let distance = at.checked_sub(self.groups.get())?;
        let within = (distance % self.group_bytes).checked_sub(STATES_IN_GROUP)?;
        let index = distance / self.group_bytes * GROUP + within / 8;
        (within < GROUP * 8 && within.is_multiple_of(8) && index < self.count).then_some(index)
    }

    /// The states of the objects that have memory.
    pub(super) fn states<'a>(&self, arena: &'a Arena) -> Result<impl Iterator<Item = (u64, &'a Word)> + use<'a>> {
        Ok(self.states_by_group(arena)?.flat_map(|(group, states)| {
            states.iter().enumerate().map(move |(index, state)| (group * GROUP + index as u64, state))
        }))
    }

    /// The same by groups.
    pub(super) fn states_by_group<'a>(
        &self,
        arena: &'a Arena,
    ) -> Result<impl Iterator<Item = (u64, &'a [Word])> + use<'a>> {
        let (slab, reserved) = (*self, self.reserved(arena)?);
        Ok((0..reserved.div_ceil(GROUP)).map(move |group| {
            let count = (reserved - group * GROUP).min(GROUP);
            // Inside: the last object is, as was looked at first.
            (group, arena.words(slab.state_at(group * GROUP), count).unwrap_or_default())
        }))
    }

    /// Number of objects.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// First byte of the object that `reference` names, live or not; an error if there is none.
    #[inline]
    pub fn object(&self, reference: SlabRef) -> Result<ArenaOffset> {
        let index = reference.index();
        if index >= self.count {
            return Err(Error::Corrupt { what: "reference to a slab object", at: self.head.get() });
        }
        Ok(self.object_at(index))
    }

    #[inline]
    pub(super) fn state<'a>(&self, arena: &'a Arena, index: u64) -> Result<&'a Word> {
        arena.word(self.state_at(index))
    }

    /// Number of objects that have memory.
    #[inline]
    pub(super) fn reserved(&self, arena: &Arena) -> Result<u64> {
        Ok(arena.word(self.head.add(RESERVED_AT))?.load(Ordering::Acquire).min(self.count))
    }

    /// Gets memory for the objects of bitmap word `place`, and for all before them.
    pub(super) fn reserve_group(&self, arena: &Arena, place: u64) -> Result<()> {
        let reserved = self.reserved(arena)?;
        let wanted = ((place + 1) * GROUP).min(self.count);
        if reserved < wanted {
            let from = self.group_at(reserved / GROUP);
            let to = self.object_at(wanted - 1).add(self.object_bytes);
            arena.reserve(from, to.get() - from.get())?;
            arena.word(self.head.add(RESERVED_AT))?.fetch_max(wanted, Ordering::AcqRel);
        }
        Ok(())
    }
}
