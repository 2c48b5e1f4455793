//! Prints what lookups in an index and allocations of blocks cost, in nanoseconds.
//!
//! `cargo run --release -p gannet-logfs --example index_space`. Building an example takes the test dependencies in,
//! with which every store to shared memory is counted: changes look up to twice as slow as they are.

#![forbid(unsafe_code)]

use gannet_logfs::index::{Extents, IndexError, NODE_WORDS, NodePool, Tree};
use gannet_logfs::space::{Extent, Space, SpaceLayout};
use gannet_shm::{ArenaLayout, Session, Word};
use std::hint::black_box;
use std::time::Instant;

const ROUNDS: u64 = 2_000_000;

/// Nanoseconds for each of so many calls in all; the best of runs of 20000, which a busy machine lets through whole.
fn time(rounds: u64, mut work: impl FnMut(u64)) -> f64 {
    const RUN: u64 = 20_000;
    let mut best = f64::MAX;
    for run in 0..rounds / RUN {
        let begin = Instant::now();
        for round in 0..RUN {
            work(run * RUN + round);
        }
        best = best.min(begin.elapsed().as_nanos() as f64 / RUN as f64);
    }
    best
}

fn scatter(value: u64) -> u64 {
    let value = (value ^ (value >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    let value = (value ^ (value >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    value ^ (value >> 33)
}

fn index() -> Result<(), IndexError> {
    let words: Vec<Word> = (0..140_000 * NODE_WORDS).map(|_| Word::new(0)).collect();
    let epochs = |_owner: u32| Some(0);
    println!("index: entries  get(hit)  get(miss)  floor  extent lookup  insert+remove");
    for (owner, entries) in [1u64, 30, 1000, 1_000_000].into_iter().enumerate() {
        let owner = owner as u32 * 2 + 1;
        let pool = NodePool::new(&words, &epochs);
        let (root, map_root) = (Word::new(0), Word::new(0));
        let tree = Tree::new(pool, owner, 0, &root);
        let extents = Extents::new(Tree::new(pool, owner + 1, 0, &map_root));
        for entry in 0..entries {
            tree.insert(scatter(entry), entry, &mut tree.reserve(&[scatter(entry)])?)?;
            // One block each, never contiguous.
            extents.map(entry, entry * 2, 1, &mut extents.reserve(entry, 1)?, &mut |_| {})?;
        }
        // Keys in an order that no prefetcher knows, made outside of the loop that is timed.
        let order: Vec<u64> = (0..1 << 16).map(|round| scatter(round) % entries).collect();
        let pick = |round: u64| order[round as usize & 0xffff];
        let hit = time(ROUNDS, |round| {
            let _ = black_box(tree.get(scatter(pick(round))));
        });
        let miss = time(ROUNDS, |round| {
            let _ = black_box(tree.get(scatter(pick(round)) ^ 1));
        });
        let floor = time(ROUNDS, |round| {
            let _ = black_box(tree.floor(scatter(pick(round)) ^ 1));
        });
        let lookup = time(ROUNDS, |round| {
            let _ = black_box(extents.lookup(pick(round)));
        });
        let change = time(ROUNDS / 4, |round| {
            let key = scatter(pick(round)) ^ 5;
            if let Ok(mut nodes) = tree.reserve(&[key]) {
                let _ = black_box(tree.insert(key, 1, &mut nodes));
            }
            let _ = black_box(tree.remove(key));
        });
        println!("{entries:15}  {hit:8.1}  {miss:9.1}  {floor:5.1}  {lookup:13.1}  {change:13.1}");
        extents.tree().clear();
        tree.clear();
    }
    Ok(())
}

fn append() -> Result<(), IndexError> {
    let words: Vec<Word> = (0..140_000 * NODE_WORDS).map(|_| Word::new(0)).collect();
    let (epochs, root) = (|_owner: u32| Some(0), Word::new(0));
    let extents = Extents::new(Tree::new(NodePool::new(&words, &epochs), 1, 0, &root));
    let append = |file_block: u64, block: u64| -> Result<(), IndexError> {
        extents.map(file_block, block, 1, &mut extents.reserve(file_block, 1)?, &mut |_| {})
    };
    let mut next = 0;
    let joined = time(500_000, |_| {
        next += 1;
        let _ = black_box(append(next, next));
    });
    let shape = extents.tree().check()?;
    extents.tree().clear();
    for file_block in 0..10_000 {
        append(file_block, file_block * 2)?;
    }
    let replaced = time(500_000, |round| {
        let _ = black_box(append(scatter(round) % 10_000, scatter(round) % (1 << 30) * 2));
    });
    println!("map one block: append that joins {joined:.1}, overwrite among 10000 extents {replaced:.1} ({shape:?})");
    Ok(())
}

fn space() -> Result<(), Box<dyn std::error::Error>> {
    const BLOCKS: u64 = 1 << 20;
    let layout = SpaceLayout::for_blocks(BLOCKS);
    let session = Session::private(&ArenaLayout::new().region("space", layout.bytes(), layout.align()))?;
    let start = session.arena().region("space")?.start;
    let fresh = || Space::new(session.arena(), start, layout);
    let error = |error| format!("{error:?}");
    let space = fresh().map_err(error)?;
    space.mark_all_free();
    space.recount_all();
    for want in [1, 8, 512, 4096] {
        let both = time(ROUNDS / 4, |_| {
            let Ok(thread) = session.thread() else { return };
            let Ok(space) = fresh() else { return };
            if let Ok(held) = space.allocate(&thread, want, None, false) {
                let extent = held.extent();
                space.keep(&thread, held);
                if let Ok(held) = space.hold(&thread, extent) {
                    let _ = space.release(&thread, held);
                }
            }
        });
        println!("space: allocate, keep, hold and release {want} blocks: {both:.1}");
    }
    let thread = session.thread()?;
    // A file that grows by one block each time, continuing where it ended.
    let mut goal = 0;
    let begin = Instant::now();
    for _ in 0..BLOCKS / 2 {
        let held = space.allocate(&thread, 1, Some(goal), false).map_err(error)?;
        goal = held.extent().end() % BLOCKS;
        space.keep(&thread, held);
    }
    println!("space: append of one block at a goal: {:.1}", begin.elapsed().as_nanos() as f64 / (BLOCKS / 2) as f64);
    let begin = Instant::now();
    let mut random = 1;
    for _ in 0..BLOCKS / 4 {
        random = scatter(random + 1);
        if !space.is_free(random % BLOCKS) {
            let held = space.hold(&thread, Extent { start: random % BLOCKS, count: 1 }).map_err(error)?;
            space.release(&thread, held).map_err(error)?;
        }
        let held = space.allocate(&thread, 1, None, false).map_err(error)?;
        space.keep(&thread, held);
    }
    println!(
        "space: random release, allocate, fragmented: {:.1}",
        begin.elapsed().as_nanos() as f64 / (BLOCKS / 4) as f64
    );
    Ok(())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    index().map_err(|error| format!("{error:?}"))?;
    append().map_err(|error| format!("{error:?}"))?;
    space()
}
