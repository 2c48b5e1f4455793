//! A writer in place stands in the middle of its copy, with its stripe locked, while others want to do something with the
//! blocks it writes to: they wait for it, or what they made would change under them.

use crate::operations::bytes;
use crate::volume::{Mode, image, open};
use gannet_fstest::Rig;
use gannet_logfs::LogFs;
use gannet_media::{Medium, MediumOffset, Simulation};
use gannet_shm::testing::{Outcome, run_abandoned};
use gannet_vfs::{AllocateMode, Errno, FileSystem, Name, NewNode, NodeId, Owner, Result, WritePosition};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

const BLOCK: usize = 4096;

/// Two files of so many blocks, in a volume whose data is written in place.
fn two_files(blocks: usize) -> (Arc<LogFs>, Simulation, NodeId, NodeId) {
    let image = image(Mode::InPlace, |fs| {
        let rig = Rig::new(fs);
        for text in ["one", "other"] {
            let node = rig.file(rig.root, text);
            rig.write(node, 0, &bytes(1, blocks * BLOCK));
        }
    });
    let (fs, simulation) = open(&image);
    let find = |text| Rig::new(&fs).find(fs.root(), text).expect("a file");
    let (one, two) = (find("one"), find("other"));
    (Arc::new(fs), simulation, one, two)
}

/// Runs `other` beside a writer of one block of `one` that stands still. If it does not wait for the writer, `look` sees the
/// same before and after the writer goes on, or this panics.
fn beside_a_writer(what: &str, other: fn(&LogFs, NodeId, NodeId), look: fn(&LogFs, NodeId, NodeId) -> Vec<u8>) {
    let (fs, _simulation, one, two) = two_files(8);
    // What was loaded has to be sealed first: the writer is to find nothing to do but its copy.
    Rig::new(&*fs).write(one, 2 * BLOCK as u64, &bytes(1, BLOCK));
    let writer = fs.clone();
    let stopped =
        Simulation::stop_after(100, move || Rig::new(&*writer).write(one, 2 * BLOCK as u64, &bytes(9, BLOCK)));
    let worker = fs.clone();
    let other = std::thread::spawn(move || other(&worker, one, two));
    let deadline = Instant::now() + Duration::from_secs(120);
    while !other.is_finished() && fs.shared().session().waiting().is_empty() {
        assert!(Instant::now() < deadline, "{what}: neither done nor waiting");
        std::thread::sleep(Duration::from_millis(1));
    }
    let before = other.is_finished().then(|| look(&fs, one, two));
    stopped.finish();
    other.join().expect("the other");
    if let Some(before) = before {
        assert!(look(&fs, one, two) == before, "{what}: it changed under them");
    }
    // Whoever was first, the whole block is of before or after, but for a byte that is written.
    let mut block = look(&fs, one, two)[2 * BLOCK..3 * BLOCK].to_vec();
    block[100] = 0;
    let is_of = |mut bytes: Vec<u8>| {
        bytes[100] = 0;
        block == bytes
    };
    assert!(
        is_of(bytes(1, BLOCK)) || is_of(bytes(9, BLOCK)) || is_of(bytes(1, 8 * BLOCK)[2 * BLOCK..3 * BLOCK].to_vec())
    );
}

#[test]
fn a_clone_waits_for_writers_in_place() {
    beside_a_writer(
        "clone",
        |fs, one, two| fs.clone_range(one, 0, two, 0, 8 * BLOCK as u64).expect("clone"),
        |fs, _, two| Rig::new(fs).content(two),
    );
}

#[test]
fn blocks_are_freed_behind_their_writers() {
    // They come back as the other file's, and stay that.
    beside_a_writer(
        "truncate",
        |fs, one, two| {
            let rig = Rig::new(fs);
            rig.resize(one, 0).expect("truncate");
            rig.resize(two, 0).expect("truncate");
            rig.write(two, 0, &bytes(1, 8 * BLOCK));
        },
        |fs, _, two| Rig::new(fs).content(two),
    );
}

#[test]
fn copy_on_write_copies_what_writers_in_place_wrote() {
    beside_a_writer(
        "copy-on-write",
        |fs, one, _| {
            let change = gannet_vfs::AttributeChange {
                flags: Some(gannet_vfs::InodeFlags::COPY_ON_WRITE),
                ..Default::default()
            };
            fs.set_attributes(one, &change).expect("a flag");
            Rig::new(fs).write(one, 2 * BLOCK as u64 + 100, b"x");
        },
        |fs, one, _| Rig::new(fs).content(one),
    );
}

