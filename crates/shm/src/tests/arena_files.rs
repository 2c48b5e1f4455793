//! What stands at an arena's name already: which of it is joined, refused, replaced or removed.

use super::{Calls, identity, layout, left_behind};
use crate::file::FIRST_PARTICIPANT_BYTE;
use crate::layout::{ARENA_BYTES_MAX, HEADER_BYTES, PAGE_BYTES};
use crate::session::{IN_CHARGE, MAGIC, READY_AT};
use crate::sys;
use crate::{ArenaLayout, Error, Ordering, Session, VolumeIdentity};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};

fn path_of(id: &VolumeIdentity) -> String {
    let mut guard = Calls::default();
    let session = Session::attach(*id, &layout(), &mut guard).unwrap();
    let path = session.path().unwrap().to_owned();
    session.detach(&mut guard).unwrap();
    path
}

#[test]
fn another_layout_is_another_version() {
    let id = identity(3);
    let mut guard = Calls::default();
    let session = Session::attach(id, &layout(), &mut guard).unwrap();
    for other in [layout().region("more", 8, 8), ArenaLayout::new(), layout().limits(8, 65)] {
        assert!(matches!(Session::attach(id, &other, &mut guard), Err(Error::OtherVersion { .. })));
    }
    session.detach(&mut guard).unwrap();
}

#[test]
fn whatever_else_stands_at_the_name_is_refused() {
    let id = identity(4);
    let path = path_of(&id);
    let mut guard = Calls::default();
    let mut refused = |why: &str| {
        match Session::attach(id, &layout(), &mut guard) {
            Err(Error::Foreign { .. }) => {}
            other => panic!("{why}: {other:?}"),
        }
        assert_eq!(guard.first, 0);
    };
    symlink("/dev/null", &path).unwrap();
    refused("symbolic link");
    std::fs::remove_file(&path).unwrap();
    std::fs::create_dir(&path).unwrap();
    refused("directory");
    std::fs::remove_dir(&path).unwrap();
    std::fs::write(&path, b"").unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
    refused("readable by others");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    // Only root can give files away; others are covered by the mode check above.
    if chown(&path, Some(65534), None).is_ok() {
        refused("another user's");
    }
    std::fs::remove_file(&path).unwrap();
}

/// Who lives in it cannot be joined, and is not of another version. What nobody lives in is no matter, whatever its size.
#[test]
fn an_arena_whose_file_was_cut_is_damaged() {
    let id = identity(43);
    let mut guard = Calls::default();
    let session = Session::attach(id, &layout(), &mut guard).unwrap();
    let (path, bytes) = (session.path().unwrap().to_owned(), session.arena().bytes());
    session.detach(&mut guard).unwrap();
    // As it would be found after a cut: a header that says how long it was made.
    let header = [MAGIC, 0, bytes].map(u64::to_le_bytes).concat();
    for (length, is_cut) in [(0, true), (24, true), (HEADER_BYTES, true), (bytes - 1, true), (bytes, false)] {
        std::fs::write(&path, &header).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        let file = std::fs::File::options().read(true).write(true).open(&path).unwrap();
        file.set_len(length).unwrap();
        assert!(sys::lock_bytes_try(&file, FIRST_PARTICIPANT_BYTE, 1).unwrap());
        match Session::attach(id, &layout(), &mut guard) {
            Err(Error::Cut { .. }) if is_cut => {}
            Err(Error::OtherVersion { .. }) if !is_cut => {}
            other => panic!("{length} bytes: {other:?}"),
        }
        drop(file);
        guard = Calls::default();
        let session = Session::attach(id, &layout(), &mut guard).unwrap();
        assert_eq!((guard.first, guard.joined), (1, 0), "{length} bytes");
        session.detach(&mut guard).unwrap();
        assert_eq!(left_behind(&id), Vec::<String>::new());
    }
    // Of one whose last region is as long as its first user said, only the header says how long that was.
    let layout = || layout().tail("tail", 4 * PAGE_BYTES, PAGE_BYTES);
    let session = Session::attach(id, &layout(), &mut guard).unwrap();
    let file = std::fs::File::options().write(true).open(&path).unwrap();
    file.set_len(session.arena().bytes() - PAGE_BYTES).unwrap();
    assert!(matches!(Session::attach(id, &layout(), &mut guard), Err(Error::Cut { .. })));
    file.set_len(session.arena().bytes()).unwrap();
    Session::attach(id, &layout(), &mut guard).unwrap().detach(&mut guard).unwrap();
    session.detach(&mut guard).unwrap();
    // Longer than any arena can be.
    std::fs::write(&path, &header).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    std::fs::File::options().write(true).open(&path).unwrap().set_len(ARENA_BYTES_MAX * 2).unwrap();
    Session::attach(id, &layout(), &mut guard).unwrap().detach(&mut guard).unwrap();
    assert_eq!(left_behind(&id), Vec::<String>::new());
}

#[test]
fn a_stale_arena_is_replaced() {
    let id = identity(5);
    let mut guard = Calls::default();
    let session = Session::attach(id, &layout(), &mut guard).unwrap();
    let (old, path) = (session.arena_identity(), session.path().unwrap().to_owned());
    // Not detached: for the others like a kill.
    drop(session);
    assert!(std::fs::exists(&path).unwrap());
    let session = Session::attach(id, &layout(), &mut guard).unwrap();
    assert_ne!(session.arena_identity(), old);
    assert_eq!(guard.first, 2);
    session.detach(&mut guard).unwrap();
    assert!(left_behind(&id).is_empty());
}

/// A volume that says that it is closed may be older content that was put there under users who were killed: then all that tells of them is
/// their arena. Only if one of them was closing it, and had found it his, is it of no use.
#[test]
fn an_arena_is_removed_by_others_only_if_its_volume_was_closed_in_it() {
    let id = identity(82);
    let volume = std::env::temp_dir().join(format!("gannet-test-shm-closed-{}", std::process::id()));
    std::fs::write(&volume, [0; 64]).unwrap();
    let status = std::fs::metadata(&volume).unwrap();
    let killed = |was_closing: bool| {
        let session = Session::attach(id, &layout(), &mut Calls::default()).unwrap();
        session.note_volume(volume.as_os_str().as_encoded_bytes(), status.dev(), status.ino(), 8);
        session.note_writer();
        // As the last one does before it looks, and who adopts an arena.
        session.arena().fixed(READY_AT).store(IN_CHARGE, Ordering::SeqCst);
        if was_closing {
            session.note_closing();
        }
        drop(session);
        crate::remove_leftovers();
        !left_behind(&id).is_empty()
    };
    assert!(killed(false), "nobody had found the volume his");
    assert!(!killed(true), "it was closed");
    std::fs::remove_file(&volume).unwrap();
}
