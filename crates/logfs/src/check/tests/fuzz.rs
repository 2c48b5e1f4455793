//! Random damage: bytes, words, lines, blocks, and forgeries that carry valid checksums. Whatever the bytes, a check ends
//! without a panic, and what it calls repaired is sound and accepted by recovery.

use super::build::{Builder, populated};
use super::{check, medium_of, run};
use crate::attach::AttachOptions;
use crate::check::{CheckOptions, CheckReport, Finding, Outcome, UNFINISHED};
use crate::disk::Disk;
use crate::format::entry::{Extents, FileExtent, LargeValue, LoggedAttributes, Owned, Payload, claimed_lines};
use crate::format::geometry::SLOTS_PER_BLOCK;
use crate::format::page::PageHeader;
use crate::format::slot::{SLOT_BYTES, Slot, encode_map_word};
use crate::format::{BLOCK_BYTES, Key, LINE_BYTES, Tag, get_u32, get_u64, put_u32, put_u64};
use crate::fuzzing::Choices;
use crate::log;
use crate::ops::NoUsers;
use crate::volume::LogFs;
use gannet_media::{Medium, MediumOffset};
use gannet_vfs::usermem::{Destination, Source};
use gannet_vfs::{
    AttributeChange, Attributes, FileSystem, InodeFlags, Name, NewNode, NodeId, Owner, RemoveKind, RenameFlags,
    SeekTarget, WriteFlags, WritePosition,
};
use std::time::{Duration, Instant};

/// How long an image may take before it counts as endless. They take milliseconds; a busy machine has time.
const TIME_MAX: Duration = Duration::from_secs(120);

/// What is where on the image, for forgeries.
pub(crate) struct Targets {
    key: Key,
    slots: Vec<(u32, u64)>,
    pages: Vec<u64>,
    map_start: u64,
    used: Vec<u64>,
}

pub(crate) fn targets(builder: &Builder) -> Targets {
    let used = builder.used();
    let used = (0..builder.disk.geometry().blocks).filter(|&block| used.has(block)).collect();
    Targets::of(&builder.disk, &builder.image(), used)
}

impl Targets {
    /// Those of a volume, of which so many blocks are in use.
    pub(crate) fn of(disk: &Disk, image: &[u8], used: Vec<u64>) -> Self {
        let geometry = disk.geometry();
        let header = |block: &u64| {
            let at = (*block * BLOCK_BYTES) as usize;
            PageHeader::decode(disk.key(), &image[at..at + LINE_BYTES as usize]).is_some()
        };
        Self {
            key: disk.key(),
            slots: (1..160).filter_map(|inode| Some((inode, disk.slot_at(inode).ok()??))).collect(),
            pages: (geometry.first_free..geometry.end()).filter(header).collect(),
            map_start: geometry.map_start * BLOCK_BYTES,
            used,
        }
    }
}

pub(crate) fn pick<T: Copy>(random: &mut Choices<'_>, list: &[T]) -> T {
    list[random.below(list.len() as u64) as usize]
}

/// Changes the image in one place.
pub(crate) fn mutate(image: &mut [u8], targets: &Targets, random: &mut Choices<'_>) {
    let anywhere = pick(random, &targets.used) * BLOCK_BYTES;
    match random.below(10) {
        0 => image[(anywhere + random.below(BLOCK_BYTES)) as usize] ^= 1 << random.below(8),
        1 => put_u64(image, (anywhere + random.below(512) * 8) as usize, random.number()),
        2 => {
            let from = (pick(random, &targets.used) * BLOCK_BYTES + random.below(64) * 64) as usize;
            let to = (anywhere + random.below(64) * 64) as usize;
            image.copy_within(from..from + 64, to);
        }
        3 => {
            let from = (pick(random, &targets.used) * BLOCK_BYTES) as usize;
            image.copy_within(from..from + BLOCK_BYTES as usize, anywhere as usize);
        }
        4 => {
            let fill = if random.below(2) == 0 { 0 } else { 0xFF };
            let lines = 1 + random.below(64);
            let at = anywhere as usize;
            image[at..at + (lines * LINE_BYTES) as usize].fill(fill);
        }
        5 => forge_slot(image, targets, random),
        6 => forge_header(image, targets, random),
        7 | 8 => forge_entry(image, targets, random),
        _ => {
            let chunk = random.below(4);
            let word = encode_map_word(targets.key, chunk, random.below(300));
            put_u64(image, (targets.map_start + chunk * 8) as usize, word);
        }
    }
}

