//! Writing a file's data.
//!
//! *In place*: bytes of mapped blocks inside the file are overwritten under their stripe's lock, with one fence and no log
//! entry. *With an entry*: everything else (appends, holes, copy-on-write) goes to blocks or bytes that nobody sees,
//! together with a log entry that carries a hash of them, under one fence; then the map is changed and the size stored.

use crate::disk::{Durable, access_error};
use crate::format::entry::{Extents as EntryExtents, FileExtent, Payload};
use crate::format::slot::AT_TOUCHED;
use crate::format::{BLOCK_BYTES, Tag};
use crate::index::{self, Mapping};
use crate::mapped::{MAPPED, MapsWord};
use crate::ops::{Locked, Op, index_error, inode_number, shared_error};
use crate::places::{STRIPE_BYTES, STRIPES};
use crate::read::left_of;
use crate::space::Held;
use gannet_media::{AccessError, DataHash, MediumOffset};
use gannet_vfs::usermem::Source;
use gannet_vfs::{
    AttributeChange, Errno, Error, FileType, InodeFlags, ModeChange, NodeId, Result, Time, WriteFlags, WritePosition,
    Written,
};
use std::ops::Range;

/// Most extents that one entry of a write gets, so that all of them fit the thread's hands.
const EXTENTS_MAX: usize = 8;
/// Most bytes that one entry makes visible: bounds what recovery must hash, and how long readers wait.
const ENTRY_BYTES_MAX: u64 = 64 << 20;
/// The largest file, in bytes.
pub(crate) const FILE_BYTES_MAX: u64 = index::FILE_BLOCK_LIMIT * BLOCK_BYTES - BLOCK_BYTES;

/// Blocks taken for one entry, in up to `N` extents: a write of one block, which most are, does not make room for more.
struct Fresh<const N: usize> {
    held: [Option<Held>; N],
    extents: [FileExtent; N],
    count: usize,
    /// The entry that refers to them is durable: whatever fails from now on, they are the file's.
    committed: bool,
}

impl<const N: usize> Fresh<N> {
    const fn new() -> Self {
        Self {
            held: [const { None }; N],
            extents: [FileExtent { file_block: 0, block: 0, count: 0, shared: false }; N],
            count: 0,
            committed: false,
        }
    }

    fn list(&self) -> &[FileExtent] {
        &self.extents[..self.count]
    }
}

/// Where an inode's slot says when it was last written in place, and what it will say.
#[derive(Clone, Copy)]
struct Touched {
    inode: u32,
    at: u64,
    now: u64,
}

/// The present by the coarse clock, as the kernel stamps files.
pub(crate) fn coarse_now() -> i64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::RealtimeCoarse);
    Time::from_parts(now.tv_sec, now.tv_nsec as u32).0
}

impl<'s> Op<'s> {
    /// Writes all of `from`.
    pub(crate) fn write(
        &self,
        node: NodeId,
        position: WritePosition,
        from: &mut Source<'_>,
        flags: WriteFlags,
    ) -> Result<Written> {
        if flags.contains(WriteFlags::DROP_SET_ID) && from.remaining() > 0 {
            self.drop_set_id(node)?;
        }
        let mut start = match position {
            WritePosition::At(offset) => Some(offset),
            WritePosition::Append => None,
        };
        if from.is_empty() {
            self.read_record(node, |_, state| self.regular(state))?;
        }
        let mut done = 0_usize;
        while !from.is_empty() || start.is_none() {
            let at = start.map(|start| start + done as u64);
            if at.is_some_and(|at| at >= FILE_BYTES_MAX) {
                if done > 0 {
                    break;
                }
                return Err(Error::new(Errno::FBIG));
            }
            let step = match at {
                Some(at) => self.write_in_place(node, at, from),
                None => Ok(0),
            };
            let step = match step {
                Ok(0) => self.write_with_entry(node, at, from),
                other => other.map(|count| (at.unwrap_or(0), count)),
            };
            match step {
                Ok((at, count)) => {
                    start = start.or(Some(at));
                    done += count;
                    if count == 0 {
                        break;
                    }
                }
                Err(_) if done > 0 => break,
                Err(error) => return Err(error),
            }
        }
        Ok(Written { offset_bytes: start.unwrap_or(0), count_bytes: done })
    }

    fn drop_set_id(&self, node: NodeId) -> Result<()> {
        let mode = self.read_record(node, |record, _| Ok(record.mode()))?;
        if mode & 0o4000 != 0 || mode & 0o2010 == 0o2010 {
            self.set_attributes(node, &AttributeChange { mode: ModeChange::DropSetId, ..Default::default() })?;
        }
        Ok(())
    }

