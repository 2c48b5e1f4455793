//! Open file descriptions: who uses them, offsets, transit, forks.

use crate::{open, private};

use gannet_shm::ParticipantId;
use gannet_vfs::shared::{AccessMode, Description, SharedLimits};
use gannet_vfs::{Errno, FileSystem, Name, NodeId, RemoveKind};

#[test]
fn an_inode_is_in_use_from_open_to_the_last_close() {
    let (shared, fs, nodes) = private();
    assert!(!shared.in_use(nodes[0]));
    let (one, two) = (open(&shared, &fs, nodes[0]), open(&shared, &fs, nodes[0]));
    assert!(shared.in_use(nodes[0]) && !shared.in_use(nodes[1]));
    assert!(!shared.in_use(NodeId::new(nodes[0].number, nodes[0].generation + 1)));
    let info = shared.info(one).unwrap();
    assert_eq!((info.node, info.access, info.status), (nodes[0], AccessMode::READ | AccessMode::WRITE, 0));
    shared.close(&fs, one).unwrap();
    assert!(shared.in_use(nodes[0]));
    assert_eq!(shared.info(one).unwrap_err().errno(), Errno::BADF);
    assert_eq!(shared.close(&fs, one).unwrap_err().errno(), Errno::BADF);
    assert_eq!(shared.adopt(one).unwrap_err().errno(), Errno::BADF);
    shared.close(&fs, two).unwrap();
    assert!(!shared.in_use(nodes[0]));
    assert_eq!(shared.descriptions().unwrap(), 0);
    // The object is used again; the old name stays dead.
    let again = open(&shared, &fs, nodes[1]);
    assert!(again != one && again != two && shared.info(two).is_err());
    assert_eq!(Description::from_word(again.word()), Some(again));
}

#[test]
fn opening_what_is_gone_fails_and_leaves_nothing() {
    let (shared, fs, nodes) = private();
    fs.remove(fs.root(), Name::new(b"a").unwrap(), RemoveKind::NonDirectory).unwrap();
    assert_eq!(shared.open(&fs, nodes[0], AccessMode::READ, 0).unwrap_err().errno(), Errno::STALE);
    assert_eq!(shared.descriptions().unwrap(), 0);
}

#[test]
fn too_many_is_enfile_and_all_can_be_used_again() {
    let (shared, fs, nodes) = private();
    for _ in 0..3 {
        let mut all = Vec::new();
        let error = loop {
            match shared.open(&fs, nodes[all.len() % 4], AccessMode::PATH, 0) {
                Ok(description) => all.push(description),
                Err(error) => break error,
            }
        };
        assert_eq!((error.errno(), all.len()), (Errno::NFILE, 64));
        // It says what is full and how much there is, as of a volume.
        let limit = SharedLimits::default().descriptions.to_string();
        assert!(error.to_string().contains(&limit), "{error}");
        all.into_iter().for_each(|description| shared.close(&fs, description).unwrap());
        assert_eq!(shared.descriptions().unwrap(), 0);
    }
}

#[test]
fn status_flags_change_by_mask() {
    let (shared, fs, nodes) = private();
    let description = shared.open(&fs, nodes[0], AccessMode::READ, 0o4).unwrap();
    assert_eq!(shared.set_status(description, 0o6, 0o3).unwrap(), 0o2);
    assert_eq!(shared.info(description).unwrap().status, 0o2);
}

#[test]
fn the_offset_is_moved_by_one_at_a_time() {
    let (shared, fs, nodes) = private();
    let description = open(&shared, &fs, nodes[0]);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..1000 {
                    let offset = shared.offset(description).unwrap();
                    let at = offset.get();
                    // Time for another to get in between, were it let in.
                    std::thread::yield_now();
                    offset.set(at + 3);
                }
            });
        }
    });
    assert_eq!(shared.offset(description).unwrap().get(), 12_000);
    shared.close(&fs, description).unwrap();
    assert_eq!(shared.offset(description).unwrap_err().errno(), Errno::BADF);
    assert_eq!(shared.offset(open(&shared, &fs, nodes[0])).unwrap().get(), 0, "a new one begins anew");
}

#[test]
fn a_description_in_transit_keeps_its_inode() {
    let (shared, fs, nodes) = private();
    let description = open(&shared, &fs, nodes[0]);
    shared.hold_in_transit(description).unwrap();
    shared.close(&fs, description).unwrap();
    assert!(shared.in_use(nodes[0]));
    shared.adopt(description).unwrap();
    shared.release_in_transit(&fs, description).unwrap();
    assert!(shared.in_use(nodes[0]));
    shared.close(&fs, description).unwrap();
    assert!(!shared.in_use(nodes[0]));
}

#[test]
fn a_child_to_be_shares_and_a_failed_fork_takes_back() {
    let (shared, fs, nodes) = private();
    let all = [open(&shared, &fs, nodes[0]), open(&shared, &fs, nodes[1])];
    let child = ParticipantId { index: 77, generation: 3 };
    shared.give(child, &mut all.into_iter()).unwrap();
    all.into_iter().for_each(|description| shared.close(&fs, description).unwrap());
    assert!(shared.in_use(nodes[0]) && shared.in_use(nodes[1]));
    shared.take_back(child).unwrap();
    assert!(!shared.in_use(nodes[0]) && !shared.in_use(nodes[1]));
    assert_eq!((shared.sweep(&fs).unwrap(), shared.descriptions().unwrap()), (2, 0));
}

#[test]
fn the_filter_of_executed_inodes_knows_all_of_them() {
    let (shared, _, nodes) = private();
    let looked = std::cell::Cell::new(0);
    let ask = |node, running: &[NodeId]| {
        let find = || {
            looked.set(looked.get() + 1);
            running.iter().try_for_each(|node| shared.note_executed(*node))
        };
        shared.may_be_executed(node, find).unwrap()
    };
    // Those of an older arena are looked for once.
    assert!(ask(nodes[0], &nodes[..1]) && ask(nodes[0], &[]));
    assert_eq!(looked.get(), 1);
    let unknown: Vec<NodeId> = (1..200).map(|number| NodeId::new(number, 1)).filter(|node| !ask(*node, &[])).collect();
    assert!(unknown.len() > 180, "{} of 199 are not asked about", unknown.len());
    for node in unknown {
        shared.note_executed(node).unwrap();
        assert!(ask(node, &[]));
    }
    assert_eq!(looked.get(), 1);
}
