//! What this processor can do, without asking it.
//!
//! The C library has asked already and tells ([`processor::told`]); only without it the processor is asked.

use std::arch::x86_64::{__cpuid, __cpuid_count};

use gannet_usermem::processor;

/// glibc's number for leaf 7, subleaf 0.
const LEAF_7: u32 = 1;
/// glibc's number for leaf 0x8000_0001.
const LEAF_EXTENDED: u32 = 2;
const EBX: usize = 1;
const ECX: usize = 2;

/// Instructions that the copy loops and write-backs are chosen by, and what else of a processor is worth naming.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Features {
    /// Copies and hashes of 32 bytes at once.
    pub avx2: bool,
    /// Copies and hashes of 64 bytes at once, on processors that have the next one.
    pub avx512f: bool,
    /// Came later than the former, with processors that execute that without lowering their clock.
    pub avx512vbmi2: bool,
    /// Lines are written back and stay in the cache.
    pub clwb: bool,
    /// Lines are written back side by side, and leave the cache.
    pub clflushopt: bool,
    /// Memory can be guarded by protection keys, and the system has enabled them.
    pub protection_keys: bool,
    /// An extension that the processors of one family of vendors have (AMD, Hygon): tells how stores past the cache behave there.
    pub sse4a: bool,
}

/// What there is, and the system has enabled.
pub fn features() -> Features {
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
        // What the system has enabled is a bit of the processor's own (OSPKE).
        protection_keys: bit(&leaf.processor, ECX, 4),
        sse4a: processor::told(LEAF_EXTENDED).is_some_and(|leaf| bit(&leaf.processor, ECX, 6)),
    })
}

fn asked() -> Features {
    let (extended, more) = if __cpuid(0).eax >= 7 {
        let leaf = __cpuid_count(7, 0);
        (leaf.ebx, leaf.ecx)
    } else {
        (0, 0)
    };
    Features {
        avx2: std::arch::is_x86_feature_detected!("avx2"),
        avx512f: std::arch::is_x86_feature_detected!("avx512f"),
        avx512vbmi2: std::arch::is_x86_feature_detected!("avx512vbmi2"),
        clwb: extended & 1 << 24 != 0,
        clflushopt: extended & 1 << 23 != 0,
        protection_keys: more & 1 << 4 != 0,
        sse4a: std::arch::is_x86_feature_detected!("sse4a"),
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
