//! The routines that touch a caller's memory, each a leaf in assembly, and how they go on this processor.
//!
//! Their instructions stand in [`RANGES`]; a handler that consults [`crate::fixup`] sends a faulting one to its continuation,
//! which returns how much was left. Rely on the direction flag being clear, as the calling convention says.

use std::arch::global_asm;
use std::arch::x86_64::__cpuid;
use std::sync::atomic::{AtomicU8, Ordering};

use crate::fault::FaultRange;
use crate::processor;

// gannet_usermem_copy(to: rdi, from: rsi, count: rdx) -> bytes left
// gannet_usermem_zero(to: rdi, count: rsi) -> bytes left
// gannet_usermem_load{8,32,64}(from: rdi) -> (value: rax, bad: rdx)
// gannet_usermem_store{32,64}(to: rdi, value: rsi) -> bad
global_asm!(
    ".pushsection .text.gannet_usermem,\"ax\",@progbits",
    ".macro gannet_usermem_begin name",
    ".balign 64",
    ".globl \\name, \\name\\()_end, \\name\\()_fixup",
    ".hidden \\name, \\name\\()_end, \\name\\()_fixup",
    ".type \\name, @function",
    "\\name:",
    ".endm",
    // The same for a part of a routine, without alignment.
    ".macro gannet_usermem_begin_inner name",
    ".globl \\name, \\name\\()_end, \\name\\()_fixup",
    ".hidden \\name, \\name\\()_end, \\name\\()_fixup",
    "\\name:",
    ".endm",
    // Up to 256 bytes by vector registers, with an overlapping end; beyond that the string instruction is as fast as any loop.
    // A fault on the fast path leaves pointers and count at a place where all before is copied; the string instruction goes
    // on from there, byte by byte as far as it can, and its counter is exact.
    //
    // Long copies go page by page, each with the page behind it asked for: there the string instruction alone waits for memory
    // more than it need. (With the source in the cache that costs a twentieth, without it saves a tenth to a quarter; below
    // 16 KiB it costs more than it saves. Intel.) Where the string instruction asks ahead by itself (AMD), two pages are asked for
    // and all goes by one: page by page would cost a third more with the source in the cache, a twelfth more without.
    //
    // Where wide registers may be used, copies from 512 bytes to 8 KiB ask for all of their source at once and go by those: 4 KiB
    // take a seventh less time than by the string instruction where calls do not overlap (AMD EPYC), a read of a file a twentieth.
    // The registers are those that nothing compiled for the baseline holds, so nobody has to keep them.
    //
    // From there on, where both holds, four pages go side by side, four lines of each in turn: what asks ahead in the processor then
    // follows four streams. 16 KiB to 256 KiB out of cold memory take a fifth less time than by the string instruction, and less than
    // half where the target lies up to a line behind the source within its page, as large pieces of `malloc` do: there the string
    // instruction has 8 GB/s on Zen 4, and this 19. In the cache it takes up to a third more.
    "gannet_usermem_begin gannet_usermem_copy",
    "cmp rdx, 256",
    "ja 7f",
    "cmp rdx, 16",
    "jb 3f",
    "cmp rdx, 32",
    "jbe 2f",
    "cmp rdx, 64",
    "jbe 1f",
    "5:",
    "movups xmm0, [rsi]",
    "movups xmm1, [rsi + 16]",
    "movups xmm2, [rsi + 32]",
    "movups xmm3, [rsi + 48]",
    "movups [rdi], xmm0",
    "movups [rdi + 16], xmm1",
    "movups [rdi + 32], xmm2",
    "movups [rdi + 48], xmm3",
    "add rsi, 64",
    "add rdi, 64",
    "sub rdx, 64",
    "cmp rdx, 64",
    "ja 5b",
    "cmp rdx, 16",
    "jb 3f",
    "cmp rdx, 32",
    "jbe 2f",
    // 33 to 64 bytes.
    "1:",
    "movups xmm0, [rsi]",
    "movups xmm1, [rsi + 16]",
    "movups xmm2, [rsi + rdx - 32]",
    "movups xmm3, [rsi + rdx - 16]",
    "movups [rdi], xmm0",
    "movups [rdi + 16], xmm1",
    "movups [rdi + rdx - 32], xmm2",
    "movups [rdi + rdx - 16], xmm3",
    "xor eax, eax",
    "ret",
    // 16 to 32 bytes.
    "2:",
    "movups xmm0, [rsi]",
    "movups xmm1, [rsi + rdx - 16]",
    "movups [rdi], xmm0",
    "movups [rdi + rdx - 16], xmm1",
    "xor eax, eax",
    "ret",
    // 0 to 15 bytes.
    "3:",
    "cmp edx, 8",
    "jb 4f",
    "mov rax, [rsi]",
    "mov rcx, [rsi + rdx - 8]",
    "mov [rdi], rax",
    "mov [rdi + rdx - 8], rcx",
    "xor eax, eax",
    "ret",
    "4:",
    "cmp edx, 4",
    "jb 6f",
    "mov eax, [rsi]",
    "mov ecx, [rsi + rdx - 4]",
    "mov [rdi], eax",
    "mov [rdi + rdx - 4], ecx",
    "xor eax, eax",
    "ret",
    "6:",
    "test edx, edx",
    "je 8f",
    "movzx eax, byte ptr [rsi]",
    "mov [rdi], al",
    "cmp edx, 1",
    "je 8f",
    "movzx eax, word ptr [rsi + rdx - 2]",
    "mov [rdi + rdx - 2], ax",
    "8:",
    "xor eax, eax",
    "ret",
    "gannet_usermem_copy_end:",
    "7:",
    "cmp rdx, 8192",
    "ja 17f",
    "cmp rdx, 512",
    "jb 10f",
    "cmp byte ptr [rip + {wide}], 0",
    "je 10f",
    "lea r8, [rsi + rdx]",
    "mov rax, rsi",
    "13:",
    "prefetcht0 [rax]",
    "prefetcht0 [rax + 64]",
    "prefetcht0 [rax + 128]",
    "prefetcht0 [rax + 192]",
    "add rax, 256",
    "cmp rax, r8",
    "jb 13b",
    "gannet_usermem_begin_inner gannet_usermem_copy_wide",
    "vmovdqu64 zmm16, [rsi]",
    "vmovdqu64 zmm17, [rsi + 64]",
    "vmovdqu64 zmm18, [rsi + 128]",
    "vmovdqu64 zmm19, [rsi + 192]",
    "vmovdqu64 [rdi], zmm16",
    "vmovdqu64 [rdi + 64], zmm17",
    "vmovdqu64 [rdi + 128], zmm18",
    "vmovdqu64 [rdi + 192], zmm19",
    "add rsi, 256",
    "add rdi, 256",
    "sub rdx, 256",
    "cmp rdx, 256",
    "jae gannet_usermem_copy_wide",
    "gannet_usermem_copy_wide_end:",
    "jmp gannet_usermem_copy",
    // Everything before these pointers is copied.
    "gannet_usermem_copy_wide_fixup:",
    "gannet_usermem_copy_fixup:",
    "16:",
    "cmp rdx, 16384",
    "jae 9f",
    "10:",
    "mov rcx, rdx",
    "gannet_usermem_begin_inner gannet_usermem_copy_string",
    "rep movsb",
    "xor eax, eax",
    "ret",
    "gannet_usermem_copy_string_end:",
    "gannet_usermem_copy_string_fixup:",
    "mov rax, rcx",
    "ret",
    "9:",
    "cmp byte ptr [rip + {long}], {page_by_page}",
    "je 12f",
    "ja 14f",
    // It is not known yet.
    "push rdi",
    "push rsi",
    "push rdx",
    "call {choose}",
    "pop rdx",
    "pop rsi",
    "pop rdi",
    "jmp 9b",
    // More than 8 KiB.
    "17:",
    "cmp rdx, 16384",
    "jae 9b",
    "cmp byte ptr [rip + {wide}], 0",
    "je 10b",
    "cmp byte ptr [rip + {long}], {at_once}",
    "jne 10b",
    "jmp gannet_usermem_copy_wide",
    "14:",
    "cmp byte ptr [rip + {wide}], 0",
    "jne 18f",
    "lea rax, [rsi + 8192]",
    "mov rcx, rsi",
    "15:",
    "prefetcht0 [rcx]",
    "prefetcht0 [rcx + 64]",
    "prefetcht0 [rcx + 128]",
    "prefetcht0 [rcx + 192]",
    "add rcx, 256",
    "cmp rcx, rax",
    "jb 15b",
    "jmp 10b",
    // At least four pages are left.
    "18:",
    "mov ecx, 16",
    "gannet_usermem_begin_inner gannet_usermem_copy_four",
    ".irp page, 0, 4096, 8192, 12288",
    "vmovdqu64 zmm16, [rsi + \\page]",
    "vmovdqu64 zmm17, [rsi + \\page + 64]",
    "vmovdqu64 zmm18, [rsi + \\page + 128]",
    "vmovdqu64 zmm19, [rsi + \\page + 192]",
    "vmovdqu64 [rdi + \\page], zmm16",
    "vmovdqu64 [rdi + \\page + 64], zmm17",
    "vmovdqu64 [rdi + \\page + 128], zmm18",
    "vmovdqu64 [rdi + \\page + 192], zmm19",
    ".endr",
    "add rsi, 256",
    "add rdi, 256",
    "dec ecx",
    "jne gannet_usermem_copy_four",
    "gannet_usermem_copy_four_end:",
    "add rsi, 12288",
    "add rdi, 12288",
    "sub rdx, 16384",
    "cmp rdx, 16384",
    "jae 18b",
    "cmp rdx, 256",
    "jae gannet_usermem_copy_wide",
    "jmp gannet_usermem_copy",
    // Of the first of the four pages everything before the pointers is copied; the rest, from there on, once more.
    "gannet_usermem_copy_four_fixup:",
    "mov eax, 16",
    "sub eax, ecx",
    "shl eax, 8",
    "sub rdx, rax",
    "jmp 10b",
    // At least two pages are left. What stands behind the fault in this page, and the pages behind it, are left after one.
    "12:",
    "sub rdx, 4096",
    "lea rax, [rsi + 4096]",
    "lea r8, [rsi + 8192]",
    "11:",
    "prefetcht0 [rax]",
    "prefetcht0 [rax + 64]",
    "prefetcht0 [rax + 128]",
    "prefetcht0 [rax + 192]",
    "add rax, 256",
    "cmp rax, r8",
    "jb 11b",
    "mov ecx, 4096",
    "gannet_usermem_begin_inner gannet_usermem_copy_page",
    "rep movsb",
    "gannet_usermem_copy_page_end:",
    "cmp rdx, 8192",
    "jae 12b",
    "jmp 10b",
    "gannet_usermem_copy_page_fixup:",
    "lea rax, [rdx + rcx]",
    "ret",
    "gannet_usermem_begin gannet_usermem_zero",
    "mov rcx, rsi",
    "xor eax, eax",
    "rep stosb",
    "ret",
    "gannet_usermem_zero_end:",
    "gannet_usermem_zero_fixup:",
    "mov rax, rcx",
    "ret",
    "gannet_usermem_begin gannet_usermem_load8",
    "xor edx, edx",
    "movzx eax, byte ptr [rdi]",
    "ret",
    "gannet_usermem_load8_end:",
    "gannet_usermem_begin gannet_usermem_load32",
    "xor edx, edx",
    "mov eax, dword ptr [rdi]",
    "ret",
    "gannet_usermem_load32_end:",
    "gannet_usermem_begin gannet_usermem_load64",
    "xor edx, edx",
    "mov rax, qword ptr [rdi]",
    "ret",
    "gannet_usermem_load64_end:",
    "gannet_usermem_load8_fixup:",
    "gannet_usermem_load32_fixup:",
    "gannet_usermem_load64_fixup:",
    "xor eax, eax",
    "mov edx, 1",
    "ret",
    "gannet_usermem_begin gannet_usermem_store32",
    "mov dword ptr [rdi], esi",
    "xor eax, eax",
    "ret",
    "gannet_usermem_store32_end:",
    "gannet_usermem_begin gannet_usermem_store64",
    "mov qword ptr [rdi], rsi",
    "xor eax, eax",
    "ret",
    "gannet_usermem_store64_end:",
    "gannet_usermem_store32_fixup:",
    "gannet_usermem_store64_fixup:",
    "mov eax, 1",
    "ret",
    ".purgem gannet_usermem_begin",
    ".purgem gannet_usermem_begin_inner",
    ".popsection",
    long = sym LONG,
    page_by_page = const PAGE_BY_PAGE,
    at_once = const AT_ONCE,
    choose = sym choose,
    wide = sym WIDE,
);

