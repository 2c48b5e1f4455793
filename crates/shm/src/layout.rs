//! Where everything in an arena stands. Every process computes the same layout from the same list
//! of regions; its checksum stands in the arena's header, so a process that computes another is
//! refused instead of misreading. Touches no memory.
//!
//! ```text
//! header, heads 4 KiB | path 4 KiB | participants | thread slots | region 0 | region 1 | …
//! ```
//! A *head* is a small region that stands in the header's page: what each process that joins looks at costs it one page fault so.

use crate::error::{Error, Result};
use std::fmt;

/// A place in an arena, in bytes from its start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ArenaOffset(u64);

impl ArenaOffset {
    /// The place `bytes` after the start of the arena. Not checked here: every access is.
    #[inline(always)]
    pub const fn new(bytes: u64) -> Self {
        Self(bytes)
    }

    /// Distance from the start of the arena, in bytes.
    #[inline(always)]
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The place `bytes` further on; saturates, and then no access succeeds.
    #[inline(always)]
    pub const fn add(self, bytes: u64) -> Self {
        Self(self.0.saturating_add(bytes))
    }
}

impl fmt::Display for ArenaOffset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

/// A named part of an arena that belongs to one owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Region {
    /// First byte.
    pub start: ArenaOffset,
    /// Length in bytes.
    pub bytes: u64,
}

impl Region {
    /// The place `bytes` into the region; an error past its end.
    #[inline]
    pub fn at(&self, bytes: u64) -> Result<ArenaOffset> {
        if bytes < self.bytes {
            Ok(self.start.add(bytes))
        } else {
            Err(Error::OutOfBounds { at: self.start.get().saturating_add(bytes), bytes: 0 })
        }
    }
}

/// Bumped with every change of the meaning of a shared word.
const FORMAT: u64 = 12;
pub(crate) const PAGE_BYTES: u64 = 4096;
pub(crate) const HUGE_PAGE_BYTES: u64 = 2 << 20;
/// The header's words end here, and the heads begin.
const HEADS_AT: u64 = 512;
/// A page of words and heads, and one for the volume's path.
pub(crate) const HEADER_BYTES: u64 = 2 * PAGE_BYTES;
pub(crate) const PARTICIPANT_BYTES: u64 = 64;
/// A page for each thread, since its life word stands at the end of one ([`crate::life`]).
pub(crate) const SLOT_BYTES: u64 = PAGE_BYTES;
/// Bound on the size of one arena: 2 TiB of sparse address space. A volume of 16 TiB takes 1.1 of them.
pub(crate) const ARENA_BYTES_MAX: u64 = 2 << 40;

/// How many processes can have one volume open by default.
pub const PARTICIPANTS_DEFAULT: u32 = 1024;
/// How many threads can work on one volume by default.
pub const THREADS_DEFAULT: u32 = 4096;
/// Most threads that the lock word can name.
pub const THREADS_MAX: u32 = 65534;

/// For how many regions there is room at first.
const REGIONS_USUAL: usize = 16;

#[derive(Debug, Clone)]
struct Entry {
    name: &'static str,
    align: u64,
    region: Region,
}

