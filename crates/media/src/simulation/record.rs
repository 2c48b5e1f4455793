//! The recorder behind a simulated medium: applies each store, notes it with the line of code it came from, and leaves out
//! what a mutation test asks it to.

use std::collections::BTreeMap;
use std::fmt;
use std::panic::Location;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::abandon::{after_store, is_abandoned, thread_number};
use super::crash::Walker;
use super::pending::Pending;
use crate::medium::{LINE_BYTES, Medium};
use crate::offset::MediumOffset;

/// One thing that happened to the medium.
#[derive(Clone, Copy, Debug)]
pub(super) enum Event {
    /// A word (numbered from the start of the medium) was stored.
    Store { word: u64, old: u64, new: u64, streams: bool, site: &'static Location<'static> },
    /// What a unit (a line, or a page of the page cache) holds now is durable at this thread's next fence.
    Flush { thread: u32, unit: u64 },
    /// A fence.
    Fence { thread: u32, site: &'static Location<'static> },
    /// Everything is durable now: a sync of the page cache.
    Sync { site: &'static Location<'static> },
}

/// What a place in the program does to the medium.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SiteKind {
    /// Stores.
    Store,
    /// Writes back, also as a part of storing.
    Flush,
    /// Fences; syncs, in the page cache.
    Fence,
}

/// A place in the program (the caller of a method of [`Medium`]; `#[track_caller]` passes it on) and what it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Site {
    /// What it does.
    pub kind: SiteKind,
    /// Where it stands.
    pub location: Location<'static>,
}

impl fmt::Display for Site {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:?} at {}", self.kind, self.location)
    }
}

/// What to leave out: a seeded fault. A store left out has no effect at all; a flush left out leaves the line in the
/// cache until it is flushed again; a fence left out leaves what was flushed waiting for the thread's next one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Skip {
    /// Everything of this kind from this place.
    Site(Site),
    /// The n-th call of this kind (from zero), wherever it comes from, counted from now.
    Nth(SiteKind, u64),
}

type Hook = Arc<dyn Fn(usize) + Send + Sync>;

#[derive(Default)]
struct State {
    events: Vec<Event>,
    skip: Option<Skip>,
    /// Calls of the kind in `Skip::Nth` so far.
    skip_seen: u64,
    /// How often something was left out.
    skipped: u64,
    sites: BTreeMap<Site, u64>,
    sites_wanted: bool,
    hook: Option<Hook>,
}

/// Applies and records.
pub(crate) struct Recorder {
    base: NonNull<u8>,
    length: u64,
    /// What is written back as a whole: a line, or a page if a page cache is simulated.
    unit_bytes: u64,
    /// Bytes of the first medium, if this one stands for several.
    first_length: AtomicU64,
    state: Mutex<State>,
}

// SAFETY: the memory is accessed atomically, and lives as long as the medium that the simulation keeps.
unsafe impl Send for Recorder {}
// SAFETY: as above.
unsafe impl Sync for Recorder {}

impl fmt::Debug for Recorder {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Recorder").field("length", &self.length).finish_non_exhaustive()
    }
}

impl State {
    /// Notes a call, and says whether to leave it out.
    fn skips(&mut self, kind: SiteKind, location: &'static Location<'static>) -> bool {
        if self.sites_wanted {
            *self.sites.entry(Site { kind, location: *location }).or_default() += 1;
        }
        let skips = match self.skip {
            None => false,
            Some(Skip::Site(site)) => site.kind == kind && site.location == *location,
            Some(Skip::Nth(wanted, nth)) if wanted == kind => {
                self.skip_seen += 1;
                self.skip_seen == nth + 1
            }
            Some(Skip::Nth(..)) => false,
        };
        self.skipped += u64::from(skips);
        skips
    }
}

impl Recorder {
    /// A recorder for the memory at `base`, a multiple of eight bytes, which must outlive it.
    pub(super) fn new(base: NonNull<u8>, length: u64, unit_bytes: u64) -> Recorder {
        Recorder { base, length, unit_bytes, first_length: AtomicU64::new(length), state: Mutex::default() }
    }

    /// Bytes of what is written back as a whole.
    pub(super) fn unit_bytes(&self) -> u64 {
        self.unit_bytes
    }

    /// Bytes of the first medium that this one stands for, or of all of it.
    pub(crate) fn first_length(&self) -> u64 {
        self.first_length.load(Ordering::Relaxed)
    }

