//! [`LogFs`]: a volume that this process has open: opened and closed, its counters, and how operations are run. `file_system` has its operations.

use crate::attach::{self, AttachOptions};
use crate::counters::{Counter, VolumeCounters};
use crate::disk::Disk;
use crate::opening::OpenError;
use crate::ops::{Core, Op, shared_error};
use crate::places::CONTROL_TAKEOVERS;
use crate::recount::Recounted;
use crate::recover::RecoveryReport;
use crate::samples::{Operation, OperationCounters};
use crate::span::{self, Demand};
use crate::volume_guard::FileGuard;
use gannet_media::Medium;
use gannet_shm::{Detached, Session};
use gannet_vfs::shared::Shared;
use gannet_vfs::{Errno, Error, FileSystem, Result};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// A volume, open in this process.
pub struct LogFs {
    pub(crate) core: Arc<Core>,
    pub(crate) session: Arc<Session>,
    pub(crate) shared: Arc<Shared>,
    guard: Mutex<Option<FileGuard>>,
    report: Option<RecoveryReport>,
    /// When this process last settled what killed users left because it found no space, by the coarse monotonic clock; 0 for never.
    reclaimed_ms: AtomicU64,
    /// Until when it does not count again what is free.
    recounts_from_ms: AtomicU64,
}

/// How long nobody settles the dead for want of space after somebody did.
const RECLAIM_PAUSE_MS: u64 = 10;
/// How long nobody counts for want of space what is free, in times of what that took.
const RECOUNT_PAUSES: u64 = 20;
/// How long one waits who needs what another's count may find.
const RECOUNT_OF_OTHERS_MS: u64 = 2000;

/// Memory that the state shared by all processes of a volume takes, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SharedMemory {
    /// All of it, as the system counts; 0 for a volume that one process has alone.
    pub bytes: u64,
    /// For indexes.
    pub index_bytes: u64,
    /// The bound on that.
    pub index_bytes_max: u64,
    /// How many indexes were dropped to make room for others.
    pub indexes_dropped: u64,
}

impl LogFs {
    /// Opens the volume at `path`, joining whoever has it open.
    pub fn open(path: &Path, read_only: bool, options: AttachOptions) -> std::result::Result<Self, OpenError> {
        let text = || path.display().to_string();
        let volume_error = |error: Error| OpenError::Volume { path: text(), error };
        let (medium, superblock) = span::open(path, read_only, Demand::Sound)?;
        let disk =
            superblock.and_then(|superblock| Disk::with_superblock(medium, superblock)).and_then(Disk::if_usable);
        let disk = disk.map_err(volume_error)?.in_its_mode();
        let identity = attach::identity(&disk);
        let layout = attach::arena_layout(disk.geometry(), options.index_bytes_max);
        let (disk, options) = (Some(disk), Some(options));
        let mut guard = FileGuard { disk, options, core: None, shared: None, report: None, distrusts_maps: false };
        let session = Session::attach(identity, &layout, &mut guard).map_err(|error| match error {
            gannet_shm::Error::Owner(_) => volume_error(shared_error(error)),
            error => OpenError::Shared { path: text(), error },
        })?;
        let incomplete = || volume_error(Error::because(Errno::IO, "attaching did not complete"));
        let core = guard.core.clone().ok_or_else(incomplete)?;
        let shared = guard.shared.clone().ok_or_else(incomplete)?;
        let report = guard.report;
        Ok(Self {
            core,
            session,
            shared,
            guard: Mutex::new(Some(guard)),
            report,
            reclaimed_ms: AtomicU64::new(0),
            recounts_from_ms: AtomicU64::new(0),
        })
    }