    /// Whether writes to a file replace blocks.
    pub(crate) fn is_copy_on_write(&self, flags: InodeFlags, maps: MapsWord) -> bool {
        (self.core.copy_on_write || flags.contains(InodeFlags::COPY_ON_WRITE)) && !maps.has(MAPPED)
    }

    /// Overwrites what can be overwritten in place of the chunk at `at`; returns how much that was, 0 if the write must go
    /// another way.
    fn write_in_place(&self, node: NodeId, at: u64, from: &mut Source<'_>) -> Result<usize> {
        let inode = node.number as u32;
        let limit = (STRIPE_BYTES - at % STRIPE_BYTES).min(from.remaining() as u64);
        // A look, so that others do not take the stripe. It proves nothing: what counts is looked at again, below or there.
        let record = self.record(inode_number(node)?)?;
        if at >= record.size() || self.is_copy_on_write(record.flags(), record.maps()) {
            return Ok(0);
        }
        // Everything is looked up before the stripe is locked, and counts if the inode has not changed once it is: from then
        // on nobody's change of this part of the map ends before the stripe is released. Behind the swap that locks it there
        // is then nothing to wait for but the copy: what stands between the two is not overlapped with the stores of the
        // call before, which the swap waits for.
        let (found, sequence) = self.place_in_place(node, at, limit)?;
        let Some((medium_at, count)) = found else { return Ok(0) };
        let touched = self.touched(inode)?;
        let stripe = self.thread.lock(self.core.places.stripe(inode, at)).map_err(shared_error)?;
        let lock_at = self.core.places.record(inode);
        if self.thread.read_validate(lock_at, sequence).map_err(shared_error)? {
            let outcome = self.overwrite(touched, medium_at, count, from);
            stripe.unlock();
            return outcome;
        }
        let outcome = self.overwrite_changed(node, at, limit, from);
        stripe.unlock();
        outcome
    }

    /// Somebody was faster than the stripe was locked: now nobody can be.
    #[cold]
    #[inline(never)]
    fn overwrite_changed(&self, node: NodeId, at: u64, limit: u64, from: &mut Source<'_>) -> Result<usize> {
        match self.place_in_place(node, at, limit)?.0 {
            Some((medium_at, count)) => self.overwrite(self.touched(node.number as u32)?, medium_at, count, from),
            None => Ok(0),
        }
    }

    /// Where an inode's slot says when it was last written in place, and what it will say.
    #[inline]
    fn touched(&self, inode: u32) -> Result<Touched> {
        // Not before the last change of attributes, which may have set a time within this very tick of the clock.
        let now = coarse_now().max(self.record(inode)?.modified_since());
        Ok(Touched { inode, at: self.slot_word(inode, AT_TOUCHED)?, now: now as u64 })
    }

    #[inline(always)]
    fn overwrite(&self, touched: Touched, medium_at: u64, count: u64, from: &mut Source<'_>) -> Result<usize> {
        let Touched { inode, at: touched_at, now } = touched;
        let medium = self.disk().medium();
        let copied = medium.write_from_user(MediumOffset(medium_at), from, count as usize);
        let written = match copied {
            Ok(()) => count as usize,
            Err(AccessError::UserFault { copied }) => copied,
            Err(error) => return Err(access_error(error)),
        };
        if self.disk().load(touched_at)? != now {
            medium.store_u64(MediumOffset(touched_at), now).map_err(access_error)?;
            self.record(inode)?.set_access_fresh(0);
        }
        medium.fence();
        if written == 0 { Err(Error::new(Errno::FAULT)) } else { Ok(written) }
    }

    /// Where on the medium the bytes at `at` can be overwritten, and how many of them; and the inode's sequence with which
    /// that holds. A stripe may be held: the inode's lock, which comes before stripes, must not be waited for.
    #[inline(always)]
    fn place_in_place(&self, node: NodeId, at: u64, limit: u64) -> Result<(Option<(u64, u64)>, u64)> {
        let inode = node.number as u32;
        let record = self.record(inode)?;
        let lock_at = self.core.places.record(inode);
        for _ in 0..4096 {
            let Some(sequence) = self.thread.read_begin(lock_at).map_err(shared_error)? else {
                core::hint::spin_loop();
                continue;
            };
            let sound = record
                .state()
                .is_some_and(|state| state.generation == node.generation && state.file_type == FileType::Regular);
            let place = if sound { self.in_place(inode, &record, at, limit) } else { Ok(None) };
            if self.thread.read_validate(lock_at, sequence).map_err(shared_error)? {
                return place.map(|place| (place, sequence));
            }
        }
        Ok((None, 0))
    }

