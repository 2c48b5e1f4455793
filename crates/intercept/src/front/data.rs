//! Bytes: the read and write families, and what a descriptor must be open for.
//!
//! Reads and writes go straight from the program's memory to the file system; only vectors are copied first.

use super::call::{Answer, Call, done};
use super::table::OpenFile;
use super::{credentials, limits, maps};
use crate::dispatch::Outcome;
use crate::memory;
use crate::number::*;
use gannet_usermem::{Destination, Source, UserSlice};
use gannet_vfs::namespace::Namespace;
use gannet_vfs::{Errno, FileSystem, FileType, InodeFlags, WriteFlags, WritePosition};

const O_APPEND: u32 = 0o2000;
pub(crate) const O_NOATIME: u32 = 0o1000000;
pub(crate) const O_PATH: u32 = 0o10000000;
/// The kernel moves no more in one call.
pub(crate) const COUNT_MAX: usize = 0x7fff_f000;
const SEGMENTS_MAX: usize = 1024;
/// Most calls have no more, and need not pay for the room that 1024 take: clearing 16 KiB takes longer than the call.
const SEGMENTS_FEW: usize = 16;
/// Programs' addresses end here.
const ADDRESS_LIMIT: usize = 1 << 47;
const RWF_HIPRI: usize = 1;
const RWF_APPEND: usize = 0x10;
const RWF_NOAPPEND: usize = 0x20;
/// What is not known is refused; RWF_NOSIGNAL, which concerns pipes, is.
const RWF_KNOWN: usize = 0x3f | 0x100;

/// Whether an access mode allows reading. The fourth, which asks for both rights, allows neither.
#[inline]
pub(crate) fn reads(flags: u32) -> bool {
    flags & 1 == 0
}

/// Whether an access mode allows writing.
#[inline]
pub(crate) fn writes(flags: u32) -> bool {
    (flags + 1) & 2 != 0
}

/// O_PATH descriptors name a file and are good for nothing else.
pub(crate) fn check_not_path(file: &OpenFile) -> Result<(), Errno> {
    if file.flags & O_PATH != 0 { Err(Errno::BADF) } else { Ok(()) }
}

/// Whether a file may be read from.
#[inline]
pub(crate) fn check_readable(file: &OpenFile) -> Result<(), Errno> {
    if file.flags & O_PATH != 0 || !reads(file.flags) {
        return Err(Errno::BADF);
    }
    if file.file_type == FileType::Directory { Err(Errno::ISDIR) } else { Ok(()) }
}

/// Whether a file may be written to.
#[inline]
pub(crate) fn check_writable(file: &OpenFile) -> Result<(), Errno> {
    if file.flags & O_PATH != 0 || !writes(file.flags) { Err(Errno::BADF) } else { Ok(()) }
}

/// A description's status flags (`O_*`).
pub(crate) fn status(fs: &dyn FileSystem, file: &OpenFile) -> Result<u32, Errno> {
    fs.shared().info(file.description).map(|info| info.status).map_err(|error| error.errno())
}

/// Whether writes through a description append.
pub(crate) fn appends(fs: &dyn FileSystem, file: &OpenFile) -> Result<bool, Errno> {
    Ok(status(fs, file)? & O_APPEND != 0)
}

/// Runs `work` with the description's offset; what it returns first becomes the offset. Others that move it wait.
pub(crate) fn with_offset<T>(
    fs: &dyn FileSystem,
    file: &OpenFile,
    work: impl FnOnce(u64) -> (u64, Result<T, Errno>),
) -> Result<T, Errno> {
    let guard = fs.shared().offset(file.description).map_err(|error| error.errno())?;
    let (offset, result) = work(guard.get());
    guard.set(offset);
    result
}

/// Where a call begins.
enum Position {
    /// At the description's offset, which moves.
    Current,
    /// Here.
    At(u64),
}

/// What is wrong with flags (RWF_*) in themselves.
#[inline]
fn check_known(flags: usize) -> Result<(), Errno> {
    match flags {
        flags if flags & !RWF_KNOWN != 0 => Err(Errno::OPNOTSUPP),
        flags if flags & (RWF_APPEND | RWF_NOAPPEND) == RWF_APPEND | RWF_NOAPPEND => Err(Errno::INVAL),
        _ => Ok(()),
    }
}

