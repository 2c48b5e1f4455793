//! The file system's side, behind the namespace that a front end would use.

use super::host::time;
use super::rows::Act::{
    ChangeMode, ChangeOwner, Create, Directory, Fifo, Link, List, Now, Past, Read, ReadLink, RemoveDirectory,
    RemoveXattr, Rename, SetXattr, Symlink, Truncate, Unlink, Write,
};
use super::rows::{Act, XATTR};
use super::{Look, Side, split};
use crate::rig::tick;
use std::collections::BTreeMap;

use gannet_usermem::{Destination, Source};
use gannet_vfs::namespace::{Capabilities, Credentials, Namespace};
use gannet_vfs::{
    FileType, NewNode, NodeId, Owner, RemoveKind, Result, TimeChange, WriteFlags, WritePosition, XattrMode,
};

use crate::{Rig, name};

pub(super) struct Ours<'f> {
    pub(super) rig: Rig<'f>,
    pub(super) who: Credentials<'static>,
    pub(super) kept: BTreeMap<u64, (NodeId, crate::rig::Hold<'f>)>,
}

impl Ours<'_> {
    fn node(&self, path: &str) -> Result<NodeId> {
        let parts = path.split('/').filter(|part| !part.is_empty());
        parts.into_iter().try_fold(self.rig.root, |node, part| Ok(self.rig.fs.lookup(node, name(part))?.node))
    }

    fn parent(&self, path: &'static str) -> Result<(NodeId, gannet_vfs::Name<'static>)> {
        let (directory, last) = split(path);
        Ok((self.node(directory)?, name(last)))
    }

    fn owner(&self) -> Owner {
        Owner { user: self.who.user, group: self.who.group }
    }

    fn create(&self, path: &'static str, new: &NewNode<'_>) -> Result<()> {
        let (directory, last) = self.parent(path)?;
        self.rig.fs.create(directory, last, new).map(drop)
    }
}

impl Side for Ours<'_> {
    fn act(&mut self, act: Act) -> Result<()> {
        let fs = self.rig.fs;
        let namespace = Namespace::new(fs, self.who);
        match act {
            Create(path, mode) => self.create(path, &NewNode::regular(mode, self.owner())),
            Directory(path) => self.create(path, &NewNode::directory(0o755, self.owner())),
            Symlink(path) => {
                let link = NewNode::of_type(FileType::Symlink, 0o777, self.owner());
                self.create(path, &NewNode { target: b"target", ..link })
            }
            Fifo(path) => self.create(path, &NewNode::of_type(FileType::Fifo, 0o600, self.owner())),
            Link(from, to) => {
                let (directory, last) = self.parent(to)?;
                fs.link(self.node(from)?, directory, last)
            }
            Unlink(path) => {
                let (directory, last) = self.parent(path)?;
                fs.remove(directory, last, RemoveKind::NonDirectory).map(drop)
            }
            RemoveDirectory(path) => {
                let (directory, last) = self.parent(path)?;
                fs.remove(directory, last, RemoveKind::Directory).map(drop)
            }
            Rename(from, to, flags) => {
                let ((from_directory, from), (to_directory, to)) = (self.parent(from)?, self.parent(to)?);
                fs.rename(from_directory, from, to_directory, to, flags)
            }
            Write(path, offset, length) => {
                let keeps = self.who.may(Capabilities::FSETID);
                let flags = if keeps { WriteFlags::empty() } else { WriteFlags::DROP_SET_ID };
                let bytes = vec![7; length];
                let position = WritePosition::At(offset);
                fs.write(self.node(path)?, position, &mut Source::from_slice(&bytes), flags).map(drop)
            }
            Truncate(path, size) => namespace.truncate_open(self.node(path)?, size),
            ChangeMode(path, mode) => namespace.set_mode(self.node(path)?, mode).map(drop),
            ChangeOwner(path, user, group) => namespace.set_owner(self.node(path)?, user, group).map(drop),
            Now(path) => namespace.set_times(self.node(path)?, TimeChange::Now, TimeChange::Now).map(drop),
            Past(path) => {
                let past = TimeChange::Set(time(1_000_000, 5));
                namespace.set_times(self.node(path)?, past, past).map(drop)
            }
            SetXattr(path) => namespace.set_xattr(self.node(path)?, XATTR, b"value", XattrMode::Any),
            RemoveXattr(path) => namespace.remove_xattr(self.node(path)?, XATTR),
            Read(path, length) => {
                let node = self.node(path)?;
                fs.read(node, 0, &mut Destination::from_slice(&mut vec![0; length]))?;
                fs.note_access(node);
                Ok(())
            }
            List(path) => {
                let node = self.node(path)?;
                fs.read_directory(node, 0, &mut |_| true)?;
                fs.note_access(node);
                Ok(())
            }
            ReadLink(path) => {
                let node = self.node(path)?;
                fs.read_link(node, &mut [0; 100])?;
                fs.note_access(node);
                Ok(())
            }
        }
    }

    fn names(&mut self, path: &str) -> Vec<String> {
        let listed = self.rig.list(self.node(path).expect("a directory"));
        listed.keys().map(|name| String::from_utf8_lossy(name).into_owned()).collect()
    }

    fn keep(&mut self, path: &str) -> u64 {
        let node = self.node(path).expect("an inode");
        let rig = &self.rig;
        self.kept.entry(node.number).or_insert_with(|| (node, rig.hold(node)));
        node.number
    }

    fn look(&self, number: u64) -> Look {
        let all = self.rig.attributes(self.kept[&number].0);
        let size = if all.file_type == FileType::Directory { 0 } else { all.size_bytes };
        Look {
            accessed: all.accessed,
            modified: all.modified,
            changed: all.changed,
            rest: (all.file_type, all.mode, all.links, all.owner, size),
        }
    }

    fn tick(&self) {
        tick();
    }
}
