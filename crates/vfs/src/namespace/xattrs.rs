//! Extended attributes: which name spaces exist, who may use them, and access control lists behind their names.

use super::access_list::{ACCESS_NAME, AccessList, DEFAULT_NAME};
use super::{Access, Capabilities, Namespace, file_capability};
use crate::{Errno, Error, FileType, InodeFlags, NodeId, Permissions, Result, XattrMode};

const fn fail<T>(errno: Errno) -> Result<T> {
    Err(Error::new(errno))
}

#[derive(Clone, Copy, PartialEq)]
enum Space {
    User,
    Trusted,
    Security,
    Capability,
    AccessList,
    DefaultList,
}

/// The name space of a name. `EOPNOTSUPP` where there is none, `EINVAL` for its bare prefix.
fn space_of(name: &[u8]) -> Result<Space> {
    if name.is_empty() || name.len() > 255 {
        return fail(Errno::RANGE);
    }
    match name {
        ACCESS_NAME => return Ok(Space::AccessList),
        DEFAULT_NAME => return Ok(Space::DefaultList),
        file_capability::NAME => return Ok(Space::Capability),
        _ => {}
    }
    for (prefix, space) in
        [(&b"user."[..], Space::User), (b"trusted.", Space::Trusted), (b"security.", Space::Security)]
    {
        if let Some(rest) = name.strip_prefix(prefix) {
            return if rest.is_empty() { fail(Errno::INVAL) } else { Ok(space) };
        }
    }
    fail(Errno::OPNOTSUPP)
}

const SHORT_VALUE_BYTES: usize = 512;

impl Namespace<'_, '_> {
    /// `getxattr`. An access control list is told with the permission bits as they are now.
    pub fn xattr(&self, node: NodeId, name: &[u8], value: &mut [u8]) -> Result<usize> {
        let known = self.fs.permissions(node)?;
        let space = space_of(name).or_else(|error| self.refuse_name(node, &known, name, Access::READ, error))?;
        match space {
            Space::User => {
                if !matches!(known.file_type, FileType::Regular | FileType::Directory) {
                    return fail(Errno::NODATA);
                }
                self.check_known(node, &known, Access::READ)?;
            }
            Space::Trusted if !self.who.may(Capabilities::SYS_ADMIN) => return fail(Errno::NODATA),
            Space::Trusted | Space::Security => {}
            Space::Capability => return self.capability(node, value),
            Space::AccessList | Space::DefaultList if known.file_type == FileType::Symlink => {
                return fail(Errno::OPNOTSUPP);
            }
            Space::AccessList if !value.is_empty() => return AccessList::tell(self.fs, node, value),
            Space::AccessList | Space::DefaultList => {}
        }
        self.fs.xattr(node, name, value)
    }

    /// [`Self::xattr`] for who has room for so many bytes: `told` gets the value's length, and its bytes if there is any room. Most values are
    /// short, whatever room there is for them: only others take memory.
    pub fn xattr_within<T>(
        &self,
        node: NodeId,
        name: &[u8],
        room_bytes: usize,
        told: impl FnOnce(usize, Option<&[u8]>) -> T,
    ) -> Result<T> {
        let mut short = [0; SHORT_VALUE_BYTES];
        let value = &mut short[..room_bytes.min(SHORT_VALUE_BYTES)];
        match self.xattr(node, name, value) {
            Err(error) if error.errno() == Errno::RANGE && room_bytes > SHORT_VALUE_BYTES => {
                let mut value = vec![0; room_bytes];
                let length = self.xattr(node, name, &mut value)?;
                Ok(told(length, value.get(..length)))
            }
            length => {
                let length = length?;
                Ok(told(length, value.get(..length)))
            }
        }
    }

    /// The name space of a name that is to be set or removed.
    fn space_to_change(&self, node: NodeId, name: &[u8]) -> Result<Space> {
        space_of(name).or_else(|error| match error.errno() {
            Errno::RANGE => Err(error),
            _ => self.refuse_name(node, &self.changeable(node)?, name, Access::WRITE, error),
        })
    }

    /// What is said of a name in no name space: what they may not do at all comes first, as in the kernel.
    #[cold]
    fn refuse_name(
        &self,
        node: NodeId,
        known: &Permissions,
        name: &[u8],
        access: Access,
        error: Error,
    ) -> Result<Space> {
        let writes = access.contains(Access::WRITE);
        if name.starts_with(b"trusted.") && !self.who.may(Capabilities::SYS_ADMIN) {
            return fail(if writes { Errno::PERM } else { Errno::NODATA });
        }
        if name.starts_with(b"user.") && !matches!(known.file_type, FileType::Regular | FileType::Directory) {
            return fail(if writes { Errno::PERM } else { Errno::NODATA });
        }
        let is_system = name.starts_with(b"security.") || name.starts_with(b"system.") || name.starts_with(b"trusted.");
        if !is_system && error.errno() != Errno::RANGE {
            self.check_known(node, known, access)?;
        }
        Err(error)
    }

