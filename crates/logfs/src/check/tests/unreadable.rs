//! Pages of a volume that cannot be read any more, each in turn: all is named, what else there is is kept, and repair writes nothing there.

use super::build::{VOLUME_BYTES, populated};
use super::{damage, medium_of, run};
use crate::check::Outcome;
use crate::format::BLOCK_BYTES;
use gannet_media::{Medium, MediumOffset, Simulation};
use gannet_usermem::install_fault_handler;

/// All that can be read; zeros else.
fn image_of(medium: &Medium) -> Vec<u8> {
    let mut image = vec![0; VOLUME_BYTES as usize];
    medium.clone().with_zeros_where_unreadable().read(MediumOffset(0), &mut image).unwrap();
    image
}

#[test]
fn each_page_in_turn() {
    install_fault_handler().unwrap();
    let (builder, places) = populated();
    let whole = builder.image();
    let (mut named, mut repaired, mut refused) = (0, 0, 0);
    for block in 0..VOLUME_BYTES / BLOCK_BYTES {
        let medium = medium_of(&whole);
        Simulation::poison(&medium, MediumOffset(block * BLOCK_BYTES));
        let before = image_of(&medium);
        let found = damage(&run(&medium, false));
        let place = format!("medium at {:#x}: it cannot be read", block * BLOCK_BYTES);
        let is_named = found.iter().any(|text| text.starts_with(&place));
        // Nobody reads free blocks, nor bytes of files that no log's last entry hashes.
        let is_data = [&places.file_blocks[..], &places.other_blocks].concat().contains(&block);
        assert_eq!(is_named, !found.is_empty(), "{block}: {found:#?}");
        assert!(is_named || is_data || !builder.used().has(block), "{block} is not named");
        named += u64::from(is_named);

        let report = run(&medium, true);
        match report.outcome {
            Outcome::Damaged => {
                let what = report.findings.last().unwrap().to_string();
                assert!(what.contains("nothing was changed"), "{block}: {:#?}", report.findings);
                assert!(image_of(&medium) == before, "{block}: nothing was changed");
                // A copy of what can be read is repaired.
                assert_eq!(run(&medium_of(&before), true).outcome, Outcome::Repaired);
                refused += 1;
            }
            Outcome::Repaired => {
                assert_eq!(run(&medium, false).findings, [], "{block}: after {:#?}", report.findings);
                repaired += 1;
            }
            Outcome::Sound => assert!(!is_named, "{block}"),
        }
    }
    // Superblock, state, maps, slots and replica cannot stand elsewhere; logs can.
    assert!(refused >= 6 && repaired >= 10, "{named} named, {repaired} repaired, {refused} refused");
    assert_eq!(named, repaired + refused);
}

#[test]
fn a_log_page_is_lost_by_the_name_of_its_inode() {
    install_fault_handler().unwrap();
    let (builder, places) = populated();
    let medium = medium_of(&builder.image());
    let page = builder.logs[&places.many].block;
    Simulation::poison(&medium, MediumOffset(page * BLOCK_BYTES));
    let found = damage(&run(&medium, false));
    let expected = format!("log page at {:#x}, inode {} (/many): it cannot be read", page * BLOCK_BYTES, places.many);
    assert!(found.iter().any(|text| text.starts_with(&expected)), "{found:#?}");
}
