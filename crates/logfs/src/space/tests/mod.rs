//! Tests of the free space. What they share: a rig with an arena, and inodes whose logs are a few words each.

mod abandonment;
mod aging;
mod garbage;
mod near;
mod oracle;
mod pinned;
mod processes;
mod random;
mod unread;

use super::{Extent, Held, SavedBits, Space, SpaceError, SpaceLayout};
use gannet_shm::{
    ArenaLayout, ArenaOffset, DeadThread, GoneParticipant, Ordering::*, ReapStage, Reaper, Session, Thread,
};
use random::Random;
use std::sync::Arc;

pub(super) const INODES: u64 = 4;
/// Words of an inode: the lock, and from word 8 on the settled log, an extent in each word.
const INODE_WORDS: u64 = 1024;
const SLOTS: std::ops::Range<u64> = 8..1024;
/// Those of the slots that operations use.
const USUAL_SLOTS: u64 = 32;

/// Where a test's structures stand.
#[derive(Clone, Copy)]
pub(super) struct Rig {
    pub(super) layout: SpaceLayout,
    space_at: ArenaOffset,
    inodes_at: ArenaOffset,
    /// Where pools stand that were not read yet.
    saved: Option<&'static dyn SavedBits>,
}

/// The arena for a volume of that many blocks.
pub(super) fn arena_layout(blocks: u64) -> ArenaLayout {
    let layout = SpaceLayout::for_blocks(blocks);
    ArenaLayout::new().limits(64, 64).region("space", layout.bytes(), 4096).region(
        "inodes",
        INODES * INODE_WORDS * 8,
        4096,
    )
}

impl Rig {
    /// Finds the structures of a session and registers what settles them.
    pub(super) fn of(session: &Session, blocks: u64) -> Rig {
        Self::with_saved(session, blocks, None)
    }

    fn with_saved(session: &Session, blocks: u64, saved: Option<&'static dyn SavedBits>) -> Rig {
        let at = |name| session.arena().region(name).unwrap().start;
        let layout = SpaceLayout::for_blocks(blocks);
        let rig = Rig { layout, space_at: at("space"), inodes_at: at("inodes"), saved };
        session.register_reaper(ReapStage::Hands, Arc::new(Settler(rig)));
        rig
    }

