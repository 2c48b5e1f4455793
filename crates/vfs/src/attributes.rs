//! What is known about an inode, and requests to change it.

use crate::NodeId;

/// A point in time: nanoseconds since 1970-01-01 UTC, negative before it (1677 to 2262).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Time(pub i64);

impl Time {
    /// From the kernel's pair; saturates outside 1677–2262.
    pub const fn from_parts(seconds: i64, nanoseconds: u32) -> Self {
        // Whole nanoseconds first: seconds that are cut off must not get the nanoseconds added afterwards.
        let all = seconds as i128 * 1_000_000_000 + nanoseconds as i128;
        Self(if all > i64::MAX as i128 {
            i64::MAX
        } else if all < i64::MIN as i128 {
            i64::MIN
        } else {
            all as i64
        })
    }

    /// Whole seconds, rounded towards the past.
    pub const fn seconds(self) -> i64 {
        self.0.div_euclid(1_000_000_000)
    }

    /// Nanoseconds past [`Time::seconds`].
    pub const fn nanoseconds(self) -> u32 {
        self.0.rem_euclid(1_000_000_000) as u32
    }

    /// Now, by the real-time clock at its full resolution.
    pub fn now() -> Self {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
        Self::from_parts(now.tv_sec, now.tv_nsec as u32)
    }
}

/// What an inode is. The values are `S_IFMT >> 12` and `DT_*` of Linux.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum FileType {
    /// Named pipe.
    Fifo = 1,
    /// Character device.
    CharacterDevice = 2,
    /// Directory.
    Directory = 4,
    /// Block device.
    BlockDevice = 6,
    /// Regular file.
    Regular = 8,
    /// Symbolic link.
    Symlink = 10,
    /// Unix socket.
    Socket = 12,
}

impl FileType {
    /// From `S_IFMT >> 12` or a `DT_*` value.
    pub const fn from_bits(bits: u8) -> Option<Self> {
        Some(match bits {
            1 => Self::Fifo,
            2 => Self::CharacterDevice,
            4 => Self::Directory,
            6 => Self::BlockDevice,
            8 => Self::Regular,
            10 => Self::Symlink,
            12 => Self::Socket,
            _ => return None,
        })
    }

    /// The bits of `st_mode` that say this type.
    pub const fn mode_bits(self) -> u32 {
        (self as u32) << 12
    }
}

bitflags::bitflags! {
    /// Inode flags, with the values of `FS_IOC_GETFLAGS` (`chattr`) where Linux has them.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct InodeFlags: u32 {
        /// Writes are synchronous (always so here; kept for show).
        const SYNCHRONOUS = 0x0000_0008;
        /// Nothing about the file may change.
        const IMMUTABLE = 0x0000_0010;
        /// Data can be appended, nothing else.
        const APPEND_ONLY = 0x0000_0020;
        /// `dump` skips it.
        const NO_DUMP = 0x0000_0040;
        /// Access times are not kept.
        const NO_ACCESS_TIME = 0x0000_0080;
        /// Data is always written copy-on-write (atomic per call). Not one of Linux's values.
        const COPY_ON_WRITE = 0x0100_0000;
    }
}

/// The flags that `chattr` may change, and their values in `FS_IOC_FSGETXATTR`.
const EXTENDED_FLAGS: [(u32, InodeFlags); 5] = [
    (0x08, InodeFlags::IMMUTABLE),
    (0x10, InodeFlags::APPEND_ONLY),
    (0x20, InodeFlags::SYNCHRONOUS),
    (0x40, InodeFlags::NO_ACCESS_TIME),
    (0x80, InodeFlags::NO_DUMP),
];

impl InodeFlags {
    /// The flags as `FS_IOC_FSGETXATTR` says them (`fsx_xflags`).
    pub fn extended(self) -> u32 {
        EXTENDED_FLAGS.iter().filter(|pair| self.contains(pair.1)).fold(0, |all, pair| all | pair.0)
    }

