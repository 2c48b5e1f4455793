//! One workload and its crash images: each is recovered, compared with what was before and after the operation in flight,
//! checked, and used.

use crate::operations::{Operation, all, at, bytes, populate};
use crate::state::{State, Tear, capture};
use crate::volume::{MODES, assert_sound, attach, image, open};
use gannet_fstest::{Rig, name};
use gannet_media::Medium;
use gannet_media::simulation::{Crash, CrashPolicy};
use gannet_vfs::{Errno, FileSystem, RenameFlags, WritePosition};
use std::ops::{AddAssign, Range};
use std::time::Instant;

/// How much was looked at.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Count {
    pub(crate) workloads: u64,
    pub(crate) points: u64,
    pub(crate) images: u64,
    pub(crate) nested: u64,
    pub(crate) checks: u64,
}

impl AddAssign for Count {
    fn add_assign(&mut self, other: Self) {
        self.workloads += other.workloads;
        self.points += other.points;
        self.images += other.images;
        self.nested += other.nested;
        self.checks += other.checks;
    }
}

impl Count {
    /// Says how much it was.
    pub(crate) fn print(&self, what: &str, since: Instant) {
        println!(
            "{what}: {} workloads, {} crash points, {} images ({} of crashes in recovery), {} checks, {:.1} s",
            self.workloads,
            self.points,
            self.images,
            self.nested,
            self.checks,
            since.elapsed().as_secs_f64()
        );
    }
}

/// What an image is compared with.
pub(crate) struct Expected<'a> {
    pub(crate) before: &'a State,
    pub(crate) after: &'a State,
    pub(crate) tear: Tear,
    /// From this event on the operation has returned.
    pub(crate) returned_at: usize,
}

impl Expected<'_> {
    /// What is wrong with what is found after a crash at an event.
    pub(crate) fn compare(&self, found: &State, at: usize) -> std::result::Result<(), String> {
        if at >= self.returned_at {
            found.equals(self.after)
        } else {
            found.may_follow(self.before, self.after, self.tear)
        }
    }
}

/// Where words may survive in any order each of them is looked at alone: not of operations with more, which are those with data.
const WORDS_IN_ANY_ORDER_MAX: usize = 96;

/// Runs `operations` on a volume with this image and looks at the crashes during the last one. How thoroughly, `policy`
/// says; one in `every` images is checked by fsck before recovery, and used and closed after it.
pub(crate) fn last_of(image: &[u8], operations: &[&Operation], policy: &CrashPolicy, every: u64, seed: u64) -> Count {
    let (fs, simulation) = open(image);
    let (last, first) = operations.split_last().expect("an operation");
    for operation in first {
        let _ = operation.apply(&fs);
    }
    let before = capture(&fs).expect("the state before");
    let mark = simulation.mark();
    let _ = last.apply(&fs);
    let returned_at = simulation.mark();
    if policy.words_in_any_order && simulation.stores_in(mark..returned_at) > WORDS_IN_ANY_ORDER_MAX {
        return Count::default();
    }
    let after = capture(&fs).expect("the state after");
    let text: Vec<&str> = operations.iter().map(|operation| operation.text.as_str()).collect();
    // What was done before decides which way an operation takes.
    let tear = if first.is_empty() { last.tear } else { last.tear_after };
    let expected = Expected { before: &before, after: &after, tear, returned_at };
    let mut count = Count { workloads: 1, ..Count::default() };
    let mut number = seed;
    count += crashes(&simulation, mark..returned_at, policy, &expected, &text.join("; "), every, &mut number);
    count
}

/// Looks at the crashes of a range of events.
pub(crate) fn crashes(
    simulation: &gannet_media::Simulation,
    range: Range<usize>,
    policy: &CrashPolicy,
    expected: &Expected<'_>,
    text: &str,
    every: u64,
    number: &mut u64,
) -> Count {
    let mut count = Count::default();
    let seen = simulation.for_each_crash(range, policy, |crash| {
        *number += 1;
        count += look(crash, expected, text, number.is_multiple_of(every));
    });
    count.points += seen.points;
    count.images += seen.images;
    count
}

/// Looks at one image.
fn look(crash: &Crash<'_>, expected: &Expected<'_>, text: &str, thorough: bool) -> Count {
    let medium = crash.medium();
    let mut checks = 1;
    if thorough {
        assert_sound(&medium, false, &format!("of a crash image of: {text}"));
        checks += 1;
    }
    let nested = if thorough && crash.survivors().0 > 0 { crash_again(crash, expected, text) } else { 0 };
    let fs = attach(&medium).unwrap_or_else(|error| panic!("recovery after: {text}: {error}"));
    let found = capture(&fs).unwrap_or_else(|error| panic!("reading after: {text}: {error}"));
    if let Err(what) = expected.compare(&found, crash.at()) {
        panic!("after a crash in: {text}\n{what}");
    }
    if thorough {
        checks += use_and_close(fs, &medium, text);
    }
    Count { nested, checks: checks + nested, ..Count::default() }
}

