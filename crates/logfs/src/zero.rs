//! Making bytes of a file zeros: punched holes, and ranges that stay allocated (`fallocate`).
//!
//! Bytes are zeroed in place, under their stripes' locks, whether or not the file is written copy-on-write. Whatever takes room, blocks,
//! nodes of the index and entries of the log, is had before the first of them is: what fails for want of it has destroyed nothing.

use crate::format::entry::Payload;
use crate::format::slot::AT_TOUCHED;
use crate::format::{BLOCK_BYTES, LINE_BYTES};
use crate::index::{IndexError, Mapping};
use crate::ops::{Locked, Need, Op, index_error};
use crate::places::STRIPE_BYTES;
use gannet_vfs::Result;
use std::ops::Range;

impl<'s> Op<'s> {
    /// Zeros a range, gives all of it blocks, and makes the file `size` bytes long if it is shorter.
    pub(crate) fn zero_range(&self, locked: &Locked<'s>, offset: u64, end: u64, size: u64) -> Result<()> {
        // Blocks behind the end are zeros already.
        let zeroed = offset..end.min(locked.record.size()).max(offset);
        let (first, last) = (offset / BLOCK_BYTES, end.div_ceil(BLOCK_BYTES));
        let shared = self.shared_blocks(locked, whole_blocks(&zeroed))?;
        self.look_for_room(self.hole_blocks(locked, first, last)? + shared)?;
        self.unshare(locked, whole_blocks(&zeroed))?;
        self.fill_holes(locked, first, last)?;
        // Before the file is longer; an entry that says so hashes nothing of what was in it.
        self.seal_to_zero(locked, &[&zeroed])?;
        self.grow_after(locked, size)?;
        self.zero_in_place(locked, zeroed)
    }

    /// Makes a hole of a range: of the blocks that are only in part in it, and inside the file, that part is zeroed.
    pub(crate) fn punch(&self, locked: &Locked<'s>, offset: u64, end: u64) -> Result<()> {
        let size = locked.record.size();
        let (first, last) = (offset.div_ceil(BLOCK_BYTES), end / BLOCK_BYTES);
        // Behind the end of the file there is nothing to keep: the block of the end goes too.
        let last = if end >= size { last.max(size.div_ceil(BLOCK_BYTES).min(end.div_ceil(BLOCK_BYTES))) } else { last };
        let in_file = |from: u64, to: u64| from..to.min(size).max(from);
        if first > last || (first == last && offset / BLOCK_BYTES == (end - 1) / BLOCK_BYTES && end < size) {
            let part = in_file(offset, end);
            self.unshare(locked, whole_blocks(&part))?;
            self.seal_to_zero(locked, &[&part])?;
            return self.zero_in_place(locked, part);
        }
        let before = in_file(offset, (first * BLOCK_BYTES).min(end));
        let behind = if end < size && last >= first { last * BLOCK_BYTES..end } else { end..end };
        self.unshare(locked, whole_blocks(&before))?;
        self.unshare(locked, whole_blocks(&behind))?;
        self.seal_to_zero(locked, &[&before, &behind])?;
        if last <= first {
            self.zero_in_place(locked, before)?;
            return self.zero_in_place(locked, behind);
        }
        let mut nodes = self.extents(locked.inode, &locked.record).reserve(first, last - first).map_err(index_error)?;
        self.need.set(Need::Freeing);
        let payload = Payload::Unmap { file_block: first, count: last - first };
        let prepared = self.prepare(locked, payload.lines(), true)?;
        let zeroed = self.zero_in_place(locked, before).and_then(|()| self.zero_in_place(locked, behind));
        if let Err(error) = zeroed {
            return Err(self.cancel_with(prepared, error));
        }
        let time = locked.now();
        let durable = self.append_prepared(locked, prepared, time, &payload, &mut [0; LINE_BYTES as usize])?;
        locked.record.touch(time);
        let unmapped = self.unmap_blocks(locked, first, last - first, &mut nodes, &durable);
        drop(nodes);
        if self.follows(locked, unmapped) { Ok(()) } else { Err(index_error(IndexError::Torn)) }
    }

    /// How many of these blocks of the file it shares with others.
    fn shared_blocks(&self, locked: &Locked<'s>, range: Range<u64>) -> Result<u64> {
        let mut shared = 0;
        let mut next = range.start;
        while next < range.end {
            next += match self.mapping(locked.inode, &locked.record, next * BLOCK_BYTES)? {
                Mapping::Blocks { block, count, shared: true } => {
                    let (is_shared, run) = self.shares()?.run(block, count.min(range.end - next))?;
                    shared += if is_shared { run } else { 0 };
                    run
                }
                Mapping::Blocks { count, .. } | Mapping::Hole { count } => count,
            };
        }
        Ok(shared)
    }

    /// Before bytes are zeroed in blocks of the file's own: no entry's hash covers them from here on. It takes a line of the log at most, from the
    /// reserve, if it must be, and none where the file has no blocks.
    fn seal_to_zero(&self, locked: &Locked<'s>, ranges: &[&Range<u64>]) -> Result<()> {
        for bytes in ranges {
            let blocks = whole_blocks(bytes);
            if !bytes.is_empty() && self.hole_blocks(locked, blocks.start, blocks.end)? < blocks.end - blocks.start {
                let need = self.need.replace(Need::Freeing);
                let sealed = self.seal(locked);
                self.need.set(need);
                return sealed;
            }
        }
        Ok(())
    }

    /// Zeros bytes inside of the file wherever it has blocks.
    fn zero_in_place(&self, locked: &Locked<'s>, bytes: Range<u64>) -> Result<()> {
        let mut at = bytes.start;
        while at < bytes.end {
            let limit = bytes.end.min((at / STRIPE_BYTES + 1) * STRIPE_BYTES) - at;
            let in_block = at % BLOCK_BYTES;
            at += match self.mapping(locked.inode, &locked.record, at)? {
                Mapping::Hole { count } => (count * BLOCK_BYTES - in_block).min(bytes.end - at),
                Mapping::Blocks { block, count, .. } => {
                    let length = (count * BLOCK_BYTES - in_block).min(limit);
                    let stripe = self.take(self.core.places.stripe(locked.inode, at))?;
                    let mut commit = self.disk().begin();
                    commit.zero(block * BLOCK_BYTES + in_block, length)?;
                    // Unnoticed [store]: a time, for which the conformance suite asks.
                    commit.store(self.slot_word(locked.inode, AT_TOUCHED)?, locked.now() as u64)?;
                    let _ = commit.fence();
                    locked.record.set_access_fresh(0);
                    stripe.unlock();
                    length
                }
            };
        }
        Ok(())
    }
}

/// The blocks that bytes of a file lie in.
fn whole_blocks(bytes: &Range<u64>) -> Range<u64> {
    let first = bytes.start / BLOCK_BYTES;
    if bytes.is_empty() { first..first } else { first..bytes.end.div_ceil(BLOCK_BYTES) }
}
