//! `mmap` of a volume's files: the medium's own pages, where the file system can name them.
//!
//! The file system pins the range and tells which pieces of which descriptor of the kernel hold it; those are mapped side by
//! side. Where it cannot (no medium, or pieces that are not whole pages) a private or read-only map is a copy made
//! at once, and a writable shared one is refused with ENODEV. Pins are given back when nothing of the map is left.

use super::call::{Answer, Call, done};
use super::data;
use crate::dispatch::Outcome;
use crate::number::*;
use crate::raw::{is_error, syscall};
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use gannet_usermem::{Destination, UserSlice};
use gannet_vfs::{Errno, FileType, MapAccess, MapToken, MappedExtent, NodeId};

const PAGE_BYTES: usize = 4096;
const PROT_WRITE: usize = 2;
const MAP_SHARED: usize = 1;
const MAP_PRIVATE: usize = 2;
const MAP_SHARED_VALIDATE: usize = 3;
const MAP_TYPE: usize = 0xf;
const MAP_GROWSDOWN: usize = 0x100;
const MAP_HUGETLB: usize = 0x4_0000;
/// What MAP_SHARED_VALIDATE accepts: everything older than it, but not MAP_SYNC.
const MAP_KNOWN: usize = 0xfc00_0000 | 0x7_ff80 | 0x13 | 0xc0;
const MAP_FIXED: usize = 0x10;
const MAP_ANONYMOUS: usize = 0x20;
const MAP_NORESERVE: usize = 0x4000;
/// Flags about where: MAP_32BIT, MAP_FIXED, MAP_FIXED_NOREPLACE.
const MAP_PLACEMENT: usize = 0x40 | MAP_FIXED | 0x10_0000;

/// A map, or what is left of one.
struct Region {
    start: usize,
    end: usize,
    mount: usize,
    node: NodeId,
    /// Where in the file `start` is.
    offset: u64,
    /// Index of the pin, shared by the pieces of one map.
    pin: usize,
    shared: bool,
    /// As it was mapped with.
    protection: usize,
    /// The descriptor was open for writing.
    writable: bool,
}

impl Region {
    /// What of it lies behind an address.
    fn from(&self, address: usize) -> Part {
        let Region { end, mount, node, shared, protection, writable, .. } = *self;
        let start = address.max(self.start);
        Part {
            start,
            end,
            mount,
            node,
            shared,
            protection,
            writable,
            offset: self.offset + (start - self.start) as u64,
        }
    }
}

struct Maps {
    regions: Vec<Region>,
    pins: Vec<Option<MapToken>>,
}

static LOCK: AtomicU32 = AtomicU32::new(0);
static COUNT: AtomicUsize = AtomicUsize::new(0);
static mut MAPS: Maps = Maps { regions: Vec::new(), pins: Vec::new() };

fn locked<T>(work: impl FnOnce(&mut Maps) -> T) -> T {
    while LOCK.compare_exchange_weak(0, 1, Ordering::Acquire, Ordering::Relaxed).is_err() {
        // SAFETY: gives the processor away.
        unsafe { syscall(SCHED_YIELD, []) };
    }
    let maps = &raw mut MAPS;
    // SAFETY: under the lock; the reference ends with `work`.
    let maps = unsafe { &mut *maps };
    let result = work(maps);
    COUNT.store(maps.regions.len(), Ordering::Release);
    LOCK.store(0, Ordering::Release);
    result
}

/// Whether anything of a volume is mapped.
pub(crate) fn any() -> bool {
    COUNT.load(Ordering::Acquire) != 0
}

/// Takes the lock so that a forked child finds it free, or releases it.
pub(crate) fn around_fork(before: bool) {
    if before {
        while LOCK.compare_exchange_weak(0, 1, Ordering::Acquire, Ordering::Relaxed).is_err() {
            core::hint::spin_loop();
        }
    } else {
        LOCK.store(0, Ordering::Release);
    }
}

