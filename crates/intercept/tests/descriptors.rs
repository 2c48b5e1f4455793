//! Numbers of descriptors are the kernel's: a program that makes random calls on them cannot tell a volume from tmpfs.

mod common;

use common::{Volume, random};

#[test]
fn random_calls_on_descriptors_give_what_the_kernel_gives() {
    random::gives_what_the_kernel_gives("descriptors", &Volume::new(64), 2000, (4, 400));
}
