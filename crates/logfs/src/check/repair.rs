//! Writes the model down: what the check understood becomes what the volume says.
//!
//! Nothing is decided here. New logs are made first; where there is no room for them, or they cannot be made, nothing is written. They go
//! to free blocks, to which nothing leads, and the state says that the volume is being repaired. Then slots are made again, with the logs that they
//! had; the new logs become valid word by word; what is freed is freed last. A repair that is cut short leaves a volume that can be
//! checked and repaired again.

use super::fixed::Superblocks;
use super::model::Model;
use super::writer::{AddedName, FreeBlocks, NewPages, write_log};
use crate::bits::Bits;
use crate::disk::Disk;
use crate::format::member::AT_OPENING;
use crate::format::page::Link;
use crate::format::slot::{AT_HEAD, AT_IDENTITY, AT_LINKS, AT_PARENT, Birth, SLOT_BYTES, encode_map_word};
use crate::format::state::{CLEAN_AT, OPENING_AT, REPAIRING};
use crate::format::{BLOCK_BYTES, LINE_BYTES};
use crate::recover::{ROOT, free_slot, kill};
use crate::replay::{RANKS, name_key};
use crate::span;
use gannet_vfs::{Errno, Error, FileType, InodeFlags, Owner, Result, Time};
use std::collections::{BTreeMap, HashMap};

const LOST_AND_FOUND: &[u8] = b"lost+found";

/// Repair's own state while it writes.
struct Repair<'m, 'd> {
    model: &'m mut Model<'d>,
    /// Names to be added, by directory.
    added: BTreeMap<u32, Vec<AddedName>>,
    /// Words of the inode map to be stored.
    map_words: Vec<(u64, Option<u64>)>,
    /// Chunks to be made.
    new_chunks: Vec<u64>,
}

/// Repairs the volume. Afterwards it is like one that was recovered: not marked as closed cleanly. Meanwhile nobody can open it: recovery
/// would take damage for what a crash leaves, where a repair that is done again still knows it.
pub(super) fn repair(model: &mut Model<'_>, superblocks: &Superblocks) -> Result<()> {
    let disk = model.ground.disk;
    let geometry = *disk.geometry();
    let used = std::mem::replace(&mut model.used, Bits::new(0));
    leave_out_unreadable(model, &used)?;
    let mut free = FreeBlocks::new(&used, geometry.first_free, geometry.end());
    let map_words = model.ground.chunks.wrong_words.clone();
    let mut repair = Repair { model, added: BTreeMap::new(), map_words, new_chunks: Vec::new() };
    let missing: Vec<u64> = repair.model.missing_chunks.iter().copied().chain([0]).collect();
    for chunk in missing {
        if !repair.model.ground.chunks.blocks.contains_key(&chunk) {
            repair.make_chunk(chunk, &mut free)?;
        }
    }
    repair.connect_lost(&mut free)?;
    let (heads, pages) = repair.prepare(disk, &mut free)?;
    repair.write_fixed(disk, superblocks)?;
    repair.write_slots(disk)?;
    write_headers(disk, &pages)?;
    repair.write_heads(disk, &heads)?;
    repair.free_inodes(disk)?;
    disk.raise_epoch()?;
    let mut commit = disk.begin();
    // Unnoticed [flush]: lost, the repair is done once more, and finds nothing else.
    commit.store(CLEAN_AT, 0)?;
    // Unnoticed [fence]: as for the write-back.
    let _ = commit.fence();
    Ok(())
}

