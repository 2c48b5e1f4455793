//! What a crash leaves is put in order: before the first operation on a volume that was not closed cleanly.
//!
//! Reads the volume (`scan`), decides what was in flight, kills what was not whole, completes births, recomputes the
//! cached link counts and parents from the directories, frees what nothing refers to, and raises the epoch. Every step
//! may itself be cut by a crash: done again, it comes to the same end. So none waits for another, and all are durable before the
//! epoch is raised.

use crate::bits::Bits;
use crate::dangling::unexplained;
use crate::disk::Disk;
use crate::format::page::LinePlace;
use crate::format::shares::SharedRun;
use crate::format::slot::{self, Identity, SLOT_BYTES, Slot};
use crate::format::{BLOCK_BYTES, LINE_BYTES};
use crate::halves::{Half, decide_halves};
use crate::log::PageRoom;
use crate::scan::{Found, Volume, is_born};
use crate::survey::Surveyed;
use gannet_vfs::{Errno, Error, FileType, Result};

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

/// Recovers the volume with `threads` threads. `EUCLEAN` where it is damaged beyond what a crash can do: then nothing has
/// been changed, but for last entries that were killed and births that were completed.
pub(crate) fn recover(disk: &Disk, threads: usize) -> Result<Recovered> {
    let volume = Volume::of(disk)?;
    let mut found = volume.scan(threads);
    if let Some((_, error)) = found.problem {
        return Err(error);
    }
    let mut report = RecoveryReport::default();
    decide(&volume, &mut found, &mut report)?;
    complete_births(&volume, &mut found, &mut report)?;

    let inodes = Bits::new(disk.geometry().inodes());
    let judged = judge(&volume, threads, &inodes)?;
    report.inodes = judged.inodes;
    report.words_corrected = judged.corrections.len() as u64;
    report.orphans_freed = judged.orphans.len() as u64;
    // A slot that was stale has been completed since.
    let mut dangling = Vec::new();
    for link in found.dangling.iter().filter(|link| inodes.has(link.inode as u64)) {
        if disk.load(link.at)? == link.link {
            dangling.push(*link);
        }
    }
    if let Some(link) = unexplained(disk, &dangling, &found.born, &volume.used.blocks)?.first() {
        return Err(Error::damaged("link to a log page: the log goes on elsewhere", link.at));
    }
    let mut commit = disk.begin();
    for link in &dangling {
        // The link of a page that did not become whole; or what the block held before, behind a header that was torn.
        commit.store(link.at, 0)?;
    }
    for &(at, word) in &judged.corrections {
        commit.store(at, word)?;
    }
    let mut room = PageRoom::default();
    for &inode in &judged.orphans {
        let Slot::Used { generation, birth, .. } = disk.slot(inode)? else { continue };
        let mut again = Surveyed::read(disk, inode, generation, birth, &mut room)?;
        again.look_at_data(disk, &mut room)?;
        volume.used.unmark(&again);
        free_slot(&mut commit, slot_of(disk, inode)?, generation)?;
    }
    // Births that never became whole, and that no directory knows of.
    for &inode in &judged.damaged {
        let at = slot_of(disk, inode)?;
        free_slot(&mut commit, at, disk.load(at)? as u32)?;
    }
    // Unnoticed [fence]: a crash that leaves the new epoch and not all of this is recovered from once more, to the same end. It
    // keeps an epoch from beginning with what should have ended in the last one.
    let _ = commit.fence();
    disk.settle_superblock()?;
    disk.raise_epoch()?;
    Ok(Recovered { shares: volume.used.shared.runs(), blocks: volume.used.blocks, inodes, report })
}

fn slot_of(disk: &Disk, inode: u32) -> Result<u64> {
    disk.slot_at(inode)?.ok_or(Error::damaged("slot", 0))
}

/// What the names make of the inodes.
#[derive(Default)]
struct Judged {
    problem: Option<(u32, Error)>,
    /// How many are held by names.
    inodes: u64,
    has_root: bool,
    /// Words of slots that are to be stored: where, and what.
    corrections: Vec<(u64, u64)>,
    /// Inodes in use without names.
    orphans: Vec<u32>,
    /// Slots whose checksum fails.
    damaged: Vec<u32>,
}

