//! How many references there are to blocks that have more than one: a number of 32 bits for each block of the volume, in the
//! arena. 0 says one reference or none, which is what nearly all blocks have, and then there is no memory behind it.
//!
//! Each change is one compare-and-swap, so a kill leaves every number as it was or as it shall be. References are added
//! before the entry that makes them is committed and dropped after the entry that ends them: who is killed in between leaves
//! a number too high, never too low. Too high keeps blocks from being freed until the next full count, which every death
//! inside an operation asks for.
//!
//! What a reference is: a file's map has the block. Nothing is added or dropped but by who holds the lock of such a file.

use crate::disk::Disk;
use crate::format::BLOCK_BYTES;
use crate::format::shares::{ListLink, RUNS_MAX, SharedRun, checksum, decode, encode};
use crate::ops::shared_error;
use crate::places::{CONTROL_SHARES, Places};
use gannet_shm::{Arena, Ordering, Word, Word32};
use gannet_vfs::{Errno, Error, Result};
use std::collections::HashMap;
use std::sync::Mutex;

/// Blocks that share a bit that says whether any of them ever had a number.
pub(crate) const GROUP_BLOCKS: u64 = 512;
/// The longest run of one element of the saved list.
const RUN_BLOCKS_MAX: u64 = (1 << 24) - 1;

/// A view of the numbers.
pub(crate) struct Shares<'s> {
    arena: &'s Arena,
    start: gannet_shm::ArenaOffset,
    groups: &'s [Word],
    any: &'s Word,
    blocks: u64,
}

impl<'s> Shares<'s> {
    pub(crate) fn of(places: &Places, arena: &'s Arena) -> Result<Self> {
        let groups = arena.words(places.share_groups.start, places.share_groups.bytes / 8).map_err(shared_error)?;
        let any = arena.word(places.control(CONTROL_SHARES)).map_err(shared_error)?;
        Ok(Self { arena, start: places.shares.start, groups, any, blocks: places.shares.bytes / 4 })
    }

    /// Whether any block was shared since the volume was opened.
    pub(crate) fn any(&self) -> bool {
        self.any.load(Ordering::Acquire) != 0
    }

    fn number(&self, block: u64) -> Result<&'s Word32> {
        if block >= self.blocks {
            return Err(Error::damaged("extent outside the volume", block.saturating_mul(BLOCK_BYTES)));
        }
        self.arena.word32(self.start.add(block * 4)).map_err(shared_error)
    }

    fn has_numbers(&self, block: u64) -> bool {
        let group = block / GROUP_BLOCKS;
        self.groups.get((group / 64) as usize).is_some_and(|word| word.load(Ordering::Acquire) >> (group % 64) & 1 != 0)
    }

    /// Sees to it that there is memory behind the numbers of these blocks.
    fn back(&self, block: u64, count: u64) -> Result<()> {
        if count == 0 || block.checked_add(count).is_none_or(|end| end > self.blocks) {
            return Err(Error::damaged("extent outside the volume", block.saturating_mul(BLOCK_BYTES)));
        }
        self.arena.reserve(self.start.add(block * 4), count * 4).map_err(shared_error)?;
        for group in block / GROUP_BLOCKS..(block + count).div_ceil(GROUP_BLOCKS) {
            if let Some(word) = self.groups.get((group / 64) as usize) {
                word.fetch_or(1 << (group % 64), Ordering::AcqRel);
            }
        }
        self.any.store(1, Ordering::Release);
        Ok(())
    }

    /// One more reference to each of these blocks, all of which have one. All or none; `EMLINK` where there are four billion.
    pub(crate) fn add(&self, block: u64, count: u64) -> Result<()> {
        self.back(block, count)?;
        for at in block..block + count {
            let more = |old: u32| if old == 0 { Some(2) } else { old.checked_add(1) };
            if change(self.number(at)?, more).is_none() {
                for done in block..at {
                    self.drop_one(done)?;
                }
                return Err(Error::because(Errno::MLINK, "a block has four billion references"));
            }
        }
        Ok(())
    }

    /// One reference less to a block; true if it was the last.
    pub(crate) fn drop_one(&self, block: u64) -> Result<bool> {
        if !self.has_numbers(block) {
            return Ok(true);
        }
        let fewer = |old: u32| match old {
            0 => None,
            // One that nobody ever stores stands for one reference as well.
            1 | 2 => Some(0),
            _ => Some(old - 1),
        };
        Ok(change(self.number(block)?, fewer).is_none())
    }

    /// Nobody refers to a block any more.
    pub(crate) fn forget(&self, block: u64) -> Result<()> {
        if self.has_numbers(block) {
            self.number(block)?.store(0, Ordering::Release);
        }
        Ok(())
    }

    /// Whether a block is shared, and for how many from there on, up to `count`, the answer is the same.
    pub(crate) fn run(&self, block: u64, count: u64) -> Result<(bool, u64)> {
        let is_shared =
            |at: u64| -> Result<bool> { Ok(self.has_numbers(at) && self.number(at)?.load(Ordering::Acquire) != 0) };
        let first = is_shared(block)?;
        let mut length = 1;
        while length < count {
            let at = block + length;
            if !first && at.is_multiple_of(GROUP_BLOCKS) && !self.has_numbers(at) {
                length += GROUP_BLOCKS;
            } else if is_shared(at)? == first {
                length += 1;
            } else {
                break;
            }
        }
        Ok((first, length.min(count)))
    }

    /// Takes over what was counted; nobody uses the volume yet.
    pub(crate) fn load(&self, runs: &[SharedRun]) -> Result<()> {
        for run in runs {
            self.back(run.block, run.count as u64)?;
            for block in run.block..run.block + run.count as u64 {
                self.number(block)?.store(run.references, Ordering::Release);
            }
        }
        Ok(())
    }

    /// All that is shared, in ascending order; nobody uses the volume any more.
    pub(crate) fn runs(&self) -> Result<Vec<SharedRun>> {
        let mut runs = Runs::default();
        if self.any() {
            for (index, word) in self.groups.iter().enumerate() {
                let mut bits = word.load(Ordering::Acquire);
                while bits != 0 {
                    let group = index as u64 * 64 + u64::from(bits.trailing_zeros());
                    bits &= bits - 1;
                    let first = group * GROUP_BLOCKS;
                    for block in first..(first + GROUP_BLOCKS).min(self.blocks) {
                        runs.push(block, self.number(block)?.load(Ordering::Acquire));
                    }
                }
            }
        }
        Ok(runs.list)
    }
}

