//! Attaching and leaving: who is first and last, what is refused, what is left behind.

use super::{Calls, identity, layout, left_behind};
use crate::slot::Kind;
use crate::testing::{Outcome, after_every_store, run_abandoned};
use crate::thread::load_state;
use crate::{
    ArenaIdentity, Detached, Error, GoneParticipant, HandContent, Ordering, ParticipantId, ReapStage, Reaped, Reaper,
    Result, Session, VolumeGuard,
};
use std::os::unix::fs::MetadataExt;
use std::sync::{Arc, Barrier, Mutex};

#[test]
fn first_recovers_others_join_last_cleans() {
    let id = identity(1);
    let (mut one, mut two) = (Calls::default(), Calls::default());
    let first = Session::attach(id, &layout(), &mut one).unwrap();
    let path = first.path().unwrap().to_owned();
    let metadata = std::fs::metadata(&path).unwrap();
    assert_eq!(metadata.mode() & 0o7777, 0o600);
    assert!(metadata.blocks() * 512 < 1 << 20, "sparse: {} blocks", metadata.blocks());
    let second = Session::attach(id, &layout(), &mut two).unwrap();
    assert_eq!(first.arena_identity(), second.arena_identity());
    assert_eq!((one.first, one.joined, two.first, two.joined), (1, 0, 0, 1));
    let region = first.arena().region("test").unwrap();
    first.word(region.start).unwrap().store(42, Ordering::Relaxed);
    assert_eq!(second.word(region.start).unwrap().load(Ordering::Relaxed), 42);
    assert_eq!(second.participant_list().len(), 2);
    assert_eq!(first.detach(&mut one).unwrap(), Detached::OthersRemain);
    assert!(matches!(first.thread(), Err(Error::Detached)));
    assert!(std::fs::exists(&path).unwrap());
    assert_eq!(second.detach(&mut two).unwrap(), Detached::Last);
    assert_eq!((one.last, two.last), (0, 1));
    assert!(!std::fs::exists(&path).unwrap());
    let third = Session::attach(id, &layout(), &mut one).unwrap();
    assert_eq!(third.word(region.start).unwrap().load(Ordering::Relaxed), 0, "a new arena");
    third.detach(&mut one).unwrap();
    assert_eq!(left_behind(&id), Vec::<String>::new());
}

#[test]
fn maps_begin_at_huge_pages_wherever_there_is_room() {
    let mut guard = Calls::default();
    // The second finds the first where it would be.
    let sessions = [40, 40, 41].map(|number| Session::attach(identity(number), &layout(), &mut guard).unwrap());
    let starts = sessions.each_ref().map(|session| session.arena().address(0) as usize);
    assert!(starts.iter().all(|start| start.is_multiple_of(2 << 20)), "{starts:x?}");
    for session in &sessions {
        session.detach(&mut guard).unwrap();
    }
}

/// Looks for the dead as soon as it has joined, while it has the gate.
struct ReapsAtOnce(Reaped);

impl VolumeGuard for ReapsAtOnce {
    fn first(&mut self, _session: &Arc<Session>, _arena: ArenaIdentity) -> Result<()> {
        Ok(())
    }

    fn joined(&mut self, session: &Arc<Session>, _arena: ArenaIdentity) -> Result<()> {
        self.0 = session.reap_dead()?;
        Ok(())
    }

    fn last(&mut self, _session: &Session, _arena: ArenaIdentity) -> Result<()> {
        Ok(())
    }
}

#[test]
fn the_dead_are_found_behind_the_gate() {
    let id = identity(42);
    let mut guard = Calls::default();
    let stays = Session::attach(id, &layout(), &mut guard).unwrap();
    let dies = Session::attach(id, &layout(), &mut guard).unwrap();
    // Its byte is free, and its record is not.
    drop(dies);
    let mut reaps = ReapsAtOnce(Reaped::default());
    let joins = Session::attach(id, &layout(), &mut reaps).unwrap();
    assert_eq!(reaps.0.participants, 1, "the dead one, and neither who stays nor itself");
    assert_eq!(stays.participant_list().len(), 2);
    assert_eq!(stays.reap_dead().unwrap(), Reaped::default(), "who joined lives, with the gate open again");
    joins.detach(&mut reaps).unwrap();
    stays.detach(&mut guard).unwrap();
    assert_eq!(left_behind(&id), Vec::<String>::new());
}

