//! Operations on names, and the references that the kernel gains and drops by them.

use gannet_vfs::shared::Place;
use gannet_vfs::{
    Attributes, Errno, Error, FileType, Found, InodeFlags, Name, NewNode, NodeId, Owner, RemoveKind, RenameFlags,
    Result,
};

use super::Dispatcher;
use super::acl::{self, AccessList};
use super::again::Kind;
use super::caching::now_ms;
use super::closing::Patience;
use crate::protocol::reply::{self, Validity};
use crate::protocol::request::Header;
use crate::protocol::wire::FixedReply;

const SET_GROUP_ID: u32 = 0o2000;
const O_EXCL: u32 = 0o200;
/// How often a name is looked at that others change meanwhile.
const LOOKS_MAX: u32 = 1000;

/// Why a file flagged so may not be changed.
pub(super) const UNCHANGEABLE: Error = Error::because(Errno::PERM, "the file is immutable or append-only");

impl Dispatcher {
    /// Tells the kernel about an inode: notes the reference first, so that nobody retires the inode in between.
    fn hold(&self, node: NodeId) -> Result<(u64, Attributes)> {
        let id = self.nodes.id(node);
        self.nodes.hold(id);
        match self.file_system.attributes(node) {
            Ok(attributes) => Ok((id, self.shown(attributes))),
            Err(error) => {
                self.forget(id, 1);
                Err(error)
            }
        }
    }

    /// The reply that tells the kernel about an inode under a name.
    pub(super) fn entry(&self, node: NodeId) -> Result<FixedReply> {
        let (id, attributes) = self.hold(node)?;
        Ok(reply::entry(id, &attributes, self.name_validity(), self.attribute_validity(id)))
    }

    /// The same for an inode that the kernel may know already, under a name that was just made: it believes this reply whatever it
    /// has heard since. Of a new inode it can have heard nothing else, since it keeps the directory locked until the reply is there.
    fn another_entry(&self, node: NodeId) -> Result<FixedReply> {
        let (id, attributes) = self.hold(node)?;
        Ok(reply::entry(id, &attributes, self.name_validity(), self.unguarded_validity()))
    }

    fn retire(&self, node: NodeId) {
        // An inode that cannot be retired now is found by the file system's own recovery.
        let _ = self.file_system.retire(node);
    }

    pub(super) fn forget(&self, id: u64, count: u64) {
        self.nodes.forget(id, count, |node| {
            self.drop_kept(id);
            self.retire(node);
        });
    }

    pub(super) fn lookup(&self, header: &Header, name: &[u8]) -> Result<FixedReply> {
        let directory = self.node(header.node)?;
        match name {
            // Asked when a handle is opened (`name_to_handle_at`, NFS): the inode itself, and its parent.
            b"." => {
                // A file that lost its last name cannot be reached by a handle any more, though it may still be in use.
                if self.file_system.attributes(directory)?.links == 0 {
                    return Err(Error::new(Errno::STALE));
                }
                return self.entry(directory);
            }
            b".." => return self.entry(self.file_system.parent(directory)?),
            _ => {}
        }
        let name = Name::new(name)?;
        // Between lookup and attributes the inode may go; then the name is another's, or nobody's.
        for _ in 0..LOOKS_MAX {
            match self.file_system.lookup(directory, name) {
                Ok(found) => match self.found(header, name, found) {
                    Err(error) if error.errno() == Errno::STALE => {}
                    outcome => return outcome?.ok_or(Error::because(Errno::STALE, "another has renamed it meanwhile")),
                },
                // Where the last name is looked up to be made the kernel would not begin anew. It came by here when the directory was
                // there, and nothing was in it when it went.
                Err(error) if error.errno() == Errno::STALE => {
                    return Err(Error::because(Errno::NOENT, "the directory is gone"));
                }
                Err(error) if error.errno() == Errno::NOENT => {
                    let validity = self.name_validity();
                    return if validity == Validity::NONE { Err(error) } else { Ok(reply::negative_entry(validity)) };
                }
                Err(error) => return Err(error),
            }
        }
        Err(Error::because(Errno::STALE, "the name changes faster than it can be looked at"))
    }

    /// The reply that tells what was found under a name; nothing if the caller is to begin anew. `ESTALE` if it is gone.
    fn found(&self, header: &Header, name: Name<'_>, found: Found) -> Result<Option<FixedReply>> {
        let (id, attributes) = self.hold(found.node)?;
        let validity = self.name_validity();
        if validity == Validity::NONE {
            let kind = if attributes.file_type == FileType::Directory { Kind::Directory } else { Kind::Other };
            if kind == Kind::Other
                && attributes.links == 1
                && self.moved.finds(header.process, header.node, name.bytes(), id)
            {
                self.forget(id, 1);
                return Ok(None);
            }
            if self.again.tries(header.process, kind, now_ms()) {
                self.keep(header, found.node).inspect_err(|_| self.forget(id, 1))?.found();
                self.again.found(header.process, kind);
            }
        }
        Ok(Some(reply::entry(id, &attributes, validity, self.attribute_validity(id))))
    }

