//! Open file descriptions and file locks: what they mean, what a kill after any store leaves, what killed processes leave.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use gannet_memfs::{Limits, MemoryFs};
use gannet_shm::testing::{Outcome, after_every_store, run_abandoned};
use gannet_shm::{ArenaIdentity, ArenaLayout, ParticipantId, Session, VolumeGuard, VolumeIdentity};
use gannet_vfs::shared::{AccessMode, Description, LockOwner, LockRange, LockRequest, Shared, SharedLimits};
use gannet_vfs::{Errno, FileSystem, Name, NewNode, NodeId, Owner, RemoveKind};

const LIMITS: SharedLimits = SharedLimits { participants: 128, threads: 256, descriptions: 64, records: 64 };

fn private() -> (Arc<Shared>, MemoryFs, Vec<NodeId>) {
    let fs = MemoryFs::new(Limits::default(), 0o755, Owner::default()).unwrap();
    let nodes = nodes(&fs);
    (Shared::private(&LIMITS).unwrap(), fs, nodes)
}

fn nodes(fs: &MemoryFs) -> Vec<NodeId> {
    let make = |text: &str| {
        let name = Name::new(text.as_bytes()).unwrap();
        fs.create(fs.root(), name, &NewNode::regular(0o644, Owner::default())).unwrap()
    };
    ["a", "b", "c", "d"].map(make).to_vec()
}

fn open(shared: &Shared, fs: &MemoryFs, node: NodeId) -> Description {
    shared.open(fs, node, AccessMode::READ | AccessMode::WRITE, 0).unwrap()
}

fn process(index: u32) -> LockOwner {
    LockOwner::Process(ParticipantId { index, generation: 0 })
}

fn request(node: NodeId, owner: LockOwner, exclusive: Option<bool>, start: u64, end: u64) -> LockRequest {
    LockRequest { node, owner, exclusive, range: LockRange { start, end }, process: 1 }
}

#[test]
fn an_inode_is_in_use_from_open_to_the_last_close() {
    let (shared, fs, nodes) = private();
    assert!(!shared.in_use(nodes[0]));
    let (one, two) = (open(&shared, &fs, nodes[0]), open(&shared, &fs, nodes[0]));
    assert!(shared.in_use(nodes[0]) && !shared.in_use(nodes[1]));
    assert!(!shared.in_use(NodeId::new(nodes[0].number, nodes[0].generation + 1)));
    let info = shared.info(one).unwrap();
    assert_eq!((info.node, info.access, info.status), (nodes[0], AccessMode::READ | AccessMode::WRITE, 0));
    shared.close(&fs, one).unwrap();
    assert!(shared.in_use(nodes[0]));
    assert_eq!(shared.info(one).unwrap_err().errno(), Errno::BADF);
    assert_eq!(shared.close(&fs, one).unwrap_err().errno(), Errno::BADF);
    assert_eq!(shared.adopt(one).unwrap_err().errno(), Errno::BADF);
    shared.close(&fs, two).unwrap();
    assert!(!shared.in_use(nodes[0]));
    assert_eq!(shared.descriptions().unwrap(), 0);
    // The object is used again; the old name stays dead.
    let again = open(&shared, &fs, nodes[1]);
    assert!(again != one && again != two && shared.info(two).is_err());
    assert_eq!(Description::from_word(again.word()), Some(again));
}

#[test]
fn opening_what_is_gone_fails_and_leaves_nothing() {
    let (shared, fs, nodes) = private();
    fs.remove(fs.root(), Name::new(b"a").unwrap(), RemoveKind::NonDirectory).unwrap();
    assert_eq!(shared.open(&fs, nodes[0], AccessMode::READ, 0).unwrap_err().errno(), Errno::STALE);
    assert_eq!(shared.descriptions().unwrap(), 0);
}

#[test]
fn too_many_is_enfile_and_all_can_be_used_again() {
    let (shared, fs, nodes) = private();
    for _ in 0..3 {
        let mut all = Vec::new();
        let error = loop {
            match shared.open(&fs, nodes[all.len() % 4], AccessMode::PATH, 0) {
                Ok(description) => all.push(description),
                Err(error) => break error,
            }
        };
        assert_eq!((error.errno(), all.len()), (Errno::NFILE, 64));
        all.into_iter().for_each(|description| shared.close(&fs, description).unwrap());
        assert_eq!(shared.descriptions().unwrap(), 0);
    }
}

