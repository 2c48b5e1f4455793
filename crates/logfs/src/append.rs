//! Appending to an inode's log: the one way in which anything is committed.
//!
//! ```text
//! lock → prepare (room in the log, blocks, index nodes) → write (stores) → advance → fence → conclude → unlock
//! ```
//! [`Prepared`] is a promise of room; [`Op::write_entry`] stores the entry; [`Op::advance`] tells the record of it. That and what
//! else is changed in the arena alone is seen by nobody before the lock is released, and who dies with the lock leaves a record
//! that is dropped: so it may be done while the stores are on their way, before the fence. What lets go of something (hands,
//! blocks, numbers, the lock) wants the fence's evidence, as [`Op::conclude`] does. Operations that are rarer do all of it
//! behind the fence ([`Op::publish_entry`]).

use crate::disk::{Commit, Durable};
use crate::format::entry::{self, Payload, ShortRoom};
use crate::format::page::{self, LINES, LinePlace, Link, PageHeader};
use crate::format::slot::AT_HEAD;
use crate::format::{BLOCK_BYTES, LINE_BYTES};
use crate::mapped::MAPPED_WRITABLY;
use crate::ops::{Locked, Need, Op};
use crate::space::{Extent, Held};
use crate::storage;
use gannet_media::MediumOffset;
use gannet_shm::HandContent;
use gannet_vfs::{Errno, Error, Result};

/// Hand: the operation in flight commits with entry `b` of inode `a`'s log.
pub(crate) const HAND_COMMIT: u64 = u64::from_le_bytes(*b"commit\0\0");

/// Lines that nearly every entry fits.
const LINES_EXPECTED: u32 = 2;

/// Room for an entry of one line, at the start of one.
#[repr(align(64))]
struct LineRoom([u8; LINE_BYTES as usize]);

/// Room for one entry.
pub(crate) struct Prepared {
    place: LinePlace,
    lines: u32,
    sequence: u64,
    new_page: Option<Held>,
    commit_hand: Option<gannet_shm::Hand>,
}

impl Prepared {
    /// Where the entry will stand.
    pub(crate) const fn place(&self) -> LinePlace {
        self.place
    }

    /// Whether it is the first entry of a new page.
    pub(crate) const fn begins_page(&self) -> bool {
        self.new_page.is_some()
    }
}

/// What it takes at most to empty a page, before that page is free.
pub(crate) const BLOCKS_TO_COLLECT: u64 = 2;

impl<'s> Op<'s> {
    /// Makes sure that an entry of `lines` lines has room in the log. May allocate a page: before any store of the
    /// operation. `first_of_operation` says that the operation happened exactly if this entry did.
    #[inline(always)]
    pub(crate) fn prepare(&self, locked: &Locked<'s>, lines: u32, first_of_operation: bool) -> Result<Prepared> {
        self.prepare_room(locked, lines, lines, first_of_operation)
    }

    /// As [`Op::prepare`], of an operation that is sealed at once where somebody has the file mapped writably: with room for that on the
    /// same page, for then it has happened, and must not fail.
    #[inline(always)]
    pub(crate) fn prepare_sealed(&self, locked: &Locked<'s>, lines: u32) -> Result<Prepared> {
        let seal = u32::from(locked.record.maps().has(MAPPED_WRITABLY));
        self.prepare_room(locked, lines, lines + seal, true)
    }

    #[inline(always)]
    fn prepare_room(&self, locked: &Locked<'s>, lines: u32, room: u32, first_of_operation: bool) -> Result<Prepared> {
        if lines == 0 || lines >= LINES {
            return Err(Error::because(Errno::NOSPC, "larger than a log entry can be"));
        }
        let sequence = locked.record.sequence();
        let commit_hand = if first_of_operation {
            let content = HandContent { kind: HAND_COMMIT, a: locked.inode as u64, b: sequence };
            Some(self.thread.hand_set(content).map_err(crate::ops::shared_error)?)
        } else {
            None
        };
        let tail = locked.record.tail().filter(|&(_, line)| line + room <= LINES);
        let (place, new_page) = match tail {
            Some((block, line)) => (LinePlace::new(block, line), None),
            None => match self.allocate_page(locked) {
                Ok(held) => (LinePlace::new(held.extent().start, 1), Some(held)),
                Err(error) => {
                    if let Some(hand) = commit_hand {
                        self.thread.hand_clear(hand);
                    }
                    return Err(error);
                }
            },
        };
        Ok(Prepared { place, lines, sequence, new_page, commit_hand })
    }

    #[cold]
    #[inline(never)]
    fn allocate_page(&self, locked: &Locked<'s>) -> Result<Held> {
        self.allocate_block(locked.record.tail().map(|(block, _)| block))
    }

