//! An inode's record in the arena: what the engine knows of it while the volume is open. Volatile: everything in it can be
//! had again from the slot and the log.
//!
//! Words are loaded beside writers: only what was validated against the lock's sequence counts. Stored only under the
//! inode's lock, `LOCK` itself by `shm` alone.

mod words;

use self::words::*;
use crate::format::entry::LoggedAttributes;
use crate::format::page::LinePlace;
use crate::log::LogEnd;
use crate::mapped::MapsWord;
use crate::replay::{InodeState, owner_of, owner_word};
use gannet_shm::{Ordering, Word};
use gannet_vfs::{FileType, InodeFlags};

/// How far the collection of a log has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Collection {
    /// Pages from which on a pass begins.
    pub(crate) threshold: u32,
    /// Pages that the pass has still to look at; 0 between passes.
    pub(crate) remaining: u32,
    /// Pages that the log had when it was looked at last.
    pub(crate) pages_seen: u32,
    /// Live lines found by the pass.
    pub(crate) live_lines: u32,
    /// Pages that the operations to come are to empty, a piece each.
    pub(crate) owed: u32,
    /// Line of the oldest page and item of the entry there with which it goes on; (0, 0) at its beginning.
    pub(crate) cursor: (u32, u32),
}

/// A view of one record.
#[derive(Clone, Copy)]
pub(crate) struct Record<'s> {
    words: &'s [Word],
}

/// [`Record::state`] taken apart.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct State {
    pub(crate) generation: u32,
    pub(crate) file_type: FileType,
    pub(crate) has_access_list: bool,
}

