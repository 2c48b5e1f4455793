//! Creating a medium: reserving all its space now, so that a full file system below never becomes SIGBUS later, and getting
//! huge pages for it.

use std::ffi::OsString;
use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FallocateFlags, MemfdFlags, Mode, OFlags, fallocate, fstatfs, memfd_create};
use rustix::io::Errno;

use crate::error::OpenError;
use crate::medium::{Medium, MediumKind};
use crate::open::{LENGTH_UNIT_BYTES, OpenOptions, system};
use crate::pages::HUGE_BYTES;

/// Space is reserved in steps of this size: a whole number of huge pages.
const STEP_BYTES: u64 = 32 * HUGE_BYTES;

/// How to create.
#[derive(Clone, Copy, Debug)]
pub struct CreateOptions {
    /// Replace a file that is there. Whoever has the old one open keeps it.
    pub force: bool,
    /// Permission bits of the file; the umask applies.
    pub permissions: u32,
    /// Try to get huge pages on tmpfs.
    pub huge_pages: bool,
    /// How to open it afterwards; `read_only` is ignored.
    pub open: OpenOptions,
}

impl Default for CreateOptions {
    fn default() -> CreateOptions {
        CreateOptions { force: false, permissions: 0o600, huge_pages: true, open: OpenOptions::default() }
    }
}

/// How far creating a medium has got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CreateProgress {
    /// Bytes reserved, and made huge pages of if that is possible.
    pub done_bytes: u64,
    /// Bytes in total.
    pub total_bytes: u64,
}

/// Removes a file that was not finished.
struct Unfinished(Option<PathBuf>);

impl Drop for Unfinished {
    fn drop(&mut self) {
        if let Some(path) = &self.0 {
            let _ = std::fs::remove_file(path);
        }
    }
}

impl Medium {
    /// Creates a file of `length` bytes (a multiple of 4096), reserves its space and maps it. All bytes are zero. A DAX
    /// device that is there already is opened instead, if forced; its bytes are what they were.
    ///
    /// # Errors
    /// [`OpenError`]; nothing is left behind then, and what was there before still is.
    pub fn create(
        path: &Path,
        length: u64,
        options: CreateOptions,
        progress: &mut dyn FnMut(CreateProgress),
    ) -> Result<Medium, OpenError> {
        check_length(path, length)?;
        let open_options = OpenOptions { read_only: false, ..options.open };
        // A symbolic link stays; what it leads to is replaced.
        let resolved = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        let path = resolved.as_path();
        if let Ok(present) = std::fs::metadata(path) {
            if !options.force {
                return Err(OpenError::Exists { path: path.to_owned() });
            }
            if present.mode() & libc::S_IFMT == libc::S_IFCHR {
                let medium = Medium::open(path, open_options)?;
                if medium.length() < length {
                    return Err(OpenError::NoSpace {
                        path: path.to_owned(),
                        needed_bytes: length,
                        free_bytes: medium.length(),
                    });
                }
                return Ok(medium);
            }
            if !present.is_file() {
                return Err(OpenError::WrongType { path: path.to_owned(), kind: "what stands there" });
            }
        }
        // A file is replaced only when the new one is complete.
        let making = if options.force { beside(path) } else { path.to_owned() };
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let descriptor = rustix::fs::open(&making, flags, Mode::from_raw_mode(options.permissions)).map_err(
            |error| match error {
                Errno::EXIST => OpenError::Exists { path: making.clone() },
                error => system(path, "create the file", error),
            },
        )?;
        let mut unfinished = Unfinished(Some(making.clone()));
        let medium = fill(File::from(descriptor), path, length, options, progress)?;
        if making != path {
            rustix::fs::rename(&making, path).map_err(|error| system(path, "put the new file in place", error))?;
        }
        unfinished.0 = None;
        if matches!(medium.kind(), MediumKind::DiskFile | MediumKind::FileDax) {
            let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
            let synced = File::open(parent).and_then(|directory| directory.sync_all());
            synced.map_err(|source| OpenError::System {
                path: path.to_owned(),
                action: "make the file's name durable",
                source,
            })?;
        }
        Ok(medium)
    }

