//! The tree against `BTreeMap`, seeded random; reservations; epochs; a full pool.

use super::super::IndexError;
use super::{Lab, Random, effort};
use std::collections::BTreeMap;

fn same(lab: &Lab, owner: u32, oracle: &BTreeMap<u64, u64>) {
    let tree = lab.tree(owner);
    let shape = tree.check().unwrap();
    assert_eq!(shape.entries, oracle.len() as u64);
    assert_eq!(shape.nodes, lab.pool().live_count(Some(owner)), "nodes outside of the tree");
    let mut entries = Vec::new();
    tree.for_each_from(0, &mut |key, value| {
        entries.push((key, value));
        true
    })
    .unwrap();
    assert!(entries.iter().copied().eq(oracle.iter().map(|(&key, &value)| (key, value))));
}

fn probe(lab: &Lab, owner: u32, oracle: &BTreeMap<u64, u64>, key: u64) {
    let tree = lab.tree(owner);
    let pair = |(&key, &value): (&u64, &u64)| (key, value);
    assert_eq!(tree.get(key).unwrap(), oracle.get(&key).copied());
    assert_eq!(tree.floor(key).unwrap(), oracle.range(..=key).next_back().map(pair));
    assert_eq!(tree.ceiling(key).unwrap(), oracle.range(key..).next().map(pair));
}

/// Inserts one key with a reservation and checks that exactly what was reserved went into the tree.
fn insert_exactly(lab: &Lab, key: u64, value: u64, oracle: &mut BTreeMap<u64, u64>) {
    let tree = lab.tree(1);
    let mut nodes = tree.reserve(&[key]).unwrap();
    let reserved = nodes.count();
    let old = tree.insert(key, value, &mut nodes).unwrap();
    assert_eq!(old, oracle.insert(key, value));
    if old.is_none() {
        assert_eq!(nodes.count(), 0, "{reserved} nodes reserved");
    }
    drop(nodes);
    if reserved > 1 {
        assert_eq!(tree.check().unwrap().nodes, lab.pool().live_count(Some(1)));
    }
}

/// A reservation of exactly what one insertion needs, when the pool has nothing else.
#[test]
fn a_reservation_suffices_in_an_empty_pool() {
    for entries in [0, 30, 31, 31 * 31 - 1, 31 * 31, 31 * 31 + 1, 31 * 31 * 31] {
        for probe in 0..20 {
            let lab = Lab::new(1200);
            let tree = lab.tree(1);
            for key in 0..entries {
                tree.insert(key * 10, key, &mut tree.no_reservation().unwrap()).unwrap();
            }
            let key = probe * entries / 19 * 10 + 5;
            let mut nodes = tree.reserve(&[key]).unwrap();
            let mut rest = Vec::new();
            while let Ok(one) = lab.pool().reserve(2, 0, 1) {
                rest.push(one);
            }
            assert_eq!(tree.insert(key, 1, &mut nodes), Ok(None));
            assert_eq!((tree.get(key), nodes.count()), (Ok(Some(1)), 0));
        }
    }
}

/// The first key of an inner node goes stale when its first child is freed; merging must not believe it.
#[test]
fn a_merge_of_inner_nodes_keeps_every_key_in_reach() {
    for empty in 20..31 {
        let lab = Lab::new(4096);
        let tree = lab.tree(1);
        let mut oracle = BTreeMap::new();
        for key in 0..31 * 31 * 3 {
            tree.insert(key * 10, key, &mut tree.no_reservation().unwrap()).unwrap();
            oracle.insert(key * 10, key);
        }
        let second = 31 * 31 * 10;
        let remove = |from: u64, to: u64, oracle: &mut BTreeMap<u64, u64>| {
            for key in (from..to).step_by(10) {
                assert_eq!(tree.remove(key).unwrap(), oracle.remove(&key));
            }
        };
        // The first leaf of the second inner node goes; its place is taken by a key in the second leaf.
        remove(second, second + 310, &mut oracle);
        tree.insert(second + 5, 77, &mut tree.no_reservation().unwrap()).unwrap();
        oracle.insert(second + 5, 77);
        remove(second - empty * 310, second, &mut oracle);
        remove(second + 31 * 310 - empty * 310, second + 31 * 310, &mut oracle);
        same(&lab, 1, &oracle);
        for key in second - 20..second + 400 {
            probe(&lab, 1, &oracle, key);
        }
    }
}

