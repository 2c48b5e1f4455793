//! Pins: blocks that a participant has mapped. Freed ones are deferred: they become free when no pin covers them.
//!
//! May touch: pins and deferred bits of a pool, under its lock. Relies on: the caller pinning only what is in use,
//! under the lock or stripe that keeps it in use; so nothing can be pinned that is being freed.
//!
//! A pin is two words, `owner` and then the extent; it counts exactly while the extent is not 0. A deferred bit says
//! "freed, but pinned"; a block never is both free and deferred while its pool is unlocked. A number for each group says how
//! many pins touch it, so that freeing elsewhere looks at no pin; it is raised before a pin counts and lowered after.

use gannet_shm::{Ordering::Relaxed, Thread};

use super::layout::{PIN_WORDS, PINS_CHUNK, PINS_MAX};
use super::pool::{PINS, PINS_BACKED, PINS_NEXT, PINS_USED, Pool, masks};
use super::{Extent, GROUP_BLOCKS, Space, SpaceError};

/// Whose pin it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PinOwner {
    /// The participant's index: its pins go when it dies.
    pub participant: u32,
    /// What the participant knows it by, a mapping for instance; below 2^[`PinOwner::TOKEN_BITS`].
    pub token: u64,
}

impl PinOwner {
    /// So many that a process which maps ten thousand times a second comes to their end after two hundred years; the rest of a word is the
    /// participant's.
    pub const TOKEN_BITS: u32 = 46;

    /// In a word.
    pub(crate) const fn pack(self) -> u64 {
        (self.participant as u64) << Self::TOKEN_BITS | self.token
    }

    /// From a word.
    pub(crate) const fn unpack(word: u64) -> Self {
        Self { participant: (word >> Self::TOKEN_BITS) as u32, token: word & ((1 << Self::TOKEN_BITS) - 1) }
    }
}

// Of 16 bits, and a word that says one more has room, too.
const _: () = assert!(crate::places::PARTICIPANTS < 1 << 16 && PinOwner::TOKEN_BITS < 48);

