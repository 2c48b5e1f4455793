//! Corners that test suites look into: memory of a file as the source of its own writes, sizes that are limited, working directories that
//! go, many attributes, directories read again, links of links, who may run and enter what.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;

use rustix::fs::{Access, AtFlags, CWD, Mode, OFlags, XattrFlags};

use super::{Notes, Scenario, as_user, errno, io, tick};

pub(super) const SCENARIOS: &[Scenario] = &[
    ("own_memory", own_memory),
    ("limited_sizes", limited_sizes),
    ("working_directories", working_directories),
    ("many_attributes", many_attributes),
    ("read_again", read_again),
    ("kinds_of_entries", kinds_of_entries),
    ("replaced_while_open", replaced_while_open),
    ("created_without_rights", created_without_rights),
    ("execution", execution),
    ("symlinks", symlinks),
    ("odd_copies", odd_copies),
    ("advice", advice),
];

/// Reads into and writes from maps of the same file, also where they reach behind its end.
fn own_memory(at: &Path, notes: &mut Notes) {
    use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
    const PAGE: usize = 4096;
    for (name, flags) in [("buffered", 0), ("direct", libc::O_DIRECT)] {
        let path = at.join(name);
        fs::write(&path, [5; 3 * PAGE + 100]).unwrap();
        let file = File::options().read(true).write(true).custom_flags(flags).open(&path).unwrap();
        let number = file.as_raw_fd();
        // SAFETY: a new map, used by system calls only, which answer EFAULT where nothing is.
        unsafe {
            let map =
                mmap(std::ptr::null_mut(), 6 * PAGE, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, &file, 0);
            let map = map.unwrap().cast::<u8>();
            let failed = |count: isize| {
                let errno = std::io::Error::last_os_error().raw_os_error();
                if count < 0 { Err(errno) } else { Ok(count) }
            };
            let at_page = |page: usize| map.add(page * PAGE).cast::<libc::c_void>();
            // Pages that were never touched: the call has to bring them in.
            notes.note(format!("{name} from itself"), failed(libc::pwrite(number, at_page(1), PAGE, 0)));
            notes.note(format!("{name} onto itself"), failed(libc::pwrite(number, at_page(2), PAGE, 2 * PAGE as i64)));
            notes.note(format!("{name} into itself"), failed(libc::pread(number, at_page(0), PAGE, PAGE as i64)));
            notes.note(format!("{name} from behind the end"), failed(libc::pwrite(number, at_page(5), PAGE, 0)));
            notes.note(format!("{name} into behind the end"), failed(libc::pread(number, at_page(5), PAGE, 0)));
            let (read, write) = rustix::pipe::pipe().unwrap();
            notes.note(format!("{name} the last page's rest"), {
                let sent = failed(libc::write(write.as_raw_fd(), at_page(3).add(100), 10));
                let mut bytes = [9; 10];
                rustix::io::read(&read, &mut bytes).unwrap();
                (sent, bytes)
            });
            notes.note(format!("{name} a page behind"), failed(libc::write(write.as_raw_fd(), at_page(4), 10)));
            file.set_len(PAGE as u64).unwrap();
            notes.note(format!("{name} a page cut off"), failed(libc::write(write.as_raw_fd(), at_page(2), 10)));
            file.set_len(3 * PAGE as u64).unwrap();
            notes.note(format!("{name} a page come back"), failed(libc::write(write.as_raw_fd(), at_page(2), 10)));
            munmap(map.cast(), 6 * PAGE).unwrap();
        }
        let bytes = fs::read(&path).unwrap();
        notes.note(format!("{name} bytes"), (bytes.len(), bytes.iter().map(|byte| u64::from(*byte)).sum::<u64>()));
    }
}

