//! Where trampolines live: slots of equal size inside our own library, so that they have unwind information.
//!
//! The last eight bytes of a slot hold the address the original `syscall` returns to. The unwind information
//! of the library's own area computes that from the instruction pointer; so does [`original_of`] for the signal wrapper.

use crate::entry;
use crate::number;
use crate::raw::{is_error, syscall};
use core::sync::atomic::{AtomicUsize, Ordering};

/// Size and alignment of a slot.
pub(crate) const SLOT_BYTES: usize = 128;
/// Where in a slot the original return address stands.
pub(crate) const SLOT_ORIGINAL_OFFSET: usize = SLOT_BYTES - 8;

const AREAS_MAX: usize = 64;
/// Start and end of every area, for the signal wrapper; entries are only ever added.
static STARTS: [AtomicUsize; AREAS_MAX] = [const { AtomicUsize::new(0) }; AREAS_MAX];
static ENDS: [AtomicUsize; AREAS_MAX] = [const { AtomicUsize::new(0) }; AREAS_MAX];
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// A run of slots being filled.
pub(crate) struct Area {
    start: usize,
    slot_count: usize,
    used: usize,
}

const PROT_READ_WRITE_EXECUTE: usize = 7;
const PROT_READ_EXECUTE: usize = 5;

impl Area {
    /// The area inside our own library, or `None` if its pages cannot be made writable. At most `slots` will be used.
    /// Must be taken once per process.
    pub(crate) fn own(slots: usize) -> Option<Area> {
        let (start, length) = entry::own_area();
        let area = Area { start, slot_count: slots.min(length / SLOT_BYTES), used: 0 };
        area.open_for_writing()?;
        register(area.start, area.end());
        Some(area)
    }

    fn end(&self) -> usize {
        self.start + self.slot_count * SLOT_BYTES
    }

    fn pages(&self) -> (usize, usize) {
        let start = self.start & !4095;
        (start, self.end().next_multiple_of(4096) - start)
    }

    fn open_for_writing(&self) -> Option<()> {
        let (start, length) = self.pages();
        // SAFETY: our own pages, which stay executable.
        (!is_error(unsafe { syscall(number::MPROTECT, [start, length, PROT_READ_WRITE_EXECUTE]) })).then_some(())
    }

    /// The address of the next free slot.
    pub(crate) fn next_slot(&self) -> Option<usize> {
        (self.used < self.slot_count).then(|| self.start + self.used * SLOT_BYTES)
    }

    /// Fills the next free slot.
    pub(crate) fn write_slot(&mut self, bytes: &[u8; SLOT_BYTES]) {
        let Some(slot) = self.next_slot() else { return };
        // SAFETY: a free slot of a writable area; nothing executes it yet.
        unsafe { core::ptr::copy_nonoverlapping(bytes.as_ptr(), slot as *mut u8, SLOT_BYTES) };
        self.used += 1;
    }

    /// Takes the right to write away again.
    pub(crate) fn close(self) {
        let (start, length) = self.pages();
        // SAFETY: our own pages.
        unsafe { syscall(number::MPROTECT, [start, length, PROT_READ_EXECUTE]) };
    }
}

fn register(start: usize, end: usize) {
    let index = COUNT.load(Ordering::Relaxed);
    if index < AREAS_MAX {
        STARTS[index].store(start, Ordering::Relaxed);
        ENDS[index].store(end, Ordering::Relaxed);
        COUNT.store(index + 1, Ordering::Release);
    }
}

/// The address an instruction pointer inside a trampoline stands for, or `None` if it is in no trampoline.
pub(crate) fn original_of(instruction_pointer: usize) -> Option<usize> {
    for index in 0..COUNT.load(Ordering::Acquire) {
        let start = STARTS[index].load(Ordering::Relaxed);
        if (start..ENDS[index].load(Ordering::Relaxed)).contains(&instruction_pointer) {
            let slot = start + (instruction_pointer - start) / SLOT_BYTES * SLOT_BYTES;
            // SAFETY: a slot of a registered area, which stays mapped.
            return Some(unsafe { ((slot + SLOT_ORIGINAL_OFFSET) as *const usize).read() });
        }
    }
    None
}
