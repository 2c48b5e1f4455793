//! Maps of sparse files: `programs/lazy.c`, in a volume that has no room for them and on tmpfs.

use crate::common::{Volume, check, compile, on_host, run};

#[test]
fn of_a_map_far_larger_than_the_volume_only_what_is_used_has_blocks() {
    let (_directory, program) = compile("lazy");
    for volume in [Volume::new(256), Volume::copy_on_write(256)] {
        volume.script(&program.display().to_string(), "done");
    }
    let host = tempfile::Builder::new().prefix("gannet-lazy-").tempdir_in("/dev/shm").expect("/dev/shm");
    check(&run(on_host(&program).arg("host").current_dir(host.path())), "on the host", "done");
}
