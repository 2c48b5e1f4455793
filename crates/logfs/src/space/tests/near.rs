//! Blocks near the thread that asks for them, with a machine of several nodes that is made up.

use super::super::{Nearness, SpaceLayout};
use super::private;
use gannet_media::MachineNode;
use std::cell::Cell;

thread_local! {
    static PROCESSOR: Cell<usize> = const { Cell::new(0) };
}

fn processor() -> usize {
    PROCESSOR.get()
}

const POOL: u64 = 16384;
const BLOCKS: u64 = 6 * POOL;

fn machine() -> Vec<MachineNode> {
    let node = |number, processors: &[u32]| MachineNode { number, processors: processors.to_vec() };
    vec![node(0, &[0, 1]), node(1, &[2, 3]), node(2, &[4])]
}

#[test]
fn blocks_come_from_the_callers_node_while_it_has_some() {
    let (session, rig) = private(BLOCKS);
    let layout = SpaceLayout::for_blocks(BLOCKS);
    assert_eq!(layout.pool_blocks(), POOL);
    // The second medium begins within a pool, most of which it has.
    let media = [(0..POOL + 512, Some(0)), (POOL + 512..4 * POOL, Some(1)), (4 * POOL..BLOCKS, None)];
    let nearness = Nearness::of(&layout, &media, &machine(), processor).expect("it makes a difference");
    let space = rig.space(&session).with_nearness(Some(&nearness));
    space.mark_all_free();
    space.recount_all();
    let thread = session.thread().unwrap();
    let mut taken = Vec::new();
    let mut take = |processor: usize, want: u32| {
        PROCESSOR.set(processor);
        let held = space.allocate(&thread, want, None, false).unwrap();
        let extent = held.extent();
        space.keep(&thread, held);
        taken.push(extent);
        layout.pool_of(extent.start)
    };
    for want in [1, 10, 511, 512, 3000] {
        assert_eq!(take(1, want), 0, "{want}");
        assert!((1..4).contains(&take(3, want)), "{want}");
    }
    // When node 0 has nothing left, others give; and a processor without memory of its own takes from any.
    let mut far = 0;
    for _ in 0..POOL {
        if take(0, 512) != 0 {
            far += 1;
        }
        if far == 3 {
            break;
        }
    }
    assert_eq!(far, 3);
    take(4, 1);
    take(77, 1);
    assert!(space.allocate_run(&thread, 600).is_ok());
    taken.sort();
    assert!(taken.windows(2).all(|pair| pair[0].end() <= pair[1].start), "each block once");
}

#[test]
fn every_pool_is_asked_once() {
    use super::super::near::PoolOrder;
    let layout = SpaceLayout::for_blocks(BLOCKS);
    let media = [(0..POOL, Some(0)), (POOL..3 * POOL, Some(1)), (3 * POOL..BLOCKS, Some(0))];
    let nearness = Nearness::of(&layout, &media, &machine(), processor).unwrap();
    for slot in 0..20 {
        for (place, near) in [(0, &[0, 3, 4, 5][..]), (2, &[1, 2]), (4, &[]), (99, &[])] {
            PROCESSOR.set(place);
            let order: Vec<u64> = PoolOrder::of(layout.pools(), slot, Some(&nearness)).all().collect();
            assert!(order[..near.len()].iter().all(|pool| near.contains(pool)), "{order:?} on {place}");
            let mut all = order.clone();
            all.sort_unstable();
            assert_eq!(all, [0, 1, 2, 3, 4, 5]);
        }
        let usual: Vec<u64> = PoolOrder::of(layout.pools(), slot, None).all().collect();
        let own = u64::from(slot) % 6;
        assert_eq!(usual, (own..6).chain(0..own).collect::<Vec<_>>());
    }
    for media in [&[(0..POOL, Some(1)), (POOL..BLOCKS, Some(1))][..], &[(0..POOL, None), (POOL..BLOCKS, None)]] {
        assert!(Nearness::of(&layout, media, &machine(), processor).is_none());
    }
}
