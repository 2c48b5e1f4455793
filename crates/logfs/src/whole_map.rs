//! From where on a file's log says of each of its blocks where it is, seen while the log is read.
//!
//! What the entries before that say of blocks is dead, whatever moved them since: a log without those entries leads to the same map. For
//! each entry does to a block of the file what it does, whatever becomes of other blocks; so without a log's beginning the map has some
//! blocks less and none that is elsewhere, until entries follow that map all there are.
//!
//! Collection writes such entries where blocks have moved, and notes in the record where. Who loads the file finds them here: else each who
//! comes would have the map written once more.

use crate::format::entry::{Entry, Payload};

/// See above.
#[derive(Debug, Default)]
pub(crate) struct WholeMap {
    /// Sequence number from which on the log says the whole map; 0 if only all of the log does.
    pub(crate) said_from: u64,
    /// Whether blocks have moved since.
    pub(crate) shifted: bool,
    /// Since this entry blocks were only mapped, ever further behind.
    rising_from: u64,
    /// How many they are.
    blocks: u64,
    /// The block of the file behind the last of them.
    end: u64,
}

impl WholeMap {
    /// After one more entry, behind which the file has `blocks` blocks.
    pub(crate) fn take(&mut self, entry: &Entry<'_>, blocks: u64) {
        match entry.payload {
            Payload::Write { ref extents, .. } => {
                for extent in extents.iter() {
                    if extent.file_block < self.end {
                        (self.rising_from, self.blocks) = (entry.sequence, 0);
                    }
                    self.blocks = self.blocks.saturating_add(extent.count as u64);
                    self.end = extent.file_block.saturating_add(extent.count as u64);
                }
            }
            Payload::Remap { .. }
            | Payload::Size { .. }
            | Payload::Resize { .. }
            | Payload::Unmap { .. }
            | Payload::Shift { .. } => {
                self.shifted |= matches!(entry.payload, Payload::Shift { .. });
                (self.rising_from, self.blocks, self.end) = (entry.sequence.saturating_add(1), 0, 0);
            }
            _ => return,
        }
        // They are different blocks, and each is still mapped where it was put.
        if self.blocks == blocks {
            (self.said_from, self.shifted) = (self.rising_from, false);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::file_map::FileMap;
    use crate::format::entry::{Extents, FileExtent};

    fn random(state: &mut u64, below: u64) -> u64 {
        *state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (*state >> 33) % below
    }

    /// Any log leads to the same map without what stands before the place that is told, and anything up to there may be missing.
    #[test]
    fn what_stands_before_it_is_dead() {
        let mut told = 0;
        for seed in 0..3000_u64 {
            let mut state = seed;
            let (mut log, mut extents) = (Vec::new(), Vec::new());
            let (mut map, mut whole) = (FileMap::default(), WholeMap::default());
            for sequence in 1..20_u64 {
                let (file_block, count) = (random(&mut state, 12), 1 + random(&mut state, 4));
                let block = 100 * sequence;
                extents.push(FileExtent { file_block, block, count: count as u32, shared: false });
                if random(&mut state, 8) == 0 {
                    // As a collection does.
                    let runs: Vec<_> = map.iter().collect();
                    log.extend(runs.into_iter().map(|run| Said::Map(vec![run])));
                } else {
                    log.push(match random(&mut state, 6) {
                        0 => Said::Shift(file_block.max(count), count, true),
                        1 => Said::Shift(file_block, count, false),
                        2 => Said::Unmap(file_block, count),
                        3 => Said::Size(file_block),
                        _ => Said::Map(vec![extents[extents.len() - 1]]),
                    });
                }
                (map, whole) = Default::default();
                log.iter().enumerate().for_each(|(index, said)| said.to(index as u64 + 1, &mut map, Some(&mut whole)));
            }
            told += u64::from(whole.said_from > 1);
            let moved = |said: &Said| matches!(said, Said::Shift(..));
            if !whole.shifted {
                assert!(!log[(whole.said_from as usize).saturating_sub(1)..].iter().any(moved), "seed {seed}");
            }
            for from in 0..whole.said_from as usize {
                let mut without = FileMap::default();
                log[from..].iter().for_each(|said| said.to(0, &mut without, None));
                assert_eq!(without.iter().collect::<Vec<_>>(), map.iter().collect::<Vec<_>>(), "seed {seed}, {from}");
            }
        }
        assert!(told > 500, "{told}");
    }

    enum Said {
        Map(Vec<FileExtent>),
        Unmap(u64, u64),
        Size(u64),
        Shift(u64, u64, bool),
    }

    impl Said {
        fn to(&self, sequence: u64, map: &mut FileMap, whole: Option<&mut WholeMap>) {
            let payload = match *self {
                Self::Map(ref extents) => Payload::Write { size_bytes: 0, hash: None, extents: Extents::List(extents) },
                Self::Unmap(file_block, count) => Payload::Unmap { file_block, count },
                Self::Size(blocks) => Payload::Size { size_bytes: blocks * 4096, hash: None },
                Self::Shift(file_block, distance, down) => Payload::Shift { file_block, distance, down, size_bytes: 0 },
            };
            map.apply(&payload);
            if let Some(whole) = whole {
                whole.take(&Entry { sequence, epoch: 0, time: 0, lines: 1, payload }, map.blocks());
            }
        }
    }
}
