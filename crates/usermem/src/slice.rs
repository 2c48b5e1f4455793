//! [`UserSlice`]: a range of addresses that may be bad.
//!
//! Pure arithmetic; touches no memory. Laid out as the kernel's `struct iovec`, so that arrays of them need no conversion.

/// A range of bytes in the caller's address space, with the layout of `struct iovec`.
///
/// Nothing is promised about the bytes: they may be unmapped or change at any time. The promise that they may be
/// *accessed* is made where a [`crate::Source`] or [`crate::Destination`] is built from the range.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct UserSlice {
    address: usize,
    length: usize,
}

const _: () = assert!(size_of::<UserSlice>() == 16 && align_of::<UserSlice>() == 8);

impl UserSlice {
    /// A range of no bytes.
    pub const EMPTY: UserSlice = UserSlice { address: 0, length: 0 };

    /// The `length` bytes at `address`. Harmless by itself: whoever copies through it promises that it may be accessed.
    #[inline]
    #[must_use]
    pub const fn new(address: usize, length: usize) -> UserSlice {
        UserSlice { address, length }
    }

    /// The `length` bytes at `pointer`.
    #[inline]
    #[must_use]
    pub fn from_raw<T>(pointer: *const T, length: usize) -> UserSlice {
        UserSlice { address: pointer.addr(), length }
    }

    /// Address of the first byte.
    #[inline]
    #[must_use]
    pub const fn address(self) -> usize {
        self.address
    }

    /// Number of bytes.
    #[inline]
    #[must_use]
    pub const fn length(self) -> usize {
        self.length
    }

    /// Whether it has no bytes.
    #[inline]
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.length == 0
    }

    /// The first `length` bytes, or all if there are fewer.
    #[inline]
    #[must_use]
    pub fn truncated(self, length: usize) -> UserSlice {
        UserSlice { address: self.address, length: self.length.min(length) }
    }

    /// What follows the first `count` bytes; empty if there are fewer.
    #[inline]
    #[must_use]
    pub fn skipped(self, count: usize) -> UserSlice {
        let count = count.min(self.length);
        UserSlice { address: self.address.wrapping_add(count), length: self.length - count }
    }
}