/// A forked child has its parent's maps but not its pins: takes its own at once, while the parent most likely still has its.
pub(crate) fn after_fork_in_child(front: &super::Front) {
    if COUNT.load(Ordering::Acquire) == 0 {
        return;
    }
    locked(|maps| {
        for token in &mut maps.pins {
            *token = None;
        }
        for region in &mut maps.regions {
            let length = (region.end - region.start) as u64;
            let writes = region.shared && region.protection & PROT_WRITE != 0;
            let access = if writes { MapAccess::Inherited } else { MapAccess::Read };
            let pinned = front.file_system(region.mount).and_then(|fs| {
                fs.map(region.node, access, region.offset, length, &mut |_| {}).map_err(|error| error.errno())
            });
            // Pieces of one map get a pin each.
            region.pin = maps.pins.len();
            maps.pins.push(pinned.ok());
        }
    });
}

/// Forgets what lay in a range; gives back pins that nothing is left of.
fn forget(call: &Call<'_>, start: usize, end: usize) {
    if COUNT.load(Ordering::Acquire) == 0 {
        return;
    }
    let mut given_back: Vec<(usize, MapToken)> = Vec::new();
    locked(|maps| {
        let mut index = 0;
        while index < maps.regions.len() {
            let region = &mut maps.regions[index];
            if region.start >= end || start >= region.end {
                index += 1;
                continue;
            }
            let Region { mount, node, pin, shared, protection, writable, .. } = *region;
            let offset_at = |address: usize| region.offset + (address - region.start) as u64;
            if region.start < start && end < region.end {
                let tail = Region {
                    start: end,
                    end: region.end,
                    mount,
                    node,
                    offset: offset_at(end),
                    pin,
                    shared,
                    protection,
                    writable,
                };
                region.end = start;
                maps.regions.push(tail);
            } else if region.start < start {
                region.end = start;
            } else if end < region.end {
                (region.offset, region.start) = (offset_at(end), end);
            } else {
                maps.regions.swap_remove(index);
                if !maps.regions.iter().any(|other| other.pin == pin)
                    && let Some(token) = maps.pins.get_mut(pin).and_then(Option::take)
                {
                    given_back.push((mount, token));
                }
                continue;
            }
            index += 1;
        }
    });
    for (mount, token) in given_back {
        if let Ok(fs) = call.front.file_system(mount) {
            let _ = fs.unmap(token);
        }
    }
}

/// Whether anything of a volume is mapped in a range.
fn has_any(start: usize, end: usize) -> bool {
    COUNT.load(Ordering::Acquire) != 0
        && locked(|maps| maps.regions.iter().any(|region| region.start < end && start < region.end))
}

/// `mmap`.
pub(crate) fn map(call: &Call<'_>) -> Answer {
    let [address, length, protection, flags, descriptor, offset] = call.arguments;
    let file = if flags & MAP_ANONYMOUS != 0 { None } else { call.open_file(descriptor) };
    let Some(file) = file else {
        if flags & MAP_FIXED != 0 {
            forget(call, address, address.saturating_add(length).next_multiple_of(PAGE_BYTES));
        }
        return Ok(Outcome::Pass);
    };
    if length == 0 || !offset.is_multiple_of(PAGE_BYTES) {
        return Err(Errno::INVAL);
    }
    if offset > i64::MAX as usize {
        return Err(Errno::OVERFLOW);
    }
    let length = length.checked_next_multiple_of(PAGE_BYTES).ok_or(Errno::NOMEM)?;
    data::check_not_path(&file)?;
    // MAP_SHARED, MAP_PRIVATE, or MAP_SHARED_VALIDATE.
    let shared = match flags & MAP_TYPE {
        MAP_SHARED => true,
        MAP_SHARED_VALIDATE if flags & !MAP_KNOWN != 0 => return Err(Errno::OPNOTSUPP),
        MAP_SHARED_VALIDATE => true,
        MAP_PRIVATE => false,
        _ => return Err(Errno::INVAL),
    };
    if flags & MAP_HUGETLB != 0 {
        return Err(Errno::INVAL);
    }
    let writes = shared && protection & PROT_WRITE != 0;
    if writes && data::check_writable(&file).is_err() {
        return Err(Errno::ACCESS);
    }
    data::check_readable(&file).map_err(|errno| if errno == Errno::ISDIR { Errno::NODEV } else { Errno::ACCESS })?;
    if file.file_type != FileType::Regular {
        return Err(Errno::NODEV);
    }
    if flags & MAP_GROWSDOWN != 0 {
        return Err(Errno::INVAL);
    }
    let fs = call.file_system(&file)?;
    let writable = data::check_writable(&file).is_ok();
    let wish = Wish { address, length, protection, flags, offset: offset as u64, writable };
    done(establish(call, fs, file.mount, file.node, &wish)?)
}