/// Recovers an image and looks at the crashes during that, each recovered and compared in its turn. Leaves the volume
/// recovered.
fn crash_again(crash: &Crash<'_>, expected: &Expected<'_>, text: &str) -> u64 {
    let control = crash.simulation();
    let mark = control.mark();
    drop(attach(&crash.medium()).unwrap_or_else(|error| panic!("recovery after: {text}: {error}")));
    let policy = CrashPolicy { combinations_max: 8, cuts_max: 2, samples: 2, ..CrashPolicy::sparse(crash.at() as u64) };
    let count = control.for_each_crash(mark..control.mark(), &policy, |inner| {
        let fs = attach(&inner.medium()).unwrap_or_else(|error| panic!("second recovery after: {text}: {error}"));
        let found = capture(&fs).unwrap_or_else(|error| panic!("reading after: {text}: {error}"));
        if let Err(what) = expected.compare(&found, crash.at()) {
            panic!("after a crash in recovery from one in: {text}\n{what}");
        }
        if inner.survivors().0 % 4 == 3 {
            assert!(fs.detach().expect("detach"));
            drop(fs);
            assert_sound(&inner.medium(), true, &format!("after a crash in recovery from one in: {text}"));
        }
    });
    count.images
}

/// Works with a recovered volume, closes it, checks it and opens it again.
fn use_and_close(fs: gannet_logfs::LogFs, medium: &Medium, text: &str) -> u64 {
    exercise(&fs);
    let left = capture(&fs).expect("the state at the end");
    let free = fs.statistics().expect("statistics");
    assert!(fs.detach().expect("detach"));
    drop(fs);
    let report = assert_sound(medium, true, &format!("after recovery and use of: {text}"));
    assert_eq!(report.blocks - report.blocks_used, free.blocks_free, "free blocks after: {text}");
    let fs = attach(medium).expect("attach again");
    assert_eq!(fs.recovery(), None, "after a clean detach nothing is recovered");
    assert_eq!(capture(&fs).expect("the state again").equals(&left), Ok(()), "remounted after: {text}");
    assert_eq!(fs.statistics().expect("statistics"), free, "remounted after: {text}");
    3
}

/// Something of everything, all of which must succeed on a sound volume.
pub(crate) fn exercise(fs: &dyn FileSystem) {
    let rig = Rig::new(fs);
    let file = rig.file(rig.root, "used");
    rig.write(file, 0, &bytes(0x77, 5000));
    rig.write(file, 4000, &bytes(0x33, 200));
    let directory = rig.directory(rig.root, "used.d");
    rig.rename((rig.root, "used"), (directory, "moved")).expect("rename");
    fs.link(file, rig.root, name("used")).expect("link");
    rig.unlink(directory, "moved").expect("unlink");
    rig.rename_with((rig.root, "used"), (rig.root, "used.d"), RenameFlags::EXCHANGE).expect("exchange");
    rig.rmdir(rig.root, "used").expect("rmdir");
    assert_eq!(&rig.content(file)[4000..4200], bytes(0x33, 200));
    rig.unlink(rig.root, "used.d").expect("unlink");
    for path in ["/a", "/b", "/d1/f", "/sparse", "/cut", "/n", "/o", "/c"] {
        let Ok(node) = at(&rig, path) else { continue };
        if rig.attributes(node).file_type == gannet_vfs::FileType::Regular {
            let mut content = rig.content(node);
            let added = bytes(0x21, 10);
            rig.try_write(node, WritePosition::Append, &added).expect("append");
            content.extend_from_slice(&added);
            assert!(rig.content(node) == content, "{path} after an append");
        }
    }
}

/// What is refused on the tree that all begin with: it is about what is not there, or in the way, until another operation came before it.
const MEANT_TO_FAIL: [(&str, Errno); 8] = [
    ("remove /d2/sub", Errno::NOTEMPTY),
    ("remove /n", Errno::NOENT),
    ("remove /m", Errno::NOENT),
    ("rename /n /d1/f RenameFlags(0x0)", Errno::NOENT),
    ("rename /m /d1/m RenameFlags(0x0)", Errno::NOENT),
    ("rename /d1/f /b RenameFlags(NO_REPLACE)", Errno::EXIST),
    ("write /n None 77", Errno::NOENT),
    ("clone 9000 at 0 of /o to /n at 0", Errno::NOENT),
];

/// The enumerations go on whether an operation succeeds or not, so one that began to fail would be left out of all of them.
#[test]
fn all_operations_but_those_meant_to_fail_succeed_alone() {
    for mode in MODES {
        let image = image(mode, |fs| populate(fs));
        let mut failed = Vec::new();
        for operation in all(mode) {
            let (fs, _) = open(&image);
            if let Err(error) = operation.apply(&fs) {
                failed.push((operation.text, error.errno()));
            }
        }
        let failed: Vec<(&str, Errno)> = failed.iter().map(|(text, errno)| (text.as_str(), *errno)).collect();
        assert_eq!(failed, MEANT_TO_FAIL, "{mode:?}");
    }
}
