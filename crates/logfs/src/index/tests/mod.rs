//! Tests of the index, on words of the heap. What they share: a pool, seeded random numbers.

mod extents;
mod garbage;
mod oracle;
mod readers;

use super::{NODE_WORDS, NodePool, PoolHost, Tree};
use gannet_shm::{Ordering::*, Word};

/// A node region and the epochs of a few inodes.
pub(super) struct Lab {
    pub(super) words: Vec<Word>,
    pub(super) epochs: Vec<Word>,
    pub(super) roots: Vec<Word>,
}

impl PoolHost for Lab {
    fn current_epoch(&self, owner: u32) -> Option<u32> {
        self.epochs.get(owner as usize).map(|epoch| epoch.load(Acquire) as u32)
    }

    fn back_words(&self, first: usize, count: usize) -> bool {
        first + count <= self.words.len()
    }
}

impl Lab {
    pub(super) fn new(nodes: usize) -> Lab {
        let zeros = |count: usize| (0..count).map(|_| Word::new(0)).collect();
        Lab { words: zeros((nodes + 1) * NODE_WORDS), epochs: zeros(16), roots: zeros(16) }
    }

    pub(super) fn pool(&self) -> NodePool<'_> {
        NodePool::new(&self.words, self)
    }

    pub(super) fn tree(&self, owner: u32) -> Tree<'_> {
        let epoch = self.epochs[owner as usize].load(Acquire) as u32;
        Tree::new(self.pool(), owner, epoch, &self.roots[owner as usize])
    }

    /// What evicting and reaping do.
    pub(super) fn drop_index(&self, owner: u32) {
        self.roots[owner as usize].store(0, Relaxed);
        self.epochs[owner as usize].fetch_add(1, Release);
    }
}

/// SplitMix64: the same numbers for the same seed on every machine.
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    pub(super) fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }
}

pub(super) fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

/// How many times as much to do in a long campaign.
pub(super) fn effort() -> u64 {
    if std::env::var_os("GANNET_LONG").is_some() { 50 } else { 1 }
}
