//! Opening and closing: crashes in both, and that nothing changes through either.

use crate::enumeration::{Count, Expected, crashes};
use crate::operations::{all, populate};
use crate::state::{Tear, capture};
use crate::volume::{MODES, VOLUME_BYTES, assert_sound, attach, image, open};
use crate::{Random, long};
use gannet_fstest::Rig;
use gannet_media::simulation::CrashPolicy;
use gannet_media::{Medium, MediumOffset};
use gannet_vfs::FileSystem;
use std::time::Instant;

#[test]
fn crashes_while_opening_and_closing_lose_nothing() {
    let began = Instant::now();
    let mut count = Count::default();
    for mode in MODES {
        let image = image(mode, |fs| populate(fs));
        let (medium, simulation) = Medium::simulated_from_image(&image);
        for (round, operation) in all(mode).iter().step_by(if long() { 1 } else { 16 }).enumerate() {
            let mark = simulation.mark();
            let fs = attach(&medium).expect("attach");
            let state = capture(&fs).expect("the state");
            let policy = CrashPolicy { samples: 16, ..CrashPolicy::sparse(round as u64) };
            let mut number = 0;
            let mut look = |range: core::ops::Range<usize>, state, text: &str| {
                let expected = Expected { before: state, after: state, tear: Tear::Whole, returned_at: range.start };
                count += crashes(&simulation, range, &policy, &expected, text, 8, &mut number);
            };
            look(mark..simulation.mark(), &state, "attach");
            let _ = operation.apply(&fs);
            let state = capture(&fs).expect("the state");
            let mark = simulation.mark();
            assert!(fs.detach().expect("detach"));
            drop(fs);
            look(mark..simulation.mark(), &state, "detach");
            count.workloads += 1;
        }
    }
    count.print("opening and closing", began);
}

#[test]
fn what_was_known_is_known_again() {
    let rounds = if long() { 300 } else { 12 };
    for mode in MODES {
        let image = image(mode, |fs| populate(fs));
        let operations = all(mode);
        let mut random = Random(mode as u64);
        for _ in 0..rounds {
            let (fs, simulation) = open(&image);
            for _ in 0..30 {
                let _ = operations[random.below(operations.len())].apply(&fs);
            }
            let state = capture(&fs).expect("the state");
            let statistics = fs.statistics().expect("statistics");
            // As a kill would leave it.
            let mut bytes = vec![0; VOLUME_BYTES as usize];
            simulation.medium().read(MediumOffset(0), &mut bytes).expect("read");
            let (killed, _control) = Medium::simulated_from_image(&bytes);
            assert!(fs.detach().expect("detach"));
            drop(fs);
            for (medium, recovered) in [(simulation.medium(), false), (killed, true)] {
                let fs = attach(&medium).expect("attach again");
                assert_eq!(fs.recovery().is_some(), recovered);
                assert_eq!(capture(&fs).expect("the state").equals(&state), Ok(()), "recovered: {recovered}");
                assert_eq!(fs.statistics().expect("statistics"), statistics, "recovered: {recovered}");
                assert!(fs.detach().expect("detach"));
                drop(fs);
                assert_sound(&medium, true, "after a remount");
            }
        }
    }
}

/// What threads have given up waits for a fence of theirs. When they have ended instead, or stand still, nothing of it is
/// lost: it counts as free, the next thread in the slot frees it, and so does who closes the volume.
#[test]
fn what_threads_gave_up_is_free_again() {
    for mode in MODES {
        let image = image(mode, |_| ());
        let (fs, simulation) = open(&image);
        let rig = Rig::new(&fs);
        // The directory's log has its page from here on.
        rig.file(rig.root, "first");
        let before = fs.statistics().expect("statistics");
        let work = |name: &str| {
            let rig = Rig::new(&fs);
            let file = rig.file(rig.root, name);
            rig.write(file, 0, &[1; 9000]);
            rig.unlink(rig.root, name).expect("unlink");
        };
        let (ready, wait) = (std::sync::Barrier::new(4), std::sync::Barrier::new(4));
        std::thread::scope(|scope| {
            for number in 0..3 {
                let (ready, wait, work) = (&ready, &wait, &work);
                scope.spawn(move || {
                    work(&format!("file{number}"));
                    ready.wait();
                    wait.wait();
                });
            }
            ready.wait();
            assert_eq!(fs.statistics().expect("statistics"), before, "while they stand still");
            // A crash now counts anew, whatever has been written back of it.
            let mark = simulation.mark();
            let policy = CrashPolicy::sparse(3);
            simulation.for_each_crash(mark..mark, &policy, |crash| {
                let fs = attach(&crash.medium()).expect("recovery");
                assert_eq!(fs.statistics().expect("statistics"), before, "after a crash");
            });
            wait.wait();
        });
        assert_eq!(fs.statistics().expect("statistics"), before, "after they have ended");
        // Their slots' next users.
        std::thread::scope(|scope| {
            scope.spawn(|| (0..3).for_each(|number| work(&format!("again{number}"))));
        });
        assert_eq!(fs.statistics().expect("statistics"), before);
        assert!(fs.detach().expect("detach"));
        drop(fs);
        let report = assert_sound(&simulation.medium(), true, "after threads gave up what they had");
        assert_eq!(report.blocks - report.blocks_used, before.blocks_free);
        let fs = attach(&simulation.medium()).expect("attach again");
        assert_eq!(fs.recovery(), None);
        assert_eq!(fs.statistics().expect("statistics"), before, "remounted");
    }
}
