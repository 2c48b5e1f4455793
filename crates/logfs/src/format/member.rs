//! Volumes that span several media: the table of them in the superblock, and the header that each further medium has in its first
//! block and, as a replica, in its last.

use super::{BLOCK_BYTES, Key, LINE_BYTES, Tag, get_u16, get_u32, get_u64, put_u16, put_u32, put_u64};

/// The most media of a volume.
pub(crate) const MEDIA_MAX: usize = 8;
/// Each medium has a multiple of so many blocks: 2 MiB.
pub(crate) const MEMBER_UNIT_BLOCKS: u64 = 512;

// In the superblock.
const AT_FURTHER: usize = 140;
const AT_TABLE: usize = 144;
const ELEMENT_BYTES: usize = 16;
const AT_PATHS: usize = AT_TABLE + (MEDIA_MAX - 1) * ELEMENT_BYTES;
const PATHS_END: usize = BLOCK_BYTES as usize - 8;

// In the header.
const MAGIC: u64 = u64::from_le_bytes(*b"GANNETMB");
const AT_MAGIC: usize = 0;
const AT_UUID: usize = 8;
const AT_INDEX: usize = 24;
const AT_MEDIA: usize = 28;
const AT_FIRST_BLOCK: usize = 32;
const AT_BLOCKS: usize = 40;
const AT_CHECKSUM: usize = 56;
/// Byte offset in the header's block of the word that says in which opening of the volume the medium was used last.
pub(crate) const AT_OPENING: u64 = LINE_BYTES;

/// A medium behind the first, as the superblock says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FurtherMedium {
    /// Its first block on the volume.
    pub(crate) first_block: u64,
    /// Where its file is: absolute, or from the directory of the first medium's file.
    pub(crate) path: Vec<u8>,
}

/// Writes the table; `false` if the paths are too long for it. `media` are at most [`MEDIA_MAX`] − 1.
pub(crate) fn encode_table(media: &[FurtherMedium], superblock: &mut [u8]) -> bool {
    put_u32(superblock, AT_FURTHER, media.len() as u32);
    let mut path_at = AT_PATHS;
    for (element, medium) in media.iter().enumerate().take(MEDIA_MAX - 1) {
        let at = AT_TABLE + element * ELEMENT_BYTES;
        let end = path_at + medium.path.len();
        if end > PATHS_END {
            return false;
        }
        put_u64(superblock, at, medium.first_block);
        put_u16(superblock, at + 8, path_at as u16);
        put_u16(superblock, at + 10, medium.path.len() as u16);
        superblock[path_at..end].copy_from_slice(&medium.path);
        path_at = end;
    }
    media.len() < MEDIA_MAX
}

/// Whether there is a table, whatever the features say.
pub(crate) fn has_table(superblock: &[u8]) -> bool {
    get_u32(superblock, AT_FURTHER) != 0
}

/// Reads the table; `None` if it cannot be one.
pub(crate) fn decode_table(superblock: &[u8]) -> Option<Vec<FurtherMedium>> {
    let count = get_u32(superblock, AT_FURTHER) as usize;
    if count == 0 || count >= MEDIA_MAX {
        return None;
    }
    let element = |element: usize| {
        let at = AT_TABLE + element * ELEMENT_BYTES;
        let (path_at, path_bytes) = (get_u16(superblock, at + 8) as usize, get_u16(superblock, at + 10) as usize);
        let path = superblock.get(path_at..path_at + path_bytes)?;
        let is_path = path_at >= AT_PATHS && path_at + path_bytes <= PATHS_END && !path.is_empty();
        (is_path && !path.contains(&0))
            .then(|| FurtherMedium { first_block: get_u64(superblock, at), path: path.to_vec() })
    };
    (0..count).map(element).collect()
}

