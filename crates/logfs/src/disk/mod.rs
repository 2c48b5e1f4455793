//! The volume as structures on a medium, without the arena: slots, the inode map, log pages. What recovery, fsck and
//! dump need, and what the engine stores through.
//!
//! The only room that calls `media` for metadata. Stores go through a [`Commit`], which [`Commit::fence`] turns into
//! [`Durable`]; what must happen only after the fence (publishing, releasing space) takes a `&Durable`, so that the
//! compiler refuses the wrong order (the idea is SquirrelFS's, OSDI'24).

mod commit;
mod sections;
mod superblocks;

pub(crate) use commit::{Commit, Durable};
pub(crate) use sections::SavedMap;
pub(crate) use superblocks::{MEDIA_IMPOSSIBLE, no_superblock, read_superblock, replica_that_counts, superblock_error};

use crate::format::geometry::{Geometry, SLOTS_PER_BLOCK};
use crate::format::page::{LINES, LinePlace, Link, PageHeader};
use crate::format::slot::{self, SLOT_BYTES, Slot};
use crate::format::state::{EPOCH_AT, EPOCH_MAX};
use crate::format::superblock::Superblock;
use crate::format::{BLOCK_BYTES, Key, LINE_BYTES};
use crate::holes::written;
use gannet_media::{AccessError, Medium, MediumOffset};
use gannet_vfs::{Errno, Error, Result};
use std::sync::atomic::{AtomicU64, Ordering};

/// Chunks of the inode table whose place a process keeps in mind.
const CHUNKS_KNOWN: usize = 1024;

/// None of them. The first is stored to, since the first look would be at a page of zeros and the first note cost a second fault.
fn no_chunks() -> Box<[AtomicU64; CHUNKS_KNOWN]> {
    let chunks = Box::new([const { AtomicU64::new(0) }; CHUNKS_KNOWN]);
    std::hint::black_box(&chunks[0]).store(0, Ordering::Relaxed);
    chunks
}

/// A block of bytes.
pub(crate) type Block = [u8; BLOCK_BYTES as usize];

/// The volume on its medium.
pub(crate) struct Disk {
    medium: Medium,
    superblock: Superblock,
    geometry: Geometry,
    epoch: AtomicU64,
    /// Incompatible features that the superblock is known to have.
    features: AtomicU64,
    /// Where chunks of the inode table begin that this process has looked up: `chunk + 1:32 · first block:32`, at the chunk's
    /// number modulo the length. Chunks never move.
    chunks: Box<[AtomicU64; CHUNKS_KNOWN]>,
}

/// A chunk of the inode table that exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Chunk {
    /// Its number.
    pub(crate) number: u32,
    /// Its first block.
    pub(crate) block: u32,
}

/// An access that failed, as an error of the file system.
#[cold]
#[inline(never)]
pub(crate) fn access_error(error: AccessError) -> Error {
    match error {
        AccessError::OutOfRange { at, .. } | AccessError::Misaligned { at } => {
            Error::damaged("a pointer leads outside the volume", at.0)
        }
        AccessError::ReadOnly => Error::because(Errno::ROFS, "the volume is open for reading only"),
        AccessError::UserFault { .. } => Error::new(Errno::FAULT),
        AccessError::MediumFault { at, .. } => Error::because(
            Errno::IO,
            "the medium cannot be read here, or not written to (if it is a file on a disk, the file system below may be full)",
        )
        .at(at.0),
    }
}

impl Disk {
    /// The volume on a medium, which must be whole: see `span` for the media of one that spans several.
    pub(crate) fn open(medium: Medium) -> Result<Self> {
        let superblock = read_superblock(&medium)?;
        Self::with_superblock(medium, superblock)
    }

    /// With persistence instructions where the volume asks for them.
    pub(crate) fn in_its_mode(mut self) -> Self {
        if self.superblock.emulate_persistence {
            self.medium = self.medium.with_emulated_persistence();
        }
        self
    }

    /// The volume on a medium whose superblock has been read.
    pub(crate) fn with_superblock(medium: Medium, superblock: Superblock) -> Result<Self> {
        let geometry = superblock.geometry().ok_or(Error::damaged("superblock: size", superblock.blocks))?;
        if superblock.blocks * BLOCK_BYTES > medium.length() {
            return Err(Error::damaged(
                "the volume is larger than its medium: the file was cut, put a whole copy in its place",
                medium.length(),
            ));
        }
        let epoch = medium.load_u64(MediumOffset(EPOCH_AT)).map_err(access_error)?;
        if epoch == 0 || epoch > EPOCH_MAX {
            return Err(Error::damaged("epoch", EPOCH_AT));
        }
        let chunks = no_chunks();
        let features = AtomicU64::new(superblock.features_incompatible);
        Ok(Self { medium, superblock, geometry, epoch: AtomicU64::new(epoch), features, chunks })
    }

