//! Removing names, and freeing inodes that lost their last name and their last user.

use crate::append::Prepared;
use crate::attributes::permissions_of;
use crate::create::WAS_NAMED;
use crate::disk::Durable;
use crate::format::LINE_BYTES;
use crate::format::entry::{Binding, Payload};
use crate::format::slot::{self, Identity};
use crate::index::FileExtent;
use crate::limbo::GivenUp;
use crate::log::{self, Met};
use crate::ops::{Locked, Need, Op, index_error};
use crate::record::Record;
use crate::space::Extent;
use crate::storage;
use crate::write::coarse_now;
use gannet_media::MediumOffset;
use gannet_vfs::{Errno, Error, FileType, Found, MayRemove, Name, NodeId, RemoveKind, Result};
use rustix::thread::Timespec;

/// Attempts to find the same inode under a name before and after locking it.
const ATTEMPTS: u32 = 1000;
/// Attempts to get a block on a volume without any, while others have the last ones to collect with: a tenth of a second in all.
const ATTEMPTS_IN_NEED: u32 = 100;
/// How long between two.
const PAUSE_IN_NEED: Timespec = Timespec { tv_sec: 0, tv_nsec: 1_000_000 };

impl<'s> Op<'s> {
    /// Removes a name; returns the inode it named.
    pub(crate) fn remove(&self, directory: NodeId, name: Name<'_>, kind: RemoveKind) -> Result<NodeId> {
        match self.remove_if(directory, name, kind, None)? {
            Some(found) => Ok(found.node),
            None => Err(Error::because(Errno::BUSY, "the name changes faster than it can be removed")),
        }
    }

    /// Removes a name if `may` agrees; returns what it led to. Nothing where `may` is to be asked and the directory has extended
    /// attributes, an access list perhaps; nor where the name always changed before it could be locked.
    pub(crate) fn remove_if(
        &self,
        directory: NodeId,
        name: Name<'_>,
        kind: RemoveKind,
        may: Option<MayRemove<'_>>,
    ) -> Result<Option<Found>> {
        self.need.set(Need::Removal);
        for _ in 0..ATTEMPTS {
            let mut unchanged = None;
            let seen = self.lookup_bound(directory, name, &mut unchanged)?;
            if may.is_none() {
                check_kind(seen.file_type, kind)?;
            }
            self.expect_slot(seen.inode);
            let (parent, target) = match self.lock_two(directory, seen.node()) {
                Ok(Some(both)) => both,
                // A directory that names itself, or a number reused meanwhile: look again.
                Ok(None) => continue,
                Err(error) if error.errno() == Errno::STALE && self.lock(directory).is_ok() => continue,
                Err(error) => return Err(error),
            };
            self.directory_with_names(&parent)?;
            let bound = if parent.was_unchanged_since(unchanged) {
                seen
            } else {
                self.seat(parent.inode, &parent.record, name)?.taken()?
            };
            if bound.node() != target.node() {
                continue;
            }
            if let Some(may) = may {
                if parent.record.xattrs() != 0 {
                    return Ok(None);
                }
                let of = |locked: &Locked<'s>| permissions_of(&locked.record, locked.state);
                may(&of(&parent), &of(&target))?;
                check_kind(bound.file_type, kind)?;
            }
            self.remove_locked(parent, target, name, bound.rank(), bound.key)?;
            return Ok(Some(Found { node: bound.node(), file_type: bound.file_type }));
        }
        Ok(None)
    }

    /// Asks for the line of a slot that will be stored to when a name of its inode goes: the first where that frees it, as far as
    /// can be told without its lock. The other one is not asked for in vain: the number's next user stores both past the cache.
    #[inline]
    fn expect_slot(&self, inode: u32) {
        let Ok(record) = self.record(inode) else { return };
        if let Ok(Some(at)) = self.disk().slot_at(inode) {
            let line = if record.links() > 1 { slot::AT_LINKS } else { slot::AT_IDENTITY };
            self.disk().medium().expect_store(MediumOffset(at + line));
        }
    }

