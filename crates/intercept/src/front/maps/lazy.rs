//! Holes of shared maps that can be stored through. They get their blocks when the map is made; those of very large sparse files (databases
//! that map far more than they have), and those that the volume has no room for, when they are used.
//!
//! Until then nothing is behind their pages, as [behind](super::behind) the end of a file: the first use is a SIGBUS, and its handler asks the
//! file system for the blocks of a piece around it. Loads are stores here: what another process puts into a hole later must be seen.
//! The price: a thread that blocks SIGBUS dies of the first use, so a process in which one does is given all blocks at once; and a call of
//! the host's with such an address says EFAULT. Calls on descriptors, whosever they are, come to the handler from the first such map on,
//! which fills what they name before.

use super::regions::{Part, first_lazy, first_of_any, lazy_piece, placing};
use super::renew::renew_part_with;
use super::{Change, Holes, PAGE_BYTES, PROT_WRITE, Wish, behind, renew};
use crate::front::call::Call;
use crate::front::ends::is_single_threaded;
use crate::memory::read_value;
use crate::number::*;
use crate::raw::{is_error, syscall};
use crate::signal::SIGBUS;
use gannet_vfs::{Errno, FileSystem, NodeId};

/// Holes of less than this in all get their blocks at once, where there is room.
const HOLES_BYTES_MIN: u64 = 256 << 20;
/// What a first use fills; the next to it twice as much as the last, up to [`PIECE_BYTES_MAX`].
const PIECE_BYTES_MIN: usize = 64 << 10;
pub(super) const PIECE_BYTES_MAX: usize = 2 << 20;
/// With each so many pieces more, what is filled at least doubles: the kernel has places for some 65,000 maps.
const PIECES_STEP: usize = 2048;
const DOUBLINGS_MAX: usize = 14;

const SIGBUS_BIT: u64 = 1 << (SIGBUS - 1);
/// Signals 32 and 33, of which `sigfillset` and `pthread_sigmask` leave out both.
const LIBRARYS_BITS: u64 = 3 << 31;
const MAP_POPULATE: usize = 0x8000;
pub(super) const MADV_POPULATE_READ: usize = 22;
pub(super) const MADV_POPULATE_WRITE: usize = 23;

/// Whether the holes that a map has are to be filled when they are used.
pub(super) fn is_wanted(fs: &dyn FileSystem, node: NodeId, wish: &Wish) -> bool {
    wish.writes()
        && wish.length as u64 >= HOLES_BYTES_MIN
        && wish.flags & MAP_POPULATE == 0
        && holes_bytes(fs, node, wish.offset, wish.length) >= HOLES_BYTES_MIN
        && !somebody_blocks()
}

/// How many bytes of a range have no blocks, up to the end of the file.
fn holes_bytes(fs: &dyn FileSystem, node: NodeId, offset: u64, length: usize) -> u64 {
    let length = behind::reached(fs, node, offset, length) as u64;
    let end = offset + length;
    let mut held = 0;
    let told = fs.extents(node, offset, length, &mut |extent| {
        let from = extent.file_offset_bytes.max(offset);
        held += (extent.file_offset_bytes + extent.length_bytes).min(end).saturating_sub(from);
        true
    });
    if told.is_ok() { length.saturating_sub(held) } else { 0 }
}

/// Whether a thread blocks SIGBUS, going by what the kernel shows of each (proc_pid_status(5)).
pub(super) fn somebody_blocks() -> bool {
    if own_mask() & SIGBUS_BIT != 0 {
        return true;
    }
    if is_single_threaded() {
        return false;
    }
    const O_DIRECTORY_CLOEXEC: usize = 0o2200000;
    let path = c"/proc/self/task".as_ptr() as usize;
    // SAFETY: a path that ends in zero.
    let tasks = unsafe { syscall(OPENAT, [usize::MAX, path, O_DIRECTORY_CLOEXEC, 0]) };
    if is_error(tasks) {
        return true;
    }
    let mut blocks = false;
    let mut entries = [0u8; 4096];
    loop {
        // SAFETY: our own descriptor, and a buffer of that length.
        let length = unsafe { syscall(GETDENTS64, [tasks as usize, entries.as_mut_ptr() as usize, entries.len()]) };
        let Some(mut rest) =
            usize::try_from(length).ok().filter(|length| *length > 0).and_then(|end| entries.get(..end))
        else {
            blocks |= is_error(length);
            break;
        };
        // struct linux_dirent64 (getdents(2)): the length of the entry, and where its name begins.
        while let Some(entry) = rest.get(16..18).and_then(|at| rest.get(..u16::from_le_bytes([at[0], at[1]]) as usize))
        {
            let name = entry.get(19..).and_then(|name| name.split(|byte| *byte == 0).next()).unwrap_or_default();
            blocks |= name.first().is_some_and(u8::is_ascii_digit) && blocks_for_long(mask_of(tasks as usize, name));
            rest = &rest[entry.len()..];
        }
    }
    // SAFETY: opened above.
    unsafe { syscall(CLOSE, [tasks as usize]) };
    blocks
}

