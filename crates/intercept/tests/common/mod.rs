//! What the tests share: the injected library, volumes, and commands under interception.

#![allow(dead_code, unused_imports, reason = "each test program uses a part")]

mod afterwards;
pub(crate) mod differ;
pub(crate) mod ordinary;
pub(crate) mod random;
mod running;

pub(crate) use afterwards::{in_directory, nothing_is_left};
pub(crate) use running::run;

use gannet_logfs::{FurtherOptions, MakeOptions, make_spanning};
use gannet_media::{CreateOptions, Medium};
use gannet_vfs::{FileSystem, Owner, Time};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::{Arc, OnceLock};

/// The injected library, built now if it is not: a test of this crate alone does not build it.
pub(crate) fn library() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        if let Some(copy) = std::env::var_os(ordinary::LIBRARY) {
            return PathBuf::from(copy);
        }
        let test = std::env::current_exe().expect("this test");
        let path = test.ancestors().nth(2).expect("target/PROFILE").join("libgannet_preload.so");
        if is_newer_than_sources(&path) {
            return path;
        }
        let mut command = Command::new(env!("CARGO"));
        command.args(["build", "--quiet", "-p", "gannet-preload"]);
        let profile = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().expect("target").to_owned();
        let test = std::env::current_exe().expect("this test");
        let directory = test.ancestors().nth(2).expect("target/PROFILE").to_owned();
        if directory.ends_with("release") {
            command.arg("--release");
        }
        command.arg("--target-dir").arg(profile);
        assert!(command.status().expect("cargo").success(), "building the injected library");
        let path = directory.join("libgannet_preload.so");
        assert!(path.is_file(), "{} is missing", path.display());
        path
    })
}

/// Whether the library need not be built again, which could wait for others that build.
fn is_newer_than_sources(path: &Path) -> bool {
    let modified = |path: &Path| path.metadata().and_then(|all| all.modified()).ok();
    let Some(built) = modified(path) else { return false };
    // All that it is made of.
    let crates = ["intercept", "preload", "open", "logfs", "memfs", "vfs", "shm", "media", "usermem"];
    let of_crate = |name| Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(name).join("src");
    let mut directories: Vec<PathBuf> = crates.map(of_crate).into();
    while let Some(directory) = directories.pop() {
        for entry in std::fs::read_dir(directory).expect("the sources") {
            let path = entry.expect("the sources").path();
            if path.is_dir() {
                directories.push(path);
            } else if modified(&path).is_none_or(|source| source > built) {
                return false;
            }
        }
    }
    true
}

/// A volume in memory that others can open by path, removed at the end.
pub(crate) struct Volume {
    /// Held open, as `gannet run` does: otherwise each process would be the first and the last.
    held: Option<Arc<dyn FileSystem>>,
    directory: tempfile::TempDir,
}

impl Volume {
    /// A new one of so many MiB.
    pub(crate) fn new(mebibytes: u64) -> Volume {
        Volume::over(&[mebibytes])
    }

    /// A new one of so many MiB, data copy-on-write.
    pub(crate) fn copy_on_write(mebibytes: u64) -> Volume {
        Volume::make(&[mebibytes], true)
    }

    /// One over several files, of so many MiB each.
    pub(crate) fn over(mebibytes: &[u64]) -> Volume {
        Volume::make(mebibytes, false)
    }

    fn make(mebibytes: &[u64], copy_on_write: bool) -> Volume {
        static MADE: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(1);
        let count = MADE.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let unique = u64::from(std::process::id()) << 32 | u64::from(count);
        let directory = tempfile::Builder::new().prefix("gannet-intercept-").tempdir_in("/dev/shm").expect("/dev/shm");
        let mut volume = Volume { held: None, directory };
        let (mut parts, mut further, mut start_bytes) = (Vec::new(), Vec::new(), 0);
        for (index, mebibytes) in mebibytes.iter().enumerate() {
            let path = if index == 0 { volume.path() } else { volume.directory.path().join(index.to_string()) };
            let length = mebibytes << 20;
            let medium = Medium::create(&path, length, CreateOptions::default(), &mut |_| ()).expect("the file");
            if index > 0 {
                further.push(FurtherOptions { start_bytes, path: index.to_string().into() });
            }
            parts.push((medium, path, length));
            start_bytes += length;
        }
        let medium = if further.is_empty() { parts.remove(0).0 } else { Medium::join(parts).expect("one medium") };
        let options = MakeOptions {
            label: String::new(),
            copy_on_write,
            emulate_persistence: false,
            owner: Owner { user: rustix::process::geteuid().as_raw(), group: rustix::process::getegid().as_raw() },
            mode: 0o755,
            // Volumes of one identity would have each other's programs run from them.
            random: std::array::from_fn(|at| unique.to_le_bytes()[at % 8]),
            now: Time::now(),
        };
        make_spanning(&medium, &options, &further).expect("the volume");
        drop(medium);
        volume.held =
            Some(gannet_open::open(&volume.path(), gannet_open::Options::default()).expect("the volume opens"));
        volume
    }

    /// Its path.
    pub(crate) fn path(&self) -> PathBuf {
        self.directory.path().join("volume")
    }

