//! The conformance suite and the random tester on `memfs`.

use gannet_fstest::random::{Plan, check};
use gannet_fstest::{Features, conformance};
use gannet_memfs::{Limits, MemoryFs};
use gannet_vfs::Owner;

fn make() -> MemoryFs {
    let limits = Limits { data_bytes: 256 << 20, inodes: 10_000 };
    MemoryFs::new(limits, 0o755, Owner::default()).expect("room for the root")
}

conformance!(conformance, Features::all().difference(Features::SHARING).difference(Features::ACCESS_TIMES), || {
    Box::new(make())
});

#[test]
fn random_operations_agree_with_the_model() {
    let rounds = if std::env::var_os("GANNET_LONG").is_some() { 2000 } else { 40 };
    for seed in 0..rounds {
        check(&Plan::new(seed, 1000), &make);
    }
}

#[test]
fn times_and_modes_are_the_kernels() {
    gannet_fstest::kernel::compare(&|| Box::new(make()), false);
}
