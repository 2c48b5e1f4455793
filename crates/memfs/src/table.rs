//! Inodes and the table that finds them by number and generation.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicI64, Ordering};

use gannet_vfs::{Attributes, Errno, Error, FileType, InodeFlags, NewNode, NodeId, Owner, Result, Time};

use crate::data::{BLOCK_BYTES, Data};
use crate::directory::Directory;

/// What an inode holds, by type.
#[derive(Debug)]
pub(crate) enum Content {
    Regular(Data),
    Directory(Directory),
    Symlink(Box<[u8]>),
    /// Devices, pipes, sockets.
    Special,
}

/// An inode.
#[derive(Debug)]
pub(crate) struct Inode {
    pub(crate) file_type: FileType,
    pub(crate) mode: u32,
    pub(crate) owner: Owner,
    pub(crate) links: u64,
    /// Made without a name and not linked yet: a link is allowed although there are none.
    pub(crate) linkable: bool,
    pub(crate) device: u64,
    pub(crate) flags: InodeFlags,
    /// Atomic because reading changes it, and readers share the lock.
    pub(crate) accessed: AtomicI64,
    pub(crate) modified: Time,
    pub(crate) changed: Time,
    pub(crate) created: Time,
    pub(crate) xattrs: BTreeMap<Box<[u8]>, Box<[u8]>>,
    pub(crate) content: Content,
}

impl Inode {
    /// Builds an inode; `parent` is used by directories only.
    pub(crate) fn new(new: &NewNode<'_>, parent: u64, now: Time) -> Result<Self> {
        let content = match new.file_type {
            FileType::Regular => Content::Regular(Data::default()),
            FileType::Directory => Content::Directory(Directory::new(parent)),
            FileType::Symlink => match new.target.len() {
                0 => return Err(Error::new(Errno::NOENT)),
                1..=4095 => Content::Symlink(new.target.into()),
                _ => return Err(Error::new(Errno::NAMETOOLONG)),
            },
            FileType::Fifo | FileType::CharacterDevice | FileType::BlockDevice | FileType::Socket => Content::Special,
        };
        let mode = if new.file_type == FileType::Symlink { 0o777 } else { new.mode & 0o7777 };
        let device =
            if matches!(new.file_type, FileType::CharacterDevice | FileType::BlockDevice) { new.device } else { 0 };
        Ok(Self {
            file_type: new.file_type,
            mode,
            owner: new.owner,
            links: if new.file_type == FileType::Directory { 2 } else { 1 },
            linkable: false,
            device,
            flags: new.flags,
            accessed: AtomicI64::new(now.0),
            modified: now,
            changed: now,
            created: now,
            xattrs: new.xattrs.iter().map(|&(name, value)| (name.into(), value.into())).collect(),
            content,
        })
    }

    pub(crate) fn directory(&self) -> Result<&Directory> {
        match &self.content {
            Content::Directory(directory) => Ok(directory),
            _ => Err(Error::new(Errno::NOTDIR)),
        }
    }

    pub(crate) fn directory_mut(&mut self) -> Result<&mut Directory> {
        match &mut self.content {
            Content::Directory(directory) => Ok(directory),
            _ => Err(Error::new(Errno::NOTDIR)),
        }
    }

    /// The data of a regular file; `EISDIR` for a directory, `other` for the rest.
    pub(crate) fn data(&self, other: Errno) -> Result<&Data> {
        match &self.content {
            Content::Regular(data) => Ok(data),
            Content::Directory(_) => Err(Error::new(Errno::ISDIR)),
            _ => Err(Error::new(other)),
        }
    }

    /// [`Inode::data`], to change it.
    pub(crate) fn data_mut(&mut self, other: Errno) -> Result<&mut Data> {
        match &mut self.content {
            Content::Regular(data) => Ok(data),
            Content::Directory(_) => Err(Error::new(Errno::ISDIR)),
            _ => Err(Error::new(other)),
        }
    }

    /// Says that data or entries changed.
    pub(crate) fn touch_modified(&mut self, now: Time) {
        (self.modified, self.changed) = (now, now);
    }