/// Looks for the evidently dead as soon as it has joined.
struct LooksAround(Reaped);

impl VolumeGuard for LooksAround {
    fn first(&mut self, _session: &Arc<Session>, _arena: ArenaIdentity) -> Result<()> {
        Ok(())
    }

    fn joined(&mut self, session: &Arc<Session>, _arena: ArenaIdentity) -> Result<()> {
        self.0 = session.reap_evidently_dead()?;
        Ok(())
    }

    fn last(&mut self, _session: &Session, _arena: ArenaIdentity) -> Result<()> {
        Ok(())
    }
}

/// A place among the threads is a fifth of what it costs to join, and who joins has no use for it as yet.
#[test]
fn who_joins_takes_no_slot_as_long_as_nobody_is_dead() {
    let id = identity(81);
    let mut guard = LooksAround(Reaped::default());
    let stays = Session::attach(id, &layout(), &mut guard).unwrap();
    let threads_of = |session: &Session| {
        let by = session.participant().index;
        let states = (0..session.slots_used()).map(|slot| load_state(session.arena(), slot).unwrap());
        states.filter(|state| state.kind == Kind::Live && u32::from(state.by) == by).count()
    };
    let joins = Session::attach(id, &layout(), &mut guard).unwrap();
    assert_eq!(threads_of(&joins), 0);
    joins.thread().unwrap();
    assert_eq!(threads_of(&joins), 1, "its first operation");
    drop(joins);
    let joins = Session::attach(id, &layout(), &mut guard).unwrap();
    assert_eq!(guard.0.participants, 1);
    assert_eq!(threads_of(&joins), 1, "it had to settle the dead");
    joins.detach(&mut guard).unwrap();
    stays.detach(&mut guard).unwrap();
    assert_eq!(left_behind(&id), Vec::<String>::new());
}

#[test]
fn a_guard_that_refuses_leaves_nothing() {
    let id = identity(2);
    let mut refuse = Calls { refuse: true, ..Calls::default() };
    assert!(matches!(Session::attach(id, &layout(), &mut refuse), Err(Error::Owner(_))));
    assert!(left_behind(&id).is_empty());
    let mut fine = Calls::default();
    let session = Session::attach(id, &layout(), &mut fine).unwrap();
    assert!(matches!(Session::attach(id, &layout(), &mut refuse), Err(Error::Owner(_))));
    assert_eq!(session.participant_list().len(), 1);
    assert_eq!(session.detach(&mut fine).unwrap(), Detached::Last);
}

#[test]
fn detaching_settles_the_threads_of_the_process() {
    let id = identity(8);
    let mut guard = Calls::default();
    let stays = Session::attach(id, &layout(), &mut guard).unwrap();
    let leaves = Session::attach(id, &layout(), &mut guard).unwrap();
    let lock = leaves.arena().region("test").unwrap().start;
    let (held, left) = (Barrier::new(2), Barrier::new(2));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::mem::forget(leaves.thread().unwrap().lock(lock).unwrap());
            held.wait();
            left.wait();
            assert!(matches!(leaves.thread(), Err(Error::Detached)));
        });
        held.wait();
        assert_eq!(leaves.detach(&mut guard).unwrap(), Detached::OthersRemain);
        stays.thread().unwrap().try_lock(lock).unwrap().expect("released").unlock();
        left.wait();
    });
    assert!(matches!(leaves.detach(&mut guard), Err(Error::Detached)));
    assert_eq!(stays.reap_dead().unwrap(), Reaped::default());
    stays.detach(&mut guard).unwrap();
}

#[derive(Default)]
struct Gone(Mutex<Vec<ParticipantId>>);

impl Reaper for Gone {
    fn settle(&self, _: &crate::DeadThread<'_>) -> Result<()> {
        Ok(())
    }
    fn participant_gone(&self, gone: &GoneParticipant<'_>) -> Result<()> {
        self.0.lock().unwrap().push(gone.info.id);
        Ok(())
    }
}

