//! The file of a medium, under a number that the program can close (`closefrom`) and that the kernel then gives to a file of the
//! program's. So nothing is done through the number unless it leads to the file that was opened, and what else stands there is left alone.
//! Where the program wants the number the file is given another.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicI32, Ordering};

use rustix::fs::{Stat, fstat};
use rustix::io::{Errno, Result};

use crate::identity::FileIdentity;

/// An open file, and which one it was when it was opened. Dropped: closed, if the number still leads there.
#[derive(Debug)]
pub(crate) struct HeldFile {
    descriptor: AtomicI32,
    /// Its device and inode: for a device file, those of its name.
    number: (u64, u64),
    identity: FileIdentity,
}

impl HeldFile {
    pub(crate) fn new(file: File, status: &Stat) -> HeldFile {
        let number = (status.st_dev, status.st_ino);
        HeldFile { descriptor: AtomicI32::new(file.into_raw_fd()), number, identity: FileIdentity::of(status) }
    }

    /// Device and inode of the file that was opened.
    #[inline]
    pub(crate) fn number(&self) -> (u64, u64) {
        self.number
    }

    /// Which file was opened.
    pub(crate) fn identity(&self) -> FileIdentity {
        self.identity
    }

    /// What `fstat` says of the file. `EBADF` if the number leads elsewhere by now.
    pub(crate) fn status(&self) -> Result<Stat> {
        let status = fstat(self.as_fd())?;
        if (status.st_dev, status.st_ino) == self.number { Ok(status) } else { Err(Errno::BADF) }
    }

    /// From now on it has the number `to`, which is a duplicate, if its number was `from`; else `to` is given back. What is under the old
    /// number is no longer looked at, but by who has asked for it before.
    pub(crate) fn move_from(&self, from: RawFd, to: OwnedFd) -> core::result::Result<(), OwnedFd> {
        match self.descriptor.compare_exchange(from, to.as_raw_fd(), Ordering::SeqCst, Ordering::Relaxed) {
            Ok(_) => {
                let _ = to.into_raw_fd();
                Ok(())
            }
            Err(_) => Err(to),
        }
    }
}

impl AsFd for HeldFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: open as long as the program leaves it alone; who uses it knows that it may not have done so, as above.
        unsafe { BorrowedFd::borrow_raw(self.descriptor.load(Ordering::SeqCst)) }
    }
}

impl Drop for HeldFile {
    fn drop(&mut self) {
        if self.status().is_ok() {
            // SAFETY: not used again.
            drop(unsafe { OwnedFd::from_raw_fd(*self.descriptor.get_mut()) });
        }
    }
}
