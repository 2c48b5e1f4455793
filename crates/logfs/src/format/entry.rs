//! Log entries: what happened to an inode, each proving itself by a checksum over its bytes, its inode and generation.
//!
//! ```text
//!   0  kind:8, flags:8, lines:8, 0:8, epoch:32
//!   8  checksum of all its lines but this word, keyed with inode and generation
//!  16  sequence: one more than the entry before it
//!  24  time, nanoseconds since 1970
//!  32  payload, by kind; the rest of the last line is zero
//! ```
//!
//! One entry is one operation's share in one log: recovery takes it whole or not at all.

use super::page::{ENTRY_LINES, LINES};
use super::{BLOCK_BYTES, Key, LINE_BYTES, Tag, get_u16, get_u32, get_u64, put_u16, put_u32, put_u64};
use crate::format::slot::Birth;
use gannet_vfs::{FileType, InodeFlags, NAME_BYTES_MAX, Owner};

const AT_EPOCH: usize = 4;
const AT_CHECKSUM: usize = 8;
const AT_SEQUENCE: usize = 16;
const AT_TIME: usize = 24;
const AT_PAYLOAD: usize = 32;
const BINDING_BYTES: usize = 16;
const BIRTH_BYTES: usize = 32;
const PARTNER_BYTES: usize = 16;
const EXTENT_BYTES: usize = 16;
const REMAP_BYTES: usize = 24;
const LARGE_XATTR_BYTES: usize = 16;
const ATTRIBUTES_BYTES: usize = 40;
/// Set in an extent's first word if others may refer to its blocks as well.
const EXTENT_SHARED: u64 = 1 << 39;

/// Room for an entry of up to four lines, which nearly all are, at the start of a line.
#[repr(align(64))]
pub(crate) struct ShortRoom(pub(crate) [u8; ShortRoom::LINES as usize * LINE_BYTES as usize]);

impl ShortRoom {
    /// Lines that it has.
    pub(crate) const LINES: u32 = 4;

    pub(crate) const fn new() -> Self {
        Self([0; Self::LINES as usize * LINE_BYTES as usize])
    }
}

/// The longest entry, in bytes.
pub(crate) const ENTRY_BYTES_MAX: usize = (ENTRY_LINES as u64 * LINE_BYTES) as usize;
/// The longest entry of a directory: two names, a birth and a partner.
pub(crate) const DIRECTORY_ENTRY_BYTES_MAX: usize =
    (AT_PAYLOAD + 2 * (BINDING_BYTES + NAME_BYTES_MAX + 1) + BIRTH_BYTES + PARTNER_BYTES).next_multiple_of(64);
/// How many extents one write entry can hold.
pub(crate) const EXTENTS_MAX: usize = (ENTRY_BYTES_MAX - AT_PAYLOAD - 16) / EXTENT_BYTES;
/// How many extents one remap entry can hold.
pub(crate) const REMAP_EXTENTS_MAX: usize = (ENTRY_BYTES_MAX - AT_PAYLOAD - REMAP_BYTES) / EXTENT_BYTES;
/// The longest symlink target, in bytes: what one page holds.
pub(crate) const TARGET_BYTES_MAX: usize = ENTRY_BYTES_MAX - AT_PAYLOAD - 8;
/// The longest name and value of an extended attribute together, in bytes.
pub(crate) const XATTR_BYTES_MAX: usize = ENTRY_BYTES_MAX - AT_PAYLOAD - 8;

const KIND_SEAL: u8 = 1;
const KIND_BIND: u8 = 2;
const KIND_WRITE: u8 = 3;
const KIND_SIZE: u8 = 4;
const KIND_ATTRIBUTES: u8 = 5;
const KIND_UNMAP: u8 = 6;
const KIND_SHIFT: u8 = 7;
const KIND_XATTR: u8 = 8;
const KIND_TARGET: u8 = 9;
const KIND_REMAP: u8 = 10;
const KIND_LARGE_XATTR: u8 = 11;
const KIND_RESIZE: u8 = 12;

const FLAG_BIRTH: u8 = 1;
const FLAG_PARTNER: u8 = 2;
const FLAG_PAIR: u8 = 4;
const FLAG_HASHED: u8 = 8;
const FLAG_REMOVED: u8 = 16;
const FLAG_DOWN: u8 = 32;

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