#[test]
fn a_participant_that_vanished_is_reaped_by_the_others() {
    let id = identity(6);
    let mut guard = Calls::default();
    let stays = Session::attach(id, &layout(), &mut guard).unwrap();
    let gone = Arc::new(Gone::default());
    stays.register_reaper(ReapStage::Hands, gone.clone());
    let vanishes = Session::attach(id, &layout(), &mut guard).unwrap();
    let (lost, lock) = (vanishes.participant(), vanishes.arena().region("test").unwrap().start);
    std::mem::forget(vanishes.thread().unwrap().lock(lock).unwrap());
    drop(vanishes);
    assert!(!stays.participant_is_alive(lost).unwrap());
    assert_eq!(stays.reap_dead().unwrap().participants, 1);
    assert_eq!(*gone.0.lock().unwrap(), [lost]);
    stays.thread().unwrap().try_lock(lock).unwrap().expect("released").unlock();
    assert_eq!(stays.participant_list().len(), 1);
    assert_eq!(stays.detach(&mut guard).unwrap(), Detached::Last);
    assert_eq!(gone.0.lock().unwrap().len(), 2, "and itself");
}

#[test]
fn threads_return_their_slots() {
    let session = super::private(64);
    let mut slots = std::collections::HashSet::new();
    for _ in 0..200 {
        slots.insert(std::thread::scope(|s| s.spawn(|| session.thread().unwrap().slot()).join().unwrap()));
    }
    assert!(slots.len() <= 2, "{slots:?}");
    // More than there are, at once.
    let all = std::sync::Barrier::new(66);
    let full = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..66)
            .map(|_| {
                scope.spawn(|| {
                    let result = session.thread().map(|t| t.slot());
                    all.wait();
                    result
                })
            })
            .collect();
        let limit = crate::THREADS_DEFAULT.to_string();
        let is_full = |error: Error| matches!(error, Error::Full { .. }) && error.to_string().contains(&limit);
        threads.into_iter().map(|t| t.join().unwrap()).filter(|result| result.clone().is_err_and(is_full)).count()
    });
    assert_eq!(full, 2);
    assert!(session.thread().is_ok());
}

#[test]
fn a_thread_that_ends_with_something_in_hand_counts_as_killed() {
    let session = super::private(64);
    let lock = session.arena().region("test").unwrap().start;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let thread = session.thread().unwrap();
            let _hand = thread.hand_set(HandContent { kind: 1, a: 2, b: 3 }).unwrap();
            std::mem::forget(thread.lock(lock).unwrap());
        });
    });
    let thread = session.thread().unwrap();
    thread.lock(lock).unwrap().unlock();
    assert_eq!(session.reap_dead().unwrap().threads, 0, "done by whoever wanted the lock");
}

#[test]
fn a_panic_inside_an_operation_counts_as_a_kill() {
    let session = super::private(64);
    let lock = session.arena().region("test").unwrap().start;
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let guard = session.thread().unwrap().lock(lock).unwrap();
        std::panic::resume_unwind(Box::new(guard.at()));
    }));
    assert!(result.is_err());
    // The same thread, another slot.
    session.thread().unwrap().lock(lock).unwrap().unlock();
}

#[test]
fn attaching_abandoned_after_any_store_hinders_nobody() {
    let id = identity(7);
    for others in [false, true] {
        let mut stays_guard = Calls::default();
        let stores = after_every_store(|stores| {
            let stays = others.then(|| Session::attach(id, &layout(), &mut stays_guard).unwrap());
            let outcome = run_abandoned(&[], stores, || {
                let mut guard = Calls::default();
                let session = Session::attach(id, &layout(), &mut guard).unwrap();
                session.thread().unwrap();
                session.detach(&mut guard).unwrap();
            });
            let mut guard = Calls::default();
            let session = Session::attach(id, &layout(), &mut guard).unwrap();
            session.reap_dead().unwrap();
            assert_eq!(session.participant_list().len(), if others { 2 } else { 1 }, "after {stores} stores");
            session.thread().unwrap().lock(session.arena().region("test").unwrap().start).unwrap().unlock();
            session.detach(&mut guard).unwrap();
            if let Some(stays) = stays {
                assert_eq!(stays.detach(&mut stays_guard).unwrap(), Detached::Last);
            }
            assert!(left_behind(&id).is_empty());
            outcome
        });
        assert!(stores > 20, "{stores}");
        assert!(matches!(run_abandoned(&[], 1, || ()), Outcome::Completed(())));
    }
}

/// Goes on with what the dead left.
#[derive(Default)]
struct Adopts {
    calls: Calls,
    adopted: u32,
}

