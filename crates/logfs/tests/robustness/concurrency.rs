//! Many threads at once: writers of one file, readers beside them, and histories of names that one thread could have made.

use crate::operations::bytes;
use crate::state::capture;
use crate::volume::{MODES, Mode, assert_sound, attach, format, open};
use crate::{Random, long};
use gannet_fstest::model::{Model, ROOT};
use gannet_fstest::{Rig, name};
use gannet_logfs::LogFs;
use gannet_media::simulation::CrashPolicy;
use gannet_media::{CreateOptions, Medium};
use gannet_vfs::usermem::Destination;
use gannet_vfs::{Errno, FileType, NewNode, NodeId, Owner, RemoveKind, RenameFlags, WritePosition};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier, mpsc};
use std::time::{Duration, Instant};

fn volume(mode: Mode) -> (LogFs, Medium) {
    let options = CreateOptions { huge_pages: false, ..CreateOptions::default() };
    let medium = Medium::create_in_memory("volume", 32 << 20, options).expect("memory");
    format(&medium, mode);
    (attach(&medium).expect("attach"), medium)
}

/// Where free space is in single blocks, an append takes many entries, or more than it may hold; all of it stands in one place all the
/// same, whoever appends meanwhile.
#[test]
fn long_appends_in_many_pieces_do_not_overlap() {
    const BLOCK: usize = 4096;
    const THREADS: usize = 4;
    for mode in MODES {
        let (fs, medium) = volume(mode);
        let rig = Rig::new(&fs);
        // Every other block is free, as far as the volume goes, and then nothing.
        let past = rig.file(rig.root, "past");
        while rig.try_write(past, WritePosition::Append, &[7; 16 * BLOCK]).is_ok() {}
        for block in (0..rig.attributes(past).size_bytes / BLOCK as u64).step_by(2) {
            let hole = gannet_vfs::AllocateMode::PunchHole;
            rig.fs.allocate(past, hole, block * BLOCK as u64, BLOCK as u64).expect("punch");
        }
        let file = rig.file(rig.root, "log");
        let together = Barrier::new(THREADS);
        // Until there is no room: the last ones are written in part, and what is told then counts as well.
        let write = |thread: usize| {
            let mut told = Vec::new();
            let rig = Rig::new(&fs);
            together.wait();
            for index in 0..200 {
                let mark = (1 + thread * 50 + index % 50) as u8;
                let length = (20 + (index * 13 + thread * 7) % 60) * BLOCK + index * 31;
                match rig.try_write(file, WritePosition::Append, &vec![mark; length]) {
                    Ok(written) => told.push((written.offset_bytes as usize, written.count_bytes, mark)),
                    Err(error) => {
                        assert_eq!(error.errno(), Errno::NOSPC);
                        break;
                    }
                }
            }
            told
        };
        let mut told: Vec<(usize, usize, u8)> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..THREADS)
                .map(|thread| {
                    scope.spawn({
                        let write = &write;
                        move || write(thread)
                    })
                })
                .collect();
            threads.into_iter().flat_map(|thread| thread.join().expect("a writer")).collect()
        });
        told.sort_unstable();
        let content = rig.content(file);
        assert!(told.len() > 30, "{} appends", told.len());
        let mut next = 0;
        for (at, count, mark) in told {
            assert_eq!(at, next, "{mode:?}: they neither overlap nor leave holes");
            next = at + count;
            let differs = content[at..next].iter().position(|&byte| byte != mark);
            assert_eq!(differs, None, "{mode:?}: bytes of the append at {at}");
        }
        assert_eq!(next, content.len(), "{mode:?}");
        close(fs, &medium);
    }
}

/// What is left is sound, and known again after a recovery of what the medium shows.
fn close(fs: LogFs, medium: &Medium) {
    let state = capture(&fs).expect("the state");
    assert!(fs.detach().expect("detach"));
    drop(fs);
    assert_sound(medium, true, "in the end");
    let fs = attach(medium).expect("attach again");
    assert_eq!(capture(&fs).expect("the state").equals(&state), Ok(()));
}

