//! Ranges of files where they lie: for callers that map or copy them themselves.

use crate::call::{run, run_plain};
use crate::maps::synced;
use crate::memory::Output;
use crate::place::{CLOSED, descriptor_of};
use crate::volume::Volume;
use gannet_vfs::{Errno, Error, SyncScope};
use std::ffi::c_int;

/// A piece of a file and where it lies.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Where in the file, in bytes; a multiple of 4096.
    pub file_offset: u64,
    /// How long, in bytes; a multiple of 4096.
    pub length: u64,
    /// Where in the medium, in bytes; 0 for a hole.
    pub medium_offset: u64,
    /// The kernel's descriptor of the medium, to be used with `mmap(2)` and not to be closed; -1 for a hole, and behind the end.
    pub medium: i32,
    /// 0.
    pub reserved: u32,
}

/// Pins a range of a file in place and tells where it lies, in ascending order and without gaps; `*token` names the pin. The
/// caller maps or reads the pieces itself, with `medium` and `medium_offset`, until `gannet_unmap`; the blocks stay where
/// they are as long, also if the file is truncated or removed. Rules and errors are those of `gannet_mmap`, which does the
/// mapping as well. The pin is this process's: a child by `fork(2)` must not use the range (see `MADV_DONTFORK`). Stores by
/// the caller are durable after `gannet_commit` or `gannet_fsync`.
///
/// Where `gannet_mmap` makes a copy of the last page of a file on a volume attached for reading, this tells where the page lies; behind the
/// end of the file it can hold anything.
///
/// A program that closes descriptors which it does not know (`closefrom(3)`) closes the medium's too. `gannet_mmap` does not
/// need it; here it is -EBADF, and a number that the program has put another file under is not told as the medium's.
///
/// With `capacity` 0 the number of pieces is told and nothing is pinned; it may change until the next call.
///
/// Returns the number of pieces. -ERANGE if there are more than `capacity`; nothing is pinned then.
///
/// # Safety
/// `volume` is attached or NULL, `extents` has room for `capacity` of them, `token` can be written or `capacity` is 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gannet_map(
    volume: *mut Volume,
    descriptor: c_int,
    offset: u64,
    length: u64,
    writable: c_int,
    extents: *mut Extent,
    capacity: usize,
    token: *mut u64,
) -> i64 {
    // SAFETY: the caller's promise.
    let (extents, token) = unsafe { (Output::new(extents), Output::new(token)) };
    let map = |volume: &Volume| {
        let pinned = volume.pin(descriptor, offset, length, writable != 0)?;
        let count = pinned.extents.len();
        if capacity == 0 {
            return volume.unpin(pinned).map(|()| count as i64);
        }
        let tell = || {
            if count > capacity {
                return Err(Error::because(Errno::RANGE, "the range is in more pieces than there is room for"));
            }
            for (index, extent) in pinned.extents.iter().enumerate() {
                if extent.descriptor.is_some() && descriptor_of(extent).is_none() {
                    return Err(CLOSED);
                }
                extents.set(
                    index,
                    &Extent {
                        file_offset: extent.file_offset_bytes,
                        length: extent.length_bytes,
                        medium_offset: extent.descriptor_offset_bytes,
                        medium: extent.descriptor.unwrap_or(-1),
                        reserved: 0,
                    },
                )?;
            }
            token.put(&pinned.token())
        };
        if let Err(error) = tell() {
            volume.unpin(pinned)?;
            return Err(error);
        }
        volume.keep(pinned);
        Ok(count as i64)
    };
    // SAFETY: the caller's promise.
    unsafe { run("gannet_map", volume, map) }
}

/// Gives a pinned range back. The caller has unmapped it before.
///
/// Returns 0. -EINVAL if `token` is not that of a pinned range.
///
/// # Safety
/// `volume` is attached or NULL. Nothing uses the range any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gannet_unmap(volume: *mut Volume, token: u64) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { run_plain("gannet_unmap", volume, |volume| volume.end_kept(token)) }
}

/// Makes all stores to the file of a pinned range durable, in whichever of its maps they were made.
///
/// Returns 0. -EINVAL if `token` is not that of a pinned range.
///
/// # Safety
/// `volume` is attached or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gannet_commit(volume: *mut Volume, token: u64) -> c_int {
    let commit = |volume: &Volume| synced(volume.fs().sync(volume.node_of_token(token)?, SyncScope::Data));
    // SAFETY: the caller's promise.
    unsafe { run_plain("gannet_commit", volume, commit) }
}
