//! What it costs to open a volume and to take over from the dead, each beside its floor: joining others, opening after a clean
//! detach, recovering, taking a killed owner's lock.
//!
//! By the clock and of the processor: what the machine takes away meanwhile is in the first alone. Threads that recovery starts
//! are in the first only, too.

use crate::{Wish, attach_options, make_volume, name, regular, thread_nanoseconds};
use gannet_logfs::{LogFs, open_medium};
use gannet_media::{CreateOptions, Medium, MediumOffset, OpenOptions};
use gannet_vfs::{FileSystem, NewNode, NodeId, Owner, RemoveKind};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The volume that a child is to open.
const CHILD: &str = "GANNET_COSTS_CHILD";
/// What it is to do with it.
const DEED: &str = "GANNET_COSTS_DEED";
/// To work on it until it is killed.
const WORK: &str = "work";
/// To have it open until its input ends.
const KEEP: &str = "keep";
/// To open it and say what that took.
const JOIN: &str = "join";
const ATTACHES: usize = 200;
/// Of new processes.
const STARTS: usize = 60;
const KILLS: usize = 60;
/// Longer rounds: clean openings and recoveries.
const ROUNDS: usize = 5;
const FILES_PER_DIRECTORY: u64 = 1000;

/// What one call took, in nanoseconds: by the clock, and of the thread's processor time.
type Took = (u64, u64);

fn timed<T>(call: impl FnOnce() -> T) -> (T, Took) {
    let (used, began) = (thread_nanoseconds(), Instant::now());
    let value = call();
    let wall = began.elapsed().as_nanos() as u64;
    (value, (wall, thread_nanoseconds() - used))
}

/// Prints a line of the table.
fn print(what: &str, took: &[Took]) {
    if took.is_empty() {
        println!("{what:<58} none");
        return;
    }
    let part = |of: fn(&Took) -> u64, part: f64| {
        let mut values: Vec<u64> = took.iter().map(of).collect();
        values.sort_unstable();
        values[((values.len() - 1) as f64 * part) as usize] as f64 / 1000.0
    };
    let (wall, processor) = (|took: &Took| took.0, |took: &Took| took.1);
    println!(
        "{what:<58} {:>11.1} {:>11.1} {:>11.1} {:>11.1} {:>6}",
        part(wall, 0.5),
        part(processor, 0.5),
        part(wall, 0.0),
        part(wall, 1.0),
        took.len()
    );
}

/// Measures all of it on volumes of their own beside `path`, the larger one with so many files.
pub(crate) fn measure(path: &Path, create: CreateOptions, wish: &Wish, files: u64) {
    println!(
        "\n{:<58} {:>11} {:>11} {:>11} {:>11} {:>6}",
        "in microseconds", "clock p50", "processor", "least", "most", "calls"
    );
    let path = path.with_extension("opening");
    let bytes = (64 << 20) + files * 4096;
    make_volume(&path, wish, create, bytes);
    openings("an empty volume", &path);
    joining(&path);
    takeovers(&path);
    fill(&LogFs::open(&path, false, attach_options()).expect("attach"), files);
    // The last to leave has closed it.
    openings(&format!("{files} files"), &path);
    recoveries(&path, files);
    let _ = std::fs::remove_file(&path);
}

fn fill(fs: &LogFs, files: u64) {
    let mut directory = fs.root();
    for number in 0..files {
        if number % FILES_PER_DIRECTORY == 0 {
            let text = format!("d{}", number / FILES_PER_DIRECTORY);
            let new = NewNode::directory(0o755, Owner::default());
            directory = fs.create(fs.root(), name(&text), &new).expect("mkdir");
        }
        fs.create(directory, name(&format!("f{number}")), &regular()).expect("create");
    }
    fs.detach().expect("detach");
}

fn openings(what: &str, path: &Path) {
    let (mut opened, mut closed, mut floor) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS * 2 {
        floor.push(timed(|| Medium::open(path, OpenOptions::default()).expect("the medium")).1);
        let (fs, took) = timed(|| LogFs::open(path, false, attach_options()).expect("attach"));
        assert!(fs.recovery().is_none(), "it was closed");
        opened.push(took);
        closed.push(timed(|| fs.detach().expect("detach")).1);
    }
    print(&format!("open and map the medium of {what} (floor)"), &floor);
    print(&format!("attach as the first, after a clean detach, {what}"), &opened);
    print(&format!("detach as the last, {what}"), &closed);
}

/// The others are another process: one that has the volume open already finds the best addresses taken. A new process pays for
/// its first use of the code and of its own memory, too.
fn joining(path: &Path) {
    let mut other = spawn(path, KEEP);
    let (mut joined, mut left) = (Vec::new(), Vec::new());
    for _ in 0..ATTACHES {
        let (fs, took) = timed(|| LogFs::open(path, false, attach_options()).expect("attach"));
        joined.push(took);
        left.push(timed(|| fs.detach().expect("detach")).1);
    }
    let new: Vec<Took> = (0..STARTS).map(|_| join_in_new_process(path)).collect();
    print("attach, others attached", &joined);
    print("  the same, the first of a new process", &new);
    print("detach, others remain", &left);
    drop(other.stdin.take());
    other.wait().expect("wait");
}

