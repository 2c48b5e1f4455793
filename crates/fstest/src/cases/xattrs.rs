//! Extended attributes.

use std::collections::BTreeSet;

use gannet_vfs::{NewNode, NodeId, XattrMode};

use super::cases;
use crate::rig::OWNER;
use crate::{Rig, fails, name};

cases![
    what_is_set_is_got needs XATTRS,
    modes_check_presence needs XATTRS,
    lengths needs XATTRS,
    lists_are_complete needs XATTRS,
    values_of_all_sizes needs XATTRS,
    large_values needs XATTRS | LARGE_XATTRS,
    every_type_has_them needs XATTRS,
    a_new_inode_can_begin_with_them needs XATTRS,
    they_touch_the_inode_only needs XATTRS,
    permissions_tell_of_an_access_list needs XATTRS,
];

fn get(rig: &Rig<'_>, node: NodeId, text: &str) -> Vec<u8> {
    let mut room = vec![0; 65_536];
    let length = rig.fs.xattr(node, text.as_bytes(), &mut room).expect("get");
    room.truncate(length);
    room
}

fn set(rig: &Rig<'_>, node: NodeId, text: &str, value: &[u8]) {
    rig.fs.set_xattr(node, text.as_bytes(), value, XattrMode::Any).expect("set");
}

fn what_is_set_is_got(rig: &Rig<'_>) {
    let node = rig.file(rig.root, "f");
    fails!(rig.fs.xattr(node, b"user.a", &mut [0; 9]), NODATA);
    fails!(rig.fs.remove_xattr(node, b"user.a"), NODATA);
    set(rig, node, "user.a", b"one");
    set(rig, node, "user.ab", b"");
    assert_eq!((get(rig, node, "user.a"), get(rig, node, "user.ab")), (b"one".to_vec(), Vec::new()));
    set(rig, node, "user.a", b"another");
    assert_eq!(get(rig, node, "user.a"), b"another");
    rig.fs.remove_xattr(node, b"user.a").unwrap();
    fails!(rig.fs.xattr(node, b"user.a", &mut []), NODATA);
    assert_eq!(get(rig, node, "user.ab"), b"");
}

fn modes_check_presence(rig: &Rig<'_>) {
    let node = rig.file(rig.root, "f");
    fails!(rig.fs.set_xattr(node, b"user.a", b"x", XattrMode::Replace), NODATA);
    rig.fs.set_xattr(node, b"user.a", b"x", XattrMode::Create).unwrap();
    fails!(rig.fs.set_xattr(node, b"user.a", b"y", XattrMode::Create), EXIST);
    assert_eq!(get(rig, node, "user.a"), b"x");
    rig.fs.set_xattr(node, b"user.a", b"z", XattrMode::Replace).unwrap();
    assert_eq!(get(rig, node, "user.a"), b"z");
}

fn lengths(rig: &Rig<'_>) {
    let node = rig.file(rig.root, "f");
    set(rig, node, "user.a", b"12345");
    assert_eq!(rig.fs.xattr(node, b"user.a", &mut []).unwrap(), 5);
    fails!(rig.fs.xattr(node, b"user.a", &mut [0; 4]), RANGE);
    assert_eq!(rig.fs.xattr(node, b"user.a", &mut [0; 5]).unwrap(), 5);
    fails!(rig.fs.set_xattr(node, b"user.b", &vec![0; 65_537], XattrMode::Any), TOOBIG);
    fails!(rig.fs.set_xattr(node, &[b'x'; 256], b"", XattrMode::Any), RANGE);
    fails!(rig.fs.set_xattr(node, b"", b"", XattrMode::Any), RANGE);
}

fn lists_are_complete(rig: &Rig<'_>) {
    let node = rig.file(rig.root, "f");
    let long = format!("user.{}", "n".repeat(250));
    let expected: BTreeSet<Vec<u8>> = (0..20)
        .map(|index| format!("user.{index}"))
        .chain([long, "trusted.x".into(), "security.y".into()])
        .map(String::into_bytes)
        .collect();
    for text in &expected {
        rig.fs.set_xattr(node, text, b"v", XattrMode::Any).unwrap();
    }
    let mut found = Vec::new();
    rig.fs.list_xattrs(node, &mut |text| found.push(text.to_vec())).unwrap();
    assert_eq!((found.len(), found.into_iter().collect::<BTreeSet<_>>()), (expected.len(), expected));
}

fn values_of_all_sizes(rig: &Rig<'_>) {
    values(rig, &[0, 1, 31, 32, 33, 200, 1000, 3000]);
}

fn large_values(rig: &Rig<'_>) {
    values(rig, &[4000, 4096, 4097, 20_000, 65_536]);
}

fn values(rig: &Rig<'_>, lengths: &[usize]) {
    for &length in lengths {
        let node = rig.file(rig.root, &format!("f{length}"));
        let value: Vec<u8> = (0..length).map(|index| (index * 7 + length) as u8).collect();
        set(rig, node, "user.v", &value);
        assert_eq!(get(rig, node, "user.v"), value, "{length} bytes");
        set(rig, node, "user.v", &value[..length / 2]);
        assert_eq!(get(rig, node, "user.v"), value[..length / 2]);
    }
}

fn every_type_has_them(rig: &Rig<'_>) {
    let nodes = [rig.directory(rig.root, "d"), rig.symlink(rig.root, "s", b"t").unwrap(), rig.file(rig.root, "f")];
    for node in nodes.into_iter().chain([rig.root]) {
        set(rig, node, "trusted.t", b"v");
        assert_eq!(get(rig, node, "trusted.t"), b"v");
    }
}

fn a_new_inode_can_begin_with_them(rig: &Rig<'_>) {
    let new = NewNode { xattrs: &[(b"user.a", b"1"), (b"user.b", b"22")], ..NewNode::directory(0o700, OWNER) };
    let node = rig.fs.create(rig.root, name("d"), &new).unwrap();
    assert_eq!((get(rig, node, "user.a"), get(rig, node, "user.b")), (b"1".to_vec(), b"22".to_vec()));
}

fn they_touch_the_inode_only(rig: &Rig<'_>) {
    let node = rig.file(rig.root, "f");
    assert_eq!(rig.touched(&[node, rig.root], || set(rig, node, "user.a", b"x")), ["c", ""]);
    assert_eq!(rig.touched(&[node], || _ = get(rig, node, "user.a")), [""]);
    assert_eq!(rig.touched(&[node], || rig.fs.remove_xattr(node, b"user.a").unwrap()), ["c"]);
}

fn permissions_tell_of_an_access_list(rig: &Rig<'_>) {
    let node = rig.file(rig.root, "f");
    assert!(!rig.fs.permissions(node).unwrap().has_access_list);
    set(rig, node, "system.posix_acl_access", b"\x02\0\0\0");
    assert!(rig.fs.permissions(node).unwrap().has_access_list);
    set(rig, node, "user.other", b"");
    rig.fs.remove_xattr(node, b"system.posix_acl_access").unwrap();
    assert!(!rig.fs.permissions(node).unwrap().has_access_list);
    let new = NewNode { xattrs: &[(b"system.posix_acl_access", b"\x02\0\0\0")], ..NewNode::regular(0o600, OWNER) };
    let node = rig.fs.create(rig.root, name("g"), &new).unwrap();
    assert!(rig.fs.permissions(node).unwrap().has_access_list);
}
