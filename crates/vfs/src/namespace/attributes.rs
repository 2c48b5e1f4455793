//! Changes of attributes: who may do which, and what comes along.

use super::{Access, Capabilities, Namespace};
use crate::{
    AllocateMode, AttributeChange, Attributes, Errno, Error, FileType, InodeFlags, ModeChange, NodeId, Permissions,
    Result, TimeChange,
};

const fn fail<T>(errno: Errno) -> Result<T> {
    Err(Error::new(errno))
}

impl Namespace<'_, '_> {
    /// The permissions of an inode whose attributes may change: `EPERM` for immutable and append-only ones.
    pub(super) fn changeable(&self, node: NodeId) -> Result<Permissions> {
        let known = self.fs.permissions(node)?;
        let fixed = InodeFlags::IMMUTABLE | InodeFlags::APPEND_ONLY;
        if known.flags.intersects(fixed) { fail(Errno::PERM) } else { Ok(known) }
    }

    /// `chmod`. `EOPNOTSUPP` for symbolic links.
    pub fn set_mode(&self, node: NodeId, mode: u32) -> Result<Attributes> {
        let known = self.changeable(node)?;
        if known.file_type == FileType::Symlink {
            return fail(Errno::OPNOTSUPP);
        }
        if !self.is_owner(&known) {
            return fail(Errno::PERM);
        }
        let keeps = self.keeps_set_group_id(known.owner);
        let mode = ModeChange::Set(mode & if keeps { 0o7777 } else { 0o5777 });
        self.fs.set_attributes(node, &AttributeChange { mode, ..Default::default() })
    }

    /// `chown`; `None` keeps. Set-id bits and capabilities of what is not a directory go.
    pub fn set_owner(&self, node: NodeId, user: Option<u32>, group: Option<u32>) -> Result<Attributes> {
        let known = match (user, group) {
            // Nobody's: the time of change moves, as it does whatever is appended.
            (None, None) => self.fs.permissions(node)?,
            _ => self.changeable(node)?,
        };
        if known.flags.contains(InodeFlags::IMMUTABLE) {
            return fail(Errno::PERM);
        }
        let owns = self.who.user == known.owner.user;
        let user_allowed = user.is_none_or(|user| owns && user == known.owner.user);
        let group_allowed =
            group.is_none_or(|group| owns && (group == known.owner.group || self.who.is_in_group(group)));
        if !(user_allowed && group_allowed || self.who.may_over(Capabilities::CHOWN, known.owner)) {
            return fail(Errno::PERM);
        }
        let mode = self.set_id_change(&known);
        // Dropping bits is a change of mode, which even a call that names no owner must be allowed.
        if mode != ModeChange::Keep && !self.is_owner(&known) && !self.who.may_over(Capabilities::CHOWN, known.owner) {
            return fail(Errno::PERM);
        }
        self.drop_capability(node, &known)?;
        self.fs.set_attributes(node, &AttributeChange { mode, user, group, ..Default::default() })
    }

    /// What a change of owner, or of size without privilege, does to the set-id bits.
    pub(super) fn set_id_change(&self, known: &Permissions) -> ModeChange {
        let group_bits = known.mode & 0o2010;
        if known.file_type == FileType::Directory {
            ModeChange::Keep
        } else if group_bits == 0o2000 && !self.keeps_set_group_id(known.owner) {
            // Without group execution the bit once meant mandatory locking; it goes with those who could not set it.
            ModeChange::Set(known.mode & 0o1777)
        } else if known.mode & 0o4000 != 0 || group_bits == 0o2010 {
            ModeChange::DropSetId
        } else {
            ModeChange::Keep
        }
    }

    /// Before the content of an open file changes by a write, a copy or an allocation: its capabilities go, and without privilege
    /// its set-id bits.
    #[inline]
    pub fn before_change(&self, node: NodeId) -> Result<()> {
        if self.fs.may_have_privileges(node) { self.drop_privileges(node, &self.fs.permissions(node)?) } else { Ok(()) }
    }

