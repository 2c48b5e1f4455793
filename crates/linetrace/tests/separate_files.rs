//! Operations on separate files touch no cache line that the other writes: two processes on two processors would run side by
//! side as fast as alone.
//!
//! Two processes have a volume open, each works in a directory of its own, and each operation of the one is compared with the same
//! of the other; what reads write (each process counts its calls) nothing of what the other does may touch. The maps compared are the volume and the arena; whatever else they share would be found, too. Has no harness:
//! this program is also what is traced (`--worker`). `cargo test -p gannet-linetrace --test separate_files -- --show` prints a table.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use gannet_linetrace::{Line, Trace, Tracee, traced};
use gannet_logfs::{AttachOptions, LogFs, MakeOptions, NoUsers, make};
use gannet_media::{CreateOptions, Medium, OpenOptions};
use gannet_vfs::shared::{AccessMode, LockRange, LockRequest};
use gannet_vfs::usermem::{Destination, Source};
use gannet_vfs::{FileSystem, Name, NewNode, NodeId, Owner, RemoveKind, SyncScope, Time, WriteFlags, WritePosition};

/// Several pools of blocks: with one, all take from it.
const VOLUME_BYTES: u64 = 256 << 20;
const FILE_BYTES: u64 = 1 << 20;
/// Calls before those that are traced: what is made at first use is made.
const CALLS_BEFORE: usize = 64;
/// Calls that are traced together: few, for it takes so long that every other trace would have what is done once a second.
const CALLS_TRACED: usize = 1;
/// How often that is done. What is done after a time, such as looking for processes that died, or after many calls, is not the
/// operation's: the shortest trace counts.
const ATTEMPTS: usize = 4;

/// What a worker works on.
struct Work {
    fs: LogFs,
    directory: NodeId,
    file: NodeId,
    log: NodeId,
    block: Vec<u8>,
}

struct Operation {
    name: &'static str,
    call: fn(&mut Work, usize),
    /// Reads leave all that is shared as it is.
    writes: bool,
}

const OPERATIONS: &[Operation] = &[
    Operation { name: "read 4 KiB", call: read, writes: false },
    Operation { name: "five lookups, attributes", call: stat, writes: false },
    Operation { name: "list a directory", call: list, writes: false },
    Operation { name: "overwrite 4 KiB", call: |work, call| write(work, call, 4096), writes: true },
    Operation { name: "overwrite 64 B", call: |work, call| write(work, call, 64), writes: true },
    Operation { name: "append 4 KiB, fsync", call: |work, _| append(work, 4096), writes: true },
    Operation { name: "append 64 B, fsync", call: |work, _| append(work, 64), writes: true },
    Operation { name: "open, close", call: open, writes: true },
    Operation { name: "lock, unlock", call: lock, writes: true },
    Operation { name: "create, unlink", call: create, writes: true },
    Operation { name: "create, 4 KiB, unlink", call: create_with_data, writes: true },
    Operation { name: "two renames", call: rename, writes: true },
    Operation { name: "mkdir, rmdir", call: mkdir, writes: true },
];

fn name(text: &str) -> Name<'_> {
    Name::new(text.as_bytes()).expect("a name")
}

fn regular() -> NewNode<'static> {
    NewNode::regular(0o644, Owner::default())
}

fn directory() -> NewNode<'static> {
    NewNode::directory(0o755, Owner::default())
}

fn read(work: &mut Work, call: usize) {
    let offset = (call as u64 * 7 * 4096) % FILE_BYTES;
    work.fs.read(work.file, offset, &mut Destination::from_slice(&mut work.block)).expect("read");
}

fn stat(work: &mut Work, _: usize) {
    let mut at = work.directory;
    for part in ["a", "b", "c", "d", "leaf"] {
        at = work.fs.lookup(at, name(part)).expect("lookup").node;
    }
    work.fs.attributes(at).expect("attributes");
}

fn list(work: &mut Work, _: usize) {
    let mut entries = 0;
    let mut each = |_: &gannet_vfs::DirectoryEntry<'_>| {
        entries += 1;
        true
    };
    work.fs.read_directory(work.directory, 0, &mut each).expect("entries");
    assert!(entries >= 3);
}

