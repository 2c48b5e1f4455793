//! Processes clone ranges of files that others write to at that moment, and are killed at random. What a clone holds was in its source at
//! some moment between its begin and its end, and stays there whatever becomes of the source.
//!
//! *Sources* say of themselves, in each 64 bytes, what they are: file, place, version. Each region of theirs is one process's, which notes in a
//! table, beside the volume, which version of a piece it begins to write and which it was told it wrote; so of each piece of a clone it is known
//! which versions are allowed. In *moving* files anybody writes anywhere, inserts and collapses: of their clones only that is known that they
//! stay as they are. *Targets* are one process's each, which keeps beside the volume what they hold; when it was killed the parent compares.

mod record;
mod worker;

use self::record::Side;
use self::worker::{Worker, piece};
use crate::kills::RemoveAtEnd;
use crate::volume::{Mode, assert_sound, format, options};
use crate::{Random, long};
use gannet_fstest::Rig;
use gannet_logfs::LogFs;
use gannet_media::{CreateOptions, Medium, OpenOptions};
use gannet_shm::testing::disturb;
use gannet_vfs::FileSystem;
use rustix::process::{Pid, Signal, kill_process};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const VOLUME: &str = "GANNET_TEST_CLONES_VOLUME";
const SLOT: &str = "GANNET_TEST_CLONES_SLOT";
const LIFE: &str = "GANNET_TEST_CLONES_LIFE";

/// Processes at work.
const SLOTS: usize = 4;
const SOURCES: usize = 2;
const MOVING: usize = 2;
/// Targets of each process.
const TARGETS: usize = 2;
const BLOCK: usize = 4096;
const CELL: usize = 64;
const REGION_BLOCKS: usize = 4;
const REGIONS: usize = 12;
const SOURCE_BYTES: usize = REGIONS * REGION_BLOCKS * BLOCK;
const REGION_CELLS: usize = REGION_BLOCKS * BLOCK / CELL;
const CELLS: usize = REGIONS * REGION_CELLS;
/// A stripe's blocks: what moves by so many is another stripe's.
const STRIPE_BLOCKS: usize = 16;
const MOVING_BLOCKS_MAX: usize = 64;

/// What a child does; nothing in any other run of the tests.
#[test]
fn child() {
    let variable = |name| std::env::var(name).ok();
    let (Some(path), Some(slot), Some(life)) = (variable(VOLUME), variable(SLOT), variable(LIFE)) else { return };
    let fs = LogFs::open(Path::new(&path), false, options()).expect("open the volume");
    let path = PathBuf::from(path);
    let (slot, life) = (slot.parse().expect("a number"), life.parse().expect("a number"));
    let mut worker = Worker::new(&fs, &path, slot, life);
    if life % 3 != 0 {
        // Between a lock and what is done under it, too: so they meet there.
        disturb(life);
    }
    loop {
        worker.step();
    }
}

