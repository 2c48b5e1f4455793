//! Four mixes of filebench, as its personalities define them (`workloads/{fileserver,varmail,webserver,webproxy}.f` in
//! <https://github.com/filebench/filebench>): number of files, mean width of directories, mean sizes, gamma distributions
//! of shape 1.5, the share of files that is there at first, and the operations in their order. An operation counted is
//! one of these, as filebench counts them.

use super::random::Random;
use super::{Job, Member, Setting, Shape, fill};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock, PoisonError};

const IO_BYTES: u64 = 1 << 20;
const APPEND_BYTES: u64 = 16 << 10;
/// The log of the webserver begins anew at this length; filebench's has no bound.
const LOG_BYTES_MAX: u64 = 32 << 20;

/// An operation of a mix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Create,
    WriteWhole,
    Open,
    Append,
    ReadWhole,
    Fsync,
    Close,
    Delete,
    Stat,
    AppendLog,
}

/// A mix, as its personality has it.
#[derive(Debug)]
pub struct Mix {
    /// Its name.
    pub name: &'static str,
    /// Files (`nfiles`).
    pub files: u64,
    /// Mean number of entries of a directory (`meandirwidth`).
    pub width: u64,
    /// Mean size of a file in bytes (`meanfilesize`).
    pub size_bytes: u64,
    /// Threads (`nthreads`).
    pub threads: u32,
    /// Files there at first, in per cent (`prealloc`).
    percent: u64,
    steps: &'static [Step],
}

/// The mixes.
pub const MIXES: &[Mix] = {
    use Step::*;
    &[
        Mix {
            name: "fileserver",
            files: 10_000,
            width: 20,
            size_bytes: 128 << 10,
            threads: 50,
            percent: 80,
            steps: &[Create, WriteWhole, Close, Open, Append, Close, Open, ReadWhole, Close, Delete, Stat],
        },
        Mix {
            name: "varmail",
            files: 1000,
            width: 1_000_000,
            size_bytes: 16 << 10,
            threads: 16,
            percent: 80,
            steps: &[
                Delete, Create, Append, Fsync, Close, Open, ReadWhole, Append, Fsync, Close, Open, ReadWhole, Close,
            ],
        },
        Mix {
            name: "webserver",
            files: 1000,
            width: 20,
            size_bytes: 16 << 10,
            threads: 100,
            percent: 100,
            steps: &[
                Open, ReadWhole, Close, Open, ReadWhole, Close, Open, ReadWhole, Close, Open, ReadWhole, Close, Open,
                ReadWhole, Close, Open, ReadWhole, Close, Open, ReadWhole, Close, Open, ReadWhole, Close, Open,
                ReadWhole, Close, Open, ReadWhole, Close, AppendLog,
            ],
        },
        Mix {
            name: "webproxy",
            files: 10_000,
            width: 1_000_000,
            size_bytes: 16 << 10,
            threads: 100,
            percent: 80,
            steps: &[
                Delete, Create, Append, Close, Open, ReadWhole, Close, Open, ReadWhole, Close, Open, ReadWhole, Close,
                Open, ReadWhole, Close, Open, ReadWhole, Close,
            ],
        },
    ]
};

pub(super) fn find(name: &str) -> Option<Box<dyn Shape>> {
    let mix = MIXES.iter().find(|mix| mix.name == name)?;
    Some(Box::new(Filebench { mix, files: OnceLock::new() }))
}

/// A mix and the files that all its threads use.
struct Filebench {
    mix: &'static Mix,
    files: OnceLock<Files>,
}

/// The files, and which of them exist.
struct Files {
    all: Vec<(PathBuf, u64)>,
    /// Numbers of those that exist, and of those that do not.
    lists: Mutex<[Vec<u32>; 2]>,
}

/// Paths and sizes: directories of about `width` entries, and as many of those in the directories above them.
fn plan(mix: &Mix, directory: &Path, files: u64) -> Vec<(PathBuf, u64)> {
    let mut random = Random::new(42);
    let width = mix.width as f64;
    let depth = ((files as f64).ln() / width.ln()).round().max(1.0) as u32;
    let mut all = Vec::new();
    let mut leaf = 0_u64;
    while (all.len() as u64) < files {
        let mut path = directory.join("set");
        for level in (1..depth).rev() {
            path.push(format!("{}", leaf / mix.width.pow(level - 1)));
        }
        let here = (random.gamma(width).round() as u64).clamp(1, files - all.len() as u64);
        all.extend(
            (0..here).map(|number| (path.join(format!("{leaf}-{number}")), random.gamma(mix.size_bytes as f64) as u64)),
        );
        leaf += 1;
    }
    all
}

impl Files {
    fn of(mix: &Mix, setting: &Setting) -> Self {
        let all = plan(mix, &setting.directory, setting.files);
        let (there, gone) = (0..all.len() as u32).partition(|&number| all[number as usize].0.exists());
        Self { all, lists: Mutex::new([there, gone]) }
    }

    /// A random file that exists, or one that does not; it changes sides if `moves`.
    fn choose(&self, random: &mut Random, exists: bool, moves: bool) -> Option<&(PathBuf, u64)> {
        let mut lists = self.lists.lock().unwrap_or_else(PoisonError::into_inner);
        let [there, gone] = &mut *lists;
        let (from, to) = if exists { (there, gone) } else { (gone, there) };
        let bound = from.len() as u64;
        let at = (bound > 0).then(|| random.below(bound) as usize)?;
        let number = if moves {
            let number = from.swap_remove(at);
            to.push(number);
            number
        } else {
            from[at]
        };
        self.all.get(number as usize)
    }
}