/// Position and flags of a call of either family.
fn position_of(call: &Call<'_>) -> Result<(Position, usize), Errno> {
    let [_, _, _, offset, _, flags] = call.arguments;
    let at = |offset: usize| u64::try_from(offset as i64).map(Position::At).map_err(|_| Errno::INVAL);
    Ok(match call.number {
        PREAD64 | PWRITE64 | PREADV | PWRITEV => (at(offset)?, 0),
        PREADV2 | PWRITEV2 => {
            check_known(flags)?;
            (if offset == usize::MAX { Position::Current } else { at(offset)? }, flags)
        }
        _ => (Position::Current, 0),
    })
}

/// Nothing but the end of an append-only file is written to.
#[cold]
fn check_may_not_append(fs: &dyn FileSystem, file: &OpenFile) -> Result<(), Errno> {
    let flags = fs.permissions(file.node).map_err(|error| error.errno())?.flags;
    if flags.contains(InodeFlags::APPEND_ONLY) { Err(Errno::PERM) } else { Ok(()) }
}

/// What is wrong with the flags of a `preadv2` or `pwritev2` on a file.
pub(crate) fn check_flags(call: &Call<'_>, file: &OpenFile) -> Result<(), Errno> {
    let flags = call.arguments[5];
    check_known(flags)?;
    let fs = call.file_system(file)?;
    if flags & RWF_NOAPPEND != 0 && appends(fs, file)? { check_may_not_append(fs, file) } else { Ok(()) }
}

/// What is wrong with the addresses and the position of a `preadv2` or `pwritev2`, but not with what lies there.
pub(crate) fn check_range(call: &Call<'_>) -> Result<(), Errno> {
    match call.arguments[2] <= SEGMENTS_FEW {
        true => check_segments::<SEGMENTS_FEW>(call),
        false => check_segments::<SEGMENTS_MAX>(call),
    }
}

/// Apart, because of its large frame.
#[inline(never)]
fn check_segments<const ROOM: usize>(call: &Call<'_>) -> Result<(), Errno> {
    let mut segments = [UserSlice::EMPTY; ROOM];
    let count = read_segments(call, &mut segments)?;
    let bytes = segments[..count].iter().fold(0usize, |sum, part| sum.saturating_add(part.length()));
    let offset = i64::try_from(call.arguments[3]).map_err(|_| Errno::INVAL)?;
    match offset.checked_add_unsigned(bytes.min(COUNT_MAX) as u64) {
        Some(_) => Ok(()),
        None => Err(Errno::INVAL),
    }
}

/// What the kernel looks at before it looks at the descriptor's rights: the position, and where `count` bytes from it would end.
fn check_position(call: &Call<'_>, count: usize) -> Result<(), Errno> {
    let has_position = match call.number {
        PREAD64 | PWRITE64 | PREADV | PWRITEV => true,
        PREADV2 | PWRITEV2 => call.arguments[3] != usize::MAX,
        _ => false,
    };
    let offset = call.arguments[3] as i64;
    if has_position && (offset < 0 || offset.checked_add_unsigned(count as u64).is_none()) {
        return Err(Errno::INVAL);
    }
    Ok(())
}

/// Likewise of a position that the description keeps.
#[inline]
fn check_end(offset: u64, count: usize) -> Result<(), Errno> {
    if offset.checked_add(count as u64).is_none_or(|end| end > i64::MAX as u64) { Err(Errno::INVAL) } else { Ok(()) }
}

/// Reads into `list` the segments of a vectored call, which has room for them; how many there are.
fn read_segments(call: &Call<'_>, list: &mut [UserSlice]) -> Result<usize, Errno> {
    let [_, address, count, ..] = call.arguments;
    let list = list.get_mut(..count).ok_or(Errno::INVAL)?;
    for (index, segment) in list.iter_mut().enumerate() {
        let mut words = [0usize; 2];
        memory::read_value(address.wrapping_add(index * 16), &mut words).map_err(|_| Errno::FAULT)?;
        if words[1] > isize::MAX as usize {
            return Err(Errno::INVAL);
        }
        if words[0].checked_add(words[1]).is_none_or(|end| end > ADDRESS_LIMIT) {
            return Err(Errno::FAULT);
        }
        *segment = UserSlice::new(words[0], words[1].min(COUNT_MAX));
    }
    Ok(count)
}

