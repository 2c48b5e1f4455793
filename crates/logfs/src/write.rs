//! Writing a file's data.
//!
//! *In place*: bytes of mapped blocks inside the file are overwritten under their stripe's lock, with one fence and no log
//! entry. *With an entry*: everything else (appends, holes, copy-on-write) goes to blocks or bytes that nobody sees,
//! together with a log entry that carries a hash of them, under one fence; then the map is changed and the size stored.

use crate::disk::access_error;
use crate::format::BLOCK_BYTES;
use crate::format::slot::AT_TOUCHED;
use crate::index::{self, Mapping};
use crate::mapped::{MAPPED, MapsWord};
use crate::ops::{Locked, Need, Op, index_error, inode_number, shared_error};
use crate::places::{STRIPE_BYTES, STRIPES};
use crate::read::left_of;
use gannet_media::{AccessError, MediumOffset};
use gannet_vfs::usermem::Source;
use gannet_vfs::{
    AttributeChange, Errno, Error, FileType, InodeFlags, ModeChange, NodeId, Result, Time, WriteFlags, WritePosition,
    Written,
};

/// Most extents that one entry of a write gets, so that all of them fit the thread's hands, and one reservation of index nodes.
pub(crate) const EXTENTS_MAX: usize = index::PIECES_MAX;
/// So many extents that lose their place are freed from a list; if there are more they are looked for behind the fence.
pub(crate) const DISPLACED_AT_ONCE: usize = 16;
/// Most bytes that one entry makes visible: bounds what recovery must hash, and how long readers wait.
pub(crate) const ENTRY_BYTES_MAX: u64 = 64 << 20;
/// The largest file, in bytes.
pub(crate) const FILE_BYTES_MAX: u64 = index::FILE_BLOCK_LIMIT * BLOCK_BYTES - BLOCK_BYTES;

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
        // Nobody waits for a lock of ours while the caller's memory comes from wherever it is.
        from.fault_in();
        if flags.contains(WriteFlags::DROP_SET_ID) && from.remaining() > 0 {
            self.drop_set_id(node)?;
        }
        let start = match position {
            WritePosition::At(offset) => offset,
            WritePosition::Append => {
                // All of it at once: where it ended, the next may already be another's.
                let (offset_bytes, count_bytes) = self.write_with_entry(node, None, from)?;
                return Ok(Written { offset_bytes, count_bytes });
            }
        };
        if from.is_empty() {
            self.read_record(node, |_, state| self.regular(state))?;
        }
        let mut done = 0_usize;
        while !from.is_empty() {
            let at = start + done as u64;
            if at >= FILE_BYTES_MAX {
                if done > 0 {
                    break;
                }
                return Err(Error::new(Errno::FBIG));
            }
            let step = match self.write_in_place(node, at, from) {
                Ok(0) => match self.write_copied_ahead(node, at, from) {
                    Ok(0) => self.write_with_entry(node, Some(at), from).map(|(_, count)| count),
                    other => other,
                },
                other => other,
            };
            match step {
                Ok(count) => {
                    done += count;
                    if count == 0 {
                        break;
                    }
                }
                Err(_) if done > 0 => break,
                Err(error) => return Err(error),
            }
        }
        Ok(Written { offset_bytes: start, count_bytes: done })
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
        flags.copy_on_write().unwrap_or(self.core.copy_on_write) && !maps.has(MAPPED)
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
            // Unnoticed [store]: a time, for which the conformance suite asks.
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

    /// Writes with an entry, as far as one entry goes; returns where and how much. `at` is `None` for an append: of that everything is
    /// written, as far as there is room, before anybody else's.
    // Apart from writes in place, which have few registers to save without it.
    #[inline(never)]
    fn write_with_entry(&self, node: NodeId, at: Option<u64>, from: &mut Source<'_>) -> Result<(u64, usize)> {
        let locked = self.lock(node)?;
        self.regular(locked.state)?;
        let size = locked.record.size();
        let is_append = at.is_none();
        let at = at.unwrap_or(size);
        if from.is_empty() {
            return Ok((at, 0));
        }
        if at >= FILE_BYTES_MAX {
            return Err(Error::new(Errno::FBIG));
        }
        let whole_calls = self.is_copy_on_write(locked.record.flags(), locked.record.maps());
        let mut copy_on_write = whole_calls;
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
                        return self.retry_in_place(locked, at, from);
                    }
                    copy_on_write = true;
                    end = end.min(at + left_of(run, at));
                }
                Mapping::Blocks { .. } => {
                    // It could be done in place but for the seal.
                    self.seal(&locked)?;
                    return self.retry_in_place(locked, at, from);
                }
                Mapping::Hole { count } => end = end.min(at + left_of(count, at)),
            }
        }
        let mut count = self.write_as_fits(&locked, at, end, from, copy_on_write, whole_calls)?;
        if is_append && !from.is_empty() {
            count += self.append_rest(&locked, from, whole_calls);
        }
        self.collect_some(&locked);
        locked.guard.unlock();
        Ok((at, count))
    }

    /// Appends what one entry had no room for, entry by entry: nobody else's bytes may come between them. Returns how much; what fails
    /// ends it, since something has been written.
    #[cold]
    #[inline(never)]
    fn append_rest(&self, locked: &Locked<'s>, from: &mut Source<'_>, whole_calls: bool) -> usize {
        let mut done = 0;
        // Where the index could not follow what was written, the log says more than is known here.
        while !from.is_empty() && locked.record.state().is_some() {
            let at = locked.record.size();
            let end = at + (from.remaining() as u64).min(ENTRY_BYTES_MAX).min(FILE_BYTES_MAX.saturating_sub(at));
            if end == at {
                break;
            }
            match self.write_as_fits(locked, at, end, from, whole_calls, whole_calls) {
                Ok(count) if count > 0 => done += count,
                _ => break,
            }
        }
        done
    }

    /// Writes into fresh blocks: on a full volume what fits, unless calls are whole or not at all.
    #[inline(always)]
    fn write_as_fits(
        &self,
        locked: &Locked<'s>,
        at: u64,
        end: u64,
        from: &mut Source<'_>,
        copy_on_write: bool,
        whole_calls: bool,
    ) -> Result<usize> {
        match self.write_fresh(locked, at, end, from, copy_on_write) {
            Err(full) if full.errno() == Errno::NOSPC && !whole_calls => {
                self.write_what_fits(locked, at, end, from, copy_on_write, full)
            }
            other => other,
        }
    }

    #[inline(always)]
    fn write_fresh(
        &self,
        locked: &Locked<'s>,
        at: u64,
        end: u64,
        from: &mut Source<'_>,
        copy_on_write: bool,
    ) -> Result<usize> {
        let size = locked.record.size();
        if at == size
            && end <= (size / BLOCK_BYTES + 1) * BLOCK_BYTES
            && let Some(count) = self.write_end(locked, end, from)?
        {
            return Ok(count);
        }
        if at / BLOCK_BYTES == (end - 1) / BLOCK_BYTES {
            self.write_entry_data::<1, 1>(locked, at, end, from, copy_on_write)
        } else {
            self.write_entry_data::<EXTENTS_MAX, DISPLACED_AT_ONCE>(locked, at, end, from, copy_on_write)
        }
    }

    /// There is no room for all of `at..end`: as much of its beginning is written as there is room for, found by halving. Who writes
    /// on behind it comes here again, so in the end all room is used. Not where data is copy-on-write: that promises whole calls.
    #[cold]
    #[inline(never)]
    fn write_what_fits(
        &self,
        locked: &Locked<'s>,
        at: u64,
        end: u64,
        from: &mut Source<'_>,
        copy_on_write: bool,
        full: Error,
    ) -> Result<usize> {
        let (mut end, mut full) = (end, full);
        loop {
            if at >= locked.record.size() {
                match self.write_allocated(locked, at, end, from, full) {
                    Err(error) if error.errno() == Errno::NOSPC => full = error,
                    other => return other,
                }
            }
            let blocks = end.div_ceil(BLOCK_BYTES) - at / BLOCK_BYTES;
            if blocks < 2 {
                return Err(full);
            }
            end = (at / BLOCK_BYTES + blocks / 2) * BLOCK_BYTES;
            match self.write_fresh(locked, at, end, from, copy_on_write) {
                Err(error) if error.errno() == Errno::NOSPC => full = error,
                other => return other,
            }
        }
    }

    /// After sealing: the overwrite, with the inode's lock held, so that nothing can come between.
    fn retry_in_place(&self, locked: Locked<'s>, at: u64, from: &mut Source<'_>) -> Result<(u64, usize)> {
        let outcome = self.overwrite_sealed(&locked, at, from);
        locked.guard.unlock();
        outcome.map(|count| (at, count))
    }

    fn overwrite_sealed(&self, locked: &Locked<'s>, at: u64, from: &mut Source<'_>) -> Result<usize> {
        let limit = (STRIPE_BYTES - at % STRIPE_BYTES).min(from.remaining() as u64);
        let place = self.in_place(locked.inode, &locked.record, at, limit)?;
        let Some((medium_at, count)) = place else {
            return Err(Error::damaged("shared state: a sealed block cannot be written", locked.inode.into()));
        };
        let stripe = self.thread.lock(self.core.places.stripe(locked.inode, at)).map_err(shared_error)?;
        let outcome = self.overwrite(self.touched(locked.inode)?, medium_at, count, from);
        stripe.unlock();
        outcome
    }

    /// There is no room for fresh blocks, but the file may have blocks behind its end that were allocated so that this write does not
    /// fail: it grows over them, as zeros, and they are written in place. What fails after that is taken back, and with it what else
    /// was allocated.
    #[cold]
    #[inline(never)]
    fn write_allocated(
        &self,
        locked: &Locked<'s>,
        at: u64,
        end: u64,
        from: &mut Source<'_>,
        full: Error,
    ) -> Result<usize> {
        let Mapping::Blocks { count, shared: false, .. } = self.mapping(locked.inode, &locked.record, at)? else {
            return Err(full);
        };
        let size = locked.record.size();
        let end = end.min(at + left_of(count, at)).min(at + STRIPE_BYTES - at % STRIPE_BYTES);
        // The log's own room, which is bounded: sizes that were succeeded are collected.
        let needed = self.need.replace(Need::Freeing);
        let grown = self.resize(locked, end, None).and_then(|()| self.seal(locked));
        let outcome = grown.and_then(|()| self.overwrite_sealed(locked, at, from));
        let reached = outcome.as_ref().map_or(size, |&count| at + count as u64);
        let taken_back = if reached < locked.record.size() { self.resize(locked, reached, None) } else { Ok(()) };
        self.need.set(needed);
        taken_back.and(outcome)
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
