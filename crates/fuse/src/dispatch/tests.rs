//! Requests without a kernel: random ones must neither panic nor leave anything behind.

mod circles;
mod copies;
mod direct;
mod ending;
mod guarded;
mod holes;
mod lists;
mod room;
mod told;
mod users;
mod waiting;

use std::sync::Arc;

use gannet_memfs::{Limits, MemoryFs};
use gannet_vfs::{FileSystem, Name, NodeId, Owner, RemoveKind};

use super::{CachePolicy, Dispatcher, Outcome, Policy, Wait};
use crate::protocol::constants::{InitFlags, Opcode};
use crate::protocol::init::Answer;
use crate::protocol::request::{Header, InitRequest};

const INODES: u64 = 500;

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}

fn dispatcher(cache: CachePolicy) -> (Arc<MemoryFs>, Arc<Dispatcher>) {
    dispatcher_for(cache, InitFlags::all())
}

/// One for a kernel that offers so much.
fn dispatcher_for(cache: CachePolicy, flags: InitFlags) -> (Arc<MemoryFs>, Arc<Dispatcher>) {
    let limits = Limits { data_bytes: 4 << 20, inodes: INODES };
    let file_system = Arc::new(MemoryFs::new(limits, 0o755, Owner::default()).unwrap());
    let policy = Policy { cache, ..Policy::default() };
    let dispatcher = Arc::new(Dispatcher::new(file_system.clone(), policy));
    let offer = InitRequest { major: 7, minor: 45, readahead_bytes_max: 0, flags };
    assert!(matches!(dispatcher.initialize(&offer, true), Answer::Agreed(..)));
    if dispatcher.automatic() {
        assert!(dispatcher.begin_caching());
    }
    (file_system, dispatcher)
}

/// A name from a small set, so that names meet.
fn name(random: &mut Random) -> Vec<u8> {
    match random.below(20) {
        0 => vec![b'x'; 255 + random.below(3) as usize],
        1 => b"..".to_vec(),
        2 => b".".to_vec(),
        3 => b"a/b".to_vec(),
        choice => format!("n{}", choice % 8).into_bytes(),
    }
}

/// Removes everything below a directory.
fn clear(file_system: &MemoryFs, directory: NodeId) {
    let mut names: Vec<Vec<u8>> = Vec::new();
    let mut collect = |entry: &gannet_vfs::DirectoryEntry<'_>| {
        names.push(entry.name.bytes().to_vec());
        true
    };
    file_system.read_directory(directory, 0, &mut collect).unwrap();
    for bytes in names {
        let name = Name::new(&bytes).unwrap();
        let found = file_system.lookup(directory, name).unwrap();
        let kind = if found.file_type == gannet_vfs::FileType::Directory {
            clear(file_system, found.node);
            RemoveKind::Directory
        } else {
            RemoveKind::NonDirectory
        };
        file_system.remove(directory, name, kind).unwrap();
    }
}

