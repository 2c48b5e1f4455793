//! The way from a trampoline into the handler and back: saves what a system call preserves, changes to the engine stack.
//!
//! Entered by jumps with rcx leading to the trampoline's `syscall` instruction and r11 free. Left with everything as
//! it was, either to that instruction (the call passes) or behind it with the result in rax. The program's
//! stack is not touched, but where there is no memory for an engine stack.
//!
//! The thread's state is a block of initial-exec thread-local storage, so that finding it is two instructions and
//! never calls the dynamic loader:
//!
//! | offset | field |
//! | --- | --- |
//! | 0 | busy: an operation is running (1), or code of ours at start (2); signals are deferred, system calls pass |
//! | 1 | a signal was deferred |
//! | 2 | the alternate signal stack is hidden, to be shown at the end of the operation |
//! | 3 | the program has an alternate signal stack |
//! | 4 | the call is made again behind the deferred signals |
//! | 5 | the process's end leaves nothing behind: its call passes at once |
//! | 6 | the life word of the `vfork` child whose call this is, plus one ([`crate::lock`]) |
//! | 8 | the thread's record, above its engine stack; 0: none yet |
//! | 16 | signals blocked by deferring, to be unblocked |
//! | 32–95 | registers while the engine stack is being made, or a path is looked at |
//! | 96–119 | the program's alternate signal stack, as `stack_t` |
//! | 120 | the signal mask of a program whose alternate stack is hidden |
//!
//! While the program runs on its alternate signal stack the kernel, seeing the engine stack in use, would deliver the next
//! signal at the top of the alternate stack, over live frames. So such an operation runs with signals blocked and that
//! stack disabled: blocked before the change of stacks, disabled behind it, both undone after the change back.

mod apart;
mod code;
pub(crate) mod left;

use crate::table::{CLASSES, NUMBER_LIMIT};
use core::sync::atomic::{AtomicU8, Ordering};

/// Descriptors at or above this are never ours.
pub(crate) const DESCRIPTOR_LIMIT: usize = 1 << 16;

/// In a mark: the descriptor may be ours.
const MARK_OURS: u8 = 1;
/// In a mark: the handler wants to know when it is closed.
const MARK_WATCHED: u8 = 2;
/// In a mark: the descriptor may be ours in a `vfork` child, which shares the marks but not the descriptors. Threads of its parent that
/// close their own must not take it away; it stays, at the price of calls of the host's that the handler passes on.
const MARK_OF_CHILD: u8 = 4;
/// In a mark: the handler wants to know what memory calls name, whosever the descriptor is.
const MARK_OF_MEMORY: u8 = 8;
/// Any of them sends a call on the descriptor to the handler.
pub(crate) const MARKS_OF_CALLS: u8 = MARK_OURS | MARK_OF_CHILD | MARK_OF_MEMORY;

/// What the filter reads. Beside each other, so that it is one page as a rule, which a forked child has already.
#[repr(C, align(4096))]
struct FilterTables {
    /// [`CLASSES`], once [`initialise`] was called: nothing is rewritten before.
    classes: [AtomicU8; NUMBER_LIMIT],
    /// By the letter behind the first slash of a path: not 0 if the path is the host's, as long as it has neither empty nor dotted components.
    letters: [AtomicU8; 256],
    /// What is known of each descriptor.
    marks: [AtomicU8; DESCRIPTOR_LIMIT],
}

#[unsafe(link_section = ".bss.gannet_large")]
static FILTER: FilterTables = FilterTables {
    classes: [const { AtomicU8::new(0) }; NUMBER_LIMIT],
    letters: [const { AtomicU8::new(0) }; 256],
    marks: [const { AtomicU8::new(0) }; DESCRIPTOR_LIMIT],
};

/// Makes the tables of the filter ready. At start, before anything is rewritten.
pub(crate) fn initialise() {
    for (place, class) in FILTER.classes.iter().zip(CLASSES) {
        place.store(class, Ordering::Relaxed);
    }
}

