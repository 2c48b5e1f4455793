//! Rights: set-id bits that fall, who may set times, modes and attributes, sticky directories, inheritance, access lists.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt, chown};
use std::path::Path;

use rustix::fs::{CWD, FallocateFlags, Mode, OFlags, Timespec, Timestamps, XattrFlags};

use super::{Notes, Scenario, as_user, errno, io};

pub(super) const SCENARIOS: &[Scenario] = &[
    ("set_id_bits", set_id_bits),
    ("owners", owners),
    ("modes", modes),
    ("times_of_others", times_of_others),
    ("sticky", sticky),
    ("inheritance", inheritance),
    ("access_lists", access_lists),
    ("attributes_of_others", attributes_of_others),
    ("walking", walking),
];

const USER: u32 = 1000;
const OTHER: u32 = 1001;

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).map_or(0, |about| about.mode() & 0o7777)
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

/// Writing, cutting and allocating drop set-user-id, and set-group-id where the group may execute.
fn set_id_bits(at: &Path, notes: &mut Notes) {
    let path = at.join("file");
    let change = |what: &str| {
        let file = File::options().read(true).write(true).open(&path)?;
        let allocate = |flags| rustix::fs::fallocate(&file, flags, 0, 4096).map_err(std::io::Error::from);
        match what {
            "write" => file.write_all_at(b"x", 0),
            "write nothing" => file.write_at(b"", 0).map(drop),
            "cut" => file.set_len(3),
            "grow" => file.set_len(300_000),
            "keep" => file.set_len(file.metadata()?.len()),
            "allocate" => allocate(FallocateFlags::empty()),
            "allocate behind" => allocate(FallocateFlags::KEEP_SIZE),
            "punch" => allocate(FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE),
            "copy" => {
                let other = File::open(at.join("source"))?;
                rustix::fs::copy_file_range(&other, None, &file, None, 100).map(drop).map_err(std::io::Error::from)
            }
            "direct" => {
                let direct = File::options().write(true).custom_flags(libc::O_APPEND | libc::O_DSYNC).open(&path)?;
                direct.write_at(b"y", 0).map(drop)
            }
            _ => File::options().write(true).truncate(true).open(&path).map(drop),
        }
    };
    fs::write(at.join("source"), [1; 5000]).unwrap();
    set_mode(&at.join("source"), 0o644);
    for bits in [0o6777, 0o6767, 0o4777, 0o2777, 0o2767, 0o6666, 0o4711] {
        for what in [
            "write",
            "write nothing",
            "cut",
            "grow",
            "keep",
            "allocate",
            "allocate behind",
            "punch",
            "copy",
            "direct",
            "open",
        ] {
            for user in [0, USER, OTHER] {
                let _ = fs::remove_file(&path);
                fs::write(&path, [7; 9000]).unwrap();
                chown(&path, Some(USER), Some(USER)).unwrap();
                set_mode(&path, bits);
                let outcome = io(if user == 0 { change(what) } else { as_user(user, user, || change(what)) });
                notes.note(format!("{what} of {bits:o} by {user}"), (outcome, format!("{:o}", mode(&path))));
            }
        }
    }
}

fn owners(at: &Path, notes: &mut Notes) {
    let path = at.join("file");
    for directory in [false, true] {
        for (bits, of) in
            [0o6777, 0o2767, 0o4711, 0o6755, 0o2644].into_iter().flat_map(|bits| [(bits, USER), (bits, 7)])
        {
            for (user, group) in [
                (None, Some(5)),
                (Some(5), None),
                (Some(5), Some(5)),
                (None, None),
                (None, Some(USER)),
                (Some(USER), None),
                (None, Some(7)),
            ] {
                for by in [0, USER, OTHER] {
                    if directory {
                        fs::create_dir(&path).unwrap()
                    } else {
                        fs::write(&path, "x").unwrap()
                    }
                    chown(&path, Some(USER), Some(of)).unwrap();
                    set_mode(&path, bits);
                    let change = || io(chown(&path, user, group));
                    let outcome = if by == 0 { change() } else { as_user(by, by, change) };
                    let about = fs::metadata(&path).unwrap();
                    notes.note(
                        format!("{directory} {bits:o} {of} to {user:?} {group:?} by {by}"),
                        (outcome, about.uid(), about.gid(), format!("{:o}", mode(&path))),
                    );
                    if directory { fs::remove_dir(&path).unwrap() } else { fs::remove_file(&path).unwrap() }
                }
            }
        }
    }
}

