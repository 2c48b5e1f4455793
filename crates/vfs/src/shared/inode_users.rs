//! Whether anybody uses an inode, for the file system that is about to free it.
//!
//! Most inodes that are freed share their bucket with no open one: then no lock is taken. Whoever opens locks the bucket by a
//! swap, links the description, and looks at the inode afterwards; whoever frees has locked the inode by a swap before it looks here. If the
//! bucket's lock is seen free and unchanged around an empty chain, an opener's swap comes later, and it finds the inode
//! locked, then gone.

use super::tables::{Chain, Tables};
use crate::NodeId;
use gannet_shm::{Ordering, Thread};

/// A copy of where the users of inodes stand in an arena.
#[derive(Clone, Debug)]
pub struct InodeUsers(pub(super) Tables);

impl InodeUsers {
    /// Whether anybody uses an inode, as far as `thread`, of the same session, can see. In doubt somebody does. The caller holds the
    /// inode's lock, so that nobody comes who would not be seen.
    #[inline]
    pub fn any(&self, thread: &Thread<'_>, node: NodeId) -> bool {
        match self.has_none(thread, node) {
            Ok(true) => false,
            _ => self.look(thread, node).unwrap_or(true),
        }
    }

    /// Whether the inode's bucket has no description at all; false if somebody is at work on it.
    #[inline]
    fn has_none(&self, thread: &Thread<'_>, node: NodeId) -> gannet_shm::Result<bool> {
        let bucket = self.0.bucket(node.number);
        let Some(sequence) = thread.read_begin(bucket.lock())? else { return Ok(false) };
        let first = thread.word(bucket.head(Chain::Descriptions))?.load(Ordering::Relaxed);
        Ok(first == 0 && thread.read_validate(bucket.lock(), sequence)?)
    }

    #[inline(never)]
    fn look(&self, thread: &Thread<'_>, node: NodeId) -> gannet_shm::Result<bool> {
        let bucket = self.0.bucket(node.number);
        let guard = thread.lock(bucket.lock())?;
        let mut used = false;
        self.0.walk(thread, bucket, Chain::Descriptions, |_, object| {
            used = self.0.node(thread, object)? == node && self.0.is_used(thread, object)?;
            Ok(!used)
        })?;
        guard.unlock();
        Ok(used)
    }
}
