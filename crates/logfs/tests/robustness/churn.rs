//! Crashes while logs grow and are collected: long workloads on one inode at a time, a few images of every crash point.

use crate::enumeration::{Count, Expected, crashes};
use crate::mutations::Fault;
use crate::operations::{at, bytes, populate};
use crate::state::{Tear, capture};
use crate::volume::{MODES, Mode, assert_sound, attach, image, open};
use crate::{Random, long};
use gannet_fstest::{Rig, name};
use gannet_logfs::LogFs;
use gannet_media::simulation::CrashPolicy;
use gannet_vfs::{
    AllocateMode, AttributeChange, FileSystem, FileType, ModeChange, NewNode, Owner, RenameFlags, Time, TimeChange,
    WritePosition, XattrMode,
};
use std::time::Instant;

type Step = fn(&Rig<'_>, usize, &mut Random);

/// Names come and go in one directory, and between two.
fn names(rig: &Rig<'_>, index: usize, random: &mut Random) {
    let (from, to) = if random.below(2) == 0 { ("/e", "/e") } else { ("/e", "/d2") };
    let (from, to) = (at(rig, from).expect("a directory"), at(rig, to).expect("a directory"));
    let text = format!("name-{}", random.below(12));
    let other = format!("name-{}", random.below(12));
    let _ = match random.below(4) {
        0 | 1 => rig.fs.create(from, name(&text), &NewNode::regular(0o600, Owner::default())).map(|_| ()),
        2 => rig.rename_with((from, &text), (to, &other), RenameFlags::empty()),
        _ => rig.unlink(if index.is_multiple_of(2) { from } else { to }, &text).map(|_| ()),
    };
}

/// A file is written, cut, and its blocks moved about.
fn data(rig: &Rig<'_>, index: usize, random: &mut Random) {
    let file = at(rig, "/d1/f").expect("a file");
    let size = rig.attributes(file).size_bytes;
    let block = |random: &mut Random| 4096 * random.below(6) as u64;
    let _ = match random.below(10) {
        0..3 => rig.try_write(file, WritePosition::Append, &bytes(index as u8, 1 + random.below(3000))).map(|_| ()),
        3..5 => rig
            .try_write(file, WritePosition::At(size + block(random)), &bytes(index as u8, 1 + random.below(100)))
            .map(|_| ()),
        5 => rig.fs.allocate(file, AllocateMode::Insert, block(random), 4096),
        6 => rig.fs.allocate(file, AllocateMode::Collapse, block(random), 4096),
        7 => rig.resize(file, size.div_ceil(2) + random.below(5000) as u64).map(|_| ()),
        8 => rig.fs.allocate(file, AllocateMode::PunchHole, block(random), 4096),
        _ if size > 40_000 => rig.resize(file, 3000).map(|_| ()),
        _ => rig.fs.allocate(file, AllocateMode::KeepSize, size.next_multiple_of(4096), 4096),
    };
}

/// Files grow in turn, so that each of their blocks is a piece by itself, and are written over: all of it, and from the middle on.
fn pieces(rig: &Rig<'_>, index: usize, random: &mut Random) {
    let file = |path| at(rig, path).expect("a file");
    let text = bytes(index as u8, 24 * 4096);
    match index % 56 {
        round @ 0..50 => {
            let path = if round % 2 == 0 { "/d1/f" } else { "/cut" };
            rig.try_write(file(path), WritePosition::Append, &text[..4096]).expect("an append");
        }
        50..52 => drop(rig.try_write(file("/d1/f"), WritePosition::At(0), &text).expect("a write")),
        52 => {
            let from = random.below(12 * 4096) as u64;
            rig.try_write(file("/d1/f"), WritePosition::At(from), &text[..18 * 4096]).expect("a write");
        }
        round => drop(rig.resize(file(if round % 2 == 0 { "/d1/f" } else { "/cut" }), 100)),
    }
}

/// Blocks of a file in many pieces are moved about, time and again while its log is collected.
fn shifts(rig: &Rig<'_>, index: usize, random: &mut Random) {
    let file = |path| at(rig, path).expect("a file");
    let blocks = rig.attributes(file("/d1/f")).size_bytes / 4096;
    let shift = |mode, at: u64| rig.fs.allocate(file("/d1/f"), mode, 4096 * at, 4096).expect("a shift");
    match random.below(if blocks < 80 { 4 } else { 2 }) {
        0 if blocks > 60 => shift(AllocateMode::Collapse, random.below(50) as u64),
        1 if blocks > 60 => shift(AllocateMode::Insert, random.below(50) as u64),
        _ => {
            let path = if index.is_multiple_of(2) { "/d1/f" } else { "/cut" };
            rig.try_write(file(path), WritePosition::Append, &bytes(index as u8, 4096)).expect("an append");
        }
    }
}

/// Attributes of one file change.
fn attributes(rig: &Rig<'_>, index: usize, random: &mut Random) {
    let file = at(rig, "/a").expect("a file");
    if random.below(3) == 0 {
        let mode = ModeChange::Set(index as u32 & 0o777);
        rig.fs.set_attributes(file, &AttributeChange { mode, ..Default::default() }).expect("a change of mode");
        return;
    }
    let text = format!("user.{}", random.below(5));
    let _ = match random.below(3) {
        0 => rig.fs.remove_xattr(file, text.as_bytes()),
        _ => rig.fs.set_xattr(file, text.as_bytes(), &bytes(index as u8, random.below(900)), XattrMode::Any),
    };
}

/// More and more files, some of which go again, for which chunks of the inode table are made.
fn births(rig: &Rig<'_>, index: usize, random: &mut Random) {
    let directory = at(rig, "/e").expect("a directory");
    let other = format!("n{}", random.below(index + 1));
    match random.below(10) {
        0 | 1 => {
            let _ = rig.unlink(directory, &other);
        }
        // What is free comes to be in pieces, so that chunks are made a few at a time.
        2 | 3 => {
            if let Some(file) = rig.find(directory, &other) {
                rig.try_write(file, WritePosition::Append, &bytes(index as u8, 4096)).expect("a write");
            }
        }
        _ => {
            let new = NewNode::regular(0o600, Owner::default());
            rig.fs.create(directory, name(&format!("n{index}")), &new).expect("a file");
        }
    }
}

/// Symbolic links, a short one and one that takes two pages, get other times, and sometimes attributes.
fn links(rig: &Rig<'_>, index: usize, random: &mut Random) {
    if index == 0 {
        let target: Vec<u8> = (0..4090).map(|index| b'a' + (index % 23) as u8).collect();
        let new = NewNode { target: &target, ..NewNode::of_type(FileType::Symlink, 0o777, Owner::default()) };
        rig.fs.create(rig.root, name("long"), &new).expect("a long link");
        return;
    }
    let node = at(rig, if random.below(2) == 0 { "/long" } else { "/d1/s" }).expect("a link");
    if random.below(8) == 0 {
        let text = format!("trusted.{}", random.below(3));
        let _ = match random.below(3) {
            0 => rig.fs.remove_xattr(node, text.as_bytes()),
            1 => rig.fs.set_xattr(node, text.as_bytes(), &bytes(index as u8, 5000), XattrMode::Any),
            _ => rig.fs.set_xattr(node, text.as_bytes(), &bytes(index as u8, random.below(900)), XattrMode::Any),
        };
        return;
    }
    let modified = TimeChange::Set(Time(1_000_000_000 + index as i64));
    rig.fs.set_attributes(node, &AttributeChange { modified, ..Default::default() }).expect("a change of time");
}

/// The times of a directory and of a file are set to the past, and names and bytes come in between.
fn times(rig: &Rig<'_>, index: usize, random: &mut Random) {
    let directory = at(rig, "/d2").expect("a directory");
    let file = at(rig, "/sparse").expect("a file");
    let node = if random.below(2) == 0 { directory } else { file };
    if random.below(20) == 0 {
        let new = NewNode::regular(0, Owner::default());
        let _ = rig.fs.create(directory, name(&format!("n{}", random.below(9))), &new);
        return;
    }
    if random.below(20) == 0 {
        let place = WritePosition::At(20_000 + 4096 * index as u64);
        rig.try_write(file, place, b"bytes").expect("a write");
        return;
    }
    let modified = TimeChange::Set(Time(1_000_000_000 + index as i64));
    rig.fs.set_attributes(node, &AttributeChange { modified, ..Default::default() }).expect("a change of time");
}

/// What is churned.
#[derive(Clone, Copy)]
pub(crate) struct Churn {
    pub(crate) text: &'static str,
    step: Step,
    steps: usize,
    /// About as many steps are crashed, and more of those that store much.
    looks: usize,
    /// A step happens or does not.
    whole: bool,
    /// What each step has left is looked at, if little of it is uncertain.
    ends: bool,
}

const fn of(text: &'static str, step: Step, steps: usize, looks: usize) -> Churn {
    Churn { text, step, steps, looks, whole: true, ends: false }
}

/// All of them.
pub(crate) const CHURNS: [Churn; 8] = [
    of("names", names, 700, 60),
    Churn { whole: false, ..of("data", data, 700, 10) },
    Churn { whole: false, ..of("pieces", pieces, 112, 2) },
    Churn { whole: false, ..of("shifts", shifts, 900, 10) },
    of("attributes", attributes, 250, 10),
    of("births", births, 160, 10),
    of("links", links, 400, 10),
    of("times", times, 400, 10),
];

impl Churn {
    /// With a quarter of the looks, and some at the end of each step.
    pub(crate) fn for_mutations(&self) -> Self {
        Self { looks: self.looks.div_ceil(4), ends: true, ..*self }
    }
}

/// Runs a workload; crashes at some of its operations, remounts now and then.
pub(crate) fn churn(churn: &Churn, mode: Mode, fault: &Fault) {
    let &Churn { text, step, steps, looks, whole, ends } = churn;
    let began = Instant::now();
    let image = image(mode, |fs| populate(fs));
    let (fs, simulation) = open(&image);
    let mut random = Random(steps as u64 + mode as u64);
    // By itself: what is done does not depend on what is looked at.
    let mut chance = Random(steps as u64 ^ 0xC4A5);
    let mut count = Count { workloads: 1, ..Count::default() };
    let mut number = 0;
    let mut before = capture(&fs).expect("the state");
    for index in 0..steps {
        let mark = simulation.mark();
        fault.during(&simulation, || step(&Rig::new(&fs), index, &mut random));
        let returned_at = simulation.mark();
        let after = capture(&fs).expect("the state");
        // A log that is collected, or grows by a page, stores more than most.
        let grew = simulation.stores_in(mark..returned_at) > 60;
        if !fault.looks() {
            continue;
        }
        if ends && returned_at > mark {
            let expected = Expected { before: &after, after: &after, tear: Tear::Whole, returned_at };
            let what = format!("{text}, after step {index}, {mode:?}");
            let few = CrashPolicy { combinations_max: 4, cuts_max: 0, samples: 0, ..CrashPolicy::sparse(index as u64) };
            count += crashes(&simulation, returned_at..returned_at, &few, &expected, &what, u64::MAX, &mut number);
        }
        if returned_at > mark && chance.below(steps) < if grew { 8 * looks } else { looks } {
            let tear = if whole { Tear::Whole } else { Tear::Bytes("/d1/f") };
            let expected = Expected { before: &before, after: &after, tear, returned_at };
            let policy =
                CrashPolicy { combinations_max: 8, cuts_max: 2, samples: 4, ..CrashPolicy::sparse(index as u64) };
            let what = format!("{text}, step {index}, {mode:?}");
            count += crashes(&simulation, mark..returned_at, &policy, &expected, &what, 64, &mut number);
        }
        if index % 50 == 49 {
            // What the logs say is what the records and indexes said.
            let mut bytes = vec![0; crate::volume::VOLUME_BYTES as usize];
            simulation.medium().read(gannet_media::MediumOffset(0), &mut bytes).expect("read");
            let (medium, _control) = gannet_media::Medium::simulated_from_image(&bytes);
            let again = attach(&medium).expect("recovery");
            assert_eq!(capture(&again).expect("the state").equals(&after), Ok(()), "{text}, step {index}, {mode:?}");
            assert_eq!(
                again.statistics().expect("statistics"),
                fs.statistics().expect("statistics"),
                "{text}, step {index}"
            );
            count.checks += 1;
        }
        before = after;
    }
    assert!(fs.detach().expect("detach"));
    drop(fs);
    assert_sound(&simulation.medium(), true, text);
    if fault.looks() {
        count.print(&format!("{text}, {mode:?}"), began);
    }
}

fn both(text: &str) {
    let mut chosen = *CHURNS.iter().find(|churn| churn.text == text).expect("a churn");
    if long() {
        (chosen.steps, chosen.looks) = (10 * chosen.steps, 2000);
    }
    MODES.into_iter().for_each(|mode| churn(&chosen, mode, &Fault::None));
}

#[test]
fn directories_are_collected() {
    both("names");
}

#[test]
fn files_are_collected() {
    both("data");
}

#[test]
fn what_is_written_over_in_many_pieces_is_free() {
    both("pieces");
}

#[test]
fn files_whose_blocks_move_are_collected() {
    both("shifts");
}

#[test]
fn attributes_are_collected() {
    both("attributes");
}

#[test]
fn inode_tables_grow() {
    both("births");
}

#[test]
fn symbolic_links_are_collected() {
    both("links");
}

#[test]
fn the_log_of_a_link_stays_short() {
    let image = image(Mode::InPlace, |fs| populate(fs));
    let (fs, simulation) = open(&image);
    let rig = Rig::new(&fs);
    let link = at(&rig, "/d1/s").expect("a link");
    let mut target = [0; 64];
    let length = fs.read_link(link, &mut target).expect("where it leads");
    let free = |fs: &LogFs| fs.statistics().expect("statistics").blocks_free;
    let before = free(&fs);
    for index in 0..3000 {
        let modified = TimeChange::Set(Time(1_000_000_000 + index));
        fs.set_attributes(link, &AttributeChange { modified, ..Default::default() }).expect("a change of time");
        let mut again = [0; 64];
        assert_eq!(fs.read_link(link, &mut again).expect("where it leads"), length);
        assert_eq!(again, target);
    }
    assert!(free(&fs) + 8 > before, "{} blocks are free of {before}", free(&fs));
    assert!(fs.detach().expect("detach"));
    drop(fs);
    assert_sound(&simulation.medium(), true, "a link that was changed often");
}

#[test]
fn times_outlive_collections() {
    both("times");
}

/// Blocks that an insertion moved stay where it moved them when the entry that mapped them is collected.
#[test]
fn shifted_blocks_outlive_collections() {
    for mode in MODES {
        let image = image(mode, |fs| populate(fs));
        let (fs, simulation) = open(&image);
        let rig = Rig::new(&fs);
        let file = at(&rig, "/a").expect("a file");
        for shift in [AllocateMode::Insert, AllocateMode::Collapse] {
            // The shift is to stand in a later page than the entry that mapped the blocks.
            let chatter = |count: usize| {
                for index in 0..count {
                    let mode = ModeChange::Set(index as u32);
                    rig.fs.set_attributes(file, &AttributeChange { mode, ..Default::default() }).expect("a change");
                }
            };
            chatter(40);
            rig.fs.allocate(file, shift, 0, 4096).expect("a shift");
            for round in 0..12 {
                chatter(20);
                let state = capture(&fs).expect("the state");
                let mut bytes = vec![0; crate::volume::VOLUME_BYTES as usize];
                simulation.medium().read(gannet_media::MediumOffset(0), &mut bytes).expect("read");
                let (medium, _control) = gannet_media::Medium::simulated_from_image(&bytes);
                let again = attach(&medium).expect("recovery");
                let found = capture(&again).expect("the state again");
                assert_eq!(found.equals(&state), Ok(()), "{shift:?}, round {round}, {mode:?}");
            }
        }
    }
}
