//! What each operation costs through the library, beside its floor (the copy and the fence alone) and beside the same
//! operation by system calls on tmpfs: medians of interleaved rounds on a volume in `/dev/shm`, emulated persistent memory.
//!
//! `cargo run --release -p gannet-bench --bin costs [in-place|copy-on-write [PART OF A NAME]]`

use gannet_logfs::{AttachOptions, LogFs, MakeOptions, NoUsers, make};
use gannet_media::{Counters, CreateOptions, Medium, MediumOffset, OpenOptions};
use gannet_vfs::usermem::{Destination, Source};
use gannet_vfs::{FileSystem, Name, NewNode, NodeId, Owner, RemoveKind, SyncScope, Time, WriteFlags, WritePosition};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

const VOLUME_BYTES: u64 = 1 << 30;
const FILE_BYTES: u64 = 256 << 20;
const ROUNDS: usize = 15;
const CALLS: u32 = 4000;

/// The thread's time on a processor, its system calls included: what other programs take meanwhile does not count.
fn thread_nanoseconds() -> f64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    now.tv_sec as f64 * 1e9 + now.tv_nsec as f64
}

struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) % bound
    }
}

/// Something that is timed: a name, and work for a number of calls.
struct Subject<'a> {
    name: &'static str,
    work: Box<dyn FnMut(u32) + 'a>,
    calls: u32,
    nanoseconds: Vec<f64>,
    counters: Counters,
}

fn subject<'a>(name: &'static str, calls: u32, work: impl FnMut(u32) + 'a) -> Subject<'a> {
    Subject { name, work: Box::new(work), calls, nanoseconds: Vec::new(), counters: Counters::default() }
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn name(text: &str) -> Name<'_> {
    Name::new(text.as_bytes()).expect("a name")
}

