//! The saved maps on the medium, section by section: what is in use as a clean detach left it.
//!
//! Knows nothing of who has the volume open.

use super::{Commit, Disk, access_error};
use crate::format::sections::{BLOCK_SECTIONS_AT, INODE_SECTIONS_AT, SECTION_BYTES, Section, section_numbers};
use crate::format::{BLOCK_BYTES, Key, Tag};
use crate::holes::written;
use gannet_media::{DataHash, Medium, MediumOffset};
use gannet_vfs::Result;
use std::ops::Range;

/// Sections from so many blocks on are looked at for holes first: that costs system calls.
const LARGE_BLOCKS: u64 = 64;

/// Where one of the two saved maps stands, and what it is proved by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SavedMap {
    key: Key,
    start_block: u64,
    table_at: u64,
    /// How many numbers it is about.
    numbers: u64,
}

/// A part of a section that stands on the medium, or in a hole of a sparse file.
struct Piece {
    bytes: Range<u64>,
    is_hole: bool,
}

impl SavedMap {
    /// The map of blocks.
    pub(crate) fn of_blocks(disk: &Disk) -> Self {
        let geometry = disk.geometry();
        let (start_block, numbers) = (geometry.saved_blocks_start, geometry.blocks);
        Self { key: disk.key(), start_block, table_at: BLOCK_SECTIONS_AT, numbers }
    }

    /// The map of inode numbers.
    pub(crate) fn of_inodes(disk: &Disk) -> Self {
        let geometry = disk.geometry();
        let (start_block, numbers) = (geometry.saved_inodes_start, geometry.inodes());
        Self { key: disk.key(), start_block, table_at: INODE_SECTIONS_AT, numbers }
    }

    /// Its first block.
    pub(crate) fn start_block(&self) -> u64 {
        self.start_block
    }

    /// Bytes that it has.
    pub(crate) fn length_bytes(&self) -> u64 {
        self.numbers.div_ceil(64) * 8
    }

    /// How many sections it has.
    pub(crate) fn sections(&self) -> u64 {
        self.numbers.div_ceil(section_numbers(self.numbers))
    }

    /// Where a section stands, in bytes of the medium.
    pub(crate) fn place(&self, section: u64) -> Range<u64> {
        let each = section_numbers(self.numbers) / 8;
        let start = (section * each).min(self.length_bytes());
        let map = self.start_block * BLOCK_BYTES;
        map + start..map + (start + each).min(self.length_bytes())
    }

    /// How many numbers are in a section.
    fn numbers_in(&self, section: u64) -> u64 {
        let each = section_numbers(self.numbers);
        self.numbers.saturating_sub(section * each).min(each)
    }

    /// The pieces of a section, one behind the other.
    fn pieces(&self, medium: &Medium, section: u64) -> Vec<Piece> {
        let Range { start, end } = self.place(section);
        let blocks = start / BLOCK_BYTES..end.div_ceil(BLOCK_BYTES);
        if blocks.end - blocks.start < LARGE_BLOCKS {
            return vec![Piece { bytes: start..end, is_hole: false }];
        }
        let mut pieces = Vec::new();
        let mut at = start;
        for blocks in written(medium, blocks) {
            let from = (blocks.start * BLOCK_BYTES).clamp(at, end);
            let to = (blocks.end * BLOCK_BYTES).clamp(from, end);
            pieces.push(Piece { bytes: at..from, is_hole: true });
            pieces.push(Piece { bytes: from..to, is_hole: false });
            at = to;
        }
        pieces.push(Piece { bytes: at..end, is_hole: true });
        pieces.retain(|piece| !piece.bytes.is_empty());
        pieces
    }

    fn seed(&self, section: u64) -> u64 {
        self.key.seed(Tag::Summary, self.start_block, 2 + section)
    }

