//! Creating a medium: reserving all its space now, so that a full file system below never becomes SIGBUS later, and getting
//! huge pages for it. What is reserved is not enough where blocks are shared with copies and snapshots: they are written elsewhere, once.

use std::ffi::OsString;
use std::fs::{File, Metadata};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, CWD, FallocateFlags, Gid, IFlags, MemfdFlags, Mode, OFlags, Uid, fallocate, fchmod, fchown, fstatfs,
    ioctl_getflags, ioctl_setflags, memfd_create,
};
use rustix::io::Errno;

use crate::error::OpenError;
use crate::medium::{Medium, MediumKind};
use crate::open::{
    IN_A_CIRCLE, LENGTH_UNIT_BYTES, MAGIC_HUGETLBFS, OpenOptions, TOO_MANY_OPEN, free_huge_pages, system,
};
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

/// A medium that is being created: nobody sees it under its name before it is whole. Dropped, it leaves nothing behind, and what was there
/// before still is, unless that has no name itself.
///
/// Where the file system can, the file has no name until then (`O_TMPFILE`), so that even a killed process leaves nothing.
#[derive(Debug)]
pub struct Creation {
    path: PathBuf,
    length: u64,
    options: CreateOptions,
    file: File,
    way: Way,
    kind: Option<MediumKind>,
    /// What it replaces.
    present: Option<Metadata>,
}

/// Whose the file is when it is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Its owner's, group's and others' as of what was replaced, or of any new file.
    Usual,
    /// Only its maker's: it replaced a file of another user or group, to whom the maker may not give it.
    Own,
}

/// How the file gets its name.
#[derive(Debug)]
enum Way {
    /// It has it, and keeps it whatever happens: a device, or a file that is reached only through a descriptor.
    There,
    /// It has none yet.
    Unnamed,
    /// It has this one, which is removed if it is not finished.
    Named(PathBuf),
}

impl Creation {
    /// Makes or opens the file. `length` is a multiple of 4096.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn begin(path: &Path, length: u64, options: CreateOptions) -> Result<Creation, OpenError> {
        check_length(path, length)?;
        let begun = |path: &Path, file, way, present| {
            Ok(Creation { path: path.to_owned(), length, options, file, way, kind: None, present })
        };
        // A symbolic link stays; what it leads to is replaced.
        let real = std::fs::canonicalize(path).ok();
        let resolved = real.clone().unwrap_or_else(|| path.to_owned());
        let present = match std::fs::metadata(path) {
            Err(error) if error.raw_os_error() == Some(Errno::LOOP.raw_os_error()) => {
                return Err(system(&resolved, IN_A_CIRCLE, Errno::LOOP));
            }
            Err(_) if resolved.is_symlink() => return Err(leads_nowhere(&resolved)),
            Err(_) => None,
            Ok(_) if !options.force => return Err(OpenError::Exists { path: resolved }),
            Ok(present) => Some(present),
        };
        if let Some(present) = &present {
            let is_device = present.mode() & libc::S_IFMT == libc::S_IFCHR;
            if !is_device && !present.is_file() {
                return Err(OpenError::WrongType { path: resolved, kind: "what stands there" });
            }
            // What has no name where the path leads (a memfd by /proc/PID/fd/N) cannot be replaced by another file.
            let same = |found: &std::fs::Metadata| (found.dev(), found.ino()) == (present.dev(), present.ino());
            let is_named = real.is_some_and(|real| std::fs::metadata(real).is_ok_and(|found| same(&found)));
            if is_device || !is_named {
                let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
                let file = rustix::fs::open(path, flags, Mode::empty())
                    .map_err(|error| system(path, "open the medium", error))?;
                return begun(path, File::from(file), Way::There, None);
            }
        }
        let path = resolved.as_path();
        let mode = Mode::from_raw_mode(options.permissions);
        // Only by its place below /proc does a file without a name get one.
        if Path::new("/proc/self/fd").is_dir()
            && let Ok(file) =
                rustix::fs::open(directory_of(path), OFlags::RDWR | OFlags::TMPFILE | OFlags::CLOEXEC, mode)
        {
            return begun(path, File::from(file), Way::Unnamed, present);
        }
        let making = if options.force { beside(path) } else { path.to_owned() };
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let file = rustix::fs::open(&making, flags, mode).map_err(|error| match error {
            Errno::EXIST => OpenError::Exists { path: making.clone() },
            Errno::NOENT if !directory_of(path).is_dir() => {
                system(path, "create the file; make its directory first (mkdir -p)", error)
            }
            Errno::ACCESS => system(path, "create the file; its directory must be one that you may write to", error),
            error => system(path, creating(error), error),
        })?;
        begun(path, File::from(file), Way::Named(making), present)
    }

    /// The name under which the file stands until it is finished, where it has one: to be removed by who ends before.
    #[must_use]
    pub fn temporary(&self) -> Option<&Path> {
        if let Way::Named(path) = &self.way { Some(path) } else { None }
    }

    /// Reserves the space and maps it. All bytes are zero then, but for those of a device, which are what they were.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn fill(&mut self, progress: &mut dyn FnMut(CreateProgress)) -> Result<Medium, OpenError> {
        let path = self.path.as_path();
        let is_device = self.file.metadata().is_ok_and(|present| present.mode() & libc::S_IFMT == libc::S_IFCHR);
        let medium = if is_device {
            let medium = Medium::open(path, OpenOptions { read_only: false, ..self.options.open })?;
            let (needed_bytes, free_bytes) = (self.length, medium.length());
            if free_bytes < needed_bytes {
                return Err(OpenError::NoSpace { path: path.to_owned(), needed_bytes, free_bytes });
            }
            medium
        } else {
            if matches!(self.way, Way::There) {
                empty(&self.file, path, self.length)?;
            }
            let file = self.file.try_clone().map_err(|source| OpenError::System {
                path: path.to_owned(),
                action: "duplicate the descriptor",
                source,
            })?;
            fill(file, path, self.length, self.options, progress)?
        };
        self.kind = Some(medium.kind());
        Ok(medium)
    }

    /// Gives the file its name, in place of what had it if that was forced, and makes the name durable. Owner, group and permissions become
    /// those of what is replaced, if that is allowed.
    ///
    /// # Errors
    /// [`OpenError`]; nothing is left behind then.
    pub fn finish(mut self) -> Result<Access, OpenError> {
        let path = self.path.clone();
        let access = match &self.present {
            Some(present) if !give(&self.file, present) => Access::Own,
            _ => Access::Usual,
        };
        match &self.way {
            Way::There => return Ok(access),
            Way::Unnamed => {
                let making = if self.options.force { beside(&path) } else { path.clone() };
                let place = format!("/proc/self/fd/{}", self.file.as_raw_fd());
                rustix::fs::linkat(CWD, place, CWD, &making, AtFlags::SYMLINK_FOLLOW).map_err(|error| match error {
                    Errno::EXIST => OpenError::Exists { path: making.clone() },
                    error @ (Errno::PERM | Errno::ROFS) => system(&path, creating(error), error),
                    error => system(&path, "give the new file its name", error),
                })?;
                self.way = Way::Named(making);
            }
            Way::Named(_) => {}
        }
        if let Way::Named(making) = &self.way
            && *making != path
        {
            rustix::fs::rename(making, &path).map_err(|error| {
                let action = match error {
                    Errno::PERM => "put the new file in place: the old one may not be removed, or was made immutable (lsattr; chattr -i undoes that)",
                    _ => "put the new file in place",
                };
                system(&path, action, error)
            })?;
        }
        // From here on it is not removed.
        self.way = Way::There;
        if matches!(self.kind, Some(MediumKind::DiskFile | MediumKind::FileDax)) {
            let synced = File::open(directory_of(&path)).and_then(|directory| directory.sync_all());
            synced.map_err(|source| OpenError::System { path, action: "make the file's name durable", source })?;
        }
        Ok(access)
    }
}

