//! Steps of the check that concern more than one log: renames across directories, slots that must be made again from the
//! names that lead to them, and the root directory.

use super::SEQUENCE_CREDIBLE_MAX;
use super::examine::{Bound, SlotWords, examine};
use super::model::Model;
use crate::format::BLOCK_BYTES;
use crate::format::entry::Partner;
use crate::format::page::Link;
use crate::format::slot::{AT_HEAD, Birth, Slot};
use crate::recover::ROOT;
use gannet_vfs::{FileType, InodeFlags, Owner, Result};

/// What a half of a rename across directories is worth, as `survey::Half` has it, with what is known here.
enum Half {
    Fine,
    Missing,
    Disagrees,
}

impl Model<'_> {
    /// Decides every entry that names another half. On a volume that was not closed cleanly, a last entry whose other
    /// half is missing is killed; anything else that does not fit is damage.
    pub(super) fn decide_halves(&mut self) -> Result<()> {
        let directories: Vec<u32> =
            self.inodes.values().filter(|examined| !examined.partners.is_empty()).map(|found| found.inode).collect();
        for inode in directories {
            let Some(examined) = self.inodes.get(&inode) else { continue };
            let generation = examined.generation;
            let last = examined.last.place.filter(|_| !examined.lossy);
            for (sequence, place, partner) in examined.partners.clone() {
                let half = self.half((inode, generation, sequence), partner);
                let Partner { inode: other, sequence: missing, .. } = partner;
                // What is missing may have removed the name that was given up, so that it is there again.
                let remedy = "both directories are taken as they stand; a name may be in both";
                match half {
                    Half::Fine => continue,
                    Half::Missing => {
                        let other_is_whole = self.inodes.get(&other).is_none_or(|other| !other.lossy);
                        if !self.ground.clean() && last == Some(place) && other_is_whole {
                            self.examine_again(inode, Some(place))?;
                            if let Some(examined) = self.inodes.get_mut(&inode) {
                                examined.kill = Some(place);
                            }
                            break;
                        }
                        let mut at = place.offset_bytes();
                        if let Some(other) = self.inodes.get_mut(&other) {
                            other.rewrite = true;
                            if missing < SEQUENCE_CREDIBLE_MAX {
                                other.sequence_floor = other.sequence_floor.max(missing + 1);
                            }
                            at = other.log.last.map_or(at, |last| last.offset_bytes());
                        }
                        self.names_lost = true;
                        let what = format!("entry {missing} of its log is missing, to which directory {inode} refers");
                        self.findings.damage("rename across directories", at, other, what, remedy);
                    }
                    Half::Disagrees => {
                        let what = format!("entry {missing} of directory {other} does not refer back");
                        self.findings.damage("rename across directories", place.offset_bytes(), inode, what, remedy);
                    }
                }
                if let Some(examined) = self.inodes.get_mut(&inode) {
                    examined.rewrite = true;
                }
            }
        }
        Ok(())
    }

    fn half(&self, this: (u32, u32, u64), partner: Partner) -> Half {
        let Some(other) = self.inodes.get(&partner.inode) else { return Half::Fine };
        if other.generation != partner.generation || partner.sequence < other.log.first_sequence {
            return Half::Fine;
        }
        let is_lost = |&(from, to): &(u64, u64)| (from..to).contains(&partner.sequence);
        if partner.sequence >= other.log.next_sequence || other.log.gaps.iter().any(is_lost) {
            return Half::Missing;
        }
        let found = other.partners.binary_search_by_key(&partner.sequence, |&(sequence, _, _)| sequence);
        match found.map(|index| other.partners[index].2) {
            Ok(back) if (back.inode, back.generation, back.sequence) == this => Half::Fine,
            _ => Half::Disagrees,
        }
    }

    /// Makes again the inodes that a name leads to and whose slot does not stand. Returns whether there are any.
    pub(super) fn rebuild_slots(&mut self) -> Result<bool> {
        self.rebuild_root()?;
        let mut directories: Vec<u32> =
            self.inodes.values().filter(|examined| examined.is_directory()).map(|found| found.inode).collect();
        // The name that an inode was born with says what it was made of, another one only that it is: those come last.
        let mut born_elsewhere = Vec::new();
        while let Some((inode, births)) =
            directories.pop().map(|inode| (inode, true)).or_else(|| born_elsewhere.pop().map(|inode| (inode, false)))
        {
            if births {
                self.forget_headless_birth(inode)?;
                born_elsewhere.push(inode);
            }
            let Some(directory) = self.inodes.get(&inode) else { continue };
            let (generation, last) = (directory.generation, directory.last.place);
            let is_missing = |bound: &&Bound| bound.birth == births && !self.inodes.contains_key(&bound.inode);
            let missing: Vec<_> = directory.names.values().filter(is_missing).copied().collect();
            for bound in missing {
                if self.inodes.contains_key(&bound.inode) {
                    continue;
                }
                let disk = self.ground.disk;
                let at = self.ground.chunks.slot_at(disk, bound.inode);
                match self.ground.chunks.slot(disk, bound.inode)? {
                    Slot::Damaged => {}
                    Slot::Free { .. } if self.ground.was_in_use(bound.inode) => {}
                    // Its chunk is gone: no name leads to a slot before the chunk is durable.
                    Slot::Free { .. } if at.is_none() && self.ground.saved_inodes.is_none() => {}
                    // Its chunk was made by a repair that was cut short.
                    Slot::Free { generation: 0 } if self.ground.unfinished => {}
                    // A slot of a new chunk has never been used.
                    Slot::Free { generation } if generation.max(1) == bound.generation => {}
                    // A birth whose head did not come to be: forgotten above.
                    Slot::Used { generation, .. } if generation == bound.generation => {}
                    _ => continue,
                }
                let born = bound.birth(&self.ground, inode, generation)?;
                let in_flight = !self.ground.clean() && born.is_some() && last == Some(bound.place);
                let mut birth = born.unwrap_or(nobody(bound.file_type));
                match at {
                    Some(at) if !in_flight => match disk.load(at + AT_HEAD)? {
                        0 => {}
                        head => birth.head = head,
                    },
                    Some(_) => {}
                    None => {
                        let chunk = bound.inode as u64 / disk.geometry().slots_per_chunk();
                        self.missing_chunks.insert(chunk);
                    }
                }
                let at = at.unwrap_or(0);
                if !in_flight {
                    let remedy = match born {
                        Some(_) => "it is made again from its birth in the directory; its times of last use are lost",
                        None => {
                            "it is made again; owner and permissions that its log does not say are lost: root, 0600"
                        }
                    };
                    let what = format!("it is damaged, and directory {inode} has a name for it");
                    self.findings.damage("inode slot", at, bound.inode, what, remedy);
                }
                let words =
                    SlotWords { inode: bound.inode, generation: bound.generation, birth, links: 0, parent: 0, at };
                self.insert_rebuilt(&words, !in_flight)?;
                if bound.file_type == FileType::Directory {
                    directories.push(bound.inode);
                }
            }
        }
        for inode in std::mem::take(&mut self.damaged_slots) {
            if self.inodes.contains_key(&inode) {
                continue;
            }
            if self.ground.clean() {
                let at = self.ground.chunks.slot_at(self.ground.disk, inode).unwrap_or(0);
                let what = "it is damaged, and no name leads to it";
                self.findings.damage("inode slot", at, inode, what, "the inode is freed: what it held is lost");
            }
            // Otherwise it is a birth that never became whole.
            self.damaged_slots.push(inode);
        }
        Ok(self.inodes.values().any(|examined| examined.rebuild))
    }

    /// The head of a slot stands outside of its checksum. A birth in flight may have left it behind, or what stood there before,
    /// and with it the log that the inode is born with: then the slot is to be made again, as it is where nothing of it stands.
    fn forget_headless_birth(&mut self, directory: u32) -> Result<()> {
        let Some(examined) = self.inodes.get(&directory) else { return Ok(()) };
        let (generation, last) = (examined.generation, examined.last.place);
        if self.ground.clean() || last.is_none() {
            return Ok(());
        }
        let in_flight: Vec<_> = examined.names.values().filter(|bound| last == Some(bound.place)).copied().collect();
        for bound in in_flight {
            let born = bound.birth(&self.ground, directory, generation)?;
            let slot = self.ground.chunks.slot(self.ground.disk, bound.inode)?;
            let is_headless = self.inodes.get(&bound.inode).is_some_and(|examined| examined.log.pages.is_empty());
            if let (Some(Birth { head: 1.., .. }), Slot::Used { generation, .. }) = (born, slot)
                && generation == bound.generation
                && is_headless
            {
                self.inodes.remove(&bound.inode);
            }
        }
        Ok(())
    }

    fn insert_rebuilt(&mut self, words: &SlotWords, rewrite: bool) -> Result<()> {
        let mut examined = examine(&self.ground, words, None)?;
        examined.rebuild = true;
        examined.rewrite |= rewrite;
        self.note_epoch(&examined);
        self.inodes.insert(words.inode, examined);
        Ok(())
    }

    /// Without a root directory there is no volume: it is made again, with what is left of its log.
    fn rebuild_root(&mut self) -> Result<()> {
        if self.inodes.get(&ROOT).is_some_and(|root| root.is_directory() && root.generation == 1) {
            return Ok(());
        }
        self.names_lost = true;
        let disk = self.ground.disk;
        let mut words = SlotWords {
            inode: ROOT,
            generation: 1,
            birth: Birth { mode: 0o755, ..nobody(FileType::Directory) },
            links: 2,
            parent: ROOT as u64,
            at: 0,
        };
        self.inodes.remove(&ROOT);
        if let Some(at) = self.ground.chunks.slot_at(disk, ROOT) {
            words.at = at;
            words.birth.head = disk.load(at + AT_HEAD)?;
            let header = match Link::decode(words.birth.head) {
                Some(link) => disk.page_header(link)?,
                None => None,
            };
            if header.is_some_and(|header| (header.inode, header.generation) != (ROOT, 1)) {
                words.birth.head = 0;
            }
        }
        let remedy = "it is made again; its owner and permissions are lost unless its log says them: root, 0755";
        let at = if words.at == 0 { disk.geometry().map_start * BLOCK_BYTES } else { words.at };
        self.findings.damage("root directory", at, ROOT, "there is none", remedy);
        self.insert_rebuilt(&words, true)
    }
}

/// What an inode gets whose attributes are not known.
const fn nobody(file_type: FileType) -> Birth {
    Birth {
        file_type,
        mode: if let FileType::Directory = file_type { 0o700 } else { 0o600 },
        flags: InodeFlags::empty(),
        owner: Owner { user: 0, group: 0 },
        device: 0,
        created: 0,
        head: 0,
    }
}
