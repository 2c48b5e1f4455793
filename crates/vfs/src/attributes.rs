//! What is known about an inode, and requests to change it.

use crate::{Errno, Error, NodeId, Result};

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
        /// Writes are synchronous (kept for show: on memory they always are, and on a disk `O_SYNC` makes them so).
        const SYNCHRONOUS = 0x0000_0008;
        /// Nothing about the file may change.
        const IMMUTABLE = 0x0000_0010;
        /// Data can be appended, nothing else.
        const APPEND_ONLY = 0x0000_0020;
        /// `dump` skips it.
        const NO_DUMP = 0x0000_0040;
        /// Access times are not kept.
        const NO_ACCESS_TIME = 0x0000_0080;
        /// Data is written in place, whatever the volume's default is (`FS_NOCOW_FL`, `chattr +C`). Excludes the next one.
        const IN_PLACE = 0x0080_0000;
        /// Data is written copy-on-write (atomic per call), whatever the volume's default is. Not one of Linux's values.
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

/// What says how data is written; without either, the volume's default does.
const DATA_FLAGS: InodeFlags = InodeFlags::IN_PLACE.union(InodeFlags::COPY_ON_WRITE);

impl InodeFlags {
    /// The flags as `FS_IOC_FSGETXATTR` says them (`fsx_xflags`).
    pub fn extended(self) -> u32 {
        EXTENDED_FLAGS.iter().filter(|pair| self.contains(pair.1)).fold(0, |all, pair| all | pair.0)
    }

    /// What `FS_IOC_SETFLAGS` with `bits` makes of these flags. `EOPNOTSUPP` for a flag that means nothing here. Of
    /// [`InodeFlags::IN_PLACE`] and [`InodeFlags::COPY_ON_WRITE`], the one that was not there replaces the other, so that `chattr +C`, which
    /// adds to what it read, means what it says; `EINVAL` if neither was.
    pub fn with_bits(self, bits: u32) -> Result<Self> {
        let wanted = Self::from_bits(bits).ok_or(Error::new(Errno::OPNOTSUPP))?;
        if !wanted.contains(DATA_FLAGS) {
            return Ok(wanted);
        }
        match self & DATA_FLAGS {
            Self::COPY_ON_WRITE => Ok(wanted - Self::COPY_ON_WRITE),
            Self::IN_PLACE => Ok(wanted - Self::IN_PLACE),
            _ => Err(Error::because(Errno::INVAL, "data is written in place or copy-on-write, not both")),
        }
    }

    /// What `FS_IOC_FSSETXATTR` with `extended` makes of these flags; `EOPNOTSUPP` if one of them means nothing here. What that call
    /// knows nothing of stays.
    pub fn with_extended(self, extended: u32) -> Result<Self> {
        // That there are preallocated blocks, or attributes, is told and not asked for.
        let extended = extended & !0x8000_0002;
        let known = EXTENDED_FLAGS.iter().fold(0, |all, pair| all | pair.0);
        if extended & !known != 0 {
            return Err(Error::new(Errno::OPNOTSUPP));
        }
        let about = EXTENDED_FLAGS.iter().fold(Self::empty(), |all, pair| all | pair.1);
        let chosen = EXTENDED_FLAGS.iter().filter(|pair| extended & pair.0 != 0);
        Ok(chosen.fold(self - about, |all, pair| all | pair.1))
    }

    /// The flags with how data is written: copy-on-write, in place, or as the volume's default is.
    pub fn with_copy_on_write(self, copy_on_write: Option<bool>) -> Self {
        let mode = match copy_on_write {
            Some(true) => Self::COPY_ON_WRITE,
            Some(false) => Self::IN_PLACE,
            None => Self::empty(),
        };
        (self - DATA_FLAGS) | mode
    }

    /// Whether data is written copy-on-write, if that is said here; else the volume's default counts.
    pub fn copy_on_write(self) -> Option<bool> {
        self.intersects(DATA_FLAGS).then(|| self.contains(Self::COPY_ON_WRITE))
    }

    /// What a new inode in a directory with these flags begins with, as on the kernel's file systems.
    pub fn inherited(self, file_type: FileType) -> Self {
        let by_all = Self::NO_DUMP | Self::NO_ACCESS_TIME;
        match file_type {
            FileType::Regular | FileType::Directory => self & (by_all | Self::SYNCHRONOUS | DATA_FLAGS),
            _ => self & by_all,
        }
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
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_two_ways_to_write_data_the_new_one_counts() {
        use InodeFlags as F;
        let errno = |result: Result<F>| result.map_err(|error| error.errno());
        let both = (F::IN_PLACE | F::COPY_ON_WRITE).bits();
        assert_eq!(errno(F::COPY_ON_WRITE.with_bits(both | F::NO_DUMP.bits())), Ok(F::IN_PLACE | F::NO_DUMP));
        assert_eq!(errno(F::IN_PLACE.with_bits(both)), Ok(F::COPY_ON_WRITE));
        assert_eq!(errno(F::NO_DUMP.with_bits(both)), Err(Errno::INVAL));
        assert_eq!(errno(F::COPY_ON_WRITE.with_bits(0)), Ok(F::empty()));
        assert_eq!(errno(F::empty().with_bits(0x0080_0000)), Ok(F::IN_PLACE), "FS_NOCOW_FL");
        // Compression, journalled data, no tail merging.
        for unknown in [0x4, 0x4000, 0x8000] {
            assert_eq!(errno(F::empty().with_bits(unknown)), Err(Errno::OPNOTSUPP));
        }
    }

    #[test]
    fn what_fssetxattr_knows_nothing_of_stays() {
        use InodeFlags as F;
        let now = F::IN_PLACE | F::NO_DUMP;
        assert_eq!(now.with_extended(0x08).ok(), Some(F::IN_PLACE | F::IMMUTABLE));
        assert_eq!(now.with_extended(now.extended()).ok(), Some(now));
        assert_eq!(now.with_extended(0x100).map_err(|error| error.errno()), Err(Errno::OPNOTSUPP));
    }
}
