//! Link options of the injected library.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    // Its initialiser runs before every other library's, so that those already see the volume.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,initfirst");
    // Never unloaded: the program's code leads into it.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,now");
}