fn storm(cache: CachePolicy, seed: u64, requests: u64) {
    let (file_system, dispatcher) = dispatcher(cache);
    // Nobody else serves requests here: there is nothing to wait for.
    dispatcher.lose_patience();
    let mut random = Random(seed);
    let mut known = vec![1u64];
    let mut handles = vec![0u64];
    let mut payload = vec![0u8; 128 << 10];
    let mut answered = 0;
    for unique in 1..=requests {
        let opcode = Opcode::ALL[random.below(Opcode::ALL.len() as u64) as usize];
        if matches!(opcode, Opcode::SetLkW | Opcode::Init | Opcode::Destroy) {
            continue;
        }
        let pick = |random: &mut Random, from: &[u64]| from[random.below(from.len() as u64) as usize];
        let node = if random.below(30) == 0 { random.next() } else { pick(&mut random, &known) };
        let header = Header {
            length_bytes: 0,
            opcode: opcode as u32,
            unique,
            node,
            user: random.below(2) as u32 * 1000,
            group: 0,
            process: 77,
            extension_bytes: 0,
        };
        // A structure of small numbers, with a node or a handle where most have one.
        let mut structure = [0u8; 128];
        for field in structure.chunks_exact_mut(4) {
            let value = match random.below(8) {
                0 => random.next() as u32,
                1..4 => random.below(5000) as u32,
                4 => 0o100_644,
                _ => 0,
            };
            field.copy_from_slice(&value.to_le_bytes());
        }
        let first = match opcode {
            Opcode::Rename | Opcode::Rename2 | Opcode::Link => pick(&mut random, &known),
            Opcode::MkNod | Opcode::MkDir => [0o100_644, 0o040_755, 0o010_600][random.below(3) as usize],
            Opcode::SetAttr => random.next() & 0xfff,
            Opcode::GetXattr | Opcode::ListXattr => random.below(2) * 100,
            Opcode::SetXattr => 3 | random.below(3) << 32,
            _ => pick(&mut random, &handles),
        };
        structure[..8].copy_from_slice(&first.to_le_bytes());
        if matches!(opcode, Opcode::CopyFileRange | Opcode::CopyFileRange64) {
            structure[16..24].copy_from_slice(&pick(&mut random, &known).to_le_bytes());
        }
        if matches!(opcode, Opcode::Read | Opcode::Write | Opcode::ReadDir | Opcode::ReadDirPlus) {
            structure[8..16].copy_from_slice(&random.below(100_000).to_le_bytes());
            structure[16..20].copy_from_slice(&(random.below(20_000) as u32).to_le_bytes());
        }
        if matches!(opcode, Opcode::FAllocate) {
            structure[24..28].copy_from_slice(&[0u32, 1, 3, 0x10][random.below(4) as usize].to_le_bytes());
        }
        let mut bytes = name(&mut random);
        bytes.push(0);
        if matches!(opcode, Opcode::SetXattr | Opcode::GetXattr | Opcode::RemoveXattr) {
            bytes.splice(..0, b"user.".iter().copied());
        }
        bytes.extend(name(&mut random));
        bytes.push(0);
        if matches!(opcode, Opcode::Write | Opcode::Ioctl | Opcode::BatchForget) {
            bytes = vec![unique as u8; 20_000];
        }
        payload[..bytes.len()].copy_from_slice(&bytes);
        let outcome = dispatcher.serve_split(header, &structure, &mut payload, bytes.len());
        let Outcome::Reply(length_bytes) = outcome else { continue };
        answered += 1;
        let long = |at: usize| u64::from_le_bytes(payload[at..at + 8].try_into().unwrap());
        match opcode {
            Opcode::Lookup | Opcode::MkNod | Opcode::MkDir | Opcode::Symlink | Opcode::Link if length_bytes == 128 => {
                known.push(long(0).max(1));
            }
            Opcode::Create | Opcode::TmpFile => {
                known.push(long(0));
                handles.push(long(128));
            }
            Opcode::Open | Opcode::OpenDir => handles.push(long(0)),
            _ => {}
        }
        let cut = |list: &mut Vec<u64>, random: &mut Random| {
            if list.len() > 60 {
                list.swap_remove(1 + random.below(59) as usize);
            }
        };
        cut(&mut known, &mut random);
        cut(&mut handles, &mut random);
    }
    assert!(answered > requests / 20, "the requests mean something: {answered}");
    assert!(dispatcher.finish());
    assert_eq!(dispatcher.nodes_held(), 0);
    assert_eq!(file_system.shared().descriptions().unwrap(), 0);
    assert_eq!(file_system.shared().records().unwrap(), 0);
    clear(&file_system, file_system.root());
    let statistics = file_system.statistics().unwrap();
    assert_eq!((statistics.inodes_free, statistics.blocks_free), (INODES - 1, statistics.blocks));
}

/// As a transport does: on a thread of its own.
fn start(wait: Box<Wait>, done: impl FnOnce(Outcome) + Send + 'static) {
    std::thread::spawn(move || done(wait.outcome()));
}

#[test]
fn random_requests_leave_nothing_behind() {
    let requests = if std::env::var_os("GANNET_LONG").is_some() { 2_000_000 } else { 20_000 };
    for seed in 1..=4 {
        storm(CachePolicy::Coherent, seed, requests);
        storm(CachePolicy::Automatic, seed, requests);
        storm(CachePolicy::Exclusive { writeback: seed % 2 == 0 }, seed, requests);
    }
}

#[test]
fn requests_on_nodes_that_were_never_told_are_stale() {
    let (_, dispatcher) = dispatcher(CachePolicy::Coherent);
    for node in [0, 2, 7 << 32, u64::MAX, 1 << 63 | 5] {
        let header = Header {
            length_bytes: 0,
            opcode: Opcode::GetAttr as u32,
            unique: 1,
            node,
            user: 0,
            group: 0,
            process: 0,
            extension_bytes: 0,
        };
        let outcome = dispatcher.serve_split(header, &[0; 128], &mut [0; 256], 0);
        assert!(matches!(outcome, Outcome::Error(gannet_vfs::Errno::STALE)), "{node:#x}");
    }
}