/// As [`beside_a_writer`], but that one who changes the file before is killed while he waits for the writer: whoever comes then, and relies on
/// what that one did, waits in his place. The writer is at block `at` of the file `one`, which has 24. What `look` sees behind `other`,
/// `is_right`, and if `other` did not wait it is the same before and after the writer goes on, for whom `look` must not wait then.
fn behind_a_killed(
    what: &str,
    at: usize,
    killed: fn(&LogFs, NodeId),
    other: fn(&LogFs, NodeId, NodeId),
    look: fn(&LogFs, NodeId, NodeId) -> Vec<u8>,
    is_right: Option<fn(&[u8]) -> bool>,
) {
    let (fs, _simulation, one, two) = two_files(24);
    Rig::new(&*fs).write(one, (at * BLOCK) as u64, &bytes(1, BLOCK));
    let writer = fs.clone();
    let stopped =
        Simulation::stop_after(100, move || Rig::new(&*writer).write(one, (at * BLOCK) as u64, &bytes(9, BLOCK)));
    // He comes as far as he can, and then stores a word now and then while he waits.
    let outcome = run_abandoned(&[fs.session()], 400, || killed(&fs, one));
    assert!(matches!(outcome, Outcome::Abandoned), "{what}: it did not wait for the writer");
    fs.session().reap_dead().expect("reaping");
    let worker = fs.clone();
    let other = std::thread::spawn(move || other(&worker, one, two));
    let deadline = Instant::now() + Duration::from_secs(120);
    while !other.is_finished() && fs.shared().session().waiting().is_empty() {
        assert!(Instant::now() < deadline, "{what}: neither done nor waiting");
        std::thread::sleep(Duration::from_millis(1));
    }
    let before = (other.is_finished() && is_right.is_none()).then(|| look(&fs, one, two));
    stopped.finish();
    other.join().expect("the other");
    let after = look(&fs, one, two);
    assert!(before.is_none_or(|before| before == after), "{what}: it changed under them");
    assert!(is_right.is_none_or(|is_right| is_right(&after)), "{what}: not what was written last");
}

#[test]
fn a_clone_waits_for_writers_whose_blocks_were_moved_by_one_who_was_killed() {
    behind_a_killed(
        "collapse",
        18,
        |fs, one| fs.allocate(one, AllocateMode::Collapse, 0, 16 * BLOCK as u64).expect("collapse"),
        |fs, one, two| fs.clone_range(one, 0, two, 0, 8 * BLOCK as u64).expect("clone"),
        |fs, _, two| Rig::new(fs).content(two),
        None,
    );
    behind_a_killed(
        "insert",
        2,
        |fs, one| fs.allocate(one, AllocateMode::Insert, 0, 16 * BLOCK as u64).expect("insert"),
        |fs, one, two| fs.clone_range(one, 16 * BLOCK as u64, two, 0, 8 * BLOCK as u64).expect("clone"),
        |fs, _, two| Rig::new(fs).content(two),
        None,
    );
}

#[test]
fn a_file_that_was_cut_by_one_who_was_killed_grows_behind_its_writers() {
    let cut = |fs: &LogFs, one: NodeId| {
        Rig::new(fs).resize(one, 2 * BLOCK as u64 + 100).expect("truncate");
    };
    let content = |fs: &LogFs, one: NodeId, _: NodeId| Rig::new(fs).content(one);
    behind_a_killed(
        "truncate, extend",
        2,
        cut,
        |fs, one, _| {
            Rig::new(fs).resize(one, 8 * BLOCK as u64).expect("extend");
        },
        content,
        Some(|content| content.len() == 8 * BLOCK && content[2 * BLOCK + 100..].iter().all(|&byte| byte == 0)),
    );
    behind_a_killed(
        "truncate, append",
        2,
        cut,
        |fs, one, _| {
            Rig::new(fs).try_write(one, WritePosition::Append, &bytes(5, 2 * BLOCK)).expect("append");
        },
        content,
        Some(|content| content[2 * BLOCK + 100..] == bytes(5, 2 * BLOCK)),
    );
}

/// Where a volume names the arena of those who have it open: what is copied over it has another word there.
const ARENA_AT: MediumOffset = MediumOffset(4096 + 3 * 64);
/// What nobody else stores.
const MARK: &[u8; 64] = &[0xA7; 64];

/// Takes a lock of a file, and keeps it until what it returns is called.
type Holder = fn(Arc<LogFs>, NodeId) -> Box<dyn FnOnce()>;

