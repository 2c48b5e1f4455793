//! Changing a tree.
//!
//! May touch: the root word, and nodes whose header names the tree's inode and epoch. Relies on: the inode's lock.
//!
//! A change first finds all nodes it needs, then stores; it cannot fail half-way for want of a node. If it meets a
//! node that is not what it should be it returns `Torn`, possibly half done: the epoch must be raised then, as after
//! a kill.
//!
//! Removing merges a node with a sibling when both fit well within one node, and frees a node that became empty.
//! There is no borrowing, so a node other than the root may hold as little as one entry.

use gannet_shm::Ordering::{Relaxed, Release};

use super::IndexError::{self, Full, Invalid, Torn};
use super::node::{ENTRIES_MAX, LEVELS_MAX, Node};
use super::pool::{RESERVATION_MAX, Reservation};
use super::tree::{Step, Tree};

/// Siblings are merged when they have no more entries than this together. The distance to a full node keeps
/// insertions after a removal from splitting what was just merged, which [`Tree::reserve`] counts on.
const MERGE_ENTRIES_MAX: usize = 24;

/// Keys [`Tree::reserve`] accepts.
const RESERVE_KEYS_MAX: usize = 2;

/// Most pieces in which a range of a file is mapped under one reservation.
pub const PIECES_MAX: usize = 8;

/// Entries of a full node that is split which go to one side, the new one included.
const HALF: usize = ENTRIES_MAX.div_ceil(2);
// A half of a split leaf takes all pieces, and what is left behind them.
const _: () = assert!(HALF + PIECES_MAX < ENTRIES_MAX);

