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

mod make;

use crate::number;
use crate::patch::area::{OWN_SLOT_BYTES, register_full};
use crate::patch::emit::{WORD_COUNT, Word};
use crate::patch::{Outcome, gates};
use crate::plan::cache::{CachePath, may_have, trusted_status};
use crate::plan::image::{BuildId, Image, Segment};
use crate::raw::{is_error, syscall};
use crate::table::CLASSES;
use core::ops::Range;
use xxhash_rust::xxh3::{xxh3_64, xxh3_128};

pub(crate) use make::make;

const MAGIC: u64 = u64::from_le_bytes(*b"GNTPREP\0");
/// Raised whenever the code of a slot, the words or the layout of the file change.
const FORMAT: u64 = 7;
const PAGE_BYTES: usize = 4096;
/// How far below an object its slots lie: less than a jump reaches, and far from what is loaded beside it.
const SLOTS_DISTANCE_BYTES: usize = 1 << 30;
const TRAILER_BYTES: usize = PAGE_BYTES;
const SITES_MAX: usize = (PAGE_BYTES - HEADER_BYTES) / size_of::<SiteExit>();
const _: () = assert!((WORD_COUNT + SITES_MAX) * size_of::<usize>() <= PAGE_BYTES);

/// What a copy is found by.
type Key = [u8; 16];

#[repr(C)]
#[derive(Clone, Copy)]
struct Header {
    magic: u64,
    key: Key,
    /// Of the trailer, this field being zero.
    trailer_hash: u64,
    /// Of everything in front of the trailer.
    content_hash: u64,
    /// The text, in whole pages: where it starts relative to the object, in the file, and its length.
    text_start: u64,
    text_offset: u64,
    text_bytes: u64,
    /// Where the slots' code is in the file; its length follows from the sites.
    slots_offset: u64,
    site_count: u32,
    /// Sites that could not be rewritten.
    left_count: u32,
}
const HEADER_BYTES: usize = 80;
const _: () = assert!(size_of::<Header>() == HEADER_BYTES);

/// For each slot: where its gate leads.
#[repr(C)]
#[derive(Clone, Copy)]
struct SiteExit {
    /// In the slots' code.
    behind: u32,
    /// Where the original `syscall` instruction returns to, relative to the object.
    original: u32,
}

#[repr(C, align(8))]
struct Trailer {
    header: Header,
    exits: [SiteExit; SITES_MAX],
    rest: [u8; TRAILER_BYTES - HEADER_BYTES - SITES_MAX * size_of::<SiteExit>()],
}
const _: () = assert!(size_of::<Trailer>() == TRAILER_BYTES);

impl Trailer {
    fn zeroed() -> Trailer {
        // SAFETY: integers only.
        unsafe { core::mem::zeroed() }
    }

    fn bytes(&self) -> &[u8] {
        // SAFETY: integers without padding (the size is the sum of the fields').
        unsafe { core::slice::from_raw_parts((&raw const *self).cast(), TRAILER_BYTES) }
    }

    /// What `trailer_hash` must be.
    #[unsafe(link_section = ".text.hot.gannet")]
    fn hash(&mut self) -> u64 {
        let stated = core::mem::take(&mut self.header.trailer_hash);
        let hash = xxh3_64(self.bytes());
        self.header.trailer_hash = stated;
        hash
    }

    fn slots_bytes(&self) -> usize {
        (self.header.site_count as usize * OWN_SLOT_BYTES).next_multiple_of(PAGE_BYTES)
    }

    /// Whether it is the trailer of a copy of `text`, in a file of so many bytes; then everything below may be used unchecked.
    #[unsafe(link_section = ".text.hot.gannet")]
    fn fits(&mut self, key: &Key, text: &Text, file_bytes: usize) -> bool {
        let hash = self.hash();
        let header = &self.header;
        let slots = self.slots_bytes();
        let count = header.site_count as usize;
        header.magic == MAGIC
            && header.trailer_hash == hash
            && header.key == *key
            && (1..=SITES_MAX).contains(&count)
            && [header.text_start, header.text_offset, header.text_bytes]
                == [text.start as u64, text.file_offset as u64, text.length as u64]
            && text.file_offset + text.length <= file_bytes
            && header.slots_offset.is_multiple_of(PAGE_BYTES as u64)
            && header.slots_offset.checked_add((slots + TRAILER_BYTES) as u64) == Some(file_bytes as u64)
            && self.exits[..count].iter().all(|exit| {
                (exit.behind as usize) < slots
                    && (text.start..text.start + text.length).contains(&(exit.original as usize))
            })
    }
}

/// The text of an object in whole pages: where it starts relative to the object and in its file, and how long it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Text {
    start: usize,
    file_offset: usize,
    length: usize,
}

impl Text {
    /// `None` if the object has not exactly one piece of text.
    fn of(image: &Image) -> Option<Text> {
        let mut pieces = image.segments().iter().filter(|segment| segment.executable);
        let Segment { start, length, file_offset, writable: false, .. } = *pieces.next()? else { return None };
        let skipped = start % PAGE_BYTES;
        if pieces.next().is_some() || file_offset % PAGE_BYTES != skipped {
            return None;
        }
        let length = (skipped + length).next_multiple_of(PAGE_BYTES);
        Some(Text { start: start - skipped, file_offset: file_offset - skipped, length })
    }
}

