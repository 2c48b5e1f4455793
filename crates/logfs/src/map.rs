//! Handing out a file's blocks to be mapped in place.
//!
//! A mapped block is pinned for its participant: it is neither given to another file nor replaced by copy-on-write until
//! the map is given back or its process is gone. Until then the map is in the table of `mapped`, by which `sync` knows what
//! to write back.

use crate::format::BLOCK_BYTES;
use crate::index::{EXTENT_BLOCKS_MAX, FileExtent, Mapping};
use crate::mapped::{MAPPED, MAPPED_WRITABLY, MOVED, MapEntry, MapTable, SHIFTED};
use crate::ops::{Locked, Op, shared_error};
use crate::places::{CONTROL_LEFT_BY_MAPS, CONTROL_PINNED};
use crate::shares::Shares;
use crate::space::{Extent as SpaceExtent, PinOwner};
use crate::storage;
use crate::whole_map::behind_shift;
use gannet_media::MediumOffset;
use gannet_vfs::{Errno, Error, Extent, ExtentKind, MapAccess, MapToken, MappedExtent, NodeId, Result};
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU64, Ordering};

static NEXT_TOKEN: AtomicU64 = AtomicU64::new(1);
const TOKEN_MASK: u64 = (1 << PinOwner::TOKEN_BITS) - 1;
/// Holes of no more blocks than this get theirs when somebody maps them to read.
const WATCHED_MAX: u64 = (256 << 20) / BLOCK_BYTES;
// A token of the trait's says which entry of the table the map has, too.
const _: () = assert!(crate::mapped::ENTRIES_MAX <= 1 << (64 - PinOwner::TOKEN_BITS));

impl<'s> Op<'s> {
    /// See `FileSystem::map`.
    pub(crate) fn map(
        &self,
        node: NodeId,
        access: MapAccess,
        offset: u64,
        length: u64,
        sink: &mut dyn FnMut(&MappedExtent),
    ) -> Result<MapToken> {
        let medium = self.disk().medium();
        medium.descriptor().ok_or(Error::new(Errno::NODEV))?;
        if !offset.is_multiple_of(BLOCK_BYTES) || length == 0 {
            return Err(Error::new(Errno::INVAL));
        }
        let end = offset.checked_add(length).ok_or(Error::new(Errno::OVERFLOW))?.next_multiple_of(BLOCK_BYTES);
        let locked = self.lock(node)?;
        if locked.state.file_type != gannet_vfs::FileType::Regular {
            return Err(Error::new(Errno::NODEV));
        }
        let record = &locked.record;
        let size_end = record.size().next_multiple_of(BLOCK_BYTES);
        // What a forked child inherits is there already.
        let is_new = access != MapAccess::Inherited;
        if is_new && !medium.is_read_only() {
            // A map shows what is written later: its blocks must be written in place.
            self.unshare(&locked, offset / BLOCK_BYTES..end.min(size_end) / BLOCK_BYTES)?;
            self.unshare_tail(&locked)?;
        }
        let writable = !matches!(access, MapAccess::Read | MapAccess::Watch);
        let (from, to) = (offset / BLOCK_BYTES, end.min(size_end) / BLOCK_BYTES);
        match access {
            MapAccess::Write => self.fill_holes(&locked, from, to)?,
            MapAccess::Watch if !medium.is_read_only() && self.hole_blocks(&locked, from, to)? <= WATCHED_MAX => {
                match self.fill_holes(&locked, from, to) {
                    Err(error) if error.errno() == Errno::NOSPC => {}
                    filled => filled?,
                }
            }
            _ => {}
        }
        if matches!(access, MapAccess::Write | MapAccess::WriteAroundHoles) {
            self.seal(&locked)?;
        }
        record.change_maps(|word| word.with(MAPPED | if writable { MAPPED_WRITABLY } else { 0 }));
        if is_new && !medium.is_read_only() {
            self.zero_past_end(&locked)?;
        } else if access == MapAccess::Read && medium.is_read_only() {
            self.check_past_end(&locked)?;
        }
        let owner = PinOwner {
            participant: self.thread.session().participant().index,
            token: NEXT_TOKEN.fetch_add(1, Ordering::Relaxed) & TOKEN_MASK,
        };
        let pinned = self.thread.word(self.core.places.control(CONTROL_PINNED)).map_err(shared_error)?;
        if pinned.load(gannet_shm::Ordering::Relaxed) == 0 {
            pinned.store(1, gannet_shm::Ordering::Release);
        }
        let node = (locked.inode, locked.state.generation);
        let blocks = offset / BLOCK_BYTES..end / BLOCK_BYTES;
        let told = self.pin_and_tell(&locked, owner, offset..end, sink);
        let added = told.and_then(|()| self.map_table()?.add(owner, node, &blocks, writable));
        let index = match added {
            Ok(index) => index,
            Err(error) => {
                self.core.space.blocks(self)?.unpin(&self.thread, owner).map_err(storage::error)?;
                return Err(error);
            }
        };
        locked.guard.unlock();
        Ok(MapToken(index << PinOwner::TOKEN_BITS | owner.token))
    }

