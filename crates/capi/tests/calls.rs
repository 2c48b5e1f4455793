//! Every function of the header, on a volume of its own.

#[macro_use]
mod common;

use common::{attach, c, error_text, make_volume};
use gannet::attributes::*;
use gannet::data::*;
use gannet::descriptors::*;
use gannet::directory::*;
use gannet::locks::*;
use gannet::maps::*;
use gannet::names::*;
use gannet::sharing::*;
use gannet::space::*;
use gannet::vectors::*;
use gannet::xattrs::*;
use libc::{O_APPEND, O_CREAT, O_DIRECTORY, O_EXCL, O_PATH, O_RDONLY, O_RDWR, O_TRUNC, O_WRONLY};
use std::ptr::null;

fn stat(volume: &common::Attached, path: &str) -> Stat {
    let mut found = Stat::default();
    good!(gannet_stat, volume, c(path).as_ptr(), &mut found);
    found
}

#[test]
fn bytes_go_in_and_come_out() {
    for copy_on_write in [false, true] {
        let file = make_volume(copy_on_write);
        let volume = attach(&file);
        let fd = good!(gannet_open, volume, c("/a").as_ptr(), O_RDWR | O_CREAT, 0o640) as i32;
        assert_eq!(fd, 0);
        let bytes: Vec<u8> = (0..100_000u32).map(|index| (index % 251) as u8).collect();
        assert_eq!(call!(gannet_write, volume, fd, bytes.as_ptr().cast(), bytes.len()), 100_000);
        assert_eq!(call!(gannet_lseek, volume, fd, 0, libc::SEEK_CUR), 100_000);
        assert_eq!(call!(gannet_lseek, volume, fd, -50_000, libc::SEEK_END), 50_000);
        let mut back = vec![0u8; 200_000];
        assert_eq!(call!(gannet_read, volume, fd, back.as_mut_ptr().cast(), back.len()), 50_000);
        assert_eq!(back[..50_000], bytes[50_000..]);
        assert_eq!(call!(gannet_read, volume, fd, back.as_mut_ptr().cast(), back.len()), 0);
        assert_eq!(call!(gannet_pread, volume, fd, back.as_mut_ptr().cast(), 10, 99_995), 5);
        assert_eq!(back[..5], bytes[99_995..]);
        assert_eq!(call!(gannet_pwrite, volume, fd, b"xyz".as_ptr().cast(), 3, 1), 3);
        good!(gannet_lseek, volume, fd, 0, libc::SEEK_SET);
        let (mut one, mut two) = ([0u8; 2], [0u8; 4]);
        let into = [
            libc::iovec { iov_base: one.as_mut_ptr().cast(), iov_len: 2 },
            libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 },
            libc::iovec { iov_base: two.as_mut_ptr().cast(), iov_len: 4 },
        ];
        assert_eq!(call!(gannet_readv, volume, fd, into.as_ptr(), 3), 6);
        assert_eq!((one, two), ([0, b'x'], [b'y', b'z', 4, 5]));
        assert_eq!(call!(gannet_writev, volume, fd, into.as_ptr(), 3), 6);
        assert_eq!(call!(gannet_pread, volume, fd, back.as_mut_ptr().cast(), 6, 6), 6);
        assert_eq!(&back[..6], [0, b'x', b'y', b'z', 4, 5]);

        good!(gannet_ftruncate, volume, fd, 1 << 20);
        assert_eq!(call!(gannet_lseek, volume, fd, 200_000, libc::SEEK_DATA), -i64::from(libc::ENXIO));
        assert_eq!(call!(gannet_lseek, volume, fd, 0, libc::SEEK_HOLE), 102_400);
        good!(gannet_fallocate, volume, fd, libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE, 0, 4096);
        assert_eq!(call!(gannet_lseek, volume, fd, 0, libc::SEEK_DATA), 4096);
        let twin = good!(gannet_open, volume, c("twin").as_ptr(), O_RDWR | O_CREAT, 0o600) as i32;
        good!(gannet_clone_range, volume, fd, 4096, twin, 0, 8192);
        good!(gannet_pwrite, volume, twin, b"own".as_ptr().cast(), 3, 0);
        assert_eq!(call!(gannet_pread, volume, fd, back.as_mut_ptr().cast(), 4, 4096), 4);
        assert_eq!(back[..4], bytes[4096..4100]);
        assert_eq!(call!(gannet_pread, volume, twin, back.as_mut_ptr().cast(), 8192, 0), 8192);
        assert_eq!((&back[..3], &back[3..8192]), (&b"own"[..], &bytes[4099..12_288]));
        assert_eq!(call!(gannet_clone_range, volume, fd, 1, twin, 0, 4096), -i64::from(libc::EINVAL));
        assert_eq!(call!(gannet_clone_range, volume, fd, 0, 99, 0, 4096), -i64::from(libc::EBADF));
        good!(gannet_close, volume, twin);
        good!(gannet_fsync, volume, fd);
        good!(gannet_sync, volume);
        assert_eq!(stat(&volume, "a").size, 1 << 20);
        good!(gannet_truncate, volume, c("a").as_ptr(), 3);
        assert_eq!(stat(&volume, "a").size, 3);

        let appending = good!(gannet_open, volume, c("a").as_ptr(), O_WRONLY | O_APPEND, 0) as i32;
        assert_eq!(appending, 1);
        assert_eq!(call!(gannet_write, volume, appending, b"end".as_ptr().cast(), 3), 3);
        assert_eq!(call!(gannet_pwrite, volume, appending, b"!".as_ptr().cast(), 1, 0), 1);
        assert_eq!(call!(gannet_pread, volume, fd, back.as_mut_ptr().cast(), 10, 3), 4);
        assert_eq!(&back[..4], b"end!");
        assert_eq!(call!(gannet_read, volume, appending, back.as_mut_ptr().cast(), 1), -i64::from(libc::EBADF));
        good!(gannet_close, volume, fd);
        // What is open at detach is closed by it; afterwards everything is still there.
        drop(volume);
        let volume = attach(&file);
        assert_eq!(stat(&volume, "a").size, 7);
    }
}

