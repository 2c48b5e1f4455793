//! What happens when the injected library is loaded: before any other library's initialisers and before the program.

use crate::thread::set_busy;
use crate::{entry, environment, front, objects, signal};

/// How the injected library opens a volume, by its name and the manner that [`MountedAt`](crate::MountedAt) has: the composition root above
/// this crate.
pub type OpenVolume = fn(&[u8], &[u8]) -> Result<std::sync::Arc<dyn gannet_vfs::FileSystem>, NotOpened>;

/// Why a volume was not opened.
#[derive(Debug)]
pub struct NotOpened {
    /// The errno that fits best.
    pub errno: gannet_vfs::Errno,
    /// What is said on standard error: which volume, what is wrong, and what can be done.
    pub message: String,
}

/// Starts the interception in this process, if the environment asks for it. Called once, by the initialiser of the injected library.
///
/// # Safety
/// `environment` must be the process's environment; no other thread may run.
#[unsafe(link_section = ".text.hot.gannet")]
pub unsafe fn start(environment: *mut *const u8, open: OpenVolume) {
    set_busy(true);
    // SAFETY: the caller's promises.
    unsafe {
        crate::load_order::move_last();
        if on_valgrind() {
            if environment::variable(environment, "GANNET_RUN_LIBRARY").is_some() {
                front::complain(&[
                    b"a program under valgrind will not see the volume (`gannet mount` shows it to every program)",
                ]);
                let inherited = environment::variable(environment, "GANNET_RUN_DESCRIPTORS");
                front::nowhere::enter_if_inside(inherited.unwrap_or_default());
            }
        } else if environment::initialise(environment) {
            signal::initialise();
            entry::initialise();
            name_process();
            front::initialise(open);
            if let Some(preload) = environment::variable(environment, "LD_PRELOAD") {
                front::libraries::close_preloaded(preload);
            }
            if objects::rewrite_loaded(environment) {
                environment::hide(environment);
            } else {
                front::complain(&[
                    b"this program brings threads of its own (Go without the C library) and",
                    b" will not see the volume (`gannet mount` shows it to every program)",
                ]);
                let inherited = environment::settings().map_or(&b""[..], environment::Settings::descriptors);
                front::nowhere::enter_if_inside(inherited);
            }
            // Only now: a volume that is opened for it may be mapped where the prepared copies want to be.
            front::inherit();
        }
    }
    set_busy(false);
}

/// Whether valgrind interprets this program: it can follow neither stacks that are switched nor code that changes behind its
/// back. Asked by its client request `RUNNING_ON_VALGRIND` (valgrind.h), which does nothing on a processor.
fn on_valgrind() -> bool {
    const RUNNING_ON_VALGRIND: u64 = 0x1001;
    let request: [u64; 6] = [RUNNING_ON_VALGRIND, 0, 0, 0, 0, 0];
    let mut answer = 0u64;
    // SAFETY: the rotations add up to 128 bits, and the exchange is of a register with itself. valgrind reads six words at rax.
    unsafe {
        core::arch::asm!(
            "rol rdi, 3",
            "rol rdi, 13",
            "rol rdi, 61",
            "rol rdi, 51",
            "xchg rbx, rbx",
            in("rax") request.as_ptr(),
            inout("rdx") answer,
            options(nostack, readonly)
        );
    }
    answer != 0
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
