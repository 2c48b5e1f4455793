//! `flock`, POSIX record locks and open-file-description locks.
//!
//! POSIX locks belong to a process, the other two to an open file description. `flock` knows nothing of the other kinds. Who
//! must wait sleeps on its bucket's counter of releases for the record that is in its way, and looks every few milliseconds all the same:
//! those who wake die, and the lock may be a dead process's, whose reaping is then the waiter's work. As long as that record says what it
//! said nothing else is looked at, however many there are.

use gannet_shm::{Ordering, ParticipantId, Thread};
use rustix::thread::futex;
use std::sync::atomic::Ordering::Relaxed;

use super::records::Blocking;
use super::tables::Tables;
use super::users::{RECORDS_FULL, User};
use super::{Description, Shared, error_of};
use crate::{Errno, Error, FileSystem, NodeId, Result, Time};

/// The first and the longest time that a waiter sleeps before it looks at who is alive, in nanoseconds.
const SLEEP_FIRST_NS: u64 = 2_000_000;
const SLEEP_MAX_NS: u64 = 8_000_000;
/// The longest of one that need not look, for another thread of its process does.
const SLEEP_BESIDE_NS: u64 = 64_000_000;

/// The clock that sleeps go by.
fn now_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// The kinds of locks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LockKind {
    /// `F_SETLK`.
    Posix,
    /// `F_OFD_SETLK`.
    OpenFile,
    /// `flock(2)`.
    Flock,
}

/// Whose lock it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LockOwner {
    /// A process's POSIX lock.
    Process(ParticipantId),
    /// An open file description's OFD lock.
    OpenFile(Description),
    /// An open file description's `flock`.
    Flock(Description),
}

impl LockOwner {
    /// The kind of lock that it owns.
    pub const fn kind(&self) -> LockKind {
        match self {
            Self::Process(_) => LockKind::Posix,
            Self::OpenFile(_) => LockKind::OpenFile,
            Self::Flock(_) => LockKind::Flock,
        }
    }
}

/// Bytes of a file, from `start` up to `end`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LockRange {
    /// First byte.
    pub start: u64,
    /// Behind the last byte; [`LockRange::END`] for "to the end of the file, however it grows".
    pub end: u64,
}

impl LockRange {
    /// Behind the last byte that a file can have.
    pub const END: u64 = 1 << 63;
    /// All bytes.
    pub const ALL: Self = Self { start: 0, end: Self::END };

    /// The range of `struct flock`, `l_whence` already added to `start`. `EINVAL` before the beginning, `EOVERFLOW` beyond
    /// the largest offset.
    pub fn new(start: i64, length: i64) -> Result<Self> {
        let invalid = Error::new(Errno::INVAL);
        let overflow = Error::new(Errno::OVERFLOW);
        let (start, end) = match length {
            0 => (start, None),
            1.. => (start, Some(start.checked_add(length - 1).ok_or(overflow)?)),
            _ => (start.checked_add(length).ok_or(invalid)?, Some(start.checked_sub(1).ok_or(invalid)?)),
        };
        let start = u64::try_from(start).map_err(|_| invalid)?;
        Ok(Self { start, end: end.map_or(Self::END, |last| last as u64 + 1) })
    }

    /// Whether the ranges share a byte.
    pub const fn overlaps(self, other: Self) -> bool {
        self.start < other.end && other.start < self.end
    }

    /// Whether the ranges share a byte or lie side by side.
    pub(super) const fn touches(self, other: Self) -> bool {
        self.start <= other.end && other.start <= self.end
    }
}

/// A lock that is asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LockRequest {
    /// The inode.
    pub node: NodeId,
    /// For whom; a description of this inode.
    pub owner: LockOwner,
    /// `Some(true)` exclusive, `Some(false)` shared, `None` to unlock.
    pub exclusive: Option<bool>,
    /// Which bytes; [`LockRange::ALL`] for `flock`.
    pub range: LockRange,
    /// The process id that `F_GETLK` shall tell.
    pub process: u32,
}

/// A lock that stands in the way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LockedBy {
    /// Whose it is.
    pub owner: LockOwner,
    /// Whether it is exclusive.
    pub exclusive: bool,
    /// Which bytes.
    pub range: LockRange,
    /// The process id that it was taken with.
    pub process: u32,
}

impl Shared {
    /// Who owns the POSIX locks of this process.
    pub fn process_owner(&self) -> Result<LockOwner> {
        self.thread()?;
        Ok(LockOwner::Process(self.session().participant()))
    }

