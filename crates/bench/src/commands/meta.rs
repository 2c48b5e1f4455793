//! `bench meta`: the shapes of FxMark, from private to shared files and directories, by threads and by processes.

use crate::bench::Bench;
use crate::commands::threads::counts;
use crate::matrix::Cell;
use crate::model::{Table, Unit};
use crate::peers;
use crate::work::protocol::{Job, Limit};
use crate::work::shapes::FXMARK_SHAPES;

/// Measures.
pub(crate) fn run(bench: &mut Bench<'_>) -> Vec<Table> {
    let wanted: Vec<&str> = peers::ALL.into_iter().filter(|&name| name != "gannet-aged").collect();
    let names = bench.ready(&wanted);
    let quick = bench.settings.quick;
    let limit = Limit::Milliseconds(if quick { 4 } else { 30 });
    let mut tables = Vec::new();
    for (processes, kind) in [(false, "threads"), (true, "processes")] {
        // Starting processes takes longer than a quick run has.
        let counts = match (quick, processes) {
            (true, true) => vec![],
            (true, false) => vec![2],
            (false, true) => counts(bench.settings.workers_max).split_off(1),
            (false, false) => counts(bench.settings.workers_max),
        };
        if counts.is_empty() {
            bench.skip("meta: processes", "not in a quick run");
            continue;
        }
        let mut table = Table {
            command: "meta",
            title: format!("FxMark's shapes, {kind}"),
            notes: FXMARK_SHAPES.iter().map(|(name, about)| format!("{name}: {about}")).collect(),
            unit: Unit::Rate,
            x_name: Some(kind),
            rows: Vec::new(),
        };
        for (name, _) in FXMARK_SHAPES {
            let cell = |&workers: &u32| Cell {
                operation: (*name).into(),
                x: Some(f64::from(workers)),
                // 8 directories in each of five levels have as many files.
                job: Job {
                    workers,
                    processes,
                    files: if quick { 100 } else { 8_u64.pow(5) },
                    ..bench.job(&format!("fxmark {name}"), limit)
                },
                by_mean: false,
            };
            let cells: Vec<Cell> = counts.iter().map(cell).collect();
            // A shape at a time: what it needs is removed before the next.
            bench.matrix(&mut table, &names, &cells, &mut []);
        }
        table.notes.dedup();
        tables.push(table);
    }
    tables
}
