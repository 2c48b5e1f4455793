//! An inode in the making: its number, what it begins with, its slot and its record, until it is announced.
//!
//! May touch: what nobody can name yet, the number's slot and record among it, without the inode's lock.

use crate::disk::{Commit, Durable};
use crate::format::entry::{self, ENTRY_BYTES_MAX, Owned, Payload, TARGET_BYTES_MAX};
use crate::format::page::{AT_NEXT, ENTRY_LINES, LINES, Link, PageHeader};
use crate::format::slot::{Birth, SLOT_BYTES, Slot};
use crate::format::{BLOCK_BYTES, LINE_BYTES};
use crate::ops::Op;
use crate::record::{Collection, Record, State};
use crate::replay::InodeState;
use crate::space::Held;
use crate::storage;
use gannet_media::MediumOffset;
use gannet_vfs::{Errno, Error, FileType, NewNode, NodeId, Result};

/// A number that is free, in the thread's hands, with a slot and a record.
struct Taken {
    number: Held,
    generation: u32,
    /// Where the slot stands on the medium, in bytes.
    slot_at: u64,
}

/// An inode in the making: its number and what it is born with.
pub(crate) struct Newborn {
    taken: Taken,
    birth: Birth,
    /// Log pages that are written before the slot; most inodes begin with none.
    pages: Vec<Held>,
}

/// Most log pages that an inode begins with: a long symlink target, or inherited ACLs.
const FIRST_PAGES_MAX: usize = 4;
/// The longest symlink target, in bytes (`PATH_MAX` less the NUL).
const LINK_BYTES_MAX: usize = 4095;

impl Newborn {
    /// Its name to others.
    pub(crate) const fn node(&self) -> NodeId {
        NodeId::new(self.inode() as u64, self.generation())
    }

    /// Its number.
    pub(crate) const fn inode(&self) -> u32 {
        self.taken.number.extent().start as u32
    }

    /// Its generation.
    pub(crate) const fn generation(&self) -> u32 {
        self.taken.generation
    }

    /// What it is born with.
    pub(crate) const fn birth(&self) -> Birth {
        self.birth
    }
}