/// The limit of file sizes of a process, which a shell sets for itself: 8 KiB.
fn limited_sizes(at: &Path, notes: &mut Notes) {
    let script = "ulimit -f 8; trap '' XFSZ; exec 2> /dev/null
        head -c 20000 /dev/zero > written; echo $? $(stat -c %s written)
        echo x > short; truncate -s 20000 short; echo $? $(stat -c %s short)
        fallocate -l 20000 short; echo $? $(stat -c %s short)
        fallocate -n -l 20000 short; echo $? $(stat -c %s short)
        head -c 8192 /dev/zero > full; echo more >> full; echo $? $(stat -c %s full)
        cp big short; echo $? $(stat -c %s short)
        echo y | dd of=full bs=1 seek=8191 conv=notrunc; echo $? $(stat -c %s full)
        trap - XFSZ; sh -c 'head -c 20000 /dev/zero > signalled'; echo $? $(stat -c %s signalled)";
    fs::write(at.join("big"), [1; 30_000]).unwrap();
    let mut shell = Command::new("bash");
    match shell.args(["-c", script]).current_dir(at).output() {
        Ok(output) => notes.note("limited", String::from_utf8_lossy(&output.stdout)),
        Err(_) => notes.note("limited", "there is no bash"),
    }
}

/// What a working directory is after renames and removals around it. On a thread with a working directory of its own.
fn working_directories(at: &Path, notes: &mut Notes) {
    fs::create_dir_all(at.join("a/b")).unwrap();
    fs::create_dir(at.join("c")).unwrap();
    let path = at.to_owned();
    let told = std::thread::spawn(move || {
        // SAFETY: the call takes no memory.
        assert_eq!(unsafe { libc::unshare(libc::CLONE_FS) }, 0);
        let mut told = Vec::new();
        let here = || {
            rustix::process::getcwd(Vec::new())
                .map(|here| here.to_string_lossy().strip_prefix(&*path.to_string_lossy()).map(str::to_owned))
        };
        rustix::process::chdir(path.join("a/b")).unwrap();
        told.push(format!("{:?}", here()));
        fs::rename(path.join("a"), path.join("c/d")).unwrap();
        told.push(format!("{:?}", here()));
        told.push(format!("{:?}", io(fs::write("file", "relative"))));
        told.push(format!("{:?}", io(fs::read(path.join("c/d/b/file")))));
        told.push(format!("{:?}", io(fs::remove_dir(path.join("c/d/b")))));
        fs::remove_file("file").unwrap();
        told.push(format!("{:?}", io(fs::remove_dir(path.join("c/d/b")))));
        told.push(format!("{:?}", here()));
        told.push(format!("{:?}", fs::metadata(".").map(|about| about.nlink()).map_err(|error| error.raw_os_error())));
        told.push(format!("{:?}", io(File::create("new"))));
        told.push(format!("{:?}", fs::read_dir(".").map(Iterator::count).map_err(|error| error.raw_os_error())));
        told.push(format!("{:?}", io(fs::metadata("../b"))));
        told.push(format!("{:?}", errno(rustix::process::chdir(".."))));
        told.push(format!("{:?}", here()));
        told
    });
    notes.note("here", told.join().unwrap());
}

