//! Writing a file's data.
//!
//! *In place* (`overwrite`): bytes of mapped blocks inside the file are overwritten under their stripe's lock, with one fence and no log
//! entry. *With an entry*: everything else (appends, holes, copy-on-write) goes to blocks or bytes that nobody sees,
//! together with a log entry that carries a hash of them, under one fence; then the map is changed and the size stored.

use crate::format::BLOCK_BYTES;
use crate::index::{self, Mapping};
use crate::mapped::{MAPPED, MapsWord};
use crate::ops::{Locked, Need, Op};
use crate::places::STRIPE_BYTES;
use crate::read::left_of;
use gannet_vfs::usermem::Source;
use gannet_vfs::{
    AttributeChange, Errno, Error, InodeFlags, ModeChange, NodeId, Result, Time, WriteFlags, WritePosition, Written,
};

/// Most extents that one entry of a write gets, so that all of them fit the thread's hands, and one reservation of index nodes.
pub(crate) const EXTENTS_MAX: usize = index::PIECES_MAX;
/// So many extents that lose their place are freed from a list; if there are more they are looked for behind the fence.
pub(crate) const DISPLACED_AT_ONCE: usize = 16;
/// Most bytes that one entry makes visible: bounds what recovery must hash, and how long readers wait.
pub(crate) const ENTRY_BYTES_MAX: u64 = 64 << 20;
/// The largest file, in bytes.
pub(crate) const FILE_BYTES_MAX: u64 = index::FILE_BLOCK_LIMIT * BLOCK_BYTES - BLOCK_BYTES;

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
        // Not from a volume that was put into the file's place meanwhile, which is what may have failed.
        let taken_back = match reached < locked.record.size() && self.core.is_as_opened().is_ok() {
            true => self.resize(locked, reached, None),
            false => Ok(()),
        };
        self.need.set(needed);
        taken_back.and(outcome)
    }
}
