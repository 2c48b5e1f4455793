//! Transfers between descriptors: `sendfile`, `copy_file_range` and `splice`, with one end or both in a volume.
//!
//! Blocks are shared where both ends are one volume's ([`sharing`](super::sharing)); everything else goes through a buffer of the thread's.

use super::call::{Answer, Call, done};
use super::data::{
    COUNT_MAX, O_PATH, appends, before_change, check_readable, check_writable, note_access, with_offset,
};
use super::table::OpenFile;
use super::{credentials, limits, maps};
use crate::dispatch::Outcome;
use crate::interruptible;
use crate::memory;
use crate::number::*;
use crate::raw::{is_error, syscall};
use gannet_usermem::{Destination, Source};
use gannet_vfs::namespace::Namespace;
use gannet_vfs::{Errno, FileType, WriteFlags, WritePosition};

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

const SPLICE_FLAGS: usize = 0xf;
const ACCESS: u32 = 3;
const READ_ONLY: u32 = 0;
const WRITE_ONLY: u32 = 1;
/// Open for neither.
const NEITHER: u32 = 3;

/// What an end is open for; `EBADF` with O_PATH.
fn access(end: &End) -> Result<u32, Errno> {
    const F_GETFL: usize = 3;
    let flags = match end {
        End::Ours(file) => file.flags,
        // SAFETY: asks about a descriptor.
        End::Host(descriptor) => host_result(unsafe { syscall(FCNTL, [*descriptor, F_GETFL]) })? as u32,
    };
    if flags & O_PATH != 0 { Err(Errno::BADF) } else { Ok(flags & ACCESS) }
}

fn reads(end: &End) -> Result<bool, Errno> {
    Ok(!matches!(access(end)?, WRITE_ONLY | NEITHER))
}

fn writes(end: &End) -> Result<bool, Errno> {
    Ok(!matches!(access(end)?, READ_ONLY | NEITHER))
}

fn is_seekable(end: &End) -> bool {
    const SEEK_CUR: usize = 1;
    match end {
        End::Ours(_) => true,
        // SAFETY: asks about a descriptor.
        End::Host(descriptor) => !is_error(unsafe { syscall(LSEEK, [*descriptor, 0, SEEK_CUR]) }),
    }
}

/// A `splice` about whose numbers there is nothing to say.
fn is_plain_splice(call: &Call<'_>, offsets: [usize; 2]) -> bool {
    let mut at = 0i64;
    call.number == SPLICE
        && offsets[1] == 0
        && call.arguments[4] <= COUNT_MAX
        && (offsets[0] == 0 || memory::read_value(offsets[0], &mut at).is_ok())
        && at >= 0
        && at.checked_add(COUNT_MAX as i64).is_some()
}

fn is_pipe(descriptor: usize) -> bool {
    const F_GETPIPE_SZ: usize = 1032;
    // SAFETY: asks about a descriptor.
    !is_error(unsafe { syscall(FCNTL, [descriptor, F_GETPIPE_SZ]) })
}

/// `tee` with a descriptor of ours, which is no pipe.
pub(crate) fn refuse_tee(call: &Call<'_>) -> Answer {
    let [a, b, count, flags, ..] = call.arguments;
    if !call.is_ours(a) && !call.is_ours(b) {
        return Ok(Outcome::Pass);
    }
    if flags as u32 as usize & !SPLICE_FLAGS != 0 {
        return Err(Errno::INVAL);
    }
    if count == 0 {
        return done(0);
    }
    let end = |descriptor| call.open_file(descriptor).map_or(End::Host(descriptor), End::Ours);
    let usable = reads(&end(a))? && writes(&end(b))?;
    Err(if usable { Errno::INVAL } else { Errno::BADF })
}

