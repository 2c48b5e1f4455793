//! Times, modes and link counts after every operation, against the kernel: each row of a table is done on a tmpfs and on a
//! file system behind the interface, and every inode of the tree must have changed in the same way.
//!
//! For: the test folders of file systems. May touch a directory of its own in `/dev/shm`. Rows that need root are done only
//! by root; what users without privilege may do is done as one of them where root runs the tests.

mod host;
mod ours;
mod rows;

use host::Kernel;
use ours::Ours;
use rows::{Act, ROWS, ROWS_OF_ROOT, TREE, USER};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use gannet_vfs::namespace::{Capabilities, Credentials};
use gannet_vfs::{Errno, FileSystem, FileType, Owner, Result, Time};
use rustix::fs::Mode;
use rustix::thread::{CapabilitySet, set_thread_res_gid, set_thread_res_uid};

use crate::Rig;

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
    let capabilities = rustix::thread::capabilities(None).map(|sets| sets.effective);
    if is_root && !capabilities.is_ok_and(|capabilities| capabilities.contains(CapabilitySet::SYS_ADMIN)) {
        eprintln!("left out: root may not do here what the rows are about, as in a container");
        return;
    }
    let caller = Owner { user: rustix::process::geteuid().as_raw(), group: rustix::process::getegid().as_raw() };
    let mut wrong = Vec::new();
    let mut compared = 0;
    let mut row = |row: &[Act], owner: Owner| {
        let directory = temporary(owner);
        let root = directory.clone();
        let on_kernel = || run(&mut Kernel { root, kept: BTreeMap::new() }, row);
        let theirs = if owner.user == caller.user { on_kernel() } else { as_user(on_kernel) };
        let capabilities = if owner.user == 0 { Capabilities::all() } else { Capabilities::empty() };
        let who =
            Credentials { user: owner.user, group: owner.group, groups: &[], capabilities, umask: 0, namespace: None };
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
