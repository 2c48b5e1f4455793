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

use crate::format::slot::Slot;
use crate::log::PageRoom;
use crate::ops::{Op, shared_error};
use crate::places::{
    CONTROL_RECOUNT_LOCK, CONTROL_RECOUNTED, CONTROL_RECOUNTING, CONTROL_SUSPECTS, CONTROL_UNCERTAIN, STRIPES,
    SUSPECTS_MAX,
};
use crate::record::Record;
use crate::shares::Shares;
use crate::space::{Extent, HAND_BLOCKS, Space, SpaceError};
use crate::storage::{self, HAND_INODES};
use crate::survey::Surveyed;
use gannet_shm::{ArenaOffset, Guard, Ordering};
use gannet_vfs::{Errno, Error, FileType, NodeId, Result};
use std::time::{Duration, Instant};

/// How long somebody else may have what is needed here.
const PATIENCE: Duration = Duration::from_millis(100);
const PAUSE: Duration = Duration::from_micros(50);
/// How often one looks for a lock before each pause: others who wait for it are at it all the time.
const TRIES: u32 = 1000;

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
        Extent::pieces(start, count).for_each(|extent| self.blocks.trust(extent));
    }
}

impl<'s> Op<'s> {
    /// Whether something may be lost that was not looked for yet. What a kill left is a number of references that is too high where blocks are
    /// shared: they are lost when the last reference goes, whenever that is.
    pub(crate) fn may_have_lost(&self) -> Result<bool> {
        let uncertain = self.control(CONTROL_UNCERTAIN)?;
        let shares = Shares::of(&self.core.places, self.thread.arena())?;
        Ok(uncertain != self.control(CONTROL_RECOUNTED)? || uncertain != 0 && shares.any())
    }

    /// Whether somebody counts at this moment.
    pub(crate) fn is_recounting(&self) -> Result<bool> {
        let lock_at = self.core.places.control(CONTROL_RECOUNT_LOCK);
        Ok(self.thread.read_begin(lock_at).map_err(shared_error)?.is_none())
    }

    /// Frees what is nobody's. `None` if somebody else is at it.
    ///
    /// # Errors
    /// `EBUSY` if somebody keeps what is needed, those of damaged logs, `ENOSPC` and `ENOMEM` if there is no memory for it. Then nothing was freed, or not all.
    pub(crate) fn recount(&self) -> Result<Option<Recounted>> {
        let word = |which| self.thread.word(self.core.places.control(which)).map_err(shared_error);
        let (recounting, recounted) = (word(CONTROL_RECOUNTING)?, word(CONTROL_RECOUNTED)?);
        let suspects = self.suspects()?;
        let lock = self.thread.try_lock(self.core.places.control(CONTROL_RECOUNT_LOCK)).map_err(shared_error)?;
        let Some(lock) = lock else { return Ok(None) };
        let uncertain = self.control(CONTROL_UNCERTAIN)?;
        // Before anything is suspect.
        recounting.swap(1, Ordering::SeqCst);
        let mut found = Recounted::default();
        let outcome = self.free_lost(&suspects, &mut found);
        if outcome.is_err() {
            // What they cost stays until the next count, if that fails.
            let _ = suspects.blocks.suspect_nobody(&self.thread);
            let _ = suspects.numbers.suspect_nobody(&self.thread);
        }
        recounting.store(0, Ordering::Release);
        if outcome.is_ok() {
            recounted.store(uncertain, Ordering::Release);
        }
        lock.unlock();
        match outcome {
            Err(error) if found == Recounted::default() => Err(error),
            _ => Ok(Some(found)),
        }
    }