    /// Calls `take` with each word of a section and its index in it, a bit set for what is in use, and returns the hash of what was read.
    ///
    /// # Errors
    /// `EIO` where the medium cannot be read.
    pub(crate) fn read(&self, medium: &Medium, section: u64, take: &mut dyn FnMut(usize, u64)) -> Result<u64> {
        let mut hash = DataHash::new(self.seed(section));
        let mut buffer = [0; BLOCK_BYTES as usize];
        let mut index = 0;
        for Piece { bytes, is_hole } in self.pieces(medium, section) {
            let mut at = bytes.start;
            while at < bytes.end {
                let part = &mut buffer[..(bytes.end - at).min(BLOCK_BYTES) as usize];
                if is_hole {
                    part.fill(0);
                } else {
                    medium.read(MediumOffset(at), part).map_err(access_error)?;
                }
                hash.update(part);
                for word in part.as_chunks::<8>().0 {
                    take(index, u64::from_le_bytes(*word));
                    index += 1;
                }
                at += part.len() as u64;
            }
        }
        Ok(hash.value())
    }

    /// What the table should say of a section as it stands.
    ///
    /// # Errors
    /// As [`SavedMap::read`].
    pub(crate) fn as_it_stands(&self, medium: &Medium, section: u64) -> Result<Section> {
        self.look(medium, section, &mut |_, _| {})
    }

    /// The same, calling `take` as [`SavedMap::read`] does.
    fn look(&self, medium: &Medium, section: u64, take: &mut dyn FnMut(usize, u64)) -> Result<Section> {
        let mut used = 0;
        let hash = self.read(medium, section, &mut |at, word| {
            used += u64::from(word.count_ones());
            take(at, word);
        })?;
        Ok(Section { free: self.numbers_in(section).saturating_sub(used), hash })
    }

    /// Writes a section, without a fence. `used` are its words, bits behind the last number do not matter.
    ///
    /// # Errors
    /// As [`Commit::write`].
    pub(crate) fn write_section(
        &self,
        commit: &mut Commit<'_>,
        section: u64,
        used: impl Iterator<Item = u64>,
    ) -> Result<()> {
        let mut at = self.place(section).start;
        let mut left = self.numbers_in(section);
        let mut buffer = Vec::with_capacity(BLOCK_BYTES as usize);
        for word in used {
            let valid = if left >= 64 { u64::MAX } else { (1 << left) - 1 };
            left = left.saturating_sub(64);
            buffer.extend_from_slice(&(word & valid).to_le_bytes());
            if buffer.len() == BLOCK_BYTES as usize {
                commit.write(at, &buffer)?; // Unmet: no workload has a volume of 128 MiB; as the last block, below.
                at += BLOCK_BYTES;
                buffer.clear();
            }
        }
        if buffer.is_empty() { Ok(()) } else { commit.write(at, &buffer) }
    }

    /// The table, if it is what `hash` says.
    ///
    /// # Errors
    /// As [`SavedMap::read`].
    pub(crate) fn table(&self, medium: &Medium, hash: u64) -> Result<Option<Vec<Section>>> {
        let mut bytes = vec![0; self.sections() as usize * SECTION_BYTES];
        medium.read(MediumOffset(self.table_at), &mut bytes).map_err(access_error)?;
        Ok((self.table_hash(&bytes) == hash).then(|| Section::decode_all(&bytes)))
    }

    /// Writes the table, without a fence; returns its hash.
    ///
    /// # Errors
    /// As [`Commit::write`].
    pub(crate) fn write_table(&self, commit: &mut Commit<'_>, sections: &[Section]) -> Result<u64> {
        let bytes = Section::encode_all(sections);
        commit.write(self.table_at, &bytes)?;
        Ok(self.table_hash(&bytes))
    }

    fn table_hash(&self, bytes: &[u8]) -> u64 {
        self.key.checksum(Tag::Summary, self.start_block, 1, bytes)
    }

    /// Whether every section is what its table says. Calls `take` with the words of all, up to the first that is not, and their places.
    ///
    /// # Errors
    /// As [`SavedMap::read`].
    pub(crate) fn prove(&self, medium: &Medium, table: &[Section], take: &mut dyn FnMut(usize, u64)) -> Result<bool> {
        let mut first = 0;
        for (index, section) in (0..).zip(table) {
            let mut words = 0;
            let stands = self.look(medium, index, &mut |at, word| {
                take(first + at, word);
                words = at + 1;
            })?;
            if stands != *section {
                return Ok(false);
            }
            first += words;
        }
        Ok(true)
    }
}
