//! Where trampolines live: slots of equal size, in runs, one run for each object.
//!
//! The first area lies inside our own library and has unwind information: the last eight bytes of a slot tell where the original
//! `syscall` returns to, counted from the slot, which that information computes from the instruction pointer; so does [`original_of`] for
//! the signal wrapper. Objects too far away for a jump get areas of their own, mapped near them, without unwind information: a
//! backtrace from inside such a call ends there, cancellation does not.
//!
//! Everything here is called under the lock of [`crate::objects`], but for [`original_of`].

use crate::number;
use crate::raw::{is_error, syscall};
use core::arch::global_asm;
use core::sync::atomic::{AtomicUsize, Ordering};

/// Largest size of a slot, and its size in areas of their own.
pub(crate) const SLOT_BYTES_MAX: usize = 256;
/// Size and alignment of a slot in the library's own area, and in prepared copies.
pub(crate) const OWN_SLOT_BYTES: usize = 128;
/// Bytes at a slot's end that hold the distance to the original return address.
pub(crate) const ORIGINAL_BYTES: usize = 8;

const AREA_BYTES_MIN: usize = 64 * 1024;
const AREAS_MAX: usize = 64;
/// Most that a slot and the code it serves are apart: what a jump reaches, less the size of an object's text.
const REACH_BYTES: usize = (1 << 31) - (1 << 24);

/// An area, for the signal wrapper, too.
struct Area {
    start: AtomicUsize,
    end: AtomicUsize,
    slot_bytes: AtomicUsize,
    /// Its first byte that is in no run yet.
    free: AtomicUsize,
}

/// Entries are only ever added.
static AREAS: [Area; AREAS_MAX] = [const {
    Area {
        start: AtomicUsize::new(0),
        end: AtomicUsize::new(0),
        slot_bytes: AtomicUsize::new(0),
        free: AtomicUsize::new(0),
    }
}; AREAS_MAX];
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// A run of slots being filled.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Run {
    start: usize,
    /// Size of each slot.
    pub(crate) slot_bytes: usize,
    slot_count: usize,
    used: usize,
}

const OWN_AREA_BYTES: usize = 128 * 1024;

unsafe extern "C" {
    static gannet_own_area: u8;
}

global_asm!(
    // Room for trampolines, under unwind information that says: this is a frame without extent whose return address
    // is told, as a distance from the slot's start, by the last eight bytes of the slot that the instruction pointer is in.
    ".section .text.gannet_area,\"ax\",@progbits",
    ".p2align 12",
    ".globl gannet_own_area",
    ".hidden gannet_own_area",
    ".cfi_startproc simple",
    ".cfi_signal_frame",
    ".cfi_def_cfa rsp, 0",
    // DW_CFA_val_expression rip: breg16 0, const1s -128, and, dup, plus_uconst 120, deref, plus
    ".cfi_escape 0x16, 0x10, 0x0a, 0x80, 0x00, 0x09, 0x80, 0x1a, 0x12, 0x23, 0x78, 0x06, 0x22",
    "gannet_own_area:",
    ".fill {own_area_bytes}, 1, 0xcc",
    ".cfi_endproc",
    ".p2align 12",
    ".text",
    own_area_bytes = const OWN_AREA_BYTES,
);

/// Start and length of the area for trampolines inside our own text.
pub(crate) fn own_area() -> (usize, usize) {
    (&raw const gannet_own_area as usize, OWN_AREA_BYTES)
}

const PROT_READ_WRITE_EXECUTE: usize = 7;
const PROT_READ_EXECUTE: usize = 5;

/// Makes the library's own area known. Once, at start.
#[unsafe(link_section = ".text.hot.gannet")]
pub(crate) fn initialise() {
    let (start, length) = own_area();
    register(start, start + length, OWN_SLOT_BYTES);
}

/// A run of `count` slots, writable, from which jumps reach `text` and back.
pub(crate) fn take(count: usize, text: core::ops::Range<usize>) -> Option<Run> {
    let reaches = |start: usize, end: usize| end.max(text.end) - start.min(text.start) < REACH_BYTES;
    let areas = COUNT.load(Ordering::Relaxed);
    let mut found = (0..areas).find(|&index| {
        let (free, end) = (AREAS[index].free.load(Ordering::Relaxed), AREAS[index].end.load(Ordering::Relaxed));
        let needed = count * AREAS[index].slot_bytes.load(Ordering::Relaxed);
        end - free >= needed && reaches(AREAS[index].start.load(Ordering::Relaxed), end)
    });
    if found.is_none() && areas < AREAS_MAX {
        let length = (count * SLOT_BYTES_MAX).max(AREA_BYTES_MIN).next_multiple_of(4096);
        let start = map_near(length, &text)?;
        register(start, start + length, SLOT_BYTES_MAX);
        found = Some(areas);
    }
    let index = found?;
    let slot_bytes = AREAS[index].slot_bytes.load(Ordering::Relaxed);
    let start = AREAS[index].free.load(Ordering::Relaxed);
    let run = Run { start, slot_bytes, slot_count: count, used: 0 };
    run.open()?;
    AREAS[index].free.store(start + count * slot_bytes, Ordering::Relaxed);
    Some(run)
}

