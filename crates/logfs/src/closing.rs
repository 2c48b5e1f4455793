//! What a clean detach leaves of the maps of free space, and how the next attach finds it: a summary, proved by the volume's clean word,
//! and tables of the maps' sections. A section is read when its pool is first used.
//!
//! Runs behind the arena's gate: nobody else uses the volume meanwhile.

use crate::disk::{Commit, Disk, SavedMap};
use crate::format::LINE_BYTES;
use crate::format::sections::Section;
use crate::format::shares::SharedRun;
use crate::format::state::{CLEAN_AT, SUMMARY_AT, Summary};
use crate::ops::Core;
use crate::shares::{Shares, read_list, save_list};
use crate::space::Space;
use gannet_shm::Session;
use gannet_vfs::Result;

/// Maps of up to so many bytes, of volumes of up to 2 GiB, are read by the attach: what is damaged in one is made anew by a recovery at
/// once, while a damaged section of a larger one is noticed when its pool is used, and made anew at the next attach.
const PROVED_AT_ONCE_BYTES: u64 = if cfg!(test) { 4 << 10 } else { 64 << 10 };

/// Saves the maps, and says so for the caller to fence. What the word proves is durable before it: the next attach would find out
/// otherwise, but for fsck a volume that was closed cleanly and has other maps is damaged. Where a section was found damaged nothing is
/// said: the next attach counts.
pub(crate) fn save(core: &Core, session: &Session) -> Result<()> {
    let disk = &core.disk;
    let blocks = core.space.blocks_in(session.arena())?;
    let inodes = core.space.inodes_in(session.arena())?;
    if blocks.is_damaged() || inodes.is_damaged() {
        return Ok(());
    }
    let mut commit = disk.begin();
    let (block_map_hash, blocks_free) = save_map(disk, &mut commit, &blocks, SavedMap::of_blocks(disk))?;
    let (inode_map_hash, inodes_free) = save_map(disk, &mut commit, &inodes, SavedMap::of_inodes(disk))?;
    // Blocks that nobody has, and nobody gets until the next attach has read them.
    let geometry = disk.geometry();
    let runs = Shares::of(&core.places, session.arena())?.runs()?;
    let mut next = geometry.end();
    let shares = save_list(disk, &mut commit, &runs, &mut || {
        next = (geometry.first_free..next).rev().find(|&block| blocks.is_free_alone(block))?;
        Some(next)
    })?;
    // Without room for the list the next attach counts.
    let Some(shares) = shares else { return Ok(()) };
    let summary = Summary {
        shares,
        blocks_free,
        inodes_used: geometry.inodes() - inodes_free,
        block_map_hash,
        inode_map_hash,
        epoch: disk.epoch() as u64,
    };
    commit.write(SUMMARY_AT, &summary.encode())?;
    let _ = commit.fence();
    let mut commit = disk.begin();
    commit.store(CLEAN_AT, summary.clean_word(disk.key()))?;
    commit.without_fence();
    Ok(())
}

/// Saves a map as bits of what is in use: the sections of pools that were read since it was saved last, and the table. Returns the table's
/// checksum and how much is free.
fn save_map(disk: &Disk, commit: &mut Commit<'_>, space: &Space<'_>, map: SavedMap) -> Result<(u64, u64)> {
    let mut sections = Vec::with_capacity(map.sections() as usize);
    for index in 0..map.sections() {
        sections.push(match space.left(index) {
            Some((free, hash)) => Section { free, hash },
            None => {
                map.write_section(commit, index, space.words_of(index).map(|free| !free))?;
                map.as_it_stands(disk.medium(), index)?
            }
        });
    }
    let free = sections.iter().map(|section| section.free).sum();
    Ok((map.write_table(commit, &sections)?, free))
}

/// What a clean detach left, if there was one.
pub(crate) struct Closed {
    pub(crate) summary: Summary,
    /// What was shared.
    pub(crate) shares: Vec<SharedRun>,
    blocks: Vec<Section>,
    inodes: Vec<Section>,
}

