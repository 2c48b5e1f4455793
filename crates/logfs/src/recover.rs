//! What a crash leaves is put in order: before the first operation on a volume that was not closed cleanly.
//!
//! Reads the volume (`survey`), decides what was in flight, kills what was not whole, completes births, recomputes the
//! cached link counts and parents from the directories, frees what nothing refers to, and raises the epoch. Every step
//! may itself be cut by a crash: done again, it comes to the same end. So none waits for another, and all are durable before the
//! epoch is raised.

use crate::bits::Bits;
use crate::disk::Disk;
use crate::format::entry::Owned;
use crate::format::geometry::Geometry;
use crate::format::page::{AT_NEXT, LinePlace};
use crate::format::shares::SharedRun;
use crate::format::slot::{self, Identity, Slot};
use crate::format::{BLOCK_BYTES, LINE_BYTES};
use crate::log;
use crate::shares::Counts;
use crate::survey::{Half, Survey, Surveyed, decide_halves, survey_inode};
use gannet_vfs::{Errno, Error, FileType, Result};
use std::collections::HashSet;

/// Inode number of the root directory.
pub(crate) const ROOT: u32 = 1;

/// What recovery found and did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecoveryReport {
    /// Inodes in use afterwards.
    pub inodes: u64,
    /// Log entries of operations that had not become whole, killed.
    pub entries_killed: u64,
    /// Inodes whose slot was completed from their directory's log.
    pub births_completed: u64,
    /// Inodes without names, freed.
    pub orphans_freed: u64,
    /// Cached link counts and parents put right.
    pub words_corrected: u64,
}

/// The volume's state after recovery: what is used.
pub(crate) struct Recovered {
    /// Blocks in use.
    pub(crate) blocks: Bits,
    /// Inodes in use.
    pub(crate) inodes: Bits,
    /// Blocks with several references.
    pub(crate) shares: Vec<SharedRun>,
    /// What was done.
    pub(crate) report: RecoveryReport,
}

/// Blocks that are in use on any volume: superblocks, maps, chunks of the inode table.
pub(crate) fn mark_fixed(disk: &Disk, blocks: &Bits) -> Result<()> {
    let geometry = disk.geometry();
    geometry.fixed().for_each(|block| drop_bool(blocks.set(block)));
    for chunk in 0..geometry.chunks {
        if let Some(first) = disk.chunk_block(chunk)? {
            (first..first + geometry.chunk_blocks).for_each(|block| drop_bool(blocks.set(block)));
        }
    }
    Ok(())
}

const fn drop_bool(_: bool) {}

/// Blocks in use, and how often those that are shared are referred to.
struct Used {
    blocks: Bits,
    shared: Counts,
}

fn data_blocks(surveyed: &Surveyed) -> impl Iterator<Item = u64> + '_ {
    surveyed.map.iter().flat_map(|extent| extent.block..extent.block + extent.count as u64)
}

impl Used {
    fn mark(&self, surveyed: &Surveyed) {
        surveyed.pages.iter().for_each(|&page| drop_bool(self.blocks.set(page)));
        surveyed.values.blocks().for_each(|block| drop_bool(self.blocks.set(block)));
        for block in data_blocks(surveyed) {
            if self.blocks.set(block) {
                self.shared.again(block);
            }
        }
    }

    fn unmark(&self, surveyed: &Surveyed) {
        surveyed.pages.iter().for_each(|&page| drop_bool(self.blocks.clear(page)));
        surveyed.values.blocks().for_each(|block| drop_bool(self.blocks.clear(block)));
        for block in data_blocks(surveyed) {
            if !self.shared.take(block) {
                drop_bool(self.blocks.clear(block));
            }
        }
    }
}

