//! What Linux adds to files: maps, holes, attributes, flags, handles, locks.

use std::fs::{self, File, OpenOptions};
use std::io::Read;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::process::Command;

use rustix::fs::{AtFlags, CWD, FallocateFlags, FileType, Gid, Mode, OFlags, RenameFlags, Uid, XattrFlags};
use rustix::io::Errno;
use rustix::mm::{MapFlags, MsyncFlags, ProtFlags};
use rustix::thread::CapabilitySet;

use crate::files::pattern;
use crate::{Outcome, Server, Skipped, Test, content};

pub(crate) const TESTS: &[Test] = &[
    Test { name: "maps_are_files", body: maps_are_files, every_way: true },
    Test { name: "holes_and_allocation", body: holes_and_allocation, every_way: true },
    Test { name: "ranges_are_copied", body: ranges_are_copied, every_way: true },
    Test { name: "renames_with_flags", body: renames_with_flags, every_way: true },
    Test { name: "files_without_names", body: files_without_names, every_way: true },
    Test { name: "extended_attributes", body: extended_attributes, every_way: true },
    Test { name: "groups_masks_and_lists_are_inherited", body: groups_masks_and_lists_are_inherited, every_way: true },
    Test { name: "set_id_bits_fall", body: set_id_bits_fall, every_way: true },
    Test { name: "inode_flags_protect", body: inode_flags_protect, every_way: true },
    Test { name: "how_data_is_written_is_a_flag", body: how_data_is_written_is_a_flag, every_way: true },
    Test { name: "handles_outlive_caches", body: handles_outlive_caches, every_way: true },
    Test { name: "running_programs_stay_whole", body: running_programs_stay_whole, every_way: true },
    Test { name: "special_files", body: special_files, every_way: true },
    Test { name: "answers_are_the_kernels", body: answers_are_the_kernels, every_way: true },
];

pub(crate) fn root() -> Result<(), Skipped> {
    if rustix::process::geteuid().is_root() { Ok(()) } else { Err(Skipped("only root can do this".into())) }
}

fn maps_are_files(way: &str) -> Outcome {
    let server = Server::start(way);
    let path = server.at("mapped");
    let length_bytes = 5 * 4096 + 100;
    fs::write(&path, pattern(length_bytes, 3)).unwrap();
    let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
    // SAFETY: new maps at addresses of the kernel's choice, unmapped below; they are used through raw copies only.
    unsafe {
        let map = |flags| {
            rustix::mm::mmap(std::ptr::null_mut(), 6 * 4096, ProtFlags::READ | ProtFlags::WRITE, flags, &file, 0)
                .unwrap()
                .cast::<u8>()
        };
        let (shared, private) = (map(MapFlags::SHARED), map(MapFlags::PRIVATE));
        assert_eq!(*shared.add(4096), pattern(length_bytes, 3)[4096]);
        let past = std::time::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000_000);
        file.set_modified(past).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().modified().unwrap(), past);
        shared.add(4096).copy_from_nonoverlapping(b"through the map".as_ptr(), 15);
        private.add(8192).copy_from_nonoverlapping(b"nobody sees it".as_ptr(), 14);
        // Behind the end: zeros that stay where they are.
        assert_eq!(*shared.add(length_bytes), 0);
        *shared.add(length_bytes) = 7;
        rustix::mm::msync(shared.cast(), 6 * 4096, MsyncFlags::SYNC).unwrap();
        assert!(fs::metadata(&path).unwrap().modified().unwrap() > past, "what a map changes changes the time");
        let mut seen = [0; 15];
        File::open(&path).unwrap().read_exact_at(&mut seen, 4096).unwrap();
        assert_eq!(&seen, b"through the map");
        assert_eq!(content(&path)[8192..8206], pattern(length_bytes, 3)[8192..8206]);
        assert_eq!(content(&path).len(), length_bytes);
        for map in [shared, private] {
            rustix::mm::munmap(map.cast(), 6 * 4096).unwrap();
        }
    }
    drop(file);
    server.end();
    Ok(())
}

