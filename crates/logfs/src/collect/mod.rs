//! Collecting logs: a log's oldest page is emptied by appending what is still true of it again, then unlinked.
//!
//! Only from the head: then a removal is dead as soon as it is the oldest, since what it removes is older. Work is bounded:
//! two pages whenever a log grows by one, by the operations that follow, each a piece; and only while the log is more than
//! about twice what is live in it.
//!
//! What is appended again says what is true already, so any part of it may survive a crash: all that a page gives stands
//! under one fence. A log ends at the first entry that is not there, and what a crash left behind it is of a former epoch,
//! which nothing that follows can be. One page is not begun under the fence of another, so that a page that holds two
//! entries always had its header and its link (fsck relies on it). Then the head is stored; the page is free behind the
//! next fence that the thread executes (`limbo`).
//!
//! Which entries of a page are dead is seen without proving them, by what the index says; what is copied is proved. Before
//! a page goes, the page behind it must begin with the sequence at which this one was found to end.

mod again;
mod page;

use self::again::Again;
use self::page::Page;
use crate::counters::Counter;
use crate::format::BLOCK_BYTES;
use crate::format::entry::{Binding, Entry, FileExtent, Glance, NAME_LINES_MAX, Payload, glance};
use crate::format::page::{AT_NEXT, ENTRY_LINES, LINES, LinePlace};
use crate::format::slot::AT_HEAD;
use crate::index::{self, IndexError, Mapping};
use crate::limbo::GivenUp;
use crate::log;
use crate::mapped::SHIFTED;
use crate::ops::{Locked, Need, Op, index_error};
use crate::places::CONTROL_NEED_LOCK;
use crate::record::Collection;
use crate::replay::{NamePlace, TIMES_STAY, binding_key};
use crate::space::Extent;
use gannet_vfs::{Errno, Error, FileType, Result};
use std::ops::Range;

/// Logs shorter than this are left alone.
const PAGES_MIN: u32 = 4;
/// Pages emptied whenever a log grows by one while a pass is on.
const PAGES_PER_STEP: u32 = 2;
/// As many where nearly all of it must be dead: then pages go faster than the names that are left.
const PAGES_PER_STEP_DEAD: u32 = 24;
/// More pages are never owed.
const OWED_MAX: u32 = 128;
/// Names and extents of a page that one operation looks at, so that none waits long; with two pages owed for each that is
/// added that is faster than any log grows.
const LOOKS: u32 = 8;
/// As many where collection has fallen behind: entries of many extents have more to look at than operations to do it.
const LOOKS_BEHIND: u32 = 64;
/// A file's log may have a page for so many blocks of it, whatever is live in it.
const BLOCKS_PER_PAGE: u64 = 64;
/// But not more than this: recovery reads them all.
const PAGES_FREE_MAX: u64 = 1024;

/// The most pages that what is live in the log of a directory can take, by its names. Of other logs nothing can be said.
fn pages_of_names(locked: &Locked<'_>) -> u32 {
    if locked.state.file_type != FileType::Directory || locked.record.xattrs() != 0 {
        return u32::MAX;
    }
    let lines = locked.record.entries().saturating_mul(NAME_LINES_MAX.into());
    u32::try_from(lines / u64::from(ENTRY_LINES)).map_or(u32::MAX, |pages| pages.saturating_add(2))
}

impl Collection {
    /// Begins a pass through all pages, if none is on.
    fn begin(&mut self, pages: u32) {
        if self.remaining == 0 {
            (self.remaining, self.live_lines) = (pages, 0);
        }
    }

    /// The log has grown: more pages are owed.
    fn goes_on(&mut self, pages: u32, locked: &Locked<'_>) {
        self.begin(pages);
        let is_dead = pages > pages_of_names(locked).saturating_mul(4);
        let step = if is_dead { PAGES_PER_STEP_DEAD } else { PAGES_PER_STEP };
        self.owed = (self.owed + step).min(self.remaining).min(OWED_MAX);
    }