    fn remove_locked(&self, parent: Locked<'s>, target: Locked<'s>, name: Name<'_>, rank: u16, key: u64) -> Result<()> {
        let is_directory = target.state.file_type == FileType::Directory;
        if is_directory && target.record.entries() != 0 {
            return Err(Error::new(Errno::NOTEMPTY));
        }
        let time = coarse_now();
        let parent_time = parent.time_of_names(time);
        let first = Binding {
            name: name.bytes(),
            rank,
            file_type: None,
            inode: target.inode,
            generation: target.state.generation,
        };
        let payload = Payload::Bind { first, second: None, birth: None, partner: None };
        let links = if is_directory { 2 } else { target.record.links() };
        let links_after = if is_directory { 0 } else { links.saturating_sub(1) };
        let prepared = match self.prepare(&parent, payload.lines(), true) {
            Err(error) if error.errno() == Errno::NOSPC => {
                self.prepare_in_need(&parent, &target, links_after, payload.lines())?
            }
            prepared => prepared?,
        };
        let hand = match self.links_hand(target.inode, links, links_after) {
            Ok(hand) => hand,
            Err(error) => return Err(self.cancel_with(prepared, error)),
        };

        let mut commit = self.disk().begin();
        self.write_short_entry(&mut commit, &parent, &prepared, parent_time, &payload)?;
        if links_after != 0 {
            self.write_links(&mut commit, target.inode, links_after, time)?;
        }
        // Nobody sees this before the locks are released: it is done while the stores are on their way.
        let followed = self.tree(parent.inode, &parent.record).remove(key).map(drop).map_err(index_error);
        parent.record.touch(parent_time);
        parent.record.set_entries(parent.record.entries().saturating_sub(1));
        parent.record.set_links(parent.record.links().saturating_sub(u64::from(is_directory)));
        self.lose_link(&target, links_after);
        self.advance_change(&parent, &prepared);
        let is_used = links_after == 0 && self.in_use(target.node());
        let durable = commit.fence();

        // Behind a fence.
        self.or_count_again(self.leave_limbo());
        if links_after == 0 && !is_used {
            self.free_inode(&target, &durable, Some(hand));
        } else {
            if is_used {
                self.or_count_again(self.keep_for_users(&target, time));
            }
            self.thread.hand_clear(hand);
        }
        // Behind the other hand, which without it would say that nothing happened.
        self.let_go(prepared);
        if self.follows(&parent, followed) {
            self.collect_some(&parent);
        }
        Ok(())
    }

    /// As [`Op::prepare`] for an entry that takes away a name of `target`, on a volume without a block for it: the log may have one that it
    /// does not need, and what frees its own block in turn may take the last.
    #[cold]
    #[inline(never)]
    fn prepare_in_need(
        &self,
        parent: &Locked<'s>,
        target: &Locked<'s>,
        links_after: u64,
        lines: u32,
    ) -> Result<Prepared> {
        let frees = links_after == 0 && target.record.log_use().0 != 0 && !self.in_use(target.node());
        let mut collects = true;
        for _ in 1..ATTEMPTS_IN_NEED {
            collects = collects && self.collect_in_need(parent);
            // It has waited, for others or for a moment, and does not say whether that was refused.
            self.core.is_as_opened()?;
            if !collects {
                self.need.set(if frees { Need::Freeing } else { Need::LastRemoval });
            }
            match self.prepare(parent, lines, true) {
                // Somebody else is in need, too, and gives back what it collects with.
                Err(error) if error.errno() == Errno::NOSPC => {
                    let _ = rustix::thread::nanosleep(&PAUSE_IN_NEED);
                }
                prepared => return prepared,
            }
        }
        self.prepare(parent, lines, true)
    }

    /// Whether an inode that has just lost its last name can be freed. If somebody uses it, its slot is told now: with the
    /// name it was not, since a slot that is freed need not be told before.
    pub(crate) fn is_free_of_users(&self, target: &Locked<'s>, time: i64) -> bool {
        let is_used = self.in_use(target.node());
        if is_used {
            self.or_count_again(self.keep_for_users(target, time));
        }
        !is_used
    }

