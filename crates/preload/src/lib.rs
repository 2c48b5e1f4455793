//! The library that `gannet run` injects: starts the interception, with an allocator of its own.

mod allocator;
mod tls;

use core::ffi::{c_char, c_int};

#[global_allocator]
static ALLOCATOR: allocator::Allocator = allocator::Allocator;

fn open(_volume: &[u8]) -> std::io::Result<std::sync::Arc<dyn gannet_vfs::FileSystem>> {
    Err(std::io::Error::from_raw_os_error(38))
}

extern "C" fn initialise(_argument_count: c_int, _arguments: *const *const c_char, environment: *const *const u8) {
    gannet_intercept::set_fork_hook(allocator::around_fork);
    // SAFETY: called by the dynamic loader with the process's environment, before the program and its threads.
    unsafe { gannet_intercept::start(environment, open) };
}

#[used]
#[unsafe(link_section = ".init_array")]
static INITIALISE: extern "C" fn(c_int, *const *const c_char, *const *const u8) = initialise;
