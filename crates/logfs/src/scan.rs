//! The whole volume read once, by several threads: for each inode in use which blocks it refers to and which names it binds is
//! noted; what a crash may have left undecided is kept. How much memory that takes depends on the largest
//! inode for each thread, and on the number of slots and blocks, not on what names and files there are.
//!
//! Reads the medium and changes nothing.

use crate::dangling::Dangling;
use crate::disk::{Chunk, Disk};
use crate::format::BLOCK_BYTES;
use crate::format::entry::{Owned, Partner};
use crate::format::geometry::SLOTS_PER_BLOCK;
use crate::format::page::{LinePlace, Link};
use crate::format::slot::{Birth, Slot};
use crate::holders::Holders;
use crate::log::{self, PageRoom};
use crate::survey::{Change, Surveyed, Target};
use crate::used::Used;
use gannet_media::MediumOffset;
use gannet_vfs::{Error, FileType, Result};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// What all inodes say together, filled while they are read.
pub(crate) struct Volume<'d> {
    /// Where it lies.
    pub(crate) disk: &'d Disk,
    /// Its inode table.
    pub(crate) chunks: Vec<Chunk>,
    /// Blocks in use.
    pub(crate) used: Used,
    /// Names.
    pub(crate) holders: Holders,
}

/// What is left to be decided, and what is wrong.
#[derive(Default)]
pub(crate) struct Found {
    /// What is wrong: errors of the structures themselves, not what a crash leaves. Of several the one of the least inode.
    pub(crate) problem: Option<(u32, Error)>,
    /// Last entries whose data is not there.
    pub(crate) torn: Vec<LinePlace>,
    /// Directories whose last entry is half of a rename.
    pub(crate) halves: Vec<Undecided>,
    /// Inodes that the last entry of a directory makes, and whose slot did not become whole: with the directory.
    pub(crate) unborn: Vec<(u32, Birth, Target)>,
    /// Links of last pages, and of slots, that lead to no page of their log.
    pub(crate) dangling: Vec<Dangling>,
    /// Inodes that the last entry of a directory makes, if it can have been in flight.
    pub(crate) born: Vec<u32>,
}

/// A directory whose last entry is to be decided.
pub(crate) struct Undecided {
    /// The directory.
    pub(crate) inode: u32,
    /// Its generation.
    pub(crate) generation: u32,
    /// The entry.
    pub(crate) place: LinePlace,
    /// Its sequence.
    pub(crate) sequence: u64,
    /// The other half.
    pub(crate) partner: Partner,
    /// An inode that it makes.
    pub(crate) birth: Option<(Birth, Target)>,
    /// The names that it changes, if it stands.
    pub(crate) after: [Option<Change>; 2],
    /// The same names, if not.
    pub(crate) before: [Option<Change>; 2],
}

/// Blocks of the inode table that a thread takes upon itself: few enough that all end at the same time.
const BLOCKS_AT_A_TIME: u64 = 8;
/// Of an inode's first page, so many lines are asked for ahead.
const LINES_EXPECTED: u64 = 3;
/// Files with more runs of blocks than that are done with at once, not together with their neighbours.
const RUNS_TOGETHER: usize = 64;

impl<'d> Volume<'d> {
    /// Before anything is read.
    pub(crate) fn of(disk: &'d Disk) -> Result<Self> {
        let chunks = disk.chunks()?;
        let (used, holders) = (Used::of_empty(disk, &chunks), Holders::of(disk, &chunks));
        Ok(Self { disk, chunks, used, holders })
    }

