//! Calls relative to directories, nodes of all types, flags of inodes, copies, and what descriptors tell of themselves.

#[macro_use]
mod common;

use common::{Attached, attach, c, error_text, make_volume};
use gannet::attributes::*;
use gannet::data::*;
use gannet::descriptors::*;
use gannet::flags::*;
use gannet::names::*;
use gannet::relative::*;
use gannet::sharing::*;
use gannet::space::*;
use gannet::vectors::*;
use gannet::xattrs::*;
use libc::{
    AT_EMPTY_PATH, AT_SYMLINK_FOLLOW, AT_SYMLINK_NOFOLLOW, O_APPEND, O_CREAT, O_DIRECTORY, O_EXCL, O_NOATIME,
    O_NOFOLLOW, O_PATH, O_RDONLY, O_RDWR, O_TMPFILE, O_WRONLY,
};
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicUsize, Ordering};

fn stat_at(volume: &Attached, directory: i32, path: &str, flags: i32) -> Result<Stat, i32> {
    let mut found = Stat::default();
    match call!(gannet_fstatat, volume, directory, c(path).as_ptr(), &mut found, flags) {
        0 => Ok(found),
        error => Err(-error as i32),
    }
}

fn open(volume: &Attached, path: &str, flags: i32) -> i32 {
    good!(gannet_open, volume, c(path).as_ptr(), flags, 0o644) as i32
}

macro_rules! fails {
    ($errno:ident, $function:ident, $volume:expr $(, $argument:expr)* $(,)?) => {
        assert_eq!(call!($function, $volume $(, $argument)*), -i64::from(libc::$errno), "{}", stringify!($function))
    };
}

#[test]
fn names_are_made_moved_and_removed_from_a_directory() {
    let file = make_volume(false);
    let volume = attach(&file);
    good!(gannet_mkdirat, volume, GANNET_AT_ROOT, c("d").as_ptr(), 0o755);
    let d = open(&volume, "d", O_RDONLY | O_DIRECTORY);
    let by_name = open(&volume, "d", O_PATH);
    good!(gannet_mkdirat, volume, by_name, c("e").as_ptr(), 0o750);
    assert_eq!(stat_at(&volume, d, "e", 0).unwrap().mode, libc::S_IFDIR | 0o750);
    good!(gannet_openat, volume, d, c("f").as_ptr(), O_CREAT | O_WRONLY, 0o644);
    good!(gannet_renameat2, volume, d, c("f").as_ptr(), GANNET_AT_ROOT, c("g").as_ptr(), 0);
    fails!(EEXIST, gannet_renameat2, volume, d, c("e").as_ptr(), d, c("../g").as_ptr(), libc::RENAME_NOREPLACE);
    good!(gannet_symlinkat, volume, c("../g").as_ptr(), d, c("link").as_ptr());
    let mut target = [0 as libc::c_char; 16];
    assert_eq!(call!(gannet_readlinkat, volume, d, c("link").as_ptr(), target.as_mut_ptr(), 16), 4);
    let link = good!(gannet_openat, volume, d, c("link").as_ptr(), O_PATH | O_NOFOLLOW, 0) as i32;
    assert_eq!(call!(gannet_readlinkat, volume, link, c("").as_ptr(), target.as_mut_ptr(), 16), 4);
    fails!(ENOENT, gannet_readlink, volume, c("").as_ptr(), target.as_mut_ptr(), 16);
    // A link to the link, or to what it leads to.
    good!(gannet_linkat, volume, d, c("link").as_ptr(), d, c("second").as_ptr(), 0);
    good!(gannet_linkat, volume, d, c("link").as_ptr(), d, c("third").as_ptr(), AT_SYMLINK_FOLLOW);
    assert_eq!(stat_at(&volume, d, "second", AT_SYMLINK_NOFOLLOW).unwrap().mode & libc::S_IFMT, libc::S_IFLNK);
    assert_eq!(stat_at(&volume, d, "third", AT_SYMLINK_NOFOLLOW).unwrap().links, 2);
    fails!(EINVAL, gannet_linkat, volume, d, c("third").as_ptr(), d, c("x").as_ptr(), 1 << 20);
    // A name for what had none, unless it was made for good so.
    let unnamed = open(&volume, "d", O_TMPFILE | O_RDWR);
    good!(gannet_linkat, volume, unnamed, c("").as_ptr(), d, c("named").as_ptr(), AT_EMPTY_PATH);
    assert_eq!(stat_at(&volume, d, "named", 0).unwrap().links, 1);
    let for_good = open(&volume, "d", O_TMPFILE | O_RDWR | O_EXCL);
    fails!(ENOENT, gannet_linkat, volume, for_good, c("").as_ptr(), d, c("x").as_ptr(), AT_EMPTY_PATH);
    fails!(EISDIR, gannet_unlinkat, volume, d, c("e").as_ptr(), 0);
    fails!(ENOTDIR, gannet_unlinkat, volume, d, c("named").as_ptr(), libc::AT_REMOVEDIR);
    fails!(EINVAL, gannet_unlinkat, volume, d, c("named").as_ptr(), 1);
    good!(gannet_unlinkat, volume, d, c("e").as_ptr(), libc::AT_REMOVEDIR);
    for name in ["named", "link", "second", "third"] {
        good!(gannet_unlinkat, volume, d, c(name).as_ptr(), 0);
    }
    good!(gannet_rmdir, volume, c("d").as_ptr());
    // The directory does not count for a path from the root; else it must be one.
    good!(gannet_faccessat, volume, 77, c("/g").as_ptr(), libc::R_OK, 0);
    fails!(EBADF, gannet_faccessat, volume, 77, c("g").as_ptr(), libc::R_OK, 0);
    let g = open(&volume, "g", O_RDONLY);
    fails!(ENOTDIR, gannet_mkdirat, volume, g, c("x").as_ptr(), 0o755);
    fails!(ENOENT, gannet_mkdirat, volume, d, c("in a removed one").as_ptr(), 0o755);
}

