//! What each operation costs through the library, beside its floor (the copy and the fence alone) and beside the same
//! operation by system calls on tmpfs: medians of interleaved rounds, the slowest calls, and what the medium was made to do.
//! The volume lies in `/dev/shm`.
//!
//! `cargo run --release -p gannet-bench --bin costs -- [WORD…]`, words in any order: `copy-on-write` (else data is changed
//! in place), `plain` (else persistent memory is emulated), `aged` (else the volume is new; aged: 90 % full, its free space
//! in pieces), `rounds=N`, and parts of names of operations (else all). Without the latter, or with `opening` alone, also what it costs to
//! open a volume and to take over from the killed: of 100,000 files, or `files=N`, for which 4 KiB each must be free in `/dev/shm`.

mod opening;
mod subject;

use gannet_logfs::{AttachOptions, LogFs, MakeOptions, NoUsers, make};
use gannet_media::{CreateOptions, Medium, MediumOffset, OpenOptions};
use gannet_vfs::usermem::{Destination, Source};
use gannet_vfs::{FileSystem, Name, NewNode, NodeId, Owner, RemoveKind, SyncScope, Time, WriteFlags, WritePosition};
use std::cell::Cell;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use subject::{CALLS, Step, Subject, simple, subject};

const VOLUME_BYTES: u64 = 1 << 30;
const FILE_BYTES: u64 = 256 << 20;
const BLOCK_BYTES: u64 = 4096;
const MEBIBYTE: usize = 1 << 20;
const ROUNDS: usize = 15;
const FILES: u64 = 100_000;

/// The thread's time on a processor, its system calls included: what other programs take meanwhile does not count.
fn thread_nanoseconds() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) % bound
    }
}

fn name(text: &str) -> Name<'_> {
    Name::new(text.as_bytes()).expect("a name")
}

fn regular() -> NewNode<'static> {
    NewNode::regular(0o644, Owner::default())
}

fn append(fs: &LogFs, node: NodeId, bytes: &[u8]) {
    fs.write(node, WritePosition::Append, &mut Source::from_slice(bytes), WriteFlags::empty()).expect("append");
}

fn unlink(fs: &LogFs, directory: NodeId, what: &str) {
    fs.remove(directory, name(what), RemoveKind::NonDirectory).expect("remove");
}

/// What was asked for.
struct Wish {
    copy_on_write: bool,
    plain: bool,
    aged: bool,
    rounds: usize,
    files: u64,
    opening: bool,
    parts: Vec<String>,
}

impl Wish {
    fn from_arguments() -> Self {
        let mut wish = Self {
            copy_on_write: false,
            plain: false,
            aged: false,
            rounds: ROUNDS,
            files: FILES,
            opening: false,
            parts: Vec::new(),
        };
        for word in std::env::args().skip(1) {
            match word.split_once('=').unwrap_or((&word, "")) {
                ("in-place", _) => wish.copy_on_write = false,
                ("copy-on-write", _) => wish.copy_on_write = true,
                ("plain", _) => wish.plain = true,
                ("emulated", _) => wish.plain = false,
                ("aged", _) => wish.aged = true,
                ("opening", _) => wish.opening = true,
                ("rounds", rounds) => wish.rounds = rounds.parse::<usize>().expect("a number").max(1),
                ("files", files) => wish.files = files.parse::<u64>().expect("a number").max(1),
                _ => wish.parts.push(word),
            }
        }
        wish
    }

    /// Whether operations are measured, and whether openings.
    fn measures(&self) -> (bool, bool) {
        (!self.opening || !self.parts.is_empty(), self.opening || self.parts.is_empty())
    }
}

/// A new volume.
fn make_volume(path: &Path, wish: &Wish, create: CreateOptions, bytes: u64) {
    let medium = Medium::create(path, bytes, create, &mut |_| {}).expect("a volume in /dev/shm");
    let options = MakeOptions {
        label: String::new(),
        copy_on_write: wish.copy_on_write,
        emulate_persistence: !wish.plain,
        owner: Owner::default(),
        mode: 0o755,
        random: [9; 24],
        now: Time::now(),
    };
    make(&medium, &options).expect("mkfs");
}

fn attach_options() -> AttachOptions {
    AttachOptions {
        index_bytes_max: 256 << 20,
        copy_on_write: None,
        access_times: Default::default(),
        threads: 2,
        users: Box::new(NoUsers),
    }
}

