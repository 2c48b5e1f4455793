//! Tests of fsck, on volumes that the format's encoders wrote: sound ones, each kind of damage, each field flipped,
//! random damage.

pub(crate) mod build;
#[cfg(test)]
mod campaign;
#[cfg(test)]
mod copies;
mod damage;
mod ends;
mod flips;
pub(crate) mod fuzz;
mod no_room;
#[cfg(test)]
mod sense;
mod tree;
#[cfg(test)]
mod unreadable;

use super::{CheckOptions, CheckReport, Outcome, Severity, check};
use crate::format::state::{CLEAN_AT, EPOCH_AT};
use crate::mkfs::{MakeOptions, make};
use crate::{AttachOptions, LogFs, NoUsers};
use gannet_media::{CreateOptions, Medium, MediumOffset};
use gannet_vfs::{Owner, Time};

pub(super) fn run(medium: &Medium, repair: bool) -> CheckReport {
    check(medium, CheckOptions { repair, threads: 1 }, &mut |_| {}).unwrap()
}

/// Repairs, and requires that a second check finds nothing; returns the first report.
pub(super) fn repaired(medium: &Medium) -> CheckReport {
    let report = run(medium, true);
    let again = run(medium, false);
    assert_eq!(again.findings, [], "after {:#?}", report.findings);
    assert_eq!((again.outcome, again.closed_cleanly), (Outcome::Sound, true));
    report
}

pub(super) fn damage(report: &CheckReport) -> Vec<String> {
    let damage = report.findings.iter().filter(|finding| finding.severity == Severity::Damage);
    damage.map(ToString::to_string).collect()
}

/// Plain memory with these bytes.
pub(crate) fn medium_of(image: &[u8]) -> Medium {
    let options = CreateOptions { huge_pages: false, ..CreateOptions::default() };
    let medium = Medium::create_in_memory("gannet-check", image.len() as u64, options).unwrap();
    medium.write(MediumOffset(0), image).unwrap();
    medium
}

/// All that is on a medium.
#[cfg(test)]
fn bytes_of(medium: &Medium) -> Vec<u8> {
    let mut bytes = vec![0; medium.length() as usize];
    medium.read(MediumOffset(0), &mut bytes).unwrap();
    bytes
}

/// Opens a volume in this process alone. Dropped without a detach, it is as a power loss leaves it.
pub(crate) fn attach(medium: &Medium) -> LogFs {
    let options = AttachOptions {
        index_bytes_max: 16 << 20,
        copy_on_write: None,
        access_times: Default::default(),
        threads: 1,
        users: Box::new(NoUsers),
    };
    LogFs::open_private(medium.clone(), options).expect("attach")
}

pub(crate) fn empty_volume(length_bytes: u64) -> Medium {
    let options = CreateOptions { huge_pages: false, ..CreateOptions::default() };
    let medium = Medium::create_in_memory("gannet-check", length_bytes, options).unwrap();
    let options = MakeOptions {
        label: String::new(),
        copy_on_write: false,
        emulate_persistence: false,
        owner: Owner::default(),
        mode: 0o755,
        random: [3; 24],
        now: Time(1_000),
    };
    make(&medium, &options).unwrap();
    medium
}

#[test]
fn a_sound_volume_is_sound() {
    let (builder, _) = build::populated();
    let report = run(&builder.medium, false);
    assert_eq!(damage(&report), [""; 0]);
    assert_eq!(report.findings, []);
    assert_eq!((report.outcome, report.closed_cleanly), (Outcome::Sound, true));
    assert_eq!(report.inodes, builder.logs.len() as u64);
    assert_eq!(report.blocks_used, builder.used().count());
    let threaded = check(&builder.medium, CheckOptions { repair: false, threads: 3 }, &mut |_| {}).unwrap();
    assert_eq!(threaded, report);
    assert_eq!(run(&builder.medium, true).outcome, Outcome::Sound);
}

#[test]
fn an_empty_volume_is_sound_and_is_closed_by_repair() {
    let builder = build::Builder::new();
    let report = run(&builder.medium, false);
    assert_eq!((report.outcome, report.closed_cleanly, report.inodes), (Outcome::Sound, true, 1));
    assert_eq!(report.findings, []);
    builder.open_again();
    let report = run(&builder.medium, false);
    assert_eq!((report.outcome, report.closed_cleanly, report.inodes), (Outcome::Sound, false, 1));
    let report = repaired(&builder.medium);
    assert_eq!(report.recovery.map(|recovery| recovery.inodes), Some(1));
}

