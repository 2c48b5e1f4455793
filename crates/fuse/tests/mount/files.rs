//! Files, names and directories as programs use them.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};

use rustix::io::Errno;

use crate::oracle::tick;
use crate::{Outcome, Server, Test, content, eventually, kernel_is};

pub(crate) const TESTS: &[Test] = &[
    Test { name: "bytes_go_in_and_come_out", body: bytes_go_in_and_come_out, every_way: true },
    Test { name: "names_come_and_go", body: names_come_and_go, every_way: true },
    Test { name: "directories_are_read_completely", body: directories_are_read_completely, every_way: true },
    Test { name: "listings_forget_what_is_removed", body: listings_forget_what_is_removed, every_way: true },
    Test { name: "unlinked_files_live_until_closed", body: unlinked_files_live_until_closed, every_way: true },
    Test { name: "a_full_volume_has_room_after_rm", body: a_full_volume_has_room_after_rm, every_way: true },
    Test { name: "a_write_goes_as_far_as_there_is_room", body: a_write_goes_as_far_as_there_is_room, every_way: true },
    Test { name: "nothing_leaks", body: nothing_leaks, every_way: true },
    Test { name: "appends_do_not_overwrite", body: appends_do_not_overwrite, every_way: true },
    Test { name: "direct_io_and_large_requests", body: direct_io_and_large_requests, every_way: true },
    Test { name: "times_and_owners", body: times_and_owners, every_way: true },
    Test { name: "attributes_follow", body: attributes_follow, every_way: true },
];

/// Bytes that differ from each other and from block to block.
pub(crate) fn pattern(length_bytes: usize, seed: u64) -> Vec<u8> {
    let mut state = seed | 1;
    (0..length_bytes)
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 56) as u8
        })
        .collect()
}

fn errno(error: &std::io::Error) -> Errno {
    Errno::from_io_error(error).expect("an errno")
}

fn bytes_go_in_and_come_out(way: &str) -> Outcome {
    let server = Server::start(way);
    let path = server.at("file");
    let bytes = pattern(3_000_001, 1);
    fs::write(&path, &bytes).unwrap();
    assert!(content(&path) == bytes);
    assert_eq!(fs::metadata(&path).unwrap().len(), bytes.len() as u64);
    let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
    file.write_all_at(b"inside", 1_000_000).unwrap();
    let mut part = [0; 8];
    file.read_exact_at(&mut part, 999_999).unwrap();
    assert_eq!(&part[1..7], b"inside");
    assert_eq!((part[0], part[7]), (bytes[999_999], bytes[1_000_006]));
    file.set_len(10).unwrap();
    file.set_len(20).unwrap();
    assert_eq!(content(&path), [&bytes[..10], &[0; 10]].concat());
    file.write_all_at(b"end", 100_000).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 100_003);
    assert_eq!(content(&path)[50_000], 0);
    file.sync_all().unwrap();
    file.sync_data().unwrap();
    drop(File::create(&path).unwrap());
    assert_eq!(fs::metadata(&path).unwrap().len(), 0, "O_TRUNC");
    drop(file);
    server.end();
    Ok(())
}

fn names_come_and_go(way: &str) -> Outcome {
    let server = Server::start(way);
    fs::create_dir_all(server.at("a/b/c")).unwrap();
    fs::write(server.at("a/file"), "1").unwrap();
    fs::hard_link(server.at("a/file"), server.at("a/b/link")).unwrap();
    assert_eq!(fs::metadata(server.at("a/file")).unwrap().nlink(), 2);
    assert_eq!(fs::metadata(server.at("a/file")).unwrap().ino(), fs::metadata(server.at("a/b/link")).unwrap().ino());
    std::os::unix::fs::symlink("b/link", server.at("a/symlink")).unwrap();
    assert_eq!(fs::read_link(server.at("a/symlink")).unwrap().to_str(), Some("b/link"));
    assert_eq!(content(&server.at("a/symlink")), b"1");
    fs::rename(server.at("a/b"), server.at("moved")).unwrap();
    assert_eq!(errno(&fs::metadata(server.at("a/symlink")).unwrap_err()), Errno::NOENT);
    assert_eq!(content(&server.at("moved/link")), b"1");
    assert_eq!(errno(&fs::remove_dir(server.at("moved")).unwrap_err()), Errno::NOTEMPTY);
    assert_eq!(errno(&fs::create_dir(server.at("moved")).unwrap_err()), Errno::EXIST);
    assert_eq!(errno(&fs::File::create_new(server.at("moved/link")).unwrap_err()), Errno::EXIST);
    assert_eq!(errno(&fs::remove_file(server.at("moved")).unwrap_err()), Errno::ISDIR);
    assert_eq!(errno(&fs::rename(server.at("moved"), server.at("moved/c/x")).unwrap_err()), Errno::INVAL);
    assert_eq!(errno(&fs::metadata(server.at(&"x".repeat(256))).unwrap_err()), Errno::NAMETOOLONG);
    fs::write(server.at(&"y".repeat(255)), "long").unwrap();
    fs::remove_file(server.at("a/file")).unwrap();
    assert_eq!(fs::metadata(server.at("moved/link")).unwrap().nlink(), 1);
    fs::remove_dir_all(server.at("moved")).unwrap();
    // What was looked up in vain before is found once it exists.
    assert!(!server.at("later").exists());
    fs::write(server.at("later"), "").unwrap();
    assert!(server.at("later").exists());
    server.end();
    Ok(())
}

