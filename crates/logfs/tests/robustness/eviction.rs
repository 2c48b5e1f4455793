//! Trees far larger than the memory for their indexes: everything works, by one thread and by several, and the room is found
//! by dropping indexes that nobody is at work on.

use crate::volume::{Mode, assert_sound, format, options};
use crate::{Random, long};
use gannet_fstest::Rig;
use gannet_logfs::{AttachOptions, LogFs};
use gannet_media::{CreateOptions, Medium};
use gannet_vfs::{Errno, FileSystem};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};

const DIRECTORIES: usize = 40;
const FILES: usize = 120;

fn medium(bytes: u64) -> Medium {
    let options = CreateOptions { huge_pages: false, ..Default::default() };
    let medium = Medium::create_in_memory("eviction", bytes, options).expect("memory");
    format(&medium, Mode::InPlace);
    medium
}

fn open(medium: &Medium, nodes: u64) -> LogFs {
    let little = AttachOptions { index_bytes_max: nodes * 512, ..options() };
    LogFs::open_private(medium.clone(), little).expect("attach")
}

fn content(directory: usize, file: usize, version: u32) -> Vec<u8> {
    let length = 1 + (directory * 131 + file * 17 + version as usize * 1009) % 6000;
    (0..length).map(|at| (at as u32 ^ version ^ (file * 7) as u32) as u8).collect()
}

#[test]
fn a_tree_far_larger_than_the_memory_for_indexes() {
    let medium = medium(96 << 20);
    // Every file needs a node, and every directory a handful.
    let fs = open(&medium, 128);
    let rig = Rig::new(&fs);
    let mut versions: HashMap<(usize, usize), u32> = HashMap::new();
    let directories: Vec<_> = (0..DIRECTORIES).map(|number| rig.directory(rig.root, &format!("d{number}"))).collect();
    for file in 0..FILES {
        for (number, &directory) in directories.iter().enumerate() {
            rig.write(rig.file(directory, &format!("f{file}")), 0, &content(number, file, 0));
            versions.insert((number, file), 0);
        }
    }
    let mut random = Random(5);
    for step in 1..if long() { 100_000 } else { 6_000 } {
        let (number, file) = (random.below(DIRECTORIES), random.below(FILES));
        let (directory, text) = (directories[number], format!("f{file}"));
        match (random.below(6), versions.get(&(number, file)).copied()) {
            (0, Some(_)) => {
                rig.unlink(directory, &text).expect("unlink");
                versions.remove(&(number, file));
            }
            (1, Some(_)) => {
                let node = rig.find(directory, &text).expect("a file");
                let version = step as u32;
                rig.resize(node, 0).expect("truncate");
                rig.write(node, 0, &content(number, file, version));
                versions.insert((number, file), version);
            }
            (2, Some(version)) => {
                // Into another directory under the same name.
                let other = random.below(DIRECTORIES);
                if other != number {
                    rig.rename((directory, &text), (directories[other], &text)).expect("rename");
                    versions.remove(&(number, file));
                    let node = rig.find(directories[other], &text).expect("the file moved");
                    let moved = rig.content(node);
                    assert_eq!(moved, content(number, file, version));
                    rig.resize(node, 0).expect("truncate");
                    rig.write(node, 0, &content(other, file, version));
                    versions.insert((other, file), version);
                }
            }
            (_, Some(version)) => {
                let node = rig.find(directory, &text).expect("a file");
                assert_eq!(rig.content(node), content(number, file, version), "d{number}/{text}");
            }
            (_, None) => {
                assert_eq!(rig.find(directory, &text), None);
                rig.write(rig.file(directory, &text), 0, &content(number, file, step as u32));
                versions.insert((number, file), step as u32);
            }
        }
    }
    for (number, &directory) in directories.iter().enumerate() {
        assert_eq!(rig.list(directory).len(), versions.keys().filter(|key| key.0 == number).count());
    }
    let evictions = fs.memory().expect("memory").indexes_dropped;
    println!("{evictions} indexes dropped");
    assert!(evictions > 10_000, "{evictions}");
    fs.detach().expect("detach");
    drop(fs);
    assert_sound(&medium, true, "after evictions");
    let fs = open(&medium, 1 << 14);
    let rig = Rig::new(&fs);
    for ((number, file), version) in versions {
        let directory = rig.find(rig.root, &format!("d{number}")).expect("a directory");
        let node = rig.find(directory, &format!("f{file}")).expect("a file");
        assert_eq!(rig.content(node), content(number, file, version));
    }
    assert_eq!(fs.memory().expect("memory").indexes_dropped, 0);
}

