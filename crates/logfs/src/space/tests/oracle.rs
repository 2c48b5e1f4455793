//! Allocation and release against a plain map of blocks, by one thread and by several.

use super::random::Random;
use super::{Extent, Held, SpaceError, SpaceLayout, effort, private};
use std::sync::atomic::{AtomicU8, Ordering::SeqCst};

/// Takes what was allocated in a plain map; panics if it was taken.
fn claim(map: &[AtomicU8], extent: Extent) {
    for block in extent.start..extent.end() {
        assert_eq!(map[block as usize].swap(1, SeqCst), 0, "block {block} given away twice");
    }
}

fn unclaim(map: &[AtomicU8], extent: Extent) {
    for block in extent.start..extent.end() {
        assert_eq!(map[block as usize].swap(0, SeqCst), 1);
    }
}

#[test]
fn layouts_cover_the_volume() {
    for blocks in [0, 1, 511, 512, 16384, 16385, 1 << 20, (1 << 20) + 77, 1 << 28, (1 << 34) - 1, u64::MAX] {
        let layout = SpaceLayout::for_blocks(blocks);
        assert!(layout.pools() >= 1 && layout.pools() <= 64);
        assert!(layout.pools() * layout.pool_blocks() >= layout.blocks());
        assert!((layout.pools() - 1) * layout.pool_blocks() <= layout.blocks());
        assert!(layout.pool_blocks() >= 16384 && layout.pool_blocks().is_power_of_two());
        assert!(layout.bytes_at_once() <= layout.bytes());
    }
    let large = SpaceLayout::for_blocks(1 << 28);
    assert!(large.bytes_at_once() < (1 << 40) / 30_000);
}

#[test]
fn one_thread_agrees_with_the_oracle() {
    for seed in 0..6 * effort() {
        let blocks = 16384 * (1 + seed % 3) + seed * 77;
        let (session, rig) = private(blocks);
        let (space, thread) = (rig.space(&session), session.thread().unwrap());
        let map: Vec<AtomicU8> = (0..blocks).map(|_| AtomicU8::new(0)).collect();
        let mut random = Random(seed);
        let (mut owned, mut used): (Vec<Extent>, u64) = (Vec::new(), 0);
        for step in 0..3000u64 {
            let growing = (step / 500) % 2 == 0;
            if random.below(10) < if growing { 7 } else { 3 } {
                let want = [1, 1, 3, 40, 511, 512, 1024, 5000][random.below(8) as usize];
                let goal = (random.below(3) == 0).then(|| random.below(blocks + 10));
                let whole = want >= 512 && random.below(4) == 0;
                match space.allocate(&thread, want, goal, whole) {
                    Ok(held) => {
                        let extent = held.extent();
                        assert!(extent.count >= 1 && extent.count <= want);
                        assert_eq!(rig.layout.pool_of(extent.start), rig.layout.pool_of(extent.end() - 1));
                        if whole {
                            assert!(extent.start % 512 == 0 && extent.count % 512 == 0);
                        }
                        if let Some(goal) = goal.filter(|&goal| goal < blocks && !whole) {
                            let is_free = |block: &u64| map[*block as usize].load(SeqCst) == 0;
                            let pool_end = (rig.layout.pool_of(goal) + 1) * rig.layout.pool_blocks();
                            let end = blocks.min(pool_end).min(goal + u64::from(want));
                            let mut run = (goal..end).take_while(is_free).count() as u64;
                            if want >= 512 && run < u64::from(want) {
                                run = run.saturating_sub((goal + run) % 512);
                            }
                            if run > 0 {
                                assert_eq!((extent.start, u64::from(extent.count)), (goal, run));
                            } else if want < 512 {
                                assert_ne!(extent.start, goal);
                            }
                        }
                        claim(&map, extent);
                        used += u64::from(extent.count);
                        space.keep(&thread, held);
                        owned.push(extent);
                    }
                    Err(SpaceError::Full) => assert!(whole || used == blocks, "{used} of {blocks} used"),
                    Err(error) => panic!("{error:?}"),
                }
            } else if !owned.is_empty() {
                let mut extent = owned.swap_remove(random.below(owned.len() as u64) as usize);
                if extent.count > 1 && random.below(2) == 0 {
                    let rest = extent.count / 2;
                    extent.count -= rest;
                    owned.push(Extent { start: extent.end(), count: rest });
                }
                unclaim(&map, extent);
                used -= u64::from(extent.count);
                let held = space.hold(&thread, extent).unwrap();
                space.release(&thread, held).unwrap();
            }
            assert_eq!(space.free_blocks(), blocks - used);
            if step % 50 == 0 {
                assert_eq!(space.verify(), Ok(()));
                for block in 0..blocks {
                    assert_eq!(space.is_free(block), map[block as usize].load(SeqCst) == 0);
                }
            }
        }
    }
}

#[test]
fn every_block_can_be_had_and_no_other() {
    let blocks = 16384 + 700;
    let (session, rig) = private(blocks);
    let (space, thread) = (rig.space(&session), session.thread().unwrap());
    let map: Vec<AtomicU8> = (0..blocks).map(|_| AtomicU8::new(0)).collect();
    let mut taken = 0;
    while let Ok(held) = space.allocate(&thread, 37, None, false) {
        claim(&map, held.extent());
        taken += u64::from(held.extent().count);
        space.keep(&thread, held);
    }
    assert_eq!((taken, space.free_blocks()), (blocks, 0));
    // One extent over both pools.
    let all = Extent { start: 0, count: blocks as u32 };
    let held = space.hold(&thread, all).unwrap();
    space.release(&thread, held).unwrap();
    assert_eq!(space.free_blocks(), blocks);
    assert_eq!(space.verify(), Ok(()));
    for extent in
        [Extent { start: blocks, count: 1 }, Extent { start: 0, count: 0 }, Extent { start: 1, count: blocks as u32 }]
    {
        assert!(matches!(space.hold(&thread, extent), Err(SpaceError::Invalid)));
    }
}

