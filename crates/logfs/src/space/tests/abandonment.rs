//! A thread is abandoned after every single store, and so is the one that settles what it left: no block is lost,
//! none has two owners.

use super::random::Random;
use super::{Rig, effort, private};
use gannet_shm::Session;
use gannet_shm::testing::{Outcome, after_every_store, run_abandoned};
use std::sync::Arc;

const BLOCKS: u64 = 16384 + 512;

/// Some operations, the same for the same seed.
fn work(session: &Session, rig: &Rig, inode: u64, seed: u64, operations: u64) {
    let mut random = Random(seed);
    for _ in 0..operations {
        rig.operation(session, inode, &mut random).unwrap();
    }
}

/// A volume with something on it.
fn used(seed: u64) -> (Arc<Session>, Rig) {
    let (session, rig) = private(BLOCKS);
    for inode in 0..super::INODES {
        work(&session, &rig, inode, seed + inode, 12);
    }
    (session, rig)
}

#[test]
fn a_kill_after_any_store_loses_and_doubles_nothing() {
    for seed in 0..4 * effort() {
        let mut total = 0;
        let stores = after_every_store(|stores| {
            let (session, rig) = used(seed);
            let outcome = run_abandoned(&[&session], stores, || work(&session, &rig, 1, 100 + seed, 3));
            // Another goes on at once, on other inodes and pools, before anybody settles on purpose.
            work(&session, &rig, 2, 200 + seed, 2);
            rig.take_all(&session, 3).unwrap();
            session.reap_dead().unwrap();
            rig.verify(&session);
            total += 1;
            outcome
        });
        assert!(stores > 60 && total == stores + 1, "{stores}");
    }
}

#[test]
fn the_reaper_too_can_be_killed_after_any_store() {
    // Every store of the worker with every store of the reaper in a long run; a sample of the latter else.
    let mut settled_by_the_second = 0;
    for seed in 0..effort().min(3) {
        after_every_store(|stores| {
            let mut reaper_stores = 1 + if effort() > 1 { 0 } else { (stores * 3 + seed) % 11 };
            loop {
                let (session, rig) = used(seed);
                let outcome = run_abandoned(&[&session], stores, || work(&session, &rig, 1, 100 + seed, 2));
                let reaper = run_abandoned(&[&session], reaper_stores, || {
                    session.reap_dead().unwrap();
                });
                settled_by_the_second += u64::from(reaper == Outcome::Abandoned);
                // A third takes blocks in between, as far as it gets without settling on purpose.
                rig.take_all(&session, 3).unwrap();
                session.reap_dead().unwrap();
                rig.verify(&session);
                if reaper != Outcome::Abandoned || outcome == Outcome::Completed(()) {
                    return outcome;
                }
                reaper_stores += if effort() > 1 { 1 } else { 11 };
            }
        });
    }
    assert!(settled_by_the_second > 200, "{settled_by_the_second}");
}

#[test]
fn a_release_over_two_pools_can_be_killed_after_any_store() {
    use super::Extent;
    let stores = after_every_store(|stores| {
        let (session, rig) = private(BLOCKS);
        let border = Extent { start: 16384 - 100, count: 300 };
        let space = rig.space(&session);
        space.mark_used(border).unwrap();
        space.recount_all();
        rig.commit(&session, 1, 20, Some(border));
        let outcome = run_abandoned(&[&session], stores, || {
            let thread = session.thread().unwrap();
            let guard = thread.lock(rig.lock_of(1)).unwrap();
            let held = rig.space(&session).hold(&thread, border).unwrap();
            rig.commit(&session, 1, 20, None);
            rig.space(&session).release(&thread, held).unwrap();
            guard.unlock();
        });
        // Whoever gets some of these blocks now must keep them.
        let thread = session.thread().unwrap();
        let guard = thread.lock(rig.lock_of(2)).unwrap();
        for slot in 10..14 {
            let held = space.allocate(&thread, 200, Some(border.start + 50 * (slot - 10)), false).unwrap();
            rig.commit(&session, 2, slot, Some(held.extent()));
            space.keep(&thread, held);
        }
        guard.unlock();
        session.reap_dead().unwrap();
        rig.verify(&session);
        outcome
    });
    assert!(stores > 20, "{stores}");
}
