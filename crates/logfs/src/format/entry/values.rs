//! What an entry says, as values: names that are bound, extents, attributes.

use super::payload::{EXTENT_BYTES, EXTENT_SHARED};
use crate::format::get_u64;
use crate::format::slot::Birth;
use gannet_vfs::{FileType, InodeFlags, Owner};

/// What a name is bound to by a directory's log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Binding<'a> {
    /// The name.
    pub(crate) name: &'a [u8],
    /// Tells names of one hash apart; with the hash it is the entry's key and its cookie.
    pub(crate) rank: u16,
    /// The type of what it names from now on; `None` if from now on it names nothing.
    pub(crate) file_type: Option<FileType>,
    /// The inode; for a removal, the one it named.
    pub(crate) inode: u32,
    /// Its generation.
    pub(crate) generation: u32,
}

/// The other half of a rename across directories.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Partner {
    /// The other directory.
    pub(crate) inode: u32,
    /// Its generation.
    pub(crate) generation: u32,
    /// The sequence number of the other half in its log.
    pub(crate) sequence: u64,
}

/// A run of a file's blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileExtent {
    /// First block in the file.
    pub(crate) file_block: u64,
    /// First block on the volume.
    pub(crate) block: u64,
    /// Number of blocks, 1 to 2^24 - 1.
    pub(crate) count: u32,
    /// Others may refer to these blocks as well.
    pub(crate) shared: bool,
}

/// All attributes of an inode that its log keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LoggedAttributes {
    /// Permission bits.
    pub(crate) mode: u32,
    /// Flags.
    pub(crate) flags: InodeFlags,
    /// Owner.
    pub(crate) owner: Owner,
    /// Size in bytes; 0 for what is not a regular file.
    pub(crate) size_bytes: u64,
    /// Time of modification.
    pub(crate) modified: i64,
    /// Time of access.
    pub(crate) accessed: i64,
}

/// What an entry says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Payload<'a> {
    /// Nothing: it makes the entry before it no longer the last.
    Seal,
    /// Names change.
    Bind {
        /// The name that changes.
        first: Binding<'a>,
        /// Another one, for renames within a directory.
        second: Option<Binding<'a>>,
        /// The attributes of the inode that `first` names, if this entry makes it.
        birth: Option<Birth>,
        /// The other half, if it is a rename across directories.
        partner: Option<Partner>,
    },
    /// Blocks are mapped; the size is as given.
    Write {
        /// Size in bytes afterwards.
        size_bytes: u64,
        /// Data hash of the bytes that the operation made visible, if they were not durable before the entry.
        hash: Option<u64>,
        /// The blocks. None if the bytes lie behind the old end in a block that was mapped already.
        extents: Extents<'a>,
    },
    /// The size changes, blocks behind it are unmapped.
    Size {
        /// Size in bytes afterwards.
        size_bytes: u64,
        /// See [`Payload::Write`].
        hash: Option<u64>,
    },
    /// Attributes change: all of them, as they are afterwards. The entry's time is the time of the inode's change.
    Attributes(LoggedAttributes),
    /// Size and attributes change together: as [`Payload::Size`] and [`Payload::Attributes`] say.
    Resize {
        /// All attributes afterwards, the size among them.
        attributes: LoggedAttributes,
        /// See [`Payload::Write`].
        hash: Option<u64>,
        /// The file grows, and blocks that stand behind its new end stay.
        keeps: bool,
    },
    /// A hole is made.
    Unmap {
        /// First block in the file.
        file_block: u64,
        /// Number of blocks.
        count: u64,
    },
    /// Blocks move within the file: `fallocate`'s collapse (down, over what was there) and insert (up).
    Shift {
        /// First block in the file that moves.
        file_block: u64,
        /// How far, in blocks.
        distance: u64,
        /// Towards the beginning.
        down: bool,
        /// Size in bytes afterwards.
        size_bytes: u64,
    },
    /// All blocks of a range are unmapped, then others are mapped there: both or neither. The size is as given.
    Remap {
        /// Size in bytes afterwards.
        size_bytes: u64,
        /// First block in the file.
        file_block: u64,
        /// Number of blocks.
        count: u64,
        /// What is mapped within the range.
        extents: Extents<'a>,
    },
    /// An extended attribute is set, or removed.
    Xattr {
        /// Its full name.
        name: &'a [u8],
        /// Its value; `None` if it is removed.
        value: Option<&'a [u8]>,
    },
    /// An extended attribute is set to a value that stands in blocks of its own.
    LargeXattr {
        /// Its full name.
        name: &'a [u8],
        /// Where its value is.
        value: LargeValue<'a>,
    },
    /// Where a symbolic link leads. The first entry of its log.
    Target(&'a [u8]),
}

/// The value of an extended attribute that stands in blocks of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LargeValue<'a> {
    /// Its length in bytes.
    pub(crate) bytes: u32,
    /// Its checksum ([`Owned::value_checksum`]).
    pub(crate) checksum: u64,
    /// Its blocks; `file_block` counts from the value's beginning.
    pub(crate) extents: Extents<'a>,
}

/// An extended attribute as its entry says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum XattrValue<'a> {
    /// The value stands in the entry.
    Inline(&'a [u8]),
    /// It stands in blocks of its own.
    Large(LargeValue<'a>),
}

/// The extents of a write entry, as a list or as they stand on the medium.
#[derive(Clone, Copy)]
pub(crate) enum Extents<'a> {
    /// A list.
    List(&'a [FileExtent]),
    /// Encoded.
    Encoded(&'a [u8]),
}

impl Extents<'_> {
    /// How many.
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::List(list) => list.len(),
            Self::Encoded(bytes) => bytes.len() / EXTENT_BYTES,
        }
    }

    /// Each in turn.
    pub(crate) fn iter(&self) -> impl Iterator<Item = FileExtent> + '_ {
        (0..self.len()).map(|index| match self {
            Self::List(list) => list[index],
            Self::Encoded(bytes) => {
                let run = get_u64(bytes, index * EXTENT_BYTES);
                FileExtent {
                    file_block: get_u64(bytes, index * EXTENT_BYTES + 8),
                    block: run & (EXTENT_SHARED - 1),
                    count: (run >> 40) as u32,
                    shared: run & EXTENT_SHARED != 0,
                }
            }
        })
    }
}

impl core::fmt::Debug for Extents<'_> {
    fn fmt(&self, out: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        out.debug_list().entries(self.iter()).finish()
    }
}

impl PartialEq for Extents<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

impl Eq for Extents<'_> {}
