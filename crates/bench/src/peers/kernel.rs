//! The kernel's file systems, in a directory each.

use super::{Access, Peer, Undo, helped};
use crate::bench::Bench;
use crate::model::PeerFacts;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

/// A mount, as `/proc/self/mountinfo` has it.
struct MountFacts {
    file_system: String,
    source: String,
    options: String,
}

/// The mount that a path is on.
fn mount_of(path: &Path) -> Option<MountFacts> {
    let path = path.canonicalize().ok()?;
    let text = fs::read_to_string("/proc/self/mountinfo").ok()?;
    let mounts = text.lines().filter_map(|line| {
        let (before, after) = line.split_once(" - ")?;
        let place = PathBuf::from(before.split(' ').nth(4)?.replace("\\040", " "));
        let mut after = after.split(' ');
        let (file_system, source, options) = (after.next()?, after.next()?, after.next()?);
        path.starts_with(&place).then(|| {
            let facts = MountFacts { file_system: file_system.into(), source: source.into(), options: options.into() };
            (place.components().count(), facts)
        })
    });
    // Of two on one place the later hides the earlier.
    mounts.max_by_key(|(depth, _)| *depth).map(|(_, facts)| facts)
}

impl MountFacts {
    fn is_dax(&self) -> bool {
        self.options.split(',').any(|option| option == "dax" || option == "dax=always")
    }
}

/// Where a file system of one of some kinds is mounted with DAX, for writing.
pub(super) fn dax_place(kinds: &[&str]) -> Result<PathBuf, String> {
    let text = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let places = text.lines().filter_map(|line| Some(line.split(' ').nth(4)?.replace("\\040", " ")));
    let is_one = |path: &PathBuf| {
        mount_of(path).is_some_and(|facts| facts.is_dax() && kinds.contains(&facts.file_system.as_str()))
            && rustix::fs::access(path, rustix::fs::Access::WRITE_OK).is_ok()
    };
    let none = || format!("no {} is mounted with DAX here that may be written to", kinds.join(" or "));
    places.map(PathBuf::from).find(is_one).ok_or_else(none)
}

/// A file system of the kernel's on persistent memory, past the page cache.
pub(super) fn dax(bench: &Bench, name: &str, kind: &str) -> Result<Peer, String> {
    directory(bench, name, &dax_place(&[kind])?)
}

fn peer(
    bench: &Bench,
    name: &str,
    about: String,
    medium: String,
    survives: &str,
    directory: PathBuf,
    undo: Vec<Undo>,
) -> Peer {
    let facts = PeerFacts { name: name.into(), about, data: "its own".into(), medium, survives: survives.into() };
    Peer {
        facts,
        access: Access::Directory(directory),
        volume: None,
        undo,
        keeper: bench.keeper.clone(),
        worker: None,
        span_bytes_max: u64::MAX,
    }
}

fn make_directory(path: &Path) -> Result<(), String> {
    fs::create_dir_all(path).map_err(|error| format!("{}: {error}", path.display()))
}

const POWER_LOSS: &str = "power loss, what was synced";

/// What a directory's file system survives.
fn survives(facts: &MountFacts) -> &'static str {
    if facts.file_system == "tmpfs" { "the death of every process, not a reboot" } else { POWER_LOSS }
}

/// tmpfs, where volumes are by default as well.
pub(super) fn tmpfs(bench: &Bench) -> Result<Peer, String> {
    let base = bench.memory_directory();
    let directory = base.join("tmpfs");
    make_directory(&directory)?;
    let facts = mount_of(&directory).ok_or("/proc/self/mountinfo does not list it")?;
    if facts.file_system != "tmpfs" {
        return Err(format!("{} is on {}", directory.display(), facts.file_system));
    }
    let undo = vec![Undo::remove(bench, &directory)];
    Ok(peer(bench, "tmpfs", "tmpfs".into(), "memory (tmpfs)".into(), survives(&facts), directory, undo))
}

/// The disk that this was built on, or that the user names.
pub(super) fn disk(bench: &Bench) -> Result<Peer, String> {
    let directory = bench.disk_directory().join("disk");
    make_directory(&directory)?;
    let undo = vec![Undo::remove(bench, &directory)];
    let facts = mount_of(&directory).ok_or("/proc/self/mountinfo does not list it")?;
    let about = format!("{} of this machine", facts.file_system);
    Ok(peer(bench, "disk", about, facts.source.clone(), survives(&facts), directory, undo))
}

/// A directory of the user's choice, on a file system with DAX for instance.
pub(super) fn directory(bench: &Bench, name: &str, path: &Path) -> Result<Peer, String> {
    let directory = Bench::own(path).join(name);
    let undo = vec![Undo::remove(bench, &Bench::own(path)), Undo::remove(bench, &directory)];
    make_directory(&directory)?;
    let facts = mount_of(&directory).ok_or("/proc/self/mountinfo does not list it")?;
    let about = format!("{}{} at {}", facts.file_system, if facts.is_dax() { " with DAX" } else { "" }, path.display());
    Ok(peer(bench, name, about, facts.source.clone(), survives(&facts), directory, undo))
}

/// A file system in an image on the disk, mounted through a loop device: for root.
pub(super) fn image(bench: &Bench, kind: &str) -> Result<Peer, String> {
    if !rustix::process::geteuid().is_root() {
        return Err(format!(
            "mounting an image is for root; --directory {kind}=DIR measures a directory that is on {kind} already"
        ));
    }
    let directory = bench.disk_directory().join(kind);
    make_directory(&directory)?;
    let mut undo = vec![Undo::remove(bench, &directory)];
    let (image, target) = (directory.join("image"), directory.join("mounted"));
    make_directory(&target)?;
    File::create(&image)
        .and_then(|file| file.set_len(bench.settings.volume_bytes.max(512 << 20)))
        .map_err(|error| format!("{}: {error}", image.display()))?;
    let maker = format!("mkfs.{kind}");
    helped(Command::new(&maker).args(if kind == "ext4" { ["-q", "-F"] } else { ["-q", "-f"] }).arg(&image))?;
    undo.push(Undo::unmount(bench, &target));
    helped(Command::new("mount").args(["-o", "loop"]).arg(&image).arg(&target))?;
    let on =
        mount_of(&directory).map_or_else(String::new, |facts| format!(" on {} {}", facts.file_system, facts.source));
    let medium = format!("image{on} through a loop device");
    Ok(peer(bench, kind, kind.into(), medium, POWER_LOSS, target, undo))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_are_found() {
        assert_eq!(mount_of(Path::new("/proc/self")).unwrap().file_system, "proc");
        assert!(mount_of(Path::new("/nonexistent/place")).is_none());
    }
}
