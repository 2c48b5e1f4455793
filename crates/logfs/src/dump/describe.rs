//! What a volume is: for `gannet info`.

use crate::closing::Closed;
use crate::disk::Disk;
use crate::format::BLOCK_BYTES;
use crate::format::state::{ARENA_AT, CLEAN_AT, is_closed, is_repairing};
use crate::format::superblock::feature_names;
use gannet_media::Medium;
use gannet_vfs::{Result, Time};

/// A volume in a few numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Description {
    /// Its identity.
    pub uuid: [u8; 16],
    /// Its name for people.
    pub label: String,
    /// When it was made.
    pub created: Time,
    /// Size in bytes.
    pub size_bytes: u64,
    /// Blocks, of 4096 bytes.
    pub blocks: u64,
    /// How many inodes there can be.
    pub inodes_max: u64,
    /// Data is written copy-on-write unless a file says otherwise.
    pub copy_on_write: bool,
    /// Persistence instructions are executed on a medium that does not need them.
    pub emulate_persistence: bool,
    /// Feature flags: compatible, read-only compatible, incompatible.
    pub features: [u64; 3],
    /// Their names, as the format's description has them; "bit N" for one that is not known here and can be ignored.
    pub feature_names: [Vec<String>; 3],
    /// One more than the number of crash recoveries.
    pub epoch: u64,
    /// Whether it was closed cleanly and nobody has it open.
    pub closed_cleanly: bool,
    /// Whether a repair of it was cut short: it cannot be opened before that is done again.
    pub repair_cut_short: bool,
    /// Whether somebody has it open, or had it open when the machine or the last process died.
    pub in_use: bool,
    /// Free blocks and inodes in use when it was closed; `None` if it was not closed cleanly.
    pub usage: Option<(u64, u64)>,
}

/// Describes the volume on a medium.
///
/// # Errors
/// As for opening it.
pub fn describe(medium: &Medium) -> Result<Description> {
    let disk = Disk::open(medium.clone())?;
    let superblock = disk.superblock();
    let features = [superblock.features_compatible, superblock.features_read_only, superblock.features_incompatible];
    let (summary, clean) = (Closed::find(&disk)?.map(|closed| closed.summary), disk.load(CLEAN_AT)?);
    Ok(Description {
        uuid: superblock.uuid,
        label: superblock.label_text(),
        created: Time(superblock.created),
        size_bytes: superblock.blocks * BLOCK_BYTES,
        blocks: superblock.blocks,
        inodes_max: disk.geometry().inodes() - 1,
        copy_on_write: superblock.copy_on_write,
        emulate_persistence: superblock.emulate_persistence,
        features,
        feature_names: std::array::from_fn(|class| feature_names(class, features[class])),
        epoch: disk.epoch() as u64,
        closed_cleanly: is_closed(clean),
        repair_cut_short: is_repairing(clean),
        in_use: disk.load(ARENA_AT)? != 0,
        // Inode 0 is nobody's and counts as in use.
        usage: summary.map(|summary| (summary.blocks_free, summary.inodes_used.saturating_sub(1))),
    })
}
