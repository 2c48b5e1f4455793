//! Every field of every structure, changed in several ways: noticed, or of those that carry no redundancy, which stand
//! here by name.

use super::build::{VOLUME_BYTES, populated};
use super::{damage, medium_of, repaired, run};
use crate::disk::Disk;
use crate::format::entry::Owned;
use crate::format::page::LinePlace;
use crate::format::slot::Slot;
use crate::format::state::{ADOPTIONS_AT, ARENA_AT, CLEAN_AT, EPOCH_AT, SUMMARY_AT, Summary};
use crate::format::{BLOCK_BYTES, LINE_BYTES};
use crate::log::{Met, walk};
use crate::recover::ROOT;
use gannet_media::{Medium, MediumOffset};

/// A field of 8 bytes or fewer.
struct Field {
    what: String,
    at: u64,
    bytes: u64,
    /// Nothing proves its value.
    free: bool,
}

fn fields() -> (Vec<u8>, Vec<Field>) {
    let (builder, places) = populated();
    let disk = &builder.disk;
    let geometry = *disk.geometry();
    let mut fields = Vec::new();
    let mut field = |what: String, at: u64, bytes: u64, free: bool| fields.push(Field { what, at, bytes, free });

    for (copy, start) in [("superblock", 0), ("replica", geometry.replica() * BLOCK_BYTES)] {
        for (name, at, bytes) in [
            ("magic", 0, 8),
            ("compatible", 8, 8),
            ("read only", 16, 8),
            ("incompatible", 24, 8),
            ("uuid", 32, 8),
            ("label", 48, 8),
            ("blocks", 112, 8),
            ("key", 120, 8),
            ("created", 128, 8),
            ("options", 136, 4),
            ("unused", 2000, 8),
            ("checksum", 4088, 8),
        ] {
            field(format!("{copy}: {name}"), start + at, bytes, false);
        }
    }
    field("epoch".into(), EPOCH_AT, 8, false);
    field("clean".into(), CLEAN_AT, 8, false);
    for word in 0..8 {
        field(format!("summary word {word}"), SUMMARY_AT + word * 8, 8, false);
    }
    field("arena".into(), ARENA_AT, 8, true);
    field("adoptions".into(), ADOPTIONS_AT, 8, true);
    field("state: unused".into(), ARENA_AT + 512, 8, true);
    for chunk in 0..2 {
        field(format!("map word {chunk}"), geometry.map_word_at(chunk), 8, false);
    }
    field("map word of no chunk".into(), geometry.map_word_at(geometry.chunks - 1), 8, false);
    for (name, start) in [("saved blocks", geometry.saved_blocks_start), ("saved inodes", geometry.saved_inodes_start)]
    {
        for word in 0..2 {
            field(format!("{name} word {word}"), start * BLOCK_BYTES + word * 8, 8, false);
        }
    }

    let mut line = [0; LINE_BYTES as usize];
    disk.read(SUMMARY_AT, &mut line).unwrap();
    let list = Summary::decode(&line).shares.block * BLOCK_BYTES;
    for word in 0..8 {
        field(format!("list of shared blocks: word {word}"), list + word * 8, 8, false);
    }

    let inodes =
        [ROOT, places.twin, places.directory, places.inner, places.file, places.other, places.symlink, places.many];
    for inode in inodes {
        let slot = builder.slot_at(inode);
        let Slot::Used { generation, birth, .. } = disk.slot(inode).unwrap() else { panic!() };
        for (name, at, bytes) in [
            ("generation", 0, 4),
            ("in use", 4, 1),
            ("type", 5, 1),
            ("identity's zeros", 6, 2),
            ("mode", 8, 4),
            ("flags", 12, 4),
            ("user", 16, 4),
            ("group", 20, 4),
            ("device", 24, 8),
            ("created", 32, 8),
            ("checksum", 40, 8),
            ("head", 48, 8),
            ("links", 64, 8),
        ] {
            field(format!("slot {inode}: {name}"), slot + at, bytes, false);
        }
        field(format!("slot {inode}: parent"), slot + 72, 8, birth.file_type != gannet_vfs::FileType::Directory);
        for (name, at) in [("unused", 56), ("touched", 80), ("changed", 88), ("accessed", 96), ("unused", 104)] {
            field(format!("slot {inode}: {name}"), slot + at, 8, true);
        }
        let owned = Owned { key: disk.key(), inode, generation };
        let mut entries_on_page = 0;
        let mut pages = Vec::new();
        let mut words = Vec::new();
        walk(disk, owned, birth.head, &mut |met| {
            match met {
                Met::Page { block, .. } => {
                    pages.push(block);
                    entries_on_page = 0;
                }
                Met::Entry { place, entry } => {
                    entries_on_page += 1;
                    if entries_on_page <= 2 {
                        words.push((place, entry.lines));
                    }
                }
            }
            Ok(())
        })
        .unwrap();
        let end = walk(disk, owned, birth.head, &mut |_| Ok(())).unwrap();
        words.extend(end.last.map(|place| (place, 1)));
        let last_page = pages.last().copied();
        for block in pages {
            for (name, at, bytes) in [
                ("magic", 0, 4),
                ("inode", 4, 4),
                ("generation", 8, 4),
                ("epoch", 12, 4),
                ("first sequence", 16, 8),
                ("checksum", 24, 8),
                ("next", 32, 8),
            ] {
                // The last page's next word is zero; changed, it leads somewhere.
                let _ = last_page;
                field(format!("log of {inode}, page {block}: {name}"), block * BLOCK_BYTES + at, bytes, false);
            }
            field(format!("log of {inode}, page {block}: unused"), block * BLOCK_BYTES + 48, 8, true);
        }
        for (place, lines) in words {
            entry_fields(inode, place, lines, &mut field);
        }
    }
    for &block in &places.file_blocks {
        field(format!("data of the last write, block {block}"), block * BLOCK_BYTES + 800, 8, false);
    }
    for block in 0..3 {
        field(format!("block {block} of a large attribute"), (places.value + block) * BLOCK_BYTES + 80, 8, false);
    }
    field("data of an older write".into(), places.other_blocks[0] * BLOCK_BYTES, 8, true);
    // The last one has the list of shared blocks.
    let free_block = geometry.replica() - 2;
    field("free block".into(), free_block * BLOCK_BYTES, 8, true);
    (builder.image(), fields)
}

