//! Files that share blocks: the `ioctl`s that make them, and the one that tells where a file's blocks lie; and copies between
//! files of one volume that share instead.

use super::call::{Answer, Call, done};
use super::data::{O_PATH, check_not_path, check_readable, check_writable};
use super::table::OpenFile;
use super::{credentials, limits, maps, rendezvous};
use crate::dispatch::Outcome;
use crate::memory;
use crate::number::FCNTL;
use crate::raw::{is_error, syscall};
use gannet_vfs::namespace::{Namespace, SHARED_COPY_BYTES_MIN};
use gannet_vfs::{Errno, Error, ExtentKind, FileType};

/// `_IOW(0x94, 9, int)`.
pub(crate) const FICLONE: usize = 0x4004_9409;
/// `_IOW(0x94, 13, struct file_clone_range)`.
pub(crate) const FICLONERANGE: usize = 0x4020_940d;
/// `_IOWR(0x94, 54, struct file_dedupe_range)`.
pub(crate) const FIDEDUPERANGE: usize = 0xc018_9436;
/// `_IOWR('f', 11, struct fiemap)`.
pub(crate) const FIEMAP: usize = 0xc020_660b;

const O_APPEND: u32 = 0o2000;
/// The kernel compares no more in one call.
const DEDUPE_BYTES_MAX: u64 = 16 << 20;
/// `struct file_dedupe_range` and one target of it, in bytes.
const DEDUPE_BYTES: usize = 24;
const DEDUPE_TARGET_BYTES: usize = 32;
/// The kernel takes an argument of one page.
const DEDUPE_TARGETS_MAX: u16 = ((4096 - DEDUPE_BYTES) / DEDUPE_TARGET_BYTES) as u16;
const DEDUPE_DIFFERS: i32 = 1;

const FIEMAP_BYTES: usize = 32;
const FIEMAP_EXTENT_BYTES: usize = 56;
/// The kernel refuses to tell more in one call.
const FIEMAP_EXTENTS_MAX: u32 = u32::MAX / FIEMAP_EXTENT_BYTES as u32;
const FIEMAP_FLAG_SYNC: u32 = 1;
const FIEMAP_EXTENT_LAST: u32 = 1;
const FIEMAP_EXTENT_SHARED: u32 = 0x2000;

fn errno(error: Error) -> Errno {
    error.errno()
}

fn value_at<T: memory::Plain + Default>(address: usize, offset: usize) -> Result<T, Errno> {
    let mut value = T::default();
    memory::read_value(address.wrapping_add(offset), &mut value).map_err(|_| Errno::FAULT)?;
    Ok(value)
}

fn put_at<T: memory::Plain>(address: usize, offset: usize, value: T) -> Result<(), Errno> {
    memory::write_value(address.wrapping_add(offset), &value).map_err(|_| Errno::FAULT)
}

/// The volume that an end of sharing is of, and what it is there; `None` for the host's. `EBADF` if it is closed or open with `O_PATH`.
fn place_of(call: &Call<'_>, descriptor: usize) -> Result<Option<(usize, FileType)>, Errno> {
    if let Some(file) = call.open_file(descriptor) {
        check_not_path(&file)?;
        return Ok(Some((file.mount, file.file_type)));
    }
    const F_GETFL: usize = 3;
    // SAFETY: asks about a descriptor of the host.
    let flags = unsafe { syscall(FCNTL, [descriptor, F_GETFL]) };
    if is_error(flags) || flags as u32 & O_PATH != 0 || call.is_internal(descriptor) {
        return Err(Errno::BADF);
    }
    // The kernel has a pipe of its own in the place of a volume's FIFO.
    Ok(rendezvous::fifo_of(call, descriptor as i32).map(|(mount, _)| (mount, FileType::Fifo)))
}

/// What both ends of a clone must be: one volume's, then files.
fn check_places(source: Option<(usize, FileType)>, target: Option<(usize, FileType)>) -> Result<(), Errno> {
    let types = match (source, target) {
        (Some((from, source)), Some((to, target))) if from == to => [source, target],
        _ => return Err(Errno::XDEV),
    };
    if types.contains(&FileType::Directory) {
        return Err(Errno::ISDIR);
    }
    if types == [FileType::Regular; 2] { Ok(()) } else { Err(Errno::INVAL) }
}