/// Fills a volume with small files and removes every other one at random, until what is free is in pieces and, with the
/// file that is measured, a tenth of the volume.
fn age(fs: &LogFs) {
    let mut random = Random(77);
    let content = vec![5_u8; 64 << 10];
    let directories: Vec<NodeId> = (0..16)
        .map(|number| {
            let new = NewNode::directory(0o755, Owner::default());
            fs.create(fs.root(), name(&format!("age{number}")), &new).expect("mkdir")
        })
        .collect();
    let blocks = VOLUME_BYTES / BLOCK_BYTES;
    let free = |fs: &LogFs| fs.statistics().expect("statistics").blocks_free;
    let mut files: Vec<(NodeId, String)> = Vec::new();
    let mut number = 0;
    for wanted_free in [blocks / 50, blocks / 3, blocks / 50, FILE_BYTES / BLOCK_BYTES + blocks / 10] {
        while free(fs) > wanted_free && wanted_free == blocks / 50 {
            let (directory, file) = (directories[number % directories.len()], format!("file{number}"));
            let node = fs.create(directory, name(&file), &regular()).expect("create");
            append(fs, node, &content[..1 + random.below(content.len() as u64 - 1) as usize]);
            files.push((directory, file));
            number += 1;
        }
        while free(fs) < wanted_free {
            let (directory, file) = files.swap_remove(random.below(files.len() as u64) as usize);
            unlink(fs, directory, &file);
        }
    }
}

fn main() {
    opening::work_if_child();
    let wish = Wish::from_arguments();
    let path = PathBuf::from(format!("/dev/shm/gannet-costs-{}", std::process::id()));
    let peer = PathBuf::from(format!("/dev/shm/gannet-costs-peer-{}", std::process::id()));
    let create = CreateOptions {
        open: OpenOptions { emulate_persistence: !wish.plain, ..OpenOptions::default() },
        ..CreateOptions::default()
    };
    let (operations, openings) = wish.measures();
    if operations {
        std::fs::create_dir_all(peer.join("a/b/c/d")).expect("a directory on tmpfs");
        make_volume(&path, &wish, create, VOLUME_BYTES);
        let fs = LogFs::open(&path, false, attach_options()).expect("attach");
        if wish.aged {
            age(&fs);
        }
        measure(&fs, &peer, create, &wish);
        drop(fs);
        let _ = std::fs::remove_file(&path);
        let _ = std::fs::remove_dir_all(&peer);
    }
    if openings {
        opening::measure(&path, create, &wish, wish.files);
    }
}

