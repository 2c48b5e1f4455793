//! The descriptors of a volume's handle: small numbers, each with what it stands for.
//!
//! Reading takes no lock: an entry is four words that are checked to belong together. Changes take the table's lock, which
//! also keeps which numbers are free and how many of them refer to one description. This process is one user of a
//! description, however many of its descriptors refer to it.

use gannet_vfs::shared::Description;
use gannet_vfs::{Errno, Error, FileType, NodeId, Result};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

/// Entries that are allocated together.
const CHUNK_ENTRIES: usize = 512;
/// Chunks of a table.
const CHUNKS: usize = 128;
/// Descriptors of a handle.
pub(crate) const DESCRIPTORS_MAX: usize = CHUNK_ENTRIES * CHUNKS;

/// What a descriptor stands for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct OpenFile {
    pub(crate) description: Description,
    pub(crate) node: NodeId,
    pub(crate) file_type: FileType,
    /// The flags that never change: access mode and `O_PATH`.
    pub(crate) flags: u32,
}

/// An entry, in words. The description (0: free) is stored last and cleared first, and is never used twice.
#[derive(Default)]
struct Entry {
    description: AtomicU64,
    number: AtomicU64,
    generation_and_flags: AtomicU64,
    file_type: AtomicU64,
}

type Chunk = [Entry; CHUNK_ENTRIES];

/// What changes only under the table's lock.
#[derive(Default)]
pub(crate) struct State {
    /// A bit for each number in use.
    used: Vec<u64>,
    /// Descriptors beyond the first that refer to a description.
    more: HashMap<u64, u32>,
}

impl State {
    fn free_number(&mut self, descriptor: i32) {
        if let Some(word) = self.used.get_mut(descriptor as usize / 64) {
            *word &= !(1 << (descriptor as usize % 64));
        }
    }
}

/// A number that was taken for what is about to be opened; it is free again if that fails.
#[must_use]
pub(crate) struct Reserved<'t> {
    table: &'t Table,
    descriptor: i32,
}

impl Reserved<'_> {
    /// It stands for a file, which has no other descriptor, from now on. Not between the moment when a fork counts what the child gets, and the
    /// child: it would have a descriptor whose description it does not use.
    pub(crate) fn fill(self, file: &OpenFile) -> i32 {
        self.table.put(&mut self.table.lock(), self.descriptor, file);
        std::mem::ManuallyDrop::new(self).descriptor
    }
}

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        self.table.lock().free_number(self.descriptor);
    }
}

/// The descriptors of a handle.
pub(crate) struct Table {
    chunks: Box<[OnceLock<Box<Chunk>>]>,
    state: Mutex<State>,
}

fn bad<T>() -> Result<T> {
    Err(Error::because(Errno::BADF, "not an open descriptor of this volume"))
}

impl Table {
    /// No descriptors.
    pub(crate) fn new() -> Self {
        Self { chunks: (0..CHUNKS).map(|_| OnceLock::new()).collect(), state: Mutex::default() }
    }

    /// The table's lock.
    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[inline]
    fn entry(&self, descriptor: i32) -> Option<&Entry> {
        let descriptor = usize::try_from(descriptor).ok()?;
        self.chunks.get(descriptor / CHUNK_ENTRIES)?.get()?.get(descriptor % CHUNK_ENTRIES)
    }

    /// What a descriptor stands for. `EBADF`.
    #[inline]
    pub(crate) fn get(&self, descriptor: i32) -> Result<OpenFile> {
        let Some(entry) = self.entry(descriptor) else { return bad() };
        let word = entry.description.load(Ordering::Acquire);
        let number = entry.number.load(Ordering::Relaxed);
        let generation_and_flags = entry.generation_and_flags.load(Ordering::Relaxed);
        let file_type = entry.file_type.load(Ordering::Relaxed);
        // Pairs with the fence of `store`: who saw a word of the next file sees that this one is gone.
        fence(Ordering::Acquire);
        if entry.description.load(Ordering::Relaxed) != word {
            return bad();
        }
        let (Some(description), Some(file_type)) = (Description::from_word(word), FileType::from_bits(file_type as u8))
        else {
            return bad();
        };
        let node = NodeId::new(number, (generation_and_flags >> 32) as u32);
        Ok(OpenFile { description, node, file_type, flags: generation_and_flags as u32 })
    }

    /// Takes the lowest free number, which stands for nothing yet. `EMFILE` when there is none. The caller holds the table's lock.
    fn take_number(&self, state: &mut State) -> Result<i32> {
        let full = state.used.iter().position(|word| *word != u64::MAX);
        let index = full.unwrap_or(state.used.len());
        if index * 64 >= DESCRIPTORS_MAX {
            return Err(Error::because(Errno::MFILE, "65536 descriptors of this volume are open"));
        }
        if index == state.used.len() {
            state.used.push(0);
        }
        let bit = state.used[index].trailing_ones() as usize;
        state.used[index] |= 1 << bit;
        Ok((index * 64 + bit) as i32)
    }

    /// Makes a number that was taken stand for an open file. The caller holds the table's lock.
    fn put(&self, _state: &mut State, descriptor: i32, file: &OpenFile) {
        let (chunk, at) = (descriptor as usize / CHUNK_ENTRIES, descriptor as usize % CHUNK_ENTRIES);
        let entry = &self.chunks[chunk].get_or_init(|| Box::new(std::array::from_fn(|_| Entry::default())))[at];
        entry.description.store(0, Ordering::Relaxed);
        fence(Ordering::Release);
        entry.number.store(file.node.number, Ordering::Relaxed);
        let generation_and_flags = u64::from(file.node.generation) << 32 | u64::from(file.flags);
        entry.generation_and_flags.store(generation_and_flags, Ordering::Relaxed);
        entry.file_type.store(file.file_type as u64, Ordering::Relaxed);
        entry.description.store(file.description.word(), Ordering::Release);
    }

