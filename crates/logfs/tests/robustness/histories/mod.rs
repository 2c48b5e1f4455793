//! Several processes, each attached by itself, change and read a small tree at once; what each call said is what one process
//! could have been told that made all of them one after another.
//!
//! A history has a tree of its own: a directory with two directories in it. The processes begin one together, make some calls and write
//! down, in memory that they share, when each began and ended and what it said. What the tree looks like when all have ended
//! is asked by further calls. Whether there is an order is found out afterwards, many histories at a time.

mod call;
mod order;

use crate::kills::RemoveAtEnd;
use crate::volume::{Mode, assert_sound, format, options};
use crate::{Random, long};
use call::{Call, EVENT_WORDS, Event, NAMES, Said};
use gannet_fstest::{Rig, name};
use gannet_logfs::LogFs;
use gannet_media::{CreateOptions, Medium, OpenOptions};
use gannet_shm::{ArenaIdentity, ArenaLayout, Ordering, Session, VolumeGuard, VolumeIdentity};
use gannet_vfs::{FileType, NodeId, RemoveKind};
use order::{State, find_order};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::Arc;
use std::time::Instant;

const VOLUME: &str = "GANNET_TEST_HISTORIES_VOLUME";
const NONCE: &str = "GANNET_TEST_HISTORIES_NONCE";
const NUMBER: &str = "GANNET_TEST_HISTORIES_NUMBER";

const PROCESSES: usize = 3;
/// Calls of each process in a history.
const CALLS: usize = 6;
/// Histories that are made, and then looked at, together.
const BATCH: usize = 250;

/// What the processes share besides the volume, in words: a clock, how many histories may begin, how many processes have come to the
/// beginning of each and to its end; then for each history of a batch its directories and its events.
struct Board {
    session: Arc<Session>,
    start: gannet_shm::ArenaOffset,
}

const CLOCK: usize = 0;
const ALLOWED: usize = 8;
const ARRIVED: usize = 16;
const ENDED: usize = ARRIVED + BATCH;
const HISTORIES: usize = ENDED + BATCH;
const HISTORY_WORDS: usize = 3 + PROCESSES * CALLS * EVENT_WORDS;
const BOARD_WORDS: usize = HISTORIES + BATCH * HISTORY_WORDS;

struct Unguarded;

impl VolumeGuard for Unguarded {
    fn first(&mut self, _: &Arc<Session>, _: ArenaIdentity) -> gannet_shm::Result<()> {
        Ok(())
    }
    fn joined(&mut self, _: &Arc<Session>, _: ArenaIdentity) -> gannet_shm::Result<()> {
        Ok(())
    }
    fn last(&mut self, _: &Session, _: ArenaIdentity) -> gannet_shm::Result<()> {
        Ok(())
    }
}

impl Board {
    fn attach(nonce: u64) -> Self {
        let layout = ArenaLayout::new().region("board", BOARD_WORDS as u64 * 8, 64);
        let identity = VolumeIdentity { uuid: *b"gannet-histories", nonce };
        let session = Session::attach(identity, &layout, &mut Unguarded).expect("shared memory");
        let region = session.arena().region("board").expect("the region");
        session.arena().reserve(region.start, region.bytes).expect("memory");
        Self { start: region.start, session }
    }

    fn word(&self, index: usize) -> &gannet_shm::Word {
        self.session.word(self.start.add(index as u64 * 8)).expect("a word of the board")
    }

    fn load(&self, index: usize) -> u64 {
        self.word(index).load(Ordering::SeqCst)
    }

    fn store(&self, index: usize, value: u64) {
        self.word(index).store(value, Ordering::SeqCst);
    }

    fn add(&self, index: usize) -> u64 {
        self.word(index).fetch_add(1, Ordering::SeqCst)
    }

    /// Waits until a word is at least `value`.
    fn wait(&self, index: usize, value: u64) {
        for turn in 0_u64.. {
            match self.load(index) {
                found if found >= value => return,
                _ if turn < 2000 => std::hint::spin_loop(),
                _ if turn < 4000 => std::thread::yield_now(),
                _ => std::thread::sleep(std::time::Duration::from_micros(100)),
            }
        }
    }

