//! What a `vfork` child that was killed in the midst of a call leaves to its parent's thread, whose block it shares: a mark that the thread is busy, with
//! which all its calls would pass and its signals wait for ever.
//!
//! The thread itself is never busy while it runs code of the program's. So it is told by the stack at its next call (in `gannet_begin`), or
//! by its next signal: in an operation the stack is the engine's, but for a few instructions of the library's own text.

use super::{BUSY, thread_state};
use crate::patch::area;
use crate::thread::ENGINE_STACK_BYTES;
use core::ops::Range;
use core::sync::atomic::{AtomicUsize, Ordering};

/// Where the injected library's text is.
static OWN_TEXT: [AtomicUsize; 2] = [AtomicUsize::new(0), AtomicUsize::new(usize::MAX)];

/// Notes where the injected library's text is. At start.
pub(crate) fn note_own_text(text: Range<usize>) {
    OWN_TEXT[0].store(text.start, Ordering::Relaxed);
    OWN_TEXT[1].store(text.end, Ordering::Relaxed);
}

/// Forgets an operation that a child has left behind. `instruction` and `stack`: where a signal interrupted this thread.
pub(crate) fn forget_if_left(instruction: usize, stack: usize) {
    // SAFETY: the thread's own block.
    let state = unsafe { &mut *thread_state() };
    let is_on_engine_stack = state.record.wrapping_sub(stack) <= ENGINE_STACK_BYTES;
    if state.busy.load(Ordering::Relaxed) != BUSY || is_on_engine_stack {
        return;
    }
    let own = OWN_TEXT[0].load(Ordering::Relaxed)..OWN_TEXT[1].load(Ordering::Relaxed);
    // Calls that pass are made by the program, wherever the instruction stands.
    if own.contains(&instruction) && area::original_of(instruction).is_none() {
        return;
    }
    state.deferred.store(0, Ordering::Relaxed);
    (state.hidden, state.again, state.child, state.unblock) = (0, 0, 0, 0);
    state.busy.store(0, Ordering::Relaxed);
}
