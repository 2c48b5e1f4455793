//! Going through the images that a crash could leave.
//!
//! One scratch medium holds what is certain at the current crash point. For each image the chosen stores are applied to it,
//! the test recovers on it and uses it as it likes, and both are taken back store by store: an image costs what is changed
//! in it, not its size.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::panic::Location;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use super::build::simulated_from_image;
use super::choices::{CrashPolicy, Random, choose};
use super::pending::{Pending, PendingStore};
use super::record::{Event, Simulation};
use crate::medium::Medium;

/// Where going through the events stands; kept between calls, so that going on is cheap.
pub(super) struct Walker {
    /// Number of events taken into account.
    pub(super) position: usize,
    pub(super) pending: Pending,
    /// Holds what is certain, and no events.
    pub(super) scratch: Simulation,
}

/// How much was looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct CrashCount {
    /// Crash points.
    pub points: u64,
    /// Images.
    pub images: u64,
}

/// One image, on a medium of its own. Prints itself if the test panics while it looks at it.
pub struct Crash<'a> {
    at: usize,
    fence: Option<&'static Location<'static>>,
    units: &'a [Vec<PendingStore>],
    choice: &'a [usize],
    scratch: &'a Simulation,
}

impl Crash<'_> {
    /// Number of events that happened before the crash: compare it with marks.
    #[must_use]
    pub fn at(&self) -> usize {
        self.at
    }

    /// A medium that holds the image, durably. It may be stored to; all handles must be dropped before the next image.
    #[must_use]
    pub fn medium(&self) -> Medium {
        self.scratch.medium()
    }

    /// The control of that medium: to crash the recovery itself, or to seed faults in it.
    #[must_use]
    pub fn simulation(&self) -> &Simulation {
        self.scratch
    }

    /// A copy of the bytes as the crash left them, whatever was stored since.
    #[must_use]
    pub fn image_to_vec(&self) -> Vec<u8> {
        self.scratch.recorder.initial_image()
    }

    /// Number of uncertain word stores, and how many of them survived.
    #[must_use]
    pub fn survivors(&self) -> (usize, usize) {
        (self.units.iter().map(Vec::len).sum(), self.choice.iter().sum())
    }
}

impl fmt::Display for Crash<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "crash after event {}", self.at)?;
        if let Some(fence) = self.fence {
            write!(formatter, ", before the fence at {fence}")?;
        }
        for (stores, &count) in self.units.iter().zip(self.choice) {
            let unit_bytes = self.scratch.recorder.unit_bytes();
            let line = stores[0].word * 8 / unit_bytes * unit_bytes;
            write!(formatter, "\n  line {line:#x}: {count} of {} stores", stores.len())?;
            // The sites, each once, in order, with the words they stored.
            let mut last = None;
            for (index, store) in stores.iter().enumerate() {
                if last != Some(store.site) {
                    write!(formatter, "; {}", store.site)?;
                    last = Some(store.site);
                }
                let lost = if index < count { "" } else { " lost" };
                write!(formatter, " [+{:#x}{lost}]", store.word * 8 - line)?;
            }
        }
        Ok(())
    }
}

impl Drop for Crash<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{self}");
        }
    }
}