/// Lets paths pass that do not begin like what of the host's leads to descriptors. At start, and then [`look_at_paths_like`].
#[inline(always)]
pub(crate) fn let_paths_pass() {
    for letter in &FILTER.letters {
        letter.store(1, Ordering::Relaxed);
    }
    for path in ["//", "/.", "/proc", "/dev"] {
        look_at_paths_like(path.as_bytes());
    }
}

/// Lets paths that begin like the place of a mount come to the handler. At start.
#[inline(always)]
pub(crate) fn look_at_paths_like(place: &[u8]) {
    match place.get(1) {
        Some(letter) => FILTER.letters[usize::from(*letter)].store(0, Ordering::Relaxed),
        None => {
            for letter in &FILTER.letters {
                letter.store(0, Ordering::Relaxed);
            }
        }
    }
}

/// Where to go on after a fault at `instruction_pointer`, if it lies where the entry reads what a program calls a path: in the handler.
pub(crate) fn fixup(instruction_pointer: usize) -> Option<usize> {
    unsafe extern "C" {
        static gannet_plain_path_start: u8;
        static gannet_plain_path_end: u8;
        static gannet_plain_path_fixup: u8;
    }
    let range = &raw const gannet_plain_path_start as usize..&raw const gannet_plain_path_end as usize;
    range.contains(&instruction_pointer).then_some(&raw const gannet_plain_path_fixup as usize)
}

/// Where the filter finds the classes of system calls.
pub(crate) fn classes_address() -> usize {
    FILTER.classes.as_ptr() as usize
}

/// Non-zero while placeholders of closed descriptors are kept.
static HELD_MARK: AtomicU8 = AtomicU8::new(0);

/// Non-zero once a volume was opened, or a child shared memory with us: the end of the process is the handler's then.
static VOLUMES_USED: AtomicU8 = AtomicU8::new(0);

/// From here on the handler sees the process end.
pub(crate) fn note_use() {
    if VOLUMES_USED.load(Ordering::Relaxed) == 0 {
        VOLUMES_USED.store(1, Ordering::Release);
    }
}

/// Where the filter finds the marks.
pub(crate) fn descriptor_marks_address() -> usize {
    FILTER.marks.as_ptr() as usize
}

/// Where the filter finds whether placeholders of closed descriptors are kept.
pub(crate) fn held_mark_address() -> usize {
    HELD_MARK.as_ptr() as usize
}

/// Sends calls on `descriptor` to the handler from now on.
pub(crate) fn mark_descriptor(descriptor: usize) {
    change_mark(descriptor, MARK_OURS, 0);
}

/// Likewise for a `vfork` child, whatever its parent's threads do.
pub(crate) fn mark_descriptor_of_child(descriptor: usize) {
    change_mark(descriptor, MARK_OF_CHILD, 0);
}

/// Whether calls on `descriptor` go to the handler for what it is.
pub(crate) fn is_marked(descriptor: usize) -> bool {
    let of_it = MARK_OURS | MARK_OF_CHILD;
    FILTER.marks.get(descriptor).is_some_and(|mark| mark.load(Ordering::Relaxed) & of_it != 0)
}

/// Sends calls on all descriptors to the handler from now on, and for good.
pub(crate) fn mark_all_descriptors() {
    for mark in FILTER.marks.iter().filter(|mark| mark.load(Ordering::Relaxed) & MARK_OF_MEMORY == 0) {
        mark.fetch_or(MARK_OF_MEMORY, Ordering::Relaxed);
    }
}

/// Lets calls on `descriptor` pass from now on, where no `vfork` child may need them.
pub(crate) fn unmark_descriptor(descriptor: usize) {
    change_mark(descriptor, 0, MARK_OURS);
}

