//! A log of which an entry, a page or a link went bad does not end there without a word: not for who opens the file, nor for recovery, which
//! would free what the rest of it names; and `fsck` keeps what stands behind.

use super::{attach, damage, empty_volume, repaired, run};
use crate::LogFs;
use crate::check::Outcome;
use crate::disk::Disk;
use crate::format::page::{AT_NEXT, Link};
use crate::format::slot::AT_HEAD;
use crate::format::{BLOCK_BYTES, LINE_BYTES};
use gannet_media::{Medium, MediumOffset};
use gannet_shm::testing::{Outcome as Abandoned, run_abandoned};
use gannet_vfs::usermem::{Destination, Source};
use gannet_vfs::{
    AttributeChange, Errno, FileSystem, FileType, Name, NewNode, NodeId, Owner, RenameFlags, WriteFlags, WritePosition,
};

const FILES: u32 = 100;

fn name(number: u32) -> String {
    format!("file-{number}")
}

fn make(fs: &LogFs, directory: NodeId, name: &str, file_type: FileType) -> NodeId {
    let new = NewNode::of_type(file_type, 0o755, Owner::default());
    fs.create(directory, Name::new(name.as_bytes()).expect("a name"), &new).expect("made")
}

fn append(fs: &LogFs, file: NodeId, text: &[u8]) -> gannet_vfs::Result<()> {
    fs.write(file, WritePosition::Append, &mut Source::from_slice(text), WriteFlags::empty()).map(|_| ())
}

/// A directory with files in it, whose log has pages, and a file that was appended to. Closed, or as a power loss leaves it.
fn volume(is_closed: bool) -> (Medium, NodeId, NodeId) {
    let medium = empty_volume(16 << 20);
    let fs = attach(&medium);
    let directory = make(&fs, fs.root(), "directory", FileType::Directory);
    for number in 0..FILES {
        make(&fs, directory, &name(number), FileType::Regular);
    }
    let file = make(&fs, fs.root(), "file", FileType::Regular);
    for number in 0..6 {
        append(&fs, file, format!("line {number}\n").as_bytes()).expect("appended");
    }
    if is_closed {
        assert!(fs.detach().expect("detach"));
    }
    (medium, directory, file)
}

fn head_at(medium: &Medium, node: NodeId) -> u64 {
    let disk = Disk::open(medium.clone()).expect("a volume");
    disk.slot_at(node.number as u32).expect("readable").expect("a slot") + AT_HEAD
}

fn first_page_at(medium: &Medium, node: NodeId) -> u64 {
    let head = medium.load_u64(MediumOffset(head_at(medium, node))).expect("readable");
    Link::decode(head).expect("a log").block * BLOCK_BYTES
}

fn flip(medium: &Medium, at: u64, bits: u64) {
    let word = medium.load_u64(MediumOffset(at)).expect("readable");
    medium.store_u64(MediumOffset(at), word ^ bits).expect("stored");
}

fn names_in(fs: &LogFs, directory: NodeId) -> usize {
    (0..FILES)
        .filter(|number| fs.lookup(directory, Name::new(name(*number).as_bytes()).expect("a name")).is_ok())
        .count()
}

fn content(fs: &LogFs, file: NodeId) -> String {
    let mut bytes = [0; 200];
    let count = fs.read(file, 0, &mut Destination::from_slice(&mut bytes)).expect("read");
    String::from_utf8_lossy(&bytes[..count]).into_owned()
}