fn forge_slot(image: &mut [u8], targets: &Targets, random: &mut Choices<'_>) {
    let (inode, at) = pick(random, &targets.slots);
    let slot = &mut image[at as usize..(at + SLOT_BYTES) as usize];
    match random.below(6) {
        0 => slot[5] = pick(random, &[1, 2, 4, 6, 8, 10, 12]),
        1 => slot[4] ^= 1,
        2 => put_u64(slot, 48, random.number()),
        3 => put_u64(slot, 64 + random.below(2) as usize * 8, random.number()),
        4 => put_u32(slot, 0, random.number() as u32),
        _ => put_u64(slot, 8 * random.below(16) as usize, random.number()),
    }
    let checksum = targets.key.checksum(Tag::Slot, inode as u64, 0, &slot[..40]);
    put_u64(slot, 40, checksum);
}

fn forge_header(image: &mut [u8], targets: &Targets, random: &mut Choices<'_>) {
    let at = (pick(random, &targets.pages) * BLOCK_BYTES) as usize;
    let header = &mut image[at..at + LINE_BYTES as usize];
    match random.below(5) {
        0 => put_u32(header, 4, random.below(160) as u32),
        1 => put_u32(header, 12, random.number() as u32),
        2 => put_u64(header, 16, random.number()),
        3 => put_u64(header, 32, pick(random, &targets.pages) | 1 << 40),
        _ => put_u64(header, 32, random.number()),
    }
    let checksum = targets.key.checksum(Tag::Page, 0, 0, &header[..24]);
    put_u64(header, 24, checksum);
}

fn forge_entry(image: &mut [u8], targets: &Targets, random: &mut Choices<'_>) {
    let at = (pick(random, &targets.pages) * BLOCK_BYTES) as usize;
    let page = &mut image[at..at + BLOCK_BYTES as usize];
    let owner = (get_u32(page, 4) as u64) << 32 | get_u32(page, 8) as u64;
    // One of the entries, found from the first on.
    let mut line = 1;
    for _ in 0..random.below(40) {
        match claimed_lines(&page[line * 64..]) {
            Some(lines) if line + (lines as usize) < 64 => line += lines as usize,
            _ => break,
        }
    }
    let Some(lines) = claimed_lines(&page[line * 64..]) else { return };
    let entry = &mut page[line * 64..(line + lines as usize) * 64];
    match random.below(8) {
        0 => entry[0] = random.below(11) as u8,
        1 => entry[1] ^= 1 << random.below(6),
        2 => put_u32(entry, 4, random.number() as u32),
        3 => put_u64(entry, 16, get_u64(entry, 16).wrapping_add(random.below(3)).wrapping_sub(1)),
        4 => put_u32(entry, 32, random.below(160) as u32),
        5 => entry[42] = random.number() as u8,
        6 => entry[43] = pick(random, &[0, 1, 4, 8, 10, 12, 77]),
        _ => {
            let words = entry.len() as u64 / 8 - 3;
            put_u64(entry, 24 + random.below(words) as usize * 8, random.number());
        }
    }
    let checksum = targets.key.checksum(Tag::Entry, owner, get_u64(entry, 0), &entry[16..]);
    put_u64(entry, 8, checksum);
}

