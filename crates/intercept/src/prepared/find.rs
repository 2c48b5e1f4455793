//! Finds a prepared copy by its key, and looks whether its bytes can be believed: owner and permissions, the trailer, once in each boot the whole.
//!
//! For [`apply`](super::apply), and for who makes one, under the same key. What cannot be believed is removed.

use super::trailer::{TRAILER_BYTES, Text, Trailer};
use super::{FORMAT, SLOTS_DISTANCE_BYTES};
use crate::number;
use crate::plan::cache::{CachePath, trusted_status};
use crate::plan::image::BuildId;
use crate::raw::{is_error, syscall};
use crate::table::CLASSES;
use core::ops::Range;
use xxhash_rust::xxh3::{xxh3_64, xxh3_128};

pub(super) const O_CLOEXEC: usize = 0o2000000;
pub(super) const O_NOFOLLOW: usize = 0o400000;
pub(super) const AT_FDCWD: usize = -100isize as usize;

/// What a copy is found by.
pub(super) type Key = [u8; 16];

/// The key of the copy of an object that was loaded from a file with this status.
#[unsafe(link_section = ".text.hot.gannet")]
pub(super) fn key_of(id: &BuildId, status: &[u64; 18]) -> Key {
    let mut bytes = [0u8; 80];
    bytes[..32].copy_from_slice(id);
    // Size and time of modification: who changes a library in place need not change its build-id.
    let words = [status[6], status[11], status[12], FORMAT, xxh3_64(&CLASSES), SLOTS_DISTANCE_BYTES as u64];
    for (place, word) in bytes[32..].chunks_exact_mut(8).zip(words) {
        place.copy_from_slice(&word.to_le_bytes());
    }
    xxh3_128(&bytes).to_le_bytes()
}

/// The status of the file with this name (which ends in zero).
#[unsafe(link_section = ".text.hot.gannet")]
pub(super) fn status_of(name: &[u8]) -> Option<[u64; 18]> {
    debug_assert_eq!(name.last(), Some(&0));
    let mut status = [0u64; 18];
    // SAFETY: a path that ends in zero, and room for struct stat.
    let result = unsafe { syscall(number::STAT, [name.as_ptr() as usize, status.as_mut_ptr() as usize]) };
    (result == 0).then_some(status)
}

/// A copy, found and looked at.
pub(super) struct Found {
    pub(super) descriptor: usize,
    pub(super) text: Text,
    /// Not on the program's stack, of which a start uses little.
    pub(super) trailer: Box<Trailer>,
}

impl Drop for Found {
    fn drop(&mut self) {
        // SAFETY: our own descriptor.
        unsafe { syscall(number::CLOSE, [self.descriptor]) };
    }
}

/// Opens the copy with this key and looks whether it can be believed.
#[unsafe(link_section = ".text.hot.gannet")]
pub(super) fn find(directory: &CachePath, key: &Key, text: Text) -> Option<Found> {
    let path = path_of(directory, key);
    // SAFETY: the path ends in zero.
    let descriptor = unsafe { syscall(number::OPENAT, [AT_FDCWD, path.pointer(), O_CLOEXEC | O_NOFOLLOW, 0]) };
    if is_error(descriptor) {
        return None;
    }
    let mut found = Found { descriptor: descriptor as usize, text, trailer: Box::new(Trailer::zeroed()) };
    let status = trusted_status(found.descriptor)?;
    let size = status[6] as usize;
    let good = read_trailer(&mut found, size)
        && found.trailer.fits(key, &text, size)
        && (was_verified(&status) || verify(&found, size));
    if !good {
        // SAFETY: a path that ends in zero. Ours, and of no use to anybody.
        unsafe { syscall(number::UNLINK, [path.pointer()]) };
        return None;
    }
    Some(found)
}

#[unsafe(link_section = ".text.hot.gannet")]
pub(super) fn path_of(directory: &CachePath, key: &Key) -> CachePath {
    directory.file(b"prepared-", key, b"")
}

fn read_trailer(found: &mut Found, size: usize) -> bool {
    let Some(offset) = size.checked_sub(TRAILER_BYTES) else { return false };
    let trailer = &raw mut *found.trailer;
    // SAFETY: our own buffer, of which any bytes are a value.
    let read = unsafe { syscall(number::PREAD64, [found.descriptor, trailer as usize, TRAILER_BYTES, offset]) };
    read == TRAILER_BYTES as isize
}

/// Whether the file was written, or compared with its checksum, in this boot.
#[unsafe(link_section = ".text.hot.gannet")]
fn was_verified(status: &[u64; 18]) -> bool {
    const CLOCK_REALTIME: usize = 0;
    const CLOCK_BOOTTIME: usize = 7;
    // By system calls: two of them take less than the page faults of looking for the vDSO's way.
    let seconds = |clock: usize| {
        let mut time = [0i64; 2];
        // SAFETY: room for a `timespec`.
        unsafe { syscall(number::CLOCK_GETTIME, [clock, time.as_mut_ptr() as usize]) };
        time[0]
    };
    let now = seconds(CLOCK_REALTIME);
    let booted = now - seconds(CLOCK_BOOTTIME);
    // A time in the future tells nothing.
    (booted..=now + 1).contains(&(status[11] as i64))
}

/// Compares the file with its checksum, and notes that.
fn verify(found: &Found, size: usize) -> bool {
    const UTIME_OMIT: u64 = 0x3fff_fffe;
    const UTIME_NOW: u64 = 0x3fff_ffff;
    let length = size - TRAILER_BYTES;
    let Some(content) = View::of(found.descriptor, length) else { return false };
    if xxh3_64(content.bytes()) != found.trailer.header.content_hash {
        return false;
    }
    let times = [0, UTIME_OMIT, 0, UTIME_NOW];
    // SAFETY: two `timespec`. Should it fail the next start compares again.
    unsafe { syscall(number::UTIMENSAT, [found.descriptor, 0, times.as_ptr() as usize, 0]) };
    true
}

/// A private map of a file that may be written to.
pub(super) struct View {
    range: Range<usize>,
}

impl View {
    /// The first `length` bytes, which the file must have.
    pub(super) fn of(descriptor: usize, length: usize) -> Option<View> {
        const PROT_READ_WRITE: usize = 3;
        const MAP_PRIVATE: usize = 2;
        // SAFETY: a new map.
        let start = unsafe { syscall(number::MMAP, [0, length, PROT_READ_WRITE, MAP_PRIVATE, descriptor, 0]) };
        (!is_error(start) && length > 0).then(|| View { range: start as usize..start as usize + length })
    }

    pub(super) fn bytes(&self) -> &[u8] {
        // SAFETY: mapped as long as this lives. Who cuts the file meanwhile is this user or the administrator, and ends the process.
        unsafe { core::slice::from_raw_parts(self.range.start as *const u8, self.range.len()) }
    }

    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and private.
        unsafe { core::slice::from_raw_parts_mut(self.range.start as *mut u8, self.range.len()) }
    }
}

impl Drop for View {
    fn drop(&mut self) {
        // SAFETY: our own map.
        unsafe { syscall(number::MUNMAP, [self.range.start, self.range.len()]) };
    }
}
