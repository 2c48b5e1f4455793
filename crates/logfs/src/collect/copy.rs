//! What of a page is still true, by the index, and is appended again.

use super::again::{Again, MAP_BATCH};
use super::page::Page;
use super::pass::PAGES_PER_STEP;
use crate::append::BLOCKS_TO_COLLECT;
use crate::format::BLOCK_BYTES;
use crate::format::entry::{Binding, Entry, FileExtent, Glance, Payload, glance};
use crate::format::page::{LINES, LinePlace};
use crate::index::{self, IndexError, Mapping};
use crate::mapped::SHIFTED;
use crate::ops::{Locked, Op, index_error};
use crate::record::Collection;
use crate::replay::{NamePlace, TIMES_STAY, binding_key};
use gannet_vfs::{Errno, Error, FileType, Result};
use std::ops::Range;

/// Names and extents of a page that one operation looks at, so that none waits long; with two pages owed for each that is
/// added that is faster than any log grows.
const LOOKS: u32 = 8;
/// As many where collection has fallen behind: entries of many extents have more to look at than operations to do it.
const LOOKS_BEHIND: u32 = 64;

impl<'s> Op<'s> {
    /// Appends again what is still true of a page, whose entries have these sequence numbers; false if something is left of
    /// it for the next time.
    pub(super) fn copy_page(
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
                record.set_last_snapshot(record.sequence().wrapping_sub(1)); // Unnoticed [word]: they are written once more.
            }
            // To have walked through the page is enough for one operation.
            pass.cursor = (1, 0);
            return Ok(false);
        }
        // Blocks are not where the entries before a shift say, so these cannot be looked at one by one: the whole map is
        // written again, once, before any of them goes. From then on what they say of blocks is dead, however much is shifted while
        // they go.
        if locked.state.file_type == FileType::Regular
            && (record.map_said_to().is_some() || record.maps().has(SHIFTED) && record.map_said_from() < sequences.end)
        {
            self.copy_some_of_map(again, pass)?;
            return Ok(false);
        }
        let map_said_from = record.map_said_from();
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
                Payload::Write { .. } | Payload::Remap { .. } if sequence < map_said_from => {}
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

    /// Appends a piece of the map, behind what was appended of it before, and notes up to where the log says it.
    fn copy_some_of_map(&self, again: &mut Again<'_, 's>, pass: &mut Collection) -> Result<()> {
        let locked = again.locked;
        let record = &locked.record;
        let to = record.map_said_to().unwrap_or(0);
        self.check_room_for_map(locked, to)?;
        if to == 0 {
            record.set_map_said(record.sequence(), Some(0));
            // Unnoticed [word]: the next pass says the whole map again, and not only what is live of each page, which is as much.
            record.change_maps(|word| word.without(SHIFTED));
            // The pass is over before the page that the map begins in: else a shift meanwhile would have it written twice in each.
            pass.remaining = pass.remaining.min(record.log_use().0.saturating_sub(1)).max(1);
        }
        let (mut said, mut said_to, mut is_all, mut outcome) = (0, to, true, Ok(()));
        self.extents(locked.inode, record)
            .for_each_from(to, &mut |extent| {
                is_all = said < MAP_BATCH;
                if is_all {
                    outcome = again.extent(entry_extent(extent));
                    (said, said_to) = (said + 1, extent.file_block + extent.count);
                }
                is_all && outcome.is_ok()
            })
            .map_err(index_error)?;
        outcome?;
        again.extents_end()?;
        record.set_map_said(record.map_said_from(), Some(said_to).filter(|_| !is_all));
        Ok(())
    }

    /// Whether there is room for what stands of a file's map from block `to` on: a part of it is of no use until the rest follows, and takes the
    /// last blocks from nobody who needs them to free some.
    fn check_room_for_map(&self, locked: &Locked<'s>, to: u64) -> Result<()> {
        let record = &locked.record;
        let kept = self.blocks_left_to_others().max(BLOCKS_TO_COLLECT);
        let room = self.core.space.blocks(self)?.free_blocks().saturating_sub(kept);
        // An extent has a block at least.
        if Again::pages_of_extents(record.blocks()) <= room {
            return Ok(());
        }
        let (mut count, mut fits) = (0, true);
        self.extents(locked.inode, record)
            .for_each_from(to, &mut |_| {
                count += 1;
                fits = Again::pages_of_extents(count) <= room;
                fits
            })
            .map_err(index_error)?;
        if fits { Ok(()) } else { Err(Error::because(Errno::NOSPC, "no room for the map of a file")) }
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
