//! The handler that the kernel knows for every signal that has one: straight on to the program's, or, inside of an operation, later.
//!
//! Runs at any instruction of the program or of ours: takes no memory, and no lock that an operation may have.

use super::actions::{
    ACTIONS, DIRECT, KernelAction, LOCK, SA_RESETHAND, SA_RESTORER, SIG_DFL, SIG_IGN, kernel_action, publish,
};
use super::{SIGBUS, SIGCANCEL, SIGSEGV};
use crate::entry;
use crate::interruptible;
use crate::number;
use crate::patch::area;
use crate::raw::{is_error, syscall};
use crate::thread::is_busy;
use core::arch::global_asm;
use core::sync::atomic::Ordering;

unsafe extern "C" {
    pub(super) fn gannet_signal_wrapper();
    pub(super) fn gannet_signal_return();
}

global_asm!(
    ".text",
    ".p2align 4",
    ".globl gannet_signal_wrapper",
    ".hidden gannet_signal_wrapper",
    ".type gannet_signal_wrapper, @function",
    "gannet_signal_wrapper:",
    ".cfi_startproc",
    "mov r11, qword ptr [rip + gannet_tls@GOTTPOFF]",
    "cmp byte ptr fs:[r11], 0",
    "jne {long}",
    "lea r11, [rip + {direct}]",
    "mov eax, edi",
    "mov r11, qword ptr [r11 + rax * 8]",
    "test r11, r11",
    "jz {long}",
    "xor eax, eax",
    "jmp r11",
    ".cfi_endproc",
    ".size gannet_signal_wrapper, . - gannet_signal_wrapper",
    // For SIGSEGV and SIGBUS before the program installs a handler. Unwinders know it by its bytes.
    ".p2align 4",
    "nop",
    ".globl gannet_signal_return",
    ".hidden gannet_signal_return",
    ".type gannet_signal_return, @function",
    "gannet_signal_return:",
    "mov rax, 15",
    "syscall",
    ".size gannet_signal_return, . - gannet_signal_return",
    long = sym wrapper_long,
    direct = sym DIRECT,
);

/// Where a signal handler returns to.
pub(crate) fn return_address() -> usize {
    gannet_signal_return as *const () as usize
}

/// The kernel's `siginfo_t`, as far as it is looked at here.
#[repr(C)]
struct SignalInformation {
    signal: i32,
    error: i32,
    code: i32,
    padding: i32,
    /// Of a fault.
    address: usize,
    rest: [u8; 104],
}

/// Nothing is behind the address.
const BUS_ADRERR: i32 = 2;

/// Offsets in `ucontext_t` on x86-64.
const CONTEXT_RAX: usize = 40 + 13 * 8;
const CONTEXT_RCX: usize = 40 + 14 * 8;
const CONTEXT_RSP: usize = 40 + 15 * 8;
const CONTEXT_RIP: usize = 40 + 16 * 8;
const CONTEXT_MASK: usize = 40 + 23 * 8 + 8 + 64;