/// The list of regions of an arena, in order.
#[derive(Debug, Clone)]
pub struct ArenaLayout {
    participants: u32,
    threads: u32,
    agreed: u64,
    heads: Vec<(&'static str, u64)>,
    wanted: Vec<(&'static str, u64, u64)>,
    tail: Option<(&'static str, u64, u64)>,
}

impl Default for ArenaLayout {
    fn default() -> Self {
        Self::new()
    }
}

impl ArenaLayout {
    /// No regions yet; room for the default numbers of processes and threads.
    pub fn new() -> Self {
        Self {
            participants: PARTICIPANTS_DEFAULT,
            threads: THREADS_DEFAULT,
            agreed: 0,
            heads: Vec::with_capacity(REGIONS_USUAL),
            wanted: Vec::with_capacity(REGIONS_USUAL),
            tail: None,
        }
    }

    /// Other bounds on processes (1–65535) and threads (1–[`THREADS_MAX`]).
    pub fn limits(mut self, participants: u32, threads: u32) -> Self {
        self.participants = participants.clamp(1, 65535);
        self.threads = threads.clamp(1, THREADS_MAX);
        self
    }

    /// What those who share the arena must agree about besides where everything stands, as a number: who says another one does not join them.
    pub fn agreed(mut self, agreed: u64) -> Self {
        self.agreed = agreed;
        self
    }

    /// Adds a region. `align` is a power of two, at least 8; names are unique. The memory reads zero
    /// at first and is taken from the system when it is first touched (see `Arena::reserve`).
    pub fn region(mut self, name: &'static str, bytes: u64, align: u64) -> Self {
        self.wanted.push((name, bytes, align));
        self
    }

    /// Adds a small region in the header's page, aligned to a cache line: for what every process looks at when it joins. It has memory
    /// from the start. There is room for 3,584 bytes in all.
    pub fn head(mut self, name: &'static str, bytes: u64) -> Self {
        self.heads.push((name, bytes));
        self
    }

    /// Adds the last region, whose size the first participant chooses: who joins finds `bytes` as that one said. At most one.
    pub fn tail(mut self, name: &'static str, bytes: u64, align: u64) -> Self {
        self.tail = Some((name, bytes, align));
        self
    }

    /// How much address space an arena takes, in bytes; its memory is taken as it is needed.
    ///
    /// # Errors
    /// [`Error::Region`] where there can be no such arena.
    pub fn bytes(&self) -> Result<u64> {
        self.compute().map(|computed| computed.bytes)
    }

    /// Computes all offsets.
    pub(crate) fn compute(&self) -> Result<Computed> {
        self.compute_with(None)
    }

    /// The same for an arena whose size is known.
    pub(crate) fn compute_for(&self, arena_bytes: u64) -> Result<Computed> {
        self.compute_with(Some(arena_bytes))
    }

    fn compute_with(&self, arena_bytes: Option<u64>) -> Result<Computed> {
        let participants_at = HEADER_BYTES;
        let slots_at = align_up(participants_at + u64::from(self.participants) * PARTICIPANT_BYTES, PAGE_BYTES);
        let mut end = slots_at + u64::from(self.threads) * SLOT_BYTES;
        let mut entries: Vec<Entry> = Vec::with_capacity(self.heads.len() + self.wanted.len() + 1);
        let mut head_end = HEADS_AT;
        for (name, bytes) in &self.heads {
            let start = head_end;
            head_end = align_up(start.saturating_add((*bytes).min(PAGE_BYTES)), 64);
            if *bytes > PAGE_BYTES || head_end > PAGE_BYTES || entries.iter().any(|e| e.name == *name) {
                return Err(Error::Region((*name).to_owned()));
            }
            let region = Region { start: ArenaOffset(start), bytes: *bytes };
            entries.push(Entry { name, align: 64, region });
        }
        let fixed = self.heads.len() + self.wanted.len();
        for (name, bytes, align) in self.wanted.iter().chain(&self.tail) {
            let bad = || Error::Region((*name).to_owned());
            if !align.is_power_of_two() || *align < 8 || entries.iter().any(|e| e.name == *name) {
                return Err(bad());
            }
            if *align > ARENA_BYTES_MAX || *bytes > ARENA_BYTES_MAX {
                return Err(bad());
            }
            let start = align_up(end, (*align).max(64));
            let is_tail = entries.len() == fixed;
            let bytes = match arena_bytes {
                Some(arena_bytes) if is_tail => arena_bytes.saturating_sub(start),
                _ => align_up(*bytes, if is_tail { PAGE_BYTES } else { 1 }),
            };
            end = start + bytes;
            if end > ARENA_BYTES_MAX {
                return Err(bad());
            }
            let region = Region { start: ArenaOffset(start), bytes };
            entries.push(Entry { name, align: *align, region });
        }
        let bytes = align_up(end, PAGE_BYTES);
        let mut checksum = Checksum::new();
        let numbers = [FORMAT, u64::from(self.participants), u64::from(self.threads), SLOT_BYTES, self.agreed];
        for number in numbers {
            checksum.number(number);
        }
        for (index, entry) in entries.iter().enumerate() {
            checksum.number(entry.name.len() as u64);
            checksum.bytes(entry.name.as_bytes());
            checksum.number(entry.align);
            checksum.number(entry.region.start.get());
            checksum.number(if index < fixed { entry.region.bytes } else { u64::MAX });
        }
        Ok(Computed {
            participants: self.participants,
            threads: self.threads,
            participants_at,
            slots_at,
            bytes,
            checksum: checksum.0,
            entries,
        })
    }
}

/// A layout with all its offsets.
#[derive(Debug)]
pub(crate) struct Computed {
    pub(crate) participants: u32,
    pub(crate) threads: u32,
    pub(crate) participants_at: u64,
    pub(crate) slots_at: u64,
    /// Size of the arena, a multiple of the page size.
    pub(crate) bytes: u64,
    pub(crate) checksum: u64,
    entries: Vec<Entry>,
}

impl Computed {
    pub(crate) fn region(&self, name: &str) -> Result<Region> {
        let found = self.entries.iter().find(|e| e.name == name);
        found.map(|e| e.region).ok_or_else(|| Error::Region(name.to_owned()))
    }
}

pub(crate) const fn align_up(bytes: u64, align: u64) -> u64 {
    (bytes + align - 1) & !(align - 1)
}

/// Tells layouts apart; no adversary here, who can write the arena can write the volume. By words, since whoever joins computes it.
struct Checksum(u64);

/// The same of a text.
pub(crate) fn checksum_of(bytes: &[u8]) -> u64 {
    let mut checksum = Checksum::new();
    checksum.bytes(bytes);
    checksum.0
}

impl Checksum {
    fn new() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
    fn bytes(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.number(u64::from_le_bytes(word));
        }
    }
    /// Two numbers never lead from one state to the same.
    fn number(&mut self, number: u64) {
        let mixed = (self.0 ^ number).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        self.0 = mixed ^ mixed >> 32;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn same_list_same_layout_and_any_difference_shows() {
        let base = || ArenaLayout::new().region("a", 100, 8).region("b", 4096, 4096);
        let one = base().compute().unwrap();
        assert_eq!(one.checksum, base().compute().unwrap().checksum);
        for other in [
            ArenaLayout::new().region("a", 100, 8).region("c", 4096, 4096),
            ArenaLayout::new().region("a", 101, 8).region("b", 4096, 4096),
            ArenaLayout::new().region("a", 100, 16).region("b", 4096, 4096),
            ArenaLayout::new().region("b", 4096, 4096).region("a", 100, 8),
            ArenaLayout::new().region("a", 100, 8).head("b", 4096 - 512),
            base().head("c", 8),
            base().limits(4, 4),
            base().agreed(1),
        ] {
            assert_ne!(one.checksum, other.compute().unwrap().checksum);
        }
        let (a, b) = (one.region("a").unwrap(), one.region("b").unwrap());
        assert!(a.start.get() + a.bytes <= b.start.get());
        assert_eq!(b.start.get() % 4096, 0);
        assert!(b.start.get() + b.bytes <= one.bytes);
        assert!(a.at(99).is_ok() && a.at(100).is_err());
    }

    #[test]
    fn heads_stand_in_the_page_of_the_header() {
        let layout = ArenaLayout::new().head("a", 8).region("c", 8, 8).head("b", 100).compute().unwrap();
        let [a, b, c] = ["a", "b", "c"].map(|name| layout.region(name).unwrap());
        assert_eq!((a.start.get(), a.bytes, b.start.get(), b.bytes), (HEADS_AT, 8, HEADS_AT + 64, 100));
        assert!(b.start.get() + b.bytes <= PAGE_BYTES && c.start.get() >= layout.slots_at);
        assert!(ArenaLayout::new().head("a", 4096 - 512).compute().is_ok());
        assert!(ArenaLayout::new().head("a", 4096 - 512).head("b", 1).compute().is_err());
        assert!(ArenaLayout::new().head("a", u64::MAX).compute().is_err());
        assert!(ArenaLayout::new().head("a", 8).region("a", 8, 8).compute().is_err());
    }

    #[test]
    fn impossible_layouts_are_refused() {
        assert!(ArenaLayout::new().region("a", 1, 3).compute().is_err());
        assert!(ArenaLayout::new().region("a", 1, 8).region("a", 1, 8).compute().is_err());
        assert!(ArenaLayout::new().region("a", u64::MAX, 8).compute().is_err());
    }
}
