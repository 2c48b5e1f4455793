//! Names: renames of everything onto everything, opening, files without names, directories that change while they are read.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, RenameFlags};

use super::{Notes, Scenario, as_user, errno, io};

pub(super) const SCENARIOS: &[Scenario] = &[
    ("renames", renames),
    ("odd_renames", odd_renames),
    ("opening", opening),
    ("unnamed", unnamed),
    ("without_its_name", without_its_name),
    ("special", special),
    ("links", links),
    ("read_while_changed", read_while_changed),
    ("long_names", long_names),
];

const KINDS: [&str; 5] = ["none", "file", "empty", "tree", "symlink"];

fn make(path: &Path, kind: &str) {
    match kind {
        "file" => fs::write(path, "file").unwrap(),
        "empty" => fs::create_dir(path).unwrap(),
        "tree" => {
            fs::create_dir(path).unwrap();
            fs::write(path.join("inside"), "tree").unwrap();
        }
        "symlink" => symlink("nowhere", path).unwrap(),
        _ => {}
    }
}

fn kind(path: &Path) -> &'static str {
    match fs::symlink_metadata(path) {
        Err(_) => "none",
        Ok(about) if about.is_symlink() => "symlink",
        Ok(about) if about.is_dir() && path.join("inside").exists() => "tree",
        Ok(about) if about.is_dir() => "empty",
        Ok(about) if about.file_type().is_char_device() => "whiteout",
        Ok(_) => "file",
    }
}

/// Every kind onto every kind, with all flags, within a directory and across.
fn renames(at: &Path, notes: &mut Notes) {
    fs::create_dir(at.join("other")).unwrap();
    for bits in 0..8 {
        let flags = RenameFlags::from_bits_retain(bits);
        for from in KINDS {
            for to in KINDS {
                for target in ["to", "other/to"] {
                    let (a, b) = (at.join("from"), at.join(target));
                    make(&a, from);
                    make(&b, to);
                    let links = || fs::metadata(at).unwrap().nlink() + fs::metadata(at.join("other")).unwrap().nlink();
                    let before = links();
                    let outcome = errno(rustix::fs::renameat_with(CWD, &a, CWD, &b, flags));
                    let change = links() as i64 - before as i64;
                    notes.note(
                        format!("{from} to {to} at {target}, flags {bits}"),
                        (outcome, kind(&a), kind(&b), change),
                    );
                    for path in [a, b] {
                        let _ = fs::remove_file(&path);
                        let _ = fs::remove_dir_all(&path);
                    }
                }
            }
        }
    }
}

fn odd_renames(at: &Path, notes: &mut Notes) {
    make(&at.join("tree"), "tree");
    make(&at.join("file"), "file");
    fs::hard_link(at.join("file"), at.join("same")).unwrap();
    for (from, to) in [
        ("tree", "tree/below"),
        ("tree", "tree/inside/x"),
        ("tree/inside", "tree"),
        ("tree/.", "x"),
        ("tree/..", "x"),
        ("file/", "x"),
        ("file", "x/"),
        ("file", "x/y"),
        ("file", "same"),
        ("same", "file"),
        ("file", "file"),
        ("tree", "tree"),
        ("", "x"),
        ("missing", "missing"),
    ] {
        notes.note(format!("{from} to {to}"), io(fs::rename(at.join(from), at.join(to))));
        notes.note(
            format!("{from} to {to}, then"),
            (kind(&at.join("file")), kind(&at.join("same")), kind(&at.join("tree"))),
        );
    }
    notes.note("links", fs::metadata(at.join("file")).map(|about| about.nlink()).ok());
}

