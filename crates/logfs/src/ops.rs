//! One operation of one thread: the way from a `FileSystem` call to records, locks, indexes and the disk.
//!
//! Lock order: rename lock < inode locks by number < data stripes < chunk lock < pools of `space`.

use crate::attach::{AccessTimes, OTHER_CONTENT};
use crate::disk::Disk;
use crate::format::entry::Owned;
use crate::format::page::LinePlace;
use crate::format::state::ARENA_AT;
use crate::index::{Extents, IndexError, NodePool, PoolHost, Tree};
use crate::places::{COUNTER_WORDS, Places, RECORD_BYTES, RECORD_WORDS, RECORDS_BACKED_TOGETHER};
use crate::record::{Record, State};
use gannet_shm::{ArenaIdentity, ArenaOffset, Guard, Ordering, Thread, Word};
use gannet_vfs::shared::InodeUsers;
use gannet_vfs::{Errno, Error, FileType, NodeId, Result};
use std::cell::Cell;
use std::sync::{Arc, OnceLock};

/// Optimistic reads that fail so often are done under the lock.
const READ_ATTEMPTS: u32 = 64;

/// What is the same for all operations of a process on a volume.
pub(crate) struct Core {
    pub(crate) disk: Disk,
    pub(crate) places: Places,
    pub(crate) space: crate::storage::Storage,
    pub(crate) copy_on_write: bool,
    pub(crate) access_times: AccessTimes,
    /// Who has inodes open: users of descriptions, and whom the options name.
    pub(crate) users: InodeUsers,
    pub(crate) other_users: Arc<dyn Users>,
    /// For settling, where the medium is open for reading only: see [`Core::to_settle`].
    pub(crate) writable: OnceLock<Box<Core>>,
    /// What the medium names the arena by, from the first who may write on.
    pub(crate) arena: ArenaIdentity,
}

impl Core {
    /// Requires, of who may write, that the medium still holds the volume that was opened. Whoever copies another file over a volume's begins at
    /// its beginning, where the word stands: what follows is spared. A line that nobody writes to as long as the volume is open.
    ///
    /// Asked where an operation begins, and again where it has waited for a lock ([`Op::take`]), which can be for as long as somebody is stopped.
    #[inline]
    pub(crate) fn is_as_opened(&self) -> Result<()> {
        if self.disk.load(ARENA_AT)? != self.arena.0 && !self.disk.medium().is_read_only() {
            return Err(OTHER_CONTENT);
        }
        Ok(())
    }

    /// The same, for who has waited.
    #[cold]
    #[inline(never)]
    fn is_still_as_opened(&self) -> bool {
        self.is_as_opened().is_ok()
    }

    /// Why a lock was not had.
    #[cold]
    #[inline(never)]
    fn lock_error(&self, error: gannet_shm::Error) -> Error {
        match error {
            gannet_shm::Error::Unwanted => self.is_as_opened().err().unwrap_or(OTHER_CONTENT),
            error => shared_error(error),
        }
    }
}

/// Who has inodes open: decides whether an inode that lost its last name can be freed.
pub trait Users: Send + Sync {
    /// Whether anybody uses the inode besides its names.
    fn in_use(&self, node: NodeId) -> bool;
}

/// Nobody keeps inodes open.
pub struct NoUsers;

impl Users for NoUsers {
    fn in_use(&self, _node: NodeId) -> bool {
        false
    }
}

/// An operation in progress.
pub(crate) struct Op<'s> {
    pub(crate) core: &'s Core,
    pub(crate) thread: Thread<'s>,
    records: &'s [Word],
    nodes: &'s [Word],
    pub(crate) counters: &'s [Word],
    /// Which of the last blocks the operation may use.
    pub(crate) need: Cell<Need>,
}

/// What a block is needed for: how many of the last ones it must leave to others.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Need {
    /// For what takes more than it frees: it leaves [`Geometry::reserve`](crate::format::geometry::Geometry::reserve).
    Ordinary,
    /// To say that a name goes, which by itself may free nothing: it leaves enough for the log to be collected.
    Removal,
    /// Likewise where the log has nothing to collect: it leaves what it takes to empty one page.
    LastRemoval,
    /// For what frees more than it takes: it may take the last.
    Freeing,
}

