//! Whether set-user-id programs and devices of a volume may count on a mount.
//!
//! Who can write a volume can put a root shell on it. So they count only where nobody but root can write the volume, or
//! put another in its place.

use crate::failure::Failure;
use crate::volume;
use rustix::fs::{FileType, Stat};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// As many links as the kernel follows.
const LINKS_MAX: usize = 40;

/// Refuses unless only root can write the volume.
///
/// # Errors
/// Who could.
pub(super) fn check(path: &Path) -> Result<(), Failure> {
    if !rustix::process::geteuid().is_root() {
        return Err(refuse("this is not root"));
    }
    if path.to_str().is_some_and(|name| name.starts_with("memory:")) {
        return Ok(());
    }
    check_way(path, LINKS_MAX)?;
    // Only root can have written what this says of further media.
    let members = volume::open(path, true)?.members();
    members
        .iter()
        .filter(|member| !member.path.as_os_str().is_empty())
        .try_for_each(|member| check_way(&member.path, LINKS_MAX))
}

fn refuse(why: &str) -> Failure {
    Failure::new(format_args!("suid and dev are only for volumes that only root can write: {why}"))
}

/// Refuses unless only root can change a file and everything on the way to it, links and what they lead to included: then the same path
/// leads to the same file when it is opened.
fn check_way(path: &Path, links_left: usize) -> Result<(), Failure> {
    let failed = |errno: Errno, place: &Path| Failure::new(format_args!("{}: {errno}", place.display()));
    let full = std::path::absolute(path).map_err(|error| Failure::new(format_args!("{}: {error}", path.display())))?;
    let mut place = PathBuf::new();
    let mut parts = full.components();
    while let Some(part) = parts.next() {
        place.push(part);
        let stat = rustix::fs::lstat(&place).map_err(|errno| failed(errno, &place))?;
        let rest = parts.as_path();
        if let Some(why) = others_write(&stat, !rest.as_os_str().is_empty()) {
            return Err(refuse(&format!("{} {why}", place.display())));
        }
        if FileType::from_raw_mode(stat.st_mode) == FileType::Symlink {
            let target = rustix::fs::readlink(&place, Vec::new()).map_err(|errno| failed(errno, &place))?;
            let target = place.parent().unwrap_or(Path::new("/")).join(OsStr::from_bytes(target.to_bytes()));
            let links_left = links_left.checked_sub(1).ok_or_else(|| failed(Errno::LOOP, path))?;
            return check_way(&target.join(rest), links_left);
        }
    }
    Ok(())
}

/// Why others than root can change what `stat` is of. The bits of the group count whichever it is: root's has members, too, and beside an
/// access list they are what the list gives at most.
fn others_write(stat: &Stat, directory: bool) -> Option<String> {
    if stat.st_uid != 0 {
        return Some(format!("belongs to user {}", stat.st_uid));
    }
    let file_type = FileType::from_raw_mode(stat.st_mode);
    // In a directory with the sticky bit others cannot replace what is root's. A link has no rights of its own.
    let spared =
        file_type == FileType::Symlink || directory && file_type == FileType::Directory && stat.st_mode & 0o1000 != 0;
    (!spared && stat.st_mode & 0o022 != 0).then(|| "can be written by others".into())
}