/// Whose log an entry stands in, and under which key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Owned {
    /// The volume's key.
    pub(crate) key: Key,
    /// The inode.
    pub(crate) inode: u32,
    /// Its generation.
    pub(crate) generation: u32,
}

impl Owned {
    /// The checksum of an extended attribute's value that stands in blocks of its own.
    pub(crate) fn value_checksum(self, value: &[u8]) -> u64 {
        self.key.checksum(Tag::Value, (self.inode as u64) << 32 | self.generation as u64, 0, value)
    }

    fn checksum(self, first_word: u64, entry: &[u8]) -> u64 {
        let owner = (self.inode as u64) << 32 | self.generation as u64;
        self.key.checksum(Tag::Entry, owner, first_word, &entry[AT_SEQUENCE..])
    }
}

/// Encodes an entry at the start of `buffer`, which must be large enough for it ([`Payload::lines`]), and returns the
/// bytes to be written.
pub(crate) fn encode<'b>(
    owned: Owned,
    epoch: u32,
    sequence: u64,
    time: i64,
    payload: &Payload<'_>,
    buffer: &'b mut [u8],
) -> &'b [u8] {
    let lines = payload.lines();
    let bytes = &mut buffer[..lines as usize * LINE_BYTES as usize];
    for line in bytes.as_chunks_mut::<{ LINE_BYTES as usize }>().0 {
        *line = [0; LINE_BYTES as usize];
    }
    // Words only, here and below: the checksum and the medium take words, and a load of what was just written in pieces of
    // another size would wait for all stores before it.
    put_u64(bytes, AT_SEQUENCE, sequence);
    put_u64(bytes, AT_TIME, time as u64);
    let (kind, flags) = payload.put(&mut bytes[AT_PAYLOAD..]);
    let first = kind as u64 | (flags as u64) << 8 | (lines as u64) << 16 | (epoch as u64) << 32;
    put_u64(bytes, 0, first);
    let checksum = owned.checksum(first, bytes);
    put_u64(bytes, AT_CHECKSUM, checksum);
    bytes
}

/// A log entry that has proved itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry<'a> {
    /// Lines it takes.
    pub(crate) lines: u32,
    /// Epoch it was written in.
    pub(crate) epoch: u32,
    /// Its sequence number.
    pub(crate) sequence: u64,
    /// When.
    pub(crate) time: i64,
    /// What it says.
    pub(crate) payload: Payload<'a>,
}

impl<'a> Entry<'a> {
    /// Takes the entry that begins `bytes` (the rest of its page), if a valid one of this owner stands there. Whether its
    /// sequence and epoch fit is the caller's to see.
    pub(crate) fn decode(owned: Owned, bytes: &'a [u8]) -> Option<Self> {
        let lines = claimed_lines(bytes)?;
        let proved = bytes.get(..lines as usize * LINE_BYTES as usize)?;
        if get_u64(proved, AT_CHECKSUM) != owned.checksum(get_u64(proved, 0), proved) {
            return None;
        }
        Self::peek(bytes)
    }

    /// What an entry says that was proved when its log was read: what it says now is to be believed only as far as
    /// something else bears it out.
    pub(crate) fn peek(bytes: &'a [u8]) -> Option<Self> {
        let lines = claimed_lines(bytes)?;
        let bytes = bytes.get(..lines as usize * LINE_BYTES as usize)?;
        let time = get_u64(bytes, AT_TIME) as i64;
        Some(Self {
            lines,
            epoch: get_u32(bytes, AT_EPOCH),
            sequence: get_u64(bytes, AT_SEQUENCE),
            time,
            payload: Payload::get(bytes[0], bytes[1], time, &bytes[AT_PAYLOAD..])?,
        })
    }
}

/// How many lines the entry that begins `bytes` claims to take, if that can be.
pub(crate) fn claimed_lines(bytes: &[u8]) -> Option<u32> {
    let lines = *bytes.get(2)? as u32;
    (lines > 0 && lines < LINES && bytes.len() as u64 >= lines as u64 * LINE_BYTES).then_some(lines)
}

