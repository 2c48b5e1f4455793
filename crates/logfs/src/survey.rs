//! One inode in use, read from its slot and its log into private memory: the blocks it refers to, the names it binds, and what
//! its last entry, which alone can have been in flight, needs to be decided. Crash recovery reads all of them so.
//!
//! Reads the medium and changes nothing.

use crate::disk::{Block, Disk};
use crate::file_map::{FileMap, hashed_ranges};
use crate::format::entry::{Entry, Extents, Owned, Partner, Payload};
use crate::format::page::LinePlace;
use crate::format::slot::Birth;
use crate::format::{BLOCK_BYTES, LINE_BYTES, Tag};
use crate::log::{self, LogEnd, Met, PageRoom};
use crate::replay::{InodeState, RANKS, binding_key};
use crate::xattrs::is_sound_value;
use gannet_media::{DataHash, MediumOffset};
use gannet_vfs::{Error, FileType, Result};
use std::collections::BTreeMap;

/// An inode that is in use.
#[derive(Debug)]
pub(crate) struct Surveyed {
    /// Its number.
    pub(crate) inode: u32,
    /// Its generation.
    pub(crate) generation: u32,
    /// Its attributes, its last entry applied.
    pub(crate) state: InodeState,
    /// Where its log ends.
    pub(crate) end: LogEnd,
    /// What its last entry needs to be decided, if anything.
    pub(crate) last: Last,
    /// Names, if it is a directory.
    pub(crate) names: Names,
    /// Blocks of data, if it is a regular file.
    pub(crate) map: FileMap,
    /// Blocks of its log.
    pub(crate) pages: Vec<u64>,
    /// Values of extended attributes that stand in blocks of their own.
    pub(crate) values: Values,
}

/// Where the values of extended attributes stand that have blocks of their own, by name: runs of first block and count.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Values {
    by_name: BTreeMap<Box<[u8]>, Vec<(u64, u64)>>,
}

impl Values {
    /// After one more entry.
    pub(crate) fn apply(&mut self, payload: &Payload<'_>) {
        match *payload {
            Payload::Xattr { name, .. } => {
                self.by_name.remove(name);
            }
            Payload::LargeXattr { name, value } => {
                let runs = value.extents.iter().map(|extent| (extent.block, extent.count as u64));
                self.by_name.insert(name.into(), runs.collect());
            }
            _ => {}
        }
    }

    /// Forgets one.
    pub(crate) fn remove(&mut self, name: &[u8]) {
        self.by_name.remove(name);
    }

    /// All runs, with the attribute's name.
    pub(crate) fn runs(&self) -> impl Iterator<Item = (&[u8], u64, u64)> {
        self.by_name.iter().flat_map(|(name, runs)| runs.iter().map(move |&(block, count)| (&name[..], block, count)))
    }

    /// All blocks.
    pub(crate) fn blocks(&self) -> impl Iterator<Item = u64> {
        self.runs().flat_map(|(_, block, count)| block..block + count)
    }
}

/// What a directory's log says of names: what was changed by all entries but the last, and the last one's changes apart, since it may
/// have to be killed.
#[derive(Debug, Default)]
pub(crate) struct Names {
    /// In the order of the log, but for the first `settled`, which are ascending by key, one for each name that is bound.
    changes: Vec<Change>,
    settled: usize,
    /// What the last entry changes.
    pub(crate) last: [Option<Change>; 2],
}

/// A name that is bound or taken away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Change {
    /// Its key.
    pub(crate) key: u64,
    /// What it names from now on.
    pub(crate) target: Option<Target>,
}

/// What a name names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    /// The inode.
    pub(crate) inode: u32,
    /// Its generation.
    pub(crate) generation: u32,
    /// Its type.
    pub(crate) file_type: FileType,
}

/// So many changes are put together at least, and twice as many as names were left when this was done before: so it takes no longer for
/// each of them in a long log.
const CHANGES_TOGETHER: usize = 1024;

impl Names {
    fn change(&mut self, change: Change) {
        if self.changes.len() >= CHANGES_TOGETHER.max(2 * self.settled) {
            let _ = self.bound();
        }
        self.changes.push(change);
    }

    /// The last entry stands.
    pub(crate) fn keep_last(&mut self) {
        for change in std::mem::take(&mut self.last).into_iter().flatten() {
            self.change(change);
        }
    }

    /// The names that are bound, ascending by key, before the last entry.
    pub(crate) fn bound(&mut self) -> &[Change] {
        if self.settled < self.changes.len() {
            // Stable: of one key the latest stays last.
            self.changes.sort_by_key(|change| change.key);
            let mut kept = 0;
            for at in 0..self.changes.len() {
                let change = self.changes[at];
                let is_latest = self.changes.get(at + 1).is_none_or(|next| next.key != change.key);
                if is_latest && change.target.is_some() {
                    self.changes[kept] = change;
                    kept += 1;
                }
            }
            self.changes.truncate(kept);
            self.settled = kept;
        }
        &self.changes
    }

