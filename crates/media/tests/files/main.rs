//! Media in files: creating, opening, and what goes wrong there.

mod joined;
mod pulled_away;

use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use gannet_media::{AccessError, CreateOptions, Medium, MediumKind, MediumOffset, OpenError, OpenOptions, PersistMode};
use gannet_usermem::{Destination, Source};

/// A directory that is removed at the end.
struct Scratch(PathBuf);

impl Scratch {
    fn new(parent: &str, name: &str) -> Scratch {
        let path = Path::new(parent).join(format!("gannet-media-test-{}-{name}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Scratch(path)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn create(path: &Path, length: u64) -> Result<Medium, OpenError> {
    Medium::create(path, length, CreateOptions::default(), &mut |_| {})
}

fn at(offset: u64) -> MediumOffset {
    MediumOffset(offset)
}

#[test]
fn two_opens_see_each_other() {
    for parent in ["/dev/shm", "/tmp"] {
        let scratch = Scratch::new(parent, "two");
        let path = scratch.file("volume");
        let mut last = 0;
        let first = Medium::create(&path, 3 << 20, CreateOptions::default(), &mut |progress| {
            assert!(progress.done_bytes > last && progress.total_bytes == 3 << 20);
            last = progress.done_bytes;
        });
        let first = first.unwrap();
        assert_eq!(last, 3 << 20);
        let options = OpenOptions { emulate_persistence: true, ..OpenOptions::default() };
        let second = Medium::open(&path, options).unwrap();
        assert_eq!((first.mode(), second.mode()), (PersistMode::Plain, PersistMode::Emulated));
        assert_eq!((first.length(), first.kind()), (3 << 20, second.kind()));
        let data: Vec<u8> = (0..10_000u32).map(|index| (index % 251) as u8).collect();
        for (from, to) in [(&first, &second), (&second, &first)] {
            for offset in [0, 5, 64, 12_345, (3 << 20) - 10_000] {
                from.zero(at(offset), 10_000).unwrap();
                from.write_from_user(at(offset), &mut Source::from_slice(&data), data.len()).unwrap();
                from.fence();
                let mut back = vec![0; data.len()];
                to.read_to_user(at(offset), &mut Destination::from_slice(&mut back), data.len()).unwrap();
                assert_eq!(back, data);
                assert_eq!(to.hash(1, at(offset), 10_000).unwrap(), from.hash(1, at(offset), 10_000).unwrap());
            }
            from.store_u64(at(8), 0x1234_5678_9ABC_DEF0).unwrap();
            assert_eq!(to.load_u64(at(8)), Ok(0x1234_5678_9ABC_DEF0));
        }
        assert_eq!(first.identity().unwrap(), second.identity().unwrap());
        assert!(first.is_named_by(&path).unwrap());
        first.sync().unwrap();
        first.sync_range(at(5000), 5000).unwrap();
        let report = first.page_report(16).unwrap();
        assert!(report.map_page_bytes >= 4096 && report.resident_bytes > 0, "{report:?}");
        fs::rename(&path, scratch.file("elsewhere")).unwrap();
        assert!(!first.is_named_by(&path).unwrap());
        create(&path, 4096).unwrap();
        assert!(!first.is_named_by(&path).unwrap());
        assert!(first.is_named_by(&scratch.file("elsewhere")).unwrap());
    }
}

#[test]
fn space_is_reserved_and_huge_pages_are_tried() {
    let scratch = Scratch::new("/dev/shm", "space");
    let path = scratch.file("volume");
    let medium = create(&path, 8 << 20).unwrap();
    assert_eq!(medium.kind(), MediumKind::Memory);
    use std::os::unix::fs::MetadataExt;
    let metadata = fs::metadata(&path).unwrap();
    assert!(metadata.blocks() * 512 >= 8 << 20);
    assert_eq!(metadata.mode() & 0o777, 0o600);
    let report = medium.page_report(4).unwrap();
    // Kernels that can collapse (6.1 and later) do so in an empty file, as far as there is memory in whole; others leave 4 KiB pages.
    let huge = report.huge_bytes;
    assert!(
        report.usual_page_bytes() == 4096 || (huge > 0 && huge <= 8 << 20 && huge.is_multiple_of(2 << 20)),
        "{report:?}"
    );
}

/// A quarter in huge pages is said as that, whatever was mapped before, through whichever map.
#[test]
fn mixed_pages_are_told_apart() {
    const LENGTH: u64 = 64 << 20;
    let scratch = Scratch::new("/dev/shm", "mixed");
    let path = scratch.file("volume");
    let medium = create(&path, LENGTH).unwrap();
    let whole = medium.page_report(16).unwrap();
    assert_eq!((whole.sampled_places, medium.page_report(1000).unwrap().sampled_places), (16, 32), "{whole:?}");
    if whole.huge_places < 16 {
        return eprintln!("left out: the kernel makes no huge pages here");
    }
    let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
    let punch = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(&file, punch, LENGTH / 4, LENGTH / 4 * 3).unwrap();
    for page in LENGTH / 4 / 4096..LENGTH / 4096 {
        std::os::unix::fs::FileExt::write_all_at(&file, &[1; 4096], page * 4096).unwrap();
    }
    for medium in [medium, Medium::open(&path, OpenOptions::default()).unwrap()] {
        let report = medium.page_report(16).unwrap();
        if report.huge_places > 4 {
            return eprintln!("left out: the mount makes huge pages by itself");
        }
        assert_eq!((report.huge_percent(), report.usual_page_bytes()), (25, 4096), "{report:?}");
        let mut byte = [0];
        medium.read(at(LENGTH - 1), &mut byte).unwrap();
        assert_eq!(byte, [1]);
    }
}

#[test]
fn existing_files() {
    let scratch = Scratch::new("/dev/shm", "existing");
    let path = scratch.file("volume");
    fs::write(&path, [1; 8192]).unwrap();
    let old = Medium::open(&path, OpenOptions::default()).unwrap();
    assert!(matches!(create(&path, 4096), Err(OpenError::Exists { .. })));
    let force = CreateOptions { force: true, ..CreateOptions::default() };
    // A forced creation that fails leaves the old file.
    let failed = Medium::create(&path, 1 << 60, force, &mut |_| {});
    assert!(matches!(failed, Err(OpenError::NoSpace { .. })));
    assert!(old.is_named_by(&path).unwrap());
    let new = Medium::create(&path, 4096, force, &mut |_| {}).unwrap();
    assert!(new.is_named_by(&path).unwrap() && !old.is_named_by(&path).unwrap());
    assert_eq!(old.load_u64(at(8184)), Ok(0x0101_0101_0101_0101), "who had the old one open keeps it");
    assert_eq!(fs::read_dir(&scratch.0).unwrap().count(), 1);
    let link = scratch.file("link");
    std::os::unix::fs::symlink(&path, &link).unwrap();
    let newer = Medium::create(&link, 4096, force, &mut |_| {}).unwrap();
    assert!(newer.is_named_by(&path).unwrap() && fs::symlink_metadata(&link).unwrap().is_symlink());
}

#[test]
fn without_space_nothing_is_left() {
    for parent in ["/dev/shm", "/tmp"] {
        let scratch = Scratch::new(parent, "full");
        let path = scratch.file("volume");
        let error = create(&path, 1 << 50).unwrap_err();
        let OpenError::NoSpace { needed_bytes, free_bytes, .. } = &error else { panic!("{error}") };
        assert!(*needed_bytes == 1 << 50 && *free_bytes > 0 && *free_bytes < 1 << 50);
        let text = error.to_string();
        assert!(text.contains(path.to_str().unwrap()) && text.contains("free"), "{text}");
        assert!(!path.exists());
    }
}

#[test]
fn what_cannot_be_opened() {
    let scratch = Scratch::new("/dev/shm", "wrong");
    let open = |path: &Path| Medium::open(path, OpenOptions::default()).map(|_| ()).unwrap_err();
    let missing = open(&scratch.file("missing"));
    assert!(matches!(&missing, OpenError::NotThere { .. }));
    assert!(missing.to_string().contains("missing: cannot open the medium"), "{missing}");
    assert!(matches!(open(Path::new("/dev/null")), OpenError::WrongType { .. }));
    // A directory cannot be opened for writing at all; read-only it is of the wrong type.
    let read_only = OpenOptions { read_only: true, ..OpenOptions::default() };
    assert!(matches!(Medium::open(&scratch.0, read_only), Err(OpenError::WrongType { kind: "a directory", .. })));
    for length in [0, 1, 4095, 4097] {
        let path = scratch.file("odd");
        File::create(&path).unwrap().set_len(length).unwrap();
        assert!(matches!(open(&path), OpenError::WrongLength { .. }));
        assert!(matches!(create(&scratch.file("new"), length), Err(OpenError::WrongLength { .. })));
    }
    assert!(matches!(create(&scratch.file("no/such/directory"), 4096), Err(OpenError::System { .. })));
}

#[test]
fn bounds_and_permissions() {
    let scratch = Scratch::new("/dev/shm", "bounds");
    let path = scratch.file("volume");
    let medium = create(&path, 8192).unwrap();
    let reader = Medium::open(&path, OpenOptions { read_only: true, ..OpenOptions::default() }).unwrap();
    assert!(reader.is_read_only() && !medium.is_read_only());
    let mut one = [0];
    assert_eq!(reader.read(at(8191), &mut one), Ok(()));
    for outside in [8192, 8193, u64::MAX - 7, u64::MAX, 1 << 63] {
        let expected = AccessError::OutOfRange { at: at(outside), length: 1 };
        assert_eq!(reader.read(at(outside), &mut one), Err(expected));
        assert_eq!(medium.write(at(outside), &one), Err(expected));
        assert_eq!(medium.hash(0, at(outside), 1), Err(expected));
        assert_eq!(medium.zero(at(outside), 1), Err(expected));
        assert_eq!(medium.flush(at(outside), 1), Err(expected));
        assert_eq!(medium.copy_within(at(outside), at(0), 1), Err(expected));
        assert_eq!(medium.copy_within(at(0), at(outside), 1), Err(expected));
        assert_eq!(medium.write_from_user(at(outside), &mut Source::from_slice(&one), 1), Err(expected));
        let mut buffer = [0; 1];
        assert_eq!(medium.read_to_user(at(outside), &mut Destination::from_slice(&mut buffer), 1), Err(expected));
        assert!(medium.store_u64(at(outside & !7), 1).is_err() && medium.load_u64(at(outside & !7)).is_err());
    }
    assert!(medium.zero(at(1), u64::MAX).is_err());
    assert_eq!(medium.load_u64(at(4)), Err(AccessError::Misaligned { at: at(4) }));
    assert_eq!(medium.store_u64(at(4), 0), Err(AccessError::Misaligned { at: at(4) }));
    assert_eq!(medium.write(at(8192), &[]), Ok(()));
    assert_eq!(reader.write(at(0), &one), Err(AccessError::ReadOnly));
    assert_eq!(reader.store_u64(at(0), 0), Err(AccessError::ReadOnly));
    assert_eq!(reader.zero(at(0), 1), Err(AccessError::ReadOnly));
}

#[test]
fn memory_files_by_descriptor() {
    let medium = Medium::create_in_memory("shared", 4096, CreateOptions::default()).unwrap();
    assert_eq!(medium.kind(), MediumKind::Memory);
    medium.store_u64(at(16), 7).unwrap();
    let path = format!("/proc/self/fd/{}", medium.descriptor().unwrap().as_raw_fd());
    let file = File::options().read(true).write(true).open(&path).unwrap();
    let again = Medium::from_file(file, Path::new(&path), OpenOptions::default()).unwrap();
    assert_eq!(again.load_u64(at(16)), Ok(7));
    assert_eq!(again.source(at(16)).unwrap().offset, 16);
}

#[test]
fn who_may_not_is_told_what_and_whom_to_ask() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("left out: only root can become another user");
        return;
    }
    let scratch = Scratch::new("/dev/shm", "forbidden");
    let path = scratch.file("volume");
    Medium::create(&path, 1 << 20, CreateOptions::default(), &mut |_| {}).unwrap();
    fs::set_permissions(&scratch.0, PermissionsExt::from_mode(0o755)).unwrap();
    for (mode, read_only, expected) in [
        (0o600, false, Some("read")),
        (0o600, true, Some("read")),
        (0o644, false, Some("write to")),
        (0o644, true, None),
    ] {
        fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
        let outcome = std::thread::scope(|scope| {
            let as_nobody = || {
                // The thread's alone, and without root's capabilities: those go with the last user id that is root's.
                let nobody = rustix::process::Uid::from_raw(65534);
                rustix::thread::set_thread_res_uid(nobody, nobody, nobody).unwrap();
                Medium::open(&path, OpenOptions { read_only, ..OpenOptions::default() }).map(drop)
            };
            scope.spawn(as_nobody).join().unwrap()
        });
        match (outcome, expected) {
            (Ok(()), None) => {}
            (Err(OpenError::Forbidden { deed, .. }), Some(expected)) => assert_eq!(deed, expected),
            other => panic!("{mode:o} {read_only}: {other:?}"),
        }
    }
}

#[test]
fn huge_pages_that_are_missing_are_counted() {
    let scratch = Scratch::new("/tmp", "huge");
    let mounted = rustix::mount::mount("none", &scratch.0, "hugetlbfs", rustix::mount::MountFlags::empty(), None);
    if let Err(error) = mounted {
        eprintln!("left out: hugetlbfs cannot be mounted: {error}");
        return;
    }
    let path = scratch.file("volume");
    // More than any machine has.
    let outcome = Medium::create(&path, 1 << 44, CreateOptions::default(), &mut |_| {}).map(drop);
    let left_behind = path.exists();
    rustix::mount::unmount(&scratch.0, rustix::mount::UnmountFlags::DETACH).unwrap();
    let error = outcome.unwrap_err();
    assert!(matches!(&error, OpenError::NoHugePages { needed, free, .. } if free < needed), "{error}");
    assert!(error.to_string().contains("/nr_hugepages"), "{error}");
    assert!(!left_behind);
}
