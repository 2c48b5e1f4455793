//! Making stores through maps durable. Everything else is already, on persistent memory; a disk file is written back.
//!
//! Only what is mapped for writing is written back, and once what maps that are gone have left. Who looks for that looks at
//! the table of maps before the inode's word: what goes from one to the other meanwhile is seen.

use crate::format::BLOCK_BYTES;
use crate::index::FILE_BLOCK_LIMIT;
use crate::mapped::{MAPPED, MAPPED_WRITABLY, MOVED, Ranges};
use crate::ops::{Locked, Op, index_error, shared_error};
use crate::places::CONTROL_LEFT_BY_MAPS;
use gannet_media::PersistMode;
use gannet_shm::Ordering;
use gannet_vfs::{Errno, Error, NodeId, Result};
use std::ops::Range;

impl<'s> Op<'s> {
    /// Makes stores through maps to `length` bytes of a file durable.
    // Inlined: nearly always there is nothing to do.
    #[inline(always)]
    pub(crate) fn sync(&self, node: NodeId, offset: u64, length: u64) -> Result<()> {
        if self.read_record(node, |record, _| Ok(record.maps()))?.may_be_dirty() && self.needs_write_back() {
            self.write_back_range(node, offset, length)?;
        }
        self.sync_medium()
    }

    #[cold]
    #[inline(never)]
    fn write_back_range(&self, node: NodeId, offset: u64, length: u64) -> Result<()> {
        let end = offset.saturating_add(length).div_ceil(BLOCK_BYTES).min(FILE_BLOCK_LIMIT);
        let locked = self.lock(node)?;
        self.write_back_maps(&locked, offset / BLOCK_BYTES..end)?;
        locked.guard.unlock();
        Ok(())
    }

    /// Makes stores through all maps durable.
    pub(crate) fn sync_all(&self) -> Result<()> {
        if self.needs_write_back() {
            let mut nodes = Vec::new();
            self.map_table()?.for_each(&mut |entry| {
                if entry.writable {
                    nodes.push(NodeId::new(entry.inode as u64, entry.generation));
                }
            });
            nodes.sort_unstable_by_key(|node| node.number);
            nodes.dedup();
            for node in nodes {
                self.write_back_inode(node)?;
            }
            self.write_back_left()?;
        }
        self.sync_medium()
    }

    /// Makes durable what maps that are gone have left, of all files.
    pub(crate) fn write_back_left(&self) -> Result<()> {
        let word = self.thread.word(self.core.places.control(CONTROL_LEFT_BY_MAPS)).map_err(shared_error)?;
        if !self.needs_write_back() || word.load(Ordering::Relaxed) == 0 {
            return Ok(());
        }
        self.for_each_backed_record(&mut |inode, record| match record.maps().left() {
            Some(_) => self.write_back_inode(NodeId::new(inode as u64, record.last_generation())),
            None => Ok(()),
        })
    }

    fn write_back_inode(&self, node: NodeId) -> Result<()> {
        match self.lock(node) {
            Ok(locked) => {
                self.write_back_maps(&locked, 0..FILE_BLOCK_LIMIT)?;
                locked.guard.unlock();
                Ok(())
            }
            Err(error) if error.errno() == Errno::STALE => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn needs_write_back(&self) -> bool {
        matches!(self.disk().medium().mode(), PersistMode::Persistent | PersistMode::Emulated)
    }

    /// Writes back what can have been stored to through maps among these blocks of a locked file.
    fn write_back_maps(&self, locked: &Locked<'s>, wanted: Range<u64>) -> Result<()> {
        let record = &locked.record;
        let mut ranges = Ranges::new();
        let (mut any, mut writable) = (false, false);
        self.map_table()?.for_each(&mut |entry| {
            if (entry.inode, entry.generation) == (locked.inode, locked.state.generation) {
                any = true;
                if entry.writable {
                    writable = true;
                    ranges.add(entry.blocks);
                }
            }
        });
        let seen = record.maps();
        ranges.add(seen.left().unwrap_or_default());
        if seen.has(MOVED) {
            ranges.add(0..FILE_BLOCK_LIMIT);
        }
        let mut commit = self.disk().begin();
        for range in ranges.list() {
            let (from, to) = (range.start.max(wanted.start), range.end.min(wanted.end));
            if from >= to {
                continue;
            }
            let mut outcome = Ok(());
            self.extents(locked.inode, record)
                .for_each_from(from, &mut |extent| {
                    let (start, end) = (extent.file_block.max(from), (extent.file_block + extent.count).min(to));
                    if start < end {
                        let block = extent.block + (start - extent.file_block);
                        outcome = commit.flush(block * BLOCK_BYTES, (end - start) * BLOCK_BYTES);
                    }
                    outcome.is_ok() && extent.file_block < to
                })
                .map_err(index_error)?;
            outcome?;
        }
        let _ = commit.fence();
        let is_inside = |range: Range<u64>| wanted.start <= range.start && range.end <= wanted.end;
        let gone = if any { 0 } else { MAPPED } | if writable { 0 } else { MAPPED_WRITABLY };
        let gone = gone | if !writable && is_inside(0..FILE_BLOCK_LIMIT) { MOVED } else { 0 };
        record.change_maps(|word| {
            // What others have left since is not written back.
            let is_done = word.left() == seen.left() && is_inside(seen.left().unwrap_or_default());
            if is_done { word.without_left() } else { word }.without(gone)
        });
        Ok(())
    }

    /// On a disk file, asks the kernel to write back.
    #[inline]
    pub(crate) fn sync_medium(&self) -> Result<()> {
        self.disk().medium().sync().map_err(|_| Error::because(Errno::IO, "the medium cannot be synced"))
    }
}
