//! A run: its settings, the peers that are there, what was skipped, and the loop that measures peers in turn.

use crate::floor::Floor;
use crate::keeper::{INTERRUPTED, Keeper, Promise, Stop};
use crate::machine;
use crate::model::{Cost, Row, Skipped, Spread, Table, Unit};
use crate::peers::{self, Peer};
use crate::statistics::{latency, spread};
use crate::work::protocol::{Job, Limit, Measurement};
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
    peers: BTreeMap<String, Peer>,
    /// Peers that cannot be had.
    absent: Vec<String>,
    pub(crate) skipped: Vec<Skipped>,
    pub(crate) facts: Vec<crate::model::PeerFacts>,
    pub(crate) keeper: Keeper,
    observer: &'a mut dyn FnMut(Progress<'_>),
}

/// Behind the name of what an interrupt has cut short.
pub(crate) const FOLLOWS: &str = " and what follows";

/// One row to be measured, for each peer.
#[derive(Clone, Debug)]
pub(crate) struct Cell {
    pub(crate) operation: String,
    pub(crate) x: Option<f64>,
    pub(crate) job: Job,
}

/// What the rounds gave for a cell and a peer.
#[derive(Default)]
struct Found {
    rounds: Vec<Measurement>,
    cost: Option<Cost>,
    failed: bool,
}

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

    /// Measures cells for peers: in each round each cell for each peer, in turn, so that what disturbs disturbs all. The empty
    /// driver and the machine's floors take turns too.
    pub(crate) fn matrix(&mut self, table: &mut Table, names: &[String], cells: &[Cell], floors: &mut [Floor]) {
        let rounds = u64::from(self.settings.rounds);
        let mut found: Vec<Vec<Found>> =
            cells.iter().map(|_| names.iter().map(|_| Found::default()).collect()).collect();
        let mut empty: BTreeMap<(u32, bool), Vec<Measurement>> = BTreeMap::new();
        let total = (rounds + 1) * (cells.len() * names.len()).max(1) as u64;
        let mut done = 0;
        // The first round touches memory for the first time and is not counted.
        for round in 0..=rounds {
            if self.keeper.is_stopped() {
                break;
            }
            for (cell, found) in cells.iter().zip(&mut found) {
                for turn in 0..names.len() {
                    // Nobody is always the one behind a certain other.
                    let index = (turn + round as usize) % names.len();
                    self.progress(&format!("{}: {}", table.command, cell.operation), done, total);
                    done += 1;
                    if !found[index].failed {
                        self.measure(table.command, cell, &names[index], round, &mut found[index]);
                    }
                }
            }
            self.measure_empty(cells, names, &mut empty);
            floors.iter_mut().for_each(|floor| floor.round(round > 0));
        }
        for (cell, found) in cells.iter().zip(found) {
            let driver = empty.get(&(cell.job.workers, cell.job.processes)).map(Vec::as_slice).unwrap_or_default();
            for (name, found) in names.iter().zip(found).filter(|(_, found)| !found.rounds.is_empty()) {
                let row = self.row(&cell.operation, name, Spread { median: 0.0, deviation: 0.0, rounds: 0 });
                table.rows.push(complete(row, table.unit, cell, &found, driver));
            }
        }
        for ((workers, processes), rounds) in empty {
            let mut row = self.row("empty driver", "driver", values(Unit::Nanoseconds, 1, &rounds));
            (row.workers, row.processes) = (workers, processes);
            if table.unit == Unit::Nanoseconds {
                table.rows.push(row);
            } else {
                let text = if processes { "processes" } else { "threads" };
                let begin = format!("empty driver, {workers} {text}: ");
                if !table.notes.iter().any(|note| note.starts_with(&begin)) {
                    table.notes.push(format!("{begin}{:.0} ns per call", row.value.median));
                }
            }
        }
        for floor in floors.iter().filter(|floor| !floor.wall_ns.is_empty()) {
            let mut row = self.row(floor.operation, "floor", spread(&floor.wall_ns));
            row.cpu_ns = Some(spread(&floor.cpu_ns));
            table.rows.push(row);
        }
        for name in names {
            let workload = self.settings.workload.clone();
            if let Some(peer) = self.peers.get_mut(name) {
                for cell in cells {
                    // What is not removed now is removed at the end.
                    let _ = peer.worker(&workload).and_then(|worker| worker.clean(&cell.job));
                }
            }
        }
    }

    fn measure(&mut self, command: &str, cell: &Cell, name: &str, round: u64, found: &mut Found) {
        let workload = self.settings.workload.clone();
        let Some(peer) = self.peers.get_mut(name) else { return };
        let job = Job { span_bytes: cell.job.span_bytes.min(peer.span_bytes_max), ..cell.job.clone() };
        let outcome = peer.worker(&workload).and_then(|worker| worker.measure(&job));
        match outcome {
            Ok(measurement) if round > 0 => {
                found.rounds.push(measurement);
                if round == 1 {
                    found.cost = cost(peer, &workload, &job);
                }
            }
            Ok(_) => {}
            // What was measured until then counts.
            Err(_) if self.keeper.is_stopped() => {}
            Err(why) => {
                found.failed = true;
                found.rounds.clear();
                peer.rest();
                self.skip(format!("{command}: {}, {name}", cell.operation), why);
            }
        }
    }

    /// Measures nothing at all, with the workers that the cells have.
    fn measure_empty(&mut self, cells: &[Cell], names: &[String], found: &mut BTreeMap<(u32, bool), Vec<Measurement>>) {
        let workload = self.settings.workload.clone();
        // Wherever files are: the calls make none.
        let Some(peer) = names.iter().find(|name| *name == "tmpfs").or(names.last()) else { return };
        let Some(peer) = self.peers.get_mut(peer) else { return };
        let mut seen = Vec::new();
        for cell in cells {
            let key = (cell.job.workers, cell.job.processes);
            if seen.contains(&key) {
                continue;
            }
            seen.push(key);
            let limit = match cell.job.limit {
                Limit::Milliseconds(milliseconds) => Limit::Milliseconds(milliseconds.min(20)),
                calls => calls,
            };
            let job = Job { shape: "empty".into(), limit, ..cell.job.clone() };
            if let Ok(measurement) = peer.worker(&workload).and_then(|worker| worker.measure(&job)) {
                found.entry(key).or_default().push(measurement);
            }
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

/// What a call costs the medium: exactly these calls between two looks at the volume's counters.
fn cost(peer: &mut Peer, workload: &Path, job: &Job) -> Option<Cost> {
    if job.workers != 1 || job.processes {
        return None;
    }
    let counters = peer.counters()?;
    let calls = (64 << 20) / job.size_bytes.max(1 << 16);
    let job = Job { limit: Limit::Calls { calls, milliseconds_max: 0 }, ..job.clone() };
    let (operations, before, after) = peer.worker(workload).ok()?.count(&job, || counters.now()).ok()?;
    let each = |of: fn(&gannet_logfs::VolumeCounters) -> u64| {
        of(&after).wrapping_sub(of(&before)) as f64 / operations.max(1) as f64
    };
    Some(Cost {
        fences: each(|counters| counters.fences),
        lines: each(|counters| counters.lines),
        bytes: each(|counters| counters.bytes_stored),
    })
}

/// The rounds' values in a unit.
fn values(unit: Unit, size_bytes: u64, rounds: &[Measurement]) -> Spread {
    let value = |one: &Measurement| match unit {
        // The middle of single times: that other programs take the processor away now and then does not show in it. The mean
        // is among the details.
        Unit::Nanoseconds => middle(&one.histogram).unwrap_or(one.wall_ns / one.operations.max(1) as f64),
        Unit::Rate => one.rate,
        Unit::Bandwidth => one.rate * size_bytes as f64 / 1e6,
    };
    spread(&rounds.iter().map(value).collect::<Vec<_>>())
}

/// The median of a histogram in order.
fn middle(histogram: &[(u64, u64)]) -> Option<f64> {
    let samples: u64 = histogram.iter().map(|one| one.1).sum();
    let mut seen = 0;
    let found = histogram.iter().find(|(_, count)| {
        seen += count;
        seen * 2 >= samples
    });
    found.filter(|_| samples > 0).map(|(value, _)| *value as f64)
}

fn complete(row: Row, unit: Unit, cell: &Cell, found: &Found, driver: &[Measurement]) -> Row {
    let wall = values(Unit::Nanoseconds, 1, &found.rounds);
    let cpu: Vec<f64> = found.rounds.iter().map(|one| one.cpu_ns / one.operations.max(1) as f64).collect();
    let histograms: Vec<&[(u64, u64)]> = found.rounds.iter().map(|one| one.histogram.as_slice()).collect();
    Row {
        x: cell.x,
        workers: cell.job.workers,
        processes: cell.job.processes,
        value: values(unit, cell.job.size_bytes, &found.rounds),
        cpu_ns: Some(spread(&cpu)),
        net_ns: (!driver.is_empty()).then(|| (wall.median - values(Unit::Nanoseconds, 1, driver).median).max(0.0)),
        latency: latency(&histograms),
        cost: found.cost,
        ..row
    }
}
