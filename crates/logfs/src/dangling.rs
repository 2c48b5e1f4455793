//! Links that lead to no page of their log, found after a crash: whether the crash can have left them.
//!
//! A page's header, its first entry and the link to it become durable together. So a crash can leave the link alone, to a block that may hold
//! anything; it is cleared then, and the log ends before it. Where the page was there, with a second entry, nothing was in flight: the link
//! went bad, or the page's header, and to clear it would lose all that the log says from there on, and free what it names.
//!
//! A page that was made durable and never linked can be there too, of an inode of the same number and generation that never came to be, or from
//! before the log was written anew. Those of the present epoch are wiped by who finds them; and a page that a link of the present epoch leads to
//! is of the present epoch, with all its entries.
//!
//! Reads the medium and changes nothing.

use crate::bits::Bits;
use crate::disk::{Block, Disk};
use crate::format::entry::{Entry, Owned};
use crate::format::page::{LINES, LinePlace, Link, PageHeader};
use crate::format::{BLOCK_BYTES, LINE_BYTES};
use crate::holes::written;
use crate::survey::Surveyed;
use gannet_vfs::{Error, Result};
use std::collections::HashMap;

/// A link that leads to no page of its log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Dangling {
    /// Whose log it is.
    pub(crate) inode: u32,
    pub(crate) generation: u32,
    /// Where the link word stands, in bytes.
    pub(crate) at: u64,
    /// The word.
    pub(crate) link: u64,
    /// The entry that the page would begin with.
    pub(crate) next_sequence: u64,
    /// It is the slot's, and the log has no page.
    pub(crate) is_head: bool,
    /// It stands on a page that was in flight itself, so that the word can be what the block held before.
    pub(crate) is_on_new_page: bool,
}

impl Dangling {
    /// Of an inode that recovery has read.
    pub(crate) fn of(disk: &Disk, surveyed: &Surveyed) -> Result<Option<Self>> {
        let end = &surveyed.end;
        if end.dangling == 0 {
            return Ok(None);
        }
        let slot_at = || disk.slot_at(surveyed.inode)?.ok_or(Error::damaged("slot", 0));
        let is_only = |block: u64| end.last == Some(LinePlace::new(block, 1));
        Ok(Some(Self {
            inode: surveyed.inode,
            generation: surveyed.generation,
            at: end.link_at(slot_at)?,
            link: end.dangling,
            next_sequence: end.next_sequence,
            is_head: end.tail.is_none(),
            is_on_new_page: end
                .tail
                .is_some_and(|tail| tail.line == 1 || is_only(tail.block) && end.page_epoch == disk.epoch()),
        }))
    }

    /// Whether a page is of the log, behind the link, and had been linked in the present epoch. A log that has begun never is without a page.
    fn goes_on_in(&self, disk: &Disk, page: &Block) -> bool {
        let owned = Owned { key: disk.key(), inode: self.inode, generation: self.generation };
        proves_itself(owned, page, if self.is_head { 0 } else { self.next_sequence }, disk.epoch())
    }

    /// Whether the link is one that was being stored in the present epoch, to a page that was new.
    fn was_being_stored(&self, disk: &Disk, page: &mut Block) -> Result<bool> {
        let Some(link) = Link::decode(self.link) else { return Ok(false) };
        if !disk.geometry().is_allocatable(link.block) || link.epoch != disk.epoch() {
            return Ok(false);
        }
        disk.read_block(link.block, page)?;
        // Its page is there, and what it follows is not.
        let is_later = disk.page_header(link)?.is_some_and(|header| {
            (header.inode, header.generation) == (self.inode, self.generation)
                && header.first_sequence > self.next_sequence
                && !self.is_head
        });
        Ok(!is_later && !self.goes_on_in(disk, page))
    }
}

/// Those that no crash leaves. `born`: inodes that were being made, ascending; their slots' heads stand outside of the checksum, and can be what
/// the slot held before. `used`: blocks that something refers to; a page that is lost is none of them, but a file may hold copies of pages.
pub(crate) fn unexplained(disk: &Disk, dangling: &[Dangling], born: &[u32], used: &Bits) -> Result<Vec<Dangling>> {
    let mut page: Block = [0; BLOCK_BYTES as usize];
    let (mut found, mut by_log) = (Vec::new(), HashMap::new());
    for link in dangling {
        let can_be_anything = link.is_on_new_page || link.is_head && born.binary_search(&link.inode).is_ok();
        if can_be_anything || link.was_being_stored(disk, &mut page)? {
            by_log.insert((link.inode, link.generation), *link);
        } else {
            found.push(*link);
        }
    }
    if by_log.is_empty() {
        return Ok(found);
    }
    // Few crashes leave any, and of the volume one line of each free block is read.
    let geometry = *disk.geometry();
    let mut line = [0; LINE_BYTES as usize];
    for block in written(disk.medium(), geometry.first_free..geometry.end()).into_iter().flatten() {
        if used.has(block) {
            continue;
        }
        disk.read(block * BLOCK_BYTES, &mut line)?;
        let Some(header) = PageHeader::decode(disk.key(), &line) else { continue };
        let log = (header.inode, header.generation);
        let Some(link) = by_log.get(&log).filter(|_| header.epoch == disk.epoch()) else { continue };
        disk.read_block(block, &mut page)?;
        if link.goes_on_in(disk, &page) {
            found.extend(by_log.remove(&log));
        }
    }
    found.sort_unstable();
    Ok(found)
}

/// Whether a page holds two entries of this inode in a row, the first of which is `from` or later, and neither older than `epoch`: what a block
/// holds that was a page of this log before is earlier. The header, the first entry and the link to the page become durable together, so before
/// the second one is written all three are: then it was no crash that took one of them.
pub(crate) fn proves_itself(owned: Owned, page: &Block, from: u64, epoch: u32) -> bool {
    let entry = |line: u32| {
        let bytes = page.get(line as usize * LINE_BYTES as usize..)?;
        Entry::decode(owned, bytes).filter(|entry| entry.epoch >= epoch)
    };
    (1..LINES).any(|line| {
        entry(line).filter(|first| first.sequence >= from).is_some_and(|first| {
            entry(line + first.lines).is_some_and(|second| Some(second.sequence) == first.sequence.checked_add(1))
        })
    })
}