fn opening(at: &Path, notes: &mut Notes) {
    make(&at.join("file"), "file");
    make(&at.join("dir"), "empty");
    symlink("file", at.join("to_file")).unwrap();
    symlink("missing", at.join("dangling")).unwrap();
    symlink("loop", at.join("loop")).unwrap();
    let fifo = rustix::fs::mknodat(CWD, at.join("fifo"), FileType::Fifo, Mode::RUSR, 0);
    notes.note("mkfifo", errno(fifo));
    let sets = [
        OFlags::RDONLY,
        OFlags::WRONLY | OFlags::NONBLOCK,
        OFlags::RDWR | OFlags::TRUNC | OFlags::NONBLOCK,
        OFlags::CREATE | OFlags::RDWR | OFlags::NONBLOCK,
        OFlags::CREATE | OFlags::EXCL | OFlags::RDWR,
        OFlags::CREATE | OFlags::DIRECTORY | OFlags::RDWR,
        OFlags::NOFOLLOW | OFlags::NONBLOCK,
        OFlags::PATH | OFlags::NOFOLLOW,
        OFlags::DIRECTORY,
        OFlags::TMPFILE | OFlags::RDWR,
        OFlags::TMPFILE,
    ];
    for name in [
        "file",
        "file/",
        "dir",
        "dir/",
        "to_file",
        "dangling",
        "loop",
        "fifo",
        "missing",
        "missing/",
        "file/x",
        "missing/x",
    ] {
        for flags in sets {
            if name == "fifo" && !flags.intersects(OFlags::NONBLOCK | OFlags::PATH | OFlags::EXCL | OFlags::DIRECTORY) {
                continue;
            }
            let opened = rustix::fs::open(at.join(name), flags, Mode::RUSR | Mode::WUSR);
            notes.note(format!("{name} {flags:?}"), errno(opened));
            let _ = fs::remove_file(at.join("missing"));
        }
    }
    let path = rustix::fs::open(at.join("file"), OFlags::PATH, Mode::empty()).unwrap();
    notes.note("read O_PATH", errno(rustix::io::read(&path, &mut [0; 1])));
    notes.note("fchmod O_PATH", errno(rustix::fs::fchmod(&path, Mode::RUSR)));
    notes.note("fstat O_PATH", rustix::fs::fstat(&path).map(|about| about.st_size));
    let directory = File::open(at.join("dir")).unwrap();
    notes.note("read a directory", errno(rustix::io::read(&directory, &mut [0; 1])));
    notes.note("sync a directory", io(directory.sync_all()));
    notes.note("truncate a directory", errno(rustix::fs::ftruncate(&directory, 0)));
    notes.note("syncfs", errno(rustix::fs::syncfs(&directory)));
}

/// `O_TMPFILE`, and what may be linked.
fn unnamed(at: &Path, notes: &mut Notes) {
    for exclusive in [false, true] {
        let flags = OFlags::TMPFILE | OFlags::RDWR | if exclusive { OFlags::EXCL } else { OFlags::empty() };
        let file = rustix::fs::open(at, flags, Mode::from_bits_retain(0o4777)).unwrap();
        rustix::io::write(&file, b"content").unwrap();
        let about = rustix::fs::fstat(&file).unwrap();
        notes.note(format!("{exclusive}"), (about.st_nlink, about.st_size, about.st_mode));
        let by_link = format!("/proc/self/fd/{}", file.as_raw_fd());
        let name = at.join(format!("named{exclusive}"));
        notes.note(
            format!("{exclusive} link"),
            errno(rustix::fs::linkat(CWD, &by_link, CWD, &name, AtFlags::SYMLINK_FOLLOW)),
        );
        let again = at.join(format!("again{exclusive}"));
        notes.note(
            format!("{exclusive} link empty"),
            errno(rustix::fs::linkat(&file, "", CWD, &again, AtFlags::EMPTY_PATH)),
        );
        notes.note(format!("{exclusive} links"), rustix::fs::fstat(&file).map(|about| about.st_nlink));
        let twice = errno(rustix::fs::linkat(CWD, &by_link, CWD, &name, AtFlags::SYMLINK_FOLLOW));
        notes.note(format!("{exclusive} link twice"), twice);
    }
    let mut names: Vec<_> = fs::read_dir(at).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    notes.note("names", names);
}

