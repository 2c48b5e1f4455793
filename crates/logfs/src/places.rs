//! Where the engine's structures stand in the arena that all processes of a volume share.
//!
//! ```text
//! control   words of the whole volume, each on its own line; in the page of the arena's header
//! stripes   data locks, hashed by inode and 64 KiB of the file
//! counters  what each thread slot has done, and what it has given up
//! maps      which ranges of files who has mapped, with a head in the page of the arena's header
//! shares    references to each block that has several
//! records   one for each possible inode, found by its number, behind a bit for each 64 of them: they have memory
//! nodes     of all indexes; the last region, whose size the first participant chooses
//! ```
//! `space` adds its own regions, for blocks and for inode numbers.

use crate::format::geometry::Geometry;
use crate::format::superblock::{FEATURES_INCOMPATIBLE_KNOWN, FEATURES_READ_ONLY_KNOWN};
use crate::index::NODE_WORDS;
use crate::mapped;
use crate::ops::shared_error;
use crate::shares;
use gannet_shm::{Arena, ArenaLayout, ArenaOffset, Region};
use gannet_vfs::Result;

/// Words of an inode's record.
pub(crate) const RECORD_WORDS: u64 = 32;
pub(crate) const RECORD_BYTES: u64 = RECORD_WORDS * 8;
/// Records that get memory together: 16 KiB.
pub(crate) const RECORDS_BACKED_TOGETHER: u64 = 64;
/// Number of data locks.
pub(crate) const STRIPES: u64 = 4096;
/// Bytes of a data lock. Side by side: all of them then stay in a processor's first cache, which spares those who write at
/// random a miss for every call. That two who write at once meet in one line is rare: there are 512.
const STRIPE_LOCK_BYTES: u64 = 8;
/// Bytes of a file that share a data lock.
pub(crate) const STRIPE_BYTES: u64 = 64 << 10;
const LINE_BYTES: u64 = 64;

/// Taken by renames of directories across directories, before inode locks.
pub(crate) const CONTROL_RENAME_LOCK: u64 = 0;
/// Taken while a chunk of the inode table is made; after inode locks.
pub(crate) const CONTROL_CHUNK_LOCK: u64 = 1;
/// How often somebody died inside an operation: if at all, the maps may miss something that is free, so the next clean detach does not
/// save them, and the next attach counts again.
pub(crate) const CONTROL_UNCERTAIN: u64 = 2;
/// How many dead threads were settled.
pub(crate) const CONTROL_TAKEOVERS: u64 = 3;
/// The volume's epoch when the arena was made: another one means that somebody recovered or repaired the volume since.
pub(crate) const CONTROL_EPOCH: u64 = 4;
/// Inodes that a dead thread made without a name and may not have come to open: lines full of words, each inode and
/// generation or 0. Who closes the volume looks at them.
pub(crate) const CONTROL_SUSPECTS: u64 = 8;
/// Words of suspects.
pub(crate) const SUSPECTS_MAX: u64 = 64;
/// Not 0 once a block was shared since the volume was opened.
pub(crate) const CONTROL_SHARES: u64 = 5;
/// Taken while the superblock changes; after inode locks.
pub(crate) const CONTROL_SUPERBLOCK_LOCK: u64 = 6;
/// How many thread slots ever had something in limbo.
pub(crate) const CONTROL_LIMBO: u64 = 7;
/// Not 0 once a map that is gone may have left something to be written back.
pub(crate) const CONTROL_LEFT_BY_MAPS: u64 = 16;
/// The chunk of the inode table in which a free slot was found last on a volume without room for more of them: a hint.
pub(crate) const CONTROL_FREE_SLOTS: u64 = 17;
/// How often the arena was adopted, as the medium says, too; or one less, by a kill between the two.
pub(crate) const CONTROL_ADOPTIONS: u64 = 18;
/// Not 0 once a block was pinned, or is about to be, since the arena was made.
pub(crate) const CONTROL_PINNED: u64 = 19;
/// Taken while a log is collected because the volume is full; after inode locks.
pub(crate) const CONTROL_NEED_LOCK: u64 = 21;
/// The clean word that the first participant found, 0 if it had to recover: as long as all only read, it is the volume's.
pub(crate) const CONTROL_CLOSED: u64 = 22;
/// Taken by who counts the volume beside its users: before inode locks, and never waited for.
pub(crate) const CONTROL_RECOUNT_LOCK: u64 = 23;
/// Not 0 while somebody counts so.
pub(crate) const CONTROL_RECOUNTING: u64 = 24;
/// What [`CONTROL_UNCERTAIN`] was when the last such count began.
pub(crate) const CONTROL_RECOUNTED: u64 = 20;
const CONTROL_LINES: u64 = 25;
const _: () = assert!(CONTROL_SUSPECTS * LINE_BYTES + SUSPECTS_MAX * 8 <= CONTROL_LEFT_BY_MAPS * LINE_BYTES);

