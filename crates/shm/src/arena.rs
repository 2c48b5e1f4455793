//! One mapping of shared memory, and the only way to its words.
//!
//! Access is by [`ArenaOffset`], checked against the mapping's size and the word's alignment on
//! every use. Pages are never populated ahead; what an owner is about to publish it first
//! [`reserve`](Arena::reserve)s, so that a full `/dev/shm` is an error and not a SIGBUS.

use crate::descriptor::Descriptor;
use crate::error::{Error, Result};
use crate::facade::{Word, Word32};
use crate::file::{ArenaPath, life};
use crate::layout::{ArenaOffset, Computed, HUGE_PAGE_BYTES, PAGE_BYTES, Region, align_up};
use rustix::fd::{AsFd, BorrowedFd};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};
use std::ffi::c_void;

/// A mapped arena. Dropped: unmapped.
#[derive(Debug)]
pub struct Arena {
    base: *mut u8,
    bytes: u64,
    layout: Computed,
    file: Option<ArenaPath>,
    /// Device and inode of the file that is mapped.
    mapped: Option<(u64, u64)>,
    /// Somebody before us made it complete.
    pub(crate) is_founded: bool,
}

// SAFETY: the mapping lives as long as the value and is only ever accessed through atomics.
unsafe impl Send for Arena {}
// SAFETY: as above.
unsafe impl Sync for Arena {}

impl Arena {
    /// Maps `fd`, whose size is the layout's, or anonymous shared memory.
    pub(crate) fn map(layout: Computed, opened: Option<&Descriptor>, file: Option<&ArenaPath>) -> Result<Self> {
        let bytes = layout.bytes;
        let doing = "map the arena";
        let (fd, mapped) = (opened.map(AsFd::as_fd), opened.map(Descriptor::file));
        let file = file.cloned();
        if let Some(base) = fd.and_then(|fd| Self::map_at_once(bytes, fd)) {
            return Ok(Self { base, bytes, layout, file, mapped, is_founded: false });
        }
        // Reserve more than needed, so that the arena can start at a huge-page boundary.
        let room = (bytes + HUGE_PAGE_BYTES) as usize;
        // SAFETY: a fresh mapping at an address of the kernel's choice.
        let reserved = unsafe {
            mmap_anonymous(std::ptr::null_mut(), room, ProtFlags::empty(), MapFlags::PRIVATE | MapFlags::NORESERVE)
        }
        .map_err(Error::system(doing))?;
        let base = align_up(reserved as u64, HUGE_PAGE_BYTES) as *mut c_void;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::SHARED | MapFlags::NORESERVE | MapFlags::FIXED;
        // SAFETY: replaces a part of the reservation made above, which nobody else knows.
        let replaced = unsafe {
            match fd {
                Some(fd) => mmap(base, bytes as usize, protection, flags, fd, 0),
                None => mmap_anonymous(base, bytes as usize, protection, flags),
            }
        };
        let head = base as usize - reserved as usize;
        let tail = room - head - bytes as usize;
        let unmap = |at: usize, len: usize| {
            if len > 0 {
                // SAFETY: a part of our own reservation that holds nothing.
                let _ = unsafe { munmap(at as *mut c_void, len) };
            }
        };
        if let Err(errno) = replaced {
            unmap(reserved as usize, room);
            return Err(Error::system(doing)(errno));
        }
        unmap(reserved as usize, head);
        unmap(base as usize + bytes as usize, tail);
        Ok(Self { base: base.cast(), bytes, layout, file, mapped, is_founded: false })
    }

