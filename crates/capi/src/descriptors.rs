//! Opening, closing and duplicating.

use crate::call::{run, run_plain};
use crate::memory::Text;
use crate::table::OpenFile;
use crate::volume::Volume;
use gannet_vfs::namespace::{Namespace, OpenFlags, Opened, ResolveFlags};
use gannet_vfs::shared::AccessMode;
use gannet_vfs::{Errno, Error, FileType, Result};
use std::ffi::{c_char, c_int};

/// In place of a directory's descriptor: the volume's root.
pub const GANNET_AT_ROOT: c_int = -100;

/// What a description keeps of the flags.
const STATUS_FLAGS: u32 = (libc::O_ACCMODE
    | libc::O_APPEND
    | libc::O_NONBLOCK
    | libc::O_SYNC
    | libc::O_DIRECT
    | libc::O_DIRECTORY
    | libc::O_NOFOLLOW
    | libc::O_NOATIME
    | libc::O_PATH) as u32;
/// What an entry of the table keeps of them.
const FIXED_FLAGS: u32 = (libc::O_ACCMODE | libc::O_PATH | libc::O_NOATIME) as u32;
/// What `gannet_setfl` changes.
const CHANGEABLE_FLAGS: u32 = (libc::O_APPEND | libc::O_NONBLOCK | libc::O_DIRECT) as u32;
/// What `openat2(2)` knows.
const RESOLVE_FLAGS: u64 = 0x1f;

impl Volume {
    fn open(&self, directory: c_int, path: Text, flags: c_int, mode: u32, rules: u64) -> Result<i64> {
        let flags = OpenFlags::from_bits_retain(flags as u32);
        let (walk, resolve) = Namespace::open_mode(flags)?;
        let rules = ResolveFlags::from_bits(rules).filter(|rules| rules.bits() & !RESOLVE_FLAGS == 0);
        let rules = rules.ok_or(Error::because(Errno::INVAL, "rules of resolution that are not known"))?;
        if rules.contains(ResolveFlags::BENEATH | ResolveFlags::IN_ROOT) {
            return Err(Error::because(Errno::INVAL, "RESOLVE_BENEATH and RESOLVE_IN_ROOT contradict each other"));
        }
        let who = self.who.get().effective();
        // What is not there to be had is said before a file is made or cut.
        let number = self.table.reserve()?;
        if flags.intersects(OpenFlags::CREATE | OpenFlags::TRUNC | OpenFlags::TMPFILE) {
            self.fs().shared().check_room()?;
        }
        let file = self.at_as(&who, directory, path, walk, resolve | rules, |namespace, place| {
            self.describe(&namespace.open(place, flags, mode & 0o7777)?, flags)
        })?;
        Ok(i64::from(number.fill(&file)))
    }

    /// Makes an open file description of what was opened. `ESTALE` if somebody removed it in between.
    fn describe(&self, opened: &Opened, flags: OpenFlags) -> Result<OpenFile> {
        let by_name_only = flags.contains(OpenFlags::PATH);
        if opened.file_type == FileType::Fifo && !by_name_only {
            return Err(Error::because(Errno::OPNOTSUPP, "a pipe is only a name here, to be opened with O_PATH"));
        }
        let access = match flags.bits() & libc::O_ACCMODE as u32 {
            _ if by_name_only => AccessMode::PATH,
            0 => AccessMode::READ,
            1 => AccessMode::WRITE,
            _ => AccessMode::READ | AccessMode::WRITE,
        };
        let unlinkable = flags.contains(OpenFlags::TMPFILE | OpenFlags::EXCL);
        let access = if unlinkable { access | AccessMode::UNLINKABLE } else { access };
        let (fs, node) = (self.fs(), opened.node);
        let shared = fs.shared();
        let description = shared.open(fs, node, access, flags.bits() & STATUS_FLAGS).inspect_err(|error| {
            if error.errno() != Errno::STALE {
                // One made without a name would have nobody to free it.
                let _ = fs.retire(node);
            }
        })?;
        Ok(OpenFile { description, node, file_type: opened.file_type, flags: flags.bits() & FIXED_FLAGS })
    }
}

/// Opens a file as `open(2)` does; `mode` counts when it makes one. The access mode 3 asks for permission to read and to write, and gives
/// a descriptor for neither. The descriptor is a number of this handle only, not one of the
/// kernel's, and is not inherited by `exec`.
///
/// Returns the descriptor, the lowest that is free.
///
/// # Safety
/// `volume` is attached or NULL, `path` a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gannet_open(volume: *mut Volume, path: *const c_char, flags: c_int, mode: u32) -> c_int {
    // SAFETY: the caller's promise.
    let path = unsafe { Text::new(path) };
    // SAFETY: the caller's promise.
    unsafe { run("gannet_open", volume, |volume| volume.open(GANNET_AT_ROOT, path, flags, mode, 0)) as c_int }
}

