//! What stands at fixed places: superblock and replica, the epoch, the inode map. Where one is damaged the check goes on
//! with what it must have been.
//!
//! Changes nothing on the medium.

use super::report::{CheckReport, Findings, Outcome};
use crate::disk::{Disk, access_error, no_superblock, replica_that_counts, superblock_error};
use crate::format::geometry::BLOCKS_MIN;
use crate::format::member::AT_OPENING;
use crate::format::page::PageHeader;
use crate::format::slot::{SLOT_BYTES, Slot, decode_map_word};
use crate::format::state::{CLEAN_AT, EPOCH_AT, EPOCH_MAX, OPENING_AT, OPENING_NEXT_AT};
use crate::format::superblock::{FEATURES_READ_ONLY_KNOWN, MAGIC, Superblock, SuperblockError};
use crate::format::{BLOCK_BYTES, Key, LINE_BYTES, get_u64};
use crate::holes::written;
use crate::span::{self, STALE};
use gannet_media::{Medium, MediumOffset};
use gannet_vfs::{Errno, Error, Result};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Where the superblock can be put right.
pub(super) struct Superblocks {
    pub(super) superblock: Superblock,
    /// Blocks that do not hold it, and shall.
    pub(super) wrong_copies: Vec<u64>,
    /// Copies of the headers of further media that are not what they shall be.
    pub(super) wrong_headers: Vec<u64>,
    /// Features that forbid writing.
    pub(super) read_only: bool,
}

const HALF_NOTED: &str = "a crash came while a feature was noted in it; recovery copies it from the other";

/// What is said of a volume that is larger than its medium: its file was cut, or not copied whole. `None` if it is not.
pub(super) fn of_one_cut(medium: &Medium) -> Result<Option<CheckReport>> {
    let mut bytes = Box::new([0; BLOCK_BYTES as usize]);
    if medium.length() < BLOCK_BYTES {
        return Ok(None);
    }
    medium.clone().with_zeros_where_unreadable().read(MediumOffset(0), &mut bytes[..]).map_err(access_error)?;
    let Ok(said) = Superblock::decode(&bytes) else { return Ok(None) };
    let (whole, left) = (said.blocks * BLOCK_BYTES, medium.length());
    if whole <= left || said.geometry().is_none() {
        return Ok(None);
    }
    if left / BLOCK_BYTES >= BLOCKS_MIN && replica_that_counts(medium, &said)?.is_some() {
        return Ok(None);
    }
    let mut findings = Findings::default();
    let what = format!(
        "its file was cut from {whole} to {left} bytes, or not copied whole: put a whole copy in its place; what was behind the end is gone"
    );
    findings.damage("medium", left, 0, what, "");
    let mut report = CheckReport {
        outcome: Outcome::Damaged,
        findings: Vec::new(),
        findings_left_out: 0,
        closed_cleanly: false,
        recovery: None,
        inodes: 0,
        directories: 0,
        blocks_used: 0,
        blocks: said.blocks,
        is_cut: true,
    };
    report.take(&mut findings);
    Ok(Some(report))
}

