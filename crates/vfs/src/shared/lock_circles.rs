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
/// How many circles that come apart while they are looked at are followed by another search.
const SEARCHES_MAX: usize = 8;

/// What a thread notes of whom its process waits for.
fn note_of(waiter: u32, holder: u32) -> u64 {
    1 << 63 | u64::from(waiter) << 16 | u64::from(holder)
}

/// A process that waits for another.
#[derive(Clone, Copy)]
struct Link {
    /// The slot of its thread, and what that noted.
    wait: (u32, u64),
    /// It, and whom it waits for.
    of: (u32, u32),
    /// The place of the link by which it was reached.
    before: usize,
}

/// Whether all links hold that lead to the one at `at`; asked from the last to the first.
fn hold_all(reached: &[Link], mut at: usize, holds: impl Fn(&Link) -> Result<bool>) -> Result<bool> {
    loop {
        if !holds(&reached[at])? {
            return Ok(false);
        }
        if at == 0 {
            return Ok(true);
        }
        // It was reached before.
        at = reached[at].before;
    }
}

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
                note_of(me.index, other.index)
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
    ///
    /// They were looked at one after another: the holder at one link may have let go, and then come to wait at the next. So a circle is looked at
    /// again, from its end. Whoever waits lets nothing go, unless it has several threads: what holds then holds until all has been seen.
    pub(super) fn is_circle(&self, thread: &Thread<'_>, me: ParticipantId, other: ParticipantId) -> Result<bool> {
        for _ in 0..SEARCHES_MAX {
            if let Some(is_circle) = self.search_circle(thread, me, other)? {
                return Ok(is_circle);
            }
        }
        Ok(false)
    }

    /// One search; nothing if it found a circle that came apart meanwhile: a process may have been reached by a link of it, and be in another one
    /// by a link that was not followed for that.
    fn search_circle(&self, thread: &Thread<'_>, me: ParticipantId, other: ParticipantId) -> Result<Option<bool>> {
        let waits = self.tables.waits(thread).map_err(error_of)?;
        let holds = |link: &Link| self.is_in_the_way(thread, link.wait, link.of).map_err(error_of);
        let first =
            Link { wait: (thread.slot(), note_of(me.index, other.index)), of: (me.index, other.index), before: 0 };
        // The link by which each was reached, whose holder it is.
        let mut reached = [first; WAITERS_MAX];
        let (mut count, mut at) = (1, 0);
        while at < count {
            for (slot, word) in waits.iter().enumerate() {
                let value = word.load(Ordering::SeqCst);
                let (waiter, holder) = ((value >> 16) as u32 & 0xFFFF, value as u32 & 0xFFFF);
                if value >> 63 == 0 || waiter != reached[at].of.1 {
                    continue;
                }
                let is_new = count < WAITERS_MAX && !reached[..count].iter().any(|link| link.of.1 == holder);
                if holder != me.index && !is_new {
                    continue;
                }
                let link = Link { wait: (slot as u32, value), of: (waiter, holder), before: at };
                if !holds(&link)? {
                    continue;
                }
                if holder == me.index {
                    if !hold_all(&reached[..count], at, holds)? {
                        return Ok(None);
                    }
                    let reached = reached.map(|link| link.of.1);
                    return self.are_alive(&reached[..count]).map(Some);
                }
                reached[count] = link;
                count += 1;
            }
            at += 1;
        }
        Ok(Some(false))
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

#[cfg(test)]
mod tests {
    use super::super::users::User;
    use super::super::{LockRange, SharedLimits};
    use super::*;
    use crate::NodeId;
    use std::sync::{Barrier, mpsc};

    const PROCESSES: u32 = 4;

    fn process(index: u32) -> ParticipantId {
        ParticipantId { index: index % PROCESSES, generation: 0 }
    }

    /// Of an inode for each process.
    fn whole(owner: u32, inode: u32, exclusive: Option<bool>) -> LockRequest {
        let (node, owner) = (NodeId::new(u64::from(inode % PROCESSES) + 1, 1), LockOwner::Process(process(owner)));
        LockRequest { node, owner, exclusive, range: LockRange::ALL, process: 1 }
    }

    /// Each has the lock that the one before it waits for. While the first looks, and is held up behind a link, `meanwhile` happens.
    fn is_found_with(held_up_at: u32, meanwhile: impl FnOnce(&Shared)) -> bool {
        let limits = SharedLimits { participants: 8, threads: 16, descriptions: 64, records: 64 };
        let shared = Shared::private(&limits).unwrap();
        let shared = &*shared;
        for owner in 0..PROCESSES {
            assert!(shared.attempt(User::new(0), &whole(owner, owner, Some(true)), false, None).unwrap().1.is_none());
        }
        let wait = |owner: u32| {
            assert!(
                shared.attempt(User::new(0), &whole(owner, owner + 1, Some(true)), true, None).unwrap().1.is_some()
            );
        };
        let (have_noted, is_over) = (Barrier::new(PROCESSES as usize + 1), Barrier::new(PROCESSES as usize));
        let (go_on, told) = mpsc::channel::<()>();
        std::thread::scope(|scope| {
            for owner in 1..PROCESSES {
                let (have_noted, is_over) = (&have_noted, &is_over);
                scope.spawn(move || {
                    wait(owner);
                    have_noted.wait();
                    // As long as its thread lives its note stands.
                    is_over.wait();
                });
            }
            let have_noted = &have_noted;
            let first = scope.spawn(move || {
                wait(0);
                have_noted.wait();
                told.recv().unwrap();
                shared.is_circle(&shared.thread().unwrap(), process(0), process(1)).unwrap()
            });
            have_noted.wait();
            let thread = shared.thread().unwrap();
            let bucket = shared.tables.bucket(whole(0, held_up_at, None).node.number);
            let guard = thread.lock(bucket.lock()).unwrap();
            go_on.send(()).unwrap();
            while shared.session().waiting().is_empty() {
                std::thread::yield_now();
            }
            meanwhile(shared);
            guard.unlock();
            let is_circle = first.join().unwrap();
            is_over.wait();
            is_circle
        })
    }

    /// What the second waits for the third lets go, once that link has been seen; or the second what the first waits for.
    #[test]
    fn a_circle_of_links_that_did_not_hold_together_is_none() {
        assert!(is_found_with(3, |_| {}), "all wait");
        for lets_go in [1, 2] {
            let unlock = |shared: &Shared| {
                shared.attempt(User::new(0), &whole(lets_go, lets_go, None), false, None).unwrap();
            };
            assert!(!is_found_with(3, unlock), "{lets_go} has let go");
        }
    }
}
