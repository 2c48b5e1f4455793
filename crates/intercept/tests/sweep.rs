//! Every system call with every kind of descriptor that a volume gives, and with arguments fixed and random, told line by line by `sweep.c`, in a volume and
//! on tmpfs: the errors are the same but for those argued here. `GANNET_LONG=1` tries many seeds.

mod common;

use common::{Volume, compile_with, is_root_who_can, run};
use std::path::Path;
use std::process::Command;

/// Parts of lines that may differ, and why.
const ARGUED: &[(&str, &str)] = &[
    ("call 326 ", "copy_file_range between file systems: the kernel says EXDEV, here it is copied"),
    ("call 40 ", "sendfile from what the kernel cannot splice"),
    ("call 1 (", "a buffer that ends too early: fewer bytes are written before the fault, or none"),
    ("call 18 (", "likewise"),
    ("call 20 (", "likewise"),
    ("call 296 (", "likewise"),
    ("call 328 (", "likewise"),
    ("call 285 ", "tmpfs has fewer modes of fallocate"),
    ("call 8 (", "where the end of a directory is"),
    ("call 303 ", "tmpfs has no handles for some, and asks so first"),
    ("fcntl 1026", "no notifications"),
    ("fcntl 1033", "seals are a property of memory files"),
    ("fcntl 1034", "likewise"),
    ("path of device: open(name", "a volume is nodev"),
    ("call 444 ", "Landlock is refused, as where the kernel has it disabled"),
];

fn compare(volume: &Volume, program: &Path, rounds: &str, seed: u32) {
    let seed = seed.to_string();
    let host = tempfile::Builder::new().prefix("gannet-sweep-").tempdir_in("/dev/shm").expect("/dev/shm");
    let plain = run(Command::new("timeout").arg("600").arg(program).arg(host.path()).args([rounds, &seed]));
    volume.script(&format!("mkdir /gannet/work{seed}"), "");
    let program = program.to_str().expect("UTF-8");
    let ours = run(volume.command_with_time(program, 300).arg(format!("/gannet/work{seed}")).args([rounds, &seed]));
    let lines = |output: &std::process::Output| -> Vec<String> {
        String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect()
    };
    let (plain_lines, our_lines) = (lines(&plain), lines(&ours));
    assert_eq!(plain_lines.last().map(String::as_str), Some("end: done"), "{:?}", plain.status);
    assert!(plain_lines.len() > 20_000, "{} lines", plain_lines.len());
    assert_eq!(plain_lines.len(), our_lines.len(), "{:?}: {:?}", ours.status, our_lines.last());
    let different: Vec<String> = plain_lines
        .iter()
        .zip(&our_lines)
        .filter(|(plain, ours)| plain != ours && !ARGUED.iter().any(|(argued, _)| plain.contains(argued)))
        .take(40)
        .map(|(plain, ours)| format!("kernel: {plain}\nvolume: {ours}\n"))
        .collect();
    assert!(different.is_empty(), "seed {seed}\n{}", different.join("\n"));
}

#[test]
fn every_call_answers_as_the_kernels_on_every_kind_of_descriptor() {
    if !is_root_who_can("compare what root may do") {
        return;
    }
    // Addresses are arguments, too: the same ones on both sides.
    let (_directory, program) = compile_with("sweep", &["-no-pie"]);
    let volume = Volume::new(64);
    let (rounds, seeds) = if std::env::var_os("GANNET_LONG").is_some() { ("40", 20) } else { ("3", 1) };
    for seed in 1..=seeds {
        compare(&volume, &program, rounds, seed);
    }
}
