//! Calls of the host's that the handler makes and that may wait: for room in a socket or pipe, for the other end of a FIFO.
//!
//! A signal that arrives meanwhile is deferred. Its handler may be what the call waits for, or leave it by a jump, and the thread may be about to be
//! cancelled: so the call ends with EINTR, though the kernel would begin it anew after the wrapper (SA_RESTART), and though the signal came before the call
//! had begun. What was moved is told; where nothing was, the program's call is made again behind its handlers, or says EINTR ([`outcome`]).

use crate::dispatch::Outcome;
use crate::signal;
use core::arch::global_asm;

const EINTR: isize = -4;

unsafe extern "C" {
    fn gannet_interruptible(number: usize, arguments: *const usize) -> isize;
    static gannet_interruptible_start: u8;
    static gannet_interruptible_call: u8;
    static gannet_interruptible_end: u8;
}

global_asm!(
    ".pushsection .text.way.gannet_interruptible, \"ax\", @progbits",
    ".p2align 4",
    ".globl gannet_interruptible",
    ".hidden gannet_interruptible",
    ".type gannet_interruptible, @function",
    "gannet_interruptible:",
    ".cfi_startproc",
    "mov rax, rdi",
    "mov rcx, rsi",
    "mov rdi, qword ptr [rcx]",
    "mov rsi, qword ptr [rcx + 8]",
    "mov rdx, qword ptr [rcx + 16]",
    "mov r10, qword ptr [rcx + 24]",
    "mov r8, qword ptr [rcx + 32]",
    "mov r9, qword ptr [rcx + 40]",
    ".globl gannet_interruptible_start",
    ".hidden gannet_interruptible_start",
    "gannet_interruptible_start:",
    "mov r11, qword ptr [rip + gannet_tls@GOTTPOFF]",
    // Deferred before.
    "cmp byte ptr fs:[r11 + 1], 0",
    "jne 2f",
    ".globl gannet_interruptible_call",
    ".hidden gannet_interruptible_call",
    "gannet_interruptible_call:",
    "syscall",
    ".globl gannet_interruptible_end",
    ".hidden gannet_interruptible_end",
    "gannet_interruptible_end:",
    "ret",
    "2:",
    "mov rax, {interrupted}",
    "ret",
    ".cfi_endproc",
    ".size gannet_interruptible, . - gannet_interruptible",
    ".popsection",
    interrupted = const EINTR,
);

/// Executes a system call that a signal ends, whatever its handler was installed with.
///
/// # Safety
/// The caller answers for what the system call does with the arguments.
pub(crate) unsafe fn syscall6(number: usize, arguments: [usize; 6]) -> isize {
    // SAFETY: the caller's.
    unsafe { gannet_interruptible(number, arguments.as_ptr()) }
}

/// A signal has interrupted this thread at `instruction` and is deferred. Where the thread goes on instead, and with what result, if such a call was about
/// to be made, or to be made anew.
pub(crate) fn interrupted_at(instruction: usize) -> Option<(usize, isize)> {
    let waits = &raw const gannet_interruptible_start as usize..=&raw const gannet_interruptible_call as usize;
    waits.contains(&instruction).then_some((&raw const gannet_interruptible_end as usize, EINTR))
}

/// What becomes of the program's call that ended with this result of a call made here.
pub(crate) fn outcome(result: isize) -> Outcome {
    if result == EINTR && signal::deferred_restart() { Outcome::Again } else { Outcome::Done(result) }
}
