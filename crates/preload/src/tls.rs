//! Thread-local storage without the C library's help.
//!
//! The library is loaded at program start, so its thread-local block is at a fixed distance from the thread pointer. Compiled
//! code does not know that and calls `__tls_get_addr`, which in the C library may allocate with the program's `malloc`.
//! This definition, bound inside the library only, answers from the fixed distance.

use core::arch::global_asm;

global_asm!(
    ".section .tbss,\"awT\",@nobits",
    ".p2align 3",
    "gannet_tls_anchor: .skip 8",
    ".text",
    ".p2align 4",
    ".globl __tls_get_addr",
    ".hidden __tls_get_addr",
    ".type __tls_get_addr, @function",
    // In: rdi the address of { module, offset in the module's block }. The module is this one.
    "__tls_get_addr:",
    "mov rax, qword ptr [rip + gannet_tls_anchor@GOTTPOFF]",
    "sub rax, offset gannet_tls_anchor@DTPOFF",
    "add rax, qword ptr [rdi + 8]",
    "add rax, qword ptr fs:[0]",
    "ret",
    ".size __tls_get_addr, . - __tls_get_addr",
);