fn modes(at: &Path, notes: &mut Notes) {
    let path = at.join("file");
    fs::write(&path, "x").unwrap();
    for group in [USER, 5] {
        chown(&path, Some(USER), Some(group)).unwrap();
        for bits in [0o7777, 0o2755, 0o2644, 0o4000, 0o1777, 0] {
            for by in [0, USER, OTHER] {
                set_mode(&path, 0o600);
                let change = || io(fs::set_permissions(&path, fs::Permissions::from_mode(bits)));
                let outcome = if by == 0 { change() } else { as_user(by, by, change) };
                notes.note(format!("{bits:o} in group {group} by {by}"), (outcome, format!("{:o}", mode(&path))));
            }
        }
    }
}

fn times_of_others(at: &Path, notes: &mut Notes) {
    let path = at.join("file");
    fs::write(&path, "x").unwrap();
    chown(&path, Some(USER), Some(USER)).unwrap();
    let set = |seconds, nanoseconds| {
        let time = Timespec { tv_sec: seconds, tv_nsec: nanoseconds };
        let times = Timestamps { last_access: time, last_modification: time };
        errno(rustix::fs::utimensat(CWD, &path, &times, rustix::fs::AtFlags::empty()))
    };
    for bits in [0o644, 0o666, 0o400, 0o000] {
        set_mode(&path, bits);
        for by in [USER, OTHER] {
            for (seconds, nanoseconds) in [(5, 0), (0, rustix::fs::UTIME_NOW), (0, rustix::fs::UTIME_OMIT)] {
                let outcome = as_user(by, by, || set(seconds, nanoseconds));
                notes.note(format!("{bits:o} by {by} to {seconds} {nanoseconds}"), outcome);
            }
            let opened = as_user(by, by, || io(File::options().read(true).custom_flags(libc::O_NOATIME).open(&path)));
            notes.note(format!("{bits:o} by {by} without time of access"), opened);
        }
    }
}

/// Who may remove what from a sticky directory.
fn sticky(at: &Path, notes: &mut Notes) {
    for owner in [0, USER, OTHER] {
        let directory = at.join(format!("of{owner}"));
        fs::create_dir(&directory).unwrap();
        chown(&directory, Some(owner), Some(owner)).unwrap();
        set_mode(&directory, 0o1777);
        for holder in [0, USER, OTHER] {
            for what in ["unlink", "rmdir", "rename", "replace"] {
                let (path, mine) = (directory.join("theirs"), directory.join("mine"));
                if what == "rmdir" {
                    fs::create_dir(&path).unwrap()
                } else {
                    fs::write(&path, "x").unwrap()
                }
                chown(&path, Some(holder), Some(holder)).unwrap();
                fs::write(&mine, "y").unwrap();
                chown(&mine, Some(USER), Some(USER)).unwrap();
                let outcome = as_user(USER, USER, || {
                    io(match what {
                        "unlink" => fs::remove_file(&path),
                        "rmdir" => fs::remove_dir(&path),
                        "rename" => fs::rename(&path, directory.join("renamed")),
                        _ => fs::rename(&mine, &path),
                    })
                });
                notes.note(format!("{what} of {holder}'s in {owner}'s"), outcome);
                fs::remove_dir_all(&directory).unwrap();
                fs::create_dir(&directory).unwrap();
                chown(&directory, Some(owner), Some(owner)).unwrap();
                set_mode(&directory, 0o1777);
            }
        }
    }
}