#[test]
fn duplicates_share_the_offset_and_removed_files_live_while_open() {
    let file = make_volume(false);
    let volume = attach(&file);
    let fd = good!(gannet_open, volume, c("a").as_ptr(), O_RDWR | O_CREAT | O_EXCL, 0o600) as i32;
    let other = good!(gannet_dup, volume, fd) as i32;
    good!(gannet_write, volume, fd, b"12345678".as_ptr().cast(), 8);
    assert_eq!(call!(gannet_lseek, volume, other, 0, libc::SEEK_CUR), 8);
    let before = free_blocks(&volume);
    let bytes = vec![7u8; 1 << 20];
    good!(gannet_write, volume, fd, bytes.as_ptr().cast(), bytes.len());
    good!(gannet_close, volume, fd);
    assert_eq!(call!(gannet_fsync, volume, fd), -i64::from(libc::EBADF));
    good!(gannet_unlink, volume, c("a").as_ptr());
    let mut found = Stat::default();
    good!(gannet_fstat, volume, other, &mut found);
    assert_eq!((found.links, found.size), (0, 8 + (1 << 20)));
    assert!(free_blocks(&volume) <= before - 256);
    good!(gannet_close, volume, other);
    assert!(free_blocks(&volume) >= before);
}

#[test]
fn files_without_a_name_are_gone_with_their_descriptor() {
    let file = make_volume(false);
    let volume = attach(&file);
    let before = free_blocks(&volume);
    let fd = good!(gannet_open, volume, c("/").as_ptr(), libc::O_TMPFILE | O_RDWR, 0o600) as i32;
    let bytes = vec![7u8; 1 << 20];
    good!(gannet_write, volume, fd, bytes.as_ptr().cast(), bytes.len());
    assert!(free_blocks(&volume) <= before - 256);
    good!(gannet_close, volume, fd);
    assert!(free_blocks(&volume) >= before);
}

