//! A thread ends after any one of its stores, to the arena or to the medium, and others go on: what it was doing happened
//! or did not, nothing stays locked, nothing has two owners, and after the next recovery nothing is lost.

use crate::enumeration::exercise;
use crate::operations::{Operation, all, at, bytes, operation, populate};
use crate::state::{State, Tear, capture};
use crate::volume::{MODES, Mode, assert_sound, attach, image, open, options};
use crate::{Failures, Random, long};
use gannet_fstest::{Rig, name};
use gannet_logfs::{AttachOptions, LogFs};
use gannet_media::{Medium, Simulation};
use gannet_shm::testing::{Outcome, run_abandoned, store_point};
use gannet_vfs::{AllocateMode, AttributeChange, FileSystem, NewNode, Owner, Result, Time, TimeChange, WritePosition};
use std::sync::Arc;
use std::time::Instant;

/// What the operations begin with.
pub(crate) struct Start {
    pub(crate) image: Vec<u8>,
    /// All nodes are taken, so that every operation drops other inodes' indexes.
    pub(crate) crowded: bool,
}

/// More files than there are nodes at the least.
const CROWD: usize = 64;

impl Start {
    pub(crate) fn new(mode: Mode, crowded: bool) -> Self {
        let fill = |fs: &LogFs| {
            populate(fs);
            let rig = Rig::new(fs);
            if crowded {
                let directory = rig.directory(rig.root, "crowd");
                for number in 0..CROWD {
                    rig.write(rig.file(directory, &format!("{number}")), 0, &[number as u8; 600]);
                }
            }
        };
        Self { image: image(mode, fill), crowded }
    }

    /// Opens it.
    pub(crate) fn open(&self) -> (LogFs, Simulation) {
        if !self.crowded {
            return open(&self.image);
        }
        let (medium, simulation) = Medium::simulated_from_image(&self.image);
        let least = AttachOptions { index_bytes_max: 0, ..options() };
        let fs = LogFs::open_private(medium, least).expect("attach");
        let rig = Rig::new(&fs);
        let directory = rig.find(rig.root, "crowd").expect("the crowd");
        for number in 0..CROWD {
            rig.content(rig.find(directory, &format!("{number}")).expect("one of the crowd"));
        }
        (fs, simulation)
    }
}

/// Abandons a thread in `operation` after so many stores, and the first that settles it after so many (0: it is not).
/// Whether the operation came to its end before, and who settles it.
fn abandon(start: &Start, operation: &Operation, after: &State, stores: u64, reaper_stores: u64) -> (bool, bool) {
    let (fs, simulation) = start.open();
    let before = capture(&fs).expect("the state before");
    // The file system's clock is as coarse as the kernel's tick, and times may be ahead of it by nanoseconds.
    let began = Time(Time::now().0 - 20_000_000);
    simulation.set_hook(Some(Arc::new(|_| store_point())));
    let session = fs.session().clone();
    let outcome = run_abandoned(&[&session], stores, || {
        let _ = operation.apply(&fs);
    });
    let settled = reaper_stores > 0 && {
        let outcome = run_abandoned(&[&session], reaper_stores, || session.reap_dead().map(|_| ()).expect("reaping"));
        matches!(outcome, Outcome::Completed(()))
    };
    simulation.set_hook(None);
    let completed = matches!(outcome, Outcome::Completed(()));
    let when = || format!("{} abandoned after {stores} stores, its reaper after {reaper_stores}", operation.text);
    let found = capture(&fs).unwrap_or_else(|error| panic!("{}: {error}", when()));
    let times = found.times_may_follow(&before, after, &(began..=Time(Time::now().0 + 1_000)));
    let [found, before, after] = [&found, &before, after].map(|state| state.clone().without_times());
    if let Err(what) = found.may_follow(&before, &after, operation.tear).and(times) {
        panic!("{}\n{what}", when());
    }
    assert_sound(&simulation.medium(), false, &when());
    exercise(&fs);
    session.reap_dead().expect("reaping");
    // What is free beside others is what recovery finds free.
    fs.recount().unwrap_or_else(|error| panic!("{}: counting: {error}", when())).expect("nobody else counts");
    let counted = fs.statistics().expect("statistics");
    let left = capture(&fs).expect("the state at the end");
    assert_sound(&simulation.medium(), false, &format!("{}, and use", when()));
    assert!(fs.detach().expect("detach"));
    drop((fs, session));
    let fs = attach(&simulation.medium()).expect("the next attach");
    assert_eq!(capture(&fs).expect("the state").equals(&left), Ok(()), "{}, attached again", when());
    assert_eq!(fs.statistics().expect("statistics"), counted, "{}, attached again", when());
    assert!(fs.detach().expect("detach"));
    drop(fs);
    assert_sound(&simulation.medium(), true, &format!("{}, at the end", when()));
    (completed, settled)
}

