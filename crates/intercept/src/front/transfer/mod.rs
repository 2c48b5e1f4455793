//! Transfers between descriptors: `sendfile`, `copy_file_range` and `splice`, with one end or both in a volume.
//!
//! Blocks are shared where both ends are one volume's ([`sharing`](super::sharing)); everything else goes through a buffer of the thread's
//! ([`moving`], [`pipes`]). Nothing is lost on the way: what is read and not written is given back, or is not taken before it is known.

mod checks;
mod moving;
mod pipes;

pub(crate) use checks::refuse_tee;

use super::call::{Answer, Call, done};
use super::data::{COUNT_MAX, appends, check_readable, check_writable};
use super::{credentials, limits};
use crate::dispatch::Outcome;
use crate::interruptible;
use crate::memory;
use crate::number::*;
use crate::raw::is_error;
use checks::{
    End, O_APPEND, SPLICE_FLAGS, SPLICE_NONBLOCKING, check_apart, check_ends, device_of, flags_of, is_pipe, position_of,
};
use gannet_vfs::namespace::Namespace;
use gannet_vfs::{Errno, FileType};
use moving::{Way, position};

const O_NONBLOCK: u32 = 0o4000;

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
    if call.number == SENDFILE {
        let mut offset = 0i64;
        if from_offset != 0 {
            // The kernel writes it back whatever comes of the call.
            memory::read_value(from_offset, &mut offset).map_err(|_| Errno::FAULT)?;
            memory::write_value(from_offset, &offset).map_err(|_| Errno::FAULT)?;
        }
        if let End::Ours(file) = &source
            && file.file_type == FileType::Regular
        {
            // Before anything about the other end.
            check_readable(file)?;
            if from_offset == 0 && count > COUNT_MAX {
                offset = position(call, file, None)? as i64;
            }
            if offset < 0 || offset.checked_add_unsigned(count as u64).is_none() {
                return Err(Errno::INVAL);
            }
        }
    } else if call.number == COPY_FILE_RANGE {
        // Behind the descriptors, before what they are open for.
        flags_of(&source)?;
        flags_of(&target)?;
        for address in [from_offset, to_offset].into_iter().filter(|address| *address != 0) {
            memory::read_value(address, &mut 0i64).map_err(|_| Errno::FAULT)?;
        }
    }
    let target_flags = check_ends(call, &source, &target, [from_offset, to_offset], call.arguments[5])?;
    let pipe = match target {
        End::Host(descriptor) if call.number == SPLICE || call.number == SENDFILE && is_pipe(descriptor) => {
            Some(descriptor)
        }
        _ => None,
    };
    if call.number == SENDFILE && matches!(target, End::Host(_)) && pipe.is_none() && target_flags & O_APPEND != 0 {
        return Err(Errno::INVAL);
    }
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
    if let (SPLICE, End::Host(pipe), SPLICE_NONBLOCKING) =
        (call.number, &source, call.arguments[5] & SPLICE_NONBLOCKING)
        && !pipes::has_something(*pipe)
    {
        return Err(Errno::AGAIN);
    }
    let mut count = count.min(COUNT_MAX);
    let mut moved = 0;
    if call.number == COPY_FILE_RANGE {
        check_apart(call, &source, &target, offsets, count)?;
        // The kernel looks once: a copy that ends there sends no signal.
        count = match &target {
            End::Ours(target) => limits::allowed(target.file_type, count, || position(call, target, offsets[1]))?,
            End::Host(descriptor) => limits::allowed(FileType::Regular, count, || {
                offsets[1].or_else(|| position_of(*descriptor)).ok_or(Errno::INVAL)
            })?,
        };
        if let (End::Ours(source), End::Ours(target)) = (&source, &target) {
            moved = super::sharing::copy(call, source, target, offsets, count)?;
        }
    }
    for slot in offsets.iter_mut().flatten() {
        *slot += moved as u64;
    }
    let device = if call.number == SENDFILE { device_of(&source)? } else { None };
    let mut way = Way::new(call, &source, &target, offsets, moved);
    let result = match (&source, &target, pipe) {
        (_, _, Some(pipe)) => {
            let is_flagged = call.number == SPLICE && call.arguments[5] & SPLICE_NONBLOCKING != 0;
            way.fill_pipe(pipe, !is_flagged && target_flags & O_NONBLOCK == 0, buffer, count)
        }
        (End::Host(pipe), End::Ours(file), _) if call.number == SPLICE => way.empty_pipe(*pipe, file, buffer, count),
        _ => way.between_files(device, buffer, count),
    };
    let (moved, offsets) = way.end();
    if let (0, Err(errno)) = (moved, result) {
        return Ok(interruptible::outcome(-(errno.raw_os_error() as isize)));
    }
    for (slot, address) in offsets.iter().zip([from_offset, to_offset]) {
        if let Some(offset) = slot
            && address != 0
        {
            memory::write_value(address, &(*offset as i64)).map_err(|_| Errno::FAULT)?;
        }
    }
    done(moved)
}

fn host_result(result: isize) -> Result<usize, Errno> {
    if is_error(result) { Err(Errno::from_raw_os_error(-result as i32)) } else { Ok(result as usize) }
}
