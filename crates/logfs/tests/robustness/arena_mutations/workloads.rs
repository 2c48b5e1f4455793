//! What is done while a line is left out.

use super::fault::Fault;
use super::looks::{Open, Space, look};
use crate::abandonment::{Start, long_collections, steps_that_collect};
use crate::handover;
use crate::mutations::{self, End, Kind, Volume, end_at, ends_of};
use crate::operations::{Operation, all, at, bytes, operation, populate};
use crate::state::{State, Tear, capture};
use crate::volume::{MODES, Mode, assert_sound, attach, image, options, simulated};
use gannet_fstest::Rig;
use gannet_logfs::LogFs;
use gannet_vfs::{AllocateMode, FileSystem};
use std::cell::OnceCell;
use std::mem::ManuallyDrop;
use std::rc::Rc;
use std::time::Duration;

type Run = Box<dyn Fn(&Fault)>;

/// Something that is done with a fault in a part of it.
pub(crate) struct Workload {
    pub(crate) text: String,
    pub(crate) kind: &'static str,
    /// It looks at crashes.
    pub(crate) crashes: bool,
    pub(super) run: Run,
}

impl Workload {
    pub(super) fn new(kind: &'static str, text: &str, run: impl Fn(&Fault) + 'static) -> Self {
        Self { text: format!("{kind}: {text}"), kind, crashes: false, run: Box::new(run) }
    }

    /// Does it; panics if it notices something.
    pub(crate) fn run(&self, fault: &Fault) {
        (self.run)(fault);
    }
}

fn after(open: (LogFs, gannet_media::Simulation), operation: &Operation) -> State {
    let _ = operation.apply(&open.0);
    capture(&open.0).expect("the state after").without_times()
}

/// A thread ends in an operation. The fault is where another settles that, or where what was settled is loaded.
fn takeover(kind: &'static str, volume: Rc<Volume>, operation: Operation) -> Workload {
    let known: OnceCell<(Vec<End>, State)> = OnceCell::new();
    Workload::new(kind, &operation.text.clone(), move |fault| {
        let (ends, after) = known.get_or_init(|| (ends_of(&volume, &operation), after(volume.open(), &operation)));
        for (number, &end) in ends.iter().enumerate() {
            let open = Open::new(volume.open());
            let before = open.state();
            end_at(&open.fs, &open.simulation, &operation, end);
            let session = open.fs.session().clone();
            let reap = || session.reap_dead().expect("settling");
            let found = match kind {
                SETTLING => {
                    fault.during(reap);
                    open.state()
                }
                _ => {
                    reap();
                    fault.during(|| open.state())
                }
            };
            let text = format!("{}, {end:?}", operation.text);
            assert_eq!(found.may_follow(&before, after, operation.tear), Ok(()), "{text}");
            look(open, Space::Uncertain { recounts: number % 2 == 0 }, &text);
        }
    })
}

const SETTLING: &str = "settling";
const LOADING_SETTLED: &str = "loading what was settled";

/// The indexes of all inodes were dropped since an operation. The fault is where they are loaded.
fn rebuild(start: Rc<Start>, operation: Operation) -> Workload {
    let known: OnceCell<State> = OnceCell::new();
    Workload::new("loading", &operation.text.clone(), move |fault| {
        let after = known.get_or_init(|| after(start.open(), &operation));
        let open = Open::new(start.open());
        let _ = operation.apply(&*open.fs);
        let rig = Rig::new(&*open.fs);
        let crowd = rig.find(rig.root, "crowd").expect("the crowd");
        (0..64).for_each(|number| drop(rig.content(rig.find(crowd, &format!("{number}")).expect("one of the crowd"))));
        let found = fault.during(|| open.state());
        assert_eq!(found.equals(after), Ok(()), "{}", operation.text);
        look(open, Space::Counts, &operation.text);
    })
}

