//! What is given up and not free yet: inode numbers and blocks that stores of this thread set free, which its next fence
//! makes durable.
//!
//! To free an inode is to store its slot's generation; to give up a log page, the word that led to it. Only what is durably
//! free may be used for something else, but nobody waits for that: the next operation of the thread that appends to a log
//! writes those lines back before its fence as well ([`Op::flush_limbo`]), and behind that fence it is free
//! ([`Op::leave_limbo`]). Until then it is noted here, in a few words of the thread's slot.
//!
//! Whoever comes to words that another thread left (the slot's next user, who closes the volume) writes those lines back
//! itself and executes a fence: one of its own alone would not cover them. So does who finds no free block: before a volume
//! counts as full, the runs of others are taken as well ([`Op::take_others_limbo`]), each by a compare-and-swap. A tag in
//! its word tells a run from the same one given up again later. Who finds no free number takes those of others first and makes them
//! durably free then.
//!
//! What somebody takes out of here is in nobody's words for a moment; who counts beside others (`recount`) waits until it is: each says in
//! its own words that it is at that ([`Between`]).
//!
//! May touch: the words of one's own slot; of any the runs, and all when nobody else is there. A kill between two stores here can lose
//! what was being freed; that happens under an inode's lock, so the volume is counted anew (`reap`).

mod words;

use crate::disk::Commit;
use crate::format::LINE_BYTES;
use crate::ops::{Op, shared_error};
use crate::places::{CONTROL_LIMBO, COUNTER_WORDS, LIMBO_AT, LIMBO_WORDS};
use crate::space::{Extent, Held};
use crate::storage;
use gannet_shm::Ordering::{AcqRel, Acquire, Relaxed, Release};
use gannet_shm::Word;
use gannet_vfs::Result;
use words::{add_half, halves, has_half, in_empty_half, make_ready, pack_run, take_ready, unpack_run};

/// Tenure of the thread that left what stands here.
const TENURE: usize = 0;
/// One more than the fences that it had executed when it wrote all lines back that are said here; 0 before.
const FLUSHED: usize = 1;
/// Inodes in whose slots the stores stand that set free what is here, one in each half.
const SLOTS: usize = 2;
/// Numbers of inodes, one in each half: those in whose slots it is said. Others take them all at once, and nothing else.
const NUMBERS: usize = 3;
/// Counts the runs that were given up.
const TAG: usize = 4;
/// Numbers of inodes, one in each half, that came out of limbo here: free, and in no pool. The thread's next inodes get them,
/// without the pool's lock and with a slot and a record that are in the cache. Changed by compare-and-swap only.
const READY: usize = 5;
/// Not 0 while the thread has something that stood in anybody's words here, and that is neither in its hands yet nor in a pool again.
const BETWEEN: usize = 6;
/// Runs of blocks: `first block:40 · tag:16 · count:8`; 0 is none.
const RUNS: usize = 7;
const RUNS_MAX: usize = LIMBO_WORDS as usize - RUNS;
/// What is longer is worth a fence at once: what waits is space that nobody can use.
const RUN_BLOCKS_MAX: u32 = 64;

/// Something given up under one slot's stores: at most so many runs are worth waiting.
pub(crate) struct GivenUp {
    /// In whose slot it is said.
    pub(crate) slot: u32,
    /// Its number is free as well.
    pub(crate) number: bool,
    runs: [Option<Extent>; GivenUp::RUNS_MAX],
    count: usize,
    too_much: bool,
}

impl GivenUp {
    const RUNS_MAX: usize = 6;

    /// Nothing yet, said in the slot of inode `slot`.
    pub(crate) const fn new(slot: u32, number: bool) -> Self {
        Self { slot, number, runs: [None; Self::RUNS_MAX], count: 0, too_much: false }
    }

    /// Adds a run of blocks; false if that is too much to wait: it and all that follows is to be freed behind a fence.
    #[must_use]
    pub(crate) fn add(&mut self, extent: Extent) -> bool {
        if self.count == Self::RUNS_MAX || extent.count > RUN_BLOCKS_MAX {
            self.too_much = true;
        }
        if self.too_much {
            return false;
        }
        self.runs[self.count] = Some(extent);
        self.count += 1;
        true
    }
}

/// As long as this lives its thread may have what stood in limbo, and nobody can see where.
struct Between<'w>(&'w Word);

impl Drop for Between<'_> {
    fn drop(&mut self) {
        // Unnoticed [word]: who counts beside others waits until this thread ends, or longer than needed (`recounts`).
        self.0.store(0, Release);
    }
}

