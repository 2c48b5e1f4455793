//! Workloads about a state of an inode that hardly any operation leads to: a last entry whose thread ended before the record knew of it,
//! what was given up around a fence of others, blocks of a file that moved before it was loaded, an inode that was freed by one who ended.

use super::fault::Fault;
use super::looks::{Open, Space, look};
use super::workloads::Workload;
use crate::mutations::{self, End, Volume, end_at, ends_of};
use crate::operations::{Operation, at, bytes, operation, populate};
use crate::state::{Tear, capture};
use crate::volume::{Mode, assert_sound, attach, image};
use gannet_fstest::Rig;
use gannet_logfs::LogFs;
use gannet_media::simulation::CrashPolicy;
use gannet_vfs::{AllocateMode, AttributeChange, Errno, FileSystem, ModeChange, NodeId, WritePosition};
use std::cell::OnceCell;
use std::rc::Rc;

/// All of them, or those that take little time.
pub(super) fn workloads(few: bool) -> Vec<Workload> {
    let tree = Volume::new(image(Mode::InPlace, |fs| populate(fs)));
    let mut list = vec![
        in_place_after_settling("an append", tree.clone(), |rig| rig.write(file(rig, "/b"), 100, &[1; 50]), (150, 60)),
        in_place_after_settling("a hole is filled", tree.clone(), append_behind_a_hole, (0, 4096)),
        given_up_twice(),
    ];
    list.extend([99, 100, 101].map(loading_what_was_shifted));
    if !few {
        list.push(loading_what_moved_while_its_map_was_said());
    }
    list.push(shifted_and_collected());
    let gone = ["/b", "/cut"].map(|path| {
        operation(format!("remove {path}, and ask"), Tear::Whole, move |rig| {
            rig.unlink(rig.root, path.trim_start_matches('/')).map(|_| ())
        })
    });
    list.extend(gone.map(|operation| asking_for_what_is_gone(tree.clone(), operation)));
    list
}

fn file(rig: &Rig<'_>, path: &str) -> NodeId {
    at(rig, path).expect("a file")
}

/// How many stores to the medium an operation makes after others.
fn stores_of(volume: &Volume, prepare: impl Fn(&LogFs), operation: &Operation) -> usize {
    let (fs, simulation) = volume.open();
    prepare(&fs);
    let mark = simulation.mark();
    operation.apply(&fs).expect("the operation");
    simulation.stored_in(mark..simulation.mark()).len()
}

/// The last entry begins far behind the hole.
fn append_behind_a_hole(rig: &Rig<'_>) {
    let node = file(rig, "/b");
    rig.resize(node, 0).expect("resize");
    rig.resize(node, 1 << 14).expect("resize");
    rig.write(node, 1 << 14, &[1; 50]);
}

