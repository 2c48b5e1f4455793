//! Data that files share: clones, ranges found equal, and what becomes of them when one side changes.

use gannet_vfs::{AllocateMode, ExtentKind};

use super::cases;
use super::data::pattern;
use crate::{Rig, fails};

cases![
    clones_are_independent needs CLONE,
    clones_have_rules needs CLONE,
    equal_ranges_are_shared_and_others_are_not needs CLONE,
    long_ranges_are_compared_to_their_end needs CLONE,
    shared_blocks_change_for_one_alone needs CLONE,
    sharing_takes_no_space needs SHARING,
];

fn clones_are_independent(rig: &Rig<'_>) {
    let block = u64::from(rig.attributes(rig.root).block_bytes);
    let (a, b) = (rig.file(rig.root, "a"), rig.file(rig.root, "b"));
    let bytes = pattern(8, 5 * block as usize + 77);
    rig.write(a, 0, &bytes);
    rig.write(b, 0, &pattern(10, block as usize));
    rig.fs.clone_range(a, 0, b, 0, bytes.len() as u64).unwrap();
    assert_eq!(rig.content(b), bytes);
    rig.write(a, 0, b"changed in a");
    rig.write(b, block, b"changed in b");
    let (mut in_a, mut in_b) = (bytes.clone(), bytes.clone());
    in_a[..12].copy_from_slice(b"changed in a");
    in_b[block as usize..][..12].copy_from_slice(b"changed in b");
    assert_eq!((rig.content(a), rig.content(b)), (in_a.clone(), in_b.clone()));
    rig.fs.clone_range(a, 2 * block, b, 4 * block, block).unwrap();
    let source = in_a[2 * block as usize..3 * block as usize].to_vec();
    in_b[4 * block as usize..5 * block as usize].copy_from_slice(&source);
    assert_eq!(rig.content(b), in_b);
    rig.resize(a, 0).unwrap();
    assert_eq!(rig.content(b), in_b);
    rig.resize(b, in_b.len() as u64 + 100).unwrap();
    in_b.resize(in_b.len() + 100, 0);
    assert_eq!(rig.content(b), in_b);
}

fn clones_have_rules(rig: &Rig<'_>) {
    let block = u64::from(rig.attributes(rig.root).block_bytes);
    let (a, b) = (rig.file(rig.root, "a"), rig.file(rig.root, "b"));
    rig.write(a, 0, &pattern(11, 4 * block as usize + 5));
    fails!(rig.fs.clone_range(a, 1, b, 0, block), INVAL);
    fails!(rig.fs.clone_range(a, 0, b, 1, block), INVAL);
    fails!(rig.fs.clone_range(a, 0, b, 0, block + 1), INVAL);
    fails!(rig.fs.clone_range(a, 4 * block, b, 0, block), INVAL);
    fails!(rig.fs.clone_range(a, 0, a, block, 2 * block), INVAL);
    fails!(rig.fs.clone_range(rig.root, 0, b, 0, block), ISDIR);
    rig.write(b, 0, &pattern(12, 6 * block as usize));
    fails!(rig.fs.clone_range(a, 4 * block, b, 0, 5), INVAL);
    assert_eq!(rig.content(b), pattern(12, 6 * block as usize));
    assert_eq!(rig.touched(&[a, b], || rig.fs.clone_range(a, 0, b, block, block).unwrap()), ["", "mc"]);
}

fn equal_ranges_are_shared_and_others_are_not(rig: &Rig<'_>) {
    let block = u64::from(rig.attributes(rig.root).block_bytes);
    let (a, b) = (rig.file(rig.root, "a"), rig.file(rig.root, "b"));
    let bytes = pattern(13, 4 * block as usize + 9);
    rig.write(a, 0, &bytes);
    rig.write(b, 0, &bytes);
    let size = bytes.len() as u64;
    assert_eq!(rig.touched(&[a, b], || assert!(rig.fs.dedupe_range(a, 0, b, 0, size).unwrap())), ["", ""]);
    rig.write(b, block + 5, b"other");
    assert!(!rig.fs.dedupe_range(a, 0, b, 0, size).unwrap());
    assert!(!rig.fs.dedupe_range(b, block, a, block, block).unwrap());
    assert!(rig.fs.dedupe_range(a, 2 * block, b, 2 * block, block).unwrap());
    let mut changed = bytes.clone();
    changed[block as usize + 5..][..5].copy_from_slice(b"other");
    assert_eq!((rig.content(a), rig.content(b)), (bytes, changed));
    // Less than a block at the end is nobody's matter, but where both files end.
    assert!(rig.fs.dedupe_range(a, 0, b, 0, block + 6).unwrap());
    assert!(rig.fs.dedupe_range(a, block, b, block, block - 1).unwrap());
    assert!(!rig.fs.dedupe_range(a, block, b, block, block + 1).unwrap());
    assert!(rig.fs.dedupe_range(a, 4 * block, b, 4 * block, 9).unwrap());
    assert!(rig.fs.dedupe_range(a, 3 * block, a, 2 * block, 7).unwrap());
    rig.write(b, 4 * block, b"x");
    assert!(!rig.fs.dedupe_range(a, 4 * block, b, 4 * block, 9).unwrap());
    assert!(rig.fs.dedupe_range(a, 4 * block, b, 4 * block, 8).unwrap());
    fails!(rig.fs.dedupe_range(a, 0, b, 1, block), INVAL);
    fails!(rig.fs.dedupe_range(a, 0, b, 4 * block, block), INVAL);
    fails!(rig.fs.dedupe_range(a, 0, a, 0, block), INVAL);
    fails!(rig.fs.dedupe_range(rig.root, 0, b, 0, block), ISDIR);
}

