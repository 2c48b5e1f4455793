//! Gannet's own volumes: made by the command itself, used under `gannet run` and through `gannet mount`.

use super::{Access, Peer, Undo, helped};
use crate::bench::Bench;
use crate::model::PeerFacts;
use crate::work::protocol::{Job, Limit};
use gannet_media::{Medium, OpenOptions};
use gannet_vfs::FileSystem;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A volume's kind.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Gannet {
    /// Persistence instructions on memory that does not need them.
    pub(crate) emulated: bool,
    pub(crate) copy_on_write: bool,
    /// Filled to 90 % and churned.
    pub(crate) aged: bool,
}

/// Share of an aged volume that is full.
const FULL: f64 = 0.9;

/// Makes a volume at a path.
pub(crate) fn make_volume(bench: &Bench, path: &Path, bytes: u64, kind: Gannet) -> Result<(), String> {
    let mut command = Command::new(&bench.settings.gannet);
    command.arg("mkfs").arg(path).arg("--size").arg(bytes.to_string());
    if kind.emulated {
        command.arg("--emulate-pmem");
    }
    if kind.copy_on_write {
        command.args(["--data", "cow"]);
    }
    helped(&mut command)
}

fn facts(name: &str, path: &Path, kind: Gannet, how: &str) -> Result<PeerFacts, String> {
    let options = OpenOptions { read_only: true, ..OpenOptions::default() };
    let medium = Medium::open(path, options).map_err(|error| error.to_string())?;
    let on = medium.kind().name();
    let pages = match medium.page_report(16).map(|report| report.usual_page_bytes()) {
        Ok(4096) => ", 4 KiB pages",
        Ok(_) => ", huge pages",
        Err(_) => "",
    };
    let emulated = if kind.emulated { ", persistent memory emulated" } else { "" };
    let aged = if kind.aged { ", aged to 90 % full" } else { "" };
    Ok(PeerFacts {
        name: name.into(),
        about: format!("Gannet {how}{aged}"),
        data: if kind.copy_on_write { "copy-on-write" } else { "in place" }.into(),
        medium: format!("{on}{pages}{emulated}"),
        survives: medium.survives().into(),
    })
}

fn volume(bench: &Bench, base: &Path, name: &str, kind: Gannet) -> Result<(PathBuf, Undo), String> {
    let directory = base.join(name);
    let undo = Undo::remove(bench, &directory);
    std::fs::create_dir_all(&directory).map_err(|error| format!("{}: {error}", directory.display()))?;
    let path = directory.join("volume");
    make_volume(bench, &path, bench.settings.volume_bytes, kind)?;
    Ok((path, undo))
}

/// A volume under `gannet run`.
pub(super) fn under_run(bench: &Bench, name: &str, kind: Gannet) -> Result<Peer, String> {
    under_run_at(bench, &bench.medium_directory(), name, kind)
}

/// On persistent memory, wherever the machine has it mounted.
pub(super) fn on_dax(bench: &Bench, name: &str) -> Result<Peer, String> {
    let place = Bench::own(&super::kernel::dax_place(&["ext4", "xfs"])?);
    let whole = Undo::remove(bench, &place);
    let mut peer = under_run_at(bench, &place, name, Gannet::default())?;
    peer.undo.insert(0, whole);
    Ok(peer)
}

fn under_run_at(bench: &Bench, base: &Path, name: &str, kind: Gannet) -> Result<Peer, String> {
    let (path, undo) = volume(bench, base, name, kind)?;
    let mut peer = Peer {
        facts: facts(name, &path, kind, "under `gannet run`")?,
        access: Access::Run { gannet: bench.settings.gannet.clone(), volume: path.clone() },
        volume: Some(path),
        undo: vec![undo],
        keeper: bench.keeper.clone(),
        worker: None,
        span_bytes_max: u64::MAX,
    };
    if kind.aged {
        age(bench, &mut peer)?;
    }
    Ok(peer)
}

/// Lets a volume grow old.
fn age(bench: &Bench, peer: &mut Peer) -> Result<(), String> {
    let bytes = bench.settings.volume_bytes;
    let job = Job {
        shape: "aged".into(),
        size_bytes: 1,
        span_bytes: (bytes as f64 * FULL) as u64,
        files: 1,
        workers: 1,
        processes: false,
        limit: Limit::Milliseconds(0),
        member: None,
    };
    peer.worker(&bench.settings.workload)?.prepare(&job)?;
    let path = peer.volume.clone().unwrap_or_default();
    let options = gannet_open::Options { read_only: true, ..gannet_open::Options::default() };
    let volume = gannet_open::open_volume(&path, options).map_err(|error| error.to_string())?;
    let space = volume.statistics().map_err(|error| error.to_string())?;
    // What is free holds the files of what is measured, which are others for each number of workers, and as much of logs and names.
    let numbers = u64::from(bench.settings.workers_max.max(1).ilog2()) + 1;
    peer.span_bytes_max = space.blocks_available * u64::from(space.block_bytes) / (numbers + 1);
    Ok(())
}

/// How the kernel and the process that serves a mount reach each other.
#[derive(Clone, Copy, Debug)]
pub(super) enum Transport {
    Classic,
    Ring,
}

/// A volume mounted; `cache` is an option of the mount, or nothing for the usual one.
pub(super) fn mounted(bench: &Bench, name: &str, transport: Transport, cache: &str) -> Result<Peer, String> {
    let (path, undo) = volume(bench, &bench.medium_directory(), name, Gannet::default())?;
    let (option, by) = match transport {
        Transport::Classic => ("transport=classic", "mounted, /dev/fuse"),
        Transport::Ring => ("transport=ring", "mounted, FUSE over io_uring"),
    };
    let how = if cache.is_empty() { by.to_owned() } else { format!("{by}, as while others use it too") };
    let facts = facts(name, &path, Gannet::default(), &how)?;
    let target = path.with_file_name("mounted");
    std::fs::create_dir_all(&target).map_err(|error| format!("{}: {error}", target.display()))?;
    let peer = Peer {
        facts,
        access: Access::Directory(target.clone()),
        // Whoever opened it for its counters would be another user of the volume, and the kernel stop caching.
        volume: None,
        undo: vec![undo, Undo::unmount(bench, &target)],
        keeper: bench.keeper.clone(),
        worker: None,
        span_bytes_max: u64::MAX,
    };
    helped(
        Command::new(&bench.settings.gannet)
            .args(["mount", "--options", &super::fuse_options(&[option, cache])])
            .arg(&path)
            .arg(&target),
    )?;
    Ok(peer)
}
