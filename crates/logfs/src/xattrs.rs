//! Extended attributes: entries of the inode's log, found through the inode's index. A value that does not fit an entry stands
//! in blocks of its own, durable before the entry that refers to them.

use crate::disk::{Disk, Durable};
use crate::format::BLOCK_BYTES;
use crate::format::entry::{
    ENTRY_BYTES_MAX, Extents, FileExtent, LargeValue, Owned, Payload, XATTR_BYTES_MAX, XattrValue,
};
use crate::format::page::LinePlace;
use crate::format::slot::Slot;
use crate::format::superblock::FEATURE_LARGE_XATTRS;
use crate::load::ACCESS_LIST;
use crate::log::{self, Met};
use crate::ops::{Locked, Op, index_error};
use crate::record::State;
use crate::replay::XATTR_KEYS;
use crate::space::{Extent, Held};
use gannet_vfs::{Errno, Error, NodeId, Result, XattrMode};

/// The longest name of an extended attribute, in bytes.
const NAME_BYTES_MAX: usize = 255;
/// The longest value that Linux allows, in bytes (`XATTR_SIZE_MAX`).
const VALUE_BYTES_MAX: usize = 64 << 10;

/// Most pieces that a value's blocks lie in: each needs a hand while it is written.
pub(crate) const VALUE_EXTENTS_MAX: usize = 12;

/// Where the value of an attribute stands that has blocks of its own.
#[derive(Clone, Copy)]
pub(crate) struct ValueBlocks {
    extents: [FileExtent; VALUE_EXTENTS_MAX],
    count: usize,
}

impl Default for ValueBlocks {
    fn default() -> Self {
        Self { extents: [FileExtent { file_block: 0, block: 0, count: 0, shared: false }; VALUE_EXTENTS_MAX], count: 0 }
    }
}

impl ValueBlocks {
    fn push(&mut self, block: u64, count: u32) {
        let file_block = self.count.checked_sub(1).map_or(0, |last| {
            let last = self.extents[last];
            last.file_block + last.count as u64
        });
        self.extents[self.count] = FileExtent { file_block, block, count, shared: false };
        self.count += 1;
    }
}

/// Blocks that were taken for a value.
#[derive(Default)]
struct NewValue {
    list: ValueBlocks,
    held: [Option<Held>; VALUE_EXTENTS_MAX],
}

impl NewValue {
    fn release(&mut self, op: &Op<'_>) -> Result<()> {
        self.held.iter_mut().filter_map(Option::take).try_for_each(|held| op.release_held(held))
    }
}

/// Whether the blocks of a value are as many as it needs, in order, and on the volume.
pub(crate) fn is_sound_value(disk: &Disk, value: &LargeValue<'_>) -> bool {
    let mut blocks = 0;
    let in_order = value.extents.len() <= VALUE_EXTENTS_MAX
        && value.extents.iter().all(|extent| {
            let follows = extent.file_block == blocks && !extent.shared;
            blocks += extent.count as u64;
            follows && extent.count > 0 && disk.geometry().is_allocatable_run(extent.block, extent.count as u64)
        });
    in_order && value.bytes as usize <= VALUE_BYTES_MAX && blocks == (value.bytes as u64).div_ceil(BLOCK_BYTES)
}

