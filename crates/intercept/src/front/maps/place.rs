//! Where in memory a map lies, which is ours to say if the program does not: so that huge pages of the medium can be mapped as what
//! they are, with one page fault for 2 MiB. The kernel does that where addresses and the medium's offsets agree below 2 MiB.

use super::lay::map_memory;
use super::{MAP_ANONYMOUS, MAP_NORESERVE, MAP_PLACEMENT, MAP_PRIVATE, Wish};
use crate::number::MUNMAP;
use crate::raw::syscall;
use gannet_vfs::{Errno, MappedExtent};

const HUGE_BYTES: usize = 2 << 20;

/// Reserves memory for a map of these extents; where it is.
pub(super) fn reserve(wish: &Wish, extents: &[MappedExtent]) -> Result<usize, Errno> {
    match wanted_phase(wish, extents) {
        Some(phase) => reserve_at_phase(wish.length, phase).or_else(|_| reserve_anywhere(wish.address, wish.length, 0)),
        None => reserve_anywhere(wish.address, wish.length, wish.flags & MAP_PLACEMENT),
    }
}

/// Whether it matters where a map of these extents lies, and is ours to say.
pub(super) fn wants_alignment(wish: &Wish, extents: &[MappedExtent]) -> bool {
    wanted_phase(wish, extents).is_some()
}

fn wanted_phase(wish: &Wish, extents: &[MappedExtent]) -> Option<usize> {
    let is_free = wish.address == 0 && wish.flags & MAP_PLACEMENT == 0;
    if is_free { phase(wish.offset, wish.length, extents) } else { None }
}

/// What an address must leave when divided by 2 MiB; `None` if no huge page of the medium lies whole in the map.
fn phase(offset: u64, length: usize, extents: &[MappedExtent]) -> Option<usize> {
    let longest =
        extents.iter().filter(|extent| extent.descriptor.is_some()).max_by_key(|extent| extent.length_bytes)?;
    let before = longest.file_offset_bytes.checked_sub(offset)? as usize;
    let count = (longest.length_bytes as usize).min(length.checked_sub(before)?);
    let at = longest.descriptor_offset_bytes as usize;
    let first_whole = at.checked_next_multiple_of(HUGE_BYTES)?;
    (at + count >= first_whole + HUGE_BYTES).then(|| at.wrapping_sub(before) % HUGE_BYTES)
}

fn reserve_anywhere(address: usize, length: usize, placement: usize) -> Result<usize, Errno> {
    let flags = placement | MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    // SAFETY: the program's wish for memory, at first as a reservation.
    unsafe { map_memory(address, length, 0, flags, usize::MAX, 0) }
}

/// Reserves more than is needed and gives back what lies before and behind.
fn reserve_at_phase(length: usize, phase: usize) -> Result<usize, Errno> {
    let all = length.checked_add(HUGE_BYTES).ok_or(Errno::NOMEM)?;
    let start = reserve_anywhere(0, all, 0)?;
    let before = phase.wrapping_sub(start) % HUGE_BYTES;
    for (at, count) in [(start, before), (start + before + length, HUGE_BYTES - before)] {
        if count > 0 {
            // SAFETY: of the reservation made above, which nobody knows.
            unsafe { syscall(MUNMAP, [at, count]) };
        }
    }
    Ok(start + before)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: u64 = 4096;
    const HUGE: u64 = HUGE_BYTES as u64;

    fn extent(file_offset_bytes: u64, length_bytes: u64, descriptor_offset_bytes: u64) -> MappedExtent {
        MappedExtent {
            file_offset_bytes,
            length_bytes,
            descriptor: Some(1),
            descriptor_offset_bytes,
            descriptor_file: (1, 1),
            address: 4096,
        }
    }

    #[test]
    fn addresses_agree_with_the_medium() {
        // A huge page that is the file's first.
        assert_eq!(phase(0, HUGE_BYTES, &[extent(0, HUGE, 8 * HUGE)]), Some(0));
        // The file begins inside one.
        assert_eq!(phase(0, 2 * HUGE_BYTES, &[extent(0, 2 * HUGE, 8 * HUGE + 3 * PAGE)]), Some(3 * 4096));
        // A small extent before it, and a map that begins behind the file's start.
        let extents = [extent(PAGE, PAGE, 5 * PAGE), extent(2 * PAGE, 4 * HUGE, 16 * HUGE)];
        assert_eq!(phase(PAGE, 5 * HUGE_BYTES, &extents), Some(HUGE_BYTES - 4096));
    }

    #[test]
    fn no_huge_page_no_wish() {
        assert_eq!(phase(0, HUGE_BYTES, &[]), None);
        assert_eq!(
            phase(0, 2 * HUGE_BYTES, &[extent(0, HUGE, 8 * HUGE + PAGE)]),
            None,
            "none lies whole in the extent"
        );
        assert_eq!(phase(0, HUGE_BYTES - 4096, &[extent(0, 4 * HUGE, 8 * HUGE)]), None, "nor in the map");
        let hole = MappedExtent { descriptor: None, ..extent(0, 4 * HUGE, 0) };
        assert_eq!(phase(0, 4 * HUGE_BYTES, &[hole]), None);
    }

    #[test]
    fn reservations_lie_where_they_are_wanted() {
        for phase in [0, 4096, HUGE_BYTES - 4096] {
            let at = reserve_at_phase(HUGE_BYTES, phase).unwrap();
            assert_eq!(at % HUGE_BYTES, phase);
            // SAFETY: the reservation.
            unsafe { syscall(MUNMAP, [at, HUGE_BYTES]) };
        }
    }
}
