//! Flags of inodes: what `chattr(1)` sets, how data is written among them.

use crate::call::run_plain;
use crate::memory::Output;
use crate::volume::Volume;
use std::ffi::c_int;

/// Flag of an inode: its data is written in place, whatever the volume was made or attached with. It is `FS_NOCOW_FL`, `chattr +C`.
pub const GANNET_FLAG_IN_PLACE: u32 = 0x0080_0000;
/// Flag of an inode: its data is written copy-on-write, each call whole or not at all, whatever the volume was made or attached with.
pub const GANNET_FLAG_COPY_ON_WRITE: u32 = 0x0100_0000;

/// Tells an open file's flags, as `FS_IOC_GETFLAGS` does: `FS_IMMUTABLE_FL`, `FS_APPEND_FL`, `FS_NODUMP_FL`, `FS_NOATIME_FL`, `FS_SYNC_FL`, and how its data is
/// written, `GANNET_FLAG_IN_PLACE` or `GANNET_FLAG_COPY_ON_WRITE`. Without either of the last two the volume's default counts.
///
/// # Safety
/// `volume` is attached or NULL, `flags` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gannet_getflags(volume: *mut Volume, descriptor: c_int, flags: *mut u32) -> c_int {
    // SAFETY: the caller's promise.
    let into = unsafe { Output::new(flags) };
    let work = |volume: &Volume| {
        let flags = volume.with_open(descriptor, |file| volume.fs().permissions(file.node))?.flags;
        into.put(&flags.bits())
    };
    // SAFETY: the caller's promise.
    unsafe { run_plain("gannet_getflags", volume, work) }
}

/// Sets an open file's flags, as `FS_IOC_SETFLAGS` does; those that are not named are cleared. What is made in a directory inherits `FS_NODUMP_FL`,
/// `FS_NOATIME_FL`, `FS_SYNC_FL` and how data is written. Of the two flags for that, the one that was not set before replaces the other.
///
/// Returns 0; -EACCES for who does not own the file, -EPERM for the first two flags without `CAP_LINUX_IMMUTABLE`, -EOPNOTSUPP for flags that mean nothing
/// here, -EINVAL for both ways to write data at once.
///
/// # Safety
/// `volume` is attached or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gannet_setflags(volume: *mut Volume, descriptor: c_int, flags: u32) -> c_int {
    let work = |volume: &Volume| {
        volume.with_open(descriptor, |file| {
            let wanted = volume.fs().permissions(file.node)?.flags.with_bits(flags)?;
            volume.namespace().set_flags(file.node, wanted)
        })
    };
    // SAFETY: the caller's promise.
    unsafe { run_plain("gannet_setflags", volume, work) }
}