/// Reads both copies. Errors where there is no volume, or one that cannot be used.
pub(super) fn superblocks(medium: &Medium, findings: &mut Findings) -> Result<Superblocks> {
    let blocks = medium.length() / BLOCK_BYTES;
    if blocks < BLOCKS_MIN {
        return Err(Error::because(Errno::INVAL, "no Gannet volume: smaller than 1 MiB"));
    }
    let mut bytes = Box::new([0; BLOCK_BYTES as usize]);
    let mut read = |block: u64| -> Result<core::result::Result<Superblock, SuperblockError>> {
        medium.read(MediumOffset(block * BLOCK_BYTES), &mut bytes[..]).map_err(access_error)?;
        Ok(Superblock::decode(&bytes))
    };
    let first = read(0)?;
    if let Ok(said) = &first
        && let Some((_, replica)) = replica_that_counts(medium, said)?
    {
        let what = format!(
            "it says {} blocks, but no replica stands there; the one at the end of the medium says {}",
            said.blocks, replica.blocks
        );
        findings.damage("superblock", 0, 0, what, "it is copied from its replica; nothing is lost");
        return finish(medium, replica, vec![0], findings);
    }
    let replica_block = match first.as_ref().ok().and_then(Superblock::geometry) {
        Some(geometry) if geometry.blocks <= blocks => geometry.replica(),
        _ => medium.first_length() / BLOCK_BYTES - 1,
    };
    let mut replica_block = replica_block;
    let mut second = read(replica_block)?;
    if first.is_err()
        && second.is_err()
        && let Some((block, found)) = find_replica(medium)?
    {
        (replica_block, second) = (block, Ok(found));
    }
    // A feature is noted in one copy after the other; a crash may come in between.
    let cut_short = |sound: &Superblock, block: u64| -> Result<bool> {
        let mut bytes = Box::new([0; BLOCK_BYTES as usize]);
        medium.read(MediumOffset(block * BLOCK_BYTES), &mut bytes[..]).map_err(access_error)?;
        let clean = medium.load_u64(MediumOffset(CLEAN_AT)).map_err(access_error)?;
        Ok(clean == 0 && sound.may_become(&bytes))
    };
    let mut wrong_copies = Vec::new();
    let superblock = match (first, second) {
        (Ok(first), second) if second.as_ref() != Ok(&first) && cut_short(&first, replica_block)? => {
            findings.note("replica of the superblock", replica_block * BLOCK_BYTES, 0, HALF_NOTED);
            wrong_copies.push(replica_block);
            first
        }
        (Err(SuperblockError::Checksum), Ok(second)) if cut_short(&second, 0)? => {
            findings.note("superblock", 0, 0, HALF_NOTED);
            wrong_copies.push(0);
            second
        }
        (Ok(first), Ok(second)) if first == second => {
            wrong_copies.extend(super::sense::unlike_each_other(medium, &first, replica_block, findings)?);
            first
        }
        (Ok(first), second) => {
            let what = match second {
                Ok(_) => "it says something else than the superblock",
                Err(_) => "it is damaged",
            };
            let remedy = "it is copied from the superblock; nothing is lost";
            findings.damage("replica of the superblock", replica_block * BLOCK_BYTES, 0, what, remedy);
            wrong_copies.push(replica_block);
            first
        }
        (Err(SuperblockError::Incompatible(features)), _) => {
            return Err(superblock_error(SuperblockError::Incompatible(features)));
        }
        (Err(_), Ok(second)) => {
            let remedy = "it is copied from its replica; nothing is lost";
            findings.damage("superblock", 0, 0, "it is damaged, its replica is not", remedy);
            wrong_copies.push(0);
            second
        }
        (Err(first), Err(_)) => return Err(no_superblock(medium, first)),
    };
    finish(medium, superblock, wrong_copies, findings)
}

/// What follows once it is known which superblock counts.
fn finish(
    medium: &Medium,
    superblock: Superblock,
    wrong_copies: Vec<u64>,
    findings: &mut Findings,
) -> Result<Superblocks> {
    if superblock.blocks > medium.length() / BLOCK_BYTES {
        return Err(Error::damaged(
            "the volume is larger than its medium: the file was cut, put a whole copy in its place",
            medium.length(),
        ));
    }
    let unknown = superblock.features_read_only & !FEATURES_READ_ONLY_KNOWN;
    if unknown != 0 {
        let what = format!("features {unknown:#x} are unknown: it can be read, and not repaired");
        findings.note("superblock", 16, 0, what);
    }
    let wrong_headers = headers(medium, &superblock, findings)?;
    Ok(Superblocks { superblock, wrong_copies, wrong_headers, read_only: unknown != 0 })
}

