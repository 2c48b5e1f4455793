//! Lock records of an inode: ranges, owners, conflicts.
//!
//! A record covers the bytes from START up to END; an empty range is a void record, to be freed by the next who comes by when
//! he changes the bucket, or by a sweep. Records of one owner do not overlap, except inside a change ([`super::record_changes`]).
//!
//! A bucket's records are sorted by POSITION, where each began when it was linked. What cuts a record at the front moves START, never
//! POSITION: so no record begins before its position, and who looks for a range is done at the first position behind it.
//!
//! Whoever takes over the bucket's lock from a dead thread completes its change ([`Tables::settle_records`]): of two
//! records of one owner that overlap, the one with the lower sequence is cut.

use std::num::NonZeroU32;

use gannet_shm::{ArenaOffset, Ordering, Result, SlabRef, Thread, Word32};
use rustix::thread::futex;

use super::Description;
use super::file_locks::{LockKind, LockOwner, LockRange, LockRequest, LockedBy};
use super::tables::{Bucket, Chain, Tables, record as at};
use crate::NodeId;

/// A record's content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) node: NodeId,
    pub(super) owner: LockOwner,
    pub(super) exclusive: bool,
    pub(super) range: LockRange,
    pub(super) sequence: u64,
    pub(super) process: u32,
    /// When it was taken, nanoseconds since 1970.
    pub(super) since: i64,
}

const POSIX: u64 = 1;
const OPEN_FILE: u64 = 2;
const WHOLE_FILE: u64 = 3;
const EXCLUSIVE: u64 = 1 << 8;

/// Groups of records, a bit for each: those that a change concerned, or that somebody sleeps for.
pub(super) type Groups = u32;

/// A lock in the way, and its record.
#[derive(Clone, Copy, Debug)]
pub(super) struct Blocking {
    pub(super) by: LockedBy,
    pub(super) record: SlabRef,
}

/// Sleepers of a bucket to be woken, after its lock is released.
#[must_use = "call `wake` after unlocking"]
pub(super) struct Wake<'s>(Option<(&'s Word32, NonZeroU32)>);

impl Wake<'_> {
    /// Whether anybody slept for one of the locks that were let go, as far as that is known.
    pub(super) fn is_for_somebody(&self) -> bool {
        self.0.is_some()
    }

    pub(super) fn wake(self) {
        if let Some((word, groups)) = self.0 {
            let _ = futex::wake_bitset(word.futex(), futex::Flags::empty(), i32::MAX as u32, groups);
        }
    }
}

impl From<Record> for LockedBy {
    fn from(record: Record) -> Self {
        let Record { owner, exclusive, range, process, .. } = record;
        Self { owner, exclusive, range, process }
    }
}

impl Record {
    pub(super) fn conflicts(&self, owner: &LockOwner, exclusive: bool, range: LockRange) -> bool {
        (self.exclusive || exclusive)
            && self.owner != *owner
            && (self.owner.kind() == LockKind::Flock) == (owner.kind() == LockKind::Flock)
            && self.range.overlaps(range)
    }
}

impl Tables {
    pub(super) fn load_record(&self, thread: &Thread<'_>, object: ArenaOffset) -> Result<Option<Record>> {
        let load = |at| thread.word(object.add(at)).map(|word| word.load(Ordering::Relaxed));
        let (kind, owner, generation) = (load(at::KIND)?, load(at::OWNER)?, load(at::OWNER_GENERATION)?);
        let owner = match (kind & 0xFF, Description::from_word(owner)) {
            (POSIX, _) => LockOwner::Process(gannet_shm::ParticipantId { index: owner as u32, generation }),
            (OPEN_FILE, Some(description)) => LockOwner::OpenFile(description),
            (WHOLE_FILE, Some(description)) => LockOwner::Flock(description),
            _ => return Err(gannet_shm::Error::Corrupt { what: "owner of a lock record", at: object.get() }),
        };
        let range = LockRange { start: load(at::START)?, end: load(at::END)? };
        Ok((range.start < range.end).then_some(Record {
            node: self.node(thread, object)?,
            owner,
            exclusive: kind & EXCLUSIVE != 0,
            range,
            sequence: load(at::SEQUENCE)?,
            process: (load(at::GENERATION)? >> at::PROCESS_SHIFT) as u32,
            since: load(at::SINCE)? as i64,
        }))
    }