/// Grows to about `target` entries and shrinks again, several times.
fn against_oracle(seed: u64, key_limit: u64, target: u64, operations: u64, ascending: bool) {
    let lab = Lab::new(4096);
    let mut random = Random(seed);
    let mut oracle = BTreeMap::new();
    let mut next_key = 0;
    for operation in 0..operations {
        let growing = (operation / (3 * target)).is_multiple_of(2);
        let key = match random.below(16) {
            0 => u64::MAX - random.below(3),
            1 => random.below(3),
            _ => random.below(key_limit),
        };
        let tree = lab.tree(1);
        match random.below(10) {
            0..6 if growing && ascending => {
                next_key += 1 + random.below(3);
                insert_exactly(&lab, next_key, operation, &mut oracle);
            }
            0..2 if growing => insert_exactly(&lab, key, operation, &mut oracle),
            0..6 if growing => {
                // A reservation suffices, and a removal in between does not change that.
                let mut nodes = tree.reserve(&[key, key.wrapping_add(1)]).unwrap();
                let other = oracle.range(random.below(key_limit)..).next().map_or(0, |(&key, _)| key);
                let live = (operation % 8 == 0).then(|| lab.pool().live_count(Some(1)));
                assert_eq!(tree.remove_keeping(other, &mut nodes).unwrap(), oracle.remove(&other));
                assert!(live.is_none_or(|live| live == lab.pool().live_count(Some(1))), "nodes are kept");
                for key in [key, key.wrapping_add(1)] {
                    assert_eq!(tree.insert(key, operation, &mut nodes).unwrap(), oracle.insert(key, operation));
                }
            }
            0..7 => {
                // Half of the time something that is there.
                let key = oracle.range(key..).next().map_or(key, |(&key, _)| key);
                assert_eq!(tree.remove(key).unwrap(), oracle.remove(&key));
            }
            7 if random.below(200) == 0 => {
                // A whole stretch, so that nodes of all levels are freed and merged.
                let stretch: Vec<u64> = oracle.range(key..).take(400).map(|(&key, _)| key).collect();
                for key in stretch {
                    assert_eq!(tree.remove(key).unwrap(), oracle.remove(&key));
                }
            }
            7 => {
                let expected = oracle.get_mut(&key).map(|value| core::mem::replace(value, operation));
                assert_eq!(tree.replace(key, operation).unwrap(), expected);
            }
            _ => probe(&lab, 1, &oracle, key),
        }
        if operation % 97 == 0 {
            same(&lab, 1, &oracle);
        }
    }
    same(&lab, 1, &oracle);
    lab.tree(1).clear();
    assert_eq!(lab.pool().live_count(None), 0);
    assert!(lab.tree(1).is_empty());
}

#[test]
fn agrees_with_the_oracle() {
    for seed in 0..4 * effort() {
        against_oracle(seed, 200, 100, 4000, false);
        against_oracle(seed, 1 << 40, 3000, 40_000, false);
        against_oracle(seed, 20_000, 5000, 40_000, true);
    }
}

#[test]
fn every_small_order_of_removals() {
    // Two levels, every pair of keys removed first, then all from one side.
    for first in 0..70 {
        for second in 0..70 {
            let lab = Lab::new(64);
            let tree = lab.tree(1);
            let mut oracle = BTreeMap::new();
            for key in 0..70 {
                let key = key * 37 % 70;
                tree.insert(key, key, &mut tree.no_reservation().unwrap()).unwrap();
                oracle.insert(key, key);
            }
            let rest: Vec<u64> = if first < second { (0..70).collect() } else { (0..70).rev().collect() };
            for key in [first, second].into_iter().chain(rest) {
                assert_eq!(tree.remove(key).unwrap(), oracle.remove(&key));
                if oracle.len() % 16 == 3 {
                    same(&lab, 1, &oracle);
                }
            }
            assert!(tree.is_empty() && lab.pool().live_count(None) == 0);
        }
    }
}

#[test]
fn ascending_keys_fill_nodes() {
    let lab = Lab::new(4096);
    let tree = lab.tree(1);
    for key in 0..31 * 1000 {
        tree.insert(key, key, &mut tree.no_reservation().unwrap()).unwrap();
    }
    assert!(tree.check().unwrap().nodes < 1000 + 40);
}

