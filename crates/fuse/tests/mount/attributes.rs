//! What stands beside a file's bytes and decides what may be done with it: extended attributes, access lists, set-id bits, inode flags.

use crate::files::pattern;
use crate::special::root;
use crate::{Outcome, Server, Test, content};
use rustix::fs::{CWD, FallocateFlags, FileType, Gid, Uid, XattrFlags};
use rustix::io::Errno;
use rustix::thread::CapabilitySet;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::process::Command;

pub(crate) const TESTS: &[Test] = &[
    Test { name: "extended_attributes", body: extended_attributes, every_way: true },
    Test { name: "groups_masks_and_lists_are_inherited", body: groups_masks_and_lists_are_inherited, every_way: true },
    Test { name: "set_id_bits_fall", body: set_id_bits_fall, every_way: true },
    Test { name: "inode_flags_protect", body: inode_flags_protect, every_way: true },
    Test { name: "how_data_is_written_is_a_flag", body: how_data_is_written_is_a_flag, every_way: true },
];

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
