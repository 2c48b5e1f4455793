//! What the directories of a volume say of its inodes: how many names each has and of which generation they speak, and which
//! directory holds a directory. Filled by several threads while they read the directories, so that no directory's names
//! need to be kept: 12 bytes for each slot of the inode table.

use crate::disk::{Chunk, Disk};
use crate::recover::ROOT;
use crate::survey::Target;
use gannet_vfs::{Error, FileType, Result};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// What the names of all inodes say.
pub(crate) struct Holders {
    /// For each chunk of the inode table one more than where its slots begin in the other two, in chunks; 0 where there is no such
    /// chunk.
    places: Vec<u32>,
    /// For each slot `links:32 · generation:32`; 0 without a name.
    names: Vec<AtomicU64>,
    /// For each slot the directory that holds it, if it is a directory; else 0.
    parents: Vec<AtomicU32>,
    slots_per_chunk: u64,
}

/// How an inode is held.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Holder {
    /// How many names it has.
    pub(crate) links: u32,
    /// The generation that they speak of.
    pub(crate) generation: u32,
    /// If it is a directory, the one that holds it.
    pub(crate) parent: u32,
}

impl Holders {
    /// Without any name, for inodes of these chunks. The root holds itself.
    pub(crate) fn of(disk: &Disk, chunks: &[Chunk]) -> Self {
        let slots_per_chunk = disk.geometry().slots_per_chunk();
        // Zeros that nobody touches have no memory behind them.
        let mut places = vec![0; disk.geometry().chunks as usize];
        for (at, chunk) in (1..).zip(chunks) {
            places[chunk.number as usize] = at;
        }
        let slots = chunks.len() as u64 * slots_per_chunk;
        let holders = Self {
            places,
            names: (0..slots).map(|_| AtomicU64::new(0)).collect(),
            parents: (0..slots).map(|_| AtomicU32::new(0)).collect(),
            slots_per_chunk,
        };
        if let Some(root) = holders.slot(ROOT) {
            holders.parents[root].store(ROOT, Ordering::Relaxed);
        }
        holders
    }

    fn slot(&self, inode: u32) -> Option<usize> {
        let (chunk, within) = (inode as u64 / self.slots_per_chunk, inode as u64 % self.slots_per_chunk);
        let place = self.places.get(chunk as usize)?.checked_sub(1)?;
        Some((place as u64 * self.slots_per_chunk + within) as usize)
    }

    /// Counts a name in `directory`. An error, if this cannot be a name of an inode: then `inode`'s slot will show it, or
    /// another name does.
    pub(crate) fn bind(&self, disk: &Disk, directory: u32, target: &Target) -> Result<()> {
        let damaged = |what| Error::damaged(what, disk.slot_at(target.inode).ok().flatten().unwrap_or(0));
        let slot = self.slot(target.inode).ok_or_else(|| damaged("a name leads to no inode"))?;
        let more = |names: u64| {
            let (links, generation) = ((names >> 32) as u32, names as u32);
            let fits = links == 0 || generation == target.generation;
            let links = links.checked_add(1).filter(|_| fits)?;
            Some((links as u64) << 32 | target.generation as u64)
        };
        self.names[slot]
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, more)
            .map_err(|_| damaged("a name leads to no inode"))?;
        if target.file_type == FileType::Directory && self.parents[slot].swap(directory, Ordering::Relaxed) != 0 {
            return Err(damaged("a directory has two names"));
        }
        Ok(())
    }

    /// How an inode is held.
    pub(crate) fn holder(&self, inode: u32) -> Holder {
        let Some(slot) = self.slot(inode) else { return Holder::default() };
        let names = self.names[slot].load(Ordering::Relaxed);
        let parent = self.parents[slot].load(Ordering::Relaxed);
        Holder { links: (names >> 32) as u32, generation: names as u32, parent }
    }
}

impl Holder {
    /// Whether it has a name, or needs none: `file_type` is what the inode is. A directory that is bound as something else counts as
    /// nameless.
    pub(crate) fn holds(&self, inode: u32, file_type: FileType) -> bool {
        inode == ROOT || (self.links > 0 && (file_type != FileType::Directory || self.parent != 0))
    }
}