/// The nodes from the root to a leaf, each with the position of the child taken.
struct Path<'a> {
    steps: [Option<(Step<'a>, usize)>; LEVELS_MAX],
    length: usize,
    /// No node on the way has anything to the right of the path.
    rightmost: bool,
}

impl<'a> Path<'a> {
    fn get(&self, depth: usize) -> Result<(Step<'a>, usize), IndexError> {
        self.steps.get(depth).copied().flatten().ok_or(Torn)
    }

    /// How many nodes, from the leaf upwards, have at least `above` entries, and the leaf `leaf`.
    fn filled_from_leaf(&self, leaf: usize, above: usize) -> Result<usize, IndexError> {
        let mut filled = 0;
        let mut count = leaf;
        while filled < self.length && self.get(self.length - 1 - filled)?.0.count >= count {
            filled += 1;
            count = above;
        }
        Ok(filled)
    }
}

impl<'a> Tree<'a> {
    fn path_to(&self, key: u64) -> Result<Option<Path<'a>>, IndexError> {
        let Some(mut step) = self.open_root()? else { return Ok(None) };
        let mut path = Path { steps: [None; LEVELS_MAX], length: 0, rightmost: true };
        loop {
            let leaf = step.level == 0;
            let position =
                if leaf { step.node.at_most(step.count, key) } else { step.node.child_position(step.count, key) };
            path.rightmost &= leaf || position + 1 == step.count;
            *path.steps.get_mut(path.length).ok_or(Torn)? = Some((step, position));
            path.length += 1;
            if leaf {
                return Ok(Some(path));
            }
            step = self.open_child(&step, position)?;
        }
    }

    fn own_node(&self, number: u32) -> Result<Node<'a>, IndexError> {
        self.pool.node(u64::from(number)).ok_or(Torn)
    }

    /// Reserves the nodes that inserting `keys` (one or two) can need, whatever is removed with
    /// [`Tree::remove_keeping`] in between. None, and no work but one descent for each key, in the common case.
    ///
    /// # Errors
    /// [`IndexError::Full`] if the nodes are not to be had, [`IndexError::Torn`].
    #[inline]
    pub fn reserve(&self, keys: &[u64]) -> Result<Reservation<'a>, IndexError> {
        self.reserve_pieces(keys, 1)
    }

    /// The same where up to `pieces` keys (at most [`PIECES_MAX`]) in a row are inserted, from the first one on, and the second one
    /// behind them, and none that is between these two stays in the tree. So only the leaves of these two grow by more than they lose.
    ///
    /// # Errors
    /// As for [`Tree::reserve`].
    pub(super) fn reserve_pieces(&self, keys: &[u64], pieces: usize) -> Result<Reservation<'a>, IndexError> {
        if keys.len() > RESERVE_KEYS_MAX || !(1..=PIECES_MAX).contains(&pieces) {
            return Err(Invalid);
        }
        let more = pieces - 1;
        let mut covered = None;
        for &key in keys {
            if covered.is_some_and(|(from, to): (u64, u64)| from <= key && key < to) {
                continue;
            }
            let Some((leaf, fence)) = self.leaf_of(key)? else {
                return self.pool.reserve(self.owner, self.epoch, 1);
            };
            if leaf.count + keys.len() + more > ENTRIES_MAX {
                return self.pool.reserve(self.owner, self.epoch, self.splits(keys, more)?);
            }
            covered = fence.map(|fence| (key, fence)).or(Some((key, u64::MAX)));
        }
        self.pool.reserve(self.owner, self.epoch, 0)
    }

    /// How many nodes inserting `keys` can need. The first splits the full nodes above its leaf. The second can meet
    /// nodes to which the first has added one, so it counts those with one entry less as full; and nodes that the
    /// first has split off in ascending order, which stay full, so they count again. Only one raises the root: a new
    /// root has two entries. A leaf that `more` keys can fill counts as full, and is split once: each half has room for all of them.
    #[cold]
    fn splits(&self, keys: &[u64], more: usize) -> Result<usize, IndexError> {
        let (mut nodes, mut raise) = (0, false);
        for (before, &key) in keys.iter().enumerate() {
            let path = self.path_to(key)?.ok_or(Torn)?;
            let full = path.filled_from_leaf(ENTRIES_MAX - before - more, ENTRIES_MAX - before)?;
            nodes += full;
            raise |= full == path.length;
        }
        Ok(nodes + usize::from(raise))
    }

    /// Reserves the nodes that inserting `count` keys in a row from `first` on can need, and one behind them, as far as a reservation
    /// holds so many.
    ///
    /// # Errors
    /// As for [`Tree::reserve`].
    pub(super) fn reserve_many(&self, first: u64, count: usize) -> Result<Reservation<'a>, IndexError> {
        let Some(path) = self.path_to(first)? else {
            return self.pool.reserve(self.owner, self.epoch, (count / HALF + 2 * LEVELS_MAX).min(RESERVATION_MAX));
        };
        // Each half of a leaf that is split takes as many keys as the other has; a level above, two at most are split besides.
        let nodes = 2 + count / (ENTRIES_MAX - HALF) + 2 * path.length + 1;
        self.pool.reserve(self.owner, self.epoch, nodes.min(RESERVATION_MAX))
    }

    /// A reservation of nothing: inserts then take nodes as they need them, and fail cleanly if there are none.
    ///
    /// # Errors
    /// None that occur; the type is that of [`Tree::reserve`].
    #[inline]
    pub fn no_reservation(&self) -> Result<Reservation<'a>, IndexError> {
        self.pool.reserve(self.owner, self.epoch, 0)
    }

    /// Stores `value` under `key` and returns the value that was there.
    ///
    /// # Errors
    /// [`IndexError::Full`]: the reservation was too small and the pool is empty; nothing was changed.
    /// [`IndexError::Torn`]; [`IndexError::Invalid`] for a reservation of another tree.
    pub fn insert(&self, key: u64, value: u64, nodes: &mut Reservation<'_>) -> Result<Option<u64>, IndexError> {
        if nodes.header() != self.header() {
            return Err(Invalid);
        }
        let Some((leaf, _)) = self.leaf_of(key)? else {
            nodes.ensure(1)?;
            let number = nodes.take().ok_or(Full)?;
            let leaf = self.own_node(number)?;
            leaf.set(0, key, value);
            leaf.set_shape(0, 1);
            self.root.store(u64::from(number), Release);
            return Ok(None);
        };
        let found = leaf.node.at_most(leaf.count, key);
        if found > 0 && leaf.node.key(found - 1) == key {
            let old = leaf.node.value(found - 1);
            leaf.node.set_value(found - 1, value);
            return Ok(Some(old));
        }
        if leaf.count < ENTRIES_MAX {
            leaf.node.insert_at(0, leaf.count, found, key, value);
        } else {
            let path = self.path_to(key)?.ok_or(Torn)?;
            self.insert_splitting(&path, key, value, nodes)?;
        }
        Ok(None)
    }

    /// Inserts into a full leaf.
    #[cold]
    fn insert_splitting(
        &self,
        path: &Path<'a>,
        key: u64,
        value: u64,
        nodes: &mut Reservation<'_>,
    ) -> Result<(), IndexError> {
        let full = path.filled_from_leaf(ENTRIES_MAX, ENTRIES_MAX)?;
        let raise = full == path.length;
        if raise && path.length == LEVELS_MAX {
            return Err(Full);
        }
        nodes.ensure(full + usize::from(raise))?;

        let (mut key, mut value) = (key, value);
        for depth in (0..path.length).rev() {
            let (step, position) = path.get(depth)?;
            // Into a leaf before the first greater key, into an inner node behind the child that was split.
            let position = if step.level == 0 { position } else { position + 1 };
            if step.count < ENTRIES_MAX {
                step.node.insert_at(step.level, step.count, position, key, value);
                return Ok(());
            }
            let number = nodes.take().ok_or(Full)?;
            let right = self.own_node(number)?;
            split(&step, right, position, path.rightmost, key, value);
            (key, value) = (right.key(0), u64::from(number));
        }
        let (old_root, _) = path.get(0)?;
        let number = nodes.take().ok_or(Full)?;
        let root = self.own_node(number)?;
        root.set(0, 0, old_root.number);
        root.set(1, key, value);
        root.set_shape(old_root.level + 1, 2);
        self.root.store(u64::from(number), Release);
        Ok(())
    }

    /// Stores `value` under `key` if the key is there, and returns the value that was.
    ///
    /// # Errors
    /// [`IndexError::Torn`].
    pub fn replace(&self, key: u64, value: u64) -> Result<Option<u64>, IndexError> {
        let Some((step, _)) = self.leaf_of(key)? else { return Ok(None) };
        let found = step.node.at_most(step.count, key);
        if found == 0 || step.node.key(found - 1) != key {
            return Ok(None);
        }
        let old = step.node.value(found - 1);
        step.node.set_value(found - 1, value);
        Ok(Some(old))
    }

    /// Removes `key` and returns its value.
    ///
    /// # Errors
    /// [`IndexError::Torn`].
    pub fn remove(&self, key: u64) -> Result<Option<u64>, IndexError> {
        self.remove_from(key, &mut |number| self.pool.release(number, self.header()))
    }

    /// Removes `key` as [`Tree::remove`] does, but keeps the nodes that become free in the reservation. So an insert
    /// reserved for earlier does not lack the node that this removal took out of the tree.
    ///
    /// # Errors
    /// [`IndexError::Torn`]; [`IndexError::Invalid`] for a reservation of another tree.
    pub fn remove_keeping(&self, key: u64, nodes: &mut Reservation<'_>) -> Result<Option<u64>, IndexError> {
        if nodes.header() != self.header() {
            return Err(Invalid);
        }
        self.remove_from(key, &mut |number| nodes.keep(number))
    }

    fn remove_from(&self, key: u64, release: &mut dyn FnMut(u64)) -> Result<Option<u64>, IndexError> {
        let Some((leaf, _)) = self.leaf_of(key)? else { return Ok(None) };
        let found = leaf.node.at_most(leaf.count, key);
        if found == 0 || leaf.node.key(found - 1) != key {
            return Ok(None);
        }
        let old = leaf.node.value(found - 1);
        let alone = self.root.load(Relaxed) == leaf.number;
        if alone && leaf.count == 1 {
            self.root.store(0, Release);
            release(leaf.number);
        } else if alone || leaf.count - 1 > MERGE_ENTRIES_MAX / 2 {
            leaf.node.remove_at(0, leaf.count, found - 1);
        } else {
            let path = self.path_to(key)?.ok_or(Torn)?;
            self.remove_shrinking(&path, release)?;
        }
        Ok(Some(old))
    }

    /// Removes the entry that the path leads to from a leaf that is to be merged or freed.
    fn remove_shrinking(&self, path: &Path<'a>, release: &mut dyn FnMut(u64)) -> Result<(), IndexError> {
        let (_, found) = path.get(path.length - 1)?;
        // The entry that leaves the node at each depth; above the leaf, that of a child that was freed.
        let mut position = found.checked_sub(1).ok_or(Torn)?;
        for depth in (0..path.length).rev() {
            let (step, _) = path.get(depth)?;
            step.node.remove_at(step.level, step.count, position);
            let count = step.count - 1;
            if depth == 0 {
                self.settle_root(&step, count, release)?;
                break;
            }
            let (parent, taken) = path.get(depth - 1)?;
            if count == 0 {
                release(step.number);
                position = taken;
                continue;
            }
            match self.merge(&parent, taken, &step, count, release)? {
                Some(freed) => position = freed,
                None => break,
            }
        }
        Ok(())
    }

    /// Merges a node that shrank to `count` entries with a sibling if they fit. Returns the position in the parent
    /// of the node that was freed, which still has to be taken out there.
    fn merge(
        &self,
        parent: &Step<'a>,
        taken: usize,
        step: &Step<'a>,
        count: usize,
        release: &mut dyn FnMut(u64),
    ) -> Result<Option<usize>, IndexError> {
        // Looking at siblings costs misses; half the limit is when one of two equal ones must fit.
        if count > MERGE_ENTRIES_MAX / 2 {
            return Ok(None);
        }
        if taken > 0 {
            let left = self.open_child(parent, taken - 1)?;
            if left.count + count <= MERGE_ENTRIES_MAX && left.number != step.number {
                join(left.node, left.count, step.node, count, step.level, parent.node.key(taken));
                release(step.number);
                return Ok(Some(taken));
            }
        }
        if taken + 1 < parent.count {
            let right = self.open_child(parent, taken + 1)?;
            if right.count + count <= MERGE_ENTRIES_MAX && right.number != step.number {
                join(step.node, count, right.node, right.count, step.level, parent.node.key(taken + 1));
                release(right.number);
                return Ok(Some(taken + 1));
            }
        }
        Ok(None)
    }

    /// Drops a root that is empty, and roots with a single child.
    fn settle_root(&self, root: &Step<'a>, count: usize, release: &mut dyn FnMut(u64)) -> Result<(), IndexError> {
        if count == 0 {
            self.root.store(0, Release);
            release(root.number);
            return Ok(());
        }
        let mut root = Step { count, ..*root };
        while root.level > 0 && root.count == 1 {
            let child = self.open_child(&root, 0)?;
            self.root.store(child.number, Release);
            release(root.number);
            root = child;
        }
        Ok(())
    }

    /// Removes everything and frees the nodes. Proportional to the number of nodes; raising the inode's epoch and
    /// storing 0 to the root does the same at once, but leaves finding the free nodes to scans.
    pub fn clear(&self) {
        let root = self.root.swap(0, Release);
        self.free_below(root, LEVELS_MAX);
    }

    fn free_below(&self, number: u64, levels: usize) {
        let Ok(step) = self.open(number) else { return };
        if levels == 0 {
            return;
        }
        // Freed before its children are visited, so that a node two parents point to is visited once.
        let children: [u64; ENTRIES_MAX] = core::array::from_fn(|position| step.node.value(position));
        self.pool.release(number, self.header());
        if step.level > 0 {
            children[..step.count].iter().for_each(|&child| self.free_below(child, levels - 1));
        }
    }
}

