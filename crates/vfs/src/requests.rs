//! What the operations of a file system take and return, besides attributes.

use crate::{FileType, InodeFlags, Name, NodeId, Owner};

/// An inode to be made.
#[derive(Clone, Copy, Debug)]
pub struct NewNode<'a> {
    /// What it shall be.
    pub file_type: FileType,
    /// Permission, set-id and sticky bits, the umask or default ACL already applied.
    pub mode: u32,
    /// Its owner, set-group-id directories already considered.
    pub owner: Owner,
    /// Device number, for device files.
    pub device: u64,
    /// Inode flags it begins with.
    pub flags: InodeFlags,
    /// Where a symbolic link leads (1 to 4095 bytes); empty for other types.
    pub target: &'a [u8],
    /// Extended attributes it begins with (inherited ACLs), full names and values.
    pub xattrs: &'a [(&'a [u8], &'a [u8])],
}

impl NewNode<'_> {
    /// A regular file with these permission bits and owner.
    pub const fn regular(mode: u32, owner: Owner) -> Self {
        Self::of_type(FileType::Regular, mode, owner)
    }

    /// A directory with these permission bits and owner.
    pub const fn directory(mode: u32, owner: Owner) -> Self {
        Self::of_type(FileType::Directory, mode, owner)
    }

    /// Any type that needs neither device number nor target.
    pub const fn of_type(file_type: FileType, mode: u32, owner: Owner) -> Self {
        Self { file_type, mode, owner, device: 0, flags: InodeFlags::empty(), target: &[], xattrs: &[] }
    }
}

/// What a lookup finds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Found {
    /// The inode.
    pub node: NodeId,
    /// Its type.
    pub file_type: FileType,
}

/// What a removal expects to find.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RemoveKind {
    /// Anything but a directory (`unlink`): `EISDIR` for a directory.
    NonDirectory,
    /// An empty directory (`rmdir`): `ENOTDIR`, `ENOTEMPTY`.
    Directory,
}

bitflags::bitflags! {
    /// Flags of `renameat2(2)`, with its values.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct RenameFlags: u32 {
        /// `EEXIST` if the new name exists.
        const NO_REPLACE = 1;
        /// Both names exist and change places.
        const EXCHANGE = 2;
        /// A whiteout (character device 0:0) stays at the old name.
        const WHITEOUT = 4;
    }

    /// What else a write does.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct WriteFlags: u32 {
        /// The writer lacks `CAP_FSETID`: set-id bits are dropped.
        const DROP_SET_ID = 1;
        /// What is written is on the medium when the write returns, as after `fdatasync`: nothing more to do but on media that must be synced.
        const DURABLE = 2;
    }
}

impl WriteFlags {
    /// Of a write through a descriptor with these status flags (`O_*`): `O_DSYNC`, which `O_SYNC` includes, makes it durable.
    #[inline]
    pub const fn of_status(status: u32) -> Self {
        const O_DSYNC: u32 = 0o10000;
        if status & O_DSYNC != 0 { Self::DURABLE } else { Self::empty() }
    }

    /// The same, of a write that has flags of its own (`RWF_*`) as well: `RWF_DSYNC` or `RWF_SYNC` does so too.
    #[inline]
    pub const fn of_call(status: u32, flags: usize) -> Self {
        const RWF_DSYNC: usize = 2;
        const RWF_SYNC: usize = 4;
        if flags & (RWF_DSYNC | RWF_SYNC) != 0 { Self::DURABLE } else { Self::of_status(status) }
    }
}

/// Where a write goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WritePosition {
    /// At this byte.
    At(u64),
    /// At the end of the file, found and moved in one step with the write.
    Append,
}

/// What a write did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Written {
    /// The byte it began at.
    pub offset_bytes: u64,
    /// How many bytes were written; fewer than asked for when the volume filled up or the caller's memory ended.
    pub count_bytes: usize,
}

/// How far a sync goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SyncScope {
    /// `fdatasync`.
    Data,
    /// `fsync`.
    DataAndAttributes,
}

