//! Random calls on files, from a seed, told line by line by `differ.c`, in two places: what they say must be the same. A difference is made
//! small: steps are left out while it stays.
//!
//! Depends on nothing else of the tests: those of mounts use it as well.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::Output;

/// A directory of the kernel's own on a disk's file system, and what is not tried there: see `differ.c`.
pub(crate) fn reference() -> Option<(tempfile::TempDir, String)> {
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
        let Ok(directory) = tempfile::Builder::new().prefix("gannet-differ-").tempdir_in(disk) else { continue };
        open_to_all(directory.path());
        let questions = if answers_about_own_locks() { "" } else { "u" };
        return Some((directory, format!("{without}{questions}")));
    }
    eprintln!("left out: no ext4 or xfs to compare with");
    None
}

/// Others go through it.
pub(crate) fn open_to_all(directory: &Path) {
    std::fs::set_permissions(directory, std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("ours");
}

/// Whether the kernel says which locks are one's own, as it does since Linux 6.10 or so.
fn answers_about_own_locks() -> bool {
    let about = rustix::system::uname();
    let mut numbers = about.release().to_str().unwrap_or_default().split('.').map(|part| part.parse::<u32>());
    matches!((numbers.next(), numbers.next()), (Some(Ok(major)), Some(Ok(minor))) if (major, minor) >= (6, 10))
}

/// Two places to play in.
pub(crate) struct Campaign<'a> {
    pub(crate) program: PathBuf,
    /// What is not tried: see `differ.c`.
    pub(crate) without: String,
    /// The kernel's directory, and the one that is to be like it.
    pub(crate) places: [PathBuf; 2],
    /// Runs a program in one of them.
    pub(crate) run: &'a dyn Fn(usize, &str, &[String]) -> Output,
}

impl Campaign<'_> {
    /// Plays seeds, or those that the environment names (`GANNET_SEED=7`, `GANNET_SEED=1000-2000`), of so many steps.
    pub(crate) fn play_all(&self, seeds: Range<u64>, steps: usize) {
        for seed in wanted().unwrap_or(seeds) {
            let told = self.play(seed, steps, "");
            assert!(told[0].len() > steps, "seed {seed}: the kernel's ends early: {:?}", told[0].last());
            if let Some(line) = first(&told) {
                panic!("seed {seed}, line {line}; what is left of it:\n{}", self.shrink(seed, &told, line, steps));
            }
        }
    }

    /// What the two say, line by line, with some steps left out.
    fn play(&self, seed: u64, steps: usize, left_out: &str) -> [Vec<String>; 2] {
        let script = r#"rm -rf "$2" && mkdir "$2" && chmod 755 "$2" && exec "$@""#;
        [0, 1].map(|which| {
            let text = |path: &Path| path.to_str().expect("UTF-8").to_owned();
            let work = self.places[which].join("work");
            let fixed = ["-c".to_owned(), script.to_owned(), "sh".to_owned(), text(&self.program), text(&work)];
            let chosen = [seed.to_string(), steps.to_string(), self.without.clone(), left_out.to_owned()];
            let output = (self.run)(which, "sh", &[&fixed[..], &chosen[..]].concat());
            let mut lines: Vec<String> = String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect();
            lines.push(format!("{} {}", output.status, String::from_utf8_lossy(&output.stderr)));
            lines
        })
    }

    /// Leaves out steps while there is still a difference; what is left, told.
    fn shrink(&self, seed: u64, told: &[Vec<String>; 2], line: usize, steps: usize) -> String {
        let end = step_of(told, line).map_or(steps, |step| step + 1);
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
                if fewer != left_out && first(&self.play(seed, end, &list(&fewer))).is_some() {
                    left_out = fewer;
                }
            }
            size /= 2;
        }
        let told = self.play(seed, end, &list(&left_out));
        let line = first(&told).expect("it was seen to differ");
        let before = told[0][..line].iter().filter(|line| !line.ends_with("left out"));
        let before: Vec<&str> = before.map(String::as_str).collect();
        format!("{}\nkernel: {:?}\nvolume: {:?}", before.join("\n"), told[0].get(line), told[1].get(line))
    }
}

fn wanted() -> Option<Range<u64>> {
    let text = std::env::var("GANNET_SEED").ok()?;
    let (from, to) = text.split_once('-').unwrap_or((&text, ""));
    let from: u64 = from.parse().expect("GANNET_SEED=NUMBER or FROM-TO");
    Some(from..to.parse().unwrap_or(from + 1))
}

/// The line in which they differ first.
fn first(told: &[Vec<String>; 2]) -> Option<usize> {
    let [host, volume] = told;
    (0..host.len().max(volume.len())).find(|line| host.get(*line) != volume.get(*line))
}

fn step_of(told: &[Vec<String>; 2], line: usize) -> Option<usize> {
    told.iter().find_map(|lines| lines.get(line)?.split(' ').next()?.parse().ok())
}