/// An operation after all was loaded; its crashes. The fault is where it was loaded.
fn loading_and_crashes(volume: Rc<Volume>, operation: Operation) -> Workload {
    let text = operation.text.clone();
    let run = move |fault: &Fault| {
        let open = Open::new(volume.open());
        let before = fault.during(|| capture(&*open.fs)).expect("the state before");
        let mark = open.simulation.mark();
        let _ = operation.apply(&*open.fs);
        let end = open.simulation.mark();
        let after = capture(&*open.fs).expect("the state after");
        if matches!(fault, Fault::LeftOut(_)) {
            mutations::look(&open.simulation, mark..end, (&before, &after), operation.tear, end, &operation.text);
        }
        look(open, Space::Counts, &operation.text);
    };
    Workload { crashes: true, ..Workload::new("loading, and crashes", &text, run) }
}

/// Shifts a file and writes to it.
pub(super) fn shift(fs: &dyn FileSystem, rounds: std::ops::Range<u32>) {
    let rig = Rig::new(fs);
    let file = at(&rig, "/a").expect("the file");
    for round in rounds {
        let place = u64::from(round % 5) * 4096;
        match round % 3 {
            0 => fs.allocate(file, AllocateMode::Insert, place.min(8192), 4096).expect("insert"),
            1 => rig.write(file, place, &bytes(round as u8, 4096)),
            _ => fs.allocate(file, AllocateMode::Collapse, 4096, 4096).expect("collapse"),
        }
    }
}

/// A file that is shifted and written to, so that its log is collected, and that is loaded anew in the middle of it. The fault is there.
fn loading_shifted(mode: Mode, rounds: u32) -> Workload {
    let fill = |fs: &LogFs| {
        populate(fs);
        shift(fs, 0..rounds);
    };
    let volume = Volume::new(image(mode, fill));
    Workload::new("loading shifted", &format!("{mode:?}, {rounds} shifts before"), move |fault| {
        let open = Open::new(volume.open());
        let _ = fault.during(|| open.state());
        for step in 0..10 {
            shift(&*open.fs, rounds + step * 30..rounds + step * 30 + 30);
            drop(assert_sound(&open.simulation.medium(), false, "shifted"));
        }
        look(open, Space::Counts, "shifted");
    })
}

/// A volume is opened that was closed, or was not. The fault is there, and where it is looked at for the first time.
fn opening(volume: Rc<Volume>, operation: Operation, is_closed: bool) -> Workload {
    let known: OnceCell<(Vec<u8>, State)> = OnceCell::new();
    let kind = if is_closed { "opening" } else { "recovery" };
    Workload::new(kind, &operation.text.clone(), move |fault| {
        let (image, state) = known.get_or_init(|| {
            let (fs, simulation) = volume.open();
            let _ = operation.apply(&fs);
            let state = capture(&fs).expect("the state").without_times();
            let bytes = |simulation: &gannet_media::Simulation| {
                let mut bytes = vec![0; volume.image.len()];
                simulation.medium().read(gannet_media::MediumOffset(0), &mut bytes).expect("read");
                bytes
            };
            let killed = bytes(&simulation);
            assert!(fs.detach().expect("detach"));
            drop(fs);
            (if is_closed { bytes(&simulation) } else { killed }, state)
        });
        let (medium, simulation) = simulated(image);
        let (open, found) = fault.during(|| {
            let open = Open::new((attach(&medium).expect("attach"), simulation));
            let found = open.state();
            (open, found)
        });
        assert_eq!(open.fs.recovery().is_none(), is_closed);
        assert_eq!(found.equals(state), Ok(()), "{}", operation.text);
        look(open, Space::Counts, &operation.text);
    })
}