    /// Says that the content was read: as `relatime` does it, at most once a day unless something changed since.
    pub(crate) fn touch_accessed(&self) {
        const DAY_NS: i64 = 86_400_000_000_000;
        let accessed = self.accessed.load(Ordering::Relaxed);
        if self.flags.contains(InodeFlags::NO_ACCESS_TIME) {
            return;
        }
        let now = Time::now().0;
        if accessed <= self.modified.0 || accessed <= self.changed.0 || now.saturating_sub(accessed) >= DAY_NS {
            self.accessed.store(now, Ordering::Relaxed);
        }
    }

    pub(crate) fn drop_set_id(&mut self) {
        if self.file_type != FileType::Directory {
            self.mode &= !0o4000;
            if self.mode & 0o010 != 0 {
                self.mode &= !0o2000;
            }
        }
    }

    pub(crate) fn attributes(&self, node: NodeId) -> Attributes {
        let (size_bytes, blocks) = match &self.content {
            Content::Regular(data) => (data.size_bytes(), data.blocks()),
            Content::Directory(directory) => (directory.length() * 32, 0),
            Content::Symlink(target) => (target.len() as u64, 0),
            Content::Special => (0, 0),
        };
        Attributes {
            node,
            file_type: self.file_type,
            mode: self.mode,
            links: self.links,
            owner: self.owner,
            device: self.device,
            size_bytes,
            sectors: blocks * (BLOCK_BYTES / 512),
            block_bytes: BLOCK_BYTES as u32,
            flags: self.flags,
            accessed: Time(self.accessed.load(Ordering::Relaxed)),
            modified: self.modified,
            changed: self.changed,
            created: self.created,
        }
    }
}

#[derive(Debug, Default)]
struct Slot {
    /// Of the present or, if there is none, the next inode.
    generation: u32,
    inode: Option<Inode>,
}

/// All inodes; number `n` sits in slot `n - 1`.
#[derive(Debug)]
pub(crate) struct Table {
    slots: Vec<Slot>,
    free: Vec<u64>,
    inodes_max: u64,
}

impl Table {
    pub(crate) fn new(inodes_max: u64) -> Self {
        Self { slots: Vec::new(), free: Vec::new(), inodes_max }
    }

    pub(crate) fn inodes_used(&self) -> u64 {
        (self.slots.len() - self.free.len()) as u64
    }

    pub(crate) fn inodes_max(&self) -> u64 {
        self.inodes_max
    }

    /// Puts an inode into a slot; `ENOSPC` when all are taken.
    pub(crate) fn insert(&mut self, inode: Inode) -> Result<NodeId> {
        if self.inodes_used() >= self.inodes_max {
            return Err(Error::because(Errno::NOSPC, "no inode is free"));
        }
        let number = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot::default());
            self.slots.len() as u64
        });
        let slot = &mut self.slots[number as usize - 1];
        slot.inode = Some(inode);
        Ok(NodeId::new(number, slot.generation))
    }

    /// Frees an inode; what still names it is stale from now on.
    pub(crate) fn take(&mut self, number: u64) -> Option<Inode> {
        let slot = self.slots.get_mut((number as usize).wrapping_sub(1))?;
        let inode = slot.inode.take()?;
        slot.generation = slot.generation.wrapping_add(1);
        self.free.push(number);
        Some(inode)
    }

    /// The node of a number that is in use.
    pub(crate) fn node(&self, number: u64) -> NodeId {
        NodeId::new(number, self.slots[number as usize - 1].generation)
    }

    /// The inode of a node that the caller gave: `ESTALE` if it is gone.
    pub(crate) fn get(&self, node: NodeId) -> Result<&Inode> {
        let slot =
            self.slots.get((node.number as usize).wrapping_sub(1)).filter(|slot| slot.generation == node.generation);
        slot.and_then(|slot| slot.inode.as_ref()).ok_or(Error::new(Errno::STALE))
    }

    /// [`Table::get`], to change it.
    pub(crate) fn get_mut(&mut self, node: NodeId) -> Result<&mut Inode> {
        let index = (node.number as usize).wrapping_sub(1);
        let slot = self.slots.get_mut(index).filter(|slot| slot.generation == node.generation);
        slot.and_then(|slot| slot.inode.as_mut()).ok_or(Error::new(Errno::STALE))
    }
}
