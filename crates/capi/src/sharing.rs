//! Files that share blocks, copies that share what they can, and where a file's bytes lie.

use crate::call::{run, run_plain};
use crate::memory::{Input, Output};
use crate::table::OpenFile;
use crate::volume::Volume;
use gannet_vfs::usermem::{Destination, Source};
use gannet_vfs::{Errno, Error, ExtentKind, FileType, Result, WriteFlags, WritePosition};
use std::ffi::c_int;

/// Bytes that one call moves at most, as the kernel has it.
const COUNT_MAX: u64 = 0x7fff_f000;
/// A copy that shares nothing goes through a buffer of this size.
const BUFFER_BYTES: usize = 256 << 10;
const OVERLAP: Error = Error::because(Errno::INVAL, "ranges of one file that overlap");

/// A run of a file's blocks.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FileExtent {
    /// Where in the file, in bytes.
    pub file_offset: u64,
    /// Where in the medium, in bytes.
    pub medium_offset: u64,
    /// How long, in bytes.
    pub length: u64,
    /// 1 if other files share the blocks, else 0.
    pub shared: u32,
    /// 0.
    pub reserved: u32,
}

/// One end of a copy: a file, and where in it if not at its own offset.
struct End<'a> {
    file: &'a OpenFile,
    at: Option<u64>,
}

impl Volume {
    /// Copies up to `count` bytes between two ends that were checked; returns how many.
    fn copy(&self, from: &End<'_>, to: &End<'_>, count: u64) -> Result<u64> {
        let start = |end: &End<'_>| match end.at {
            Some(offset) => Ok(offset),
            None => self.fs().shared().offset(end.file.description).map(|guard| guard.get()),
        };
        let (from_offset, to_offset) = (start(from)?, start(to)?);
        let size = self.fs().attributes(from.file.node)?.size_bytes;
        let count = count.min(COUNT_MAX).min(size.saturating_sub(from_offset));
        if from.file.node == to.file.node && from_offset.abs_diff(to_offset) < count {
            return Err(OVERLAP);
        }
        let namespace = self.namespace();
        namespace.check_write_open(to.file.node, true)?;
        let mut moved = namespace.copy_by_sharing(from.file.node, from_offset, to.file.node, to_offset, count);
        let mut result = Ok(());
        if moved < count {
            namespace.before_change(to.file.node)?;
            let mut room = vec![0; BUFFER_BYTES.min((count - moved) as usize)];
            while moved < count {
                match self.copy_piece(
                    from.file,
                    from_offset + moved,
                    to.file,
                    to_offset + moved,
                    count - moved,
                    &mut room,
                ) {
                    Ok(0) => break,
                    Ok(done) => moved += done,
                    Err(error) => {
                        result = Err(error);
                        break;
                    }
                }
            }
        }
        // What was copied is told before what stopped it.
        if moved == 0 {
            result?;
        }
        for (end, offset) in [(from, from_offset), (to, to_offset)] {
            if end.at.is_none() {
                self.fs().shared().offset(end.file.description)?.set(offset + moved);
            }
        }
        self.note_access(from.file);
        Ok(moved)
    }

    /// Copies what fits into `room`.
    fn copy_piece(
        &self,
        from: &OpenFile,
        from_offset: u64,
        to: &OpenFile,
        to_offset: u64,
        count: u64,
        room: &mut [u8],
    ) -> Result<u64> {
        let room = &mut room[..BUFFER_BYTES.min(count as usize)];
        let read = self.fs().read(from.node, from_offset, &mut Destination::from_slice(room))?;
        if read == 0 {
            return Ok(0);
        }
        let mut source = Source::from_slice(&room[..read]);
        let how = WriteFlags::of_status(self.fs().shared().info(to.description)?.status);
        let written = self.fs().write(to.node, WritePosition::At(to_offset), &mut source, how)?;
        Ok(written.count_bytes as u64)
    }
}

/// An offset that a copy begins at, if one is given.
fn offset_at(place: &Input<i64>) -> Result<Option<u64>> {
    if place.is_null() {
        return Ok(None);
    }
    let offset = place.get(0)?;
    u64::try_from(offset).map(Some).map_err(|_| Error::because(Errno::OVERFLOW, "a negative offset"))
}

fn check_not_appending(volume: &Volume, target: &OpenFile) -> Result<()> {
    if volume.fs().shared().info(target.description)?.status & libc::O_APPEND as u32 != 0 {
        return Err(Error::because(Errno::BADF, "opened to append, which has no place to copy to"));
    }
    Ok(())
}

/// Makes a range of `to` share the blocks of `from`: nothing is copied until one of them is written to. Both are open files of
/// the volume, `from` for reading and `to` for writing. Offsets are multiples of 4096, and so is the length unless the range
/// ends where `from` ends and `to` then ends; length 0 is all up to the end of `from`. After a crash, ranges of few pieces (240)
/// are shared or not; longer ones may be shared in part.
///
/// Returns 0. -EINVAL for ranges that do not fit these rules, or overlap in one file; -EBADF for a target with `O_APPEND`; -EOPNOTSUPP while
/// either range is mapped by somebody.
///
/// # Safety
/// `volume` is attached or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gannet_clone_range(
    volume: *mut Volume,
    from: c_int,
    from_offset: u64,
    to: c_int,
    to_offset: u64,
    length: u64,
) -> c_int {
    let clone = |volume: &Volume| {
        let source = volume.with_open(from, |file| file.check_readable().map(|()| file.node))?;
        let target = volume.with_open(to, |file| file.check_writable().map(|()| *file))?;
        check_not_appending(volume, &target)?;
        volume.namespace().clone_range(source, from_offset, target.node, to_offset, length)
    };
    // SAFETY: the caller's promise.
    unsafe { run_plain("gannet_clone_range", volume, clone) }
}