/// `read`, `pread64`, `readv`, `preadv`, `preadv2`.
pub(crate) fn read(call: &Call<'_>) -> Answer {
    let [descriptor, address, count, ..] = call.arguments;
    let Some(file) = call.open_file(descriptor) else { return Ok(Outcome::Pass) };
    check_position(call, 0)?;
    if let Err(errno) = check_readable(&file) {
        return refuse_read(call, errno);
    }
    let fs = call.file_system(&file)?;
    if matches!(call.number, READ | PREAD64) {
        check_addresses(call)?;
        let slice = UserSlice::new(address, count.min(COUNT_MAX));
        // SAFETY: the program told the kernel to write there; nothing of ours lives in its memory.
        return read_into(call, &file, fs, unsafe { Destination::from_user(slice) });
    }
    match count <= SEGMENTS_FEW {
        true => read_vector::<SEGMENTS_FEW>(call, &file, fs),
        false => read_vector::<SEGMENTS_MAX>(call, &file, fs),
    }
}

/// A buffer that ends beyond all addresses is refused as a whole.
#[inline]
fn check_addresses(call: &Call<'_>) -> Result<(), Errno> {
    let [_, address, count, ..] = call.arguments;
    if address.checked_add(count).is_none_or(|end| end > ADDRESS_LIMIT) { Err(Errno::FAULT) } else { Ok(()) }
}

/// Whether a vectored call is about no bytes at all.
#[cold]
#[inline(never)]
fn is_empty_vector(call: &Call<'_>) -> Result<bool, Errno> {
    let mut segments = [UserSlice::EMPTY; SEGMENTS_MAX];
    let count = read_segments(call, &mut segments)?;
    Ok(segments[..count].iter().all(|part| part.is_empty()))
}

/// What cannot be read: of directories the kernel says so behind the addresses.
#[cold]
#[inline(never)]
fn refuse_read(call: &Call<'_>, errno: Errno) -> Answer {
    if errno == Errno::ISDIR && matches!(call.number, READ | PREAD64) {
        check_addresses(call)?;
        check_position(call, call.arguments[2])?;
    } else if errno == Errno::ISDIR && is_empty_vector(call)? {
        return done(0);
    } else if errno == Errno::ISDIR && call.number == PREADV2 && call.arguments[5] & !RWF_HIPRI != 0 {
        // Directories have no way to be read that knows them.
        return Err(Errno::OPNOTSUPP);
    }
    Err(errno)
}

/// Apart, because of its large frame.
#[inline(never)]
fn read_vector<const ROOM: usize>(call: &Call<'_>, file: &OpenFile, fs: &dyn FileSystem) -> Answer {
    let mut segments = [UserSlice::EMPTY; ROOM];
    let count = read_segments(call, &mut segments)?;
    // SAFETY: the program told the kernel to write there.
    let mut into = unsafe { Destination::from_user_segments(&segments[..count]) }.ok_or(Errno::INVAL)?;
    into.truncate(COUNT_MAX);
    read_into(call, file, fs, into)
}

fn read_into(call: &Call<'_>, file: &OpenFile, fs: &dyn FileSystem, mut into: Destination<'_>) -> Answer {
    if into.is_empty() && !matches!(call.number, READ | PREAD64) {
        return done(0);
    }
    check_position(call, into.remaining())?;
    let read = |offset, into: &mut Destination<'_>| fs.read(file.node, offset, into).map_err(|error| error.errno());
    let count = match position_of(call)?.0 {
        Position::At(offset) => read(offset, &mut into)?,
        Position::Current => with_offset(fs, file, |offset| {
            let result = check_end(offset, into.remaining()).and_then(|()| read(offset, &mut into));
            (offset + result.map_or(0, |count| count as u64), result)
        })?,
    };
    note_access(fs, file);
    done(count)
}