/// Name and value of an extended-attribute entry that was checked when its log was read, or may be another's by now: the
/// caller validates. `None` where the bytes cannot be one.
pub(crate) fn peek_xattr(bytes: &[u8]) -> Option<(&[u8], XattrValue<'_>)> {
    if bytes.len() < LINE_BYTES as usize || (bytes[0] != KIND_XATTR && bytes[0] != KIND_LARGE_XATTR) {
        return None;
    }
    match Payload::get(bytes[0], bytes[1], 0, &bytes[AT_PAYLOAD..])? {
        Payload::Xattr { name, value: Some(value) } => Some((name, XattrValue::Inline(value))),
        Payload::LargeXattr { name, value } => Some((name, XattrValue::Large(value))),
        _ => None,
    }
}

/// The target of a symbolic link's first entry; see [`peek_xattr`].
pub(crate) fn peek_target(bytes: &[u8]) -> Option<&[u8]> {
    if bytes.len() < AT_PAYLOAD + 8 || bytes[0] != KIND_TARGET {
        return None;
    }
    bytes[AT_PAYLOAD..].get(8..8 + get_u16(bytes, AT_PAYLOAD) as usize)
}

/// What a binding of a directory entry says; see [`peek_xattr`]. Reads no more than it needs, since every lookup does it.
pub(crate) fn peek_binding(bytes: &[u8], second: bool) -> Option<Binding<'_>> {
    let flags = *bytes.get(1)?;
    if bytes[0] != KIND_BIND || (second && flags & FLAG_PAIR == 0) {
        return None;
    }
    let pair = usize::from(flags & FLAG_PAIR != 0);
    let mut name_at = AT_PAYLOAD
        + (1 + pair) * BINDING_BYTES
        + if flags & FLAG_BIRTH != 0 { BIRTH_BYTES } else { 0 }
        + if flags & FLAG_PARTNER != 0 { PARTNER_BYTES } else { 0 };
    let mut head = bytes.get(AT_PAYLOAD..AT_PAYLOAD + (1 + pair) * BINDING_BYTES)?;
    if second {
        name_at += (head[10] as usize).next_multiple_of(8);
        head = &head[BINDING_BYTES..];
    }
    Some(Binding {
        name: bytes.get(name_at..name_at + head[10] as usize)?,
        rank: get_u16(head, 8),
        file_type: FileType::from_bits(head[11]),
        inode: get_u32(head, 0),
        generation: get_u32(head, 4),
    })
}

impl<'a> Payload<'a> {
    /// Lines that an entry with this payload takes.
    pub(crate) fn lines(&self) -> u32 {
        let padded = |length: usize| length.next_multiple_of(8);
        let payload_bytes = match self {
            Self::Seal => 0,
            Self::Bind { first, second, birth, partner } => {
                let names = BINDING_BYTES
                    + padded(first.name.len())
                    + second.map_or(0, |second| BINDING_BYTES + padded(second.name.len()));
                names + birth.map_or(0, |_| BIRTH_BYTES) + partner.map_or(0, |_| PARTNER_BYTES)
            }
            Self::Write { extents, .. } => 16 + extents.len() * EXTENT_BYTES,
            Self::Remap { extents, .. } => REMAP_BYTES + extents.len() * EXTENT_BYTES,
            Self::Size { .. } | Self::Unmap { .. } => 16,
            Self::Attributes(_) => ATTRIBUTES_BYTES,
            Self::Resize { .. } => ATTRIBUTES_BYTES + 8,
            Self::Shift { .. } => 24,
            Self::Xattr { name, value } => 8 + name.len() + value.map_or(0, <[u8]>::len),
            Self::LargeXattr { name, value } => {
                LARGE_XATTR_BYTES + padded(name.len()) + value.extents.len() * EXTENT_BYTES
            }
            Self::Target(target) => 8 + target.len(),
        };
        (AT_PAYLOAD + payload_bytes).div_ceil(LINE_BYTES as usize) as u32
    }

