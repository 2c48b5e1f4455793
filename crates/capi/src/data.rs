//! Bytes: reading, writing, seeking.

use crate::call::run;
use crate::memory::{self};
use crate::table::OpenFile;
use crate::volume::Volume;
use gannet_vfs::usermem::{Destination, Source};
use gannet_vfs::{Errno, Error, Result, SeekTarget, WriteFlags, WritePosition};
use std::ffi::{c_int, c_void};

/// Bytes that one call moves at most, as the kernel has it.
const COUNT_MAX: usize = 0x7fff_f000;

impl Volume {
    /// Runs `work` at the offset of an open file; what it returns first becomes the offset.
    pub(crate) fn at_offset<T>(&self, file: &OpenFile, work: impl FnOnce(u64) -> (u64, Result<T>)) -> Result<T> {
        let guard = self.fs().shared().offset(file.description)?;
        let (offset, result) = work(guard.get());
        guard.set(offset);
        result
    }

    pub(crate) fn read(&self, descriptor: i32, at: Option<u64>, mut into: Destination<'_>) -> Result<i64> {
        self.with(descriptor, |file| {
            file.check_readable()?;
            into.truncate(COUNT_MAX);
            let mut read = |offset| self.fs().read(file.node, offset, &mut into);
            let count = match at {
                Some(offset) => read(offset)?,
                None => self.at_offset(file, |offset| {
                    let result = read(offset);
                    (offset + result.map_or(0, |count| count as u64), result)
                })?,
            };
            self.note_access(file);
            Ok(count as i64)
        })
    }

    /// What is read moves the access time, by the file system's rules.
    pub(crate) fn note_access(&self, file: &OpenFile) {
        if file.flags & libc::O_NOATIME as u32 == 0 {
            self.fs().note_access(file.node);
        }
    }

    pub(crate) fn write(&self, descriptor: i32, at: Option<u64>, mut from: Source<'_>) -> Result<i64> {
        self.with(descriptor, |file| {
            file.check_writable()?;
            from.truncate(COUNT_MAX);
            if from.is_empty() {
                return Ok(0);
            }
            let status = self.fs().shared().info(file.description)?.status;
            let (appends, how) = (status & libc::O_APPEND as u32 != 0, WriteFlags::of_status(status));
            self.namespace().before_change(file.node)?;
            let mut write = |offset| {
                // Linux appends then, whatever the offset says.
                let position = if appends { WritePosition::Append } else { WritePosition::At(offset) };
                self.fs().write(file.node, position, &mut from, how)
            };
            let written = match at {
                Some(offset) => write(offset)?,
                None => self.at_offset(file, |offset| {
                    let result = write(offset);
                    (result.map_or(offset, |written| written.offset_bytes + written.count_bytes as u64), result)
                })?,
            };
            Ok(written.count_bytes as i64)
        })
    }

    fn seek(&self, file: &OpenFile, wanted: i64, whence: c_int) -> Result<u64> {
        self.at_offset(file, |current| {
            let target = || {
                let base = match whence {
                    libc::SEEK_SET => 0,
                    libc::SEEK_CUR => current as i64,
                    libc::SEEK_END => self.fs().attributes(file.node)?.size_bytes as i64,
                    libc::SEEK_DATA | libc::SEEK_HOLE => {
                        let from = u64::try_from(wanted).map_err(|_| Error::new(Errno::NXIO))?;
                        let what = if whence == libc::SEEK_DATA { SeekTarget::Data } else { SeekTarget::Hole };
                        return self.fs().seek(file.node, what, from);
                    }
                    _ => return Err(Error::because(Errno::INVAL, "not a place that lseek counts from")),
                };
                let sum = base.checked_add(wanted).ok_or(Error::new(Errno::OVERFLOW))?;
                u64::try_from(sum).map_err(|_| Error::because(Errno::INVAL, "before the beginning of the file"))
            };
            let target = target();
            (target.unwrap_or(current), target)
        })
    }
}

/// An offset that a caller passes.
pub(crate) fn offset_of(offset: i64) -> Result<Option<u64>> {
    u64::try_from(offset).map(Some).map_err(|_| Error::because(Errno::INVAL, "a negative offset"))
}

/// Reads up to `count` bytes at the file's offset and moves it. Fewer only at the end of the file (0 there).
///
/// Returns the number of bytes.
///
/// # Safety
/// `volume` is attached or NULL; `buffer` has room for `count` bytes that nothing else uses meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gannet_read(volume: *mut Volume, descriptor: c_int, buffer: *mut c_void, count: usize) -> i64 {
    let read = |volume: &Volume| {
        let slice = memory::buffer(buffer, count)?;
        // SAFETY: the caller's promise.
        volume.read(descriptor, None, unsafe { Destination::from_user(slice) })
    };
    // SAFETY: the caller's promise.
    unsafe { run("gannet_read", volume, read) }
}

/// Reads up to `count` bytes at `offset`.
///
/// Returns the number of bytes, fewer than `count` only at the end of the file.
///
/// # Safety
/// As for `gannet_read`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gannet_pread(
    volume: *mut Volume,
    descriptor: c_int,
    buffer: *mut c_void,
    count: usize,
    offset: i64,
) -> i64 {
    let read = |volume: &Volume| {
        let slice = memory::buffer(buffer, count)?;
        // SAFETY: the caller's promise.
        volume.read(descriptor, offset_of(offset)?, unsafe { Destination::from_user(slice) })
    };
    // SAFETY: the caller's promise.
    unsafe { run("gannet_pread", volume, read) }
}

/// Writes `count` bytes at the file's offset (with `O_APPEND` at the end of the file) and moves it.
///
/// Returns the number of bytes, fewer than `count` only when the volume filled up.
///
/// # Safety
/// `volume` is attached or NULL; `buffer` holds `count` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gannet_write(
    volume: *mut Volume,
    descriptor: c_int,
    buffer: *const c_void,
    count: usize,
) -> i64 {
    let write = |volume: &Volume| {
        let slice = memory::buffer(buffer, count)?;
        // SAFETY: the caller's promise.
        volume.write(descriptor, None, unsafe { Source::from_user(slice) })
    };
    // SAFETY: the caller's promise.
    unsafe { run("gannet_write", volume, write) }
}

/// Writes `count` bytes at `offset` (with `O_APPEND`, as on Linux, at the end of the file).
///
/// Returns the number of bytes, fewer than `count` only when the volume filled up.
///
/// # Safety
/// As for `gannet_write`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gannet_pwrite(
    volume: *mut Volume,
    descriptor: c_int,
    buffer: *const c_void,
    count: usize,
    offset: i64,
) -> i64 {
    let write = |volume: &Volume| {
        let slice = memory::buffer(buffer, count)?;
        // SAFETY: the caller's promise.
        volume.write(descriptor, offset_of(offset)?, unsafe { Source::from_user(slice) })
    };
    // SAFETY: the caller's promise.
    unsafe { run("gannet_pwrite", volume, write) }
}

/// Moves the file's offset; `whence` is `SEEK_SET`, `SEEK_CUR`, `SEEK_END`, `SEEK_DATA` or `SEEK_HOLE`.
///
/// Returns the new offset.
///
/// # Safety
/// `volume` is attached or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gannet_lseek(volume: *mut Volume, descriptor: c_int, offset: i64, whence: c_int) -> i64 {
    let seek = |volume: &Volume| {
        volume.with_open(descriptor, |file| volume.seek(file, offset, whence).map(|offset| offset as i64))
    };
    // SAFETY: the caller's promise.
    unsafe { run("gannet_lseek", volume, seek) }
}