/// More than a file system may want to compare at once.
fn long_ranges_are_compared_to_their_end(rig: &Rig<'_>) {
    let block = u64::from(rig.attributes(rig.root).block_bytes);
    let bytes = pattern(15, (18 << 20) + 9);
    let size = bytes.len() as u64;
    let (a, b) = (rig.file(rig.root, "a"), rig.file(rig.root, "b"));
    rig.write(a, 0, &bytes);
    rig.write(b, 0, &bytes);
    assert!(rig.fs.dedupe_range(a, block, b, block, size - block).unwrap());
    assert!(rig.content(b) == bytes);
    rig.write(b, size - 1, &[bytes[bytes.len() - 1] ^ 1]);
    assert!(!rig.fs.dedupe_range(a, 0, b, 0, size).unwrap());
    fails!(rig.fs.dedupe_range(a, 0, a, 1 << 20, 17 << 20), INVAL);
    assert!(rig.content(a) == bytes);
}

/// What is shared is written to at every edge, by either side, and cut, and dropped: the others keep what they have.
fn shared_blocks_change_for_one_alone(rig: &Rig<'_>) {
    let block = u64::from(rig.attributes(rig.root).block_bytes) as usize;
    let size = 6 * block + 100;
    let original = pattern(14, size);
    let edges = [0, 1, block - 1, block, 2 * block + 7, 6 * block, 6 * block + 99];
    for (round, &at) in edges.iter().enumerate() {
        for length in [1, 50, block, 2 * block + 3] {
            let files: Vec<_> = (0..3).map(|index| rig.file(rig.root, &format!("f{round}-{length}-{index}"))).collect();
            rig.write(files[0], 0, &original);
            rig.fs.clone_range(files[0], 0, files[1], 0, size as u64).unwrap();
            rig.fs.clone_range(files[1], 0, files[2], 0, size as u64).unwrap();
            let writer = round % 3;
            rig.write(files[writer], at as u64, &vec![0xEE; length]);
            let mut changed = original.clone();
            changed.resize(size.max(at + length), 0);
            changed[at..at + length].fill(0xEE);
            for (index, &file) in files.iter().enumerate() {
                let expected = if index == writer { &changed } else { &original };
                assert!(rig.content(file) == *expected, "file {index} after {length} bytes at {at} of file {writer}");
            }
            // Two go, the last one has all to itself.
            let last = (writer + 1) % 3;
            for index in 0..3 {
                if index != last {
                    rig.unlink(rig.root, &format!("f{round}-{length}-{index}")).unwrap();
                }
            }
            rig.write(files[last], at as u64, &vec![0xDD; length]);
            let mut changed = original.clone();
            changed.resize(size.max(at + length), 0);
            changed[at..at + length].fill(0xDD);
            assert!(rig.content(files[last]) == changed);
            rig.resize(files[last], 5).unwrap();
            rig.resize(files[last], 2 * block as u64).unwrap();
            changed.truncate(5);
            changed.resize(2 * block, 0);
            if at < 5 {
                changed[at..5.min(at + length)].fill(0xDD);
            }
            assert!(rig.content(files[last]) == changed);
        }
    }
}

/// Space that is shared is used once, and free again when its last owner goes.
fn sharing_takes_no_space(rig: &Rig<'_>) {
    let free = || rig.fs.statistics().unwrap().blocks_free;
    let block = u64::from(rig.attributes(rig.root).block_bytes);
    let names: Vec<String> = (0..8).map(|index| format!("f{index}")).collect();
    let files: Vec<_> = names.iter().map(|name| rig.file(rig.root, name)).collect();
    let empty = free();
    rig.write(files[0], 0, &pattern(15, 64 * block as usize));
    for &file in &files[1..] {
        rig.fs.clone_range(files[0], 0, file, 0, 64 * block).unwrap();
        assert_eq!(rig.attributes(file).sectors, rig.attributes(files[0]).sectors, "each counts what it holds");
    }
    assert!(empty - free() < 2 * 64, "{} blocks for 8 files of the same 64", empty - free());
    let mut kinds = Vec::new();
    rig.fs
        .extents(files[3], 0, u64::MAX, &mut |extent| {
            kinds.push((extent.kind, extent.length_bytes));
            true
        })
        .unwrap();
    assert!(kinds.iter().all(|&(kind, _)| kind == ExtentKind::Shared), "{kinds:?}");
    rig.fs.allocate(files[3], AllocateMode::Unshare, 8 * block, 8 * block).unwrap();
    let mut own = 0;
    rig.fs
        .extents(files[3], 0, u64::MAX, &mut |extent| {
            own += if extent.kind == ExtentKind::Data { extent.length_bytes } else { 0 };
            true
        })
        .unwrap();
    assert_eq!(own, 8 * block);
    for name in &names[..7] {
        rig.unlink(rig.root, name).unwrap();
    }
    assert_eq!(rig.content(files[7]), pattern(15, 64 * block as usize));
    assert!(empty - free() >= 64);
    rig.unlink(rig.root, &names[7]).unwrap();
    // The directory has grown a little.
    assert!(free() + 4 >= empty, "{} blocks are missing", empty - free());
}
