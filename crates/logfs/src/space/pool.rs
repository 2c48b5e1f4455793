//! One pool: its bits, its summaries and counters, and how free runs are found.
//!
//! May touch: the words of the pool it is given. Relies on: the pool's lock for everything but loads. Blocks and
//! groups are counted from the start of the pool here.
//!
//! Only the bits count. Counters and summaries follow from them, and [`Pool::repair`] makes them again when whoever
//! held the lock died between two stores.

use gannet_shm::{Ordering::Relaxed, Word};

use super::layout::{CONTROL_WORDS, GROUP_WORDS, PIN_WORDS, PINS_MAX};
use super::{Extent, GROUP_BLOCKS, Space, runs};

// Words of a pool's control. Word 0 is the lock.
pub(super) const FREE: usize = 1;
/// The group where the search for several blocks goes on.
const NEXT_GROUP: usize = 2;
/// Pins in use.
pub(super) const PINS: usize = 3;
/// One above the greatest index of a pin ever used.
pub(super) const PINS_USED: usize = 4;
/// How many pins have memory behind them; not 0 once the deferred bits have, too.
pub(super) const PINS_BACKED: usize = 5;
/// Not 0 while it has suspects: see `suspects`.
pub(super) const SUSPECTED: usize = 6;
/// Where the bits stand: see `unread`.
pub(super) const STATE: usize = 7;
/// Of bits that stand on the medium: their hash.
pub(super) const HASH: usize = 8;
/// No pin below this index is unused, most likely.
pub(super) const PINS_NEXT: usize = 9;

/// Partly free groups looked at for a run that is long enough before a whole group is taken.
const GROUPS_SEARCHED: usize = 16;

pub(super) struct Pool<'a> {
    pub(super) control: &'a [Word; CONTROL_WORDS],
    pub(super) bits: &'a [Word],
    pub(super) deferred: &'a [Word],
    pub(super) suspects: &'a [Word],
    pub(super) pins: &'a [Word],
    /// Number of pins that touch each group.
    pub(super) pin_groups: &'a [Word],
    /// A bit for each group that is neither whole nor without free blocks.
    partial: &'a [Word],
    /// A bit for each group all of whose blocks are free.
    whole: &'a [Word],
    /// The first block of the pool on the volume.
    pub(super) first_block: u64,
    /// The pool's blocks that are on the volume.
    pub(super) blocks: u64,
}

impl<'a> Space<'a> {
    /// How many blocks of pool `index` are free: without its lock a hint.
    #[inline]
    pub(super) fn free_hint(&self, index: u64) -> u64 {
        self.words.get(self.layout.control_at(index) + FREE).map_or(0, |word| word.load(Relaxed))
    }

    /// A view of pool `index`, which must exist.
    // Inlined, and without panics: so nothing is done for parts that are not looked at.
    #[inline(always)]
    pub(super) fn pool(&self, index: u64) -> Pool<'a> {
        let layout = &self.layout;
        let index = index.min(layout.pools() - 1);
        let slice = |at: usize, count: usize| self.words.get(at..at + count).unwrap_or_default();
        let summary = layout.summary_words();
        let control = slice(layout.control_at(index), CONTROL_WORDS).first_chunk::<CONTROL_WORDS>();
        let first_block = index * layout.pool_blocks();
        Pool {
            control: control.expect("a slice of just that length"),
            bits: slice(layout.bits_at(index), layout.pool_words()),
            deferred: slice(layout.deferred_at(index), layout.pool_words()),
            suspects: slice(layout.suspects_at(index), layout.pool_words()),
            pins: slice(layout.pins_at(index), PINS_MAX * PIN_WORDS),
            pin_groups: slice(layout.pin_groups_at(index), layout.pool_groups()),
            partial: slice(layout.summary_at(index), summary),
            whole: slice(layout.summary_at(index) + summary, summary),
            first_block,
            blocks: layout.pool_blocks().min(layout.blocks() - first_block),
        }
    }
}

/// The bits of one word that belong to the run from `start` (within the word) on.
fn mask(start: u64, count: u64) -> u64 {
    let ones = if count >= 64 { u64::MAX } else { (1 << count) - 1 };
    ones << start
}

impl Pool<'_> {
    /// [`masks`] of the part of an extent of the volume that lies in this pool.
    pub(super) fn masks_of(&self, extent: Extent) -> impl Iterator<Item = (usize, u64)> {
        let start = extent.start.clamp(self.first_block, self.first_block + self.blocks);
        let end = extent.end().clamp(start, self.first_block + self.blocks);
        masks(start - self.first_block, end - start)
    }
}

/// The words that `count` blocks from `start` on touch, with the mask of each.
pub(super) fn masks(start: u64, count: u64) -> impl Iterator<Item = (usize, u64)> {
    let end = start + count;
    (start / 64..end.div_ceil(64)).map(move |word| {
        let from = start.max(word * 64);
        let to = end.min(word * 64 + 64);
        (word as usize, mask(from % 64, to - from))
    })
}