    pub(super) fn store_record(&self, thread: &Thread<'_>, object: ArenaOffset, record: &Record) -> Result<()> {
        let set = |at, value| thread.word(object.add(at)).map(|word| word.store(value, Ordering::Relaxed));
        let (kind, owner, generation) = match record.owner {
            LockOwner::Process(id) => (POSIX, u64::from(id.index), id.generation),
            LockOwner::OpenFile(description) => (OPEN_FILE, description.word(), 0),
            LockOwner::Flock(description) => (WHOLE_FILE, description.word(), 0),
        };
        set(at::NUMBER, record.node.number)?;
        set(at::GENERATION, u64::from(record.process) << at::PROCESS_SHIFT | u64::from(record.node.generation))?;
        set(at::POSITION, record.range.start)?;
        set(at::KIND, kind | if record.exclusive { EXCLUSIVE } else { 0 })?;
        set(at::OWNER, owner)?;
        set(at::OWNER_GENERATION, generation)?;
        set(at::START, record.range.start)?;
        set(at::END, record.range.end)?;
        set(at::SEQUENCE, record.sequence)?;
        set(at::SINCE, record.since as u64)
    }

    fn set_start(&self, thread: &Thread<'_>, object: ArenaOffset, start: u64) -> Result<()> {
        thread.word(object.add(at::START)).map(|word| word.store(start, Ordering::Release))
    }

    fn set_end(&self, thread: &Thread<'_>, object: ArenaOffset, end: u64) -> Result<()> {
        thread.word(object.add(at::END)).map(|word| word.store(end, Ordering::Release))
    }

    /// Makes a POSIX lock another participant's. A kill between the stores leaves one that goes with the first of both to be reaped.
    pub(super) fn set_process(
        &self,
        thread: &Thread<'_>,
        object: ArenaOffset,
        id: gannet_shm::ParticipantId,
    ) -> Result<()> {
        thread.word(object.add(at::OWNER_GENERATION))?.store(id.generation, Ordering::Release);
        thread.word(object.add(at::OWNER)).map(|word| word.store(u64::from(id.index), Ordering::Release))
    }

    /// Cuts a record back so that it does not overlap `by`. Where `by` lies inside it, what is behind `by` has a copy. True: nothing is left.
    pub(super) fn cut(
        &self,
        thread: &Thread<'_>,
        object: ArenaOffset,
        range: LockRange,
        by: LockRange,
    ) -> Result<bool> {
        if range.start >= by.start && range.end <= by.end {
            self.set_end(thread, object, range.start)?;
            return Ok(true);
        }
        if range.start < by.start {
            self.set_end(thread, object, by.start)?;
        } else {
            self.set_start(thread, object, by.end)?;
        }
        Ok(false)
    }

    /// Calls `visit` with the records of a bucket that are not void, until it returns `false`.
    pub(super) fn records_in(
        &self,
        thread: &Thread<'_>,
        bucket: Bucket,
        mut visit: impl FnMut(SlabRef, ArenaOffset, Record) -> Result<bool>,
    ) -> Result<()> {
        self.walk(thread, bucket, Chain::Records, |reference, object| match self.load_record(thread, object)? {
            Some(record) => visit(reference, object, record),
            None => Ok(true),
        })
    }

    /// A record's bytes; `None` of a void one.
    fn load_range(&self, thread: &Thread<'_>, object: ArenaOffset) -> Result<Option<LockRange>> {
        let load = |at| thread.word(object.add(at)).map(|word| word.load(Ordering::Relaxed));
        let range = LockRange { start: load(at::START)?, end: load(at::END)? };
        Ok((range.start < range.end).then_some(range))
    }

    /// Calls `visit` with the records of a bucket that can have anything to do with bytes up to `end`, until it returns `false`: with
    /// those behind one (0: all), void ones included, and their ranges. Of each three words are looked at: who holds many locks does
    /// not pay for all of them at each call.
    #[inline]
    pub(super) fn records_up_to(
        &self,
        thread: &Thread<'_>,
        bucket: Bucket,
        (before, end): (u64, u64),
        mut visit: impl FnMut(SlabRef, ArenaOffset, Option<LockRange>) -> Result<bool>,
    ) -> Result<()> {
        self.walk_from(thread, bucket, Chain::Records, before, |reference, object| {
            if self.position(thread, object)? > end {
                return Ok(false);
            }
            visit(reference, object, self.load_range(thread, object)?)
        })
    }