    /// What was bound before the last entry under the keys that it changes.
    pub(crate) fn before_last(&mut self) -> [Option<Change>; 2] {
        let keys = self.last.map(|change| change.map(|change| change.key));
        let bound = self.bound();
        let mut before = keys.map(|key| {
            let at = bound.binary_search_by_key(&key?, |change| change.key).ok()?;
            bound.get(at).copied()
        });
        if before[0] == before[1] {
            before[1] = None;
        }
        before
    }
}

/// What is to be decided about a log's last entry, which alone can have been in flight at a crash.
#[derive(Debug, Default)]
pub(crate) struct Last {
    /// The other half of a rename across directories, and this half's sequence.
    pub(crate) partner: Option<(Partner, u64)>,
    /// An inode that it makes.
    pub(crate) birth: Option<(Birth, Target)>,
    /// It has a hash of data; the size of the file before it.
    hashed_after_bytes: Option<u64>,
    /// Its data did not become durable with it.
    pub(crate) torn_data: bool,
}

impl Surveyed {
    /// Reads one inode. Its last entry's data is looked at by [`Surveyed::look_at_data`].
    pub(crate) fn read(disk: &Disk, inode: u32, generation: u32, birth: Birth, room: &mut PageRoom) -> Result<Self> {
        Self::read_without(disk, inode, generation, birth, None, room)
    }

    fn read_without(
        disk: &Disk,
        inode: u32,
        generation: u32,
        birth: Birth,
        without: Option<LinePlace>,
        room: &mut PageRoom,
    ) -> Result<Self> {
        let mut surveyed = Self {
            inode,
            generation,
            state: InodeState::new(&birth),
            end: LogEnd::default(),
            last: Last::default(),
            names: Names::default(),
            map: FileMap::default(),
            pages: Vec::new(),
            values: Values::default(),
        };
        surveyed.end = log::walk_in(room, disk, surveyed.owned(disk), birth.head, &mut |met| match met {
            Met::Page { block, .. } => {
                surveyed.pages.push(block);
                Ok(())
            }
            Met::Entry { place, .. } if Some(place) == without => Ok(()),
            Met::Entry { place, entry } => surveyed.take(disk, place, entry),
        })?;
        Ok(surveyed)
    }

    fn owned(&self, disk: &Disk) -> Owned {
        Owned { key: disk.key(), inode: self.inode, generation: self.generation }
    }

    /// Asks for the data that [`Surveyed::look_at_data`] will read, and says whether there is any.
    pub(crate) fn expect_data(&self, disk: &Disk) -> bool {
        let Some(size_before) = self.last.hashed_after_bytes else { return false };
        // All of the first block of it: the processor itself would ask for some lines only, and stop where the block ends.
        if let Some(block) = self.map.get(size_before / BLOCK_BYTES) {
            let (start, end) = (size_before % BLOCK_BYTES, (size_before / BLOCK_BYTES + 1) * BLOCK_BYTES);
            let length = self.state.logged.size_bytes.min(end).saturating_sub(size_before);
            let lines = (start..start + length).step_by(LINE_BYTES as usize);
            lines.for_each(|at| disk.medium().expect_load(MediumOffset(block * BLOCK_BYTES + at)));
        }
        true
    }

    /// Compares the data that the last entry made visible with its hash. If it is not there, neither is the entry: the inode is read
    /// again without it.
    pub(crate) fn look_at_data(&mut self, disk: &Disk, room: &mut PageRoom) -> Result<()> {
        let (Some(last), Some(size_before)) = (self.end.last, self.last.hashed_after_bytes) else { return Ok(()) };
        if data_is_whole(disk, self.owned(disk), last, size_before, &self.map, room.bytes_mut())? {
            return Ok(());
        }
        let (inode, generation, birth) = (self.inode, self.generation, self.state.birth);
        *self = Self::read_without(disk, inode, generation, birth, Some(last), room)?;
        // The entry before it was not the last.
        self.names.keep_last();
        self.last = Last { torn_data: true, ..Last::default() };
        Ok(())
    }

