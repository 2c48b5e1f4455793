//! Prepared copies: a file with an object's rewritten text, mapped over the object's own at start instead of writing to it.
//!
//! Writing costs a copy of each page that holds a site, for each process, and makes every fork copy page tables; what is mapped is shared.
//! Only the C library and the loader are prepared: every start needs them. A copy, `prepared-KEY` beside the plans, is
//!
//! ```text
//! the object's whole file, its text rewritten | code of the slots | trailer, one page: Header, then a SiteExit for each slot
//! ```
//!
//! so that tools that read the file behind a map find symbols and build-id where they expect them. It holds no addresses. The slots' code is mapped
//! [`SLOTS_DISTANCE_BYTES`] below the object, wherever that is, followed by the page of words that it finds its way by
//! ([`crate::patch::emit`]); the way to the kernel leads through gates in our own text ([`crate::patch::gates`]).
//!
//! **What is trusted.** The file is executed, so it must be this user's, and writable by nobody else, opened without following
//! a link. The key covers the object's build-id, size and time of modification, and what the code depends on in us. A copy is made from the
//! file only if the text in memory is the file's. The trailer's checksum is compared at each start, the whole file's once after each boot
//! (a power failure can leave any of its bytes unwritten); that it was is remembered as the file's time of modification. A file that
//! is not as it should be is removed. Where anything fails the text in memory is rewritten instead.
//!
//! | | |
//! | --- | --- |
//! | here | a copy is mapped over its object |
//! | [`make`](mod@make) | it is made |
//! | [`find`](mod@find) | it is looked for, and looked at |
//! | [`trailer`] | what stands behind it |

mod find;
mod make;
mod trailer;

use crate::number;
use crate::patch::area::register_full;
use crate::patch::emit::{WORD_COUNT, Word};
use crate::patch::{Outcome, gates};
use crate::plan::cache::CachePath;
use crate::plan::image::{BuildId, Image};
use crate::raw::{is_error, syscall};
use find::{Found, find, key_of, status_of};
use trailer::Text;

pub(crate) use make::make;

/// Raised whenever the code of a slot, the words or the layout of the file change.
const FORMAT: u64 = 8;
const PAGE_BYTES: usize = 4096;
/// How far below an object its slots lie: less than a jump reaches, and far from what is loaded beside it.
const SLOTS_DISTANCE_BYTES: usize = 1 << 30;

/// What came of rewriting an object by its prepared copy.
pub(crate) enum Applied {
    /// It is done.
    Done(Outcome),
    /// There is no copy that can be believed.
    Missing,
    /// There is one, which cannot be mapped: another would not be either.
    Unmappable,
}

/// Rewrites an object by its prepared copy, if there is one. `name` is the path it was loaded from.
///
/// # Safety
/// One thread runs, and none of its code on the way back lies in a window of the object that is being executed: the loader's and the C
/// library's functions that lead here are not at a `syscall` instruction.
#[unsafe(link_section = ".text.hot.gannet")]
pub(crate) unsafe fn apply(directory: &CachePath, image: &Image, id: &BuildId, name: &str) -> Applied {
    let found = Text::of(image).and_then(|text| {
        let mut path = Vec::with_capacity(name.len() + 1);
        path.extend_from_slice(name.as_bytes());
        path.push(0);
        let status = status_of(&path)?;
        find(directory, &key_of(id, &status), text)
    });
    let Some(found) = found else { return Applied::Missing };
    // SAFETY: the caller's promise; the copy was made of this object.
    unsafe { map(image.bias, &found) }.map_or(Applied::Unmappable, Applied::Done)
}