    /// Maps the file where it begins at a huge-page boundary and where as a rule nothing is, some way below our own code: one
    /// call instead of three. `None` if something is there.
    fn map_at_once(bytes: u64, fd: BorrowedFd<'_>) -> Option<*mut u8> {
        // Below what the loader maps, and below the slots of prepared copies, which are to be 1 GiB below that.
        const DISTANCE_BYTES: usize = (1 << 30) + (128 << 20);
        const LOWEST: usize = 1 << 32;
        let here = Self::map_at_once as *const () as usize;
        let wanted = here.checked_sub(DISTANCE_BYTES)?.checked_sub(bytes as usize)? & !(HUGE_PAGE_BYTES as usize - 1);
        if wanted < LOWEST {
            return None;
        }
        let hint = std::ptr::without_provenance_mut::<c_void>(wanted);
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED | MapFlags::NORESERVE);
        // SAFETY: a fresh mapping at the address named, or elsewhere if that is taken.
        let mapped = unsafe { mmap(hint, bytes as usize, protection, flags, fd, 0) }.ok()?;
        if (mapped as u64).is_multiple_of(HUGE_PAGE_BYTES) {
            return Some(mapped.cast());
        }
        // SAFETY: made just now.
        let _ = unsafe { munmap(mapped, bytes as usize) };
        None
    }

    /// Whether a descriptor leads to the file that is mapped. Its name need not: it may be removed, or another file's in another mount
    /// namespace.
    pub(crate) fn is_in(&self, fd: impl AsFd) -> Result<bool> {
        let status = rustix::fs::fstat(fd).map_err(Error::system("examine the arena"))?;
        Ok(self.mapped == Some((status.st_dev, status.st_ino)))
    }

    /// Whether participant `index` has its byte locked, seen through `fd`; `None` if that leads to another file than is mapped, in which
    /// nothing is locked: the program has given the number to it, or the arena's name leads elsewhere here.
    pub(crate) fn known_life(&self, fd: impl AsFd + Copy, index: u32) -> Result<Option<bool>> {
        let known = (|| {
            let is_locked = life(fd, index)?;
            Ok((is_locked || self.is_in(fd)?).then_some(is_locked))
        })();
        match known {
            Err(Error::System { errno: Errno::BADF, .. }) => Ok(None),
            known => known,
        }
    }

    /// Size in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The region of that name.
    pub fn region(&self, name: &str) -> Result<Region> {
        self.layout.region(name)
    }

    pub(crate) fn layout(&self) -> &Computed {
        &self.layout
    }

    /// The word at `at`, or an error if it lies outside of the arena or is not aligned to 8.
    #[inline(always)]
    pub fn word(&self, at: ArenaOffset) -> Result<&Word> {
        // The size is a multiple of the page size, so an aligned start inside means a whole word inside.
        if at.get() < self.bytes && at.get() & 7 == 0 {
            // SAFETY: inside the mapping and aligned, as just checked; atomics tolerate other writers.
            Ok(unsafe { &*self.base.add(at.get() as usize).cast::<Word>() })
        } else {
            Err(out_of_bounds(at, 8))
        }
    }

    /// The 32-bit word at `at`, or an error if it lies outside of the arena or is not aligned to 4.
    /// Never use both widths on the same bytes.
    #[inline(always)]
    pub fn word32(&self, at: ArenaOffset) -> Result<&Word32> {
        if at.get() < self.bytes && at.get() & 3 == 0 {
            // SAFETY: as in `word`.
            Ok(unsafe { &*self.base.add(at.get() as usize).cast::<Word32>() })
        } else {
            Err(out_of_bounds(at, 4))
        }
    }

    /// `count` words from `at`, checked once. For tables that are scanned.
    #[inline]
    pub fn words(&self, at: ArenaOffset, count: u64) -> Result<&[Word]> {
        let end = count.checked_mul(8).and_then(|bytes| bytes.checked_add(at.get()));
        if at.get() & 7 == 0 && end.is_some_and(|end| end <= self.bytes) {
            // SAFETY: inside the mapping and aligned; a slice of atomics, no reference to plain memory.
            Ok(unsafe { std::slice::from_raw_parts(self.base.add(at.get() as usize).cast::<Word>(), count as usize) })
        } else {
            Err(out_of_bounds(at, count.saturating_mul(8)))
        }
    }

    /// A word of the fixed part whose place was computed from the layout.
    #[inline(always)]
    pub(crate) fn fixed(&self, at: u64) -> &Word {
        debug_assert!(at < self.bytes && at & 7 == 0);
        // SAFETY: callers compute `at` from the layout and an index they checked against it.
        unsafe { &*self.base.add(at as usize).cast::<Word>() }
    }

    /// Address in this process.
    pub(crate) fn address(&self, at: u64) -> *mut u8 {
        debug_assert!(at < self.bytes);
        // SAFETY: inside the mapping.
        unsafe { self.base.add(at as usize) }
    }

    /// Makes sure that `bytes` from `at` have memory behind them, so that touching them cannot
    /// fail: an owner calls this before it publishes that a part of its region is in use.
    /// `Full` if the system has none. Costs a page fault per page not yet there.
    pub fn reserve(&self, at: ArenaOffset, bytes: u64) -> Result<()> {
        let end = at.get().checked_add(bytes).filter(|end| *end <= self.bytes);
        let end = end.ok_or_else(|| out_of_bounds(at, bytes))?;
        if bytes == 0 {
            return Ok(());
        }
        match self.populate(at.get(), end) {
            Ok(()) => Ok(()),
            // Kernels before 5.14.
            Err(rustix::io::Errno::INVAL) => self.allocate(at, bytes),
            Err(_) => Err(FULL),
        }
    }

    /// Maps the page at `at`, which must have memory, by itself. The first load from a page has the kernel map those around it as well,
    /// sixteen in all, which takes three times as long as one, and as much again when the process ends: for a page of which a process
    /// uses few others around. Changes nothing: an atomic operation that adds no bit, whoever else stores there meanwhile. `at` is
    /// aligned to 8; outside of the arena nothing is done.
    pub fn map_page(&self, at: ArenaOffset) {
        if at.get() < self.bytes && at.get() & 7 == 0 {
            // An instruction, since the compiler makes a load of an addition of nothing.
            // SAFETY: inside the mapping and aligned, as just checked; atomic, and nothing is different behind it.
            unsafe {
                core::arch::asm!("lock or qword ptr [{}], 0", in(reg) self.base.add(at.get() as usize), options(nostack));
            }
        }
    }

    /// [`Arena::reserve`] for what every owner reserves before the arena is complete: nothing to be done for who joins others.
    pub fn reserve_first(&self, at: ArenaOffset, bytes: u64) -> Result<()> {
        if self.is_founded { Ok(()) } else { self.reserve(at, bytes) }
    }

    /// Likewise without the arena's file, where the kernel can do that.
    fn reserve_mapped(&self, at: ArenaOffset, bytes: u64) -> Result<()> {
        self.populate(at.get(), at.get() + bytes).map_err(|_| FULL)
    }

    /// Touches the pages from `start` to `end`, which lie inside.
    fn populate(&self, start: u64, end: u64) -> std::result::Result<(), rustix::io::Errno> {
        let start = start & !(PAGE_BYTES - 1);
        // SAFETY: a range inside our shared mapping; populating does not change contents.
        unsafe { madvise(self.address(start).cast(), (end - start) as usize, Advice::LinuxPopulateWrite) }
    }

    /// Like [`Arena::reserve`] for a large range of which some is touched later, by whomever: without its page faults now. In
    /// a private arena there is nothing to be done but to hope.
    pub fn allocate(&self, at: ArenaOffset, bytes: u64) -> Result<()> {
        let end = at.get().checked_add(bytes).filter(|end| *end <= self.bytes);
        end.ok_or_else(|| out_of_bounds(at, bytes))?;
        let Some(file) = self.file.as_ref().filter(|_| bytes > 0) else { return Ok(()) };
        let file = match file.open() {
            // A process that gave up its privileges has the memory, but may no longer open the file.
            Err(Error::Foreign { .. }) => return self.reserve_mapped(at, bytes),
            opened => opened?.ok_or(Error::Detached)?,
        };
        match rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::KEEP_SIZE, at.get(), bytes) {
            Ok(()) => Ok(()),
            Err(rustix::io::Errno::NOSPC | rustix::io::Errno::NOMEM) => Err(FULL),
            Err(errno) => Err(Error::system("get memory for the shared state in /dev/shm")(errno)),
        }
    }

    /// Memory that the arena has taken from the system, in bytes; 0 for a private arena.
    pub fn memory_bytes(&self) -> u64 {
        let file = self.file.as_ref().and_then(|file| file.open().ok().flatten());
        file.and_then(|file| rustix::fs::fstat(&file).ok()).map_or(0, |status| status.st_blocks as u64 * 512)
    }

    /// Asks for huge pages behind a range, best effort; whole 2 MiB pages only. With `now`, what is
    /// already there is collapsed at once (which allocates). Returns whether the kernel agreed.
    pub fn huge_pages(&self, at: ArenaOffset, bytes: u64, now: bool) -> bool {
        let start = align_up(at.get().min(self.bytes), HUGE_PAGE_BYTES);
        let end = at.get().saturating_add(bytes).min(self.bytes) & !(HUGE_PAGE_BYTES - 1);
        if start >= end {
            return false;
        }
        let (address, len) = (self.address(start).cast::<c_void>(), (end - start) as usize);
        // SAFETY: advice on a range inside our mapping; contents do not change.
        let advised = unsafe { madvise(address, len, Advice::LinuxHugepage) }.is_ok();
        if !now {
            return advised;
        }
        // SAFETY: as above.
        unsafe { crate::sys::collapse(address.cast(), len) }
    }
}

const FULL: Error = Error::Full {
    what: "no room in /dev/shm for another page of the shared state: remove what is not needed there, or make it larger (mount -o remount,size=)",
};

#[cold]
fn out_of_bounds(at: ArenaOffset, bytes: u64) -> Error {
    Error::OutOfBounds { at: at.get(), bytes }
}

impl Drop for Arena {
    fn drop(&mut self) {
        // SAFETY: our own mapping; every view borrows from `self`.
        let _ = unsafe { munmap(self.base.cast(), self.bytes as usize) };
    }
}
