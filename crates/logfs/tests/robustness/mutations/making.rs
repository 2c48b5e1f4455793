//! Volumes that are made, and damaged ones that are repaired.

use super::looks::{close, policy};
use super::workload::{Kind, Volume, Workload};
use crate::enumeration::exercise;
use crate::operations::{bytes, populate};
use crate::state::{Inode, State, Tear, capture};
use crate::volume::{Mode, assert_sound, attach, format};
use gannet_fstest::Rig;
use gannet_logfs::{CheckOptions, CheckReport, Finding, LogFs, Outcome, check};
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
    let damages: OnceLock<Vec<Damage>> = OnceLock::new();
    Workload::new(Kind::Special, text.clone(), move |fault| {
        for damage in damages.get_or_init(|| damages_of(&volume)) {
            let (medium, simulation) = damaged(&volume, damage);
            let as_damaged = findings(&medium);
            let mark = simulation.mark();
            let report = fault.during(&simulation, || repair(&medium)).expect("a volume");
            if !fault.looks() {
                continue;
            }
            let text = format!("{text}, {:#x}: {:?}", damage[0].0, report.findings);
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
                        if findings(&crash.medium()) != as_damaged {
                            assert_no_worse(crash, repaired.as_ref(), &text);
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

/// Nobody can open what a repair that was cut short has left, unless it is repaired.
fn assert_no_worse(crash: &Crash<'_>, repaired: Option<&State>, text: &str) {
    let Ok(fs) = attach(&crash.medium()) else { return };
    let opened = capture(&fs).expect("what was repaired").without_times();
    assert_keeps(repaired.expect("looked at before"), &opened, text);
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

/// What is wrong.
fn findings(medium: &Medium) -> Vec<Finding> {
    let report = check(medium, CheckOptions { repair: false, threads: 1 }, &mut |_| {});
    report.map_or_else(|_| Vec::new(), |report| report.findings)
}

fn repair(medium: &Medium) -> Result<CheckReport> {
    check(medium, CheckOptions { repair: true, threads: 1 }, &mut |_| {})
}

fn is_repaired(report: &CheckReport) -> bool {
    matches!(report.outcome, Outcome::Repaired | Outcome::Sound)
}

/// Words that are not what they were: where, and what stands there.
type Damage = Vec<(u64, u64)>;

/// A volume that is damaged, for good.
fn damaged(volume: &Volume, damage: &Damage) -> (Medium, Simulation) {
    let (medium, simulation) = volume.simulated();
    for &(at, word) in damage {
        medium.store_u64(MediumOffset(at), word).expect("damage");
    }
    medium.fence();
    (medium, simulation)
}

/// Damage that can be repaired: words of metadata, some of those that are neither nothing nor of the past; names; the root directory.
fn damages_of(volume: &Volume) -> Vec<Damage> {
    let words = volume.image.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().expect("eight bytes")));
    let past = u64::from_le_bytes([volume.image[volume.image.len() / 2]; 8]);
    let of_use = (0_u64..).zip(words).filter(|&(_, word)| word != 0 && word != past);
    let metadata: Vec<_> = of_use.take_while(|&(number, _)| number < 64 * 512).collect();
    let some = (0..DAMAGES).map(|part| metadata[part * metadata.len() / DAMAGES]);
    // Names in the middle of directories, whose logs are written anew then: names behind them are lost, of which the one is in the log that
    // the lost ones are found by, the other is not.
    let names = ["sparse", "many.3"].map(|name| {
        let at = volume.image.windows(6).position(|bytes| bytes == name.as_bytes()).expect("a name");
        *metadata.iter().find(|&&(number, _)| number == at as u64 / 8).expect("in the metadata")
    });
    let [inverted, other] = names.map(|(at, word)| (at * 8, !word));
    let words = some.map(|(at, word)| vec![(at * 8, !word)]);
    let (root, slot) = slots(volume);
    let mut damages = vec![root, vec![inverted], vec![other], vec![inverted, slot]];
    damages.extend(words);
    damages.retain(|damage| repair(&damaged(volume, damage).0).is_ok_and(|report| is_repaired(&report)));
    damages
}

/// The root directory's slot is gone, and with it all that leads to its log; and the word that damages the slot of a file of which only
/// the directory says what it was made of.
fn slots(volume: &Volume) -> (Damage, (u64, u64)) {
    let shows = |damage: &Damage, is_it: fn(&Finding) -> bool| findings(&damaged(volume, damage).0).iter().any(is_it);
    // The root directory's number is 1, in the first block of the inode table.
    let zeroed = |slot: u64| (slot..slot + SLOT_BYTES).step_by(8).map(|at| (at, 0)).collect();
    let is_root = |slot: &u64| shows(&zeroed(*slot), |finding| finding.structure == "root directory");
    let root = (1..64).map(|block| block * 4096 + SLOT_BYTES).find(is_root).expect("a root directory");
    let others = (1..31).map(|number| (root + number * SLOT_BYTES + AT_CHECKSUM, 0));
    let is_file = |&word: &(u64, u64)| shows(&vec![word], |finding| finding.path.as_deref() == Some("/b"));
    (zeroed(root), others.into_iter().find(is_file).expect("a file"))
}

/// A directory with names that none other has.
pub(crate) fn with_many_names(fs: &LogFs) {
    populate(fs);
    let rig = Rig::new(fs);
    let directory = rig.directory(rig.root, "many");
    for number in 0..8 {
        let file = rig.file(directory, &format!("many.{number}"));
        rig.write(file, 0, &bytes(number, 20));
    }
}

const DAMAGES: usize = 24;
const SLOT_BYTES: u64 = 128;
const AT_CHECKSUM: u64 = 40;

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
