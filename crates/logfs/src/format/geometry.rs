//! Where things lie on a volume: a function of the number of blocks and of how large the chunks of its inode table are, never
//! of the machine.
//!
//! ```text
//! block 0              superblock
//! block 1              state (epoch, clean word, arena identity)
//! block 2 ..           inode map: one word for each possible chunk of the inode table
//!         ..           saved block map: one bit for each block, written at a clean detach
//!         ..           saved inode map: one bit for each possible inode
//! first_free ..        data, log pages and chunks of the inode table
//! last block           superblock replica
//! ```
//!
//! Where a volume spans several media, the replica is the last block of the first medium; the first block of every further
//! medium is its header, and the last a replica of that. So no run of blocks reaches from one medium into the next.

use super::BLOCK_BYTES;
use super::member::{MEDIA_MAX, MEMBER_UNIT_BLOCKS};

/// Slots of one block of the inode table.
pub(crate) const SLOTS_PER_BLOCK: u64 = BLOCK_BYTES / super::slot::SLOT_BYTES;
/// The smallest volume: 1 MiB.
pub(crate) const BLOCKS_MIN: u64 = 256;
/// The largest volume: 2^32 blocks (16 TiB), so that inode numbers fit 32 bits.
pub(crate) const BLOCKS_MAX: u64 = 1 << 32;
const BITS_PER_BLOCK: u64 = BLOCK_BYTES * 8;
const WORDS_PER_BLOCK: u64 = BLOCK_BYTES / 8;

/// The layout of a volume of a given number of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Geometry {
    /// All blocks of the volume.
    pub(crate) blocks: u64,
    /// Blocks of one chunk of the inode table.
    pub(crate) chunk_blocks: u64,
    /// Number of possible chunks.
    pub(crate) chunks: u64,
    /// First block of the inode map.
    pub(crate) map_start: u64,
    /// First block of the saved block map.
    pub(crate) saved_blocks_start: u64,
    /// First block of the saved inode map.
    pub(crate) saved_inodes_start: u64,
    /// First block that can be allocated.
    pub(crate) first_free: u64,
    /// First blocks of the media behind the first, ascending; 0 where there are no more.
    further: [u32; MEDIA_MAX - 1],
}

/// The least that the first medium of several can hold besides what stands at its beginning.
const FIRST_MEDIUM_BLOCKS_MIN: u64 = 64;

impl Geometry {
    /// The layout of `blocks` blocks; `None` if there are too few or too many. A chunk of the inode table is one block, so that
    /// any free block will do; its map is then a 16384th of the volume.
    pub(crate) const fn of(blocks: u64) -> Option<Self> {
        Self::with_chunks(blocks, 1)
    }

    /// The layout of volumes that were made without small chunks (`FEATURE_SMALL_CHUNKS`).
    pub(crate) const fn with_large_chunks(blocks: u64) -> Option<Self> {
        let chunk_blocks = if blocks <= 1 << 16 {
            4
        } else if blocks <= 1 << 24 {
            16
        } else {
            128
        };
        Self::with_chunks(blocks, chunk_blocks)
    }

    const fn with_chunks(blocks: u64, chunk_blocks: u64) -> Option<Self> {
        if blocks < BLOCKS_MIN || blocks > BLOCKS_MAX {
            return None;
        }
        // As many inodes as blocks, at most.
        let chunks = blocks.div_ceil(chunk_blocks * SLOTS_PER_BLOCK);
        let map_start = 2;
        let saved_blocks_start = map_start + chunks.div_ceil(WORDS_PER_BLOCK);
        let saved_inodes_start = saved_blocks_start + blocks.div_ceil(BITS_PER_BLOCK);
        let first_free = saved_inodes_start + (chunks * chunk_blocks * SLOTS_PER_BLOCK).div_ceil(BITS_PER_BLOCK);
        let further = [0; MEDIA_MAX - 1];
        Some(Self {
            blocks,
            chunk_blocks,
            chunks,
            map_start,
            saved_blocks_start,
            saved_inodes_start,
            first_free,
            further,
        })
    }

