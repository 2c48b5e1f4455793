//! May they: the checks that operations share.

use super::access_list::AccessList;
use super::{Capabilities, Credentials, Namespace};
use crate::{Errno, Error, FileSystem, FileType, InodeFlags, NodeId, Owner, Permissions, Result};

bitflags::bitflags! {
    /// What shall be done with an inode, with the bits of `access(2)`.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct Access: u32 {
        /// Execute a file, search a directory.
        const EXECUTE = 1;
        /// Write.
        const WRITE = 2;
        /// Read.
        const READ = 4;
    }
}

/// Checks `access` to an inode whose permissions are known. `EACCES`; `EPERM` for writing what is immutable, `EROFS` where nothing can be written.
pub(super) fn check(
    fs: &dyn FileSystem,
    who: &Credentials<'_>,
    node: NodeId,
    known: &Permissions,
    access: Access,
) -> Result<()> {
    if access.contains(Access::WRITE) {
        if fs.is_read_only() && matches!(known.file_type, FileType::Regular | FileType::Directory | FileType::Symlink) {
            return Err(Error::new(Errno::ROFS));
        }
        if known.flags.contains(InodeFlags::IMMUTABLE) {
            return Err(Error::new(Errno::PERM));
        }
    }
    let wanted = access.bits();
    let by_mode = |shift: u32| known.mode >> shift & wanted == wanted;
    let granted = if who.user == known.owner.user {
        by_mode(6)
    } else if known.has_access_list && known.mode & 0o070 != 0 {
        // With an empty mask nobody named by the list is granted anything, so it need not be read.
        let mut room = AccessList::ROOM;
        match AccessList::read_access(fs, node, &mut room)? {
            Some(list) => list.grants(who, known, wanted),
            None => by_mode(if who.is_in_group(known.owner.group) { 3 } else { 0 }),
        }
    } else if who.is_in_group(known.owner.group) {
        by_mode(3)
    } else {
        by_mode(0)
    };
    if granted || is_overridden(who, known, access) { Ok(()) } else { Err(Error::new(Errno::ACCESS)) }
}

/// Whether capabilities stand in for permission bits.
fn is_overridden(who: &Credentials<'_>, known: &Permissions, access: Access) -> bool {
    let (write, execute) = (access.contains(Access::WRITE), access.contains(Access::EXECUTE));
    let may = |capability| who.may_over(capability, known.owner);
    if known.file_type == FileType::Directory {
        return !write && may(Capabilities::DAC_READ_SEARCH) || may(Capabilities::DAC_OVERRIDE);
    }
    // Execution is never granted for a file that nobody may execute.
    !write && !execute && may(Capabilities::DAC_READ_SEARCH)
        || (!execute || known.mode & 0o111 != 0) && may(Capabilities::DAC_OVERRIDE)
}

impl Namespace<'_, '_> {
    /// Checks `access` (empty: existence only). `EACCES`; `EPERM` for writing what is immutable.
    pub fn check_access(&self, node: NodeId, access: Access) -> Result<()> {
        let known = self.fs.permissions(node)?;
        if access.is_empty() { Ok(()) } else { check(self.fs, &self.who, node, &known, access) }
    }

    /// [`Namespace::check_access`] where the permissions are known already.
    pub(super) fn check_known(&self, node: NodeId, known: &Permissions, access: Access) -> Result<()> {
        check(self.fs, &self.who, node, known, access)
    }

    /// Whether they own the inode or may act as if.
    pub(super) fn is_owner(&self, known: &Permissions) -> bool {
        self.who.acts_as(known.owner.user)
    }

    /// Whether they may give a file of `owner` the set-group-id bit.
    pub(super) fn keeps_set_group_id(&self, owner: Owner) -> bool {
        self.who.is_in_group(owner.group) || self.who.may_over(Capabilities::FSETID, owner)
    }

    /// Checks that entries can be made in a directory.
    pub(super) fn check_create(&self, directory: NodeId) -> Result<Permissions> {
        let known = self.fs.permissions(directory)?;
        self.may_create(directory, &known)?;
        Ok(known)
    }

    /// [`Namespace::check_create`] where the permissions are known already.
    pub(super) fn may_create(&self, directory: NodeId, known: &Permissions) -> Result<()> {
        if known.file_type != FileType::Directory {
            return Err(Error::new(Errno::NOTDIR));
        }
        self.check_known(directory, known, Access::WRITE | Access::EXECUTE)
    }

    /// Checks that the entry of `victim` can be removed from a directory.
    pub(super) fn check_remove(&self, directory: NodeId, victim: NodeId) -> Result<()> {
        let known = self.check_create(directory)?;
        self.may_remove_known(&known, &self.fs.permissions(victim)?)
    }

    /// [`Namespace::check_remove`] where the permissions are known already.
    pub(super) fn may_remove(&self, directory: NodeId, known: &Permissions, victim: &Permissions) -> Result<()> {
        self.may_create(directory, known)?;
        self.may_remove_known(known, victim)
    }

    fn may_remove_known(&self, known: &Permissions, victim: &Permissions) -> Result<()> {
        let fixed = InodeFlags::IMMUTABLE | InodeFlags::APPEND_ONLY;
        let sticky = known.mode & 0o1000 != 0
            && self.who.user != victim.owner.user
            && self.who.user != known.owner.user
            && !self.who.may_over(Capabilities::FOWNER, victim.owner);
        if sticky || known.flags.contains(InodeFlags::APPEND_ONLY) || victim.flags.intersects(fixed) {
            return Err(Error::new(Errno::PERM));
        }
        Ok(())
    }
}