    /// `F_GETLK`: the first lock that stands in the way of `request`; if that is to release, the first that its owner has there.
    pub fn test_lock(&self, request: &LockRequest) -> Result<Option<LockedBy>> {
        let thread = self.thread()?;
        let test = || {
            let bucket = self.tables.bucket(request.node.number);
            let guard = thread.lock(bucket.lock())?;
            let found = match request.exclusive {
                Some(_) => self.tables.conflict(&thread, bucket, request),
                None => self.tables.own(&thread, bucket, request),
            }?;
            guard.unlock();
            Ok(found)
        };
        test().map_err(error_of)
    }

    /// The owners of all locks that stand in the way of `request`, some more than once. Of the inode's locks as many are looked at as
    /// `looks` says, which is what is left of it afterwards. Allocates.
    pub fn owners_in_the_way(&self, request: &LockRequest, looks: &mut usize) -> Result<Vec<LockOwner>> {
        let thread = self.thread()?;
        let mut look = || {
            let bucket = self.tables.bucket(request.node.number);
            let guard = thread.lock(bucket.lock())?;
            let mut owners = Vec::new();
            self.tables.conflicts(&thread, bucket, request, looks, |owner| {
                if owners.last() != Some(&owner) {
                    owners.push(owner);
                }
            })?;
            guard.unlock();
            Ok(owners)
        };
        look().map_err(error_of)
    }

    /// Takes or releases a lock at once. `EAGAIN` if another's stands in the way, `ENOLCK` when there are too many.
    pub fn try_lock(&self, fs: &dyn FileSystem, request: &LockRequest) -> Result<()> {
        self.try_lock_for(self.user, fs, request)
    }

    /// [`Shared::try_lock`] for a user that is not this process's: what the table has for that user is taken.
    pub fn try_lock_for(&self, user: User, fs: &dyn FileSystem, request: &LockRequest) -> Result<()> {
        for last in [false, true] {
            let Some(blocker) = self.attempt(user, request, false, None)?.1 else { return Ok(()) };
            if last || !self.reap_blocker(fs, &blocker.by)? {
                break;
            }
        }
        Err(Error::new(Errno::AGAIN))
    }

    /// Takes a lock, waiting for those in the way. `stop` is asked after each waking and may end the wait with `EINTR`.
    /// `EDEADLK` for POSIX locks when processes would wait for each other.
    pub fn lock(&self, fs: &dyn FileSystem, request: &LockRequest, stop: &mut dyn FnMut() -> bool) -> Result<()> {
        self.lock_for(self.user, fs, request, stop)
    }

    /// [`Shared::lock`] for a user that is not this process's: what the table has for that user is taken.
    pub fn lock_for(
        &self,
        user: User,
        fs: &dyn FileSystem,
        request: &LockRequest,
        stop: &mut dyn FnMut() -> bool,
    ) -> Result<()> {
        let thread = self.thread()?;
        let (mut sleep_ns, mut blocking) = (SLEEP_FIRST_NS, None);
        // When it looks who is alive; not put off by what wakes it before.
        let mut until_ns = 0;
        let result = loop {
            let (releases, blocker) = match self.attempt(user, request, true, blocking) {
                Ok(outcome) => outcome,
                Err(error) => break Err(error),
            };
            let Some(blocker) = blocker else { break Ok(()) };
            blocking = Some(blocker);
            self.say_waiting(&thread, request.node, &blocker.by);
            if let (LockOwner::Process(me), LockOwner::Process(other)) = (request.owner, blocker.by.owner) {
                match self.is_circle(&thread, me, other) {
                    Ok(false) => {}
                    Ok(true) => break Err(Error::new(Errno::DEADLK)),
                    Err(error) => break Err(error),
                }
            }
            if stop() {
                break Err(Error::new(Errno::INTR));
            }
            if until_ns == 0 {
                until_ns = now_ns() + sleep_ns;
            }
            let timeout = futex::Timespec {
                tv_sec: (until_ns / 1_000_000_000) as i64,
                tv_nsec: (until_ns % 1_000_000_000) as i64,
            };
            let word = self.tables.bucket(request.node.number).releases(&thread).map_err(error_of)?;
            let group = Tables::group(blocker.record);
            let slept = futex::wait_bitset(word.futex(), futex::Flags::empty(), releases, Some(&timeout), group);
            // Woken, changed before we slept, or interrupted: look again at once. But the locks beside the one in the way can wake it all the time.
            let awake_ns = now_ns();
            if slept == Err(Errno::TIMEDOUT) || awake_ns >= until_ns {
                let looks = self.looks_who_lives(&blocker.by, awake_ns);
                sleep_ns = (sleep_ns * 2).min(if looks { SLEEP_MAX_NS } else { SLEEP_BESIDE_NS });
                until_ns = awake_ns + sleep_ns;
                if looks && let Err(error) = self.reap_blocker(fs, &blocker.by) {
                    break Err(error);
                }
            }
        };
        if blocking.is_some() {
            self.say_not_waiting(&thread);
        }
        if let Ok(word) = self.tables.wait(&thread, thread.slot())
            && word.load(Ordering::Relaxed) != 0
        {
            word.store(0, Ordering::Release);
        }
        result
    }

