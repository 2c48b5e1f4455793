//! A page of this process that a forked child finds zeroed: how a session notices that it runs in
//! a child, at the price of one load.

use crate::error::{Error, Result};
use crate::layout::PAGE_BYTES;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use std::sync::atomic::{AtomicU64, Ordering};

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

/// The page.
#[derive(Debug)]
pub(crate) struct PrivatePage(*mut Fields);

// SAFETY: the page lives as long as the value and holds atomics only.
unsafe impl Send for PrivatePage {}
// SAFETY: as above.
unsafe impl Sync for PrivatePage {}

impl PrivatePage {
    pub(crate) fn new() -> Result<Self> {
        let doing = "map a page for the session";
        let len = PAGE_BYTES as usize;
        // SAFETY: a fresh private mapping; wiping at fork is set before anything is stored.
        let page = unsafe {
            let page = mmap_anonymous(std::ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE)
                .map_err(Error::system(doing))?;
            if let Err(errno) = madvise(page, len, Advice::LinuxWipeOnFork) {
                let _ = munmap(page, len);
                return Err(Error::system(doing)(errno));
            }
            page
        };
        Ok(Self(page.cast()))
    }

    #[inline(always)]
    pub(crate) fn fields(&self) -> &Fields {
        // SAFETY: mapped, page-aligned, at least as large, zero is a valid value of atomics.
        unsafe { &*self.0 }
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

impl Drop for PrivatePage {
    fn drop(&mut self) {
        // SAFETY: our own mapping.
        let _ = unsafe { munmap(self.0.cast(), PAGE_BYTES as usize) };
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
