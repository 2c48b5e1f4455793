//! How many fences an operation may cost (the budget in `docs/DESIGN.md`): each is done many times, and most often takes one. What
//! collects a log beside it takes some more now and then, which the mean allows for.

use gannet_fstest::{Rig, name};
use gannet_logfs::{AccessTimes, AttachOptions, LogFs, MakeOptions, NoUsers, make};
use gannet_media::{Counters, CreateOptions, Medium, OpenOptions, counters_thread};
use gannet_vfs::{
    AttributeChange, FileSystem, ModeChange, NewNode, NodeId, Owner, RenameFlags, Time, WritePosition, XattrMode,
};

const TIMES: u64 = 400;
const BLOCK: u64 = 4096;
/// What the collection of logs, and new chunks of the inode table, may add on average.
const FOR_COLLECTION: f64 = 0.3;

/// What one operation may take at most with what it collects. Sixteen blocks of the inode table are made at a time, which are 1,024 lines;
/// what lives in the directory of the test stands in several thousand.
const FENCES_MAX: u64 = 8;
const LINES_MAX: u64 = 1200;

/// An empty volume in memory that executes the instructions of persistent memory.
fn attach(copy_on_write: bool) -> LogFs {
    let open = OpenOptions { emulate_persistence: true, ..OpenOptions::default() };
    let medium = Medium::create_in_memory("fences", 64 << 20, CreateOptions { open, ..CreateOptions::default() });
    let medium = medium.expect("memory");
    let made = MakeOptions {
        label: String::new(),
        copy_on_write,
        emulate_persistence: true,
        owner: Owner::default(),
        mode: 0o755,
        random: [5; 24],
        now: Time::now(),
    };
    make(&medium, &made).expect("mkfs");
    let options = AttachOptions {
        index_bytes_max: 16 << 20,
        copy_on_write: None,
        access_times: AccessTimes::Never,
        threads: 1,
        users: Box::new(NoUsers),
    };
    LogFs::open_private(medium, options).expect("attach")
}

/// Two directories and a file of 64 blocks.
struct Tree<'a> {
    rig: Rig<'a>,
    one: NodeId,
    other: NodeId,
    file: NodeId,
}

