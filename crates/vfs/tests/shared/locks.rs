//! File locks: ranges, kinds, waiters, deadlocks.

use crate::truth::{BYTES, Random, Truth};
use crate::{open, private, process, request};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use gannet_vfs::Errno;
use gannet_vfs::shared::{LockOwner, LockRange, SharedLimits};

#[test]
fn record_locks_agree_with_the_truth_about_every_byte() {
    let (shared, fs, nodes) = private();
    let (mut granted, mut refused) = (0, 0);
    for seed in 0..30 {
        let (mut truth, mut random) = (Truth::default(), Random(seed));
        for step in 0..200 {
            let owner = random.below(3) as u32;
            let exclusive = [None, Some(false), Some(true), Some(false)][random.below(4) as usize];
            let start = random.below(BYTES);
            let end = start + 1 + random.below(BYTES - start);
            let got = shared.try_lock(&fs, &request(nodes[0], process(owner), exclusive, start, end));
            let expected = truth.try_lock(owner, exclusive, start, end);
            match got {
                Ok(()) => assert!(expected, "seed {seed} step {step}"),
                Err(error) => assert!(error.errno() == Errno::AGAIN && !expected, "seed {seed} step {step}"),
            }
            if expected {
                granted += 1
            } else {
                refused += 1
            }
            assert!(truth.agrees(&shared, nodes[0]), "seed {seed} step {step}");
            let runs: usize = (0..3).map(|owner| truth.runs(owner)).sum();
            assert_eq!(shared.records().unwrap(), runs, "no more records than needed");
        }
        for owner in 0..3 {
            shared.try_lock(&fs, &request(nodes[0], process(owner), None, 0, LockRange::END)).unwrap();
        }
        assert_eq!(shared.records().unwrap(), 0);
    }
    assert!(granted > 1000 && refused > 1000, "{granted} granted, {refused} refused");
}

#[test]
fn ranges_of_struct_flock() {
    let range = |start, length| LockRange::new(start, length).map(|range| (range.start, range.end));
    assert_eq!(range(5, 10).unwrap(), (5, 15));
    assert_eq!(range(5, 0).unwrap(), (5, LockRange::END));
    assert_eq!(range(5, -5).unwrap(), (0, 5));
    assert_eq!(range(i64::MAX, 1).unwrap(), (i64::MAX as u64, LockRange::END));
    assert_eq!(range(5, -6).unwrap_err().errno(), Errno::INVAL);
    assert_eq!(range(-1, 5).unwrap_err().errno(), Errno::INVAL);
    assert_eq!(range(0, i64::MIN).unwrap_err().errno(), Errno::INVAL);
    assert_eq!(range(i64::MAX, 2).unwrap_err().errno(), Errno::OVERFLOW);
}

#[test]
fn the_kinds_of_locks_know_who_they_know() {
    let (shared, fs, nodes) = private();
    let (one, two) = (open(&shared, &fs, nodes[0]), open(&shared, &fs, nodes[0]));
    let all = |owner, exclusive| request(nodes[0], owner, exclusive, 0, LockRange::END);
    shared.try_lock(&fs, &all(LockOwner::OpenFile(one), Some(true))).unwrap();
    let refused = |owner| shared.try_lock(&fs, &all(owner, Some(false))).unwrap_err().errno() == Errno::AGAIN;
    assert!(refused(LockOwner::OpenFile(two)) && refused(process(5)), "OFD and POSIX locks see each other");
    shared.try_lock(&fs, &all(LockOwner::Flock(two), Some(true))).unwrap();
    assert!(refused(LockOwner::Flock(one)), "flock sees flock only");
    let elsewhere = request(nodes[1], LockOwner::Flock(two), Some(true), 0, LockRange::END);
    assert_eq!(shared.try_lock(&fs, &elsewhere).unwrap_err().errno(), Errno::INVAL);
    // The last close of a description takes its locks with it.
    shared.close(&fs, one).unwrap();
    shared.try_lock(&fs, &all(process(5), Some(true))).unwrap();
    let three = open(&shared, &fs, nodes[0]);
    assert!(refused(LockOwner::Flock(three)));
    shared.close(&fs, two).unwrap();
    shared.try_lock(&fs, &all(LockOwner::Flock(three), Some(true))).unwrap();
    shared.try_lock(&fs, &all(process(5), None)).unwrap();
    shared.close(&fs, three).unwrap();
    assert_eq!(shared.records().unwrap(), 0);
    let me = shared.process_owner().unwrap();
    shared.try_lock(&fs, &request(nodes[1], me, Some(true), 0, 5)).unwrap();
    shared.try_lock(&fs, &request(nodes[1], me, Some(true), 7, 9)).unwrap();
    shared.try_lock(&fs, &request(nodes[2], me, Some(true), 7, 9)).unwrap();
    shared.unlock_process(nodes[1]).unwrap();
    assert_eq!(shared.records().unwrap(), 1);
}

#[test]
fn a_waiter_is_woken_and_can_be_interrupted() {
    let (shared, fs, nodes) = private();
    let lock = |owner, exclusive| request(nodes[0], owner, exclusive, 0, 10);
    shared.try_lock(&fs, &lock(process(1), Some(true))).unwrap();
    let mut asked = 0;
    let interrupted = shared.lock(&fs, &lock(process(2), Some(true)), &mut || {
        asked += 1;
        asked > 2
    });
    assert_eq!(interrupted.unwrap_err().errno(), Errno::INTR);
    let has_it = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            shared.lock(&fs, &lock(process(2), Some(true)), &mut || false).unwrap();
            has_it.store(true, Ordering::Release);
        });
        std::thread::sleep(Duration::from_millis(30));
        assert!(!has_it.load(Ordering::Acquire));
        let released_at = Instant::now();
        shared.try_lock(&fs, &lock(process(1), None)).unwrap();
        while !has_it.load(Ordering::Acquire) {
            assert!(released_at.elapsed() < Duration::from_secs(60));
            std::thread::yield_now();
        }
    });
}

