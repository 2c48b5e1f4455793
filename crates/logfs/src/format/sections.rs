//! The sections of a saved map, and the table that says of each how much is free in it and what its bytes' hash is: so that
//! one is read, and proved, when it is first needed.

use super::state::STATE_AT;
use super::{get_u64, put_u64};

/// The most sections that a map has.
pub(crate) const SECTIONS_MAX: u64 = 64;
/// Where the table of the saved block map stands, in the block of the state.
pub(crate) const BLOCK_SECTIONS_AT: u64 = STATE_AT + 2048;
/// Where the table of the saved inode map stands.
pub(crate) const INODE_SECTIONS_AT: u64 = BLOCK_SECTIONS_AT + SECTIONS_MAX * SECTION_BYTES as u64;
/// Bytes of an element of a table.
pub(crate) const SECTION_BYTES: usize = 16;
const _: () = assert!(INODE_SECTIONS_AT + SECTIONS_MAX * SECTION_BYTES as u64 <= STATE_AT + super::BLOCK_BYTES);

/// Numbers that are counted together: of blocks 2 MiB.
const GROUP: u64 = 512;
/// A section has at least so many groups.
const GROUPS_MIN: u64 = 32;

/// How many numbers each section of a map of `numbers` has, but for the last: a power of two.
pub(crate) fn section_numbers(numbers: u64) -> u64 {
    let groups = numbers.div_ceil(GROUP).max(1);
    groups.div_ceil(SECTIONS_MAX).next_power_of_two().max(GROUPS_MIN) * GROUP
}

/// What the table says of a section.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) struct Section {
    /// Numbers in it that are free.
    pub(crate) free: u64,
    /// Data hash of its bytes.
    pub(crate) hash: u64,
}

impl Section {
    /// A table as it stands on the medium.
    pub(crate) fn encode_all(sections: &[Self]) -> Vec<u8> {
        let mut bytes = vec![0; sections.len() * SECTION_BYTES];
        for (section, bytes) in sections.iter().zip(bytes.chunks_exact_mut(SECTION_BYTES)) {
            put_u64(bytes, 0, section.free);
            put_u64(bytes, 8, section.hash);
        }
        bytes
    }

    /// Reads a table.
    pub(crate) fn decode_all(bytes: &[u8]) -> Vec<Self> {
        let decode = |bytes: &[u8]| Self { free: get_u64(bytes, 0), hash: get_u64(bytes, 8) };
        bytes.chunks_exact(SECTION_BYTES).map(decode).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_map_has_few_sections_of_whole_lines() {
        for numbers in
            [1, 511, 16384, 16385, 1 << 20, (1 << 20) + 1, 123_456_789, 1 << 28, u64::from(u32::MAX), 1 << 39]
        {
            let each = section_numbers(numbers);
            assert!(each.is_power_of_two() && each.is_multiple_of(512), "{numbers}: {each}");
            assert!(numbers.div_ceil(each) <= SECTIONS_MAX, "{numbers}: {each}");
        }
        let table = [Section { free: 1, hash: 2 }, Section { free: u64::MAX, hash: 3 }];
        assert_eq!(Section::decode_all(&Section::encode_all(&table)), table);
    }
}