    /// Checks that an attribute may be changed.
    fn check_change(&self, space: Space, node: NodeId) -> Result<Permissions> {
        let known = self.changeable(node)?;
        match space {
            Space::User => {
                if !matches!(known.file_type, FileType::Regular | FileType::Directory) {
                    return fail(Errno::PERM);
                }
                let sticky = known.file_type == FileType::Directory && known.mode & 0o1000 != 0;
                if sticky && !self.is_owner(&known) {
                    return fail(Errno::PERM);
                }
                self.check_known(node, &known, Access::WRITE)?;
            }
            Space::Capability => {
                if !self.who.may_over(Capabilities::SETFCAP, known.owner) {
                    return fail(Errno::PERM);
                }
            }
            Space::Trusted | Space::Security => {
                if !self.who.may(Capabilities::SYS_ADMIN) {
                    return fail(Errno::PERM);
                }
            }
            Space::AccessList | Space::DefaultList => {
                if known.file_type == FileType::Symlink {
                    return fail(Errno::OPNOTSUPP);
                }
                if space == Space::DefaultList && known.file_type != FileType::Directory {
                    return fail(Errno::ACCESS);
                }
                if !self.is_owner(&known) {
                    return fail(Errno::PERM);
                }
            }
        }
        Ok(known)
    }

    /// `setxattr`.
    pub fn set_xattr(&self, node: NodeId, name: &[u8], value: &[u8], mode: XattrMode) -> Result<()> {
        let space = self.space_to_change(node, name)?;
        if matches!(space, Space::AccessList | Space::DefaultList) {
            if AccessList::is_none(value) {
                return self.remove_list(space, node, name);
            }
            // Before whose it is, and what.
            AccessList::check_form(value)?;
        }
        if space == Space::Capability {
            self.check_capability(value)?;
        }
        let known = self.check_change(space, node)?;
        match space {
            // Whether there is one or not: for lists the kernel does not look at that wish.
            Space::AccessList => return self.set_access_list(node, &known, value),
            Space::DefaultList => {
                let mut room = AccessList::ROOM;
                let copy = room.get_mut(..value.len()).ok_or(Error::new(Errno::TOOBIG))?;
                copy.copy_from_slice(value);
                AccessList::new(copy)?;
                return self.fs.set_xattr(node, name, value, XattrMode::Any);
            }
            _ => {}
        }
        self.fs.set_xattr(node, name, value, mode)
    }

    /// What an empty list asks for. A file that is no directory has no default list, so that there is nothing to remove.
    #[cold]
    fn remove_list(&self, space: Space, node: NodeId, name: &[u8]) -> Result<()> {
        let known = self.changeable(node)?;
        if space == Space::DefaultList && !matches!(known.file_type, FileType::Directory | FileType::Symlink) {
            return Ok(());
        }
        self.remove_named(space, node, name)
    }

    #[cold]
    fn set_access_list(&self, node: NodeId, known: &Permissions, value: &[u8]) -> Result<()> {
        AccessList::store(self.fs, node, known, value, self.keeps_set_group_id(known.owner))
    }

    /// `removexattr`. Without its list an inode keeps its permission bits; a list that is not there counts as removed.
    pub fn remove_xattr(&self, node: NodeId, name: &[u8]) -> Result<()> {
        let space = self.space_to_change(node, name)?;
        if space == Space::DefaultList {
            return self.remove_list(space, node, name);
        }
        self.remove_named(space, node, name)
    }

    fn remove_named(&self, space: Space, node: NodeId, name: &[u8]) -> Result<()> {
        self.check_change(space, node)?;
        match self.fs.remove_xattr(node, name) {
            Err(error) if error.errno() == Errno::NODATA && matches!(space, Space::AccessList | Space::DefaultList) => {
                Ok(())
            }
            removed => removed,
        }
    }

    /// `listxattr`: calls `sink` with each name that they may know of.
    pub fn list_xattrs(&self, node: NodeId, sink: &mut dyn FnMut(&[u8])) -> Result<()> {
        let all = self.who.may(Capabilities::SYS_ADMIN);
        self.fs.list_xattrs(node, &mut |name| {
            if all || !name.starts_with(b"trusted.") {
                sink(name);
            }
        })
    }

    /// Whether an inode may be written to through a descriptor that is open for writing: `EPERM` once it is immutable, or
    /// append-only and the descriptor does not append.
    pub fn check_write_open(&self, node: NodeId, appends: bool) -> Result<()> {
        let flags = self.fs.permissions(node)?.flags;
        if flags.contains(InodeFlags::IMMUTABLE) || flags.contains(InodeFlags::APPEND_ONLY) && !appends {
            return fail(Errno::PERM);
        }
        Ok(())
    }
}
