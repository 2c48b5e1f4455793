//! Pools that stand on the medium until they are used: each is read once, by whoever has its lock first, whoever is killed meanwhile.

use super::{INODES, Rig, arena_layout};
use crate::space::{Extent, SavedBits, SpaceError, SpaceLayout};
use gannet_shm::Session;
use gannet_shm::testing::{after_every_store, run_abandoned};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Three pools, the last of which is a piece of one.
const BLOCKS: u64 = 2 * 16384 + 700;
const HASH: u64 = 7;

/// All blocks are free but the first of each word, and one that never is.
#[derive(Default)]
struct Saved {
    reads: AtomicU64,
}

const NEVER_FREE: Extent = Extent { start: 16384 + 65, count: 1 };
const WORD: u64 = !1;

impl SavedBits for Saved {
    fn read(&self, index: u64, hash: u64, store: &mut dyn FnMut(usize, u64)) -> bool {
        self.reads.fetch_add(1, Ordering::Relaxed);
        let words = if index == 2 { 700_usize.div_ceil(64) } else { 256 };
        (0..words).for_each(|at| store(at, WORD));
        hash == HASH
    }

    fn never_free(&self) -> &[Extent] {
        &[NEVER_FREE]
    }
}

fn is_free(block: u64) -> bool {
    !block.is_multiple_of(64) && block != NEVER_FREE.start
}

fn free_of(index: u64) -> u64 {
    (index * 16384..BLOCKS.min((index + 1) * 16384)).filter(|&block| is_free(block)).count() as u64
}

/// Nothing of it was read yet; of pool `damaged` the hash is wrong.
fn unread(damaged: Option<u64>) -> (Arc<Session>, Rig, &'static Saved) {
    let session = Session::private(&arena_layout(BLOCKS)).unwrap();
    let saved: &'static Saved = Box::leak(Box::default());
    let rig = Rig::with_saved(&session, BLOCKS, Some(saved));
    assert_eq!(SpaceLayout::for_blocks(BLOCKS).pools(), 3);
    for index in 0..3 {
        rig.space(&session).leave(index, free_of(index), if damaged == Some(index) { HASH + 1 } else { HASH });
    }
    (session, rig, saved)
}

#[test]
fn a_pool_is_read_when_it_is_used() {
    let (session, rig, saved) = unread(None);
    let (space, thread) = (rig.space(&session), session.thread().unwrap());
    let free: u64 = (0..3).map(free_of).sum();
    assert_eq!((space.free_blocks(), space.verify(), saved.reads.load(Ordering::Relaxed)), (free, Ok(()), 0));
    // A block one would like to continue with is taken, though nobody has seen its pool.
    let held = space.allocate(&thread, 1, Some(16384 + 130), false).unwrap();
    assert_eq!((held.extent(), saved.reads.load(Ordering::Relaxed)), (Extent { start: 16384 + 130, count: 1 }, 1));
    let left: Vec<_> = (0..3).map(|index| space.left(index)).collect();
    assert_eq!(left, [Some((free_of(0), HASH)), None, Some((free_of(2), HASH))]);
    space.keep(&thread, held);
    // Used ones are not: one that is free in no pool, one that is never free.
    for block in [2 * 16384 + 64, NEVER_FREE.start] {
        assert_eq!(space.take_block(&thread, block).unwrap(), None);
    }
    assert_eq!(space.free_blocks(), free - 1);
    let held = space.allocate_within(&thread, 0, 64).unwrap().unwrap();
    assert_eq!(held.extent(), Extent { start: 1, count: 1 });
    space.release(&thread, held).unwrap();
    assert_eq!((space.verify(), saved.reads.load(Ordering::Relaxed), space.is_damaged()), (Ok(()), 3, false));
    for block in 0..BLOCKS {
        assert_eq!(space.is_free(block), is_free(block) && block != 16384 + 130, "{block}");
    }
    // All that is free can be had.
    let mut taken = 0;
    while let Ok(held) = space.allocate(&thread, 63, None, false) {
        taken += u64::from(held.extent().count);
        space.keep(&thread, held);
    }
    assert_eq!(taken, free - 1);
}

#[test]
fn of_a_damaged_pool_nothing_is_free_but_what_is_freed() {
    let (session, rig, _) = unread(Some(0));
    let (space, thread) = (rig.space(&session), session.thread().unwrap());
    let mut taken = 0;
    let error = loop {
        match space.allocate(&thread, 63, None, false) {
            Ok(held) => {
                assert!(held.extent().start >= 16384);
                taken += u64::from(held.extent().count);
                space.keep(&thread, held);
            }
            Err(error) => break error,
        }
    };
    assert_eq!((taken, space.is_damaged()), (free_of(1) + free_of(2), true));
    assert!(matches!(error, SpaceError::Damaged), "{error:?}");
    let freed = Extent { start: 640, count: 3 };
    let held = space.hold(&thread, freed).unwrap();
    space.release(&thread, held).unwrap();
    let held = space.allocate(&thread, 5, None, false).unwrap();
    assert_eq!((held.extent(), space.verify()), (freed, Ok(())));
    space.keep(&thread, held);
}

#[test]
fn who_reads_a_pool_can_be_killed_after_any_store() {
    let mut again = 0;
    let stores = after_every_store(|stores| {
        let (session, rig, saved) = unread(None);
        let outcome = run_abandoned(&[&session], stores, || {
            let (space, thread) = (rig.space(&session), session.thread().unwrap());
            let held = space.allocate(&thread, 5, Some(1), false).unwrap();
            rig.commit(&session, 1, 8, Some(held.extent()));
            space.keep(&thread, held);
        });
        rig.take_all(&session, INODES - 1).unwrap();
        session.reap_dead().unwrap();
        rig.take_all(&session, INODES - 2).unwrap();
        let space = rig.space(&session);
        let owned = |block: u64| {
            let slots = [(1, 8)].into_iter().chain((8..1024).flat_map(|slot| [(INODES - 1, slot), (INODES - 2, slot)]));
            slots
                .filter_map(|(inode, slot)| rig.slot(&session, inode, slot))
                .any(|extent| extent.start <= block && block < extent.end())
        };
        for block in (0..BLOCKS).filter(|block| block % 64 < 8) {
            assert_eq!(owned(block) || space.is_free(block), is_free(block), "block {block} after {stores} stores");
        }
        assert_eq!(space.verify(), Ok(()));
        again += u64::from(saved.reads.load(Ordering::Relaxed) > 3);
        outcome
    });
    assert!(stores > 256 && again > 200, "{stores} stores, read {again} times again");
}
