//! What a number stands for is changed in two steps, the kernel's and the table's ([`super::table`]). Other threads see neither of them alone:
//!
//! | who | does what |
//! | --- | --- |
//! | duplicates a descriptor, or puts one in another's place | both steps in [`change`] |
//! | forks | has the lock ([`around_fork`]), so that the child's table is what its kernel has |
//! | found nothing, or something that was let go since | looks again, if anything was changed meanwhile ([`count`]) |
//! | ends the use of a description | looks for descriptors that stand for it behind a change that is under way ([`wait`]) |
//!
//! What remains is a call that was found to be the host's and has not reached the kernel when the number becomes ours.
//! A process with one thread pays nothing; a `vfork` child has descriptors that no other thread sees, and stays away.

use crate::number::SCHED_YIELD;
use crate::raw::syscall;
use crate::thread;
use core::sync::atomic::{AtomicU32, Ordering};

/// Odd while a change is under way; nobody else changes then.
static COUNT: AtomicU32 = AtomicU32::new(0);

fn give_way() {
    // SAFETY: gives the processor away.
    unsafe { syscall(SCHED_YIELD, []) };
}

fn take() {
    loop {
        let count = wait();
        if COUNT.compare_exchange_weak(count, count | 1, Ordering::SeqCst, Ordering::Relaxed).is_ok() {
            return;
        }
    }
}

fn release() {
    COUNT.fetch_add(1, Ordering::SeqCst);
}

/// How many changes there were, once none is under way. Not inside of a change.
#[inline]
pub(super) fn wait() -> u32 {
    loop {
        let count = COUNT.load(Ordering::SeqCst);
        if count & 1 == 0 {
            return count;
        }
        give_way();
    }
}

/// A number that grows with each change, for [`happened_since`].
#[inline]
pub(super) fn count() -> u32 {
    COUNT.load(Ordering::Acquire)
}

/// Whether anything was changed since, or was being changed then. Waits for what is under way.
#[inline]
pub(super) fn happened_since(count: u32) -> bool {
    let now = COUNT.load(Ordering::SeqCst);
    now != count || now & 1 != 0 && wait() != count
}

/// Does both steps of a change. `in_child`: for a `vfork` child. Not inside of itself.
pub(super) fn change<T>(in_child: bool, work: impl FnOnce() -> T) -> T {
    if in_child || thread::is_alone() {
        return work();
    }
    take();
    let result = work();
    release();
    result
}

/// Takes the lock so that a forked child finds the two in step, or releases it.
pub(crate) fn around_fork(before: bool) {
    if before { take() } else { release() }
}
