//! What can go wrong, said so that the user knows what to do.

use crate::layout::ArenaOffset;
use rustix::io::Errno;
use std::sync::Arc;

/// Result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// Errors of shared state.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A system call failed.
    #[error("{doing}: {errno}")]
    System {
        /// What was being done.
        doing: &'static str,
        /// The kernel's answer.
        errno: Errno,
    },
    /// Something that is not ours stands where the arena of this volume belongs.
    #[error("{path}: not an arena of this user ({why}); remove it if nobody uses the volume")]
    Foreign {
        /// Where it stands.
        path: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// The processes that have the volume open run another version of Gannet.
    #[error("{path}: the volume is open in processes of another version of Gannet; end them first")]
    OtherVersion {
        /// The arena.
        path: String,
    },
    /// Somebody made the arena's file shorter than those need it who live in it.
    #[error("{path}: damaged shared state: its file was cut; end all processes that have the volume open")]
    Cut {
        /// The arena.
        path: String,
    },
    /// A process has the volume for itself.
    #[error("process {pid} has the volume mounted for itself (cache=exclusive or writeback): unmount it first")]
    Exclusive {
        /// Its process id, as it sees itself; 0 if unknown.
        pid: u32,
    },
    /// A shared structure holds what nobody can have stored.
    #[error("damaged shared state: {what} at arena offset {at:#x}")]
    Corrupt {
        /// The structure.
        what: &'static str,
        /// Its offset, in bytes.
        at: u64,
    },
    /// A bounded table or region is full.
    #[error("{what}")]
    Full {
        /// For what there is no room, how much there is, and what can be done.
        what: &'static str,
    },
    /// The calling thread holds the lock that it asks for.
    #[error("the lock at arena offset {0} is already held by this thread")]
    Deadlock(ArenaOffset),
    /// What the lock was wanted for did not hold any more when it was to be had.
    #[error("unwanted")]
    Unwanted,
    /// Offset or length outside of the arena, or misaligned.
    #[error("arena offset {at:#x} + {bytes} bytes is outside of the arena or misaligned")]
    OutOfBounds {
        /// The offset, in bytes.
        at: u64,
        /// The length, in bytes.
        bytes: u64,
    },
    /// The layout has no such region, or cannot be computed.
    #[error("arena region {0:?} does not exist, exists twice, or is too large")]
    Region(String),
    /// The session was detached, or (in a forked child) its volume has been closed by everyone else.
    #[error("the volume is no longer attached")]
    Detached,
    /// A test abandoned this thread.
    #[error("this thread was abandoned by a test")]
    Abandoned,
    /// An owner of structures in the arena refused or failed.
    #[error("{0}")]
    Owner(Arc<dyn std::error::Error + Send + Sync>),
}

const DISPLACED: &str = "go through the arena's gate: the program takes the descriptor away each time";
/// More than a program has reason for.
const DISPLACED_MAX: u32 = 100;

/// Tries again what failed because the program took a descriptor of ours for one of its own.
pub(crate) fn again<T>(mut attempt: impl FnMut() -> Result<T>) -> Result<T> {
    for _ in 1..DISPLACED_MAX {
        match attempt() {
            Err(error) if error.is_displaced() => {}
            other => return other,
        }
    }
    attempt()
}

impl Error {
    pub(crate) fn system(doing: &'static str) -> impl FnOnce(Errno) -> Self {
        move |errno| Self::System { doing, errno }
    }

    /// Of a call that opens or makes something in [`ARENA_DIRECTORY`](crate::file::ARENA_DIRECTORY), with what to do where that is not as it
    /// has to be.
    pub(crate) fn in_directory(doing: &'static str) -> impl FnOnce(Errno) -> Self {
        move |errno| {
            let doing = match errno {
                Errno::NOENT => {
                    "there is no directory /dev/shm for the shared state; make it and mount a tmpfs there (mount -t tmpfs tmpfs /dev/shm)"
                }
                Errno::NOTDIR => {
                    "/dev/shm, for the shared state, is no directory; put one in its place and mount a tmpfs there (mount -t tmpfs tmpfs /dev/shm)"
                }
                Errno::ROFS => {
                    "/dev/shm, for the shared state, is mounted read-only; mount it writable (mount -o remount,rw /dev/shm)"
                }
                Errno::OPNOTSUPP | Errno::ISDIR => {
                    "the file system at /dev/shm cannot hold the shared state; mount a tmpfs there (mount -t tmpfs tmpfs /dev/shm)"
                }
                Errno::ACCESS => {
                    "you may not make the shared state in /dev/shm; its owner can let you (chmod 1777 /dev/shm)"
                }
                Errno::MFILE => {
                    "open the shared state: this process has as many files open as it may; close some, or raise the limit (ulimit -n)"
                }
                Errno::NFILE => {
                    "open the shared state: the system has as many files open as it may; raise the limit (sysctl fs.file-max)"
                }
                _ => doing,
            };
            Self::System { doing, errno }
        }
    }

    /// The program has closed a descriptor of ours, or given its number to a file of its own.
    pub(crate) fn displaced() -> Self {
        Self::System { doing: DISPLACED, errno: Errno::BADF }
    }

    pub(crate) fn is_displaced(&self) -> bool {
        matches!(self, Self::System { errno: Errno::BADF, .. })
    }

    /// Wraps an owner's error, so that it can travel through callbacks of this crate.
    pub fn owner(error: impl std::error::Error + Send + Sync + 'static) -> Self {
        Self::Owner(Arc::new(error))
    }
}
