//! A file's block map in private memory, as recovery, fsck and dump build it from a log; and which bytes an entry's data
//! hash covers. The engine's own map lives in the arena (`index`); tests compare the two.

use crate::format::BLOCK_BYTES;
use crate::format::entry::{Extents, FileExtent, Payload};

/// Blocks of a file by first block in the file. Runs do not overlap.
///
/// They stand in pieces that say where their runs begin from a base of their own: so to move everything behind a block costs as much as
/// there are pieces, and a log full of shifts of a file in many runs is read in a time that is not the product of both.
#[derive(Clone, Debug, Default)]
pub(crate) struct FileMap {
    /// Ascending, none of them empty.
    pieces: Vec<Piece>,
}

/// Some neighbouring runs, ascending.
#[derive(Clone, Debug)]
struct Piece {
    /// Not behind the first run, and behind the start of the last run of the piece before.
    base: u64,
    runs: Vec<Run>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Run {
    /// First block in the file, from the piece's base.
    offset: u64,
    block: u64,
    count: u32,
    shared: bool,
}

/// Where a run is: its piece, and the place in it.
type Place = (usize, usize);

/// Runs of a piece, at most; of two neighbouring pieces it is more than half of it together.
const PIECE_RUNS: usize = if cfg!(test) { 8 } else { 512 };

impl Piece {
    /// Cuts the piece before its run `at`.
    fn split_off(&mut self, at: usize) -> Self {
        let mut behind = Self { base: self.base, runs: self.runs.split_off(at) };
        behind.rebase(behind.start());
        behind
    }

    /// First block of its first run.
    fn start(&self) -> u64 {
        self.base + self.runs.first().map_or(0, |run| run.offset)
    }

