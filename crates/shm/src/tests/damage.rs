//! Damaged shared memory: errors or waits for somebody alive, never a panic, a wild access or an
//! endless loop. And what an arena does beside words.

use super::private;
use crate::layout::HEADER_BYTES;
use crate::{
    ArenaLayout, ArenaOffset, DeadThread, Error, HandContent, Ordering, ReapStage, Reaper, Result, SLAB_HEAD_BYTES,
    Session, Slab, SlabReaper, SlabRef,
};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

/// SplitMix64: small, seeded, good enough to hit everything.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A value as damage makes them: anything, small, or a word with one bit flipped.
    fn value(&mut self, old: u64) -> u64 {
        match self.next() % 4 {
            0 => self.next(),
            1 => self.next() % 70,
            2 => u64::MAX - self.next() % 3,
            _ => old ^ (1 << (self.next() % 64)),
        }
    }
}

#[test]
fn damaged_tables_cause_errors_only() {
    let rounds = if std::env::var_os("GANNET_LONG").is_some() { 100_000 } else { 1500 };
    for seed in 0..rounds {
        let mut random = Random(seed);
        let layout = ArenaLayout::new().limits(4, 8).region("test", 256, 64).head("head", SLAB_HEAD_BYTES).region(
            "slab",
            Slab::region_bytes(20, 24),
            64,
        );
        let session = Session::private(&layout).unwrap();
        let slab = Slab::new(
            session.arena(),
            session.arena().region("head").unwrap(),
            session.arena().region("slab").unwrap(),
            24,
        )
        .unwrap();
        session.register_reaper(ReapStage::Hands, Arc::new(SlabReaper(slab)));
        let region = session.arena().region("test").unwrap();
        let mine = session.thread().unwrap();
        let held = slab.allocate(&mine).unwrap();
        let object = slab.publish(&mine, held).unwrap();
        // Somebody dead with a lock and a hand, so that there is something to settle.
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let thread = session.thread().unwrap();
                std::mem::forget(thread.lock(region.start).unwrap());
                let _ = thread.hand_set(HandContent { kind: 5, a: 6, b: 7 }).unwrap();
                let _ = slab.allocate(&thread).unwrap();
            });
        });
        let layout = session.arena().layout();
        let participants = layout.slots_at - HEADER_BYTES;
        let slab_region = session.arena().region("slab").unwrap();
        for _ in 0..=random.next() % 6 {
            let (start, bytes) = match random.next() % 4 {
                0 => (64, HEADER_BYTES - 64),
                1 => (HEADER_BYTES, participants),
                // Words of one of the first slots, its life word as one of them.
                2 => {
                    let slot = crate::slot::slot_at(session.arena(), (random.next() % 8) as u32);
                    let life = random.next().is_multiple_of(16);
                    (slot + if life { crate::slot::LIFE_IN_SLOT } else { 0 }, if life { 8 } else { 640 })
                }
                _ => (slab_region.start.get(), slab_region.bytes & !7),
            };
            let at = ArenaOffset::new(start + random.next() % (bytes / 8) * 8);
            // Our own slot is what nobody else stores to: damage there is our own wild store.
            let own = layout.slots_at + u64::from(mine.slot()) * crate::layout::SLOT_BYTES;
            if (own..own + crate::layout::SLOT_BYTES).contains(&at.get()) {
                continue;
            }
            let word = session.word(at).unwrap();
            word.store(random.value(word.load(Ordering::Relaxed)), Ordering::Relaxed);
        }
        // Results do not matter; that they come does.
        let _ = session.waiting();
        let _ = session.participant_list();
        if let Ok(thread) = session.thread() {
            for at in 0..4 {
                if let Ok(Some(guard)) = thread.try_lock(region.at(at * 8).unwrap()) {
                    guard.unlock();
                }
            }
            let _ = session.reap_slot(&thread, 1, true);
            for _ in 0..25 {
                let Ok(held) = slab.allocate(&thread) else { break };
                let _ = if seed % 2 == 0 { slab.free(&thread, held) } else { slab.publish(&thread, held).map(|_| ()) };
            }
            let _ = slab.is_live(session.arena(), object);
            if let Ok(Some(held)) = slab.retire(&thread, object) {
                let _ = slab.free(&thread, held);
            }
            let _ = slab.live(session.arena()).map(|live| live.count());
            if let Some(reference) = SlabRef::from_word(random.next()) {
                let _ = slab.retire(&thread, reference);
            }
        }
    }
}

#[test]
fn memory_is_reserved_and_made_huge_without_losing_anything() {
    let session = private(8 << 20);
    let region = session.arena().region("test").unwrap();
    let last = region.at(region.bytes - 8).unwrap();
    session.word(last).unwrap().store(1, Ordering::Relaxed);
    session.arena().reserve(region.start, region.bytes).unwrap();
    // Whether the kernel agrees is its affair.
    let _ = session.arena().huge_pages(region.start, region.bytes, false);
    let _ = session.arena().huge_pages(region.start, region.bytes, true);
    assert_eq!(session.word(last).unwrap().load(Ordering::Relaxed), 1);
    assert!(session.arena().reserve(region.start, u64::MAX).is_err());
    assert!(session.arena().words(last, 2).is_err() || session.arena().bytes() > last.get() + 16);
    assert!(!session.arena().huge_pages(ArenaOffset::new(u64::MAX), 1, true));
}

/// A lock that nobody can have is as damaged for who settles a dead thread as for everybody else.
#[test]
fn a_reaper_does_not_wait_for_a_lock_whose_owner_cannot_be() {
    struct Takes(ArenaOffset);
    impl Reaper for Takes {
        fn settle(&self, dead: &DeadThread<'_>) -> Result<()> {
            dead.lock(self.0)
        }
    }
    let session = private(64);
    let region = session.arena().region("test").unwrap();
    let (lock, other) = (region.start, region.at(8).unwrap());
    session.register_reaper(ReapStage::Medium, Arc::new(Takes(other)));
    std::thread::scope(|scope| {
        scope.spawn(|| std::mem::forget(session.thread().unwrap().lock(lock).unwrap()));
    });
    // The owner is a slot that is free.
    session.word(other).unwrap().store(crate::lock_word::taken_by(4, 50), Ordering::Relaxed);
    let (say, hear) = channel();
    let waiter = session.clone();
    std::thread::spawn(move || {
        let outcome = waiter.thread().unwrap().lock(lock).map(drop);
        let _ = say.send(matches!(outcome, Err(Error::Corrupt { .. })));
    });
    assert_eq!(hear.recv_timeout(Duration::from_secs(20)), Ok(true), "it waits for ever");
}
