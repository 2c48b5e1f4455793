//! Puts the library that `gannet run` injects into the command, where that is to be installed by itself (`cargo install --path
//! crates/cli`; `.cargo/config.toml` here says so). Elsewhere the library lies beside the command, and is not built twice.

use std::collections::hash_map::DefaultHasher;
use std::env;
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    println!("cargo::rustc-check-cfg=cfg(library_inside)");
    println!("cargo::rerun-if-env-changed=GANNET_LIBRARY_INSIDE");
    println!("cargo::rerun-if-changed=build.rs");
    if env::var_os("GANNET_LIBRARY_INSIDE").is_none_or(|value| value != "1") {
        return;
    }
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    for part in ["preload", "intercept", "open", "logfs", "memfs", "vfs", "shm", "media", "usermem"] {
        println!("cargo::rerun-if-changed={}", crates.join(part).display());
    }
    let target = PathBuf::from(env::var_os("OUT_DIR").expect("cargo says where")).join("library");
    let mut cargo = Command::new(env::var_os("CARGO").expect("cargo says which"));
    cargo.args(["build", "--release", "-p", "gannet-preload", "--config", "profile.release.strip=\"debuginfo\""]);
    cargo.arg("--manifest-path").arg(crates.join("../Cargo.toml")).arg("--target-dir").arg(&target);
    assert!(cargo.status().is_ok_and(|status| status.success()), "the library for `gannet run` cannot be built");
    let library = target.join("release/libgannet_preload.so");
    let mut hash = DefaultHasher::new();
    std::fs::read(&library).expect("it has just been built").hash(&mut hash);
    println!("cargo::rustc-env=GANNET_LIBRARY_FILE={}", library.display());
    println!("cargo::rustc-env=GANNET_LIBRARY_HASH={:016x}", hash.finish());
    println!("cargo::rustc-cfg=library_inside");
}
