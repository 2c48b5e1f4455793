//! Writing with an entry: fresh blocks and the bytes behind the old end of a file, which nobody sees, become visible by a log
//! entry that carries a hash of them, all under one fence; then the map is changed and the size stored.

use crate::disk::Durable;
use crate::format::entry::{Extents as EntryExtents, FileExtent, Payload};
use crate::format::{BLOCK_BYTES, Tag};
use crate::index::{self, Extents, Mapping, Reservation, Spot};
use crate::ops::{Locked, Op, index_error};
use crate::record::Record;
use crate::space::Held;
use crate::write_copy::Writer;
use gannet_media::DataHash;
use gannet_vfs::usermem::Source;
use gannet_vfs::{Errno, NodeId, Result};
use std::ops::Range;

/// Blocks taken for one entry, in up to `N` extents: a write of one block, which most are, does not make room for more.
pub(crate) struct Fresh<'x, const N: usize> {
    /// Where they belong in the file's map, as it was before.
    pub(crate) spot: Option<Spot<'x>>,
    held: [Option<Held>; N],
    extents: [FileExtent; N],
    count: usize,
    /// The entry that refers to them is stored: whatever fails from now on, they are the file's.
    committed: bool,
}

impl<'x, const N: usize> Fresh<'x, N> {
    pub(crate) const fn new(spot: Option<Spot<'x>>) -> Self {
        Self {
            spot,
            held: [const { None }; N],
            extents: [FileExtent { file_block: 0, block: 0, count: 0, shared: false }; N],
            count: 0,
            committed: false,
        }
    }

    pub(crate) const fn is_committed(&self) -> bool {
        self.committed
    }

    pub(crate) fn list(&self) -> &[FileExtent] {
        &self.extents[..self.count]
    }
}

/// Where the bytes of a write with an entry are.
pub(crate) enum Data<'d, 'u> {
    /// In the caller's memory.
    From(&'d mut Source<'u>),
    /// In the fresh blocks, which begin and end with the write; their hash.
    Copied(&'d DataHash),
}

/// Where in the file the first of fresh blocks begins, in bytes; beyond all if there are none.
fn first_block_of<const N: usize>(fresh: &Fresh<'_, N>) -> u64 {
    fresh.list().first().map_or(u64::MAX, |extent| extent.file_block * BLOCK_BYTES)
}

impl<'s> Op<'s> {
    /// Writes `at..end` into fresh blocks, and into the tail of the old last block, under one fence with their entry.
    /// `N` is the most extents that it takes, `DISPLACED` how many may lose their place.
    #[inline]
    pub(crate) fn write_entry_data<const N: usize, const DISPLACED: usize>(
        &self,
        locked: &Locked<'s>,
        at: u64,
        end: u64,
        from: &mut Source<'_>,
        copy_on_write: bool,
    ) -> Result<usize> {
        let size = locked.record.size();
        // Bytes behind the end are nobody's: there is nothing to be copied before they are written.
        let replaced = (copy_on_write && at < size).then_some((at, end));
        let tail = if end > size { self.tail_block(locked, replaced)? } else { None };
        // With the old last block's tail in use, fresh blocks begin behind it.
        let first = match tail {
            Some(_) if at / BLOCK_BYTES <= size / BLOCK_BYTES => size / BLOCK_BYTES + 1,
            _ => at / BLOCK_BYTES,
        };
        let began = from.clone();
        let extents = self.extents(locked.inode, &locked.record);
        let spot = (first < end.div_ceil(BLOCK_BYTES)).then(|| extents.spot(first)).transpose().map_err(index_error)?;
        let goal = spot.as_ref().map(|spot| extents.block_behind(spot)).transpose().map_err(index_error)?.flatten();
        let mut fresh = Fresh::<N>::new(spot);
        let taken = self.take_fresh(&mut fresh, goal, first, at, end);
        let outcome = taken
            .and_then(|end| self.write_and_commit::<N, DISPLACED>(locked, &mut fresh, tail, at, end, Data::From(from)));
        if outcome.is_err() {
            *from = began;
        }
        self.let_go_of_fresh(&mut fresh)?;
        outcome
    }

