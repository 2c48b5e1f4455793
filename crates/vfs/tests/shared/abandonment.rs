//! What a kill after any store leaves.

use crate::truth::{BYTES, Random, Truth};
use crate::{LIMITS, open, private, process, request};

use gannet_memfs::MemoryFs;
use gannet_shm::testing::{Outcome, after_every_store, run_abandoned};
use gannet_vfs::shared::{AccessMode, Description, LockOwner, LockRange, Shared};
use gannet_vfs::{FileSystem, Name, NewNode, NodeId, Owner};

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

/// Two inodes whose locks stand in one chain.
fn of_one_chain(fs: &MemoryFs) -> [NodeId; 2] {
    let chain = |node: &NodeId| (node.number.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32) % 64;
    let mut made: Vec<NodeId> = Vec::new();
    loop {
        let text = format!("n{}", made.len());
        let name = Name::new(text.as_bytes()).unwrap();
        let node = fs.create(fs.root(), name, &NewNode::regular(0o644, Owner::default())).unwrap();
        if let Some(other) = made.iter().find(|other| chain(other) == chain(&node)) {
            return [*other, node];
        }
        made.push(node);
    }
}

/// Locks of several owners on two inodes change at random, by threads that are killed at it now and then: what each leaves is what the
/// next begin with.
#[test]
fn locks_are_found_however_many_were_killed_at_them() {
    let (mut killed, mut random) = (0, Random(7));
    for round in 0..60 {
        let (shared, fs, _) = private();
        let nodes = of_one_chain(&fs);
        let mut truths = [Truth::default(), Truth::default()];
        for step in 0..150 {
            let which = random.below(2) as usize;
            let owner = random.below(3) as u32;
            let exclusive = [None, Some(false), Some(true), Some(false)][random.below(4) as usize];
            let start = random.below(BYTES);
            let end = start + 1 + random.below(BYTES - start);
            let stores = if random.below(3) == 0 { 1 + random.below(60) } else { u64::MAX };
            let mut after = truths[which].clone();
            let expected = after.try_lock(owner, exclusive, start, end);
            let change = request(nodes[which], process(owner), exclusive, start, end);
            let outcome = run_abandoned(&[shared.session()], stores, || {
                assert_eq!(shared.try_lock(&fs, &change).is_ok(), expected)
            });
            let context = format!("round {round}, step {step}: {change:?}, {stores} stores");
            if !matches!(outcome, Outcome::Completed(())) {
                killed += 1;
                let whole = truths[which].agrees(&shared, nodes[which]) || after.agrees(&shared, nodes[which]);
                assert!(whole || exclusive.is_none(), "neither nor: {context}");
                // Once more, since a stranger is not told whose locks those are.
                assert_eq!(shared.try_lock(&fs, &change).is_ok(), expected, "{context}");
            }
            truths[which] = after;
            for (truth, node) in truths.iter().zip(nodes) {
                assert!(truth.agrees(&shared, node), "{context}");
            }
        }
        for node in nodes {
            for owner in 0..3 {
                shared.try_lock(&fs, &request(node, process(owner), None, 0, LockRange::END)).unwrap();
            }
        }
        shared.reap(&fs).unwrap();
        assert_eq!(shared.records().unwrap(), 0, "round {round}");
    }
    assert!(killed > 300, "{killed}");
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

/// Opened and closed in any order, and killed at it now and then: each is found by what only it was opened for, which takes the walk
/// from one to the next.
#[test]
fn the_open_ones_are_found_however_the_others_left() {
    let mut random = 0x9E37_79B9_7F4A_7C15_u64;
    let mut below = |limit: u64| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) % limit
    };
    let mut killed = 0;
    for round in 0..150 {
        let (shared, fs, nodes) = private();
        let node = nodes[0];
        let mut open: Vec<(AccessMode, Description)> = Vec::new();
        let mut unused: Vec<_> = (0..32).map(|bit| AccessMode::from_bits_retain(1 << bit)).collect();
        for step in 0..120 {
            let stores = if below(3) == 0 { 1 + below(45) } else { u64::MAX };
            let opens = !unused.is_empty() && (open.is_empty() || below(2) == 0);
            if opens {
                let access = unused.swap_remove(below(unused.len() as u64) as usize);
                let work = || shared.open(&fs, node, access, 0).unwrap();
                // Who died at it leaves it opened, and nobody who knows of it, or not opened.
                match run_abandoned(&[shared.session()], stores, work) {
                    Outcome::Completed(description) => open.push((access, description)),
                    Outcome::Abandoned if !shared.is_open_for(node, access).unwrap() => unused.push(access),
                    Outcome::Abandoned => killed += 1,
                }
                continue;
            }
            if open.is_empty() {
                break;
            }
            let (access, description) =
                open.remove(if below(2) == 0 { open.len() - 1 } else { below(open.len() as u64) as usize });
            unused.push(access);
            let outcome = run_abandoned(&[shared.session()], stores, || shared.close(&fs, description).unwrap());
            if outcome == Outcome::Abandoned {
                killed += 1;
                if shared.is_open_for(node, access).unwrap() {
                    shared.close(&fs, description).unwrap();
                }
                shared.reap(&fs).unwrap();
            }
            assert!(!shared.is_open_for(node, access).unwrap(), "round {round}, step {step}");
            for (access, description) in &open {
                assert!(shared.is_open_for(node, *access).unwrap(), "round {round}, step {step}");
                assert_eq!(shared.info(*description).unwrap().access, *access);
            }
        }
        shared.take_back(shared.session().participant()).unwrap();
        shared.sweep(&fs).unwrap();
        assert_eq!(shared.descriptions().unwrap(), 0, "round {round}");
        assert!(!shared.in_use(node));
    }
    assert!(killed > 1000, "{killed}");
}
