//! What is true still of an old page, appended again under one fence.

use crate::disk::Commit;
use crate::format::LINE_BYTES;
use crate::format::entry::{Extents as EntryExtents, FileExtent, Payload};
use crate::format::page::{ENTRY_LINES, LinePlace};
use crate::ops::{Locked, Op};
use crate::replay::TIMES_STAY;
use gannet_vfs::Result;
use std::ops::Range;

/// Extents that one entry takes when they are written again.
pub(super) const MAP_BATCH: usize = 64;
const MAP_ENTRY_BYTES: usize = (48 + 16 * MAP_BATCH).next_multiple_of(64);

/// Entries that are written again under one fence.
pub(super) struct Again<'o, 's> {
    op: &'o Op<'s>,
    pub(super) locked: &'o Locked<'s>,
    commit: Option<Commit<'s>>,
    /// Lines that they took.
    pub(super) lines: u32,
    extents: [FileExtent; MAP_BATCH],
    count: usize,
    /// Blocks of the file that were added last.
    pub(super) added: Range<u64>,
}

impl<'o, 's> Again<'o, 's> {
    pub(super) fn new(op: &'o Op<'s>, locked: &'o Locked<'s>) -> Self {
        let none = FileExtent { file_block: 0, block: 0, count: 0, shared: false };
        Self { op, locked, commit: None, lines: 0, extents: [none; MAP_BATCH], count: 0, added: 0..0 }
    }

    /// Appends an entry that says what is true already; returns where.
    pub(super) fn append(&mut self, time: i64, payload: &Payload<'_>, buffer: &mut [u8]) -> Result<LinePlace> {
        let prepared = self.op.prepare(self.locked, payload.lines(), false)?;
        let (place, begins_page) = (prepared.place(), prepared.begins_page());
        if begins_page {
            self.fence();
        }
        let commit = self.commit.get_or_insert_with(|| self.op.disk().begin());
        self.op.write_entry(commit, self.locked, &prepared, time, payload, buffer)?;
        self.op.advance(self.locked, &prepared);
        self.op.let_go(prepared);
        self.lines += payload.lines();
        if begins_page {
            self.fence();
        }
        Ok(place)
    }

    /// Pages that so many extents take at most.
    pub(super) fn pages_of_extents(count: u64) -> u64 {
        let entries_of_page = u64::from(ENTRY_LINES) / (MAP_ENTRY_BYTES as u64 / LINE_BYTES);
        count.div_ceil(MAP_BATCH as u64).div_ceil(entries_of_page) + 1
    }

    /// Adds an extent to the next entry of extents.
    pub(super) fn extent(&mut self, extent: FileExtent) -> Result<()> {
        if self.count == MAP_BATCH {
            self.extents_end()?;
        }
        self.extents[self.count] = extent;
        self.count += 1;
        self.added = extent.file_block..extent.file_block + extent.count as u64;
        Ok(())
    }

    /// Whether the extent that begins at this block of the file is in the next entry of extents.
    pub(super) fn has_extent(&self, file_block: u64) -> bool {
        self.extents[..self.count].iter().any(|extent| extent.file_block == file_block)
    }

    /// Appends the entry of the extents so far.
    #[inline(never)]
    pub(super) fn extents_end(&mut self) -> Result<()> {
        if self.count == 0 {
            return Ok(());
        }
        let batch = self.extents;
        let extents = EntryExtents::List(&batch[..self.count]);
        let payload = Payload::Write { size_bytes: self.locked.record.size(), hash: None, extents };
        self.append(TIMES_STAY, &payload, &mut [0; MAP_ENTRY_BYTES])?;
        self.count = 0;
        Ok(())
    }

    /// Makes all of it durable. Whatever fails, this is to be done before the log is released.
    pub(super) fn fence(&mut self) {
        if let Some(commit) = self.commit.take() {
            let _ = commit.fence();
            self.op.or_count_again(self.op.leave_limbo());
        }
    }
}
