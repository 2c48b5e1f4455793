//! How each kind of entry stands on the medium.

use super::values::{Binding, Extents, LargeValue, LoggedAttributes, Partner, Payload};
use super::{AT_PAYLOAD, LINE_BYTES};
use crate::format::slot::Birth;
use crate::format::{get_u16, get_u32, get_u64, put_u16, put_u32, put_u64};
use gannet_vfs::{FileType, InodeFlags, Owner};

pub(super) const BINDING_BYTES: usize = 16;
pub(super) const BIRTH_BYTES: usize = 32;
pub(super) const PARTNER_BYTES: usize = 16;
pub(super) const EXTENT_BYTES: usize = 16;
pub(super) const REMAP_BYTES: usize = 24;
pub(super) const LARGE_XATTR_BYTES: usize = 16;
pub(super) const ATTRIBUTES_BYTES: usize = 40;
/// Set in an extent's first word if others may refer to its blocks as well.
pub(super) const EXTENT_SHARED: u64 = 1 << 39;

pub(super) const KIND_SEAL: u8 = 1;
pub(super) const KIND_BIND: u8 = 2;
pub(super) const KIND_WRITE: u8 = 3;
pub(super) const KIND_SIZE: u8 = 4;
pub(super) const KIND_ATTRIBUTES: u8 = 5;
pub(super) const KIND_UNMAP: u8 = 6;
pub(crate) const KIND_SHIFT: u8 = 7;
pub(super) const KIND_XATTR: u8 = 8;
pub(super) const KIND_TARGET: u8 = 9;
pub(super) const KIND_REMAP: u8 = 10;
pub(super) const KIND_LARGE_XATTR: u8 = 11;
pub(super) const KIND_RESIZE: u8 = 12;

pub(super) const FLAG_BIRTH: u8 = 1;
pub(super) const FLAG_PARTNER: u8 = 2;
pub(super) const FLAG_PAIR: u8 = 4;
pub(super) const FLAG_HASHED: u8 = 8;
pub(super) const FLAG_REMOVED: u8 = 16;
pub(super) const FLAG_DOWN: u8 = 32;
pub(super) const FLAG_KEEPS: u8 = 64;

impl<'a> Payload<'a> {
    /// Lines that an entry with this payload takes.
    #[inline]
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

    #[inline(always)]
    pub(super) fn put(&self, out: &mut [u8]) -> (u8, u8) {
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
            Self::Resize { attributes, hash, keeps } => {
                put_attributes(out, &attributes);
                put_u64(out, ATTRIBUTES_BYTES, hash.unwrap_or(0));
                (KIND_RESIZE, hash.map_or(0, |_| FLAG_HASHED) | if keeps { FLAG_KEEPS } else { 0 })
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

    pub(super) fn get(kind: u8, flags: u8, time: i64, bytes: &'a [u8]) -> Option<Self> {
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
                keeps: flags & FLAG_KEEPS != 0,
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