fn holes_and_allocation(way: &str) -> Outcome {
    let server = Server::start(way);
    let file = OpenOptions::new().read(true).write(true).create_new(true).open(server.at("sparse")).unwrap();
    file.write_all_at(&[1; 4096], 1 << 20).unwrap();
    file.sync_all().unwrap();
    let seek = |target| rustix::fs::seek(&file, target);
    assert_eq!(seek(rustix::fs::SeekFrom::Data(0)), Ok(1 << 20));
    assert_eq!(seek(rustix::fs::SeekFrom::Hole(0)), Ok(0));
    assert_eq!(seek(rustix::fs::SeekFrom::Hole(1 << 20)), Ok((1 << 20) + 4096));
    assert_eq!(seek(rustix::fs::SeekFrom::Data(1 << 21)), Err(Errno::NXIO));
    assert_eq!(file.metadata().unwrap().blocks(), 8);
    rustix::fs::fallocate(&file, FallocateFlags::empty(), 1 << 20, 1 << 20).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 2 << 20);
    rustix::fs::fallocate(&file, FallocateFlags::KEEP_SIZE, 2 << 20, 1 << 20).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 2 << 20);
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(&file, punch, (1 << 20) + 1024, 1024).unwrap();
    let mut bytes = [9; 4096];
    file.read_exact_at(&mut bytes, 1 << 20).unwrap();
    assert_eq!((bytes[1023], bytes[1024], bytes[2047], bytes[2048]), (1, 0, 0, 1));
    rustix::fs::fallocate(&file, FallocateFlags::ZERO_RANGE, 1 << 20, 4096).unwrap();
    file.read_exact_at(&mut bytes, 1 << 20).unwrap();
    assert_eq!(bytes, [0; 4096]);
    drop(file);
    server.end();
    Ok(())
}

fn ranges_are_copied(way: &str) -> Outcome {
    let server = Server::start(way);
    let bytes = pattern(3 << 20, 5);
    fs::write(server.at("from"), &bytes).unwrap();
    let from = File::open(server.at("from")).unwrap();
    let to = OpenOptions::new().read(true).write(true).create_new(true).open(server.at("to")).unwrap();
    for (mut read, mut write, length_bytes) in [(0, 0, 1 << 20), (4096, 1 << 20, 8192), (777, 2_000_001, 300_000)] {
        let (begin, target) = (read as usize, write as usize);
        let mut left = length_bytes;
        while left > 0 {
            let count = rustix::fs::copy_file_range(&from, Some(&mut read), &to, Some(&mut write), left).unwrap();
            assert!(count > 0);
            left -= count;
        }
        let mut copied = vec![0; length_bytes];
        to.read_exact_at(&mut copied, target as u64).unwrap();
        assert!(copied == bytes[begin..begin + length_bytes]);
    }
    let mut end = bytes.len() as u64;
    assert_eq!(rustix::fs::copy_file_range(&from, Some(&mut end), &to, None, 100), Ok(0), "nothing behind the end");
    drop((from, to));
    server.end();
    Ok(())
}

fn renames_with_flags(way: &str) -> Outcome {
    let server = Server::start(way);
    for name in ["a", "b"] {
        fs::write(server.at(name), name).unwrap();
    }
    let rename =
        |from: &str, to: &str, flags| rustix::fs::renameat_with(CWD, server.at(from), CWD, server.at(to), flags);
    assert_eq!(rename("a", "b", RenameFlags::NOREPLACE), Err(Errno::EXIST));
    rename("a", "b", RenameFlags::EXCHANGE).unwrap();
    assert_eq!((content(&server.at("a")), content(&server.at("b"))), (b"b".to_vec(), b"a".to_vec()));
    rename("a", "c", RenameFlags::NOREPLACE).unwrap();
    assert_eq!(rename("c", "missing", RenameFlags::EXCHANGE), Err(Errno::NOENT));
    if root().is_ok() {
        rename("c", "d", RenameFlags::WHITEOUT).unwrap();
        let whiteout = fs::symlink_metadata(server.at("c")).unwrap();
        assert_eq!((whiteout.mode() & 0o170_000, whiteout.rdev()), (0o020_000, 0));
    }
    server.end();
    Ok(())
}

fn files_without_names(way: &str) -> Outcome {
    let server = Server::start(way);
    let unnamed =
        rustix::fs::open(server.path(), OFlags::TMPFILE | OFlags::RDWR, Mode::from_bits_truncate(0o640)).unwrap();
    rustix::io::write(&unnamed, b"no name yet").unwrap();
    assert_eq!(fs::read_dir(server.path()).unwrap().count(), 0);
    let path = format!("/proc/self/fd/{}", unnamed.as_raw_fd());
    rustix::fs::linkat(CWD, path, CWD, server.at("named"), AtFlags::SYMLINK_FOLLOW).unwrap();
    drop(unnamed);
    assert_eq!(content(&server.at("named")), b"no name yet");
    assert_eq!(fs::metadata(server.at("named")).unwrap().nlink(), 1);
    server.end();
    Ok(())
}

