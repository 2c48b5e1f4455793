//! Volumes whose users were all killed, and whose file then holds older bytes: a copy was put back. The arena of later must not be
//! believed of them, however the copy was made.

use crate::handover::Volume;
use crate::operations::{all, populate};
use crate::state::{State, capture};
use crate::volume::{Mode, assert_sound, options};
use gannet_fstest::Rig;
use gannet_logfs::{AttachOptions, FurtherOptions, LogFs, make, make_spanning, open_medium};
use gannet_media::{CreateOptions, Medium};
use gannet_vfs::{Errno, FileSystem, Name, NewNode, Owner, RemoveKind, WritePosition};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Where a volume says how often its arena was adopted.
const ADOPTIONS_AT: u64 = 4096 + 3 * 64 + 8;
const BYTES: u64 = 4 << 20;

/// How a child opens the volume.
pub(crate) fn options_of(role: &str) -> AttachOptions {
    match role {
        "few nodes" => AttachOptions { index_bytes_max: 64 * 512, ..options() },
        _ => options(),
    }
}

/// What a child does, see `handover::child`.
pub(crate) fn act(role: &str, fs: &LogFs) {
    let rig = Rig::new(fs);
    match role.split_once(' ') {
        Some(("operation", number)) => {
            let operation = &all(Mode::InPlace)[number.parse::<usize>().expect("a number")];
            // What it is about may not be there.
            let _ = operation.apply(fs);
        }
        Some(("few", _)) => {
            for number in 0..200 {
                rig.write(rig.file(rig.root, &format!("{number}")), 0, b"something");
            }
        }
        Some(("append", _)) => {
            let file = rig.find(rig.root, "7").expect("a file");
            rig.try_write(file, WritePosition::Append, b" more").expect("write");
            let dropped = fs.memory().expect("memory").indexes_dropped;
            for number in 100..200 {
                rig.content(rig.find(rig.root, &format!("{number}")).expect("a file"));
            }
            assert!(fs.memory().expect("memory").indexes_dropped > dropped + 64, "its index was dropped");
        }
        _ => {
            assert!(role == "look", "no such role: {role}");
            capture(fs).expect("the tree");
        }
    }
}

fn bytes_of(path: &Path) -> Vec<u8> {
    std::fs::read(path).expect("read the volume's file")
}

/// Puts bytes back into the same file.
fn restore(path: &Path, bytes: &[u8]) {
    let file = std::fs::OpenOptions::new().write(true).open(path).expect("the volume's file");
    file.write_all_at(bytes, 0).expect("write");
}

fn new_file(path: &Path, bytes: u64) -> Medium {
    let created = CreateOptions { force: true, huge_pages: false, ..CreateOptions::default() };
    Medium::create(path, bytes, created, &mut |_| {}).expect("a file")
}

fn volume(name: &str) -> Volume {
    let path = PathBuf::from(format!("/dev/shm/gannet-test-restored-{name}-{}", std::process::id()));
    make(&new_file(&path, BYTES), &Volume::made(name)).expect("mkfs");
    Volume(path)
}

/// Opens the volume, whose bytes are of when it was as `expected`; looks at it, works on it, and closes it. Whether it was recovered.
fn use_restored(volume: &Volume, expected: &State, when: &str) -> bool {
    let fs = volume.open();
    let is_recovered = fs.recovery().is_some();
    let found = capture(&fs).unwrap_or_else(|error| panic!("{when}: {error}"));
    found
        .clone()
        .without_times()
        .equals(&expected.clone().without_times())
        .unwrap_or_else(|why| panic!("{when}: {why}"));
    let rig = Rig::new(&fs);
    // Whatever the arena takes for free is used.
    for number in 0..40 {
        let text = format!("new {number}");
        rig.write(rig.file(rig.root, &text), 0, &[0x77; 20_000]);
    }
    let later = capture(&fs).expect("the tree");
    assert!(fs.detach().expect("detach"), "{when}");
    drop(fs);
    let medium = open_medium(&volume.0, true).expect("open the volume");
    assert_sound(&medium, false, when);
    drop(medium);
    let fs = volume.open();
    let found = capture(&fs).unwrap_or_else(|error| panic!("{when}, later: {error}"));
    found.without_times().equals(&later.without_times()).unwrap_or_else(|why| panic!("{when}, later: {why}"));
    is_recovered
}

fn populated(name: &str) -> (Volume, State) {
    let volume = volume(name);
    let fs = volume.open();
    populate(&fs);
    let state = capture(&fs).expect("the tree");
    assert!(fs.detach().expect("detach"));
    (volume, state)
}

