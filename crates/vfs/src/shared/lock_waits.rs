//! Who waits for a lock on a file: each thread says so in words of its own, for people who look; and who has the open file that holds one.
//! Nothing is decided by it.
//!
//! | word | content |
//! | --- | --- |
//! | 0 | since when, nanoseconds since 1970; 0 while it waits for none. Stored last, cleared first |
//! | 1 | number of the inode |
//! | 2 | process that a lock in the way was taken with |

use super::{Description, LockedBy, Shared, error_of};
use crate::{NodeId, Result, Time};
use gannet_shm::{Ordering, ParticipantId, Thread, ThreadInfo, Word};

/// Words of each thread.
pub(super) const WAIT_WORDS: u64 = 4;
const SINCE: usize = 0;
const INODE: usize = 1;
const HOLDER: usize = 2;

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
