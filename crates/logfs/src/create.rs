//! Making inodes: create, mkdir, mknod, symlink, temporary files, and linking.
//!
//! One entry in the directory's log commits a creation: it carries the new inode's attributes, so that recovery can write
//! the slot again. A log page that the inode begins with (symlink target, inherited ACLs) is durable before.

use crate::append::{HAND_COMMIT, Prepared};
use crate::attributes::permissions_of;
use crate::disk::Commit;
use crate::format::entry::{Binding, Payload};
use crate::format::{LINE_BYTES, slot};
use crate::names::Seat;
use crate::ops::{Locked, Op, index_error, shared_error};
use crate::replay::NamePlace;
use crate::write::coarse_now;
use gannet_media::MediumOffset;
use gannet_shm::HandContent;
use gannet_vfs::{Errno, Error, FileType, Name, NewNode, NewNodeOf, NodeId, Result};

/// Hand: the link count word of inode `a` goes from the low half of `b` to its high half with the commit.
pub(crate) const HAND_LINKS: u64 = u64::from_le_bytes(*b"links\0\0\0");

/// Parent, in the record of what is not a directory and lost its last name: it cannot be named again.
pub(crate) const WAS_NAMED: u32 = u32::MAX;

/// Lines of a new name's entry that a lookup reads.
const LINES_LOOKED_AT: u32 = 2;

/// What is to be made.
pub(crate) enum Making<'n> {
    /// This.
    Node(&'n NewNode<'n>),
    /// What follows from the directory's permissions.
    Of(NewNodeOf<'n>),
}

impl<'s> Op<'s> {
    /// Makes an inode and binds it to a name. Nothing where it is to follow from the directory's permissions and that has
    /// extended attributes, lists perhaps.
    // One function for all of it: what is locked and looked up would be moved through memory between several.
    pub(crate) fn create(&self, directory: NodeId, name: Name<'_>, making: Making<'_>) -> Result<Option<NodeId>> {
        // Without the lock first, if nobody has it: who finds the name taken stores nothing, and others who look it up or make others are not
        // held up.
        let mut unchanged = None;
        let free = |seat| match seat {
            Seat::Free(key) => Ok(key),
            Seat::Taken(_) => Err(Error::new(Errno::EXIST)),
        };
        let mut seen = None;
        if self.stamp(directory).is_some() {
            let look = self.read_record_at(directory, &mut unchanged, |record, state| {
                self.directory(state)?;
                free(self.seat(directory.number as u32, record, name)?)
            });
            seen = Some(look?);
        }
        let parent = self.lock(directory)?;
        self.directory_with_names(&parent)?;
        let key = match seen {
            Some(key) if parent.was_unchanged_since(unchanged) => key,
            _ => free(self.seat(parent.inode, &parent.record, name)?)?,
        };
        let made;
        let new = match making {
            Making::Node(new) => new,
            Making::Of(_) if parent.record.xattrs() != 0 => return Ok(None),
            Making::Of(new_of) => {
                made = new_of(&permissions_of(&parent.record, parent.state))?;
                &made
            }
        };
        let time = parent.time_of_names(coarse_now());
        let newborn = self.conceive(new, time, Some(parent.inode))?;
        let binding = Binding {
            name: name.bytes(),
            rank: Seat::Free(key).rank(),
            file_type: Some(new.file_type),
            inode: newborn.inode(),
            generation: newborn.generation(),
        };
        let payload = Payload::Bind { first: binding, second: None, birth: Some(newborn.birth()), partner: None };
        let lines = payload.lines();
        let prepared = match self.prepare(&parent, lines, true) {
            Ok(prepared) => prepared,
            Err(error) => return Err(self.miscarry_with(newborn, error)),
        };
        let tree = self.tree(parent.inode, &parent.record);
        let mut nodes = match tree.reserve(&[key]).map_err(index_error) {
            Ok(nodes) => nodes,
            Err(error) => {
                let error = self.cancel_with(prepared, error);
                return Err(self.miscarry_with(newborn, error));
            }
        };
        let is_directory = new.file_type == FileType::Directory;

        let mut commit = self.disk().begin();
        self.write_slot(&mut commit, &newborn, if is_directory { 2 } else { 1 }, parent.inode)?;
        self.write_short_entry(&mut commit, &parent, &prepared, time, &payload)?;

        // Nobody sees any of this before the lock is released: it is done while the stores are on their way.
        self.fill_record(&newborn, u64::from(!is_directory), if is_directory { parent.inode } else { 0 })?;
        let place = NamePlace { place: prepared.place(), second: false, file_type: new.file_type };
        let followed = tree.insert(key, place.encode(), &mut nodes).map(drop).map_err(index_error);
        drop(nodes);
        parent.record.touch(time);
        parent.record.set_entries(parent.record.entries().wrapping_add(1));
        parent.record.set_links(parent.record.links().wrapping_add(u64::from(is_directory)));
        self.advance_change(&parent, &prepared);
        let durable = commit.fence();

        // Whoever looks at the name next reads its entry, which went past the cache.
        for line in 0..lines.min(LINES_LOOKED_AT) {
            let at = prepared.place().offset_bytes() + line as u64 * LINE_BYTES;
            self.disk().medium().expect_load(MediumOffset(at));
        }
        let node = newborn.node();
        self.announce(newborn, &durable)?;
        self.conclude(prepared, &durable);
        if self.follows(&parent, followed) {
            self.collect_some(&parent);
        }
        parent.guard.unlock();
        Ok(Some(node))
    }