/// Recovers the volume with `threads` threads. `EUCLEAN` where it is damaged beyond what a crash can do: then nothing has
/// been changed.
pub(crate) fn recover(disk: &Disk, threads: usize) -> Result<Recovered> {
    let geometry: &Geometry = disk.geometry();
    let used = Used { blocks: Bits::new(geometry.blocks), shared: Counts::default() };
    let inodes = Bits::new(geometry.inodes());
    mark_fixed(disk, &used.blocks)?;
    let mut survey = Survey::of(disk, threads, &|surveyed| {
        used.mark(surveyed);
        surveyed.pages = Vec::new();
        surveyed.map = Default::default();
        surveyed.values = Default::default();
    })?;
    if let Some(problem) = survey.problems.first() {
        return Err(problem.error);
    }
    let mut report = RecoveryReport::default();

    let killed = decide(disk, &survey, &mut report)?;
    let born = complete_births(disk, &survey, &killed, &mut report)?;
    let mut added = Vec::new();
    for &inode in &born {
        if let Slot::Used { generation, birth, links, parent, .. } = disk.slot(inode)? {
            let surveyed = survey_inode(disk, inode, generation, birth, links, parent)?;
            used.mark(&surveyed);
            added.push(surveyed);
        }
    }
    survey.add(added);
    survey.damaged_slots.retain(|inode| !born.contains(inode));

    let derived = Derived::from_names(&survey, &killed)?;
    if !derived.is_held(&survey, ROOT) {
        return Err(Error::damaged("the root directory is missing", 0));
    }
    let mut commit = disk.begin();
    for surveyed in &survey.whole {
        if let Some(tail) =
            surveyed.end.tail.filter(|_| surveyed.end.dangling && derived.is_held(&survey, surveyed.inode))
        {
            // The link of a page that did not become whole; or what the block held before, behind a header that was torn.
            commit.store(tail.block * BLOCK_BYTES + AT_NEXT, 0)?;
        }
    }
    for (brief, holder) in survey.inodes.iter().zip(&derived.holders) {
        let at = disk.slot_at(brief.inode)?.ok_or(Error::damaged("slot", 0))?;
        if !holder.holds {
            let Slot::Used { birth, .. } = disk.slot(brief.inode)? else { continue };
            free_slot(&mut commit, at, brief.generation)?;
            report.orphans_freed += 1;
            let again = survey_inode(disk, brief.inode, brief.generation, birth, 0, 0)?;
            used.unmark(&again);
            continue;
        }
        drop_bool(inodes.set(brief.inode as u64));
        report.inodes += 1;
        let links = cached_links(brief.file_type, holder);
        if brief.links_cached != links {
            commit.store(at + slot::AT_LINKS, links)?;
            report.words_corrected += 1;
        }
        if brief.file_type == FileType::Directory && brief.parent_cached != holder.parent as u64 {
            commit.store(at + slot::AT_PARENT, holder.parent as u64)?;
            report.words_corrected += 1;
        }
    }
    for &inode in &survey.damaged_slots {
        // A birth that never became whole, and that no directory knows of.
        if derived.is_held(&survey, inode) {
            return Err(Error::damaged("inode slot", disk.slot_at(inode)?.unwrap_or(0)));
        }
        let at = disk.slot_at(inode)?.ok_or(Error::damaged("slot", 0))?;
        free_slot(&mut commit, at, disk.load(at)? as u32)?;
    }
    // Unnoticed [fence]: a crash that leaves the new epoch and not all of this is recovered from once more, to the same end. It
    // keeps an epoch from beginning with what should have ended in the last one.
    let _ = commit.fence();
    disk.settle_superblock()?;
    disk.raise_epoch()?;
    Ok(Recovered { shares: used.shared.runs(), blocks: used.blocks, inodes, report })
}

/// What an inode's slot says of its links: a directory's are derived from its log whenever it is loaded, so its slot says
/// only that it has a name.
pub(crate) const fn cached_links(file_type: FileType, holder: &Holder) -> u64 {
    match file_type {
        FileType::Directory => 2,
        _ => holder.links,
    }
}

/// Frees a slot: what it held has no name, or was never whole.
pub(crate) fn free_slot(commit: &mut crate::disk::Commit<'_>, at: u64, generation: u32) -> Result<()> {
    // Unnoticed [flush]: the next store goes to the same line.
    commit.store(at + slot::AT_IDENTITY, Identity { generation, file_type: None }.freed().encode())?;
    // Unnoticed [store, flush]: whoever is born there later does not take a head for its own that leads to no page of its own.
    commit.store(at + slot::AT_HEAD, 0)
}

/// Decides every log's last entry; kills what was not whole. Returns the directories whose last entry is killed.
fn decide(disk: &Disk, survey: &Survey, report: &mut RecoveryReport) -> Result<HashSet<u32>> {
    let mut killed = HashSet::new();
    let mut places: Vec<LinePlace> = Vec::new();
    let mut halves = Vec::new();
    for surveyed in &survey.whole {
        let Some(place) = surveyed.end.last else { continue };
        if surveyed.last.torn_data {
            places.push(place);
        }
        if let Some((partner, sequence)) = surveyed.last.partner {
            halves.push((partner, surveyed, sequence, place));
        }
    }
    // By partner, so that each log is read once, however many refer to it.
    halves.sort_by_key(|(partner, ..)| partner.inode);
    for group in halves.chunk_by(|(one, ..), (two, ..)| one.inode == two.inode) {
        let asked: Vec<_> = group
            .iter()
            .map(|&(partner, surveyed, sequence, _)| ((surveyed.inode, surveyed.generation, sequence), partner))
            .collect();
        for (half, &(_, surveyed, _, place)) in decide_halves(disk, &asked)?.into_iter().zip(group) {
            match half {
                Half::Committed => {}
                Half::Torn => {
                    places.push(place);
                    killed.insert(surveyed.inode);
                }
                Half::Damaged => {
                    return Err(Error::damaged("rename across directories: its halves disagree", place.offset_bytes()));
                }
            }
        }
    }
    let mut commit = disk.begin();
    for &place in &places {
        kill(&mut commit, place)?;
    }
    commit.without_fence();
    report.entries_killed += places.len() as u64;
    Ok(killed)
}

/// Makes an entry invalid for good, by one word.
pub(crate) fn kill(commit: &mut crate::disk::Commit<'_>, place: LinePlace) -> Result<()> {
    let mut line = [0; LINE_BYTES as usize];
    commit.disk().read(place.offset_bytes(), &mut line)?;
    // Zero could be a valid checksum; the complement of the valid one is not.
    let checksum = crate::format::get_u64(&line, 8);
    commit.store(place.offset_bytes() + 8, !checksum)
}