    /// The file system, as the tests have it open.
    pub(crate) fn file_system(&self) -> Arc<dyn FileSystem> {
        Arc::clone(self.held.as_ref().expect("held open"))
    }

    /// From now on nobody holds it open but those who use it.
    pub(crate) fn alone(&mut self) {
        self.held = None;
    }

    /// Whether the last who had it open closed it.
    pub(crate) fn is_closed(&self) -> bool {
        let medium = Medium::open(&self.path(), gannet_media::OpenOptions::default()).expect("the file");
        gannet_logfs::describe(&medium).expect("a volume").closed_cleanly
    }

    /// How the names of its arenas end.
    pub(crate) fn nonce(&self) -> String {
        use std::os::unix::fs::MetadataExt;
        format!("{:06x}", self.path().metadata().expect("the file").ino() & 0xff_ffff)
    }

    /// A command with the volume at /gannet.
    pub(crate) fn command(&self, program: &str) -> Command {
        self.command_with_time(program, 60)
    }

    /// Likewise, with so many seconds until it is killed.
    pub(crate) fn command_with_time(&self, program: &str, seconds: u32) -> Command {
        let mut volumes = self.path().into_os_string();
        volumes.push("\x1f/gannet");
        let mut command = intercepted_with_time(program, seconds);
        command.env("GANNET_RUN_VOLUMES", volumes);
        command
    }

    /// Runs a shell script with the volume at /gannet and in it; its output must be `wanted`.
    #[track_caller]
    pub(crate) fn script(&self, script: &str, wanted: &str) {
        let output = run(self.command("bash").arg("-c").arg(format!("cd /gannet || exit 99\n{script}")));
        check(&output, script, wanted);
    }
}

/// How much longer everything may take on a busy machine.
pub(crate) const BUSY: u32 = 5;

/// A command under interception without a volume.
pub(crate) fn intercepted(program: &str) -> Command {
    intercepted_with_time(program, 120)
}

/// Likewise, with so many seconds until it is killed.
pub(crate) fn intercepted_with_time(program: &str, seconds: u32) -> Command {
    let mut command = Command::new("timeout");
    // What hangs is a failure, not a hang of the tests.
    command.args(["-s", "KILL", &(seconds * BUSY).to_string(), program]);
    command.env("LD_PRELOAD", library()).env("GANNET_RUN_LIBRARY", library()).env("GANNET_RUN_VOLUMES", "");
    command.env("LC_ALL", "C").env("HOME", "/nonexistent").env("XDG_CACHE_HOME", ordinary::cache());
    command.stdin(Stdio::null());
    command
}

/// A command without interception, killed after minutes.
pub(crate) fn on_host(program: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = Command::new("timeout");
    command.args(["-s", "KILL", &(120 * BUSY).to_string()]).arg(program);
    command
}

/// Whether this is root; else it is said that a test is left out, since only root can do that.
pub(crate) fn is_root_who_can(what: &str) -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        eprintln!("left out: only root can {what}");
    }
    is_root
}

/// It must have succeeded with this output.
#[track_caller]
pub(crate) fn check(output: &Output, what: &str, wanted: &str) {
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{what}\n{}\nstdout: {out}\nstderr: {err}", output.status);
    let differs = out.lines().zip(wanted.lines()).find(|(out, wanted)| out != wanted);
    assert_eq!(out.trim_end(), wanted.trim_end(), "{what}\nfirst difference: {differs:?}\nstderr: {err}");
}

/// The same command with and without interception must say the same.
#[track_caller]
pub(crate) fn same(program: &str, arguments: &[&str]) {
    let plain = run(on_host(program).args(arguments).env("LC_ALL", "C"));
    let ours = run(intercepted(program).args(arguments));
    assert_eq!(
        ours.status.code(),
        plain.status.code(),
        "{program} {arguments:?}: {}",
        String::from_utf8_lossy(&ours.stderr)
    );
    assert_eq!(
        String::from_utf8_lossy(&ours.stdout),
        String::from_utf8_lossy(&plain.stdout),
        "{program} {arguments:?}"
    );
}

/// Whether a program is there; tests of programs that are not are left out, and say so.
pub(crate) fn have(program: &str) -> bool {
    let found =
        Command::new("sh").arg("-c").arg(format!("command -v {program}")).output().is_ok_and(|o| o.status.success());
    if !found {
        eprintln!("left out: {program} is not installed");
    }
    found
}

/// Compiles one of the test programs; where it is.
pub(crate) fn compile(name: &str) -> (tempfile::TempDir, PathBuf) {
    compile_with(name, &[])
}

/// Likewise, with more flags.
pub(crate) fn compile_with(name: &str, flags: &[&str]) -> (tempfile::TempDir, PathBuf) {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs").join(format!("{name}.c"));
    let program = directory.path().join(name);
    let status = Command::new("cc")
        .args(["-O1", "-g", "-w", "-pthread"])
        .args(flags)
        .arg("-o")
        .arg(&program)
        .arg(source)
        .status();
    assert!(status.expect("cc").success());
    (directory, program)
}
