//! Random calls on files, from a seed: a program cannot tell a volume from the kernel's file system.
//!
//! What is compared with is the disk's file system where it is ext4 or xfs; what that one does not have is not tried. Played by one process,
//! and by two in turn that share descriptors, on volumes of both ways to write data. (Mounts: `crates/cli/tests/mount/differ.rs`.)

mod common;

use common::differ::{Campaign, open_to_all, reference};
use common::{Volume, compile, is_root_who_can, on_host, run};
use std::ops::Range;
use std::path::Path;

/// Of each seed.
const STEPS: usize = 300;

#[test]
fn random_calls_on_files_answer_as_the_kernels() {
    play(Volume::new(256), "", 1..13);
}

#[test]
fn random_calls_on_files_whose_blocks_move_with_each_write_answer_as_the_kernels() {
    play(Volume::copy_on_write(256), "", 101..107);
}

#[test]
fn random_calls_of_two_processes_in_turn_answer_as_the_kernels() {
    play(Volume::new(256), "2", 201..209);
}

#[test]
fn random_calls_of_two_processes_in_turn_on_files_whose_blocks_move_answer_as_the_kernels() {
    play(Volume::copy_on_write(256), "2", 301..305);
}

/// Plays these seeds, which are the first of as many as a campaign has.
#[track_caller]
fn play(volume: Volume, with: &str, seeds: Range<u64>) {
    const CAMPAIGN: u64 = 400;
    if !is_root_who_can("be several users") {
        return;
    }
    let (directory, program) = compile("differ");
    let Some((host, without)) = reference() else { return };
    open_to_all(directory.path());
    let runs = |which: usize, program: &str, arguments: &[String]| match which {
        0 => run(on_host(program).args(arguments)),
        _ => run(volume.command(program).args(arguments)),
    };
    let places = [host.path().to_owned(), Path::new("/gannet").to_owned()];
    let campaign = Campaign { program, without: without + with, places, run: &runs };
    let is_long = std::env::var_os("GANNET_LONG").is_some();
    campaign.play_all(if is_long { seeds.start..seeds.start + CAMPAIGN } else { seeds }, STEPS);
}