    fn put(&self, out: &mut [u8]) -> (u8, u8) {
        match *self {
            Self::Seal => (KIND_SEAL, 0),
            Self::Bind { first, second, birth, partner } => {
                let mut at = put_binding(out, 0, &first);
                let mut flags = 0;
                if let Some(second) = &second {
                    at = put_binding(out, at, second);
                    flags |= FLAG_PAIR;
                }
                if let Some(birth) = birth {
                    put_halves(out, at, birth.mode, birth.flags.bits());
                    put_halves(out, at + 8, birth.owner.user, birth.owner.group);
                    put_u64(out, at + 16, birth.device);
                    put_u64(out, at + 24, birth.head);
                    at += BIRTH_BYTES;
                    flags |= FLAG_BIRTH;
                }
                if let Some(partner) = partner {
                    put_halves(out, at, partner.inode, partner.generation);
                    put_u64(out, at + 8, partner.sequence);
                    at += PARTNER_BYTES;
                    flags |= FLAG_PARTNER;
                }
                at = put_name(out, at, first.name);
                if let Some(second) = second {
                    put_name(out, at, second.name);
                }
                (KIND_BIND, flags)
            }
            Self::Write { size_bytes, hash, extents } => {
                put_u64(out, 0, size_bytes);
                put_u64(out, 8, hash.unwrap_or(0));
                put_extents(&mut out[16..], &extents);
                (KIND_WRITE, hash.map_or(0, |_| FLAG_HASHED))
            }
            Self::Size { size_bytes, hash } => {
                put_u64(out, 0, size_bytes);
                put_u64(out, 8, hash.unwrap_or(0));
                (KIND_SIZE, hash.map_or(0, |_| FLAG_HASHED))
            }
            Self::Attributes(attributes) => {
                put_attributes(out, &attributes);
                (KIND_ATTRIBUTES, 0)
            }
            Self::Resize { attributes, hash } => {
                put_attributes(out, &attributes);
                put_u64(out, ATTRIBUTES_BYTES, hash.unwrap_or(0));
                (KIND_RESIZE, hash.map_or(0, |_| FLAG_HASHED))
            }
            Self::Unmap { file_block, count } => {
                put_u64(out, 0, file_block);
                put_u64(out, 8, count);
                (KIND_UNMAP, 0)
            }
            Self::Shift { file_block, distance, down, size_bytes } => {
                put_u64(out, 0, file_block);
                put_u64(out, 8, distance);
                put_u64(out, 16, size_bytes);
                (KIND_SHIFT, if down { FLAG_DOWN } else { 0 })
            }
            Self::Remap { size_bytes, file_block, count, extents } => {
                put_u64(out, 0, size_bytes);
                put_u64(out, 8, file_block);
                put_u64(out, 16, count);
                put_extents(&mut out[REMAP_BYTES..], &extents);
                (KIND_REMAP, 0)
            }
            Self::Xattr { name, value } => {
                let value_bytes = value.unwrap_or_default();
                put_u16(out, 0, name.len() as u16);
                put_u16(out, 2, value_bytes.len() as u16);
                out[8..8 + name.len()].copy_from_slice(name);
                out[8 + name.len()..8 + name.len() + value_bytes.len()].copy_from_slice(value_bytes);
                (KIND_XATTR, if value.is_none() { FLAG_REMOVED } else { 0 })
            }
            Self::LargeXattr { name, value } => {
                put_u16(out, 0, name.len() as u16);
                put_u32(out, 4, value.bytes);
                put_u64(out, 8, value.checksum);
                out[LARGE_XATTR_BYTES..LARGE_XATTR_BYTES + name.len()].copy_from_slice(name);
                put_extents(&mut out[LARGE_XATTR_BYTES + name.len().next_multiple_of(8)..], &value.extents);
                (KIND_LARGE_XATTR, 0)
            }
            Self::Target(target) => {
                put_u16(out, 0, target.len() as u16);
                out[8..8 + target.len()].copy_from_slice(target);
                (KIND_TARGET, 0)
            }
        }
    }

