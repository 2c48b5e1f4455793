//! The processor's persistence instructions, chosen once.
//!
//! Writing back a page that is gone (a truncated file, poisoned memory) faults as a store does: the loops are leaves in
//! assembly, registered like the copy loops.

use std::arch::asm;
use std::arch::global_asm;
use std::sync::OnceLock;

use gannet_usermem::FaultRange;

// gannet_media_write_back_*(first line: rdi, lines: rsi) -> lines left
global_asm!(
    ".pushsection .text.gannet_media,\"ax\",@progbits",
    ".macro gm_write_back name, instruction",
    ".balign 32",
    ".globl \\name, \\name\\()_end, \\name\\()_fixup",
    ".hidden \\name, \\name\\()_end, \\name\\()_fixup",
    ".type \\name, @function",
    "\\name:",
    "test rsi, rsi",
    "je 3f",
    "2:",
    "\\instruction [rdi]",
    "add rdi, 64",
    "dec rsi",
    "jne 2b",
    "3:",
    "xor eax, eax",
    "ret",
    "\\name\\()_end:",
    "\\name\\()_fixup:",
    "mov rax, rsi",
    "ret",
    ".endm",
    "gm_write_back gannet_media_write_back_clwb, clwb",
    "gm_write_back gannet_media_write_back_clflushopt, clflushopt",
    "gm_write_back gannet_media_write_back_clflush, clflush",
    ".purgem gm_write_back",
    ".popsection",
);

/// Writes lines back, from the one at an address on, and returns how many were left when one could not be.
pub(crate) type WriteBack = unsafe extern "C" fn(*mut u8, usize) -> usize;

macro_rules! routine {
    ($routine:ident, $end:ident, $fixup:ident) => {{
        unsafe extern "C" {
            static $end: u8;
            static $fixup: u8;
        }
        // SAFETY: a leaf that does not move the stack pointer; its continuation returns the counter of lines left.
        unsafe { FaultRange::new($routine as *const u8, &raw const $end, &raw const $fixup) }
    }};
}

unsafe extern "C" {
    fn gannet_media_write_back_clwb(first: *mut u8, lines: usize) -> usize;
    fn gannet_media_write_back_clflushopt(first: *mut u8, lines: usize) -> usize;
    fn gannet_media_write_back_clflush(first: *mut u8, lines: usize) -> usize;
}

/// For the fault handlers.
pub(crate) static RANGES: [FaultRange; 3] = [
    routine!(gannet_media_write_back_clwb, gannet_media_write_back_clwb_end, gannet_media_write_back_clwb_fixup),
    routine!(
        gannet_media_write_back_clflushopt,
        gannet_media_write_back_clflushopt_end,
        gannet_media_write_back_clflushopt_fixup
    ),
    routine!(
        gannet_media_write_back_clflush,
        gannet_media_write_back_clflush_end,
        gannet_media_write_back_clflush_fixup
    ),
];

/// The routines this processor can execute, the best one first: `clwb` writes back and may keep the line, the others drop
/// it, and `clflush` does so one after the other.
pub(crate) fn write_backs() -> impl Iterator<Item = WriteBack> {
    let features = crate::features::features();
    let clwb: WriteBack = gannet_media_write_back_clwb;
    let clflushopt: WriteBack = gannet_media_write_back_clflushopt;
    let clflush: WriteBack = gannet_media_write_back_clflush;
    [features.clwb.then_some(clwb), features.clflushopt.then_some(clflushopt), Some(clflush)].into_iter().flatten()
}

/// The best one, chosen once.
pub(crate) fn write_back() -> WriteBack {
    static CHOSEN: OnceLock<WriteBack> = OnceLock::new();
    *CHOSEN.get_or_init(|| write_backs().next().unwrap_or(gannet_media_write_back_clflush))
}

/// Waits until the write-backs and non-temporal stores of this thread are done.
#[inline]
pub(crate) fn store_fence() {
    // SAFETY: every x86-64 processor has this instruction; it only orders. Without `nomem`, for the compiler too.
    unsafe { asm!("sfence", options(nostack, preserves_flags)) };
}

/// Whether a line that will be stored past the cache is stored sooner if it has been asked for. Intel's processors gain some 10 ns;
/// AMD's (told by SSE4a) must first get rid of what they fetched: 90 ns, as measured on Zen 4, and then the fetch was in vain.
pub(crate) fn streams_into_cached_lines() -> bool {
    static CHOSEN: OnceLock<bool> = OnceLock::new();
    *CHOSEN.get_or_init(|| !crate::features::features().sse4a)
}

/// Asks for a line that will be stored to. Does nothing for an address that is not mapped.
#[inline]
pub(crate) fn prefetch_for_store(address: *mut u8) {
    // SAFETY: a hint: it never faults and changes no memory; processors without it execute it as nothing.
    unsafe { asm!("prefetchw [{}]", in(reg) address, options(nostack, preserves_flags)) };
}

/// Asks for a line that will be loaded. Does nothing for an address that is not mapped.
#[inline]
pub(crate) fn prefetch_for_load(address: *const u8) {
    // SAFETY: a hint: it never faults and changes nothing.
    unsafe { asm!("prefetcht0 [{}]", in(reg) address, options(nostack, preserves_flags, readonly)) };
}
