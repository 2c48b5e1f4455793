//! What a thread that ended, or an operation that failed, leaves where no name leads: inodes without names that somebody still knows
//! by number, log pages of inodes that were never born, numbers between two hands.

use crate::enumeration::{Expected, crashes};
use crate::long;
use crate::operations::{at, bytes, populate};
use crate::state::{Tear, capture};
use crate::volume::{Mode, assert_sound, attach, image, open};
use gannet_fstest::{Rig, name};
use gannet_logfs::LogFs;
use gannet_media::Simulation;
use gannet_media::simulation::CrashPolicy;
use gannet_shm::testing::{Outcome, run_abandoned, store_point};
use gannet_vfs::{
    AllocateMode, AttributeChange, Errno, FileSystem, FileType, ModeChange, NewNode, NodeId, Owner, WritePosition,
};
use std::sync::Arc;

const OWNER: Owner = Owner { user: 1000, group: 100 };

/// Does `work` on a thread that ends after so many stores to arena or medium, and settles it. Whether it came to its end before.
fn abandon(fs: &LogFs, simulation: &Simulation, stores: u64, work: impl FnOnce() + Send) -> bool {
    let session = fs.session().clone();
    simulation.set_hook(Some(Arc::new(|_| store_point())));
    let outcome = run_abandoned(&[&session], stores, work);
    simulation.set_hook(None);
    session.reap_dead().expect("settling");
    matches!(outcome, Outcome::Completed(()))
}

/// How many stores `work` makes on a volume with this image.
fn stores_of(image: &[u8], work: impl Fn(&LogFs) + Sync) -> u64 {
    let (mut least, mut most) = (1, 1 << 14);
    while least < most {
        let stores = least + (most - least) / 2;
        let (fs, simulation) = open(image);
        if abandon(&fs, &simulation, stores, || work(&fs)) {
            most = stores;
        } else {
            least = stores + 1;
        }
    }
    least
}

