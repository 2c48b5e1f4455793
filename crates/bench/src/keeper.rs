//! What a run has made and started goes with it, however it ends: interrupted, terminated, by a bug, or killed.
//!
//! For: everything here that mounts, makes directories or starts programs tells its `Keeper` before it does. Behind that is a
//! process of its own (`gannet-workload --keeper`, module `serve`), in a session of its own, which reads from a pipe. When the
//! pipe ends, it ends what is still running, unmounts and removes. A run that ends in order has done all that itself by then.
//! Relies on: names that only this run uses.

use rustix::process::{Pid, Signal, kill_process_group, test_kill_process_group};
use serde::{Deserialize, Serialize};
use std::io::{BufRead, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A run's wish to end early; whoever interrupts it has a copy.
#[derive(Clone, Debug, Default)]
pub struct Stop(Arc<Stopping>);

#[derive(Debug, Default)]
struct Stopping {
    stopped: AtomicBool,
    /// The groups of processes that are measured now.
    groups: Mutex<Vec<i32>>,
}

/// Why what was to be done after that is not done.
pub(crate) const INTERRUPTED: &str = "interrupted";

impl Stop {
    /// Ends the run: what it has started is ended, the rest is left out of the report. Returns whether it was so already.
    pub fn now(&self) -> bool {
        let before = self.0.stopped.swap(true, Ordering::SeqCst);
        for &group in self.groups().iter() {
            signal(group, Signal::TERM);
        }
        before
    }

    /// Whether it shall end.
    pub fn is_wanted(&self) -> bool {
        self.0.stopped.load(Ordering::SeqCst)
    }

    fn groups(&self) -> MutexGuard<'_, Vec<i32>> {
        self.0.groups.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn signal(group: i32, signal: Signal) {
    if let Some(group) = Pid::from_raw(group) {
        let _ = kill_process_group(group, signal);
    }
}

/// What is undone if the run cannot do it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Promise {
    /// A directory of this run.
    Remove(PathBuf),
    /// A mount of this run.
    Unmount(PathBuf),
    /// A group of processes has been started.
    Started(i32),
    /// It has ended.
    Ended(i32),
}

/// The run's side.
#[derive(Clone)]
pub(crate) struct Keeper {
    stop: Stop,
    process: Arc<Mutex<Option<Process>>>,
}

struct Process {
    child: Child,
    /// Open as long as the run lasts.
    promises: Option<ChildStdin>,
}

impl Keeper {
    /// Starts the process that stays behind. Without it what is left behind is what could not be undone in order.
    pub(crate) fn start(workload: &Path, stop: Stop) -> Self {
        let mut command = Command::new(workload);
        command.arg("--keeper").stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
        let process = command.spawn().ok().and_then(|mut child| {
            let promises = Some(child.stdin.take()?);
            Some(Process { child, promises })
        });
        Self { stop, process: Arc::new(Mutex::new(process)) }
    }

    /// Whether the run shall end.
    pub(crate) fn is_stopped(&self) -> bool {
        self.stop.is_wanted()
    }

    /// Says what will have to be undone, before it is done.
    pub(crate) fn promise(&self, promise: &Promise) {
        let mut process = self.process.lock().unwrap_or_else(PoisonError::into_inner);
        let pipe = process.as_mut().and_then(|process| process.promises.as_mut());
        if let (Some(pipe), Ok(text)) = (pipe, serde_json::to_string(promise)) {
            // Where somebody has killed the reader, the run still undoes what it does itself.
            let _ = writeln!(pipe, "{text}");
        }
    }

    /// Starts a program as the leader of a group of processes, unless the run shall end.
    pub(crate) fn spawn(&self, command: &mut Command) -> Result<Child, String> {
        if self.is_stopped() {
            return Err(INTERRUPTED.into());
        }
        let program = command.get_program().to_string_lossy().into_owned();
        // A terminal's interrupt is for the driver, which ends its programs in order.
        let child = command.process_group(0).spawn().map_err(|error| format!("{program}: {error}"))?;
        if let Ok(group) = i32::try_from(child.id()) {
            self.promise(&Promise::Started(group));
            self.stop.groups().push(group);
        }
        if self.is_stopped() {
            end_group(&child, Signal::TERM);
        }
        Ok(child)
    }

    /// The program has been waited for.
    pub(crate) fn ended(&self, child: &Child) {
        if let Ok(group) = i32::try_from(child.id()) {
            self.stop.groups().retain(|&known| known != group);
            self.promise(&Promise::Ended(group));
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // What is left is undone now, and only then has the run ended.
        self.promises = None;
        let _ = self.child.wait();
    }
}

/// Sends a signal to the group that a program leads, which is there as long as nobody has waited for the program.
pub(crate) fn end_group(child: &Child, number: Signal) {
    if let Ok(group) = i32::try_from(child.id()) {
        signal(group, number);
    }
}

/// How long programs may take to end when they are asked to.
const PATIENCE: Duration = Duration::from_secs(2);

/// The other side: reads promises until there are no more, then undoes what is left.
pub fn serve(promises: impl BufRead) {
    // The terminal's signals are not for it.
    let _ = rustix::process::setsid();
    let (mut groups, mut mounts, mut directories) = (Vec::new(), Vec::new(), Vec::new());
    for line in promises.lines().map_while(Result::ok) {
        match serde_json::from_str(&line) {
            Ok(Promise::Started(group)) => groups.push(group),
            Ok(Promise::Ended(group)) => groups.retain(|&known| known != group),
            Ok(Promise::Unmount(path)) => mounts.push(path),
            Ok(Promise::Remove(path)) => directories.push(path),
            // A line cut short by the writer's end.
            Err(_) => {}
        }
    }
    end_groups(&groups);
    mounts.iter().rev().for_each(|path| unmount(path));
    for path in directories.iter().rev() {
        let _ = std::fs::remove_dir_all(path);
    }
}

/// Ends programs: asks first.
fn end_groups(groups: &[i32]) {
    let is_there = |group: i32| Pid::from_raw(group).is_some_and(|group| test_kill_process_group(group).is_ok());
    groups.iter().for_each(|&group| signal(group, Signal::TERM));
    let begun = Instant::now();
    while groups.iter().any(|&group| is_there(group)) && begun.elapsed() < PATIENCE {
        std::thread::sleep(Duration::from_millis(10));
    }
    groups.iter().filter(|&&group| is_there(group)).for_each(|&group| signal(group, Signal::KILL));
}

/// Whether something is mounted there; if its server is gone too, when nothing else could be said of the place.
fn is_mounted(path: &Path) -> bool {
    let real = path.parent().and_then(|parent| parent.canonicalize().ok()).zip(path.file_name());
    let Some((parent, name)) = real else { return false };
    let place = format!(" {} ", parent.join(name).to_string_lossy().replace(' ', "\\040"));
    std::fs::read_to_string("/proc/self/mountinfo").is_ok_and(|mounts| mounts.contains(&place))
}

/// Unmounts, as root or as the user who mounted.
pub(crate) fn unmount(path: &Path) {
    let quietly = |command: &mut Command| {
        let command = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    };
    for _ in 0..20 {
        if !is_mounted(path) {
            return;
        }
        let as_user = quietly(Command::new("fusermount3").arg("-u").arg(path));
        if as_user || quietly(Command::new("umount").arg(path)) {
            return;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    let _ = quietly(Command::new("fusermount3").args(["-u", "-z"]).arg(path))
        || quietly(Command::new("umount").arg("-l").arg(path));
}
