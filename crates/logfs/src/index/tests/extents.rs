//! The map of a file against a vector with one element for each block.

use super::super::{EXTENT_BLOCKS_MAX, Extents, FILE_BLOCK_LIMIT, FileExtent, IndexError, Mapping, PIECES_MAX};
use super::{Lab, Random, effort};
use std::collections::BTreeMap;

const BLOCKS: u64 = 400;

/// Set in an element whose block is shared.
const SHARED: u64 = 1 << 63;

struct Oracle(Vec<Option<u64>>);

impl Oracle {
    /// Fills a range and returns what was there, as block numbers in ascending order of file block.
    fn set(&mut self, start: u64, count: u64, block: Option<u64>) -> Vec<(u64, u64)> {
        let mut old = Vec::new();
        for file_block in start..start + count {
            let new = block.map(|block| block + (file_block - start));
            if let Some(block) = core::mem::replace(&mut self.0[file_block as usize], new) {
                old.push((file_block, block));
            }
        }
        old
    }
}

fn element(block: u64, shared: bool) -> u64 {
    block | if shared { SHARED } else { 0 }
}

fn blocks_of(extents: &[FileExtent]) -> Vec<(u64, u64)> {
    assert!(extents.windows(2).all(|pair| pair[1].file_block + pair[1].count <= pair[0].file_block));
    let mut blocks: Vec<(u64, u64)> = extents
        .iter()
        .flat_map(|extent| (0..extent.count).map(|i| (extent.file_block + i, element(extent.block + i, extent.shared))))
        .collect();
    blocks.sort_unstable();
    blocks
}

fn same(extents: &Extents<'_>, oracle: &Oracle) {
    assert_eq!(extents.check().unwrap(), oracle.0.iter().flatten().count() as u64);
    for (file_block, expected) in oracle.0.iter().enumerate() {
        let hole = oracle.0[file_block..].iter().position(Option::is_some);
        match (extents.lookup(file_block as u64).unwrap(), expected) {
            (Mapping::Blocks { block, count, shared }, Some(expected)) => {
                let block = element(block, shared);
                assert_eq!(block, *expected);
                let ahead = &oracle.0[file_block..file_block + count as usize];
                assert!(ahead.iter().enumerate().all(|(offset, other)| *other == Some(block + offset as u64)));
            }
            (Mapping::Hole { count }, None) => {
                let expected = hole.map_or(FILE_BLOCK_LIMIT - file_block as u64, |distance| distance as u64);
                assert_eq!(count, expected);
            }
            (found, expected) => panic!("block {file_block}: {found:?} instead of {expected:?}"),
        }
    }
    // Every extent exactly once, from any start.
    let mut all = Vec::new();
    extents
        .for_each_from(0, &mut |extent| {
            all.push(extent);
            true
        })
        .unwrap();
    for start in (0..BLOCKS).step_by(13) {
        let mut rest = Vec::new();
        extents
            .for_each_from(start, &mut |extent| {
                rest.push(extent);
                true
            })
            .unwrap();
        let expected: Vec<FileExtent> =
            all.iter().copied().filter(|extent| extent.file_block + extent.count > start).collect();
        assert_eq!(rest, expected);
    }
}

