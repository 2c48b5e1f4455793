//! Inode slots: 128 bytes for each inode, in chunks of blocks that the inode map points to.
//!
//! ```text
//!   0  generation:32 | in use:8 | type:8 | 0:16     one word: freeing a slot is one 8-byte store
//!   8  mode:32, flags:32                            initial attributes, never changed in the slot's life
//!  16  user:32, group:32
//!  24  device
//!  32  created
//!  40  checksum of 0..40
//!  48  head: link word of the first log page
//!  64  links        a cache: exact after a clean detach, derived from the directories by crash recovery;
//!                   2 for every directory that has a name, whatever it holds
//!  72  parent       likewise, for directories
//!  80  touched      time of the last write in place
//!  88  changed      time of the last change of the link count
//!  96  accessed     time of the last access
//! ```

use super::{Key, Tag, get_u32, get_u64, put_u64};
use gannet_vfs::{FileType, InodeFlags, Owner};

/// Size of a slot.
pub(crate) const SLOT_BYTES: u64 = 128;
/// Offset of the word that says generation, use and type.
pub(crate) const AT_IDENTITY: u64 = 0;
/// Offset of the head link word.
pub(crate) const AT_HEAD: u64 = 48;
/// Offset of the link count.
pub(crate) const AT_LINKS: u64 = 64;
/// Offset of the parent's inode number.
pub(crate) const AT_PARENT: u64 = 72;
/// Offset of the time of the last write in place.
pub(crate) const AT_TOUCHED: u64 = 80;
/// Offset of the time of the last change of the link count.
pub(crate) const AT_CHANGED: u64 = 88;
/// Offset of the time of the last access.
pub(crate) const AT_ACCESSED: u64 = 96;

const AT_CHECKSUM: usize = 40;

/// The first word of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    /// Generation; raised when the slot is freed.
    pub(crate) generation: u32,
    /// The type, or `None` for a free slot.
    pub(crate) file_type: Option<FileType>,
}

impl Identity {
    /// The word as it stands on the medium.
    pub(crate) const fn encode(self) -> u64 {
        let kind = match self.file_type {
            Some(file_type) => 1 << 32 | (file_type as u64) << 40,
            None => 0,
        };
        self.generation as u64 | kind
    }

    /// Takes a word apart; `None` if it is neither a free slot nor one of a known type.
    pub(crate) const fn decode(word: u64) -> Option<Self> {
        let generation = word as u32;
        match ((word >> 32) as u8, (word >> 40) as u8, word >> 48) {
            (0, 0, 0) => Some(Self { generation, file_type: None }),
            (1, kind, 0) => match FileType::from_bits(kind) {
                Some(file_type) => Some(Self { generation, file_type: Some(file_type) }),
                None => None,
            },
            _ => None,
        }
    }

    /// The word of this slot once it is free again.
    pub(crate) const fn freed(self) -> Self {
        Self { generation: self.generation.wrapping_add(1), file_type: None }
    }
}

/// What an inode is born with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Birth {
    /// Its type.
    pub(crate) file_type: FileType,
    /// Permission bits.
    pub(crate) mode: u32,
    /// Flags.
    pub(crate) flags: InodeFlags,
    /// Owner.
    pub(crate) owner: Owner,
    /// Device number.
    pub(crate) device: u64,
    /// When; also its first times of modification, change and access.
    pub(crate) created: i64,
    /// Link word of a log page that was written before it was born (symlink target, inherited ACL), or 0.
    pub(crate) head: u64,
}

impl Birth {
    /// The whole slot as it stands on the medium when inode `number` is born.
    #[inline]
    pub(crate) fn encode(
        &self,
        key: Key,
        number: u32,
        generation: u32,
        links: u64,
        parent: u32,
    ) -> [u8; SLOT_BYTES as usize] {
        let mut bytes = [0; SLOT_BYTES as usize];
        put_u64(&mut bytes, 0, Identity { generation, file_type: Some(self.file_type) }.encode());
        // Words only: see `entry::encode`.
        put_u64(&mut bytes, 8, self.mode as u64 | (self.flags.bits() as u64) << 32);
        put_u64(&mut bytes, 16, self.owner.user as u64 | (self.owner.group as u64) << 32);
        put_u64(&mut bytes, 24, self.device);
        put_u64(&mut bytes, 32, self.created as u64);
        let checksum = key.checksum(Tag::Slot, number as u64, 0, &bytes[..AT_CHECKSUM]);
        put_u64(&mut bytes, AT_CHECKSUM, checksum);
        put_u64(&mut bytes, AT_HEAD as usize, self.head);
        put_u64(&mut bytes, AT_LINKS as usize, links);
        put_u64(&mut bytes, AT_PARENT as usize, parent as u64);
        bytes
    }
}

/// A slot as found on the medium.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Slot {
    /// Nobody's.
    Free {
        /// The generation that the next user gets.
        generation: u32,
    },
    /// Somebody's.
    Used {
        /// Its generation.
        generation: u32,
        /// Its initial attributes, and its head.
        birth: Birth,
        /// Cached link count.
        links: u64,
        /// Cached parent.
        parent: u64,
        /// See the file's header.
        touched: i64,
        /// See the file's header.
        changed: i64,
        /// See the file's header.
        accessed: i64,
    },
    /// It says that it is in use, and its checksum says otherwise; or its first word cannot be.
    Damaged,
}

impl Slot {
    /// Checks and decodes the slot of inode `number`.
    pub(crate) fn decode(key: Key, number: u32, bytes: &[u8; SLOT_BYTES as usize]) -> Self {
        let Some(identity) = Identity::decode(get_u64(bytes, 0)) else { return Self::Damaged };
        let Some(file_type) = identity.file_type else { return Self::Free { generation: identity.generation } };
        if get_u64(bytes, AT_CHECKSUM) != key.checksum(Tag::Slot, number as u64, 0, &bytes[..AT_CHECKSUM]) {
            return Self::Damaged;
        }
        Self::Used {
            generation: identity.generation,
            birth: Birth {
                file_type,
                mode: get_u32(bytes, 8),
                flags: InodeFlags::from_bits_retain(get_u32(bytes, 12)),
                owner: Owner { user: get_u32(bytes, 16), group: get_u32(bytes, 20) },
                device: get_u64(bytes, 24),
                created: get_u64(bytes, 32) as i64,
                head: get_u64(bytes, AT_HEAD as usize),
            },
            links: get_u64(bytes, AT_LINKS as usize),
            parent: get_u64(bytes, AT_PARENT as usize),
            touched: get_u64(bytes, AT_TOUCHED as usize) as i64,
            changed: get_u64(bytes, AT_CHANGED as usize) as i64,
            accessed: get_u64(bytes, AT_ACCESSED as usize) as i64,
        }
    }
}

/// A word of the inode map: the first block of a chunk, and 16 bits that prove it.
pub(crate) fn encode_map_word(key: Key, chunk: u64, block: u64) -> u64 {
    block | (map_word_proof(key, chunk, block) << 48)
}

/// The block of a chunk: `Ok(None)` where there is none, `Err` where the word is damaged.
pub(crate) fn decode_map_word(key: Key, chunk: u64, word: u64) -> Result<Option<u64>, ()> {
    let block = word & ((1 << 48) - 1);
    match word {
        0 => Ok(None),
        _ if word >> 48 == map_word_proof(key, chunk, block) => Ok(Some(block)),
        _ => Err(()),
    }
}

fn map_word_proof(key: Key, chunk: u64, block: u64) -> u64 {
    key.checksum(Tag::MapWord, chunk, 0, &block.to_le_bytes()) >> 48
}