/// Nothing new goes to where the medium cannot be read, for it cannot be stored to there either. Where something stands there that cannot
/// stand elsewhere, nothing is changed.
fn leave_out_unreadable(model: &Model<'_>, used: &Bits) -> Result<()> {
    let disk = model.ground.disk;
    let geometry = disk.geometry();
    let is_slots = |block: u64| {
        let mut chunks = model.ground.chunks.blocks.values();
        chunks.any(|&first| (first..first + geometry.chunk_blocks).contains(&block))
    };
    for at in disk.medium().unreadable() {
        let block = at.0 / BLOCK_BYTES;
        if !geometry.is_allocatable(block) || is_slots(block) {
            let what = "nothing was changed: repair would have to write where the medium cannot be read; copy what can be read of the file \
                        (dd bs=4096 conv=noerror,sync), then repair the copy";
            return Err(Error::because(Errno::IO, what).at(at.0));
        }
        let _ = used.set(block);
    }
    Ok(())
}

/// The new logs' pages become pages, under the fence of what leads to them: where a crash leaves only that, the entries behind a missing header prove
/// themselves to the next repair.
fn write_headers(disk: &Disk, pages: &NewPages) -> Result<()> {
    let mut commit = disk.begin();
    for (block, page) in pages {
        commit.write(block * BLOCK_BYTES, &page[..LINE_BYTES as usize])?;
    }
    commit.without_fence();
    Ok(())
}

impl Repair<'_, '_> {
    /// Finds room for a chunk of the inode table.
    fn make_chunk(&mut self, chunk: u64, free: &mut FreeBlocks<'_>) -> Result<()> {
        let block = free.take(self.model.ground.disk.geometry().chunk_blocks)?;
        self.model.ground.chunks.blocks.insert(chunk, block);
        self.map_words.retain(|&(other, _)| other != chunk);
        self.map_words.push((chunk, Some(block)));
        self.new_chunks.push(block);
        Ok(())
    }

    /// Gives names in `lost+found` to what lost its own.
    fn connect_lost(&mut self, free: &mut FreeBlocks<'_>) -> Result<()> {
        if self.model.reconnect.is_empty() {
            return Ok(());
        }
        let directory = match self.find_name(ROOT, LOST_AND_FOUND)? {
            Some((inode, FileType::Directory)) => inode,
            Some(_) => {
                return Err(Error::because(Errno::EXIST, "/lost+found is no directory: rename it, then repair again"));
            }
            None => self.make_lost_and_found(free)?,
        };
        for inode in self.model.reconnect.clone() {
            let mut name = format!("#{inode}").into_bytes();
            while self.find_name(directory, &name)?.is_some() {
                name.push(b'~');
            }
            let Some(found) = self.model.inodes.get(&inode) else { continue };
            let (generation, file_type) = (found.generation, found.birth.file_type);
            self.add_name(directory, name, inode, generation, file_type)?;
            let links = if file_type == FileType::Directory { 2 } else { 1 };
            self.model.held.insert(inode, (links, directory));
        }
        Ok(())
    }

    fn make_lost_and_found(&mut self, free: &mut FreeBlocks<'_>) -> Result<u32> {
        let taken = |model: &Model<'_>, inode: &u32| model.inodes.contains_key(inode);
        let found = self.model.free_inodes.iter().find(|(inode, _)| !taken(self.model, inode)).copied();
        let (inode, generation) = match found {
            Some(found) => found,
            None => {
                let mut chunks = 0..self.model.ground.disk.geometry().chunks;
                let missing = chunks.find(|chunk| !self.model.ground.chunks.blocks.contains_key(chunk));
                let chunk = missing.ok_or(Error::because(Errno::NOSPC, "no free inode for /lost+found"))?;
                self.make_chunk(chunk, free)?;
                ((chunk * self.model.ground.disk.geometry().slots_per_chunk()) as u32, 1)
            }
        };
        let birth = Birth {
            file_type: FileType::Directory,
            mode: 0o700,
            flags: InodeFlags::empty(),
            owner: Owner::default(),
            device: 0,
            created: Time::now().0,
            head: 0,
        };
        let slot = super::examine::SlotWords { inode, generation, birth, links: 2, parent: ROOT as u64, at: 0 };
        let mut examined = super::examine::examine(&self.model.ground, &slot, None)?;
        (examined.rebuild, examined.rewrite) = (true, true);
        self.model.inodes.insert(inode, examined);
        self.model.held.insert(inode, (2, ROOT));
        self.add_name(ROOT, LOST_AND_FOUND.to_vec(), inode, generation, FileType::Directory)?;
        Ok(inode)
    }

