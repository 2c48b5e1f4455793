//! What the lock of the file system guards: inodes and space; and the operations on single inodes.

use std::sync::Arc;

use gannet_usermem::{Destination, Source};
use gannet_vfs::shared::Shared;
use gannet_vfs::{
    AllocateMode, AttributeChange, Attributes, Errno, Error, ModeChange, NodeId, Result, Time, TimeChange, WriteFlags,
    WritePosition, Written, XattrMode,
};

use crate::data::{BLOCK_BYTES, FILE_BYTES_MAX, Space};
use crate::table::{Content, Table};

/// The longest value of an extended attribute, and the room for all of an inode's, in bytes.
const XATTR_BYTES_MAX: usize = 65_536;
/// The longest name of an extended attribute, in bytes.
const XATTR_NAME_BYTES_MAX: usize = 255;

/// The file system without its lock.
#[derive(Debug)]
pub(crate) struct Tree {
    pub(crate) table: Table,
    pub(crate) space: Space,
    pub(crate) shared: Arc<Shared>,
}

impl Tree {
    /// Frees an inode that has neither name nor user. Called whenever the last of one kind may have gone.
    pub(crate) fn release(&mut self, node: NodeId) {
        if self.table.get(node).is_ok_and(|inode| inode.links == 0)
            && !self.shared.in_use(node)
            && let Some(inode) = self.table.take(node.number)
            && let Content::Regular(data) = inode.content
        {
            self.space.blocks_used -= data.blocks();
        }
    }

    pub(crate) fn set_attributes(&mut self, node: NodeId, change: &AttributeChange) -> Result<Attributes> {
        let (inode, now) = (self.table.get_mut(node)?, Time::now());
        if let Some(size_bytes) = change.size_bytes {
            inode.data_mut(Errno::INVAL)?.resize(size_bytes, &mut self.space)?;
            inode.modified = now;
        }
        inode.owner.user = change.user.unwrap_or(inode.owner.user);
        inode.owner.group = change.group.unwrap_or(inode.owner.group);
        match change.mode {
            ModeChange::Keep => {}
            ModeChange::Set(mode) => inode.mode = mode & 0o7777,
            ModeChange::DropSetId => inode.drop_set_id(),
        }
        match change.accessed {
            TimeChange::Keep => {}
            TimeChange::Now => *inode.accessed.get_mut() = now.0,
            TimeChange::Set(time) => *inode.accessed.get_mut() = time.0,
        }
        match change.modified {
            TimeChange::Keep => {}
            TimeChange::Now => inode.modified = now,
            TimeChange::Set(time) => inode.modified = time,
        }
        inode.flags = change.flags.unwrap_or(inode.flags);
        inode.changed = now;
        Ok(inode.attributes(node))
    }

    pub(crate) fn xattr(&self, node: NodeId, name: &[u8], value: &mut [u8]) -> Result<usize> {
        let found = self.table.get(node)?.xattrs.get(name).ok_or(Error::new(Errno::NODATA))?;
        if !value.is_empty() {
            value.get_mut(..found.len()).ok_or(Error::new(Errno::RANGE))?.copy_from_slice(found);
        }
        Ok(found.len())
    }

    pub(crate) fn set_xattr(&mut self, node: NodeId, name: &[u8], value: &[u8], mode: XattrMode) -> Result<()> {
        let inode = self.table.get_mut(node)?;
        if name.is_empty() || name.len() > XATTR_NAME_BYTES_MAX {
            return Err(Error::new(Errno::RANGE));
        }
        if value.len() > XATTR_BYTES_MAX {
            return Err(Error::new(Errno::TOOBIG));
        }
        match (mode, inode.xattrs.contains_key(name)) {
            (XattrMode::Create, true) => return Err(Error::new(Errno::EXIST)),
            (XattrMode::Replace, false) => return Err(Error::new(Errno::NODATA)),
            _ => {}
        }
        let others = inode.xattrs.iter().filter(|other| **other.0 != *name);
        let used_bytes: usize = others.map(|(name, value)| name.len() + value.len()).sum();
        // One value of the greatest size fits always, several small ones fit as long as they sum up to less.
        if used_bytes > 0 && used_bytes + name.len() + value.len() > XATTR_BYTES_MAX {
            return Err(Error::because(Errno::NOSPC, "the extended attributes of an inode are limited to 64 KiB"));
        }
        inode.xattrs.insert(name.into(), value.into());
        inode.changed = Time::now();
        Ok(())
    }

    pub(crate) fn remove_xattr(&mut self, node: NodeId, name: &[u8]) -> Result<()> {
        let inode = self.table.get_mut(node)?;
        inode.xattrs.remove(name).ok_or(Error::new(Errno::NODATA))?;
        inode.changed = Time::now();
        Ok(())
    }

