//! What becomes of a map: `munmap`, `mremap`, `mprotect`, `msync`.

use super::pins::Hold;
use super::regions::{Part, any, first_behind, has_any, note_protection, placing, readable_at, settled_part_at};
use super::renew::renew_part;
use super::{
    Change, Holes, MAP_FIXED, MAP_PRIVATE, MAP_SHARED, PAGE_BYTES, PROT_WRITE, Wish, establish, renew, replace,
    take_away,
};
use crate::dispatch::Outcome;
use crate::front::call::{Answer, Call, done};
use crate::number::*;
use crate::raw::{is_error, syscall};
use gannet_vfs::{AttributeChange, Errno, FileSystem, NodeId, Time, TimeChange};

/// PROT_READ, PROT_WRITE, PROT_EXEC: all that a map can be made with.
const PROT_KNOWN: usize = 7;

/// Nothing on this processor, but known.
const PROT_SEM: usize = 8;

/// `munmap`.
pub(crate) fn unmap(call: &Call<'_>) -> Answer {
    let [start, length, ..] = call.arguments;
    let Some(end) = start.checked_add(length).and_then(|end| end.checked_next_multiple_of(PAGE_BYTES)) else {
        return Ok(Outcome::Pass);
    };
    if !has_any(start, end) {
        return Ok(Outcome::Pass);
    }
    Ok(replace(call, start, end))
}

/// `mremap`: shrinks in place; grows and moves by mapping the file's range anew, as the pages of both maps are the medium's. What a private map holds
/// of its own is copied.
pub(crate) fn remap(call: &Call<'_>) -> Answer {
    const MREMAP_MAYMOVE: usize = 1;
    const MREMAP_FIXED: usize = 2;
    let [start, old_length, new_length, flags, target, _] = call.arguments;
    let page_end = |length: usize| start.checked_add(length)?.checked_next_multiple_of(PAGE_BYTES);
    let Some(end) = page_end(old_length) else { return Ok(Outcome::Pass) };
    let fixed = flags & MREMAP_FIXED != 0;
    let Some(part) = settled_part_at(start) else {
        // Something of the host's may come to lie over maps of ours.
        let to = target.checked_add(new_length).and_then(|end| end.checked_next_multiple_of(PAGE_BYTES));
        return match to {
            Some(to) if fixed && has_any(target, to) => Ok(replace(call, target, to)),
            _ => Ok(Outcome::Pass),
        };
    };
    if flags & !(MREMAP_MAYMOVE | MREMAP_FIXED) != 0
        || fixed && (flags & MREMAP_MAYMOVE == 0 || !target.is_multiple_of(PAGE_BYTES))
        || !start.is_multiple_of(PAGE_BYTES)
        || new_length == 0
    {
        return Err(Errno::INVAL);
    }
    if is_sealed(start) {
        return Err(Errno::PERM);
    }
    if old_length == 0 && !part.shared {
        return Err(Errno::INVAL);
    }
    if old_length == 0 && flags & MREMAP_MAYMOVE == 0 {
        return Err(Errno::NOMEM);
    }
    if part.end < end {
        return Err(Errno::FAULT);
    }
    let new_end = page_end(new_length).ok_or(Errno::NOMEM)?;
    let (length, new_length) = (end - start, new_end - start);
    if fixed && target < end && start < target.saturating_add(new_length) {
        return Err(Errno::INVAL);
    }
    if new_length <= length && !fixed {
        if new_length < length {
            placing(|| take_away(call, new_end, end - new_end));
        }
        return done(start);
    }
    let kind = if part.shared { MAP_SHARED } else { MAP_PRIVATE };
    let grown = new_length.saturating_sub(length);
    let fs = call.front.file_system(part.mount)?;
    let place = |address, length, flags, skipped: usize| {
        let Part { protection, writable, .. } = part;
        let offset = part.offset + skipped as u64;
        let wish = Wish { address, length, protection, flags: kind | flags, offset, writable, holes: Holes::Judge };
        establish(call, fs, part.node, &wish, Hold::of_part(call, &part)?)
    };
    // Of a length of nothing another map is made, and the first stays.
    if !fixed && old_length != 0 {
        const MAP_FIXED_NOREPLACE: usize = 0x10_0000;
        match place(end, grown, MAP_FIXED_NOREPLACE, length) {
            Ok(at) if at == end => return done(start),
            // A kernel that does not know the flag.
            Ok(at) => placing(|| take_away(call, at, grown)),
            Err(Errno::EXIST) => {}
            Err(errno) => return Err(errno),
        }
        if flags & MREMAP_MAYMOVE == 0 {
            return Err(Errno::NOMEM);
        }
    }
    let at = if fixed { place(target, new_length, MAP_FIXED, 0) } else { place(0, new_length, 0, 0) }?;
    if !part.shared {
        copy_pages(start, at, length.min(new_length), part.protection);
    }
    if old_length != 0 {
        placing(|| take_away(call, start, length));
    }
    done(at)
}

