//! Volumes that are nearly full: whatever is free can be had.

#[path = "../common/mod.rs"]
mod common;
mod emptied;
mod refused;

use common::{attach, volume};
use gannet_fstest::{Rig, name};
use gannet_logfs::{CheckOptions, Outcome, check};
use gannet_media::Medium;
use gannet_vfs::{AllocateMode, Errno, FileSystem, NewNode, Owner, WritePosition};
use std::sync::{Barrier, mpsc};

const BLOCK: usize = 4096;

fn assert_sound(medium: &Medium) {
    let report = check(medium, CheckOptions { repair: false, threads: 1 }, &mut |_| {}).expect("fsck");
    let found: Vec<String> = report.findings.iter().map(ToString::to_string).collect();
    assert!(report.outcome == Outcome::Sound, "{found:#?}");
}

/// Writes files of `blocks` blocks until the volume is full; returns how many were made.
fn fill(rig: &Rig<'_>, prefix: &str, blocks: usize) -> u64 {
    let content = vec![7; blocks * BLOCK];
    for number in 0.. {
        let file = format!("{prefix}{number}");
        let made = rig.fs.create(rig.root, name(&file), &NewNode::regular(0o644, Owner::default()));
        let written = made.and_then(|node| rig.try_write(node, WritePosition::At(0), &content));
        match written {
            Ok(written) if written.count_bytes == content.len() => {}
            Ok(_) => return number,
            Err(error) => {
                assert_eq!(error.errno(), Errno::NOSPC);
                return number;
            }
        }
    }
    unreachable!()
}

#[test]
fn inodes_are_made_in_single_blocks() {
    let medium = volume(64 << 20);
    let fs = attach(&medium);
    let rig = Rig::new(&fs);
    // Single blocks free all over the volume, and nowhere two in a row.
    let many = fill(&rig, "f", 40);
    fill(&rig, "g", 1);
    for number in 0..many {
        let node = rig.find(rig.root, &format!("f{number}")).expect("a file");
        for hole in (1..40).step_by(4) {
            let mode = AllocateMode::PunchHole;
            fs.allocate(node, mode, hole * BLOCK as u64, BLOCK as u64).expect("punch");
        }
    }
    let before = fs.statistics().expect("statistics");
    assert!(before.blocks_free > 2000, "{before:?}");
    let mut made = 0;
    let error = loop {
        match fs.create(rig.root, name(&format!("small{made}")), &NewNode::regular(0o644, Owner::default())) {
            Ok(_) => made += 1,
            Err(error) => break error,
        }
    };
    let after = fs.statistics().expect("statistics");
    assert!(after.inodes_free == 0 || after.blocks_free < 300, "after {made} files: {error}; {after:?}, {before:?}");
    assert!(fs.detach().expect("detach"));
    drop(fs);
    assert_sound(&medium);
}

#[test]
fn what_another_thread_has_given_up_can_be_had() {
    let medium = volume(16 << 20);
    let fs = attach(&medium);
    let rig = Rig::new(&fs);
    for number in 0..5 {
        let node = rig.file(rig.root, &format!("given{number}"));
        rig.write(node, 0, &vec![1; 60 * BLOCK]);
    }
    fill(&rig, "f", 3);
    let (done, wait_done) = mpsc::channel();
    let (go, wait_go) = mpsc::channel::<()>();
    std::thread::scope(|scope| {
        // Ends with this, however that comes: the other thread waits for it.
        let go = go;
        let other = &fs;
        scope.spawn(move || {
            let rig = Rig::new(other);
            for number in 0..5 {
                rig.unlink(rig.root, &format!("given{number}")).expect("unlink");
            }
            done.send(()).expect("said");
            // Idle from now on: it executes no fence that would free what it gave up.
            let _ = wait_go.recv();
        });
        wait_done.recv().expect("told");
        let free = fs.statistics().expect("statistics").blocks_free;
        let node = rig.file(rig.root, "taker");
        let mut taken = 0;
        while let Ok(written) = rig.try_write(node, WritePosition::Append, &[3; BLOCK]) {
            assert_eq!(written.count_bytes, BLOCK);
            taken += 1;
        }
        // But for the reserve of a full volume (a 64th), and a few pages of the log. The other thread has a third of it.
        assert!(taken + 80 > free, "{taken} of {free} blocks");
        drop(go);
    });
    assert!(fs.detach().expect("detach"));
    drop(fs);
    assert_sound(&medium);
}

