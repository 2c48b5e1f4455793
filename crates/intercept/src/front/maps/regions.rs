//! What is mapped where: the process's list of maps.
//!
//! Everything here, and the [`pins`](super::pins), is under one lock, which a fork takes; nothing is kept of the list while the file system is called.
//! What lies at an address changes under another ([`placing`]), which comes before it.

use super::list::Maps;
pub(super) use super::list::{Part, Region};
use super::pins::give_back;
use super::{Change, PAGE_BYTES, PROT_WRITE, lazy};
use crate::front::call::Call;
use crate::lock::{Guarded, Lock};
use crate::number::MSYNC;
use crate::raw::syscall;
use core::ops::Range;
use core::sync::atomic::{AtomicUsize, Ordering};
use gannet_vfs::NodeId;

pub(super) static MAPS: Guarded<Maps> = Guarded::new();
/// Of regions and of maps in the making.
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// Of regions whose holes are filled when they are used.
static LAZY: AtomicUsize = AtomicUsize::new(0);

/// Held by who puts a map in the place of another, or takes one away.
static PLACES: Lock = Lock::new();

/// Takes the lock of places. A `vfork` child that was killed with it may have taken maps away that are in the list still: nothing is to be laid there.
fn take_places() {
    const MS_ASYNC: usize = 1;
    if PLACES.take() {
        // SAFETY: asks whether all of it is mapped, and does nothing else.
        let is_there =
            |region: &Region| unsafe { syscall(MSYNC, [region.start, region.end - region.start, MS_ASYNC]) } == 0;
        locked(|maps| maps.keep(is_there));
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
        COUNT.store(maps.len() + maps.pins.in_the_making, Ordering::Release);
        LAZY.store(maps.lazy(), Ordering::Release);
        result
    })
}

/// Whether anything of a volume is mapped, or about to be.
#[inline]
pub(crate) fn any() -> bool {
    COUNT.load(Ordering::Acquire) != 0
}

/// Whether anything is mapped whose holes are filled when they are used.
#[inline]
pub(crate) fn any_lazy() -> bool {
    LAZY.load(Ordering::Acquire) != 0
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
    maps.is_some_and(|maps| maps.iter().any(|region| region.mount == mount))
}

/// What `mprotect` allows in a range from now on. While [`placing`].
pub(super) fn note_protection(start: usize, end: usize, protection: usize) {
    locked(|maps| maps.protect(start, end, protection));
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
    COUNT.load(Ordering::Acquire) != 0 && locked(|maps| maps.within(start, end).next().is_some())
}