/// The long way of the wrapper: the thread is in an operation, or the action needs more than a jump.
///
/// # Safety
/// Called by the kernel as a signal handler only.
unsafe extern "C" fn wrapper_long(signal: i32, information: *mut SignalInformation, context: *mut u8) {
    let index = signal as usize;
    // SAFETY: the kernel passes both; the offsets are its ABI.
    let (code, rip, mask) = unsafe {
        ((*information).code, context.add(CONTEXT_RIP).cast::<usize>(), context.add(CONTEXT_MASK).cast::<u64>())
    };
    // A fault of the running instruction, not a signal somebody sent. Of an address that no memory can have the kernel says only
    // that the signal is its own (SI_KERNEL).
    let fault = matches!(index, SIGSEGV | SIGBUS) && code > 0;
    // SAFETY: as above.
    unsafe { entry::left::forget_if_left(*rip, *context.add(CONTEXT_RSP).cast::<usize>()) };
    if is_busy() {
        if fault {
            // SAFETY: the instruction pointer the kernel will return to.
            let at = unsafe { *rip };
            match entry::fixup(at).or_else(|| gannet_usermem::fixup(at)) {
                // SAFETY: as above.
                Some(fixup) => unsafe { *rip = fixup },
                None => die_by(index),
            }
            return;
        }
        // SAFETY: as above.
        unsafe {
            defer(index, information, mask);
            if let Some((end, result)) = interruptible::interrupted_at(*rip) {
                *rip = end;
                *context.add(CONTEXT_RAX).cast::<isize>() = result;
            }
        }
        return;
    }
    // SAFETY: for a fault the address stands behind the code.
    if fault && index == SIGBUS && code == BUS_ADRERR && entry::ask_about(unsafe { (*information).address }) {
        return;
    }
    let action = &ACTIONS[index];
    let handler = action.handler.load(Ordering::Acquire);
    match handler {
        SIG_IGN if !fault => return,
        SIG_DFL | SIG_IGN => {
            die_by(index);
            if !fault {
                // SAFETY: the information is the kernel's; blocked until the wrapper returns or not, the signal ends the process.
                unsafe { send_again(index, information) };
            }
            return;
        }
        _ => {}
    }
    if action.flags.load(Ordering::Relaxed) & SA_RESETHAND != 0 {
        LOCK.take();
        let default = KernelAction {
            flags: SA_RESTORER,
            restorer: action.restorer.load(Ordering::Relaxed),
            ..KernelAction::default()
        };
        publish(index, &default);
        if !matches!(index, SIGSEGV | SIGBUS) {
            kernel_action(index, Some(&default), None);
        }
        LOCK.release();
    }
    // SAFETY: as above.
    let at = unsafe { *rip };
    // SAFETY: as above.
    let stack = unsafe { context.add(CONTEXT_RSP).cast::<usize>() };
    // SAFETY: as above.
    let stack_at = unsafe { *stack };
    let shown = if index == SIGCANCEL {
        // SAFETY: the registers that the kernel saved; no operation runs.
        let here = unsafe { entry::program_behind(at, stack_at, *context.add(CONTEXT_RCX).cast::<usize>()) };
        let (slot, stack) = here.unwrap_or((at, stack_at));
        area::original_of(slot).map(|original| (original, stack))
    } else {
        None
    };
    if let Some((original, program_stack)) = shown {
        // The C library asks where the thread was and unwinds from there: show it its own code.
        // SAFETY: as above.
        unsafe { (*rip, *stack) = (original, program_stack) };
    }
    // SAFETY: the program installed this handler; the arguments are the kernel's.
    let handler: extern "C" fn(i32, *mut SignalInformation, *mut u8) = unsafe { core::mem::transmute(handler) };
    handler(signal, information, context);
    // SAFETY: as above. If the handler changed the instruction pointer itself, that stands.
    unsafe {
        if shown == Some((*rip, *stack)) {
            (*rip, *stack) = (at, stack_at);
        }
    }
}

/// Sets the default action, so that the fault or signal ends the process as it would have without us.
fn die_by(signal: usize) {
    let default = KernelAction {
        handler: SIG_DFL,
        flags: SA_RESTORER,
        restorer: gannet_signal_return as *const () as usize,
        mask: 0,
    };
    kernel_action(signal, Some(&default), None);
}

/// Puts a signal off until the operation is over: blocked when the wrapper returns, and sent to this thread again.
///
/// # Safety
/// Called from the wrapper with the kernel's arguments.
unsafe fn defer(signal: usize, information: *mut SignalInformation, mask: *mut u64) {
    let bit = 1u64 << (signal - 1);
    // SAFETY: blocks the signal for this thread, which it is anyway unless the program said SA_NODEFER.
    unsafe { syscall(number::RT_SIGPROCMASK, [0, (&raw const bit) as usize, 0, 8]) };
    // SAFETY: the caller's promise.
    unsafe {
        send_again(signal, information);
        *mask |= bit;
        let state = entry::thread_state();
        (*state).unblock |= bit;
        (*state).deferred.store(1, Ordering::Relaxed);
    }
}

/// Sends a signal to this thread with the information it came with.
///
/// # Safety
/// `information` must be the kernel's.
unsafe fn send_again(signal: usize, information: *mut SignalInformation) {
    // SAFETY: as the caller says.
    unsafe {
        let process = syscall(number::GETPID, []) as usize;
        let thread = syscall(number::GETTID, []) as usize;
        let sent = syscall(number::RT_TGSIGQUEUEINFO, [process, thread, signal, information as usize]);
        if is_error(sent) {
            // Better without its information than not at all.
            syscall(number::TGKILL, [process, thread, signal]);
        }
    }
}