fn many_attributes(at: &Path, notes: &mut Notes) {
    let path = at.join("file");
    fs::write(&path, "x").unwrap();
    let listed = || {
        let mut bytes = vec![0; 65_536];
        let count = rustix::fs::listxattr(&path, &mut bytes).unwrap();
        let names = bytes[..count].split(|byte| *byte == 0).map(|name| String::from_utf8_lossy(name).into_owned());
        names.filter(|name| name.starts_with("user.")).collect::<BTreeSet<_>>()
    };
    let name = |index: usize| format!("user.{index}{}", "-".repeat(index % 40));
    let set = |name: &str, value: &[u8]| errno(rustix::fs::setxattr(&path, name, value, XattrFlags::empty()));
    notes.note("set", (0..60).filter(|index| set(&name(*index), &vec![b'v'; index % 20]).is_ok()).count());
    notes.note("listed", listed());
    notes.note(
        "removed",
        (0..60).step_by(2).filter(|index| rustix::fs::removexattr(&path, name(*index)).is_ok()).count(),
    );
    notes.note("left", listed());
    for (of, value) in [("longer", &[1; 500][..]), ("shorter", &[2; 3]), ("empty", &[]), ("longer again", &[3; 700])] {
        let mut got = [0; 1000];
        let outcome = set("user.1-", value);
        let count = rustix::fs::getxattr(&path, "user.1-", &mut got);
        notes.note(of, (outcome, count, count.is_ok_and(|count| got[..count] == *value)));
    }
    for odd in
        ["user.a/b", "user.with space", "user.\u{fc}ml\u{e4}ut", "user.=", "user.user.user", "user..", "user.a\nb"]
    {
        notes.note(odd, (set(odd, b"odd"), listed().contains(odd), errno(rustix::fs::removexattr(&path, odd))));
    }
    for name in ["user.3---", "user.missing"] {
        for room in [0, 1, 2, 3, 4] {
            let mut value = vec![0; room];
            notes.note(format!("{name} into {room}"), rustix::fs::getxattr(&path, name, &mut value[..]));
        }
    }
    notes.note("times", {
        let before = fs::metadata(&path).unwrap();
        tick();
        set("user.1-", b"last").unwrap();
        let after = fs::metadata(&path).unwrap();
        (
            (before.mtime(), before.mtime_nsec()) == (after.mtime(), after.mtime_nsec()),
            (before.ctime(), before.ctime_nsec()) < (after.ctime(), after.ctime_nsec()),
        )
    });
}

/// An open directory, read again from its beginning, shows what has come and gone.
fn read_again(at: &Path, notes: &mut Notes) {
    let directory = rustix::fs::open(at, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).unwrap();
    let mut entries = rustix::fs::Dir::read_from(&directory).unwrap();
    let mut names = || {
        entries.rewind();
        let names = entries.by_ref().map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned());
        names.collect::<BTreeSet<_>>()
    };
    notes.note("empty", names());
    for name in ["a", "b", "c"] {
        fs::write(at.join(name), name).unwrap();
        notes.note(format!("with {name}"), names());
    }
    fs::remove_file(at.join("b")).unwrap();
    fs::rename(at.join("a"), at.join("z")).unwrap();
    notes.note("changed", names());
    fs::create_dir(at.join("b")).unwrap();
    notes.note("another b", names());
    // With the smallest buffers.
    let mut seen = Vec::new();
    rustix::fs::seek(&directory, rustix::fs::SeekFrom::Start(0)).unwrap();
    let mut buffer = [std::mem::MaybeUninit::uninit(); 32];
    let mut raw = rustix::fs::RawDir::new(&directory, &mut buffer);
    while let Some(Ok(entry)) = raw.next() {
        seen.push(entry.file_name().to_string_lossy().into_owned());
    }
    seen.sort();
    notes.note("one at a time", seen);
}

/// What a directory says of its entries is what they are; so of itself and its parent.
fn kinds_of_entries(at: &Path, notes: &mut Notes) {
    fs::write(at.join("file"), "").unwrap();
    fs::create_dir(at.join("dir")).unwrap();
    symlink("file", at.join("symlink")).unwrap();
    for (name, kind, device) in [
        ("fifo", rustix::fs::FileType::Fifo, 0),
        ("socket", rustix::fs::FileType::Socket, 0),
        ("character", rustix::fs::FileType::CharacterDevice, rustix::fs::makedev(1, 3)),
        ("block", rustix::fs::FileType::BlockDevice, rustix::fs::makedev(7, 0)),
    ] {
        rustix::fs::mknodat(CWD, at.join(name), kind, Mode::RUSR, device).unwrap();
    }
    for of in ["", "dir"] {
        let directory = rustix::fs::open(at.join(of), OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).unwrap();
        let mut told = Vec::new();
        for entry in rustix::fs::Dir::read_from(&directory).unwrap() {
            let entry = entry.unwrap();
            let about = rustix::fs::statat(&directory, entry.file_name(), AtFlags::SYMLINK_NOFOLLOW).unwrap();
            told.push((entry.file_name().to_owned(), entry.file_type(), entry.ino() == about.st_ino));
        }
        told.sort_by(|a, b| a.0.cmp(&b.0));
        notes.note(format!("entries of {of:?}"), told);
    }
}

