//! Which blocks of a volume are in use, and how often those that are shared are referred to: derived by recovery from what it reads,
//! by several threads.

use crate::bits::Bits;
use crate::disk::{Chunk, Disk};
use crate::shares::Counts;
use crate::survey::Surveyed;

/// Blocks in use.
pub(crate) struct Used {
    /// All of them.
    pub(crate) blocks: Bits,
    /// References beyond the first.
    pub(crate) shared: Counts,
}

impl Used {
    /// What is in use on any volume: superblocks, maps, the chunks of the inode table.
    pub(crate) fn of_empty(disk: &Disk, chunks: &[Chunk]) -> Self {
        let geometry = disk.geometry();
        let used = Self { blocks: Bits::new(geometry.blocks), shared: Counts::default() };
        used.take(0, geometry.first_free);
        used.take(geometry.replica(), 1);
        geometry.headers().for_each(|block| used.take(block, 1));
        chunks.iter().for_each(|chunk| used.take(chunk.block as u64, geometry.chunk_blocks));
        used
    }

    /// Blocks that only one refers to.
    fn take(&self, block: u64, count: u64) {
        self.blocks.set_run(block, count, &mut |_| ());
    }

    /// What an inode refers to.
    pub(crate) fn mark(&self, surveyed: &Surveyed) {
        surveyed.pages.iter().for_each(|&page| self.take(page, 1));
        surveyed.values.runs().for_each(|(_, block, count)| self.take(block, count));
        for extent in surveyed.map.iter() {
            self.blocks.set_run(extent.block, extent.count as u64, &mut |block| self.shared.again(block));
        }
    }

    /// Takes it back.
    pub(crate) fn unmark(&self, surveyed: &Surveyed) {
        for &block in &surveyed.pages {
            self.blocks.clear(block);
        }
        for block in surveyed.values.blocks() {
            self.blocks.clear(block);
        }
        for block in surveyed.map.iter().flat_map(|extent| extent.block..extent.block + extent.count as u64) {
            if !self.shared.take(block) {
                self.blocks.clear(block);
            }
        }
    }
}