#[test]
fn status_flags_change_by_mask() {
    let (shared, fs, nodes) = private();
    let description = shared.open(&fs, nodes[0], AccessMode::READ, 0o4).unwrap();
    assert_eq!(shared.set_status(description, 0o6, 0o3).unwrap(), 0o2);
    assert_eq!(shared.info(description).unwrap().status, 0o2);
}

#[test]
fn the_offset_is_moved_by_one_at_a_time() {
    let (shared, fs, nodes) = private();
    let description = open(&shared, &fs, nodes[0]);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..1000 {
                    let offset = shared.offset(description).unwrap();
                    let at = offset.get();
                    // Time for another to get in between, were it let in.
                    std::thread::yield_now();
                    offset.set(at + 3);
                }
            });
        }
    });
    assert_eq!(shared.offset(description).unwrap().get(), 12_000);
    shared.close(&fs, description).unwrap();
    assert_eq!(shared.offset(description).unwrap_err().errno(), Errno::BADF);
    assert_eq!(shared.offset(open(&shared, &fs, nodes[0])).unwrap().get(), 0, "a new one begins anew");
}

#[test]
fn a_description_in_transit_keeps_its_inode() {
    let (shared, fs, nodes) = private();
    let description = open(&shared, &fs, nodes[0]);
    shared.hold_in_transit(description).unwrap();
    shared.close(&fs, description).unwrap();
    assert!(shared.in_use(nodes[0]));
    shared.adopt(description).unwrap();
    shared.release_in_transit(&fs, description).unwrap();
    assert!(shared.in_use(nodes[0]));
    shared.close(&fs, description).unwrap();
    assert!(!shared.in_use(nodes[0]));
}

#[test]
fn a_child_to_be_shares_and_a_failed_fork_takes_back() {
    let (shared, fs, nodes) = private();
    let all = [open(&shared, &fs, nodes[0]), open(&shared, &fs, nodes[1])];
    let child = ParticipantId { index: 77, generation: 3 };
    shared.give(child, &mut all.into_iter()).unwrap();
    all.into_iter().for_each(|description| shared.close(&fs, description).unwrap());
    assert!(shared.in_use(nodes[0]) && shared.in_use(nodes[1]));
    shared.take_back(child).unwrap();
    assert!(!shared.in_use(nodes[0]) && !shared.in_use(nodes[1]));
    assert_eq!((shared.sweep(&fs).unwrap(), shared.descriptions().unwrap()), (2, 0));
}

/// Who has which bytes locked how: the plain truth about record locks.
#[derive(Clone, Default, PartialEq, Debug)]
struct Truth(BTreeMap<(u64, u32), bool>);

const BYTES: u64 = 24;

impl Truth {
    fn try_lock(&mut self, owner: u32, exclusive: Option<bool>, start: u64, end: u64) -> bool {
        let blocked = exclusive.is_some_and(|exclusive| {
            self.0.iter().any(|(&(byte, other), &theirs)| {
                other != owner && (start..end).contains(&byte) && (exclusive || theirs)
            })
        });
        if !blocked {
            for byte in start..end {
                match exclusive {
                    None => self.0.remove(&(byte, owner)),
                    Some(exclusive) => self.0.insert((byte, owner), exclusive),
                };
            }
        }
        !blocked
    }

    /// How few records can say it.
    fn runs(&self, owner: u32) -> usize {
        (0..BYTES)
            .filter(|&byte| {
                let here = self.0.get(&(byte, owner));
                here.is_some() && (byte == 0 || self.0.get(&(byte - 1, owner)) != here)
            })
            .count()
    }