    /// Whether this is a page cache, for which only a sync counts.
    pub(super) fn is_page_cache(&self) -> bool {
        self.unit_bytes != LINE_BYTES
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A word of the memory, past the recording.
    pub(super) fn word(&self, word: u64) -> &AtomicU64 {
        assert!(word < self.length / 8, "word {word} of a simulated medium");
        // SAFETY: inside the memory, which is page-aligned and accessed atomically.
        unsafe { AtomicU64::from_ptr(self.base.as_ptr().add(word as usize * 8).cast()) }
    }

    /// Stores `bytes`, past the cache if `streams`.
    pub(crate) fn store(&self, at: u64, bytes: &[u8], streams: bool, site: &'static Location<'static>) {
        if is_abandoned() || self.state().skips(SiteKind::Store, site) {
            return;
        }
        let mut done = 0;
        while done < bytes.len() {
            let place = at + done as u64;
            let offset = (place % 8) as usize;
            let step = (8 - offset).min(bytes.len() - done);
            self.store_part_of_word(place / 8, offset, &bytes[done..done + step], streams, site);
            done += step;
        }
        if streams {
            self.flush(at, bytes.len() as u64, site);
        }
    }

    fn store_part_of_word(
        &self,
        number: u64,
        offset: usize,
        bytes: &[u8],
        streams: bool,
        site: &'static Location<'static>,
    ) {
        let mut state = self.state();
        let word = self.word(number);
        let old = word.load(Ordering::Acquire);
        let mut new = old.to_le_bytes();
        new[offset..offset + bytes.len()].copy_from_slice(bytes);
        let new = u64::from_le_bytes(new);
        word.store(new, Ordering::Release);
        state.events.push(Event::Store { word: number, old, new, streams, site });
        let (hook, index) = (state.hook.clone(), state.events.len() - 1);
        drop(state);
        if let Some(hook) = hook {
            hook(index);
        }
        after_store();
    }

    /// Writes the lines of a range back.
    pub(crate) fn flush(&self, at: u64, length: u64, site: &'static Location<'static>) {
        if length == 0 || is_abandoned() || self.is_page_cache() {
            return;
        }
        let mut state = self.state();
        if !state.skips(SiteKind::Flush, site) {
            self.push_flushes(&mut state, at, length);
        }
    }

    fn push_flushes(&self, state: &mut State, at: u64, length: u64) {
        let thread = thread_number();
        let units = at / self.unit_bytes..=(at + length - 1) / self.unit_bytes;
        state.events.extend(units.map(|unit| Event::Flush { thread, unit }));
    }

    /// Fences.
    pub(crate) fn fence(&self, site: &'static Location<'static>) {
        if is_abandoned() || self.is_page_cache() {
            return;
        }
        let mut state = self.state();
        if !state.skips(SiteKind::Fence, site) {
            state.events.push(Event::Fence { thread: thread_number(), site });
        }
    }

    /// Syncs the page cache, or a range of it that is not empty. Simulated memory has nothing to sync.
    pub(crate) fn sync(&self, range: Option<(u64, u64)>, site: &'static Location<'static>) {
        if is_abandoned() || !self.is_page_cache() {
            return;
        }
        let mut state = self.state();
        if state.skips(SiteKind::Fence, site) {
            return;
        }
        match range {
            None => state.events.push(Event::Sync { site }),
            Some((at, length)) => {
                self.push_flushes(&mut state, at, length);
                state.events.push(Event::Fence { thread: thread_number(), site });
            }
        }
    }

    /// The events from `start` up to `end`.
    pub(super) fn events(&self, start: usize, end: usize) -> Vec<Event> {
        self.state().events[start..end].to_vec()
    }

    /// Takes all recorded stores back, the last one first, and forgets them; `also` is told what each word held before.
    pub(super) fn undo_all(&self, mut also: impl FnMut(u64, u64)) {
        let mut state = self.state();
        for event in state.events.drain(..).rev() {
            if let Event::Store { word, old, .. } = event {
                self.word(word).store(old, Ordering::Relaxed);
                also(word, old);
            }
        }
        state.hook = None;
        state.skip = None;
    }

    /// The bytes as they were before the first event.
    pub(super) fn initial_image(&self) -> Vec<u8> {
        let state = self.state();
        let mut image: Vec<u8> =
            (0..self.length / 8).flat_map(|word| self.word(word).load(Ordering::Relaxed).to_le_bytes()).collect();
        for event in state.events.iter().rev() {
            if let Event::Store { word, old, .. } = *event {
                image[word as usize * 8..word as usize * 8 + 8].copy_from_slice(&old.to_le_bytes());
            }
        }
        image
    }
}

/// Control of a simulated medium: what was recorded, and what to leave out. Clones control the same medium.
#[derive(Clone)]
pub struct Simulation {
    pub(super) medium: Medium,
    pub(super) recorder: Arc<Recorder>,
    pub(super) walker: Arc<Mutex<Option<Walker>>>,
    /// What is pending after so many events: kept between calls of `pending_lines`.
    pub(super) tracked: Arc<Mutex<(usize, Pending)>>,
}

impl fmt::Debug for Simulation {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Simulation").field("events", &self.events_len()).finish_non_exhaustive()
    }
}

