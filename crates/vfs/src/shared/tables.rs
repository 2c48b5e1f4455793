//! Where everything stands in the arena: buckets of inodes by hash, and in each the descriptions and the lock records of its
//! inodes as chains of slab objects.
//!
//! A chain is changed under its bucket's lock, by one store for each step; so whoever takes the lock over from a dead thread
//! finds it whole. An object that is not live (its maker or remover died) is unlinked by the reaper before it is freed.
//!
//! What leads on (`NEXT`) is the chain. What leads back (`BEFORE`) is where to look first, so that one of thousands that have a file open
//! leaves without passing the others: a kill leaves it stale, never misleading. Whatever is in front of an object tells it after it has got
//! there, and before it goes; so who is named by `BEFORE` and leads to the object stands in front of it.

use std::sync::Arc;

use gannet_shm::{
    ArenaLayout, ArenaOffset, Ordering, Recent, Region, Result, SLAB_HEAD_BYTES, Session, Slab, SlabRef, Thread, Word,
    Word32,
};

use super::SharedLimits;
use super::lock_waits::WAIT_WORDS;
use crate::NodeId;

/// Words of a description before the column of its users.
pub(super) mod description {
    pub(in super::super) const NUMBER: u64 = 0;
    /// Low half; what it was opened for is the high one.
    pub(in super::super) const GENERATION: u64 = 8;
    pub(in super::super) const ACCESS_SHIFT: u32 = 32;
    pub(in super::super) const NEXT: u64 = 16;
    pub(in super::super) const BEFORE: u64 = 24;
    pub(in super::super) const STATUS: u64 = 32;
    pub(in super::super) const OFFSET_LOCK: u64 = 40;
    pub(in super::super) const OFFSET: u64 = 48;
    pub(in super::super) const EXTERNAL: u64 = 56;
    pub(in super::super) const COLUMN: u64 = 64;

    /// What it was opened for, of the word at `GENERATION`.
    pub(in super::super) const fn access(word: u64) -> super::super::AccessMode {
        super::super::AccessMode::from_bits_retain((word >> ACCESS_SHIFT) as u32)
    }
}

/// Words of a lock record. What a walk past it looks at stands together.
pub(super) mod record {
    pub(in super::super) const NUMBER: u64 = 0;
    /// Low half; the process id is the high one.
    pub(in super::super) const GENERATION: u64 = 8;
    pub(in super::super) const PROCESS_SHIFT: u32 = 32;
    pub(in super::super) const NEXT: u64 = 16;
    pub(in super::super) const BEFORE: u64 = 24;
    /// What the chain is sorted by: where the record began when it was linked.
    pub(in super::super) const POSITION: u64 = 32;
    pub(in super::super) const START: u64 = 40;
    pub(in super::super) const END: u64 = 48;
    pub(in super::super) const KIND: u64 = 56;
    pub(in super::super) const OWNER: u64 = 64;
    pub(in super::super) const OWNER_GENERATION: u64 = 72;
    pub(in super::super) const SEQUENCE: u64 = 80;
    pub(in super::super) const SINCE: u64 = 88;
    pub(in super::super) const BYTES: u64 = 96;
}

// Both chains are walked by the same code.
const _: () = assert!(description::NUMBER == record::NUMBER && description::NEXT == record::NEXT);
const _: () = assert!(description::BEFORE == record::BEFORE);
/// Words of a description before its column.
const OWN_WORDS: usize = description::COLUMN as usize / 8;
const NEXT: u64 = description::NEXT;
const BEFORE: u64 = description::BEFORE;

/// A bucket, in bytes: lock, two heads, sequence, releases (32 bits), groups of records slept for (32 bits), mark of executed inodes.
const BUCKET_BYTES: u64 = 64;
const LOCK: u64 = 0;
const DESCRIPTIONS: u64 = 8;
const RECORDS: u64 = 16;
const SEQUENCE: u64 = 24;
const RELEASES: u64 = 32;
const SLEEPERS: u64 = 40;
const EXECUTED: u64 = 48;

const CONTROL_LOOKED: u64 = 8;
const CONTROL_SWEEP: u64 = 64;
const CONTROL_BYTES: u64 = 128;

/// Offsets of everything, the same in every process, and what this process remembers.
#[derive(Clone, Debug)]
pub(super) struct Tables {
    pub(super) descriptions: Slab,
    pub(super) records: Slab,
    /// Lock records that this process freed last.
    pub(super) recent_records: Arc<Recent>,
    buckets: Region,
    /// A power of two.
    bucket_count: u64,
    waits: Region,
    lock_waits: Region,
    control: Region,
    column_words: u64,
}

