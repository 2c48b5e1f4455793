//! Opening a medium: which kind of file it is, mapping it, and how its stores become durable.

use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::ptr::{self, NonNull};

use rustix::fs::{FileType, Mode, OFlags, fstat, fstatfs};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::error::OpenError;
use crate::held::HeldFile;
use crate::medium::{Backing, Medium, MediumKind, PersistMode};
use crate::platform::flushes_caches;

/// Maps are aligned to it, so that 2 MiB pages fit; so is what device DAX can map.
pub(crate) const MAP_ALIGNMENT_BYTES: usize = 2 << 20;

/// Media are multiples of it.
pub(crate) const LENGTH_UNIT_BYTES: u64 = 4096;

const MAGIC_TMPFS: u64 = 0x0102_1994;
pub(crate) const MAGIC_HUGETLBFS: u64 = 0x9584_58F6;
pub(crate) const MAGIC_RAMFS: u64 = 0x8584_58F6;

/// How to open.
#[derive(Clone, Copy, Debug, Default)]
pub struct OpenOptions {
    /// Only loads; the file is opened and mapped read-only.
    pub read_only: bool,
    /// Execute the persistence instructions although the memory is volatile ([`PersistMode::Emulated`]).
    pub emulate_persistence: bool,
    /// The platform flushes its caches when power fails ([`PersistMode::PersistentCache`]), whatever it says itself; only for
    /// DAX media.
    pub persistent_cache: bool,
}

/// What cannot be done with a file below which nothing can be written.
const READ_ONLY_BELOW: &str = "open the medium to write to it: the file system that it lies on is mounted read-only; mount that writable \
    (mount -o remount,rw), copy the volume elsewhere, or look at it through gannet mount -o ro";

/// What can be read and not be changed, whoever owns it.
const IMMUTABLE: &str = "open the medium to write to it: it was made immutable, or for appending only (lsattr); undo that (chattr -i -a), \
    or look at it through gannet mount -o ro";

/// What a symbolic link is that leads to itself, by others perhaps.
pub(crate) const IN_A_CIRCLE: &str =
    "follow the symbolic link: it leads back to itself; name another path, or remove the link";

/// What a process has that may not open one more.
pub(crate) const TOO_MANY_OPEN: &str =
    "open one more file: the process has as many open as it may; close some, or raise the limit (ulimit -n)";

/// Where the descriptors of media begin, if the process may have so many.
const DESCRIPTOR_MIN: i32 = 512;

/// The descriptor with a number that the process does not miss, also where it may have few (RLIMIT_NOFILE): a descriptor may stay
/// above the limit, so the limit is higher for a moment, where that is allowed; else it is as high as the limit lets it. The same descriptor if
/// there is no such number.
fn out_of_the_way(descriptor: OwnedFd) -> OwnedFd {
    const LIMIT: u64 = 2 * DESCRIPTOR_MIN as u64;
    let duplicate = |descriptor: &OwnedFd| rustix::io::fcntl_dupfd_cloexec(descriptor, DESCRIPTOR_MIN);
    if let Ok(moved) = duplicate(&descriptor) {
        return moved;
    }
    let before = getrlimit(Resource::Nofile);
    let maximum = before.maximum.map(|maximum| maximum.max(LIMIT));
    let above = |limit: Option<u64>| limit.is_none_or(|limit| limit >= LIMIT);
    if above(before.current) || setrlimit(Resource::Nofile, Rlimit { current: Some(LIMIT), maximum }).is_err() {
        return highest(descriptor, before.current);
    }
    let moved = duplicate(&descriptor).unwrap_or(descriptor);
    let _ = setrlimit(Resource::Nofile, before);
    moved
}

