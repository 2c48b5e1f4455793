//! One user behind a mount opens and locks as much as it can: others still can, and root.

use gannet_vfs::Errno;
use gannet_vfs::shared::SharedLimits;

use super::{by_root, with_a_file};
use crate::dispatch::Outcome;
use crate::protocol::constants::LK_FLOCK;
use crate::protocol::request::{Header, LockRequest};

fn by_user(node: u64, user: u32) -> Header {
    Header { user, ..by_root(node) }
}

#[test]
fn one_user_cannot_open_all() {
    let (_file_system, dispatcher, node) = with_a_file();
    let id = dispatcher.nodes.id(node);
    let open = |user| dispatcher.open_handle(&by_user(id, user), node, 0);
    let most = SharedLimits::default().descriptions as usize;
    let refused = (0..most).find_map(|_| open(1000).err()).expect("not all of them");
    assert_eq!(refused.errno(), Errno::NFILE);
    assert!(refused.to_string().contains("one user"), "{refused}");
    // Nor is it let in by taking names away.
    assert!(dispatcher.keep(&by_user(id, 1000), node).is_err());
    // Of whom the kernel says nothing may be anybody.
    assert_eq!(crate::dispatch::users::user(&by_user(id, u32::MAX)), gannet_vfs::shared::User::new(0));
    assert!(open(1001).is_ok() && open(0).is_ok() && dispatcher.keep(&by_root(id), node).is_ok());
}

#[test]
fn one_user_cannot_take_all_locks() {
    let (_file_system, dispatcher, node) = with_a_file();
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