/// Attaching again and again leaves neither descriptors of the kernel, nor maps, nor anything in `/dev/shm`.
#[test]
fn detaching_leaves_nothing() {
    let file = make_volume(false);
    let path = file.path().to_str().expect("UTF-8").to_owned();
    let of_volume = || {
        let names = std::fs::read_dir("/proc/self/fd").expect("/proc").filter_map(|entry| {
            let target = std::fs::read_link(entry.ok()?.path()).ok()?;
            target.to_str().is_some_and(|target| target.contains(&path)).then_some(())
        });
        let maps = std::fs::read_to_string("/proc/self/maps").expect("/proc");
        names.count() + maps.lines().filter(|line| line.contains(&path)).count()
    };
    for round in 0..10 {
        let volume = attach(&file);
        assert!(of_volume() > 0);
        let fd = good!(gannet_open, volume, c("a").as_ptr(), O_RDWR | O_CREAT, 0o600) as i32;
        assert_eq!(fd, 0);
        good!(gannet_pwrite, volume, fd, [round; 10].as_ptr().cast(), 10, 0);
        let mut address = std::ptr::null_mut();
        good!(gannet_mmap, volume, fd, 0, 10, 1, &mut address);
        drop(volume);
        assert_eq!(of_volume(), 0, "round {round}");
    }
}

fn free_blocks(volume: &common::Attached) -> u64 {
    let mut all = Statfs::default();
    good!(gannet_statfs, volume, &mut all);
    assert!(all.block_size == 4096 && all.blocks >= all.blocks_free && all.name_max == 255);
    all.blocks_free
}

#[test]
fn names_are_made_moved_and_removed() {
    let file = make_volume(false);
    let volume = attach(&file);
    good!(gannet_mkdir, volume, c("d").as_ptr(), 0o755);
    good!(gannet_mkdir, volume, c("/d/e").as_ptr(), 0o700);
    let directory = good!(gannet_open, volume, c("d").as_ptr(), O_RDONLY | O_DIRECTORY, 0) as i32;
    let flags = O_WRONLY | O_CREAT | O_TRUNC;
    let fd = good!(gannet_openat, volume, directory, c("e/f").as_ptr(), flags, 0o644) as i32;
    good!(gannet_close, volume, fd);
    let fd = good!(gannet_openat, volume, GANNET_AT_ROOT, c("d/e/f").as_ptr(), O_RDONLY, 0) as i32;
    good!(gannet_close, volume, fd);
    good!(gannet_link, volume, c("d/e/f").as_ptr(), c("d/g").as_ptr());
    assert_eq!(stat(&volume, "d/g").links, 2);
    good!(gannet_symlink, volume, c("/d/g").as_ptr(), c("link").as_ptr());
    assert_eq!(stat(&volume, "link").inode, stat(&volume, "d/e/f").inode);
    let mut found = Stat::default();
    good!(gannet_lstat, volume, c("link").as_ptr(), &mut found);
    assert_eq!(found.mode & libc::S_IFMT, libc::S_IFLNK);
    let mut target = [0u8; 3];
    assert_eq!(call!(gannet_readlink, volume, c("link").as_ptr(), target.as_mut_ptr().cast(), 3), 3);
    assert_eq!(&target, b"/d/");
    // Above the root is the root.
    assert_eq!(stat(&volume, "../../d/../d/g").inode, stat(&volume, "d/g").inode);

    good!(gannet_rename, volume, c("d/g").as_ptr(), c("h").as_ptr(), 0);
    let no_replace = libc::RENAME_NOREPLACE;
    let exists = call!(gannet_rename, volume, c("d/e/f").as_ptr(), c("h").as_ptr(), no_replace);
    assert_eq!(exists, -i64::from(libc::EEXIST));
    good!(gannet_rename, volume, c("d").as_ptr(), c("h").as_ptr(), libc::RENAME_EXCHANGE);
    assert_eq!(stat(&volume, "h/e").mode & libc::S_IFMT, libc::S_IFDIR);
    assert_eq!(call!(gannet_rmdir, volume, c("h").as_ptr()), -i64::from(libc::ENOTEMPTY));
    good!(gannet_unlink, volume, c("h/e/f").as_ptr());
    good!(gannet_rmdir, volume, c("h/e").as_ptr());
    good!(gannet_close, volume, directory);
    good!(gannet_rmdir, volume, c("h").as_ptr());
    assert_eq!(call!(gannet_access, volume, c("h").as_ptr(), libc::F_OK), -i64::from(libc::ENOENT));
    good!(gannet_access, volume, c("d").as_ptr(), libc::R_OK | libc::W_OK);
}

