//! All workloads: each passes without a fault, and panics if it notices the one it is given. They take the enumerations'
//! operations, volumes, logs that grow, and ways to compare.

use super::damages::{fixed_places, headers, left_open, logs_and_slots, with_many_names};
use super::features::{noted, without_features};
use super::looks::{CROWDED, SESSION};
use super::making::making;
use super::others::{Emptied, need, need_of_a_page, overtaken, unborn};
use super::repairs::repairs;
use super::special::{mapped, orphan, pages, read, torn_free, torn_page, unnamed};
use super::takeovers::takeover;
use super::usual::{and_reuse, one, recovery, session};
use super::workload::{Kind, Volume, Workload};
use crate::abandonment::steps_that_collect;
use crate::churn::{CHURNS, Churn, churn};
use crate::operations::{all, populate};
use crate::remains::without_room_for_a_name;
use crate::state::Tear;
use crate::volume::{MODES, Mode, format, image};
use gannet_logfs::LogFs;
use gannet_media::Medium;

/// All workloads, those that cost least first; with `few` about a tenth of them.
pub(crate) fn workloads(few: bool) -> Vec<Workload> {
    let every = if few { 9 } else { 1 };
    let modes = if few { &MODES[..1] } else { &MODES[..] };
    let (mut plain, mut others, mut costly) = (Vec::new(), Vec::new(), Vec::new());
    for &mode in modes {
        let volume = |fill: fn(&LogFs)| Volume::new(image(mode, fill));
        let (tree, crowded) = (volume(|fs| populate(fs)), volume(|fs| populate(fs)).crowded());
        let text = |how: &str, what: &str| format!("{mode:?}, {how}{what}");
        others.push(session(text("", SESSION), tree.clone()));
        others.push(making(text("", "mkfs"), tree.clone(), move |medium| format(medium, mode)));
        if mode == Mode::InPlace && !few {
            let volume = volume(with_many_names);
            let open = left_open(&volume);
            for (what, damages_of) in
                [("fixed places", fixed_places as fn(&Volume) -> _), ("logs and slots", logs_and_slots)]
            {
                others.push(repairs(text("repairs of ", what), volume.clone(), damages_of));
                others.push(repairs(text("repairs of what was not closed: ", what), open.clone(), damages_of));
            }
        }
        others.push(orphan(text("", "orphans"), tree.clone()));
        others.push(unnamed(text("", "a file that is named by another"), tree.clone()));
        others.push(mapped(text("", "maps"), tree.clone()));
        others.push(torn_free(text("", "recovery of a torn slot"), tree.clone()));
        others.push(torn_page(text("", "recovery of a torn page"), tree.clone()));
        others.push(pages(text(CROWDED, "pages"), crowded.clone()));
        others.push(need(text(CROWDED, "need"), crowded.clone()));
        others.push(overtaken(text(CROWDED, "overtaken"), crowded.clone()));
        others.push(need_of_a_page(text(CROWDED, "need of an emptied page"), crowded.clone(), Emptied::ByAnother));
        others.push(need_of_a_page(text(CROWDED, "need of its own emptied page"), crowded.clone(), Emptied::ByTheSame));
        others.push(read(text("", "times of access"), tree.clone()));
        others.push(unborn(text(CROWDED, "a birth that fails"), Volume::new(without_room_for_a_name(mode))));
        others.push(noted(text("", "a feature is noted"), volume(without_features)));
        let operations = all(mode).into_iter().step_by(every);
        let operations = operations.map(|operation| (tree.clone(), crowded.clone(), operation));
        let collecting = steps_that_collect(mode).into_iter();
        let collecting = collecting.map(|(start, operation)| {
            let start = Volume::new(start.image);
            (start.clone(), start.crowded(), operation)
        });
        for (number, (volume, crowded, operation)) in operations.chain(collecting).enumerate() {
            if operation.text == "a directory is collected" {
                others.push(need(text(CROWDED, "need of a page"), crowded.clone()));
            }
            let what = &operation.text;
            plain.push(one(text("", what), volume.clone(), operation.clone()));
            others.push(and_reuse(text(CROWDED, what), crowded.clone(), operation.clone()));
            if few && number % 3 > 0 {
                continue;
            }
            // What is torn the other way is data alone.
            if mode == Mode::InPlace || operation.tear != Tear::Whole || number % 4 == 0 {
                costly.push(takeover(text("takeover in ", what), volume.clone(), operation.clone()));
            }
            if mode == Mode::InPlace && (number % 3 == 0 || what.contains("ymlink")) {
                costly.push(recovery(text("recovery from ", what), volume, operation));
            }
        }
        for what in CHURNS.iter().map(Churn::for_mutations) {
            costly.push(Workload::new(Kind::Churn, text("", what.text), move |fault| churn(&what, mode, fault)));
        }
    }
    if few {
        return plain.into_iter().chain(others).chain(costly).collect();
    }
    let spanning = Volume::new(crate::spanning::image(Mode::InPlace, |fs| populate(fs)));
    others.push(session(format!("{SESSION} on two media"), spanning.clone()));
    let make = |medium: &Medium| crate::spanning::format(medium, Mode::InPlace);
    others.push(making("mkfs on two media".into(), spanning.clone(), make));
    others.push(repairs("repairs of two media".into(), spanning, headers));
    plain.into_iter().chain(others).chain(costly).collect()
}
