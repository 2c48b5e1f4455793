//! Truncating and extending, and the `fallocate` family. What it makes zeros is in [`crate::zero`].

use crate::attributes::ATTRIBUTES_ENTRY_BYTES;
use crate::disk::{Durable, access_error};
use crate::format::entry::{Extents as EntryExtents, FileExtent, LoggedAttributes, Payload};
use crate::format::slot::AT_TOUCHED;
use crate::format::superblock::{FEATURE_RESIZE, FEATURE_RESIZE_KEEPS};
use crate::format::{BLOCK_BYTES, LINE_BYTES, Tag};
use crate::index::{FILE_BLOCK_LIMIT, IndexError, Mapping, Reservation};
use crate::ops::{Locked, Need, Op, index_error};
use crate::write::FILE_BYTES_MAX;
use crate::write_entry::Displaced;
use gannet_media::{DataHash, MediumOffset};
use gannet_vfs::{AllocateMode, Errno, Error, FileType, NodeId, Result};

/// Blocks that one entry of an allocation covers at most: zeroing them bounds how long others wait.
const ALLOCATE_BLOCKS_MAX: u64 = 16 << 10;

impl<'s> Op<'s> {
    /// Sets the size of a locked file, and with the same entry all attributes if there are any to set.
    pub(crate) fn resize(&self, locked: &Locked<'s>, size_bytes: u64, with: Option<&LoggedAttributes>) -> Result<()> {
        if size_bytes > FILE_BYTES_MAX {
            return Err(Error::new(Errno::FBIG));
        }
        if with.is_some() {
            self.need_feature(FEATURE_RESIZE)?;
        }
        if size_bytes > locked.record.size() {
            let keeps = with.is_some() && self.has_blocks_behind(locked, size_bytes)?;
            if keeps {
                self.need_feature(FEATURE_RESIZE_KEEPS)?;
            }
            return self.extend(locked, size_bytes, with.map(|with| (with, keeps)));
        }
        self.need.set(Need::Freeing);
        let (time, payload) = self.size_payload(locked, size_bytes, None, with.map(|with| (with, false)))?;
        let durable = self.append(locked, time, &payload, &mut [0; ATTRIBUTES_ENTRY_BYTES])?;
        self.publish_size(locked, size_bytes, time, with);
        // Who was on the way to write in place behind the new end comes to an end: what is extended over it later is
        // covered by a hash. The blocks that go are waited for as they go.
        let passed = match size_bytes.is_multiple_of(BLOCK_BYTES) {
            true => Ok(()),
            false => self.pass_stripes(locked.inode, size_bytes / BLOCK_BYTES, 1),
        };
        let _ = self.follows(locked, passed.and_then(|()| self.unmap_behind(locked, size_bytes, &durable)));
        Ok(())
    }

    /// Whether a file has blocks behind what would be its end: allocated beforehand.
    fn has_blocks_behind(&self, locked: &Locked<'s>, size_bytes: u64) -> Result<bool> {
        let map = self.extents(locked.inode, &locked.record);
        Ok(map.next_mapped(size_bytes.div_ceil(BLOCK_BYTES)).map_err(index_error)?.is_some())
    }

    /// Unmaps what is behind the end, also what was allocated there beforehand, as the entry of a new size does.
    fn unmap_behind(&self, locked: &Locked<'s>, size_bytes: u64, durable: &Durable) -> Result<()> {
        let from = size_bytes.div_ceil(BLOCK_BYTES);
        // Nothing is left behind what goes, so nothing is added to the map.
        let mut nodes = self.tree(locked.inode, &locked.record).no_reservation().map_err(index_error)?;
        self.unmap_blocks(locked, from, FILE_BLOCK_LIMIT - from, &mut nodes, durable)
    }

    /// The entry that sets a size, and its time; with other attributes it says whether it keeps what is behind the end.
    fn size_payload(
        &self,
        locked: &Locked<'s>,
        size_bytes: u64,
        hash: Option<u64>,
        with: Option<(&LoggedAttributes, bool)>,
    ) -> Result<(i64, Payload<'static>)> {
        Ok(match with {
            // What was allocated behind the new end beforehand stays: an entry about the size alone would unmap it.
            None if size_bytes > locked.record.size() => {
                (locked.now(), Payload::Write { size_bytes, hash, extents: EntryExtents::List(&[]) })
            }
            None => (locked.now(), Payload::Size { size_bytes, hash }),
            Some((with, keeps)) => {
                let attributes = LoggedAttributes { size_bytes, ..*with };
                (self.time_of_attributes(locked)?, Payload::Resize { attributes, hash, keeps })
            }
        })
    }