/// What can be done with a file whose last name is gone, and with a directory.
fn without_its_name(at: &Path, notes: &mut Notes) {
    let path = at.join("file");
    fs::write(&path, "content").unwrap();
    let file = File::options().read(true).write(true).open(&path).unwrap();
    fs::remove_file(&path).unwrap();
    notes.note("fchmod", errno(rustix::fs::fchmod(&file, Mode::from_bits_retain(0o640))));
    notes.note("ftruncate", errno(rustix::fs::ftruncate(&file, 3)));
    let about = file.metadata().unwrap();
    notes.note("fstat", (about.nlink(), about.len(), about.mode()));
    let by_link = format!("/proc/self/fd/{}", file.as_raw_fd());
    notes.note("link", errno(rustix::fs::linkat(CWD, &by_link, CWD, &path, AtFlags::SYMLINK_FOLLOW)));
    notes.note("open again", fs::read(&by_link).map_err(|error| error.raw_os_error()));
    notes.note("xattr", errno(rustix::fs::fsetxattr(&file, "user.a", b"1", rustix::fs::XattrFlags::empty())));
    fs::create_dir(at.join("dir")).unwrap();
    let directory = File::open(at.join("dir")).unwrap();
    fs::remove_dir(at.join("dir")).unwrap();
    notes.note("links of a directory", directory.metadata().map(|about| about.nlink()).ok());
    let inside = rustix::fs::openat(&directory, "x", OFlags::CREATE | OFlags::RDWR, Mode::RUSR);
    notes.note("create in it", errno(inside));
    notes.note("mkdir in it", errno(rustix::fs::mkdirat(&directory, "x", Mode::RUSR)));
    let entries = rustix::fs::Dir::read_from(&directory).map(|entries| entries.count());
    notes.note("read it", entries.ok());
    let target = at.join("target");
    fs::write(&target, "old").unwrap();
    let old = File::open(&target).unwrap();
    fs::write(&path, "new").unwrap();
    fs::rename(&path, &target).unwrap();
    notes.note(
        "replaced",
        (old.metadata().unwrap().nlink(), fs::read(&target).unwrap(), std::io::read_to_string(&old).unwrap()),
    );
}

fn special(at: &Path, notes: &mut Notes) {
    let kinds = [
        (FileType::RegularFile, 0),
        (FileType::Fifo, 0),
        (FileType::Socket, 0),
        (FileType::CharacterDevice, rustix::fs::makedev(1, 3)),
        (FileType::BlockDevice, rustix::fs::makedev(300, 70_000)),
        (FileType::Directory, 0),
        (FileType::Symlink, 0),
    ];
    for user in [0, 1000] {
        for (index, (kind, device)) in kinds.into_iter().enumerate() {
            let path = at.join(format!("{user}-{index}"));
            let make = || errno(rustix::fs::mknodat(CWD, &path, kind, Mode::from_bits_retain(0o4751), device));
            let outcome = if user == 0 { make() } else { as_user(user, user, make) };
            let about =
                fs::symlink_metadata(&path).map(|about| (about.mode(), about.rdev(), about.uid(), about.size()));
            notes.note(format!("{user} {kind:?}"), (outcome, about.ok()));
            if kind == FileType::Socket {
                notes.note(format!("{user} open a socket"), io(File::open(&path)));
            }
        }
    }
}

fn links(at: &Path, notes: &mut Notes) {
    make(&at.join("file"), "file");
    make(&at.join("dir"), "empty");
    symlink("file", at.join("symlink")).unwrap();
    for (from, to) in [
        ("file", "a"),
        ("file", "a"),
        ("dir", "b"),
        ("symlink", "c"),
        ("missing", "d"),
        ("file", "dir"),
        ("file", "dir/e"),
        ("file/x", "f"),
        ("file", "missing/f"),
    ] {
        notes.note(format!("{from} as {to}"), io(fs::hard_link(at.join(from), at.join(to))));
        notes.note(format!("links after {to}"), fs::metadata(at.join("file")).unwrap().nlink());
    }
    notes.note("of a symlink", kind(&at.join("c")));
    for name in ["a", "dir/e", "missing", "dir", "c"] {
        notes.note(format!("unlink {name}"), io(fs::remove_file(at.join(name))));
        notes.note(format!("rmdir {name}"), io(fs::remove_dir(at.join(name))));
    }
    notes.note("links", fs::metadata(at.join("file")).unwrap().nlink());
    let long = "x".repeat(4095);
    notes.note("target of 4095", io(symlink(&long, at.join("long"))));
    notes.note("target of 4096", io(symlink("x".repeat(4096), at.join("longer"))));
    notes.note("its length", fs::symlink_metadata(at.join("long")).map(|about| about.len()).ok());
    notes.note("read", fs::read_link(at.join("long")).is_ok_and(|target| target.as_os_str() == long.as_str()));
    notes.note("empty target", io(symlink("", at.join("empty"))));
}