impl Closed {
    /// Looks whether the volume was closed cleanly and its tables are what the summary says.
    pub(crate) fn find(disk: &Disk) -> Result<Option<Self>> {
        let clean = disk.load(CLEAN_AT)?;
        if clean == 0 {
            return Ok(None);
        }
        let mut line = [0; LINE_BYTES as usize];
        disk.read(SUMMARY_AT, &mut line)?;
        let summary = Summary::decode(&line);
        if clean != summary.clean_word(disk.key()) || summary.epoch != disk.epoch() as u64 {
            return Ok(None);
        }
        let proved = |map: SavedMap, hash: u64| -> Result<Option<Vec<Section>>> {
            let Some(table) = map.table(disk.medium(), hash)? else { return Ok(None) };
            // What cannot be read is as good as damaged: recovery does not ask for it.
            let is_sound = map.length_bytes() > PROVED_AT_ONCE_BYTES
                || map.prove(disk.medium(), &table, &mut |_, _| {}).unwrap_or(false);
            Ok(is_sound.then_some(table))
        };
        let blocks = proved(SavedMap::of_blocks(disk), summary.block_map_hash)?;
        let inodes = proved(SavedMap::of_inodes(disk), summary.inode_map_hash)?;
        let (Some(blocks), Some(inodes)) = (blocks, inodes) else { return Ok(None) };
        Ok(read_list(disk, summary.shares)?.map(|shares| Self { summary, shares, blocks, inodes }))
    }

