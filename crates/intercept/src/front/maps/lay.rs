//! The kernel's maps that a map of a file is made of: a map for each piece of the medium, zeros or nothing where no block is, or a copy.
//!
//! For who makes a map ([`super`]) and who makes one anew ([`renew`](super::renew)). Nothing here knows what is mapped where: the range has been
//! reserved, or is replaced in place.

use super::pins::Hold;
use super::regions::Region;
use super::{
    MAP_ANONYMOUS, MAP_FIXED, MAP_PLACEMENT, MAP_PRIVATE, MAP_SHARED, PAGE_BYTES, Pinned, Wish, behind, place,
    region_of,
};
use crate::number::*;
use crate::raw::{is_error, syscall};
use gannet_usermem::{Destination, UserSlice};
use gannet_vfs::{Errno, FileSystem, MappedExtent, NodeId};

/// Maps a file's blocks at `base`, over what is there, piece by piece; the region to be added, and what holds it.
pub(super) fn lay(
    fs: &dyn FileSystem,
    node: NodeId,
    base: usize,
    wish: &Wish,
    pinned: Pinned,
) -> Result<(Hold, Region), Errno> {
    let Wish { length, protection, offset, .. } = *wish;
    let mut reached = behind::reached(fs, node, offset, length);
    if wish.writes() && !pinned.lazy {
        // All of the file had blocks when it was pinned: where there are none another process has made it longer since.
        // Zeros that are nobody's would lose what is stored there; so it is behind the end until it is used.
        reached = reached.min(pinned.told(offset));
    }
    map_extents(base, reached, wish, &pinned)?;
    map_behind(base + reached, length - reached, protection)?;
    Ok(region_of(node, base, base + reached, wish, pinned))
}

/// Makes a map that one extent holds all of, with no reservation before it, so that who uses what it replaces always finds a map; where it is. `None`
/// if it is not such a map.
pub(super) fn map_at_once(
    fs: &dyn FileSystem,
    node: NodeId,
    wish: &Wish,
    extents: &[MappedExtent],
) -> Option<Result<usize, Errno>> {
    let Wish { address, length, protection, flags, offset, .. } = *wish;
    let [MappedExtent { file_offset_bytes, length_bytes, descriptor: Some(descriptor), descriptor_offset_bytes, .. }] =
        *extents
    else {
        return None;
    };
    let is_whole = file_offset_bytes == offset && length_bytes >= length as u64;
    if !is_whole || place::wants_alignment(wish, extents) || behind::reached(fs, node, offset, length) < length {
        return None;
    }
    let kind = if wish.is_shared() { MAP_SHARED } else { MAP_PRIVATE } | flags & MAP_PLACEMENT;
    // SAFETY: the program's wish for memory, where nothing is.
    Some(unsafe {
        map_memory(address, length, protection, kind, descriptor as usize, descriptor_offset_bytes as usize)
    })
}

/// Maps the extents that begin within `length` bytes, as far as that.
fn map_extents(base: usize, length: usize, wish: &Wish, pinned: &Pinned) -> Result<(), Errno> {
    let Wish { protection, offset, .. } = *wish;
    let kind = if wish.is_shared() { MAP_SHARED } else { MAP_PRIVATE };
    let map_hole = |at: usize, length: usize| {
        if pinned.lazy {
            return if behind::put(at, length, protection) { Ok(at) } else { Err(Errno::NOMEM) };
        }
        // SAFETY: inside the reservation.
        unsafe { map_zeros(at, length, protection) }
    };
    let mut at = 0;
    for extent in &pinned.extents {
        let start = extent.file_offset_bytes.checked_sub(offset).ok_or(Errno::IO)? as usize;
        if start >= length {
            break;
        }
        let piece = (extent.length_bytes as usize).min(length - start);
        // A file system that tells nonsense must not make us map over the program's memory.
        if start < at || !start.is_multiple_of(PAGE_BYTES) {
            return Err(Errno::IO);
        }
        at = start + piece;
        match extent.descriptor {
            Some(descriptor) => {
                let from = extent.descriptor_offset_bytes as usize;
                // SAFETY: inside the reservation.
                unsafe { map_memory(base + start, piece, protection, kind | MAP_FIXED, descriptor as usize, from)? }
            }
            None => map_hole(base + start, piece)?,
        };
    }
    if at < length {
        map_hole(base + at, length - at)?;
    }
    Ok(())
}

/// Pages behind the end of a file; zeros that are nobody's where they cannot be had.
fn map_behind(at: usize, length: usize, protection: usize) -> Result<(), Errno> {
    if length == 0 || behind::put(at, length, protection) {
        return Ok(());
    }
    // SAFETY: inside the reservation.
    unsafe { map_zeros(at, length, protection) }.map(|_| ())
}

/// A map that is a copy.
pub(super) fn copy(
    fs: &dyn FileSystem,
    node: NodeId,
    base: usize,
    length: usize,
    offset: u64,
    protection: usize,
) -> Result<(), Errno> {
    const PROT_READ_WRITE: usize = 3;
    // SAFETY: inside the reservation.
    let result = unsafe {
        syscall(MMAP, [base, length, PROT_READ_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, usize::MAX, 0])
    };
    if is_error(result) {
        return Err(Errno::from_raw_os_error(-result as i32));
    }
    let mut done = 0;
    while done < length {
        // SAFETY: memory mapped just now, which nobody else knows yet.
        let mut into = unsafe { Destination::from_user(UserSlice::new(base + done, length - done)) };
        match fs.read(node, offset + done as u64, &mut into).map_err(|error| error.errno())? {
            0 => break,
            count => done += count,
        }
    }
    // SAFETY: the program's wish for this memory.
    unsafe { syscall(MPROTECT, [base, length, protection]) };
    Ok(())
}

/// Zeros that are nobody's, over what is there.
///
/// # Safety
/// What is there may be replaced.
unsafe fn map_zeros(at: usize, length: usize, protection: usize) -> Result<usize, Errno> {
    // SAFETY: the caller's promise.
    unsafe { map_memory(at, length, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, usize::MAX, 0) }
}

/// Asks the kernel for a map; where it is. The last two are of a file.
///
/// # Safety
/// With `MAP_FIXED`, what is there may be replaced.
pub(super) unsafe fn map_memory(
    at: usize,
    length: usize,
    protection: usize,
    flags: usize,
    descriptor: usize,
    offset: usize,
) -> Result<usize, Errno> {
    // SAFETY: the caller's promise.
    let result = unsafe { syscall(MMAP, [at, length, protection, flags, descriptor, offset]) };
    if is_error(result) { Err(Errno::from_raw_os_error(-result as i32)) } else { Ok(result as usize) }
}
