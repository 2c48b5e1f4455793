//! Stores to shared memory left out, line by line, where somebody settles what a dead thread left, loads an inode, opens or adopts a volume,
//! collects a log, or keeps and frees what was given up: some workload notices, or the sources say why none does.
//!
//! A line is one that calls a method of a word, or of a record or node: `record.unload()` left out is a step left out, with all its stores.
//! `GANNET_LONG=1` goes through all lines and compares with the marks in the sources both ways (`mutations/marks`). Otherwise a few lines
//! that have no mark are tried.
//!
//! | file | what |
//! | --- | --- |
//! | `fault` | leaving a line out, or collecting those that are passed |
//! | `workloads`, `special` | what is done meanwhile |
//! | `looks` | what is looked at behind it |

mod fault;
mod looks;
mod special;
mod workloads;

use crate::mutations::{Marks, panics_quietly};
use crate::{Failures, Random, long};
pub(crate) use fault::Fault;
use fault::name_of;
use gannet_shm::testing::{Line, in_time};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::{Duration, Instant};
use workloads::{Workload, workloads};

/// Lines tried by default.
const SAMPLE: usize = 6;
/// Workloads of one kind tried by default for each.
const TRIES: usize = 8;
/// In the long run, and of those that look at crashes.
const LONG_TRIES: usize = 40;
const CRASH_TRIES: usize = 16;
/// How long a workload may take that is done in a tenth of a second, until it counts as one that does not come to its end.
const AT_MOST: Duration = Duration::from_secs(5);

fn is_noticed(workload: &Workload, line: Line) -> bool {
    let at_most = if workload.crashes { AT_MOST * 12 } else { AT_MOST };
    panics_quietly(|| in_time(at_most, || workload.run(&Fault::LeftOut(line))))
}

/// Some of the workloads that pass a line, or all: of each kind in turn. Those with crashes come last, since they take longer.
fn chosen(list: &[Workload], passed: &[usize]) -> Vec<usize> {
    let mut kinds: BTreeMap<(bool, &str), Vec<usize>> = BTreeMap::new();
    for &number in passed {
        kinds.entry((list[number].crashes, list[number].kind)).or_default().push(number);
    }
    let mut chosen = Vec::new();
    for crashes in [false, true] {
        let tries = match (long(), crashes) {
            (true, false) => LONG_TRIES,
            (true, true) => CRASH_TRIES,
            (false, _) => TRIES,
        };
        // Spread over all of a kind.
        let some = |of_kind: &Vec<usize>| -> Vec<usize> {
            let count = of_kind.len().min(tries);
            (0..count).map(|index| of_kind[index * of_kind.len() / count]).collect()
        };
        let of_these: Vec<_> =
            kinds.iter().filter(|((with, _), _)| *with == crashes).map(|(_, of_kind)| some(of_kind)).collect();
        let rounds = of_these.iter().map(Vec::len).max().unwrap_or(0);
        chosen.extend(
            (0..rounds).flat_map(|round| of_these.iter().filter_map(move |of_kind| of_kind.get(round)).copied()),
        );
    }
    chosen
}

#[test]
fn what_is_left_out_of_shared_memory_is_noticed_or_argued() {
    let began = Instant::now();
    let marks = Marks::read();
    let list = workloads(!long());
    let mut failed = Failures::default();
    let mut lines = BTreeMap::<(String, u32), (Line, Vec<usize>)>::new();
    for (number, workload) in list.iter().enumerate() {
        let met = Rc::default();
        let fault = Fault::Collect(Rc::clone(&met));
        failed.catch(&workload.text, || workload.run(&fault));
        for line in met.take() {
            let name = name_of(line).expect("only such are collected");
            lines.entry(name).or_insert((line, Vec::new())).1.push(number);
        }
    }
    // What it notices would prove nothing.
    failed.conclude();
    let met = lines.len();
    println!("arena mutations: {} workloads pass {met} lines, {:.1} s", list.len(), began.elapsed().as_secs_f64());
    assert!(met > 60, "{met} lines");
    if !long() {
        let mut random = Random(std::env::var("GANNET_SEED").map_or(1, |seed| seed.parse().expect("a number")));
        lines.retain(|name, _| !marks.words.contains(name));
        while lines.len() > SAMPLE {
            let gone = lines.keys().nth(random.below(lines.len())).expect("one of them").clone();
            lines.remove(&gone);
        }
    }
    // For those who work at some: the beginnings of their names, with commas between.
    let only = std::env::var("GANNET_PLACES").unwrap_or_default();
    let text = |(file, line): &(String, u32)| format!("{file}:{line}");
    let is_wanted = |name: &(String, u32)| only.split(',').any(|beginning| text(name).starts_with(beginning));
    lines.retain(|name, _| is_wanted(name));
    let mut left = BTreeSet::new();
    for (name, (line, passed)) in &lines {
        let (began, mut runs) = (Instant::now(), 0);
        let by = chosen(&list, passed).into_iter().find(|&number| {
            runs += 1;
            is_noticed(&list[number], *line)
        });
        let by = by.map_or("nothing", |number| &list[number].text);
        println!("{}: noticed by {by}, {runs} runs, {:.1} s", text(name), began.elapsed().as_secs_f64());
        if by == "nothing" {
            left.insert(name.clone());
        }
    }
    let (tried, seconds) = (lines.len(), began.elapsed().as_secs_f64());
    println!("arena mutations: {met} lines met, {tried} tried, {} noticed, {seconds:.1} s", tried - left.len());
    let unargued: Vec<_> = left.difference(&marks.words).map(text).collect();
    if long() {
        assert!(unargued.is_empty(), "noticed by nothing, without a word in the sources: {unargued:#?}");
        let wrong: Vec<_> = marks.words.difference(&left).filter(|&name| is_wanted(name)).map(text).collect();
        assert!(wrong.is_empty(), "said to be unnoticed, but noticed or not met: {wrong:#?}");
    }
    // Some are noticed only by workloads that are not among the few.
    assert!(unargued.len() * 3 < tried.max(4), "noticed by nothing: {unargued:#?}");
}
