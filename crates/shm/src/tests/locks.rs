//! Locks: exclusion, order, errors, and taking over after every store of the holder.

use super::private;
use crate::testing::{Outcome, after_every_store, run_abandoned};
use crate::{ArenaOffset, DeadThread, Error, Ordering, ReapStage, Reaper, Result, Session};
use std::sync::{Arc, Mutex};

fn places(session: &Session) -> (ArenaOffset, ArenaOffset, ArenaOffset) {
    let region = session.arena().region("test").unwrap();
    (region.at(0).unwrap(), region.at(64).unwrap(), region.at(72).unwrap())
}

#[test]
fn threads_exclude_each_other() {
    let session = private(4096);
    let (lock, counter, _) = places(&session);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let thread = session.thread().unwrap();
                for _ in 0..2000 {
                    let guard = thread.lock(lock).unwrap();
                    let word = thread.word(counter).unwrap();
                    // Two steps: without exclusion increments would be lost.
                    let value = word.load(Ordering::Relaxed);
                    std::hint::spin_loop();
                    word.store(value + 1, Ordering::Relaxed);
                    guard.unlock();
                }
            });
        }
    });
    assert_eq!(session.word(counter).unwrap().load(Ordering::Relaxed), 8000);
    assert_eq!(session.word(lock).unwrap().load(Ordering::Relaxed), 16000, "two sequence steps per hold");
}

#[test]
fn own_lock_again_is_an_error_and_try_lock_does_not_wait() {
    let session = private(4096);
    let (lock, other, _) = places(&session);
    let thread = session.thread().unwrap();
    let guard = thread.lock(lock).unwrap();
    assert!(matches!(thread.lock(lock), Err(Error::Deadlock(_))));
    assert!(thread.try_lock(lock).unwrap().is_none());
    let second = thread.try_lock(other).unwrap().unwrap();
    drop(second);
    guard.unlock();
    assert!(thread.try_lock(lock).unwrap().is_some());
}

#[test]
fn many_locks_are_taken_in_order_and_bounded() {
    let session = private(4096);
    let region = session.arena().region("test").unwrap();
    let thread = session.thread().unwrap();
    let at: Vec<_> = (0..16).rev().map(|i| region.at(i * 8).unwrap()).collect();
    let mut twice = at[..8].to_vec();
    twice.extend_from_slice(&at[..8]);
    let set = thread.lock_sorted(&twice).unwrap();
    assert_eq!(set.len(), 8);
    assert!(set.iter().map(|g| g.at()).is_sorted());
    set.unlock();
    let set = thread.lock_sorted(&at).unwrap();
    assert_eq!(set.len(), 16);
    assert!(matches!(thread.lock(region.at(512).unwrap()), Err(Error::Full { .. })));
    drop(set);
    let one = thread.lock(region.at(512).unwrap()).unwrap();
    one.unlock();
}

#[test]
fn damaged_words_are_errors() {
    let session = private(4096);
    let (lock, ..) = places(&session);
    let thread = session.thread().unwrap();
    // Odd without owner, even with one, no such slot, and a slot that never took it.
    for value in [1u64, 2 | 5 << 48, (9000 << 48) | 1, (6 << 48) | 1] {
        session.word(lock).unwrap().store(value, Ordering::Relaxed);
        assert!(matches!(thread.lock(lock), Err(Error::Corrupt { .. })), "{value:#x}");
    }
    assert!(thread.lock(ArenaOffset::new(u64::MAX - 7)).is_err());
    assert!(thread.lock(lock.add(1)).is_err());
    assert!(thread.lock(ArenaOffset::new(session.arena().bytes())).is_err());
}

/// Two words that are equal whenever the lock is free; whoever settles makes them so.
struct Pair {
    lock: ArenaOffset,
    left: ArenaOffset,
    right: ArenaOffset,
    settled: Mutex<u32>,
}

impl Reaper for Pair {
    fn settle(&self, dead: &DeadThread<'_>) -> Result<()> {
        if dead.holds(self.lock) {
            assert_eq!(dead.locks().collect::<Vec<_>>(), [self.lock]);
            let value = dead.reaper().word(self.left)?.load(Ordering::Relaxed);
            dead.reaper().word(self.right)?.store(value, Ordering::Relaxed);
            *self.settled.lock().unwrap() += 1;
        }
        Ok(())
    }
}

fn pair_step(session: &Session, pair: &Pair) -> Result<()> {
    let thread = session.thread()?;
    let guard = thread.lock(pair.lock)?;
    let (left, right) = (thread.word(pair.left)?, thread.word(pair.right)?);
    left.store(left.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    right.store(right.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    guard.unlock();
    Ok(())
}

#[test]
fn a_lock_abandoned_after_any_store_is_taken_over_and_settled() {
    let mut settled_somewhere = 0;
    let stores = after_every_store(|stores| {
        let session = private(4096);
        let (lock, left, right) = places(&session);
        let pair = Arc::new(Pair { lock, left, right, settled: Mutex::new(0) });
        session.register_reaper(ReapStage::Medium, pair.clone());
        let outcome = run_abandoned(&[&session], stores, || {
            for _ in 0..2 {
                pair_step(&session, &pair).unwrap();
            }
        });
        pair_step(&session, &pair).unwrap();
        let load = |at| session.word(at).unwrap().load(Ordering::Relaxed);
        assert_eq!(load(left), load(right), "after {stores} stores");
        assert_eq!(load(lock) & 1, 0);
        if outcome == Outcome::Abandoned {
            assert!(load(left) >= 1 && load(left) <= 3);
        } else {
            assert_eq!(load(left), 3);
        }
        settled_somewhere += *pair.settled.lock().unwrap();
        session.reap_dead().unwrap();
        outcome
    });
    assert!(stores > 10, "{stores}");
    assert!(settled_somewhere >= 6, "{settled_somewhere}");
}