fn extended_attributes(way: &str) -> Outcome {
    let server = Server::start(way);
    let path = server.at("file");
    fs::write(&path, "").unwrap();
    let get = |name: &str, room: usize| {
        let mut value = vec![0; room];
        rustix::fs::getxattr(&path, name, &mut value).map(|length_bytes| value[..length_bytes.min(room)].to_vec())
    };
    assert_eq!(get("user.none", 10), Err(Errno::NODATA));
    rustix::fs::setxattr(&path, "user.a", b"value", XattrFlags::CREATE).unwrap();
    assert_eq!(rustix::fs::setxattr(&path, "user.a", b"other", XattrFlags::CREATE), Err(Errno::EXIST));
    assert_eq!(rustix::fs::setxattr(&path, "user.b", b"other", XattrFlags::REPLACE), Err(Errno::NODATA));
    assert_eq!(get("user.a", 100), Ok(b"value".to_vec()));
    assert_eq!(get("user.a", 3), Err(Errno::RANGE));
    let name = std::ffi::CString::new(path.to_str().unwrap()).unwrap();
    // SAFETY: both names are live C strings; no room for a value is given.
    let length_bytes = unsafe { libc::getxattr(name.as_ptr(), c"user.a".as_ptr(), std::ptr::null_mut(), 0) };
    assert_eq!(length_bytes, 5, "the length, when asked for it");
    let large = pattern(60_000, 9);
    rustix::fs::setxattr(&path, "user.large", &large, XattrFlags::empty()).unwrap();
    assert_eq!(get("user.large", 65_536), Ok(large));
    let mut list = [0u8; 200];
    let length_bytes = rustix::fs::listxattr(&path, &mut list).unwrap();
    let mut names: Vec<&[u8]> = list[..length_bytes].split_inclusive(|&byte| byte == 0).collect();
    names.sort_unstable();
    assert_eq!(names, [&b"user.a\0"[..], b"user.large\0"]);
    assert_eq!(rustix::fs::listxattr(&path, &mut list[..3]), Err(Errno::RANGE));
    for (name, errno) in [("system.a", Errno::OPNOTSUPP), ("other.a", Errno::OPNOTSUPP), ("user.", Errno::INVAL)] {
        assert_eq!(rustix::fs::setxattr(&path, name, b"", XattrFlags::empty()), Err(errno), "{name}");
        assert_eq!(get(name, 10), Err(errno), "{name}");
        assert_eq!(rustix::fs::removexattr(&path, name), Err(errno), "{name}");
    }
    rustix::fs::removexattr(&path, "user.a").unwrap();
    assert_eq!(rustix::fs::removexattr(&path, "user.a"), Err(Errno::NODATA));
    server.end();
    Ok(())
}

