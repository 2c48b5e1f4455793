//! What is mapped now: a table in the arena, so that `fsync` writes back what can have been stored to through maps and
//! nothing else.
//!
//! ```text
//! an entry     a range of a file that a process has mapped: from `map` until `unmap` or the death of the process
//! MapsWord     of an inode, in its record: whether there may be entries, and what maps that are gone may have left
//! ```
//! A map that goes leaves its range in the inode's word first and then the table. Who writes back looks the other way
//! round, at the table first: so what leaves meanwhile is seen in one place or both.
//!
//! May touch: the table's words; inodes' words through [`MapsWord`], by compare-and-swap, since who settles the dead has no
//! inode's lock. Relies on: entries of an inode being added and looked for under its lock. A kill between two stores leaves an
//! entry without an inode, which goes with its process.

use crate::ops::shared_error;
use crate::places::Places;
use crate::space::PinOwner;
use gannet_shm::{Arena, ArenaOffset, Ordering, Word};
use gannet_vfs::{Errno, Error, Result};
use std::ops::Range;

/// Entries that the table can hold.
pub(crate) const ENTRIES_MAX: u64 = 1 << 18;
const MAPS_FULL: &str = "no room for another mapped range: all processes together have 262144 on the volume, the most there can be; unmap some";
const _: () = assert!(ENTRIES_MAX == 262_144);
const ENTRY_WORDS: u64 = 4;
/// Entries that get memory together: 16 KiB.
const BACKED_TOGETHER: u64 = 512;
/// A word in front of the entries for each that get memory together: no more of them are in use. Who was killed in between leaves it too high.
const COUNT_WORDS: u64 = ENTRIES_MAX / BACKED_TOGETHER;
const HEAD_WORDS: u64 = 8;
/// Bytes of the table, for the arena's layout.
pub(crate) const TABLE_BYTES: u64 = (COUNT_WORDS + ENTRIES_MAX * ENTRY_WORDS) * 8;
/// Bytes of its head.
pub(crate) const HEAD_BYTES: u64 = HEAD_WORDS * 8;

// Words of the head.
/// One more than the greatest number of an entry ever used.
const USED: usize = 0;
/// How many have memory behind them.
const BACKED: usize = 1;
/// No entry below is unused, most likely.
const UNUSED_FROM: usize = 2;

// Words of an entry.
/// Participant + 1 and its token, packed as pins' owners are; 0 if unused.
const OWNER: usize = 0;
/// Inode and generation. Stored last and taken away first: the rest counts while this is not 0.
const NODE: usize = 1;
/// First block of the file, and whether stores go through the map.
const START: usize = 2;
const BLOCKS: usize = 3;
const WRITABLE: u64 = 1 << 63;

/// There may be entries with stores: `fsync` has something to write back.
pub(crate) const MAPPED_WRITABLY: u64 = 1;
/// It was mapped: blocks stay where they are, also in copy-on-write mode.
pub(crate) const MAPPED: u64 = 2;
/// Blocks moved within the file since its log said its whole map ([`map_said_from`](crate::record::Record::map_said_from)).
pub(crate) const SHIFTED: u64 = 4;
/// Blocks moved within the file while it was mapped writably: which of them maps show, the table does not say rightly.
pub(crate) const MOVED: u64 = 8;
const FLAGS_BITS: u32 = 4;
const SHIFT_BITS: u32 = 6;
const BOUND_BITS: u32 = 27;
const BOUND_MASK: u64 = (1 << BOUND_BITS) - 1;

/// What maps did to an inode: flags, and the range of blocks that maps which are gone may have stored to. One word:
/// `end:27 · start:27 · unit:6 · flags:4`, the bounds in units of 2^unit blocks, `end` 0 for nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MapsWord(pub(crate) u64);

impl MapsWord {
    /// Whether one of the flags is set.
    pub(crate) const fn has(self, flags: u64) -> bool {
        self.0 & flags != 0
    }

    pub(crate) const fn with(self, flags: u64) -> Self {
        Self(self.0 | flags)
    }