/// Which ends a call takes: `sendfile` from files, `copy_file_range` between files, `splice` from or to a pipe.
fn check_ends(call: &Call<'_>, source: &End, target: &End, offsets: [usize; 2], flags: usize) -> Result<(), Errno> {
    const TYPE: u32 = 0o170000;
    const PIPE: u32 = 0o010000;
    const DIRECTORY: u32 = 0o040000;
    const REGULAR: u32 = 0o100000;
    const BLOCK_DEVICE: u32 = 0o060000;
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
    // What they are open for, in the kernel's order.
    let reads = reads(source)?;
    if call.number == SENDFILE && reads && offsets[0] != 0 && !is_seekable(source) {
        return Err(Errno::SPIPE);
    }
    if let (true, End::Ours(file), End::Host(descriptor)) = (reads, source, target)
        && file.file_type == FileType::Regular
        && (call.number == SENDFILE || is_plain_splice(call, offsets) && is_pipe(*descriptor))
    {
        // Nothing can be said against the source, and of the target its first write tells, or `check_unwritten` where there is none.
        return Ok(());
    }
    let writes = writes(target)?;
    let (from, to) = (kind(source)?, kind(target)?);
    match call.number {
        SENDFILE if !reads => Err(Errno::BADF),
        SENDFILE if !writes => Err(Errno::BADF),
        SENDFILE if !matches!(from, REGULAR | BLOCK_DEVICE) => Err(Errno::INVAL),
        COPY_FILE_RANGE if flags as u32 != 0 => Err(Errno::INVAL),
        COPY_FILE_RANGE if from == DIRECTORY || to == DIRECTORY => Err(Errno::ISDIR),
        COPY_FILE_RANGE if from != REGULAR || to != REGULAR => Err(Errno::INVAL),
        COPY_FILE_RANGE if !reads || !writes => Err(Errno::BADF),
        SPLICE if from == PIPE && offsets[0] != 0 || to == PIPE && offsets[1] != 0 => Err(Errno::SPIPE),
        SPLICE if offsets.iter().any(|at| *at != 0 && memory::read_value(*at, &mut 0i64).is_err()) => Err(Errno::FAULT),
        SPLICE if !reads || !writes => Err(Errno::BADF),
        SPLICE if from != PIPE && to != PIPE => Err(Errno::INVAL),
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
    if call.number == SPLICE {
        if count == 0 {
            return done(0);
        }
        if call.arguments[5] as u32 as usize & !SPLICE_FLAGS != 0 {
            return Err(Errno::INVAL);
        }
    }
    let end = |descriptor| call.open_file(descriptor).map_or(End::Host(descriptor), End::Ours);
    let (source, target) = (end(from), end(to));
    if call.number == SENDFILE && from_offset != 0 {
        // The kernel writes it back whatever comes of the call.
        let mut offset = 0i64;
        memory::read_value(from_offset, &mut offset).map_err(|_| Errno::FAULT)?;
        memory::write_value(from_offset, &offset).map_err(|_| Errno::FAULT)?;
        if let End::Ours(file) = &source
            && file.file_type == FileType::Regular
        {
            // Before anything about the other end.
            check_readable(file)?;
            u64::try_from(offset).map_err(|_| Errno::INVAL)?;
        }
    } else if call.number == COPY_FILE_RANGE {
        // Behind the descriptors, before what they are open for.
        access(&source)?;
        access(&target)?;
        for address in [from_offset, to_offset].into_iter().filter(|address| *address != 0) {
            memory::read_value(address, &mut 0i64).map_err(|_| Errno::FAULT)?;
        }
    }
    check_ends(call, &source, &target, [from_offset, to_offset], call.arguments[5])?;
    if let End::Ours(file) = &source {
        check_readable(file).map_err(|errno| if errno == Errno::ISDIR { Errno::INVAL } else { errno })?;
    }
    if let End::Ours(file) = &target {
        check_writable(file)?;
        let fs = call.file_system(file)?;
        if call.number == COPY_FILE_RANGE {
            Namespace::new(fs, credentials::effective())
                .check_write_open(file.node, true)
                .map_err(|error| error.errno())?;
        }
        if appends(fs, file)? {
            return Err(if call.number == COPY_FILE_RANGE { Errno::BADF } else { Errno::INVAL });
        }
    }
    let mut offsets = [None, None];
    for (slot, address) in offsets.iter_mut().zip([from_offset, to_offset]) {
        if address != 0 {
            let mut value = 0i64;
            memory::read_value(address, &mut value).map_err(|_| Errno::FAULT)?;
            let wraps = (value as u64).checked_add(count as u64).is_none();
            let negative = if call.number == COPY_FILE_RANGE && wraps { Errno::OVERFLOW } else { Errno::INVAL };
            let offset = u64::try_from(value).map_err(|_| negative)?;
            match call.number {
                COPY_FILE_RANGE if wraps => return Err(Errno::OVERFLOW),
                COPY_FILE_RANGE => {}
                _ if value.checked_add_unsigned(count as u64).is_none() => return Err(Errno::INVAL),
                _ => {}
            }
            *slot = Some(offset);
        }
    }
    let count = count.min(COUNT_MAX);
    if call.number == COPY_FILE_RANGE {
        check_apart(call, &source, &target, offsets, count)?;
    }
    let mut moved = match (&source, &target) {
        (End::Ours(source), End::Ours(target)) if call.number == COPY_FILE_RANGE => {
            let count = limits::allowed(target.file_type, count, || position(call, target, offsets[1]))?;
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
        if let Err(errno) = result {
            return Ok(interruptible::outcome(-(errno.raw_os_error() as isize)));
        }
        check_unwritten(call, &source, &target)?;
    }
    for (slot, address) in offsets.iter().zip([from_offset, to_offset]) {
        if let Some(offset) = slot {
            memory::write_value(address, &(*offset as i64)).map_err(|_| Errno::FAULT)?;
        }
    }
    done(moved)
}

/// A `sendfile` or `splice` that found nothing to write, so that nobody has looked yet whether the target is open for that.
fn check_unwritten(call: &Call<'_>, source: &End, target: &End) -> Result<(), Errno> {
    let is_late = call.number != COPY_FILE_RANGE && matches!((source, target), (End::Ours(_), End::Host(_)));
    if is_late && !writes(target)? { Err(Errno::BADF) } else { Ok(()) }
}

fn transfer_read(call: &Call<'_>, source: &End, at: Option<u64>, buffer: &mut [u8]) -> Result<usize, Errno> {
    match source {
        End::Host(descriptor) => {
            let (address, length) = (buffer.as_mut_ptr() as usize, buffer.len());
            // SAFETY: our own buffer.
            host_result(unsafe {
                match at {
                    Some(offset) => {
                        interruptible::syscall6(PREAD64, [*descriptor, address, length, offset as usize, 0, 0])
                    }
                    None => interruptible::syscall6(READ, [*descriptor, address, length, 0, 0, 0]),
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
                    Some(offset) => {
                        interruptible::syscall6(PWRITE64, [*descriptor, address, length, offset as usize, 0, 0])
                    }
                    None => interruptible::syscall6(WRITE, [*descriptor, address, length, 0, 0, 0]),
                }
            })
        }
        End::Ours(file) => {
            let fs = call.file_system(file)?;
            let allowed = limits::allowed(file.file_type, buffer.len(), || position(call, file, at))?;
            let mut from = Source::from_slice(&buffer[..allowed]);
            before_change(fs, file)?;
            let mut write =
                |position| fs.write(file.node, position, &mut from, WriteFlags::empty()).map_err(|error| error.errno());
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
            let written = written?;
            let end = written.offset_bytes + written.count_bytes as u64;
            maps::renew(call, file.mount, file.node, written.offset_bytes, end, maps::Change::Written);
            Ok(written.count_bytes)
        }
    }
}

/// Where in a file of ours a transfer writes next.
fn position(call: &Call<'_>, file: &OpenFile, at: Option<u64>) -> Result<u64, Errno> {
    match at {
        Some(offset) => Ok(offset),
        None => {
            call.file_system(file)?.shared().offset(file.description).map(|at| at.get()).map_err(|error| error.errno())
        }
    }
}

fn host_result(result: isize) -> Result<usize, Errno> {
    if is_error(result) { Err(Errno::from_raw_os_error(-result as i32)) } else { Ok(result as usize) }
}
