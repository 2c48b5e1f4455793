//! Bytes: the read and write families, seeking, truncating, syncing, and transfers between descriptors.

use super::call::{Answer, Call, done};
use super::table::OpenFile;
use super::{credentials, limits};
use crate::dispatch::Outcome;
use crate::memory;
use crate::number::*;
use crate::raw::{is_error, syscall};
use gannet_usermem::{Destination, Source, UserSlice};
use gannet_vfs::namespace::{Capabilities, Namespace};
use gannet_vfs::{AllocateMode, Errno, FileSystem, FileType, SeekTarget, SyncScope, WriteFlags, WritePosition};

const O_ACCMODE: u32 = 3;
const O_WRONLY: u32 = 1;
const O_APPEND: u32 = 0o2000;
const O_PATH: u32 = 0o10000000;
/// The kernel moves no more in one call.
const COUNT_MAX: usize = 0x7fff_f000;
const SEGMENTS_MAX: usize = 1024;
/// Programs' addresses end here.
const ADDRESS_LIMIT: usize = 1 << 47;
const RWF_APPEND: usize = 0x10;
const RWF_KNOWN: usize = 0x3f;

/// O_PATH descriptors name a file and are good for nothing else.
pub(crate) fn check_not_path(file: &OpenFile) -> Result<(), Errno> {
    if file.flags & O_PATH != 0 { Err(Errno::BADF) } else { Ok(()) }
}

/// Whether a file may be read from.
#[inline]
pub(crate) fn check_readable(file: &OpenFile) -> Result<(), Errno> {
    if file.flags & O_PATH != 0 || file.flags & O_ACCMODE == O_WRONLY {
        return Err(Errno::BADF);
    }
    if file.file_type == FileType::Directory { Err(Errno::ISDIR) } else { Ok(()) }
}

/// Whether a file may be written to.
#[inline]
pub(crate) fn check_writable(file: &OpenFile) -> Result<(), Errno> {
    if file.flags & O_PATH != 0 || file.flags & O_ACCMODE == 0 { Err(Errno::BADF) } else { Ok(()) }
}

/// Whether writes through a description append.
fn appends(fs: &dyn FileSystem, file: &OpenFile) -> Result<bool, Errno> {
    let info = fs.shared().info(file.description).map_err(|error| error.errno())?;
    Ok(info.status & O_APPEND != 0)
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

/// Position and flags of a call of either family.
fn position_of(call: &Call<'_>) -> Result<(Position, usize), Errno> {
    let [_, _, _, offset, _, flags] = call.arguments;
    let at = |offset: usize| u64::try_from(offset as i64).map(Position::At).map_err(|_| Errno::INVAL);
    Ok(match call.number {
        PREAD64 | PWRITE64 | PREADV | PWRITEV => (at(offset)?, 0),
        PREADV2 | PWRITEV2 => {
            if flags & !RWF_KNOWN != 0 {
                return Err(Errno::OPNOTSUPP);
            }
            (if offset == usize::MAX { Position::Current } else { at(offset)? }, flags)
        }
        _ => (Position::Current, 0),
    })
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

/// Room for the segments of a vectored call.
struct Segments {
    list: [UserSlice; SEGMENTS_MAX],
    count: usize,
}

impl Segments {
    /// Reads what the call passes: one buffer, or a vector of them.
    fn read(call: &Call<'_>) -> Result<Segments, Errno> {
        let mut segments = Segments { list: [UserSlice::EMPTY; SEGMENTS_MAX], count: 0 };
        let [_, address, count, ..] = call.arguments;
        if count > SEGMENTS_MAX {
            return Err(Errno::INVAL);
        }
        for index in 0..count {
            let mut words = [0usize; 2];
            memory::read_value(address.wrapping_add(index * 16), &mut words).map_err(|_| Errno::FAULT)?;
            if words[1] > isize::MAX as usize {
                return Err(Errno::INVAL);
            }
            if words[0].checked_add(words[1]).is_none_or(|end| end > ADDRESS_LIMIT) {
                return Err(Errno::FAULT);
            }
            segments.list[index] = UserSlice::new(words[0], words[1].min(COUNT_MAX));
        }
        segments.count = count;
        Ok(segments)
    }

    fn used(&self) -> &[UserSlice] {
        &self.list[..self.count]
    }
}

/// `read`, `pread64`, `readv`, `preadv`, `preadv2`.
pub(crate) fn read(call: &Call<'_>) -> Answer {
    let [descriptor, address, count, ..] = call.arguments;
    let Some(file) = call.open_file(descriptor) else { return Ok(Outcome::Pass) };
    check_position(call, 0)?;
    check_readable(&file)?;
    let fs = call.file_system(&file)?;
    if matches!(call.number, READ | PREAD64) {
        let slice = UserSlice::new(address, count.min(COUNT_MAX));
        // SAFETY: the program told the kernel to write there; nothing of ours lives in its memory.
        return read_into(call, &file, fs, unsafe { Destination::from_user(slice) });
    }
    read_vector(call, &file, fs)
}

/// Apart, because of its large frame.
#[inline(never)]
fn read_vector(call: &Call<'_>, file: &OpenFile, fs: &dyn FileSystem) -> Answer {
    let segments = Segments::read(call)?;
    // SAFETY: the program told the kernel to write there.
    let mut into = unsafe { Destination::from_user_segments(segments.used()) }.ok_or(Errno::INVAL)?;
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
            let result = read(offset, &mut into);
            (offset + result.map_or(0, |count| count as u64), result)
        })?,
    };
    note_access(fs, file);
    done(count)
}

