//! The processor's persistence instructions, chosen once.

use std::arch::asm;
use std::arch::x86_64::{__cpuid, __cpuid_count};
use std::sync::OnceLock;

/// How a line is written back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FlushInstruction {
    /// Writes back and may keep the line.
    Clwb,
    /// Writes back and drops the line.
    Clflushopt,
    /// As before, one after the other.
    Clflush,
}

impl FlushInstruction {
    /// The best one this processor has.
    pub(crate) fn detect() -> FlushInstruction {
        static DETECTED: OnceLock<FlushInstruction> = OnceLock::new();
        *DETECTED.get_or_init(|| {
            let extended = if __cpuid(0).eax >= 7 { __cpuid_count(7, 0).ebx } else { 0 };
            match (extended & 1 << 24 != 0, extended & 1 << 23 != 0) {
                (true, _) => FlushInstruction::Clwb,
                (false, true) => FlushInstruction::Clflushopt,
                (false, false) => FlushInstruction::Clflush,
            }
        })
    }

    /// Writes the line at `address` back.
    ///
    /// # Safety
    /// The line is mapped.
    #[inline]
    pub(crate) unsafe fn flush_line(self, address: *mut u8) {
        // SAFETY: the instruction was detected; it changes no memory contents. Without `nomem`, the compiler orders it
        // after the stores before it.
        unsafe {
            match self {
                FlushInstruction::Clwb => asm!("clwb [{}]", in(reg) address, options(nostack, preserves_flags)),
                FlushInstruction::Clflushopt => {
                    asm!("clflushopt [{}]", in(reg) address, options(nostack, preserves_flags))
                }
                FlushInstruction::Clflush => asm!("clflush [{}]", in(reg) address, options(nostack, preserves_flags)),
            }
        }
    }
}

/// Waits until the write-backs and non-temporal stores of this thread are done.
#[inline]
pub(crate) fn store_fence() {
    // SAFETY: every x86-64 processor has this instruction; it only orders. Without `nomem`, for the compiler too.
    unsafe { asm!("sfence", options(nostack, preserves_flags)) };
}

/// Asks for a line that will be stored to. Does nothing for an address that is not mapped.
#[inline]
pub(crate) fn prefetch_for_store(address: *mut u8) {
    // SAFETY: a hint: it never faults and changes no memory; processors without it execute it as nothing.
    unsafe { asm!("prefetchw [{}]", in(reg) address, options(nostack, preserves_flags)) };
}