impl Judged {
    fn slot(&mut self, volume: &Volume<'_>, at: u64, inode: u32, slot: &Slot) -> bool {
        let holder = volume.holders.holder(inode);
        let problem = match *slot {
            Slot::Used { generation, .. } if holder.links > 0 && holder.generation != generation => NO_INODE,
            Slot::Free { .. } if holder.links > 0 => NO_INODE,
            Slot::Damaged if holder.links > 0 => "inode slot",
            Slot::Free { .. } => return false,
            Slot::Damaged => {
                self.damaged.push(inode);
                return false;
            }
            Slot::Used { birth, .. } if !holder.holds(inode, birth.file_type) => {
                self.orphans.push(inode);
                return false;
            }
            Slot::Used { birth, links: links_cached, parent: parent_cached, .. } => {
                self.inodes += 1;
                self.has_root |= inode == ROOT;
                let links = cached_links(birth.file_type, holder.links as u64);
                if links_cached != links {
                    self.corrections.push((at + slot::AT_LINKS, links));
                }
                if birth.file_type == FileType::Directory && parent_cached != holder.parent as u64 {
                    self.corrections.push((at + slot::AT_PARENT, holder.parent as u64));
                }
                return true;
            }
        };
        self.note(inode, Error::damaged(problem, at));
        false
    }

    fn note(&mut self, inode: u32, error: Error) {
        if self.problem.as_ref().is_none_or(|&(least, _)| inode < least) {
            self.problem = Some((inode, error));
        }
    }
}

const NO_INODE: &str = "a name leads to no inode";

/// Compares all slots with the names, once these are decided, and adds the inodes that stay in use to `inodes`. Changes nothing.
fn judge(volume: &Volume<'_>, threads: usize, inodes: &Bits) -> Result<Judged> {
    let parts = volume.by_blocks(threads, |part: &mut Judged, block, first| match volume.disk.slots(block, first) {
        Ok(slots) => {
            for (inode, slot) in slots {
                let at = block * BLOCK_BYTES + (inode as u64 - first) * SLOT_BYTES;
                if part.slot(volume, at, inode, &slot) {
                    inodes.set(inode as u64);
                }
            }
        }
        Err(error) => part.note(first as u32, error),
    });
    let mut judged = Judged::default();
    for part in parts {
        part.problem.into_iter().for_each(|(inode, error)| judged.note(inode, error));
        judged.inodes += part.inodes;
        judged.has_root |= part.has_root;
        judged.corrections.extend(part.corrections);
        judged.orphans.extend(part.orphans);
        judged.damaged.extend(part.damaged);
    }
    if let Some((_, error)) = judged.problem {
        return Err(error);
    }
    if !judged.has_root {
        return Err(Error::damaged("the root directory is missing", 0));
    }
    // In an order that does not depend on the threads.
    judged.corrections.sort_unstable();
    judged.orphans.sort_unstable();
    judged.damaged.sort_unstable();
    Ok(judged)
}

/// What an inode's slot says of its links: a directory's are derived from its log whenever it is loaded, so its slot says
/// only that it has a name.
pub(crate) const fn cached_links(file_type: FileType, links: u64) -> u64 {
    match file_type {
        FileType::Directory => 2,
        _ => links,
    }
}

/// Frees a slot: what it held has no name, or was never whole.
pub(crate) fn free_slot(commit: &mut crate::disk::Commit<'_>, at: u64, generation: u32) -> Result<()> {
    // Unnoticed [flush]: the next store goes to the same line.
    commit.store(at + slot::AT_IDENTITY, Identity { generation, file_type: None }.freed().encode())?;
    // Unnoticed [store, flush]: whoever is born there later does not take a head for its own that leads to no page of its own.
    commit.store(at + slot::AT_HEAD, 0)
}

