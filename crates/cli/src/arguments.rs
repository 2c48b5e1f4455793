//! The command line: its words, their help, and nothing that is done with them.

use crate::output::{parse_mebibytes, parse_size};
use crate::words::{text, text_as};
use clap::{Args, Parser, Subcommand, ValueEnum, ValueHint, value_parser};
use std::ffi::OsString;
use std::path::PathBuf;

const FIRST: &str = "The first steps:
  gannet mkfs /dev/shm/volume --size 1G
  gannet run /dev/shm/volume -- bash        a shell that sees it at /gannet
  gannet info /dev/shm/volume
  gannet bench --quick                      what it is worth on this machine

Exit codes: 0 done, 1 failed, 2 wrong usage, 70 a bug in Gannet, 130 interrupted; fsck has those of fsck programs, run its program's.
Errors are one line on standard error: what, where, what to do.";
const SET: &str = "Examples:
  gannet set /dev/shm/volume /mail --data cow          writes there happen whole or not at all
  gannet set /dev/shm/volume -R /                      how the data of each file is written
  gannet run /dev/shm/volume -- chattr +C /gannet/f    the same as --data inplace of /f";
const RUN: &str = "Examples:
  gannet run /dev/shm/volume -- bash
  gannet run /dev/shm/volume:/data -- sqlite3 /data/database
  gannet run /dev/shm/a:/a --volume /dev/shm/b:/b -- cp -r /a/directory /b
  gannet run --stats /dev/shm/volume -- make -C /gannet/source";
const MOUNT: &str = "Examples:
  gannet mount /dev/shm/volume /mnt
  gannet mount -o ro,allow_other /dev/shm/volume /mnt
  umount /mnt";
const BENCH: &str = "Examples:
  gannet bench latency --quick --summary
  gannet bench latency threads --peers gannet,tmpfs,disk
  gannet bench --report results";

/// File systems in user space at memory speed.
///
/// A volume is a file, or several, on /dev/shm, on persistent memory (a DAX file system or device), or on a disk. Programs use it
/// under `gannet run`, without changes and without the kernel in the way, or through `gannet mount`.
#[derive(Debug, Parser)]
#[command(name = "gannet", version, max_term_width = 100, arg_required_else_help = true, after_help = FIRST)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Mkfs(Mkfs),
    Info(Info),
    Set(Set),
    Fsck(Fsck),
    Dump(Dump),
    Stat(Stat),
    Run(Run),
    Mount(Mount),
    Bench(Bench),
    Completion(Completion),
    Man(Man),
}

/// Make a volume.
///
/// All its space is reserved now, so that a full disk never becomes an error later, and made of huge pages where the
/// medium has them. A volume can span several files, each on a memory of its own (--and): all of them are needed to use it, it is
/// named by the first, and survives what the weakest survives.
#[derive(Debug, Args)]
pub(crate) struct Mkfs {
    /// The file to make, or a DAX device
    #[arg(value_hint = ValueHint::FilePath)]
    pub(crate) volume: PathBuf,
    /// Size, with a suffix K, M, G or T (powers of 1024), rounded down to 4 KiB; a DAX device is used whole
    #[arg(long, short, value_parser = text_as(parse_size), allow_negative_numbers = true)]
    pub(crate) size: Option<u64>,
    /// A further file of the volume, or a DAX device, on another memory for instance; can be given up to seven times
    #[arg(long, value_name = "FILE[:SIZE]", value_parser = text_as(parse_further), value_hint = ValueHint::FilePath)]
    pub(crate) and: Vec<Further>,
    /// A name for people, up to 64 bytes
    #[arg(long, short, default_value = "", value_parser = text())]
    pub(crate) label: String,
    /// Replace a volume, or a file that is not empty
    #[arg(long, short)]
    pub(crate) force: bool,
    /// How data is written where a file does not say otherwise
    #[arg(long, value_enum, default_value_t = Data::Inplace)]
    pub(crate) data: Data,
    /// Execute the instructions that persistent memory needs although the medium does not, to measure what they cost
    #[arg(long)]
    pub(crate) emulate_pmem: bool,
}

/// A further file of a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Further {
    /// The file, or a DAX device.
    pub(crate) path: PathBuf,
    /// How large it shall be.
    pub(crate) size: Option<u64>,
}

