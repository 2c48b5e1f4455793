//! Arenas that killed users left behind, and that are not as they left them: words are changed, the file is cut. Who comes goes on,
//! recovers, or is refused; nobody crashes or hangs, and the volume can be opened or repaired afterwards.
//!
//! A word that is wrong and believed can do to a volume what it could do to one in use, so what is on it is compared only where the
//! arena must have been thrown away.

use crate::handover::Volume;
use crate::operations::{all, populate};
use crate::state::{State, capture};
use crate::volume::{Mode, options};
use crate::{Random, long};
use gannet_fstest::Rig;
use gannet_logfs::{CheckOptions, LogFs, Outcome, check, make, open_medium_to_check};
use gannet_media::{CreateOptions, Medium};
use gannet_vfs::{FileSystem, Name, NodeId};
use rustix::fs::{SeekFrom, seek};
use std::io::Read;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

const BYTES: u64 = 4 << 20;
/// How a child that used the volume ends.
const ADOPTED: i32 = 10;
const RECOVERED: i32 = 11;
const REFUSED: i32 = 12;
/// Longer than any machine takes for a small volume.
const PATIENCE: Duration = Duration::from_secs(300);

/// What a child does, see `handover::child`: uses the volume as far as it can.
pub(crate) fn visit(path: &Path) -> ! {
    let code = match LogFs::open(path, false, options()) {
        Err(error) => {
            println!("refused: {error}");
            REFUSED
        }
        Ok(fs) => {
            let code = if fs.recovery().is_some() { RECOVERED } else { ADOPTED };
            // Errors are an answer here; panics, signals and endless operations are not.
            look(&fs, fs.root(), 0);
            for operation in all(Mode::InPlace).iter().step_by(7) {
                let _ = operation.apply(&fs);
            }
            let _ = fs.detach();
            code
        }
    };
    std::process::exit(code)
}

/// Looks at a tree, of which nothing is believed.
fn look(fs: &LogFs, node: NodeId, depth: u32) {
    let Ok(attributes) = fs.attributes(node) else { return };
    let _ = Rig::new(fs).try_read(node, 0, attributes.size_bytes.min(100_000) as usize);
    let mut names: Vec<Vec<u8>> = Vec::new();
    let _ = fs.read_directory(node, 0, &mut |entry| {
        names.push(entry.name.bytes().to_vec());
        names.len() < 100
    });
    for name in names.iter().filter(|_| depth < 4) {
        if let Ok(found) = Name::new(name).and_then(|name| fs.lookup(node, name)) {
            look(fs, found.node, depth + 1);
        }
    }
}

/// A file's bytes where it has any: offset and content.
struct Image {
    path: PathBuf,
    length: u64,
    pieces: Vec<(u64, Vec<u8>)>,
}

impl Image {
    fn of(path: &Path) -> Self {
        let file = std::fs::File::open(path).expect("the file");
        let length = file.metadata().expect("metadata").len();
        let (mut pieces, mut at) = (Vec::new(), 0);
        while let Ok(start) = seek(&file, SeekFrom::Data(at)) {
            at = seek(&file, SeekFrom::Hole(start)).expect("a hole");
            let mut bytes = vec![0; (at - start) as usize];
            file.read_exact_at(&mut bytes, start).expect("read");
            pieces.push((start, bytes));
        }
        Self { path: path.to_owned(), length, pieces }
    }

    /// Makes the file as it was, whatever stands there.
    fn put_back(&self) -> std::fs::File {
        let mut options = std::fs::OpenOptions::new();
        let file = options.read(true).write(true).create(true).truncate(true).mode(0o600).open(&self.path);
        let file = file.expect("the file");
        file.set_len(self.length).expect("its length");
        self.pieces.iter().for_each(|(at, bytes)| file.write_all_at(bytes, *at).expect("write"));
        file
    }

    /// Where a word stands that is worth changing: of three, two that say something.
    fn word(&self, random: &mut Random) -> u64 {
        let (mut at, wants_something) = (0, random.below(3) > 0);
        for _ in 0..1000 {
            let (start, bytes) = &self.pieces[random.below(self.pieces.len())];
            let word = random.below(bytes.len() / 8) * 8;
            at = start + word as u64;
            if !wants_something || bytes[word..word + 8] != [0; 8] {
                break;
            }
        }
        at
    }
}

/// A volume whose users were killed: itself, what they left, and what is on it.
struct Left {
    volume: Volume,
    bytes: Image,
    arena: Image,
    state: State,
}

impl Left {
    fn new(name: &str, kill_at_work: bool) -> Self {
        let path = PathBuf::from(format!("/dev/shm/gannet-test-damaged-{name}-{}", std::process::id()));
        let created = CreateOptions { force: true, huge_pages: false, ..CreateOptions::default() };
        let medium = Medium::create(&path, BYTES, created, &mut |_| {}).expect("a file");
        make(&medium, &Volume::made(name)).expect("mkfs");
        drop(medium);
        let volume = Volume(path);
        let fs = volume.open();
        populate(&fs);
        let state = capture(&fs).expect("the tree");
        assert!(fs.detach().expect("detach"));
        drop(fs);
        if kill_at_work {
            volume.kill_one("work", Duration::from_millis(30));
        }
        volume.kill_one("look", Duration::ZERO);
        let arenas = volume.arenas();
        assert_eq!(arenas.len(), 1, "{arenas:?}");
        let (bytes, arena) = (Image::of(&volume.0), Image::of(&arenas[0]));
        Self { volume, bytes, arena, state }
    }