/// Checks and repairs one image; panics and what is returned are the test's failures.
pub(crate) fn exercise(medium: &Medium, tally: &mut [u64; 4]) -> Result<(), String> {
    let before = Instant::now();
    let reading = check(medium, CheckOptions { repair: false, threads: 1 }, &mut |_| {});
    let repairing = check(medium, CheckOptions { repair: true, threads: 1 }, &mut |_| {});
    if before.elapsed() > TIME_MAX {
        return Err(format!("it took {:?}", before.elapsed()));
    }
    if reading.is_ok() != repairing.is_ok() {
        return Err(format!("{reading:?} {repairing:?}"));
    }
    let Ok(report) = repairing else {
        tally[0] += 1;
        return Ok(());
    };
    if report.outcome == Outcome::Damaged {
        tally[1] += 1;
        if !report.findings.iter().any(|finding| finding.what.starts_with(UNFINISHED)) {
            return Err(findings(&report));
        }
        return Ok(());
    }
    tally[if report.outcome == Outcome::Sound { 2 } else { 3 }] += 1;
    let again = run(medium, false);
    if (again.outcome, again.closed_cleanly, &again.findings[..]) != (Outcome::Sound, true, &[][..]) {
        return Err(format!("after {}it is\n{}", findings(&report), findings(&again)));
    }
    let disk = Disk::open(medium.clone()).unwrap();
    ends_are_sound(&disk)
        .map_err(|error| format!("what is sound cannot be read after {}: {error}", findings(&report)))?;
    let recovered = crate::recover::recover(&disk, 1);
    recovered.map(|_| ()).map_err(|error| format!("recovery refuses after {}: {error}", findings(&report)))
}

/// Whether all logs end as those of a volume that was closed cleanly must.
fn ends_are_sound(disk: &Disk) -> gannet_vfs::Result<()> {
    for chunk in disk.chunks()? {
        for number in 0..disk.geometry().chunk_blocks {
            let first = (u64::from(chunk.number) * disk.geometry().chunk_blocks + number) * SLOTS_PER_BLOCK;
            for (inode, slot) in disk.slots(u64::from(chunk.block) + number, first)? {
                let Slot::Used { generation, birth, .. } = slot else { continue };
                let owned = Owned { key: disk.key(), inode, generation };
                let end = log::walk(disk, owned, birth.head, &mut |_| Ok(()))?;
                end.refuse_odd(|| disk.slot_at(inode).map(|at| at.unwrap_or(0)))?;
            }
        }
    }
    Ok(())
}

pub(crate) fn findings(report: &CheckReport) -> String {
    let of_interest = |finding: &&Finding| finding.structure != "inode" && finding.structure != "directory";
    let mut shown: Vec<_> = report.findings.iter().filter(of_interest).collect();
    shown.extend(report.findings.iter().filter(|finding| !of_interest(finding)).take(3));
    shown.iter().map(|finding| format!("  {finding}\n")).collect()
}

