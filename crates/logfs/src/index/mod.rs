//! Volatile indexes of inodes: a B+tree of `u64 → u64` in the shared arena, used for directories (hash → entry)
//! and, through [`Extents`], for files (file block → volume blocks).
//!
//! May touch: the node region of the arena and the root word of the inode it is given; nothing else.
//! Relies on: the caller's inode lock for every change, and the caller's sequence check after every read.
//!
//! Readers run beside a writer, and a writer can be killed between any two stores. So nothing found in a node is
//! believed: node numbers are bounds-checked, headers must name the owner, levels fall by exactly one, steps are
//! bounded. What does not fit is [`IndexError::Torn`]; a reader then looks at the sequence word and retries, a writer
//! raises the inode's epoch (which frees every node of the inode at once) and rebuilds from the log.
//! `docs/parts/logfs-index-space.md` has the layout and the arguments.

mod check;
mod edit;
mod extents;
mod file_extent;
mod node;
mod pool;
mod shift;
mod spot;
mod tree;

#[cfg(test)]
mod tests;

pub use check::TreeShape;
pub use edit::PIECES_MAX;
pub use extents::Extents;
pub use file_extent::{EXTENT_BLOCKS_MAX, FILE_BLOCK_LIMIT, FileExtent, Mapping};
pub use pool::{NODE_WORDS, NodePool, PoolHost, Reservation};
pub use spot::Spot;
pub use tree::Tree;

/// Why an index operation could not give an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IndexError {
    /// No node is to be had. Nothing was changed; the caller can evict other inodes' indexes and try again.
    Full,
    /// A node is not what it should be: a writer was at work (the sequence word tells), or one was killed.
    Torn,
    /// The caller asked for something no index can hold: a length of zero, too long, or beyond the last file block.
    Invalid,
}
