//! Log pages that no link leads to: where a link is lost, its page is found among them.
//!
//! A file may hold copies of log pages, even of those of its own volume, so a block that belongs to a file is never taken for one. Where
//! several pages would fit, the one that leads furthest is the log's: copies are of its past. Nothing else tells a page that somebody wrote
//! from a real one but the checksums' key, which is known to whoever can read the volume itself. Changes nothing.

use super::model::Model;
use super::trace::Ground;
use crate::bits::Bits;
use crate::dangling::proves_itself;
use crate::disk::Block;
use crate::format::entry::{Entry, Owned};
use crate::format::page::{LINES, Link, PageHeader};
use crate::format::{BLOCK_BYTES, LINE_BYTES};
use crate::holes::written;
use gannet_vfs::Result;
use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap};

/// A page, and which entries it holds.
#[derive(Clone, Copy, Debug)]
struct Stray {
    first: u64,
    /// One more than its last entry's sequence.
    end: u64,
    link: Link,
}

/// Pages by inode and generation.
#[derive(Debug, Default)]
pub(super) struct Strays {
    pages: HashMap<(u32, u32), Vec<Stray>>,
}

impl Strays {
    fn of(&self, owned: Owned) -> impl Iterator<Item = &Stray> {
        self.pages.get(&(owned.inode, owned.generation)).into_iter().flatten()
    }

    /// The first page of a log. `all`: every page was in use when the volume was closed. Otherwise pages that were collected can be among them,
    /// so that it begins where no entry is missing from there on to its end.
    pub(super) fn head(&self, owned: Owned, all: bool) -> Option<Link> {
        let furthest = |stray: &&Stray| (stray.end, stray.link.epoch, Reverse(stray.link.block));
        if all {
            return self.of(owned).min_by_key(|stray| (stray.first, Reverse(furthest(stray)))).map(|stray| stray.link);
        }
        let mut begin = self.of(owned).max_by_key(furthest)?;
        while let Some(before) =
            self.of(owned).filter(|stray| stray.first < begin.first && stray.end == begin.first).max_by_key(furthest)
        {
            begin = before;
        }
        Some(begin.link)
    }

    /// The page that begins with an entry.
    pub(super) fn at(&self, owned: Owned, sequence: u64, epoch: u32) -> Option<Link> {
        let fitting = self.of(owned).filter(|stray| stray.first == sequence && stray.link.epoch >= epoch);
        fitting.max_by_key(|stray| (stray.end, stray.link.epoch, Reverse(stray.link.block))).map(|stray| stray.link)
    }

    /// The next page behind an entry that is missing, and what it begins with.
    pub(super) fn after(&self, owned: Owned, sequence: u64, epoch: u32) -> Option<(Link, u64)> {
        let fitting = self.of(owned).filter(|stray| stray.first > sequence && stray.link.epoch >= epoch);
        let first = fitting.map(|stray| stray.first).min()?;
        Some((self.at(owned, first, epoch)?, first))
    }

    /// Inodes of which there are pages.
    fn inodes(&self) -> impl Iterator<Item = u32> + '_ {
        self.pages.keys().map(|&(inode, _)| inode)
    }

    fn blocks(&self) -> impl Iterator<Item = u64> + '_ {
        self.pages.values().flatten().map(|stray| stray.link.block)
    }
}

/// Searches the volume for log pages, but for those that are `reached` by a link or `held` by a file.
fn search(ground: &Ground<'_>, reached: &Bits, held: &Bits) -> Result<Strays> {
    let mut strays = Strays::default();
    let mut line = [0; LINE_BYTES as usize];
    let mut page: Block = [0; BLOCK_BYTES as usize];
    let (disk, geometry) = (ground.disk, *ground.disk.geometry());
    for block in written(disk.medium(), geometry.first_free..geometry.end()).into_iter().flatten() {
        let was_free = ground.saved_used.as_ref().is_some_and(|used| !used.has(block));
        if reached.has(block) || held.has(block) || was_free {
            continue;
        }
        disk.read(block * BLOCK_BYTES, &mut line)?;
        let Some(header) = PageHeader::decode(disk.key(), &line) else { continue };
        if header.epoch > disk.epoch() || header.first_sequence == 0 {
            continue;
        }
        let owned = Owned { key: disk.key(), inode: header.inode, generation: header.generation };
        disk.read_block(block, &mut page)?;
        let last = (1..LINES)
            .filter_map(|line| Entry::decode(owned, &page[line as usize * LINE_BYTES as usize..]))
            .map(|entry| entry.sequence)
            .filter(|sequence| (header.first_sequence..header.first_sequence + LINES as u64).contains(sequence))
            .max();
        let Some(last) = last else { continue };
        if ground.saved_used.is_some() || proves_itself(owned, &page, 0, header.epoch) {
            let link = Link { block, epoch: header.epoch };
            let stray = Stray { first: header.first_sequence, end: last + 1, link };
            strays.pages.entry((header.inode, header.generation)).or_default().push(stray);
        }
    }
    Ok(strays)
}

impl Model<'_> {
    /// Where a log is cut short, looks for pages of it that no link leads to, and reads it again with them. What belongs to files is known better
    /// each time, so this is done until nothing changes.
    pub(super) fn find_strays(&mut self) -> Result<()> {
        const ROUNDS_MAX: usize = 4;
        // On a volume that was closed cleanly, a block that was in use then and is a log page of somebody is reached. Where a chunk of the inode
        // table or the root directory is gone, so is what leads to logs; and what a repair found that was cut short, the next one must find.
        let is_short = |model: &Self| {
            model.ground.saved_used.is_some()
                || model.names_lost
                || model.ground.strays.blocks().next().is_some()
                || !model.damaged_slots.is_empty()
                || model.inodes.values().any(|examined| {
                    examined.lossy
                        || examined.log.dangling.is_some()
                        || examined.names.values().any(|bound| !model.inodes.contains_key(&bound.inode))
                })
        };
        let mut taken: BTreeSet<u64> = self.ground.strays.blocks().collect();
        for _ in 0..ROUNDS_MAX {
            if !is_short(self) {
                break;
            }
            let blocks = self.ground.disk.geometry().blocks;
            let (reached, held) = (Bits::new(blocks), Bits::new(blocks));
            for examined in self.inodes.values() {
                for block in examined.map.iter().flat_map(|run| run.block..run.block + run.count as u64) {
                    let _ = held.set(block);
                }
                for &page in examined.log.pages.iter().filter(|page| !taken.contains(page)) {
                    let _ = reached.set(page);
                }
            }
            let found = search(&self.ground, &reached, &held)?;
            let now: BTreeSet<u64> = found.blocks().collect();
            if now == taken {
                break;
            }
            let before = std::mem::replace(&mut self.ground.strays, found);
            taken = now;
            let again: BTreeSet<u32> = before.inodes().chain(self.ground.strays.inodes()).collect();
            for inode in again {
                self.examine_again(inode, None)?;
            }
        }
        self.names_lost |= self.ground.chunks.lost || self.ground.unfinished;
        Ok(())
    }
}
