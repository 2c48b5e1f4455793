//! The superblock: what a volume is. Written by mkfs, replicated in the last block of the first medium, never changed while mounted.

use super::{BLOCK_BYTES, Key, Tag, get_u32, get_u64, put_u32, put_u64};
use crate::format::geometry::Geometry;
use crate::format::member::{FurtherMedium, decode_table, encode_table, has_table};

pub(crate) const MAGIC: u64 = u64::from_le_bytes(*b"GANNETFS");
const AT_MAGIC: usize = 0;
const AT_FEATURES_COMPATIBLE: usize = 8;
const AT_FEATURES_READ_ONLY: usize = 16;
pub(crate) const AT_FEATURES_INCOMPATIBLE: usize = 24;
const AT_UUID: usize = 32;
const AT_LABEL: usize = 48;
const AT_BLOCKS: usize = 112;
const AT_KEY: usize = 120;
const AT_CREATED: usize = 128;
const AT_OPTIONS: usize = 136;
pub(crate) const AT_CHECKSUM: usize = BLOCK_BYTES as usize - 8;

/// The longest label, in bytes.
pub(crate) const LABEL_BYTES_MAX: usize = 64;

/// Blocks can be referred to by several files, and logs can have remap entries. Set when that is first done.
pub(crate) const FEATURE_SHARED: u64 = 1;
/// Extended attributes can stand in blocks of their own. Set when that is first done.
pub(crate) const FEATURE_LARGE_XATTRS: u64 = 2;
/// Logs can have resize entries. Set when that is first done.
pub(crate) const FEATURE_RESIZE: u64 = 4;
/// Chunks of the inode table are one block each. Set by mkfs; changes where everything lies.
pub(crate) const FEATURE_SMALL_CHUNKS: u64 = 8;
/// The volume spans several media. Set by mkfs.
pub(crate) const FEATURE_SPAN: u64 = 16;
/// Resize entries can keep what is behind the end. Set when that is first done.
pub(crate) const FEATURE_RESIZE_KEEPS: u64 = 32;
/// Features that change the format incompatibly.
pub(crate) const FEATURES_INCOMPATIBLE_KNOWN: u64 = FEATURES_NOTED | FEATURE_SMALL_CHUNKS | FEATURE_SPAN;
/// Those of them that are noted when they are first used; the others mkfs sets.
const FEATURES_NOTED: u64 = FEATURE_SHARED | FEATURE_LARGE_XATTRS | FEATURE_RESIZE | FEATURE_RESIZE_KEEPS;
/// Features that a reader may ignore and a writer may not.
pub(crate) const FEATURES_READ_ONLY_KNOWN: u64 = 0;

/// The features by name: of those that anyone may ignore, those that writers must know, those that everyone must know.
const NAMES: [&[(u64, &str)]; 3] = [
    &[],
    &[],
    &[
        (FEATURE_SHARED, "shared blocks"),
        (FEATURE_LARGE_XATTRS, "large attributes"),
        (FEATURE_RESIZE, "resize"),
        (FEATURE_SMALL_CHUNKS, "small chunks"),
        (FEATURE_SPAN, "several media"),
        (FEATURE_RESIZE_KEEPS, "resize that keeps"),
    ],
];

/// The names of the features of one class (0 compatible, 1 read-only compatible, 2 incompatible); one that is not known here is "bit N".
pub(crate) fn feature_names(class: usize, features: u64) -> Vec<String> {
    let bits = (0..64).filter(|bit| features & 1 << bit != 0);
    bits.map(|bit| {
        let known = NAMES[class].iter().find(|(feature, _)| *feature == 1 << bit);
        known.map_or_else(|| format!("bit {bit}"), |(_, name)| (*name).to_owned())
    })
    .collect()
}

const OPTION_COPY_ON_WRITE: u32 = 1;
const OPTION_EMULATE: u32 = 2;

