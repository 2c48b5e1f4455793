//! What a thread has cost the medium, counted in thread-local storage: no shared cache line is written.

use std::cell::Cell;

/// Counts since the thread's start or its last [`counters_reset`], over all media.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Counters {
    /// Fences.
    pub fences: u64,
    /// Lines written back from the cache, one for each line of each flushed range; zero where nothing needs to be flushed.
    pub lines_flushed: u64,
    /// Lines stored past the cache.
    pub lines_streamed: u64,
    /// Bytes stored.
    pub bytes_stored: u64,
}

thread_local! {
    static COUNTERS: [Cell<u64>; 4] = const { [const { Cell::new(0) }; 4] };
}

#[inline]
fn add(index: usize, count: u64) {
    // A thread that is ending has no counters any more, and nobody to read them.
    let _ = COUNTERS.try_with(|counters| counters[index].set(counters[index].get().wrapping_add(count)));
}

#[inline]
pub(crate) fn count_fence() {
    add(0, 1);
}

#[inline]
pub(crate) fn count_flushed(lines: u64) {
    add(1, lines);
}

#[inline]
pub(crate) fn count_streamed(lines: u64) {
    add(2, lines);
    add(3, lines * 64);
}

#[inline]
pub(crate) fn count_stored(bytes: u64) {
    add(3, bytes);
}

/// What this thread has counted.
#[inline]
#[must_use]
pub fn counters_thread() -> Counters {
    COUNTERS.with(|counters| Counters {
        fences: counters[0].get(),
        lines_flushed: counters[1].get(),
        lines_streamed: counters[2].get(),
        bytes_stored: counters[3].get(),
    })
}

/// What this thread has counted; counting then begins at zero.
pub fn counters_reset() -> Counters {
    let counted = counters_thread();
    COUNTERS.with(|counters| counters.iter().for_each(|counter| counter.set(0)));
    counted
}
