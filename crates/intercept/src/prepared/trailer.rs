//! The trailer of a prepared copy: what a start is told of it, and whether that can be believed.
//!
//! For who makes a copy and who maps one; layout only, no system calls. What [`Trailer::fits`] has looked at is used unchecked.

use super::PAGE_BYTES;
use super::find::Key;
use crate::patch::area::OWN_SLOT_BYTES;
use crate::patch::emit::WORD_COUNT;
use crate::plan::image::{Image, Segment};
use xxhash_rust::xxh3::xxh3_64;

pub(super) const MAGIC: u64 = u64::from_le_bytes(*b"GNTPREP\0");
pub(super) const TRAILER_BYTES: usize = PAGE_BYTES;
pub(super) const SITES_MAX: usize = (PAGE_BYTES - HEADER_BYTES) / size_of::<SiteExit>();
const _: () = assert!((WORD_COUNT + SITES_MAX) * size_of::<usize>() <= PAGE_BYTES);

#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Header {
    pub(super) magic: u64,
    pub(super) key: Key,
    /// Of the trailer, this field being zero.
    pub(super) trailer_hash: u64,
    /// Of everything in front of the trailer.
    pub(super) content_hash: u64,
    /// The text, in whole pages: where it starts relative to the object, in the file, and its length.
    pub(super) text_start: u64,
    pub(super) text_offset: u64,
    pub(super) text_bytes: u64,
    /// Where the slots' code is in the file; its length follows from the sites.
    pub(super) slots_offset: u64,
    pub(super) site_count: u32,
    /// Sites that could not be rewritten.
    pub(super) left_count: u32,
}
const HEADER_BYTES: usize = 80;
const _: () = assert!(size_of::<Header>() == HEADER_BYTES);

/// For each slot: where its gate leads.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct SiteExit {
    /// In the slots' code.
    pub(super) behind: u32,
    /// Where the original `syscall` instruction returns to, relative to the object.
    pub(super) original: u32,
}

#[repr(C, align(8))]
pub(super) struct Trailer {
    pub(super) header: Header,
    pub(super) exits: [SiteExit; SITES_MAX],
    rest: [u8; TRAILER_BYTES - HEADER_BYTES - SITES_MAX * size_of::<SiteExit>()],
}
const _: () = assert!(size_of::<Trailer>() == TRAILER_BYTES);

impl Trailer {
    pub(super) fn zeroed() -> Trailer {
        // SAFETY: integers only.
        unsafe { core::mem::zeroed() }
    }

    pub(super) fn bytes(&self) -> &[u8] {
        // SAFETY: integers without padding (the size is the sum of the fields').
        unsafe { core::slice::from_raw_parts((&raw const *self).cast(), TRAILER_BYTES) }
    }

    /// What `trailer_hash` must be.
    #[unsafe(link_section = ".text.hot.gannet")]
    pub(super) fn hash(&mut self) -> u64 {
        let stated = core::mem::take(&mut self.header.trailer_hash);
        let hash = xxh3_64(self.bytes());
        self.header.trailer_hash = stated;
        hash
    }

    pub(super) fn slots_bytes(&self) -> usize {
        (self.header.site_count as usize * OWN_SLOT_BYTES).next_multiple_of(PAGE_BYTES)
    }

    /// Whether it is the trailer of a copy of `text`, in a file of so many bytes; then everything below may be used unchecked.
    #[unsafe(link_section = ".text.hot.gannet")]
    pub(super) fn fits(&mut self, key: &Key, text: &Text, file_bytes: usize) -> bool {
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
pub(super) struct Text {
    pub(super) start: usize,
    pub(super) file_offset: usize,
    pub(super) length: usize,
}

impl Text {
    /// `None` if the object has not exactly one piece of text.
    pub(super) fn of(image: &Image) -> Option<Text> {
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

#[cfg(test)]
mod tests {
    use super::*;

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
