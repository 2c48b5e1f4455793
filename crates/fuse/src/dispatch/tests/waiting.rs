//! Locks that are waited for, and what asking for locks leaves behind.

use gannet_vfs::{Errno, FileSystem, InodeFlags};

use super::{by_root, with_a_file};
use crate::dispatch::waiting::{OTHERS_MAX, WAITERS_MAX, WaitsFor};
use crate::dispatch::{Outcome, Wait};
use crate::protocol::constants::LK_FLOCK;
use crate::protocol::request::LockRequest;

const F_WRLCK: u32 = 1;
const F_UNLCK: u32 = 2;

#[test]
fn who_cannot_wait_is_refused_and_leaves_nothing() {
    let (file_system, dispatcher, node) = with_a_file();
    let header = by_root(dispatcher.nodes.id(node));
    let (holder, other) =
        (dispatcher.open_handle(&header, node, 2).unwrap(), dispatcher.open_handle(&header, node, 2).unwrap());
    for flags in [LK_FLOCK, 0] {
        let lock = |handle, wait| {
            let request =
                LockRequest { handle, owner: handle + 1, start: 0, end: 100, kind: F_WRLCK, process: 7, flags };
            dispatcher.set_lock(&header, &request, wait)
        };
        assert!(matches!(lock(holder, false), Ok(Outcome::Reply(0))));
        let Ok(Outcome::Waits(wait)) = lock(other, true) else { panic!("somebody has it") };
        assert!(matches!(wait.refuse(), Outcome::Error(Errno::NOLCK)));
        assert!(dispatcher.locks.waiters.lock().unwrap().is_empty());
        // Nobody waits by the owner any more: it goes with its file.
        dispatcher.flush(&header, other, other + 1).unwrap();
        assert_eq!(dispatcher.locks.owners_known(), usize::from(flags == 0), "of the holder alone");
        // A try that would only wait for a close says what it would say otherwise.
        dispatcher.flush(&header, holder, 99).unwrap();
        let Ok(Outcome::Waits(wait)) = lock(other, false) else { panic!("it may be gone in a moment") };
        assert!(matches!(wait.refuse(), Outcome::Error(Errno::AGAIN)));
        dispatcher.locks.closing.stays(holder);
        let unlock =
            LockRequest { handle: holder, owner: holder + 1, start: 0, end: 100, kind: F_UNLCK, process: 7, flags };
        assert!(matches!(dispatcher.set_lock(&header, &unlock, false), Ok(Outcome::Reply(0))));
    }
    for handle in [holder, other] {
        dispatcher.flush(&header, handle, handle + 1).unwrap();
        dispatcher.release(header.node, handle);
    }
    assert_eq!(dispatcher.locks.owners_known(), 0);
    assert_eq!(file_system.shared().records().unwrap(), 0, "nothing stays locked");
}

#[test]
fn only_so_many_wait_at_a_time() {
    let (_file_system, dispatcher, node) = with_a_file();
    let mut header = by_root(dispatcher.nodes.id(node));
    let holder = dispatcher.open_handle(&header, node, 2).unwrap();
    let mut ask = |owner: u64| {
        header.unique += 1;
        let request = LockRequest { handle: holder, owner, start: 0, end: 100, kind: F_WRLCK, process: 7, flags: 0 };
        dispatcher.set_lock(&header, &request, true)
    };
    assert!(matches!(ask(1), Ok(Outcome::Reply(0))));
    let mut waiting: Vec<Box<Wait>> = Vec::new();
    for _ in 0..WAITERS_MAX {
        let Ok(Outcome::Waits(wait)) = ask(2) else { panic!("{} wait", waiting.len()) };
        waiting.push(wait);
    }
    assert!(matches!(ask(2), Ok(Outcome::Error(Errno::NOLCK))));
    waiting.pop().unwrap().refuse();
    let Ok(Outcome::Waits(wait)) = ask(2) else { panic!("one has left") };
    waiting.push(wait);
    assert!(matches!(ask(2), Ok(Outcome::Error(Errno::NOLCK))));
    // Who waits for anything else still can, also when nobody ends.
    let mut others = 0;
    let refused = loop {
        match dispatcher.waits(&header, WaitsFor::Flags { node, flags: InodeFlags::empty() }) {
            Outcome::Waits(wait) => waiting.push(wait),
            outcome => break outcome,
        }
        others += 1;
    };
    assert!(matches!(refused, Outcome::Error(Errno::NOMEM)));
    assert_eq!(others, OTHERS_MAX);
    waiting.into_iter().for_each(|wait| _ = wait.refuse());
    assert!(dispatcher.locks.waiters.lock().unwrap().is_empty());
    assert!(dispatcher.finish());
}

#[test]
fn files_that_nothing_was_locked_of_are_not_remembered() {
    let (_file_system, dispatcher, node) = with_a_file();
    let header = by_root(dispatcher.nodes.id(node));
    let handle = dispatcher.open_handle(&header, node, 2).unwrap();
    let unlock = LockRequest { handle, owner: 5, start: 0, end: 100, kind: F_UNLCK, process: 7, flags: 0 };
    assert!(matches!(dispatcher.set_lock(&header, &unlock, false), Ok(Outcome::Reply(0))));
    assert_eq!(dispatcher.locks.files_known(), 0);
    // Nor if an owner cannot be made: there is no such inode.
    let mut gone = header;
    gone.node = 4711;
    assert!(dispatcher.get_lock(&gone, &LockRequest { kind: F_WRLCK, ..unlock }).is_err());
    assert_eq!(dispatcher.locks.files_known(), 0);
    dispatcher.release(header.node, handle);
}