/// Waits for one who has a lock of the file `one` while other content is put into the volume, and must be refused then; the lock is free
/// afterwards.
fn refused_behind(what: &str, holder: Holder, other: fn(&LogFs) -> Result<()>) {
    let image = image(Mode::InPlace, |fs| {
        let rig = Rig::new(fs);
        let node = rig.file(rig.root, "one");
        rig.write(node, 0, &bytes(1, 8 * BLOCK));
    });
    let (fs, simulation) = open(&image);
    let (fs, medium) = (Arc::new(fs), simulation.medium());
    let one = Rig::new(&*fs).find(fs.root(), "one").expect("a file");
    Rig::new(&*fs).write(one, 2 * BLOCK as u64, &bytes(1, BLOCK));
    let end_of_hold = holder(fs.clone(), one);
    let worker = fs.clone();
    let waiter = std::thread::spawn(move || other(&worker));
    let deadline = Instant::now() + Duration::from_secs(120);
    while fs.shared().session().waiting().is_empty() {
        assert!(Instant::now() < deadline && !waiter.is_finished(), "{what}: it does not wait");
        std::thread::sleep(Duration::from_millis(1));
    }
    let named = medium.load_u64(ARENA_AT).expect("the word");
    medium.store_u64(ARENA_AT, !named).expect("the word");
    end_of_hold();
    let outcome = waiter.join().expect("the waiter");
    assert_eq!(outcome.map_err(|error| error.errno()), Err(Errno::UCLEAN), "{what}");
    assert!(!holds_mark(&medium), "{what}: it was stored");
    medium.store_u64(ARENA_AT, named).expect("the word");
    other(&fs).unwrap_or_else(|error| panic!("{what}: with the content that was opened: {error}"));
    assert!(holds_mark(&medium), "{what}: what it stores is not looked for");
    assert!(fs.detach().expect("detach"), "{what}");
}

/// Whether the mark stands anywhere, of data or of a name.
fn holds_mark(medium: &Medium) -> bool {
    let mut all = vec![0; medium.length() as usize];
    medium.read(MediumOffset(0), &mut all).expect("read the medium");
    all.windows(MARK.len()).any(|bytes| bytes == MARK)
}

/// Holds the lock of an inode.
fn telling(fs: Arc<LogFs>, node: NodeId) -> Box<dyn FnOnce()> {
    let (tell, told) = mpsc::channel();
    let (go_on, wait) = mpsc::channel::<()>();
    let thread = std::thread::spawn(move || {
        let mut sink = |_: &gannet_vfs::Extent| {
            tell.send(()).expect("the test waits");
            wait.recv().expect("the test says when");
            false
        };
        fs.extents(node, 0, BLOCK as u64, &mut sink).expect("extents");
    });
    told.recv().expect("it comes to tell");
    Box::new(move || {
        go_on.send(()).expect("it waits");
        thread.join().expect("it ends");
    })
}

/// Holds the stripe of a file's first blocks.
fn writing(fs: Arc<LogFs>, node: NodeId) -> Box<dyn FnOnce()> {
    let stopped = Simulation::stop_after(100, move || {
        Rig::new(&*fs).write(node, 2 * BLOCK as u64, &bytes(9, BLOCK));
    });
    Box::new(move || stopped.finish())
}

#[test]
fn who_waited_for_a_lock_stores_nothing_to_what_was_put_there_meanwhile() {
    let append = |fs: &LogFs| {
        let rig = Rig::new(fs);
        rig.try_write(rig.find(rig.root, "one").expect("a file"), WritePosition::Append, MARK).map(drop)
    };
    refused_behind("an append", telling, append);
    let note = |fs: &LogFs| {
        let rig = Rig::new(fs);
        fs.set_xattr(rig.find(rig.root, "one").expect("a file"), b"user.mark", MARK, gannet_vfs::XattrMode::Any)
    };
    refused_behind("an attribute", telling, note);
    let overwrite = |fs: &LogFs| {
        let rig = Rig::new(fs);
        let one = rig.find(rig.root, "one").expect("a file");
        rig.try_write(one, WritePosition::At(4 * BLOCK as u64), MARK).map(drop)
    };
    refused_behind("an overwrite", writing, overwrite);
    let zero_and_name = |fs: &LogFs| {
        let rig = Rig::new(fs);
        fs.allocate(rig.find(rig.root, "one").expect("a file"), AllocateMode::Zero, 10, 20)?;
        let name = Name::new(MARK).expect("a name");
        fs.create(rig.root, name, &NewNode::regular(0o644, Owner::default())).map(drop)
    };
    refused_behind("zeroing", writing, zero_and_name);
}