/// Gives `one` damaged images, clean and unclean ones in turn, until it says that it has seen enough: `usual` of them, `long`
/// with `GANNET_LONG`, `GANNET_IMAGES` if set, from seed `GANNET_SEED` on. Returns how many were to be given.
fn campaign(usual: u64, long: u64, salt: u64, mut one: impl FnMut(u64, &Medium) -> bool) -> u64 {
    let images = if std::env::var_os("GANNET_LONG").is_some() { long } else { usual };
    let images = std::env::var("GANNET_IMAGES").ok().and_then(|images| images.parse().ok()).unwrap_or(images);
    let start: u64 = std::env::var("GANNET_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(0);
    let (builder, _) = populated();
    let clean = builder.image();
    builder.open_again();
    let unclean = builder.image();
    let targets = targets(&builder);
    let medium = medium_of(&clean);
    for number in start..start + images {
        let mut random = Choices::Seed((number + salt).wrapping_mul(0x9E37_79B9_7F4A_7C15));
        let mut image = if number % 2 == 0 { clean.clone() } else { unclean.clone() };
        for _ in 0..1 + random.below(6) {
            mutate(&mut image, &targets, &mut random);
        }
        medium.write(MediumOffset(0), &image).unwrap();
        if !one(number, &medium) {
            break;
        }
    }
    images
}

#[test]
fn random_damage_is_survived() {
    let (mut tally, mut failed) = ([0; 4], Vec::new());
    let images = campaign(250, 200_000, 0, |number, medium| {
        if let Err(what) = exercise(medium, &mut tally) {
            failed.push(format!("image {number}:\n{what}"));
        }
        failed.len() < 10
    });
    let [refused, unfinished, sound, repaired] = tally;
    println!("{images} images: {refused} refused, {unfinished} not repaired, {sound} sound, {repaired} repaired");
    assert!(failed.is_empty(), "{}", failed.join("\n"));
    assert!(repaired > images / 2 && sound > 0, "{tally:?}");
}

/// Opens a damaged volume as a program would, and uses what it says: errors are fine, panics and endless loops are not.
pub(crate) fn use_volume(medium: &Medium) {
    let options = AttachOptions {
        index_bytes_max: 4 << 20,
        copy_on_write: None,
        access_times: Default::default(),
        threads: 1,
        users: Box::new(NoUsers),
    };
    let Ok(fs) = LogFs::open_private(medium.clone(), options) else { return };
    use_open_volume(&fs);
}

/// Goes through an open volume: each node, its attributes, how many were before it.
pub(crate) fn walk_volume(fs: &LogFs, visit: &mut dyn FnMut(NodeId, &Attributes, u64)) {
    let mut open = vec![fs.root()];
    let mut visited = 0;
    while let Some(node) = open.pop() {
        visited += 1;
        // A circle of directories is nothing that the engine looks for.
        if visited > 400 {
            break;
        }
        let Ok(about) = fs.attributes(node) else { continue };
        let mut buffer = [0; 9000];
        let _ = fs.read(node, 0, &mut Destination::from_slice(&mut buffer));
        let _ = fs.read(node, about.size_bytes.saturating_sub(5000), &mut Destination::from_slice(&mut buffer));
        let _ = fs.read_link(node, &mut buffer);
        let _ = fs.extents(node, 0, u64::MAX, &mut |_| true);
        let _ = fs.seek(node, SeekTarget::Hole, 0);
        let _ = fs.list_xattrs(node, &mut |_| {});
        let _ = fs.parent(node);
        let mut names = Vec::new();
        let _ = fs.read_directory(node, 0, &mut |entry| {
            names.push(entry.name.bytes().to_vec());
            names.len() < 200
        });
        for name in names {
            if let Ok(name) = Name::new(&name)
                && let Ok(found) = fs.lookup(node, name)
            {
                open.push(found.node);
            }
        }
        visit(node, &about, visited);
    }
}

/// Uses what an open volume says, and closes it.
pub(crate) fn use_open_volume(fs: &LogFs) {
    walk_volume(fs, &mut |node, about, visited| {
        let mut names = Vec::new();
        let _ = fs.read_directory(node, 0, &mut |entry| {
            names.push(entry.name.bytes().to_vec());
            names.len() < 200
        });
        for name in names {
            if visited % 5 == 0
                && let Ok(name) = Name::new(&name)
                && let Ok(found) = fs.lookup(node, name)
            {
                let _ = fs.remove(node, name, RemoveKind::NonDirectory);
                let _ = fs.retire(found.node);
            }
        }
        let name = Name::new(b"a new name").unwrap();
        let _ = fs.create(node, name, &NewNode::regular(0o600, Owner::default()));
        let buffer = [1; 9000];
        let mut content = Source::from_slice(&buffer);
        let _ = fs.write(node, WritePosition::At(about.size_bytes / 2), &mut content, WriteFlags::empty());
        let mut content = Source::from_slice(&buffer);
        let _ = fs.write(node, WritePosition::Append, &mut content, WriteFlags::empty());
        let _ = fs.set_attributes(node, &AttributeChange { size_bytes: Some(100), ..AttributeChange::default() });
        let _ = fs.rename(node, name, fs.root(), Name::new(b"moved").unwrap(), RenameFlags::empty());
    });
    let _ = fs.statistics();
    let _ = fs.counters();
    let _ = fs.session().reap_dead();
    let _ = fs.detach();
}

#[test]
fn damaged_volumes_are_used_without_panic() {
    let mut failed = Vec::new();
    campaign(150, 100_000, 77, |number, medium| {
        let before = Instant::now();
        let used = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| use_volume(medium)));
        if used.is_err() || before.elapsed() > TIME_MAX {
            failed.push((number, before.elapsed()));
        }
        // What it made of the damage is no matter of indifference either: fsck can still read it.
        let _ = check(medium, CheckOptions { repair: true, threads: 1 }, &mut |_| {});
        true
    });
    assert!(failed.is_empty(), "{} images: {failed:?}", failed.len());
}

