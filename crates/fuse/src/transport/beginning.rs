//! What the process was started with, looked at before Rust's own beginning, which opens `/dev/null` in the place of standard descriptors that are
//! closed: then nobody can tell any more. It stands here, and not with what the command prints, because it needs `unsafe`, and not below, because nothing
//! that is injected into programs shall look.

use core::ffi::c_int;
use core::sync::atomic::{AtomicBool, Ordering};

const STANDARD_OUTPUT: usize = 1;
const F_GETFD: c_int = 1;

static WERE_CLOSED: [AtomicBool; 3] = [const { AtomicBool::new(false) }; 3];

unsafe extern "C" {
    fn fcntl(descriptor: c_int, command: c_int, ...) -> c_int;
}

/// Whether standard output was closed when the process began.
#[must_use]
pub fn standard_output_was_closed() -> bool {
    WERE_CLOSED[STANDARD_OUTPUT].load(Ordering::Relaxed)
}

/// Which of the standard descriptors were closed when the process began: who starts another program hands that on.
pub fn standard_descriptors_closed() -> impl Iterator<Item = i32> {
    (0..).zip(&WERE_CLOSED).filter(|(_, was_closed)| was_closed.load(Ordering::Relaxed)).map(|(number, _)| number)
}

extern "C" fn look() {
    for (number, was_closed) in (0..).zip(&WERE_CLOSED) {
        // SAFETY: asks for the flags of a descriptor, open or not; the C library is ready before what `.init_array` names is called.
        let is_open = unsafe { fcntl(number, F_GETFD) } >= 0;
        was_closed.store(!is_open, Ordering::Relaxed);
    }
}

// SAFETY: what stands in this section is called by the C library, once, before `main`; it is a function that takes what it is given, nothing, and
// touches three words.
#[unsafe(link_section = ".init_array")]
#[used]
static LOOK: extern "C" fn() = look;
