//! Free blocks of the volume, in the shared arena: one bit for each 4 KiB block, 1 is free.
//!
//! May touch: its own region of the arena, hands of kind [`HAND_BLOCKS`], and the thread's lock intents.
//! Relies on: `gannet-shm` for robust locks and hands; the log for what is referenced. Never touches the medium.
//!
//! Blocks come in *groups* of 512 (2 MiB, one cache line of bits) and *pools* of a power of two of groups. Each pool
//! has a lock that is taken last of all and held for a bounded time. An extent never crosses from one pool into the
//! next.
//!
//! | step | order |
//! | --- | --- |
//! | allocate | lock pool, extent into the hand, clear bits, unlock … commit … [`Space::keep`] clears the hand |
//! | free | extent into the hand ([`Space::hold`]), commit, lock pool, set bits, clear hand, unlock ([`Space::release`]) |
//! | settle the dead | lock pool in the dead's name, set the bits of what the log does not reference, clear its hand, unlock |
//!
//! `docs/parts/logfs-index-space.md` has the arguments.

mod allocate;
mod layout;
mod near;
mod pins;
mod pool;
mod runs;
mod saved;
mod settle;
mod suspects;
mod unread;

#[cfg(test)]
mod tests;

pub use layout::SpaceLayout;
pub use near::Nearness;
pub use pins::PinOwner;
pub use unread::SavedBits;

use gannet_shm::{Arena, ArenaOffset, Hand, Ordering::Relaxed, Thread, Word};

/// Bytes of a block.
pub const BLOCK_BYTES: u64 = 4096;
/// Blocks of a group: 2 MiB, the size of a huge page.
pub const GROUP_BLOCKS: u64 = 512;
/// Kind of the hands that hold blocks; see [`gannet_shm::HandContent`]. `a` is the extent, `b` is not used.
pub const HAND_BLOCKS: u64 = u64::from_le_bytes(*b"blocks\0\0");

/// A run of blocks of the volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Extent {
    /// The first block, less than 2^40.
    pub start: u64,
    /// Number of blocks, 1 to 2^24 - 1.
    pub count: u32,
}

impl Extent {
    /// The block behind the last one.
    pub fn end(self) -> u64 {
        self.start + u64::from(self.count)
    }

    /// A run of blocks, however long, in as few extents as say it.
    pub(crate) fn pieces(start: u64, count: u64) -> impl Iterator<Item = Extent> {
        let step = allocate::EXTENT_BLOCKS_MAX;
        (0..count.div_ceil(step))
            .map(move |piece| Extent { start: start + piece * step, count: (count - piece * step).min(step) as u32 })
    }

    /// In one word, so that a hand changes in one store.
    pub(crate) fn pack(self) -> u64 {
        self.start << 24 | u64::from(self.count)
    }

    /// `None` for a word that is no extent.
    pub(crate) fn unpack(word: u64) -> Option<Extent> {
        let count = (word & 0xff_ffff) as u32;
        (count > 0).then_some(Extent { start: word >> 24, count })
    }
}

/// Blocks in the calling thread's hands: nobody else's, and not lost if the thread is killed.
///
/// Ends with [`Space::keep`] or [`Space::release`]. Dropping it leaves them in the hand until the thread ends.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "blocks stay in the thread's hands until they are kept or released"]
pub struct Held {
    extent: Extent,
    hand: Hand,
}

impl Held {
    /// Which blocks.
    #[inline]
    pub const fn extent(&self) -> Extent {
        self.extent
    }

    /// Empties the hand of blocks that the settled log references now, or still.
    #[inline]
    pub fn keep(self, thread: &Thread<'_>) {
        thread.hand_clear(self.hand);
    }
}

/// Why blocks could not be had, or not be given back.
#[derive(Clone, Debug)]
pub enum SpaceError {
    /// No block of the kind asked for is free.
    Full,
    /// There is no room for another pin in one of the pools.
    PinsFull,
    /// An extent outside of the volume, or of no blocks.
    Invalid,
    /// Nothing is free, but there are pools of which that is not known: their saved bits are damaged.
    Damaged,
    /// What the arena, a lock or a hand failed with.
    Shared(gannet_shm::Error),
}