    /// Leaves the maps where they are.
    pub(crate) fn leave(&self, blocks: &Space<'_>, inodes: &Space<'_>) {
        for (space, sections) in [(blocks, &self.blocks), (inodes, &self.inodes)] {
            (0..).zip(sections).for_each(|(index, section)| space.leave(index, section.free, section.hash));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::tests::{attach, empty_volume};
    use crate::{CheckOptions, LogFs, Outcome, check};
    use gannet_media::Medium;
    use gannet_usermem::Source;
    use gannet_vfs::{AllocateMode, Errno, FileSystem, Name, NewNode, Owner, Result, WriteFlags, WritePosition};

    /// Blocks and inodes have four sections each, too many to be proved at once here.
    const BYTES: u64 = 256 << 20;

    fn file(fs: &LogFs, text: &str, bytes: u64) -> Result<()> {
        let new = NewNode::regular(0o600, Owner::default());
        let node = fs.create(fs.root(), Name::new(text.as_bytes())?, &new)?;
        fs.write(node, WritePosition::At(0), &mut Source::from_slice(text.as_bytes()), WriteFlags::empty())?;
        fs.allocate(node, AllocateMode::Extend, 0, bytes)
    }

    /// Which sections of blocks, and of inodes, nobody has read.
    fn unread(fs: &LogFs) -> [Vec<u64>; 2] {
        let (core, session) = fs.parts();
        let arena = session.arena();
        [core.space.blocks_in(arena), core.space.inodes_in(arena)].map(|space| {
            let space = space.expect("a space");
            (0..space.layout().pools()).filter(|&index| space.left(index).is_some()).collect()
        })
    }

    fn assert_sound(medium: &Medium) {
        let report = check(medium, CheckOptions { repair: false, threads: 1 }, &mut |_| {}).expect("fsck");
        assert!(report.outcome == Outcome::Sound && report.closed_cleanly, "{:?}", report.findings);
    }

    fn flip(medium: &Medium, at: u64) {
        let mut byte = [0];
        medium.read(gannet_media::MediumOffset(at), &mut byte).expect("readable");
        medium.write(gannet_media::MediumOffset(at), &[byte[0] ^ 8]).expect("writable");
    }

    #[test]
    fn sections_are_read_when_they_are_used_and_written_when_they_were_read() {
        let medium = empty_volume(BYTES);
        assert_sound(&medium);
        let fs = attach(&medium);
        let all = unread(&fs);
        assert_eq!(all[0], [0, 1, 2, 3]);
        assert!(all[1].len() > 1 && fs.recovery().is_none());
        let fresh = fs.statistics().expect("statistics");
        // Nothing was used: nothing is read, and all is as it was.
        assert!(fs.detach().expect("detach"));
        drop(fs);
        assert_sound(&medium);
        let fs = attach(&medium);
        assert_eq!(fs.statistics().expect("statistics"), fresh);
        file(&fs, "one", 3 << 20).expect("made");
        assert_eq!(unread(&fs), [vec![1, 2, 3], all[1][1..].to_vec()]);
        let used = fs.statistics().expect("statistics");
        assert!(used.blocks_free + 768 <= fresh.blocks_free, "{used:?}, {fresh:?}");
        assert!(fs.detach().expect("detach"));
        drop(fs);
        assert_sound(&medium);
        let fs = attach(&medium);
        assert_eq!((fs.statistics().expect("statistics"), unread(&fs)), (used, all));
        // More than a section has; and once more, after a crash.
        file(&fs, "two", 100 << 20).expect("made");
        assert_eq!(unread(&fs)[0], [2, 3]);
        let used = fs.statistics().expect("statistics");
        drop(fs);
        let fs = attach(&medium);
        assert!(fs.recovery().is_some() && unread(&fs) == [vec![], vec![]]);
        assert_eq!(fs.statistics().expect("statistics"), used);
        assert!(fs.detach().expect("detach"));
        drop(fs);
        assert_sound(&medium);
    }

    #[test]
    fn a_damaged_section_is_counted_anew() {
        let medium = empty_volume(BYTES);
        let fs = attach(&medium);
        let fresh = fs.statistics().expect("statistics");
        assert!(fs.detach().expect("detach"));
        drop(fs);
        let disk = Disk::open(medium.clone()).expect("a volume");
        flip(&medium, SavedMap::of_blocks(&disk).place(0).start + 1000);
        let fs = attach(&medium);
        assert!(fs.recovery().is_none());
        // Another section has room; and where none has, what is wrong is said.
        file(&fs, "one", 3 << 20).expect("made elsewhere");
        let mut made = 1;
        let error = loop {
            match file(&fs, &format!("more {made}"), 20 << 20) {
                Ok(()) => made += 1,
                Err(error) => break error,
            }
        };
        assert_eq!((error.errno(), made > 8), (Errno::NOSPC, true), "{error}");
        // It is not closed as if all were known, and so all is counted.
        assert!(fs.detach().expect("detach"));
        drop(fs);
        let fs = attach(&medium);
        assert!(fs.recovery().is_some());
        file(&fs, "in the first section", 20 << 20).expect("made");
        let used = fs.statistics().expect("statistics");
        assert!(used.blocks_free + made * 5120 < fresh.blocks_free);
        assert!(fs.detach().expect("detach"));
        drop(fs);
        assert_sound(&medium);
    }

    #[test]
    fn damaged_tables_and_small_maps_are_counted_at_once() {
        let medium = empty_volume(BYTES / 4);
        let disk = Disk::open(medium.clone()).expect("a volume");
        let maps = [SavedMap::of_blocks(&disk), SavedMap::of_inodes(&disk)];
        assert!(maps[0].length_bytes() <= PROVED_AT_ONCE_BYTES);
        let [blocks, inodes] = maps.map(|map| map.place(0).end - 9);
        for at in
            [crate::format::sections::BLOCK_SECTIONS_AT, crate::format::sections::INODE_SECTIONS_AT + 8, blocks, inodes]
        {
            flip(&medium, at);
            let fs = attach(&medium);
            assert!(fs.recovery().is_some());
            assert!(fs.detach().expect("detach"));
            drop(fs);
            assert_sound(&medium);
        }
    }
}
