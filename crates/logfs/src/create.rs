//! Making inodes: create, mkdir, mknod, symlink, temporary files, and linking.
//!
//! One entry in the directory's log commits a creation: it carries the new inode's attributes, so that recovery can write
//! the slot again. A log page that the inode begins with (symlink target, inherited ACLs) is durable before.

use crate::append::Prepared;
use crate::attributes::permissions_of;
use crate::disk::Commit;
use crate::format::entry::{self, Binding, ENTRY_BYTES_MAX, Owned, Payload, TARGET_BYTES_MAX};
use crate::format::page::{AT_NEXT, ENTRY_LINES, LINES, Link, PageHeader};
use crate::format::slot::{self, Birth, SLOT_BYTES, Slot};
use crate::format::{BLOCK_BYTES, LINE_BYTES};
use crate::names::Seat;
use crate::ops::{Locked, Op, index_error, shared_error};
use crate::places::{CONTROL_CHUNK_LOCK, CONTROL_FREE_SLOTS};
use crate::record::{Collection, Record, State};
use crate::replay::{InodeState, NamePlace};
use crate::space::Held;
use crate::storage;
use crate::write::coarse_now;
use gannet_media::MediumOffset;
use gannet_shm::{HandContent, Ordering};
use gannet_vfs::{Errno, Error, FileType, Name, NewNode, NewNodeOf, NodeId, Result};

/// Hand: the link count word of inode `a` goes from the low half of `b` to its high half with the commit.
pub(crate) const HAND_LINKS: u64 = u64::from_le_bytes(*b"links\0\0\0");

/// Parent, in the record of what is not a directory and lost its last name: it cannot be named again.
pub(crate) const WAS_NAMED: u32 = u32::MAX;

/// An inode in the making: its number and what it is born with.
pub(crate) struct Newborn {
    number: Held,
    inode: u32,
    generation: u32,
    birth: Birth,
    /// Log pages that are written before the slot.
    pages: [Option<Held>; FIRST_PAGES_MAX],
}

/// Blocks of the inode table that are made at a time, if they are to be had: as many chunks as these hold.
pub(crate) const CHUNKS_AT_ONCE: u64 = 16;

/// Lines of a new name's entry that a lookup reads.
const LINES_LOOKED_AT: u32 = 2;

/// Most log pages that an inode begins with: a long symlink target, or inherited ACLs.
const FIRST_PAGES_MAX: usize = 4;
/// The longest symlink target, in bytes (`PATH_MAX` less the NUL).
const LINK_BYTES_MAX: usize = 4095;

impl Newborn {
    /// Its name to others.
    pub(crate) const fn node(&self) -> NodeId {
        NodeId::new(self.inode as u64, self.generation)
    }

    /// Its number.
    pub(crate) const fn inode(&self) -> u32 {
        self.inode
    }

    /// What it is born with.
    pub(crate) const fn birth(&self) -> Birth {
        self.birth
    }
}

impl<'s> Op<'s> {
    /// Makes an inode and binds it to a name.
    pub(crate) fn create(&self, directory: NodeId, name: Name<'_>, new: &NewNode<'_>) -> Result<NodeId> {
        let parent = self.lock(directory)?;
        let seat = self.free_seat(&parent, name)?;
        self.create_at(parent, seat, name, new)
    }

    /// Makes what `new` makes of the directory's permissions; nothing where it has extended attributes, lists perhaps.
    pub(crate) fn create_if(&self, directory: NodeId, name: Name<'_>, new: NewNodeOf<'_>) -> Result<Option<NodeId>> {
        let parent = self.lock(directory)?;
        let seat = self.free_seat(&parent, name)?;
        if parent.record.xattrs() != 0 {
            return Ok(None);
        }
        let new = new(&permissions_of(&parent.record, parent.state))?;
        self.create_at(parent, seat, name, &new).map(Some)
    }

    /// Where a name goes that does not exist yet.
    fn free_seat(&self, parent: &Locked<'s>, name: Name<'_>) -> Result<Seat> {
        self.directory_with_names(parent)?;
        match self.seat(parent.inode, &parent.record, name)? {
            Seat::Taken(_) => Err(Error::new(Errno::EXIST)),
            seat => Ok(seat),
        }
    }