    /// Compares with what a stranger is told about every byte.
    fn agrees(&self, shared: &Shared, node: NodeId) -> bool {
        (0..BYTES).all(|byte| {
            [false, true].into_iter().all(|exclusive| {
                let told = shared.test_lock(&request(node, process(99), Some(exclusive), byte, byte + 1)).unwrap();
                let mut here = self.0.range((byte, 0)..(byte + 1, 0));
                let blocked = here.any(|(_, &theirs)| exclusive || theirs);
                told.is_some() == blocked
            })
        })
    }
}

struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

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

/// A state of locks that the operation under test begins from.
fn prepared(shared: &Shared, fs: &MemoryFs, node: NodeId) -> Truth {
    let mut truth = Truth::default();
    for (owner, exclusive, start, end) in [(0, true, 4, 16), (1, false, 18, 22), (0, false, 18, 20)] {
        shared.try_lock(fs, &request(node, process(owner), Some(exclusive), start, end)).unwrap();
        assert!(truth.try_lock(owner, Some(exclusive), start, end));
    }
    truth
}

#[test]
fn locks_survive_a_kill_after_every_store() {
    // Split, cut at both ends, covered, merged, new, all types.
    let changes = [
        (0, None, 8, 10),
        (0, Some(false), 8, 10),
        (0, Some(false), 2, 6),
        (0, Some(false), 14, 18),
        (0, Some(false), 0, 24),
        (0, Some(true), 16, 18),
        (0, None, 0, 24),
        (2, Some(false), 18, 24),
        (2, Some(true), 0, 3),
    ];
    let mut stores = 0;
    for (owner, exclusive, start, end) in changes {
        stores += after_every_store(|count| {
            let (shared, fs, nodes) = private();
            let node = nodes[0];
            let before = prepared(&shared, &fs, node);
            let mut after = before.clone();
            assert!(after.try_lock(owner, exclusive, start, end));
            let change = request(node, process(owner), exclusive, start, end);
            let outcome = run_abandoned(&[shared.session()], count, || shared.try_lock(&fs, &change).unwrap());
            // Asking takes the bucket's lock over, which settles what the dead thread left.
            let (is_before, is_after) = (before.agrees(&shared, node), after.agrees(&shared, node));
            let unlocks_partly = exclusive.is_none() && start == 0;
            assert!(is_before || is_after || unlocks_partly, "neither nor after {count} stores of {change:?}");
            assert!(is_after || outcome == Outcome::Abandoned);
            shared.reap(&fs).unwrap();
            assert_eq!(shared.locks().unwrap().len(), shared.records().unwrap(), "no void record is left");
            // Nothing is stuck and nothing leaks: all owners can let go, and all objects can be used again.
            for owner in 0..3 {
                shared.try_lock(&fs, &request(node, process(owner), None, 0, LockRange::END)).unwrap();
            }
            shared.reap(&fs).unwrap();
            assert_eq!(shared.records().unwrap(), 0);
            for byte in 0..u64::from(LIMITS.records) {
                shared.try_lock(&fs, &request(node, process(1), Some(true), byte * 2, byte * 2 + 1)).unwrap();
            }
            outcome
        });
    }
    println!("{stores} stores, each the last one once");
    assert!(stores > 200);
}

