//! Pins: what is freed while somebody has it mapped becomes free with the last pin, and not before.

use super::random::Random;
use super::{Extent, Rig, Space, SpaceError, effort, private};
use crate::space::PinOwner;
use gannet_shm::testing::{after_every_store, run_abandoned};
use gannet_shm::{Session, Thread};

const BLOCKS: u64 = 16384 + 2000;

fn take(space: &Space<'_>, thread: &Thread<'_>, extent: Extent) {
    for start in (extent.start..extent.end()).step_by(200) {
        let want = 200.min(extent.end() - start) as u32;
        let mut at = start;
        while at < start + u64::from(want) {
            let held = space.allocate(thread, (start + u64::from(want) - at) as u32, Some(at), false).unwrap();
            assert_eq!(held.extent().start, at);
            at = held.extent().end();
            space.keep(thread, held);
        }
    }
}

fn free(space: &Space<'_>, thread: &Thread<'_>, extent: Extent) {
    let held = space.hold(thread, extent).unwrap();
    space.release(thread, held).unwrap();
}

fn owner(participant: u32, token: u64) -> PinOwner {
    PinOwner { participant, token }
}

#[test]
fn pinned_blocks_are_free_only_after_the_last_pin() {
    let (session, rig) = private(BLOCKS);
    let (space, thread) = (rig.space(&session), session.thread().unwrap());
    let extent = Extent { start: 16384 - 300, count: 700 };
    take(&space, &thread, extent);
    space.pin(&thread, owner(1, 1), Extent { start: extent.start + 100, count: 400 }).unwrap();
    space.pin(&thread, owner(2, 9), Extent { start: extent.start + 300, count: 300 }).unwrap();
    space.copy_pins(&thread, 2, 3).unwrap();
    free(&space, &thread, extent);
    assert_eq!(space.free_blocks(), BLOCKS - 500);
    assert_eq!(space.verify(), Ok(()));
    assert_eq!(space.pinned().1, 500);
    space.unpin(&thread, owner(1, 1)).unwrap();
    assert_eq!(space.free_blocks(), BLOCKS - 300);
    assert!(space.is_free(extent.start + 299) && !space.is_free(extent.start + 300));
    space.drop_pins_of(&thread, 2).unwrap();
    assert_eq!(space.free_blocks(), BLOCKS - 300);
    space.unpin(&thread, owner(3, 9)).unwrap();
    assert_eq!((space.free_blocks(), space.pinned()), (BLOCKS, (0, 0)));
    assert_eq!(space.verify(), Ok(()));
}

#[test]
fn pins_agree_with_the_oracle() {
    for seed in 0..6 * effort() {
        let (session, rig) = private(BLOCKS);
        let (space, thread) = (rig.space(&session), session.thread().unwrap());
        let mut random = Random(seed);
        let mut used = vec![false; BLOCKS as usize];
        let mut pins: Vec<(PinOwner, Extent)> = Vec::new();
        let mut waiting = vec![false; BLOCKS as usize];
        // Around the border of two pools, so that everything meets.
        let near = |random: &mut Random| Extent {
            start: 16384 - 150 + random.below(200),
            count: 1 + random.below(120) as u32,
        };
        for _ in 0..600 {
            let extent = near(&mut random);
            let range = extent.start as usize..extent.end() as usize;
            match random.below(6) {
                0..2 => {
                    for block in range {
                        if !used[block] && !waiting[block] {
                            take(&space, &thread, Extent { start: block as u64, count: 1 });
                            used[block] = true;
                        }
                    }
                }
                2 if pins.len() < 12 && range.clone().all(|block| used[block]) => {
                    let owner = owner(random.below(3) as u32, random.below(3));
                    space.pin(&thread, owner, extent).unwrap();
                    pins.push((owner, extent));
                }
                3..5 if range.clone().all(|block| used[block]) => {
                    free(&space, &thread, extent);
                    for block in range {
                        used[block] = false;
                        let covers =
                            |pin: &&(PinOwner, Extent)| pin.1.start <= block as u64 && (block as u64) < pin.1.end();
                        waiting[block] = pins.iter().any(|pin| covers(&pin));
                    }
                }
                _ => {
                    let gone = owner(random.below(3) as u32, random.below(3));
                    if random.below(4) == 0 {
                        space.drop_pins_of(&thread, gone.participant).unwrap();
                        pins.retain(|pin| pin.0.participant != gone.participant);
                    } else {
                        space.unpin(&thread, gone).unwrap();
                        pins.retain(|pin| pin.0 != gone);
                    }
                    for block in 0..BLOCKS {
                        let pinned = pins.iter().any(|(_, pin)| pin.start <= block && block < pin.end());
                        waiting[block as usize] &= pinned;
                    }
                }
            }
            for block in 16384 - 200..16384 + 400 {
                assert_eq!(space.is_free(block), !used[block as usize] && !waiting[block as usize], "block {block}");
            }
            assert_eq!(space.verify(), Ok(()));
            assert_eq!(space.pinned().1, waiting.iter().filter(|waits| **waits).count() as u64);
        }
    }
}