#[test]
fn maps_of_several_blocks_are_saved_as_a_whole() {
    let medium = empty_volume(300 << 20);
    // The replica of the superblock stands at the end, and in the last block of the map.
    let sound = |closed_cleanly| {
        let report = run(&medium, false);
        assert_eq!((report.findings, report.closed_cleanly), (vec![], closed_cleanly));
    };
    sound(true);
    medium.store_u64(MediumOffset(CLEAN_AT), 0).unwrap();
    sound(false);
    repaired(&medium);
}

/// A search of a sparse file in memory, be it damaged or forged, must not make it take the space that it says it has.
#[test]
fn holes_are_not_searched() {
    let medium = empty_volume(512 << 20);
    let file = medium.descriptor().unwrap();
    let hole = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(file, hole, 8 << 20, 500 << 20).unwrap();
    let map_start = crate::disk::Disk::open(medium.clone()).unwrap().geometry().map_start;
    // Everything that is searched for: the epoch, a chunk, pages.
    for at in [EPOCH_AT, map_start * crate::format::BLOCK_BYTES] {
        medium.store_u64(MediumOffset(at), 0x5A5A_5A5A_5A5A).unwrap();
    }
    repaired(&medium);
    let taken = rustix::fs::fstat(medium.descriptor().unwrap()).unwrap().st_blocks * 512;
    assert!(taken < 32 << 20, "{taken} bytes");
}

/// A volume in a file that is longer, as a copy onto a larger device is, whose superblock is lost.
#[test]
fn a_replica_in_the_middle_of_a_file_is_found() {
    let medium = empty_volume(4 << 20);
    let file = medium.descriptor().unwrap();
    rustix::fs::ftruncate(file, 9 << 20).unwrap();
    let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file));
    let longer = Medium::open(path.as_ref(), Default::default()).unwrap();
    longer.zero(MediumOffset(0), crate::format::BLOCK_BYTES).unwrap();
    // A copy of it somewhere else is none.
    let mut copy = [0; crate::format::BLOCK_BYTES as usize];
    longer.read(MediumOffset((4 << 20) - 4096), &mut copy).unwrap();
    longer.write(MediumOffset(8 << 20), &copy).unwrap();
    assert_eq!(damage(&run(&longer, false)).len(), 1);
    repaired(&longer);
    // Where no state stands, it is no volume.
    longer.zero(MediumOffset(0), 2 * crate::format::BLOCK_BYTES).unwrap();
    assert!(check(&longer, CheckOptions { repair: false, threads: 1 }, &mut |_| {}).is_err());
}

/// Two superblocks, each in order by itself: the one in block 0 says a smaller volume, or does not say that there are further media;
/// the other stands where it says. (A superblock of another volume there is what a larger one left, and says nothing.)
#[test]
fn of_two_superblocks_the_one_that_stands_where_it_says_counts() {
    use crate::disk::read_superblock;
    use crate::format::superblock::{AT_CHECKSUM, Superblock};
    use crate::format::{BLOCK_BYTES, Key, Tag, put_u32, put_u64};

    let medium = empty_volume(4 << 20);
    let sound = read_superblock(&medium).unwrap();
    let mut media_untold = sound.encode();
    put_u32(&mut media_untold[..], 140, 1);
    let checksum = sound.key.checksum(Tag::Superblock, 0, 0, &media_untold[..AT_CHECKSUM]);
    put_u64(&mut media_untold[..], AT_CHECKSUM, checksum);
    for forged in [Superblock { blocks: 256, ..sound.clone() }.encode(), media_untold] {
        medium.write(MediumOffset(0), &forged[..]).unwrap();
        assert_eq!(read_superblock(&medium).unwrap(), sound);
        let report = run(&medium, false);
        assert_eq!(damage(&report).len(), 1, "{:#?}", report.findings);
        assert_eq!((report.findings[0].structure, report.findings[0].offset_bytes), ("superblock", 0));
        repaired(&medium);
        let mut found = [0; BLOCK_BYTES as usize];
        medium.read(MediumOffset(0), &mut found).unwrap();
        assert_eq!(found, *sound.encode());
    }
    let smaller = Superblock { blocks: 256, uuid: [7; 16], key: Key(7), ..sound };
    medium.write(MediumOffset(0), &smaller.encode()[..]).unwrap();
    assert_eq!(read_superblock(&medium).unwrap(), smaller);
}

