//! Whether set-user-id programs and devices of a volume may count on a mount.
//!
//! Who can write a volume can put a root shell on it. So they count only where nobody but root can write the volume, or
//! put another in its place.

use crate::failure::Failure;
use crate::volume;
use rustix::fs::{FileType, Stat};
use std::path::Path;

/// Refuses unless only root can write the volume.
///
/// # Errors
/// Who could.
pub(super) fn check(path: &Path) -> Result<(), Failure> {
    let refuse =
        |why: String| Failure::new(format_args!("suid and dev are only for volumes that only root can write: {why}"));
    if !rustix::process::geteuid().is_root() {
        return Err(refuse("this is not root".into()));
    }
    if path.to_str().is_some_and(|name| name.starts_with("memory:")) {
        return Ok(());
    }
    let check_file = |file: &Path| {
        let full = file.canonicalize().map_err(|error| Failure::new(format_args!("{}: {error}", file.display())))?;
        for (depth, place) in full.ancestors().enumerate() {
            let stat =
                rustix::fs::stat(place).map_err(|errno| Failure::new(format_args!("{}: {errno}", place.display())))?;
            if let Some(why) = others_write(&stat, depth > 0) {
                return Err(refuse(format!("{} {why}", place.display())));
            }
        }
        Ok(())
    };
    check_file(path)?;
    // Only root can have written what this says of further media.
    let members = volume::open(path, true)?.members();
    members.iter().filter(|member| !member.path.as_os_str().is_empty()).try_for_each(|member| check_file(&member.path))
}

/// Why others than root can change what `stat` is of.
fn others_write(stat: &Stat, directory: bool) -> Option<String> {
    if stat.st_uid != 0 {
        return Some(format!("belongs to user {}", stat.st_uid));
    }
    // In a directory with the sticky bit others cannot replace what is root's.
    let sticky =
        directory && FileType::from_raw_mode(stat.st_mode) == FileType::Directory && stat.st_mode & 0o1000 != 0;
    let group = stat.st_mode & 0o020 != 0 && stat.st_gid != 0;
    (!sticky && (group || stat.st_mode & 0o002 != 0)).then(|| "can be written by others".into())
}