/// Decides every log's last entry; kills what was not whole. What stands may make an inode.
fn decide(volume: &Volume<'_>, found: &mut Found, report: &mut RecoveryReport) -> Result<()> {
    let disk = volume.disk;
    let mut halves = std::mem::take(&mut found.halves);
    // By partner, so that each log is read once, however many refer to it.
    halves.sort_by_key(|half| half.partner.inode);
    for group in halves.chunk_by(|one, two| one.partner.inode == two.partner.inode) {
        let asked: Vec<_> =
            group.iter().map(|half| ((half.inode, half.generation, half.sequence), half.partner)).collect();
        for (decision, half) in decide_halves(disk, &asked)?.into_iter().zip(group) {
            let stands = match decision {
                Half::Committed => true,
                Half::Torn => false,
                Half::Damaged => {
                    let what = "rename across directories: its halves disagree";
                    return Err(Error::damaged(what, half.place.offset_bytes()));
                }
            };
            let names = if stands { &half.after } else { &half.before };
            names.iter().flatten().try_for_each(|change| volume.bind(half.inode, change))?;
            match half.birth {
                Some((birth, target)) if stands && !is_born(disk, &birth, &target)? => {
                    found.unborn.push((half.inode, birth, target));
                }
                _ if stands => {}
                _ => found.torn.push(half.place),
            }
        }
    }
    let mut commit = disk.begin();
    for &place in &found.torn {
        kill(&mut commit, place)?;
    }
    commit.without_fence();
    report.entries_killed += found.torn.len() as u64;
    Ok(())
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
fn complete_births(volume: &Volume<'_>, found: &mut Found, report: &mut RecoveryReport) -> Result<()> {
    let disk = volume.disk;
    let mut commit = disk.begin();
    let unborn = std::mem::take(&mut found.unborn);
    for (directory, birth, target) in &unborn {
        let links = if birth.file_type == FileType::Directory { 2 } else { 1 };
        let bytes = birth.encode(disk.key(), target.inode, target.generation, links, *directory);
        commit.write(slot_of(disk, target.inode)?, &bytes)?;
    }
    commit.without_fence();
    let mut room = PageRoom::default();
    for (_, birth, target) in &unborn {
        let mut surveyed = Surveyed::read(disk, target.inode, target.generation, *birth, &mut room)?;
        surveyed.look_at_data(disk, &mut room)?;
        volume.take(&mut surveyed, found)?;
    }
    report.births_completed += unborn.len() as u64;
    Ok(())
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::tests::{attach, empty_volume};
    use crate::format::slot::AT_HEAD;
    use gannet_media::MediumOffset;
    use gannet_usermem::Source;
    use gannet_vfs::{FileSystem, Name, NewNode, Owner, WriteFlags, WritePosition};

    /// A head and the page that it leads to become durable together or not: of a page that did not, the block is anybody's.
    #[test]
    fn a_head_that_leads_to_no_page_is_cleared() {
        let medium = empty_volume(16 << 20);
        let fs = attach(&medium);
        let name = Name::new(b"file").expect("a name");
        let node = fs.create(fs.root(), name, &NewNode::regular(0o600, Owner::default())).expect("made");
        let mut bytes = Source::from_slice(&[7; 5000]);
        fs.write(node, WritePosition::At(0), &mut bytes, WriteFlags::empty()).expect("written");
        // Not detached: as a power loss leaves it.
        drop(fs);
        let disk = Disk::open(medium.clone()).expect("a volume");
        let head_at = slot_of(&disk, node.number as u32).expect("a slot") + AT_HEAD;
        let link = crate::format::page::Link::decode(disk.load(head_at).expect("readable")).expect("a page");
        medium.write(MediumOffset(link.block * crate::format::BLOCK_BYTES), &[0; 64]).expect("writable");
        let fs = attach(&medium);
        assert!(fs.recovery().is_some());
        assert_eq!(disk.load(head_at).expect("readable"), 0);
        assert_eq!(fs.attributes(node).expect("the file").size_bytes, 0);
        assert!(fs.detach().expect("detach"));
    }

    /// A slot can be new as far as its checksum reaches, and its head of the inode before: it is completed, not cleared.
    #[test]
    fn a_head_that_is_stale_is_what_the_birth_says() {
        let medium = empty_volume(16 << 20);
        let fs = attach(&medium);
        let name = Name::new(b"link").expect("a name");
        let new = NewNode { target: b"somewhere", ..NewNode::of_type(FileType::Symlink, 0o777, Owner::default()) };
        let node = fs.create(fs.root(), name, &new).expect("made");
        drop(fs);
        let disk = Disk::open(medium.clone()).expect("a volume");
        let head_at = slot_of(&disk, node.number as u32).expect("a slot") + AT_HEAD;
        let stale = crate::format::page::Link { block: disk.geometry().end() - 1, epoch: disk.epoch() }.encode();
        assert_ne!(disk.load(head_at).expect("readable"), 0);
        medium.write(MediumOffset(head_at), &stale.to_le_bytes()).expect("writable");
        let fs = attach(&medium);
        let mut target = [0; 100];
        let length = fs.read_link(node, &mut target).expect("a target");
        assert_eq!(&target[..length], b"somewhere");
        assert!(fs.detach().expect("detach"));
    }
}
