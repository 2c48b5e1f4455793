//! Volumes that are nearly full: whatever is free can be had.

mod common;

use common::{attach, volume};
use gannet_fstest::{Rig, name};
use gannet_logfs::{CheckOptions, Outcome, check};
use gannet_media::Medium;
use gannet_vfs::{
    AllocateMode, AttributeChange, Errno, FileSystem, MapAccess, NewNode, NodeId, Owner, RenameFlags, WritePosition,
};
use std::sync::{Barrier, mpsc};

const BLOCK: usize = 4096;
const ROUNDS: u32 = 15;

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

/// A file that is mapped writably is sealed behind each append and extension, with an entry of its own: room for both is had before the
/// first, or an append that has happened would be told as one that failed.
#[test]
fn what_fails_on_a_mapped_file_has_not_happened() {
    type Change = (&'static str, fn(&Rig<'_>, NodeId) -> bool);
    let changes: [Change; 3] = [
        ("append within a block", |rig, node| rig.try_write(node, WritePosition::Append, b"more").is_ok()),
        ("write behind the end", |rig, node| {
            let size = rig.attributes(node).size_bytes;
            rig.try_write(node, WritePosition::At(size + 3), b"more").is_ok()
        }),
        ("extension", |rig, node| {
            let size = rig.attributes(node).size_bytes;
            let change = AttributeChange { size_bytes: Some(size + 5), ..Default::default() };
            rig.fs.set_attributes(node, &change).is_ok()
        }),
    ];
    for (text, change) in changes {
        let medium = volume(16 << 20);
        let fs = attach(&medium);
        let rig = Rig::new(&fs);
        let node = rig.file(rig.root, "mapped");
        rig.write(node, 0, b"some");
        let token = fs.map(node, MapAccess::Write, 0, BLOCK as u64, &mut |_| {}).expect("map");
        for blocks in [100, 3, 1] {
            fill(&rig, &format!("f{blocks}-"), blocks);
        }
        // Over the end of a page of the log.
        for number in 0..100 {
            let before = (rig.attributes(node).size_bytes, rig.content(node));
            let happened = change(&rig, node);
            let after = (rig.attributes(node).size_bytes, rig.content(node));
            assert_eq!(after != before, happened, "{text} {number}");
        }
        fs.unmap(token).expect("unmap");
        assert!(fs.detach().expect("detach"));
        drop(fs);
        assert_sound(&medium);
    }
}

/// A rename that leaves a whiteout and finds no room gives back all that it had taken for that: a thread's hands are few.
#[test]
fn a_whiteout_without_room_leaves_nothing_in_hand() {
    let medium = volume(16 << 20);
    let fs = attach(&medium);
    let rig = Rig::new(&fs);
    for number in 0..64 {
        rig.file(rig.root, &format!("moved{number}"));
    }
    for blocks in [100, 3, 1] {
        fill(&rig, &format!("f{blocks}-"), blocks);
    }
    let mut refused = 0;
    for number in 0..64 {
        let (from, to) = (format!("moved{number}"), format!("to{number}"));
        if let Err(error) = fs.rename(rig.root, name(&from), rig.root, name(&to), RenameFlags::WHITEOUT) {
            assert_eq!(error.errno(), Errno::NOSPC, "after {refused}");
            refused += 1;
        }
    }
    assert!(refused > 16, "{refused}");
    rig.unlink(rig.root, "f100-0").expect("room can be made");
    rig.file(rig.root, "new");
    assert!(fs.detach().expect("detach"));
    drop(fs);
    assert_sound(&medium);
}

