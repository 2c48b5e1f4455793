//! Volumes that are made where others were.

use super::looks::{close, policy};
use super::repairs::findings;
use super::workload::{Kind, Volume, Workload};
use crate::enumeration::exercise;
use crate::state::{State, capture};
use crate::volume::{assert_sound, attach};
use gannet_logfs::Finding;
use gannet_media::Medium;
use gannet_media::simulation::CrashPolicy;
use gannet_vfs::FileSystem;
use std::rc::Rc;
use std::sync::OnceLock;

/// A volume is made where another was.
pub(crate) fn making(text: String, volume: Rc<Volume>, make: impl Fn(&Medium) + 'static) -> Workload {
    let old: OnceLock<State> = OnceLock::new();
    Workload::new(Kind::Special, text.clone(), move |fault| {
        let old = old.get_or_init(|| capture(&volume.open().0).expect("the old volume").without_times());
        let (medium, simulation) = volume.simulated();
        let mark = simulation.mark();
        fault.during(&simulation, || make(&medium));
        let made = simulation.mark();
        if !fault.looks() {
            return;
        }
        let mut empty = None;
        let policy = CrashPolicy { combinations_max: 16, cuts_max: 4, samples: 32, ..policy(3) };
        for range in [made..made, mark..made] {
            simulation.for_each_crash(range, &policy, |crash| {
                let is_made = crash.at() >= made;
                if is_made {
                    assert_sound(&crash.medium(), true, &text);
                }
                // All that a volume which is being made may lack is a superblock; the other one is its replica.
                let as_it_was = findings(&crash.medium());
                let fs = match attach(&crash.medium()) {
                    Ok(fs) => fs,
                    Err(error) if is_made => panic!("{text}: {error}"),
                    Err(_) => return,
                };
                let found = capture(&fs).expect("a volume").without_times();
                // Before its superblocks have gone the old one is there.
                if is_made || found != *old {
                    assert_eq!(found.paths.len(), 1, "{text}");
                    let free = fs.statistics().expect("statistics").blocks_free;
                    assert_eq!(*empty.get_or_insert(free), free, "{text}");
                    let is_superblock = |finding: &Finding| finding.structure == "superblock";
                    assert!(as_it_was.iter().all(is_superblock), "{text}: {as_it_was:?}");
                }
            });
        }
        let fs = attach(&medium).expect("the new volume");
        assert_eq!(fs.recovery(), None, "{text}");
        exercise(&fs);
        close(fs, &simulation, &text);
    })
}
