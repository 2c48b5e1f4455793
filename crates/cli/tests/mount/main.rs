//! `gannet mount` on volumes: caching while alone and coherence beside others, the life of a mount, being mount(8)'s helper.
//!
//! Needs root and /dev/fuse; says so and does nothing where it has neither.

mod agents;
mod caching;
mod coherence;
mod differ;
mod ends;
mod flags;
mod fuse3;
mod library;
mod life;
#[path = "../../../fuse/tests/mount/oracle/mod.rs"]
mod oracle;
mod remade;
mod rights;
mod scarce;
mod started;
mod system;
mod volumes;

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Why no test of mounts can run here.
fn hindrance() -> Option<&'static str> {
    if !rustix::process::geteuid().is_root() {
        return Some("only root mounts without more ado");
    }
    (!Path::new("/dev/fuse").exists()).then_some("there is no /dev/fuse")
}

/// The transports that exist here.
fn transports() -> &'static [&'static str] {
    let ring =
        std::fs::read_to_string("/sys/module/fuse/parameters/enable_uring").is_ok_and(|value| value.trim() == "Y");
    if ring { &["classic", "ring"] } else { &["classic"] }
}

/// Keeps other tests that say so out.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs a test body with each transport, or says why it does not. One after the other: a child of this process closes, when
/// it begins, what other tests have open on mounts, and would wait for servers that those have stopped.
fn with_transports(body: impl Fn(&str)) {
    let _alone = alone();
    match hindrance() {
        Some(why) => eprintln!("skipped: {why}"),
        None => transports().iter().for_each(|transport| body(transport)),
    }
}

/// Gives the calling thread, and what it starts, a mount namespace of its own, where it may: other programs neither look into its
/// mounts nor take copies of them along into namespaces of theirs, which would keep servers alive.
fn apart() {
    use rustix::mount::{MountPropagationFlags, mount_change};
    // SAFETY: the call changes namespaces of this thread alone; it takes no memory.
    if unsafe { libc::unshare(libc::CLONE_NEWNS) } == 0 {
        mount_change("/", MountPropagationFlags::REC | MountPropagationFlags::PRIVATE).expect("mounts of our own");
    }
}

/// A volume in memory and a directory to mount it on.
struct Bench {
    directory: TempDir,
}

impl Bench {
    fn new() -> Self {
        Self::new_in("/dev/shm")
    }

    fn new_in(directory: &str) -> Self {
        thread_local!(static APART: () = apart());
        APART.with(|()| ());
        let bench = Self { directory: TempDir::new_in(directory).expect("a directory") };
        std::fs::create_dir(bench.at()).expect("a directory to mount on");
        let made = gannet([OsStr::new("mkfs"), bench.volume().as_os_str(), OsStr::new("--size=64M")]);
        assert!(made.status.success(), "{made:?}");
        bench
    }

    fn volume(&self) -> PathBuf {
        self.directory.path().join("volume")
    }

    /// Where it is mounted.
    fn at(&self) -> PathBuf {
        self.directory.path().join("mnt")
    }

    /// A path on the mount.
    fn on(&self, name: &str) -> PathBuf {
        self.at().join(name)
    }

    /// Serves the mount from a process that the test can stop and kill.
    fn mount(&self, options: &str) -> Server {
        self.try_mount(options).unwrap_or_else(|complaint| panic!("{complaint}"))
    }

    fn try_mount(&self, options: &str) -> Result<Server, String> {
        let mut command = Command::new(env!("CARGO_BIN_EXE_gannet"));
        command.args(["mount", "--foreground", "-o", options]).arg(self.volume()).arg(self.at());
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the server starts");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("its output")).read_line(&mut line).expect("readable");
        if line == "mounted\n" {
            return Ok(Server { child, at: self.at() });
        }
        let output = child.wait_with_output().expect("it ends");
        Err(String::from_utf8_lossy(&output.stderr).into_owned())
    }