/// How long copies go: not known yet (0), page by page, or at once.
static LONG: AtomicU8 = AtomicU8::new(0);
const PAGE_BY_PAGE: u8 = 1;
const AT_ONCE: u8 = 2;

/// Chooses by the processor how long copies go.
extern "C" fn choose() {
    // Only AMD (and those who build its designs) have SSE4a.
    const SSE4A: u32 = 1 << 6;
    let extended = processor::told(2).map_or_else(|| __cpuid(0x8000_0001).ecx, |leaf| leaf.processor[2]);
    long_copies_at_once(extended & SSE4A != 0);
}

/// Has copies of 16 KiB and more go by one string instruction from now on, or page by page. Without this the kind of the processor
/// decides, at the first of them. For tests and measurements.
pub fn long_copies_at_once(at_once: bool) {
    LONG.store(if at_once { AT_ONCE } else { PAGE_BY_PAGE }, Ordering::Relaxed);
}

/// 1 where copies may go by 512-bit registers.
static WIDE: AtomicU8 = AtomicU8::new(0);

/// From now on copies of some sizes, where long ones go at once of all from 512 bytes on, go by the registers `zmm16` to `zmm19`.
///
/// # Safety
/// The processor has AVX-512F, the system has enabled it, and nobody who calls into this process's file systems expects those
/// registers to be kept (the System V calling convention keeps none).
pub unsafe fn allow_wide_registers() {
    if LONG.load(Ordering::Relaxed) == 0 {
        choose();
    }
    WIDE.store(1, Ordering::Relaxed);
}

