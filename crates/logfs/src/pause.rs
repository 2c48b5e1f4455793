//! Waiting for a while, by the system call itself: the C library's function would be one at which a thread can be cancelled
//! (`pthread_cancel`), and that ends the process in the middle of an operation.

use rustix::thread::{NanosleepRelativeResult, Timespec, nanosleep};
use std::time::Duration;

/// Waits as long, whatever signals come.
pub(crate) fn pause(duration: Duration) {
    let mut left = Timespec { tv_sec: duration.as_secs() as i64, tv_nsec: i64::from(duration.subsec_nanos()) };
    while let NanosleepRelativeResult::Interrupted(rest) = nanosleep(&left) {
        left = rest;
    }
}