    /// Uses the volume in a child; says how that ended.
    fn visit(&self, when: &str) -> i32 {
        let mut child = self.volume.command("damaged").stderr(Stdio::piped()).spawn().expect("a child");
        let began = Instant::now();
        let status = loop {
            match child.try_wait().expect("wait") {
                Some(status) => break status,
                None if began.elapsed() > PATIENCE => {
                    child.kill().expect("kill");
                    child.wait().expect("wait");
                    panic!("{when}: hangs");
                }
                None => std::thread::sleep(Duration::from_millis(2)),
            }
        };
        match status.code() {
            Some(code @ (ADOPTED | RECOVERED | REFUSED)) => code,
            _ => {
                let mut text = String::new();
                let _ = child.stderr.take().expect("a pipe").read_to_string(&mut text);
                panic!("{when}: {status}: {text}");
            }
        }
    }

    /// Whatever happened, a repair makes the volume whole, and then it can be used.
    fn settle(&self, when: &str) {
        self.volume.arenas().iter().for_each(|path| std::fs::remove_file(path).expect("remove"));
        let medium = open_medium_to_check(&self.volume.0, false).expect("open to check");
        let report = check(&medium, CheckOptions { repair: true, threads: 1 }, &mut |_| {});
        let report = report.unwrap_or_else(|error| panic!("{when}: fsck: {error}"));
        assert!(report.outcome != Outcome::Damaged, "{when}: {:#?}", report.findings);
        drop(medium);
        assert!(self.visit(when) != REFUSED, "{when}: refused after a repair");
    }
}

#[test]
fn words_that_changed_crash_nobody() {
    let seed = std::env::var("GANNET_SEED").map_or(1, |seed| seed.parse().expect("a number"));
    let rounds = if long() { 5000 } else { 40 };
    let mut outcomes = [0; 3];
    for kill_at_work in [false, true] {
        let left = Left::new("words", kill_at_work);
        for round in 0..rounds {
            let mut random = Random(seed << 32 | round << 1 | u64::from(kill_at_work));
            left.bytes.put_back();
            let arena = left.arena.put_back();
            let mut what = Vec::new();
            for _ in 0..1 << random.below(4) {
                let at = left.arena.word(&mut random);
                let mut word = [0; 8];
                arena.read_exact_at(&mut word, at).expect("read");
                let old = u64::from_le_bytes(word);
                let new = match random.below(4) {
                    0 => old ^ 1 << random.below(64),
                    1 => old.wrapping_add(1),
                    2 => random.number(),
                    _ => 0,
                };
                arena.write_all_at(&new.to_le_bytes(), at).expect("write");
                what.push(format!("{at:#x}: {old:#x} is {new:#x}"));
            }
            drop(arena);
            let when = format!("seed {seed}, round {round}, killed at work {kill_at_work}, {what:?}");
            outcomes[(left.visit(&when) - ADOPTED) as usize] += 1;
            left.settle(&when);
        }
    }
    println!("damaged arenas: {} adopted, {} thrown away, {} refused", outcomes[0], outcomes[1], outcomes[2]);
    assert!(outcomes[0] > 0 && outcomes[1] > 0, "both happen: {outcomes:?}");
}

/// The state of the first thread's slot, of which two damaged ones in five were refused for good.
#[test]
fn a_thread_that_cannot_be_has_the_arena_thrown_away() {
    let left = Left::new("thread", false);
    let slots_at = 0x11000;
    for bit in (0..64).step_by(7) {
        left.bytes.put_back();
        let arena = left.arena.put_back();
        let mut word = [0; 8];
        arena.read_exact_at(&mut word, slots_at).expect("read");
        let wrong = u64::from_le_bytes(word) ^ 1 << bit ^ 0xff;
        arena.write_all_at(&wrong.to_le_bytes(), slots_at).expect("write");
        drop(arena);
        assert_ne!(left.visit(&format!("{wrong:#x}")), REFUSED, "{wrong:#x}");
        left.settle(&format!("{wrong:#x}"));
    }
}

#[test]
fn an_arena_that_was_cut_is_thrown_away() {
    let left = Left::new("cut", false);
    let last = left.arena.pieces.last().map(|(at, bytes)| at + bytes.len() as u64).expect("it has bytes");
    for length in [0, 1, 64, 4095, 4096, 8192, 1 << 20, last - 4096, left.arena.length - 4096, left.arena.length + 4096]
    {
        left.bytes.put_back();
        left.arena.put_back().set_len(length).expect("cut");
        let fs = left.volume.open();
        assert!(fs.recovery().is_some(), "cut to {length}: believed");
        let found = capture(&fs).expect("the tree").without_times();
        found.equals(&left.state.clone().without_times()).unwrap_or_else(|why| panic!("cut to {length}: {why}"));
        assert!(fs.detach().expect("detach"));
        drop(fs);
        assert!(left.volume.arenas().is_empty(), "cut to {length}: left behind");
        left.volume.assert_closed(&format!("cut to {length}"));
    }
}
