//! Attributes: telling and changing them.

use crate::call::run_plain;
use crate::memory::{Input, Output, Text};
use crate::volume::Volume;
use gannet_vfs::namespace::LastMode;
use gannet_vfs::{Attributes, Errno, Error, Result, Time, TimeChange};
use std::ffi::{c_char, c_int};

/// What a file is. Times are nanoseconds since 1970-01-01 UTC, negative before it.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Stat {
    /// The volume, as for `st_dev`.
    pub device: u64,
    /// Inode number.
    pub inode: u64,
    /// Type and permission bits, as `st_mode`.
    pub mode: u32,
    /// Tells a file from earlier ones of the same inode number.
    pub generation: u32,
    /// Number of hard links.
    pub links: u64,
    /// User that owns it.
    pub user: u32,
    /// Group that owns it.
    pub group: u32,
    /// The device that a device file stands for, as `st_rdev`.
    pub special_device: u64,
    /// Size in bytes.
    pub size: u64,
    /// Allocated space in bytes.
    pub allocated: u64,
    /// The preferred size of reads and writes in bytes.
    pub block_size: u32,
    /// Flags as of `FS_IOC_GETFLAGS`, see `gannet_setflags`.
    pub flags: u32,
    /// Last access.
    pub accessed: i64,
    /// Last change of the data.
    pub modified: i64,
    /// Last change of the inode.
    pub changed: i64,
    /// Birth.
    pub created: i64,
}

/// Space and inodes of a volume.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Statfs {
    /// The volume, as for `st_dev`.
    pub device: u64,
    /// Size of a block in bytes.
    pub block_size: u64,
    /// All blocks that files can use.
    pub blocks: u64,
    /// Blocks that are free.
    pub blocks_free: u64,
    /// Blocks that are free to those without privilege.
    pub blocks_available: u64,
    /// All inodes.
    pub inodes: u64,
    /// Inodes that are free.
    pub inodes_free: u64,
    /// The longest name in bytes.
    pub name_max: u64,
}

const SECTOR_BYTES: u64 = 512;

impl Volume {
    pub(crate) fn stat(&self, all: &Attributes) -> Stat {
        Stat {
            device: self.device,
            inode: all.node.number,
            mode: all.mode_and_type(),
            generation: all.node.generation,
            links: all.links,
            user: all.owner.user,
            group: all.owner.group,
            special_device: all.device,
            size: all.size_bytes,
            allocated: all.sectors * SECTOR_BYTES,
            block_size: all.block_bytes,
            flags: all.flags.bits(),
            accessed: all.accessed.0,
            modified: all.modified.0,
            changed: all.changed.0,
            created: all.created.0,
        }
    }

    fn stat_path(&self, path: Text, mode: LastMode, into: &Output<Stat>) -> Result<()> {
        let all = self.at_existing(path, mode, |namespace, node| namespace.fs().attributes(node))?;
        into.put(&self.stat(&all))
    }
}

/// Tells what the file at `path` is.
///
/// # Safety
/// `volume` is attached or NULL, `path` a string, `result` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gannet_stat(volume: *mut Volume, path: *const c_char, result: *mut Stat) -> c_int {
    // SAFETY: the caller's promise.
    let (path, into) = unsafe { (Text::new(path), Output::new(result)) };
    // SAFETY: the caller's promise.
    unsafe { run_plain("gannet_stat", volume, |volume| volume.stat_path(path, LastMode::Follow, &into)) }
}

/// The same; a symbolic link at the end is not followed.
///
/// # Safety
/// As for `gannet_stat`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gannet_lstat(volume: *mut Volume, path: *const c_char, result: *mut Stat) -> c_int {
    // SAFETY: the caller's promise.
    let (path, into) = unsafe { (Text::new(path), Output::new(result)) };
    // SAFETY: the caller's promise.
    unsafe { run_plain("gannet_lstat", volume, |volume| volume.stat_path(path, LastMode::NoFollow, &into)) }
}

/// The same of an open file.
///
/// # Safety
/// `volume` is attached or NULL, `result` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gannet_fstat(volume: *mut Volume, descriptor: c_int, result: *mut Stat) -> c_int {
    // SAFETY: the caller's promise.
    let into = unsafe { Output::new(result) };
    let stat = |volume: &Volume| {
        let all = volume.with(descriptor, |file| volume.fs().attributes(file.node))?;
        into.put(&volume.stat(&all))
    };
    // SAFETY: the caller's promise.
    unsafe { run_plain("gannet_fstat", volume, stat) }
}

/// Tells the space and the inodes of the volume.
///
/// # Safety
/// `volume` is attached or NULL, `result` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gannet_statfs(volume: *mut Volume, result: *mut Statfs) -> c_int {
    // SAFETY: the caller's promise.
    let into = unsafe { Output::new(result) };
    let tell = |volume: &Volume| {
        let all = volume.fs().statistics()?;
        into.put(&Statfs {
            device: volume.device,
            block_size: u64::from(all.block_bytes),
            blocks: all.blocks,
            blocks_free: all.blocks_free,
            blocks_available: all.blocks_available,
            inodes: all.inodes,
            inodes_free: all.inodes_free,
            name_max: gannet_vfs::NAME_BYTES_MAX as u64,
        })
    };
    // SAFETY: the caller's promise.
    unsafe { run_plain("gannet_statfs", volume, tell) }
}

/// Changes the permission bits.
///
/// # Safety
/// `volume` is attached or NULL, `path` a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gannet_chmod(volume: *mut Volume, path: *const c_char, mode: u32) -> c_int {
    // SAFETY: the caller's promise.
    let path = unsafe { Text::new(path) };
    let change = |volume: &Volume| {
        volume.at_existing(path, LastMode::Follow, |namespace, node| namespace.set_mode(node, mode).map(|_| ()))
    };
    // SAFETY: the caller's promise.
    unsafe { run_plain("gannet_chmod", volume, change) }
}

