//! What is mapped where: the process's list of maps.
//!
//! Everything here, and the [`pins`](super::pins), is under one lock, which a fork takes; nothing is kept of the list while the file system is called.
//! What lies at an address changes under another ([`placing`]), which comes before it.

use super::pins::{Pin, Pins, give_back};
use super::{Change, PAGE_BYTES, PROT_WRITE};
use crate::front::call::Call;
use crate::lock::{Guarded, Lock};
use crate::number::MSYNC;
use crate::raw::syscall;
use core::ops::Range;
use core::sync::atomic::{AtomicUsize, Ordering};
use gannet_vfs::NodeId;
use gannet_vfs::shared::Description;

/// A map, or what is left of one.
#[derive(Clone, Copy)]
pub(super) struct Region {
    pub(super) start: usize,
    pub(super) end: usize,
    /// Where the pages begin that lay behind the end of the file when it was mapped; the end or more if there are none.
    pub(super) reached: usize,
    pub(super) mount: usize,
    pub(super) node: NodeId,
    /// What it was made from.
    pub(super) description: Description,
    /// Where in the file `start` is.
    pub(super) offset: u64,
    /// Index of the pin, shared by the pieces of one map.
    pub(super) pin: usize,
    pub(super) shared: bool,
    /// What the kernel allows there: as it was mapped with, or what `mprotect` said since.
    pub(super) protection: usize,
    /// It was mapped for writing, whatever it allows by now.
    pub(super) stores: bool,
    /// The descriptor was open for writing.
    pub(super) writable: bool,
    /// Some of it had no blocks: zeros that are nobody's.
    pub(super) holes: bool,
}

impl Region {
    /// Stores through it change the file now.
    pub(super) fn is_writable(&self) -> bool {
        self.shared && self.protection & PROT_WRITE != 0
    }

    /// Ends at an address inside of it; what lies behind that, which shares its pin.
    fn split(&mut self, at: usize) -> Region {
        let behind = Region { start: at, offset: self.offset + (at - self.start) as u64, ..*self };
        self.end = at;
        behind
    }

    /// What of it lies behind an address.
    fn from(&self, address: usize) -> Part {
        let Region { end, mount, node, description, shared, protection, stores, writable, .. } = *self;
        let start = address.max(self.start);
        Part {
            start,
            end,
            mount,
            node,
            description,
            shared,
            protection,
            stores,
            writable,
            offset: self.offset + (start - self.start) as u64,
        }
    }
}

#[derive(Clone, Default)]
pub(super) struct Maps {
    pub(super) regions: Vec<Region>,
    pub(super) pins: Pins,
}

impl Maps {
    /// Takes out what lies in a range; the pins that nothing is left of.
    pub(super) fn take_out(&mut self, start: usize, end: usize) -> Vec<Pin> {
        let mut given_back: Vec<Pin> = Vec::new();
        let mut index = 0;
        while index < self.regions.len() {
            let region = &mut self.regions[index];
            if region.start >= end || start >= region.end {
                index += 1;
                continue;
            }
            let pin = region.pin;
            if region.start < start && end < region.end {
                let tail = region.split(end);
                region.end = start;
                self.regions.push(tail);
            } else if region.start < start {
                region.end = start;
            } else if end < region.end {
                *region = region.split(end);
            } else {
                self.regions.swap_remove(index);
                if !self.regions.iter().any(|other| other.pin == pin) {
                    given_back.extend(self.pins.take(pin));
                }
                continue;
            }
            index += 1;
        }
        given_back
    }
}

pub(super) static MAPS: Guarded<Maps> = Guarded::new();
/// Of regions and of maps in the making.
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// Held by who puts a map in the place of another, or takes one away.
static PLACES: Lock = Lock::new();

/// Takes the lock of places. A `vfork` child that was killed with it may have taken maps away that are in the list still: nothing is to be laid there.
fn take_places() {
    const MS_ASYNC: usize = 1;
    if PLACES.take() {
        // SAFETY: asks whether all of it is mapped, and does nothing else.
        let is_there =
            |region: &Region| unsafe { syscall(MSYNC, [region.start, region.end - region.start, MS_ASYNC]) } == 0;
        locked(|maps| maps.regions.retain(is_there));
    }
}

