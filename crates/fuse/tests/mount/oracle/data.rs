//! Bytes: what calls on open files answer, holes, ends, limits, maps, copies.

use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use rustix::fs::{FallocateFlags, SeekFrom, XattrFlags};

use super::times::past;
use super::{Notes, Scenario, errno, io};

pub(super) const SCENARIOS: &[Scenario] = &[
    ("holes", holes),
    ("allocation", allocation),
    ("ends", ends),
    ("appending", appending),
    ("copies", copies),
    ("pipes", pipes),
    ("maps", maps),
    ("vectors", vectors),
    ("attribute_limits", attribute_limits),
    ("leases", leases),
];

pub(super) fn open(path: &Path) -> File {
    File::options().read(true).write(true).create(true).truncate(false).open(path).unwrap()
}

/// Whether it succeeds is noted elsewhere.
pub(super) fn either_way<T>(_: T) {}

fn holes(at: &Path, notes: &mut Notes) {
    let file = open(&at.join("file"));
    let seek = |notes: &mut Notes, what: &str| {
        for offset in [0, 1, 4096, 65_535, 65_536, 1 << 20, (1 << 20) + 4096, (2 << 20) - 1, 2 << 20, 1 << 40] {
            notes.note(format!("{what} data {offset}"), rustix::fs::seek(&file, SeekFrom::Data(offset)));
            notes.note(format!("{what} hole {offset}"), rustix::fs::seek(&file, SeekFrom::Hole(offset)));
        }
    };
    seek(notes, "empty");
    file.set_len(2 << 20).unwrap();
    seek(notes, "sparse");
    file.write_all_at(&[1; 65_536], 0).unwrap();
    file.write_all_at(&[1; 4096], 1 << 20).unwrap();
    file.sync_all().unwrap();
    seek(notes, "written");
    notes.note("blocks", file.metadata().unwrap().blocks());
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    notes.note("punch", errno(rustix::fs::fallocate(&file, punch, 4096, 8192)));
    seek(notes, "punched");
    file.set_len((1 << 20) + 10).unwrap();
    file.set_len(2 << 20).unwrap();
    seek(notes, "cut");
    let mut bytes = [7; 4096];
    file.read_exact_at(&mut bytes, 1 << 20).unwrap();
    notes.note("zeros behind the cut", (bytes[..10].iter().sum::<u8>(), bytes[10..].iter().all(|byte| *byte == 0)));
}

fn allocation(at: &Path, notes: &mut Notes) {
    let path = at.join("file");
    let file = open(&path);
    file.write_all_at(&[1; 5000], 0).unwrap();
    let directory = File::open(at).unwrap();
    let read_only = File::open(&path).unwrap();
    for mode in [0, 1, 2, 3, 0x10, 0x11, 0x13, 0x100] {
        for (offset, length) in [(0, 0), (0, 100), (4096, 8192), (100_000, 10), (1 << 62, 1 << 62), (-1, 10), (10, -1)]
        {
            // SAFETY: fallocate takes no memory.
            let answer = unsafe { libc::fallocate(file.as_raw_fd(), mode, offset, length) };
            let outcome = if answer == 0 { Ok(()) } else { io::<()>(Err(std::io::Error::last_os_error())) };
            let about = file.metadata().unwrap();
            notes.note(format!("mode {mode} at {offset} of {length}"), (outcome, about.len()));
        }
        let flags = FallocateFlags::from_bits_retain(mode as u32);
        notes.note(format!("mode {mode} on a directory"), errno(rustix::fs::fallocate(&directory, flags, 0, 10)));
        notes.note(format!("mode {mode} read-only"), errno(rustix::fs::fallocate(&read_only, flags, 0, 10)));
    }
}