    pub(super) fn space<'a>(&self, session: &'a Session) -> Space<'a> {
        Space::new(session.arena(), self.space_at, self.layout).unwrap().with_saved(self.saved)
    }

    fn lock_of(&self, inode: u64) -> ArenaOffset {
        self.inodes_at.add(inode * INODE_WORDS * 8)
    }

    fn slot_at(&self, inode: u64, slot: u64) -> ArenaOffset {
        self.lock_of(inode).add(slot * 8)
    }

    fn slot(&self, session: &Session, inode: u64, slot: u64) -> Option<Extent> {
        Extent::unpack(session.word(self.slot_at(inode, slot)).unwrap().load(Acquire))
    }

    /// The commit of an operation: one store, after which the inode references the extent.
    fn commit(&self, session: &Session, inode: u64, slot: u64, extent: Option<Extent>) {
        let word = session.word(self.slot_at(inode, slot)).unwrap();
        word.store(extent.map_or(0, Extent::pack), Release);
    }

    /// A write, a copy-on-write or a truncation on a random part of an inode.
    fn operation(&self, session: &Session, inode: u64, random: &mut Random) -> Result<(), SpaceError> {
        let thread = session.thread()?;
        let space = self.space(session);
        let guard = thread.lock(self.lock_of(inode))?;
        let slot = SLOTS.start + random.below(USUAL_SLOTS);
        let old = self.slot(session, inode, slot);
        let held = old.map(|old| space.hold(&thread, old)).transpose()?;
        let new = if held.is_none() || random.below(2) == 0 { self.new_blocks(&space, &thread, random)? } else { None };
        let used = new.as_ref().map(|new| 1 + random.below(u64::from(new.extent().count)) as u32);
        let extent = new.as_ref().zip(used).map(|(new, used)| Extent { start: new.extent().start, count: used });
        self.commit(session, inode, slot, extent);
        if let Some((new, used)) = new.zip(used) {
            space.keep_first(&thread, new, used)?;
        }
        if let Some(held) = held {
            space.release(&thread, held)?;
        }
        guard.unlock();
        Ok(())
    }

    /// Takes everything that is free into an inode, as far as it has slots: whatever is freed by mistake from now on
    /// has another owner.
    pub(super) fn take_all(&self, session: &Session, inode: u64) -> Result<(), SpaceError> {
        let thread = session.thread()?;
        let space = self.space(session);
        let guard = thread.lock(self.lock_of(inode))?;
        for slot in SLOTS.start + USUAL_SLOTS..SLOTS.end {
            let Ok(held) = space.allocate(&thread, 20_000, None, false) else { break };
            self.commit(session, inode, slot, Some(held.extent()));
            space.keep(&thread, held);
        }
        guard.unlock();
        Ok(())
    }

    fn new_blocks(
        &self,
        space: &Space<'_>,
        thread: &Thread<'_>,
        random: &mut Random,
    ) -> Result<Option<Held>, SpaceError> {
        let want = match random.below(6) {
            0 => 1 + random.below(3000),
            1 => 512,
            _ => 1 + random.below(200),
        } as u32;
        let goal = (random.below(2) == 0).then(|| random.below(self.layout.blocks()));
        match space.allocate(thread, want, goal, want == 512 && random.below(2) == 0) {
            Ok(held) => Ok(Some(held)),
            Err(SpaceError::Full) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Every block is free, referenced once, or freed and pinned; and the counters are right.
    pub(super) fn verify(&self, session: &Session) {
        let space = self.space(session);
        let mut owners = vec![0u8; self.layout.blocks() as usize];
        for inode in 0..INODES {
            for extent in SLOTS.filter_map(|slot| self.slot(session, inode, slot)) {
                (extent.start..extent.end()).for_each(|block| owners[block as usize] += 1);
            }
        }
        let waiting = space.deferred_blocks();
        waiting.iter().for_each(|&block| owners[block as usize] += 1);
        for (block, owners) in owners.iter().enumerate() {
            let free = space.is_free(block as u64);
            assert_eq!(u64::from(*owners) + u64::from(free), 1, "block {block}: {owners} owners, free: {free}");
        }
        assert_eq!(space.verify(), Ok(()));
    }
}

struct Settler(Rig);

impl Reaper for Settler {
    fn settle(&self, dead: &DeadThread<'_>) -> gannet_shm::Result<()> {
        let Settler(rig) = self;
        let reaper = dead.reaper();
        let session = reaper.session();
        let locked: Vec<u64> = (0..INODES).filter(|&inode| dead.holds(rig.lock_of(inode))).collect();
        let slots = locked.iter().flat_map(|&inode| SLOTS.map(move |slot| (inode, slot)));
        let extents: Vec<Extent> = slots.filter_map(|(inode, slot)| rig.slot(session, inode, slot)).collect();
        let referenced = |block: u64| extents.iter().any(|extent| extent.start <= block && block < extent.end());
        rig.space(session).settle(dead, &referenced).map_err(to_shared)
    }

    fn participant_gone(&self, gone: &GoneParticipant<'_>) -> gannet_shm::Result<()> {
        let reaper = gone.reaper;
        self.0.space(reaper.session()).drop_pins_of(&reaper, gone.info.id.index).map_err(to_shared)
    }
}

fn to_shared(error: SpaceError) -> gannet_shm::Error {
    match error {
        SpaceError::Shared(error) => error,
        _ => gannet_shm::Error::Full { what: "block" },
    }
}

/// A volume of that many blocks, all free, with a private arena.
pub(super) fn private(blocks: u64) -> (Arc<Session>, Rig) {
    let session = Session::private(&arena_layout(blocks)).unwrap();
    let rig = Rig::of(&session, blocks);
    rig.space(&session).mark_all_free();
    assert_eq!(rig.space(&session).recount_all(), blocks);
    (session, rig)
}

/// How many times as much to do in a long campaign.
pub(super) fn effort() -> u64 {
    if std::env::var_os("GANNET_LONG").is_some() { 30 } else { 1 }
}
