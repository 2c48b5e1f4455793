//! Transfers past the kernel's pages, whose pieces the kernel may send without waiting for each (`ASYNC_DIO`).
//!
//! That is agreed on every mount: without it the kernel tells io_uring of a short transfer in a way that makes it go on from the start, so
//! that what is read past a file's end, or written where there is too little room, comes out wrong. `read(2)` and `write(2)` on a file that
//! was opened past the pages still wait for each piece; io_uring, `io_submit`, and `O_DIRECT` on a file that was opened through the pages
//! do not. Three things follow, for mounts that are shared: pieces of an append may overtake each other, a short count is not told but
//! becomes an I/O error, and the kernel cuts a file back after a write that failed.
//!
//! Looks at what a calling thread is doing (`/proc/TID/syscall`) where a write does not fit; touches no data.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use gannet_vfs::{NodeId, Result};

use super::Dispatcher;
use super::nodes::OpenMode;
use crate::protocol::constants::{InitFlags, SetAttrValid};
use crate::protocol::request::{Header, SetAttrRequest};

const O_DIRECT: u32 = 0o40000;
/// A piece of an append waits so long for the one before it. Only what others have cut, or one that failed, lets it wait for nothing.
pub(super) const PATIENCE: Duration = Duration::from_millis(250);
const PAUSE: Duration = Duration::from_micros(50);

/// Calls that wait for each piece, and are told how much was written.
const WAITING_CALLS: &[i64] = &[
    libc::SYS_write,
    libc::SYS_pwrite64,
    libc::SYS_writev,
    libc::SYS_pwritev,
    libc::SYS_pwritev2,
    libc::SYS_sendfile,
    libc::SYS_splice,
    libc::SYS_copy_file_range,
];
/// Calls by which a program sets a file's size.
const CUTTING_CALLS: &[i64] = &[
    libc::SYS_ftruncate,
    libc::SYS_truncate,
    libc::SYS_openat,
    libc::SYS_openat2,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_open,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_creat,
];

/// How long pieces of appends wait for those before them.
pub(super) struct Direct {
    patience_ms: AtomicU64,
}

impl Default for Direct {
    fn default() -> Self {
        Self { patience_ms: AtomicU64::new(PATIENCE.as_millis() as u64) }
    }
}

impl Direct {
    /// Waits no longer than a moment from now on.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(super) fn lose_patience(&self) {
        self.patience_ms.store(0, Ordering::Relaxed);
    }
}

impl Dispatcher {
    /// Before a piece of an append is stored: waits until those before it are. The kernel keeps the file locked from the first piece to the
    /// last, so what it says of a piece behind the end, and not where the last one ended by its reckoning, overtook another.
    pub(super) fn await_append(&self, id: u64, node: NodeId, offset_bytes: u64) -> Result<()> {
        let mut begin = None;
        while self.agreed(InitFlags::ASYNC_DIO)
            && !self.nodes.append_goes_on(id, offset_bytes)
            && offset_bytes > self.file_system.attributes(node)?.size_bytes
        {
            let patience = Duration::from_millis(self.direct.patience_ms.load(Ordering::Relaxed));
            if begin.get_or_insert_with(Instant::now).elapsed() >= patience {
                break;
            }
            std::thread::sleep(PAUSE);
        }
        Ok(())
    }

    /// Whether the kernel makes an I/O error of a short count of a direct write.
    pub(super) fn hides_short_counts(&self, header: &Header, handle: u64, open_flags: u32) -> bool {
        if !self.agreed(InitFlags::ASYNC_DIO) {
            return false;
        }
        if self.exclusive() || self.users.mode(handle) == Some(OpenMode::Cached) {
            return open_flags & O_DIRECT != 0;
        }
        // Who cannot be looked at is taken for one of the many that wait.
        call_of(header).is_some_and(|call| !WAITING_CALLS.contains(&call))
    }

    /// Whether the kernel, and no program, sets a file's size: after a write that failed, to what it takes for the end. Others may have
    /// moved that.
    pub(super) fn cuts_what_others_wrote(&self, header: &Header, request: &SetAttrRequest) -> bool {
        request.valid.contains(SetAttrValid::SIZE)
            && self.nodes.take_failed_write(header.node)
            && request.valid.contains(SetAttrValid::FH)
            && !self.exclusive()
            && !self.file_system.shared().is_alone().unwrap_or(false)
            && call_of(header).is_some_and(|call| !CUTTING_CALLS.contains(&call))
    }
}

/// The system call that a thread is in; -1 if it is in none, or a worker of the kernel's. Nothing if that cannot be seen.
fn call_of(header: &Header) -> Option<i64> {
    if header.process == 0 {
        return None;
    }
    number_in(&std::fs::read_to_string(format!("/proc/{}/syscall", header.process)).ok()?)
}

/// What `/proc/TID/syscall` says: the number, arguments, stack and code, or that the thread runs. One that was never a program's has no stack.
fn number_in(line: &str) -> Option<i64> {
    let mut words = line.split_ascii_whitespace();
    let first = words.next()?;
    let stack = words.rev().nth(1);
    if stack.is_none_or(|stack| stack == "0x0") { Some(-1) } else { first.parse().ok() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_known_by_their_numbers() {
        let line =
            |number: &str, stack: &str| format!("{number} 0x3 0x7fdb0ccb2000 0x0 0x0 0x0 0x0 {stack} 0x7fdb0ce2d2ad\n");
        assert_eq!(number_in(&line("18", "0x7ffcc3b9e108")), Some(18));
        assert_eq!(number_in(&line("0", "0x0")), Some(-1), "a worker of io_uring");
        assert_eq!(number_in("-1 0x7ffcc3b9e108 0x7fdb0ce2d2ad\n"), Some(-1));
        assert_eq!(number_in("running\n"), Some(-1));
        assert_eq!(number_in(""), None);
    }
}
