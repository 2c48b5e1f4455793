//! Kinds of damage one by one: what repair keeps, what it loses and says so; what crashes leave; repairs cut short.

use super::build::{Builder, VOLUME_BYTES, populated};
use super::tree::{Seen, options, tree};
use super::{check, damage, medium_of, repaired, run};
use crate::check::{CheckOptions, Outcome};
use crate::disk::Disk;
use crate::format::entry::{Binding, Extents, FileExtent, Partner, Payload};
use crate::format::page::{AT_NEXT, Link};
use crate::format::slot::{AT_HEAD, AT_LINKS, SLOT_BYTES};
use crate::format::{BLOCK_BYTES, LINE_BYTES};
use crate::recover::ROOT;
use crate::volume::LogFs;
use gannet_media::simulation::CrashPolicy;
use gannet_media::{CreateOptions, Medium, MediumOffset, OpenOptions};
use gannet_vfs::{Errno, FileSystem, FileType, Name, NewNode, Owner};
use std::collections::BTreeMap;

pub(super) fn fill(medium: &Medium, at: u64, length_bytes: usize, byte: u8) {
    medium.write(MediumOffset(at), &vec![byte; length_bytes]).unwrap();
}

pub(super) fn head_of(builder: &Builder, inode: u32) -> u64 {
    let word = builder.disk.load(builder.slot_at(inode) + AT_HEAD).unwrap();
    Link::decode(word).unwrap().block
}

#[test]
fn what_can_be_found_again_is_not_lost() {
    let (builder, places) = populated();
    let whole = tree(&builder.medium);
    let geometry = *builder.disk.geometry();
    let many = head_of(&builder, places.many);
    let second = {
        let next = builder.disk.load(many * BLOCK_BYTES + AT_NEXT).unwrap();
        Link::decode(next).unwrap().block
    };
    for (what, at, length_bytes) in [
        ("superblock", 0, 4096),
        ("replica", geometry.replica() * BLOCK_BYTES, 4096),
        ("state", BLOCK_BYTES, 4096),
        ("inode map", geometry.map_word_at(0), 8),
        ("whole inode map", geometry.map_word_at(0), 4096),
        ("saved maps", geometry.saved_blocks_start * BLOCK_BYTES, 4096),
        ("head of a directory", builder.slot_at(places.many) + AT_HEAD, 8),
        ("head of a file", builder.slot_at(places.file) + AT_HEAD, 8),
        ("link counts", builder.slot_at(places.file) + AT_LINKS, 16),
        ("header of a first page", many * BLOCK_BYTES, 24),
        ("header of a second page", second * BLOCK_BYTES, 24),
        ("link to a second page", many * BLOCK_BYTES + AT_NEXT, 8),
        ("checksum of a slot", builder.slot_at(places.symlink) + 40, 8),
    ] {
        for byte in [0, 0xA5] {
            let medium = medium_of(&builder.image());
            fill(&medium, at, length_bytes, byte);
            let report = repaired(&medium);
            assert_eq!(report.outcome, Outcome::Repaired, "{what}");
            assert_eq!(tree(&medium), whole, "{what} filled with {byte}: {:#?}", damage(&report));
        }
    }
}

/// The name that it was born with says what an inode was made of, whichever directory is looked at first.
#[test]
fn what_has_several_names_is_made_again_as_it_was_born() {
    let medium = medium_of(&Builder::new().image());
    let fs = LogFs::open_private(medium.clone(), options()).unwrap();
    let name = |text: &'static str| Name::new(text.as_bytes()).unwrap();
    let file = fs.create(fs.root(), name("file"), &NewNode::regular(0o644, Owner::default())).unwrap();
    let directory = fs.create(fs.root(), name("directory"), &NewNode::directory(0o755, Owner::default())).unwrap();
    fs.link(file, directory, name("link")).unwrap();
    assert!(fs.detach().unwrap());
    drop(fs);
    let whole = tree(&medium);
    let slot_at = Disk::open(medium.clone()).unwrap().slot_at(file.number as u32).unwrap().unwrap();
    fill(&medium, slot_at, SLOT_BYTES as usize, 0);
    assert_eq!(repaired(&medium).outcome, Outcome::Repaired);
    assert_eq!(tree(&medium), whole);
}