impl Shape for Filebench {
    fn place(&self, job: &Job) -> String {
        format!("filebench-{}-{}", self.mix.name, job.files)
    }

    fn prepare(&self, setting: &Setting) -> io::Result<()> {
        let mut last = PathBuf::new();
        for (number, (path, size)) in plan(self.mix, &setting.directory, setting.files).iter().enumerate() {
            if let Some(parent) = path.parent().filter(|&parent| parent != last) {
                fs::create_dir_all(parent)?;
                last = parent.to_owned();
            }
            // Spread evenly over the directories.
            if number as u64 * 37 % 100 < self.mix.percent {
                fill(path, *size)?;
            }
        }
        fill(&setting.directory.join("log"), self.mix.size_bytes).map(drop)
    }

    fn member<'a>(&'a self, setting: &'a Setting, index: u32) -> io::Result<Member<'a>> {
        let files = self.files.get_or_init(|| Files::of(self.mix, setting));
        let mut worker = Worker {
            files,
            log: OpenOptions::new().append(true).open(setting.directory.join("log"))?,
            random: Random::new(u64::from(index) + 1),
            bytes: vec![9; IO_BYTES as usize],
            open: None,
            at: 0,
        };
        Ok(Member::new(move |_| {
            let step = self.mix.steps[worker.at];
            worker.at = (worker.at + 1) % self.mix.steps.len();
            worker.step(step)
        }))
    }
}

struct Worker<'a> {
    files: &'a Files,
    log: File,
    random: Random,
    bytes: Vec<u8>,
    /// The open file and the size that it shall have.
    open: Option<(File, u64)>,
    at: usize,
}

/// A file that another thread has just removed, or not yet made, is another thread's success.
fn forgive<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        other => other.map(Some),
    }
}

impl Worker<'_> {
    fn step(&mut self, step: Step) -> io::Result<()> {
        match step {
            Step::Create => {
                // None is missing where there are more threads than files to spare: an existing one then.
                let files = self.files;
                let chosen = files.choose(&mut self.random, false, true);
                if let Some((path, size)) = chosen.or_else(|| files.choose(&mut self.random, true, false)) {
                    let options = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(path);
                    self.open = Some((options?, *size));
                }
            }
            Step::Open => {
                self.open = None;
                if let Some((path, size)) = self.files.choose(&mut self.random, true, false) {
                    let file = forgive(OpenOptions::new().read(true).write(true).open(path))?;
                    self.open = file.map(|file| (file, *size));
                }
            }
            Step::WriteWhole => {
                if let Some((file, size)) = &mut self.open {
                    let mut left = *size;
                    while left > 0 {
                        let count = left.min(IO_BYTES);
                        file.write_all(&self.bytes[..count as usize])?;
                        left -= count;
                    }
                }
            }
            Step::ReadWhole => {
                if let Some((file, _)) = &mut self.open {
                    file.seek(SeekFrom::Start(0))?;
                    while file.read(&mut self.bytes)? > 0 {}
                }
            }
            Step::Append => {
                if let Some((file, _)) = &mut self.open {
                    let count = 1 + self.random.below(APPEND_BYTES);
                    let end = file.seek(SeekFrom::End(0))?;
                    file.write_all_at(&self.bytes[..count as usize], end)?;
                }
            }
            Step::AppendLog => {
                let count = 1 + self.random.below(APPEND_BYTES);
                self.log.write_all(&self.bytes[..count as usize])?;
                if self.log.metadata()?.len() > LOG_BYTES_MAX {
                    self.log.set_len(0)?;
                }
            }
            Step::Fsync => {
                if let Some((file, _)) = &self.open {
                    file.sync_all()?;
                }
            }
            Step::Close => self.open = None,
            Step::Delete => {
                if let Some((path, _)) = self.files.choose(&mut self.random, true, true) {
                    forgive(fs::remove_file(path))?;
                }
            }
            Step::Stat => {
                if let Some((path, _)) = self.files.choose(&mut self.random, true, false) {
                    forgive(fs::metadata(path))?;
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_files_are_as_the_personalities_say() {
        for mix in MIXES {
            let all = plan(mix, Path::new("/d"), mix.files);
            assert_eq!(all.len() as u64, mix.files);
            let mean = all.iter().map(|one| one.1).sum::<u64>() as f64 / all.len() as f64;
            assert!((mean / mix.size_bytes as f64 - 1.0).abs() < 0.1, "{}: mean size {mean}", mix.name);
            let mut directories: Vec<_> = all.iter().filter_map(|one| one.0.parent()).collect();
            directories.dedup();
            let width = mix.files as f64 / directories.len() as f64;
            let expected = mix.width.min(mix.files) as f64;
            assert!((width / expected - 1.0).abs() < 0.25, "{}: mean width {width}", mix.name);
            let mut paths: Vec<_> = all.iter().map(|one| &one.0).collect();
            paths.sort();
            paths.dedup();
            assert_eq!(paths.len(), all.len(), "{}: no path twice", mix.name);
        }
    }

    #[test]
    fn each_mix_opens_before_it_uses() {
        for mix in MIXES {
            let mut open = false;
            for step in mix.steps {
                match step {
                    Step::Create | Step::Open => open = true,
                    Step::Close => {
                        assert!(open);
                        open = false;
                    }
                    Step::WriteWhole | Step::ReadWhole | Step::Append | Step::Fsync => assert!(open, "{mix:?}"),
                    Step::Delete | Step::Stat | Step::AppendLog => {}
                }
            }
        }
    }
}
