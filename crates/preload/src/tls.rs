//! Thread-local storage without the C library's help.
//!
//! The library is loaded at program start, so its thread-local block is at a fixed distance from the thread pointer. Compiled
//! code does not know that and calls `__tls_get_addr`, which in the C library may allocate with the program's `malloc`.
//! This definition, bound inside the library only, answers from the fixed distance. Likewise destructors: the C library would
//! allocate to remember them, so they are remembered here and run when the interception sees the thread end.

use core::arch::global_asm;
use core::cell::Cell;

global_asm!(
    ".section .tbss,\"awT\",@nobits",
    ".p2align 3",
    "gannet_tls_anchor: .skip 8",
    ".section .text.way.gannet_tls, \"ax\", @progbits",
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
    // Hidden: the program's own stays the C library's. Weak, as the standard library's reference is: link-time optimisation
    // puts both into one module, where a name cannot be both.
    ".weak __cxa_thread_atexit_impl",
    ".hidden __cxa_thread_atexit_impl",
    ".type __cxa_thread_atexit_impl, @function",
    "__cxa_thread_atexit_impl:",
    "jmp {register}",
    ".size __cxa_thread_atexit_impl, . - __cxa_thread_atexit_impl",
    ".text",
    register = sym register_destructor,
);

type Destructor = unsafe extern "C" fn(*mut u8);

/// The standard library registers one function per thread, which then runs all destructors; a few more are room for others.
const DESTRUCTORS_MAX: usize = 4;

std::thread_local! {
    static DESTRUCTORS: Cell<[Option<(Destructor, usize)>; DESTRUCTORS_MAX]> = const { Cell::new([None; DESTRUCTORS_MAX]) };
}

/// What the standard library calls to have a destructor run at the thread's end.
///
/// # Safety
/// `destructor` must be callable with `object` on this thread at its end.
unsafe extern "C" fn register_destructor(destructor: Destructor, object: *mut u8, _library: *mut u8) -> i32 {
    let mut all = DESTRUCTORS.get();
    match all.iter_mut().find(|slot| slot.is_none()) {
        Some(slot) => {
            *slot = Some((destructor, object.expose_provenance()));
            DESTRUCTORS.set(all);
            0
        }
        // Then it is not run: a slot of the arena stays taken until the process ends.
        None => -1,
    }
}

/// Runs the thread's destructors. Called by the interception when the thread ends.
pub(crate) fn run_destructors() {
    for (destructor, object) in DESTRUCTORS.replace([None; DESTRUCTORS_MAX]).into_iter().flatten() {
        // SAFETY: registered for exactly this.
        unsafe { destructor(core::ptr::with_exposed_provenance_mut(object)) };
    }
}