macro_rules! fields {
    ($($(#[$doc:meta])* $get:ident, $set:ident, $word:ident, $kind:ty;)*) => {
        $(
            $(#[$doc])*
            #[inline(always)]
            pub(crate) fn $get(&self) -> $kind {
                self.load($word) as $kind
            }

            $(#[$doc])*
            #[inline(always)]
            #[track_caller]
            pub(crate) fn $set(&self, value: $kind) {
                self.store($word, value as u64);
            }
        )*
    };
}

// What stores is `#[track_caller]`, so that tests can leave out a store, or all stores of a step, where it is asked for.
impl<'s> Record<'s> {
    /// Over the record's words ([`crate::places::RECORD_WORDS`] of them).
    #[inline(always)]
    pub(crate) fn new(words: &'s [Word]) -> Self {
        debug_assert_eq!(words.len() as u64, crate::places::RECORD_WORDS);
        Self { words }
    }

    #[inline(always)]
    fn load(&self, at: usize) -> u64 {
        self.words[at].load(Ordering::Relaxed)
    }

    #[inline(always)]
    #[track_caller]
    fn store(&self, at: usize, value: u64) {
        self.words[at].store(value, Ordering::Relaxed);
    }

    fields! {
        /// Size in bytes.
        size, set_size, SIZE, u64;
        /// Birth.
        created, set_created, CREATED, i64;
        /// Modification, but for writes in place.
        modified, set_modified, MODIFIED, i64;
        /// Change, but for writes in place and changes of the link count.
        changed, set_changed, CHANGED, i64;
        /// Access, as it was set.
        accessed, set_accessed, ACCESSED, i64;
        /// Since when the time of modification holds.
        modified_since, set_modified_since, MODIFIED_SINCE, i64;
        /// Since when the time of access holds.
        accessed_since, set_accessed_since, ACCESSED_SINCE, i64;
        /// Device number.
        device, set_device, DEVICE, u64;
        /// Names of a file, or directories in a directory.
        links, set_links, LINKS, u64;
        /// The directory that holds this directory; 0 when it has been removed.
        parent, set_parent, PARENT, u32;
        /// Sequence number of the next entry.
        sequence, set_sequence, SEQUENCE, u64;
        /// Blocks of data.
        blocks, set_blocks, BLOCKS, u64;
        /// Names in a directory.
        entries, set_entries, ENTRIES, u64;
        /// Extended attributes.
        xattrs, set_xattrs, XATTRS, u64;
        /// Start of the bytes that are not sealed.
        unsealed_start, set_unsealed_start, UNSEALED_START, u64;
        /// End of the bytes that are not sealed.
        unsealed_end, set_unsealed_end, UNSEALED_END, u64;
    }

    /// The root word of the index.
    pub(crate) fn root(&self) -> &'s Word {
        &self.words[ROOT]
    }

    /// Epoch of the index.
    #[inline(always)]
    pub(crate) fn epoch(&self) -> u32 {
        self.load(EPOCH) as u32
    }

    /// The epoch word, for those who look at it beside a writer.
    pub(crate) fn epoch_acquire(&self) -> u32 {
        self.words[EPOCH].load(Ordering::Acquire) as u32
    }

    /// Generation and type, if the record is loaded.
    #[inline(always)]
    pub(crate) fn state(&self) -> Option<State> {
        let word = self.load(STATE);
        if word & STATE_LOADED == 0 {
            return None;
        }
        Some(State {
            generation: word as u32,
            file_type: FileType::from_bits((word >> 32) as u8)?,
            has_access_list: word & STATE_ACCESS_LIST != 0,
        })
    }

    /// Says that everything else in the record holds.
    #[track_caller]
    pub(crate) fn set_loaded(&self, state: State) {
        let access_list = if state.has_access_list { STATE_ACCESS_LIST } else { 0 };
        let word = state.generation as u64 | (state.file_type as u64) << 32 | STATE_LOADED | access_list;
        self.words[STATE].store(word, Ordering::Release);
    }

    /// Notes that the index is used in this era.
    #[inline(always)]
    #[track_caller]
    pub(crate) fn note_used(&self, era: u64) {
        if self.load(USED) != era {
            self.store(USED, era);
        }
    }

    /// See [`Record::note_used`].
    pub(crate) fn last_used(&self) -> u64 {
        self.load(USED)
    }

    /// Drops the record and its index: the next user loads them again. In this order a kill in between leaves a record
    /// that is not loaded.
    #[track_caller]
    pub(crate) fn unload(&self) {
        self.store(LAST_SAID, 0);
        self.words[STATE].store(self.last_generation() as u64 | self.writers_left(), Ordering::Release);
        self.drop_index();
    }

    /// As [`Record::unload`], of a record that says where the log ends: that is still known, for who adopts the arena.
    #[track_caller]
    pub(crate) fn unload_but_end(&self) {
        self.store(LAST_SAID, 0);
        let word = self.last_generation() as u64 | STATE_END_KNOWN | self.writers_left();
        self.words[STATE].store(word, Ordering::Release);
        self.drop_index();
    }

    /// Notes that who had the lock was killed, or could not go on. The record is not loaded.
    #[track_caller]
    pub(crate) fn leave_writers(&self) {
        self.words[STATE].store(self.load(STATE) | STATE_WRITERS_LEFT, Ordering::Release);
    }

    /// Whether somebody may still write in place to blocks where the log no longer says that they are: who moved them, or cut the file, and was
    /// killed, may not have waited for it. Holds until the record is loaded.
    pub(crate) fn has_writers_left(&self) -> bool {
        self.writers_left() != 0
    }

    fn writers_left(&self) -> u64 {
        self.load(STATE) & STATE_WRITERS_LEFT
    }

    /// Whether generation, tail, sequence number and pages of the log hold, if nobody has the lock.
    pub(crate) fn knows_end(&self) -> bool {
        self.load(STATE) & (STATE_LOADED | STATE_END_KNOWN) != 0
    }

    /// Stores where the log ends.
    #[track_caller]
    pub(crate) fn set_end(&self, end: &LogEnd) {
        self.set_tail(end.tail.map(|tail| (tail.block, tail.line)));
        self.set_sequence(end.next_sequence);
        self.set_log_use(end.pages as u32, end.lines as u32);
    }

    /// The generation that the record was loaded for last: what maps did to the inode is known by the record alone, and
    /// outlives its being unloaded.
    pub(crate) fn last_generation(&self) -> u32 {
        self.load(STATE) as u32
    }

    /// Frees all nodes of the index at once.
    #[track_caller]
    pub(crate) fn drop_index(&self) {
        self.words[ROOT].store(0, Ordering::Release);
        self.words[EPOCH].store(self.load(EPOCH) + 1, Ordering::Release);
    }

    /// What maps did.
    #[inline(always)]
    pub(crate) fn maps(&self) -> MapsWord {
        MapsWord(self.words[MAPS].load(Ordering::Acquire))
    }

    /// Changes what maps did.
    #[track_caller]
    pub(crate) fn change_maps(&self, change: impl Fn(MapsWord) -> MapsWord) {
        let mut found = self.load(MAPS);
        loop {
            let wanted = change(MapsWord(found)).0;
            if wanted == found {
                return;
            }
            match self.words[MAPS].compare_exchange(found, wanted, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return,
                Err(other) => found = other,
            }
        }
    }

    /// What maps did, of an inode that comes to life: nothing.
    #[track_caller]
    pub(crate) fn forget_maps(&self, _zero: u64) {
        self.store(MAPS, 0);
    }

    /// Permission bits.
    #[inline(always)]
    pub(crate) fn mode(&self) -> u32 {
        self.load(MODE) as u32
    }

    /// Inode flags.
    #[inline(always)]
    pub(crate) fn flags(&self) -> InodeFlags {
        InodeFlags::from_bits_retain((self.load(MODE) >> 32) as u32)
    }

    /// The owner.
    pub(crate) fn owner(&self) -> gannet_vfs::Owner {
        owner_of(self.load(OWNER))
    }

    /// Where the next log entry goes: block and line; `None` for a log without pages.
    pub(crate) fn tail(&self) -> Option<(u64, u32)> {
        // The line counts from 1, up to one past the page: stored less one it stays in the block's range.
        let word = self.load(TAIL);
        if word == 0 {
            return None;
        }
        let place = LinePlace(word);
        Some((place.block(), place.line() + 1))
    }

    /// See [`Record::tail`]. `line` is between 1 and 64.
    #[track_caller]
    pub(crate) fn set_tail(&self, tail: Option<(u64, u32)>) {
        self.store(TAIL, tail.map_or(0, |(block, line)| LinePlace::new(block, line - 1).0));
    }

    /// The generation that the next inode of this number gets, if its slot was freed and that was not forgotten since; else
    /// 0. Who has the number in hand may look.
    pub(crate) fn next_generation(&self) -> u32 {
        self.load(COLLECT_AT) as u32
    }

    /// See [`Record::next_generation`]. The inode is free.
    #[track_caller]
    pub(crate) fn set_next_generation(&self, generation: u32) {
        self.store(COLLECT_AT, generation as u64);
    }

    /// Sequence number of the last entry that says the times, and for a file the size; 0 if that is not known.
    pub(crate) fn last_touch(&self) -> u64 {
        self.sequence_of_half(self.load(LAST_SAID) as u32)
    }

    /// See [`Record::last_touch`].
    #[track_caller]
    pub(crate) fn set_last_touch(&self, sequence: u64) {
        self.store(LAST_SAID, self.load(LAST_SAID) >> 32 << 32 | sequence as u32 as u64);
    }

    /// Sequence number of the last entry with all attributes that a collection wrote; 0 if that is not known.
    pub(crate) fn last_snapshot(&self) -> u64 {
        self.sequence_of_half((self.load(LAST_SAID) >> 32) as u32)
    }

    /// See [`Record::last_snapshot`]. It says the times and the size, too.
    #[track_caller]
    pub(crate) fn set_last_snapshot(&self, sequence: u64) {
        self.store(LAST_SAID, (sequence as u32 as u64) << 32 | sequence as u32 as u64);
    }

    /// The sequence number before the next entry's that has this low half. No log is so long that it could be another:
    /// whenever a page goes whose entries say less, all attributes are written again.
    fn sequence_of_half(&self, half: u32) -> u64 {
        let next = self.sequence();
        let candidate = next >> 32 << 32 | half as u64;
        match half {
            0 => 0,
            _ if candidate < next => candidate,
            _ => candidate.saturating_sub(1 << 32),
        }
    }

    /// How far the collection of the log has come.
    pub(crate) fn collection(&self) -> Collection {
        let (pass, seen) = (self.load(COLLECT), self.load(COLLECT_SEEN));
        Collection {
            threshold: (pass >> 32) as u32,
            remaining: pass as u32,
            pages_seen: (seen >> 32) as u32,
            live_lines: seen as u32,
            owed: (self.load(COLLECT_AT) >> 32) as u32 & 0xff,
            cursor: ((self.load(COLLECT_AT) >> 40) as u32 & 0xff, (self.load(COLLECT_AT) >> 48) as u32),
        }
    }

    /// See [`Record::collection`].
    #[track_caller]
    pub(crate) fn set_collection(&self, collection: Collection) {
        self.store(COLLECT, (collection.threshold as u64) << 32 | collection.remaining as u64);
        self.store(COLLECT_SEEN, (collection.pages_seen as u64) << 32 | collection.live_lines as u64);
        let (line, item) = collection.cursor;
        self.store(
            COLLECT_AT,
            (collection.owed.min(0xff) as u64) << 32 | (line as u64 & 0xff) << 40 | (item as u64) << 48,
        );
    }

    /// Where a symbolic link's target stands.
    pub(crate) fn target_place(&self) -> Option<LinePlace> {
        Some(LinePlace(self.load(TARGET))).filter(|place| place.0 != 0)
    }

    /// See [`Record::target_place`].
    #[track_caller]
    pub(crate) fn set_target_place(&self, place: Option<LinePlace>) {
        self.store(TARGET, place.map_or(0, |place| place.0));
    }

    /// Sequence number from which on a file's log says its whole map; 0 if only all of the log does. What entries before it say
    /// of blocks is dead, also where blocks have moved since. While [`Record::map_said_to`] is something that holds of what stands
    /// before that block alone.
    pub(crate) fn map_said_from(&self) -> u64 {
        self.load(TARGET)
    }

    /// The block of a file up to which a collection has its log say its map again, if one is about to.
    pub(crate) fn map_said_to(&self) -> Option<u64> {
        self.load(ENTRIES).checked_sub(1)
    }

    /// See [`Record::map_said_from`] and [`Record::map_said_to`]. Of files only: the words are others' of other inodes.
    #[track_caller]
    pub(crate) fn set_map_said(&self, from: u64, to: Option<u64>) {
        self.store(TARGET, from);
        self.store(ENTRIES, to.map_or(0, |to| to.saturating_add(1)));
    }

    /// Pages of the log, and lines of its live entries as far as they are counted.
    pub(crate) fn log_use(&self) -> (u32, u32) {
        let word = self.load(LOG);
        ((word >> 32) as u32, word as u32)
    }

    /// See [`Record::log_use`].
    #[track_caller]
    pub(crate) fn set_log_use(&self, pages: u32, live_lines: u32) {
        self.store(LOG, (pages as u64) << 32 | live_lines as u64);
    }

    /// The attributes that the log keeps.
    pub(crate) fn logged(&self) -> LoggedAttributes {
        LoggedAttributes {
            mode: self.mode(),
            flags: self.flags(),
            owner: self.owner(),
            size_bytes: self.size(),
            modified: self.modified(),
            accessed: self.accessed(),
        }
    }

    /// Stores the attributes that the log keeps, but for the size.
    #[track_caller]
    pub(crate) fn set_logged(&self, logged: &LoggedAttributes, changed: i64) {
        self.store(MODE, logged.mode as u64 | (logged.flags.bits() as u64) << 32);
        self.store(OWNER, owner_word(logged.owner));
        self.set_modified(logged.modified);
        self.set_accessed(logged.accessed);
        self.set_changed(changed);
        self.set_modified_since(changed);
        self.set_accessed_since(changed);
        self.set_access_fresh(0);
    }

    /// Stores everything that a log says, the index apart.
    #[track_caller]
    pub(crate) fn set_state(&self, state: &InodeState) {
        self.set_logged(&state.logged, state.changed);
        self.set_modified_since(state.modified_since);
        self.set_accessed_since(state.accessed_since);
        self.set_size(state.logged.size_bytes);
        self.set_device(state.birth.device);
        self.set_created(state.birth.created);
    }

    /// Until when an access need not move the time of access. Read without the lock, too.
    #[inline(always)]
    pub(crate) fn access_fresh_until(&self) -> i64 {
        self.load(ACCESS_FRESH) as i64
    }

    /// Notes until when an access need not move the time of access; 0 has it looked at. Stored without the lock, too.
    #[inline(always)]
    #[track_caller]
    pub(crate) fn set_access_fresh(&self, until: i64) {
        self.store(ACCESS_FRESH, until as u64);
    }

    /// Notes that the data or the names changed.
    #[track_caller]
    pub(crate) fn touch(&self, time: i64) {
        self.set_modified(time);
        self.set_modified_since(time);
        self.set_changed(time);
        self.set_access_fresh(0);
    }
}
