//! Collecting logs: a log's oldest page is emptied by appending what is still true of it again, then unlinked.
//!
//! Only from the head: then a removal is dead as soon as it is the oldest, since what it removes is older. Work is bounded:
//! up to two pages whenever a log grows by one, and only while the log is more than about twice what is live in it.
//! Everything copied is an entry as any other, durable before the next; copies say what is true already, so any number of
//! them may survive a crash.

use crate::counters::Counter;
use crate::disk::{Block, Durable};
use crate::format::entry::{
    Binding, DIRECTORY_ENTRY_BYTES_MAX, ENTRY_BYTES_MAX, Entry, Extents as EntryExtents, FileExtent, Payload,
};
use crate::format::page::{AT_NEXT, ENTRY_LINES, LINES, LinePlace, Link};
use crate::format::slot::AT_HEAD;
use crate::format::{BLOCK_BYTES, LINE_BYTES};
use crate::index::{self, Mapping};
use crate::log;
use crate::ops::{Locked, Op, index_error};
use crate::record::SHIFTED;
use crate::replay::{NamePlace, TIMES_STAY, binding_key};
use crate::space::Extent;
use gannet_vfs::{Errno, Error, FileType, Result};
use std::ops::Range;

/// Logs shorter than this are left alone.
const PAGES_MIN: u32 = 4;
/// Extents of one entry when a whole map is written again.
const MAP_BATCH: usize = 64;
const MAP_ENTRY_BYTES: usize = (48 + 16 * MAP_BATCH).next_multiple_of(64);
/// Pages emptied whenever a log grows by one while a pass is on.
const PAGES_PER_STEP: u32 = 2;

impl<'s> Op<'s> {
    /// Does a bounded piece of collection if this log needs any. The volume being full is no error: the log waits.
    pub(crate) fn collect_some(&self, locked: &Locked<'s>) -> Result<()> {
        let record = &locked.record;
        // What a symbolic link is born with stands first in its log, and its pieces in order: it stays where it is.
        if locked.state.file_type == FileType::Symlink {
            return Ok(());
        }
        let (pages, _) = record.log_use();
        let mut pass = record.collection();
        if pages <= pass.pages_seen || pages < PAGES_MIN {
            return Ok(());
        }
        if pass.remaining == 0 {
            if pages < pass.threshold {
                return Ok(());
            }
            pass.remaining = pages;
            pass.live_lines = 0;
        }
        let was_urgent = self.urgent.replace(true);
        for _ in 0..PAGES_PER_STEP.min(pass.remaining) {
            match self.collect_page(locked) {
                Ok(live_lines) => {
                    pass.live_lines += live_lines;
                    pass.remaining -= 1;
                }
                Err(error) if error.errno() == Errno::NOSPC || error.errno() == Errno::NOMEM => break,
                Err(error) => return Err(error),
            }
        }
        self.urgent.set(was_urgent);
        if pass.remaining == 0 {
            pass.threshold = (2 * pass.live_lines.div_ceil(ENTRY_LINES) + 2).max(PAGES_MIN);
        }
        pass.pages_seen = record.log_use().0;
        record.set_collection(pass);
        Ok(())
    }

