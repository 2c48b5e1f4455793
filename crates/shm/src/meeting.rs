//! Where processes of a volume meet by the kernel's means (pipes for its FIFOs, sockets for its sockets): a directory for each user, where
//! nobody else can make, replace or remove a name.
//!
//! Everybody may make names in [`ARENA_DIRECTORY`]: a pipe or socket that stood there itself could be another user's, who would be
//! talked to instead. A directory that is the user's own cannot be moved away by others either, as the sticky bit says, and it is never removed, so that
//! what was found of it stays true.

use crate::file::{ARENA_DIRECTORY, as_owner_alone};
use crate::user;
use rustix::fs::{CWD, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

const KEPT_FROM_OTHERS: u32 = 0o077;

/// The directory of the meeting places of the process's effective user, which is that user's alone: made if there is none.
///
/// # Errors
/// `ACCES` if it is not: somebody else has made it, or others have access to it.
pub fn meeting_directory(uid: u32) -> Result<String, i32> {
    directory(uid).map_err(Errno::raw_os_error)
}

/// Where the directory would be.
pub(crate) fn path_of(uid: u32) -> String {
    format!("{ARENA_DIRECTORY}/gannet-meet-{uid}")
}

fn directory(uid: u32) -> Result<String, Errno> {
    if uid == user::UNKNOWN {
        return Err(Errno::ACCESS);
    }
    let path = path_of(uid);
    let status = match rustix::fs::lstat(&*path) {
        Err(Errno::NOENT) => {
            // Somebody else may be faster.
            match rustix::fs::mkdir(&*path, Mode::RWXU) {
                Ok(()) | Err(Errno::EXIST) => rustix::fs::lstat(&*path)?,
                Err(errno) => return Err(errno),
            }
        }
        status => status?,
    };
    check(&status, uid)?;
    if user::as_seen(uid).is_shared {
        prove(&path, &status)?;
    } else if status.st_mode & 0o700 != 0o700 {
        // It was made under an uncommon umask. It is the user's, and so is what the path leads to.
        rustix::fs::chmod(&*path, Mode::RWXU)?;
    }
    Ok(path)
}

fn check(status: &Stat, uid: u32) -> Result<(), Errno> {
    let is_directory = FileType::from_raw_mode(status.st_mode) == FileType::Directory;
    let is_theirs = status.st_uid == user::as_seen(uid).id && status.st_mode & KEPT_FROM_OTHERS == 0;
    if is_directory && is_theirs { Ok(()) } else { Err(Errno::ACCESS) }
}

/// Where the owner looks as others do, too: only the owner may set the mode.
fn prove(path: &str, status: &Stat) -> Result<(), Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let directory = rustix::fs::openat(CWD, path, flags, Mode::empty())?;
    let opened = rustix::fs::fstat(&directory)?;
    as_owner_alone(|| rustix::fs::fchmod(&directory, Mode::RWXU))?;
    // What was proved is what is at the path, and since it is the user's it stays there.
    let named = rustix::fs::lstat(path)?;
    let is_it = |other: &Stat| (other.st_dev, other.st_ino) == (opened.st_dev, opened.st_ino);
    if is_it(status) && is_it(&named) { Ok(()) } else { Err(Errno::ACCESS) }
}

/// Opens the directory of a user's meeting places, to look what is in it; `None` if there is none that is the user's.
pub(crate) fn open(uid: u32) -> Option<rustix::fd::OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let directory = rustix::fs::openat(CWD, path_of(uid), flags, Mode::empty()).ok()?;
    let status = rustix::fs::fstat(&directory).ok()?;
    check(&status, uid).is_ok().then_some(directory)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A user that nobody is.
    const SOMEBODY: u32 = 4_000_000_123;

    #[test]
    fn only_a_directory_that_is_the_users_alone_is_a_meeting_place() {
        let path = path_of(SOMEBODY);
        let _ = std::fs::remove_dir(&path);
        // Whoever made it is not that user.
        rustix::fs::mkdir(&*path, Mode::RWXU).expect("mkdir");
        assert_eq!(directory(SOMEBODY), Err(Errno::ACCESS));
        assert!(open(SOMEBODY).is_none());
        let mut status = rustix::fs::lstat(&*path).expect("lstat");
        let user = status.st_uid;
        assert_eq!(check(&status, user), Ok(()));
        status.st_mode |= 0o010;
        assert_eq!(check(&status, user), Err(Errno::ACCESS));
        std::fs::remove_dir(&path).expect("rmdir");
        std::os::unix::fs::symlink("/dev/shm", &path).expect("symlink");
        let status = rustix::fs::lstat(&*path).expect("lstat");
        assert_eq!(check(&status, user), Err(Errno::ACCESS));
        std::fs::remove_file(&path).expect("unlink");
        assert_eq!(directory(user::UNKNOWN), Err(Errno::ACCESS));
    }
}
