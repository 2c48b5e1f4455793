//! What is certain and what is not after some events: the stores that a crash may or may not leave behind.

use std::collections::{BTreeMap, HashMap};
use std::panic::Location;

use super::record::{Event, Simulation};
use crate::medium::LINE_BYTES;
use crate::offset::MediumOffset;

const LINE_WORDS: u64 = LINE_BYTES / 8;

/// A store that is not certain to survive.
#[derive(Clone, Copy, Debug)]
pub(super) struct PendingStore {
    /// Index of its event.
    pub(super) event: usize,
    pub(super) word: u64,
    pub(super) new: u64,
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
    /// Per line the stores in order, never an empty list.
    pub(super) lines: BTreeMap<u64, Vec<PendingStore>>,
    /// Per thread the lines it flushed since its last fence, and the event that did.
    flushed: HashMap<u32, Vec<(u64, usize)>>,
}

impl Pending {
    /// Takes the event of that index into account. What becomes certain by it is handed to `settle`, in order.
    pub(super) fn apply(&mut self, index: usize, event: Event, mut settle: impl FnMut(PendingStore)) {
        match event {
            Event::Store { word, new, site, .. } => {
                let stores = self.lines.entry(word / LINE_WORDS).or_default();
                stores.push(PendingStore { event: index, word, new, site });
            }
            Event::Flush { thread, line } => {
                if self.lines.contains_key(&line) {
                    self.flushed.entry(thread).or_default().push((line, index));
                }
            }
            Event::Fence { thread, .. } => {
                for (line, flushed_at) in self.flushed.remove(&thread).unwrap_or_default() {
                    let Some(stores) = self.lines.get_mut(&line) else { continue };
                    let certain = stores.partition_point(|store| store.event < flushed_at);
                    stores.drain(..certain).for_each(&mut settle);
                    if stores.is_empty() {
                        self.lines.remove(&line);
                    }
                }
            }
        }
    }
}

impl Simulation {
    /// The lines that hold stores which a crash now could lose, in order. Empty after an operation that promises that
    /// everything it stored is durable.
    #[must_use]
    pub fn pending_lines(&self) -> Vec<PendingLine> {
        let mut pending = Pending::default();
        for (index, event) in self.recorder.events(0, self.events_len()).into_iter().enumerate() {
            pending.apply(index, event, |_| {});
        }
        let lines = pending.lines.into_iter();
        lines
            .map(|(line, stores)| PendingLine {
                at: MediumOffset(line * LINE_BYTES),
                stores: stores.len(),
                location: stores[0].site,
            })
            .collect()
    }
}
