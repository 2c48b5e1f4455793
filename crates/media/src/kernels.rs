//! The loops over whole 64-byte lines: copy past the cache, hash, or both at once, in assembly for SSE2, AVX2 and AVX-512.
//!
//! For: [`crate::Medium`] and [`crate::DataHash`]. Each routine is a leaf that may fault at any load or store (a caller's
//! bad address, a medium that was truncated); it is registered with `gannet_usermem`, so that a handler can make it return
//! the number of lines left. In assembly because a fault inside compiled code could not be resumed.
//!
//! The routines that go word by word are for metadata that was put together in words just before: a wide load of what
//! narrower stores wrote waits until those, and every store before them, have left the store buffer.
//!
//! All routines: `(to: rdi, from: rsi, lines: rdx, lanes: rcx) -> lines left`. `to` is a multiple of 64 where there is one.

use std::arch::global_asm;
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

// One line of hashing is defined in `hash.rs`; lanes: sums at 0, sums of sums at 64, keys at 128.
global_asm!(
    ".pushsection .rodata.gannet_media,\"a\",@progbits",
    ".balign 8",
    "gannet_media_step: .quad 0x9E3779B97F4A7C15",
    ".popsection",
    ".pushsection .text.gannet_media,\"ax\",@progbits",
    // SSE2: sums xmm0-3, sums of sums xmm4-7, keys xmm8-11, step xmm12.
    ".macro gm_sse2_enter",
    "movdqa xmm0, [rcx]",
    "movdqa xmm1, [rcx + 16]",
    "movdqa xmm2, [rcx + 32]",
    "movdqa xmm3, [rcx + 48]",
    "movdqa xmm4, [rcx + 64]",
    "movdqa xmm5, [rcx + 80]",
    "movdqa xmm6, [rcx + 96]",
    "movdqa xmm7, [rcx + 112]",
    "movdqa xmm8, [rcx + 128]",
    "movdqa xmm9, [rcx + 144]",
    "movdqa xmm10, [rcx + 160]",
    "movdqa xmm11, [rcx + 176]",
    "movq xmm12, qword ptr [rip + gannet_media_step]",
    "punpcklqdq xmm12, xmm12",
    ".endm",
    ".macro gm_sse2_leave",
    "movdqa [rcx], xmm0",
    "movdqa [rcx + 16], xmm1",
    "movdqa [rcx + 32], xmm2",
    "movdqa [rcx + 48], xmm3",
    "movdqa [rcx + 64], xmm4",
    "movdqa [rcx + 80], xmm5",
    "movdqa [rcx + 96], xmm6",
    "movdqa [rcx + 112], xmm7",
    "movdqa [rcx + 128], xmm8",
    "movdqa [rcx + 144], xmm9",
    "movdqa [rcx + 160], xmm10",
    "movdqa [rcx + 176], xmm11",
    ".endm",
    ".macro gm_sse2_part at, sum, sumsum, key, store, hash",
    "movdqu xmm13, [rsi + \\at]",
    ".ifc \\store, nt",
    "movntdq [rdi + \\at], xmm13",
    ".endif",
    ".ifc \\store, cached",
    "movdqa [rdi + \\at], xmm13",
    ".endif",
    ".ifc \\hash, yes",
    "movdqa xmm14, xmm13",
    "pxor xmm14, \\key",
    "pshufd xmm13, xmm13, 0x4E",
    "paddq \\sum, xmm13",
    "movdqa xmm15, xmm14",
    "psrlq xmm15, 32",
    "pmuludq xmm14, xmm15",
    "paddq \\sum, xmm14",
    "paddq \\sumsum, \\sum",
    "paddq \\key, xmm12",
    ".endif",
    ".endm",
    ".macro gm_sse2_line store, hash",
    "gm_sse2_part 0, xmm0, xmm4, xmm8, \\store, \\hash",
    "gm_sse2_part 16, xmm1, xmm5, xmm9, \\store, \\hash",
    "gm_sse2_part 32, xmm2, xmm6, xmm10, \\store, \\hash",
    "gm_sse2_part 48, xmm3, xmm7, xmm11, \\store, \\hash",
    ".endm",
    ".macro gm_sse2_clean",
    ".endm",
    // AVX2: sums ymm0-1, sums of sums ymm2-3, keys ymm4-5, step ymm6.
    ".macro gm_avx2_enter",
    "vmovdqa ymm0, [rcx]",
    "vmovdqa ymm1, [rcx + 32]",
    "vmovdqa ymm2, [rcx + 64]",
    "vmovdqa ymm3, [rcx + 96]",
    "vmovdqa ymm4, [rcx + 128]",
    "vmovdqa ymm5, [rcx + 160]",
    "vpbroadcastq ymm6, qword ptr [rip + gannet_media_step]",
    ".endm",
    ".macro gm_avx2_leave",
    "vmovdqa [rcx], ymm0",
    "vmovdqa [rcx + 32], ymm1",
    "vmovdqa [rcx + 64], ymm2",
    "vmovdqa [rcx + 96], ymm3",
    "vmovdqa [rcx + 128], ymm4",
    "vmovdqa [rcx + 160], ymm5",
    ".endm",
    ".macro gm_avx2_line store, hash",
    "vmovdqu ymm8, [rsi]",
    "vmovdqu ymm9, [rsi + 32]",
    ".ifc \\store, nt",
    "vmovntdq [rdi], ymm8",
    "vmovntdq [rdi + 32], ymm9",
    ".endif",
    ".ifc \\store, cached",
    "vmovdqa [rdi], ymm8",
    "vmovdqa [rdi + 32], ymm9",
    ".endif",
    ".ifc \\hash, yes",
    "vpxor ymm10, ymm8, ymm4",
    "vpxor ymm11, ymm9, ymm5",
    "vpshufd ymm8, ymm8, 0x4E",
    "vpshufd ymm9, ymm9, 0x4E",
    "vpaddq ymm0, ymm0, ymm8",
    "vpaddq ymm1, ymm1, ymm9",
    "vpsrlq ymm12, ymm10, 32",
    "vpsrlq ymm13, ymm11, 32",
    "vpmuludq ymm10, ymm10, ymm12",
    "vpmuludq ymm11, ymm11, ymm13",
    "vpaddq ymm0, ymm0, ymm10",
    "vpaddq ymm1, ymm1, ymm11",
    "vpaddq ymm2, ymm2, ymm0",
    "vpaddq ymm3, ymm3, ymm1",
    "vpaddq ymm4, ymm4, ymm6",
    "vpaddq ymm5, ymm5, ymm6",
    ".endif",
    ".endm",
    ".macro gm_avx2_clean",
    "vzeroupper",
    ".endm",
    // AVX-512: sums zmm16, sums of sums zmm17, keys zmm18, step zmm19. The high registers spare the clean-up.
    ".macro gm_avx512_enter",
    "vmovdqa64 zmm16, [rcx]",
    "vmovdqa64 zmm17, [rcx + 64]",
    "vmovdqa64 zmm18, [rcx + 128]",
    "vpbroadcastq zmm19, qword ptr [rip + gannet_media_step]",
    ".endm",
    ".macro gm_avx512_leave",
    "vmovdqa64 [rcx], zmm16",
    "vmovdqa64 [rcx + 64], zmm17",
    "vmovdqa64 [rcx + 128], zmm18",
    ".endm",
    ".macro gm_avx512_line store, hash",
    "vmovdqu64 zmm20, [rsi]",
    ".ifc \\store, nt",
    "vmovntdq [rdi], zmm20",
    ".endif",
    ".ifc \\store, cached",
    "vmovdqa64 [rdi], zmm20",
    ".endif",
    ".ifc \\hash, yes",
    "vpxorq zmm21, zmm20, zmm18",
    "vpshufd zmm20, zmm20, 0x4E",
    "vpaddq zmm16, zmm16, zmm20",
    "vpsrlq zmm22, zmm21, 32",
    "vpmuludq zmm21, zmm21, zmm22",
    "vpaddq zmm16, zmm16, zmm21",
    "vpaddq zmm17, zmm17, zmm16",
    "vpaddq zmm18, zmm18, zmm19",
    ".endif",
    ".endm",
    ".macro gm_avx512_clean",
    ".endm",
    // A routine: its name, instruction set, kind of store and whether it hashes.
    ".macro gm_routine name, isa, store, hash",
    ".balign 64",
    ".globl \\name, \\name\\()_end, \\name\\()_fixup",
    ".hidden \\name, \\name\\()_end, \\name\\()_fixup",
    ".type \\name, @function",
    "\\name:",
    "test rdx, rdx",
    "je 3f",
    ".ifc \\hash, yes",
    "gm_\\isa\\()_enter",
    ".endif",
    ".balign 32",
    "2:",
    "gm_\\isa\\()_line \\store, \\hash",
    "add rsi, 64",
    ".ifnc \\store, none",
    "add rdi, 64",
    ".endif",
    "dec rdx",
    "jne 2b",
    ".ifc \\hash, yes",
    "gm_\\isa\\()_leave",
    ".endif",
    "gm_\\isa\\()_clean",
    "3:",
    "xor eax, eax",
    "ret",
    "\\name\\()_end:",
    "\\name\\()_fixup:",
    "gm_\\isa\\()_clean",
    "mov rax, rdx",
    "ret",
    ".endm",
    // Word by word, the same for all instruction sets.
    ".macro gm_words name, store",
    ".balign 64",
    ".globl \\name, \\name\\()_end, \\name\\()_fixup",
    ".hidden \\name, \\name\\()_end, \\name\\()_fixup",
    ".type \\name, @function",
    "\\name:",
    "test rdx, rdx",
    "je 3f",
    "2:",
    ".irp at, 0, 16, 32, 48",
    "mov rax, [rsi + \\at]",
    "mov r8, [rsi + \\at + 8]",
    "\\store [rdi + \\at], rax",
    "\\store [rdi + \\at + 8], r8",
    ".endr",
    "add rsi, 64",
    "add rdi, 64",
    "dec rdx",
    "jne 2b",
    "3:",
    "xor eax, eax",
    "ret",
    "\\name\\()_end:",
    "\\name\\()_fixup:",
    "mov rax, rdx",
    "ret",
    ".endm",
    "gm_words gannet_media_copy_words, movnti",
    "gm_words gannet_media_copy_words_cached, mov",
    ".macro gm_set isa",
    "gm_routine gannet_media_copy_\\isa, \\isa, nt, no",
    "gm_routine gannet_media_copy_hashed_\\isa, \\isa, nt, yes",
    "gm_routine gannet_media_copy_cached_hashed_\\isa, \\isa, cached, yes",
    "gm_routine gannet_media_hash_\\isa, \\isa, none, yes",
    ".endm",
    "gm_set sse2",
    "gm_set avx2",
    "gm_set avx512",
    ".purgem gm_sse2_enter",
    ".purgem gm_sse2_leave",
    ".purgem gm_sse2_part",
    ".purgem gm_sse2_line",
    ".purgem gm_sse2_clean",
    ".purgem gm_avx2_enter",
    ".purgem gm_avx2_leave",
    ".purgem gm_avx2_line",
    ".purgem gm_avx2_clean",
    ".purgem gm_avx512_enter",
    ".purgem gm_avx512_leave",
    ".purgem gm_avx512_line",
    ".purgem gm_avx512_clean",
    ".purgem gm_routine",
    ".purgem gm_words",
    ".purgem gm_set",
    ".popsection",
);

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
