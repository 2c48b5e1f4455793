//! A seeded fault: everything that one place of the file system does to the medium in one way (stores, write-backs, fences) is
//! left out for a while. The same workloads without a fault say which places they pass.

use crate::arena_mutations;
use gannet_media::Simulation;
use gannet_media::simulation::{Site, SiteKind, Skip};
use std::collections::BTreeMap;
use std::sync::Mutex;

/// A place: a file below the sources of the crate, a line of it, and what it does to the medium.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place {
    pub(crate) file: String,
    pub(crate) line: u32,
    pub(crate) kind: SiteKind,
}

impl Place {
    /// Where a site is; `None` if it is not this crate's.
    pub(crate) fn of(site: &Site) -> Option<Self> {
        let (_, file) = site.location.file().rsplit_once("logfs/src/")?;
        Some(Self { file: file.to_owned(), line: site.location.line(), kind: site.kind })
    }

    /// For people.
    pub(crate) fn text(&self) -> String {
        let kind = format!("{:?}", self.kind).to_lowercase();
        format!("{}:{} {kind}", self.file, self.line)
    }
}

/// What is done to a workload.
pub(crate) enum Fault {
    /// Nothing: it must pass.
    None,
    /// The places that it passes are collected; crashes need not be looked at.
    Collect(Mutex<BTreeMap<Place, Vec<Site>>>),
    /// All of one place are left out: sites that differ in their column only.
    Seeded(Site),
    /// One in what is stored to shared memory.
    Words(arena_mutations::Fault),
}

impl Fault {
    /// To collect places.
    pub(crate) fn collecting() -> Self {
        Self::Collect(Mutex::default())
    }

    /// What was collected.
    pub(crate) fn collected(self) -> BTreeMap<Place, Vec<Site>> {
        match self {
            Self::Collect(met) => met.into_inner().expect("nobody panicked with it"),
            _ => BTreeMap::new(),
        }
    }

    /// Does `work` with the fault.
    pub(crate) fn during<R>(&self, simulation: &Simulation, work: impl FnOnce() -> R) -> R {
        match self {
            Self::None => work(),
            Self::Words(fault) => fault.during(work),
            Self::Collect(met) => {
                simulation.collect_sites(true);
                let result = work();
                let sites = simulation.sites();
                simulation.collect_sites(false);
                let mut met = met.lock().expect("nobody panicked with it");
                for (site, _) in sites {
                    let Some(place) = Place::of(&site) else { continue };
                    let known = met.entry(place).or_default();
                    if !known.contains(&site) {
                        known.push(site);
                    }
                }
                result
            }
            Self::Seeded(site) => {
                simulation.set_skip(Some(Skip::Site(*site)));
                let result = work();
                simulation.set_skip(None);
                result
            }
        }
    }

    /// Whether what the work has left is to be looked at.
    pub(crate) fn looks(&self) -> bool {
        !matches!(self, Self::Collect(_) | Self::Words(arena_mutations::Fault::Collect(_)))
    }
}
