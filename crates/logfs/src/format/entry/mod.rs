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

mod payload;
mod peek;
#[cfg(test)]
mod tests;
mod values;

pub(crate) use payload::KIND_SHIFT;
pub(crate) use peek::{Glance, glance, peek_binding, peek_target, peek_xattr};
pub(crate) use values::{Binding, Extents, FileExtent, LargeValue, LoggedAttributes, Partner, Payload, XattrValue};

use super::page::{ENTRY_LINES, LINES};
use super::{BLOCK_BYTES, Key, LINE_BYTES, Tag, get_u32, get_u64, put_u64};
use gannet_vfs::NAME_BYTES_MAX;
use payload::{BINDING_BYTES, BIRTH_BYTES, EXTENT_BYTES, PARTNER_BYTES, REMAP_BYTES};

/// Offset of the number of lines.
pub(crate) const AT_LINES: usize = 2;
const AT_EPOCH: usize = 4;
const AT_CHECKSUM: usize = 8;
const AT_SEQUENCE: usize = 16;
const AT_TIME: usize = 24;
const AT_PAYLOAD: usize = 32;

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
/// The most lines of an entry that says one name and nothing else.
pub(crate) const NAME_LINES_MAX: u32 = (AT_PAYLOAD + BINDING_BYTES + NAME_BYTES_MAX + 1).div_ceil(64) as u32;
/// How many extents one write entry can hold.
pub(crate) const EXTENTS_MAX: usize = (ENTRY_BYTES_MAX - AT_PAYLOAD - 16) / EXTENT_BYTES;
/// How many extents one remap entry can hold.
pub(crate) const REMAP_EXTENTS_MAX: usize = (ENTRY_BYTES_MAX - AT_PAYLOAD - REMAP_BYTES) / EXTENT_BYTES;
/// The longest symlink target, in bytes: what one page holds.
pub(crate) const TARGET_BYTES_MAX: usize = ENTRY_BYTES_MAX - AT_PAYLOAD - 8;
/// The longest name and value of an extended attribute together, in bytes.
pub(crate) const XATTR_BYTES_MAX: usize = ENTRY_BYTES_MAX - AT_PAYLOAD - 8;

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

    pub(crate) fn checksum(self, first_word: u64, entry: &[u8]) -> u64 {
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
    encode_lines(owned, epoch, sequence, time, payload, payload.lines(), buffer)
}

/// As [`encode`], of a payload of which the caller knows how many lines it takes.
// Inlined: where the kind of the payload is known, little is left.
#[inline(always)]
pub(crate) fn encode_lines<'b>(
    owned: Owned,
    epoch: u32,
    sequence: u64,
    time: i64,
    payload: &Payload<'_>,
    lines: u32,
    buffer: &'b mut [u8],
) -> &'b [u8] {
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
    let lines = *bytes.get(AT_LINES)? as u32;
    (lines > 0 && lines < LINES && bytes.len() as u64 >= lines as u64 * LINE_BYTES).then_some(lines)
}

const _: () = assert!(DIRECTORY_ENTRY_BYTES_MAX <= ENTRY_BYTES_MAX);
const _: () = assert!(ENTRY_BYTES_MAX as u64 + LINE_BYTES == BLOCK_BYTES);