#[test]
fn the_last_numbers_are_had_whoever_gave_them_up() {
    let medium = volume(4 << 20);
    let fs = attach(&medium);
    let rig = Rig::new(&fs);
    let (gave_up, used_up) = (Barrier::new(2), Barrier::new(2));
    std::thread::scope(|scope| {
        let (other, gave_up, used_up) = (&fs, &gave_up, &used_up);
        scope.spawn(move || {
            let rig = Rig::new(other);
            let directory = rig.directory(rig.root, "other");
            for number in 0..4 {
                rig.file(directory, &format!("{number}"));
            }
            for number in 0..4 {
                rig.unlink(directory, &format!("{number}")).expect("unlink");
            }
            // Its last numbers wait for a change that it does not make.
            gave_up.wait();
            used_up.wait();
        });
        gave_up.wait();
        let free = fs.statistics().expect("statistics").inodes_free;
        assert!(free > 500, "{free} numbers");
        for number in 0..free {
            let made = fs.create(rig.root, name(&format!("{number}")), &NewNode::regular(0o644, Owner::default()));
            made.unwrap_or_else(|error| panic!("file {number} of {free}: {error}"));
        }
        used_up.wait();
    });
    assert_eq!(fs.statistics().expect("statistics").inodes_free, 0);
    assert!(fs.detach().expect("detach"));
    drop(fs);
    assert_sound(&medium);
}

#[test]
fn slots_that_are_free_are_used_wherever_they_are() {
    // Large enough for several pools of inode numbers.
    let medium = volume(512 << 20);
    let fs = attach(&medium);
    let rig = Rig::new(&fs);
    let small = |number: u64| format!("small{number}");
    for number in 0..2000 {
        rig.file(rig.root, &small(number));
    }
    // A directory whose log has a page already.
    let directory = rig.directory(rig.root, "again");
    rig.file(directory, "first");
    for blocks in [2000, 3, 1] {
        fill(&rig, &format!("f{blocks}-"), blocks);
    }
    for number in (0..2000).step_by(2) {
        rig.unlink(rig.root, &small(number)).expect("unlink");
    }
    fill(&rig, "g", 1);
    // Threads of other slots begin with other pools of numbers, for which there is no room any more.
    let all_there = Barrier::new(6);
    std::thread::scope(|scope| {
        for thread in 0..6 {
            let (other, all_there) = (&fs, &all_there);
            scope.spawn(move || {
                other.attributes(directory).expect("attributes");
                all_there.wait();
                for number in 0..4 {
                    let file = format!("{thread}-{number}");
                    let made = other.create(directory, name(&file), &NewNode::regular(0o644, Owner::default()));
                    made.unwrap_or_else(|error| panic!("thread {thread}, file {number}: {error}"));
                }
            });
        }
    });
    assert!(fs.detach().expect("detach"));
    drop(fs);
    assert_sound(&medium);
}

#[test]
fn a_write_goes_as_far_as_there_is_room() {
    let medium = volume(16 << 20);
    let fs = attach(&medium);
    let rig = Rig::new(&fs);
    // Runs of 100 blocks, a hole in a file, and what is allocated behind an end.
    let behind = rig.file(rig.root, "behind");
    fs.allocate(behind, AllocateMode::KeepSize, 0, 20 * BLOCK as u64).expect("allocate");
    let sparse = rig.file(rig.root, "sparse");
    rig.write(sparse, 400 * BLOCK as u64, b"end");
    let given = rig.file(rig.root, "given");
    rig.write(given, 0, &vec![1; 300 * BLOCK]);
    fill(&rig, "f", 1);
    let content: Vec<u8> = (0..400 * BLOCK).map(|at| (at / 7) as u8).collect();
    for (text, position) in [("behind", 0), ("sparse", 0), ("fresh", 0), ("fresh", 5000)] {
        let node = rig.find(rig.root, text).unwrap_or_else(|| rig.file(rig.root, text));
        let punch = AllocateMode::PunchHole;
        fs.allocate(given, punch, 0, 100 * BLOCK as u64).expect("punch");
        let free = fs.statistics().expect("statistics").blocks_free as usize;
        let written = rig.try_write(node, WritePosition::At(position), &content).expect("there is some room");
        assert!(written.count_bytes < content.len());
        // But for pages of logs, of which each entry may need one.
        assert!(written.count_bytes + 30 * BLOCK > (free - 64).min(100) * BLOCK, "{text}: {written:?} of {free}");
        let read = rig.try_read(node, position, written.count_bytes).expect("read");
        assert!(read == content[..written.count_bytes], "{text}");
        let full = rig.try_write(node, WritePosition::At(position + written.count_bytes as u64), &content);
        assert_eq!(full.map_err(|error| error.errno()), Err(Errno::NOSPC), "{text}");
        rig.resize(node, 0).expect("cut");
    }
    assert!(fs.detach().expect("detach"));
    drop(fs);
    assert_sound(&medium);
}