/// What an open file or directory is after another took its name.
fn replaced_while_open(at: &Path, notes: &mut Notes) {
    for name in ["file", "dir"] {
        let (old, new) = (at.join(format!("{name}-old")), at.join(format!("{name}-new")));
        for path in [&old, &new] {
            if name == "dir" { fs::create_dir(path).unwrap() } else { fs::write(path, path.to_str().unwrap()).unwrap() }
        }
        let (open_old, open_new) = (File::open(&old).unwrap(), File::open(&new).unwrap());
        fs::rename(&new, &old).unwrap();
        let links = |file: &File| file.metadata().map(|about| about.nlink()).ok();
        let same = fs::metadata(&old).unwrap().ino() == open_new.metadata().unwrap().ino();
        notes.note(format!("{name} replaced"), (links(&open_old), links(&open_new), same));
        notes.note(format!("{name} chmod"), errno(rustix::fs::fchmod(&open_old, Mode::RUSR)));
        notes.note(format!("{name} times"), errno(rustix::fs::futimens(&open_old, &super::times::long_ago())));
        let reached = fs::metadata(format!("/proc/self/fd/{}", open_old.as_raw_fd()));
        notes.note(format!("{name} by its descriptor"), reached.map(|about| about.nlink()).ok());
    }
}

/// A file's mode counts from the second open on.
fn created_without_rights(at: &Path, notes: &mut Notes) {
    fs::set_permissions(at, fs::Permissions::from_mode(0o777)).unwrap();
    for bits in [0o000, 0o200, 0o400, 0o444, 0o600] {
        let path = at.join(format!("{bits:o}"));
        let tries = as_user(1000, 1000, || {
            let made =
                rustix::fs::open(&path, OFlags::CREATE | OFlags::EXCL | OFlags::RDWR, Mode::from_bits_retain(bits));
            let used = made.and_then(|file| {
                rustix::io::pwrite(&file, b"content", 0)?;
                rustix::io::pread(&file, &mut [0; 10][..], 0)
            });
            let again = [
                OFlags::RDONLY,
                OFlags::WRONLY,
                OFlags::RDWR,
                OFlags::CREATE | OFlags::RDWR,
                OFlags::RDONLY | OFlags::TRUNC,
            ]
            .map(|flags| errno(rustix::fs::open(&path, flags, Mode::RUSR)));
            let cut = io(File::options().write(true).open(&path).and_then(|file| file.set_len(3)));
            (used, again, cut, io(fs::metadata(&path)))
        });
        notes.note(format!("{bits:o}"), tries);
        notes.note(format!("{bits:o}, root"), io(File::options().read(true).write(true).open(&path)));
    }
}

fn execution(at: &Path, notes: &mut Notes) {
    let path = at.join("script");
    fs::write(&path, "#!/bin/sh\nexit 7\n").unwrap();
    fs::set_permissions(at, fs::Permissions::from_mode(0o755)).unwrap();
    for bits in [0o000, 0o644, 0o755, 0o711, 0o100, 0o001, 0o010] {
        fs::set_permissions(&path, fs::Permissions::from_mode(bits)).unwrap();
        let ran = Command::new(&path).status().map(|status| status.code()).map_err(|error| error.raw_os_error());
        notes.note(format!("{bits:o} run by root"), ran);
        for access in [Access::EXISTS, Access::READ_OK, Access::WRITE_OK, Access::EXEC_OK] {
            notes.note(format!("{bits:o} {access:?} by root"), errno(rustix::fs::access(&path, access)));
            let other = as_user(1000, 1000, || errno(rustix::fs::access(&path, access)));
            notes.note(format!("{bits:o} {access:?} by another"), other);
        }
    }
    let ran = Command::new(at).status().map(drop).map_err(|error| error.raw_os_error());
    notes.note("a directory run", ran);
}