/// Threads none of which is more than a few steps ahead of another. One that ends, however that comes, holds nobody up.
struct Pace<'a> {
    all: &'a [AtomicU32],
    own: &'a AtomicU32,
}

impl Pace<'_> {
    fn keep(&self, step: u32) {
        self.own.store(step, Ordering::Relaxed);
        while self.all.iter().any(|other| other.load(Ordering::Relaxed) + 25 < step) {
            std::thread::yield_now();
        }
    }
}

impl Drop for Pace<'_> {
    fn drop(&mut self) {
        self.own.store(u32::MAX - 25, Ordering::Relaxed);
    }
}

#[test]
fn several_threads_take_room_from_each_other() {
    let medium = medium(64 << 20);
    let fs = open(&medium, 160);
    let fs = &fs;
    let rounds = if long() { 20_000 } else { 1_500 };
    // However few processors there are and whoever gets them, all come forward together: else each works with what it has.
    let pace = &[const { AtomicU32::new(0) }; 4];
    std::thread::scope(|scope| {
        for thread in 0..4_usize {
            scope.spawn(move || {
                let pace = Pace { all: pace, own: &pace[thread] };
                let rig = Rig::new(fs);
                let own = rig.directory(rig.root, &format!("t{thread}"));
                let mut random = Random(thread as u64);
                let mut known: HashMap<usize, u32> = HashMap::new();
                for step in 0..rounds {
                    pace.keep(step);
                    let file = random.below(90);
                    let text = format!("f{file}");
                    match known.get(&file) {
                        None => {
                            rig.write(rig.file(own, &text), 0, &content(thread, file, step));
                            known.insert(file, step);
                        }
                        Some(&version) => {
                            let node = rig.find(own, &text).expect("a file of this thread");
                            assert_eq!(rig.content(node), content(thread, file, version), "t{thread}/{text}");
                            if random.below(4) == 0 {
                                rig.unlink(own, &text).expect("unlink");
                                known.remove(&file);
                            }
                        }
                    }
                    // Somebody else's, whose files come and go.
                    if let Some(other) = rig.find(rig.root, &format!("t{}", (thread + 1) % 4)) {
                        assert!(rig.list(other).len() <= 90);
                    }
                }
            });
        }
    });
    let dropped = fs.memory().expect("memory").indexes_dropped;
    println!("{dropped} indexes dropped");
    assert!(dropped > 100, "{dropped}");
    fs.detach().expect("detach");
    assert_sound(&medium, true, "after threads took room from each other");
}

#[test]
fn what_does_not_fit_at_all_fails_alone() {
    let medium = medium(64 << 20);
    let fs = open(&medium, 64);
    let rig = Rig::new(&fs);
    let small = rig.directory(rig.root, "small");
    let large = rig.directory(rig.root, "large");
    rig.file(small, "one");
    let mut made = 0;
    let error = loop {
        match fs.create(
            large,
            gannet_fstest::name(&format!("entry {made}")),
            &gannet_vfs::NewNode::regular(0o600, Default::default()),
        ) {
            Ok(_) => made += 1,
            Err(error) => break error,
        }
    };
    assert_eq!(error.errno(), Errno::NOMEM);
    assert!(made > 900, "{made}");
    // The others go on, and so does what is there.
    rig.write(rig.file(small, "two"), 0, b"fits");
    assert_eq!(rig.list(small).len(), 2);
    // With more memory everything is there: once dropped, an index that only just fitted may need a node more.
    fs.detach().expect("detach");
    drop(fs);
    let fs = open(&medium, 256);
    let rig = Rig::new(&fs);
    assert_eq!(rig.list(large).len(), made);
    for number in 0..made {
        rig.unlink(large, &format!("entry {number}")).expect("unlink");
    }
    rig.file(large, "again");
    fs.detach().expect("detach");
    assert_sound(&medium, true, "after a directory that did not fit");
}
