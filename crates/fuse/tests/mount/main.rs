//! The server behind real mounts: what programs see, with both transports and all caching policies.
//!
//! Has its own harness, so that what cannot run here is reported as skipped, with the reason, and not counted as passed. The
//! server runs in a process of its own (this program again, `--serve`), as in life, and can be killed.
//! `cargo test -p gannet-fuse --test mount [FILTER]`; `GANNET_LONG=1` runs longer loads.

mod appends;
mod attributes;
mod files;
mod guarded;
mod holes;
mod idmapped;
mod life;
mod locks;
mod oracle;
mod programs;
mod room;
mod set_id;
mod signals;
mod special;
mod uring;

use std::io::{BufRead, BufReader, Read};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Arc;

use gannet_fuse::{MountOptions, Transport};
use gannet_memfs::{Limits, MemoryFs};
use gannet_vfs::Owner;

/// What a test says when it cannot run here.
pub(crate) struct Skipped(pub(crate) String);

/// The outcome of a test that did not panic.
pub(crate) type Outcome = Result<(), Skipped>;

/// A test: name, body, and whether it runs once or with every way to mount.
pub(crate) struct Test {
    pub(crate) name: &'static str,
    pub(crate) body: fn(&str) -> Outcome,
    pub(crate) every_way: bool,
}

/// A server in its own process, and its mount.
pub(crate) struct Server {
    child: Child,
    directory: tempfile::TempDir,
    /// The line it said when it was ready.
    pub(crate) greeting: String,
}

impl Server {
    /// Mounts an empty file system with these options (`size=MIB` besides those of a mount).
    pub(crate) fn start(options: &str) -> Self {
        Self::start_as(options, None).unwrap_or_else(|complaint| panic!("{complaint}"))
    }

    /// The same as another user; `Err` is what the server said when it failed.
    pub(crate) fn start_as(options: &str, user: Option<u32>) -> Result<Self, String> {
        let directory = tempfile::Builder::new().prefix("gannet-mount-").tempdir().expect("a temporary directory");
        std::fs::create_dir(directory.path().join("mnt")).expect("a directory to mount on");
        Self::start_in(directory, options, user)
    }

    /// The same on the directory `mnt` of `directory`.
    pub(crate) fn start_in(directory: tempfile::TempDir, options: &str, user: Option<u32>) -> Result<Self, String> {
        use std::os::unix::process::CommandExt;
        let mut command = Command::new(program());
        command.arg("--serve").arg(directory.path().join("mnt")).arg(options);
        if let Some(user) = user {
            rustix::fs::chown(directory.path().join("mnt"), Some(rustix::fs::Uid::from_raw(user)), None)
                .expect("chown");
            rustix::fs::chmod(directory.path(), 0o755.into()).expect("chmod");
            command.uid(user).gid(user);
        }
        let mut child = command.stdout(Stdio::piped()).spawn().expect("the server starts");
        let mut greeting = String::new();
        BufReader::new(child.stdout.take().expect("its output")).read_line(&mut greeting).expect("its first line");
        if let Some(complaint) = greeting.strip_prefix("failed: ") {
            let _ = child.wait();
            return Err(complaint.trim().to_owned());
        }
        assert!(greeting.starts_with("ready"), "the server said {greeting:?}");
        Ok(Self { child, directory, greeting })
    }

    /// The process.
    pub(crate) fn process(&self) -> u32 {
        self.child.id()
    }

    /// Where it is mounted.
    pub(crate) fn path(&self) -> PathBuf {
        self.directory.path().join("mnt")
    }

    /// A path below the mount.
    pub(crate) fn at(&self, name: &str) -> PathBuf {
        self.path().join(name)
    }

    /// Kills the server without a word and hands its directory on.
    pub(crate) fn kill(mut self) -> tempfile::TempDir {
        self.child.kill().expect("killed");
        self.child.wait().expect("gone");
        let placeholder = tempfile::tempdir().expect("a temporary directory");
        std::mem::replace(&mut self.directory, placeholder)
    }