    /// A shell under `gannet run` that executes lines, with the volume at /gannet.
    fn shell(&self) -> Shell {
        let mut command = Command::new(env!("CARGO_BIN_EXE_gannet"));
        command.arg("run").arg(self.volume()).args([
            "--",
            "sh",
            "-c",
            "while IFS= read -r line; do eval \"$line\"; echo \" =$?\"; done",
        ]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("a shell starts");
        let out = BufReader::new(child.stdout.take().expect("its output"));
        Shell { child, out }
    }

    /// Runs one command line under `gannet run`; its output.
    fn run(&self, line: &str) -> String {
        let output = gannet([
            OsStr::new("run"),
            self.volume().as_os_str(),
            "--".as_ref(),
            "sh".as_ref(),
            "-c".as_ref(),
            line.as_ref(),
        ]);
        assert!(output.status.success(), "{line}: {output:?}");
        String::from_utf8(output.stdout).expect("text")
    }

    fn check(&self) {
        let output = gannet([OsStr::new("fsck"), self.volume().as_os_str()]);
        assert_eq!(output.status.code(), Some(0), "{output:?}");
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        // Whatever a failed test left mounted.
        let _ = rustix::mount::unmount(self.at(), rustix::mount::UnmountFlags::DETACH);
    }
}

fn gannet<'a>(arguments: impl IntoIterator<Item = &'a OsStr>) -> Output {
    Command::new(env!("CARGO_BIN_EXE_gannet")).args(arguments).output().expect("it runs")
}

/// A serving process.
struct Server {
    child: Child,
    at: PathBuf,
}

impl Server {
    fn signal(&self, signal: rustix::process::Signal) {
        rustix::process::kill_process(rustix::process::Pid::from_child(&self.child), signal).expect("signalled");
    }

    /// Unmounts; the server must end well.
    fn end(mut self) {
        // Not at the first try: programs may look at the mount in passing.
        eventually("unmounted", || rustix::mount::unmount(&self.at, rustix::mount::UnmountFlags::empty()).is_ok());
        assert!(self.child.wait().expect("it ends").success());
    }

    fn kill(mut self) {
        self.child.kill().expect("killed");
        self.child.wait().expect("gone");
    }

    /// How long its threads have run so far.
    fn busy(&self) -> Duration {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.child.id())).expect("its threads");
        let of_thread = |task: std::io::Result<std::fs::DirEntry>| {
            let statistics = std::fs::read_to_string(task.ok()?.path().join("schedstat")).ok()?;
            statistics.split_whitespace().next()?.parse::<u64>().ok()
        };
        Duration::from_nanos(tasks.filter_map(of_thread).sum())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if self.child.try_wait().is_ok_and(|status| status.is_none()) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// A shell that others cannot see into.
struct Shell {
    child: Child,
    out: BufReader<std::process::ChildStdout>,
}

impl Shell {
    /// Runs a line, which must succeed; its output.
    fn does(&mut self, line: &str) -> String {
        writeln!(self.child.stdin.as_mut().expect("its input"), "{line}").expect("written");
        let mut output = String::new();
        loop {
            let begin = output.len();
            assert!(self.out.read_line(&mut output).expect("readable") > 0, "the shell ended at {line:?}");
            if let Some(at) = output[begin..].rfind(" =") {
                let code = output[begin + at + 2..].trim().to_owned();
                output.truncate(begin + at);
                assert_eq!(code, "0", "{line}: {output}");
                return output;
            }
        }
    }

    fn end(mut self) {
        drop(self.child.stdin.take());
        assert!(self.child.wait().expect("it ends").success());
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Waits until `holds` does, two minutes at most.
fn eventually(what: &str, mut holds: impl FnMut() -> bool) -> Duration {
    let begin = Instant::now();
    while !holds() {
        assert!(begin.elapsed() < Duration::from_secs(120), "{what}: not within two minutes");
        std::thread::sleep(Duration::from_millis(20));
    }
    begin.elapsed()
}