/// The descriptor with the highest number that is free below the limit.
fn highest(descriptor: OwnedFd, limit: Option<u64>) -> OwnedFd {
    let below = limit.map_or(DESCRIPTOR_MIN, |limit| limit.min(DESCRIPTOR_MIN as u64) as i32);
    let higher = (descriptor.as_raw_fd() + 1..below).rev();
    higher.into_iter().find_map(|from| rustix::io::fcntl_dupfd_cloexec(&descriptor, from).ok()).unwrap_or(descriptor)
}

impl Medium {
    /// Opens and maps a volume's file or device.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open(path: &Path, options: OpenOptions) -> Result<Medium, OpenError> {
        let access = if options.read_only { OFlags::RDONLY } else { OFlags::RDWR };
        // Whatever stands there is opened at once: a FIFO would wait for a writer.
        let access = access | OFlags::NONBLOCK | OFlags::NOCTTY;
        let descriptor =
            rustix::fs::open(path, access | OFlags::CLOEXEC, Mode::empty()).map_err(|error| match error {
                Errno::ACCESS => {
                    let readable = || rustix::fs::access(path, rustix::fs::Access::READ_OK).is_ok();
                    let deed = if options.read_only || !readable() { "read" } else { "write to" };
                    OpenError::Forbidden { path: path.to_owned(), deed }
                }
                Errno::NOENT if path.is_symlink() => crate::create::leads_nowhere(path),
                Errno::NOENT => OpenError::NotThere { path: path.to_owned() },
                Errno::ISDIR => OpenError::WrongType { path: path.to_owned(), kind: "a directory" },
                Errno::ROFS => system(path, READ_ONLY_BELOW, error),
                Errno::PERM if !options.read_only => system(path, IMMUTABLE, error),
                Errno::LOOP => system(path, IN_A_CIRCLE, error),
                Errno::MFILE => system(path, TOO_MANY_OPEN, error),
                error => system(path, "open the medium", error),
            })?;
        // Low numbers are the program's, which may be anybody's: shells and scripts use them by number.
        let descriptor = out_of_the_way(descriptor);
        Medium::from_file(File::from(descriptor), path, options)
    }

    /// Maps an open file: a memfd, for instance. `path` is for messages.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn from_file(file: File, path: &Path, options: OpenOptions) -> Result<Medium, OpenError> {
        let status = fstat(&file).map_err(|error| system(path, "examine the medium", error))?;
        let (length, device) = match FileType::from_raw_mode(status.st_mode) {
            FileType::RegularFile => (status.st_size as u64, false),
            FileType::CharacterDevice => (device_length(path, status.st_rdev)?, true),
            other => return Err(OpenError::WrongType { path: path.to_owned(), kind: kind_name(other) }),
        };
        let problem = |problem| OpenError::WrongLength { path: path.to_owned(), length, problem };
        if length == 0 {
            return Err(problem("the file is empty: no volume was made in it"));
        }
        if length % LENGTH_UNIT_BYTES != 0 {
            return Err(problem(
                "not a multiple of 4096: the file was truncated, something was appended to it, or it never was a volume",
            ));
        }
        if usize::try_from(length).is_err() || length > isize::MAX as u64 / 2 {
            return Err(problem("more than can be mapped"));
        }
        let below = if device {
            None
        } else {
            Some(fstatfs(&file).map_err(|error| system(path, "examine the file system", error))?)
        };
        let magic = below.map_or(0, |below| below.f_type as u64);
        let in_memory = matches!(magic, MAGIC_TMPFS | MAGIC_RAMFS);
        let protection = if options.read_only { ProtFlags::READ } else { ProtFlags::READ | ProtFlags::WRITE };
        if in_memory && let Some(base) = map_at_once(&file, length as usize, protection) {
            let kind = MediumKind::Memory;
            let backing = Backing {
                reserved: base,
                reserved_bytes: length as usize,
                file: Some(HeldFile::new(file, &status)),
                kind,
                members: Vec::new(),
            };
            let mode = if options.emulate_persistence { PersistMode::Emulated } else { PersistMode::Plain };
            return Ok(Medium::assemble(backing, base, length, !options.read_only, mode, None));
        }
        let alignment = if device { device_alignment(status.st_rdev) } else { MAP_ALIGNMENT_BYTES };
        let (reserved, reserved_bytes, base) =
            reserve(length as usize, alignment).map_err(|error| system(path, "reserve addresses", error))?;
        let mut backing =
            Backing { reserved, reserved_bytes, file: None, kind: MediumKind::DeviceDax, members: Vec::new() };
        let map = |flags: MapFlags| {
            // SAFETY: replaces a part of the address range that was just reserved.
            unsafe { mmap(base.as_ptr().cast(), length as usize, protection, flags | MapFlags::FIXED, &file, 0) }
        };
        // MAP_SHARED_VALIDATE is both other map types together; MAP_SYNC is refused unless stores are durable as such.
        let synchronous = MapFlags::SHARED_VALIDATE | MapFlags::SYNC;
        backing.kind = if device {
            map(MapFlags::SHARED).map_err(|error| system(path, "map the device", error))?;
            MediumKind::DeviceDax
        } else if !in_memory && map(synchronous).is_ok() {
            MediumKind::FileDax
        } else {
            map(MapFlags::SHARED).map_err(|error| match error {
                // It takes all pages that the map could need when it is made.
                Errno::NOMEM if magic == MAGIC_HUGETLBFS => {
                    no_huge_pages(path, length, below.map_or(0, |below| below.f_bsize as u64))
                }
                error => system(path, "map the file", error),
            })?;
            match magic {
                MAGIC_TMPFS | MAGIC_RAMFS => MediumKind::Memory,
                MAGIC_HUGETLBFS => MediumKind::HugeMemory,
                _ => MediumKind::DiskFile,
            }
        };
        backing.file = Some(HeldFile::new(file, &status));
        let mode = match backing.kind {
            MediumKind::DeviceDax | MediumKind::FileDax if options.persistent_cache => PersistMode::PersistentCache,
            MediumKind::DeviceDax if flushes_caches(status.st_rdev, false) => PersistMode::PersistentCache,
            MediumKind::FileDax if flushes_caches(status.st_dev, true) => PersistMode::PersistentCache,
            MediumKind::DeviceDax | MediumKind::FileDax => PersistMode::Persistent,
            _ if options.emulate_persistence => PersistMode::Emulated,
            _ => PersistMode::Plain,
        };
        Ok(Medium::assemble(backing, base, length, !options.read_only, mode, None))
    }
}