/// What `fallocate(2)` does to a range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AllocateMode {
    /// Space is reserved, the size grows when the range ends beyond it.
    Extend,
    /// Space is reserved, the size stays.
    KeepSize,
    /// The range becomes a hole, the size stays.
    PunchHole,
    /// The range reads as zeros and has space.
    Zero,
    /// The same, and the size stays.
    ZeroKeepSize,
    /// The range is cut out, what follows moves down. Whole blocks only.
    Collapse,
    /// A hole is put in, what follows moves up. Whole blocks only.
    Insert,
    /// Shared blocks of the range become private, and holes get space: what is written there needs no more. The size grows when the range ends
    /// beyond it.
    Unshare,
    /// The same, and the size stays.
    UnshareKeepSize,
}

impl AllocateMode {
    /// What the flags of `fallocate(2)` (`FALLOC_FL_…`) ask for; `None` for those that there are not, and that do not go together.
    pub const fn of_flags(flags: u32) -> Option<Self> {
        Some(match flags {
            0x00 => Self::Extend,
            0x01 => Self::KeepSize,
            0x03 => Self::PunchHole,
            0x08 => Self::Collapse,
            0x10 => Self::Zero,
            0x11 => Self::ZeroKeepSize,
            0x20 => Self::Insert,
            0x40 => Self::Unshare,
            0x41 => Self::UnshareKeepSize,
            _ => return None,
        })
    }
}

/// What `lseek` looks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SeekTarget {
    /// `SEEK_DATA`.
    Data,
    /// `SEEK_HOLE`.
    Hole,
}

/// What `setxattr(2)` expects.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum XattrMode {
    /// Create or replace.
    Any,
    /// `EEXIST` if it exists.
    Create,
    /// `ENODATA` if it does not.
    Replace,
}

/// One entry of a directory, as it is read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DirectoryEntry<'a> {
    /// The inode's number.
    pub number: u64,
    /// Its type.
    pub file_type: FileType,
    /// Reading goes on behind this entry when given this cookie. 3 to `i64::MAX`; it stays valid whatever happens
    /// to other entries.
    pub cookie: u64,
    /// The name.
    pub name: Name<'a>,
}

/// What an extent of a file is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ExtentKind {
    /// Data.
    Data,
    /// Data that other files share (reflink).
    Shared,
}

/// A run of a file's blocks, as `FS_IOC_FIEMAP` tells them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Extent {
    /// Where in the file, in bytes.
    pub file_offset_bytes: u64,
    /// Where on the medium, in bytes.
    pub medium_offset_bytes: u64,
    /// How long, in bytes.
    pub length_bytes: u64,
    /// What it is.
    pub kind: ExtentKind,
}

/// What a caller that maps a file will do with the map.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MapAccess {
    /// Read only (also every private map). `EROFS` where what the last block holds behind the end of the file cannot be made zeros.
    Read,
    /// Read only, to see what others write later. Holes are allocated first, where the volume can be written to and has room for them,
    /// and as long as they are not very large. What the last block holds behind the end of the file is the caller's to hide, where the file
    /// system cannot be written to.
    Watch,
    /// Store through a shared map: holes of the range are allocated first.
    Write,
    /// Likewise, but holes stay and are told as such: the caller asks for what it is about to store to once more, with [`Self::Write`].
    WriteAroundHoles,
    /// What a forked child has of its parent's shared writable map: it is there, and only has to be known of.
    Inherited,
}

/// A piece of a mapped range, to be mapped from `descriptor` at `descriptor_offset_bytes`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MappedExtent {
    /// Where in the file, in bytes; a multiple of the page size.
    pub file_offset_bytes: u64,
    /// How long, in bytes; a multiple of the page size.
    pub length_bytes: u64,
    /// The kernel's descriptor of the medium in this process, or `None` for a hole (map anonymous zeros).
    pub descriptor: Option<i32>,
    /// Where in that descriptor's file.
    pub descriptor_offset_bytes: u64,
    /// Device and inode of that file. A descriptor that leads elsewhere is another file's: the program has closed the medium's.
    pub descriptor_file: (u64, u64),
    /// Where this process has the piece mapped already, with the medium, from which a further map can be made. 0 for a hole.
    pub address: usize,
}

/// Names the pin behind a map, to be given back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MapToken(pub u64);