/// Maps a copy over the object at `bias`.
///
/// # Safety
/// As for [`apply`]; the copy must have been made of this object.
#[unsafe(link_section = ".text.hot.gannet")]
unsafe fn map(bias: usize, found: &Found) -> Option<Outcome> {
    const PROT_READ_WRITE: usize = 3;
    const PROT_READ_EXECUTE: usize = 5;
    const MAP_PRIVATE: usize = 2;
    const MAP_FIXED: usize = 0x10;
    const MAP_ANONYMOUS: usize = 0x20;
    const MAP_FIXED_NOREPLACE: usize = 0x10_0000;
    let Found { descriptor, text, trailer } = found;
    let header = &trailer.header;
    let count = header.site_count as usize;
    let slots_bytes = trailer.slots_bytes();
    let slots = bias.checked_sub(SLOTS_DISTANCE_BYTES).filter(|slots| *slots >= PAGE_BYTES)?;
    let page = slots + slots_bytes;
    let first = gates::take(count)?;
    // The slots first: where the file must not be executed, this fails, and the object is as it was.
    let slots_call = [
        slots,
        slots_bytes,
        PROT_READ_EXECUTE,
        MAP_PRIVATE | MAP_FIXED_NOREPLACE,
        *descriptor,
        header.slots_offset as usize,
    ];
    let page_flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE;
    let page_call = [page, PAGE_BYTES, PROT_READ_WRITE, page_flags, usize::MAX, 0];
    let text_start = bias.wrapping_add(text.start);
    let text_call =
        [text_start, text.length, PROT_READ_EXECUTE, MAP_PRIVATE | MAP_FIXED, *descriptor, text.file_offset];
    // SAFETY: new maps where nothing is, taken away again if one of them cannot be had.
    unsafe {
        if !mapped_at(slots_call) {
            gates::give_back(first);
            return None;
        }
        if !mapped_at(page_call) {
            syscall(number::MUNMAP, [slots, slots_bytes]);
            gates::give_back(first);
            return None;
        }
        let words = page as *mut usize;
        for (index, value) in Word::values().into_iter().enumerate() {
            words.add(index).write(value);
        }
        for (index, exit) in trailer.exits[..count].iter().enumerate() {
            let (behind, original) = (slots + exit.behind as usize, bias.wrapping_add(exit.original as usize));
            words.add(WORD_COUNT + index).write(gates::set(first + index, behind, original));
        }
    }
    // SAFETY: replaces the object's text by the same text with jumps to what was just mapped; the caller's promise.
    if !register_full(slots, slots_bytes) || !unsafe { mapped_at(text_call) } {
        // The slots stay: an area that was made known is never unmapped.
        return None;
    }
    Some(Outcome { patched: count, left: header.left_count as usize })
}

/// Makes a map, which must lie where it was asked for.
///
/// # Safety
/// As for `mmap`.
#[unsafe(link_section = ".text.hot.gannet")]
unsafe fn mapped_at(call: [usize; 6]) -> bool {
    // SAFETY: the caller's.
    let made = unsafe { syscall(number::MMAP, call) };
    if made == call[0] as isize {
        return true;
    }
    if !is_error(made) {
        // A kernel that does not know MAP_FIXED_NOREPLACE put it elsewhere.
        // SAFETY: the map just made.
        unsafe { syscall(number::MUNMAP, [made as usize, call[1]]) };
    }
    false
}

#[cfg(test)]
mod tests {

    use crate::front::links::takes_path;
    use crate::number::{CLOSE, DUP, IOCTL, MMAP, OPEN, READ, RECVMSG, SENDTO};
    use crate::patch::area::OWN_SLOT_BYTES;
    use crate::patch::emit::{Reach, slot};
    use crate::plan::Site;
    use crate::table::NUMBER_LIMIT;
    use xxhash_rust::xxh3::xxh3_64;

    /// Of the code of slots; changes with it.
    const FINGERPRINT: u64 = 0x99a2_f5fd_8378_48bf;

    #[test]
    fn another_code_has_another_format() {
        let mut bytes = Vec::new();
        let numbers = [READ, CLOSE, DUP, IOCTL, MMAP, OPEN, RECVMSG, SENDTO].map(|number| number as i16);
        for number in [-1].into_iter().chain(numbers) {
            let mut site = Site::unpatchable(0x1000, number);
            (site.window, site.syscall_offset) = (7, 5);
            site.original[..7].copy_from_slice(&[0xb8, 1, 0, 0, 0, 0x0f, 0x05]);
            site.before[..5].copy_from_slice(&{ site.original }[..5]);
            site.before_length = 5;
            let reach = Reach::Words { page: 0x20_0000, gate: 3 };
            let code = slot(&site, 0x10_0000, 0x18_0000, OWN_SLOT_BYTES, reach).expect("it fits");
            bytes.extend_from_slice(&code.bytes);
        }
        bytes.extend((0..NUMBER_LIMIT).map(|number| u8::from(takes_path(number))));
        let now = xxh3_64(&bytes);
        assert_eq!(now, FINGERPRINT, "raise FORMAT, since copies made before hold other code, and put {now:#x} here");
    }
}
