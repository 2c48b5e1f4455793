//! When a log is collected, and how much of it at a time: knows of pages only how many there are.

use crate::format::entry::NAME_LINES_MAX;
use crate::format::page::ENTRY_LINES;
use crate::ops::{Locked, Need, Op};
use crate::places::CONTROL_NEED_LOCK;
use crate::record::Collection;
use gannet_vfs::{Errno, Error, FileType};

/// Logs shorter than this are left alone.
const PAGES_MIN: u32 = 4;
/// Pages emptied whenever a log grows by one while a pass is on.
pub(super) const PAGES_PER_STEP: u32 = 2;
/// As many where nearly all of it must be dead: then pages go faster than the names that are left.
const PAGES_PER_STEP_DEAD: u32 = 24;
/// More pages are never owed.
const OWED_MAX: u32 = 128;
/// A file's log may have a page for so many blocks of it, whatever is live in it.
const BLOCKS_PER_PAGE: u64 = 64;
/// But not more than this: recovery reads them all.
const PAGES_FREE_MAX: u64 = 1024;

/// The most pages that what is live in the log of a directory can take, by its names. Of other logs nothing can be said.
fn pages_of_names(locked: &Locked<'_>) -> u32 {
    if locked.state.file_type != FileType::Directory || locked.record.xattrs() != 0 {
        return u32::MAX;
    }
    let lines = locked.record.entries().saturating_mul(NAME_LINES_MAX.into());
    u32::try_from(lines / u64::from(ENTRY_LINES)).map_or(u32::MAX, |pages| pages.saturating_add(2))
}

impl Collection {
    /// Begins a pass through all pages, if none is on.
    fn begin(&mut self, pages: u32) {
        if self.remaining == 0 {
            (self.remaining, self.live_lines) = (pages, 0);
        }
    }

    /// The log has grown: more pages are owed.
    fn goes_on(&mut self, pages: u32, locked: &Locked<'_>) {
        self.begin(pages);
        let is_dead = pages > pages_of_names(locked).saturating_mul(4);
        let step = if is_dead { PAGES_PER_STEP_DEAD } else { PAGES_PER_STEP };
        self.owed = (self.owed + step).min(self.remaining).min(OWED_MAX);
    }

    /// The oldest page went by. Behind the last one of a pass it is known from which length on the next is worth it.
    pub(super) fn went_by(&mut self) {
        self.remaining -= 1;
        self.owed = self.owed.saturating_sub(1);
        if self.remaining == 0 {
            self.owed = 0;
            self.threshold = (2 * self.live_lines.div_ceil(ENTRY_LINES) + 2).max(PAGES_MIN);
        }
    }

    /// Without room it waits; a damaged log is left alone.
    fn failed(&mut self, error: &Error) {
        self.owed = 0;
        if !matches!(error.errno(), Errno::NOSPC | Errno::NOMEM) {
            (self.remaining, self.threshold) = (0, u32::MAX);
        }
    }
}

impl<'s> Op<'s> {
    /// Does a bounded piece of collection if this log needs any. Nothing that fails here is an error, since the operation that the log
    /// grew by has happened: while the volume is full the log waits, and one that is damaged is left alone.
    // Inlined as far as nearly every call goes.
    #[inline(always)]
    pub(crate) fn collect_some(&self, locked: &Locked<'s>) {
        let (pages, _) = locked.record.log_use();
        let pass = locked.record.collection();
        if pages < PAGES_MIN || pass.owed == 0 && pages <= pass.pages_seen {
            return;
        }
        self.collect_due(locked);
    }

    #[inline(never)]
    fn collect_due(&self, locked: &Locked<'s>) {
        let (pages, _) = locked.record.log_use();
        let pass = locked.record.collection();
        if pages > pass.pages_seen && self.is_in_need() {
            self.collect_in_need(locked);
            return;
        }
        let is_due = pass.owed != 0 || pages >= self.collection_threshold(locked, &pass);
        // By an index that was dropped everything in the log would be dead.
        if is_due && locked.record.state().is_some() {
            self.collect_piece(locked, pass, pages);
        }
    }

    /// Whether of the blocks that are kept for what frees others so few are left that logs must not grow any more.
    fn is_in_need(&self) -> bool {
        let enough = self.disk().geometry().reserve_in_need();
        self.core.space.blocks(self).is_ok_and(|space| space.free_blocks() < enough)
    }

