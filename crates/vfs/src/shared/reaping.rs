//! What becomes of the dead: of threads that died inside an operation, and of processes.
//!
//! A dead thread: objects that it was making or taking apart leave their chains and are freed; changes of lock records in
//! buckets that it had locked are completed; a description that it was closing is live again, and a sweep is asked for. A process that is gone:
//! its bit goes from all descriptions, its POSIX locks go, and a sweep is asked for where something lost its last user.

use gannet_shm::{AfterDeath, DeadThread, GoneParticipant, Ordering, Reaper, Result, Thread};

use super::file_locks::LockOwner;
use super::records::Groups;
use super::tables::{Bucket, Chain, Tables};
use super::{Shared, error_of};
use crate::FileSystem;

/// How often a process looks for dead ones by itself, in nanoseconds.
const LOOK_EVERY_NS: u64 = 1_000_000_000;

/// Settles descriptions and records.
#[derive(Debug)]
pub(super) struct SharedReaper(pub(super) Tables);

impl Reaper for SharedReaper {
    fn settle(&self, dead: &DeadThread<'_>) -> Result<()> {
        let (tables, thread) = (&self.0, dead.reaper());
        for chain in [Chain::Descriptions, Chain::Records] {
            tables.slab(chain).settle_or_revive(dead, |held| {
                if chain == Chain::Descriptions && held.was_live {
                    // Closed, but the file system may not have been told: who sweeps does. A sweep looks at all objects, linked or not.
                    tables.want_sweep(&thread)?;
                    return Ok(AfterDeath::Live);
                }
                let bucket = tables.bucket(tables.node(&thread, held.at)?.number);
                // It can be in a chain only if the chain's bucket was locked.
                if dead.holds(bucket.lock()) {
                    tables.unlink(&thread, bucket, chain, held.reference)?;
                }
                Ok(AfterDeath::Freed)
            })?;
        }
        for bucket in dead.locks().filter_map(|lock| tables.bucket_of_lock(lock)) {
            tables.settle_records(&thread, bucket)?;
            tables.want_sweep(&thread)?;
            // Whomever it would have woken.
            tables.released(&thread, bucket, Groups::MAX)?.wake();
        }
        tables.wait(&thread, dead.slot())?.store(0, Ordering::Release);
        // Where there is no memory for it, it said nothing.
        if let Ok(words) = tables.lock_wait(&thread, dead.slot()) {
            words.iter().for_each(|word| word.store(0, Ordering::Release));
        }
        Ok(())
    }

    fn participant_gone(&self, gone: &GoneParticipant<'_>) -> Result<()> {
        let tables = &self.0;
        tables.forget_participant(&gone.reaper, gone.info.id.index)?;
        let is_theirs = |owner: &LockOwner| matches!(owner, LockOwner::Process(id) if id.index == gone.info.id.index);
        let mut last = None;
        for reference in tables.records.live(gone.reaper.arena())? {
            let object = tables.records.object(reference)?;
            let bucket = tables.bucket(tables.node(&gone.reaper, object)?.number);
            let theirs = tables.load_record(&gone.reaper, object).ok().flatten().is_some_and(|r| is_theirs(&r.owner));
            if theirs && last != Some(bucket) {
                tables.void_and_wake(&gone.reaper, bucket, |owner| is_theirs(owner))?;
                last = Some(bucket);
            }
        }
        Ok(())
    }
}

impl Tables {
    fn void_and_wake(&self, thread: &Thread<'_>, bucket: Bucket, gone: impl Fn(&LockOwner) -> bool) -> Result<()> {
        let guard = thread.lock(bucket.lock())?;
        let groups = self.void_records(thread, bucket, |record| gone(&record.owner))?;
        let wake = self.released(thread, bucket, groups)?;
        guard.unlock();
        wake.wake();
        Ok(())
    }

    /// Clears a participant's bit everywhere; asks for a sweep where it was the last.
    pub(super) fn forget_participant(&self, thread: &Thread<'_>, index: u32) -> Result<()> {
        for reference in self.descriptions.live(thread.arena())? {
            let object = self.descriptions.object(reference)?;
            let (word, bit) = self.user(thread, object, index)?;
            if word.load(Ordering::Acquire) & bit == 0 {
                continue;
            }
            let guard = thread.lock(self.bucket(self.node(thread, object)?.number).lock())?;
            if self.descriptions.is_live(thread.arena(), reference)? {
                // The wish first: a reaper that dies in between leaves nothing that nobody looks for.
                self.want_sweep(thread)?;
                word.store(word.load(Ordering::Relaxed) & !bit, Ordering::Release);
            }
            guard.unlock();
        }
        Ok(())
    }
}

impl Shared {
    /// Nobody uses any description any more, and none is in transit: the last process leaves, and the arena ends with it.
    /// Calls `each` with the inode of every description, which is not [in use](Shared::in_use) from then on.
    pub fn forget_everybody(&self, each: &mut dyn FnMut(crate::NodeId)) -> crate::Result<()> {
        let thread = self.thread()?;
        let tables = &self.tables;
        let forget = |reference| -> Result<crate::NodeId> {
            let object = tables.descriptions.object(reference)?;
            let node = tables.node(&thread, object)?;
            let guard = thread.lock(tables.bucket(node.number).lock())?;
            tables.column(&thread, object)?.iter().for_each(|word| word.store(0, Ordering::Release));
            thread.word(object.add(super::tables::description::EXTERNAL))?.store(0, Ordering::Release);
            guard.unlock();
            Ok(node)
        };
        for reference in tables.descriptions.live(thread.arena()).map_err(error_of)? {
            each(forget(reference).map_err(error_of)?);
        }
        Ok(())
    }

    /// Whether anybody uses any description. For who comes after all others were killed, and has settled what they left: whether one is in transit.
    pub fn is_used(&self) -> crate::Result<bool> {
        let thread = self.thread()?;
        let tables = &self.tables;
        for reference in tables.descriptions.live(thread.arena()).map_err(error_of)? {
            let object = tables.descriptions.object(reference).map_err(error_of)?;
            if tables.is_used(&thread, object).map_err(error_of)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Settles what dead processes and threads left, and frees what nobody uses any more.
    pub fn reap(&self, fs: &dyn FileSystem) -> crate::Result<()> {
        self.session().reap_dead().map_err(error_of)?;
        self.sweep_if_wanted(&self.thread()?, fs)
    }

    /// What is to be done now and then: a sweep if one is wanted, and a look for the dead once a second. What somebody else's owner cannot settle
    /// is no reason to refuse what is asked for here: whoever wants what the dead had meets it.
    pub(super) fn housekeep(&self, thread: &Thread<'_>, fs: &dyn FileSystem) -> crate::Result<()> {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::MonotonicCoarse);
        let now_ns = now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64;
        let looked_at_ns = self.looked_at_ns.load(std::sync::atomic::Ordering::Relaxed);
        if now_ns.saturating_sub(looked_at_ns) > LOOK_EVERY_NS {
            self.looked_at_ns.store(now_ns, std::sync::atomic::Ordering::Relaxed);
            if looked_at_ns != 0 {
                match self.session().reap_dead() {
                    Ok(_) | Err(gannet_shm::Error::Owner(_)) => {}
                    Err(error) => return Err(error_of(error)),
                }
            }
        }
        let _ = self.sweep_if_wanted(thread, fs);
        Ok(())
    }
}
