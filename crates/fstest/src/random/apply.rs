//! Applies an operation to both sides and compares what they say, and compares the whole trees.

use std::collections::{BTreeMap, BTreeSet};

use gannet_vfs::{
    AttributeChange, Errno, FileSystem, FileType, ModeChange, Name, NewNode, NodeId, Owner, Result, SeekTarget,
    WritePosition,
};

use super::operation::{NAMES, Operation, Place, SLOTS, Target};
use crate::model::{Id, Model, ROOT};
use crate::rig::{OWNER, User};
use crate::{Rig, name};

type Both = (NodeId, Id);

/// Both sides.
pub struct Pair {
    model: Model,
    /// Inodes that were in use before there were any of ours, the root not counted.
    inodes_before: u64,
    slots: [Option<(Both, User)>; SLOTS],
}

/// Asserts that both sides gave the same, errors by errno; returns what they gave, if they did.
fn same<T: PartialEq + std::fmt::Debug>(real: Result<T>, model: core::result::Result<T, Errno>) -> Option<T> {
    let real = real.map_err(|error| error.errno());
    assert_eq!(real, model, "the file system gave the left one, the model the right one");
    real.ok()
}

/// Content that tells where it comes from.
fn content(seed: u8, length: usize) -> Vec<u8> {
    (0..length).map(|index| seed.wrapping_add((index / 97) as u8) | 1).collect()
}

/// Where a symbolic link of a given length leads.
fn link_target(length: usize) -> Vec<u8> {
    (0..length).map(|index| b'a' + (index % 26) as u8).collect()
}

fn xattr_name(index: usize) -> String {
    format!("user.{index}")
}

fn inodes_used(fs: &dyn FileSystem) -> u64 {
    let statistics = fs.statistics().expect("statistics");
    statistics.inodes - statistics.inodes_free
}

impl Pair {
    /// The model of an empty file system.
    ///
    /// # Panics
    /// If it is not empty.
    pub fn new(fs: &dyn FileSystem) -> Self {
        let root = fs.attributes(fs.root()).expect("the root has attributes");
        let pair = Self {
            model: Model::new(root.mode, root.owner, u64::from(root.block_bytes)),
            inodes_before: inodes_used(fs) - 1,
            slots: [const { None }; SLOTS],
        };
        pair.compare(fs);
        pair
    }

    /// What a path leads to on both sides, which agree on it.
    fn find(&self, rig: &Rig<'_>, target: &Target) -> Option<Both> {
        let path = match target {
            Target::Slot(slot) => return self.slots[*slot].as_ref().map(|slot| slot.0),
            Target::Path(path) => path,
        };
        let mut at = (rig.root, ROOT);
        for &index in path {
            at = self.lookup(rig, at, index)?;
        }
        Some(at)
    }

    fn lookup(&self, rig: &Rig<'_>, directory: Both, index: usize) -> Option<Both> {
        let found = rig.fs.lookup(directory.0, name(NAMES[index]));
        let id = self.model.lookup(directory.1, NAMES[index].as_bytes());
        let file_type = found.map(|found| found.file_type);
        same(file_type, id.map(|id| self.model.inode(id).file_type))?;
        Some((found.ok()?.node, id.ok()?))
    }

    fn place(&self, rig: &Rig<'_>, place: &Place) -> Option<(Both, Name<'static>)> {
        Some((self.find(rig, &place.0)?, name(NAMES[place.1])))
    }

    fn create(&mut self, rig: &Rig<'_>, place: &Place, new: &NewNode<'_>) {
        let Some((directory, text)) = self.place(rig, place) else { return };
        let real = rig.fs.create(directory.0, text, new);
        let id = self.model.create(directory.1, text.bytes(), new.file_type, new.mode, new.owner, new.target);
        same(real.map(|_| ()), id.map(|_| ()));
        if let (Ok(node), Ok(id)) = (real, id) {
            self.compare_inode(rig, (node, id));
        }
    }