#[test]
fn a_full_pool_changes_nothing() {
    let lab = Lab::new(6);
    let (tree, other) = (lab.tree(1), lab.tree(2));
    other.insert(1, 1, &mut other.no_reservation().unwrap()).unwrap();
    let mut oracle = BTreeMap::new();
    let mut random = Random(9);
    let refused = loop {
        let key = random.next();
        match tree.insert(key, key, &mut tree.no_reservation().unwrap()) {
            Ok(_) => oracle.insert(key, key),
            Err(error) => break (error, key),
        };
        same(&lab, 1, &oracle);
    };
    assert_eq!(refused.0, IndexError::Full);
    assert_eq!(tree.reserve(&[refused.1]).err(), Some(IndexError::Full));
    same(&lab, 1, &oracle);
    assert_eq!(other.get(1), Ok(Some(1)));
    // The other inode is evicted: its node is found by the scan.
    lab.drop_index(2);
    let mut nodes = tree.reserve(&[refused.1]).unwrap();
    tree.insert(refused.1, 0, &mut nodes).unwrap();
    assert_eq!(tree.get(refused.1), Ok(Some(0)));
}

#[test]
fn raising_the_epoch_frees_everything_at_once() {
    let lab = Lab::new(100);
    for round in 0..50u64 {
        let tree = lab.tree(1);
        assert!(tree.is_empty());
        // Some nodes are lost by a killed writer: reserved and never returned.
        core::mem::forget(tree.pool.reserve(1, tree.epoch, 3).unwrap());
        for key in 0..1000 {
            tree.insert(key ^ round, round, &mut tree.no_reservation().unwrap()).unwrap();
        }
        assert_eq!(lab.pool().live_count(None), tree.check().unwrap().nodes + 3);
        lab.drop_index(1);
        assert_eq!(lab.pool().live_count(None), 0);
        // A handle from before is of no use and does no harm.
        assert_eq!(tree.get(1), Ok(None));
    }
}

#[test]
fn a_stale_handle_touches_nobody_elses_nodes() {
    let lab = Lab::new(40);
    let tree = lab.tree(1);
    for key in 0..600 {
        tree.insert(key, key, &mut tree.no_reservation().unwrap()).unwrap();
    }
    let root = lab.roots[1].load(gannet_shm::Ordering::Relaxed);
    lab.drop_index(1);
    let other = lab.tree(2);
    for key in 0..600 {
        other.insert(key, !key, &mut other.no_reservation().unwrap()).unwrap();
    }
    let before = other.check().unwrap();
    // As if root had been restored by mistake: every operation finds foreign headers.
    lab.roots[1].store(root, gannet_shm::Ordering::Relaxed);
    assert_eq!(tree.get(5), Err(IndexError::Torn));
    assert_eq!(tree.remove(5), Err(IndexError::Torn));
    tree.clear();
    assert_eq!(other.check(), Ok(before));
    assert_eq!(other.get(5), Ok(Some(!5)));
}

#[test]
fn memory_is_asked_for_before_nodes_are_used() {
    use super::super::{NODE_WORDS, NodePool, PoolHost, Tree};
    use gannet_shm::{Ordering::Relaxed, Word};
    struct Host(core::cell::Cell<usize>, usize);
    impl PoolHost for Host {
        fn current_epoch(&self, _owner: u32) -> Option<u32> {
            Some(0)
        }
        fn back_words(&self, first: usize, count: usize) -> bool {
            assert_eq!(first, self.0.get());
            let grant = first + count <= self.1;
            if grant {
                self.0.set(first + count);
            }
            grant
        }
    }
    let words: Vec<Word> = (0..10_000 * NODE_WORDS).map(|_| Word::new(0)).collect();
    let host = Host(core::cell::Cell::new(0), 4096 * NODE_WORDS);
    let root = Word::new(0);
    let tree = Tree::new(NodePool::new(&words, &host), 1, 0, &root);
    let mut key = 0;
    while tree.insert(key, key, &mut tree.no_reservation().unwrap()).is_ok() {
        key += 1;
    }
    assert_eq!(tree.pool.live_count(None), 4095);
    assert!(words[4096 * NODE_WORDS..].iter().all(|word| word.load(Relaxed) == 0));
}

#[test]
fn a_reservation_from_before_an_eviction_frees_nothing_of_others() {
    let lab = Lab::new(20);
    let nodes = lab.tree(1).pool.reserve(1, 0, 10).unwrap();
    lab.drop_index(1);
    let other = lab.tree(2);
    for key in 0..200 {
        other.insert(key, key, &mut other.no_reservation().unwrap()).unwrap();
    }
    while let Ok(one) = lab.pool().reserve(2, 0, 1) {
        core::mem::forget(one);
    }
    assert_eq!(lab.pool().live_count(Some(2)), 20);
    drop(nodes);
    assert_eq!(lab.pool().live_count(Some(2)), 20);
    assert_eq!(other.check().unwrap().entries, 200);
}
