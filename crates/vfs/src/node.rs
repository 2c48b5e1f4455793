//! How an inode is named: its number and the generation that tells it from earlier owners of the number.

/// An inode of one file system. A number is reused after its file is gone, then with another generation:
/// operations on a `NodeId` whose generation has passed give `ESTALE`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct NodeId {
    /// Inode number, never 0.
    pub number: u64,
    /// Generation of the number.
    pub generation: u32,
}

impl NodeId {
    /// The inode `number` in its life `generation`.
    pub const fn new(number: u64, generation: u32) -> Self {
        Self { number, generation }
    }
}