    fn event_at(&self, slot: usize, process: usize, index: usize) -> usize {
        HISTORIES + slot * HISTORY_WORDS + 3 + (process * CALLS + index) * EVENT_WORDS
    }

    fn directories(&self, slot: usize) -> [NodeId; 3] {
        [0, 1, 2].map(|which| {
            let word = self.load(HISTORIES + slot * HISTORY_WORDS + which);
            NodeId::new(word & 0xFFFF_FFFF, (word >> 32) as u32)
        })
    }

    fn event(&self, slot: usize, process: usize, index: usize) -> Event {
        let at = self.event_at(slot, process, index);
        Event::decode(core::array::from_fn(|word| self.load(at + word)))
    }

    /// Makes a call and says when.
    fn make(&self, fs: &LogFs, call: Call) -> Event {
        let began = self.add(CLOCK);
        let outcome = call.perform(fs);
        Event { call, outcome, began, ended: self.add(CLOCK) }
    }
}

/// What a process does; nothing in any other run of the tests.
#[test]
fn child() {
    let [Ok(path), Ok(nonce), Ok(process)] = [VOLUME, NONCE, NUMBER].map(std::env::var) else { return };
    let process: usize = process.parse().expect("a number");
    let board = Board::attach(nonce.parse().expect("a number"));
    let fs = LogFs::open(Path::new(&path), false, options()).expect("open the volume");
    for history in 0_u64.. {
        board.wait(ALLOWED, history + 1);
        if board.load(ALLOWED) == u64::MAX {
            return;
        }
        let slot = history as usize % BATCH;
        let mut known = board.directories(slot).to_vec();
        let mut random = Random(history * PROCESSES as u64 + process as u64);
        // All at once, as far as there are processors.
        board.add(ARRIVED + slot);
        board.wait(ARRIVED + slot, PROCESSES as u64);
        // There may be fewer processors than processes: then they meet where they pause in the middle of something.
        gannet_shm::testing::disturb(1 + history * PROCESSES as u64 + process as u64);
        for index in 0..CALLS {
            let event = board.make(&fs, Call::draw(&mut random, &known));
            if let Ok(Said::Node(node)) = event.outcome
                && !known.contains(&node)
            {
                known.push(node);
            }
            let at = board.event_at(slot, process, index);
            for (word, value) in event.encode().into_iter().enumerate() {
                board.store(at + word, value);
            }
        }
        gannet_shm::testing::disturb(0);
        board.add(ENDED + slot);
    }
}

/// The processes, which are killed when the test ends, however it does.
struct Processes(Vec<Child>);

