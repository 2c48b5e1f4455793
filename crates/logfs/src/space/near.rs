//! Where the volume's media lie on several NUMA nodes: which pools are near which processor, so that a thread gets blocks from
//! those first.
//!
//! A matter of speed alone: nothing relies on where a block comes from. Without such media there is none of this, and every
//! thread begins with the pool that its slot says.

use super::SpaceLayout;
use gannet_media::MachineNode;
use std::ops::Range;

/// The order of pools for the processors of each node.
pub struct Nearness {
    orders: Vec<Order>,
    /// The order of each processor, by its number.
    of_processor: Vec<usize>,
    /// Which processor the calling thread runs on.
    processor: fn() -> usize,
}

/// All pools, those near a node first.
struct Order {
    pools: Vec<u64>,
    near: usize,
}

/// In which order one allocation asks the pools.
#[derive(Clone, Copy)]
pub(super) struct PoolOrder<'n> {
    pools: u64,
    slot: u32,
    near: Option<&'n Order>,
}

impl Nearness {
    /// For media of these blocks on these nodes, `None` where it is not known; nothing where it makes no difference.
    pub fn of(
        layout: &SpaceLayout,
        media: &[(Range<u64>, Option<u32>)],
        nodes: &[MachineNode],
        processor: fn() -> usize,
    ) -> Option<Self> {
        if media.iter().all(|(_, node)| *node == media[0].1) {
            return None;
        }
        // A pool that lies on several counts as where its middle lies.
        let node_of = |pool: u64| {
            let start = pool * layout.pool_blocks();
            let middle = start + layout.pool_blocks().min(layout.blocks() - start) / 2;
            media.iter().find(|(blocks, _)| blocks.contains(&middle)).and_then(|(_, node)| *node)
        };
        let order = |node: &MachineNode| {
            let (near, far): (Vec<u64>, Vec<u64>) =
                (0..layout.pools()).partition(|&pool| node_of(pool) == Some(node.number));
            Order { near: near.len(), pools: near.into_iter().chain(far).collect() }
        };
        // Behind those of the nodes one for processors of none.
        let none = Order { pools: (0..layout.pools()).collect(), near: 0 };
        let mut of_processor = Vec::new();
        for (index, node) in nodes.iter().enumerate() {
            for &processor in &node.processors {
                let processor = processor as usize;
                of_processor.resize(of_processor.len().max(processor + 1), nodes.len());
                of_processor[processor] = index;
            }
        }
        Some(Self { orders: nodes.iter().map(order).chain([none]).collect(), of_processor, processor })
    }

    /// The order for the calling thread, here and now.
    fn here(&self) -> Option<&Order> {
        let order = self.of_processor.get((self.processor)()).and_then(|&order| self.orders.get(order));
        order.filter(|order| order.near > 0)
    }
}

impl<'n> PoolOrder<'n> {
    #[inline]
    pub(super) fn of(pools: u64, slot: u32, nearness: Option<&'n Nearness>) -> Self {
        Self { pools, slot, near: nearness.and_then(Nearness::here) }
    }

    /// All pools, each once.
    #[inline]
    pub(super) fn all(self) -> impl Iterator<Item = u64> {
        let (near, far) = match self.near {
            Some(order) => order.pools.split_at(order.near),
            None => (&[][..], &[][..]),
        };
        // 32 bits divide twice as fast.
        let own = u64::from(self.slot % self.pools as u32);
        let usual = if self.near.is_none() { self.pools } else { 0 };
        rotated(near, self.slot).chain(rotated(far, self.slot)).chain((own..usual).chain(0..own.min(usual)))
    }
}

/// The elements from one on, then those before it.
fn rotated(pools: &[u64], slot: u32) -> impl Iterator<Item = u64> {
    let at = if pools.is_empty() { 0 } else { slot as usize % pools.len() };
    pools[at..].iter().chain(&pools[..at]).copied()
}