    /// The oldest page went by. Behind the last one of a pass it is known from which length on the next is worth it.
    fn went_by(&mut self) {
        self.remaining -= 1;
        self.owed = self.owed.saturating_sub(1);
        if self.remaining == 0 {
            self.owed = 0;
            self.threshold = (2 * self.live_lines.div_ceil(ENTRY_LINES) + 2).max(PAGES_MIN);
        }
    }

    /// Without room it waits; a damaged log is left alone.
    fn failed(&mut self, error: &Error) {
        self.owed = 0;
        if !matches!(error.errno(), Errno::NOSPC | Errno::NOMEM) {
            (self.remaining, self.threshold) = (0, u32::MAX);
        }
    }
}

impl<'s> Op<'s> {
    /// Does a bounded piece of collection if this log needs any. Nothing that fails here is an error, since the operation that the log
    /// grew by has happened: while the volume is full the log waits, and one that is damaged is left alone.
    // Inlined as far as nearly every call goes.
    #[inline(always)]
    pub(crate) fn collect_some(&self, locked: &Locked<'s>) {
        let (pages, _) = locked.record.log_use();
        let pass = locked.record.collection();
        if pages < PAGES_MIN || pass.owed == 0 && pages <= pass.pages_seen {
            return;
        }
        self.collect_due(locked);
    }

    #[inline(never)]
    fn collect_due(&self, locked: &Locked<'s>) {
        let (pages, _) = locked.record.log_use();
        let pass = locked.record.collection();
        if pages > pass.pages_seen && self.is_in_need() {
            self.collect_in_need(locked);
            return;
        }
        let is_due = pass.owed != 0 || pages >= self.collection_threshold(locked, &pass);
        // By an index that was dropped everything in the log would be dead.
        if is_due && locked.record.state().is_some() {
            self.collect_piece(locked, pass, pages);
        }
    }

    /// Whether of the blocks that are kept for what frees others so few are left that logs must not grow any more.
    fn is_in_need(&self) -> bool {
        let enough = self.disk().geometry().reserve_in_need();
        self.core.space.blocks(self).is_ok_and(|space| space.free_blocks() < enough)
    }

    /// Collects until the log is a page shorter, or all of it was looked at: on a volume so full that names which go, and free nothing
    /// else, need the room that they had. In a large directory that is hardly emptied yet it can take milliseconds, once for as many
    /// removals as have room in a page. Returns whether it is shorter, or there is no need any more.
    #[cold]
    #[inline(never)]
    pub(crate) fn collect_in_need(&self, locked: &Locked<'s>) -> bool {
        let record = &locked.record;
        let (pages, mut pass) = (record.log_use().0, record.collection());
        if record.state().is_none() || locked.state.file_type == FileType::Symlink || pass.threshold == u32::MAX {
            return false;
        }
        // One at a time: a page that is half emptied has taken up to two blocks, and there are not many.
        let Ok(turn) = self.thread.lock(self.core.places.control(CONTROL_NEED_LOCK)) else { return false };
        if !self.is_in_need() {
            return true;
        }
        let needed = self.need.replace(Need::Freeing);
        let (before, mut left) = (pages, pages);
        while left > 0 && record.log_use().0 >= before {
            pass.begin(record.log_use().0);
            // A bounded piece would not do.
            pass.owed = PAGES_PER_STEP + 1;
            match self.collect_page(locked, &mut pass) {
                Ok(true) => {
                    left -= 1;
                    pass.went_by();
                }
                Ok(false) => {}
                Err(error) => {
                    pass.failed(&error);
                    break;
                }
            }
        }
        self.need.set(needed);
        let pages = record.log_use().0;
        pass.owed = 0;
        if pages >= self.collection_threshold(locked, &pass) {
            // What is more than needed now is left to the operations that follow.
            pass.goes_on(pages, locked);
        }
        pass.pages_seen = pages;
        record.set_collection(pass);
        turn.unlock();
        pages < before
    }

    /// Pages from which on a log is collected: about twice what was live in it last time, but never less than costs a
    /// file's space and recovery next to nothing.
    fn collection_threshold(&self, locked: &Locked<'s>, pass: &Collection) -> u32 {
        let free = (locked.record.blocks() / BLOCKS_PER_PAGE).min(PAGES_FREE_MAX) as u32;
        match pass.remaining {
            // Damaged.
            0 if pass.threshold == u32::MAX => u32::MAX,
            0 => pass.threshold.min(pages_of_names(locked).saturating_mul(2)).max(free).max(PAGES_MIN),
            _ => 0,
        }
    }