    /// What the chain of records is sorted by.
    #[inline]
    pub(super) fn position(&self, thread: &Thread<'_>, object: ArenaOffset) -> Result<u64> {
        thread.word(object.add(at::POSITION)).map(|word| word.load(Ordering::Relaxed))
    }

    /// Whether the owner of a record can still let it go. An open file without users cannot.
    pub(super) fn owner_exists(&self, thread: &Thread<'_>, owner: &LockOwner) -> Result<bool> {
        match owner {
            LockOwner::Process(_) => Ok(true),
            LockOwner::OpenFile(description) | LockOwner::Flock(description) => {
                Ok(self.descriptions.is_live(thread.arena(), description.0)?
                    && self.is_used(thread, self.descriptions.object(description.0)?)?)
            }
        }
    }

    /// The first record that stands in the way of a lock. Under the bucket's lock.
    pub(super) fn conflict(
        &self,
        thread: &Thread<'_>,
        bucket: Bucket,
        request: &LockRequest,
    ) -> Result<Option<LockedBy>> {
        let Some(exclusive) = request.exclusive else { return Ok(None) };
        self.first_of(thread, bucket, request.range, |record| {
            record.node == request.node && record.conflicts(&request.owner, exclusive, request.range)
        })
    }

    /// Calls `visit` with the owner of each record that stands in the way of a lock, of as many records as `looks` says, which is what is
    /// left of it afterwards. Under the bucket's lock.
    pub(super) fn conflicts(
        &self,
        thread: &Thread<'_>,
        bucket: Bucket,
        request: &LockRequest,
        looks: &mut usize,
        mut visit: impl FnMut(LockOwner),
    ) -> Result<()> {
        let Some(exclusive) = request.exclusive else { return Ok(()) };
        self.records_up_to(thread, bucket, (0, request.range.end), |_, object, one| {
            let Some(left) = looks.checked_sub(1) else { return Ok(false) };
            *looks = left;
            if one.is_some_and(|one| one.overlaps(request.range))
                && let Some(record) = self.load_record(thread, object)?
                && record.node == request.node
                && record.conflicts(&request.owner, exclusive, request.range)
                && self.owner_exists(thread, &record.owner)?
            {
                visit(record.owner);
            }
            Ok(true)
        })
    }

    /// The first lock of an owner that touches a range. Under the bucket's lock.
    pub(super) fn own(&self, thread: &Thread<'_>, bucket: Bucket, request: &LockRequest) -> Result<Option<LockedBy>> {
        self.first_of(thread, bucket, request.range, |record| {
            (record.node, record.owner) == (request.node, request.owner) && record.range.overlaps(request.range)
        })
    }

    /// Of the records in a range that are meant, the one that begins first.
    fn first_of(
        &self,
        thread: &Thread<'_>,
        bucket: Bucket,
        range: LockRange,
        is_meant: impl Fn(&Record) -> bool,
    ) -> Result<Option<LockedBy>> {
        let mut first: Option<LockedBy> = None;
        self.records_up_to(thread, bucket, (0, range.end), |_, object, one| {
            let is_earlier = |one: LockRange| first.is_none_or(|first| one.start < first.range.start);
            if one.is_some_and(|one| one.overlaps(range) && is_earlier(one))
                && let Some(record) = self.load_record(thread, object)?
                && is_meant(&record)
                && self.owner_exists(thread, &record.owner)?
            {
                first = Some(record.into());
            }
            Ok(true)
        })?;
        Ok(first)
    }

    /// Frees the void records of a bucket. Under its lock.
    fn purge(&self, thread: &Thread<'_>, bucket: Bucket) -> Result<()> {
        self.walk(thread, bucket, Chain::Records, |reference, object| {
            if self.load_range(thread, object)?.is_none() {
                self.free_void(thread, bucket, reference)?;
            }
            Ok(true)
        })
    }

    /// Frees a void record. Under the bucket's lock.
    pub(super) fn free_void(&self, thread: &Thread<'_>, bucket: Bucket, reference: SlabRef) -> Result<()> {
        let held = self.records.retire(thread, reference)?;
        self.unlink(thread, bucket, Chain::Records, reference)?;
        match held {
            Some(held) => self.records.free_to(thread, &self.recent_records, held),
            None => Ok(()),
        }
    }

