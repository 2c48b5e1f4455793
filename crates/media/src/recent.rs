//! Which blocks a thread has written lately, in thread-local storage: what is written again and again is worth keeping in the cache.
//!
//! Data goes past the cache on a plain medium (see `store`), which is right for what is written once: what it overwrites need not be
//! fetched. A block that the same thread writes again soon stays in its cache instead, as system calls would leave it there.
//! Forgets by itself: a block takes the place of another with the same low bits.

use crate::medium::LINE_BYTES;
use crate::offset::MediumOffset;
use std::cell::Cell;

/// Lines of a block of 4 KiB.
const BLOCK_LINES: usize = 64;
/// Blocks remembered: half a mebibyte, which the cache of a core holds.
const PLACES: usize = 128;
/// Larger writes are never remembered.
const LINES_MAX: usize = 8 * BLOCK_LINES;

thread_local! {
    static BLOCKS: [Cell<u32>; PLACES] = const { [const { Cell::new(0) }; PLACES] };
}

/// Notes that lines are written at `at`; whether the thread has written the first block of them lately.
#[inline]
pub(crate) fn note_written(at: MediumOffset, lines: usize) -> bool {
    if lines > LINES_MAX {
        return false;
    }
    let block = at.0 / (LINE_BYTES * BLOCK_LINES as u64);
    // A thread that is ending remembers nothing. 0 is no block: it would be the medium's first, which holds no data.
    let note = |blocks: &[Cell<u32>; PLACES]| {
        let known = blocks[block as usize % PLACES].get() == block as u32;
        for block in block..block + lines.div_ceil(BLOCK_LINES) as u64 {
            blocks[block as usize % PLACES].set(block as u32);
        }
        known
    };
    BLOCKS.try_with(note).unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_lately_is_known() {
        let written = |block: u64, lines| note_written(MediumOffset(block * 4096), lines);
        assert!(!written(5, 64), "never written");
        assert!(written(5, 64) && written(5, 70), "again");
        assert!(written(6, 64), "the last one reached into it");
        assert!(!written(5 + PLACES as u64, 64), "another one in its place");
        assert!(!written(5, 64), "which it took");
        assert!(!written(1000, LINES_MAX + 1) && !written(1000, 64), "large writes are not remembered");
        std::thread::spawn(move || assert!(!note_written(MediumOffset(5 * 4096), 64))).join().unwrap();
    }
}
