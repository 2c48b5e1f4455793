//! The file systems that are measured beside each other, each made ready when it is first needed and removed at the end.
//!
//! | file | peers |
//! | --- | --- |
//! | `volumes` | Gannet under `run`: plain, emulated persistent memory, copy-on-write, aged, on DAX; and mounted |
//! | `kernel` | tmpfs, the disk, ext4 and xfs in images on it and where they are mounted with DAX, directories that the user names |
//! | `libfuse` | a file system in memory over libfuse, compiled here |
//! | `worker` | the workload program at work for a peer |

mod kernel;
mod libfuse;
mod volumes;
pub(crate) mod worker;

use crate::bench::Bench;
use crate::keeper::{self, Keeper};
use crate::model::PeerFacts;
use gannet_logfs::{LogFs, VolumeCounters};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use worker::Worker;

use volumes::Transport;
pub(crate) use volumes::{Gannet, make_volume};

/// Where programs under `gannet run` see the volume.
const PLACE: &str = "/gannet-bench-volume";

/// Options of a mount that caches as little as one whose volume others have open too.
const SHARED: &str = "cache=coherent";

/// The peers that are there without being asked for, in the order of columns.
pub(crate) const ALL: [&str; 15] = [
    "gannet",
    "gannet-pmem",
    "gannet-pmem-cow",
    "gannet-aged",
    "gannet-dax",
    "gannet-mount",
    "gannet-mount-ring",
    "gannet-mount-shared",
    "tmpfs",
    "libfuse",
    "ext4-dax",
    "xfs-dax",
    "ext4",
    "xfs",
    "disk",
];

/// Those of them that a quick run has: what takes longer to make ready than to measure is left out.
pub(crate) const QUICK: [&str; 6] = ["gannet", "gannet-pmem", "gannet-mount", "tmpfs", "libfuse", "disk"];

/// How programs reach a peer.
enum Access {
    /// As a directory like any other.
    Directory(PathBuf),
    /// Under `gannet run`.
    Run { gannet: PathBuf, volume: PathBuf },
}

/// What is undone in the end.
enum Undo {
    Remove(PathBuf),
    /// Unmounted by whoever may; the image or the volume behind it goes with its directory.
    Unmount(PathBuf),
}

impl Undo {
    /// A directory, which is about to be made.
    fn remove(bench: &Bench, path: &Path) -> Self {
        bench.keeper.promise(&keeper::Promise::Remove(path.to_owned()));
        Self::Remove(path.to_owned())
    }

    /// A mount, which is about to be made.
    fn unmount(bench: &Bench, path: &Path) -> Self {
        bench.keeper.promise(&keeper::Promise::Unmount(path.to_owned()));
        Self::Unmount(path.to_owned())
    }
}

/// A file system to be measured.
pub(crate) struct Peer {
    pub(crate) facts: PeerFacts,
    access: Access,
    /// The volume, if it is Gannet's.
    volume: Option<PathBuf>,
    undo: Vec<Undo>,
    keeper: Keeper,
    worker: Option<Worker>,
    /// How large files may be, where less than elsewhere.
    pub(crate) span_bytes_max: u64,
}

/// Makes a peer ready, or says why it cannot be had here.
pub(crate) fn make(bench: &Bench, name: &str) -> Result<Peer, String> {
    if bench.keeper.is_stopped() {
        return Err(keeper::INTERRUPTED.into());
    }
    if let Some((_, path)) = bench.settings.directories.iter().find(|(known, _)| known == name) {
        return kernel::directory(bench, name, path);
    }
    match name {
        "gannet" => volumes::under_run(bench, name, Gannet::default()),
        "gannet-pmem" => volumes::under_run(bench, name, Gannet { emulated: true, ..Gannet::default() }),
        "gannet-pmem-cow" => {
            volumes::under_run(bench, name, Gannet { emulated: true, copy_on_write: true, ..Gannet::default() })
        }
        "gannet-aged" => volumes::under_run(bench, name, Gannet { emulated: true, aged: true, ..Gannet::default() }),
        "gannet-dax" => volumes::on_dax(bench, name),
        "gannet-mount" => volumes::mounted(bench, name, Transport::Classic, ""),
        "gannet-mount-ring" => volumes::mounted(bench, name, Transport::Ring, ""),
        "gannet-mount-shared" => volumes::mounted(bench, name, Transport::Ring, SHARED)
            .or_else(|_| volumes::mounted(bench, name, Transport::Classic, SHARED)),
        "tmpfs" => kernel::tmpfs(bench),
        "disk" => kernel::disk(bench),
        "ext4-dax" => kernel::dax(bench, name, "ext4"),
        "xfs-dax" => kernel::dax(bench, name, "xfs"),
        "ext4" | "xfs" => kernel::image(bench, name),
        "libfuse" => libfuse::make(bench),
        _ => Err(format!("no peer has this name; there are {} and those of --directory", ALL.join(", "))),
    }
}