fn measure(fs: &LogFs, peer: &Path, create: CreateOptions, wish: &Wish) {
    let root = fs.root();
    let none = WriteFlags::empty();

    // A file of which every block is mapped, and the same on tmpfs.
    let file = fs.create(root, name("file"), &regular()).expect("create");
    let mebibyte = vec![7_u8; MEBIBYTE];
    let peer_file =
        File::options().read(true).write(true).create(true).truncate(false).open(peer.join("file")).expect("peer");
    for at in (0..FILE_BYTES).step_by(MEBIBYTE) {
        fs.write(file, WritePosition::At(at), &mut Source::from_slice(&mebibyte), none).expect("fill");
        peer_file.write_all_at(&mebibyte, at).expect("fill the peer");
    }
    let mut deep = vec![root];
    for part in ["a", "b", "c", "d"] {
        let next = fs.create(deep[deep.len() - 1], name(part), &NewNode::directory(0o755, Owner::default()));
        deep.push(next.expect("mkdir"));
    }
    let leaf_directory = deep[4];
    fs.create(leaf_directory, name("leaf"), &regular()).expect("create");
    File::create(peer.join("a/b/c/d/leaf")).expect("peer leaf");

    let floor = Medium::create_in_memory("floor", FILE_BYTES, create).expect("memory");
    floor.zero(MediumOffset(0), FILE_BYTES).expect("memory");
    let block = vec![3_u8; BLOCK_BYTES as usize];
    let random = Cell::new(1_u64);
    // One order of places for all, each drawing on where the other stopped.
    let place = |unit: u64| {
        let mut state = Random(random.get());
        let at = state.below(FILE_BYTES / unit) * unit;
        random.set(state.0);
        at
    };
    let (mut into_a, mut into_b, mut into_c) = (vec![0_u8; 4096], vec![0_u8; 4096], vec![0_u8; 4096]);
    let (mut big_a, mut big_b) = (vec![0_u8; MEBIBYTE], vec![0_u8; MEBIBYTE]);
    let (mut appended, mut small) = (None::<NodeId>, None::<NodeId>);
    let few = CALLS / 40;

    let mut subjects = vec![
        simple("4 KiB copy and fence (floor)", CALLS, || {
            let at = MediumOffset(place(4096));
            floor.write_from_user(at, &mut Source::from_slice(&block), 4096).expect("copy");
            floor.fence();
        }),
        simple("4 KiB overwrite", CALLS, || {
            fs.write(file, WritePosition::At(place(4096)), &mut Source::from_slice(&block), none).expect("write");
        }),
        simple("4 KiB overwrite, tmpfs", CALLS / 4, || {
            peer_file.write_all_at(&block, place(4096)).expect("write");
        }),
        simple("4 KiB copy out (floor)", CALLS, || {
            let at = MediumOffset(place(4096));
            floor.read_to_user(at, &mut Destination::from_slice(&mut into_a), 4096).expect("copy");
        }),
        simple("4 KiB read", CALLS, || {
            fs.read(file, place(4096), &mut Destination::from_slice(&mut into_b)).expect("read");
        }),
        simple("4 KiB read, tmpfs", CALLS / 4, || {
            peer_file.read_exact_at(&mut into_c, place(4096)).expect("read");
        }),
        simple("1 MiB copy and fence (floor)", few, || {
            let at = MediumOffset(place(MEBIBYTE as u64));
            floor.write_from_user(at, &mut Source::from_slice(&mebibyte), MEBIBYTE).expect("copy");
            floor.fence();
        }),
        simple("1 MiB overwrite", few, || {
            let at = WritePosition::At(place(MEBIBYTE as u64));
            fs.write(file, at, &mut Source::from_slice(&mebibyte), none).expect("write");
        }),
        simple("1 MiB copy out (floor)", few, || {
            let at = MediumOffset(place(MEBIBYTE as u64));
            floor.read_to_user(at, &mut Destination::from_slice(&mut big_a), MEBIBYTE).expect("copy");
        }),
        simple("1 MiB read", few, || {
            fs.read(file, place(MEBIBYTE as u64), &mut Destination::from_slice(&mut big_b)).expect("read");
        }),
        subject("4 KiB append + fsync", CALLS, |step| match step {
            Step::Begin => appended = Some(fs.create(root, name("append"), &regular()).expect("create")),
            Step::Call => {
                let node = appended.expect("begun");
                append(fs, node, &block);
                fs.sync(node, SyncScope::Data).expect("sync");
            }
            Step::End => unlink(fs, root, "append"),
        }),
        subject("64 B append + fsync", CALLS, |step| match step {
            Step::Begin => small = Some(fs.create(root, name("small"), &regular()).expect("create")),
            Step::Call => {
                let node = small.expect("begun");
                append(fs, node, &block[..64]);
                fs.sync(node, SyncScope::Data).expect("sync");
            }
            Step::End => unlink(fs, root, "small"),
        }),
        simple("create + unlink", CALLS, || {
            fs.create(root, name("brief"), &regular()).expect("create");
            unlink(fs, root, "brief");
        }),
        simple("create + 4 KiB write + unlink", CALLS, || {
            let node = fs.create(root, name("brief"), &regular()).expect("create");
            append(fs, node, &block);
            unlink(fs, root, "brief");
        }),
        simple("create + close + unlink, tmpfs", CALLS / 4, || {
            let path = peer.join("brief");
            drop(File::create(&path).expect("create"));
            std::fs::remove_file(&path).expect("remove");
        }),
        simple("five lookups and attributes", CALLS, || {
            let mut at = root;
            for part in ["a", "b", "c", "d", "leaf"] {
                at = fs.lookup(at, name(part)).expect("lookup").node;
            }
            fs.attributes(at).expect("attributes");
        }),
        simple("stat five deep, tmpfs", CALLS / 4, || {
            std::fs::metadata(peer.join("a/b/c/d/leaf")).expect("stat");
        }),
        simple("two renames within a directory", CALLS, || {
            for (from, to) in [("leaf", "leaf2"), ("leaf2", "leaf")] {
                fs.rename(leaf_directory, name(from), leaf_directory, name(to), Default::default()).expect("rename");
            }
        }),
    ];
    if !wish.parts.is_empty() {
        subjects.retain(|subject| wish.parts.iter().any(|part| subject.name.contains(part.as_str())));
    }
    for _ in 0..wish.rounds {
        subjects.iter_mut().for_each(|subject| subject.round(wish.rounds));
    }
    println!(
        "volume in /dev/shm, {}; {}; data {}; median of {} rounds of {CALLS} calls",
        if wish.plain { "plain memory" } else { "persistent memory emulated" },
        if wish.aged { "aged, 90 % full" } else { "new" },
        if wish.copy_on_write { "copy-on-write" } else { "in place" },
        wish.rounds,
    );
    println!(
        "{:<42} {:>8} {:>8} {:>8} {:>8} {:>5} {:>7} {:>8} {:>8} {:>9}",
        "per call", "ns", "p50", "p99", "p99.99", "/p50", "fences", "streamed", "flushed", "bytes"
    );
    subjects.iter_mut().for_each(Subject::print);
    println!("p50 and up are of single calls, with what the clock costs (about 25 ns)");
    println!(
        "fences, lines past the cache, lines written back and bytes stored to the medium carry over to real hardware"
    );
}