/// Makes a range of `to` share the blocks of `from` if both hold the same bytes; nothing else changes, times included. Offsets and length are
/// as for `gannet_clone_range`, and both ranges lie within their files; what is less than a block at the end, and not the end of both files, is
/// neither compared nor shared. `to` need not be open for writing if it may be written to.
///
/// Returns 1 if they held the same and share blocks now, 0 if they differ. -EINVAL for ranges that do not fit these rules.
///
/// # Safety
/// `volume` is attached or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gannet_dedupe_range(
    volume: *mut Volume,
    from: c_int,
    from_offset: u64,
    to: c_int,
    to_offset: u64,
    length: u64,
) -> c_int {
    let dedupe = |volume: &Volume| {
        let source = volume.with_open(from, |file| file.check_readable().map(|()| file.node))?;
        let target = volume.with_open(to, |file| Ok(file.node))?;
        let beyond = Error::because(Errno::INVAL, "the range begins behind the end of the source");
        let length = match length {
            0 => volume.fs().attributes(source)?.size_bytes.checked_sub(from_offset).ok_or(beyond)?,
            length => length,
        };
        volume.namespace().dedupe_range(source, from_offset, target, to_offset, length).map(i64::from)
    };
    // SAFETY: the caller's promise.
    unsafe { run("gannet_dedupe_range", volume, dedupe) as c_int }
}

/// Copies `count` bytes between two open files of the volume, as `copy_file_range(2)`: whole blocks of 64 KiB and more are shared instead, where that can be.
/// With NULL for an offset the file's own is used and moved; else what stands there is used, and moved by what was copied. `flags` is 0.
///
/// Returns the number of bytes, fewer than `count` only at the end of `from` or when the volume filled up. -EINVAL for ranges of one file that
/// overlap, -EBADF for a target with `O_APPEND`.
///
/// # Safety
/// `volume` is attached or NULL; the offsets are NULL or can be read and written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gannet_copy_file_range(
    volume: *mut Volume,
    from: c_int,
    from_offset: *mut i64,
    to: c_int,
    to_offset: *mut i64,
    count: usize,
    flags: u32,
) -> i64 {
    // SAFETY: the caller's promise.
    let given = unsafe { [Input::new(from_offset.cast_const()), Input::new(to_offset.cast_const())] };
    // SAFETY: the caller's promise.
    let told = unsafe { [Output::new(from_offset), Output::new(to_offset)] };
    let copy = |volume: &Volume| {
        if flags != 0 {
            return Err(Error::because(Errno::INVAL, "flags that are not known"));
        }
        let source = volume.with_open(from, |file| file.check_readable().map(|()| *file))?;
        let target = volume.with_open(to, |file| file.check_writable().map(|()| *file))?;
        if [source, target].iter().any(|file| file.file_type != FileType::Regular) {
            return Err(Error::because(Errno::INVAL, "only regular files are copied between"));
        }
        check_not_appending(volume, &target)?;
        let at = [offset_at(&given[0])?, offset_at(&given[1])?];
        let (source, target) = (End { file: &source, at: at[0] }, End { file: &target, at: at[1] });
        let moved = volume.copy(&source, &target, count as u64)?;
        for (place, offset) in told.iter().zip(at) {
            if let Some(offset) = offset {
                place.put(&((offset + moved) as i64))?;
            }
        }
        Ok(moved as i64)
    };
    // SAFETY: the caller's promise.
    unsafe { run("gannet_copy_file_range", volume, copy) }
}

/// Tells where the bytes of a range of a file lie, in ascending order, as `FS_IOC_FIEMAP` does; holes are left out. Nothing keeps them there: to use
/// them in place there is `gannet_map`. With `capacity` 0 only their number is told.
///
/// Returns the number of extents, at most `capacity` if that is not 0; the rest is found behind the last one.
///
/// # Safety
/// `volume` is attached or NULL, `extents` has room for `capacity` of them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gannet_extents(
    volume: *mut Volume,
    descriptor: c_int,
    offset: u64,
    length: u64,
    extents: *mut FileExtent,
    capacity: usize,
) -> i64 {
    // SAFETY: the caller's promise.
    let into = unsafe { Output::new(extents) };
    let tell = |volume: &Volume| {
        volume.with_open(descriptor, |file| {
            let (mut count, mut result) = (0, Ok(()));
            volume.fs().extents(file.node, offset, length, &mut |extent| {
                if capacity > 0 {
                    let told = FileExtent {
                        file_offset: extent.file_offset_bytes,
                        medium_offset: extent.medium_offset_bytes,
                        length: extent.length_bytes,
                        shared: u32::from(extent.kind == ExtentKind::Shared),
                        reserved: 0,
                    };
                    result = into.set(count, &told);
                }
                count += 1;
                result.is_ok() && count != capacity
            })?;
            result.map(|()| count as i64)
        })
    };
    // SAFETY: the caller's promise.
    unsafe { run("gannet_extents", volume, tell) }
}
