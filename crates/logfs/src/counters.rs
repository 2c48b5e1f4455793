//! What has been done on a volume since it was opened: counted by each thread in words of its own, added up by who asks.
//!
//! A thread's words are stored to by it alone (plain stores, no shared line); its slot's next thread goes on counting.

use crate::ops::Op;
use crate::places::COUNTER_WORDS;
use gannet_media::Counters as MediumCounters;
use gannet_shm::{Ordering, Word};
use gannet_vfs::{NodeId, Result};

/// What is counted: the index of its word.
#[derive(Clone, Copy)]
pub(crate) enum Counter {
    Reads = 0,
    BytesRead = 1,
    Writes = 2,
    BytesWritten = 3,
    Changes = 4,
    Fences = 5,
    Lines = 6,
    BytesStored = 7,
    PagesCollected = 8,
    /// Not a counter: inode and generation of the last file that the thread made without a name.
    LastUnnamed = 15,
}

/// What all processes have done on a volume since the first of them opened it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VolumeCounters {
    /// Calls that read data.
    pub reads: u64,
    /// Bytes of data read.
    pub bytes_read: u64,
    /// Calls that wrote data.
    pub writes: u64,
    /// Bytes of data written.
    pub bytes_written: u64,
    /// Calls that changed names, attributes or space.
    pub changes: u64,
    /// Fences.
    pub fences: u64,
    /// Lines written back from the cache or stored past it.
    pub lines: u64,
    /// Bytes stored to the medium, data and metadata.
    pub bytes_stored: u64,
    /// Log pages emptied by collection.
    pub pages_collected: u64,
    /// Dead threads settled.
    pub takeovers: u64,
    /// Locks that were not free at once.
    pub lock_waits: u64,
    /// How often a thread had to sleep for one.
    pub lock_sleeps: u64,
    /// How long it took to get those, in nanoseconds together.
    pub lock_slept_ns: u64,
    /// Indexes dropped to make room for others.
    pub indexes_dropped: u64,
}

impl Op<'_> {
    /// Adds to a counter of the calling thread.
    #[inline]
    pub(crate) fn count(&self, counter: Counter, by: u64) {
        if let Some(word) = self.counters.get(counter as usize) {
            word.store(word.load(Ordering::Relaxed).wrapping_add(by), Ordering::Relaxed);
        }
    }

    /// Notes the last file that the thread made without a name.
    pub(crate) fn note_unnamed(&self, node: NodeId) {
        if let Some(word) = self.counters.get(Counter::LastUnnamed as usize) {
            word.store(node.number << 32 | node.generation as u64, Ordering::Release);
        }
    }

    /// Adds what the thread has cost the medium since `before`.
    #[inline]
    pub(crate) fn count_medium(&self, before: MediumCounters) {
        let now = gannet_media::counters_thread();
        self.count(Counter::Fences, now.fences.wrapping_sub(before.fences));
        let lines = |counters: MediumCounters| counters.lines_streamed.wrapping_add(counters.lines_flushed);
        self.count(Counter::Lines, lines(now).wrapping_sub(lines(before)));
        self.count(Counter::BytesStored, now.bytes_stored.wrapping_sub(before.bytes_stored));
    }

    /// The words of all thread slots that were ever used, one after the other.
    pub(crate) fn counters_of_all(&self) -> Result<&[Word]> {
        let count = self.thread.session().slots_used() as u64 * COUNTER_WORDS;
        self.thread.arena().words(self.core.places.counters.start, count).map_err(crate::ops::shared_error)
    }

    /// Adds up the counters of all threads.
    pub(crate) fn counters(&self) -> Result<VolumeCounters> {
        let all = self.counters_of_all()?;
        let sum = |counter: Counter| {
            let words = all.iter().skip(counter as usize).step_by(COUNTER_WORDS as usize);
            words.fold(0_u64, |sum, word| sum.wrapping_add(word.load(Ordering::Relaxed)))
        };
        let locks = self.thread.session().lock_counters();
        Ok(VolumeCounters {
            reads: sum(Counter::Reads),
            bytes_read: sum(Counter::BytesRead),
            writes: sum(Counter::Writes),
            bytes_written: sum(Counter::BytesWritten),
            changes: sum(Counter::Changes),
            fences: sum(Counter::Fences),
            lines: sum(Counter::Lines),
            bytes_stored: sum(Counter::BytesStored),
            pages_collected: sum(Counter::PagesCollected),
            takeovers: self.control(crate::places::CONTROL_TAKEOVERS)?,
            lock_waits: locks.waits,
            lock_sleeps: locks.sleeps,
            lock_slept_ns: locks.slept_ns,
            indexes_dropped: self.node_pool().usage().1,
        })
    }
}
