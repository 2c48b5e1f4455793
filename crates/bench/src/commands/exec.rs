//! `bench exec`: many short programs, and a shell-heavy `configure`, under `gannet run` beside plain.

use crate::bench::Bench;
use crate::commands::programs::shell;
use crate::model::{Table, Unit};
use crate::statistics::spread;

/// `$1` is a directory, `$2` how many.
const MANY: &str = "mkdir -p \"$1\" && cd \"$1\" && i=0 && while [ $i -lt $2 ]; do sh -c :; i=$((i+1)); done";
const CONFIGURE: &str = include_str!("configure.sh");

/// Measures.
pub(crate) fn run(bench: &mut Bench<'_>) -> Vec<Table> {
    let names = bench.ready(&["gannet", "gannet-pmem", "gannet-mount", "gannet-mount-ring", "tmpfs", "disk"]);
    let quick = bench.settings.quick;
    let (programs, checks) = if quick { (20, 4) } else { (2000, 80) };
    let rounds = if quick { 2 } else { bench.settings.rounds.min(3) };
    let mut table = Table {
        command: "exec",
        title: "Short programs".into(),
        notes: vec![
            "the shell and the programs are the host's; their directory is on the file system; tmpfs and disk: without Gannet"
                .into(),
            format!("configure: {checks} checks, each of which writes, compares, greps and edits files by programs"),
        ],
        unit: Unit::Nanoseconds,
        x_name: None,
        rows: Vec::new(),
    };
    let subjects =
        [(format!("{programs} × `sh -c :`, each"), MANY, programs), ("a check of configure".into(), CONFIGURE, checks)];
    for (operation, script, count) in subjects {
        let mut found: Vec<(Vec<f64>, Vec<f64>)> = vec![Default::default(); names.len()];
        let total = u64::from(rounds) * names.len() as u64;
        for round in 0..rounds {
            for (index, name) in names.iter().enumerate() {
                bench.progress(
                    &format!("exec: {operation}"),
                    u64::from(round) * names.len() as u64 + index as u64,
                    total,
                );
                match shell(bench, name, script, &[&count.to_string()], "") {
                    Ok(ran) => {
                        found[index].0.push(ran.wall_ns / f64::from(count));
                        found[index].1.push(ran.cpu_ns / f64::from(count));
                    }
                    Err(why) => bench.skip(format!("exec: {operation}, {name}"), why),
                }
            }
        }
        for (name, (wall, cpu)) in names.iter().zip(found).filter(|(_, (wall, _))| !wall.is_empty()) {
            let mut row = bench.row(&operation, name, spread(&wall));
            // The clock of processor time ticks a hundred times a second.
            row.cpu_ns = (!quick).then(|| spread(&cpu));
            table.rows.push(row);
        }
    }
    vec![table]
}