/// The copy was made while nobody had the volume open, though it was not closed.
#[test]
fn an_unclean_copy_that_is_put_back_is_recovered() {
    for by_rename in [false, true] {
        let (volume, before) = populated("unclean");
        volume.kill_one("look", Duration::ZERO);
        let copy = bytes_of(&volume.0);
        volume.kill_one("work", Duration::from_millis(20));
        volume.kill_one("look", Duration::ZERO);
        if by_rename {
            let other = volume.0.with_extension("copy");
            std::fs::write(&other, &copy).expect("write");
            std::fs::rename(&other, &volume.0).expect("rename");
        } else {
            restore(&volume.0, &copy);
        }
        assert!(use_restored(&volume, &before, "put back"), "believed an arena of later; by rename: {by_rename}");
        assert!(volume.arenas().is_empty());
        // The arena was adopted once more, but nothing was done.
        volume.kill_one("look", Duration::ZERO);
        let copy = bytes_of(&volume.0);
        volume.kill_one("look", Duration::ZERO);
        restore(&volume.0, &copy);
        let fs = volume.open();
        assert!(fs.recovery().is_some());
    }
}

/// A copy of a closed volume is put back under a user, who goes on. What they store then is in the copy: it must not count as closed, neither when they
/// close it nor when they are killed.
#[test]
fn what_is_put_back_under_a_user_does_not_count_as_closed() {
    for is_killed in [false, true] {
        let (volume, before) = populated("under");
        let closed = bytes_of(&volume.0);
        if is_killed {
            let mut user = volume.spawn("look");
            restore(&volume.0, &closed);
            user.kill().expect("kill");
            user.wait().expect("wait");
            // As somebody does who opens or closes any other volume.
            gannet_shm::remove_leftovers();
        } else {
            let fs = volume.open();
            restore(&volume.0, &closed);
            assert_eq!(fs.detach().expect_err("it was not closed").errno(), Errno::UCLEAN);
        }
        assert!(use_restored(&volume, &before, "put back"), "its maps were believed; killed: {is_killed}");
        assert!(volume.arenas().is_empty());
    }
}

/// Another volume, or an older copy, is put into a volume's file under its users. Of what they do from then on nothing is stored there.
#[test]
fn nothing_is_stored_to_what_was_put_there_under_a_user() {
    let ((volume, older), (other, before)) = (populated("one"), populated("another"));
    let others = [(bytes_of(&volume.0), older), (bytes_of(&other.0), before)];
    for (bytes, before) in others {
        let fs = volume.open();
        let rig = Rig::new(&fs);
        let file = rig.file(rig.root, "file");
        rig.write(file, 0, &[0x55; 20_000]);
        restore(&volume.0, &bytes);
        let is_refused = |errno: Option<Errno>| assert_eq!(errno, Some(Errno::UCLEAN));
        is_refused(rig.try_write(file, WritePosition::At(4096), &[0x66; 4096]).err().map(|error| error.errno()));
        is_refused(rig.try_write(file, WritePosition::Append, b"more").err().map(|error| error.errno()));
        let made = fs.create(rig.root, Name::new(b"new").expect("a name"), &NewNode::regular(0o644, Owner::default()));
        is_refused(made.err().map(|error| error.errno()));
        let removed = fs.remove(rig.root, Name::new(b"file").expect("a name"), RemoveKind::NonDirectory);
        is_refused(removed.err().map(|error| error.errno()));
        assert_eq!(bytes_of(&volume.0), bytes, "nothing was stored");
        assert_eq!(fs.detach().expect_err("it was not closed").errno(), Errno::UCLEAN);
        drop(fs);
        // What was under way when it was put there could have been stored in it.
        assert!(use_restored(&volume, &before, "put under a user"), "recovered");
    }
    assert!(volume.arenas().is_empty());
}

/// Nor does anybody join its users: what they know of it is not true of what stands there, and who names their arena there makes it pass for theirs.
#[test]
fn nobody_joins_the_users_of_what_was_replaced() {
    let (volume, before) = populated("joined");
    let closed = bytes_of(&volume.0);
    let is_refused = |read_only| {
        let error = LogFs::open(&volume.0, read_only, options()).err().expect("refused");
        assert!(error.errno() == Errno::UCLEAN && error.to_string().contains("other content was put"), "{error}");
    };
    let fs = volume.open();
    let rig = Rig::new(&fs);
    rig.unlink(rig.root, "a").expect("what populate made");
    restore(&volume.0, &closed);
    is_refused(false);
    is_refused(true);
    assert_eq!(bytes_of(&volume.0), closed, "nothing was stored");
    assert_eq!(fs.detach().expect_err("it was not closed").errno(), Errno::UCLEAN);
    drop(fs);
    assert!(use_restored(&volume, &before, "put back under two"), "its maps were believed");
    // Nor do those who write join readers of something else, whether it was closed at another time or not at all.
    let others = [closed, {
        volume.kill_one("look", Duration::ZERO);
        bytes_of(&volume.0)
    }];
    drop(volume.open());
    for other in others {
        let now = bytes_of(&volume.0);
        let mut reader = volume.spawn("reader");
        restore(&volume.0, &other);
        let error = LogFs::open(&volume.0, false, options()).err().expect("refused");
        assert!([Errno::UCLEAN, Errno::BUSY].contains(&error.errno()), "{error}");
        assert_eq!(bytes_of(&volume.0), other, "nothing was stored");
        restore(&volume.0, &now);
        let fs = volume.open();
        assert!(fs.recovery().is_none() && !fs.detach().expect("detach"), "the reader is there");
        let again = volume.open();
        reader.kill().expect("kill");
        reader.wait().expect("wait");
        assert!(
            again.recovery().is_none() && again.detach().expect("detach"),
            "who wrote had left, and readers stayed"
        );
    }
}

