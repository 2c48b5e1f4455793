//! What a write does at one place of a file's map, with one descent: it asks what stands before the place, sees to room, and maps.
//!
//! May touch: what the tree may; in [`Extents::map_at`] as a rule one leaf. Relies on: the inode's lock, from finding the place to
//! mapping, and that nobody changes the map in between.

use super::IndexError;
#[cfg(doc)]
use super::PIECES_MAX;
use super::extents::Extents;
use super::file_extent::{FILE_BLOCK_LIMIT, FileExtent, check_range};
use super::node::ENTRIES_MAX;
use super::pool::Reservation;
use super::tree::Step;

/// A block of a file, found in its map.
pub struct Spot<'a> {
    file_block: u64,
    /// The leaf that covers the block, and the separator to its right.
    leaf: Option<Covering<'a>>,
}

/// A leaf, and the separator to its right on the way to it.
pub(super) type Covering<'a> = (Step<'a>, Option<u64>);

impl<'a> Extents<'a> {
    /// Finds a block, for what is to be mapped from there on.
    ///
    /// # Errors
    /// [`IndexError::Torn`].
    #[inline]
    pub fn spot(&self, file_block: u64) -> Result<Spot<'a>, IndexError> {
        Ok(Spot { file_block, leaf: self.tree().leaf_of(file_block)? })
    }

    /// The volume's block with which the file goes on at a spot without a break, if it has the block before.
    ///
    /// # Errors
    /// [`IndexError::Torn`].
    #[inline]
    pub fn block_behind(&self, spot: &Spot<'a>) -> Result<Option<u64>, IndexError> {
        let Some(last) = spot.file_block.checked_sub(1) else { return Ok(None) };
        let found = spot.leaf.as_ref().map_or(0, |(leaf, _)| leaf.node.at_most(leaf.count, last));
        let before = match &spot.leaf {
            Some((leaf, _)) if found > 0 => Some(entry(leaf, found - 1)?),
            // It stands in the leaf before this one, if anywhere.
            _ => self.floor(last)?,
        };
        Ok(before.filter(|before| last < before.end()).map(|before| before.block + (last - before.file_block) + 1))
    }

    /// Reserves the nodes that mapping the blocks from a spot up to `end` in `pieces`, one behind the other, can need: by one
    /// [`Extents::map_at`], and [`Extents::map`] for what follows. At most [`PIECES_MAX`].
    ///
    /// # Errors
    /// As for [`Extents::reserve`].
    #[inline]
    pub fn reserve_at(&self, spot: &Spot<'a>, end: u64, pieces: usize) -> Result<Reservation<'a>, IndexError> {
        check_range(spot.file_block, end.saturating_sub(spot.file_block))?;
        self.reserve_in(spot.leaf.as_ref(), spot.file_block, end, pieces)
    }

    /// Maps `count` blocks from a spot on, as [`Extents::map`] does. Then the spot is none any more.
    ///
    /// # Errors
    /// As for [`Extents::map`].
    pub fn map_at(
        &self,
        spot: &Spot<'a>,
        block: u64,
        count: u64,
        nodes: &mut Reservation<'_>,
        displaced: &mut dyn FnMut(FileExtent),
    ) -> Result<(), IndexError> {
        let new = FileExtent { file_block: spot.file_block, block, count, shared: false };
        let end = new.check()?;
        match &spot.leaf {
            Some(leaf) if leaf.1.is_none_or(|fence| end <= fence) => self.map_near(Some(leaf), new, nodes, displaced),
            // It ends in another leaf than it begins in.
            _ => self.map_extent(new, nodes, displaced),
        }
    }
}

fn entry(leaf: &Step<'_>, position: usize) -> Result<FileExtent, IndexError> {
    FileExtent::from_entry((leaf.node.key(position), leaf.node.value(position)))
}

/// What is common, within the leaf that covers the last block of `new`: it continues the extent before it, takes the place of one of
/// the same length, or of a part of a longer one. False, and nothing changed, if it is none of these.
#[inline(always)]
pub(super) fn map_in_leaf(
    (leaf, fence): &Covering<'_>,
    new: FileExtent,
    displaced: &mut dyn FnMut(FileExtent),
) -> Result<bool, IndexError> {
    let found = leaf.node.at_most(leaf.count, new.end() - 1);
    if found == 0 {
        return Ok(false);
    }
    let at = found - 1;
    let old = entry(leaf, at)?;
    let (starts, ends) = (old.file_block == new.file_block, old.end() <= new.end());
    // The entry behind must be known, to be joined with or not, unless a rest of the old one stands there.
    if ends {
        if found == leaf.count && fence.is_some() {
            return Ok(false);
        }
        if found < leaf.count && leaf.node.key(found) < FILE_BLOCK_LIMIT && new.joins(entry(leaf, found)?) {
            return Ok(false);
        }
    }
    if old.end() <= new.file_block {
        if !old.joins(new) {
            return Ok(false);
        }
        leaf.node.set_value(at, FileExtent { count: old.count + new.count, ..old }.value());
        return Ok(true);
    }
    if new.file_block < old.file_block || old.end() < new.end() {
        return Ok(false);
    }
    // It takes the place of all of the old one or of a part. Likewise before it.
    if starts && (at == 0 && new.file_block > 0 || at > 0 && entry(leaf, at - 1)?.joins(new)) {
        return Ok(false);
    }
    let left = (!starts).then(|| old.part(old.file_block, new.file_block));
    let right = (old.end() > new.end()).then(|| old.part(new.end(), old.end()));
    if left.is_some_and(|left| left.joins(new)) || right.is_some_and(|right| new.joins(right)) {
        return Ok(false);
    }
    let mut count = leaf.count;
    // An extent may reach over the separator: what is left of it behind `new` then belongs to the next leaf.
    if right.is_some() && fence.is_some_and(|fence| fence <= new.end()) {
        return Ok(false);
    }
    if count + usize::from(left.is_some()) + usize::from(right.is_some()) > ENTRIES_MAX {
        return Ok(false);
    }
    displaced(old.part(new.file_block, new.end()));
    if let Some(right) = right {
        leaf.node.insert_at(0, count, at + 1, right.file_block, right.value());
        count += 1;
    }
    match left {
        None => leaf.node.set_value(at, new.value()),
        Some(left) => {
            leaf.node.insert_at(0, count, at + 1, new.file_block, new.value());
            leaf.node.set_value(at, left.value());
        }
    }
    Ok(true)
}
