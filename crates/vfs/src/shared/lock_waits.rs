//! Who waits for a lock on a file: each thread says so in words of its own, for people who look; and who has the open file that holds one.
//! By that nothing is decided. A process that waits for another's POSIX lock says there, too, which lock that is, and for what: whether it is still in
//! the way is looked at before anybody is told of a deadlock ([`super::lock_circles`]).
//!
//! | word | content |
//! | --- | --- |
//! | 0 | since when, nanoseconds since 1970; 0 while it waits for none. Stored last, cleared first |
//! | 1 | number of the inode |
//! | 2 | process that a lock in the way was taken with |
//! | 3 | record of the lock in the way; stored under its bucket's lock, as what follows, and kept until the next one |
//! | 4 | first byte that is waited for; bit 63: exclusively |
//! | 5 | behind the last one |

use super::{Description, LockOwner, LockRange, LockRequest, LockedBy, Shared, error_of};
use crate::{NodeId, Result, Time};
use gannet_shm::{Ordering, ParticipantId, SlabRef, Thread, ThreadInfo, Word};

/// Words of each thread.
pub(super) const WAIT_WORDS: u64 = 8;
const SINCE: usize = 0;
const INODE: usize = 1;
const HOLDER: usize = 2;
const RECORD: usize = 3;
const START: usize = 4;
const END: usize = 5;
const EXCLUSIVELY: u64 = 1 << 63;

/// A thread that waits for a lock on a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LockWait {
    /// Who waits.
    pub waiter: ThreadInfo,
    /// The inode's number.
    pub inode: u64,
    /// Since when.
    pub since: Time,
    /// The process that a lock in the way was taken with, by its id.
    pub holder: u32,
}

impl Shared {
    /// Says that this thread waits for a lock on `node`, or goes on waiting for one. Nothing, where there is no memory for that.
    pub(super) fn say_waiting(&self, thread: &Thread<'_>, node: NodeId, blocker: &LockedBy) {
        let Ok(words) = self.lock_wait(thread, thread.slot()) else { return };
        words[INODE].store(node.number, Ordering::Relaxed);
        words[HOLDER].store(u64::from(blocker.process), Ordering::Relaxed);
        if words[SINCE].load(Ordering::Relaxed) == 0 {
            words[SINCE].store(Time::now().0.max(1) as u64, Ordering::Release);
        }
    }

    /// Says that this thread does not wait any more, if it did.
    pub(super) fn say_not_waiting(&self, thread: &Thread<'_>) {
        if let Ok(words) = self.lock_wait(thread, thread.slot())
            && words[SINCE].load(Ordering::Relaxed) != 0
        {
            words[SINCE].store(0, Ordering::Release);
        }
    }

    /// Says which lock a request waits for. Under its bucket's lock.
    pub(super) fn say_in_the_way(&self, thread: &Thread<'_>, request: &LockRequest, record: SlabRef) {
        let Ok(words) = self.lock_wait(thread, thread.slot()) else { return };
        let exclusively = if request.exclusive == Some(true) { EXCLUSIVELY } else { 0 };
        words[START].store(request.range.start | exclusively, Ordering::Relaxed);
        words[END].store(request.range.end, Ordering::Relaxed);
        words[RECORD].store(record.word(), Ordering::Release);
    }

    /// Whether the thread of a slot, which noted that process `waiter` waits for `holder`, still has a lock of the latter's in its way. It does, as far
    /// as anybody knows, where there was no memory to say which.
    pub(super) fn is_in_the_way(
        &self,
        thread: &Thread<'_>,
        (slot, note): (u32, u64),
        (waiter, holder): (u32, u32),
    ) -> gannet_shm::Result<bool> {
        let (tables, Ok(words)) = (&self.tables, self.lock_wait(thread, slot)) else { return Ok(true) };
        let Some(record) = SlabRef::from_word(words[RECORD].load(Ordering::Acquire)) else { return Ok(true) };
        // Of a record that is another's by now this is another inode, and the record not live under that name.
        let node = tables.node(thread, tables.records.object(record)?)?;
        let guard = thread.lock(tables.bucket(node.number).lock())?;
        let start = words[START].load(Ordering::Relaxed);
        let range = LockRange { start: start & !EXCLUSIVELY, end: words[END].load(Ordering::Relaxed) };
        // Who notes something else now looks for circles itself, behind that.
        let is_this = words[RECORD].load(Ordering::Relaxed) == record.word()
            && tables.wait(thread, slot)?.load(Ordering::SeqCst) == note;
        let owner = LockOwner::Process(ParticipantId { index: waiter, generation: 0 });
        let exclusive = Some(start & EXCLUSIVELY != 0);
        let request = LockRequest { node, owner, exclusive, range, process: 0 };
        let blocking = if is_this { tables.still_blocks(thread, &request, record)? } else { None };
        guard.unlock();
        let is_holder = |owner| matches!(owner, LockOwner::Process(id) if id.index == holder);
        Ok(blocking.is_some_and(|blocking| is_holder(blocking.by.owner)))
    }

    fn lock_wait<'s>(&self, thread: &Thread<'s>, slot: u32) -> Result<&'s [Word]> {
        self.tables.lock_wait(thread, slot).map_err(error_of)
    }

    /// All threads that wait for a lock on a file at this instant. For reports: everything may have changed when it returns.
    pub fn lock_waits(&self) -> Result<Vec<LockWait>> {
        let thread = self.thread()?;
        let mut waits = Vec::new();
        // Who is dead waits for nothing; its words are cleared by whoever settles it.
        for waiter in self.session().threads() {
            let words = self.lock_wait(&thread, waiter.slot)?;
            let [since, inode, holder] = [SINCE, INODE, HOLDER].map(|word| words[word].load(Ordering::Acquire));
            if since != 0 {
                waits.push(LockWait { waiter, inode, since: Time(since as i64), holder: holder as u32 });
            }
        }
        Ok(waits)
    }

    /// Whether a participant has an open file. For reports: that may have changed when it returns, and one that is gone has none.
    pub fn has_open(&self, who: ParticipantId, description: Description) -> Result<bool> {
        let thread = self.thread()?;
        let look = || {
            let descriptions = &self.tables.descriptions;
            let (word, bit) = self.tables.user(&thread, descriptions.object(description.0)?, who.index)?;
            let has_bit = word.load(Ordering::Acquire) & bit != 0;
            Ok(has_bit && descriptions.is_live(thread.arena(), description.0)?)
        };
        look().map_err(error_of)
    }
}