impl Simulation {
    /// From now on the medium, and those of its crash images, stand for several, of which the first has so many bytes.
    pub fn set_first_length(&self, bytes: u64) {
        self.recorder.first_length.store(bytes, Ordering::Relaxed);
    }

    /// The medium.
    #[must_use]
    pub fn medium(&self) -> Medium {
        self.medium.clone()
    }

    /// Number of events recorded: the index that the next one will have.
    #[must_use]
    pub fn events_len(&self) -> usize {
        self.recorder.state().events.len()
    }

    /// A mark between what has happened and what will: an index of an event, to be used as one end of a range.
    #[must_use]
    pub fn mark(&self) -> usize {
        self.events_len()
    }

    /// Number of word stores in a range of events.
    #[must_use]
    pub fn stores_in(&self, events: std::ops::Range<usize>) -> usize {
        self.recorder.state().events[events].iter().filter(|event| matches!(event, Event::Store { .. })).count()
    }

    /// Where the stores of words in a range of events went, in order.
    #[must_use]
    pub fn stored_in(&self, events: std::ops::Range<usize>) -> Vec<MediumOffset> {
        let place = |event: &Event| match event {
            Event::Store { word, .. } => Some(MediumOffset(word * 8)),
            _ => None,
        };
        self.recorder.state().events[events].iter().filter_map(place).collect()
    }

    /// Declares everything stored so far durable and forgets the events; indices begin at zero again. For long tests.
    pub fn checkpoint(&self) {
        let mut walker = self.walker.lock().unwrap_or_else(PoisonError::into_inner);
        *walker = None;
        *self.tracked.lock().unwrap_or_else(PoisonError::into_inner) = (0, Pending::default());
        self.recorder.state().events.clear();
    }

    /// Takes everything back that was stored since the medium was made or since the last [`Simulation::checkpoint`], and forgets
    /// it, with hook and seeded fault: the medium is as new, for less than a new one costs.
    pub fn start_again(&self) {
        let mut walker = self.walker.lock().unwrap_or_else(PoisonError::into_inner);
        *self.tracked.lock().unwrap_or_else(PoisonError::into_inner) = (0, Pending::default());
        match &mut *walker {
            Some(walker) => {
                self.recorder.undo_all(|word, old| walker.scratch.recorder.word(word).store(old, Ordering::Relaxed));
                (walker.position, walker.pending) = (0, Pending::default());
            }
            None => self.recorder.undo_all(|_, _| {}),
        }
    }

    /// Seeds a fault, or with `None` takes it back; the count of [`Simulation::skipped`] begins at zero.
    pub fn set_skip(&self, skip: Option<Skip>) {
        let mut state = self.recorder.state();
        state.skip = skip;
        state.skip_seen = 0;
        state.skipped = 0;
    }

    /// How often something was left out since [`Simulation::set_skip`]: a mutation test that skipped nothing proves nothing.
    #[must_use]
    pub fn skipped(&self) -> u64 {
        self.recorder.state().skipped
    }

    /// Begins to collect (or forgets) the places in the program that store, flush and fence.
    pub fn collect_sites(&self, collect: bool) {
        let mut state = self.recorder.state();
        state.sites_wanted = collect;
        state.sites.clear();
    }

    /// The places collected, with the number of calls from each: what a mutation test goes through.
    #[must_use]
    pub fn sites(&self) -> Vec<(Site, u64)> {
        self.recorder.state().sites.iter().map(|(&site, &count)| (site, count)).collect()
    }

    /// Calls `hook` after each store of a word, in the storing thread, with the event's index and no lock held. It may panic
    /// or park; it must not store to this medium.
    pub fn set_hook(&self, hook: Option<Arc<dyn Fn(usize) + Send + Sync>>) {
        self.recorder.state().hook = hook;
    }
}