    fn create_at(&self, parent: Locked<'s>, seat: Seat, name: Name<'_>, new: &NewNode<'_>) -> Result<NodeId> {
        let time = coarse_now();
        let newborn = self.conceive(new, time, Some(parent.inode))?;
        let binding = Binding {
            name: name.bytes(),
            rank: seat.rank(),
            file_type: Some(new.file_type),
            inode: newborn.inode,
            generation: newborn.generation,
        };
        let payload = Payload::Bind { first: binding, second: None, birth: Some(newborn.birth), partner: None };
        let prepared = match self.prepare(&parent, payload.lines(), true) {
            Ok(prepared) => prepared,
            Err(error) => {
                self.miscarry(newborn)?;
                return Err(error);
            }
        };
        let tree = self.tree(parent.inode, &parent.record);
        let mut nodes = match tree.reserve(&[seat.key()]).map_err(index_error) {
            Ok(nodes) => nodes,
            Err(error) => {
                self.cancel(prepared)?;
                self.miscarry(newborn)?;
                return Err(error);
            }
        };
        let is_directory = new.file_type == FileType::Directory;

        let mut commit = self.disk().begin();
        let links = if is_directory { 2 } else { 1 };
        self.write_slot(&mut commit, &newborn, links, parent.inode)?;
        self.write_entry(&mut commit, &parent, &prepared, time, &payload, &mut [])?;
        let durable = commit.fence();

        // Whoever looks at the name next reads its entry, which went past the cache.
        for line in 0..payload.lines().min(LINES_LOOKED_AT) {
            let at = prepared.place().offset_bytes() + line as u64 * LINE_BYTES;
            self.disk().medium().expect_load(MediumOffset(at));
        }
        let place = NamePlace { place: prepared.place(), second: false, file_type: new.file_type };
        tree.insert(seat.key(), place.encode(), &mut nodes).map_err(index_error)?;
        drop(nodes);
        parent.record.touch(time);
        parent.record.set_entries(parent.record.entries().wrapping_add(1));
        parent.record.set_links(parent.record.links().wrapping_add(u64::from(is_directory)));
        let node = newborn.node();
        self.born(newborn, u64::from(!is_directory), if is_directory { parent.inode } else { 0 })?;
        self.publish_change(&parent, prepared, &durable)?;
        self.collect_some(&parent)?;
        parent.guard.unlock();
        Ok(node)
    }