/// What `FICLONE` and `FICLONERANGE` ask for: the source's descriptor, where in it, how much, where to.
fn wish(request: usize, argument: usize) -> Result<(usize, u64, u64, u64), Errno> {
    let (source, from_offset, length, to_offset) = match request {
        FICLONE => (argument as i32 as i64, 0, 0, 0),
        _ => {
            let source: i64 = value_at(argument, 0)?;
            (source, value_at(argument, 8)?, value_at(argument, 16)?, value_at(argument, 24)?)
        }
    };
    Ok((usize::try_from(source).map_err(|_| Errno::BADF)?, from_offset, length, to_offset))
}

/// `FICLONE` and `FICLONERANGE` on a descriptor of the host's: the kernel would look at the placeholder of a source of ours.
pub(crate) fn clone_to_host(call: &Call<'_>, request: usize, argument: usize) -> Answer {
    let source = match wish(request, argument) {
        Ok((source, ..)) if call.is_ours(source) => source,
        _ => return Ok(Outcome::Pass),
    };
    let target = place_of(call, call.arguments[0])?;
    check_places(place_of(call, source)?, target)?;
    Err(Errno::XDEV)
}

/// `FICLONE` and `FICLONERANGE` on `target`.
pub(crate) fn clone(call: &Call<'_>, target: &OpenFile, request: usize, argument: usize) -> Answer {
    let (source, from_offset, length, to_offset) = wish(request, argument)?;
    check_places(place_of(call, source)?, Some((target.mount, target.file_type)))?;
    let source = call.open_file(source).ok_or(Errno::XDEV)?;
    check_readable(&source)?;
    check_writable(target)?;
    let info = call.file_system(target)?.shared().info(target.description).map_err(errno)?;
    if info.status & O_APPEND != 0 {
        return Err(Errno::BADF);
    }
    check_limit(call, &source, (from_offset, to_offset), length)?;
    let namespace = Namespace::new(call.file_system(target)?, credentials::effective());
    namespace.clone_range(source.node, from_offset, target.node, to_offset, length).map_err(errno)?;
    maps::renew(call, target.mount, target.node, to_offset, u64::MAX, maps::Change::Moved);
    done(0)
}

/// Whether the largest size of files allows a clone: where it begins behind that it is like a write, and what would be cut is not begun.
fn check_limit(call: &Call<'_>, source: &OpenFile, offsets: (u64, u64), length: u64) -> Result<(), Errno> {
    let allowed = limits::allowed(FileType::Regular, usize::MAX, || Ok(offsets.1))?;
    if allowed == usize::MAX {
        return Ok(());
    }
    let size = call.file_system(source)?.attributes(source.node).map_err(errno)?.size_bytes;
    let length = if length == 0 { size.saturating_sub(offsets.0) } else { length };
    if length > allowed as u64 { Err(Errno::INVAL) } else { Ok(()) }
}

/// `FIDEDUPERANGE` on `source`: each target has its own answer.
pub(crate) fn dedupe(call: &Call<'_>, source: &OpenFile, argument: usize) -> Answer {
    let (from_offset, length): (u64, u64) = (value_at(argument, 0)?, value_at(argument, 8)?);
    // Two numbers that are to be zero stand behind the count.
    let words: u64 = value_at(argument, 16)?;
    let (count, reserved) = (words as u16, words >> 16);
    if count > DEDUPE_TARGETS_MAX {
        return Err(Errno::NOMEM);
    }
    match source.file_type {
        FileType::Regular => check_readable(source).map_err(|_| Errno::INVAL)?,
        FileType::Directory if reserved == 0 => return Err(Errno::ISDIR),
        _ => return Err(Errno::INVAL),
    }
    let size = call.file_system(source)?.attributes(source.node).map_err(errno)?.size_bytes;
    if reserved != 0 || from_offset.checked_add(length).is_none_or(|end| end > size) {
        return Err(Errno::INVAL);
    }
    let length = length.min(DEDUPE_BYTES_MAX);
    for index in 0..count as usize {
        let at = argument.wrapping_add(DEDUPE_BYTES + index * DEDUPE_TARGET_BYTES);
        let (target, to_offset): (i64, u64) = (value_at(at, 0)?, value_at(at, 8)?);
        let reserved: u32 = value_at(at, 28)?;
        let attempt = || {
            let target = usize::try_from(target).map_err(|_| Errno::BADF)?;
            let place = place_of(call, target)?;
            if reserved != 0 {
                return Err(Errno::INVAL);
            }
            if place.is_none_or(|(mount, _)| mount != source.mount) {
                return Err(Errno::XDEV);
            }
            let target = call.open_file(target).ok_or(Errno::INVAL)?;
            let namespace = Namespace::new(call.file_system(&target)?, credentials::effective());
            namespace.dedupe_range(source.node, from_offset, target.node, to_offset, length).map_err(errno)
        };
        let (bytes, status) = match attempt() {
            Ok(true) => (length, 0),
            // What is mapped stays as it is, as what has changed meanwhile.
            Ok(false) | Err(Errno::OPNOTSUPP) => (0, DEDUPE_DIFFERS),
            Err(errno) => (0, -errno.raw_os_error()),
        };
        put_at(at, 16, bytes)?;
        put_at(at, 24, status)?;
    }
    done(0)
}