/// What a further medium says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MemberHeader {
    /// Identity of the volume.
    pub(crate) uuid: [u8; 16],
    /// Which medium of the volume this is: 1 is the one behind the first.
    pub(crate) index: u32,
    /// How many media the volume has.
    pub(crate) media: u32,
    /// Its first block on the volume.
    pub(crate) first_block: u64,
    /// How many blocks of the volume it has.
    pub(crate) blocks: u64,
}

impl MemberHeader {
    /// The line as it stands on the medium.
    pub(crate) fn encode(&self, key: Key) -> [u8; LINE_BYTES as usize] {
        let mut line = [0; LINE_BYTES as usize];
        put_u64(&mut line, AT_MAGIC, MAGIC);
        line[AT_UUID..AT_UUID + 16].copy_from_slice(&self.uuid);
        put_u32(&mut line, AT_INDEX, self.index);
        put_u32(&mut line, AT_MEDIA, self.media);
        put_u64(&mut line, AT_FIRST_BLOCK, self.first_block);
        put_u64(&mut line, AT_BLOCKS, self.blocks);
        let checksum = key.checksum(Tag::Member, self.index as u64, 0, &line[..AT_CHECKSUM]);
        put_u64(&mut line, AT_CHECKSUM, checksum);
        line
    }

    /// Reads a line that has a header's magic, whatever its checksum is: to say whose it is.
    pub(crate) fn peek(line: &[u8; LINE_BYTES as usize]) -> Option<Self> {
        if get_u64(line, AT_MAGIC) != MAGIC {
            return None;
        }
        let mut uuid = [0; 16];
        uuid.copy_from_slice(&line[AT_UUID..AT_UUID + 16]);
        Some(Self {
            uuid,
            index: get_u32(line, AT_INDEX),
            media: get_u32(line, AT_MEDIA),
            first_block: get_u64(line, AT_FIRST_BLOCK),
            blocks: get_u64(line, AT_BLOCKS),
        })
    }

    /// Checks a line and takes it for a header of a volume of this key.
    pub(crate) fn decode(key: Key, line: &[u8; LINE_BYTES as usize]) -> Option<Self> {
        Self::peek(line).filter(|header| header.encode(key) == *line)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_read_as_they_were_written() {
        let medium = |first_block, path: &str| FurtherMedium { first_block, path: path.into() };
        let media = vec![medium(512, "other"), medium(4096, "/dev/dax1.0"), medium(1 << 31, "a/b")];
        let mut block = [0; BLOCK_BYTES as usize];
        assert!(encode_table(&media, &mut block));
        assert_eq!(decode_table(&block), Some(media.clone()));
        for (at, value) in [(AT_FURTHER, 0_u16), (AT_FURTHER, 8), (AT_TABLE + 8, 100), (AT_TABLE + 10, 0)] {
            let mut bad = block;
            put_u16(&mut bad, at, value);
            assert_eq!(decode_table(&bad), None, "{at}");
        }
        for (at, value) in [(AT_TABLE + 8, u16::MAX), (AT_TABLE + 10, u16::MAX), (AT_TABLE + 26, 4000)] {
            let mut bad = block;
            put_u16(&mut bad, at, value);
            assert_eq!(decode_table(&bad), None, "{at}");
        }
        assert!(!encode_table(&vec![medium(512, &"x".repeat(1000)); 4], &mut block), "paths too long");
        assert!(!encode_table(&vec![medium(512, "x"); MEDIA_MAX], &mut block), "too many");
    }

    #[test]
    fn every_flipped_bit_of_a_header_is_noticed() {
        let header = MemberHeader { uuid: [9; 16], index: 2, media: 3, first_block: 1024, blocks: 512 };
        let line = header.encode(Key(5));
        assert_eq!(MemberHeader::decode(Key(5), &line), Some(header));
        assert_eq!(MemberHeader::decode(Key(6), &line), None);
        for bit in 0..line.len() * 8 {
            let mut bad = line;
            bad[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(MemberHeader::decode(Key(5), &bad), None, "bit {bit}");
        }
    }
}