impl<'s> Op<'s> {
    /// Takes a number and prepares all that stands before the slot: durable, and nobody's yet.
    // Inlined: what it returns is used word by word, and need not be put together in memory.
    #[inline(always)]
    pub(crate) fn conceive(&self, new: &NewNode<'_>, time: i64, near: Option<u32>) -> Result<Newborn> {
        if new.file_type == FileType::Symlink && (new.target.is_empty() || new.target.len() > LINK_BYTES_MAX) {
            let errno = if new.target.is_empty() { Errno::NOENT } else { Errno::NAMETOOLONG };
            return Err(Error::new(errno));
        }
        let taken = match self.take_ready_number()? {
            Some(number) => self.make_usable(number)?,
            None => self.take_pooled_number(near)?,
        };
        let mut birth = Birth {
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
        let mut pages = Vec::new();
        if new.file_type == FileType::Symlink || !new.xattrs.is_empty() {
            match self.write_first_pages(&taken, new, time, &mut pages) {
                Ok(head) => birth.head = head,
                Err(error) => return Err(self.miscarry_with(Newborn { taken, birth, pages }, error)),
            }
        }
        Ok(Newborn { taken, birth, pages })
    }

    /// A free number from the pool; near another one if there is one free.
    #[inline(never)]
    fn take_pooled_number(&self, near: Option<u32>) -> Result<Taken> {
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
    #[inline(always)]
    fn make_usable(&self, number: Held) -> Result<Taken> {
        let inode = number.extent().start as u32;
        let slot_at = match self.ensure_slot(inode) {
            Ok(slot_at) => slot_at,
            Err(error) => return Err(self.give_number_back(number, error)),
        };
        self.disk().medium().expect_lines(MediumOffset(slot_at), SLOT_BYTES / LINE_BYTES);
        match self.take_generation(inode) {
            Ok(generation) => Ok(Taken { number, generation: generation.max(1), slot_at }),
            Err(error) => Err(self.give_number_back(number, error)),
        }
    }

    #[cold]
    #[inline(never)]
    fn give_number_back(&self, number: Held, error: Error) -> Error {
        let released = self.core.space.inodes(self);
        match released.and_then(|numbers| numbers.release(&self.thread, number).map_err(storage::error)) {
            Ok(()) => error,
            Err(worse) => worse,
        }
    }

    /// The generation of a number that this thread has in hand.
    #[inline(always)]
    fn take_generation(&self, inode: u32) -> Result<u32> {
        let record = self.record(inode)?;
        let known = record.next_generation();
        if known != 0 {
            // Known to nobody any more: whoever dies with the number in hand may leave a slot behind.
            record.set_next_generation(0);
            return Ok(known);
        }
        self.generation_in_slot(inode)
    }

    #[cold]
    #[inline(never)]
    fn generation_in_slot(&self, inode: u32) -> Result<u32> {
        match self.disk().slot(inode)? {
            Slot::Free { generation } => Ok(generation),
            _ => Err(Error::damaged("a free inode's slot is in use", self.disk().slot_at(inode)?.unwrap_or(0))),
        }
    }

    /// Writes the log pages that an inode begins with, durably, and returns the link word that leads to them.
    #[inline(never)]
    fn write_first_pages(&self, taken: &Taken, new: &NewNode<'_>, time: i64, pages: &mut Vec<Held>) -> Result<u64> {
        let disk = self.disk();
        let (inode, generation) = (taken.number.extent().start as u32, taken.generation);
        // While its slot says that it is free: from then on somebody who comes with what the number was before may be loading it.
        self.record(inode)?.unload();
        let owned = Owned { key: disk.key(), inode, generation };
        let epoch = disk.epoch();
        let target = if new.file_type == FileType::Symlink { new.target } else { &[] };
        let pieces = target.chunks(TARGET_BYTES_MAX).map(Payload::Target);
        let xattrs = new.xattrs.iter().map(|&(name, value)| Payload::Xattr { name, value: Some(value) });
        let mut buffer = [0; ENTRY_BYTES_MAX];
        let mut commit = disk.begin();
        let (mut sequence, mut line, mut block, mut head) = (1, LINES, 0, 0);
        for payload in pieces.chain(xattrs) {
            if line + payload.lines() > LINES {
                let no_room = Error::because(Errno::NOSPC, "the attributes that an inode begins with are too large");
                if pages.len() == FIRST_PAGES_MAX || payload.lines() > ENTRY_LINES {
                    return Err(no_room);
                }
                let held = self.allocate_block(None)?;
                let previous = core::mem::replace(&mut block, held.extent().start);
                pages.push(held);
                line = 1;
                let header = PageHeader { inode, generation, epoch, first_sequence: sequence };
                commit.write(block * BLOCK_BYTES, &header.encode(disk.key()))?;
                commit.zero(block * BLOCK_BYTES + LINE_BYTES, BLOCK_BYTES - LINE_BYTES)?;
                let link = Link { block, epoch }.encode();
                match previous {
                    0 => head = link,
                    previous => commit.store(previous * BLOCK_BYTES + AT_NEXT, link)?,
                }
            }
            let bytes = entry::encode(owned, epoch, sequence, time, &payload, &mut buffer);
            commit.write(block * BLOCK_BYTES + line as u64 * LINE_BYTES, bytes)?;
            sequence += 1;
            line += payload.lines();
        }
        let _ = commit.fence();
        Ok(head)
    }

    /// Gives back what was taken for an inode that will not be, because of `error`.
    #[cold]
    #[inline(never)]
    pub(crate) fn miscarry_with(&self, newborn: Newborn, error: Error) -> Error {
        let released = newborn.pages.into_iter().try_for_each(|page| self.discard_page(page));
        match released {
            Ok(()) => self.give_number_back(newborn.taken.number, error),
            Err(worse) => worse,
        }
    }

    /// Stores the slot.
    #[inline(always)]
    pub(crate) fn write_slot(&self, commit: &mut Commit<'_>, newborn: &Newborn, links: u64, parent: u32) -> Result<()> {
        let (inode, generation) = (newborn.inode(), newborn.generation());
        let bytes = newborn.birth.encode(self.disk().key(), inode, generation, links, parent);
        commit.write_lines(newborn.taken.slot_at, &bytes)
    }

    /// Fills the record, which does not count before [`Op::announce`]: who dies in between leaves one that is to be loaded. Who
    /// comes with what the number was before may load it meanwhile, under its lock, and stores the same.
    #[inline(always)]
    pub(crate) fn fill_record(&self, newborn: &Newborn, links: u64, parent: u32) -> Result<()> {
        let record = self.record(newborn.inode())?;
        if newborn.birth.head != 0 {
            // Its log is loaded as any other, at first use.
            return Ok(());
        }
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
        Ok(())
    }

    /// An inode whose birth is durable, and whose record is filled, is one like any other.
    #[inline(always)]
    pub(crate) fn announce(&self, newborn: Newborn, _durable: &Durable) -> Result<()> {
        if newborn.birth.head == 0 {
            let (generation, file_type) = (newborn.generation(), newborn.birth.file_type);
            self.record(newborn.inode())?.set_loaded(State { generation, file_type, has_access_list: false });
        }
        for page in newborn.pages {
            self.keep_held(page);
        }
        newborn.taken.number.keep(&self.thread);
        Ok(())
    }
}