    /// Unmounts and checks that the server ends well.
    pub(crate) fn end(mut self) {
        // Not at the first try: programs may look at the mount in passing.
        eventually("unmounted", || unmount(&self.path(), false).is_ok());
        assert!(self.child.wait().expect("the server ends").success(), "the server failed");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if self.child.try_wait().is_ok_and(|status| status.is_none()) {
            let _ = unmount(&self.path(), true);
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// This program, as it was called: from another mount namespace, `/proc/self/exe` may lead to a name outside of a changed root.
pub(crate) fn program() -> PathBuf {
    std::fs::canonicalize(std::env::args_os().next().expect("a name")).expect("this program")
}

/// Unmounts as root or through the helper.
pub(crate) fn unmount(path: &Path, lazily: bool) -> Result<(), String> {
    let flags = if lazily { rustix::mount::UnmountFlags::DETACH } else { rustix::mount::UnmountFlags::empty() };
    match rustix::mount::unmount(path, flags) {
        Ok(()) => Ok(()),
        Err(_) => {
            let status = Command::new("fusermount3")
                .arg(if lazily { "-uz" } else { "-u" })
                .arg(path)
                .stderr(Stdio::null())
                .status();
            if status.is_ok_and(|status| status.success()) { Ok(()) } else { Err(format!("{}: busy?", path.display())) }
        }
    }
}

/// Serves a mount until it ends: the other role of this program.
fn serve(target: &Path, words: &str) -> ExitCode {
    let mut options = MountOptions::default();
    let mut limits = Limits { data_bytes: 256 << 20, inodes: 100_000 };
    for word in words.split(',') {
        if let Some(mebibytes) = word.strip_prefix("size=") {
            limits.data_bytes = mebibytes.parse::<u64>().expect("a number") << 20;
        } else if let Err(complaint) = options.parse(word) {
            println!("failed: {complaint}");
            return ExitCode::FAILURE;
        }
    }
    let owner = Owner { user: rustix::process::getuid().as_raw(), group: rustix::process::getgid().as_raw() };
    let file_system = Arc::new(MemoryFs::new(limits, 0o755, owner).expect("an empty file system"));
    match gannet_fuse::serve(file_system, target, &options) {
        Ok(mounted) => {
            println!("ready {:?} {}", mounted.transport(), mounted.notices().join(" "));
            mounted.wait();
            ExitCode::SUCCESS
        }
        Err(error) => {
            println!("failed: {error}");
            ExitCode::FAILURE
        }
    }
}

/// The ways to mount that exist here, or why there is none.
fn ways() -> Result<Vec<String>, String> {
    let probe =
        Server::start_as("transport=classic", None).map_err(|complaint| format!("cannot mount: {complaint}"))?;
    probe.end();
    let mut ways = Vec::new();
    for transport in ["classic", "ring"] {
        if transport == "ring" {
            match Server::start_as("transport=ring", None) {
                Ok(server) => {
                    assert!(server.greeting.contains(&format!("{:?}", Transport::Ring)), "{}", server.greeting);
                    server.end();
                }
                Err(complaint) => {
                    println!("skipped: everything with transport=ring: {complaint}");
                    continue;
                }
            }
        }
        for cache in ["automatic", "coherent", "exclusive", "writeback"] {
            ways.push(format!("transport={transport},cache={cache}"));
        }
    }
    Ok(ways)
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

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.first().map(String::as_str) {
        Some("--serve") => return serve(Path::new(&arguments[1]), &arguments[2]),
        Some("--child") => return locks::child(&arguments[1..]),
        Some("--list") => return ExitCode::SUCCESS,
        _ => {}
    }
    let filter = arguments.iter().find(|argument| !argument.starts_with('-')).cloned().unwrap_or_default();
    let tests: Vec<&Test> = [
        files::TESTS,
        appends::TESTS,
        uring::TESTS,
        programs::TESTS,
        special::TESTS,
        attributes::TESTS,
        set_id::TESTS,
        holes::TESTS,
        room::TESTS,
        guarded::TESTS,
        locks::TESTS,
        signals::TESTS,
        life::TESTS,
        idmapped::TESTS,
    ]
    .into_iter()
    .flatten()
    .collect();
    apart();
    let ways = match ways() {
        Ok(ways) => ways,
        Err(reason) => {
            println!("skipped: all {} tests on mounts: {reason}", tests.len());
            return ExitCode::SUCCESS;
        }
    };
    let (mut passed, mut failed, mut skipped) = (0, 0, 0);
    for test in tests {
        let runs: &[String] = if test.every_way { &ways } else { &ways[..1] };
        for way in runs {
            let name = if test.every_way { format!("{} {way}", test.name) } else { test.name.to_owned() };
            if !name.contains(&filter) {
                continue;
            }
            let begin = std::time::Instant::now();
            match catch_unwind(AssertUnwindSafe(|| (test.body)(way))) {
                Ok(Ok(())) => {
                    passed += 1;
                    println!("test {name} ... ok ({} ms)", begin.elapsed().as_millis());
                }
                Ok(Err(Skipped(reason))) => {
                    skipped += 1;
                    println!("test {name} ... skipped: {reason}");
                }
                Err(_) => {
                    failed += 1;
                    println!("test {name} ... FAILED");
                }
            }
        }
    }
    println!("mount: {passed} passed, {failed} failed, {skipped} skipped");
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Runs a program that must succeed; `Skipped` where it is not installed.
pub(crate) fn run(directory: &Path, program: &str, arguments: &[&str]) -> Result<String, Skipped> {
    let outcome = Command::new(program)
        .args(arguments)
        .current_dir(directory)
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("GIT_AUTHOR_NAME", "A")
        .env("GIT_AUTHOR_EMAIL", "a@example.org")
        .env("GIT_COMMITTER_NAME", "A")
        .env("GIT_COMMITTER_EMAIL", "a@example.org")
        .stdin(Stdio::null())
        .output();
    match outcome {
        Ok(output) if output.status.success() => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        Ok(output) => panic!(
            "{program} {arguments:?}: {}\n{}{}",
            output.status,
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        ),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            Err(Skipped(format!("{program} is not installed")))
        }
        Err(error) => panic!("{program}: {error}"),
    }
}

/// All bytes of a file.
pub(crate) fn content(path: &Path) -> Vec<u8> {
    let mut bytes = Vec::new();
    std::fs::File::open(path).and_then(|mut file| file.read_to_end(&mut bytes)).expect("readable");
    bytes
}

/// Whether the kernel is of this version or newer.
fn kernel_is(major: u32, minor: u32) -> bool {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let numbers: Vec<u32> = release.split(|letter: char| !letter.is_ascii_digit()).flat_map(str::parse).collect();
    numbers[..2] >= [major, minor][..]
}

/// Waits until `holds` does, two minutes at most.
pub(crate) fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let begin = std::time::Instant::now();
    while !holds() {
        assert!(begin.elapsed().as_secs() < 120, "{what}: not within two minutes");
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
}
