//! Programs that make random calls, told by a seed, and print what each gives: a volume and tmpfs must give the same.

use super::{Volume, compile, on_host};

/// Runs `program DIRECTORY SEED STEPS` in a volume and beside it; how many seeds, and how many where the environment asks for all.
pub(crate) fn gives_what_the_kernel_gives(program: &str, volume: &Volume, steps: u32, seeds: (u32, u32)) {
    let (directory, program) = compile(program);
    let beside = tempfile::tempdir_in("/dev/shm").expect("/dev/shm");
    let seeds = if std::env::var_os("GANNET_LONG").is_some() { seeds.1 } else { seeds.0 };
    for seed in 1..=seeds {
        let arguments = |at: &str| [at.to_owned(), seed.to_string(), steps.to_string()];
        let plain = on_host(&program).args(arguments(beside.path().to_str().expect("text"))).output().expect("runs");
        let ours = volume.command(program.to_str().expect("text")).args(arguments("/gannet")).output().expect("runs");
        assert_eq!((plain.status.code(), ours.status.code()), (Some(0), Some(0)), "seed {seed}: {ours:?}");
        let lines = |output: &[u8]| String::from_utf8_lossy(output).lines().map(str::to_owned).collect::<Vec<_>>();
        let (plain, ours) = (lines(&plain.stdout), lines(&ours.stdout));
        assert!(plain.len() > steps as usize, "seed {seed}: {} lines", plain.len());
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
