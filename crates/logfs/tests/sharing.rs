//! Shared blocks over remounts, on full volumes, in many pieces, and beside other threads.

mod common;

use common::volume;
use gannet_fstest::{Rig, name};
use gannet_logfs::{AccessTimes, AttachOptions, CheckOptions, LogFs, NoUsers, Outcome, check};
use gannet_media::Medium;
use gannet_vfs::usermem::{Destination, Source};
use gannet_vfs::{AllocateMode, Errno, FileSystem, MapAccess, RemoveKind, WriteFlags, WritePosition};
use std::sync::atomic::{AtomicBool, Ordering};

const BLOCK: u64 = 4096;

fn attach(medium: &Medium) -> LogFs {
    let options = AttachOptions {
        index_bytes_max: 8 << 20,
        copy_on_write: None,
        access_times: AccessTimes::Relative,
        threads: 2,
        users: Box::new(NoUsers),
    };
    LogFs::open_private(medium.clone(), options).expect("attach")
}

fn assert_sound(medium: &Medium) {
    let report = check(medium, CheckOptions { repair: false, threads: 1 }, &mut |_| {}).expect("fsck");
    let found: Vec<String> = report.findings.iter().map(ToString::to_string).collect();
    assert!(report.outcome == Outcome::Sound, "{found:#?}");
}

/// What a piece of a file of many pieces holds.
fn piece(index: u64) -> Vec<u8> {
    vec![(index % 251) as u8 + 1; BLOCK as usize]
}

#[test]
fn many_pieces_outlive_remounts_and_are_freed_one_by_one() {
    const PIECES: u64 = 900;
    let medium = volume(64 << 20);
    let mut fs = attach(&medium);
    let root = fs.root();
    let empty = fs.statistics().expect("statistics").blocks_free;
    let nodes = {
        let rig = Rig::new(&fs);
        let nodes = [rig.file(root, "a"), rig.file(root, "b"), rig.file(root, "c")];
        for index in 0..PIECES {
            rig.write(nodes[0], 2 * index * BLOCK, &piece(index));
        }
        let size = rig.attributes(nodes[0]).size_bytes;
        fs.clone_range(nodes[0], 0, nodes[1], 0, size).expect("clone");
        // Every third piece of the third is its own, so that numbers of references change all the time.
        fs.clone_range(nodes[1], 0, nodes[2], 0, size).expect("clone");
        for index in (0..PIECES).step_by(3) {
            rig.write(nodes[2], 2 * index * BLOCK, &piece(index + 7));
        }
        nodes
    };
    let expected =
        |node: usize, index: u64| if node == 2 && index.is_multiple_of(3) { piece(index + 7) } else { piece(index) };
    let same = |fs: &LogFs, which: &[usize]| {
        let rig = Rig::new(fs);
        for &node in which {
            let bytes = rig.content(nodes[node]);
            for index in 0..PIECES {
                let at = (2 * index * BLOCK) as usize;
                assert!(bytes[at..at + BLOCK as usize] == expected(node, index), "piece {index} of {node}");
                let hole = bytes.get(at + BLOCK as usize..at + 2 * BLOCK as usize).unwrap_or(&[]);
                assert!(hole.iter().all(|&byte| byte == 0), "hole {index} of {node}");
            }
        }
    };
    same(&fs, &[0, 1, 2]);
    let used = empty - fs.statistics().expect("statistics").blocks_free;
    assert!(used < PIECES + PIECES / 3 + 200, "{used} blocks");
    for step in 0..4 {
        let free = fs.statistics().expect("statistics").blocks_free;
        assert!(fs.detach().expect("detach"));
        drop(fs);
        assert_sound(&medium);
        fs = attach(&medium);
        assert_eq!(fs.recovery(), None, "closed cleanly");
        assert_eq!(fs.statistics().expect("statistics").blocks_free, free);
        let left: &[usize] = [&[0, 1, 2][..], &[0, 2], &[2], &[]][step];
        same(&fs, left);
        if step == 1 {
            // Recovery counts the same.
            drop(fs);
            fs = attach(&medium);
            assert!(fs.recovery().is_some());
            assert_eq!(fs.statistics().expect("statistics").blocks_free, free);
            same(&fs, left);
        }
        let gone = ["b", "a", "c"];
        if step < 3 {
            fs.remove(root, name(gone[step]), RemoveKind::NonDirectory).expect("remove");
        }
    }
    assert!(fs.statistics().expect("statistics").blocks_free + 8 >= empty);
}

