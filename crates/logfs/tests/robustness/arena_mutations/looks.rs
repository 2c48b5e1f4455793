//! What is looked at behind a workload: the tree, what is free, the medium, that one can go on, the detach and the next attach.

use crate::enumeration::exercise;
use crate::state::{State, capture};
use crate::volume::{assert_sound, attach};
use gannet_fstest::Rig;
use gannet_logfs::LogFs;
use gannet_media::Simulation;
use gannet_vfs::{FileSystem, WritePosition};
use std::mem::ManuallyDrop;

/// An open volume, that is left as it is if something is noticed: where a store was left out, closing it may not come to an end.
pub(crate) struct Open {
    pub(crate) fs: ManuallyDrop<LogFs>,
    pub(crate) simulation: Simulation,
}

impl Open {
    pub(crate) fn new((fs, simulation): (LogFs, Simulation)) -> Self {
        Self { fs: ManuallyDrop::new(fs), simulation }
    }

    pub(crate) fn state(&self) -> State {
        capture(&*self.fs).expect("the state").without_times()
    }
}

/// What must hold at the end.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Space {
    /// All that is free counts, and is saved.
    Counts,
    /// Somebody died: it counts after it was counted, and is counted anew by the next.
    Uncertain { recounts: bool },
}

/// Nobody else's bytes are in what counts as free, and all of it can be had.
fn fill(open: &Open, space: Space, text: &str) {
    let before = open.state();
    let rig = Rig::new(&*open.fs);
    let Ok(file) = rig.fs.create(
        rig.root,
        gannet_fstest::name("filling"),
        &gannet_vfs::NewNode::regular(0o600, gannet_vfs::Owner::default()),
    ) else {
        return;
    };
    for length in [1 << 16, 1 << 12] {
        while rig.try_write(file, WritePosition::Append, &vec![0xF1; length]).is_ok() {}
    }
    let left = open.fs.statistics().expect("statistics").blocks_free;
    assert!(left < 40 || space != Space::Counts, "{text}: {left} free blocks cannot be had");
    drop(assert_sound(&open.simulation.medium(), false, text));
    rig.unlink(rig.root, "filling").expect("unlink");
    // The directory itself was changed.
    let mut found = open.state();
    let mut before = before;
    found.paths.remove("");
    before.paths.remove("");
    assert!(found.paths == before.paths, "{text}: other files changed");
}

/// Looks at everything, and closes the volume.
pub(crate) fn look(open: Open, space: Space, text: &str) {
    let medium = open.simulation.medium();
    drop(assert_sound(&medium, false, text));
    exercise(&*open.fs);
    fill(&open, space, text);
    exercise(&*open.fs);
    open.fs.session().reap_dead().expect("reaping");
    if space == (Space::Uncertain { recounts: true }) {
        open.fs.recount().expect("counting").expect("nobody else counts");
    }
    let counted = open.fs.statistics().expect("statistics");
    let left = capture(&*open.fs).expect("the state at the end");
    drop(assert_sound(&medium, false, text));
    assert!(open.fs.detach().expect("detach"));
    drop(ManuallyDrop::into_inner(open.fs));
    if space != (Space::Uncertain { recounts: false }) {
        let report = assert_sound(&medium, space == Space::Counts, text);
        assert_eq!(report.blocks - report.blocks_used, counted.blocks_free, "{text}: free blocks");
    } else {
        drop(assert_sound(&medium, false, text));
    }
    let again = ManuallyDrop::new(attach(&medium).expect("the next attach"));
    assert_eq!(capture(&*again).expect("the state").equals(&left), Ok(()), "{text}, attached again");
    let statistics = again.statistics().expect("statistics");
    if space != (Space::Uncertain { recounts: false }) {
        assert_eq!(statistics, counted, "{text}, attached again");
    }
    assert!(again.detach().expect("detach"));
    let report = assert_sound(&medium, true, text);
    assert_eq!(report.blocks - report.blocks_used, statistics.blocks_free, "{text}: free blocks, attached again");
    drop(ManuallyDrop::into_inner(again));
}
