//! Opening, closing and duplicating.

use crate::call::{run, run_plain};
use crate::memory::Text;
use crate::table::OpenFile;
use crate::volume::Volume;
use gannet_vfs::namespace::{Namespace, OpenFlags, Opened};
use gannet_vfs::shared::AccessMode;
use gannet_vfs::{Errno, Error, FileType, NodeId, Result};
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
const FIXED_FLAGS: u32 = (libc::O_ACCMODE | libc::O_PATH) as u32;

impl Volume {
    fn open(&self, start: NodeId, path: Text, flags: c_int, mode: u32) -> Result<i64> {
        let flags = OpenFlags::from_bits_retain(flags as u32);
        let (walk, resolve) = Namespace::open_mode(flags)?;
        let who = self.who.get().effective();
        self.at_as(&who, start, path, walk, resolve, |namespace, place| {
            self.install(&namespace.open(place, flags, mode & 0o7777)?, flags)
        })
    }

    /// Makes a descriptor for what was opened.
    fn install(&self, opened: &Opened, flags: OpenFlags) -> Result<i64> {
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
        let description =
            shared.open(fs, node, access, flags.bits() & STATUS_FLAGS).map_err(|error| match error.errno() {
                // Somebody removed it in between.
                Errno::STALE => Error::new(Errno::NOENT),
                _ => {
                    // One made without a name would have nobody to free it.
                    let _ = fs.retire(node);
                    error
                }
            })?;
        let file = OpenFile { description, node, file_type: opened.file_type, flags: flags.bits() & FIXED_FLAGS };
        match self.table.insert(&file) {
            Ok(descriptor) => Ok(i64::from(descriptor)),
            Err(error) => {
                shared.close(fs, description)?;
                Err(error)
            }
        }
    }
}

/// Opens a file as `open(2)` does; `mode` counts when it makes one. The descriptor is a number of this handle only, not one of the
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
    unsafe { run("gannet_open", volume, |volume| volume.open(volume.fs().root(), path, flags, mode)) as c_int }
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
    let open = |volume: &Volume| {
        let start = match directory {
            GANNET_AT_ROOT => volume.fs().root(),
            directory => volume.with(directory, |file| Ok(file.node))?,
        };
        volume.open(start, path, flags, mode)
    };
    // SAFETY: the caller's promise.
    unsafe { run("gannet_openat", volume, open) as c_int }
}

/// Closes a descriptor. As POSIX has it, the process's record locks on the file go as well. With the last user of a removed
/// file its space is free. Also when it returns an error other than -EBADF the descriptor is closed.
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