    /// Makes a file without a name.
    pub(crate) fn create_unnamed(&self, directory: NodeId, new: &NewNode<'_>) -> Result<NodeId> {
        self.read_record(directory, |_, state| self.directory(state))?;
        // Between limbo and pool a number is nobody's for a moment, and no inode's lock says here that somebody was at work.
        let at_work = HandContent { kind: HAND_COMMIT, a: 0, b: 0 };
        let at_work = self.thread.hand_set(at_work).map_err(shared_error)?;
        let made = self.make_unnamed(new);
        self.thread.hand_clear(at_work);
        made
    }

    fn make_unnamed(&self, new: &NewNode<'_>) -> Result<NodeId> {
        let newborn = self.conceive(new, coarse_now(), None)?;
        let mut commit = self.disk().begin();
        self.write_slot(&mut commit, &newborn, 0, 0)?;
        self.fill_record(&newborn, 0, 0)?;
        let durable = commit.fence();
        let node = newborn.node();
        // Before its number leaves the thread's hands: who dies before it has opened the file leaves this.
        self.note_unnamed(node);
        self.announce(newborn, &durable)?;
        Ok(node)
    }

    /// Binds another name to an inode.
    pub(crate) fn link(&self, node: NodeId, directory: NodeId, name: Name<'_>) -> Result<()> {
        let [Some(parent), target] = self.lock_all([Some(directory), Some(node)])? else {
            return Err(Error::new(Errno::STALE));
        };
        self.directory_with_names(&parent)?;
        let Seat::Free(key) = self.seat(parent.inode, &parent.record, name)? else {
            return Err(Error::new(Errno::EXIST));
        };
        let Some(target) = target.filter(|target| target.state.file_type != FileType::Directory) else {
            return Err(Error::because(Errno::PERM, "a directory has one name"));
        };
        if target.record.parent() == WAS_NAMED {
            return Err(Error::because(Errno::NOENT, "the file's last name was removed"));
        }
        let links = target.record.links();
        if links == u32::MAX as u64 {
            return Err(Error::new(Errno::MLINK));
        }
        let time = coarse_now();
        let parent_time = parent.time_of_names(time);
        let binding = Binding {
            name: name.bytes(),
            rank: Seat::Free(key).rank(),
            file_type: Some(target.state.file_type),
            inode: target.inode,
            generation: target.state.generation,
        };
        let payload = Payload::Bind { first: binding, second: None, birth: None, partner: None };
        let tree = self.tree(parent.inode, &parent.record);
        let mut nodes = tree.reserve(&[key]).map_err(index_error)?;
        let prepared = self.prepare(&parent, payload.lines(), true)?;
        let hand = match self.links_hand(target.inode, links, links + 1) {
            Ok(hand) => hand,
            Err(error) => return Err(self.cancel_with(prepared, error)),
        };

        let mut commit = self.disk().begin();
        self.write_entry(&mut commit, &parent, &prepared, parent_time, &payload, &mut [])?;
        self.write_links(&mut commit, target.inode, links + 1, time)?;
        let durable = commit.fence();

        let place = NamePlace { place: prepared.place(), second: false, file_type: target.state.file_type };
        let followed = tree.insert(key, place.encode(), &mut nodes).map(drop).map_err(index_error);
        drop(nodes);
        parent.record.touch(parent_time);
        parent.record.set_entries(parent.record.entries().wrapping_add(1));
        target.record.set_links(links + 1);
        // Before the commit hand is cleared: without it, this one would say that nothing happened.
        self.thread.hand_clear(hand);
        self.publish_change(&parent, prepared, &durable);
        if self.follows(&parent, followed) {
            self.collect_some(&parent);
        }
        Ok(())
    }

    /// Says what a link count is before and after the operation in flight.
    pub(crate) fn links_hand(&self, inode: u32, before: u64, after: u64) -> Result<gannet_shm::Hand> {
        let content = HandContent { kind: HAND_LINKS, a: inode as u64, b: before & 0xFFFF_FFFF | after << 32 };
        self.thread.hand_set(content).map_err(shared_error)
    }

    /// Stores an inode's link count, and the time of that.
    pub(crate) fn write_links(&self, commit: &mut Commit<'_>, inode: u32, links: u64, time: i64) -> Result<()> {
        let at = self.slot_word(inode, 0)?;
        commit.store_two((at + slot::AT_LINKS, links), (at + slot::AT_CHANGED, time as u64))?;
        self.record(inode)?.set_access_fresh(0);
        Ok(())
    }

    /// Requires a directory that has not been removed.
    pub(crate) fn directory_with_names(&self, locked: &Locked<'s>) -> Result<()> {
        self.directory(locked.state)?;
        if locked.record.parent() == 0 {
            return Err(Error::because(Errno::NOENT, "the directory has been removed"));
        }
        Ok(())
    }

    /// Cancels what was prepared when an operation fails before its commit.
    pub(crate) fn cancel_with(&self, prepared: Prepared, error: Error) -> Error {
        match self.cancel(prepared) {
            Ok(()) => error,
            Err(worse) => worse,
        }
    }
}