    fn suspects(&self) -> Result<Suspects<'s>> {
        Ok(Suspects { blocks: self.core.space.blocks(self)?, numbers: self.core.space.inodes(self)? })
    }

    /// `found` is what is free by then, also where this fails.
    fn free_lost(&self, suspects: &Suspects<'_>, found: &mut Recounted) -> Result<()> {
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
        let mut nameless = self.made_by_the_dead()?;
        let mut room = PageRoom::default();
        // Behind the hands: what is made after this was in one of them, or free. Word by word: what a file system says of holes in its file
        // need not hold for what was stored a moment ago.
        for chunk in 0..geometry.chunks {
            let Some(block) = disk.chunk_block(chunk)? else { continue };
            suspects.trust_blocks(block, geometry.chunk_blocks);
            let slots = geometry.slots_per_chunk();
            for inode in (chunk * slots).max(1)..((chunk + 1) * slots).min(geometry.inodes()) {
                self.trust_inode(suspects, inode as u32, &mut room)?;
                nameless.extend(self.without_a_name(inode as u32)?);
            }
        }
        self.trust_what_is_moving(suspects)?;
        self.pass_all_stripes()?;
        found.inodes = suspects
            .numbers
            .free_suspects(thread, &mut |inode| self.is_lost_number(inode as u32).map_err(owned))
            .map_err(storage::error)?;
        let shares = Shares::of(&self.core.places, thread.arena())?;
        found.blocks = suspects
            .blocks
            .free_suspects(thread, &mut |block| shares.forget(block).map(|()| true).map_err(owned))
            .map_err(storage::error)?;
        let mut outcome = Ok(());
        for node in nameless {
            match self.retire_patiently(node) {
                Ok(is_free) => found.files += u64::from(is_free),
                Err(error) => outcome = Err(error),
            }
        }
        self.made_by_the_dead()?;
        outcome
    }

    /// Whether a number that is in nobody's hands is free, durably: it may be another inode's at once.
    fn is_lost_number(&self, inode: u32) -> Result<bool> {
        // It may have been in the making when its slot was looked at.
        if !matches!(self.disk().slot(inode)?, Slot::Free { .. }) {
            return Ok(false);
        }
        self.make_durably_free(inode as u64).map(|()| true)
    }

    /// Waits for all who write in place, and makes all who read look again: those who were at blocks of which a log said nothing any more
    /// when it was read, and for whom the one who took them away was killed waiting.
    fn pass_all_stripes(&self) -> Result<()> {
        for stripe in 0..STRIPES {
            self.lock_patiently(self.core.places.stripe_number(stripe))?.unlock();
        }
        Ok(())
    }

    /// Frees an inode without a name, unless somebody uses it, and returns whether it is free.
    fn retire_patiently(&self, node: NodeId) -> Result<bool> {
        self.record(node.number as u32)?;
        self.lock_patiently(self.core.places.record(node.number as u32))?.unlock();
        self.retire(node)?;
        Ok(!self.is_in_use_on_the_medium(node)?)
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
            let slot = self.disk().slot(node.number as u32)?;
            if matches!(slot, Slot::Used { generation, links: 0, .. } if generation == node.generation) {
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
                self.wait(began)?;
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
    fn trust_inode(&self, suspects: &Suspects<'_>, inode: u32, room: &mut PageRoom) -> Result<()> {
        if !self.has_record(inode) {
            // Nobody has had it since the volume was opened, unless one has come meanwhile.
            let trusted = self.trust_slot(suspects, inode, None, room);
            if !self.has_record(inode) {
                return trusted;
            }
        }
        let record = self.record(inode)?;
        // Also where the slot is free: who frees what it held has the lock.
        let lock = self.lock_patiently(self.core.places.record(inode))?;
        let trusted = self.trust_slot(suspects, inode, Some(&record), room);
        lock.unlock();
        trusted
    }

    fn trust_slot(
        &self,
        suspects: &Suspects<'_>,
        inode: u32,
        record: Option<&Record<'s>>,
        room: &mut PageRoom,
    ) -> Result<()> {
        let damaged = |what| Error::damaged(what, inode as u64);
        let (generation, birth) = match self.whole_slot(inode)? {
            Slot::Free { .. } => return Ok(()),
            Slot::Damaged => return Err(damaged("inode slot")),
            Slot::Used { generation, birth, .. } => (generation, birth),
        };
        suspects.trust_number(inode);
        let found = Surveyed::read(self.disk(), inode, generation, birth, room)?;
        // A log that ends too early would have what stands behind freed.
        let known = record.filter(|record| record.knows_end() && record.last_generation() == generation);
        let ends_there = known.is_none_or(|record| {
            let (pages, _) = record.log_use();
            record.tail() == found.end.tail.map(|tail| (tail.block, tail.line))
                && record.sequence() == found.end.next_sequence
                && u64::from(pages) == found.end.pages
        });
        if !ends_there || found.end.dangling != 0 {
            return Err(damaged("log: it does not end where it should"));
        }
        found.pages.iter().for_each(|&page| suspects.trust_blocks(page, 1));
        found.values.runs().for_each(|(_, block, count)| suspects.trust_blocks(block, count));
        found.map.iter().for_each(|extent| suspects.trust_blocks(extent.block, extent.count as u64));
        Ok(())
    }

    /// A lock, of whoever keeps it for a moment only.
    fn lock_patiently(&self, at: ArenaOffset) -> Result<Guard<'s>> {
        let began = Instant::now();
        loop {
            for _ in 0..TRIES {
                if let Some(lock) = self.thread.try_lock(at).map_err(shared_error)? {
                    return Ok(lock);
                }
                core::hint::spin_loop();
            }
            self.wait(began)?;
        }
    }

    /// Waits a moment, if it is not long since, and settles who was killed meanwhile.
    fn wait(&self, since: Instant) -> Result<()> {
        if since.elapsed() > PATIENCE {
            return Err(Error::because(Errno::BUSY, "somebody keeps what is needed to count what is free"));
        }
        self.thread.session().reap_dead().map_err(shared_error)?;
        crate::pause::pause(PAUSE);
        Ok(())
    }

    /// A number that was ready and is about to be an inode's.
    #[inline]
    pub(crate) fn trust_number(&self, inode: u32) -> Result<()> {
        match self.control(CONTROL_RECOUNTING)? {
            0 => Ok(()),
            _ => self.suspects().map(|suspects| suspects.trust_number(inode)),
        }
    }

    /// Blocks that another file refers to from now on, too. The locks of both are held.
    #[inline]
    pub(crate) fn trust_blocks(&self, start: u64, count: u64) -> Result<()> {
        match self.control(CONTROL_RECOUNTING)? {
            0 => Ok(()),
            _ => self.suspects().map(|suspects| suspects.trust_blocks(start, count)),
        }
    }
}

/// An error of the engine, as one of the free space's.
fn owned(error: Error) -> SpaceError {
    SpaceError::Shared(gannet_shm::Error::owner(error))
}
