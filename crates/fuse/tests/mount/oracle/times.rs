//! Times: which of them change by what, of a file and of its directory; what they can be set to.

use super::data::{either_way, open};
use super::{Notes, Scenario, errno, tick};
use rustix::fs::{FallocateFlags, SeekFrom, Timespec, Timestamps, XattrFlags};
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

pub(super) const SCENARIOS: &[Scenario] =
    &[("times", times), ("access_times", access_times), ("set_times", set_times), ("births", births)];

/// Times long gone.
pub(super) fn long_ago() -> Timestamps {
    let time = Timespec { tv_sec: 1_000_000_000, tv_nsec: 0 };
    Timestamps { last_access: time, last_modification: time }
}

pub(super) fn past(path: &Path) {
    rustix::fs::utimensat(rustix::fs::CWD, path, &long_ago(), rustix::fs::AtFlags::SYMLINK_NOFOLLOW).unwrap();
}

/// Which of the three times of `path` a call changes.
fn changes(path: &Path, call: impl FnOnce()) -> [bool; 3] {
    let times = || {
        let about = fs::symlink_metadata(path).unwrap();
        [(about.atime(), about.atime_nsec()), (about.mtime(), about.mtime_nsec()), (about.ctime(), about.ctime_nsec())]
    };
    let before = times();
    tick();
    call();
    let after = times();
    [0, 1, 2].map(|which| before[which] != after[which])
}

/// Which times change by what: of the file, of its directory.
fn times(at: &Path, notes: &mut Notes) {
    let path = at.join("file");
    let file = open(&path);
    file.write_all_at(&[1; 8192], 0).unwrap();
    let calls: &[(&str, &dyn Fn())] = &[
        ("write", &|| file.write_all_at(b"x", 0).unwrap()),
        ("write nothing", &|| either_way(file.write_at(b"", 0))),
        ("truncate to less", &|| file.set_len(5000).unwrap()),
        ("truncate to more", &|| file.set_len(9000).unwrap()),
        ("truncate to the same", &|| file.set_len(9000).unwrap()),
        ("allocate", &|| either_way(rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, 20_000))),
        ("allocate again", &|| either_way(rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, 8192))),
        ("punch", &|| {
            either_way(rustix::fs::fallocate(&file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 0, 4096));
        }),
        ("chmod", &|| either_way(rustix::fs::fchmod(&file, 0o640.into()))),
        ("chmod to the same", &|| either_way(rustix::fs::fchmod(&file, 0o640.into()))),
        ("chown to the same", &|| drop(std::os::unix::fs::chown(&path, Some(0), Some(0)))),
        ("set xattr", &|| either_way(rustix::fs::fsetxattr(&file, "user.a", b"1", XattrFlags::empty()))),
        ("remove xattr", &|| either_way(rustix::fs::fremovexattr(&file, "user.a"))),
        ("link", &|| fs::hard_link(&path, at.join("link")).unwrap()),
        ("unlink a link", &|| fs::remove_file(at.join("link")).unwrap()),
        ("rename", &|| {
            fs::rename(&path, at.join("renamed")).and_then(|()| fs::rename(at.join("renamed"), &path)).unwrap()
        }),
        ("open", &|| drop(File::open(&path).unwrap())),
        ("open with O_TRUNC", &|| drop(File::create(&path).unwrap())),
        ("open with O_TRUNC again", &|| drop(File::create(&path).unwrap())),
        ("fsync", &|| file.sync_all().unwrap()),
        ("seek", &|| either_way(rustix::fs::seek(&file, SeekFrom::Start(7)))),
    ];
    past(at);
    for (name, call) in calls {
        let before = fs::metadata(at).map(|about| (about.mtime(), about.mtime_nsec())).unwrap();
        notes.note(*name, changes(&path, call));
        let after = fs::metadata(at).map(|about| (about.mtime(), about.mtime_nsec())).unwrap();
        notes.note(format!("{name}: directory"), before != after);
    }
    for name in ["mkdir", "rmdir", "create", "unlink", "symlink"] {
        let below = at.join("below");
        notes.note(
            format!("{name}: directory"),
            changes(at, || match name {
                "mkdir" => fs::create_dir(&below).unwrap(),
                "rmdir" => fs::remove_dir(&below).unwrap(),
                "create" => drop(open(&below)),
                "unlink" => fs::remove_file(&below).unwrap(),
                _ => std::os::unix::fs::symlink("x", &below).unwrap(),
            }),
        );
    }
}

/// Reading changes the time of access once.
fn access_times(at: &Path, notes: &mut Notes) {
    let path = at.join("file");
    fs::write(&path, "content").unwrap();
    std::os::unix::fs::symlink("file", at.join("symlink")).unwrap();
    fs::create_dir(at.join("dir")).unwrap();
    fs::write(at.join("dir/x"), "").unwrap();
    for name in ["file", "symlink", "dir"] {
        past(&at.join(name));
    }
    for round in ["first", "again"] {
        notes.note(format!("read {round}"), changes(&path, || drop(fs::read(&path).unwrap())));
        let link = at.join("symlink");
        notes.note(format!("readlink {round}"), changes(&link, || drop(fs::read_link(&link).unwrap())));
        let directory = at.join("dir");
        notes.note(
            format!("readdir {round}"),
            changes(&directory, || either_way(fs::read_dir(&directory).unwrap().count())),
        );
    }
    past(&path);
    let no_time = File::options().read(true).custom_flags(libc::O_NOATIME).open(&path).unwrap();
    notes.note("O_NOATIME", changes(&path, || drop(no_time.read_at(&mut [0; 4], 0))));
}

fn set_times(at: &Path, notes: &mut Notes) {
    let path = at.join("file");
    let file = open(&path);
    let values = [0, 1, -1, -2_000_000_000, i64::from(i32::MAX), i64::from(i32::MAX) + 1, 4_102_444_800];
    for seconds in values {
        for nanoseconds in [0, 999_999_999] {
            let time = Timespec { tv_sec: seconds, tv_nsec: nanoseconds };
            let set = errno(rustix::fs::futimens(&file, &Timestamps { last_access: time, last_modification: time }));
            let about = file.metadata().unwrap();
            notes.note(
                format!("{seconds}.{nanoseconds}"),
                (set, about.atime(), about.atime_nsec(), about.mtime(), about.mtime_nsec()),
            );
        }
    }
    for odd in [1_000_000_000, -1, rustix::fs::UTIME_OMIT] {
        let time = Timespec { tv_sec: 1, tv_nsec: odd };
        let set = errno(rustix::fs::futimens(&file, &Timestamps { last_access: time, last_modification: time }));
        notes.note(format!("nanoseconds {odd}"), (set, file.metadata().unwrap().mtime()));
    }
}

/// Times of birth stay.
fn births(at: &Path, notes: &mut Notes) {
    use rustix::fs::{AtFlags, CWD, StatxFlags, statx};
    let path = at.join("file");
    let file = open(&path);
    let born = || {
        let about = statx(CWD, &path, AtFlags::empty(), StatxFlags::BASIC_STATS | StatxFlags::BTIME).unwrap();
        (about.stx_mask & StatxFlags::BTIME.bits() != 0, about.stx_btime.tv_sec, about.stx_btime.tv_nsec)
    };
    let first = born();
    notes.note("has one", first.0);
    tick();
    file.write_all_at(b"x", 0).unwrap();
    past(&path);
    fs::rename(&path, at.join("renamed")).and_then(|()| fs::rename(at.join("renamed"), &path)).unwrap();
    notes.note("stays", born() == first);
    notes.note("not in the future", fs::metadata(&path).unwrap().ctime() >= first.1);
}
