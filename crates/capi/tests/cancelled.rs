//! Threads that are asked to end (`pthread_cancel`) while they are in a call: the call is done first.

#[macro_use]
mod common;

use common::{Attached, attach, c, make_volume};
use gannet::attach::{gannet_attach, gannet_detach, gannet_set_credentials};
use gannet::data::*;
use gannet::descriptors::*;
use gannet::space::*;
use libc::{O_CREAT, O_RDWR};
use std::ffi::{CString, c_int, c_void};
use std::ptr::{null, null_mut};

const PTHREAD_CANCEL_DISABLE: c_int = 1;

unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, previous: *mut c_int) -> c_int;
}

struct Task {
    volume: Attached,
    path: CString,
    done: i32,
}

extern "C" fn work(task: *mut c_void) -> *mut c_void {
    // SAFETY: the test's, which waits for this thread.
    let Task { volume, path, done } = unsafe { &mut *task.cast::<Task>() };
    // SAFETY: the calling thread, which is asked to end at the next function that minds it.
    unsafe { libc::pthread_cancel(libc::pthread_self()) };
    let fd = good!(gannet_open, volume, c("a").as_ptr(), O_RDWR | O_CREAT, 0o600) as i32;
    good!(gannet_pwrite, volume, fd, b"a".as_ptr().cast(), 1, 0);
    good!(gannet_fsync, volume, fd);
    good!(gannet_close, volume, fd);
    *done += 1;
    good!(gannet_set_credentials, volume, null());
    *done += 1;
    // SAFETY: a string; the handle's last use.
    unsafe {
        let another = gannet_attach(path.as_ptr(), null(), null_mut());
        assert!(!another.is_null());
        *done += 1;
        assert_eq!(gannet_detach(another), 0);
    }
    *done += 1;
    // SAFETY: what comes behind the calls is the test's, and Rust's.
    unsafe { pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, null_mut()) };
    null_mut()
}

#[test]
fn a_thread_that_is_to_end_finishes_its_call() {
    let file = make_volume(false);
    let path = c(file.path().to_str().expect("UTF-8"));
    let mut task = Task { volume: attach(&file), path, done: 0 };
    let mut result = null_mut();
    // SAFETY: places of our own; the thread ends before they do.
    unsafe {
        let mut thread = std::mem::zeroed();
        assert_eq!(libc::pthread_create(&mut thread, null(), work, (&raw mut task).cast()), 0);
        assert_eq!(libc::pthread_join(thread, &mut result), 0);
    }
    assert_eq!((task.done, result), (4, null_mut()));
}
