//! Stores, flushes and fences of the file system left out, place by place: the enumeration of crashes must notice. Which
//! it does not, and why that is right, stands in `docs/parts/logfs-tests.md`; the test prints them.

use crate::enumeration::{Expected, crashes};
use crate::long;
use crate::operations::{Operation, all, populate};
use crate::state::{State, Tear, capture};
use crate::volume::{MODES, Mode, assert_sound, attach, image, open};
use gannet_media::simulation::{CrashPolicy, Site, Skip};
use gannet_media::{Medium, Simulation};
use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

fn ours(site: &Site) -> bool {
    site.location.file().contains("logfs/src")
}

fn text_of(site: &Site) -> String {
    let file = site.location.file().rsplit('/').next().unwrap_or_default();
    format!("{:?} {file}:{}", site.kind, site.location.line())
}

#[derive(Default)]
struct Sites {
    met: BTreeMap<Site, u64>,
    noticed: BTreeSet<Site>,
    attempts: BTreeMap<Site, u64>,
    runs: u64,
}

impl Sites {
    /// Those that `work` passes and that nothing has noticed yet.
    fn of(&mut self, simulation: &Simulation, work: impl FnOnce()) -> Vec<Site> {
        simulation.collect_sites(true);
        work();
        let sites: Vec<(Site, u64)> = simulation.sites().into_iter().filter(|(site, _)| ours(site)).collect();
        simulation.collect_sites(false);
        for &(site, count) in &sites {
            *self.met.entry(site).or_default() += count;
        }
        sites.into_iter().map(|(site, _)| site).filter(|site| !self.noticed.contains(site)).collect()
    }

    /// Runs something that panics if it notices that this site is left out. A site is given up after some attempts.
    fn attempt(&mut self, site: Site, run: impl FnOnce()) {
        let attempts = self.attempts.entry(site).or_default();
        if self.noticed.contains(&site) || *attempts >= if long() { 40 } else { 2 } {
            return;
        }
        *attempts += 1;
        self.runs += 1;
        if catch_unwind(AssertUnwindSafe(run)).is_err() {
            self.noticed.insert(site);
        }
    }
}

/// An operation with a site left out, and the crashes during it.
fn operation_without(image: &[u8], operation: &Operation, site: Site, reference: &State) {
    let (fs, simulation) = open(image);
    let before = capture(&fs).expect("the state before");
    let mark = simulation.mark();
    simulation.set_skip(Some(Skip::Site(site)));
    let _ = operation.apply(&fs);
    simulation.set_skip(None);
    let returned_at = simulation.mark();
    let after = capture(&fs).expect("the state after");
    let policy = CrashPolicy { combinations_max: 16, cuts_max: 4, samples: 4, ..CrashPolicy::sparse(1) };
    let expected = Expected { before: &before, after: &after, tear: operation.tear, returned_at };
    crashes(&simulation, mark..returned_at, &policy, &expected, &operation.text, 64, &mut 0);
    let plain = after.clone().without_times();
    assert_eq!(plain.may_follow(reference, reference, Tear::Whole), Ok(()), "what it did");
    // What a clean detach relies on must be durable too.
    assert!(fs.detach().expect("detach"));
    drop(fs);
    assert_sound(&simulation.medium(), true, &operation.text);
    let end = simulation.mark();
    let expected = Expected { before: &after, after: &after, tear: Tear::Whole, returned_at: end };
    crashes(&simulation, end..end, &policy, &expected, &operation.text, 64, &mut 0);
}

fn operations(mode: Mode, sites: &mut Sites) {
    let image = image(mode, |fs| populate(fs));
    // The cheap ones first: what they notice need not be left out of the others.
    let mut list: Vec<(usize, Operation, Vec<Site>, State)> = all(mode)
        .into_iter()
        .map(|operation| {
            let (fs, simulation) = open(&image);
            let mark = simulation.mark();
            let met = sites.of(&simulation, || {
                let _ = operation.apply(&fs);
            });
            let reference = capture(&fs).expect("the state").without_times();
            (simulation.stores_in(mark..simulation.mark()), operation, met, reference)
        })
        .collect();
    list.sort_by_key(|&(stores, ..)| stores);
    for (_, operation, met, reference) in list {
        for site in met {
            sites.attempt(site, || operation_without(&image, &operation, site, &reference));
        }
    }
}

/// Opening and closing with a site left out, and the crashes during both.
fn session_without(image: &[u8], site: Option<Site>) {
    let (medium, simulation) = Medium::simulated_from_image(image);
    let skip = site.map(Skip::Site);
    let policy = CrashPolicy::sparse(1);
    for _ in 0..2 {
        let mark = simulation.mark();
        simulation.set_skip(skip);
        let fs = attach(&medium).expect("attach");
        simulation.set_skip(None);
        let state = capture(&fs).expect("the state");
        let _ = gannet_fstest::Rig::new(&fs).file(gannet_vfs::FileSystem::root(&fs), &format!("file{mark}"));
        let changed = capture(&fs).expect("the state");
        let between = simulation.mark();
        let look = |range: core::ops::Range<usize>, before, after, returned_at| {
            let expected = Expected { before, after, tear: Tear::Whole, returned_at };
            crashes(&simulation, range, &policy, &expected, "a session", 2, &mut 0);
        };
        look(mark..between, &state, &changed, between);
        simulation.set_skip(skip);
        assert!(fs.detach().expect("detach"));
        simulation.set_skip(None);
        drop(fs);
        look(between..simulation.mark(), &changed, &changed, between);
    }
}

fn sessions(mode: Mode, sites: &mut Sites) {
    let image = image(mode, |fs| populate(fs));
    let (medium, simulation) = Medium::simulated_from_image(&image);
    let met = sites.of(&simulation, || {
        let fs = attach(&medium).expect("attach");
        assert!(fs.detach().expect("detach"));
    });
    session_without(&image, None);
    for site in met {
        sites.attempt(site, || session_without(&image, Some(site)));
    }
}

#[test]
fn what_is_left_out_is_noticed() {
    let began = Instant::now();
    let mut sites = Sites::default();
    for &mode in if long() { &MODES[..] } else { &MODES[..1] } {
        sessions(mode, &mut sites);
        operations(mode, &mut sites);
    }
    let survivors: Vec<String> = sites.met.keys().filter(|site| !sites.noticed.contains(site)).map(text_of).collect();
    println!(
        "mutations: {} sites, {} noticed, {} runs, {:.1} s",
        sites.met.len(),
        sites.noticed.len(),
        sites.runs,
        began.elapsed().as_secs_f64()
    );
    println!("not noticed: {survivors:#?}");
    // A harness that notices little proves little.
    assert!(sites.met.len() > 60, "{} sites", sites.met.len());
    assert!(sites.noticed.len() * 5 > sites.met.len() * 3, "not noticed: {survivors:#?}");
}
