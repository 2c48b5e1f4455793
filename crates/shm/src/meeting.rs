//! Where processes of a volume meet by the kernel's means (pipes for its FIFOs, sockets for its sockets): a directory for each user and each arena,
//! where nobody else can make, replace or remove a name.
//!
//! Everybody may make names in [`ARENA_DIRECTORY`]: a pipe or socket that stood there itself could be another user's, who would be
//! talked to instead. A directory that is the user's own cannot be moved away by others, as the sticky bit says. It goes with the arena, which has an
//! identity that no other ever has: so what was found of it stays true for all who use it, and nobody uses the name of one that is gone, whoever
//! makes it then. That is why it may be used by its path. It has to be: the path that a socket is bound to is the address that others are told,
//! and answer to.

use crate::file::{ARENA_DIRECTORY, as_owner_alone};
use crate::session::ArenaIdentity;
use crate::user;
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

const KEPT_FROM_OTHERS: u32 = 0o077;

/// Somebody else may make the directory, or take away one that seems to be of an arena that is gone, that often between two looks.
const ATTEMPTS: u32 = 4;

/// The directory of the meeting places of the process's effective user and those who share an arena with it, which is that user's alone: made if
/// there is none.
///
/// # Errors
/// `ACCES` if it is not: somebody else has made it, or others have access to it. `OPNOTSUPP` for what is no arena's: of a volume in a process's own
/// memory, where nobody else comes to meet.
pub fn meeting_directory(uid: u32, arena: ArenaIdentity) -> Result<String, i32> {
    directory(uid, arena, true).map_err(Errno::raw_os_error)
}

/// The same, for who only takes something out of it.
///
/// # Errors
/// As above, and `NOENT` if there is none.
pub fn existing_meeting_directory(uid: u32, arena: ArenaIdentity) -> Result<String, i32> {
    directory(uid, arena, false).map_err(Errno::raw_os_error)
}

/// The name of such a directory, `gannet-meet-UID-ARENA`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct MeetingName {
    pub(crate) uid: u32,
    pub(crate) arena: u64,
}

impl MeetingName {
    pub(crate) fn of(name: &str) -> Option<Self> {
        let (uid, arena) = name.strip_prefix("gannet-meet-")?.split_once('-')?;
        let found = Self { uid: uid.parse().ok()?, arena: u64::from_str_radix(arena, 16).ok()? };
        // As it is written, and in no other way.
        (found.path() == format!("{ARENA_DIRECTORY}/{name}")).then_some(found)
    }

    fn path(self) -> String {
        format!("{ARENA_DIRECTORY}/gannet-meet-{}-{:016x}", self.uid, self.arena)
    }

    /// Removes it with what `is_place` says of what is in it, as far as this process may. What else there is stays, and so it does.
    pub(crate) fn remove(self, is_place: impl Fn(&str) -> bool) -> bool {
        let Some(directory) = self.open() else { return false };
        for name in crate::leftovers::names(&directory, is_place) {
            let _ = rustix::fs::unlinkat(&directory, name.as_str(), AtFlags::empty());
        }
        // Empty, it is of no use to anybody, whoever may have made it since.
        rustix::fs::unlinkat(CWD, self.path(), AtFlags::REMOVEDIR).is_ok()
    }

    /// Opens it, to look what is in it; `None` if there is none that is the user's.
    fn open(self) -> Option<rustix::fd::OwnedFd> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let directory = rustix::fs::openat(CWD, self.path(), flags, Mode::empty()).ok()?;
        let status = rustix::fs::fstat(&directory).ok()?;
        check(&status, self.uid).is_ok().then_some(directory)
    }
}

fn directory(uid: u32, arena: ArenaIdentity, is_made: bool) -> Result<String, Errno> {
    if uid == user::UNKNOWN {
        return Err(Errno::ACCESS);
    }
    if arena.0 == 0 {
        return Err(Errno::OPNOTSUPP);
    }
    let path = MeetingName { uid, arena: arena.0 }.path();
    let mut attempts = 0;
    let status = loop {
        match rustix::fs::lstat(&*path) {
            Err(Errno::NOENT) if is_made && attempts < ATTEMPTS => attempts += 1,
            status => break status?,
        }
        // Somebody else may be faster.
        match rustix::fs::mkdir(&*path, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(errno),
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    /// A user that nobody is.
    const SOMEBODY: u32 = 4_000_000_123;

    #[test]
    fn only_a_directory_that_is_the_users_alone_is_a_meeting_place() {
        let arena = ArenaIdentity(0x1234_5678 + u64::from(std::process::id()));
        let name = MeetingName { uid: SOMEBODY, arena: arena.0 };
        let path = name.path();
        let _ = std::fs::remove_dir(&path);
        // Whoever made it is not that user.
        rustix::fs::mkdir(&*path, Mode::RWXU).expect("mkdir");
        assert_eq!(directory(SOMEBODY, arena, true), Err(Errno::ACCESS));
        assert!(name.open().is_none() && !name.remove(|_| true));
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
        assert_eq!(directory(user::UNKNOWN, arena, true), Err(Errno::ACCESS));
        assert_eq!(directory(SOMEBODY, ArenaIdentity(0), true), Err(Errno::OPNOTSUPP));
    }

    #[test]
    fn names_are_as_they_are_written() {
        let name = MeetingName { uid: 1000, arena: 0xAB };
        assert_eq!(name.path(), format!("{ARENA_DIRECTORY}/gannet-meet-1000-00000000000000ab"));
        assert_eq!(MeetingName::of("gannet-meet-1000-00000000000000ab"), Some(name));
        let others = [
            "gannet-meet-1000",
            "gannet-meet-1000-ab",
            "gannet-meet-01000-00000000000000ab",
            "gannet-meet-1000-00000000000000AB",
        ];
        assert!(others.iter().all(|name| MeetingName::of(name).is_none()));
    }

    /// What is in it that is no meeting place keeps it.
    #[test]
    fn it_goes_with_its_meeting_places_only() {
        let uid = rustix::process::geteuid().as_raw();
        let arena = ArenaIdentity(0x8765_4321 + u64::from(std::process::id()));
        assert_eq!(directory(uid, arena, false), Err(Errno::NOENT));
        let path = directory(uid, arena, true).expect("a directory");
        let name = MeetingName { uid, arena: arena.0 };
        for file in ["fifo-5-1", "other"] {
            std::fs::write(format!("{path}/{file}"), b"").expect("write");
        }
        assert!(!name.remove(|name| name.starts_with("fifo-")));
        assert!(
            !std::fs::exists(format!("{path}/fifo-5-1")).unwrap() && std::fs::exists(format!("{path}/other")).unwrap()
        );
        assert!(name.remove(|_| true) && !std::fs::exists(&path).unwrap());
        // Who finds it gone makes it anew.
        assert_eq!(directory(uid, arena, true), Ok(path.clone()));
        assert_eq!(directory(uid, arena, false), Ok(path));
        assert!(name.remove(|_| true));
    }
}
