//! The nodes of all trees of a volume: who may take one, and nodes reserved ahead of a change.
//!
//! May touch: the node region. Relies on: [`PoolHost`] to say which epoch of an inode is the current one.
//!
//! A node is live exactly if its header names an inode and that inode's current epoch. Anyone may take any other node
//! with a compare-and-swap of its header. An inode's epoch only rises, so a header that is stale once is stale for
//! ever, and the compare-and-swap cannot hit a node that became live again. There is no list of free nodes that a
//! killed process could break: what it had claimed is freed when the epoch of the inode it worked on is raised.
//!
//! When all nodes are live, somebody's index is dropped: of the owners met in a short stretch of the region the one whose
//! index was used longest ago. *Eras* tell: the pool's era rises as searches go round the region, and who uses an index
//! notes the era it saw if that is another than the one noted.

use core::cell::Cell;
use gannet_shm::{Ordering::*, Word, fence};

use super::IndexError;
use super::node::{self, LEVELS_MAX, Node};

/// Words of one node; the node region should be a multiple of it. Its first node is the pool's own.
pub const NODE_WORDS: usize = node::NODE_WORDS;

/// What the pool asks of who made it.
pub trait PoolHost {
    /// The current epoch of `owner`'s index, read with acquire order; `None` for a number that is no inode's and never
    /// will be. It never falls, also not when the inode is freed and its number used again. `owner` may be nonsense.
    fn current_epoch(&self, owner: u32) -> Option<u32>;

    /// Makes sure that `count` words of the region from `first` on have memory behind them. Called before nodes
    /// there are used for the first time. False if the system has none.
    fn back_words(&self, first: usize, count: usize) -> bool;

    /// The era that the last user of the index of `owner` noted. A hint.
    fn last_used(&self, owner: u32) -> u64 {
        let _ = owner;
        0
    }

    /// Drops the whole index of `owner`, whose nodes are then free, unless somebody is at work on it or its epoch is not
    /// `epoch` any more: then false. Waits for nobody: the caller may hold any locks.
    fn evict(&self, owner: u32, epoch: u32) -> bool {
        let _ = (owner, epoch);
        false
    }
}

/// A host that only knows epochs; for a region that has memory behind it.
impl<F: Fn(u32) -> Option<u32>> PoolHost for F {
    fn current_epoch(&self, owner: u32) -> Option<u32> {
        self(owner)
    }

    fn back_words(&self, _first: usize, _count: usize) -> bool {
        true
    }
}

/// Nodes that are given memory at once: at first 64 KiB, then 128: more would be a stall (2 MiB takes most of a millisecond).
const CHUNK_NODES_MIN: u64 = (64 << 10) / (8 * NODE_WORDS as u64);
const CHUNK_NODES_MAX: u64 = (128 << 10) / (8 * NODE_WORDS as u64);
/// New nodes that a thread takes at once: the word that all threads count them with is written that much less often.
const NEW_NODES: u64 = 8;
/// Nodes looked at before somebody's index is dropped to get one.
const SEARCHED: u64 = 64;

// Words of the region's first node.
/// The greatest number handed out for the first time so far.
const HIGH_WATER: usize = 0;
/// Nodes below this number have memory behind them.
const BACKED: usize = 1;
/// How often searches went round the region.
const ERA: usize = 2;
/// Nodes looked at by searches in this era.
const LOOKED_AT: usize = 3;
/// Indexes dropped to make room.
const EVICTED: usize = 4;

/// A view of the node region. Cheap to make and to copy; one can be made for each operation.
#[derive(Clone, Copy)]
pub struct NodePool<'a> {
    words: &'a [Word],
    host: &'a dyn PoolHost,
}

/// Freed nodes a thread remembers, and how far its scan got. Hints only: they are shared with nobody, may belong to
/// another volume, and every use of one is validated by the header.
struct Hints {
    recent: [Cell<u32>; RECENT],
    count: Cell<usize>,
    cursor: Cell<u64>,
}

const RECENT: usize = 16;

thread_local! {
    static HINTS: Hints = const {
        Hints { recent: [const { Cell::new(0) }; RECENT], count: Cell::new(0), cursor: Cell::new(0) }
    };
}

/// The calling thread tries this node before others.
fn remember(number: u64) {
    HINTS.with(|hints| {
        let count = hints.count.get();
        if count < RECENT {
            hints.recent[count].set(number as u32);
            hints.count.set(count + 1);
        }
    });
}

pub(super) fn header_of(owner: u32, epoch: u32) -> u64 {
    u64::from(owner) << 32 | u64::from(epoch)
}

impl<'a> NodePool<'a> {
    /// A pool over `words`, which are all zero when the arena is new. A last incomplete node is not used.
    pub fn new(words: &'a [Word], host: &'a dyn PoolHost) -> Self {
        NodePool { words, host }
    }

    /// How many nodes there are to be had at most.
    pub fn capacity(&self) -> u64 {
        self.limit().saturating_sub(1)
    }

