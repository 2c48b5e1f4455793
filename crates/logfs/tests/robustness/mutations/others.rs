//! Blocks that one thread gives up and another takes, on volumes that have no others; pages of what is not born, and of what is next.

use super::fault::Fault;
use super::looks::{close, look};
use super::workload::{Kind, Volume, Workload};
use crate::operations::{at, bytes};
use crate::remains::{crash_in_first_page, fail_to_be_born};
use crate::state::{State, Tear, capture};
use gannet_fstest::{Rig, name};
use gannet_logfs::LogFs;
use gannet_media::Simulation;
use gannet_vfs::{AllocateMode, AttributeChange, FileSystem, ModeChange, NewNode, Owner, WritePosition};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A volume that seems to be full until what another thread gave up is taken.
pub(crate) fn need(text: String, volume: Rc<Volume>) -> Workload {
    Workload::new(Kind::Special, text.clone(), move |fault| {
        let (fs, simulation) = volume.open();
        fault.during(&simulation, || {
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    let rig = Rig::new(&fs);
                    // A page that collection gave up as well: its log's head is no more durable than that.
                    let directory = at(&rig, "/e").expect("a directory");
                    for number in 0..40 {
                        let text = format!("passing{number}");
                        let _ = fs.create(directory, name(&text), &NewNode::regular(0, Owner::default()));
                        let _ = rig.unlink(directory, &text);
                    }
                    rig.unlink(rig.root, "b").expect("unlink");
                });
            });
        });
        fill(&fs, &simulation, fault, 12, 4096, &text);
        if fault.looks() {
            close(fs, &simulation, &text);
        }
    })
}

/// Who has emptied the log page that is needed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Emptied {
    ByAnother,
    ByTheSame,
}

/// A volume that seems to be full until the log page is taken that a collection has just emptied. The slot that
/// leads past it is not even written back then, and what is written at once to that very page must wait for it.
pub(crate) fn need_of_a_page(text: String, volume: Rc<Volume>, emptied: Emptied) -> Workload {
    Workload::new(Kind::Special, text.clone(), move |fault| {
        let (fs, simulation) = volume.open();
        let rig = Rig::new(&fs);
        let ballast = at(&rig, "/ballast").expect("the ballast");
        let size = rig.attributes(ballast).sectors * 512;
        fs.allocate(ballast, AllocateMode::PunchHole, size.saturating_sub(16 << 12), 16 << 12).expect("room");
        let collect = || {
            let directory = at(&Rig::new(&fs), "/e").expect("a directory");
            for bits in (0..0o777).cycle().take(2000) {
                let change = AttributeChange { mode: ModeChange::Set(bits), ..Default::default() };
                fs.set_attributes(directory, &change).expect("a change of mode");
                if fs.counters().expect("counters").pages_collected > 0 {
                    return;
                }
            }
            panic!("no page was emptied");
        };
        fault.during(&simulation, || match emptied {
            Emptied::ByAnother => std::thread::scope(|scope| scope.spawn(collect).join().expect("pages are emptied")),
            Emptied::ByTheSame => {
                collect();
                // More than there is: whoever asks for it gives up, and has looked for everything that can be had.
                fs.allocate(ballast, AllocateMode::KeepSize, 1 << 30, 1 << 30).expect_err("more than there is");
            }
        });
        // None continues another, so that each gets the first block that is free, and the emptied page comes before the reserve.
        fill(&fs, &simulation, fault, 40, 8192, &text);
        if fault.looks() {
            close(fs, &simulation, &text);
        }
    })
}

/// Writes blocks of a sparse file, so far apart, until that fails or so many are there; looks at each.
fn fill(fs: &LogFs, simulation: &Simulation, fault: &Fault, count: u64, stride_bytes: u64, text: &str) {
    let rig = Rig::new(fs);
    let node = rig.find(rig.root, "sparse").expect("a file");
    let mut state = capture(fs).expect("the state");
    for block in 0..count {
        let mark = simulation.mark();
        let written = fault.during(simulation, || {
            rig.try_write(node, WritePosition::At(20_480 + block * stride_bytes), &bytes(block as u8, 4096))
        });
        let after = capture(fs).expect("the state");
        let returned_at = simulation.mark();
        if fault.looks() {
            look(simulation, mark..returned_at, (&state, &after), Tear::Bytes("/sparse"), returned_at, text);
        }
        state = after;
        if written.is_err() {
            break;
        }
    }
}

