//! Names: making, removing, renaming, linking, by path from the root or from a directory.

use crate::call::{run, run_plain};
use crate::descriptors::GANNET_AT_ROOT;
use crate::memory::{Output, Text};
use crate::path::{about, lookup_of};
use crate::volume::Volume;
use gannet_vfs::namespace::{Access, LastMode, Namespace, PATH_BYTES_MAX};
use gannet_vfs::shared::AccessMode;
use gannet_vfs::{Errno, Error, FileType, Result};
use std::cell::Cell;
use std::ffi::{c_char, c_int};

const UNKNOWN: Error = Error::because(Errno::INVAL, "flags that are not known");

impl Volume {
    fn make(&self, directory: c_int, path: Text, file_type: FileType, mode: u32, device: u64) -> Result<()> {
        self.at(directory, path, LastMode::Parent, |namespace, place| {
            namespace.make(place, file_type, mode & 0o7777, device, b"").map(|_| ())
        })
    }

    fn make_node(&self, directory: c_int, path: Text, mode: u32, device: u64) -> Result<()> {
        let file_type = match mode & libc::S_IFMT {
            0 => FileType::Regular,
            libc::S_IFDIR => return Err(Error::because(Errno::PERM, "directories are made by gannet_mkdir")),
            bits => FileType::from_bits((bits >> 12) as u8)
                .filter(|file_type| *file_type != FileType::Symlink)
                .ok_or(Error::because(Errno::INVAL, "not a type of file"))?,
        };
        let is_device = matches!(file_type, FileType::CharacterDevice | FileType::BlockDevice);
        self.make(directory, path, file_type, mode, if is_device { device } else { 0 })
    }

    fn make_link(&self, target: Text, directory: c_int, path: Text) -> Result<()> {
        let mut room = [0; PATH_BYTES_MAX];
        let target = target.read(&mut room, Errno::NAMETOOLONG)?;
        if target.is_empty() {
            return Err(Error::because(Errno::NOENT, "a symbolic link that leads nowhere"));
        }
        self.at(directory, path, LastMode::Parent, |namespace, place| {
            namespace.make(place, FileType::Symlink, 0o777, 0, target).map(|_| ())
        })
    }

    fn remove(&self, directory: c_int, path: Text, is_directory: bool) -> Result<()> {
        self.at(directory, path, LastMode::Parent, |namespace, place| {
            if is_directory {
                namespace.remove_directory(place).map(|_| ())
            } else {
                namespace.unlink(place).map(|_| ())
            }
        })
    }

    fn rename(&self, from: (c_int, Text), to: (c_int, Text), flags: u32) -> Result<()> {
        let flags = Namespace::rename_flags(flags)?;
        let (walks_second, has_both) = (Cell::new(false), Cell::new(false));
        let result = self.at(from.0, from.1, LastMode::Parent, |_, from| {
            walks_second.set(true);
            has_both.set(false);
            self.at(to.0, to.1, LastMode::Parent, |namespace, to| {
                has_both.set(true);
                namespace.rename(from, to, flags)
            })
        });
        // The sentence names the path that is in the way.
        result.inspect_err(|error| {
            let of_target = [Errno::EXIST, Errno::NOTEMPTY, Errno::ISDIR, Errno::NOTDIR].contains(&error.errno());
            if walks_second.get() && (!has_both.get() || of_target) {
                about(to.1);
            }
        })
    }