/// Whether a thread with this mask does not use memory of the program's only until it takes the mask off again, as one in the middle of
/// `pthread_create` or `posix_spawn`: the signals that the C library has for itself nobody else blocks.
fn blocks_for_long(mask: u64) -> bool {
    mask & SIGBUS_BIT != 0 && mask & LIBRARYS_BITS != LIBRARYS_BITS
}

fn own_mask() -> u64 {
    let mut mask = 0u64;
    // SAFETY: room for a mask.
    let result = unsafe { syscall(RT_SIGPROCMASK, [0, 0, (&raw mut mask) as usize, size_of::<u64>()]) };
    if is_error(result) { SIGBUS_BIT } else { mask }
}

/// What a thread blocks. One that is gone meanwhile blocks nothing; one that cannot be looked at blocks SIGBUS.
fn mask_of(tasks: usize, thread: &[u8]) -> u64 {
    let mut path = [0u8; 32];
    let name = b"/status\0";
    let Some(room) = path.get_mut(..thread.len() + name.len()) else { return SIGBUS_BIT };
    room[..thread.len()].copy_from_slice(thread);
    room[thread.len()..].copy_from_slice(name);
    let mut text = [0u8; 4096];
    // SAFETY: a path that ends in zero, our own descriptors, and a buffer of that length.
    let length = unsafe {
        let opened = syscall(OPENAT, [tasks, path.as_ptr() as usize, 0o2000000, 0]);
        if is_error(opened) {
            return if opened == -(Errno::NOENT.raw_os_error() as isize) { 0 } else { SIGBUS_BIT };
        }
        let length = syscall(READ, [opened as usize, text.as_mut_ptr() as usize, text.len()]);
        syscall(CLOSE, [opened as usize]);
        length
    };
    // ESRCH: it has ended.
    let Some(text) = usize::try_from(length).ok().and_then(|length| text.get(..length)) else { return 0 };
    let line = text.split(|byte| *byte == b'\n').find_map(|line| line.strip_prefix(b"SigBlk:"));
    let number = line.and_then(|line| core::str::from_utf8(line).ok());
    number.and_then(|number| u64::from_str_radix(number.trim(), 16).ok()).unwrap_or(SIGBUS_BIT)
}

/// How a piece that is filled lies around the place in the file where it was used: how far before that it begins, and how long it is. `last` is the
/// length of what was filled right before, and `pieces` how many there are.
pub(super) fn piece(offset: u64, last: Option<usize>, pieces: usize) -> (usize, usize) {
    let least = PIECE_BYTES_MIN << (pieces / PIECES_STEP).min(DOUBLINGS_MAX);
    match last {
        Some(last) => ((offset % PAGE_BYTES as u64) as usize, (2 * last).clamp(least, PIECE_BYTES_MAX.max(least))),
        None => ((offset % least as u64) as usize, least),
    }
}

/// A page was used that had no blocks when it was mapped, or behind which there was nothing. True if it can be used by now.
pub(super) fn used(call: &Call<'_>, address: usize) -> bool {
    match fill(call, address) {
        Some(Ok(_)) => true,
        Some(Err(_)) => false,
        // Another thread may have been here before; or the medium itself refuses it.
        None => first_of_any(address, address.saturating_add(1)).is_some_and(|part| is_usable(&part, address)),
    }
}

/// Whether the kernel finds something behind a page of a map, for what the map is there for: a hole of the medium can be read where there
/// is no room for what is stored to it.
fn is_usable(part: &Part, address: usize) -> bool {
    let stores = part.shared && part.protection & PROT_WRITE != 0;
    let advice = if stores { MADV_POPULATE_WRITE } else { MADV_POPULATE_READ };
    // SAFETY: has the kernel do what a use of the page does, which changes nothing in it.
    match unsafe { syscall(MADVISE, [address & !(PAGE_BYTES - 1), PAGE_BYTES, advice]) } {
        0 => true,
        // Kernels before 5.14.
        result => result == -(Errno::INVAL.raw_os_error() as isize) && read_value(address, &mut 0u8).is_ok(),
    }
}