/// What is read moves the access time, by the file system's rules.
#[inline]
pub(crate) fn note_access(fs: &dyn FileSystem, file: &OpenFile) {
    const O_NOATIME: u32 = 0o1000000;
    if file.flags & O_NOATIME == 0 {
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
    let appends = appends(fs, &file)?;
    if matches!(call.number, WRITE | PWRITE64) {
        let slice = UserSlice::new(address, count.min(COUNT_MAX));
        // SAFETY: the program told the kernel to read there.
        return write_from(call, &file, fs, appends, unsafe { Source::from_user(slice) });
    }
    write_vector(call, &file, fs, appends)
}

/// Apart, because of its large frame.
#[inline(never)]
fn write_vector(call: &Call<'_>, file: &OpenFile, fs: &dyn FileSystem, appends: bool) -> Answer {
    let segments = Segments::read(call)?;
    // SAFETY: the program told the kernel to read there.
    let mut from = unsafe { Source::from_user_segments(segments.used()) }.ok_or(Errno::INVAL)?;
    from.truncate(COUNT_MAX);
    write_from(call, file, fs, appends, from)
}

fn write_from(call: &Call<'_>, file: &OpenFile, fs: &dyn FileSystem, appends: bool, mut from: Source<'_>) -> Answer {
    if from.is_empty() {
        return done(0);
    }
    check_position(call, from.remaining())?;
    let (position, flags) = position_of(call)?;
    let appends = appends || flags & RWF_APPEND != 0;
    let write_flags = write_flags();
    let write = |position, from: &mut Source<'_>| {
        fs.write(file.node, position, from, write_flags).map_err(|error| error.errno())
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
            let result = limited(&mut from, offset).and_then(|()| write(position, &mut from));
            (result.map_or(offset, |written| written.offset_bytes + written.count_bytes as u64), result)
        })?,
    };
    done(written.count_bytes)
}

fn write_flags() -> WriteFlags {
    if credentials::effective().may(Capabilities::FSETID) { WriteFlags::empty() } else { WriteFlags::DROP_SET_ID }
}

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
    namespace.truncate_open(file.node, size).map_err(|error| error.errno())?;
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
            file.file_type == FileType::Regular
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
    let mode = match mode {
        0 => AllocateMode::Extend,
        1 => AllocateMode::KeepSize,
        3 => AllocateMode::PunchHole,
        0x10 => AllocateMode::Zero,
        0x11 => AllocateMode::ZeroKeepSize,
        0x08 => AllocateMode::Collapse,
        0x20 => AllocateMode::Insert,
        0x40 | 0x41 => AllocateMode::Unshare,
        _ => return Err(Errno::OPNOTSUPP),
    };
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
    if !matches!(mode, AllocateMode::PunchHole | AllocateMode::Collapse) {
        limits::check_size(offset + length, || {
            fs.attributes(file.node).map(|all| all.size_bytes).map_err(|error| error.errno())
        })?;
    }
    fs.allocate(file.node, mode, offset, length).map_err(|error| error.errno())?;
    done(0)
}

/// One end of a transfer: ours, or a descriptor of the host.
enum End {
    Ours(OpenFile),
    Host(usize),
}

