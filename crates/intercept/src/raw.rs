//! System calls made with an instruction of our own.
//!
//! The `syscall` instruction here is never rewritten, sets no `errno`, is no cancellation point and
//! takes no lock: it is the only way the handler may reach the kernel.

use core::arch::asm;

/// The largest error number the kernel returns (as its negative).
const ERROR_NUMBER_MAX: isize = 4095;

/// Executes system call `number` with six arguments and returns what the kernel returned, errors as negative numbers.
///
/// # Safety
/// The caller answers for what the system call does with the arguments.
#[inline(always)]
pub(crate) unsafe fn syscall6(number: usize, a: [usize; 6]) -> isize {
    let result: isize;
    // SAFETY: the kernel changes rax, rcx, r11 and the flags only; the effects of the call itself are the caller's to answer for.
    unsafe {
        asm!("syscall",
            inlateout("rax") number as isize => result,
            in("rdi") a[0], in("rsi") a[1], in("rdx") a[2], in("r10") a[3], in("r8") a[4], in("r9") a[5],
            lateout("rcx") _, lateout("r11") _, options(nostack));
    }
    result
}

/// [`syscall6`] with missing arguments as zero.
///
/// # Safety
/// As for [`syscall6`].
#[inline(always)]
pub(crate) unsafe fn syscall<const N: usize>(number: usize, arguments: [usize; N]) -> isize {
    const { assert!(N <= 6) };
    let mut all = [0; 6];
    let mut index = 0;
    while index < N {
        all[index] = arguments[index];
        index += 1;
    }
    // SAFETY: the caller's.
    unsafe { syscall6(number, all) }
}

/// Whether `result` is one of the kernel's errors.
#[inline(always)]
pub(crate) fn is_error(result: isize) -> bool {
    (-ERROR_NUMBER_MAX..0).contains(&result)
}