    /// This volume over several media, of which those behind the first begin at these blocks; `None` if they cannot.
    pub(crate) fn spanning(mut self, first_blocks: impl IntoIterator<Item = u64>) -> Option<Self> {
        let mut before = 0;
        for (index, first_block) in first_blocks.into_iter().enumerate() {
            let is_sound = first_block.is_multiple_of(MEMBER_UNIT_BLOCKS)
                && first_block > before
                && first_block < self.blocks
                && (index > 0 || first_block > self.first_free + FIRST_MEDIUM_BLOCKS_MIN);
            if !is_sound {
                return None;
            }
            *self.further.get_mut(index)? = u32::try_from(first_block).ok()?;
            before = first_block;
        }
        (before == 0 || self.blocks.is_multiple_of(MEMBER_UNIT_BLOCKS)).then_some(self)
    }

    /// Whether the volume spans several media.
    pub(crate) const fn is_spanning(&self) -> bool {
        self.further[0] != 0
    }

    /// The blocks of each medium behind the first.
    pub(crate) fn further_media(&self) -> impl Iterator<Item = core::ops::Range<u64>> + '_ {
        let starts = || self.further.iter().map(|&start| start as u64).take_while(|&start| start != 0);
        starts().zip(starts().skip(1).chain([self.blocks])).map(|(start, end)| start..end)
    }

    /// The blocks at which every medium behind the first says what it is: its first and its last.
    pub(crate) fn headers(&self) -> impl Iterator<Item = u64> + '_ {
        self.further_media().flat_map(|blocks| [blocks.start, blocks.end - 1])
    }

    /// The blocks that hold neither data nor logs nor slots on any volume of this layout.
    pub(crate) fn fixed(&self) -> impl Iterator<Item = u64> + '_ {
        (0..self.first_free).chain([self.replica()]).chain(self.headers())
    }

    /// Slots of one chunk.
    pub(crate) const fn slots_per_chunk(&self) -> u64 {
        self.chunk_blocks * SLOTS_PER_BLOCK
    }

    /// The chunk of an inode's slot, and which of its slots that is.
    // A chunk has a power of two of them: every operation asks, and divisions would be a good part of what that takes.
    #[inline]
    pub(crate) const fn slot_of(&self, inode: u64) -> (u64, u64) {
        let slots = self.slots_per_chunk();
        (inode >> slots.trailing_zeros(), inode & (slots - 1))
    }

    /// One more than the largest possible inode number.
    pub(crate) const fn inodes(&self) -> u64 {
        let all = self.chunks * self.slots_per_chunk();
        if all > u32::MAX as u64 { u32::MAX as u64 } else { all }
    }

    /// Blocks that only operations may take that free more than they take. Not part of the format.
    pub(crate) const fn reserve(&self) -> u64 {
        if self.blocks < 4096 { self.blocks / 64 } else { 64 }
    }

    /// Of these, how many must be left for logs to be collected: removals of names may not take them, unless that frees others.
    pub(crate) const fn reserve_of_collection(&self) -> u64 {
        self.reserve() / 4
    }

    /// Of these, with fewer than how many logs are collected that would be left alone else.
    pub(crate) const fn reserve_in_need(&self) -> u64 {
        self.reserve() / 2 + 2
    }

    /// The block of the superblock's replica: the last of the first medium.
    pub(crate) const fn replica(&self) -> u64 {
        if self.is_spanning() { self.further[0] as u64 - 1 } else { self.blocks - 1 }
    }

    /// The last block of the volume, which is no allocatable one: allocation ends before it.
    pub(crate) const fn end(&self) -> u64 {
        self.blocks - 1
    }

    /// Byte offset of the inode map's word for `chunk`.
    pub(crate) const fn map_word_at(&self, chunk: u64) -> u64 {
        self.map_start * BLOCK_BYTES + chunk * 8
    }

    /// Whether a block can hold data, a log page or slots.
    pub(crate) const fn is_allocatable(&self, block: u64) -> bool {
        block >= self.first_free && block < self.end() && (!self.is_spanning() || self.is_between_ends(block, 1))
    }

    /// Whether `count` blocks from `block` on can.
    pub(crate) const fn is_allocatable_run(&self, block: u64, count: u64) -> bool {
        block >= self.first_free
            && block <= self.end()
            && count <= self.end() - block
            && (!self.is_spanning() || self.is_between_ends(block, count))
    }

    /// Whether a run touches neither the last block of a medium nor the first of the next.
    #[cold]
    const fn is_between_ends(&self, block: u64, count: u64) -> bool {
        let mut index = 0;
        while index < self.further.len() && self.further[index] != 0 {
            let start = self.further[index] as u64;
            if block <= start && block + count >= start {
                return false;
            }
            index += 1;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regions_follow_each_other_and_leave_room() {
        let sizes = [BLOCKS_MIN, 257, 1000, 1 << 16, (1 << 16) + 1, 1 << 20, 1 << 24, (1 << 24) + 1, BLOCKS_MAX];
        let layouts = [Geometry::of, Geometry::with_large_chunks];
        for (blocks, layout) in sizes.into_iter().flat_map(|blocks| layouts.map(|layout| (blocks, layout))) {
            let geometry = layout(blocks).unwrap();
            assert!(geometry.map_start < geometry.saved_blocks_start);
            assert!((geometry.saved_blocks_start - geometry.map_start) * WORDS_PER_BLOCK >= geometry.chunks);
            assert!((geometry.saved_inodes_start - geometry.saved_blocks_start) * BITS_PER_BLOCK >= blocks);
            assert!((geometry.first_free - geometry.saved_inodes_start) * BITS_PER_BLOCK >= geometry.inodes());
            assert!(geometry.first_free * 50 < blocks * 49, "{blocks}: {geometry:?}");
        }
        assert!(Geometry::of(BLOCKS_MIN - 1).is_none());
        assert!(Geometry::of(BLOCKS_MAX + 1).is_none());
    }
    #[test]
    fn several_media_keep_their_ends() {
        let geometry = Geometry::of(4096).unwrap().spanning([1024, 1536]).unwrap();
        assert_eq!((geometry.replica(), geometry.end(), geometry.is_spanning()), (1023, 4095, true));
        assert_eq!(geometry.further_media().collect::<Vec<_>>(), [1024..1536, 1536..4096]);
        assert_eq!(geometry.headers().collect::<Vec<_>>(), [1024, 1535, 1536, 4095]);
        let fixed: std::collections::BTreeSet<u64> = geometry.fixed().collect();
        for block in 0..5000 {
            let is_free = block < 4096 && !fixed.contains(&block);
            assert_eq!(geometry.is_allocatable(block), is_free, "{block}");
            for count in [1, 2, 3, 600] {
                let all_free = (block..block + count).all(|block| geometry.is_allocatable(block));
                assert_eq!(geometry.is_allocatable_run(block, count), all_free, "{block}, {count}");
            }
        }
        for media in [&[512, 512][..], &[1024, 512], &[100], &[0], &[4096], &[1 << 40], &[512; 8]] {
            assert_eq!(Geometry::of(4096).unwrap().spanning(media.iter().copied()), None, "{media:?}");
        }
        assert_eq!(Geometry::of(4097).unwrap().spanning([1024]), None, "no whole 2 MiB");
        assert_eq!(Geometry::of(1 << 24).unwrap().spanning([512]), None, "too little for what stands at the beginning");
        let single = Geometry::of(4097).unwrap();
        assert_eq!((single.spanning([]), single.replica(), single.end()), (Some(single), 4096, 4096));
        assert_eq!(single.fixed().count() as u64, single.first_free + 1);
    }
}