/// Makes the piece of a map around an address anew, with blocks; where it ends. `None` if nothing is to be filled there.
fn fill(call: &Call<'_>, address: usize) -> Option<Result<usize, Errno>> {
    let piece = placing(|| {
        let mut piece = lazy_piece(address)?;
        let renewed = call.front.file_system(piece.mount).and_then(|fs| {
            let renew = |piece: &Part| renew_part_with(call, fs, piece, piece.protection, Holes::Fill);
            match renew(&piece) {
                // The last blocks there are go to who needs them.
                Err(Errno::NOSPC) if piece.end - piece.start > PAGE_BYTES => {
                    let skipped = (address - piece.start) & !(PAGE_BYTES - 1);
                    (piece.start, piece.offset) = (piece.start + skipped, piece.offset + skipped as u64);
                    piece.end = piece.start + PAGE_BYTES;
                    renew(&piece)
                }
                renewed => renewed,
            }
        });
        Some(renewed.map(|()| piece))
    })?;
    Some(piece.map(|piece| {
        // Other maps show zeros that are nobody's.
        let end = piece.offset + (piece.end - piece.start) as u64;
        renew(call, piece.mount, piece.node, piece.offset, end, Change::Written);
        piece.end
    }))
}

/// Fills what of a range of memory is to be filled when it is used. Where that cannot be, the call finds out.
pub(super) fn fill_range(call: &Call<'_>, start: usize, length: usize) {
    let end = start.saturating_add(length);
    let mut at = start;
    while let Some(first) = first_lazy(at, end) {
        match fill(call, first) {
            Some(Ok(piece_end)) => at = piece_end,
            Some(Err(_)) => return,
            None => at = first.saturating_add(PAGE_BYTES) & !(PAGE_BYTES - 1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_grow_with_use_and_with_their_number() {
        const KIB: usize = 1024;
        assert_eq!(piece(100 * 4096 + 7, None, 1), ((100 * 4096 + 7) % (64 * KIB), 64 * KIB));
        assert_eq!(piece(4096 + 7, Some(64 * KIB), 1), (7, 128 * KIB));
        assert_eq!(piece(0, Some(4 << 20), 1), (0, 2 << 20));
        assert_eq!(piece(3 << 20, None, 5 * PIECES_STEP), (1 << 20, 2 << 20));
        assert_eq!(piece(0, Some(64 * KIB), 6 * PIECES_STEP), (0, 4 << 20));
        assert_eq!(piece(0, None, usize::MAX).1, 1 << 30);
    }

    /// In a process of its own: threads of other tests come and go, and block what they like.
    #[test]
    fn what_threads_block_is_seen() {
        const ALONE: &str = "GANNET_TEST_LAZY_ALONE";
        if std::env::var_os(ALONE).is_none() {
            let mut alone = std::process::Command::new(std::env::current_exe().unwrap());
            let this = "front::maps::lazy::tests::what_threads_block_is_seen";
            let told = alone.args(["--exact", this, "--test-threads=1"]).env(ALONE, "1").output().unwrap();
            assert!(told.status.success(), "{}", String::from_utf8_lossy(&told.stdout));
            assert!(String::from_utf8_lossy(&told.stdout).contains("1 passed"));
            return;
        }
        assert_eq!(own_mask() & SIGBUS_BIT, 0);
        assert!(!somebody_blocks());
        // The first as the C library does for a moment. In this order: a thread that was joined can be seen for a moment still.
        for (mask, is_seen) in [(SIGBUS_BIT | LIBRARYS_BITS, false), (SIGBUS_BIT, true)] {
            let (started, waits) = std::sync::mpsc::channel();
            let (end, ends) = std::sync::mpsc::channel::<()>();
            let thread = std::thread::spawn(move || {
                // SAFETY: a mask in the kernel's form.
                unsafe { syscall(RT_SIGPROCMASK, [0, (&raw const mask) as usize, 0, 8]) };
                started.send(()).unwrap();
                let _ = ends.recv();
            });
            waits.recv().unwrap();
            assert_eq!(somebody_blocks(), is_seen);
            drop(end);
            thread.join().unwrap();
        }
    }
}