/// Where the entry of the name "inner" stands.
pub(super) fn entry_of_inner(builder: &Builder, places: &super::build::Places) -> u64 {
    head_of(builder, places.directory) * BLOCK_BYTES + 3 * LINE_BYTES
}

#[test]
fn a_damaged_entry_loses_what_it_said_and_nothing_else() {
    let (builder, places) = populated();
    let whole = tree(&builder.medium);
    let entry = entry_of_inner(&builder, &places);
    // Its kind, so that nothing of it can be read; its checksum, so that it still tells whose name is lost; all of it.
    for (at, length_bytes, tells) in [(entry, 8, false), (entry + 8, 8, true), (entry, 128, false)] {
        let medium = medium_of(&builder.image());
        fill(&medium, at, length_bytes, 0xFF);
        let report = repaired(&medium);
        assert_eq!(report.outcome, Outcome::Repaired);
        let told = damage(&report);
        assert_eq!(
            told.iter().any(|text| text.contains(&format!("\"inner\" of inode {}", places.inner))),
            tells,
            "{told:#?}"
        );
        // What stood behind it in the log is there, by its name; the directory itself in lost+found, with all that it held.
        let mut expected = whole.clone();
        let lost = format!("/lost+found/#{}", places.inner);
        for (path, seen) in &whole {
            if let Some(rest) = path.strip_prefix("/directory/inner") {
                expected.remove(path);
                expected.insert(format!("{lost}{rest}"), seen.clone());
            }
        }
        let mut after = tree(&medium);
        after.remove("/lost+found").expect("a directory for what is lost");
        let same = |tree: &BTreeMap<String, Seen>| {
            let without_links = |(path, seen): (&String, &Seen)| (path.clone(), Seen { links: 0, ..seen.clone() });
            tree.iter().map(without_links).collect::<BTreeMap<_, _>>()
        };
        assert_eq!(same(&after), same(&expected));
    }
}

#[test]
fn a_page_that_is_lost_loses_what_it_said_and_nothing_else() {
    let (builder, places) = populated();
    let whole = tree(&builder.medium);
    let next_of = |block: u64| {
        let next = builder.disk.load(block * BLOCK_BYTES + AT_NEXT).unwrap();
        Link::decode(next).unwrap().block
    };
    let second = next_of(head_of(&builder, places.many));
    next_of(second);
    let medium = medium_of(&builder.image());
    fill(&medium, second * BLOCK_BYTES, 4096, 0);
    let report = repaired(&medium);
    assert!(damage(&report).iter().any(|text| text.contains("are missing; it goes on in block")), "{report:#?}");
    let after = tree(&medium);
    let names = |tree: &BTreeMap<String, Seen>, of: &str| tree.keys().filter(|path| path.starts_with(of)).count();
    let (before, kept, found) = (names(&whole, "/many/"), names(&after, "/many/"), names(&after, "/lost+found/#"));
    assert_eq!(kept + found, before);
    // Two of the three pages and more stand.
    assert!(found > 0 && found <= 31, "{found} of {before}");
}

#[test]
fn blocks_claimed_twice_stay_with_the_first() {
    let (mut builder, places) = populated();
    let stolen = places.file_blocks[1];
    let extents = [FileExtent { file_block: 20, block: stolen, count: 1, shared: false }];
    let payload = Payload::Write { size_bytes: 21 * BLOCK_BYTES, hash: None, extents: Extents::List(&extents) };
    builder.append(places.other, &payload);
    builder.close();
    let before = tree(&builder.medium)["/directory/file"].clone();
    let report = repaired(&builder.medium);
    assert_eq!(damage(&report).len(), 1, "{report:#?}");
    assert!(damage(&report)[0].contains("inode 4 (/other)"), "{report:#?}");
    let after = tree(&builder.medium);
    assert_eq!(after["/directory/file"], before);
    assert!(after["/other"].content.is_empty() || after["/other"].size_bytes == 21 * BLOCK_BYTES);
}