    /// Calls `each` with every block of the inode table and the number of its first inode, on `threads` threads, each with a part of
    /// its own.
    pub(crate) fn by_blocks<P: Default + Send>(
        &self,
        threads: usize,
        each: impl Fn(&mut P, u64, u64) + Sync,
    ) -> impl Iterator<Item = P> {
        let per_chunk = self.disk.geometry().chunk_blocks;
        let blocks = self.chunks.len() as u64 * per_chunk;
        let next = AtomicU64::new(0);
        let parts = Mutex::new(Vec::new());
        let run = || {
            let mut part = P::default();
            loop {
                let first = next.fetch_add(BLOCKS_AT_A_TIME, Ordering::Relaxed);
                for at in first..(first + BLOCKS_AT_A_TIME).min(blocks) {
                    let (chunk, within) = (self.chunks[(at / per_chunk) as usize], at % per_chunk);
                    let first_inode = (chunk.number as u64 * per_chunk + within) * SLOTS_PER_BLOCK;
                    each(&mut part, chunk.block as u64 + within, first_inode);
                }
                if first >= blocks {
                    break;
                }
            }
            parts.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).push(part);
        };
        // The calling thread is one of them.
        std::thread::scope(|scope| {
            (1..threads).for_each(|_| drop(scope.spawn(run)));
            run();
        });
        parts.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner()).into_iter()
    }

    /// Reads all inodes.
    pub(crate) fn scan(&self, threads: usize) -> Found {
        let mut found = Found::default();
        for part in self.by_blocks(threads, |part: &mut Reader, block, first| part.block(self, block, first)) {
            let Found { problem, torn, halves, unborn, dangling, born } = part.found;
            problem.into_iter().for_each(|(inode, error)| found.note(inode, error));
            found.torn.extend(torn);
            found.halves.extend(halves);
            found.unborn.extend(unborn);
            found.dangling.extend(dangling);
            found.born.extend(born);
        }
        // In an order that does not depend on the threads.
        found.torn.sort_unstable();
        found.halves.sort_by_key(|half| half.inode);
        found.unborn.sort_by_key(|&(directory, ..)| directory);
        found.dangling.sort_unstable();
        found.born.sort_unstable();
        found
    }

    /// Takes in an inode that has been read: its blocks, its names, and what is to be decided of it.
    pub(crate) fn take(&self, surveyed: &mut Surveyed, found: &mut Found) -> Result<()> {
        self.used.mark(surveyed);
        found.dangling.extend(Dangling::of(self.disk, surveyed)?);
        let Some(place) = surveyed.end.last else { return Ok(()) };
        if surveyed.last.torn_data {
            found.torn.push(place);
        }
        if surveyed.state.birth.file_type != FileType::Directory {
            return Ok(());
        }
        let birth = surveyed.last.birth;
        if surveyed.end.epoch == self.disk.epoch() {
            found.born.extend(birth.iter().map(|(_, target)| target.inode));
        }
        let mut changing = [None; 2];
        if let Some((partner, sequence)) = surveyed.last.partner {
            changing = surveyed.names.last;
            let (after, before) = (surveyed.names.last, surveyed.names.before_last());
            let Surveyed { inode, generation, .. } = *surveyed;
            found.halves.push(Undecided { inode, generation, place, sequence, partner, birth, after, before });
        } else {
            surveyed.names.keep_last();
            if let Some((birth, target)) = birth
                && !is_born(self.disk, &birth, &target)?
            {
                found.unborn.push((surveyed.inode, birth, target));
            }
        }
        let is_changing = |key| changing.iter().flatten().any(|change: &Change| change.key == key);
        surveyed
            .names
            .bound()
            .iter()
            .filter(|change| !is_changing(change.key))
            .try_for_each(|change| self.bind(surveyed.inode, change))
    }

    /// Counts a name, if it is one.
    pub(crate) fn bind(&self, directory: u32, change: &Change) -> Result<()> {
        change.target.map_or(Ok(()), |target| self.holders.bind(self.disk, directory, &target))
    }
}

impl Found {
    /// Notes what is wrong with an inode.
    pub(crate) fn note(&mut self, inode: u32, error: Error) {
        if self.problem.as_ref().is_none_or(|&(least, _)| inode < least) {
            self.problem = Some((inode, error));
        }
    }
}

/// Whether an inode's slot is what the entry says that makes it.
pub(crate) fn is_born(disk: &Disk, birth: &Birth, target: &Target) -> Result<bool> {
    match disk.slot(target.inode)? {
        // The head stands outside of the checksum, so that it may be what the slot held before. A log that an inode is born with
        // never goes away, and its pages were durable first.
        Slot::Used { generation, birth: found, .. } if generation == target.generation => {
            let owned = Owned { key: disk.key(), inode: target.inode, generation };
            Ok(birth.head == 0 || log::first_page(disk, owned, found.head)?.is_some())
        }
        Slot::Used { .. } => {
            let at = disk.slot_at(target.inode)?.unwrap_or(0);
            Err(Error::damaged("a birth whose slot is another's", at))
        }
        // The name's inode was freed after the entry: its removal follows in this very log, so it cannot be last.
        Slot::Free { .. } | Slot::Damaged => Ok(false),
    }
}

/// What one thread has read, and its room.
#[derive(Default)]
struct Reader {
    found: Found,
    room: PageRoom,
    slots: Vec<(u32, u32, Birth)>,
    waiting: Vec<Surveyed>,
}

impl Reader {
    /// Reads the inodes of a block of the inode table. The memory that will be looked at next is asked for early, so that waiting for
    /// one does not begin when that for another ends: the slots, then the first pages, then the data.
    fn block(&mut self, volume: &Volume<'_>, block: u64, first: u64) {
        let disk = volume.disk;
        match disk.slots(block, first) {
            Ok(slots) => self.slots.extend(slots.filter_map(|(inode, slot)| match slot {
                Slot::Used { generation, birth, .. } => Some((inode, generation, birth)),
                _ => None,
            })),
            Err(error) => return self.found.note(first as u32, error),
        }
        for (_, _, birth) in &self.slots {
            if let Some(link) = Link::decode(birth.head) {
                let at = MediumOffset(link.block * BLOCK_BYTES);
                (0..LINES_EXPECTED).for_each(|line| disk.medium().expect_load(at.plus(line * 64)));
            }
        }
        for (inode, generation, birth) in std::mem::take(&mut self.slots) {
            match Surveyed::read(disk, inode, generation, birth, &mut self.room) {
                Ok(surveyed) if surveyed.expect_data(disk) && surveyed.map.has_at_most(RUNS_TOGETHER) => {
                    self.waiting.push(surveyed);
                }
                Ok(surveyed) => self.finish(volume, surveyed),
                Err(error) => self.found.note(inode, error),
            }
        }
        for surveyed in std::mem::take(&mut self.waiting) {
            self.finish(volume, surveyed);
        }
    }

    fn finish(&mut self, volume: &Volume<'_>, mut surveyed: Surveyed) {
        let taken = surveyed
            .look_at_data(volume.disk, &mut self.room)
            .and_then(|()| volume.take(&mut surveyed, &mut self.found));
        if let Err(error) = taken {
            self.found.note(surveyed.inode, error);
        }
    }
}