/// A file, with its size behind the last colon if there is one.
fn parse_further(text: &str) -> Result<Further, String> {
    let path = |path: &str| if path.is_empty() { Err("which file?".to_owned()) } else { Ok(PathBuf::from(path)) };
    match text.rsplit_once(':') {
        Some((file, size)) if size.starts_with(|digit: char| digit.is_ascii_digit()) => {
            Ok(Further { path: path(file)?, size: Some(parse_size(size)?) })
        }
        _ => Ok(Further { path: path(text)?, size: None }),
    }
}

/// How data is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Data {
    /// Where it is: fastest; a crash can tear a write at 8 bytes
    Inplace,
    /// To new blocks: each write happens whole or not at all
    Cow,
}

impl Data {
    /// As it is said on the command line.
    pub(crate) const fn word(self) -> &'static str {
        match self {
            Self::Inplace => "inplace",
            Self::Cow => "cow",
        }
    }
}

/// How data of a file is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum FileData {
    /// Where it is, whatever the volume's default is; chattr +C says the same
    Inplace,
    /// To new blocks, whatever the volume's default is: each write happens whole or not at all
    Cow,
    /// As the volume was made or is opened
    Default,
}

impl FileData {
    /// Copy-on-write or in place, if that is said.
    pub(crate) const fn copy_on_write(self) -> Option<bool> {
        match self {
            Self::Inplace => Some(false),
            Self::Cow => Some(true),
            Self::Default => None,
        }
    }
}

/// Say what a volume is, what it survives, and who uses it.
#[derive(Debug, Args)]
pub(crate) struct Info {
    /// The volume
    #[arg(value_hint = ValueHint::FilePath)]
    pub(crate) volume: PathBuf,
    /// Print JSON, for programs
    #[arg(long)]
    pub(crate) json: bool,
}

/// Check a volume, and repair it.
///
/// Exit codes: 0 sound, 1 repaired, 4 damaged and not repaired, 8 could not be checked, 16 wrong usage. A volume that was not
/// closed cleanly is no damage: the next use recovers it, and so does --repair. Beside somebody who has the volume open, what is
/// just being changed can look like damage: then there is no verdict, but exit code 8.
#[derive(Debug, Args)]
pub(crate) struct Fsck {
    /// The volume
    #[arg(value_hint = ValueHint::FilePath)]
    pub(crate) volume: PathBuf,
    /// Repair what is damaged; nobody may have the volume open
    #[arg(long, short)]
    pub(crate) repair: bool,
    /// Make this file empty, to give a repair room on a full volume that cannot be opened; an inode's number or an absolute path on
    /// the volume
    #[arg(long, value_name = "FILE", requires = "repair")]
    pub(crate) give_up: Vec<OsString>,
    /// Print JSON, for programs
    #[arg(long)]
    pub(crate) json: bool,
}

/// Set how the data of files is written.
///
/// Data is written in place or copy-on-write as the volume was made, or as a file says by a flag. What is made in a directory begins
/// with the directory's flag. Without --data it is shown.
#[derive(Debug, Args)]
#[command(after_help = SET)]
pub(crate) struct Set {
    /// The volume
    #[arg(value_hint = ValueHint::FilePath)]
    pub(crate) volume: PathBuf,
    /// Files or directories of the volume, by their paths on it
    #[arg(required = true)]
    pub(crate) paths: Vec<OsString>,
    /// How data is written from now on
    #[arg(long, value_enum)]
    pub(crate) data: Option<FileData>,
    /// Also of everything below
    #[arg(long, short = 'R')]
    pub(crate) recursive: bool,
}

/// Print what stands on a volume: structures and logs.
#[derive(Debug, Args)]
pub(crate) struct Dump {
    /// The volume
    #[arg(value_hint = ValueHint::FilePath)]
    pub(crate) volume: PathBuf,
    /// An inode's number, or an absolute path on the volume; without, the volume itself
    pub(crate) what: Option<OsString>,
}

/// Say what is being done on a volume.
///
/// Counts since the first of those who have it open opened it.
#[derive(Debug, Args)]
pub(crate) struct Stat {
    /// The volume
    #[arg(value_hint = ValueHint::FilePath)]
    pub(crate) volume: PathBuf,
    /// Show every second what has been done in it: a page on a terminal, otherwise a line
    #[arg(long, short)]
    pub(crate) watch: bool,
    /// Print JSON, for programs; with --watch an object each second, on a line of its own
    #[arg(long)]
    pub(crate) json: bool,
}

