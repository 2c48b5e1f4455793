//! Names: create, lookup, link, remove, symbolic links.

use gannet_vfs::{FileType, NewNode, NodeId, RemoveKind};

use super::cases;
use crate::rig::OWNER;
use crate::{Rig, fails, name};

cases![
    a_created_name_is_found,
    names_are_bytes,
    creation_over_a_name_fails,
    operations_below_something_else_fail,
    directories_count_links,
    hard_links_share_the_inode,
    what_cannot_be_linked,
    removal_checks_the_type,
    a_removed_directory_takes_nothing_more,
    symbolic_links_say_where_they_lead,
    numbers_nobody_has_are_stale,
    creation_and_removal_touch_the_right_times,
    an_unnamed_file_can_be_named_once needs UNNAMED,
    a_parent_is_found,
];

fn a_created_name_is_found(rig: &Rig<'_>) {
    let file = rig.file(rig.root, "f");
    let found = rig.fs.lookup(rig.root, name("f")).unwrap();
    assert_eq!((found.node, found.file_type), (file, FileType::Regular));
    fails!(rig.fs.lookup(rig.root, name("g")), NOENT);
    fails!(rig.fs.lookup(rig.root, name("F")), NOENT);
    assert_ne!(file.number, 0);
    assert_ne!(file.number, rig.root.number);
}

fn names_are_bytes(rig: &Rig<'_>) {
    let long = "x".repeat(255);
    for text in ["a", " ", "...", "\u{7f}", "ü", "a\nb", "-", &long] {
        let node = rig.file(rig.root, text);
        assert_eq!(rig.find(rig.root, text), Some(node));
    }
    let odd = gannet_vfs::Name::new(&[0xFF, 1, 0x80]).unwrap();
    rig.fs.create(rig.root, odd, &NewNode::regular(0o600, OWNER)).unwrap();
    assert!(rig.list(rig.root).contains_key(&[0xFF, 1, 0x80][..]));
    assert_eq!(rig.list(rig.root).len(), 9);
}

fn creation_over_a_name_fails(rig: &Rig<'_>) {
    rig.file(rig.root, "f");
    rig.directory(rig.root, "d");
    for text in ["f", "d"] {
        fails!(rig.fs.create(rig.root, name(text), &NewNode::regular(0o600, OWNER)), EXIST);
        fails!(rig.fs.create(rig.root, name(text), &NewNode::directory(0o700, OWNER)), EXIST);
        fails!(rig.symlink(rig.root, text, b"x"), EXIST);
    }
    assert_eq!(rig.list(rig.root).len(), 2);
}

fn operations_below_something_else_fail(rig: &Rig<'_>) {
    let file = rig.file(rig.root, "f");
    fails!(rig.fs.lookup(file, name("x")), NOTDIR);
    fails!(rig.fs.create(file, name("x"), &NewNode::regular(0o600, OWNER)), NOTDIR);
    fails!(rig.unlink(file, "x"), NOTDIR);
    fails!(rig.fs.link(file, file, name("x")), NOTDIR);
    fails!(rig.rename((file, "x"), (rig.root, "y")), NOTDIR);
    fails!(rig.rename((rig.root, "f"), (file, "y")), NOTDIR);
    fails!(rig.fs.read_directory(file, 0, &mut |_| true), NOTDIR);
    fails!(rig.fs.parent(file), NOTDIR);
}

fn directories_count_links(rig: &Rig<'_>) {
    let d = rig.directory(rig.root, "d");
    assert_eq!((rig.links(rig.root), rig.links(d)), (3, 2));
    rig.directory(d, "e");
    rig.file(d, "f");
    assert_eq!((rig.links(rig.root), rig.links(d)), (3, 3));
    rig.rmdir(d, "e").unwrap();
    assert_eq!(rig.links(d), 2);
}

fn hard_links_share_the_inode(rig: &Rig<'_>) {
    let node = rig.file(rig.root, "a");
    let d = rig.directory(rig.root, "d");
    rig.fs.link(node, d, name("another name")).unwrap();
    assert_eq!((rig.links(node), rig.find(d, "another name")), (2, Some(node)));
    rig.write(node, 0, b"one");
    assert_eq!(rig.content(rig.find(d, "another name").unwrap()), b"one");
    assert_eq!(rig.unlink(rig.root, "a").unwrap(), node);
    assert_eq!((rig.links(node), rig.content(node)), (1, b"one".to_vec()));
    rig.fs.retire(node).unwrap();
    assert_eq!(rig.content(node), b"one", "retiring what has a name is harmless");
    let link = rig.symlink(rig.root, "s", b"t").unwrap();
    rig.fs.link(link, rig.root, name("s2")).unwrap();
    assert_eq!(rig.links(link), 2);
}

fn what_cannot_be_linked(rig: &Rig<'_>) {
    let d = rig.directory(rig.root, "d");
    let f = rig.file(rig.root, "f");
    fails!(rig.fs.link(d, rig.root, name("e")), PERM);
    fails!(rig.fs.link(f, rig.root, name("d")), EXIST);
    fails!(rig.fs.link(f, rig.root, name("f")), EXIST);
    assert_eq!((rig.links(f), rig.links(d), rig.list(rig.root).len()), (1, 2, 2));
}

fn removal_checks_the_type(rig: &Rig<'_>) {
    let d = rig.directory(rig.root, "d");
    rig.file(rig.root, "f");
    rig.file(d, "inner");
    fails!(rig.unlink(rig.root, "d"), ISDIR);
    fails!(rig.rmdir(rig.root, "f"), NOTDIR);
    fails!(rig.rmdir(rig.root, "d"), NOTEMPTY);
    for kind in [RemoveKind::NonDirectory, RemoveKind::Directory] {
        fails!(rig.fs.remove(rig.root, name("x"), kind), NOENT);
    }
    rig.unlink(d, "inner").unwrap();
    assert_eq!(rig.rmdir(rig.root, "d").unwrap(), d);
    fails!(rig.fs.lookup(rig.root, name("d")), NOENT);
}

