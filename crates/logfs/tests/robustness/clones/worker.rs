//! What one process does, step by step: writes, cuts, shifts and clones at random, and looks at once at what a clone holds.

use super::record::{self, Side, Target};
use super::{
    BLOCK, CELL, CELLS, MOVING, MOVING_BLOCKS_MAX, REGION_CELLS, REGIONS, SLOTS, SOURCE_BYTES, SOURCES, STRIPE_BLOCKS,
    TARGETS,
};
use crate::Random;
use gannet_fstest::Rig;
use gannet_logfs::LogFs;
use gannet_vfs::{AllocateMode, AttributeChange, InodeFlags, MapAccess, MapToken, NodeId, SyncScope, WritePosition};
use std::path::Path;

/// The most writes to the same place, one behind the other.
const WRITES: usize = 12;

/// The piece `cell` of a source in one of its versions; odd ones, and the first, are zeros.
pub(super) fn piece(file: usize, cell: usize, version: u64) -> [u8; CELL] {
    let mut bytes = [0; CELL];
    if version & 1 == 0 && version != 0 {
        let mut word = version;
        for part in bytes.chunks_exact_mut(8) {
            part.copy_from_slice(&word.to_le_bytes());
            word = word.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ ((file as u64) << 32 | cell as u64);
        }
    }
    bytes
}

fn pieces(file: usize, cells: std::ops::Range<usize>, version: u64) -> Vec<u8> {
    cells.flat_map(|cell| piece(file, cell, version)).collect()
}

/// What one process does.
pub(super) struct Worker<'a> {
    rig: Rig<'a>,
    side: Side,
    slot: usize,
    life: u64,
    written: u64,
    random: Random,
    sources: Vec<NodeId>,
    moving: Vec<NodeId>,
    /// All processes' targets.
    targets: Vec<NodeId>,
    /// What this one's hold.
    expected: Vec<Vec<u8>>,
    map: Option<MapToken>,
}