#[test]
fn nodes_of_every_type_are_made() {
    let file = make_volume(false);
    let volume = attach(&file);
    let root = rustix::process::geteuid().is_root();
    for (name, mode, device, expected) in [
        ("plain", 0, 5, libc::S_IFREG),
        ("regular", libc::S_IFREG, 0, libc::S_IFREG),
        ("fifo", libc::S_IFIFO, 0, libc::S_IFIFO),
        ("socket", libc::S_IFSOCK, 0, libc::S_IFSOCK),
        ("character", libc::S_IFCHR, libc::makedev(1, 3), libc::S_IFCHR),
        ("block", libc::S_IFBLK, libc::makedev(259, 70_000), libc::S_IFBLK),
    ] {
        let made = call!(gannet_mknod, volume, c(name).as_ptr(), mode | 0o600, device);
        if device > 5 && !root {
            assert_eq!(made, -i64::from(libc::EPERM));
            continue;
        }
        assert_eq!(made, 0, "{name}: {}", error_text());
        let found = stat_at(&volume, GANNET_AT_ROOT, name, 0).unwrap();
        let told = if device > 5 { device } else { 0 };
        assert_eq!((found.mode, found.special_device), (expected | 0o600, told), "{name}");
        if device > 5 {
            fails!(EACCES, gannet_open, volume, c(name).as_ptr(), libc::O_RDONLY, 0);
            let text = error_text();
            assert!(text.contains("devices are not opened") && !text.contains("permission bits"), "{text}");
        }
    }
    fails!(EPERM, gannet_mknodat, volume, GANNET_AT_ROOT, c("x").as_ptr(), libc::S_IFDIR | 0o600, 0);
    fails!(EINVAL, gannet_mknodat, volume, GANNET_AT_ROOT, c("x").as_ptr(), libc::S_IFLNK | 0o600, 0);
    fails!(EINVAL, gannet_mknodat, volume, GANNET_AT_ROOT, c("x").as_ptr(), 0o050_600, 0);
    fails!(EEXIST, gannet_mknodat, volume, GANNET_AT_ROOT, c("fifo").as_ptr(), libc::S_IFIFO | 0o600, 0);
}