/// How many huge pages of a size nobody has or was promised, and where their number is set.
pub(crate) fn free_huge_pages(page_bytes: u64) -> (u64, String) {
    let directory = format!("/sys/kernel/mm/hugepages/hugepages-{}kB", page_bytes / 1024);
    let number = |name: &str| -> u64 {
        let text = std::fs::read_to_string(format!("{directory}/{name}")).unwrap_or_default();
        text.trim().parse().unwrap_or(0)
    };
    (number("free_hugepages").saturating_sub(number("resv_hugepages")), format!("{directory}/nr_hugepages"))
}

/// Says how many pages are missing, and where to get them.
fn no_huge_pages(path: &Path, length: u64, page_bytes: u64) -> OpenError {
    let (free, switch) = free_huge_pages(page_bytes);
    OpenError::NoHugePages { path: path.to_owned(), needed: length.div_ceil(page_bytes), free, page_bytes, switch }
}

/// Maps a file of a memory file system where it begins at an aligned address and where as a rule nothing is, far below our own
/// code: one call instead of two or three. `None` if something is there.
fn map_at_once(file: &File, length: usize, protection: ProtFlags) -> Option<NonNull<u8>> {
    // What the process has besides, the state that is shared with others included, lies above.
    const DISTANCE_BYTES: usize = 64 << 30;
    const LOWEST: usize = 1 << 32;
    let here = map_at_once as *const () as usize;
    let wanted = here.checked_sub(DISTANCE_BYTES)?.checked_sub(length)? & !(MAP_ALIGNMENT_BYTES - 1);
    if wanted < LOWEST {
        return None;
    }
    // SAFETY: a new map at the address named, or elsewhere if that is taken.
    let mapped = unsafe { mmap(ptr::without_provenance_mut(wanted), length, protection, MapFlags::SHARED, file, 0) };
    let base = NonNull::new(mapped.ok()?.cast::<u8>())?;
    if base.addr().get() % MAP_ALIGNMENT_BYTES == 0 {
        return Some(base);
    }
    // SAFETY: made just now.
    let _ = unsafe { munmap(base.as_ptr().cast(), length) };
    None
}

