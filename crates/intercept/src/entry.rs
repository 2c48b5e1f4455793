//! The way from a trampoline into the handler and back: saves what a system call preserves, changes to the engine stack.
//!
//! Entered by jumps with rcx leading to the trampoline's `syscall` instruction and r11 free. Left with everything as
//! it was, either to that instruction (the call passes) or behind it with the result in rax. The program's
//! stack is not touched.
//!
//! The thread's state is a block of initial-exec thread-local storage, so that finding it is two instructions and
//! never calls the dynamic loader:
//!
//! | offset | field |
//! | --- | --- |
//! | 0 | busy: an operation is running; signals are deferred, system calls pass |
//! | 1 | a signal was deferred |
//! | 2 | the alternate signal stack is hidden, to be shown at the end of the operation |
//! | 3 | the program has an alternate signal stack |
//! | 4 | the call is made again behind the deferred signals |
//! | 8 | the thread's record, above its engine stack; 0: none yet |
//! | 16 | signals blocked by deferring, to be unblocked |
//! | 32–95 | registers while the engine stack is being made |
//! | 96–119 | the program's alternate signal stack, as `stack_t` |
//! | 120 | the signal mask of a program whose alternate stack is hidden |
//!
//! While the program runs on its alternate signal stack the kernel, seeing the engine stack in use, would deliver the next
//! signal at the top of the alternate stack, over live frames. So such an operation runs with signals blocked and that
//! stack disabled: blocked before the change of stacks, disabled behind it, both undone after the change back.

use crate::thread::{ENGINE_STACK_BYTES, RECORD_BYTES};
use core::arch::global_asm;
use core::sync::atomic::{AtomicU8, Ordering};

/// Descriptors at or above this are never ours.
pub(crate) const DESCRIPTOR_LIMIT: usize = 1 << 16;

/// In a mark: the descriptor may be ours, in this process or in a `vfork` child of it.
pub(crate) const MARK_OURS: u8 = 1;
/// In a mark: the handler wants to know when it is closed.
const MARK_WATCHED: u8 = 2;

/// What is known of each descriptor.
static DESCRIPTOR_MARKS: [AtomicU8; DESCRIPTOR_LIMIT] = [const { AtomicU8::new(0) }; DESCRIPTOR_LIMIT];
/// Non-zero while placeholders of closed descriptors are kept.
static HELD_MARK: AtomicU8 = AtomicU8::new(0);

/// Where the filter finds the marks.
pub(crate) fn descriptor_marks_address() -> usize {
    DESCRIPTOR_MARKS.as_ptr() as usize
}

/// Where the filter finds whether placeholders of closed descriptors are kept.
pub(crate) fn held_mark_address() -> usize {
    HELD_MARK.as_ptr() as usize
}

/// Sends calls on `descriptor` to the handler from now on.
pub(crate) fn mark_descriptor(descriptor: usize) {
    if let Some(mark) = DESCRIPTOR_MARKS.get(descriptor) {
        // Watching begins while there is one thread: nobody else changes the other bit.
        mark.store(mark.load(Ordering::Relaxed) | MARK_OURS, Ordering::Release);
    }
}

/// Lets calls on `descriptor` pass from now on.
pub(crate) fn unmark_descriptor(descriptor: usize) {
    if let Some(mark) = DESCRIPTOR_MARKS.get(descriptor) {
        mark.store(mark.load(Ordering::Relaxed) & !MARK_OURS, Ordering::Release);
    }
}

/// Sends calls that close these descriptors to the handler from now on. While the process has one thread.
pub(crate) fn watch_descriptors(descriptors: core::ops::Range<usize>) {
    for mark in DESCRIPTOR_MARKS.get(descriptors).unwrap_or_default() {
        mark.store(mark.load(Ordering::Relaxed) | MARK_WATCHED, Ordering::Release);
    }
}

/// Sends calls that could tell a kept placeholder from a closed descriptor to the handler, or lets them pass.
pub(crate) fn mark_held(held: bool) {
    HELD_MARK.store(u8::from(held), Ordering::Release);
}