#[test]
fn appends_neither_overlap_nor_leave_holes() {
    const THREADS: u64 = 4;
    for mode in MODES {
        let (fs, medium) = volume(mode);
        let rig = Rig::new(&fs);
        let file = rig.file(rig.root, "log");
        let records = if long() { 5000 } else { 500 };
        let length = |thread: u64, index: u64| 16 + (thread * 131 + index * 29) as usize % 700;
        let record = |thread: u64, index: u64| {
            let length = length(thread, index);
            let mut record = bytes((thread * 50 + index) as u8, length);
            record[..8].copy_from_slice(&(length as u64).to_le_bytes());
            record[8..16].copy_from_slice(&(thread << 32 | index).to_le_bytes());
            record
        };
        let places: Vec<Vec<u64>> = std::thread::scope(|scope| {
            let write = |thread: u64| {
                let fs = &fs;
                scope.spawn(move || {
                    let rig = Rig::new(fs);
                    let append = |index| {
                        let record = record(thread, index);
                        let written = rig.try_write(file, WritePosition::Append, &record).expect("append");
                        assert_eq!(written.count_bytes, record.len());
                        written.offset_bytes
                    };
                    (0..records).map(append).collect()
                })
            };
            let threads: Vec<_> = (0..THREADS).map(write).collect();
            threads.into_iter().map(|thread| thread.join().expect("a writer")).collect()
        });
        let content = rig.content(file);
        let (mut at, mut next) = (0, [0; THREADS as usize]);
        while at < content.len() {
            let word = |at: usize| u64::from_le_bytes(content[at..at + 8].try_into().expect("eight bytes"));
            let (thread, index) = (word(at + 8) >> 32, word(at + 8) & 0xFFFF_FFFF);
            assert_eq!(index, next[thread as usize], "the records of one thread are in order");
            assert_eq!(places[thread as usize][index as usize], at as u64);
            assert!(content[at..at + length(thread, index)] == record(thread, index));
            next[thread as usize] += 1;
            at += length(thread, index);
        }
        assert_eq!(next, [records; THREADS as usize]);
        close(fs, &medium);
    }
}

#[test]
fn reads_beside_writes_see_whole_blocks_and_nobody_elses() {
    const BLOCKS: u64 = 64;
    for mode in MODES {
        let (fs, medium) = volume(mode);
        let rig = Rig::new(&fs);
        let (one, other) = (rig.file(rig.root, "one"), rig.file(rig.root, "other"));
        rig.write(one, 0, &vec![2; (BLOCKS * 4096) as usize]);
        let end = AtomicBool::new(false);
        let looks_wanted = if long() { 100_000 } else { 1000 };
        let looks = AtomicU64::new(0);
        std::thread::scope(|scope| {
            // Two writers of different halves of one file, even bytes; one of another file, odd bytes.
            let fs = &fs;
            let (end, looks) = (&end, &looks);
            for half in 0..2 {
                scope.spawn(move || {
                    let (rig, mut random) = (Rig::new(fs), Random(half));
                    while !end.load(Ordering::Relaxed) {
                        let blocks = 1 + random.below(4);
                        let block = half * BLOCKS / 2 + random.below(BLOCKS as usize / 2 - blocks) as u64;
                        let byte = 2 + 2 * random.below(120) as u8;
                        rig.write(one, block * 4096, &vec![byte; blocks * 4096]);
                    }
                });
            }
            scope.spawn(move || {
                let (rig, mut random) = (Rig::new(fs), Random(77));
                while !end.load(Ordering::Relaxed) {
                    rig.write(other, 4096 * random.below(64) as u64, &[1 + 2 * random.below(120) as u8; 8192]);
                    rig.resize(other, 4096 * random.below(32) as u64).expect("truncate");
                }
            });
            scope.spawn(move || {
                let (rig, mut random) = (Rig::new(fs), Random(78));
                while !end.load(Ordering::Relaxed) {
                    let block = random.below(BLOCKS as usize) as u64;
                    let read = rig.try_read(one, block * 4096, 65_536).expect("read");
                    for piece in read.chunks(4096) {
                        assert!(
                            piece[0] % 2 == 0 && piece.iter().all(|&byte| byte == piece[0]),
                            "a block that none wrote"
                        );
                    }
                    let mut room = [0; 65_536];
                    let count = rig.fs.read(other, 0, &mut Destination::from_slice(&mut room)).expect("read");
                    assert!(room[..count].iter().all(|&byte| byte == 0 || byte % 2 == 1), "a byte of another file");
                    looks.fetch_add(1, Ordering::Relaxed);
                }
            });
            let until = Instant::now() + Duration::from_secs(240);
            while looks.load(Ordering::Relaxed) < looks_wanted && Instant::now() < until {
                std::thread::sleep(Duration::from_millis(5));
            }
            end.store(true, Ordering::Relaxed);
        });
        assert!(looks.load(Ordering::Relaxed) >= looks_wanted, "the reader is starved");
        close(fs, &medium);
    }
}

