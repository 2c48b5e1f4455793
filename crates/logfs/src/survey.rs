//! The whole volume, read once, in private memory: what is used, what refers to what, what is wrong. Crash recovery and
//! fsck both begin here; neither trusts anything it has not seen here.
//!
//! Reads the medium and changes nothing. Runs on as many threads as it is given.

use crate::disk::Disk;
use crate::file_map::{FileMap, hashed_ranges};
use crate::format::entry::{Entry, Owned, Partner, Payload};
use crate::format::page::LinePlace;
use crate::format::slot::{Birth, Slot};
use crate::format::{BLOCK_BYTES, Tag};
use crate::log::{self, LogEnd, Met};
use crate::replay::{InodeState, RANKS, binding_key};
use crate::xattrs::is_sound_value;
use gannet_media::DataHash;
use gannet_vfs::{Error, FileType, Result};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// An inode that is in use.
#[derive(Debug)]
pub(crate) struct Surveyed {
    /// Its number.
    pub(crate) inode: u32,
    /// Its generation.
    pub(crate) generation: u32,
    /// Its attributes, its last entry applied.
    pub(crate) state: InodeState,
    /// Cached link count in the slot.
    pub(crate) links_cached: u64,
    /// Cached parent in the slot.
    pub(crate) parent_cached: u64,
    /// Where its log ends.
    pub(crate) end: LogEnd,
    /// Sequence number that its log begins with.
    pub(crate) first_sequence: u64,
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

/// The bindings of a directory by index key, after all entries but the last, and the last one apart, since it may have to
/// be killed.
#[derive(Debug, Default)]
pub(crate) struct Names {
    /// Key to what it names.
    pub(crate) bound: HashMap<u64, Target>,
    /// What the last entry changes.
    pub(crate) last: Vec<(u64, Option<Target>)>,
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
    /// Where the binding stands.
    pub(crate) place: LinePlace,
}

/// What is to be decided about a log's last entry, which alone can have been in flight at a crash.
#[derive(Debug, Default)]
pub(crate) struct Last {
    /// The other half of a rename across directories, and this half's sequence.
    pub(crate) partner: Option<(Partner, u64)>,
    /// An inode that it makes.
    pub(crate) birth: Option<(Birth, Target)>,
    /// Its data did not become durable with it.
    pub(crate) torn_data: bool,
}

/// Something that is wrong: errors of the structures themselves, not what a crash leaves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Problem {
    /// The inode, or 0.
    pub(crate) inode: u32,
    /// What, where.
    pub(crate) error: Error,
}

/// What is kept of every inode.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Brief {
    /// Its number.
    pub(crate) inode: u32,
    /// Its generation.
    pub(crate) generation: u32,
    /// Cached link count in the slot.
    pub(crate) links_cached: u64,
    /// Cached parent in the slot.
    pub(crate) parent_cached: u64,
    /// Its type.
    pub(crate) file_type: FileType,
}

/// All inodes in use, and what is wrong.
pub(crate) struct Survey {
    /// Inodes in use, ascending. Little of each, for there can be many millions.
    pub(crate) inodes: Vec<Brief>,
    /// Those of which more is needed, ascending: directories, and whose last entry or page is to be decided.
    pub(crate) whole: Vec<Surveyed>,
    /// Slots and structures that cannot be read.
    pub(crate) problems: Vec<Problem>,
    /// Slots whose checksum fails: a birth that was in flight, or damage.
    pub(crate) damaged_slots: Vec<u32>,
    /// The numbers of the inodes alone, to be searched.
    numbers: Vec<u32>,
    /// Where in `inodes` each chunk begins.
    starts: Vec<usize>,
    slots_per_chunk: u64,
}

/// Chunks of the inode table that a thread takes upon itself.
const CHUNKS_AT_A_TIME: u64 = 16;

/// What one thread has read.
#[derive(Default)]
struct Part {
    inodes: Vec<Brief>,
    whole: Vec<Surveyed>,
    problems: Vec<Problem>,
    damaged_slots: Vec<u32>,
}

