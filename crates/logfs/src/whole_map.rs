//! From where on a file's log says of each of its blocks where it is, seen while the log is read.
//!
//! What the entries before that say of blocks is dead, whatever moved them since: a log without those entries leads to the same map. For
//! each entry does to a block of the file what it does, whatever becomes of other blocks; so without a log's beginning the map has some
//! blocks less and none that is elsewhere, until entries follow that map all there are.
//!
//! Collection writes such entries where blocks have moved, some with each operation, in ascending order, and notes in the record from which
//! entry on, and up to which block: that block moves with what stands before it. Who loads the file finds both here, else each who comes
//! would begin anew; by what is mapped alone, since an entry does not tell who wrote it.

use crate::format::entry::{Entry, Payload};

/// See above.
#[derive(Debug, Default)]
pub(crate) struct WholeMap {
    /// Sequence number from which on the log says the whole map; 0 if only all of the log does.
    pub(crate) said_from: u64,
    /// Whether blocks have moved since. Before they have nothing is looked for.
    pub(crate) shifted: bool,
    /// The next candidate.
    pub(crate) part: Part,
}

/// What a log says of a file's map from some entry on.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Part {
    /// Sequence number of that entry.
    pub(crate) from: u64,
    /// The block of the file up to which all that is mapped was mapped since; 0 if it says nothing yet.
    pub(crate) to: u64,
    /// Whether blocks have moved since.
    pub(crate) shifted: bool,
}

impl WholeMap {
    /// After one more entry. `next` gives the first block at or behind a block of the file that is mapped then, if there is one.
    pub(crate) fn take<E>(&mut self, entry: &Entry<'_>, next: impl Fn(u64) -> Result<Option<u64>, E>) -> Result<(), E> {
        let part = &mut self.part;
        match entry.payload {
            Payload::Shift { file_block, distance, down, .. } => {
                self.shifted = true;
                *part = Part { to: behind_shift(part.to, file_block, distance, down), shifted: true, ..*part };
            }
            Payload::Write { ref extents, .. } | Payload::Remap { ref extents, .. } if self.shifted => {
                if part.to == 0 {
                    *part = Part { from: entry.sequence, to: 0, shifted: false };
                }
                for extent in extents.iter() {
                    // Nothing is mapped between.
                    if extent.file_block <= part.to || next(part.to)?.is_none_or(|next| next >= extent.file_block) {
                        part.to = part.to.max(extent.file_block.saturating_add(extent.count as u64));
                    }
                }
            }
            Payload::Size { .. } | Payload::Resize { keeps: false, .. } | Payload::Unmap { .. } => {}
            _ => return Ok(()),
        }
        if part.to > 0 && next(part.to)?.is_none() {
            (self.said_from, self.shifted) = (part.from, part.shifted);
            *part = Part::default();
        }
        Ok(())
    }
}