/// A writer in place is on its way when its file is cut and extended over where it writes: nothing acknowledged is lost.
#[test]
fn a_late_writer_in_place_undoes_no_extension() {
    let image = crate::volume::image(Mode::InPlace, |fs| {
        let rig = Rig::new(fs);
        let file = rig.file(rig.root, "file");
        rig.write(file, 0, &bytes(1, 4000));
    });
    for append in [false, true] {
        let (fs, simulation) = open(&image);
        let file = Rig::new(&fs).find(fs_root(&fs), "file").expect("the file");
        // From here on no entry's hash covers what is written in place.
        Rig::new(&fs).write(file, 0, &bytes(2, 8));
        // The writer stops at its first store until it is let go.
        let (stopped, is_stopped) = mpsc::channel();
        let (go, may_go) = mpsc::channel::<()>();
        let writer_id = Arc::new(std::sync::Mutex::new(None));
        let gate = (Arc::clone(&writer_id), std::sync::Mutex::new(Some((stopped, may_go))));
        simulation.set_hook(Some(Arc::new(move |_| {
            if *gate.0.lock().expect("unpoisoned") == Some(std::thread::current().id()) {
                let gate = gate.1.lock().expect("unpoisoned").take();
                if let Some((stopped, may_go)) = gate {
                    let _ = stopped.send(());
                    let _ = may_go.recv_timeout(Duration::from_secs(120));
                }
            }
        })));
        std::thread::scope(|scope| {
            let fs = &fs;
            let writer = scope.spawn(move || {
                *writer_id.lock().expect("unpoisoned") = Some(std::thread::current().id());
                Rig::new(fs).write(file, 2000, &bytes(9, 1000));
            });
            is_stopped.recv().expect("the writer begins");
            let other = scope.spawn(move || {
                let rig = Rig::new(fs);
                rig.resize(file, 1000).expect("truncate");
                if append {
                    rig.write(file, 1000, &bytes(3, 2500));
                } else {
                    rig.resize(file, 3500).expect("extend");
                }
            });
            // Whether the other waits for the writer or not, both come to their end.
            std::thread::sleep(Duration::from_millis(100));
            go.send(()).expect("the writer goes on");
            writer.join().expect("the writer");
            other.join().expect("the other");
        });
        simulation.set_hook(None);
        let size = |fs: &LogFs| Rig::new(fs).attributes(file).size_bytes;
        assert_eq!(size(&fs), 3500);
        let (mark, mut seen) = (simulation.mark(), 0);
        simulation.for_each_crash(mark..mark, &CrashPolicy::exhaustive(), |crash| {
            let fs = attach(&crash.medium()).expect("recovery");
            assert_eq!(size(&fs), 3500, "an acknowledged extension (append: {append}) is lost");
            seen += 1;
        });
        assert!(seen > 0);
    }
}

