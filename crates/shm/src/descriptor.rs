//! A descriptor of an arena's file, in a table that is the program's as well: it closes numbers, and gives them to files of its own, without
//! knowing of ours.
//!
//! A program that does so with numbers under which it believes nothing, while another thread opens files, takes ours at any moment. So
//! what is to be held for a while only is never kept by anything else than the descriptor (a map of the same open file would hold it for
//! as long as the process lives), what was asked through it is believed only if it still was ours, and what stands under the number
//! is left alone if it is not.
//!
//! Processes can share one table (`CLONE_FILES`): what one of them had open when it was killed stays open in the others.
//!
//! Touches descriptors of arenas' files and nothing else.

use crate::sys;
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, IntoRawFd, OwnedFd, RawFd};
use rustix::fs::Stat;
use rustix::io::Errno;
use rustix::process::{Pid, WaitId, WaitIdOptions, test_kill_process, waitid};
use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicBool, Ordering};

/// Above what programs number by hand, and what the kernel gives them next.
pub(crate) const KEPT_FROM: RawFd = 240;

/// Dropped: closed, if it is still ours.
#[derive(Debug)]
pub(crate) struct Descriptor {
    fd: ManuallyDrop<OwnedFd>,
    /// The arena's file's device and inode.
    file: (u64, u64),
}

impl Descriptor {
    fn new(fd: OwnedFd, file: &Stat) -> Self {
        Self::supposed(fd, (file.st_dev, file.st_ino))
    }

    /// One just opened, of a file that should be this one: who uses it asks whether it [is](Descriptor::is_ours), or was when it was
    /// [closed](Descriptor::close).
    pub(crate) fn supposed(fd: OwnedFd, file: (u64, u64)) -> Self {
        Self { fd: ManuallyDrop::new(fd), file }
    }

    /// One just opened, and the status of its file. `None` if the program has closed it meanwhile.
    pub(crate) fn of(fd: OwnedFd) -> Option<(Self, Stat)> {
        match rustix::fs::fstat(&fd) {
            Ok(status) => Some((Self::new(fd, &status), status)),
            Err(_) => {
                let _ = fd.into_raw_fd();
                None
            }
        }
    }

    /// The same open file under a number that is out of the program's way, if such a one is to be had. `None` if the number was the
    /// program's by then: something else than `file` is there.
    pub(crate) fn out_of_the_way(low: OwnedFd, file: &Stat) -> Option<Self> {
        let is_file =
            |fd: &OwnedFd| rustix::fs::fstat(fd).is_ok_and(|at| (at.st_dev, at.st_ino) == (file.st_dev, file.st_ino));
        let high = rustix::io::fcntl_dupfd_cloexec(&low, KEPT_FROM);
        match high {
            Ok(high) => {
                drop(Self::new(low, file));
                // Last, so that the caller need not look again.
                if is_file(&high) {
                    return Some(Self::new(high, file));
                }
                // A duplicate of the program's, which is ours to close.
                close(high);
                None
            }
            // Where the limit is lower than that.
            Err(_) if is_file(&low) => Some(Self::new(low, file)),
            Err(_) => {
                let _ = low.into_raw_fd();
                None
            }
        }
    }

    /// Device and inode of the arena's file.
    pub(crate) fn file(&self) -> (u64, u64) {
        self.file
    }

    /// Whether the number still leads to the arena's file.
    pub(crate) fn is_ours(&self) -> bool {
        rustix::fs::fstat(&*self.fd).is_ok_and(|at| (at.st_dev, at.st_ino) == self.file)
    }

    /// Closes it, if it is still ours: whether it was.
    pub(crate) fn close(mut self) -> bool {
        let is_ours = self.close_if_ours();
        std::mem::forget(self);
        is_ours
    }

    /// The number is not used again.
    fn close_if_ours(&mut self) -> bool {
        let is_ours = self.is_ours();
        if is_ours {
            // SAFETY: both callers use it no more.
            close(unsafe { ManuallyDrop::take(&mut self.fd) });
        }
        is_ours
    }
}

/// Closes a number that the program may have closed since it was looked at: the standard library takes that for a defect of ours.
fn close(fd: OwnedFd) {
    // SAFETY: the number was ours a moment ago, and whoever else closes it does the same.
    unsafe { sys::close(fd.into_raw_fd()) };
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        self.close_if_ours();
    }
}

impl AsFd for Descriptor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl AsRawFd for Descriptor {
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}

static SHARED: AtomicBool = AtomicBool::new(false);

/// Before a process is made that shares this one's table of descriptors (`CLONE_FILES`), or its memory with a table of its own, while
/// this one goes on: from here on the gate is waited for in turns, since who has it may be killed and leave it open in the other's table.
pub fn share_descriptors() {
    SHARED.store(true, Ordering::Relaxed);
}

/// Whether [`share_descriptors`] was called here, or where this process was forked.
pub(crate) fn are_shared() -> bool {
    SHARED.load(Ordering::Relaxed)
}

/// Whether process `pid` lives and has the same table of descriptors as this one. In doubt it has.
pub(crate) fn shares_table_with(pid: Pid) -> bool {
    // An error: it is not there, or who asks is not allowed to.
    sys::has_table_of(pid.as_raw_pid() as u32).unwrap_or_else(|_| !has_ended(pid))
}

/// Whether process `pid` is gone. Of those for which nobody has waited, children are known.
pub(crate) fn has_ended(pid: Pid) -> bool {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    test_kill_process(pid) == Err(Errno::SRCH) || matches!(waitid(WaitId::Pid(pid), options), Ok(Some(_)))
}