    #[cold]
    #[inline(never)]
    fn collect_piece(&self, locked: &Locked<'s>, mut pass: Collection, pages: u32) {
        let record = &locked.record;
        if locked.state.file_type == FileType::Symlink {
            return self.collect_link(locked, pass, pages);
        }
        // Also where the arena, which may be damaged, says that pages are owed without a pass.
        pass.begin(pages);
        if pages > pass.pages_seen {
            let was_done = pass.owed == 0;
            pass.goes_on(pages, locked);
            if was_done {
                // Whoever the log grew by has made a page: that is enough for one operation.
                pass.pages_seen = pages;
                record.set_collection(pass);
                return;
            }
        }
        // In need that is left to those whose turn it is.
        let needed = self.need.replace(Need::Removal);
        // Where many are owed, one page for each operation: to begin with it is a piece of its own.
        let pieces = if pass.owed > PAGES_PER_STEP { 2 } else { 1 };
        for _ in 0..pieces {
            match self.collect_page(locked, &mut pass) {
                Ok(false) => {}
                Ok(true) => {
                    pass.went_by();
                    break;
                }
                Err(error) => {
                    pass.failed(&error);
                    break;
                }
            }
        }
        self.need.set(needed);
        pass.pages_seen = record.log_use().0;
        record.set_collection(pass);
    }

    /// A symbolic link's log is not collected page by page: see `renew`.
    fn collect_link(&self, locked: &Locked<'s>, mut pass: Collection, pages: u32) {
        let needed = self.need.replace(Need::Freeing);
        let renewed = self.renew_log(locked, pages);
        self.need.set(needed);
        match renewed {
            Ok(true) => return,
            Ok(false) => {}
            Err(error) if matches!(error.errno(), Errno::NOSPC | Errno::NOMEM) => {}
            Err(_) => pass.threshold = u32::MAX,
        }
        pass.pages_seen = pages;
        locked.record.set_collection(pass);
    }

    /// Empties some of the oldest page of a log, from where `pass` has come to, and unlinks the page if that was all of it:
    /// then true. The newest page is never the oldest here.
    fn collect_page(&self, locked: &Locked<'s>, pass: &mut Collection) -> Result<bool> {
        let disk = self.disk();
        let owned = locked.owned(self.core);
        let head_at = self.slot_word(locked.inode, AT_HEAD)?;
        let head = disk.load(head_at)?;
        let Some((link, header)) = log::first_page(disk, owned, head)? else { return Ok(true) };
        if locked.record.tail().is_none_or(|(block, _)| block == link.block) {
            return Ok(true);
        }
        let damaged = |what| Error::damaged(what, link.block * BLOCK_BYTES);
        let next = disk.load(link.block * BLOCK_BYTES + AT_NEXT)?;
        let end = match log::first_page(disk, owned, next)? {
            Some((_, next_header)) => next_header.first_sequence,
            None => return Err(damaged("log page: no link to the next")),
        };
        let mut again = Again::new(self, locked);
        let mut page = Page::new(disk, link.block);
        let copied = self.copy_page(&mut again, &mut page, header.first_sequence..end, pass);
        let rest = again.extents_end();
        again.fence();
        pass.live_lines += again.lines;
        rest?;
        if !copied? {
            return Ok(false);
        }
        pass.cursor = (0, 0);

        let mut commit = disk.begin();
        commit.store_cached(head_at, next)?;
        commit.without_fence();
        let (pages, lines) = locked.record.log_use();
        locked.record.set_log_use(pages.saturating_sub(1), lines);
        let mut given_up = GivenUp::new(locked.inode, false);
        let _ = given_up.add(Extent { start: link.block, count: 1 });
        self.or_count_again(self.enter_limbo(&given_up));
        self.count(Counter::PagesCollected, 1);
        Ok(true)
    }