/// The ends of files: limits, negative numbers, cuts.
fn ends(at: &Path, notes: &mut Notes) {
    let path = at.join("file");
    let file = open(&path);
    for length in [0, 1, 4096, 1 << 32, 1 << 43, i64::MAX as u64, 1 << 63] {
        notes.note(
            format!("cut at {length}"),
            (errno(rustix::fs::ftruncate(&file, length)), file.metadata().unwrap().len()),
        );
    }
    file.set_len(0).unwrap();
    for offset in [1u64 << 32, 1 << 43, i64::MAX as u64 - 1, i64::MAX as u64, 1 << 63] {
        notes.note(format!("write at {offset}"), errno(rustix::io::pwrite(&file, b"end", offset)));
        notes.note(format!("read at {offset}"), rustix::io::pread(&file, &mut [0; 10], offset).ok());
        file.set_len(0).unwrap();
    }
    file.write_all_at(b"0123456789", 0).unwrap();
    notes.note("read across", rustix::io::pread(&file, &mut [0; 100][..], 5).ok());
    notes.note("read behind", rustix::io::pread(&file, &mut [0; 100][..], 10).ok());
    notes.note("seek before", errno(rustix::fs::seek(&file, SeekFrom::Current(-100))));
    notes.note("seek from the end", errno(rustix::fs::seek(&file, SeekFrom::End(-11))));
    notes.note("seek far", errno(rustix::fs::seek(&file, SeekFrom::Start(1 << 62))));
    let read_only = File::open(&path).unwrap();
    notes.note("cut read-only", errno(rustix::fs::ftruncate(&read_only, 1)));
    notes.note("write read-only", errno(rustix::io::pwrite(&read_only, b"x", 0)));
    // SAFETY: the path is a live C string; no other memory is taken.
    let cut = unsafe { libc::truncate(c"".as_ptr(), 0) };
    notes.note("cut nothing", (cut, std::io::Error::last_os_error().raw_os_error()));
    let bad = 8 as *const libc::c_void;
    // SAFETY: the kernel finds that nothing is mapped there.
    let (written, read) =
        unsafe { (libc::pwrite(file.as_raw_fd(), bad, 10, 0), libc::pread(file.as_raw_fd(), bad.cast_mut(), 10, 0)) };
    notes.note(
        "bad memory",
        (written, read, std::io::Error::last_os_error().raw_os_error(), file.metadata().unwrap().len()),
    );
}

fn appending(at: &Path, notes: &mut Notes) {
    let path = at.join("file");
    fs::write(&path, "begin ").unwrap();
    let file = File::options().append(true).read(true).open(&path).unwrap();
    notes.note("pwrite", errno(rustix::io::pwrite(&file, b"appended ", 0)));
    notes.note("position", rustix::fs::tell(&file));
    notes.note("write", errno(rustix::io::write(&file, b"more ")));
    notes.note("position then", rustix::fs::tell(&file));
    let plain = open(&path);
    let vector = libc::iovec { iov_base: b"atomic ".as_ptr().cast_mut().cast(), iov_len: 7 };
    for flags in [libc::RWF_APPEND, libc::RWF_DSYNC, libc::RWF_SYNC, 0x4000_0000] {
        // SAFETY: the vector names seven live bytes, which are only read.
        let answer = unsafe { libc::pwritev2(plain.as_raw_fd(), &raw const vector, 1, 0, flags) };
        notes.note(format!("flags {flags:x}"), (answer, plain.metadata().unwrap().len()));
    }
    notes.note("all", fs::read_to_string(&path).unwrap());
}

fn copies(at: &Path, notes: &mut Notes) {
    let (from, to) = (open(&at.join("from")), open(&at.join("to")));
    from.write_all_at(&(0..20_000u32).flat_map(u32::to_le_bytes).collect::<Vec<u8>>(), 0).unwrap();
    let append = File::options().append(true).open(at.join("to")).unwrap();
    let read_only = File::open(at.join("to")).unwrap();
    let directory = File::open(at).unwrap();
    let copy = |from: &File, mut a: u64, to: &File, mut b: u64, length| {
        rustix::fs::copy_file_range(from, Some(&mut a), to, Some(&mut b), length)
    };
    for (a, b, length) in
        [(0, 0, 80_000), (4096, 8192, 4096), (1, 2, 3), (79_999, 0, 10), (80_000, 0, 10), (1 << 40, 0, 1), (0, 0, 0)]
    {
        notes.note(format!("{a} {b} {length}"), copy(&from, a, &to, b, length));
    }
    notes.note("within", copy(&from, 0, &from, 40_000, 40_000));
    notes.note("overlapping", copy(&from, 0, &from, 100, 4096));
    notes.note("to one for appending", copy(&from, 0, &append, 0, 10));
    notes.note("to one for reading", copy(&from, 0, &read_only, 0, 10));
    notes.note("from a directory", copy(&directory, 0, &to, 0, 10));
    notes.note("to a directory", copy(&from, 0, &directory, 0, 10));
    let sum = |file: &File| {
        let bytes = fs::read(format!("/proc/self/fd/{}", file.as_raw_fd())).unwrap();
        bytes.iter().fold((bytes.len(), 7u64), |(length, sum), byte| {
            (length, sum.wrapping_mul(31).wrapping_add(u64::from(*byte)))
        })
    };
    notes.note("bytes", (sum(&from), sum(&to)));
}

