//! What cannot be read taken for zeros, and noted: for who checks a volume and goes on with what there is.
//!
//! Off the way of everybody else, who gets an error at the first such byte. Relies on a fault handler, as all accesses do.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use gannet_usermem::copy;

use crate::error::AccessError;
use crate::medium::Medium;
use crate::offset::MediumOffset;

const PAGE_BYTES: u64 = 4096;
const LINE_BYTES: u64 = 64;
/// More pages than this are a medium that is gone, not one with faults: then there is an error again.
const PAGES_MAX: usize = 16384;

/// The pages of which something could not be read.
#[derive(Debug, Default)]
pub(crate) struct Unreadable {
    pages: Mutex<BTreeSet<u64>>,
    /// There are any.
    any: AtomicBool,
}

impl Unreadable {
    pub(crate) fn pages(&self) -> Vec<MediumOffset> {
        self.lock().iter().map(|page| MediumOffset(page * PAGE_BYTES)).collect()
    }

    /// Notes a place; `false` if there are too many.
    fn note(&self, at: MediumOffset) -> bool {
        let mut pages = self.lock();
        let page = at.0 / PAGE_BYTES;
        self.any.store(true, Ordering::Relaxed);
        pages.contains(&page) || (pages.len() < PAGES_MAX && pages.insert(page))
    }

    pub(crate) fn has(&self, at: MediumOffset) -> bool {
        self.any.load(Ordering::Relaxed) && self.lock().contains(&(at.0 / PAGE_BYTES))
    }

    fn lock(&self) -> MutexGuard<'_, BTreeSet<u64>> {
        self.pages.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Medium {
    /// Behind a fault of a load at `at`: whether it counts as zero.
    #[cold]
    pub(crate) fn zero_where_unreadable(&self, at: MediumOffset) -> Result<(), AccessError> {
        match &self.unreadable {
            Some(unreadable) if unreadable.note(at) => Ok(()),
            _ => Err(AccessError::MediumFault { at, copied: 0 }),
        }
    }

    /// Behind a fault after `done` bytes of a copy from `at`: the rest, line by line, with zeros where a line cannot be read.
    #[cold]
    pub(crate) fn read_what_can_be(
        &self,
        at: MediumOffset,
        bytes: &mut [u8],
        mut done: usize,
    ) -> Result<(), AccessError> {
        while done < bytes.len() {
            let place = at.plus(done as u64);
            let step = (bytes.len() - done).min((LINE_BYTES - place.0 % LINE_BYTES) as usize);
            let from = self.readable(place, step as u64)?;
            // SAFETY: the source is inside the map, the target is exclusively ours, and they cannot overlap.
            if unsafe { copy::copy(bytes[done..].as_mut_ptr(), from, step) }.is_err() {
                self.zero_where_unreadable(place).map_err(|error| error.after(done))?;
                bytes[done..done + step].fill(0);
            }
            done += step;
        }
        Ok(())
    }
}