    /// Opens a volume on a medium that this process alone has: a simulated one, or memory. Nothing is saved at the end
    /// unless [`LogFs::detach`] is called.
    pub fn open_private(medium: Medium, options: AttachOptions) -> Result<Self> {
        let disk = Disk::open(medium)?.if_usable()?;
        let layout = attach::arena_layout(disk.geometry(), options.index_bytes_max);
        let session = Session::private(&layout).map_err(shared_error)?;
        let threads = options.threads;
        let (core, shared) = attach::assemble(disk, &session, options)?;
        let report = attach::open_first(&core, &session, attach::arena_of(&session), threads, true)?;
        Ok(Self {
            core,
            session,
            shared,
            guard: Mutex::new(None),
            report,
            reclaimed_ms: AtomicU64::new(0),
            recounts_from_ms: AtomicU64::new(0),
        })
    }

    #[cfg(test)]
    pub(crate) fn parts(&self) -> (&Core, &Session) {
        (&self.core, &self.session)
    }

    /// What crash recovery did when this process opened the volume; `None` if there was none.
    pub fn recovery(&self) -> Option<RecoveryReport> {
        self.report
    }

    /// The session, for those who keep objects in its arena.
    pub fn session(&self) -> &Arc<Session> {
        &self.session
    }

    /// How many dead threads were settled since the volume was opened.
    pub fn takeovers(&self) -> Result<u64> {
        self.op()?.control(CONTROL_TAKEOVERS)
    }

    /// Finds what killed users have lost, as who opens the volume alone does, while others work, and frees it: blocks and inode numbers that
    /// count as used and are nobody's. `None` if somebody else is at that. Reads all logs, each under its inode's lock. It is done by itself where
    /// the volume is full and somebody was killed since it was done last.
    ///
    /// # Errors
    /// `EROFS` for who only reads; `EBUSY` if a user keeps a lock for a tenth of a second, as one does who is stopped; those of damaged logs; `ENOSPC`
    /// if there is no memory in `/dev/shm` for it. Nothing is lost then, and it can be done again.
    pub fn recount(&self) -> Result<Option<Recounted>> {
        if self.is_read_only() {
            return Err(Error::new(Errno::ROFS));
        }
        self.session.reap_dead().map_err(shared_error)?;
        self.op()?.recount()
    }

    /// Leaves the volume; the last to leave saves the maps of free space and marks it clean. Idempotent.
    pub fn detach(&self) -> Result<bool> {
        let mut slot = self.guard.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        match slot.take() {
            Some(mut guard) => match self.session.detach(&mut guard) {
                Ok(Detached::Last) => Ok(true),
                Ok(Detached::OthersRemain) => Ok(false),
                Err(error) => {
                    // It did not come as far as leaving, and can be tried again.
                    *slot = Some(guard).filter(|_| self.session.has_joined());
                    Err(shared_error(error))
                }
            },
            None if self.session.path().is_none() => {
                attach::close_last(&self.core, &self.session, Some(&self.shared)).map(|()| true)
            }
            None => Ok(false),
        }
    }

    /// What all processes have done on the volume since the first of them opened it.
    pub fn counters(&self) -> Result<VolumeCounters> {
        self.op()?.counters()
    }

    /// The same by operation, with how long calls took.
    pub fn operations(&self) -> Result<Vec<OperationCounters>> {
        self.op()?.operations()
    }

    /// What a lock that somebody waits for protects, for people.
    pub fn lock_text(&self, lock: gannet_shm::ArenaOffset) -> String {
        self.core.places.lock_text(lock)
    }

    /// What the state shared by all processes takes.
    pub fn memory(&self) -> Result<SharedMemory> {
        let op = self.op()?;
        let pool = op.node_pool();
        let (backed, indexes_dropped) = pool.usage();
        let node_bytes = crate::index::NODE_WORDS as u64 * 8;
        Ok(SharedMemory {
            bytes: self.session.arena().memory_bytes(),
            index_bytes: backed * node_bytes,
            index_bytes_max: pool.capacity() * node_bytes,
            indexes_dropped,
        })
    }

