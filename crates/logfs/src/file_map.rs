//! A file's block map in private memory, as recovery, fsck and dump build it from a log; and which bytes an entry's data
//! hash covers. The engine's own map lives in the arena (`index`); tests compare the two.

mod pieces;

use self::pieces::{Pieces, Run};
use crate::format::BLOCK_BYTES;
use crate::format::entry::{Extents, FileExtent, Payload};

/// Blocks of a file by first block in the file. Runs do not overlap.
#[derive(Clone, Debug, Default)]
pub(crate) struct FileMap(Pieces);

impl FileMap {
    /// After one more entry of the file's log.
    pub(crate) fn apply(&mut self, payload: &Payload<'_>) {
        match *payload {
            Payload::Write { ref extents, .. } => {
                for extent in extents.iter() {
                    self.map(extent);
                }
            }
            Payload::Remap { file_block, count, ref extents, .. } => {
                self.unmap(file_block, file_block.saturating_add(count));
                for extent in extents.iter() {
                    self.map(extent);
                }
            }
            Payload::Size { size_bytes, .. } => self.unmap(size_bytes.div_ceil(BLOCK_BYTES), u64::MAX),
            Payload::Resize { attributes, keeps: false, .. } => {
                self.unmap(attributes.size_bytes.div_ceil(BLOCK_BYTES), u64::MAX)
            }
            Payload::Unmap { file_block, count } => self.unmap(file_block, file_block.saturating_add(count)),
            Payload::Shift { file_block, distance, down, .. } => self.shift(file_block, distance, down),
            _ => {}
        }
    }

    /// Maps a run over whatever was there.
    pub(crate) fn map(&mut self, extent: FileExtent) {
        let start = extent.file_block;
        self.unmap(start, start.saturating_add(extent.count as u64));
        self.0.insert(start, Run::new(extent.block, extent.count, extent.shared));
    }

    /// Unmaps `from..to`, in blocks of the file.
    pub(crate) fn unmap(&mut self, from: u64, to: u64) {
        // Mostly nothing is there.
        let reaches = |(start, run): (u64, Run)| start.saturating_add(run.count as u64) > from;
        if from < to && self.0.before(to).is_some_and(reaches) {
            self.cut(from);
            self.cut(to);
            self.0.remove(from, to);
        }
    }

    fn shift(&mut self, from: u64, distance: u64, down: bool) {
        if down {
            self.unmap(from.saturating_sub(distance), from);
        }
        self.cut(from);
        let (before, behind) = std::mem::take(&mut self.0).split(from);
        // What would begin before the first block, or behind the last there can be, is gone.
        let mut moved = match down {
            true => behind.split(distance).1,
            false => behind.split(u64::MAX - distance).0,
        };
        moved.move_by(if down { distance.wrapping_neg() } else { distance });
        self.0 = before.join(moved);
    }

    /// Cuts the run in two that lies on both sides of `at`.
    fn cut(&mut self, at: u64) {
        let Some((start, run)) = self.0.before(at) else { return };
        let skipped = at - start;
        if skipped < run.count as u64
            && let Some(first) = self.0.at_mut(start)
        {
            first.count = skipped as u32;
            self.0.insert(at, Run::new(run.block + skipped, run.count - skipped as u32, run.shared));
        }
    }

    /// The volume's block behind a block of the file.
    pub(crate) fn get(&self, file_block: u64) -> Option<u64> {
        let (start, run) = self.0.before(file_block.checked_add(1)?)?;
        (file_block - start < run.count as u64).then(|| run.block + (file_block - start))
    }

    /// Whether there are no more runs than so many.
    pub(crate) fn has_at_most(&self, runs: usize) -> bool {
        self.0.iter().nth(runs).is_none()
    }

    /// The block behind the last.
    pub(crate) fn end(&self) -> u64 {
        self.0.last().map_or(0, |(start, run)| start.saturating_add(run.count as u64))
    }

    /// All runs in ascending order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = FileExtent> + '_ {
        self.0.iter().map(|(file_block, Run { block, count, shared, .. })| FileExtent {
            file_block,
            block,
            count,
            shared,
        })
    }

    /// Number of blocks.
    #[cfg(test)]
    pub(crate) fn blocks(&self) -> u64 {
        self.iter().map(|run| run.count as u64).sum()
    }
}

