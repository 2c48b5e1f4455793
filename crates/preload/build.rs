//! Link options of the injected library.

use std::path::PathBuf;

fn main() {
    // The unwinder inside the library instead of one more library to load at every start: what the compiler asks the linker for
    // as `gcc_s` is answered by this script, which stands first in the search path.
    let directory = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    std::fs::write(directory.join("libgcc_s.so"), "INPUT(-lgcc_eh -lgcc)\n").expect("writing to OUT_DIR");
    println!("cargo:rustc-cdylib-link-arg=-L{}", directory.display());
    println!("cargo:rerun-if-changed=build.rs");
    // Not the C compiler's start files: they run code at each start and end that does nothing here, on pages of its own.
    println!("cargo:rustc-cdylib-link-arg=-nostartfiles");
    // Its initialiser runs before every other library's, so that those already see the volume.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,initfirst");
    // Never unloaded: the program's code leads into it.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,now");
    // Relocations in a hundredth of the room, where the C library that it is linked with reads them so: each start reads them all, and
    // what lies behind them is on a page that is there then.
    let c_library = c_library_version();
    if c_library.is_some_and(|version| version >= (2, 36)) {
        println!("cargo:rustc-cdylib-link-arg=-Wl,-z,pack-relative-relocs");
    }
    // Before, threads' functions and others were in libraries of their own.
    println!("cargo::rustc-check-cfg=cfg(one_c_library)");
    if c_library.is_some_and(|version| version >= (2, 34)) {
        println!("cargo::rustc-cfg=one_c_library");
    }
    // What every start runs lies together: a page fault maps the pages around it.
    let order = PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it")).join("start.ld");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-T,{}", order.display());
    println!("cargo:rerun-if-changed=start.ld");
}

/// The version of the C library of this machine, for which the library is made.
fn c_library_version() -> Option<(u32, u32)> {
    let answer = std::process::Command::new("getconf").arg("GNU_LIBC_VERSION").output().ok()?;
    let text = String::from_utf8(answer.stdout).ok()?;
    let (major, minor) = text.trim().strip_prefix("glibc ")?.split_once('.')?;
    Some((major.parse().ok()?, minor.split('.').next()?.parse().ok()?))
}
