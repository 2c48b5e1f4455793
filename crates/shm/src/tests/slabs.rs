//! Slabs: nothing is given twice, nothing leaks, whichever store was a thread's last.

use crate::testing::{Outcome, after_every_store, run_abandoned};
use crate::{
    ArenaLayout, Error, Ordering, ReapStage, Recent, SLAB_HEAD_BYTES, Session, Share, Slab, SlabReaper, SlabRef,
};
use std::collections::HashSet;
use std::sync::Arc;

fn with_slab(count: u64) -> (Arc<Session>, Slab) {
    let layout = ArenaLayout::new().limits(16, 64).head("head", SLAB_HEAD_BYTES).region(
        "slab",
        Slab::region_bytes(count, 40),
        64,
    );
    let session = Session::private(&layout).unwrap();
    let slab = Slab::new(
        session.arena(),
        session.arena().region("head").unwrap(),
        session.arena().region("slab").unwrap(),
        40,
    )
    .unwrap();
    session.register_reaper(ReapStage::Hands, Arc::new(SlabReaper(slab)));
    (session, slab)
}

#[test]
fn every_count_fits_its_region() {
    for count in [1, 2, 63, 64, 65, 100, 1000, 4097] {
        assert_eq!(with_slab(count).1.count(), count);
    }
}

#[test]
fn objects_are_distinct_bounded_and_reused_under_another_name() {
    let (session, slab) = with_slab(130);
    let thread = session.thread().unwrap();
    let mut all: Vec<SlabRef> = Vec::new();
    for _ in 0..130 {
        let held = slab.allocate(&thread).unwrap();
        session.word(held.at()).unwrap().store(7, Ordering::Relaxed);
        all.push(slab.publish(&thread, held).unwrap());
    }
    assert!(matches!(slab.allocate(&thread), Err(Error::Full { .. })));
    let offsets: HashSet<_> = all.iter().map(|r| slab.object(*r).unwrap()).collect();
    assert_eq!(offsets.len(), 130);
    let held = slab.retire(&thread, all[77]).unwrap().unwrap();
    assert!(slab.retire(&thread, all[77]).unwrap().is_none(), "only one takes it back");
    slab.free(&thread, held).unwrap();
    let again = slab.allocate(&thread).unwrap();
    assert_eq!(again.at(), slab.object(all[77]).unwrap());
    assert_ne!(again.reference(), all[77]);
    let again = slab.publish(&thread, again).unwrap();
    assert!(!slab.is_live(session.arena(), all[77]).unwrap());
    assert!(slab.is_live(session.arena(), again).unwrap());
    assert!(slab.retire(&thread, all[77]).unwrap().is_none(), "an old name takes nothing");
}

#[test]
fn what_others_free_is_found_at_once_behind_a_refusal() {
    let (session, slab) = with_slab(300);
    let (thread, recent, share) = (session.thread().unwrap(), Recent::default(), Share::new(64, &(128..192)));
    let take = || slab.allocate_from(&thread, &recent, &share).and_then(|held| slab.publish(&thread, held));
    let back = |reference| slab.retire(&thread, reference).unwrap().unwrap();
    let mut all: Vec<_> = std::iter::from_fn(|| take().ok()).collect();
    assert_eq!(all.len(), 128);
    assert!(matches!(take(), Err(Error::Full { .. })));
    // What others of the slab may take is still there.
    let other = slab.allocate_from(&thread, &recent, &Share::new(64, &(64..128))).unwrap();
    slab.free(&thread, other).unwrap();
    // Another process frees one.
    slab.free(&thread, back(all.pop().unwrap())).unwrap();
    all.push(take().unwrap());
    // And one remembers what it freed: the bit is still set.
    for _ in 0..3 {
        assert!(take().is_err());
        slab.free_to(&thread, &Recent::default(), back(all.pop().unwrap())).unwrap();
        all.push(take().unwrap());
    }
    assert!(take().is_err());
}

#[test]
fn references_from_damaged_memory_are_errors() {
    let (session, slab) = with_slab(10);
    assert!(SlabRef::from_word(0).is_none());
    for word in [u64::MAX, 11 << 40, 1 << 63] {
        assert!(slab.is_live(session.arena(), SlabRef::from_word(word).unwrap()).is_err());
    }
    assert!(!slab.is_live(session.arena(), SlabRef::from_word(1 << 40).unwrap()).unwrap());
}

#[test]
fn a_thread_abandoned_after_any_store_leaks_nothing() {
    const COUNT: u64 = 3;
    let stores = after_every_store(|stores| {
        let (session, slab) = with_slab(COUNT);
        let outcome = run_abandoned(&[&session], stores, || {
            let thread = session.thread().unwrap();
            let first = slab.allocate(&thread).unwrap();
            let second = slab.allocate(&thread).unwrap();
            let first = slab.publish(&thread, first).unwrap();
            slab.free(&thread, second).unwrap();
            let first = slab.retire(&thread, first).unwrap().unwrap();
            slab.free(&thread, first).unwrap();
        });
        let reaped = session.reap_dead().unwrap();
        let live: Vec<_> = slab.live(session.arena()).unwrap().collect();
        assert!(live.len() <= 1);
        assert!(outcome == Outcome::Abandoned || reaped.threads == 0);
        let thread = session.thread().unwrap();
        let rest: Vec<_> = (live.len() as u64..COUNT).map(|_| slab.allocate(&thread).unwrap()).collect();
        let mut seen: HashSet<_> = live.iter().map(|r| slab.object(*r).unwrap()).collect();
        assert!(rest.iter().all(|held| seen.insert(held.at())), "given twice after {stores} stores");
        assert!(slab.allocate(&thread).is_err());
        for held in rest {
            slab.free(&thread, held).unwrap();
        }
        outcome
    });
    assert!(stores > 25, "{stores}");
}

#[test]
fn many_threads_never_share_an_object() {
    let (session, slab) = with_slab(24);
    std::thread::scope(|scope| {
        for number in 1..=4u64 {
            let (session, slab) = (&session, &slab);
            scope.spawn(move || {
                let thread = session.thread().unwrap();
                for round in 0..500 {
                    let held: Vec<_> = (0..5).map(|_| slab.allocate(&thread).unwrap()).collect();
                    for h in &held {
                        session.word(h.at()).unwrap().store(number << 32 | round, Ordering::Relaxed);
                    }
                    for h in held {
                        assert_eq!(session.word(h.at()).unwrap().load(Ordering::Relaxed), number << 32 | round);
                        slab.free(&thread, h).unwrap();
                    }
                }
            });
        }
    });
    assert_eq!(slab.live(session.arena()).unwrap().count(), 0);
}