/// What a program asks of a map, checked.
struct Wish {
    address: usize,
    /// Whole pages.
    length: usize,
    protection: usize,
    flags: usize,
    offset: u64,
    /// The descriptor is open for writing.
    writable: bool,
}

/// Makes a map of a file; where it is.
fn establish(
    call: &Call<'_>,
    fs: &dyn gannet_vfs::FileSystem,
    mount: usize,
    node: NodeId,
    wish: &Wish,
) -> Result<usize, Errno> {
    let Wish { address, length, protection, flags, offset, writable } = *wish;
    let shared = flags & MAP_TYPE != MAP_PRIVATE;
    let writes = shared && protection & PROT_WRITE != 0;
    // SAFETY: the program's wish for memory, at first as a reservation.
    let base = unsafe {
        let placement = flags & MAP_PLACEMENT | MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
        syscall(MMAP, [address, length, 0, placement, usize::MAX, 0])
    };
    if is_error(base) {
        return Err(Errno::from_raw_os_error(-base as i32));
    }
    let base = base as usize;
    if flags & MAP_FIXED != 0 {
        forget(call, base, base + length);
    }
    let access = if writes { MapAccess::Write } else { MapAccess::Read };
    let mut extents: Vec<MappedExtent> = Vec::new();
    let pinned = fs.map(node, access, offset, length as u64, &mut |extent| extents.push(*extent));
    let result = match pinned {
        Ok(token) => {
            let result = map_extents(base, length, offset, protection, shared, &extents);
            if result.is_ok() {
                locked(|maps| {
                    let pin = maps.pins.iter().position(Option::is_none).unwrap_or(maps.pins.len());
                    if pin == maps.pins.len() {
                        maps.pins.push(None);
                    }
                    maps.pins[pin] = Some(token);
                    let end = base + length;
                    maps.regions.push(Region {
                        start: base,
                        end,
                        mount,
                        node,
                        offset,
                        pin,
                        shared,
                        protection,
                        writable,
                    });
                });
            } else {
                let _ = fs.unmap(token);
            }
            result
        }
        Err(error) if matches!(error.errno(), Errno::NODEV | Errno::OPNOTSUPP) && !writes => {
            copy(fs, node, base, length, offset, protection)
        }
        Err(error) => Err(error.errno()),
    };
    if let Err(errno) = result {
        // SAFETY: the reservation made above.
        unsafe { syscall(MUNMAP, [base, length]) };
        return Err(errno);
    }
    Ok(base)
}

fn map_extents(
    base: usize,
    length: usize,
    offset: u64,
    protection: usize,
    shared: bool,
    extents: &[MappedExtent],
) -> Result<(), Errno> {
    let kind = if shared { MAP_SHARED } else { MAP_PRIVATE };
    let mut at = 0;
    for extent in extents {
        let start = extent.file_offset_bytes.checked_sub(offset).ok_or(Errno::IO)? as usize;
        let piece = extent.length_bytes as usize;
        // A file system that tells nonsense must not make us map over the program's memory.
        if start < at || start.checked_add(piece).is_none_or(|end| end > length) || !start.is_multiple_of(PAGE_BYTES) {
            return Err(Errno::IO);
        }
        at = start + piece;
        let call = match extent.descriptor {
            Some(descriptor) => [
                base + start,
                piece,
                protection,
                kind | MAP_FIXED,
                descriptor as usize,
                extent.descriptor_offset_bytes as usize,
            ],
            None => [base + start, piece, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, usize::MAX, 0],
        };
        // SAFETY: inside the reservation.
        let result = unsafe { syscall(MMAP, call) };
        if is_error(result) {
            return Err(Errno::from_raw_os_error(-result as i32));
        }
    }
    if at < length {
        let call = [base + at, length - at, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, usize::MAX, 0];
        // SAFETY: inside the reservation.
        let result = unsafe { syscall(MMAP, call) };
        if is_error(result) {
            return Err(Errno::from_raw_os_error(-result as i32));
        }
    }
    Ok(())
}

