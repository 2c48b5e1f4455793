//! What is free is counted while others work. Where nobody is killed nothing may be found: whatever is, somebody has. Where processes are killed
//! all that they lost is found, and nothing else.

use crate::handover::Volume;
use crate::kills::{directories, perform};
use crate::volume::{assert_sound, options};
use crate::{Random, long};
use gannet_fstest::Rig;
use gannet_logfs::{AttachOptions, LogFs, Recounted};
use gannet_media::Medium;
use gannet_vfs::{FileSystem, NewNode, Owner, WritePosition};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
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
    let rounds = if long() { 100 } else { 3 };
    for round in 0..rounds {
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
    println!("{rounds} rounds of 20 kills, {counts} counts: {found:?}, {:.1} s", began.elapsed().as_secs_f64());
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
