//! The conformance suite and the random tester on a volume in memory.

use gannet_fstest::random::{Plan, check};
use gannet_fstest::{Features, conformance};
use gannet_logfs::{AttachOptions, FurtherOptions, LogFs, MakeOptions, NoUsers, make, make_spanning};
use gannet_media::{CreateOptions, Medium};
use gannet_vfs::{Owner, Time};

const FEATURES: Features = Features::all();
/// Copy-on-write needs a fresh block for every write, so that blocks reserved beforehand do not help it.
const COPY_ON_WRITE: Features = FEATURES.difference(Features::RESERVES);

fn options(index_bytes_max: u64) -> AttachOptions {
    AttachOptions {
        index_bytes_max,
        copy_on_write: None,
        access_times: Default::default(),
        threads: 1,
        users: Box::new(NoUsers),
    }
}

/// As little as there can be: every operation makes room by dropping other indexes.
const LEAST: u64 = 0;
/// Little more than the largest directory of the suite needs.
const LITTLE: u64 = 192 << 10;
const PLENTY: u64 = 16 << 20;

fn made(copy_on_write: bool) -> MakeOptions {
    MakeOptions {
        label: "test".into(),
        copy_on_write,
        emulate_persistence: false,
        owner: Owner::default(),
        mode: 0o755,
        random: [7; 24],
        now: Time::now(),
    }
}

fn volume(copy_on_write: bool, index_bytes_max: u64) -> LogFs {
    let medium = Medium::create_in_memory("volume", 64 << 20, CreateOptions::default()).expect("memory");
    make(&medium, &made(copy_on_write)).expect("mkfs");
    LogFs::open_private(medium, options(index_bytes_max)).expect("attach")
}

/// Over three media, of which the first has room for little.
fn spanning() -> LogFs {
    let part = |mebibytes: u64| {
        let medium = Medium::create_in_memory("part", mebibytes << 20, CreateOptions::default()).expect("memory");
        (medium, "part".into(), mebibytes << 20)
    };
    let medium = Medium::join(vec![part(2), part(4), part(58)]).expect("one medium");
    let further = |mebibytes: u64| FurtherOptions { start_bytes: mebibytes << 20, path: b"part".to_vec() };
    make_spanning(&medium, &made(false), &[further(2), further(6)]).expect("mkfs");
    LogFs::open_private(medium, options(PLENTY)).expect("attach")
}

conformance!(in_place, FEATURES, || Box::new(volume(false, PLENTY)));
conformance!(copy_on_write, COPY_ON_WRITE, || Box::new(volume(true, PLENTY)));
conformance!(on_several_media, FEATURES, || Box::new(spanning()));
conformance!(in_little_memory, FEATURES, || Box::new(volume(false, LITTLE)));

#[test]
fn random_operations_agree_with_the_model() {
    let rounds = if std::env::var_os("GANNET_LONG").is_some() { 1000 } else { 10 };
    for (copy_on_write, memory) in [(false, PLENTY), (true, PLENTY), (false, LEAST)] {
        for seed in 0..rounds {
            check(&Plan { features: FEATURES, ..Plan::new(seed, 1000) }, &|| volume(copy_on_write, memory));
        }
    }
}

#[test]
fn random_operations_on_several_media_agree_with_the_model() {
    let rounds = if std::env::var_os("GANNET_LONG").is_some() { 1000 } else { 10 };
    for seed in 0..rounds {
        check(&Plan { features: FEATURES, ..Plan::new(seed, 1000) }, &spanning);
    }
}

#[test]
fn times_and_modes_are_the_kernels() {
    gannet_fstest::kernel::compare(&|| Box::new(volume(false, PLENTY)), true);
}
