//! Collecting logs: a log's oldest page is emptied by appending what is still true of it again, then unlinked.
//!
//! Only from the head: then a removal is dead as soon as it is the oldest, since what it removes is older. Work is bounded:
//! two pages whenever a log grows by one, by the operations that follow, each a piece; and only while the log is more than
//! about twice what is live in it.
//!
//! Where blocks have moved within a file, entries before that do not say any more where they are: its whole map is written
//! again, a piece with each operation, before the first of them goes, and noted in the record. What stands before it says
//! nothing of blocks any more, whatever moves while it is written and while they go (`whole_map` says why).
//!
//! What is appended again says what is true already, so any part of it may survive a crash: all that a page gives stands
//! under one fence. A log ends at the first entry that is not there, and what a crash left behind it is of a former epoch,
//! which nothing that follows can be. One page is not begun under the fence of another, so that a page that holds two
//! entries always had its header and its link (fsck relies on it). Then the head is stored; the page is free behind the
//! next fence that the thread executes (`limbo`).
//!
//! Which entries of a page are dead is seen without proving them, by what the index says; what is copied is proved. Before
//! a page goes, the page behind it must begin with the sequence at which this one was found to end.
//!
//! ```text
//! pass    when, and how much
//! (here)  a page emptied and unlinked
//! copy    what of it is appended again
//! page, again
//!         a page read; entries appended under one fence
//! ```

mod again;
mod copy;
mod page;
mod pass;

use self::again::Again;
use self::page::Page;
use crate::counters::Counter;
use crate::format::BLOCK_BYTES;
use crate::format::page::AT_NEXT;
use crate::format::slot::AT_HEAD;
use crate::limbo::GivenUp;
use crate::log;
use crate::ops::{Locked, Op};
use crate::record::Collection;
use crate::space::Extent;
use gannet_vfs::{Error, Result};

impl<'s> Op<'s> {
    /// Empties some of the oldest page of a log, from where `pass` has come to, and unlinks the page if that was all of it:
    /// then true. The newest page is never the oldest here.
    fn collect_page(&self, locked: &Locked<'s>, pass: &mut Collection) -> Result<bool> {
        let disk = self.disk();
        let owned = locked.owned(self.core);
        let head_at = self.slot_word(locked.inode, AT_HEAD)?;
        let head = disk.load(head_at)?;
        let Some((link, header)) = log::first_page(disk, owned, head)? else { return Ok(true) };
        if locked.record.tail().is_none_or(|(block, _)| block == link.block) {
            return Ok(true);
        }
        let damaged = |what| Error::damaged(what, link.block * BLOCK_BYTES);
        let next = disk.load(link.block * BLOCK_BYTES + AT_NEXT)?;
        let end = match log::first_page(disk, owned, next)? {
            Some((_, next_header)) => next_header.first_sequence,
            None => return Err(damaged("log page: no link to the next")),
        };
        let mut again = Again::new(self, locked);
        let mut page = Page::new(disk, link.block);
        let copied = self.copy_page(&mut again, &mut page, header.first_sequence..end, pass);
        let rest = again.extents_end();
        again.fence();
        pass.live_lines += again.lines;
        rest?;
        if !copied? {
            return Ok(false);
        }
        pass.cursor = (0, 0);

        let mut commit = disk.begin();
        commit.store_cached(head_at, next)?;
        commit.without_fence();
        let (pages, lines) = locked.record.log_use();
        // Who adopts the arena compares the pages with what it finds.
        locked.record.set_log_use(pages.saturating_sub(1), lines);
        let mut given_up = GivenUp::new(locked.inode, false);
        let _ = given_up.add(Extent { start: link.block, count: 1 });
        self.or_count_again(self.enter_limbo(&given_up));
        self.count(Counter::PagesCollected, 1);
        Ok(true)
    }
}
