//! Transfers past the kernel's pages, whose pieces the kernel may send without waiting for each (`ASYNC_DIO`).
//!
//! That is agreed on every mount: without it the kernel tells io_uring of a short transfer in a way that makes it go on from the start, so
//! that what is read past a file's end, or written where there is too little room, comes out wrong. `read(2)` and `write(2)` on a file that
//! was opened past the pages still wait for each piece; io_uring, `io_submit`, and `O_DIRECT` on a file that was opened through the pages
//! do not. Three things follow, for mounts that are shared: pieces of an append may overtake each other (`appends.rs`), a short count is not
//! told but becomes an I/O error (`callers.rs`), and the kernel cuts a file back after a write that failed (`cuts.rs`).

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use super::Dispatcher;
use super::appends::{Appends, PATIENCE};
use super::cuts::Run;
use crate::protocol::constants::{InitFlags, WriteRequestFlags};
use crate::protocol::request::Header;

/// What is known of direct writes of one mount.
pub(super) struct Direct {
    patience_ms: AtomicU64,
    /// One failed: the files have notes of that.
    failed: AtomicBool,
}

impl Default for Direct {
    fn default() -> Self {
        Self { patience_ms: AtomicU64::new(PATIENCE.as_millis() as u64), failed: AtomicBool::new(false) }
    }
}

impl Direct {
    /// For how long nothing changes before a piece of an append waits no more.
    pub(super) fn patience(&self) -> Duration {
        Duration::from_millis(self.patience_ms.load(Ordering::Relaxed))
    }

    /// Waits no longer than a moment from now on.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(super) fn lose_patience(&self) {
        self.patience_ms.store(0, Ordering::Relaxed);
    }

    /// Waits so long from now on.
    #[cfg(test)]
    pub(super) fn have_patience(&self, patience: Duration) {
        self.patience_ms.store(patience.as_millis() as u64, Ordering::Relaxed);
    }

    pub(super) fn note_failure(&self) {
        self.failed.store(true, Ordering::Relaxed);
    }
}

/// The same of one file.
#[derive(Default)]
pub(super) struct DirectWrites {
    pub(super) appends: Appends,
    pub(super) run: Run,
}

/// Where a request comes from: the pieces of one call have the same source.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct Origin {
    pub(super) thread: u32,
    pub(super) handle: u64,
}

impl Dispatcher {
    /// Whether a write passes the kernel's pages by, of a file that others may change.
    pub(super) fn is_direct(&self, write_flags: WriteRequestFlags) -> bool {
        self.agreed(InitFlags::ASYNC_DIO) && !self.exclusive() && !write_flags.contains(WriteRequestFlags::CACHE)
    }

    /// Another request than a write's or a cut: a call of that thread that failed is over.
    pub(super) fn no_cut_follows(&self, header: &Header) {
        if self.direct.failed.load(Ordering::Relaxed) && header.process != 0 {
            self.nodes.with_direct(header.node, |writes| {
                writes.appends.is_over(header.process);
                writes.run.is_over(header.process);
            });
        }
    }
}
