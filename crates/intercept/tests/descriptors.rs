//! Numbers of descriptors are the kernel's: a program that makes random calls on them cannot tell a volume from tmpfs.

mod common;

use common::{Volume, compile, on_host};

#[test]
fn random_calls_on_descriptors_give_what_the_kernel_gives() {
    let (directory, program) = compile("descriptors");
    let volume = Volume::new(64);
    let beside = tempfile::tempdir_in("/dev/shm").expect("/dev/shm");
    let seeds = if std::env::var_os("GANNET_LONG").is_some() { 400 } else { 4 };
    for seed in 1..=seeds {
        let arguments = |at: &str| [at.to_owned(), seed.to_string(), "2000".to_owned()];
        let plain = on_host(&program).args(arguments(beside.path().to_str().expect("text"))).output().expect("runs");
        let ours = volume.command(program.to_str().expect("text")).args(arguments("/gannet")).output().expect("runs");
        assert_eq!((plain.status.code(), ours.status.code()), (Some(0), Some(0)), "seed {seed}: {ours:?}");
        let lines = |output: &[u8]| String::from_utf8_lossy(output).lines().map(str::to_owned).collect::<Vec<_>>();
        let (plain, ours) = (lines(&plain.stdout), lines(&ours.stdout));
        let differs = plain.iter().zip(&ours).position(|(a, b)| a != b);
        if let Some(at) = differs {
            let from = at.saturating_sub(20);
            panic!(
                "seed {seed}, line {at}: {:?} instead of {:?}; before:\n{}",
                ours[at],
                plain[at],
                plain[from..at].join("\n")
            );
        }
        assert_eq!(plain.len(), ours.len(), "seed {seed}");
    }
    drop(directory);
}