/// Gives a file the owner, group and permissions of another, all or none: permissions are somebody's. False where that is not allowed.
fn give(file: &File, of: &Metadata) -> bool {
    let same = file.metadata().is_ok_and(|now| (now.uid(), now.gid()) == (of.uid(), of.gid()));
    let (owner, group) = (Uid::from_raw(of.uid()), Gid::from_raw(of.gid()));
    (same || fchown(file, Some(owner), Some(group)).is_ok())
        && fchmod(file, Mode::from_raw_mode(of.mode() & 0o777)).is_ok()
}

impl Drop for Creation {
    fn drop(&mut self) {
        if let Way::Named(path) = &self.way {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Why a file cannot be created, and what to do.
fn creating(error: Errno) -> &'static str {
    match error {
        Errno::PERM => {
            "create the file: its directory was made immutable (lsattr), which chattr -i undoes; or name another place"
        }
        Errno::ROFS => {
            "create the file: its file system is mounted read-only; mount that writable (mount -o remount,rw), or name another place"
        }
        Errno::LOOP => IN_A_CIRCLE,
        Errno::MFILE => TOO_MANY_OPEN,
        _ => "create the file",
    }
}

/// The directory that holds a file.
fn directory_of(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// A symbolic link to something that is not there.
pub(crate) fn leads_nowhere(path: &Path) -> OpenError {
    let target = std::fs::read_link(path).unwrap_or_default();
    OpenError::LeadsNowhere { path: path.to_owned(), target }
}

/// Takes away what a file holds, which keeps its length if that is right: a memfd can be sealed against another one.
fn empty(file: &File, path: &Path, length: u64) -> Result<(), OpenError> {
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    let is_right = file.metadata().is_ok_and(|present| present.len() == length);
    if is_right && fallocate(file, punch, 0, length).is_ok() {
        return Ok(());
    }
    rustix::fs::ftruncate(file, 0).map_err(|error| system(path, "empty the file", error))
}

impl Medium {
    /// Creates a file of `length` bytes (a multiple of 4096), reserves its space and maps it. All bytes are zero. A DAX
    /// device that is there already is opened instead, if forced; its bytes are what they were. A file that has no name (a memfd, by
    /// `/proc/PID/fd/N`) is emptied and used.
    ///
    /// # Errors
    /// [`OpenError`]; nothing is left behind then, and what was there before still is, if it has a name.
    pub fn create(
        path: &Path,
        length: u64,
        options: CreateOptions,
        progress: &mut dyn FnMut(CreateProgress),
    ) -> Result<Medium, OpenError> {
        let mut creation = Creation::begin(path, length, options)?;
        let medium = creation.fill(progress)?;
        creation.finish()?;
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
    let page_bytes = below.f_bsize as u64;
    if below.f_type as u64 == MAGIC_HUGETLBFS && !length.is_multiple_of(page_bytes.max(1)) {
        let (free, _) = free_huge_pages(page_bytes);
        return Err(OpenError::HugePageSize { path: path.to_owned(), length, page_bytes, free });
    }
    keep_in_place(&file);
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

/// Asks for a file, empty as yet, whose blocks are overwritten where they are: on file systems that write elsewhere else (btrfs), and would need
/// space for that long after it was reserved. Compression, which a directory may hand on, would forbid it. Others do not know the wish, or need not be told.
fn keep_in_place(file: &File) {
    let _ = ioctl_getflags(file).and_then(|flags| ioctl_setflags(file, (flags - IFlags::COMPRESSED) | IFlags::NOCOW));
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