    /// Gives back what was prepared for an entry that will not be written.
    pub(crate) fn cancel(&self, prepared: Prepared) -> Result<()> {
        if let Some(held) = prepared.new_page {
            self.release_held(held)?;
        }
        if let Some(hand) = prepared.commit_hand {
            self.thread.hand_clear(hand);
        }
        Ok(())
    }

    /// Stores the entry, and the links to its page if that is new. `buffer` holds it meanwhile, if it is long; there may be
    /// none.
    pub(crate) fn write_entry(
        &self,
        commit: &mut Commit<'_>,
        locked: &Locked<'s>,
        prepared: &Prepared,
        time: i64,
        payload: &Payload<'_>,
        buffer: &mut [u8],
    ) -> Result<()> {
        debug_assert_eq!(payload.lines(), prepared.lines);
        let mut short = ShortRoom::new();
        let room = if prepared.lines <= ShortRoom::LINES {
            &mut short.0[..]
        } else if buffer.len() as u64 >= prepared.lines as u64 * LINE_BYTES {
            buffer
        } else {
            return self.write_long_entry(commit, locked, prepared, time, payload);
        };
        self.write_in_room(commit, locked, prepared, time, payload, room)
    }

    /// As [`Op::write_entry`], of an entry of one line.
    // Inlined: what kind of entry it is, and so where all of it stands, is known there.
    #[inline(always)]
    pub(crate) fn write_line(
        &self,
        commit: &mut Commit<'_>,
        locked: &Locked<'s>,
        prepared: &Prepared,
        time: i64,
        payload: &Payload<'_>,
    ) -> Result<()> {
        debug_assert!(payload.lines() == 1 && prepared.lines == 1);
        self.write_in_room(commit, locked, prepared, time, payload, &mut LineRoom([0; LINE_BYTES as usize]).0)
    }

    /// As [`Op::write_entry`], of an entry of a kind that is known where this is called and that takes a few lines at most, as a
    /// rule.
    // Inlined, as `write_line` is. What is longer is told by a copy: what a call is told of stands in memory.
    #[inline(always)]
    pub(crate) fn write_short_entry(
        &self,
        commit: &mut Commit<'_>,
        locked: &Locked<'s>,
        prepared: &Prepared,
        time: i64,
        payload: &Payload<'_>,
    ) -> Result<()> {
        debug_assert_eq!(payload.lines(), prepared.lines);
        if prepared.lines > ShortRoom::LINES {
            let payload = *payload;
            return self.write_entry(commit, locked, prepared, time, &payload, &mut []);
        }
        self.write_in_room(commit, locked, prepared, time, payload, &mut ShortRoom::new().0)
    }

    /// Stores an entry that `room` has room for, and the links to its page if that is new.
    // Inlined: where the kind of entry is known, so is where all of it stands.
    #[inline(always)]
    fn write_in_room(
        &self,
        commit: &mut Commit<'_>,
        locked: &Locked<'s>,
        prepared: &Prepared,
        time: i64,
        payload: &Payload<'_>,
        room: &mut [u8],
    ) -> Result<()> {
        if prepared.new_page.is_some() {
            self.write_page(commit, locked, prepared)?;
        }
        let (owned, epoch, lines) = (locked.owned(self.core), self.disk().epoch(), payload.lines());
        let bytes = entry::encode_lines(owned, epoch, prepared.sequence, time, payload, lines, room);
        commit.write_lines(prepared.place.offset_bytes(), bytes)?;
        self.flush_limbo(commit);
        Ok(())
    }

    #[cold]
    #[inline(never)]
    fn write_long_entry(
        &self,
        commit: &mut Commit<'_>,
        locked: &Locked<'s>,
        prepared: &Prepared,
        time: i64,
        payload: &Payload<'_>,
    ) -> Result<()> {
        if prepared.new_page.is_some() {
            self.write_page(commit, locked, prepared)?;
        }
        let mut room = [0; BLOCK_BYTES as usize];
        let epoch = self.disk().epoch();
        let bytes = entry::encode(locked.owned(self.core), epoch, prepared.sequence, time, payload, &mut room);
        commit.write_lines(prepared.place.offset_bytes(), bytes)?;
        self.flush_limbo(commit);
        Ok(())
    }

