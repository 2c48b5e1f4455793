//! `mmap` of a volume's files: the medium's own pages, where the file system can name them.
//!
//! The file system pins the range and tells which pieces of which descriptor of the kernel hold it; those are mapped side by
//! side. Where it cannot (no medium, or pieces that are not whole pages) a private or read-only map is a copy made
//! at once, and a writable shared one is refused with ENODEV.
//!
//! | | |
//! | --- | --- |
//! | here | making a map |
//! | [`change`] | `munmap`, `mremap`, `mprotect`, `msync` |
//! | [`advice`] | `madvise`, `remap_file_pages` |
//! | [`behind`] | what lies behind the end of a file |
//! | [`lazy`] | holes that get blocks when they are used |
//! | [`named`] | what memory a call names, where such holes may be |
//! | [`pins`] | what keeps the file and its blocks |
//! | [`place`] | where a map lies, if the program does not say |
//! | [`regions`] | what is mapped where |
//! | [`list`] | the list of that |

mod advice;
mod behind;
mod change;
mod lazy;
mod list;
mod named;
mod pins;
mod place;
mod regions;

pub(crate) use advice::{advise, advise_process, remap_pages};
pub(crate) use behind::used;
pub(crate) use change::{protect, remap, sync, unmap};
pub(crate) use named::fill_for;
pub(crate) use pins::{after_fork_in_child, end, held_of, hold};
pub(crate) use regions::{any, any_lazy, any_of, around_fork};

use super::call::{Answer, Call, done};
use super::data;
use crate::dispatch::Outcome;
use crate::number::*;
use crate::raw::{is_error, syscall};
use gannet_usermem::{Destination, UserSlice};
use gannet_vfs::{Errno, FileSystem, FileType, InodeFlags, MappedExtent, NodeId};
use pins::Hold;
use regions::{Part, Region, forget, has_any, may_concern, next_of_file, placing};

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

/// No program has as many addresses, also with five levels of page tables, and no volume is as large.
const ADDRESSES_BYTES: usize = 1 << 56;

/// `mmap`.
pub(crate) fn map(call: &Call<'_>) -> Answer {
    let [address, length, protection, flags, descriptor, offset] = call.arguments;
    let file = if flags & MAP_ANONYMOUS != 0 { None } else { call.open_file(descriptor) };
    let Some(file) = file else {
        // What reaches beyond all addresses the kernel refuses.
        let end = address.checked_add(length).and_then(|end| end.checked_next_multiple_of(PAGE_BYTES));
        return match end {
            Some(end) if flags & MAP_FIXED != 0 && has_any(address, end) => Ok(replace(call, address, end)),
            _ => Ok(Outcome::Pass),
        };
    };
    // In the kernel's order, which looks at the alignment before the descriptor.
    if !offset.is_multiple_of(PAGE_BYTES) {
        return Err(Errno::INVAL);
    }
    data::check_not_path(&file)?;
    if length == 0 {
        return Err(Errno::INVAL);
    }
    let length = length.checked_next_multiple_of(PAGE_BYTES).ok_or(Errno::NOMEM)?;
    if length > ADDRESSES_BYTES {
        return Err(Errno::NOMEM);
    }
    // Of others it is found later that they cannot be mapped at all.
    let end_max = if file.file_type == FileType::Regular { i64::MAX as usize } else { usize::MAX };
    if offset > end_max - length {
        return Err(Errno::OVERFLOW);
    }
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
    if shared && writable {
        let flags = fs.permissions(file.node).map_err(|error| error.errno())?.flags;
        if flags.contains(InodeFlags::APPEND_ONLY) {
            return Err(Errno::ACCESS);
        }
    }
    let wish = Wish { address, length, protection, flags, offset: offset as u64, writable, holes: Holes::Judge };
    let hold = Hold::of_descriptor(call, descriptor, &file)?;
    done(establish(call, fs, file.node, &wish, hold)?)
}

/// The kernel puts something over maps of files, or takes them away: they are forgotten if it does and stay otherwise.
fn replace(call: &Call<'_>, start: usize, end: usize) -> Outcome {
    placing(|| {
        // SAFETY: the program's call.
        let result = unsafe { syscall(call.number, call.arguments) };
        if !is_error(result) {
            forget(call, start, end);
        }
        Outcome::Done(result)
    })
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
    holes: Holes,
}

