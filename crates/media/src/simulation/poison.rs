//! Memory of a medium that cannot be read any more, as a memory error leaves it.

use rustix::mm::{MprotectFlags, mprotect};

use super::Simulation;
use crate::medium::Medium;
use crate::offset::MediumOffset;

const PAGE_BYTES: u64 = 4096;

impl Simulation {
    /// Takes the page at `at` away from all handles of the map of a medium, simulated or not: loads and stores fault there from now on.
    /// Needs a fault handler.
    ///
    /// # Panics
    /// If the page is not inside the medium, or the system does not do it.
    pub fn poison(medium: &Medium, at: MediumOffset) {
        let page = MediumOffset(at.0 / PAGE_BYTES * PAGE_BYTES);
        let address = medium.readable(page, PAGE_BYTES).expect("a page of the medium");
        // SAFETY: a page of the medium's own map, to which no references are made; whoever accesses it does so by routines that
        // may fault.
        unsafe { mprotect(address.cast(), PAGE_BYTES as usize, MprotectFlags::empty()) }.expect("a page of a map");
    }
}
