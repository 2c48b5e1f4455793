//! What crash recovery costs, and what opening a volume costs that was closed cleanly, with the first look into what is largest
//! on it: processor time of all threads, time by the clock, memory. Medians of rounds. The volume lies in `/dev/shm`.
//!
//! `cargo run --release -p gannet-bench --bin recoveries -- [WORD…]`, words in any order:
//! `files=N` (100,000), each of `size=BYTES` (4096; 0: empty) in directories of `each=N` (1000); `links=N` symbolic links beside them;
//! `writes=N` of one block each at random places of one file of so many blocks; `threads=N` (0: as many as processors), `rounds=N` (5);
//! `volume=PATH`: made if it is not there, and kept, so that two builds can be compared on the same one.

use gannet_logfs::{AttachOptions, LogFs, MakeOptions, NoUsers, make};
use gannet_media::{CreateOptions, Medium, OpenOptions};
use gannet_vfs::usermem::{Destination, Source};
use gannet_vfs::{FileSystem, FileType, Name, NewNode, NodeId, Owner, Time, WriteFlags, WritePosition};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const BLOCK_BYTES: u64 = 4096;
/// Where the only file is that has been written to at random.
const WRITTEN: &str = "written";

/// What was asked for.
struct Wish {
    files: u64,
    size: usize,
    each: u64,
    links: u64,
    writes: u64,
    threads: usize,
    rounds: usize,
    volume: Option<PathBuf>,
}

impl Wish {
    fn from_arguments() -> Self {
        let mut wish =
            Self { files: 100_000, size: 4096, each: 1000, links: 0, writes: 0, threads: 0, rounds: 5, volume: None };
        for word in std::env::args().skip(1) {
            let (what, value) = word.split_once('=').expect("WORD=VALUE");
            let number = || value.parse::<u64>().expect("a number");
            match what {
                "files" => wish.files = number(),
                "size" => wish.size = number() as usize,
                "each" => wish.each = number().max(1),
                "links" => wish.links = number(),
                "writes" => wish.writes = number(),
                "threads" => wish.threads = number() as usize,
                "rounds" => wish.rounds = number().max(1) as usize,
                "volume" => wish.volume = Some(value.into()),
                _ => panic!("no such word: {word}"),
            }
        }
        wish
    }

    /// Of a volume that all of it fits.
    fn bytes(&self) -> u64 {
        let file = match self.size as u64 {
            0 => 256,
            size => 256 + BLOCK_BYTES + size.next_multiple_of(BLOCK_BYTES),
        };
        let content = self.files * file + self.links * (256 + BLOCK_BYTES) + self.writes * 3 * BLOCK_BYTES;
        // As many inodes as blocks.
        let content = content.max((self.files + self.links) * BLOCK_BYTES);
        (content / 16 * 17 + (64 << 20)).next_multiple_of(2 << 20)
    }
}

fn name(text: &str) -> Name<'_> {
    Name::new(text.as_bytes()).expect("a name")
}

fn open(path: &Path, threads: usize) -> LogFs {
    let medium = Medium::open(path, OpenOptions::default()).expect("the volume");
    let attach = AttachOptions {
        index_bytes_max: 1 << 30,
        copy_on_write: None,
        access_times: Default::default(),
        threads,
        users: Box::new(NoUsers),
    };
    LogFs::open_private(medium, attach).expect("attach")
}

/// A volume with all that was asked for, not closed.
fn fill(path: &Path, wish: &Wish) {
    let medium = Medium::create(path, wish.bytes(), CreateOptions::default(), &mut |_| {}).expect("/dev/shm");
    let options = MakeOptions {
        label: String::new(),
        copy_on_write: true,
        emulate_persistence: false,
        owner: Owner::default(),
        mode: 0o755,
        random: [9; 24],
        now: Time::now(),
    };
    make(&medium, &options).expect("mkfs");
    drop(medium);
    let fs = open(path, wish.threads);
    let content = vec![5_u8; wish.size.max(BLOCK_BYTES as usize)];
    let write = |node: NodeId, at: u64, bytes: &[u8]| {
        fs.write(node, WritePosition::At(at), &mut Source::from_slice(bytes), WriteFlags::empty()).expect("write");
    };
    let mut directory = fs.root();
    for number in 0..wish.files + wish.links {
        if number.is_multiple_of(wish.each) {
            let new = NewNode::directory(0o755, Owner::default());
            directory = fs.create(fs.root(), name(&format!("directory{}", number / wish.each)), &new).expect("mkdir");
        }
        let file = format!("file{number}");
        if number >= wish.files {
            let link = NewNode::of_type(FileType::Symlink, 0o777, Owner::default());
            let new = NewNode { target: b"where/it/leads", ..link };
            fs.create(directory, name(&file), &new).expect("symlink");
            continue;
        }
        let node = fs.create(directory, name(&file), &NewNode::regular(0o644, Owner::default())).expect("create");
        if wish.size > 0 {
            write(node, 0, &content[..wish.size]);
        }
    }
    if wish.writes > 0 {
        let node = fs.create(fs.root(), name(WRITTEN), &NewNode::regular(0o644, Owner::default())).expect("create");
        let mut random = 1_u64;
        for _ in 0..wish.writes {
            random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            write(node, (random >> 33) % wish.writes * BLOCK_BYTES, &content[..BLOCK_BYTES as usize]);
        }
    }
}

