//! Which blocks are referred to more than once, as a clean detach saves it: runs of blocks, in blocks that are free.
//!
//! ```text
//!   0  next: the block that goes on, 0 at the end
//!   8  checksum of that block
//!  16  runs, 1 to 254
//!  24  0
//!  32  runs: block:40, count:24; references:64
//! ```

use super::{BLOCK_BYTES, Key, Tag, get_u64, put_u64};

/// How many runs one block holds.
pub(crate) const RUNS_MAX: usize = (BLOCK_BYTES as usize - AT_RUNS) / RUN_BYTES;
const AT_RUNS: usize = 32;
const RUN_BYTES: usize = 16;

/// A run of blocks that are referred to equally often.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SharedRun {
    /// The first block.
    pub(crate) block: u64,
    /// How many, 1 to 2^24 - 1.
    pub(crate) count: u32,
    /// References to each, at least 2.
    pub(crate) references: u32,
}

/// Where the list begins, or goes on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ListLink {
    /// The block, 0 for no more.
    pub(crate) block: u64,
    /// Its checksum.
    pub(crate) checksum: u64,
}

/// Encodes a block of the list.
pub(crate) fn encode(next: ListLink, runs: &[SharedRun]) -> Box<[u8; BLOCK_BYTES as usize]> {
    debug_assert!(!runs.is_empty() && runs.len() <= RUNS_MAX);
    let mut bytes = Box::new([0; BLOCK_BYTES as usize]);
    put_u64(&mut bytes[..], 0, next.block);
    put_u64(&mut bytes[..], 8, next.checksum);
    put_u64(&mut bytes[..], 16, runs.len() as u64);
    for (index, run) in runs.iter().enumerate() {
        let at = AT_RUNS + index * RUN_BYTES;
        put_u64(&mut bytes[..], at, run.block | (run.count as u64) << 40);
        put_u64(&mut bytes[..], at + 8, run.references as u64);
    }
    bytes
}

/// The checksum of a block of the list.
pub(crate) fn checksum(key: Key, block: u64, bytes: &[u8; BLOCK_BYTES as usize]) -> u64 {
    key.checksum(Tag::Shares, block, 0, bytes)
}

/// Checks a block of the list and takes it apart; `None` if it is none.
pub(crate) fn decode(
    key: Key,
    link: ListLink,
    bytes: &[u8; BLOCK_BYTES as usize],
) -> Option<(ListLink, impl Iterator<Item = SharedRun> + '_)> {
    let runs = get_u64(bytes, 16);
    if checksum(key, link.block, bytes) != link.checksum || runs == 0 || runs > RUNS_MAX as u64 {
        return None;
    }
    let next = ListLink { block: get_u64(bytes, 0), checksum: get_u64(bytes, 8) };
    Some((
        next,
        (0..runs as usize).map(|index| {
            let at = AT_RUNS + index * RUN_BYTES;
            let run = get_u64(bytes, at);
            let references = u32::try_from(get_u64(bytes, at + 8)).unwrap_or(0);
            SharedRun { block: run & ((1 << 40) - 1), count: (run >> 40) as u32, references }
        }),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_survive_encoding_and_every_flipped_byte_is_noticed() {
        let runs: Vec<SharedRun> = (0..RUNS_MAX as u32)
            .map(|index| SharedRun { block: u64::from(index) * 9, count: index + 1, references: u32::MAX - index })
            .collect();
        let next = ListLink { block: 77, checksum: 99 };
        let bytes = encode(next, &runs);
        let link = ListLink { block: 5, checksum: checksum(Key(3), 5, &bytes) };
        let (found, decoded) = decode(Key(3), link, &bytes).expect("a block of the list");
        assert_eq!((found, decoded.collect::<Vec<_>>()), (next, runs));
        for at in (0..bytes.len()).step_by(7) {
            let mut bad = bytes.clone();
            bad[at] ^= 0x10;
            assert!(decode(Key(3), link, &bad).is_none(), "byte {at}");
        }
        assert!(decode(Key(3), ListLink { block: 6, ..link }, &bytes).is_none());
    }
}
