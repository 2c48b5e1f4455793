//! Where the data and holes of a file are (`SEEK_DATA`, `SEEK_HOLE`), and whether it has blocks at all.
//!
//! What programs have stored through a map, or written to a mount that writes back later, is data, though the file system has not
//! got it yet: who took it for a hole would copy zeros. So where the answer would be a hole that the kernel may have pages of, it
//! is made to write those back first (and drops them: there is no other way to tell it). That waits for requests which the serving threads
//! serve, so it happens on a thread of its own, as with locks. Pages of what is data anyway are left alone. Relies on `users` and
//! `nodes` for which files are open for writing; an exclusive mount does not see that.

use std::ops::Range;
use std::sync::Arc;

use gannet_vfs::{Attributes, Errno, Error, FileType, NodeId, Result, SeekTarget};

use super::waiting::WaitsFor;
use super::{Dispatcher, Outcome};
use crate::protocol::constants::InitFlags;
use crate::protocol::reply;
use crate::protocol::request::Header;

/// How often a hole that others fill meanwhile is followed before all the rest of the file is written back.
const HOLES_MAX: u32 = 8;
/// The sectors of a block.
const BLOCK_SECTORS: u64 = 8;

/// A question, and the part of the file that must be written back before it can be answered.
pub(super) struct Seek {
    node: NodeId,
    target: SeekTarget,
    offset_bytes: u64,
    unsure: Range<u64>,
}

impl Dispatcher {
    pub(super) fn seek(self: &Arc<Self>, header: &Header, offset_bytes: u64, whence: u32) -> Result<Outcome> {
        let target = match whence {
            3 => SeekTarget::Data,
            4 => SeekTarget::Hole,
            _ => return Err(Error::new(Errno::INVAL)),
        };
        let node = self.node(header.node)?;
        match self.seek_stored(header.node, node, target, offset_bytes) {
            (found, None) => found.map(|found| Outcome::late(reply::position(found))),
            (_, Some(unsure)) => {
                let seek = Seek { node, target, offset_bytes, unsure };
                Ok(self.waits(header, WaitsFor::Pages(seek)))
            }
        }
    }

    /// What the file system knows, and the hole that it takes for one though the kernel may have pages of it.
    fn seek_stored(
        &self,
        id: u64,
        node: NodeId,
        target: SeekTarget,
        offset_bytes: u64,
    ) -> (Result<u64>, Option<Range<u64>>) {
        let found = self.file_system.seek(node, target, offset_bytes);
        if !self.exclusive() && !self.nodes.is_written(id) {
            return (found, None);
        }
        // Only a kernel that writes back later has bytes behind the end that we know.
        let end = match self.file_system.attributes(node) {
            Ok(_) if self.agreed(InitFlags::WRITEBACK_CACHE) => u64::MAX,
            Ok(attributes) => attributes.size_bytes,
            Err(_) => 0,
        };
        let hole = match (target, &found) {
            (SeekTarget::Data, Ok(data)) => offset_bytes..*data,
            (SeekTarget::Hole, Ok(hole)) => {
                *hole..self.file_system.seek(node, SeekTarget::Data, *hole).unwrap_or(u64::MAX)
            }
            (_, Err(error)) if error.errno() == Errno::NXIO => offset_bytes..u64::MAX,
            (_, Err(_)) => 0..0,
        };
        let unsure = hole.start < hole.end.min(end);
        (found, unsure.then_some(hole))
    }

    /// Answers on a thread of its own.
    pub(super) fn seek_written(&self, id: u64, seek: Seek) -> Outcome {
        let Seek { node, target, offset_bytes, mut unsure } = seek;
        let Some(kernel) = self.kernel.get() else { return Outcome::Error(Errno::IO) };
        let mut rounds = 0;
        loop {
            kernel.drop_range(id, unsure.clone());
            if let Err(error) = self.goes_on() {
                return Outcome::Error(error.errno());
            }
            match self.seek_stored(id, node, target, offset_bytes) {
                (_, Some(hole)) if hole.end > unsure.end => {
                    rounds += 1;
                    unsure = hole.start..if rounds < HOLES_MAX { hole.end } else { u64::MAX };
                }
                (Ok(found), _) => return Outcome::late(reply::position(found)),
                (Err(error), _) => return Outcome::Error(error.errno()),
            }
        }
    }

    /// Whether a file that seems to have no blocks may get some as soon as the kernel writes back what it has. It is shown with one then:
    /// programs take one with a size and no blocks for a hole, and do not even ask.
    pub(super) fn may_have_blocks(&self, attributes: &Attributes) -> bool {
        if attributes.sectors > 0 || attributes.file_type != FileType::Regular {
            return false;
        }
        match attributes.size_bytes {
            // Also the size is the kernel's then.
            0 => self.agreed(InitFlags::WRITEBACK_CACHE),
            _ => self.exclusive() || self.nodes.is_written(self.nodes.id(attributes.node)),
        }
    }

    /// The sectors that such a file is shown with.
    pub(super) fn shown_sectors(&self, attributes: &Attributes) -> u64 {
        if self.may_have_blocks(attributes) { BLOCK_SECTORS } else { attributes.sectors }
    }
}