/// An inode whose lock this operation holds, and whose record is loaded.
pub(crate) struct Locked<'s> {
    pub(crate) guard: Guard<'s>,
    pub(crate) record: Record<'s>,
    pub(crate) inode: u32,
    pub(crate) state: State,
}

impl Locked<'_> {
    /// Whose entries its log holds.
    pub(crate) fn owned(&self, core: &Core) -> Owned {
        Owned { key: core.disk.key(), inode: self.inode, generation: self.state.generation }
    }

    /// The present, never before the inode's last change: a clock that was set back does not turn changes round.
    pub(crate) fn now(&self) -> i64 {
        crate::write::coarse_now().max(self.record.changed())
    }

    /// Its name to others.
    pub(crate) const fn node(&self) -> NodeId {
        NodeId::new(self.inode as u64, self.state.generation)
    }

    /// Whether nobody else had it locked since [`Op::read_record_at`] said this: what was read in between holds.
    pub(crate) fn was_unchanged_since(&self, sequence: Option<u64>) -> bool {
        sequence.is_some_and(|sequence| sequence.wrapping_add(2) == self.guard.sequence_after())
    }
}

/// An error of shared state, as one of the file system.
#[cold]
#[inline(never)]
pub(crate) fn shared_error(error: gannet_shm::Error) -> Error {
    match error {
        gannet_shm::Error::System { doing, errno } => Error::because(errno, doing),
        gannet_shm::Error::Full { what } => Error::because(Errno::NOMEM, what),
        gannet_shm::Error::Foreign { .. } => {
            Error::because(Errno::PERM, "another user's or a foreign file stands where the shared state belongs")
        }
        gannet_shm::Error::OtherVersion { .. } => {
            Error::because(Errno::BUSY, "the volume is open in processes of another version of Gannet; end them first")
        }
        gannet_shm::Error::Cut { .. } => Error::because(
            Errno::UCLEAN,
            "damaged shared state: its file was cut; end all processes that have the volume open",
        ),
        gannet_shm::Error::Exclusive { .. } => {
            Error::because(Errno::BUSY, "a process has the volume mounted for itself: unmount it first")
        }
        gannet_shm::Error::Detached => Error::because(Errno::SHUTDOWN, "the volume is no longer attached"),
        gannet_shm::Error::Deadlock(at) => Error::damaged("shared state: a lock is taken twice", at.get()),
        gannet_shm::Error::Corrupt { what, at } => Error::damaged(what, at),
        gannet_shm::Error::OutOfBounds { at, .. } => Error::damaged("shared state: offset out of bounds", at),
        gannet_shm::Error::Owner(inner) => inner
            .downcast_ref::<Error>()
            .copied()
            .unwrap_or(Error::because(Errno::IO, "an owner of shared state failed")),
        _ => Error::because(Errno::IO, "shared state"),
    }
}

/// An error of an index under the inode's lock, where nobody else can have torn it.
#[cold]
#[inline(never)]
pub(crate) fn index_error(error: IndexError) -> Error {
    match error {
        IndexError::Full => Error::because(
            Errno::NOMEM,
            "no room for another node of an index in the shared state: gannet info says how much they may take (--arena-max, of who opens the volume \
             first), df /dev/shm how much there is",
        ),
        IndexError::Torn => Error::damaged("shared state: index", 0),
        IndexError::Invalid => Error::because(Errno::FBIG, "beyond the largest file"),
    }
}

impl PoolHost for Op<'_> {
    fn current_epoch(&self, owner: u32) -> Option<u32> {
        // What has no memory was never loaded.
        self.record_of(owner).filter(|_| self.is_backed(owner)).map(|record| record.epoch_acquire())
    }

    fn last_used(&self, owner: u32) -> u64 {
        self.record_of(owner).filter(|_| self.is_backed(owner)).map_or(u64::MAX, |record| record.last_used())
    }

    fn evict(&self, owner: u32, epoch: u32) -> bool {
        let Some(record) = self.record_of(owner).filter(|_| owner != 0 && self.is_backed(owner)) else { return false };
        let Ok(Some(guard)) = self.thread.try_lock(self.core.places.record(owner)) else { return false };
        let is_current = record.epoch() == epoch;
        if is_current {
            // Everything but what maps did is known from the log, and that is kept.
            record.unload_but_end();
        }
        guard.unlock();
        is_current
    }

    fn back_words(&self, first: usize, count: usize) -> bool {
        let at = self.core.places.nodes.start.add(first as u64 * 8);
        self.thread.arena().reserve(at, count as u64 * 8).is_ok()
    }
}