#[test]
fn attributes_are_told_and_changed() {
    let file = make_volume(false);
    let volume = attach(&file);
    let path = c("a");
    let fd = good!(gannet_open, volume, path.as_ptr(), O_RDWR | O_CREAT, 0o666) as i32;
    good!(gannet_chmod, volume, path.as_ptr(), 0o4711);
    assert_eq!(stat(&volume, "a").mode, libc::S_IFREG | 0o4711);
    good!(gannet_fchmod, volume, fd, 0o600);
    let (user, group) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    good!(gannet_chown, volume, path.as_ptr(), user, u32::MAX);
    good!(gannet_fchown, volume, fd, u32::MAX, group);
    good!(gannet_symlink, volume, c("nowhere").as_ptr(), c("l").as_ptr());
    good!(gannet_lchown, volume, c("l").as_ptr(), user, group);
    let times = [
        libc::timespec { tv_sec: 1_000_000_000, tv_nsec: 123_456_789 },
        libc::timespec { tv_sec: -1, tv_nsec: 999_999_999 },
    ];
    good!(gannet_utimens, volume, path.as_ptr(), times.as_ptr(), 0);
    let found = stat(&volume, "a");
    assert_eq!((found.accessed, found.modified), (1_000_000_000_123_456_789, -1));
    assert_eq!((found.user, found.group, found.mode), (user, group, libc::S_IFREG | 0o600));
    let times = [libc::timespec { tv_sec: 5, tv_nsec: 0 }, libc::timespec { tv_sec: 0, tv_nsec: libc::UTIME_OMIT }];
    good!(gannet_futimens, volume, fd, times.as_ptr());
    let found = stat(&volume, "a");
    assert_eq!((found.accessed, found.modified), (5_000_000_000, -1));
    good!(gannet_utimens, volume, c("l").as_ptr(), null(), libc::AT_SYMLINK_NOFOLLOW);
    assert_eq!(call!(gannet_utimens, volume, c("l").as_ptr(), null(), 0), -i64::from(libc::ENOENT));
    let bad = [libc::timespec { tv_sec: 0, tv_nsec: 1_000_000_000 }; 2];
    assert_eq!(call!(gannet_futimens, volume, fd, bad.as_ptr()), -i64::from(libc::EINVAL));
    assert!(found.created > 1_500_000_000_000_000_000 && found.changed >= found.created);
}

