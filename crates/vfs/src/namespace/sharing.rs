//! Sharing blocks between open files: `FICLONE`, `FICLONERANGE`, `FIDEDUPERANGE`, and copies that share what they can.
//!
//! May touch: the file system through the trait. Relies on the caller for what descriptors say: that the source was opened
//! for reading and the target for writing, and that both are of this file system.

use super::Namespace;
use crate::{Errno, Error, FileType, InodeFlags, NodeId, Permissions, Result};

/// Shorter copies are done byte by byte: what is shared is copied once more when it is written to.
pub const SHARED_COPY_BYTES_MIN: u64 = 64 << 10;

const fn fail<T>(errno: Errno) -> Result<T> {
    Err(Error::new(errno))
}

impl Namespace<'_, '_> {
    /// The target of a clone or copy: a regular file that may be changed.
    fn changeable_file(&self, node: NodeId) -> Result<Permissions> {
        let known = self.fs().permissions(node)?;
        match known.file_type {
            // Who opened an append-only file without O_APPEND did so before it was one (`generic_remap_checks` asks for no more).
            FileType::Regular if known.flags.contains(InodeFlags::IMMUTABLE) => fail(Errno::PERM),
            FileType::Regular => Ok(known),
            FileType::Directory => fail(Errno::ISDIR),
            _ => fail(Errno::INVAL),
        }
    }

    /// Makes a range of `to` share the blocks of `from`; with length 0 up to the end of `from`. Errors are those of
    /// [`FileSystem::clone_range`](crate::FileSystem::clone_range), `EPERM` for a target that may not be changed.
    pub fn clone_range(
        &self,
        from: NodeId,
        from_offset_bytes: u64,
        to: NodeId,
        to_offset_bytes: u64,
        length_bytes: u64,
    ) -> Result<()> {
        let known = self.changeable_file(to)?;
        let source = self.fs().attributes(from)?;
        match source.file_type {
            FileType::Regular => {}
            FileType::Directory => return fail(Errno::ISDIR),
            _ => return fail(Errno::INVAL),
        }
        let length_bytes = match length_bytes {
            0 => source.size_bytes.checked_sub(from_offset_bytes).ok_or(Error::new(Errno::INVAL))?,
            length_bytes => length_bytes,
        };
        self.fs().clone_range(from, from_offset_bytes, to, to_offset_bytes, length_bytes)?;
        if length_bytes > 0 { self.drop_privileges(to, &known) } else { Ok(()) }
    }

    /// Shares as much of a copy as can be shared; returns how many bytes that was. 0 says that the copy is to be done byte
    /// by byte, whatever the reason.
    pub fn copy_by_sharing(
        &self,
        from: NodeId,
        from_offset_bytes: u64,
        to: NodeId,
        to_offset_bytes: u64,
        length_bytes: u64,
    ) -> u64 {
        let attempt = || {
            let known = self.changeable_file(to)?;
            let (source, target) = (self.fs().attributes(from)?, self.fs().attributes(to)?);
            let unit = u64::from(source.block_bytes.max(1));
            let length_bytes = length_bytes.min(source.size_bytes.saturating_sub(from_offset_bytes));
            let whole = from_offset_bytes.is_multiple_of(unit) && to_offset_bytes.is_multiple_of(unit);
            if !whole || length_bytes < SHARED_COPY_BYTES_MIN || source.file_type != FileType::Regular {
                return Ok(0);
            }
            let ends = from_offset_bytes + length_bytes == source.size_bytes
                && to_offset_bytes.saturating_add(length_bytes) >= target.size_bytes;
            let length_bytes = if ends { length_bytes } else { length_bytes - length_bytes % unit };
            self.fs().clone_range(from, from_offset_bytes, to, to_offset_bytes, length_bytes)?;
            self.drop_privileges(to, &known)?;
            Ok::<u64, Error>(length_bytes)
        };
        attempt().unwrap_or(0)
    }

    /// Makes two ranges share blocks if they hold the same bytes; returns whether they did. Nothing else changes, times
    /// included. `EINVAL` for a range beyond an end, `EPERM` for a target that this caller could not write to; one that may only be
    /// appended to is allowed, since it stays as it is.
    pub fn dedupe_range(
        &self,
        from: NodeId,
        from_offset_bytes: u64,
        to: NodeId,
        to_offset_bytes: u64,
        length_bytes: u64,
    ) -> Result<bool> {
        let known = self.fs().permissions(to)?;
        match known.file_type {
            FileType::Regular if known.flags.contains(InodeFlags::IMMUTABLE) => return fail(Errno::PERM),
            FileType::Regular => {}
            FileType::Directory => return fail(Errno::ISDIR),
            _ => return fail(Errno::INVAL),
        }
        if !self.is_owner(&known) && self.check_access(to, super::Access::WRITE).is_err() {
            return fail(Errno::PERM);
        }
        self.fs().dedupe_range(from, from_offset_bytes, to, to_offset_bytes, length_bytes)
    }
}
