//! `fallocate` in all its modes.

use gannet_vfs::{AllocateMode, AttributeChange, SeekTarget, Time, TimeChange};

use super::cases;
use crate::{Rig, fails};

cases![
    extend_grows_and_zeros needs ALLOCATE,
    what_is_there_already_counts_as_changed needs ALLOCATE,
    keep_size_keeps_the_size needs ALLOCATE,
    punched_holes_read_as_zeros needs ALLOCATE,
    zeroed_ranges needs ALLOCATE,
    collapse_cuts_out needs ALLOCATE,
    insert_puts_in needs ALLOCATE,
    unshare_changes_nothing_visible needs ALLOCATE,
    unshare_gives_holes_space needs ALLOCATE,
    ranges_that_make_no_sense needs ALLOCATE,
    reserved_space_is_there needs ALLOCATE | RESERVES,
    allocation_is_all_or_nothing needs ALLOCATE,
    space_behind_the_end_outlives_growth needs ALLOCATE,
];

fn block(rig: &Rig<'_>) -> u64 {
    u64::from(rig.attributes(rig.root).block_bytes)
}

fn filled(length: u64) -> Vec<u8> {
    (0..length).map(|index| (index / 64 % 255) as u8 + 1).collect()
}

fn extend_grows_and_zeros(rig: &Rig<'_>) {
    let node = rig.file(rig.root, "f");
    rig.write(node, 0, b"abc");
    rig.fs.allocate(node, AllocateMode::Extend, 1, 10_000).unwrap();
    let mut expected = b"abc".to_vec();
    expected.resize(10_001, 0);
    assert_eq!(rig.content(node), expected);
    assert!(rig.attributes(node).sectors >= 10_001_u64.div_ceil(512));
    rig.fs.allocate(node, AllocateMode::Extend, 0, 5).unwrap();
    assert_eq!(rig.content(node), expected, "inside the file nothing changes");
}

fn what_is_there_already_counts_as_changed(rig: &Rig<'_>) {
    let node = rig.file(rig.root, "f");
    rig.write(node, 0, &filled(8 * 4096));
    for mode in [AllocateMode::Extend, AllocateMode::KeepSize, AllocateMode::PunchHole] {
        // A time that was set within the same tick of the clock goes, too; one from the future as well.
        for (past, tick) in [(1_000_000, true), (1_000_000, false), (20_000_000_000, true), (20_000_000_000, false)] {
            let past = TimeChange::Set(Time::from_parts(past, 0));
            let change = AttributeChange { modified: past, ..AttributeChange::default() };
            let before = rig.fs.set_attributes(node, &change).unwrap();
            if tick {
                rig.tick();
            }
            rig.fs.allocate(node, mode, 4097, 100).unwrap();
            let after = rig.attributes(node);
            let changed = if tick { after.changed > before.changed } else { after.changed >= before.changed };
            assert!(after.modified != before.modified && changed, "{mode:?}: {after:?}");
            assert!(after.modified == after.changed, "{mode:?}: {after:?}");
        }
    }
}

fn keep_size_keeps_the_size(rig: &Rig<'_>) {
    let node = rig.file(rig.root, "f");
    rig.write(node, 0, b"abc");
    rig.fs.allocate(node, AllocateMode::KeepSize, 0, 100_000).unwrap();
    let got = rig.attributes(node);
    assert_eq!((got.size_bytes, rig.content(node)), (3, b"abc".to_vec()));
    assert!(got.sectors >= 100_000 / 512);
    rig.write(node, 50_000, b"x");
    let mut expected = b"abc".to_vec();
    expected.resize(50_000, 0);
    expected.push(b'x');
    assert_eq!(rig.content(node), expected);
    // Also what changes no size, as in the kernel's file systems.
    rig.resize(node, 50_001).unwrap();
    assert_eq!(rig.attributes(node).sectors, 50_001u64.next_multiple_of(block(rig)) / 512);
    assert_eq!(rig.content(node), expected);
    rig.resize(node, 0).unwrap();
    assert_eq!(rig.attributes(node).sectors, 0, "truncation gives it back");
}

fn punched_holes_read_as_zeros(rig: &Rig<'_>) {
    let block = block(rig);
    for (index, (start, length)) in
        [(0, block), (1, block), (block - 1, 2), (block, 3 * block), (10, 20), (5, 8 * block), (6 * block, 1 << 30)]
            .into_iter()
            .enumerate()
    {
        let node = rig.file(rig.root, &format!("f{index}"));
        let mut expected = filled(7 * block + 100);
        rig.write(node, 0, &expected);
        rig.fs.allocate(node, AllocateMode::PunchHole, start, length).unwrap();
        let end = (start + length).min(expected.len() as u64);
        expected[start as usize..end as usize].fill(0);
        assert_eq!(rig.content(node), expected, "{length} bytes at {start}");
        // Nothing that was punched returns with growth.
        rig.resize(node, expected.len() as u64 + block).unwrap();
        expected.resize(expected.len() + block as usize, 0);
        assert_eq!(rig.content(node), expected);
    }
    let node = rig.file(rig.root, "g");
    rig.write(node, 0, &filled(64 * block));
    let before = rig.attributes(node).sectors;
    rig.fs.allocate(node, AllocateMode::PunchHole, 0, 32 * block).unwrap();
    assert!(rig.attributes(node).sectors <= before - 32 * block / 512, "a hole gives its space back");
    assert_eq!(rig.fs.seek(node, SeekTarget::Data, 0).unwrap(), 32 * block);
    assert_eq!(rig.touched(&[node], || rig.fs.allocate(node, AllocateMode::PunchHole, 0, 64 * block).unwrap()), ["mc"]);
    fails!(rig.fs.seek(node, SeekTarget::Data, 0), NXIO);
}