#[test]
fn extended_attributes_by_path_and_descriptor() {
    let file = make_volume(false);
    let volume = attach(&file);
    let path = c("a");
    let fd = good!(gannet_open, volume, path.as_ptr(), O_RDWR | O_CREAT, 0o600) as i32;
    let (one, two) = (c("user.one"), c("user.two"));
    good!(gannet_setxattr, volume, path.as_ptr(), one.as_ptr(), b"value".as_ptr().cast(), 5, libc::XATTR_CREATE);
    good!(gannet_fsetxattr, volume, fd, two.as_ptr(), null(), 0, 0);
    let again = call!(gannet_fsetxattr, volume, fd, one.as_ptr(), null(), 0, libc::XATTR_CREATE);
    assert_eq!(again, -i64::from(libc::EEXIST));
    let mut room = [0u8; 64];
    assert_eq!(call!(gannet_getxattr, volume, path.as_ptr(), one.as_ptr(), room.as_mut_ptr().cast(), 64), 5);
    assert_eq!(&room[..5], b"value");
    assert_eq!(call!(gannet_fgetxattr, volume, fd, one.as_ptr(), std::ptr::null_mut(), 0), 5);
    assert_eq!(call!(gannet_fgetxattr, volume, fd, two.as_ptr(), room.as_mut_ptr().cast(), 64), 0);
    let short = call!(gannet_fgetxattr, volume, fd, one.as_ptr(), room.as_mut_ptr().cast(), 4);
    assert_eq!(short, -i64::from(libc::ERANGE));
    for length in [
        call!(gannet_listxattr, volume, path.as_ptr(), room.as_mut_ptr().cast(), 64),
        call!(gannet_flistxattr, volume, fd, room.as_mut_ptr().cast(), 64),
    ] {
        let mut names: Vec<&[u8]> = room[..length as usize].split(|byte| *byte == 0).collect();
        names.sort_unstable();
        assert_eq!(names, [b"", &b"user.one"[..], b"user.two"]);
    }
    good!(gannet_removexattr, volume, path.as_ptr(), one.as_ptr());
    good!(gannet_fremovexattr, volume, fd, two.as_ptr());
    assert_eq!(call!(gannet_fremovexattr, volume, fd, two.as_ptr()), -i64::from(libc::ENODATA));
    assert_eq!(call!(gannet_listxattr, volume, path.as_ptr(), std::ptr::null_mut(), 0), 0);
}

#[test]
fn a_directory_is_read_in_pieces_while_it_shrinks() {
    const NAMES: usize = 500;
    let file = make_volume(false);
    let volume = attach(&file);
    good!(gannet_mkdir, volume, c("d").as_ptr(), 0o755);
    for number in 0..NAMES {
        let path = c(&format!("d/name-{number}"));
        let fd = good!(gannet_open, volume, path.as_ptr(), O_WRONLY | O_CREAT, 0o600) as i32;
        good!(gannet_close, volume, fd);
    }
    let fd = good!(gannet_open, volume, c("d").as_ptr(), O_RDONLY, 0) as i32;
    // SAFETY: numbers.
    let mut entries = vec![unsafe { std::mem::zeroed::<Entry>() }; 7];
    let (mut cookie, mut seen) = (0, Vec::new());
    loop {
        let count = good!(gannet_readdir, volume, fd, &mut cookie, entries.as_mut_ptr(), entries.len()) as usize;
        for entry in &entries[..count] {
            let name: Vec<u8> = entry.name[..entry.name_length as usize].iter().map(|byte| *byte as u8).collect();
            assert_eq!((entry.kind, entry.name[name.len()]), (u32::from(libc::DT_REG), 0));
            seen.push(String::from_utf8(name).expect("UTF-8"));
        }
        if count == 0 {
            break;
        }
        let last = c(&format!("d/{}", seen.last().expect("one")));
        good!(gannet_unlink, volume, last.as_ptr());
    }
    seen.sort_unstable();
    seen.dedup();
    assert_eq!(seen.len(), NAMES);
    assert_eq!(call!(gannet_readdir, volume, fd, &mut cookie, entries.as_mut_ptr(), 0), -i64::from(libc::EINVAL));
    let by_name = good!(gannet_open, volume, c("d").as_ptr(), O_PATH, 0) as i32;
    let result = call!(gannet_readdir, volume, by_name, &mut cookie, entries.as_mut_ptr(), 1);
    assert_eq!(result, -i64::from(libc::EBADF), "{}", error_text());
}