    /// Tells the record of a size that is durable.
    fn publish_size(&self, locked: &Locked<'s>, size_bytes: u64, time: i64, with: Option<&LoggedAttributes>) {
        match with {
            None => locked.record.touch(time),
            Some(with) => locked.record.set_logged(with, time),
        }
        locked.record.set_size(size_bytes);
    }

    /// Grows a file: what its last block holds behind the old end becomes zeros, proved by the entry's hash.
    fn extend(&self, locked: &Locked<'s>, size_bytes: u64, with: Option<(&LoggedAttributes, bool)>) -> Result<()> {
        let record = &locked.record;
        let before = record.size();
        let owned = locked.owned(self.core);
        self.unshare_tail(locked)?;
        let tail = match self.mapping(locked.inode, record, before)? {
            Mapping::Blocks { block, .. } if !before.is_multiple_of(BLOCK_BYTES) => {
                let end = size_bytes.min((before / BLOCK_BYTES + 1) * BLOCK_BYTES);
                Some((block * BLOCK_BYTES + before % BLOCK_BYTES, end - before))
            }
            _ => None,
        };
        let (_, payload) = self.size_payload(locked, size_bytes, None, with)?;
        let prepared = self.prepare_sealed(locked, payload.lines())?;
        let mut commit = self.disk().begin();
        let mut hash = DataHash::new(owned.key.seed(Tag::Data, owned.inode as u64, owned.generation as u64));
        if let Some((at, length_bytes)) = tail
            && let Err(error) = self.disk().medium().zero_hashed(MediumOffset(at), length_bytes, &mut hash)
        {
            return Err(self.cancel_with(prepared, access_error(error)));
        }
        let (time, payload) = match self.size_payload(locked, size_bytes, Some(hash.value()), with) {
            Ok(payload) => payload,
            Err(error) => return Err(self.cancel_with(prepared, error)),
        };
        self.write_entry(&mut commit, locked, &prepared, time, &payload, &mut [0; ATTRIBUTES_ENTRY_BYTES])?;
        let durable = commit.fence();
        self.publish_entry(locked, prepared, &durable);
        if let Some((_, length_bytes)) = tail {
            record.set_unsealed_start(before);
            record.set_unsealed_end(before + length_bytes);
        }
        self.publish_size(locked, size_bytes, time, with.map(|(with, _)| with));
        self.seal_mapped(locked);
        Ok(())
    }

    /// Unmaps blocks that the log says are unmapped, and frees them. `nodes` was reserved for the range before the log said so: from
    /// then on nothing may fail for want of one.
    pub(crate) fn unmap_blocks(
        &self,
        locked: &Locked<'s>,
        file_block: u64,
        count: u64,
        nodes: &mut Reservation<'_>,
        durable: &Durable,
    ) -> Result<()> {
        if count == 0 {
            return Ok(());
        }
        let extents = self.extents(locked.inode, &locked.record);
        let end = file_block + count;
        // From the end, in batches, so that however many extents there are all are freed.
        loop {
            let mut displaced = Displaced::new();
            let mut from = end;
            let mut found = 0;
            extents
                .for_each_from(file_block, &mut |extent| {
                    if extent.file_block >= end {
                        return false;
                    }
                    found += 1;
                    from = (extent.file_block + extent.count).min(end);
                    found < 64
                })
                .map_err(index_error)?;
            if found == 0 {
                return Ok(());
            }
            let mut gone = 0;
            extents
                .unmap(file_block, from - file_block, nodes, &mut |old| {
                    gone += old.count;
                    displaced.push(old);
                })
                .map_err(index_error)?;
            locked.record.set_blocks(locked.record.blocks().saturating_sub(gone));
            for &extent in &displaced.list[..displaced.count] {
                self.free_extent(locked.inode, extent, durable)?;
            }
            if gone == 0 {
                return Ok(());
            }
        }
    }

