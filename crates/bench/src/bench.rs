//! A run: its settings, the peers that are there, what was skipped.

use crate::keeper::{INTERRUPTED, Keeper, Promise, Stop};
use crate::machine;
use crate::model::{Row, Skipped, Spread};
use crate::peers::{self, Peer};
use crate::work::protocol::{Job, Limit};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// What the caller decides.
#[derive(Clone, Debug)]
pub struct BenchSettings {
    /// What the user has typed, for the report.
    pub command: String,
    /// The command whose `mkfs`, `run` and `mount` are used.
    pub gannet: PathBuf,
    /// The workload program.
    pub workload: PathBuf,
    /// Everything at its smallest.
    pub quick: bool,
    /// Rounds; 0 for the usual number.
    pub rounds: u32,
    /// Names of the peers to measure; empty for all.
    pub peers: Vec<String>,
    /// More peers: names and directories.
    pub directories: Vec<(String, PathBuf)>,
    /// Where volumes are made.
    pub medium: PathBuf,
    /// Where tmpfs is.
    pub memory: PathBuf,
    /// A directory on the disk to compare with.
    pub disk: PathBuf,
    /// Size of each volume in bytes; 0 for the usual one.
    pub volume_bytes: u64,
    /// Most threads or processes; 0 for the usual number.
    pub workers_max: u32,
}

/// How far a run has come.
#[derive(Clone, Debug)]
pub struct Progress<'a> {
    /// What is being done.
    pub what: &'a str,
    /// Steps done of this.
    pub done: u64,
    /// Steps in all.
    pub total: u64,
}

/// A run.
pub(crate) struct Bench<'a> {
    pub(crate) settings: BenchSettings,
    pub(crate) span_bytes: u64,
    pub(crate) peers: BTreeMap<String, Peer>,
    /// Peers that cannot be had.
    absent: Vec<String>,
    pub(crate) skipped: Vec<Skipped>,
    pub(crate) facts: Vec<crate::model::PeerFacts>,
    pub(crate) keeper: Keeper,
    observer: &'a mut dyn FnMut(Progress<'_>),
}

/// Behind the name of what an interrupt has cut short.
pub(crate) const FOLLOWS: &str = " and what follows";

