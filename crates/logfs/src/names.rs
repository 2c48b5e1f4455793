//! Names in directories: looking them up, reading them in order, and where a new one goes in the index.
//!
//! A name's index key is 47 bits of its hash and a rank among names of the same hash; the value says where the log entry
//! stands that binds it. The name itself is read from the log.

use crate::format::entry::{Binding, DIRECTORY_ENTRY_BYTES_MAX, peek_binding};
use crate::index::Tree;
use crate::ops::{Op, index_error, sound_place};
use crate::record::Record;
use crate::replay::{NamePlace, RANKS, name_key};
use gannet_vfs::{DirectoryEntry, Errno, Error, FileType, Found, Name, NodeId, Result};

/// Entries up to this length are read at once.
const SHORT_ENTRY_BYTES: usize = 192;

/// A name that was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bound {
    /// Its key in the index.
    pub(crate) key: u64,
    /// The inode.
    pub(crate) inode: u32,
    /// Its generation.
    pub(crate) generation: u32,
    /// Its type.
    pub(crate) file_type: FileType,
    /// Where it is bound.
    pub(crate) place: NamePlace,
}

impl Bound {
    /// The inode it names.
    pub(crate) const fn node(&self) -> NodeId {
        NodeId::new(self.inode as u64, self.generation)
    }

    /// Its rank among names of the same hash.
    pub(crate) const fn rank(&self) -> u16 {
        (self.key % RANKS) as u16
    }
}

/// What stands under a name: an inode, or the key that a new one gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Seat {
    /// Somebody.
    Taken(Bound),
    /// Nobody; `key` is free.
    Free(u64),
}

impl Seat {
    /// Whoever has the name, or `ENOENT`.
    pub(crate) fn taken(self) -> Result<Bound> {
        match self {
            Self::Taken(bound) => Ok(bound),
            Self::Free(_) => Err(Error::new(Errno::NOENT)),
        }
    }

    /// Its key in the index.
    pub(crate) const fn key(&self) -> u64 {
        match self {
            Self::Taken(bound) => bound.key,
            Self::Free(key) => *key,
        }
    }

    /// Its rank among names of the same hash.
    pub(crate) const fn rank(&self) -> u16 {
        (self.key() % RANKS) as u16
    }
}

impl<'s> Op<'s> {
    /// Looks a name up in the directory with this record. Beside a writer the answer is to be validated.
    pub(crate) fn seat(&self, directory: u32, record: &Record<'s>, name: Name<'_>) -> Result<Seat> {
        let tree = self.tree(directory, record);
        let first = name_key(self.disk().key(), name.bytes());
        // Nearly always nobody has this hash, or one name that is this one: then one descent is enough.
        match tree.floor(first + (RANKS - 1)).map_err(index_error)? {
            Some((key, value)) if key == first => {
                if let Some(bound) = self.bound_as(name, key, value)? {
                    return Ok(Seat::Taken(bound));
                }
            }
            Some((key, _)) if key > first => {}
            _ => return Ok(Seat::Free(first)),
        }
        let mut free = first;
        let mut at = first;
        // Names of one hash are neighbours; nearly always there is one or none.
        while let Some((key, value)) = tree.ceiling(at).map_err(index_error)? {
            if key >= first + RANKS {
                break;
            }
            if key == free {
                free += 1;
            }
            if let Some(bound) = self.bound_as(name, key, value)? {
                return Ok(Seat::Taken(bound));
            }
            at = key + 1;
        }
        if free == first + RANKS {
            return Err(Error::because(Errno::NOSPC, "65536 names of one directory share one hash"));
        }
        Ok(Seat::Free(free))
    }

    /// What an entry of the index leads to, if that is what has this name.
    #[inline(never)]
    fn bound_as(&self, name: Name<'_>, key: u64, value: u64) -> Result<Option<Bound>> {
        let place = NamePlace::decode(value).ok_or(Error::damaged("shared state: name", key))?;
        let found = self.with_binding(place, |binding| {
            (binding.name == name.bytes()).then_some((binding.inode, binding.generation))
        })?;
        Ok(found.map(|(inode, generation)| Bound { key, inode, generation, file_type: place.file_type, place }))
    }

