//! What a number stands for is changed in two steps, the kernel's and the table's ([`super::table`]). Other threads see neither of them alone:
//!
//! | who | does what |
//! | --- | --- |
//! | duplicates a descriptor, or puts one in another's place | both steps in [`change`] |
//! | forks | has the lock ([`around_fork`]), so that the child's table is what its kernel has |
//! | found nothing, or something that was let go since | looks again, if anything was changed meanwhile ([`count`]) |
//! | ends the use of a description | says so ([`while_ending`]), and looks for descriptors that stand for it behind a change that is under way ([`wait`]), if there may be any ([`super::table::SHARED`]) |
//! | enters a description that it got from elsewhere, in a message | waits for those who found none before, and takes it once more ([`wait_for_endings`]) |
//!
//! What remains is a call that was found to be the host's and has not reached the kernel when the number becomes ours.
//! A process with one thread pays nothing; a `vfork` child has descriptors that no other thread sees, and stays away.

use crate::number::SCHED_YIELD;
use crate::raw::syscall;
use crate::thread;
use core::sync::atomic::{AtomicU32, Ordering, fence};

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

/// Threads that end uses are told apart by so many.
const SHARDS: usize = 16;

/// How many threads are about to end the use of a description that nothing stood for.
#[repr(align(64))]
struct Endings(AtomicU32);

static ENDINGS: [Endings; SHARDS] = [const { Endings(AtomicU32::new(0)) }; SHARDS];

/// Looks for what stands for a description, and ends its use if there is nothing.
pub(super) fn while_ending<T>(work: impl FnOnce() -> T) -> T {
    if thread::is_alone() {
        return work();
    }
    const GOLDEN: usize = 0x9e37_79b9_7f4a_7c15;
    // SAFETY: the thread's own block. Each thread's record is elsewhere.
    let shard = unsafe { (*crate::entry::thread_state()).record }.wrapping_mul(GOLDEN) >> 60;
    let count = &ENDINGS[shard % SHARDS].0;
    count.fetch_add(1, Ordering::SeqCst);
    let result = work();
    count.fetch_sub(1, Ordering::SeqCst);
    result
}

/// What has been entered since is found by all who end a use from now on, and those who did not find it have ended it. A `vfork` child that was killed
/// meanwhile is not waited for for ever.
pub(super) fn wait_for_endings() {
    const TURNS_MAX: u32 = 10_000;
    fence(Ordering::SeqCst);
    for Endings(count) in &ENDINGS {
        let mut turns = 0;
        while count.load(Ordering::SeqCst) != 0 && turns < TURNS_MAX {
            give_way();
            turns += 1;
        }
    }
}

/// In the child of a fork no other thread is at it.
pub(super) fn after_fork_in_child() {
    for Endings(count) in &ENDINGS {
        if count.load(Ordering::Relaxed) != 0 {
            count.store(0, Ordering::Relaxed);
        }
    }
}

/// Takes the lock so that a forked child finds the two in step, or releases it.
pub(crate) fn around_fork(before: bool) {
    if before { take() } else { release() }
}