/// What is made in a directory with set-group-id.
fn inheritance(at: &Path, notes: &mut Notes) {
    let directory = at.join("shared");
    fs::create_dir(&directory).unwrap();
    chown(&directory, Some(0), Some(5)).unwrap();
    set_mode(&directory, 0o2777);
    for by in [0, USER] {
        for bits in [0o2777, 0o2767, 0o6775, 0o644] {
            for what in ["file", "dir", "fifo", "unnamed", "symlink"] {
                let path = directory.join(format!("{what}-{by}-{bits:o}"));
                let permissions = Mode::from_bits_retain(bits);
                let make = || match what {
                    "file" => errno(rustix::fs::open(&path, OFlags::CREATE | OFlags::WRONLY, permissions)),
                    "dir" => errno(rustix::fs::mkdir(&path, permissions)),
                    "fifo" => errno(rustix::fs::mknodat(CWD, &path, rustix::fs::FileType::Fifo, permissions, 0)),
                    "unnamed" => {
                        let file = rustix::fs::open(&directory, OFlags::TMPFILE | OFlags::WRONLY, permissions)?;
                        let name = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file));
                        rustix::fs::linkat(CWD, name, CWD, &path, rustix::fs::AtFlags::SYMLINK_FOLLOW)
                    }
                    _ => errno(rustix::fs::symlink("x", &path)),
                };
                let outcome = if by == 0 { make() } else { as_user(by, by, make) };
                let about =
                    fs::symlink_metadata(&path).map(|about| (about.uid(), about.gid(), format!("{:o}", about.mode())));
                notes.note(format!("{what} {bits:o} by {by}"), (outcome, about.ok()));
            }
        }
    }
}

fn list(entries: &[(u16, u16, u32)]) -> Vec<u8> {
    let mut value = 2u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in entries {
        value.extend(tag.to_le_bytes());
        value.extend(permissions.to_le_bytes());
        value.extend(id.to_le_bytes());
    }
    value
}

const ACCESS: &str = "system.posix_acl_access";
const DEFAULT: &str = "system.posix_acl_default";

fn lists(path: &Path) -> (String, Vec<Vec<u8>>) {
    let one = |name| {
        let mut value = [0; 200];
        rustix::fs::getxattr(path, name, &mut value).map(|count| value[..count].to_vec()).unwrap_or_default()
    };
    (format!("{:o}", mode(path)), vec![one(ACCESS), one(DEFAULT)])
}

fn access_lists(at: &Path, notes: &mut Notes) {
    let all = u32::MAX;
    let samples: [(&str, Vec<u8>); 7] = [
        ("minimal", list(&[(1, 6, all), (4, 4, all), (32, 0, all)])),
        ("named user", list(&[(1, 7, all), (2, 6, OTHER), (4, 5, all), (16, 7, all), (32, 1, all)])),
        ("named group", list(&[(1, 6, all), (4, 0, all), (8, 7, OTHER), (16, 5, all), (32, 0, all)])),
        ("no mask", list(&[(1, 7, all), (2, 6, OTHER), (4, 5, all), (32, 1, all)])),
        ("unordered", list(&[(4, 5, all), (1, 7, all), (32, 1, all)])),
        ("empty", Vec::new()),
        ("garbage", vec![1, 2, 3]),
    ];
    let directory = at.join("dir");
    let file = at.join("file");
    fs::create_dir(&directory).unwrap();
    fs::write(&file, "x").unwrap();
    for path in [&directory, &file] {
        chown(path, Some(USER), Some(5)).unwrap();
        for (name, value) in &samples {
            for kind in [ACCESS, DEFAULT] {
                for by in [0, USER, OTHER] {
                    set_mode(path, 0o2775);
                    let set = || errno(rustix::fs::setxattr(path, kind, value, XattrFlags::empty()));
                    let outcome = if by == 0 { set() } else { as_user(by, by, set) };
                    let of = format!("{name} {kind} by {by} on {:?}", path.file_name().unwrap());
                    notes.note(of.clone(), (outcome, lists(path)));
                    set_mode(path, 0o751);
                    notes.note(format!("{of}, chmod"), lists(path));
                    let read = as_user(OTHER, OTHER, || io(File::open(path)));
                    notes.note(format!("{of}, read by another"), read);
                    let _ = rustix::fs::removexattr(path, ACCESS);
                    let _ = rustix::fs::removexattr(path, DEFAULT);
                }
            }
        }
    }
    // Inherited, by everything that can be made.
    for (name, value) in &samples[..3] {
        set_mode(&directory, 0o777);
        rustix::fs::setxattr(&directory, DEFAULT, value, XattrFlags::empty()).unwrap();
        for bits in [0o777, 0o640] {
            let permissions = Mode::from_bits_retain(bits);
            let path = |what: &str| directory.join(format!("{what} {name} {bits:o}"));
            let flags = OFlags::CREATE | OFlags::WRONLY;
            notes.note(
                format!("file below {name} {bits:o}"),
                (errno(rustix::fs::open(path("f"), flags, permissions)), lists(&path("f"))),
            );
            notes.note(
                format!("dir below {name} {bits:o}"),
                (errno(rustix::fs::mkdir(path("d"), permissions)), lists(&path("d"))),
            );
            let fifo = rustix::fs::mknodat(CWD, path("p"), rustix::fs::FileType::Fifo, permissions, 0);
            notes.note(format!("fifo below {name} {bits:o}"), (errno(fifo), lists(&path("p"))));
            let unnamed = rustix::fs::open(&directory, OFlags::TMPFILE | OFlags::WRONLY, permissions).unwrap();
            let mut value = [0; 200];
            let got = rustix::fs::fgetxattr(&unnamed, ACCESS, &mut value).map(|count| value[..count].to_vec());
            notes.note(format!("unnamed below {name} {bits:o}"), (rustix::fs::fstat(&unnamed).unwrap().st_mode, got));
        }
    }
    std::os::unix::fs::symlink("file", at.join("symlink")).unwrap();
    let of_link = rustix::fs::lsetxattr(at.join("symlink"), ACCESS, &samples[0].1, XattrFlags::empty());
    notes.note("of a symlink", errno(of_link));
}