impl Pool<'_> {
    fn pins_used(&self) -> usize {
        (self.control[PINS_USED].load(Relaxed) as usize).min(self.pins_backed())
    }

    fn pins_backed(&self) -> usize {
        (self.control[PINS_BACKED].load(Relaxed) as usize).min(PINS_MAX)
    }

    /// Adds one, or takes one away, for each group that a pin touches.
    fn count_groups(&self, extent: Extent, up: bool) {
        let start = extent.start.saturating_sub(self.first_block);
        let end = (start + u64::from(extent.count)).min(self.blocks);
        for group in start / GROUP_BLOCKS..end.div_ceil(GROUP_BLOCKS) {
            if let Some(word) = self.pin_groups.get(group as usize) {
                let count = word.load(Relaxed);
                word.store(if up { count.saturating_add(1) } else { count.saturating_sub(1) }, Relaxed);
            }
        }
    }

    fn pin_count(&self) -> u64 {
        self.control[PINS].load(Relaxed).min(PINS_MAX as u64)
    }

    fn pin_extent(&self, index: usize) -> Option<Extent> {
        Extent::unpack(self.pins[index * PIN_WORDS + 1].load(Relaxed))
    }

    /// Pinned parts, clipped to the pool, with their index and owner.
    fn pinned(&self) -> impl Iterator<Item = (usize, u64, u64, u64)> + '_ {
        (0..self.pins_used()).filter_map(move |index| {
            let extent = self.pin_extent(index)?;
            let start = extent.start.checked_sub(self.first_block)?;
            let end = (start + u64::from(extent.count)).min(self.blocks);
            (start < end).then(|| (index, self.pins[index * PIN_WORDS].load(Relaxed), start, end))
        })
    }

    /// Whether `block` is pinned, and the first block behind it, up to `end`, for which that may be different.
    fn pinned_until(&self, block: u64, end: u64) -> (bool, u64) {
        let group = block / GROUP_BLOCKS;
        let end = end.min((group + 1) * GROUP_BLOCKS);
        if self.pin_groups.get(group as usize).is_some_and(|count| count.load(Relaxed) == 0) {
            return (false, end);
        }
        let (mut covered, mut free) = (block, end);
        for (_, _, from, to) in self.pinned() {
            if from <= block && block < to {
                covered = covered.max(to);
            } else if from > block {
                free = free.min(from);
            }
        }
        if covered > block { (true, covered.min(end)) } else { (false, free) }
    }

    /// Frees a run of blocks, except for those that are pinned: they are deferred. Some may be free already.
    pub(super) fn free_unpinned(&self, start: u64, count: u64) {
        // Whoever comes here knows whose they were.
        self.trust(start, count);
        if self.control[PINS].load(Relaxed) == 0 {
            self.give(start, count);
            return;
        }
        let (mut at, end) = (start, start + count);
        while at < end {
            let (pinned, until) = self.pinned_until(at, end);
            if pinned {
                for (word, mask) in masks(at, until - at) {
                    let word = &self.deferred[word];
                    word.store(word.load(Relaxed) | mask, Relaxed);
                }
            } else {
                self.give(at, until - at);
            }
            at = until;
        }
    }

    /// Frees the deferred blocks of a run that no pin covers any more.
    fn sweep(&self, start: u64, count: u64) {
        let (mut at, end) = (start, start + count);
        while at < end {
            let word = &self.deferred[(at / 64) as usize];
            let rest = word.load(Relaxed) >> (at % 64) << (at % 64);
            if rest == 0 {
                at = (at / 64 + 1) * 64;
                continue;
            }
            at = at / 64 * 64 + u64::from(rest.trailing_zeros());
            if at >= end {
                return;
            }
            let in_word = end.min((at / 64 + 1) * 64);
            let (pinned, until) = self.pinned_until(at, in_word);
            if !pinned {
                for (word, mask) in masks(at, until - at) {
                    let deferred = self.deferred[word].load(Relaxed) & mask;
                    let mut left = deferred;
                    while left != 0 {
                        let first = u64::from(left.trailing_zeros());
                        let length = u64::from((left >> first).trailing_ones());
                        self.give(word as u64 * 64 + first, length);
                        left &= !(if length == 64 { u64::MAX } else { ((1 << length) - 1) << first });
                    }
                    // Free first: whoever repairs the pool after a kill in between sweeps again, and both are set for
                    // nobody else to see. The other way round the blocks would be lost.
                    let word = &self.deferred[word];
                    word.store(word.load(Relaxed) & !deferred, Relaxed);
                }
            }
            at = until;
        }
    }

    /// Puts right what a holder of the lock left half done: a sweep cut short, counters.
    pub(super) fn repair(&self) {
        let used = self.pins_used();
        let mut pins = 0;
        if self.control[PINS_BACKED].load(Relaxed) != 0 {
            self.pin_groups.iter().for_each(|count| count.store(0, Relaxed));
            for extent in (0..used).filter_map(|index| self.pin_extent(index)) {
                pins += 1;
                self.count_groups(extent, true);
            }
            self.control[PINS].store(pins, Relaxed);
            self.control[PINS_NEXT].store(0, Relaxed);
            self.sweep(0, self.blocks);
        }
        self.control[PINS].store(pins, Relaxed);
        self.recount();
    }

    fn add_pin(&self, owner: PinOwner, extent: Extent) -> Result<(), SpaceError> {
        let used = self.pins_used();
        let count = &self.control[PINS];
        let unused = |from: usize| (from..used).find(|&index| self.pin_extent(index).is_none());
        let next = (self.control[PINS_NEXT].load(Relaxed) as usize).min(used);
        // The search is needed only if some are unused.
        let reused = if self.pin_count() < used as u64 { unused(next).or_else(|| unused(0)) } else { None };
        let index = match reused {
            Some(index) => index,
            None if used < self.pins_backed() => used,
            None => return Err(SpaceError::PinsFull),
        };
        self.count_groups(extent, true);
        self.pins[index * PIN_WORDS].store(owner.pack(), Relaxed);
        self.pins[index * PIN_WORDS + 1].store(extent.pack(), Relaxed);
        // Behind the pin, so that it counts from here on.
        if index == used {
            self.control[PINS_USED].store(used as u64 + 1, Relaxed);
        }
        self.control[PINS_NEXT].store(index as u64 + 1, Relaxed);
        count.store(self.pin_count() + 1, Relaxed);
        Ok(())
    }

    /// Removes the pins that `which` names by their owner's word, and frees what was deferred for them.
    fn remove_pins(&self, which: impl Fn(u64) -> bool) {
        // What they covered, to be swept once: a kill before that leaves it to the repair.
        let (mut from, mut to) = (u64::MAX, 0);
        for index in 0..self.pins_used() {
            if !which(self.pins[index * PIN_WORDS].load(Relaxed)) {
                continue;
            }
            let Some(extent) = self.pin_extent(index) else { continue };
            self.pins[index * PIN_WORDS + 1].store(0, Relaxed);
            let count = &self.control[PINS];
            count.store(self.pin_count().saturating_sub(1), Relaxed);
            self.count_groups(extent, false);
            let next = &self.control[PINS_NEXT];
            next.store(next.load(Relaxed).min(index as u64), Relaxed);
            let start = extent.start.saturating_sub(self.first_block);
            from = from.min(start);
            to = to.max((start + u64::from(extent.count)).min(self.blocks));
        }
        if from < to {
            self.sweep(from, to - from);
        }
        if from < to {
            // As far as pins are looked for.
            let used = (0..self.pins_used()).rev().find(|&index| self.pin_extent(index).is_some());
            self.control[PINS_USED].store(used.map_or(0, |last| last as u64 + 1), Relaxed);
        }
    }
}