/// The key of the copy of an object that was loaded from a file with this status.
#[unsafe(link_section = ".text.hot.gannet")]
fn key_of(id: &BuildId, status: &[u64; 18]) -> Key {
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
fn status_of(name: &[u8]) -> Option<[u64; 18]> {
    debug_assert_eq!(name.last(), Some(&0));
    let mut status = [0u64; 18];
    // SAFETY: a path that ends in zero, and room for struct stat.
    let result = unsafe { syscall(number::STAT, [name.as_ptr() as usize, status.as_mut_ptr() as usize]) };
    (result == 0).then_some(status)
}

const O_CLOEXEC: usize = 0o2000000;
const O_NOFOLLOW: usize = 0o400000;
const AT_FDCWD: usize = -100isize as usize;

/// A copy, found and looked at.
struct Found {
    descriptor: usize,
    text: Text,
    /// Not on the program's stack, of which a start uses little.
    trailer: Box<Trailer>,
}

impl Drop for Found {
    fn drop(&mut self) {
        // SAFETY: our own descriptor.
        unsafe { syscall(number::CLOSE, [self.descriptor]) };
    }
}

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

/// Opens the copy with this key and looks whether it can be believed.
#[unsafe(link_section = ".text.hot.gannet")]
fn find(directory: &CachePath, key: &Key, text: Text) -> Option<Found> {
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
fn path_of(directory: &CachePath, key: &Key) -> CachePath {
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
struct View {
    range: Range<usize>,
}

impl View {
    /// The first `length` bytes, which the file must have.
    fn of(descriptor: usize, length: usize) -> Option<View> {
        const PROT_READ_WRITE: usize = 3;
        const MAP_PRIVATE: usize = 2;
        // SAFETY: a new map.
        let start = unsafe { syscall(number::MMAP, [0, length, PROT_READ_WRITE, MAP_PRIVATE, descriptor, 0]) };
        (!is_error(start) && length > 0).then(|| View { range: start as usize..start as usize + length })
    }

    fn bytes(&self) -> &[u8] {
        // SAFETY: mapped as long as this lives. Who cuts the file meanwhile is this user or the administrator, and ends the process.
        unsafe { core::slice::from_raw_parts(self.range.start as *const u8, self.range.len()) }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
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
    use super::*;
    use crate::front::links::takes_path;
    use crate::number::{CLOSE, DUP, IOCTL, MMAP, OPEN, READ, RECVMSG, SENDTO};
    use crate::patch::emit::{Reach, slot};
    use crate::plan::Site;
    use crate::table::NUMBER_LIMIT;

    /// Of the code of slots; changes with it.
    const FINGERPRINT: u64 = 0xe41f_a543_e5bf_6119;

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

    #[test]
    fn damaged_trailers_do_not_fit() {
        let text = Text { start: 0x2000, file_offset: 0x2000, length: 0x5000 };
        let key = [7; 16];
        let made = || {
            let mut trailer = Trailer::zeroed();
            trailer.header = Header {
                magic: MAGIC,
                key,
                trailer_hash: 0,
                content_hash: 1,
                text_start: 0x2000,
                text_offset: 0x2000,
                text_bytes: 0x5000,
                slots_offset: 0x9000,
                site_count: 2,
                left_count: 0,
            };
            trailer.exits[0] = SiteExit { behind: 60, original: 0x2010 };
            trailer.exits[1] = SiteExit { behind: 188, original: 0x2100 };
            trailer
        };
        let size = 0x9000 + PAGE_BYTES + TRAILER_BYTES;
        // With the right checksum, as somebody would have made it on purpose.
        let fits = |change: &dyn Fn(&mut Trailer)| {
            let mut trailer = made();
            change(&mut trailer);
            trailer.header.trailer_hash = trailer.hash();
            trailer.fits(&key, &text, size)
        };
        assert!(fits(&|_| ()));
        assert!(!fits(&|trailer| trailer.header.magic += 1));
        assert!(!fits(&|trailer| trailer.header.key[3] = 0));
        assert!(!fits(&|trailer| trailer.header.text_start += 0x1000));
        assert!(!fits(&|trailer| trailer.header.text_bytes += 0x1000));
        assert!(!fits(&|trailer| trailer.header.text_offset = 0));
        assert!(!fits(&|trailer| trailer.header.slots_offset = u64::MAX - 0xfff));
        assert!(!fits(&|trailer| trailer.header.slots_offset += 0x1000));
        assert!(!fits(&|trailer| trailer.header.site_count = 0));
        assert!(!fits(&|trailer| trailer.header.site_count = u32::MAX));
        assert!(!fits(&|trailer| trailer.header.site_count = 33));
        assert!(!fits(&|trailer| trailer.exits[1].behind = 0x1000));
        assert!(!fits(&|trailer| trailer.exits[0].original = 0x7000));
        let mut trailer = made();
        trailer.header.trailer_hash = trailer.hash() ^ 1;
        assert!(!trailer.fits(&key, &text, size), "a wrong checksum");
    }
}