#[test]
fn attributes_are_told_and_changed_from_a_directory() {
    let file = make_volume(false);
    let volume = attach(&file);
    good!(gannet_mkdir, volume, c("d").as_ptr(), 0o755);
    let d = open(&volume, "d", O_PATH);
    let f = open(&volume, "d/f", O_CREAT | O_RDWR);
    good!(gannet_symlink, volume, c("f").as_ptr(), c("d/l").as_ptr());
    good!(gannet_fchmodat, volume, d, c("f").as_ptr(), 0o640, 0);
    fails!(EOPNOTSUPP, gannet_fchmodat, volume, d, c("l").as_ptr(), 0o640, AT_SYMLINK_NOFOLLOW);
    fails!(EINVAL, gannet_fchmodat, volume, d, c("l").as_ptr(), 0o640, AT_SYMLINK_FOLLOW);
    good!(gannet_fchmodat, volume, f, c("").as_ptr(), 0o604, AT_EMPTY_PATH);
    let when = [libc::timespec { tv_sec: 7, tv_nsec: 8 }, libc::timespec { tv_sec: 0, tv_nsec: libc::UTIME_OMIT }];
    good!(gannet_utimensat, volume, d, c("l").as_ptr(), when.as_ptr(), AT_SYMLINK_NOFOLLOW);
    let (link, target) = (stat_at(&volume, d, "l", AT_SYMLINK_NOFOLLOW).unwrap(), stat_at(&volume, d, "l", 0).unwrap());
    assert_eq!((link.accessed, target.mode & 0o7777), (7_000_000_008, 0o604));
    assert!(target.accessed != link.accessed && target.created > 0);
    assert_eq!(stat_at(&volume, f, "", AT_EMPTY_PATH).unwrap().inode, target.inode);
    assert_eq!(stat_at(&volume, f, "", 0).err(), Some(libc::ENOENT));
    if rustix::process::geteuid().is_root() {
        good!(gannet_fchownat, volume, d, c("l").as_ptr(), 5, 6, AT_SYMLINK_NOFOLLOW);
        good!(gannet_fchownat, volume, d, c("f").as_ptr(), u32::MAX, 9, 0);
        let owners = |name, flags| stat_at(&volume, d, name, flags).map(|found| (found.user, found.group));
        assert_eq!(owners("l", AT_SYMLINK_NOFOLLOW), Ok((5, 6)));
        assert_eq!(owners("f", 0), Ok((0, 9)));
        // Only root's kinds of names go on symbolic links.
        let (name, mut value) = (c("trusted.x"), [0u8; 8]);
        good!(gannet_lsetxattr, volume, c("d/l").as_ptr(), name.as_ptr(), b"abc".as_ptr().cast(), 3, 0);
        let get = call!(gannet_lgetxattr, volume, c("d/l").as_ptr(), name.as_ptr(), value.as_mut_ptr().cast(), 8);
        assert_eq!((get, &value[..3]), (3, &b"abc"[..]));
        fails!(ENODATA, gannet_getxattr, volume, c("d/l").as_ptr(), name.as_ptr(), value.as_mut_ptr().cast(), 8);
        assert_eq!(call!(gannet_llistxattr, volume, c("d/l").as_ptr(), null_mut(), 0), 10);
        assert_eq!(call!(gannet_listxattr, volume, c("d/l").as_ptr(), null_mut(), 0), 0);
        fails!(ENODATA, gannet_removexattr, volume, c("d/l").as_ptr(), name.as_ptr());
        good!(gannet_lremovexattr, volume, c("d/l").as_ptr(), name.as_ptr());
    }
    good!(gannet_faccessat, volume, d, c("f").as_ptr(), libc::R_OK | libc::W_OK, libc::AT_EACCESS);
    fails!(EACCES, gannet_faccessat, volume, d, c("f").as_ptr(), libc::X_OK, 0);
    fails!(EINVAL, gannet_faccessat, volume, d, c("f").as_ptr(), 8, 0);
}

