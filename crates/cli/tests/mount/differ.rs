//! Random calls on files, from a seed: a program cannot tell a mounted volume from the disk's own file system. The same program as under
//! `gannet run` (`crates/intercept/tests/differ.rs`).

#[path = "../../../intercept/tests/common/differ.rs"]
mod campaign;

use crate::{Bench, with_transports};
use campaign::{Campaign, open_to_all, reference};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// Not passed on by the kernel: collapsing and inserting, sharing of blocks, bad memory in the midst of what is written, whether a lock
/// is a process's or an open file's.
const NOT_ON_MOUNTS: &str = "crpw";
/// Of each seed.
const STEPS: usize = 300;

#[test]
fn random_calls_answer_as_on_the_disk() {
    play("", 401);
}

#[test]
fn random_calls_of_two_processes_in_turn_answer_as_on_the_disk() {
    play("2", 501);
}

/// Plays some seeds from one on, with each transport and way to cache.
fn play(with: &str, first: u64) {
    let seeds = if std::env::var_os("GANNET_LONG").is_some() { 100 } else { 2 };
    let programs = tempfile::tempdir().expect("a temporary directory");
    open_to_all(programs.path());
    let Some(program) = compile(programs.path()) else { return };
    let Some((host, without)) = reference() else { return };
    with_transports(|transport| {
        for (index, cache) in ["automatic", "coherent", "exclusive"].iter().enumerate() {
            let bench = Bench::new();
            open_to_all(bench.directory.path());
            let server = bench.mount(&format!("transport={transport},cache={cache},allow_other,suid,dev"));
            let campaign = Campaign {
                program: program.clone(),
                without: [&without, NOT_ON_MOUNTS, with].concat(),
                places: [host.path().to_owned(), bench.at()],
                run: &|_, program, arguments| output(Command::new(program).args(arguments)),
            };
            let start = first + index as u64 * seeds;
            campaign.play_all(start..start + seeds, STEPS);
            server.end();
            bench.check();
        }
    });
}

fn output(command: &mut Command) -> Output {
    command.stdin(Stdio::null()).output().expect("it runs")
}

/// The program, or why there is none.
fn compile(directory: &Path) -> Option<PathBuf> {
    let program = directory.join("differ");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/../intercept/tests/programs/differ.c");
    let built = Command::new("cc").args(["-O1", "-w", "-o"]).arg(&program).arg(source).output();
    match built {
        Ok(output) => {
            assert!(output.status.success(), "{output:?}");
            Some(program)
        }
        Err(_) => {
            eprintln!("skipped: cc is not installed");
            None
        }
    }
}