fn spawn(path: &Path, slot: usize, life: u64) -> Child {
    Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", "clones::child", "--nocapture", "--test-threads=1"])
        .env(VOLUME, path)
        .env(SLOT, slot.to_string())
        .env(LIFE, life.to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .expect("a child")
}

/// Compares the targets of one who was killed with what he noted.
fn verify_killed(rig: &Rig<'_>, side: &Side, slot: usize) {
    for own in slot * TARGETS..(slot + 1) * TARGETS {
        let found = rig.content(rig.find(rig.root, &format!("target{own}")).expect("a target"));
        if let Some(what) = side.expected(own).difference(&found) {
            panic!("target {own} of one who was killed: {what}");
        }
    }
}

/// Compares the sources with the table: nobody is at work.
fn verify_sources(rig: &Rig<'_>, side: &Side) {
    for file in 0..SOURCES {
        let found = rig.content(rig.find(rig.root, &format!("source{file}")).expect("a source"));
        let mut allowed = side.allowed_until(side.allowed_from(file));
        allowed.all_dead = true;
        for (cell, bytes) in found.chunks_exact(CELL).enumerate() {
            if let Err(what) = allowed.check(side, cell, bytes) {
                panic!("source {file}, piece {cell}: {what}");
            }
        }
    }
}

fn campaign(mode: Mode, seed: u64, rounds: usize, kills: usize) {
    let began = Instant::now();
    let path = PathBuf::from(format!("/dev/shm/gannet-test-clones-{mode:?}-{seed}-{}", std::process::id()));
    let _remove = [RemoveAtEnd(path.clone()), RemoveAtEnd(Side::path(&path))];
    let created = CreateOptions { force: true, huge_pages: false, ..CreateOptions::default() };
    let medium = Medium::create(&path, 8 << 20, created, &mut |_| {}).expect("a file");
    format(&medium, mode);
    drop(medium);
    let side = Side::create(&path);
    let mut random = Random(seed << 8 | mode as u64 | 1);
    let (mut life, mut takeovers) = (0, 0);
    for round in 0..rounds {
        let fs = LogFs::open(&path, false, options()).expect("open the volume");
        let rig = Rig::new(&fs);
        if round == 0 {
            (0..SOURCES)
                .for_each(|at| rig.write(rig.file(rig.root, &format!("source{at}")), 0, &vec![0; SOURCE_BYTES]));
            (0..MOVING).for_each(|at| {
                rig.write(rig.file(rig.root, &format!("moving{at}")), 0, &vec![1; MOVING_BLOCKS_MAX / 2 * BLOCK]);
            });
            (0..SLOTS * TARGETS).for_each(|at| {
                rig.file(rig.root, &format!("target{at}"));
            });
        }
        let mut start = |slot| {
            life += 1;
            spawn(&path, slot, life)
        };
        let mut children: Vec<Child> = (0..SLOTS).map(&mut start).collect();
        let signal = |child: &Child, signal| kill_process(Pid::from_child(child), signal).expect("a signal");
        let end = |child: &mut Child| {
            child.kill().expect("kill");
            let status = child.wait().expect("wait");
            assert!(status.code().is_none(), "a child failed: {status}; seed {seed}, round {round}");
        };
        for kill in 0..kills {
            std::thread::sleep(Duration::from_micros(2_000 + random.below(30_000) as u64));
            let slot = random.below(SLOTS);
            // Another one stands still, perhaps where he is waited for by the one who is killed then.
            let still = (slot + 1 + random.below(SLOTS)) % SLOTS;
            let stands = still != slot;
            if stands {
                signal(&children[still], Signal::STOP);
                std::thread::sleep(Duration::from_micros(random.below(8_000) as u64));
            }
            end(&mut children[slot]);
            if stands {
                std::thread::sleep(Duration::from_micros(random.below(4_000) as u64));
                signal(&children[still], Signal::CONT);
            }
            verify_killed(&rig, &side, slot);
            if kill % 8 == 7 {
                let _ = fs.recount();
            }
            children[slot] = start(slot);
        }
        for (slot, child) in children.iter_mut().enumerate() {
            end(child);
            verify_killed(&rig, &side, slot);
        }
        fs.session().reap_dead().expect("reaping");
        verify_sources(&rig, &side);
        let lost = fs.recount().expect("counting").expect("nobody else counts");
        takeovers += fs.takeovers().expect("takeovers");
        let counted = fs.statistics().expect("statistics");
        drop(fs);
        // Somebody was killed: the next one recovers, and finds free what was.
        let fs = LogFs::open(&path, false, options()).expect("open again");
        assert_eq!(fs.statistics().expect("statistics"), counted, "{lost:?} were lost; seed {seed}, round {round}");
        let rig = Rig::new(&fs);
        (0..SLOTS).for_each(|slot| verify_killed(&rig, &side, slot));
        verify_sources(&rig, &side);
        assert!(fs.detach().expect("detach"));
        drop(fs);
        let medium = Medium::open(&path, OpenOptions::default()).expect("open the file");
        assert_sound(&medium, true, "after all kills");
    }
    println!(
        "{mode:?}, seed {seed}: {rounds} rounds of {kills} kills, {takeovers} takeovers, {:.1} s",
        began.elapsed().as_secs_f64()
    );
}

#[test]
fn clones_hold_what_their_sources_held() {
    let first = std::env::var("GANNET_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1);
    for seed in first..first + if long() { 40 } else { 1 } {
        for mode in [Mode::InPlace, Mode::CopyOnWrite] {
            let (rounds, kills) = if long() { (6, 60) } else { (2, 60) };
            campaign(mode, seed, rounds, kills);
        }
    }
}
