//! Handing out a file's blocks to be mapped in place, and making stores through maps durable.
//!
//! A mapped block is pinned for its participant: it is neither given to another file nor replaced by copy-on-write until
//! the map is given back or its process is gone.

use crate::format::BLOCK_BYTES;
use crate::index::{FileExtent, Mapping};
use crate::ops::{Locked, Op, shared_error};
use crate::record::{MAPPED, MAPPED_WRITABLY};
use crate::shares::Shares;
use crate::space::{Extent as SpaceExtent, PinOwner};
use crate::storage;
use gannet_media::MediumOffset;
use gannet_vfs::{Errno, Error, Extent, ExtentKind, MapAccess, MapToken, MappedExtent, NodeId, Result};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU64, Ordering};

static NEXT_TOKEN: AtomicU64 = AtomicU64::new(1);

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
        let descriptor = medium.descriptor().ok_or(Error::new(Errno::NODEV))?.as_raw_fd();
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
        if !medium.is_read_only() {
            // A map shows what is written later: its blocks must be written in place.
            self.unshare(&locked, offset / BLOCK_BYTES..end.min(size_end) / BLOCK_BYTES)?;
            self.unshare_tail(&locked)?;
        }
        if access == MapAccess::Write {
            self.fill_holes(&locked, offset / BLOCK_BYTES, end.min(size_end) / BLOCK_BYTES)?;
            self.seal(&locked)?;
            record.set_maps(record.maps() | MAPPED | MAPPED_WRITABLY);
        } else {
            record.set_maps(record.maps() | MAPPED);
        }
        self.zero_past_end(&locked)?;
        let owner = PinOwner {
            participant: self.thread.session().participant().index,
            token: NEXT_TOKEN.fetch_add(1, Ordering::Relaxed) as u32,
        };
        let space = self.core.space.blocks(self)?;
        let mut at = offset;
        while at < end {
            let (count, block) = match self.mapping(locked.inode, record, at)? {
                Mapping::Blocks { block, count, .. } => (count, Some(block)),
                Mapping::Hole { count } => (count, None),
            };
            // Blocks behind the end may exist (fallocate); pages there are holes to a map, as they hold nothing.
            let limit = if at < size_end { size_end.min(end) } else { end };
            let count = count.min((limit - at) / BLOCK_BYTES).min((1 << 24) - 1);
            let block = block.filter(|_| at < size_end);
            if let Some(block) = block {
                let extent = SpaceExtent { start: block, count: count as u32 };
                if let Err(error) = space.pin(&self.thread, owner, extent) {
                    space.unpin(&self.thread, owner).map_err(storage::error)?;
                    return Err(storage::error(error));
                }
            }
            sink(&MappedExtent {
                file_offset_bytes: at,
                length_bytes: count * BLOCK_BYTES,
                descriptor: block.map(|_| descriptor),
                descriptor_offset_bytes: block.map_or(0, |block| medium.file_offset(MediumOffset(block * BLOCK_BYTES))),
            });
            at += count * BLOCK_BYTES;
        }
        locked.guard.unlock();
        Ok(MapToken(owner.token as u64))
    }

    /// What the last block holds behind the end of the file becomes zeros: a map shows it.
    fn zero_past_end(&self, locked: &Locked<'s>) -> Result<()> {
        let size = locked.record.size();
        if size.is_multiple_of(BLOCK_BYTES) {
            return Ok(());
        }
        if let Mapping::Blocks { block, .. } = self.mapping(locked.inode, &locked.record, size)? {
            let mut commit = self.disk().begin();
            commit.zero(block * BLOCK_BYTES + size % BLOCK_BYTES, BLOCK_BYTES - size % BLOCK_BYTES)?;
            let _ = commit.fence();
        }
        Ok(())
    }

    /// Gives a pin back.
    pub(crate) fn unmap(&self, token: MapToken) -> Result<()> {
        let owner = PinOwner { participant: self.thread.session().participant().index, token: token.0 as u32 };
        self.core.space.blocks(self)?.unpin(&self.thread, owner).map_err(storage::error)
    }

    /// Makes stores through maps durable. Everything else is already, on persistent memory.
    pub(crate) fn sync(&self, node: NodeId) -> Result<()> {
        let maps = self.read_record(node, |record, _| Ok(record.maps()))?;
        if maps & MAPPED_WRITABLY != 0 {
            let locked = self.lock(node)?;
            let mut commit = self.disk().begin();
            let mut outcome = Ok(());
            self.extents(locked.inode, &locked.record)
                .for_each_from(0, &mut |extent| {
                    outcome = commit.flush(extent.block * BLOCK_BYTES, extent.count * BLOCK_BYTES);
                    outcome.is_ok()
                })
                .map_err(crate::ops::index_error)?;
            outcome?;
            let _ = commit.fence();
            locked.guard.unlock();
        }
        self.sync_medium()
    }

    /// On a disk file, asks the kernel to write back.
    pub(crate) fn sync_medium(&self) -> Result<()> {
        self.disk().medium().sync().map_err(|_| Error::because(Errno::IO, "the medium cannot be synced"))
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