/// What a volume is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Superblock {
    /// Features that anyone may ignore.
    pub(crate) features_compatible: u64,
    /// Features that writers must know.
    pub(crate) features_read_only: u64,
    /// Features that everyone must know.
    pub(crate) features_incompatible: u64,
    /// Identity of the volume.
    pub(crate) uuid: [u8; 16],
    /// A name for people, UTF-8, NUL-padded.
    pub(crate) label: [u8; LABEL_BYTES_MAX],
    /// All blocks.
    pub(crate) blocks: u64,
    /// Keys all checksums.
    pub(crate) key: Key,
    /// When mkfs ran, nanoseconds since 1970.
    pub(crate) created: i64,
    /// Data is written copy-on-write unless a file says otherwise.
    pub(crate) copy_on_write: bool,
    /// Persistence instructions are executed on a medium that does not need them, for measurements.
    pub(crate) emulate_persistence: bool,
    /// The media behind the first.
    pub(crate) further: Vec<FurtherMedium>,
}

/// Why a block is no superblock that can be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SuperblockError {
    /// There is no Gannet volume here.
    NoMagic,
    /// There was one, and it is damaged.
    Checksum,
    /// A newer Gannet made it: these incompatible features are unknown.
    Incompatible(u64),
    /// The number of blocks cannot be.
    Blocks(u64),
    /// The table of media cannot be.
    Media,
}

impl Superblock {
    /// Where things lie on the volume; `None` if its number of blocks cannot be, or where its media begin.
    pub(crate) fn geometry(&self) -> Option<Geometry> {
        let geometry = if self.features_incompatible & FEATURE_SMALL_CHUNKS != 0 {
            Geometry::of(self.blocks)
        } else {
            Geometry::with_large_chunks(self.blocks)
        };
        geometry?.spanning(self.further.iter().map(|medium| medium.first_block))
    }

    /// The block as it stands on the medium.
    pub(crate) fn encode(&self) -> Box<[u8; BLOCK_BYTES as usize]> {
        let mut bytes = Box::new([0; BLOCK_BYTES as usize]);
        put_u64(&mut bytes[..], AT_MAGIC, MAGIC);
        put_u64(&mut bytes[..], AT_FEATURES_COMPATIBLE, self.features_compatible);
        put_u64(&mut bytes[..], AT_FEATURES_READ_ONLY, self.features_read_only);
        put_u64(&mut bytes[..], AT_FEATURES_INCOMPATIBLE, self.features_incompatible);
        bytes[AT_UUID..AT_UUID + 16].copy_from_slice(&self.uuid);
        bytes[AT_LABEL..AT_LABEL + LABEL_BYTES_MAX].copy_from_slice(&self.label);
        put_u64(&mut bytes[..], AT_BLOCKS, self.blocks);
        put_u64(&mut bytes[..], AT_KEY, self.key.0);
        put_u64(&mut bytes[..], AT_CREATED, self.created as u64);
        let options = if self.copy_on_write { OPTION_COPY_ON_WRITE } else { 0 }
            | if self.emulate_persistence { OPTION_EMULATE } else { 0 };
        put_u32(&mut bytes[..], AT_OPTIONS, options);
        if !self.further.is_empty() {
            let fits = encode_table(&self.further, &mut bytes[..]);
            debug_assert!(fits, "mkfs makes no such volume");
        }
        let checksum = self.key.checksum(Tag::Superblock, 0, 0, &bytes[..AT_CHECKSUM]);
        put_u64(&mut bytes[..], AT_CHECKSUM, checksum);
        bytes
    }

