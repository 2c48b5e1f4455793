//! What this processor can do, without asking it.
//!
//! The C library has asked already and tells ([`processor::told`]); only without it the processor is asked.

use std::arch::x86_64::{__cpuid, __cpuid_count};

use gannet_usermem::processor;

/// glibc's number for leaf 7, subleaf 0.
const LEAF_7: u32 = 1;
const EBX: usize = 1;
const ECX: usize = 2;

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
    let leaf = processor::told(LEAF_7)?;
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
