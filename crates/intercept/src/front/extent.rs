//! Where a file's bytes are and how many: seeking, truncating, allocating, syncing, advice.

use super::call::{Answer, Call, done};
use super::data::{O_PATH, check_not_path, check_readable, check_writable, with_offset};
use super::{credentials, limits, maps};
use crate::dispatch::Outcome;
use crate::memory;
use crate::number::*;
use gannet_vfs::namespace::Namespace;
use gannet_vfs::{AllocateMode, Errno, FileSystem, FileType, NodeId, SeekTarget, SyncScope};

/// `lseek`.
pub(crate) fn seek(call: &Call<'_>) -> Answer {
    let [descriptor, offset, whence, ..] = call.arguments;
    let Some(file) = call.open_file(descriptor) else { return Ok(Outcome::Pass) };
    if file.flags & O_PATH != 0 {
        return Err(Errno::BADF);
    }
    let fs = call.file_system(&file)?;
    let node = file.node;
    let wanted = offset as i64;
    let target = with_offset(fs, &file, |current| {
        let target = (|| {
            let base = match whence {
                0 => 0,
                1 => current as i64,
                2 => fs.attributes(node).map_err(|error| error.errno())?.size_bytes as i64,
                3 | 4 if file.file_type != FileType::Regular => return Err(Errno::INVAL),
                3 | 4 => {
                    let from = u64::try_from(wanted).map_err(|_| Errno::NXIO)?;
                    let what = if whence == 3 { SeekTarget::Data } else { SeekTarget::Hole };
                    return fs.seek(node, what, from).map_err(|error| error.errno());
                }
                _ => return Err(Errno::INVAL),
            };
            // The kernel's sum wraps.
            u64::try_from(base.wrapping_add(wanted)).map_err(|_| Errno::INVAL)
        })();
        (target.unwrap_or(current), target)
    })?;
    done(target as usize)
}

/// `fsync`, `fdatasync`, `sync_file_range`, `syncfs`.
pub(crate) fn sync(call: &Call<'_>) -> Answer {
    let Some(file) = call.open_file(call.arguments[0]) else { return Ok(Outcome::Pass) };
    if file.flags & O_PATH != 0 {
        return Err(Errno::BADF);
    }
    if call.number == SYNC_FILE_RANGE {
        const KNOWN: usize = 7;
        let [_, offset, length, flags, ..] = call.arguments;
        let end = (offset as i64).checked_add(length as i64);
        if flags as u32 as usize & !KNOWN != 0 || (offset as i64) < 0 || end.is_none_or(|end| end < offset as i64) {
            return Err(Errno::INVAL);
        }
    }
    let fs = call.file_system(&file)?;
    let result = match call.number {
        SYNCFS => fs.sync_all(),
        FSYNC => fs.sync(file.node, SyncScope::DataAndAttributes),
        _ => fs.sync(file.node, SyncScope::Data),
    };
    result.map_err(|error| error.errno())?;
    done(0)
}

/// `ftruncate`.
pub(crate) fn truncate(call: &Call<'_>) -> Answer {
    let [descriptor, size, ..] = call.arguments;
    let Some(file) = call.open_file(descriptor) else { return Ok(Outcome::Pass) };
    let size = u64::try_from(size as i64).map_err(|_| Errno::INVAL)?;
    check_not_path(&file)?;
    check_writable(&file).map_err(|_| Errno::INVAL)?;
    let fs = call.file_system(&file)?;
    limits::check_size(size, || fs.attributes(file.node).map(|all| all.size_bytes).map_err(|error| error.errno()))?;
    let namespace = Namespace::new(fs, credentials::effective());
    cut(call, (file.mount, file.node), fs, size, || namespace.truncate_open(file.node, size))
}

/// Changes a file's size to `size` by `work`; what is mapped of it shows that.
pub(crate) fn cut(
    call: &Call<'_>,
    (mount, node): (usize, NodeId),
    fs: &dyn FileSystem,
    size: u64,
    work: impl FnOnce() -> gannet_vfs::Result<()>,
) -> Answer {
    let before = if maps::any() { fs.attributes(node).map_or(0, |all| all.size_bytes) } else { size };
    work().map_err(|error| error.errno())?;
    if before != size {
        maps::renew(call, mount, node, before.min(size), u64::MAX, maps::Change::Cut);
    }
    done(0)
}