fn zeroed_ranges(rig: &Rig<'_>) {
    let block = block(rig);
    for (index, mode) in [AllocateMode::Zero, AllocateMode::ZeroKeepSize].into_iter().enumerate() {
        let node = rig.file(rig.root, &format!("f{index}"));
        let mut expected = filled(3 * block + 10);
        rig.write(node, 0, &expected);
        rig.fs.allocate(node, mode, 7, block + 1).unwrap();
        expected[7..block as usize + 8].fill(0);
        assert_eq!(rig.content(node), expected);
        rig.fs.allocate(node, mode, 2 * block + 1, 2 * block).unwrap();
        expected[2 * block as usize + 1..].fill(0);
        if mode == AllocateMode::Zero {
            expected.resize(4 * block as usize + 1, 0);
        }
        assert_eq!(rig.content(node), expected);
        assert!(rig.attributes(node).sectors >= (4 * block + 1).div_ceil(512));
    }
}

fn collapse_cuts_out(rig: &Rig<'_>) {
    let block = block(rig);
    let node = rig.file(rig.root, "f");
    let mut expected = filled(8 * block + 33);
    rig.write(node, 0, &expected);
    for (first, count) in [(2, 3), (0, 1), (1, 2)] {
        rig.fs.allocate(node, AllocateMode::Collapse, first * block, count * block).unwrap();
        expected.drain((first * block) as usize..((first + count) * block) as usize);
        assert_eq!(rig.content(node), expected);
    }
    for (start, length) in [(1, block), (0, block - 1), (0, 3 * block), (2 * block, block), (0, 1 << 40)] {
        fails!(rig.fs.allocate(node, AllocateMode::Collapse, start, length), INVAL);
    }
    assert_eq!(rig.content(node), expected);
    rig.resize(node, 5 * block).unwrap();
    expected.resize(5 * block as usize, 0);
    assert_eq!(rig.content(node), expected);
}

fn insert_puts_in(rig: &Rig<'_>) {
    let block = block(rig);
    let node = rig.file(rig.root, "f");
    let mut expected = filled(3 * block + 33);
    rig.write(node, 0, &expected);
    for (first, count) in [(1, 2), (0, 1), (5, 1)] {
        rig.fs.allocate(node, AllocateMode::Insert, first * block, count * block).unwrap();
        let at = (first * block) as usize;
        expected.splice(at..at, core::iter::repeat_n(0, (count * block) as usize));
        assert_eq!(rig.content(node), expected);
    }
    let size = expected.len() as u64;
    for (start, length) in [(1, block), (0, block - 1), (size.next_multiple_of(block), block), (1 << 40, block)] {
        fails!(rig.fs.allocate(node, AllocateMode::Insert, start, length), INVAL);
    }
    let most = (i64::MAX as u64) / block * block;
    fails!(rig.fs.allocate(node, AllocateMode::Insert, 0, most), FBIG);
    assert_eq!(rig.content(node), expected);
}

fn unshare_changes_nothing_visible(rig: &Rig<'_>) {
    let node = rig.file(rig.root, "f");
    let expected = filled(10_000);
    rig.write(node, 0, &expected);
    rig.fs.allocate(node, AllocateMode::Unshare, 100, 5000).unwrap();
    assert_eq!(rig.content(node), expected);
}

/// What is written to a range that was unshared needs no more space, fallocate(2) says: its holes have some from then on.
fn unshare_gives_holes_space(rig: &Rig<'_>) {
    let block = u64::from(rig.fs.statistics().unwrap().block_bytes);
    let node = rig.file(rig.root, "f");
    rig.resize(node, 10 * block).unwrap();
    rig.fs.allocate(node, AllocateMode::UnshareKeepSize, 8 * block, 4 * block).unwrap();
    let all = rig.fs.attributes(node).unwrap();
    assert_eq!((all.size_bytes, all.sectors), (10 * block, 4 * block / 512));
    rig.fs.allocate(node, AllocateMode::Unshare, 8 * block, 4 * block).unwrap();
    let all = rig.fs.attributes(node).unwrap();
    assert_eq!((all.size_bytes, all.sectors), (12 * block, 4 * block / 512));
    assert_eq!(rig.content(node), vec![0; 12 * block as usize]);
}

