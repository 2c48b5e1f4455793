//! `bench files`: filebench's mixes.

use crate::bench::Bench;
use crate::matrix::Cell;
use crate::model::{Table, Unit};
use crate::peers;
use crate::work::protocol::{Job, Limit};
use crate::work::shapes::MIXES;

/// Measures.
pub(crate) fn run(bench: &mut Bench<'_>) -> Vec<Table> {
    let wanted: Vec<&str> = peers::ALL.into_iter().filter(|&name| name != "gannet-aged").collect();
    let names = bench.ready(&wanted);
    let quick = bench.settings.quick;
    let limit = Limit::Milliseconds(if quick { 20 } else { 300 });
    let mut table = Table {
        command: "files",
        title: "filebench's mixes".into(),
        notes: Vec::new(),
        unit: Unit::Rate,
        x_name: None,
        rows: Vec::new(),
    };
    for mix in MIXES {
        // Files grow a little: each is appended to about once before it is removed. Filebench's numbers fit into volumes of 2 GiB.
        let room = bench.settings.volume_bytes / 100 * 62 / mix.size_bytes.max(16 << 10);
        let files = mix.files.min(room).min(if quick { 100 } else { u64::MAX }).max(10);
        let workers = if quick { mix.threads.min(4) } else { mix.threads };
        let less = if files < mix.files { format!(" (filebench: {})", mix.files) } else { String::new() };
        table.notes.push(format!(
            "{}: {files} files{less} of {} KiB in the mean, directories of {} in the mean, {workers} threads",
            mix.name,
            mix.size_bytes >> 10,
            mix.width
        ));
        let job = Job { workers, files, ..bench.job(&format!("filebench {}", mix.name), limit) };
        let cell = Cell { operation: mix.name.into(), x: None, job, by_mean: false };
        bench.matrix(&mut table, &names, &[cell], &mut []);
    }
    vec![table]
}