    /// Tells the slot of an inode that is in use that it has no name.
    #[inline(never)]
    fn keep_for_users(&self, target: &Locked<'s>, time: i64) -> Result<()> {
        let mut commit = self.disk().begin();
        self.write_links(&mut commit, target.inode, 0, time)?;
        // Nobody finds it after a crash.
        commit.without_fence();
        Ok(())
    }

    /// Notes in the record that a name is gone.
    pub(crate) fn lose_link(&self, target: &Locked<'s>, links_after: u64) {
        if target.state.file_type == FileType::Directory {
            target.record.set_parent(0);
            target.record.set_links(0);
        } else {
            target.record.set_links(links_after);
            target.record.set_parent(if links_after == 0 { WAS_NAMED } else { 0 });
        }
    }

    /// Whether an inode has no name left.
    pub(crate) fn is_nameless(&self, locked: &Locked<'s>) -> bool {
        match locked.state.file_type {
            FileType::Directory => locked.record.parent() == 0,
            _ => locked.record.links() == 0,
        }
    }

    /// Its last user is gone: frees it if it has no names.
    pub(crate) fn retire(&self, node: NodeId) -> Result<()> {
        let nameless = self.read_record(node, |record, state| {
            Ok(match state.file_type {
                FileType::Directory => record.parent() == 0,
                _ => record.links() == 0,
            })
        });
        match nameless {
            Ok(true) => {}
            Ok(false) => return Ok(()),
            Err(error) if error.errno() == Errno::STALE => return Ok(()),
            Err(error) => return Err(error),
        }
        let locked = match self.lock(node) {
            Ok(locked) => locked,
            Err(error) if error.errno() == Errno::STALE => return Ok(()),
            Err(error) => return Err(error),
        };
        if !self.is_nameless(&locked) || self.in_use(locked.node()) {
            return Ok(());
        }
        self.free_inode(&locked, &Durable::before_unlock(), None);
        Ok(())
    }

    /// Frees the slot, then everything that it held. Little of it: without a fence of its own, see `limbo`. `links_hand` says that the last
    /// name is gone, until the slot does; then it goes, for the number may be another inode's soon. Where something cannot be freed the inode
    /// is gone all the same.
    pub(crate) fn free_inode(
        &self,
        locked: &Locked<'s>,
        names_gone: &Durable,
        mut links_hand: Option<gannet_shm::Hand>,
    ) {
        let freed = self.free_slot_and_all(locked, names_gone, &mut links_hand);
        if let Some(hand) = links_hand {
            self.thread.hand_clear(hand);
        }
        if freed.is_err() {
            locked.record.unload();
        }
        self.or_count_again(freed);
    }

    #[inline(always)]
    fn free_slot_and_all(
        &self,
        locked: &Locked<'s>,
        _names_gone: &Durable,
        links_hand: &mut Option<gannet_shm::Hand>,
    ) -> Result<()> {
        let at = self.slot_word(locked.inode, 0)?;
        let (pages, _) = locked.record.log_use();
        let head = if pages > 1 { self.disk().load(at + slot::AT_HEAD)? } else { 0 };
        let freed = Identity { generation: locked.state.generation, file_type: None }.freed();
        let mut commit = self.disk().begin();
        commit.store_two_cached((at + slot::AT_IDENTITY, freed.encode()), (at + slot::AT_HEAD, 0))?;
        if let Some(hand) = links_hand.take() {
            self.thread.hand_clear(hand);
        }
        let mut given_up = GivenUp::new(locked.inode, true);
        let root = locked.record.root().load(gannet_shm::Ordering::Relaxed);
        let little = pages <= 1 && locked.record.xattrs() == 0 && self.give_up_blocks(locked, &mut given_up)?;
        if little {
            commit.without_fence();
            locked.record.unload();
            self.node_pool().dropped(root);
            locked.record.set_next_generation(freed.generation);
            return self.enter_limbo(&given_up);
        }
        commit.flush(at, LINE_BYTES)?;
        let durable = commit.fence();

        if locked.state.file_type == FileType::Regular && has_index(&locked.record) {
            let extents = self.extents(locked.inode, &locked.record);
            let mut outcome = Ok(());
            extents
                .for_each_from(0, &mut |extent: FileExtent| {
                    outcome = self.free_extent(locked.inode, extent, &durable);
                    outcome.is_ok()
                })
                .map_err(index_error)?;
            outcome?;
        }
        // Before the log goes, whose entries say where they are.
        self.free_values(locked, &durable)?;
        match (pages, locked.record.tail()) {
            (2.., _) => self.free_log(locked, head, &durable)?,
            (_, Some((page, _))) => self.free_blocks(Extent { start: page, count: 1 }, &durable)?,
            (_, None) => {}
        }
        locked.record.unload();
        locked.record.set_next_generation(freed.generation);
        let numbers = self.core.space.inodes(self)?;
        let number = Extent { start: locked.inode as u64, count: 1 };
        let held = numbers.hold(&self.thread, number).map_err(storage::error)?;
        numbers.release(&self.thread, held).map_err(storage::error)
    }

