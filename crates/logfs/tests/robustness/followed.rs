//! Indexes in the arena that are damaged where only the change itself meets it, behind the entry: what an operation says it did is what the
//! medium holds, and what who comes next is told.

use crate::state::{State, capture};
use crate::volume::{Mode, assert_sound, attach, image, open, simulated};
use gannet_fstest::{Rig, name};
use gannet_logfs::LogFs;
use gannet_media::{Medium, MediumOffset, Simulation};
use gannet_shm::{ArenaOffset, Ordering};
use gannet_vfs::usermem::install_fault_handler;
use gannet_vfs::{
    AllocateMode, AttributeChange, Errno, Error, FileSystem, NewNode, NodeId, Owner, RemoveKind, RenameFlags, Result,
    WritePosition, XattrMode,
};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

const BLOCK: u64 = 4096;
const OWNER: Owner = Owner { user: 1000, group: 100 };
/// Words of an index node; the first says whose it is.
const NODE_WORDS: u64 = 64;
/// Nodes that are damaged, one after the other: there are fewer in use.
const NODES: u64 = 40;

/// A directory with names, and a file with pieces and attributes, in half full nodes.
fn fill(fs: &LogFs) {
    let rig = Rig::new(fs);
    for number in 0..100 {
        rig.file(rig.root, &format!("name{number}"));
    }
    for number in (0..100).filter(|number| number % 3 != 0) {
        rig.unlink(rig.root, &format!("name{number}")).expect("unlink");
    }
    let file = rig.file(rig.root, "file");
    for block in (0..120).rev().step_by(2) {
        rig.write(file, block * BLOCK, &[7; BLOCK as usize]);
    }
    for number in 0..60 {
        fs.set_xattr(file, format!("user.{number}").as_bytes(), b"value", XattrMode::Any).expect("an attribute");
    }
    for number in (0..60).filter(|number| number % 3 != 0) {
        fs.remove_xattr(file, format!("user.{number}").as_bytes()).expect("an attribute");
    }
}