impl crate::VolumeGuard for Adopts {
    fn first(&mut self, session: &Arc<Session>, arena: crate::ArenaIdentity) -> Result<()> {
        self.calls.first(session, arena)
    }
    fn adopted(&mut self, session: &Arc<Session>, _: crate::ArenaIdentity) -> Result<bool> {
        session.reap_dead()?;
        self.adopted += 1;
        self.calls.answer().map(|()| true)
    }
    fn joined(&mut self, session: &Arc<Session>, arena: crate::ArenaIdentity) -> Result<()> {
        self.calls.joined(session, arena)
    }
    fn last(&mut self, session: &Session, arena: crate::ArenaIdentity) -> Result<()> {
        self.calls.last(session, arena)
    }
}

#[test]
fn what_the_dead_left_goes_from_hand_to_hand() {
    let id = identity(9);
    let mut guard = Adopts::default();
    let stores = after_every_store(|stores| {
        guard = Adopts::default();
        let session = Session::attach(id, &layout(), &mut guard).unwrap();
        let (arena, lock) = (session.arena_identity(), session.arena().region("test").unwrap().start);
        session.word(lock.add(64)).unwrap().store(stores + 1, Ordering::Relaxed);
        std::mem::forget(session.thread().unwrap().lock(lock).unwrap());
        assert!(!Session::is_left_behind(id).unwrap());
        drop(session);
        assert!(Session::is_left_behind(id).unwrap());
        // One that dies while it takes over, or later, or not at all.
        let mut second = Adopts::default();
        let outcome = run_abandoned(&[], stores, || {
            let session = Session::attach(id, &layout(), &mut second).unwrap();
            session.thread().unwrap().lock(lock).unwrap().unlock();
        });
        let session = Session::attach(id, &layout(), &mut guard).unwrap();
        assert_eq!(
            (session.arena_identity(), guard.calls.first, guard.adopted),
            (arena, 1, 1),
            "after {stores} stores"
        );
        assert_eq!(session.word(lock.add(64)).unwrap().load(Ordering::Relaxed), stores + 1);
        session.thread().unwrap().lock(lock).unwrap().unlock();
        assert_eq!(session.participant_list().len(), 1);
        assert_eq!(session.detach(&mut guard).unwrap(), Detached::Last);
        assert!(left_behind(&id).is_empty());
        outcome
    });
    assert!(stores > 20, "{stores}");
    // With one that was emptied, or cut, nobody goes on.
    drop(Session::attach(id, &layout(), &mut Adopts::default()).unwrap());
    assert!(Session::is_left_behind(id).unwrap());
    let file = std::fs::File::options()
        .write(true)
        .open(format!("{}/{}", crate::ARENA_DIRECTORY, left_behind(&id)[0]))
        .unwrap();
    let whole = file.metadata().unwrap().len();
    for bytes in [whole - 4096, 0] {
        file.set_len(bytes).unwrap();
        assert!(!Session::is_left_behind(id).unwrap(), "{bytes}");
    }
    assert!(Session::remove_stale(id).unwrap());
    // A guard that fails leaves it to the next.
    let mut guard = Adopts::default();
    drop(Session::attach(id, &layout(), &mut guard).unwrap());
    let mut refuses = Adopts { calls: Calls { refuse: true, ..Calls::default() }, adopted: 0 };
    assert!(matches!(Session::attach(id, &layout(), &mut refuses), Err(Error::Owner(_))));
    assert!(Session::is_left_behind(id).unwrap());
    let session = Session::attach(id, &layout(), &mut guard).unwrap();
    assert_eq!((guard.calls.first, guard.adopted), (1, 1));
    session.detach(&mut guard).unwrap();
}

/// A thread's slot that says what cannot be: nobody lives whose it could be, so the arena is made anew and nobody refused.
#[test]
fn a_damaged_arena_of_the_dead_is_made_anew() {
    let id = identity(40);
    let mut guard = Adopts::default();
    let session = Session::attach(id, &layout(), &mut guard).unwrap();
    let slot = session.thread().unwrap().slot();
    let at = crate::slot::slot_at(session.arena(), slot) + crate::slot::STATE as u64 * 8;
    let (old, path) = (session.arena_identity(), session.path().unwrap().to_owned());
    drop(session);
    let file = std::fs::File::options().write(true).open(path).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &[0xff; 8], at).unwrap();
    let session = Session::attach(id, &layout(), &mut guard).unwrap();
    assert_ne!(session.arena_identity(), old);
    assert_eq!((guard.calls.first, guard.adopted), (2, 0));
    session.detach(&mut guard).unwrap();
    assert!(left_behind(&id).is_empty());
}
