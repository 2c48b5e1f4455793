//! One user behind a mount opens and locks as much as it can: others still can, and root.

use std::process::{Child, Command};
use std::sync::atomic::{AtomicUsize, Ordering};

use gannet_vfs::shared::SharedLimits;
use gannet_vfs::{Errno, FileSystem, Name};

use super::{by_root, dispatcher_for, with_a_file, with_a_file_for};
use crate::dispatch::{CachePolicy, Outcome};
use crate::protocol::constants::{InitFlags, LK_FLOCK};
use crate::protocol::request::{Header, LockRequest};

/// A kernel whose mounts map no owners: it says whose all requests are.
const TELLS: InitFlags = InitFlags::all().difference(InitFlags::ALLOW_IDMAP);

fn by_user(node: u64, user: u32) -> Header {
    Header { user, ..by_root(node) }
}

#[test]
fn one_user_cannot_open_all() {
    let (_file_system, dispatcher, node) = with_a_file_for(TELLS);
    let id = dispatcher.nodes.id(node);
    let open = |user| dispatcher.open_handle(&by_user(id, user), node, 0);
    let most = SharedLimits::default().descriptions as usize;
    let refused = (0..most).find_map(|_| open(1000).err()).expect("not all of them");
    assert_eq!(refused.errno(), Errno::NFILE);
    assert!(refused.to_string().contains("one user"), "{refused}");
    // Nor is it let in by taking names away.
    assert!(dispatcher.keep(&by_user(id, 1000), node).is_err());
    assert!(open(1001).is_ok() && open(0).is_ok() && dispatcher.keep(&by_root(id), node).is_ok());
}

#[test]
fn one_user_cannot_take_all_locks() {
    let (_file_system, dispatcher, node) = with_a_file_for(TELLS);
    let id = dispatcher.nodes.id(node);
    let handle = dispatcher.open_handle(&by_root(id), node, 2).unwrap();
    let most = u64::from(SharedLimits::default().records);
    let lock = |user, at: u64, flags| {
        // From the end: each record goes to the front of the list.
        let start = 4 * most - 2 * at;
        let request = LockRequest { handle, owner: handle + 1, start, end: start, kind: 1, process: 7, flags };
        dispatcher.set_lock(&by_user(id, user), &request, false)
    };
    let refused = (0..most).find_map(|at| lock(1000, at, 0).err()).expect("not all of them");
    assert_eq!(refused.errno(), Errno::NOLCK);
    assert!(refused.to_string().contains("one user"), "{refused}");
    assert!(matches!(lock(1000, most, LK_FLOCK), Err(error) if error.errno() == Errno::NOLCK));
    assert!(matches!(lock(1001, most, 0), Ok(Outcome::Reply(0))));
    assert!(matches!(lock(0, most + 1, 0), Ok(Outcome::Reply(0))));
}

/// A program of another user's that sleeps; nothing where this one may not start it.
fn sleeper(user: u32) -> Option<Child> {
    use std::os::unix::process::CommandExt;
    Command::new("sleep").arg("60").uid(user).spawn().ok()
}

#[test]
fn whom_the_kernel_does_not_name_is_looked_at() {
    let (_file_system, dispatcher, node) = with_a_file();
    let id = dispatcher.nodes.id(node);
    let by_process = |process| Header { process, ..by_user(id, u32::MAX) };
    let (Some(mut one), Some(mut other)) = (sleeper(1000), sleeper(1001)) else {
        eprintln!("skipped: needs root");
        return;
    };
    let open = |process| dispatcher.open_handle(&by_process(process), node, 0);
    let most = SharedLimits::default().descriptions as usize;
    let count = |process| (0..most).take_while(|_| open(process).is_ok()).count();
    // Three quarters and a part: 97 parts.
    let (many, few) = (count(one.id()), count(other.id()));
    assert_eq!((many, few), (97 * few, few));
    // Who cannot be looked at gets no more than all do, and has no part of its own.
    assert!(open(0).is_err() && open(u32::MAX >> 1).is_err());
    let refused = open(0).unwrap_err();
    assert!(refused.to_string().contains("/proc"), "{refused}");
    // Root as a mount maps it is no root.
    let create = |process, name: &[u8]| dispatcher.create(&Header { process, ..by_user(1, 0) }, name, 2, 0o600, 0);
    for process in [one.id(), other.id(), 0] {
        assert_eq!(create(process, b"mapped").unwrap_err().errno(), Errno::NFILE);
        let unnamed = Header { process, ..by_user(1, 0) };
        assert_eq!(dispatcher.create_unnamed(&unnamed, 2, 0o600, 0).unwrap_err().errno(), Errno::NFILE);
    }
    assert!(create(std::process::id(), b"root's").is_ok());
    assert!(open(std::process::id()).is_ok(), "root's");
    let handle = open(std::process::id()).unwrap();
    let most = u64::from(SharedLimits::default().records);
    let lock = |process, at: u64| {
        let start = 4 * most - 2 * at;
        let request = LockRequest { handle, owner: handle + 1, start, end: start, kind: 1, process: 7, flags: 0 };
        dispatcher.set_lock(&by_process(process), &request, false)
    };
    // The owner is one for all of them: its description is made by who may.
    assert!(lock(std::process::id(), 0).is_ok());
    assert_eq!((1..most).find_map(|at| lock(one.id(), at).err()).unwrap().errno(), Errno::NOLCK);
    assert!(lock(0, most).is_err());
    assert!(lock(other.id(), most).is_ok() && lock(std::process::id(), most + 1).is_ok());
    for child in [&mut one, &mut other] {
        child.kill().unwrap();
        child.wait().unwrap();
    }
}