/// Maps memory for an area near `text`. Below it by preference: above a program lies what grows with `brk`.
fn map_near(length: usize, text: &core::ops::Range<usize>) -> Option<usize> {
    const PROT_READ_EXECUTE_FIXED: usize = 0x10_0022; // MAP_FIXED_NOREPLACE, private, anonymous
    const STEP_BYTES: usize = 1 << 16;
    let mut distance = STEP_BYTES;
    while distance < REACH_BYTES / 2 {
        let below = (text.start & !4095).checked_sub(distance + length);
        let above = (text.end.next_multiple_of(4096)).checked_add(distance + (1 << 30));
        for hint in [below, above].into_iter().flatten().filter(|&hint| hint >= STEP_BYTES) {
            let call = [hint & !4095, length, PROT_READ_EXECUTE, PROT_READ_EXECUTE_FIXED, usize::MAX, 0];
            // SAFETY: a new map where nothing is.
            let made = unsafe { syscall(number::MMAP, call) };
            if made == (hint & !4095) as isize {
                return Some(made as usize);
            }
            if !is_error(made) {
                // A kernel that does not know the flag put it elsewhere.
                // SAFETY: the map just made.
                unsafe { syscall(number::MUNMAP, [made as usize, length]) };
            }
        }
        distance *= 2;
    }
    None
}

/// Gives writable pages memory of their own at once: one call instead of a fault for each. That it fails only costs time.
pub(crate) fn populate(start: usize, length: usize) {
    const MADV_POPULATE_WRITE: usize = 23;
    // SAFETY: changes no contents.
    unsafe { syscall(number::MADVISE, [start, length, MADV_POPULATE_WRITE]) };
}

impl Run {
    fn pages(&self) -> (usize, usize) {
        let start = self.start & !4095;
        (start, (self.start + self.slot_count * self.slot_bytes).next_multiple_of(4096) - start)
    }

    /// Makes the run writable; it stays executable, as others may be running in neighbouring slots.
    fn open(&self) -> Option<()> {
        let (start, length) = self.pages();
        // SAFETY: our own pages, which stay executable.
        (!is_error(unsafe { syscall(number::MPROTECT, [start, length, PROT_READ_WRITE_EXECUTE]) })).then_some(())?;
        populate(start, length);
        Some(())
    }

    /// The same run, to be filled anew: nothing leads to it any more.
    pub(crate) fn reuse(self) -> Option<Run> {
        self.open()?;
        Some(Run { used: 0, ..self })
    }

    /// Whether the run has at least so many slots and jumps from it reach `text`.
    pub(crate) fn suits(&self, count: usize, text: &core::ops::Range<usize>) -> bool {
        let end = self.start + self.slot_count * self.slot_bytes;
        self.slot_count >= count && end.max(text.end) - self.start.min(text.start) < REACH_BYTES
    }

    /// The address of the next free slot.
    pub(crate) fn next_slot(&self) -> Option<usize> {
        (self.used < self.slot_count).then(|| self.start + self.used * self.slot_bytes)
    }

    /// Fills the next free slot.
    pub(crate) fn write_slot(&mut self, bytes: &[u8; SLOT_BYTES_MAX]) {
        let Some(slot) = self.next_slot() else { return };
        // SAFETY: a free slot of a writable run; nothing executes it yet.
        unsafe { core::ptr::copy_nonoverlapping(bytes.as_ptr(), slot as *mut u8, self.slot_bytes) };
        self.used += 1;
    }

    /// Takes the right to write away again.
    pub(crate) fn close(&self) {
        let (start, length) = self.pages();
        // SAFETY: our own pages.
        unsafe { syscall(number::MPROTECT, [start, length, PROT_READ_EXECUTE]) };
    }
}

/// Makes an area known whose slots are all in use.
#[unsafe(link_section = ".text.hot.gannet")]
pub(crate) fn register_full(start: usize, length: usize) -> bool {
    let index = COUNT.load(Ordering::Relaxed);
    register(start, start + length, OWN_SLOT_BYTES);
    if let Some(Area { free, .. }) = AREAS.get(index) {
        free.store(start + length, Ordering::Relaxed);
    }
    index < AREAS_MAX
}

#[unsafe(link_section = ".text.hot.gannet")]
fn register(start: usize, end: usize, slot_bytes: usize) {
    let index = COUNT.load(Ordering::Relaxed);
    if index < AREAS_MAX {
        AREAS[index].start.store(start, Ordering::Relaxed);
        AREAS[index].end.store(end, Ordering::Relaxed);
        AREAS[index].free.store(start, Ordering::Relaxed);
        AREAS[index].slot_bytes.store(slot_bytes, Ordering::Relaxed);
        COUNT.store(index + 1, Ordering::Release);
    }
}

/// The address an instruction pointer inside a trampoline or gate stands for, or `None` if it is in neither.
pub(crate) fn original_of(instruction_pointer: usize) -> Option<usize> {
    if let Some(original) = super::gates::original_of(instruction_pointer) {
        return Some(original);
    }
    for area in AREAS.iter().take(COUNT.load(Ordering::Acquire)) {
        let start = area.start.load(Ordering::Relaxed);
        if (start..area.end.load(Ordering::Relaxed)).contains(&instruction_pointer) {
            let slot_bytes = area.slot_bytes.load(Ordering::Relaxed);
            let slot = start + (instruction_pointer - start) / slot_bytes * slot_bytes;
            // SAFETY: a slot of a registered area, which stays mapped.
            let distance = unsafe { ((slot + slot_bytes - ORIGINAL_BYTES) as *const usize).read() };
            return Some(slot.wrapping_add(distance));
        }
    }
    None
}