    /// The volume with a superblock and an epoch that the caller has found out by other means: for fsck, when the medium
    /// says neither.
    pub(crate) fn assume(medium: Medium, superblock: Superblock, epoch: u64) -> Result<Self> {
        let geometry = superblock.geometry().ok_or(Error::damaged("superblock: size", superblock.blocks))?;
        if superblock.blocks * BLOCK_BYTES > medium.length() || epoch == 0 || epoch > EPOCH_MAX {
            return Err(Error::damaged("superblock", 0));
        }
        let chunks = no_chunks();
        let features = AtomicU64::new(superblock.features_incompatible);
        Ok(Self { medium, superblock, geometry, epoch: AtomicU64::new(epoch), features, chunks })
    }

    pub(crate) fn medium(&self) -> &Medium {
        &self.medium
    }

    pub(crate) fn superblock(&self) -> &Superblock {
        &self.superblock
    }

    pub(crate) fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    pub(crate) fn key(&self) -> Key {
        self.superblock.key
    }

    /// The epoch that new entries carry.
    pub(crate) fn epoch(&self) -> u32 {
        self.epoch.load(Ordering::Relaxed) as u32
    }

    /// Takes note of the epoch on the medium: another process may have raised it before this one attached.
    pub(crate) fn refresh_epoch(&self) -> Result<()> {
        let epoch = self.load(EPOCH_AT)?;
        if epoch == 0 || epoch > EPOCH_MAX {
            return Err(Error::damaged("epoch", EPOCH_AT));
        }
        self.epoch.store(epoch, Ordering::Relaxed);
        Ok(())
    }

    /// Raises the epoch durably: the last step of a crash recovery.
    pub(crate) fn raise_epoch(&self) -> Result<()> {
        let next = self.epoch.load(Ordering::Relaxed) + 1;
        if next > EPOCH_MAX {
            return Err(Error::because(
                Errno::OVERFLOW,
                "the volume went through 16 million crashes; copy it to a new one",
            ));
        }
        let mut commit = self.begin();
        commit.store(EPOCH_AT, next)?;
        // Unnoticed [fence]: whoever raises it fences again before anything is written in the new epoch: opening, with the note that
        // it is open, and fsck, with its maps. Where fsck gives up before that, the next opening raises it once more.
        let _ = commit.fence();
        self.epoch.store(next, Ordering::Relaxed);
        Ok(())
    }

    /// Whether the volume is known to use an incompatible feature.
    pub(crate) fn has_feature(&self, feature: u64) -> bool {
        self.features.load(Ordering::Relaxed) & feature == feature
    }

    /// Copies metadata out.
    pub(crate) fn read(&self, at: u64, bytes: &mut [u8]) -> Result<()> {
        self.medium.read(MediumOffset(at), bytes).map_err(access_error)
    }

    /// Loads one word.
    pub(crate) fn load(&self, at: u64) -> Result<u64> {
        self.medium.load_u64(MediumOffset(at)).map_err(access_error)
    }