impl<'a> Bench<'a> {
    /// Completes the settings by what the machine has.
    pub(crate) fn new(mut settings: BenchSettings, stop: &Stop, observer: &'a mut dyn FnMut(Progress<'_>)) -> Self {
        let free = machine::memory("MemAvailable");
        if settings.volume_bytes == 0 {
            let usual = if settings.quick { 192 << 20 } else { 2 << 30 };
            // Up to six volumes, the peers' files, and the programs that are measured.
            settings.volume_bytes = usual.min(free / 10).max(64 << 20) >> 20 << 20;
        }
        if settings.rounds == 0 {
            settings.rounds = if settings.quick { 2 } else { 7 };
        }
        if settings.workers_max == 0 {
            let processors = std::thread::available_parallelism().map_or(1, |count| count.get() as u32);
            settings.workers_max = if settings.quick { 2 } else { (2 * processors).clamp(4, 64) };
        }
        let span_bytes = (settings.volume_bytes / 12).min(128 << 20) >> 20 << 20;
        let (absent, skipped, facts) = (Vec::new(), Vec::new(), Vec::new());
        let keeper = Keeper::start(&settings.workload, stop.clone());
        for base in [&settings.medium, &settings.memory, &settings.disk] {
            keeper.promise(&Promise::Remove(Self::own(base)));
        }
        Self { settings, span_bytes, peers: BTreeMap::new(), absent, skipped, facts, keeper, observer }
    }

    /// A directory of this run below another, removed at the end.
    pub(crate) fn own(path: &Path) -> PathBuf {
        path.join(format!("gannet-bench-{}", std::process::id()))
    }

    pub(crate) fn medium_directory(&self) -> PathBuf {
        Self::own(&self.settings.medium)
    }

    pub(crate) fn memory_directory(&self) -> PathBuf {
        Self::own(&self.settings.memory)
    }

    pub(crate) fn disk_directory(&self) -> PathBuf {
        Self::own(&self.settings.disk)
    }

    /// Says how far it has come.
    pub(crate) fn progress(&mut self, what: &str, done: u64, total: u64) {
        (self.observer)(Progress { what, done, total });
    }

    /// Notes that something is left out.
    pub(crate) fn skip(&mut self, what: impl Into<String>, why: impl Into<String>) {
        let skipped = Skipped { what: what.into(), why: why.into() };
        // What fails after an interrupt fails for that reason, which is named once.
        let is_that = skipped.why == INTERRUPTED && skipped.what.ends_with(FOLLOWS);
        if self.keeper.is_stopped() && !is_that {
            return;
        }
        if !self.skipped.contains(&skipped) {
            self.skipped.push(skipped);
        }
    }

    /// Of some peers those that are wanted and can be had, made ready, in the order of columns.
    pub(crate) fn ready(&mut self, wanted: &[&str]) -> Vec<String> {
        let chosen = self.settings.peers.clone();
        let quick = self.settings.quick && chosen.is_empty();
        let own = self.settings.directories.iter().map(|(name, _)| name.clone());
        let names: Vec<String> = wanted
            .iter()
            .filter(|name| !quick || peers::QUICK.contains(name))
            .map(|&name| name.to_owned())
            .filter(|name| !self.settings.directories.iter().any(|(own, _)| own == name))
            .chain(own)
            .filter(|name| chosen.is_empty() || chosen.contains(name))
            .collect();
        let total = names.len() as u64;
        for (done, name) in (0..).zip(&names) {
            if self.peers.contains_key(name) || self.absent.contains(name) {
                continue;
            }
            self.progress(&format!("making {name} ready"), done, total);
            match peers::make(self, name) {
                Ok(peer) => {
                    self.facts.retain(|facts| facts.name != *name);
                    self.facts.push(peer.facts.clone());
                    self.peers.insert(name.clone(), peer);
                }
                Err(why) => {
                    self.skip(name.clone(), why);
                    self.absent.push(name.clone());
                }
            }
        }
        names.into_iter().filter(|name| self.peers.contains_key(name)).collect()
    }

    /// Undoes all peers; whoever needs one afterwards makes it ready again.
    pub(crate) fn end_peers(&mut self) {
        self.peers.clear();
    }

    /// A peer that is ready.
    pub(crate) fn peer(&mut self, name: &str) -> Option<&mut Peer> {
        self.peers.get_mut(name)
    }

    /// A job with the usual settings.
    pub(crate) fn job(&self, shape: &str, limit: Limit) -> Job {
        Job {
            shape: shape.into(),
            size_bytes: 4096,
            span_bytes: self.span_bytes,
            files: if self.settings.quick { 100 } else { 1000 },
            workers: 1,
            processes: false,
            limit,
            member: None,
        }
    }

    /// An empty row of a peer.
    pub(crate) fn row(&self, operation: &str, peer: &str, value: Spread) -> Row {
        let facts = self.facts.iter().find(|facts| facts.name == peer);
        let of = |choose: fn(&crate::model::PeerFacts) -> &String| {
            facts.map_or_else(|| "-".into(), |facts| choose(facts).clone())
        };
        Row {
            operation: operation.into(),
            peer: peer.into(),
            data: of(|facts| &facts.data),
            medium: of(|facts| &facts.medium),
            survives: of(|facts| &facts.survives),
            x: None,
            workers: 1,
            processes: false,
            value,
            cpu_ns: None,
            net_ns: None,
            latency: None,
            cost: None,
        }
    }
}

impl Drop for Bench<'_> {
    fn drop(&mut self) {
        self.peers.clear();
        for directory in [self.medium_directory(), self.memory_directory(), self.disk_directory()] {
            let _ = std::fs::remove_dir_all(directory);
        }
    }
}
