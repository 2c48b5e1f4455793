//! What this processor can do, without asking it.
//!
//! `CPUID` leaves a virtual machine for its host, 20 µs each time, and a process that opens a volume for a moment would spend half of
//! its attach on it. The C library has asked already and tells (glibc 2.33); only without it the processor is asked.

use std::arch::global_asm;
use std::arch::x86_64::{__cpuid, __cpuid_count};

/// glibc's `struct cpuid_feature`: registers eax to edx of a leaf, as the processor gives them, and what of them can be used.
#[repr(C)]
struct Leaf {
    processor: [u32; 4],
    usable: [u32; 4],
}

/// glibc's number for leaf 7, subleaf 0.
const LEAF_7: u32 = 1;
const EBX: usize = 1;
const ECX: usize = 2;

// gannet_media_leaf(number: edi) -> leaf or null. By a weak reference: a library without the function is no obstacle.
global_asm!(
    ".pushsection .text.gannet_media,\"ax\",@progbits",
    ".weak __x86_get_cpuid_feature_leaf",
    ".balign 16",
    ".globl gannet_media_leaf",
    ".hidden gannet_media_leaf",
    ".type gannet_media_leaf, @function",
    "gannet_media_leaf:",
    "mov rax, qword ptr [rip + __x86_get_cpuid_feature_leaf@GOTPCREL]",
    "test rax, rax",
    "je 2f",
    "jmp rax",
    "2:",
    "ret",
    ".size gannet_media_leaf, . - gannet_media_leaf",
    ".popsection",
);

unsafe extern "C" {
    fn gannet_media_leaf(number: u32) -> *const Leaf;
}

/// Instructions that the copy loops and write-backs are chosen by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Features {
    pub(crate) avx2: bool,
    pub(crate) avx512f: bool,
    pub(crate) avx512vbmi2: bool,
    pub(crate) clwb: bool,
    pub(crate) clflushopt: bool,
}

/// What there is, and the system has enabled.
pub(crate) fn features() -> Features {
    told().unwrap_or_else(asked)
}

fn told() -> Option<Features> {
    // SAFETY: takes a number and returns null or a structure that stays.
    let leaf = unsafe { gannet_media_leaf(LEAF_7).as_ref() }?;
    // A library that knows the function but nothing of this processor.
    if leaf.processor == [0; 4] {
        return None;
    }
    let bit = |registers: &[u32; 4], register: usize, bit: u32| registers[register] & 1 << bit != 0;
    Some(Features {
        avx2: bit(&leaf.usable, EBX, 5),
        avx512f: bit(&leaf.usable, EBX, 16),
        avx512vbmi2: bit(&leaf.usable, ECX, 6),
        clwb: bit(&leaf.processor, EBX, 24),
        clflushopt: bit(&leaf.processor, EBX, 23),
    })
}

fn asked() -> Features {
    let extended = if __cpuid(0).eax >= 7 { __cpuid_count(7, 0).ebx } else { 0 };
    Features {
        avx2: std::arch::is_x86_feature_detected!("avx2"),
        avx512f: std::arch::is_x86_feature_detected!("avx512f"),
        avx512vbmi2: std::arch::is_x86_feature_detected!("avx512vbmi2"),
        clwb: extended & 1 << 24 != 0,
        clflushopt: extended & 1 << 23 != 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_library_tells_what_the_processor_says() {
        // Unless the user has told the library to use less.
        if std::env::var_os("GLIBC_TUNABLES").is_none()
            && let Some(told) = told()
        {
            assert_eq!(told, asked());
        }
    }
}