    pub(crate) const fn without(self, flags: u64) -> Self {
        Self(self.0 & !flags)
    }

    /// Blocks of the file that maps which are gone may have stored to.
    pub(crate) fn left(self) -> Option<Range<u64>> {
        let unit = (self.0 >> FLAGS_BITS & ((1 << SHIFT_BITS) - 1)).min(37);
        let start = self.0 >> (FLAGS_BITS + SHIFT_BITS) & BOUND_MASK;
        let end = self.0 >> (FLAGS_BITS + SHIFT_BITS + BOUND_BITS);
        (end != 0).then_some(start << unit..end << unit)
    }

    /// The same with a range added. What lies between it and what was there counts as well.
    pub(crate) fn with_left(self, range: Range<u64>) -> Self {
        if range.is_empty() {
            return self;
        }
        let range = match self.left() {
            Some(left) => left.start.min(range.start)..left.end.max(range.end),
            None => range,
        };
        let unit = (64 - range.end.leading_zeros()).saturating_sub(BOUND_BITS);
        // Rounded up, the end can need one bit more.
        let unit = if range.end.div_ceil(1 << unit) > BOUND_MASK { unit + 1 } else { unit };
        let bounds = range.end.div_ceil(1 << unit) << BOUND_BITS | range.start >> unit;
        Self(self.without_left().0 | (bounds << SHIFT_BITS | unit as u64) << FLAGS_BITS)
    }

    /// The same with nothing left.
    pub(crate) const fn without_left(self) -> Self {
        Self(self.0 & ((1 << FLAGS_BITS) - 1))
    }

    /// Whether stores through maps may not be durable yet.
    pub(crate) fn may_be_dirty(self) -> bool {
        self.has(MAPPED_WRITABLY | MOVED) || self.left().is_some()
    }
}

/// One map of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MapEntry {
    index: u64,
    pub(crate) owner: PinOwner,
    pub(crate) inode: u32,
    pub(crate) generation: u32,
    /// Of the file.
    pub(crate) blocks: Range<u64>,
    pub(crate) writable: bool,
}

/// The table.
pub(crate) struct MapTable<'s> {
    arena: &'s Arena,
    start: ArenaOffset,
    head: &'s [Word],
    words: &'s [Word],
}

const fn owner_word(owner: PinOwner) -> u64 {
    PinOwner { participant: owner.participant + 1, ..owner }.pack()
}

const fn node_word((inode, generation): (u32, u32)) -> u64 {
    (inode as u64) << 32 | generation as u64
}

impl<'s> MapTable<'s> {
    pub(crate) fn of(places: &Places, arena: &'s Arena) -> Result<Self> {
        let start = places.maps.start;
        let head = arena.words(places.maps_head.start, HEAD_WORDS).map_err(shared_error)?;
        Ok(Self { arena, start, head, words: arena.words(start, TABLE_BYTES / 8).map_err(shared_error)? })
    }

