//! Which objects of a slab somebody may take: so that not all of them can be taken by one.
//!
//! Objects are taken by their places, so nobody counts who has how many: what is beyond a share cannot be taken by whoever has it, and
//! stays for others.

use std::ops::Range;

use super::places::GROUP;

/// The objects that may be taken, by groups: those at the beginning, and some of one's own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Share {
    common_end: u64,
    own_start: u64,
    own_end: u64,
}

impl Share {
    /// All there are.
    pub const ALL: Self = Self { common_end: u64::MAX, own_start: u64::MAX, own_end: u64::MAX };

    /// The first `common` objects, and those of `own`. All three numbers count by groups of 64: what is less is left out.
    pub const fn new(common: u64, own: &Range<u64>) -> Self {
        Self { common_end: common / GROUP, own_start: own.start.div_ceil(GROUP), own_end: own.end / GROUP }
    }

    /// Whether the objects of a group are among them.
    #[inline]
    pub(super) const fn has_group(&self, group: u64) -> bool {
        group < self.common_end || self.own_start <= group && group < self.own_end
    }

    /// Where one's own begin.
    #[inline]
    pub(super) const fn first_own_group(&self) -> u64 {
        self.own_start
    }

    /// Whether an object is.
    #[inline]
    pub(super) const fn has(&self, index: u64) -> bool {
        self.has_group(index / GROUP)
    }
}