/// Words of the engine that each thread slot has, whole lines, so that no two threads share one: counters, then limbo, then calls of
/// each operation.
pub(crate) const COUNTER_WORDS: u64 = 48;
/// Where in them stands what the thread has given up: see `limbo`.
pub(crate) const LIMBO_AT: u64 = 16;
/// How many of them.
pub(crate) const LIMBO_WORDS: u64 = 16;
/// Thread slots.
pub(crate) const THREADS: u32 = 4096;
/// How many of their counters get memory with the arena: others with their slots.
const THREADS_AT_ONCE: u32 = 64;
pub(crate) const PARTICIPANTS: u32 = 1024;
// What is said where there are more says these numbers.
const _: () = assert!(THREADS == gannet_shm::THREADS_DEFAULT && PARTICIPANTS == gannet_shm::PARTICIPANTS_DEFAULT);

/// Words of the bits that say which records have memory: whole pages.
fn backed_words(inodes: u64) -> u64 {
    inodes.div_ceil(RECORDS_BACKED_TOGETHER).div_ceil(64).next_multiple_of(512)
}

/// Offsets of the regions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Places {
    control: Region,
    stripes: Region,
    pub(crate) records: Region,
    /// Words at the beginning of the records' region that say which records have memory.
    pub(crate) backed_words: u64,
    pub(crate) nodes: Region,
    pub(crate) counters: Region,
    /// Times of sampled calls: see `samples`.
    pub(crate) samples: Region,
    /// What is mapped: see `mapped`.
    pub(crate) maps: Region,
    /// What stands in front of them.
    pub(crate) maps_head: Region,
    /// References to each block, as far as there are several.
    pub(crate) shares: Region,
    /// A bit for each group of blocks that has any.
    pub(crate) share_groups: Region,
}

impl Places {
    /// Adds the regions that a volume of this geometry needs. `arena_bytes_max` bounds the memory of indexes.
    pub(crate) fn layout(geometry: &Geometry, index_bytes_max: u64) -> ArenaLayout {
        let nodes = (index_bytes_max / (NODE_WORDS as u64 * 8)).max(64) * NODE_WORDS as u64 * 8;
        ArenaLayout::new()
            .limits(PARTICIPANTS, THREADS)
            // A feature is noted on the medium when it is first used, which those who have it open by then do not look at again: whoever knows others
            // would meet entries that he cannot read.
            .agreed(FEATURES_INCOMPATIBLE_KNOWN ^ FEATURES_READ_ONLY_KNOWN.rotate_left(32))
            .head("control", CONTROL_LINES * LINE_BYTES)
            .head("maps' head", mapped::HEAD_BYTES)
            .region("stripes", STRIPES * STRIPE_LOCK_BYTES, LINE_BYTES)
            .region("samples", crate::samples::BYTES, LINE_BYTES)
            .region("counters", THREADS as u64 * COUNTER_WORDS * 8, LINE_BYTES)
            .region("maps", mapped::TABLE_BYTES, 4096)
            .region("records", backed_words(geometry.inodes()) * 8 + geometry.inodes() * RECORD_BYTES, 4096)
            .region("shares", (geometry.blocks * 4).next_multiple_of(8), 4096)
            .region("share groups", geometry.blocks.div_ceil(shares::GROUP_BLOCKS * 64) * 8, LINE_BYTES)
            .tail("nodes", nodes, 2 << 20)
    }

    /// Finds the regions again.
    pub(crate) fn of(arena: &Arena, geometry: &Geometry) -> Result<Self> {
        let region = |name| arena.region(name).map_err(shared_error);
        Ok(Self {
            control: region("control")?,
            stripes: region("stripes")?,
            records: region("records")?,
            backed_words: backed_words(geometry.inodes()),
            nodes: region("nodes")?,
            counters: region("counters")?,
            samples: region("samples")?,
            maps: region("maps")?,
            maps_head: region("maps' head")?,
            shares: region("shares")?,
            share_groups: region("share groups")?,
        })
    }

    /// A word of the whole volume.
    pub(crate) const fn control(&self, which: u64) -> ArenaOffset {
        self.control.start.add(which * LINE_BYTES)
    }