/// Run a program that sees a volume.
///
/// The volume appears at a path for this program and those that it starts, and nowhere else. Without a program, the shell
/// of $SHELL starts there.
#[derive(Debug, Args)]
#[command(after_help = RUN)]
pub(crate) struct Run {
    /// The volume, and behind a colon the absolute path at which the program sees it (/gannet if there is none); `memory:` is
    /// a volume in the memory of each process, gone with it
    #[arg(value_name = "VOLUME[:PATH]", value_hint = ValueHint::FilePath)]
    pub(crate) volume: OsString,
    /// Another volume, and where the program sees it
    #[arg(long = "volume", short = 'v', value_name = "VOLUME:PATH")]
    pub(crate) others: Vec<OsString>,
    /// Where the program sees the first volume
    #[arg(long, hide = true)]
    pub(crate) at: Option<PathBuf>,
    /// Bound on the shared memory for indexes, with a suffix K, M or G; whoever opens the volume first decides
    #[arg(long, value_name = "SIZE", value_parser = text_as(parse_size), default_value = "1G")]
    pub(crate) arena_max: u64,
    /// How data is written where a file does not say otherwise, instead of as the volumes were made; for these programs alone
    #[arg(long, value_enum)]
    pub(crate) data: Option<Data>,
    /// Say at the end what was done on the volumes meanwhile, by operation, and how long it took
    #[arg(long)]
    pub(crate) stats: bool,
    /// Start the program in this directory
    #[arg(long, value_hint = ValueHint::DirPath)]
    pub(crate) directory: Option<PathBuf>,
    /// The program and its arguments
    #[arg(last = true, value_hint = ValueHint::CommandWithArguments)]
    pub(crate) command: Vec<OsString>,
}

/// Mount a volume for all programs, through the kernel.
///
/// Stays until it is unmounted (umount or fusermount3 -u), or, in the foreground, until it is interrupted. While no other
/// process has the volume open, the kernel caches; from the moment one has, everybody sees every change at once.
#[derive(Debug, Args)]
#[command(after_help = MOUNT)]
pub(crate) struct Mount {
    /// The volume; absent with --memory
    #[arg(value_hint = ValueHint::FilePath)]
    pub(crate) volume: Option<PathBuf>,
    /// The directory to mount on
    #[arg(value_hint = ValueHint::DirPath)]
    pub(crate) directory: Option<PathBuf>,
    /// Options as of mount(8), separated by commas, or each by itself
    ///
    /// ro, rw, noatime, strictatime, noexec, allow_other, uid=N, gid=N, umask=OCTAL, suid and dev (root, and volumes that only root can
    /// write; allow_suid and allow_dev for mount(8)), fsname=NAME, subtype=NAME; remount changes those of the mount that is there; cache=automatic, coherent (never), exclusive (nobody else can open the volume), writeback
    /// (likewise, and what was not synced is lost with the server); data=cow or inplace where a file does not say otherwise; cache_deadline=SECONDS that others wait for an automatic
    /// mount to stop caching (2); locks=shared or local; transport=automatic, ring (FUSE over io_uring) or classic; enable_ring
    /// turns FUSE over io_uring on where the kernel has it off (root; it stays on until the machine boots); threads=N. What fstab
    /// adds for others (x-..., nofail, _netdev) is ignored.
    #[arg(long, short, value_parser = text())]
    pub(crate) options: Vec<String>,
    /// Bound on the shared memory for indexes, with a suffix K, M or G; whoever opens the volume first decides
    #[arg(long, value_name = "SIZE", value_parser = text_as(parse_size), default_value = "1G")]
    pub(crate) arena_max: u64,
    /// Do not go to the background
    #[arg(long, short)]
    pub(crate) foreground: bool,
    /// Mount an empty file system in memory, gone with the mount, of that size: MiB, or with a suffix K, M or G (1G)
    #[arg(long, value_name = "SIZE", num_args = 0..=1, require_equals = true, default_missing_value = "1G")]
    #[arg(value_parser = text_as(parse_mebibytes))]
    pub(crate) memory: Option<u64>,
    /// Make `mount -t fuse.gannet` and fstab work, by a link to this program in the directory where mount(8) looks
    #[arg(long, value_name = "DIRECTORY", num_args = 0..=1, require_equals = true, default_missing_value = "/sbin")]
    pub(crate) install_helper: Option<PathBuf>,
    /// Leave the session of the terminal
    #[arg(long, hide = true)]
    pub(crate) detached: bool,
}