/// Copies go without wide registers again. For tests and measurements.
pub fn forbid_wide_registers() {
    WIDE.store(0, Ordering::Relaxed);
}

/// What a load found.
#[repr(C)]
pub(crate) struct Loaded {
    pub(crate) value: u64,
    /// 1 if the address is bad.
    pub(crate) bad: u64,
}

unsafe extern "C" {
    pub(crate) fn gannet_usermem_copy(to: *mut u8, from: *const u8, count: usize) -> usize;
    fn gannet_usermem_copy_string();
    fn gannet_usermem_copy_page();
    fn gannet_usermem_copy_wide();
    fn gannet_usermem_copy_four();
    pub(crate) fn gannet_usermem_zero(to: *mut u8, count: usize) -> usize;
    pub(crate) fn gannet_usermem_load8(from: usize) -> Loaded;
    pub(crate) fn gannet_usermem_load32(from: usize) -> Loaded;
    pub(crate) fn gannet_usermem_load64(from: usize) -> Loaded;
    pub(crate) fn gannet_usermem_store32(to: usize, value: u32) -> u64;
    pub(crate) fn gannet_usermem_store64(to: usize, value: u64) -> u64;
}

/// Declares the end and the continuation of a routine and describes it.
macro_rules! range {
    ($routine:ident, $end:ident, $fixup:ident) => {{
        unsafe extern "C" {
            static $end: u8;
            static $fixup: u8;
        }
        // SAFETY: the routine is a leaf that does not move the stack pointer, and its continuation goes on from, or sets the
        // result from, registers that hold what it needs throughout.
        unsafe { FaultRange::new($routine as *const u8, &raw const $end, &raw const $fixup) }
    }};
}