impl<'a> Space<'a> {
    /// Pins blocks that are in use: from now on freeing them does not make them free. An extent may be pinned any
    /// number of times, also by the same owner.
    ///
    /// # Errors
    /// [`SpaceError::PinsFull`], [`SpaceError::Invalid`], [`SpaceError::Shared`]. If the extent lies in several pools
    /// some of it may be pinned then; [`Space::unpin`] removes that too.
    pub fn pin(&self, thread: &Thread<'_>, owner: PinOwner, extent: Extent) -> Result<(), SpaceError> {
        self.layout.check(extent)?;
        for (index, part) in self.parts(extent) {
            let mut backed = self.pool(index).pins_backed();
            if backed == 0 {
                backed = self.back_pins(index, 0)?;
            }
            loop {
                let (guard, pool) = self.lock_pool(thread, index)?;
                if backed > pool.pins_backed() {
                    pool.control[PINS_BACKED].store(backed as u64, Relaxed);
                }
                let has = pool.pins_backed();
                let added = pool.add_pin(owner, part);
                guard.unlock();
                match added {
                    Err(SpaceError::PinsFull) if has < PINS_MAX => backed = self.back_pins(index, has)?,
                    other => break other?,
                }
            }
        }
        Ok(())
    }

    /// Whether somebody has pinned a block of an extent.
    ///
    /// # Errors
    /// [`SpaceError::Invalid`], [`SpaceError::Shared`].
    pub fn is_pinned(&self, thread: &Thread<'_>, extent: Extent) -> Result<bool, SpaceError> {
        self.layout.check(extent)?;
        for (index, part) in self.parts(extent) {
            if self.pool(index).control[PINS].load(Relaxed) == 0 {
                continue;
            }
            let (guard, pool) = self.lock_pool(thread, index)?;
            let (mut at, mut pinned) = (part.start - pool.first_block, false);
            let end = at + u64::from(part.count);
            while at < end && !pinned {
                (pinned, at) = pool.pinned_until(at, end);
            }
            guard.unlock();
            if pinned {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Gets memory for the pins behind the first `has`; returns how many have it then. Not under the pool's lock.
    fn back_pins(&self, index: u64, has: usize) -> Result<usize, SpaceError> {
        let layout = &self.layout;
        let reserve =
            |from: usize, to: usize| self.arena.reserve(self.start.add(from as u64 * 8), (to - from) as u64 * 8);
        if has == 0 {
            reserve(layout.deferred_at(index), layout.deferred_at(index + 1))?;
            reserve(layout.pin_groups_at(index), layout.pin_groups_at(index + 1))?;
        }
        let backed = (has + PINS_CHUNK).min(PINS_MAX);
        reserve(layout.pins_at(index) + has * PIN_WORDS, layout.pins_at(index) + backed * PIN_WORDS)?;
        Ok(backed)
    }

    fn remove_pins(&self, thread: &Thread<'_>, which: impl Fn(u64) -> bool) -> Result<(), SpaceError> {
        for index in 0..self.layout.pools() {
            if self.pool(index).control[PINS].load(Relaxed) != 0 {
                let (guard, pool) = self.lock_pool(thread, index)?;
                pool.remove_pins(&which);
                guard.unlock();
            }
        }
        Ok(())
    }

    /// Removes all pins of `owner`. Blocks freed meanwhile that nobody else has pinned become free.
    ///
    /// # Errors
    /// [`SpaceError::Shared`].
    pub fn unpin(&self, thread: &Thread<'_>, owner: PinOwner) -> Result<(), SpaceError> {
        self.remove_pins(thread, |word| word == owner.pack())
    }

    /// Removes all pins of a participant that is gone. Can be repeated.
    ///
    /// # Errors
    /// [`SpaceError::Shared`].
    pub fn drop_pins_of(&self, thread: &Thread<'_>, participant: u32) -> Result<(), SpaceError> {
        self.remove_pins(thread, |word| PinOwner::unpack(word).participant == participant)
    }

    /// Gives `to` a copy of every pin of `from`, with the same tokens: what a forked child inherits.
    ///
    /// # Errors
    /// [`SpaceError::PinsFull`], [`SpaceError::Shared`]; [`Space::drop_pins_of`] then removes what was copied.
    pub fn copy_pins(&self, thread: &Thread<'_>, from: u32, to: u32) -> Result<(), SpaceError> {
        for index in 0..self.layout.pools() {
            if self.pool(index).control[PINS].load(Relaxed) == 0 {
                continue;
            }
            let mut next = 0;
            loop {
                let (guard, pool) = self.lock_pool(thread, index)?;
                let mut copied = Ok(());
                while next < pool.pins_used() && copied.is_ok() {
                    let owner = pool.pins[next * PIN_WORDS].load(Relaxed);
                    let owner = PinOwner::unpack(owner);
                    if let Some(extent) = pool.pin_extent(next)
                        && owner.participant == from
                    {
                        copied = pool.add_pin(PinOwner { participant: to, ..owner }, extent);
                    }
                    next += usize::from(copied.is_ok());
                }
                let has = pool.pins_backed();
                guard.unlock();
                match copied {
                    Err(SpaceError::PinsFull) if has < PINS_MAX => {
                        let backed = self.back_pins(index, has)?;
                        let (guard, pool) = self.lock_pool(thread, index)?;
                        let more = backed.max(pool.pins_backed());
                        pool.control[PINS_BACKED].store(more as u64, Relaxed);
                        guard.unlock();
                    }
                    other => break other?,
                }
            }
        }
        Ok(())
    }

    /// Number of pins, and of freed blocks that wait for them.
    pub fn pinned(&self) -> (u64, u64) {
        (0..self.layout.pools()).map(|index| self.pool(index)).fold((0, 0), |(pins, deferred), pool| {
            let backed = pool.control[PINS_BACKED].load(Relaxed) != 0;
            let words = if backed { pool.deferred } else { &[] };
            let waiting: u64 = words.iter().map(|word| u64::from(word.load(Relaxed).count_ones())).sum();
            (pins + pool.pin_count(), deferred + waiting)
        })
    }
}