    fn take(&mut self, disk: &Disk, place: LinePlace, entry: &Entry<'_>) -> Result<()> {
        let size_before = self.state.logged.size_bytes;
        self.state.apply(entry);
        self.names.keep_last();
        self.last = Last::default();
        match entry.payload {
            Payload::Bind { first, second, birth, partner } => {
                for (last, binding) in self.names.last.iter_mut().zip([Some(first), second]) {
                    let Some(binding) = binding else { continue };
                    let key = binding_key(disk.key(), &binding);
                    debug_assert!((binding.rank as u64) < RANKS);
                    let target = binding.file_type.map(|file_type| Target {
                        inode: binding.inode,
                        generation: binding.generation,
                        file_type,
                    });
                    *last = Some(Change { key, target });
                    if let (Some(birth), Some(target)) = (birth, target)
                        && self.last.birth.is_none()
                    {
                        self.last.birth = Some((birth, target));
                    }
                }
                self.last.partner = partner.map(|partner| (partner, entry.sequence));
                return Ok(());
            }
            Payload::Write { ref extents, .. } | Payload::Remap { ref extents, .. } => {
                for extent in extents.iter() {
                    let sound = disk.geometry().is_allocatable_run(extent.block, extent.count as u64)
                        && extent.file_block < FILE_BLOCKS_MAX
                        && extent.count > 0;
                    if !sound {
                        return Err(Error::damaged("extent outside the volume", place.offset_bytes()));
                    }
                }
            }
            Payload::LargeXattr { value, .. } if !is_sound_value(disk, &value) => {
                return Err(Error::damaged("value of an extended attribute", place.offset_bytes()));
            }
            Payload::Shift { file_block, distance, .. } if file_block.max(distance) >= FILE_BLOCKS_MAX => {
                return Err(Error::damaged("shift beyond the largest file", place.offset_bytes()));
            }
            _ => {}
        }
        let is_hashed = matches!(
            entry.payload,
            Payload::Write { hash: Some(_), .. }
                | Payload::Size { hash: Some(_), .. }
                | Payload::Resize { hash: Some(_), .. }
        );
        self.last.hashed_after_bytes = is_hashed.then_some(size_before);
        self.values.apply(&entry.payload);
        self.map.apply(&entry.payload);
        Ok(())
    }
}

/// The largest file, in blocks: 2^51 bytes short of nothing that fits a volume, and of index keys.
pub(crate) const FILE_BLOCKS_MAX: u64 = 1 << 51;

/// Whether the data that a log's last entry made visible is what its hash says; true where it has none. `room` is for the entry.
pub(crate) fn data_is_whole(
    disk: &Disk,
    owned: Owned,
    last: LinePlace,
    size_before_bytes: u64,
    map: &FileMap,
    room: &mut Block,
) -> Result<bool> {
    let bytes = disk.read_entry(last, room)?;
    let Some(entry) = Entry::decode(owned, bytes) else { return Ok(false) };
    let (size_bytes, expected, extents) = match entry.payload {
        Payload::Write { size_bytes, hash: Some(hash), extents } => (size_bytes, hash, extents),
        Payload::Size { size_bytes, hash: Some(hash) } => (size_bytes, hash, Extents::List(&[])),
        Payload::Resize { attributes, hash: Some(hash), .. } => (attributes.size_bytes, hash, Extents::List(&[])),
        _ => return Ok(true),
    };
    let mut hash = DataHash::new(owned.key.seed(Tag::Data, owned.inode as u64, owned.generation as u64));
    hashed_ranges(
        size_before_bytes,
        size_bytes,
        &extents,
        |at| map.get(at),
        |at, length_bytes| disk.hash_range(&mut hash, at, length_bytes),
    )?;
    Ok(hash.value() == expected)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_latest_changes() {
        let mut state = 5_u64;
        let mut random = |below: u64| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) % below
        };
        // Few names that change often, so that they are put together again and again; then many.
        for keys in [3, 300, 5000] {
            let (mut names, mut table) = (Names::default(), BTreeMap::new());
            for inode in 0..20_000 {
                let bound = (random(3) > 0).then_some(Target { inode, generation: 1, file_type: FileType::Regular });
                let first = Change { key: random(keys), target: bound };
                let second = (random(9) == 0).then(|| Change { key: random(keys), target: None });
                names.last = [Some(first), second];
                if inode % 1999 == 0 {
                    let before = names.before_last();
                    assert_eq!(before[0], table.get(&first.key).copied());
                    let other = second.filter(|second| second.key != first.key);
                    assert_eq!(before[1], other.and_then(|second| table.get(&second.key).copied()));
                }
                for change in names.last.into_iter().flatten() {
                    match change.target {
                        Some(_) => table.insert(change.key, change),
                        None => table.remove(&change.key),
                    };
                }
                names.keep_last();
                assert!(names.changes.len() <= CHANGES_TOGETHER.max(2 * keys as usize));
            }
            assert_eq!(names.bound(), table.into_values().collect::<Vec<_>>());
        }
    }
}
