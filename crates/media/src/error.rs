//! What can go wrong: [`AccessError`] on the data path, [`OpenError`] when a medium is opened or created.

use std::io;
use std::path::PathBuf;

use gannet_usermem::Fault;

use crate::offset::MediumOffset;

/// Why a load or a store did not happen, or not in full.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AccessError {
    /// The range is not inside the medium: whatever the offset was read from is damaged.
    #[error("{length} bytes at {at} are not inside the medium")]
    OutOfRange {
        /// Where it starts.
        at: MediumOffset,
        /// Number of bytes.
        length: u64,
    },
    /// An 8-byte word was asked for at an offset that is no multiple of eight.
    #[error("{at} is not aligned for a word")]
    Misaligned {
        /// The offset.
        at: MediumOffset,
    },
    /// A store to a medium that was opened for reading only.
    #[error("the medium is open for reading only")]
    ReadOnly,
    /// The caller's memory is bad. `EFAULT`.
    #[error("the caller's memory is bad after {copied} bytes")]
    UserFault {
        /// Bytes copied before.
        copied: usize,
    },
    /// The medium's memory is gone at this place: poisoned, or its file was truncated. `EIO`.
    #[error("the medium cannot be accessed at {at}: memory error, or its file was truncated")]
    MediumFault {
        /// The first byte that was not copied.
        at: MediumOffset,
        /// Bytes copied before.
        copied: usize,
    },
}

impl AccessError {
    /// The same error of a part, seen from a whole of which `done` bytes came before the part.
    pub(crate) fn after(self, done: usize) -> AccessError {
        match self {
            AccessError::UserFault { copied } => AccessError::UserFault { copied: done + copied },
            AccessError::MediumFault { at, copied } => AccessError::MediumFault { at, copied: done + copied },
            other => other,
        }
    }
}

impl From<Fault> for AccessError {
    fn from(fault: Fault) -> AccessError {
        AccessError::UserFault { copied: fault.copied }
    }
}

/// Why a medium could not be opened or created. Says what was tried, on what, and what to do.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// A system call failed.
    #[error("{path}: cannot {action}: {source}", path = path.display())]
    System {
        /// The file.
        path: PathBuf,
        /// What was being done.
        action: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
    /// There is no file.
    #[error(
        "{path}: cannot open the medium: No such file or directory; check the path, or make a volume there with gannet mkfs",
        path = path.display()
    )]
    NotThere {
        /// The file.
        path: PathBuf,
    },
    /// The user may not open the file.
    #[error(
        "{path}: you may not {deed} it; its owner can let you (chmod), or serve it to other users with gannet mount -o allow_other",
        path = path.display()
    )]
    Forbidden {
        /// The file.
        path: PathBuf,
        /// "read", or "write to".
        deed: &'static str,
    },
    /// hugetlbfs has not enough free pages.
    #[error(
        "{path}: needs {needed} huge pages of {page_bytes} bytes, but {free} are free; reserve more in {switch}, or choose a smaller size",
        path = path.display()
    )]
    NoHugePages {
        /// The file.
        path: PathBuf,
        /// Pages that the whole medium takes.
        needed: u64,
        /// Pages that are free now.
        free: u64,
        /// Bytes in a page of that file system.
        page_bytes: u64,
        /// Where their number is set.
        switch: String,
    },
    /// hugetlbfs gives out whole pages only.
    #[error(
        "{path}: {length} bytes are no multiple of the huge pages of {page_bytes} bytes that its file system has, of which {free} are free; \
         choose a size that is one",
        path = path.display()
    )]
    HugePageSize {
        /// The file.
        path: PathBuf,
        /// Bytes it was to have.
        length: u64,
        /// Bytes in a page of that file system.
        page_bytes: u64,
        /// Pages that are free now.
        free: u64,
    },
    /// A symbolic link to something that is not there.
    #[error("{path}: is a symbolic link to {target}, and nothing is there; name another path, or remove the link", path = path.display(), target = target.display())]
    LeadsNowhere {
        /// The link.
        path: PathBuf,
        /// What it says.
        target: PathBuf,
    },
    /// The file is none that can be mapped.
    #[error("{path}: {kind} cannot hold a volume; use a regular file, a DAX device or a memfd", path = path.display())]
    WrongType {
        /// The file.
        path: PathBuf,
        /// What it is.
        kind: &'static str,
    },
    /// The length does not fit.
    #[error("{path}: {length} bytes: {problem}", path = path.display())]
    WrongLength {
        /// The file.
        path: PathBuf,
        /// Bytes it has or was to have.
        length: u64,
        /// What is wrong with that.
        problem: &'static str,
    },
    /// There is a file already.
    #[error("{path}: exists already; give another path, or force to overwrite it", path = path.display())]
    Exists {
        /// The file.
        path: PathBuf,
    },
    /// The file system below has not enough space.
    #[error(
        "{path}: needs {needed_bytes} bytes, but its file system has {free_bytes} free; make room there or choose a smaller size",
        path = path.display()
    )]
    NoSpace {
        /// The file.
        path: PathBuf,
        /// Bytes to be reserved.
        needed_bytes: u64,
        /// Bytes the file system had free.
        free_bytes: u64,
    },
}