    /// Calls `take` with the binding that stands at `place`.
    #[inline(always)]
    pub(crate) fn with_binding<T>(&self, place: NamePlace, take: impl FnOnce(Binding<'_>) -> T) -> Result<T> {
        let damaged = Error::damaged("directory entry", place.place.offset_bytes());
        if !sound_place(self.disk(), place.place) {
            return Err(damaged);
        }
        // This runs with every lookup, and most entries take two lines.
        let mut buffer = [0; SHORT_ENTRY_BYTES];
        let bytes = self.disk().read_lines(place.place, &mut buffer)?;
        match peek_binding(bytes, place.second) {
            Some(binding) => Ok(take(binding)),
            None => self.with_long_binding(place, take),
        }
    }

    #[cold]
    #[inline(never)]
    fn with_long_binding<T>(&self, place: NamePlace, take: impl FnOnce(Binding<'_>) -> T) -> Result<T> {
        let mut buffer = [0; DIRECTORY_ENTRY_BYTES_MAX];
        let bytes = self.disk().read_lines(place.place, &mut buffer)?;
        let damaged = Error::damaged("directory entry", place.place.offset_bytes());
        peek_binding(bytes, place.second).map(take).ok_or(damaged)
    }

    /// Finds a name without taking a lock. The shortest way, since every path walk goes it: one descent in the index, one
    /// look at the log.
    #[inline]
    pub(crate) fn lookup(&self, directory: NodeId, name: Name<'_>) -> Result<Found> {
        self.read_record(directory, |record, state| {
            self.directory(state)?;
            let inode = directory.number as u32;
            let first = name_key(self.disk().key(), name.bytes());
            // The last of the names of this hash: nearly always the only one.
            match self.tree(inode, record).floor(first + (RANKS - 1)).map_err(index_error)? {
                Some((key, value)) if key >= first => {
                    let place = NamePlace::decode(value).ok_or(Error::damaged("shared state: name", key))?;
                    let found = self.with_binding(place, |binding| {
                        (binding.name == name.bytes()).then_some(NodeId::new(binding.inode as u64, binding.generation))
                    })?;
                    match found {
                        Some(node) => Ok(Found { node, file_type: place.file_type }),
                        None => self.lookup_among(inode, record, name),
                    }
                }
                _ => Err(Error::new(Errno::NOENT)),
            }
        })
    }

    /// The name that was looked at is another of the same hash.
    #[cold]
    fn lookup_among(&self, directory: u32, record: &Record<'s>, name: Name<'_>) -> Result<Found> {
        let bound = self.seat(directory, record, name)?.taken()?;
        Ok(Found { node: bound.node(), file_type: bound.file_type })
    }

    /// See [`Op::lookup`] and [`Op::read_record_at`].
    pub(crate) fn lookup_bound(
        &self,
        directory: NodeId,
        name: Name<'_>,
        at_sequence: &mut Option<u64>,
    ) -> Result<Bound> {
        self.read_record_at(directory, at_sequence, |record, state| {
            self.directory(state)?;
            self.seat(directory.number as u32, record, name)?.taken()
        })
    }

    /// Tells the entries of a directory behind `cookie`.
    ///
    /// Entries are taken in batches, each read like everything else without a lock and validated, then told: `sink` never
    /// sees what was torn, and runs outside of any lock.
    pub(crate) fn read_directory(
        &self,
        directory: NodeId,
        cookie: u64,
        sink: &mut dyn FnMut(&DirectoryEntry<'_>) -> bool,
    ) -> Result<()> {
        let mut next = cookie.saturating_add(1);
        let mut batch = Batch::new();
        loop {
            let done = self.read_record(directory, |record, state| {
                self.directory(state)?;
                batch.clear();
                let tree = self.tree(directory.number as u32, record);
                self.fill(&tree, next, &mut batch)
            })?;
            for entry in batch.iter() {
                next = entry.cookie + 1;
                if !sink(&entry) {
                    return Ok(());
                }
            }
            if done {
                return Ok(());
            }
        }
    }

    /// Fills a batch with entries from the key `next` on; true if there are no more.
    ///
    /// What is bound by names that follow each other stands anywhere in the log, and seldom in the cache: all of a batch is asked
    /// for before the first is read.
    fn fill(&self, tree: &Tree<'_>, next: u64, batch: &mut Batch) -> Result<bool> {
        let mut bound = [(0, 0); BATCH_ENTRIES];
        let mut count = 0;
        let mut more = false;
        tree.for_each_from(next, &mut |key, value| {
            if key > i64::MAX as u64 {
                return false;
            }
            let Some(free) = bound.get_mut(count) else {
                more = true;
                return false;
            };
            *free = (key, value);
            count += 1;
            if let Some(place) = NamePlace::decode(value) {
                self.disk().expect_entry(place.place);
            }
            true
        })
        .map_err(index_error)?;
        for &(key, value) in &bound[..count] {
            let place = NamePlace::decode(value).ok_or(Error::damaged("shared state: name", key))?;
            if !self.with_binding(place, |binding| batch.add(key, binding.inode, place.file_type, binding.name))? {
                return Ok(false);
            }
        }
        Ok(!more)
    }
}

const BATCH_ENTRIES: usize = 48;
const BATCH_BYTES: usize = 2048;

/// Entries copied out of a directory.
struct Batch {
    heads: [(u64, u32, FileType, u16, u8); BATCH_ENTRIES],
    count: usize,
    names: [u8; BATCH_BYTES],
    used: usize,
}

impl Batch {
    const fn new() -> Self {
        Self { heads: [(0, 0, FileType::Regular, 0, 0); BATCH_ENTRIES], count: 0, names: [0; BATCH_BYTES], used: 0 }
    }

    fn clear(&mut self) {
        self.count = 0;
        self.used = 0;
    }

    fn add(&mut self, key: u64, inode: u32, file_type: FileType, name: &[u8]) -> bool {
        if self.count == BATCH_ENTRIES || self.used + name.len() > BATCH_BYTES {
            return false;
        }
        self.heads[self.count] = (key, inode, file_type, self.used as u16, name.len() as u8);
        self.names[self.used..self.used + name.len()].copy_from_slice(name);
        self.count += 1;
        self.used += name.len();
        true
    }

    fn iter(&self) -> impl Iterator<Item = DirectoryEntry<'_>> {
        self.heads[..self.count].iter().filter_map(|&(cookie, inode, file_type, start, length)| {
            let name = Name::new(&self.names[start as usize..start as usize + length as usize]).ok()?;
            Some(DirectoryEntry { number: inode as u64, file_type, cookie, name })
        })
    }
}
