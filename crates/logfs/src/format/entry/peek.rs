//! Parts of entries that were checked when their log was read, or may be another's by now: looked at without a proof, as
//! every lookup does. The caller validates.

use super::payload::{
    BINDING_BYTES, BIRTH_BYTES, FLAG_BIRTH, FLAG_PAIR, FLAG_PARTNER, KIND_ATTRIBUTES, KIND_BIND, KIND_LARGE_XATTR,
    KIND_RESIZE, KIND_TARGET, KIND_WRITE, KIND_XATTR, PARTNER_BYTES,
};
use super::{AT_PAYLOAD, AT_SEQUENCE, Binding, LINE_BYTES, Payload, XattrValue, claimed_lines};
use crate::format::{get_u16, get_u32, get_u64};
use gannet_vfs::FileType;

/// Where in a binding its type stands.
const AT_BINDING_TYPE: usize = 11;
/// Where in a write entry its first extent stands.
const AT_FIRST_EXTENT: usize = AT_PAYLOAD + 16;

/// What collection wants to know of an entry before anything else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Glance {
    /// It unbinds one name, or makes bytes visible in a block that was mapped before, and says nothing else: dead as soon as it
    /// is the oldest.
    Dead,
    /// It has attributes of the inode, or an extended one.
    SaysAttributes,
    /// Anything else.
    Other,
}

/// Lines, sequence and sort of an entry that was proved when its log was read, without a look at the rest.
#[inline]
pub(crate) fn glance(bytes: &[u8]) -> Option<(u32, u64, Glance)> {
    let lines = claimed_lines(bytes)?;
    let sort = match bytes[0] {
        KIND_BIND if bytes[1] & FLAG_PAIR == 0 && bytes[AT_PAYLOAD + AT_BINDING_TYPE] == 0 => Glance::Dead,
        // Both words of the first extent: one that is there has more than one bit set.
        KIND_WRITE if lines == 1 && get_u64(bytes, AT_FIRST_EXTENT) | get_u64(bytes, AT_FIRST_EXTENT + 8) == 0 => {
            Glance::Dead
        }
        KIND_ATTRIBUTES | KIND_RESIZE | KIND_XATTR | KIND_LARGE_XATTR => Glance::SaysAttributes,
        _ => Glance::Other,
    };
    Some((lines, get_u64(bytes, AT_SEQUENCE), sort))
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
        file_type: FileType::from_bits(head[AT_BINDING_TYPE]),
        inode: get_u32(head, 0),
        generation: get_u32(head, 4),
    })
}