    /// Empties and unlinks the oldest page of a log; returns how many lines of it were live. The newest page is never the
    /// oldest here.
    fn collect_page(&self, locked: &Locked<'s>) -> Result<u32> {
        let disk = self.disk();
        let owned = locked.owned(self.core);
        let head_at = self.slot_word(locked.inode, AT_HEAD)?;
        let head = disk.load(head_at)?;
        let Some((link, header)) = log::first_page(disk, owned, head)? else { return Ok(0) };
        if locked.record.tail().is_none_or(|(block, _)| block == link.block) {
            return Ok(0);
        }
        let mut page: Block = [0; BLOCK_BYTES as usize];
        disk.read_block(link.block, &mut page)?;
        let mut sequence = header.first_sequence;
        let mut line = 1;
        let mut live_lines = 0;
        let mut written = 0..0;
        // Blocks are not where the entries before a shift say, so these cannot be looked at one by one: the whole map is
        // written again, once, before any of them goes.
        if locked.record.maps() & SHIFTED != 0 {
            live_lines += self.copy_map(locked)?;
            locked.record.set_maps(locked.record.maps() & !SHIFTED);
        }
        while line < LINES {
            let Some(entry) = Entry::decode(owned, &page[line as usize * LINE_BYTES as usize..]) else { break };
            if entry.sequence != sequence {
                break;
            }
            live_lines += self.copy_live(locked, LinePlace::new(link.block, line), &entry, &mut written)?;
            sequence += 1;
            line += entry.lines;
        }
        self.append_snapshot(locked)?;
        // The next page's link stands in this one.
        let next = disk.load(link.block * BLOCK_BYTES + AT_NEXT)?;
        if Link::decode(next).is_none() {
            return Err(Error::damaged("log page: no link to the next", link.block * BLOCK_BYTES));
        }
        let mut commit = disk.begin();
        commit.store(head_at, next)?;
        let durable: Durable = commit.fence();
        let (pages, lines) = locked.record.log_use();
        locked.record.set_log_use(pages.saturating_sub(1), lines);
        self.free_blocks(Extent { start: link.block, count: 1 }, &durable)?;
        self.count(Counter::PagesCollected, 1);
        Ok(live_lines)
    }

    /// All attributes, so that nothing of them depends on what was before.
    fn append_snapshot(&self, locked: &Locked<'s>) -> Result<()> {
        let payload = Payload::Attributes(self.snapshot(locked)?);
        self.append(locked, locked.record.changed(), &payload, &mut [0; crate::attributes::ATTRIBUTES_ENTRY_BYTES])
            .map(|_| ())
    }

    /// Appends again what is still true of an entry; returns how many lines that took.
    fn copy_live(
        &self,
        locked: &Locked<'s>,
        place: LinePlace,
        entry: &Entry<'_>,
        written: &mut Range<u64>,
    ) -> Result<u32> {
        match entry.payload {
            Payload::Bind { first, second, .. } => {
                let mut lines = 0;
                for (binding, is_second) in [(Some(first), false), (second, true)] {
                    if let Some(binding) = binding {
                        lines += self.copy_binding(locked, place, is_second, &binding)?;
                    }
                }
                Ok(lines)
            }
            Payload::Write { ref extents, .. } | Payload::Remap { ref extents, .. } => {
                let mut lines = 0;
                for extent in extents.iter() {
                    lines += self.copy_extent(locked, extent, written)?;
                }
                Ok(lines)
            }
            Payload::Xattr { name, value: Some(_) } | Payload::LargeXattr { name, .. } => {
                self.copy_xattr(locked, place, name, &entry.payload)
            }
            Payload::Seal
            | Payload::Size { .. }
            | Payload::Resize { .. }
            | Payload::Attributes(_)
            | Payload::Unmap { .. }
            | Payload::Shift { .. }
            | Payload::Target(_)
            | Payload::Xattr { value: None, .. } => Ok(0),
        }
    }

    fn copy_binding(&self, locked: &Locked<'s>, place: LinePlace, second: bool, binding: &Binding<'_>) -> Result<u32> {
        let Some(file_type) = binding.file_type else { return Ok(0) };
        let key = binding_key(self.disk().key(), binding);
        let tree = self.tree(locked.inode, &locked.record);
        let here = NamePlace { place, second, file_type };
        if tree.get(key).map_err(index_error)? != Some(here.encode()) {
            return Ok(0);
        }
        let payload = Payload::Bind { first: *binding, second: None, birth: None, partner: None };
        let prepared = self.prepare(locked, payload.lines(), true)?;
        let there = NamePlace { place: prepared.place(), second: false, file_type };
        let mut commit = self.disk().begin();
        let mut buffer = [0; DIRECTORY_ENTRY_BYTES_MAX];
        self.write_entry(&mut commit, locked, &prepared, TIMES_STAY, &payload, &mut buffer)?;
        let durable = commit.fence();
        tree.replace(key, there.encode()).map_err(index_error)?;
        self.publish_entry(locked, prepared, &durable)?;
        Ok(payload.lines())
    }

