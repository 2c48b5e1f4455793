//! One inode, read by fsck: what its slot and its log say, and what of that cannot be.
//!
//! What cannot be ends the log there: a check goes on with the part before it, and repair keeps that part. Changes
//! nothing on the medium.

use super::report::Findings;
use super::trace::{Fault, Ground, Loss, Trace, Verdict, trace};
use crate::file_map::FileMap;
use crate::format::entry::{Entry, Extents, FileExtent, Owned, Partner, Payload};
use crate::format::page::LinePlace;
use crate::format::slot::Birth;
use crate::replay::{InodeState, RANKS, name_key};
use crate::survey::{FILE_BLOCKS_MAX, Values};
use crate::xattrs::is_sound_value;
use gannet_vfs::{FileType, Name, Result};
use std::collections::BTreeMap;

/// What a name names, and where the binding stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Bound {
    pub(super) inode: u32,
    pub(super) generation: u32,
    pub(super) file_type: FileType,
    pub(super) place: LinePlace,
    pub(super) second: bool,
    /// Whether the entry also says what the inode was born with.
    pub(super) birth: bool,
}

/// A log's last entry, as far as it may have been in flight.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LastEntry {
    pub(super) place: Option<LinePlace>,
    /// The size before it, if it has a data hash.
    pub(super) hashed_after_bytes: Option<u64>,
}

/// An inode as far as it can be read, and what has to be done to it.
#[derive(Debug)]
pub(super) struct Examined {
    pub(super) inode: u32,
    pub(super) generation: u32,
    pub(super) birth: Birth,
    pub(super) links_cached: u64,
    pub(super) parent_cached: u64,
    pub(super) state: InodeState,
    pub(super) log: Trace,
    pub(super) last: LastEntry,
    /// Names by index key, if it is a directory.
    pub(super) names: BTreeMap<u64, Bound>,
    /// Where each extended attribute stands.
    pub(super) xattrs: BTreeMap<Box<[u8]>, LinePlace>,
    /// Values of extended attributes that stand in blocks of their own.
    pub(super) values: Values,
    /// Where the pieces of a symbolic link's target stand, and how long they are.
    pub(super) targets: Vec<(LinePlace, u64)>,
    pub(super) map: FileMap,
    /// Entries that name another half: sequence, place, other half.
    pub(super) partners: Vec<(u64, LinePlace, Partner)>,
    /// Its log has to be written anew.
    pub(super) rewrite: bool,
    /// Something of its log was lost.
    pub(super) lossy: bool,
    /// Its slot has to be written anew.
    pub(super) rebuild: bool,
    /// The last entry was in flight at a crash and is to be killed.
    pub(super) kill: Option<LinePlace>,
    /// A new log must begin with a sequence at or above this.
    pub(super) sequence_floor: u64,
    /// What is wrong with the inode by itself.
    pub(super) findings: Findings,
}

impl Examined {
    pub(super) fn is_directory(&self) -> bool {
        self.birth.file_type == FileType::Directory
    }
}

/// What a slot says.
#[derive(Clone, Copy, Debug)]
pub(super) struct SlotWords {
    pub(super) inode: u32,
    pub(super) generation: u32,
    pub(super) birth: Birth,
    pub(super) links: u64,
    pub(super) parent: u64,
    /// Where the slot stands.
    pub(super) at: u64,
}