fn directories_are_read_completely(way: &str) -> Outcome {
    let server = Server::start(way);
    let directory = server.at("many");
    fs::create_dir(&directory).unwrap();
    let names: BTreeSet<String> = (0..3000).map(|index| format!("{}-{index}", "n".repeat(index % 90))).collect();
    for name in &names {
        fs::write(directory.join(name), "").unwrap();
    }
    let read = || fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    for _ in 0..2 {
        let found: Vec<String> = read().collect();
        assert_eq!(found.len(), names.len(), "nothing twice");
        assert_eq!(found.into_iter().collect::<BTreeSet<_>>(), names);
    }
    // Entries removed while the directory is being read disturb no others.
    let mut seen = BTreeSet::new();
    for name in read() {
        if name.len() % 2 == 0 {
            fs::remove_file(directory.join(&name)).unwrap();
        }
        assert!(seen.insert(name));
    }
    assert_eq!(seen, names);
    assert_eq!(read().count(), names.iter().filter(|name| name.len() % 2 == 1).count());
    for entry in fs::read_dir(&directory).unwrap() {
        let entry = entry.unwrap();
        assert_eq!(std::os::unix::fs::DirEntryExt::ino(&entry), entry.metadata().unwrap().ino());
        assert!(entry.file_type().unwrap().is_file());
    }
    server.end();
    Ok(())
}

/// The names of a listing that goes on behind a cookie, and the cookies behind them. Asks for few at a time.
fn listed_behind(directory: &File, cookie: u64, calls: usize) -> Vec<(String, u64)> {
    let mut names = Vec::new();
    rustix::fs::seek(directory, rustix::fs::SeekFrom::Start(cookie)).unwrap();
    for _ in 0..calls {
        let mut buffer = [std::mem::MaybeUninit::uninit(); 200];
        let mut some = rustix::fs::RawDir::new(directory, &mut buffer);
        let before = names.len();
        while !some.is_buffer_empty() || names.len() == before {
            let Some(entry) = some.next() else { return names };
            let entry = entry.unwrap();
            names.push((entry.file_name().to_string_lossy().into_owned(), entry.next_entry_cookie()));
        }
    }
    names
}

/// Who seeks in a listing that was begun after a removal does not see the name, whoever has read how much of the directory before; nor
/// does who goes on with one from before it.
fn listings_forget_what_is_removed(way: &str) -> Outcome {
    let server = Server::start(way);
    let path = server.at("directory");
    fs::create_dir(&path).unwrap();
    (0..100).for_each(|number| fs::write(path.join(number.to_string()), "").unwrap());
    for all in [false, true] {
        let first = File::open(&path).unwrap();
        let before = listed_behind(&first, 0, if all { usize::MAX } else { 1 });
        let removed = &before[3].0;
        fs::remove_file(path.join(removed)).unwrap();
        let anew = File::open(&path).unwrap();
        let names = listed_behind(&anew, 0, usize::MAX);
        assert!(names.iter().all(|(name, _)| name != removed));
        // The kernel is told in the background.
        eventually("removed for who seeks, too", || {
            names.windows(2).all(|pair| listed_behind(&anew, pair[0].1, 1)[0] == pair[1])
                && listed_behind(&first, before[2].1, 1)[0].0 != *removed
        });
    }
    server.end();
    Ok(())
}