fn groups_masks_and_lists_are_inherited(way: &str) -> Outcome {
    root()?;
    let server = Server::start(way);
    let directory = server.at("shared");
    fs::create_dir(&directory).unwrap();
    std::os::unix::fs::chown(&directory, None, Some(77)).unwrap();
    fs::set_permissions(&directory, fs::Permissions::from_mode(0o2775)).unwrap();
    fs::write(directory.join("file"), "").unwrap();
    fs::create_dir(directory.join("below")).unwrap();
    assert_eq!(fs::metadata(directory.join("file")).unwrap().gid(), 77);
    let below = fs::metadata(directory.join("below")).unwrap();
    assert_eq!((below.gid(), below.mode() & 0o2000), (77, 0o2000));

    // A default list in place of the umask: user::rwx user:5:rwx group::r-x mask::rwx other::---
    let list = |entries: &[(u16, u16, u32)]| -> Vec<u8> {
        let mut value = 2u32.to_le_bytes().to_vec();
        for (tag, permissions, id) in entries {
            value.extend(tag.to_le_bytes());
            value.extend(permissions.to_le_bytes());
            value.extend(id.to_le_bytes());
        }
        value
    };
    let default = list(&[(1, 7, !0), (2, 7, 5), (4, 5, !0), (0x10, 7, !0), (0x20, 0, !0)]);
    rustix::fs::setxattr(&directory, "system.posix_acl_default", &default, XattrFlags::empty()).unwrap();
    let inherited = directory.join("inherited");
    OpenOptions::new().write(true).create_new(true).mode(0o666).open(&inherited).unwrap();
    assert_eq!(fs::metadata(&inherited).unwrap().mode() & 0o777, 0o660, "the umask does not count");
    let mut value = [0; 100];
    let length_bytes = rustix::fs::getxattr(&inherited, "system.posix_acl_access", &mut value).unwrap();
    let expected = list(&[(1, 6, !0), (2, 7, 5), (4, 5, !0), (0x10, 6, !0), (0x20, 0, !0)]);
    assert_eq!(value[..length_bytes], expected);
    fs::create_dir(directory.join("deeper")).unwrap();
    let length_bytes = rustix::fs::getxattr(directory.join("deeper"), "system.posix_acl_default", &mut value).unwrap();
    assert_eq!(value[..length_bytes], default);
    // chmod changes the mask, not the group's entry; setting a list changes the mode.
    fs::set_permissions(&inherited, fs::Permissions::from_mode(0o640)).unwrap();
    let length_bytes = rustix::fs::getxattr(&inherited, "system.posix_acl_access", &mut value).unwrap();
    assert_eq!(value[..length_bytes], list(&[(1, 6, !0), (2, 7, 5), (4, 5, !0), (0x10, 4, !0), (0x20, 0, !0)]));
    let minimal = list(&[(1, 7, !0), (4, 5, !0), (0x20, 1, !0)]);
    rustix::fs::setxattr(&inherited, "system.posix_acl_access", &minimal, XattrFlags::empty()).unwrap();
    assert_eq!(fs::metadata(&inherited).unwrap().mode() & 0o777, 0o751);
    let gone = rustix::fs::getxattr(&inherited, "system.posix_acl_access", &mut value);
    assert_eq!(gone, Err(Errno::NODATA), "the bits say it all");
    server.end();
    Ok(())
}

fn set_id_bits_fall(way: &str) -> Outcome {
    root()?;
    let server = Server::start(&format!("{way},allow_other"));
    fs::set_permissions(server.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let path = server.at("program");
    fs::write(&path, "x").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o6777)).unwrap();
    let mode = || fs::metadata(&path).unwrap().mode() & 0o7777;
    let as_nobody = |script: &str| {
        use std::os::unix::process::CommandExt;
        let status =
            Command::new("sh").args(["-c", script]).current_dir(server.path()).uid(65_534).gid(65_534).status();
        assert!(status.unwrap().success(), "{script}");
    };
    fs::write(&path, "root writes").unwrap();
    assert_eq!(mode(), 0o6777, "root's writes keep the bits");
    as_nobody("echo y >> program");
    assert_eq!(mode(), 0o777, "another's do not");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o6777)).unwrap();
    as_nobody("truncate -s 3 program");
    assert_eq!(mode(), 0o777, "nor does truncation");
    let pipe = server.at("pipe");
    rustix::fs::mknodat(CWD, &pipe, FileType::Fifo, 0o600.into(), 0).unwrap();
    rustix::fs::chown(&pipe, Some(Uid::from_raw(65_534)), Some(Gid::from_raw(77))).unwrap();
    fs::set_permissions(&pipe, fs::Permissions::from_mode(0o2745)).unwrap();
    as_nobody("chgrp nogroup pipe");
    assert_eq!(fs::metadata(&pipe).unwrap().mode() & 0o7777, 0o745, "a pipe's go likewise");
    // Root that may not keep them. Capabilities are a thread's.
    let set = XattrFlags::CREATE;
    rustix::fs::setxattr(&path, "trusted.secret", b"1", set).unwrap();
    let names = || rustix::fs::listxattr(&path, &mut [0u8; 100]).unwrap();
    assert_eq!(names(), b"trusted.secret\0".len());
    fs::set_permissions(&path, fs::Permissions::from_mode(0o6777)).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut sets = rustix::thread::capabilities(None).unwrap();
            sets.effective.remove(CapabilitySet::FSETID | CapabilitySet::SYS_ADMIN);
            rustix::thread::set_capabilities(None, sets).unwrap();
            let file = OpenOptions::new().write(true).open(&path).unwrap();
            rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, 100).unwrap();
            assert_eq!(names(), 0, "nor look at what is the administrator's");
        });
    });
    assert_eq!(mode(), 0o777, "root without the right for it loses them");
    server.end();
    Ok(())
}