    fn get(kind: u8, flags: u8, time: i64, bytes: &'a [u8]) -> Option<Self> {
        let hash = || (flags & FLAG_HASHED != 0).then(|| get_u64(bytes, 8));
        Some(match kind {
            KIND_SEAL => Self::Seal,
            KIND_BIND => get_bind(flags, time, bytes)?,
            KIND_WRITE => {
                Self::Write { size_bytes: get_u64(bytes, 0), hash: hash(), extents: get_extents(&bytes[16..]) }
            }
            KIND_REMAP => Self::Remap {
                size_bytes: get_u64(bytes, 0),
                file_block: get_u64(bytes, 8),
                count: get_u64(bytes, 16),
                extents: get_extents(&bytes[REMAP_BYTES..]),
            },
            KIND_SIZE => Self::Size { size_bytes: get_u64(bytes, 0), hash: hash() },
            KIND_ATTRIBUTES if bytes.len() >= ATTRIBUTES_BYTES => Self::Attributes(get_attributes(bytes)),
            KIND_RESIZE if bytes.len() >= ATTRIBUTES_BYTES + 8 => Self::Resize {
                attributes: get_attributes(bytes),
                hash: (flags & FLAG_HASHED != 0).then(|| get_u64(bytes, ATTRIBUTES_BYTES)),
            },
            KIND_UNMAP => Self::Unmap { file_block: get_u64(bytes, 0), count: get_u64(bytes, 8) },
            KIND_SHIFT => Self::Shift {
                file_block: get_u64(bytes, 0),
                distance: get_u64(bytes, 8),
                down: flags & FLAG_DOWN != 0,
                size_bytes: get_u64(bytes, 16),
            },
            KIND_XATTR => {
                let (name_end, value_bytes) = (8 + get_u16(bytes, 0) as usize, get_u16(bytes, 2) as usize);
                let name = bytes.get(8..name_end)?;
                let value = bytes.get(name_end..name_end + value_bytes)?;
                Self::Xattr { name, value: (flags & FLAG_REMOVED == 0).then_some(value) }
            }
            KIND_LARGE_XATTR => {
                let name_bytes = get_u16(bytes, 0) as usize;
                let name = bytes.get(LARGE_XATTR_BYTES..LARGE_XATTR_BYTES + name_bytes)?;
                let extents = bytes.get(LARGE_XATTR_BYTES + name_bytes.next_multiple_of(8)..)?;
                let value =
                    LargeValue { bytes: get_u32(bytes, 4), checksum: get_u64(bytes, 8), extents: get_extents(extents) };
                Self::LargeXattr { name, value }
            }
            KIND_TARGET => Self::Target(bytes.get(8..8 + get_u16(bytes, 0) as usize)?),
            _ => return None,
        })
    }
}

fn put_attributes(out: &mut [u8], attributes: &LoggedAttributes) {
    put_halves(out, 0, attributes.mode, attributes.flags.bits());
    put_halves(out, 8, attributes.owner.user, attributes.owner.group);
    put_u64(out, 16, attributes.size_bytes);
    put_u64(out, 24, attributes.modified as u64);
    put_u64(out, 32, attributes.accessed as u64);
}

fn get_attributes(bytes: &[u8]) -> LoggedAttributes {
    LoggedAttributes {
        mode: get_u32(bytes, 0),
        flags: InodeFlags::from_bits_retain(get_u32(bytes, 4)),
        owner: Owner { user: get_u32(bytes, 8), group: get_u32(bytes, 12) },
        size_bytes: get_u64(bytes, 16),
        modified: get_u64(bytes, 24) as i64,
        accessed: get_u64(bytes, 32) as i64,
    }
}

/// The number of extents is what the lines hold up to the first that is empty.
fn put_extents(out: &mut [u8], extents: &Extents<'_>) {
    for (index, extent) in extents.iter().enumerate() {
        let shared = if extent.shared { EXTENT_SHARED } else { 0 };
        put_u64(out, index * EXTENT_BYTES, extent.block | shared | (extent.count as u64) << 40);
        put_u64(out, 8 + index * EXTENT_BYTES, extent.file_block);
    }
}

fn get_extents(bytes: &[u8]) -> Extents<'_> {
    let room = bytes.len() / EXTENT_BYTES;
    let used = (0..room).position(|index| get_u64(bytes, index * EXTENT_BYTES) >> 40 == 0).unwrap_or(room);
    Extents::Encoded(&bytes[..used * EXTENT_BYTES])
}

fn put_binding(out: &mut [u8], at: usize, binding: &Binding<'_>) -> usize {
    put_halves(out, at, binding.inode, binding.generation);
    let file_type = binding.file_type.map_or(0, |file_type| file_type as u64);
    put_u64(out, at + 8, binding.rank as u64 | (binding.name.len() as u64) << 16 | file_type << 24);
    at + BINDING_BYTES
}

/// A name, padded with zeros to whole words, word by word. Returns where it ends.
fn put_name(out: &mut [u8], mut at: usize, name: &[u8]) -> usize {
    let (words, rest) = name.as_chunks::<8>();
    for word in words {
        put_u64(out, at, u64::from_le_bytes(*word));
        at += 8;
    }
    if !rest.is_empty() {
        let word = match name.last_chunk::<8>() {
            // The last eight bytes, without those that stand in the word before.
            Some(last) => u64::from_le_bytes(*last) >> (64 - 8 * rest.len()),
            None => rest.iter().rev().fold(0, |word, &byte| word << 8 | byte as u64),
        };
        put_u64(out, at, word);
        at += 8;
    }
    at
}