fn everything(mode: Mode, part: usize, every: usize, crowded: bool) {
    let began = Instant::now();
    let start = Start::new(mode, crowded);
    let (mut workloads, mut ends, mut failed) = (0, 0, Failures::default());
    let mut random = Random(mode as u64);
    for operation in all(mode).iter().skip(part).step_by(every) {
        // What it leads to, and how many stores that takes.
        let (fs, simulation) = start.open();
        let mark = simulation.mark();
        let _ = operation.apply(&fs);
        let medium_stores = simulation.stores_in(mark..simulation.mark()) as u64;
        let after = capture(&fs).expect("the state after");
        drop(fs);
        workloads += 1;
        failed.catch(&operation.text, || {
            let mut stores = 0;
            loop {
                // The data of a file is many stores like each other.
                let step = match medium_stores {
                    0..500 if long() => 1,
                    0..150 => 6,
                    _ => (medium_stores + 60) / 8,
                };
                stores += if step == 1 { 1 } else { 1 + random.below(step as usize) as u64 };
                let reaper_stores = if random.below(2) == 0 { 0 } else { 1 + random.below(600) as u64 };
                ends += 1;
                if abandon(&start, operation, &after, stores, reaper_stores).0 {
                    break;
                }
            }
        });
    }
    let seconds = began.elapsed().as_secs_f64();
    println!("abandonment, {mode:?}: {workloads} operations, {ends} ends, {seconds:.1} s");
    failed.conclude();
    assert!(ends > 3 * workloads);
}

#[test]
fn a_thread_may_end_anywhere() {
    MODES.into_iter().for_each(|mode| everything(mode, 0, 2, false));
}

#[test]
fn a_thread_may_end_anywhere_else() {
    MODES.into_iter().for_each(|mode| everything(mode, 1, 2, false));
}

#[test]
fn a_thread_may_end_anywhere_while_it_makes_room() {
    let every = if long() { 1 } else { 7 };
    MODES.into_iter().for_each(|mode| everything(mode, 3, every, true));
}

/// Who settles a thread that made something with a page of its own may end as well, after any of its stores, and who settles both finds what is
/// whose still.
#[test]
fn who_settles_a_birth_may_end_anywhere() {
    let start = Start::new(Mode::InPlace, false);
    let mut random = Random(7);
    let born = |text: &str| text.starts_with("create /l ") || text.starts_with("create /d1/n ");
    for operation in all(Mode::InPlace).iter().filter(|operation| born(&operation.text)) {
        let (fs, simulation) = start.open();
        simulation.set_hook(Some(Arc::new(|_| store_point())));
        let session = fs.session().clone();
        let apply = |fs: &LogFs| operation.apply(fs).expect("it is made");
        let mut total = 1;
        while let Outcome::Abandoned = {
            let (fs, simulation) = start.open();
            simulation.set_hook(Some(Arc::new(|_| store_point())));
            run_abandoned(&[fs.session()], total, || apply(&fs))
        } {
            total += 1;
        }
        apply(&fs);
        simulation.set_hook(None);
        let after = capture(&fs).expect("the state after").without_times();
        drop((fs, session));
        // Some hundred stores before the end a name is durable, and what it names is not its directory's yet.
        let (places, ends) = if long() { (10, 3) } else { (50, 40) };
        let mut met = 0;
        for stores in (1 + random.below(places) as u64..total).step_by(places) {
            for reaper_stores in (1 + random.below(ends) as u64..).step_by(ends) {
                met += 1;
                if abandon(&start, operation, &after, stores, reaper_stores).1 {
                    break;
                }
            }
        }
        println!("{}: {total} stores, {met} ends of who settles", operation.text);
    }
}

