//! Sharing blocks between files (reflink). `unshare` ends it before somebody writes to them.
//!
//! Who shares blocks knows it by a mark in its map, which keeps writers in place away; `shares` has the numbers. A clone
//! marks the source's blocks first, waits for who writes to them in place, adds the references, and then commits one entry in the
//! target's log. The source's log says nothing: when a file is loaded its marks are made from the numbers.

use crate::disk::{Block, Durable};
use crate::format::BLOCK_BYTES;
use crate::format::entry::{ENTRY_BYTES_MAX, Extents as EntryExtents, FileExtent, Payload, REMAP_EXTENTS_MAX};
use crate::format::superblock::FEATURE_SHARED;
use crate::index::{self, IndexError, Mapping, Reservation};
use crate::ops::{Locked, Op, index_error};
use crate::places::CONTROL_SUPERBLOCK_LOCK;
use crate::replay::TIMES_STAY;
use crate::shares::Shares;
use crate::space::Extent as SpaceExtent;
use crate::write::FILE_BYTES_MAX;
use gannet_vfs::{Errno, Error, NodeId, Result};
use std::ops::Range;

/// So much is compared, and shared, under one hold of both files' locks: others wait some milliseconds.
const DEDUPE_BYTES_MAX: u64 = 16 << 20;

/// What sharing is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sharing {
    /// The target gets the source's bytes.
    Clone,
    /// The target has the same bytes already, or nothing happens.
    IfEqual,
}

/// A range of blocks of two files, in blocks: where it begins in each, and how long it is.
#[derive(Clone, Copy)]
struct Ranges {
    from: u64,
    to: u64,
    count: u64,
}

/// Extents of the source, where they shall stand in the target.
struct Batch {
    list: [FileExtent; REMAP_EXTENTS_MAX],
    count: usize,
}

impl Batch {
    const fn new() -> Self {
        Self { list: [FileExtent { file_block: 0, block: 0, count: 0, shared: true }; REMAP_EXTENTS_MAX], count: 0 }
    }

    fn list(&self) -> &[FileExtent] {
        &self.list[..self.count]
    }
}