    /// What a name of a directory leads to, those that are to be added included.
    fn find_name(&self, directory: u32, name: &[u8]) -> Result<Option<(u32, FileType)>> {
        if let Some(bound) = self.model.lookup(directory, name)? {
            return Ok(Some((bound.inode, bound.file_type)));
        }
        let added = self.added.get(&directory).into_iter().flatten().find(|added| added.name == name);
        Ok(added.map(|added| (added.inode, added.file_type)))
    }

    fn add_name(
        &mut self,
        directory: u32,
        name: Vec<u8>,
        inode: u32,
        generation: u32,
        file_type: FileType,
    ) -> Result<()> {
        let key = self.model.ground.disk.key();
        let first = name_key(key, &name);
        let Some(examined) = self.model.inodes.get_mut(&directory) else {
            return Err(Error::because(Errno::NOENT, "a directory that repair needs is missing"));
        };
        examined.rewrite = true;
        let added = self.added.entry(directory).or_default();
        let is_taken = |rank: u64| {
            examined.names.contains_key(&(first + rank))
                || added.iter().any(|other| other.rank as u64 == rank && name_key(key, &other.name) == first)
        };
        let rank = (0..RANKS).find(|&rank| !is_taken(rank)).ok_or(Error::new(Errno::NOSPC))? as u16;
        added.push(AddedName { name, rank, inode, generation, file_type });
        Ok(())
    }

    /// Writes what nothing leads to yet, and that the volume is being repaired. Returns the new logs' heads, and their pages. These have no headers
    /// yet: a repair that is done again must not find them among the pages that no link leads to, before the slots stand of what they name.
    /// What gives up before has changed nothing: the volume can be opened, or not, as before, to make room on it. What fails from here on
    /// leaves it as being repaired.
    fn prepare(&self, disk: &Disk, free: &mut FreeBlocks<'_>) -> Result<(HashMap<u32, u64>, NewPages)> {
        let (mut heads, mut pages) = (HashMap::new(), NewPages::new());
        for examined in self.model.inodes.values().filter(|examined| examined.rewrite) {
            let added = self.added.get(&examined.inode).map_or(&[][..], Vec::as_slice);
            let head = write_log(&self.model.ground, &mut pages, free, examined, added)?;
            heads.insert(examined.inode, head);
        }
        let mut commit = disk.begin();
        for (block, page) in &pages {
            // Unnoticed [store, flush]: what stands here is hardly the header of a page of this very log.
            commit.zero(block * BLOCK_BYTES, LINE_BYTES)?;
            commit.write(block * BLOCK_BYTES + LINE_BYTES, &page[LINE_BYTES as usize..])?;
        }
        let length_bytes = disk.geometry().chunk_blocks * BLOCK_BYTES;
        for &block in &self.new_chunks {
            // Unnoticed [store]: what the block held is no slot of these inodes, and the look behind the repair has such slots freed.
            commit.zero(block * BLOCK_BYTES, length_bytes)?;
        }
        let clean = self.model.ground.summary.map(|summary| summary.clean_word(disk.key()));
        commit.store(CLEAN_AT, clean.map_or(REPAIRING, |clean| !clean))?;
        let _ = commit.fence();
        Ok((heads, pages))
    }

