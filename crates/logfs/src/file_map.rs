//! A file's block map in private memory, as recovery, fsck and dump build it from a log; and which bytes an entry's data
//! hash covers. The engine's own map lives in the arena (`index`); tests compare the two.

use crate::format::BLOCK_BYTES;
use crate::format::entry::{Extents, FileExtent, Payload};
use std::collections::BTreeMap;

/// Blocks of a file by first block in the file. Runs do not overlap.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct FileMap {
    runs: BTreeMap<u64, Run>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Run {
    block: u64,
    count: u64,
    shared: bool,
}

impl Run {
    /// The part of it behind its first `skipped` blocks.
    fn behind(self, skipped: u64) -> Self {
        Self { block: self.block + skipped, count: self.count - skipped, ..self }
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
        self.unmap(extent.file_block, extent.file_block.saturating_add(extent.count as u64));
        let run = Run { block: extent.block, count: extent.count as u64, shared: extent.shared };
        self.runs.insert(extent.file_block, run);
    }

    /// Unmaps `from..to`, in blocks of the file.
    pub(crate) fn unmap(&mut self, from: u64, to: u64) {
        while let Some((&start, &run)) = self.runs.range(..to).next_back() {
            let end = start.saturating_add(run.count);
            if end <= from {
                break;
            }
            self.runs.remove(&start);
            if end > to {
                self.runs.insert(to, run.behind(to - start));
            }
            if start < from {
                self.runs.insert(start, Run { count: from - start, ..run });
            }
        }
    }

    fn shift(&mut self, from: u64, distance: u64, down: bool) {
        if down {
            self.unmap(from.saturating_sub(distance), from);
        }
        self.split(from);
        for (start, run) in self.runs.split_off(&from) {
            let moved = if down { start.checked_sub(distance) } else { start.checked_add(distance) };
            if let Some(moved) = moved {
                self.runs.insert(moved, run);
            }
        }
    }

    fn split(&mut self, at: u64) {
        if let Some((&start, &run)) = self.runs.range(..at).next_back()
            && start.saturating_add(run.count) > at
        {
            self.runs.insert(start, Run { count: at - start, ..run });
            self.runs.insert(at, run.behind(at - start));
        }
    }

    /// The volume's block behind a block of the file.
    pub(crate) fn get(&self, file_block: u64) -> Option<u64> {
        let (&start, run) = self.runs.range(..=file_block).next_back()?;
        (file_block - start < run.count).then(|| run.block + (file_block - start))
    }

    /// How many runs there are.
    pub(crate) fn runs(&self) -> usize {
        self.runs.len()
    }

    /// All runs in ascending order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = FileExtent> + '_ {
        self.runs.iter().map(|(&file_block, &Run { block, count, shared })| FileExtent {
            file_block,
            block,
            count: count as u32,
            shared,
        })
    }

    /// Number of blocks.
    #[cfg(test)]
    pub(crate) fn blocks(&self) -> u64 {
        self.runs.values().map(|run| run.count).sum()
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
            for at in 0..220 {
                assert_eq!(map.get(at), table.get(&at).copied(), "step {step}, block {at}");
            }
        }
    }
}