    /// Whether a waiter that has slept enough must look who is alive. Whoever looks for the owner of a lock that is an open file looks at
    /// all: one thread of a process is enough for that.
    fn looks_who_lives(&self, blocker: &LockedBy, now_ns: u64) -> bool {
        if blocker.owner.kind() == LockKind::Posix {
            return true;
        }
        let looked_at_ns = self.waiters_looked_at_ns.load(Relaxed);
        let is_due = now_ns.saturating_sub(looked_at_ns) >= SLEEP_FIRST_NS;
        is_due && self.waiters_looked_at_ns.compare_exchange(looked_at_ns, now_ns, Relaxed, Relaxed).is_ok()
    }

    /// One attempt: the bucket's counter of releases, and who is in the way; `before` was at the last one.
    pub(super) fn attempt(
        &self,
        user: User,
        request: &LockRequest,
        sleeps: bool,
        before: Option<Blocking>,
    ) -> Result<(u32, Option<Blocking>)> {
        let thread = self.thread()?;
        if let LockOwner::OpenFile(description) | LockOwner::Flock(description) = request.owner
            && self.info(description)?.node != request.node
        {
            // Its locks would not be found when it is closed.
            return Err(Error::because(Errno::INVAL, "a lock for a description of another inode"));
        }
        let count = self.tables.records.count();
        let share = user.share(count);
        let attempt = || {
            let (tables, bucket) = (&self.tables, self.tables.bucket(request.node.number));
            let guard = thread.lock(bucket.lock())?;
            let mut changed = 0;
            let still = match before {
                Some(before) => tables.still_blocks(&thread, request, before.record)?,
                None => None,
            };
            let mut change = || {
                if request.owner.kind() == LockKind::Flock
                    && request.exclusive.is_some()
                    && self.holds_other(&thread, request)?
                {
                    // As flock(2) says, the old lock goes before the new one is waited for.
                    let unlock = LockRequest { exclusive: None, ..*request };
                    tables.change_lock(&thread, bucket, &unlock, &share, &mut changed)?;
                }
                tables.change_lock(&thread, bucket, request, &share, &mut changed)
            };
            let outcome = if still.is_some() { Ok(still) } else { change() };
            let blocker = match outcome {
                Ok(blocker) => blocker,
                Err(error) => {
                    // Without room for the new lock the old one may be gone all the same.
                    let wake = tables.released(&thread, bucket, changed)?;
                    guard.unlock();
                    wake.wake();
                    return Err(error);
                }
            };
            if sleeps && request.owner.kind() == LockKind::Posix {
                self.note_wait(&thread, request, blocker.as_ref())?;
            }
            let wake = tables.released(&thread, bucket, changed)?;
            if let LockOwner::Process(me) = request.owner
                && wake.is_for_somebody()
            {
                self.forget_waits_for(&thread, me)?;
            }
            // Last: what this very attempt let go wakes others only.
            if let Some(blocker) = blocker
                && sleeps
            {
                let sleepers = bucket.sleepers(&thread)?;
                let group = Tables::group(blocker.record).get();
                sleepers.store(sleepers.load(Ordering::Relaxed) | group, Ordering::Relaxed);
            }
            let releases = bucket.releases(&thread)?.load(Ordering::Relaxed);
            guard.unlock();
            wake.wake();
            Ok((releases, blocker))
        };
        attempt().map_err(|error| match error {
            gannet_shm::Error::Full { .. } => Error::because(Errno::NOLCK, user.says(count, &RECORDS_FULL)),
            error => error_of(error),
        })
    }

    /// Whether the owner has a lock of the other type already.
    fn holds_other(&self, thread: &Thread<'_>, request: &LockRequest) -> gannet_shm::Result<bool> {
        let mut found = false;
        self.tables.records_in(thread, self.tables.bucket(request.node.number), |_, _, record| {
            found |= record.node == request.node
                && record.owner == request.owner
                && Some(record.exclusive) != request.exclusive;
            Ok(!found)
        })?;
        Ok(found)
    }