/// Meanwhile no thread of this process takes a map of a file away, puts one in its place or changes what it allows, so that what is found at an address
/// is there until `work` is done: else a map made anew could be put over memory that another thread got at that address. Until the kernel has done its
/// part what was there stays in the list: who finds nothing there passes a call on without a look at this; who finds something looks again
/// inside of it, since the kernel may have given the address to another thread already. Not inside of itself or of [`locked`].
pub(super) fn placing<T>(work: impl FnOnce() -> T) -> T {
    take_places();
    let result = work();
    PLACES.release();
    result
}

pub(super) fn locked<T>(work: impl FnOnce(&mut Maps) -> T) -> T {
    MAPS.with(|maps| {
        let result = work(maps);
        COUNT.store(maps.regions.len() + maps.pins.in_the_making, Ordering::Release);
        result
    })
}

/// Whether anything of a volume is mapped, or about to be.
#[inline]
pub(crate) fn any() -> bool {
    COUNT.load(Ordering::Acquire) != 0
}

/// Takes the locks so that a forked child finds them free, or releases them.
pub(crate) fn around_fork(before: bool) {
    if before {
        take_places();
        MAPS.around_fork(true);
    } else {
        MAPS.around_fork(false);
        PLACES.release();
    }
}

/// Whether anything of this volume is mapped.
///
/// # Safety
/// The caller has the lock ([`around_fork`]), or is the only thread.
pub(crate) unsafe fn any_of(mount: usize) -> bool {
    // SAFETY: nobody else changes them meanwhile, as the caller says.
    let maps = unsafe { MAPS.look() };
    maps.is_some_and(|maps| maps.regions.iter().any(|region| region.mount == mount))
}

/// What `mprotect` allows in a range from now on. While [`placing`].
pub(super) fn note_protection(start: usize, end: usize, protection: usize) {
    locked(|maps| {
        let mut index = 0;
        while index < maps.regions.len() {
            let region = &mut maps.regions[index];
            index += 1;
            if region.start >= end || start >= region.end || region.protection == protection {
                continue;
            }
            let behind = (end < region.end).then(|| region.split(end));
            let inside = (region.start < start).then(|| region.split(start));
            match inside {
                None => region.protection = protection,
                Some(inside) => maps.regions.push(Region { protection, ..inside }),
            }
            maps.regions.extend(behind);
        }
    });
}

/// Forgets what lay in a range; gives back pins that nothing is left of. While [`placing`], and behind the kernel's own change.
pub(super) fn forget(call: &Call<'_>, start: usize, end: usize) {
    if COUNT.load(Ordering::Acquire) == 0 {
        return;
    }
    for pin in locked(|maps| maps.take_out(start, end)) {
        give_back(call.front, call.table(), &pin);
    }
}

/// Whether anything of a volume is mapped in a range.
pub(super) fn has_any(start: usize, end: usize) -> bool {
    COUNT.load(Ordering::Acquire) != 0
        && locked(|maps| maps.regions.iter().any(|region| region.start < end && start < region.end))
}

/// The map that `start` lies in, from there on, of however many pieces it was made.
fn part_at(start: usize) -> Option<Part> {
    if COUNT.load(Ordering::Acquire) == 0 {
        return None;
    }
    locked(|maps| {
        let region = maps.regions.iter().find(|region| region.start <= start && start < region.end)?;
        let mut part = region.from(start);
        while let Some(next) = maps.regions.iter().find(|next| {
            next.start == part.end
                && (next.mount, next.description, next.shared) == (part.mount, part.description, part.shared)
                && (next.protection, next.writable) == (part.protection, part.writable)
                && next.offset == part.offset + (part.end - part.start) as u64
        }) {
            part.end = next.end;
        }
        Some(part)
    })
}

/// Likewise, of what the kernel has not given to another thread meanwhile. Not while [`placing`].
pub(super) fn settled_part_at(start: usize) -> Option<Part> {
    part_at(start)?;
    placing(|| part_at(start))
}

/// The first shared map in a range that was not mapped for writing.
pub(super) fn readable_at(start: usize, end: usize) -> Option<Part> {
    locked(|maps| {
        let region = maps.regions.iter().find(|region| {
            region.shared && region.protection & PROT_WRITE == 0 && region.start < end && start < region.end
        })?;
        Some(region.from(start))
    })
}

