//! Append-only and immutable files, which the kernel does not know: however a program tries, what they hold stays.

use std::fs::{self, File, OpenOptions};
use std::io::{IoSlice, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::{AtFlags, IFlags, OFlags, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT};
use rustix::io::Errno;

use crate::holes::Map;
use crate::{Outcome, Server, Skipped, Test, content, eventually};

pub(crate) const TESTS: &[Test] = &[
    Test { name: "what_was_appended_stays", body: what_was_appended_stays, every_way: true },
    Test { name: "only_a_touch_is_no_change", body: only_a_touch_is_no_change, every_way: true },
    Test { name: "appends_go_on", body: appends_go_on, every_way: true },
    Test { name: "what_was_stored_before_a_flag_counts", body: what_was_stored_before_a_flag_counts, every_way: true },
];

const LINE: &[u8] = b"0123456789";

fn root() -> Result<(), Skipped> {
    if rustix::process::geteuid().is_root() { Ok(()) } else { Err(Skipped("only root sets such flags".into())) }
}

fn flag(path: &Path, flags: IFlags) {
    rustix::fs::ioctl_setflags(File::open(path).unwrap(), flags).unwrap();
}

fn appending(path: &Path) -> File {
    OpenOptions::new().read(true).append(true).open(path).unwrap()
}

/// Writes once at an offset, though the file was opened with `O_APPEND`.
fn write_elsewhere(file: &File, bytes: &[u8]) -> std::io::Result<usize> {
    const RWF_NOAPPEND: i32 = 0x20;
    let slices = [IoSlice::new(bytes)];
    // SAFETY: one slice of live bytes, in the form that the call takes (`IoSlice` is an `iovec`).
    let written = unsafe { libc::pwritev2(file.as_raw_fd(), slices.as_ptr().cast(), 1, 0, RWF_NOAPPEND) };
    if written < 0 { Err(std::io::Error::last_os_error()) } else { Ok(written as usize) }
}

fn what_was_appended_stays(way: &str) -> Outcome {
    root()?;
    let server = Server::start(way);
    let path = server.at("file");
    let late = way.contains("writeback");
    let refused = |result: std::io::Result<()>, how: &str| {
        let errno = result.map_err(|error| Errno::from_io_error(&error).unwrap());
        assert_eq!(errno, Err(Errno::PERM), "{how}");
    };
    let stays = |how: &str| {
        // What was refused when it was written back is dropped in a moment.
        eventually(how, || content(&path).starts_with(LINE));
        assert!(content(&path).starts_with(LINE), "{how}");
    };
    for (flags, name) in [(IFlags::APPEND, "append-only"), (IFlags::IMMUTABLE, "immutable")] {
        fs::write(&path, LINE).unwrap();
        let before = OpenOptions::new().read(true).write(true).open(&path).unwrap();
        let file = appending(&path);
        flag(&path, flags);
        // Who drops O_APPEND, or never had it.
        rustix::fs::fcntl_setfl(&file, OFlags::empty()).unwrap();
        for (file, how) in [(&file, "O_APPEND dropped"), (&before, "opened before")] {
            let written = file.write_all_at(b"HACKED", 0);
            refused(if late { written.and_then(|()| file.sync_all()) } else { written }, how);
            stays(&format!("{name}, {how}"));
        }
        rustix::fs::fcntl_setfl(&file, OFlags::APPEND).unwrap();
        match write_elsewhere(&file, b"HACKED") {
            Ok(_) => _ = file.sync_all(),
            Err(error) => assert!(error.raw_os_error() != Some(libc::EFAULT), "{error}"),
        }
        stays(&format!("{name}, RWF_NOAPPEND"));
        // Maps, and copies.
        let map = Map::new(&file, LINE.len());
        map.store(0, b'H');
        refused(map.sync().map_err(Into::into), "a map");
        stays(&format!("{name}, a map"));
        drop(map);
        rustix::fs::fcntl_setfl(&file, OFlags::empty()).unwrap();
        fs::write(server.at("other"), "HACKED").unwrap();
        let other = File::open(server.at("other")).unwrap();
        let copied = rustix::fs::copy_file_range(&other, Some(&mut 0), &file, Some(&mut 0), 6);
        refused(copied.map(drop).map_err(Into::into), "copy_file_range");
        stays(&format!("{name}, a copy"));
        drop((file, before));
        stays(&format!("{name}, closed"));
        flag(&path, IFlags::empty());
        fs::remove_file(&path).unwrap();
    }
    server.end();
    Ok(())
}

fn only_a_touch_is_no_change(way: &str) -> Outcome {
    root()?;
    let server = Server::start(way);
    let late = way.contains("writeback");
    const SET: i64 = 5;
    for (flags, name) in [(IFlags::APPEND, "append-only"), (IFlags::IMMUTABLE, "immutable")] {
        for directory in [false, true] {
            let path = server.at(&format!("{name} {directory}"));
            if directory {
                fs::create_dir(&path).unwrap()
            } else {
                fs::write(&path, LINE).unwrap()
            }
            flag(&path, flags);
            let times = [UTIME_NOW, UTIME_OMIT, SET];
            for (accessed, modified) in times.into_iter().flat_map(|one| times.map(|other| (one, other))) {
                let how = format!("{name}, directory: {directory}, {accessed:#x} {modified:#x}");
                let before = fs::metadata(&path).unwrap();
                let time = |nanoseconds| Timespec { tv_sec: 1, tv_nsec: nanoseconds };
                let times = Timestamps { last_access: time(accessed), last_modification: time(modified) };
                let set = rustix::fs::utimensat(rustix::fs::CWD, &path, &times, AtFlags::empty());
                let appends = flags == IFlags::APPEND;
                // The kernel keeps the second time then, and sends its own likewise.
                let unknown = late && appends && !directory && modified != UTIME_OMIT && accessed != SET;
                if (accessed, modified) == (UTIME_OMIT, UTIME_OMIT)
                    || appends && (accessed, modified) == (UTIME_NOW, UTIME_NOW)
                {
                    assert_eq!(set, Ok(()), "{how}");
                } else if !unknown {
                    assert_eq!(set, Err(Errno::PERM), "{how}");
                    let now = fs::metadata(&path).unwrap();
                    assert_eq!(now.accessed().unwrap(), before.accessed().unwrap(), "{how}");
                    assert_eq!(now.modified().unwrap(), before.modified().unwrap(), "{how}");
                }
            }
            flag(&path, IFlags::empty());
        }
    }
    server.end();
    Ok(())
}

fn appends_go_on(way: &str) -> Outcome {
    root()?;
    let server = Server::start(way);
    let path = server.at("file");
    fs::write(&path, "").unwrap();
    flag(&path, IFlags::APPEND);
    let mut expected = Vec::new();
    let mut file = appending(&path);
    for round in 0..300usize {
        let bytes: Vec<u8> = (0..round * 37 % 5000 + 1).map(|at| (at * 7 + round) as u8).collect();
        file.write_all(&bytes).unwrap();
        expected.extend(bytes);
        match round % 50 {
            10 => file.sync_all().unwrap(),
            20 => file = appending(&path),
            // In several requests.
            30 => {
                let bytes: Vec<u8> = (0..(3 << 20) + 100usize).map(|at| (at % 251) as u8).collect();
                file.write_all(&bytes).unwrap();
                expected.extend(bytes);
            }
            _ => {}
        }
    }
    file.sync_all().unwrap();
    assert!(content(&path) == expected);
    drop(file);
    // Past the page cache: the pieces may overtake each other.
    let direct = OpenOptions::new().append(true).custom_flags(libc::O_DIRECT).open(&path).unwrap();
    let bytes: Vec<u8> = (0..(5 << 20) + 4096usize).map(|at| (at / 4096) as u8).collect();
    for _ in 0..4 {
        (&direct).write_all(&bytes).unwrap();
        expected.extend_from_slice(&bytes);
    }
    drop(direct);
    assert!(content(&path) == expected);
    flag(&path, IFlags::empty());
    server.end();
    Ok(())
}

fn what_was_stored_before_a_flag_counts(way: &str) -> Outcome {
    root()?;
    let server = Server::start(way);
    for (flags, name) in [(IFlags::APPEND, "append-only"), (IFlags::IMMUTABLE, "immutable")] {
        let path = server.at(name);
        fs::write(&path, vec![b'.'; 10_000]).unwrap();
        let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
        let map = Map::new(&file, 10_000);
        map.store(5000, b'm');
        file.write_all_at(b"written", 100).unwrap();
        flag(&path, flags);
        drop((map, file));
        let bytes = content(&path);
        assert!(bytes[5000] == b'm' && bytes[100..].starts_with(b"written"), "{name}");
        // Whatever the kernel still has: by a map that begins anew.
        rustix::fs::fadvise(File::open(&path).unwrap(), 0, None, rustix::fs::Advice::DontNeed).unwrap();
        assert!(content(&path) == bytes, "{name}");
        flag(&path, IFlags::empty());
    }
    server.end();
    Ok(())
}
