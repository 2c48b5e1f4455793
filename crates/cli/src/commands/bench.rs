//! `gannet bench`: measures, and prints or writes what was found.

use crate::arguments::{Bench, BenchTable};
use crate::failure::{Failure, USAGE};
use crate::output::{Progress, print};
use gannet_bench::{BenchSettings, PEERS, SUBJECTS, Stop, Subject};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const WORKLOAD: &str = "gannet-workload";
/// Interrupts closer together than this are one.
const AGAIN: Duration = Duration::from_secs(1);
/// Exit code of a program that was interrupted, as shells have it.
const INTERRUPTED: u8 = 130;

/// Measures.
pub(crate) fn run(arguments: &Bench) -> Result<u8, Failure> {
    let gannet =
        std::env::current_exe().map_err(|error| Failure::new(format_args!("where is this program? {error}")))?;
    let known =
        |name: &String| PEERS.contains(&name.as_str()) || arguments.directory.iter().any(|(own, _)| own == name);
    if let Some(unknown) = arguments.peers.iter().find(|name| !known(name)) {
        let message =
            format!("{unknown}: no peer has this name; there are {} and those of --directory", PEERS.join(", "));
        return Err(Failure::new(message).with_code(USAGE));
    }
    // A name that was mistyped is not measured on whatever lies above it.
    let named = arguments.directory.iter().map(|(_, path)| path).chain([&arguments.medium]).chain(&arguments.disk);
    if let Some(missing) = named.into_iter().find(|path| !path.is_dir()) {
        let message = format!("{}: there is no such directory to measure in", missing.display());
        return Err(Failure::new(message).with_code(USAGE));
    }
    // Nothing is measured that cannot be written then.
    if let Some(directory) = &arguments.report {
        std::fs::create_dir_all(directory)
            .map_err(|error| Failure::new(format_args!("{}: {error}", directory.display())))?;
    }
    let subjects: Vec<Subject> = match &arguments.what[..] {
        [] => SUBJECTS.to_vec(),
        some => some.iter().map(|&table| subject(table)).collect(),
    };
    let words =
        std::env::args().skip(1).map(|word| if word.contains([' ', '\'']) { format!("{word:?}") } else { word });
    let settings = BenchSettings {
        command: std::iter::once("gannet".to_owned()).chain(words).collect::<Vec<_>>().join(" "),
        workload: find_workload(&gannet)?,
        quick: arguments.quick,
        rounds: arguments.rounds.unwrap_or(0),
        peers: arguments.peers.clone(),
        directories: arguments.directory.clone(),
        medium: arguments.medium.clone(),
        memory: PathBuf::from("/dev/shm"),
        disk: arguments.disk.clone().unwrap_or_else(|| disk(&gannet)),
        volume_bytes: arguments.volume_size.unwrap_or(0),
        workers_max: arguments.workers.unwrap_or(0),
        gannet,
    };
    let mut progress = Progress::new("{msg:44!} {wide_bar} {pos}/{len}");
    let stop = Stop::default();
    let (asked, mut first) = (stop.clone(), None);
    ctrlc::set_handler(move || {
        asked.now();
        // timeout(1) and terminals send one wish to a program and to its group. Who asks again means now: what was made is
        // removed all the same, by the process that stays behind for that.
        if first.get_or_insert_with(Instant::now).elapsed() > AGAIN {
            std::process::exit(INTERRUPTED.into());
        }
    })
    .map_err(|error| Failure::new(format_args!("signals cannot be handled: {error}")))?;
    let report =
        gannet_bench::run(&subjects, settings, &stop, &mut |step| progress.show(step.what, step.done, step.total));
    drop(progress);
    if let Some(directory) = &arguments.report {
        gannet_bench::report::write(&report, directory)
            .map_err(|error| Failure::new(format_args!("{}: {error}", directory.display())))?;
    }
    if arguments.json {
        let text = serde_json::to_string_pretty(&report).map_err(Failure::new)?;
        print(&(text + "\n"))?;
    } else {
        let brief = gannet_bench::report::brief(&report).filter(|_| arguments.summary);
        print(&brief.unwrap_or_else(|| gannet_bench::report::text(&report, arguments.details)))?;
    }
    Ok(if stop.is_wanted() { INTERRUPTED } else { 0 })
}

fn subject(table: BenchTable) -> Subject {
    match table {
        BenchTable::Latency => Subject::Latency,
        BenchTable::Threads => Subject::Threads,
        BenchTable::Meta => Subject::Meta,
        BenchTable::Files => Subject::Files,
        BenchTable::Apps => Subject::Apps,
        BenchTable::Bandwidth => Subject::Bandwidth,
        BenchTable::Exec => Subject::Exec,
        BenchTable::Recovery => Subject::Recovery,
    }
}

/// The workload program: beside this one, or where packages put what only programs call.
fn find_workload(gannet: &Path) -> Result<PathBuf, Failure> {
    let directory = gannet.parent().unwrap_or(Path::new("."));
    [directory.join(WORKLOAD), directory.join("../lib/gannet").join(WORKLOAD), directory.join("..").join(WORKLOAD)]
        .into_iter()
        .find(|path| path.is_file())
        .and_then(|path| path.canonicalize().ok())
        .ok_or_else(|| {
            Failure::new(format_args!(
                "{WORKLOAD} is not beside this program; `cargo build --release -p gannet-cli` makes both"
            ))
        })
}

/// A directory on the disk: where this program was built, or, if it is installed, where temporary files are kept long.
fn disk(gannet: &Path) -> PathBuf {
    let built = gannet.parent().filter(|path| path.components().any(|part| part.as_os_str() == "target"));
    built.map_or_else(|| PathBuf::from("/var/tmp"), Path::to_owned)
}