    fn link(&self, existing: (c_int, Text), to: (c_int, Text), flags: c_int) -> Result<()> {
        if flags & !(libc::AT_SYMLINK_FOLLOW | libc::AT_EMPTY_PATH) != 0 {
            return Err(UNKNOWN);
        }
        // Links are followed only if that is asked for.
        let follows = if flags & libc::AT_SYMLINK_FOLLOW != 0 { 0 } else { libc::AT_SYMLINK_NOFOLLOW };
        if flags & libc::AT_EMPTY_PATH != 0 && existing.1.is_empty()? && existing.0 != GANNET_AT_ROOT {
            let info = self.with(existing.0, |file| self.fs().shared().info(file.description))?;
            if info.access.contains(AccessMode::UNLINKABLE) {
                return Err(Error::because(Errno::NOENT, "made with O_TMPFILE and O_EXCL, it never gets a name"));
            }
        }
        let lookup = follows | flags & libc::AT_EMPTY_PATH;
        let node = self.at_flagged(existing.0, existing.1, lookup, |_, node| Ok(node))?;
        self.at(to.0, to.1, LastMode::Parent, |namespace, place| namespace.link(node, place))
    }

    fn read_link(&self, directory: c_int, path: Text, buffer: &Output<u8>, size: usize) -> Result<i64> {
        if size == 0 {
            return Err(Error::because(Errno::INVAL, "no room for the target"));
        }
        // The empty path is the link that a descriptor with O_PATH stands for, as readlinkat(2) has it.
        let empty = if directory == GANNET_AT_ROOT { 0 } else { libc::AT_EMPTY_PATH };
        self.at_flagged(directory, path, libc::AT_SYMLINK_NOFOLLOW | empty, |namespace, node| {
            let mut target = [0; PATH_BYTES_MAX];
            let length = namespace.fs().read_link(node, &mut target)?.min(size).min(target.len());
            buffer.write(&target[..length])?;
            namespace.fs().note_access(node);
            Ok(length as i64)
        })
    }

    fn may_access(&self, directory: c_int, path: Text, mode: c_int, flags: c_int) -> Result<()> {
        let access = Access::from_bits(mode as u32).ok_or(Error::because(Errno::INVAL, "not a mode of access"))?;
        let (last, resolve) = lookup_of(flags & !libc::AT_EACCESS)?;
        let known = self.who.get();
        let who = if flags & libc::AT_EACCESS != 0 { known.effective() } else { known.real() };
        self.at_as(&who, directory, path, last, resolve, |namespace, place| {
            namespace.check_access(place.existing()?.node, access)
        })
    }
}

/// Makes a directory.
///
/// # Safety
/// `volume` is attached or NULL, `path` a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gannet_mkdir(volume: *mut Volume, path: *const c_char, mode: u32) -> c_int {
    // SAFETY: the caller's promise.
    let path = unsafe { Text::new(path) };
    let work = |volume: &Volume| volume.make(GANNET_AT_ROOT, path, FileType::Directory, mode, 0);
    // SAFETY: the caller's promise.
    unsafe { run_plain("gannet_mkdir", volume, work) }
}

/// The same for a path relative to an open directory, or to the root (`GANNET_AT_ROOT`). As with all such functions the directory does
/// not count for a path that begins with a slash; it can be open with `O_PATH`.
///
/// # Safety
/// `volume` is attached or NULL, `path` a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gannet_mkdirat(
    volume: *mut Volume,
    directory: c_int,
    path: *const c_char,
    mode: u32,
) -> c_int {
    // SAFETY: the caller's promise.
    let path = unsafe { Text::new(path) };
    // SAFETY: the caller's promise.
    unsafe { run_plain("gannet_mkdirat", volume, |volume| volume.make(directory, path, FileType::Directory, mode, 0)) }
}

/// Makes a file of the type that `mode` says, as `mknod(2)`: `S_IFREG` or no type, `S_IFIFO`, `S_IFSOCK`, or `S_IFCHR` and `S_IFBLK` for the device
/// `device` (as `st_rdev` has it), which takes `CAP_MKNOD`. Pipes, sockets and devices are names only here.
///
/// # Safety
/// `volume` is attached or NULL, `path` a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gannet_mknod(volume: *mut Volume, path: *const c_char, mode: u32, device: u64) -> c_int {
    // SAFETY: the caller's promise.
    let path = unsafe { Text::new(path) };
    // SAFETY: the caller's promise.
    unsafe { run_plain("gannet_mknod", volume, |volume| volume.make_node(GANNET_AT_ROOT, path, mode, device)) }
}