    #[inline(always)]
    fn in_place(
        &self,
        inode: u32,
        record: &crate::record::Record<'s>,
        at: u64,
        limit: u64,
    ) -> Result<Option<(u64, u64)>> {
        let size = record.size();
        if at >= size || self.is_copy_on_write(record.flags(), record.maps()) {
            return Ok(None);
        }
        let limit = limit.min(size - at);
        if record.unsealed_start() < at + limit && at < record.unsealed_end() {
            return Ok(None);
        }
        Ok(match self.extents(inode, record).lookup(at / BLOCK_BYTES).map_err(index_error)? {
            Mapping::Hole { .. } | Mapping::Blocks { shared: true, .. } => None,
            Mapping::Blocks { block, count, .. } => {
                Some((block * BLOCK_BYTES + at % BLOCK_BYTES, left_of(count, at).min(limit)))
            }
        })
    }

    /// Writes with an entry, as far as one entry goes; returns where and how much. `at` is `None` for an append.
    fn write_with_entry(&self, node: NodeId, at: Option<u64>, from: &mut Source<'_>) -> Result<(u64, usize)> {
        let locked = self.lock(node)?;
        self.regular(locked.state)?;
        let size = locked.record.size();
        let at = at.unwrap_or(size);
        if from.is_empty() {
            return Ok((at, 0));
        }
        if at >= FILE_BYTES_MAX {
            return Err(Error::new(Errno::FBIG));
        }
        let mut copy_on_write = self.is_copy_on_write(locked.record.flags(), locked.record.maps());
        let mut end = at + (from.remaining() as u64).min(ENTRY_BYTES_MAX).min(FILE_BYTES_MAX - at);
        if !copy_on_write && at < size {
            // Bytes inside the file and bytes behind its end are different kinds of write.
            end = end.min(size);
            match self.mapping(locked.inode, &locked.record, at)? {
                Mapping::Blocks { block, count, shared: true } => {
                    let count = count.min(end.div_ceil(BLOCK_BYTES) - at / BLOCK_BYTES);
                    let (reclaimed, run) = self.reclaim(&locked, at / BLOCK_BYTES, block, count)?;
                    if reclaimed {
                        self.seal(&locked)?;
                        return self.retry_in_place(locked, node, at, from);
                    }
                    copy_on_write = true;
                    end = end.min(at + left_of(run, at));
                }
                Mapping::Blocks { .. } => {
                    // It could be done in place but for the seal.
                    self.seal(&locked)?;
                    return self.retry_in_place(locked, node, at, from);
                }
                Mapping::Hole { count } => end = end.min(at + left_of(count, at)),
            }
        }
        let count = if at / BLOCK_BYTES == (end - 1) / BLOCK_BYTES {
            self.write_entry_data::<1, 1>(&locked, at, end, from, copy_on_write)?
        } else {
            self.write_entry_data::<EXTENTS_MAX, { Displaced::MAX }>(&locked, at, end, from, copy_on_write)?
        };
        self.collect_some(&locked)?;
        locked.guard.unlock();
        Ok((at, count))
    }

    /// After sealing: the overwrite, with the inode's lock held, so that nothing can come between.
    fn retry_in_place(&self, locked: Locked<'s>, node: NodeId, at: u64, from: &mut Source<'_>) -> Result<(u64, usize)> {
        let limit = (STRIPE_BYTES - at % STRIPE_BYTES).min(from.remaining() as u64);
        let place = self.in_place(locked.inode, &locked.record, at, limit)?;
        let Some((medium_at, count)) = place else {
            return Err(Error::damaged("shared state: a sealed block cannot be written", node.number));
        };
        let stripe = self.thread.lock(self.core.places.stripe(locked.inode, at)).map_err(shared_error)?;
        let outcome = self.overwrite(self.touched(locked.inode)?, medium_at, count, from);
        stripe.unlock();
        locked.guard.unlock();
        outcome.map(|count| (at, count))
    }

