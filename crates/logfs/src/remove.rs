//! Removing names, and freeing inodes that lost their last name and their last user.

use crate::create::WAS_NAMED;
use crate::disk::Durable;
use crate::format::entry::{Binding, DIRECTORY_ENTRY_BYTES_MAX, Owned, Payload};
use crate::format::slot::{self, Identity};
use crate::index::FileExtent;
use crate::log::{self, Met};
use crate::ops::{Locked, Op, index_error};
use crate::space::Extent;
use crate::storage;
use crate::write::coarse_now;
use gannet_vfs::{Errno, Error, FileType, Name, NodeId, RemoveKind, Result};

/// Attempts to find the same inode under a name before and after locking it.
const ATTEMPTS: u32 = 1000;

impl<'s> Op<'s> {
    /// Removes a name; returns the inode it named.
    pub(crate) fn remove(&self, directory: NodeId, name: Name<'_>, kind: RemoveKind) -> Result<NodeId> {
        self.urgent.set(true);
        for _ in 0..ATTEMPTS {
            let seen = self.lookup_bound(directory, name)?;
            check_kind(seen.file_type, kind)?;
            let locked = self.lock_all([Some(directory), Some(seen.node())]);
            let (parent, target) = match locked {
                Ok([Some(parent), Some(target)]) => (parent, target),
                // A directory that names itself, or a number reused meanwhile: look again.
                Ok(_) => continue,
                Err(error) if error.errno() == Errno::STALE && self.lock(directory).is_ok() => continue,
                Err(error) => return Err(error),
            };
            self.directory_with_names(&parent)?;
            let bound = self.seat(parent.inode, &parent.record, name)?.taken()?;
            if bound.node() != target.node() {
                continue;
            }
            self.remove_locked(parent, target, name, bound.rank(), bound.key)?;
            return Ok(bound.node());
        }
        Err(Error::because(Errno::BUSY, "the name changes faster than it can be removed"))
    }

    fn remove_locked(&self, parent: Locked<'s>, target: Locked<'s>, name: Name<'_>, rank: u16, key: u64) -> Result<()> {
        let is_directory = target.state.file_type == FileType::Directory;
        if is_directory && target.record.entries() != 0 {
            return Err(Error::new(Errno::NOTEMPTY));
        }
        let time = coarse_now();
        let first = Binding {
            name: name.bytes(),
            rank,
            file_type: None,
            inode: target.inode,
            generation: target.state.generation,
        };
        let payload = Payload::Bind { first, second: None, birth: None, partner: None };
        let prepared = self.prepare(&parent, payload.lines(), true)?;
        let links = if is_directory { 2 } else { target.record.links() };
        let links_after = if is_directory { 0 } else { links.saturating_sub(1) };
        let hand = self.links_hand(target.inode, links, links_after)?;

        let mut commit = self.disk().begin();
        self.write_links(&mut commit, target.inode, links_after, time)?;
        let mut buffer = [0; DIRECTORY_ENTRY_BYTES_MAX];
        self.write_entry(&mut commit, &parent, &prepared, time, &payload, &mut buffer)?;
        let durable = commit.fence();

        self.tree(parent.inode, &parent.record).remove(key).map_err(index_error)?;
        parent.record.touch(time);
        parent.record.set_entries(parent.record.entries().saturating_sub(1));
        parent.record.set_links(parent.record.links().saturating_sub(u64::from(is_directory)));
        self.lose_link(&target, links_after);
        // Before the commit hand is cleared: without it, this one would say that nothing happened.
        self.thread.hand_clear(hand);
        self.publish_entry(&parent, prepared, &durable)?;
        self.collect_some(&parent)?;
        self.free_if_unused(&target, &durable)
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

    /// Frees an inode that has neither names nor users.
    pub(crate) fn free_if_unused(&self, locked: &Locked<'s>, durable: &Durable) -> Result<()> {
        if self.is_nameless(locked) && !self.core.users.in_use(locked.node()) {
            self.free_inode(locked, durable)?;
        }
        Ok(())
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
        // What removed its last name was durable when it returned.
        let durable = self.disk().begin().fence();
        self.free_if_unused(&locked, &durable)
    }

    /// Frees the slot durably, then everything that it held.
    fn free_inode(&self, locked: &Locked<'s>, _names_gone: &Durable) -> Result<()> {
        let at = self.slot_word(locked.inode, 0)?;
        let head = self.disk().load(at + slot::AT_HEAD)?;
        let freed = Identity { generation: locked.state.generation, file_type: None }.freed();
        let mut commit = self.disk().begin();
        commit.store(at + slot::AT_IDENTITY, freed.encode())?;
        commit.store(at + slot::AT_HEAD, 0)?;
        let durable = commit.fence();

        if locked.state.file_type == FileType::Regular
            && !locked.record.root().load(gannet_shm::Ordering::Relaxed).eq(&0)
        {
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
        // The log's pages say where the next one is: each is read before it is given back.
        let owned = Owned { key: self.disk().key(), inode: locked.inode, generation: locked.state.generation };
        let mut outcome = Ok(());
        let mut previous = None;
        log::walk(self.disk(), owned, head, &mut |met| {
            if let Met::Page { block, .. } = met
                && let Some(page) = previous.replace(block)
            {
                outcome = self.free_blocks(Extent { start: page, count: 1 }, &durable);
            }
            outcome
        })?;
        if let Some(page) = previous {
            self.free_blocks(Extent { start: page, count: 1 }, &durable)?;
        }
        locked.record.unload();
        let numbers = self.core.space.inodes(self)?;
        let number = Extent { start: locked.inode as u64, count: 1 };
        let held = numbers.hold(&self.thread, number).map_err(storage::error)?;
        numbers.release(&self.thread, held).map_err(storage::error)
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
    pub(crate) fn free_run(&self, mut start: u64, count: u64, durable: &Durable) -> Result<()> {
        let mut left = count;
        while left > 0 {
            let count = left.min((1 << 24) - 1) as u32;
            self.free_blocks(Extent { start, count }, durable)?;
            start += count as u64;
            left -= count as u64;
        }
        Ok(())
    }
}

fn check_kind(file_type: FileType, kind: RemoveKind) -> Result<()> {
    match (kind, file_type) {
        (RemoveKind::Directory, FileType::Directory) => Ok(()),
        (RemoveKind::Directory, _) => Err(Error::new(Errno::NOTDIR)),
        (RemoveKind::NonDirectory, FileType::Directory) => Err(Error::new(Errno::ISDIR)),
        (RemoveKind::NonDirectory, _) => Ok(()),
    }
}
