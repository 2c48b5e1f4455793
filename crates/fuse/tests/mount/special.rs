//! What Linux adds to files: maps, holes, renames with flags, files without names, handles.

use std::fs::{self, File, OpenOptions};
use std::io::Read;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::process::Command;

use rustix::fs::{AtFlags, CWD, FallocateFlags, Mode, OFlags, RenameFlags};
use rustix::io::Errno;
use rustix::mm::{MapFlags, MsyncFlags, ProtFlags};

use crate::files::pattern;
use crate::{Outcome, Server, Skipped, Test, content};

pub(crate) const TESTS: &[Test] = &[
    Test { name: "maps_are_files", body: maps_are_files, every_way: true },
    Test { name: "holes_and_allocation", body: holes_and_allocation, every_way: true },
    Test { name: "ranges_are_copied", body: ranges_are_copied, every_way: true },
    Test { name: "renames_with_flags", body: renames_with_flags, every_way: true },
    Test { name: "files_without_names", body: files_without_names, every_way: true },
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
