//! The life word of a thread, on the kernel's robust list: the kernel marks it when the thread
//! ends in whatever way, within tens of microseconds, and looking at it costs a load.
//!
//! The list is glibc's, and its entries look like robust mutexes: the list node (`prev`, `next`)
//! stands 24 bytes behind the start of the mutex, the futex word at its start, and the distance
//! from `next` to the word is registered as -32 with the kernel for the whole thread. glibc stores
//! pointers into neighbours' nodes, so a node must not be in shared memory while the word must be.
//! So each thread maps two pages side by side: the slot's, the word at its very end, and
//! a private page, the node at its very start (a [`Pair`]):
//!
//! ```text
//!   … shared slot …      | word:4 pad:4 || 16 unused | prev:8 | next:8 | … private page …
//!                          ^ page end - 8                         ^ word + 32
//! ```
//!
//! Where the list looks otherwise (another C library) no entry is made, and liveness falls back to
//! asking the kernel for the thread.

use crate::arena::Arena;
use crate::layout::PAGE_BYTES;
use crate::private::{Pair, PrivatePage};
use crate::slot;
use crate::sys;
use rustix::mm::{MremapFlags, mremap_fixed};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering, compiler_fence};

/// Distance from a node's `next` to its futex word, as glibc registers it on 64-bit machines.
const FUTEX_OFFSET: isize = -32;
/// `next` in the private page: word + 32.
const NEXT_IN_PAGE: usize = 24;
/// `prev` stands before `next`, in our node as in the list's head.
const PREV_BEFORE_NEXT: usize = 8;
/// A copy of the node's address: zero in a forked child, whose list no longer has it. What the node needs of the page ends here.
const OURS_IN_PAGE: usize = 64;

/// Lets a test process do without, as under another C library.
#[cfg(test)]
pub(crate) static FORBIDDEN: std::sync::atomic::AtomicBool = std::sync::atomic::AtomicBool::new(false);

/// The kernel's `struct robust_list_head`.
#[repr(C)]
struct Head {
    next: usize,
    futex_offset: isize,
    pending: usize,
}

/// An entry of the calling thread's robust list. Dropped by the same thread: taken out.
#[derive(Debug)]
pub(crate) struct RobustNode {
    pages: Arc<Pair>,
}

impl RobustNode {
    /// Puts the life word of `slot` on the calling thread's robust list. `None` if the list is not
    /// glibc's or the pages cannot be mapped: then the word is not marked at death.
    pub(crate) fn enlist(arena: &Arena, page: &PrivatePage, slot: u32) -> Option<Self> {
        #[cfg(test)]
        if FORBIDDEN.load(Ordering::Relaxed) {
            return None;
        }
        let (head, len) = sys::robust_list_head()?;
        if len != size_of::<Head>() {
            return None;
        }
        // SAFETY: the head registered with the kernel for this thread is valid as long as it lives.
        let offset = unsafe { (head as *const Head).read_volatile() }.futex_offset;
        if offset != FUTEX_OFFSET || !head_has_back_pointer(head) {
            return None;
        }
        let node = Self::map(arena, page, slot)?;
        let private = node.pages.private() as usize;
        let next = private + NEXT_IN_PAGE;
        // SAFETY: all addresses are of this thread's list, whose nodes glibc keeps valid, or of the
        // page just mapped. Only this thread and the kernel, at its death, use the list; the order of
        // stores keeps it whole from `head` at every instant.
        unsafe {
            let first = (head as *const usize).read_volatile();
            ((next - PREV_BEFORE_NEXT) as *mut usize).write_volatile(head);
            (next as *mut usize).write_volatile(first);
            ((private + OURS_IN_PAGE) as *mut usize).write_volatile(next);
            compiler_fence(Ordering::SeqCst);
            (((first & !1) - PREV_BEFORE_NEXT) as *mut usize).write_volatile(next);
            (head as *mut usize).write_volatile(next);
        }
        Some(node)
    }

    /// The slot a second time, and a private page behind it.
    fn map(arena: &Arena, page: &PrivatePage, slot: u32) -> Option<Self> {
        let pages = page.pair_for_thread().ok()?;
        let slot = arena.address(slot::slot_at(arena, slot)).cast();
        // SAFETY: a `mremap` of length 0 duplicates a shared mapping at the address given, which is a page of a pair of
        // ours that is used for nothing else.
        let mapped = unsafe { mremap_fixed(slot, 0, PAGE_BYTES as usize, MremapFlags::MAYMOVE, pages.shared().cast()) };
        if mapped.is_err() {
            // Whether the page is still there nobody knows, nor what another thread maps there now. (So under valgrind, which does not
            // know this way to call.)
            pages.stay();
            return None;
        }
        Some(Self { pages })
    }
}

/// Whether the list's head has, in front of it, the back pointer that glibc keeps there: for an
/// empty list it points to the head itself, else to the last node.
fn head_has_back_pointer(head: usize) -> bool {
    static KNOWN: AtomicUsize = AtomicUsize::new(0);
    match KNOWN.load(Ordering::Relaxed) {
        1 => return true,
        2 => return false,
        _ => {}
    }
    // SAFETY: glibc's head is the second of two adjacent fields of its thread descriptor, and any
    // other library's lies within a larger structure as well; the word in front is readable.
    let (back, next) = unsafe {
        let back = ((head - PREV_BEFORE_NEXT) as *const usize).read_volatile();
        (back, (head as *const usize).read_volatile())
    };
    // Decided on an empty list only; a thread that holds a robust mutex now decides nothing.
    if next == head {
        KNOWN.store(if back == head { 1 } else { 2 }, Ordering::Relaxed);
    }
    next == head && back == head
}

impl RobustNode {
    /// Takes the entry out and leaves the pages mapped: the process ends, and they with it.
    pub(crate) fn take_out(self) {
        // SAFETY: our own pages, not used any more.
        unsafe { std::mem::ManuallyDrop::new(self).unlink() };
    }

    /// Takes the entry out of the list.
    ///
    /// # Safety
    /// Once, by the thread whose list it is.
    unsafe fn unlink(&self) {
        let private = self.pages.private() as usize;
        // SAFETY: our own pages. In a forked child the private one reads zero, and the list that it
        // was on has been emptied by the C library: then nothing is taken out.
        unsafe {
            let next = private + NEXT_IN_PAGE;
            if ((private + OURS_IN_PAGE) as *const usize).read_volatile() == next {
                let after = (next as *const usize).read_volatile();
                let before = ((next - PREV_BEFORE_NEXT) as *const usize).read_volatile() & !1;
                (before as *mut usize).write_volatile(after);
                (((after & !1) - PREV_BEFORE_NEXT) as *mut usize).write_volatile(before);
                compiler_fence(Ordering::SeqCst);
            }
        }
    }
}

impl Drop for RobustNode {
    fn drop(&mut self) {
        // SAFETY: dropped once, by its thread.
        unsafe { self.unlink() };
    }
}