impl Simulation {
    /// Calls `look` with the images that a crash during a range of events could leave: before each fence in it (or before
    /// each event, see [`CrashPolicy::every_event`]) and at its end. Ascending ranges continue where the last one ended.
    ///
    /// # Panics
    /// If the range is not inside what was recorded, or a handle to an image's medium is kept.
    pub fn for_each_crash(
        &self,
        events: Range<usize>,
        policy: &CrashPolicy,
        mut look: impl FnMut(&Crash<'_>),
    ) -> CrashCount {
        let mut slot = self.walker.lock().unwrap_or_else(PoisonError::into_inner);
        // Taken out of its place, so that a panic in `look` leaves none that is half-way.
        let mut walker = match slot.take() {
            Some(walker) if walker.position <= events.start => walker,
            _ => {
                let scratch = simulated_from_image(&self.recorder.initial_image(), self.recorder.unit_bytes()).1;
                scratch.set_first_length(self.recorder.first_length());
                Walker { position: 0, pending: Pending::default(), scratch }
            }
        };
        let recorded = self.recorder.events(walker.position, events.end);
        let mut random = Random(policy.seed ^ events.start as u64);
        let mut count = CrashCount::default();
        let mut previous = None;
        for (event, index) in recorded.iter().map(Some).chain([None]).zip(walker.position..) {
            let fence = match event {
                Some(Event::Fence { site, .. } | Event::Sync { site }) => Some(*site),
                _ => None,
            };
            let last_stored = match previous {
                Some(&Event::Store { word, .. }) => Some(word),
                _ => None,
            };
            // Before any other event, only images that include the store just made are new.
            let boundary = index == events.start || event.is_none();
            if index >= events.start && (boundary || fence.is_some() || policy.every_event && last_stored.is_some()) {
                let last_stored = if policy.every_event && !boundary { last_stored } else { None };
                if !(policy.every_event && !boundary && last_stored.is_none()) {
                    count.points += 1;
                    count.images += walker.point(index, fence, last_stored, policy, &mut random, &mut look);
                }
            }
            if let Some(&event) = event {
                let recorder = &walker.scratch.recorder;
                walker.pending.apply(index, event, recorder.unit_bytes(), |store| {
                    recorder.word(store.word).store(store.new, Ordering::Relaxed);
                });
                walker.position = index + 1;
            }
            previous = event;
        }
        *slot = Some(walker);
        count
    }
}

impl Walker {
    /// Looks at the images of one crash point, and says how many.
    fn point(
        &self,
        at: usize,
        fence: Option<&'static Location<'static>>,
        last_stored: Option<u64>,
        policy: &CrashPolicy,
        random: &mut Random,
        look: &mut impl FnMut(&Crash<'_>),
    ) -> u64 {
        let units: Vec<Vec<PendingStore>> = if policy.words_in_any_order {
            let mut words: BTreeMap<u64, Vec<PendingStore>> = BTreeMap::new();
            for &store in self.pending.units.values().flatten() {
                words.entry(store.word).or_default().push(store);
            }
            words.into_values().collect()
        } else {
            self.pending.units.values().cloned().collect()
        };
        let last_complete = last_stored.and_then(|word| {
            units.iter().position(|unit| unit.last().is_some_and(|store| store.event + 1 == at && store.word == word))
        });
        let events: Vec<Vec<usize>> = units.iter().map(|unit| unit.iter().map(|store| store.event).collect()).collect();
        let mut images = 0;
        choose(&events, last_complete, policy, random, |choice| {
            images += 1;
            self.image(&Crash { at, fence, units: &units, choice, scratch: &self.scratch }, look);
        });
        images
    }

    /// Makes one image, has it looked at, and takes it back.
    fn image(&self, crash: &Crash<'_>, look: &mut impl FnMut(&Crash<'_>)) {
        let recorder = &self.scratch.recorder;
        let mut replaced = Vec::new();
        for (stores, &count) in crash.units.iter().zip(crash.choice) {
            for store in &stores[..count] {
                replaced.push((store.word, recorder.word(store.word).swap(store.new, Ordering::Relaxed)));
            }
        }
        look(crash);
        let handles = Arc::strong_count(&self.scratch.medium().backing) - 1;
        assert!(handles == 1, "{} handles to the medium of a crash image are still in use", handles - 1);
        *self.scratch.walker.lock().unwrap_or_else(PoisonError::into_inner) = None;
        recorder.undo_all(|_, _| {});
        for (word, old) in replaced.into_iter().rev() {
            recorder.word(word).store(old, Ordering::Relaxed);
        }
    }
}