    /// Begins the stores of an operation.
    pub(crate) fn begin(&self) -> Commit<'_> {
        Commit::new(self)
    }

    /// The byte offset of an inode's slot; `None` where its chunk does not exist.
    #[inline]
    pub(crate) fn slot_at(&self, inode: u32) -> Result<Option<u64>> {
        let inode = inode as u64;
        if inode == 0 || inode >= self.geometry.inodes() {
            return Ok(None);
        }
        let (chunk, within) = self.geometry.slot_of(inode);
        Ok(self.chunk_block(chunk)?.map(|block| block * BLOCK_BYTES + within * SLOT_BYTES))
    }

    /// The first block of a chunk of the inode table, if it exists.
    // Inlined as far as nearly every call goes.
    #[inline(always)]
    pub(crate) fn chunk_block(&self, chunk: u64) -> Result<Option<u64>> {
        let word = self.chunks[chunk as usize % CHUNKS_KNOWN].load(Ordering::Relaxed);
        if word >> 32 == chunk + 1 {
            return Ok(Some(word & u32::MAX as u64));
        }
        self.find_chunk(chunk)
    }

    #[cold]
    #[inline(never)]
    fn find_chunk(&self, chunk: u64) -> Result<Option<u64>> {
        if chunk >= self.geometry.chunks {
            return Ok(None);
        }
        let known = &self.chunks[chunk as usize % CHUNKS_KNOWN];
        let word = self.load(self.geometry.map_word_at(chunk))?;
        let Some(block) = self.chunk_in(chunk, word)? else { return Ok(None) };
        known.store((chunk + 1) << 32 | block, Ordering::Relaxed);
        Ok(Some(block))
    }

    /// The first block of a chunk as a word of the inode map says it.
    fn chunk_in(&self, chunk: u64, word: u64) -> Result<Option<u64>> {
        let at = self.geometry.map_word_at(chunk);
        let found = slot::decode_map_word(self.key(), chunk, word);
        let Some(block) = found.map_err(|()| Error::damaged("inode map word", at))? else { return Ok(None) };
        if !self.geometry.is_allocatable_run(block, self.geometry.chunk_blocks) {
            return Err(Error::damaged("inode map word: chunk outside the volume", at));
        }
        Ok(Some(block))
    }

    /// The chunks of the inode table whose words of the inode map do not stand in a hole of a sparse file, ascending. There are no
    /// others.
    pub(crate) fn chunks_possible(&self) -> impl Iterator<Item = u64> + use<> {
        let (start, chunks) = (self.geometry.map_start, self.geometry.chunks);
        written(&self.medium, start..self.geometry.saved_blocks_start).into_iter().flat_map(move |blocks| {
            let first = |block: u64| (block - start) * (BLOCK_BYTES / 8);
            first(blocks.start)..first(blocks.end).min(chunks)
        })
    }

    /// All chunks of the inode table, ascending.
    pub(crate) fn chunks(&self) -> Result<Vec<Chunk>> {
        let mut chunks = Vec::new();
        let mut words = [0; BLOCK_BYTES as usize];
        let per_block = BLOCK_BYTES / 8;
        let map = written(&self.medium, self.geometry.map_start..self.geometry.saved_blocks_start);
        for block in map.into_iter().flatten() {
            let first = (block - self.geometry.map_start) * per_block;
            self.read_block(block, &mut words)?;
            let numbers = first..(first + per_block).min(self.geometry.chunks);
            for (number, word) in numbers.zip(words.as_chunks::<8>().0) {
                if let Some(block) = self.chunk_in(number, u64::from_le_bytes(*word))? {
                    chunks.push(Chunk { number: number as u32, block: block as u32 });
                }
            }
        }
        Ok(chunks)
    }

    /// The slots that stand in a block of the inode table, of which `first` is the first inode, with their inodes' numbers. 0 is
    /// nobody's, nor are numbers behind the last.
    pub(crate) fn slots(&self, block: u64, first: u64) -> Result<impl Iterator<Item = (u32, Slot)> + use<'_>> {
        let mut bytes = [0; BLOCK_BYTES as usize];
        self.read_block(block, &mut bytes)?;
        let inodes = first..(first + SLOTS_PER_BLOCK).min(self.geometry.inodes());
        Ok(inodes.enumerate().filter(|&(_, inode)| inode != 0).map(move |(index, inode)| {
            let slot = &bytes.as_chunks::<{ SLOT_BYTES as usize }>().0[index];
            (inode as u32, Slot::decode(self.key(), inode as u32, slot))
        }))
    }

    /// Reads and checks an inode's slot; one that does not exist yet is free with generation 1.
    pub(crate) fn slot(&self, inode: u32) -> Result<Slot> {
        let Some(at) = self.slot_at(inode)? else { return Ok(Slot::Free { generation: 1 }) };
        let mut bytes = [0; SLOT_BYTES as usize];
        self.read(at, &mut bytes)?;
        Ok(Slot::decode(self.key(), inode, &bytes))
    }

    /// Reads and checks the header of the log page that a link word leads to.
    pub(crate) fn page_header(&self, link: Link) -> Result<Option<PageHeader>> {
        if !self.geometry.is_allocatable(link.block) {
            return Ok(None);
        }
        let mut line = [0; LINE_BYTES as usize];
        self.read(link.block * BLOCK_BYTES, &mut line)?;
        Ok(PageHeader::decode(self.key(), &line).filter(|header| header.epoch == link.epoch))
    }

    /// Reads a block, of which the caller knows that it lies on the volume.
    pub(crate) fn read_block(&self, block: u64, bytes: &mut Block) -> Result<()> {
        self.read(block * BLOCK_BYTES, &mut bytes[..])
    }

    /// Asks for the entry at `place`, of which most take two lines, to be read soon. A hint: wrong places are ignored.
    #[inline]
    pub(crate) fn expect_entry(&self, place: LinePlace) {
        for line in 0..2 {
            self.medium.expect_load(MediumOffset(place.offset_bytes().wrapping_add(line * LINE_BYTES)));
        }
    }

    /// Reads the entry at `place`, as many lines as it claims and `buffer` holds.
    pub(crate) fn read_lines<'b>(&self, place: LinePlace, buffer: &'b mut [u8]) -> Result<&'b [u8]> {
        const LINE: usize = LINE_BYTES as usize;
        if !self.geometry.is_allocatable(place.block()) || place.line() == 0 || buffer.len() < LINE {
            return Err(Error::damaged("place of a log entry", place.offset_bytes()));
        }
        self.read(place.offset_bytes(), &mut buffer[..LINE])?;
        let on_page = (LINES - place.line()) as usize * LINE;
        let wanted = (buffer[2] as usize * LINE).clamp(LINE, on_page.min(buffer.len()));
        if wanted > LINE {
            self.read(place.offset_bytes() + LINE_BYTES, &mut buffer[LINE..wanted])?;
        }
        Ok(&buffer[..wanted])
    }

    /// Reads the entry at `place`, whatever its length.
    pub(crate) fn read_entry<'b>(&self, place: LinePlace, buffer: &'b mut Block) -> Result<&'b [u8]> {
        self.read_lines(place, &mut buffer[..])
    }

    /// The data hash of a range of the medium, chained from `hash`.
    pub(crate) fn hash_range(&self, hash: &mut gannet_media::DataHash, at: u64, length_bytes: u64) -> Result<()> {
        self.medium.hash_into(MediumOffset(at), length_bytes, hash).map_err(access_error)
    }
}