fn inode_flags_protect(way: &str) -> Outcome {
    root()?;
    let server = Server::start(way);
    let path = server.at("file");
    fs::write(&path, "1").unwrap();
    let set = |flags| {
        let file = File::open(&path).unwrap();
        rustix::fs::ioctl_setflags(&file, flags).unwrap();
        assert_eq!(rustix::fs::ioctl_getflags(&file).unwrap(), flags);
    };
    let errno = |error: std::io::Error| Errno::from_io_error(&error).unwrap();
    let write = |open: &mut OpenOptions| {
        open.open(&path).and_then(|mut file| std::io::Write::write_all(&mut file, b"2").and_then(|()| file.sync_all()))
    };
    set(rustix::fs::IFlags::IMMUTABLE);
    if !way.contains("writeback") {
        assert_eq!(errno(write(OpenOptions::new().write(true)).unwrap_err()), Errno::PERM);
    }
    assert_eq!(errno(fs::remove_file(&path).unwrap_err()), Errno::PERM);
    assert_eq!(errno(fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap_err()), Errno::PERM);
    assert_eq!(errno(fs::rename(&path, server.at("x")).unwrap_err()), Errno::PERM);
    assert_eq!(errno(fs::hard_link(&path, server.at("x")).unwrap_err()), Errno::PERM);
    set(rustix::fs::IFlags::APPEND);
    write(OpenOptions::new().append(true)).unwrap();
    if !way.contains("writeback") {
        assert_eq!(errno(write(OpenOptions::new().write(true)).unwrap_err()), Errno::PERM);
    }
    assert_eq!(errno(fs::remove_file(&path).unwrap_err()), Errno::PERM);
    set(rustix::fs::IFlags::empty());
    assert_eq!(content(&path), b"12");
    fs::remove_file(&path).unwrap();
    server.end();
    Ok(())
}

fn how_data_is_written_is_a_flag(way: &str) -> Outcome {
    use rustix::fs::IFlags;
    root()?;
    let server = Server::start(way);
    fs::create_dir(server.at("d")).unwrap();
    let flags = |name: &str| rustix::fs::ioctl_getflags(File::open(server.at(name)).unwrap()).unwrap();
    let set = |name: &str, flags| rustix::fs::ioctl_setflags(File::open(server.at(name)).unwrap(), flags);
    set("d", IFlags::NOCOW | IFlags::NODUMP).unwrap();
    fs::write(server.at("d/file"), "1").unwrap();
    fs::create_dir(server.at("d/below")).unwrap();
    for name in ["d", "d/file", "d/below"] {
        assert_eq!(flags(name), IFlags::NOCOW | IFlags::NODUMP, "{name}");
    }
    // Copy-on-write is no flag of Linux's; it takes the other one's place.
    let copy_on_write = IFlags::from_bits_retain(0x0100_0000);
    set("d/file", IFlags::NOCOW | copy_on_write).unwrap();
    assert_eq!(flags("d/file"), copy_on_write);
    set("d/file", copy_on_write | IFlags::NOCOW | IFlags::NOATIME).unwrap();
    assert_eq!(flags("d/file"), IFlags::NOCOW | IFlags::NOATIME);
    set("d/file", IFlags::empty()).unwrap();
    assert_eq!(set("d/file", IFlags::NOCOW | copy_on_write), Err(Errno::INVAL));
    assert_eq!(set("d/file", IFlags::COMPRESSED), Err(Errno::OPNOTSUPP));
    server.end();
    Ok(())
}

