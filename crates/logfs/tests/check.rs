//! fsck over volumes that the engine wrote: closed cleanly, left open after any operation, and read only.

use gannet_fstest::Features;
use gannet_fstest::random::{Operation, Pair};
use gannet_logfs::{AttachOptions, CheckOptions, CheckReport, LogFs, MakeOptions, NoUsers, Outcome, check, make};
use gannet_media::{CreateOptions, Medium, MediumOffset};
use gannet_vfs::{Owner, Time};

const FEATURES: Features = Features::all();
const VOLUME_BYTES: u64 = 8 << 20;

fn memory() -> Medium {
    let options = CreateOptions { huge_pages: false, ..CreateOptions::default() };
    Medium::create_in_memory("volume", VOLUME_BYTES, options).expect("memory")
}

fn attach(medium: &Medium) -> LogFs {
    let options = AttachOptions {
        index_bytes_max: 16 << 20,
        copy_on_write: None,
        access_times: Default::default(),
        threads: 1,
        users: Box::new(NoUsers),
    };
    LogFs::open_private(medium.clone(), options).expect("attach")
}

fn run(medium: &Medium, repair: bool) -> CheckReport {
    check(medium, CheckOptions { repair, threads: 2 }, &mut |_| {}).expect("a volume")
}

fn must_be_sound(report: &CheckReport, what: &str) {
    let findings: String = report.findings.iter().map(|finding| format!("{finding}\n")).collect();
    assert_eq!((report.outcome, &findings[..]), (Outcome::Sound, ""), "{what}");
}

#[test]
fn what_the_engine_writes_is_sound() {
    let rounds = if std::env::var_os("GANNET_LONG").is_some() { 200 } else { 6 };
    for seed in 0..rounds {
        let medium = memory();
        let made = MakeOptions {
            label: String::new(),
            copy_on_write: seed % 2 == 1,
            emulate_persistence: false,
            owner: Owner::default(),
            mode: 0o755,
            random: [seed as u8 + 1; 24],
            now: Time::now(),
        };
        make(&medium, &made).expect("mkfs");
        let volume = attach(&medium);
        let mut pair = Pair::new(&volume);
        for index in 0..600 {
            let operation = Operation::of(seed, index);
            if !FEATURES.contains(operation.needs()) {
                continue;
            }
            pair.apply(&volume, &operation);
            if index % 40 == 7 {
                let mut image = vec![0; VOLUME_BYTES as usize];
                medium.read(MediumOffset(0), &mut image).unwrap();
                let copy = memory();
                copy.write(MediumOffset(0), &image).unwrap();
                must_be_sound(&run(&copy, false), &format!("seed {seed}, operation {index}, left open"));
                must_be_sound(&run(&copy, true), &format!("seed {seed}, operation {index}, recovered"));
                let again = run(&copy, false);
                must_be_sound(&again, &format!("seed {seed}, operation {index}, after recovery"));
                assert!(again.closed_cleanly);
                let statistics = gannet_vfs::FileSystem::statistics(&attach(&copy)).unwrap();
                assert_eq!(again.blocks - again.blocks_used, statistics.blocks_free, "seed {seed}, operation {index}");
            }
        }
        pair.release_all(&volume);
        assert!(volume.detach().expect("detach"));
        let report = run(&medium, false);
        must_be_sound(&report, &format!("seed {seed}, closed"));
        assert!(report.closed_cleanly);
    }
}