/// Writes the slots of inodes that a directory's last entry makes and that did not become durable with it.
fn complete_births(
    disk: &Disk,
    survey: &Survey,
    killed: &HashSet<u32>,
    report: &mut RecoveryReport,
) -> Result<HashSet<u32>> {
    let mut born = HashSet::new();
    let mut commit = disk.begin();
    for surveyed in &survey.whole {
        let Some((birth, target)) = surveyed.last.birth else { continue };
        if killed.contains(&surveyed.inode) {
            continue;
        }
        match disk.slot(target.inode)? {
            // The head stands outside of the checksum, so that it may be what the slot held before. A log that an inode is born with
            // never goes away, and its pages were durable first.
            Slot::Used { generation, birth: found, .. } if generation == target.generation => {
                let owned = Owned { key: disk.key(), inode: target.inode, generation };
                if birth.head == 0 || log::first_page(disk, owned, found.head)?.is_some() {
                    continue;
                }
            }
            Slot::Used { .. } => {
                return Err(Error::damaged("a birth whose slot is another's", target.place.offset_bytes()));
            }
            // The name's inode was freed after the entry: its removal follows in this very log, so it cannot be last.
            Slot::Free { .. } | Slot::Damaged => {}
        }
        let at = disk
            .slot_at(target.inode)?
            .ok_or(Error::damaged("a birth outside the inode table", target.place.offset_bytes()))?;
        let links = if birth.file_type == FileType::Directory { 2 } else { 1 };
        let bytes = birth.encode(disk.key(), target.inode, target.generation, links, surveyed.inode);
        commit.write(at, &bytes)?;
        born.insert(target.inode);
    }
    commit.without_fence();
    report.births_completed += born.len() as u64;
    Ok(born)
}

/// What the directories say of each inode.
struct Derived {
    /// In the order of the survey's inodes.
    holders: Vec<Holder>,
}

/// How an inode is held.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Holder {
    /// Its link count.
    pub(crate) links: u64,
    /// For a directory, the one that holds it.
    pub(crate) parent: u32,
    /// Whether it is reachable by a name, or the root.
    pub(crate) holds: bool,
}

impl Derived {
    /// Counts names. Errors name a binding that leads to nothing.
    fn from_names(survey: &Survey, killed: &HashSet<u32>) -> Result<Self> {
        let mut holders = vec![Holder::default(); survey.inodes.len()];
        if let Some(root) = survey.place_of(ROOT) {
            holders[root] = Holder { links: 2, parent: ROOT, holds: true };
        }
        for directory in &survey.whole {
            if directory.state.birth.file_type != FileType::Directory {
                continue;
            }
            let mut subdirectories = 0;
            for (_, target) in directory.settled_names(!killed.contains(&directory.inode)) {
                let found =
                    survey.place_of(target.inode).filter(|&at| survey.inodes[at].generation == target.generation);
                let Some(at) = found else {
                    return Err(Error::damaged("a name leads to no inode", target.place.offset_bytes()));
                };
                let holder = &mut holders[at];
                holder.holds = true;
                if target.file_type == FileType::Directory {
                    if holder.parent != 0 {
                        return Err(Error::damaged("a directory has two names", target.place.offset_bytes()));
                    }
                    holder.parent = directory.inode;
                    holder.links += 2;
                    subdirectories += 1;
                } else {
                    holder.links += 1;
                }
            }
            if let Some(at) = survey.place_of(directory.inode) {
                holders[at].links += subdirectories;
            }
        }
        // A directory that is bound as something else has no parent: it counts as nameless.
        for (brief, holder) in survey.inodes.iter().zip(&mut holders) {
            holder.holds &= brief.inode == ROOT || brief.file_type != FileType::Directory || holder.parent != 0;
        }
        Ok(Self { holders })
    }

    /// Whether an inode is reachable by a name, or the root.
    fn is_held(&self, survey: &Survey, inode: u32) -> bool {
        survey.place_of(inode).is_some_and(|at| self.holders[at].holds)
    }
}

/// Its shared state belongs to others.
pub(crate) const OPEN_ELSEWHERE: Error = Error::because(
    Errno::BUSY,
    "another user, or another container, has the volume open, and their shared state is not reachable from here",
);

/// Recovery writes nothing on a volume that may not be written to. Somebody may have it open, too, in shared state that this
/// process cannot reach.
pub(crate) fn refuse_read_only(disk: &Disk) -> Result<()> {
    if disk.medium().is_read_only() {
        let claimed =
            disk.medium().descriptor().is_some_and(|file| gannet_shm::volume_is_claimed(file).unwrap_or(false));
        if claimed {
            return Err(OPEN_ELSEWHERE);
        }
        return Err(Error::because(
            Errno::ROFS,
            "the volume was not closed cleanly and must be recovered, which needs permission to write",
        ));
    }
    Ok(())
}

const _: () = assert!(BLOCK_BYTES.is_multiple_of(LINE_BYTES));
