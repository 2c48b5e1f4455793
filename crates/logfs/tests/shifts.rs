//! Files whose blocks move about (collapse and insert), thousands of times, and are in as many pieces: they hold what they should,
//! fsck finds them sound, their logs stay short, and all of the space is had again.

mod common;

use common::{attach, volume};
use gannet_fstest::Rig;
use gannet_logfs::{CheckOptions, LogFs, Outcome, check};
use gannet_media::{Medium, MediumOffset};
use gannet_vfs::{AllocateMode, FileSystem, NodeId, WritePosition};
use std::collections::VecDeque;

const BLOCK: u64 = 4096;
/// Extents that a log page takes where a collection writes a map again: three entries of 64.
const EXTENTS_OF_PAGE: u64 = 3 * 64;

/// Pages that an operation may take: for its own entry, and for a piece of what is written again.
const PAGES_OF_STEP_MAX: u64 = 3;

/// A file that is moved about, and what each of its blocks should hold: a number, 0 in holes.
struct Pieces {
    node: NodeId,
    blocks: VecDeque<u64>,
    /// The number that is written next.
    next: u64,
    /// The file that grows beside it.
    beside: NodeId,
}

/// A volume with a file each block of which is a piece by itself, since another one grows beside it.
struct Queue<'a> {
    rig: Rig<'a>,
    file: Pieces,
}

fn block_of(number: u64) -> Vec<u8> {
    let mut bytes = vec![if number == 0 { 0 } else { number as u8 | 1 }; BLOCK as usize];
    bytes[..8].copy_from_slice(&number.to_le_bytes());
    bytes
}

impl<'a> Queue<'a> {
    fn new(fs: &'a LogFs, blocks: u64) -> Self {
        let rig = Rig::new(fs);
        let (node, beside) = (rig.file(rig.root, "queue"), rig.file(rig.root, "beside"));
        let file = Pieces { node, blocks: VecDeque::new(), next: 1, beside };
        let mut queue = Self { rig, file };
        (0..blocks).for_each(|_| queue.append());
        queue
    }

    /// The same file, of a volume that was opened again.
    fn of(fs: &'a LogFs, file: Pieces) -> Self {
        Self { rig: Rig::new(fs), file }
    }

    fn number(&mut self) -> u64 {
        self.file.next += 1;
        self.file.next - 1
    }

    fn append(&mut self) {
        let number = self.number();
        for node in [self.file.node, self.file.beside] {
            self.rig.try_write(node, WritePosition::Append, &block_of(number)).expect("an append");
        }
        self.file.blocks.push_back(number);
    }

    /// Writes a block anew.
    fn write(&mut self, at: u64) {
        let number = self.number();
        self.rig.write(self.file.node, at * BLOCK, &block_of(number));
        self.file.blocks[at as usize] = number;
    }

    fn shift(&mut self, mode: AllocateMode, at: u64) {
        let free = || self.rig.fs.statistics().expect("statistics").blocks_free;
        let free_before = free();
        self.rig.fs.allocate(self.file.node, mode, at * BLOCK, BLOCK).expect("a shift");
        let taken = free_before.saturating_sub(free());
        assert!(taken <= PAGES_OF_STEP_MAX, "one operation waited for {taken} pages");
        match mode {
            AllocateMode::Insert => self.file.blocks.insert(at as usize, 0),
            _ => drop(self.file.blocks.remove(at as usize)),
        }
    }

    /// Inserts a hole, and takes it out again.
    fn pair(&mut self, at: u64) {
        self.shift(AllocateMode::Insert, at);
        self.shift(AllocateMode::Collapse, at);
    }

    fn assert_content(&self, rig: &Rig<'_>) {
        let node = rig.find(rig.root, "queue").expect("the queue");
        let content = rig.content(node);
        assert_eq!(content.len() as u64, self.file.blocks.len() as u64 * BLOCK);
        for (at, (found, &number)) in content.chunks(BLOCK as usize).zip(&self.file.blocks).enumerate() {
            assert!(found == block_of(number), "block {at} is not what was written as {number}");
        }
    }

    /// Pages that the file's map takes in its log where it is written at once.
    fn pages_of_map(&self) -> u64 {
        (self.file.blocks.len() as u64).div_ceil(EXTENTS_OF_PAGE)
    }

    /// By how many pages its log may become longer than it was when its map had been made: the map once more, which is written
    /// when what stands before the last time has gone, and what comes until as much has gone.
    fn growth_max(&self) -> u64 {
        2 * self.pages_of_map() + 16
    }
}

fn free(fs: &LogFs) -> u64 {
    fs.statistics().expect("statistics").blocks_free
}

fn assert_sound(medium: &Medium, what: &str) {
    let report = check(medium, CheckOptions { repair: false, threads: 1 }, &mut |_| {}).expect("fsck");
    let found: Vec<String> = report.findings.iter().map(ToString::to_string).collect();
    assert!(report.outcome == Outcome::Sound, "{what}: {found:#?}");
}