/// The map that `start` lies in, from there on, of however many pieces it was made.
fn part_at(start: usize) -> Option<Part> {
    if COUNT.load(Ordering::Acquire) == 0 {
        return None;
    }
    locked(|maps| {
        let mut part = maps.within(start, start.saturating_add(1)).next()?.from(start);
        while let Some(next) = maps.beginning_at(part.end).filter(|next| next.belongs_to(&part)) {
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
        let mut inside = maps.within(start, end);
        let region = inside.find(|region| region.shared && region.protection & PROT_WRITE == 0)?;
        Some(region.from(start))
    })
}

/// What lies lowest of the shared maps between two addresses.
pub(super) fn first_behind(start: usize, end: usize) -> Option<Part> {
    if COUNT.load(Ordering::Acquire) == 0 {
        return None;
    }
    locked(|maps| maps.within(start, end).find(|region| region.shared).map(|region| region.from(start)))
}

/// What lies lowest of all maps between two addresses.
pub(super) fn first_of_any(start: usize, end: usize) -> Option<Part> {
    locked(|maps| maps.within(start, end).next().map(|region| region.from(start)))
}

/// The pages behind the end of a file, as far as one map goes, that `address` is among.
pub(super) fn containing(address: usize) -> Option<Part> {
    if COUNT.load(Ordering::Acquire) == 0 {
        return None;
    }
    locked(|maps| {
        let region = maps.within(address, address.saturating_add(1)).next()?;
        (region.reached <= address).then(|| region.from(region.reached))
    })
}

/// The lowest address in a range that lies in a map whose holes are filled when they are used.
pub(super) fn first_lazy(start: usize, end: usize) -> Option<usize> {
    locked(|maps| {
        let mut found =
            maps.within(start, end).filter(|region| region.lazy && start.max(region.start) < region.reached);
        found.next().map(|region| start.max(region.start))
    })
}

/// The piece of such a map that is filled together with an address; `None` if that lies in none.
pub(super) fn lazy_piece(address: usize) -> Option<Part> {
    locked(|maps| {
        let region = *maps.within(address, address.saturating_add(1)).next()?;
        let limit = region.end.min(region.reached);
        if !region.lazy || address >= limit {
            return None;
        }
        // What was filled last, if this goes on there.
        let before = maps.before(region.start).filter(|before| {
            address - region.start < PAGE_BYTES
                && before.end == region.start
                && (before.mount, before.node, before.lazy) == (region.mount, region.node, false)
        });
        let last = before.map(|before| before.end - before.start);
        let offset = region.offset + (address - region.start) as u64;
        let (skipped, length) = lazy::piece(offset, last, maps.len());
        let start = address.saturating_sub(skipped).max(region.start);
        Some(Part { end: start.saturating_add(length).min(limit), ..region.from(start) })
    })
}

/// So many pieces a list may have before those of one map are put together again.
const PIECES_MAX: usize = 64;

/// Whether a change of some bytes of a file may concern maps, or one that another thread is making of whatever file: it may have pinned before.
pub(super) fn may_concern(file: (usize, NodeId), bytes: Range<u64>, change: Change) -> bool {
    locked(|maps| maps.pins.in_the_making > 0) || next_of_file(0, file, bytes, change).is_some()
}

/// What lies lowest, at `at` or above, of the maps of a file that a change of some of its bytes concerns: the bytes themselves, or all that lies
/// behind them where the file ends elsewhere.
pub(super) fn next_of_file(at: usize, file: (usize, NodeId), bytes: Range<u64>, change: Change) -> Option<Part> {
    let first_page = bytes.start & !(PAGE_BYTES as u64 - 1);
    locked(|maps| {
        if change == Change::Written && !maps.have_holes() {
            return None;
        }
        let found =
            maps.within(at, usize::MAX).filter(|region| (region.mount, region.node) == file).find_map(|region| {
                // What lay behind the end.
                let reached = region.offset + region.reached.saturating_sub(region.start) as u64;
                let grew = region.reached < region.end && reached < bytes.end;
                let from = match change {
                    _ if region.shared && grew => first_page.min(reached),
                    _ if region.shared => first_page,
                    // The page with the end stays private.
                    Change::Cut => bytes.start.next_multiple_of(PAGE_BYTES as u64),
                    _ if grew => reached,
                    _ => return None,
                };
                let skipped = usize::try_from(from.saturating_sub(region.offset)).unwrap_or(usize::MAX);
                let start = region.start.saturating_add(skipped).max(at);
                let concerns = region.holes || change != Change::Written;
                let offset = region.offset + (start - region.start) as u64;
                if !concerns || start >= region.end || offset >= bytes.end {
                    return None;
                }
                let length = usize::try_from(bytes.end - offset).unwrap_or(usize::MAX);
                let end = length.checked_next_multiple_of(PAGE_BYTES).and_then(|length| start.checked_add(length));
                Some(Part { end: end.map_or(region.end, |end| end.min(region.end)), ..region.from(start) })
            });
        let mut part = found?;
        // A file that is cut piece by piece, or grows so, would make as many regions.
        while change == Change::Cut
            && part.shared
            && let Some(next) = maps.beginning_at(part.end).filter(|region| region.belongs_to(&part))
        {
            (part.end, part.lazy) = (next.end, part.lazy || next.lazy);
        }
        while maps.len() > PIECES_MAX && part.shared {
            let before = maps
                .before(part.start)
                .filter(|region| part.start <= region.end && region.start >= at && region.belongs_to(&part));
            let Some(before) = before else { break };
            (part.start, part.offset, part.lazy) = (before.start, before.offset, part.lazy || before.lazy);
        }
        Some(part)
    })
}