#[inline]
fn change_mark(descriptor: usize, set: u8, cleared: u8) {
    let Some(mark) = FILTER.marks.get(descriptor) else { return };
    if crate::thread::is_alone() {
        mark.store(mark.load(Ordering::Relaxed) & !cleared | set, Ordering::Release);
    } else if set != 0 {
        mark.fetch_or(set, Ordering::AcqRel);
    } else {
        mark.fetch_and(!cleared, Ordering::AcqRel);
    }
}

/// Sends calls that close these descriptors to the handler from now on. While the process has one thread.
pub(crate) fn watch_descriptors(descriptors: core::ops::Range<usize>) {
    for mark in FILTER.marks.get(descriptors).unwrap_or_default() {
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

/// Room for the vector state of programs' code that is not the C library's.
const XSAVE_AREA_BYTES: usize = 4096;

unsafe extern "C" {
    fn gannet_entry();
    fn gannet_entry_full();
    fn gannet_ask_about(address: usize) -> isize;
    fn gannet_thread_state() -> *mut ThreadState;
    fn gannet_execute();
    fn gannet_thread_exit();
    fn gannet_deliver_lowered();
    fn gannet_deliver_stored();
    fn gannet_deliver_raised();
    fn gannet_deliver_end();
    static mut gannet_xsave_mask: u32;
}

/// What [`ThreadState::busy`] is in an operation.
const BUSY: u8 = 1;
/// And at start, where code of ours runs on the program's stack.
pub(crate) const BUSY_AT_START: u8 = 2;

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
    /// Nothing of a volume is in use, whatever [`note_use`] was told: until the next call that reaches the handler.
    pub(crate) ends_empty: u8,
    /// The life word of the `vfork` child whose call is being handled, plus one; 0: of none, or it is the process's call.
    pub(crate) child: u8,
    padding: u8,
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

/// Where the program is, for an instruction pointer in the entry's code while no operation runs: an address in the slot that led here, and the
/// program's stack pointer. `None` if it is elsewhere. A slot need not have unwind information, so that an unwinder must not begin here.
///
/// # Safety
/// The registers must be of one interrupted instruction of this thread.
pub(crate) unsafe fn program_behind(instruction: usize, stack: usize, rcx: usize) -> Option<(usize, usize)> {
    /// How far `gannet_deliver` lowers the stack, and where in that room it keeps rcx.
    const LOWERED_BYTES: usize = 192;
    const SLOT_OFFSET: usize = 40;
    let at = |label: unsafe extern "C" fn()| label as *const () as usize;
    if (at(gannet_entry)..at(gannet_deliver_lowered)).contains(&instruction)
        || (at(gannet_deliver_raised)..at(gannet_deliver_end)).contains(&instruction)
    {
        return Some((rcx, stack));
    }
    if !(at(gannet_deliver_lowered)..at(gannet_deliver_raised)).contains(&instruction) {
        return None;
    }
    let slot = if instruction < at(gannet_deliver_stored) {
        rcx
    } else {
        // SAFETY: in that room of this thread's stack.
        unsafe { ((stack + SLOT_OFFSET) as *const usize).read() }
    };
    Some((slot, stack + LOWERED_BYTES))
}

/// The number of the call that [`ask_about`] makes; the kernel knows none such.
pub(crate) const FAULTED: usize = 0x3_0000;

/// From a signal handler, outside of operations: asks the handler of calls whether an address that nothing was behind can be used by now.
pub(crate) fn ask_about(address: usize) -> bool {
    // SAFETY: comes through the entry as any call of the program does.
    unsafe { gannet_ask_about(address) == 1 }
}

/// The number by which an `execve` that failed comes back, with its result for an argument; the kernel knows none such.
pub(crate) const NOT_EXECUTED: usize = 0x3_0001;

/// Where an `execve` is made, which comes back by [`NOT_EXECUTED`].
pub(crate) fn execute_address() -> usize {
    gannet_execute as *const () as usize
}

/// Where a thread that exits goes on.
pub(crate) fn thread_exit_address() -> usize {
    gannet_thread_exit as *const () as usize
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
