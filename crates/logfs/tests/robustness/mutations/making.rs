//! Volumes that are made, and damaged ones that are repaired.

use super::looks::{close, policy};
use super::workload::{Kind, Volume, Workload};
use crate::enumeration::exercise;
use crate::state::{Inode, State, Tear, capture};
use crate::volume::{Mode, assert_sound, attach, format};
use gannet_logfs::{CheckOptions, CheckReport, Finding, Outcome, check};
use gannet_media::simulation::{Crash, CrashPolicy};
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
            let as_damaged = image_of(&medium);
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
                        if is_unbegun(crash, &as_damaged, repaired.as_ref(), &text) {
                            return;
                        }
                        let again = repair(&crash.medium()).unwrap_or_else(|error| panic!("{text}: {error}"));
                        assert!(is_repaired(&again), "{text}, again");
                    }
                    let state = found(&crash.medium());
                    let repaired = repaired.get_or_insert_with(|| state.clone());
                    assert_keeps(repaired, &state, &text);
                });
            }
            let state = found(&medium);
            assert_eq!(repaired.expect("an image").may_follow(&state, &state, Tear::Whole), Ok(()), "{text}");
        }
    })
}

/// Nobody can open what a repair that was cut short has left, unless it is repaired. Whether it is as the damage left it.
fn is_unbegun(crash: &Crash<'_>, as_damaged: &[u8], repaired: Option<&State>, text: &str) -> bool {
    let Ok(fs) = attach(&crash.medium()) else { return false };
    if crash.image_to_vec() == as_damaged {
        return true;
    }
    let opened = capture(&fs).expect("what was repaired").without_times();
    let repaired = repaired.expect("looked at before");
    assert_keeps(repaired, &opened, text);
    false
}

/// What a repair keeps is there after one that was cut short and done again, too, by the same name, or somewhere in `lost+found`; and
/// nothing else is elsewhere.
fn assert_keeps(repaired: &State, state: &State, text: &str) {
    let is_lost = |path: &str| path.starts_with("/lost+found");
    let what = |inode: &Inode| (inode.attributes.mode_and_type(), inode.bytes.clone(), inode.xattrs.clone());
    for (path, kept) in &repaired.paths {
        let mut found = state.paths.iter().filter(|&(other, _)| other == path || is_lost(path) && is_lost(other));
        assert!(found.any(|(_, found)| what(found) == what(kept)), "{text}: {path} is lost, or another");
    }
    let added = state.paths.keys().find(|path| !repaired.paths.contains_key(*path) && !is_lost(path));
    assert_eq!(added, None, "{text}");
}

fn image_of(medium: &Medium) -> Vec<u8> {
    let mut image = vec![0; medium.length() as usize];
    medium.read(MediumOffset(0), &mut image).expect("read");
    image
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
    // And a name in the middle of a directory, whose log is written anew then.
    let named = volume.image.windows(6).position(|bytes| bytes == b"sparse").map(|at| at / 8);
    let named = named.and_then(|number| metadata.iter().find(|&&(at, _)| at == number as u64));
    let mut damages: Vec<_> = named.copied().into_iter().chain(some).map(|(at, word)| (at * 8, !word)).collect();
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
