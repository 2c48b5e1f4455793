//! Applies a plan to an object: writes a trampoline for each site and the jump to it.
//!
//! A trampoline is the relocated instructions around the inline filter and a `syscall` instruction of its own. Filter
//! and relocation use rcx, r11 and the flags only, which `syscall` destroys anyway, and never the stack: red zones,
//! `vfork`, new stacks and tiny stacks need nothing special.
//!
//! Who calls this answers for no other thread executing the object meanwhile: it is called while the program is
//! being loaded, or from the `mmap` that maps the object.

pub(crate) mod area;
pub(crate) mod emit;
pub(crate) mod gates;

use crate::entry;
use crate::number;
use crate::plan::Site;
use crate::plan::image::Image;
use crate::raw::{is_error, syscall};
use area::Run;
pub(crate) use emit::behind;
use emit::{Reach, displacement_between};

/// What became of the sites of an object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Outcome {
    /// Sites rewritten.
    pub(crate) patched: usize,
    /// Sites left as they were.
    pub(crate) left: usize,
}

const PAGE_BYTES: usize = 4096;
const PROT_READ_WRITE_EXECUTE: usize = 7;
const PROT_READ_EXECUTE: usize = 5;
/// Sites whose pages lie this close share one change of protection.
const JOIN_BYTES: usize = 64 * PAGE_BYTES;

/// Rewrites the sites of `image` with trampolines in `area`. `full_vectors`: the object's code may keep values in
/// vector registers beyond the lower halves of xmm0–15 across a system call.
///
/// # Safety
/// The plan must have been made for this object; no thread may execute the object's sites meanwhile.
pub(crate) unsafe fn apply(image: &Image, sites: &[Site], area: &mut Run, full_vectors: bool) -> Outcome {
    let mut outcome = Outcome::default();
    let entry = if full_vectors { entry::entry_full_address() } else { entry::entry_address() };
    let mut index = 0;
    while index < sites.len() {
        // A run of sites on pages near each other is made writable in one step.
        let first_page = image.bias.wrapping_add(sites[index].start as usize) & !(PAGE_BYTES - 1);
        let mut end = index;
        let mut last_byte = first_page;
        while end < sites.len() {
            let start = image.bias.wrapping_add(sites[end].start as usize);
            if start < first_page || start > last_byte + JOIN_BYTES {
                break;
            }
            last_byte = start + (sites[end].window as usize).max(1) - 1;
            end += 1;
        }
        let run = &sites[index..end];
        index = end;
        let length = (last_byte & !(PAGE_BYTES - 1)) + PAGE_BYTES - first_page;
        let inside = image.bytes(first_page.wrapping_sub(image.bias), length).is_some()
            || image
                .bytes(run[0].start as usize, last_byte + 1 - (image.bias.wrapping_add(run[0].start as usize)))
                .is_some();
        // SAFETY: the range lies in the object's text; it stays executable throughout.
        if !inside || is_error(unsafe { syscall(number::MPROTECT, [first_page, length, PROT_READ_WRITE_EXECUTE]) }) {
            outcome.left += run.len();
            continue;
        }
        populate(image, run);
        for site in run {
            // SAFETY: the caller's promise; the pages are writable.
            if unsafe { apply_site(image, site, area, entry) } {
                outcome.patched += 1;
            } else {
                outcome.left += 1;
            }
        }
        // SAFETY: as above.
        unsafe { syscall(number::MPROTECT, [first_page, length, PROT_READ_EXECUTE]) };
    }
    outcome
}

/// Gets the pages that `sites` stand on, ascending and writable, copied: a call for each row of pages instead of two faults for
/// each page. That it fails only costs time.
fn populate(image: &Image, sites: &[Site]) {
    let mut row = 0..0;
    let copy = |row: &core::ops::Range<usize>| {
        if !row.is_empty() {
            area::populate(row.start, row.len());
        }
    };
    for site in sites.iter().filter(|site| site.window != 0) {
        let start = image.bias.wrapping_add(site.start as usize);
        let pages = start & !(PAGE_BYTES - 1)..(start + site.window as usize).next_multiple_of(PAGE_BYTES);
        if pages.start <= row.end && !row.is_empty() {
            row.end = row.end.max(pages.end);
        } else {
            copy(&row);
            row = pages;
        }
    }
    copy(&row);
}

/// Rewrites one site whose page is writable. False if it must be left alone.
///
/// # Safety
/// As for [`apply`].
unsafe fn apply_site(image: &Image, site: &Site, area: &mut Run, entry: usize) -> bool {
    let window = site.window as usize;
    let Some(current) = image.bytes(site.start as usize, window.max(1)) else { return false };
    if window == 0 || current != &site.original[..window] {
        return false;
    }
    let start = image.bias.wrapping_add(site.start as usize);
    let Some(slot) = area.next_slot() else { return false };
    let Some(code) = emit::slot(site, image.bias, slot, area.slot_bytes, Reach::Direct { entry }) else { return false };
    let Some(jump) = displacement_between(start + 5, slot) else { return false };
    area.write_slot(&code.bytes);
    let bytes = emit::jump(jump);
    for (offset, byte) in bytes[..window].iter().enumerate() {
        // SAFETY: the page is writable text of the object and no thread executes it now, says the caller. Volatile, so
        // that no library function, which could live on this very page, does the copying.
        unsafe { ((start + offset) as *mut u8).write_volatile(*byte) };
    }
    true
}
