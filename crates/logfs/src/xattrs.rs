//! Extended attributes: entries of the inode's log, found through the inode's index.

use crate::format::entry::{ENTRY_BYTES_MAX, Owned, Payload, XATTR_BYTES_MAX};
use crate::format::page::LinePlace;
use crate::format::slot::Slot;
use crate::load::ACCESS_LIST;
use crate::log::{self, Met};
use crate::ops::{Op, index_error};
use crate::record::State;
use crate::replay::XATTR_KEYS;
use gannet_vfs::{Errno, Error, NodeId, Result, XattrMode};

/// The longest name of an extended attribute, in bytes.
const NAME_BYTES_MAX: usize = 255;
/// The longest value that Linux allows, in bytes (`XATTR_SIZE_MAX`).
const VALUE_BYTES_MAX: usize = 64 << 10;

impl<'s> Op<'s> {
    /// Reads an attribute; see `FileSystem::xattr`.
    pub(crate) fn xattr(&self, node: NodeId, name: &[u8], value: &mut [u8]) -> Result<usize> {
        self.read_record(node, |record, _| {
            if record.xattrs() == 0 {
                return Err(Error::new(Errno::NODATA));
            }
            let tree = self.tree(node.number as u32, record);
            let (at, true) = self.xattr_place(&tree, name)? else { return Err(Error::new(Errno::NODATA)) };
            let place = tree.get(at).map_err(index_error)?.ok_or(Error::new(Errno::NODATA))?;
            self.xattr_entry(LinePlace(place), |_, found| {
                if value.is_empty() {
                    return Ok(found.len());
                }
                let room = value.get_mut(..found.len()).ok_or(Error::new(Errno::RANGE))?;
                room.copy_from_slice(found);
                Ok(found.len())
            })?
        })
    }

    /// Tells all names.
    pub(crate) fn list_xattrs(&self, node: NodeId, sink: &mut dyn FnMut(&[u8])) -> Result<()> {
        // Under the lock: names are told as they are read.
        let locked = self.lock(node)?;
        let tree = self.tree(locked.inode, &locked.record);
        let mut failed = Ok(());
        if locked.record.xattrs() > 0 {
            tree.for_each_from(XATTR_KEYS, &mut |_, place| {
                failed = self.xattr_entry(LinePlace(place), |name, _| sink(name));
                failed.is_ok()
            })
            .map_err(index_error)?;
        }
        failed
    }

    /// Sets an attribute.
    pub(crate) fn set_xattr(&self, node: NodeId, name: &[u8], value: &[u8], mode: XattrMode) -> Result<()> {
        if name.is_empty() || name.len() > NAME_BYTES_MAX {
            return Err(Error::new(Errno::RANGE));
        }
        if value.len() > VALUE_BYTES_MAX {
            return Err(Error::new(Errno::TOOBIG));
        }
        if name.len() + value.len() > XATTR_BYTES_MAX {
            return Err(Error::because(Errno::NOSPC, "an extended attribute has at most about 3900 bytes"));
        }
        self.change_xattr(node, name, Some(value), mode)
    }

    /// Removes an attribute.
    pub(crate) fn remove_xattr(&self, node: NodeId, name: &[u8]) -> Result<()> {
        self.change_xattr(node, name, None, XattrMode::Replace)
    }

    fn change_xattr(&self, node: NodeId, name: &[u8], value: Option<&[u8]>, mode: XattrMode) -> Result<()> {
        let locked = self.lock(node)?;
        let tree = self.tree(locked.inode, &locked.record);
        let (at, exists) = self.xattr_place(&tree, name)?;
        match (mode, exists) {
            (XattrMode::Create, true) => return Err(Error::new(Errno::EXIST)),
            (XattrMode::Replace, false) => return Err(Error::new(Errno::NODATA)),
            _ => {}
        }
        let payload = Payload::Xattr { name, value };
        let mut nodes = tree.reserve(&[at]).map_err(index_error)?;
        let prepared = self.prepare(&locked, payload.lines(), true)?;
        let time = locked.now();
        let mut commit = self.disk().begin();
        self.write_entry(&mut commit, &locked, &prepared, time, &payload, &mut [0; ENTRY_BYTES_MAX])?;
        let durable = commit.fence();
        match value {
            Some(_) => tree.insert(at, prepared.place().0, &mut nodes),
            None => tree.remove(at),
        }
        .map_err(index_error)?;
        drop(nodes);
        let record = &locked.record;
        let count = record.xattrs();
        record.set_xattrs(if value.is_none() { count.saturating_sub(1) } else { count + u64::from(!exists) });
        record.set_changed(time);
        if name == ACCESS_LIST {
            record.set_loaded(State { has_access_list: value.is_some(), ..locked.state });
        }
        self.publish_entry(&locked, prepared, &durable)?;
        self.collect_some(&locked)?;
        locked.guard.unlock();
        Ok(())
    }

    /// Where a symbolic link leads.
    pub(crate) fn read_link(&self, node: NodeId, target: &mut [u8]) -> Result<usize> {
        self.read_record(node, |record, state| {
            if state.file_type != gannet_vfs::FileType::Symlink {
                return Err(Error::new(Errno::INVAL));
            }
            let place = record.target_place().ok_or(Error::damaged("symbolic link without a target", node.number))?;
            let mut block = [0; crate::format::BLOCK_BYTES as usize];
            let bytes = self.disk().read_entry(place, &mut block)?;
            let found = crate::format::entry::peek_target(bytes)
                .ok_or(Error::damaged("symbolic link target", place.offset_bytes()))?;
            if (found.len() as u64) < record.size() {
                return self.read_long_link(node, target);
            }
            let count = found.len().min(target.len());
            target[..count].copy_from_slice(&found[..count]);
            Ok(count)
        })
    }

    /// A target that does not fit one page stands in several entries, which are read in order.
    fn read_long_link(&self, node: NodeId, target: &mut [u8]) -> Result<usize> {
        let inode = node.number as u32;
        let Slot::Used { generation, birth, .. } = self.disk().slot(inode)? else {
            return Err(Error::new(Errno::STALE));
        };
        let owned = Owned { key: self.disk().key(), inode, generation };
        let mut used = 0;
        log::walk(self.disk(), owned, birth.head, &mut |met| {
            if let Met::Entry { entry, .. } = met
                && let Payload::Target(piece) = entry.payload
            {
                let count = piece.len().min(target.len() - used);
                target[used..used + count].copy_from_slice(&piece[..count]);
                used += count;
            }
            Ok(())
        })?;
        Ok(used)
    }
}