fn put_halves(out: &mut [u8], at: usize, low: u32, high: u32) {
    put_u64(out, at, low as u64 | (high as u64) << 32);
}

fn get_bind(flags: u8, time: i64, bytes: &[u8]) -> Option<Payload<'_>> {
    let bindings = if flags & FLAG_PAIR != 0 { 2 } else { 1 };
    let mut at = bindings * BINDING_BYTES;
    let birth_at = (flags & FLAG_BIRTH != 0).then_some(at);
    at += birth_at.map_or(0, |_| BIRTH_BYTES);
    let partner_at = (flags & FLAG_PARTNER != 0).then_some(at);
    at += partner_at.map_or(0, |_| PARTNER_BYTES);
    bytes.get(..at)?;
    let mut binding = |index: usize| {
        let head = &bytes[index * BINDING_BYTES..];
        let name = bytes.get(at..at + head[10] as usize)?;
        at += name.len().next_multiple_of(8);
        let file_type = match head[11] {
            0 => None,
            kind => Some(FileType::from_bits(kind)?),
        };
        (!name.is_empty()).then(|| Binding {
            name,
            rank: get_u16(head, 8),
            file_type,
            inode: get_u32(head, 0),
            generation: get_u32(head, 4),
        })
    };
    let first = binding(0)?;
    let second = if bindings == 2 { Some(binding(1)?) } else { None };
    let birth = match birth_at {
        None => None,
        Some(at) => Some(Birth {
            file_type: first.file_type?,
            mode: get_u32(bytes, at),
            flags: InodeFlags::from_bits_retain(get_u32(bytes, at + 4)),
            owner: Owner { user: get_u32(bytes, at + 8), group: get_u32(bytes, at + 12) },
            device: get_u64(bytes, at + 16),
            created: time,
            head: get_u64(bytes, at + 24),
        }),
    };
    let partner = partner_at.map(|at| Partner {
        inode: get_u32(bytes, at),
        generation: get_u32(bytes, at + 4),
        sequence: get_u64(bytes, at + 8),
    });
    Some(Payload::Bind { first, second, birth, partner })
}

const _: () = assert!(DIRECTORY_ENTRY_BYTES_MAX <= ENTRY_BYTES_MAX);
const _: () = assert!(ENTRY_BYTES_MAX as u64 + LINE_BYTES == BLOCK_BYTES);

#[cfg(test)]
mod tests {
    use super::*;

    fn owned() -> Owned {
        Owned { key: Key(99), inode: 7, generation: 3 }
    }

    fn birth() -> Birth {
        Birth {
            file_type: FileType::Regular,
            mode: 0o644,
            flags: InodeFlags::APPEND_ONLY,
            owner: Owner { user: 1, group: 2 },
            device: 5,
            created: -9,
            head: 17,
        }
    }

