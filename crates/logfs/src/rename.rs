//! Renames: within a directory one entry with two bindings, across directories an entry in each that names the other.
//!
//! Whether a half pair counts after a crash is decided by sequence order (`halves::decide_half`); nothing is written to
//! settle it.

use crate::format::entry::{Binding, Partner, Payload};
use crate::format::slot;
use crate::names::{Bound, Seat};
use crate::newborn::Newborn;
use crate::ops::{Locked, Op, index_error};
use crate::places::CONTROL_RENAME_LOCK;
use crate::rename_room::RenameRoom;
use crate::replay::NamePlace;
use crate::write::coarse_now;
use gannet_vfs::{Errno, Error, FileType, Name, NewNode, NodeId, RenameFlags, Result};

/// Hand: the parent word of directory `a` goes from the low half of `b` to its high half with the commit.
pub(crate) const HAND_PARENT: u64 = u64::from_le_bytes(*b"parent\0\0");

const ATTEMPTS: u32 = 1000;
/// Directories cannot be nested deeper than there are inodes; a longer chain of parents is damage.
const DEPTH_MAX: u64 = 1 << 20;

/// A rename with everything locked and looked up.
struct Move<'o, 's> {
    from: &'o Locked<'s>,
    /// `None` within one directory.
    to: Option<&'o Locked<'s>>,
    source: &'o Locked<'s>,
    source_bound: Bound,
    target: Option<(&'o Locked<'s>, Bound)>,
    target_seat: Seat,
}

impl<'s> Op<'s> {
    /// `renameat2(2)`.
    pub(crate) fn rename(
        &self,
        from_directory: NodeId,
        from_name: Name<'_>,
        to_directory: NodeId,
        to_name: Name<'_>,
        flags: RenameFlags,
    ) -> Result<()> {
        let exchange = flags.contains(RenameFlags::EXCHANGE);
        if exchange && flags.intersects(RenameFlags::NO_REPLACE.union(RenameFlags::WHITEOUT)) {
            return Err(Error::new(Errno::INVAL));
        }
        for directory in [from_directory, to_directory] {
            self.read_record(directory, |_, state| self.directory(state))?;
        }
        let across = from_directory != to_directory;
        // Directories that move across directories are moved one at a time: so no two of them can make a cycle.
        let rename_lock = if across { Some(self.take(self.core.places.control(CONTROL_RENAME_LOCK))?) } else { None };
        for _ in 0..ATTEMPTS {
            let source = self.lookup_bound(from_directory, from_name, &mut None)?;
            let target = match self.lookup_bound(to_directory, to_name, &mut None) {
                Ok(bound) => Some(bound),
                Err(error) if error.errno() == Errno::NOENT => None,
                Err(error) => return Err(error),
            };
            if target.is_some() && flags.contains(RenameFlags::NO_REPLACE) {
                if self.are_both_there([from_directory, to_directory], [from_name, to_name])? {
                    return Err(Error::new(Errno::EXIST));
                }
                continue;
            }
            if target.is_none() && exchange {
                return Err(Error::new(Errno::NOENT));
            }
            if across {
                self.refuse_cycle(source, to_directory)?;
                if let Some(target) = target {
                    // A directory that holds the source can neither change places with it nor be empty.
                    self.refuse_cycle(target, from_directory).map_err(|error| match error.errno() {
                        Errno::INVAL if !exchange => Error::new(Errno::NOTEMPTY),
                        _ => error,
                    })?;
                }
            }
            let nodes = [
                Some(from_directory),
                Some(to_directory).filter(|_| across),
                Some(source.node()),
                target.map(|bound| bound.node()).filter(|&node| node != source.node()),
            ];
            let locked = match self.lock_all(nodes) {
                Ok(locked) => locked,
                Err(error) if error.errno() == Errno::STALE => {
                    // A name was removed and its number reused: look again, unless a directory itself is gone.
                    self.lock(from_directory)?;
                    self.lock(to_directory)?;
                    continue;
                }
                Err(error) => return Err(error),
            };
            let [Some(from), to, source_locked, target_locked] = &locked else {
                return Err(Error::new(Errno::STALE));
            };
            let to_or_from = to.as_ref().unwrap_or(from);
            self.directory_with_names(from)?;
            self.directory_with_names(to_or_from)?;
            let source_now = self.seat(from.inode, &from.record, from_name)?.taken()?;
            let target_seat = self.seat(to_or_from.inode, &to_or_from.record, to_name)?;
            let target_now = match target_seat {
                Seat::Taken(bound) => Some(bound),
                Seat::Free(_) => None,
            };
            if source_now.node() != source.node()
                || target_now.map(|bound| bound.node()) != target.map(|bound| bound.node())
            {
                continue;
            }
            if target_now.is_some_and(|target| target.node() == source_now.node()) {
                // Two names of one inode: nothing happens, POSIX says.
                return Ok(());
            }
            let (Some(source_locked), true) = (source_locked, target_now.is_some() == target_locked.is_some()) else {
                // A directory is moved into itself, or over the one it is in.
                return Err(self.tangled(&source, target.as_ref(), from_directory, to_directory));
            };
            let moving = Move {
                from,
                to: to.as_ref(),
                source: source_locked,
                source_bound: source_now,
                target: target_locked.as_ref().zip(target_now),
                target_seat,
            };
            let outcome = if exchange {
                self.exchange(&moving, from_name, to_name)
            } else {
                self.move_name(&moving, from_name, to_name, flags.contains(RenameFlags::WHITEOUT))
            };
            drop(locked);
            drop(rename_lock);
            return outcome;
        }
        Err(Error::because(Errno::BUSY, "the names change faster than they can be renamed"))
    }

