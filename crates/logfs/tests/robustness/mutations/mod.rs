//! Stores, flushes and fences of the file system left out, place by place: some workload notices, or the sources say why
//! none does, and where none comes.
//!
//! `GANNET_LONG=1` goes through all places and compares with the marks in the sources both ways. Otherwise a few places that
//! have no mark are tried, in a few workloads.
//!
//! | file | what |
//! | --- | --- |
//! | `fault` | leaving a place out, or collecting those that are passed |
//! | `marks` | what the sources say |
//! | `workload`, `workloads` | what is done meanwhile; all of it |
//! | `looks` | what is looked at behind it |
//! | `usual`, `takeovers`, `special`, `others`, `making`, `features`, `repairs` | the kinds of workloads |
//! | `damages` | what is repaired |

mod damages;
mod fault;
mod features;
mod looks;
mod making;
mod marks;
mod others;
mod repairs;
mod special;
mod takeovers;
mod usual;
mod workload;
mod workloads;

pub(crate) use fault::Fault;
pub(crate) use looks::look;
pub(crate) use marks::Marks;
pub(crate) use takeovers::{End, end_at, ends_of};
pub(crate) use workload::{Kind, Volume, Workload, panics_quietly};
pub(crate) use workloads::workloads;

use crate::{Random, long};
use fault::Place;
use gannet_media::simulation::Site;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

/// Places tried by default.
const SAMPLE: usize = 8;
/// As many of one kind are tried before the next.
const IN_TURN: usize = 3;

/// The places that workloads pass: the sites there, and the workloads by number.
#[derive(Default)]
struct Passed {
    sites: BTreeSet<Site>,
    workloads: Vec<usize>,
}

fn passed(list: &[Workload]) -> BTreeMap<Place, Passed> {
    let mut places = BTreeMap::<Place, Passed>::new();
    for (number, workload) in list.iter().enumerate() {
        let fault = Fault::collecting();
        workload.run(&fault);
        for (place, sites) in fault.collected() {
            let passed = places.entry(place).or_default();
            passed.sites.extend(sites);
            passed.workloads.push(number);
        }
    }
    places
}

/// Some of the workloads that pass a place: as many of each kind, spread over those.
fn chosen(list: &[Workload], passed: &Passed) -> Vec<usize> {
    let mut kinds: BTreeMap<Kind, Vec<usize>> = BTreeMap::new();
    for &number in &passed.workloads {
        kinds.entry(list[number].kind).or_default().push(number);
    }
    let some = |(kind, of_kind): (Kind, Vec<usize>)| {
        let count = of_kind.len().min(kind.tries_max());
        (0..count).map(|index| of_kind[index * of_kind.len() / count]).collect::<Vec<_>>()
    };
    let mut kinds: Vec<_> = kinds.into_iter().map(|of_kind| some(of_kind).into_iter()).collect();
    let mut chosen = Vec::new();
    // A few of each kind in turn, since what one does not notice another like it hardly does.
    while kinds.iter().any(|of_kind| of_kind.len() > 0) {
        kinds.iter_mut().for_each(|of_kind| chosen.extend(of_kind.take(IN_TURN)));
    }
    chosen
}

/// The places that no workload notices that passes them, and how many runs it took.
fn unnoticed(list: &[Workload], places: &BTreeMap<Place, Passed>) -> (BTreeSet<Place>, u64) {
    let (mut runs, mut left) = (0, BTreeSet::new());
    for (place, passed) in places {
        let (began, before) = (Instant::now(), runs);
        let chosen = chosen(list, passed);
        let mut tries = chosen.iter().flat_map(|&number| passed.sites.iter().map(move |&site| (number, site)));
        let by = tries.find(|&(number, site)| {
            runs += 1;
            let began = Instant::now();
            let notices = list[number].notices(&Fault::Seeded(site));
            if std::env::var_os("GANNET_TIMES").is_some() {
                println!("    {:.2} s: {}", began.elapsed().as_secs_f64(), list[number].text);
            }
            notices
        });
        let by = by.map_or("nothing", |(number, _)| &list[number].text);
        println!("{}: noticed by {by}, {} runs, {:.1} s", place.text(), runs - before, began.elapsed().as_secs_f64());
        if by == "nothing" {
            left.insert(place.clone());
        }
    }
    (left, runs)
}

fn texts<'p>(places: impl IntoIterator<Item = &'p Place>) -> Vec<String> {
    places.into_iter().map(Place::text).collect()
}

#[test]
fn what_is_left_out_is_noticed_or_argued() {
    let began = Instant::now();
    let marks = Marks::read();
    let list = workloads(!long());
    let mut places = passed(&list);
    let met = places.len();
    let lines: BTreeSet<(String, u32)> = places.keys().map(|place| (place.file.clone(), place.line)).collect();
    println!("mutations: {} workloads pass {met} places, {:.1} s", list.len(), began.elapsed().as_secs_f64());
    assert!(met > 60, "{met} places");
    if !long() {
        let mut random = Random(std::env::var("GANNET_SEED").map_or(1, |seed| seed.parse().expect("a number")));
        places.retain(|place, _| !marks.unnoticed.contains(place));
        while places.len() > SAMPLE {
            let gone = places.keys().nth(random.below(places.len())).expect("one of them").clone();
            places.remove(&gone);
        }
    }
    // For those who work at some: the beginnings of their names, with commas between.
    let only = std::env::var("GANNET_PLACES").unwrap_or_default();
    let is_wanted = |place: &Place| only.split(',').any(|beginning| place.text().starts_with(beginning));
    places.retain(|place, _| is_wanted(place));
    let (left, runs) = unnoticed(&list, &places);
    let seconds = began.elapsed().as_secs_f64();
    println!(
        "mutations: {met} places met, {} tried, {} noticed, {runs} runs, {seconds:.1} s",
        places.len(),
        places.len() - left.len()
    );
    let argued = &marks.unnoticed;
    let unargued = texts(left.iter().filter(|place| !argued.contains(place)));
    if long() {
        assert!(unargued.is_empty(), "noticed by nothing, without a word in the sources: {unargued:#?}");
        let wrong = texts(argued.iter().filter(|place| is_wanted(place) && !left.contains(place)));
        assert!(wrong.is_empty(), "said to be unnoticed, but noticed or not met: {wrong:#?}");
    }
    // Some are noticed only by workloads that are not among the few.
    assert!(unargued.len() * 3 < places.len().max(4), "noticed by nothing: {unargued:#?}");
    if long() {
        let unmet: BTreeSet<_> = marks.calls.difference(&lines).cloned().collect();
        assert_eq!(unmet, marks.unmet, "lines that no workload passes, and those that are said to be");
    }
}
