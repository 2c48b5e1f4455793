//! Where the free space of a volume of a given size stands in its region. Touches no memory.
//!
//! ```text
//! pool controls | summaries of all pools | bits | deferred bits | suspects | pins in each group | pins of pool 0 | pins of pool 1 | …
//! ```
//!
//! A summary is two bits for each group: whether it is partly free, and whether it is whole. Bits of blocks behind
//! the end of the volume are never set. Deferred bits and pins have no memory behind them until the first pin of the pool, suspects none
//! until the volume is counted beside its users.

use super::{Extent, GROUP_BLOCKS, SpaceError};
use crate::format::sections::section_numbers;

/// Words of a group's bits: a cache line.
pub(super) const GROUP_WORDS: usize = (GROUP_BLOCKS / 64) as usize;
/// Words of a pool's control: two cache lines, so that the next pool's lock is never fetched with this one's.
pub(super) const CONTROL_WORDS: usize = 16;
/// Pins of one pool.
pub(super) const PINS_MAX: usize = 65536;
/// Pins that get memory together: 64 KiB.
pub(super) const PINS_CHUNK: usize = 4096;
/// Words of a pin.
pub(super) const PIN_WORDS: usize = 2;

/// Blocks a volume can have: 2^40 less what rounding up to whole pools needs.
const BLOCKS_MAX: u64 = 1 << 39;
const HUGE_PAGE_BYTES: u64 = 2 << 20;

/// The sizes that follow from a volume's number of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpaceLayout {
    blocks: u64,
    pools: u64,
    /// A pool has two to the power of this groups. Divisions would cost as much as a lock.
    pool_groups_log2: u32,
    hand_kind: u64,
    /// Size of the region, and where its parts begin, in words; kept, for they are asked for with every view.
    bytes: u64,
    bits_start: usize,
    deferred_start: usize,
    suspects_start: usize,
    pin_groups_start: usize,
    pins_start: usize,
}

impl SpaceLayout {
    /// The layout for a volume of `blocks` blocks; at most 2^39 of them (2 PiB) are managed. A pool is what a section of the saved map
    /// is about. Small volumes have fewer pools rather than smaller ones: 64 MiB at the least.
    pub fn for_blocks(blocks: u64) -> SpaceLayout {
        let blocks = blocks.min(BLOCKS_MAX);
        let groups = blocks.div_ceil(GROUP_BLOCKS).max(1);
        let pool_groups = section_numbers(blocks) / GROUP_BLOCKS;
        let mut layout = SpaceLayout {
            blocks,
            pools: groups.div_ceil(pool_groups),
            pool_groups_log2: pool_groups.ilog2(),
            hand_kind: super::HAND_BLOCKS,
            bytes: 0,
            bits_start: 0,
            deferred_start: 0,
            suspects_start: 0,
            pin_groups_start: 0,
            pins_start: 0,
        };
        // Each begins behind the one before it.
        layout.bits_start = layout.summary_at(layout.pools).next_multiple_of(512);
        layout.deferred_start = layout.bits_at(layout.pools).next_multiple_of(512);
        layout.suspects_start = layout.deferred_at(layout.pools).next_multiple_of(512);
        layout.pin_groups_start = layout.suspects_at(layout.pools).next_multiple_of(512);
        layout.pins_start = layout.pin_groups_at(layout.pools).next_multiple_of(512);
        layout.bytes = (layout.pins_at(layout.pools) as u64 * 8).next_multiple_of(4096);
        layout
    }

    /// The same for units that are not blocks (inode numbers): their hands have a kind of their own.
    pub fn with_hand_kind(self, hand_kind: u64) -> SpaceLayout {
        SpaceLayout { hand_kind, ..self }
    }

    /// Kind of the hands that hold this space's units.
    pub fn hand_kind(&self) -> u64 {
        self.hand_kind
    }

    /// Size of the region, in bytes. About 1/15000 of the volume, half of it without memory until blocks are pinned.
    #[inline]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// How much of the region's beginning needs memory before it is used, in bytes, where all pools are filled at once.
    pub fn bytes_at_once(&self) -> u64 {
        self.deferred_at(0) as u64 * 8
    }

    /// The same, where no pool is yet.
    pub fn bytes_of_controls(&self) -> u64 {
        self.summary_at(0) as u64 * 8
    }

    /// The alignment the region should have, in bytes.
    pub fn align(&self) -> u64 {
        if self.bytes() >= HUGE_PAGE_BYTES { HUGE_PAGE_BYTES } else { 4096 }
    }

    /// Blocks of the volume.
    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    /// Whether an extent is one of the volume.
    #[inline]
    pub(super) fn check(&self, extent: Extent) -> Result<(), SpaceError> {
        if extent.count == 0 || extent.start >= self.blocks || extent.end() > self.blocks {
            return Err(SpaceError::Invalid);
        }
        Ok(())
    }

    /// Number of pools.
    pub fn pools(&self) -> u64 {
        self.pools
    }

    /// Blocks of a pool, a power of two. The last pool may have fewer.
    pub fn pool_blocks(&self) -> u64 {
        GROUP_BLOCKS << self.pool_groups_log2
    }

    /// The number of the pool that has `block`.
    #[inline]
    pub fn pool_of(&self, block: u64) -> u64 {
        block >> (self.pool_groups_log2 + GROUP_BLOCKS.ilog2())
    }

    /// How far behind the beginning of its pool `block` is.
    #[inline]
    pub(super) fn within_pool(&self, block: u64) -> u64 {
        block & (self.pool_blocks() - 1)
    }

    pub(super) fn pool_words(&self) -> usize {
        GROUP_WORDS << self.pool_groups_log2
    }

    /// Words of one of a pool's two summaries, rounded up to a cache line.
    pub(super) fn summary_words(&self) -> usize {
        (1usize << self.pool_groups_log2).div_ceil(64).next_multiple_of(GROUP_WORDS)
    }

    // Positions in words from the start of the region.
    pub(super) fn control_at(&self, pool: u64) -> usize {
        pool as usize * CONTROL_WORDS
    }

    pub(super) fn summary_at(&self, pool: u64) -> usize {
        self.control_at(self.pools) + pool as usize * 2 * self.summary_words()
    }

    pub(super) fn bits_at(&self, pool: u64) -> usize {
        self.bits_start + pool as usize * self.pool_words()
    }

    pub(super) fn deferred_at(&self, pool: u64) -> usize {
        self.deferred_start + pool as usize * self.pool_words()
    }

    pub(super) fn suspects_at(&self, pool: u64) -> usize {
        self.suspects_start + pool as usize * self.pool_words()
    }

    pub(super) fn pins_at(&self, pool: u64) -> usize {
        self.pins_start + pool as usize * PINS_MAX * PIN_WORDS
    }

    /// How many pins touch each group of the pool.
    pub(super) fn pin_groups_at(&self, pool: u64) -> usize {
        self.pin_groups_start + pool as usize * self.pool_groups()
    }

    /// Groups of a pool.
    pub(super) fn pool_groups(&self) -> usize {
        1 << self.pool_groups_log2
    }
}