    /// Applies an operation to both sides.
    ///
    /// # Panics
    /// If they differ.
    pub fn apply(&mut self, fs: &dyn FileSystem, operation: &Operation) {
        let rig = &Rig::new(fs);
        match operation {
            Operation::CreateFile(place, mode) => self.create(rig, place, &NewNode::regular(*mode, OWNER)),
            Operation::CreateDirectory(place, mode) => self.create(rig, place, &NewNode::directory(*mode, OWNER)),
            Operation::CreateSymlink(place, length) => {
                let target = &link_target(*length);
                self.create(rig, place, &NewNode { target, ..NewNode::of_type(FileType::Symlink, 0o777, OWNER) });
            }
            Operation::CreateSpecial(place, bits) => {
                let file_type = FileType::from_bits(*bits).expect("a type");
                self.create(rig, place, &NewNode::of_type(file_type, 0o600, OWNER));
            }
            Operation::CreateUnnamed(directory, slot) => {
                self.release(fs, *slot);
                let Some(directory) = self.find(rig, directory) else { return };
                let real = rig.fs.create_unnamed(directory.0, &NewNode::regular(0o600, OWNER));
                let id = self.model.create_unnamed(directory.1, 0o600, OWNER);
                same(real.map(|_| ()), id.map(|_| ()));
                if let (Ok(node), Ok(id)) = (real, id) {
                    self.slots[*slot] = Some(((node, id), rig.take(node)));
                }
            }
            Operation::Link(target, place) => {
                if let (Some(target), Some((directory, text))) = (self.find(rig, target), self.place(rig, place)) {
                    let model = self.model.link(target.1, directory.1, text.bytes());
                    same(rig.fs.link(target.0, directory.0, text), model);
                }
            }
            Operation::Remove(place, kind) => {
                if let Some((directory, text)) = self.place(rig, place) {
                    let model = self.model.remove(directory.1, text.bytes(), *kind);
                    same(rig.fs.remove(directory.0, text, *kind).map(|_| ()), model);
                }
            }
            Operation::Rename(from, to, flags) => {
                if let (Some((from, old)), Some((to, new))) = (self.place(rig, from), self.place(rig, to)) {
                    // A directory without a name takes nothing; in which order that is found is not part of the rules.
                    if self.model.links(to.1) > 0 {
                        let whiteout = (0, Owner::default());
                        let model = self.model.rename(from.1, old.bytes(), to.1, new.bytes(), *flags, whiteout);
                        same(rig.fs.rename(from.0, old, to.0, new, *flags), model);
                    }
                }
            }
            Operation::Lookup(place) => {
                if let Some(directory) = self.find(rig, &place.0) {
                    self.lookup(rig, directory, place.1);
                }
            }
            Operation::Parent(target) => {
                if let Some(target) = self.find(rig, target) {
                    let parent = self.model.parent(target.1);
                    let real = rig.fs.parent(target.0);
                    same(real.map(|_| ()), parent.map(|_| ()));
                    if let (Ok(node), Ok(id)) = (real, parent) {
                        self.compare_inode(rig, (node, id));
                    }
                }
            }
            Operation::Hold(target, slot) => {
                self.release(fs, *slot);
                if let Some(target) = self.find(rig, target) {
                    self.model.hold(target.1);
                    self.slots[*slot] = Some((target, rig.take(target.0)));
                }
            }
            Operation::Release(slot) => self.release(fs, *slot),
            _ => self.apply_to_inode(rig, operation),
        }
    }