/// Names take room in their directory's log, and so does their removal, which frees nothing else while the file has other names.
#[test]
fn a_volume_that_is_full_of_names_can_be_emptied() {
    for (length, has_data) in [(8, false), (240, false), (90, true)] {
        for order in ["as they were made", "the latest first", "any"] {
            let medium = volume(4 << 20);
            let fs = attach(&medium);
            let rig = Rig::new(&fs);
            let (directory, file) = (rig.directory(rig.root, "names"), rig.file(rig.root, "file"));
            let before = fs.statistics().expect("statistics");
            let text = |number: u32| format!("{number:0>length$}");
            let links_max = if has_data { 5_000 } else { u32::MAX };
            let made = (0..links_max).find(|&number| match fs.link(file, directory, name(&text(number))) {
                Ok(()) => false,
                Err(error) => {
                    assert_eq!(error.errno(), Errno::NOSPC);
                    true
                }
            });
            let mut names: Vec<u32> = (0..made.unwrap_or(links_max)).collect();
            assert!(names.len() > 2_000, "{} names", names.len());
            if has_data {
                fill(&rig, "data", 1);
            }
            match order {
                "any" => names.sort_by_key(|&number| number.wrapping_mul(0x9E37_79B1)),
                "the latest first" => names.reverse(),
                _ => {}
            }
            for (removed, &number) in names.iter().enumerate() {
                if let Err(error) = rig.unlink(directory, &text(number)) {
                    panic!("{removed} of {} names of {length} letters removed, {order}: {error}", names.len());
                }
            }
            if !has_data {
                let after = fs.statistics().expect("statistics");
                assert!(after.blocks_free + 16 > before.blocks_free, "{before:?}, {after:?}");
            }
            assert!(fs.detach().expect("detach"));
            drop(fs);
            assert_sound(&medium);
        }
    }
}

/// Two at once fill a volume with names in two directories, and take them away again.
#[test]
fn two_in_need_do_not_stand_in_each_others_way() {
    let medium = volume(4 << 20);
    let fs = attach(&medium);
    let rig = Rig::new(&fs);
    let (one, two) = (rig.directory(rig.root, "one"), rig.directory(rig.root, "two"));
    let file = rig.file(rig.root, "file");
    let work = |seed: u64| {
        let mut random = seed;
        let mut below = |limit: u64| {
            random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (random >> 33) % limit
        };
        let mut made = Vec::new();
        let mut next = 0_u64;
        for _ in 0..ROUNDS {
            let length = [8, 60, 240][below(3) as usize];
            loop {
                let (directory, text) = ([one, two][below(2) as usize], format!("{seed}-{next:0>length$}"));
                next += 1;
                match fs.link(file, directory, name(&text)) {
                    Ok(()) => made.push((directory, text)),
                    Err(error) => {
                        assert_eq!(error.errno(), Errno::NOSPC);
                        break;
                    }
                }
            }
            for _ in 0..below(made.len() as u64 + 1) {
                let (directory, text) = made.swap_remove(below(made.len() as u64) as usize);
                if let Err(error) = Rig::new(&fs).unlink(directory, &text) {
                    panic!("{text} cannot be removed: {error}; {:?}", fs.statistics());
                }
            }
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| work(1));
        scope.spawn(|| work(2));
    });
    assert!(fs.detach().expect("detach"));
    drop(fs);
    assert_sound(&medium);
}