/// The replica of the superblock on a medium that is longer than its volume, where the superblock itself is lost: the one that says it stands
/// where it does. Looked for only where a state stands behind the place of the superblock, since the whole medium is read; and not for volumes
/// on several media.
fn find_replica(medium: &Medium) -> Result<Option<(u64, Superblock)>> {
    let word = |at: u64| medium.load_u64(MediumOffset(at)).map_err(access_error);
    let epoch = word(EPOCH_AT)?;
    if epoch == 0 || epoch > EPOCH_MAX {
        return Ok(None);
    }
    let mut bytes = Box::new([0; BLOCK_BYTES as usize]);
    let blocks = written(medium, BLOCKS_MIN - 1..medium.length() / BLOCK_BYTES);
    for block in blocks.into_iter().rev().flat_map(Iterator::rev) {
        if word(block * BLOCK_BYTES)? != MAGIC {
            continue;
        }
        medium.read(MediumOffset(block * BLOCK_BYTES), &mut bytes[..]).map_err(access_error)?;
        let found = Superblock::decode(&bytes).ok().filter(|found| found.further.is_empty());
        if let Some(found) = found.filter(|found| found.blocks == block + 1) {
            return Ok(Some((block, found)));
        }
    }
    Ok(None)
}

/// What the media behind the first say of themselves; returns the blocks where a header is not what it shall be.
fn headers(medium: &Medium, superblock: &Superblock, findings: &mut Findings) -> Result<Vec<u64>> {
    let Some(geometry) = superblock.geometry() else { return Ok(Vec::new()) };
    let word = |at: u64| medium.load_u64(MediumOffset(at)).map_err(access_error);
    let mut wrong = Vec::new();
    for (index, range) in geometry.further_media().enumerate() {
        let encoded = span::header(superblock, index + 1, &range).encode(superblock.key);
        for (block, what) in [(range.start, "header"), (range.end - 1, "replica of the header")] {
            let at = block * BLOCK_BYTES;
            if span::read_header(medium, at)? != encoded {
                let what = format!("the {what} of medium {} is damaged", index + 2);
                findings.damage("header of a medium", at, 0, what, "it is written anew; nothing is lost");
                wrong.push(block);
            } else if ![word(OPENING_AT)?, word(OPENING_NEXT_AT)?].contains(&word(at + AT_OPENING)?) {
                let what = format!("medium {} {STALE}", index + 2);
                let remedy = "it goes on with both as they are: what does not fit together is found as damage";
                findings.damage("header of a medium", at + AT_OPENING, 0, what, remedy);
            }
        }
    }
    Ok(wrong)
}

/// The epoch that the volume says it is in, or that its pages prove it is.
pub(super) fn epoch(medium: &Medium, superblock: &Superblock, findings: &mut Findings) -> Result<u64> {
    let word = medium.load_u64(MediumOffset(EPOCH_AT)).map_err(access_error)?;
    if word != 0 && word <= EPOCH_MAX {
        return Ok(word);
    }
    let epoch = epoch_of_pages(medium, superblock)?;
    let what = format!("{word} is no epoch; its log pages are of epochs up to {epoch}");
    findings.damage("epoch", EPOCH_AT, 0, what, "it is set from the log pages; nothing is lost");
    Ok(epoch)
}

fn epoch_of_pages(medium: &Medium, superblock: &Superblock) -> Result<u64> {
    let Some(geometry) = superblock.geometry() else { return Ok(1) };
    let mut epoch = 1;
    let mut line = [0; LINE_BYTES as usize];
    for block in written(medium, geometry.first_free..geometry.end()).into_iter().flatten() {
        medium.read(MediumOffset(block * BLOCK_BYTES), &mut line).map_err(access_error)?;
        if let Some(header) = PageHeader::decode(superblock.key, &line) {
            epoch = epoch.max((header.epoch as u64).min(EPOCH_MAX));
        }
    }
    Ok(epoch)
}

/// The chunks of the inode table.
#[derive(Debug, Default)]
pub(super) struct Chunks {
    /// First block of each that exists.
    pub(super) blocks: BTreeMap<u64, u64>,
    /// Words of the map that shall say something else: chunk, first block.
    pub(super) wrong_words: Vec<(u64, Option<u64>)>,
    /// Inodes may have been lost with them.
    pub(super) lost: bool,
    /// Blocks of files, in which copies of chunks stand: none is searched for there.
    pub(super) not_in: BTreeSet<u64>,
}

