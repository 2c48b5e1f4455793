//! The machine code of what goes into the handler or away from it without a trampoline, see [`super`]: a question of a signal handler's, an `execve`
//! that was prepared, and the end of a thread.
//!
//! Relies on the entries in [`super::code`], and on the layout of [`super::ThreadState`], whose offsets stand in here as numbers.

use crate::thread::{ENGINE_STACK_BYTES, RECORD_BYTES};
use core::arch::global_asm;

global_asm!(
    ".section .text.way.gannet,\"ax\",@progbits",
    // A call of ours, from a signal handler. Where it passes, the kernel answers ENOSYS.
    ".p2align 4",
    ".globl gannet_ask_about",
    ".hidden gannet_ask_about",
    "gannet_ask_about:",
    ".cfi_startproc",
    "mov eax, {faulted}",
    "lea rcx, [rip + 2f]",
    "jmp gannet_entry",
    "2:",
    "syscall",
    "ret",
    // What a trampoline has behind its call is looked at.
    "int3",
    "int3",
    "int3",
    "int3",
    "int3",
    "int3",
    "int3",
    ".cfi_endproc",
    // Where the handler lets an execve go on: the call, with the program's stack, mask and registers in place, and should it come back, into
    // the handler once more, which knows where the program was.
    ".p2align 4",
    ".globl gannet_execute",
    ".hidden gannet_execute",
    "gannet_execute:",
    ".cfi_startproc simple",
    ".cfi_signal_frame",
    ".cfi_def_cfa rsp, 0",
    ".cfi_undefined rip",
    "syscall",
    "mov rdi, rax",
    "mov eax, {not_executed}",
    "lea rcx, [rip + 2f]",
    "jmp gannet_entry_full",
    "2:",
    "hlt",
    ".cfi_endproc",
    // The end of a thread, on its own stack: gives the engine stack back, then exits with the status in rdi.
    ".p2align 4",
    ".globl gannet_thread_exit",
    ".hidden gannet_thread_exit",
    "gannet_thread_exit:",
    "mov r12, rdi",
    "mov r11, qword ptr [rip + gannet_tls@GOTTPOFF]",
    "mov rdi, qword ptr fs:[r11 + 8]",
    "mov qword ptr fs:[r11 + 8], 0",
    "sub rdi, {engine_stack_bytes}",
    "mov esi, {mapping_bytes}",
    "mov eax, 11",
    "syscall",
    "mov rdi, r12",
    "mov eax, 60",
    "syscall",
    "hlt",
    ".text",
    faulted = const super::FAULTED,
    not_executed = const super::NOT_EXECUTED,
    mapping_bytes = const ENGINE_STACK_BYTES + RECORD_BYTES,
    engine_stack_bytes = const ENGINE_STACK_BYTES,
);