#[test]
fn descriptors_say_how_they_were_opened_and_walks_keep_their_rules() {
    let file = make_volume(false);
    let volume = attach(&file);
    good!(gannet_mkdir, volume, c("d").as_ptr(), 0o755);
    let d = open(&volume, "d", O_PATH);
    let f = open(&volume, "d/f", O_CREAT | O_RDWR);
    good!(gannet_symlink, volume, c("../d/f").as_ptr(), c("d/out").as_ptr());
    assert_eq!(call!(gannet_getfl, volume, f) as i32 & !0o100000, O_RDWR);
    assert_eq!(call!(gannet_getfl, volume, d) as i32 & O_PATH, O_PATH);
    good!(gannet_setfl, volume, f, O_APPEND | O_WRONLY);
    assert_eq!(call!(gannet_getfl, volume, f) as i32 & !0o100000, O_RDWR | O_APPEND);
    let buffers = [libc::iovec { iov_base: b"ab".as_ptr().cast_mut().cast(), iov_len: 2 }; 2];
    assert_eq!(call!(gannet_pwritev, volume, f, buffers.as_ptr(), 2, 0), 4);
    assert_eq!(call!(gannet_pwritev, volume, f, buffers.as_ptr(), 1, 0), 2, "at the end");
    good!(gannet_setfl, volume, f, 0);
    assert_eq!(call!(gannet_pwritev, volume, f, buffers.as_ptr(), 1, 1), 2);
    let mut back = [0u8; 8];
    let into = [libc::iovec { iov_base: back.as_mut_ptr().cast(), iov_len: 8 }];
    assert_eq!(call!(gannet_preadv, volume, f, into.as_ptr(), 1, 0), 6);
    assert_eq!(&back[..6], b"aabbab");
    assert_eq!(call!(gannet_lseek, volume, f, 0, libc::SEEK_CUR), 0, "the file's own offset stayed");
    fails!(EBADF, gannet_setfl, volume, d, 0);
    // What is append-only is appended to only, also by who clones; O_APPEND stays.
    let log = open(&volume, "d/log", O_CREAT | O_WRONLY | O_APPEND);
    good!(gannet_setflags, volume, log, 0x20);
    fails!(EPERM, gannet_setfl, volume, log, 0);
    good!(gannet_setfl, volume, log, O_APPEND | libc::O_NONBLOCK);
    fails!(EBADF, gannet_clone_range, volume, f, 0, log, 0, 0);
    good!(gannet_setflags, volume, log, 0);
    good!(gannet_setfl, volume, log, 0);
    good!(gannet_clone_range, volume, f, 0, log, 0, 0);
    good!(gannet_fdatasync, volume, f);
    let (beneath, in_root, no_symlinks) = (0x08, 0x10, 0x04);
    let walk = |path: &str, rules| call!(gannet_openat2, volume, d, c(path).as_ptr(), O_RDONLY, 0, rules);
    assert!(walk("f", beneath) >= 0 && walk("/f", in_root) >= 0 && walk("out", 0) >= 0);
    assert_eq!(walk("/f", beneath), -i64::from(libc::EXDEV));
    assert_eq!(walk("out", beneath), -i64::from(libc::EXDEV));
    assert_eq!(walk("out", no_symlinks), -i64::from(libc::ELOOP));
    assert_eq!(walk("f", beneath | in_root), -i64::from(libc::EINVAL));
    assert_eq!(walk("f", 1 << 16), -i64::from(libc::EINVAL));
    // Reading by a descriptor that asked for that does not move the time of access.
    let read = |flags| {
        let past = [libc::timespec { tv_sec: 1, tv_nsec: 0 }; 2];
        good!(gannet_futimens, volume, f, past.as_ptr());
        let reader = open(&volume, "d/f", O_RDONLY | flags);
        let mut byte = 0u8;
        assert_eq!(call!(gannet_read, volume, reader, (&raw mut byte).cast(), 1), 1);
        stat_at(&volume, d, "f", 0).unwrap().accessed != 1_000_000_000
    };
    assert!(read(0) && !read(O_NOATIME));
}

/// What is in a file.
fn content(volume: &Attached, descriptor: i32) -> Vec<u8> {
    let mut bytes = vec![0u8; 1 << 20];
    let count = good!(gannet_pread, volume, descriptor, bytes.as_mut_ptr().cast(), bytes.len(), 0);
    bytes.truncate(count as usize);
    bytes
}

