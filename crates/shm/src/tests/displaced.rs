//! The program closes the descriptors of the arena's file, or gives their numbers to files of its own, while they are in use.

use super::{Calls, identity, layout, left_behind};
use crate::attach::map_again;
use crate::file::ArenaPath;
use crate::{ArenaIdentity, Detached, Error, Result, Session, VolumeGuard, VolumeIdentity};
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::sync::Arc;

/// Gives all descriptors of the arena's file to `/dev/null` while it is behind the gate.
struct Displaces {
    arena: ArenaPath,
    displaced: Vec<RawFd>,
}

impl Displaces {
    fn new(id: &VolumeIdentity) -> Self {
        Self { arena: ArenaPath::new(id), displaced: Vec::new() }
    }

    fn displace(&mut self) {
        let nothing = File::open("/dev/null").unwrap();
        let arena = rustix::fs::stat(self.arena.path.as_str()).unwrap();
        for entry in std::fs::read_dir("/proc/self/fd").unwrap() {
            let entry = entry.unwrap();
            let leads_to_ours = std::fs::metadata(entry.path())
                .is_ok_and(|found| (found.dev(), found.ino()) == (arena.st_dev, arena.st_ino));
            if leads_to_ours {
                let number = entry.file_name().to_str().unwrap().parse().unwrap();
                // SAFETY: what this is about: the number is somebody else's.
                let mut taken = unsafe { OwnedFd::from_raw_fd(number) };
                rustix::io::dup2(&nothing, &mut taken).unwrap();
                self.displaced.push(taken.into_raw_fd());
            }
        }
    }

    /// How many of them there were, all of which must be what they were made since.
    fn close(&mut self) -> usize {
        let nothing = rustix::fs::stat("/dev/null").unwrap();
        let count = self.displaced.len();
        for number in self.displaced.drain(..) {
            // SAFETY: made above.
            assert_eq!(rustix::fs::fstat(unsafe { BorrowedFd::borrow_raw(number) }).unwrap().st_rdev, nothing.st_rdev);
            // SAFETY: likewise, and nobody else has it.
            drop(unsafe { OwnedFd::from_raw_fd(number) });
        }
        count
    }
}

impl VolumeGuard for Displaces {
    fn first(&mut self, _: &Arc<Session>, _: ArenaIdentity) -> Result<()> {
        self.displace();
        Ok(())
    }
    fn joined(&mut self, session: &Arc<Session>, _: ArenaIdentity) -> Result<()> {
        self.displace();
        // Who looks through the gate's number for the dead must not believe what it hears of another file.
        assert_eq!(session.reap_evidently_dead()?.participants, 0);
        Ok(())
    }
    fn last(&mut self, _: &Session, _: ArenaIdentity) -> Result<()> {
        panic!("the others have not gone");
    }
}

#[test]
fn nobody_keeps_the_gate_once_its_descriptor_is_taken_away() {
    let id = identity(76);
    let mut guard = Displaces::new(&id);
    let is_open = || ArenaPath::new(&id).gate_if_open().unwrap().is_some();
    let first = Session::attach(id, &layout(), &mut guard).unwrap();
    assert_eq!(guard.close(), 1, "the gate's");
    assert!(is_open(), "who was first has the gate still");
    let second = Session::attach(id, &layout(), &mut guard).unwrap();
    assert_eq!(guard.close(), 1, "the gate's");
    assert!(is_open(), "who joined has the gate still");
    assert_eq!(first.participant_list().len(), 2);
    assert_eq!(second.detach(&mut guard).unwrap(), Detached::OthersRemain);
    let mut guard = Calls::default();
    assert_eq!(first.detach(&mut guard).unwrap(), Detached::Last);
    assert!(left_behind(&id).is_empty());
}

#[test]
fn a_participants_byte_is_not_believed_to_be_kept_by_another_file() {
    let id = identity(77);
    let session = Session::attach(id, &layout(), &mut Calls::default()).unwrap();
    let path = ArenaPath::new(&id);
    let gate = path.gate().unwrap().unwrap();
    let nothing = File::open("/dev/null").unwrap();
    assert_eq!(session.arena().known_life(gate.fd(), session.participant().index).unwrap(), Some(true));
    assert_eq!(session.arena().known_life(nothing.as_fd(), session.participant().index).unwrap(), None);
    let free = session.participant().index + 1;
    assert_eq!(session.arena().known_life(gate.fd(), free).unwrap(), Some(false));
    let mut guard = Displaces::new(&id);
    guard.displace();
    let error = gate.lock_life(&path, free, false).unwrap_err();
    assert!(error.to_string().contains("takes the descriptor away"), "{error}");
    drop(gate);
    assert_eq!(guard.close(), 1);
    session.detach(&mut Calls::default()).unwrap();
}

/// The arena's name is removed, or another file is put there, as `chroot`, another mount namespace, or who cleans up make it seem.
#[test]
fn nobody_is_dead_because_the_name_leads_elsewhere() {
    for another in [false, true] {
        let id = identity(if another { 79 } else { 78 });
        let first = Session::attach(id, &layout(), &mut Calls::default()).unwrap();
        let second = Session::attach(id, &layout(), &mut Calls::default()).unwrap();
        let path = ArenaPath::new(&id).path;
        std::fs::remove_file(&path).unwrap();
        if another {
            let file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path).unwrap();
            file.set_len(4096).unwrap();
        }
        assert!(first.participant_is_alive(second.participant()).unwrap(), "another file: {another}");
        first.reap_dead().unwrap();
        assert_eq!(first.participant_list().len(), 2, "another file: {another}");
        // Nobody closes what he cannot see, behind somebody else's gate or none, nor removes what is not his.
        for session in [second, first] {
            match session.detach(&mut Calls::default()) {
                Ok(detached) => assert!(another && detached == Detached::OthersRemain),
                Err(error) => assert!(!another && matches!(error, Error::Detached), "{error}"),
            }
        }
        assert_eq!(std::fs::exists(&path).unwrap(), another);
        let _ = std::fs::remove_file(&path);
    }
}

/// What is mapped is the file whose gate is held, and none that came under its name since, whoever's.
#[test]
fn nothing_is_mapped_but_the_file_of_the_gate() {
    let id = identity(80);
    let session = Session::attach(id, &layout(), &mut Calls::default()).unwrap();
    let path = ArenaPath::new(&id);
    let gate = path.gate().unwrap().unwrap();
    let map = || map_again(&path, &gate, layout().compute().unwrap());
    assert!(map().unwrap().is_in(gate.fd()).unwrap());
    let kept = format!("{}-kept", path.path);
    std::fs::rename(&path.path, &kept).unwrap();
    let file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path.path).unwrap();
    file.set_len(session.arena().bytes()).unwrap();
    assert!(map().is_err_and(|error| error.is_displaced()));
    std::fs::rename(&kept, &path.path).unwrap();
    drop(gate);
    assert_eq!(session.detach(&mut Calls::default()).unwrap(), Detached::Last);
    assert!(left_behind(&id).is_empty());
}