fn symlinks(at: &Path, notes: &mut Notes) {
    fs::write(at.join("file"), "content").unwrap();
    for depth in 0..45 {
        let target = if depth == 0 { "file".to_owned() } else { format!("l{}", depth - 1) };
        symlink(target, at.join(format!("l{depth}"))).unwrap();
    }
    for depth in [0, 10, 38, 39, 40, 44] {
        notes.note(format!("{} links deep", depth + 1), io(fs::read(at.join(format!("l{depth}")))));
    }
    let link = at.join("l0");
    let about = fs::symlink_metadata(&link).unwrap();
    notes.note("size, blocks, mode", (about.size(), about.mode()));
    notes.note(
        "lchown",
        errno(rustix::fs::chownat(CWD, &link, Some(rustix::fs::Uid::from_raw(5)), None, AtFlags::SYMLINK_NOFOLLOW)),
    );
    notes.note("then", (fs::symlink_metadata(&link).unwrap().uid(), fs::metadata(&link).unwrap().uid()));
    // SAFETY: the path is a live C string.
    let changed = unsafe {
        let name = std::ffi::CString::new(link.to_str().unwrap()).unwrap();
        libc::syscall(452, libc::AT_FDCWD, name.as_ptr(), 0o600, libc::AT_SYMLINK_NOFOLLOW)
    };
    notes.note("fchmodat2", (changed, std::io::Error::last_os_error().raw_os_error()));
    for size in [0, 1, 3, 4, 100] {
        let mut room = vec![std::mem::MaybeUninit::uninit(); size];
        let read = rustix::fs::readlinkat_raw(CWD, &link, &mut room[..]).map(|(told, _)| told.to_vec());
        notes.note(format!("read into {size}"), read);
    }
    notes.note("read a file as one", io(fs::read_link(at.join("file"))));
    notes.note("rmdir of one", io(fs::remove_dir(&link)));
    notes.note("mkdir on one", io(fs::create_dir(&link)));
    symlink("new", at.join("dangling")).unwrap();
    notes.note("mkdir on a dangling one", io(fs::create_dir(at.join("dangling"))));
    notes.note("create through it", io(File::create(at.join("dangling"))));
    notes.note("came to be", io(fs::metadata(at.join("new"))));
    notes.note("create new through it", io(File::create_new(at.join("dangling"))));
    for target in ["/", ".", "..", "a/../file", "./file", "file/.", "../symlinks/file"] {
        let path = at.join("to");
        let _ = fs::remove_file(&path);
        symlink(target, &path).unwrap();
        notes.note(format!("to {target}"), (io(fs::metadata(&path)), io(fs::metadata(path.join("."))).is_ok()));
    }
}