#[test]
fn locks_conflict_between_descriptions() {
    let file = make_volume(false);
    let volume = attach(&file);
    let path = c("a");
    let one = good!(gannet_open, volume, path.as_ptr(), O_RDWR | O_CREAT, 0o600) as i32;
    let two = good!(gannet_open, volume, path.as_ptr(), O_RDWR, 0) as i32;
    let again = -i64::from(libc::EAGAIN);
    good!(gannet_flock, volume, one, libc::LOCK_EX);
    assert_eq!(call!(gannet_flock, volume, two, libc::LOCK_SH | libc::LOCK_NB), again);
    good!(gannet_flock, volume, one, libc::LOCK_SH);
    good!(gannet_flock, volume, two, libc::LOCK_SH | libc::LOCK_NB);

    // SAFETY: numbers.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    (lock.l_type, lock.l_start, lock.l_len) = (libc::F_WRLCK as _, 10, 10);
    good!(gannet_lock, volume, one, libc::F_OFD_SETLK, &mut lock);
    let mut other = lock;
    other.l_start = 0;
    other.l_len = 11;
    assert_eq!(call!(gannet_lock, volume, two, libc::F_OFD_SETLK, &mut other), again);
    good!(gannet_lock, volume, two, libc::F_OFD_GETLK, &mut other);
    assert_eq!((other.l_type, other.l_start, other.l_len, other.l_pid), (libc::F_WRLCK as _, 10, 10, -1));
    (other.l_start, other.l_len, other.l_pid) = (0, 10, 0);
    good!(gannet_lock, volume, two, libc::F_OFD_SETLK, &mut other);
    // A process's own locks are not in each other's way, but in that of the description's.
    assert_eq!(call!(gannet_lock, volume, two, libc::F_SETLK, &mut lock), again);
    good!(gannet_close, volume, one);
    good!(gannet_lock, volume, two, libc::F_SETLK, &mut lock);
    assert_eq!(call!(gannet_lock, volume, two, 4711, &mut lock), -i64::from(libc::EINVAL));
}

#[test]
fn threads_share_a_handle() {
    const THREADS: usize = 4;
    const ROUNDS: usize = 200;
    let file = make_volume(false);
    let volume = attach(&file);
    let log = good!(gannet_open, volume, c("log").as_ptr(), O_WRONLY | O_CREAT, 0o600) as i32;
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let volume = &volume;
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    let path = c(&format!("{thread}-{}", round % 3));
                    let fd = good!(gannet_open, volume, path.as_ptr(), O_RDWR | O_CREAT, 0o600) as i32;
                    good!(gannet_pwrite, volume, fd, [thread as u8; 100].as_ptr().cast(), 100, 0);
                    // One offset for all threads: records lie side by side.
                    good!(gannet_write, volume, log, [thread as u8 + 1; 16].as_ptr().cast(), 16);
                    let mut back = [255u8; 100];
                    good!(gannet_read, volume, fd, back.as_mut_ptr().cast(), 100);
                    assert_eq!(back, [thread as u8; 100]);
                    good!(gannet_close, volume, fd);
                    good!(gannet_unlink, volume, path.as_ptr());
                    assert_eq!(call!(gannet_open, volume, path.as_ptr(), O_RDONLY, 0), -i64::from(libc::ENOENT));
                    assert!(error_text().contains(path.to_str().expect("UTF-8")), "{}", error_text());
                }
            });
        }
    });
    let mut all = vec![0u8; THREADS * ROUNDS * 16 + 1];
    let read = good!(gannet_open, volume, c("log").as_ptr(), O_RDONLY, 0) as i32;
    assert_eq!(good!(gannet_read, volume, read, all.as_mut_ptr().cast(), all.len()) as usize, all.len() - 1);
    for thread in 0..THREADS {
        let records = all.chunks_exact(16).filter(|record| **record == [thread as u8 + 1; 16]).count();
        assert_eq!(records, ROUNDS);
    }
}

/// What is put in a file's place by `rename`, again and again, is always there to be opened.
#[test]
fn a_name_that_is_replaced_is_never_missing() {
    let file = make_volume(false);
    let volume = attach(&file);
    // The whole handle is shared, not the pointer in it.
    let handle = &volume;
    let make = |name: &str| {
        let volume: &common::Attached = handle;
        let fd = good!(gannet_open, volume, c(name).as_ptr(), O_RDWR | O_CREAT, 0o600) as i32;
        good!(gannet_close, volume, fd);
    };
    make("file");
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let volume: &common::Attached = handle;
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                make("new");
                good!(gannet_rename, volume, c("new").as_ptr(), c("file").as_ptr(), 0);
            }
        });
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            for round in 0..40_000 {
                let flags = if round % 2 == 0 { O_RDONLY } else { O_RDWR | O_CREAT };
                let fd = good!(gannet_open, volume, c("file").as_ptr(), flags, 0o600) as i32;
                good!(gannet_close, volume, fd);
            }
        }));
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        outcome.expect("it is always there");
    });
}