impl Chunks {
    /// Where an inode's slot stands.
    pub(super) fn slot_at(&self, disk: &Disk, inode: u32) -> Option<u64> {
        let geometry = disk.geometry();
        let (chunk, within) = (inode as u64 / geometry.slots_per_chunk(), inode as u64 % geometry.slots_per_chunk());
        if inode == 0 || inode as u64 >= geometry.inodes() {
            return None;
        }
        let block = *self.blocks.get(&chunk)?;
        Some(block * BLOCK_BYTES + within * SLOT_BYTES)
    }

    /// An inode's slot; free where its chunk does not exist.
    pub(super) fn slot(&self, disk: &Disk, inode: u32) -> Result<Slot> {
        let Some(at) = self.slot_at(disk, inode) else { return Ok(Slot::Free { generation: 1 }) };
        let mut bytes = [0; SLOT_BYTES as usize];
        disk.read(at, &mut bytes)?;
        Ok(Slot::decode(disk.key(), inode, &bytes))
    }
}

/// How many damaged words of the inode map are searched for: as many as stand in two blocks of it.
const SEARCHED_MAX: usize = 1024;

/// Reads the inode map; a chunk whose word is damaged is searched for by the slots in it.
pub(super) fn chunks(disk: &Disk, not_in: &BTreeSet<u64>, findings: &mut Findings) -> Result<Chunks> {
    let geometry = disk.geometry();
    let mut chunks = Chunks { not_in: not_in.clone(), ..Chunks::default() };
    let mut damaged = Vec::new();
    for chunk in disk.chunks_possible() {
        let at = geometry.map_word_at(chunk);
        let word = disk.load(at)?;
        match decode_map_word(disk.key(), chunk, word) {
            Ok(Some(block)) if geometry.is_allocatable_run(block, geometry.chunk_blocks) => {
                chunks.blocks.insert(chunk, block);
            }
            Ok(None) => {}
            _ => damaged.push((chunk, at)),
        }
    }
    let found = chunks.find(disk, &damaged[..damaged.len().min(SEARCHED_MAX)])?;
    for (chunk, at) in damaged {
        let block = found.get(&chunk).copied();
        let (what, remedy) = match block {
            Some(block) => (
                format!("the word of chunk {chunk} is damaged; its slots were found in block {block}"),
                "it is set to where the slots are; nothing is lost",
            ),
            None => (
                format!("the word of chunk {chunk} is damaged, and no slots of it were found"),
                "it is cleared: inodes that were in the chunk are lost",
            ),
        };
        chunks.lost |= block.is_none();
        findings.damage("inode map word", at, 0, what, remedy);
        chunks.blocks.extend(block.map(|block| (chunk, block)));
        chunks.wrong_words.push((chunk, block));
    }
    drop_overlapping(disk, &mut chunks, findings);
    if !chunks.blocks.contains_key(&0) {
        find_first_chunk(disk, &mut chunks, findings)?;
    }
    Ok(chunks)
}

/// The chunk with the root directory exists on every volume.
fn find_first_chunk(disk: &Disk, chunks: &mut Chunks, findings: &mut Findings) -> Result<()> {
    if chunks.wrong_words.iter().any(|&(chunk, _)| chunk == 0) {
        return Ok(());
    }
    let at = disk.geometry().map_word_at(0);
    let found = chunks.find(disk, &[(0, at)])?.get(&0).copied();
    let remedy = "it is set to where the slots are; nothing is lost";
    findings.damage("inode map word", at, 0, "the first chunk is missing", remedy);
    chunks.lost |= found.is_none();
    chunks.blocks.extend(found.map(|block| (0, block)));
    chunks.wrong_words.push((0, found));
    Ok(())
}

