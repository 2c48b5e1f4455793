//! Attaching and detaching volumes, who uses them, and the text of errors.

use crate::call::run_plain;
use crate::cancel::Uncancelled;
use crate::credentials::Known;
use crate::error;
use crate::fork;
use crate::memory::{Input, Output, Plain, Text};
use crate::volume::Volume;
use gannet_open::{AccessTimes, Options, open};
use gannet_vfs::namespace::PATH_BYTES_MAX;
use gannet_vfs::{Errno, Error, Result, usermem};
use std::ffi::{OsStr, c_char, c_int};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Nothing may change.
pub const GANNET_ATTACH_READ_ONLY: u32 = 1;
/// Data is written copy-on-write: each write happens whole or not at all, also in a crash. Files that say otherwise by a flag (`gannet_setflags`)
/// are excepted; nobody else who has the volume attached is concerned.
pub const GANNET_ATTACH_COPY_ON_WRITE: u32 = 2;
/// Data is written in place, with the same exceptions. Without either, it is written as the volume was made.
pub const GANNET_ATTACH_IN_PLACE: u32 = 4;
/// No handlers for SIGSEGV and SIGBUS are installed. Then a bad pointer passed to this library ends the process instead of
/// giving -EFAULT, and so does an access to a part of the medium that has failed.
pub const GANNET_ATTACH_KEEP_SIGNAL_HANDLERS: u32 = 8;
/// Reading does not move access times; else it moves them when they are not later than the times of modification and change,
/// or a day old.
pub const GANNET_ATTACH_NO_ACCESS_TIMES: u32 = 16;

/// How a volume is attached. Set all to zero, then `size`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct AttachOptions {
    /// `sizeof(struct gannet_attach_options)`.
    pub size: usize,
    /// `GANNET_ATTACH_*`.
    pub flags: u32,
    /// 0.
    pub reserved: u32,
    /// Bound on the shared memory for indexes in bytes; who attaches the volume first decides. 0: 1 GiB.
    pub index_bytes_max: u64,
}

// SAFETY: numbers.
unsafe impl Plain for AttachOptions {}

/// Who uses a handle. Set all to zero, then `size` and the others.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct UserCredentials {
    /// `sizeof(struct gannet_credentials)`.
    pub size: usize,
    /// User id.
    pub user: u32,
    /// Group id.
    pub group: u32,
    /// Supplementary groups: how many, at most 65536.
    pub group_count: u32,
    /// File mode creation mask.
    pub mask: u32,
    /// Supplementary groups; not kept.
    pub groups: *const u32,
    /// Capabilities with the kernel's bits (`1 << CAP_CHOWN`, …); those about files count.
    pub capabilities: u64,
}

// SAFETY: numbers, and an address that is not used as a pointer of Rust.
unsafe impl Plain for UserCredentials {}

const GROUPS_MAX: u32 = 65536;
const INDEX_BYTES_USUAL: u64 = 1 << 30;

/// The structure at `input`, which begins with its size, as the caller's version of the header has it.
fn check_size<T: Plain>(input: &Input<T>, size: usize) -> Result<T> {
    if size != size_of::<T>() {
        return Err(Error::because(Errno::INVAL, "the structure's size is not that of this library's header"));
    }
    input.get(0)
}

fn options_of(input: &Input<AttachOptions>, size: &Input<usize>) -> Result<(Options, u32)> {
    if input.is_null() {
        return Ok((Options::default(), 0));
    }
    let given = check_size(input, size.get(0)?)?;
    let known = GANNET_ATTACH_READ_ONLY
        | GANNET_ATTACH_COPY_ON_WRITE
        | GANNET_ATTACH_IN_PLACE
        | GANNET_ATTACH_KEEP_SIGNAL_HANDLERS
        | GANNET_ATTACH_NO_ACCESS_TIMES;
    if given.flags & !known != 0 || given.reserved != 0 {
        return Err(Error::because(Errno::INVAL, "flags that this library does not know"));
    }
    let copy_on_write =
        match (given.flags & GANNET_ATTACH_COPY_ON_WRITE != 0, given.flags & GANNET_ATTACH_IN_PLACE != 0) {
            (true, true) => {
                return Err(Error::because(Errno::INVAL, "data is written copy-on-write or in place, not both"));
            }
            (true, false) => Some(true),
            (false, true) => Some(false),
            (false, false) => None,
        };
    let index_bytes_max = if given.index_bytes_max == 0 { INDEX_BYTES_USUAL } else { given.index_bytes_max };
    let read_only = given.flags & GANNET_ATTACH_READ_ONLY != 0;
    let access_times = match given.flags & GANNET_ATTACH_NO_ACCESS_TIMES {
        0 => AccessTimes::Relative,
        _ => AccessTimes::Never,
    };
    Ok((Options { read_only, copy_on_write, access_times, index_bytes_max }, given.flags))
}

/// Attaches; on failure the errno, and the sentence where there is one of its own.
fn attach(
    path: Text,
    options: &Input<AttachOptions>,
    size: &Input<usize>,
) -> core::result::Result<Box<Volume>, (Error, Option<String>)> {
    let plain = |error| (error, None);
    let (options, flags) = options_of(options, size).map_err(plain)?;
    let mut room = vec![0; PATH_BYTES_MAX];
    let path = path.read(&mut room, Errno::NAMETOOLONG).map_err(plain)?;
    if flags & GANNET_ATTACH_KEEP_SIGNAL_HANDLERS == 0 {
        usermem::install_fault_handler()
            .map_err(|error| Errno::from_raw_os_error(error.raw_os_error().unwrap_or(libc::EIO)))
            .map_err(|errno| plain(Error::because(errno, "the handlers for bad addresses cannot be installed")))?;
    }
    let known = Known::of_process().map_err(|errno| plain(Error::because(errno, "who this process is")))?;
    let fs = open(Path::new(OsStr::from_bytes(path)), options)
        .map_err(|error| (Error::new(error.errno()), Some(error.to_string())))?;
    let volume = Box::new(Volume::new(fs, known).map_err(plain)?);
    fork::remember(&volume).map_err(plain)?;
    Ok(volume)
}

