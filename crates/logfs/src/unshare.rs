//! The marks of shared blocks in a file's map, and the end of sharing: blocks of its own for who is about to write to them.
//!
//! A mark may outlive the sharing. Who meets it asks the numbers, and takes it away if nobody else is left.

use crate::disk::{Durable, access_error};
use crate::format::BLOCK_BYTES;
use crate::format::entry::{Extents as EntryExtents, FileExtent, Payload};
use crate::index::{IndexError, Mapping};
use crate::ops::{Locked, Op, index_error};
use crate::record::Record;
use crate::replay::TIMES_STAY;
use gannet_media::MediumOffset;
use gannet_vfs::Result;
use std::ops::Range;

/// Blocks that are copied with one entry when sharing ends: bounds how long others wait.
const COPY_BLOCKS_MAX: u64 = 16 << 10;
/// Size of the buffer for an entry with one extent.
const COPY_ENTRY_BYTES: usize = 64;

impl<'s> Op<'s> {
    /// Notes in a file's map whether its blocks are shared.
    pub(crate) fn set_shared(&self, locked: &Locked<'s>, file_block: u64, count: u64, shared: bool) -> Result<()> {
        let extents = self.extents(locked.inode, &locked.record);
        let mut nodes = extents.reserve_edges(file_block, count).map_err(index_error)?;
        let marked = extents.set_shared(file_block, count, shared, &mut nodes);
        // Half of it may be done.
        marked.inspect_err(|_| locked.record.unload()).map_err(index_error)
    }

    /// Makes the marks of a file that was just loaded.
    pub(crate) fn mark_shared(&self, inode: u32, record: &Record<'s>) -> Result<()> {
        let shares = self.shares()?;
        if !shares.any() {
            return Ok(());
        }
        let extents = self.extents(inode, record);
        let mut next = 0;
        loop {
            let mut found = None;
            extents
                .for_each_from(next, &mut |extent| {
                    found = Some(extent);
                    false
                })
                .map_err(index_error)?;
            let Some(extent) = found else { return Ok(()) };
            // A mark splits an extent; what was before `next` is done.
            let skip = next.saturating_sub(extent.file_block);
            let (is_shared, run) = shares.run(extent.block + skip, extent.count - skip)?;
            if is_shared {
                let start = extent.file_block + skip;
                let mut nodes = extents.reserve_edges(start, run).map_err(index_error)?;
                extents.set_shared(start, run, true, &mut nodes).map_err(index_error)?;
            }
            next = extent.file_block + skip + run;
        }
    }

    /// For how many of the `count` blocks from `file_block` on, all marked and in a row at `block`, the same holds: they are
    /// shared, or they no longer are, and then the mark is gone (`true`).
    pub(crate) fn reclaim(&self, locked: &Locked<'s>, file_block: u64, block: u64, count: u64) -> Result<(bool, u64)> {
        let (is_shared, run) = self.shares()?.run(block, count)?;
        if !is_shared {
            self.set_shared(locked, file_block, run, false)?;
        }
        Ok((!is_shared, run))
    }

    /// Gives a file blocks of its own where it shares some of a range: they can be written in place then.
    pub(crate) fn unshare(&self, locked: &Locked<'s>, range: Range<u64>) -> Result<()> {
        let mut next = range.start;
        while next < range.end {
            let (block, count) = match self.mapping(locked.inode, &locked.record, next * BLOCK_BYTES)? {
                Mapping::Blocks { block, count, shared: true } => (block, count),
                Mapping::Blocks { count, .. } | Mapping::Hole { count } => {
                    next += count;
                    continue;
                }
            };
            let count = count.min(range.end - next).min(COPY_BLOCKS_MAX);
            next += match self.reclaim(locked, next, block, count)? {
                (true, run) => run,
                (false, run) => self.copy_run(locked, next, block, run)?,
            };
        }
        Ok(())
    }

    /// The same for the block that holds the file's end, if it is inside of one: what is behind the end is about to change.
    pub(crate) fn unshare_tail(&self, locked: &Locked<'s>) -> Result<()> {
        let size = locked.record.size();
        if size.is_multiple_of(BLOCK_BYTES) {
            return Ok(());
        }
        self.unshare(locked, size / BLOCK_BYTES..size / BLOCK_BYTES + 1)
    }

    /// Copies up to `count` blocks that a file shares; returns how many. Fails behind the entry only where nobody can go on with the index.
    fn copy_run(&self, locked: &Locked<'s>, file_block: u64, block: u64, count: u64) -> Result<u64> {
        let record = &locked.record;
        let goal = self.block_behind(locked, file_block)?;
        let held = self.allocate_blocks(count as u32, goal)?;
        let (first, count) = (held.extent().start, held.extent().count as u64);
        let entry = FileExtent { file_block, block: first, count: count as u32, shared: false };
        let list = [entry];
        // The size is what it was, and so are the times.
        let payload = Payload::Write { size_bytes: record.size(), hash: None, extents: EntryExtents::List(&list) };
        let mut displaced = crate::write_entry::Displaced::new();
        let committed = self.copy_and_commit(locked, block, &entry, &payload, &mut displaced);
        let (durable, followed) = match committed {
            Ok(committed) => committed,
            Err(error) => {
                self.release_held(held)?;
                return Err(error);
            }
        };
        self.keep_held(held);
        if followed.is_err() {
            return if self.follows(locked, followed) { Ok(count) } else { Err(index_error(IndexError::Torn)) };
        }
        for &extent in &displaced.list[..displaced.count] {
            self.or_count_again(self.free_extent(locked.inode, extent, &durable));
        }
        Ok(count)
    }

    fn copy_and_commit(
        &self,
        locked: &Locked<'s>,
        block: u64,
        entry: &FileExtent,
        payload: &Payload<'_>,
        displaced: &mut crate::write_entry::Displaced,
    ) -> Result<(Durable, Result<()>)> {
        let count = entry.count as u64;
        let extents = self.extents(locked.inode, &locked.record);
        let mut nodes = extents.reserve(entry.file_block, count).map_err(index_error)?;
        let prepared = self.prepare(locked, payload.lines(), true)?;
        let (from, to) = (MediumOffset(block * BLOCK_BYTES), MediumOffset(entry.block * BLOCK_BYTES));
        let copies = self.disk().begin();
        if let Err(error) = self.disk().medium().copy_within(from, to, count * BLOCK_BYTES) {
            return Err(self.cancel_with(prepared, access_error(error)));
        }
        let _ = copies.fence();
        let mut commit = self.disk().begin();
        self.write_entry(&mut commit, locked, &prepared, TIMES_STAY, payload, &mut [0; COPY_ENTRY_BYTES])?;
        let durable = commit.fence();
        let followed = extents
            .map(entry.file_block, entry.block, count, &mut nodes, &mut |old| displaced.push(old))
            .map_err(index_error);
        drop(nodes);
        self.publish_entry(locked, prepared, &durable);
        Ok((durable, followed))
    }

    /// One reference less to shared blocks; those that had no other are freed.
    pub(crate) fn drop_shared(&self, block: u64, count: u64, durable: &Durable) -> Result<()> {
        let shares = self.shares()?;
        let (mut free_from, end) = (block, block + count);
        for at in block..end {
            if !shares.drop_one(at)? {
                self.free_run(free_from, at - free_from, durable)?;
                free_from = at + 1;
            }
        }
        self.free_run(free_from, end - free_from, durable)
    }
}