impl<'a> Worker<'a> {
    pub(super) fn new(fs: &'a LogFs, path: &Path, slot: usize, life: u64) -> Self {
        let rig = Rig::new(fs);
        let find = |text: String| rig.find(rig.root, &text).expect("a file that the parent made");
        let sources: Vec<NodeId> = (0..SOURCES).map(|at| find(format!("source{at}"))).collect();
        let moving = (0..MOVING).map(|at| find(format!("moving{at}"))).collect();
        let targets: Vec<NodeId> = (0..SLOTS * TARGETS).map(|at| find(format!("target{at}"))).collect();
        let side = Side::open(path);
        side.set_life(slot, life);
        let expected = (0..TARGETS).map(|at| rig.content(targets[slot * TARGETS + at])).collect();
        let random = Random(life.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
        let mut worker =
            Self { rig, side, slot, life, written: 0, random, sources, moving, targets, expected, map: None };
        for target in 0..TARGETS {
            worker.ended(target);
        }
        // The last one may have died while a source was short.
        if (REGIONS - 1) % SLOTS == slot {
            for file in 0..SOURCES {
                worker.write_region(file, REGIONS - 1);
            }
        }
        worker
    }

    fn below(&mut self, limit: usize) -> usize {
        self.random.below(limit)
    }

    fn version(&mut self, is_zero: bool) -> u64 {
        self.written += 1;
        (self.life << 24 | self.written) << 1 | u64::from(is_zero)
    }

    pub(super) fn step(&mut self) {
        let file = self.below(SOURCES);
        let region = self.below(REGIONS / SLOTS) * SLOTS + self.slot;
        match self.below(24) {
            0..7 => self.write_region(file, region),
            7 => self.zero_region(file, region),
            8 if (REGIONS - 1) % SLOTS == self.slot => self.cut(file),
            8..11 => self.write_moving(),
            11 | 12 => self.shift(),
            13..19 => self.clone(),
            19 => self.dedupe(),
            20 | 21 => self.change_target(),
            _ => self.disturb(),
        }
        let target = self.below(TARGETS);
        self.verify(target);
    }

    /// Pieces of a region, often whole blocks.
    fn cells_of(&mut self, region: usize) -> std::ops::Range<usize> {
        let unit = if self.below(3) == 0 { BLOCK / CELL } else { 1 };
        let units = REGION_CELLS / unit;
        let first = self.below(units);
        let count = 1 + self.below(units - first);
        region * REGION_CELLS + first * unit..region * REGION_CELLS + (first + count) * unit
    }

    fn write_region(&mut self, file: usize, region: usize) {
        // The last one is written from where it may end, up to its end.
        let cells = if region == REGIONS - 1 { (REGIONS - 1) * REGION_CELLS..CELLS } else { self.cells_of(region) };
        let at = (cells.start * CELL) as u64;
        // The first gives it blocks of its own, the others are in place.
        for _ in 0..1 + self.below(WRITES) {
            let version = self.version(false);
            self.side.begin(file, cells.clone(), version);
            let bytes = pieces(file, cells.clone(), version);
            let written = self.rig.try_write(self.sources[file], WritePosition::At(at), &bytes);
            if !written.is_ok_and(|written| written.count_bytes == bytes.len()) {
                return;
            }
            self.side.end(file, cells.clone(), version);
        }
    }

    fn zero_region(&mut self, file: usize, region: usize) {
        let cells = self.cells_of(region);
        let version = self.version(true);
        self.side.begin(file, cells.clone(), version);
        let (at, length) = ((cells.start * CELL) as u64, (cells.len() * CELL) as u64);
        let mode = if self.below(2) == 0 { AllocateMode::PunchHole } else { AllocateMode::ZeroKeepSize };
        if self.rig.fs.allocate(self.sources[file], mode, at, length).is_ok() {
            self.side.end(file, cells, version);
        }
    }

    /// Cuts a source within its last region, and has it grow again.
    fn cut(&mut self, file: usize) {
        let first = (REGIONS - 1) * REGION_CELLS + self.below(REGION_CELLS);
        let version = self.version(true);
        self.side.begin(file, first..CELLS, version);
        let node = self.sources[file];
        let mut is_done = self.rig.resize(node, (first * CELL) as u64).is_ok();
        if self.below(2) == 0 {
            is_done &= self.rig.resize(node, SOURCE_BYTES as u64).is_ok();
            if is_done {
                self.side.end(file, first..CELLS, version);
            }
            return;
        }
        let version = self.version(false);
        self.side.begin(file, first..CELLS, version);
        let bytes = pieces(file, first..CELLS, version);
        let mut at = 0;
        while is_done && at < bytes.len() {
            let end = (at + CELL * (1 + self.below(100))).min(bytes.len());
            let written = self.rig.try_write(node, WritePosition::Append, &bytes[at..end]);
            is_done = written.is_ok_and(|written| written.count_bytes == end - at);
            at = end;
        }
        if is_done {
            self.side.end(file, first..CELLS, version);
        }
    }

    fn write_moving(&mut self) {
        let node = self.moving[self.random.below(MOVING)];
        let blocks = self.rig.attributes(node).size_bytes as usize / BLOCK;
        let at = self.below(blocks.max(1)) * BLOCK + self.below(BLOCK / CELL) * CELL;
        let cells = 1 + self.below(4 * BLOCK / CELL);
        for _ in 0..1 + self.below(WRITES) {
            let version = self.version(false);
            let bytes = pieces(9, at / CELL..at / CELL + cells, version);
            let _ = self.rig.try_write(node, WritePosition::At(at as u64), &bytes);
        }
    }

    fn shift(&mut self) {
        let node = self.moving[self.random.below(MOVING)];
        let blocks = self.rig.attributes(node).size_bytes as usize / BLOCK;
        let count = [1, 4, STRIPE_BLOCKS, STRIPE_BLOCKS + 3][self.below(4)];
        let mode = if blocks > MOVING_BLOCKS_MAX / 2 { AllocateMode::Collapse } else { AllocateMode::Insert };
        let at = self.below(blocks.saturating_sub(count).max(1));
        let _ = self.rig.fs.allocate(node, mode, (at * BLOCK) as u64, (count * BLOCK) as u64);
    }

    /// The blocks of a range of a file that has so many, often all.
    fn blocks_of(&mut self, blocks: usize) -> std::ops::Range<usize> {
        if blocks < 2 || self.below(3) == 0 {
            return 0..blocks;
        }
        let first = self.below(blocks - 1);
        first..first + 1 + self.below(blocks - first)
    }

    fn clone(&mut self) {
        let target = self.below(TARGETS);
        let own = self.slot * TARGETS + target;
        let (from, source) = match self.below(8) {
            0..4 => {
                let file = self.below(SOURCES);
                (self.sources[file], Some(file))
            }
            4..7 => (self.moving[self.random.below(MOVING)], None),
            _ => (self.targets[self.random.below(SLOTS * TARGETS)], None),
        };
        let size = self.rig.attributes(from).size_bytes as usize;
        let range = self.blocks_of(size.div_ceil(BLOCK));
        if range.is_empty() || from == self.targets[own] {
            return;
        }
        let (start, end) = (range.start * BLOCK, (range.end * BLOCK).min(size));
        let to = if self.below(2) == 0 { 0 } else { self.below(STRIPE_BLOCKS) * BLOCK };
        let to_end = to + (end - start);
        if to_end > record::TARGET_BYTES_MAX || !end.is_multiple_of(BLOCK) && to_end < self.expected[target].len() {
            return;
        }
        self.begins(target, to..to_end);
        let allowed = source.map(|file| self.side.allowed_from(file));
        let cloned =
            self.rig.fs.clone_range(from, start as u64, self.targets[own], to as u64, (end - start) as u64).is_ok();
        let allowed = allowed.map(|allowed| self.side.allowed_until(allowed));
        let found = self.rig.content(self.targets[own]);
        let before = &mut self.expected[target];
        let size_before = before.len();
        before.resize(found.len(), 0);
        for at in (0..found.len()).filter(|at| !(to..to_end).contains(at)) {
            assert!(found[at] == before[at], "beside a clone, at {at} of {size_before} bytes: {own}, {to}..{to_end}");
        }
        if cloned {
            assert_eq!(found.len(), size_before.max(to_end), "the size behind a clone");
            if let Some(allowed) = allowed {
                for (index, bytes) in found[to..to_end].chunks_exact(CELL).enumerate() {
                    let cell = start / CELL + index;
                    if let Err(what) = allowed.check(&self.side, cell, bytes) {
                        panic!("a clone of source {} to {own} at {to}: piece {cell}: {what}", allowed.file);
                    }
                }
            }
        }
        self.expected[target] = found;
        self.ended(target);
    }

    /// Whatever comes of it, no bytes change.
    fn dedupe(&mut self) {
        let target = self.below(TARGETS);
        let own = self.targets[self.slot * TARGETS + target];
        let from = match self.below(3) {
            0 => self.targets[self.random.below(SLOTS * TARGETS)],
            1 => self.moving[self.random.below(MOVING)],
            _ => self.sources[self.random.below(SOURCES)],
        };
        let first = self.below(STRIPE_BLOCKS) * BLOCK;
        let length = (1 + self.below(8)) * BLOCK;
        let _ = self.rig.fs.dedupe_range(from, first as u64, own, first as u64, length as u64);
    }

    fn change_target(&mut self) {
        let target = self.below(TARGETS);
        let node = self.targets[self.slot * TARGETS + target];
        let size = self.expected[target].len();
        let blocks = size / BLOCK;
        let at = self.below(blocks.max(1)) * BLOCK + self.below(BLOCK / CELL) * CELL;
        match self.below(6) {
            0 | 1 => {
                let cells = 1 + self.below(3 * BLOCK / CELL);
                let version = self.version(false);
                let bytes = pieces(8, 0..cells, version);
                let end = at + bytes.len();
                self.begins(target, at..end.max(size.min(at)));
                if self
                    .rig
                    .try_write(node, WritePosition::At(at as u64), &bytes)
                    .is_ok_and(|w| w.count_bytes == bytes.len())
                {
                    let expected = &mut self.expected[target];
                    let length = size.max(end);
                    expected.resize(length, 0);
                    expected[at..end].copy_from_slice(&bytes);
                } else {
                    self.expected[target] = self.rig.content(node);
                }
            }
            2 => {
                let length = (1 + self.below(5 * BLOCK)).min(size.saturating_sub(at));
                if length == 0 {
                    return;
                }
                self.begins(target, at..at + length);
                let mode = if self.below(2) == 0 { AllocateMode::PunchHole } else { AllocateMode::ZeroKeepSize };
                match self.rig.fs.allocate(node, mode, at as u64, length as u64) {
                    Ok(()) => self.expected[target][at..at + length].fill(0),
                    Err(_) => self.expected[target] = self.rig.content(node),
                }
            }
            3 => {
                let length = self.below(record::TARGET_BYTES_MAX / 2);
                self.begins(target, length.min(size)..record::TARGET_BYTES_MAX);
                if self.rig.resize(node, length as u64).is_ok() {
                    self.expected[target].resize(length, 0);
                }
            }
            _ => {
                let count = [1, 5, STRIPE_BLOCKS][self.below(3)] * BLOCK;
                let at = at / BLOCK * BLOCK;
                self.begins(target, at..record::TARGET_BYTES_MAX);
                if size + count < record::TARGET_BYTES_MAX / 2 {
                    if self.rig.fs.allocate(node, AllocateMode::Insert, at as u64, count as u64).is_ok() {
                        self.expected[target].splice(at..at, std::iter::repeat_n(0, count));
                    }
                } else if self.rig.fs.allocate(node, AllocateMode::Collapse, at as u64, count as u64).is_ok() {
                    self.expected[target].drain(at..at + count);
                }
            }
        }
        self.ended(target);
    }

    /// What changes no bytes.
    fn disturb(&mut self) {
        let all: Vec<NodeId> = [&self.sources[..], &self.moving, &self.targets].concat();
        let node = all[self.below(all.len())];
        let fs = self.rig.fs;
        let blocks = self.blocks_of(SOURCE_BYTES / BLOCK);
        let (at, length) = ((blocks.start * BLOCK) as u64, (blocks.len() * BLOCK) as u64);
        let flags = [InodeFlags::IN_PLACE, InodeFlags::COPY_ON_WRITE, InodeFlags::empty()][self.below(3)];
        let _ = match self.below(5) {
            0 => fs.sync(node, SyncScope::Data),
            1 => fs.allocate(node, AllocateMode::UnshareKeepSize, at, length),
            2 => fs.set_attributes(node, &AttributeChange { flags: Some(flags), ..Default::default() }).map(drop),
            3 => fs.allocate(node, AllocateMode::KeepSize, at, length),
            _ => match self.map.take() {
                Some(token) => fs.unmap(token),
                None => {
                    let access = [MapAccess::Read, MapAccess::Watch, MapAccess::WriteAroundHoles][self.below(3)];
                    fs.map(node, access, at, length.min(2 * BLOCK as u64), &mut |_| {}).map(|token| {
                        self.map = Some(token);
                    })
                }
            },
        };
    }

    fn verify(&self, target: usize) {
        let own = self.slot * TARGETS + target;
        let found = self.rig.content(self.targets[own]);
        if let Some(what) = record::difference(&found, &self.expected[target]) {
            panic!("life {}, target {own} changed by itself: {what}", self.life);
        }
    }

    fn begins(&self, target: usize, range: std::ops::Range<usize>) {
        self.side.set_target(self.slot * TARGETS + target, &Target::Changing(range));
    }

    fn ended(&self, target: usize) {
        self.side.set_target(self.slot * TARGETS + target, &Target::Holds(&self.expected[target]));
    }
}