/// Entries that are valid in themselves and say what no operation ever said.
#[test]
fn extreme_numbers_are_survived() {
    const NUMBERS: [u64; 9] = [0, 2, (1 << 51) - 1, 1 << 51, i64::MAX as u64, u64::MAX, 1, (1 << 52) - 1, 1 << 63];
    let count = if std::env::var_os("GANNET_LONG").is_some() { NUMBERS.len() } else { 6 };
    let numbers = &NUMBERS[..count];
    let mut images = Vec::new();
    for &one in numbers {
        for &two in numbers {
            let extents =
                [FileExtent { file_block: one, block: two & ((1 << 39) - 1), count: 3, shared: one % 2 == 0 }];
            let sound = [FileExtent { file_block: one, block: 40, count: 3, shared: false }];
            for payload in [
                Payload::Write { size_bytes: two, hash: Some(1), extents: Extents::List(&extents) },
                Payload::Write { size_bytes: two, hash: None, extents: Extents::List(&sound) },
                Payload::Size { size_bytes: one, hash: Some(two) },
                Payload::Unmap { file_block: one, count: two },
                Payload::Resize {
                    attributes: LoggedAttributes {
                        mode: two as u32,
                        flags: InodeFlags::empty(),
                        owner: Owner::default(),
                        size_bytes: one,
                        modified: two as i64,
                        accessed: one as i64,
                    },
                    hash: (one % 2 == 1).then_some(two),
                    keeps: two % 2 == 1,
                },
                Payload::Remap { size_bytes: two, file_block: one, count: two, extents: Extents::List(&extents) },
                Payload::Remap { size_bytes: one, file_block: one, count: two, extents: Extents::List(&sound) },
                Payload::LargeXattr {
                    name: b"user.x",
                    value: LargeValue { bytes: two as u32, checksum: one, extents: Extents::List(&extents) },
                },
                Payload::Shift { file_block: one, distance: two, down: false, size_bytes: one },
                Payload::Shift { file_block: one, distance: two, down: true, size_bytes: two },
            ] {
                let (mut builder, places) = populated();
                builder.open_again();
                builder.append(places.other, &payload);
                // Only the last entry can have been in flight: two whose data is not there are not what a crash leaves.
                let hashed = format!("{payload:?}").contains("hash: Some");
                if one % 2 == 0 && !hashed {
                    builder.append(places.other, &payload);
                }
                images.push((format!("{payload:?}"), builder));
            }
        }
        if images.len() > 100 || Some(&one) == numbers.last() {
            for (what, builder) in images.drain(..) {
                for close in [false, true] {
                    if close {
                        builder.close();
                    }
                    let medium = medium_of(&builder.image());
                    let mut tally = [0; 4];
                    exercise(&medium, &mut tally).unwrap_or_else(|why| panic!("{what}: {why}"));
                    let medium = medium_of(&builder.image());
                    let used = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| use_volume(&medium)));
                    assert!(used.is_ok(), "{what}");
                }
            }
        }
    }
}
