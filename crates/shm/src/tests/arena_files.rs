//! What stands at an arena's name already: which of it is joined, refused, replaced or removed.

use super::{Calls, identity, layout, left_behind};
use crate::file::FIRST_PARTICIPANT_BYTE;
use crate::layout::{ARENA_BYTES_MAX, HEADER_BYTES, PAGE_BYTES};
use crate::session::{ARENA_ID_AT, IN_CHARGE, MAGIC, READY_AT};
use crate::sys;
use crate::{ARENA_DIRECTORY, ArenaIdentity, ArenaLayout, Error, Ordering, Session, VolumeIdentity};
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

/// The directory of meeting places of an arena of this user's, with a place in it.
fn meeting_place(arena: ArenaIdentity) -> String {
    let directory = crate::meeting_directory(crate::user_of_process(), arena).unwrap();
    std::fs::write(format!("{directory}/fifo-5-1"), b"").unwrap();
    directory
}

/// Its own header is all that a stale arena has to say which it was: that of another, which lives, is not believed.
#[test]
fn a_stale_arena_that_says_that_it_is_a_living_one_takes_no_meeting_place_away() {
    let (living, planted) = (identity(83), identity(84));
    let mut guard = Calls::default();
    let session = Session::attach(living, &layout(), &mut guard).unwrap();
    let directory = meeting_place(session.arena_identity());
    let stale = Session::attach(planted, &layout(), &mut Calls::default()).unwrap();
    stale.arena().fixed(ARENA_ID_AT).store(session.arena_identity().0, Ordering::SeqCst);
    drop(stale);
    crate::remove_leftovers_of(planted.nonce);
    assert!(left_behind(&planted).is_empty(), "it is stale");
    assert!(std::fs::exists(format!("{directory}/fifo-5-1")).unwrap(), "its arena lives");
    session.detach(&mut guard).unwrap();
    assert!(!std::fs::exists(directory).unwrap());
}

/// Where an arena cannot be asked which it is, as another user's, only who took the killed ones' away knows that its places are of none.
#[test]
fn the_meeting_places_of_an_arena_that_is_replaced_go_beside_one_that_cannot_be_asked() {
    let id = identity(85);
    let mute = format!("{ARENA_DIRECTORY}/gannet-1-{:032x}-{:016x}", 85, id.nonce ^ 1 << 63);
    std::fs::write(&mute, b"").unwrap();
    let killed = || {
        let session = Session::attach(id, &layout(), &mut Calls::default()).unwrap();
        meeting_place(session.arena_identity())
    };
    let first = killed();
    let second = killed();
    let is_there = |directory: &str| std::fs::exists(directory).unwrap();
    let found = (is_there(&first), is_there(&second));
    assert!(Session::remove_stale(id).unwrap());
    let removed = !is_there(&second);
    std::fs::remove_file(&mute).unwrap();
    assert_eq!(found, (false, true));
    assert!(removed);
}