    fn head(&self, word: usize) -> &'s Word {
        &self.head[word]
    }

    fn entry(&self, index: u64) -> &'s [Word] {
        let at = (COUNT_WORDS + index * ENTRY_WORDS) as usize;
        &self.words[at..at + ENTRY_WORDS as usize]
    }

    fn used(&self) -> u64 {
        let backed = self.head(BACKED).load(Ordering::Acquire).min(ENTRIES_MAX);
        self.head(USED).load(Ordering::Acquire).min(backed)
    }

    /// The count of an entry and those beside it.
    fn count(&self, index: u64) -> &'s Word {
        &self.words[(index / BACKED_TOGETHER) as usize]
    }

    /// The entries that may be in use.
    fn indexes(&self) -> impl Iterator<Item = u64> + '_ {
        let used = self.used();
        let firsts = (0..used).step_by(BACKED_TOGETHER as usize);
        let firsts = firsts.filter(|first| self.count(*first).load(Ordering::Acquire) != 0);
        firsts.flat_map(move |first| first..(first + BACKED_TOGETHER).min(used))
    }

    /// Adds a map; returns which entry it has. `ENOMEM` if there is no room for it.
    pub(crate) fn add(&self, owner: PinOwner, node: (u32, u32), blocks: &Range<u64>, writable: bool) -> Result<u64> {
        let index = self.claim(owner_word(owner))?;
        let entry = self.entry(index);
        entry[START].store(blocks.start | if writable { WRITABLE } else { 0 }, Ordering::Relaxed);
        entry[BLOCKS].store(blocks.end.saturating_sub(blocks.start), Ordering::Relaxed);
        entry[NODE].store(node_word(node), Ordering::Release);
        Ok(index)
    }

    /// Takes an entry that nobody has.
    fn claim(&self, owner: u64) -> Result<u64> {
        let take = |index: &u64| {
            let word = &self.entry(*index)[OWNER];
            if word.load(Ordering::Relaxed) != 0 {
                return false;
            }
            // It counts before it is there.
            self.count(*index).fetch_add(1, Ordering::AcqRel);
            let taken = word.compare_exchange(0, owner, Ordering::AcqRel, Ordering::Relaxed).is_ok();
            if !taken {
                self.count(*index).fetch_sub(1, Ordering::AcqRel);
            }
            taken
        };
        let mut from = self.head(UNUSED_FROM).load(Ordering::Relaxed);
        loop {
            let used = self.used();
            if let Some(index) = (from..used).find(take) {
                self.head(UNUSED_FROM).store(index + 1, Ordering::Relaxed);
                return Ok(index);
            }
            let backed = self.head(BACKED).load(Ordering::Acquire).min(ENTRIES_MAX);
            if used < backed {
                self.head(USED).fetch_max(used + 1, Ordering::AcqRel);
                from = used;
            } else if from > 0 {
                // It is only most likely that none below is unused: looked at before more memory is taken.
                from = 0;
            } else if backed == ENTRIES_MAX {
                return Err(Error::because(Errno::NOMEM, MAPS_FULL));
            } else {
                let first = if backed == 0 { 0 } else { COUNT_WORDS + backed * ENTRY_WORDS };
                let end = COUNT_WORDS + (backed + BACKED_TOGETHER) * ENTRY_WORDS;
                self.arena.reserve(self.start.add(first * 8), (end - first) * 8).map_err(shared_error)?;
                self.head(BACKED).fetch_max(backed + BACKED_TOGETHER, Ordering::AcqRel);
                from = backed;
            }
        }
    }

    /// Calls `visit` with all maps.
    pub(crate) fn for_each(&self, visit: &mut dyn FnMut(MapEntry)) {
        self.indexes().filter_map(|index| self.read(index)).for_each(visit);
    }

    /// What stands in an entry; `None` if nothing does.
    fn read(&self, index: u64) -> Option<MapEntry> {
        let entry = self.entry(index);
        let node = entry[NODE].load(Ordering::Acquire);
        if node == 0 {
            return None;
        }
        let (owner, start) = (entry[OWNER].load(Ordering::Relaxed), entry[START].load(Ordering::Relaxed));
        let first = start & !WRITABLE;
        let owner = PinOwner::unpack(owner);
        Some(MapEntry {
            index,
            owner: PinOwner { participant: owner.participant.checked_sub(1)?, ..owner },
            inode: (node >> 32) as u32,
            generation: node as u32,
            blocks: first..first.saturating_add(entry[BLOCKS].load(Ordering::Relaxed)),
            writable: start & WRITABLE != 0,
        })
    }

    /// The map that a participant knows by a token: in the entry that was told when it was made, or, of an inherited one, in any.
    pub(crate) fn find(&self, owner: PinOwner, told: u64) -> Option<MapEntry> {
        let word = owner_word(owner);
        let has = |index: &u64| self.entry(*index)[OWNER].load(Ordering::Relaxed) == word;
        let index = Some(told).filter(|told| *told < self.used()).filter(has).or_else(|| self.indexes().find(has));
        self.read(index?)
    }

    /// Whether somebody has the inode mapped.
    pub(crate) fn is_mapped(&self, inode: u32, generation: u32) -> bool {
        let word = node_word((inode, generation));
        self.indexes().any(|index| self.entry(index)[NODE].load(Ordering::Acquire) == word)
    }

    /// Takes an entry out: by who made it, or for a process that is gone.
    pub(crate) fn remove(&self, entry: &MapEntry) {
        self.clear(entry.index);
        let from = self.head(UNUSED_FROM);
        if from.load(Ordering::Relaxed) > entry.index {
            from.store(entry.index, Ordering::Relaxed);
        }
    }

    fn clear(&self, index: u64) {
        let words = self.entry(index);
        words[NODE].store(0, Ordering::Release);
        // Of several that settle the dead one takes it out.
        if words[OWNER].swap(0, Ordering::AcqRel) != 0 {
            self.count(index).fetch_sub(1, Ordering::AcqRel);
        }
    }

    /// Takes out what a process that is gone left half done.
    pub(crate) fn forget(&self, participant: u32) {
        let is_theirs = |index: &u64| {
            let owner = self.entry(*index)[OWNER].load(Ordering::Relaxed);
            PinOwner::unpack(owner).participant == participant + 1
        };
        self.indexes().filter(is_theirs).for_each(|index| self.clear(index));
    }
}