/// An operation, and what is given up by it, and by others, comes back. The fault is in all of it.
fn giving_up(volume: Rc<Volume>, operation: Operation) -> Workload {
    let known: OnceCell<State> = OnceCell::new();
    Workload::new("giving up", &operation.text.clone(), move |fault| {
        let after = known.get_or_init(|| after(volume.open(), &operation));
        let open = Open::new(volume.open());
        // Another thread, that has ended and one that stands still, gave something up before.
        let rig = Rig::new(&*open.fs);
        let total = open.fs.statistics().expect("statistics");
        let give_up = |name: &str| {
            let rig = Rig::new(&*open.fs);
            rig.write(rig.file(rig.root, name), 0, &[1; 9000]);
            rig.unlink(rig.root, name).expect("unlink");
        };
        let (ready, done) = (std::sync::Barrier::new(2), std::sync::Barrier::new(2));
        std::thread::scope(|scope| {
            // Those who wait are let go whatever is noticed.
            struct LetGo<'b>(&'b std::sync::Barrier);
            impl Drop for LetGo<'_> {
                fn drop(&mut self) {
                    self.0.wait();
                }
            }
            scope.spawn(|| {
                give_up("others");
                ready.wait();
                done.wait();
            });
            ready.wait();
            let _let_go = LetGo(&done);
            fault.during(|| {
                give_up("own");
                assert_eq!(open.fs.statistics().expect("statistics"), total);
                for number in 0..6 {
                    rig.write(rig.file(rig.root, &format!("small{number}")), 0, &[4; 8192]);
                }
                let file = rig.file(rig.root, "all");
                let position = gannet_vfs::WritePosition::Append;
                while rig.try_write(file, position, &[2; 4096]).is_ok() {}
                // What others gave up can be had.
                let left = open.fs.statistics().expect("statistics").blocks_free;
                assert!(left < 40, "{left} blocks cannot be had");
                // What was freed once, and is others' now, is not freed again with the next.
                for number in 0..6 {
                    let name = format!("small{number}");
                    let small = rig.find(rig.root, &name).expect("a small file");
                    rig.resize(small, 0).expect("resize");
                    // The next one has what this one had.
                    let next = rig.find(rig.root, &format!("small{}", (number + 1) % 6)).expect("a small file");
                    let _ = rig.try_write(next, gannet_vfs::WritePosition::Append, &[3; 8192]);
                }
                drop(assert_sound(&open.simulation.medium(), false, "on a full volume"));
                for number in 0..6 {
                    rig.unlink(rig.root, &format!("small{number}")).expect("unlink");
                }
                rig.unlink(rig.root, "all").expect("unlink");
                let _ = operation.apply(&*open.fs);
            });
        });
        // What came before decides which numbers inodes have.
        assert!(open.state().paths.keys().eq(after.paths.keys()), "{}", operation.text);
        fault.during(|| give_up("again"));
        look(open, Space::Counts, &operation.text);
    })
}

/// A step that collects. The fault is in it, and in some behind it.
fn collecting(start: Start, operation: Operation) -> Workload {
    let known: OnceCell<State> = OnceCell::new();
    Workload::new("collecting", &operation.text.clone(), move |fault| {
        let after = known.get_or_init(|| after(start.open(), &operation));
        let open = Open::new(start.open());
        fault.during(|| operation.apply(&*open.fs)).expect("the step");
        assert_eq!(open.state().equals(after), Ok(()), "{}", operation.text);
        look(open, Space::Counts, &operation.text);
    })
}

/// All users of a volume were killed, and the next one adopts their arena, twice. The fault is there.
fn adopting(role: &'static str) -> Workload {
    Workload::new("adopting", role, move |fault| {
        let volume = handover::Volume::new(&format!("words-{role}"));
        let mut known = None;
        for round in 0..3 {
            volume.kill_one(role, Duration::ZERO);
            let fs = ManuallyDrop::new(fault.during(|| volume.open()));
            assert!(fs.recovery().is_none(), "{role}, round {round}: recovered");
            let state = capture(&*fs).expect("the state").without_times();
            let statistics = fs.statistics().expect("statistics");
            if role == "orphan" || role == "unnamed" {
                let (state_before, free) = known.get_or_insert((state.clone(), statistics.blocks_free));
                assert_eq!(state.equals(state_before), Ok(()));
                assert_eq!(statistics.blocks_free, *free, "{role}, round {round}");
            }
            // Once closed, and once killed.
            if round == 1 {
                assert!(fs.detach().expect("detach"));
                volume.assert_closed(role);
            }
            drop(ManuallyDrop::into_inner(fs));
        }
    })
}