/// As a power loss leaves it.
fn copy_of(medium: &Medium, bytes: u64) -> Medium {
    let mut image = vec![0; bytes as usize];
    medium.read(MediumOffset(0), &mut image).expect("read");
    let copy = volume(bytes);
    copy.write(MediumOffset(0), &image).expect("written");
    copy
}

/// Sound while it is open, after recovery, and after a detach; with the same bytes in the queue.
fn assert_lasts(medium: &Medium, bytes: u64, queue: &Queue<'_>, what: &str) {
    let copy = copy_of(medium, bytes);
    assert_sound(&copy, &format!("{what}, left open"));
    let fs = attach(&copy);
    queue.assert_content(&Rig::new(&fs));
    assert!(fs.detach().expect("detach"));
    drop(fs);
    assert_sound(&copy, &format!("{what}, recovered and closed"));
}

/// Removes all, and has the space again.
fn assert_space_is_had_again(queue: &Queue<'_>, fs: &LogFs, free_at_first: u64) {
    for file in ["queue", "beside"] {
        queue.rig.unlink(queue.rig.root, file).expect("unlink");
    }
    assert!(free(fs) + 2 >= free_at_first, "{} blocks are free of {free_at_first}", free(fs));
}

#[test]
fn a_queue_of_many_pieces_is_sound() {
    const BYTES: u64 = 64 << 20;
    let medium = volume(BYTES);
    let fs = attach(&medium);
    let free_at_first = free(&fs);
    let mut queue = Queue::new(&fs, 3000);
    for step in 0..1000 {
        queue.pair(step * 37 % 3000);
    }
    queue.assert_content(&queue.rig);
    assert_lasts(&medium, BYTES, &queue, "pairs of shifts");
    // As much comes as goes.
    for _ in 0..1500 {
        queue.append();
        queue.shift(AllocateMode::Collapse, 0);
    }
    queue.assert_content(&queue.rig);
    assert_lasts(&medium, BYTES, &queue, "a queue");
    assert_space_is_had_again(&queue, &fs, free_at_first);
    assert!(fs.detach().expect("detach"));
    drop(fs);
    assert_sound(&medium, "closed");
}

#[test]
fn the_log_of_a_file_whose_blocks_move_stays_short() {
    const BYTES: u64 = 64 << 20;
    let medium = volume(BYTES);
    let fs = attach(&medium);
    let free_at_first = free(&fs);
    let mut queue = Queue::new(&fs, 4000);
    let free_before = free(&fs);
    for step in 0..6000 {
        let at = step * 37 % 4000;
        if step % 4 == 0 {
            queue.shift(AllocateMode::Insert, at);
            queue.write(at);
            queue.shift(AllocateMode::Collapse, step * 101 % 4000);
        } else {
            queue.pair(at);
        }
        let (grown, growth_max) = (free_before.saturating_sub(free(&fs)), queue.growth_max());
        assert!(grown <= growth_max, "the log has grown by {grown} pages in {step} steps, {growth_max} would do");
        if step % 1000 == 999 {
            queue.assert_content(&queue.rig);
            assert_lasts(&medium, BYTES, &queue, &format!("{step} steps"));
        }
    }
    assert_space_is_had_again(&queue, &fs, free_at_first);
    assert!(fs.detach().expect("detach"));
    drop(fs);
    assert_sound(&medium, "closed");
}

/// Who opens the volume finds where the log says the whole map: it is not written once more each time.
#[test]
fn the_log_stays_short_where_each_step_opens_the_volume_anew() {
    const BYTES: u64 = 32 << 20;
    let medium = volume(BYTES);
    let fs = attach(&medium);
    let mut queue = Queue::new(&fs, 2000);
    // Until the log is long enough to be collected.
    (0..1000).for_each(|step| queue.pair(step * 37 % 2000));
    let (growth_max, file) = (queue.growth_max(), queue.file);
    let free_before = free(&fs);
    assert!(fs.detach().expect("detach"));
    drop(fs);
    let mut kept = Some(file);
    for round in 0..100 {
        let fs = attach(&medium);
        let mut queue = Queue::of(&fs, kept.take().expect("the file"));
        (0..4).for_each(|step| queue.pair((round * 97 + step) % 2000));
        let grown = free_before.saturating_sub(free(&fs));
        assert!(grown <= growth_max, "the log has grown by {grown} pages in {round} rounds, {growth_max} would do");
        if round % 25 == 0 {
            queue.assert_content(&queue.rig);
        }
        kept = Some(queue.file);
        // Closed, or left as a power loss would.
        assert!(round % 2 == 0 || fs.detach().expect("detach"));
        drop(fs);
    }
    let fs = attach(&medium);
    let queue = Queue::of(&fs, kept.expect("the file"));
    assert_lasts(&medium, BYTES, &queue, "opened anew");
}