const MODES: [AllocateMode; 9] = [
    AllocateMode::Extend,
    AllocateMode::KeepSize,
    AllocateMode::PunchHole,
    AllocateMode::Zero,
    AllocateMode::ZeroKeepSize,
    AllocateMode::Collapse,
    AllocateMode::Insert,
    AllocateMode::Unshare,
    AllocateMode::UnshareKeepSize,
];

fn ranges_that_make_no_sense(rig: &Rig<'_>) {
    let node = rig.file(rig.root, "f");
    rig.write(node, 0, b"stays");
    for mode in MODES {
        fails!(rig.fs.allocate(node, mode, 0, 0), INVAL);
        fails!(rig.fs.allocate(rig.root, mode, 0, 4096), ISDIR);
        fails!(rig.fs.allocate(node, mode, u64::MAX, 4096), FBIG);
        fails!(rig.fs.allocate(node, mode, i64::MAX as u64, 4096), FBIG);
    }
    let link = rig.symlink(rig.root, "s", b"t").unwrap();
    fails!(rig.fs.allocate(link, AllocateMode::Extend, 0, 1), NODEV);
    assert_eq!(rig.content(node), b"stays");
}

fn reserved_space_is_there(rig: &Rig<'_>) {
    let block = block(rig);
    let (kept, filler) = (rig.file(rig.root, "kept"), rig.file(rig.root, "filler"));
    let (behind, odd) = (rig.file(rig.root, "behind"), rig.file(rig.root, "odd"));
    rig.fs.allocate(kept, AllocateMode::Extend, 0, 64 * block).unwrap();
    rig.fs.allocate(behind, AllocateMode::KeepSize, 0, 640 * block).unwrap();
    rig.fs.allocate(odd, AllocateMode::KeepSize, 0, 64 * block).unwrap();
    rig.write(odd, 0, &filled(100));
    let mut size = 0;
    while let Ok(written) = rig.try_write(filler, gannet_vfs::WritePosition::At(size), &vec![1; 64 * block as usize]) {
        size += written.count_bytes as u64;
    }
    for index in 0..64 {
        rig.write(kept, index * block, &filled(block));
    }
    assert_eq!(rig.try_read(kept, 63 * block, block as usize).unwrap(), filled(block));
    // What lies behind the end is theirs, too: in pieces of any size, and with a gap.
    for index in 0..640 {
        rig.write(behind, index * block, &filled(block));
    }
    assert_eq!(rig.try_read(behind, 639 * block, block as usize).unwrap(), filled(block));
    for index in 1..1000 {
        rig.write(odd, index * 100, &filled(100));
    }
    rig.write(odd, 50 * block + 7, &filled(9 * block));
    let mut expected = filled(100).repeat(1000);
    expected.resize((50 * block + 7) as usize, 0);
    expected.extend(filled(9 * block));
    assert_eq!(rig.content(odd), expected);
}

fn allocation_is_all_or_nothing(rig: &Rig<'_>) {
    let node = rig.file(rig.root, "f");
    rig.write(node, 0, b"abc");
    let before = rig.fs.statistics().unwrap();
    let too_much = (before.blocks + 1) * u64::from(before.block_bytes);
    fails!(rig.fs.allocate(node, AllocateMode::Extend, 0, too_much), NOSPC);
    assert_eq!((rig.fs.statistics().unwrap(), rig.content(node)), (before, b"abc".to_vec()));
    for mode in [AllocateMode::Zero, AllocateMode::ZeroKeepSize] {
        fails!(rig.fs.allocate(node, mode, 1, too_much), NOSPC);
        assert_eq!((rig.fs.statistics().unwrap(), rig.content(node)), (before, b"abc".to_vec()), "{mode:?}");
    }
}

/// What was allocated behind the end is the file's when it grows, by whatever means, and what is written there stays.
fn space_behind_the_end_outlives_growth(rig: &Rig<'_>) {
    let block = block(rig);
    for (round, grow) in [0, 1, 2, 3].into_iter().enumerate() {
        let node = rig.file(rig.root, &format!("f{round}"));
        rig.write(node, 0, &filled(100));
        rig.fs.allocate(node, AllocateMode::KeepSize, 0, 16 * block).unwrap();
        match grow {
            0 => rig.resize(node, 100).map(drop).unwrap(),
            1 => rig.resize(node, 2 * block).map(drop).unwrap(),
            2 => rig.fs.allocate(node, AllocateMode::Extend, 0, 3 * block).unwrap(),
            _ => rig.write(node, 5 * block, b"x"),
        }
        rig.resize(node, 16 * block).unwrap();
        rig.write(node, 10 * block, &filled(block));
        let mut expected = filled(100);
        expected.resize(16 * block as usize, 0);
        if grow == 3 {
            expected[5 * block as usize] = b'x';
        }
        expected[10 * block as usize..11 * block as usize].copy_from_slice(&filled(block));
        assert_eq!(rig.content(node), expected, "grown in way {grow}");
    }
}
