//! Circles of requests that wait for record locks.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use gannet_vfs::Errno;

use super::{by_root, with_a_file};
use crate::dispatch::waiting::WAITERS_MAX;
use crate::dispatch::{Dispatcher, Outcome, Wait};
use crate::protocol::request::{Header, LockRequest};

const F_RDLCK: u32 = 0;
const F_WRLCK: u32 = 1;
const F_UNLCK: u32 = 2;

/// A file, and who asks for locks on it.
struct Asking {
    dispatcher: Arc<Dispatcher>,
    header: Header,
    handle: u64,
}

impl Asking {
    fn new() -> Self {
        let (_, dispatcher, node) = with_a_file();
        let header = by_root(dispatcher.nodes.id(node));
        let handle = dispatcher.open_handle(&header, node, 2).unwrap();
        Self { dispatcher, header, handle }
    }

    fn ask(&mut self, owner: u64, kind: u32, (start, end): (u64, u64), wait: bool) -> Result<Outcome, Errno> {
        self.header.unique += 1;
        let request = LockRequest { handle: self.handle, owner, start, end, kind, process: 7, flags: 0 };
        self.dispatcher.set_lock(&self.header, &request, wait).map_err(|error| error.errno())
    }

    fn take(&mut self, owner: u64, range: (u64, u64)) {
        assert!(matches!(self.ask(owner, F_WRLCK, range, false), Ok(Outcome::Reply(0))), "{owner} takes {range:?}");
    }

    fn wait(&mut self, owner: u64, range: (u64, u64)) -> Box<Wait> {
        match self.ask(owner, F_WRLCK, range, true) {
            Ok(Outcome::Waits(wait)) => wait,
            Err(errno) => panic!("{owner}: {errno}"),
            _ => panic!("{owner} need not wait"),
        }
    }

    fn is_told(&mut self, owner: u64, range: (u64, u64)) -> bool {
        match self.ask(owner, F_WRLCK, range, true) {
            Ok(Outcome::Waits(wait)) if wait.is_suspected() => {
                assert!(matches!(wait.outcome(), Outcome::Error(Errno::DEADLK)));
                true
            }
            Ok(Outcome::Waits(wait)) => {
                wait.refuse();
                false
            }
            _ => panic!("{owner} need not wait"),
        }
    }

    fn ends(self) {
        assert!(self.dispatcher.locks.waiters.lock().unwrap().is_empty());
        assert!(self.dispatcher.finish());
    }
}

#[test]
fn every_lock_in_the_way_counts() {
    let mut asking = Asking::new();
    asking.take(1, (2, 6));
    asking.take(2, (9, 13));
    asking.take(3, (17, 21));
    // The third waits for the first, and for the second behind it.
    let wait = asking.wait(2, (17, 21));
    assert!(asking.is_told(3, (2, 15)));
    wait.refuse();
    let wait = asking.wait(3, (2, 15));
    assert!(asking.is_told(2, (17, 21)));
    assert!(!asking.is_told(4, (17, 21)), "it holds nothing");
    assert!(asking.is_told(1, (17, 21)));
    wait.refuse();
    assert!(!asking.is_told(2, (17, 21)));
    asking.ends();
}

#[test]
fn readers_that_both_want_to_write_are_a_circle() {
    let mut asking = Asking::new();
    for reader in [1, 2, 3] {
        assert!(matches!(asking.ask(reader, F_RDLCK, (0, 9), false), Ok(Outcome::Reply(0))));
    }
    let wait = asking.wait(3, (5, 5));
    assert!(asking.is_told(1, (0, 9)));
    wait.refuse();
    asking.ends();
}

