//! Appending up to the end of one block, as whoever writes records, lines or blocks does call after call: behind the end inside
//! of the block that the file ends in, or into the block of the volume that follows the file's last. What
//! [`crate::write_entry`] does for all writes with an entry, in the same order, less all that these two do not need.

use crate::disk::access_error;
use crate::format::entry::{Extents as EntryExtents, FileExtent, Payload};
use crate::format::{BLOCK_BYTES, Tag};
use crate::index::Mapping;
use crate::ops::{Locked, Op, index_error};
use crate::space::Held;
use gannet_media::{DataHash, MediumOffset};
use gannet_vfs::usermem::Source;
use gannet_vfs::{Error, Result};

impl<'s> Op<'s> {
    /// Writes from the file's end to `end`, within one block. `None`, and nothing has happened, where that needs more than is
    /// done here.
    #[inline(always)]
    pub(crate) fn write_end(&self, locked: &Locked<'s>, end: u64, from: &mut Source<'_>) -> Result<Option<usize>> {
        if locked.record.size().is_multiple_of(BLOCK_BYTES) {
            self.write_next_block(locked, end, from)
        } else {
            self.write_last_block(locked, end, from)
        }
    }

    /// In the block that the file ends in, unless it has none there or shares it.
    #[inline(always)]
    fn write_last_block(&self, locked: &Locked<'s>, end: u64, from: &mut Source<'_>) -> Result<Option<usize>> {
        let size = locked.record.size();
        let extents = self.extents(locked.inode, &locked.record);
        let mapping = extents.lookup(size / BLOCK_BYTES).map_err(index_error)?;
        let Mapping::Blocks { block, shared: false, .. } = mapping else { return Ok(None) };
        let medium_at = block * BLOCK_BYTES + size % BLOCK_BYTES;
        self.append_bytes(locked, medium_at, end, from, None, || ())?;
        self.seal_mapped(locked);
        Ok(Some((end - size) as usize))
    }

    /// In the block behind the file's last, if that is free and nothing is allocated behind the end of the file.
    #[inline(always)]
    fn write_next_block(&self, locked: &Locked<'s>, end: u64, from: &mut Source<'_>) -> Result<Option<usize>> {
        let record = &locked.record;
        let size = record.size();
        let file_block = size / BLOCK_BYTES;
        let extents = self.extents(locked.inode, record);
        let Some(map_end) = extents.end_at(file_block).map_err(index_error)? else { return Ok(None) };
        let block = map_end.next_block();
        let Some(held) = self.allocate_at(block)? else { return Ok(None) };
        let extent = FileExtent { file_block, block, count: 1, shared: false };
        self.append_bytes(locked, block * BLOCK_BYTES, end, from, Some((held, extent)), || {
            map_end.grow();
            record.set_blocks(record.blocks().wrapping_add(1));
        })?;
        Ok(Some((end - size) as usize))
    }

    /// Stores the bytes, and an entry with their hash that says where a fresh block is mapped, if there is one, under one fence;
    /// then publishes: first the map, by `publish`, the size last.
    #[inline(always)]
    fn append_bytes(
        &self,
        locked: &Locked<'s>,
        medium_at: u64,
        end: u64,
        from: &mut Source<'_>,
        fresh: Option<(Held, FileExtent)>,
        publish: impl FnOnce(),
    ) -> Result<()> {
        let record = &locked.record;
        let size = record.size();
        let time = locked.now();
        let (held, extent) = fresh.unzip();
        let payload = |hash| Payload::Write { size_bytes: end, hash, extents: EntryExtents::List(extent.as_slice()) };
        let prepared = match self.prepare_sealed(locked, payload(None).lines()) {
            Ok(prepared) => prepared,
            Err(error) => return Err(self.give_back(held, error)),
        };

        let mut commit = self.disk().begin();
        let owned = locked.owned(self.core);
        let mut hash = DataHash::new(owned.key.seed(Tag::Data, owned.inode as u64, owned.generation as u64));
        let began = from.clone();
        let (at, count) = (MediumOffset(medium_at), (end - size) as usize);
        if let Err(error) = self.disk().medium().write_from_user_hashed(at, from, count, &mut hash) {
            *from = began;
            let error = self.cancel_with(prepared, access_error(error));
            return Err(self.give_back(held, error));
        }
        if let Err(error) = self.write_line(&mut commit, locked, &prepared, time, &payload(Some(hash.value()))) {
            return Err(self.give_back(held, error));
        }
        let durable = commit.fence();

        if let Some(held) = held {
            self.keep_held(held);
        }
        publish();
        record.touch(time);
        self.publish_change(locked, prepared, &durable);
        record.set_unsealed_start(size);
        record.set_unsealed_end(end);
        record.set_size(end);
        Ok(())
    }

    /// Gives back the block of an append that comes to nothing.
    #[cold]
    #[inline(never)]
    fn give_back(&self, held: Option<Held>, error: Error) -> Error {
        match held.map_or(Ok(()), |held| self.release_held(held)) {
            Ok(()) => error,
            Err(worse) => worse,
        }
    }
}
