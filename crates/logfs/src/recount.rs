//! Counting what is free beside living users: where one of them was killed, what it was freeing may count as used and be nobody's.
//! Who opens the volume alone counts all anew (`recover`); this finds the same while others work.
//!
//! Marks and sweeps, with a snapshot at the beginning (`space/suspects.rs`): what is in use is suspect, until
//!
//! | somebody | because |
//! | --- | --- |
//! | has it in hand, or has given it up | those words are read, twice: before the inodes and behind them |
//! | frees it | it was somebody's: `Pool::trust` |
//! | takes a number that is ready, or shares a block that another file has | it gets to where has been looked already: [`Op::trust_number`], [`Op::trust_blocks`] |
//! | refers to it in a log | each log is read under its inode's lock |
//!
//! What is left is lost. So are inodes without a name that nobody uses: who took the last name was killed before he freed them.
//!
//! Between a log and the hands a block is nobody's only under the lock of the log's inode, and between limbo and the
//! hands only while the thread says so (`limbo`): both are waited for.
//!
//! Nobody waits for this but at an inode whose log is being read. It waits for nobody long: where somebody keeps a lock, as who is stopped does,
//! it is given up, and nothing is freed. So it is where a log is damaged.
//!
//! May touch: the suspects; of the medium nothing. Relies on: the caller having no lock, and the dead being settled.

use crate::disk::Chunk;
use crate::file_map::FileMap;
use crate::format::entry::Owned;
use crate::format::slot::Slot;
use crate::log::{self, Met};
use crate::ops::{Op, shared_error};
use crate::places::{
    CONTROL_RECOUNT_LOCK, CONTROL_RECOUNTED, CONTROL_RECOUNTING, CONTROL_SUSPECTS, CONTROL_UNCERTAIN, SUSPECTS_MAX,
};
use crate::shares::Shares;
use crate::space::{Extent, HAND_BLOCKS, Space, SpaceError};
use crate::storage::{self, HAND_INODES};
use crate::survey::Values;
use gannet_shm::{Guard, Ordering};
use gannet_vfs::{Errno, Error, FileType, NodeId, Result};
use std::time::{Duration, Instant};

/// How long somebody else may have what is needed here.
const PATIENCE: Duration = Duration::from_millis(100);
const PAUSE: Duration = Duration::from_micros(50);

/// What was lost, and is free again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recounted {
    /// Blocks of 4 KiB.
    pub blocks: u64,
    /// Inode numbers.
    pub inodes: u64,
    /// Inodes that had no name and no user.
    pub files: u64,
}

/// The two maps, and what is suspect in them.
struct Suspects<'s> {
    blocks: Space<'s>,
    numbers: Space<'s>,
}

impl Suspects<'_> {
    fn trust_number(&self, inode: u32) {
        self.numbers.trust(Extent { start: inode as u64, count: 1 });
    }

    /// A run of blocks, however long.
    fn trust_blocks(&self, start: u64, count: u64) {
        for_each_extent(start, count, |extent| self.blocks.trust(extent));
    }
}

fn for_each_extent(mut start: u64, count: u64, mut visit: impl FnMut(Extent)) {
    let mut left = count;
    while left > 0 {
        let count = left.min((1 << 24) - 1) as u32;
        visit(Extent { start, count });
        (start, left) = (start + count as u64, left - count as u64);
    }
}

impl<'s> Op<'s> {
    /// Whether something may be lost that was not looked for yet.
    pub(crate) fn may_have_lost(&self) -> Result<bool> {
        Ok(self.control(CONTROL_UNCERTAIN)? != self.control(CONTROL_RECOUNTED)?)
    }

    /// Frees what is nobody's. `None` if somebody else is at it.
    ///
    /// # Errors
    /// `EBUSY` if somebody keeps what is needed, those of damaged logs, `ENOSPC` and `ENOMEM` if there is no memory for it. Then nothing was freed, or not all.
    pub(crate) fn recount(&self) -> Result<Option<Recounted>> {
        let word = |which| self.thread.word(self.core.places.control(which)).map_err(shared_error);
        let lock = self.thread.try_lock(self.core.places.control(CONTROL_RECOUNT_LOCK)).map_err(shared_error)?;
        let Some(lock) = lock else { return Ok(None) };
        let uncertain = self.control(CONTROL_UNCERTAIN)?;
        // Before anything is suspect.
        word(CONTROL_RECOUNTING)?.swap(1, Ordering::SeqCst);
        let suspects = Suspects { blocks: self.core.space.blocks(self)?, numbers: self.core.space.inodes(self)? };
        let found = self.free_lost(&suspects);
        if found.is_err() {
            for space in [&suspects.blocks, &suspects.numbers] {
                space.suspect_nobody(&self.thread).map_err(storage::error)?;
            }
        }
        word(CONTROL_RECOUNTING)?.store(0, Ordering::Release);
        if found.is_ok() {
            word(CONTROL_RECOUNTED)?.store(uncertain, Ordering::Release);
        }
        lock.unlock();
        found.map(Some)
    }