/// A map that is a copy.
fn copy(
    fs: &dyn gannet_vfs::FileSystem,
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

/// `munmap`.
pub(crate) fn unmap(call: &Call<'_>) -> Answer {
    let [start, length, ..] = call.arguments;
    let Some(end) = start.checked_add(length).and_then(|end| end.checked_next_multiple_of(PAGE_BYTES)) else {
        return Ok(Outcome::Pass);
    };
    if !has_any(start, end) {
        return Ok(Outcome::Pass);
    }
    // SAFETY: the program's call. Only then are the pages let go, which others may get.
    let result = unsafe { syscall(MUNMAP, [start, length]) };
    if !is_error(result) {
        forget(call, start, end);
    }
    Ok(Outcome::Done(result))
}

/// `mremap`: shrinks in place; grows and moves by mapping the file's range anew, as the pages of both maps are the medium's. What a private map holds
/// of its own is copied.
pub(crate) fn remap(call: &Call<'_>) -> Answer {
    const MREMAP_MAYMOVE: usize = 1;
    const MREMAP_FIXED: usize = 2;
    let [start, old_length, new_length, flags, target, _] = call.arguments;
    let page_end = |length: usize| start.checked_add(length)?.checked_next_multiple_of(PAGE_BYTES);
    let Some(end) = page_end(old_length) else { return Ok(Outcome::Pass) };
    let Some(part) = part_at(start, end.max(start + 1)) else { return Ok(Outcome::Pass) };
    let fixed = flags & MREMAP_FIXED != 0;
    if flags & !(MREMAP_MAYMOVE | MREMAP_FIXED) != 0
        || fixed && (flags & MREMAP_MAYMOVE == 0 || !target.is_multiple_of(PAGE_BYTES))
        || !start.is_multiple_of(PAGE_BYTES)
        || new_length == 0
    {
        return Err(Errno::INVAL);
    }
    if old_length == 0 || part.end < end {
        return Err(Errno::FAULT);
    }
    let new_end = page_end(new_length).ok_or(Errno::NOMEM)?;
    let (length, new_length) = (end - start, new_end - start);
    if new_length <= length && !fixed {
        if new_length < length {
            // SAFETY: the program's wish for its own map.
            unsafe { syscall(MUNMAP, [new_end, end - new_end]) };
            forget(call, new_end, end);
        }
        return done(start);
    }
    let kind = if part.shared { MAP_SHARED } else { MAP_PRIVATE };
    let grown = new_length.saturating_sub(length);
    let fs = call.front.file_system(part.mount)?;
    let place = |address, length, flags, skipped: usize| {
        let Part { protection, writable, .. } = part;
        let offset = part.offset + skipped as u64;
        let wish = Wish { address, length, protection, flags: kind | flags, offset, writable };
        establish(call, fs, part.mount, part.node, &wish)
    };
    if !fixed {
        const MAP_FIXED_NOREPLACE: usize = 0x10_0000;
        match place(end, grown, MAP_FIXED_NOREPLACE, length) {
            Ok(at) if at == end => return done(start),
            // A kernel that does not know the flag.
            Ok(at) => drop_map(call, at, grown),
            Err(Errno::EXIST) => {}
            Err(errno) => return Err(errno),
        }
        if flags & MREMAP_MAYMOVE == 0 {
            return Err(Errno::NOMEM);
        }
    }
    let at = if fixed { place(target, new_length, MAP_FIXED, 0) } else { place(0, new_length, 0, 0) }?;
    if !part.shared {
        copy_pages(start, at, length.min(new_length), part.protection)?;
    }
    drop_map(call, start, length);
    done(at)
}

/// What a private map holds goes to its new place.
fn copy_pages(from: usize, to: usize, length: usize, protection: usize) -> Result<(), Errno> {
    const PROT_READ_WRITE: usize = 3;
    // SAFETY: maps of the program's, of that length; the protection of the new one is the program's wish again afterwards.
    unsafe {
        syscall(MPROTECT, [to, length, PROT_READ_WRITE]);
        let copied = gannet_usermem::copy::copy(to as *mut u8, from as *const u8, length);
        syscall(MPROTECT, [to, length, protection]);
        copied.map_err(|_| Errno::FAULT)
    }
}

fn drop_map(call: &Call<'_>, start: usize, length: usize) {
    // SAFETY: the program's map, which it wants no more.
    unsafe { syscall(MUNMAP, [start, length]) };
    forget(call, start, start + length);
}

/// The map at `start`: one piece that begins there.
fn part_at(start: usize, end: usize) -> Option<Part> {
    if COUNT.load(Ordering::Acquire) == 0 {
        return None;
    }
    locked(|maps| {
        maps.regions.iter().find(|region| region.start < end && start < region.end).map(|region| region.from(start))
    })
}

/// Part of a map, from an address on.
struct Part {
    start: usize,
    end: usize,
    mount: usize,
    node: NodeId,
    shared: bool,
    protection: usize,
    writable: bool,
    offset: u64,
}

/// `mprotect`: a shared map that is to become writable is made anew, as the file system must know that it will be written to.
pub(crate) fn protect(call: &Call<'_>) -> Answer {
    let [start, length, protection, ..] = call.arguments;
    if protection & PROT_WRITE == 0 || COUNT.load(Ordering::Acquire) == 0 || !start.is_multiple_of(PAGE_BYTES) {
        return Ok(Outcome::Pass);
    }
    let Some(end) = start.checked_add(length).and_then(|end| end.checked_next_multiple_of(PAGE_BYTES)) else {
        return Ok(Outcome::Pass);
    };
    // Each round makes one map writable.
    while let Some(part) = readable_at(start, end) {
        if !part.writable {
            return Err(Errno::ACCESS);
        }
        let fs = call.front.file_system(part.mount)?;
        let (address, length) = (part.start, part.end.min(end) - part.start);
        let flags = MAP_SHARED | MAP_FIXED;
        let wish = Wish { address, length, protection, flags, offset: part.offset, writable: true };
        establish(call, fs, part.mount, part.node, &wish)?;
    }
    Ok(Outcome::Pass)
}

/// The first shared map in a range that was not mapped for writing.
fn readable_at(start: usize, end: usize) -> Option<Part> {
    locked(|maps| {
        let region = maps.regions.iter().find(|region| {
            region.shared && region.protection & PROT_WRITE == 0 && region.start < end && start < region.end
        })?;
        Some(region.from(start))
    })
}

/// `msync`.
pub(crate) fn sync(call: &Call<'_>) -> Answer {
    let [start, length, ..] = call.arguments;
    let end = start.saturating_add(length).checked_next_multiple_of(PAGE_BYTES).unwrap_or(usize::MAX);
    // Piece by piece of what is mapped, by address: nothing is kept of them meanwhile.
    let mut at = start;
    while let Some(part) = first_behind(at, end) {
        let fs = call.front.file_system(part.mount)?;
        let length = part.end.min(end) - part.start;
        fs.sync_range(part.node, part.offset, length as u64).map_err(|error| error.errno())?;
        at = part.end;
    }
    Ok(Outcome::Pass)
}

/// What lies lowest of the shared maps between two addresses.
fn first_behind(start: usize, end: usize) -> Option<Part> {
    if COUNT.load(Ordering::Acquire) == 0 {
        return None;
    }
    locked(|maps| {
        let inside = |region: &&Region| region.shared && region.start < end && start < region.end;
        maps.regions.iter().filter(inside).min_by_key(|region| region.start).map(|region| region.from(start))
    })
}