fn write(work: &mut Work, call: usize, length: usize) {
    let at = WritePosition::At((call as u64 * 7 * 4096) % FILE_BYTES);
    work.fs.write(work.file, at, &mut Source::from_slice(&work.block[..length]), WriteFlags::empty()).expect("write");
}

fn append(work: &mut Work, length: usize) {
    let mut source = Source::from_slice(&work.block[..length]);
    work.fs.write(work.log, WritePosition::Append, &mut source, WriteFlags::empty()).expect("append");
    work.fs.sync(work.log, SyncScope::Data).expect("sync");
}

fn open(work: &mut Work, _: usize) {
    let shared = work.fs.shared();
    let description = shared.open(&work.fs, work.file, AccessMode::READ | AccessMode::WRITE, 0).expect("open");
    shared.close(&work.fs, description).expect("close");
}

fn lock(work: &mut Work, _: usize) {
    let shared = work.fs.shared();
    let owner = shared.process_owner().expect("this process");
    for exclusive in [Some(true), None] {
        let request = LockRequest { node: work.file, owner, exclusive, range: LockRange::ALL, process: 0 };
        shared.try_lock(&work.fs, &request).expect("lock");
    }
}

fn create(work: &mut Work, _: usize) {
    work.fs.create(work.directory, name("brief"), &regular()).expect("create");
    work.fs.remove(work.directory, name("brief"), RemoveKind::NonDirectory).expect("unlink");
}

fn create_with_data(work: &mut Work, _: usize) {
    let node = work.fs.create(work.directory, name("brief"), &regular()).expect("create");
    let mut source = Source::from_slice(&work.block);
    work.fs.write(node, WritePosition::Append, &mut source, WriteFlags::empty()).expect("append");
    work.fs.remove(work.directory, name("brief"), RemoveKind::NonDirectory).expect("unlink");
}

fn rename(work: &mut Work, _: usize) {
    for (from, to) in [("file", "renamed"), ("renamed", "file")] {
        work.fs.rename(work.directory, name(from), work.directory, name(to), Default::default()).expect("rename");
    }
}

fn mkdir(work: &mut Work, _: usize) {
    work.fs.create(work.directory, name("brief"), &directory()).expect("mkdir");
    work.fs.remove(work.directory, name("brief"), RemoveKind::Directory).expect("rmdir");
}

/// A new volume with a directory for each worker.
fn make_volume(path: &Path, copy_on_write: bool) {
    let create = CreateOptions {
        open: OpenOptions { emulate_persistence: true, ..OpenOptions::default() },
        ..CreateOptions::default()
    };
    let medium = Medium::create(path, VOLUME_BYTES, create, &mut |_| {}).expect("a volume in /dev/shm");
    let options = MakeOptions {
        label: String::new(),
        copy_on_write,
        emulate_persistence: true,
        owner: Owner::default(),
        mode: 0o755,
        random: std::array::from_fn(|place| place as u8 ^ std::process::id() as u8 ^ u8::from(copy_on_write)),
        now: Time::now(),
    };
    make(&medium, &options).expect("mkfs");
}

fn attach(path: &Path) -> LogFs {
    let options = AttachOptions {
        index_bytes_max: 64 << 20,
        copy_on_write: None,
        access_times: Default::default(),
        threads: 1,
        users: Box::new(NoUsers),
    };
    LogFs::open(path, false, options).expect("attach")
}