/// What becomes of holes that a map may store to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Holes {
    /// They get blocks now.
    Fill,
    /// They get blocks when they are used, see [`lazy`].
    Leave,
    /// The one or the other.
    Judge,
}

impl Wish {
    fn is_shared(&self) -> bool {
        self.flags & MAP_TYPE != MAP_PRIVATE
    }

    /// Stores through the map change the file.
    fn writes(&self) -> bool {
        self.is_shared() && self.protection & PROT_WRITE != 0
    }
}

/// What holds a range of a file, pinned.
struct Pinned {
    hold: Hold,
    extents: Vec<MappedExtent>,
    /// What of it has no blocks gets them when it is used.
    lazy: bool,
}

impl Pinned {
    /// How many bytes from `offset` on there are up to the end of the last blocks.
    fn told(&self, offset: u64) -> usize {
        let last = self.extents.iter().rfind(|extent| extent.descriptor.is_some());
        let end = last.map_or(offset, |extent| extent.file_offset_bytes.saturating_add(extent.length_bytes));
        usize::try_from(end.saturating_sub(offset)).unwrap_or(usize::MAX)
    }
}

/// Makes a map of a file; where it is.
fn establish(call: &Call<'_>, fs: &dyn FileSystem, node: NodeId, wish: &Wish, hold: Hold) -> Result<usize, Errno> {
    let Wish { length, protection, offset, .. } = *wish;
    let mount = hold.mount;
    // What another thread changes of the file is there already when it is pinned, or finds the map in the list.
    match placing(|| put(call, fs, node, wish, hold.pin(fs, node, wish)?)) {
        Err(Errno::NODEV | Errno::OPNOTSUPP) if !wish.writes() => {
            let base = placing(|| reserve(call, wish, &[]))?;
            copy(fs, node, base, length, offset, protection)
                .inspect_err(|_| placing(|| take_away(call, base, length)))?;
            Ok(base)
        }
        made => {
            let (base, reached) = made?;
            if wish.writes() {
                // What had no blocks has some now, for the stores; other maps show zeros there that are nobody's.
                renew(call, mount, node, offset, offset + (reached - base) as u64, Change::Written);
            }
            Ok(base)
        }
    }
}

/// Puts a map of what is pinned where the program wishes it; where it is, and where the file ends in it. While [`placing`].
fn put(
    call: &Call<'_>,
    fs: &dyn FileSystem,
    node: NodeId,
    wish: &Wish,
    pinned: Pinned,
) -> Result<(usize, usize), Errno> {
    let (base, made) = match map_at_once(fs, node, wish, &pinned.extents) {
        Some(at) => at.map(|at| (at, Ok(region_of(node, at, at + wish.length, wish, pinned))))?,
        None => {
            let base = reserve(call, wish, &pinned.extents)?;
            (base, lay(fs, node, base, wish, pinned))
        }
    };
    let (hold, region) = made.inspect_err(|_| take_away(call, base, wish.length))?;
    hold.put(call, region);
    Ok((base, region.reached.min(region.end)))
}

/// Reserves the place of a map, where nothing of others is from then on. While [`placing`].
fn reserve(call: &Call<'_>, wish: &Wish, extents: &[MappedExtent]) -> Result<usize, Errno> {
    let base = place::reserve(wish, extents)?;
    if wish.flags & MAP_FIXED != 0 {
        forget(call, base, base + wish.length);
    }
    Ok(base)
}

/// Unmaps, and forgets what was there. While [`placing`], so that nothing is put there before it is forgotten.
fn take_away(call: &Call<'_>, start: usize, length: usize) {
    // SAFETY: a map that the program wants no more, or that could not be made.
    unsafe { syscall(MUNMAP, [start, length]) };
    forget(call, start, start + length);
}