type Change = Box<dyn Fn(&Rig<'_>) -> Result<()>>;

/// Changes that join nodes, split them, or go over several: each is one entry, or one in each of two logs.
fn changes() -> Vec<(String, Change)> {
    fn file(rig: &Rig<'_>) -> Result<NodeId> {
        rig.find(rig.root, "file").ok_or(Error::new(Errno::UCLEAN))
    }
    fn allocate(mode: AllocateMode, from: u64, count: u64) -> Change {
        Box::new(move |rig| rig.fs.allocate(file(rig)?, mode, from * BLOCK, count * BLOCK))
    }
    let mut all: Vec<(String, Change)> = Vec::new();
    for number in (0..100).step_by(9) {
        let text = format!("name{number}");
        let remove = move |rig: &Rig<'_>| rig.fs.remove(rig.root, name(&text), RemoveKind::NonDirectory).map(drop);
        all.push((format!("name {number} is removed"), Box::new(remove)));
        let text = format!("name{number}");
        let mv =
            move |rig: &Rig<'_>| rig.fs.rename(rig.root, name(&text), rig.root, name("moved"), RenameFlags::empty());
        all.push((format!("name {number} is moved"), Box::new(mv)));
        let text = format!("user.{}", number / 9 * 3);
        all.push((format!("{text} is removed"), Box::new(move |rig| rig.fs.remove_xattr(file(rig)?, text.as_bytes()))));
    }
    let cut = AttributeChange { size_bytes: Some(2 * BLOCK), ..Default::default() };
    let others: [(&str, Change); 8] = [
        (
            "a name is made",
            Box::new(|rig| rig.fs.create(rig.root, name("new"), &NewNode::regular(0o644, OWNER)).map(drop)),
        ),
        ("blocks are punched", allocate(AllocateMode::PunchHole, 4, 100)),
        ("blocks are moved down", allocate(AllocateMode::Collapse, 4, 50)),
        ("blocks are moved up", allocate(AllocateMode::Insert, 4, 50)),
        ("a hole is filled", allocate(AllocateMode::KeepSize, 50, 2)),
        ("the file is cut", Box::new(move |rig| rig.fs.set_attributes(file(rig)?, &cut).map(drop))),
        (
            "blocks are written",
            Box::new(|rig| {
                let written = rig.try_write(file(rig)?, WritePosition::At(3 * BLOCK), &[8; 110 * BLOCK as usize])?;
                assert_eq!(written.count_bytes, 110 * BLOCK as usize);
                Ok(())
            }),
        ),
        (
            "the file is removed",
            Box::new(|rig| rig.fs.remove(rig.root, name("file"), RemoveKind::NonDirectory).map(drop)),
        ),
    ];
    all.extend(others.into_iter().map(|(text, change)| (text.to_owned(), change)));
    all
}

/// What a tree holds, times and numbers apart.
fn look(fs: &LogFs) -> BTreeMap<String, (u64, u64, Vec<u8>, usize)> {
    let State { paths } = capture(fs).expect("all can be read");
    let of = |inode: crate::state::Inode| {
        let attributes = inode.attributes;
        (attributes.links, attributes.sectors, inode.bytes, inode.xattrs.len())
    };
    paths.into_iter().map(|(path, inode)| (path, of(inode))).collect()
}

/// The same after a crash at this moment.
fn look_after_crash(medium: &Medium) -> BTreeMap<String, (u64, u64, Vec<u8>, usize)> {
    let mut bytes = vec![0; medium.length() as usize];
    medium.read(MediumOffset(0), &mut bytes).expect("read the medium");
    look(&attach(&simulated(&bytes).0).expect("recovery"))
}

#[test]
fn what_is_said_to_have_happened_is_what_the_medium_holds() {
    let image = image(Mode::CopyOnWrite, fill);
    let before = look(&open(&image).0);
    let (mut happened, mut failed, mut anew) = (0, 0, 0);
    for (text, change) in changes() {
        let after = {
            let fs = open(&image).0;
            change(&Rig::new(&fs)).expect(&text);
            look(&fs)
        };
        for node in 1..NODES {
            let (medium, _simulation) = simulated(&image);
            let fs = attach(&medium).expect("attach");
            assert_eq!(look(&fs), before);
            let nodes = fs.session().arena().region("nodes").expect("a region").start.get();
            let header = fs.session().arena().word(ArenaOffset::new(nodes + node * NODE_WORDS * 8)).expect("a word");
            let sound = header.load(Ordering::Relaxed);
            if sound == 0 {
                continue;
            }
            header.store(sound ^ 1 << 20, Ordering::Relaxed);
            let outcome = change(&Rig::new(&fs));
            let is_left = header.compare_exchange(sound ^ 1 << 20, sound, Ordering::Relaxed, Ordering::Relaxed).is_ok();
            let when = format!("{text}, with node {node} damaged: {outcome:?}");
            match outcome {
                Ok(()) => happened += 1,
                Err(_) => failed += 1,
            }
            anew += usize::from(!is_left);
            let expected = if outcome.is_ok() { &after } else { &before };
            let left = look_after_crash(&medium);
            assert!(&left == expected, "{when}: the medium holds something else");
            assert!(look(&fs) == left, "{when}: and that is not what is seen");
            let _ = fs.detach().expect("detach");
            drop(fs);
            assert_sound(&medium, false, &when);
        }
    }
    println!("{happened} changes happened, {failed} did not; {anew} nodes were used anew");
    assert!(happened > 100 && failed > 100);
}

/// Nor does it go by what it could not come to: whoever writes in place to blocks that go is waited for, or they would be found free, and another's, with
/// the writer still at work.
#[test]
fn who_writes_in_place_is_waited_for_where_the_index_did_not_follow() {
    const AT: u64 = 101 * BLOCK;
    let (image, mut happened, mut anew) = (image(Mode::InPlace, fill), 0, 0);
    for node in 1..NODES {
        let (medium, _simulation) = simulated(&image);
        let fs = Arc::new(attach(&medium).expect("attach"));
        look(&fs);
        let file = Rig::new(&*fs).find(fs.root(), "file").expect("a file");
        // What was loaded has to be sealed first: the writer is to find nothing to do but its copy.
        Rig::new(&*fs).write(file, AT, &[7; BLOCK as usize]);
        let writer = fs.clone();
        let stopped = Simulation::stop_after(100, move || Rig::new(&*writer).write(file, AT, &[9; BLOCK as usize]));
        let nodes = fs.session().arena().region("nodes").expect("a region").start.get();
        let header = fs.session().arena().word(ArenaOffset::new(nodes + node * NODE_WORDS * 8)).expect("a word");
        let sound = header.load(Ordering::Relaxed);
        header.store(sound ^ 1 << 20, Ordering::Relaxed);
        let worker = fs.clone();
        let punch = std::thread::spawn(move || worker.allocate(file, AllocateMode::PunchHole, 4 * BLOCK, 100 * BLOCK));
        let deadline = Instant::now() + Duration::from_secs(120);
        while !punch.is_finished() && fs.shared().session().waiting().is_empty() {
            assert!(Instant::now() < deadline, "node {node}: neither done nor waiting");
            std::thread::sleep(Duration::from_millis(1));
        }
        let has_waited = !punch.is_finished();
        stopped.finish();
        let outcome = punch.join().expect("the punch");
        let is_left = header.compare_exchange(sound ^ 1 << 20, sound, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        assert!(has_waited || outcome.is_err(), "node {node}: the blocks went with somebody writing to them");
        happened += usize::from(outcome.is_ok());
        anew += usize::from(!is_left && sound != 0);
    }
    // Which nodes an index that is built anew takes is not the same in each run: it can leave the damaged one alone.
    println!("{happened} changes happened; {anew} nodes were used anew");
    assert!(happened > 0);
}

/// The oldest page of a directory's log, which its collection looks at first, cannot be read any more: what the log grows by has happened.
#[test]
fn a_log_page_that_cannot_be_read_fails_no_operation_of_another() {
    install_fault_handler().expect("a fault handler");
    let (medium, _simulation) = simulated(&image(Mode::InPlace, |_| ()));
    let fs = attach(&medium).expect("attach");
    let rig = Rig::new(&fs);
    for number in 0..40 {
        rig.file(rig.root, &format!("first{number}"));
    }
    let mut bytes = vec![0; medium.length() as usize];
    medium.read(MediumOffset(0), &mut bytes).expect("read the medium");
    let pages = bytes.chunks(BLOCK as usize).enumerate().filter(|(_, page)| page.starts_with(b"GLOG\x01\0\0\0"));
    let (page, _) =
        pages.min_by_key(|(_, page)| page[16..24].iter().rev().copied().collect::<Vec<u8>>()).expect("a page");
    Simulation::poison(&medium, MediumOffset(page as u64 * BLOCK));
    for number in 0..400 {
        let text = format!("later{number}");
        fs.create(rig.root, name(&text), &NewNode::regular(0o644, OWNER)).expect(&text);
        rig.find(rig.root, &text).expect("it is there");
        fs.remove(rig.root, name(&text), RemoveKind::NonDirectory).expect(&text);
    }
}
