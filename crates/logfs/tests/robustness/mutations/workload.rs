//! What a workload is, and the volumes that they begin with.

use super::fault::Fault;
use crate::volume::{attach, simulated};
use gannet_fstest::Rig;
use gannet_logfs::LogFs;
use gannet_media::{Medium, MediumOffset, Simulation};
use gannet_vfs::{AllocateMode, FileSystem};
use std::cell::Cell;
use std::rc::Rc;
use std::sync::{Once, OnceLock};

type Run = Box<dyn Fn(&Fault)>;

/// A volume to begin with, on a medium that is made once.
pub(crate) struct Volume {
    pub(crate) image: Vec<u8>,
    media: OnceLock<(Medium, Simulation)>,
}

impl Volume {
    pub(crate) fn new(image: Vec<u8>) -> Rc<Self> {
        Rc::new(Self { image, media: OnceLock::new() })
    }

    /// The medium as it was. What else uses it must be gone.
    pub(crate) fn simulated(&self) -> (Medium, Simulation) {
        let (medium, simulation) = self.media.get_or_init(|| simulated(&self.image));
        simulation.start_again();
        (medium.clone(), simulation.clone())
    }

    /// The same with little room.
    pub(crate) fn crowded(&self) -> Rc<Self> {
        let (fs, simulation) = self.open();
        crowd(&fs);
        assert!(fs.detach().expect("detach"));
        drop(fs);
        Self::new(bytes_of(&simulation.medium(), self.image.len()))
    }

    /// It, open.
    pub(crate) fn open(&self) -> (LogFs, Simulation) {
        let (medium, simulation) = self.simulated();
        (attach(&medium).expect("attach"), simulation)
    }
}

/// What is on a medium.
pub(crate) fn bytes_of(medium: &Medium, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    medium.read(MediumOffset(0), &mut bytes).expect("read");
    bytes
}

/// Few free blocks are left, which makes those that are given up the next that are taken.
fn crowd(fs: &LogFs) {
    let rig = Rig::new(fs);
    let ballast = rig.file(rig.root, "ballast");
    let mut step = 1_u64 << 19;
    let mut taken = 0;
    while step >= 4096 {
        match fs.allocate(ballast, AllocateMode::KeepSize, taken, step) {
            Ok(()) => taken += step,
            Err(_) => step /= 2,
        }
    }
    // A little room.
    let _ = fs.allocate(ballast, AllocateMode::PunchHole, taken - (4 << 12), 4 << 12);
}

/// What a workload is about.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Kind {
    Operation,
    Special,
    Reuse,
    Recovery,
    Takeover,
    Churn,
}

impl Kind {
    /// Out of how many of them a place is left: many differ little.
    pub(crate) const fn tries_max(self) -> usize {
        match self {
            Self::Operation => 20,
            Self::Reuse => 8,
            Self::Recovery => 10,
            Self::Takeover => 12,
            Self::Special | Self::Churn => usize::MAX,
        }
    }
}

/// Something that is done with a fault.
pub(crate) struct Workload {
    pub(crate) text: String,
    pub(crate) kind: Kind,
    run: Run,
    /// Whether it is known to pass without a fault.
    passes: Cell<bool>,
}

impl Workload {
    pub(crate) fn new(kind: Kind, text: String, run: impl Fn(&Fault) + 'static) -> Self {
        Self { text, kind, run: Box::new(run), passes: Cell::new(false) }
    }

    /// Does it; panics if it notices something.
    pub(crate) fn run(&self, fault: &Fault) {
        (self.run)(fault);
    }

    /// Whether it notices a fault; panics if it notices without one.
    pub(crate) fn notices(&self, fault: &Fault) -> bool {
        if !self.passes.get() {
            self.run(&Fault::None);
            self.passes.set(true);
        }
        panics_quietly(|| self.run(fault))
    }
}

thread_local! {
    static QUIET: Cell<bool> = const { Cell::new(false) };
}

/// Whether something panics, without a word about it: where the environment asks for them, backtraces take longer than all else.
pub(crate) fn panics_quietly(run: impl FnOnce()) -> bool {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let other = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |what| {
            if !QUIET.get() {
                other(what);
            }
        }));
    });
    QUIET.set(true);
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run));
    QUIET.set(false);
    outcome.is_err()
}