    pub(crate) fn read(&self, node: NodeId, offset_bytes: u64, into: &mut Destination<'_>) -> Result<usize> {
        let inode = self.table.get(node)?;
        let count_bytes = inode.data(Errno::INVAL)?.read(offset_bytes, into)?;
        Ok(count_bytes)
    }

    pub(crate) fn write(
        &mut self,
        node: NodeId,
        position: WritePosition,
        from: &mut Source<'_>,
        flags: WriteFlags,
    ) -> Result<Written> {
        let inode = self.table.get_mut(node)?;
        let data = inode.data_mut(Errno::INVAL)?;
        let offset_bytes = match position {
            WritePosition::At(offset_bytes) => offset_bytes,
            WritePosition::Append => data.size_bytes(),
        };
        let count_bytes = data.write(offset_bytes, from, &mut self.space)?;
        if count_bytes > 0 {
            inode.touch_modified(Time::now());
            if flags.contains(WriteFlags::DROP_SET_ID) {
                inode.drop_set_id();
            }
        }
        Ok(Written { offset_bytes, count_bytes })
    }

    pub(crate) fn allocate(&mut self, node: NodeId, mode: AllocateMode, offset: u64, length: u64) -> Result<()> {
        let inode = self.table.get_mut(node)?;
        inode.data_mut(Errno::NODEV)?.allocate(mode, offset, length, &mut self.space)?;
        inode.touch_modified(Time::now());
        Ok(())
    }

    /// A clone holds copies, not shared blocks: what counts here is the content.
    pub(crate) fn clone_range(
        &mut self,
        from: NodeId,
        from_offset: u64,
        to: NodeId,
        to_offset: u64,
        length: u64,
    ) -> Result<()> {
        let invalid = Err(Error::new(Errno::INVAL));
        let source = self.table.get(from)?.data(Errno::INVAL)?;
        let target_size = self.table.get(to)?.data(Errno::INVAL)?.size_bytes();
        if !from_offset.is_multiple_of(BLOCK_BYTES) || !to_offset.is_multiple_of(BLOCK_BYTES) {
            return invalid;
        }
        let Some(source_end) = from_offset.checked_add(length).filter(|&end| end <= source.size_bytes()) else {
            return invalid;
        };
        let Some(target_end) = to_offset.checked_add(length).filter(|&end| end <= FILE_BYTES_MAX) else {
            return Err(Error::new(Errno::FBIG));
        };
        // Only the end of the source may be a part of a block, and only where it becomes the end of the target.
        if !length.is_multiple_of(BLOCK_BYTES) && (source_end != source.size_bytes() || target_end < target_size) {
            return invalid;
        }
        if from == to && from_offset < target_end && to_offset < source_end {
            return invalid;
        }
        if length == 0 {
            return Ok(());
        }
        let count = length.div_ceil(BLOCK_BYTES);
        let blocks = source.copy_blocks(from_offset / BLOCK_BYTES, count);
        let target = self.table.get_mut(to)?;
        let data = target.data_mut(Errno::INVAL)?;
        data.replace_blocks(to_offset / BLOCK_BYTES, count, blocks, target_end, &mut self.space)?;
        target.touch_modified(Time::now());
        Ok(())
    }

    /// Whether two ranges hold the same bytes, under the rules of sharing them.
    pub(crate) fn are_equal(
        &self,
        from: NodeId,
        from_offset: u64,
        to: NodeId,
        to_offset: u64,
        length: u64,
    ) -> Result<bool> {
        let source = self.table.get(from)?.data(Errno::INVAL)?;
        let target = self.table.get(to)?.data(Errno::INVAL)?;
        let end = |offset: u64, size: u64| offset.checked_add(length).filter(|&end| end <= size);
        let (Some(source_end), Some(target_end)) =
            (end(from_offset, source.size_bytes()), end(to_offset, target.size_bytes()))
        else {
            return Err(Error::new(Errno::INVAL));
        };
        let whole = |value: u64| value.is_multiple_of(BLOCK_BYTES);
        let at_ends = source_end == source.size_bytes() && target_end == target.size_bytes();
        let length = if at_ends { length } else { length / BLOCK_BYTES * BLOCK_BYTES };
        let overlap = from == to && from_offset < to_offset + length && to_offset < from_offset + length;
        if !whole(from_offset) || !whole(to_offset) || overlap {
            return Err(Error::new(Errno::INVAL));
        }
        let (mut one, mut two) = (vec![0; BLOCK_BYTES as usize], vec![0; BLOCK_BYTES as usize]);
        for at in (0..length).step_by(BLOCK_BYTES as usize) {
            let size = (length - at).min(BLOCK_BYTES) as usize;
            source.read(from_offset + at, &mut Destination::from_slice(&mut one[..size]))?;
            target.read(to_offset + at, &mut Destination::from_slice(&mut two[..size]))?;
            if one[..size] != two[..size] {
                return Ok(false);
            }
        }
        Ok(true)
    }
}
