//! A file system in memory over libfuse, compiled here where a C compiler and libfuse's headers are.

use super::{Access, Peer, Undo, helped};
use crate::bench::Bench;
use crate::model::PeerFacts;
use std::process::{Command, Stdio};
use std::time::Duration;

const PROGRAM: &str = include_str!("libfuse_tree.c");

/// Compiles and mounts it.
pub(super) fn make(bench: &Bench) -> Result<Peer, String> {
    let flags = Command::new("pkg-config")
        .args(["--cflags", "--libs", "fuse3"])
        .output()
        .map_err(|error| format!("pkg-config: {error}"))?;
    if !flags.status.success() {
        return Err("libfuse's headers are not installed (libfuse3-dev)".into());
    }
    let version = Command::new("pkg-config").args(["--modversion", "fuse3"]).output();
    let version = version.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned()).unwrap_or_default();
    let flags = String::from_utf8_lossy(&flags.stdout).into_owned();
    let directory = bench.memory_directory().join("libfuse");
    let target = directory.join("mounted");
    std::fs::create_dir_all(&target).map_err(|error| format!("{}: {error}", target.display()))?;
    let undo = Undo::remove(bench, &directory);
    // The directory for temporary files may forbid programs, as may /dev/shm: the disk has the build.
    let programs = bench.disk_directory();
    std::fs::create_dir_all(&programs).map_err(|error| format!("{}: {error}", programs.display()))?;
    let (source, program) = (programs.join("libfuse_tree.c"), programs.join("libfuse_tree"));
    std::fs::write(&source, PROGRAM).map_err(|error| format!("{}: {error}", source.display()))?;
    helped(Command::new("cc").args(["-O2", "-o"]).arg(&program).arg(&source).args(flags.split_whitespace()))?;
    let peer = Peer {
        facts: PeerFacts {
            name: "libfuse".into(),
            about: format!("a file system in memory over libfuse {version}"),
            data: "in place".into(),
            medium: "memory of its server".into(),
            survives: "nothing: it ends with its server".into(),
        },
        access: Access::Directory(target.clone()),
        volume: None,
        undo: vec![undo, Undo::unmount(bench, &target)],
        keeper: bench.keeper.clone(),
        worker: None,
        span_bytes_max: u64::MAX,
    };
    let mut server = Command::new(&program);
    server
        .arg("-o")
        .arg(super::fuse_options(&["nosuid"]))
        .arg(&target)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    // It goes to the background once it is mounted.
    let output = server.output().map_err(|error| format!("{}: {error}", program.display()))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(format!("not mounted: {}", said.lines().next().unwrap_or("no word why")));
    }
    let id = |path| rustix::fs::stat(path).map(|status| status.st_dev);
    for _ in 0..100 {
        if id(&target) != id(&directory) {
            return Ok(peer);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Err("not mounted within two seconds".into())
}
