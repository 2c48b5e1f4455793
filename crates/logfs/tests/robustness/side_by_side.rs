//! Who writes whole blocks that replace others, or fill a hole, has no lock while he copies: he is stopped there, and what others do with
//! the file meanwhile comes to its end, and counts.

use crate::operations::bytes;
use crate::volume::{Mode, assert_sound, image, open};
use gannet_fstest::Rig;
use gannet_logfs::LogFs;
use gannet_vfs::{AllocateMode, AttributeChange, Errno, FileSystem, InodeFlags, NodeId, Result};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

const BLOCKS: usize = 16;
const WRITTEN: usize = 2 * 4096;

/// Writes two blocks at the beginning of `file`, stops in the middle of the copy, has `meanwhile` done, and goes on. Returns what the write
/// returned.
fn stopped_while(
    fs: &LogFs,
    simulation: &gannet_media::Simulation,
    file: NodeId,
    meanwhile: impl Fn(&Rig<'_>),
) -> Result<()> {
    let writer_id = Arc::new(Mutex::new(None));
    let (stopped, is_stopped) = mpsc::channel();
    let (go, may_go) = mpsc::channel::<()>();
    let went_by_itself = Arc::new(AtomicBool::new(false));
    let (hooked_id, hooked_late, gate) =
        (writer_id.clone(), went_by_itself.clone(), Mutex::new(Some((stopped, may_go))));
    simulation.set_hook(Some(Arc::new(move |_| {
        if *hooked_id.lock().expect("unpoisoned") == Some(std::thread::current().id())
            && let Some((stopped, may_go)) = gate.lock().expect("unpoisoned").take()
        {
            let _ = stopped.send(());
            let late = may_go.recv_timeout(Duration::from_secs(30)).is_err();
            hooked_late.store(late, Ordering::Relaxed);
        }
    })));
    let outcome = std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            *writer_id.lock().expect("unpoisoned") = Some(std::thread::current().id());
            let position = gannet_vfs::WritePosition::At(0);
            Rig::new(fs)
                .try_write(file, position, &bytes(9, WRITTEN))
                .map(|written| assert_eq!(written.count_bytes, WRITTEN))
        });
        is_stopped.recv().expect("the writer begins");
        meanwhile(&Rig::new(fs));
        assert!(!went_by_itself.load(Ordering::Relaxed), "others waited for who copies");
        go.send(()).expect("the writer goes on");
        writer.join().expect("the writer")
    });
    simulation.set_hook(None);
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
            let file = Rig::new(&fs).find(fs.root(), "file").expect("the file");
            let before = Rig::new(&fs).content(file);
            stopped_while(&fs, &simulation, file, |rig| (case.meanwhile)(rig, file))
                .unwrap_or_else(|error| panic!("{text}: {error}"));
            assert!(Rig::new(&fs).content(file) == (case.after)(before), "{text}");
            close(fs, &simulation, &text);
        }
    }
}

#[test]
fn who_copies_for_a_file_that_goes_leaves_nothing() {
    for mode in [Mode::CopyOnWrite, Mode::InPlace] {
        let (fs, simulation) = open(&start(mode));
        let file = Rig::new(&fs).find(fs.root(), "file").expect("the file");
        let written = stopped_while(&fs, &simulation, file, |rig| {
            rig.unlink(rig.root, "file").expect("unlink");
        });
        assert_eq!(written.expect_err("there is no such file").errno(), Errno::STALE);
        close(fs, &simulation, "the file is gone");
    }
}

/// Closes the volume; what counted as free is free.
fn close(fs: LogFs, simulation: &gannet_media::Simulation, text: &str) {
    let free = fs.statistics().expect("statistics").blocks_free;
    assert!(fs.detach().expect("detach"));
    drop(fs);
    let report = assert_sound(&simulation.medium(), true, text);
    assert_eq!(report.blocks - report.blocks_used, free, "{text}: free blocks");
}