#[test]
fn what_is_shared_survives_repair_and_one_who_does_not_say_so_is_enough() {
    let (builder, places) = populated();
    let whole = tree(&builder.medium);
    // The owner's log is lost from its write on: who shares the blocks still has them.
    let head = builder.disk.load(builder.slot_at(places.file) + AT_HEAD).unwrap();
    let page = Link::decode(head).unwrap().block * BLOCK_BYTES;
    builder.medium.store_u64(MediumOffset(page + LINE_BYTES + 8), 0).unwrap();
    let report = repaired(&builder.medium);
    assert!(!damage(&report).is_empty());
    assert_eq!(tree(&builder.medium)["/twin"], whole["/twin"]);
    // Another who shares with them is sound; so is the list that says three.
    let (mut builder, places) = populated();
    let third = builder.create(ROOT, b"third", FileType::Regular);
    builder.share(third, 0, &places.file_blocks[1..]);
    builder.close();
    let report = repaired(&builder.medium);
    assert!(damage(&report).iter().all(|finding| finding.contains("list of shared blocks")), "{:#?}", damage(&report));
    let after = tree(&builder.medium);
    assert_eq!(after["/third"].content[..4096], after["/twin"].content[4096..8192]);
}

#[test]
fn names_that_cannot_be_are_removed() {
    let (mut builder, places) = populated();
    let whole = tree(&builder.medium);
    let bind = |builder: &mut Builder, directory, name: &[u8], rank, file_type, inode, generation| {
        let first = Binding { name, rank, file_type: Some(file_type), inode, generation };
        builder.append(directory, &Payload::Bind { first, second: None, birth: None, partner: None });
    };
    bind(&mut builder, ROOT, b"to nothing", 0, FileType::Regular, 200, 7);
    bind(&mut builder, ROOT, b"to the past", 0, FileType::Regular, places.file, 9);
    bind(&mut builder, ROOT, b"of another type", 0, FileType::Directory, places.file, 1);
    bind(&mut builder, places.inner, b"to the root", 0, FileType::Directory, ROOT, 1);
    bind(&mut builder, places.inner, b"around", 0, FileType::Directory, places.directory, 1);
    builder.close();
    let report = repaired(&builder.medium);
    assert_eq!(damage(&report).len(), 5, "{:#?}", damage(&report));
    assert_eq!(tree(&builder.medium), whole);
    // The same name a second time, under another key, ends the log there.
    let (mut builder, _) = populated();
    bind(&mut builder, ROOT, b"other", 3, FileType::Regular, places.other, 1);
    builder.close();
    let report = repaired(&builder.medium);
    assert!(damage(&report)[0].contains("\"other\" is bound twice"), "{:#?}", damage(&report));
    assert_eq!(tree(&builder.medium), whole);
}

#[test]
fn a_circle_of_directories_is_opened() {
    let (mut builder, places) = populated();
    // "directory" goes into "inner", which it holds.
    let first = Binding { name: b"directory", rank: 0, file_type: None, inode: 0, generation: 0 };
    builder.append(ROOT, &Payload::Bind { first, second: None, birth: None, partner: None });
    let kind = Some(FileType::Directory);
    let first = Binding { name: b"circle", rank: 0, file_type: kind, inode: places.directory, generation: 1 };
    builder.append(places.inner, &Payload::Bind { first, second: None, birth: None, partner: None });
    builder.close();
    let report = repaired(&builder.medium);
    assert!(damage(&report).iter().any(|text| text.contains("held by one that it holds")), "{:#?}", damage(&report));
    let after = tree(&builder.medium);
    assert!(after.keys().any(|path| path.starts_with("/lost+found/") && path.ends_with("/file")), "{after:#?}");
}

#[test]
fn what_a_crash_leaves_is_recovered_and_is_no_damage() {
    let (mut builder, places) = populated();
    builder.open_again();
    let moved = builder.create(places.directory, b"in both", FileType::Regular);
    builder.write(moved, 0, 2, 0x33);
    let whole = tree(&builder.medium);
    // Half a rename, data that is not there, a file without a name, an entry cut short.
    builder.rename_across((places.directory, b"in both"), (places.inner, b"half"), moved, false);
    let torn = builder.create(ROOT, b"torn", FileType::Regular);
    let blocks = builder.write(torn, 0, 2, 0x44);
    fill(&builder.medium, blocks[1] * BLOCK_BYTES, 64, 0);
    let report = run(&builder.medium, false);
    assert_eq!((report.outcome, report.closed_cleanly, damage(&report)), (Outcome::Sound, false, vec![]));
    let report = repaired(&builder.medium);
    assert_eq!((report.outcome, report.recovery.unwrap().entries_killed), (Outcome::Sound, 2));
    let mut after = tree(&builder.medium);
    assert_eq!(after.remove("/torn").unwrap().size_bytes, 0);
    assert_eq!(after, whole);
}

