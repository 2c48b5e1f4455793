//! Access lists: the permission bits are the truth, whoever changed them.

use std::time::{Duration, Instant};

use gannet_vfs::namespace::{AccessList, Capabilities, Credentials, Namespace};
use gannet_vfs::{FileSystem, XattrMode};

use super::{by_root, with_a_file};
use crate::dispatch::acl;
use crate::protocol::constants::SetAttrValid;
use crate::protocol::request::SetAttrRequest;

/// A list with a named user: what the owner, the mask and others may.
fn list(owner: u16, mask: u16, other: u16) -> Vec<u8> {
    let mut value = 2u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in [(1, owner, !0), (2, 7, 5), (4, 5, !0), (0x10, mask, !0), (0x20, other, !0u32)] {
        value.extend(u16::to_le_bytes(tag));
        value.extend(u16::to_le_bytes(permissions));
        value.extend(u32::to_le_bytes(id));
    }
    value
}

#[test]
fn a_list_is_told_with_the_permission_bits_as_they_are() {
    let (file_system, dispatcher, node) = with_a_file();
    let header = by_root(dispatcher.nodes.id(node));
    let told = || {
        let mut out = [0; 200];
        let length_bytes = dispatcher.get_xattr(&header, 200, acl::ACCESS, &mut out).unwrap();
        out[..length_bytes].to_vec()
    };
    dispatcher.set_xattr(&header, acl::ACCESS, &list(6, 6, 4), 0, 0).unwrap();
    assert_eq!(told(), list(6, 6, 4));
    assert_eq!(file_system.permissions(node).unwrap().mode, 0o664);
    // Another participant's `chmod` leaves the list as it is stored.
    let groups = [];
    let who = Credentials {
        user: 0,
        group: 0,
        groups: &groups,
        capabilities: Capabilities::all(),
        umask: 0,
        namespace: None,
    };
    Namespace::new(&*file_system, who).set_mode(node, 0o640).unwrap();
    assert_eq!(told(), list(6, 4, 0));
    // So does the mount's own: it is one change.
    let (valid, time) = (SetAttrValid::MODE, (0, 0));
    let request = SetAttrRequest {
        valid,
        handle: 0,
        size_bytes: 0,
        accessed: time,
        modified: time,
        mode: 0o700,
        user: 0,
        group: 0,
    };
    dispatcher.set_attributes(&header, &request).unwrap();
    assert_eq!(told(), list(7, 0, 0));
    let mut out = [0; 8];
    dispatcher.get_xattr(&header, 0, acl::ACCESS, &mut out).unwrap();
    assert_eq!(u64::from_le_bytes(out), list(7, 0, 0).len() as u64);
}

#[test]
fn list_and_bits_that_are_changed_meanwhile_are_never_mixed() {
    let (file_system, dispatcher, node) = with_a_file();
    let header = by_root(dispatcher.nodes.id(node));
    // The named user may all that the mask leaves, or nothing.
    let mut none = list(6, 7, 0);
    none[4 + 8 + 2] = 0;
    let both = [(none, 0o670), (list(6, 0, 0), 0o600)];
    let set = |value: &[u8]| assert!(dispatcher.set_xattr(&header, acl::ACCESS, value, 0, 0).is_ok());
    set(&both[0].0);
    // More than there are cores: who looks is held up between its looks then.
    let begin = Instant::now();
    std::thread::scope(|scope| {
        let look = || {
            while begin.elapsed() < Duration::from_millis(500) {
                let mut value = AccessList::ROOM;
                let length_bytes = AccessList::tell(&*file_system, node, &mut value).unwrap();
                let named = value[4 + 8 + 2] & value[4 + 3 * 8 + 2];
                assert_eq!(named, 0, "more than ever: {:?}", &value[..length_bytes]);
            }
        };
        (0..6).for_each(|_| drop(scope.spawn(look)));
        while begin.elapsed() < Duration::from_millis(500) {
            both.iter().rev().for_each(|(value, _)| set(value));
        }
    });
    assert_eq!(file_system.permissions(node).unwrap().mode, both[0].1);
    file_system.set_xattr(node, acl::ACCESS, b"nonsense", XattrMode::Any).unwrap();
    let mut value = AccessList::ROOM;
    assert!(AccessList::tell(&*file_system, node, &mut value).is_err(), "it is no list");
}