/// What is read moves the access time, by the file system's rules.
#[inline]
pub(crate) fn note_access(fs: &dyn FileSystem, file: &OpenFile) {
    // A descriptor that ever was one of those says so; whether it still is, the description knows.
    let quiet = file.flags & O_NOATIME != 0
        && fs.shared().info(file.description).is_ok_and(|info| info.status & O_NOATIME != 0);
    if !quiet {
        fs.note_access(file.node);
    }
}

/// `write`, `pwrite64`, `writev`, `pwritev`, `pwritev2`.
pub(crate) fn write(call: &Call<'_>) -> Answer {
    let [descriptor, address, count, ..] = call.arguments;
    let Some(file) = call.open_file(descriptor) else { return Ok(Outcome::Pass) };
    check_position(call, 0)?;
    check_writable(&file)?;
    let fs = call.file_system(&file)?;
    let status = status(fs, &file)?;
    if matches!(call.number, WRITE | PWRITE64) {
        check_addresses(call)?;
        let slice = UserSlice::new(address, count.min(COUNT_MAX));
        // SAFETY: the program told the kernel to read there.
        return write_from(call, &file, fs, status, unsafe { Source::from_user(slice) });
    }
    match count <= SEGMENTS_FEW {
        true => write_vector::<SEGMENTS_FEW>(call, &file, fs, status),
        false => write_vector::<SEGMENTS_MAX>(call, &file, fs, status),
    }
}

/// Apart, because of its large frame.
#[inline(never)]
fn write_vector<const ROOM: usize>(call: &Call<'_>, file: &OpenFile, fs: &dyn FileSystem, status: u32) -> Answer {
    let mut segments = [UserSlice::EMPTY; ROOM];
    let count = read_segments(call, &mut segments)?;
    // SAFETY: the program told the kernel to read there.
    let mut from = unsafe { Source::from_user_segments(&segments[..count]) }.ok_or(Errno::INVAL)?;
    from.truncate(COUNT_MAX);
    write_from(call, file, fs, status, from)
}

fn write_from(call: &Call<'_>, file: &OpenFile, fs: &dyn FileSystem, status: u32, mut from: Source<'_>) -> Answer {
    if from.is_empty() {
        return done(0);
    }
    check_position(call, from.remaining())?;
    let (position, flags) = position_of(call)?;
    let (appends, how) = (status & O_APPEND != 0, WriteFlags::of_call(status, flags));
    if appends && flags & RWF_NOAPPEND != 0 {
        check_may_not_append(fs, file)?;
    }
    let appends = (appends && flags & RWF_NOAPPEND == 0) || flags & RWF_APPEND != 0;
    let write = |position, from: &mut Source<'_>| {
        before_change(fs, file)?;
        fs.write(file.node, position, from, how).map_err(|error| error.errno())
    };
    let size = || fs.attributes(file.node).map(|all| all.size_bytes).map_err(|error| error.errno());
    let limited = |from: &mut Source<'_>, offset| {
        let allowed = limits::allowed(file.file_type, from.remaining(), || if appends { size() } else { Ok(offset) })?;
        from.truncate(allowed);
        Ok(())
    };
    let written = match position {
        // Linux appends then, whatever the offset says.
        Position::At(offset) => {
            limited(&mut from, offset)?;
            write(if appends { WritePosition::Append } else { WritePosition::At(offset) }, &mut from)?
        }
        Position::Current => with_offset(fs, file, |offset| {
            let position = if appends { WritePosition::Append } else { WritePosition::At(offset) };
            let result = check_end(offset, from.remaining())
                .and_then(|()| limited(&mut from, offset))
                .and_then(|()| write(position, &mut from));
            (result.map_or(offset, |written| written.offset_bytes + written.count_bytes as u64), result)
        })?,
    };
    let end = written.offset_bytes + written.count_bytes as u64;
    maps::renew(call, file.mount, file.node, written.offset_bytes, end, maps::Change::Written);
    done(written.count_bytes)
}

/// Before bytes of a file change: what that does to its set-id bits.
#[inline]
pub(crate) fn before_change(fs: &dyn FileSystem, file: &OpenFile) -> Result<(), Errno> {
    Namespace::new(fs, credentials::effective()).before_change(file.node).map_err(|error| error.errno())
}