/// Reserves addresses for `length` bytes at an aligned start: the range, its length, the start.
pub(crate) fn reserve(length: usize, alignment: usize) -> Result<(NonNull<u8>, usize, NonNull<u8>), Errno> {
    let reserved_bytes = length.checked_add(alignment).ok_or(Errno::NOMEM)?;
    // SAFETY: a new map at an address of the kernel's choice.
    let reserved = unsafe {
        mmap_anonymous(ptr::null_mut(), reserved_bytes, ProtFlags::empty(), MapFlags::PRIVATE | MapFlags::NORESERVE)?
    };
    let reserved = NonNull::new(reserved.cast::<u8>()).ok_or(Errno::NOMEM)?;
    let skip = reserved.as_ptr().align_offset(alignment);
    // SAFETY: one alignment more than needed was reserved.
    let base = unsafe { reserved.add(skip) };
    Ok((reserved, reserved_bytes, base))
}

pub(crate) fn system(path: &Path, action: &'static str, error: Errno) -> OpenError {
    OpenError::System { path: PathBuf::from(path), action, source: error.into() }
}

fn device_directory(device: u64) -> String {
    format!("/sys/dev/char/{}:{}", rustix::fs::major(device), rustix::fs::minor(device))
}

/// Whether a character device is one of persistent memory or the like, which to open does nothing.
#[must_use]
pub fn is_dax_device(device: u64) -> bool {
    let subsystem = std::fs::read_link(format!("{}/subsystem", device_directory(device))).unwrap_or_default();
    subsystem.file_name().is_some_and(|name| name == "dax")
}

/// What maps of a DAX device must be aligned to: 2 MiB, unless it was set up with larger pages.
pub(crate) fn device_alignment(device: u64) -> usize {
    let text = std::fs::read_to_string(format!("{}/align", device_directory(device))).unwrap_or_default();
    let alignment = text.trim().parse().unwrap_or(MAP_ALIGNMENT_BYTES);
    if alignment.is_power_of_two() { alignment.max(MAP_ALIGNMENT_BYTES) } else { MAP_ALIGNMENT_BYTES }
}

/// Size of a DAX device, from sysfs.
fn device_length(path: &Path, device: u64) -> Result<u64, OpenError> {
    let directory = device_directory(device);
    if !is_dax_device(device) {
        return Err(OpenError::WrongType { path: path.to_owned(), kind: "a character device other than device DAX" });
    }
    let text = std::fs::read_to_string(format!("{directory}/size")).map_err(|source| OpenError::System {
        path: path.to_owned(),
        action: "read the device's size from sysfs",
        source,
    })?;
    text.trim().parse().map_err(|_| OpenError::System {
        path: path.to_owned(),
        action: "understand the device's size in sysfs",
        source: std::io::Error::from(std::io::ErrorKind::InvalidData),
    })
}

fn kind_name(file_type: FileType) -> &'static str {
    match file_type {
        FileType::Directory => "a directory",
        FileType::BlockDevice => "a block device",
        FileType::Fifo => "a pipe",
        FileType::Socket => "a socket",
        FileType::Symlink => "a symbolic link",
        _ => "a file of this type",
    }
}
