//! Claims to caching: who joins waits for the answer, not for ever, and is refused by a firm one.

use super::child::{spawn, wait_for};
use super::{Calls, identity, layout, left_behind};
use crate::{CachingState, CachingTerms, Error, Session, VolumeIdentity};
use std::sync::Arc;
use std::time::{Duration, Instant};

const SHORT: Duration = Duration::from_millis(150);

fn attach(id: &VolumeIdentity) -> Arc<Session> {
    Session::attach(*id, &layout(), &mut Calls::default()).unwrap()
}

fn revocable(deadline: Duration) -> CachingTerms {
    CachingTerms::Revocable { deadline, lease: Duration::from_millis(50) }
}

fn leave(session: &Session) {
    session.detach(&mut Calls::default()).unwrap();
}

#[test]
fn a_joiner_waits_for_the_answer_and_caching_comes_back_when_it_leaves() {
    let id = identity(60);
    let first = attach(&id);
    assert_eq!(first.caching_state(), CachingState::None);
    for _ in 0..3 {
        assert!(first.claim_caching(revocable(Duration::from_secs(60))).unwrap());
        assert!(first.caching_holds());
        std::thread::scope(|scope| {
            let joiner = scope.spawn(|| attach(&id));
            let began = Instant::now();
            while first.caching_state() == CachingState::Holds {
                first.wait_while_caching(Duration::from_secs(600));
            }
            assert!(began.elapsed() < Duration::from_secs(300), "the recall did not wake");
            assert_eq!(first.caching_state(), CachingState::Recalled);
            assert!(!first.caching_holds());
            std::thread::sleep(Duration::from_millis(30));
            assert!(!joiner.is_finished(), "it did not wait for the answer");
            first.give_up_caching();
            let second = joiner.join().unwrap();
            assert!(!first.claim_caching(revocable(SHORT)).unwrap(), "claimed beside another");
            assert!(!second.caching_holds());
            assert_eq!((first.caching_state(), second.caching_state()), (CachingState::None, CachingState::None));
            leave(&second);
        });
    }
    leave(&first);
    assert!(left_behind(&id).is_empty());
}

#[test]
fn who_does_not_answer_is_cut_off_at_its_deadline() {
    let id = identity(61);
    let first = attach(&id);
    assert!(first.claim_caching(revocable(SHORT)).unwrap());
    let began = Instant::now();
    let second = attach(&id);
    let waited = began.elapsed();
    assert!(waited >= SHORT && waited < SHORT + Duration::from_secs(60), "{waited:?}");
    // It learns of it, and a third does not wait again.
    assert!(!first.caching_holds());
    assert_eq!(first.caching_state(), CachingState::Recalled);
    let quickly = || {
        let began = Instant::now();
        leave(&attach(&id));
        began.elapsed() < SHORT
    };
    assert!((0..50).any(|_| quickly()), "everybody waits again");
    first.give_up_caching();
    assert_eq!(first.caching_state(), CachingState::None);
    leave(&second);
    assert!(first.claim_caching(revocable(SHORT)).unwrap());
    leave(&first);
}

#[test]
fn a_killed_claimant_is_waited_for_no_longer_than_its_lease() {
    let id = identity(62);
    let mut child = spawn("cache", &id);
    wait_for(&mut child, "cached");
    std::thread::scope(|scope| {
        let began = Instant::now();
        let joiner = scope.spawn(|| attach(&id));
        std::thread::sleep(Duration::from_millis(60));
        assert!(!joiner.is_finished(), "nobody answered");
        child.kill().unwrap();
        let session = joiner.join().unwrap();
        // Its deadline is ten minutes.
        assert!(began.elapsed() < Duration::from_secs(300));
        assert_eq!(session.caching_state(), CachingState::None);
        session.reap_dead().unwrap();
        assert!(session.claim_caching(revocable(SHORT)).unwrap());
        leave(&session);
    });
    child.wait().unwrap();
    assert!(left_behind(&id).is_empty());
}

#[test]
fn a_firm_claim_refuses_others_until_it_is_given_up() {
    let id = identity(63);
    let first = attach(&id);
    let second = attach(&id);
    assert!(!first.claim_caching(CachingTerms::Firm).unwrap());
    leave(&second);
    assert!(first.claim_caching(CachingTerms::Firm).unwrap());
    let mut calls = Calls::default();
    match Session::attach(id, &layout(), &mut calls) {
        Err(Error::Exclusive { pid }) => assert_eq!(pid, std::process::id()),
        other => panic!("{other:?}"),
    }
    assert_eq!((calls.first, calls.joined), (0, 0));
    assert!(first.caching_holds());
    std::thread::scope(|scope| {
        let second = scope.spawn(|| {
            // On a busy machine the moment can be over before the claim is.
            loop {
                let began = Instant::now();
                match Session::attach(id, &layout(), &mut Calls::default()) {
                    Ok(session) => break leave(&session),
                    Err(Error::Exclusive { .. }) => assert!(began.elapsed() > Duration::from_millis(900)),
                    Err(error) => panic!("{error}"),
                }
            }
        });
        std::thread::sleep(Duration::from_millis(50));
        assert!(!second.is_finished(), "it waits a moment");
        first.give_up_caching();
    });
    leave(&first);
}

#[test]
fn a_damaged_word_keeps_nobody_out() {
    let id = identity(64);
    let first = attach(&id);
    for word in [1, 2, 4, 5, 0xff, u64::MAX, 0x7fff_ff01, 0xffff_ff03] {
        first.arena.fixed(crate::session::CACHING_AT).store(word, crate::Ordering::SeqCst);
        first.arena.fixed(crate::session::PATIENCE_AT).store(600, crate::Ordering::SeqCst);
        let began = Instant::now();
        leave(&attach(&id));
        assert!(began.elapsed() < Duration::from_secs(300), "{word:#x}");
    }
    leave(&first);
}

#[test]
fn a_private_arena_is_always_alone() {
    let session = super::private(64);
    assert!(session.claim_caching(CachingTerms::Firm).unwrap());
    assert!(session.caching_holds());
    session.give_up_caching();
    assert!(!session.caching_holds());
}