/// Registers of the program at a system call, on the engine stack.
#[repr(C, align(16))]
pub(crate) struct Frame {
    /// The system call's number; on the way out its result.
    pub(crate) rax: usize,
    /// The arguments, in order.
    pub(crate) arguments: [usize; 6],
    /// Where the program goes on: the trampoline's `syscall` instruction on the way in.
    pub(crate) continuation: usize,
    vectors: [u128; 16],
    /// The program's stack pointer.
    pub(crate) stack_pointer: usize,
    rbx: usize,
}
const FRAME_BYTES: usize = 336;
const _: () = assert!(size_of::<Frame>() == FRAME_BYTES);

const OWN_AREA_BYTES: usize = 128 * 1024;
/// Room for the vector state of programs' code that is not the C library's.
const XSAVE_AREA_BYTES: usize = 4096;

unsafe extern "C" {
    fn gannet_entry();
    fn gannet_entry_full();
    fn gannet_thread_state() -> *mut ThreadState;
    fn gannet_thread_exit();
    static gannet_own_area: u8;
    static mut gannet_xsave_mask: u32;
}

/// The block of thread-local storage described above.
#[repr(C)]
pub(crate) struct ThreadState {
    /// An operation is running.
    pub(crate) busy: AtomicU8,
    /// A signal was deferred.
    pub(crate) deferred: AtomicU8,
    /// The alternate signal stack is disabled for the length of an operation.
    pub(crate) hidden: u8,
    /// The program has an alternate signal stack that must be hidden.
    pub(crate) has_alternate_stack: u8,
    again: u8,
    padding: [u8; 3],
    /// The thread's record.
    pub(crate) record: usize,
    /// Signals to unblock at the end of the operation.
    pub(crate) unblock: u64,
    scratch: [u64; 9],
    /// The alternate signal stack: start, flags, size.
    pub(crate) alternate_stack: [usize; 3],
    mask: u64,
}
const _: () = assert!(core::mem::offset_of!(ThreadState, alternate_stack) == 96);

/// Lets the call that is being handled be made again when the signals that were deferred have been delivered. Only if some were.
pub(crate) fn make_again() {
    // SAFETY: the thread's own block.
    unsafe { (*thread_state()).again = 1 };
}

/// This thread's state.
pub(crate) fn thread_state() -> *mut ThreadState {
    // SAFETY: reads the thread pointer only.
    unsafe { gannet_thread_state() }
}

/// Address of the entry that saves the lower halves of xmm0–15.
pub(crate) fn entry_address() -> usize {
    gannet_entry as *const () as usize
}

/// Address of the entry that saves all vector state.
pub(crate) fn entry_full_address() -> usize {
    find_vector_state();
    gannet_entry_full as *const () as usize
}

/// Where a thread that exits goes on.
pub(crate) fn thread_exit_address() -> usize {
    gannet_thread_exit as *const () as usize
}

/// Start and length of the area for trampolines inside our own text.
pub(crate) fn own_area() -> (usize, usize) {
    (&raw const gannet_own_area as usize, OWN_AREA_BYTES)
}

/// Finds out which vector state the processor and kernel have: before a trampoline leads to the full entry, and only then, since
/// it costs 30 µs in a virtual machine, whose host has to be asked.
fn find_vector_state() {
    // AVX, opmask, upper halves of zmm0–15, zmm16–31; SSE is saved in the frame.
    const VECTOR_STATE: u64 = 0b1110_0110;
    let leaf = core::arch::x86_64::__cpuid(1);
    // Bit 27: the kernel enabled XSAVE.
    if leaf.ecx & (1 << 27) == 0 || core::arch::x86_64::__cpuid(0).eax < 13 {
        return;
    }
    let (low, high): (u32, u32);
    // SAFETY: XSAVE is enabled, so that XGETBV exists.
    unsafe { core::arch::asm!("xgetbv", in("ecx") 0, out("eax") low, out("edx") high, options(nomem, nostack)) };
    let enabled = (low as u64) | ((high as u64) << 32);
    let extended = core::arch::x86_64::__cpuid_count(13, 1);
    // XSAVEC.
    if extended.eax & 2 != 0 {
        // SAFETY: written before any trampoline leads to the entry that reads it.
        unsafe { gannet_xsave_mask = (enabled & VECTOR_STATE) as u32 };
    }
}