    fn apply_to_inode(&mut self, rig: &Rig<'_>, operation: &Operation) {
        let (Operation::ReadLink(target)
        | Operation::Read(target, ..)
        | Operation::Write(target, ..)
        | Operation::Resize(target, ..)
        | Operation::ChangeMode(target, ..)
        | Operation::ChangeOwner(target, ..)
        | Operation::Allocate(target, ..)
        | Operation::Seek(target, ..)
        | Operation::Clone(target, ..)
        | Operation::SetXattr(target, ..)
        | Operation::RemoveXattr(target, ..)
        | Operation::Xattr(target, ..)) = operation
        else {
            return;
        };
        let Some((node, id)) = self.find(rig, target) else { return };
        let model = &mut self.model;
        match operation {
            Operation::ReadLink(_) => {
                let mut room = [0; 4096];
                let real = rig.fs.read_link(node, &mut room).map(|length| room[..length].to_vec());
                let inode = model.inode(id);
                let is_link = inode.file_type == FileType::Symlink;
                same(real, if is_link { Ok(inode.bytes.clone()) } else { Err(Errno::INVAL) });
            }
            Operation::Read(_, offset, length) => {
                same(rig.try_read(node, *offset as u64, *length), model.read(id, *offset, *length));
            }
            Operation::Write(_, offset, length, seed) => {
                let bytes = content(*seed, *length);
                let position = offset.map_or(WritePosition::Append, |offset| WritePosition::At(offset as u64));
                let real = rig.try_write(node, position, &bytes).map(|written| {
                    assert_eq!(written.count_bytes, bytes.len());
                    written.offset_bytes
                });
                same(real, model.write(id, *offset, &bytes));
            }
            Operation::Resize(_, size) => {
                same(rig.resize(node, *size as u64).map(|_| ()), model.resize(id, *size));
            }
            Operation::ChangeMode(_, mode) => {
                let mode = ModeChange::Set(*mode);
                model.change(id, mode, None, None);
                rig.fs.set_attributes(node, &AttributeChange { mode, ..Default::default() }).expect("change the mode");
            }
            Operation::ChangeOwner(_, user, group) => {
                let (mode, user, group) = (ModeChange::DropSetId, Some(*user), Some(*group));
                model.change(id, mode, user, group);
                let change = AttributeChange { mode, user, group, ..Default::default() };
                rig.fs.set_attributes(node, &change).expect("change the owner");
            }
            Operation::Allocate(_, mode, offset, length) => {
                let real = rig.fs.allocate(node, *mode, *offset as u64, *length as u64);
                same(real, model.allocate(id, *mode, *offset, *length));
            }
            Operation::Seek(_, data, offset) => self.seek(rig, (node, id), *data, *offset),
            Operation::Clone(_, from, to, at, length) => {
                if let Some(to) = self.find(rig, to) {
                    let real = rig.fs.clone_range(node, *from as u64, to.0, *at as u64, *length as u64);
                    same(real, self.model.clone_range(id, *from, to.1, *at, *length));
                }
            }
            Operation::SetXattr(_, index, length, mode) => {
                let (text, value) = (xattr_name(*index), content(7, *length));
                let real = rig.fs.set_xattr(node, text.as_bytes(), &value, *mode);
                same(real, model.set_xattr(id, text.as_bytes(), &value, *mode));
            }
            Operation::RemoveXattr(_, index) => {
                let text = xattr_name(*index);
                same(rig.fs.remove_xattr(node, text.as_bytes()), model.remove_xattr(id, text.as_bytes()));
            }
            Operation::Xattr(_, index) => {
                let text = xattr_name(*index);
                let mut room = [0; 1 << 16];
                let real = rig.fs.xattr(node, text.as_bytes(), &mut room).map(|length| room[..length].to_vec());
                let value = model.inode(id).xattrs.get(text.as_bytes());
                same(real, value.cloned().ok_or(Errno::NODATA));
            }
            _ => {}
        }
    }