impl<'s> Op<'s> {
    /// The numbers of references.
    pub(crate) fn shares(&self) -> Result<Shares<'s>> {
        Shares::of(&self.core.places, self.thread.arena())
    }

    /// See `FileSystem::clone_range` and `FileSystem::dedupe_range`; returns how many bytes from the beginning of the ranges are done with,
    /// or `None` if they do not hold the same bytes. What is compared ends at [`DEDUPE_BYTES_MAX`].
    pub(crate) fn share_range(
        &self,
        (from, from_offset): (NodeId, u64),
        (to, to_offset): (NodeId, u64),
        length: u64,
        sharing: Sharing,
    ) -> Result<Option<u64>> {
        let (source, target) = match self.lock_all([Some(from), Some(to)])? {
            [Some(source), Some(target)] => (source, Some(target)),
            [Some(source), None] | [None, Some(source)] => (source, None),
            [None, None] => return Err(Error::new(Errno::STALE)),
        };
        let to = target.as_ref().unwrap_or(&source);
        self.regular(source.state)?;
        self.regular(to.state)?;
        let (source_size, target_size) = (source.record.size(), to.record.size());
        let from_end = from_offset.checked_add(length).ok_or(Error::new(Errno::INVAL))?;
        let to_end = to_offset.checked_add(length).ok_or(Error::new(Errno::INVAL))?;
        let whole = |offset: u64| offset.is_multiple_of(BLOCK_BYTES);
        let ragged = !whole(length) && (from_end != source_size || to_end < target_size);
        let outside = from_end > source_size || sharing == Sharing::IfEqual && to_end > target_size;
        // Of a block that is not the end of both files nobody says what else is in it: of equal ranges it is left as it is.
        let (asked, length) = match sharing {
            Sharing::IfEqual if ragged => (length, length / BLOCK_BYTES * BLOCK_BYTES),
            _ => (length, length),
        };
        let overlap = target.is_none() && from_offset < to_offset + length && to_offset < from_offset + length;
        if !whole(from_offset) || !whole(to_offset) || outside || ragged && length == asked || overlap {
            return Err(Error::new(Errno::INVAL));
        }
        if to_end > FILE_BYTES_MAX {
            return Err(Error::new(Errno::FBIG));
        }
        if length == 0 {
            return Ok(Some(asked));
        }
        let whole_ranges = Ranges {
            from: from_offset / BLOCK_BYTES,
            to: to_offset / BLOCK_BYTES,
            count: length.div_ceil(BLOCK_BYTES),
        };
        if sharing == Sharing::IfEqual {
            // Nothing to compare and nothing to share, however long it is.
            let holes = self.common_holes(&source, to, whole_ranges)?;
            if holes > 0 {
                return Ok(Some(if holes == whole_ranges.count { asked } else { holes * BLOCK_BYTES }));
            }
        }
        let (asked, length) = match sharing {
            Sharing::IfEqual if length > DEDUPE_BYTES_MAX => (DEDUPE_BYTES_MAX, DEDUPE_BYTES_MAX),
            _ => (asked, length),
        };
        let to_end = to_offset + length;
        let ranges = Ranges { count: length.div_ceil(BLOCK_BYTES), ..whole_ranges };
        // Who has mapped blocks goes on to see them: they neither become another's nor are they replaced.
        if self.is_pinned(&source, ranges.from..ranges.from + ranges.count)?
            || self.is_pinned(to, ranges.to..ranges.to + ranges.count)?
        {
            return Err(Error::because(Errno::OPNOTSUPP, "the range is mapped by somebody"));
        }
        if sharing == Sharing::IfEqual {
            // From here on nobody writes to either in place.
            self.begin_sharing(&source, ranges.from, ranges.count)?;
            self.begin_sharing(to, ranges.to, ranges.count)?;
            if !self.are_equal(&source, from_offset, to, to_offset, length)? {
                return Ok(None);
            }
        }
        self.need_feature(FEATURE_SHARED)?;
        if to_offset > target_size {
            self.zero_behind_end(to)?;
        }
        let mut done = 0;
        while done < ranges.count {
            let rest = Ranges { from: ranges.from + done, to: ranges.to + done, count: ranges.count - done };
            done += self.clone_some(&source, to, rest, to_end, sharing)?;
        }
        self.collect_some(to);
        Ok(Some(asked))
    }

    /// Marks blocks of a file as shared, and waits for those who write to them in place.
    fn begin_sharing(&self, locked: &Locked<'s>, file_block: u64, count: u64) -> Result<()> {
        self.set_shared(locked, file_block, count, true)?;
        self.pass_stripes(locked.inode, file_block, count)
    }

    /// How many blocks two ranges begin with that neither file has.
    fn common_holes(&self, source: &Locked<'s>, target: &Locked<'s>, ranges: Ranges) -> Result<u64> {
        let hole = |locked: &Locked<'s>, file_block: u64| {
            Ok::<u64, Error>(match self.mapping(locked.inode, &locked.record, file_block * BLOCK_BYTES)? {
                Mapping::Hole { count } => count,
                Mapping::Blocks { .. } => 0,
            })
        };
        Ok(hole(source, ranges.from)?.min(hole(target, ranges.to)?).min(ranges.count))
    }

    /// Whether two ranges hold the same bytes.
    fn are_equal(
        &self,
        source: &Locked<'s>,
        from_offset: u64,
        target: &Locked<'s>,
        to_offset: u64,
        length: u64,
    ) -> Result<bool> {
        let (mut one, mut two) = ([0; BLOCK_BYTES as usize], [0; BLOCK_BYTES as usize]);
        let mut at = 0;
        while at < length {
            let size = (length - at).min(BLOCK_BYTES) as usize;
            self.block_of(source, from_offset + at, &mut one)?;
            self.block_of(target, to_offset + at, &mut two)?;
            if one[..size] != two[..size] {
                return Ok(false);
            }
            at += BLOCK_BYTES;
        }
        Ok(true)
    }

    /// A block of a file, read under its lock.
    fn block_of(&self, locked: &Locked<'s>, at: u64, bytes: &mut Block) -> Result<()> {
        match self.mapping(locked.inode, &locked.record, at)? {
            Mapping::Blocks { block, .. } => self.disk().read_block(block, bytes),
            Mapping::Hole { .. } => {
                bytes.fill(0);
                Ok(())
            }
        }
    }

    /// Clones as much of a range as one entry can say; returns how many blocks that was.
    fn clone_some(
        &self,
        source: &Locked<'s>,
        target: &Locked<'s>,
        ranges: Ranges,
        to_end: u64,
        sharing: Sharing,
    ) -> Result<u64> {
        let mut batch = Batch::new();
        let mut count = ranges.count;
        self.extents(source.inode, &source.record)
            .for_each_from(ranges.from, &mut |extent| {
                if extent.file_block >= ranges.from + ranges.count {
                    return false;
                }
                if batch.count == REMAP_EXTENTS_MAX {
                    count = extent.file_block - ranges.from;
                    return false;
                }
                let start = extent.file_block.max(ranges.from);
                let end = (extent.file_block + extent.count).min(ranges.from + ranges.count);
                batch.list[batch.count] = FileExtent {
                    file_block: ranges.to + (start - ranges.from),
                    block: extent.block + (start - extent.file_block),
                    count: (end - start) as u32,
                    shared: true,
                };
                batch.count += 1;
                true
            })
            .map_err(index_error)?;
        self.begin_sharing(source, ranges.from, count)?;
        if source.record.maps().may_be_dirty() {
            let mut commit = self.disk().begin();
            for extent in batch.list() {
                commit.flush(extent.block * BLOCK_BYTES, extent.count as u64 * BLOCK_BYTES)?;
            }
            // Under the fence of the entry: until then they are what a map has left unsynced, in both files.
            commit.without_fence();
        }
        // The target's log may have been read already by who counts what is in use.
        batch.list().iter().try_for_each(|extent| self.trust_blocks(extent.block, extent.count as u64))?;
        let shares = self.shares()?;
        for (added, extent) in batch.list().iter().enumerate() {
            if let Err(error) = shares.add(extent.block, extent.count as u64) {
                self.take_back(&batch.list()[..added])?;
                return Err(error);
            }
        }
        let size_bytes = target.record.size().max(to_end.min((ranges.to + count) * BLOCK_BYTES));
        let payload =
            Payload::Remap { size_bytes, file_block: ranges.to, count, extents: EntryExtents::List(batch.list()) };
        let time = if sharing == Sharing::Clone { target.now() } else { TIMES_STAY };
        let extents = self.extents(target.inode, &target.record);
        let reserved = extents.reserve_pieces(ranges.to, count, batch.count).map_err(index_error);
        let appended = reserved.and_then(|nodes| Ok((nodes, self.append_remap(target, time, &payload)?)));
        match appended {
            Ok((nodes, durable)) => {
                let published = self.publish_remap(target, ranges.to, count, batch.list(), nodes, &durable);
                if sharing == Sharing::Clone {
                    target.record.touch(time);
                }
                target.record.set_size(size_bytes);
                if self.follows(target, published) { Ok(count) } else { Err(index_error(IndexError::Torn)) }
            }
            Err(error) => {
                self.take_back(batch.list())?;
                Err(error)
            }
        }
    }

    // Its buffer is on the stack only while it runs.
    #[inline(never)]
    fn append_remap(&self, target: &Locked<'s>, time: i64, payload: &Payload<'_>) -> Result<Durable> {
        self.append(target, time, payload, &mut [0; ENTRY_BYTES_MAX])
    }

    /// Puts what a remap entry says into the map, and frees what was there before.
    fn publish_remap(
        &self,
        target: &Locked<'s>,
        file_block: u64,
        count: u64,
        list: &[FileExtent],
        mut nodes: Reservation<'_>,
        durable: &Durable,
    ) -> Result<()> {
        self.unmap_blocks(target, file_block, count, &mut nodes, durable)?;
        let extents = self.extents(target.inode, &target.record);
        for extent in list {
            let FileExtent { file_block, block, count, shared } = *extent;
            let new = index::FileExtent { file_block, block, count: count as u64, shared };
            extents.map_extent(new, &mut nodes, &mut |_| {}).map_err(index_error)?;
            target.record.set_blocks(target.record.blocks().wrapping_add(new.count));
        }
        Ok(())
    }

    /// Takes references back that no entry has made.
    fn take_back(&self, list: &[FileExtent]) -> Result<()> {
        let shares = self.shares()?;
        for extent in list {
            for block in extent.block..extent.block + extent.count as u64 {
                shares.drop_one(block)?;
            }
        }
        Ok(())
    }

    /// What the last block holds behind the end of the file becomes zeros: the file grows over it with an entry that has no
    /// hash.
    fn zero_behind_end(&self, locked: &Locked<'s>) -> Result<()> {
        let size = locked.record.size();
        if size.is_multiple_of(BLOCK_BYTES) {
            return Ok(());
        }
        self.unshare_tail(locked)?;
        if let Mapping::Blocks { block, .. } = self.mapping(locked.inode, &locked.record, size)? {
            let mut commit = self.disk().begin();
            commit.zero(block * BLOCK_BYTES + size % BLOCK_BYTES, BLOCK_BYTES - size % BLOCK_BYTES)?;
            let _ = commit.fence();
        }
        Ok(())
    }

    /// Whether somebody has mapped blocks of a file.
    fn is_pinned(&self, locked: &Locked<'s>, range: Range<u64>) -> Result<bool> {
        let space = self.core.space.blocks(self)?;
        let mut outcome = Ok(false);
        self.extents(locked.inode, &locked.record)
            .for_each_from(range.start, &mut |extent| {
                let start = extent.file_block.max(range.start);
                let end = (extent.file_block + extent.count).min(range.end);
                if start >= end {
                    return false;
                }
                let blocks =
                    SpaceExtent { start: extent.block + (start - extent.file_block), count: (end - start) as u32 };
                outcome = space.is_pinned(&self.thread, blocks).map_err(crate::storage::error);
                matches!(outcome, Ok(false))
            })
            .map_err(index_error)?;
        outcome
    }

    /// Notes durably, once, that the volume uses a feature.
    pub(crate) fn need_feature(&self, feature: u64) -> Result<()> {
        if self.disk().has_feature(feature) {
            return Ok(());
        }
        let lock = self.take(self.core.places.control(CONTROL_SUPERBLOCK_LOCK))?;
        let outcome = self.disk().add_feature(feature);
        lock.unlock();
        outcome
    }
}
