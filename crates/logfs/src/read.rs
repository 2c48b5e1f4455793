//! Reading a file's data: no lock, no shared line written.
//!
//! Chunk by chunk: the stripe's sequence, the map (validated against the inode's sequence), the copy, the stripe's sequence
//! again. A block that changes its owner meanwhile changes the stripe's sequence first, so what passes was the file's.

use crate::disk::access_error;
use crate::format::BLOCK_BYTES;
use crate::index::Mapping;
use crate::ops::{Op, index_error, shared_error};
use crate::places::STRIPE_BYTES;
use crate::record::{Record, State};
use gannet_media::{AccessError, MediumOffset};
use gannet_vfs::usermem::Destination;
use gannet_vfs::{Errno, Error, NodeId, Result, SeekTarget};

/// Optimistic copies of one chunk before the stripe is locked.
const COPY_ATTEMPTS: u32 = 16;

/// What stands at a place of a file, up to some length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Piece {
    /// The file ends before.
    End,
    /// Zeros.
    Hole(u64),
    /// Bytes on the medium.
    Data(u64, u64),
}

impl<'s> Op<'s> {
    /// Reads at `offset_bytes` until the destination is full or the file ends.
    pub(crate) fn read(&self, node: NodeId, offset_bytes: u64, into: &mut Destination<'_>) -> Result<usize> {
        if into.is_empty() {
            self.read_record(node, |_, state| self.regular(state))?;
        }
        let mut done = 0;
        let mut at = offset_bytes;
        while !into.is_empty() {
            match self.read_chunk(node, at, into) {
                Ok(0) => break,
                Ok(count) => {
                    done += count;
                    at += count as u64;
                }
                // What was read before a bad address counts, as it does in `read(2)`.
                Err(error) if error.errno() == Errno::FAULT && done > 0 => break,
                Err(error) => return Err(error),
            }
        }
        Ok(done)
    }

    #[inline(always)]
    fn read_chunk(&self, node: NodeId, at: u64, into: &mut Destination<'_>) -> Result<usize> {
        let stripe = self.core.places.stripe(node.number as u32, at);
        let limit = (STRIPE_BYTES - at % STRIPE_BYTES).min(into.remaining() as u64);
        // What attempts that do not count have put into the caller's memory.
        let mut spoilt = 0;
        for _ in 0..COPY_ATTEMPTS {
            let Some(sequence) = self.thread.read_begin(stripe).map_err(shared_error)? else {
                core::hint::spin_loop();
                continue;
            };
            let piece = self.piece(node, at, limit)?;
            let (medium_at, count) = match piece {
                Piece::End => {
                    clear_spoilt(into, 0, spoilt);
                    return Ok(0);
                }
                Piece::Hole(count) => {
                    into.write_zeros(count as usize)?;
                    clear_spoilt(into, count, spoilt);
                    return Ok(count as usize);
                }
                Piece::Data(medium_at, count) => (medium_at, count),
            };
            // The copy goes through a cursor of its own, so that it can be done again.
            let mut attempt = into.clone();
            let copied = self.copy_out(medium_at, &mut attempt, count);
            if self.thread.read_validate(stripe, sequence).map_err(shared_error)? {
                *into = attempt;
                if spoilt > count {
                    clear_spoilt(into, count, spoilt);
                }
                return copied;
            }
            spoilt = spoilt.max(count);
        }
        let outcome = self.read_chunk_locked(node, at, into, limit);
        if let Ok(count) = outcome {
            clear_spoilt(into, count as u64, spoilt);
        }
        outcome
    }

    /// A busy writer: takes turns with it. The inode's lock comes first, so that the map stands.
    #[cold]
    #[inline(never)]
    fn read_chunk_locked(&self, node: NodeId, at: u64, into: &mut Destination<'_>, limit: u64) -> Result<usize> {
        let stripe = self.core.places.stripe(node.number as u32, at);
        let locked = self.lock(node)?;
        let guard = self.thread.lock(stripe).map_err(shared_error)?;
        let outcome = match self.piece_of(locked.inode, &locked.record, locked.state, at, limit)? {
            Piece::End => Ok(0),
            Piece::Hole(count) => into.write_zeros(count as usize).map(|()| count as usize).map_err(Error::from),
            Piece::Data(medium_at, count) => self.copy_out(medium_at, into, count),
        };
        guard.unlock();
        locked.guard.unlock();
        outcome
    }

    /// Copies bytes to the caller; those before a bad address count.
    #[inline(always)]
    fn copy_out(&self, medium_at: u64, into: &mut Destination<'_>, count: u64) -> Result<usize> {
        match self.disk().medium().read_to_user(MediumOffset(medium_at), into, count as usize) {
            Ok(()) => Ok(count as usize),
            Err(AccessError::UserFault { copied: 0 }) => Err(Error::new(Errno::FAULT)),
            Err(AccessError::UserFault { copied }) => Ok(copied),
            Err(error) => Err(access_error(error)),
        }
    }

    #[inline(always)]
    fn piece(&self, node: NodeId, at: u64, limit: u64) -> Result<Piece> {
        self.read_record(node, |record, state| self.piece_of(node.number as u32, record, state, at, limit))
    }

    #[inline(always)]
    fn piece_of(&self, inode: u32, record: &Record<'s>, state: State, at: u64, limit: u64) -> Result<Piece> {
        self.regular(state)?;
        let size = record.size();
        if at >= size {
            return Ok(Piece::End);
        }
        let limit = limit.min(size - at);
        Ok(match self.extents(inode, record).lookup(at / BLOCK_BYTES).map_err(index_error)? {
            Mapping::Hole { count } => Piece::Hole(left_of(count, at).min(limit)),
            Mapping::Blocks { block, count, .. } => {
                Piece::Data(block * BLOCK_BYTES + at % BLOCK_BYTES, left_of(count, at).min(limit))
            }
        })
    }

    /// What stands at a byte of a file.
    #[inline(never)]
    pub(crate) fn mapping(&self, inode: u32, record: &Record<'s>, at: u64) -> Result<Mapping> {
        self.extents(inode, record).lookup(at / BLOCK_BYTES).map_err(index_error)
    }

    /// The next data or hole at or behind a place.
    pub(crate) fn seek(&self, node: NodeId, target: SeekTarget, offset_bytes: u64) -> Result<u64> {
        self.read_record(node, |record, state| {
            self.regular(state)?;
            let size = record.size();
            let mut at = offset_bytes;
            while at < size {
                let (count, is_data) = match self.mapping(node.number as u32, record, at)? {
                    Mapping::Hole { count } => (count, false),
                    Mapping::Blocks { count, .. } => (count, true),
                };
                if is_data == (target == SeekTarget::Data) {
                    return Ok(at);
                }
                at = at.saturating_add(left_of(count, at));
            }
            match target {
                SeekTarget::Hole if offset_bytes < size => Ok(size),
                _ => Err(Error::new(Errno::NXIO)),
            }
        })
    }
}

/// Of `spoilt` bytes of the caller's memory `count` have been read after all: the file became shorter meanwhile. What was copied
/// behind them can be of whoever has the blocks now, and becomes zeros.
#[cold]
fn clear_spoilt(into: &Destination<'_>, count: u64, spoilt: u64) {
    if spoilt > count {
        let _ = into.clone().write_zeros((spoilt - count) as usize);
    }
}

/// Bytes from `at` to the end of `count` blocks, the first of which holds `at`.
pub(crate) const fn left_of(count: u64, at: u64) -> u64 {
    count.saturating_mul(BLOCK_BYTES).saturating_sub(at % BLOCK_BYTES)
}