/// Where the end of what was said up to block `to` of a file is after a shift.
pub(crate) fn behind_shift(to: u64, file_block: u64, distance: u64, down: bool) -> u64 {
    match down {
        _ if to <= file_block.saturating_sub(if down { distance } else { 0 }) => to,
        false => to.saturating_add(distance),
        true => to.max(file_block).saturating_sub(distance),
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

    /// Any log leads to the same map without what stands before the place that is told, and anything up to there may be missing; and without
    /// what stands before a part, if what is mapped behind the part's end is said once more.
    #[test]
    fn what_stands_before_it_is_dead() {
        let (mut told, mut parts) = (0, 0);
        for seed in 0..4000_u64 {
            let mut state = seed;
            let (mut log, mut extents) = (Vec::new(), Vec::new());
            let (mut map, mut whole) = (FileMap::default(), WholeMap::default());
            // A collection that writes the map, a run with each entry: up to where it has come.
            let mut copied = None;
            for sequence in 1..24_u64 {
                let (file_block, count) = (random(&mut state, 12), 1 + random(&mut state, 4));
                let block = 100 * sequence;
                extents.push(FileExtent { file_block, block, count: count as u32, shared: false });
                log.push(match random(&mut state, 7) {
                    0 => Said::Shift(file_block.max(count), count, true),
                    1 => Said::Shift(file_block, count, false),
                    2 => Said::Unmap(file_block, count),
                    3 => Said::Size(file_block),
                    4 => Said::Remap(extents[extents.len() - 1], count + 2),
                    _ => Said::Map(vec![extents[extents.len() - 1]]),
                });
                if let (Some(to), &Said::Shift(at, distance, down)) = (&mut copied, &log[log.len() - 1]) {
                    *to = behind_shift(*to, at, distance, down);
                }
                map = read(&log).0;
                if copied.is_none() && random(&mut state, 4) == 0 {
                    copied = Some(0);
                }
                if let Some(to) = copied {
                    let run = map.iter().find(|run| run.file_block + run.count as u64 > to);
                    copied = run.map(|run| run.file_block + run.count as u64);
                    log.extend(run.map(|run| Said::Map(vec![run])));
                }
                (map, whole) = read(&log);
                let part = whole.part;
                if part.to > 0 {
                    let mut with_rest = FileMap::default();
                    log[part.from as usize - 1..].iter().for_each(|said| said.to(0, &mut with_rest, None));
                    map.iter()
                        .filter(|run| run.file_block + run.count as u64 > part.to)
                        .for_each(|run| with_rest.map(run));
                    assert_eq!(blocks(&with_rest), blocks(&map), "seed {seed}, {part:?}");
                    parts += 1;
                }
            }
            told += u64::from(whole.said_from > 1);
            let moved = |said: &Said| matches!(said, Said::Shift(..));
            if !whole.shifted {
                assert!(!log[(whole.said_from as usize).saturating_sub(1)..].iter().any(moved), "seed {seed}");
            }
            for from in 0..whole.said_from as usize {
                let mut without = FileMap::default();
                log[from..].iter().for_each(|said| said.to(0, &mut without, None));
                assert_eq!(blocks(&without), blocks(&map), "seed {seed}, {from}");
            }
        }
        assert!(told > 1000 && parts > 10_000, "{told} {parts}");
    }

    /// What a collection has written is found, whatever was appended, rewritten or moved meanwhile.
    #[test]
    fn what_a_collection_writes_is_found() {
        for seed in 0..500_u64 {
            let mut state = seed;
            let mut log: Vec<_> = (0..10).map(|at| Said::Map(vec![run(2 * at, 10 + at, 1)])).collect();
            log.push(Said::Shift(4, 2, true));
            let (begun, mut to) = (log.len() as u64 + 1, 0);
            loop {
                let (map, whole) = read(&log);
                let Some(next) = map.iter().find(|run| run.file_block + run.count as u64 > to) else {
                    assert!(whole.said_from >= begun, "seed {seed}: {whole:?}");
                    break;
                };
                log.push(Said::Map(vec![next]));
                to = next.file_block + next.count as u64;
                let (at, length) = (1 + random(&mut state, 20), 1 + random(&mut state, 3));
                let said = match random(&mut state, 6) {
                    0 => Said::Map(vec![run(at, 1000 * log.len() as u64, 1)]),
                    1 => Said::Unmap(at, length),
                    2 => Said::Shift(at, length, false),
                    3 => Said::Shift(at + length, length, true),
                    _ => Said::Unmap(40, 1),
                };
                if let Said::Shift(at, distance, down) = said {
                    to = behind_shift(to, at, distance, down);
                }
                log.push(said);
                assert!(log.len() < 200);
            }
        }
    }

    fn run(file_block: u64, block: u64, count: u32) -> FileExtent {
        FileExtent { file_block, block, count, shared: false }
    }

    /// Where each block of a file is.
    fn blocks(map: &FileMap) -> Vec<(u64, u64)> {
        map.iter().flat_map(|run| (0..run.count as u64).map(move |at| (run.file_block + at, run.block + at))).collect()
    }

    fn read(log: &[Said]) -> (FileMap, WholeMap) {
        let (mut map, mut whole) = Default::default();
        log.iter().enumerate().for_each(|(index, said)| said.to(index as u64 + 1, &mut map, Some(&mut whole)));
        (map, whole)
    }

    enum Said {
        Map(Vec<FileExtent>),
        Remap(FileExtent, u64),
        Unmap(u64, u64),
        Size(u64),
        Shift(u64, u64, bool),
    }

    impl Said {
        fn to(&self, sequence: u64, map: &mut FileMap, whole: Option<&mut WholeMap>) {
            let payload = match *self {
                Self::Map(ref extents) => Payload::Write { size_bytes: 0, hash: None, extents: Extents::List(extents) },
                Self::Remap(ref extent, count) => Payload::Remap {
                    size_bytes: 0,
                    file_block: extent.file_block,
                    count,
                    extents: Extents::List(core::slice::from_ref(extent)),
                },
                Self::Unmap(file_block, count) => Payload::Unmap { file_block, count },
                Self::Size(blocks) => Payload::Size { size_bytes: blocks * 4096, hash: None },
                Self::Shift(file_block, distance, down) => Payload::Shift { file_block, distance, down, size_bytes: 0 },
            };
            map.apply(&payload);
            if let Some(whole) = whole {
                let behind = |at: u64| map.iter().find(|run| run.file_block + run.count as u64 > at);
                let next = |at: u64| Ok::<_, ()>(behind(at).map(|run| run.file_block.max(at)));
                whole.take(&Entry { sequence, epoch: 0, time: 0, lines: 1, payload }, next).expect("a map");
            }
        }
    }
}