/// Whether a map is sealed (`mseal`): the kernel says so before it finds that nothing is to become of its first page.
fn is_sealed(start: usize) -> bool {
    // SAFETY: a map of the program's, which stays as it is.
    let result = unsafe { syscall(MREMAP, [start, PAGE_BYTES, PAGE_BYTES, 0]) };
    result == -(Errno::PERM.raw_os_error() as isize)
}

/// What a private map holds goes to its new place, page by page: behind the end of the file there is nothing to be copied.
fn copy_pages(from: usize, to: usize, length: usize, protection: usize) {
    const PROT_READ_WRITE: usize = 3;
    // SAFETY: maps of the program's, of that length; the protection of the new one is the program's wish again afterwards.
    unsafe {
        syscall(MPROTECT, [to, length, PROT_READ_WRITE]);
        for page in (0..length).step_by(PAGE_BYTES) {
            if gannet_usermem::copy::copy((to + page) as *mut u8, (from + page) as *const u8, PAGE_BYTES).is_err() {
                break;
            }
        }
        syscall(MPROTECT, [to, length, protection]);
    }
}

/// `mprotect`: a shared map that is to become writable is made anew, as the file system must know that it will be written to. What others allow from then
/// on is noted, since any map may be made anew later.
pub(crate) fn protect(call: &Call<'_>) -> Answer {
    let [start, length, protection, ..] = call.arguments;
    if !any() || !start.is_multiple_of(PAGE_BYTES) {
        return Ok(Outcome::Pass);
    }
    let Some(end) = start.checked_add(length).and_then(|end| end.checked_next_multiple_of(PAGE_BYTES)) else {
        return Ok(Outcome::Pass);
    };
    if !has_any(start, end) {
        return Ok(Outcome::Pass);
    }
    // Each round makes one map writable. What cannot be asked for the kernel refuses.
    while protection & PROT_WRITE != 0
        && protection & !(PROT_KNOWN | PROT_SEM) == 0
        && let Some(part) = placing(|| make_writable(call, start, end, protection))?
    {
        // Other maps show zeros where there are blocks now.
        let to = part.offset + (part.end - part.start) as u64;
        renew(call, part.mount, part.node, part.offset, to, Change::Written);
    }
    placing(|| {
        // SAFETY: the program's call.
        let result = unsafe { syscall(call.number, call.arguments) };
        // Where something is not mapped the kernel goes as far as that.
        if protection & !PROT_KNOWN == 0 && (!is_error(result) || result == -(Errno::NOMEM.raw_os_error() as isize)) {
            note_protection(start, end, protection);
        }
        Ok(Outcome::Done(result))
    })
}

/// Makes the first shared map in a range anew that cannot be stored through, so that it can; which one that is. While [`placing`].
fn make_writable(call: &Call<'_>, start: usize, end: usize, protection: usize) -> Result<Option<Part>, Errno> {
    let Some(mut part) = readable_at(start, end) else { return Ok(None) };
    if !part.writable {
        return Err(Errno::ACCESS);
    }
    part.end = part.end.min(end);
    let fs = call.front.file_system(part.mount)?;
    renew_part(call, fs, &part, protection)?;
    Ok(Some(part))
}

/// What was stored through a map moves the file's times at the next `msync`, whether or not something was: nobody sees the stores.
/// Within a tick of the clock the times stay as they are.
fn note_written(fs: &dyn FileSystem, node: NodeId) {
    const TICK_NS: i64 = 4_000_000;
    let Ok(known) = fs.attributes(node) else { return };
    let age = Time::now().0.saturating_sub(known.modified.0);
    if known.modified != known.changed || !(0..TICK_NS).contains(&age) {
        let change = AttributeChange { modified: TimeChange::Now, ..AttributeChange::default() };
        let _ = fs.set_attributes(node, &change);
    }
}

/// `msync`.
pub(crate) fn sync(call: &Call<'_>) -> Answer {
    let [start, length, ..] = call.arguments;
    let end = start.saturating_add(length).checked_next_multiple_of(PAGE_BYTES).unwrap_or(usize::MAX);
    // Piece by piece of what is mapped, by address: nothing is kept of them meanwhile.
    let mut at = start;
    while first_behind(at, end).is_some()
        && let Some(part) = placing(|| first_behind(at, end))
    {
        let fs = call.front.file_system(part.mount)?;
        let length = part.end.min(end) - part.start;
        fs.sync_range(part.node, part.offset, length as u64).map_err(|error| error.errno())?;
        if part.stores {
            note_written(fs, part.node);
        }
        at = part.end;
    }
    Ok(Outcome::Pass)
}
