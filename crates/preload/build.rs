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
    // What every start runs lies together: a page fault maps the pages around it.
    let order = PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it")).join("start.ld");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-T,{}", order.display());
    println!("cargo:rerun-if-changed=start.ld");
}
