//! What belongs to one mount rather than to its file system: what the kernel may remember, and how files are to look. Set when it is mounted.

/// What the kernel may remember.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum CachePolicy {
    /// Names, attributes and pages while nobody else has the volume open; nothing from the moment somebody has.
    #[default]
    Automatic,
    /// Nothing: others change the volume, and their changes are seen at once.
    Coherent,
    /// Everything: nobody else can open the volume while it is mounted.
    Exclusive {
        /// Also what was written, until `fsync`, `close` or memory pressure. Faster; what was not synced dies with
        /// the machine's memory *and with the server*.
        writeback: bool,
    },
}

/// What belongs to one mount rather than to the file system.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Policy {
    pub(crate) cache: CachePolicy,
    /// All files appear to be this user's.
    pub(crate) user: Option<u32>,
    /// All files appear to be this group's.
    pub(crate) group: Option<u32>,
    /// The permission bits that all files appear to lack; they appear to have all others.
    pub(crate) umask: Option<u32>,
    /// Reading directories moves no access time.
    pub(crate) no_directory_access_time: bool,
    /// Each read of a link moves its access time: the kernel must not remember where it leads.
    pub(crate) strict_access_time: bool,
    /// The kernel keeps locks, for this mount alone.
    pub(crate) local_locks: bool,
    /// How long somebody who opens the volume waits for an automatic mount to stop caching.
    pub(crate) cache_deadline: std::time::Duration,
}
