//! Maps are the kernel's, whatever becomes of them and of their files: a program that makes, moves, grows, protects and forgets maps at random, and
//! changes, closes and removes the files under them, cannot tell a volume from tmpfs; and when it is gone nothing of its files is left.

mod common;

use common::{Volume, compile, nothing_is_left, random};

#[test]
fn random_maps_show_what_the_kernel_shows() {
    play(Volume::new(64), (4, 400));
}

#[test]
fn random_maps_of_files_whose_blocks_move_with_each_write_show_what_the_kernel_shows() {
    play(Volume::copy_on_write(64), (2, 200));
}

#[test]
fn what_many_maps_cost_is_in_proportion_to_their_number() {
    let (_directory, program) = compile("manymaps");
    Volume::new(128).script(&program.display().to_string(), "in proportion");
}

#[track_caller]
fn play(volume: Volume, seeds: (u32, u32)) {
    /// What logs may have taken; of the files that are lost on the way each has as many.
    const LOG_BLOCKS: u64 = 24;
    let fs = volume.file_system();
    let free = || {
        fs.shared().reap(&*fs).expect("reaping");
        fs.statistics().expect("statistics").blocks_free
    };
    let before = free();
    random::gives_what_the_kernel_gives("maps", &volume, 2000, seeds);
    assert!(free() + LOG_BLOCKS >= before, "{} of {before} blocks are free", free());
    drop(fs);
    nothing_is_left(volume, "random maps");
}