/// Zeros take room where a file has holes or shares its blocks. If there is too little, not a byte has changed.
#[test]
fn zeroing_without_room_destroys_nothing() {
    const MIB: u64 = 1 << 20;
    let medium = volume(32 << 20);
    let fs = attach(&medium);
    let rig = Rig::new(&fs);
    let content: Vec<u8> = (0..8 * MIB).map(|at| (at / 7 % 251) as u8 + 1).collect();
    let small = rig.file(rig.root, "small");
    rig.write(small, 0, &content[..5 * BLOCK]);
    let large = rig.file(rig.root, "large");
    rig.write(large, 0, &content);
    let shares = rig.file(rig.root, "shares");
    fs.clone_range(large, 0, shares, 0, 100 * BLOCK as u64).expect("clone");
    let refused = |node, mode, offset, length| {
        let before = (rig.attributes(node), rig.content(node));
        let outcome = fs.allocate(node, mode, offset, length).map_err(|error| error.errno());
        assert_eq!(outcome, Err(Errno::NOSPC), "{mode:?} of {length} at {offset}");
        let after = (rig.attributes(node), rig.content(node));
        let differs = before.1.iter().zip(&after.1).position(|(before, after)| before != after);
        assert!(differs.is_none(), "{mode:?} of {length} at {offset}: differs at {differs:?}");
        assert_eq!((before.0.size_bytes, before.0.sectors), (after.0.size_bytes, after.0.sectors), "{mode:?}");
    };
    for mode in [AllocateMode::Zero, AllocateMode::ZeroKeepSize] {
        refused(small, mode, 8192, 1 << 40);
        refused(small, mode, 8193, 1 << 40);
    }
    for blocks in [100, 3, 1] {
        fill(&rig, &format!("f{blocks}-"), blocks);
    }
    for mode in [AllocateMode::Zero, AllocateMode::ZeroKeepSize] {
        refused(large, mode, 4 * MIB, 16 * MIB);
        refused(large, mode, 0, 64 << 10);
        refused(shares, mode, 5, 100);
        refused(shares, mode, 50 * BLOCK as u64 + 5, 64 << 10);
    }
    // Both ends of what is punched are in blocks that are shared.
    refused(shares, AllocateMode::PunchHole, 50 * BLOCK as u64 + 5, 64 << 10);
    // Blocks of the file's own are zeroed where they are: that takes no room.
    let (from, to) = (5 * MIB + 5, 7 * MIB + 77);
    fs.allocate(large, AllocateMode::Zero, from, to - from).expect("it has blocks of its own");
    let mut expected = content.clone();
    expected[from as usize..to as usize].fill(0);
    assert!(rig.content(large) == expected);
    assert!(fs.detach().expect("detach"));
    drop(fs);
    assert_sound(&medium);
}

/// A file whose extents were cut by clones, of which its own log says nothing, and then moved: on a full volume its collection takes no block
/// that removals need.
#[test]
fn a_map_is_not_written_into_the_last_blocks() {
    const BLOCKS: u64 = 4000;
    const BLOCK: u64 = 4096;
    let medium = volume(32 << 20);
    let fs = attach(&medium);
    let rig = Rig::new(&fs);
    let free = |when: &str| fs.statistics().expect(when).blocks_free;
    let free_at_first = free("at first");
    let (source, clone) = (rig.file(rig.root, "source"), rig.file(rig.root, "clone"));
    rig.write(source, 0, &vec![7; (BLOCKS * BLOCK) as usize]);
    for at in (0..BLOCKS).step_by(2) {
        fs.clone_range(source, at * BLOCK, clone, at * BLOCK, BLOCK).expect("a clone");
    }
    fs.allocate(source, AllocateMode::Collapse, 0, BLOCK).expect("a collapse");
    fill(&rig, "x", 40);
    fill(&rig, "y", 1);
    let (mut punched, mut refused) = (0, 0);
    for at in (1..BLOCKS - 1).step_by(2) {
        // Of a block that is shared, so that none is free.
        match fs.allocate(source, AllocateMode::PunchHole, at * BLOCK, BLOCK) {
            Ok(()) => punched += 1,
            Err(error) => {
                assert_eq!(error.errno(), Errno::NOSPC);
                refused += 1;
            }
        }
    }
    println!("{punched} holes, {refused} refused, {} blocks are free", free("full"));
    assert!(punched > 100);
    for (file, _) in rig.list(rig.root) {
        let file = String::from_utf8(file).expect("text");
        rig.unlink(rig.root, &file).unwrap_or_else(|error| panic!("{file}: {error}"));
    }
    assert!(free("in the end") + 40 >= free_at_first, "{} of {free_at_first}", free("in the end"));
    assert!(fs.detach().expect("detach"));
    drop(fs);
    assert_sound(&medium);
}
