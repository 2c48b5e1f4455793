//! A volume over two media: the same crashes as on one, and those of the words by which the media know each other.

use crate::enumeration::{Count, Expected, crashes, last_of};
use crate::operations::{Operation, all, populate};
use crate::state::{Tear, capture};
use crate::volume::{Mode, assert_sound, attach, make_options};
use crate::{Failures, long};
use gannet_fstest::Rig;
use gannet_logfs::{CheckOptions, Finding, FurtherOptions, LogFs, check, make_spanning};
use gannet_media::simulation::CrashPolicy;
use gannet_media::{Medium, MediumOffset};
use gannet_vfs::{FileSystem, WritePosition};
use std::time::Instant;

const FIRST_BYTES: u64 = 2 << 20;
const BYTES: u64 = 4 << 20;

/// Makes an empty volume over both.
pub(crate) fn format(medium: &Medium, mode: Mode) {
    let further = FurtherOptions { start_bytes: FIRST_BYTES, path: b"second".to_vec() };
    make_spanning(medium, &make_options(mode), &[further]).expect("mkfs");
}

fn bytes_of(medium: &Medium) -> Vec<u8> {
    let mut bytes = vec![0; BYTES as usize];
    medium.read(MediumOffset(0), &mut bytes).expect("read the medium");
    bytes
}

/// A volume on which operations come to lie on both sides of where the second medium begins.
pub(crate) fn image(mode: Mode, fill: impl FnOnce(&LogFs)) -> Vec<u8> {
    let (medium, simulation) = Medium::simulated(BYTES);
    simulation.set_first_length(FIRST_BYTES);
    format(&medium, mode);
    let fs = attach(&medium).expect("attach");
    let rig = Rig::new(&fs);
    let past = rig.file(rig.root, "past");
    while rig.try_write(past, WritePosition::Append, &[0xE6; 1 << 16]).is_ok() {}
    let mut sides = [false; 2];
    fs.extents(past, 0, u64::MAX, &mut |extent| {
        let end = extent.medium_offset_bytes + extent.length_bytes;
        assert!(end <= FIRST_BYTES || extent.medium_offset_bytes >= FIRST_BYTES, "{extent:?} lies in both");
        sides[usize::from(end > FIRST_BYTES)] = true;
        true
    })
    .expect("extents");
    assert_eq!(sides, [true; 2]);
    rig.unlink(rig.root, "past").expect("unlink");
    // Of the first medium little is left.
    let ballast = rig.file(rig.root, "ballast");
    rig.write(ballast, 0, &vec![0xBA; (FIRST_BYTES - (192 << 10)) as usize]);
    fill(&fs);
    assert!(fs.detach().expect("detach"));
    drop(fs);
    bytes_of(&medium)
}

#[test]
fn one_operation_on_two_media() {
    let began = Instant::now();
    let mut count = Count::default();
    let mut failed = Failures::default();
    for mode in [Mode::InPlace, Mode::CopyOnWrite] {
        let image = image(mode, |fs| populate(fs));
        let operations = all(mode);
        for operation in operations.iter().step_by(if long() { 1 } else { 12 }) {
            let policy = CrashPolicy { samples: 8, ..CrashPolicy::sparse(1) };
            let chosen: [&Operation; 1] = [operation];
            failed.catch(&operation.text, || count += last_of(&image, &chosen, &policy, 16, 0));
        }
    }
    failed.conclude();
    count.print("one operation on two media", began);
    assert!(count.images > 200);
}

#[test]
fn crashes_while_opening_leave_media_that_know_each_other() {
    let image = image(Mode::InPlace, |fs| populate(fs));
    let (medium, simulation) = Medium::simulated_from_image(&image);
    simulation.set_first_length(FIRST_BYTES);
    let mark = simulation.mark();
    let fs = attach(&medium).expect("attach");
    let opened = simulation.mark();
    let state = capture(&fs).expect("the state");
    let mut number = 0;
    let expected = Expected { before: &state, after: &state, tear: Tear::Whole, returned_at: mark };
    let policy = CrashPolicy { samples: 16, ..CrashPolicy::default() };
    let count = crashes(&simulation, mark..opened, &policy, &expected, "opening", 1, &mut number);
    assert!(count.images > 8 && count.nested > 100, "{count:?}");
    // A crash in opening, then one in opening that, then one in opening that: each time fsck, which knows those words too.
    let policy = CrashPolicy { samples: 4, ..CrashPolicy::sparse(3) };
    let mut third = 0;
    simulation.for_each_crash(mark..opened, &policy, |one| {
        let control = one.simulation();
        let begin = control.mark();
        drop(attach(&one.medium()).expect("attach after a crash"));
        control.for_each_crash(begin..control.mark(), &policy, |two| {
            assert_sound(&two.medium(), false, "after two crashes in opening");
            let control = two.simulation();
            let begin = control.mark();
            drop(attach(&two.medium()).expect("attach after two crashes"));
            let sparser = CrashPolicy { samples: 1, ..CrashPolicy::sparse(5) };
            control.for_each_crash(begin..control.mark(), &sparser, |three| {
                third += 1;
                if third % 16 == 0 {
                    assert_sound(&three.medium(), false, "after three crashes in opening");
                }
            });
        });
    });
    assert!(third > 100, "{third}");
}

#[test]
fn what_was_cut_short_while_it_was_made_is_no_volume_or_a_whole_one() {
    let (medium, simulation) = Medium::simulated(BYTES);
    simulation.set_first_length(FIRST_BYTES);
    let mark = simulation.mark();
    format(&medium, Mode::InPlace);
    let mut volumes = 0;
    simulation.for_each_crash(mark..simulation.mark(), &CrashPolicy::sparse(9), |crash| {
        if gannet_logfs::describe(&crash.medium()).is_ok() {
            volumes += 1;
            let fs = attach(&crash.medium()).expect("a volume");
            assert!(fs.statistics().expect("statistics").blocks_free > 900);
            drop(fs);
            // From the replica, which is written first, it is whole; what is missing then is the superblock.
            let options = CheckOptions { repair: true, threads: 1 };
            let report = check(&crash.medium(), options, &mut |_| {}).expect("a check");
            let is_superblock = |finding: &Finding| finding.structure == "superblock" && finding.offset_bytes == 0;
            assert!(report.findings.iter().all(is_superblock), "{:?}", report.findings);
            assert_sound(&crash.medium(), false, "made, used and repaired");
        }
    });
    assert!(volumes > 0);
}
