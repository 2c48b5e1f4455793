//! What happens when the injected library is loaded: before any other library's initialisers and before the program.

use crate::thread::set_busy;
use crate::{environment, front, objects, signal};

/// How the injected library opens a volume: the composition root above this crate.
pub type OpenVolume = fn(&[u8]) -> std::io::Result<std::sync::Arc<dyn gannet_vfs::FileSystem>>;

/// Starts the interception in this process, if the environment asks for it. Called once, by the initialiser of the injected library.
///
/// # Safety
/// `environment` must be the process's environment; no other thread may run.
pub unsafe fn start(environment: *const *const u8, open: OpenVolume) {
    set_busy(true);
    // SAFETY: the caller's promises.
    unsafe {
        if environment::initialise(environment) {
            signal::initialise();
            name_process();
            front::initialise(open);
            if let Some(preload) = environment::variable(environment, "LD_PRELOAD") {
                front::libraries::close_preloaded(preload);
            }
            if !objects::rewrite_loaded(environment) {
                front::complain(&[
                    b"this program brings threads of its own (Go without the C library) and",
                    b" will not see the volume (`gannet mount` shows it to every program)",
                ]);
            }
        }
    }
    set_busy(false);
}

/// The kernel calls a program that it executes from a memory file by the number of a descriptor.
fn name_process() {
    const PR_SET_NAME: usize = 15;
    let program = environment::settings().map_or(&b""[..], environment::Settings::program);
    if !program.is_empty() {
        let mut name = program.rsplit(|byte| *byte == b'/').next().unwrap_or_default().to_vec();
        name.push(0);
        // SAFETY: a string that ends in zero.
        unsafe { crate::raw::syscall(crate::number::PRCTL, [PR_SET_NAME, name.as_ptr() as usize]) };
    }
}