fn handles_outlive_caches(way: &str) -> Outcome {
    root()?;
    let server = Server::start(way);
    fs::create_dir(server.at("d")).unwrap();
    fs::write(server.at("d/file"), "by handle").unwrap();
    #[repr(C)]
    struct Handle {
        head: libc::file_handle,
        bytes: [u8; 128],
    }
    let name = std::ffi::CString::new(server.at("d/file").to_str().unwrap()).unwrap();
    let mount = File::open(server.path()).unwrap();
    // SAFETY: all pointers lead to live variables of the sizes that the structures say.
    let (handle, open) = unsafe {
        let mut handle: Handle = std::mem::zeroed();
        handle.head.handle_bytes = 128;
        let mut mount_id = 0;
        let got = libc::name_to_handle_at(libc::AT_FDCWD, name.as_ptr(), &mut handle.head, &mut mount_id, 0);
        assert_eq!(got, 0, "{}", std::io::Error::last_os_error());
        (handle, |handle: &Handle| -> Result<File, Errno> {
            let mut copy: Handle = std::ptr::read(handle);
            let descriptor = libc::open_by_handle_at(mount.as_raw_fd(), &mut copy.head, libc::O_RDONLY);
            if descriptor < 0 {
                return Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap());
            }
            Ok(std::os::fd::FromRawFd::from_raw_fd(descriptor))
        })
    };
    fs::write("/proc/sys/vm/drop_caches", "3").map_err(|error| Skipped(format!("drop_caches: {error}")))?;
    std::thread::sleep(std::time::Duration::from_millis(50));
    let mut text = String::new();
    open(&handle).unwrap().read_to_string(&mut text).unwrap();
    assert_eq!(text, "by handle");
    fs::rename(server.at("d/file"), server.at("elsewhere")).unwrap();
    text.clear();
    open(&handle).unwrap().read_to_string(&mut text).unwrap();
    assert_eq!(text, "by handle");
    fs::remove_file(server.at("elsewhere")).unwrap();
    for index in 0..50 {
        fs::write(server.at(&format!("new{index}")), "not this one").unwrap();
    }
    assert_eq!(open(&handle).err(), Some(Errno::STALE), "a number in its next life is another file");
    drop(mount);
    server.end();
    Ok(())
}

fn running_programs_stay_whole(way: &str) -> Outcome {
    let server = Server::start(way);
    let Some(sleep) = ["/bin/sleep", "/usr/bin/sleep"].into_iter().find(|path| fs::metadata(path).is_ok()) else {
        return Err(Skipped("there is no sleep to run".into()));
    };
    let path = server.at("program");
    fs::copy(sleep, &path).unwrap();
    let mut running = Command::new(&path).arg("100").spawn().unwrap();
    let size_bytes = fs::metadata(&path).unwrap().len();
    for flags in [OFlags::WRONLY, OFlags::RDWR, OFlags::RDONLY | OFlags::TRUNC] {
        assert_eq!(rustix::fs::open(&path, flags, Mode::empty()).map(drop), Err(Errno::TXTBSY), "{flags:?}");
    }
    assert_eq!(fs::metadata(&path).unwrap().len(), size_bytes);
    assert!(running.try_wait().unwrap().is_none(), "it runs on");
    running.kill().unwrap();
    running.wait().unwrap();
    assert!(content(&path) == content(std::path::Path::new(sleep)));
    server.end();
    Ok(())
}

fn special_files(way: &str) -> Outcome {
    let server = Server::start(way);
    let make = |name: &str, kind, device| rustix::fs::mknodat(CWD, server.at(name), kind, 0o640.into(), device);
    make("pipe", rustix::fs::FileType::Fifo, 0).unwrap();
    let path = server.at("pipe");
    let writer = std::thread::spawn({
        let path = path.clone();
        move || fs::write(path, "through a pipe").unwrap()
    });
    assert_eq!(content(&path), b"through a pipe");
    writer.join().unwrap();
    let socket = std::os::unix::net::UnixListener::bind(server.at("socket")).unwrap();
    std::os::unix::net::UnixStream::connect(server.at("socket")).unwrap();
    drop(socket);
    if root().is_ok() {
        let device = rustix::fs::makedev(259, 1_000);
        make("device", rustix::fs::FileType::BlockDevice, device).unwrap();
        assert_eq!(fs::metadata(server.at("device")).unwrap().rdev(), device);
        make("null", rustix::fs::FileType::CharacterDevice, rustix::fs::makedev(1, 3)).unwrap();
        let refused = File::open(server.at("null")).unwrap_err();
        assert_eq!(Errno::from_io_error(&refused), Some(Errno::ACCESS), "nodev by default");
    }
    server.end();
    Ok(())
}

fn answers_are_the_kernels(way: &str) -> Outcome {
    root()?;
    let server = Server::start(&format!("{way},allow_other,suid,dev"));
    let compared = crate::oracle::compare(&server.path(), &crate::oracle::excused(way.contains("writeback")));
    if compared == 0 {
        return Err(Skipped("there is no file system of the kernel to compare with".into()));
    }
    println!("{compared} answers compared");
    server.end();
    Ok(())
}
