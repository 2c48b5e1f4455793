//! What one user may take of the tables, and what stays for others.

use std::ops::Range;

use crate::{LIMITS, nodes, process, request};

use gannet_memfs::{Limits, MemoryFs};
use gannet_vfs::shared::{AccessMode, Description, Shared, SharedLimits, User};
use gannet_vfs::{Errno, Error, Owner};

const COUNT: usize = 8192;
const MANY: SharedLimits = SharedLimits { descriptions: COUNT as u32, records: COUNT as u32, ..LIMITS };
/// Three quarters, and a sixteenth of the eighth that users have among themselves.
const OF_ONE: usize = COUNT * 3 / 4 + COUNT / 8 / 16;
const OF_USERS: usize = COUNT * 7 / 8;
const ROOT: User = User::new(0);

/// How many can be taken, and what was said then.
fn until_full<T>(mut take: impl FnMut() -> Result<T, Error>) -> (Vec<T>, Error) {
    let mut all = Vec::new();
    loop {
        match take() {
            Ok(taken) => all.push(taken),
            Err(error) => return (all, error),
        }
    }
}

fn says(error: &Error, errno: Errno, most: u32) {
    assert_eq!(error.errno(), errno);
    assert!(error.to_string().contains(&format!("root {most}")), "{error}");
}

#[test]
fn nobody_but_root_can_open_all() {
    let fs = MemoryFs::new(Limits::default(), 0o755, Owner::default()).unwrap();
    let (nodes, shared) = (nodes(&fs), Shared::private(&MANY).unwrap());
    let open = |user: User| shared.open_for(user, &fs, nodes[0], AccessMode::READ, 0);
    let close = |all: Vec<Description>| all.into_iter().for_each(|one| shared.close(&fs, one).unwrap());
    // Twice: what was freed last is taken first, by whom it may be taken.
    for _ in 0..2 {
        let (first, error) = until_full(|| open(User::new(1000)));
        assert_eq!(first.len(), OF_ONE);
        says(&error, Errno::NFILE, SharedLimits::default().descriptions / 8 * 7);
        // Others have something left; all together not what is root's.
        let (other, _) = until_full(|| open(User::new(1001)));
        assert_eq!(other.len(), COUNT / 8 / 16);
        let rest: Vec<_> = (2..16).flat_map(|user| until_full(|| open(User::new(1000 + user))).0).collect();
        assert_eq!(first.len() + other.len() + rest.len(), OF_USERS);
        let (of_root, error) = until_full(|| open(ROOT));
        assert_eq!(of_root.len(), COUNT - OF_USERS);
        assert_eq!(error.errno(), Errno::NFILE);
        // What root leaves is still nobody else's.
        close(of_root);
        assert!(open(User::new(1000)).is_err());
        [first, other, rest].into_iter().for_each(close);
        let (all, _) = until_full(|| open(ROOT));
        assert_eq!(all.len(), COUNT);
        close(all);
    }
}

#[test]
fn nobody_but_root_can_take_all_locks() {
    let fs = MemoryFs::new(Limits::default(), 0o755, Owner::default()).unwrap();
    let (nodes, shared) = (nodes(&fs), Shared::private(&MANY).unwrap());
    let lock = |user: User, at: Range<u64>| {
        // From the end: each record then goes to the front of the list.
        let at = COUNT as u64 * 2 - at.start * 2;
        shared.try_lock_for(user, &fs, &request(nodes[0], process(1), Some(true), at, at + 1))
    };
    let mut at = 0;
    let mut fill = |user: User| {
        let (all, error) = until_full(|| {
            let locked = lock(user, at..at + 1);
            at += u64::from(locked.is_ok());
            locked
        });
        assert_eq!(error.errno(), Errno::NOLCK);
        (all.len(), error)
    };
    let (count, error) = fill(User::new(65534));
    assert_eq!(count, OF_ONE);
    says(&error, Errno::NOLCK, SharedLimits::default().records / 8 * 7);
    assert_eq!(fill(User::new(1)).0, COUNT / 8 / 16);
    assert_eq!(fill(ROOT).0, COUNT - OF_ONE - COUNT / 8 / 16);
}