global_asm!(
    // The thread's state.
    ".section .tbss,\"awT\",@nobits",
    ".p2align 6",
    ".globl gannet_tls",
    ".hidden gannet_tls",
    ".type gannet_tls, @object",
    ".size gannet_tls, 128",
    "gannet_tls: .skip 128",
    ".bss",
    ".globl gannet_xsave_mask",
    ".hidden gannet_xsave_mask",
    ".p2align 2",
    "gannet_xsave_mask: .skip 4",
    ".section .rodata",
    ".p2align 3",
    // Not SIGSEGV and SIGBUS: bad addresses are noticed by them.
    "gannet_all_signals: .quad ~((1 << 10) | (1 << 6))",
    ".text",
    ".globl gannet_thread_state",
    ".hidden gannet_thread_state",
    "gannet_thread_state:",
    "mov rax, qword ptr [rip + gannet_tls@GOTTPOFF]",
    "add rax, qword ptr fs:[0]",
    "ret",
    // Room for trampolines, under unwind information that says: this is a frame without extent whose return address
    // is in the last eight bytes of the slot that the instruction pointer is in.
    ".section .text.gannet_area,\"ax\",@progbits",
    ".p2align 12",
    ".globl gannet_own_area",
    ".hidden gannet_own_area",
    ".cfi_startproc simple",
    ".cfi_signal_frame",
    ".cfi_def_cfa rsp, 0",
    // DW_CFA_val_expression rip: breg16 0, const1s -128, and, plus_uconst 120, deref
    ".cfi_escape 0x16, 0x10, 0x08, 0x80, 0x00, 0x09, 0x80, 0x1a, 0x23, 0x78, 0x06",
    "gannet_own_area:",
    ".fill {own_area_bytes}, 1, 0xcc",
    ".cfi_endproc",
    ".p2align 12",
    // Saves the frame. In: r11 the record. Out: rsp the frame.
    ".macro gannet_save",
    "mov qword ptr [r11 - 16], rsp",
    "lea rsp, [r11 - {frame_bytes}]",
    "mov qword ptr [rsp], rax",
    "mov qword ptr [rsp + 8], rdi",
    "mov qword ptr [rsp + 16], rsi",
    "mov qword ptr [rsp + 24], rdx",
    "mov qword ptr [rsp + 32], r10",
    "mov qword ptr [rsp + 40], r8",
    "mov qword ptr [rsp + 48], r9",
    "mov qword ptr [rsp + 56], rcx",
    "movaps [rsp + 64], xmm0",
    "movaps [rsp + 80], xmm1",
    "movaps [rsp + 96], xmm2",
    "movaps [rsp + 112], xmm3",
    "movaps [rsp + 128], xmm4",
    "movaps [rsp + 144], xmm5",
    "movaps [rsp + 160], xmm6",
    "movaps [rsp + 176], xmm7",
    "movaps [rsp + 192], xmm8",
    "movaps [rsp + 208], xmm9",
    "movaps [rsp + 224], xmm10",
    "movaps [rsp + 240], xmm11",
    "movaps [rsp + 256], xmm12",
    "movaps [rsp + 272], xmm13",
    "movaps [rsp + 288], xmm14",
    "movaps [rsp + 304], xmm15",
    "mov qword ptr [rsp + 328], rbx",
    "cld",
    ".endm",
    ".macro gannet_restore",
    "movaps xmm0, [rsp + 64]",
    "movaps xmm1, [rsp + 80]",
    "movaps xmm2, [rsp + 96]",
    "movaps xmm3, [rsp + 112]",
    "movaps xmm4, [rsp + 128]",
    "movaps xmm5, [rsp + 144]",
    "movaps xmm6, [rsp + 160]",
    "movaps xmm7, [rsp + 176]",
    "movaps xmm8, [rsp + 192]",
    "movaps xmm9, [rsp + 208]",
    "movaps xmm10, [rsp + 224]",
    "movaps xmm11, [rsp + 240]",
    "movaps xmm12, [rsp + 256]",
    "movaps xmm13, [rsp + 272]",
    "movaps xmm14, [rsp + 288]",
    "movaps xmm15, [rsp + 304]",
    "mov rbx, qword ptr [rsp + 328]",
    "mov rax, qword ptr [rsp]",
    "mov rdi, qword ptr [rsp + 8]",
    "mov rsi, qword ptr [rsp + 16]",
    "mov rdx, qword ptr [rsp + 24]",
    "mov r10, qword ptr [rsp + 32]",
    "mov r8, qword ptr [rsp + 40]",
    "mov r9, qword ptr [rsp + 48]",
    "mov rcx, qword ptr [rsp + 56]",
    "mov rsp, qword ptr [rsp + 320]",
    ".endm",
    // Marks the thread busy, or passes the call on if it is. Out: r11 the record.
    ".macro gannet_begin",
    "mov r11, qword ptr [rip + gannet_tls@GOTTPOFF]",
    "cmp byte ptr fs:[r11], 0",
    "jne 9f",
    "mov byte ptr fs:[r11], 1",
    "cmp qword ptr fs:[r11 + 8], 0",
    "je 8f",
    "7:",
    "cmp byte ptr fs:[r11 + 3], 0",
    "jne 11f",
    "4:",
    "mov r11, qword ptr fs:[r11 + 8]",
    ".endm",
    // What `gannet_begin` jumps to: a new engine stack, and the busy thread.
    ".macro gannet_begin_slow",
    "11:",
    "mov qword ptr fs:[r11 + 88], rcx",
    "mov rcx, rsp",
    "sub rcx, qword ptr fs:[r11 + 96]",
    "cmp rcx, qword ptr fs:[r11 + 112]",
    "mov rcx, qword ptr fs:[r11 + 88]",
    "ja 4b",
    "mov qword ptr fs:[r11 + 32], rax",
    "mov qword ptr fs:[r11 + 40], rdi",
    "mov qword ptr fs:[r11 + 48], rsi",
    "mov qword ptr fs:[r11 + 56], rdx",
    "mov qword ptr fs:[r11 + 64], r10",
    "mov byte ptr fs:[r11 + 2], 1",
    "mov rdx, qword ptr fs:[0]",
    "lea rdx, [rdx + r11 + 120]",
    "lea rsi, [rip + gannet_all_signals]",
    "mov edi, 2", // SIG_SETMASK
    "mov r10d, 8",
    "mov eax, 14", // rt_sigprocmask
    "syscall",
    "mov r11, qword ptr [rip + gannet_tls@GOTTPOFF]",
    "mov rax, qword ptr fs:[r11 + 32]",
    "mov rdi, qword ptr fs:[r11 + 40]",
    "mov rsi, qword ptr fs:[r11 + 48]",
    "mov rdx, qword ptr fs:[r11 + 56]",
    "mov r10, qword ptr fs:[r11 + 64]",
    "mov rcx, qword ptr fs:[r11 + 88]",
    "jmp 4b",
    "8:",
    "mov qword ptr fs:[r11 + 32], rax",
    "mov qword ptr fs:[r11 + 40], rdi",
    "mov qword ptr fs:[r11 + 48], rsi",
    "mov qword ptr fs:[r11 + 56], rdx",
    "mov qword ptr fs:[r11 + 64], r10",
    "mov qword ptr fs:[r11 + 72], r8",
    "mov qword ptr fs:[r11 + 80], r9",
    "mov qword ptr fs:[r11 + 88], rcx",
    "xor edi, edi",
    "mov esi, {mapping_bytes}",
    "mov edx, 3",
    "mov r10d, 0x24022", // MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK
    "mov r8, -1",
    "xor r9d, r9d",
    "mov eax, 9",
    "syscall",
    "mov r11, qword ptr [rip + gannet_tls@GOTTPOFF]",
    "cmp rax, -4096",
    "ja 6f",
    "add rax, {engine_stack_bytes}",
    "mov qword ptr fs:[r11 + 8], rax",
    "6:",
    "mov rax, qword ptr fs:[r11 + 32]",
    "mov rdi, qword ptr fs:[r11 + 40]",
    "mov rsi, qword ptr fs:[r11 + 48]",
    "mov rdx, qword ptr fs:[r11 + 56]",
    "mov r10, qword ptr fs:[r11 + 64]",
    "mov r8, qword ptr fs:[r11 + 72]",
    "mov r9, qword ptr fs:[r11 + 80]",
    "mov rcx, qword ptr fs:[r11 + 88]",
    "cmp qword ptr fs:[r11 + 8], 0",
    "jne 7b",
    // Without memory the call passes.
    "mov byte ptr fs:[r11], 0",
    "9:",
    "jmp rcx",
    ".endm",
    // Ends the operation: the last instruction that matters is the one that clears busy.
    ".macro gannet_end",
    "mov r11, qword ptr [rip + gannet_tls@GOTTPOFF]",
    "mov byte ptr fs:[r11], 0",
    "cmp word ptr fs:[r11 + 1], 0",
    "jne gannet_deliver",
    "jmp rcx",
    ".endm",
    ".text",
    ".p2align 6",
    ".globl gannet_entry",
    ".hidden gannet_entry",
    ".type gannet_entry, @function",
    "gannet_entry:",
    // Until the stack is changed an unwinder goes on in the trampoline.
    ".cfi_startproc simple",
    ".cfi_signal_frame",
    ".cfi_def_cfa rsp, 0",
    ".cfi_register rip, rcx",
    "gannet_begin",
    "gannet_save",
    // On the engine stack: the frame tells where the program was.
    ".cfi_remember_state",
    // DW_CFA_def_cfa_expression: breg7(rsp) 320, deref; rip at frame + 56.
    ".cfi_escape 0x0f, 0x04, 0x77, 0xc0, 0x02, 0x06",
    ".cfi_escape 0x10, 0x10, 0x03, 0x77, 0xb8, 0x00",
    "mov rdi, rsp",
    "call {dispatch}",
    "gannet_restore",
    ".cfi_restore_state",
    "gannet_end",
    "gannet_begin_slow",
    ".cfi_endproc",
    ".size gannet_entry, . - gannet_entry",
    ".p2align 6",
    ".globl gannet_entry_full",
    ".hidden gannet_entry_full",
    ".type gannet_entry_full, @function",
    "gannet_entry_full:",
    ".cfi_startproc simple",
    ".cfi_signal_frame",
    ".cfi_def_cfa rsp, 0",
    ".cfi_register rip, rcx",
    "gannet_begin",
    "gannet_save",
    "mov rbx, rsp",
    ".cfi_remember_state",
    // breg3(rbx) 320, deref; rip at rbx + 56; rbx at rbx + 328.
    ".cfi_escape 0x0f, 0x04, 0x73, 0xc0, 0x02, 0x06",
    ".cfi_escape 0x10, 0x10, 0x03, 0x73, 0xb8, 0x00",
    ".cfi_escape 0x10, 0x03, 0x03, 0x73, 0xc8, 0x02",
    "sub rsp, {xsave_bytes}",
    "and rsp, -64",
    "mov eax, dword ptr [rip + gannet_xsave_mask]",
    "test eax, eax",
    "jz 5f",
    "xor edx, edx",
    // The header behind the 512 legacy bytes must be zero where XSAVEC does not write it.
    "mov qword ptr [rsp + 512], rdx",
    "mov qword ptr [rsp + 520], rdx",
    "mov qword ptr [rsp + 528], rdx",
    "mov qword ptr [rsp + 536], rdx",
    "mov qword ptr [rsp + 544], rdx",
    "mov qword ptr [rsp + 552], rdx",
    "mov qword ptr [rsp + 560], rdx",
    "mov qword ptr [rsp + 568], rdx",
    "xsavec [rsp]",
    "5:",
    "mov rdi, rbx",
    "call {dispatch}",
    "mov eax, dword ptr [rip + gannet_xsave_mask]",
    "test eax, eax",
    "jz 5f",
    "xor edx, edx",
    "xrstor [rsp]",
    "5:",
    "mov rsp, rbx",
    "gannet_restore",
    ".cfi_restore_state",
    "gannet_end",
    "gannet_begin_slow",
    ".cfi_endproc",
    ".size gannet_entry_full, . - gannet_entry_full",
    // Signals came meanwhile and were sent again, blocked, or the alternate stack is hidden: puts that right with the program's registers and stack in place.
    ".p2align 4",
    ".type gannet_deliver, @function",
    "gannet_deliver:",
    ".cfi_startproc simple",
    ".cfi_signal_frame",
    ".cfi_def_cfa rsp, 0",
    ".cfi_register rip, rcx",
    "lea rsp, [rsp - 192]",
    ".cfi_def_cfa rsp, 192",
    "mov qword ptr [rsp], rax",
    "mov qword ptr [rsp + 8], rdi",
    "mov qword ptr [rsp + 16], rsi",
    "mov qword ptr [rsp + 24], rdx",
    "mov qword ptr [rsp + 32], r10",
    "mov qword ptr [rsp + 40], rcx",
    ".cfi_offset rip, -152",
    // Where it goes on: where rcx says, or into the handler once more with rcx as it was.
    "mov qword ptr [rsp + 56], rcx",
    "cmp byte ptr fs:[r11 + 4], 0",
    "je 4f",
    "mov byte ptr fs:[r11 + 4], 0",
    "lea rdi, [rip + gannet_entry_full]",
    "mov qword ptr [rsp + 56], rdi",
    "4:",
    "cmp byte ptr fs:[r11 + 2], 0",
    "je 3f",
    "mov byte ptr fs:[r11 + 2], 0",
    "mov rdi, qword ptr fs:[0]",
    "lea rdi, [rdi + r11 + 96]",
    "xor esi, esi",
    "mov eax, 131", // sigaltstack
    "syscall",
    "mov r11, qword ptr [rip + gannet_tls@GOTTPOFF]",
    "mov rsi, qword ptr fs:[0]",
    "lea rsi, [rsi + r11 + 120]",
    "mov edi, 2",
    "xor edx, edx",
    "mov r10d, 8",
    "mov eax, 14",
    "syscall",
    "mov r11, qword ptr [rip + gannet_tls@GOTTPOFF]",
    "cmp byte ptr fs:[r11 + 1], 0",
    "je 2f",
    "3:",
    "mov byte ptr fs:[r11 + 1], 0",
    "mov rax, qword ptr fs:[r11 + 16]",
    "mov qword ptr fs:[r11 + 16], 0",
    "mov qword ptr [rsp + 48], rax",
    "lea rsi, [rsp + 48]",
    "mov edi, 1", // SIG_UNBLOCK
    "xor edx, edx",
    "mov r10d, 8",
    "mov eax, 14", // rt_sigprocmask
    "syscall",
    "2:",
    "mov rax, qword ptr [rsp]",
    "mov rdi, qword ptr [rsp + 8]",
    "mov rsi, qword ptr [rsp + 16]",
    "mov rdx, qword ptr [rsp + 24]",
    "mov r10, qword ptr [rsp + 32]",
    "mov rcx, qword ptr [rsp + 40]",
    ".cfi_register rip, rcx",
    "mov r11, qword ptr [rsp + 56]",
    "lea rsp, [rsp + 192]",
    ".cfi_def_cfa rsp, 0",
    "jmp r11",
    ".cfi_endproc",
    ".size gannet_deliver, . - gannet_deliver",
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
    own_area_bytes = const OWN_AREA_BYTES,
    frame_bytes = const FRAME_BYTES,
    xsave_bytes = const XSAVE_AREA_BYTES,
    mapping_bytes = const ENGINE_STACK_BYTES + RECORD_BYTES,
    engine_stack_bytes = const ENGINE_STACK_BYTES,
    dispatch = sym crate::dispatch::dispatch,
);