impl Chunks {
    /// Searches for chunks that the map does not have, and that inodes are said to be in. Returns those that were found.
    pub(super) fn find_missing(&mut self, disk: &Disk, missing: &[u64], findings: &mut Findings) -> Result<Vec<u64>> {
        let wanted: Vec<(u64, u64)> =
            missing.iter().take(SEARCHED_MAX).map(|&chunk| (chunk, disk.geometry().map_word_at(chunk))).collect();
        let length = disk.geometry().chunk_blocks;
        let mut found: Vec<(u64, u64)> = self.find(disk, &wanted)?.into_iter().collect();
        found.sort_unstable();
        found.retain(|&(_, block)| {
            let mut others = self.blocks.values();
            others.all(|&other| block + length <= other || other + length <= block)
        });
        for &(chunk, block) in &found {
            let what =
                format!("chunk {chunk} is missing, though names lead to inodes in it; it was found in block {block}");
            let remedy = "it is set to where the slots are; nothing is lost";
            findings.damage("inode map word", disk.geometry().map_word_at(chunk), 0, what, remedy);
            self.blocks.insert(chunk, block);
            self.wrong_words.retain(|&(other, _)| other != chunk);
            self.wrong_words.push((chunk, Some(block)));
        }
        Ok(found.into_iter().map(|(chunk, _)| chunk).collect())
    }
}

/// Two chunks in one place: the later one goes.
fn drop_overlapping(disk: &Disk, chunks: &mut Chunks, findings: &mut Findings) {
    let length = disk.geometry().chunk_blocks;
    let mut placed: Vec<(u64, u64)> = chunks.blocks.iter().map(|(&chunk, &block)| (block, chunk)).collect();
    placed.sort_unstable();
    let mut previous: Option<(u64, u64)> = None;
    for (block, chunk) in placed {
        if let Some((other_block, other)) = previous
            && other_block + length > block
        {
            let later = chunk.max(other);
            let what = format!("chunks {other} and {chunk} overlap in block {block}");
            let remedy = "the later chunk is dropped: inodes that were in it are lost";
            findings.damage("inode map word", disk.geometry().map_word_at(later), 0, what, remedy);
            chunks.lost = true;
            chunks.blocks.remove(&later);
            chunks.wrong_words.retain(|&(chunk, _)| chunk != later);
            chunks.wrong_words.push((later, None));
            if later == chunk {
                continue;
            }
        }
        previous = Some((block, chunk));
    }
}

impl Chunks {
    /// Searches the volume for slots of these chunks.
    fn find(&self, disk: &Disk, wanted: &[(u64, u64)]) -> Result<HashMap<u64, u64>> {
        let geometry = disk.geometry();
        let mut votes: HashMap<(u64, u64), u64> = HashMap::new();
        if wanted.is_empty() {
            return Ok(HashMap::new());
        }
        let mut block_bytes = [0; BLOCK_BYTES as usize];
        let written = written(disk.medium(), geometry.first_free..geometry.end());
        for block in written.into_iter().flatten().filter(|block| !self.not_in.contains(block)) {
            disk.read_block(block, &mut block_bytes)?;
            for (index, slot) in (0..).zip(block_bytes.chunks_exact(SLOT_BYTES as usize)) {
                if get_u64(slot, 0) >> 32 & 0xFF != 1 {
                    continue;
                }
                for &(chunk, _) in wanted {
                    for within in 0..geometry.chunk_blocks.min(block + 1 - geometry.first_free) {
                        let start = block - within;
                        let number = chunk * geometry.slots_per_chunk() + within * 32 + index;
                        if is_slot_of(disk.key(), number, slot)
                            && geometry.is_allocatable_run(start, geometry.chunk_blocks)
                        {
                            *votes.entry((chunk, start)).or_default() += 1;
                        }
                    }
                }
            }
        }
        let mut best: HashMap<u64, (u64, u64)> = HashMap::new();
        for ((chunk, start), count) in votes {
            let entry = best.entry(chunk).or_insert((0, start));
            if (count, core::cmp::Reverse(start)) > (entry.0, core::cmp::Reverse(entry.1)) {
                *entry = (count, start);
            }
        }
        Ok(best.into_iter().map(|(chunk, (_, start))| (chunk, start)).collect())
    }
}

fn is_slot_of(key: Key, number: u64, slot: &[u8]) -> bool {
    let mut bytes = [0; SLOT_BYTES as usize];
    bytes.copy_from_slice(slot);
    u32::try_from(number).is_ok_and(|number| matches!(Slot::decode(key, number, &bytes), Slot::Used { .. }))
}