#[test]
fn who_may_open_no_more_makes_no_file() {
    let (file_system, dispatcher) = dispatcher_for(CachePolicy::Coherent, TELLS);
    let make = |name: &[u8]| dispatcher.create(&by_user(1, 1000), name, 2, 0o600, 0);
    let make_unnamed = || dispatcher.create_unnamed(&by_user(1, 1000), 2, 0o600, 0);
    let inodes = || file_system.statistics().unwrap().inodes_free;
    let room = || file_system.shared().reserve(gannet_vfs::shared::User::new(1000), &*file_system);
    make(b"first").unwrap();
    make_unnamed().unwrap();
    let root = file_system.root();
    let open = || dispatcher.open_handle(&by_user(1, 1000), root, 0);
    let most = SharedLimits::default().descriptions as usize;
    assert!((0..most).any(|_| open().is_err()) && room().is_err());
    let before = inodes();
    assert_eq!(make(b"second").unwrap_err().errno(), Errno::NFILE);
    assert_eq!(make_unnamed().unwrap_err().errno(), Errno::NFILE);
    assert_eq!(file_system.lookup(root, Name::new(b"second").unwrap()).unwrap_err().errno(), Errno::NOENT);
    assert_eq!(inodes(), before);
}

#[test]
fn threads_of_one_owner_that_lock_first_at_once_have_one_description() {
    const ROUNDS: usize = 100;
    let (file_system, dispatcher, node) = with_a_file();
    let header = Header { process: std::process::id(), ..by_root(dispatcher.nodes.id(node)) };
    let handle = dispatcher.open_handle(&header, node, 2).unwrap();
    // What all may take is full: whose a lock is takes a while to be found out.
    while dispatcher.open_handle(&by_root(header.node), node, 0).is_ok() {}
    let descriptions = || file_system.shared().descriptions().unwrap();
    let (before, steps) = (descriptions(), AtomicUsize::new(0));
    let meet = |step: usize| {
        steps.fetch_add(1, Ordering::Relaxed);
        for looks in 0.. {
            match steps.load(Ordering::Relaxed) {
                all if all >= 2 * step => break,
                // At the same moment, if there are processors for both.
                _ if looks < 2000 => std::hint::spin_loop(),
                _ => std::thread::yield_now(),
            }
        }
    };
    // Nobody stops for what went wrong: the other would wait.
    let locks = |at: u64| {
        let mut right = true;
        for round in 0..ROUNDS {
            let owner = handle + 1 + round as u64;
            let request = LockRequest { handle, owner, start: 2 * at, end: 2 * at, kind: 1, process: 7, flags: 0 };
            meet(3 * round + 1);
            right &= matches!(dispatcher.set_lock(&header, &request, false), Ok(Outcome::Reply(0)));
            meet(3 * round + 2);
            if at == 0 {
                right &= (dispatcher.locks.owners_known(), descriptions()) == (1, before + 1);
                right &= dispatcher.flush(&header, handle, owner).is_ok() && descriptions() == before;
            }
            meet(3 * round + 3);
        }
        right
    };
    std::thread::scope(|scope| {
        let all = [0, 1].map(|at| {
            scope.spawn({
                let locks = &locks;
                move || locks(at)
            })
        });
        assert!(all.into_iter().all(|one| one.join().unwrap()));
    });
}