impl Pool<'_> {
    /// Whether there is a whole free group. Without the lock a hint.
    pub(super) fn has_whole(&self) -> bool {
        self.is_unread() || self.whole.iter().any(|word| word.load(Relaxed) != 0)
    }

    /// How many blocks from `start` on, up to `most`, are all free, or all not free.
    pub(super) fn run(&self, start: u64, most: u64, free: bool) -> u64 {
        let most = most.min(self.blocks.saturating_sub(start));
        let mut length = 0;
        while length < most {
            let at = start + length;
            let word = self.bits[(at / 64) as usize].load(Relaxed);
            let word = (if free { word } else { !word }) >> (at % 64);
            let ones = u64::from(word.trailing_ones());
            length += ones;
            if ones < 64 - at % 64 {
                break;
            }
        }
        length.min(most)
    }

    /// Clears the bits of a free run.
    // Inlined: called, it would have the whole view of the pool put together in memory.
    #[inline(always)]
    pub(super) fn take(&self, start: u64, count: u64) {
        if count == 1
            && let Some(word) = self.bits.get((start / 64) as usize)
        {
            let left = word.load(Relaxed) & !(1 << (start % 64));
            word.store(left, Relaxed);
            if left == 0 {
                self.summarise(start, count);
            } else {
                let group = start / GROUP_BLOCKS;
                set_bit(self.partial, group, true);
                set_bit(self.whole, group, false);
            }
        } else {
            for (word, mask) in masks(start, count) {
                let word = &self.bits[word];
                word.store(word.load(Relaxed) & !mask, Relaxed);
            }
            self.summarise(start, count);
        }
        let free = &self.control[FREE];
        free.store(free.load(Relaxed).saturating_sub(count), Relaxed);
    }

    /// Sets the bits of a run. Some may be set already.
    pub(super) fn give(&self, start: u64, count: u64) {
        let mut added = 0;
        for (word, mask) in masks(start, count) {
            let word = &self.bits[word];
            let old = word.load(Relaxed);
            added += u64::from((mask & !old).count_ones());
            word.store(old | mask, Relaxed);
        }
        self.summarise(start, count);
        let free = &self.control[FREE];
        free.store(free.load(Relaxed).saturating_add(added), Relaxed);
    }

    /// Brings the summary bits of the groups of a run up to date.
    fn summarise(&self, start: u64, count: u64) {
        for group in start / GROUP_BLOCKS..(start + count).div_ceil(GROUP_BLOCKS) {
            let at = group as usize * GROUP_WORDS;
            let (mut any, mut all) = (0, u64::MAX);
            for word in &self.bits[at..at + GROUP_WORDS] {
                let word = word.load(Relaxed);
                (any, all) = (any | word, all & word);
            }
            let whole = all == u64::MAX;
            set_bit(self.partial, group, any != 0 && !whole);
            set_bit(self.whole, group, whole);
        }
    }

    /// Makes counter and summaries again from the bits. Returns the number of free blocks.
    pub(super) fn recount(&self) -> u64 {
        // Nothing behind the end of the volume is ever free, whatever the bits say.
        let end = (self.bits.len() * 64) as u64;
        if self.blocks < end {
            for (word, mask) in masks(self.blocks, end - self.blocks) {
                let word = &self.bits[word];
                if word.load(Relaxed) & mask != 0 {
                    word.store(word.load(Relaxed) & !mask, Relaxed);
                }
            }
        }
        self.summarise(0, end);
        let free = self.bits.iter().map(|word| u64::from(word.load(Relaxed).count_ones())).sum();
        self.control[FREE].store(free, Relaxed);
        free
    }

    /// Whether counter, summaries and deferred bits agree with the bits.
    pub(super) fn is_consistent(&self) -> bool {
        let groups = self.bits.len() / GROUP_WORDS;
        let right = (0..groups).all(|group| {
            let words = self.bits[group * GROUP_WORDS..][..GROUP_WORDS].iter().map(|word| word.load(Relaxed));
            let free: u32 = words.map(u64::count_ones).sum();
            let whole = u64::from(free) == GROUP_BLOCKS;
            bit(self.whole, group) == whole && bit(self.partial, group) == (free > 0 && !whole)
        });
        let free: u64 = self.bits.iter().map(|word| u64::from(word.load(Relaxed).count_ones())).sum();
        let end = (self.bits.len() * 64) as u64;
        let outside =
            masks(self.blocks, end - self.blocks).any(|(word, mask)| self.bits[word].load(Relaxed) & mask != 0);
        let backed = self.control[PINS_BACKED].load(Relaxed) != 0;
        let both = backed
            && self.bits.iter().zip(self.deferred).any(|(free, later)| free.load(Relaxed) & later.load(Relaxed) != 0);
        right && free == self.control[FREE].load(Relaxed) && !outside && !both
    }

    /// A free run of 1 to `want` blocks: from partly used groups if one does, so that whole groups stay whole.
    pub(super) fn find_small(&self, want: u64) -> Option<(u64, u64)> {
        let groups = self.partial.len() * 64;
        if want == 1 {
            let group = match next_bit(self.partial, 0) {
                Some(group) => group,
                None => next_bit(self.whole, 0)?,
            };
            return self.best_in_group(group, 1);
        }
        let first = self.control[NEXT_GROUP].load(Relaxed) as usize % groups;
        let (mut best, mut from, mut wrapped) = (None, first, false);
        for _ in 0..GROUPS_SEARCHED {
            let group = match next_bit(self.partial, from) {
                Some(group) => group,
                None if wrapped || first == 0 => break,
                None => {
                    (from, wrapped) = (0, true);
                    continue;
                }
            };
            if wrapped && group >= first {
                break;
            }
            from = group + 1;
            let found = self.best_in_group(group, want);
            if found.map_or(0, |run| run.1) > best.map_or(0, |run: (u64, u64)| run.1) {
                best = found;
            }
            if best.is_some_and(|run| run.1 == want) {
                break;
            }
        }
        self.control[NEXT_GROUP].store(from as u64, Relaxed);
        // Pieces of less than half are worse than opening another group.
        if best.is_none_or(|run| run.1 * 2 < want)
            && let Some(group) = next_bit(self.whole, 0)
        {
            // The bits decide, should the summary be damaged.
            let start = group as u64 * GROUP_BLOCKS;
            let length = self.run(start, want.min(GROUP_BLOCKS), true);
            return (length > 0).then_some((start, length)).or(best);
        }
        // Nothing found among those looked at does not mean that there is nothing.
        best.or_else(|| self.best_in_group(next_bit(self.partial, 0)?, want))
    }

    /// Whole groups for at most `want` blocks (at least 512): of the runs looked at the longest, or the first that is
    /// long enough.
    pub(super) fn find_whole(&self, want: u64) -> Option<(u64, u64)> {
        let (mut best, mut from) = (None, 0);
        let wanted = (want / GROUP_BLOCKS) as usize;
        for _ in 0..GROUPS_SEARCHED {
            let Some(group) = next_bit(self.whole, from) else { break };
            let mut length = 1;
            while length < wanted && bit(self.whole, group + length) {
                length += 1;
            }
            if best.is_none_or(|(_, longest)| length > longest) {
                best = Some((group, length));
            }
            if length >= wanted {
                break;
            }
            from = group + length;
        }
        let (group, length) = best?;
        // A summary can be wrong only if the arena was damaged; the bits decide.
        let length = self.run(group as u64 * GROUP_BLOCKS, length as u64 * GROUP_BLOCKS, true) / GROUP_BLOCKS;
        (length > 0).then_some((group as u64 * GROUP_BLOCKS, length * GROUP_BLOCKS))
    }

    /// The first free run of `count` blocks. Looks at all bits of the pool, if need be.
    pub(super) fn find_run(&self, count: u64) -> Option<u64> {
        let mut at = 0;
        loop {
            at += self.run(at, u64::MAX, false);
            if at + count > self.blocks {
                return None;
            }
            match self.run(at, count, true) {
                length if length == count => return Some(at),
                length => at += length.max(1),
            }
        }
    }

    /// In one group the first free run of `want` blocks, or else the longest.
    fn best_in_group(&self, group: usize, want: u64) -> Option<(u64, u64)> {
        let first = group as u64 * GROUP_BLOCKS;
        let limit = self.blocks.checked_sub(first)?;
        if want == 1 {
            let used = self.run(first, limit.min(GROUP_BLOCKS), false);
            return (used < limit.min(GROUP_BLOCKS)).then_some((first + used, 1));
        }
        let words = self.bits.get(group * GROUP_WORDS..)?;
        // The bits behind the end decide nothing, should they be damaged.
        let bits = core::array::from_fn(|index| {
            let inside = limit.saturating_sub(index as u64 * 64).min(64) as u32;
            words.get(index).map_or(0, |word| word.load(Relaxed)) & u64::MAX.checked_shr(64 - inside).unwrap_or(0)
        });
        let (start, length) = runs::longest(&bits, want as usize)?;
        Some((first + start as u64, length as u64))
    }
}

fn bit(words: &[Word], index: usize) -> bool {
    words.get(index / 64).is_some_and(|word| word.load(Relaxed) >> (index % 64) & 1 == 1)
}

/// Stores only if something changes.
fn set_bit(words: &[Word], index: u64, value: bool) {
    let Some(word) = words.get((index / 64) as usize) else { return };
    let (old, mask) = (word.load(Relaxed), 1 << (index % 64));
    let new = if value { old | mask } else { old & !mask };
    if new != old {
        word.store(new, Relaxed);
    }
}

/// The first bit set from `from` on.
fn next_bit(words: &[Word], from: usize) -> Option<usize> {
    let mut index = from / 64;
    let mut skip = from % 64;
    while let Some(word) = words.get(index) {
        let rest = word.load(Relaxed) >> skip << skip;
        if rest != 0 {
            return Some(index * 64 + rest.trailing_zeros() as usize);
        }
        (index, skip) = (index + 1, 0);
    }
    None
}