    /// What `seek` says must be true of the bytes: a hole is zeros, and data is not skipped.
    fn seek(&self, rig: &Rig<'_>, both: Both, data: bool, offset: usize) {
        let inode = self.model.inode(both.1);
        if inode.file_type != FileType::Regular {
            return;
        }
        let target = if data { SeekTarget::Data } else { SeekTarget::Hole };
        let bytes = &inode.bytes;
        match rig.fs.seek(both.0, target, offset as u64) {
            Err(error) => {
                assert_eq!(error.errno(), Errno::NXIO);
                let rest = bytes.get(offset..).unwrap_or(&[]);
                assert!(rest.is_empty() || data && rest.iter().all(|&byte| byte == 0), "there is something");
            }
            Ok(found) => {
                let found = found as usize;
                assert!(offset <= found && found <= bytes.len(), "{found} is in the file");
                if data {
                    assert!(found < bytes.len() && bytes[offset..found].iter().all(|&byte| byte == 0), "data skipped");
                } else {
                    assert!(found == bytes.len() || bytes[found] == 0, "a hole is zero");
                }
            }
        }
    }

    fn release(&mut self, fs: &dyn FileSystem, slot: usize) {
        if let Some(((_, id), user)) = self.slots[slot].take() {
            Rig::new(fs).give(user);
            self.model.release(id);
        }
    }

    /// Gives back all users.
    pub fn release_all(&mut self, fs: &dyn FileSystem) {
        (0..SLOTS).for_each(|slot| self.release(fs, slot));
    }

    fn compare_inode(&self, rig: &Rig<'_>, (node, id): Both) {
        let (real, inode) = (rig.attributes(node), self.model.inode(id));
        assert_eq!((real.node, real.file_type, real.mode), (node, inode.file_type, inode.mode));
        assert_eq!((real.owner, real.links), (inode.owner, self.model.links(id)));
        match inode.file_type {
            FileType::Regular => assert!(rig.content(node) == inode.bytes, "{node:?}: other bytes than the model's"),
            FileType::Symlink => {
                let mut room = [0; 4096];
                let length = rig.fs.read_link(node, &mut room).expect("read a link");
                assert_eq!((&room[..length], real.size_bytes), (&inode.bytes[..], inode.bytes.len() as u64));
            }
            _ => {}
        }
        for (text, value) in &inode.xattrs {
            let mut room = [0; 1 << 16];
            let length = rig.fs.xattr(node, text, &mut room).expect("an extended attribute");
            assert_eq!(&room[..length], &value[..]);
        }
        let mut names = BTreeSet::new();
        if rig.fs.list_xattrs(node, &mut |text| _ = names.insert(text.to_vec())).is_ok() {
            assert_eq!(names, inode.xattrs.keys().cloned().collect());
        }
    }

    /// Compares the whole trees, and what users hold.
    ///
    /// # Panics
    /// If they differ.
    pub fn compare(&self, fs: &dyn FileSystem) {
        let rig = &Rig::new(fs);
        let mut seen: BTreeMap<u64, Id> = BTreeMap::new();
        let held = self.slots.iter().flatten().map(|slot| slot.0);
        let mut left: Vec<Both> = held.chain([(rig.root, ROOT)]).collect();
        while let Some((node, id)) = left.pop() {
            if let Some(before) = seen.insert(node.number, id) {
                assert_eq!(before, id, "one number, one inode");
                continue;
            }
            self.compare_inode(rig, (node, id));
            let inode = self.model.inode(id);
            if inode.file_type == FileType::Directory {
                let listed = rig.list(node);
                assert_eq!(listed.keys().collect::<Vec<_>>(), inode.entries.keys().collect::<Vec<_>>(), "{node:?}");
                for (text, &below) in &inode.entries {
                    let found = rig.fs.lookup(node, Name::new(text).expect("a name")).expect("what is listed is found");
                    assert_eq!(listed[text], (found.node.number, found.file_type));
                    if found.file_type == FileType::Directory {
                        assert_eq!(rig.fs.parent(found.node).expect("a parent"), node);
                    }
                    left.push((found.node, below));
                }
            }
        }
        assert_eq!(seen.len(), seen.values().collect::<BTreeSet<_>>().len(), "one inode, one number");
        assert_eq!(seen.len(), self.model.count(), "every inode of the model was found");
        assert_eq!(inodes_used(fs), self.inodes_before + seen.len() as u64, "inodes in use");
    }
}