/// A few ranges of blocks, joined where they touch; where there are too many, what lies between counts as well.
pub(crate) struct Ranges {
    list: [Range<u64>; Ranges::MAX],
    count: usize,
}

impl Ranges {
    const MAX: usize = 16;

    pub(crate) fn new() -> Self {
        Self { list: [const { 0..0 }; Self::MAX], count: 0 }
    }

    pub(crate) fn add(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        let mut new = range;
        let mut kept = 0;
        for index in 0..self.count {
            let old = self.list[index].clone();
            if old.start <= new.end && new.start <= old.end {
                new = old.start.min(new.start)..old.end.max(new.end);
            } else {
                self.list[kept] = old;
                kept += 1;
            }
        }
        self.count = kept;
        if kept == Self::MAX {
            let last = self.list[kept - 1].clone();
            self.count = kept - 1;
            return self.add(last.start.min(new.start)..last.end.max(new.end));
        }
        self.list[kept] = new;
        self.count += 1;
    }

    pub(crate) fn list(&self) -> &[Range<u64>] {
        &self.list[..self.count]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_holds_any_range_and_never_less() {
        let bounds = [0, 1, 5, BOUND_MASK - 1, BOUND_MASK, BOUND_MASK + 1, 1 << 40, (1 << 51) - 1, 1 << 51];
        for start in bounds {
            for end in bounds {
                for flags in [0, MAPPED, MAPPED | MAPPED_WRITABLY | SHIFTED | MOVED] {
                    let word = MapsWord(flags).with_left(start..end);
                    assert_eq!(word.without_left(), MapsWord(flags));
                    let left = word.left();
                    if start >= end {
                        assert_eq!(left, None);
                        continue;
                    }
                    let left = left.expect("something is left");
                    assert!(left.start <= start && left.end >= end, "{left:?} for {start}..{end}");
                    if end <= BOUND_MASK {
                        assert_eq!(left, start..end);
                    }
                    let both = word.with_left(7..9).left().expect("something is left");
                    assert!(both.start <= start.min(7) && both.end >= end.max(9));
                }
            }
        }
    }

    #[test]
    fn ranges_cover_what_was_added() {
        let mut state = 1_u64;
        let mut random = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        for _ in 0..500 {
            let mut ranges = Ranges::new();
            let mut blocks = vec![false; 400];
            let added = random(40);
            for _ in 0..added {
                let start = random(390);
                let range = start..start + random(10);
                blocks[range.start as usize..range.end as usize].fill(true);
                ranges.add(range);
            }
            let covered = |block: u64| ranges.list().iter().any(|range| range.contains(&block));
            assert!((0..400).all(|block| !blocks[block as usize] || covered(block)));
            if added <= Ranges::MAX as u64 {
                assert!((0..400).all(|block| blocks[block as usize] == covered(block)));
            }
        }
    }
}