#[test]
fn an_open_without_a_number_left_makes_and_cuts_nothing() {
    let file = make_volume(false);
    let volume = attach(&file);
    let fd = good!(gannet_open, volume, c("precious").as_ptr(), O_RDWR | O_CREAT, 0o600) as i32;
    good!(gannet_write, volume, fd, b"content".as_ptr().cast(), 7);
    while call!(gannet_dup, volume, fd) >= 0 {}
    let refused = -i64::from(libc::EMFILE);
    assert_eq!(call!(gannet_open, volume, c("precious").as_ptr(), O_RDWR | O_TRUNC, 0), refused);
    assert_eq!(stat(&volume, "precious").size, 7);
    assert_eq!(call!(gannet_open, volume, c("new").as_ptr(), O_RDWR | O_CREAT | O_EXCL, 0o600), refused);
    assert_eq!(call!(gannet_access, volume, c("new").as_ptr(), libc::F_OK), -i64::from(libc::ENOENT));
    good!(gannet_close, volume, 1000);
    assert_eq!(call!(gannet_open, volume, c("new").as_ptr(), O_RDWR | O_CREAT | O_EXCL, 0o600), 1000);
}

#[test]
fn deduplication_up_to_the_end_compares() {
    let file = make_volume(false);
    let volume = attach(&file);
    let [one, two] = ["one", "two"].map(|name| {
        let fd = good!(gannet_open, volume, c(name).as_ptr(), O_RDWR | O_CREAT, 0o600) as i32;
        good!(gannet_pwrite, volume, fd, [0x42u8; 10_000].as_ptr().cast(), 10_000, 0);
        fd
    });
    assert_eq!(call!(gannet_dedupe_range, volume, one, 0, two, 0, 0), 1);
    good!(gannet_pwrite, volume, two, b"x".as_ptr().cast(), 1, 9_999);
    assert_eq!(call!(gannet_dedupe_range, volume, one, 0, two, 0, 0), 0);
    assert_eq!(call!(gannet_dedupe_range, volume, one, 20_000, two, 0, 0), -i64::from(libc::EINVAL));
}

/// On a disk, what is written through a descriptor with `O_DSYNC` or `O_SYNC` is synced.
#[test]
fn synced_writes_sync_a_file_on_a_disk() {
    let memory = make_volume(false);
    let disk =
        common::VolumeFile(std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(memory.path().file_name().unwrap()));
    std::fs::copy(memory.path(), disk.path()).unwrap();
    for (file, wanted) in [(&memory, 0), (&disk, 1)] {
        let volume = attach(file);
        let looks = gannet_open::open_volume(file.path(), gannet_open::Options::default()).unwrap();
        if wanted > 0
            && gannet_logfs::open_medium(file.path(), true).unwrap().kind() != gannet_media::MediumKind::DiskFile
        {
            return eprintln!("skipped: {} is not on a disk", file.path().display());
        }
        let syncs = || {
            let all = looks.operations().unwrap();
            all.iter().find(|one| one.operation == gannet_logfs::Operation::Sync).unwrap().calls
        };
        for (flags, wanted) in [(0, 0), (libc::O_DSYNC, wanted), (libc::O_SYNC | libc::O_APPEND, wanted)] {
            let fd = good!(gannet_open, volume, c("synced").as_ptr(), O_RDWR | O_CREAT | flags, 0o600) as i32;
            let before = syncs();
            good!(gannet_write, volume, fd, b"abc".as_ptr().cast(), 3);
            assert_eq!(syncs() - before, wanted, "{flags:#o}");
            good!(gannet_close, volume, fd);
        }
    }
}