    /// Likewise, of a file that was looked at.
    #[cold]
    pub(super) fn drop_privileges(&self, node: NodeId, known: &Permissions) -> Result<()> {
        const SET_ID: u32 = 0o6000;
        if known.file_type != FileType::Regular {
            return Ok(());
        }
        self.drop_capability(node, known)?;
        if known.mode & SET_ID == 0 || self.who.may(Capabilities::FSETID) {
            return Ok(());
        }
        match self.set_id_change(known) {
            ModeChange::Keep => Ok(()),
            mode => self.fs.set_attributes(node, &AttributeChange { mode, ..Default::default() }).map(|_| ()),
        }
    }

    /// `fallocate`, through a descriptor that is open for writing. `EPERM` for an immutable file, and for an append-only one
    /// whose bytes would change.
    pub fn allocate_open(&self, node: NodeId, mode: AllocateMode, offset_bytes: u64, length_bytes: u64) -> Result<()> {
        let known = self.fs.permissions(node)?;
        let only_adds = matches!(mode, AllocateMode::Extend | AllocateMode::KeepSize);
        if known.flags.contains(InodeFlags::IMMUTABLE) || known.flags.contains(InodeFlags::APPEND_ONLY) && !only_adds {
            return fail(Errno::PERM);
        }
        self.drop_privileges(node, &known)?;
        self.fs.allocate(node, mode, offset_bytes, length_bytes)
    }

    /// `utimensat`. To set both to the present the right to write suffices.
    pub fn set_times(&self, node: NodeId, accessed: TimeChange, modified: TimeChange) -> Result<()> {
        if (accessed, modified) == (TimeChange::Keep, TimeChange::Keep) {
            return Ok(());
        }
        let known = self.fs.permissions(node)?;
        if (accessed, modified) == (TimeChange::Now, TimeChange::Now) {
            if known.flags.contains(InodeFlags::IMMUTABLE) {
                return fail(Errno::PERM);
            }
            if !self.is_owner(&known) {
                self.check_known(node, &known, Access::WRITE)?;
            }
        } else if known.flags.intersects(InodeFlags::IMMUTABLE | InodeFlags::APPEND_ONLY) || !self.is_owner(&known) {
            return fail(Errno::PERM);
        }
        let change = AttributeChange { accessed, modified, ..Default::default() };
        self.fs.set_attributes(node, &change).map(|_| ())
    }

    /// `truncate`, by path.
    pub fn truncate(&self, node: NodeId, size_bytes: u64) -> Result<()> {
        let known = self.fs.permissions(node)?;
        match known.file_type {
            FileType::Regular => {}
            FileType::Directory => return fail(Errno::ISDIR),
            _ => return fail(Errno::INVAL),
        }
        self.check_known(node, &known, Access::WRITE)?;
        if known.flags.contains(InodeFlags::APPEND_ONLY) {
            return fail(Errno::PERM);
        }
        self.cut(node, size_bytes, &known)
    }

    /// `ftruncate`: through a descriptor that is open for writing (which the caller checked: `EINVAL`).
    pub fn truncate_open(&self, node: NodeId, size_bytes: u64) -> Result<()> {
        let known = self.fs.permissions(node)?;
        match known.file_type {
            FileType::Regular if known.flags.contains(InodeFlags::APPEND_ONLY) => fail(Errno::PERM),
            FileType::Regular => self.cut(node, size_bytes, &known),
            _ => fail(Errno::INVAL),
        }
    }

    /// `FS_IOC_SETFLAGS`.
    pub fn set_flags(&self, node: NodeId, flags: InodeFlags) -> Result<()> {
        let known = self.fs.permissions(node)?;
        if !self.is_owner(&known) {
            return fail(Errno::PERM);
        }
        if !matches!(known.file_type, FileType::Regular | FileType::Directory) {
            return fail(Errno::NOTTY);
        }
        let guarded = InodeFlags::IMMUTABLE | InodeFlags::APPEND_ONLY;
        if (flags ^ known.flags).intersects(guarded) && !self.who.may(Capabilities::LINUX_IMMUTABLE) {
            return fail(Errno::PERM);
        }
        self.fs.set_attributes(node, &AttributeChange { flags: Some(flags), ..Default::default() }).map(|_| ())
    }
}