#[test]
fn agrees_with_one_element_for_each_block() {
    for seed in 0..25 * effort() {
        let lab = Lab::new(300);
        let mut random = Random(seed);
        let mut oracle = Oracle(vec![None; BLOCKS as usize]);
        let extents = Extents::new(lab.tree(1));
        let mut foreign = BTreeMap::new();
        for operation in 0..600u64 {
            let start = random.below(BLOCKS - 1);
            let longest = if random.below(40) == 0 { BLOCKS - start } else { (BLOCKS - start).min(4) };
            let count = 1 + random.below(longest);
            let mut displaced = Vec::new();
            let mut nodes = extents.reserve(start, count).unwrap();
            let reserved = nodes.count();
            match random.below(10) {
                8 => {
                    let block = random.below(8) * 50 + start;
                    let new = FileExtent { file_block: start, block, count, shared: true };
                    extents.map_extent(new, &mut nodes, &mut |extent| displaced.push(extent)).unwrap();
                    assert_eq!(blocks_of(&displaced), oracle.set(start, count, Some(block | SHARED)));
                }
                9 => {
                    drop(nodes);
                    let shared = random.below(2) == 0;
                    let mut edges = extents.reserve_edges(start, count).unwrap();
                    extents.set_shared(start, count, shared, &mut edges).unwrap();
                    for block in oracle.0[start as usize..(start + count) as usize].iter_mut().flatten() {
                        *block = element(*block & !SHARED, shared);
                    }
                    nodes = extents.reserve(start, count).unwrap();
                }
                0..5 => {
                    // Few volume blocks, so that neighbours are often contiguous by chance; or on purpose.
                    let block = match start.checked_sub(1).and_then(|before| oracle.0[before as usize]) {
                        Some(before) if random.below(3) == 0 => (before & !SHARED) + 1,
                        _ => random.below(8) * 50 + start,
                    };
                    let mut displace = |extent| displaced.push(extent);
                    if random.below(2) == 0 {
                        extents.map(start, block, count, &mut nodes, &mut displace).unwrap();
                    } else {
                        drop(nodes);
                        let spot = extents.spot(start).unwrap();
                        let before = start.checked_sub(1).and_then(|before| oracle.0[before as usize]);
                        assert_eq!(extents.block_behind(&spot).unwrap(), before.map(|before| (before & !SHARED) + 1));
                        nodes = extents.reserve_at(&spot, start + count, 1).unwrap();
                        assert_eq!(nodes.count(), reserved);
                        extents.map_at(&spot, block, count, &mut nodes, &mut displace).unwrap();
                    }
                    assert_eq!(blocks_of(&displaced), oracle.set(start, count, Some(block)));
                }
                5 | 6 => {
                    extents.unmap(start, count, &mut nodes, &mut |extent| displaced.push(extent)).unwrap();
                    assert_eq!(blocks_of(&displaced), oracle.set(start, count, None));
                }
                _ => collapse_or_insert(&extents, &mut oracle, &mut random, start, count),
            }
            drop(nodes);
            assert!(reserved <= 28);
            if seed % 2 == 1 {
                change_foreign(&lab, &mut foreign, &mut random, operation);
            }
            if operation % 20 == 0 || seed < 4 {
                same(&extents, &oracle);
                let mut found = Vec::new();
                let add = &mut |key, value| {
                    found.push((key, value));
                    true
                };
                extents.tree().for_each_from(FILE_BLOCK_LIMIT, add).unwrap();
                assert!(found.into_iter().eq(foreign.iter().map(|(&key, &value)| (key, value))));
            }
            assert_eq!(lab.pool().live_count(Some(1)), lab.tree(1).check().unwrap().nodes);
        }
        same(&extents, &oracle);
    }
}

/// Entries of another kind in the same tree, behind all file blocks: no business of the map's.
fn change_foreign(lab: &Lab, foreign: &mut BTreeMap<u64, u64>, random: &mut Random, value: u64) {
    let key = match random.below(3) {
        0 => FILE_BLOCK_LIMIT + random.below(20),
        _ => 1 << 63 | random.below(40),
    };
    let tree = lab.tree(1);
    if random.below(2) == 0 {
        let mut nodes = tree.reserve(&[key]).unwrap();
        assert_eq!(tree.insert(key, value, &mut nodes).unwrap(), foreign.insert(key, value));
    } else {
        assert_eq!(tree.remove(key).unwrap(), foreign.remove(&key));
    }
}

fn collapse_or_insert(extents: &Extents<'_>, oracle: &mut Oracle, random: &mut Random, start: u64, count: u64) {
    if random.below(2) == 0 {
        let after = start + count;
        if oracle.0[start as usize..after as usize].iter().any(Option::is_some) {
            let mut nodes = extents.reserve(after, 1).unwrap();
            assert_eq!(extents.shift(after, -(count as i64), &mut nodes), Err(IndexError::Invalid));
        }
        extents.unmap(start, count, &mut extents.reserve(start, count).unwrap(), &mut |_| {}).unwrap();
        extents.shift(after, -(count as i64), &mut extents.reserve(after, 1).unwrap()).unwrap();
        oracle.0.drain(start as usize..after as usize);
        oracle.0.resize(BLOCKS as usize, None);
    } else {
        // What would be moved beyond the oracle's end goes first.
        let last = BLOCKS - count;
        extents.unmap(last, count, &mut extents.reserve(last, count).unwrap(), &mut |_| {}).unwrap();
        oracle.set(last, count, None);
        extents.shift(start, count as i64, &mut extents.reserve(start, 1).unwrap()).unwrap();
        oracle.0.splice(start as usize..start as usize, vec![None; count as usize]);
        oracle.0.truncate(BLOCKS as usize);
    }
}