fn fs_root(fs: &LogFs) -> NodeId {
    use gannet_vfs::FileSystem;
    fs.root()
}

/// One call of a history.
#[derive(Clone, Copy, Debug)]
enum Call {
    Create(&'static str),
    Remove(&'static str),
    Rename(&'static str, &'static str, RenameFlags),
    Link(&'static str, &'static str),
}

#[derive(Clone, Copy, Debug)]
struct Event {
    call: Call,
    began: u64,
    ended: u64,
    outcome: Result<(), Errno>,
    /// Tells inodes apart: the permission bits of what it creates or links.
    mode: u32,
}

/// Two directories, two names in each.
const PLACES: [&str; 4] = ["p/a", "p/b", "q/a", "q/b"];

fn draw(random: &mut Random) -> Call {
    let (from, to) = (PLACES[random.below(4)], PLACES[random.below(4)]);
    match random.below(6) {
        0 | 1 => Call::Create(from),
        2 => Call::Remove(from),
        3 => Call::Rename(from, to, RenameFlags::EXCHANGE),
        4 => Call::Link(from, to),
        _ => Call::Rename(from, to, RenameFlags::empty()),
    }
}

/// Does a call; says what came of it and which inode it was about, if anything was done.
fn real(rig: &Rig<'_>, directories: [NodeId; 2], call: Call, mode: u32) -> Option<(Result<(), Errno>, u32)> {
    let place = |text: &'static str| (directories[usize::from(text.starts_with('q'))], name(&text[2..]));
    let mut mode = mode;
    let outcome = match call {
        Call::Create(at) => {
            rig.fs.create(place(at).0, place(at).1, &NewNode::regular(mode, Owner::default())).map(|_| ())
        }
        Call::Remove(at) => rig.fs.remove(place(at).0, place(at).1, RemoveKind::NonDirectory).map(|_| ()),
        Call::Rename(from, to, flags) => rig.fs.rename(place(from).0, place(from).1, place(to).0, place(to).1, flags),
        Call::Link(from, to) => {
            // What was found is linked, wherever its names are by then.
            let node = rig.fs.lookup(place(from).0, place(from).1).ok()?.node;
            mode = rig.fs.attributes(node).ok()?.mode;
            rig.fs.link(node, place(to).0, place(to).1)
        }
    };
    Some((outcome.map_err(|error| if error.errno() == Errno::STALE { Errno::NOENT } else { error.errno() }), mode))
}

fn modelled(model: &mut Model, event: &Event) -> Result<(), Errno> {
    let place = |model: &Model, text: &'static str| {
        (model.lookup(ROOT, &text.as_bytes()[..1]).expect("a directory"), &text.as_bytes()[2..])
    };
    match event.call {
        Call::Create(at) => {
            let (directory, text) = place(model, at);
            model.create(directory, text, FileType::Regular, event.mode, Owner::default(), &[]).map(|_| ())
        }
        Call::Remove(at) => {
            let (directory, text) = place(model, at);
            model.remove(directory, text, RemoveKind::NonDirectory)
        }
        Call::Rename(from, to, flags) => {
            let (from, to) = (place(model, from), place(model, to));
            model.rename(from.0, from.1, to.0, to.1, flags, (0, Owner::default()))
        }
        Call::Link(_, to) => {
            let (directory, text) = place(model, to);
            let named = PLACES.into_iter().filter_map(|at| {
                let (directory, text) = place(model, at);
                model.lookup(directory, text).ok()
            });
            let mut linked = named.filter(|&id| model.inode(id).mode == event.mode);
            match linked.next() {
                Some(id) => model.link(id, directory, text),
                // What lost its last name may be found gone before the other name is found taken, or the other way round.
                None if event.outcome == Err(Errno::EXIST) && model.lookup(directory, text).is_ok() => {
                    Err(Errno::EXIST)
                }
                None => Err(Errno::NOENT),
            }
        }
    }
}

type Names = BTreeMap<String, (u32, u64)>;

fn names_of(model: &Model) -> Names {
    let mut names = Names::new();
    for place in PLACES {
        let directory = model.lookup(ROOT, &place.as_bytes()[..1]).expect("a directory");
        if let Ok(id) = model.lookup(directory, &place.as_bytes()[2..]) {
            names.insert(place.into(), (model.inode(id).mode, model.links(id)));
        }
    }
    names
}

/// Whether some order of the calls, each between its beginning and its end, gives the outcomes and the end that were seen.
fn has_order(model: &Model, events: &[Event], done: u32, last: &Names) -> bool {
    if done.count_ones() as usize == events.len() {
        return names_of(model) == *last;
    }
    let is_left = |index: usize| done & 1 << index == 0;
    let first_end = (0..events.len()).filter(|&index| is_left(index)).map(|index| events[index].ended).min();
    (0..events.len()).filter(|&index| is_left(index) && Some(events[index].began) <= first_end).any(|index| {
        let mut model = model.clone();
        modelled(&mut model, &events[index]) == events[index].outcome
            && has_order(&model, events, done | 1 << index, last)
    })
}

#[test]
fn histories_of_names_are_linearizable() {
    const THREADS: u64 = 3;
    let (fs, medium) = volume(Mode::InPlace);
    let rig = Rig::new(&fs);
    let clock = AtomicU64::new(0);
    let mut most_concurrent = 0;
    for round in 0..if long() { 100_000 } else { 2000 } {
        let directories = ["p", "q"].map(|text| rig.directory(rig.root, text));
        let barrier = Barrier::new(THREADS as usize);
        let events: Vec<Event> = std::thread::scope(|scope| {
            let run = |thread: u64| {
                let (fs, barrier, clock) = (&fs, &barrier, &clock);
                scope.spawn(move || {
                    let (rig, mut random) = (Rig::new(fs), Random(round * THREADS + thread));
                    let mut events = Vec::new();
                    barrier.wait();
                    for index in 0..4 {
                        let (call, mode) = (draw(&mut random), 1 + (thread * 4 + index) as u32);
                        let began = clock.fetch_add(1, Ordering::SeqCst);
                        if let Some((outcome, mode)) = real(&rig, directories, call, mode) {
                            let ended = clock.fetch_add(1, Ordering::SeqCst);
                            events.push(Event { call, began, ended, outcome, mode });
                        }
                    }
                    events
                })
            };
            let threads: Vec<_> = (0..THREADS).map(run).collect();
            threads.into_iter().flat_map(|thread| thread.join().expect("a thread")).collect()
        });
        let mut last = Names::new();
        for (directory, letter) in directories.into_iter().zip(["p", "q"]) {
            for text in rig.list(directory).into_keys() {
                let text = String::from_utf8(text).expect("text");
                let attributes = rig.attributes(rig.find(directory, &text).expect("it stays"));
                last.insert(format!("{letter}/{text}"), (attributes.mode, attributes.links));
            }
        }
        let mut model = Model::new(0o755, Owner::default(), 4096);
        for text in [b"p", b"q"] {
            model.create(ROOT, text, FileType::Directory, 0o755, Owner::default(), &[]).expect("a directory");
        }
        assert!(has_order(&model, &events, 0, &last), "round {round}: no order gives {last:?}:\n{events:#?}");
        for one in &events {
            let beside = events.iter().filter(|other| other.began < one.ended && one.began < other.ended);
            most_concurrent = most_concurrent.max(beside.count());
        }
        for (directory, letter) in directories.into_iter().zip(["p", "q"]) {
            for text in rig.list(directory).into_keys() {
                rig.unlink(directory, std::str::from_utf8(&text).expect("text")).expect("unlink");
            }
            rig.rmdir(rig.root, letter).expect("rmdir");
        }
    }
    assert!(most_concurrent > 1, "the threads never met");
    close(fs, &medium);
}
