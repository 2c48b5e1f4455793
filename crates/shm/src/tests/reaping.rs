//! Reapers die too: whoever comes next finds a void claim and goes on, whichever stores were the
//! last ones of the dead thread and of its reaper.

use crate::testing::{Outcome, after_every_store, run_abandoned};
use crate::{
    ArenaLayout, ArenaOffset, DeadThread, Error, HandContent, Ordering, ParticipantId, ReapStage, Reaper, Result,
    SLAB_HEAD_BYTES, Session, Slab, SlabReaper,
};
use std::sync::atomic::{AtomicU32, Ordering as Plain};
use std::sync::{Arc, Barrier};

/// Tokens are taken out of a pot (under its lock, into a hand) and put into a cup (a lock and a
/// word). None is ever lost or doubled: pot + cups + hands of the living = all.
struct Tokens {
    pot_lock: ArenaOffset,
    pot: ArenaOffset,
    cup_lock: ArenaOffset,
    cup: ArenaOffset,
}

const TOKEN: u64 = 7;
const ALL: u64 = 10;

impl Tokens {
    fn new(session: &Session) -> Arc<Self> {
        let region = session.arena().region("test").unwrap();
        let at = |bytes| region.at(bytes).unwrap();
        let tokens = Self { pot_lock: at(0), pot: at(64), cup_lock: at(128), cup: at(192) };
        session.word(tokens.pot).unwrap().store(ALL, Ordering::Relaxed);
        Arc::new(tokens)
    }

    /// The word holds a count and, above it, the number of the step: so a repeated step shows.
    fn put_one(&self, session: &Session) -> Result<()> {
        let thread = session.thread()?;
        let cup_guard = thread.lock(self.cup_lock)?;
        let pot_guard = thread.lock(self.pot_lock)?;
        let (pot, cup) = (thread.word(self.pot)?, thread.word(self.cup)?);
        let (left, there) = (pot.load(Ordering::Relaxed), cup.load(Ordering::Relaxed));
        // What both will be if it is done: the reaper makes it so, forward if the cup has it.
        let hand = thread.hand_set(HandContent { kind: TOKEN, a: left, b: there })?;
        pot.store(left - 1, Ordering::Relaxed);
        pot_guard.unlock();
        cup.store(there + 1, Ordering::Relaxed);
        thread.hand_clear(hand);
        cup_guard.unlock();
        Ok(())
    }

    fn total(&self, session: &Session) -> u64 {
        let load = |at| session.word(at).unwrap().load(Ordering::Relaxed);
        load(self.pot) + load(self.cup)
    }
}

impl Reaper for Tokens {
    fn settle(&self, dead: &DeadThread<'_>) -> Result<()> {
        let thread = dead.reaper();
        for (index, content) in dead.hands().filter(|(_, content)| content.kind == TOKEN) {
            assert!(dead.holds(self.cup_lock), "the hand is cleared before the lock is released");
            let (pot, cup) = (thread.word(self.pot)?, thread.word(self.cup)?);
            if cup.load(Ordering::Relaxed) == content.b {
                // Not arrived. Back into the pot, if it had left: the pot's lock, in the dead thread's
                // name, makes the look and the hand's end one step for everybody else.
                dead.lock(self.pot_lock)?;
                if pot.load(Ordering::Relaxed) == content.a - 1 {
                    pot.store(content.a, Ordering::Relaxed);
                }
            }
            dead.clear_hand(index);
        }
        Ok(())
    }
}

fn session() -> (Arc<Session>, Arc<Tokens>, Slab) {
    let layout = ArenaLayout::new().limits(8, 16).region("test", 4096, 64).head("head", SLAB_HEAD_BYTES).region(
        "slab",
        Slab::region_bytes(2, 8),
        64,
    );
    let session = Session::private(&layout).unwrap();
    let tokens = Tokens::new(&session);
    let slab =
        Slab::new(session.arena(), session.arena().region("head").unwrap(), session.arena().region("slab").unwrap(), 8)
            .unwrap();
    session.register_reaper(ReapStage::Hands, Arc::new(SlabReaper(slab)));
    session.register_reaper(ReapStage::Medium, tokens.clone());
    (session, tokens, slab)
}