    /// One above the greatest node number.
    fn limit(&self) -> u64 {
        ((self.words.len() / NODE_WORDS) as u64).min(u64::from(u32::MAX))
    }

    #[inline]
    pub(super) fn node(&self, number: u64) -> Option<Node<'a>> {
        if number == 0 || number > u64::from(u32::MAX) {
            return None;
        }
        let start = number as usize * NODE_WORDS;
        let words = self.words.get(start..start + NODE_WORDS)?;
        words.try_into().ok().map(Node::new)
    }

    fn control(&self, word: usize) -> u64 {
        self.words.get(word).map_or(0, |word| word.load(Acquire))
    }

    /// One above the greatest node number that may be touched.
    fn backed(&self) -> u64 {
        self.control(BACKED).min(self.limit())
    }

    /// Gets memory for the next chunk of nodes. Several may do it at once.
    #[cold]
    fn back_more(&self) -> bool {
        let (limit, backed) = (self.limit(), self.backed());
        let chunk = (backed / 4).clamp(CHUNK_NODES_MIN, CHUNK_NODES_MAX).next_power_of_two();
        let next = (backed / chunk + 1).saturating_mul(chunk).min(limit);
        let first = backed as usize * NODE_WORDS;
        if next <= backed || !self.host.back_words(first, next as usize * NODE_WORDS - first) {
            return false;
        }
        if let Some(word) = self.words.get(BACKED) {
            word.fetch_max(next, AcqRel);
        }
        true
    }

    /// A node nobody ever used.
    fn claim_new(&self, header: u64) -> Option<u32> {
        let high_water = self.words.first()?;
        loop {
            // The word is checked before it is raised, so it exceeds the limit by little.
            if high_water.load(Relaxed).saturating_add(1) >= self.backed() && !self.back_more() {
                return None;
            }
            let number = high_water.fetch_add(NEW_NODES, Relaxed).wrapping_add(1);
            // Others may have been faster. A number that is not used here is lost to this path only: scans find the node.
            let end = number.saturating_add(NEW_NODES).min(self.backed());
            (number + 1..end).rev().for_each(remember);
            if number < end && self.claim(number, header) {
                return Some(number as u32);
            }
        }
    }

    fn is_free(&self, header: u64) -> bool {
        header == 0 || self.host.current_epoch((header >> 32) as u32) != Some(header as u32)
    }

    /// Takes `number` for `owner` if it is free.
    fn claim(&self, number: u64, header: u64) -> bool {
        let Some(node) = self.node(number) else { return false };
        let seen = node.header().load(Acquire);
        if !self.is_free(seen) || node.header().compare_exchange(seen, header, AcqRel, Relaxed).is_err() {
            return false;
        }
        // A reader of the former owner that meets a store to this node from now on must also see that owner's
        // sequence word changed.
        fence(Release);
        true
    }

    /// A free node, now `owner`'s: one this thread freed, else one never used, else the next found by scanning all.
    fn allocate(&self, header: u64) -> Option<u32> {
        HINTS.with(|hints| {
            while hints.count.get() > 0 {
                let last = hints.count.get() - 1;
                hints.count.set(last);
                let number = hints.recent[last].get();
                // A hint from another volume can name a node that has no memory here yet.
                if u64::from(number) <= self.control(HIGH_WATER) && self.claim(u64::from(number), header) {
                    return Some(number);
                }
            }
            match self.claim_new(header) {
                Some(number) => Some(number),
                None => self.search(header, &hints.cursor),
            }
        })
    }

    /// A node that is free again, or one of an index that is dropped for it. Goes on where the thread's last search ended,
    /// once round the region at the most.
    #[cold]
    fn search(&self, header: u64, cursor: &Cell<u64>) -> Option<u32> {
        let backed = self.backed().max(1);
        let mut looked_at = 0;
        while looked_at < backed {
            // The owner whose index was used longest ago, with a node of it.
            let mut oldest: Option<(u64, u64, u64)> = None;
            let (mut last_owner, stretch) = (0, SEARCHED.min(backed - looked_at));
            for _ in 0..stretch {
                let number = (cursor.get() + 1) % backed;
                cursor.set(number);
                if self.claim(number, header) {
                    return Some(number as u32);
                }
                let Some(seen) = self.node(number).map(|node| node.header().load(Relaxed)) else { continue };
                // Neighbours often belong together, and one's own is in use.
                if seen == last_owner || seen >> 32 == header >> 32 || seen == 0 {
                    continue;
                }
                last_owner = seen;
                let used = self.host.last_used((seen >> 32) as u32);
                if oldest.is_none_or(|(before, ..)| used < before) {
                    oldest = Some((used, number, seen));
                }
            }
            looked_at += stretch;
            self.pass(stretch, backed);
            let Some((_, number, seen)) = oldest else { continue };
            if self.evict_for(number, seen, header) {
                return Some(number as u32);
            }
            // Somebody is at work on it: then any other of them.
            for back in 0..stretch {
                let number = (cursor.get() + backed - back) % backed;
                let Some(seen) = self.node(number).map(|node| node.header().load(Relaxed)) else { continue };
                if seen >> 32 != header >> 32 && self.evict_for(number, seen, header) {
                    return Some(number as u32);
                }
            }
        }
        None
    }

    /// Drops the index that `number` belongs to and takes that node.
    fn evict_for(&self, number: u64, seen: u64, header: u64) -> bool {
        if !self.host.evict((seen >> 32) as u32, seen as u32) {
            return false;
        }
        if let Some(evicted) = self.words.get(EVICTED) {
            // Unnoticed [word]: a counter that nothing goes by.
            evicted.fetch_add(1, Relaxed);
        }
        self.claim(number, header)
    }

    /// Counts what a search looked at, and with it the eras.
    fn pass(&self, nodes: u64, backed: u64) {
        let (Some(era), Some(looked_at)) = (self.words.get(ERA), self.words.get(LOOKED_AT)) else { return };
        // Unnoticed [word]: which index is dropped first is a guess.
        if looked_at.fetch_add(nodes, Relaxed).saturating_add(nodes) >= backed {
            // Unnoticed [word]: as for the line above.
            looked_at.store(0, Relaxed);
            // Unnoticed [word]: as for the line above.
            era.fetch_add(1, Relaxed);
        }
    }

    /// The current era: what a user of an index notes.
    #[inline(always)]
    pub fn era(&self) -> u64 {
        self.words.get(ERA).map_or(0, |word| word.load(Relaxed))
    }

    /// Nodes that have memory behind them, and indexes that were dropped to make room.
    pub fn usage(&self) -> (u64, u64) {
        (self.backed(), self.control(EVICTED))
    }

    /// Frees a node that belongs to `header`; anything else is left alone.
    pub(super) fn release(&self, number: u64, header: u64) {
        let Some(node) = self.node(number) else { return };
        if node.header().load(Relaxed) != header {
            return;
        }
        // Unnoticed [word]: the node is found again when the whole index is dropped.
        node.header().store(0, Release);
        remember(number);
    }

    /// Says that the tree with this root was dropped: the calling thread takes the root next, which is still in its caches.
    pub fn dropped(&self, root: u64) {
        if root != 0 {
            remember(root);
        }
    }

    /// Counts the live nodes of `owner`, or of everybody. Walks the whole region: for tests, `stat` and fsck.
    pub fn live_count(&self, owner: Option<u32>) -> u64 {
        let mut live = 0;
        for number in 1..self.control(HIGH_WATER).saturating_add(1).min(self.backed()) {
            let Some(node) = self.node(number) else { break };
            let header = node.header().load(Acquire);
            live += u64::from(!self.is_free(header) && owner.is_none_or(|owner| owner == (header >> 32) as u32));
        }
        live
    }

    /// Takes `count` nodes for `owner` at `epoch`, or none.
    ///
    /// # Errors
    /// [`IndexError::Full`] if that many are not to be had, [`IndexError::Invalid`] if nobody can ever need that many.
    #[inline]
    pub fn reserve(&self, owner: u32, epoch: u32, count: usize) -> Result<Reservation<'a>, IndexError> {
        let mut reservation =
            Reservation { pool: *self, header: header_of(owner, epoch), nodes: [0; RESERVATION_MAX], count: 0 };
        if count > 0 {
            reservation.ensure(count)?;
        }
        Ok(reservation)
    }
}

