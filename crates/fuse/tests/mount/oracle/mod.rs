//! The same calls on a mount and on the kernel's own file systems: what programs are told must agree.
//!
//! A scenario makes calls and notes what came of each: errno, attributes, bytes. It runs in an empty directory on tmpfs, on the
//! disk, and on the mount; each note of the mount must be the same as that of one of the others. What they cover follows the generic
//! tests of xfstests. Used by the tests of `gannet-cli`, too, on volumes: may use nothing of its neighbours.

mod corners;
mod data;
mod guards;
mod locks;
mod names;
mod rights;
mod times;

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// A group of calls, made in an empty directory.
pub(crate) type Scenario = (&'static str, fn(&Path, &mut Notes));

/// What came of the calls of a scenario.
#[derive(Default)]
pub(crate) struct Notes {
    told: Vec<(String, String)>,
}

impl Notes {
    /// Notes what came of a call.
    pub(crate) fn note(&mut self, of: impl Into<String>, told: impl Debug) {
        self.told.push((of.into(), format!("{told:?}")));
    }
}

/// Whether a call succeeded, or the errno.
pub(crate) fn errno<T>(result: rustix::io::Result<T>) -> Result<(), rustix::io::Errno> {
    result.map(drop)
}

/// The same for the standard library's.
pub(crate) fn io<T>(result: std::io::Result<T>) -> Result<(), rustix::io::Errno> {
    result.map(drop).map_err(|error| rustix::io::Errno::from_io_error(&error).unwrap_or(rustix::io::Errno::IO))
}

/// Waits until file systems give later times: theirs are a clock's that a tick sets, and a virtual machine may let that pass late. A time
/// may also be up to a tick ahead of that clock, where somebody's was asked for (multigrain timestamps, Linux 6.13).
pub(crate) fn tick() {
    use rustix::time::{ClockId, clock_gettime};
    let before = clock_gettime(ClockId::Realtime);
    while clock_gettime(ClockId::RealtimeCoarse) <= before {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}

/// Runs `body` on a thread that is another user's, without other groups.
pub(crate) fn as_user<T: Send>(user: u32, group: u32, body: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            // SAFETY: the system calls themselves, which change the calling thread alone; they take no memory.
            let changed = unsafe {
                libc::syscall(libc::SYS_setgroups, 0, 0)
                    | libc::syscall(libc::SYS_setresgid, group, group, group)
                    | libc::syscall(libc::SYS_setresuid, user, user, user)
            };
            assert_eq!(changed, 0, "only root can be others");
            body()
        });
        thread.join().expect("the other user's calls")
    })
}

/// Where to ask the kernel: a directory in memory and one on the disk, if those are what they seem.
fn references() -> Vec<tempfile::TempDir> {
    const KERNEL: [u64; 4] = [0x0102_1994, 0xef53, 0x5846_5342, 0x9123_683e];
    let own = |path: &&&str| rustix::fs::statfs(**path).is_ok_and(|about| KERNEL.contains(&(about.f_type as u64)));
    let named = |path| tempfile::Builder::new().prefix("gannet-oracle-").tempdir_in(path).ok();
    // As tmpfs does since Linux 6.6.
    let has_attributes = |directory: &tempfile::TempDir| {
        rustix::fs::setxattr(directory.path(), "user.probe", b"", rustix::fs::XattrFlags::empty()).is_ok()
    };
    let memory = ["/dev/shm"].iter().find(own);
    let disk = ["/tmp", "/var/tmp", "/home"].iter().find(own);
    [memory, disk].into_iter().flatten().filter_map(named).filter(has_attributes).collect()
}

fn run(scenario: &Scenario, below: &Path) -> Vec<(String, String)> {
    let directory: PathBuf = below.join(scenario.0);
    fs::create_dir(&directory).expect("a directory for the scenario");
    fs::set_permissions(&directory, fs::Permissions::from_mode(0o777)).expect("everybody's");
    let mut notes = Notes::default();
    scenario.1(&directory, &mut notes);
    notes.told
}

/// What the kernel's file systems told, by scenario and note. Asked once.
fn told() -> &'static BTreeMap<(&'static str, String), Vec<String>> {
    static TOLD: OnceLock<BTreeMap<(&'static str, String), Vec<String>>> = OnceLock::new();
    TOLD.get_or_init(|| {
        let mut told: BTreeMap<_, Vec<String>> = BTreeMap::new();
        for reference in references() {
            fs::set_permissions(reference.path(), fs::Permissions::from_mode(0o755)).expect("everybody may enter");
            for scenario in scenarios() {
                for (of, what) in run(scenario, reference.path()) {
                    told.entry((scenario.0, of)).or_default().push(what);
                }
            }
        }
        told
    })
}

fn scenarios() -> impl Iterator<Item = &'static Scenario> {
    [
        data::SCENARIOS,
        times::SCENARIOS,
        names::SCENARIOS,
        rights::SCENARIOS,
        guards::SCENARIOS,
        locks::SCENARIOS,
        corners::SCENARIOS,
    ]
    .into_iter()
    .flatten()
}

/// What may differ on a mount that does or does not write back: a scenario, and what it noted.
pub(crate) fn excused(writeback: bool) -> impl Fn(&str, &str) -> bool {
    // chown(-1, -1) never reaches a server. Nor does reading what the kernel has not even written yet; and writes are refused when
    // they are written back, with times that cannot be told from a program's.
    // A descriptor from before a file became append-only cannot be told from one that was opened to append and does not any more.
    const LATE: [(&str, &str); 5] = [
        ("access_times", "read first"),
        ("unchangeable_files", "write: immutable"),
        ("unchangeable_files", "append: immutable"),
        ("unchangeable_files", "write: append-only"),
        ("unchangeable_files", "set times: append-only"),
    ];
    move |scenario, of| {
        let copies = scenario == "unchangeable_files" && of == "copy to: append-only";
        writeback && LATE.contains(&(scenario, of)) || scenario == "owners" && of.contains("to None None") || copies
    }
}

/// Runs all scenarios in the directory `on`, whose mount others may enter, and compares. `excused` says of a scenario and what it
/// noted that it may differ. Fails after the last one. How many notes were compared; 0 where there is nothing to compare with.
pub(crate) fn compare(on: &Path, excused: &dyn Fn(&str, &str) -> bool) -> usize {
    let (mut compared, mut differences) = (0, Vec::new());
    if told().is_empty() {
        return 0;
    }
    for scenario in scenarios() {
        for (of, what) in run(scenario, on) {
            compared += 1;
            let right = told().get(&(scenario.0, of.clone()));
            if !right.is_some_and(|right| right.contains(&what)) && !excused(scenario.0, &of) {
                differences.push(format!("{}: {of}: {what}, elsewhere {right:?}", scenario.0));
            }
        }
    }
    assert!(differences.is_empty(), "{} differences\n{}", differences.len(), differences.join("\n"));
    compared
}
