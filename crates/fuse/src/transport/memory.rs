//! Memory that the kernel writes requests into and reads replies from.
//!
//! Whole pages of an anonymous map. Who owns a [`Pages`] promises by the borrow rules that the kernel is not using the
//! memory while a slice of it is borrowed; the ring does so entry by entry.

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

const PAGE_BYTES: usize = 4096;

/// Page-aligned, zeroed memory that stays where it is.
pub(super) struct Pages {
    start: *mut u8,
    length_bytes: usize,
}

// SAFETY: the memory belongs to the value alone; access is by `&mut self` or by the kernel.
unsafe impl Send for Pages {}

impl Pages {
    /// At least `length_bytes`, touched nowhere: pages come to be on the core that first uses them.
    pub(super) fn new(length_bytes: usize) -> rustix::io::Result<Self> {
        let length_bytes = length_bytes.next_multiple_of(PAGE_BYTES);
        // SAFETY: a new private map at an address of the kernel's choice touches no existing memory.
        let start = unsafe {
            mmap_anonymous(std::ptr::null_mut(), length_bytes, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE)?
        };
        Ok(Self { start: start.cast(), length_bytes })
    }

    /// The address, for the kernel.
    pub(super) fn address(&self) -> *mut u8 {
        self.start
    }

    /// How long it is.
    pub(super) fn length_bytes(&self) -> usize {
        self.length_bytes
    }

    /// The bytes.
    ///
    /// # Safety
    /// The kernel does not access the memory while the slice lives: no command that names it is under way.
    pub(super) unsafe fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: the map is this long, initialised (zeros), exclusively borrowed, and idle as the caller promises.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.length_bytes) }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: the map was made by `new` and nothing borrows it any more. The owner drops its ring first.
        let _ = unsafe { munmap(self.start.cast(), self.length_bytes) };
    }
}
