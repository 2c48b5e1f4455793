//! The copies of one write with an entry: the caller's bytes, what stood around them in blocks that are replaced, zeros where
//! the file had none; hashed in the order in which recovery does it.

use crate::disk::access_error;
use crate::format::BLOCK_BYTES;
use crate::format::entry::FileExtent;
use crate::index::Mapping;
use crate::ops::{Locked, Op, index_error};
use crate::read::left_of;
use gannet_media::{DataHash, MediumOffset};
use gannet_vfs::Result;
use gannet_vfs::usermem::Source;

/// Copies of one write with an entry, in the order in which recovery hashes them.
pub(crate) struct Writer<'w, 'o, 's, 'u> {
    pub(crate) op: &'o Op<'s>,
    pub(crate) at: u64,
    pub(crate) end: u64,
    pub(crate) from: &'w mut Source<'u>,
    pub(crate) hash: &'w mut DataHash,
}

impl Writer<'_, '_, '_, '_> {
    /// The tail of the old last block: zeros up to the write, then its first bytes.
    pub(crate) fn tail(&mut self, tail: Option<u64>, size: u64, size_after: u64) -> Result<()> {
        let Some(block) = tail.filter(|_| size_after > size) else { return Ok(()) };
        let tail_end = size_after.min((size / BLOCK_BYTES + 1) * BLOCK_BYTES);
        let medium_at = block * BLOCK_BYTES + size % BLOCK_BYTES;
        self.range(medium_at, size, tail_end)
    }

    /// One run of fresh blocks: what was there before the write, the write, what was there behind it.
    pub(crate) fn fresh(&mut self, locked: &Locked<'_>, extent: FileExtent, size_after: u64) -> Result<()> {
        let start = extent.file_block * BLOCK_BYTES;
        let stop = (start + extent.count as u64 * BLOCK_BYTES).min(size_after);
        let medium_at = extent.block * BLOCK_BYTES;
        let head_end = self.at.clamp(start, stop);
        self.old(locked, medium_at, start, head_end)?;
        let body_end = self.end.clamp(head_end, stop);
        self.range(medium_at + (head_end - start), head_end, body_end)?;
        self.old(locked, medium_at + (body_end - start), body_end, stop)
    }

    /// Bytes `from..to` of the file that the write itself gives, zeros where it begins later.
    fn range(&mut self, medium_at: u64, from: u64, to: u64) -> Result<()> {
        let medium = self.op.disk().medium();
        let gap = self.at.clamp(from, to) - from;
        if gap > 0 {
            medium.zero_hashed(MediumOffset(medium_at), gap, self.hash).map_err(access_error)?;
        }
        let count = to - from - gap;
        if count > 0 {
            medium
                .write_from_user_hashed(MediumOffset(medium_at + gap), self.from, count as usize, self.hash)
                .map_err(access_error)?;
        }
        Ok(())
    }

    /// Bytes `from..to` of the file as they were: copied from the block they were in, zeros in a hole or past the end.
    fn old(&mut self, locked: &Locked<'_>, medium_at: u64, from: u64, to: u64) -> Result<()> {
        let medium = self.op.disk().medium();
        let mut from_at = from;
        while from_at < to {
            let size = locked.record.size();
            let inside = size.clamp(from_at, to) - from_at;
            let (source, count) = if inside == 0 {
                (None, to - from_at)
            } else {
                match self
                    .op
                    .extents(locked.inode, &locked.record)
                    .lookup(from_at / BLOCK_BYTES)
                    .map_err(index_error)?
                {
                    Mapping::Hole { count } => (None, left_of(count, from_at).min(inside)),
                    Mapping::Blocks { block, count, .. } => {
                        (Some(block * BLOCK_BYTES + from_at % BLOCK_BYTES), left_of(count, from_at).min(inside))
                    }
                }
            };
            let target = MediumOffset(medium_at + (from_at - from));
            match source {
                None => medium.zero_hashed(target, count, self.hash),
                Some(source) => medium.copy_within_hashed(MediumOffset(source), target, count, self.hash),
            }
            .map_err(access_error)?;
            from_at += count;
        }
        Ok(())
    }
}