/// Features that are unknown here: of some a volume is used by who knows them alone, of others it can be read all the same.
#[test]
fn what_a_newer_gannet_made_is_used_as_far_as_its_features_allow() {
    use crate::format::BLOCK_BYTES;
    use crate::format::superblock::Superblock;
    use gannet_vfs::{Errno, FileSystem, Name, NewNode};

    let path = std::path::PathBuf::from(format!("/dev/shm/gannet-check-newer-{}", std::process::id()));
    let options = CreateOptions { huge_pages: false, force: true, ..CreateOptions::default() };
    let medium = Medium::create(&path, 4 << 20, options, &mut |_| {}).unwrap();
    medium.write(MediumOffset(0), &bytes_of(&empty_volume(4 << 20))).unwrap();
    let options = || AttachOptions {
        index_bytes_max: 16 << 20,
        copy_on_write: None,
        access_times: Default::default(),
        threads: 1,
        users: Box::new(NoUsers),
    };
    let name = Name::new(b"file").unwrap();
    let fs = LogFs::open(&path, false, options()).unwrap();
    fs.create(fs.root(), name, &NewNode::regular(0o600, Owner::default())).unwrap();
    assert!(fs.detach().unwrap());
    let sound = crate::disk::read_superblock(&medium).unwrap();
    let become_newer = |superblock: Superblock| {
        for block in [0, superblock.blocks - 1] {
            medium.write(MediumOffset(block * BLOCK_BYTES), &superblock.encode()[..]).unwrap();
        }
        bytes_of(&medium)
    };
    let before = become_newer(Superblock { features_read_only: 0x40, ..sound.clone() });
    let refused = |read_only| LogFs::open(&path, read_only, options()).err().expect("refused");
    let error = refused(false);
    assert!(error.errno() == Errno::ROFS && error.to_string().contains("read-only"), "{error}");
    assert!(error.to_string().contains("unknown here: 0x40: "), "{error}");
    assert_eq!(LogFs::open_private(medium.clone(), options()).err().expect("refused").errno(), Errno::ROFS);
    let fs = LogFs::open(&path, true, options()).unwrap();
    assert!(fs.lookup(fs.root(), name).is_ok());
    assert!(fs.detach().unwrap());
    assert_eq!(bytes_of(&medium), before, "nothing was stored");
    let before = become_newer(Superblock { features_incompatible: sound.features_incompatible | 1 << 40, ..sound });
    for read_only in [false, true] {
        let error = refused(read_only);
        assert!(
            error.errno() == Errno::OPNOTSUPP && error.to_string().contains("unknown here: 0x10000000000: "),
            "{error}"
        );
    }
    let error = check(&medium, CheckOptions { repair: true, threads: 1 }, &mut |_| {}).unwrap_err();
    assert_eq!(error.errno(), Errno::OPNOTSUPP);
    assert_eq!(bytes_of(&medium), before, "nothing was stored");
    std::fs::remove_file(path).unwrap();
}

/// The largest volume there can be, of which a sparse file has the superblock alone, forged or not: what looks at it takes neither the
/// time nor the memory of its tables, nor makes the file take their space.
#[test]
fn a_sparse_volume_costs_what_it_holds() {
    let empty = empty_volume(1 << 20);
    let sound = crate::disk::read_superblock(&empty).unwrap();
    for features_incompatible in [sound.features_incompatible, 0] {
        let blocks = crate::format::geometry::BLOCKS_MAX;
        let forged = crate::format::superblock::Superblock { features_incompatible, blocks, ..sound.clone() };
        let name = std::ffi::CString::new("sparse").unwrap();
        let file = rustix::fs::memfd_create(&name, rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&file, blocks * crate::format::BLOCK_BYTES).unwrap();
        rustix::io::pwrite(&file, &forged.encode()[..], 0).unwrap();
        rustix::io::pwrite(&file, &1_u64.to_le_bytes(), EPOCH_AT).unwrap();
        let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file));
        let medium = Medium::open(path.as_ref(), Default::default()).unwrap();
        let taken = || rustix::fs::fstat(&file).unwrap().st_blocks * 512;
        assert!(crate::dump::describe(&medium).is_ok());
        crate::dump::dump(&medium, crate::dump::Target::Volume, &mut Vec::new()).unwrap();
        assert_eq!(run(&medium, false).outcome, Outcome::Damaged);
        // What recovery begins with.
        assert!(crate::disk::Disk::open(medium.clone()).unwrap().chunks().unwrap().is_empty());
        assert!(taken() < 1 << 20, "{} bytes", taken());
        if features_incompatible == 0 {
            // Its maps have a bit for each fixed block, and holes else.
            repaired(&medium);
            assert!(taken() < 16 << 20, "{} bytes", taken());
        }
    }
}

#[test]
fn what_is_no_volume_is_refused() {
    for length in [4096, 1 << 20] {
        let (medium, _) = Medium::simulated(length);
        assert!(check(&medium, CheckOptions { repair: false, threads: 1 }, &mut |_| {}).is_err());
    }
}
