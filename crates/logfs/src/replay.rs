//! What a log's entries mean for an inode's attributes and names: the one interpretation, which the engine (when it loads
//! an inode), recovery, fsck and dump share.
//!
//! Pure: entries in, state out. What entries mean for the block map and the name index is the loader's (`load`), since
//! those live in the arena.

use crate::format::entry::{Binding, Entry, LoggedAttributes, Payload};
use crate::format::page::LinePlace;
use crate::format::slot::Birth;
use crate::format::{Key, Tag};
use gannet_vfs::{FileType, Owner};
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// An inode as its birth and its log say it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct InodeState {
    /// Attributes.
    pub(crate) logged: LoggedAttributes,
    /// Time of the inode's last change, as far as its own log knows.
    pub(crate) changed: i64,
    /// Since when the time of modification holds: a write in place that is not earlier, as the slot says,
    /// counts instead.
    pub(crate) modified_since: i64,
    /// The same for the time of access.
    pub(crate) accessed_since: i64,
    /// Birth.
    pub(crate) birth: Birth,
}

impl InodeState {
    /// As it is born.
    pub(crate) const fn new(birth: &Birth) -> Self {
        Self {
            logged: LoggedAttributes {
                mode: birth.mode,
                flags: birth.flags,
                owner: birth.owner,
                size_bytes: 0,
                modified: birth.created,
                accessed: birth.created,
            },
            changed: birth.created,
            modified_since: birth.created,
            accessed_since: birth.created,
            birth: *birth,
        }
    }

    /// After one more entry.
    pub(crate) fn apply(&mut self, entry: &Entry<'_>) {
        match entry.payload {
            Payload::Seal => {}
            // A long target comes in pieces.
            Payload::Target(piece) => self.logged.size_bytes += piece.len() as u64,
            Payload::Bind { .. } | Payload::Unmap { .. } => self.touch(entry.time),
            Payload::Write { size_bytes, .. }
            | Payload::Size { size_bytes, .. }
            | Payload::Remap { size_bytes, .. }
            | Payload::Shift { size_bytes, .. } => {
                self.logged.size_bytes = size_bytes;
                self.touch(entry.time);
            }
            Payload::Attributes(attributes) | Payload::Resize { attributes, .. } => {
                self.logged = attributes;
                self.changed = entry.time;
                self.modified_since = entry.time;
                self.accessed_since = entry.time;
            }
            Payload::Xattr { .. } | Payload::LargeXattr { .. } => self.changed = entry.time,
        }
    }

    fn touch(&mut self, time: i64) {
        if time != TIMES_STAY {
            self.logged.modified = time;
            self.modified_since = time;
            self.changed = time;
        }
    }
}

/// The time of a name or of blocks that a collection has written again: it is no change.
pub(crate) const TIMES_STAY: i64 = i64::MIN;

/// The owner's words, as the arena's record keeps them.
pub(crate) const fn owner_word(owner: Owner) -> u64 {
    owner.user as u64 | (owner.group as u64) << 32
}

/// Takes [`owner_word`] apart.
pub(crate) const fn owner_of(word: u64) -> Owner {
    Owner { user: word as u32, group: (word >> 32) as u32 }
}

/// How many ranks there are for names of one hash.
pub(crate) const RANKS: u64 = 1 << 16;

/// The first index key of names with this name's hash: 47 bits of hash above 16 bits of rank. It is also the cookie with
/// which a directory is read on, so it is never below 3.
pub(crate) fn name_key(key: Key, name: &[u8]) -> u64 {
    let hash = xxh3_64_with_seed(name, key.seed(Tag::Name, 0, 0)) >> 17;
    hash.max(1) * RANKS
}

/// The index key of a binding.
pub(crate) fn binding_key(key: Key, binding: &Binding<'_>) -> u64 {
    name_key(key, binding.name) + binding.rank as u64
}

/// The first index key of extended attributes with this name's hash. The top bit keeps them apart from blocks and names.
pub(crate) fn xattr_key(key: Key, name: &[u8]) -> u64 {
    name_key(key, name) | XATTR_KEYS
}

/// Index keys from here on are extended attributes.
pub(crate) const XATTR_KEYS: u64 = 1 << 63;

/// What the index says of a name: where the log entry is that binds it, which of the entry's bindings it is, and the type
/// of what it names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NamePlace {
    /// The entry.
    pub(crate) place: LinePlace,
    /// Whether it is the second binding.
    pub(crate) second: bool,
    /// The type.
    pub(crate) file_type: FileType,
}

const AT_SECOND: u32 = 46;
const AT_TYPE: u32 = 47;

impl NamePlace {
    /// The index's value.
    pub(crate) const fn encode(self) -> u64 {
        self.place.0 | (self.second as u64) << AT_SECOND | (self.file_type as u64) << AT_TYPE
    }

    /// Takes a value apart; `None` if it is none of a name.
    pub(crate) const fn decode(value: u64) -> Option<Self> {
        match FileType::from_bits((value >> AT_TYPE) as u8) {
            Some(file_type) => Some(Self {
                place: LinePlace(value & ((1 << AT_SECOND) - 1)),
                second: value >> AT_SECOND & 1 != 0,
                file_type,
            }),
            None => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_cookies_and_kinds_do_not_meet() {
        for name in [&b"a"[..], b"b", b"a much longer name than usual, to be hashed in another way"] {
            let key = name_key(Key(3), name);
            assert!(key >= 3 && key + RANKS - 1 <= i64::MAX as u64 && key.is_multiple_of(RANKS));
            assert!(xattr_key(Key(3), name) > i64::MAX as u64);
            assert_ne!(key, name_key(Key(4), name));
        }
    }

    #[test]
    fn name_places_survive_encoding() {
        for file_type in [FileType::Regular, FileType::Directory, FileType::Socket, FileType::Fifo] {
            for second in [false, true] {
                let place = NamePlace { place: LinePlace::new((1 << 32) - 2, 63), second, file_type };
                assert_eq!(NamePlace::decode(place.encode()), Some(place));
            }
        }
        assert_eq!(NamePlace::decode(0), None);
    }
}