fn unlinked_files_live_until_closed(way: &str) -> Outcome {
    let server = Server::start(way);
    let mut file = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(server.at("x")).unwrap();
    file.write_all(b"still here").unwrap();
    fs::remove_file(server.at("x")).unwrap();
    fs::write(server.at("x"), "another").unwrap();
    file.write_all(b" and growing").unwrap();
    file.seek(SeekFrom::Start(0)).unwrap();
    let mut text = String::new();
    file.read_to_string(&mut text).unwrap();
    assert_eq!(text, "still here and growing");
    assert_eq!(file.metadata().unwrap().nlink(), 0);
    assert_eq!(content(&server.at("x")), b"another");
    let directory = File::open({
        fs::create_dir(server.at("d")).unwrap();
        server.at("d")
    })
    .unwrap();
    fs::remove_dir(server.at("d")).unwrap();
    assert_eq!(directory.metadata().unwrap().nlink(), 0);
    drop((file, directory));
    server.end();
    Ok(())
}

fn a_full_volume_has_room_after_rm(way: &str) -> Outcome {
    let server = Server::start(&format!("{way},size=8"));
    for round in 0..5 {
        let mut file = File::create(server.at("big")).unwrap();
        let error = loop {
            match file.write_all(&[round; 65536]).and_then(|()| file.sync_all()) {
                Ok(()) => {}
                Err(error) => break error,
            }
        };
        assert_eq!(errno(&error), Errno::NOSPC);
        drop(file);
        fs::remove_file(server.at("big")).unwrap();
        fs::write(server.at("small"), [round; 1 << 20]).unwrap();
        assert_eq!(content(&server.at("small")), [round; 1 << 20]);
    }
    server.end();
    Ok(())
}

/// Where a write fits in part, the part is written, and nobody is told of more.
fn a_write_goes_as_far_as_there_is_room(way: &str) -> Outcome {
    const LEFT: usize = 10 * 4096;
    let server = Server::start(&format!("{way},size=8"));
    let rest = File::create(server.at("rest")).unwrap();
    rest.write_all_at(&[1; LEFT], 0).unwrap();
    rest.sync_all().unwrap();
    let mut big = File::create(server.at("big")).unwrap();
    while big.write_all(&[2; 4096]).and_then(|()| big.sync_all()).is_ok() {}
    drop((big, rest));
    fs::remove_file(server.at("rest")).unwrap();
    let bytes = pattern(1 << 20, 7);
    let path = server.at("part");
    let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path).unwrap();
    let outcome = file.write_at(&bytes, 0).and_then(|count| file.sync_all().map(|()| count));
    match outcome {
        // The page cache took all of it, and could not get rid of it.
        Err(error) if way.contains("writeback") => assert_eq!(errno(&error), Errno::NOSPC),
        outcome => {
            let count = outcome.unwrap();
            assert_eq!(count, LEFT);
            assert!(content(&path) == bytes[..count]);
        }
    }
    drop(file);
    fs::remove_file(&path).unwrap();
    // Where files are cached the kernel would call a short count of a direct write an I/O error.
    let direct = OpenOptions::new().write(true).create_new(true).custom_flags(libc::O_DIRECT).open(&path).unwrap();
    let aligned = vec![3; bytes.len() + 4096];
    let start = aligned.as_ptr().align_offset(4096);
    let told = direct.write_at(&aligned[start..start + bytes.len()], 0).map_err(|error| errno(&error));
    let cached = way.contains("exclusive") || way.contains("writeback");
    assert_eq!(told, if cached { Err(Errno::NOSPC) } else { Ok(LEFT) });
    drop(direct);
    server.end();
    Ok(())
}

/// Inodes and blocks that are free.
fn free(server: &Server) -> (u64, u64) {
    let statistics = rustix::fs::statvfs(server.path()).unwrap();
    (statistics.f_ffree, statistics.f_bfree)
}

fn nothing_leaks(way: &str) -> Outcome {
    let server = Server::start(way);
    let before = free(&server);
    for round in 0..3 {
        fs::create_dir(server.at("d")).unwrap();
        for index in 0..200 {
            let path = server.at(&format!("d/{index}"));
            fs::write(&path, pattern(5000, index)).unwrap();
            if index % 3 == round {
                fs::rename(&path, server.at(&format!("d/{}", index / 2))).unwrap();
            }
        }
        fs::remove_dir_all(server.at("d")).unwrap();
    }
    // Forgets follow by themselves, a few milliseconds later.
    eventually("what was removed is free again", || free(&server) == before);
    server.end();
    Ok(())
}

fn appends_do_not_overwrite(way: &str) -> Outcome {
    let server = Server::start(way);
    let path = server.at("log");
    fs::write(&path, "").unwrap();
    std::thread::scope(|scope| {
        for writer in 0..4u8 {
            let path = &path;
            scope.spawn(move || {
                let mut file = OpenOptions::new().append(true).open(path).unwrap();
                for _ in 0..250 {
                    file.write_all(&[b'a' + writer; 100]).unwrap();
                }
            });
        }
    });
    let bytes = content(&path);
    assert_eq!(bytes.len(), 4 * 250 * 100);
    for record in bytes.chunks(100) {
        assert!(record.iter().all(|byte| *byte == record[0]), "a torn or overwritten record");
    }
    for writer in 0..4 {
        assert_eq!(bytes.iter().filter(|&&byte| byte == b'a' + writer).count(), 25_000);
    }
    server.end();
    Ok(())
}

