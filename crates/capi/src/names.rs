//! Names: making, removing, renaming, linking.

use crate::call::{run, run_plain};
use crate::memory::{Output, Text};
use crate::volume::Volume;
use gannet_vfs::namespace::{Access, LastMode, Namespace, PATH_BYTES_MAX};
use gannet_vfs::{Errno, Error, FileType};
use std::ffi::{c_char, c_int};

/// Makes a directory.
///
/// # Safety
/// `volume` is attached or NULL, `path` a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gannet_mkdir(volume: *mut Volume, path: *const c_char, mode: u32) -> c_int {
    // SAFETY: the caller's promise.
    let path = unsafe { Text::new(path) };
    let make = |volume: &Volume| {
        volume.at(path, LastMode::Parent, |namespace, place| {
            namespace.make(place, FileType::Directory, mode & 0o7777, 0, b"").map(|_| ())
        })
    };
    // SAFETY: the caller's promise.
    unsafe { run_plain("gannet_mkdir", volume, make) }
}

/// Removes an empty directory.
///
/// # Safety
/// `volume` is attached or NULL, `path` a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gannet_rmdir(volume: *mut Volume, path: *const c_char) -> c_int {
    // SAFETY: the caller's promise.
    let path = unsafe { Text::new(path) };
    let remove = |volume: &Volume| {
        volume.at(path, LastMode::Parent, |namespace, place| namespace.remove_directory(place).map(|_| ()))
    };
    // SAFETY: the caller's promise.
    unsafe { run_plain("gannet_rmdir", volume, remove) }
}

/// Removes a name that is not a directory's. The file lives on while it has other names, or is open in any process.
///
/// # Safety
/// `volume` is attached or NULL, `path` a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gannet_unlink(volume: *mut Volume, path: *const c_char) -> c_int {
    // SAFETY: the caller's promise.
    let path = unsafe { Text::new(path) };
    let remove =
        |volume: &Volume| volume.at(path, LastMode::Parent, |namespace, place| namespace.unlink(place).map(|_| ()));
    // SAFETY: the caller's promise.
    unsafe { run_plain("gannet_unlink", volume, remove) }
}

/// Moves a name, atomically; what has the new name is replaced. `flags` is 0 or of `renameat2(2)`: `RENAME_NOREPLACE`,
/// `RENAME_EXCHANGE`, `RENAME_WHITEOUT`.
///
/// # Safety
/// `volume` is attached or NULL, the paths are strings.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gannet_rename(
    volume: *mut Volume,
    from: *const c_char,
    to: *const c_char,
    flags: u32,
) -> c_int {
    // SAFETY: the caller's promise.
    let (from, to) = unsafe { (Text::new(from), Text::new(to)) };
    let rename = |volume: &Volume| {
        let flags = Namespace::rename_flags(flags)?;
        volume.at(from, LastMode::Parent, |_, from| {
            volume.at(to, LastMode::Parent, |namespace, to| namespace.rename(from, to, flags))
        })
    };
    // SAFETY: the caller's promise.
    unsafe { run_plain("gannet_rename", volume, rename) }
}

/// Gives a file another name. A symbolic link at the end of `existing` is not followed.
///
/// # Safety
/// `volume` is attached or NULL, the paths are strings.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gannet_link(volume: *mut Volume, existing: *const c_char, path: *const c_char) -> c_int {
    // SAFETY: the caller's promise.
    let (existing, path) = unsafe { (Text::new(existing), Text::new(path)) };
    let link = |volume: &Volume| {
        let node = volume.at_existing(existing, LastMode::NoFollow, |_, node| Ok(node))?;
        volume.at(path, LastMode::Parent, |namespace, place| namespace.link(node, place))
    };
    // SAFETY: the caller's promise.
    unsafe { run_plain("gannet_link", volume, link) }
}

/// Makes a symbolic link that leads to `target` (1 to 4095 bytes). An absolute target begins at the volume's root.
///
/// # Safety
/// `volume` is attached or NULL, `target` and `path` are strings.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gannet_symlink(volume: *mut Volume, target: *const c_char, path: *const c_char) -> c_int {
    // SAFETY: the caller's promise.
    let (target, path) = unsafe { (Text::new(target), Text::new(path)) };
    let make = |volume: &Volume| {
        let mut room = [0; PATH_BYTES_MAX];
        let target = target.read(&mut room, Errno::NAMETOOLONG)?;
        if target.is_empty() {
            return Err(Error::because(Errno::NOENT, "a symbolic link that leads nowhere"));
        }
        volume.at(path, LastMode::Parent, |namespace, place| {
            namespace.make(place, FileType::Symlink, 0o777, 0, target).map(|_| ())
        })
    };
    // SAFETY: the caller's promise.
    unsafe { run_plain("gannet_symlink", volume, make) }
}

/// Stores where a symbolic link leads in `buffer`, cut to `size` bytes and without a zero byte at the end.
///
/// Returns the number of bytes stored.
///
/// # Safety
/// `volume` is attached or NULL, `path` a string, `buffer` has room for `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gannet_readlink(
    volume: *mut Volume,
    path: *const c_char,
    buffer: *mut c_char,
    size: usize,
) -> i64 {
    // SAFETY: the caller's promise.
    let (path, buffer) = unsafe { (Text::new(path), Output::<u8>::new(buffer.cast())) };
    let read = |volume: &Volume| {
        if size == 0 {
            return Err(Error::because(Errno::INVAL, "no room for the target"));
        }
        volume.at_existing(path, LastMode::NoFollow, |namespace, node| {
            let mut target = [0; PATH_BYTES_MAX];
            let length = namespace.fs().read_link(node, &mut target)?.min(size).min(target.len());
            buffer.write(&target[..length])?;
            namespace.fs().note_access(node);
            Ok(length as i64)
        })
    };
    // SAFETY: the caller's promise.
    unsafe { run("gannet_readlink", volume, read) }
}

/// Says whether a file exists and may be read, written or executed: `mode` is `F_OK`, or of `R_OK`, `W_OK`, `X_OK`. As with
/// `access(2)` the real user is asked about.
///
/// Returns 0 if so, -EACCES if it may not.
///
/// # Safety
/// `volume` is attached or NULL, `path` a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gannet_access(volume: *mut Volume, path: *const c_char, mode: c_int) -> c_int {
    // SAFETY: the caller's promise.
    let path = unsafe { Text::new(path) };
    let check = |volume: &Volume| {
        let access = Access::from_bits(mode as u32).ok_or(Error::because(Errno::INVAL, "not a mode of access"))?;
        let who = volume.who.get().real();
        let (root, flags) = (volume.fs().root(), gannet_vfs::namespace::ResolveFlags::empty());
        volume.at_as(&who, root, path, LastMode::Follow, flags, |namespace, place| {
            namespace.check_access(place.existing()?.node, access)
        })
    };
    // SAFETY: the caller's promise.
    unsafe { run_plain("gannet_access", volume, check) }
}
