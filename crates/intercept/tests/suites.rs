//! What suites for Linux file systems look at beyond the answers of calls (times, set-id bits, what lies behind a file's end, users,
//! exclusion; what transfers leave where they did not move all; limits, seals and short buffers; one end in a volume and one on the host), told line by
//! line by `suites.c`, `transfers.c`, `corners.c` and `across.c` in a volume and on two file systems of the host: each line is one of theirs.

mod common;

use common::{Volume, compile, is_root_who_can, run};
use std::process::{Command, Output};

/// Lines that begin so may differ from both, and why.
const ARGUED: &[(&str, &str)] = &[];

#[test]
fn what_suites_look_at_is_as_on_the_host() {
    if !is_root_who_can("be several users") {
        return;
    }
    lines_are_the_hosts("suites");
}

#[test]
fn what_transfers_leave_is_as_on_the_host() {
    lines_are_the_hosts("transfers");
}

#[test]
fn limits_seals_and_short_buffers_are_as_on_the_host() {
    lines_are_the_hosts("corners");
}

#[test]
fn what_has_an_end_on_the_host_is_as_on_the_host() {
    if !is_root_who_can("open files by handles") {
        return;
    }
    lines_are_the_hosts("across");
}

/// Runs a program on both file systems of the host, and in a volume.
fn lines_are_the_hosts(program: &str) {
    let (_directory, program) = compile(program);
    let lines = |output: &Output| -> Vec<String> {
        String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect()
    };
    // Memory, and what the tests were built on: two opinions, as file systems of Linux differ among themselves.
    let hosts = ["/dev/shm", env!("CARGO_TARGET_TMPDIR")].map(|place| {
        let host = tempfile::Builder::new().prefix("gannet-suites-").tempdir_in(place).expect("a directory");
        let all = lines(&run(Command::new("timeout").arg("600").arg(&program).arg(host.path())));
        assert_eq!(all.last().map(String::as_str), Some("end: done"), "in {place}");
        all
    });
    let volume = Volume::new(256);
    volume.script("mkdir /gannet/work", "");
    let ours = run(volume.command_with_time(program.to_str().expect("UTF-8"), 120).arg("/gannet/work"));
    let all = lines(&ours);
    for host in &hosts {
        assert_eq!(all.len(), host.len(), "{ours:?}: {:?}", all.last());
    }
    let differs = |index: &usize| {
        let line = &all[*index];
        hosts.iter().all(|host| host[*index] != *line) && !ARGUED.iter().any(|(argued, _)| line.starts_with(argued))
    };
    let different: Vec<String> = (0..all.len())
        .filter(differs)
        .take(40)
        .map(|index| format!("memory: {}\ndisk:   {}\nvolume: {}\n", hosts[0][index], hosts[1][index], all[index]))
        .collect();
    assert!(different.is_empty(), "{}", different.join("\n"));
}
