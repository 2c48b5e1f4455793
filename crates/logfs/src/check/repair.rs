//! Writes the model down: what the check understood becomes what the volume says.
//!
//! Nothing is decided here. New logs go to free blocks and become valid word by word, after a fence; what is freed is
//! freed last. A repair that is cut short leaves a volume that can be checked and repaired again.

use super::fixed::Superblocks;
use super::model::Model;
use super::writer::{AddedName, FreeBlocks, write_log};
use crate::disk::Disk;
use crate::format::BLOCK_BYTES;
use crate::format::member::AT_OPENING;
use crate::format::slot::{AT_HEAD, AT_IDENTITY, AT_LINKS, AT_PARENT, Birth, Identity, SLOT_BYTES, encode_map_word};
use crate::format::state::{CLEAN_AT, EPOCH_AT, OPENING_AT, REPAIRING};
use crate::recover::{ROOT, kill};
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
    let used = std::mem::replace(&mut model.used, crate::bits::Bits::new(0));
    let mut free = FreeBlocks::new(&used, geometry.first_free, geometry.end());
    let map_words = model.ground.chunks.wrong_words.clone();
    let mut repair = Repair { model, added: BTreeMap::new(), map_words, new_chunks: Vec::new() };
    if repair.model.ground.chunks.blocks[0].is_none() {
        repair.make_chunk(0, &mut free)?;
    }
    repair.connect_lost(&mut free)?;
    repair.begin(disk, superblocks)?;
    let written = repair.write(disk, &mut free);
    // Given up, it has written logs that nothing leads to, if any: the volume can be opened as one that was not closed cleanly.
    let mut commit = disk.begin();
    // Unnoticed [flush]: lost, the repair is done once more, and finds nothing else.
    commit.store(CLEAN_AT, 0)?;
    // Unnoticed [fence]: as for the write-back.
    let _ = commit.fence();
    written
}

impl Repair<'_, '_> {
    /// Finds room for a chunk of the inode table.
    fn make_chunk(&mut self, chunk: u64, free: &mut FreeBlocks<'_>) -> Result<()> {
        let block = free.take(self.model.ground.disk.geometry().chunk_blocks)?;
        self.model.ground.chunks.blocks[chunk as usize] = Some(block);
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
                let missing = self.model.ground.chunks.blocks.iter().position(Option::is_none);
                let chunk = missing.ok_or(Error::because(Errno::NOSPC, "no free inode for /lost+found"))? as u64;
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
        let Some(examined) = self.model.inodes.get(&directory) else { return Ok(None) };
        let first = name_key(self.model.ground.disk.key(), name);
        for bound in examined.names.range(first..first.saturating_add(RANKS)).map(|(_, bound)| bound) {
            if bound.name(&self.model.ground, directory, examined.generation)?.as_deref() == Some(name) {
                return Ok(Some((bound.inode, bound.file_type)));
            }
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
                || added.iter().any(|other| {
                    other.rank as u64 == rank && other.name.len() == name.len() && name_key(key, &other.name) == first
                })
        };
        let rank = (0..RANKS).find(|&rank| !is_taken(rank)).ok_or(Error::new(Errno::NOSPC))? as u16;
        added.push(AddedName { name, rank, inode, generation, file_type });
        Ok(())
    }