    fn free_lost(&self, suspects: &Suspects<'_>) -> Result<Recounted> {
        let (disk, thread) = (self.disk(), &self.thread);
        for space in [&suspects.blocks, &suspects.numbers] {
            space.suspect(thread).map_err(storage::error)?;
        }
        self.trust_what_is_moving(suspects)?;
        let geometry = disk.geometry();
        suspects.trust_blocks(0, geometry.first_free);
        suspects.trust_blocks(geometry.replica(), 1);
        geometry.headers().for_each(|block| suspects.trust_blocks(block, 1));
        suspects.trust_number(0);
        // Behind the hands: what is made after this was in one of them, or free.
        let chunks = disk.chunks()?;
        let mut nameless = self.made_by_the_dead()?;
        for &Chunk { number, block } in &chunks {
            suspects.trust_blocks(block as u64, geometry.chunk_blocks);
            let slots = geometry.slots_per_chunk();
            for inode in number as u64 * slots..(number as u64 + 1) * slots {
                if inode != 0 && inode < geometry.inodes() {
                    self.trust_inode(suspects, inode as u32)?;
                    nameless.extend(self.without_a_name(inode as u32)?);
                }
            }
        }
        self.trust_what_is_moving(suspects)?;
        let inodes = suspects.numbers.free_suspects(thread, &mut |inode| {
            // One that was being born when its slot was looked at.
            Ok(matches!(disk.slot(inode as u32).map_err(owned)?, Slot::Free { .. }))
        });
        let shares = Shares::of(&self.core.places, thread.arena())?;
        let blocks =
            suspects.blocks.free_suspects(thread, &mut |block| shares.forget(block).map(|()| true).map_err(owned));
        let mut found =
            Recounted { blocks: blocks.map_err(storage::error)?, inodes: inodes.map_err(storage::error)?, files: 0 };
        for node in nameless {
            self.retire(node)?;
            found.files += u64::from(!self.is_in_use_on_the_medium(node)?);
        }
        self.made_by_the_dead()?;
        Ok(found)
    }

    /// An inode that had a name and has none. Whoever took it frees the inode, too, unless he was killed in between or it is in use.
    fn without_a_name(&self, inode: u32) -> Result<Option<NodeId>> {
        let node = |generation| NodeId::new(inode as u64, generation);
        Ok(match self.disk().slot(inode)? {
            // A file that never had a name is its maker's.
            Slot::Used { generation, links: 0, changed, birth, .. }
                if changed != 0 || birth.file_type == FileType::Directory =>
            {
                Some(node(generation))
            }
            _ => None,
        })
    }

    /// Files without a name that dead threads made and may not have come to open. Forgets those that are no more.
    fn made_by_the_dead(&self) -> Result<Vec<NodeId>> {
        let at = self.core.places.control(CONTROL_SUSPECTS);
        let mut nodes = Vec::new();
        for word in self.thread.arena().words(at, SUSPECTS_MAX).map_err(shared_error)? {
            let made = word.load(Ordering::Acquire);
            let node = NodeId::new(made >> 32, made as u32);
            if made != 0 && self.is_in_use_on_the_medium(node)? {
                nodes.push(node);
            } else if made != 0 {
                let _ = word.compare_exchange(made, 0, Ordering::AcqRel, Ordering::Relaxed);
            }
        }
        Ok(nodes)
    }

    fn is_in_use_on_the_medium(&self, node: NodeId) -> Result<bool> {
        let slot = self.disk().slot(node.number as u32)?;
        Ok(matches!(slot, Slot::Used { generation, .. } if generation == node.generation))
    }