    /// Another base.
    fn rebase(&mut self, base: u64) {
        for run in &mut self.runs {
            run.offset = (self.base + run.offset).saturating_sub(base);
        }
        self.base = base;
    }
}

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
            Payload::Resize { attributes, .. } => self.unmap(attributes.size_bytes.div_ceil(BLOCK_BYTES), u64::MAX),
            Payload::Unmap { file_block, count } => self.unmap(file_block, file_block.saturating_add(count)),
            Payload::Shift { file_block, distance, down, .. } => self.shift(file_block, distance, down),
            _ => {}
        }
    }

    /// Maps a run over whatever was there.
    pub(crate) fn map(&mut self, extent: FileExtent) {
        let start = extent.file_block;
        self.unmap(start, start.saturating_add(extent.count as u64));
        self.insert(start, Run { offset: 0, block: extent.block, count: extent.count, shared: extent.shared });
    }

    /// Unmaps `from..to`, in blocks of the file.
    pub(crate) fn unmap(&mut self, from: u64, to: u64) {
        // Mostly nothing is there.
        let reaches = |(start, (piece, within)): (u64, Place)| {
            start.saturating_add(self.pieces[piece].runs[within].count as u64) > from
        };
        if from < to && self.before(to).is_some_and(reaches) {
            self.cut(from);
            self.cut(to);
            self.remove(self.place(from), self.place(to));
        }
    }

    fn shift(&mut self, from: u64, distance: u64, down: bool) {
        if down {
            self.unmap(from.saturating_sub(distance), from);
        }
        self.cut(from);
        // What would begin before the first block, or behind the last there can be, is gone.
        let lost = match down {
            true => (self.place(from), self.place(distance.max(from))),
            false => (self.place(from.max(u64::MAX - distance)), (self.pieces.len(), 0)),
        };
        self.remove(lost.0, lost.1);
        let (mut piece, within) = self.place(from);
        if within > 0 {
            let behind = self.pieces[piece].split_off(within);
            piece += 1;
            self.pieces.insert(piece, behind);
        } else if let Some(first) = self.pieces.get_mut(piece) {
            // What lies between base and start stays where it is.
            first.rebase(first.start());
        }
        for piece in &mut self.pieces[piece..] {
            piece.base = if down { piece.base - distance } else { piece.base + distance };
        }
        self.join_around(piece);
    }

    /// Cuts the run in two that lies on both sides of `at`.
    fn cut(&mut self, at: u64) {
        if let Some((start, (piece, within))) = self.before(at) {
            let run = &mut self.pieces[piece].runs[within];
            let skipped = at - start;
            if skipped < run.count as u64 {
                let behind = Run { block: run.block + skipped, count: run.count - skipped as u32, ..*run };
                run.count = skipped as u32;
                self.insert(at, behind);
            }
        }
    }

    /// The first run that does not begin before `at`.
    fn place(&self, at: u64) -> Place {
        let piece = self.pieces.partition_point(|piece| piece.base < at);
        let Some(before) = piece.checked_sub(1) else { return (0, 0) };
        let Piece { base, runs } = &self.pieces[before];
        let within = runs.partition_point(|run| run.offset < at - base);
        if within < runs.len() { (before, within) } else { (piece, 0) }
    }

    /// The last run that begins before `at`: its start and place.
    fn before(&self, at: u64) -> Option<(u64, Place)> {
        let place = match self.place(at) {
            (piece, 0) => {
                let piece = piece.checked_sub(1)?;
                (piece, self.pieces[piece].runs.len() - 1)
            }
            (piece, within) => (piece, within - 1),
        };
        let Piece { base, runs } = &self.pieces[place.0];
        Some((base + runs[place.1].offset, place))
    }

    /// Adds a run where there is none.
    fn insert(&mut self, start: u64, run: Run) {
        let piece = self.pieces.partition_point(|piece| piece.base <= start).saturating_sub(1);
        let Some(into) = self.pieces.get_mut(piece) else {
            self.pieces.push(Piece { base: start, runs: vec![Run { offset: 0, ..run }] });
            return;
        };
        if start < into.base {
            into.rebase(start);
        }
        let run = Run { offset: start - into.base, ..run };
        let within = into.runs.partition_point(|other| other.offset < run.offset);
        into.runs.insert(within, run);
        if into.runs.len() > PIECE_RUNS {
            // Where runs are added at the end, full pieces stay behind.
            let at = if within == PIECE_RUNS { within } else { PIECE_RUNS / 2 };
            let behind = into.split_off(at);
            self.pieces.insert(piece + 1, behind);
        }
    }

    /// Removes the runs from one place up to another.
    fn remove(&mut self, from: Place, to: Place) {
        if from >= to {
            return;
        }
        if from.0 == to.0 {
            self.pieces[from.0].runs.drain(from.1..to.1);
        } else {
            self.pieces[from.0].runs.truncate(from.1);
            if let Some(last) = self.pieces.get_mut(to.0) {
                last.runs.drain(..to.1);
            }
            self.pieces.drain(from.0 + 1..to.0);
        }
        self.join_around(from.0 + 1);
    }

    /// Joins the pieces around the boundary before `piece` that have become small.
    fn join_around(&mut self, piece: usize) {
        for second in (piece.saturating_sub(1)..=piece + 1).rev() {
            let Some(first) = second.checked_sub(1).filter(|_| second < self.pieces.len()) else { continue };
            if self.pieces[first].runs.len() + self.pieces[second].runs.len() <= PIECE_RUNS / 2 {
                let mut joined = self.pieces.remove(second);
                joined.rebase(self.pieces[first].base);
                self.pieces[first].runs.extend(joined.runs);
            }
        }
        let around = piece.saturating_sub(1)..(piece + 2).min(self.pieces.len());
        for at in around.rev() {
            if self.pieces[at].runs.is_empty() {
                self.pieces.remove(at);
            }
        }
    }

    /// The volume's block behind a block of the file.
    pub(crate) fn get(&self, file_block: u64) -> Option<u64> {
        let (start, (piece, within)) = self.before(file_block.checked_add(1)?)?;
        let run = &self.pieces[piece].runs[within];
        (file_block - start < run.count as u64).then(|| run.block + (file_block - start))
    }

    /// How many runs there are.
    pub(crate) fn runs(&self) -> usize {
        self.pieces.iter().map(|piece| piece.runs.len()).sum()
    }

    /// The block behind the last.
    pub(crate) fn end(&self) -> u64 {
        let last = self.pieces.last().and_then(|piece| Some((piece.base, piece.runs.last()?)));
        last.map_or(0, |(base, run)| (base + run.offset).saturating_add(run.count as u64))
    }

    /// All runs in ascending order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = FileExtent> + '_ {
        self.pieces.iter().flat_map(|Piece { base, runs }| {
            runs.iter().map(move |&Run { offset, block, count, shared }| FileExtent {
                file_block: base + offset,
                block,
                count,
                shared,
            })
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
        assert_eq!(map.runs(), 0);
    }

    /// A log full of shifts of a file in many runs: each costs as much as there are pieces, not runs.
    #[test]
    fn shifts_of_many_runs_take_no_longer_than_pieces() {
        let mut map = FileMap::default();
        for at in 0..100_000 {
            map.map(FileExtent { file_block: 2 * at, block: 3 * at + 1, count: 1, shared: false });
        }
        for at in 0..5_000 {
            map.shift(at * 7, 4, at % 2 == 0);
        }
        assert!(map.runs() > 50_000 && map.pieces.len() < 100_000 / (PIECE_RUNS / 4));
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
            assert_eq!(map.runs(), map.iter().count());
            assert_eq!(map.end(), table.keys().max().map_or(0, |last| last + 1));
            assert!(
                map.pieces
                    .iter()
                    .all(|piece| (1..=PIECE_RUNS).contains(&piece.runs.len()) && piece.base <= piece.start())
            );
            let small = |pair: &[Piece]| pair[0].runs.len() + pair[1].runs.len() <= PIECE_RUNS / 2;
            assert!(map.pieces.windows(2).filter(|pair| small(pair)).count() <= 1, "step {step}: {map:?}");
            for at in 0..220 {
                assert_eq!(map.get(at), table.get(&at).copied(), "step {step}, block {at}");
            }
        }
    }
}
