//! Peers in turn: each cell of a table for each peer, round by round, and what the rows become.

use crate::bench::Bench;
use crate::floor::Floor;
use crate::model::{Cost, Row, Spread, Table, Unit};
use crate::peers::Peer;
use crate::statistics::{latency, spread};
use crate::work::protocol::{Job, Limit, Measurement};
use std::collections::BTreeMap;
use std::path::Path;

/// One row to be measured, for each peer.
#[derive(Clone, Debug)]
pub(crate) struct Cell {
    pub(crate) operation: String,
    pub(crate) x: Option<f64>,
    pub(crate) job: Job,
    /// Of times, the mean counts instead of the middle: a call now and then does the work of many.
    pub(crate) by_mean: bool,
}

/// What the rounds gave for a cell and a peer.
#[derive(Default)]
struct Found {
    rounds: Vec<Measurement>,
    cost: Option<Cost>,
    failed: bool,
}

impl Bench<'_> {
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
            let mut row = self.row("empty driver", "driver", values(Unit::Nanoseconds, 1, false, &rounds));
            (row.workers, row.processes) = (workers, processes);
            if table.unit == Unit::Nanoseconds {
                table.rows.push(row);
            } else {
                let text = if processes { "processes" } else { "threads" };
                let begin = match workers {
                    1 => "empty driver, one worker: ".to_owned(),
                    _ => format!("empty driver, {workers} {text}: "),
                };
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
fn values(unit: Unit, size_bytes: u64, by_mean: bool, rounds: &[Measurement]) -> Spread {
    let value = |one: &Measurement| match unit {
        // The middle of single times: that other programs take the processor away now and then does not show in it. The mean
        // is among the details.
        Unit::Nanoseconds => {
            middle(&one.histogram).filter(|_| !by_mean).unwrap_or_else(|| one.wall_ns / one.operations.max(1) as f64)
        }
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
    let wall = values(Unit::Nanoseconds, 1, cell.by_mean, &found.rounds);
    let cpu: Vec<f64> = found.rounds.iter().map(|one| one.cpu_ns / one.operations.max(1) as f64).collect();
    let histograms: Vec<&[(u64, u64)]> = found.rounds.iter().map(|one| one.histogram.as_slice()).collect();
    Row {
        x: cell.x,
        workers: cell.job.workers,
        processes: cell.job.processes,
        value: values(unit, cell.job.size_bytes, cell.by_mean, &found.rounds),
        cpu_ns: Some(spread(&cpu)),
        net_ns: (!driver.is_empty())
            .then(|| (wall.median - values(Unit::Nanoseconds, 1, cell.by_mean, driver).median).max(0.0)),
        latency: latency(&histograms),
        cost: found.cost,
        ..row
    }
}