impl Peer {
    /// A directory that programs of this peer can use.
    pub(crate) fn directory(&self) -> &Path {
        match &self.access {
            Access::Directory(path) => path,
            Access::Run { .. } => Path::new(PLACE),
        }
    }

    /// A command that runs `program` where it sees the peer.
    pub(crate) fn command(&self, program: &Path) -> Command {
        match &self.access {
            Access::Directory(_) => Command::new(program),
            Access::Run { gannet, volume } => {
                let mut command = Command::new(gannet);
                let mut volume = OsString::from(volume);
                volume.push(":");
                volume.push(PLACE);
                command.arg("run").arg(volume).arg("--").arg(program);
                command
            }
        }
    }

    /// Whether it is under `gannet run`.
    pub(crate) fn is_run(&self) -> bool {
        matches!(self.access, Access::Run { .. })
    }

    /// The workload program, started if it is not at work.
    pub(crate) fn worker(&mut self, workload: &Path) -> Result<&mut Worker, String> {
        if self.worker.is_none() {
            let directory = self.directory().join(format!("work-{}", std::process::id()));
            let mut command = self.command(workload);
            command.arg(directory).stderr(Stdio::null());
            self.worker = Some(Worker::start(command, &self.keeper)?);
        }
        self.worker.as_mut().ok_or_else(|| "the workload program did not start".into())
    }

    /// The file of its volume, if it is Gannet's.
    pub(crate) fn volume_path(&self) -> Option<PathBuf> {
        self.volume.clone()
    }

    /// Ends the workload program; the next use starts another.
    pub(crate) fn rest(&mut self) {
        self.worker = None;
    }

    /// The volume's counters can be looked at while somebody has it open.
    pub(crate) fn counters(&self) -> Option<Counters> {
        let options = gannet_open::Options { read_only: true, ..gannet_open::Options::default() };
        gannet_open::open_volume(self.volume.as_ref()?, options).ok().map(Counters)
    }
}

/// A look at a volume's counters.
pub(crate) struct Counters(Arc<LogFs>);

impl Counters {
    pub(crate) fn now(&self) -> VolumeCounters {
        self.0.counters().unwrap_or_default()
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.worker = None;
        for undo in self.undo.drain(..).rev() {
            // What cannot be undone is named by the next run of the program that finds it; nothing better can be done here.
            match undo {
                Undo::Remove(path) => {
                    let _ = std::fs::remove_dir_all(path);
                }
                Undo::Unmount(path) => keeper::unmount(&path),
            }
        }
    }
}

/// Options of a FUSE mount: root's are for all users, since some programs refuse to work for root.
fn fuse_options(wanted: &[&str]) -> String {
    let others = if rustix::process::geteuid().is_root() { "allow_other" } else { "" };
    wanted.iter().copied().chain([others]).filter(|option| !option.is_empty()).collect::<Vec<_>>().join(",")
}

/// Runs a helper; if it fails, its complaint: the command's own, which may have told its progress before, or the first line.
fn helped(command: &mut Command) -> Result<(), String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.stdin(Stdio::null()).output().map_err(|error| format!("{program}: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let own = said.lines().find_map(|line| line.strip_prefix("gannet: "));
    let first = || said.lines().find(|line| !line.trim().is_empty());
    Err(own.or_else(first).map_or(format!("{program}: {}", output.status), str::to_owned))
}