    /// Blocks that an entry refers to are the file's, which must still be locked; others are free again.
    pub(crate) fn let_go_of_fresh<const N: usize>(&self, fresh: &mut Fresh<'_, N>) -> Result<()> {
        let committed = fresh.committed;
        let mut outcome = Ok(());
        for held in fresh.held.iter_mut().filter_map(Option::take) {
            if committed {
                self.keep_held(held);
            } else {
                outcome = outcome.and(self.release_held(held));
            }
        }
        outcome
    }

    /// The block that holds the file's old end, if the end is inside of a mapped block that stays.
    fn tail_block(&self, locked: &Locked<'s>, replaced: Option<(u64, u64)>) -> Result<Option<u64>> {
        let size = locked.record.size();
        if size.is_multiple_of(BLOCK_BYTES) {
            return Ok(None);
        }
        let last = size / BLOCK_BYTES;
        if replaced.is_some_and(|(at, end)| (at / BLOCK_BYTES..end.div_ceil(BLOCK_BYTES)).contains(&last)) {
            return Ok(None);
        }
        let block_of = |mapping| match mapping {
            Mapping::Blocks { block, shared, .. } => Some((block, shared)),
            Mapping::Hole { .. } => None,
        };
        let found = block_of(self.mapping(locked.inode, &locked.record, size)?);
        if !matches!(found, Some((_, true))) {
            return Ok(found.map(|(block, _)| block));
        }
        // It is written in place, behind the end.
        self.unshare_tail(locked)?;
        Ok(block_of(self.mapping(locked.inode, &locked.record, size)?).map(|(block, _)| block))
    }

    /// The volume's block with which a file goes on without a break at one of its blocks, if it has the one before.
    pub(crate) fn block_behind(&self, locked: &Locked<'s>, file_block: u64) -> Result<Option<u64>> {
        let Some(before) = file_block.checked_sub(1) else { return Ok(None) };
        Ok(match self.mapping(locked.inode, &locked.record, before * BLOCK_BYTES)? {
            Mapping::Blocks { block, .. } => Some(block + 1),
            Mapping::Hole { .. } => None,
        })
    }

    /// Takes blocks for the file's blocks from `first` to `end`, if possible from `goal` on; returns the end that they suffice for.
    pub(crate) fn take_fresh<const N: usize>(
        &self,
        fresh: &mut Fresh<'_, N>,
        goal: Option<u64>,
        first: u64,
        at: u64,
        end: u64,
    ) -> Result<u64> {
        let last = end.div_ceil(BLOCK_BYTES);
        let (mut next, mut goal) = (first, goal);
        while next < last && fresh.count < N {
            let want = (last - next).min((1 << 24) - 1) as u32;
            match self.allocate_blocks(want, goal) {
                Ok(held) => {
                    let extent = held.extent();
                    fresh.extents[fresh.count] =
                        FileExtent { file_block: next, block: extent.start, count: extent.count, shared: false };
                    fresh.held[fresh.count] = Some(held);
                    fresh.count += 1;
                    next += extent.count as u64;
                    goal = Some(extent.end());
                }
                // A write that fits in part is done in part.
                Err(error) if error.errno() == Errno::NOSPC && (next > first || first * BLOCK_BYTES > at) => break,
                Err(error) => return Err(error),
            }
        }
        Ok(end.min((next * BLOCK_BYTES).max(at)))
    }

