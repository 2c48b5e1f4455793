//! Block 1: the words that change as a volume is opened and closed. Each is 8 bytes on its own line.

use super::shares::ListLink;
use super::{BLOCK_BYTES, Key, LINE_BYTES, Tag, get_u64, put_u64};

/// Byte offset of the state block.
pub(crate) const STATE_AT: u64 = BLOCK_BYTES;
/// The epoch: raised durably by every crash recovery. Starts at 1, at most [`EPOCH_MAX`].
pub(crate) const EPOCH_AT: u64 = STATE_AT;
/// 0 while a volume is open or was not closed cleanly; otherwise the checksum of the summary line, or what [`is_repairing`] says.
pub(crate) const CLEAN_AT: u64 = STATE_AT + LINE_BYTES;
/// Whether the clean word says that the volume was closed cleanly.
pub(crate) const fn is_closed(clean: u64) -> bool {
    clean & 1 == 1
}
/// The clean word while a volume is repaired that was not closed cleanly.
pub(crate) const REPAIRING: u64 = u64::from_le_bytes(*b"repairs\0");
/// Whether the clean word says that a repair has begun and not ended: of a volume that had been closed cleanly it is the complement of
/// what it was, so that what is damaged is still not taken for what a crash leaves.
pub(crate) const fn is_repairing(clean: u64) -> bool {
    clean != 0 && clean & 1 == 0
}
const _: () = assert!(is_repairing(REPAIRING));
/// The summary of a clean detach.
pub(crate) const SUMMARY_AT: u64 = STATE_AT + 2 * LINE_BYTES;
/// Identity of the arena of those who have the volume open; 0 when nobody has.
pub(crate) const ARENA_AT: u64 = STATE_AT + 3 * LINE_BYTES;
/// How often that arena was adopted, by who came after all its users had been killed; the arena knows it, too. Of the same line.
pub(crate) const ADOPTIONS_AT: u64 = ARENA_AT + 8;

/// Where the volume spans several media: in which opening of the volume they are used, a number that each opening for writing
/// makes anew, and the number that is just being made so. Two words of one line.
pub(crate) const OPENING_AT: u64 = STATE_AT + 4 * LINE_BYTES;
/// See [`OPENING_AT`].
pub(crate) const OPENING_NEXT_AT: u64 = OPENING_AT + 8;

/// The largest epoch, which shares a word with a block number.
pub(crate) const EPOCH_MAX: u64 = (1 << 24) - 1;

/// The last word of a summary: what its hashes are of.
const FORM: u64 = 1;

/// What a clean detach leaves, so that the next attach need not scan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) struct Summary {
    /// Free blocks.
    pub(crate) blocks_free: u64,
    /// Inodes in use.
    pub(crate) inodes_used: u64,
    /// Checksum of the table of the saved block map's sections.
    pub(crate) block_map_hash: u64,
    /// Checksum of the table of the saved inode map's sections.
    pub(crate) inode_map_hash: u64,
    /// The epoch at the detach.
    pub(crate) epoch: u64,
    /// The list of what is shared.
    pub(crate) shares: ListLink,
}

impl Summary {
    /// The line as it stands on the medium.
    pub(crate) fn encode(&self) -> [u8; LINE_BYTES as usize] {
        let mut line = [0; LINE_BYTES as usize];
        put_u64(&mut line, 0, self.blocks_free);
        put_u64(&mut line, 8, self.inodes_used);
        put_u64(&mut line, 16, self.block_map_hash);
        put_u64(&mut line, 24, self.inode_map_hash);
        put_u64(&mut line, 32, self.epoch);
        put_u64(&mut line, 40, self.shares.block);
        put_u64(&mut line, 48, self.shares.checksum);
        put_u64(&mut line, 56, FORM);
        line
    }

    /// Reads the line.
    pub(crate) fn decode(line: &[u8; LINE_BYTES as usize]) -> Self {
        Self {
            blocks_free: get_u64(line, 0),
            inodes_used: get_u64(line, 8),
            block_map_hash: get_u64(line, 16),
            inode_map_hash: get_u64(line, 24),
            epoch: get_u64(line, 32),
            shares: ListLink { block: get_u64(line, 40), checksum: get_u64(line, 48) },
        }
    }

    /// What the clean word is when this summary holds; never 0.
    pub(crate) fn clean_word(&self, key: Key) -> u64 {
        clean_word(key, &self.encode())
    }
}

/// What the clean word is when a summary line holds.
fn clean_word(key: Key, line: &[u8; LINE_BYTES as usize]) -> u64 {
    key.checksum(Tag::Summary, 0, 0, line) | 1
}

/// Whether `clean` proves a summary line in which hashes of whole maps stand, as they did before maps had sections.
pub(crate) fn is_of_whole_maps(key: Key, line: &[u8; LINE_BYTES as usize], clean: u64) -> bool {
    get_u64(line, 56) == 0 && clean_word(key, line) == clean
}
