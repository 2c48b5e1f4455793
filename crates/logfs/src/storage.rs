//! The two free maps of a volume, of blocks and of inode numbers: where they stand in the arena, and their errors.

use crate::format::geometry::Geometry;
use crate::ops::{Op, shared_error};
use crate::space::{BLOCK_BYTES, Extent, HAND_BLOCKS, Held, Nearness, Space, SpaceError, SpaceLayout};
use gannet_media::{Medium, Member, machine_nodes};
use gannet_shm::{Arena, ArenaLayout, ArenaOffset, Thread};
use gannet_vfs::{Errno, Error, Result};

/// Kind of the hands that hold inode numbers.
pub(crate) const HAND_INODES: u64 = u64::from_le_bytes(*b"inodes\0\0");

/// Where the two maps stand.
pub(crate) struct Storage {
    blocks: (ArenaOffset, SpaceLayout),
    inodes: (ArenaOffset, SpaceLayout),
    /// Which blocks are near which processor, if that makes a difference.
    nearness: Option<Nearness>,
}

/// An error of a free map, as one of the file system.
pub(crate) fn error(error: SpaceError) -> Error {
    match error {
        SpaceError::Full => Error::because(Errno::NOSPC, "the volume is full"),
        SpaceError::PinsFull => Error::because(Errno::NOMEM, "too many mapped ranges"),
        SpaceError::Invalid => Error::damaged("extent outside the volume", 0),
        SpaceError::Shared(error) => shared_error(error),
    }
}

fn layouts(geometry: &Geometry) -> (SpaceLayout, SpaceLayout) {
    (
        SpaceLayout::for_blocks(geometry.blocks).with_hand_kind(HAND_BLOCKS),
        SpaceLayout::for_blocks(geometry.inodes()).with_hand_kind(HAND_INODES),
    )
}

impl Storage {
    /// Adds the regions to an arena's layout.
    pub(crate) fn layout(arena: ArenaLayout, geometry: &Geometry) -> ArenaLayout {
        let (blocks, inodes) = layouts(geometry);
        arena.region("blocks", blocks.bytes(), blocks.align()).region("inodes", inodes.bytes(), inodes.align())
    }

    /// Finds them again.
    pub(crate) fn of(arena: &Arena, geometry: &Geometry) -> Result<Self> {
        let (blocks, inodes) = layouts(geometry);
        let start = |name| arena.region(name).map(|region| region.start).map_err(shared_error);
        Ok(Self { blocks: (start("blocks")?, blocks), inodes: (start("inodes")?, inodes), nearness: None })
    }

    /// Finds out which blocks are near which processor, on a machine of several NUMA nodes and a volume of several media.
    pub(crate) fn look_around(mut self, medium: &Medium) -> Self {
        let members = medium.members();
        if members.len() > 1 {
            let nodes = machine_nodes();
            if nodes.len() > 1 {
                let blocks = |member: &Member| {
                    let start = member.start / BLOCK_BYTES;
                    start..start + member.length / BLOCK_BYTES
                };
                let media: Vec<_> = members.iter().map(blocks).zip(medium.nodes()).collect();
                self.nearness = Nearness::of(&self.blocks.1, &media, &nodes, rustix::thread::sched_getcpu);
            }
        }
        self
    }

    /// Gets memory for both maps, so that touching them cannot fail.
    pub(crate) fn reserve(&self, arena: &Arena) -> Result<()> {
        for (start, layout) in [self.blocks, self.inodes] {
            arena.allocate(start, layout.bytes_at_once()).map_err(shared_error)?;
        }
        Ok(())
    }

    /// The map of blocks.
    pub(crate) fn blocks<'s>(&'s self, op: &Op<'s>) -> Result<Space<'s>> {
        self.blocks_in(op.thread.arena())
    }

    /// The map of inode numbers.
    pub(crate) fn inodes<'s>(&self, op: &Op<'s>) -> Result<Space<'s>> {
        self.inodes_in(op.thread.arena())
    }

    /// A number that is in use, or nobody's, in a thread's hands: see [`Space::hold`].
    #[inline]
    pub(crate) fn hold_inode(&self, thread: &Thread<'_>, inode: u32) -> Result<Held> {
        self.inodes.1.hold(thread, Extent { start: inode as u64, count: 1 }).map_err(error)
    }

    /// See [`Storage::blocks`].
    pub(crate) fn blocks_in<'s>(&'s self, arena: &'s Arena) -> Result<Space<'s>> {
        let space = Space::new(arena, self.blocks.0, self.blocks.1).map_err(error)?;
        Ok(space.with_nearness(self.nearness.as_ref()))
    }

    /// See [`Storage::inodes`].
    pub(crate) fn inodes_in<'s>(&self, arena: &'s Arena) -> Result<Space<'s>> {
        Space::new(arena, self.inodes.0, self.inodes.1).map_err(error)
    }
}