    /// Stores the header of a new page and the link to it, and zeros behind the entry that it begins with.
    #[inline(never)]
    fn write_page(&self, commit: &mut Commit<'_>, locked: &Locked<'s>, prepared: &Prepared) -> Result<()> {
        let disk = self.disk();
        let epoch = disk.epoch();
        let block = prepared.place.block();
        let (inode, generation) = (locked.inode, locked.state.generation);
        let header = PageHeader { inode, generation, epoch, first_sequence: prepared.sequence };
        commit.write(block * BLOCK_BYTES, &header.encode(disk.key()))?;
        // Behind the end of a log stand zeros: what the block held before could look like entries that went bad.
        let end = prepared.place.line() + prepared.lines;
        if end < LINES {
            commit.zero(LinePlace::new(block, end).offset_bytes(), (LINES - end) as u64 * LINE_BYTES)?;
        }
        let link = Link { block, epoch }.encode();
        match locked.record.tail() {
            Some((last, _)) => commit.store(last.wrapping_mul(BLOCK_BYTES).wrapping_add(page::AT_NEXT), link),
            None => commit.store(self.slot_word(locked.inode, AT_HEAD)?, link),
        }
    }

    /// As [`Op::advance`], of an operation that changes data or names: the entry says the inode's times, and its size if it is a
    /// file.
    #[inline(always)]
    pub(crate) fn advance_change(&self, locked: &Locked<'s>, prepared: &Prepared) {
        locked.record.set_last_touch(prepared.sequence);
        self.advance(locked, prepared);
    }

    /// Tells the record of an entry that is stored, and will be durable before the lock is released: until then nobody sees that.
    // Inlined: what precedes the fence runs while the stores are on their way; behind it stores wait, and there is room for some
    // dozens of them.
    #[inline(always)]
    pub(crate) fn advance(&self, locked: &Locked<'s>, prepared: &Prepared) {
        let record = &locked.record;
        record.set_tail(Some((prepared.place.block(), prepared.place.line() + prepared.lines)));
        record.set_sequence(prepared.sequence.wrapping_add(1));
        self.expect_entry(prepared);
        let (pages, lines) = record.log_use();
        let pages = pages.wrapping_add(u32::from(prepared.new_page.is_some()));
        record.set_log_use(pages, lines.wrapping_add(prepared.lines));
        record.set_unsealed_start(0);
        record.set_unsealed_end(0);
    }

    /// Lets go of what was prepared for an entry that its log's record has.
    #[inline(always)]
    pub(crate) fn let_go(&self, prepared: Prepared) {
        if let Some(held) = prepared.new_page {
            self.keep_held(held);
        }
        if let Some(hand) = prepared.commit_hand {
            self.thread.hand_clear(hand);
        }
    }

    /// Ends an operation whose entry the record has been told of, and which is durable now.
    #[inline(always)]
    pub(crate) fn conclude(&self, prepared: Prepared, _durable: &Durable) {
        self.let_go(prepared);
        // Behind a fence.
        self.or_count_again(self.leave_limbo());
    }

    /// Tells the record of the entry that is durable now, and ends the operation.
    #[inline(always)]
    pub(crate) fn publish_entry(&self, locked: &Locked<'s>, prepared: Prepared, durable: &Durable) {
        self.advance(locked, &prepared);
        self.conclude(prepared, durable);
    }

    /// As [`Op::publish_entry`], of an operation that changes data or names.
    #[inline(always)]
    pub(crate) fn publish_change(&self, locked: &Locked<'s>, prepared: Prepared, durable: &Durable) {
        self.advance_change(locked, &prepared);
        self.conclude(prepared, durable);
    }

    /// Asks for the lines in which the log goes on, so that they are there when the next entry comes.
    #[inline]
    fn expect_entry(&self, prepared: &Prepared) {
        let next = prepared.place.line() + prepared.lines;
        if next < LINES {
            let at = LinePlace::new(prepared.place.block(), next).offset_bytes();
            self.disk().medium().expect_lines(MediumOffset(at), LINES_EXPECTED.min(LINES - next).into());
        }
    }

    /// Appends one entry and makes it durable: an operation that is nothing but that.
    pub(crate) fn append(
        &self,
        locked: &Locked<'s>,
        time: i64,
        payload: &Payload<'_>,
        buffer: &mut [u8],
    ) -> Result<Durable> {
        let prepared = self.prepare(locked, payload.lines(), true)?;
        self.append_prepared(locked, prepared, time, payload, buffer)
    }

    /// As [`Op::append`], where there is room for the entry.
    pub(crate) fn append_prepared(
        &self,
        locked: &Locked<'s>,
        prepared: Prepared,
        time: i64,
        payload: &Payload<'_>,
        buffer: &mut [u8],
    ) -> Result<Durable> {
        let mut commit = self.disk().begin();
        self.write_entry(&mut commit, locked, &prepared, time, payload, buffer)?;
        let durable = commit.fence();
        self.publish_entry(locked, prepared, &durable);
        Ok(durable)
    }