/// One of the two chains of a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Chain {
    Descriptions,
    Records,
}

/// The place of a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Bucket(pub(super) ArenaOffset);

impl Bucket {
    pub(super) const fn lock(self) -> ArenaOffset {
        self.0.add(LOCK)
    }

    pub(super) fn sequence<'s>(self, thread: &Thread<'s>) -> Result<&'s Word> {
        thread.word(self.0.add(SEQUENCE))
    }

    pub(super) fn releases<'s>(self, thread: &Thread<'s>) -> Result<&'s Word32> {
        thread.arena().word32(self.0.add(RELEASES))
    }

    /// A bit for each group of records that somebody sleeps for ([`Tables::group`]).
    pub(super) fn sleepers<'s>(self, thread: &Thread<'s>) -> Result<&'s Word32> {
        thread.arena().word32(self.0.add(SLEEPERS))
    }

    /// Not 0 if an inode of it was executed.
    pub(super) fn executed<'s>(self, thread: &Thread<'s>) -> Result<&'s Word> {
        thread.word(self.0.add(EXECUTED))
    }

    pub(super) const fn head(self, chain: Chain) -> ArenaOffset {
        self.0.add(match chain {
            Chain::Descriptions => DESCRIPTIONS,
            Chain::Records => RECORDS,
        })
    }
}

fn column_words(limits: &SharedLimits) -> u64 {
    u64::from(limits.participants).div_ceil(64)
}

fn description_bytes(limits: &SharedLimits) -> u64 {
    description::COLUMN + column_words(limits) * 8
}

fn bucket_count(limits: &SharedLimits) -> u64 {
    u64::from(limits.descriptions / 16).next_power_of_two().clamp(64, 4096)
}

impl Tables {
    pub(super) fn layout(layout: ArenaLayout, limits: &SharedLimits) -> ArenaLayout {
        let descriptions = Slab::region_bytes(u64::from(limits.descriptions.max(1)), description_bytes(limits));
        let records = Slab::region_bytes(u64::from(limits.records.max(1)), record::BYTES);
        layout
            .head("vfs control", CONTROL_BYTES)
            .head("vfs descriptions' head", SLAB_HEAD_BYTES)
            .head("vfs records' head", SLAB_HEAD_BYTES)
            .region("vfs buckets", bucket_count(limits) * BUCKET_BYTES, 4096)
            .region("vfs waits", u64::from(limits.threads) * 8, 64)
            .region("vfs lock waits", u64::from(limits.threads) * WAIT_WORDS * 8, 64)
            .region("vfs descriptions", descriptions, 4096)
            .region("vfs lock records", records, 4096)
    }

    pub(super) fn new(session: &Session, limits: &SharedLimits) -> Result<Self> {
        let arena = session.arena();
        let region = |name| arena.region(name);
        let tables = Self {
            descriptions: Slab::new(
                arena,
                region("vfs descriptions' head")?,
                region("vfs descriptions")?,
                description_bytes(limits),
            )?,
            records: Slab::new(arena, region("vfs records' head")?, region("vfs lock records")?, record::BYTES)?,
            recent_records: Arc::default(),
            buckets: region("vfs buckets")?,
            bucket_count: bucket_count(limits),
            waits: region("vfs waits")?,
            lock_waits: region("vfs lock waits")?,
            control: region("vfs control")?,
            column_words: column_words(limits),
        };
        arena.reserve_first(tables.control.start, CONTROL_BYTES)?;
        // The rest gets its memory once for all processes; in a private arena it may come page by page.
        if session.path().is_some() {
            arena.reserve_first(tables.buckets.start, tables.buckets.bytes)?;
            arena.reserve_first(tables.waits.start, tables.waits.bytes)?;
        }
        Ok(tables)
    }

    pub(super) fn slab(&self, chain: Chain) -> &Slab {
        match chain {
            Chain::Descriptions => &self.descriptions,
            Chain::Records => &self.records,
        }
    }

    #[inline]
    pub(super) fn bucket(&self, number: u64) -> Bucket {
        let hash = number.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
        Bucket(self.buckets.start.add((hash & (self.bucket_count - 1)) * BUCKET_BYTES))
    }

    /// The bucket whose lock stands at `at`.
    pub(super) fn bucket_of_lock(&self, at: ArenaOffset) -> Option<Bucket> {
        let distance = at.get().checked_sub(self.buckets.start.get())?;
        let is_one = distance < self.bucket_count * BUCKET_BYTES && distance % BUCKET_BYTES == LOCK;
        is_one.then(|| Bucket(ArenaOffset::new(at.get() - LOCK)))
    }

