//! Bytes: reading, writing, seeking, allocating, syncing.

use crate::call::{run, run_plain};
use crate::memory::{self, Input};
use crate::table::OpenFile;
use crate::volume::Volume;
use gannet_vfs::usermem::{Destination, Source, UserSlice};
use gannet_vfs::{AllocateMode, Errno, Error, FileType, Result, SeekTarget, SyncScope, WriteFlags, WritePosition};
use std::ffi::{c_int, c_void};

/// Bytes that one call moves at most, as the kernel has it.
const COUNT_MAX: usize = 0x7fff_f000;
/// Buffers of a vectored call.
const SEGMENTS_MAX: usize = 1024;

/// As many of them are kept on the stack, of which a thread may have little.
const SEGMENTS_NEAR: usize = 64;

/// Buffers of a vectored call, copied in.
struct Segments {
    near: [UserSlice; SEGMENTS_NEAR],
    /// All of them, if they are more.
    far: Vec<UserSlice>,
    count: usize,
}

impl Segments {
    fn read(buffers: &Input<libc::iovec>, count: c_int) -> Result<Self> {
        let count = usize::try_from(count).ok().filter(|count| *count <= SEGMENTS_MAX);
        let count = count.ok_or(Error::because(Errno::INVAL, "a vectored call takes 0 to 1024 buffers"))?;
        let mut segments = Self { near: [UserSlice::EMPTY; SEGMENTS_NEAR], far: Vec::new(), count };
        if count > SEGMENTS_NEAR {
            let room = segments.far.try_reserve_exact(count);
            room.map_err(|_| Error::because(Errno::NOMEM, "no memory for the list of buffers"))?;
            segments.far.resize(count, UserSlice::EMPTY);
        }
        for index in 0..count {
            let given = buffers.get(index)?;
            segments.used_mut()[index] = memory::buffer(given.iov_base, given.iov_len)?;
        }
        Ok(segments)
    }

    fn used(&self) -> &[UserSlice] {
        if self.far.is_empty() { &self.near[..self.count] } else { &self.far }
    }

    fn used_mut(&mut self) -> &mut [UserSlice] {
        if self.far.is_empty() { &mut self.near[..self.count] } else { &mut self.far }
    }
}

/// The sum of the lengths is beyond what a call may say.
const TOO_LONG: Error = Error::because(Errno::INVAL, "the buffers are longer than any file");

impl Volume {
    /// Runs `work` at the offset of an open file; what it returns first becomes the offset.
    pub(crate) fn at_offset<T>(&self, file: &OpenFile, work: impl FnOnce(u64) -> (u64, Result<T>)) -> Result<T> {
        let guard = self.fs().shared().offset(file.description)?;
        let (offset, result) = work(guard.get());
        guard.set(offset);
        result
    }