    /// What does not depend on inodes.
    fn begin(&self, disk: &Disk, superblocks: &Superblocks) -> Result<()> {
        let mut commit = disk.begin();
        let clean = self.model.ground.summary.map(|summary| summary.clean_word(disk.key()));
        commit.store(CLEAN_AT, clean.map_or(REPAIRING, |clean| !clean))?;
        // Unnoticed [fence]: without it the volume is as it was until the next one, but for copies of the superblock, zeros where nothing
        // was, and an epoch that had been damaged.
        let _ = commit.fence();
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
                    let _ = commit.fence();
                }
            }
        }
        span::begin_opening(disk, Time::now().0 as u64)?;
        if disk.load(EPOCH_AT)? != disk.epoch() as u64 {
            let mut commit = disk.begin();
            commit.store(EPOCH_AT, disk.epoch() as u64)?;
            let _ = commit.fence();
        }
        Ok(())
    }

    fn write(&mut self, disk: &Disk, free: &mut FreeBlocks<'_>) -> Result<()> {
        self.write_chunks(disk)?;
        self.write_inodes(disk, free)?;
        self.free_inodes(disk)?;
        disk.raise_epoch()
    }

    fn write_chunks(&self, disk: &Disk) -> Result<()> {
        let length_bytes = disk.geometry().chunk_blocks * BLOCK_BYTES;
        let mut commit = disk.begin();
        for &block in &self.new_chunks {
            commit.zero(block * BLOCK_BYTES, length_bytes)?;
        }
        // Unnoticed [fence]: nobody opens the volume before it is repaired, and the next repair finds what this one began with.
        let _ = commit.fence();
        let mut commit = disk.begin();
        for &(chunk, block) in &self.map_words {
            let word = block.map_or(0, |block| encode_map_word(disk.key(), chunk, block));
            commit.store(disk.geometry().map_word_at(chunk), word)?;
        }
        // Unnoticed [fence]: nobody opens the volume before it is repaired, and the next repair finds what this one began with.
        let _ = commit.fence();
        Ok(())
    }

    /// New logs, fence, then the words that make them valid.
    fn write_inodes(&mut self, disk: &Disk, free: &mut FreeBlocks<'_>) -> Result<()> {
        let mut heads: HashMap<u32, u64> = HashMap::new();
        let mut commit = disk.begin();
        for examined in self.model.inodes.values().filter(|examined| examined.rewrite) {
            let added = self.added.get(&examined.inode).map_or(&[][..], Vec::as_slice);
            let head = write_log(&self.model.ground, &mut commit, free, examined, added)?;
            heads.insert(examined.inode, head);
        }
        // Unnoticed [fence]: it matters where the volume had not been closed: a head that leads to the first part of a new log alone hides
        // the old one. No image that is tried has just that.
        let _ = commit.fence();
        // Slots before the logs that name them: the old logs may say what they are made of, the new ones do not.
        let slot_of = |inode: u32| {
            let missing = Error::because(Errno::UCLEAN, "an inode without a slot");
            self.model.ground.chunks.slot_at(disk, inode).ok_or(missing)
        };
        let mut commit = disk.begin();
        for examined in self.model.inodes.values().filter(|examined| examined.rebuild) {
            let (links, parent) = self.model.words_of(examined.inode).unwrap_or((1, ROOT));
            let head = heads.get(&examined.inode).copied().unwrap_or(examined.birth.head);
            let birth = Birth { head, ..examined.birth };
            let bytes: [u8; SLOT_BYTES as usize] =
                birth.encode(disk.key(), examined.inode, examined.generation, links, parent);
            commit.write(slot_of(examined.inode)?, &bytes)?;
        }
        let _ = commit.fence();
        let mut commit = disk.begin();
        for examined in self.model.inodes.values().filter(|examined| !examined.rebuild) {
            let at = slot_of(examined.inode)?;
            let (links, parent) = self.model.words_of(examined.inode).unwrap_or((1, ROOT));
            match (heads.get(&examined.inode), examined.kill, examined.log.dangling) {
                (Some(&head), _, _) => commit.store(at + AT_HEAD, head)?,
                (None, Some(place), _) => kill(&mut commit, place)?,
                (None, None, Some(dangling_at)) => commit.store(dangling_at, 0)?,
                (None, None, None) => {}
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
            commit.store(at + AT_IDENTITY, Identity { generation, file_type: None }.freed().encode())?;
            commit.store(at + AT_HEAD, 0)?;
        }
        // Unnoticed [fence]: that of the epoch, which follows, covers it.
        let _ = commit.fence();
        Ok(())
    }
}