impl Survey {
    /// Reads the volume with `threads` threads. `each` sees every inode once, and may take from it what need not be kept.
    pub(crate) fn of(disk: &Disk, threads: usize, each: &(dyn Fn(&mut Surveyed) + Sync)) -> Result<Self> {
        let next_chunk = AtomicU64::new(0);
        let parts = Mutex::new(Vec::new());
        let read = || {
            let mut part = Part::default();
            loop {
                let first = next_chunk.fetch_add(CHUNKS_AT_A_TIME, Ordering::Relaxed);
                let end = (first + CHUNKS_AT_A_TIME).min(disk.geometry().chunks);
                if first >= end {
                    break;
                }
                (first..end).for_each(|chunk| part.chunk(disk, chunk, each));
            }
            parts.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).push(part);
        };
        // The calling thread is one of them.
        std::thread::scope(|scope| {
            (1..threads).for_each(|_| drop(scope.spawn(read)));
            read();
        });
        let mut all = Part::default();
        for part in parts.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner()) {
            all.inodes.extend(part.inodes);
            all.whole.extend(part.whole);
            all.problems.extend(part.problems);
            all.damaged_slots.extend(part.damaged_slots);
        }
        // Stable, since these are quick where there are long runs already.
        all.inodes.sort_by_key(|brief| brief.inode);
        all.whole.sort_by_key(|surveyed| surveyed.inode);
        all.problems.sort_by_key(|problem| (problem.inode, problem.error.place()));
        all.damaged_slots.sort_unstable();
        let Part { inodes, whole, problems, damaged_slots } = all;
        let slots_per_chunk = disk.geometry().slots_per_chunk();
        let (numbers, starts) = (Vec::new(), Vec::new());
        let mut survey = Self { inodes, whole, problems, damaged_slots, numbers, starts, slots_per_chunk };
        survey.number();
        Ok(survey)
    }

    /// Notes where each inode is.
    fn number(&mut self) {
        self.numbers = self.inodes.iter().map(|brief| brief.inode).collect();
        let chunks = self.numbers.last().map_or(0, |&last| last as u64 / self.slots_per_chunk + 1);
        let mut at = 0;
        self.starts = (0..=chunks)
            .map(|chunk| {
                while self.numbers.get(at).is_some_and(|&number| (number as u64) < chunk * self.slots_per_chunk) {
                    at += 1;
                }
                at
            })
            .collect();
    }

    /// Takes inodes in, in place of what is known of them.
    pub(crate) fn add(&mut self, added: Vec<Surveyed>) {
        for surveyed in added {
            let brief = surveyed.brief();
            match self.inodes.binary_search_by_key(&brief.inode, |other| other.inode) {
                Ok(at) => self.inodes[at] = brief,
                Err(at) => self.inodes.insert(at, brief),
            }
            match self.whole.binary_search_by_key(&brief.inode, |other| other.inode) {
                Ok(at) => self.whole[at] = surveyed,
                Err(at) => self.whole.insert(at, surveyed),
            }
        }
        self.number();
    }

    /// Where in `inodes` an inode in use is.
    pub(crate) fn place_of(&self, inode: u32) -> Option<usize> {
        let chunk = (inode as u64 / self.slots_per_chunk) as usize;
        let (start, end) = (*self.starts.get(chunk)?, *self.starts.get(chunk + 1)?);
        self.numbers[start..end].binary_search(&inode).ok().map(|within| start + within)
    }
}

impl Part {
    fn chunk(&mut self, disk: &Disk, chunk: u64, each: &(dyn Fn(&mut Surveyed) + Sync)) {
        let slots = disk.geometry().slots_per_chunk();
        match disk.chunk_block(chunk) {
            Ok(Some(_)) => {}
            Ok(None) => return,
            Err(error) => return self.problems.push(Problem { inode: 0, error }),
        }
        for inode in chunk * slots..((chunk + 1) * slots).min(disk.geometry().inodes()) {
            let inode = inode as u32;
            match disk.slot(inode) {
                Ok(Slot::Free { .. }) => {}
                Ok(Slot::Damaged) => self.damaged_slots.push(inode),
                Ok(Slot::Used { generation, birth, links, parent, .. }) => {
                    match survey_inode(disk, inode, generation, birth, links, parent) {
                        Ok(mut surveyed) => {
                            each(&mut surveyed);
                            self.inodes.push(surveyed.brief());
                            if surveyed.is_needed() {
                                self.whole.push(surveyed);
                            }
                        }
                        Err(error) => self.problems.push(Problem { inode, error }),
                    }
                }
                Err(error) => self.problems.push(Problem { inode, error }),
            }
        }
    }
}