    /// Runs an operation that changes something, and counts it.
    #[inline]
    pub(crate) fn change<T>(&self, operation: Operation, run: impl Fn(&Op<'_>) -> Result<T>) -> Result<T> {
        self.with_space(|| {
            let op = self.op()?;
            op.core.is_as_opened()?;
            let before = gannet_media::counters_thread();
            let outcome = op.counted(operation, &run);
            op.count(Counter::Changes, 1);
            op.count_medium(before);
            outcome
        })
    }

    /// Makes an attempt, and where it finds no space another one if killed users may have left some.
    #[inline]
    pub(crate) fn with_space<T>(&self, mut attempt: impl FnMut() -> Result<T>) -> Result<T> {
        match attempt() {
            Err(error) if error.errno() == Errno::NOSPC => self.attempt_again(&mut attempt, error),
            outcome => outcome,
        }
    }

    #[cold]
    #[inline(never)]
    pub(crate) fn attempt_again<T>(&self, attempt: &mut dyn FnMut() -> Result<T>, error: Error) -> Result<T> {
        if self.reclaim() | self.find_lost() { attempt() } else { Err(error) }
    }

    /// Settles what killed users have left, which may be files without names that only they had open. Returns whether that was done now: it was
    /// not if it was done a moment ago. The caller holds no lock.
    #[cold]
    #[inline(never)]
    pub(crate) fn reclaim(&self) -> bool {
        let now_ms = coarse_ms();
        let last_ms = self.reclaimed_ms.load(Ordering::Relaxed);
        let is_due = last_ms == 0 || now_ms.saturating_sub(last_ms) >= RECLAIM_PAUSE_MS;
        // One thread, and not again from in here.
        is_due
            && !self.is_read_only()
            && self.reclaimed_ms.compare_exchange(last_ms, now_ms, Ordering::Relaxed, Ordering::Relaxed).is_ok()
            && self.shared.reap(self).is_ok()
    }

    /// Counts what is free, if somebody was killed since that was done last, and it was not done a moment ago. Returns whether anything was
    /// lost and is free now. The caller holds no lock.
    fn find_lost(&self) -> bool {
        let began_ms = coarse_ms();
        if began_ms < self.recounts_from_ms.load(Ordering::Relaxed)
            || !self.op().and_then(|op| op.may_have_lost()).unwrap_or(false)
        {
            return false;
        }
        let is_found = match self.recount() {
            Ok(None) => self.await_recount(),
            found => found.is_ok_and(|found| found != Some(Recounted::default())),
        };
        let ended_ms = coarse_ms();
        self.recounts_from_ms.store(ended_ms + RECOUNT_PAUSES * (ended_ms - began_ms + 1), Ordering::Relaxed);
        is_found
    }

    /// Waits for who counts at this moment: what he finds is free for all.
    fn await_recount(&self) -> bool {
        let until_ms = coarse_ms() + RECOUNT_OF_OTHERS_MS;
        while coarse_ms() < until_ms && self.op().and_then(|op| op.is_recounting()).unwrap_or(false) {
            crate::pause::pause(Duration::from_millis(1));
        }
        true
    }

    /// Runs an operation that changes nothing, and counts it.
    #[inline(always)]
    pub(crate) fn look<T>(&self, operation: Operation, run: impl FnOnce(&Op<'_>) -> Result<T>) -> Result<T> {
        self.op()?.counted(operation, run)
    }

    #[inline(always)]
    pub(crate) fn op(&self) -> Result<Op<'_>> {
        match self.session.thread() {
            Ok(thread) => Op::begin(&self.core, thread),
            Err(error) => Err(shared_error(error)),
        }
    }
}

/// The coarse monotonic clock, in milliseconds.
fn coarse_ms() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::MonotonicCoarse);
    now.tv_sec as u64 * 1000 + now.tv_nsec as u64 / 1_000_000
}

impl Drop for LogFs {
    fn drop(&mut self) {
        let open = self.guard.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).is_some();
        if open {
            // A failure leaves the volume unclean: the next attach recovers it.
            let _ = self.detach();
        }
    }
}