fn entry_fields(inode: u32, place: LinePlace, lines: u32, field: &mut impl FnMut(String, u64, u64, bool)) {
    let at = place.offset_bytes();
    for (name, offset, bytes) in [("kind", 0, 1), ("flags", 1, 1), ("lines", 2, 1), ("zero", 3, 1), ("epoch", 4, 4)] {
        field(format!("log of {inode}, entry {place:?}: {name}"), at + offset, bytes, false);
    }
    for word in 1..(lines as u64 * LINE_BYTES / 8) {
        field(format!("log of {inode}, entry {place:?}: word {word}"), at + word * 8, 8, false);
    }
}

/// Ways to change a field of so many bytes.
fn changes(old: u64, bytes: u64) -> Vec<u64> {
    let mask = if bytes == 8 { u64::MAX } else { (1 << (bytes * 8)) - 1 };
    let mut new = vec![old ^ 1, old ^ (1 << (bytes * 8 - 1)), old ^ (1 << (bytes * 4)), !old & mask, 0, mask];
    new.sort_unstable();
    new.dedup();
    new.retain(|&new| new != old);
    new
}

fn put(medium: &Medium, at: u64, bytes: u64, value: u64) {
    medium.write(MediumOffset(at), &value.to_le_bytes()[..bytes as usize]).unwrap();
}

fn get(image: &[u8], at: u64, bytes: u64) -> u64 {
    let mut word = [0; 8];
    word[..bytes as usize].copy_from_slice(&image[at as usize..(at + bytes) as usize]);
    u64::from_le_bytes(word)
}

#[test]
fn every_field_changed_is_noticed_or_carries_no_redundancy() {
    let (image, fields) = fields();
    let medium = medium_of(&image);
    let (mut noticed, mut free, mut missed) = (0, 0, Vec::new());
    for field in &fields {
        let old = get(&image, field.at, field.bytes);
        for new in changes(old, field.bytes) {
            put(&medium, field.at, field.bytes, new);
            // A changed key is another volume's: refused as damaged is noticed as well.
            let found = super::check(&medium, super::CheckOptions { repair: false, threads: 1 }, &mut |_| {});
            if field.what.ends_with("word 1") && field.what.contains("entry") && new == !old {
                // That is how recovery kills an entry.
                put(&medium, field.at, field.bytes, old);
                continue;
            }
            let is_noticed = found.is_ok_and(|report| !damage(&report).is_empty() || !report.closed_cleanly);
            match (is_noticed, field.free) {
                (true, false) => noticed += 1,
                (false, true) => free += 1,
                (true, true) => {
                    missed.push(format!("{}: {old:#x} to {new:#x} is noticed, and stands as free", field.what))
                }
                (false, false) => missed.push(format!("{}: {old:#x} to {new:#x}", field.what)),
            }
            put(&medium, field.at, field.bytes, old);
        }
    }
    assert!(missed.is_empty(), "{} of {}:\n{}", missed.len(), missed.len() + noticed, missed.join("\n"));
    assert!(noticed > 2_000 && free > 50, "{noticed} {free}");
    let _ = VOLUME_BYTES;
}

#[test]
fn every_field_changed_can_be_repaired() {
    let (image, fields) = fields();
    let stride = if std::env::var_os("GANNET_LONG").is_some() { 1 } else { 13 };
    for field in fields.iter().filter(|field| !field.free).step_by(stride) {
        let old = get(&image, field.at, field.bytes);
        for new in changes(old, field.bytes) {
            if field.what.contains("entry") && field.what.ends_with("word 1") && new == !old {
                continue;
            }
            let medium = medium_of(&image);
            put(&medium, field.at, field.bytes, new);
            let before = run(&medium, false);
            let report = repaired(&medium);
            assert!(report.findings.iter().all(|finding| finding.repaired), "{}: {report:#?}", field.what);
            assert_eq!(before.findings.len(), report.findings.len(), "{}", field.what);
            // The volume is one that recovery accepts.
            let disk = Disk::open(medium.clone()).unwrap();
            crate::recover::recover(&disk, 1).unwrap();
        }
    }
}
