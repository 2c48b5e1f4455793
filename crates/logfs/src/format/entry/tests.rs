//! What is written is read, and nothing else passes.

use super::*;
use crate::format::slot::Birth;
use gannet_vfs::{FileType, InodeFlags, Owner};

fn owned() -> Owned {
    Owned { key: Key(99), inode: 7, generation: 3 }
}

fn birth() -> Birth {
    Birth {
        file_type: FileType::Regular,
        mode: 0o644,
        flags: InodeFlags::APPEND_ONLY,
        owner: Owner { user: 1, group: 2 },
        device: 5,
        created: -9,
        head: 17,
    }
}

fn samples() -> Vec<Payload<'static>> {
    static LONG: [u8; 255] = [b'n'; 255];
    static EXTENTS: [FileExtent; 3] = [
        FileExtent { file_block: 0, block: 100, count: 1, shared: false },
        FileExtent { file_block: 9, block: (1 << 39) - 1, count: (1 << 24) - 1, shared: true },
        FileExtent { file_block: u64::MAX >> 12, block: 1, count: 7, shared: false },
    ];
    let first = Binding { name: &LONG, rank: 9, file_type: Some(FileType::Regular), inode: 4, generation: 1 };
    let second = Binding { name: b"x", rank: 0, file_type: None, inode: u32::MAX, generation: 8 };
    let partner = Some(Partner { inode: 1, generation: 2, sequence: u64::MAX });
    vec![
        Payload::Seal,
        Payload::Bind { first, second: None, birth: None, partner: None },
        Payload::Bind { first, second: Some(second), birth: Some(birth()), partner },
        Payload::Bind { first: second, second: Some(first), birth: None, partner },
        Payload::Write { size_bytes: 1, hash: None, extents: Extents::List(&EXTENTS) },
        Payload::Write { size_bytes: 1, hash: Some(0), extents: Extents::List(&EXTENTS[..1]) },
        Payload::Write { size_bytes: 1, hash: Some(6), extents: Extents::List(&[]) },
        Payload::Size { size_bytes: 5, hash: Some(7) },
        Payload::Attributes(LoggedAttributes {
            mode: 0o7777,
            flags: InodeFlags::IMMUTABLE,
            owner: Owner { user: 1, group: 2 },
            size_bytes: 3,
            modified: 4,
            accessed: i64::MIN,
        }),
        Payload::Resize {
            attributes: LoggedAttributes {
                mode: 0o640,
                flags: InodeFlags::empty(),
                owner: Owner { user: 3, group: 4 },
                size_bytes: 5,
                modified: 6,
                accessed: 7,
            },
            hash: Some(8),
            keeps: true,
        },
        Payload::Unmap { file_block: 1, count: 2 },
        Payload::Shift { file_block: 1, distance: 2, down: true, size_bytes: 9 },
        Payload::Remap { size_bytes: 9, file_block: 4, count: 1 << 40, extents: Extents::List(&EXTENTS) },
        Payload::Remap { size_bytes: 9, file_block: 4, count: 2, extents: Extents::List(&[]) },
        Payload::Xattr { name: b"user.a", value: Some(&LONG) },
        Payload::Xattr { name: b"user.a", value: None },
        Payload::LargeXattr {
            name: &LONG,
            value: LargeValue { bytes: 1 << 16, checksum: 5, extents: Extents::List(&EXTENTS) },
        },
        Payload::Target(b"/somewhere/else"),
    ]
}

#[test]
fn what_is_written_is_read_and_nothing_else_passes() {
    let mut buffer = [0xAA; ENTRY_BYTES_MAX];
    for payload in samples() {
        let bytes = encode(owned(), 2, 5, -9, &payload, &mut buffer).to_vec();
        let entry = Entry::decode(owned(), &bytes).expect("valid");
        assert_eq!((entry.epoch, entry.sequence, entry.time, entry.payload), (2, 5, -9, payload));
        assert_eq!(entry.lines as usize * 64, bytes.len());
        for at in 0..bytes.len() {
            let mut bad = bytes.clone();
            bad[at] ^= 1;
            assert!(Entry::decode(owned(), &bad).is_none(), "{payload:?} byte {at}");
        }
        assert!(Entry::decode(Owned { generation: 4, ..owned() }, &bytes).is_none());
        assert!(Entry::decode(Owned { inode: 8, ..owned() }, &bytes).is_none());
        assert!(Entry::decode(Owned { key: Key(98), ..owned() }, &bytes).is_none());
    }
}

#[test]
fn the_longest_of_each_kind_fits_a_page() {
    let extents = vec![FileExtent { file_block: 0, block: 1, count: 1, shared: true }; EXTENTS_MAX];
    let target = vec![b't'; TARGET_BYTES_MAX];
    for payload in [
        Payload::Write { size_bytes: 0, hash: None, extents: Extents::List(&extents) },
        Payload::Remap {
            size_bytes: 0,
            file_block: 0,
            count: 1,
            extents: Extents::List(&extents[..REMAP_EXTENTS_MAX]),
        },
        Payload::Target(&target),
        Payload::Xattr { name: b"user.n", value: Some(&target[..XATTR_BYTES_MAX - 6]) },
    ] {
        assert_eq!(payload.lines(), ENTRY_LINES);
        let mut buffer = [0; ENTRY_BYTES_MAX];
        let bytes = encode(owned(), 1, 1, 0, &payload, &mut buffer);
        assert_eq!(Entry::decode(owned(), bytes).unwrap().payload, payload);
    }
}

#[test]
fn random_bytes_are_refused_without_panic() {
    let mut state = 1_u64;
    let mut bytes = [0; 256];
    for _ in 0..20_000 {
        for byte in &mut bytes {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            *byte = (state >> 56) as u8;
        }
        bytes[0] %= 14;
        bytes[2] %= 5;
        // A forged checksum leads into the payload's own checks.
        let lines = bytes[2] as usize;
        if lines > 0 {
            let checksum = owned().checksum(get_u64(&bytes, 0), &bytes[..lines * 64]);
            put_u64(&mut bytes, AT_CHECKSUM, checksum);
        }
        let _ = Entry::decode(owned(), &bytes);
    }
}