#[test]
fn large_requests_get_whole_groups_and_small_ones_leave_them() {
    let (session, rig) = private(16384);
    let (space, thread) = (rig.space(&session), session.thread().unwrap());
    let one = space.allocate(&thread, 1, None, false).unwrap();
    let two = space.allocate(&thread, 1024, None, false).unwrap();
    assert_eq!((two.extent().start % 512, two.extent().count), (0, 1024));
    // Small ones fill the first group up before another is opened.
    for _ in 0..511 {
        let held = space.allocate(&thread, 1, None, false).unwrap();
        assert_eq!(held.extent().start / 512, one.extent().start / 512);
        space.keep(&thread, held);
    }
    assert!(space.allocate(&thread, 511, None, true).is_err());
    let held = space.allocate(&thread, 16384, None, true).unwrap();
    assert_eq!(held.extent().count, 16384 - 1536);
    assert!(matches!(space.allocate(&thread, 1, None, false), Err(SpaceError::Full)));
    for held in [one, two, held] {
        space.release(&thread, held).unwrap();
    }
}

/// Extents of one file that a map shows as huge pages agree in where they begin, as groups and as bytes of the file.
#[test]
fn a_large_request_goes_on_only_to_the_end_of_a_group() {
    let (session, rig) = private(16384);
    let (space, thread) = (rig.space(&session), session.thread().unwrap());
    // A block in use 21 blocks behind the end of a group.
    let wall = space.allocate(&thread, 1, Some(2 * 512 + 21), false).unwrap();
    let first = space.allocate(&thread, 4 * 512, Some(512), false).unwrap();
    assert_eq!(first.extent(), Extent { start: 512, count: 512 });
    let next = space.allocate(&thread, 3 * 512, Some(first.extent().end()), false).unwrap();
    assert_eq!((next.extent().start % 512, next.extent().count), (0, 3 * 512));
    // What is enough is taken, and small requests take what there is.
    let last = space.allocate(&thread, 30, Some(2 * 512), false).unwrap();
    assert_eq!(last.extent(), Extent { start: 2 * 512, count: 21 });
    for held in [wall, first, next, last] {
        space.release(&thread, held).unwrap();
    }
    let enough = space.allocate(&thread, 700, Some(3), false).unwrap();
    assert_eq!(enough.extent(), Extent { start: 3, count: 700 });
    space.release(&thread, enough).unwrap();
}

#[test]
fn threads_never_share_a_block() {
    let blocks = 3 * 16384;
    let (session, rig) = private(blocks);
    let map: Vec<AtomicU8> = (0..blocks).map(|_| AtomicU8::new(0)).collect();
    std::thread::scope(|scope| {
        for seed in 0..4 {
            let (session, map, rig) = (&session, &map, &rig);
            scope.spawn(move || {
                let (space, thread) = (rig.space(session), session.thread().unwrap());
                let mut random = Random(seed);
                let mut owned: Vec<Held> = Vec::new();
                for _ in 0..8000 * effort() {
                    if owned.len() < 12 && random.below(2) == 0 {
                        let want = [1, 1, 1, 20, 600, 4000][random.below(6) as usize];
                        let goal = owned.last().map(|held| held.extent().end());
                        if let Ok(held) = space.allocate(&thread, want, goal, false) {
                            claim(map, held.extent());
                            owned.push(held);
                        }
                    } else if let Some(held) = owned.pop() {
                        unclaim(map, held.extent());
                        space.release(&thread, held).unwrap();
                    }
                }
                for held in owned {
                    unclaim(map, held.extent());
                    space.release(&thread, held).unwrap();
                }
            });
        }
    });
    let space = rig.space(&session);
    assert_eq!(space.free_blocks(), blocks);
    assert_eq!(space.verify(), Ok(()));
}

#[test]
fn the_saved_map_comes_back() {
    let blocks = 16384 + 999;
    let (session, rig) = private(blocks);
    let (space, thread) = (rig.space(&session), session.thread().unwrap());
    for want in [1, 100, 700, 3] {
        let held = space.allocate(&thread, want, None, false).unwrap();
        space.keep(&thread, held);
    }
    let mut used = Vec::new();
    space.for_each_used_run(&mut |extent| used.push(extent));
    let saved: Vec<u64> = (0..rig.layout.pools()).flat_map(|index| space.words_of(index)).collect();
    assert_eq!(saved.len() as u64, blocks.div_ceil(64));
    let free = space.free_blocks();

    let (other_session, other_rig) = private(blocks);
    let other = other_rig.space(&other_session);
    assert_eq!(other.load(saved.iter().copied()), free);
    assert_eq!(other.verify(), Ok(()));
    let mut other_used = Vec::new();
    other.for_each_used_run(&mut |extent| other_used.push(extent));
    assert_eq!(used, other_used);

    // The same by marking, as after a crash; twice the same block is noticed.
    other.mark_all_free();
    for &extent in &used {
        assert_eq!(other.mark_used_shared(extent).unwrap(), 0);
    }
    assert_eq!(other.mark_used_shared(used[0]).unwrap(), u64::from(used[0].count));
    assert_eq!(other.recount_all(), free);
    // Bits behind the end count for nothing, words that are missing for used.
    assert_eq!(other.load(std::iter::repeat(u64::MAX)), blocks);
    assert_eq!(other.load([u64::MAX]), 64);
    assert_eq!(other.verify(), Ok(()));
}
