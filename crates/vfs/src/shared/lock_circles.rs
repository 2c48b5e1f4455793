//! Circles of processes that wait for each other's POSIX locks: each thread notes who waits for whom, and follows the notes.
//!
//! May touch the words of the threads for that. Relies on `file_locks` to note under the bucket's lock, and to look after each note.

use gannet_shm::{Ordering, ParticipantId, Thread};

use super::file_locks::{LockOwner, LockRequest};
use super::records::Blocking;
use super::{Shared, error_of};
use crate::Result;

/// How many waiting processes a search for a deadlock follows.
const WAITERS_MAX: usize = 64;

impl Shared {
    /// Notes whom the thread waits for now, or nobody. Under the bucket's lock, as is what the holder does when it lets go
    /// ([`forget_waits_for`](Self::forget_waits_for)), so that a note is never older than the hold that it tells of.
    pub(super) fn note_wait(
        &self,
        thread: &Thread<'_>,
        request: &LockRequest,
        blocker: Option<&Blocking>,
    ) -> gannet_shm::Result<()> {
        let note = match (request.owner, blocker.map(|blocker| (blocker.by.owner, blocker.record))) {
            (LockOwner::Process(me), Some((LockOwner::Process(other), record))) => {
                self.say_in_the_way(thread, request, record);
                1 << 63 | u64::from(me.index) << 16 | u64::from(other.index)
            }
            _ => 0,
        };
        let mine = self.tables.wait(thread, thread.slot())?;
        if note != 0 || mine.load(Ordering::Relaxed) != 0 {
            // A swap: of two who note and then look at the same time, one sees the other.
            mine.swap(note, Ordering::SeqCst);
        }
        Ok(())
    }

    /// A process has let a lock go: nobody waits for it any more. Who waits for another lock of its notes that again when it looks again.
    pub(super) fn forget_waits_for(&self, thread: &Thread<'_>, holder: ParticipantId) -> gannet_shm::Result<()> {
        for word in self.tables.waits(thread)? {
            let note = word.load(Ordering::Relaxed);
            if note >> 63 != 0 && note as u32 & 0xFFFF == holder.index {
                let _ = word.compare_exchange(note, 0, Ordering::SeqCst, Ordering::Relaxed);
            }
        }
        Ok(())
    }

    /// Whether those whom this process waits for wait for it in turn, and live. A note alone proves nothing: who was woken, and did not come to look
    /// yet, is not among the sleepers that a lock is let go for, and its note stays. So of each that would count the lock is looked at.
    pub(super) fn is_circle(&self, thread: &Thread<'_>, me: ParticipantId, other: ParticipantId) -> Result<bool> {
        let waits = self.tables.waits(thread).map_err(error_of)?;
        let mut reached = [0; WAITERS_MAX];
        reached[0] = other.index;
        let (mut count, mut at) = (1, 0);
        while at < count {
            for (slot, word) in waits.iter().enumerate() {
                let value = word.load(Ordering::SeqCst);
                let (waiter, holder) = ((value >> 16) as u32 & 0xFFFF, value as u32 & 0xFFFF);
                if value >> 63 == 0 || waiter != reached[at] {
                    continue;
                }
                let is_new = count < WAITERS_MAX && !reached[..count].contains(&holder);
                if holder != me.index && !is_new {
                    continue;
                }
                if !self.is_in_the_way(thread, (slot as u32, value), (waiter, holder)).map_err(error_of)? {
                    continue;
                }
                if holder == me.index {
                    return self.are_alive(&reached[..count]);
                }
                reached[count] = holder;
                count += 1;
            }
            at += 1;
        }
        Ok(false)
    }

    /// Whether all these participants live: what a dead one noted means nothing.
    fn are_alive(&self, indexes: &[u32]) -> Result<bool> {
        for id in self.session().participant_ids() {
            if indexes.contains(&id.index) && !self.session().participant_is_alive(id).map_err(error_of)? {
                self.session().reap_dead().map_err(error_of)?;
                return Ok(false);
            }
        }
        Ok(true)
    }
}
