//! What programs are told on mounted volumes is what the kernel's own file systems tell them.

use crate::{Bench, oracle, with_transports};
use std::process::Command;

#[test]
fn answers_are_the_kernels() {
    with_transports(|transport| {
        for cache in ["automatic", "coherent", "exclusive", "writeback"] {
            let bench = Bench::new();
            let server = bench.mount(&format!("transport={transport},cache={cache},allow_other,suid,dev"));
            oracle::compare(&bench.at(), &oracle::excused(cache == "writeback"));
            server.end();
            bench.check();
        }
    });
}

/// Random operations of several programs, some of them killed: nothing stays behind. `scripts/long-load` does it for hours.
#[test]
fn nothing_stays_of_what_many_programs_did() {
    with_transports(|transport| {
        for (seed, cache) in [(1, "automatic"), (2, "coherent"), (3, "exclusive")] {
            let bench = Bench::new();
            let server = bench.mount(&format!("transport={transport},cache={cache}"));
            let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../fuse/scripts/random-load.py");
            let mut load = Command::new("python3");
            load.arg(script).arg(bench.at()).args([&seed.to_string(), "200"]);
            match load.output() {
                Err(_) => eprintln!("skipped: python3 is not installed"),
                Ok(output) => assert!(output.status.success(), "{transport}, {cache}: {output:?}"),
            }
            server.end();
            bench.check();
        }
    });
}
