//! `gannet bench`: the tables that the field has published, measured anew where the user is, of Gannet and its peers in turn.
//!
//! For: the command, which gives it settings and prints what it finds. May touch: directories of its own below those it is
//! given, which it removes; loop devices and mounts of its own. Relies on the workload program (`work`, the command's
//! `gannet-workload`) and on the command's own `mkfs`, `run` and `mount`, as users do.
//!
//! | module | concern |
//! | --- | --- |
//! | `work` | the workload program's side: what is called, how often, how long it takes |
//! | `peers` | the file systems beside each other |
//! | `bench`, `matrix` | a run; peers in turn, rounds, rows |
//! | `keeper` | what a run has made and started goes with it, however it ends |
//! | `floor`, `machine` | the machine's limits, its facts, settings that spoil figures |
//! | `commands` | the tables |
//! | `model`, `statistics` | rows; medians, spreads, quantiles |
//! | `report` | tables as text; one HTML page with plots |

#![forbid(unsafe_code)]

mod bench;
mod commands;
mod floor;
pub mod keeper;
mod machine;
mod matrix;
pub mod model;
mod peers;
pub mod report;
mod statistics;
pub mod work;

use bench::Bench;
pub use bench::{BenchSettings, Progress};
pub use keeper::Stop;
use model::{Report, Settings, Took};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// A table, or a few, that can be asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    /// Each operation by itself.
    Latency,
    /// Random 4 KiB reads and writes by threads and processes.
    Threads,
    /// FxMark's shapes.
    Meta,
    /// filebench's mixes.
    Files,
    /// Unmodified programs.
    Apps,
    /// Sequential and random reads and writes by size.
    Bandwidth,
    /// Short programs.
    Exec,
    /// Opening volumes.
    Recovery,
}

/// All subjects.
pub const SUBJECTS: &[Subject] = &[
    Subject::Latency,
    Subject::Threads,
    Subject::Bandwidth,
    Subject::Meta,
    Subject::Files,
    Subject::Apps,
    Subject::Exec,
    Subject::Recovery,
];

/// The peers that there are without being named by the user.
pub const PEERS: &[&str] = &peers::ALL;

/// Measures. What cannot be measured here is named in the report, and is no error; neither is it to be stopped before the end:
/// then the report has what was found until then.
pub fn run(
    subjects: &[Subject],
    settings: BenchSettings,
    stop: &Stop,
    observer: &mut dyn FnMut(Progress<'_>),
) -> Report {
    let machine = machine::look();
    let mut bench = Bench::new(settings, stop, observer);
    let (mut tables, mut took) = (Vec::new(), Vec::new());
    for subject in subjects {
        let (begun, name) = (Instant::now(), format!("{subject:?}").to_lowercase());
        tables.extend(match subject {
            Subject::Latency => commands::latency::run(&mut bench),
            Subject::Threads => commands::threads::run(&mut bench),
            Subject::Meta => commands::meta::run(&mut bench),
            Subject::Files => commands::files::run(&mut bench),
            Subject::Apps => commands::apps::run(&mut bench),
            Subject::Bandwidth => commands::bandwidth::run(&mut bench),
            Subject::Exec => commands::exec::run(&mut bench),
            Subject::Recovery => commands::recovery::run(&mut bench),
        });
        took.push(Took { command: name.clone(), seconds: begun.elapsed().as_secs_f64() });
        if stop.is_wanted() {
            bench.skip(name + bench::FOLLOWS, keeper::INTERRUPTED);
            break;
        }
    }
    let workers = tables.iter().flat_map(|table| &table.rows).map(|row| row.workers).max().unwrap_or(1);
    let mut warnings = machine::warnings(&machine, workers);
    for (base, option) in [(&bench.settings.medium, "--medium DIR"), (&bench.settings.memory, "mode 1777")] {
        if !machine::may_write(base) {
            warnings.push(format!(
                "{}: you may not write there: volumes, or tmpfs to compare with, are missing ({option})",
                base.display()
            ));
        }
    }
    for facts in bench.facts.iter().filter(|facts| facts.medium.contains("4 KiB pages")) {
        warnings.push(format!(
            "{}: no huge pages: first touches and exits cost more (see \"huge pages\" in docs/guide.md)",
            facts.name
        ));
    }
    for name in bench.settings.peers.clone() {
        let is_named = bench.facts.iter().any(|facts| facts.name == name)
            || bench.skipped.iter().any(|skipped| skipped.what == name);
        if !is_named {
            bench.skip(name, "none of these tables measures it");
        }
    }
    bench.skipped.sort();
    Report {
        format: "gannet-bench",
        features: Vec::new(),
        version: env!("CARGO_PKG_VERSION"),
        time_s: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs()),
        machine,
        settings: Settings {
            command: bench.settings.command.clone(),
            quick: bench.settings.quick,
            rounds: bench.settings.rounds,
            spread: "median absolute deviation of the rounds",
            volume_bytes: bench.settings.volume_bytes,
            span_bytes: bench.span_bytes,
        },
        peers: bench.facts.clone(),
        warnings,
        skipped: bench.skipped.clone(),
        took,
        tables,
    }
}