/// A request of root on `node`.
fn by_root(node: u64) -> Header {
    Header { length_bytes: 0, opcode: 0, unique: 1, node, user: 0, group: 0, process: 0, extension_bytes: 0 }
}

/// A coherent mount of a file system with one file, which the kernel knows.
fn with_a_file() -> (Arc<MemoryFs>, Arc<Dispatcher>, NodeId) {
    with_a_file_for(InitFlags::all())
}

fn with_a_file_for(flags: InitFlags) -> (Arc<MemoryFs>, Arc<Dispatcher>, NodeId) {
    let (file_system, dispatcher) = dispatcher_for(CachePolicy::Coherent, flags);
    let new = gannet_vfs::NewNode::regular(0o600, Owner::default());
    let node = file_system.create(file_system.root(), Name::new(b"file").unwrap(), &new).unwrap();
    dispatcher.lookup(&by_root(1), b"file").unwrap();
    (file_system, dispatcher, node)
}

#[test]
fn a_lock_is_not_refused_for_a_file_that_is_being_closed() {
    use std::sync::mpsc;

    use gannet_vfs::Errno;

    use crate::protocol::constants::LK_FLOCK;
    use crate::protocol::request::LockRequest;

    let (file_system, dispatcher, node) = with_a_file();
    let header = by_root(dispatcher.nodes.id(node));
    let open = || dispatcher.open_handle(&header, node, 2).unwrap();
    let lock = |handle, kind, flags| {
        let request = LockRequest { handle, owner: handle + 1, start: 0, end: 100, kind, process: 7, flags };
        dispatcher.set_lock(&header, &request, false)
    };
    let released = |handle| dispatcher.release(header.node, handle);
    // Of whole files, and of open files: their owner is not whoever closes.
    for flags in [LK_FLOCK, 0] {
        let (first, second) = (open(), open());
        assert!(matches!(lock(first, 1, flags), Ok(Outcome::Reply(0))));
        assert!(matches!(lock(second, 1, flags), Err(error) if error.errno() == Errno::AGAIN), "nobody closes it");
        dispatcher.flush(&header, first, 99).unwrap();
        let Ok(Outcome::Waits(wait)) = lock(second, 1, flags) else { panic!("it is closed in a moment") };
        let (done, outcome) = mpsc::channel();
        start(wait, move |outcome| done.send(matches!(outcome, Outcome::Reply(0))).unwrap());
        released(first);
        assert!(outcome.recv().unwrap(), "the last close drops the lock");
        // A duplicate of the second stays open: that is found out once.
        let third = open();
        dispatcher.flush(&header, second, 99).unwrap();
        let Ok(Outcome::Waits(wait)) = lock(third, 0, flags) else { panic!("it may be closed") };
        let (done, outcome) = mpsc::channel();
        start(wait, move |outcome| done.send(matches!(outcome, Outcome::Error(Errno::AGAIN))).unwrap());
        assert!(outcome.recv().unwrap(), "it stays");
        assert!(matches!(lock(third, 0, flags), Err(error) if error.errno() == Errno::AGAIN), "and is not waited for");
        released(second);
        released(third);
    }
    assert_eq!(file_system.shared().records().unwrap(), 0, "nothing stays locked");
}

#[test]
fn a_lock_is_not_refused_whenever_the_close_comes() {
    use std::sync::mpsc;

    use crate::protocol::constants::LK_FLOCK;
    use crate::protocol::request::LockRequest;

    let (file_system, dispatcher, node) = with_a_file();
    let header = by_root(dispatcher.nodes.id(node));
    let lock = |handle, flags| {
        let request = LockRequest { handle, owner: handle + 1, start: 0, end: 100, kind: 1, process: 7, flags };
        dispatcher.set_lock(&header, &request, false)
    };
    let (close, closes) = mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(|| closes.into_iter().for_each(|handle| dispatcher.release(header.node, handle)));
        let close = close;
        for round in 0..2000 {
            let flags = [LK_FLOCK, 0][round % 2];
            let mine = dispatcher.open_handle(&header, node, 2).unwrap();
            assert!(matches!(lock(mine, flags), Ok(Outcome::Reply(0))), "round {round}: taken");
            dispatcher.flush(&header, mine, 99).unwrap();
            let next = dispatcher.open_handle(&header, node, 2).unwrap();
            close.send(mine).unwrap();
            for _ in 0..round % 300 {
                std::hint::spin_loop();
            }
            match lock(next, flags) {
                Ok(Outcome::Reply(0)) => {}
                Ok(Outcome::Waits(wait)) => {
                    let (done, outcome) = mpsc::channel();
                    start(wait, move |outcome| done.send(matches!(outcome, Outcome::Reply(0))).unwrap());
                    assert!(outcome.recv().unwrap(), "round {round}: waited for, and refused");
                }
                _ => panic!("round {round}: refused"),
            }
            dispatcher.release(header.node, next);
        }
    });
    assert_eq!(file_system.shared().records().unwrap(), 0, "nothing stays locked");
}