    /// Checks a block and takes it for a superblock.
    pub(crate) fn decode(bytes: &[u8; BLOCK_BYTES as usize]) -> Result<Self, SuperblockError> {
        if get_u64(bytes, AT_MAGIC) != MAGIC {
            return Err(SuperblockError::NoMagic);
        }
        let key = Key(get_u64(bytes, AT_KEY));
        if get_u64(bytes, AT_CHECKSUM) != key.checksum(Tag::Superblock, 0, 0, &bytes[..AT_CHECKSUM]) {
            return Err(SuperblockError::Checksum);
        }
        let unknown = get_u64(bytes, AT_FEATURES_INCOMPATIBLE) & !FEATURES_INCOMPATIBLE_KNOWN;
        if unknown != 0 {
            return Err(SuperblockError::Incompatible(unknown));
        }
        let blocks = get_u64(bytes, AT_BLOCKS);
        if Geometry::of(blocks).is_none() {
            return Err(SuperblockError::Blocks(blocks));
        }
        let further = match get_u64(bytes, AT_FEATURES_INCOMPATIBLE) & FEATURE_SPAN {
            // Who does not look for media that are said to be there would take a part for the whole.
            0 if has_table(bytes) => return Err(SuperblockError::Media),
            0 => Vec::new(),
            _ => decode_table(bytes).ok_or(SuperblockError::Media)?,
        };
        let mut uuid = [0; 16];
        uuid.copy_from_slice(&bytes[AT_UUID..AT_UUID + 16]);
        let mut label = [0; LABEL_BYTES_MAX];
        label.copy_from_slice(&bytes[AT_LABEL..AT_LABEL + LABEL_BYTES_MAX]);
        let options = get_u32(bytes, AT_OPTIONS);
        let superblock = Self {
            features_compatible: get_u64(bytes, AT_FEATURES_COMPATIBLE),
            features_read_only: get_u64(bytes, AT_FEATURES_READ_ONLY),
            features_incompatible: get_u64(bytes, AT_FEATURES_INCOMPATIBLE),
            uuid,
            label,
            blocks,
            key,
            created: get_u64(bytes, AT_CREATED) as i64,
            copy_on_write: options & OPTION_COPY_ON_WRITE != 0,
            emulate_persistence: options & OPTION_EMULATE != 0,
            further,
        };
        if superblock.geometry().is_none() {
            let is_spanning = !superblock.further.is_empty();
            return Err(if is_spanning { SuperblockError::Media } else { SuperblockError::Blocks(blocks) });
        }
        Ok(superblock)
    }

    /// Whether a block is this superblock, or what a crash leaves while features are noted in it: each word that of before or
    /// of after.
    pub(crate) fn may_become(&self, bytes: &[u8; BLOCK_BYTES as usize]) -> bool {
        // Any of those that are noted in passing may be the one.
        let states: Vec<_> = (0..=FEATURES_NOTED)
            .filter(|noted| noted & !FEATURES_NOTED == 0)
            .map(|noted| {
                let features_incompatible = self.features_incompatible & !FEATURES_NOTED | noted;
                Self { features_incompatible, ..self.clone() }.encode()
            })
            .collect();
        (0..BLOCK_BYTES as usize)
            .step_by(8)
            .all(|at| states.iter().any(|state| get_u64(&state[..], at) == get_u64(bytes, at)))
    }

    /// The label as text.
    pub(crate) fn label_text(&self) -> String {
        let end = self.label.iter().position(|&byte| byte == 0).unwrap_or(LABEL_BYTES_MAX);
        String::from_utf8_lossy(&self.label[..end]).into_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_flipped_byte_is_noticed() {
        let superblock = Superblock {
            features_compatible: 1,
            features_read_only: 0,
            features_incompatible: 0,
            uuid: *b"0123456789abcdef",
            label: [b'x'; LABEL_BYTES_MAX],
            blocks: 4096,
            key: Key(77),
            created: -5,
            copy_on_write: true,
            emulate_persistence: false,
            further: Vec::new(),
        };
        let bytes = superblock.encode();
        assert_eq!(Superblock::decode(&bytes), Ok(superblock));
        for at in 0..bytes.len() {
            let mut bad = bytes.clone();
            bad[at] ^= 0x10;
            assert!(Superblock::decode(&bad).is_err(), "byte {at}");
        }
    }
}