    /// The data lock for a byte of a file.
    pub(crate) const fn stripe(&self, inode: u32, offset_bytes: u64) -> ArenaOffset {
        let mixed = (inode as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ (offset_bytes / STRIPE_BYTES);
        let spread = mixed.wrapping_mul(0xD6E8_FEB8_6659_FD93) >> 40;
        self.stripe_number(spread % STRIPES)
    }

    /// One of the [`STRIPES`] data locks.
    pub(crate) const fn stripe_number(&self, number: u64) -> ArenaOffset {
        self.stripes.start.add(number * STRIPE_LOCK_BYTES)
    }

    /// The counters of a thread slot.
    pub(crate) const fn counters_of(&self, slot: u32) -> ArenaOffset {
        self.counters.start.add(slot as u64 * COUNTER_WORDS * 8)
    }

    /// The record of an inode, whose number the caller has checked.
    pub(crate) const fn record(&self, inode: u32) -> ArenaOffset {
        self.records.start.add(self.backed_words * 8 + inode as u64 * RECORD_BYTES)
    }

    /// Whether an inode of that number can be.
    #[inline(always)]
    pub(crate) const fn has_record(&self, inode: u32) -> bool {
        (inode as u64) * RECORD_BYTES < self.records.bytes - self.backed_words * 8
    }

    /// Gets memory for everything of the engine that is used as a whole, so that touching it cannot fail. Of the threads' counters the first
    /// few have theirs at once.
    pub(crate) fn reserve(&self, arena: &Arena) -> Result<()> {
        let counters =
            Region { bytes: self.counters_of(THREADS_AT_ONCE).get() - self.counters.start.get(), ..self.counters };
        let backed = Region { bytes: self.backed_words * 8, ..self.records };
        for region in [self.stripes, self.samples, counters, self.share_groups, backed] {
            arena.allocate(region.start, region.bytes).map_err(shared_error)?;
        }
        Ok(())
    }

    /// Gets memory for what a thread slot has of the engine's.
    pub(crate) fn reserve_slot(&self, arena: &Arena, slot: u32) -> gannet_shm::Result<()> {
        if slot < THREADS_AT_ONCE { Ok(()) } else { arena.reserve(self.counters_of(slot), COUNTER_WORDS * 8) }
    }

    /// What a lock protects, for people.
    pub(crate) fn lock_text(&self, at: ArenaOffset) -> String {
        let within = |region: &Region| at.get().checked_sub(region.start.get()).is_some_and(|by| by < region.bytes);
        match self.inode_of_lock(at) {
            Some(inode) => format!("inode {inode}"),
            None if within(&self.stripes) => "the data of a file".to_owned(),
            None if at == self.control(CONTROL_RENAME_LOCK) => "moving directories".to_owned(),
            None if at == self.control(CONTROL_NEED_LOCK) => "collecting a log on a full volume".to_owned(),
            None if at == self.control(CONTROL_RECOUNT_LOCK) => "counting what is free".to_owned(),
            None if at == self.control(CONTROL_CHUNK_LOCK) => "making room for inodes".to_owned(),
            None => format!("shared state at {at}"),
        }
    }

    /// The inode whose record's lock stands at `at`, if it is one.
    pub(crate) fn inode_of_lock(&self, at: ArenaOffset) -> Option<u32> {
        let within = at.get().checked_sub(self.record(0).get())?;
        (within < self.records.bytes - self.backed_words * 8 && within.is_multiple_of(RECORD_BYTES))
            .then_some((within / RECORD_BYTES) as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gannet_shm::{ArenaIdentity, Error, Session, VolumeGuard, VolumeIdentity};
    use std::sync::Arc;

    struct Nothing;

    impl VolumeGuard for Nothing {
        fn first(&mut self, _: &Arc<Session>, _: ArenaIdentity) -> gannet_shm::Result<()> {
            Ok(())
        }

        fn joined(&mut self, _: &Arc<Session>, _: ArenaIdentity) -> gannet_shm::Result<()> {
            Ok(())
        }

        fn last(&mut self, _: &Session, _: ArenaIdentity) -> gannet_shm::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn who_knows_other_features_does_not_join() {
        let layout = || Places::layout(&Geometry::of(4096).expect("a geometry"), 1 << 20);
        let identity = VolumeIdentity { uuid: *b"what all know of", nonce: u64::from(std::process::id()) };
        let session = Session::attach(identity, &layout(), &mut Nothing).expect("attach");
        let joined = Session::attach(identity, &layout(), &mut Nothing).expect("join");
        joined.detach(&mut Nothing).expect("detach");
        let other = Session::attach(identity, &layout().agreed(0), &mut Nothing);
        assert!(matches!(other, Err(Error::OtherVersion { .. })), "{other:?}");
        session.detach(&mut Nothing).expect("detach");
    }
}