    #[inline]
    pub(crate) fn write_and_commit<const N: usize, const DISPLACED: usize>(
        &self,
        locked: &Locked<'s>,
        fresh: &mut Fresh<'_, N>,
        tail: Option<u64>,
        at: u64,
        end: u64,
        data: Data<'_, '_>,
    ) -> Result<usize> {
        let record = &locked.record;
        let size = record.size();
        let size_after = size.max(end);
        let time = locked.now();
        let payload_lines =
            Payload::Write { size_bytes: 0, hash: None, extents: EntryExtents::List(fresh.list()) }.lines();
        let extents = self.extents(locked.inode, record);
        let mut nodes = match (&fresh.spot, fresh.list().last()) {
            (Some(spot), Some(last)) => extents.reserve_at(spot, last.file_block + last.count as u64, fresh.count),
            _ => extents.tree().no_reservation(),
        }
        .map_err(index_error)?;
        // A border between two of the fresh extents cuts an old one into two pieces.
        let pieces_max = (DISPLACED + 1).saturating_sub(fresh.count);
        let is_long =
            N > 1 && first_block_of(fresh) < size && self.displaces_more_than(locked, fresh.list(), pieces_max)?;
        self.pass_edges(locked, fresh, at..end)?;
        let prepared = match tail {
            // Bytes of a block that somebody may have mapped.
            Some(_) => self.prepare_sealed(locked, payload_lines)?,
            None => self.prepare(locked, payload_lines, true)?,
        };

        let mut commit = self.disk().begin();
        let hash = match data {
            Data::Copied(hash) => hash.value(),
            Data::From(from) => {
                let mut hash = self.data_hash(locked.node());
                let mut writer = Writer { op: self, at, end, from, hash: &mut hash };
                let copied = writer.tail(tail, size, size_after).and_then(|()| {
                    fresh.list().iter().try_for_each(|extent| writer.fresh(locked, *extent, size_after))
                });
                if let Err(error) = copied {
                    return Err(self.cancel_with(prepared, error));
                }
                hash.value()
            }
        };
        let payload =
            Payload::Write { size_bytes: size_after, hash: Some(hash), extents: EntryExtents::List(fresh.list()) };
        self.write_entry(&mut commit, locked, &prepared, time, &payload, &mut [])?;
        fresh.committed = true;

        // Nobody sees what follows before the lock is released: it is done while the stores are on their way.
        let mut displaced = DisplacedBy::<DISPLACED>::new();
        let (mut followed, mut nodes) = if is_long {
            (Ok(()), Some(nodes))
        } else {
            let followed = Self::map_fresh(&extents, record, fresh, &mut nodes, &mut displaced);
            drop(nodes);
            (followed, None)
        };
        record.touch(time);
        self.advance_change(locked, &prepared);
        record.set_unsealed_start(first_block_of(fresh).min(if size_after > size { size } else { u64::MAX }));
        record.set_unsealed_end(size_after);
        record.set_size(size_after);
        let durable = commit.fence();

        self.conclude(prepared, &durable);
        if let Some(nodes) = &mut nodes {
            followed = self.map_long(locked, fresh.list(), nodes, &durable);
        }
        // What an index that is damaged says was displaced is not given to others.
        let is_known = followed.is_ok();
        if self.follows(locked, followed) && tail.is_some() {
            self.seal_mapped(locked);
        }
        if is_known {
            self.or_count_again(self.free_displaced(locked, &displaced, &durable));
        }
        Ok((end - at) as usize)
    }

    /// What the data of an inode's entries is hashed with.
    pub(crate) fn data_hash(&self, node: NodeId) -> DataHash {
        DataHash::new(self.disk().key().seed(Tag::Data, node.number, u64::from(node.generation)))
    }

    /// Puts fresh blocks into the file's map, and what they displace into the list.
    fn map_fresh<const N: usize, const DISPLACED: usize>(
        extents: &Extents<'_>,
        record: &Record<'_>,
        fresh: &Fresh<'_, N>,
        nodes: &mut Reservation<'_>,
        displaced: &mut DisplacedBy<DISPLACED>,
    ) -> Result<()> {
        let (mut added, mut displaced_blocks) = (0, 0);
        let mut spot = fresh.spot.as_ref();
        let mut followed = Ok(());
        for extent in fresh.list() {
            let count = extent.count as u64;
            let mut displace = |old: index::FileExtent| {
                displaced_blocks += old.count;
                displaced.push(old);
            };
            followed = match spot.take() {
                Some(spot) => extents.map_at(spot, extent.block, count, nodes, &mut displace),
                None => extents.map(extent.file_block, extent.block, count, nodes, &mut displace),
            }
            .map_err(index_error);
            if followed.is_err() {
                break;
            }
            added += count;
        }
        record.set_blocks(record.blocks().wrapping_add(added).wrapping_sub(displaced_blocks));
        followed
    }