fn main() {
    let copy_on_write = std::env::args().nth(1).is_some_and(|mode| mode == "copy-on-write");
    let path = PathBuf::from(format!("/dev/shm/gannet-costs-{}", std::process::id()));
    let peer = PathBuf::from(format!("/dev/shm/gannet-costs-peer-{}", std::process::id()));
    std::fs::create_dir_all(peer.join("a/b/c/d")).expect("a directory on tmpfs");
    let create = CreateOptions {
        open: OpenOptions { emulate_persistence: true, ..OpenOptions::default() },
        ..CreateOptions::default()
    };
    let medium = Medium::create(&path, VOLUME_BYTES, create, &mut |_| {}).expect("a volume in /dev/shm");
    let options = MakeOptions {
        label: String::new(),
        copy_on_write,
        emulate_persistence: true,
        owner: Owner::default(),
        mode: 0o755,
        random: [9; 24],
        now: Time::now(),
    };
    make(&medium, &options).expect("mkfs");
    drop(medium);
    let attach = AttachOptions {
        index_bytes_max: 256 << 20,
        copy_on_write: None,
        access_times: Default::default(),
        threads: 2,
        users: Box::new(NoUsers),
    };
    let fs = LogFs::open(&path, false, attach).expect("attach");
    let root = fs.root();
    let none = WriteFlags::empty();

    // A file of which every block is mapped, and the same on tmpfs.
    let file = fs.create(root, name("file"), &NewNode::regular(0o644, Owner::default())).expect("create");
    let mebibyte = vec![7_u8; 1 << 20];
    for at in (0..FILE_BYTES).step_by(mebibyte.len()) {
        fs.write(file, WritePosition::At(at), &mut Source::from_slice(&mebibyte), none).expect("fill");
    }
    let peer_file =
        File::options().read(true).write(true).create(true).truncate(false).open(peer.join("file")).expect("peer");
    for at in (0..FILE_BYTES).step_by(mebibyte.len()) {
        peer_file.write_all_at(&mebibyte, at).expect("fill the peer");
    }
    let mut deep = vec![root];
    for part in ["a", "b", "c", "d"] {
        let next = fs.create(deep[deep.len() - 1], name(part), &NewNode::directory(0o755, Owner::default()));
        deep.push(next.expect("mkdir"));
    }
    let leaf_directory = deep[4];
    fs.create(leaf_directory, name("leaf"), &NewNode::regular(0o644, Owner::default())).expect("create");
    File::create(peer.join("a/b/c/d/leaf")).expect("peer leaf");

    let floor_medium = Medium::create_in_memory("floor", FILE_BYTES, create).expect("memory");
    let block = vec![3_u8; 4096];
    let (mut seed_a, mut seed_b, mut seed_c, mut seed_d, mut seed_e, mut seed_f) =
        (Random(1), Random(2), Random(3), Random(4), Random(5), Random(6));
    let (mut into_a, mut into_b, mut into_c) = (vec![0_u8; 4096], vec![0_u8; 4096], vec![0_u8; 4096]);
    let mut seed_g = Random(7);
    let word = std::sync::atomic::AtomicU64::new(0);
    let blocks = FILE_BYTES / 4096;
    let mut appended: Option<NodeId> = None;
    let mut small: Option<NodeId> = None;

    let mut subjects = vec![
        subject("4 KiB copy and fence (floor)", CALLS, |count| {
            for _ in 0..count {
                let at = MediumOffset(seed_a.below(blocks) * 4096);
                floor_medium.write_from_user(at, &mut Source::from_slice(&block), 4096).expect("copy");
                floor_medium.fence();
            }
        }),
        subject("4 KiB compare-and-swap, copy and fence (floor of a lock)", CALLS, |count| {
            for _ in 0..count {
                let at = MediumOffset(seed_g.below(blocks) * 4096);
                word.fetch_add(1, std::sync::atomic::Ordering::AcqRel);
                floor_medium.write_from_user(at, &mut Source::from_slice(&block), 4096).expect("copy");
                floor_medium.fence();
            }
        }),
        subject("4 KiB overwrite", CALLS, |count| {
            for _ in 0..count {
                let at = WritePosition::At(seed_b.below(blocks) * 4096);
                fs.write(file, at, &mut Source::from_slice(&block), none).expect("write");
            }
        }),
        subject("4 KiB overwrite, tmpfs", CALLS, |count| {
            for _ in 0..count {
                peer_file.write_all_at(&block, seed_c.below(blocks) * 4096).expect("write");
            }
        }),
        subject("4 KiB copy out (floor)", CALLS, |count| {
            for _ in 0..count {
                let at = MediumOffset(seed_d.below(blocks) * 4096);
                floor_medium.read_to_user(at, &mut Destination::from_slice(&mut into_a), 4096).expect("copy");
            }
        }),
        subject("4 KiB read", CALLS, |count| {
            for _ in 0..count {
                fs.read(file, seed_e.below(blocks) * 4096, &mut Destination::from_slice(&mut into_b)).expect("read");
            }
        }),
        subject("4 KiB read, tmpfs", CALLS, |count| {
            for _ in 0..count {
                peer_file.read_exact_at(&mut into_c, seed_f.below(blocks) * 4096).expect("read");
            }
        }),
        subject("4 KiB append + fsync", CALLS, |count| {
            let node = fs.create(root, name("append"), &NewNode::regular(0o644, Owner::default())).expect("create");
            for _ in 0..count {
                fs.write(node, WritePosition::Append, &mut Source::from_slice(&block), none).expect("append");
                fs.sync(node, SyncScope::Data).expect("sync");
            }
            appended = Some(node);
            fs.remove(root, name("append"), RemoveKind::NonDirectory).expect("remove");
        }),
        subject("64 B append + fsync", CALLS, |count| {
            let node = fs.create(root, name("small"), &NewNode::regular(0o644, Owner::default())).expect("create");
            for _ in 0..count {
                fs.write(node, WritePosition::Append, &mut Source::from_slice(&block[..64]), none).expect("append");
                fs.sync(node, SyncScope::Data).expect("sync");
            }
            small = Some(node);
            fs.remove(root, name("small"), RemoveKind::NonDirectory).expect("remove");
        }),
        subject("create + unlink", CALLS, |count| {
            for _ in 0..count {
                fs.create(root, name("brief"), &NewNode::regular(0o644, Owner::default())).expect("create");
                fs.remove(root, name("brief"), RemoveKind::NonDirectory).expect("remove");
            }
        }),
        subject("create + close + unlink, tmpfs", CALLS / 4, |count| {
            for _ in 0..count {
                let path = peer.join("brief");
                drop(File::create(&path).expect("create"));
                std::fs::remove_file(&path).expect("remove");
            }
        }),
        subject("five lookups and attributes", CALLS, |count| {
            for _ in 0..count {
                let mut at = root;
                for part in ["a", "b", "c", "d", "leaf"] {
                    at = fs.lookup(at, name(part)).expect("lookup").node;
                }
                fs.attributes(at).expect("attributes");
            }
        }),
        subject("stat five deep, tmpfs", CALLS, |count| {
            let path = peer.join("a/b/c/d/leaf");
            for _ in 0..count {
                std::fs::metadata(&path).expect("stat");
            }
        }),
        subject("rename within a directory", CALLS, |count| {
            for _ in 0..count / 2 {
                fs.rename(leaf_directory, name("leaf"), leaf_directory, name("leaf2"), Default::default())
                    .expect("rename");
                fs.rename(leaf_directory, name("leaf2"), leaf_directory, name("leaf"), Default::default())
                    .expect("rename");
            }
        }),
    ];
    if let Some(only) = std::env::args().nth(2) {
        subjects.retain(|subject| subject.name.contains(&only));
    }
    for _ in 0..ROUNDS {
        for subject in &mut subjects {
            let _ = gannet_media::counters_reset();
            let began = thread_nanoseconds();
            (subject.work)(subject.calls);
            subject.nanoseconds.push((thread_nanoseconds() - began) / f64::from(subject.calls));
            subject.counters = gannet_media::counters_thread();
        }
    }
    println!(
        "medium: /dev/shm, persistent memory emulated; data {}; median of {ROUNDS} rounds of {CALLS} calls",
        if copy_on_write { "copy-on-write" } else { "in place" }
    );
    println!("{:<56} {:>8} {:>7} {:>8} {:>9}", "per call", "ns", "fences", "lines", "bytes");
    for subject in &mut subjects {
        let each = |count: u64| count as f64 / f64::from(subject.calls);
        let counters = subject.counters;
        let (fences, bytes) = (each(counters.fences), each(counters.bytes_stored));
        let lines = each(counters.lines_streamed + counters.lines_flushed);
        let nanoseconds = median(&mut subject.nanoseconds);
        println!("{:<56} {nanoseconds:>8.0} {fences:>7.2} {lines:>8.2} {bytes:>9.0}", subject.name);
    }
    println!(
        "fences, lines written back or past the cache, and bytes stored to the medium carry over to real hardware"
    );
    drop(subjects);
    drop(fs);
    let _ = std::fs::remove_file(&path);
    let _ = std::fs::remove_dir_all(&peer);
}
