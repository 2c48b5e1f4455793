//! What the users of a file system share besides its files: open file descriptions and locks on files.
//!
//! For: front ends, which open, close and lock, and file systems, which ask whether an inode without names is
//! [in use](Shared::in_use). All of it lives in an arena of `shm` and in nothing else: the volume's, or a private one for
//! a file system without a volume. It knows inodes by [`NodeId`] only and calls a file system only through the trait.
//!
//! **Who uses a description** is a set of bits, one for each participant (process), in the description itself. Setting and
//! clearing are single stores under the bucket's lock, so there is no count that a kill could leave wrong; when a participant
//! is gone, its bit is cleared everywhere. A process that has several descriptors for one description keeps that count to itself.
//!
//! **Order of locks.** A description's offset lock comes before all locks of a file system; a bucket's lock comes after all of
//! them, and whoever holds it waits for nothing and calls nobody.
//!
//! | file | what |
//! | --- | --- |
//! | `tables.rs` | where everything stands in the arena: buckets, descriptions, records |
//! | `description.rs` | open, close, adopt, who uses an inode |
//! | `offset.rs` | the shared offset and the status flags |
//! | `records.rs` | sorted lists of lock records: conflicts, what goes with its owner |
//! | `record_changes.rs` | changes of locks that a kill can interrupt |
//! | `file_locks.rs` | `flock`, POSIX and OFD locks: waiting |
//! | `lock_circles.rs` | processes that wait for each other |
//! | `lock_waits.rs` | who waits for one of these, for people |
//! | `over_exec.rs` | what a process keeps over an exec |
//! | `caching.rs` | whether a front end's clients may remember |
//! | `running.rs` | which inodes may be running programs |
//! | `users.rs` | how much of it one user may take |
//! | `reaping.rs` | what becomes of the dead |

mod caching;
mod description;
mod file_locks;
mod inode_users;
mod lock_circles;
mod lock_waits;
mod offset;
mod over_exec;
mod place;
mod reaping;
mod record_changes;
mod records;
mod running;
mod tables;
mod users;

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use gannet_shm::{ArenaLayout, ReapStage, Recent, Session, Thread};

use crate::{Errno, Error, Result};

pub use caching::{CachingState, CachingTerms};
pub use description::{AccessMode, Description, DescriptionInfo};
pub use file_locks::{LockKind, LockOwner, LockRange, LockRequest, LockedBy};
pub use gannet_shm as shm;
pub use inode_users::InodeUsers;
pub use lock_waits::LockWait;
pub use offset::OffsetGuard;
pub use place::Place;
pub use users::User;

use reaping::SharedReaper;
use tables::Tables;

/// How much a [`Shared`] has room for. All processes that open a volume must say the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedLimits {
    /// Processes, as in the arena's layout.
    pub participants: u32,
    /// Threads, as in the arena's layout.
    pub threads: u32,
    /// Open file descriptions.
    pub descriptions: u32,
    /// Lock records.
    pub records: u32,
}

impl Default for SharedLimits {
    fn default() -> Self {
        Self {
            participants: gannet_shm::PARTICIPANTS_DEFAULT,
            threads: gannet_shm::THREADS_DEFAULT,
            descriptions: DESCRIPTIONS,
            records: RECORDS,
        }
    }
}

const DESCRIPTIONS: u32 = 1 << 17;
const RECORDS: u32 = 1 << 16;
/// Open file descriptions and file locks of one arena.
#[derive(Debug)]
pub struct Shared {
    session: Arc<Session>,
    tables: Tables,
    /// For whom a file is opened, or a lock taken, where nobody else is named: who began with the arena.
    user: User,
    /// Descriptions that this process freed last.
    recent: Recent,
    /// When this process last looked for dead ones, in nanoseconds of the coarse clock.
    looked_at_ns: AtomicU64,
    /// When one of its threads that wait for locks last did, by the clock that sleeps go by.
    waiters_looked_at_ns: AtomicU64,
}

impl Shared {
    /// Adds what `limits` need to an arena's layout, which must have the same bounds on processes and threads.
    pub fn layout(layout: ArenaLayout, limits: &SharedLimits) -> ArenaLayout {
        Tables::layout(layout, limits)
    }

    /// The descriptions and locks in the arena of `session`, whose layout [`Shared::layout`] made with the same limits. Registers
    /// what settles the dead: before the session is used by other threads. `ENOMEM` when memory is short.
    pub fn new(session: Arc<Session>, limits: &SharedLimits) -> Result<Arc<Self>> {
        let tables = Tables::new(&session, limits).map_err(error_of)?;
        session.register_reaper(ReapStage::Hands, Arc::new(SharedReaper(tables.clone())));
        Ok(Arc::new(Self {
            session,
            tables,
            user: User::of_process(),
            recent: Recent::default(),
            looked_at_ns: AtomicU64::new(0),
            waiters_looked_at_ns: AtomicU64::new(0),
        }))
    }

    /// The same in an arena of its own, which only this process and children forked from it reach.
    pub fn private(limits: &SharedLimits) -> Result<Arc<Self>> {
        let layout = ArenaLayout::new().limits(limits.participants, limits.threads);
        let session = Session::private(&Self::layout(layout, limits)).map_err(error_of)?;
        Self::new(session, limits)
    }

    /// The session of the arena.
    pub fn session(&self) -> &Arc<Session> {
        &self.session
    }

    /// Whether the calling thread has a place among those that use the file system, or gets one now: `ENOMEM` where all are taken.
    pub fn check_thread(&self) -> Result<()> {
        self.thread().map(drop)
    }

    #[inline]
    pub(crate) fn thread(&self) -> Result<Thread<'_>> {
        self.session.thread().map_err(error_of)
    }
}

/// What an error of the shared state means to a caller.
pub(crate) fn error_of(error: gannet_shm::Error) -> Error {
    use gannet_shm::Error as Shm;
    match error {
        Shm::System { errno, .. } => Error::because(errno, "shared state"),
        Shm::Corrupt { what, at } => Error::damaged(what, at),
        Shm::OutOfBounds { at, .. } => Error::damaged("an offset in the shared state", at),
        Shm::Full { what } => Error::because(Errno::NOMEM, what),
        Shm::Owner(inner) => inner
            .downcast_ref::<Error>()
            .copied()
            .unwrap_or(Error::because(Errno::IO, "an owner of shared state failed")),
        Shm::Detached => Error::because(Errno::NODEV, "the volume is no longer attached"),
        _ => Error::because(Errno::IO, "shared state"),
    }
}