#[test]
fn an_open_file_with_the_word_of_one_that_goes_keeps_its_lock() {
    use std::sync::mpsc;

    use gannet_vfs::Errno;

    use crate::protocol::request::LockRequest;

    let (file_system, dispatcher, node) = with_a_file();
    let header = by_root(dispatcher.nodes.id(node));
    let open = || dispatcher.open_handle(&header, node, 2).unwrap();
    let lock = |handle, owner, start| {
        let request = LockRequest { handle, owner, start, end: start + 9, kind: 1, process: 7, flags: 0 };
        dispatcher.set_lock(&header, &request, false)
    };
    let is_locked = |by, start| matches!(lock(by, by + 99, start), Err(error) if error.errno() == Errno::AGAIN);
    let released = |handle| dispatcher.release(header.node, handle);
    let (first, second, other) = (open(), open(), open());
    assert!(matches!(lock(first, 5, 0), Ok(Outcome::Reply(0))));
    dispatcher.flush(&header, first, 99).unwrap();
    // The next open file lies where the first one lay, and its request overtakes the first one's end.
    let Ok(Outcome::Waits(wait)) = lock(second, 5, 0) else { panic!("the first may be gone in a moment") };
    let (done, outcome) = mpsc::channel();
    start(wait, move |outcome| done.send(matches!(outcome, Outcome::Reply(0))).unwrap());
    released(first);
    assert!(outcome.recv().unwrap());
    assert!(is_locked(other, 0), "the end of the first takes nothing from the second");
    released(second);
    assert!(!is_locked(other, 0), "its own end does");
    dispatcher.flush(&header, other, other + 99).unwrap();

    // A process's word: its child has closed what it inherited. That is waited for once, and all its locks are one owner's.
    let (third, fourth) = (open(), open());
    assert!(matches!(lock(third, 5, 0), Ok(Outcome::Reply(0))));
    dispatcher.flush(&header, third, 99).unwrap();
    let Ok(Outcome::Waits(wait)) = lock(fourth, 5, 5) else { panic!("the third may be gone in a moment") };
    let (done, outcome) = mpsc::channel();
    start(wait, move |outcome| done.send(matches!(outcome, Outcome::Reply(0))).unwrap());
    assert!(outcome.recv().unwrap());
    assert!(is_locked(other, 0) && is_locked(other, 14));
    dispatcher.flush(&header, third, 5).unwrap();
    assert!(!is_locked(other, 0) && !is_locked(other, 14), "the process closed one of its descriptors");
    for handle in [third, fourth, other] {
        dispatcher.flush(&header, handle, other + 99).unwrap();
        released(handle);
    }
    assert_eq!(file_system.shared().records().unwrap(), 0, "nothing stays locked");
}

/// What a fuzzer would try, from seeds and for a bounded time.
#[test]
fn inputs_of_fuzzers_leave_nothing_behind() {
    let inputs = if std::env::var_os("GANNET_LONG").is_some() { 200_000_u64 } else { 300 };
    for seed in 1..=inputs {
        let mut random = Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        let mut data = vec![random.next() as u8];
        for _ in 0..random.below(60) {
            // A header with small numbers, and whatever.
            let length = 40 + random.below(120);
            data.extend((length as u16).to_le_bytes());
            for at in 0..length {
                let small = at > 20 && random.below(4) > 0;
                data.push(if small { random.below(3) as u8 } else { random.next() as u8 });
            }
            let at = data.len() - length as usize;
            data[at + 16..at + 24].copy_from_slice(&(1 + random.below(4)).to_le_bytes());
        }
        let limits = Limits { data_bytes: 1 << 20, inodes: 100 };
        let file_system = Arc::new(MemoryFs::new(limits, 0o755, Owner::default()).unwrap());
        crate::fuzzing::requests(file_system, &data);
    }
}