fn join_in_new_process(path: &Path) -> Took {
    let output = child(path, JOIN).output().expect("a child");
    let text = String::from_utf8(output.stdout).expect("numbers");
    let mut numbers = text.split_whitespace().map(|number| number.parse().expect("a number"));
    (numbers.next().expect("the clock"), numbers.next().expect("the processor"))
}

/// Recovery is what opening is when nobody has closed the volume and nothing is left of what they shared.
fn recoveries(path: &Path, files: u64) {
    let medium = open_medium(path, false).expect("the medium");
    let mut used = 0;
    for threads in [1, 2] {
        let mut recovered = Vec::new();
        for _ in 0..ROUNDS {
            // The first finds it closed; what it leaves open, the next one recovers.
            let options = || gannet_logfs::AttachOptions { threads, ..attach_options() };
            let open = || LogFs::open_private(medium.clone(), options()).expect("attach");
            drop(open());
            let (fs, took) = timed(open);
            assert_eq!(
                fs.recovery().expect("nobody closed it").inodes,
                1 + files + files.div_ceil(FILES_PER_DIRECTORY)
            );
            let statistics = fs.statistics().expect("statistics");
            used = statistics.blocks - statistics.blocks_free;
            recovered.push(took);
        }
        print(&format!("recovery, {files} files, {threads} threads"), &recovered);
    }
    let mut buffer = vec![0_u8; 1 << 20];
    let floor: Vec<Took> = (0..ROUNDS)
        .map(|_| {
            let read = || {
                for at in (0..used * 4096).step_by(buffer.len()) {
                    medium.read(MediumOffset(at), &mut buffer).expect("read");
                }
            };
            timed(read).1
        })
        .collect();
    print("reading as many bytes as are in use, 1 thread (floor)", &floor);
    let fs = LogFs::open_private(medium, attach_options()).expect("attach");
    fs.detach().expect("detach");
}

/// In a child: does what it is to do. Returns if this is none.
pub(crate) fn work_if_child() {
    let Some(path) = std::env::var_os(CHILD) else { return };
    let (fs, (clock, processor)) = timed(|| LogFs::open(Path::new(&path), false, attach_options()).expect("attach"));
    let say = |text: &str| {
        println!("{text}");
        std::io::stdout().flush().expect("say so");
    };
    let deed = std::env::var(DEED).expect("what to do");
    if deed == WORK {
        work(&fs, || say("ready"));
    }
    if deed == KEEP {
        say("ready");
        let _ = std::io::stdin().read_line(&mut String::new());
    } else {
        say(&format!("{clock} {processor}"));
    }
    fs.detach().expect("detach");
    std::process::exit(0);
}

/// Works in a directory for ever.
fn work(fs: &LogFs, begun: impl FnOnce()) {
    let directory = fs.lookup(fs.root(), name("common")).expect("the directory").node;
    let brief = || {
        fs.create(directory, name("brief"), &regular()).expect("create");
        fs.remove(directory, name("brief"), RemoveKind::NonDirectory).expect("remove");
    };
    brief();
    begun();
    loop {
        brief();
    }
}

fn child(path: &Path, deed: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.env(CHILD, path).env(DEED, deed);
    command
}

/// A child that has the volume open.
fn spawn(path: &Path, deed: &str) -> Child {
    let mut child = child(path, deed).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("a child");
    let mut line = String::new();
    BufReader::new(child.stdout.take().expect("a pipe")).read_line(&mut line).expect("a word");
    child
}

/// A process is killed at work; who wants what it had locked gets it.
fn takeovers(path: &Path) {
    let fs = LogFs::open(path, false, attach_options()).expect("attach");
    let new = NewNode::directory(0o755, Owner::default());
    let directory: NodeId = fs.create(fs.root(), name("common"), &new).expect("mkdir");
    let (mut taken_over, mut free, mut gone) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..KILLS {
        let mut child = spawn(path, WORK);
        std::thread::sleep(Duration::from_micros(200 + round as u64 * 37 % 500));
        let before = fs.takeovers().expect("takeovers");
        let killed = Instant::now();
        child.kill().expect("kill");
        let own = format!("own{round}");
        let (_, (_, processor)) = timed(|| fs.create(directory, name(&own), &regular()).expect("create"));
        let took = (killed.elapsed().as_nanos() as u64, processor);
        // Killed between two operations it had nothing locked.
        if fs.takeovers().expect("takeovers") > before {
            taken_over.push(took)
        } else {
            free.push(took)
        }
        child.wait().expect("wait");
        gone.push((killed.elapsed().as_nanos() as u64, 0));
        fs.remove(directory, name(&own), RemoveKind::NonDirectory).expect("remove");
        let _ = fs.remove(directory, name("brief"), RemoveKind::NonDirectory);
        fs.session().reap_dead().expect("reap");
    }
    print("from a kill until the process is gone (floor)", &gone);
    print("from a kill until a create in its directory, taken over", &taken_over);
    print("  the same where it had nothing locked", &free);
    fs.remove(fs.root(), name("common"), RemoveKind::Directory).expect("remove");
    fs.detach().expect("detach");
}
