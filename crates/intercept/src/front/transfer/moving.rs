//! Bytes on their way from one end of a transfer to the other, by a buffer of the thread's.
//!
//! Calls the file system and, for descriptors of the host's, the kernel; reads devices by a pipe of its own; waits only interruptibly.

use super::super::call::Call;
use super::super::data::{before_change, note_access, status, with_offset};
use super::super::table::OpenFile;
use super::super::{changes, limits, maps};
use super::checks::{End, O_APPEND, position_of};
use super::{host_result, pipes};
use crate::interruptible;
use crate::number::*;
use crate::raw::syscall;
use gannet_usermem::{Destination, Source};
use gannet_vfs::{Errno, WriteFlags, WritePosition};

/// A transfer under way.
pub(super) struct Way<'c, 'r> {
    pub(super) call: &'c Call<'r>,
    pub(super) source: &'c End,
    pub(super) target: &'c End,
    /// Where the ends go on, if not at their own positions.
    pub(super) offsets: [Option<u64>; 2],
    /// A file of the host's that is read by offset, and whose own position moves at the end: it cannot be moved back by what others moved it.
    moves_at_end: Option<usize>,
    /// How many bytes have been written.
    pub(super) moved: usize,
}

impl<'c, 'r> Way<'c, 'r> {
    /// One that goes on behind `moved` bytes.
    pub(super) fn new(
        call: &'c Call<'r>,
        source: &'c End,
        target: &'c End,
        mut offsets: [Option<u64>; 2],
        moved: usize,
    ) -> Way<'c, 'r> {
        let mut moves_at_end = None;
        if let (End::Host(descriptor), None) = (source, offsets[0]) {
            offsets[0] = position_of(*descriptor);
            moves_at_end = offsets[0].map(|_| *descriptor);
        }
        Way { call, source, target, offsets, moves_at_end, moved }
    }

    /// How many bytes were moved, and where the ends go on.
    pub(super) fn end(self) -> (usize, [Option<u64>; 2]) {
        const SEEK_SET: usize = 0;
        if let (Some(descriptor), Some(offset), 1..) = (self.moves_at_end, self.offsets[0], self.moved) {
            // SAFETY: moves a position as the call does.
            unsafe { syscall(LSEEK, [descriptor, offset as usize, SEEK_SET]) };
        }
        (self.moved, self.offsets)
    }

    /// From a file or a device of the host's into a file, or something else that takes all it is given.
    pub(super) fn between_files(
        &mut self,
        device: Option<usize>,
        buffer: &mut [u8],
        count: usize,
    ) -> Result<(), Errno> {
        while self.moved < count {
            let mut step = buffer.len().min(count - self.moved);
            if let End::Ours(file) = self.target {
                // A byte more than none: whether there is any is found out first.
                let room = limits::room(file.file_type, || position(self.call, file, self.offsets[1]))?;
                step = step.min(usize::try_from(room).unwrap_or(usize::MAX).max(1));
            }
            let mut goes_on = None;
            let read = match device {
                Some(device) => {
                    let (read, next) = self.read_device(device, &mut buffer[..step])?;
                    goes_on = next;
                    read
                }
                None => self.read(&mut buffer[..step])?,
            };
            if read == 0 {
                break;
            }
            let written = self.write(&buffer[..read]);
            self.settle(read, *written.as_ref().unwrap_or(&0))?;
            let written = written?;
            if written == read && goes_on.is_some() {
                // Many a device stays where it is.
                self.offsets[0] = goes_on;
            }
            match self.target {
                // Where it did not take all, the next step tells why, as the kernel finds out.
                End::Ours(_) if written > 0 => {}
                // A socket took what it has room for; asking again could block.
                _ if written < read => break,
                _ => {}
            }
            if written == read && read < step && matches!(self.source, End::Host(_)) && device.is_none() {
                break;
            }
        }
        Ok(())
    }

    /// Reads some of a device, by a pipe as the kernel does, which says what cannot be sent; and where the device goes on.
    fn read_device(&self, device: usize, buffer: &mut [u8]) -> Result<(usize, Option<u64>), Errno> {
        let mut at = self.offsets[0];
        // No child is to have the pipe.
        let read = changes::change(self.call.in_child, || {
            pipes::with_one(|from, to| {
                let place = at.as_mut().map_or(0, |at| core::ptr::from_mut(at) as usize);
                // SAFETY: the offset is ours, or none; then out of a pipe of our own, in which so much is, into our own buffer.
                unsafe {
                    let spliced = interruptible::syscall6(SPLICE, [device, place, to, 0, buffer.len(), 0]);
                    let count = host_result(spliced)?.min(buffer.len());
                    host_result(syscall(READ, [from, buffer.as_mut_ptr() as usize, count]))
                }
            })
        });
        match read {
            Some(read) => Ok((read?, at)),
            None => Ok((self.read(buffer)?, None)),
        }
    }

    /// Reads some, from where the source goes on.
    pub(super) fn read(&self, buffer: &mut [u8]) -> Result<usize, Errno> {
        let at = self.offsets[0];
        match self.source {
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
                let fs = self.call.file_system(file)?;
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

    /// Of what was read, so much was written: gives back the rest and goes on behind it.
    pub(super) fn settle(&mut self, read: usize, written: usize) -> Result<(), Errno> {
        if written < read
            && self.offsets[0].is_none()
            && let End::Ours(file) = self.source
        {
            let fs = self.call.file_system(file)?;
            with_offset(fs, file, |offset| (offset.saturating_sub((read - written) as u64), Ok(())))?;
        }
        self.moved += written;
        for slot in self.offsets.iter_mut().flatten() {
            *slot += written as u64;
        }
        Ok(())
    }

    /// Writes some, to where the target goes on.
    pub(super) fn write(&self, buffer: &[u8]) -> Result<usize, Errno> {
        let at = self.offsets[1];
        match self.target {
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
                let (call, fs) = (self.call, self.call.file_system(file)?);
                let allowed = limits::allowed(file.file_type, buffer.len(), || position(call, file, at))?;
                let mut from = Source::from_slice(&buffer[..allowed]);
                before_change(fs, file)?;
                let status = status(fs, file)?;
                let mut write = |position| {
                    fs.write(file.node, position, &mut from, WriteFlags::of_status(status))
                        .map_err(|error| error.errno())
                };
                let written = match at {
                    Some(offset) => write(WritePosition::At(offset)),
                    None => {
                        let appends = status & O_APPEND != 0;
                        with_offset(fs, file, |offset| {
                            let position = if appends { WritePosition::Append } else { WritePosition::At(offset) };
                            let result = write(position);
                            let end = |written: &gannet_vfs::Written| written.offset_bytes + written.count_bytes as u64;
                            (result.as_ref().map_or(offset, end), result)
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
}

/// Where in a file of ours a transfer goes on.
pub(super) fn position(call: &Call<'_>, file: &OpenFile, at: Option<u64>) -> Result<u64, Errno> {
    match at {
        Some(offset) => Ok(offset),
        None => {
            call.file_system(file)?.shared().offset(file.description).map(|at| at.get()).map_err(|error| error.errno())
        }
    }
}
