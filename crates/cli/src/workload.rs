//! `gannet-workload DIRECTORY`: measures a file system by ordinary calls in a directory of its own. A program like any other, which knows
//! nothing of Gannet: `gannet bench` starts it plainly for the kernel's file systems, and under `gannet run` for volumes, and
//! talks to it over its standard input and output, a line of JSON each way.

#![forbid(unsafe_code)]

use std::io::{self, BufReader};
use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    let mut arguments: Vec<_> = std::env::args_os().skip(1).collect();
    let is_member = arguments.first().is_some_and(|first| first == "--member");
    if is_member {
        arguments.remove(0);
    }
    if arguments.first().is_some_and(|first| first == "--keeper") {
        gannet_bench::keeper::serve(BufReader::new(io::stdin()));
        return ExitCode::SUCCESS;
    }
    let [directory] = &arguments[..] else {
        eprintln!(
            "gannet-workload: usage: gannet-workload DIRECTORY (and requests on standard input; see `gannet bench`)"
        );
        return ExitCode::from(2);
    };
    let directory = Path::new(directory);
    match gannet_bench::work::serve(directory, is_member, BufReader::new(io::stdin()), io::stdout()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("gannet-workload: {}: {error}", directory.display());
            ExitCode::FAILURE
        }
    }
}
