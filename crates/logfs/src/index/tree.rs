//! Reading a tree, beside a writer if need be.
//!
//! May touch: nodes and root word, by loads only. Relies on: the caller validating its sequence word afterwards.

use gannet_shm::{Ordering::Relaxed, Word};

use super::IndexError::{self, Torn};
use super::node::{LEVELS_MAX, Node};
use super::pool::{NodePool, header_of};

/// One inode's tree: a handle made for an operation from the inode's words.
#[derive(Clone, Copy)]
pub struct Tree<'a> {
    pub(super) pool: NodePool<'a>,
    pub(super) owner: u32,
    pub(super) epoch: u32,
    pub(super) root: &'a Word,
}

/// A node on the way from the root to a leaf, as it was when it was looked at.
#[derive(Clone, Copy)]
pub(super) struct Step<'a> {
    pub(super) number: u64,
    pub(super) node: Node<'a>,
    pub(super) level: usize,
    pub(super) count: usize,
}

impl<'a> Tree<'a> {
    /// A handle on the tree of inode `owner` at its current `epoch`, whose root word is `root` (0 for an empty tree).
    /// `owner` must not be 0.
    #[inline]
    pub fn new(pool: NodePool<'a>, owner: u32, epoch: u32, root: &'a Word) -> Self {
        Tree { pool, owner, epoch, root }
    }

    pub(super) fn header(&self) -> u64 {
        header_of(self.owner, self.epoch)
    }

    /// Looks at a node and checks that it can be the one that is meant.
    #[inline]
    pub(super) fn open(&self, number: u64) -> Result<Step<'a>, IndexError> {
        let node = self.pool.node(number).ok_or(Torn)?;
        let (level, count) = node.shape().ok_or(Torn)?;
        if node.header().load(Relaxed) != self.header() {
            return Err(Torn);
        }
        Ok(Step { number, node, level, count })
    }

    #[inline]
    pub(super) fn open_child(&self, parent: &Step<'a>, position: usize) -> Result<Step<'a>, IndexError> {
        let number = parent.node.value(position);
        // Nodes above are hot, leaves are not where there are many.
        if parent.level == 1
            && let Some(leaf) = self.pool.node(number)
        {
            leaf.expect();
        }
        let child = self.open(number)?;
        // Levels fall by one each time, so that no walk is longer than the root's level.
        if child.level + 1 == parent.level { Ok(child) } else { Err(Torn) }
    }

    #[inline]
    pub(super) fn open_root(&self) -> Result<Option<Step<'a>>, IndexError> {
        match self.root.load(Relaxed) {
            0 => Ok(None),
            number => self.open(number).map(Some),
        }
    }

    /// Whether the tree has no entries.
    pub fn is_empty(&self) -> bool {
        self.root.load(Relaxed) == 0
    }

    /// The value of `key`.
    ///
    /// # Errors
    /// [`IndexError::Torn`] if a node is not what it should be.
    #[inline]
    pub fn get(&self, key: u64) -> Result<Option<u64>, IndexError> {
        let Some(mut step) = self.open_root()? else { return Ok(None) };
        while step.level > 0 {
            step = self.open_child(&step, step.node.child_position(step.count, key))?;
        }
        let found = step.node.at_most(step.count, key);
        if found > 0 && step.node.key(found - 1) == key { Ok(Some(step.node.value(found - 1))) } else { Ok(None) }
    }

    /// The entry with the greatest key that is at most `key`.
    ///
    /// # Errors
    /// [`IndexError::Torn`] if a node is not what it should be.
    #[inline(always)]
    pub fn floor(&self, key: u64) -> Result<Option<(u64, u64)>, IndexError> {
        let Some(mut step) = self.open_root()? else { return Ok(None) };
        // The last node on the way with a child to the left of the one taken.
        let mut left: Option<(Step<'a>, usize)> = None;
        while step.level > 0 {
            let position = step.node.child_position(step.count, key);
            if position > 0 {
                left = Some((step, position - 1));
            }
            step = self.open_child(&step, position)?;
        }
        let mut position = step.node.at_most(step.count, key);
        if position == 0 {
            // The leaf that covers the key has only greater ones: the answer is the last entry before that leaf.
            let Some((parent, before)) = left else { return Ok(None) };
            step = self.last_leaf_of(&parent, before)?;
            position = step.count;
        }
        let found = (step.node.key(position - 1), step.node.value(position - 1));
        if found.0 <= key { Ok(Some(found)) } else { Err(Torn) }
    }

    #[inline(never)]
    fn last_leaf_of(&self, parent: &Step<'a>, position: usize) -> Result<Step<'a>, IndexError> {
        let mut step = self.open_child(parent, position)?;
        while step.level > 0 {
            step = self.open_child(&step, step.count - 1)?;
        }
        Ok(step)
    }

    /// The entry with the smallest key that is at least `key`.
    ///
    /// # Errors
    /// [`IndexError::Torn`] if a node is not what it should be.
    pub fn ceiling(&self, key: u64) -> Result<Option<(u64, u64)>, IndexError> {
        let mut found = None;
        self.for_each_from(key, &mut |key, value| {
            found = Some((key, value));
            false
        })?;
        Ok(found)
    }

    /// Calls `visit` with every entry whose key is at least `first`, in ascending order, until it returns false.
    ///
    /// # Errors
    /// [`IndexError::Torn`] if a node is not what it should be; entries visited before that may be wrong too.
    pub fn for_each_from(&self, first: u64, visit: &mut dyn FnMut(u64, u64) -> bool) -> Result<(), IndexError> {
        let mut from = first;
        // Every round but the first meets a leaf not seen before, or `from` does not rise.
        for _ in 0..=self.pool.capacity() {
            let Some((leaf, fence)) = self.leaf_of(from)? else { return Ok(()) };
            let mut position = leaf.node.at_most(leaf.count, from);
            // Keys are unique, so `from` itself can only be the one before.
            if position > 0 && leaf.node.key(position - 1) == from {
                position -= 1;
            }
            let mut last = None;
            for position in position..leaf.count {
                let key = leaf.node.key(position);
                if key < from || last.is_some_and(|last| key <= last) {
                    return Err(Torn);
                }
                last = Some(key);
                if !visit(key, leaf.node.value(position)) {
                    return Ok(());
                }
            }
            match fence {
                None => return Ok(()),
                Some(fence) if fence <= from || last.is_some_and(|last| fence <= last) => return Err(Torn),
                Some(fence) => from = fence,
            }
        }
        Err(Torn)
    }

    /// The leaf that covers `key`, and the separator to its right on the way, if there is one.
    #[inline]
    pub(super) fn leaf_of(&self, key: u64) -> Result<Option<(Step<'a>, Option<u64>)>, IndexError> {
        let Some(mut step) = self.open_root()? else { return Ok(None) };
        let mut fence = None;
        for _ in 0..LEVELS_MAX {
            if step.level == 0 {
                return Ok(Some((step, fence)));
            }
            let position = step.node.child_position(step.count, key);
            if position + 1 < step.count {
                fence = Some(step.node.key(position + 1));
            }
            step = self.open_child(&step, position)?;
        }
        Err(Torn)
    }
}