    /// Asks for a sweep.
    pub(super) fn want_sweep(&self, thread: &Thread<'_>) -> Result<()> {
        self.sweep_wanted(thread).map(|word| _ = word.fetch_add(1, Ordering::AcqRel))
    }

    /// Not 0 when descriptions without users or void records may be lying about.
    pub(super) fn sweep_wanted<'s>(&self, thread: &Thread<'s>) -> Result<&'s Word> {
        thread.word(self.control.at(CONTROL_SWEEP)?)
    }

    /// Not 0 when somebody has looked for programs that were executed before the arena was made.
    pub(super) fn looked_for_programs<'s>(&self, thread: &Thread<'s>) -> Result<&'s Word> {
        thread.word(self.control.at(CONTROL_LOOKED)?)
    }

    /// For whom the thread of a slot waits.
    pub(super) fn wait<'s>(&self, thread: &Thread<'s>, slot: u32) -> Result<&'s Word> {
        thread.word(self.waits.at(u64::from(slot) * 8)?)
    }

    /// What the thread of a slot says of a lock on a file that it waits for: see `lock_waits`. Gets its memory now: few ever wait, and
    /// who opens a volume first would pay for all.
    pub(super) fn lock_wait<'s>(&self, thread: &Thread<'s>, slot: u32) -> Result<&'s [Word]> {
        let at = self.lock_waits.at(u64::from(slot) * WAIT_WORDS * 8)?;
        thread.arena().reserve(at, WAIT_WORDS * 8)?;
        thread.arena().words(at, WAIT_WORDS)
    }

    /// Whom the threads of all slots that were ever used wait for.
    pub(super) fn waits<'s>(&self, thread: &Thread<'s>) -> Result<&'s [Word]> {
        thread.arena().words(self.waits.start, u64::from(thread.session().slots_used()))
    }

    /// The users of a description: a bit for each participant.
    #[inline]
    pub(super) fn column<'s>(&self, thread: &Thread<'s>, object: ArenaOffset) -> Result<&'s [Word]> {
        thread.arena().words(object.add(description::COLUMN), self.column_words)
    }

    /// The word and the bit of a participant in a column.
    #[inline]
    pub(super) fn user<'s>(&self, thread: &Thread<'s>, object: ArenaOffset, index: u32) -> Result<(&'s Word, u64)> {
        Self::user_in(self.column(thread, object)?, index)
    }

    /// The words of a description, and the column of its users.
    #[inline]
    pub(super) fn whole<'s>(
        &self,
        thread: &Thread<'s>,
        object: ArenaOffset,
    ) -> Result<(&'s [Word; OWN_WORDS], &'s [Word])> {
        let words = thread.arena().words(object, OWN_WORDS as u64 + self.column_words)?;
        words.split_first_chunk().ok_or(gannet_shm::Error::Corrupt { what: "description", at: object.get() })
    }

    /// As [`Tables::user`], in a column.
    #[inline]
    pub(super) fn user_in(column: &[Word], index: u32) -> Result<(&Word, u64)> {
        let word = column.get(index as usize / 64);
        let full = gannet_shm::Error::Full { what: "no room for another process among the users of an open file" };
        Ok((word.ok_or(full)?, 1 << (index % 64)))
    }

    /// Whether anybody uses a description. Exact under its bucket's lock.
    #[inline]
    pub(super) fn is_used(&self, thread: &Thread<'_>, object: ArenaOffset) -> Result<bool> {
        let column = self.column(thread, object)?;
        let (fours, rest) = column.as_chunks::<4>();
        let load = |word: &Word| word.load(Ordering::Acquire);
        Ok(fours.iter().any(|[a, b, c, d]| load(a) | load(b) | load(c) | load(d) != 0)
            || rest.iter().any(|word| load(word) != 0)
            || thread.word(object.add(description::EXTERNAL))?.load(Ordering::Acquire) != 0)
    }

    #[inline]
    pub(super) fn node(&self, thread: &Thread<'_>, object: ArenaOffset) -> Result<NodeId> {
        let load = |at| Ok(thread.word(object.add(at))?.load(Ordering::Relaxed));
        Ok(NodeId::new(load(description::NUMBER)?, load(description::GENERATION)? as u32))
    }

    /// Calls `visit` with the objects of a chain until it returns `false`. Under the bucket's lock.
    pub(super) fn walk(
        &self,
        thread: &Thread<'_>,
        bucket: Bucket,
        chain: Chain,
        visit: impl FnMut(SlabRef, ArenaOffset) -> Result<bool>,
    ) -> Result<()> {
        self.walk_from(thread, bucket, chain, 0, visit)
    }

    /// [`walk`](Self::walk) over those behind one (0: over all). What is visited may be taken out of the chain.
    pub(super) fn walk_from(
        &self,
        thread: &Thread<'_>,
        bucket: Bucket,
        chain: Chain,
        before: u64,
        mut visit: impl FnMut(SlabRef, ArenaOffset) -> Result<bool>,
    ) -> Result<()> {
        let slab = self.slab(chain);
        let mut next = self.leads_on(thread, bucket, chain, before)?.load(Ordering::Relaxed);
        for _ in 0..=slab.count() {
            let Some(reference) = SlabRef::from_word(next) else { return Ok(()) };
            let object = slab.object(reference)?;
            next = thread.word(object.add(NEXT))?.load(Ordering::Relaxed);
            if !visit(reference, object)? {
                return Ok(());
            }
        }
        Err(gannet_shm::Error::Corrupt { what: "chain of an inode bucket", at: bucket.0.get() })
    }

    /// Puts an object at the front of a chain. Under the bucket's lock.
    #[inline]
    pub(super) fn link(
        &self,
        thread: &Thread<'_>,
        bucket: Bucket,
        chain: Chain,
        reference: SlabRef,
        object: ArenaOffset,
    ) -> Result<()> {
        self.link_behind(thread, bucket, chain, 0, reference, object)
    }

    /// Puts an object behind one of a chain (0: at the front). Under the bucket's lock.
    #[inline]
    pub(super) fn link_behind(
        &self,
        thread: &Thread<'_>,
        bucket: Bucket,
        chain: Chain,
        before: u64,
        reference: SlabRef,
        object: ArenaOffset,
    ) -> Result<()> {
        let leads = self.leads_on(thread, bucket, chain, before)?;
        let next = leads.load(Ordering::Relaxed);
        thread.word(object.add(NEXT))?.store(next, Ordering::Relaxed);
        thread.word(object.add(BEFORE))?.store(before, Ordering::Relaxed);
        leads.store(reference.word(), Ordering::Release);
        self.tell_next(thread, chain, next, reference.word())
    }

    /// Takes an object out of a chain, if it is in it. Under the bucket's lock.
    pub(super) fn unlink(&self, thread: &Thread<'_>, bucket: Bucket, chain: Chain, reference: SlabRef) -> Result<()> {
        let object = self.slab(chain).object(reference)?;
        let Some(before) = self.before(thread, bucket, chain, reference, object)? else { return Ok(()) };
        let next = thread.word(object.add(NEXT))?.load(Ordering::Relaxed);
        self.tell_next(thread, chain, next, before)?;
        self.leads_on(thread, bucket, chain, before)?.store(next, Ordering::Release);
        Ok(())
    }

    /// What stands before an object in its chain: a reference, 0 for the head. `None` if the object is not in it.
    fn before(
        &self,
        thread: &Thread<'_>,
        bucket: Bucket,
        chain: Chain,
        reference: SlabRef,
        object: ArenaOffset,
    ) -> Result<Option<u64>> {
        let told = thread.word(object.add(BEFORE))?.load(Ordering::Relaxed);
        if self.leads_on(thread, bucket, chain, told)?.load(Ordering::Relaxed) == reference.word() {
            return Ok(Some(told));
        }
        let (mut before, mut found) = (0, None);
        self.walk(thread, bucket, chain, |at, _| {
            if at == reference {
                found = Some(before);
                return Ok(false);
            }
            before = at.word();
            Ok(true)
        })?;
        Ok(found)
    }

    /// The word that leads on from what stands `before` in a chain: of an object, or the head for 0.
    #[inline]
    fn leads_on<'s>(&self, thread: &Thread<'s>, bucket: Bucket, chain: Chain, before: u64) -> Result<&'s Word> {
        match SlabRef::from_word(before) {
            None => thread.word(bucket.head(chain)),
            Some(before) => thread.word(self.slab(chain).object(before)?.add(NEXT)),
        }
    }

    /// Tells the object that is `next`, if one is, what stands before it: when nothing stored earlier can come later.
    fn tell_next(&self, thread: &Thread<'_>, chain: Chain, next: u64, before: u64) -> Result<()> {
        let Some(next) = SlabRef::from_word(next) else { return Ok(()) };
        thread.word(self.slab(chain).object(next)?.add(BEFORE))?.store(before, Ordering::Release);
        Ok(())
    }
}