impl From<gannet_shm::Error> for SpaceError {
    fn from(error: gannet_shm::Error) -> Self {
        SpaceError::Shared(error)
    }
}

/// A view of the region. Cheap to make and to copy; one can be made for each operation.
#[derive(Clone, Copy)]
pub struct Space<'a> {
    layout: SpaceLayout,
    start: ArenaOffset,
    arena: &'a Arena,
    words: &'a [Word],
    nearness: Option<&'a Nearness>,
    saved: Option<&'a dyn SavedBits>,
}

impl<'a> Space<'a> {
    /// The free space kept in the region at `start`, whose size is [`SpaceLayout::bytes`]. A region of zeros has no
    /// free block: a new arena is filled with [`Space::load`] or [`Space::mark_free`].
    ///
    /// # Errors
    /// [`SpaceError::Shared`] if the region is not inside the arena.
    pub fn new(arena: &'a Arena, start: ArenaOffset, layout: SpaceLayout) -> Result<Self, SpaceError> {
        let words = arena.words(start, layout.bytes() / 8)?;
        Ok(Space { layout, start, arena, words, nearness: None, saved: None })
    }

    /// The same, where some pools are nearer to a thread than others.
    pub fn with_nearness(self, nearness: Option<&'a Nearness>) -> Self {
        Space { nearness, ..self }
    }

    /// Where everything stands.
    pub fn layout(&self) -> &SpaceLayout {
        &self.layout
    }

    /// The lock of pool `index`.
    fn lock_of(&self, index: u64) -> ArenaOffset {
        self.start.add(self.layout.control_at(index) as u64 * 8)
    }

    /// The first part of an extent that lies within one pool.
    fn first_part(&self, extent: Extent) -> Extent {
        let left = self.layout.pool_blocks() - self.layout.within_pool(extent.start);
        Extent { start: extent.start, count: u64::from(extent.count).min(left) as u32 }
    }

    /// The parts of an extent, each within one pool, with the number of the pool.
    fn parts(&self, extent: Extent) -> impl Iterator<Item = (u64, Extent)> + use<'_> {
        let mut rest = Some(extent);
        core::iter::from_fn(move || {
            let whole = rest?;
            let part = self.first_part(whole);
            rest = (part.count < whole.count).then(|| Extent { start: part.end(), count: whole.count - part.count });
            Some((self.layout.pool_of(part.start), part))
        })
    }

    /// Free blocks. Beside changes it is a little off, like any such sum.
    pub fn free_blocks(&self) -> u64 {
        (0..self.layout.pools()).map(|index| self.free_hint(index).min(self.layout.pool_blocks())).sum()
    }

    /// Free blocks of the pool that holds `block`: one load, to see cheaply that there is plenty.
    #[inline]
    pub fn free_near(&self, block: u64) -> u64 {
        self.free_hint(self.layout.pool_of(block)).min(self.layout.pool_blocks())
    }

    /// Whether a block is free, as far as that can be seen without the pool's lock.
    #[inline]
    fn may_be_free(&self, block: u64) -> bool {
        // The bits of a pool that was not read yet have no memory: they are looked at afterwards, or the look would need a page that may be
        // refused (SIGBUS).
        match self.pool(self.layout.pool_of(block)).is_unread() {
            true => block < self.layout.blocks() && self.free_near(block) > 0,
            false => self.is_free(block),
        }
    }

    /// Whether a block is free: neither used, nor in anybody's hands, nor freed but pinned. Only of pools that have been read.
    #[inline]
    pub fn is_free(&self, block: u64) -> bool {
        // The bits of all pools follow each other.
        let word = self.words.get(self.layout.bits_at(0).saturating_add((block / 64) as usize));
        block < self.layout.blocks() && word.is_some_and(|word| word.load(Relaxed) >> (block % 64) & 1 == 1)
    }
}