    /// Whether blocks displace more extents of a file than that.
    fn displaces_more_than(&self, locked: &Locked<'s>, fresh: &[FileExtent], most: usize) -> Result<bool> {
        let [Some(first), Some(last)] = [fresh.first(), fresh.last()] else { return Ok(false) };
        let end = last.file_block + last.count as u64;
        let mut found = 0;
        self.extents(locked.inode, &locked.record)
            .for_each_from(first.file_block, &mut |extent| {
                found += usize::from(extent.file_block < end);
                extent.file_block < end && found <= most
            })
            .map_err(index_error)?;
        Ok(found > most)
    }

    /// As [`Op::map_fresh`], behind the fence: what had those places is freed first, however many extents that are.
    #[cold]
    #[inline(never)]
    fn map_long(
        &self,
        locked: &Locked<'s>,
        fresh: &[FileExtent],
        nodes: &mut Reservation<'_>,
        durable: &Durable,
    ) -> Result<()> {
        let extents = self.extents(locked.inode, &locked.record);
        for extent in fresh {
            let (count, block) = (extent.count as u64, extent.block);
            self.unmap_blocks(locked, extent.file_block, count, nodes, durable)?;
            extents.map(extent.file_block, block, count, nodes, &mut |_| {}).map_err(index_error)?;
            locked.record.set_blocks(locked.record.blocks().wrapping_add(count));
        }
        Ok(())
    }

    /// Waits for those who write in place to the blocks whose edges will be copied. New ones cannot come while the inode's
    /// lock is held; there are any only if the file was switched to copy-on-write while they were at work.
    fn pass_edges<const N: usize>(&self, locked: &Locked<'s>, fresh: &Fresh<'_, N>, written: Range<u64>) -> Result<()> {
        let [Some(first), Some(last)] = [fresh.list().first(), fresh.list().last()] else { return Ok(()) };
        // Nobody writes in place behind the end, and a block that is written whole is not copied.
        let size = locked.record.size();
        let is_copied = |file_block: u64| {
            let start = file_block * BLOCK_BYTES;
            start < size && (start < written.start || written.end < size.min(start + BLOCK_BYTES))
        };
        let edges = [first.file_block, last.file_block + last.count as u64 - 1];
        for file_block in edges.into_iter().filter(|&file_block| is_copied(file_block)) {
            if let Mapping::Blocks { .. } = self.mapping(locked.inode, &locked.record, file_block * BLOCK_BYTES)? {
                self.pass_stripes(locked.inode, file_block, 1)?;
            }
        }
        Ok(())
    }

    fn free_displaced<const N: usize>(
        &self,
        locked: &Locked<'s>,
        displaced: &DisplacedBy<N>,
        durable: &Durable,
    ) -> Result<()> {
        if displaced.lost > 0 {
            self.set_uncertain()?;
        }
        displaced.list[..displaced.count].iter().try_for_each(|&extent| self.free_extent(locked.inode, extent, durable))
    }
}

/// Extents that lost their place in a map, as many as are expected at most.
pub(crate) type Displaced = DisplacedBy<128>;

/// Up to `N` extents that lost their place in a map.
pub(crate) struct DisplacedBy<const N: usize> {
    pub(crate) list: [index::FileExtent; N],
    pub(crate) count: usize,
    /// How many there was no room for: they are free again after the next full count.
    pub(crate) lost: usize,
}

impl<const N: usize> DisplacedBy<N> {
    pub(crate) const fn new() -> Self {
        Self { list: [index::FileExtent { file_block: 0, block: 0, count: 0, shared: false }; N], count: 0, lost: 0 }
    }

    pub(crate) fn push(&mut self, extent: index::FileExtent) {
        if let Some(place) = self.list.get_mut(self.count) {
            *place = extent;
            self.count += 1;
        } else {
            self.lost += 1;
        }
    }
}