#[test]
fn a_circle_that_a_granted_lock_closes_is_told_to_its_owner_alone() {
    let mut asking = Asking::new();
    asking.take(1, (1, 1));
    asking.take(3, (3, 3));
    let first = asking.wait(1, (2, 4));
    let second = asking.wait(2, (1, 1));
    let waiting = std::thread::spawn(move || second.outcome());
    // Another thread of the second gets what the first waits for, too, and one more, by waiting.
    asking.take(2, (2, 2));
    assert!(matches!(waiting.join().unwrap(), Outcome::Error(Errno::DEADLK)));
    let second = asking.wait(3, (2, 2));
    assert!(matches!(asking.ask(2, F_UNLCK, (2, 2), false), Ok(Outcome::Reply(0))));
    assert!(matches!(second.outcome(), Outcome::Reply(0)));
    // The first waits on, and gets it when the third is done.
    let waiting = std::thread::spawn(move || first.outcome());
    assert!(matches!(asking.ask(3, F_UNLCK, (0, 9), false), Ok(Outcome::Reply(0))));
    assert!(matches!(waiting.join().unwrap(), Outcome::Reply(0)));
    asking.ends();
}

/// Whether a thread waits for the lock of an open file, which makes no circle, is known when it sleeps.
#[test]
fn who_runs_is_told_of_no_circle() {
    let mut asking = Asking::new();
    asking.take(1, (1, 1));
    asking.take(2, (2, 2));
    let first = asking.wait(1, (2, 2));
    let (says, hears) = std::sync::mpsc::channel();
    let (runs, ends) = (Arc::new(AtomicBool::new(true)), Arc::new(AtomicBool::new(false)));
    let (theirs, ended) = (Arc::clone(&runs), Arc::clone(&ends));
    let thread = std::thread::spawn(move || {
        says.send(rustix::thread::gettid().as_raw_pid() as u32).unwrap();
        while theirs.load(Ordering::Relaxed) {
            std::hint::spin_loop();
        }
        // It waits for something else than the lock of an open file.
        while !ended.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(20));
        }
    });
    asking.header.process = hears.recv().unwrap();
    let second = asking.wait(2, (1, 1));
    asking.header.process = 0;
    let waiting = std::thread::spawn(move || second.outcome());
    std::thread::sleep(Duration::from_millis(100));
    assert!(!waiting.is_finished(), "it runs");
    runs.store(false, Ordering::Relaxed);
    assert!(matches!(waiting.join().unwrap(), Outcome::Error(Errno::DEADLK)));
    ends.store(true, Ordering::Relaxed);
    thread.join().unwrap();
    first.refuse();
    asking.ends();
}

#[test]
fn a_lock_that_is_soon_released_closes_no_circle() {
    let mut asking = Asking::new();
    asking.take(1, (1, 1));
    asking.take(3, (3, 3));
    let first = asking.wait(1, (2, 4));
    let second = asking.wait(2, (1, 1));
    let waiting = std::thread::spawn(move || second.outcome());
    asking.take(2, (2, 2));
    assert!(matches!(asking.ask(2, F_UNLCK, (2, 2), false), Ok(Outcome::Reply(0))));
    std::thread::sleep(Duration::from_millis(400));
    assert!(!waiting.is_finished(), "it waits for the first");
    first.refuse();
    assert!(matches!(asking.ask(1, F_UNLCK, (1, 1), false), Ok(Outcome::Reply(0))));
    assert!(matches!(waiting.join().unwrap(), Outcome::Reply(0)));
    asking.ends();
}

#[test]
fn long_chains_of_waiters_cost_little_and_are_followed_so_far() {
    let mut asking = Asking::new();
    let before = std::time::Instant::now();
    let count = WAITERS_MAX as u64 - 1;
    (0..=count).for_each(|owner| asking.take(owner, (owner, owner)));
    // Each waits for the next, and for all behind it.
    let waits: Vec<_> = (0..count).map(|owner| asking.wait(owner, (owner + 1, count))).collect();
    assert!(asking.is_told(count, (0, 0)), "by one that waits for it directly");
    for wait in waits {
        wait.refuse();
    }
    // The last has nobody behind it; so a chain of the same length, one by one, from its end: each sees all that is behind it.
    let waits: Vec<_> = (0..count).rev().map(|owner| asking.wait(owner, (owner + 1, owner + 1))).collect();
    assert!(asking.is_told(count, (count - 200, count - 200)), "200 are followed");
    assert!(!asking.is_told(count, (0, 0)), "a thousand are not");
    for wait in waits {
        wait.refuse();
    }
    assert!(before.elapsed().as_secs() < 60, "{:?}", before.elapsed());
    eprintln!("{:?}", before.elapsed());
    asking.ends();
}