    /// Notes all blocks of an inode whose log has a page at most; false if they are too many to wait for a fence of others.
    fn give_up_blocks(&self, locked: &Locked<'s>, given_up: &mut GivenUp) -> Result<bool> {
        let mut little = true;
        if let Some((page, _)) = locked.record.tail() {
            little &= given_up.add(Extent { start: page, count: 1 });
        }
        if locked.state.file_type == FileType::Regular && has_index(&locked.record) {
            let extents = self.extents(locked.inode, &locked.record);
            let mut outcome = Ok(());
            extents
                .for_each_from(0, &mut |extent: FileExtent| {
                    let count = u32::try_from(extent.count).unwrap_or(u32::MAX);
                    little = little && !extent.shared && given_up.add(Extent { start: extent.block, count });
                    if little {
                        // Once more where all of it is freed at once after all: that is harmless.
                        outcome = self.pass_stripes(locked.inode, extent.file_block, extent.count);
                    }
                    little && outcome.is_ok()
                })
                .map_err(index_error)?;
            outcome?;
        }
        Ok(little)
    }

    /// Frees the pages of a log. Each says where the next one is: it is read before it is given back.
    #[inline(never)]
    pub(crate) fn free_log(&self, locked: &Locked<'s>, head: u64, durable: &Durable) -> Result<()> {
        let owned = locked.owned(self.core);
        let mut outcome = Ok(());
        let mut previous = None;
        log::walk(self.disk(), owned, head, &mut |met| {
            if let Met::Page { block, .. } = met
                && let Some(page) = previous.replace(block)
            {
                outcome = self.free_blocks(Extent { start: page, count: 1 }, durable);
            }
            outcome
        })?;
        previous.map_or(Ok(()), |page| self.free_blocks(Extent { start: page, count: 1 }, durable))
    }

    /// Frees blocks of a file: first waits, stripe by stripe, for those who write to them in place or read them.
    pub(crate) fn free_extent(&self, inode: u32, extent: FileExtent, durable: &Durable) -> Result<()> {
        self.pass_stripes(inode, extent.file_block, extent.count)?;
        if extent.shared {
            return self.drop_shared(extent.block, extent.count, durable);
        }
        self.free_run(extent.block, extent.count, durable)
    }

    /// Frees a run of blocks, however long.
    pub(crate) fn free_run(&self, start: u64, count: u64, durable: &Durable) -> Result<()> {
        Extent::pieces(start, count).try_for_each(|extent| self.free_blocks(extent, durable))
    }
}

fn has_index(record: &Record<'_>) -> bool {
    record.root().load(gannet_shm::Ordering::Relaxed) != 0
}

fn check_kind(file_type: FileType, kind: RemoveKind) -> Result<()> {
    match (kind, file_type) {
        (RemoveKind::Directory, FileType::Directory) => Ok(()),
        (RemoveKind::Directory, _) => Err(Error::new(Errno::NOTDIR)),
        (RemoveKind::NonDirectory, FileType::Directory) => Err(Error::new(Errno::ISDIR)),
        (RemoveKind::NonDirectory, _) => Ok(()),
    }
}