    /// Appends again what is still true of a page, whose entries have these sequence numbers; false if something is left of
    /// it for the next time.
    fn copy_page(
        &self,
        again: &mut Again<'_, 's>,
        page: &mut Page<'_>,
        sequences: Range<u64>,
        pass: &mut Collection,
    ) -> Result<bool> {
        let locked = again.locked;
        let record = &locked.record;
        let block = page.block;
        let damaged = || Error::damaged("log entry", block * BLOCK_BYTES);
        // Attributes first: what stands behind them is recognised by its time.
        if pass.cursor == (0, 0) {
            if self.needs_snapshot(locked, page, &sequences)? {
                let snapshot = Payload::Attributes(self.snapshot(locked)?);
                again.append(record.changed(), &snapshot, &mut [])?;
                record.set_last_snapshot(record.sequence().wrapping_sub(1));
            }
            // To have walked through the page is enough for one operation.
            pass.cursor = (1, 0);
            return Ok(false);
        }
        // Blocks are not where the entries before a shift say, so these cannot be looked at one by one: the whole map is
        // written again, once, before any of them goes.
        if record.maps().has(SHIFTED) {
            self.copy_map(again)?;
            record.change_maps(|word| word.without(SHIFTED));
        }
        let (first_line, first_item) = pass.cursor;
        let mut line = first_line;
        // Up to here the page was looked at before: its entries follow each other.
        let first = match line {
            1 => sequences.start,
            _ => glance(page.rest(line)?)
                .map(|(_, found, _)| found)
                .filter(|found| sequences.contains(found))
                .ok_or_else(damaged)?,
        };
        let looks_max = if pass.owed > PAGES_PER_STEP { LOOKS_BEHIND } else { LOOKS };
        let mut looks = 0;
        for sequence in first..sequences.end {
            let bytes = page.rest(line)?;
            if let Some((lines, found, Glance::Dead)) = glance(bytes)
                && found == sequence
            {
                line += lines;
                if line > LINES {
                    return Err(damaged());
                }
                continue;
            }
            let entry = Entry::peek(bytes).filter(|entry| entry.sequence == sequence).ok_or_else(damaged)?;
            let place = LinePlace::new(block, line);
            let proved = || Entry::decode(locked.owned(self.core), bytes).ok_or_else(damaged);
            let from = if line == first_line { first_item as usize } else { 0 };
            if looks >= looks_max {
                pass.cursor = (line, 0);
                return Ok(false);
            }
            match entry.payload {
                Payload::Bind { first, second, .. } => {
                    for (binding, is_second) in [(Some(first), false), (second, true)] {
                        if let Some(binding) = binding
                            && let Some(file_type) = binding.file_type
                        {
                            looks += 1;
                            if self.is_bound(locked, NamePlace { place, second: is_second, file_type }, &binding)? {
                                proved()?;
                                self.copy_binding(again, &binding, file_type)?;
                            }
                        }
                    }
                }
                Payload::Write { ref extents, .. } | Payload::Remap { ref extents, .. } => {
                    proved()?;
                    for (item, extent) in extents.iter().enumerate().skip(from) {
                        if looks >= looks_max {
                            pass.cursor = (line, item as u32);
                            return Ok(false);
                        }
                        looks += 1;
                        self.copy_extent(again, extent)?;
                    }
                }
                Payload::Xattr { name, value: Some(_) } | Payload::LargeXattr { name, .. } => {
                    proved()?;
                    looks += 1;
                    self.copy_xattr(again, place, name, &entry.payload)?;
                }
                Payload::Seal
                | Payload::Size { .. }
                | Payload::Resize { .. }
                | Payload::Attributes(_)
                | Payload::Unmap { .. }
                | Payload::Shift { .. }
                | Payload::Target(_)
                | Payload::Xattr { value: None, .. } => {}
            }
            line += entry.lines;
            if line > LINES {
                return Err(damaged());
            }
        }
        Ok(true)
    }