/// Splits a full node whose new entry belongs at `position` into it and `right`.
fn split(step: &Step<'_>, right: Node<'_>, position: usize, rightmost: bool, key: u64, value: u64) {
    let (left, level) = (step.node, step.level);
    if rightmost && position == ENTRIES_MAX {
        // Keys that arrive in ascending order leave full nodes behind.
        right.set(0, key, value);
        right.set_shape(level, 1);
        return;
    }
    if position < HALF {
        right.copy_from(0, left, HALF - 1, ENTRIES_MAX - (HALF - 1));
        right.set_shape(level, ENTRIES_MAX - (HALF - 1));
        left.insert_at(level, HALF - 1, position, key, value);
    } else {
        let in_right = position - HALF;
        right.copy_from(0, left, HALF, in_right);
        right.set(in_right, key, value);
        right.copy_from(in_right + 1, left, position, ENTRIES_MAX - position);
        right.set_shape(level, ENTRIES_MAX + 1 - HALF);
        left.set_shape(level, HALF);
    }
}

/// Appends the entries of `right` to `left`. `separator` stands between them in the parent.
fn join(left: Node<'_>, left_count: usize, right: Node<'_>, right_count: usize, level: usize, separator: u64) {
    left.copy_from(left_count, right, 0, right_count);
    if level > 0 {
        // The first key of an inner node means nothing there; here it becomes a separator.
        left.set_key(left_count, separator);
    }
    left.set_shape(level, left_count + right_count);
}