/// The same for a path relative to an open directory.
///
/// # Safety
/// `volume` is attached or NULL, `path` a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gannet_mknodat(
    volume: *mut Volume,
    directory: c_int,
    path: *const c_char,
    mode: u32,
    device: u64,
) -> c_int {
    // SAFETY: the caller's promise.
    let path = unsafe { Text::new(path) };
    // SAFETY: the caller's promise.
    unsafe { run_plain("gannet_mknodat", volume, |volume| volume.make_node(directory, path, mode, device)) }
}

/// Removes an empty directory.
///
/// # Safety
/// `volume` is attached or NULL, `path` a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gannet_rmdir(volume: *mut Volume, path: *const c_char) -> c_int {
    // SAFETY: the caller's promise.
    let path = unsafe { Text::new(path) };
    // SAFETY: the caller's promise.
    unsafe { run_plain("gannet_rmdir", volume, |volume| volume.remove(GANNET_AT_ROOT, path, true)) }
}

/// Removes a name that is not a directory's. The file lives on while it has other names, or is open in any process.
///
/// # Safety
/// `volume` is attached or NULL, `path` a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gannet_unlink(volume: *mut Volume, path: *const c_char) -> c_int {
    // SAFETY: the caller's promise.
    let path = unsafe { Text::new(path) };
    // SAFETY: the caller's promise.
    unsafe { run_plain("gannet_unlink", volume, |volume| volume.remove(GANNET_AT_ROOT, path, false)) }
}

/// Removes a name relative to an open directory: with `AT_REMOVEDIR` in `flags` that of an empty directory, with 0 another.
///
/// # Safety
/// `volume` is attached or NULL, `path` a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gannet_unlinkat(
    volume: *mut Volume,
    directory: c_int,
    path: *const c_char,
    flags: c_int,
) -> c_int {
    // SAFETY: the caller's promise.
    let path = unsafe { Text::new(path) };
    let work = |volume: &Volume| match flags {
        0 | libc::AT_REMOVEDIR => volume.remove(directory, path, flags != 0),
        _ => Err(UNKNOWN),
    };
    // SAFETY: the caller's promise.
    unsafe { run_plain("gannet_unlinkat", volume, work) }
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
    let work = |volume: &Volume| volume.rename((GANNET_AT_ROOT, from), (GANNET_AT_ROOT, to), flags);
    // SAFETY: the caller's promise.
    unsafe { run_plain("gannet_rename", volume, work) }
}

/// The same for paths relative to open directories.
///
/// # Safety
/// `volume` is attached or NULL, the paths are strings.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gannet_renameat2(
    volume: *mut Volume,
    from_directory: c_int,
    from: *const c_char,
    to_directory: c_int,
    to: *const c_char,
    flags: u32,
) -> c_int {
    // SAFETY: the caller's promise.
    let (from, to) = unsafe { (Text::new(from), Text::new(to)) };
    let work = |volume: &Volume| volume.rename((from_directory, from), (to_directory, to), flags);
    // SAFETY: the caller's promise.
    unsafe { run_plain("gannet_renameat2", volume, work) }
}

/// Gives a file another name. A symbolic link at the end of `existing` is not followed.
///
/// # Safety
/// `volume` is attached or NULL, the paths are strings.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gannet_link(volume: *mut Volume, existing: *const c_char, path: *const c_char) -> c_int {
    // SAFETY: the caller's promise.
    let (existing, path) = unsafe { (Text::new(existing), Text::new(path)) };
    let work = |volume: &Volume| volume.link((GANNET_AT_ROOT, existing), (GANNET_AT_ROOT, path), 0);
    // SAFETY: the caller's promise.
    unsafe { run_plain("gannet_link", volume, work) }
}

