//! Every bit on the medium, and nothing else: offsets, encoding, decoding, checks. `docs/FORMAT.md` is this room in
//! prose.
//!
//! Pure functions over byte slices and words: nothing here touches the medium, the arena or a clock. What is decoded
//! from a volume has been checked; what has not been checked cannot be had. All numbers are little-endian.

pub(crate) mod entry;
pub(crate) mod geometry;
pub(crate) mod member;
pub(crate) mod page;
pub(crate) mod sections;
pub(crate) mod shares;
pub(crate) mod slot;
pub(crate) mod state;
pub(crate) mod superblock;

use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Size of a block, the unit of allocation.
pub(crate) const BLOCK_BYTES: u64 = 4096;
/// Size of a cache line, the unit in which log entries are laid out.
pub(crate) const LINE_BYTES: u64 = 64;

/// What a checksum stands for, so that no structure can be taken for another.
#[derive(Clone, Copy)]
pub(crate) enum Tag {
    Superblock = 1,
    Slot = 2,
    Page = 3,
    Entry = 4,
    MapWord = 5,
    Summary = 6,
    Name = 7,
    Data = 8,
    Shares = 9,
    Value = 10,
    Member = 11,
}

/// The secret of a volume: it keys all checksums, so that bytes which a user wrote into a file can never pass for
/// metadata when their block becomes a log page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Key(pub(crate) u64);

impl Key {
    /// The seed for a checksum over a structure of `tag` that belongs to `owner` (two words that say whose it is).
    pub(crate) const fn seed(self, tag: Tag, owner: u64, detail: u64) -> u64 {
        let mut seed = self.0 ^ (tag as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        seed = (seed ^ owner).wrapping_mul(0xD6E8_FEB8_6659_FD93);
        seed ^= seed >> 32;
        seed = (seed ^ detail).wrapping_mul(0xD6E8_FEB8_6659_FD93);
        seed ^ (seed >> 29)
    }

    /// The checksum of `bytes` under [`Key::seed`]: XXH3-64.
    pub(crate) fn checksum(self, tag: Tag, owner: u64, detail: u64, bytes: &[u8]) -> u64 {
        xxh3_64_with_seed(bytes, self.seed(tag, owner, detail))
    }
}

/// Reads a number at `at`; the caller has checked the slice's length against the structure's constant size.
pub(crate) fn get_u64(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(word)
}

/// See [`get_u64`].
pub(crate) fn get_u32(bytes: &[u8], at: usize) -> u32 {
    let mut word = [0; 4];
    word.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(word)
}

/// See [`get_u64`].
pub(crate) fn get_u16(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

/// Writes a number at `at`.
pub(crate) fn put_u64(bytes: &mut [u8], at: usize, value: u64) {
    bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
}

/// Writes a number at `at`.
pub(crate) fn put_u32(bytes: &mut [u8], at: usize, value: u32) {
    bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
}

/// Writes a number at `at`.
pub(crate) fn put_u16(bytes: &mut [u8], at: usize, value: u16) {
    bytes[at..at + 2].copy_from_slice(&value.to_le_bytes());
}