/// `copy_file_range` within a file is between ranges that do not overlap.
fn check_apart(
    call: &Call<'_>,
    source: &End,
    target: &End,
    offsets: [Option<u64>; 2],
    count: usize,
) -> Result<(), Errno> {
    let (End::Ours(source), End::Ours(target)) = (source, target) else { return Ok(()) };
    if source.node != target.node || source.mount != target.mount {
        return Ok(());
    }
    let fs = call.file_system(source)?;
    let at = |offset: Option<u64>, file: &OpenFile| match offset {
        Some(offset) => Ok(offset),
        None => fs.shared().offset(file.description).map(|guard| guard.get()).map_err(|error| error.errno()),
    };
    let (from, to) = (at(offsets[0], source)?, at(offsets[1], target)?);
    let size = fs.attributes(source.node).map_err(|error| error.errno())?.size_bytes;
    let count = (count as u64).min(size.saturating_sub(from));
    if from.abs_diff(to) < count { Err(Errno::INVAL) } else { Ok(()) }
}

/// Which ends a call takes: `sendfile` from files, `copy_file_range` between files, `splice` from or to a pipe.
fn check_ends(call: &Call<'_>, source: &End, target: &End, offsets: [usize; 2], flags: usize) -> Result<(), Errno> {
    const TYPE: u32 = 0o170000;
    const PIPE: u32 = 0o010000;
    const DIRECTORY: u32 = 0o040000;
    const REGULAR: u32 = 0o100000;
    const BLOCK_DEVICE: u32 = 0o060000;
    const SPLICE_FLAGS: usize = 0xf;
    const SPLICE_NONBLOCKING: usize = 2;
    let kind = |end: &End| match end {
        End::Ours(file) => Ok((file.file_type as u32) << 12),
        End::Host(descriptor) => {
            let mut status = [0u64; 18];
            // SAFETY: room for struct stat.
            host_result(unsafe { syscall(FSTAT, [*descriptor, status.as_mut_ptr() as usize]) })?;
            Ok(status[3] as u32 & TYPE)
        }
    };
    let (from, to) = (kind(source)?, kind(target)?);
    match call.number {
        SENDFILE if from == DIRECTORY || !matches!(from, REGULAR | BLOCK_DEVICE) => Err(Errno::INVAL),
        COPY_FILE_RANGE if from == DIRECTORY || to == DIRECTORY => Err(Errno::ISDIR),
        COPY_FILE_RANGE if from != REGULAR || to != REGULAR || flags as u32 != 0 => Err(Errno::INVAL),
        SPLICE if flags as u32 as usize & !SPLICE_FLAGS != 0 || from != PIPE && to != PIPE => Err(Errno::INVAL),
        SPLICE if from == PIPE && offsets[0] != 0 || to == PIPE && offsets[1] != 0 => Err(Errno::SPIPE),
        SPLICE if flags & SPLICE_NONBLOCKING != 0 => {
            const POLLIN: u64 = 1;
            let End::Host(descriptor) = source else { return Ok(()) };
            let mut poll = [*descriptor as u64 & 0xffff_ffff | POLLIN << 32];
            // SAFETY: one struct pollfd.
            let ready = unsafe { syscall(POLL, [poll.as_mut_ptr() as usize, 1, 0]) };
            if ready == 0 { Err(Errno::AGAIN) } else { Ok(()) }
        }
        _ => Ok(()),
    }
}