/// The routines of this crate.
pub(crate) static RANGES: [FaultRange; 11] = [
    range!(gannet_usermem_copy, gannet_usermem_copy_end, gannet_usermem_copy_fixup),
    range!(gannet_usermem_copy_string, gannet_usermem_copy_string_end, gannet_usermem_copy_string_fixup),
    range!(gannet_usermem_copy_wide, gannet_usermem_copy_wide_end, gannet_usermem_copy_wide_fixup),
    range!(gannet_usermem_copy_four, gannet_usermem_copy_four_end, gannet_usermem_copy_four_fixup),
    range!(gannet_usermem_copy_page, gannet_usermem_copy_page_end, gannet_usermem_copy_page_fixup),
    range!(gannet_usermem_zero, gannet_usermem_zero_end, gannet_usermem_zero_fixup),
    range!(gannet_usermem_load8, gannet_usermem_load8_end, gannet_usermem_load8_fixup),
    range!(gannet_usermem_load32, gannet_usermem_load32_end, gannet_usermem_load32_fixup),
    range!(gannet_usermem_load64, gannet_usermem_load64_end, gannet_usermem_load64_fixup),
    range!(gannet_usermem_store32, gannet_usermem_store32_end, gannet_usermem_store32_fixup),
    range!(gannet_usermem_store64, gannet_usermem_store64_end, gannet_usermem_store64_fixup),
];