#[test]
fn a_rename_that_refers_to_an_entry_that_no_log_can_have() {
    for sequence in [1 << 61, (1 << 62) - 1, 1 << 62, 0xb65e_f7c1_81c2_a593, u64::MAX] {
        let (mut builder, places) = populated();
        let (generation, root) = (builder.logs[&places.file].generation, builder.logs[&ROOT].generation);
        let file_type = Some(FileType::Regular);
        let first = Binding { name: b"new", rank: 0, inode: places.file, generation, file_type };
        let partner = Some(Partner { inode: ROOT, generation: root, sequence });
        builder.append(places.directory, &Payload::Bind { first, second: None, birth: None, partner });
        builder.append(places.directory, &Payload::Seal);
        let medium = medium_of(&builder.image());
        let report = repaired(&medium);
        let expected = format!("entry {sequence} of its log is missing");
        assert!(damage(&report).iter().any(|text| text.contains(&expected)), "{:#?}", report.findings);
        assert!(tree(&medium).contains_key("/directory/new"));
    }
}

#[test]
fn without_permission_to_write_a_volume_is_checked_and_not_repaired() {
    let (builder, _) = populated();
    let path = std::env::temp_dir().join(format!("gannet-check-{}", std::process::id()));
    let options = CreateOptions { force: true, huge_pages: false, ..CreateOptions::default() };
    let medium = Medium::create(&path, VOLUME_BYTES, options, &mut |_| {}).unwrap();
    medium.write(MediumOffset(0), &builder.image()).unwrap();
    let readable = Medium::open(&path, OpenOptions { read_only: true, ..OpenOptions::default() }).unwrap();
    std::fs::remove_file(&path).unwrap();
    assert_eq!(run(&readable, false).outcome, Outcome::Sound);
    let refused = check(&readable, CheckOptions { repair: true, threads: 1 }, &mut |_| {});
    assert_eq!(refused.unwrap_err().errno(), Errno::ROFS);
}

#[test]
fn a_repair_that_is_cut_short_can_be_done_again() {
    let (builder, places) = populated();
    let mut damaged = builder.image();
    for (at, length) in [
        (entry_of_inner(&builder, &places), 8),
        (builder.slot_at(places.symlink) + 40, 8),
        (head_of(&builder, places.many) * BLOCK_BYTES + AT_NEXT, 8),
        (builder.disk.geometry().map_word_at(0), 8),
        (8, 8),
    ] {
        damaged[at as usize..(at + length) as usize].fill(0x5A);
    }
    let medium = medium_of(&damaged);
    repaired(&medium);
    let expected = tree(&medium);

    let (medium, simulation) = Medium::simulated_from_image(&damaged);
    repaired(&medium);
    let policy = CrashPolicy { combinations_max: 2, cuts_max: 1, samples: 1, ..CrashPolicy::default() };
    let mut again = 0;
    let count = simulation.for_each_crash(0..simulation.events_len(), &policy, |crash| {
        let copy = medium_of(&crash.image_to_vec());
        let report = run(&copy, true);
        assert_ne!(report.outcome, Outcome::Damaged, "{:#?}", report.findings);
        assert_eq!(run(&copy, false).findings, []);
        let after = tree(&copy);
        // A `lost+found` that had no name yet is itself reconnected, with what it has: nothing else differs.
        let contents = |tree: &BTreeMap<String, Seen>| {
            let mut seen: Vec<_> = tree
                .values()
                .filter(|seen| seen.file_type != FileType::Directory)
                .map(|seen| (seen.mode, seen.links, seen.size_bytes, seen.content.clone()))
                .collect();
            seen.sort_unstable();
            seen
        };
        assert_eq!(contents(&after), contents(&expected));
        again += 1;
    });
    assert!(again > 20, "{again} images, {count:?}");
}
