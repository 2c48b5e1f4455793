//! What a call can be. A shape makes ready what its calls need, once, and gives each worker its calls.
//!
//! | file | shapes |
//! | --- | --- |
//! | `data` | reads and writes: random, sequential, appends, fsync |
//! | `names` | open, stat, create, unlink, rename, mkdir, readdir |
//! | `fxmark` | the shapes of FxMark (ATC'16) |
//! | `filebench` | the mixes of filebench's personalities |
//! | `volume` | many files; a volume that grows old |

mod data;
mod filebench;
mod fxmark;
mod names;
mod random;
mod volume;

use super::measure::Member;
use super::protocol::Job;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

pub use filebench::MIXES;
pub use fxmark::SHAPES as FXMARK_SHAPES;
pub(crate) use random::Random;

/// Where and how large.
#[derive(Clone, Debug)]
pub struct Setting {
    /// A directory that only this shape uses.
    pub directory: PathBuf,
    /// Bytes of one read or write.
    pub size_bytes: u64,
    /// Bytes of all files together.
    pub span_bytes: u64,
    /// Number of files, where there are many.
    pub files: u64,
    /// Workers.
    pub workers: u32,
}

/// A kind of call.
pub trait Shape: Sync {
    /// Name of the directory it needs; shapes and settings that can use the same files have the same.
    fn place(&self, job: &Job) -> String;

    /// Makes ready what the calls need. Once for each place.
    ///
    /// # Errors
    /// Those of the file system.
    fn prepare(&self, setting: &Setting) -> io::Result<()>;

    /// The calls of a worker.
    ///
    /// # Errors
    /// Those of the file system.
    fn member<'a>(&'a self, setting: &'a Setting, index: u32) -> io::Result<Member<'a>>;
}

/// The shape with a name.
pub fn find(name: &str) -> Option<Box<dyn Shape>> {
    if name == "empty" {
        return Some(Box::new(Empty));
    }
    if let Some(shape) = name.strip_prefix("fxmark ") {
        return fxmark::find(shape);
    }
    if let Some(mix) = name.strip_prefix("filebench ") {
        return filebench::find(mix);
    }
    data::find(name).or_else(|| names::find(name)).or_else(|| volume::find(name))
}

/// The empty driver: what measuring itself costs.
struct Empty;

impl Shape for Empty {
    fn place(&self, _: &Job) -> String {
        "empty".into()
    }

    fn prepare(&self, _: &Setting) -> io::Result<()> {
        Ok(())
    }

    fn member<'a>(&'a self, _: &'a Setting, _: u32) -> io::Result<Member<'a>> {
        Ok(Member::new(|index| {
            std::hint::black_box(index);
            Ok(())
        }))
    }
}

/// Fills a file up to a length, in pieces of a mebibyte, from where it ends now.
fn fill(path: &Path, length: u64) -> io::Result<File> {
    let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
    let piece: Vec<u8> = (0..1 << 20).map(|at: u32| (at * 7 + (at >> 8)) as u8).collect();
    let mut at = file.metadata()?.len();
    while at < length {
        let count = (length - at).min(piece.len() as u64);
        file.write_all_at(&piece[..count as usize], at)?;
        at += count;
    }
    Ok(file)
}

/// Makes an empty file if it is not there.
fn touch(path: &Path) -> io::Result<()> {
    OpenOptions::new().write(true).create(true).truncate(false).open(path).map(drop)
}

/// Removes a file if it is there.
fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}