    /// Makes a file without a name.
    pub(crate) fn create_unnamed(&self, directory: NodeId, new: &NewNode<'_>) -> Result<NodeId> {
        self.read_record(directory, |_, state| self.directory(state))?;
        let newborn = self.conceive(new, coarse_now(), None)?;
        let mut commit = self.disk().begin();
        self.write_slot(&mut commit, &newborn, 0, 0)?;
        let _ = commit.fence();
        let node = newborn.node();
        // Before its number leaves the thread's hands: who dies before it has opened the file leaves this.
        self.note_unnamed(node);
        self.born(newborn, 0, 0)?;
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
        let hand = self.links_hand(target.inode, links, links + 1)?;

        let mut commit = self.disk().begin();
        self.write_entry(&mut commit, &parent, &prepared, time, &payload, &mut [])?;
        self.write_links(&mut commit, target.inode, links + 1, time)?;
        let durable = commit.fence();

        let place = NamePlace { place: prepared.place(), second: false, file_type: target.state.file_type };
        tree.insert(key, place.encode(), &mut nodes).map_err(index_error)?;
        drop(nodes);
        parent.record.touch(time);
        parent.record.set_entries(parent.record.entries().wrapping_add(1));
        target.record.set_links(links + 1);
        // Before the commit hand is cleared: without it, this one would say that nothing happened.
        self.thread.hand_clear(hand);
        self.publish_change(&parent, prepared, &durable)?;
        self.collect_some(&parent)
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

    /// Takes a number and prepares all that stands before the slot: durable, and nobody's yet.
    pub(crate) fn conceive(&self, new: &NewNode<'_>, time: i64, near: Option<u32>) -> Result<Newborn> {
        if new.file_type == FileType::Symlink && (new.target.is_empty() || new.target.len() > LINK_BYTES_MAX) {
            let errno = if new.target.is_empty() { Errno::NOENT } else { Errno::NAMETOOLONG };
            return Err(Error::new(errno));
        }
        let (number, generation) = self.take_number(near)?;
        let inode = number.extent().start as u32;
        let birth = Birth {
            file_type: new.file_type,
            mode: new.mode & 0o7777,
            flags: new.flags,
            owner: new.owner,
            device: match new.file_type {
                FileType::BlockDevice | FileType::CharacterDevice => new.device,
                _ => 0,
            },
            created: time,
            head: 0,
        };
        let mut newborn = Newborn { number, inode, generation, birth, pages: [const { None }; FIRST_PAGES_MAX] };
        if (new.file_type == FileType::Symlink || !new.xattrs.is_empty())
            && let Err(error) = self.write_first_pages(&mut newborn, new, time)
        {
            self.miscarry(newborn)?;
            return Err(error);
        }
        Ok(newborn)
    }

    /// A free number, in this thread's hands, with its generation; near another one if there is one free.
    fn take_number(&self, near: Option<u32>) -> Result<(Held, u32)> {
        if let Some(number) = self.take_ready_number()? {
            return self.make_usable(number);
        }
        let numbers = self.core.space.inodes(self)?;
        let take = || numbers.allocate(&self.thread, 1, near.map(u64::from), false).map_err(storage::error);
        let number = match take() {
            Err(error) if error.errno() == Errno::NOSPC && self.release_numbers()? => take(),
            outcome => outcome,
        };
        let number = number.map_err(|error| match error.errno() {
            Errno::NOSPC => Error::because(Errno::NOSPC, "the volume has no free inode"),
            _ => error,
        })?;
        match self.make_usable(number) {
            // No room for the chunk that it would be in. Others may have free slots.
            Err(error) if error.errno() == Errno::NOSPC => match self.take_number_with_slot()? {
                Some(number) => self.make_usable(number),
                None => Err(error),
            },
            outcome => outcome,
        }
    }

    /// Sees to it that a number has a slot and a record, for nothing may fail once the birth is durable.
    fn make_usable(&self, number: Held) -> Result<(Held, u32)> {
        let inode = number.extent().start as u32;
        if let Ok(Some(at)) = self.disk().slot_at(inode) {
            self.disk().medium().expect_lines(MediumOffset(at), SLOT_BYTES / LINE_BYTES);
        }
        match self.ensure_chunk(inode).and_then(|()| self.take_generation(inode)) {
            Ok(generation) => Ok((number, generation.max(1))),
            Err(error) => {
                self.core.space.inodes(self)?.release(&self.thread, number).map_err(storage::error)?;
                Err(error)
            }
        }
    }

    /// A free number in any chunk of the inode table that exists: for a volume without room for another chunk. The search
    /// begins where the last one, of whichever thread, ended: the table of a large volume has millions of chunks.
    #[cold]
    #[inline(never)]
    fn take_number_with_slot(&self) -> Result<Option<Held>> {
        let (disk, numbers) = (self.disk(), self.core.space.inodes(self)?);
        let (slots, chunks) = (disk.geometry().slots_per_chunk(), disk.geometry().chunks);
        let hint = self.thread.word(self.core.places.control(CONTROL_FREE_SLOTS)).map_err(shared_error)?;
        let search = || -> Result<Option<Held>> {
            let first = hint.load(Ordering::Relaxed) % chunks.max(1);
            for chunk in (first..chunks).chain(0..first) {
                if disk.chunk_block(chunk)?.is_some()
                    && let Some(number) =
                        numbers.allocate_within(&self.thread, chunk * slots, slots).map_err(storage::error)?
                {
                    if chunk != first {
                        hint.store(chunk, Ordering::Relaxed);
                    }
                    return Ok(Some(number));
                }
            }
            Ok(None)
        };
        match search()? {
            None if self.release_numbers()? => search(),
            found => Ok(found),
        }
    }

    /// The generation of a number that this thread has in hand.
    fn take_generation(&self, inode: u32) -> Result<u32> {
        let record = self.record(inode)?;
        let known = record.next_generation();
        if known != 0 {
            // Known to nobody any more: whoever dies with the number in hand may leave a slot behind.
            record.set_next_generation(0);
            return Ok(known);
        }
        match self.disk().slot(inode)? {
            Slot::Free { generation } => Ok(generation),
            _ => Err(Error::damaged("a free inode's slot is in use", self.disk().slot_at(inode)?.unwrap_or(0))),
        }
    }

    /// Writes the log pages that an inode begins with, durably.
    fn write_first_pages(&self, newborn: &mut Newborn, new: &NewNode<'_>, time: i64) -> Result<()> {
        let disk = self.disk();
        let owned = Owned { key: disk.key(), inode: newborn.inode, generation: newborn.generation };
        let epoch = disk.epoch();
        let target = if new.file_type == FileType::Symlink { new.target } else { &[] };
        let pieces = target.chunks(TARGET_BYTES_MAX).map(Payload::Target);
        let xattrs = new.xattrs.iter().map(|&(name, value)| Payload::Xattr { name, value: Some(value) });
        let mut buffer = [0; ENTRY_BYTES_MAX];
        let mut commit = disk.begin();
        let (mut sequence, mut line, mut block, mut used) = (1, LINES, 0, 0);
        for payload in pieces.chain(xattrs) {
            if line + payload.lines() > LINES {
                let no_room = Error::because(Errno::NOSPC, "the attributes that an inode begins with are too large");
                let page = newborn.pages.get_mut(used).filter(|_| payload.lines() <= ENTRY_LINES).ok_or(no_room)?;
                let held = self.allocate_block(None)?;
                let previous = core::mem::replace(&mut block, held.extent().start);
                *page = Some(held);
                used += 1;
                line = 1;
                let header = PageHeader {
                    inode: newborn.inode,
                    generation: newborn.generation,
                    epoch,
                    first_sequence: sequence,
                };
                commit.write(block * BLOCK_BYTES, &header.encode(disk.key()))?;
                commit.zero(block * BLOCK_BYTES + LINE_BYTES, BLOCK_BYTES - LINE_BYTES)?;
                let link = Link { block, epoch }.encode();
                match previous {
                    0 => newborn.birth.head = link,
                    previous => commit.store(previous * BLOCK_BYTES + AT_NEXT, link)?,
                }
            }
            let bytes = entry::encode(owned, epoch, sequence, time, &payload, &mut buffer);
            commit.write(block * BLOCK_BYTES + line as u64 * LINE_BYTES, bytes)?;
            sequence += 1;
            line += payload.lines();
        }
        let _ = commit.fence();
        Ok(())
    }

    /// Gives back what was taken for an inode that will not be.
    pub(crate) fn miscarry(&self, newborn: Newborn) -> Result<()> {
        for page in newborn.pages.into_iter().flatten() {
            self.release_held(page)?;
        }
        self.core.space.inodes(self)?.release(&self.thread, newborn.number).map_err(storage::error)
    }

    /// Stores the slot.
    pub(crate) fn write_slot(&self, commit: &mut Commit<'_>, newborn: &Newborn, links: u64, parent: u32) -> Result<()> {
        let at = self.slot_word(newborn.inode, 0)?;
        let bytes = newborn.birth.encode(self.disk().key(), newborn.inode, newborn.generation, links, parent);
        commit.write_lines(at, &bytes)
    }

    /// Fills the record of an inode whose birth is durable.
    pub(crate) fn born(&self, newborn: Newborn, links: u64, parent: u32) -> Result<()> {
        let record = self.record(newborn.inode)?;
        if newborn.birth.head == 0 {
            record.drop_index();
            record.set_state(&InodeState::new(&newborn.birth));
            record.set_links(links);
            record.set_parent(parent);
            record.set_tail(None);
            record.set_sequence(1);
            record.set_log_use(0, 0);
            record.set_target_place(None);
            record.set_collection(Collection::default());
            for set in [
                Record::set_unsealed_start,
                Record::set_unsealed_end,
                Record::set_blocks,
                Record::set_entries,
                Record::set_xattrs,
                Record::forget_maps,
                Record::set_last_snapshot,
            ] {
                set(&record, 0);
            }
            let state =
                State { generation: newborn.generation, file_type: newborn.birth.file_type, has_access_list: false };
            record.set_loaded(state);
        } else {
            // Its log is loaded as any other, at first use.
            record.unload();
        }
        for page in newborn.pages.into_iter().flatten() {
            self.keep_held(page)?;
        }
        self.core.space.inodes(self)?.keep(&self.thread, newborn.number);
        Ok(())
    }

    /// Makes the chunk of the inode table that holds `inode`, if it is not there yet.
    fn ensure_chunk(&self, inode: u32) -> Result<()> {
        let disk = self.disk();
        let geometry = disk.geometry();
        let (chunk, _) = geometry.slot_of(inode as u64);
        let lock_at = self.core.places.control(CONTROL_CHUNK_LOCK);
        // Whoever makes it has the lock until it is durable: seen before, it could be lost with what is made in it.
        if disk.chunk_block(chunk)?.is_some() && self.thread.read_begin(lock_at).map_err(shared_error)?.is_some() {
            return Ok(());
        }
        let lock = self.thread.lock(lock_at).map_err(shared_error)?;
        if disk.chunk_block(chunk)?.is_none() {
            self.make_chunks(chunk)?;
        }
        lock.unlock();
        Ok(())
    }

    /// Makes a chunk, and as many of those that follow it as there is room for in one run: two fences for all.
    fn make_chunks(&self, first: u64) -> Result<()> {
        let disk = self.disk();
        let geometry = disk.geometry();
        let length = geometry.chunk_blocks;
        let mut wanted = 1;
        while wanted * length < CHUNKS_AT_ONCE
            && first + wanted < geometry.chunks
            && disk.chunk_block(first + wanted)?.is_none()
        {
            wanted += 1;
        }
        // A few blocks are always to be had: one chunk will do.
        let held = match self.allocate_blocks((wanted * length) as u32, None) {
            Ok(held) if held.extent().count as u64 >= length => held,
            Ok(held) => {
                self.release_held(held)?;
                self.allocate_run(length as u32)?
            }
            Err(error) => return Err(error),
        };
        let block = held.extent().start;
        let made = (held.extent().count as u64 / length).min(wanted);
        let mut zeros = disk.begin();
        zeros.zero(block * BLOCK_BYTES, made * length * BLOCK_BYTES)?;
        // Unnoticed [fence]: recovery frees slots that do not prove themselves, whatever the blocks held before. It need not have to.
        let _ = zeros.fence();
        let mut commit = disk.begin();
        for index in 0..made {
            let (chunk, place) = (first + index, block + index * length);
            commit.store(geometry.map_word_at(chunk), slot::encode_map_word(disk.key(), chunk, place))?;
        }
        let _ = commit.fence();
        let space = self.core.space.blocks(self)?;
        space.keep_first(&self.thread, held, (made * length) as u32).map_err(storage::error)
    }

    /// `count` blocks in one run: where the free space is in pieces, wherever one is found.
    fn allocate_run(&self, count: u32) -> Result<Held> {
        match self.allocate_blocks(count, None) {
            Ok(held) if held.extent().count >= count => return Ok(held),
            Ok(held) => self.release_held(held)?,
            Err(error) => return Err(error),
        }
        let search = || self.core.space.blocks(self)?.allocate_run(&self.thread, count).map_err(storage::error);
        // What was given up can be what a run lacks.
        search()
            .or_else(|error| if self.empty_limbo()? | self.take_others_limbo()? { search() } else { Err(error) })
            .map_err(|error| match error.errno() {
                Errno::NOSPC => Error::because(Errno::NOSPC, "no run of free blocks is long enough for more inodes"),
                _ => error,
            })
    }

    /// Cancels what was prepared when an operation fails before its commit.
    pub(crate) fn cancel_with(&self, prepared: Prepared, error: Error) -> Error {
        match self.cancel(prepared) {
            Ok(()) => error,
            Err(worse) => worse,
        }
    }
}