/// The traced process.
fn work(path: &Path, number: usize) {
    let fs = attach(path);
    let own = fs.create(fs.root(), name(&format!("worker{number}")), &directory()).expect("mkdir");
    let file = fs.create(own, name("file"), &regular()).expect("create");
    let log = fs.create(own, name("log"), &regular()).expect("create");
    let content = vec![7_u8; FILE_BYTES as usize];
    fs.write(file, WritePosition::At(0), &mut Source::from_slice(&content), WriteFlags::empty()).expect("fill");
    let mut at = own;
    for part in ["a", "b", "c", "d"] {
        at = fs.create(at, name(part), &directory()).expect("mkdir");
    }
    fs.create(at, name("leaf"), &regular()).expect("create");
    let mut work = Work { fs, directory: own, file, log, block: vec![3; 4096] };
    for operation in OPERATIONS {
        for call in 0..CALLS_BEFORE {
            (operation.call)(&mut work, call);
        }
        for attempt in 0..ATTEMPTS {
            let calls = CALLS_BEFORE + attempt * CALLS_TRACED..CALLS_BEFORE + (attempt + 1) * CALLS_TRACED;
            traced(|| calls.for_each(|call| (operation.call)(&mut work, call)));
        }
    }
}

/// Both workers' traces of each operation, and what is wrong with them.
fn compare(path: &Path, show: bool) -> Vec<String> {
    let worker = |number: usize| {
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        command.arg("--worker").arg(path).arg(number.to_string());
        Tracee::start(&mut command).expect("a traced process")
    };
    let mut workers = [worker(0), worker(1)];
    let mut complaints = Vec::new();
    let mut complain = |name: &str, line: &Line, one: u64, other: u64| {
        complaints.push(format!("{name}: both touch {line}, which is written: by {one:#x} and {other:#x}"));
    };
    // What the first one's reads do, and all that the second one does.
    let (mut reads, mut others) = (Vec::new(), Vec::new());
    for operation in OPERATIONS {
        let [first, second] = workers.each_mut().map(|worker| {
            let mut trace = || worker.next_trace().expect("a trace").expect("a mark");
            (0..ATTEMPTS).map(|_| trace()).min_by_key(|trace| trace.instructions).expect("attempts")
        });
        if show {
            print(operation.name, &first, &second);
        }
        assert!(!first.read.is_empty() && first.instructions > 100, "{}: something was traced", operation.name);
        assert!(!first.written.is_empty(), "{}: calls are counted", operation.name);
        assert_eq!(first.system_calls, [], "{}: system calls", operation.name);
        for (line, one, other) in first.conflicts(&second) {
            complain(operation.name, &line, one, other);
        }
        if !operation.writes {
            reads.push((operation.name, first));
        }
        others.push((operation.name, second));
    }
    for (name, read) in &reads {
        for (of_other, other) in &others {
            for (line, one, other) in
                read.conflicts(other).into_iter().filter(|(line, ..)| read.written.contains_key(line))
            {
                complain(&format!("{name} and {of_other}"), &line, one, other);
            }
        }
    }
    for worker in &mut workers {
        assert!(worker.next_trace().expect("its end").is_none());
    }
    complaints
}

fn print(name: &str, first: &Trace, second: &Trace) {
    let calls = CALLS_TRACED as f64;
    println!(
        "{name:<26} {:>8.0} instructions {:>6.1} lines read {:>6.1} written {:>4} in conflict; system calls {:?}",
        first.instructions as f64 / calls,
        first.read.len() as f64 / calls,
        first.written.len() as f64 / calls,
        first.conflicts(second).len(),
        first.system_calls
    );
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [role, path, number] = &arguments[..]
        && role == "--worker"
    {
        work(Path::new(path), number.parse().expect("a number"));
        return ExitCode::SUCCESS;
    }
    let show = arguments.iter().any(|argument| argument == "--show");
    let mut complaints = Vec::new();
    for copy_on_write in [false, true] {
        let path = PathBuf::from(format!("/dev/shm/gannet-lines-{}-{copy_on_write}", std::process::id()));
        make_volume(&path, copy_on_write);
        println!("data {}:", if copy_on_write { "copy-on-write" } else { "in place" });
        complaints.extend(compare(&path, show));
        std::fs::remove_file(&path).expect("the volume's file");
    }
    if complaints.is_empty() {
        println!("{} operations in both data modes: nothing is shared that is written", OPERATIONS.len());
        return ExitCode::SUCCESS;
    }
    eprintln!("{}", complaints.join("\n"));
    eprintln!("{} lines; addr2line -Cfie PROGRAM PLACE names the functions", complaints.len());
    ExitCode::FAILURE
}
