//! What a change of a lock that finds no room leaves.

use super::super::{AccessMode, SharedLimits};
use super::*;

#[test]
fn who_waits_for_a_lock_is_woken_where_its_change_finds_no_room() {
    const COUNT: u32 = 8192;
    let limits = SharedLimits { participants: 8, threads: 8, descriptions: 64, records: COUNT };
    let shared = Shared::private(&limits).unwrap();
    let (thread, node, user) = (shared.thread().unwrap(), |number| NodeId { number, generation: 0 }, User::new(1));
    let open = |node| {
        let held = shared.tables.descriptions.allocate(&thread).unwrap();
        shared.link_new(&thread, held, node, AccessMode::READ, 0).unwrap()
    };
    let (file, other) = (node(1), node(2));
    let filler = open(other);
    let fill = |at: u32| {
        let start = u64::from(2 * (COUNT - at));
        let (owner, range) = (LockOwner::OpenFile(filler), LockRange { start, end: start + 1 });
        let request = LockRequest { node: other, owner, exclusive: Some(true), range, process: 0 };
        shared.attempt(user, &request, false, None).map(drop)
    };
    let lock = |owner, exclusive| LockRequest {
        node: file,
        owner: LockOwner::Flock(owner),
        exclusive: Some(exclusive),
        range: LockRange::ALL,
        process: 0,
    };
    // The lock is of the user's own part, which is full then.
    let common = COUNT - COUNT / 4;
    (0..common).for_each(|at| fill(at).unwrap());
    let (owner, waiter) = (open(file), open(file));
    assert!(shared.attempt(user, &lock(owner, true), false, None).unwrap().1.is_none());
    assert!((common..COUNT).any(|at| fill(at).is_err()));
    let (releases, blocker) = shared.attempt(user, &lock(waiter, true), true, None).unwrap();
    assert!(blocker.is_some());
    let error = shared.attempt(User::UNKNOWN, &lock(owner, false), false, None).unwrap_err();
    assert_eq!(error.errno(), Errno::NOLCK);
    let now = shared.tables.bucket(file.number).releases(&thread).unwrap();
    assert_ne!(now.load(Ordering::Relaxed), releases, "as flock(2) says, the old lock has gone");
    assert!(shared.attempt(user, &lock(waiter, true), true, blocker).unwrap().1.is_none());
}
