//! The namespace against the best oracle there is: the same random calls on the kernel's tmpfs, errno by errno, as root and
//! as two users. Without root only the calling user's part runs.

mod actors;
mod both;
mod calls;

use actors::{ACTORS, Random};
use both::Both;
use calls::Call;

use gannet_memfs::{Limits, MemoryFs};
use gannet_vfs::namespace::{Boundary, Credentials, LastMode, Namespace, PathBuffer, Resolution, ResolveFlags, Walker};
use gannet_vfs::{FileSystem, FileType, Owner};
use rustix::fs::{self as kernel, Mode, OFlags};
use rustix::thread::CapabilitySet;

fn campaign(seed: u64, calls: u64) -> (u64, u64, u64) {
    let top = tempfile::Builder::new().prefix("gannet-vfs-").tempdir_in("/dev/shm").unwrap();
    let root = top.path().join("w/x/y/z/r");
    std::fs::create_dir_all(&root).unwrap();
    let at = kernel::open(&root, OFlags::RDONLY, Mode::empty()).unwrap();
    for path in root.ancestors().take(6) {
        kernel::chmod(path, Mode::from_raw_mode(0o755)).unwrap();
    }
    kernel::fchmod(&at, Mode::from_raw_mode(0o777)).unwrap();
    let fs = MemoryFs::new(Limits::default(), 0o777, Owner::default()).unwrap();
    let mut both = Both { fs, at, compared: 0, succeeded: 0, left: 0 };
    let mut buffers = [PathBuffer::new(), PathBuffer::new()];
    let mut random = Random(seed);
    for index in 0..calls {
        let actor = if index < 12 { ACTORS[0] } else { random.pick(&ACTORS) };
        let call = match index {
            // Directories for all to begin with.
            0..12 => Call::Mkdir(
                ["a", "b", "a/a", "a/b", "b/c", "b/d", "a/b/a", "a/a/a", "b/c/a", "b/b", "c", "c/a"][index as usize]
                    .into(),
                if seed.is_multiple_of(2) { 0o777 } else { 0o2775 },
            ),
            _ => Call::random(&mut random),
        };
        both.call(actor, &call, &mut buffers);
    }
    both.compare(both.fs.root(), &both.at);
    (both.compared, both.succeeded, both.left)
}

#[test]
fn the_namespace_says_what_the_kernel_says() {
    // In a container root may lack what file systems ask for: the kernel's answers are another's then.
    let all = rustix::thread::capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::SYS_ADMIN));
    if !rustix::process::geteuid().is_root() || !all {
        println!("skipped: it needs root to act as several users");
        return;
    }
    rustix::process::umask(Mode::empty());
    let rounds = if std::env::var_os("GANNET_LONG").is_some() { 3000 } else { 60 };
    let (mut compared, mut succeeded, mut left) = (0, 0, 0);
    for seed in 0..rounds {
        let (c, s, l) = campaign(seed, 250);
        (compared, succeeded, left) = (compared + c, succeeded + s, left + l);
    }
    println!("{compared} calls compared, {succeeded} of them successful; {left} left the volume");
    assert!(compared > rounds * 100 && succeeded * 6 > compared, "{compared} compared, {succeeded} successful");
}

#[test]
fn openat2_agrees_on_boundaries() {
    let top = tempfile::Builder::new().prefix("gannet-vfs-").tempdir_in("/dev/shm").unwrap();
    let fs = MemoryFs::new(Limits::default(), 0o777, Owner::default()).unwrap();
    let at = kernel::open(top.path(), OFlags::RDONLY, Mode::empty()).unwrap();
    let view = Namespace::new(&fs, Credentials::ROOT);
    let (who, mut buffer) = (Credentials::ROOT, PathBuffer::new());
    let mut make = |path: &str, file_type, target: &str| {
        let walker = Walker { boundary: Boundary::Contain, ..Walker::new(&fs, &who) };
        let flags = ResolveFlags::empty();
        let place = walker.resolve(fs.root(), path.as_bytes(), LastMode::Parent, flags, &mut buffer).unwrap();
        let Resolution::Place(place) = place else { panic!("left") };
        view.make(&place, file_type, 0o777, 0, target.as_bytes()).unwrap();
        match file_type {
            FileType::Directory => kernel::mkdirat(&at, path, Mode::from_raw_mode(0o777)).unwrap(),
            _ => kernel::symlinkat(target, &at, path).unwrap(),
        }
    };
    for path in ["a", "a/b", "a/b/c"] {
        make(path, FileType::Directory, "");
    }
    let targets =
        ["b", "../a/b", "../../a", "/a/b", "/", "..", "../..", ".", "up/../../a", "/a/up", "loop", "b/c/../../../a"];
    for (index, target) in targets.iter().enumerate() {
        make(&format!("a/l{index}"), FileType::Symlink, target);
    }
    make("a/up", FileType::Symlink, "..");
    make("a/loop", FileType::Symlink, "loop");
    let mut paths: Vec<String> = ["a", "a/..", "a/../..", "/a", "/", "../x", "a/b/../../..", "a/b/../../../a", "x"]
        .into_iter()
        .map(String::from)
        .collect();
    for index in 0..targets.len() {
        for tail in ["", "/", "/b", "/..", "/../..", "/c/.."] {
            paths.push(format!("a/l{index}{tail}"));
        }
    }
    let (mut same, mut buffer) = (0, PathBuffer::new());
    for path in &paths {
        for (ours, theirs) in [
            (ResolveFlags::BENEATH, kernel::ResolveFlags::BENEATH),
            (ResolveFlags::IN_ROOT, kernel::ResolveFlags::IN_ROOT),
            (
                ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS,
                kernel::ResolveFlags::BENEATH | kernel::ResolveFlags::NO_SYMLINKS,
            ),
            (
                ResolveFlags::IN_ROOT | ResolveFlags::NO_SYMLINKS,
                kernel::ResolveFlags::IN_ROOT | kernel::ResolveFlags::NO_SYMLINKS,
            ),
        ] {
            for mode in [LastMode::Follow, LastMode::NoFollow] {
                let flags = if mode == LastMode::Follow { OFlags::PATH } else { OFlags::PATH | OFlags::NOFOLLOW };
                let kernels = kernel::openat2(&at, path.as_str(), flags, Mode::empty(), theirs).map(|fd| {
                    let stat = kernel::fstat(&fd).unwrap();
                    (kernel::FileType::from_raw_mode(stat.st_mode) == kernel::FileType::Symlink, stat.st_nlink as u64)
                });
                let found = Walker::new(&fs, &who)
                    .resolve(fs.root(), path.as_bytes(), mode, ours, &mut buffer)
                    .and_then(|resolution| match resolution {
                        Resolution::Place(place) => place.existing(),
                        Resolution::Left(_) => panic!("{path} left"),
                    })
                    .map(|found| (found.file_type == FileType::Symlink, fs.attributes(found.node).unwrap().links));
                assert_eq!(found.map_err(|error| error.errno()), kernels, "{path} {ours:?} {mode:?}");
                same += 1;
            }
        }
    }
    assert!(same > 500);
}
