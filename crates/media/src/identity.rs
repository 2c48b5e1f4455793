//! Which file a medium is, whether a path still names it, and getting a disk file's bytes to the disk. Where several were
//! joined, it is the first that says which medium this is.

use std::io;
use std::panic::Location;
use std::path::Path;

use rustix::fs::{fdatasync, stat};
use rustix::io::Errno;
use rustix::mm::{MsyncFlags, msync};

use crate::error::AccessError;
use crate::held::HeldFile;
use crate::medium::{Medium, MediumKind};
use crate::offset::MediumOffset;

/// What names a file for as long as the machine runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FileIdentity {
    /// `st_dev`.
    pub device: u64,
    /// `st_ino`.
    pub inode: u64,
    /// For a device file, the device it stands for (`st_rdev`): two such files are the same medium. Else zero.
    pub special: u64,
}

impl FileIdentity {
    pub(crate) fn of(status: &rustix::fs::Stat) -> FileIdentity {
        let is_device = rustix::fs::FileType::from_raw_mode(status.st_mode).is_char_device();
        if is_device {
            FileIdentity { device: 0, inode: 0, special: status.st_rdev }
        } else {
            FileIdentity { device: status.st_dev, inode: status.st_ino, special: 0 }
        }
    }
}

impl Medium {
    /// Which file this is, as noted when it was opened. `None` for a simulated medium.
    #[must_use]
    pub fn identity(&self) -> Option<FileIdentity> {
        self.backing.file.as_ref().map(HeldFile::identity)
    }

    /// Whether `path` still names this file, and not another one that was put in its place.
    ///
    /// # Errors
    /// What `stat` says, except that a missing file is `false`.
    pub fn is_named_by(&self, path: &Path) -> io::Result<bool> {
        match stat(path) {
            Ok(status) => Ok(self.identity() == Some(FileIdentity::of(&status))),
            Err(Errno::NOENT | Errno::NOTDIR) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Whether the file, or one of several, is known to have become shorter than the map: loads and stores beyond its end fail. A file
    /// whose descriptor the program has closed is not known.
    #[must_use]
    pub fn is_truncated(&self) -> bool {
        let is_short = |status: rustix::fs::Stat, length| (status.st_size as u64) < length;
        self.files().any(|(file, kind, length)| {
            kind != MediumKind::DeviceDax && file.status().is_ok_and(|status| is_short(status, length))
        })
    }

    /// Writes everything to the disk, for a file on a disk file system; the pages are written in any order. Nothing to do
    /// for other media.
    ///
    /// # Errors
    /// What `fdatasync` or `msync` says.
    #[inline]
    #[track_caller]
    pub fn sync(&self) -> io::Result<()> {
        if self.needs_sync() { self.sync_files() } else { Ok(()) }
    }

    /// Whether [`Medium::sync`] may have anything to do: of several files, one may lie on a disk file system.
    #[inline]
    #[must_use]
    pub fn needs_sync(&self) -> bool {
        self.kind() == MediumKind::DiskFile || !self.backing.members.is_empty() || self.recorder.is_some()
    }

    #[inline(never)]
    #[track_caller]
    fn sync_files(&self) -> io::Result<()> {
        if let Some(recorder) = &self.recorder {
            recorder.sync(None, Location::caller());
        }
        let mut start = 0;
        for (file, kind, length) in self.files() {
            // Before and after: meanwhile the program may have closed it and opened another file there.
            let is_ours = || file.status().is_ok();
            if kind == MediumKind::DiskFile && !(is_ours() && fdatasync(file).map(|()| is_ours())?) {
                // SAFETY: the file's part of the map; nothing but writing it back happens to it.
                unsafe { msync(self.base().add(start as usize).cast(), length as usize, MsyncFlags::SYNC) }?;
            }
            start += length;
        }
        Ok(())
    }

    /// As [`Medium::sync`], for the pages of a range only.
    ///
    /// # Errors
    /// What `msync` says; a range outside the medium is invalid input.
    #[track_caller]
    pub fn sync_range(&self, at: MediumOffset, length: u64) -> io::Result<()> {
        self.readable(at, length).map_err(|error: AccessError| io::Error::new(io::ErrorKind::InvalidInput, error))?;
        if let Some(recorder) = &self.recorder
            && length != 0
        {
            recorder.sync(Some((at.0, length)), Location::caller());
        }
        if self.kind() != MediumKind::DiskFile || length == 0 {
            return Ok(());
        }
        let start = at.0 & !4095;
        let bytes = (at.0 + length - start) as usize;
        // SAFETY: the pages of a range inside the map; nothing but writing them back happens to them.
        Ok(unsafe { msync(self.base().add(start as usize).cast(), bytes, MsyncFlags::SYNC) }?)
    }
}
