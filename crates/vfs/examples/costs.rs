//! What walks, descriptions and locks cost, beside the lookups that a walk cannot do without. To be run with `--release`.

use std::hint::black_box;
use std::time::Instant;

use gannet_memfs::{Limits, MemoryFs};
use gannet_vfs::namespace::{
    Capabilities, Credentials, LastMode, Namespace, OpenFlags, PathBuffer, Resolution, ResolveFlags, Walker,
};
use gannet_vfs::shared::{AccessMode, LockOwner, LockRange, LockRequest};
use gannet_vfs::{FileSystem, Name, NewNode, Owner};

/// The median over runs of the nanoseconds for one call.
fn measure(what: &str, mut call: impl FnMut()) {
    const CALLS: u32 = 20_000;
    let mut runs: Vec<f64> = (0..21)
        .map(|_| {
            let began = Instant::now();
            (0..CALLS).for_each(|_| call());
            began.elapsed().as_nanos() as f64 / f64::from(CALLS)
        })
        .collect();
    runs.sort_by(f64::total_cmp);
    println!("{:8.1} ns  {what}", runs[runs.len() / 2]);
}

fn main() {
    let fs = MemoryFs::new(Limits::default(), 0o755, Owner::default()).expect("a file system");
    let names = ["one", "two", "three", "four"].map(|text| Name::new(text.as_bytes()).expect("a name"));
    let mut directory = fs.root();
    for name in names {
        directory = fs.create(directory, name, &NewNode::directory(0o755, Owner::default())).expect("a directory");
    }
    let last = Name::new(b"file").expect("a name");
    let file = fs.create(directory, last, &NewNode::regular(0o644, Owner::default())).expect("a file");

    measure("five lookups", || {
        let mut at = fs.root();
        for name in names {
            at = fs.lookup(at, name).expect("a directory").node;
        }
        black_box(fs.lookup(at, last).expect("a file"));
    });
    measure("five lookups and permissions", || {
        let mut at = fs.root();
        for name in names {
            black_box(fs.permissions(at).expect("permissions"));
            at = fs.lookup(at, name).expect("a directory").node;
        }
        black_box(fs.permissions(at).expect("permissions"));
        black_box(fs.lookup(at, last).expect("a file"));
    });
    let user = Credentials {
        user: 1000,
        group: 100,
        groups: &[],
        capabilities: Capabilities::empty(),
        umask: 0,
        namespace: None,
    };
    let mut buffer = PathBuffer::new();
    for (who, text) in [(Credentials::ROOT, "walk five deep as root"), (user, "walk five deep as a user")] {
        measure(text, || {
            let path = black_box(&b"one/two/three/four/file"[..]);
            let walker = Walker::new(&fs, &who);
            let walked = walker.resolve(fs.root(), path, LastMode::Follow, ResolveFlags::empty(), &mut buffer);
            black_box(walked.is_ok());
        });
    }
    let view = Namespace::new(&fs, Credentials::ROOT);
    let walker = Walker::new(&fs, &Credentials::ROOT);
    measure("walk one deep and check an open", || {
        let flags = OpenFlags::RDWR;
        let walked = walker.resolve(directory, b"file", LastMode::Follow, ResolveFlags::empty(), &mut buffer);
        if let Ok(Resolution::Place(place)) = walked {
            black_box(view.open(&place, flags, 0).is_ok());
        }
    });
    let shared = fs.shared();
    measure("the file system's part of it: permissions, retire", || {
        black_box(fs.permissions(file).expect("permissions"));
        fs.retire(file).expect("retire");
    });
    measure("open and close a description", || {
        let description = shared.open(&fs, file, AccessMode::READ, 0).expect("open");
        shared.close(&fs, description).expect("close");
    });
    let description = shared.open(&fs, file, AccessMode::READ, 0).expect("open");
    measure("in_use", || assert!(shared.in_use(black_box(file))));
    measure("info", || assert!(shared.info(black_box(description)).is_ok()));
    measure("take the offset, move it, release it", || {
        let offset = shared.offset(description).expect("offset");
        offset.set(offset.get() + 1);
    });
    let owner = LockOwner::OpenFile(description);
    let range = LockRange { start: 0, end: 10 };
    let lock = LockRequest { node: file, owner, exclusive: Some(true), range, process: 1 };
    measure("lock and unlock a range", || {
        shared.try_lock(&fs, &lock).expect("lock");
        shared.try_lock(&fs, &LockRequest { exclusive: None, ..lock }).expect("unlock");
    });
}