#[test]
fn what_was_cut_under_a_user_does_not_count_as_closed() {
    let (volume, _) = populated("cut-under");
    let fs = volume.open();
    std::fs::File::options().write(true).open(&volume.0).and_then(|file| file.set_len(0)).expect("cut");
    assert_eq!(fs.detach().expect_err("there is nothing to close").errno(), Errno::IO);
}

/// The copy was made in one moment, as file systems and virtual machines can, while processes had the volume open. Whatever
/// changed afterwards is noticed; but for what is stored in place, to which nothing in the arena refers.
#[test]
fn a_snapshot_of_an_open_volume_that_is_put_back_is_recovered() {
    let (volume, before) = populated("snapshot");
    let closed = bytes_of(&volume.0);
    let (operations, mut adopted) = (all(Mode::InPlace), Vec::new());
    for (number, operation) in operations.iter().enumerate() {
        restore(&volume.0, &closed);
        let mut first = volume.spawn("look");
        let snapshot = bytes_of(&volume.0);
        volume.kill_one(&format!("operation {number}"), Duration::ZERO);
        first.kill().expect("kill");
        first.wait().expect("wait");
        let did_nothing = bytes_of(&volume.0) == snapshot;
        restore(&volume.0, &snapshot);
        if !use_restored(&volume, &before, &operation.text) && !did_nothing {
            adopted.push(&operation.text);
        }
    }
    assert_eq!(adopted, ["allocate /a Unshare 0 4096"], "but for what stores a time alone");
}

/// What the arena knew of a file it still knows after it has dropped the file's index to make room.
#[test]
fn a_change_to_what_was_dropped_since_is_noticed() {
    let volume = volume("dropped");
    let mut first = volume.spawn("few nodes");
    let before = capture(&volume.open()).expect("the tree");
    let snapshot = bytes_of(&volume.0);
    volume.kill_one("append one", Duration::ZERO);
    first.kill().expect("kill");
    first.wait().expect("wait");
    restore(&volume.0, &snapshot);
    assert!(use_restored(&volume, &before, "dropped"), "believed an arena of later");
}

/// Who was killed while it adopted the arena is no reason to recover.
#[test]
fn an_adoption_that_was_cut_short_is_done_again() {
    let (volume, before) = populated("cut");
    let count = |count: u64| restore_word(&volume.0, ADOPTIONS_AT, count);
    volume.kill_one("look", Duration::ZERO);
    assert_eq!(volume.word(ADOPTIONS_AT), 0);
    volume.kill_one("look", Duration::ZERO);
    assert_eq!(volume.word(ADOPTIONS_AT), 1);
    // As it stands between the store to the medium and that to the arena.
    count(2);
    volume.kill_one("look", Duration::ZERO);
    assert_eq!(volume.word(ADOPTIONS_AT), 3, "adopted, and told from the one before");
    count(2);
    assert!(use_restored(&volume, &before, "of before the last"), "believed an arena of later");
    volume.kill_one("look", Duration::ZERO);
    assert_eq!(volume.word(ADOPTIONS_AT), 0, "another arena");
}

fn restore_word(path: &Path, at: u64, word: u64) {
    let file = std::fs::OpenOptions::new().write(true).open(path).expect("the volume's file");
    file.write_all_at(&word.to_le_bytes(), at).expect("write");
}

/// Of several media one alone is put back: it does not fit the others.
#[test]
fn a_medium_of_several_that_is_put_back_alone_is_refused() {
    let first = PathBuf::from(format!("/dev/shm/gannet-test-restored-first-{}", std::process::id()));
    let second = first.with_extension("second");
    let parts = [&first, &second].map(|path| (new_file(path, BYTES), path.clone(), BYTES));
    let medium = Medium::join(parts.into()).expect("two media");
    let further = FurtherOptions { start_bytes: BYTES, path: second.to_string_lossy().as_bytes().to_vec() };
    make_spanning(&medium, &Volume::made("several"), &[further]).expect("mkfs");
    drop(medium);
    let volume = Volume(first);
    let fs = volume.open();
    populate(&fs);
    let before = capture(&fs).expect("the tree");
    assert!(fs.detach().expect("detach"));
    drop(fs);
    volume.kill_one("look", Duration::ZERO);
    let copies = [&volume.0, &second].map(|path| bytes_of(path));
    volume.kill_one("work", Duration::from_millis(20));
    volume.kill_one("look", Duration::ZERO);
    restore(&second, &copies[1]);
    let error = LogFs::open(&volume.0, false, options()).err().expect("refused");
    assert!(error.to_string().contains("was not used last together with this first medium"), "{error}");
    // With the first one from the same copy they fit.
    restore(&volume.0, &copies[0]);
    assert!(use_restored(&volume, &before, "both put back"), "believed an arena of later");
    std::fs::remove_file(second).expect("remove");
}