#[test]
fn a_full_volume_shares_and_says_when_it_cannot_copy() {
    let medium = volume(8 << 20);
    let fs = attach(&medium);
    let rig = Rig::new(&fs);
    let (a, b) = (rig.file(rig.root, "a"), rig.file(rig.root, "b"));
    let bytes: Vec<u8> = (0..1 << 20).map(|index: u32| (index / 64) as u8 | 1).collect();
    rig.write(a, 0, &bytes);
    fs.clone_range(a, 0, b, 0, bytes.len() as u64).expect("clone");
    // With room in its log.
    let c = rig.file(rig.root, "c");
    rig.write(c, 0, b"x");
    let filler = rig.file(rig.root, "filler");
    while rig.try_write(filler, WritePosition::Append, &[1; 1 << 16]).is_ok() {}
    while rig.try_write(filler, WritePosition::Append, &[1; 1]).is_ok() {}
    // Nothing can be copied, so neither changes.
    let refused = rig.try_write(b, WritePosition::At(5000), b"changed").expect_err("no room");
    assert_eq!(refused.errno(), Errno::NOSPC);
    assert_eq!(
        fs.allocate(b, AllocateMode::Unshare, 0, bytes.len() as u64).expect_err("no room").errno(),
        Errno::NOSPC
    );
    assert!(rig.content(a) == bytes && rig.content(b) == bytes);
    // Sharing still goes where the log has room. And so does dropping it.
    fs.clone_range(b, 0, c, 0, bytes.len() as u64).expect("clone");
    rig.unlink(rig.root, "a").expect("unlink");
    rig.resize(b, 100).expect("truncate");
    assert!(rig.content(c) == bytes);
    // All to itself by now, but for the first block.
    rig.write(c, 8192, b"in place");
    let mut changed = bytes.clone();
    changed[8192..8200].copy_from_slice(b"in place");
    assert!(rig.content(c) == changed);
    assert_eq!(rig.content(b), bytes[..100]);
    assert!(fs.detach().expect("detach"));
    drop(fs);
    assert_sound(&medium);
    let fs = attach(&medium);
    assert!(Rig::new(&fs).content(c) == changed);
}

#[test]
fn what_is_mapped_is_not_shared_and_what_is_shared_is_copied_to_be_mapped() {
    let medium = volume(8 << 20);
    let fs = attach(&medium);
    let rig = Rig::new(&fs);
    let (a, b) = (rig.file(rig.root, "a"), rig.file(rig.root, "b"));
    rig.write(a, 0, &[1; 3 * BLOCK as usize]);
    let map = |node, access| fs.map(node, access, 0, 3 * BLOCK, &mut |_| ());
    let Ok(token) = map(a, MapAccess::Write) else {
        // A medium without a descriptor cannot be mapped.
        return;
    };
    assert_eq!(fs.clone_range(a, 0, b, 0, BLOCK).expect_err("mapped").errno(), Errno::OPNOTSUPP);
    fs.unmap(token).expect("unmap");
    fs.clone_range(a, 0, b, 0, 3 * BLOCK).expect("clone");
    let mut mapped = Vec::new();
    let token = fs.map(b, MapAccess::Read, 0, 3 * BLOCK, &mut |extent| mapped.push(*extent)).expect("map");
    rig.write(b, 0, b"seen through the map");
    let mut seen = [0; 20];
    let at = mapped[0].descriptor_offset_bytes;
    medium.read(gannet_media::MediumOffset(at), &mut seen).expect("read");
    assert_eq!(&seen, b"seen through the map");
    assert_eq!(rig.content(a), vec![1; 3 * BLOCK as usize]);
    fs.unmap(token).expect("unmap");
}