    fn samples() -> Vec<Payload<'static>> {
        static LONG: [u8; 255] = [b'n'; 255];
        static EXTENTS: [FileExtent; 3] = [
            FileExtent { file_block: 0, block: 100, count: 1, shared: false },
            FileExtent { file_block: 9, block: (1 << 39) - 1, count: (1 << 24) - 1, shared: true },
            FileExtent { file_block: u64::MAX >> 12, block: 1, count: 7, shared: false },
        ];
        let first = Binding { name: &LONG, rank: 9, file_type: Some(FileType::Regular), inode: 4, generation: 1 };
        let second = Binding { name: b"x", rank: 0, file_type: None, inode: u32::MAX, generation: 8 };
        let partner = Some(Partner { inode: 1, generation: 2, sequence: u64::MAX });
        vec![
            Payload::Seal,
            Payload::Bind { first, second: None, birth: None, partner: None },
            Payload::Bind { first, second: Some(second), birth: Some(birth()), partner },
            Payload::Bind { first: second, second: Some(first), birth: None, partner },
            Payload::Write { size_bytes: 1, hash: None, extents: Extents::List(&EXTENTS) },
            Payload::Write { size_bytes: 1, hash: Some(0), extents: Extents::List(&EXTENTS[..1]) },
            Payload::Write { size_bytes: 1, hash: Some(6), extents: Extents::List(&[]) },
            Payload::Size { size_bytes: 5, hash: Some(7) },
            Payload::Attributes(LoggedAttributes {
                mode: 0o7777,
                flags: InodeFlags::IMMUTABLE,
                owner: Owner { user: 1, group: 2 },
                size_bytes: 3,
                modified: 4,
                accessed: i64::MIN,
            }),
            Payload::Resize {
                attributes: LoggedAttributes {
                    mode: 0o640,
                    flags: InodeFlags::empty(),
                    owner: Owner { user: 3, group: 4 },
                    size_bytes: 5,
                    modified: 6,
                    accessed: 7,
                },
                hash: Some(8),
            },
            Payload::Unmap { file_block: 1, count: 2 },
            Payload::Shift { file_block: 1, distance: 2, down: true, size_bytes: 9 },
            Payload::Remap { size_bytes: 9, file_block: 4, count: 1 << 40, extents: Extents::List(&EXTENTS) },
            Payload::Remap { size_bytes: 9, file_block: 4, count: 2, extents: Extents::List(&[]) },
            Payload::Xattr { name: b"user.a", value: Some(&LONG) },
            Payload::Xattr { name: b"user.a", value: None },
            Payload::LargeXattr {
                name: &LONG,
                value: LargeValue { bytes: 1 << 16, checksum: 5, extents: Extents::List(&EXTENTS) },
            },
            Payload::Target(b"/somewhere/else"),
        ]
    }

    #[test]
    fn what_is_written_is_read_and_nothing_else_passes() {
        let mut buffer = [0xAA; ENTRY_BYTES_MAX];
        for payload in samples() {
            let bytes = encode(owned(), 2, 5, -9, &payload, &mut buffer).to_vec();
            let entry = Entry::decode(owned(), &bytes).expect("valid");
            assert_eq!((entry.epoch, entry.sequence, entry.time, entry.payload), (2, 5, -9, payload));
            assert_eq!(entry.lines as usize * 64, bytes.len());
            for at in 0..bytes.len() {
                let mut bad = bytes.clone();
                bad[at] ^= 1;
                assert!(Entry::decode(owned(), &bad).is_none(), "{payload:?} byte {at}");
            }
            assert!(Entry::decode(Owned { generation: 4, ..owned() }, &bytes).is_none());
            assert!(Entry::decode(Owned { inode: 8, ..owned() }, &bytes).is_none());
            assert!(Entry::decode(Owned { key: Key(98), ..owned() }, &bytes).is_none());
        }
    }

    #[test]
    fn the_longest_of_each_kind_fits_a_page() {
        let extents = vec![FileExtent { file_block: 0, block: 1, count: 1, shared: true }; EXTENTS_MAX];
        let target = vec![b't'; TARGET_BYTES_MAX];
        for payload in [
            Payload::Write { size_bytes: 0, hash: None, extents: Extents::List(&extents) },
            Payload::Remap {
                size_bytes: 0,
                file_block: 0,
                count: 1,
                extents: Extents::List(&extents[..REMAP_EXTENTS_MAX]),
            },
            Payload::Target(&target),
            Payload::Xattr { name: b"user.n", value: Some(&target[..XATTR_BYTES_MAX - 6]) },
        ] {
            assert_eq!(payload.lines(), ENTRY_LINES);
            let mut buffer = [0; ENTRY_BYTES_MAX];
            let bytes = encode(owned(), 1, 1, 0, &payload, &mut buffer);
            assert_eq!(Entry::decode(owned(), bytes).unwrap().payload, payload);
        }
    }

    #[test]
    fn random_bytes_are_refused_without_panic() {
        let mut state = 1_u64;
        let mut bytes = [0; 256];
        for _ in 0..20_000 {
            for byte in &mut bytes {
                state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                *byte = (state >> 56) as u8;
            }
            bytes[0] %= 14;
            bytes[2] %= 5;
            // A forged checksum leads into the payload's own checks.
            let lines = bytes[2] as usize;
            if lines > 0 {
                let checksum = owned().checksum(get_u64(&bytes, 0), &bytes[..lines * 64]);
                put_u64(&mut bytes, AT_CHECKSUM, checksum);
            }
            let _ = Entry::decode(owned(), &bytes);
        }
    }
}
