//! Who asks: ids, groups, capabilities, umask.

use super::UserNamespace;
use crate::Owner;

bitflags::bitflags! {
    /// Capabilities of Linux that matter to files, with the kernel's bits.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct Capabilities: u64 {
        /// Change owners at will.
        const CHOWN = 1 << 0;
        /// Pass read, write and search checks.
        const DAC_OVERRIDE = 1 << 1;
        /// Pass read and search checks.
        const DAC_READ_SEARCH = 1 << 2;
        /// Act as the owner of any file.
        const FOWNER = 1 << 3;
        /// Keep set-id bits.
        const FSETID = 1 << 4;
        /// Change the immutable and append-only flags.
        const LINUX_IMMUTABLE = 1 << 9;
        /// Use `trusted` and `security` attributes.
        const SYS_ADMIN = 1 << 21;
        /// Make device files.
        const MKNOD = 1 << 27;
        /// Set file capabilities.
        const SETFCAP = 1 << 31;
    }
}

/// Who asks. For `access(2)` the real ids, else the effective ones (`fsuid`, `fsgid`).
#[derive(Clone, Copy, Debug)]
pub struct Credentials<'c> {
    /// User.
    pub user: u32,
    /// Group.
    pub group: u32,
    /// Supplementary groups.
    pub groups: &'c [u32],
    /// Effective capabilities.
    pub capabilities: Capabilities,
    /// File mode creation mask.
    pub umask: u32,
    /// The user namespace that the capabilities are those of; `None` for the one that the file system belongs to. The ids are the file
    /// system's in either case.
    pub namespace: Option<&'c UserNamespace>,
}

impl Credentials<'_> {
    /// A user or group that is not known, and owns nothing: what the kernel takes for no id at all.
    pub const UNKNOWN: u32 = u32::MAX;

    /// Root with all capabilities, umask 022.
    pub const ROOT: Credentials<'static> = Credentials {
        user: 0,
        group: 0,
        groups: &[],
        capabilities: Capabilities::all(),
        umask: 0o022,
        namespace: None,
    };

    /// Whether all of `capabilities` are there, for what is nobody's in particular: those of a user namespace do not count.
    #[inline]
    pub const fn may(&self, capabilities: Capabilities) -> bool {
        self.capabilities.contains(capabilities) && self.namespace.is_none()
    }

    /// Whether all of `capabilities` are there, for what belongs to `owner`.
    #[inline]
    pub fn may_over(&self, capabilities: Capabilities, owner: Owner) -> bool {
        self.capabilities.contains(capabilities) && self.namespace.is_none_or(|namespace| namespace.covers(owner))
    }

    /// Whether they may act as `user`: it is their own id, or they have `CAP_FOWNER` where that id is known.
    #[inline]
    pub(super) fn acts_as(&self, user: u32) -> bool {
        let is_known = |namespace: &UserNamespace| namespace.users.inside(user).is_some();
        self.user == user || self.capabilities.contains(Capabilities::FOWNER) && self.namespace.is_none_or(is_known)
    }

    /// Whether directories are searched without asking.
    #[inline]
    pub(super) const fn searches_all(&self) -> bool {
        self.namespace.is_none()
            && self.capabilities.intersects(Capabilities::DAC_OVERRIDE.union(Capabilities::DAC_READ_SEARCH))
    }

    /// Whether `group` is one of theirs.
    #[inline]
    pub fn is_in_group(&self, group: u32) -> bool {
        self.group == group || self.groups.contains(&group)
    }
}
