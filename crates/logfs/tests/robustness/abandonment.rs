//! A thread ends after any one of its stores, to the arena or to the medium, and others go on: what it was doing happened
//! or did not, nothing stays locked, nothing has two owners, and after the next recovery nothing is lost.

use crate::enumeration::exercise;
use crate::operations::{Operation, all, populate};
use crate::state::{State, capture};
use crate::volume::{MODES, Mode, assert_sound, attach, image, open, options};
use crate::{Failures, Random, long};
use gannet_fstest::Rig;
use gannet_logfs::{AttachOptions, LogFs};
use gannet_media::{Medium, Simulation};
use gannet_shm::testing::{Outcome, run_abandoned, store_point};
use std::sync::Arc;
use std::time::Instant;

/// What the operations begin with.
struct Start {
    image: Vec<u8>,
    /// All nodes are taken, so that every operation drops other inodes' indexes.
    crowded: bool,
}

/// More files than there are nodes at the least.
const CROWD: usize = 64;

impl Start {
    fn new(mode: Mode, crowded: bool) -> Self {
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

    fn open(&self) -> (LogFs, Simulation) {
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
/// Whether the operation came to its end before.
fn abandon(start: &Start, operation: &Operation, after: &State, stores: u64, reaper_stores: u64) -> bool {
    let (fs, simulation) = start.open();
    let before = capture(&fs).expect("the state before").without_times();
    simulation.set_hook(Some(Arc::new(|_| store_point())));
    let session = fs.session().clone();
    let outcome = run_abandoned(&[&session], stores, || {
        let _ = operation.apply(&fs);
    });
    if reaper_stores > 0 {
        let _ = run_abandoned(&[&session], reaper_stores, || session.reap_dead().map(|_| ()).expect("reaping"));
    }
    simulation.set_hook(None);
    let completed = matches!(outcome, Outcome::Completed(()));
    let when = || format!("{} abandoned after {stores} stores, its reaper after {reaper_stores}", operation.text);
    let found = capture(&fs).unwrap_or_else(|error| panic!("{}: {error}", when())).without_times();
    if let Err(what) = found.may_follow(&before, after, operation.tear) {
        panic!("{}\n{what}", when());
    }
    assert_sound(&simulation.medium(), false, &when());
    exercise(&fs);
    session.reap_dead().expect("reaping");
    let left = capture(&fs).expect("the state at the end");
    assert_sound(&simulation.medium(), false, &format!("{}, and use", when()));
    assert!(fs.detach().expect("detach"));
    drop((fs, session));
    let fs = attach(&simulation.medium()).expect("the next attach");
    assert_eq!(capture(&fs).expect("the state").equals(&left), Ok(()), "{}, attached again", when());
    assert!(fs.detach().expect("detach"));
    drop(fs);
    assert_sound(&simulation.medium(), true, &format!("{}, at the end", when()));
    completed
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
        let after = capture(&fs).expect("the state after").without_times();
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
                let reaper_stores = if random.below(2) == 0 { 0 } else { 1 + random.below(80) as u64 };
                ends += 1;
                if abandon(&start, operation, &after, stores, reaper_stores) {
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
