//! The library that `gannet run` injects, beside the command: no dependency of it, so cargo does not build it for these tests.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Once;

/// Builds it where it is missing or older than its sources. Otherwise cargo is not asked: it could wait for others that build, and alone it
/// chooses other features than for the whole workspace, and builds everything again.
pub(crate) fn build_library() {
    static BUILD: Once = Once::new();
    BUILD.call_once(|| {
        let directory = Path::new(env!("CARGO_BIN_EXE_gannet")).parent().unwrap();
        if is_current(&directory.join("libgannet_preload.so")) {
            return;
        }
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["build", "--quiet", "-p", "gannet-preload"]).current_dir(env!("CARGO_MANIFEST_DIR"));
        if directory.ends_with("release") {
            cargo.arg("--release");
        }
        assert!(cargo.status().unwrap().success());
    });
}

/// Whether no source of any crate is younger.
fn is_current(library: &Path) -> bool {
    let modified = |path: &Path| path.metadata().and_then(|all| all.modified()).ok();
    let Some(built) = modified(library) else { return false };
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let names = |directory: &Path| -> Vec<PathBuf> {
        std::fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path()).collect()
    };
    let mut left: Vec<PathBuf> = names(&crates)
        .into_iter()
        .flat_map(|one| [one.join("Cargo.toml"), one.join("build.rs"), one.join("src")])
        .collect();
    while let Some(path) = left.pop() {
        if path.is_dir() {
            left.extend(names(&path));
        } else if modified(&path).is_some_and(|source| source > built) {
            return false;
        }
    }
    true
}
