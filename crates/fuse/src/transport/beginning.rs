//! What the process was started with, looked at before Rust's own beginning, which opens `/dev/null` in the place of standard descriptors that are
//! closed: then nobody can tell any more. It stands here, and not with what the command prints, because it needs `unsafe`, and not below, because nothing
//! that is injected into programs shall look.

use core::ffi::c_int;
use core::sync::atomic::{AtomicBool, Ordering};

const STANDARD_OUTPUT: c_int = 1;
const F_GETFD: c_int = 1;

static OUTPUT_WAS_CLOSED: AtomicBool = AtomicBool::new(false);

unsafe extern "C" {
    fn fcntl(descriptor: c_int, command: c_int, ...) -> c_int;
}

/// Whether standard output was closed when the process began.
#[must_use]
pub fn standard_output_was_closed() -> bool {
    OUTPUT_WAS_CLOSED.load(Ordering::Relaxed)
}

extern "C" fn look() {
    // SAFETY: asks for the flags of a descriptor, open or not; the C library is ready before what `.init_array` names is called.
    let is_open = unsafe { fcntl(STANDARD_OUTPUT, F_GETFD) } >= 0;
    OUTPUT_WAS_CLOSED.store(!is_open, Ordering::Relaxed);
}

// SAFETY: what stands in this section is called by the C library, once, before `main`; it is a function that takes what it is given, nothing, and
// touches one word.
#[unsafe(link_section = ".init_array")]
#[used]
static LOOK: extern "C" fn() = look;
