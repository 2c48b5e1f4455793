//! A volume that ages: filled to 90 %, then small files come and go. Whole groups should be left for large files.

use super::random::Random;
use super::{Extent, Space, effort, private};
use gannet_shm::Thread;

const BLOCKS: u64 = 3 * 16384;

/// What both allocators offer: a piece of at most so many blocks.
trait Allocator {
    fn allocate(&mut self, want: u32) -> Option<Extent>;
    fn free(&mut self, extent: Extent);
    fn is_free(&self, block: u64) -> bool;

    fn whole_groups(&self) -> usize {
        (0..BLOCKS / 512).filter(|group| (group * 512..group * 512 + 512).all(|block| self.is_free(block))).count()
    }
}

struct Ours<'a>(Space<'a>, Thread<'a>);

impl Allocator for Ours<'_> {
    fn allocate(&mut self, want: u32) -> Option<Extent> {
        let held = self.0.allocate(&self.1, want, None, false).ok()?;
        let extent = held.extent();
        self.0.keep(&self.1, held);
        Some(extent)
    }

    fn free(&mut self, extent: Extent) {
        let held = self.0.hold(&self.1, extent).unwrap();
        self.0.release(&self.1, held).unwrap();
    }

    fn is_free(&self, block: u64) -> bool {
        self.0.is_free(block)
    }
}

/// The first run that is long enough; next fit goes on where the last one ended.
struct Fit {
    free: Vec<bool>,
    next: Option<usize>,
}

impl Allocator for Fit {
    fn allocate(&mut self, want: u32) -> Option<Extent> {
        let (length, from) = (self.free.len(), self.next.unwrap_or(0));
        let (mut best, mut at) = ((0, 0), 0);
        while at < length {
            let start = (from + at) % length;
            let run = self.free[start..].iter().take(want as usize).take_while(|free| **free).count();
            if run > best.1 {
                best = (start, run);
            }
            if run == want as usize {
                break;
            }
            at += run + 1;
        }
        let (start, count) = best;
        self.free[start..start + count].fill(false);
        self.next = self.next.map(|_| start + count);
        (count > 0).then_some(Extent { start: start as u64, count: count as u32 })
    }

    fn free(&mut self, extent: Extent) {
        self.free[extent.start as usize..extent.end() as usize].fill(true);
    }

    fn is_free(&self, block: u64) -> bool {
        self.free[block as usize]
    }
}

/// Returns how many groups are whole, and the pieces a small file had on average.
fn age(allocator: &mut dyn Allocator, seed: u64) -> (usize, f64) {
    let mut random = Random(seed);
    let (mut files, mut used): (Vec<Vec<Extent>>, u64) = (Vec::new(), 0);
    let (mut pieces, mut made) = (0usize, 0usize);
    let mut create = |allocator: &mut dyn Allocator, files: &mut Vec<Vec<Extent>>, blocks: u32| {
        let (mut file, mut left) = (Vec::new(), blocks);
        while left > 0 {
            let Some(extent) = allocator.allocate(left) else { break };
            left -= extent.count;
            file.push(extent);
        }
        (pieces, made) = (pieces + file.len(), made + 1);
        files.push(file);
        u64::from(blocks - left)
    };
    while used < BLOCKS * 9 / 10 {
        let blocks = if random.below(50) == 0 { 512 } else { 1 + random.below(12) };
        used += create(allocator, &mut files, blocks as u32);
    }
    for _ in 0..20_000 * effort().min(10) {
        if used > BLOCKS * 3 / 4 {
            let file = files.swap_remove(random.below(files.len() as u64) as usize);
            used -= file.iter().map(|extent| u64::from(extent.count)).sum::<u64>();
            file.into_iter().for_each(|extent| allocator.free(extent));
        } else {
            used += create(allocator, &mut files, 1 + random.below(12) as u32);
        }
    }
    (allocator.whole_groups(), pieces as f64 / made as f64)
}

#[test]
fn whole_groups_remain() {
    let (session, rig) = private(BLOCKS);
    let mut ours = Ours(rig.space(&session), session.thread().unwrap());
    let (kept, pieces) = age(&mut ours, 5);
    assert_eq!(ours.0.verify(), Ok(()));
    let (first_fit, first_pieces) = age(&mut Fit { free: vec![true; BLOCKS as usize], next: None }, 5);
    let (next_fit, next_pieces) = age(&mut Fit { free: vec![true; BLOCKS as usize], next: Some(0) }, 5);
    println!(
        "whole groups of {} after aging at 75 % (pieces for each file): ours {kept} ({pieces:.2}), \
         first fit {first_fit} ({first_pieces:.2}), next fit {next_fit} ({next_pieces:.2})",
        BLOCKS / 512
    );
    assert!(kept > next_fit && kept * 10 >= first_fit * 9 && pieces < 1.5);
}
