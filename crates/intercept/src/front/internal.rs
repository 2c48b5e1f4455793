//! Descriptors that the interception and the file systems need, and that the program must neither close nor replace.

use crate::entry;
use crate::number::FCNTL;
use crate::raw::{is_error, syscall};
use core::sync::atomic::{AtomicI32, Ordering};

const INTERNAL_MAX: usize = 32;
static INTERNAL: [AtomicI32; INTERNAL_MAX] = [const { AtomicI32::new(-1) }; INTERNAL_MAX];

/// Media keep their descriptors from here on.
const MEDIA_START: usize = 512;
const MEDIA_COUNT: usize = 64;
/// The most that one volume has: eight media, and the state that is shared.
const MEDIA_OF_A_VOLUME: usize = 9;

/// Keeps a descriptor from the program.
#[unsafe(link_section = ".text.hot.gannet")]
pub(crate) fn protect(descriptor: i32) {
    for slot in &INTERNAL {
        if slot.compare_exchange(-1, descriptor, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            entry::mark_descriptor(descriptor as usize);
            return;
        }
    }
}

/// Keeps another descriptor from the program instead.
pub(crate) fn replace(descriptor: i32, by: i32) {
    entry::mark_descriptor(by as usize);
    for slot in &INTERNAL {
        let _ = slot.compare_exchange(descriptor, by, Ordering::AcqRel, Ordering::Relaxed);
    }
    entry::unmark_descriptor(descriptor as usize);
}

/// Whether a descriptor is kept from the program.
pub(crate) fn is_internal(descriptor: i32) -> bool {
    descriptor >= 0 && INTERNAL.iter().any(|slot| slot.load(Ordering::Relaxed) == descriptor)
}

/// All of them, ascending.
pub(crate) fn sorted() -> impl Iterator<Item = u32> {
    let mut all = [u32::MAX; INTERNAL_MAX];
    for (place, slot) in all.iter_mut().zip(&INTERNAL) {
        *place = slot.load(Ordering::Relaxed) as u32;
    }
    all.sort_unstable();
    all.into_iter().filter(|descriptor| *descriptor != u32::MAX)
}

/// Which of the numbers that media use are taken, as bits: as far as media, which take the first free ones, can come.
pub(crate) fn snapshot() -> u64 {
    const F_GETFD: usize = 1;
    let (mut bits, mut free) = (0, 0);
    for index in 0..MEDIA_COUNT {
        // SAFETY: asks about a descriptor.
        if is_error(unsafe { syscall(FCNTL, [MEDIA_START + index, F_GETFD]) }) {
            free += 1;
            if free == MEDIA_OF_A_VOLUME {
                break;
            }
        } else {
            bits |= 1 << index;
        }
    }
    bits
}

/// Protects those that were taken since a snapshot.
pub(crate) fn protect_new(before: u64) {
    let new = snapshot() & !before;
    for index in (0..MEDIA_COUNT).filter(|index| new & (1 << index) != 0) {
        protect((MEDIA_START + index) as i32);
    }
}