    /// Takes the lowest free number for a description that has none yet. `EMFILE` when there is none.
    pub(crate) fn reserve(&self) -> Result<Reserved<'_>> {
        self.take_number(&mut self.lock()).map(|descriptor| Reserved { table: self, descriptor })
    }

    /// Makes another descriptor for what `descriptor` stands for.
    pub(crate) fn duplicate(&self, descriptor: i32) -> Result<i32> {
        let mut state = self.lock();
        let file = self.get(descriptor)?;
        let new = self.take_number(&mut state)?;
        self.put(&mut state, new, &file);
        *state.more.entry(file.description.word()).or_insert(0) += 1;
        Ok(new)
    }

    /// Frees a descriptor; says what it stood for and whether it was the last one for its description.
    pub(crate) fn remove(&self, descriptor: i32) -> Result<(OpenFile, bool)> {
        let mut state = self.lock();
        let file = self.get(descriptor)?;
        if let Some(entry) = self.entry(descriptor) {
            entry.description.store(0, Ordering::Release);
        }
        state.free_number(descriptor);
        let word = file.description.word();
        let last = match state.more.get_mut(&word) {
            None => true,
            Some(1) => {
                state.more.remove(&word);
                false
            }
            Some(count) => {
                *count -= 1;
                false
            }
        };
        Ok((file, last))
    }

    /// In a forked child: numbers that other threads of the parent had taken, and will not fill here, are free. What stands for something is
    /// what was counted before the fork, since the lock was held from then on.
    pub(crate) fn free_reserved(&self, state: &mut State) {
        let open = self.descriptors(state);
        state.used.iter_mut().for_each(|word| *word = 0);
        for descriptor in open {
            if let Some(word) = state.used.get_mut(descriptor as usize / 64) {
                *word |= 1 << (descriptor as usize % 64);
            }
        }
    }

    /// The numbers that stand for something.
    pub(crate) fn descriptors(&self, state: &State) -> Vec<i32> {
        let bits = state.used.iter().enumerate().flat_map(|(index, word)| {
            (0..64).filter(move |bit| word & 1 << bit != 0).map(move |bit| (index * 64 + bit) as i32)
        });
        bits.filter(|descriptor| self.get(*descriptor).is_ok()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MARK: u64 = 1 << 62;

    fn file(number: u64) -> OpenFile {
        let description = Description::from_word(MARK | number).expect("a word of a description");
        OpenFile { description, node: NodeId::new(number, 7), file_type: FileType::Regular, flags: 2 }
    }

    fn insert(table: &Table, number: u64) -> Result<i32> {
        table.reserve().map(|reserved| reserved.fill(&file(number)))
    }

    #[test]
    fn numbers_are_the_lowest_free_ones_and_the_last_descriptor_is_known() {
        let table = Table::new();
        for number in 0..1000 {
            assert_eq!(insert(&table, number as u64 + 1), Ok(number));
        }
        assert_eq!(table.get(998).expect("open").node.number, 999);
        assert_eq!(table.remove(5), Ok((file(6), true)));
        assert_eq!(table.get(5).unwrap_err().errno(), Errno::BADF);
        assert_eq!(table.duplicate(998), Ok(5));
        assert_eq!(table.duplicate(5), Ok(1000));
        assert_eq!(table.remove(998), Ok((file(999), false)));
        assert_eq!(table.remove(1000), Ok((file(999), false)));
        assert_eq!(table.remove(5), Ok((file(999), true)));
        for bad in [-1, 5, 998, 1001, i32::MAX, i32::MIN] {
            assert_eq!(table.remove(bad).unwrap_err().errno(), Errno::BADF, "{bad}");
        }
        assert_eq!(table.descriptors(&table.lock()).len(), 998);
        // What was not filled is free again.
        let reserved = table.reserve().expect("room");
        assert_eq!((reserved.descriptor, table.get(5).unwrap_err().errno()), (5, Errno::BADF));
        drop(reserved);
        assert_eq!(insert(&table, 1 << 20), Ok(5));
    }

    #[test]
    fn a_full_table_says_so() {
        let table = Table::new();
        for number in 0..DESCRIPTORS_MAX {
            assert_eq!(insert(&table, number as u64 + 1), Ok(number as i32));
        }
        assert_eq!(insert(&table, 1 << 20).unwrap_err().errno(), Errno::MFILE);
        assert_eq!(table.remove(77).map(|(_, last)| last), Ok(true));
        assert_eq!(insert(&table, 1 << 20), Ok(77));
    }

    /// Readers beside a thread that closes and opens other files under the same number see one of them whole, or none.
    #[test]
    fn readers_never_see_parts_of_two_files() {
        let table = Table::new();
        insert(&table, 1).expect("room");
        std::thread::scope(|scope| {
            let reader = || {
                let mut seen = 0;
                while seen < 1_000_000 {
                    if let Ok(found) = table.get(0) {
                        assert_eq!(MARK | found.node.number, found.description.word());
                        seen += 1;
                    }
                }
            };
            let threads = [scope.spawn(reader), scope.spawn(reader)];
            let mut word = 2;
            while !threads.iter().all(|thread| thread.is_finished()) {
                table.remove(0).expect("open");
                insert(&table, word).expect("room");
                word += 1;
            }
        });
    }
}