/// Attaches the volume at `path` (a file or a device made by `gannet mkfs`; `memory:` or `memory:MIB` for a new one in the
/// memory of this process) and returns a handle. Recovers the volume if nobody has it attached and it was not closed
/// cleanly. `options` may be NULL. With NULL returned, `*error` is a negative errno value, else 0; `error` may be NULL.
///
/// A handle is for all threads of the process, and for its children by `fork(2)`, which go on with the descriptors that were
/// open; each process detaches for itself. Operations are done as the user that the calling process is now, see
/// `gannet_set_credentials`. Installs handlers for SIGSEGV and SIGBUS that concern copies by this library only and pass
/// everything else on to the handlers there were, see `GANNET_ATTACH_KEEP_SIGNAL_HANDLERS`.
///
/// A bad pointer is -EFAULT by those handlers. A thread that has these signals blocked gets none: the kernel ends the process then. Calls need
/// 64 KiB of the thread's stack. `RLIMIT_FSIZE` does not bound the files of a volume.
///
/// Unless a function says otherwise: paths are relative to the volume's root, with or without a slash at the beginning, and
/// never leave the volume; permissions are checked as Linux does; what a function changed is as durable as the medium allows
/// when it returns; it returns 0, or on failure a negative errno value, and `gannet_error_text` says more. Flags and
/// structures of the system's headers have their values.
///
/// # Safety
/// `path` is a string; `options` and `error` point to their structures or are NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gannet_attach(
    path: *const c_char,
    options: *const AttachOptions,
    error: *mut c_int,
) -> *mut Volume {
    // SAFETY: the caller's promise.
    let (path, size, options) = unsafe { (Text::new(path), Input::new(options.cast()), Input::new(options)) };
    // SAFETY: the caller's promise.
    let told: Output<c_int> = unsafe { Output::new(error) };
    let call = "gannet_attach";
    let _whole = Uncancelled::now();
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| attach(path, &options, &size)))
        .unwrap_or_else(|_| {
            Err((Error::because(Errno::IO, "a mistake in libgannet, described on standard error"), None))
        });
    let (volume, code) = match outcome {
        Ok(volume) => (Box::into_raw(volume), 0),
        Err((error, Some(text))) => (std::ptr::null_mut(), error::note_told(call, error.errno(), text)),
        Err((error, None)) => (std::ptr::null_mut(), error::note(call, error)),
    };
    if !told.is_null() {
        let _ = told.put(&(code as c_int));
    }
    volume
}

/// Ends a handle: unmaps and closes everything, and detaches the volume, which the last process leaves cleanly closed.
/// Also when it returns an error the handle is gone and the volume detached. NULL is allowed.
///
/// An error of the last process says that the volume could not be closed, and the next use recovers it: -EIO where its file was made
/// shorter or could not be synced, -EUCLEAN where other content was put into it. `gannet fsck` says what there is.
///
/// # Safety
/// `volume` is NULL or a handle of this process that no thread uses now or later.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gannet_detach(volume: *mut Volume) -> c_int {
    if volume.is_null() {
        return 0;
    }
    let _whole = Uncancelled::now();
    // SAFETY: made by `Box::into_raw`, and the caller's last use.
    let volume = unsafe { Box::from_raw(volume) };
    let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| volume.end()))
        .unwrap_or_else(|_| Err(Error::because(Errno::IO, "a mistake in libgannet, described on standard error")));
    match ended {
        Ok(()) => 0,
        Err(error) => error::note("gannet_detach", error) as c_int,
    }
}

/// Makes all later operations on a handle those of another user; with NULL of the user that the calling process is now (after
/// `setuid(2)`, `umask(2)` and the like, which a handle does not notice by itself). It is for servers that act for others,
/// not a barrier: whoever can attach a volume for writing can change all of it.
///
/// Returns 0. -EINVAL for a size that is not that of this header's structure.
///
/// # Safety
/// `volume` is attached or NULL; `credentials` points to its structure and that to its groups, or is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gannet_set_credentials(volume: *mut Volume, credentials: *const UserCredentials) -> c_int {
    // SAFETY: the caller's promise.
    let (size, input) = unsafe { (Input::<usize>::new(credentials.cast()), Input::new(credentials)) };
    let set = |volume: &Volume| {
        if input.is_null() {
            let _whole = Uncancelled::now();
            volume.who.set(Known::of_process()?);
            return Ok(());
        }
        let given: UserCredentials = check_size(&input, size.get(0)?)?;
        if given.group_count > GROUPS_MAX {
            return Err(Error::because(Errno::INVAL, "more than 65536 groups"));
        }
        // SAFETY: the caller's promise.
        let groups = unsafe { Input::new(given.groups) }.list(given.group_count as usize)?;
        volume.who.set(Known {
            user: given.user,
            group: given.group,
            real_user: given.user,
            real_group: given.group,
            groups,
            capabilities: given.capabilities,
            umask: given.mask & 0o777,
        });
        Ok(())
    };
    // SAFETY: the caller's promise.
    unsafe { run_plain("gannet_set_credentials", volume, set) }
}

/// What the calling thread's last failed call was about: the function, the path or descriptor, what was found, and what can
/// be done. Empty if none failed so far. The text stays until the thread calls this function again.
#[unsafe(no_mangle)]
pub extern "C" fn gannet_error_text() -> *const c_char {
    error::text()
}
