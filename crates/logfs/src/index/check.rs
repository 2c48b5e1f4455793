//! Verifying a whole tree, for tests and fsck.
//!
//! May touch: nodes, by loads only. Relies on: the inode's lock, or the caller's sequence check.

use super::IndexError::{self, Torn};
use super::tree::{Step, Tree};

/// What a tree is made of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TreeShape {
    /// Entries in the leaves.
    pub entries: u64,
    /// Nodes.
    pub nodes: u64,
    /// Levels; 0 for an empty tree.
    pub levels: u64,
}

impl<'a> Tree<'a> {
    /// Checks every node: owner, level, count, order of keys, keys within the bounds their ancestors set.
    ///
    /// # Errors
    /// [`IndexError::Torn`] if anything is not as it must be.
    pub fn check(&self) -> Result<TreeShape, IndexError> {
        let mut shape = TreeShape::default();
        let Some(root) = self.open_root()? else { return Ok(shape) };
        shape.levels = root.level as u64 + 1;
        if root.level > 0 && root.count < 2 {
            return Err(Torn);
        }
        self.check_below(&root, 0, None, &mut shape)?;
        Ok(shape)
    }

    /// Keys under `step` must be at least `low` and less than `high`.
    fn check_below(
        &self,
        step: &Step<'a>,
        low: u64,
        high: Option<u64>,
        shape: &mut TreeShape,
    ) -> Result<(), IndexError> {
        shape.nodes += 1;
        if shape.nodes > self.pool.capacity() {
            return Err(Torn);
        }
        let above = |key: u64| high.is_some_and(|high| key >= high);
        if step.level == 0 {
            for position in 0..step.count {
                let key = step.node.key(position);
                if key < low || above(key) || (position > 0 && key <= step.node.key(position - 1)) {
                    return Err(Torn);
                }
            }
            shape.entries += step.count as u64;
            return Ok(());
        }
        let mut low = low;
        for position in 0..step.count {
            let next = if position + 1 < step.count { Some(step.node.key(position + 1)) } else { None };
            if next.is_some_and(|next| next <= low || above(next)) {
                return Err(Torn);
            }
            self.check_below(&self.open_child(step, position)?, low, next.or(high), shape)?;
            low = next.unwrap_or(low);
        }
        Ok(())
    }
}