/// Calls `each` with the byte ranges of the medium (start, length) that a data hash covers, in order: the tail of the
/// old last block where the file grew over it, then the entry's own blocks up to the new end.
///
/// `map` gives the block behind a block of the file, after the entry.
pub(crate) fn hashed_ranges<E>(
    size_before_bytes: u64,
    size_after_bytes: u64,
    extents: &Extents<'_>,
    map: impl Fn(u64) -> Option<u64>,
    mut each: impl FnMut(u64, u64) -> Result<(), E>,
) -> Result<(), E> {
    let old_last = size_before_bytes / BLOCK_BYTES;
    let within = size_before_bytes % BLOCK_BYTES;
    let replaced = extents.iter().any(|extent| old_last.wrapping_sub(extent.file_block) < extent.count as u64);
    if size_after_bytes > size_before_bytes
        && within > 0
        && !replaced
        && let Some(block) = map(old_last)
    {
        let end = size_after_bytes.min((old_last + 1) * BLOCK_BYTES);
        each(block * BLOCK_BYTES + within, end - size_before_bytes)?;
    }
    for extent in extents.iter() {
        let start = extent.file_block.saturating_mul(BLOCK_BYTES);
        let length_bytes = (extent.count as u64 * BLOCK_BYTES).min(size_after_bytes.saturating_sub(start));
        if length_bytes > 0 {
            each(extent.block * BLOCK_BYTES, length_bytes)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::pieces::PIECE_RUNS;
    use super::*;
    use std::collections::HashMap;

    #[test]
    fn what_moves_beyond_the_ends_is_gone() {
        let run = |file_block, count| FileExtent { file_block, block: 7, count, shared: false };
        let shift = |file_block, distance, down| Payload::Shift { file_block, distance, down, size_bytes: 0 };
        let mut map = FileMap::default();
        [run(0, 1), run(5, 3), run(u64::MAX - 3, 2), run(u64::MAX, 1)].into_iter().for_each(|run| map.map(run));
        map.apply(&shift(6, 10, false));
        assert_eq!(map.iter().map(|run| (run.file_block, run.count)).collect::<Vec<_>>(), [(0, 1), (5, 1), (16, 2)]);
        map.apply(&shift(16, 17, true));
        assert!(map.has_at_most(0));
    }

    /// A log full of shifts of a file in many runs, wherever they are: none takes longer because of those behind it.
    #[test]
    fn shifts_of_many_runs_take_no_longer_than_of_few() {
        let mut map = FileMap::default();
        for at in 0..200_000 {
            map.map(FileExtent { file_block: 2 * at, block: 3 * at + 1, count: 1, shared: false });
        }
        for at in 0..100_000 {
            map.shift(1 + at * 7919 % 390_000, 1 + at % 2, at % 3 == 0);
        }
        assert!(!map.has_at_most(100_000) && map.0.check() < 200_000 / (PIECE_RUNS / 4));
        assert!(map.iter().zip(map.iter().skip(1)).all(|(one, next)| one.file_block < next.file_block));
    }

    /// Files that grew have pieces that are full, one behind the other: what comes between two of them must find a place.
    #[test]
    fn what_comes_between_full_pieces_is_kept() {
        let run = |file_block, count| FileExtent { file_block, block: 1000 + file_block, count, shared: false };
        for seed in 0..2000_u64 {
            let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15);
            let mut random = |below: u64| {
                state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                (state >> 33) % below
            };
            let runs = PIECE_RUNS as u64 * (1 + seed % 6);
            let (mut map, mut table) = (FileMap::default(), HashMap::<u64, u64>::new());
            let mut put = |map: &mut FileMap, from, count: u64| {
                map.map(run(from, count as u32));
                table.extend((from..from + count).map(|at| (at, 1000 + at)));
            };
            (0..runs).for_each(|at| put(&mut map, 4 * at, 2));
            for _ in 0..40 {
                let (from, count) = (random(4 * runs), 1 + random(3));
                put(&mut map, from, count);
            }
            let mut told = HashMap::new();
            for extent in map.iter() {
                told.extend((0..extent.count as u64).map(|index| (extent.file_block + index, extent.block + index)));
            }
            assert_eq!(told, table, "seed {seed}");
        }
        // The shortest case, step by step.
        let mut map = FileMap::default();
        (0..24).for_each(|at| map.map(run(2 * at, 1)));
        [11, 31].into_iter().for_each(|at| map.map(run(at, 1)));
        assert_eq!(map.iter().count(), 26);
    }

    #[test]
    fn agrees_with_a_table_of_single_blocks() {
        let mut state = 7_u64;
        let mut random = |below: u64| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) % below
        };
        let (mut map, mut table) = (FileMap::default(), HashMap::<u64, u64>::new());
        for step in 0..5000 {
            let (from, count) = (random(64), 1 + random(8));
            match random(7) {
                6 => {
                    let block = 1000 + step * 16;
                    let extent = FileExtent { file_block: from, block, count: count as u32, shared: true };
                    let extents = Extents::List(core::slice::from_ref(&extent));
                    map.apply(&Payload::Remap { size_bytes: 0, file_block: from, count: count + 2, extents });
                    table.retain(|&at, _| at < from || at >= from + count + 2);
                    table.extend((0..count).map(|index| (from + index, block + index)));
                }
                0..3 => {
                    let block = 1000 + step * 16;
                    map.map(FileExtent { file_block: from, block, count: count as u32, shared: false });
                    table.extend((0..count).map(|index| (from + index, block + index)));
                }
                3 => {
                    map.unmap(from, from + count);
                    table.retain(|&at, _| at < from || at >= from + count);
                }
                4 if from >= count => {
                    map.apply(&Payload::Shift { file_block: from, distance: count, down: true, size_bytes: 0 });
                    table = table
                        .into_iter()
                        .filter(|&(at, _)| at < from - count || at >= from)
                        .map(|(at, block)| (if at >= from { at - count } else { at }, block))
                        .collect();
                }
                _ => {
                    map.apply(&Payload::Shift { file_block: from, distance: count, down: false, size_bytes: 0 });
                    table.retain(|&at, _| at < 200);
                    map.unmap(200, u64::MAX);
                    table = table
                        .into_iter()
                        .map(|(at, block)| (if at >= from { at + count } else { at }, block))
                        .collect();
                    table.retain(|&at, _| at < 200);
                    map.unmap(200, u64::MAX);
                }
            }
            assert_eq!(map.blocks(), table.len() as u64);
            let runs = map.iter().count();
            assert!(map.has_at_most(runs) && runs.checked_sub(1).is_none_or(|fewer| !map.has_at_most(fewer)));
            assert_eq!(map.end(), table.keys().max().map_or(0, |last| last + 1));
            assert!(map.0.check() <= 1 + map.iter().count() / (PIECE_RUNS / 4), "step {step}: {map:?}");
            for at in 0..220 {
                assert_eq!(map.get(at), table.get(&at).copied(), "step {step}, block {at}");
            }
        }
    }
}
