//! Who asks: ids, groups, capabilities, umask.

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
}

impl Credentials<'_> {
    /// Root with all capabilities, umask 022.
    pub const ROOT: Credentials<'static> =
        Credentials { user: 0, group: 0, groups: &[], capabilities: Capabilities::all(), umask: 0o022 };

    /// Whether all of `capabilities` are there.
    #[inline]
    pub const fn may(&self, capabilities: Capabilities) -> bool {
        self.capabilities.contains(capabilities)
    }

    /// Whether directories are searched without asking.
    #[inline]
    pub(super) const fn searches_all(&self) -> bool {
        self.capabilities.intersects(Capabilities::DAC_OVERRIDE.union(Capabilities::DAC_READ_SEARCH))
    }

    /// Whether `group` is one of theirs.
    #[inline]
    pub fn is_in_group(&self, group: u32) -> bool {
        self.group == group || self.groups.contains(&group)
    }
}
