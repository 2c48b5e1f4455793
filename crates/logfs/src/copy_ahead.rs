//! Writes of whole blocks that an entry makes visible, copied before the inode is locked: into blocks that are in hand and nobody's yet, they
//! can go wherever the log is meanwhile. So who replaces different parts of a copy-on-write file, or fills different holes, copies side by
//! side, and only the entries take turns.
//!
//! What is copied so holds if the file still wants it so under the lock; else the blocks are given back, and the write goes the other way, as do
//! those that are short, end in a block that stays, or reach behind the end.
//!
//! May touch: blocks in hand. Relies on: the caller holding no lock.

use crate::format::BLOCK_BYTES;
use crate::index::Mapping;
use crate::ops::{Op, index_error};
use crate::read::left_of;
use crate::record::Record;
use crate::write::{DISPLACED_AT_ONCE, ENTRY_BYTES_MAX, EXTENTS_MAX};
use crate::write_entry::{Data, Fresh};
use gannet_media::MediumOffset;
use gannet_vfs::usermem::Source;
use gannet_vfs::{NodeId, Result};
use std::ops::Range;

/// Of less the copy takes no longer than what is done under the lock.
const AHEAD_MIN_BYTES: u64 = 2 * BLOCK_BYTES;
/// So many writers of as much are to find room at once.
const WRITERS_WITH_ROOM: u64 = 8;
/// A rest that is no whole block is worth an entry of its own behind so much.
const REST_BEHIND_BYTES: u64 = 64 << 10;

impl<'s> Op<'s> {
    /// Writes what of `from` can be copied ahead to `at`, and returns how much that was: 0 if the write must go another way.
    #[inline]
    pub(crate) fn write_copied_ahead(&self, node: NodeId, at: u64, from: &mut Source<'_>) -> Result<usize> {
        let length = from.remaining() as u64;
        match length >= AHEAD_MIN_BYTES && at.is_multiple_of(BLOCK_BYTES) {
            true => self.copy_ahead(node, at, length, from),
            false => Ok(0),
        }
    }

    #[inline(never)]
    fn copy_ahead(&self, node: NodeId, at: u64, length: u64, from: &mut Source<'_>) -> Result<usize> {
        let found = self.read_record(node, |record, state| {
            self.regular(state)?;
            let length = self.length_ahead(node.number as u32, record, at, length)?;
            let before = match at.checked_sub(BLOCK_BYTES) {
                Some(before) if length > 0 => self.mapping(node.number as u32, record, before)?,
                _ => Mapping::Hole { count: 0 },
            };
            let goal = match before {
                Mapping::Blocks { block, .. } => Some(block + 1),
                Mapping::Hole { .. } => None,
            };
            Ok((length, goal))
        });
        // What cannot be seen without the lock is told with it.
        let Ok((length @ AHEAD_MIN_BYTES.., goal)) = found else { return Ok(0) };
        let (began, end) = (from.clone(), at + length);
        let mut fresh = Fresh::<EXTENTS_MAX>::new(None);
        let outcome = self.commit_ahead(node, &mut fresh, at..end, goal, from);
        if !matches!(outcome, Ok(1..)) {
            *from = began;
        }
        self.let_go_of_fresh(&mut fresh)?;
        outcome
    }

    /// How much of a write can be copied ahead: as far as one entry goes, and one hole where data is in place; or nothing.
    fn length_ahead(&self, inode: u32, record: &Record<'s>, at: u64, length: u64) -> Result<u64> {
        let whole = length.min(ENTRY_BYTES_MAX);
        let is_inside = |length| at.checked_add(length).is_some_and(|end| end <= record.size());
        if self.is_copy_on_write(record.flags(), record.maps()) {
            let is_wanted = whole.is_multiple_of(BLOCK_BYTES) && is_inside(whole);
            return Ok(if is_wanted { whole } else { 0 });
        }
        if at >= record.size() {
            return Ok(0);
        }
        let Mapping::Hole { count } = self.mapping(inode, record, at)? else { return Ok(0) };
        let whole = whole.min(left_of(count, at)).min(record.size() - at);
        let in_blocks = whole - whole % BLOCK_BYTES;
        Ok(if in_blocks == whole || in_blocks >= REST_BEHIND_BYTES { in_blocks } else { 0 })
    }

    /// Copies, then locks the inode, and makes the copy the file's if it is still wanted; 0 if it is not, or could not be made.
    fn commit_ahead<'o>(
        &'o self,
        node: NodeId,
        fresh: &mut Fresh<'o, EXTENTS_MAX>,
        bytes: Range<u64>,
        goal: Option<u64>,
        from: &mut Source<'_>,
    ) -> Result<usize> {
        let Range { start: at, end } = bytes;
        let first = at / BLOCK_BYTES;
        // Where there is not enough room, or memory of the caller's is missing, the other way knows what to do. So it does where others, who wait
        // for the file with as much in hand, could lack it.
        let free = self.core.space.blocks(self)?.free_blocks();
        if (end - at) / BLOCK_BYTES > free / WRITERS_WITH_ROOM
            || !self.take_fresh(fresh, goal, first, at, end).is_ok_and(|taken| taken == end)
        {
            return Ok(0);
        }
        let medium = self.disk().medium();
        let mut hash = self.data_hash(node);
        for extent in fresh.list() {
            let (to, count) = (MediumOffset(extent.block * BLOCK_BYTES), extent.count as usize * BLOCK_BYTES as usize);
            if medium.write_from_user_hashed(to, from, count, &mut hash).is_err() {
                return Ok(0);
            }
        }
        let locked = self.lock(node)?;
        self.regular(locked.state)?;
        if self.length_ahead(locked.inode, &locked.record, at, end - at)? != end - at {
            return Ok(0);
        }
        fresh.spot = Some(self.extents(locked.inode, &locked.record).spot(first).map_err(index_error)?);
        let data = Data::Copied(&hash);
        let written = self.write_and_commit::<EXTENTS_MAX, DISPLACED_AT_ONCE>(&locked, fresh, None, at, end, data);
        // Before the lock goes: to who settles a thread, blocks in its hand are free unless a log says otherwise that it has locked.
        self.let_go_of_fresh(fresh)?;
        let written = match written {
            Err(_) if !fresh.is_committed() => return Ok(0),
            written => written?,
        };
        self.collect_some(&locked);
        locked.guard.unlock();
        Ok(written)
    }
}