    /// Frees void records that a dead thread left.
    pub(super) fn purge_all(&self, thread: &Thread<'_>) -> Result<()> {
        for reference in self.records.live(thread.arena())? {
            let object = self.records.object(reference)?;
            if self.load_record(thread, object)?.is_none() {
                let bucket = self.bucket(self.node(thread, object)?.number);
                let guard = thread.lock(bucket.lock())?;
                self.purge(thread, bucket)?;
                guard.unlock();
            }
        }
        Ok(())
    }

    /// Takes away all locks of owners that `gone` names; returns their groups. Under the bucket's lock.
    pub(super) fn void_records(
        &self,
        thread: &Thread<'_>,
        bucket: Bucket,
        mut gone: impl FnMut(&Record) -> bool,
    ) -> Result<Groups> {
        let mut groups = 0;
        self.records_in(thread, bucket, |reference, object, record| {
            if gone(&record) {
                groups |= Self::group(reference).get();
                self.set_end(thread, object, record.range.start)?;
                self.free_void(thread, bucket, reference)?;
            }
            Ok(true)
        })?;
        Ok(groups)
    }

    /// Takes away all locks of a description; returns their groups. Under the bucket's lock.
    pub(super) fn void_records_of(&self, thread: &Thread<'_>, bucket: Bucket, which: Description) -> Result<Groups> {
        let mut groups = 0;
        self.walk(thread, bucket, Chain::Records, |reference, object| {
            // Others' locks, of which there may be thousands, are not looked at closer.
            if thread.word(object.add(at::OWNER))?.load(Ordering::Relaxed) == which.word()
                && let Some(record) = self.load_record(thread, object)?
                && record.owner.kind() != LockKind::Posix
            {
                groups |= Self::group(reference).get();
                self.set_end(thread, object, record.range.start)?;
                self.free_void(thread, bucket, reference)?;
            }
            Ok(true)
        })?;
        Ok(groups)
    }

    /// The group of a record. Who sleeps for a lock is woken when a record of the same group changes: not for each of a thousand others.
    pub(super) fn group(record: SlabRef) -> NonZeroU32 {
        const FIRST: NonZeroU32 = NonZeroU32::MIN;
        let hash = record.word().wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 59;
        NonZeroU32::new(1 << hash).unwrap_or(FIRST)
    }

    /// Whether a record that stood in the way of a lock still does. Under the bucket's lock.
    /// Whose it is may have changed: an executed program takes its process's locks over.
    pub(super) fn still_blocks(
        &self,
        thread: &Thread<'_>,
        request: &LockRequest,
        reference: SlabRef,
    ) -> Result<Option<Blocking>> {
        if !self.records.is_live(thread.arena(), reference)? {
            return Ok(None);
        }
        let Some(record) = self.load_record(thread, self.records.object(reference)?)? else { return Ok(None) };
        let blocks = record.node == request.node
            && record.conflicts(&request.owner, request.exclusive == Some(true), request.range)
            && self.owner_exists(thread, &record.owner)?;
        Ok(blocks.then(|| Blocking { by: record.into(), record: reference }))
    }

    /// Says that records of these groups went away, or say something else now. Under the bucket's lock.
    pub(super) fn released<'s>(&self, thread: &Thread<'s>, bucket: Bucket, groups: Groups) -> Result<Wake<'s>> {
        let sleepers = bucket.sleepers(thread)?;
        let asleep = sleepers.load(Ordering::Relaxed);
        let Some(woken) = NonZeroU32::new(asleep & groups) else { return Ok(Wake(None)) };
        sleepers.store(asleep & !groups, Ordering::Relaxed);
        let releases = bucket.releases(thread)?;
        releases.store(releases.load(Ordering::Relaxed).wrapping_add(1), Ordering::Release);
        Ok(Wake(Some((releases, woken))))
    }

    /// Completes what a dead thread left in a bucket that it had locked. In its name: nothing is freed here.
    pub(super) fn settle_records(&self, thread: &Thread<'_>, bucket: Bucket) -> Result<()> {
        self.records_in(thread, bucket, |newer, _, new| {
            self.records_up_to(thread, bucket, (0, new.range.end), |older, object, one| {
                if older == newer || !one.is_some_and(|one| one.overlaps(new.range)) {
                    return Ok(true);
                }
                // A copy of a right part has the sequence of its original: they say the same, twice.
                if let Some(old) = self.load_record(thread, object)?
                    && (old.node, old.owner) == (new.node, new.owner)
                    && old.sequence < new.sequence
                {
                    self.cut(thread, object, old.range, new.range)?;
                }
                Ok(true)
            })?;
            Ok(true)
        })
    }
}