/// Ends the other threads, also when this one panics.
struct Ends<'d>(&'d AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Holes are equal, however long: they are neither read nor shared, and what stands behind them is.
#[test]
fn holes_of_two_files_are_equal_at_once() {
    const END: u64 = 1 << 50;
    let medium = volume(16 << 20);
    let fs = attach(&medium);
    let rig = Rig::new(&fs);
    let (a, b) = (rig.file(rig.root, "a"), rig.file(rig.root, "b"));
    for node in [a, b] {
        rig.write(node, END, &[7; 9000]);
    }
    let length = END + 9000;
    assert!(fs.dedupe_range(a, 0, b, 0, length).expect("dedupe"));
    let first_of = |node| {
        let mut first = None;
        fs.extents(node, 0, length, &mut |extent| {
            first = Some((extent.file_offset_bytes, extent.medium_offset_bytes));
            false
        })
        .expect("extents");
        first
    };
    assert_eq!(first_of(a).map(|first| first.0), Some(END));
    assert_eq!(first_of(a), first_of(b));
    // Zeros of the one are no hole, and equal; a hole does not hide what differs behind it.
    rig.write(b, END / 2, &[0; 4096]);
    assert!(fs.dedupe_range(a, END / 2, b, END / 2, 8192).expect("dedupe"));
    rig.write(b, END + 4096, &[8; 10]);
    assert!(!fs.dedupe_range(a, END - 8192, b, END - 8192, 9000 + 8192).expect("dedupe"));
    // Holes that begin at different places.
    assert!(fs.dedupe_range(a, 0, b, END / 2 + 4096, END / 4).expect("dedupe"));
}

/// Writers in place to a file that is cloned again and again: each clone is what some moment was, and stays so.
#[test]
fn clones_beside_writers_in_place_stay_as_they_are() {
    const BLOCKS: u64 = 16;
    let medium = volume(32 << 20);
    let fs = attach(&medium);
    let rig = Rig::new(&fs);
    let source = rig.file(rig.root, "source");
    rig.write(source, 0, &vec![1; (BLOCKS * BLOCK) as usize]);
    let rounds = if std::env::var_os("GANNET_LONG").is_some() { 5000 } else { 300 };
    let done = AtomicBool::new(false);
    let fs = &fs;
    std::thread::scope(|scope| {
        for thread in 0..2_u64 {
            let done = &done;
            scope.spawn(move || {
                let mut value = thread as u8;
                let mut at = thread;
                while !done.load(Ordering::Relaxed) {
                    value = value.wrapping_add(2).max(2);
                    at = (at + 2) % BLOCKS;
                    let bytes = [value; BLOCK as usize];
                    let mut from = Source::from_slice(&bytes);
                    fs.write(source, WritePosition::At(at * BLOCK), &mut from, WriteFlags::empty()).expect("write");
                }
            });
        }
        // A reader sees whole words of some writer, whatever moves below.
        let done_too = &done;
        scope.spawn(move || {
            let mut bytes = vec![0; (BLOCKS * BLOCK) as usize];
            while !done_too.load(Ordering::Relaxed) {
                let count = fs.read(source, 0, &mut Destination::from_slice(&mut bytes)).expect("read");
                assert_eq!(count as u64, BLOCKS * BLOCK);
                assert!(bytes.chunks(8).all(|word| word[0] != 0 && word.iter().all(|&byte| byte == word[0])));
            }
        });
        let rig = Rig::new(fs);
        let _ends = Ends(&done);
        for round in 0..rounds {
            let text = format!("clone{}", round % 4);
            if round >= 4 {
                rig.unlink(rig.root, &text).expect("unlink");
            }
            let clone = rig.file(rig.root, &text);
            fs.clone_range(source, 0, clone, 0, BLOCKS * BLOCK).expect("clone");
            let first = rig.content(clone);
            if round % 3 == 0 {
                rig.write(clone, 0, &[0xFF; 100]);
                assert!(rig.content(clone)[BLOCK as usize..] == first[BLOCK as usize..], "round {round}");
            } else {
                std::thread::yield_now();
                assert!(rig.content(clone) == first, "round {round}: a clone changed");
            }
        }
    });
    assert!(fs.detach().expect("detach"));
    assert_sound(&medium);
}
