//! Maps are the kernel's, whatever becomes of them and of their files: a program that makes, moves, grows, protects and forgets maps at random, and
//! changes the files under them, cannot tell a volume from tmpfs.

mod common;

use common::{Volume, random};

#[test]
fn random_maps_show_what_the_kernel_shows() {
    random::gives_what_the_kernel_gives("maps", &Volume::new(64), 2000, (4, 400));
}

#[test]
fn random_maps_of_files_whose_blocks_move_with_each_write_show_what_the_kernel_shows() {
    random::gives_what_the_kernel_gives("maps", &Volume::copy_on_write(64), 2000, (2, 200));
}
