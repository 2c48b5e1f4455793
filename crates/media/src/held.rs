//! The file of a medium, under a number that the program can close (`closefrom`) and that the kernel then gives to a file of the
//! program's. So nothing is done through the number unless it leads to the file that was opened, and what else stands there is left alone.

use std::fs::File;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::{Stat, fstat};
use rustix::io::{Errno, Result};

use crate::identity::FileIdentity;

/// An open file, and which one it was when it was opened. Dropped: closed, if the number still leads there.
#[derive(Debug)]
pub(crate) struct HeldFile {
    file: ManuallyDrop<File>,
    /// Its device and inode: for a device file, those of its name.
    number: (u64, u64),
    identity: FileIdentity,
}

impl HeldFile {
    pub(crate) fn new(file: File, status: &Stat) -> HeldFile {
        let number = (status.st_dev, status.st_ino);
        HeldFile { file: ManuallyDrop::new(file), number, identity: FileIdentity::of(status) }
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
        let status = fstat(&*self.file)?;
        if (status.st_dev, status.st_ino) == self.number { Ok(status) } else { Err(Errno::BADF) }
    }
}

impl AsFd for HeldFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Drop for HeldFile {
    fn drop(&mut self) {
        if self.status().is_ok() {
            // SAFETY: not used again.
            drop(unsafe { ManuallyDrop::take(&mut self.file) });
        }
    }
}
