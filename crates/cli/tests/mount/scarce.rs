//! What is said where the process that serves a mount lacks something.

use crate::{Bench, hindrance, transports};
use std::process::Command;

/// What mounting says under a limit of the shell's.
fn complaint(bench: &Bench, limit: &str, transport: &str) -> String {
    let line = format!("{limit}; exec \"$0\" mount -o transport={transport} \"$1\" \"$2\"");
    let mut command = Command::new("sh");
    command.args(["-c", &line, env!("CARGO_BIN_EXE_gannet")]).arg(bench.volume()).arg(bench.at());
    let output = command.output().expect("it runs");
    assert!(!output.status.success(), "{output:?}");
    String::from_utf8(output.stderr).expect("text")
}

#[test]
fn too_few_descriptors_for_rings_are_named() {
    if let Some(why) = hindrance() {
        return eprintln!("skipped: {why}");
    }
    if !transports().contains(&"ring") {
        return eprintln!("skipped: there is no FUSE over io_uring");
    }
    let said = complaint(&Bench::new(), "ulimit -n 8", "ring");
    assert!(said.contains("limit of open files") && said.contains("ulimit -n"), "{said}");
}