/// `FS_IOC_FIEMAP`.
pub(crate) fn extents(call: &Call<'_>, file: &OpenFile, argument: usize) -> Answer {
    if file.file_type != FileType::Regular {
        return Err(Errno::OPNOTSUPP);
    }
    let (start, length): (u64, u64) = (value_at(argument, 0)?, value_at(argument, 8)?);
    let (flags, room): (u32, u32) = (value_at(argument, 16)?, value_at(argument, 24)?);
    if room > FIEMAP_EXTENTS_MAX {
        return Err(Errno::INVAL);
    }
    if length == 0 || start >= i64::MAX as u64 {
        return Err(if length == 0 { Errno::INVAL } else { Errno::FBIG });
    }
    if flags & !FIEMAP_FLAG_SYNC != 0 {
        put_at(argument, 16, flags & !FIEMAP_FLAG_SYNC)?;
        return Err(Errno::BADR);
    }
    let fs = call.file_system(file)?;
    let (mut told, mut last) = (0_u32, None);
    let mut outcome = Ok(());
    let mut tell = |extent: &gannet_vfs::Extent| {
        if room > 0 {
            if told == room {
                last = None;
                return false;
            }
            let at = argument.wrapping_add(FIEMAP_BYTES + told as usize * FIEMAP_EXTENT_BYTES);
            let shared = if extent.kind == ExtentKind::Shared { FIEMAP_EXTENT_SHARED } else { 0 };
            let flags = shared;
            outcome = memory::write_bytes(at, &[0; FIEMAP_EXTENT_BYTES])
                .map_err(|_| Errno::FAULT)
                .and_then(|()| put_at(at, 0, extent.file_offset_bytes))
                .and_then(|()| put_at(at, 8, extent.medium_offset_bytes))
                .and_then(|()| put_at(at, 16, extent.length_bytes))
                .and_then(|()| put_at(at, 40, flags));
            last = Some((at, flags));
        }
        told += 1;
        outcome.is_ok()
    };
    fs.extents(file.node, start, length.min(i64::MAX as u64 - start), &mut tell).map_err(errno)?;
    outcome?;
    // The last of the file says so.
    if let Some((at, flags)) = last {
        let end = value_at::<u64>(at, 0)? + value_at::<u64>(at, 16)?;
        let mut more = false;
        fs.extents(file.node, end, i64::MAX as u64 - end.min(i64::MAX as u64), &mut |extent| {
            more = extent.file_offset_bytes >= end;
            !more
        })
        .map_err(errno)?;
        if !more {
            put_at(at, 40, flags | FIEMAP_EXTENT_LAST)?;
        }
    }
    put_at(argument, 20, told)?;
    done(0)
}

/// Shares as much as can be shared of a copy between two files of one volume; returns how many bytes that was. `at` are the
/// offsets that the call names, `None` where it goes on at the description's.
pub(crate) fn copy(
    call: &Call<'_>,
    source: &OpenFile,
    target: &OpenFile,
    at: [Option<u64>; 2],
    count: usize,
) -> Result<usize, Errno> {
    if source.mount != target.mount || (count as u64) < SHARED_COPY_BYTES_MIN {
        return Ok(0);
    }
    let fs = call.file_system(source)?;
    let start = |file: &OpenFile, named: Option<u64>| match named {
        Some(offset) => Ok(offset),
        None => fs.shared().offset(file.description).map(|offset| offset.get()).map_err(errno),
    };
    let (from_offset, to_offset) = (start(source, at[0])?, start(target, at[1])?);
    let namespace = Namespace::new(fs, credentials::effective());
    let shared = namespace.copy_by_sharing(source.node, from_offset, target.node, to_offset, count as u64);
    if shared > 0 {
        maps::renew(call, target.mount, target.node, to_offset, to_offset + shared, maps::Change::Moved);
        for (file, named, offset) in [(source, at[0], from_offset), (target, at[1], to_offset)] {
            if named.is_none() {
                fs.shared().offset(file.description).map_err(errno)?.set(offset + shared);
            }
        }
    }
    Ok(shared as usize)
}