/// A thread ends in a write to `/b` whose entry, with a hash of the bytes, it has stored, but not told the record of. The fault is where it is
/// loaded; then some of these bytes are written in place: an entry with another hash would be none after a crash.
fn in_place_after_settling(
    text: &str,
    volume: Rc<Volume>,
    prepare: fn(&Rig<'_>),
    (offset, length): (u64, usize),
) -> Workload {
    let write = operation(text.into(), Tear::Whole, move |rig| {
        rig.write(file(rig, "/b"), offset, &bytes(0x61, length));
        Ok(())
    });
    let stores: OnceCell<usize> = OnceCell::new();
    let text = format!("{text}, and in place");
    let run = move |fault: &Fault| {
        let stores = *stores.get_or_init(|| stores_of(&volume, |fs| prepare(&Rig::new(fs)), &write));
        let open = Open::new(volume.open());
        let rig = Rig::new(&*open.fs);
        prepare(&rig);
        end_at(&open.fs, &open.simulation, &write, End::Medium(stores));
        open.fs.session().reap_dead().expect("settling");
        fault.during(|| drop(open.state()));
        let node = file(&rig, "/b");
        let found = rig.try_read(node, offset, length).expect("read");
        assert!(found == bytes(0x61, length), "what was stored stands");
        let before = capture(&*open.fs).expect("the state before");
        let mark = open.simulation.mark();
        rig.write(node, offset + 10, &[0xEE; 20]);
        let end = open.simulation.mark();
        let after = capture(&*open.fs).expect("the state after");
        mutations::look(&open.simulation, mark..end, (&before, &after), Tear::Bytes("/b"), end, "in place");
        look(open, Space::Uncertain { recounts: true }, "in place");
    };
    Workload { crashes: true, ..Workload::new("in place after settling", &text, run) }
}

/// Changes an inode's mode: an entry of the log, and nothing else.
fn change_mode(rig: &Rig<'_>, node: NodeId, mode: u16) {
    let mode = ModeChange::Set((mode & 0o777).into());
    rig.fs.set_attributes(node, &AttributeChange { mode, ..Default::default() }).expect("a mode");
}

/// Something is given up and freed behind a fence; then pages that a collection has unlinked are, and others take them. The fault is in all of
/// that: after a crash the log must not begin with what is another's.
fn given_up_twice() -> Workload {
    let volume = Volume::new(image(Mode::InPlace, |fs| populate(fs)));
    let run = move |fault: &Fault| {
        let open = Open::new(volume.open());
        let rig = Rig::new(&*open.fs);
        let (collected, taker) = (file(&rig, "/b"), file(&rig, "/a"));
        fault.during(|| {
            rig.unlink(rig.root, "cut").expect("unlink");
            (0..CHANGES_TO_COLLECT).for_each(|mode| change_mode(&rig, collected, mode));
            while rig.try_write(taker, WritePosition::Append, &bytes(0x45, 4096)).is_ok() {}
        });
        let (state, end) = (capture(&*open.fs).expect("the state"), open.simulation.mark());
        mutations::look(&open.simulation, end..end, (&state, &state), Tear::Whole, end, "given up twice");
        rig.resize(taker, 4096).expect("resize");
        look(open, Space::Counts, "given up twice");
    };
    Workload { crashes: true, ..Workload::new("given up twice", "around a fence", run) }
}

/// A file whose blocks moved before the volume was opened; the fault is where it is loaded. Then its log is collected, which nothing but
/// that makes write where its blocks are.
fn loading_what_was_shifted(rounds: u32) -> Workload {
    let volume = Volume::new(image(Mode::InPlace, |fs| {
        populate(fs);
        super::workloads::shift(fs, 0..rounds);
    }));
    Workload::new("loading what was shifted", &format!("{rounds} shifts before"), move |fault| {
        let open = Open::new(volume.open());
        let _ = fault.during(|| open.state());
        collect_all(&open, "/a");
        assert_lasts(&open, "/a");
        look(open, Space::Counts, "shifted before");
    })
}

/// Has a log collected once from its beginning to its end, and more.
fn collect_all(open: &Open, path: &str) {
    let rig = Rig::new(&*open.fs);
    let node = file(&rig, path);
    (0..CHANGES_TO_COLLECT).for_each(|mode| change_mode(&rig, node, mode));
}

/// Entries behind which each log here has been collected as a whole.
const CHANGES_TO_COLLECT: u16 = 700;

/// What the medium says of a file is what is seen.
fn assert_lasts(open: &Open, path: &str) {
    drop(assert_sound(&open.simulation.medium(), false, path));
    let end = open.simulation.mark();
    let seen = Rig::new(&*open.fs);
    let content = seen.content(file(&seen, path));
    let policy = CrashPolicy { combinations_max: 0, cuts_max: 0, samples: 1, ..CrashPolicy::sparse(1) };
    open.simulation.for_each_crash(end..end, &policy, |crash| {
        let fs = attach(&crash.medium()).expect("recovery");
        let rig = Rig::new(&fs);
        assert!(rig.content(file(&rig, path)) == content, "{path} is another after recovery");
    });
}

/// Pieces of the file whose map is said in several steps, each with a hole behind it.
const PIECES: u64 = 300;
/// Shifts, each there and back, behind which the map is half said.
const SHIFTS: u32 = 122;

fn make_pieces(fs: &LogFs) {
    populate(fs);
    let rig = Rig::new(fs);
    let node = rig.file(rig.root, "pieces");
    (0..PIECES).for_each(|piece| rig.write(node, piece * 8192, &bytes(piece as u8, 4096)));
}

fn insert_and_collapse(rig: &Rig<'_>, round: u32) {
    let (node, at) = (file(rig, "/pieces"), u64::from(round) * 37 % PIECES * 8192);
    rig.fs.allocate(node, AllocateMode::Insert, at, 4096).expect("insert");
    rig.fs.allocate(node, AllocateMode::Collapse, at, 4096).expect("collapse");
}

/// Its blocks move while a collection says where they are, by a thread that ends before the record knows of it. The fault is where it is
/// loaded; the collection goes on to its end.
fn loading_what_moved_while_its_map_was_said() -> Workload {
    let volume = Volume::new(image(Mode::InPlace, make_pieces));
    let collapse = operation("a collapse".into(), Tear::Whole, |rig| {
        rig.fs.allocate(file(rig, "/pieces"), AllocateMode::Collapse, 0, 16 * 4096)
    });
    let prepare = |fs: &LogFs| (0..SHIFTS).for_each(|round| insert_and_collapse(&Rig::new(fs), round));
    let stores: OnceCell<usize> = OnceCell::new();
    let run = move |fault: &Fault| {
        let stores = *stores.get_or_init(|| stores_of(&volume, prepare, &collapse));
        // Where it moves them, and tells the record, some of them.
        for stores in (2..=stores).step_by(2) {
            let open = Open::new(volume.open());
            prepare(&open.fs);
            end_at(&open.fs, &open.simulation, &collapse, End::Medium(stores));
            open.fs.session().reap_dead().expect("settling");
            let _ = fault.during(|| open.state());
            collect_all(&open, "/pieces");
            assert_lasts(&open, "/pieces");
            if stores == 2 {
                look(open, Space::Uncertain { recounts: true }, "moved while its map was said");
            }
        }
    };
    Workload { crashes: true, ..Workload::new("loading what was shifted", "while its map was said", run) }
}

/// Blocks of a file move, and its log is collected. The fault is in all of it: its log stays about as short as without.
fn shifted_and_collected() -> Workload {
    let volume = Volume::new(image(Mode::InPlace, make_pieces));
    let known: OnceCell<Vec<u64>> = OnceCell::new();
    Workload::new("shifted and collected", "its log stays short", move |fault| {
        let shift = |open: &Open, round| {
            insert_and_collapse(&Rig::new(&*open.fs), round);
            open.fs.statistics().expect("statistics").blocks_free
        };
        let known = known.get_or_init(|| {
            let open = Open::new(volume.open());
            (0..SHIFTS_IN_ALL).map(|round| shift(&open, round)).collect()
        });
        let open = Open::new(volume.open());
        let least = known.iter().min().expect("shifts");
        for (round, known) in known.iter().enumerate() {
            let free = fault.during(|| shift(&open, round as u32));
            assert!(free + PAGES_MORE_MAX >= *least, "{free} blocks are free behind {round} shifts, {known} would be");
        }
        assert_lasts(&open, "/pieces");
        look(open, Space::Counts, "shifted and collected");
    })
}

/// Behind them the whole map was said several times.
const SHIFTS_IN_ALL: u32 = 1000;
/// By how many pages the log may be longer for a while: as many as a map takes, and some.
const PAGES_MORE_MAX: u64 = 4;

/// A thread ends while it frees an inode. The fault is where that is settled. Who knew an inode whose number is free is told that it is gone.
fn asking_for_what_is_gone(volume: Rc<Volume>, operation: Operation) -> Workload {
    let ends: OnceCell<Vec<End>> = OnceCell::new();
    Workload::new("asking for what is gone", &operation.text.clone(), move |fault| {
        let ends = ends.get_or_init(|| {
            let all = (1..40).map(|step| End::Any(step * 8));
            ends_of(&volume, &operation).into_iter().chain(all).collect()
        });
        let mut gone = 0;
        for &end in ends {
            let open = Open::new(volume.open());
            let rig = Rig::new(&*open.fs);
            let free_numbers = || open.fs.statistics().expect("statistics").inodes_free;
            let (known, before) = (["/b", "/cut"].map(|path| file(&rig, path)), free_numbers());
            assert!(known.iter().all(|&node| rig.attributes(node).links == 1));
            end_at(&open.fs, &open.simulation, &operation, end);
            fault.during(|| open.fs.session().reap_dead()).expect("settling");
            // What has no name is freed by this.
            open.fs.recount().expect("counting").expect("nobody else counts");
            let told = known.map(|node| open.fs.attributes(node).map_err(|error| error.errno()));
            let freed = free_numbers() - before;
            let are_gone = told.iter().filter(|told| matches!(told, Err(Errno::STALE))).count() as u64;
            assert!(are_gone == freed, "{end:?}: {freed} numbers are free, {told:?}");
            gone += freed;
        }
        assert!(gone > 0, "nothing is gone");
    })
}
