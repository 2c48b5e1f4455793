//! What is free is counted while others work. Where nobody is killed nothing may be found: whatever is, somebody has. Where processes are killed
//! all that they lost is found, and nothing else.

use crate::handover::Volume;
use crate::kills::{directories, perform};
use crate::operations::bytes;
use crate::volume::{Mode, assert_sound, image, open, options};
use crate::{Random, long};
use gannet_fstest::Rig;
use gannet_logfs::{AttachOptions, LogFs, Recounted};
use gannet_media::{Medium, Simulation};
use gannet_shm::testing::{Outcome, run_abandoned, store_point};
use gannet_vfs::{Errno, FileSystem, MapAccess, NewNode, NodeId, Owner, WritePosition};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

/// Threads at work.
const WORKERS: u64 = 3;

/// Works at full speed in a directory of its own, and in one that all share, and makes files without names.
fn work(fs: &LogFs, life: u64, goes_on: &AtomicBool) -> u64 {
    let rig = Rig::new(fs);
    let (own, shared) = directories(&rig, life);
    let mut index = 0;
    while goes_on.load(Ordering::Relaxed) {
        perform(&rig, own, shared, life, index);
        if index % 16 == 0 {
            let file = fs.create_unnamed(rig.root, &NewNode::regular(0o600, Owner::default())).expect("a file");
            rig.try_write(file, WritePosition::Append, &[7; 5000]).expect("write");
            fs.retire(file).expect("retire");
        }
        index += 1;
    }
    index
}

/// Counts as long as others work; how often that was done, and all that was found.
fn count(fs: &LogFs, goes_on: &AtomicBool) -> (u64, Recounted) {
    let (mut done, mut sum) = (0, Recounted::default());
    while goes_on.load(Ordering::Relaxed) {
        if let Ok(Some(found)) = fs.recount() {
            done += 1;
            sum.blocks += found.blocks;
            sum.inodes += found.inodes;
            sum.files += found.files;
        }
        std::thread::yield_now();
    }
    (done, sum)
}

/// Works with several threads, and counts; then closes the volume and looks whether what counted as free is.
fn beside_workers(volume: &Volume, options: AttachOptions) {
    let fs = LogFs::open(&volume.0, false, options).expect("open the volume");
    for life in 1..=WORKERS {
        directories(&Rig::new(&fs), life);
    }
    let goes_on = AtomicBool::new(true);
    let operations = AtomicU64::new(0);
    let (counted, found) = std::thread::scope(|scope| {
        for life in 1..=WORKERS {
            let (fs, goes_on, operations) = (&fs, &goes_on, &operations);
            scope.spawn(move || operations.fetch_add(work(fs, life, goes_on), Ordering::Relaxed));
        }
        let counting = scope.spawn(|| count(&fs, &goes_on));
        std::thread::sleep(Duration::from_secs(if long() { 120 } else { 3 }));
        goes_on.store(false, Ordering::Relaxed);
        counting.join().expect("counting")
    });
    println!("{counted} counts beside {} operations", operations.into_inner());
    assert!(counted > 10, "{counted} counts");
    assert_eq!(found, Recounted::default(), "somebody had it");
    assert!(fs.detach().expect("detach"));
    drop(fs);
    let medium = Medium::open(&volume.0, Default::default()).expect("open the file");
    assert_sound(&medium, true, "after counts beside others");
}

#[test]
fn what_somebody_has_is_never_taken_for_lost() {
    beside_workers(&Volume::new("counts"), options());
    beside_workers(&Volume::new("counts and evictions"), AttachOptions { index_bytes_max: 0, ..options() });
}

/// A user who stays, and others who are killed while he counts: in the end there is as much free for him as for who opens the volume anew.
#[test]
fn what_killed_users_lose_is_found_beside_living_ones() {
    let began = Instant::now();
    let mut random = Random(41);
    let mut found = Recounted::default();
    let mut counts = 0;
    // On a busy machine the killed had hardly begun, and rounds go on until something was lost.
    const ROUNDS_MAX: u32 = 40;
    let (rounds, mut round) = (if long() { 100 } else { 3 }, 0);
    while round < rounds || (found == Recounted::default() && round < ROUNDS_MAX) {
        round += 1;
        let volume = Volume::new("lost");
        let fs = volume.open();
        let goes_on = AtomicBool::new(true);
        let (done, sum) = std::thread::scope(|scope| {
            let counting = scope.spawn(|| count(&fs, &goes_on));
            for _ in 0..20 {
                volume.kill_one("work", Duration::from_micros(random.below(15_000) as u64));
            }
            goes_on.store(false, Ordering::Relaxed);
            counting.join().expect("counting")
        });
        let last = fs.recount().expect("counting").expect("nobody else counts");
        counts += done + 1;
        for some in [sum, last] {
            found.blocks += some.blocks;
            found.inodes += some.inodes;
            found.files += some.files;
        }
        let here = fs.statistics().expect("statistics");
        fs.detach().expect("detach");
        drop(fs);
        let fs = volume.open();
        assert!(fs.recovery().is_some(), "nobody was killed at work");
        assert_eq!(fs.statistics().expect("statistics"), here, "round {round}: {sum:?}, {last:?}");
    }
    println!("{round} rounds of 20 kills, {counts} counts: {found:?}, {:.1} s", began.elapsed().as_secs_f64());
    assert!(found != Recounted::default(), "nothing was ever lost");
}