    /// Whether something of an inode's attributes depends on a page's entries: then all attributes are written again. Where
    /// it is not known when something was said last, it counts as said here.
    fn needs_snapshot(&self, locked: &Locked<'s>, page: &mut Page<'_>, sequences: &Range<u64>) -> Result<bool> {
        let record = &locked.record;
        if record.last_snapshot() >= sequences.end {
            return Ok(false);
        }
        if record.last_touch() < sequences.end {
            return Ok(true);
        }
        let mut line = 1;
        for _ in sequences.clone() {
            match glance(page.rest(line)?) {
                Some((lines, _, sort)) if sort != Glance::SaysAttributes => line += lines,
                _ => return Ok(true),
            }
        }
        Ok(false)
    }

    /// Whether a name is still bound by the entry at this place.
    fn is_bound(&self, locked: &Locked<'s>, here: NamePlace, binding: &Binding<'_>) -> Result<bool> {
        let key = binding_key(self.disk().key(), binding);
        let found = self.tree(locked.inode, &locked.record).get(key).map_err(index_error)?;
        Ok(found == Some(here.encode()))
    }

    fn copy_binding(&self, again: &mut Again<'_, 's>, binding: &Binding<'_>, file_type: FileType) -> Result<()> {
        let payload = Payload::Bind { first: *binding, second: None, birth: None, partner: None };
        let place = again.append(TIMES_STAY, &payload, &mut [])?;
        let key = binding_key(self.disk().key(), binding);
        let there = NamePlace { place, second: false, file_type };
        let tree = self.tree(again.locked.inode, &again.locked.record);
        self.found_again(again.locked, tree.replace(key, there.encode()))
    }

    /// Adds the extents of the map that hold what is still mapped as this entry says: whole, so that a file written in many
    /// pieces that lie side by side ends up with few.
    fn copy_extent(&self, again: &mut Again<'_, 's>, extent: FileExtent) -> Result<()> {
        let locked = again.locked;
        if locked.state.file_type != FileType::Regular {
            return Ok(());
        }
        let map = self.extents(locked.inode, &locked.record);
        let mut at = extent.file_block;
        let end = extent.file_block + extent.count as u64;
        while at < end {
            if again.added.contains(&at) {
                at = again.added.end;
                continue;
            }
            match map.holding(at).map_err(index_error)? {
                Some(whole) => {
                    let as_written = whole.block + (at - whole.file_block) == extent.block + (at - extent.file_block);
                    if as_written && !again.has_extent(whole.file_block) {
                        again.extent(entry_extent(whole))?;
                    }
                    at = whole.file_block + whole.count;
                }
                None if at + 1 == end => break,
                None => match map.lookup(at).map_err(index_error)? {
                    Mapping::Hole { count } | Mapping::Blocks { count, .. } => at += count.max(1),
                },
            }
        }
        Ok(())
    }

    /// Adds the whole map.
    fn copy_map(&self, again: &mut Again<'_, 's>) -> Result<()> {
        let locked = again.locked;
        let mut outcome = Ok(());
        self.extents(locked.inode, &locked.record)
            .for_each_from(0, &mut |extent| {
                outcome = again.extent(entry_extent(extent));
                outcome.is_ok()
            })
            .map_err(index_error)?;
        outcome
    }

    fn copy_xattr(
        &self,
        again: &mut Again<'_, 's>,
        place: LinePlace,
        name: &[u8],
        payload: &Payload<'_>,
    ) -> Result<()> {
        let locked = again.locked;
        let tree = self.tree(locked.inode, &locked.record);
        let (key, true) = self.xattr_place(&tree, name)? else { return Ok(()) };
        if tree.get(key).map_err(index_error)? != Some(place.0) {
            return Ok(());
        }
        // By itself: its time says when the inode changed.
        again.fence();
        let there = again.append(locked.record.changed(), payload, &mut [])?;
        again.fence();
        self.found_again(locked, tree.replace(key, there.0))
    }

    /// An index that could not be told where something stands now is built anew by the inode's next user.
    fn found_again(&self, locked: &Locked<'s>, replaced: std::result::Result<Option<u64>, IndexError>) -> Result<()> {
        replaced.inspect_err(|_| locked.record.unload()).map(drop).map_err(index_error)
    }
}

/// An extent of the map as a log entry says it.
const fn entry_extent(extent: index::FileExtent) -> FileExtent {
    let index::FileExtent { file_block, block, count, shared } = extent;
    FileExtent { file_block, block, count: count as u32, shared }
}