#[test]
fn a_reaper_that_dies_after_any_store_is_itself_reaped() {
    let mut pairs = 0;
    let stores = after_every_store(|first| {
        let mut outcome_of_first = None;
        after_every_store(|second| {
            let (session, tokens, slab) = session();
            let work = || {
                let thread = session.thread().unwrap();
                let held = slab.allocate(&thread).unwrap();
                tokens.put_one(&session).unwrap();
                slab.free(&thread, held).unwrap();
            };
            let one = run_abandoned(&[&session], first, work);
            outcome_of_first = Some(one);
            let two = run_abandoned(&[&session], second, || {
                tokens.put_one(&session).unwrap();
                session.reap_dead().unwrap();
            });
            pairs += 1;
            tokens.put_one(&session).unwrap();
            session.reap_dead().unwrap();
            assert_eq!(tokens.total(&session), ALL, "after {first} and {second} stores");
            let thread = session.thread().unwrap();
            let all = [slab.allocate(&thread).unwrap(), slab.allocate(&thread).unwrap()];
            for held in all {
                slab.free(&thread, held).unwrap();
            }
            // Every slot but ours is free again.
            assert_eq!(session.reap_dead().unwrap().threads, 0);
            let used = session.slots_used();
            let free = (0..used).filter(|s| *s != thread.slot()).all(|slot| {
                crate::thread::load_state(session.arena(), slot).unwrap().kind == crate::slot::Kind::Free
                    || joining(&session, slot)
            });
            assert!(free, "after {first} and {second} stores");
            two
        });
        outcome_of_first.unwrap()
    });
    assert!(stores > 20 && pairs > 500, "{stores} {pairs}");
}

/// A thread that dies while it takes a slot, in a process that lives on, leaves the slot taken
/// until the process ends: it has nothing in hand.
fn joining(session: &Session, slot: u32) -> bool {
    crate::thread::load_state(session.arena(), slot).unwrap().kind == crate::slot::Kind::Join
}

#[test]
fn one_of_many_waiters_settles() {
    struct Count(AtomicU32);
    impl Reaper for Count {
        fn settle(&self, _: &DeadThread<'_>) -> Result<()> {
            std::thread::sleep(std::time::Duration::from_millis(2));
            self.0.fetch_add(1, Plain::Relaxed);
            Ok(())
        }
    }
    for _ in 0..10 {
        let session = super::private(64);
        let lock = session.arena().region("test").unwrap().start;
        let count = Arc::new(Count(AtomicU32::new(0)));
        session.register_reaper(ReapStage::Medium, count.clone());
        std::thread::scope(|scope| {
            scope.spawn(|| std::mem::forget(session.thread().unwrap().lock(lock).unwrap()));
        });
        let together = Barrier::new(4);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let thread = session.thread().unwrap();
                    together.wait();
                    thread.lock(lock).unwrap().unlock();
                });
            }
        });
        assert_eq!(count.0.load(Plain::Relaxed), 1);
    }
}

#[test]
fn an_owner_that_fails_leaves_the_lock_for_another_attempt() {
    struct Fails(AtomicU32);
    impl Reaper for Fails {
        fn settle(&self, _: &DeadThread<'_>) -> Result<()> {
            if self.0.fetch_add(1, Plain::Relaxed) < 2 {
                return Err(Error::owner(std::io::Error::other("the medium is gone")));
            }
            Ok(())
        }
    }
    let session = super::private(64);
    let lock = session.arena().region("test").unwrap().start;
    session.register_reaper(ReapStage::Medium, Arc::new(Fails(AtomicU32::new(0))));
    std::thread::scope(|scope| {
        scope.spawn(|| std::mem::forget(session.thread().unwrap().lock(lock).unwrap()));
    });
    let thread = session.thread().unwrap();
    assert!(matches!(thread.lock(lock), Err(Error::Owner(_))));
    assert!(matches!(session.reap_dead(), Err(Error::Owner(_))));
    thread.lock(lock).unwrap().unlock();
}

#[test]
fn waiting_threads_are_reported() {
    let session = super::private(64);
    let lock = session.arena().region("test").unwrap().start;
    let guard = session.thread().unwrap().lock(lock).unwrap();
    let mine = session.thread().unwrap().slot();
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            let thread = session.thread().unwrap();
            thread.lock(lock).unwrap().unlock();
            thread.slot()
        });
        let seen = loop {
            if let [seen] = &session.waiting()[..] {
                break seen.clone();
            }
            std::thread::yield_now();
        };
        guard.unlock();
        assert_eq!(seen.lock, lock);
        assert_eq!(seen.waiter.slot, waiter.join().unwrap());
        let owner = seen.owner.unwrap();
        assert_eq!((owner.slot, owner.stopped), (mine, Some(false)));
        assert_eq!(owner.process.unwrap().pid, std::process::id());
    });
    assert!(session.waiting().is_empty());
    assert_ne!(Outcome::Completed(1), Outcome::Abandoned);
}