/// Who finds no space counts by himself.
#[test]
fn who_needs_room_finds_what_was_lost() {
    let volume = Volume::new("room");
    let fs = volume.open();
    let rig = Rig::new(&fs);
    let mut random = Random(43);
    for _ in 0..60 {
        volume.kill_one("work", Duration::from_micros(random.below(15_000) as u64));
    }
    let file = rig.file(rig.root, "all of it");
    while rig.try_write(file, WritePosition::Append, &[9; 4096]).is_ok() {}
    let left = fs.statistics().expect("statistics");
    assert_eq!(fs.recount().expect("counting"), Some(Recounted::default()), "it was not looked for");
    fs.detach().expect("detach");
    drop(fs);
    let fs = volume.open();
    assert_eq!(fs.statistics().expect("statistics"), left);
}

const BLOCKS: u64 = 8;

/// A volume with a file of some blocks.
fn with_a_file() -> Vec<u8> {
    image(Mode::InPlace, |fs| {
        let rig = Rig::new(fs);
        rig.write(rig.file(rig.root, "file"), 0, &bytes(1, BLOCKS as usize * 4096));
    })
}

/// Which blocks of the volume a file has.
fn blocks_of(fs: &LogFs, file: NodeId) -> BTreeSet<u64> {
    let size = Rig::new(fs).attributes(file).size_bytes;
    let mut blocks = BTreeSet::new();
    let token = fs.map(file, MapAccess::Read, 0, size, &mut |extent| {
        let first = extent.descriptor_offset_bytes / 4096;
        blocks.extend((first..first + extent.length_bytes / 4096).filter(|_| extent.descriptor.is_some()));
    });
    fs.unmap(token.expect("map")).expect("unmap");
    blocks
}

/// Who takes blocks away that somebody has mapped ends anywhere: they are lost, and nobody gets them as long as they are mapped.
#[test]
fn lost_blocks_that_are_mapped_are_nobodys() {
    let image = with_a_file();
    for removes in [false, true] {
        for stores in 1.. {
            let (fs, simulation) = open(&image);
            let rig = Rig::new(&fs);
            let file = rig.find(rig.root, "file").expect("the file");
            let mapped = blocks_of(&fs, file);
            assert_eq!(mapped.len() as u64, BLOCKS);
            let token = fs.map(file, MapAccess::Write, 0, BLOCKS * 4096, &mut |_| ()).expect("map");
            simulation.set_hook(Some(Arc::new(|_| store_point())));
            let session = fs.session().clone();
            let outcome = run_abandoned(&[&session], stores, || match removes {
                true => drop(rig.unlink(rig.root, "file")),
                false => drop(rig.resize(file, 0)),
            });
            simulation.set_hook(None);
            fs.recount().expect("counting");
            let other = rig.file(rig.root, "other");
            while rig.try_write(other, WritePosition::Append, &[7; 4096]).is_ok() {}
            if fs.attributes(file).map_or(true, |attributes| attributes.sectors == 0) {
                let taken = blocks_of(&fs, other);
                assert!(
                    taken.is_disjoint(&mapped),
                    "after {stores} stores (removed: {removes}), {mapped:?}: {taken:?}"
                );
            }
            fs.unmap(token).expect("unmap");
            if matches!(outcome, Outcome::Completed(_)) {
                assert!(stores > 10);
                break;
            }
        }
    }
}

/// Who cuts a file is killed while he waits for one who writes in place, and who is stopped in the middle of it: the blocks are not given to
/// others before that one has gone on.
#[test]
fn lost_blocks_that_somebody_still_writes_to_are_nobodys() {
    let image = with_a_file();
    let (mut waited, mut lost) = (0, 0);
    // More of them are spent on waiting.
    for stores in (1..80).step_by(if long() { 1 } else { 5 }) {
        let (fs, simulation) = open(&image);
        let file = Rig::new(&fs).find(fs.root(), "file").expect("the file");
        Rig::new(&fs).write(file, 0, &bytes(2, 8));
        let fs = Arc::new(fs);
        let writer = fs.clone();
        let stopped = Simulation::stop_after(1, move || Rig::new(&*writer).write(file, 0, &bytes(9, 4096)));
        simulation.set_hook(Some(Arc::new(|_| store_point())));
        let session = fs.session().clone();
        std::thread::scope(|scope| {
            let (fs, session) = (&*fs, &session);
            let (ended, has_ended) = mpsc::channel();
            scope.spawn(move || {
                let outcome = run_abandoned(&[session], stores, || {
                    let _ = Rig::new(fs).resize(file, 0);
                });
                let _ = ended.send(matches!(outcome, Outcome::Completed(())));
            });
            // It waits for the writer, or was killed before.
            let is_killed = has_ended.recv_timeout(Duration::from_millis(200)).is_ok();
            if is_killed {
                match fs.recount() {
                    Err(error) => {
                        assert_eq!(error.errno(), Errno::BUSY, "{error}");
                        waited += 1;
                    }
                    Ok(found) => assert_eq!(found, Some(Recounted::default()), "{stores} stores: beside who writes"),
                }
            }
            stopped.finish();
        });
        simulation.set_hook(None);
        session.reap_dead().expect("reaping");
        lost += fs.recount().expect("counting").expect("nobody else counts").blocks;
        let counted = fs.statistics().expect("statistics");
        fs.detach().expect("detach");
        drop((fs, session));
        let fs = crate::volume::attach(&simulation.medium()).expect("the next attach");
        assert_eq!(fs.statistics().expect("statistics"), counted, "{stores} stores");
    }
    assert!(waited > 0 && lost > 0, "waited {waited} times, {lost} blocks were lost");
}
