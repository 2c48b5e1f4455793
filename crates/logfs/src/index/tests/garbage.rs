//! Random words in nodes: every operation ends, without a panic, and leaves other inodes' nodes alone.

use super::super::{Extents, IndexError};
use super::{Lab, Random, effort, mix};
use gannet_shm::Ordering::Relaxed;
use gannet_shm::testing::{after_every_store, run_abandoned};

fn build(lab: &Lab, owner: u32, entries: u64) {
    let tree = lab.tree(owner);
    for entry in 0..entries {
        let key = mix(entry + u64::from(owner) * 1000) >> 20;
        tree.insert(key, key << 24 | 1, &mut tree.no_reservation().unwrap()).unwrap();
    }
}

/// Overwrites some words of the nodes of inode 1 with nonsense of several kinds, half of them in inner nodes.
fn spoil(lab: &Lab, random: &mut Random, words: u64) {
    let load = |node: usize, word: usize| lab.words[node * 64 + word].load(Relaxed);
    let own: Vec<usize> = (1..lab.words.len() / 64).filter(|&node| load(node, 0) >> 32 == 1).collect();
    let inner: Vec<usize> = own.iter().copied().filter(|&node| load(node, 1) >> 32 > 0).collect();
    for _ in 0..words {
        let among = if random.below(2) == 0 && !inner.is_empty() { &inner } else { &own };
        if among.is_empty() {
            return;
        }
        let node = among[random.below(among.len() as u64) as usize];
        let word = match random.below(4) {
            0 => 1,
            1 => 2 + random.below(31) as usize,
            _ => 33 + random.below(31) as usize,
        };
        let nonsense = match random.below(7) {
            0 => random.next(),
            1 => u64::MAX,
            2 => 0,
            3 => random.below(12) << 32 | random.below(33),
            // Another node, or itself: cycles, shared children, foreign nodes.
            4 => random.below(lab.words.len() as u64 / 64 + 2),
            _ => among[random.below(among.len() as u64) as usize] as u64,
        };
        lab.words[node * 64 + word].store(nonsense, Relaxed);
    }
}

#[test]
fn garbage_is_survived() {
    let mut torn = 0u64;
    for seed in 0..400 * effort() {
        let mut random = Random(seed);
        let lab = Lab::new(200);
        build(&lab, 1, 1 + random.below(1500));
        build(&lab, 2, 900);
        let shape = lab.tree(2).check().unwrap();
        for _ in 0..30 {
            let spoiled = 1 + random.below(8);
            spoil(&lab, &mut random, spoiled);
            let tree = lab.tree(1);
            let extents = Extents::new(tree);
            let key = random.next() >> 20;
            let mut visited = 0u64;
            torn += u64::from(tree.get(key) == Err(IndexError::Torn));
            torn += u64::from(tree.floor(key) == Err(IndexError::Torn));
            torn += u64::from(tree.ceiling(key) == Err(IndexError::Torn));
            let _ = tree.for_each_from(key >> random.below(40), &mut |_, _| {
                visited += 1;
                true
            });
            assert!(visited <= 201 * 31);
            torn += u64::from(tree.check() == Err(IndexError::Torn));
            torn += u64::from(extents.check() == Err(IndexError::Torn));
            let _ = extents.lookup(key);
            if let Ok(mut nodes) = extents.reserve(key, 5) {
                match random.below(6) {
                    0 => drop(tree.insert(key, 1, &mut nodes)),
                    1 => drop(tree.remove_keeping(key, &mut nodes)),
                    2 => drop(extents.map(key, 77, 5, &mut nodes, &mut |_| {})),
                    3 => drop(extents.unmap(key >> 10, 1 << 40, &mut nodes, &mut |_| {})),
                    4 => drop(extents.shift(key, -5, &mut nodes)),
                    _ => drop(tree.replace(key, 3)),
                }
            }
            let shared: Vec<u64> = (0..9).map(|_| random.next() >> 20).collect();
            for key in shared {
                let key = tree.ceiling(key).ok().flatten().map_or(key, |entry| entry.0);
                let _ = tree.remove(key);
            }
        }
        if seed % 2 == 0 {
            lab.tree(1).clear();
        }
        assert_eq!(lab.tree(2).check(), Ok(shape), "another inode's nodes were touched");
        lab.drop_index(1);
        assert_eq!(lab.pool().live_count(None), shape.nodes);
    }
    assert!(torn > 1000, "the garbage was noticed {torn} times only");
}

/// What one operation of a writer does to inode 1: enough to split and to merge.
fn change(lab: &Lab, from: u64) {
    let tree = lab.tree(1);
    for key in from..from + 40 {
        let mut nodes = tree.reserve(&[key, key + 500]).unwrap();
        tree.insert(key, value_of(key), &mut nodes).unwrap();
        tree.insert(key + 500, value_of(key + 500), &mut nodes).unwrap();
    }
    for key in from + 3..from + 37 {
        tree.remove(key).unwrap();
    }
}

fn value_of(key: u64) -> u64 {
    mix(key) | 1
}

#[test]
fn a_writer_killed_after_any_store_leaves_nothing_that_matters() {
    let stores = after_every_store(|stores| {
        let lab = Lab::new(80);
        change(&lab, 0);
        build(&lab, 2, 200);
        let shape = lab.tree(2).check().unwrap();
        let outcome = run_abandoned(&[], stores, || change(&lab, 1000));
        // Whoever reads before anybody noticed survives it.
        for key in 0..1600 {
            let tree = lab.tree(1);
            let _ = (tree.get(key), tree.floor(key), tree.ceiling(key));
        }
        let _ = lab.tree(1).check();
        // Whoever comes next drops the index and builds another, in nodes that are all there.
        lab.drop_index(1);
        assert_eq!(lab.pool().live_count(None), shape.nodes);
        change(&lab, 2000);
        assert_eq!(lab.tree(1).get(2001), Ok(Some(value_of(2001))));
        assert_eq!(lab.pool().live_count(Some(1)), lab.tree(1).check().unwrap().nodes);
        assert_eq!(lab.tree(2).check(), Ok(shape));
        let mut rest = Vec::new();
        while let Ok(one) = lab.pool().reserve(3, 0, 1) {
            rest.push(one);
        }
        assert_eq!(lab.pool().live_count(None), lab.pool().capacity());
        outcome
    });
    assert!(stores > 1000, "{stores}");
}
