//! What is well-formed, with right checksums, and cannot be meant: found, named, and mended so that the rest stays.

use super::build::{Builder, Places, populated};
use super::tree::tree;
use super::{damage, medium_of, repaired, run};
use crate::check::Outcome;
use crate::format::entry::{LoggedAttributes, Payload};
use crate::format::slot::{Birth, SLOT_BYTES, Slot};
use crate::format::superblock::AT_CHECKSUM;
use crate::format::{BLOCK_BYTES, Key, Tag, get_u64, put_u64};
use gannet_media::{Medium, MediumOffset};
use gannet_vfs::{InodeFlags, Owner};

/// An access control list as Linux has them: version, entries of tag, permissions and id.
fn list(version: u32, entries: &[(u16, u16)]) -> Vec<u8> {
    let mut bytes = version.to_le_bytes().to_vec();
    for (tag, permissions) in entries {
        bytes.extend(tag.to_le_bytes());
        bytes.extend(permissions.to_le_bytes());
        bytes.extend([0xFF; 4]);
    }
    bytes
}

const SOUND_LIST: [(u16, u16); 3] = [(1, 6), (4, 4), (0x20, 0)];

/// Changes a populated volume, and expects these findings, which are gone after a repair.
fn finds(change: impl FnOnce(&mut Builder, &Places), expected: &[&str]) {
    let (mut builder, places) = populated();
    let before = tree(&builder.medium);
    change(&mut builder, &places);
    builder.close();
    let medium = medium_of(&builder.image());
    let found = run(&medium, false);
    assert_eq!(damage(&found).len(), expected.len(), "{:#?}", damage(&found));
    for (text, part) in damage(&found).iter().zip(expected) {
        assert!(text.contains(part), "{text} for {part}");
    }
    let outcome = if expected.is_empty() { Outcome::Sound } else { Outcome::Damaged };
    assert_eq!(found.outcome, outcome);
    assert_eq!(repaired(&medium).findings.len(), expected.len());
    let after = tree(&medium);
    assert!(after.keys().eq(before.keys()), "names are lost");
}

/// Writes a slot anew, with a right checksum.
fn change_slot(builder: &Builder, inode: u32, change: impl FnOnce(Birth) -> Birth) {
    let Ok(Slot::Used { generation, birth, links, parent, .. }) = builder.disk.slot(inode) else {
        panic!("a slot in use")
    };
    let bytes: [u8; SLOT_BYTES as usize] =
        change(birth).encode(builder.disk.key(), inode, generation, links, parent as u32);
    builder.medium.write(MediumOffset(builder.slot_at(inode)), &bytes).unwrap();
}

#[test]
fn flags_that_say_both_ways_to_write() {
    let both = InodeFlags::IN_PLACE | InodeFlags::COPY_ON_WRITE;
    let said = |flags| LoggedAttributes {
        mode: 0o600,
        flags,
        owner: Owner { user: 7, group: 8 },
        size_bytes: 0,
        modified: 5,
        accessed: 6,
    };
    let now = "attributes at";
    let by_log = |builder: &mut Builder, places: &Places| {
        builder.append(places.directory, &Payload::Attributes(said(both | InodeFlags::NO_DUMP)));
    };
    finds(by_log, &[now]);
    // In a slot they count as long as the log says nothing else.
    let by_slot = |builder: &mut Builder, places: &Places| {
        change_slot(builder, places.twin, |birth| Birth { flags: both, ..birth });
    };
    finds(by_slot, &["birth of inode", now]);
    let by_slot_alone = |builder: &mut Builder, places: &Places| {
        change_slot(builder, places.directory, |birth| Birth { flags: both, ..birth });
        builder.append(places.directory, &Payload::Attributes(said(InodeFlags::COPY_ON_WRITE)));
    };
    finds(by_slot_alone, &["birth of inode"]);
}

#[test]
fn a_birth_that_is_not_that_of_its_slot() {
    for change in [
        |birth: Birth| Birth { mode: 0o777, ..birth },
        |birth: Birth| Birth { owner: Owner { user: 0, group: 0 }, ..birth },
        |birth: Birth| Birth { device: 9, ..birth },
        |birth: Birth| Birth { created: birth.created + 1, ..birth },
    ] {
        let change = |builder: &mut Builder, places: &Places| change_slot(builder, places.file, change);
        finds(change, &["birth at"]);
    }
    // The slot counts: so do the engine and a repair.
    let (builder, places) = populated();
    change_slot(&builder, places.file, |birth| Birth { mode: 0o4711, ..birth });
    let whole = tree(&builder.medium);
    let medium = medium_of(&builder.image());
    let report = repaired(&medium);
    assert!(damage(&report)[0].contains(&format!("the birth of inode {}", places.file)), "{:#?}", damage(&report));
    assert_eq!(tree(&medium), whole);
}