/// Reads one inode: its log, its map or its names, and its last entry's evidence.
pub(crate) fn survey_inode(
    disk: &Disk,
    inode: u32,
    generation: u32,
    birth: Birth,
    links_cached: u64,
    parent_cached: u64,
) -> Result<Surveyed> {
    let owned = Owned { key: disk.key(), inode, generation };
    let mut surveyed = Surveyed {
        inode,
        generation,
        state: InodeState::new(&birth),
        links_cached,
        parent_cached,
        end: LogEnd { tail: None, next_sequence: 1, epoch: 0, last: None, pages: 0, lines: 0, dangling: false },
        first_sequence: 1,
        last: Last::default(),
        names: Names::default(),
        map: FileMap::default(),
        pages: Vec::new(),
        values: Values::default(),
    };
    let mut size_before = 0;
    surveyed.end = log::walk(disk, owned, birth.head, &mut |met| {
        match met {
            Met::Page { block, header } => {
                if surveyed.pages.is_empty() {
                    surveyed.first_sequence = header.first_sequence;
                }
                surveyed.pages.push(block);
            }
            Met::Entry { place, entry } => {
                size_before = surveyed.state.logged.size_bytes;
                surveyed.state.apply(entry);
                surveyed.take(disk, place, entry)?;
            }
        }
        Ok(())
    })?;
    if let Some(last) = surveyed.end.last {
        surveyed.last.torn_data = !data_is_whole(disk, owned, last, size_before, &surveyed.map)?;
    }
    if surveyed.last.torn_data {
        return survey_without_last(disk, owned, surveyed, birth);
    }
    Ok(surveyed)
}

/// Surveys again, leaving the last entry out: its data is not there, so neither is it.
fn survey_without_last(disk: &Disk, owned: Owned, torn: Surveyed, birth: Birth) -> Result<Surveyed> {
    let mut surveyed = Surveyed {
        state: InodeState::new(&birth),
        map: FileMap::default(),
        names: Names::default(),
        values: Values::default(),
        ..torn
    };
    surveyed.pages.clear();
    let last = surveyed.end.last;
    log::walk(disk, owned, birth.head, &mut |met| {
        match met {
            Met::Page { block, .. } => surveyed.pages.push(block),
            Met::Entry { place, .. } if Some(place) == last => {}
            Met::Entry { place, entry } => {
                surveyed.state.apply(entry);
                surveyed.take(disk, place, entry)?;
            }
        }
        Ok(())
    })?;
    surveyed.last.torn_data = true;
    Ok(surveyed)
}

impl Surveyed {
    /// What is kept of it in any case.
    const fn brief(&self) -> Brief {
        Brief {
            inode: self.inode,
            generation: self.generation,
            links_cached: self.links_cached,
            parent_cached: self.parent_cached,
            file_type: self.state.birth.file_type,
        }
    }

    /// Whether there is anything to be decided or derived from it.
    fn is_needed(&self) -> bool {
        self.state.birth.file_type == FileType::Directory
            || self.last.torn_data
            || self.last.partner.is_some()
            || self.last.birth.is_some()
            || self.end.dangling
    }

    fn take(&mut self, disk: &Disk, place: LinePlace, entry: &Entry<'_>) -> Result<()> {
        for (key, target) in self.names.last.drain(..) {
            match target {
                Some(target) => self.names.bound.insert(key, target),
                None => self.names.bound.remove(&key),
            };
        }
        self.last = Last::default();
        self.values.apply(&entry.payload);
        match entry.payload {
            Payload::Bind { first, second, birth, partner } => {
                for binding in [Some(first), second].into_iter().flatten() {
                    let key = binding_key(disk.key(), &binding);
                    debug_assert!((binding.rank as u64) < RANKS);
                    let target = binding.file_type.map(|file_type| Target {
                        inode: binding.inode,
                        generation: binding.generation,
                        file_type,
                        place,
                    });
                    self.names.last.push((key, target));
                    if let (Some(birth), Some(target)) = (birth, target)
                        && self.last.birth.is_none()
                    {
                        self.last.birth = Some((birth, target));
                    }
                }
                self.last.partner = partner.map(|partner| (partner, entry.sequence));
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
                self.map.apply(&entry.payload);
            }
            Payload::LargeXattr { value, .. } if !is_sound_value(disk, &value) => {
                return Err(Error::damaged("value of an extended attribute", place.offset_bytes()));
            }
            Payload::Shift { file_block, distance, .. } if file_block.max(distance) >= FILE_BLOCKS_MAX => {
                return Err(Error::damaged("shift beyond the largest file", place.offset_bytes()));
            }
            ref other => self.map.apply(other),
        }
        Ok(())
    }

