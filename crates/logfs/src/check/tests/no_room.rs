//! Repairs of a volume without room for what they make: they say so and change nothing, until somebody makes room or gives up a file.

use super::build::{Builder, VOLUME_BYTES, populated};
use super::damage::{entry_of_inner, fill};
use super::tree::{Seen, options, tree};
use super::{damage, medium_of, repaired, run};
use crate::check::{CheckOptions, Outcome, UNFINISHED, check_giving_up};
use crate::format::BLOCK_BYTES;
use crate::format::entry::{Extents, FileExtent, Payload};
use crate::format::state::{CLEAN_AT, REPAIRING};
use crate::volume::LogFs;
use gannet_media::{Medium, MediumOffset};
use gannet_vfs::{AttributeChange, Errno, FileSystem, FileType, Name};
use std::collections::{BTreeMap, BTreeSet};

/// A volume all of whose blocks but that of the list of shared ones are in use, and that has lost names.
fn full_and_damaged(is_closed: bool) -> (Builder, Medium) {
    let (mut builder, places) = populated();
    let geometry = *builder.disk.geometry();
    let block = builder.take_block();
    let mut count = 1;
    while builder.take_block() + 2 < geometry.replica() {
        count += 1;
    }
    let extents = [FileExtent { file_block: 100, block, count: count + 1, shared: false }];
    let size_bytes = 200 * BLOCK_BYTES;
    builder.append(places.other, &Payload::Write { size_bytes, hash: None, extents: Extents::List(&extents) });
    builder.close();
    if !is_closed {
        builder.open_again();
    }
    let medium = medium_of(&builder.image());
    fill(&medium, entry_of_inner(&builder, &places), 8, 0xFF);
    (builder, medium)
}

#[test]
fn a_repair_without_room_says_so_and_changes_nothing() {
    for is_closed in [true, false] {
        let (_, medium) = full_and_damaged(is_closed);
        let image = |medium: &Medium| {
            let mut image = vec![0; VOLUME_BYTES as usize];
            medium.read(MediumOffset(0), &mut image).unwrap();
            image
        };
        let before = image(&medium);
        let report = run(&medium, true);
        assert_eq!(report.outcome, Outcome::Damaged);
        let unfinished = report.findings.iter().find(|finding| finding.what.starts_with(UNFINISHED));
        assert!(unfinished.is_some_and(|finding| finding.what.contains("make room")), "{:#?}", report.findings);
        assert!(image(&medium) == before, "something was changed");
    }
}

#[test]
fn where_room_is_made_a_repair_gives_back_what_it_would_have() {
    let (_, medium) = full_and_damaged(true);
    run(&medium, true);
    // Opened and closed as somebody does who makes room: nothing is taken for what a crash left.
    let fs = LogFs::open_private(medium.clone(), options()).unwrap();
    assert_eq!(fs.recovery(), None);
    let other = fs.lookup(fs.root(), Name::new(b"other").unwrap()).unwrap().node;
    let to = Some(100 * BLOCK_BYTES);
    fs.set_attributes(other, &AttributeChange { size_bytes: to, ..Default::default() }).unwrap();
    assert!(fs.detach().unwrap());
    drop(fs);
    let report = repaired(&medium);
    assert_eq!(report.outcome, Outcome::Repaired);
    let (builder, _) = populated();
    assert_eq!(report.inodes, builder.logs.len() as u64 + 1, "all, and lost+found");
    let contents = |tree: BTreeMap<String, Seen>| {
        let files = tree.into_iter().filter(|(path, seen)| seen.file_type != FileType::Directory && path != "/other");
        files.map(|(_, seen)| (seen.mode, seen.size_bytes, seen.content)).collect::<BTreeSet<_>>()
    };
    assert!(contents(tree(&medium)) == contents(tree(&builder.medium)));
}

#[test]
fn where_nobody_can_make_room_a_file_is_given_up() {
    for state in [0, REPAIRING] {
        let (builder, medium) = full_and_damaged(false);
        medium.store_u64(MediumOffset(CLEAN_AT), state).unwrap();
        if state == REPAIRING {
            assert!(LogFs::open_private(medium.clone(), options()).is_err(), "nobody can open it");
        }
        assert_eq!(run(&medium, true).outcome, Outcome::Damaged);
        let give_up = |file: &str| {
            let options = CheckOptions { repair: true, threads: 1 };
            check_giving_up(&medium, options, &[file.as_bytes()], &mut |_| {})
        };
        assert_eq!(give_up("/other/way").unwrap_err().errno(), Errno::NOENT);
        assert_eq!(give_up("/directory").unwrap_err().errno(), Errno::INVAL);
        assert_eq!(give_up("4000").unwrap_err().errno(), Errno::INVAL);
        let report = give_up(if state == 0 { "/other" } else { "4" }).unwrap();
        assert_eq!(report.outcome, Outcome::Repaired, "{:#?}", damage(&report));
        assert!(
            damage(&report).iter().any(|text| text.contains("(/other)") && text.contains("given up")),
            "{report:#?}"
        );
        assert_eq!(run(&medium, false).findings, []);
        let (whole, after) = (tree(&builder.medium), tree(&medium));
        assert_eq!(
            (after["/other"].size_bytes, after["/other"].attributes.len()),
            (0, whole["/other"].attributes.len())
        );
        let contents = |tree: &BTreeMap<String, Seen>| {
            let files = tree.iter().filter(|(path, seen)| seen.file_type != FileType::Directory && *path != "/other");
            files.map(|(_, seen)| (seen.mode, seen.size_bytes, seen.content.clone())).collect::<BTreeSet<_>>()
        };
        assert!(contents(&whole) == contents(&after));
    }
}
