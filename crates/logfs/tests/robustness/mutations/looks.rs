//! Ways to look at what a workload has left: crashes, uses that depend on it, the clean detach.

use crate::enumeration::{Expected, crashes};
use crate::operations::at;
use crate::state::{State, Tear, capture};
use crate::volume::{assert_sound, attach};
use gannet_fstest::{Rig, name};
use gannet_logfs::LogFs;
use gannet_media::simulation::{Crash, CrashPolicy};
use gannet_media::{Medium, MediumOffset, Simulation};
use gannet_vfs::{AttributeChange, FileSystem, FileType, ModeChange, NewNode, Owner};
use std::collections::BTreeSet;
use std::ops::Range;

pub(crate) fn policy(seed: u64) -> CrashPolicy {
    CrashPolicy { combinations_max: 16, cuts_max: 4, samples: 4, ..CrashPolicy::sparse(seed) }
}

/// Looks at the crashes of a range: before `returned_at` they may leave either, from then on what is after. One in some images
/// is used, which takes room.
pub(crate) fn look(
    simulation: &Simulation,
    range: Range<usize>,
    (before, after): (&State, &State),
    tear: Tear,
    returned_at: usize,
    text: &str,
) {
    let expected = Expected { before, after, tear, returned_at };
    let every = match text {
        text if text.contains(CROWDED) => u64::MAX,
        text if text.contains(SESSION) => 2,
        _ => 64,
    };
    crashes(simulation, range, &policy(1), &expected, text, every, &mut 0);
}

/// Looks at the crashes now: everything is as it is seen.
pub(crate) fn look_now(simulation: &Simulation, state: &State, text: &str) {
    let end = simulation.mark();
    look(simulation, end..end, (state, state), Tear::Whole, end, text);
}

/// In the names of workloads on volumes without room.
pub(crate) const CROWDED: &str = "crowded: ";
/// In the names of those that open and close, where what is said of free space counts.
pub(crate) const SESSION: &str = "a session";

/// Closes a volume; what a clean detach relies on is durable.
pub(crate) fn close(fs: LogFs, simulation: &Simulation, text: &str) {
    let state = capture(&fs).expect("the state at the end");
    let statistics = fs.statistics().expect("statistics");
    assert!(fs.detach().expect("detach"));
    drop(fs);
    let report = assert_sound(&simulation.medium(), true, text);
    assert_eq!(report.blocks - report.blocks_used, statistics.blocks_free, "{text}: free blocks");
    look_now(simulation, &state, text);
    let end = simulation.mark();
    simulation.for_each_crash(end..end, &policy(4), |crash| drop(assert_sound(&crash.medium(), true, text)));
}

/// Something more in one log after another, so that what was last in it is not any more.
pub(crate) fn use_everything(fs: &LogFs, simulation: &Simulation, tear: Tear, text: &str) {
    let rig = Rig::new(fs);
    for (path, inode) in capture(fs).expect("the state").paths {
        let Ok(node) = at(&rig, &path) else { continue };
        if inode.attributes.file_type == FileType::Directory {
            let _ = fs.create(node, name("later"), &NewNode::regular(0o600, Owner::default()));
        }
        let mode = ModeChange::Set(inode.attributes.mode ^ 0o7);
        let _ = fs.set_attributes(node, &AttributeChange { mode, ..Default::default() });
        if inode.attributes.file_type != FileType::Directory {
            continue;
        }
        let (state, end) = (capture(fs).expect("the state"), simulation.mark());
        let returned_at = if tear == Tear::Whole { end } else { usize::MAX };
        let expected = Expected { before: &state, after: &state, tear, returned_at };
        let few = CrashPolicy { combinations_max: 2, cuts_max: 0, samples: 0, ..policy(7) };
        crashes(simulation, end..end, &few, &expected, text, u64::MAX, &mut 0);
    }
}

/// Makes a link, whose slot has a head from birth on, where a slot was freed, and perhaps a page: a crash leaves any part of it, and
/// lines torn behind their checksums.
pub(crate) fn be_born_anew(fs: &LogFs, simulation: &Simulation, text: &str) {
    let rig = Rig::new(fs);
    let before = capture(fs).expect("the state before");
    let mark = simulation.mark();
    if rig.symlink(rig.root, "born", &[b'z'; 90]).is_err() {
        return;
    }
    let after = capture(fs).expect("the state after");
    let end = simulation.mark();
    let expected = Expected { before: &before, after: &after, tear: Tear::Whole, returned_at: end };
    let cuts = CrashPolicy { combinations_max: 4, cuts_max: 16, samples: 0, ..policy(mark as u64) };
    crashes(simulation, mark..end, &cuts, &expected, text, u64::MAX, &mut 0);
    torn_lines(simulation, mark..end, &mut |crash| {
        let (uncertain, survived) = crash.survivors();
        if ![2, 4].contains(&(uncertain - survived)) {
            return;
        }
        drop(assert_sound(&crash.medium(), false, text));
        let fs = attach(&crash.medium()).unwrap_or_else(|error| panic!("recovery after: {text}: {error}"));
        let found = capture(&fs).unwrap_or_else(|error| panic!("a torn line in: {text}: {error}"));
        assert_eq!(expected.compare(&found, crash.at()), Ok(()), "a torn line in: {text}");
    });
}

/// Shows the crashes that tear one of the lines that were stored, or take it, wherever it can be torn: all else is as it was stored.
pub(crate) fn torn_lines(simulation: &Simulation, range: Range<usize>, look: &mut dyn FnMut(&Crash<'_>)) {
    let line_of = |at: MediumOffset| at.0 / LINE_BYTES * LINE_BYTES;
    let read = |medium: &Medium, at: u64| {
        let mut line = [0; LINE_BYTES as usize];
        medium.read(MediumOffset(at), &mut line).expect("a line");
        line
    };
    let lines: BTreeSet<u64> = simulation.stored_in(range.clone()).into_iter().map(line_of).collect();
    let whole: Vec<_> = lines.iter().map(|&at| (at, read(&simulation.medium(), at))).collect();
    let all_cuts = CrashPolicy { combinations_max: 0, cuts_max: u32::MAX, samples: 0, ..policy(0) };
    simulation.for_each_crash(range, &all_cuts, |crash| {
        let (uncertain, survived) = crash.survivors();
        // What is torn of zeros is nothing to see.
        let is_torn = |&&(at, line): &&(u64, [u8; LINE_BYTES as usize])| {
            line.iter().any(|&byte| byte != 0) && read(&crash.medium(), at) != line
        };
        if uncertain <= survived + WORDS_MAX && whole.iter().filter(is_torn).count() == 1 {
            look(crash);
        }
    });
}

const LINE_BYTES: u64 = 64;
/// Stores that one line may lose: it may be stored to twice.
const WORDS_MAX: usize = 16;