    /// The flags that `FS_IOC_FSSETXATTR` asks for; `None` if one of them means nothing here. What that call knows nothing of is
    /// not among them.
    pub fn from_extended(extended: u32) -> Option<Self> {
        // That there are preallocated blocks, or attributes, is told and not asked for.
        let extended = extended & !0x8000_0002;
        let known = EXTENDED_FLAGS.iter().fold(0, |all, pair| all | pair.0);
        let chosen = EXTENDED_FLAGS.iter().filter(|pair| extended & pair.0 != 0);
        (extended & !known == 0).then(|| chosen.fold(Self::empty(), |all, pair| all | pair.1))
    }
}

/// Who owns a new inode.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Owner {
    /// User id.
    pub user: u32,
    /// Group id.
    pub group: u32,
}

/// What a permission check needs, cheaper to get than all [`Attributes`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Permissions {
    /// The type.
    pub file_type: FileType,
    /// Permission bits, set-id and sticky bits: `0o7777`.
    pub mode: u32,
    /// The owner.
    pub owner: Owner,
    /// Whether an access ACL exists, so that `system.posix_acl_access` must be consulted.
    pub has_access_list: bool,
    /// Inode flags.
    pub flags: InodeFlags,
}

/// What `stat` says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Attributes {
    /// The inode.
    pub node: NodeId,
    /// Its type.
    pub file_type: FileType,
    /// Permission bits, set-id and sticky bits: `0o7777`.
    pub mode: u32,
    /// Number of hard links; a directory counts 2 and one for each directory in it.
    pub links: u64,
    /// The owner.
    pub owner: Owner,
    /// The device, for device files: Linux's `dev_t` encoding.
    pub device: u64,
    /// Size in bytes.
    pub size_bytes: u64,
    /// Allocated space in units of 512 bytes.
    pub sectors: u64,
    /// The preferred size of I/O, in bytes.
    pub block_bytes: u32,
    /// Inode flags.
    pub flags: InodeFlags,
    /// Last access.
    pub accessed: Time,
    /// Last change of the data.
    pub modified: Time,
    /// Last change of the inode.
    pub changed: Time,
    /// Birth.
    pub created: Time,
}

impl Attributes {
    /// `st_mode`.
    pub const fn mode_and_type(&self) -> u32 {
        self.file_type.mode_bits() | self.mode
    }
}

/// How a time changes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum TimeChange {
    /// It stays.
    #[default]
    Keep,
    /// It becomes the present.
    Now,
    /// It becomes this.
    Set(Time),
}

/// How the permission bits change.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ModeChange {
    /// They stay.
    #[default]
    Keep,
    /// They become these (`0o7777`).
    Set(u32),
    /// Set-user-id, and set-group-id of a group-executable file, are dropped, as `chown`, `write` and `truncate`
    /// by those without privilege do.
    DropSetId,
}

/// A change of attributes, done as one atomic operation. Permission is the caller's to check.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct AttributeChange {
    /// New size in bytes: truncates, or extends with zeros. Regular files only.
    pub size_bytes: Option<u64>,
    /// New permission bits.
    pub mode: ModeChange,
    /// New owner.
    pub user: Option<u32>,
    /// New group.
    pub group: Option<u32>,
    /// New access time.
    pub accessed: TimeChange,
    /// New modification time. A change of size sets it to now unless given.
    pub modified: TimeChange,
    /// New inode flags.
    pub flags: Option<InodeFlags>,
}

/// What `statfs` says. Blocks are of `block_bytes`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Statistics {
    /// Size of a block.
    pub block_bytes: u32,
    /// All blocks that files can ever use.
    pub blocks: u64,
    /// Blocks that are free.
    pub blocks_free: u64,
    /// Blocks that are free to those without privilege.
    pub blocks_available: u64,
    /// All inodes.
    pub inodes: u64,
    /// Inodes that are free.
    pub inodes_free: u64,
    /// Identity of the file system (`f_fsid`).
    pub identity: u64,
}
