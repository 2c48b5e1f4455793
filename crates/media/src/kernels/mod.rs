//! The loops over whole 64-byte lines: copy past the cache, hash, or both at once, in assembly for SSE2, AVX2 and AVX-512 ([`code`]); here they are
//! described, and the best set is chosen.
//!
//! For: [`crate::Medium`] and [`crate::DataHash`]. Each routine is a leaf that may fault at any load or store (a caller's
//! bad address, a medium that was truncated); it is registered with `gannet_usermem`, so that a handler can make it return
//! the number of lines left. In assembly because a fault inside compiled code could not be resumed.
//!
//! The routines that go word by word are for metadata that was put together in words just before: a wide load of what
//! narrower stores wrote waits until those, and every store before them, have left the store buffer.
//!
//! All routines: `(to: rdi, from: rsi, lines: rdx, lanes: rcx) -> lines left`. `to` is a multiple of 64 where there is one.

mod code;

use std::sync::OnceLock;

use gannet_usermem::FaultRange;

use crate::hash::Lanes;

/// A routine over whole lines; see the head of the file.
pub(crate) type LineRoutine = unsafe extern "C" fn(*mut u8, *const u8, usize, *mut Lanes) -> usize;

/// The routines for one instruction set.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kernels {
    /// Non-temporal copy.
    pub(crate) copy: LineRoutine,
    /// Non-temporal copy that hashes what it stores.
    pub(crate) copy_hashed: LineRoutine,
    /// Copy through the cache that hashes what it stores.
    pub(crate) copy_cached_hashed: LineRoutine,
    /// Hash only; `to` is not used.
    pub(crate) hash: LineRoutine,
    /// Non-temporal copy word by word: for what was just written in words, see the head of the file.
    pub(crate) copy_words: LineRoutine,
    /// Copy through the cache word by word.
    pub(crate) copy_words_cached: LineRoutine,
    /// `SSE2`, `AVX2`, `AVX-512`.
    pub(crate) name: &'static str,
}

/// Declares the routines of one instruction set: their description for faults, and the set.
macro_rules! routines {
    ($ranges:ident, $set:ident, $name:literal: $($field:ident $routine:ident $end:ident $fixup:ident),* $(,)?) => {
        unsafe extern "C" {
            $(
                fn $routine(to: *mut u8, from: *const u8, lines: usize, lanes: *mut Lanes) -> usize;
                static $end: u8;
                static $fixup: u8;
            )*
        }
        static $ranges: [FaultRange; 4] = [$(
            // SAFETY: the routine is a leaf that does not move the stack pointer; its continuation cleans the vector
            // registers and returns the counter of lines left, which is decremented after a line is complete.
            unsafe { FaultRange::new($routine as *const u8, &raw const $end, &raw const $fixup) }
        ),*];
        static $set: Kernels = Kernels {
            $($field: $routine,)*
            copy_words: gannet_media_copy_words,
            copy_words_cached: gannet_media_copy_words_cached,
            name: $name,
        };
    };
}

unsafe extern "C" {
    fn gannet_media_copy_words(to: *mut u8, from: *const u8, lines: usize, lanes: *mut Lanes) -> usize;
    fn gannet_media_copy_words_cached(to: *mut u8, from: *const u8, lines: usize, lanes: *mut Lanes) -> usize;
    static gannet_media_copy_words_end: u8;
    static gannet_media_copy_words_fixup: u8;
    static gannet_media_copy_words_cached_end: u8;
    static gannet_media_copy_words_cached_fixup: u8;
}

static RANGES_WORDS: [FaultRange; 2] = [
    // SAFETY: leaves that do not move the stack pointer; the continuation returns the counter of lines left, which is
    // decremented after a line is complete.
    unsafe {
        FaultRange::new(
            gannet_media_copy_words as *const u8,
            &raw const gannet_media_copy_words_end,
            &raw const gannet_media_copy_words_fixup,
        )
    },
    // SAFETY: as above.
    unsafe {
        FaultRange::new(
            gannet_media_copy_words_cached as *const u8,
            &raw const gannet_media_copy_words_cached_end,
            &raw const gannet_media_copy_words_cached_fixup,
        )
    },
];

routines!(RANGES_SSE2, SSE2, "SSE2":
    copy gannet_media_copy_sse2 gannet_media_copy_sse2_end gannet_media_copy_sse2_fixup,
    copy_hashed gannet_media_copy_hashed_sse2 gannet_media_copy_hashed_sse2_end gannet_media_copy_hashed_sse2_fixup,
    copy_cached_hashed gannet_media_copy_cached_hashed_sse2 gannet_media_copy_cached_hashed_sse2_end
        gannet_media_copy_cached_hashed_sse2_fixup,
    hash gannet_media_hash_sse2 gannet_media_hash_sse2_end gannet_media_hash_sse2_fixup,
);
routines!(RANGES_AVX2, AVX2, "AVX2":
    copy gannet_media_copy_avx2 gannet_media_copy_avx2_end gannet_media_copy_avx2_fixup,
    copy_hashed gannet_media_copy_hashed_avx2 gannet_media_copy_hashed_avx2_end gannet_media_copy_hashed_avx2_fixup,
    copy_cached_hashed gannet_media_copy_cached_hashed_avx2 gannet_media_copy_cached_hashed_avx2_end
        gannet_media_copy_cached_hashed_avx2_fixup,
    hash gannet_media_hash_avx2 gannet_media_hash_avx2_end gannet_media_hash_avx2_fixup,
);
routines!(RANGES_AVX512, AVX512, "AVX-512":
    copy gannet_media_copy_avx512 gannet_media_copy_avx512_end gannet_media_copy_avx512_fixup,
    copy_hashed gannet_media_copy_hashed_avx512 gannet_media_copy_hashed_avx512_end
        gannet_media_copy_hashed_avx512_fixup,
    copy_cached_hashed gannet_media_copy_cached_hashed_avx512 gannet_media_copy_cached_hashed_avx512_end
        gannet_media_copy_cached_hashed_avx512_fixup,
    hash gannet_media_hash_avx512 gannet_media_hash_avx512_end gannet_media_hash_avx512_fixup,
);

