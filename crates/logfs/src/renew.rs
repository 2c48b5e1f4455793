//! The logs of symbolic links, which are written anew as a whole: where a link leads stands first in its log, in pieces that
//! follow each other, so it cannot be collected page by page.
//!
//! May touch: pages of its own, the slot's head, the record of the inode, whose lock is held. The new log is durable before
//! the head leads to it, so a crash finds one or the other, both whole. The old one is freed behind the fence of the head.

use crate::counters::Counter;
use crate::disk::Commit;
use crate::format::entry::{self, Payload};
use crate::format::page::{AT_NEXT, ENTRY_LINES, LINES, LinePlace, Link, PageHeader};
use crate::format::slot::AT_HEAD;
use crate::format::{BLOCK_BYTES, LINE_BYTES};
use crate::index::Tree;
use crate::log::{self, Met};
use crate::ops::{Locked, Op, index_error};
use crate::space::Held;
use gannet_vfs::{Errno, Error, Result};

/// Pages of a new log: two for the longest target, the others for extended attributes. What has more stays as it is.
const PAGES_MAX: usize = 4;

/// A log in the making.
struct NewLog<'o, 's> {
    op: &'o Op<'s>,
    locked: &'o Locked<'s>,
    commit: Commit<'s>,
    pages: [Option<Held>; PAGES_MAX],
    count: usize,
    /// The page that is being filled, and its first free line.
    block: u64,
    line: u32,
    sequence: u64,
    /// The link word to the first page.
    head: u64,
}

impl<'o, 's> NewLog<'o, 's> {
    fn new(op: &'o Op<'s>, locked: &'o Locked<'s>) -> Self {
        let (commit, sequence) = (op.disk().begin(), locked.record.sequence());
        let pages = [const { None }; PAGES_MAX];
        Self { op, locked, commit, pages, count: 0, block: 0, line: LINES, sequence, head: 0 }
    }

    fn begin_page(&mut self) -> Result<()> {
        let disk = self.op.disk();
        let no_room = Error::because(Errno::NOSPC, "too much for a new log");
        let room = self.pages.get_mut(self.count).ok_or(no_room)?;
        let held = self.op.allocate_block(None)?;
        let block = held.extent().start;
        *room = Some(held);
        self.count += 1;
        let (inode, generation) = (self.locked.inode, self.locked.state.generation);
        let header = PageHeader { inode, generation, epoch: disk.epoch(), first_sequence: self.sequence };
        self.commit.write(block * BLOCK_BYTES, &header.encode(disk.key()))?;
        // What stood here, an entry of another log for instance, would look like damage: fsck expects zeros behind the end of a log.
        self.commit.zero(block * BLOCK_BYTES + LINE_BYTES, ENTRY_LINES as u64 * LINE_BYTES)?;
        let link = Link { block, epoch: disk.epoch() }.encode();
        match self.block {
            0 => self.head = link,
            previous => self.commit.store(previous * BLOCK_BYTES + AT_NEXT, link)?,
        }
        (self.block, self.line) = (block, 1);
        Ok(())
    }

    fn append(&mut self, payload: &Payload<'_>) -> Result<()> {
        let lines = payload.lines();
        if self.line + lines > LINES {
            self.begin_page()?;
        }
        let mut room = [0; BLOCK_BYTES as usize];
        let (owned, epoch) = (self.locked.owned(self.op.core), self.op.disk().epoch());
        let time = self.locked.record.changed();
        let bytes = entry::encode(owned, epoch, self.sequence, time, payload, &mut room);
        self.commit.write(LinePlace::new(self.block, self.line).offset_bytes(), bytes)?;
        self.line += lines;
        self.sequence += 1;
        Ok(())
    }

    /// What is true of the link: where it leads, extended attributes, all else.
    fn fill(&mut self, old_head: u64) -> Result<()> {
        let (op, locked) = (self.op, self.locked);
        let owned = locked.owned(op.core);
        log::walk(op.disk(), owned, old_head, &mut |met| match met {
            Met::Entry { entry, .. } if matches!(entry.payload, Payload::Target(_)) => self.append(&entry.payload),
            _ => Ok(()),
        })?;
        let tree = op.tree(locked.inode, &locked.record);
        if locked.record.xattrs() > 0 {
            log::walk(op.disk(), owned, old_head, &mut |met| match met {
                Met::Entry { place, entry } if op.is_live_xattr(&tree, place, &entry.payload)? => {
                    self.append(&entry.payload)
                }
                _ => Ok(()),
            })?;
        }
        self.append(&Payload::Attributes(op.snapshot(locked)?))
    }

    fn give_back(self) -> Result<()> {
        self.pages.into_iter().flatten().try_for_each(|page| self.op.discard_page(page))
    }
}

impl<'s> Op<'s> {
    /// Writes the log of a symbolic link anew, without what is not true any more; true if it did. Not if that would save
    /// little. Two fences.
    pub(crate) fn renew_log(&self, locked: &Locked<'s>, pages: u32) -> Result<bool> {
        let disk = self.disk();
        let head_at = self.slot_word(locked.inode, AT_HEAD)?;
        let old_head = disk.load(head_at)?;
        if self.lines_needed(locked, old_head)?.div_ceil(ENTRY_LINES) * 2 >= pages {
            return Ok(false);
        }
        let mut new = NewLog::new(self, locked);
        if let Err(error) = new.fill(old_head) {
            new.give_back()?;
            return Err(error);
        }
        let NewLog { commit, pages: new_pages, count, block, line, sequence, head, .. } = new;
        let _ = commit.fence();
        let mut commit = disk.begin();
        commit.store(head_at, head)?;
        let durable = commit.fence();
        new_pages.into_iter().flatten().for_each(|page| self.keep_held(page));
        self.or_count_again(self.free_log(locked, old_head, &durable));
        // Its next user reads the new log.
        locked.record.set_tail(Some((block, line)));
        locked.record.set_sequence(sequence);
        locked.record.set_log_use(count as u32, 0);
        locked.record.unload_but_end();
        self.count(Counter::PagesCollected, u64::from(pages));
        Ok(true)
    }

    /// Lines that the new log takes, if no page stays partly unused.
    fn lines_needed(&self, locked: &Locked<'s>, head: u64) -> Result<u32> {
        let tree = self.tree(locked.inode, &locked.record);
        let mut lines = Payload::Attributes(self.snapshot(locked)?).lines();
        log::walk(self.disk(), locked.owned(self.core), head, &mut |met| {
            if let Met::Entry { place, entry } = met
                && (matches!(entry.payload, Payload::Target(_)) || self.is_live_xattr(&tree, place, &entry.payload)?)
            {
                lines += entry.lines;
            }
            Ok(())
        })?;
        Ok(lines)
    }

    /// Whether an extended attribute still has the value that this entry gave it.
    fn is_live_xattr(&self, tree: &Tree<'_>, place: LinePlace, payload: &Payload<'_>) -> Result<bool> {
        let (Payload::Xattr { name, value: Some(_) } | Payload::LargeXattr { name, .. }) = payload else {
            return Ok(false);
        };
        let (key, is_there) = self.xattr_place(tree, name)?;
        Ok(is_there && tree.get(key).map_err(index_error)? == Some(place.0))
    }
}