    /// What does not depend on inodes.
    fn write_fixed(&self, disk: &Disk, superblocks: &Superblocks) -> Result<()> {
        let encoded = superblocks.superblock.encode();
        for &block in &superblocks.wrong_copies {
            let mut commit = disk.begin();
            commit.write(block * BLOCK_BYTES, &encoded[..])?;
            // Unnoticed [fence]: the other copy stands. With one alone the volume is as damaged as it was.
            let _ = commit.fence();
        }
        for (index, range) in disk.geometry().further_media().enumerate() {
            let encoded = span::header(&superblocks.superblock, index + 1, &range).encode(disk.key());
            for block in [range.start, range.end - 1] {
                if superblocks.wrong_headers.contains(&block) {
                    // Where it ends here, the medium does not seem to be of another time.
                    let mut commit = disk.begin();
                    commit.store(block * BLOCK_BYTES + AT_OPENING, disk.load(OPENING_AT)?)?;
                    let _ = commit.fence();
                    let mut commit = disk.begin();
                    commit.write(block * BLOCK_BYTES, &encoded)?;
                    // The opening that begins behind it has a fence before it counts.
                    commit.without_fence();
                }
            }
        }
        // The epoch need not be put right before it is raised: a repair that is done again finds it as this one did.
        span::begin_opening(disk, Time::now().0 as u64)
    }

    /// Slots before the logs that name them: the old logs may say what they are made of, the new ones do not. So those that are made
    /// again lead to the logs that they had.
    fn write_slots(&self, disk: &Disk) -> Result<()> {
        let mut commit = disk.begin();
        for &(chunk, block) in &self.map_words {
            let word = block.map_or(0, |block| encode_map_word(disk.key(), chunk, block));
            commit.store(disk.geometry().map_word_at(chunk), word)?;
        }
        for examined in self.model.inodes.values().filter(|examined| examined.rebuild) {
            let (links, parent) = self.model.words_of(examined.inode).unwrap_or((1, ROOT));
            let head = examined.log.head.map_or(examined.birth.head, Link::encode);
            let birth = Birth { head, ..examined.birth };
            let bytes: [u8; SLOT_BYTES as usize] =
                birth.encode(disk.key(), examined.inode, examined.generation, links, parent);
            commit.write(self.slot_of(disk, examined.inode)?, &bytes)?;
        }
        let _ = commit.fence();
        Ok(())
    }

    fn slot_of(&self, disk: &Disk, inode: u32) -> Result<u64> {
        let missing = Error::because(Errno::UCLEAN, "an inode without a slot");
        self.model.ground.chunks.slot_at(disk, inode).ok_or(missing)
    }

    /// The words that make the new logs valid, and what else changes in slots that stand.
    fn write_heads(&self, disk: &Disk, heads: &HashMap<u32, u64>) -> Result<()> {
        let mut commit = disk.begin();
        for examined in self.model.inodes.values() {
            let at = self.slot_of(disk, examined.inode)?;
            let (links, parent) = self.model.words_of(examined.inode).unwrap_or((1, ROOT));
            match (heads.get(&examined.inode), examined.kill, examined.log.dangling) {
                (Some(&head), _, _) => commit.store(at + AT_HEAD, head)?,
                _ if examined.rebuild => {}
                (None, Some(place), _) => kill(&mut commit, place)?,
                (None, None, Some(dangling_at)) => commit.store(dangling_at, 0)?,
                (None, None, None) => {}
            }
            if examined.rebuild {
                continue;
            }
            if examined.links_cached != links {
                commit.store(at + AT_LINKS, links)?;
            }
            if examined.is_directory() && examined.parent_cached != parent as u64 {
                commit.store(at + AT_PARENT, parent as u64)?;
            }
        }
        // Unnoticed [fence]: nobody opens the volume before it is repaired, and the next repair finds what this one began with.
        let _ = commit.fence();
        Ok(())
    }

    fn free_inodes(&self, disk: &Disk) -> Result<()> {
        let mut commit = disk.begin();
        for &inode in self.model.release.iter().chain(&self.model.damaged_slots) {
            let Some(at) = self.model.ground.chunks.slot_at(disk, inode) else { continue };
            if self.model.inodes.contains_key(&inode) {
                continue;
            }
            let generation = disk.load(at + AT_IDENTITY)? as u32;
            free_slot(&mut commit, at, generation)?;
        }
        // Unnoticed [fence]: that of the epoch, which follows, covers it.
        let _ = commit.fence();
        Ok(())
    }
}