/// The same for a path relative to an open directory, or to the root (`GANNET_AT_ROOT`).
///
/// # Safety
/// As for `gannet_open`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gannet_openat(
    volume: *mut Volume,
    directory: c_int,
    path: *const c_char,
    flags: c_int,
    mode: u32,
) -> c_int {
    // SAFETY: the caller's promise.
    let path = unsafe { Text::new(path) };
    // SAFETY: the caller's promise.
    unsafe { run("gannet_openat", volume, |volume| volume.open(directory, path, flags, mode, 0)) as c_int }
}

/// The same with rules for the walk, of `openat2(2)`: `RESOLVE_BENEATH`, `RESOLVE_IN_ROOT`, `RESOLVE_NO_SYMLINKS`, `RESOLVE_NO_XDEV`,
/// `RESOLVE_NO_MAGICLINKS`. With the first two an absolute path is refused or begins at the directory.
///
/// Returns the descriptor. -EXDEV where the path would leave the directory, -ELOOP at a symbolic link that is forbidden.
///
/// # Safety
/// As for `gannet_open`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gannet_openat2(
    volume: *mut Volume,
    directory: c_int,
    path: *const c_char,
    flags: c_int,
    mode: u32,
    resolve: u64,
) -> c_int {
    // SAFETY: the caller's promise.
    let path = unsafe { Text::new(path) };
    // SAFETY: the caller's promise.
    unsafe { run("gannet_openat2", volume, |volume| volume.open(directory, path, flags, mode, resolve)) as c_int }
}

/// Tells how a descriptor was opened: the access mode and the status flags, as `F_GETFL` of `fcntl(2)`.
///
/// Returns the flags.
///
/// # Safety
/// `volume` is attached or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gannet_getfl(volume: *mut Volume, descriptor: c_int) -> c_int {
    let tell = |volume: &Volume| {
        volume.with(descriptor, |file| {
            let status = volume.fs().shared().info(file.description)?.status;
            Ok(i64::from(status & !FIXED_FLAGS | file.flags & FIXED_FLAGS))
        })
    };
    // SAFETY: the caller's promise.
    unsafe { run("gannet_getfl", volume, tell) as c_int }
}

/// Sets `O_APPEND`, `O_NONBLOCK` and `O_DIRECT` of the open file description, as `F_SETFL` of `fcntl(2)`; other flags stay what they are.
///
/// Returns 0. -EPERM where `O_APPEND` of an append-only file would change.
///
/// # Safety
/// `volume` is attached or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gannet_setfl(volume: *mut Volume, descriptor: c_int, flags: c_int) -> c_int {
    let set = |volume: &Volume| {
        volume.with_open(descriptor, |file| {
            let shared = volume.fs().shared();
            volume.namespace().check_status(file.node, shared.info(file.description)?.status, flags as u32)?;
            shared.set_status(file.description, CHANGEABLE_FLAGS, flags as u32).map(|_| ())
        })
    };
    // SAFETY: the caller's promise.
    unsafe { run_plain("gannet_setfl", volume, set) }
}

/// Closes a descriptor. As POSIX has it, the process's record locks on the file go as well. With the last user of a removed
/// file its space is free. Also when it returns an error the descriptor is closed, unless that is -EBADF, or -ENOMEM, which says that the
/// calling thread has no place among the 4096 that can use a volume at once: another one has to close it.
///
/// # Safety
/// `volume` is attached or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gannet_close(volume: *mut Volume, descriptor: c_int) -> c_int {
    let close = |volume: &Volume| volume.close(descriptor).inspect_err(|_| crate::error::about_descriptor(descriptor));
    // SAFETY: the caller's promise.
    unsafe { run_plain("gannet_close", volume, close) }
}

/// Makes another descriptor for the same open file description: offset, status flags and locks are common to both.
///
/// Returns the new descriptor.
///
/// # Safety
/// `volume` is attached or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gannet_dup(volume: *mut Volume, descriptor: c_int) -> c_int {
    let duplicate = |volume: &Volume| volume.with(descriptor, |_| volume.table.duplicate(descriptor).map(i64::from));
    // SAFETY: the caller's promise.
    unsafe { run("gannet_dup", volume, duplicate) as c_int }
}