/// What goes bad in the directory's log, which has pages.
fn places_in_directory(medium: &Medium, directory: NodeId) -> [(&'static str, u64, u64); 5] {
    let page = first_page_at(medium, directory);
    [
        ("the slot's link", head_at(medium, directory), 0x20),
        ("the epoch in it", head_at(medium, directory), 1 << 41),
        ("a page's header", page + 16, 0x20),
        ("an entry", page + 20 * LINE_BYTES + 16, 0x20),
        ("a page's link", page + AT_NEXT, 0x20),
    ]
}

#[test]
fn recovery_frees_nothing_that_a_damaged_log_names() {
    let (medium, directory, _) = volume(false);
    for (what, at, bits) in places_in_directory(&medium, directory) {
        let (medium, directory, _) = volume(false);
        flip(&medium, at, bits);
        let disk = Disk::open(medium.clone()).expect("a volume");
        let error = crate::recover::recover(&disk, 1).err().expect(what);
        assert_eq!(error.errno(), Errno::UCLEAN, "{what}: {error}");
        let report = repaired(&medium);
        assert_eq!(report.outcome, Outcome::Repaired, "{what}");
        let fs = attach(&medium);
        let kept = names_in(&fs, directory) as u32;
        assert!(kept >= if what == "an entry" { FILES - 2 } else { FILES }, "{what}: {kept} names");
    }
}

#[test]
fn a_damaged_log_of_a_closed_volume_is_not_read_in_part() {
    let (medium, directory, _) = volume(true);
    for (what, at, bits) in places_in_directory(&medium, directory) {
        let (medium, directory, _) = volume(true);
        flip(&medium, at, bits);
        let fs = attach(&medium);
        let error = fs.lookup(directory, Name::new(b"file-0").expect("a name")).expect_err(what);
        assert_eq!(error.errno(), Errno::UCLEAN, "{what}: {error}");
        drop(fs);
        assert_eq!(repaired(&medium).outcome, Outcome::Repaired, "{what}");
    }
}

/// Else what is appended takes the place, and the sequence, of what went bad, and what stood behind that is appended to it.
#[test]
fn nothing_is_appended_where_an_entry_went_bad() {
    let (medium, _, file) = volume(true);
    let page = first_page_at(&medium, file);
    // Lines in order: an entry each.
    flip(&medium, page + 3 * LINE_BYTES + 40, 0x20);
    let fs = attach(&medium);
    let error = append(&fs, file, b"more\n").expect_err("an entry is damaged");
    assert_eq!(error.errno(), Errno::UCLEAN, "{error}");
    drop(fs);
    repaired(&medium);
    let fs = attach(&medium);
    assert!(content(&fs, file).contains("line 5"), "{}", content(&fs, file));
}

/// In the epoch in which a page was first used, its last entry is known from nothing.
#[test]
fn the_last_entry_of_a_log_does_not_vanish() {
    let (medium, _, file) = volume(false);
    let fs = attach(&medium);
    let other = make(&fs, fs.root(), "other", FileType::Regular);
    append(&fs, other, b"x").expect("appended");
    let change = AttributeChange { user: Some(7), ..AttributeChange::default() };
    fs.set_attributes(other, &change).expect("changed");
    assert!(fs.detach().expect("detach"));
    let page = first_page_at(&medium, other);
    flip(&medium, page + 2 * LINE_BYTES + 32, 0x20);
    let found = damage(&run(&medium, false));
    assert_eq!(found.len(), 1, "{found:?}");
    let fs = attach(&medium);
    assert_eq!(fs.attributes(other).expect_err("damaged").errno(), Errno::UCLEAN);
    // Others are not concerned.
    assert_eq!(content(&fs, file).lines().count(), 6);
}

fn is_refused_and_repaired(medium: &Medium, what: &str) {
    let disk = Disk::open(medium.clone()).expect("a volume");
    let error = crate::recover::recover(&disk, 1).err().expect(what);
    assert_eq!(error.errno(), Errno::UCLEAN, "{what}: {error}");
    assert_eq!(run(medium, false).outcome, Outcome::Damaged, "{what}");
    assert_eq!(repaired(medium).outcome, Outcome::Repaired, "{what}");
    drop(attach(medium));
}

/// A link of an epoch that has passed was not being stored when the crash came.
#[test]
fn what_recovery_refuses_is_damage_to_fsck() {
    let (medium, ..) = volume(false);
    let fs = attach(&medium);
    let one = make(&fs, fs.root(), "one", FileType::Regular);
    append(&fs, one, b"x").expect("appended");
    drop(fs);
    drop(attach(&medium));
    flip(&medium, first_page_at(&medium, one) + 16, 0x20);
    is_refused_and_repaired(&medium, "the only page of a log, of an epoch that has passed");
}

/// The page behind a damaged entry proves that there was one.
#[test]
fn the_last_entry_of_a_page_does_not_vanish_with_the_next_page() {
    let (medium, ..) = volume(false);
    let fs = attach(&medium);
    let file = make(&fs, fs.root(), "full", FileType::Regular);
    let lines = BLOCK_BYTES / LINE_BYTES - 1;
    (0..=lines).for_each(|_| append(&fs, file, b"x").expect("appended"));
    drop(fs);
    let page = first_page_at(&medium, file);
    assert_ne!(medium.load_u64(MediumOffset(page + AT_NEXT)).expect("readable"), 0, "there is another page");
    flip(&medium, page + lines * LINE_BYTES + 40, 0x20);
    is_refused_and_repaired(&medium, "the last entry of a page");
}

/// A thread ends while it renames a file from a directory whose log went bad into another one: the first is damaged to all who come, as it
/// was, and everything else goes on.
#[test]
fn a_log_that_went_bad_keeps_nobody_from_what_else_a_thread_had_locked() {
    let (medium, directory, _) = volume(false);
    let places = places_in_directory(&medium, directory);
    for (what, at, bits) in &places[2..] {
        let (mut stores, mut settled) = (1, 0);
        loop {
            let (medium, directory, file) = volume(false);
            let fs = attach(&medium);
            let other = make(&fs, fs.root(), "other", FileType::Directory);
            let (old, new) = (Name::new(b"file-7").expect("a name"), Name::new(b"moved").expect("a name"));
            // They are known from before.
            names_in(&fs, directory);
            let damaged = medium.load_u64(MediumOffset(*at)).expect("readable") ^ bits;
            medium.store_u64(MediumOffset(*at), damaged).expect("stored");
            let session = fs.session().clone();
            let work = || fs.rename(directory, old, other, new, RenameFlags::empty());
            let ended = matches!(run_abandoned(&[&session], stores, work), Abandoned::Completed(_));
            session.reap_dead().expect("settled");
            append(&fs, file, b"more\n").unwrap_or_else(|error| panic!("{what}, {stores} stores: {error}"));
            make(&fs, other, "later", FileType::Regular);
            if let Err(error) = fs.lookup(directory, Name::new(b"file-0").expect("a name")) {
                assert_eq!(error.errno(), Errno::UCLEAN, "{what}, {stores} stores: {error}");
                settled += 1;
            }
            assert_eq!(medium.load_u64(MediumOffset(*at)), Ok(damaged), "{what}, {stores} stores: not touched");
            drop(fs);
            if stores % 10 == 1 {
                assert_eq!(repaired(&medium).outcome, Outcome::Repaired, "{what}, {stores} stores");
                let fs = attach(&medium);
                assert!(names_in(&fs, directory) as u32 + 2 >= FILES, "{what}, {stores} stores");
                assert_eq!(content(&fs, file).lines().count(), 7, "{what}, {stores} stores");
            }
            if ended {
                break;
            }
            stores += 3;
        }
        assert!(settled > 3, "{what}: {settled} of {stores}");
    }
}
