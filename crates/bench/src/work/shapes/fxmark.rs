//! The shapes of FxMark (Min et al., "Understanding Manycore Scalability of File Systems", USENIX ATC 2016;
//! <https://github.com/sslab-gatech/fxmark>), after its description and what its programs do: D(ata) or M(etadata), R(ead)
//! or W(rite), a kind, and how much is shared (L(ow), M(edium), H(igh)). Where its programs fill the disk beforehand or until
//! the time is over, series of bounded length do it here, renewed outside the measured time.

use super::{Job, Member, Setting, Shape, fill, remove, touch};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

const PAGE: u64 = 4096;
/// Blocks appended or cut off in a series.
const BLOCKS: u64 = 4096;
/// Most names in a series.
const NAMES_MAX: u64 = 1000;
/// Depth of the trees whose paths are resolved.
const DEPTH: u32 = 5;

/// Name and meaning of each shape.
pub const SHAPES: &[(&str, &str)] = &[
    ("DWAL", "append 4 KiB, private files"),
    ("DWOL", "overwrite 4 KiB, private files"),
    ("DWOM", "overwrite 4 KiB, private blocks of a shared file"),
    ("DWSL", "overwrite 4 KiB and fsync, private files"),
    ("DWTL", "truncate by 4 KiB, private files"),
    ("DRBL", "read 4 KiB, private files"),
    ("DRBM", "read 4 KiB, private blocks of a shared file"),
    ("DRBH", "read 4 KiB, the same block of a shared file"),
    ("MRPL", "stat five deep, private paths"),
    ("MRPM", "stat five deep, random paths of a shared tree"),
    ("MRPH", "stat five deep, the same path"),
    ("MRDL", "read entries, private directories"),
    ("MRDM", "read entries, a shared directory"),
    ("MWCL", "create, private directories"),
    ("MWCM", "create, a shared directory"),
    ("MWUL", "unlink, private directories"),
    ("MWUM", "unlink, a shared directory"),
    ("MWRL", "rename, private directories"),
    ("MWRM", "rename, from private directories into a shared one"),
];

struct Fxmark(&'static str);

pub(super) fn find(name: &str) -> Option<Box<dyn Shape>> {
    let (name, _) = SHAPES.iter().find(|(known, _)| *known == name)?;
    Some(Box::new(Fxmark(name)))
}

/// How many directories each directory of the shared tree has: eight, as FxMark, unless fewer files are asked for.
fn branches(setting: &Setting) -> u64 {
    (2..=8).rev().find(|branches: &u64| branches.pow(DEPTH) <= setting.files).unwrap_or(2)
}

/// Makes a tree, with files at its ends.
fn tree(directory: &Path, branches: u64, depth: u32) -> io::Result<()> {
    for branch in 0..branches {
        let path = directory.join(branch.to_string());
        if depth == 1 {
            touch(&path)?;
        } else {
            fs::create_dir_all(&path)?;
            tree(&path, branches, depth - 1)?;
        }
    }
    Ok(())
}

/// The path of an end of the tree.
fn leaf(directory: &Path, branches: u64, mut number: u64) -> PathBuf {
    let mut path = directory.to_owned();
    for _ in 0..DEPTH {
        path.push((number % branches).to_string());
        number /= branches;
    }
    path
}

/// Names of a series.
fn names(count: u64, directory: &Path, prefix: &str, index: u32) -> Vec<PathBuf> {
    (0..count).map(|number| directory.join(format!("{prefix}-{index}-{number}"))).collect()
}

fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).open(path)
}

impl Shape for Fxmark {
    fn place(&self, job: &Job) -> String {
        match self.0 {
            // Nothing of the tree is changed, and it takes longer to make than to measure.
            "MRPM" => "MRPM".into(),
            name => format!("{name}-{}", job.workers),
        }
    }

    fn prepare(&self, setting: &Setting) -> io::Result<()> {
        let directory = &setting.directory;
        let private = |index: u32| directory.join(index.to_string());
        let shared = directory.join("shared");
        let workers = 0..setting.workers;
        match self.0 {
            "DWAL" => Ok(()),
            "DWOM" | "DRBM" | "DRBH" => fill(&shared, PAGE * u64::from(setting.workers))?.sync_all(),
            "DWTL" => workers.clone().try_for_each(|index| fill(&private(index), PAGE * BLOCKS).map(drop)),
            name if name.starts_with('D') => {
                workers.clone().try_for_each(|index| fill(&private(index), PAGE)?.sync_all())
            }
            "MRPM" => tree(directory, branches(setting), DEPTH),
            _ => {
                fs::create_dir_all(&shared)?;
                workers.clone().try_for_each(|index| fs::create_dir_all(private(index)))
            }
        }
    }