fn odd_copies(at: &Path, notes: &mut Notes) {
    let (from, to) = (at.join("from"), at.join("to"));
    fs::write(&from, [3; 10_000]).unwrap();
    fs::write(&to, "").unwrap();
    let (source, target) = (File::open(&from).unwrap(), File::options().read(true).write(true).open(&to).unwrap());
    let write_only = File::options().write(true).open(&from).unwrap();
    let fifo = at.join("fifo");
    rustix::fs::mknodat(CWD, &fifo, rustix::fs::FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    let pipe = File::options().read(true).write(true).open(&fifo).unwrap();
    let null = File::options().read(true).write(true).open("/dev/null").unwrap();
    let copy = |from: &File, a: i64, to: &File, b: i64, length: usize, flags: u32| {
        let (mut a, mut b) = (a, b);
        // SAFETY: both offsets are live.
        let count = unsafe { libc::copy_file_range(from.as_raw_fd(), &mut a, to.as_raw_fd(), &mut b, length, flags) };
        if count < 0 { Err(std::io::Error::last_os_error().raw_os_error()) } else { Ok((count, a, b)) }
    };
    notes.note("flags", copy(&source, 0, &target, 0, 100, 1));
    notes.note("from one for writing", copy(&write_only, 0, &target, 0, 100, 0));
    notes.note("from a pipe", copy(&pipe, 0, &target, 0, 100, 0));
    notes.note("to a pipe", copy(&source, 0, &pipe, 0, 100, 0));
    notes.note("to a device", copy(&source, 0, &null, 0, 100, 0));
    notes.note("from before the beginning", copy(&source, -1, &target, 0, 100, 0));
    notes.note("to before the beginning", copy(&source, 0, &target, -1, 100, 0));
    notes.note("to the end of all", copy(&source, 0, &target, i64::MAX - 50, 100, 0));
    notes.note("behind the end of all", copy(&source, 0, &target, i64::MAX, 100, 0));
    notes.note("across the end", copy(&source, 9990, &target, 5, 100, 0));
    notes.note("to behind the end", copy(&source, 0, &target, 50_000, 5000, 0));
    notes.note("bytes", fs::read(&to).map(|bytes| (bytes.len(), bytes.iter().filter(|byte| **byte == 3).count())).ok());
    let overlapping = File::options().read(true).write(true).open(&from).unwrap();
    notes.note("overlapping by one", copy(&overlapping, 0, &overlapping, 4999, 5000, 0));
    notes.note("side by side", copy(&overlapping, 0, &overlapping, 5000, 5000, 0));
    notes.note("nothing, overlapping", copy(&overlapping, 0, &overlapping, 0, 0, 0));
}

/// Advice and requests to flush, on files, directories and pipes.
fn advice(at: &Path, notes: &mut Notes) {
    fs::write(at.join("file"), [1; 5000]).unwrap();
    let file = File::options().read(true).write(true).open(at.join("file")).unwrap();
    let directory = File::open(at).unwrap();
    let (pipe, _other) = rustix::pipe::pipe().unwrap();
    let numbers = [("file", file.as_raw_fd()), ("directory", directory.as_raw_fd()), ("pipe", pipe.as_raw_fd())];
    let failed = |answer: i64| if answer == 0 { Ok(()) } else { Err(std::io::Error::last_os_error().raw_os_error()) };
    // SAFETY: none of these calls takes memory.
    unsafe {
        for (name, number) in numbers {
            for advice in [libc::POSIX_FADV_NORMAL, libc::POSIX_FADV_WILLNEED, libc::POSIX_FADV_DONTNEED, 77] {
                notes.note(format!("{name} advice {advice}"), libc::posix_fadvise(number, 0, 0, advice));
            }
            notes.note(format!("{name} readahead"), failed(libc::readahead(number, 0, 4096) as i64));
            notes.note(
                format!("{name} range"),
                failed(i64::from(libc::sync_file_range(number, 0, 0, libc::SYNC_FILE_RANGE_WRITE))),
            );
            notes.note(format!("{name} odd range"), failed(i64::from(libc::sync_file_range(number, -1, 0, 0))));
            notes.note(format!("{name} fsync"), failed(i64::from(libc::fsync(number))));
            notes.note(format!("{name} fdatasync"), failed(i64::from(libc::fdatasync(number))));
            notes.note(format!("{name} syncfs"), failed(i64::from(libc::syncfs(number))));
        }
    }
    let mut direct = [0; 10];
    notes.note("odd direct read", {
        let opened = File::options().read(true).custom_flags(libc::O_DIRECT).open(at.join("file")).unwrap();
        opened.read_at(&mut direct, 5000).is_ok_and(|count| count == 0) || opened.read_at(&mut direct, 5000).is_err()
    });
}