/// `sendfile`, `copy_file_range`, `splice`, when one end or both are ours: reads and writes through `buffer`.
pub(crate) fn transfer(call: &Call<'_>, buffer: &mut [u8]) -> Answer {
    let [a, b, c, d, e, _] = call.arguments;
    let (from, from_offset, to, to_offset, count) = match call.number {
        SENDFILE => (b, c, a, 0, d),
        // copy_file_range and splice: from, its offset, to, its offset, count.
        _ => (a, b, c, d, e),
    };
    if !call.is_ours(from) && !call.is_ours(to) {
        return Ok(Outcome::Pass);
    }
    let end = |descriptor| call.open_file(descriptor).map_or(End::Host(descriptor), End::Ours);
    let (source, target) = (end(from), end(to));
    check_ends(call, &source, &target, [from_offset, to_offset], call.arguments[5])?;
    if let End::Ours(file) = &source {
        check_readable(file)?;
    }
    if let End::Ours(file) = &target {
        check_writable(file)?;
        if appends(call.file_system(file)?, file)? {
            return Err(if call.number == COPY_FILE_RANGE { Errno::BADF } else { Errno::INVAL });
        }
    }
    let mut offsets = [None, None];
    for (slot, address) in offsets.iter_mut().zip([from_offset, to_offset]) {
        if address != 0 {
            let mut value = 0i64;
            memory::read_value(address, &mut value).map_err(|_| Errno::FAULT)?;
            let negative = if call.number == COPY_FILE_RANGE { Errno::OVERFLOW } else { Errno::INVAL };
            *slot = Some(u64::try_from(value).map_err(|_| negative)?);
        }
    }
    let count = count.min(COUNT_MAX);
    if call.number == COPY_FILE_RANGE {
        check_apart(call, &source, &target, offsets, count)?;
    }
    let mut moved = match (&source, &target) {
        (End::Ours(source), End::Ours(target)) if call.number == COPY_FILE_RANGE => {
            super::sharing::copy(call, source, target, offsets, count)?
        }
        _ => 0,
    };
    for slot in offsets.iter_mut().flatten() {
        *slot += moved as u64;
    }
    let result = loop {
        if moved == count {
            break Ok(());
        }
        let step = buffer.len().min(count - moved);
        let read = match transfer_read(call, &source, offsets[0], &mut buffer[..step]) {
            Ok(0) => break Ok(()),
            Ok(read) => read,
            Err(errno) => break Err(errno),
        };
        let written = transfer_write(call, &target, offsets[1], &buffer[..read]);
        let count_written = written.unwrap_or(0);
        // What was read and not written is given back where that is possible.
        if count_written < read
            && offsets[0].is_none()
            && let End::Ours(file) = &source
        {
            let fs = call.file_system(file)?;
            with_offset(fs, file, |offset| (offset.saturating_sub((read - count_written) as u64), Ok(())))?;
        }
        moved += count_written;
        for slot in offsets.iter_mut().flatten() {
            *slot += count_written as u64;
        }
        if let Err(errno) = written {
            break Err(errno);
        }
        // A pipe or socket gives what it has; asking again could block.
        if count_written < read || read < step && matches!(source, End::Host(_)) {
            break Ok(());
        }
    };
    if moved == 0 {
        result?;
    }
    for (slot, address) in offsets.iter().zip([from_offset, to_offset]) {
        if let Some(offset) = slot {
            memory::write_value(address, &(*offset as i64)).map_err(|_| Errno::FAULT)?;
        }
    }
    done(moved)
}

fn transfer_read(call: &Call<'_>, source: &End, at: Option<u64>, buffer: &mut [u8]) -> Result<usize, Errno> {
    match source {
        End::Host(descriptor) => {
            let (address, length) = (buffer.as_mut_ptr() as usize, buffer.len());
            // SAFETY: our own buffer.
            host_result(unsafe {
                match at {
                    Some(offset) => syscall(PREAD64, [*descriptor, address, length, offset as usize]),
                    None => syscall(READ, [*descriptor, address, length]),
                }
            })
        }
        End::Ours(file) => {
            let fs = call.file_system(file)?;
            let mut into = Destination::from_slice(buffer);
            let mut read = |offset| fs.read(file.node, offset, &mut into).map_err(|error| error.errno());
            note_access(fs, file);
            match at {
                Some(offset) => read(offset),
                None => with_offset(fs, file, |offset| {
                    let result = read(offset);
                    (offset + result.map_or(0, |count| count as u64), result)
                }),
            }
        }
    }
}

fn transfer_write(call: &Call<'_>, target: &End, at: Option<u64>, buffer: &[u8]) -> Result<usize, Errno> {
    match target {
        End::Host(descriptor) => {
            let (address, length) = (buffer.as_ptr() as usize, buffer.len());
            // SAFETY: our own buffer.
            host_result(unsafe {
                match at {
                    Some(offset) => syscall(PWRITE64, [*descriptor, address, length, offset as usize]),
                    None => syscall(WRITE, [*descriptor, address, length]),
                }
            })
        }
        End::Ours(file) => {
            let fs = call.file_system(file)?;
            let mut from = Source::from_slice(buffer);
            let mut write =
                |position| fs.write(file.node, position, &mut from, write_flags()).map_err(|error| error.errno());
            let written = match at {
                Some(offset) => write(WritePosition::At(offset)),
                None => {
                    let appends = appends(fs, file)?;
                    with_offset(fs, file, |offset| {
                        let position = if appends { WritePosition::Append } else { WritePosition::At(offset) };
                        let result = write(position);
                        (result.map_or(offset, |written| written.offset_bytes + written.count_bytes as u64), result)
                    })
                }
            };
            written.map(|written| written.count_bytes)
        }
    }
}

fn host_result(result: isize) -> Result<usize, Errno> {
    if is_error(result) { Err(Errno::from_raw_os_error(-result as i32)) } else { Ok(result as usize) }
}