/// Reads one inode, up to `stop_at` if given.
pub(super) fn examine(ground: &Ground<'_>, slot: &SlotWords, stop_at: Option<LinePlace>) -> Result<Examined> {
    let disk = ground.disk;
    let owned = Owned { key: disk.key(), inode: slot.inode, generation: slot.generation };
    let mut examined = Examined {
        inode: slot.inode,
        generation: slot.generation,
        birth: slot.birth,
        links_cached: slot.links,
        parent_cached: slot.parent,
        state: InodeState::new(&slot.birth),
        log: Trace::default(),
        last: LastEntry::default(),
        names: BTreeMap::new(),
        xattrs: BTreeMap::new(),
        values: Values::default(),
        targets: Vec::new(),
        map: FileMap::default(),
        partners: Vec::new(),
        rewrite: false,
        lossy: false,
        rebuild: false,
        kill: None,
        sequence_floor: 0,
        findings: Findings::default(),
    };
    let head_at = slot.at + crate::format::slot::AT_HEAD;
    let mut log = trace(ground, owned, slot.birth.head, head_at, stop_at, &mut |place, entry, gapped| {
        if let Some(what) = examined.refuse(ground, entry, gapped)? {
            return Ok(Verdict::Bad(what));
        }
        examined.take(ground, place, entry, gapped)?;
        Ok(Verdict::Good)
    })?;
    let future = log.epoch_max > disk.epoch();
    for Fault { structure, offset_bytes, what, loss } in log.faults.drain(..) {
        examined.rewrite = true;
        examined.lossy |= loss != Loss::Nothing;
        let remedy = match loss {
            Loss::Nothing => "the log is written anew; nothing is lost",
            Loss::Some => "what was said there is lost, what the log says before and behind it is kept",
            Loss::Rest => "what the log says from there on is lost, what it says before is kept",
        };
        examined.findings.damage(structure, offset_bytes, slot.inode, what, remedy);
    }
    examined.sequence_floor = log.next_sequence.max(log.sequence_beyond);
    examined.log = log;
    let target_bytes: u64 = examined.targets.iter().map(|&(_, length_bytes)| length_bytes).sum();
    if examined.birth.file_type == FileType::Symlink && target_bytes == 0 && !future {
        let what = "a symbolic link that does not say where it leads";
        examined.findings.damage(
            "log",
            slot.at,
            slot.inode,
            what,
            "it leads to \"?\" from now on: where it led is lost",
        );
        examined.state.logged.size_bytes = 1;
        examined.rewrite = true;
    }
    let logged = &mut examined.state.logged;
    if logged.mode & !0o7777 != 0 {
        let what = format!("its permission bits are {:#o}", logged.mode);
        logged.mode &= 0o7777;
        examined.findings.damage("attributes", slot.at, slot.inode, what, "the bits beyond 0o7777 are dropped");
        examined.rewrite = true;
    }
    Ok(examined)
}

