//! [`Volume`]: what a handle stands for.

use crate::credentials::{Known, Who};
use crate::maps::Maps;
use crate::table::{DESCRIPTORS_MAX, OpenFile, Table};
use crate::{error, fork};
use gannet_vfs::namespace::Namespace;
use gannet_vfs::{Errno, Error, FileSystem, FileType, Result};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

const O_ACCMODE: u32 = libc::O_ACCMODE as u32;
const READS_ONLY: u32 = libc::O_RDONLY as u32;
const WRITES_ONLY: u32 = libc::O_WRONLY as u32;
/// What Linux has for `ioctl` alone: opened with permission for both, and good for neither.
const NEITHER: u32 = O_ACCMODE;
const O_PATH: u32 = libc::O_PATH as u32;

/// A volume that this process has attached. Made by `gannet_attach`, ended by `gannet_detach`; any thread may use it at any
/// time in between.
pub struct Volume {
    fs: Arc<dyn FileSystem>,
    pub(crate) table: Table,
    pub(crate) who: Who,
    maps: Mutex<Maps>,
    /// What `st_dev` says.
    pub(crate) device: u64,
    /// This process may hold record locks of its own, which go when it closes any descriptor of their file.
    pub(crate) has_locks: AtomicBool,
}

impl Volume {
    /// A handle with no descriptors.
    pub(crate) fn new(fs: Arc<dyn FileSystem>, known: Known) -> Result<Self> {
        let device = fs.identity();
        Ok(Self {
            fs,
            table: Table::new(),
            who: Who::new(known),
            maps: Mutex::default(),
            device,
            has_locks: AtomicBool::new(false),
        })
    }

    /// The file system.
    #[inline]
    pub(crate) fn fs(&self) -> &dyn FileSystem {
        &*self.fs
    }

    /// The file system with permissions.
    pub(crate) fn namespace(&self) -> Namespace<'_, '_> {
        Namespace::new(self.fs(), self.who.get().effective())
    }

    /// What is mapped.
    pub(crate) fn maps(&self) -> MutexGuard<'_, Maps> {
        self.maps.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does `work` with what a descriptor stands for.
    #[inline]
    pub(crate) fn with<T>(&self, descriptor: i32, work: impl FnOnce(&OpenFile) -> Result<T>) -> Result<T> {
        let result = self.table.get(descriptor).and_then(|file| work(&file));
        if result.is_err() {
            error::about_descriptor(descriptor);
        }
        result
    }

    /// The same for one that is not `O_PATH`.
    #[inline]
    pub(crate) fn with_open<T>(&self, descriptor: i32, work: impl FnOnce(&OpenFile) -> Result<T>) -> Result<T> {
        self.with(descriptor, |file| {
            file.check_open()?;
            work(file)
        })
    }

    /// Closes a descriptor.
    pub(crate) fn close(&self, descriptor: i32) -> Result<()> {
        let shared = self.fs.shared();
        // A thread that has no place among the volume's could not end the file's use, and nobody would later.
        shared.check_thread()?;
        let (file, last) = self.table.remove(descriptor)?;
        // As POSIX has it, whichever descriptor of the file it was.
        let unlocked = if self.has_locks.load(Ordering::Relaxed) { shared.unlock_process(file.node) } else { Ok(()) };
        if last {
            shared.close(self.fs(), file.description)?;
        }
        unlocked
    }

    /// Closes everything and gives the file system up, whatever fails meanwhile. The first failure is returned.
    pub(crate) fn end(self: Box<Self>) -> Result<()> {
        let mut result = fork::forget(&self);
        for map in self.maps().take_all() {
            result = result.and(map.end(self.fs()));
        }
        let open = self.table.descriptors(&self.table.lock());
        debug_assert!(open.len() <= DESCRIPTORS_MAX);
        for descriptor in open {
            result = result.and(self.close(descriptor));
        }
        // Last: nothing of the file system is called any more. Dropped without it, the volume would be closed as well, but could not say how.
        let left = self.fs.leave();
        result.and(left)
    }
}

impl OpenFile {
    /// `EBADF` for a descriptor that only names its file.
    #[inline]
    pub(crate) fn check_open(&self) -> Result<()> {
        let named_only = Error::because(Errno::BADF, "opened with O_PATH, which gives no access to the file");
        if self.flags & O_PATH != 0 { Err(named_only) } else { Ok(()) }
    }

    /// `EBADF` if it was not opened for reading, `EISDIR`.
    #[inline]
    pub(crate) fn check_readable(&self) -> Result<()> {
        self.check_opened_to_read()?;
        if self.file_type == FileType::Directory { Err(Error::new(Errno::ISDIR)) } else { Ok(()) }
    }

    /// `EBADF` if it was not opened for reading.
    #[inline]
    pub(crate) fn check_opened_to_read(&self) -> Result<()> {
        self.check_open()?;
        let not_reading = Error::because(Errno::BADF, "not opened for reading");
        if matches!(self.flags & O_ACCMODE, WRITES_ONLY | NEITHER) { Err(not_reading) } else { Ok(()) }
    }

    /// `EBADF` if it was not opened for writing.
    #[inline]
    pub(crate) fn check_writable(&self) -> Result<()> {
        self.check_open()?;
        let reading = Error::because(Errno::BADF, "not opened for writing");
        if matches!(self.flags & O_ACCMODE, READS_ONLY | NEITHER) { Err(reading) } else { Ok(()) }
    }
}
