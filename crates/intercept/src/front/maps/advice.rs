//! Calls that would act on the medium under a map as if it were the file: `madvise` that frees, and `remap_file_pages`.

use super::pins::Hold;
use super::regions::{any, first_of_any, has_any, placing, settled_part_at};
use super::{Holes, MAP_FIXED, MAP_SHARED, PAGE_BYTES, Wish, establish};
use crate::dispatch::Outcome;
use crate::front::call::{Answer, Call, done};
use crate::front::extent::punch;
use crate::number::*;
use crate::raw::{is_error, syscall};
use gannet_vfs::Errno;

const MADV_FREE: usize = 8;
const MADV_REMOVE: usize = 9;
const MADV_WIPEONFORK: usize = 18;

/// `madvise`: MADV_REMOVE makes a hole in the file, which to the kernel is the medium. Some advice is for anonymous memory only, which a hole
/// is to the kernel. All other is about memory.
pub(crate) fn advise(call: &Call<'_>) -> Answer {
    let [start, length, advice, ..] = call.arguments;
    let advice = advice as u32 as usize;
    if !matches!(advice, MADV_FREE | MADV_REMOVE | MADV_WIPEONFORK) || !start.is_multiple_of(PAGE_BYTES) {
        return Ok(Outcome::Pass);
    }
    let Some(end) = start.checked_add(length).and_then(|end| end.checked_next_multiple_of(PAGE_BYTES)) else {
        return Ok(Outcome::Pass);
    };
    if !has_any(start, end) {
        return Ok(Outcome::Pass);
    }
    if advice != MADV_REMOVE {
        return Err(Errno::INVAL);
    }
    let on_host = |from: usize, to: usize| {
        // SAFETY: the program's call, for what lies between maps of ours.
        let result = if from < to { unsafe { syscall(MADVISE, [from, to - from, advice]) } } else { 0 };
        if is_error(result) { Err(Errno::from_raw_os_error(-result as i32)) } else { Ok(()) }
    };
    let mut at = start;
    while let Some(part) = placing(|| first_of_any(at, end)) {
        on_host(at, part.start)?;
        if !part.shared || !part.writable {
            return Err(Errno::ACCESS);
        }
        let behind = part.end.min(end);
        punch(call, part.mount, part.node, part.offset, (behind - part.start) as u64)?;
        at = part.end;
    }
    on_host(at, end)?;
    done(0)
}

/// `process_madvise`: which process and which pieces it is about is not looked at.
pub(crate) fn advise_process(call: &Call<'_>) -> Answer {
    if call.arguments[3] as u32 as usize == MADV_REMOVE && any() { Err(Errno::INVAL) } else { Ok(Outcome::Pass) }
}

/// `remap_file_pages`: another part of the file is mapped there.
pub(crate) fn remap_pages(call: &Call<'_>) -> Answer {
    let [start, length, protection, page, ..] = call.arguments;
    let (start, length) = (start & !(PAGE_BYTES - 1), length & !(PAGE_BYTES - 1));
    let Some(end) = start.checked_add(length).filter(|end| *end > start) else { return Ok(Outcome::Pass) };
    // Where the first page is not ours the kernel refuses what goes on in another file.
    let Some(part) = settled_part_at(start) else { return Ok(Outcome::Pass) };
    let behind = page.checked_mul(PAGE_BYTES).and_then(|offset| offset.checked_add(length));
    if protection != 0 || !part.shared || part.end < end || behind.is_none_or(|behind| behind > i64::MAX as usize) {
        return Err(Errno::INVAL);
    }
    let fs = call.front.file_system(part.mount)?;
    let wish = Wish {
        address: start,
        length,
        protection: part.protection,
        flags: MAP_SHARED | MAP_FIXED,
        offset: (page * PAGE_BYTES) as u64,
        writable: part.writable,
        holes: Holes::Judge,
    };
    establish(call, fs, part.node, &wish, Hold::of_part(call, &part)?)?;
    done(0)
}