impl<'s> Op<'s> {
    /// To be called before the compare-and-swap, or swap, that takes something out of limbo; it orders the store before what it takes.
    #[inline]
    fn between(&self) -> Between<'s> {
        let word = &self.limbo()[BETWEEN];
        // Unnoticed [word]: it takes one who counts beside this at this moment (`recounts`).
        word.store(1, Relaxed);
        Between(word)
    }

    /// The calling thread's own words.
    #[inline]
    fn limbo(&self) -> &'s [Word] {
        &self.counters[LIMBO_AT as usize..(LIMBO_AT + LIMBO_WORDS) as usize]
    }

    /// Frees what the thread has given up before its last fence. To be called when a fence may have been executed.
    // Inlined as far as most calls go.
    #[inline(always)]
    pub(crate) fn leave_limbo(&self) -> Result<()> {
        match self.limbo()[TENURE].load(Relaxed) {
            0 => Ok(()),
            _ => self.leave_due_limbo(),
        }
    }

    #[inline(never)]
    fn leave_due_limbo(&self) -> Result<()> {
        let words = self.limbo();
        let flushed = words[FLUSHED].load(Relaxed);
        if flushed != 0
            && words[TENURE].load(Relaxed) == self.thread.tenure()
            && gannet_media::counters_thread().fences >= flushed
        {
            return self.free_limbo(words);
        }
        Ok(())
    }

    /// Writes back, before a fence that is executed anyway, what sets free what is in limbo.
    #[inline]
    pub(crate) fn flush_limbo(&self, commit: &mut Commit<'_>) {
        let words = self.limbo();
        let tenure = words[TENURE].load(Relaxed);
        if tenure == 0 || (words[FLUSHED].load(Relaxed) != 0 && tenure == self.thread.tenure()) {
            return;
        }
        // The entry is stored: what cannot be written back now stays where it is.
        if self.write_back(commit, words).is_err() {
            return;
        }
        // Also what the slot's former user left: the lines are written back by this thread now.
        // Unnoticed [word]: what the slot's former user left is freed where the words are needed, behind a fence of its own.
        words[TENURE].store(self.thread.tenure(), Relaxed);
        // Freed behind the next fence.
        words[FLUSHED].store(gannet_media::counters_thread().fences + 1, Relaxed);
    }

    fn write_back(&self, commit: &mut Commit<'_>, words: &[Word]) -> Result<()> {
        self.write_back_slots(commit, words[SLOTS].load(Relaxed))
    }

    fn write_back_slots(&self, commit: &mut Commit<'_>, slots: u64) -> Result<()> {
        for slot in halves(slots) {
            if let Some(at) = self.disk().slot_at(slot)? {
                commit.flush(at, LINE_BYTES)?;
            }
        }
        Ok(())
    }

    /// Notes what stores of this thread have set free, which are neither written back nor durable yet.
    pub(crate) fn enter_limbo(&self, given_up: &GivenUp) -> Result<()> {
        let words = self.limbo();
        let tenure = self.thread.tenure();
        let found = words[TENURE].load(Relaxed);
        if found != 0 && (found != tenure || !has_room(words, given_up)) {
            self.clear_limbo(words)?;
        }
        if words[TENURE].load(Relaxed) == 0 {
            words[SLOTS].store(0, Relaxed);
            words[TENURE].store(tenure, Relaxed);
            self.note_limbo_slot()?;
        }
        words[FLUSHED].store(0, Relaxed);
        add_half(&words[SLOTS], given_up.slot);
        let mut runs = given_up.runs.iter().flatten();
        for word in &words[RUNS..] {
            if word.load(Relaxed) == 0 {
                let Some(&run) = runs.next() else { break };
                let tag = words[TAG].load(Relaxed).wrapping_add(1);
                // Unnoticed [word]: it takes one who takes the run while it is given up again.
                words[TAG].store(tag, Relaxed);
                word.store(pack_run(run, tag), Release);
            }
        }
        if given_up.number {
            // Others may take meanwhile what stands there: what is empty stays so.
            let found = words[NUMBERS].load(Relaxed);
            if halves(found).all(|half| half != given_up.slot) {
                words[NUMBERS].fetch_or(in_empty_half(found, given_up.slot), AcqRel);
            }
        }
        Ok(())
    }

    /// Makes durable what frees all that stands in limbo words, and frees it.
    #[cold]
    fn clear_limbo(&self, words: &[Word]) -> Result<()> {
        let mut commit = self.disk().begin();
        self.write_back(&mut commit, words)?;
        let _ = commit.fence();
        self.free_limbo(words)
    }

    /// Frees what stands in limbo words; the stores that set it free are durable.
    fn free_limbo(&self, words: &[Word]) -> Result<()> {
        let _between = self.between();
        for word in &words[RUNS..] {
            let run = word.load(Relaxed);
            // Nobody's for a moment: the other order could free it twice. Somebody in need may have been faster.
            if let Some(extent) = unpack_run(run)
                && word.compare_exchange(run, 0, AcqRel, Relaxed).is_ok()
            {
                let space = self.core.space.blocks(self)?;
                let held = space.hold(&self.thread, extent).map_err(storage::error)?;
                space.release(&self.thread, held).map_err(storage::error)?;
            }
        }
        if words[NUMBERS].load(Relaxed) != 0 {
            // Somebody in need may have been faster.
            for number in halves(words[NUMBERS].swap(0, AcqRel)) {
                if !make_ready(&words[READY], number) {
                    self.release_number(number)?;
                }
            }
        }
        words[TENURE].store(0, Relaxed);
        Ok(())
    }

    /// A number that came out of limbo in this thread's words, now in its hands.
    #[inline]
    pub(crate) fn take_ready_number(&self) -> Result<Option<Held>> {
        // Nobody's for a moment, as in `free_limbo`.
        let _between = self.between();
        let Some(number) = take_ready(&self.limbo()[READY]) else { return Ok(None) };
        self.trust_number(number)?;
        self.hold_number(number).map(Some)
    }

    #[inline]
    fn hold_number(&self, number: u32) -> Result<Held> {
        self.core.space.hold_inode(&self.thread, number)
    }

    fn release_number(&self, number: u32) -> Result<()> {
        let held = self.hold_number(number)?;
        self.core.space.inodes(self)?.release(&self.thread, held).map_err(storage::error)
    }

    /// Gives the pool all numbers that are free but not in it, as far as one can; returns whether there was any.
    #[cold]
    pub(crate) fn release_numbers(&self) -> Result<bool> {
        // What has been given up is free but for a fence.
        Ok(self.empty_limbo()? | self.release_others_numbers()? | self.release_ready_numbers()?)
    }

    /// Gives the pool the numbers that other threads have given up, and returns whether there was any.
    #[cold]
    fn release_others_numbers(&self) -> Result<bool> {
        let mut any = false;
        for slot in 0..self.control(CONTROL_LIMBO)?.min(crate::places::THREADS as u64) {
            let numbers = &self.limbo_of(slot as u32)?[NUMBERS];
            if slot as u32 == self.thread.slot() || numbers.load(Relaxed) == 0 {
                continue;
            }
            // Nobody's for a moment, as in `free_limbo`.
            let _between = self.between();
            let taken = numbers.swap(0, AcqRel);
            any |= taken != 0;
            self.free_numbers(taken).or_else(|error| self.set_uncertain().and(Err(error)))?;
        }
        Ok(any)
    }

    /// Gives numbers to the pool, durably free.
    fn free_numbers(&self, numbers: u64) -> Result<()> {
        self.make_durably_free(numbers)?;
        halves(numbers).try_for_each(|number| self.release_number(number))
    }

    /// Makes numbers durably free whose slots say that they are, one in each half.
    pub(crate) fn make_durably_free(&self, numbers: u64) -> Result<()> {
        let mut commit = self.disk().begin();
        self.write_back_slots(&mut commit, numbers)?;
        // Unmet: no workload uses up all numbers, or counts beside others. It is for what the fence in `clear_limbo` is for, which is met.
        let _ = commit.fence();
        Ok(())
    }

    /// Gives the pool the numbers that all threads keep ready, and returns whether there was any.
    #[cold]
    fn release_ready_numbers(&self) -> Result<bool> {
        let mut any = false;
        for slot in 0..self.control(CONTROL_LIMBO)?.min(crate::places::THREADS as u64) {
            let _between = self.between();
            while let Some(number) = take_ready(&self.limbo_of(slot as u32)?[READY]) {
                self.release_number(number)?;
                any = true;
            }
        }
        Ok(any)
    }

    /// Frees at once what the thread has given up: it needs the room.
    #[cold]
    pub(crate) fn empty_limbo(&self) -> Result<bool> {
        let words = self.limbo();
        if words[TENURE].load(Relaxed) == 0 {
            return Ok(false);
        }
        self.clear_limbo(words).map(|()| true)
    }

    /// Frees what other threads have given up, and returns whether that was anything: they may not come to it for long.
    #[cold]
    #[inline(never)]
    pub(crate) fn take_others_limbo(&self) -> Result<bool> {
        let mut any = false;
        for slot in 0..self.control(CONTROL_LIMBO)?.min(crate::places::THREADS as u64) {
            let words = self.limbo_of(slot as u32)?;
            for word in &words[RUNS..] {
                let run = word.load(Acquire);
                let Some(extent) = unpack_run(run).filter(|_| slot as u32 != self.thread.slot()) else { continue };
                // While the run stands there, so do the slots that say that it is free.
                let slots = words[SLOTS].load(Acquire);
                if word.load(Acquire) != run {
                    continue;
                }
                let mut commit = self.disk().begin();
                self.write_back_slots(&mut commit, slots)?;
                let _ = commit.fence();
                let _between = self.between();
                if word.compare_exchange(run, 0, AcqRel, Relaxed).is_ok() {
                    let space = self.core.space.blocks(self)?;
                    let held = space.hold(&self.thread, extent).map_err(storage::error)?;
                    space.release(&self.thread, held).map_err(storage::error)?;
                    any = true;
                }
            }
        }
        Ok(any)
    }

    /// Frees what all threads have given up. Nobody else may be at work.
    pub(crate) fn empty_all_limbo(&self) -> Result<()> {
        for slot in 0..self.control(CONTROL_LIMBO)?.min(crate::places::THREADS as u64) {
            let words = self.limbo_of(slot as u32)?;
            if words[TENURE].load(Relaxed) != 0 {
                self.clear_limbo(words)?;
            }
        }
        self.release_ready_numbers().map(drop)
    }

    /// Blocks and inode numbers in limbo, of all threads: free but for a fence.
    pub(crate) fn count_limbo(&self) -> Result<(u64, u64)> {
        let (mut blocks, mut numbers) = (0, 0);
        self.for_each_in_limbo(&mut |run| blocks += run.count as u64, &mut |_| numbers += 1)?;
        Ok((blocks, numbers))
    }

    /// Calls `blocks` and `numbers` with all that is in limbo.
    pub(crate) fn for_each_in_limbo(&self, blocks: &mut dyn FnMut(Extent), numbers: &mut dyn FnMut(u32)) -> Result<()> {
        for slot in 0..self.control(CONTROL_LIMBO)?.min(crate::places::THREADS as u64) {
            let words = self.limbo_of(slot as u32)?;
            words[RUNS..].iter().filter_map(|word| unpack_run(word.load(Acquire))).for_each(&mut *blocks);
            [NUMBERS, READY].iter().flat_map(|&at| halves(words[at].load(Acquire))).for_each(&mut *numbers);
        }
        Ok(())
    }

    /// Whether the thread of a slot may have what stood in limbo, and nobody can see where.
    pub(crate) fn is_between(&self, slot: u32) -> Result<bool> {
        Ok(self.limbo_of(slot)?[BETWEEN].load(Acquire) != 0)
    }

    /// The thread of a slot is dead: it has nothing any more.
    pub(crate) fn end_between(&self, slot: u32) -> Result<()> {
        // Unnoticed [word]: who counts meanwhile waits until the slot is taken again (`recounts`).
        self.limbo_of(slot)?[BETWEEN].store(0, Release);
        Ok(())
    }

    fn limbo_of(&self, slot: u32) -> Result<&'s [Word]> {
        let at = self.core.places.counters_of(slot).add(LIMBO_AT * 8);
        self.thread.arena().words(at, LIMBO_WORDS).map_err(shared_error)
    }

    /// Lets [`Op::empty_all_limbo`] know how many slots there are to look at.
    fn note_limbo_slot(&self) -> Result<()> {
        let used = self.thread.word(self.core.places.control(CONTROL_LIMBO)).map_err(shared_error)?;
        let slots = self.thread.slot() as u64 + 1;
        if used.load(Relaxed) < slots {
            used.fetch_max(slots, Release);
        }
        Ok(())
    }
}

fn has_room(words: &[Word], given_up: &GivenUp) -> bool {
    let room = words[RUNS..].iter().filter(|word| word.load(Relaxed) == 0).count();
    has_half(words[SLOTS].load(Relaxed), given_up.slot)
        && (!given_up.number || has_half(words[NUMBERS].load(Relaxed), given_up.slot))
        && given_up.count <= room
}

const _: () = assert!(GivenUp::RUNS_MAX <= RUNS_MAX && LIMBO_AT + LIMBO_WORDS <= COUNTER_WORDS);
