//! The superblock and its replica: which of them counts, and how they change together.

use super::{Disk, access_error};
use crate::format::member::MemberHeader;
use crate::format::superblock::{
    AT_CHECKSUM, AT_FEATURES_INCOMPATIBLE, FEATURES_READ_ONLY_KNOWN, Superblock, SuperblockError,
};
use crate::format::{BLOCK_BYTES, LINE_BYTES};
use gannet_media::{Medium, MediumOffset};
use gannet_vfs::{Errno, Error, Result};
use std::sync::atomic::Ordering;

/// What a superblock says of several media contradicts itself.
pub(crate) const MEDIA_IMPOSSIBLE: Error = Error::damaged("superblock: impossible table of media", 0);

/// Why a medium holds no volume that can be used, in a sentence.
pub(crate) fn superblock_error(error: SuperblockError) -> Error {
    match error {
        SuperblockError::NoMagic => Error::because(Errno::INVAL, "no Gannet volume; `gannet mkfs` makes one"),
        SuperblockError::Checksum => Error::damaged("superblock: checksum, also of its replica", 0),
        SuperblockError::Incompatible(features) => {
            Error::because(Errno::OPNOTSUPP, "made by a newer Gannet, with features that are unknown here:")
                .at(features)
        }
        SuperblockError::Blocks(blocks) => Error::damaged("superblock: impossible number of blocks", blocks),
        SuperblockError::Media => MEDIA_IMPOSSIBLE,
    }
}

/// Likewise; whoever named a further medium of a volume is told so, and not that a volume can be made there.
pub(crate) fn no_superblock(medium: &Medium, error: SuperblockError) -> Error {
    let mut line = [0; LINE_BYTES as usize];
    let is_read = error == SuperblockError::NoMagic && medium.read(MediumOffset(0), &mut line).is_ok();
    match MemberHeader::peek(&line).filter(|_| is_read) {
        Some(_) => {
            Error::because(Errno::INVAL, "no Gannet volume by itself, but a further medium of one: name the first")
        }
        None => superblock_error(error),
    }
}

/// Reads the superblock, or its replica where the first is damaged or does not count; that is the last block of the first medium.
pub(crate) fn read_superblock(medium: &Medium) -> Result<Superblock> {
    // On the stack: opening a volume is a matter of microseconds.
    let mut block = [0; BLOCK_BYTES as usize];
    medium.read(MediumOffset(0), &mut block[..]).map_err(access_error)?;
    match Superblock::decode(&block) {
        Ok(first) => Ok(replica_that_counts(medium, &first)?.map_or(first, |(_, replica)| replica)),
        Err(first) => {
            medium.read(MediumOffset(last_block(medium) * BLOCK_BYTES), &mut block[..]).map_err(access_error)?;
            Superblock::decode(&block).map_err(|_| no_superblock(medium, first))
        }
    }
}

/// The last block of the first medium.
fn last_block(medium: &Medium) -> u64 {
    (medium.first_length() / BLOCK_BYTES).saturating_sub(1)
}

/// The replica, and its block, where it counts although block 0 is a superblock, too: no replica stands where that one says, and in
/// the last block of the medium stands one of the same volume that says just that. A volume that was made on its medium, or copied
/// onto a longer one, is not looked at twice.
pub(crate) fn replica_that_counts(medium: &Medium, first: &Superblock) -> Result<Option<(u64, Superblock)>> {
    let (said, last) = (first.geometry().map(|geometry| geometry.replica()), last_block(medium));
    if said == Some(last) {
        return Ok(None);
    }
    let mut bytes = Box::new([0; BLOCK_BYTES as usize]);
    if let Some(said) = said.filter(|&said| said < last) {
        medium.read(MediumOffset(said * BLOCK_BYTES), &mut bytes[..]).map_err(access_error)?;
        if first.may_become(&bytes) {
            return Ok(None);
        }
    }
    medium.read(MediumOffset(last * BLOCK_BYTES), &mut bytes[..]).map_err(access_error)?;
    let replica = Superblock::decode(&bytes).ok().filter(|found| found.uuid == first.uuid && found.key == first.key);
    let stands_there = |found: &Superblock| found.geometry().is_some_and(|geometry| geometry.replica() == last);
    Ok(replica.filter(stands_there).map(|replica| (last, replica)))
}

impl Disk {
    /// The volume, to be opened: for writing only if all features are known that writers must know.
    pub(crate) fn if_usable(self) -> Result<Self> {
        let unknown = self.superblock.features_read_only & !FEATURES_READ_ONLY_KNOWN;
        if unknown != 0 && !self.medium.is_read_only() {
            let what =
                "made by a newer Gannet, and can be read only (attach it read-only), since features are unknown here:";
            return Err(Error::because(Errno::ROFS, what).at(unknown));
        }
        Ok(self)
    }

    /// Notes durably that the volume uses an incompatible feature: first in the superblock, then in its replica. The caller
    /// sees to it that nobody else does so at the same time.
    pub(crate) fn add_feature(&self, feature: u64) -> Result<()> {
        let mut bytes = [0; BLOCK_BYTES as usize];
        self.read_block(0, &mut bytes)?;
        let present = Superblock::decode(&bytes).unwrap_or(self.superblock.clone());
        let copies = [0, self.geometry.replica()];
        for block in copies {
            self.restore_superblock(block, &present)?;
        }
        let features_incompatible = present.features_incompatible | feature;
        let superblock = Superblock { features_incompatible, ..present };
        for block in copies {
            self.change_superblock(block, &superblock)?;
        }
        self.features.store(features_incompatible, Ordering::Relaxed);
        Ok(())
    }

    /// Puts right what a crash has left of [`Disk::add_feature`]: one copy of the superblock is behind the other.
    pub(crate) fn settle_superblock(&self) -> Result<()> {
        let mut bytes = [0; BLOCK_BYTES as usize];
        self.read_block(0, &mut bytes)?;
        // Which copy counts is what opening the volume decided.
        let features_incompatible = self.features.load(Ordering::Relaxed);
        let superblock = Superblock { features_incompatible, ..self.superblock.clone() };
        for block in [0, self.geometry.replica()] {
            self.read_block(block, &mut bytes)?;
            if superblock.may_become(&bytes) {
                self.change_superblock(block, &superblock)?;
            }
        }
        Ok(())
    }

    /// Writes a copy of the superblock that is damaged anew, durably: the other one is to be changed word by word, and where a crash tears
    /// that there must be one that stands.
    fn restore_superblock(&self, block: u64, superblock: &Superblock) -> Result<()> {
        let mut found = [0; BLOCK_BYTES as usize];
        self.read_block(block, &mut found)?;
        if superblock.may_become(&found) {
            return Ok(());
        }
        let mut commit = self.begin();
        commit.write(block * BLOCK_BYTES, &superblock.encode()[..])?;
        let _ = commit.fence();
        Ok(())
    }

    /// Stores the words of a copy of the superblock that features change, durably.
    fn change_superblock(&self, block: u64, superblock: &Superblock) -> Result<()> {
        let encoded = superblock.encode();
        let mut found = [0; BLOCK_BYTES as usize];
        self.read_block(block, &mut found)?;
        if found == *encoded {
            return Ok(());
        }
        let mut commit = self.begin();
        for at in [AT_FEATURES_INCOMPATIBLE, AT_CHECKSUM] {
            commit.store(block * BLOCK_BYTES + at as u64, crate::format::get_u64(&encoded[..], at))?;
        }
        let _ = commit.fence();
        Ok(())
    }
}
