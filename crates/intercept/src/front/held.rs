//! Descriptors that the program has closed and whose placeholders are kept, so that its next open takes one without a system call.
//!
//! What the program sees must be what the kernel would do: the lowest free number is the next. So a number is kept only while all
//! below it are known to be in use: [`BOUND`] says up to where they are. The kernel shows it by giving out a number, and every
//! close below it, which the filter sends here ([`entry::watch_descriptors`]), lowers it. Whatever else could tell a kept placeholder from a
//! closed descriptor first has them closed ([`flush`]): calls that make descriptors, that wait for them, `fork`, `execve`.
//!
//! | state | numbers below 64, as bits |
//! | --- | --- |
//! | [`HELD`] | closed by the program, placeholder kept |
//! | [`PLAIN`] | ours, and made by an open: close-on-exec is as [`CLOSES`] says |
//!
//! Only a process with one thread keeps any: everything here happens between two calls of that thread. A `vfork` child has other
//! descriptors than the memory says, and stays away.

use crate::entry;
use crate::number::{CLOSE, FCNTL};
use crate::raw::{is_error, syscall};
use crate::thread;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

/// Numbers from here on are never kept.
const LIMIT: usize = 64;
/// Most that are kept: each is a descriptor too many for the kernel's limit.
const HELD_MAX: u32 = 8;

static HELD: AtomicU64 = AtomicU64::new(0);
static PLAIN: AtomicU64 = AtomicU64::new(0);
static CLOSES: AtomicU64 = AtomicU64::new(0);
/// All numbers below are in use at the kernel, kept ones included.
static BOUND: AtomicUsize = AtomicUsize::new(0);
/// Closes of numbers below are sent to the handler.
static WATCHED: AtomicUsize = AtomicUsize::new(0);

const fn bit(descriptor: usize) -> u64 {
    1 << descriptor
}

/// Those of `bits` that stand for numbers from `descriptor` on.
const fn from(bits: u64, descriptor: usize) -> u64 {
    if descriptor < LIMIT { bits & (u64::MAX << descriptor) } else { 0 }
}

/// Whether any are kept.
#[inline]
pub(crate) fn any() -> bool {
    HELD.load(Relaxed) != 0
}

/// Whether this one is.
#[inline]
pub(crate) fn is_held(descriptor: usize) -> bool {
    let descriptor = descriptor as u32 as usize;
    descriptor < LIMIT && HELD.load(Relaxed) & bit(descriptor) != 0
}

/// An open made this descriptor ours, entered in the table. `from_kernel`: the kernel gave the number, and it gives out the lowest.
pub(crate) fn opened(descriptor: usize, closes_on_exec: bool, from_kernel: bool) {
    if descriptor >= LIMIT || !thread::is_alone() {
        return;
    }
    note_plain(descriptor, closes_on_exec);
    if !from_kernel {
        return;
    }
    BOUND.store(BOUND.load(Relaxed).max(descriptor + 1), Relaxed);
    if WATCHED.load(Relaxed) <= descriptor {
        entry::watch_descriptors(WATCHED.swap(descriptor + 1, Relaxed)..descriptor + 1);
    }
}

fn note_plain(descriptor: usize, closes_on_exec: bool) {
    PLAIN.store(PLAIN.load(Relaxed) | bit(descriptor), Relaxed);
    let others = CLOSES.load(Relaxed) & !bit(descriptor);
    CLOSES.store(others | if closes_on_exec { bit(descriptor) } else { 0 }, Relaxed);
}

/// Whether the kernel's descriptor is closed on exec, where that is known without asking: not in a `vfork` child.
pub(crate) fn closes_on_exec(descriptor: usize) -> Option<bool> {
    let is_plain = descriptor < LIMIT && PLAIN.load(Relaxed) & bit(descriptor) != 0;
    is_plain.then(|| CLOSES.load(Relaxed) & bit(descriptor) != 0)
}

/// The program has a descriptor of ours closed on exec, or not. False where only the kernel knows what it is now, and is to be asked.
pub(crate) fn set_closes_on_exec(descriptor: usize, closes: bool) -> bool {
    match closes_on_exec(descriptor) {
        Some(now) if now == closes => true,
        Some(_) => {
            const F_SETFD: usize = 2;
            // SAFETY: a placeholder of ours.
            let is_set = !is_error(unsafe { syscall(FCNTL, [descriptor, F_SETFD, usize::from(closes)]) });
            if is_set {
                note_plain(descriptor, closes);
            }
            is_set
        }
        None => false,
    }
}

/// The kernel's descriptor is, or may be, no longer as an open made it.
pub(crate) fn changed(descriptor: usize) {
    if descriptor < LIMIT {
        PLAIN.store(PLAIN.load(Relaxed) & !bit(descriptor), Relaxed);
    }
}

/// All of them may be.
pub(crate) fn all_changed() {
    PLAIN.store(0, Relaxed);
}

/// A number for an open: the lowest free one, if it is known.
pub(crate) fn take(closes_on_exec: bool) -> Option<usize> {
    let held = HELD.load(Relaxed);
    if held == 0 {
        return None;
    }
    let descriptor = held.trailing_zeros() as usize;
    if (CLOSES.load(Relaxed) & bit(descriptor) != 0) != closes_on_exec {
        const F_SETFD: usize = 2;
        // SAFETY: a placeholder of ours.
        if is_error(unsafe { syscall(FCNTL, [descriptor, F_SETFD, usize::from(closes_on_exec)]) }) {
            flush();
            return None;
        }
    }
    set_held(held & !bit(descriptor));
    Some(descriptor)
}

/// The program closes a descriptor of ours. True: the number is kept, and the kernel is not to be told.
pub(crate) fn keep(descriptor: usize) -> bool {
    let held = HELD.load(Relaxed);
    let keeps = descriptor < BOUND.load(Relaxed)
        && descriptor < LIMIT
        && PLAIN.load(Relaxed) & bit(descriptor) != 0
        && held.count_ones() < HELD_MAX
        && thread::is_alone();
    changed(descriptor);
    if keeps {
        set_held(held | bit(descriptor));
        // Calls on it must come here and be told that it is closed.
        entry::mark_descriptor(descriptor);
    }
    keeps
}

fn set_held(held: u64) {
    HELD.store(held, Relaxed);
    entry::mark_held(held != 0);
}

/// The kernel is about to be told to close this number, or has been: those kept above it are no longer the lowest free ones.
pub(crate) fn closing(descriptor: usize) {
    if descriptor < BOUND.load(Relaxed) {
        BOUND.store(descriptor, Relaxed);
        close_from(descriptor);
    }
    changed(descriptor);
}

/// Closes all that are kept.
pub(crate) fn flush() {
    let held = HELD.load(Relaxed);
    if held != 0 {
        BOUND.store(BOUND.load(Relaxed).min(held.trailing_zeros() as usize), Relaxed);
        close_from(0);
    }
}

/// Nothing is known any more: threads will come.
pub(crate) fn stop() {
    flush();
    BOUND.store(0, Relaxed);
    all_changed();
}

fn close_from(descriptor: usize) {
    let held = HELD.load(Relaxed);
    let mut closed = from(held, descriptor);
    if closed == 0 {
        return;
    }
    set_held(held & !closed);
    while closed != 0 {
        let number = closed.trailing_zeros() as usize;
        closed &= closed - 1;
        entry::unmark_descriptor(number);
        // SAFETY: a placeholder of ours that nothing refers to.
        unsafe { syscall(CLOSE, [number]) };
    }
}