fn a_removed_directory_takes_nothing_more(rig: &Rig<'_>) {
    let d = rig.directory(rig.root, "d");
    let f = rig.file(rig.root, "f");
    let _user = rig.hold(d);
    rig.rmdir(rig.root, "d").unwrap();
    fails!(rig.fs.create(d, name("x"), &NewNode::regular(0o600, OWNER)), NOENT);
    fails!(rig.fs.link(f, d, name("x")), NOENT);
    fails!(rig.rename((rig.root, "f"), (d, "x")), NOENT);
    fails!(rig.fs.lookup(d, name("x")), NOENT);
    fails!(rig.fs.parent(d), NOENT);
    assert!(rig.list(d).is_empty());
    assert_eq!(rig.links(d), 0);
}

fn symbolic_links_say_where_they_lead(rig: &Rig<'_>) {
    let long = vec![b'y'; 4095];
    for (index, target) in [&b"t"[..], b"/a/../b//", &[0xFF, 0x01], &long[..300], &long].into_iter().enumerate() {
        let node = rig.symlink(rig.root, &format!("s{index}"), target).unwrap();
        let mut room = vec![0; 4096];
        let length = rig.fs.read_link(node, &mut room).unwrap();
        assert_eq!(&room[..length], target);
        let got = rig.attributes(node);
        assert_eq!((got.size_bytes, got.mode, got.file_type), (target.len() as u64, 0o777, FileType::Symlink));
        let mut short = [0; 1];
        assert_eq!(rig.fs.read_link(node, &mut short).unwrap(), 1);
        assert_eq!(short[0], target[0]);
    }
    fails!(rig.symlink(rig.root, "x", &[b'y'; 4096]), NAMETOOLONG);
    fails!(rig.symlink(rig.root, "x", b""), NOENT);
    fails!(rig.fs.read_link(rig.root, &mut [0; 8]), INVAL);
    assert_eq!(rig.find(rig.root, "x"), None);
}

fn numbers_nobody_has_are_stale(rig: &Rig<'_>) {
    let node = rig.file(rig.root, "f");
    let other = NodeId::new(node.number, node.generation.wrapping_add(1));
    for bad in [other, NodeId::new(0, 0), NodeId::new(1 << 60, 0), NodeId::new(u64::MAX, 7)] {
        fails!(rig.fs.attributes(bad), STALE);
        fails!(rig.fs.lookup(bad, name("x")), STALE);
        fails!(rig.fs.set_attributes(bad, &Default::default()), STALE);
        fails!(rig.try_read(bad, 0, 1), STALE);
        fails!(rig.fs.link(bad, rig.root, name("x")), STALE);
        fails!(rig.fs.read_directory(bad, 0, &mut |_| true), STALE);
    }
}

fn creation_and_removal_touch_the_right_times(rig: &Rig<'_>) {
    let (root, f) = (rig.root, rig.file(rig.root, "f"));
    let d = rig.directory(root, "d");
    assert_eq!(rig.touched(&[root, d], || _ = rig.file(d, "x")), ["", "mc"]);
    assert_eq!(rig.touched(&[root, d], || _ = rig.directory(d, "y")), ["", "mc"]);
    assert_eq!(rig.touched(&[root, d, f], || rig.fs.link(f, d, name("z")).unwrap()), ["", "mc", "c"]);
    assert_eq!(rig.touched(&[root, d, f], || _ = rig.unlink(d, "z").unwrap()), ["", "mc", "c"]);
    assert_eq!(rig.touched(&[root, d], || _ = rig.rmdir(d, "y").unwrap()), ["", "mc"]);
    let nothing = rig.touched(&[root, d, f], || {
        fails!(rig.unlink(d, "none"), NOENT);
        fails!(rig.fs.create(d, name("x"), &NewNode::regular(0, OWNER)), EXIST);
        fails!(rig.rmdir(root, "d"), NOTEMPTY);
        _ = rig.fs.lookup(d, name("x")).unwrap();
    });
    assert_eq!(nothing, ["", "", ""], "what failed left no trace");
}

fn an_unnamed_file_can_be_named_once(rig: &Rig<'_>) {
    let d = rig.directory(rig.root, "d");
    let node = rig.fs.create_unnamed(d, &NewNode::regular(0o640, OWNER)).unwrap();
    let _user = rig.hold(node);
    let got = rig.attributes(node);
    assert_eq!((got.links, got.mode, got.file_type), (0, 0o640, FileType::Regular));
    assert!(rig.list(d).is_empty());
    rig.write(node, 0, b"later");
    rig.fs.link(node, d, name("n")).unwrap();
    assert_eq!((rig.links(node), rig.content(node)), (1, b"later".to_vec()));
    rig.fs.link(node, d, name("m")).unwrap();
    rig.unlink(d, "n").unwrap();
    rig.unlink(d, "m").unwrap();
    fails!(rig.fs.link(node, d, name("n")), NOENT);
    let file = rig.file(rig.root, "f");
    fails!(rig.fs.create_unnamed(file, &NewNode::regular(0, OWNER)), NOTDIR);
}

fn a_parent_is_found(rig: &Rig<'_>) {
    let d = rig.directory(rig.root, "d");
    let e = rig.directory(d, "e");
    assert_eq!((rig.fs.parent(e).unwrap(), rig.fs.parent(d).unwrap()), (d, rig.root));
    rig.rename((d, "e"), (rig.root, "e")).unwrap();
    assert_eq!(rig.fs.parent(e).unwrap(), rig.root);
}