    /// Trusts what threads have in hand, what is in limbo, and what is on its way from there.
    fn trust_what_is_moving(&self, suspects: &Suspects<'_>) -> Result<()> {
        let limbo = || {
            self.for_each_in_limbo(&mut |run| suspects.blocks.trust(run), &mut |number| suspects.trust_number(number))
        };
        // What leaves limbo from here on is trusted, ...
        limbo()?;
        // ... and what has left it before gets to where it can be seen.
        let began = Instant::now();
        for slot in 0..self.thread.session().slots_used() {
            while self.is_between(slot)? {
                wait(began)?;
            }
        }
        self.thread.session().for_each_hand(&mut |hand| {
            let space = match hand.kind {
                HAND_BLOCKS => &suspects.blocks,
                HAND_INODES => &suspects.numbers,
                _ => return,
            };
            if let Some(extent) = Extent::unpack(hand.a) {
                space.trust(extent);
            }
        });
        limbo()
    }

    /// Trusts an inode that is in use, and all that its log refers to.
    fn trust_inode(&self, suspects: &Suspects<'_>, inode: u32) -> Result<()> {
        if !self.has_record(inode) {
            // Nobody has had it since the volume was opened, unless one has come meanwhile.
            let trusted = self.trust_slot(suspects, inode, None);
            if !self.has_record(inode) {
                return trusted;
            }
        }
        // Also where the slot is free: who frees what it held has the lock.
        let lock = self.lock_patiently(inode)?;
        let record = self.record(inode)?;
        let tail = record.state().map(|_| record.tail());
        let trusted = self.trust_slot(suspects, inode, tail);
        lock.unlock();
        trusted
    }

    /// `tail` is where the log ends, if that is known.
    fn trust_slot(&self, suspects: &Suspects<'_>, inode: u32, tail: Option<Option<(u64, u32)>>) -> Result<()> {
        let disk = self.disk();
        let damaged = |what| Error::damaged(what, inode as u64);
        let (generation, birth) = match disk.slot(inode)? {
            Slot::Free { .. } => return Ok(()),
            Slot::Damaged => return Err(damaged("inode slot")),
            Slot::Used { generation, birth, .. } => (generation, birth),
        };
        suspects.trust_number(inode);
        let mut map = FileMap::default();
        let mut values = Values::default();
        let end = log::walk(disk, Owned { key: disk.key(), inode, generation }, birth.head, &mut |met| {
            match met {
                Met::Page { block, .. } => suspects.trust_blocks(block, 1),
                Met::Entry { entry, .. } => {
                    map.apply(&entry.payload);
                    values.apply(&entry.payload);
                }
            }
            Ok(())
        })?;
        // A log that ends too early would have what stands behind freed.
        if tail.is_some_and(|tail| tail != end.tail.map(|tail| (tail.block, tail.line))) {
            return Err(damaged("log: ends where it did not"));
        }
        if birth.file_type == FileType::Regular {
            map.iter().for_each(|extent| suspects.trust_blocks(extent.block, extent.count as u64));
        }
        values.runs().for_each(|(_, block, count)| suspects.trust_blocks(block, count));
        Ok(())
    }

    /// An inode's lock, of whatever generation, loaded or not.
    fn lock_patiently(&self, inode: u32) -> Result<Guard<'s>> {
        self.record(inode)?;
        let began = Instant::now();
        loop {
            if let Some(lock) = self.thread.try_lock(self.core.places.record(inode)).map_err(shared_error)? {
                return Ok(lock);
            }
            // Somebody may have been killed meanwhile.
            self.thread.session().reap_dead().map_err(shared_error)?;
            wait(began)?;
        }
    }

    /// A number that was ready and is about to be an inode's.
    #[inline]
    pub(crate) fn trust_number(&self, inode: u32) -> Result<()> {
        match self.control(CONTROL_RECOUNTING)? {
            0 => Ok(()),
            _ => self.core.space.inodes(self).map(|space| space.trust(Extent { start: inode as u64, count: 1 })),
        }
    }

    /// Blocks that another file refers to from now on, too. The locks of both are held.
    #[inline]
    pub(crate) fn trust_blocks(&self, start: u64, count: u64) -> Result<()> {
        if self.control(CONTROL_RECOUNTING)? != 0 {
            let space = self.core.space.blocks(self)?;
            for_each_extent(start, count, |extent| space.trust(extent));
        }
        Ok(())
    }
}

/// An error of the engine, as one of the free space's.
fn owned(error: Error) -> SpaceError {
    SpaceError::Shared(gannet_shm::Error::owner(error))
}

fn wait(since: Instant) -> Result<()> {
    if since.elapsed() > PATIENCE {
        return Err(Error::because(Errno::BUSY, "somebody keeps what is needed to count what is free"));
    }
    std::thread::sleep(PAUSE);
    Ok(())
}