    /// Whether both names are there at one moment: one after the other they can be found though the first was taken away before the second came.
    /// `ENOENT` if the first is not.
    fn are_both_there(&self, directories: [NodeId; 2], names: [Name<'_>; 2]) -> Result<bool> {
        let [first, second] = directories;
        let locked = self.lock_all([Some(first), Some(second).filter(|_| first != second), None, None])?;
        let [Some(one), other, ..] = &locked else {
            return Err(Error::new(Errno::STALE));
        };
        let other = other.as_ref().unwrap_or(one);
        self.directory_with_names(one)?;
        self.directory_with_names(other)?;
        self.seat(one.inode, &one.record, names[0])?.taken()?;
        Ok(matches!(self.seat(other.inode, &other.record, names[1])?, Seat::Taken(_)))
    }

    /// Why source or target could not be locked beside the directories: one of them is one of the directories.
    fn tangled(&self, source: &Bound, target: Option<&Bound>, from: NodeId, to: NodeId) -> Error {
        if source.node() == to || source.node() == from {
            return Error::because(Errno::INVAL, "a directory cannot be moved into itself");
        }
        match target {
            // The target holds the source, so it is not empty.
            Some(target) if target.node() == from || target.node() == to => Error::new(Errno::NOTEMPTY),
            _ => Error::new(Errno::INVAL),
        }
    }

    /// `EINVAL` if the directory `moved` is `into` or holds it. The rename lock is held, so the chain of parents stands.
    fn refuse_cycle(&self, moved: Bound, into: NodeId) -> Result<()> {
        if moved.file_type != FileType::Directory {
            return Ok(());
        }
        let mut at = into;
        for _ in 0..DEPTH_MAX {
            if at == moved.node() {
                return Err(Error::because(Errno::INVAL, "a directory cannot be moved into itself"));
            }
            let parent = self.parent(at)?;
            if parent == at {
                return Ok(());
            }
            at = parent;
        }
        Err(Error::damaged("the chain of parent directories does not end", into.number))
    }

    /// The directory that holds a directory.
    pub(crate) fn parent(&self, directory: NodeId) -> Result<NodeId> {
        let parent = self.read_record(directory, |record, state| {
            self.directory(state)?;
            match record.parent() {
                0 => Err(Error::because(Errno::NOENT, "the directory has been removed")),
                parent => Ok(parent),
            }
        })?;
        if parent as u64 == directory.number {
            return Ok(directory);
        }
        self.node_of(parent)
    }

    /// The present generation of an inode number.
    pub(crate) fn node_of(&self, inode: u32) -> Result<NodeId> {
        if let Some(state) = self.record(inode)?.state() {
            return Ok(NodeId::new(inode as u64, state.generation));
        }
        self.lock_any(inode).map(|locked| locked.node())
    }

    fn move_name(&self, moving: &Move<'_, 's>, from_name: Name<'_>, to_name: Name<'_>, whiteout: bool) -> Result<()> {
        let source_is_directory = moving.source_bound.file_type == FileType::Directory;
        if let Some((target, bound)) = &moving.target {
            match (source_is_directory, bound.file_type == FileType::Directory) {
                (true, false) => return Err(Error::new(Errno::NOTDIR)),
                (false, true) => return Err(Error::new(Errno::ISDIR)),
                (true, true) if target.record.entries() != 0 => return Err(Error::new(Errno::NOTEMPTY)),
                _ => {}
            }
        }
        let gone = Binding {
            name: from_name.bytes(),
            rank: moving.source_bound.rank(),
            file_type: None,
            inode: moving.source_bound.inode,
            generation: moving.source_bound.generation,
        };
        let come = Binding {
            name: to_name.bytes(),
            rank: moving.target_seat.rank(),
            file_type: Some(moving.source_bound.file_type),
            inode: moving.source_bound.inode,
            generation: moving.source_bound.generation,
        };
        let loses = moving.target.map(|(target, bound)| {
            let before = if bound.file_type == FileType::Directory { 2 } else { target.record.links() };
            let after = if bound.file_type == FileType::Directory { 0 } else { before.saturating_sub(1) };
            (target, before, after)
        });
        if !whiteout {
            return self.commit_move(moving, gone, come, loses, None);
        }
        let time = moving.from.time_of_names(coarse_now());
        let new = NewNode::of_type(FileType::CharacterDevice, 0, gannet_vfs::Owner::default());
        let newborn = self.conceive(&new, time, None)?;
        let stays = Binding {
            file_type: Some(FileType::CharacterDevice),
            inode: newborn.inode(),
            generation: newborn.generation(),
            ..gone
        };
        self.commit_move(moving, stays, come, loses, Some(newborn))
    }

    fn exchange(&self, moving: &Move<'_, 's>, from_name: Name<'_>, to_name: Name<'_>) -> Result<()> {
        let Some((_, target)) = moving.target else { return Err(Error::new(Errno::NOENT)) };
        let at_from = Binding {
            name: from_name.bytes(),
            rank: moving.source_bound.rank(),
            file_type: Some(target.file_type),
            inode: target.inode,
            generation: target.generation,
        };
        let at_to = Binding {
            name: to_name.bytes(),
            rank: moving.target_seat.rank(),
            file_type: Some(moving.source_bound.file_type),
            inode: moving.source_bound.inode,
            generation: moving.source_bound.generation,
        };
        self.commit_move(moving, at_from, at_to, None, None)
    }

    /// Writes and publishes a rename: `at_from` is what the old name binds from now on, `at_to` the new one; `loses` is
    /// the inode that loses a name.
    fn commit_move(
        &self,
        moving: &Move<'_, 's>,
        at_from: Binding<'_>,
        at_to: Binding<'_>,
        loses: Option<(&Locked<'s>, u64, u64)>,
        whiteout: Option<Newborn>,
    ) -> Result<()> {
        let birth = whiteout.as_ref().map(Newborn::birth);
        let time = coarse_now();
        // The entry's time is the time of the birth that it carries.
        let from_time = birth.map_or_else(|| moving.from.time_of_names(time), |birth| birth.created);
        let to_time = moving.to.map_or(from_time, |to| to.time_of_names(time));
        let to_tree_holder = moving.to.unwrap_or(moving.from);
        let to_key = moving.target_seat.key();
        let to_tree = self.tree(to_tree_holder.inode, &to_tree_holder.record);

        // The halves, or the one entry.
        let partner_room = |locked: &Locked<'s>| Partner {
            inode: locked.inode,
            generation: locked.state.generation,
            sequence: locked.record.sequence(),
        };
        let (to_payload, from_payload) = match moving.to {
            None => (None, Payload::Bind { first: at_from, second: Some(at_to), birth, partner: None }),
            Some(to) => (
                Some(Payload::Bind {
                    first: at_to,
                    second: None,
                    birth: None,
                    partner: Some(partner_room(moving.from)),
                }),
                Payload::Bind { first: at_from, second: None, birth, partner: Some(partner_room(to)) },
            ),
        };
        // Directories that change parents: where they were, where they go.
        let goes = moving
            .to
            .filter(|_| at_to.file_type == Some(FileType::Directory))
            .map(|to| (moving.source, moving.from.inode, to.inode));
        let comes = match (moving.to, moving.target) {
            (Some(to), Some((target, _))) if at_from.file_type == Some(FileType::Directory) => {
                Some((target, to.inode, moving.from.inode))
            }
            _ => None,
        };
        let to_lines = to_payload.as_ref().map_or(0, Payload::lines);
        let room = to_tree.reserve(&[to_key]).map_err(index_error).and_then(|nodes| {
            let (from, to) = ((moving.from, from_payload.lines()), moving.to.map(|to| (to, to_lines)));
            Ok((nodes, self.make_rename_room(from, to, loses, [goes, comes])?))
        });
        let (mut nodes, room) = match room {
            Ok(room) => room,
            Err(error) => return Err(whiteout.map_or(error, |newborn| self.miscarry_with(newborn, error))),
        };
        let RenameRoom { from: from_prepared, to: to_prepared, links: links_hand, parents: parent_hands } = room;

        let mut commit = self.disk().begin();
        if let Some(newborn) = &whiteout {
            self.write_slot(&mut commit, newborn, 1, 0)?;
        }
        if let Some((target, _, after)) = loses.filter(|&(.., after)| after != 0) {
            self.write_links(&mut commit, target.inode, after, time)?;
        }
        for (moved, _, after) in [goes, comes].into_iter().flatten() {
            // Unnoticed [flush]: after a crash parents are derived from the names.
            commit.store(self.slot_word(moved.inode, slot::AT_PARENT)?, after as u64)?;
        }
        let renamed = [Some(moving.source), moving.target.map(|(target, _)| target).filter(|_| loses.is_none())];
        for locked in renamed.into_iter().flatten() {
            // Unnoticed [store]: a time, for which the conformance suite asks.
            commit.store(self.slot_word(locked.inode, slot::AT_CHANGED)?, time as u64)?;
        }
        if let Some(((to, payload), prepared)) = moving.to.zip(to_payload.as_ref()).zip(to_prepared.as_ref()) {
            self.write_entry(&mut commit, to, prepared, to_time, payload, &mut [])?;
        }
        self.write_entry(&mut commit, moving.from, &from_prepared, from_time, &from_payload, &mut [])?;
        let durable = commit.fence();

        let from_place = from_prepared.place();
        let to_place = to_prepared.as_ref().map_or(from_place, |prepared| prepared.place());
        let second = moving.to.is_none();
        let from_tree = self.tree(moving.from.inode, &moving.from.record);
        let from_followed = match at_from.file_type {
            None => from_tree.remove(moving.source_bound.key),
            Some(file_type) => {
                let value = NamePlace { place: from_place, second: false, file_type }.encode();
                from_tree.replace(moving.source_bound.key, value)
            }
        }
        .map(drop)
        .map_err(index_error);
        let file_type = moving.source_bound.file_type;
        let value = NamePlace { place: to_place, second, file_type }.encode();
        let to_followed = to_tree.insert(to_key, value, &mut nodes).map(drop).map_err(index_error);
        drop(nodes);

        if let Some(newborn) = whiteout {
            self.fill_record(&newborn, 1, 0)?;
            self.announce(newborn, &durable)?;
        }
        self.count_move(moving, &at_from);
        moving.from.record.touch(from_time);
        to_tree_holder.record.touch(to_time);
        for (moved, _, after) in [goes, comes].into_iter().flatten() {
            moved.record.set_parent(after);
        }
        let mut freed = None;
        if let Some((target, _, after)) = loses {
            self.lose_link(target, after);
            if after == 0 && self.is_free_of_users(target, time) {
                freed = Some(target);
            }
        }
        if let Some((to, prepared)) = moving.to.zip(to_prepared.as_ref()) {
            self.advance_change(to, prepared);
        }
        self.advance_change(moving.from, &from_prepared);
        // Behind a fence.
        self.or_count_again(self.leave_limbo());
        match freed {
            Some(target) => self.free_inode(target, &durable, links_hand),
            None => links_hand.into_iter().for_each(|hand| self.thread.hand_clear(hand)),
        }
        // Before the commit hand is cleared: without it, these would say that nothing happened.
        parent_hands.into_iter().flatten().for_each(|hand| self.thread.hand_clear(hand));
        if let Some(prepared) = to_prepared {
            self.let_go(prepared);
        }
        self.let_go(from_prepared);
        // Within one directory both changed the same index.
        let (from_followed, to_followed) = match moving.to {
            None => (from_followed.and(to_followed), Ok(())),
            Some(_) => (from_followed, to_followed),
        };
        if self.follows(moving.from, from_followed) {
            self.collect_some(moving.from);
        }
        if let Some(to) = moving.to
            && self.follows(to, to_followed)
        {
            self.collect_some(to);
        }
        Ok(())
    }

    /// Keeps the directories' counts of names and of directories.
    fn count_move(&self, moving: &Move<'_, 's>, at_from: &Binding<'_>) {
        let add = |locked: &Locked<'s>, entries: i64, directories: i64| {
            let record = &locked.record;
            record.set_entries(record.entries().wrapping_add_signed(entries));
            record.set_links(record.links().wrapping_add_signed(directories));
        };
        let is_directory = |file_type: Option<FileType>| i64::from(file_type == Some(FileType::Directory));
        let source = is_directory(Some(moving.source_bound.file_type));
        let target = moving.target.map(|(_, bound)| is_directory(Some(bound.file_type)));
        let to = moving.to.unwrap_or(moving.from);
        // The old name: what it bound is replaced by what it binds.
        let stays = i64::from(at_from.file_type.is_some());
        add(moving.from, stays - 1, is_directory(at_from.file_type) - source);
        // The new name likewise.
        add(to, 1 - i64::from(target.is_some()), source - target.unwrap_or(0));
    }
}
