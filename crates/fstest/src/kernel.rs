//! Times, modes and link counts after every operation, against the kernel: each row of a table is done on a tmpfs and on a
//! file system behind the interface, and every inode of the tree must have changed in the same way.
//!
//! For: the test folders of file systems. May touch a directory of its own in `/dev/shm`. Rows that need root are done only
//! by root; what users without privilege may do is done as one of them where root runs the tests.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use gannet_usermem::{Destination, Source};
use gannet_vfs::namespace::{Capabilities, Credentials, Namespace};
use gannet_vfs::{
    Errno, FileSystem, FileType, NewNode, NodeId, Owner, RemoveKind, RenameFlags, Result, Time, TimeChange, WriteFlags,
    WritePosition, XattrMode,
};
use rustix::fs::{self as host, AtFlags, Mode, OFlags, RawDir, StatxFlags, Timespec, Timestamps};
use rustix::thread::{set_thread_res_gid, set_thread_res_uid};

use crate::{Rig, name};

/// The user that the tree belongs to where root runs the tests.
const USER: Owner = Owner { user: 1000, group: 100 };

/// Something to be done. Paths are relative to the tree's root.
#[derive(Clone, Copy, Debug)]
enum Act {
    Create(&'static str, u32),
    Directory(&'static str),
    Symlink(&'static str),
    Fifo(&'static str),
    Link(&'static str, &'static str),
    Unlink(&'static str),
    RemoveDirectory(&'static str),
    Rename(&'static str, &'static str, RenameFlags),
    Write(&'static str, u64, usize),
    Truncate(&'static str, u64),
    ChangeMode(&'static str, u32),
    ChangeOwner(&'static str, Option<u32>, Option<u32>),
    Now(&'static str),
    Past(&'static str),
    SetXattr(&'static str),
    RemoveXattr(&'static str),
    Read(&'static str, usize),
    List(&'static str),
    ReadLink(&'static str),
}

use Act::{
    ChangeMode, ChangeOwner, Create, Directory, Fifo, Link, List, Now, Past, Read, ReadLink, RemoveDirectory,
    RemoveXattr, Rename, SetXattr, Symlink, Truncate, Unlink, Write,
};

/// The tree that every row begins with.
const TREE: &[Act] = &[
    Directory("d"),
    Directory("d/e"),
    Create("d/f", 0o644),
    Write("d/f", 0, 100),
    Link("d/f", "d/same"),
    Symlink("d/l"),
    Directory("x"),
    Create("x/f", 0o640),
    Write("x/f", 0, 5000),
    Directory("x/sub"),
    Create("x/s", 0o600),
    Write("x/s", 0, 10),
    ChangeMode("x/s", 0o6755),
    Create("x/t", 0o600),
    ChangeMode("x/t", 0o2744),
    Directory("x/full"),
    Create("x/full/file", 0o600),
];

const PLAIN: RenameFlags = RenameFlags::empty();
const EXCHANGE: RenameFlags = RenameFlags::EXCHANGE;
const NO_REPLACE: RenameFlags = RenameFlags::NO_REPLACE;

/// What every user may do with what is theirs. (`fallocate` is missing: what it does to times, each file system of the kernel
/// answers in its own way.)
const ROWS: &[&[Act]] = &[
    &[Create("d/n", 0o640)],
    &[Create("d/f", 0o640)],
    &[Directory("d/n")],
    &[Symlink("d/n")],
    &[Fifo("d/n")],
    &[Link("d/f", "d/n")],
    &[Link("d/f", "x/n")],
    &[Link("d/l", "x/n")],
    &[Link("d/f", "x/f")],
    &[Link("d/e", "x/n")],
    &[Unlink("d/f")],
    &[Unlink("x/f")],
    &[Unlink("d/l")],
    &[Unlink("d/e")],
    &[Unlink("d/none")],
    &[RemoveDirectory("d/e")],
    &[RemoveDirectory("x/full")],
    &[RemoveDirectory("d/f")],
    &[Rename("d/f", "d/n", PLAIN)],
    &[Rename("d/f", "x/n", PLAIN)],
    &[Rename("d/f", "x/f", PLAIN)],
    &[Rename("x/f", "d/f", PLAIN)],
    &[Rename("x/f", "x/s", PLAIN)],
    &[Rename("d/f", "d/same", PLAIN)],
    &[Rename("d/e", "d/n", PLAIN)],
    &[Rename("d/e", "x/n", PLAIN)],
    &[Rename("d/e", "x/sub", PLAIN)],
    &[Rename("x/full", "d/e", PLAIN)],
    &[Rename("d/e", "x/full", PLAIN)],
    &[Rename("d/e", "x/f", PLAIN)],
    &[Rename("d/f", "x/sub", PLAIN)],
    &[Rename("d", "d/e/n", PLAIN)],
    &[Rename("d/f", "x/f", NO_REPLACE)],
    &[Rename("d/f", "x/n", NO_REPLACE)],
    &[Rename("d/f", "x/f", EXCHANGE)],
    &[Rename("x/f", "x/s", EXCHANGE)],
    &[Rename("d/e", "x/f", EXCHANGE)],
    &[Rename("d/e", "x/full", EXCHANGE)],
    &[Rename("d/f", "d/same", EXCHANGE)],
    &[Write("d/f", 10, 20)],
    &[Write("d/f", 100, 20)],
    &[Write("d/f", 9000, 20)],
    &[Write("d/f", 10, 0)],
    &[Write("x/s", 0, 5)],
    &[Write("x/s", 3, 0)],
    &[Write("x/t", 0, 5)],
    &[Truncate("x/f", 5000)],
    &[Truncate("x/f", 100)],
    &[Truncate("x/f", 0)],
    &[Truncate("x/f", 9000)],
    &[Truncate("x/s", 3)],
    &[Truncate("x/s", 10)],
    &[Truncate("x/t", 10)],
    &[ChangeMode("d/f", 0o600)],
    &[ChangeMode("d/f", 0o644)],
    &[ChangeMode("x/s", 0o6755)],
    &[ChangeMode("d", 0o1770)],
    &[ChangeOwner("d/f", None, None)],
    &[ChangeOwner("d/f", None, Some(100))],
    &[ChangeOwner("x/s", None, Some(100))],
    &[ChangeOwner("x/t", Some(1000), None)],
    &[Now("d/f")],
    &[Now("d")],
    &[Past("d/f")],
    &[Past("d"), Create("d/n", 0o600)],
    &[Past("d/f"), Write("d/f", 0, 10)],
    &[Past("d/f"), ChangeMode("d/f", 0o600)],
    &[Read("d/f", 10)],
    &[Read("d/f", 10), Read("d/f", 10)],
    &[Read("d/f", 10), Write("d/f", 0, 1), Read("d/f", 10)],
    &[Read("d/f", 10), ChangeMode("d/f", 0o600), Read("d/f", 10)],
    &[Read("d/f", 10), Link("d/f", "x/n"), Read("d/f", 10)],
    &[Past("d/f"), Read("d/f", 1)],
    &[List("d")],
    &[List("d"), List("d")],
    &[List("d"), Create("d/n", 0o600), List("d")],
    &[ReadLink("d/l")],
    &[ReadLink("d/l"), ReadLink("d/l")],
];

/// What only root may do.
const ROWS_OF_ROOT: &[&[Act]] = &[
    &[ChangeOwner("d/f", Some(7), Some(8))],
    &[ChangeOwner("x/s", Some(7), None)],
    &[ChangeOwner("x/t", None, Some(8))],
    &[ChangeOwner("d", Some(7), Some(8))],
    &[SetXattr("d/f")],
    &[SetXattr("d")],
    &[SetXattr("d/f"), SetXattr("d/f")],
    &[SetXattr("d/f"), RemoveXattr("d/f")],
    &[RemoveXattr("d/f")],
];

const XATTR: &[u8] = b"trusted.test";

/// How an inode is, as far as both sides can say it alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Look {
    accessed: Time,
    modified: Time,
    changed: Time,
    rest: (FileType, u32, u64, Owner, u64),
}

impl Look {
    /// Which of the times of access, modification and change moved, and everything else.
    fn against(&self, before: Option<&Look>) -> (String, (FileType, u32, u64, Owner, u64)) {
        let Some(before) = before else { return ("new".into(), self.rest) };
        let moved = [('a', self.accessed != before.accessed), ('m', self.modified != before.modified)];
        let moved = moved.into_iter().chain([('c', self.changed != before.changed)]);
        (moved.filter(|&(_, moved)| moved).map(|(letter, _)| letter).collect(), self.rest)
    }
}

/// One of the two that are compared.
trait Side {
    fn act(&mut self, act: Act) -> Result<()>;
    /// The names of a directory.
    fn names(&mut self, path: &str) -> Vec<String>;
    /// Keeps an inode at hand, whatever becomes of its names; its number.
    fn keep(&mut self, path: &str) -> u64;
    fn look(&self, number: u64) -> Look;
    fn tick(&self);
}

fn split(path: &str) -> (&str, &str) {
    path.rsplit_once('/').unwrap_or(("", path))
}

/// Every inode of the tree, by the first path it has.
fn survey(side: &mut dyn Side, below: &str, found: &mut BTreeMap<u64, String>) {
    for entry in side.names(below) {
        let path = if below.is_empty() { entry } else { format!("{below}/{entry}") };
        let number = side.keep(&path);
        found.entry(number).or_insert_with(|| path.clone());
        if side.look(number).rest.0 == FileType::Directory {
            survey(side, &path, found);
        }
    }
}

type Outcome = (core::result::Result<(), Errno>, BTreeMap<String, (String, (FileType, u32, u64, Owner, u64))>);

/// Does a row and tells what became of every inode by the last act.
fn run(side: &mut dyn Side, row: &[Act]) -> Outcome {
    for &act in TREE {
        side.act(act).expect("the tree");
    }
    let (last, first) = row.split_last().expect("an act");
    for &act in first {
        side.tick();
        side.act(act).unwrap_or_else(|error| panic!("{act:?} before {last:?}: {error}"));
    }
    let mut inodes = BTreeMap::new();
    survey(side, "", &mut inodes);
    let before: BTreeMap<u64, Look> = inodes.keys().map(|&number| (number, side.look(number))).collect();
    side.tick();
    let result = side.act(*last).map_err(|error| error.errno());
    survey(side, "", &mut inodes);
    let changes = inodes.iter().map(|(number, path)| (path.clone(), side.look(*number).against(before.get(number))));
    (result, changes.collect())
}

struct Kernel {
    root: PathBuf,
    kept: BTreeMap<u64, OwnedFd>,
}

impl Kernel {
    fn at(&self, path: &str) -> PathBuf {
        self.root.join(path)
    }

    fn open(&self, path: &str, flags: OFlags) -> rustix::io::Result<OwnedFd> {
        host::open(self.at(path), flags | OFlags::CLOEXEC, Mode::empty())
    }
}

fn time(seconds: i64, nanoseconds: u32) -> Time {
    Time::from_parts(seconds, nanoseconds)
}

impl Side for Kernel {
    fn act(&mut self, act: Act) -> Result<()> {
        let error = |errno: rustix::io::Errno| gannet_vfs::Error::new(Errno::from_raw_os_error(errno.raw_os_error()));
        let done = || -> rustix::io::Result<()> {
            match act {
                Create(path, mode) => {
                    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
                    host::open(self.at(path), flags, Mode::from_raw_mode(mode)).map(drop)
                }
                Directory(path) => host::mkdir(self.at(path), Mode::from_raw_mode(0o755)),
                Symlink(path) => host::symlink("target", self.at(path)),
                Fifo(path) => {
                    host::mknodat(host::CWD, self.at(path), host::FileType::Fifo, Mode::from_raw_mode(0o600), 0)
                }
                Link(from, to) => host::link(self.at(from), self.at(to)),
                Unlink(path) => host::unlink(self.at(path)),
                RemoveDirectory(path) => host::rmdir(self.at(path)),
                Rename(from, to, flags) => {
                    let flags = host::RenameFlags::from_bits_retain(flags.bits());
                    host::renameat_with(host::CWD, self.at(from), host::CWD, self.at(to), flags)
                }
                Write(path, offset, length) => {
                    rustix::io::pwrite(self.open(path, OFlags::WRONLY)?, &vec![7; length], offset).map(drop)
                }
                Truncate(path, size) => host::ftruncate(self.open(path, OFlags::WRONLY)?, size),
                ChangeMode(path, mode) => host::chmod(self.at(path), Mode::from_raw_mode(mode)),
                ChangeOwner(path, user, group) => {
                    let user = user.map(rustix::fs::Uid::from_raw);
                    let group = group.map(rustix::fs::Gid::from_raw);
                    host::chownat(host::CWD, self.at(path), user, group, AtFlags::SYMLINK_NOFOLLOW)
                }
                Now(path) | Past(path) => {
                    let nanoseconds = if matches!(act, Now(_)) { host::UTIME_NOW } else { 5 };
                    let stamp = Timespec { tv_sec: 1_000_000, tv_nsec: nanoseconds };
                    let times = Timestamps { last_access: stamp, last_modification: stamp };
                    host::utimensat(host::CWD, self.at(path), &times, AtFlags::SYMLINK_NOFOLLOW)
                }
                SetXattr(path) => host::lsetxattr(self.at(path), XATTR, b"value", host::XattrFlags::empty()),
                RemoveXattr(path) => host::lremovexattr(self.at(path), XATTR),
                Read(path, length) => {
                    rustix::io::pread(self.open(path, OFlags::RDONLY)?, &mut vec![0; length][..], 0).map(drop)
                }
                List(path) => {
                    let directory = self.open(path, OFlags::RDONLY | OFlags::DIRECTORY)?;
                    let mut buffer = vec![core::mem::MaybeUninit::uninit(); 8192];
                    let mut entries = RawDir::new(directory, &mut buffer);
                    while entries.next().transpose()?.is_some() {}
                    Ok(())
                }
                ReadLink(path) => host::readlink(self.at(path), Vec::new()).map(drop),
            }
        };
        done().map_err(error)
    }

    fn names(&mut self, path: &str) -> Vec<String> {
        // Without moving access times.
        let directory = self.open(path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOATIME).expect("a directory");
        let mut buffer = vec![core::mem::MaybeUninit::uninit(); 8192];
        let mut entries = RawDir::new(directory, &mut buffer);
        let mut names = Vec::new();
        while let Some(entry) = entries.next() {
            let name = entry.expect("an entry").file_name().to_string_lossy().into_owned();
            if name != "." && name != ".." {
                names.push(name);
            }
        }
        names.sort();
        names
    }

    fn keep(&mut self, path: &str) -> u64 {
        let opened = self.open(path, OFlags::PATH | OFlags::NOFOLLOW).expect("an inode");
        let number = host::fstat(&opened).expect("stat").st_ino;
        self.kept.entry(number).or_insert(opened);
        number
    }

    fn look(&self, number: u64) -> Look {
        let all = host::statx(self.kept[&number].as_fd(), "", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS);
        let all = all.expect("statx");
        let kind = FileType::from_bits((all.stx_mode >> 12) as u8).expect("a type");
        let size = if kind == FileType::Directory { 0 } else { all.stx_size };
        let owner = Owner { user: all.stx_uid, group: all.stx_gid };
        Look {
            accessed: time(all.stx_atime.tv_sec, all.stx_atime.tv_nsec),
            modified: time(all.stx_mtime.tv_sec, all.stx_mtime.tv_nsec),
            changed: time(all.stx_ctime.tv_sec, all.stx_ctime.tv_nsec),
            rest: (kind, u32::from(all.stx_mode) & 0o7777, u64::from(all.stx_nlink), owner, size),
        }
    }

    fn tick(&self) {
        tick();
    }
}

fn tick() {
    let now = || rustix::time::clock_gettime(rustix::time::ClockId::RealtimeCoarse);
    let before = now();
    while now() == before {
        std::thread::sleep(std::time::Duration::from_micros(200));
    }
}

struct Ours<'f> {
    rig: Rig<'f>,
    who: Credentials<'static>,
    kept: BTreeMap<u64, (NodeId, crate::rig::Hold<'f>)>,
}

impl Ours<'_> {
    fn node(&self, path: &str) -> Result<NodeId> {
        let parts = path.split('/').filter(|part| !part.is_empty());
        parts.into_iter().try_fold(self.rig.root, |node, part| Ok(self.rig.fs.lookup(node, name(part))?.node))
    }

    fn parent(&self, path: &'static str) -> Result<(NodeId, gannet_vfs::Name<'static>)> {
        let (directory, last) = split(path);
        Ok((self.node(directory)?, name(last)))
    }

    fn owner(&self) -> Owner {
        Owner { user: self.who.user, group: self.who.group }
    }

    fn create(&self, path: &'static str, new: &NewNode<'_>) -> Result<()> {
        let (directory, last) = self.parent(path)?;
        self.rig.fs.create(directory, last, new).map(drop)
    }
}

impl Side for Ours<'_> {
    fn act(&mut self, act: Act) -> Result<()> {
        let fs = self.rig.fs;
        let namespace = Namespace::new(fs, self.who);
        match act {
            Create(path, mode) => self.create(path, &NewNode::regular(mode, self.owner())),
            Directory(path) => self.create(path, &NewNode::directory(0o755, self.owner())),
            Symlink(path) => {
                let link = NewNode::of_type(FileType::Symlink, 0o777, self.owner());
                self.create(path, &NewNode { target: b"target", ..link })
            }
            Fifo(path) => self.create(path, &NewNode::of_type(FileType::Fifo, 0o600, self.owner())),
            Link(from, to) => {
                let (directory, last) = self.parent(to)?;
                fs.link(self.node(from)?, directory, last)
            }
            Unlink(path) => {
                let (directory, last) = self.parent(path)?;
                fs.remove(directory, last, RemoveKind::NonDirectory).map(drop)
            }
            RemoveDirectory(path) => {
                let (directory, last) = self.parent(path)?;
                fs.remove(directory, last, RemoveKind::Directory).map(drop)
            }
            Rename(from, to, flags) => {
                let ((from_directory, from), (to_directory, to)) = (self.parent(from)?, self.parent(to)?);
                fs.rename(from_directory, from, to_directory, to, flags)
            }
            Write(path, offset, length) => {
                let keeps = self.who.may(Capabilities::FSETID);
                let flags = if keeps { WriteFlags::empty() } else { WriteFlags::DROP_SET_ID };
                let bytes = vec![7; length];
                let position = WritePosition::At(offset);
                fs.write(self.node(path)?, position, &mut Source::from_slice(&bytes), flags).map(drop)
            }
            Truncate(path, size) => namespace.truncate_open(self.node(path)?, size),
            ChangeMode(path, mode) => namespace.set_mode(self.node(path)?, mode).map(drop),
            ChangeOwner(path, user, group) => namespace.set_owner(self.node(path)?, user, group).map(drop),
            Now(path) => namespace.set_times(self.node(path)?, TimeChange::Now, TimeChange::Now).map(drop),
            Past(path) => {
                let past = TimeChange::Set(time(1_000_000, 5));
                namespace.set_times(self.node(path)?, past, past).map(drop)
            }
            SetXattr(path) => namespace.set_xattr(self.node(path)?, XATTR, b"value", XattrMode::Any),
            RemoveXattr(path) => namespace.remove_xattr(self.node(path)?, XATTR),
            Read(path, length) => {
                let node = self.node(path)?;
                fs.read(node, 0, &mut Destination::from_slice(&mut vec![0; length]))?;
                fs.note_access(node);
                Ok(())
            }
            List(path) => {
                let node = self.node(path)?;
                fs.read_directory(node, 0, &mut |_| true)?;
                fs.note_access(node);
                Ok(())
            }
            ReadLink(path) => {
                let node = self.node(path)?;
                fs.read_link(node, &mut [0; 100])?;
                fs.note_access(node);
                Ok(())
            }
        }
    }

    fn names(&mut self, path: &str) -> Vec<String> {
        let listed = self.rig.list(self.node(path).expect("a directory"));
        listed.keys().map(|name| String::from_utf8_lossy(name).into_owned()).collect()
    }

    fn keep(&mut self, path: &str) -> u64 {
        let node = self.node(path).expect("an inode");
        let rig = &self.rig;
        self.kept.entry(node.number).or_insert_with(|| (node, rig.hold(node)));
        node.number
    }

    fn look(&self, number: u64) -> Look {
        let all = self.rig.attributes(self.kept[&number].0);
        let size = if all.file_type == FileType::Directory { 0 } else { all.size_bytes };
        Look {
            accessed: all.accessed,
            modified: all.modified,
            changed: all.changed,
            rest: (all.file_type, all.mode, all.links, all.owner, size),
        }
    }

    fn tick(&self) {
        tick();
    }
}

/// Runs a closure as the user without privilege, on a thread of its own.
fn as_user<R: Send>(work: impl FnOnce() -> R + Send) -> R {
    std::thread::scope(|scope| {
        let work = scope.spawn(|| {
            let (user, group) = (rustix::fs::Uid::from_raw(USER.user), rustix::fs::Gid::from_raw(USER.group));
            rustix::thread::set_thread_groups(&[]).expect("set groups");
            set_thread_res_gid(group, group, group).expect("set group");
            set_thread_res_uid(user, user, user).expect("set user");
            work()
        });
        work.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Does all rows on the kernel's tmpfs and on file systems made by `make`, and compares.
///
/// # Panics
/// With the rows that differ.
pub fn compare(make: &dyn Fn() -> Box<dyn FileSystem>, has_access_times: bool) {
    let is_root = rustix::process::geteuid().is_root();
    let caller = Owner { user: rustix::process::geteuid().as_raw(), group: rustix::process::getegid().as_raw() };
    let mut wrong = Vec::new();
    let mut compared = 0;
    let mut row = |row: &[Act], owner: Owner| {
        let directory = temporary(owner);
        let root = directory.clone();
        let on_kernel = || run(&mut Kernel { root, kept: BTreeMap::new() }, row);
        let theirs = if owner.user == caller.user { on_kernel() } else { as_user(on_kernel) };
        let capabilities = if owner.user == 0 { Capabilities::all() } else { Capabilities::empty() };
        let who = Credentials { user: owner.user, group: owner.group, groups: &[], capabilities, umask: 0 };
        let fs = make();
        let mut ours = Ours { rig: Rig::new(&*fs), who, kept: BTreeMap::new() };
        let mine = run(&mut ours, row);
        drop(ours);
        let _ = std::fs::remove_dir_all(&directory);
        compared += 1;
        let plain = |outcome: &Outcome| {
            let mut outcome = outcome.clone();
            if !has_access_times {
                outcome.1.values_mut().for_each(|change| change.0.retain(|letter| letter != 'a'));
            }
            outcome
        };
        let (mine, theirs) = (plain(&mine), plain(&theirs));
        if mine != theirs {
            let differing = theirs.1.iter().filter(|(path, change)| mine.1.get(*path) != Some(change));
            let told: Vec<_> = differing.map(|(path, change)| (path, change, mine.1.get(path))).collect();
            wrong.push(format!("{row:?} as {}: {:?} {:?}: {told:?}", owner.user, theirs.0, mine.0));
        }
    };
    rustix::process::umask(Mode::empty());
    for acts in ROWS {
        row(acts, caller);
        if is_root {
            row(acts, USER);
        }
    }
    if is_root {
        ROWS_OF_ROOT.iter().for_each(|acts| row(acts, caller));
    }
    assert!(compared >= ROWS.len());
    assert!(wrong.is_empty(), "{} of {compared} rows, the kernel first: {wrong:#?}", wrong.len());
}

/// A directory of our own on a tmpfs.
fn temporary(owner: Owner) -> PathBuf {
    static NEXT: core::sync::atomic::AtomicU64 = core::sync::atomic::AtomicU64::new(0);
    let number = NEXT.fetch_add(1, core::sync::atomic::Ordering::Relaxed);
    let path = Path::new("/dev/shm").join(format!("gannet-fstest-{}-{number}", std::process::id()));
    std::fs::create_dir(&path).expect("a directory in /dev/shm");
    std::os::unix::fs::chown(&path, Some(owner.user), Some(owner.group)).expect("its owner");
    path
}
