//! What is refused before a transfer begins: by what its ends are, what they are open for, and where it would read and write.
//!
//! Asks the kernel about descriptors, and nothing else of it.

use super::super::call::{Answer, Call, done};
use super::super::data::{self, COUNT_MAX, O_PATH};
use super::super::table::OpenFile;
use super::host_result;
use crate::dispatch::Outcome;
use crate::memory;
use crate::number::*;
use crate::raw::{is_error, syscall};
use gannet_vfs::{Errno, FileType};

/// One end of a transfer: ours, or a descriptor of the host.
pub(super) enum End {
    Ours(OpenFile),
    Host(usize),
}

/// `copy_file_range` within a file is between ranges that do not overlap.
pub(super) fn check_apart(
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

pub(super) const SPLICE_FLAGS: usize = 0xf;
pub(super) const SPLICE_NONBLOCKING: usize = 2;
pub(super) const O_APPEND: u32 = 0o2000;

/// The flags of what an end is open with; `EBADF` with O_PATH.
pub(super) fn flags_of(end: &End) -> Result<u32, Errno> {
    const F_GETFL: usize = 3;
    let flags = match end {
        End::Ours(file) => file.flags,
        // SAFETY: asks about a descriptor.
        End::Host(descriptor) => host_result(unsafe { syscall(FCNTL, [*descriptor, F_GETFL]) })? as u32,
    };
    if flags & O_PATH != 0 { Err(Errno::BADF) } else { Ok(flags) }
}

fn reads(end: &End) -> Result<bool, Errno> {
    Ok(data::reads(flags_of(end)?))
}

fn is_seekable(end: &End) -> bool {
    match end {
        End::Ours(_) => true,
        End::Host(descriptor) => position_of(*descriptor).is_some(),
    }
}

/// Whether an end can be read at an offset. Much of what is no file (`eventfd`, `epoll`) can be sought in, to no effect, but not that.
fn takes_offsets(end: &End) -> bool {
    const ESPIPE: isize = -29;
    match end {
        End::Ours(_) => true,
        // SAFETY: reads nothing into no buffer.
        End::Host(descriptor) => unsafe { syscall(PREADV, [*descriptor, 0, 0, 0, 0]) != ESPIPE },
    }
}

const TYPE: u32 = 0o170000;
const PIPE: u32 = 0o010000;
const DIRECTORY: u32 = 0o040000;
const REGULAR: u32 = 0o100000;
const BLOCK_DEVICE: u32 = 0o060000;
/// What the type's bits never say: a process, which to the kernel is a regular file of a file system of its own.
const PROCESS: u32 = 1;

/// What an end is: its type, as `stat` has it.
fn kind_of(end: &End) -> Result<u32, Errno> {
    let descriptor = match end {
        End::Ours(file) => return Ok((file.file_type as u32) << 12),
        End::Host(descriptor) => *descriptor,
    };
    let mut status = [0u64; 18];
    // SAFETY: room for struct stat.
    host_result(unsafe { syscall(FSTAT, [descriptor, status.as_mut_ptr() as usize]) })?;
    let kind = status[3] as u32 & TYPE;
    Ok(if kind == 0 && is_process(descriptor) { PROCESS } else { kind })
}

/// Whether a descriptor is what `pidfd_open` gives.
fn is_process(descriptor: usize) -> bool {
    /// "PIDF"
    const MAGIC: u64 = 0x5049_4446;
    let mut statistics = [0u64; 15];
    // SAFETY: room for struct statfs.
    let result = unsafe { syscall(FSTATFS, [descriptor, statistics.as_mut_ptr() as usize]) };
    !is_error(result) && statistics[0] == MAGIC
}

/// The descriptor of a source of `sendfile` that is neither a file nor a disk: only the kernel knows whether it can be sent.
pub(super) fn device_of(source: &End) -> Result<Option<usize>, Errno> {
    match source {
        End::Host(descriptor) if !matches!(kind_of(source)?, REGULAR | BLOCK_DEVICE) => Ok(Some(*descriptor)),
        _ => Ok(None),
    }
}

/// Where a descriptor of the host's is read next, if it has such a place.
pub(super) fn position_of(descriptor: usize) -> Option<u64> {
    const SEEK_CUR: usize = 1;
    // SAFETY: asks about a descriptor.
    let position = unsafe { syscall(LSEEK, [descriptor, 0, SEEK_CUR]) };
    (!is_error(position)).then_some(position as u64)
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

pub(super) fn is_pipe(descriptor: usize) -> bool {
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
    let usable = reads(&end(a))? && data::writes(flags_of(&end(b))?);
    Err(if usable { Errno::INVAL } else { Errno::BADF })
}

/// Which ends a call takes: `sendfile` from what can be sought in, `copy_file_range` between files, `splice` from or to a pipe. The flags that
/// the target is open with.
pub(super) fn check_ends(
    call: &Call<'_>,
    source: &End,
    target: &End,
    offsets: [usize; 2],
    flags: usize,
) -> Result<u32, Errno> {
    // What they are open for, in the kernel's order.
    let reads = reads(source)?;
    if call.number == SENDFILE && reads && offsets[0] != 0 && !takes_offsets(source) {
        return Err(Errno::SPIPE);
    }
    if let (true, End::Ours(file), End::Host(descriptor)) = (reads, source, target)
        && file.file_type == FileType::Regular
        && (call.number == SENDFILE || is_plain_splice(call, offsets) && is_pipe(*descriptor))
    {
        // Nothing can be said against the source, and of the target only this.
        let target_flags = flags_of(target)?;
        return if data::writes(target_flags) { Ok(target_flags) } else { Err(Errno::BADF) };
    }
    let target_flags = flags_of(target)?;
    let writes = data::writes(target_flags);
    // Of ours the description is asked, later.
    let appends = matches!(target, End::Host(_)) && target_flags & O_APPEND != 0;
    let (from, to) = (kind_of(source)?, kind_of(target)?);
    let is_copied = |kind| matches!(kind, REGULAR | PROCESS);
    match call.number {
        SENDFILE if !reads => Err(Errno::BADF),
        SENDFILE if !writes => Err(Errno::BADF),
        SENDFILE if from == DIRECTORY || !is_seekable(source) => Err(Errno::INVAL),
        COPY_FILE_RANGE if flags as u32 != 0 => Err(Errno::INVAL),
        COPY_FILE_RANGE if from == DIRECTORY || to == DIRECTORY => Err(Errno::ISDIR),
        COPY_FILE_RANGE if !is_copied(from) || !is_copied(to) => Err(Errno::INVAL),
        COPY_FILE_RANGE if !reads || !writes || appends => Err(Errno::BADF),
        COPY_FILE_RANGE if from == PROCESS || to == PROCESS => match target {
            End::Ours(file) if data::appends(call.file_system(file)?, file)? => Err(Errno::BADF),
            _ => Err(Errno::XDEV),
        },
        SPLICE if from == PIPE && offsets[0] != 0 || to == PIPE && offsets[1] != 0 => Err(Errno::SPIPE),
        SPLICE if offsets.iter().any(|at| *at != 0 && memory::read_value(*at, &mut 0i64).is_err()) => Err(Errno::FAULT),
        SPLICE if !reads || !writes => Err(Errno::BADF),
        SPLICE if from != PIPE && to != PIPE => Err(Errno::INVAL),
        _ => Ok(target_flags),
    }
}
