//! Log pages: one block each, a header line and 63 lines of entries; and the link words that chain them.
//!
//! ```text
//!   0  magic:32, inode:32
//!   8  generation:32, epoch:32
//!  16  sequence of the first entry
//!  24  checksum of 0..24
//!  32  next: link word, 0 at the end
//!  64  entries, each a whole number of lines
//! ```

use super::{BLOCK_BYTES, Key, LINE_BYTES, Tag, get_u32, get_u64, put_u64};

const MAGIC: u32 = u32::from_le_bytes(*b"GLOG");
const AT_CHECKSUM: usize = 24;
/// Offset of the link word to the next page.
pub(crate) const AT_NEXT: u64 = 32;
/// Lines of a page, the header's included; entries begin at line 1.
pub(crate) const LINES: u32 = (BLOCK_BYTES / LINE_BYTES) as u32;
/// Lines that entries can use.
pub(crate) const ENTRY_LINES: u32 = LINES - 1;

/// More entries than any log will ever have: what is above is not believed.
pub(crate) const SEQUENCE_MAX: u64 = 1 << 62;

/// A pointer to a log page: its block and the epoch that its header must carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Link {
    /// The page's block.
    pub(crate) block: u64,
    /// Epoch in which the page was linked.
    pub(crate) epoch: u32,
}

impl Link {
    /// The word as it stands on the medium.
    pub(crate) const fn encode(self) -> u64 {
        self.block | (self.epoch as u64) << 40
    }

    /// Takes a word apart; `None` for the end of the chain.
    pub(crate) const fn decode(word: u64) -> Option<Self> {
        if word == 0 { None } else { Some(Self { block: word & ((1 << 40) - 1), epoch: (word >> 40) as u32 }) }
    }
}

/// The header of a log page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PageHeader {
    /// The inode whose log it belongs to.
    pub(crate) inode: u32,
    /// The inode's generation.
    pub(crate) generation: u32,
    /// Epoch in which it was linked.
    pub(crate) epoch: u32,
    /// Sequence number of the first entry in it.
    pub(crate) first_sequence: u64,
}

impl PageHeader {
    /// The header line as it stands on the medium, not yet linked further.
    pub(crate) fn encode(&self, key: Key) -> [u8; LINE_BYTES as usize] {
        let mut line = [0; LINE_BYTES as usize];
        // Words only: see `entry::encode`.
        put_u64(&mut line, 0, MAGIC as u64 | (self.inode as u64) << 32);
        put_u64(&mut line, 8, self.generation as u64 | (self.epoch as u64) << 32);
        put_u64(&mut line, 16, self.first_sequence);
        let checksum = key.checksum(Tag::Page, 0, 0, &line[..AT_CHECKSUM]);
        put_u64(&mut line, AT_CHECKSUM, checksum);
        line
    }

    /// Checks and decodes a header; `None` if it is none.
    pub(crate) fn decode(key: Key, line: &[u8]) -> Option<Self> {
        let sound = line.len() >= LINE_BYTES as usize
            && get_u32(line, 0) == MAGIC
            && get_u64(line, AT_CHECKSUM) == key.checksum(Tag::Page, 0, 0, &line[..AT_CHECKSUM]);
        let header = sound.then(|| Self {
            inode: get_u32(line, 4),
            generation: get_u32(line, 8),
            epoch: get_u32(line, 12),
            first_sequence: get_u64(line, 16),
        });
        header.filter(|header| (1..SEQUENCE_MAX).contains(&header.first_sequence))
    }
}

/// The place of a log entry: block and line in one number, counted in lines from the start of the volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct LinePlace(pub(crate) u64);

impl LinePlace {
    /// Line `line` of `block`.
    pub(crate) const fn new(block: u64, line: u32) -> Self {
        Self(block * LINES as u64 + line as u64)
    }

    /// The block.
    pub(crate) const fn block(self) -> u64 {
        self.0 / LINES as u64
    }

    /// The line in the block.
    pub(crate) const fn line(self) -> u32 {
        (self.0 % LINES as u64) as u32
    }

    /// Byte offset on the medium.
    pub(crate) const fn offset_bytes(self) -> u64 {
        // What shared memory says of a place may be anything: the medium looks whether it is inside.
        self.0.wrapping_mul(LINE_BYTES)
    }
}