impl Examined {
    /// Why an entry that is valid in itself cannot stand in this log, if so. `gapped`: entries before it are lost.
    fn refuse(&self, ground: &Ground<'_>, entry: &Entry<'_>, gapped: bool) -> Result<Option<String>> {
        let geometry = ground.disk.geometry();
        let file_type = self.birth.file_type;
        let wrong = |what: &str| Ok(Some(format!("{what} in the log of a {file_type:?}")));
        let size_limit = i64::MAX as u64;
        match entry.payload {
            Payload::Seal => {}
            Payload::Bind { .. } if file_type != FileType::Directory => return wrong("a binding of a name"),
            Payload::Bind { first, second, .. } => {
                for binding in [Some(first), second].into_iter().flatten() {
                    if Name::new(binding.name).is_err() {
                        return Ok(Some(format!("\"{}\" is no name", binding.name.escape_ascii())));
                    }
                    if binding.file_type.is_some() && (binding.inode == 0 || binding.inode as u64 >= geometry.inodes())
                    {
                        return Ok(Some(format!("it binds inode {}, which cannot be", binding.inode)));
                    }
                    // What was lost may have given up the key, or the name.
                    if !gapped
                        && let Some(what) = self.refuse_name(ground, binding.name, binding.rank, binding.file_type)?
                    {
                        return Ok(Some(what));
                    }
                }
            }
            Payload::Write { .. }
            | Payload::Remap { .. }
            | Payload::Size { .. }
            | Payload::Resize { .. }
            | Payload::Unmap { .. }
            | Payload::Shift { .. }
                if file_type != FileType::Regular =>
            {
                return wrong("an entry about data");
            }
            Payload::Write { size_bytes, hash, ref extents } => {
                if size_bytes > size_limit {
                    return Ok(Some("a size beyond all limits".into()));
                }
                if let Some(what) = refuse_extents(ground, extents) {
                    return Ok(Some(what));
                }
                if hash.is_some() && extents.iter().any(|extent| extent.shared) {
                    return Ok(Some("blocks that are new and shared".into()));
                }
            }
            Payload::Remap { size_bytes, file_block, count, ref extents } => {
                if size_bytes > size_limit {
                    return Ok(Some("a size beyond all limits".into()));
                }
                if let Some(what) = refuse_extents(ground, extents) {
                    return Ok(Some(what));
                }
                let end = file_block.saturating_add(count);
                let within = |extent: FileExtent| {
                    extent.file_block >= file_block && extent.file_block + extent.count as u64 <= end
                };
                if end > FILE_BLOCKS_MAX || !extents.iter().all(within) {
                    return Ok(Some("blocks outside of the range that is mapped anew".into()));
                }
            }
            Payload::Size { size_bytes, .. } if size_bytes > size_limit => {
                return Ok(Some("a size beyond all limits".into()));
            }
            Payload::Shift { file_block, distance, down, size_bytes } => {
                let end = self.map.end();
                let moves = if down { distance <= file_block } else { end.saturating_add(distance) <= FILE_BLOCKS_MAX };
                if distance == 0 || !moves || size_bytes > size_limit || file_block.max(distance) >= FILE_BLOCKS_MAX {
                    return Ok(Some(format!("blocks from {file_block} on cannot move by {distance}")));
                }
            }
            Payload::Size { .. } | Payload::Unmap { .. } => {}
            Payload::Attributes(attributes) | Payload::Resize { attributes, .. } => {
                let limit = match file_type {
                    FileType::Regular => size_limit,
                    FileType::Symlink => self.targets.iter().map(|&(_, length_bytes)| length_bytes).sum(),
                    _ => 0,
                };
                if attributes.size_bytes > limit {
                    return Ok(Some(format!("a size of {} bytes", attributes.size_bytes)));
                }
            }
            Payload::LargeXattr { value, .. } if !is_sound_value(ground.disk, &value) => {
                return Ok(Some("the value of an extended attribute in blocks that cannot be".into()));
            }
            Payload::Xattr { name, .. } | Payload::LargeXattr { name, .. } => {
                if name.is_empty() || name.len() > 255 || name.contains(&0) {
                    return Ok(Some(format!("\"{}\" is no name of an attribute", name.escape_ascii())));
                }
            }
            Payload::Target(target) => {
                if file_type != FileType::Symlink {
                    return wrong("the target of a symbolic link");
                }
                if target.is_empty() || target.contains(&0) {
                    return Ok(Some("a target that is no path".into()));
                }
            }
        }
        Ok(None)
    }

    /// Why a name cannot be bound, or unbound, under its key.
    fn refuse_name(
        &self,
        ground: &Ground<'_>,
        name: &[u8],
        rank: u16,
        file_type: Option<FileType>,
    ) -> Result<Option<String>> {
        let hash = name_key(ground.disk.key(), name);
        for (&key, bound) in self.names.range(hash..hash.saturating_add(RANKS)) {
            let same_key = key == hash + rank as u64;
            let same_name = bound.name(ground, self.inode, self.generation)?.as_deref() == Some(name);
            if same_key && !same_name {
                return Ok(Some(format!("\"{}\" takes the key of another name", name.escape_ascii())));
            }
            if same_name && !same_key && file_type.is_some() {
                return Ok(Some(format!("\"{}\" is bound twice", name.escape_ascii())));
            }
        }
        Ok(None)
    }