/// The sets that this processor can execute, best last.
pub(crate) fn executable() -> impl Iterator<Item = &'static Kernels> {
    let features = crate::features::features();
    // Processors that have this later extension execute 512-bit instructions without lowering their clock.
    let avx512 = features.avx512f && features.avx512vbmi2;
    [Some(&SSE2), features.avx2.then_some(&AVX2), avx512.then_some(&AVX512)].into_iter().flatten()
}

/// The set to use, chosen once.
#[inline]
pub(crate) fn kernels() -> &'static Kernels {
    static CHOSEN: OnceLock<&'static Kernels> = OnceLock::new();
    CHOSEN.get_or_init(|| {
        for ranges in [&RANGES_SSE2, &RANGES_AVX2, &RANGES_AVX512] {
            gannet_usermem::register(ranges);
        }
        gannet_usermem::register(&RANGES_WORDS);
        gannet_usermem::register(&crate::processor::RANGES);
        let best = executable().last().unwrap_or(&SSE2);
        if std::ptr::eq(best, &raw const AVX512) {
            // SAFETY: it can be executed; the routines of that set use those registers, too.
            unsafe { gannet_usermem::copy::allow_wide_registers() };
        }
        best
    })
}

#[cfg(test)]
mod tests {
    use std::ptr;

    use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap};

    use super::*;

    const PAGE_BYTES: usize = 4096;

    /// Two pages; the second cannot be accessed. Never unmapped while the test runs.
    fn cliff() -> *mut u8 {
        // SAFETY: a new private map, of which the second page is then closed.
        unsafe {
            let flags = ProtFlags::READ | ProtFlags::WRITE;
            let base = mmap_anonymous(ptr::null_mut(), 2 * PAGE_BYTES, flags, MapFlags::PRIVATE).unwrap();
            mprotect(base.byte_add(PAGE_BYTES), PAGE_BYTES, MprotectFlags::empty()).unwrap();
            base.cast()
        }
    }

    /// A fault on either side, in every line and at every misalignment of the source, returns the lines that were left, for
    /// every instruction set and routine.
    #[test]
    fn faults_return_the_lines_left() {
        gannet_usermem::install_fault_handler().unwrap();
        let _ = kernels();
        let (bad_source, bad_target) = (cliff(), cliff());
        let good: Vec<u8> = (0..8192u32).map(|index| index as u8).collect();
        for kernels in executable() {
            let copies = [kernels.copy, kernels.copy_hashed, kernels.copy_cached_hashed];
            for routine in copies.into_iter().chain([kernels.hash, kernels.copy_words, kernels.copy_words_cached]) {
                for lines in 1..=10usize {
                    for whole in 0..lines {
                        let mut lanes = crate::DataHash::new(1);
                        // SAFETY: the sources and targets are ours; what is not accessible is what is being tested.
                        unsafe {
                            for misalignment in [0, 1, 63] {
                                let from = bad_source.add(PAGE_BYTES - whole * 64 - misalignment);
                                let left = routine(bad_target, from, lines, lanes.lanes());
                                assert_eq!(left, lines - whole, "{} lines, {whole} whole", lines);
                            }
                            if routine as usize != kernels.hash as usize {
                                let to = bad_target.add(PAGE_BYTES - whole * 64);
                                let left = routine(to, good.as_ptr().add(3), lines, lanes.lanes());
                                assert_eq!(left, lines - whole);
                                crate::processor::store_fence();
                                let stored = std::slice::from_raw_parts(to, whole * 64);
                                assert_eq!(stored, &good[3..3 + whole * 64]);
                            }
                        }
                    }
                }
            }
        }
        for write_back in crate::processor::write_backs() {
            for (lines, whole) in [(1, 0), (1, 1), (7, 3), (64, 64), (100, 64)] {
                // SAFETY: as above.
                let left = unsafe { write_back(bad_target.add(PAGE_BYTES - whole * 64), lines) };
                assert_eq!(left, lines - whole);
            }
        }
        // SAFETY: our own maps, no longer used.
        unsafe {
            munmap(bad_source.cast(), 2 * PAGE_BYTES).unwrap();
            munmap(bad_target.cast(), 2 * PAGE_BYTES).unwrap();
        }
    }
}