    /// The inode under `name`, if it may be removed from there: `EPERM` if it or the directory says no.
    fn check_removable(&self, directory: NodeId, name: Name<'_>) -> Result<NodeId> {
        let found = self.file_system.lookup(directory, name)?.node;
        for node in [directory, found] {
            let flags = self.file_system.permissions(node)?.flags;
            if flags.intersects(InodeFlags::IMMUTABLE | InodeFlags::APPEND_ONLY) {
                return Err(UNCHANGEABLE);
            }
        }
        Ok(found)
    }

    /// Looks at names in `directories`, and again while others take away meanwhile what was found.
    fn unless_old<T>(&self, directories: &[NodeId], look: impl Fn() -> Result<T>) -> Result<T> {
        for _ in 1..LOOKS_MAX {
            match look() {
                Err(error) if error.errno() == Errno::STALE => {}
                outcome => return outcome,
            }
            // One of these may be what is gone.
            directories.iter().try_for_each(|&directory| self.file_system.permissions(directory).map(drop))?;
        }
        look()
    }

    /// `EPERM` if names cannot be added to `directory`.
    fn check_addable(&self, directory: NodeId) -> Result<()> {
        let flags = self.file_system.permissions(directory)?.flags;
        if flags.contains(InodeFlags::IMMUTABLE) { Err(UNCHANGEABLE) } else { Ok(()) }
    }

    /// Makes an inode with what it inherits: group and set-group-id of the directory, the default list or else the umask, and its
    /// flags that are passed on.
    fn make(&self, header: &Header, name: Option<&[u8]>, mut new: NewNode<'_>, umask: u32) -> Result<NodeId> {
        let directory = self.node(header.node)?;
        let parent = self.file_system.permissions(directory)?;
        if parent.flags.contains(InodeFlags::IMMUTABLE) {
            return Err(UNCHANGEABLE);
        }
        new.owner = Owner { user: header.user, group: header.group };
        new.flags = parent.flags.inherited(new.file_type);
        if parent.mode & SET_GROUP_ID != 0 {
            new.owner.group = parent.owner.group;
            if new.file_type == FileType::Directory {
                new.mode |= SET_GROUP_ID;
            }
        }
        new.owner.user = self.policy.user.unwrap_or(new.owner.user);
        new.owner.group = self.policy.group.unwrap_or(new.owner.group);

        let default = match new.file_type {
            FileType::Symlink => None,
            _ => self.xattr_value(directory, acl::DEFAULT)?,
        };
        let mut access = None;
        match &default {
            None => new.mode &= !umask,
            Some(value) => {
                let (mode, list) = AccessList::decode(value)?.inherit(new.mode);
                new.mode = mode;
                access = list.map(|list| list.encode());
            }
        }
        let mut inherited: [(&[u8], &[u8]); 2] = [(&[], &[]); 2];
        let mut count = 0;
        if let Some(value) = &access {
            inherited[count] = (acl::ACCESS, value);
            count += 1;
        }
        if let Some(value) = &default
            && new.file_type == FileType::Directory
        {
            inherited[count] = (acl::DEFAULT, value);
            count += 1;
        }
        let new = NewNode { xattrs: &inherited[..count], ..new };
        match name {
            Some(name) => {
                let made = self.file_system.create(directory, Name::new(name)?, &new)?;
                self.names_have_changed(header.node);
                Ok(made)
            }
            None => self.file_system.create_unnamed(directory, &new),
        }
    }

    pub(super) fn make_node(
        &self,
        header: &Header,
        name: &[u8],
        mode: u32,
        device: u32,
        umask: u32,
    ) -> Result<FixedReply> {
        let file_type = FileType::from_bits((mode >> 12) as u8 & 15).ok_or(Error::new(Errno::INVAL))?;
        let mut new = NewNode::of_type(file_type, mode & 0o7777, Owner::default());
        new.device = reply::decode_device(device);
        self.entry(self.make(header, Some(name), new, umask)?)
    }

    pub(super) fn make_directory(&self, header: &Header, name: &[u8], mode: u32, umask: u32) -> Result<FixedReply> {
        let new = NewNode::directory(mode & 0o7777, Owner::default());
        self.entry(self.make(header, Some(name), new, umask)?)
    }