#[test]
fn access_control_lists_that_nobody_can_read() {
    let sets = |name: &'static [u8], value: Vec<u8>, expected: &[&str]| {
        let change = |builder: &mut Builder, places: &Places| {
            builder.append(places.directory, &Payload::Xattr { name, value: Some(&value) });
            builder.append(places.directory, &Payload::Xattr { name: b"user.kept", value: Some(b"kept") });
        };
        finds(change, expected);
    };
    // Name spaces are those of who uses the volume.
    for name in [&b"security.x"[..], b"trusted.x", b"user.x", b"system.other", b"colour"] {
        sets(name, b"two".to_vec(), &[]);
    }
    for name in [&b"system.posix_acl_access"[..], b"system.posix_acl_default"] {
        sets(name, list(2, &SOUND_LIST), &[]);
        sets(name, Vec::new(), &[]);
        for bad in [list(3, &SOUND_LIST), list(2, &SOUND_LIST[..2]), list(2, &[]), b"two".to_vec(), vec![2; 3000]] {
            sets(name, bad, &["its value is no access control list"]);
        }
    }
    // The bits of the group stood for the mask of a list that may have given it nothing.
    let (mut builder, places) = populated();
    let mode = |medium: &Medium| tree(medium)["/directory"].mode;
    builder.append(places.directory, &Payload::Xattr { name: b"system.posix_acl_default", value: Some(b"two") });
    builder.close();
    let medium = medium_of(&builder.image());
    repaired(&medium);
    assert_eq!(mode(&medium), 0o640);
    builder.append(places.directory, &Payload::Xattr { name: b"system.posix_acl_access", value: Some(b"two") });
    builder.close();
    let medium = medium_of(&builder.image());
    repaired(&medium);
    assert_eq!(mode(&medium), 0o600);
    // In blocks of its own.
    let large = |builder: &mut Builder, places: &Places| {
        builder.large_xattr(places.twin, b"system.posix_acl_access", &[2; 9000]);
        builder.large_xattr(places.file, b"system.posix_acl_access", &list(2, &SOUND_LIST));
    };
    finds(large, &["its value is no access control list"]);
}

/// What is in one copy of the superblock only goes; what is in both is a newer Gannet's, and stays.
#[test]
fn copies_of_the_superblock_that_differ_where_nothing_is_said() {
    let put = |builder: &Builder, block: u64, at: usize, bits: u64| {
        let mut bytes = [0; BLOCK_BYTES as usize];
        builder.disk.read(block * BLOCK_BYTES, &mut bytes).unwrap();
        let word = get_u64(&bytes, at) | bits;
        put_u64(&mut bytes, at, word);
        let key: Key = builder.disk.key();
        let checksum = key.checksum(Tag::Superblock, 0, 0, &bytes[..AT_CHECKSUM]);
        put_u64(&mut bytes, AT_CHECKSUM, checksum);
        builder.medium.write(MediumOffset(block * BLOCK_BYTES), &bytes).unwrap();
    };
    const UNKNOWN_OPTION: (usize, u64) = (136, 0x80);
    const NOWHERE: (usize, u64) = (3000, 5);
    for (at, bits) in [UNKNOWN_OPTION, NOWHERE] {
        for first in [true, false] {
            let change = |builder: &mut Builder, _: &Places| {
                put(builder, if first { 0 } else { builder.disk.geometry().replica() }, at, bits);
            };
            finds(change, &[if first { "superblock at 0x0: where nothing" } else { "replica of the superblock at" }]);
        }
        let both = |builder: &mut Builder, _: &Places| {
            put(builder, 0, at, bits);
            put(builder, builder.disk.geometry().replica(), at, bits);
        };
        finds(both, &[]);
    }
    let each = |builder: &mut Builder, _: &Places| {
        put(builder, 0, UNKNOWN_OPTION.0, UNKNOWN_OPTION.1);
        put(builder, builder.disk.geometry().replica(), NOWHERE.0, NOWHERE.1);
    };
    finds(each, &["superblock at 0x0", "replica of the superblock"]);
}