/// The time of all of this process's threads on a processor, and by the clock.
fn timed<T>(times: &mut Times, run: impl FnOnce() -> T) -> T {
    let processor = || {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
        now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
    };
    let (began, before) = (Instant::now(), processor());
    let outcome = run();
    times.clock.push(began.elapsed().as_secs_f64() * 1e3);
    times.processor.push((processor() - before) as f64 / 1e6);
    outcome
}

#[derive(Default)]
struct Times {
    clock: Vec<f64>,
    processor: Vec<f64>,
}

impl Times {
    fn print(mut self, what: &str) {
        for times in [&mut self.clock, &mut self.processor] {
            times.sort_by(f64::total_cmp);
        }
        let middle = self.clock.len() / 2;
        println!(
            "{what:<44} {:>10.2} {:>10.2} {:>10.2}",
            self.processor[middle], self.processor[0], self.clock[middle]
        );
    }
}

/// What is in private memory, in KiB.
fn private_kibibytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    line.and_then(|line| line.trim().trim_end_matches("kB").trim().parse().ok()).unwrap_or(0)
}

/// The most that was in private memory during `run`, looked at all the time.
fn most_memory<T>(run: impl FnOnce() -> T) -> (u64, T) {
    let (most, done) = (AtomicU64::new(0), AtomicBool::new(false));
    let before = private_kibibytes();
    let outcome = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                most.fetch_max(private_kibibytes(), Ordering::Relaxed);
                std::thread::sleep(Duration::from_micros(500));
            }
        });
        let outcome = run();
        done.store(true, Ordering::Relaxed);
        outcome
    });
    (most.into_inner().saturating_sub(before), outcome)
}

fn main() {
    let wish = Wish::from_arguments();
    let kept = wish.volume.clone();
    let path = kept.clone().unwrap_or_else(|| format!("/dev/shm/gannet-recoveries-{}", std::process::id()).into());
    if !path.exists() {
        fill(&path, &wish);
    }
    measure(&path, &wish);
    if kept.is_none() {
        let _ = std::fs::remove_file(&path);
    }
}

fn measure(path: &Path, wish: &Wish) {
    let [mut recovered, mut opened, mut listed, mut read] =
        [const { Vec::new() }; 4].map(|clock: Vec<f64>| Times { processor: Vec::new(), clock });
    // Dropped without being closed, each time.
    let (recovery_kibibytes, fs) = most_memory(|| open(path, wish.threads));
    println!("{:?}", fs.recovery());
    drop(fs);
    for _ in 0..wish.rounds {
        let fs = timed(&mut recovered, || open(path, wish.threads));
        fs.detach().expect("detach");
        drop(fs);
        let fs = timed(&mut opened, || open(path, wish.threads));
        assert!(fs.recovery().is_none(), "closed cleanly");
        if let Ok(directory) = fs.lookup(fs.root(), name("directory0")) {
            timed(&mut listed, || fs.lookup(directory.node, name("file0")).expect("lookup"));
        }
        if let Ok(file) = fs.lookup(fs.root(), name(WRITTEN)) {
            timed(&mut read, || fs.read(file.node, 0, &mut Destination::from_slice(&mut [0; 8])).expect("read"));
        }
    }
    let (opening_kibibytes, fs) = most_memory(|| open(path, wish.threads));
    drop(fs);
    println!("{:<44} {:>10} {:>10} {:>10}", "milliseconds, all threads", "processor", "least", "clock");
    recovered.print("recovery");
    opened.print("opening, closed cleanly");
    for (times, what) in [(listed, "first lookup in a directory"), (read, "first read of the file written at random")] {
        if !times.clock.is_empty() {
            times.print(what);
        }
    }
    println!(
        "private memory, the arena's included: {recovery_kibibytes} KiB for recovery, {opening_kibibytes} KiB else"
    );
}