    /// Makes the log's last entry no longer the last, so that the bytes that its hash covers may change.
    pub(crate) fn seal(&self, locked: &Locked<'s>) -> Result<()> {
        if locked.record.unsealed_start() >= locked.record.unsealed_end() {
            return Ok(());
        }
        self.append(locked, locked.record.changed(), &Payload::Seal, &mut [0; LINE_BYTES as usize]).map(|_| ())
    }

    /// As [`Op::seal`], of an entry whose hash covers bytes that somebody may have mapped writably. There is room for it: see
    /// [`Op::prepare_sealed`].
    #[inline]
    pub(crate) fn seal_mapped(&self, locked: &Locked<'s>) {
        if locked.record.maps().has(MAPPED_WRITABLY) {
            // Only damage of the arena can be in the way, and the operation has happened.
            let _ = self.seal(locked);
        }
    }

    /// One block for metadata, near `goal` if there is one.
    pub(crate) fn allocate_block(&self, goal: Option<u64>) -> Result<Held> {
        self.allocate_blocks(1, goal.map(|block| block + 1))
    }

    /// Up to `count` blocks in one run. The last few are kept for operations that free more than they take: a full volume
    /// can always be emptied.
    pub(crate) fn allocate_blocks(&self, count: u32, goal: Option<u64>) -> Result<Held> {
        match self.try_allocate(count, goal) {
            // What this thread has given up itself is free but for a fence.
            Err(error) if error.errno() == Errno::NOSPC && self.empty_limbo()? => {
                self.try_allocate(count, goal).or_else(|error| self.allocate_in_need(count, goal, error))
            }
            outcome => outcome.or_else(|error| self.allocate_in_need(count, goal, error)),
        }
    }

    /// The volume seems to be full: what other threads have given up is free but for a fence as well.
    #[cold]
    #[inline(never)]
    fn allocate_in_need(&self, count: u32, goal: Option<u64>, error: Error) -> Result<Held> {
        match error.errno() {
            Errno::NOSPC if self.take_others_limbo()? => self.try_allocate(count, goal),
            _ => Err(error),
        }
    }

    fn try_allocate(&self, count: u32, goal: Option<u64>) -> Result<Held> {
        let space = self.core.space.blocks(self)?;
        let held = space.allocate(&self.thread, count, goal, false).map_err(storage::error)?;
        let leaves = self.blocks_left_to_others();
        if space.free_near(held.extent().start) < leaves && space.free_blocks() < leaves {
            space.release(&self.thread, held).map_err(storage::error)?;
            return Err(Error::because(Errno::NOSPC, "the volume is full"));
        }
        Ok(held)
    }

    /// How many of the last blocks are not for this operation.
    pub(crate) fn blocks_left_to_others(&self) -> u64 {
        let geometry = self.disk().geometry();
        match self.need.get() {
            Need::Ordinary => geometry.reserve(),
            Need::Removal => geometry.reserve_of_collection(),
            Need::LastRemoval => BLOCKS_TO_COLLECT.min(geometry.reserve_of_collection()),
            Need::Freeing => 0,
        }
    }

    /// The block `goal`, if it is free, and not one of the last few: what most appends take. Else nothing, and it is to be
    /// looked for.
    #[inline]
    pub(crate) fn allocate_at(&self, goal: u64) -> Result<Option<Held>> {
        let space = self.core.space.blocks(self)?;
        if space.free_near(goal) <= self.disk().geometry().reserve() {
            return Ok(None);
        }
        space.take_block(&self.thread, goal).map_err(storage::error)
    }

    /// Blocks that have found their place.
    #[inline]
    pub(crate) fn keep_held(&self, held: Held) {
        held.keep(&self.thread);
    }

    /// Blocks that nothing durable refers to, and nothing ever did.
    pub(crate) fn release_held(&self, held: Held) -> Result<()> {
        self.core.space.blocks(self)?.release(&self.thread, held).map_err(storage::error)
    }

    /// A log page that was written and that nothing leads to. It is wiped: the next log of this inode and generation could begin
    /// with the very header, and after a crash the entries behind it would be its own.
    #[cold]
    pub(crate) fn discard_page(&self, held: Held) -> Result<()> {
        // All else that is cancelled is in the arena alone. On a medium that is another's by now the block is not ours.
        if self.core.is_as_opened().is_ok() {
            let mut commit = self.disk().begin();
            commit.zero(held.extent().start * BLOCK_BYTES, BLOCK_BYTES)?;
            let _ = commit.fence();
        }
        self.release_held(held)
    }

    /// Blocks that nothing durable refers to any more.
    pub(crate) fn free_blocks(&self, extent: Extent, _durable: &Durable) -> Result<()> {
        let space = self.core.space.blocks(self)?;
        let held = space.hold(&self.thread, extent).map_err(storage::error)?;
        space.release(&self.thread, held).map_err(storage::error)
    }
}
