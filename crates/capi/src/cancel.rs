//! Threads that another one asked to end (`pthread_cancel`).
//!
//! The C library ends them at certain functions, by unwinding, which ends the process where it comes upon Rust's functions. Most of
//! what is done here reaches none of them: system calls are made directly. Attaching, detaching, forking and asking who the process is
//! read files and wait, so there a thread is not ended before the call is done.

use std::ffi::c_int;
use std::ptr::null_mut;

const PTHREAD_CANCEL_DISABLE: c_int = 1;

unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, previous: *mut c_int) -> c_int;
}

/// The calling thread is not ended until this is dropped.
pub(crate) struct Uncancelled {
    previous: c_int,
}

impl Uncancelled {
    pub(crate) fn now() -> Self {
        let mut previous = PTHREAD_CANCEL_DISABLE;
        // SAFETY: a place for the state there was.
        unsafe { pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &mut previous) };
        Self { previous }
    }
}

impl Drop for Uncancelled {
    fn drop(&mut self) {
        // SAFETY: the state that this thread had. A thread that is to end does so at its next such function, outside.
        unsafe { pthread_setcancelstate(self.previous, null_mut()) };
    }
}
