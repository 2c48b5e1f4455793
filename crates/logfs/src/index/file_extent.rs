//! An extent of a file's map, and how an entry of a tree says it: its key is the first file block; its value whether the blocks are shared
//! with others in the highest bit, the first volume block in the next 39 and the length in the low 24.

use super::IndexError::{self, Invalid, Torn};

/// The most blocks one extent can have (64 GiB less one block).
pub const EXTENT_BLOCKS_MAX: u64 = (1 << 24) - 1;
/// File blocks are smaller than this, so that byte positions fit 63 bits.
pub const FILE_BLOCK_LIMIT: u64 = 1 << 51;
/// Volume blocks are smaller than this.
pub(super) const BLOCK_LIMIT: u64 = 1 << 39;
/// Set in an entry's value if others may refer to its blocks as well.
const SHARED: u64 = 1 << 63;

/// A run of a file's blocks on the volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileExtent {
    /// The first block within the file.
    pub file_block: u64,
    /// The first block on the volume.
    pub block: u64,
    /// Number of blocks, 1 to [`EXTENT_BLOCKS_MAX`].
    pub count: u64,
    /// Others may refer to the blocks as well: they must not be written in place.
    pub shared: bool,
}

/// What stands at a file block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mapping {
    /// Data.
    Blocks {
        /// The volume block that holds it.
        block: u64,
        /// Blocks that follow contiguously, this one included.
        count: u64,
        /// See [`FileExtent::shared`].
        shared: bool,
    },
    /// No data.
    Hole {
        /// Blocks up to the next data, this one included; up to [`FILE_BLOCK_LIMIT`] if there is none.
        count: u64,
    },
}

impl FileExtent {
    pub(super) fn end(self) -> u64 {
        self.file_block + self.count
    }

    /// The end of its range, if it is one that a map can hold.
    pub(super) fn check(self) -> Result<u64, IndexError> {
        let end = check_range(self.file_block, self.count)?;
        let fits =
            self.count <= EXTENT_BLOCKS_MAX && self.block.checked_add(self.count).is_some_and(|end| end <= BLOCK_LIMIT);
        if fits { Ok(end) } else { Err(Invalid) }
    }

    pub(super) fn value(self) -> u64 {
        (if self.shared { SHARED } else { 0 }) | self.block << 24 | self.count
    }

    pub(super) fn from_entry((file_block, value): (u64, u64)) -> Result<FileExtent, IndexError> {
        let extent = FileExtent {
            file_block,
            block: (value & !SHARED) >> 24,
            count: value & EXTENT_BLOCKS_MAX,
            shared: value & SHARED != 0,
        };
        if extent.count == 0 || file_block >= FILE_BLOCK_LIMIT { Err(Torn) } else { Ok(extent) }
    }

    /// The part from file block `start` up to `end`, which must not be empty.
    pub(super) fn part(self, start: u64, end: u64) -> FileExtent {
        let start = start.max(self.file_block);
        FileExtent {
            file_block: start,
            block: self.block + (start - self.file_block),
            count: end.min(self.end()) - start,
            shared: self.shared,
        }
    }

    /// Whether `next` continues this extent in the file and on the volume, and one extent can hold both.
    pub(super) fn joins(self, next: FileExtent) -> bool {
        self.end() == next.file_block
            && self.block + self.count == next.block
            && self.shared == next.shared
            && self.count + next.count <= EXTENT_BLOCKS_MAX
    }
}

pub(super) fn check_range(file_block: u64, count: u64) -> Result<u64, IndexError> {
    match file_block.checked_add(count) {
        Some(end) if count > 0 && end <= FILE_BLOCK_LIMIT => Ok(end),
        _ => Err(Invalid),
    }
}
