//! Errors of file systems: an errno value with the sentence that explains it.
//!
//! Errors are made on hot paths (every failed lookup), so they are small, `Copy`, and allocate nothing.

use rustix::io::Errno;

/// The outcome of a file-system operation.
pub type Result<T> = core::result::Result<T, Error>;

/// An errno value and, where it says more than the errno, what was found and where.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Error {
    errno: Errno,
    what: &'static str,
    place: u64,
}

impl Error {
    /// An error that its errno explains in full.
    pub const fn new(errno: Errno) -> Self {
        Self { errno, what: "", place: 0 }
    }

    /// An error with a static sentence: what was being done, to what.
    pub const fn because(errno: Errno, what: &'static str) -> Self {
        Self { errno, what, place: 0 }
    }

    /// Damage found on a volume: the structure and its byte offset. The errno is `EUCLEAN`, as Linux file systems
    /// report corruption.
    pub const fn damaged(structure: &'static str, offset_bytes: u64) -> Self {
        Self { errno: Errno::UCLEAN, what: structure, place: offset_bytes }
    }

    /// This error, with the byte offset on the volume where it was met; or with the number that `what` ends in a colon for.
    #[must_use]
    pub const fn at(self, offset_bytes: u64) -> Self {
        Self { place: offset_bytes, ..self }
    }

    /// The errno that a system call would give.
    pub const fn errno(&self) -> Errno {
        self.errno
    }

    /// What was found, or empty.
    pub const fn what(&self) -> &'static str {
        self.what
    }

    /// The byte offset on the volume or the number that `what` speaks of; 0 where it speaks of none.
    pub const fn place(&self) -> u64 {
        self.place
    }

    /// What was found and where, for people; without the errno, unless that is all there is.
    pub const fn explanation(&self) -> Explanation {
        Explanation(*self)
    }
}

impl From<Errno> for Error {
    fn from(errno: Errno) -> Self {
        Self::new(errno)
    }
}

impl From<gannet_usermem::Fault> for Error {
    fn from(_: gannet_usermem::Fault) -> Self {
        Self::new(Errno::FAULT)
    }
}

/// See [`Error::explanation`].
#[derive(Clone, Copy)]
pub struct Explanation(Error);

impl core::fmt::Display for Explanation {
    fn fmt(&self, out: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match (self.0.what, self.0.place) {
            ("", _) => write!(out, "{}", self.0.errno),
            (what, 0) => out.write_str(what),
            (what, number) if what.ends_with(':') => write!(out, "{what} {number:#x}"),
            (what, place) => write!(out, "{what} (at {place:#x})"),
        }
    }
}

impl core::fmt::Display for Error {
    fn fmt(&self, out: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self.what {
            "" => write!(out, "{}", self.errno),
            _ => write!(out, "{}: {}", self.explanation(), self.errno),
        }
    }
}

impl core::fmt::Debug for Error {
    fn fmt(&self, out: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        core::fmt::Display::fmt(self, out)
    }
}

impl std::error::Error for Error {}
