//! Volumes as files: opening their media, and finding out whether somebody has them open.

use crate::failure::Failure;
use gannet_logfs::open_medium;
use gannet_media::Medium;
use gannet_vfs::Error;
use rustix::fs::{FlockOperation, Mode, OFlags, flock};
use rustix::io::Errno;
use std::os::fd::OwnedFd;
use std::path::Path;

/// An error about a volume.
pub(crate) fn failure(path: &Path, error: Error) -> Failure {
    let hint = match (error.errno(), error.what()) {
        (Errno::UCLEAN, _) => "; `gannet fsck` says more",
        _ => "",
    };
    let what = match (error.what(), error.place()) {
        ("", _) => error.errno().to_string(),
        (what, 0) => what.to_owned(),
        (what, place) => format!("{what} (at {place:#x})"),
    };
    Failure::new(format_args!("{}: {what}{hint}", path.display()))
}

/// Opens a medium.
pub(crate) fn open(path: &Path, read_only: bool) -> Result<Medium, Failure> {
    open_medium(path, read_only).map_err(Failure::new)
}

/// What one has of a volume against others.
pub(crate) enum Hold {
    /// Nobody has it open, and nobody can open it before this is dropped.
    Alone(#[allow(dead_code, reason = "held until it is dropped")] OwnedFd),
    /// Somebody has it open.
    Shared,
}

/// Takes the lock of those who have a volume open, for oneself.
pub(crate) fn hold(path: &Path) -> Result<Hold, Failure> {
    let fail = |errno: Errno| Failure::new(format_args!("{}: cannot be locked: {errno}", path.display()));
    let file = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).map_err(fail)?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Hold::Alone(file)),
        Err(Errno::WOULDBLOCK) => Ok(Hold::Shared),
        Err(errno) => Err(fail(errno)),
    }
}