fn pipes(at: &Path, notes: &mut Notes) {
    let file = open(&at.join("file"));
    file.write_all_at(b"through a pipe and back", 0).unwrap();
    let (read, write) = rustix::pipe::pipe().unwrap();
    notes.note("sendfile", rustix::fs::sendfile(&write, &file, Some(&mut 8), 100));
    let mut bytes = [0; 100];
    let count = rustix::io::read(&read, &mut bytes).unwrap();
    notes.note("sent", &bytes[..count]);
    let flags = rustix::pipe::SpliceFlags::empty();
    notes.note("splice out", rustix::pipe::splice(&file, Some(&mut 0), &write, None, 7, flags));
    notes.note("splice in", rustix::pipe::splice(&read, None, &file, Some(&mut 30), 7, flags));
    notes.note("bytes", fs::read(at.join("file")).unwrap());
}

/// Maps: bytes behind the end are not the file's, and what may be mapped how.
fn maps(at: &Path, notes: &mut Notes) {
    use rustix::mm::{MapFlags, MsyncFlags, ProtFlags, mmap, msync, munmap};
    let path = at.join("file");
    let file = open(&path);
    file.write_all_at(&[1; 5000], 0).unwrap();
    let read_only = File::open(&path).unwrap();
    let write_only = File::options().write(true).open(&path).unwrap();
    let both = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: new maps at addresses of the kernel's choice, within whose pages all accesses lie; unmapped at the end.
    unsafe {
        let map = |file: &File, protection, flags| mmap(std::ptr::null_mut(), 8192, protection, flags, file, 0);
        for (name, file) in [("both", &file), ("read-only", &read_only), ("write-only", &write_only)] {
            for (kind, flags) in [("shared", MapFlags::SHARED), ("private", MapFlags::PRIVATE)] {
                for protection in [ProtFlags::READ, both] {
                    let outcome = map(file, protection, flags);
                    notes.note(format!("{name} {kind} {protection:?}"), outcome.map(drop));
                    if let Ok(start) = outcome {
                        munmap(start, 8192).unwrap();
                    }
                }
            }
        }
        let start = map(&file, both, MapFlags::SHARED).unwrap().cast::<u8>();
        // Stored behind the end, within the last page: gone when the file grows.
        *start.add(5001) = 9;
        *start.add(10) = 5;
        notes.note("msync", errno(msync(start.cast(), 8192, MsyncFlags::SYNC)));
        file.set_len(6000).unwrap();
        let mut bytes = [0; 2000];
        file.read_exact_at(&mut bytes[..1000], 5000).unwrap();
        notes.note("behind the former end", bytes[..1000].iter().all(|byte| *byte == 0));
        file.read_exact_at(&mut bytes[..1], 10).unwrap();
        notes.note("stored", bytes[0]);
        // A call's write is seen by the map, also after others cut the file and let it grow again.
        file.write_all_at(&[3; 100], 4096).unwrap();
        notes.note("written", *start.add(4100));
        file.set_len(4096).unwrap();
        file.set_len(8192).unwrap();
        notes.note("cut and grown", *start.add(4100));
        past(&path);
        *start.add(20) = 6;
        msync(start.cast(), 8192, MsyncFlags::SYNC).unwrap();
        let about = file.metadata().unwrap();
        notes.note("times", (about.mtime() > 1_000_000_000, about.ctime() > 1_000_000_000));
        munmap(start.cast(), 8192).unwrap();
    }
    notes.note(
        "bytes",
        fs::read(&path).map(|bytes| (bytes.len(), bytes.iter().map(|byte| u32::from(*byte)).sum::<u32>())).ok(),
    );
}