impl Drop for Processes {
    fn drop(&mut self) {
        for process in &mut self.0 {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

/// Asks for everything in a tree, as further calls of its history.
fn look(board: &Board, fs: &LogFs, directory: NodeId, is_top: bool, events: &mut Vec<Event>) {
    events.push(board.make(fs, Call::List(directory)));
    if !is_top {
        events.push(board.make(fs, Call::Parent(directory)));
    }
    for name in 0..NAMES.len() {
        let found = board.make(fs, Call::Lookup(call::Place { directory, name }));
        events.push(found);
        let Ok(Said::Node(node)) = found.outcome else { continue };
        let stat = board.make(fs, Call::Stat(node));
        events.push(stat);
        if matches!(stat.outcome, Ok(Said::Stat(FileType::Directory, ..))) {
            look(board, fs, node, false, events);
        }
    }
}

/// Removes a directory with everything in it.
fn remove(rig: &Rig<'_>, holder: NodeId, text: &str) {
    let directory = rig.find(holder, text).expect("a directory");
    for (text, (_, file_type)) in rig.list(directory) {
        let text = String::from_utf8(text).expect("text");
        match file_type {
            FileType::Directory => remove(rig, directory, &text),
            _ => drop(rig.unlink(directory, &text).expect("unlink")),
        }
    }
    rig.fs.remove(holder, name(text), RemoveKind::Directory).expect("an empty directory");
}

#[test]
fn histories_of_several_processes_are_linearizable() {
    let began = Instant::now();
    let path = PathBuf::from(format!("/dev/shm/gannet-test-histories-{}", std::process::id()));
    let _remove = RemoveAtEnd(path.clone());
    let created = CreateOptions { force: true, huge_pages: false, ..CreateOptions::default() };
    let medium = Medium::create(&path, 64 << 20, created, &mut |_| {}).expect("a file");
    format(&medium, Mode::InPlace);
    drop(medium);
    let fs = LogFs::open(&path, false, options()).expect("open the volume");
    let rig = Rig::new(&fs);
    let nonce = u64::from(std::process::id());
    let board = Board::attach(nonce);
    let spawn = |number: usize| {
        Command::new(std::env::current_exe().expect("this program"))
            .args(["--exact", "histories::child", "--nocapture", "--test-threads=1"])
            .env(VOLUME, &path)
            .env(NONCE, nonce.to_string())
            .env(NUMBER, number.to_string())
            .stdout(std::process::Stdio::null())
            .spawn()
            .expect("a process")
    };
    let mut processes = Processes((0..PROCESSES).map(spawn).collect());
    let (mut calls, mut concurrent, mut changes) = (0, 0, 0);
    let batches = if long() { 400 } else { 8 };
    for batch in 0..batches {
        let texts: Vec<String> = (0..BATCH).map(|slot| format!("top{slot}")).collect();
        for (slot, text) in texts.iter().enumerate() {
            let top = rig.fs.create(rig.root, name(text), &gannet_vfs::NewNode::directory(0o700, Default::default()));
            let top = top.expect("a directory");
            let [a, b] = NAMES.map(|text| {
                let new = gannet_vfs::NewNode::directory(0o700, Default::default());
                rig.fs.create(top, name(text), &new).expect("a directory")
            });
            for (which, node) in [top, a, b].into_iter().enumerate() {
                let word = node.number | u64::from(node.generation) << 32;
                board.store(HISTORIES + slot * HISTORY_WORDS + which, word);
            }
            board.store(ARRIVED + slot, 0);
            board.store(ENDED + slot, 0);
        }
        board.store(ALLOWED, (batch + 1) * BATCH as u64);
        for slot in 0..BATCH {
            while board.load(ENDED + slot) < PROCESSES as u64 {
                for process in &mut processes.0 {
                    assert_eq!(process.try_wait().expect("wait"), None, "a process ended");
                }
                std::thread::sleep(std::time::Duration::from_micros(500));
            }
        }
        for (slot, text) in texts.iter().enumerate() {
            let mut last = Vec::new();
            let directories = board.directories(slot);
            look(&board, &fs, directories[0], true, &mut last);
            let mut events: Vec<Event> = (0..PROCESSES)
                .flat_map(|process| (0..CALLS).map(move |index| (process, index)))
                .map(|(process, index)| board.event(slot, process, index))
                .collect();
            calls += events.len();
            changes += events.iter().filter(|event| event.outcome == Ok(Said::Nothing)).count();
            let meets = |one: &Event| {
                events.iter().filter(|other| other.began < one.ended && one.began < other.ended).count() > 1
            };
            concurrent += events.iter().filter(|event| meets(event)).count();
            events.extend(last);
            events.sort_by_key(|event| event.began);
            if let Err(longest) = find_order(&State::new(directories), &events) {
                let lines: Vec<String> = events.iter().map(Event::line).collect();
                let longest: Vec<&String> = longest.iter().map(|&index| &lines[index]).collect();
                panic!(
                    "history {slot} of batch {batch}: no order gives this:\n{lines:#?}\nas far as this: {longest:#?}"
                );
            }
            remove(&rig, rig.root, text);
        }
    }
    board.store(ALLOWED, u64::MAX);
    for process in &mut processes.0 {
        assert!(process.wait().expect("wait").success(), "a process failed");
    }
    println!(
        "{} histories of {PROCESSES} processes, {calls} calls, {concurrent} of them beside others, {:.1} s",
        batches * BATCH as u64,
        began.elapsed().as_secs_f64()
    );
    assert!(concurrent > calls / 100 && changes > calls / 20, "the processes never met");
    assert!(fs.detach().expect("detach"));
    drop(fs);
    board.session.detach(&mut Unguarded).expect("detach");
    let medium = Medium::open(&path, OpenOptions::default()).expect("open the file");
    assert_sound(&medium, true, "after all histories");
}
