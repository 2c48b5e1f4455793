//! What a full volume refuses has not happened: neither a part of it, nor what it would have needed.

use crate::common::{attach, volume};
use crate::{BLOCK, assert_sound, fill};
use gannet_fstest::{Rig, name};
use gannet_vfs::{AllocateMode, AttributeChange, Errno, FileSystem, MapAccess, NodeId, RenameFlags, WritePosition};

/// A file that is mapped writably is sealed behind each append and extension, with an entry of its own: room for both is had before the
/// first, or an append that has happened would be told as one that failed.
#[test]
fn what_fails_on_a_mapped_file_has_not_happened() {
    type Change = (&'static str, fn(&Rig<'_>, NodeId) -> bool);
    let changes: [Change; 3] = [
        ("append within a block", |rig, node| rig.try_write(node, WritePosition::Append, b"more").is_ok()),
        ("write behind the end", |rig, node| {
            let size = rig.attributes(node).size_bytes;
            rig.try_write(node, WritePosition::At(size + 3), b"more").is_ok()
        }),
        ("extension", |rig, node| {
            let size = rig.attributes(node).size_bytes;
            let change = AttributeChange { size_bytes: Some(size + 5), ..Default::default() };
            rig.fs.set_attributes(node, &change).is_ok()
        }),
    ];
    for (text, change) in changes {
        let medium = volume(16 << 20);
        let fs = attach(&medium);
        let rig = Rig::new(&fs);
        let node = rig.file(rig.root, "mapped");
        rig.write(node, 0, b"some");
        let token = fs.map(node, MapAccess::Write, 0, BLOCK as u64, &mut |_| {}).expect("map");
        for blocks in [100, 3, 1] {
            fill(&rig, &format!("f{blocks}-"), blocks);
        }
        // Over the end of a page of the log.
        for number in 0..100 {
            let before = (rig.attributes(node).size_bytes, rig.content(node));
            let happened = change(&rig, node);
            let after = (rig.attributes(node).size_bytes, rig.content(node));
            assert_eq!(after != before, happened, "{text} {number}");
        }
        fs.unmap(token).expect("unmap");
        assert!(fs.detach().expect("detach"));
        drop(fs);
        assert_sound(&medium);
    }
}

/// A rename that leaves a whiteout and finds no room gives back all that it had taken for that: a thread's hands are few.
#[test]
fn a_whiteout_without_room_leaves_nothing_in_hand() {
    let medium = volume(16 << 20);
    let fs = attach(&medium);
    let rig = Rig::new(&fs);
    for number in 0..64 {
        rig.file(rig.root, &format!("moved{number}"));
    }
    for blocks in [100, 3, 1] {
        fill(&rig, &format!("f{blocks}-"), blocks);
    }
    let mut refused = 0;
    for number in 0..64 {
        let (from, to) = (format!("moved{number}"), format!("to{number}"));
        if let Err(error) = fs.rename(rig.root, name(&from), rig.root, name(&to), RenameFlags::WHITEOUT) {
            assert_eq!(error.errno(), Errno::NOSPC, "after {refused}");
            refused += 1;
        }
    }
    assert!(refused > 16, "{refused}");
    rig.unlink(rig.root, "f100-0").expect("room can be made");
    rig.file(rig.root, "new");
    assert!(fs.detach().expect("detach"));
    drop(fs);
    assert_sound(&medium);
}

/// Zeros take room where a file has holes or shares its blocks. If there is too little, not a byte has changed.
#[test]
fn zeroing_without_room_destroys_nothing() {
    const MIB: u64 = 1 << 20;
    let medium = volume(32 << 20);
    let fs = attach(&medium);
    let rig = Rig::new(&fs);
    let content: Vec<u8> = (0..8 * MIB).map(|at| (at / 7 % 251) as u8 + 1).collect();
    let small = rig.file(rig.root, "small");
    rig.write(small, 0, &content[..5 * BLOCK]);
    let large = rig.file(rig.root, "large");
    rig.write(large, 0, &content);
    let shares = rig.file(rig.root, "shares");
    fs.clone_range(large, 0, shares, 0, 100 * BLOCK as u64).expect("clone");
    let refused = |node, mode, offset, length| {
        let before = (rig.attributes(node), rig.content(node));
        let outcome = fs.allocate(node, mode, offset, length).map_err(|error| error.errno());
        assert_eq!(outcome, Err(Errno::NOSPC), "{mode:?} of {length} at {offset}");
        let after = (rig.attributes(node), rig.content(node));
        let differs = before.1.iter().zip(&after.1).position(|(before, after)| before != after);
        assert!(differs.is_none(), "{mode:?} of {length} at {offset}: differs at {differs:?}");
        assert_eq!((before.0.size_bytes, before.0.sectors), (after.0.size_bytes, after.0.sectors), "{mode:?}");
    };
    for mode in [AllocateMode::Zero, AllocateMode::ZeroKeepSize] {
        refused(small, mode, 8192, 1 << 40);
        refused(small, mode, 8193, 1 << 40);
    }
    for blocks in [100, 3, 1] {
        fill(&rig, &format!("f{blocks}-"), blocks);
    }
    for mode in [AllocateMode::Zero, AllocateMode::ZeroKeepSize] {
        refused(large, mode, 4 * MIB, 16 * MIB);
        refused(large, mode, 0, 64 << 10);
        refused(shares, mode, 5, 100);
        refused(shares, mode, 50 * BLOCK as u64 + 5, 64 << 10);
    }
    // Both ends of what is punched are in blocks that are shared.
    refused(shares, AllocateMode::PunchHole, 50 * BLOCK as u64 + 5, 64 << 10);
    // Blocks of the file's own are zeroed where they are: that takes no room.
    let (from, to) = (5 * MIB + 5, 7 * MIB + 77);
    fs.allocate(large, AllocateMode::Zero, from, to - from).expect("it has blocks of its own");
    let mut expected = content.clone();
    expected[from as usize..to as usize].fill(0);
    assert!(rig.content(large) == expected);
    assert!(fs.detach().expect("detach"));
    drop(fs);
    assert_sound(&medium);
}