fn vectors(at: &Path, notes: &mut Notes) {
    use std::io::{IoSlice, IoSliceMut};
    let file = open(&at.join("file"));
    let parts = [IoSlice::new(b"one "), IoSlice::new(b""), IoSlice::new(b"two "), IoSlice::new(b"three")];
    notes.note("pwritev", rustix::io::pwritev(&file, &parts, 3));
    let (mut a, mut b) = ([0; 5], [0; 100]);
    notes.note("preadv", rustix::io::preadv(&file, &mut [IoSliceMut::new(&mut a), IoSliceMut::new(&mut b)], 2));
    notes.note("read", (a, &b[..12]));
    notes.note("none", rustix::io::pwritev(&file, &[], 0));
    // A part of it cannot be read: what could be is written, or nothing.
    let bad = [
        libc::iovec { iov_base: b"good".as_ptr().cast_mut().cast(), iov_len: 4 },
        libc::iovec { iov_base: 8 as *mut libc::c_void, iov_len: 4 },
    ];
    // SAFETY: the kernel finds that nothing is mapped at the second address.
    let written = unsafe { libc::pwritev(file.as_raw_fd(), bad.as_ptr(), 2, 0) };
    notes.note("bad part", written == 4 || written == -1);
}

fn attribute_limits(at: &Path, notes: &mut Notes) {
    let path = at.join("file");
    fs::write(&path, "").unwrap();
    std::os::unix::fs::symlink("file", at.join("symlink")).unwrap();
    for length in [1, 249, 250, 251, 300] {
        let name = format!("user.{}", "n".repeat(length));
        let set = errno(rustix::fs::setxattr(&path, &name, b"v", XattrFlags::empty()));
        notes.note(format!("name of {length}"), (set, rustix::fs::getxattr(&path, &name, &mut [0; 10])));
    }
    for length in [0, 1, 3000, 65_537] {
        let value = vec![7; length];
        let set = errno(rustix::fs::setxattr(&path, "user.v", &value, XattrFlags::empty()));
        notes.note(format!("value of {length}"), (set, rustix::fs::getxattr(&path, "user.v", &mut [0; 70_000])));
    }
    for (name, flags) in [
        ("user.v", XattrFlags::CREATE),
        ("user.w", XattrFlags::REPLACE),
        ("user.v", XattrFlags::CREATE | XattrFlags::REPLACE),
        ("user.w", XattrFlags::CREATE | XattrFlags::REPLACE),
        ("user.v", XattrFlags::all()),
    ] {
        notes.note(format!("{name} {flags:?}"), errno(rustix::fs::setxattr(&path, name, b"x", flags)));
    }
    for name in ["user.", "user", "", "other.x", "trusted.x", "security.x"] {
        notes.note(format!("name {name}"), errno(rustix::fs::setxattr(&path, name, b"x", XattrFlags::empty())));
        notes.note(format!("no {name}"), rustix::fs::getxattr(&path, format!("{name}y"), &mut [0; 10]));
    }
    for name in ["user.x", "trusted.x"] {
        let link = at.join("symlink");
        notes
            .note(format!("{name} of a symlink"), errno(rustix::fs::lsetxattr(&link, name, b"x", XattrFlags::empty())));
        notes.note(format!("{name} through it"), errno(rustix::fs::setxattr(&link, name, b"x", XattrFlags::empty())));
    }
    let listed = |user: u32| {
        let list = || {
            let mut bytes = vec![0u8; 4000];
            let count = rustix::fs::listxattr(&path, &mut bytes).unwrap();
            let mut names: Vec<String> =
                String::from_utf8_lossy(&bytes[..count]).split('\0').map(str::to_owned).collect();
            names.retain(|name| !name.is_empty() && !name.starts_with("security.selinux"));
            names.sort();
            names
        };
        if user == 0 { list() } else { super::as_user(user, user, list) }
    };
    notes.note("listed", listed(0));
    notes.note("listed to others", listed(1000));
}

fn leases(at: &Path, notes: &mut Notes) {
    let path = at.join("file");
    fs::write(&path, "x").unwrap();
    let reader = File::open(&path).unwrap();
    // SAFETY: these calls take and give numbers.
    let lease = |file: &File, kind: i32| unsafe {
        (libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, kind), libc::fcntl(file.as_raw_fd(), libc::F_GETLEASE))
    };
    notes.note("read", lease(&reader, libc::F_RDLCK));
    notes.note("none", lease(&reader, libc::F_UNLCK));
    let writer = open(&path);
    notes.note("read beside a writer", lease(&reader, libc::F_RDLCK));
    drop(reader);
    notes.note("write", lease(&writer, libc::F_WRLCK));
    notes.note("none again", lease(&writer, libc::F_UNLCK));
}