    pub(super) fn make_symlink(&self, header: &Header, name: &[u8], target: &[u8]) -> Result<FixedReply> {
        let new = NewNode { target, ..NewNode::of_type(FileType::Symlink, 0o777, Owner::default()) };
        self.entry(self.make(header, Some(name), new, 0)?)
    }

    pub(super) fn create(&self, header: &Header, name: &[u8], flags: u32, mode: u32, umask: u32) -> Result<FixedReply> {
        // Who has looked again and saw no file once more will see none at another try: it comes and goes.
        let mut patience = self.again.waits(header.process, now_ms()).then(Patience::new);
        loop {
            let new = NewNode::regular(mode & 0o7777, Owner::default());
            // Before the file is made: who is told that too many are open has made none.
            let place = self.place(header)?;
            match self.make(header, Some(name), new, umask).and_then(|node| self.opened_entry(place, node, flags)) {
                // Somebody else made the file since the kernel looked. It shall look again, and check permissions.
                Err(error) if error.errno() == Errno::EXIST && flags & O_EXCL == 0 => {}
                // Somebody else has removed it already.
                Err(error) if error.errno() == Errno::STALE => {}
                outcome => return outcome,
            }
            if !patience.as_mut().is_some_and(Patience::lasts) {
                break;
            }
        }
        Err(Error::new(Errno::STALE))
    }

    pub(super) fn create_unnamed(&self, header: &Header, flags: u32, mode: u32, umask: u32) -> Result<FixedReply> {
        let new = NewNode::regular(mode & 0o7777, Owner::default());
        let place = self.place(header)?;
        self.opened_entry(place, self.make(header, None, new, umask)?, flags)
    }

    fn opened_entry(&self, place: Option<Place<'_>>, node: NodeId, flags: u32) -> Result<FixedReply> {
        // Opened first: a file without a name lives by its users. What cannot be has none.
        let handle = self.open_at(place, node, flags).inspect_err(|_| self.retire(node))?;
        match self.entry(node) {
            Ok(mut reply) => {
                let how = self.note_handle(self.nodes.id(node), handle, flags, false);
                reply.put(reply::opened(handle, how).bytes());
                Ok(reply)
            }
            Err(error) => {
                self.close_handle(self.nodes.id(node), handle);
                Err(error)
            }
        }
    }

    pub(super) fn remove(&self, header: &Header, name: &[u8], kind: RemoveKind) -> Result<FixedReply> {
        let (directory, name) = (self.node(header.node)?, Name::new(name)?);
        let keeper = self.unless_old(&[directory], || self.keep(header, self.check_removable(directory, name)?))?;
        self.file_system.remove(directory, name, kind)?;
        self.names_have_changed(header.node);
        keeper.removed();
        Ok(FixedReply::new())
    }

    pub(super) fn rename(
        &self,
        header: &Header,
        from: &[u8],
        to_directory: u64,
        to: &[u8],
        flags: u32,
    ) -> Result<FixedReply> {
        let flags = RenameFlags::from_bits(flags).ok_or(Error::new(Errno::INVAL))?;
        let directories = [header.node, to_directory];
        let (from_directory, to_directory) = (self.node(header.node)?, self.node(to_directory)?);
        let (from, to) = (Name::new(from)?, Name::new(to)?);
        self.unless_old(&[from_directory, to_directory], || self.check_removable(from_directory, from))?;
        let replaced = self.unless_old(&[to_directory], || match self.check_removable(to_directory, to) {
            Ok(node) => self.keep(header, node).map(Some),
            Err(error) if error.errno() == Errno::NOENT => self.check_addable(to_directory).map(|()| None),
            Err(error) => Err(error),
        })?;
        self.file_system.rename(from_directory, from, to_directory, to, flags)?;
        directories.iter().for_each(|&id| self.names_have_changed(id));
        self.moved.renamed();
        if let Some(keeper) = replaced {
            keeper.removed();
        }
        Ok(FixedReply::new())
    }

    pub(super) fn link(&self, header: &Header, node: u64, name: &[u8]) -> Result<FixedReply> {
        let (node, directory) = (self.node(node)?, self.node(header.node)?);
        self.check_addable(directory)?;
        if self.file_system.permissions(node)?.flags.intersects(InodeFlags::IMMUTABLE | InodeFlags::APPEND_ONLY) {
            return Err(UNCHANGEABLE);
        }
        self.file_system.link(node, directory, Name::new(name)?)?;
        self.names_have_changed(header.node);
        self.moved.renamed();
        self.another_entry(node)
    }

    pub(super) fn read_link(&self, header: &Header, out: &mut [u8]) -> Result<usize> {
        let room = out.len().min(4095);
        let node = self.node(header.node)?;
        let length = self.file_system.read_link(node, &mut out[..room])?;
        self.file_system.note_access(node);
        Ok(length)
    }
}
