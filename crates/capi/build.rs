//! How the shared library is linked: with the name that programs ask the loader for, and so that it is never unloaded, since
//! handlers of signals and of fork stay behind in the process.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libgannet.so.0");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