    /// Pins the blocks of a range of bytes and tells where they are; what was pinned before an error stays so.
    fn pin_and_tell(
        &self,
        locked: &Locked<'s>,
        owner: PinOwner,
        range: Range<u64>,
        sink: &mut dyn FnMut(&MappedExtent),
    ) -> Result<()> {
        let (medium, space) = (self.disk().medium(), self.core.space.blocks(self)?);
        let size_end = locked.record.size().next_multiple_of(BLOCK_BYTES);
        let Range { start: mut at, end } = range;
        while at < end {
            let (count, block) = match self.mapping(locked.inode, &locked.record, at)? {
                // No more than one pin can have; a hole is one piece, however long it is.
                Mapping::Blocks { block, count, .. } => (count.min(EXTENT_BLOCKS_MAX), Some(block)),
                Mapping::Hole { count } => (count, None),
            };
            // Blocks behind the end may exist (fallocate); pages there are holes to a map, as they hold nothing.
            let limit = if at < size_end { size_end.min(end) } else { end };
            let count = count.min((limit - at) / BLOCK_BYTES);
            let block = block.filter(|_| at < size_end);
            let source = block.and_then(|block| medium.source(MediumOffset(block * BLOCK_BYTES)));
            // What one descriptor has; the rest comes next.
            let count = source.map_or(count, |source| count.min(source.length / BLOCK_BYTES));
            if let Some(block) = block {
                let extent = SpaceExtent { start: block, count: count as u32 };
                space.pin(&self.thread, owner, extent).map_err(storage::error)?;
            }
            let place = block.map(|block| medium.address_of(MediumOffset(block * BLOCK_BYTES), count * BLOCK_BYTES));
            let address = place.and_then(|place| place.ok()).map_or(0, |place| place.addr());
            sink(&MappedExtent {
                file_offset_bytes: at,
                length_bytes: count * BLOCK_BYTES,
                descriptor: source.map(|source| source.descriptor.as_raw_fd()),
                descriptor_offset_bytes: source.map_or(0, |source| source.offset),
                descriptor_file: source.map_or((0, 0), |source| source.file),
                address,
            });
            at += count * BLOCK_BYTES;
        }
        Ok(())
    }

    /// What the last block holds behind the end of the file becomes zeros: a map shows it.
    fn zero_past_end(&self, locked: &Locked<'s>) -> Result<()> {
        let size = locked.record.size();
        if size.is_multiple_of(BLOCK_BYTES) {
            return Ok(());
        }
        if let Mapping::Blocks { block, .. } = self.mapping(locked.inode, &locked.record, size)? {
            let mut commit = self.disk().begin();
            // Unnoticed [flush]: after a crash nobody has it mapped, and whatever shows these bytes writes them anew: the next map,
            // and what makes the file grow.
            commit.zero(block * BLOCK_BYTES + size % BLOCK_BYTES, BLOCK_BYTES - size % BLOCK_BYTES)?;
            commit.without_fence();
        }
        Ok(())
    }

    /// Where it cannot be made zeros, it must be zeros already.
    fn check_past_end(&self, locked: &Locked<'s>) -> Result<()> {
        let size = locked.record.size();
        let rest = size % BLOCK_BYTES;
        if rest != 0
            && let Mapping::Blocks { block, .. } = self.mapping(locked.inode, &locked.record, size)?
        {
            let mut held = [0; BLOCK_BYTES as usize];
            let behind = &mut held[rest as usize..];
            self.disk().read(block * BLOCK_BYTES + rest, behind)?;
            if behind.iter().any(|byte| *byte != 0) {
                return Err(Error::because(Errno::ROFS, "behind the end of the file its last block is not zeros"));
            }
        }
        Ok(())
    }

