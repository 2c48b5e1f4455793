//! Bytes in several buffers: the vectored calls, each one transfer as those of [`data`](crate::data).

use crate::call::run;
use crate::data::offset_of;
use crate::memory::{self, Input};
use crate::volume::Volume;
use gannet_vfs::usermem::{Destination, Source, UserSlice};
use gannet_vfs::{Errno, Error, Result};
use std::ffi::c_int;

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
    unsafe { read_vectors("gannet_readv", volume, descriptor, (buffers, buffer_count), Ok(None)) }
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
    unsafe { read_vectors("gannet_preadv", volume, descriptor, (buffers, buffer_count), offset_of(offset)) }
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
    unsafe { write_vectors("gannet_writev", volume, descriptor, (buffers, buffer_count), Ok(None)) }
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
    unsafe { write_vectors("gannet_pwritev", volume, descriptor, (buffers, buffer_count), offset_of(offset)) }
}

/// Reads into several buffers, for the call `name`; where the offset is wrong the buffers are looked at first.
///
/// # Safety
/// As for `gannet_readv`.
unsafe fn read_vectors(
    name: &'static str,
    volume: *mut Volume,
    descriptor: c_int,
    (buffers, buffer_count): (*const libc::iovec, c_int),
    offset: Result<Option<u64>>,
) -> i64 {
    // SAFETY: the caller's promise.
    let buffers = unsafe { Input::new(buffers) };
    let read = |volume: &Volume| {
        let segments = Segments::read(&buffers, buffer_count)?;
        // SAFETY: the caller's promise.
        let into = unsafe { Destination::from_user_segments(segments.used()) }.ok_or(TOO_LONG)?;
        volume.read(descriptor, offset?, into)
    };
    // SAFETY: the caller's promise.
    unsafe { run(name, volume, read) }
}

/// Writes several buffers, for the call `name`; where the offset is wrong the buffers are looked at first.
///
/// # Safety
/// As for `gannet_writev`.
unsafe fn write_vectors(
    name: &'static str,
    volume: *mut Volume,
    descriptor: c_int,
    (buffers, buffer_count): (*const libc::iovec, c_int),
    offset: Result<Option<u64>>,
) -> i64 {
    // SAFETY: the caller's promise.
    let buffers = unsafe { Input::new(buffers) };
    let write = |volume: &Volume| {
        let segments = Segments::read(&buffers, buffer_count)?;
        // SAFETY: the caller's promise.
        let from = unsafe { Source::from_user_segments(segments.used()) }.ok_or(TOO_LONG)?;
        volume.write(descriptor, offset?, from)
    };
    // SAFETY: the caller's promise.
    unsafe { run(name, volume, write) }
}
