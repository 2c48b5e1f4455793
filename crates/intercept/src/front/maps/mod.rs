//! `mmap` of a volume's files: the medium's own pages, where the file system can name them.
//!
//! The file system pins the range and tells which pieces of which descriptor of the kernel hold it; those are mapped side by
//! side. Where it cannot (no medium, or pieces that are not whole pages) a private or read-only map is a copy made
//! at once, and a writable shared one is refused with ENODEV.
//!
//! | | |
//! | --- | --- |
//! | here | making a map |
//! | [`lay`] | the kernel's maps that it is made of |
//! | [`renew`] | maps made anew, where the file has other blocks now |
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
mod lay;
mod lazy;
mod list;
mod named;
mod pins;
mod place;
mod regions;
mod renew;

pub(crate) use advice::{advise, advise_process, remap_pages};
pub(crate) use behind::used;
pub(crate) use change::{protect, remap, sync, unmap};
pub(crate) use named::fill_for;
pub(crate) use pins::{after_fork_in_child, end, held_of, hold};
pub(crate) use regions::{any, any_lazy, any_of, around_fork};
pub(crate) use renew::{Change, renew};

use super::call::{Answer, Call, done};
use super::data;
use crate::dispatch::Outcome;
use crate::number::*;
use crate::raw::{is_error, syscall};
use gannet_vfs::{Errno, FileSystem, FileType, InodeFlags, MappedExtent, NodeId};
use lay::{copy, lay, map_at_once};
use pins::Hold;
use regions::{Region, forget, has_any, placing};

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
