//! The maps and the summary of a volume that was closed cleanly: writing them, and reading them with their proofs.
//!
//! Relies on nobody using the volume meanwhile.

use crate::bits::{Bits, PAGE_WORDS};
use crate::disk::{Commit, Disk, SavedMap};
use crate::format::shares::SharedRun;
use crate::format::state::{ARENA_AT, CLEAN_AT, REPAIRING, SUMMARY_AT, Summary, is_of_whole_maps, is_repairing};
use crate::format::{BLOCK_BYTES, LINE_BYTES};
use crate::holes::written;
use crate::shares::save_list;
use gannet_media::MediumOffset;
use gannet_vfs::Result;

/// A map on the medium.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Map {
    /// One bit for each block, set if it is in use.
    Blocks,
    /// One bit for each inode, set if it is in use; 0 counts as such.
    Inodes,
}

impl Map {
    fn on(self, disk: &Disk) -> SavedMap {
        match self {
            Self::Blocks => SavedMap::of_blocks(disk),
            Self::Inodes => SavedMap::of_inodes(disk),
        }
    }

    /// What it says, if it is what a summary proves.
    pub(crate) fn load(self, disk: &Disk, summary: &Summary) -> Result<Option<Bits>> {
        let map = self.on(disk);
        let (hash, length) = match self {
            Self::Blocks => (summary.block_map_hash, disk.geometry().blocks),
            Self::Inodes => (summary.inode_map_hash, disk.geometry().inodes()),
        };
        let Some(table) = map.table(disk.medium(), hash)? else { return Ok(None) };
        let bits = Bits::new(length);
        let is_sound = map.prove(disk.medium(), &table, &mut |at, word| bits.put_words(at, core::iter::once(word)))?;
        Ok(is_sound.then_some(bits))
    }

    fn store(self, commit: &mut Commit<'_>, bits: &Bits) -> Result<u64> {
        let map = self.on(commit.disk());
        let (start, count) = (map.start_block(), map.length_bytes() / 8);
        let written = written(commit.disk().medium(), start..start + map.length_bytes().div_ceil(BLOCK_BYTES));
        let is_hole =
            |block| written.get(written.partition_point(|piece| piece.end <= block)).is_none_or(|at| at.start > block);
        let mut buffer = Vec::with_capacity(BLOCK_BYTES as usize);
        for (at, first) in (0..count).step_by(WORDS).enumerate() {
            let block = start + at as u64;
            let words = bits.words_of_page(at);
            // A hole says as much, and takes no space.
            if words.is_none() && is_hole(block) {
                continue;
            }
            buffer.clear();
            let words = words.into_iter().flatten().chain(core::iter::repeat(0));
            buffer.extend(words.take(WORDS.min((count - first) as usize)).flat_map(u64::to_le_bytes));
            commit.write(block * BLOCK_BYTES, &buffer)?;
        }
        let medium = commit.disk().medium().clone();
        let sections: Result<Vec<_>> = (0..map.sections()).map(|section| map.as_it_stands(&medium, section)).collect();
        map.write_table(commit, &sections?)
    }
}

/// Words of a block.
const WORDS: usize = BLOCK_BYTES as usize / 8;
// A page of a set is a block of its map.
const _: () = assert!(WORDS == PAGE_WORDS);

/// The summary, if the volume was closed cleanly, be it before a repair that was cut short. `Err(())` inside where the clean word is set and does not fit.
pub(crate) fn summary(disk: &Disk) -> Result<core::result::Result<Option<Summary>, ()>> {
    let clean = disk.load(CLEAN_AT)?;
    if clean == 0 || clean == REPAIRING {
        return Ok(Ok(None));
    }
    let mut line = [0; LINE_BYTES as usize];
    disk.read(SUMMARY_AT, &mut line)?;
    let summary = Summary::decode(&line);
    // Bytes of the line that the summary does not use are zero, or it would not fit either.
    let clean = if is_repairing(clean) { !clean } else { clean };
    if is_of_whole_maps(disk.key(), &line, clean) {
        // The next opening counts, and says it anew.
        return Ok(Ok(None));
    }
    let fits = summary.encode() == line && summary.clean_word(disk.key()) == clean;
    Ok(if fits { Ok(Some(summary)) } else { Err(()) })
}

/// Writes what a clean detach leaves, but for the word that says so: the maps, the list of what is shared and the summary of all. `None` on a
/// volume too full for the list.
pub(crate) fn write(
    disk: &Disk,
    blocks_used: &Bits,
    inodes_used: &Bits,
    shared: &[SharedRun],
) -> Result<Option<Summary>> {
    let geometry = *disk.geometry();
    let mut commit = disk.begin();
    // Nobody has it open, and an arena that killed users left is of something else.
    // Unnoticed [store, flush]: the epoch is another one as well. Only who looks for what is left in /dev/shm asks for this word alone.
    commit.store(ARENA_AT, 0)?;
    let block_map_hash = Map::Blocks.store(&mut commit, blocks_used)?;
    let inode_map_hash = Map::Inodes.store(&mut commit, inodes_used)?;
    let mut next = geometry.end();
    // What is free was not looked at, and can be what a memory error took.
    let can_be_read = |block: u64| {
        let at = block * BLOCK_BYTES;
        disk.load(at).is_ok() && !disk.medium().is_unreadable(MediumOffset(at))
    };
    let shares = save_list(disk, &mut commit, shared, &mut || {
        next = (geometry.first_free..next).rev().find(|&block| !blocks_used.has(block) && can_be_read(block))?;
        Some(next)
    })?;
    let Some(shares) = shares else { return Ok(None) };
    let summary = Summary {
        shares,
        blocks_free: geometry.blocks - blocks_used.count(),
        inodes_used: inodes_used.count(),
        block_map_hash,
        inode_map_hash,
        epoch: disk.epoch() as u64,
    };
    commit.write(SUMMARY_AT, &summary.encode())?;
    let _ = commit.fence();
    Ok(Some(summary))
}

/// Marks the volume as closed cleanly. One too full for the list is left as it is: the next attach counts.
pub(crate) fn save(disk: &Disk, blocks_used: &Bits, inodes_used: &Bits, shared: &[SharedRun]) -> Result<()> {
    let summary = write(disk, blocks_used, inodes_used, shared)?;
    summary.map_or(Ok(()), |summary| mark_closed(disk, &summary))
}

/// Marks the volume as closed cleanly, after [`write`].
pub(crate) fn mark_closed(disk: &Disk, summary: &Summary) -> Result<()> {
    let mut commit = disk.begin();
    commit.store(CLEAN_AT, summary.clean_word(disk.key()))?;
    let _ = commit.fence();
    Ok(())
}
