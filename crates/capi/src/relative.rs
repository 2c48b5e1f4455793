//! Attributes by paths relative to directories.

use crate::attributes::{Stat, changes_of, kept};
use crate::call::run_plain;
use crate::memory::{Input, Output, Text};
use crate::volume::Volume;
use std::ffi::{c_char, c_int};

/// Tells what the file at `path` is, relative to an open directory, or to the root (`GANNET_AT_ROOT`). `flags` is 0 or of `AT_SYMLINK_NOFOLLOW` and
/// `AT_EMPTY_PATH`, with which the empty path is the open file itself. The structure has what `statx(2)` tells: birth and flags of the inode, too.
///
/// # Safety
/// `volume` is attached or NULL, `path` a string, `result` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gannet_fstatat(
    volume: *mut Volume,
    directory: c_int,
    path: *const c_char,
    result: *mut Stat,
    flags: c_int,
) -> c_int {
    // SAFETY: the caller's promise.
    let (path, into) = unsafe { (Text::new(path), Output::new(result)) };
    let work = |volume: &Volume| {
        let all = volume.at_flagged(directory, path, flags, |namespace, node| namespace.fs().attributes(node))?;
        into.put(&volume.stat(&all))
    };
    // SAFETY: the caller's promise.
    unsafe { run_plain("gannet_fstatat", volume, work) }
}

/// Changes the permission bits, by a path relative to an open directory; `flags` as for `gannet_fstatat`. Those of symbolic links cannot be
/// changed: -EOPNOTSUPP.
///
/// # Safety
/// `volume` is attached or NULL, `path` a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gannet_fchmodat(
    volume: *mut Volume,
    directory: c_int,
    path: *const c_char,
    mode: u32,
    flags: c_int,
) -> c_int {
    // SAFETY: the caller's promise.
    let path = unsafe { Text::new(path) };
    let work = |volume: &Volume| {
        volume.at_flagged(directory, path, flags, |namespace, node| namespace.set_mode(node, mode).map(|_| ()))
    };
    // SAFETY: the caller's promise.
    unsafe { run_plain("gannet_fchmodat", volume, work) }
}

/// Changes the owners, by a path relative to an open directory; `(uint32_t)-1` keeps one, `flags` as for `gannet_fstatat`.
///
/// # Safety
/// `volume` is attached or NULL, `path` a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gannet_fchownat(
    volume: *mut Volume,
    directory: c_int,
    path: *const c_char,
    user: u32,
    group: u32,
    flags: c_int,
) -> c_int {
    // SAFETY: the caller's promise.
    let path = unsafe { Text::new(path) };
    let work = |volume: &Volume| {
        volume.at_flagged(directory, path, flags, |namespace, node| {
            namespace.set_owner(node, kept(user), kept(group)).map(|_| ())
        })
    };
    // SAFETY: the caller's promise.
    unsafe { run_plain("gannet_fchownat", volume, work) }
}

/// Changes the times of access and modification to `times[0]` and `times[1]`, or to now if it is NULL, by a path relative to an open directory.
/// `UTIME_NOW` and `UTIME_OMIT` are understood, `flags` is as for `gannet_fstatat`.
///
/// # Safety
/// `volume` is attached or NULL, `path` a string, `times` NULL or two.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gannet_utimensat(
    volume: *mut Volume,
    directory: c_int,
    path: *const c_char,
    times: *const libc::timespec,
    flags: c_int,
) -> c_int {
    // SAFETY: the caller's promise.
    let (path, times) = unsafe { (Text::new(path), Input::new(times)) };
    let work = |volume: &Volume| {
        let [accessed, modified] = changes_of(&times)?;
        volume.at_flagged(directory, path, flags, |namespace, node| namespace.set_times(node, accessed, modified))
    };
    // SAFETY: the caller's promise.
    unsafe { run_plain("gannet_utimensat", volume, work) }
}