    fn member<'a>(&'a self, setting: &'a Setting, index: u32) -> io::Result<Member<'a>> {
        let (directory, series) = (&setting.directory, setting.files.min(NAMES_MAX));
        let private = directory.join(index.to_string());
        let shared = directory.join("shared");
        let mut block = vec![5_u8; PAGE as usize];
        Ok(match self.0 {
            "DWAL" => {
                let file = OpenOptions::new().write(true).create(true).truncate(true).open(&private)?;
                let again = file.try_clone()?;
                Member::new(move |at| file.write_all_at(&block, at * PAGE)).series(BLOCKS, move |_| again.set_len(0))
            }
            "DWOL" => {
                let file = open(&private)?;
                Member::new(move |_| file.write_all_at(&block, 0))
            }
            "DWOM" => {
                let (file, at) = (open(&shared)?, u64::from(index) * PAGE);
                Member::new(move |_| file.write_all_at(&block, at))
            }
            "DWSL" => {
                let file = open(&private)?;
                Member::new(move |_| {
                    file.write_all_at(&block, 0)?;
                    file.sync_all()
                })
            }
            "DWTL" => {
                let (file, path) = (open(&private)?, private);
                Member::new(move |at| file.set_len((BLOCKS - 1 - at) * PAGE))
                    .series(BLOCKS, move |_| fill(&path, PAGE * BLOCKS).map(drop))
            }
            "DRBL" | "DRBM" | "DRBH" => {
                let (path, at) = match self.0 {
                    "DRBL" => (&private, 0),
                    "DRBM" => (&shared, u64::from(index) * PAGE),
                    _ => (&shared, 0),
                };
                let file = open(path)?;
                Member::new(move |_| file.read_exact_at(&mut block, at))
            }
            "MRPL" | "MRPH" => {
                let deep = if self.0 == "MRPL" { private } else { shared }.join("0/0/0");
                fs::create_dir_all(&deep)?;
                let file = deep.join("0");
                touch(&file)?;
                Member::new(move |_| fs::metadata(&file).map(drop))
            }
            "MRPM" => {
                let branches = branches(setting);
                let mut random = super::random::Random::new(u64::from(index) + 1);
                let leaves: Vec<PathBuf> =
                    (0..4096).map(|_| leaf(directory, branches, random.below(branches.pow(DEPTH)))).collect();
                Member::new(move |at| fs::metadata(&leaves[at as usize % leaves.len()]).map(drop))
            }
            "MRDL" | "MRDM" => {
                let place = if self.0 == "MRDL" { private } else { shared };
                names(series, &place, "file", index).iter().try_for_each(|path| touch(path))?;
                let entries = if self.0 == "MRDL" { series } else { series * u64::from(setting.workers) };
                let read = move |_| {
                    for entry in fs::read_dir(&place)? {
                        std::hint::black_box(entry?);
                    }
                    Ok(())
                };
                Member::new(read).operations_per_call(entries)
            }
            "MWCL" | "MWCM" => {
                let files = names(series, if self.0 == "MWCL" { &private } else { &shared }, "file", index);
                files.iter().try_for_each(|path| remove(path))?;
                let again = files.clone();
                Member::new(move |at| File::create(&files[at as usize]).map(drop))
                    .series(series, move |done| again[..done as usize].iter().try_for_each(fs::remove_file))
            }
            "MWUL" | "MWUM" => {
                let files = names(series, if self.0 == "MWUL" { &private } else { &shared }, "file", index);
                files.iter().try_for_each(|path| touch(path))?;
                let again = files.clone();
                Member::new(move |at| fs::remove_file(&files[at as usize]))
                    .series(series, move |done| again[..done as usize].iter().try_for_each(|path| touch(path)))
            }
            _ => {
                let from = names(series, &private, "from", index);
                let to = names(series, if self.0 == "MWRL" { &private } else { &shared }, "to", index);
                to.iter().try_for_each(|path| remove(path))?;
                from.iter().try_for_each(|path| touch(path))?;
                let again: Vec<_> = to.iter().cloned().zip(from.iter().cloned()).collect();
                Member::new(move |at| fs::rename(&from[at as usize], &to[at as usize])).series(series, move |done| {
                    again[..done as usize].iter().try_for_each(|(to, from)| fs::rename(to, from))
                })
            }
        })
    }
}