    /// Appends the extents of the map that hold what is still mapped as this entry says: whole, so that a file written in
    /// many pieces that lie side by side ends up with one entry. `written` is what this page's entries led to before.
    fn copy_extent(&self, locked: &Locked<'s>, extent: FileExtent, written: &mut Range<u64>) -> Result<u32> {
        if locked.state.file_type != FileType::Regular {
            return Ok(0);
        }
        let mut lines = 0;
        let mut at = extent.file_block;
        let end = extent.file_block + extent.count as u64;
        while at < end {
            if written.contains(&at) {
                at = written.end;
                continue;
            }
            match self.mapping(locked.inode, &locked.record, at * BLOCK_BYTES)? {
                Mapping::Hole { count } => at += count.min(end - at),
                Mapping::Blocks { block, count, .. } if block == extent.block + (at - extent.file_block) => {
                    let whole = self.extent_around(locked, at, count)?;
                    lines += self.append_extents(locked, &[whole])?;
                    *written = whole.file_block..whole.file_block + whole.count as u64;
                    at = written.end;
                }
                Mapping::Blocks { count, .. } => at += count.min(end - at),
            }
        }
        Ok(lines)
    }

    /// The extent of the map that holds a block; `count` blocks of it are left from there.
    fn extent_around(&self, locked: &Locked<'s>, at: u64, count: u64) -> Result<FileExtent> {
        let mut found = None;
        self.extents(locked.inode, &locked.record)
            .for_each_from(at, &mut |extent| {
                found = Some(extent);
                false
            })
            .map_err(index_error)?;
        let extent = found
            .filter(|extent| extent.file_block <= at && extent.file_block + extent.count == at + count)
            .ok_or(Error::damaged("shared state: index", locked.inode as u64))?;
        Ok(entry_extent(extent))
    }

    // Apart from `copy_live` and not inlined, so that its buffer is on the stack only when it runs.
    #[inline(never)]
    fn append_extents(&self, locked: &Locked<'s>, extents: &[FileExtent]) -> Result<u32> {
        let payload =
            Payload::Write { size_bytes: locked.record.size(), hash: None, extents: EntryExtents::List(extents) };
        self.append(locked, TIMES_STAY, &payload, &mut [0; MAP_ENTRY_BYTES])?;
        Ok(payload.lines())
    }

    /// Appends the whole map.
    fn copy_map(&self, locked: &Locked<'s>) -> Result<u32> {
        const BATCH: usize = MAP_BATCH;
        let mut lines = 0;
        let mut next = 0;
        loop {
            let mut batch = [FileExtent { file_block: 0, block: 0, count: 0, shared: false }; BATCH];
            let mut count = 0;
            self.extents(locked.inode, &locked.record)
                .for_each_from(next, &mut |extent| {
                    batch[count] = entry_extent(extent);
                    count += 1;
                    count < BATCH
                })
                .map_err(index_error)?;
            let Some(last) = batch[..count].last() else { return Ok(lines) };
            next = last.file_block + last.count as u64;
            lines += self.append_extents(locked, &batch[..count])?;
        }
    }

    fn copy_xattr(&self, locked: &Locked<'s>, place: LinePlace, name: &[u8], payload: &Payload<'_>) -> Result<u32> {
        let tree = self.tree(locked.inode, &locked.record);
        let (key, true) = self.xattr_place(&tree, name)? else { return Ok(0) };
        if tree.get(key).map_err(index_error)? != Some(place.0) {
            return Ok(0);
        }
        let prepared = self.prepare(locked, payload.lines(), true)?;
        let there = prepared.place();
        let mut commit = self.disk().begin();
        let mut buffer = [0; ENTRY_BYTES_MAX];
        self.write_entry(&mut commit, locked, &prepared, locked.record.changed(), payload, &mut buffer)?;
        let durable = commit.fence();
        tree.replace(key, there.0).map_err(index_error)?;
        self.publish_entry(locked, prepared, &durable)?;
        Ok(payload.lines())
    }
}

/// An extent of the map as a log entry says it.
const fn entry_extent(extent: index::FileExtent) -> FileExtent {
    let index::FileExtent { file_block, block, count, shared } = extent;
    FileExtent { file_block, block, count: count as u32, shared }
}