fn extents(volume: &Attached, descriptor: i32) -> Vec<FileExtent> {
    let count = good!(gannet_extents, volume, descriptor, 0, u64::MAX >> 1, null_mut(), 0) as usize;
    let mut found = vec![FileExtent::default(); count + 1];
    let told = call!(gannet_extents, volume, descriptor, 0, u64::MAX >> 1, found.as_mut_ptr(), found.len());
    assert_eq!(told, count as i64);
    found.truncate(count);
    found
}

#[test]
fn copies_share_what_they_can() {
    let file = make_volume(false);
    let volume = attach(&file);
    let (a, b) = (open(&volume, "a", O_CREAT | O_RDWR), open(&volume, "b", O_CREAT | O_RDWR));
    let bytes: Vec<u8> = (0..300_000u32).map(|index| (index % 253) as u8).collect();
    good!(gannet_write, volume, a, bytes.as_ptr().cast(), bytes.len());
    let copy = |from: Option<&mut i64>, to: Option<&mut i64>, count| {
        let place = |offset: Option<&mut i64>| offset.map_or(null_mut(), |offset| &raw mut *offset);
        call!(gannet_copy_file_range, volume, a, place(from), b, place(to), count, 0)
    };
    // Whole: shared, and both offsets move.
    good!(gannet_lseek, volume, a, 0, libc::SEEK_SET);
    assert_eq!(copy(None, None, 1 << 30), 300_000);
    assert_eq!(content(&volume, b), bytes);
    assert!(extents(&volume, b).iter().all(|extent| extent.shared == 1) && !extents(&volume, b).is_empty());
    assert_eq!(extents(&volume, a)[0].medium_offset, extents(&volume, b)[0].medium_offset);
    for descriptor in [a, b] {
        assert_eq!(call!(gannet_lseek, volume, descriptor, 0, libc::SEEK_CUR), 300_000);
    }
    assert_eq!(copy(None, None, 100), 0, "at the end");
    // At odd places: byte by byte, and the files' own offsets stay.
    let (mut from, mut to) = (1001, 5);
    assert_eq!(copy(Some(&mut from), Some(&mut to), 280_000), 280_000);
    assert_eq!((from, to), (281_001, 280_005));
    let mut expected = bytes.clone();
    expected[5..280_005].copy_from_slice(&bytes[1001..281_001]);
    assert_eq!(content(&volume, b), expected);
    assert_eq!(call!(gannet_lseek, volume, b, 0, libc::SEEK_CUR), 300_000);
    // What is the same can share its blocks again.
    assert_eq!(call!(gannet_dedupe_range, volume, a, 0, b, 0, 65536), 0);
    assert_eq!(content(&volume, b), expected);
    let same = open(&volume, "same", O_CREAT | O_RDWR);
    good!(gannet_write, volume, same, bytes.as_ptr().cast(), 131_072);
    assert_eq!(call!(gannet_dedupe_range, volume, a, 0, same, 0, 131_072), 1);
    assert_eq!(extents(&volume, same)[0].medium_offset, extents(&volume, a)[0].medium_offset);
    let (mut from, mut to) = (0, 10);
    fails!(EINVAL, gannet_copy_file_range, volume, a, &mut from, a, &mut to, 100, 0);
    (from, to) = (0, -1);
    fails!(EOVERFLOW, gannet_copy_file_range, volume, a, &mut from, b, &mut to, 100, 0);
    fails!(EINVAL, gannet_copy_file_range, volume, a, &mut from, b, &mut to, 100, 1);
    let nowhere = std::ptr::without_provenance_mut::<i64>(16);
    fails!(EFAULT, gannet_copy_file_range, volume, a, nowhere, b, &mut to, 100, 0);
    fails!(EFAULT, gannet_linkat, volume, a, nowhere.cast(), GANNET_AT_ROOT, c("x").as_ptr(), AT_EMPTY_PATH);
    fails!(EFAULT, gannet_mknod, volume, nowhere.cast(), 0, 0);
    let appending = open(&volume, "b", O_WRONLY | O_APPEND);
    fails!(EBADF, gannet_copy_file_range, volume, a, null_mut(), appending, null_mut(), 100, 0);
    fails!(EBADF, gannet_copy_file_range, volume, appending, null_mut(), b, null_mut(), 100, 0);
    let root = open(&volume, "/", O_RDONLY);
    fails!(EISDIR, gannet_copy_file_range, volume, root, null_mut(), b, null_mut(), 100, 0);
    assert_eq!(call!(gannet_extents, volume, a, 0, 1 << 30, null_mut(), 1), -i64::from(libc::EFAULT));
}

