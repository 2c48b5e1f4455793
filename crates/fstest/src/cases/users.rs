//! Inodes without names: they live while they have users, and their numbers come back with another generation.

use gannet_vfs::NewNode;

use super::cases;
use crate::rig::OWNER;
use crate::{Rig, fails, name};

cases![
    an_unlinked_file_lives_while_it_is_used needs USERS,
    a_removed_directory_lives_while_it_is_used needs USERS,
    a_replaced_file_lives_while_it_is_used needs USERS,
    what_has_neither_name_nor_user_is_stale needs USERS,
    generations_tell_files_apart needs USERS,
    space_returns_with_the_last_user needs USERS,
    an_unnamed_file_goes_with_its_user needs USERS|UNNAMED,
];

fn an_unlinked_file_lives_while_it_is_used(rig: &Rig<'_>) {
    let node = rig.file(rig.root, "f");
    rig.write(node, 0, b"still here");
    let user = rig.hold(node);
    rig.unlink(rig.root, "f").unwrap();
    assert_eq!((rig.links(node), rig.content(node)), (0, b"still here".to_vec()));
    rig.write(node, 0, b"even now..");
    rig.resize(node, 8).unwrap();
    assert_eq!(rig.content(node), b"even now");
    let second = rig.hold(node);
    drop(user);
    assert_eq!(rig.content(node), b"even now");
    drop(second);
    fails!(rig.fs.attributes(node), STALE);
    fails!(rig.try_read(node, 0, 1), STALE);
}

fn a_removed_directory_lives_while_it_is_used(rig: &Rig<'_>) {
    let node = rig.directory(rig.root, "d");
    let user = rig.hold(node);
    rig.rmdir(rig.root, "d").unwrap();
    assert_eq!(rig.links(node), 0);
    assert!(rig.list(node).is_empty());
    drop(user);
    fails!(rig.fs.attributes(node), STALE);
}

fn a_replaced_file_lives_while_it_is_used(rig: &Rig<'_>) {
    let (a, b) = (rig.file(rig.root, "a"), rig.file(rig.root, "b"));
    rig.write(b, 0, b"old");
    let user = rig.hold(b);
    rig.rename((rig.root, "a"), (rig.root, "b")).unwrap();
    assert_eq!((rig.content(b), rig.find(rig.root, "b")), (b"old".to_vec(), Some(a)));
    drop(user);
    fails!(rig.fs.attributes(b), STALE);
}

fn what_has_neither_name_nor_user_is_stale(rig: &Rig<'_>) {
    let f = rig.file(rig.root, "f");
    let d = rig.directory(rig.root, "d");
    let (a, b) = (rig.file(rig.root, "a"), rig.file(rig.root, "b"));
    rig.unlink(rig.root, "f").unwrap();
    rig.rmdir(rig.root, "d").unwrap();
    rig.rename((rig.root, "a"), (rig.root, "b")).unwrap();
    for gone in [f, d, b] {
        fails!(rig.fs.attributes(gone), STALE);
        fails!(rig.fs.link(gone, rig.root, name("x")), STALE);
    }
    fails!(rig.fs.create(d, name("x"), &NewNode::regular(0o600, OWNER)), STALE);
    assert_eq!(rig.links(a), 1);
    _ = rig.fs.retire(f);
    assert_eq!(rig.find(rig.root, "b"), Some(a));
}

fn generations_tell_files_apart(rig: &Rig<'_>) {
    let mut nodes = Vec::new();
    for round in 0..200 {
        let node = rig.file(rig.root, "f");
        assert!(!nodes.contains(&node), "a node returned after {round} rounds");
        rig.unlink(rig.root, "f").unwrap();
        fails!(rig.fs.attributes(node), STALE);
        nodes.push(node);
    }
    rig.file(rig.root, "f");
    for node in nodes {
        fails!(rig.fs.attributes(node), STALE);
    }
}

fn space_returns_with_the_last_user(rig: &Rig<'_>) {
    let node = rig.file(rig.root, "f");
    let before = rig.fs.statistics().unwrap();
    rig.write(node, 0, &vec![3; 1 << 20]);
    let user = rig.hold(node);
    let full = rig.fs.statistics().unwrap();
    rig.unlink(rig.root, "f").unwrap();
    assert!(rig.fs.statistics().unwrap().blocks_free <= full.blocks_free + 4);
    assert_eq!(rig.fs.statistics().unwrap().inodes_free, full.inodes_free);
    drop(user);
    let after = rig.fs.statistics().unwrap();
    assert!(after.blocks_free + 4 >= before.blocks_free);
    assert_eq!(after.inodes_free, before.inodes_free + 1);
}

fn an_unnamed_file_goes_with_its_user(rig: &Rig<'_>) {
    let before = rig.fs.statistics().unwrap();
    let node = rig.fs.create_unnamed(rig.root, &NewNode::regular(0o600, OWNER)).unwrap();
    let user = rig.hold(node);
    rig.write(node, 0, &[1; 10_000]);
    drop(user);
    fails!(rig.fs.attributes(node), STALE);
    assert_eq!(rig.fs.statistics().unwrap().inodes_free, before.inodes_free);
}
