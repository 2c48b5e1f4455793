//! Moving a range of keys in place, for collapsing and inserting ranges of a file: order stays, so no node is needed.
//!
//! May touch: as `edit`. Relies on: the inode's lock.

use core::ops::Range;

use super::IndexError::{self, Torn};
use super::tree::{Step, Tree};

impl<'a> Tree<'a> {
    /// Adds `delta` to every key in `keys`.
    ///
    /// The caller sees to it that this keeps the order: for a negative `delta` there is no key in
    /// `keys.start + delta .. keys.start`, for a positive one no key reaches `keys.end`.
    ///
    /// # Errors
    /// [`IndexError::Torn`].
    pub(super) fn shift_keys(&self, keys: Range<u64>, delta: i64) -> Result<(), IndexError> {
        let Some(root) = self.open_root()? else { return Ok(()) };
        let mut budget = self.pool.capacity();
        self.shift_below(&root, &keys, delta, &mut budget)
    }

    fn shift_below(&self, step: &Step<'a>, keys: &Range<u64>, delta: i64, budget: &mut u64) -> Result<(), IndexError> {
        let first = keys.start;
        *budget = budget.checked_sub(1).ok_or(Torn)?;
        if step.level == 0 {
            for position in 0..step.count {
                let key = step.node.key(position);
                if keys.contains(&key) {
                    step.node.set_key(position, key.checked_add_signed(delta).ok_or(Torn)?);
                }
            }
            return Ok(());
        }
        for position in step.node.child_position(step.count, first)..step.count {
            let child = self.open_child(step, position)?;
            self.shift_below(&child, keys, delta, budget)?;
            // A separator can be smaller than the smallest key behind it. One inside the gap that closes goes to its
            // lower end; the one at position 0 means nothing and must only not stop us.
            let separator = step.node.key(position);
            let shifted = separator.saturating_add_signed(delta);
            let lowest = if delta < 0 { first.saturating_add_signed(delta) } else { first };
            if keys.contains(&separator) {
                step.node.set_key(position, shifted);
            } else if separator < first && separator > lowest {
                step.node.set_key(position, lowest);
            }
        }
        Ok(())
    }
}
