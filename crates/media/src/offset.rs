//! [`MediumOffset`]: a place on the medium.

use std::fmt;

/// A byte offset from the start of the volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[repr(transparent)]
pub struct MediumOffset(pub u64);

impl MediumOffset {
    /// The offset `bytes` further on; `None` beyond the 64 bits.
    #[inline]
    #[must_use]
    pub const fn checked_add(self, bytes: u64) -> Option<MediumOffset> {
        match self.0.checked_add(bytes) {
            Some(sum) => Some(MediumOffset(sum)),
            None => None,
        }
    }

    /// The offset `bytes` further on, or the greatest one, which no medium reaches: the access that follows reports it.
    #[inline]
    #[must_use]
    pub const fn plus(self, bytes: u64) -> MediumOffset {
        MediumOffset(self.0.saturating_add(bytes))
    }

    /// Whether it is a multiple of `alignment`, a power of two.
    #[inline]
    #[must_use]
    pub const fn is_aligned(self, alignment: u64) -> bool {
        self.0 & (alignment - 1) == 0
    }
}

impl fmt::Display for MediumOffset {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:#x}", self.0)
    }
}
