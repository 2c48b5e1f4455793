//! The only atomics of this crate: words of shared memory as typed views.
//!
//! Two reasons for a type of our own. A model checker runs the lock's and the slab's words with one
//! of its own (`tests/models.rs`). And in test builds, or with the feature `abandon`, every store is counted, so that a
//! test can abandon a thread after any single store, let it pause there, or leave the store out (see
//! [`crate::testing`]). In other builds a [`Word`] is an `AtomicU64` and nothing more.

use std::sync::atomic as imp;

pub use imp::{Ordering, fence};

#[cfg(any(test, feature = "abandon"))]
use crate::testing::{is_abandoned, is_left_out, load_point, store_point};

/// Whether a store is to have no effect: the thread was abandoned, whose destructors run while it unwinds, as a killed one's would not; or
/// a test leaves the caller's line out.
#[cfg(any(test, feature = "abandon"))]
#[inline]
#[track_caller]
fn is_swallowed() -> bool {
    is_abandoned() || is_left_out(std::panic::Location::caller())
}

#[cfg(not(any(test, feature = "abandon")))]
#[inline(always)]
fn is_swallowed() -> bool {
    false
}
#[cfg(not(any(test, feature = "abandon")))]
#[inline(always)]
fn store_point() {}
#[cfg(not(any(test, feature = "abandon")))]
#[inline(always)]
fn load_point() {}

macro_rules! word {
    ($(#[$doc:meta])* $name:ident, $atomic:ident, $int:ident) => {
        $(#[$doc])*
        #[repr(transparent)]
        #[derive(Debug)]
        pub struct $name(imp::$atomic);

        impl $name {
            /// A word outside of any arena; for tests and models.
            pub fn new(value: $int) -> Self {
                Self(imp::$atomic::new(value))
            }

            /// Atomic load.
            #[inline(always)]
            pub fn load(&self, order: Ordering) -> $int {
                let value = self.0.load(order);
                load_point();
                value
            }

            /// Atomic store.
            #[inline(always)]
            #[cfg_attr(any(test, feature = "abandon"), track_caller)]
            pub fn store(&self, value: $int, order: Ordering) {
                if is_swallowed() {
                    return;
                }
                self.0.store(value, order);
                store_point();
            }

            /// Atomic compare-and-swap: `Ok(old)` if it stored, else `Err(found)`.
            #[inline(always)]
            #[cfg_attr(any(test, feature = "abandon"), track_caller)]
            pub fn compare_exchange(
                &self,
                expected: $int,
                value: $int,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$int, $int> {
                if is_swallowed() {
                    let found = self.0.load(Ordering::Relaxed);
                    return if found == expected { Ok(found) } else { Err(found) };
                }
                let result = self.0.compare_exchange(expected, value, success, failure);
                if result.is_ok() {
                    store_point();
                }
                result
            }

            word!(@fetch fetch_add, $int, "Atomic addition, wrapping; returns the old value.");
            word!(@fetch fetch_sub, $int, "Atomic subtraction, wrapping; returns the old value.");
            word!(@fetch fetch_or, $int, "Atomic or; returns the old value.");
            word!(@fetch fetch_and, $int, "Atomic and; returns the old value.");
            word!(@fetch fetch_max, $int, "Atomic maximum; returns the old value.");
            word!(@fetch swap, $int, "Atomic exchange; returns the old value.");
        }
    };
    (@fetch $method:ident, $int:ident, $doc:literal) => {
        #[doc = $doc]
        #[inline(always)]
        #[cfg_attr(any(test, feature = "abandon"), track_caller)]
        pub fn $method(&self, operand: $int, order: Ordering) -> $int {
            if is_swallowed() {
                return self.0.load(Ordering::Relaxed);
            }
            let old = self.0.$method(operand, order);
            store_point();
            old
        }
    };
}

word!(
    /// A 64-bit word of shared memory.
    Word, AtomicU64, u64
);
word!(
    /// A 32-bit word of shared memory.
    Word32, AtomicU32, u32
);

impl Word {
    /// Asks for the word's cache line, to be loaded soon. A hint.
    #[inline(always)]
    pub fn expect_load(&self) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a hint: it never faults and changes nothing.
        unsafe {
            std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(std::ptr::from_ref(self).cast());
        }
    }
}

impl Word32 {
    /// The atomic itself, for the kernel's futex calls: nothing is to be stored through it.
    pub fn futex(&self) -> &std::sync::atomic::AtomicU32 {
        &self.0
    }
}
