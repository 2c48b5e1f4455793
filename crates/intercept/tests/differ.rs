//! Random calls on files, from a seed, told line by line by `differ.c`: a program cannot tell a volume from the kernel's file system.
//!
//! What is compared with is the disk's file system where it is ext4 or xfs; what that one does not have is not tried. A difference is
//! made small: steps are left out while it stays.

mod common;

use common::{Volume, compile, is_root_who_can, on_host, run};
use std::path::{Path, PathBuf};

/// Where to ask the kernel, on a disk's file system, and what is not tried there: see `differ.c`.
fn reference() -> Option<(tempfile::TempDir, &'static str)> {
    const EXT4: u64 = 0xef53;
    const XFS: u64 = 0x5846_5342;
    for disk in ["/var/tmp", "/tmp"] {
        let without = match rustix::fs::statfs(disk).map(|about| about.f_type as u64) {
            // Writes of bad memory that fail make its files longer.
            Ok(EXT4) => "rxp",
            // Whether it shares blocks depends on how it was made.
            Ok(XFS) => "r",
            _ => continue,
        };
        if let Ok(directory) = tempfile::Builder::new().prefix("gannet-differ-").tempdir_in(disk) {
            return Some((directory, without));
        }
    }
    eprintln!("left out: no ext4 or xfs to compare with");
    None
}

struct Campaign {
    program: PathBuf,
    host: tempfile::TempDir,
    without: &'static str,
    volume: Volume,
}

impl Campaign {
    /// What the two say, line by line, with some steps left out.
    fn play(&self, seed: u64, steps: usize, left_out: &str) -> [Vec<String>; 2] {
        let script = r#"rm -rf "$2" && mkdir "$2" && chmod 755 "$2" && exec "$@""#;
        let at = |directory: &Path| {
            let arguments = [
                self.program.to_str().expect("UTF-8").to_owned(),
                directory.to_str().expect("UTF-8").to_owned(),
                seed.to_string(),
                steps.to_string(),
                self.without.to_owned(),
                left_out.to_owned(),
            ];
            ["-c".to_owned(), script.to_owned(), "sh".to_owned()].into_iter().chain(arguments)
        };
        let host = run(on_host("sh").args(at(&self.host.path().join("work"))));
        let volume = run(self.volume.command("sh").args(at(Path::new("/gannet/work"))));
        [host, volume].map(|output| {
            let mut lines: Vec<String> = String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect();
            lines.push(format!("{} {}", output.status, String::from_utf8_lossy(&output.stderr)));
            lines
        })
    }

    /// The line in which they differ first.
    fn first(told: &[Vec<String>; 2]) -> Option<usize> {
        let [host, volume] = told;
        (0..host.len().max(volume.len())).find(|line| host.get(*line) != volume.get(*line))
    }

    fn step_of(told: &[Vec<String>; 2], line: usize) -> Option<usize> {
        told.iter().find_map(|lines| lines.get(line)?.split(' ').next()?.parse().ok())
    }

    /// Leaves out steps while there is still a difference; what is left, told.
    fn shrink(&self, seed: u64, told: &[Vec<String>; 2], line: usize, steps: usize) -> String {
        let end = Self::step_of(told, line).map_or(steps, |step| step + 1);
        let mut left_out = vec![false; end];
        let list = |left_out: &[bool]| {
            let numbers = left_out.iter().enumerate().filter(|(_, out)| **out).map(|(step, _)| step.to_string());
            numbers.collect::<Vec<_>>().join(",")
        };
        let mut size = end.div_ceil(2);
        while size > 0 {
            for from in (0..end).step_by(size) {
                let mut fewer = left_out.clone();
                fewer[from..end.min(from + size)].fill(true);
                if fewer != left_out && Self::first(&self.play(seed, end, &list(&fewer))).is_some() {
                    left_out = fewer;
                }
            }
            size /= 2;
        }
        let told = self.play(seed, end, &list(&left_out));
        let line = Self::first(&told).expect("it was seen to differ");
        let before = told[0][..line].iter().filter(|line| !line.ends_with("left out"));
        let before: Vec<&str> = before.map(String::as_str).collect();
        format!("{}\nkernel: {:?}\nvolume: {:?}", before.join("\n"), told[0].get(line), told[1].get(line))
    }
}

#[test]
fn random_calls_on_files_answer_as_the_kernels() {
    if !is_root_who_can("be several users") {
        return;
    }
    let (directory, program) = compile("differ");
    let Some((host, without)) = reference() else { return };
    for path in [host.path(), directory.path()] {
        std::fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("ours");
    }
    let campaign = Campaign { program, host, without, volume: Volume::new(256) };
    let seeds = if std::env::var_os("GANNET_LONG").is_some() { 1..400 } else { SEEDS };
    let wanted: Option<u64> = std::env::var("GANNET_SEED").ok().and_then(|seed| seed.parse().ok());
    let steps = STEPS;
    for seed in wanted.map_or(seeds, |seed| seed..seed + 1) {
        let told = campaign.play(seed, steps, "");
        assert!(told[0].len() > steps, "seed {seed}: the kernel's ends early: {:?}", told[0].last());
        if let Some(line) = Campaign::first(&told) {
            panic!("seed {seed}, line {line}; what is left of it:\n{}", campaign.shrink(seed, &told, line, steps));
        }
    }
}

/// The seeds that are always played.
const SEEDS: std::ops::Range<u64> = 1..13;
/// Of each seed.
const STEPS: usize = 300;