#[test]
fn descriptions_survive_a_kill_after_every_store() {
    type Work = fn(&Shared, &MemoryFs, &[NodeId], Description);
    let works: [(&str, Work); 5] = [
        ("open", |shared, fs, nodes, _| _ = open(shared, fs, nodes[0])),
        ("close", |shared, fs, _, description| shared.close(fs, description).unwrap()),
        ("close the last", |shared, fs, nodes, _| {
            let description = open(shared, fs, nodes[1]);
            let lock = request(nodes[1], LockOwner::Flock(description), Some(true), 0, LockRange::END);
            shared.try_lock(fs, &lock).unwrap();
            shared.close(fs, description).unwrap();
        }),
        ("in transit", |shared, fs, _, description| {
            shared.hold_in_transit(description).unwrap();
            shared.release_in_transit(fs, description).unwrap();
        }),
        ("offset", |shared, _, _, description| shared.offset(description).unwrap().set(7)),
    ];
    let mut stores = 0;
    for (what, work) in works {
        stores += after_every_store(|count| {
            let (shared, fs, nodes) = private();
            // Two in the bucket beside it, so that chains have middles.
            let others = [open(&shared, &fs, nodes[0]), open(&shared, &fs, nodes[0])];
            let description = open(&shared, &fs, nodes[0]);
            let last = open(&shared, &fs, nodes[0]);
            let outcome = run_abandoned(&[shared.session()], count, || work(&shared, &fs, &nodes, description));
            assert!(shared.in_use(nodes[0]), "{what} {count}");
            let at = shared.offset(last).unwrap().get();
            assert_eq!(at, 0);
            if let Ok(offset) = shared.offset(description) {
                assert!([0, 7].contains(&offset.get()));
            }
            for kept in others.into_iter().chain([last]) {
                assert_eq!(shared.info(kept).unwrap().node, nodes[0], "{what} {count}");
                shared.close(&fs, kept).unwrap();
            }
            // The dead thread's process lives on here, so what it had opened stays. What has no user goes.
            shared.reap(&fs).unwrap();
            let used = nodes.iter().any(|node| shared.in_use(*node));
            assert!(used || shared.descriptions().unwrap() == 0, "{what} after {count} stores");
            // As if the process had ended:
            shared.take_back(shared.session().participant()).unwrap();
            shared.sweep(&fs).unwrap();
            let in_transit = usize::from(what == "in transit" && shared.in_use(nodes[0]));
            assert_eq!(shared.descriptions().unwrap(), in_transit, "{what} after {count} stores");
            assert!(!shared.in_use(nodes[1]));
            assert_eq!(shared.records().unwrap(), 0, "{what} after {count} stores");
            let all: Vec<_> = (in_transit..64).map(|_| open(&shared, &fs, nodes[2])).collect();
            assert_eq!(all.len() + in_transit, 64, "no object leaked");
            outcome
        });
    }
    println!("{stores} stores, each the last one once");
    assert!(stores > 100);
}

// ---- processes ----

const ROLE: &str = "GANNET_VFS_TEST_ROLE";

struct Nothing;

impl VolumeGuard for Nothing {
    fn first(&mut self, _: &Arc<Session>, _: ArenaIdentity) -> gannet_shm::Result<()> {
        Ok(())
    }
    fn joined(&mut self, _: &Arc<Session>, _: ArenaIdentity) -> gannet_shm::Result<()> {
        Ok(())
    }
    fn last(&mut self, _: &Session, _: ArenaIdentity) -> gannet_shm::Result<()> {
        Ok(())
    }
}

fn attach(nonce: u64) -> Arc<Shared> {
    let layout = Shared::layout(ArenaLayout::new().limits(LIMITS.participants, LIMITS.threads), &LIMITS);
    let identity = VolumeIdentity { uuid: *b"vfs shared tests", nonce };
    Shared::new(Session::attach(identity, &layout, &mut Nothing).unwrap(), &LIMITS).unwrap()
}

/// What the other process does; not a test of its own.
#[test]
fn other_process() {
    let Some(role) = std::env::var(ROLE).ok() else { return };
    let mut words = role.split(' ');
    let (what, nonce) = (words.next().unwrap(), words.next().unwrap().parse().unwrap());
    let shared = attach(nonce);
    let fs = MemoryFs::new(Limits::default(), 0o755, Owner::default()).unwrap();
    let nodes = nodes(&fs);
    let me = shared.process_owner().unwrap();
    let description = open(&shared, &fs, nodes[0]);
    let lock = request(nodes[0], me, Some(true), 0, 10);
    match what {
        "hold" => {
            shared.try_lock(&fs, &lock).unwrap();
            let all = request(nodes[0], LockOwner::Flock(description), Some(true), 0, LockRange::END);
            shared.try_lock(&fs, &all).unwrap();
            println!("ready {}", description.word());
            loop {
                std::thread::sleep(Duration::from_secs(60));
            }
        }
        _ => {
            println!("ready {}", description.word());
            // Everything, as fast as it goes, until killed.
            let mut kept = std::collections::VecDeque::new();
            for round in 0_u64.. {
                let description = open(&shared, &fs, nodes[round as usize % 4]);
                _ = shared
                    .try_lock(&fs, &request(nodes[1], me, Some(round.is_multiple_of(2)), round % 50, round % 50 + 9));
                let node = nodes[round as usize % 4];
                let all = request(node, LockOwner::Flock(description), Some(true), 0, LockRange::END);
                _ = shared.try_lock(&fs, &all);
                _ = shared.try_lock(&fs, &request(nodes[1], me, None, round % 30, round % 30 + 20));
                kept.push_back(description);
                if kept.len() > 9 {
                    shared.close(&fs, kept.remove(round as usize % 7).unwrap()).unwrap();
                }
                if round.is_multiple_of(97) {
                    shared.unlock_process(nodes[1]).unwrap();
                }
            }
        }
    }
}

