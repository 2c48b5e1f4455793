//! Gates: the `syscall` instructions of prepared copies, one for each site.
//!
//! They lie in our own text, under unwind information, because a thread that waits in the kernel is seen there: by who
//! cancels it, by debuggers and profilers. The code of a prepared copy, which has none, jumps to its site's gate and back;
//! gates are the same in every process, what differs stands in [`EXITS`].

use core::arch::global_asm;
use core::sync::atomic::{AtomicUsize, Ordering};

/// Size and alignment of a gate.
const GATE_BYTES: usize = 16;
const GATE_COUNT: usize = 1024;

/// Where a gate leads.
#[repr(C)]
struct Exit {
    /// Where its code goes on behind the `syscall` instruction.
    behind: AtomicUsize,
    /// Where the original `syscall` instruction returns to.
    original: AtomicUsize,
}
const _: () = assert!(size_of::<Exit>() == 16);

#[unsafe(link_section = ".bss.gannet_exits")]
static EXITS: [Exit; GATE_COUNT] =
    [const { Exit { behind: AtomicUsize::new(0), original: AtomicUsize::new(0) } }; GATE_COUNT];
static USED: AtomicUsize = AtomicUsize::new(0);

unsafe extern "C" {
    static gannet_gates: u8;
}

global_asm!(
    ".section .text.gannet_gates,\"ax\",@progbits",
    ".p2align 6",
    ".globl gannet_gates",
    ".hidden gannet_gates",
    ".cfi_startproc simple",
    ".cfi_signal_frame",
    ".cfi_def_cfa rsp, 0",
    // A frame without extent. Where its caller goes on is the second word of the gate's exit, whose place the jump in the gate tells:
    // DW_CFA_val_expression rip: breg16 0, const1s -16, and, dup, plus_uconst 4, deref_size 4, plus, plus_uconst 16, deref
    ".cfi_escape 0x16, 0x10, 0x0e, 0x80, 0x00, 0x09, 0xf0, 0x1a, 0x12, 0x23, 0x04, 0x94, 0x04, 0x22, 0x23, 0x10, 0x06",
    "gannet_gates:",
    ".set gannet_gate, 0",
    ".rept {count}",
    "syscall",
    "jmp qword ptr [rip + {exits} + gannet_gate]",
    ".p2align 4, 0xcc",
    ".set gannet_gate, gannet_gate + 16",
    ".endr",
    ".cfi_endproc",
    ".text",
    count = const GATE_COUNT,
    exits = sym EXITS,
);

fn start() -> usize {
    &raw const gannet_gates as usize
}

/// The gate that an address lies in.
fn index_of(address: usize) -> Option<usize> {
    let offset = address.wrapping_sub(start());
    (offset < GATE_COUNT * GATE_BYTES).then_some(offset / GATE_BYTES)
}

/// Takes `count` gates that follow each other; the first. Called while the process has one thread.
#[unsafe(link_section = ".text.hot.gannet")]
pub(crate) fn take(count: usize) -> Option<usize> {
    let first = USED.load(Ordering::Relaxed);
    let end = first.checked_add(count).filter(|end| *end <= GATE_COUNT)?;
    USED.store(end, Ordering::Relaxed);
    Some(first)
}

/// Gives back what was taken last, if nothing leads there.
pub(crate) fn give_back(first: usize) {
    USED.store(first, Ordering::Relaxed);
}

/// Says where a gate leads: on to `behind`, standing for a `syscall` instruction that returns to `original`. Returns its address.
#[unsafe(link_section = ".text.hot.gannet")]
pub(crate) fn set(index: usize, behind: usize, original: usize) -> usize {
    EXITS[index].behind.store(behind, Ordering::Relaxed);
    EXITS[index].original.store(original, Ordering::Relaxed);
    start() + index * GATE_BYTES
}

/// Where the code of the gate at `address` goes on, if that is a gate.
#[inline]
pub(crate) fn behind(address: usize) -> Option<usize> {
    index_of(address).map(|index| EXITS[index].behind.load(Ordering::Relaxed))
}

/// What an instruction pointer inside a gate stands for.
pub(crate) fn original_of(instruction_pointer: usize) -> Option<usize> {
    index_of(instruction_pointer).map(|index| EXITS[index].original.load(Ordering::Relaxed))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_gate_leads_to_its_own_exit() {
        let exits = EXITS.as_ptr() as usize;
        for index in 0..GATE_COUNT {
            let gate = start() + index * GATE_BYTES;
            // SAFETY: our own text.
            let code = unsafe { core::slice::from_raw_parts(gate as *const u8, 8) };
            assert_eq!(code[..4], [0x0f, 0x05, 0xff, 0x25], "syscall; jmp [rip + ...]");
            let distance = u32::from_le_bytes(code[4..].try_into().expect("four bytes"));
            // The unwind information takes the distance as positive.
            assert_eq!(gate + 8 + distance as usize, exits + index * size_of::<Exit>());
        }
    }
}