#[test]
fn of_whom_nothing_is_known_has_what_all_have() {
    let fs = MemoryFs::new(Limits::default(), 0o755, Owner::default()).unwrap();
    let (nodes, shared) = (nodes(&fs), Shared::private(&MANY).unwrap());
    let open = |user: User| shared.open_for(user, &fs, nodes[0], AccessMode::READ, 0);
    let (common, error) = until_full(|| open(User::UNKNOWN));
    assert_eq!(common.len(), COUNT * 3 / 4);
    assert!(error.to_string().contains("may have 98304,"), "{error}");
    says(&error, Errno::NFILE, SharedLimits::default().descriptions / 8 * 7);
    // Whose own part lies where the common one ends is not refused with it.
    for user in [16, 1000, 1001] {
        assert_eq!(until_full(|| open(User::new(user))).0.len(), COUNT / 8 / 16);
    }
    assert!(open(ROOT).is_ok());
}

#[test]
fn room_is_had_before_something_is_opened() {
    let fs = MemoryFs::new(Limits::default(), 0o755, Owner::default()).unwrap();
    let (nodes, shared) = (nodes(&fs), Shared::private(&LIMITS).unwrap());
    let open = || shared.open_for(ROOT, &fs, nodes[0], AccessMode::READ, 0);
    let place = shared.reserve(ROOT, &fs).unwrap();
    let (all, error) = until_full(open);
    assert_eq!((all.len(), error.errno()), (LIMITS.descriptions as usize - 1, Errno::NFILE));
    assert!(shared.check_room().is_err());
    assert_eq!(shared.reserve(ROOT, &fs).map(drop).unwrap_err().errno(), Errno::NFILE);
    let description = place.open(&fs, nodes[0], AccessMode::READ, 7).unwrap();
    assert_eq!(shared.info(description).unwrap().status, 7);
    shared.close(&fs, description).unwrap();
    // What nothing is opened with is given back.
    for _ in 0..3 {
        shared.reserve(ROOT, &fs).map(drop).unwrap();
    }
    assert_eq!(shared.descriptions().unwrap(), all.len());
    assert!(open().is_ok() && open().is_err());
}

#[test]
fn room_that_a_panic_gave_up_is_not_given_back_for_another() {
    let fs = MemoryFs::new(Limits::default(), 0o755, Owner::default()).unwrap();
    let (nodes, shared) = (nodes(&fs), Shared::private(&SharedLimits { threads: 2, ..LIMITS }).unwrap());
    let slot = || shared.session().thread().unwrap().slot();
    let before = slot();
    let place = shared.reserve(ROOT, &fs).unwrap();
    // As what unwinds past a lock does.
    shared.session().abandon_thread();
    shared.session().reap_dead().unwrap();
    assert_ne!(slot(), before);
    let (has, had) = std::sync::mpsc::channel();
    let (end, ends) = std::sync::mpsc::channel::<()>();
    std::thread::scope(|scope| {
        // Dropped with this: the other thread ends, whatever fails here.
        let (end, shared, fs, nodes) = (end, &shared, &fs, &nodes);
        let other = scope.spawn(move || {
            let place = shared.reserve(ROOT, fs).unwrap();
            has.send(shared.session().thread().unwrap().slot()).unwrap();
            ends.recv().unwrap();
            place.open(fs, nodes[1], AccessMode::READ, 0).unwrap()
        });
        assert_eq!(had.recv().unwrap(), before, "the same slot, and the same hand");
        drop(place);
        let (all, _) = until_full(|| shared.open_for(ROOT, fs, nodes[0], AccessMode::READ, 0));
        assert_eq!(all.len(), LIMITS.descriptions as usize - 1);
        end.send(()).unwrap();
        let description = other.join().unwrap();
        assert!(shared.info(description).is_ok_and(|info| info.node == nodes[1]));
    });
}