#[test]
fn how_data_is_written_is_a_flag_of_the_file() {
    for copy_on_write in [false, true] {
        let file = make_volume(copy_on_write);
        let volume = attach(&file);
        good!(gannet_mkdir, volume, c("d").as_ptr(), 0o755);
        let d = open(&volume, "d", O_RDONLY);
        let flags = |descriptor| {
            let mut flags = 0;
            good!(gannet_getflags, volume, descriptor, &mut flags);
            flags
        };
        let moves = |descriptor| {
            let before = extents(&volume, descriptor);
            good!(gannet_pwrite, volume, descriptor, [7u8; 4096].as_ptr().cast(), 4096, 0);
            before != extents(&volume, descriptor)
        };
        for (flag, expected) in
            [(0, copy_on_write), (GANNET_FLAG_COPY_ON_WRITE, true), (GANNET_FLAG_IN_PLACE, false), (0, copy_on_write)]
        {
            good!(gannet_setflags, volume, d, flag | 0x40);
            let name = format!("d/{flag}-{expected}");
            let f = open(&volume, &name, O_CREAT | O_RDWR);
            assert_eq!(flags(f), flag | 0x40, "inherited");
            good!(gannet_write, volume, f, [1u8; 8192].as_ptr().cast(), 8192);
            good!(gannet_pwrite, volume, f, [2u8; 4096].as_ptr().cast(), 4096, 0);
            assert_eq!(moves(f), expected, "{flag:#x} on a volume with copy_on_write {copy_on_write}");
            // The other one takes its place, as chattr asks for it: by adding to what it read.
            if flag != 0 {
                let other = (GANNET_FLAG_COPY_ON_WRITE | GANNET_FLAG_IN_PLACE) - flag;
                good!(gannet_setflags, volume, f, flag | other);
                assert_eq!((flags(f), moves(f)), (other, !expected));
            }
        }
        fails!(EINVAL, gannet_setflags, volume, d, GANNET_FLAG_COPY_ON_WRITE | GANNET_FLAG_IN_PLACE);
        fails!(EOPNOTSUPP, gannet_setflags, volume, d, 0x4);
        assert_eq!(call!(gannet_getflags, volume, d, null_mut()), -i64::from(libc::EFAULT));
        assert_eq!(call!(gannet_getflags, volume, 99, null_mut()), -i64::from(libc::EBADF));
        assert_eq!(call!(gannet_mkdirat, volume, d, null(), 0), -i64::from(libc::EFAULT));
    }
}

/// A name that always leads to some file is always found, though each file is removed while its successor takes the name.
#[test]
fn what_is_replaced_all_the_time_is_there() {
    const ROUNDS: usize = 20_000;
    let file = make_volume(false);
    let volume = attach(&file);
    let make = |volume: &Attached, name: &str| {
        let made = open(volume, name, O_CREAT | O_WRONLY);
        good!(gannet_close, volume, made);
    };
    make(&volume, "f");
    let replaced = &AtomicUsize::new(0);
    std::thread::scope(|scope| {
        let volume = &volume;
        scope.spawn(move || {
            for _ in 0..ROUNDS {
                make(volume, "new");
                good!(gannet_rename, volume, c("new").as_ptr(), c("f").as_ptr(), 0);
                replaced.fetch_add(1, Ordering::Relaxed);
            }
        });
        while replaced.load(Ordering::Relaxed) < ROUNDS {
            stat_at(volume, GANNET_AT_ROOT, "f", 0).expect("a file");
            good!(gannet_chmod, volume, c("f").as_ptr(), 0o640);
            let mut size = 0u8;
            let got = call!(gannet_getxattr, volume, c("f").as_ptr(), c("user.x").as_ptr(), (&raw mut size).cast(), 1);
            assert_eq!(got, -i64::from(libc::ENODATA));
        }
    });
}