fn direct_io_and_large_requests(way: &str) -> Outcome {
    let server = Server::start(way);
    let path = server.at("direct");
    let bytes = pattern(8 << 20, 7);
    // O_DIRECT wants aligned memory.
    let mut aligned = vec![0; bytes.len() + 4096];
    let start = aligned.as_ptr().addr().next_multiple_of(4096) - aligned.as_ptr().addr();
    aligned[start..start + bytes.len()].copy_from_slice(&bytes);
    let direct = rustix::fs::OFlags::DIRECT.bits() as i32;
    let mut open = OpenOptions::new();
    let file = open.read(true).write(true).create(true).truncate(true).custom_flags(direct).open(&path).unwrap();
    file.write_all_at(&aligned[start..start + bytes.len()], 0).unwrap();
    assert!(content(&path) == bytes);
    aligned.fill(0);
    let read = file.read_at(&mut aligned[start..start + bytes.len()], 0).unwrap();
    assert_eq!(read, bytes.len());
    assert!(aligned[start..start + read] == bytes);
    assert_eq!(file.read_at(&mut aligned[start..start + 4096], bytes.len() as u64).unwrap(), 0, "the end");
    // Buffered writes are seen by direct reads.
    OpenOptions::new().write(true).open(&path).unwrap().write_all_at(b"fresh", 4096).unwrap();
    file.read_exact_at(&mut aligned[start..start + 4096], 4096).unwrap();
    assert_eq!(&aligned[start..start + 5], b"fresh");
    drop(file);
    server.end();
    Ok(())
}

fn times_and_owners(way: &str) -> Outcome {
    let server = Server::start(way);
    let path = server.at("file");
    fs::write(&path, "1").unwrap();
    let first = fs::metadata(&path).unwrap();
    // Since Linux 6.6 the kernel asks a server for more than `stat` tells.
    assert!(first.created().is_ok() || !kernel_is(6, 6), "a birth time");
    tick();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o4751)).unwrap();
    let second = fs::metadata(&path).unwrap();
    assert_eq!(second.mode() & 0o7777, 0o4751);
    assert!((second.ctime(), second.ctime_nsec()) > (first.ctime(), first.ctime_nsec()));
    assert_eq!((second.mtime(), second.mtime_nsec()), (first.mtime(), first.mtime_nsec()));
    let time = std::time::UNIX_EPOCH + std::time::Duration::new(1_234_567_890, 123_456_789);
    File::options().write(true).open(&path).unwrap().set_modified(time).unwrap();
    let third = fs::metadata(&path).unwrap();
    assert_eq!((third.mtime(), third.mtime_nsec()), (1_234_567_890, 123_456_789));
    tick();
    fs::write(&path, "2").unwrap();
    assert!(fs::metadata(&path).unwrap().mtime() > 1_234_567_890);
    if rustix::process::geteuid().is_root() {
        fs::set_permissions(&path, fs::Permissions::from_mode(0o6755)).unwrap();
        std::os::unix::fs::chown(&path, Some(12), Some(34)).unwrap();
        let owned = fs::metadata(&path).unwrap();
        assert_eq!((owned.uid(), owned.gid()), (12, 34));
        assert_eq!(owned.mode() & 0o7777, 0o755, "chown drops set-id bits");
    }
    server.end();
    Ok(())
}

/// What the kernel does not expect to change is seen at once, too.
fn attributes_follow(way: &str) -> Outcome {
    let server = Server::start(way);
    let mut file = File::options().read(true).write(true).create_new(true).open(server.at("file")).unwrap();
    file.write_all(&[1; 65_536]).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 65_536);
    file.sync_all().unwrap();
    assert_eq!(file.metadata().unwrap().blocks(), 128, "after fsync");
    let changed = || file.metadata().map(|about| (about.ctime(), about.ctime_nsec())).unwrap();
    // Where it writes back, the kernel keeps a file's times by itself.
    let keeps_times = way.contains("writeback");
    for flags in [rustix::fs::IFlags::NOATIME, rustix::fs::IFlags::empty()] {
        let before = changed();
        tick();
        rustix::fs::ioctl_setflags(&file, flags).unwrap();
        assert!(keeps_times || changed() > before, "{flags:?}");
    }
    drop(file);
    server.end();
    Ok(())
}