fn attributes_of_others(at: &Path, notes: &mut Notes) {
    fs::create_dir(at.join("sticky")).unwrap();
    set_mode(&at.join("sticky"), 0o1777);
    fs::write(at.join("file"), "x").unwrap();
    let fifo = rustix::fs::mknodat(CWD, at.join("fifo"), rustix::fs::FileType::Fifo, Mode::from_bits_retain(0o666), 0);
    notes.note("fifo", errno(fifo));
    for bits in [0o666, 0o444, 0o222] {
        set_mode(&at.join("file"), bits);
        for path in ["sticky", "file", "fifo"] {
            for name in ["user.x", "trusted.x", "security.x"] {
                let path_at = at.join(path);
                let set = || {
                    (
                        errno(rustix::fs::setxattr(&path_at, name, b"1", XattrFlags::empty())),
                        rustix::fs::getxattr(&path_at, name, &mut [0; 10]),
                        errno(rustix::fs::removexattr(&path_at, name)),
                    )
                };
                notes.note(format!("{name} of {path} {bits:o} by another"), as_user(OTHER, OTHER, set));
                if name != "security.x" {
                    notes.note(format!("{name} of {path} {bits:o} by root"), set());
                }
            }
        }
    }
}

/// Which bits of directories and files let others in.
fn walking(at: &Path, notes: &mut Notes) {
    let directory = at.join("dir");
    fs::create_dir(&directory).unwrap();
    fs::write(directory.join("file"), "x").unwrap();
    chown(&directory, Some(USER), Some(USER)).unwrap();
    for bits in [0o700, 0o500, 0o300, 0o711, 0o722, 0o733, 0o744, 0o755, 0o070, 0o007] {
        set_mode(&directory, bits);
        for by in [USER, OTHER] {
            let tries = as_user(by, by, || {
                (
                    io(fs::metadata(directory.join("file"))),
                    io(fs::read_dir(&directory)),
                    io(File::create(directory.join("new"))),
                    io(fs::remove_file(directory.join("new"))),
                    io(fs::metadata(directory.join("missing"))),
                    errno(rustix::fs::access(&directory, rustix::fs::Access::WRITE_OK)),
                    errno(rustix::fs::access(&directory, rustix::fs::Access::EXEC_OK)),
                )
            });
            notes.note(format!("{bits:o} by {by}"), tries);
        }
    }
}