/// One tree of several levels with an extent every other block, in every operation's way.
#[test]
fn reservations_suffice_when_every_node_is_full() {
    let mut random = Random(3);
    for round in 0..60u64 {
        let lab = Lab::new(2000);
        let extents = Extents::new(lab.tree(1));
        let entries = 31 * 31 + round;
        for entry in 0..entries {
            let mut nodes = extents.reserve(entry * 100, 90).unwrap();
            extents.map(entry * 100, entry * 1000, 90, &mut nodes, &mut |_| {}).unwrap();
        }
        for _ in 0..20 {
            let start = random.below(entries * 100);
            let longest = if random.below(3) == 0 { 5000 } else { 80 };
            let count = 1 + random.below(longest);
            let mut nodes = extents.reserve(start, count).unwrap();
            // No other node can be had: everybody else has them.
            let mut rest = Vec::new();
            while let Ok(one) = lab.pool().reserve(2, 0, 1) {
                rest.push(one);
            }
            extents.map(start, 1 << 30, count, &mut nodes, &mut |_| {}).unwrap();
            drop((nodes, rest));
            assert_eq!(extents.lookup(start).unwrap(), Mapping::Blocks { block: 1 << 30, count, shared: false });
        }
        extents.check().unwrap();
    }
}

/// A range that is mapped in several pieces, which add as many entries to a leaf that had room for fewer.
#[test]
fn reservations_suffice_for_several_pieces() {
    let mut random = Random(4);
    for round in 0..400u64 {
        let lab = Lab::new(600);
        let extents = Extents::new(lab.tree(1));
        // Rising, falling and drawn keys leave leaves that are full, half full and between.
        let entries = 20 + random.below(1200);
        for entry in 0..entries {
            let entry = match round % 3 {
                0 => entry,
                1 => entries - entry,
                _ => random.below(entries),
            };
            let mut nodes = extents.reserve(entry * 100, 9).unwrap();
            extents.map(entry * 100, entry * 1000, 9, &mut nodes, &mut |_| {}).unwrap();
        }
        let start = random.below(entries * 100);
        let pieces = if round % 2 == 0 { 1 + random.below(PIECES_MAX as u64) } else { 9 + random.below(240) };
        let longest = if random.below(2) == 0 { 3 } else { 300 };
        let lengths: Vec<u64> = (0..pieces).map(|_| 1 + random.below(longest)).collect();
        let count: u64 = lengths.iter().sum();
        let spot = extents.spot(start).unwrap();
        let mut nodes = if round % 2 == 0 {
            extents.reserve_at(&spot, start + count, pieces as usize).unwrap()
        } else {
            extents.reserve_pieces(start, count, pieces as usize).unwrap()
        };
        // No other node can be had: everybody else has them.
        let mut rest = Vec::new();
        while let Ok(one) = lab.pool().reserve(2, 0, 1) {
            rest.push(one);
        }
        if round % 2 == 1 {
            extents.unmap(start, count, &mut nodes, &mut |_| {}).unwrap();
        }
        let mut next = start;
        for (piece, &length) in lengths.iter().enumerate() {
            let block = (1 << 30) + piece as u64 * 1000;
            if piece == 0 && round % 2 == 0 {
                extents.map_at(&spot, block, length, &mut nodes, &mut |_| {}).unwrap();
            } else {
                extents.map(next, block, length, &mut nodes, &mut |_| {}).unwrap();
            }
            assert_eq!(
                extents.lookup(next).unwrap(),
                Mapping::Blocks { block, count: length, shared: false },
                "round {round}"
            );
            next += length;
        }
        drop((nodes, rest));
        extents.check().unwrap();
    }
}

#[test]
fn appends_join_up_to_the_longest_extent() {
    let lab = Lab::new(10);
    let extents = Extents::new(lab.tree(1));
    let mut file_block = 0;
    for count in [1, 2, 1000, EXTENT_BLOCKS_MAX - 1003, 1, 5] {
        let mut nodes = extents.reserve(file_block, count).unwrap();
        extents.map(file_block, 500 + file_block, count, &mut nodes, &mut |_| panic!("nothing was there")).unwrap();
        file_block += count;
    }
    assert_eq!(lab.tree(1).check().unwrap().entries, 2);
    assert_eq!(extents.lookup(0), Ok(Mapping::Blocks { block: 500, count: EXTENT_BLOCKS_MAX, shared: false }));
    assert_eq!(extents.check(), Ok(file_block));
}

#[test]
fn impossible_ranges_are_refused() {
    let lab = Lab::new(10);
    let extents = Extents::new(lab.tree(1));
    assert!(extents.reserve(0, 0).is_err());
    assert!(extents.reserve(FILE_BLOCK_LIMIT, 1).is_err());
    assert!(extents.reserve(u64::MAX, 2).is_err());
    let mut nodes = extents.reserve(0, 1).unwrap();
    for (file_block, block, count) in
        [(0, 0, EXTENT_BLOCKS_MAX + 1), (0, 1 << 39, 1), (0, u64::MAX, 2), (FILE_BLOCK_LIMIT - 1, 0, 2)]
    {
        assert_eq!(extents.map(file_block, block, count, &mut nodes, &mut |_| {}), Err(IndexError::Invalid));
    }
    assert_eq!(extents.lookup(FILE_BLOCK_LIMIT), Err(IndexError::Invalid));
    assert!(lab.tree(1).is_empty());
}