    /// `fallocate(2)`.
    pub(crate) fn allocate(&self, node: NodeId, mode: AllocateMode, offset: u64, length: u64) -> Result<()> {
        let locked = self.lock(node)?;
        match locked.state.file_type {
            FileType::Regular => {}
            FileType::Directory => return Err(Error::new(Errno::ISDIR)),
            _ => return Err(Error::new(Errno::NODEV)),
        }
        if length == 0 {
            return Err(Error::new(Errno::INVAL));
        }
        let end = offset.checked_add(length).filter(|&end| end <= FILE_BYTES_MAX).ok_or(Error::new(Errno::FBIG))?;
        let modified =
            || -> Result<i64> { Ok(self.attributes_of(locked.inode, &locked.record, locked.state)?.modified.0) };
        let (now, before) = (locked.now(), modified()?);
        match mode {
            AllocateMode::Extend | AllocateMode::KeepSize | AllocateMode::Unshare | AllocateMode::UnshareKeepSize => {
                let blocks = offset / BLOCK_BYTES..end.div_ceil(BLOCK_BYTES);
                if matches!(mode, AllocateMode::Unshare | AllocateMode::UnshareKeepSize) {
                    self.unshare(&locked, blocks.clone())?;
                }
                let size = match mode {
                    AllocateMode::Extend | AllocateMode::Unshare => locked.record.size().max(end),
                    _ => locked.record.size(),
                };
                self.fill_holes(&locked, blocks.start, blocks.end)?;
                self.grow_after(&locked, size)
            }
            AllocateMode::PunchHole => self.punch(&locked, offset, end),
            AllocateMode::Zero | AllocateMode::ZeroKeepSize => {
                let size = match mode {
                    AllocateMode::Zero => locked.record.size().max(end),
                    _ => locked.record.size(),
                };
                self.zero_range(&locked, offset, end, size)
            }
            AllocateMode::Collapse => self.collapse(&locked, offset, end),
            AllocateMode::Insert => self.insert(&locked, offset, length),
        }?;
        // What got an entry has its times, and they are not moved once more: that would be a state between two.
        let after = modified()?;
        if after == before && after != now {
            self.touch(&locked)?;
        }
        self.collect_some(&locked);
        locked.guard.unlock();
        Ok(())
    }

    /// Moves the times of a file whose log got no entry: there was nothing to do, but it counts as a change all the same.
    fn touch(&self, locked: &Locked<'s>) -> Result<()> {
        let mut commit = self.disk().begin();
        // Unnoticed [store]: a time, for which the conformance suite asks.
        commit.store(self.slot_word(locked.inode, AT_TOUCHED)?, locked.now() as u64)?;
        let _ = commit.fence();
        locked.record.set_access_fresh(0);
        Ok(())
    }

    pub(crate) fn grow_after(&self, locked: &Locked<'s>, size: u64) -> Result<()> {
        if size > locked.record.size() { self.extend(locked, size, None) } else { Ok(()) }
    }

    /// How many of these blocks of the file are holes.
    pub(crate) fn hole_blocks(&self, locked: &Locked<'s>, from: u64, to: u64) -> Result<u64> {
        let mut missing = 0;
        let mut next = from;
        while next < to {
            let (count, hole) = match self.mapping(locked.inode, &locked.record, next * BLOCK_BYTES)? {
                Mapping::Blocks { count, .. } => (count, 0),
                Mapping::Hole { count } => (count, count.min(to - next)),
            };
            missing += hole;
            next += count;
        }
        Ok(missing)
    }

    /// `ENOSPC` if so many blocks cannot be had now. Nothing is set aside: others may be faster.
    pub(crate) fn look_for_room(&self, blocks: u64) -> Result<()> {
        let reserve = self.disk().geometry().reserve();
        let lacks =
            || -> Result<bool> { Ok(blocks > 0 && blocks + reserve > self.core.space.blocks(self)?.free_blocks()) };
        let mut lacking = lacks()?;
        if lacking && (self.empty_limbo()? | self.take_others_limbo()?) {
            lacking = lacks()?;
        }
        if lacking { Err(Error::because(Errno::NOSPC, "the volume is full")) } else { Ok(()) }
    }

    /// Gives all holes among these blocks of the file zeroed blocks.
    pub(crate) fn fill_holes(&self, locked: &Locked<'s>, from: u64, to: u64) -> Result<()> {
        let record = &locked.record;
        // All or nothing, as far as can be known beforehand.
        self.look_for_room(self.hole_blocks(locked, from, to)?)?;
        let mut next = from;
        while next < to {
            let hole = match self.mapping(locked.inode, record, next * BLOCK_BYTES)? {
                Mapping::Blocks { count, .. } => {
                    next += count;
                    continue;
                }
                Mapping::Hole { count } => count.min(to - next).min(ALLOCATE_BLOCKS_MAX),
            };
            let goal = self.block_behind(locked, next)?;
            let held = self.allocate_blocks(hole as u32, goal)?;
            let extent =
                FileExtent { file_block: next, block: held.extent().start, count: held.extent().count, shared: false };
            match self.map_zeroed(locked, extent) {
                Ok(followed) => {
                    self.keep_held(held);
                    if !self.follows(locked, followed) {
                        return Err(index_error(IndexError::Torn));
                    }
                }
                Err(error) => {
                    self.release_held(held)?;
                    return Err(error);
                }
            }
            next += extent.count as u64;
        }
        Ok(())
    }