impl<'s> Op<'s> {
    /// Begins an operation of the calling thread.
    // Inlined everywhere, so that nothing of it is moved through memory: a wide load of what narrow stores have just
    // written waits until every store before them is done, those of the last operation past the cache included.
    #[inline(always)]
    pub(crate) fn begin(core: &'s Core, thread: Thread<'s>) -> Result<Self> {
        let places = &core.places;
        let records = thread.arena().words(places.records.start, places.records.bytes / 8);
        let nodes = thread.arena().words(places.nodes.start, places.nodes.bytes / 8);
        let counters = thread.arena().words(places.counters_of(thread.slot()), COUNTER_WORDS);
        match (records, nodes, counters) {
            (Ok(records), Ok(nodes), Ok(counters)) => {
                Ok(Self { core, thread, records, nodes, counters, need: Cell::new(Need::Ordinary) })
            }
            (Err(error), ..) | (_, Err(error), _) | (.., Err(error)) => Err(shared_error(error)),
        }
    }

    pub(crate) fn disk(&self) -> &'s Disk {
        &self.core.disk
    }

    #[inline(always)]
    fn record_of(&self, inode: u32) -> Option<Record<'s>> {
        record_in(&self.core.places, self.records, inode)
    }

    /// The record of an inode, loaded or not. `ESTALE` for a number that cannot be.
    #[inline(always)]
    pub(crate) fn record(&self, inode: u32) -> Result<Record<'s>> {
        match inode {
            0 => Err(Error::new(Errno::STALE)),
            _ => match self.record_of(inode) {
                Some(record) if self.is_backed(inode) => Ok(record),
                Some(record) => self.back_record(inode).map(|()| record),
                None => Err(Error::new(Errno::STALE)),
            },
        }
    }

    /// Whether the record of an inode, whose number is in bounds, has memory behind it.
    #[inline(always)]
    fn is_backed(&self, inode: u32) -> bool {
        let group = inode as u64 / RECORDS_BACKED_TOGETHER;
        self.records
            .get((group / 64) as usize)
            .is_some_and(|word| word.load(Ordering::Acquire) >> (group % 64) & 1 != 0)
    }

    /// Whether anybody has had an inode since the volume was opened; only then it can be locked.
    pub(crate) fn has_record(&self, inode: u32) -> bool {
        self.record_of(inode).is_some() && self.is_backed(inode)
    }

    /// Calls `visit` with the number and the record of all inodes whose records have memory.
    pub(crate) fn for_each_backed_record(&self, visit: &mut dyn FnMut(u32, &Record<'s>) -> Result<()>) -> Result<()> {
        for_each_backed_record(&self.core.places, self.records, visit)
    }

    /// Gets memory for a record and its neighbours.
    #[cold]
    #[inline(never)]
    fn back_record(&self, inode: u32) -> Result<()> {
        let places = &self.core.places;
        let group = inode as u64 / RECORDS_BACKED_TOGETHER;
        let first = places.record((group * RECORDS_BACKED_TOGETHER) as u32);
        let end = places.records.start.get() + places.records.bytes;
        let bytes = (RECORDS_BACKED_TOGETHER * RECORD_BYTES).min(end.saturating_sub(first.get()));
        self.thread.arena().reserve(first, bytes).map_err(shared_error)?;
        if let Some(word) = self.records.get((group / 64) as usize) {
            word.fetch_or(1 << (group % 64), Ordering::AcqRel);
        }
        Ok(())
    }

    /// The index of an inode: of names and extended attributes, or of blocks and extended attributes.
    #[inline]
    pub(crate) fn tree<'o>(&'o self, inode: u32, record: &Record<'s>) -> Tree<'o> {
        let pool = NodePool::new(self.nodes, self);
        record.note_used(pool.era());
        Tree::new(pool, inode, record.epoch(), record.root())
    }

    /// The pool of index nodes.
    pub(crate) fn node_pool(&self) -> NodePool<'_> {
        NodePool::new(self.nodes, self)
    }

    /// The block map of a file.
    #[inline]
    pub(crate) fn extents<'o>(&'o self, inode: u32, record: &Record<'s>) -> Extents<'o> {
        Extents::new(self.tree(inode, record))
    }

    /// Locks an inode and loads its record. `ESTALE` if its generation has passed.
    // Inlined, as `begin` is and for its reason: right behind a swap such loads wait longest.
    #[inline(always)]
    pub(crate) fn lock(&self, node: NodeId) -> Result<Locked<'s>> {
        self.lock_as(inode_number(node)?, Some(node.generation))
    }

    /// Locks two different inodes in order. `None` if they are one.
    #[inline]
    pub(crate) fn lock_two(&self, first: NodeId, second: NodeId) -> Result<Option<(Locked<'s>, Locked<'s>)>> {
        if first.number == second.number {
            return Ok(None);
        }
        if first.number < second.number {
            let first = self.lock(first)?;
            let second = self.lock(second)?;
            Ok(Some((first, second)))
        } else {
            let second = self.lock(second)?;
            let first = self.lock(first)?;
            Ok(Some((first, second)))
        }
    }

    /// Locks an inode of whatever generation and loads its record.
    #[inline(always)]
    pub(crate) fn lock_any(&self, inode: u32) -> Result<Locked<'s>> {
        self.lock_as(inode, None)
    }

    /// Takes a lock before anything of the operation is stored. If it had to be waited for, the medium must still hold the volume that was opened.
    /// Behind an entry that is stored, and to give something back, locks are taken as they are: there nothing is refused any more.
    #[inline(always)]
    pub(crate) fn take(&self, at: ArenaOffset) -> Result<Guard<'s>> {
        match self.thread.lock_if(at, || self.core.is_still_as_opened()) {
            Ok(guard) => Ok(guard),
            Err(error) => Err(self.core.lock_error(error)),
        }
    }

    /// What both do. What they return is put together once, at the end: see `begin`.
    #[inline(always)]
    fn lock_as(&self, inode: u32, generation: Option<u32>) -> Result<Locked<'s>> {
        let record = self.record(inode)?;
        let guard = self.take(self.core.places.record(inode))?;
        let state = match record.state() {
            Some(state) => state,
            // What was built of the index before an error is nobody's.
            None => self.load(inode, &record).inspect_err(|_| record.drop_index())?,
        };
        if generation.is_some_and(|generation| generation != state.generation) {
            return Err(Error::new(Errno::STALE));
        }
        Ok(Locked { guard, record, inode, state })
    }

    /// Locks two to four inodes in order; the same one may be named twice. They come back as they were named, the second
    /// of the same as `None`.
    pub(crate) fn lock_all<const N: usize>(&self, nodes: [Option<NodeId>; N]) -> Result<[Option<Locked<'s>>; N]> {
        let mut order: [usize; N] = core::array::from_fn(|index| index);
        order.sort_unstable_by_key(|&index| nodes[index].map_or(u64::MAX, |node| node.number));
        let mut locked: [Option<Locked<'s>>; N] = [const { None }; N];
        let mut previous = None;
        for index in order {
            let Some(node) = nodes[index] else { continue };
            if previous != Some(node.number) {
                locked[index] = Some(self.lock(node)?);
            }
            previous = Some(node.number);
        }
        Ok(locked)
    }

    /// Reads from a record without its lock: `read` may see a writer's work half done, and what it then returns, errors
    /// included, is thrown away. After a bounded number of attempts it runs under the lock.
    #[inline(always)]
    pub(crate) fn read_record<T>(&self, node: NodeId, read: impl FnMut(&Record<'s>, State) -> Result<T>) -> Result<T> {
        self.read_record_at(node, &mut None, read)
    }

    /// As [`Op::read_record`]; `at_sequence` says of which state of the record that holds, for [`Locked::was_unchanged_since`]: not if it was
    /// read under the lock.
    #[inline(always)]
    pub(crate) fn read_record_at<T>(
        &self,
        node: NodeId,
        at_sequence: &mut Option<u64>,
        mut read: impl FnMut(&Record<'s>, State) -> Result<T>,
    ) -> Result<T> {
        let inode = inode_number(node)?;
        let record = self.record(inode)?;
        let at = self.core.places.record(inode);
        for _ in 0..READ_ATTEMPTS {
            let Some(sequence) = self.thread.read_begin(at).map_err(shared_error)? else {
                core::hint::spin_loop();
                continue;
            };
            let Some(state) = record.state() else { break };
            let outcome =
                if state.generation == node.generation { read(&record, state) } else { Err(Error::new(Errno::STALE)) };
            if self.thread.read_validate(at, sequence).map_err(shared_error)? {
                *at_sequence = Some(sequence);
                return outcome;
            }
        }
        let locked = self.lock(node)?;
        read(&locked.record, locked.state)
    }

    /// The sequence of an inode's lock, which every change takes; `None` while somebody has it.
    #[inline]
    pub(crate) fn stamp(&self, node: NodeId) -> Option<u64> {
        let inode = inode_number(node).ok()?;
        self.record(inode).ok()?;
        self.thread.read_begin(self.core.places.record(inode)).ok()?
    }

    /// Requires a directory.
    pub(crate) fn directory(&self, state: State) -> Result<()> {
        if state.file_type == FileType::Directory { Ok(()) } else { Err(Error::new(Errno::NOTDIR)) }
    }

    /// Requires a regular file.
    pub(crate) fn regular(&self, state: State) -> Result<()> {
        match state.file_type {
            FileType::Regular => Ok(()),
            FileType::Directory => Err(Error::new(Errno::ISDIR)),
            _ => Err(Error::new(Errno::INVAL)),
        }
    }

    /// Whether anybody uses an inode, whose lock is held, besides its names.
    pub(crate) fn in_use(&self, node: NodeId) -> bool {
        self.core.users.any(&self.thread, node) || self.core.other_users.in_use(node)
    }

    /// Notes that the maps of free space may miss something: see [`crate::places::CONTROL_UNCERTAIN`].
    pub(crate) fn set_uncertain(&self) -> Result<()> {
        let at = self.core.places.control(crate::places::CONTROL_UNCERTAIN);
        self.thread.word(at).map_err(shared_error)?.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Where a slot's word stands on the medium. The slot of a loaded inode exists.
    pub(crate) fn slot_word(&self, inode: u32, word: u64) -> Result<u64> {
        Ok(self.disk().slot_at(inode)?.ok_or(Error::damaged("inode slot", inode as u64))? + word)
    }
}

/// The record of an inode among the words of the records' region; `None` for a number that cannot be.
#[inline(always)]
fn record_in<'s>(places: &Places, records: &'s [Word], inode: u32) -> Option<Record<'s>> {
    let start = places.backed_words as usize + inode as usize * RECORD_WORDS as usize;
    records.get(start..start + RECORD_WORDS as usize).map(Record::new)
}

/// Calls `visit` with the number and the record of all inodes whose records, among the words of their region, have memory.
pub(crate) fn for_each_backed_record<'s>(
    places: &Places,
    records: &'s [Word],
    visit: &mut dyn FnMut(u32, &Record<'s>) -> Result<()>,
) -> Result<()> {
    for (index, word) in records.iter().take(places.backed_words as usize).enumerate() {
        let mut groups = word.load(Ordering::Acquire);
        while groups != 0 {
            let group = index as u64 * 64 + groups.trailing_zeros() as u64;
            groups &= groups - 1;
            let first = group * RECORDS_BACKED_TOGETHER;
            for inode in first.max(1)..first + RECORDS_BACKED_TOGETHER {
                if let Some(record) = record_in(places, records, inode as u32) {
                    visit(inode as u32, &record)?;
                }
            }
        }
    }
    Ok(())
}

/// The number of an inode, which is 32 bits here.
pub(crate) fn inode_number(node: NodeId) -> Result<u32> {
    u32::try_from(node.number).map_err(|_| Error::new(Errno::STALE))
}

/// A binding's place, checked to lie on the volume.
pub(crate) fn sound_place(disk: &Disk, place: LinePlace) -> bool {
    disk.geometry().is_allocatable(place.block()) && place.line() != 0
}