    fn read(&self, descriptor: i32, at: Option<u64>, mut into: Destination<'_>) -> Result<i64> {
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

    fn write(&self, descriptor: i32, at: Option<u64>, mut from: Source<'_>) -> Result<i64> {
        self.with(descriptor, |file| {
            file.check_writable()?;
            from.truncate(COUNT_MAX);
            if from.is_empty() {
                return Ok(0);
            }
            let appends = self.fs().shared().info(file.description)?.status & libc::O_APPEND as u32 != 0;
            self.namespace().before_change(file.node)?;
            let mut write = |offset| {
                // Linux appends then, whatever the offset says.
                let position = if appends { WritePosition::Append } else { WritePosition::At(offset) };
                self.fs().write(file.node, position, &mut from, WriteFlags::empty())
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

    fn allocate(&self, file: &OpenFile, mode: c_int, offset: i64, length: i64) -> Result<()> {
        file.check_writable()?;
        if file.file_type != FileType::Regular {
            return Err(Error::new(Errno::NODEV));
        }
        let invalid = Error::because(Errno::INVAL, "an offset before the file, or a length that is not positive");
        let offset = u64::try_from(offset).map_err(|_| invalid)?;
        let length = u64::try_from(length).ok().filter(|length| *length > 0).ok_or(invalid)?;
        if offset + length > i64::MAX as u64 {
            return Err(Error::new(Errno::FBIG));
        }
        let not_one = Error::because(Errno::OPNOTSUPP, "not a mode of fallocate");
        let mode = AllocateMode::of_flags(mode as u32).ok_or(not_one)?;
        self.namespace().allocate_open(file.node, mode, offset, length)
    }
}

/// An offset that a caller passes.
fn offset_of(offset: i64) -> Result<Option<u64>> {
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

/// Reads at the file's offset into several buffers (at most 1024), one after the other.
///
/// Returns the number of bytes.
///
/// # Safety
/// As for `gannet_read`, for each buffer; `buffers` points to `buffer_count` of them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gannet_readv(
    volume: *mut Volume,
    descriptor: c_int,
    buffers: *const libc::iovec,
    buffer_count: c_int,
) -> i64 {
    // SAFETY: the caller's promise.
    let buffers = unsafe { Input::new(buffers) };
    let read = |volume: &Volume| {
        let segments = Segments::read(&buffers, buffer_count)?;
        // SAFETY: the caller's promise.
        let into = unsafe { Destination::from_user_segments(segments.used()) }.ok_or(TOO_LONG)?;
        volume.read(descriptor, None, into)
    };
    // SAFETY: the caller's promise.
    unsafe { run("gannet_readv", volume, read) }
}

/// The same at `offset`, which leaves the file's offset where it is.
///
/// Returns the number of bytes.
///
/// # Safety
/// As for `gannet_readv`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gannet_preadv(
    volume: *mut Volume,
    descriptor: c_int,
    buffers: *const libc::iovec,
    buffer_count: c_int,
    offset: i64,
) -> i64 {
    // SAFETY: the caller's promise.
    let buffers = unsafe { Input::new(buffers) };
    let read = |volume: &Volume| {
        let segments = Segments::read(&buffers, buffer_count)?;
        // SAFETY: the caller's promise.
        let into = unsafe { Destination::from_user_segments(segments.used()) }.ok_or(TOO_LONG)?;
        volume.read(descriptor, offset_of(offset)?, into)
    };
    // SAFETY: the caller's promise.
    unsafe { run("gannet_preadv", volume, read) }
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

/// Writes several buffers (at most 1024), one after the other, at the file's offset, as one write.
///
/// Returns the number of bytes.
///
/// # Safety
/// As for `gannet_write`, for each buffer; `buffers` points to `buffer_count` of them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gannet_writev(
    volume: *mut Volume,
    descriptor: c_int,
    buffers: *const libc::iovec,
    buffer_count: c_int,
) -> i64 {
    // SAFETY: the caller's promise.
    let buffers = unsafe { Input::new(buffers) };
    let write = |volume: &Volume| {
        let segments = Segments::read(&buffers, buffer_count)?;
        // SAFETY: the caller's promise.
        let from = unsafe { Source::from_user_segments(segments.used()) }.ok_or(TOO_LONG)?;
        volume.write(descriptor, None, from)
    };
    // SAFETY: the caller's promise.
    unsafe { run("gannet_writev", volume, write) }
}

/// The same at `offset`, which leaves the file's offset where it is; with `O_APPEND`, as on Linux, at the end of the file.
///
/// Returns the number of bytes.
///
/// # Safety
/// As for `gannet_writev`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gannet_pwritev(
    volume: *mut Volume,
    descriptor: c_int,
    buffers: *const libc::iovec,
    buffer_count: c_int,
    offset: i64,
) -> i64 {
    // SAFETY: the caller's promise.
    let buffers = unsafe { Input::new(buffers) };
    let write = |volume: &Volume| {
        let segments = Segments::read(&buffers, buffer_count)?;
        // SAFETY: the caller's promise.
        let from = unsafe { Source::from_user_segments(segments.used()) }.ok_or(TOO_LONG)?;
        volume.write(descriptor, offset_of(offset)?, from)
    };
    // SAFETY: the caller's promise.
    unsafe { run("gannet_pwritev", volume, write) }
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

/// Changes the size of an open file: cuts it, or extends it with a hole.
///
/// # Safety
/// `volume` is attached or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gannet_ftruncate(volume: *mut Volume, descriptor: c_int, length: i64) -> c_int {
    let truncate = |volume: &Volume| {
        volume.with_open(descriptor, |file| {
            let length = u64::try_from(length).map_err(|_| Error::because(Errno::INVAL, "a negative length"))?;
            file.check_writable().map_err(|_| Error::because(Errno::INVAL, "not opened for writing"))?;
            volume.namespace().truncate_open(file.node, length)
        })
    };
    // SAFETY: the caller's promise.
    unsafe { run_plain("gannet_ftruncate", volume, truncate) }
}

/// Reserves space for a range, or makes a hole of it, and so on: `fallocate(2)` with its modes.
///
/// # Safety
/// `volume` is attached or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gannet_fallocate(
    volume: *mut Volume,
    descriptor: c_int,
    mode: c_int,
    offset: i64,
    length: i64,
) -> c_int {
    let allocate = |volume: &Volume| volume.with_open(descriptor, |file| volume.allocate(file, mode, offset, length));
    // SAFETY: the caller's promise.
    unsafe { run_plain("gannet_fallocate", volume, allocate) }
}

/// Makes stores through maps of the file durable, and on a medium that is not persistent memory, as far as it can, the rest.
/// What was written by calls is durable already.
///
/// # Safety
/// `volume` is attached or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gannet_fsync(volume: *mut Volume, descriptor: c_int) -> c_int {
    let sync = |volume: &Volume| {
        volume.with_open(descriptor, |file| volume.fs().sync(file.node, SyncScope::DataAndAttributes))
    };
    // SAFETY: the caller's promise.
    unsafe { run_plain("gannet_fsync", volume, sync) }
}

/// The same without what is not needed to find the data again.
///
/// # Safety
/// `volume` is attached or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gannet_fdatasync(volume: *mut Volume, descriptor: c_int) -> c_int {
    let sync = |volume: &Volume| volume.with_open(descriptor, |file| volume.fs().sync(file.node, SyncScope::Data));
    // SAFETY: the caller's promise.
    unsafe { run_plain("gannet_fdatasync", volume, sync) }
}

/// `gannet_fsync` for the whole volume.
///
/// # Safety
/// `volume` is attached or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gannet_sync(volume: *mut Volume) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { run_plain("gannet_sync", volume, |volume| volume.fs().sync_all()) }
}
