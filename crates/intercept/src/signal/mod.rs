//! Signals: the program's handlers are wrapped, so that one that arrives inside an operation runs after it.
//!
//! The kernel's disposition of every signal with a handler is `gannet_signal_wrapper`. Outside operations it
//! jumps to the program's handler with registers and stack untouched. Inside one it sends the signal to the thread again,
//! blocked, and the way out of the operation unblocks it with the program's registers in place. SIGSEGV and SIGBUS are always
//! ours: a fault of a copy from or to the program's memory becomes EFAULT.
//!
//! | | |
//! | --- | --- |
//! | here | what the rest asks of signals that wait |
//! | [`actions`] | what the program has set, and what the kernel is told |
//! | [`wrapper`] | the handler that the kernel knows |
//! | [`alternate_stack`] | `sigaltstack` |

mod actions;
mod alternate_stack;
mod wrapper;

pub(crate) use actions::{
    after_fork, after_handlers_were_cleared, before_fork, initialise, sigaction, sigaction_of_child,
};
pub(crate) use alternate_stack::alternate_stack;
pub(crate) use wrapper::return_address;

use crate::entry;
use actions::{ACTIONS, SA_RESTART};
use core::sync::atomic::Ordering;

const SIGNAL_LIMIT: usize = 65;
pub(crate) const SIGBUS: usize = 7;
pub(crate) const SIGSEGV: usize = 11;
/// The C library cancels threads with it.
const SIGCANCEL: usize = 32;

/// Whether a signal waits for the end of the call in hand.
pub(crate) fn has_deferred() -> bool {
    // SAFETY: the thread's own block.
    unsafe { (*entry::thread_state()).deferred.load(Ordering::Relaxed) != 0 }
}

/// Whether every handler of the signals that were deferred wants interrupted calls to be made again.
pub(crate) fn deferred_restart() -> bool {
    // SAFETY: the thread's own block.
    let signals = unsafe { (*entry::thread_state()).unblock };
    signals != 0
        && (1..SIGNAL_LIMIT)
            .filter(|signal| signals & (1 << (signal - 1)) != 0)
            .all(|signal| ACTIONS[signal].flags.load(Ordering::Relaxed) & SA_RESTART != 0)
}