#[test]
fn a_pool_full_of_pins_refuses_more() {
    let (session, rig) = private(BLOCKS);
    let (space, thread) = (rig.space(&session), session.thread().unwrap());
    let one = Extent { start: 5, count: 1 };
    take(&space, &thread, one);
    let mut pins = 0;
    let refused = loop {
        match space.pin(&thread, owner(1, pins), one) {
            Ok(()) => pins += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(refused, SpaceError::PinsFull));
    assert_eq!((pins, space.pinned().0), (65536, 65536));
    space.unpin(&thread, owner(1, 7)).unwrap();
    space.pin(&thread, owner(1, 7), one).unwrap();
    // Freed while all of them have it, and blocks of other groups, which none has.
    let other = Extent { start: 3 * 512 + 9, count: 600 };
    take(&space, &thread, other);
    assert!(space.is_pinned(&thread, Extent { start: 0, count: 9 }).unwrap());
    assert!(space.is_pinned(&thread, Extent { start: 5, count: 4000 }).unwrap());
    assert!(!space.is_pinned(&thread, Extent { start: 6, count: 4000 }).unwrap());
    free(&space, &thread, other);
    free(&space, &thread, one);
    assert_eq!((space.free_blocks(), space.pinned().1), (BLOCKS - 1, 1));
    space.drop_pins_of(&thread, 1).unwrap();
    assert_eq!((space.free_blocks(), space.pinned()), (BLOCKS, (0, 0)));
    assert_eq!(space.verify(), Ok(()));
}

#[test]
fn a_child_inherits_thousands_of_pins() {
    let (session, rig) = private(BLOCKS);
    let (space, thread) = (rig.space(&session), session.thread().unwrap());
    let whole = Extent { start: 0, count: 6000 };
    take(&space, &thread, whole);
    for start in 0..6000 {
        space.pin(&thread, owner(1, start / 3), Extent { start, count: 1 }).unwrap();
    }
    space.copy_pins(&thread, 1, 2).unwrap();
    assert_eq!(space.pinned().0, 12_000);
    free(&space, &thread, whole);
    space.drop_pins_of(&thread, 1).unwrap();
    assert_eq!((space.free_blocks(), space.pinned()), (BLOCKS - 6000, (6000, 6000)));
    for token in (0..2000).rev() {
        space.unpin(&thread, owner(2, token)).unwrap();
    }
    assert_eq!((space.free_blocks(), space.pinned()), (BLOCKS, (0, 0)));
    assert_eq!(space.verify(), Ok(()));
}

fn pin_and_free(session: &Session, rig: &Rig) {
    let (space, thread) = (rig.space(session), session.thread().unwrap());
    let guard = thread.lock(rig.lock_of(1)).unwrap();
    let [wide, narrow] = [Extent { start: 16384 - 100, count: 200 }, Extent { start: 16384 - 10, count: 30 }];
    space.pin(&thread, owner(40, 1), narrow).unwrap();
    let held = space.hold(&thread, wide).unwrap();
    rig.commit(session, 1, 20, None);
    space.release(&thread, held).unwrap();
    guard.unlock();
    space.unpin(&thread, owner(41, 2)).unwrap();
    space.unpin(&thread, owner(40, 1)).unwrap();
}

#[test]
fn pinning_freeing_and_unpinning_can_be_killed_after_any_store() {
    let stores = after_every_store(|stores| {
        let (session, rig) = private(BLOCKS);
        let (space, thread) = (rig.space(&session), session.thread().unwrap());
        let wide = Extent { start: 16384 - 100, count: 200 };
        space.mark_used(wide).unwrap();
        space.recount_all();
        rig.commit(&session, 1, 20, Some(wide));
        space.pin(&thread, owner(41, 2), Extent { start: 16384 - 50, count: 100 }).unwrap();
        let outcome = run_abandoned(&[&session], stores, || pin_and_free(&session, &rig));
        session.reap_dead().unwrap();
        rig.verify(&session);
        // The thread died, its participant did not: its pins are still there, and go with it.
        for participant in [40, 41] {
            space.drop_pins_of(&thread, participant).unwrap();
        }
        rig.verify(&session);
        assert_eq!(space.pinned(), (0, 0));
        outcome
    });
    assert!(stores > 30, "{stores}");
}