/// A directory, or a file, whose last name a thread takes away and ends: who knows it by its number, from a walk that began before, makes
/// nothing in it and gives it no name. It is gone, and what was made in it would be, too.
#[test]
fn what_lost_its_last_name_to_a_thread_that_ended_gets_nothing_more() {
    type Loss = (&'static str, &'static str, fn(&Rig<'_>));
    let losses: [Loss; 4] = [
        ("a directory is removed", "e", |rig| {
            let _ = rig.rmdir(rig.root, "e");
        }),
        ("a file is removed", "b", |rig| {
            let _ = rig.unlink(rig.root, "b");
        }),
        ("a directory is replaced", "e", |rig| {
            let _ = rig.rename((at(rig, "/d2").expect("a directory"), "sub"), (rig.root, "e"));
        }),
        ("a file is replaced", "b", |rig| {
            let _ = rig.rename((rig.root, "cut"), (rig.root, "b"));
        }),
    ];
    let image = image(Mode::InPlace, |fs| populate(fs));
    for (text, path, lose) in losses {
        let (mut stores, mut gone) = (1, 0);
        loop {
            let (fs, simulation) = open(&image);
            let rig = Rig::new(&fs);
            let node = rig.find(rig.root, path).expect("it is there");
            let is_directory = rig.attributes(node).file_type == FileType::Directory;
            let ended = abandon(&fs, &simulation, stores, || lose(&Rig::new(&fs)));
            if rig.find(rig.root, path) != Some(node) {
                gone += 1;
                let refused = if is_directory {
                    fs.create(node, name("late"), &NewNode::regular(0o600, OWNER)).map(drop)
                } else {
                    fs.link(node, rig.root, name("late"))
                };
                let errno = refused.expect_err(&format!("{text}, {stores} stores")).errno();
                assert!([Errno::NOENT, Errno::STALE].contains(&errno), "{text}, {stores} stores: {errno:?}");
            }
            if ended {
                break;
            }
            stores += 1;
        }
        assert!(gone > 3, "{text}: {gone} of {stores}");
    }
}

/// What a crash in a change of an inode's mode leaves, by which its log gets its first page, is the mode before or after.
pub(crate) fn crash_in_first_page(fs: &LogFs, simulation: &Simulation, node: NodeId, text: &str) {
    let before = capture(fs).expect("the state before");
    let mark = simulation.mark();
    let change = AttributeChange { mode: ModeChange::Set(0o321), ..Default::default() };
    fs.set_attributes(node, &change).expect("a change of mode");
    let returned_at = simulation.mark();
    let after = capture(fs).expect("the state after");
    let expected = Expected { before: &before, after: &after, tear: Tear::Whole, returned_at };
    let policy = CrashPolicy { combinations_max: 256, ..CrashPolicy::sparse(1) };
    crashes(simulation, mark..returned_at, &policy, &expected, text, u64::MAX, &mut 0);
}

/// Log pages that were written for an inode that a thread did not come to make do not become those of the next one of its number.
#[test]
fn pages_of_a_birth_that_was_cut_short_are_nobodys() {
    let image = image(Mode::InPlace, |fs| populate(fs));
    let birth = |fs: &LogFs| {
        let rig = Rig::new(fs);
        rig.symlink(at(&rig, "/d1").expect("a directory"), "leads", &[b'y'; 150]).map(drop).expect("symlink");
    };
    // The first ones write the page.
    let all = stores_of(&image, birth);
    let first = if long() { 1 } else { all.saturating_sub(160) };
    for stores in (first..all).step_by(if long() { 1 } else { 5 }) {
        let (fs, simulation) = open(&image);
        let rig = Rig::new(&fs);
        let directory = at(&rig, "/d1").expect("a directory");
        if abandon(&fs, &simulation, stores, || birth(&fs)) {
            // Not every run stores as often: a clock ticks.
            break;
        }
        if rig.find(directory, "leads").is_none() {
            let node = rig.file(directory, "next");
            crash_in_first_page(&fs, &simulation, node, &format!("a birth cut short after {stores} stores"));
        }
    }
}

/// A volume on which a name in `/full` needs one block more than there is, once one is free; and what stands at the end of `/ballast`.
pub(crate) fn without_room_for_a_name(mode: Mode) -> Vec<u8> {
    image(mode, |fs| {
        populate(fs);
        let rig = Rig::new(fs);
        let (full, other) = (rig.directory(rig.root, "full"), rig.directory(rig.root, "other"));
        rig.file(other, "first");
        // A name that comes takes two lines, one that goes one: that is all of the log's page.
        for number in 0..21 {
            let text = format!("n{number}");
            rig.file(full, &text);
            rig.unlink(full, &text).expect("unlink");
        }
        let ballast = rig.file(rig.root, "ballast");
        let mut taken = 0;
        while fs.allocate(ballast, AllocateMode::KeepSize, taken, 4096).is_ok() {
            taken += 4096;
        }
    })
}

/// On such a volume: a link gets a page, and no name. Calls `look` with the file that is born next, and what it is about.
pub(crate) fn fail_to_be_born(fs: &LogFs, during: impl Fn(&dyn Fn()), look: impl Fn(NodeId, &str)) {
    let rig = Rig::new(fs);
    let [full, other, ballast] = ["/full", "/other", "/ballast"].map(|path| at(&rig, path).expect("it is there"));
    let taken = rig.attributes(ballast).sectors * 512;
    let room = |blocks: u64| {
        let (offset, length) = (taken - blocks * 4096, blocks * 4096);
        fs.allocate(ballast, AllocateMode::PunchHole, offset, length).expect("room");
        fs.statistics().expect("statistics").blocks_available
    };
    let left = (1..8).find(|&blocks| room(blocks) > 0).expect("room for a page");
    // On a thread whose fences do not cover what others store.
    let birth = || {
        let error = Rig::new(fs).symlink(full, "leads", &[b'y'; 150]).expect_err("no room for the name");
        assert_eq!(error.errno(), Errno::NOSPC);
    };
    during(&|| std::thread::scope(|scope| scope.spawn(birth).join().expect("no panic")));
    look(rig.file(other, "next"), &format!("a birth without room, {left} blocks were freed"));
}

/// The same of one for which there was no room in the directory's log.
#[test]
fn pages_of_a_birth_that_failed_are_nobodys() {
    let (fs, simulation) = open(&without_room_for_a_name(Mode::InPlace));
    fail_to_be_born(&fs, |birth| birth(), |node, text| crash_in_first_page(&fs, &simulation, node, text));
}

/// A thread that ends while it takes a number, which it has from a file that it freed before, loses none.
#[test]
fn a_number_that_is_taken_for_a_file_without_a_name_is_not_lost() {
    let image = image(Mode::InPlace, |fs| populate(fs));
    // Behind the fence of the last of these the number is free.
    let free_a_number = |fs: &LogFs| {
        let rig = Rig::new(fs);
        rig.file(rig.root, "gone");
        rig.unlink(rig.root, "gone").expect("unlink");
        rig.try_write(at(&rig, "/b").expect("a file"), WritePosition::Append, &bytes(7, 100)).expect("write");
    };
    let take_it = |fs: &LogFs| {
        free_a_number(fs);
        let node = fs.create_unnamed(fs.root(), &NewNode::regular(0o600, OWNER)).expect("a file without a name");
        fs.retire(node).expect("retire");
    };
    let (first, all) = (stores_of(&image, free_a_number), stores_of(&image, take_it));
    assert!(all > first + 20);
    for stores in first..=all {
        let (fs, simulation) = open(&image);
        abandon(&fs, &simulation, stores, || take_it(&fs));
        assert!(fs.detach().expect("detach"));
        drop(fs);
        let text = format!("a thread that ended after {stores} stores");
        assert_sound(&simulation.medium(), false, &text);
        let fs = attach(&simulation.medium()).expect("attach");
        assert!(fs.detach().expect("detach"));
        drop(fs);
        assert_sound(&simulation.medium(), true, &text);
    }
}
