//! Who writes whole blocks that replace others, or fill a hole, has no lock while he copies: he is stopped there, and what others do with
//! the file meanwhile comes to its end, and counts.

use crate::long;
use crate::operations::bytes;
use crate::volume::{Mode, assert_sound, attach, image, open};
use gannet_fstest::Rig;
use gannet_logfs::LogFs;
use gannet_media::Simulation;
use gannet_shm::testing::{Outcome, run_abandoned, store_point};
use gannet_vfs::{AllocateMode, AttributeChange, Errno, FileSystem, InodeFlags, NodeId, Result, WritePosition};
use std::sync::Arc;
use std::time::Duration;

const BLOCKS: usize = 16;
const WRITTEN: usize = 2 * 4096;

/// Writes two blocks at the beginning of `file`, stops in the middle of the copy, has `meanwhile` done, and goes on. Returns what the write
/// returned.
fn stopped_while(fs: &Arc<LogFs>, file: NodeId, meanwhile: impl FnOnce(&Rig<'_>) + Send) -> Result<()> {
    let writer = fs.clone();
    let stopped = Simulation::stop_after(1, move || {
        let written = Rig::new(&*writer).try_write(file, WritePosition::At(0), &bytes(9, WRITTEN));
        written.map(|written| assert_eq!(written.count_bytes, WRITTEN))
    });
    let (waited, outcome) = std::thread::scope(|scope| {
        let other = scope.spawn(|| meanwhile(&Rig::new(&**fs)));
        while !other.is_finished() && fs.session().waiting().is_empty() {
            std::thread::sleep(Duration::from_millis(1));
        }
        let waited = !other.is_finished();
        // Before what waits for it is waited for.
        let outcome = stopped.finish();
        other.join().expect("the other");
        (waited, outcome)
    });
    assert!(!waited, "others waited for who copies");
    outcome
}

/// What is done meanwhile, and what the file holds in the end, given what it held.
struct Case {
    text: &'static str,
    meanwhile: fn(&Rig<'_>, NodeId),
    after: fn(Vec<u8>) -> Vec<u8>,
}

fn with_the_write(mut content: Vec<u8>) -> Vec<u8> {
    content[..WRITTEN].copy_from_slice(&bytes(9, WRITTEN));
    content
}

const CASES: [Case; 7] = [
    Case {
        text: "another part is written",
        meanwhile: |rig, file| rig.write(file, 8 * 4096, &bytes(3, WRITTEN)),
        after: |mut content| {
            content[8 * 4096..8 * 4096 + WRITTEN].copy_from_slice(&bytes(3, WRITTEN));
            with_the_write(content)
        },
    },
    Case {
        text: "the same part is written",
        meanwhile: |rig, file| rig.write(file, 4096, &bytes(3, WRITTEN)),
        after: |mut content| {
            content[4096..4096 + WRITTEN].copy_from_slice(&bytes(3, WRITTEN));
            with_the_write(content)
        },
    },
    Case {
        text: "the file is cut in the middle of the write",
        meanwhile: |rig, file| {
            rig.resize(file, 5000).expect("truncate");
        },
        after: |_| bytes(9, WRITTEN),
    },
    Case {
        text: "the file is emptied and made longer",
        meanwhile: |rig, file| {
            rig.resize(file, 0).expect("truncate");
            rig.resize(file, BLOCKS as u64 * 4096).expect("extend");
        },
        after: |content| with_the_write(vec![0; content.len()]),
    },
    Case {
        text: "data is in place from now on",
        meanwhile: |rig, file| {
            let change = AttributeChange { flags: Some(InodeFlags::IN_PLACE), ..Default::default() };
            rig.fs.set_attributes(file, &change).expect("a flag");
        },
        after: with_the_write,
    },
    Case {
        text: "blocks are inserted",
        meanwhile: |rig, file| rig.fs.allocate(file, AllocateMode::Insert, 0, 4096).expect("insert"),
        after: |content| with_the_write([vec![0; 4096], content].concat()),
    },
    Case {
        text: "it is cloned",
        meanwhile: |rig, file| {
            let clone = rig.file(rig.root, "clone");
            rig.fs.clone_range(file, 0, clone, 0, BLOCKS as u64 * 4096).expect("clone");
        },
        after: with_the_write,
    },
];

/// A file that is full and copy-on-write, or all one hole and in place.
fn start(mode: Mode) -> Vec<u8> {
    image(mode, |fs| {
        let rig = Rig::new(fs);
        let file = rig.file(rig.root, "file");
        match mode {
            Mode::CopyOnWrite => rig.write(file, 0, &bytes(1, BLOCKS * 4096)),
            Mode::InPlace => {
                rig.resize(file, BLOCKS as u64 * 4096).expect("extend");
            }
        }
    })
}

#[test]
fn who_copies_whole_blocks_stops_nobody() {
    for mode in [Mode::CopyOnWrite, Mode::InPlace] {
        let image = start(mode);
        for case in &CASES {
            let text = format!("{mode:?}: {}", case.text);
            let (fs, simulation) = open(&image);
            let fs = Arc::new(fs);
            let file = Rig::new(&*fs).find(fs.root(), "file").expect("the file");
            let before = Rig::new(&*fs).content(file);
            stopped_while(&fs, file, |rig| (case.meanwhile)(rig, file))
                .unwrap_or_else(|error| panic!("{text}: {error}"));
            assert!(Rig::new(&*fs).content(file) == (case.after)(before), "{text}");
            close(Arc::into_inner(fs).expect("nobody else has it"), &simulation, &text);
        }
    }
}

#[test]
fn who_copies_for_a_file_that_goes_leaves_nothing() {
    for mode in [Mode::CopyOnWrite, Mode::InPlace] {
        let (fs, simulation) = open(&start(mode));
        let fs = Arc::new(fs);
        let file = Rig::new(&*fs).find(fs.root(), "file").expect("the file");
        let written = stopped_while(&fs, file, |rig| {
            rig.unlink(rig.root, "file").expect("unlink");
        });
        assert_eq!(written.expect_err("there is no such file").errno(), Errno::STALE);
        close(Arc::into_inner(fs).expect("nobody else has it"), &simulation, "the file is gone");
    }
}

/// Writes the two blocks in a thread that ends after so many stores; whether it came to its end before.
fn write_abandoned(fs: &LogFs, simulation: &Simulation, file: NodeId, stores: u64) -> bool {
    simulation.set_hook(Some(Arc::new(|_| store_point())));
    let outcome = run_abandoned(&[fs.session()], stores, || Rig::new(fs).write(file, 0, &bytes(9, WRITTEN)));
    simulation.set_hook(None);
    matches!(outcome, Outcome::Completed(()))
}

/// Behind the copy each store to the arena or the medium may be the last: the blocks are the file's or nobody's, and never somebody else's, too.
#[test]
fn who_has_copied_may_end_anywhere() {
    for mode in [Mode::CopyOnWrite, Mode::InPlace] {
        let image = start(mode);
        let attempt = |stores: u64| {
            let (fs, simulation) = open(&image);
            let file = Rig::new(&fs).find(fs.root(), "file").expect("the file");
            let before = Rig::new(&fs).content(file);
            let is_whole = write_abandoned(&fs, &simulation, file, stores);
            (fs, simulation, file, before, is_whole)
        };
        // The least that suffice.
        let (mut few, mut all) = (0, 1 << 16);
        while all - few > 1 {
            let middle = (few + all) / 2;
            if attempt(middle).4 { all = middle } else { few = middle }
        }
        let first = if long() { 1 } else { all - 150 };
        for stores in first..=all {
            let (fs, simulation, file, before, is_whole) = attempt(stores);
            let text = format!("{mode:?}: {stores} of {all} stores");
            let rig = Rig::new(&fs);
            fs.session().reap_dead().expect("reaping");
            fs.recount().expect("counting").expect("nobody else counts");
            // Whatever counts as free is written to.
            let other = rig.file(rig.root, "other");
            while rig.try_write(other, WritePosition::Append, &[0xEE; 4096]).is_ok() {}
            let content = rig.content(file);
            let written = with_the_write(before.clone());
            assert!(content == written || content == before && !is_whole, "{text}: somebody else's bytes");
            rig.unlink(rig.root, "other").expect("unlink");
            let free = fs.statistics().expect("statistics").blocks_free;
            assert!(fs.detach().expect("detach"));
            drop(fs);
            assert_sound(&simulation.medium(), false, &text);
            let fs = attach(&simulation.medium()).expect("the next attach");
            assert_eq!(fs.statistics().expect("statistics").blocks_free, free, "{text}: free blocks");
            assert!(Rig::new(&fs).content(file) == content, "{text}: attached again");
        }
    }
}

/// Closes the volume; what counted as free is free.
fn close(fs: LogFs, simulation: &Simulation, text: &str) {
    let free = fs.statistics().expect("statistics").blocks_free;
    assert!(fs.detach().expect("detach"));
    drop(fs);
    let report = assert_sound(&simulation.medium(), true, text);
    assert_eq!(report.blocks - report.blocks_used, free, "{text}: free blocks");
}