    /// If the owner of a lock in the way is dead, or may be, settles what the dead left; says whether another attempt is worth it.
    fn reap_blocker(&self, fs: &dyn FileSystem, blocker: &LockedBy) -> Result<bool> {
        let dead = match blocker.owner {
            LockOwner::Process(id) => !self.session().participant_is_alive(id).map_err(error_of)?,
            // Nobody in particular: look at all.
            LockOwner::OpenFile(_) | LockOwner::Flock(_) => true,
        };
        if !dead {
            return Ok(false);
        }
        self.session().reap_dead().map_err(error_of)?;
        self.sweep_if_wanted(&self.thread()?, fs)?;
        // Also if nobody was settled here: another may have done it since the lock was met, or its owner left in order.
        Ok(true)
    }

    /// Releases all POSIX locks of this process on an inode, as closing any descriptor of it does.
    pub fn unlock_process(&self, node: NodeId) -> Result<()> {
        let thread = self.thread()?;
        let me = self.session().participant();
        let unlock = || {
            let bucket = self.tables.bucket(node.number);
            let guard = thread.lock(bucket.lock())?;
            let groups = self.tables.void_records(&thread, bucket, |record| {
                record.node == node && record.owner == LockOwner::Process(me)
            })?;
            let wake = self.tables.released(&thread, bucket, groups)?;
            if wake.is_for_somebody() {
                self.forget_waits_for(&thread, me)?;
            }
            guard.unlock();
            wake.wake();
            Ok(())
        };
        unlock().map_err(error_of)
    }

    /// Whether a participant has POSIX locks.
    pub fn has_process_locks(&self, who: ParticipantId) -> Result<bool> {
        let thread = self.thread()?;
        let look = || -> gannet_shm::Result<bool> {
            for reference in self.tables.records.live(thread.arena())? {
                let record = self.tables.load_record(&thread, self.tables.records.object(reference)?).ok().flatten();
                if record.is_some_and(|record| record.owner == LockOwner::Process(who)) {
                    return Ok(true);
                }
            }
            Ok(false)
        };
        look().map_err(error_of)
    }

    /// Makes the POSIX locks of one participant another's: a process that executes a program is two of them, one after the other, and
    /// keeps its locks. Where the caller is killed in between, what was moved is the other's.
    pub fn move_process_locks(&self, from: ParticipantId, to: ParticipantId) -> Result<()> {
        let thread = self.thread()?;
        let tables = &self.tables;
        let move_all = || -> gannet_shm::Result<()> {
            for reference in tables.records.live(thread.arena())? {
                let bucket = tables.bucket(tables.node(&thread, tables.records.object(reference)?)?.number);
                let guard = thread.lock(bucket.lock())?;
                tables.records_in(&thread, bucket, |_, object, record| {
                    if record.owner == LockOwner::Process(from) {
                        tables.set_process(&thread, object, to)?;
                    }
                    Ok(true)
                })?;
                guard.unlock();
            }
            Ok(())
        };
        move_all().map_err(error_of)
    }

    /// All locks, and since when, for people who want to know who holds what. Allocates.
    pub fn locks(&self) -> Result<Vec<(NodeId, LockedBy, Time)>> {
        let thread = self.thread()?;
        let list = || -> gannet_shm::Result<Vec<(NodeId, LockedBy, Time)>> {
            let mut locks = Vec::new();
            for reference in self.tables.records.live(thread.arena())? {
                let object = self.tables.records.object(reference)?;
                let guard = thread.lock(self.tables.bucket(self.tables.node(&thread, object)?.number).lock())?;
                let record = self.tables.load_record(&thread, object)?;
                if let (Some(record), true) = (record, self.tables.records.is_live(thread.arena(), reference)?) {
                    let super::records::Record { node, owner, exclusive, range, process, since, .. } = record;
                    locks.push((node, LockedBy { owner, exclusive, range, process }, Time(since)));
                }
                guard.unlock();
            }
            Ok(locks)
        };
        list().map_err(error_of)
    }

    /// How many lock records there are, those included that a dead thread left void.
    pub fn records(&self) -> Result<usize> {
        let thread = self.thread()?;
        Ok(self.tables.records.live(thread.arena()).map_err(error_of)?.count())
    }
}

#[cfg(test)]
mod tests;