/// Of some hundred locks that are let go one after the other, those that it does not wait for rarely wake a waiter.
#[test]
fn a_waiter_sleeps_while_others_locks_go() {
    let (shared, fs, nodes) = private();
    let byte = |owner, exclusive, at| request(nodes[0], process(owner), exclusive, at, at + 1);
    let others = 600;
    shared.try_lock(&fs, &byte(1, Some(true), 0)).unwrap();
    let (asked, has_it) = (AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut stop = || {
                asked.fetch_add(1, Ordering::Relaxed);
                false
            };
            shared.lock(&fs, &byte(2, Some(true), 0), &mut stop).unwrap();
            has_it.store(true, Ordering::Release);
        });
        while asked.load(Ordering::Relaxed) == 0 {
            std::thread::yield_now();
        }
        let (began, before) = (Instant::now(), asked.load(Ordering::Relaxed));
        for at in 1..=others {
            shared.try_lock(&fs, &byte(1, Some(true), 2 * at)).unwrap();
            shared.try_lock(&fs, &byte(1, None, 2 * at)).unwrap();
            std::thread::sleep(Duration::from_micros(50));
        }
        let woken = asked.load(Ordering::Relaxed) - before;
        let by_itself = began.elapsed().as_millis() as u64 / 2;
        let too_early = has_it.load(Ordering::Acquire);
        shared.try_lock(&fs, &byte(1, None, 0)).unwrap();
        assert!(woken <= others / 4 + by_itself, "{woken} times, {by_itself} of them by itself at most");
        assert!(!too_early);
    });
    assert!(has_it.load(Ordering::Acquire));
}

/// What a waiter sleeps for is cut, split, becomes part of another lock, or another's: it notices all the same.
#[test]
fn a_waiter_follows_what_becomes_of_the_lock_in_its_way() {
    let (shared, fs, nodes) = private();
    let range = |owner, exclusive, start, end| request(nodes[0], process(owner), exclusive, start, end);
    let (asked, has_it) = (AtomicU64::new(0), AtomicBool::new(false));
    let change = |owner, exclusive, start, end| {
        assert!(!has_it.load(Ordering::Acquire), "before {exclusive:?} {start} {end}");
        shared.try_lock(&fs, &range(owner, exclusive, start, end)).unwrap();
        let asked_before = asked.load(Ordering::Relaxed);
        while asked.load(Ordering::Relaxed) == asked_before && !has_it.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
    };
    shared.try_lock(&fs, &range(1, Some(true), 0, 100)).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut stop = || {
                asked.fetch_add(1, Ordering::Relaxed);
                false
            };
            shared.lock(&fs, &range(2, Some(true), 60, 61), &mut stop).unwrap();
            has_it.store(true, Ordering::Release);
        });
        while asked.load(Ordering::Relaxed) == 0 {
            std::thread::yield_now();
        }
        // The right part has another record, then that gets a neighbour, becomes shared, and somebody else's as well.
        change(1, None, 20, 30);
        change(1, Some(true), 100, 120);
        change(1, Some(false), 40, 110);
        change(3, Some(false), 60, 70);
        change(1, None, 0, 60);
        change(1, None, 60, 200);
        assert!(!has_it.load(Ordering::Acquire), "the third has it");
        change(3, None, 60, 61);
        while !has_it.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
    });
}

#[test]
fn circles_of_waiting_processes_are_deadlocks() {
    for circle in [2_u32, 3, 5] {
        let (shared, fs, nodes) = private();
        let byte =
            |owner: u32, at: u32| request(nodes[0], process(owner), Some(true), u64::from(at), u64::from(at) + 1);
        for owner in 0..circle {
            shared.try_lock(&fs, &byte(owner, owner)).unwrap();
        }
        let results: Vec<_> = std::thread::scope(|scope| {
            let waiters: Vec<_> = (0..circle)
                .map(|owner| {
                    let (shared, fs, byte, nodes) = (&shared, &fs, &byte, &nodes);
                    scope.spawn(move || {
                        let result = shared.lock(fs, &byte(owner, (owner + 1) % circle), &mut || false);
                        // Whoever is told, or is served, lets the others go on.
                        let everything = request(nodes[0], process(owner), None, 0, 100);
                        shared.try_lock(fs, &everything).unwrap();
                        result.map_err(|error| error.errno())
                    })
                })
                .collect();
            waiters.into_iter().map(|waiter| waiter.join().unwrap()).collect()
        });
        let told = results.iter().filter(|result| **result == Err(Errno::DEADLK)).count();
        assert!(told >= 1 && results.iter().all(|r| r.is_ok() || *r == Err(Errno::DEADLK)), "{results:?}");
        assert_eq!(shared.records().unwrap(), 0);
    }
}

/// It says what is full and how much there is, as of a volume.
#[test]
fn the_bound_of_locks_is_named() {
    let (shared, fs, nodes) = private();
    let byte = |at| request(nodes[0], process(1), Some(true), at, at + 1);
    let full = (0..1000).find_map(|at| shared.try_lock(&fs, &byte(2 * at)).err()).expect("a bound");
    assert_eq!(full.errno(), Errno::NOLCK);
    assert!(full.to_string().contains(&SharedLimits::default().records.to_string()), "{full}");
}
