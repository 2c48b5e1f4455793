//! `bench bandwidth`: the table of Direct-FUSE (Zhu et al., 2018): sequential and random reads and writes of 1 KiB to 1 MiB, one thread.

use crate::bench::Bench;
use crate::matrix::Cell;
use crate::model::{Table, Unit};
use crate::peers;
use crate::work::protocol::{Job, Limit};

/// Measures.
pub(crate) fn run(bench: &mut Bench<'_>) -> Vec<Table> {
    let wanted: Vec<&str> = peers::ALL.into_iter().filter(|&name| name != "gannet-aged").collect();
    let names = bench.ready(&wanted);
    let quick = bench.settings.quick;
    let limit = Limit::Milliseconds(if quick { 6 } else { 40 });
    let sizes: &[u64] =
        if quick { &[4 << 10, 1 << 20] } else { &[1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20] };
    let mut table = Table {
        command: "bandwidth",
        title: "Bandwidth of one thread".into(),
        notes: vec!["a file that is there already, overwritten or read".into()],
        unit: Unit::Bandwidth,
        x_name: Some("bytes"),
        rows: Vec::new(),
    };
    let mut cells = Vec::new();
    for operation in ["read sequential", "read random", "write sequential", "write random"] {
        for &size_bytes in sizes {
            cells.push(Cell {
                operation: operation.into(),
                x: Some(size_bytes as f64),
                job: Job { size_bytes, ..bench.job(operation, limit) },
                by_mean: false,
            });
        }
    }
    bench.matrix(&mut table, &names, &cells, &mut []);
    vec![table]
}