/// Changes a number in one step; `None` if it cannot be changed so, and then it was not.
fn change(number: &Word32, next: impl Fn(u32) -> Option<u32>) -> Option<u32> {
    let mut old = number.load(Ordering::Acquire);
    loop {
        match number.compare_exchange(old, next(old)?, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => return Some(old),
            Err(found) => old = found,
        }
    }
}

/// Runs being put together.
#[derive(Default)]
struct Runs {
    list: Vec<SharedRun>,
}

impl Runs {
    /// One more block, behind all others.
    fn push(&mut self, block: u64, references: u32) {
        if references < 2 {
            return;
        }
        if let Some(last) = self.list.last_mut()
            && last.block + last.count as u64 == block
            && last.references == references
            && (last.count as u64) < RUN_BLOCKS_MAX
        {
            last.count += 1;
        } else {
            self.list.push(SharedRun { block, count: 1, references });
        }
    }
}

/// References beyond the first, counted by recovery and fsck in private memory.
#[derive(Default)]
pub(crate) struct Counts {
    groups: Mutex<HashMap<u64, Box<[u32; GROUP_BLOCKS as usize]>>>,
}

impl Counts {
    /// A block that somebody refers to is referred to again.
    pub(crate) fn again(&self, block: u64) {
        let mut groups = self.groups.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let group = groups.entry(block / GROUP_BLOCKS).or_insert_with(|| Box::new([0; GROUP_BLOCKS as usize]));
        let number = &mut group[(block % GROUP_BLOCKS) as usize];
        *number = number.saturating_add(1);
    }

    /// One reference less; false if it was the only one.
    pub(crate) fn take(&self, block: u64) -> bool {
        let mut groups = self.groups.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        match groups.get_mut(&(block / GROUP_BLOCKS)).map(|group| &mut group[(block % GROUP_BLOCKS) as usize]) {
            Some(number) if *number > 0 => {
                *number -= 1;
                true
            }
            _ => false,
        }
    }

    /// All that is shared, in ascending order.
    pub(crate) fn runs(&self) -> Vec<SharedRun> {
        let groups = self.groups.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let mut numbers: Vec<u64> = groups.keys().copied().collect();
        numbers.sort_unstable();
        let mut runs = Runs::default();
        for number in numbers {
            for (within, &more) in groups[&number].iter().enumerate() {
                let references = if more == 0 { 0 } else { more.saturating_add(1) };
                runs.push(number * GROUP_BLOCKS + within as u64, references);
            }
        }
        runs.list
    }
}

/// Writes the list of what is shared into free blocks, which `free` gives; durable after the commit's fence. `None` if they do
/// not suffice.
pub(crate) fn save_list(
    disk: &Disk,
    commit: &mut crate::disk::Commit<'_>,
    runs: &[SharedRun],
    free: &mut dyn FnMut() -> Option<u64>,
) -> Result<Option<ListLink>> {
    let mut link = ListLink::default();
    // From the end, since each block says what the next one is.
    for part in runs.chunks(RUNS_MAX).rev() {
        let Some(block) = free() else { return Ok(None) };
        let bytes = encode(link, part);
        commit.write(block * BLOCK_BYTES, &bytes[..])?;
        link = ListLink { block, checksum: checksum(disk.key(), block, &bytes) };
    }
    Ok(Some(link))
}

/// Reads the list that begins at `link`; `None` if it is not what was written.
pub(crate) fn read_list(disk: &Disk, mut link: ListLink) -> Result<Option<Vec<SharedRun>>> {
    let geometry = disk.geometry();
    let mut runs: Vec<SharedRun> = Vec::new();
    let mut bytes = [0; BLOCK_BYTES as usize];
    let mut behind = 0;
    while link.block != 0 {
        if !geometry.is_allocatable(link.block) {
            return Ok(None);
        }
        disk.read_block(link.block, &mut bytes)?;
        let Some((next, found)) = decode(disk.key(), link, &bytes) else { return Ok(None) };
        for run in found {
            // Ever higher, so the list ends.
            let sound = run.block >= behind
                && run.references >= 2
                && run.count > 0
                && geometry.is_allocatable_run(run.block, run.count as u64);
            if !sound {
                return Ok(None);
            }
            behind = run.block + run.count as u64;
            runs.push(run);
        }
        link = next;
    }
    Ok(Some(runs))
}