/// What it is, how many fences the budget allows it, what is done before and does not count, and the operation.
type Row = (&'static str, u64, fn(&Tree<'_>, &str), fn(&Tree<'_>, &str, u64));

fn nothing(_: &Tree<'_>, _: &str) {}

fn a_file(tree: &Tree<'_>, text: &str) {
    tree.rig.file(tree.one, text);
}

fn two_files(tree: &Tree<'_>, text: &str) {
    a_file(tree, text);
    tree.rig.file(tree.other, text);
}

const ROWS: &[Row] = &[
    ("overwrite of 4 KiB", 1, nothing, |tree, _, round| tree.rig.write(tree.file, round % 64 * BLOCK, &[7; 4096])),
    ("overwrite of 100 B", 1, nothing, |tree, _, round| tree.rig.write(tree.file, round % 64 * BLOCK + 9, &[7; 100])),
    ("append of 64 B", 1, nothing, |tree, _, _| append(tree, &[8; 64])),
    ("append of 4 KiB", 1, nothing, |tree, _, _| append(tree, &[8; 4096])),
    ("write to a hole", 1, nothing, |tree, _, round| tree.rig.write(tree.file, (5000 + 2 * round) * BLOCK, &[9; 4096])),
    ("create", 2, nothing, |tree, text, _| {
        tree.rig.file(tree.one, text);
    }),
    ("mkdir", 2, nothing, |tree, text, _| {
        tree.rig.directory(tree.one, text);
    }),
    ("symlink", 2, nothing, |tree, text, _| {
        tree.rig.symlink(tree.one, text, b"where it leads").expect("a link");
    }),
    ("link", 2, nothing, |tree, text, _| tree.rig.fs.link(tree.file, tree.one, name(text)).expect("a name")),
    ("unlink", 2, a_file, |tree, text, _| {
        tree.rig.unlink(tree.one, text).expect("removed");
    }),
    (
        "rmdir",
        2,
        |tree, text| {
            tree.rig.directory(tree.one, text);
        },
        |tree, text, _| {
            tree.rig.rmdir(tree.one, text).expect("removed");
        },
    ),
    ("chmod", 2, nothing, |tree, _, round| {
        let mode = ModeChange::Set(0o600 + round as u32 % 8);
        tree.rig.fs.set_attributes(tree.file, &AttributeChange { mode, ..Default::default() }).expect("a mode");
    }),
    ("truncate", 2, nothing, |tree, _, round| {
        tree.rig.resize(tree.file, 64 * BLOCK + round % 7).expect("a size");
    }),
    ("setxattr", 2, nothing, |tree, _, round| {
        tree.rig.fs.set_xattr(tree.file, b"user.x", &round.to_le_bytes(), XattrMode::Any).expect("an attribute");
    }),
    ("rename in a directory", 3, a_file, |tree, text, _| {
        tree.rig.rename((tree.one, text), (tree.one, &format!("{text}-new"))).expect("renamed");
    }),
    ("rename across directories", 3, a_file, |tree, text, _| {
        tree.rig.rename((tree.one, text), (tree.other, text)).expect("renamed");
    }),
    ("rename over a file", 3, two_files, |tree, text, _| {
        tree.rig.rename((tree.one, text), (tree.other, text)).expect("renamed");
    }),
    ("exchange", 3, two_files, |tree, text, _| {
        tree.rig.rename_with((tree.one, text), (tree.other, text), RenameFlags::EXCHANGE).expect("exchanged");
    }),
];

fn append(tree: &Tree<'_>, bytes: &[u8]) {
    let written = tree.rig.try_write(tree.file, WritePosition::Append, bytes).expect("an append");
    assert_eq!(written.count_bytes, bytes.len());
}

#[test]
fn operations_cost_no_more_fences_than_the_budget_allows() {
    for copy_on_write in [false, true] {
        for &(text, most, prepare, operation) in ROWS {
            let fs = attach(copy_on_write);
            let rig = Rig::new(&fs);
            let (one, other) = (rig.directory(rig.root, "one"), rig.directory(rig.root, "other"));
            let file = fs.create(rig.root, name("file"), &NewNode::regular(0o600, Owner::default())).expect("a file");
            rig.write(file, 0, &[1; 64 * BLOCK as usize]);
            let tree = Tree { rig, one, other, file };
            let mut fences: Vec<u64> = (0..TIMES)
                .map(|round| {
                    let name = format!("n{round}");
                    prepare(&tree, &name);
                    let before = counters_thread().fences;
                    operation(&tree, &name, round);
                    counters_thread().fences - before
                })
                .collect();
            let mean = fences.iter().sum::<u64>() as f64 / TIMES as f64;
            fences.sort_unstable();
            let (median, longest) = (fences[fences.len() / 2], fences[fences.len() - 1]);
            println!("{text}, copy-on-write {copy_on_write}: median {median}, mean {mean:.2}, most {longest}");
            assert!(fences[0] >= 1, "{text}: done without a fence");
            assert!(median <= most, "{text}, copy-on-write {copy_on_write}: {median} fences");
            assert!(mean < most as f64 + FOR_COLLECTION, "{text}, copy-on-write {copy_on_write}: {mean} on average");
        }
    }
}

/// Fences, and lines that are written to the medium, of one operation.
fn cost(operation: impl FnOnce()) -> (u64, u64) {
    let before = counters_thread();
    operation();
    let after = counters_thread();
    let lines = |of: &Counters| of.lines_flushed + of.lines_streamed;
    (after.fences - before.fences, lines(&after) - lines(&before))
}

/// Names of a large directory come and go, and a file is written here and there, for so long that their logs are collected many times over:
/// no single operation does much of that.
#[test]
fn logs_are_collected_in_small_steps() {
    const NAMES: u64 = 5000;
    const ROUNDS: u64 = 60_000;
    let fs = attach(true);
    let rig = Rig::new(&fs);
    let (directory, file) = (rig.directory(rig.root, "names"), rig.file(rig.root, "file"));
    rig.write(file, 0, &[1; 256 * BLOCK as usize]);
    let (mut there, mut state) = (vec![false; NAMES as usize], 1u64);
    let (mut most, mut all) = ((0, 0), (0, 0));
    for _ in 0..ROUNDS {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let number = (state >> 33) % NAMES;
        let (text, is_there) = (format!("a name of some length, number {number}"), there[number as usize]);
        there[number as usize] = !is_there;
        let of_names = cost(|| match is_there {
            true => drop(rig.unlink(directory, &text).expect("removed")),
            false => drop(rig.file(directory, &text)),
        });
        let of_data = cost(|| rig.write(file, number % 256 * BLOCK + 5, &[number as u8; 100]));
        for (fences, lines) in [of_names, of_data] {
            most = (fences.max(most.0), lines.max(most.1));
            all = (all.0 + fences, all.1 + lines);
        }
    }
    let per_operation = |sum: u64| sum as f64 / (2 * ROUNDS) as f64;
    println!("most {most:?}, on average {:.2} and {:.1}", per_operation(all.0), per_operation(all.1));
    assert!(most.0 <= FENCES_MAX && most.1 <= LINES_MAX, "fences and lines of one operation: {most:?}");
}