/// Something that lets a log grow, to be done again and again: which, on what file of the tree, the how manieth time.
type Chatter = (&'static str, fn(&Rig<'_>, usize) -> Result<()>);

/// Changes of a symbolic link, of names in a directory, more inodes, changes of a file's blocks.
const CHATTERS: [Chatter; 4] = [
    ("a link's log is written anew", |rig, index| {
        let modified = TimeChange::Set(Time(1_000_000_000 + index as i64));
        let change = AttributeChange { modified, ..Default::default() };
        rig.fs.set_attributes(at(rig, "/d1/s")?, &change).map(|_| ())
    }),
    ("a directory is collected", |rig, index| {
        let (directory, file) = (at(rig, "/e")?, format!("n{}", index / 2));
        match index % 16 {
            // The name stays.
            1 => Ok(()),
            even if even % 2 == 0 => {
                rig.fs.create(directory, name(&file), &NewNode::regular(0o600, Owner::default())).map(|_| ())
            }
            _ => rig.unlink(directory, &file).map(|_| ()),
        }
    }),
    ("chunks of the inode table are made", |rig, index| {
        let new = NewNode::regular(0o600, Owner::default());
        // Few, for the most stores are to be those of the chunks.
        if index < 60 { rig.fs.create(at(rig, "/e")?, name(&format!("n{index}")), &new).map(|_| ()) } else { Ok(()) }
    }),
    ("a file is collected", |rig, index| {
        let file = at(rig, "/cut")?;
        if index % 2 == 0 {
            return rig.fs.allocate(file, AllocateMode::PunchHole, 0, 4096).map(|_| ());
        }
        rig.try_write(file, WritePosition::At(0), &bytes(index as u8, 600)).map(|_| ())
    }),
];

/// Each with what it begins with: the step that makes the most stores, which is one that collects.
pub(crate) fn steps_that_collect(mode: Mode) -> Vec<(Start, Operation)> {
    let of_chatter = |&(text, step): &Chatter| {
        let (fs, simulation) = open(&image(mode, |fs| populate(fs)));
        let stores_of = |index: usize| {
            let mark = simulation.mark();
            step(&Rig::new(&fs), index).expect("a step");
            simulation.stores_in(mark..simulation.mark())
        };
        let (most, index) = (0..300).map(|index| (stores_of(index), index)).max().expect("steps");
        drop(fs);
        assert!(most > 70, "{text}: {most} stores");
        let fill = |fs: &LogFs| {
            populate(fs);
            (0..index).for_each(|index| step(&Rig::new(fs), index).expect("a step"));
        };
        let start = Start { image: image(mode, fill), crowded: false };
        (start, operation(text.into(), Tear::Bytes("/cut"), move |rig| step(rig, index)))
    };
    CHATTERS.iter().map(of_chatter).collect()
}

/// The same, each done so often that its log is collected again and again.
pub(crate) fn long_collections() -> Vec<Operation> {
    let of_chatter = |&(text, step): &Chatter| {
        operation(format!("{text}, again and again"), Tear::Whole, move |rig| {
            (0..300).try_for_each(|index| step(rig, index))
        })
    };
    CHATTERS.iter().map(of_chatter).collect()
}

/// Threads end while they collect a log, or make room for inodes: at each store, or some of them.
#[test]
fn a_thread_may_end_anywhere_while_it_collects() {
    for mode in MODES {
        let (began, mut ends) = (Instant::now(), 0);
        for (start, operation) in steps_that_collect(mode) {
            let (fs, _) = start.open();
            operation.apply(&fs).expect("the step");
            let after = capture(&fs).expect("the state after");
            drop(fs);
            let mut random = Random(mode as u64);
            let mut stores = 0;
            loop {
                stores += if long() { 1 } else { 1 + random.below(16) as u64 };
                ends += 1;
                let reaper_stores = if random.below(2) == 0 { 0 } else { 1 + random.below(600) as u64 };
                if abandon(&start, &operation, &after, stores, reaper_stores).0 {
                    break;
                }
            }
        }
        println!("abandonment in collections, {mode:?}: {ends} ends, {:.1} s", began.elapsed().as_secs_f64());
        assert!(ends > 60);
    }
}