    /// The names with the last entry taken (`keep_last`) or killed.
    pub(crate) fn settled_names(&self, keep_last: bool) -> impl Iterator<Item = (u64, Target)> + '_ {
        let last = if keep_last { &self.names.last[..] } else { &[] };
        let overridden = move |key: u64| last.iter().any(|&(changed, _)| changed == key);
        let before = self.names.bound.iter().map(|(&key, &target)| (key, target));
        before
            .filter(move |&(key, _)| !overridden(key))
            .chain(last.iter().filter_map(|&(key, target)| Some((key, target?))))
    }
}

/// The largest file, in blocks: 2^51 bytes short of nothing that fits a volume, and of index keys.
pub(crate) const FILE_BLOCKS_MAX: u64 = 1 << 51;

/// Whether the data that a log's last entry made visible is what its hash says; true where it has none.
pub(crate) fn data_is_whole(
    disk: &Disk,
    owned: Owned,
    last: LinePlace,
    size_before_bytes: u64,
    map: &FileMap,
) -> Result<bool> {
    let mut block = [0; BLOCK_BYTES as usize];
    let bytes = disk.read_entry(last, &mut block)?;
    let Some(entry) = Entry::decode(owned, bytes) else { return Ok(false) };
    let (size_bytes, expected, extents) = match entry.payload {
        Payload::Write { size_bytes, hash: Some(hash), extents } => (size_bytes, hash, extents),
        Payload::Size { size_bytes, hash: Some(hash) } => (size_bytes, hash, crate::format::entry::Extents::List(&[])),
        Payload::Resize { attributes, hash: Some(hash) } => {
            (attributes.size_bytes, hash, crate::format::entry::Extents::List(&[]))
        }
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

/// What a half of a rename across directories is worth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Half {
    /// The rename happened.
    Committed,
    /// The other half never became durable: this one is killed.
    Torn,
    /// Both stand and do not speak of each other.
    Damaged,
}

/// A half of a rename: inode, generation and sequence of its entry.
pub(crate) type HalfName = (u32, u32, u64);

/// Decides a last entry with a partner by sequence order: a partner's log that has moved past the partner's sequence, or
/// whose inode was freed since, proves that both halves were durable.
pub(crate) fn decide_half(disk: &Disk, this: HalfName, partner: Partner) -> Result<Half> {
    Ok(decide_halves(disk, &[(this, partner)])?.pop().unwrap_or(Half::Damaged))
}

/// The same for several that have their partners in one log, which is read once.
pub(crate) fn decide_halves(disk: &Disk, asked: &[(HalfName, Partner)]) -> Result<Vec<Half>> {
    let Some(&(_, Partner { inode, .. })) = asked.first() else { return Ok(Vec::new()) };
    let (generation, birth) = match disk.slot(inode)? {
        Slot::Used { generation, birth, .. } => (generation, birth),
        _ => return Ok(vec![Half::Committed; asked.len()]),
    };
    let owned = Owned { key: disk.key(), inode, generation };
    let wanted: HashSet<u64> = asked.iter().map(|(_, partner)| partner.sequence).collect();
    let mut found: HashMap<u64, Option<HalfName>> = HashMap::new();
    let mut first_sequence = None;
    let end = log::walk(disk, owned, birth.head, &mut |met| {
        match met {
            Met::Page { header, .. } => {
                first_sequence.get_or_insert(header.first_sequence);
            }
            Met::Entry { entry, .. } if wanted.contains(&entry.sequence) => {
                let back = match entry.payload {
                    Payload::Bind { partner: Some(back), .. } => Some((back.inode, back.generation, back.sequence)),
                    _ => None,
                };
                found.insert(entry.sequence, back);
            }
            Met::Entry { .. } => {}
        }
        Ok(())
    })?;
    let decide = |&(this, partner): &(HalfName, Partner)| match found.get(&partner.sequence) {
        _ if partner.generation != generation => Half::Committed,
        Some(back) if *back == Some(this) => Half::Committed,
        Some(_) => Half::Damaged,
        None if partner.sequence < first_sequence.unwrap_or(1) => Half::Committed,
        None if partner.sequence >= end.next_sequence => Half::Torn,
        None => Half::Damaged,
    };
    Ok(asked.iter().map(decide).collect())
}
