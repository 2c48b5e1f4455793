//! The two free maps of a volume, of blocks and of inode numbers: where they stand in the arena, and their errors.

use crate::disk::{Disk, SavedMap};
use crate::format::geometry::Geometry;
use crate::ops::{Op, shared_error};
use crate::space::{BLOCK_BYTES, Extent, HAND_BLOCKS, Held, Nearness, SavedBits, Space, SpaceError, SpaceLayout};
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
    /// Where they stand on the medium.
    saved: Option<[Saved; 2]>,
}

/// One of the maps on the medium.
struct Saved {
    medium: Medium,
    map: SavedMap,
    never_free: Vec<Extent>,
}

impl SavedBits for Saved {
    fn read(&self, index: u64, hash: u64, store: &mut dyn FnMut(usize, u64)) -> bool {
        self.map.read(&self.medium, index, &mut |at, used| store(at, !used)).is_ok_and(|found| found == hash)
    }

    fn never_free(&self) -> &[Extent] {
        &self.never_free
    }
}

/// An error of a free map, as one of the file system.
pub(crate) fn error(error: SpaceError) -> Error {
    match error {
        SpaceError::Full => Error::because(Errno::NOSPC, "the volume is full"),
        SpaceError::Damaged => Error::because(
            Errno::NOSPC,
            "nothing is free but in a part of the volume whose saved map is damaged: it is counted anew when the volume is opened next",
        ),
        SpaceError::PinsFull => Error::because(
            Errno::NOMEM,
            "no room for another mapped range: in one part of the volume there are 65536, the most there can be; unmap some",
        ),
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
        let (blocks, inodes) = ((start("blocks")?, blocks), (start("inodes")?, inodes));
        Ok(Self { blocks, inodes, nearness: None, saved: None })
    }

    /// The maps of a volume, which may stand on its medium.
    pub(crate) fn on(mut self, disk: &Disk) -> Self {
        let saved = |map, never_free| Saved { medium: disk.medium().clone(), map, never_free };
        // Whatever the maps say, nobody gets what says which medium is which; and inode 0 is nobody's.
        let headers = disk.geometry().headers().map(|start| Extent { start, count: 1 }).collect();
        let nobodys = vec![Extent { start: 0, count: 1 }];
        self.saved = Some([saved(SavedMap::of_blocks(disk), headers), saved(SavedMap::of_inodes(disk), nobodys)]);
        self.look_around(disk.medium())
    }

    /// Finds out which blocks are near which processor, on a machine of several NUMA nodes and a volume of several media.
    fn look_around(mut self, medium: &Medium) -> Self {
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

    /// Gets memory for what is used of maps that stand on the medium: pools get theirs when they are read.
    pub(crate) fn reserve_controls(&self, arena: &Arena) -> Result<()> {
        for (start, layout) in [self.blocks, self.inodes] {
            arena.allocate(start, layout.bytes_of_controls()).map_err(shared_error)?;
        }
        Ok(())
    }

    /// Takes what is never free out of maps that were just filled.
    pub(crate) fn take_never_free(&self, arena: &Arena) -> Result<()> {
        let saved = self.saved.iter().flatten();
        for (space, saved) in [self.blocks_in(arena)?, self.inodes_in(arena)?].into_iter().zip(saved) {
            saved.never_free.iter().try_for_each(|&extent| space.mark_used(extent)).map_err(error)?;
            space.recount_all();
        }
        Ok(())
    }

    fn saved(&self, which: usize) -> Option<&dyn SavedBits> {
        self.saved.as_ref().map(|saved| &saved[which] as &dyn SavedBits)
    }

    /// The map of blocks.
    pub(crate) fn blocks<'s>(&'s self, op: &Op<'s>) -> Result<Space<'s>> {
        self.blocks_in(op.thread.arena())
    }

    /// The map of inode numbers.
    pub(crate) fn inodes<'s>(&'s self, op: &Op<'s>) -> Result<Space<'s>> {
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
        Ok(space.with_nearness(self.nearness.as_ref()).with_saved(self.saved(0)))
    }

    /// See [`Storage::inodes`].
    pub(crate) fn inodes_in<'s>(&'s self, arena: &'s Arena) -> Result<Space<'s>> {
        let space = Space::new(arena, self.inodes.0, self.inodes.1).map_err(error)?;
        Ok(space.with_saved(self.saved(1)))
    }
}
