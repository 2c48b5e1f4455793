//! Damaged volumes are repaired, with crashes in that, after which they are repaired again.

use super::damages::{Damage, damaged};
use super::looks::policy;
use super::workload::{Kind, Volume, Workload, bytes_of};
use crate::state::{Inode, State, Tear, capture};
use crate::volume::{assert_sound, attach, simulated};
use gannet_logfs::{CheckOptions, CheckReport, Finding, Outcome, check};
use gannet_media::Medium;
use gannet_media::simulation::{Crash, CrashPolicy};
use gannet_vfs::Result;
use std::rc::Rc;
use std::sync::OnceLock;

/// A volume with each of some kinds of damage, which can be repaired.
pub(crate) fn repairs(text: String, volume: Rc<Volume>, damages_of: fn(&Volume) -> Vec<Damage>) -> Workload {
    let damages: OnceLock<Vec<Damage>> = OnceLock::new();
    Workload::new(Kind::Special, text.clone(), move |fault| {
        for damage in damages.get_or_init(|| damages_of(&volume)) {
            let (medium, simulation) = damaged(&volume, damage);
            let as_damaged = findings(&medium);
            let image = fault.looks().then(|| bytes_of(&medium, volume.image.len()));
            let mark = simulation.mark();
            let report = fault.during(&simulation, || repair(&medium)).expect("a volume");
            let Some(image) = image else { continue };
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
                        let cut_short = findings(&crash.medium());
                        if cut_short != as_damaged {
                            assert_no_worse(crash, repaired.as_ref(), &image, &text);
                        }
                        assert!(is_of_one_time(&cut_short) || !is_of_one_time(&as_damaged), "{text}: {cut_short:?}");
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

/// Nobody can open what a repair that was cut short has left, unless it is repaired, or as damaged as it was.
fn assert_no_worse(crash: &Crash<'_>, repaired: Option<&State>, as_damaged: &[u8], text: &str) {
    let Ok(fs) = attach(&crash.medium()) else { return };
    match capture(&fs) {
        Ok(opened) => assert_keeps(repaired.expect("looked at before"), &opened.without_times(), text),
        Err(error) => {
            let (medium, _simulation) = simulated(as_damaged);
            let could_be_read = attach(&medium).is_ok_and(|fs| capture(&fs).is_ok());
            assert!(!could_be_read, "{text}: {error}");
        }
    }
}

/// Whether all media seem to have been used last together: who is told otherwise may look for other copies of them.
fn is_of_one_time(findings: &[Finding]) -> bool {
    !findings.iter().any(|finding| finding.what.contains("was not used last together"))
}

/// What a repair keeps is there after one that was cut short and done again, too, by the same name, or somewhere in `lost+found`; and
/// nothing else is elsewhere.
fn assert_keeps(repaired: &State, state: &State, text: &str) {
    let is_lost = |path: &str| path.starts_with("/lost+found");
    let what = |inode: &Inode| (inode.attributes.mode_and_type(), inode.bytes.clone(), inode.xattrs.clone());
    for (path, kept) in &repaired.paths {
        let mut found = state.paths.iter().filter(|&(other, _)| other == path || is_lost(path) && is_lost(other));
        let is_kept = found.any(|(_, found)| what(found) == what(kept));
        let (was, is) = (kept.attributes, state.paths.get(path).map(|found| found.attributes));
        assert!(is_kept, "{text}: {path} is lost, or another: it was {was:?}, and is {is:?}");
    }
    let added = state.paths.keys().find(|path| !repaired.paths.contains_key(*path) && !is_lost(path));
    assert_eq!(added, None, "{text}");
}

/// What is wrong.
pub(crate) fn findings(medium: &Medium) -> Vec<Finding> {
    let report = check(medium, CheckOptions { repair: false, threads: 1 }, &mut |_| {});
    report.map_or_else(|_| Vec::new(), |report| report.findings)
}

pub(crate) fn repair(medium: &Medium) -> Result<CheckReport> {
    check(medium, CheckOptions { repair: true, threads: 1 }, &mut |_| {})
}

pub(crate) fn is_repaired(report: &CheckReport) -> bool {
    matches!(report.outcome, Outcome::Repaired | Outcome::Sound)
}
