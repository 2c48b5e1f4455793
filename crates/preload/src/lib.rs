//! The library that `gannet run` injects: starts the interception, with an allocator of its own.

mod allocator;
mod errors;
mod failures;
#[cfg(one_c_library)]
mod lazy_functions;
mod memory_functions;
mod tls;

use core::ffi::{c_char, c_int};
use gannet_intercept::NotOpened;
use gannet_vfs::FileSystem;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

#[global_allocator]
static ALLOCATOR: allocator::Allocator = allocator::Allocator;

fn open(volume: &[u8], manner: &[u8]) -> Result<Arc<dyn FileSystem>, NotOpened> {
    let path = Path::new(OsStr::from_bytes(volume));
    let copy_on_write = std::str::from_utf8(manner).ok().and_then(gannet_open::copy_on_write_of);
    let options = gannet_open::Options { copy_on_write, ..Default::default() };
    gannet_open::open(path, options).map_err(|error| NotOpened { errno: error.errno(), message: error.to_string() })
}

extern "C" fn initialise(_argument_count: c_int, _arguments: *const *const c_char, environment: *mut *const u8) {
    // SAFETY: called by the dynamic loader once all is relocated, before the program and its threads.
    unsafe { memory_functions::bind() };
    failures::install();
    gannet_intercept::set_fork_hook(allocator::around_fork);
    gannet_intercept::set_thread_exit_hook(tls::run_destructors);
    // SAFETY: called by the dynamic loader with the process's environment, before the program and its threads.
    unsafe { gannet_intercept::start(environment, open) };
}

// What the C compiler's own start files would bring: which library it is that registers destructors.
core::arch::global_asm!(
    ".pushsection .data.rel.ro.gannet_handle, \"aw\", @progbits",
    ".p2align 3",
    ".weak __dso_handle",
    ".hidden __dso_handle",
    ".type __dso_handle, @object",
    ".size __dso_handle, 8",
    "__dso_handle: .quad __dso_handle",
    ".popsection"
);

/// An ELF note that says which sources the library was made from; the command looks at it before it injects the library.
#[repr(C)]
struct BuildNote {
    name_bytes: u32,
    content_bytes: u32,
    kind: u32,
    name: [u8; 8],
    content: [u8; gannet_open::BUILD.len()],
}

#[used]
#[unsafe(link_section = ".note.gannet")]
static BUILD_NOTE: BuildNote = BuildNote {
    name_bytes: 8,
    content_bytes: gannet_open::BUILD.len() as u32,
    kind: 1,
    name: *b"Gannet\0\0",
    content: *gannet_open::BUILD.as_bytes().first_chunk().expect("as long as itself"),
};

#[used]
#[unsafe(link_section = ".init_array")]
static INITIALISE: extern "C" fn(c_int, *const *const c_char, *mut *const u8) = initialise;
