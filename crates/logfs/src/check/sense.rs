//! What slots and logs say in a sound form, with right checksums, and that cannot be meant: two ways to write data at once, access control
//! lists that nobody can read, births that are not those of their inodes, copies of the superblock that differ.
//!
//! Looked at once it is decided which entries count. Changes nothing on the medium.

use super::examine::{Bound, Examined};
use super::model::Model;
use super::report::Findings;
use super::trace::Ground;
use crate::disk::{Block, access_error};
use crate::format::BLOCK_BYTES;
use crate::format::entry::{Entry, Owned, Payload};
use crate::format::page::LinePlace;
use crate::format::slot::Birth;
use crate::format::superblock::Superblock;
use crate::load::ACCESS_LIST;
use crate::xattrs::read_value;
use gannet_media::{Medium, MediumOffset};
use gannet_vfs::namespace::AccessList;
use gannet_vfs::{InodeFlags, Result};

const BOTH_DATA_MODES: InodeFlags = InodeFlags::IN_PLACE.union(InodeFlags::COPY_ON_WRITE);

impl Model<'_> {
    /// Finds all of it, and puts right what each inode has now.
    pub(super) fn check_sense(&mut self) -> Result<()> {
        let inodes: Vec<u32> = self.inodes.keys().copied().collect();
        for inode in inodes {
            self.check_flags(inode);
            self.check_lists(inode)?;
            self.check_births(inode)?;
        }
        Ok(())
    }

    /// What the inode was born with does not matter where a later entry says all attributes.
    fn check_flags(&mut self, inode: u32) {
        let at = self.ground.chunks.slot_at(self.ground.disk, inode).unwrap_or(0);
        let Some(examined) = self.inodes.get_mut(&inode) else { return };
        let flags = &mut examined.state.logged.flags;
        if flags.contains(BOTH_DATA_MODES) {
            *flags = flags.with_copy_on_write(None);
            examined.rewrite = true;
            let what = "its flags say that data is written in place, and copy-on-write";
            self.findings.damage("attributes", at, inode, what, "it is written as the volume was made from now on");
        }
    }

    /// An access control list that cannot be read has every permission check of the inode fail, and each creation in a directory.
    fn check_lists(&mut self, inode: u32) -> Result<()> {
        let Some(examined) = self.inodes.get(&inode) else { return Ok(()) };
        let mut wrong = Vec::new();
        for (name, &place) in &examined.xattrs {
            if AccessList::is_named(name) && !is_list(&self.ground, examined, place)? {
                wrong.push((name.clone(), place));
            }
        }
        for (name, place) in wrong {
            let what = format!("\"{}\": its value is no access control list", name.escape_ascii());
            let is_access = *name == *ACCESS_LIST;
            let remedy = match is_access {
                true => {
                    "the list is lost; the bits for the group stood for its mask, and are cleared: nobody may do more by them"
                }
                false => "the list is lost",
            };
            self.findings.damage("extended attribute", place.offset_bytes(), inode, what, remedy);
            if let Some(examined) = self.inodes.get_mut(&inode) {
                if is_access {
                    examined.state.logged.mode &= !0o070;
                }
                examined.xattrs.remove(&name);
                examined.values.remove(&name);
                examined.rewrite = true;
            }
        }
        Ok(())
    }

    /// A directory's births repeat what the slots say. Slots that are made again were made of them, and one in flight counts instead of its slot.
    fn check_births(&mut self, directory: u32) -> Result<()> {
        let Some(examined) = self.inodes.get(&directory) else { return Ok(()) };
        let in_flight = examined.last.place.filter(|_| !self.ground.clean());
        let (mut wrong, mut room) = (Vec::new(), [0; BLOCK_BYTES as usize]);
        for bound in examined.names.values().filter(|bound| bound.birth && Some(bound.place) != in_flight) {
            let found = self.inodes.get(&bound.inode).filter(|found| found.generation == bound.generation);
            if let Some(found) = found.filter(|found| !found.rebuild)
                && let Some(born) = born_by(&self.ground, bound, &mut room)?
                && !is_same(&born, &found.birth)
            {
                wrong.push(*bound);
            }
        }
        for bound in wrong {
            let what = format!("the birth of inode {} says something else than its slot", bound.inode);
            let remedy = "the slot counts; nothing is lost";
            self.findings.damage("birth", bound.place.offset_bytes(), directory, what, remedy);
            if let Some(examined) = self.inodes.get_mut(&directory) {
                // Names that are written anew have no births.
                examined.rewrite = true;
            }
        }
        Ok(())
    }
}

/// Whether two say the same but for the head, which leads to other logs later.
fn is_same(one: &Birth, other: &Birth) -> bool {
    *one == Birth { head: one.head, ..*other }
}

/// The birth in an entry that was proved when its log was read.
fn born_by(ground: &Ground<'_>, bound: &Bound, room: &mut Block) -> Result<Option<Birth>> {
    let bytes = ground.disk.read_entry(bound.place, room)?;
    Ok(match Entry::peek(bytes).map(|entry| entry.payload) {
        Some(Payload::Bind { birth, .. }) => birth,
        _ => None,
    })
}

/// Whether the value of an attribute is an access control list.
fn is_list(ground: &Ground<'_>, examined: &Examined, place: LinePlace) -> Result<bool> {
    let owned = Owned { key: ground.disk.key(), inode: examined.inode, generation: examined.generation };
    let mut block = [0; BLOCK_BYTES as usize];
    let bytes = ground.disk.read_entry(place, &mut block)?;
    Ok(match Entry::decode(owned, bytes).map(|entry| entry.payload) {
        Some(Payload::Xattr { value: Some(value), .. }) => AccessList::can_be_stored(value),
        Some(Payload::LargeXattr { value, .. }) => {
            let mut found = vec![0; value.bytes as usize];
            read_value(ground.disk, owned, &value, &mut found).is_ok() && AccessList::can_be_stored(&found)
        }
        _ => false,
    })
}

/// Which of two copies that say the same have something else where nothing is said: both shall be equal, also there. What is in both is
/// a newer Gannet's.
pub(super) fn unlike_each_other(
    medium: &Medium,
    superblock: &Superblock,
    replica_block: u64,
    findings: &mut Findings,
) -> Result<Vec<u64>> {
    let read = |block: u64| -> Result<Box<[u8; BLOCK_BYTES as usize]>> {
        let mut bytes = Box::new([0; BLOCK_BYTES as usize]);
        medium.read(MediumOffset(block * BLOCK_BYTES), &mut bytes[..]).map_err(access_error)?;
        Ok(bytes)
    };
    let copies = [(0, "superblock", read(0)?), (replica_block, "replica of the superblock", read(replica_block)?)];
    let mut wrong = Vec::new();
    if copies[0].2 == copies[1].2 {
        return Ok(wrong);
    }
    let encoded = superblock.encode();
    for (block, structure, bytes) in copies {
        if bytes != encoded {
            let what = "where nothing is said it has something that the other copy does not have";
            findings.damage(structure, block * BLOCK_BYTES, 0, what, "it is written anew without; nothing is lost");
            wrong.push(block);
        }
    }
    Ok(wrong)
}