/// Some only read, and another joins them to write. The fault is where the volume is opened for reading.
fn joining_readers() -> Workload {
    Workload::new("joining", "a writer joins readers", |fault| {
        let volume = handover::Volume::new("words-readers");
        let open = || LogFs::open(&volume.0, true, options()).expect("open the volume");
        let reader = ManuallyDrop::new(fault.during(open));
        volume.kill_one("idle", Duration::ZERO);
        reader.session().reap_dead().expect("reaping");
        drop(ManuallyDrop::into_inner(reader));
        let fs = volume.open();
        assert!(fs.detach().expect("detach"));
        volume.assert_closed("after readers and a writer");
    })
}

/// Another's workload, which looks at crashes.
fn with_crashes(kind: &'static str, inner: mutations::Workload) -> Workload {
    let text = inner.text.clone();
    let known: OnceCell<bool> = OnceCell::new();
    let run = move |fault: &Fault| {
        let words = mutations::Fault::Words(fault.clone());
        let passes = || *known.get_or_init(|| !mutations::panics_quietly(|| inner.run(&mutations::Fault::None)));
        match fault {
            Fault::Collect(_) => inner.run(&words),
            // One that fails without a fault proves nothing.
            Fault::LeftOut(_) => assert!(!passes() || !inner.notices(&words), "noticed"),
        }
    };
    Workload { crashes: true, ..Workload::new(kind, &text, run) }
}

/// All of them, or some.
pub(crate) fn workloads(few: bool) -> Vec<Workload> {
    let mut list = Vec::new();
    let populated = |mode: Mode| Volume::new(image(mode, |fs| populate(fs)));
    for mode in MODES {
        let (volume, every) = (populated(mode), if few { 24 } else { 4 });
        let some = |first: usize| all(mode).into_iter().skip(first).step_by(every);
        list.extend(some(0).map(|operation| takeover(SETTLING, volume.clone(), operation)));
        list.extend(some(1).map(|operation| takeover(LOADING_SETTLED, volume.clone(), operation)));
        let crowded = Rc::new(Start::new(mode, true));
        list.extend(some(2).map(|operation| rebuild(crowded.clone(), operation)));
        for is_closed in [false, true] {
            let some = some(3).step_by(3);
            list.extend(some.map(|operation| opening(volume.clone(), operation, is_closed)));
        }
        let whole = some(1).filter(|operation| operation.tear == Tear::Whole);
        list.extend(whole.map(|operation| giving_up(volume.clone(), operation)));
        list.extend(steps_that_collect(mode).into_iter().map(|(start, operation)| collecting(start, operation)));
        let shifts = operation("a shifted file is collected".into(), Tear::Whole, |rig| {
            shift(rig.fs, 0..400);
            Ok(())
        });
        for operation in long_collections().into_iter().chain([shifts]) {
            list.push(collecting(Start { image: volume.image.clone(), crowded: false }, operation));
        }
    }
    list.extend(["idle", "orphan", "unnamed"].map(adopting));
    list.push(joining_readers());
    list.extend([100, 150].map(|rounds| loading_shifted(Mode::InPlace, rounds)));
    list.extend(super::special::workloads(few));
    if few {
        return list;
    }
    for mode in MODES {
        let volume = populated(mode);
        list.extend([110, 120, 131, 142, 163, 174, 200, 230].map(|rounds| loading_shifted(mode, rounds)));
        let some = all(mode).into_iter().step_by(2);
        list.extend(some.map(|operation| loading_and_crashes(volume.clone(), operation)));
    }
    for inner in mutations::workloads(false) {
        let kind = match inner.kind {
            Kind::Reuse => "reuse",
            Kind::Takeover => "takeover",
            _ => continue,
        };
        list.push(with_crashes(kind, inner));
    }
    list
}