/// Measure this machine: Gannet beside tmpfs, the disk and others.
///
/// Each table is measured in rounds that take turns; figures are medians with their spread. What a machine lacks is skipped and
/// named. Root is needed for nothing but ext4 and xfs in images of their own.
#[derive(Debug, Args)]
#[command(after_help = BENCH)]
pub(crate) struct Bench {
    /// The tables; all if none is named
    #[arg(value_enum)]
    pub(crate) what: Vec<BenchTable>,
    /// Everything at its smallest: seconds instead of minutes, and figures that only show that it works
    #[arg(long, short)]
    pub(crate) quick: bool,
    /// Print JSON, for programs; docs/bench.schema.json describes it
    #[arg(long)]
    pub(crate) json: bool,
    /// Write a page with plots (index.html), each plot (.svg) and the figures (results.json) into this directory
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) report: Option<PathBuf>,
    /// Tails and the medium's cost of all peers, not only Gannet's: p50, p99, p99.99, fences, lines, bytes
    #[arg(long, short)]
    pub(crate) details: bool,
    /// Of the times of operations only the few that say most, and by how much others differ from Gannet
    #[arg(long, short, conflicts_with_all = ["json", "details"])]
    pub(crate) summary: bool,
    /// Measure only these, separated by commas: gannet, gannet-pmem, gannet-pmem-cow, gannet-aged, gannet-dax, gannet-mount,
    /// gannet-mount-ring, gannet-mount-shared, tmpfs, libfuse, ext4-dax, xfs-dax, ext4, xfs, disk, or a name of --directory
    #[arg(long, short, value_name = "NAMES", value_delimiter = ',', value_parser = text())]
    pub(crate) peers: Vec<String>,
    /// Measure a directory as well, for instance dax=/mnt/pmem
    #[arg(long, value_name = "NAME=DIR", value_parser = text_as(name_and_directory))]
    pub(crate) directory: Vec<(String, PathBuf)>,
    /// Rounds, of which the median is taken (7)
    #[arg(long, value_parser = value_parser!(u32).range(1..))]
    pub(crate) rounds: Option<u32>,
    /// Up to so many threads and processes (twice the processors)
    #[arg(long, value_name = "COUNT", value_parser = value_parser!(u32).range(1..))]
    pub(crate) workers: Option<u32>,
    /// Size of each volume (2 GiB, or a tenth of the free memory if that is less)
    #[arg(long, value_name = "SIZE", value_parser = text_as(parse_size))]
    pub(crate) volume_size: Option<u64>,
    /// Where volumes are made: a directory on persistent memory, for instance
    #[arg(long, value_name = "DIR", default_value = "/dev/shm", value_hint = ValueHint::DirPath)]
    pub(crate) medium: PathBuf,
    /// A directory on the disk to compare with; where this program is, if none is named
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) disk: Option<PathBuf>,
}

/// What `gannet bench` measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum BenchTable {
    /// Each operation by itself, beside the machine's limits; what a write consists of
    Latency,
    /// 4 KiB reads and writes by 1, 2, 4 … threads and processes
    Threads,
    /// FxMark's shapes: private and shared files and directories, by threads and processes
    Meta,
    /// filebench's fileserver, varmail, webserver and webproxy
    Files,
    /// SQLite, Redis, RocksDB and PostgreSQL, where they are installed
    Apps,
    /// Sequential and random reads and writes of 1 KiB to 1 MiB
    Bandwidth,
    /// Many short programs, and a shell-heavy configure
    Exec,
    /// Opening a volume, closed cleanly and after a crash, by number and size of files
    Recovery,
}

fn name_and_directory(text: &str) -> Result<(String, PathBuf), String> {
    match text.split_once('=') {
        Some((name, path)) if !name.is_empty() && !path.is_empty() => Ok((name.into(), path.into())),
        _ => Err("expected NAME=DIR".into()),
    }
}

/// Print completions for a shell.
#[derive(Debug, Args)]
pub(crate) struct Completion {
    /// The shell
    #[arg(value_enum)]
    pub(crate) shell: clap_complete::Shell,
}

/// Write the manual pages into a directory.
#[derive(Debug, Args)]
pub(crate) struct Man {
    /// The directory, which must exist
    #[arg(value_hint = ValueHint::DirPath)]
    pub(crate) directory: PathBuf,
}