#[test]
fn a_claim_is_void_when_its_slot_belongs_to_somebody_else_by_now() {
    struct Settles;
    impl Reaper for Settles {
        fn settle(&self, dead: &DeadThread<'_>) -> Result<()> {
            // A store that the reaper can die after, in the middle of settling.
            let word = dead.reaper().session().arena().region("test")?.at(32)?;
            dead.reaper().word(word)?.store(1, Ordering::Relaxed);
            Ok(())
        }
    }
    let mut void_claims = 0;
    after_every_store(|stores| {
        let session = super::private(64);
        let lock = session.arena().region("test").unwrap().start;
        session.register_reaper(ReapStage::Medium, Arc::new(Settles));
        let me = session.thread().unwrap();
        let victim = std::thread::scope(|scope| {
            let run = || {
                let thread = session.thread().unwrap();
                std::mem::forget(thread.lock(lock).unwrap());
                thread.slot()
            };
            scope.spawn(run).join().unwrap()
        });
        let outcome = run_abandoned(&[&session], stores, || session.thread().unwrap().lock(lock).unwrap().unlock());
        let claim = crate::thread::load_state(session.arena(), victim).unwrap();
        let reaper = u32::from(claim.by);
        if claim.kind == crate::slot::Kind::Reap {
            // The reaper's slot is settled, but not what it was at; a newcomer gets that slot and lives on.
            session.reap_slot(&me, reaper, true).unwrap();
            let (taken, done) = (Barrier::new(2), Barrier::new(2));
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    assert_eq!(session.thread().unwrap().slot(), reaper);
                    taken.wait();
                    done.wait();
                });
                taken.wait();
                assert_eq!(session.reap_slot(&me, victim, true).unwrap(), crate::reap::Verdict::Gone);
                done.wait();
            });
            void_claims += 1;
        }
        me.lock(lock).unwrap().unlock();
        outcome
    });
    assert!(void_claims > 3, "{void_claims}");
}

#[test]
fn a_slot_that_others_settle_and_take_is_not_waited_for() {
    use crate::slot::{self, Kind, State};
    let session = super::private(64);
    let me = session.thread().unwrap();
    let gone = ParticipantId { index: 7, generation: 0 };
    let (settled, taken) = (Barrier::new(2), Barrier::new(2));
    let (result, finished) = std::sync::mpsc::channel();
    let (session, settled, taken) = (&session, &settled, &taken);
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let settler = session.thread().unwrap();
            // The settler is at a slot of the participant that is gone.
            session.reserve_slot(60).unwrap();
            let words = slot::words(session.arena(), 60);
            words[slot::PARTICIPANT].store(u64::from(gone.index), Ordering::Relaxed);
            let claim = State {
                kind: Kind::Reap,
                generation: 3,
                by: settler.slot() as u16,
                by_generation: settler.state().unwrap().generation,
            };
            words[slot::STATE].store(claim.encode(), Ordering::Release);
            settled.wait();
            // Time to begin waiting for the settler.
            std::thread::sleep(std::time::Duration::from_millis(50));
            // Free, and at once a living thread's.
            let tenant =
                State { kind: Kind::Live, generation: 4, by: session.participant().index as u16, by_generation: 0 };
            words[slot::TID]
                .store(u64::from(rustix::thread::gettid().as_raw_nonzero().get() as u32), Ordering::Relaxed);
            words[slot::STATE].store(tenant.encode(), Ordering::Release);
            let ended: std::result::Result<u64, _> = finished.recv_timeout(std::time::Duration::from_secs(60));
            // Whoever still waits must not wait for ever, or the test could not fail.
            words[slot::STATE].store(State::freed(4).encode(), Ordering::Release);
            taken.wait();
            assert_eq!(ended, Ok(0));
        });
        settled.wait();
        result.send(session.reap_threads_of(&me, gone).unwrap()).unwrap();
        taken.wait();
    });
}