    fn take(&mut self, ground: &Ground<'_>, place: LinePlace, entry: &Entry<'_>, gapped: bool) -> Result<()> {
        let size_before = self.state.logged.size_bytes;
        self.state.apply(entry);
        self.last = LastEntry { place: Some(place), hashed_after_bytes: None };
        match entry.payload {
            Payload::Bind { first, second, birth, partner } => {
                for (index, binding) in [Some(first), second].into_iter().enumerate() {
                    let Some(binding) = binding else { continue };
                    let hash = name_key(ground.disk.key(), binding.name);
                    let key = hash + binding.rank as u64;
                    if gapped {
                        self.forget_name(ground, binding.name, hash)?;
                    }
                    match binding.file_type {
                        Some(file_type) => {
                            let bound = Bound {
                                inode: binding.inode,
                                generation: binding.generation,
                                file_type,
                                place,
                                second: index == 1,
                                birth: index == 0 && birth.is_some(),
                            };
                            self.names.insert(key, bound);
                        }
                        None => {
                            self.names.remove(&key);
                        }
                    }
                }
                if let Some(partner) = partner {
                    self.partners.push((entry.sequence, place, partner));
                }
            }
            Payload::Xattr { name, value: None } => {
                self.xattrs.remove(name);
                self.values.apply(&entry.payload);
            }
            Payload::Xattr { name, .. } | Payload::LargeXattr { name, .. } => {
                self.xattrs.insert(name.into(), place);
                self.values.apply(&entry.payload);
            }
            Payload::Target(piece) => self.targets.push((place, piece.len() as u64)),
            Payload::Write { hash, .. } | Payload::Size { hash, .. } | Payload::Resize { hash, .. } => {
                self.last.hashed_after_bytes = hash.map(|_| size_before);
                self.map.apply(&entry.payload);
            }
            ref other => self.map.apply(other),
        }
        Ok(())
    }

    /// A name is bound or unbound again: whatever was lost, it is not bound as it was any more.
    fn forget_name(&mut self, ground: &Ground<'_>, name: &[u8], hash: u64) -> Result<()> {
        let mut forgotten = Vec::new();
        for (&key, bound) in self.names.range(hash..hash.saturating_add(RANKS)) {
            if bound.name(ground, self.inode, self.generation)?.as_deref() == Some(name) {
                forgotten.push(key);
            }
        }
        for key in forgotten {
            self.names.remove(&key);
        }
        Ok(())
    }
}

fn refuse_extents(ground: &Ground<'_>, extents: &Extents<'_>) -> Option<String> {
    let geometry = ground.disk.geometry();
    let mut ranges: Vec<(u64, u64)> = Vec::with_capacity(extents.len());
    for extent in extents.iter() {
        let count = extent.count as u64;
        if count == 0 || !geometry.is_allocatable_run(extent.block, count) {
            return Some(format!("{count} blocks from {} on are not on the volume", extent.block));
        }
        if extent.file_block.checked_add(count).is_none_or(|end| end > FILE_BLOCKS_MAX) {
            return Some(format!("block {} of a file cannot be", extent.file_block));
        }
        // What is shared may stand in one file twice.
        if !extent.shared {
            ranges.push((extent.block, count));
        }
    }
    ranges.sort_unstable();
    let overlap = ranges.windows(2).find(|pair| pair[0].0 + pair[0].1 > pair[1].0);
    overlap.map(|pair| format!("block {} twice in one entry", pair[1].0))
}

impl Bound {
    /// The name itself, read from the log of the directory.
    pub(super) fn name(&self, ground: &Ground<'_>, directory: u32, generation: u32) -> Result<Option<Box<[u8]>>> {
        let owned = Owned { key: ground.disk.key(), inode: directory, generation };
        let mut block = [0; crate::format::BLOCK_BYTES as usize];
        let bytes = ground.disk.read_entry(self.place, &mut block)?;
        Ok(match Entry::decode(owned, bytes).map(|entry| entry.payload) {
            Some(Payload::Bind { first, second, .. }) => {
                let binding = if self.second { second } else { Some(first) };
                binding.map(|binding| binding.name.into())
            }
            _ => None,
        })
    }

    /// What the inode was born with, if the entry says so.
    pub(super) fn birth(&self, ground: &Ground<'_>, directory: u32, generation: u32) -> Result<Option<Birth>> {
        if !self.birth {
            return Ok(None);
        }
        let owned = Owned { key: ground.disk.key(), inode: directory, generation };
        let mut block = [0; crate::format::BLOCK_BYTES as usize];
        let bytes = ground.disk.read_entry(self.place, &mut block)?;
        Ok(match Entry::decode(owned, bytes).map(|entry| entry.payload) {
            Some(Payload::Bind { birth, .. }) => birth,
            _ => None,
        })
    }
}
