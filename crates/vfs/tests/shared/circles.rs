//! Processes that wait for each other's POSIX locks, and such that only seem to.

use crate::{private, process, request};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;

use gannet_shm::ParticipantId;
use gannet_vfs::Errno;

/// Locks that are taken and let go beside one that somebody sleeps for: of 32 groups of records each is among them.
pub(crate) const BESIDE: u64 = 600;

/// Who was woken by a lock beside the one that it waits for is no sleeper any more, and not told when that goes as well.
#[test]
fn who_was_woken_and_did_not_look_yet_is_in_no_circle() {
    let (shared, fs, nodes) = private();
    let byte = |owner, exclusive, at| request(nodes[0], process(owner), exclusive, at, at + 1);
    shared.try_lock(&fs, &byte(1, Some(true), 0)).unwrap();
    shared.try_lock(&fs, &byte(2, Some(true), 1)).unwrap();
    let (tell, told) = mpsc::channel();
    let (go_on, wait) = mpsc::channel::<()>();
    std::thread::scope(|scope| {
        let (shared, fs) = (&shared, &fs);
        let waiter = scope.spawn(move || {
            // It has noted whom it waits for, and stands still as if it had been woken.
            let mut stop = || {
                if tell.send(()).is_ok() {
                    let _ = wait.recv();
                }
                false
            };
            shared.lock(fs, &byte(2, Some(true), 0), &mut stop).map_err(|error| error.errno())
        });
        told.recv().unwrap();
        for _ in 0..BESIDE {
            shared.try_lock(fs, &byte(3, Some(true), 10)).unwrap();
            shared.try_lock(fs, &byte(3, None, 10)).unwrap();
        }
        shared.try_lock(fs, &byte(1, None, 0)).unwrap();
        // The first has nothing that the second waits for any more.
        let waited = shared.lock(fs, &byte(1, Some(true), 1), &mut || true);
        assert_eq!(waited.unwrap_err().errno(), Errno::INTR);
        drop((told, go_on));
        assert_eq!(waiter.join().unwrap(), Ok(()));
    });
}

/// A lock in the way becomes another participant's where its process executes a program: it is that one who is waited for.
#[test]
fn who_executed_a_program_is_waited_for_as_who_it_is_now() {
    let (shared, fs, nodes) = private();
    let byte = |owner, exclusive, at| request(nodes[0], process(owner), exclusive, at, at + 1);
    let id = |index| ParticipantId { index, generation: 0 };
    shared.try_lock(&fs, &byte(1, Some(true), 0)).unwrap();
    shared.try_lock(&fs, &byte(2, Some(true), 1)).unwrap();
    let asked = AtomicU64::new(0);
    let looks_again = |times| {
        let before = asked.load(Ordering::Acquire);
        while asked.load(Ordering::Acquire) < before + times {
            std::thread::yield_now();
        }
    };
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            let mut stop = || {
                asked.fetch_add(1, Ordering::Release);
                false
            };
            shared.lock(&fs, &byte(2, Some(true), 0), &mut stop).map_err(|error| error.errno())
        });
        looks_again(1);
        shared.move_process_locks(id(1), id(5)).unwrap();
        looks_again(2);
        let waits = |owner| {
            let mut looks = 0;
            let mut stop = || {
                looks += 1;
                looks > 50
            };
            shared.lock(&fs, &byte(owner, Some(true), 1), &mut stop).unwrap_err().errno()
        };
        let [before, now] = [1, 5].map(waits);
        shared.try_lock(&fs, &byte(5, None, 0)).unwrap();
        let served = waiter.join().unwrap();
        assert_eq!((before, now), (Errno::INTR, Errno::DEADLK), "who it was before has nothing");
        assert!(served == Ok(()) || served == Err(Errno::DEADLK), "{served:?}");
    });
}