    /// Writes `at..end` into fresh blocks, and into the tail of the old last block, under one fence with their entry.
    /// `N` is the most extents that it takes, `DISPLACED` how many may lose their place.
    #[inline]
    fn write_entry_data<const N: usize, const DISPLACED: usize>(
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
        let mut fresh = Fresh::<N>::new();
        let began = from.clone();
        let taken = self.take_fresh(locked, &mut fresh, first, at, end);
        let outcome =
            taken.and_then(|end| self.write_and_commit::<N, DISPLACED>(locked, &mut fresh, tail, at, end, from));
        if outcome.is_err() {
            *from = began;
        }
        let committed = fresh.committed;
        for held in fresh.held.iter_mut().filter_map(Option::take) {
            if committed {
                self.keep_held(held)?;
            } else {
                self.release_held(held)?;
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
        // It is written in place, behind the end.
        self.unshare_tail(locked)?;
        Ok(match self.mapping(locked.inode, &locked.record, size)? {
            Mapping::Blocks { block, .. } => Some(block),
            Mapping::Hole { .. } => None,
        })
    }

    /// The volume's block with which a file goes on without a break at one of its blocks, if it has the one before.
    pub(crate) fn block_behind(&self, locked: &Locked<'s>, file_block: u64) -> Result<Option<u64>> {
        let Some(before) = file_block.checked_sub(1) else { return Ok(None) };
        Ok(match self.mapping(locked.inode, &locked.record, before * BLOCK_BYTES)? {
            Mapping::Blocks { block, .. } => Some(block + 1),
            Mapping::Hole { .. } => None,
        })
    }

    /// Takes blocks for the file's blocks from `first` to `end`; returns the end that they suffice for.
    fn take_fresh<const N: usize>(
        &self,
        locked: &Locked<'s>,
        fresh: &mut Fresh<N>,
        first: u64,
        at: u64,
        end: u64,
    ) -> Result<u64> {
        let last = end.div_ceil(BLOCK_BYTES);
        let mut next = first;
        let mut goal = self.block_behind(locked, first)?;
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
    fn write_and_commit<const N: usize, const DISPLACED: usize>(
        &self,
        locked: &Locked<'s>,
        fresh: &mut Fresh<N>,
        tail: Option<u64>,
        at: u64,
        end: u64,
        from: &mut Source<'_>,
    ) -> Result<usize> {
        let record = &locked.record;
        let size = record.size();
        let size_after = size.max(end);
        let time = locked.now();
        let payload_lines =
            Payload::Write { size_bytes: 0, hash: None, extents: EntryExtents::List(fresh.list()) }.lines();
        let extents = self.extents(locked.inode, record);
        let mut nodes = match fresh.list() {
            [] => extents.tree().no_reservation(),
            [first, .., last] | [first @ last] => {
                extents.reserve(first.file_block, last.file_block + last.count as u64 - first.file_block)
            }
        }
        .map_err(index_error)?;
        self.pass_edges(locked, fresh, at..end)?;
        let prepared = self.prepare(locked, payload_lines, true)?;

        let mut commit = self.disk().begin();
        let owned = locked.owned(self.core);
        let mut hash = DataHash::new(owned.key.seed(Tag::Data, owned.inode as u64, owned.generation as u64));
        let mut writer = Writer { op: self, at, end, from, hash: &mut hash };
        let copied = writer
            .tail(tail, size, size_after)
            .and_then(|()| fresh.list().iter().try_for_each(|extent| writer.fresh(locked, *extent, size_after)));
        if let Err(error) = copied {
            return Err(self.cancel_with(prepared, error));
        }
        let payload = Payload::Write {
            size_bytes: size_after,
            hash: Some(hash.value()),
            extents: EntryExtents::List(fresh.list()),
        };
        self.write_entry(&mut commit, locked, &prepared, time, &payload, &mut [])?;
        let durable = commit.fence();
        fresh.committed = true;

        let mut displaced_blocks = 0;
        let mut added = 0;
        let mut displaced = DisplacedBy::<DISPLACED>::new();
        for extent in fresh.list() {
            extents
                .map(extent.file_block, extent.block, extent.count as u64, &mut nodes, &mut |old| {
                    displaced_blocks += old.count;
                    displaced.push(old);
                })
                .map_err(index_error)?;
            added += extent.count as u64;
        }
        drop(nodes);
        record.set_blocks(record.blocks() + added - displaced_blocks);
        record.touch(time);
        self.publish_change(locked, prepared, &durable)?;
        let covered_from = fresh.list().first().map_or(u64::MAX, |extent| extent.file_block * BLOCK_BYTES);
        record.set_unsealed_start(covered_from.min(if size_after > size { size } else { u64::MAX }));
        record.set_unsealed_end(size_after);
        record.set_size(size_after);
        if tail.is_some() {
            self.seal_mapped(locked)?;
        }
        self.free_displaced(locked, &displaced, &durable)?;
        Ok((end - at) as usize)
    }

    /// Waits for those who write in place to the blocks whose edges will be copied. New ones cannot come while the inode's
    /// lock is held; there are any only if the file was switched to copy-on-write while they were at work.
    fn pass_edges<const N: usize>(&self, locked: &Locked<'s>, fresh: &Fresh<N>, written: Range<u64>) -> Result<()> {
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

    /// Waits for everybody who writes to these blocks of a file in place, and makes everybody who reads them look again.
    /// The map must have changed before.
    pub(crate) fn pass_stripes(&self, inode: u32, file_block: u64, count: u64) -> Result<()> {
        let from = file_block * BLOCK_BYTES / STRIPE_BYTES;
        let to = ((file_block + count) * BLOCK_BYTES).div_ceil(STRIPE_BYTES);
        if to - from > 4 * STRIPES {
            // So many that each is among them more than once.
            for stripe in 0..STRIPES {
                self.thread.lock(self.core.places.stripe_number(stripe)).map_err(shared_error)?.unlock();
            }
            return Ok(());
        }
        for stripe in from..to {
            let at = self.core.places.stripe(inode, stripe * STRIPE_BYTES);
            self.thread.lock(at).map_err(shared_error)?.unlock();
        }
        Ok(())
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
    const MAX: usize = N;

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

/// Copies of one write with an entry, in the order in which recovery hashes them.
struct Writer<'w, 'o, 's, 'u> {
    op: &'o Op<'s>,
    at: u64,
    end: u64,
    from: &'w mut Source<'u>,
    hash: &'w mut DataHash,
}

impl Writer<'_, '_, '_, '_> {
    /// The tail of the old last block: zeros up to the write, then its first bytes.
    fn tail(&mut self, tail: Option<u64>, size: u64, size_after: u64) -> Result<()> {
        let Some(block) = tail.filter(|_| size_after > size) else { return Ok(()) };
        let tail_end = size_after.min((size / BLOCK_BYTES + 1) * BLOCK_BYTES);
        let medium_at = block * BLOCK_BYTES + size % BLOCK_BYTES;
        self.range(medium_at, size, tail_end)
    }

    /// One run of fresh blocks: what was there before the write, the write, what was there behind it.
    fn fresh(&mut self, locked: &Locked<'_>, extent: FileExtent, size_after: u64) -> Result<()> {
        let start = extent.file_block * BLOCK_BYTES;
        let stop = (start + extent.count as u64 * BLOCK_BYTES).min(size_after);
        let medium_at = extent.block * BLOCK_BYTES;
        let head_end = self.at.clamp(start, stop);
        self.old(locked, medium_at, start, head_end)?;
        let body_end = self.end.clamp(head_end, stop);
        self.range(medium_at + (head_end - start), head_end, body_end)?;
        self.old(locked, medium_at + (body_end - start), body_end, stop)
    }

    /// Bytes `from..to` of the file that the write itself gives, zeros where it begins later.
    fn range(&mut self, medium_at: u64, from: u64, to: u64) -> Result<()> {
        let medium = self.op.disk().medium();
        let gap = self.at.clamp(from, to) - from;
        if gap > 0 {
            medium.zero_hashed(MediumOffset(medium_at), gap, self.hash).map_err(access_error)?;
        }
        let count = to - from - gap;
        if count > 0 {
            medium
                .write_from_user_hashed(MediumOffset(medium_at + gap), self.from, count as usize, self.hash)
                .map_err(access_error)?;
        }
        Ok(())
    }

    /// Bytes `from..to` of the file as they were: copied from the block they were in, zeros in a hole or past the end.
    fn old(&mut self, locked: &Locked<'_>, medium_at: u64, from: u64, to: u64) -> Result<()> {
        let medium = self.op.disk().medium();
        let mut from_at = from;
        while from_at < to {
            let size = locked.record.size();
            let inside = size.clamp(from_at, to) - from_at;
            let (source, count) = if inside == 0 {
                (None, to - from_at)
            } else {
                match self
                    .op
                    .extents(locked.inode, &locked.record)
                    .lookup(from_at / BLOCK_BYTES)
                    .map_err(index_error)?
                {
                    Mapping::Hole { count } => (None, left_of(count, from_at).min(inside)),
                    Mapping::Blocks { block, count, .. } => {
                        (Some(block * BLOCK_BYTES + from_at % BLOCK_BYTES), left_of(count, from_at).min(inside))
                    }
                }
            };
            let target = MediumOffset(medium_at + (from_at - from));
            match source {
                None => medium.zero_hashed(target, count, self.hash),
                Some(source) => medium.copy_within_hashed(MediumOffset(source), target, count, self.hash),
            }
            .map_err(access_error)?;
            from_at += count;
        }
        Ok(())
    }
}
