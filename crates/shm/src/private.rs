//! A page of this process that a forked child finds zeroed: how a session notices that it runs in
//! a child, at the price of one load.
//!
//! In front of it is room for a page of the arena. A thread's entry on the kernel's robust list needs such a pair, too (see `life`):
//! the first thread of a session, which as a rule is the one that attaches, gets the session's own. A map, an advice and a page fault
//! are a tenth of what attaching costs.

use crate::error::{Error, Result};
use crate::layout::PAGE_BYTES;
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Where a session's part of the private page begins; what is in front of it is a thread's.
const FIELDS_IN_PAGE: usize = 128;

/// What a session knows about itself in this very process. All zero in a forked child.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Fields {
    /// Unique in this process and its children; 0: not joined.
    pub(crate) incarnation: AtomicU64,
    /// Spin lock around joining and leaving.
    busy: AtomicU64,
    /// Index of our participant record.
    pub(crate) participant: AtomicU64,
    /// Generation of our participant record.
    pub(crate) generation: AtomicU64,
    /// Address of the mapping that keeps our byte locked, or 0.
    pub(crate) byte_lock: AtomicU64,
    /// 1: our record says who we are.
    pub(crate) is_described: AtomicU64,
    /// 1: it says in which PID namespace.
    pub(crate) has_said_namespace: AtomicU64,
    /// 1: the process is about to end.
    pub(crate) is_ending: AtomicU64,
}

/// A page for a part of the arena and, behind it, one that a forked child finds zeroed. Dropped: unmapped.
#[derive(Debug)]
pub(crate) struct Pair {
    start: *mut u8,
    /// It is not unmapped.
    stays: AtomicBool,
}

// SAFETY: what is in the pages is accessed as their users say; the value itself is an address.
unsafe impl Send for Pair {}
// SAFETY: as above.
unsafe impl Sync for Pair {}

impl Pair {
    pub(crate) fn map() -> std::result::Result<Self, Errno> {
        let page = PAGE_BYTES as usize;
        // SAFETY: a fresh private mapping; wiping at fork is set before anything is stored.
        unsafe {
            let access = ProtFlags::READ | ProtFlags::WRITE;
            let start: *mut u8 = mmap_anonymous(std::ptr::null_mut(), 2 * page, access, MapFlags::PRIVATE)?.cast();
            let pair = Self { start, stays: AtomicBool::new(false) };
            // Both, which does not part the map in two: in the first page's place comes another map as a whole.
            madvise(start.cast(), 2 * page, Advice::LinuxWipeOnFork)?;
            Ok(pair)
        }
    }

    /// The first page.
    #[inline]
    pub(crate) fn shared(&self) -> *mut u8 {
        self.start
    }

    /// The second one.
    #[inline]
    pub(crate) fn private(&self) -> *mut u8 {
        // SAFETY: inside the mapping.
        unsafe { self.start.add(PAGE_BYTES as usize) }
    }

    /// Nobody knows what stands in the first page's place: it stays mapped for good, whatever it is.
    pub(crate) fn stay(&self) {
        self.stays.store(true, Ordering::Relaxed);
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        if !self.stays.load(Ordering::Relaxed) {
            // SAFETY: our own mapping, which nobody refers to any more.
            let _ = unsafe { munmap(self.start.cast(), 2 * PAGE_BYTES as usize) };
        }
    }
}

/// The page.
#[derive(Debug)]
pub(crate) struct PrivatePage {
    fields: *mut Fields,
    pair: Arc<Pair>,
    /// The pair is some thread's as well, or was.
    is_lent: AtomicBool,
}

// SAFETY: the page lives as long as the value, and the session's part of it holds atomics only.
unsafe impl Send for PrivatePage {}
// SAFETY: as above.
unsafe impl Sync for PrivatePage {}

impl PrivatePage {
    pub(crate) fn new() -> Result<Self> {
        let pair = Arc::new(Pair::map().map_err(Error::system("map a page for the session"))?);
        // SAFETY: inside the private page.
        let fields = unsafe { pair.private().add(FIELDS_IN_PAGE) };
        Ok(Self { fields: fields.cast(), pair, is_lent: AtomicBool::new(false) })
    }

    #[inline(always)]
    pub(crate) fn fields(&self) -> &Fields {
        // SAFETY: mapped, aligned, inside the page, zero is a valid value of atomics.
        unsafe { &*self.fields }
    }

    /// A pair of pages for a thread's entry on the robust list: of the private one what lies in front of the session's part.
    pub(crate) fn pair_for_thread(&self) -> std::result::Result<Arc<Pair>, Errno> {
        if self.is_lent.swap(true, Ordering::Relaxed) { Pair::map().map(Arc::new) } else { Ok(self.pair.clone()) }
    }

    /// Excludes this process's other threads; a child never inherits the lock, the page being wiped.
    pub(crate) fn exclusive(&self) -> Exclusive<'_> {
        let busy = &self.fields().busy;
        while busy.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_err() {
            std::thread::yield_now();
        }
        Exclusive(busy)
    }
}

/// While it lives, other threads wait in [`PrivatePage::exclusive`].
pub(crate) struct Exclusive<'a>(&'a AtomicU64);

impl Drop for Exclusive<'_> {
    fn drop(&mut self) {
        self.0.store(0, Ordering::Release);
    }
}

/// A number no session or join of this process, its ancestors or (until they fork) children has used.
pub(crate) fn next_incarnation() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_keeps_the_pair_that_it_got_from_a_session_and_the_next_gets_another() {
        let page = PrivatePage::new().unwrap();
        let first = page.pair_for_thread().unwrap();
        let second = page.pair_for_thread().unwrap();
        assert_ne!(first.shared(), second.shared());
        let session_at = (&raw const *page.fields()).cast::<u8>();
        assert_eq!(session_at.addr(), first.private().addr() + FIELDS_IN_PAGE);
        page.fields().incarnation.store(7, Ordering::Relaxed);
        drop(page);
        // SAFETY: inside a pair that is there still.
        assert_eq!(unsafe { session_at.cast::<u64>().read_volatile() }, 7);
    }
}