/// Maps a file's blocks at `base`, over what is there, piece by piece; the region to be added, and what holds it.
fn lay(fs: &dyn FileSystem, node: NodeId, base: usize, wish: &Wish, pinned: Pinned) -> Result<(Hold, Region), Errno> {
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
fn map_at_once(
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

/// A map of a file's blocks that has been made at `base`, and what holds it. From `reached` on the file was not that long.
fn region_of(node: NodeId, base: usize, reached: usize, wish: &Wish, pinned: Pinned) -> (Hold, Region) {
    let Wish { length, protection, offset, writable, .. } = *wish;
    let Pinned { hold, extents, lazy } = pinned;
    let mapped: u64 =
        extents.iter().filter(|extent| extent.descriptor.is_some()).map(|extent| extent.length_bytes).sum();
    let lazy = lazy && mapped < (reached - base) as u64;
    let region = Region {
        start: base,
        end: base + length,
        reached,
        mount: hold.mount,
        node,
        description: hold.description,
        offset,
        pin: 0,
        shared: wish.is_shared(),
        protection,
        stores: wish.writes(),
        writable,
        holes: if lazy { reached - base < length } else { mapped < length as u64 },
        lazy,
    };
    (hold, region)
}

/// How a file changed whose maps are made anew.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Change {
    /// Bytes were written: where there were none there are blocks now.
    Written,
    /// Blocks were taken away, moved, or came from elsewhere.
    Moved,
    /// The file ends elsewhere. What private maps had changed behind the end is gone, too.
    Cut,
}

/// Bytes of a file from `from` to `to` have other blocks now, or have some at last: the maps that this process has of them are made anew,
/// as the kernel does with its own. Maps of other processes stay as they are. Costs a load where nothing is mapped.
#[inline]
pub(crate) fn renew(call: &Call<'_>, mount: usize, node: NodeId, from: u64, to: u64, change: Change) {
    if any() && may_concern((mount, node), from..to, change) {
        renew_parts(call, mount, node, from, to, change);
    }
}

#[cold]
#[inline(never)]
fn renew_parts(call: &Call<'_>, mount: usize, node: NodeId, from: u64, to: u64, change: Change) {
    let Ok(fs) = call.front.file_system(mount) else { return };
    let renew_all = |from: u64, change: Change| {
        let (mut at, mut filled_from) = (0, None);
        let next = |at| next_of_file(at, (mount, node), from..to, change);
        while let Some(part) = placing(|| {
            let part = next(at)?;
            // A part that cannot be made anew stays as it is.
            let _ = renew_part(call, fs, &part, part.protection);
            Some(part)
        }) {
            if part.shared && part.protection & PROT_WRITE != 0 {
                filled_from = Some(filled_from.unwrap_or(u64::MAX).min(part.offset));
            }
            at = part.end;
        }
        filled_from
    };
    // A map for writing brings blocks where there were none; others may have been made anew before it.
    if let Some(filled_from) = renew_all(from, change) {
        renew_all(filled_from, Change::Written);
    }
}

/// Makes a part of a map anew, in place, so that other threads always find a map here, with this protection from now on. While [`placing`], in which
/// it was found: what the file system says of it now holds until it is in the list.
fn renew_part(call: &Call<'_>, fs: &dyn FileSystem, part: &Part, protection: usize) -> Result<(), Errno> {
    let holes = if part.lazy { Holes::Leave } else { Holes::Judge };
    renew_part_with(call, fs, part, protection, holes)
}

/// The same, with this becoming of holes.
fn renew_part_with(
    call: &Call<'_>,
    fs: &dyn FileSystem,
    part: &Part,
    protection: usize,
    holes: Holes,
) -> Result<(), Errno> {
    let flags = if part.shared { MAP_SHARED } else { MAP_PRIVATE };
    let Part { start, end, writable, offset, .. } = *part;
    let wish = Wish { address: start, length: end - start, protection, flags, offset, writable, holes };
    let pinned = Hold::of_part(call, part)?.pin(fs, part.node, &wish)?;
    let (hold, region) = lay(fs, part.node, start, &wish, pinned)?;
    hold.put(call, region);
    Ok(())
}

/// Asks the kernel for a map; where it is. The last two are of a file.
///
/// # Safety
/// With `MAP_FIXED`, what is there may be replaced.
unsafe fn map_memory(
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

/// Zeros that are nobody's, over what is there.
///
/// # Safety
/// What is there may be replaced.
unsafe fn map_zeros(at: usize, length: usize, protection: usize) -> Result<usize, Errno> {
    // SAFETY: the caller's promise.
    unsafe { map_memory(at, length, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, usize::MAX, 0) }
}

/// Pages behind the end of a file; zeros that are nobody's where they cannot be had.
fn map_behind(at: usize, length: usize, protection: usize) -> Result<(), Errno> {
    if length == 0 || behind::put(at, length, protection) {
        return Ok(());
    }
    // SAFETY: inside the reservation.
    unsafe { map_zeros(at, length, protection) }.map(|_| ())
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

/// A map that is a copy.
fn copy(
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
