//! Descriptors that the interception and the file systems need, and that the program must neither close nor replace.

use crate::entry;
use core::sync::atomic::{AtomicI32, Ordering};
use gannet_vfs::FileSystem;
use std::os::fd::AsRawFd;

/// Sixteen volumes of eight media each, or more of fewer.
const INTERNAL_MAX: usize = 128;
/// From the first on, without gaps.
static INTERNAL: [AtomicI32; INTERNAL_MAX] = [const { AtomicI32::new(-1) }; INTERNAL_MAX];

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

/// Keeps those of a file system from the program, or none: false if there is no room to remember them. Nobody else does that meanwhile.
pub(crate) fn protect_those_of(fs: &dyn FileSystem) -> bool {
    let mut count = all().count();
    fs.for_each_descriptor(&mut |_| count += 1);
    let has_room = count <= INTERNAL_MAX;
    if has_room {
        fs.for_each_descriptor(&mut |descriptor| protect(descriptor.as_raw_fd()));
    }
    has_room
}

/// Keeps another descriptor from the program instead. `while_both`: what there is to do while it gets neither.
pub(crate) fn replace(descriptor: i32, by: i32, while_both: impl FnOnce()) {
    entry::mark_descriptor(by as usize);
    while_both();
    for slot in &INTERNAL {
        let _ = slot.compare_exchange(descriptor, by, Ordering::AcqRel, Ordering::Relaxed);
    }
    entry::unmark_descriptor(descriptor as usize);
}

/// Whether a descriptor is kept from the program.
pub(crate) fn is_internal(descriptor: i32) -> bool {
    descriptor >= 0 && all().any(|kept| kept == descriptor)
}

fn all() -> impl Iterator<Item = i32> {
    INTERNAL.iter().map(|slot| slot.load(Ordering::Relaxed)).take_while(|&descriptor| descriptor >= 0)
}

/// All of them, ascending.
pub(crate) fn sorted() -> impl Iterator<Item = u32> {
    let mut sorted = [u32::MAX; INTERNAL_MAX];
    for (place, descriptor) in sorted.iter_mut().zip(all()) {
        *place = descriptor as u32;
    }
    sorted.sort_unstable();
    sorted.into_iter().filter(|descriptor| *descriptor != u32::MAX)
}