    /// Maps fresh blocks as zeros. Once that is durable they are the file's; whether its index could follow is returned then.
    fn map_zeroed(&self, locked: &Locked<'s>, extent: FileExtent) -> Result<Result<()>> {
        let record = &locked.record;
        let extents = self.extents(locked.inode, record);
        let mut nodes = extents.reserve(extent.file_block, extent.count as u64).map_err(index_error)?;
        let list = [extent];
        let payload = Payload::Write { size_bytes: record.size(), hash: None, extents: EntryExtents::List(&list) };
        let prepared = self.prepare(locked, payload.lines(), true)?;
        let mut zeros = self.disk().begin();
        let zeroed = zeros.zero(extent.block * BLOCK_BYTES, extent.count as u64 * BLOCK_BYTES);
        if let Err(error) = zeroed {
            return Err(self.cancel_with(prepared, error));
        }
        let _ = zeros.fence();
        let time = locked.now();
        let mut commit = self.disk().begin();
        self.write_entry(&mut commit, locked, &prepared, time, &payload, &mut [0; LINE_BYTES as usize])?;
        let durable = commit.fence();
        let followed = extents
            .map(extent.file_block, extent.block, extent.count as u64, &mut nodes, &mut |_| {})
            .map_err(index_error);
        drop(nodes);
        record.set_blocks(record.blocks().wrapping_add(extent.count as u64));
        record.touch(time);
        self.publish_entry(locked, prepared, &durable);
        Ok(followed)
    }

    fn collapse(&self, locked: &Locked<'s>, offset: u64, end: u64) -> Result<()> {
        let record = &locked.record;
        let size = record.size();
        if !offset.is_multiple_of(BLOCK_BYTES) || !end.is_multiple_of(BLOCK_BYTES) || end >= size {
            return Err(Error::new(Errno::INVAL));
        }
        let (first, last) = (offset / BLOCK_BYTES, end / BLOCK_BYTES);
        let distance = last - first;
        let extents = self.extents(locked.inode, record);
        let mut nodes = extents.reserve(first, distance).map_err(index_error)?;
        let time = locked.now();
        let size_bytes = size - (end - offset);
        let payload = Payload::Shift { file_block: last, distance, down: true, size_bytes };
        let durable = self.append(locked, time, &payload, &mut [0; ATTRIBUTES_ENTRY_BYTES])?;
        self.note_shift(locked, last, distance, true);
        record.touch(time);
        let moved = self
            .unmap_blocks(locked, first, distance, &mut nodes, &durable)
            // No extent covers both sides of `last` now, so that moving what is behind it splits none.
            .and_then(|()| extents.shift(last, -(distance as i64), &mut nodes).map_err(index_error));
        drop(nodes);
        record.set_size(size_bytes);
        let passed = self.pass_stripes(locked.inode, first, size.div_ceil(BLOCK_BYTES) - first);
        let _ = self.follows(locked, moved.and(passed));
        Ok(())
    }

    fn insert(&self, locked: &Locked<'s>, offset: u64, length: u64) -> Result<()> {
        let record = &locked.record;
        let size = record.size();
        if !offset.is_multiple_of(BLOCK_BYTES) || !length.is_multiple_of(BLOCK_BYTES) || offset >= size {
            return Err(Error::new(Errno::INVAL));
        }
        let size_bytes = size + length;
        if size_bytes > FILE_BYTES_MAX {
            return Err(Error::new(Errno::FBIG));
        }
        let (first, distance) = (offset / BLOCK_BYTES, length / BLOCK_BYTES);
        let extents = self.extents(locked.inode, record);
        // There may be blocks far behind the end (fallocate). Before the entry: behind it there is no way back.
        extents.check_room(first, distance).map_err(index_error)?;
        let mut nodes = extents.reserve(first, 1).map_err(index_error)?;
        let time = locked.now();
        let payload = Payload::Shift { file_block: first, distance, down: false, size_bytes };
        self.append(locked, time, &payload, &mut [0; ATTRIBUTES_ENTRY_BYTES])?;
        self.note_shift(locked, first, distance, false);
        record.touch(time);
        let moved = extents.shift(first, distance as i64, &mut nodes).map_err(index_error);
        drop(nodes);
        record.set_size(size_bytes);
        let passed = self.pass_stripes(locked.inode, first, size.div_ceil(BLOCK_BYTES) + distance - first);
        let _ = self.follows(locked, moved.and(passed));
        Ok(())
    }
}