/// The most nodes a reservation can hold: two inserts that split every level and raise the root.
pub(super) const RESERVATION_MAX: usize = 2 * (LEVELS_MAX + 2);

/// Nodes that belong to an inode already but are in no tree yet. Dropping it frees those not used.
///
/// They carry the epoch of the tree they were reserved for, so nothing is lost if the process is killed.
pub struct Reservation<'a> {
    pool: NodePool<'a>,
    header: u64,
    nodes: [u32; RESERVATION_MAX],
    count: usize,
}

impl Reservation<'_> {
    /// Number of nodes left.
    pub fn count(&self) -> usize {
        self.count
    }

    pub(super) fn ensure(&mut self, count: usize) -> Result<(), IndexError> {
        if count > RESERVATION_MAX {
            return Err(IndexError::Invalid);
        }
        while self.count < count {
            self.nodes[self.count] = self.pool.allocate(self.header).ok_or(IndexError::Full)?;
            self.count += 1;
        }
        Ok(())
    }

    pub(super) fn header(&self) -> u64 {
        self.header
    }

    pub(super) fn take(&mut self) -> Option<u32> {
        self.count = self.count.checked_sub(1)?;
        Some(self.nodes[self.count])
    }

    /// Keeps a node that has left the tree, or frees it if there is no room.
    pub(super) fn keep(&mut self, number: u64) {
        if self.count == RESERVATION_MAX {
            self.pool.release(number, self.header);
        } else if self.pool.node(number).is_some_and(|node| node.header().load(Relaxed) == self.header)
            && !self.nodes[..self.count].contains(&(number as u32))
        {
            self.nodes[self.count] = number as u32;
            self.count += 1;
        }
    }
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        while let Some(number) = self.take() {
            self.pool.release(u64::from(number), self.header);
        }
    }
}