fn spawn(what: &str, nonce: u64) -> (Child, Description) {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "other_process", "--nocapture"])
        .env(ROLE, format!("{what} {nonce}"))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let word = loop {
        let line = lines.next().expect("the child speaks").unwrap();
        if let Some((_, word)) = line.split_once("ready ") {
            break word.trim().parse().unwrap();
        }
    };
    (child, Description::from_word(word).unwrap())
}

#[test]
fn what_a_killed_process_had_is_free_within_milliseconds() {
    let nonce = u64::from(std::process::id()) << 8 | 1;
    let shared = attach(nonce);
    let fs = MemoryFs::new(Limits::default(), 0o755, Owner::default()).unwrap();
    let nodes = nodes(&fs);
    let me = shared.process_owner().unwrap();
    let mine = request(nodes[0], me, Some(true), 5, 6);
    for _ in 0..5 {
        let (mut child, theirs) = spawn("hold", nonce);
        assert_eq!(shared.info(theirs).unwrap().node, nodes[0]);
        assert!(shared.in_use(nodes[0]));
        assert_eq!(shared.try_lock(&fs, &mine).unwrap_err().errno(), Errno::AGAIN);
        let told = shared.test_lock(&mine).unwrap().unwrap();
        assert_eq!((told.exclusive, told.range), (true, LockRange { start: 0, end: 10 }));
        let waited = std::thread::scope(|scope| {
            let waiter = scope.spawn(|| {
                shared.lock(&fs, &mine, &mut || false).unwrap();
                Instant::now()
            });
            std::thread::sleep(Duration::from_millis(20));
            let killed_at = Instant::now();
            child.kill().unwrap();
            child.wait().unwrap();
            waiter.join().unwrap().saturating_duration_since(killed_at)
        });
        println!("the lock came {waited:?} after the kill");
        assert!(waited < Duration::from_secs(60));
        shared.reap(&fs).unwrap();
        assert!(!shared.in_use(nodes[0]));
        assert_eq!((shared.descriptions().unwrap(), shared.records().unwrap()), (0, 1));
        shared.unlock_process(nodes[0]).unwrap();
    }
    shared.session().detach(&mut Nothing).unwrap();
}

#[test]
fn processes_killed_at_random_leave_nothing() {
    let nonce = u64::from(std::process::id()) << 8 | 2;
    let shared = attach(nonce);
    let fs = MemoryFs::new(Limits::default(), 0o755, Owner::default()).unwrap();
    let nodes = nodes(&fs);
    let rounds = if std::env::var_os("GANNET_LONG").is_some() { 500 } else { 12 };
    let mut random = Random(42);
    for _ in 0..rounds {
        let mut children = [spawn("work", nonce).0, spawn("work", nonce).0];
        std::thread::sleep(Duration::from_micros(500 + random.below(15_000)));
        for child in &mut children {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        shared.reap(&fs).unwrap();
        for node in &nodes {
            for owner in [process(99), LockOwner::Flock(Description::from_word(u64::MAX).unwrap())] {
                let told = shared.test_lock(&request(*node, owner, Some(true), 0, LockRange::END)).unwrap();
                assert_eq!(told, None, "{node:?}; {:?}", shared.session().participant_list());
            }
        }
        assert_eq!((shared.descriptions().unwrap(), shared.records().unwrap()), (0, 0));
    }
    shared.session().detach(&mut Nothing).unwrap();
}