/// Reads a value out of its blocks. `EUCLEAN` if it is not what was written: also where it was replaced meanwhile, so that who reads without
/// the inode's lock believes neither value nor error before he has looked whether it was.
pub(crate) fn read_value(disk: &Disk, owned: Owned, value: &LargeValue<'_>, into: &mut [u8]) -> Result<()> {
    let first = value.extents.iter().next().map_or(0, |extent| extent.block);
    let damaged = || Error::damaged("value of an extended attribute", first * BLOCK_BYTES);
    if !is_sound_value(disk, value) || into.len() != value.bytes as usize {
        return Err(damaged());
    }
    let mut rest = &mut *into;
    for extent in value.extents.iter() {
        let (part, after) = rest.split_at_mut(rest.len().min(extent.count as usize * BLOCK_BYTES as usize));
        disk.read(extent.block * BLOCK_BYTES, part)?;
        rest = after;
    }
    if owned.value_checksum(into) == value.checksum { Ok(()) } else { Err(damaged()) }
}

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
            let owned = Owned { key: self.disk().key(), inode: node.number as u32, generation: node.generation };
            self.xattr_entry(LinePlace(place), |_, found| {
                let length = match found {
                    XattrValue::Inline(found) => found.len(),
                    XattrValue::Large(found) => found.bytes as usize,
                };
                if value.is_empty() {
                    return Ok(length);
                }
                let room = value.get_mut(..length).ok_or(Error::new(Errno::RANGE))?;
                match found {
                    XattrValue::Inline(found) => room.copy_from_slice(found),
                    XattrValue::Large(found) => read_value(self.disk(), owned, &found, room)?,
                }
                Ok(length)
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
        let old = match tree.get(at).map_err(index_error)?.filter(|_| exists) {
            Some(place) => self.value_blocks(LinePlace(place))?,
            None => ValueBlocks::default(),
        };
        let mut nodes = tree.reserve(&[at]).map_err(index_error)?;
        let large = value.filter(|value| name.len() + value.len() > XATTR_BYTES_MAX);
        if large.is_some() {
            self.need_feature(FEATURE_LARGE_XATTRS)?;
        }
        let mut blocks = match large {
            Some(value) => self.write_value(value)?,
            None => NewValue::default(),
        };
        let payload = match large {
            Some(value) => Payload::LargeXattr {
                name,
                value: LargeValue {
                    bytes: value.len() as u32,
                    checksum: locked.owned(self.core).value_checksum(value),
                    extents: Extents::List(&blocks.list.extents[..blocks.list.count]),
                },
            },
            None => Payload::Xattr { name, value },
        };
        let prepared = match self.prepare(&locked, payload.lines(), true) {
            Ok(prepared) => prepared,
            Err(error) => {
                blocks.release(self)?;
                return Err(error);
            }
        };
        let time = locked.now();
        let mut commit = self.disk().begin();
        self.write_entry(&mut commit, &locked, &prepared, time, &payload, &mut [0; ENTRY_BYTES_MAX])?;
        let durable = commit.fence();
        let followed = match value {
            Some(_) => tree.insert(at, prepared.place().0, &mut nodes),
            None => tree.remove(at),
        };
        drop(nodes);
        let record = &locked.record;
        let count = record.xattrs();
        record.set_xattrs(if value.is_none() { count.saturating_sub(1) } else { count + u64::from(!exists) });
        record.set_changed(time);
        record.set_access_fresh(0);
        if name == ACCESS_LIST {
            record.set_loaded(State { has_access_list: value.is_some(), ..locked.state });
        }
        // While the commit hand still says what decides about them.
        for held in blocks.held.iter_mut().filter_map(Option::take) {
            self.keep_held(held);
        }
        self.publish_entry(&locked, prepared, &durable);
        self.or_count_again(self.free_value(&old, &durable));
        if self.follows(&locked, followed.map(drop).map_err(index_error)) {
            self.collect_some(&locked);
        }
        locked.guard.unlock();
        Ok(())
    }

    /// Writes a value into blocks of its own, durably; nobody refers to them yet.
    fn write_value(&self, value: &[u8]) -> Result<NewValue> {
        let mut new = NewValue::default();
        let mut commit = self.disk().begin();
        let mut rest = value;
        let mut goal = None;
        while !rest.is_empty() {
            let number = new.list.count;
            let wanted = rest.len().div_ceil(BLOCK_BYTES as usize) as u32;
            let held = match self.allocate_blocks(wanted, goal) {
                Ok(held) if number < VALUE_EXTENTS_MAX => held,
                Ok(held) => {
                    self.release_held(held)?;
                    new.release(self)?;
                    return Err(Error::because(Errno::NOSPC, "free space is in too many pieces for the value"));
                }
                Err(error) => {
                    new.release(self)?;
                    return Err(error);
                }
            };
            let Extent { start, count } = held.extent();
            new.held[number] = Some(held);
            new.list.push(start, count);
            let (part, after) = rest.split_at(rest.len().min(count as usize * BLOCK_BYTES as usize));
            commit.write(start * BLOCK_BYTES, part)?;
            rest = after;
            goal = Some(start + count as u64);
        }
        let _ = commit.fence();
        Ok(new)
    }

    /// The blocks of an attribute's value, if it has any of its own.
    pub(crate) fn value_blocks(&self, place: LinePlace) -> Result<ValueBlocks> {
        self.xattr_entry(place, |_, value| {
            let mut blocks = ValueBlocks::default();
            if let XattrValue::Large(value) = value {
                for extent in value.extents.iter().take(VALUE_EXTENTS_MAX) {
                    blocks.push(extent.block, extent.count);
                }
            }
            blocks
        })
    }

    /// Frees the blocks of a value that nothing durable refers to any more.
    pub(crate) fn free_value(&self, blocks: &ValueBlocks, durable: &Durable) -> Result<()> {
        for extent in &blocks.extents[..blocks.count] {
            self.free_run(extent.block, extent.count as u64, durable)?;
        }
        Ok(())
    }

    /// Frees the values of all attributes of an inode that is freed.
    pub(crate) fn free_values(&self, locked: &Locked<'s>, durable: &Durable) -> Result<()> {
        if locked.record.xattrs() == 0 {
            return Ok(());
        }
        let mut outcome = Ok(());
        self.tree(locked.inode, &locked.record)
            .for_each_from(XATTR_KEYS, &mut |_, place| {
                outcome = self.value_blocks(LinePlace(place)).and_then(|blocks| self.free_value(&blocks, durable));
                outcome.is_ok()
            })
            .map_err(index_error)?;
        outcome
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
