//! What the C library knows of this processor, for those who choose instructions by it.
//!
//! `CPUID` leaves a virtual machine for its host, 20 µs each time, and a process that opens a volume for a moment would spend half of
//! its attach on it. The C library has asked already and tells (glibc 2.33). May touch: nothing but that. Safe in signal handlers.

use std::arch::global_asm;

/// One leaf of what `CPUID` says: glibc's `struct cpuid_feature`.
#[repr(C)]
#[derive(Debug)]
pub struct Leaf {
    /// The registers eax to edx, as the processor gives them.
    pub processor: [u32; 4],
    /// The same, without what the system or the user does not allow.
    pub usable: [u32; 4],
}

// gannet_usermem_leaf(number: edi) -> leaf or null. By a weak reference: a library without the function is no obstacle.
global_asm!(
    ".pushsection .text.gannet_usermem,\"ax\",@progbits",
    ".weak __x86_get_cpuid_feature_leaf",
    ".balign 16",
    ".globl gannet_usermem_leaf",
    ".hidden gannet_usermem_leaf",
    ".type gannet_usermem_leaf, @function",
    "gannet_usermem_leaf:",
    "mov rax, qword ptr [rip + __x86_get_cpuid_feature_leaf@GOTPCREL]",
    "test rax, rax",
    "je 2f",
    "jmp rax",
    "2:",
    "ret",
    ".size gannet_usermem_leaf, . - gannet_usermem_leaf",
    ".popsection",
);

unsafe extern "C" {
    fn gannet_usermem_leaf(number: u32) -> *const Leaf;
}

/// The leaf with glibc's number `number` (0: leaf 1; 1: leaf 7; 2: leaf 0x8000_0001). Nothing where the library does not tell.
#[must_use]
pub fn told(number: u32) -> Option<&'static Leaf> {
    // SAFETY: takes a number and returns null or a structure that stays.
    let leaf = unsafe { gannet_usermem_leaf(number).as_ref() }?;
    // A library that knows the function but nothing of this processor tells zeros.
    (leaf.processor != [0; 4]).then_some(leaf)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::arch::x86_64::{__cpuid, __cpuid_count};

    #[test]
    fn the_library_tells_what_the_processor_says() {
        for (number, asked) in [(1, __cpuid_count(7, 0)), (2, __cpuid(0x8000_0001))] {
            if let Some(leaf) = told(number) {
                assert_eq!((leaf.processor[1], leaf.processor[2]), (asked.ebx, asked.ecx), "{number}");
            }
        }
        assert!(told(1000).is_none());
    }
}