/// Two files share blocks; one goes while the other is given copies of its own, and what they shared is another file's before the
/// thread that copies goes on.
pub(crate) fn overtaken(text: String, volume: Rc<Volume>) -> Workload {
    Workload::new(Kind::Special, text.clone(), move |fault| {
        // The time of the change is stored last, behind the entry that says where the copies are.
        let (fs, simulation) = volume.open();
        let mark = simulation.mark();
        unshare(&fs);
        let last = *simulation.stored_in(mark..simulation.mark()).last().expect("stores");
        drop(fs);

        let (fs, simulation) = volume.open();
        let before = capture(&fs).expect("the state before");
        let fs = Arc::new(fs);
        let (writer, stores, taken_at) =
            (std::thread::current().id(), AtomicUsize::new(0), Arc::new(AtomicUsize::new(0)));
        let (others, control, noted) = (fs.clone(), simulation.clone(), taken_at.clone());
        simulation.set_hook(Some(Arc::new(move |event| {
            if std::thread::current().id() != writer {
                return;
            }
            let is_first = stores.fetch_add(1, Ordering::Relaxed) == 0;
            let meanwhile =
                |work: fn(&LogFs)| std::thread::scope(|scope| scope.spawn(|| work(&others)).join().expect("no panic"));
            if is_first {
                meanwhile(|fs| assert!(Rig::new(fs).unlink(fs.root(), "c").is_ok()));
            } else if control.stored_in(event..event + 1) == [last] {
                meanwhile(take_all);
                noted.store(control.mark(), Ordering::Relaxed);
            }
        })));
        fault.during(&simulation, || unshare(&fs));
        simulation.set_hook(None);
        let fs = Arc::into_inner(fs).expect("nobody else has it");
        let after = capture(&fs).expect("the state after");
        let taken_at = taken_at.load(Ordering::Relaxed);
        // Where the store that is waited for is left out itself, nobody comes.
        assert!(taken_at > 0 || matches!(fault, Fault::Seeded(_)), "{text}: it was not overtaken");
        if fault.looks() && taken_at > 0 {
            let mut unwritten: State = after.clone();
            unwritten.paths.insert("/o".into(), before.paths["/o"].clone());
            look(&simulation, taken_at..taken_at, (&unwritten, &after), Tear::Bytes("/o"), usize::MAX, &text);
            close(fs, &simulation, &text);
        }
    })
}

fn unshare(fs: &LogFs) {
    let node = at(&Rig::new(fs), "/o").expect("a file that shares its blocks");
    fs.allocate(node, AllocateMode::Unshare, 0, 9000).expect("copies");
}

/// A new file takes all blocks that are free.
fn take_all(fs: &LogFs) {
    let rig = Rig::new(fs);
    let node = rig.file(rig.root, "other");
    for block in 0..64 {
        if rig.try_write(node, WritePosition::At(block * 8192), &bytes(0x71, 4096)).is_err() {
            return;
        }
    }
}

/// A link is not born, for want of room for its name: the page that it would have begun with does not become that of the next inode of
/// its number.
pub(crate) fn unborn(text: String, volume: Rc<Volume>) -> Workload {
    Workload::new(Kind::Special, text.clone(), move |fault| {
        let (fs, simulation) = volume.open();
        let look = |node, what: &str| {
            if fault.looks() {
                crash_in_first_page(&fs, &simulation, node, &format!("{text}: {what}"));
            }
        };
        fail_to_be_born(&fs, |birth| fault.during(&simulation, birth), look);
        if fault.looks() {
            close(fs, &simulation, &text);
        }
    })
}
