//! Copies of files that somebody is writing: what is stored through a map, or written and not yet written back, is no hole.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};

use crate::{Outcome, Server, Test, content, run};

pub(crate) const TESTS: &[Test] = &[
    Test { name: "what_a_map_holds_is_no_hole", body: what_a_map_holds_is_no_hole, every_way: true },
    Test { name: "what_was_just_written_is_no_hole", body: what_was_just_written_is_no_hole, every_way: true },
    Test {
        name: "holes_are_found_while_they_are_filled",
        body: holes_are_found_while_they_are_filled,
        every_way: true,
    },
];

const PAGE: usize = 4096;

/// A shared map of a file.
pub(crate) struct Map {
    address: *mut u8,
    length_bytes: usize,
}

// SAFETY: the map is the file's bytes, which anybody may change at any time; they are used through raw stores only.
unsafe impl Send for Map {}

impl Map {
    pub(crate) fn new(file: &File, length_bytes: usize) -> Self {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new map at an address of the kernel's choice.
        let mapped =
            unsafe { rustix::mm::mmap(std::ptr::null_mut(), length_bytes, protection, MapFlags::SHARED, file, 0) };
        Self { address: mapped.unwrap().cast(), length_bytes }
    }

    pub(crate) fn store(&self, at: usize, byte: u8) {
        assert!(at < self.length_bytes);
        // SAFETY: within the map, and within the file.
        unsafe { self.address.add(at).write_volatile(byte) }
    }

    /// Has the kernel write back what was stored.
    pub(crate) fn sync(&self) -> rustix::io::Result<()> {
        // SAFETY: the map is ours; it is not changed.
        unsafe { rustix::mm::msync(self.address.cast(), self.length_bytes, rustix::mm::MsyncFlags::SYNC) }
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: the map is ours, and nothing of it is used any more.
        let _ = unsafe { rustix::mm::munmap(self.address.cast(), self.length_bytes) };
    }
}

fn fresh(path: &Path, length_bytes: usize) -> File {
    let file = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(path).unwrap();
    file.set_len(length_bytes as u64).unwrap();
    file
}

/// Copies a file as programs do that look for holes.
fn check_copies(server: &Server, name: &str) -> Outcome {
    let expected = content(&server.at(name));
    run(&server.path(), "cp", &[name, "copy"])?;
    assert!(content(&server.at("copy")) == expected, "cp");
    fs::remove_file(server.at("copy")).unwrap();
    let tar = |arguments: &[&str]| Command::new("tar").current_dir(server.path()).args(arguments).output();
    if let Ok(output) = tar(&["cSf", "archive", name]) {
        assert!(output.status.success(), "{output:?}");
        let output = tar(&["xOf", "archive"]).unwrap();
        assert!(output.stdout == expected, "tar");
        fs::remove_file(server.at("archive")).unwrap();
    }
    Ok(())
}

fn what_a_map_holds_is_no_hole(way: &str) -> Outcome {
    const LENGTH: usize = 1 << 20;
    let server = Server::start(way);
    let path = server.at("file");
    let file = fresh(&path, LENGTH);
    // Known to the kernel as a file without blocks, whatever it may remember.
    fs::metadata(&path).unwrap();
    let early = File::open(&path).unwrap();
    let map = Map::new(&file, LENGTH);
    (0..LENGTH).for_each(|at| map.store(at, b'D'));
    assert!(fs::metadata(&path).unwrap().blocks() > 0);
    // By one who has opened it before, and in the midst.
    assert_eq!(seek(&early, SeekFrom::Data(5 * PAGE as u64)), Ok(5 * PAGE as u64));
    assert_eq!(seek(&early, SeekFrom::Hole(0)), Ok(LENGTH as u64));
    assert!(content(&path).iter().all(|&byte| byte == b'D'));
    check_copies(&server, "file")?;
    drop((map, file, early));
    // One that had no blocks when it was opened, and a single page of which is changed.
    drop(fresh(&path, LENGTH));
    assert_eq!(fs::metadata(&path).unwrap().len(), LENGTH as u64);
    let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
    let map = Map::new(&file, LENGTH);
    map.store(100 * PAGE, b'x');
    assert!(fs::metadata(&path).unwrap().blocks() > 0);
    let data = seek(&file, SeekFrom::Data(0)).unwrap() as usize;
    assert!(data <= 100 * PAGE, "{data}");
    map.store(200 * PAGE + 1, b'y');
    assert!(seek(&file, SeekFrom::Data(150 * PAGE as u64)).unwrap() <= 200 * PAGE as u64);
    map.store(201 * PAGE, b'z');
    assert!(seek(&file, SeekFrom::Hole(200 * PAGE as u64)).unwrap() >= 202 * PAGE as u64);
    assert_eq!(seek(&file, SeekFrom::Data(LENGTH as u64)), Err(Errno::NXIO));
    check_copies(&server, "file")?;
    drop((map, file));
    check_copies(&server, "file")?;
    server.end();
    Ok(())
}

fn what_was_just_written_is_no_hole(way: &str) -> Outcome {
    let server = Server::start(way);
    let path = server.at("file");
    fs::write(&path, vec![b'o'; 300_000]).unwrap();
    for round in 0..10u8 {
        // Overwritten, as long as it was and longer, in order and not.
        let file = OpenOptions::new().read(true).write(true).truncate(true).open(&path).unwrap();
        if round % 2 == 1 {
            file.set_len(400_000).unwrap();
        }
        file.write_all_at(&vec![b'a' + round; 100_000], 200_000).unwrap();
        assert!(fs::metadata(&path).unwrap().blocks() > 0, "{round}");
        check_copies(&server, "file")?;
        file.write_all_at(&vec![b'A' + round; 200_000], 0).unwrap();
        assert!(fs::metadata(&path).unwrap().blocks() > 0, "{round}");
        let end = if round % 2 == 1 { 200_000 } else { 300_000 };
        assert!(seek(&file, SeekFrom::Hole(0)).unwrap() >= end, "{round}");
        check_copies(&server, "file")?;
    }
    server.end();
    Ok(())
}

/// Nobody waits for ever: writing back is served while the holes of the same files are asked for.
fn holes_are_found_while_they_are_filled(way: &str) -> Outcome {
    const PAGES: usize = 400;
    let server = Server::start(way);
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for index in 0..3 {
            let path = server.at(&format!("file-{index}"));
            let file = fresh(&path, PAGES * PAGE);
            let map = Map::new(&file, PAGES * PAGE);
            let ended = &ended;
            scope.spawn(move || {
                let map = map;
                let mut state = index + 1u64;
                while !ended.load(Ordering::Relaxed) {
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    map.store((state >> 33) as usize % PAGES * PAGE, state as u8);
                    if state >> 33 & 1023 == 0 {
                        file.set_len(0).unwrap();
                        file.set_len((PAGES * PAGE) as u64).unwrap();
                    }
                }
            });
            for _ in 0..2 {
                let path = path.clone();
                scope.spawn(move || {
                    let file = File::open(&path).unwrap();
                    while !ended.load(Ordering::Relaxed) {
                        let mut at = 0;
                        while let Ok(data) = seek(&file, SeekFrom::Data(at)) {
                            assert!(data >= at);
                            match seek(&file, SeekFrom::Hole(data)) {
                                Ok(hole) => at = hole.max(data),
                                Err(error) => assert_eq!(error, Errno::NXIO),
                            }
                            if at == data {
                                break;
                            }
                        }
                    }
                });
            }
        }
        std::thread::sleep(std::time::Duration::from_millis(700));
        ended.store(true, Ordering::Relaxed);
    });
    server.end();
    Ok(())
}
