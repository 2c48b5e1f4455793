//! A feature is noted in the superblock and in its replica, one of which may be damaged.

use super::looks::policy;
use super::repairs::findings;
use super::workload::{Kind, Volume, Workload};
use crate::operations::{at, bytes};
use crate::state::{Tear, capture};
use crate::volume::attach;
use gannet_fstest::Rig;
use gannet_logfs::{Finding, LogFs};
use gannet_media::MediumOffset;
use gannet_media::simulation::CrashPolicy;
use gannet_vfs::FileSystem;
use std::rc::Rc;

/// A tree that needs no feature.
pub(crate) fn without_features(fs: &LogFs) {
    let rig = Rig::new(fs);
    let file = rig.file(rig.root, "original");
    rig.write(file, 0, &bytes(1, 5000));
    rig.file(rig.root, "clone");
}

/// The first clone on a volume. Whatever a crash leaves of that, one copy of the superblock stands, and once the clone has returned both do.
pub(crate) fn noted(text: String, volume: Rc<Volume>) -> Workload {
    Workload::new(Kind::Special, text.clone(), move |fault| {
        let replica = volume.image.len() as u64 - 4096;
        for damaged in [None, Some(0), Some(replica)] {
            let (medium, simulation) = volume.simulated();
            if let Some(copy) = damaged {
                medium.store_u64(MediumOffset(copy + AT_UUID), u64::MAX).expect("damage");
                medium.fence();
            }
            let fs = attach(&medium).expect("attach");
            let rig = Rig::new(&fs);
            let [original, clone] = ["original", "clone"].map(|name| at(&rig, name).expect("a file"));
            let before = capture(&fs).expect("the state before");
            let mark = simulation.mark();
            fault.during(&simulation, || fs.clone_range(original, 0, clone, 0, 5000)).expect("clone");
            if !fault.looks() {
                continue;
            }
            let (after, end) = (capture(&fs).expect("the state after"), simulation.mark());
            let text = format!("{text}, damaged: {damaged:?}");
            let policy = CrashPolicy { combinations_max: 64, cuts_max: 4, samples: 32, ..policy(6) };
            for range in [end..end, mark..end] {
                simulation.for_each_crash(range, &policy, |crash| {
                    let found = findings(&crash.medium());
                    let is_superblock = |finding: &Finding| finding.structure.ends_with("superblock");
                    assert!(found.iter().all(is_superblock), "{text}: {found:?}");
                    assert!(crash.at() < end || found.is_empty(), "{text}: {found:?}");
                    let fs = attach(&crash.medium()).unwrap_or_else(|error| panic!("{text}: {error}"));
                    let found = capture(&fs).expect("the state after a crash");
                    assert_eq!(found.may_follow(&before, &after, Tear::Whole), Ok(()), "{text}");
                });
            }
        }
    })
}

const AT_UUID: u64 = 32;
