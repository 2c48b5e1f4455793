//! Volumes that are made, and damaged ones that are repaired.

use super::looks::{close, policy};
use super::workload::{Kind, Volume, Workload};
use crate::enumeration::exercise;
use crate::state::{State, Tear, capture};
use crate::volume::{Mode, assert_sound, attach, format};
use gannet_logfs::{CheckOptions, CheckReport, Finding, Outcome, check};
use gannet_media::simulation::CrashPolicy;
use gannet_media::{Medium, MediumOffset, Simulation};
use gannet_vfs::{FileSystem, Result};
use std::rc::Rc;
use std::sync::OnceLock;

/// All that a volume which is being made may lack is a superblock; the other one is its replica.
fn assert_only_superblocks(medium: &Medium, text: &str) {
    let report = check(medium, CheckOptions { repair: false, threads: 1 }, &mut |_| {}).expect("a check");
    let is_superblock = |finding: &Finding| finding.structure == "superblock";
    assert!(report.findings.iter().all(is_superblock), "{text}: {:?}", report.findings);
}

/// Damaged volumes are repaired, with crashes in that, after which they are repaired again.
pub(crate) fn repairs(text: String, volume: Rc<Volume>) -> Workload {
    let damages: OnceLock<Vec<(u64, u64)>> = OnceLock::new();
    Workload::new(Kind::Special, text.clone(), move |fault| {
        for &(at, word) in damages.get_or_init(|| damages_of(&volume)) {
            let (medium, simulation) = damaged(&volume, at, word);
            let mark = simulation.mark();
            let report = fault.during(&simulation, || repair(&medium)).expect("a volume");
            if !fault.looks() {
                continue;
            }
            let text = format!("{text}, {at:#x}: {:?}", report.findings);
            assert!(is_repaired(&report), "{text}");
            let end = simulation.mark();
            let found = |medium: &Medium| {
                let fs = attach(medium).unwrap_or_else(|error| panic!("{text}: {error}"));
                let state = capture(&fs).expect("what was repaired");
                assert!(fs.detach().expect("detach"));
                drop(fs);
                assert_sound(medium, true, &text);
                state.without_times()
            };
            let mut repaired = None;
            let few = CrashPolicy { combinations_max: 8, cuts_max: 2, samples: 4, ..policy(8) };
            for range in [end..end, mark..end] {
                simulation.for_each_crash(range, &few, |crash| {
                    if crash.at() >= end {
                        assert_sound(&crash.medium(), true, &text);
                    } else {
                        let again = repair(&crash.medium()).unwrap_or_else(|error| panic!("{text}: {error}"));
                        assert!(is_repaired(&again), "{text}, again");
                    }
                    let state = found(&crash.medium());
                    if crash.at() >= end {
                        repaired.get_or_insert(state);
                    }
                });
            }
            let state = found(&medium);
            assert_eq!(repaired.expect("an image").may_follow(&state, &state, Tear::Whole), Ok(()), "{text}");
        }
    })
}

fn repair(medium: &Medium) -> Result<CheckReport> {
    check(medium, CheckOptions { repair: true, threads: 1 }, &mut |_| {})
}

fn is_repaired(report: &CheckReport) -> bool {
    matches!(report.outcome, Outcome::Repaired | Outcome::Sound)
}

/// A volume with one word damaged, for good.
fn damaged(volume: &Volume, at: u64, word: u64) -> (Medium, Simulation) {
    let (medium, simulation) = volume.simulated();
    medium.store_u64(MediumOffset(at), word).expect("damage");
    medium.fence();
    (medium, simulation)
}

/// Words of metadata whose damage can be repaired, with what becomes of them: some of those that are neither nothing nor of the past.
fn damages_of(volume: &Volume) -> Vec<(u64, u64)> {
    let words = volume.image.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().expect("eight bytes")));
    let past = u64::from_le_bytes([volume.image[volume.image.len() / 2]; 8]);
    let of_use = (0_u64..).zip(words).filter(|&(_, word)| word != 0 && word != past);
    let metadata: Vec<_> = of_use.take_while(|&(number, _)| number < 64 * 512).collect();
    let some = (0..DAMAGES).map(|part| metadata[part * metadata.len() / DAMAGES]);
    let mut damages: Vec<_> = some.map(|(at, word)| (at * 8, !word)).collect();
    damages.retain(|&(at, word)| repair(&damaged(volume, at, word).0).is_ok_and(|report| is_repaired(&report)));
    damages
}

const DAMAGES: usize = 24;

/// A volume is made where another was.
pub(crate) fn making(text: String, mode: Mode, volume: Rc<Volume>) -> Workload {
    let old: OnceLock<State> = OnceLock::new();
    Workload::new(Kind::Special, text.clone(), move |fault| {
        let old = old.get_or_init(|| capture(&volume.open().0).expect("the old volume").without_times());
        let (medium, simulation) = volume.simulated();
        let mark = simulation.mark();
        fault.during(&simulation, || format(&medium, mode));
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
                    drop(fs);
                    let (as_it_was, _control) = Medium::simulated_from_image(&crash.image_to_vec());
                    assert_only_superblocks(&as_it_was, &text);
                }
            });
        }
        let fs = attach(&medium).expect("the new volume");
        assert_eq!(fs.recovery(), None, "{text}");
        exercise(&fs);
        close(fs, &simulation, &text);
    })
}