    /// Which files are mapped.
    pub(crate) fn map_table(&self) -> Result<MapTable<'s>> {
        MapTable::of(&self.core.places, self.thread.arena())
    }

    /// Gives a pin back; nothing is mapped there any more.
    pub(crate) fn unmap(&self, token: MapToken) -> Result<()> {
        let (index, token) = (token.0 >> PinOwner::TOKEN_BITS, token.0 & TOKEN_MASK);
        let owner = PinOwner { participant: self.thread.session().participant().index, token };
        let table = self.map_table()?;
        let space = self.core.space.blocks(self)?;
        let Some(entry) = table.find(owner, index) else {
            return space.unpin(&self.thread, owner).map_err(storage::error);
        };
        // An inode that has no name nor user left is not locked: nothing is to be known of it.
        let locked = self.lock(NodeId::new(entry.inode as u64, entry.generation)).ok();
        self.leave_map(&table, &entry)?;
        space.unpin(&self.thread, owner).map_err(storage::error)?;
        if let Some(locked) = locked {
            // Nobody maps it meanwhile.
            if !table.is_mapped(entry.inode, entry.generation) {
                locked.record.change_maps(|word| word.without(MAPPED | MAPPED_WRITABLY));
            }
            locked.guard.unlock();
        }
        Ok(())
    }

    /// Takes out a map that nothing is stored through any more. What was is noted for `sync` first.
    fn leave_map(&self, table: &MapTable<'_>, entry: &MapEntry) -> Result<()> {
        let record = self.record(entry.inode)?;
        if entry.writable && record.last_generation() == entry.generation {
            let left = self.thread.word(self.core.places.control(CONTROL_LEFT_BY_MAPS)).map_err(shared_error)?;
            left.store(1, gannet_shm::Ordering::Relaxed);
            record.change_maps(|word| word.with_left(entry.blocks.clone()));
        }
        table.remove(entry);
        Ok(())
    }

    /// See `FileSystem::give_maps`. The inodes are not locked: what is mapped stays so while this process has it.
    pub(crate) fn give_maps(&self, child: u32) -> Result<()> {
        let parent = self.thread.session().participant().index;
        let table = self.map_table()?;
        let mut outcome = Ok(());
        table.for_each(&mut |entry| {
            if entry.owner.participant == parent && outcome.is_ok() {
                let owner = PinOwner { participant: child, token: entry.owner.token };
                let node = (entry.inode, entry.generation);
                outcome = table.add(owner, node, &entry.blocks, entry.writable).map(drop);
            }
        });
        outcome?;
        self.core.space.blocks(self)?.copy_pins(&self.thread, parent, child).map_err(storage::error)
    }

    /// See `FileSystem::take_back_maps`.
    pub(crate) fn take_back_maps(&self, child: u32) -> Result<()> {
        self.drop_maps_of(child)?;
        self.core.space.blocks(self)?.drop_pins_of(&self.thread, child).map_err(storage::error)
    }

    /// Takes out the maps of a process that is gone. The inodes' locks are not taken.
    pub(crate) fn drop_maps_of(&self, participant: u32) -> Result<()> {
        let table = self.map_table()?;
        let mut outcome = Ok(());
        table.for_each(&mut |entry| {
            if entry.owner.participant == participant && outcome.is_ok() {
                outcome = self.leave_map(&table, &entry);
            }
        });
        outcome?;
        table.forget(participant);
        Ok(())
    }

    /// Notes that blocks move within a file: what stands at `file_block` and behind, by `distance`. What maps show moves with them, so where
    /// it is in the file is no longer known.
    pub(crate) fn note_shift(&self, locked: &Locked<'s>, file_block: u64, distance: u64, down: bool) {
        let record = &locked.record;
        if let Some(to) = record.map_said_to() {
            record.set_map_said(record.map_said_from(), Some(behind_shift(to, file_block, distance, down)));
        }
        locked.record.change_maps(|word| {
            let word = word.with(SHIFTED);
            let word = if word.has(MAPPED_WRITABLY) { word.with(MOVED) } else { word };
            if word.left().is_some() { word.with_left(0..crate::index::FILE_BLOCK_LIMIT) } else { word }
        });
    }

    /// Tells the extents of a range.
    pub(crate) fn file_extents(
        &self,
        node: NodeId,
        offset: u64,
        length: u64,
        sink: &mut dyn FnMut(&Extent) -> bool,
    ) -> Result<()> {
        let locked = self.lock(node)?;
        self.regular(locked.state)?;
        let shares = self.shares()?;
        let end = offset.saturating_add(length);
        let mut outcome = Ok(());
        self.extents(locked.inode, &locked.record)
            .for_each_from(offset / BLOCK_BYTES, &mut |extent| {
                outcome = tell_extent(&shares, extent, end, sink);
                matches!(outcome, Ok(()))
            })
            .map_err(crate::ops::index_error)?;
        outcome.or_else(|stop| stop.map_or(Ok(()), Err))
    }

    /// A counter or flag of the whole volume.
    pub(crate) fn control(&self, which: u64) -> Result<u64> {
        let word = self.thread.word(self.core.places.control(which)).map_err(shared_error)?;
        Ok(word.load(gannet_shm::Ordering::Relaxed))
    }
}

/// Tells an extent of a file, in parts where some of it is shared and some is not. `Err(None)` ends the telling.
fn tell_extent(
    shares: &Shares<'_>,
    extent: FileExtent,
    end: u64,
    sink: &mut dyn FnMut(&Extent) -> bool,
) -> std::result::Result<(), Option<Error>> {
    let mut told = 0;
    while told < extent.count {
        let (shared, run) = match extent.shared {
            true => shares.run(extent.block + told, extent.count - told).map_err(Some)?,
            false => (false, extent.count),
        };
        let start = (extent.file_block + told) * BLOCK_BYTES;
        let part = Extent {
            file_offset_bytes: start,
            medium_offset_bytes: (extent.block + told) * BLOCK_BYTES,
            length_bytes: run * BLOCK_BYTES,
            kind: if shared { ExtentKind::Shared } else { ExtentKind::Data },
        };
        if start >= end || !sink(&part) {
            return Err(None);
        }
        told += run;
    }
    Ok(())
}
