//! Volumes as files: opening their media, and finding out whether somebody has them open.

use crate::failure::{Failure, in_one_line};
use crate::output::size_text;
use gannet_logfs::{LogFs, open_medium, open_medium_to_check};
use gannet_media::{Medium, Member};
use gannet_open::OpenError;
use gannet_shm::{claim_volume_first, volume_is_open};
use gannet_vfs::{Error, FileSystem};
use rustix::io::Errno;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long somebody who is ending may still have a volume open: `umount` returns before the mount's server has closed it.
const ENDING: Duration = Duration::from_secs(1);

/// An error about a volume.
pub(crate) fn failure(path: &Path, error: Error) -> Failure {
    let hint = if error.errno() == Errno::UCLEAN { "; `gannet fsck` says more" } else { "" };
    failure_with(path, error, hint)
}

/// An error of a check, which has no more to say.
pub(crate) fn check_failure(path: &Path, error: Error) -> Failure {
    failure_with(path, error, "")
}

fn failure_with(path: &Path, error: Error, hint: &str) -> Failure {
    Failure::new(format_args!("{}: {}{hint}", path.display(), error.explanation()))
}

/// Opens a medium, or all media of a volume that spans several.
pub(crate) fn open(path: &Path, read_only: bool) -> Result<Medium, Failure> {
    open_medium(path, read_only).map_err(Failure::new)
}

/// Likewise, to check what is on it.
pub(crate) fn open_to_check(path: &Path, read_only: bool) -> Result<Medium, Failure> {
    open_medium_to_check(path, read_only).map_err(Failure::new)
}

/// Has what was written to a medium written down, where it is a file on a disk.
pub(crate) fn sync(path: &Path, medium: &Medium) -> Result<(), Failure> {
    medium.sync().map_err(|error| {
        let shown = path.display();
        Failure::new(format_args!(
            "{shown}: what was written cannot be brought to the disk below: {error}; see what the kernel says of that (dmesg), and do it again"
        ))
    })
}

/// The media that a volume spans, as people name them: their numbers, paths, kinds, sizes and NUMA nodes. None for a volume on
/// one.
pub(crate) fn media(medium: &Medium) -> Vec<String> {
    let members = medium.members();
    if members.len() < 2 {
        return Vec::new();
    }
    let one = |(member, node): (&Member, Option<u32>)| {
        let node = node.map_or("NUMA node not known".to_owned(), |node| format!("NUMA node {node}"));
        let path = in_one_line(&member.path.to_string_lossy());
        format!("{}, {}, {node}: {path}", member.name, size_text(member.length))
    };
    members.iter().zip(medium.nodes()).map(one).collect()
}

/// Joins those who have a volume open, to look at what they do: to write if that is allowed, since who leaves last closes the volume,
/// and who only reads cannot.
pub(crate) fn join(path: &Path) -> Result<Arc<LogFs>, OpenError> {
    let options = gannet_open::Options::default();
    match gannet_open::open_volume(path, options) {
        Err(error) if matches!(error.errno(), Errno::ACCESS | Errno::PERM | Errno::ROFS) => {
            gannet_open::open_volume(path, gannet_open::Options { read_only: true, ..options })
        }
        opened => opened,
    }
}

/// Leaves a volume, and says where its last user could not close it. It is left all the same.
pub(crate) fn leave(path: &Path, volume: &dyn FileSystem) -> Result<(), Failure> {
    let why = |error| {
        let shown = path.display();
        Failure::new(format_args!(
            "{shown}: could not be closed, and the next use recovers it: {error}; `gannet fsck` says more"
        ))
    };
    volume.leave().map_err(why)
}

/// Whether somebody has the volume on a medium open.
pub(crate) fn is_in_use(medium: &Medium) -> Result<bool, Failure> {
    match medium.descriptor() {
        Some(file) => volume_is_open(file).map_err(Failure::new),
        None => Ok(false),
    }
}

/// Likewise, but for those who are just ending, which is waited for: a second at most.
pub(crate) fn is_in_use_for_long(medium: &Medium) -> Result<bool, Failure> {
    Ok(!soon(|| is_in_use(medium).map(|in_use| !in_use))?)
}

/// Whether something holds now or within [`ENDING`].
pub(crate) fn soon(mut holds: impl FnMut() -> Result<bool, Failure>) -> Result<bool, Failure> {
    let end = Instant::now() + ENDING;
    loop {
        if holds()? {
            return Ok(true);
        }
        if Instant::now() >= end {
            return Ok(false);
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Keeps everybody from opening the volume on a medium until its last handle is dropped; `false` if somebody has it open,
/// who is not just ending. The medium must be writable.
pub(crate) fn claim(medium: &Medium) -> Result<bool, Failure> {
    for file in medium.descriptors() {
        // Where a claim can have been lost under who has the volume open, that is asked as well.
        let is_alone = || Ok(claim_volume_first(file)? && !volume_is_open(file)?);
        if !soon(|| is_alone().map_err(|error: gannet_shm::Error| Failure::new(error)))? {
            return Ok(false);
        }
    }
    Ok(true)
}
