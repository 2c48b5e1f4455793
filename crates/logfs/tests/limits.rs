//! What stands at the limits of a file, and what is asked far behind its end.

mod common;

use common::{attach, volume};
use gannet_fstest::{Rig, name};
use gannet_logfs::{CheckOptions, Outcome, check};
use gannet_vfs::{AllocateMode, Errno, FileSystem, MapAccess, RemoveKind};

const BLOCK: u64 = 4096;
/// Files end before this.
const FILE_END: u64 = 1 << 63;

#[test]
fn what_is_inserted_moves_nothing_beyond_the_largest_file() {
    let medium = volume(8 << 20);
    let mut fs = attach(&medium);
    let root = fs.root();
    let rig = Rig::new(&fs);
    let node = rig.file(root, "file");
    rig.write(node, 0, &[3; 3 * BLOCK as usize]);
    // Two blocks before the limit, far behind the end.
    let reserved = FILE_END - 2 * BLOCK;
    fs.allocate(node, AllocateMode::KeepSize, reserved, BLOCK).expect("allocate");
    let before = rig.attributes(node);
    let refused = fs.allocate(node, AllocateMode::Insert, 0, 2 * BLOCK).unwrap_err();
    assert_eq!((refused.errno(), rig.attributes(node)), (Errno::FBIG, before));
    fs.allocate(node, AllocateMode::Insert, 0, BLOCK).expect("up to the limit");
    let refused = fs.allocate(node, AllocateMode::Insert, BLOCK, BLOCK).unwrap_err();
    assert_eq!(refused.errno(), Errno::FBIG);
    for _ in 0..2 {
        let rig = Rig::new(&fs);
        assert_eq!(rig.attributes(node).size_bytes, 4 * BLOCK);
        assert_eq!(rig.content(node)[BLOCK as usize..], [3; 3 * BLOCK as usize]);
        fs.detach().expect("detach");
        drop(fs);
        let report = check(&medium, CheckOptions { repair: false, threads: 1 }, &mut |_| {}).expect("fsck");
        assert_eq!(report.outcome, Outcome::Sound, "{:?}", report.findings);
        fs = attach(&medium);
    }
    fs.remove(root, name("file"), RemoveKind::NonDirectory).expect("remove");
}

#[test]
fn a_map_of_a_long_hole_is_told_in_one_piece() {
    let fs = attach(&volume(8 << 20));
    let rig = Rig::new(&fs);
    let node = rig.file(rig.root, "file");
    rig.write(node, 0, &[3; 2 * BLOCK as usize]);
    let mut pieces = Vec::new();
    let token = fs
        .map(node, MapAccess::Read, 0, FILE_END / 2, &mut |piece| {
            pieces.push((piece.file_offset_bytes, piece.length_bytes, piece.descriptor.is_some()));
        })
        .expect("map");
    assert_eq!(pieces, [(0, 2 * BLOCK, true), (2 * BLOCK, FILE_END / 2 - 2 * BLOCK, false)]);
    fs.unmap(token).expect("unmap");
}