/// The same for paths relative to open directories. `flags` is 0 or of `AT_SYMLINK_FOLLOW` and `AT_EMPTY_PATH`: with that an empty `existing` is the
/// file that `existing_directory` is open on, which gives a name to one made with `O_TMPFILE`.
///
/// # Safety
/// `volume` is attached or NULL, the paths are strings.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gannet_linkat(
    volume: *mut Volume,
    existing_directory: c_int,
    existing: *const c_char,
    directory: c_int,
    path: *const c_char,
    flags: c_int,
) -> c_int {
    // SAFETY: the caller's promise.
    let (existing, path) = unsafe { (Text::new(existing), Text::new(path)) };
    let work = |volume: &Volume| volume.link((existing_directory, existing), (directory, path), flags);
    // SAFETY: the caller's promise.
    unsafe { run_plain("gannet_linkat", volume, work) }
}

/// Makes a symbolic link that leads to `target` (1 to 4095 bytes). An absolute target begins at the volume's root.
///
/// # Safety
/// `volume` is attached or NULL, `target` and `path` are strings.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gannet_symlink(volume: *mut Volume, target: *const c_char, path: *const c_char) -> c_int {
    // SAFETY: the caller's promise.
    let (target, path) = unsafe { (Text::new(target), Text::new(path)) };
    // SAFETY: the caller's promise.
    unsafe { run_plain("gannet_symlink", volume, |volume| volume.make_link(target, GANNET_AT_ROOT, path)) }
}

/// The same for a path relative to an open directory.
///
/// # Safety
/// `volume` is attached or NULL, `target` and `path` are strings.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gannet_symlinkat(
    volume: *mut Volume,
    target: *const c_char,
    directory: c_int,
    path: *const c_char,
) -> c_int {
    // SAFETY: the caller's promise.
    let (target, path) = unsafe { (Text::new(target), Text::new(path)) };
    // SAFETY: the caller's promise.
    unsafe { run_plain("gannet_symlinkat", volume, |volume| volume.make_link(target, directory, path)) }
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
    // SAFETY: the caller's promise.
    unsafe { run("gannet_readlink", volume, |volume| volume.read_link(GANNET_AT_ROOT, path, &buffer, size)) }
}

/// The same for a path relative to an open directory; the empty path is the link that it is open on (`O_PATH` with `O_NOFOLLOW`).
///
/// Returns the number of bytes stored.
///
/// # Safety
/// `volume` is attached or NULL, `path` a string, `buffer` has room for `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gannet_readlinkat(
    volume: *mut Volume,
    directory: c_int,
    path: *const c_char,
    buffer: *mut c_char,
    size: usize,
) -> i64 {
    // SAFETY: the caller's promise.
    let (path, buffer) = unsafe { (Text::new(path), Output::<u8>::new(buffer.cast())) };
    // SAFETY: the caller's promise.
    unsafe { run("gannet_readlinkat", volume, |volume| volume.read_link(directory, path, &buffer, size)) }
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
    // SAFETY: the caller's promise.
    unsafe { run_plain("gannet_access", volume, |volume| volume.may_access(GANNET_AT_ROOT, path, mode, 0)) }
}

/// The same for a path relative to an open directory; `flags` is 0 or of `AT_EACCESS` (the effective user is asked about), `AT_SYMLINK_NOFOLLOW`
/// and `AT_EMPTY_PATH`.
///
/// Returns 0 if so, -EACCES if it may not.
///
/// # Safety
/// `volume` is attached or NULL, `path` a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gannet_faccessat(
    volume: *mut Volume,
    directory: c_int,
    path: *const c_char,
    mode: c_int,
    flags: c_int,
) -> c_int {
    // SAFETY: the caller's promise.
    let path = unsafe { Text::new(path) };
    // SAFETY: the caller's promise.
    unsafe { run_plain("gannet_faccessat", volume, |volume| volume.may_access(directory, path, mode, flags)) }
}
