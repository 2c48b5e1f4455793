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
