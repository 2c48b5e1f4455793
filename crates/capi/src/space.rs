//! What is done to an open file's blocks and not to its bytes: its size, room for it, its being durable.

use crate::call::run_plain;
use crate::table::OpenFile;
use crate::volume::Volume;
use gannet_vfs::{AllocateMode, Errno, Error, FileType, Result, SyncScope};
use std::ffi::c_int;

impl Volume {
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
