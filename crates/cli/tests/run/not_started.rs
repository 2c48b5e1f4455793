//! Processes in which the injected library cannot set itself up: no program is started that would not see the volume, and would take the
//! host's files at its place for it.

use crate::{Place, build_library, gannet, text};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// A volume whose place is a directory of the host, too.
struct Both {
    place: Place,
    volume: String,
    host: PathBuf,
}

impl Both {
    fn new() -> Self {
        let place = Place::new();
        let volume = place.volume("volume");
        let host = place.path("host");
        std::fs::create_dir(&host).unwrap();
        Self { place, volume, host }
    }

    /// The arguments of a command that writes to the volume.
    fn writes(&self) -> [String; 6] {
        let at = format!("{}:{}", self.volume, self.host.display());
        let script = format!("echo lost > {}/file", self.host.display());
        ["run".into(), at, "--".into(), "/bin/sh".into(), "-c".into(), script]
    }

    /// It was not started, one line says why, and nothing was written to the host.
    #[track_caller]
    fn is_refused(&self, output: &Output, code: i32, why: &str) {
        let said = text(&output.stderr);
        assert_eq!((output.status.code(), text(&output.stdout)), (Some(code), ""), "{output:?}");
        assert!(said.starts_with("gannet: ") && said.lines().count() == 1 && said.contains(why), "{said}");
        assert_eq!(std::fs::read_dir(&self.host).unwrap().count(), 0, "nothing is on the host");
    }
}

fn library() -> PathBuf {
    build_library();
    Path::new(env!("CARGO_BIN_EXE_gannet")).parent().unwrap().join("libgannet_preload.so")
}

/// Executes its arguments where `memfd_create` is forbidden, as in some containers.
const WITHOUT_MEMORY_FILES: &str = "
import ctypes, os, struct, sys
load, equal, answer = 0x20, 0x15, 0x06
memfd_create, forbidden, allowed = 319, 0x50001, 0x7fff0000
code = [(load, 0, 0, 0), (equal, 0, 1, memfd_create), (answer, 0, 0, forbidden), (answer, 0, 0, allowed)]
code = ctypes.create_string_buffer(b''.join(struct.pack('HBBI', *one) for one in code))
program = ctypes.create_string_buffer(struct.pack('H6xQ', 4, ctypes.addressof(code)))
prctl = ctypes.CDLL(None, use_errno=True).prctl
prctl.argtypes = [ctypes.c_int] + [ctypes.c_void_p] * 4
assert prctl(38, 1, None, None, None) == 0 and prctl(22, 2, ctypes.addressof(program), None, None) == 0
os.execv(sys.argv[1], sys.argv[1:])
";

#[test]
fn where_no_memory_file_can_be_made() {
    let both = Both::new();
    build_library();
    let mut command = Command::new("python3");
    command.args(["-c", WITHOUT_MEMORY_FILES, env!("CARGO_BIN_EXE_gannet")]).args(both.writes());
    both.is_refused(&command.output().unwrap(), 126, "cannot make a memory file: the kernel refuses memfd_create");
    // What was started before has one, and those that it starts.
    let script = format!(
        "import sys; sys.argv = ['-c', '/bin/sh', '-c', 'echo kept > {0}/file; exec cat {0}/file']\n{WITHOUT_MEMORY_FILES}",
        both.host.display()
    );
    let at = format!("{}:{}", both.volume, both.host.display());
    let output = gannet().args(["run", &at, "--", "python3", "-c", &script]).output().unwrap();
    assert_eq!((output.status.code(), text(&output.stdout)), (Some(0), "kept"), "{output:?}");
    assert_eq!(std::fs::read_dir(&both.host).unwrap().count(), 0, "nothing is on the host");
}

#[test]
fn where_there_are_no_descriptors() {
    let both = Both::new();
    let library = library();
    // As a program is started deep in a tree, by one that has closed all that it had. One descriptor is left, and the loader closes what it opens.
    let script =
        "ulimit -n 4; exec env LD_PRELOAD=\"$1\" GANNET_RUN_LIBRARY=\"$1\" GANNET_RUN_VOLUMES=\"$2\" /bin/sh -c \"$3\"";
    let volumes = format!("{}\u{1f}{}", both.volume, both.host.display());
    let mut command = Command::new("/bin/sh");
    command.args(["-c", script, "sh"]).arg(library).arg(volumes).arg(&both.writes()[5]);
    both.is_refused(&command.output().unwrap(), 126, "the process may have no more descriptors (ulimit -n)");
}

#[test]
fn where_there_is_no_proc() {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: only root can unmount /proc");
        return;
    }
    let both = Both::new();
    let library = library();
    let without = || {
        let mut command = Command::new("unshare");
        command.args(["-m", "sh", "-c", "umount -l /proc && exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_gannet")]);
        command.args(both.writes());
        command
    };
    let output = without().output().unwrap();
    both.is_refused(&output, 1, "without /proc it is not known where this program is");
    assert!(text(&output.stderr).contains("GANNET_LIBRARY"), "{output:?}");
    let output = without().env("GANNET_LIBRARY", library).output().unwrap();
    both.is_refused(&output, 126, "is /proc mounted?");
    assert!(both.place.path("volume").exists());
}