/// `fadvise64`, `readahead`: advice that nothing need follow.
pub(crate) fn advise(call: &Call<'_>) -> Answer {
    const ADVICE_MAX: usize = 5;
    let [descriptor, _, length, advice, ..] = call.arguments;
    let Some(file) = call.open_file(descriptor) else { return Ok(Outcome::Pass) };
    check_not_path(&file)?;
    let allowed = match call.number {
        READAHEAD => {
            check_readable(&file).map_err(|errno| if errno == Errno::ISDIR { Errno::INVAL } else { errno })?;
            file.file_type == FileType::Regular && length as i64 >= 0
        }
        _ => advice <= ADVICE_MAX && length as i64 >= 0,
    };
    if allowed { done(0) } else { Err(Errno::INVAL) }
}

/// `fallocate`.
pub(crate) fn allocate(call: &Call<'_>) -> Answer {
    let [descriptor, mode, offset, length, ..] = call.arguments;
    let Some(file) = call.open_file(descriptor) else { return Ok(Outcome::Pass) };
    // In the kernel's order.
    check_not_path(&file)?;
    let offset = u64::try_from(offset as i64).map_err(|_| Errno::INVAL)?;
    let length = u64::try_from(length as i64).ok().filter(|length| *length > 0).ok_or(Errno::INVAL)?;
    let mode = u32::try_from(mode).ok().and_then(AllocateMode::of_flags).ok_or(Errno::OPNOTSUPP)?;
    check_writable(&file)?;
    match file.file_type {
        FileType::Regular => {}
        FileType::Directory => return Err(Errno::ISDIR),
        _ => return Err(Errno::NODEV),
    }
    if offset.checked_add(length).is_none_or(|end| end > i64::MAX as u64) {
        return Err(Errno::FBIG);
    }
    let fs = call.file_system(&file)?;
    let namespace = Namespace::new(fs, credentials::effective());
    const KEEP_SIZE: usize = 1;
    if call.arguments[1] & KEEP_SIZE == 0 && mode != AllocateMode::Collapse {
        limits::check_size(offset + length, || {
            fs.attributes(file.node).map(|all| all.size_bytes).map_err(|error| error.errno())
        })?;
    }
    namespace.allocate_open(file.node, mode, offset, length).map_err(|error| error.errno())?;
    let ends = matches!(mode, AllocateMode::Collapse | AllocateMode::Insert | AllocateMode::Extend);
    let end = if ends { u64::MAX } else { offset + length };
    maps::renew(call, file.mount, file.node, offset, end, maps::Change::Moved);
    done(0)
}

/// Makes a hole of a range of a file that is mapped writably, for a call that names the map.
pub(crate) fn punch(call: &Call<'_>, mount: usize, node: NodeId, offset: u64, length: u64) -> Result<(), Errno> {
    let fs = call.front.file_system(mount)?;
    let namespace = Namespace::new(fs, credentials::effective());
    namespace.allocate_open(node, AllocateMode::PunchHole, offset, length).map_err(|error| error.errno())?;
    maps::renew(call, mount, node, offset, offset + length, maps::Change::Moved);
    Ok(())
}

/// `cachestat`: what a volume's file has is in no cache.
pub(crate) fn cache_statistics(call: &Call<'_>) -> Answer {
    let [descriptor, range, address, flags, ..] = call.arguments;
    let Some(file) = call.open_file(descriptor) else { return Ok(Outcome::Pass) };
    check_not_path(&file)?;
    memory::read_value(range, &mut [0u64; 2]).map_err(|_| Errno::FAULT)?;
    if flags as u32 != 0 {
        return Err(Errno::INVAL);
    }
    memory::write_value(address, &[0u64; 5]).map_err(|_| Errno::FAULT)?;
    done(0)
}
