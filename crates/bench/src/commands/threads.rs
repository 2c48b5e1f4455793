//! `bench threads`: 4 KiB reads and writes at random places, by more and more threads and processes, each in a file of its own.

use crate::bench::Bench;
use crate::matrix::Cell;
use crate::model::{Table, Unit};
use crate::peers;
use crate::work::protocol::{Job, Limit};

/// Measures.
pub(crate) fn run(bench: &mut Bench<'_>) -> Vec<Table> {
    let names = bench.ready(&peers::ALL);
    let limit = Limit::Milliseconds(if bench.settings.quick { 10 } else { 100 });
    let mut tables = Vec::new();
    for (processes, kind) in [(false, "threads"), (true, "processes")] {
        let mut table = Table {
            command: "threads",
            title: format!("4 KiB at random places, {kind}"),
            notes: vec!["each worker in a file of its own; all files together have the same size throughout".into()],
            unit: Unit::Rate,
            x_name: Some(kind),
            rows: Vec::new(),
        };
        let counts = counts(bench.settings.workers_max);
        let mut cells = Vec::new();
        for (operation, shape) in [("write 4 KiB", "write random"), ("read 4 KiB", "read random")] {
            for &workers in &counts {
                // One process is measured as one thread.
                cells.push(Cell {
                    operation: operation.into(),
                    x: Some(f64::from(workers)),
                    job: Job { workers, processes: processes && workers > 1, ..bench.job(shape, limit) },
                    by_mean: false,
                });
            }
        }
        bench.matrix(&mut table, &names, &cells, &mut []);
        tables.push(table);
    }
    tables
}

/// 1, 2, 4 … up to a number.
pub(crate) fn counts(most: u32) -> Vec<u32> {
    (0..).map(|power| 1 << power).take_while(|&count| count <= most.max(1)).collect()
}
