//! Whether there is room for the threads that a mount takes, before it is made.
//!
//! An ordinary user unmounts by a program, which takes a process. Who finds out that the limit is reached when it is mounted, and part of the
//! threads are there, has none for that, and cannot end those threads where the kernel's list of connections is not mounted, either: the
//! mount would stay, dead. Touches nothing but threads that do nothing.

use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use super::{StartError, Transport, ring, ring_offered};

const STACK_BYTES: usize = 64 << 10;
/// How long threads that have ended may take to be gone, in looks.
const LOOKS: usize = 100;
const LOOK_PAUSE: Duration = Duration::from_millis(1);

/// Fails where a session with so many threads on the device, or with a ring, could not be started, and a program beside it.
pub(crate) fn check_places(transport: Transport, threads: usize) -> Result<(), StartError> {
    // Whoever watches, what comes beside a ring, and that program.
    let with_ring = transport != Transport::Classic && ring_offered().is_ok();
    let serving = if with_ring { threads.max(usize::from(ring::possible_cores()) + 1) } else { threads };
    check(serving + 3)
}

fn check(count: usize) -> Result<(), StartError> {
    let before = own_threads();
    let gate = Arc::new(Mutex::new(()));
    let closed = gate.lock().unwrap_or_else(PoisonError::into_inner);
    let wait_there = |_| {
        let gate = Arc::clone(&gate);
        let body = move || drop(gate.lock());
        Builder::new().name("fuse-place".into()).stack_size(STACK_BYTES).spawn(body)
    };
    let mut made: Vec<JoinHandle<()>> = Vec::with_capacity(count);
    let outcome = (0..count).try_for_each(|index| wait_there(index).map(|thread| made.push(thread)));
    drop(closed);
    made.into_iter().for_each(|thread| _ = thread.join());
    // A thread that was waited for counts a little longer.
    for _ in 0..LOOKS {
        if own_threads() <= before {
            break;
        }
        std::thread::sleep(LOOK_PAUSE);
    }
    Ok(outcome?)
}

fn own_threads() -> usize {
    std::fs::read_dir("/proc/self/task").map_or(0, Iterator::count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_left_of_a_check() {
        check(20).unwrap();
        let names = |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join("comm")).ok();
        let left = std::fs::read_dir("/proc/self/task").unwrap().filter_map(Result::ok).filter_map(names);
        assert_eq!(left.filter(|name| name == "fuse-place\n").count(), 0);
    }
}