/// Entries that stay are seen once, whatever goes and comes meanwhile.
fn read_while_changed(at: &Path, notes: &mut Notes) {
    const COUNT: usize = 1000;
    let name = |index: usize| format!("entry-{index:05}-{}", "n".repeat(index % 60));
    for index in 0..COUNT {
        File::create(at.join(name(index))).unwrap();
    }
    // Every other one is removed while reading, some before they are seen, some behind; new ones come.
    let stays: BTreeSet<String> = (0..COUNT).filter(|index| index % 2 == 1).map(name).collect();
    let (mut seen, mut twice) = (BTreeSet::new(), 0);
    for (step, entry) in fs::read_dir(at).unwrap().enumerate() {
        let entry = entry.unwrap().file_name().into_string().unwrap();
        if step < COUNT / 2 {
            let _ = fs::remove_file(at.join(name(step * 2)));
            if step % 10 == 0 {
                File::create(at.join(format!("new-{step}"))).unwrap();
            }
        }
        twice += u32::from(!seen.insert(entry));
    }
    notes.note("twice", twice);
    notes.note("missed", stays.difference(&seen).count());
    // Renaming each entry that is read comes to an end.
    let mut steps = 0;
    for entry in fs::read_dir(at).unwrap().take(20 * COUNT) {
        let path = entry.unwrap().path();
        let _ = fs::rename(&path, at.join(format!("renamed-{steps}")));
        steps += 1;
    }
    notes.note("renaming ends", steps < 20 * COUNT);
    // Places that were told are found again.
    let directory = rustix::fs::open(at, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).unwrap();
    let all = |from: u64| -> Vec<String> {
        let mut entries = rustix::fs::Dir::read_from(&directory).unwrap();
        entries.seek(from as i64).unwrap();
        entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect()
    };
    let mut entries = rustix::fs::Dir::read_from(&directory).unwrap();
    let mut wrong = 0;
    for _ in 0..20 {
        let Some(Ok(entry)) = entries.next() else { break };
        let rest = all(entry.offset() as u64);
        wrong += u32::from(rest.contains(&entry.file_name().to_string_lossy().into_owned()));
    }
    notes.note("seeking goes wrong", wrong);
    fs::read_dir(at).unwrap().for_each(|entry| fs::remove_file(entry.unwrap().path()).unwrap());
    notes.note("empty", fs::read_dir(at).unwrap().count());
}

fn long_names(at: &Path, notes: &mut Notes) {
    for length in [1, 254, 255, 256, 300] {
        let path = at.join("l".repeat(length));
        notes.note(format!("create {length}"), io(File::create(&path)));
        notes.note(format!("stat {length}"), io(fs::metadata(&path)));
        notes.note(format!("mkdir {length}"), io(fs::create_dir(at.join("d".repeat(length)))));
        notes.note(format!("rename {length}"), io(fs::rename(at.join("l"), at.join("r".repeat(length)))));
        let _ = fs::rename(at.join("r".repeat(length)), at.join("l"));
    }
    fs::set_permissions(at, fs::Permissions::from_mode(0o777)).unwrap();
    use std::os::unix::ffi::OsStrExt;
    let odd: Vec<u8> = (1..=255).filter(|byte| *byte != b'/').take(250).collect();
    let odd = at.join(std::ffi::OsStr::from_bytes(&odd));
    notes.note("any bytes", (io(File::create(&odd)), odd.exists()));
}
