//! A number for what command and injected library have in common: of the sources of all that the library is made of.

use std::path::{Path, PathBuf};

/// Crates that the injected library consists of.
const CRATES: [&str; 9] = ["usermem", "media", "shm", "vfs", "memfs", "logfs", "open", "intercept", "preload"];

fn main() {
    let crates = PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it")).join("..");
    let mut files = Vec::new();
    for name in CRATES {
        let sources = crates.join(name).join("src");
        println!("cargo:rerun-if-changed={}", sources.display());
        collect(&sources, &mut files);
    }
    println!("cargo:rerun-if-changed=build.rs");
    files.sort();
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for file in files {
        let content = std::fs::read(&file).unwrap_or_default();
        let name = file.strip_prefix(&crates).unwrap_or(&file).to_string_lossy().into_owned();
        // FNV-1a: it tells builds apart, no more.
        for byte in name.bytes().chain([0]).chain(content) {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
    println!("cargo:rustc-env=GANNET_BUILD={hash:016x}");
}

fn collect(directory: &Path, files: &mut Vec<PathBuf>) {
    let Ok(entries) = std::fs::read_dir(directory) else { return };
    for path in entries.flatten().map(|entry| entry.path()) {
        if path.is_dir() {
            collect(&path, files);
        } else {
            files.push(path);
        }
    }
}
