//! Names and attributes: each worker in a directory of its own.

use super::{Job, Member, Setting, Shape, remove, touch};
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

#[derive(Clone, Copy, PartialEq, Eq)]
enum Names {
    /// open and close of a file, five directories deep.
    Open,
    Stat,
    Create,
    Unlink,
    Rename,
    MakeDirectory,
    ReadDirectory,
    /// create, close and unlink, one after the other.
    CreateUnlink,
}

pub(super) fn find(name: &str) -> Option<Box<dyn Shape>> {
    Some(Box::new(match name {
        "open and close" => Names::Open,
        "stat" => Names::Stat,
        "create and close" => Names::Create,
        "unlink" => Names::Unlink,
        "rename" => Names::Rename,
        "mkdir" => Names::MakeDirectory,
        "readdir" => Names::ReadDirectory,
        "create, close and unlink" => Names::CreateUnlink,
        _ => return None,
    }))
}

/// Paths in a directory.
fn paths(directory: &Path, prefix: &str, count: u64) -> Vec<PathBuf> {
    (0..count).map(|index| directory.join(format!("{prefix}{index}"))).collect()
}

/// Removes the first of some directories.
fn remove_directories(paths: &[PathBuf]) -> io::Result<()> {
    paths.iter().try_for_each(fs::remove_dir)
}

impl Shape for Names {
    fn place(&self, _: &Job) -> String {
        match self {
            Self::Open | Self::Stat => "deep",
            Self::Create => "create",
            Self::Unlink => "unlink",
            Self::Rename => "rename",
            Self::MakeDirectory => "mkdir",
            Self::ReadDirectory => "readdir",
            Self::CreateUnlink => "create-unlink",
        }
        .into()
    }

    fn prepare(&self, _: &Setting) -> io::Result<()> {
        Ok(())
    }

    fn member<'a>(&'a self, setting: &'a Setting, index: u32) -> io::Result<Member<'a>> {
        // Names made or removed in a series, entries of a directory that is read.
        let series = setting.files;
        let directory = setting.directory.join(index.to_string());
        fs::create_dir_all(&directory)?;
        let begin_anew = |paths: &[PathBuf]| paths.iter().try_for_each(|path| remove(path));
        Ok(match self {
            Self::Open | Self::Stat => {
                let deep = directory.join("a/b/c/d");
                fs::create_dir_all(&deep)?;
                let leaf = deep.join("leaf");
                touch(&leaf)?;
                match self {
                    Self::Open => Member::new(move |_| File::open(&leaf).map(drop)),
                    _ => Member::new(move |_| fs::metadata(&leaf).map(drop)),
                }
            }
            Self::Create => {
                let files = paths(&directory, "file", series);
                begin_anew(&files)?;
                let again = files.clone();
                Member::new(move |at| File::create(&files[at as usize]).map(drop))
                    .series(series, move |done| again[..done as usize].iter().try_for_each(fs::remove_file))
            }
            Self::Unlink => {
                let files = paths(&directory, "file", series);
                files.iter().try_for_each(|path| touch(path))?;
                let again = files.clone();
                Member::new(move |at| fs::remove_file(&files[at as usize]))
                    .series(series, move |done| again[..done as usize].iter().try_for_each(|path| touch(path)))
            }
            Self::Rename => {
                let (from, to) = (paths(&directory, "from", series), paths(&directory, "to", series));
                begin_anew(&to)?;
                from.iter().try_for_each(|path| touch(path))?;
                let again: Vec<_> = to.iter().cloned().zip(from.iter().cloned()).collect();
                Member::new(move |at| fs::rename(&from[at as usize], &to[at as usize])).series(series, move |done| {
                    again[..done as usize].iter().try_for_each(|(to, from)| fs::rename(to, from))
                })
            }
            Self::MakeDirectory => {
                let directories = paths(&directory, "directory", series);
                fs::remove_dir_all(&directory)?;
                fs::create_dir(&directory)?;
                let again = directories.clone();
                Member::new(move |at| fs::create_dir(&directories[at as usize]))
                    .series(series, move |done| remove_directories(&again[..done as usize]))
            }
            Self::ReadDirectory => {
                paths(&directory, "file", series).iter().try_for_each(|path| touch(path))?;
                let read = move |_| {
                    let mut count = 0;
                    for entry in fs::read_dir(&directory)? {
                        std::hint::black_box(entry?.file_name());
                        count += 1;
                    }
                    if count == series { Ok(()) } else { Err(io::Error::other(format!("{count} entries"))) }
                };
                Member::new(read).operations_per_call(series)
            }
            Self::CreateUnlink => {
                let file = directory.join("brief");
                remove(&file)?;
                Member::new(move |_| {
                    drop(File::create(&file)?);
                    fs::remove_file(&file)
                })
            }
        })
    }
}