    /// Collects until the log is a page shorter, or all of it was looked at: on a volume so full that names which go, and free nothing
    /// else, need the room that they had. In a large directory that is hardly emptied yet it can take milliseconds, once for as many
    /// removals as have room in a page. Returns whether it is shorter, or there is no need any more.
    #[cold]
    #[inline(never)]
    pub(crate) fn collect_in_need(&self, locked: &Locked<'s>) -> bool {
        let record = &locked.record;
        let (pages, mut pass) = (record.log_use().0, record.collection());
        if record.state().is_none() || locked.state.file_type == FileType::Symlink || pass.threshold == u32::MAX {
            return false;
        }
        // One at a time: a page that is half emptied has taken up to two blocks, and there are not many.
        let Ok(turn) = self.take(self.core.places.control(CONTROL_NEED_LOCK)) else { return false };
        if !self.is_in_need() {
            return true;
        }
        let needed = self.need.replace(Need::Freeing);
        let (before, mut left) = (pages, pages);
        while left > 0 && record.log_use().0 >= before {
            pass.begin(record.log_use().0);
            // A bounded piece would not do.
            pass.owed = PAGES_PER_STEP + 1;
            match self.collect_page(locked, &mut pass) {
                Ok(true) => {
                    left -= 1;
                    pass.went_by();
                }
                Ok(false) => {}
                Err(error) => {
                    pass.failed(&error);
                    break;
                }
            }
        }
        self.need.set(needed);
        let pages = record.log_use().0;
        pass.owed = 0;
        if pages >= self.collection_threshold(locked, &pass) {
            // What is more than needed now is left to the operations that follow.
            pass.goes_on(pages, locked);
        }
        pass.pages_seen = pages;
        record.set_collection(pass);
        turn.unlock();
        pages < before
    }

    /// Pages from which on a log is collected: about twice what was live in it last time, but never less than costs a
    /// file's space and recovery next to nothing.
    fn collection_threshold(&self, locked: &Locked<'s>, pass: &Collection) -> u32 {
        let free = (locked.record.blocks() / BLOCKS_PER_PAGE).min(PAGES_FREE_MAX) as u32;
        match pass.remaining {
            // Damaged.
            0 if pass.threshold == u32::MAX => u32::MAX,
            0 => pass.threshold.min(pages_of_names(locked).saturating_mul(2)).max(free).max(PAGES_MIN),
            _ => 0,
        }
    }

    #[cold]
    #[inline(never)]
    fn collect_piece(&self, locked: &Locked<'s>, mut pass: Collection, pages: u32) {
        let record = &locked.record;
        if locked.state.file_type == FileType::Symlink {
            return self.collect_link(locked, pass, pages);
        }
        // Also where the arena, which may be damaged, says that pages are owed without a pass.
        pass.begin(pages);
        if pages > pass.pages_seen {
            let was_done = pass.owed == 0;
            pass.goes_on(pages, locked);
            if was_done {
                // Whoever the log grew by has made a page: that is enough for one operation.
                pass.pages_seen = pages;
                // When the next piece is due.
                record.set_collection(pass);
                return;
            }
        }
        // In need that is left to those whose turn it is.
        let needed = self.need.replace(Need::Removal);
        // Where many are owed, one page for each operation: to begin with it is a piece of its own.
        let pieces = if pass.owed > PAGES_PER_STEP { 2 } else { 1 };
        for _ in 0..pieces {
            match self.collect_page(locked, &mut pass) {
                Ok(false) => {}
                Ok(true) => {
                    pass.went_by();
                    break;
                }
                Err(error) => {
                    pass.failed(&error);
                    break;
                }
            }
        }
        self.need.set(needed);
        pass.pages_seen = record.log_use().0;
        // Unnoticed [word]: as above: each piece begins where the page stands, and what was appended again is not true of the old place any more.
        record.set_collection(pass);
    }

    /// A symbolic link's log is not collected page by page: see `renew`.
    fn collect_link(&self, locked: &Locked<'s>, mut pass: Collection, pages: u32) {
        let needed = self.need.replace(Need::Freeing);
        let renewed = self.renew_log(locked, pages);
        self.need.set(needed);
        match renewed {
            Ok(true) => return,
            Ok(false) => {}
            Err(error) if matches!(error.errno(), Errno::NOSPC | Errno::NOMEM) => {}
            Err(_) => pass.threshold = u32::MAX,
        }
        pass.pages_seen = pages;
        locked.record.set_collection(pass);
    }
}