/// The same of an open file.
///
/// # Safety
/// `volume` is attached or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gannet_fchmod(volume: *mut Volume, descriptor: c_int, mode: u32) -> c_int {
    let change =
        |volume: &Volume| volume.with_open(descriptor, |file| volume.namespace().set_mode(file.node, mode).map(|_| ()));
    // SAFETY: the caller's promise.
    unsafe { run_plain("gannet_fchmod", volume, change) }
}

/// An id that `chown` is given: its largest value keeps what is.
pub(crate) const fn kept(id: u32) -> Option<u32> {
    if id == u32::MAX { None } else { Some(id) }
}

/// Changes the owners; `(uint32_t)-1` keeps one.
///
/// # Safety
/// `volume` is attached or NULL, `path` a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gannet_chown(volume: *mut Volume, path: *const c_char, user: u32, group: u32) -> c_int {
    // SAFETY: the caller's promise.
    let path = unsafe { Text::new(path) };
    let change = |volume: &Volume| {
        volume.at_existing(path, LastMode::Follow, |namespace, node| {
            namespace.set_owner(node, kept(user), kept(group)).map(|_| ())
        })
    };
    // SAFETY: the caller's promise.
    unsafe { run_plain("gannet_chown", volume, change) }
}

/// The same; a symbolic link at the end is not followed.
///
/// # Safety
/// As for `gannet_chown`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gannet_lchown(volume: *mut Volume, path: *const c_char, user: u32, group: u32) -> c_int {
    // SAFETY: the caller's promise.
    let path = unsafe { Text::new(path) };
    let change = |volume: &Volume| {
        volume.at_existing(path, LastMode::NoFollow, |namespace, node| {
            namespace.set_owner(node, kept(user), kept(group)).map(|_| ())
        })
    };
    // SAFETY: the caller's promise.
    unsafe { run_plain("gannet_lchown", volume, change) }
}

/// The same of an open file.
///
/// # Safety
/// `volume` is attached or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gannet_fchown(volume: *mut Volume, descriptor: c_int, user: u32, group: u32) -> c_int {
    let change = |volume: &Volume| {
        volume
            .with_open(descriptor, |file| volume.namespace().set_owner(file.node, kept(user), kept(group)).map(|_| ()))
    };
    // SAFETY: the caller's promise.
    unsafe { run_plain("gannet_fchown", volume, change) }
}

/// The changes that `utimensat(2)` is told by two `struct timespec`.
pub(crate) fn changes_of(times: &Input<libc::timespec>) -> Result<[TimeChange; 2]> {
    if times.is_null() {
        return Ok([TimeChange::Now; 2]);
    }
    let change = |given: libc::timespec| match given.tv_nsec {
        libc::UTIME_NOW => Ok(TimeChange::Now),
        libc::UTIME_OMIT => Ok(TimeChange::Keep),
        0..=999_999_999 => Ok(TimeChange::Set(Time::from_parts(given.tv_sec, given.tv_nsec as u32))),
        _ => Err(Error::because(Errno::INVAL, "nanoseconds that are not within a second")),
    };
    Ok([change(times.get(0)?)?, change(times.get(1)?)?])
}

/// Changes the times of access and modification to `times[0]` and `times[1]`, or to now if it is NULL. `UTIME_NOW` and
/// `UTIME_OMIT` are understood, and `AT_SYMLINK_NOFOLLOW` in `flags`.
///
/// # Safety
/// `volume` is attached or NULL, `path` a string, `times` NULL or two.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gannet_utimens(
    volume: *mut Volume,
    path: *const c_char,
    times: *const libc::timespec,
    flags: c_int,
) -> c_int {
    // SAFETY: the caller's promise.
    let (path, times) = unsafe { (Text::new(path), Input::new(times)) };
    let change = |volume: &Volume| {
        let mode = match flags {
            0 => LastMode::Follow,
            libc::AT_SYMLINK_NOFOLLOW => LastMode::NoFollow,
            _ => return Err(Error::because(Errno::INVAL, "flags that are not known")),
        };
        let [accessed, modified] = changes_of(&times)?;
        volume.at_existing(path, mode, |namespace, node| namespace.set_times(node, accessed, modified))
    };
    // SAFETY: the caller's promise.
    unsafe { run_plain("gannet_utimens", volume, change) }
}

/// The same of an open file.
///
/// # Safety
/// `volume` is attached or NULL, `times` NULL or two.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gannet_futimens(
    volume: *mut Volume,
    descriptor: c_int,
    times: *const libc::timespec,
) -> c_int {
    // SAFETY: the caller's promise.
    let times = unsafe { Input::new(times) };
    let change = |volume: &Volume| {
        let [accessed, modified] = changes_of(&times)?;
        volume.with_open(descriptor, |file| volume.namespace().set_times(file.node, accessed, modified))
    };
    // SAFETY: the caller's promise.
    unsafe { run_plain("gannet_futimens", volume, change) }
}

/// Changes the size of a file: cuts it, or extends it with a hole.
///
/// # Safety
/// `volume` is attached or NULL, `path` a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gannet_truncate(volume: *mut Volume, path: *const c_char, length: i64) -> c_int {
    // SAFETY: the caller's promise.
    let path = unsafe { Text::new(path) };
    let change = |volume: &Volume| {
        let length = u64::try_from(length).map_err(|_| Error::because(Errno::INVAL, "a negative length"))?;
        volume.at_existing(path, LastMode::Follow, |namespace, node| namespace.truncate(node, length))
    };
    // SAFETY: the caller's promise.
    unsafe { run_plain("gannet_truncate", volume, change) }
}
