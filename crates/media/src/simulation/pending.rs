//! What is certain and what is not after some events: the stores that a crash may or may not leave behind.

use std::collections::{BTreeMap, HashMap};
use std::panic::Location;
use std::sync::PoisonError;

use super::record::{Event, Simulation};
use crate::offset::MediumOffset;

/// A store that is not certain to survive.
#[derive(Clone, Copy, Debug)]
pub(super) struct PendingStore {
    /// Index of its event.
    pub(super) event: usize,
    pub(super) word: u64,
    pub(super) new: u64,
    pub(super) streams: bool,
    pub(super) site: &'static Location<'static>,
}

/// A line that holds stores which are not durable.
#[derive(Clone, Copy, Debug)]
pub struct PendingLine {
    /// Where the line starts.
    pub at: MediumOffset,
    /// Number of word stores that may be lost.
    pub stores: usize,
    /// Where in the program the first of them was made.
    pub location: &'static Location<'static>,
}

/// The state after some events.
#[derive(Debug, Default)]
pub(super) struct Pending {
    /// Per unit (line or page) the stores in order, never an empty list.
    pub(super) units: BTreeMap<u64, Vec<PendingStore>>,
    /// Per thread the units it flushed since its last fence, and the event that did.
    flushed: HashMap<u32, Vec<(u64, usize)>>,
}

impl Pending {
    /// Takes the event of that index into account. What becomes certain by it is handed to `settle`, in order.
    pub(super) fn apply(&mut self, index: usize, event: Event, unit_bytes: u64, mut settle: impl FnMut(PendingStore)) {
        match event {
            Event::Store { word, new, streams, site, .. } => {
                let stores = self.units.entry(word * 8 / unit_bytes).or_default();
                stores.push(PendingStore { event: index, word, new, streams, site });
            }
            Event::Flush { thread, unit } => {
                if self.units.contains_key(&unit) {
                    self.flushed.entry(thread).or_default().push((unit, index));
                }
            }
            Event::Sync { .. } => {
                self.flushed.clear();
                std::mem::take(&mut self.units).into_values().flatten().for_each(settle);
            }
            Event::Fence { thread, .. } => {
                for (unit, flushed_at) in self.flushed.remove(&thread).unwrap_or_default() {
                    let Some(stores) = self.units.get_mut(&unit) else { continue };
                    let certain = stores.partition_point(|store| store.event < flushed_at);
                    stores.drain(..certain).for_each(&mut settle);
                    if stores.is_empty() {
                        self.units.remove(&unit);
                    }
                }
            }
        }
    }
}

/// A line that was stored to both past the cache and through it under one fence: right, but slow.
#[derive(Clone, Copy, Debug)]
pub struct MixedLine {
    /// Where the line starts.
    pub at: MediumOffset,
    /// Where in the program the earlier store was made.
    pub first: &'static Location<'static>,
    /// And the later one, of the other kind.
    pub second: &'static Location<'static>,
}

impl Simulation {
    /// The lines (or pages) that hold stores which a crash now could lose, in order. Empty after an operation that promises
    /// that everything it stored is durable.
    #[must_use]
    pub fn pending_lines(&self) -> Vec<PendingLine> {
        let unit_bytes = self.recorder.unit_bytes();
        let mut tracked = self.tracked.lock().unwrap_or_else(PoisonError::into_inner);
        let (position, pending) = &mut *tracked;
        for event in self.recorder.events(*position, self.events_len()) {
            pending.apply(*position, event, unit_bytes, |_| {});
            *position += 1;
        }
        let describe = |(&unit, stores): (&u64, &Vec<PendingStore>)| PendingLine {
            at: MediumOffset(unit * unit_bytes),
            stores: stores.len(),
            location: stores[0].site,
        };
        pending.units.iter().map(describe).collect()
    }

    /// The lines that were stored to in both ways before they were durable, since the last checkpoint.
    #[must_use]
    pub fn mixed_lines(&self) -> Vec<MixedLine> {
        let unit_bytes = self.recorder.unit_bytes();
        let mut pending = Pending::default();
        let mut mixed = Vec::new();
        for (index, event) in self.recorder.events(0, self.events_len()).into_iter().enumerate() {
            if let Event::Store { word, streams, site, .. } = event
                && let Some(last) = pending.units.get(&(word * 8 / unit_bytes)).and_then(|stores| stores.last())
                && last.streams != streams
            {
                let at = MediumOffset(word * 8 / unit_bytes * unit_bytes);
                mixed.push(MixedLine { at, first: last.site, second: site });
            }
            pending.apply(index, event, unit_bytes, |_| {});
        }
        mixed
    }
}
