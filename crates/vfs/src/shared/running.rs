//! Which inodes may be running programs, as far as somebody has to look: a filter, one mark for each bucket.
//!
//! Whether a program still runs nobody can tell but the kernel, and asking it costs a walk through all processes. So what is executed
//! leaves a mark here, for as long as there is this arena, and only of what has a mark is the kernel asked. A new arena begins without
//! marks, although programs of an older one may be running: the first who wants to know finds them all once.

use super::{Shared, error_of};
use crate::{NodeId, Result};
use gannet_shm::Ordering;

impl Shared {
    /// An inode is about to be executed: before it is looked whether it is open for writing.
    pub fn note_executed(&self, node: NodeId) -> Result<()> {
        let thread = self.thread()?;
        let mark = self.tables.bucket(node.number).executed(&thread).map_err(error_of)?;
        mark.store(1, Ordering::SeqCst);
        Ok(())
    }

    /// Whether an inode may have been executed. `find` is called if nobody has looked for programs of an older arena yet; it is to
    /// note those it finds.
    pub fn may_be_executed(&self, node: NodeId, find: impl FnOnce() -> Result<()>) -> Result<bool> {
        let thread = self.thread()?;
        let looked = self.tables.looked_for_programs(&thread).map_err(error_of)?;
        if looked.load(Ordering::Acquire) == 0 {
            find()?;
            looked.store(1, Ordering::Release);
        }
        let mark = self.tables.bucket(node.number).executed(&thread).map_err(error_of)?;
        Ok(mark.load(Ordering::SeqCst) != 0)
    }
}
