//! `bench recovery`: opening a volume that was closed cleanly, one whose users were killed, and one of a machine that crashed, against the number of files and
//! against the size of one file.

use crate::bench::Bench;
use crate::machine;
use crate::model::{Table, Unit};
use crate::peers::worker::Worker;
use crate::peers::{Gannet, make_volume};
use crate::statistics::spread;
use crate::work::protocol::{Job, Limit};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Killed processes have ended by then.
const PATIENCE: Duration = Duration::from_secs(60);
const PLACE: &str = "/gannet-bench-volume";
/// Of a volume, for each file with its log and a block of data.
const BYTES_EACH: u64 = 9 << 10;

/// Measures.
pub(crate) fn run(bench: &mut Bench<'_>) -> Vec<Table> {
    let quick = bench.settings.quick;
    // Volumes are filled, one after the other, and what others had is given back before.
    bench.end_peers();
    let room = machine::memory("MemAvailable") / 10 * 6;
    let counts: &[u64] = if quick { &[100, 1000] } else { &[1000, 10_000, 100_000, 1_000_000] };
    let sizes: &[u64] = if quick { &[1 << 20, 16 << 20] } else { &[16 << 20, 256 << 20, 1 << 30, 4 << 30] };
    let mut tables = Vec::new();
    let count_title = "Opening a volume, by its number of files of 1 KiB";
    let size_title = "Opening a volume, by the size of its only file";
    for (title, x_name, points, by_count) in [(count_title, "files", counts, true), (size_title, "bytes", sizes, false)]
    {
        let mut table = Table {
            command: "recovery",
            title: title.into(),
            notes: vec![
                "killed: all processes that had it open were killed at once; machine crashed: and what they shared in memory is gone \
                 too, as after a loss of power"
                    .into(),
            ],
            unit: Unit::Nanoseconds,
            x_name: Some(x_name),
            rows: Vec::new(),
        };
        let total = points.len() as u64;
        for (done, &point) in (0..).zip(points) {
            let content = if by_count { point * BYTES_EACH } else { point + point / 8 };
            if content > room {
                bench.skip(format!("recovery: {point} {x_name}"), "it is more than the free memory allows");
                continue;
            }
            bench.progress(&format!("recovery: {point} {x_name}"), done, total);
            let job = Job {
                span_bytes: point,
                files: point,
                size_bytes: if by_count { 1024 } else { 4096 },
                ..bench.job(if by_count { "files" } else { "write random" }, Limit::Milliseconds(1))
            };
            if let Err(why) = measure(bench, &mut table, &job, content + (64 << 20), point as f64) {
                bench.skip(format!("recovery: {point} {x_name}"), why);
            }
        }
        tables.push(table);
    }
    tables
}

fn measure(bench: &Bench<'_>, table: &mut Table, job: &Job, bytes: u64, x: f64) -> Result<(), String> {
    let directory = bench.medium_directory().join("recovery");
    std::fs::create_dir_all(&directory).map_err(|error| error.to_string())?;
    let path = directory.join("volume");
    let outcome = make_volume(bench, &path, bytes, Gannet { emulated: true, ..Gannet::default() })
        .and_then(|()| rounds(bench, &path, job));
    let _ = std::fs::remove_dir_all(&directory);
    let [clean, killed, crashed] = outcome?;
    for (operation, times) in [("closed cleanly", clean), ("killed", killed), ("machine crashed", crashed)] {
        let mut row = bench.row(operation, "gannet-pmem", spread(&times));
        row.data = "in place".into();
        row.medium = "memory (tmpfs), persistent memory emulated".into();
        row.survives = "the death of every process, but not a reboot".into();
        row.x = Some(x);
        table.rows.push(row);
    }
    Ok(())
}

/// Times of opening: cleanly closed, after its users were killed, and after a crash of the machine.
fn rounds(bench: &Bench<'_>, path: &Path, job: &Job) -> Result<[Vec<f64>; 3], String> {
    let mut times = [Vec::new(), Vec::new(), Vec::new()];
    let rounds = if bench.settings.quick { 2 } else { bench.settings.rounds.min(5) };
    let little = Job { shape: "create and close".into(), ..job.clone() };
    for round in 0..rounds {
        // Made in the first round.
        leave_open(bench, path, if round == 0 { job } else { &little })?;
        times[1].push(open(path)?);
        times[0].push(open(path)?);
        if let Some(shared) = leave_open(bench, path, &little)? {
            // After a crash of the machine there is nothing that its users shared in memory.
            std::fs::remove_file(&shared).map_err(|error| format!("{}: {error}", shared.display()))?;
            times[2].push(open_when_all_are_dead(path)?);
        }
    }
    Ok(times)
}

/// Opens a volume whose killed users may still be ending: as long as one of them is there, it is refused.
fn open_when_all_are_dead(path: &Path) -> Result<f64, String> {
    let begun = Instant::now();
    loop {
        match open(path) {
            Err(_) if begun.elapsed() < PATIENCE => std::thread::sleep(Duration::from_millis(5)),
            outcome => return outcome,
        }
    }
}

/// Users of the volume do a job, have it open and are killed. Returns where what they shared is left.
fn leave_open(bench: &Bench<'_>, path: &Path, job: &Job) -> Result<Option<PathBuf>, String> {
    let mut command = Command::new(&bench.settings.gannet);
    command.arg("run").arg(format!("{}:{PLACE}", path.display())).arg("--").arg(&bench.settings.workload);
    command.arg(Path::new(PLACE).join("work")).stderr(Stdio::null());
    let mut worker = Worker::start(command, &bench.keeper)?;
    worker.prepare(job)?;
    let options = gannet_open::Options { read_only: true, ..gannet_open::Options::default() };
    let volume = gannet_open::open_volume(path, options).map_err(|error| error.to_string())?;
    let shared = volume.session().path().map(PathBuf::from);
    drop(volume);
    worker.kill_group();
    Ok(shared)
}

/// Opens a volume and closes it; returns how long the opening took.
fn open(path: &Path) -> Result<f64, String> {
    let begun = Instant::now();
    let volume = gannet_open::open_volume(path, gannet_open::Options::default()).map_err(|error| error.to_string())?;
    let took = begun.elapsed().as_nanos() as f64;
    drop(volume);
    Ok(took)
}