    /// Creates a medium in memory without a name (a memfd); it lives as long as it is open or mapped.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn create_in_memory(name: &str, length: u64, options: CreateOptions) -> Result<Medium, OpenError> {
        let path = Path::new(name);
        check_length(path, length)?;
        let descriptor =
            memfd_create(name, MemfdFlags::CLOEXEC).map_err(|error| system(path, "create a memfd", error))?;
        fill(File::from(descriptor), path, length, options, &mut |_| {})
    }
}

fn check_length(path: &Path, length: u64) -> Result<(), OpenError> {
    if length == 0 || !length.is_multiple_of(LENGTH_UNIT_BYTES) || length > i64::MAX as u64 / 2 {
        let problem = "must be a multiple of 4096, more than zero and addressable";
        return Err(OpenError::WrongLength { path: path.to_owned(), length, problem });
    }
    Ok(())
}

/// A name beside `path` that nobody else uses.
fn beside(path: &Path) -> PathBuf {
    let mut name = path.file_name().map_or_else(OsString::new, OsString::from);
    name.push(format!(".new-{}", std::process::id()));
    path.with_file_name(name)
}

/// Gives an empty file its space and maps it.
fn fill(
    file: File,
    path: &Path,
    length: u64,
    options: CreateOptions,
    progress: &mut dyn FnMut(CreateProgress),
) -> Result<Medium, OpenError> {
    let below = fstatfs(&file).map_err(|error| system(path, "examine the file system", error))?;
    let free_bytes = || fstatfs(&file).map_or(0, |below| below.f_bavail * below.f_bsize as u64);
    let no_space = |free_bytes| OpenError::NoSpace { path: path.to_owned(), needed_bytes: length, free_bytes };
    // A file system that reports no size has no limit (tmpfs with size=0, a memfd).
    if below.f_blocks != 0 && below.f_bavail * (below.f_bsize as u64) < length {
        return Err(no_space(free_bytes()));
    }
    // The kernel would answer with SIGXFSZ, too, which ends the program.
    let limit = rustix::process::getrlimit(rustix::process::Resource::Fsize).current;
    if limit.is_some_and(|limit| limit < length) {
        return Err(system(path, "make the file: the limit of file sizes (ulimit -f) is smaller", Errno::FBIG));
    }
    rustix::fs::ftruncate(&file, length).map_err(|error| system(path, "set the file's length", error))?;
    let open_options = OpenOptions { read_only: false, ..options.open };
    let clone = file.try_clone().map_err(|source| OpenError::System {
        path: path.to_owned(),
        action: "duplicate the descriptor",
        source,
    })?;
    let medium = Medium::from_file(clone, path, open_options)?;
    let mut wants_huge = options.huge_pages && medium.kind() == MediumKind::Memory;
    let mut at = 0;
    while at < length {
        let step = STEP_BYTES.min(length - at);
        let before = free_bytes();
        match fallocate(&file, FallocateFlags::empty(), at, step) {
            Ok(()) => {}
            Err(Errno::NOSPC | Errno::DQUOT) => return Err(no_space(before.saturating_add(at))),
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => write_zeros(&file, path, at, step)?,
            Err(error) => return Err(system(path, "reserve the space", error)),
        }
        let huge_step = step / HUGE_BYTES * HUGE_BYTES;
        // Where the kernel refuses once (it cannot, or no memory is in one piece), asking on would only cost time.
        wants_huge = wants_huge && huge_step != 0 && medium.collapse(at, huge_step).is_ok();
        at += step;
        progress(CreateProgress { done_bytes: at, total_bytes: length });
    }
    Ok(medium)
}

/// Reserves space the slow way, on file systems that have no other.
fn write_zeros(file: &File, path: &Path, at: u64, length: u64) -> Result<(), OpenError> {
    let zeros = vec![0; (1 << 20).min(length as usize)];
    let mut done = 0;
    while done < length {
        let step = (zeros.len() as u64).min(length - done);
        file.write_all_at(&zeros[..step as usize], at + done).map_err(|source| OpenError::System {
            path: path.to_owned(),
            action: "reserve the space by writing zeros",
            source,
        })?;
        done += step;
    }
    Ok(())
}