/// What lies lowest of the shared maps between two addresses.
pub(super) fn first_behind(start: usize, end: usize) -> Option<Part> {
    if COUNT.load(Ordering::Acquire) == 0 {
        return None;
    }
    locked(|maps| {
        let inside = |region: &&Region| region.shared && region.start < end && start < region.end;
        maps.regions.iter().filter(inside).min_by_key(|region| region.start).map(|region| region.from(start))
    })
}

/// What lies lowest of all maps between two addresses.
pub(super) fn first_of_any(start: usize, end: usize) -> Option<Part> {
    locked(|maps| {
        let inside = |region: &&Region| region.start < end && start < region.end;
        maps.regions.iter().filter(inside).min_by_key(|region| region.start).map(|region| region.from(start))
    })
}

/// The pages behind the end of a file, as far as one map goes, that `address` is among.
pub(super) fn containing(address: usize) -> Option<Part> {
    if COUNT.load(Ordering::Acquire) == 0 {
        return None;
    }
    locked(|maps| {
        let inside = |region: &&Region| region.start.max(region.reached) <= address && address < region.end;
        maps.regions.iter().find(inside).map(|region| region.from(region.reached))
    })
}

/// Part of a map, from an address on.
pub(super) struct Part {
    pub(super) start: usize,
    pub(super) end: usize,
    pub(super) mount: usize,
    pub(super) node: NodeId,
    pub(super) description: Description,
    pub(super) shared: bool,
    pub(super) protection: usize,
    pub(super) stores: bool,
    pub(super) writable: bool,
    pub(super) offset: u64,
}

/// So many pieces a list may have before those of one map are put together again.
const PIECES_MAX: usize = 64;

/// Whether a change of some bytes of a file may concern maps, or one that another thread is making of whatever file: it may have pinned before.
pub(super) fn may_concern(file: (usize, NodeId), bytes: Range<u64>, change: Change) -> bool {
    locked(|maps| maps.pins.in_the_making > 0) || next_of_file(0, file, bytes, change).is_some()
}

/// What lies lowest, at `at` or above, of the maps of a file that a change of some of its bytes concerns.
pub(super) fn next_of_file(at: usize, file: (usize, NodeId), bytes: Range<u64>, change: Change) -> Option<Part> {
    let first_page = bytes.start & !(PAGE_BYTES as u64 - 1);
    locked(|maps| {
        let mut best: Option<Part> = None;
        for region in maps.regions.iter().filter(|region| (region.mount, region.node) == file) {
            // What lay behind the end.
            let reached = region.offset + region.reached.saturating_sub(region.start) as u64;
            let grew = region.reached < region.end && reached < bytes.end;
            let from = match change {
                _ if region.shared && grew => first_page.min(reached),
                _ if region.shared => first_page,
                // The page with the end stays private.
                Change::Cut => bytes.start.next_multiple_of(PAGE_BYTES as u64),
                _ if grew => reached,
                _ => continue,
            };
            let skipped = usize::try_from(from.saturating_sub(region.offset)).unwrap_or(usize::MAX);
            let start = region.start.saturating_add(skipped).max(at);
            let concerns = region.holes || change != Change::Written;
            if !concerns || start >= region.end || region.offset + (start - region.start) as u64 >= bytes.end {
                continue;
            }
            if best.as_ref().is_none_or(|best| start < best.start) {
                best = Some(region.from(start));
            }
        }
        let mut part = best?;
        // A file that grows piece by piece would make as many regions.
        while maps.regions.len() > PIECES_MAX && part.shared {
            let before = maps.regions.iter().find(|region| {
                (region.mount, region.description) == (part.mount, part.description)
                    && region.start < part.start
                    && part.start <= region.end
                    && region.start >= at
                    && (region.shared, region.protection, region.writable) == (true, part.protection, part.writable)
                    && region.offset + (part.start - region.start) as u64 == part.offset
            });
            let Some(before) = before else { break };
            (part.start, part.offset) = (before.start, before.offset);
        }
        Some(part)
    })
}
