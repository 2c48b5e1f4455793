//! Transfers from and to pipes of the host's: what fits is moved, and nobody waits but for the first of it.
//!
//! What is in a pipe can be taken out once only, and what is put in is gone: so room is looked for before, on both sides. Asks the kernel about
//! the pipe, makes one of its own for a moment where a volume is nearly full, and waits only interruptibly.

use super::super::data::O_PATH;
use super::super::table::OpenFile;
use super::super::{changes, limits};
use super::checks::{End, SPLICE_NONBLOCKING, flags_of};
use super::moving::{Way, position};
use super::{O_NONBLOCK, host_result};
use crate::interruptible;
use crate::number::*;
use crate::raw::{is_error, syscall};
use gannet_vfs::{Errno, FileSystem};

const PAGE_BYTES: usize = 4096;
const POLLIN: u64 = 1;
const POLLOUT: u64 = 4;
/// A volume with less room than this besides what is to be written may turn out to have none: others write, too, and files take
/// more than their bytes.
const ROOM_BYTES_MIN: u64 = 16 << 20;
/// Files that reach beyond this may turn out to be too large.
const SIZE_BYTES_MAX: u64 = 1 << 40;

impl Way<'_, '_> {
    /// From a file of ours into a pipe: as much as it has room for, which is waited for while nothing was moved.
    pub(super) fn fill_pipe(&mut self, pipe: usize, waits: bool, buffer: &mut [u8], count: usize) -> Result<(), Errno> {
        while self.moved < count {
            if !is_ready(pipe, POLLOUT, waits && self.moved == 0)? {
                return Err(Errno::AGAIN);
            }
            // The kernel puts the file's pages into the pipe.
            let start = match self.source {
                End::Ours(file) => position(self.call, file, self.offsets[0])? as usize % PAGE_BYTES,
                End::Host(_) => 0,
            };
            let step = (buffer.len() - start).min(count - self.moved);
            let read = self.read(&mut buffer[..step])?;
            if read == 0 {
                break;
            }
            let written = write_without_waiting(pipe, &buffer[..read]);
            self.settle(read, *written.as_ref().unwrap_or(&0))?;
            match written {
                Ok(written) if written < read => break,
                Ok(_) => {}
                // Another was faster.
                Err(Errno::AGAIN) if waits && self.moved == 0 => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }

    /// From a pipe into a file of ours: what is there, which is waited for while nothing was moved.
    pub(super) fn empty_pipe(
        &mut self,
        pipe: usize,
        file: &OpenFile,
        buffer: &mut [u8],
        count: usize,
    ) -> Result<(), Errno> {
        let fs = self.call.file_system(file)?;
        while self.moved < count && (self.moved == 0 || available(pipe)? > 0) {
            let at = position(self.call, file, self.offsets[1])?;
            let room = limits::room(file.file_type, || Ok(at))?;
            let step = buffer.len().min(count - self.moved).min(usize::try_from(room).unwrap_or(usize::MAX));
            let (read, written) = if step > 0 && is_roomy(fs, at, step) {
                let read = self.read(&mut buffer[..step])?;
                if read == 0 {
                    break;
                }
                (read, self.write(&buffer[..read])?)
            } else {
                if wait_for_bytes(pipe)? == 0 {
                    break;
                }
                // Behind the limit: says so.
                limits::allowed(file.file_type, 1, || Ok(at))?;
                // No child is to have the second pipe.
                let peeked = changes::change(self.call.in_child, || peek(pipe, &mut buffer[..step]));
                let is_left_there = peeked.is_some();
                let read = peeked.unwrap_or_else(|| self.read(&mut buffer[..step]))?;
                if read == 0 {
                    break;
                }
                let written = self.write(&buffer[..read])?;
                if is_left_there {
                    take_out(pipe, &mut buffer[..written]);
                }
                (read, written)
            };
            self.settle(read, written)?;
            if written == 0 {
                break;
            }
        }
        Ok(())
    }
}

/// Whether so much can be written there for sure.
fn is_roomy(fs: &dyn FileSystem, at: u64, count: usize) -> bool {
    let end = at.saturating_add(count as u64);
    let room = |all: gannet_vfs::Statistics| all.blocks_available.saturating_mul(u64::from(all.block_bytes));
    end <= SIZE_BYTES_MAX && fs.statistics().is_ok_and(|all| room(all) >= count as u64 + ROOM_BYTES_MIN)
}

/// How many bytes are in a pipe.
fn available(pipe: usize) -> Result<usize, Errno> {
    const FIONREAD: usize = 0x541b;
    let mut count = 0u32;
    // SAFETY: room for an `int`.
    host_result(unsafe { syscall(IOCTL, [pipe, FIONREAD, &raw mut count as usize]) })?;
    Ok(count as usize)
}

/// What `poll` says of a descriptor, once it is any of `events`; 0 for nothing yet.
fn poll(descriptor: usize, events: u64, waits: bool) -> Result<u64, Errno> {
    let mut poll = [descriptor as u64 & 0xffff_ffff | events << 32];
    let (address, limit) = (poll.as_mut_ptr() as usize, if waits { usize::MAX } else { 0 });
    // SAFETY: one struct pollfd.
    host_result(unsafe { interruptible::syscall6(POLL, [address, 1, limit, 0, 0, 0]) })?;
    Ok(poll[0] >> 48)
}

/// Whether a descriptor is ready, or never will be.
fn is_ready(descriptor: usize, events: u64, waits: bool) -> Result<bool, Errno> {
    Ok(poll(descriptor, events, waits)? != 0)
}

/// Whether a pipe has bytes, or its end.
pub(super) fn has_something(pipe: usize) -> bool {
    let mut poll = [pipe as u64 & 0xffff_ffff | POLLIN << 32];
    // SAFETY: one struct pollfd.
    unsafe { syscall(POLL, [poll.as_mut_ptr() as usize, 1, 0]) != 0 }
}

/// How many bytes are in a pipe, once there are any; none at its end.
fn wait_for_bytes(pipe: usize) -> Result<usize, Errno> {
    let count = available(pipe)?;
    if count > 0 {
        return Ok(count);
    }
    let waits = flags_of(&End::Host(pipe))? & (O_NONBLOCK | O_PATH) == 0;
    if poll(pipe, POLLIN, waits)? == 0 { Err(Errno::AGAIN) } else { available(pipe) }
}

/// Writes what fits into a pipe that has room.
fn write_without_waiting(pipe: usize, bytes: &[u8]) -> Result<usize, Errno> {
    const RWF_NOWAIT: usize = 8;
    let segment = [bytes.as_ptr() as usize, bytes.len()];
    // SAFETY: our own buffer.
    let result = unsafe {
        let at_position = usize::MAX;
        interruptible::syscall6(PWRITEV2, [pipe, segment.as_ptr() as usize, 1, at_position, 0, RWF_NOWAIT])
    };
    match host_result(result) {
        Err(Errno::OPNOTSUPP) => write_pages(pipe, bytes),
        result => result,
    }
}

/// Likewise for pipes that have names, and kernels before 6.5: a page at a time, for which there is room.
fn write_pages(pipe: usize, bytes: &[u8]) -> Result<usize, Errno> {
    let mut written = 0;
    for page in bytes.chunks(PAGE_BYTES) {
        if written > 0 && !is_ready(pipe, POLLOUT, false).unwrap_or(false) {
            break;
        }
        // SAFETY: our own buffer.
        let result = unsafe { interruptible::syscall6(WRITE, [pipe, page.as_ptr() as usize, page.len(), 0, 0, 0]) };
        match host_result(result) {
            Ok(count) => written += count,
            Err(errno) if written == 0 => return Err(errno),
            Err(_) => break,
        }
    }
    Ok(written)
}

/// Reads what is in a pipe, and leaves it there: by a second one, that has it too. `None` if none is to be had.
fn peek(pipe: usize, buffer: &mut [u8]) -> Option<Result<usize, Errno>> {
    with_one(|from, to| {
        // SAFETY: between two pipes, of which one is ours, into our own buffer.
        unsafe {
            let count = host_result(syscall(TEE, [pipe, to, buffer.len(), SPLICE_NONBLOCKING]))?.min(buffer.len());
            host_result(syscall(READ, [from, buffer.as_mut_ptr() as usize, count]))
        }
    })
}

/// Does `work` with the ends of a pipe of our own, to read from and to write to. `None` if none is to be had.
pub(super) fn with_one<T>(work: impl FnOnce(usize, usize) -> T) -> Option<T> {
    const O_CLOEXEC: usize = 0o2000000;
    let mut ends = [0u32; 2];
    // SAFETY: room for two descriptors.
    if is_error(unsafe { syscall(PIPE2, [ends.as_mut_ptr() as usize, O_CLOEXEC]) }) {
        return None;
    }
    let [from, to] = ends.map(|end| end as usize);
    let result = work(from, to);
    for end in [from, to] {
        // SAFETY: our own.
        unsafe { syscall(CLOSE, [end]) };
    }
    Some(result)
}

/// Takes out of a pipe what was written. Another who reads from it meanwhile gets some of it, too.
fn take_out(pipe: usize, bytes: &mut [u8]) {
    if !bytes.is_empty() && available(pipe).is_ok_and(|count| count > 0) {
        // SAFETY: our own buffer. Does not wait, since there is something.
        unsafe { syscall(READ, [pipe, bytes.as_mut_ptr() as usize, bytes.len()]) };
    }
}
