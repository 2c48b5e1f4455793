//! The map of a file: which volume blocks hold its blocks. A [`Tree`] whose values are runs of blocks.
//!
//! May touch: what the tree may. Relies on: what the tree does; for changes the inode's lock.
//!
//! The tree may hold entries of another kind under keys from [`FILE_BLOCK_LIMIT`] on: nothing here touches them. Below,
//! entries are extents (`file_extent`). Extents do not overlap. Neighbours that are contiguous on the volume are joined when one of
//! them is mapped, up to the longest length.

use super::IndexError::{self, Invalid, Torn};
use super::edit::PIECES_MAX;
use super::file_extent::{BLOCK_LIMIT, EXTENT_BLOCKS_MAX, FILE_BLOCK_LIMIT, FileExtent, Mapping, check_range};
use super::node::{ENTRIES_MAX, Node};
use super::pool::Reservation;
use super::spot::{Covering, map_in_leaf};
use super::tree::Tree;

/// A file's map, over its tree.
#[derive(Clone, Copy)]
pub struct Extents<'a> {
    tree: Tree<'a>,
}

/// The end of a map whose last extent can grow: see [`Extents::end_at`].
#[derive(Clone, Copy)]
pub struct MapEnd<'a> {
    leaf: Node<'a>,
    position: usize,
    last: FileExtent,
}

impl MapEnd<'_> {
    /// The volume's block with which the last extent goes on.
    #[inline]
    pub fn next_block(&self) -> u64 {
        self.last.block + self.last.count
    }

    /// Maps that block, as the file's next one. Under the lock under which the end was found, and with no change of the map
    /// since.
    #[inline]
    pub fn grow(self) {
        let grown = FileExtent { count: self.last.count + 1, ..self.last };
        self.leaf.set_value(self.position, grown.value());
    }
}

impl<'a> Extents<'a> {
    /// The map kept in `tree`.
    #[inline]
    pub fn new(tree: Tree<'a>) -> Self {
        Extents { tree }
    }

    /// The tree below.
    pub fn tree(&self) -> &Tree<'a> {
        &self.tree
    }

    #[inline(always)]
    pub(super) fn floor(&self, file_block: u64) -> Result<Option<FileExtent>, IndexError> {
        self.tree.floor(file_block)?.map(FileExtent::from_entry).transpose()
    }

    fn ceiling(&self, file_block: u64) -> Result<Option<FileExtent>, IndexError> {
        let next = self.tree.ceiling(file_block)?;
        next.filter(|&(key, _)| key < FILE_BLOCK_LIMIT).map(FileExtent::from_entry).transpose()
    }

    /// What stands at `file_block`. Beside a writer the answer is to be validated before it is used.
    ///
    /// # Errors
    /// [`IndexError::Torn`]; [`IndexError::Invalid`] at or beyond [`FILE_BLOCK_LIMIT`].
    // Inlined as far as most files need it: calls save registers, and behind the stores past the cache of the operation before
    // every further store waits until they are done.
    #[inline(always)]
    pub fn lookup(&self, file_block: u64) -> Result<Mapping, IndexError> {
        if let Some(extent) = self.floor(file_block)?
            && file_block < extent.end()
        {
            let offset = file_block - extent.file_block;
            let (block, count) = (extent.block + offset, extent.count - offset);
            return Ok(Mapping::Blocks { block, count, shared: extent.shared });
        }
        self.hole_at(file_block)
    }

    #[inline(never)]
    fn hole_at(&self, file_block: u64) -> Result<Mapping, IndexError> {
        if file_block >= FILE_BLOCK_LIMIT {
            return Err(Invalid);
        }
        let next = self.ceiling(file_block)?.map_or(FILE_BLOCK_LIMIT, |next| next.file_block);
        if next <= file_block { Err(Torn) } else { Ok(Mapping::Hole { count: next - file_block }) }
    }

    /// The first block at or behind `file_block` that is mapped, if there is one.
    ///
    /// # Errors
    /// [`IndexError::Torn`].
    pub fn next_mapped(&self, file_block: u64) -> Result<Option<u64>, IndexError> {
        if file_block >= FILE_BLOCK_LIMIT {
            return Ok(None);
        }
        match self.lookup(file_block)? {
            Mapping::Blocks { .. } => Ok(Some(file_block)),
            Mapping::Hole { count } => Ok(Some(file_block + count).filter(|&next| next < FILE_BLOCK_LIMIT)),
        }
    }

    /// Reserves the nodes that one [`Extents::map`] of this range can need; also enough for one [`Extents::unmap`].
    ///
    /// # Errors
    /// [`IndexError::Full`], [`IndexError::Torn`], [`IndexError::Invalid`].
    pub fn reserve(&self, file_block: u64, count: u64) -> Result<Reservation<'a>, IndexError> {
        let end = check_range(file_block, count)?;
        self.reserve_in(self.tree.leaf_of(file_block)?.as_ref(), file_block, end, 1)
    }

    /// The same for a range that is mapped in `pieces`, one behind the other, with the leaf that covers `file_block` at hand.
    #[inline]
    pub(super) fn reserve_in(
        &self,
        leaf: Option<&Covering<'a>>,
        file_block: u64,
        end: u64,
        pieces: usize,
    ) -> Result<Reservation<'a>, IndexError> {
        // With room for all pieces and what is left behind them in the leaf that holds all of the range, as most have, there is nothing
        // to be reserved.
        if let Some((leaf, fence)) = leaf
            && leaf.count + pieces < ENTRIES_MAX
            && fence.is_none_or(|fence| end < fence)
        {
            return self.tree.no_reservation();
        }
        match self.floor(end - 1)? {
            // One entry takes another's place, or joins one.
            Some(same) if same.file_block == file_block && same.end() == end && pieces == 1 => {
                self.tree.no_reservation()
            }
            _ => self.tree.reserve_pieces(&[file_block, end], pieces),
        }
    }

    /// Reserves the nodes that one [`Extents::unmap`] of this range can need, and after it [`Extents::map_extent`] of `pieces` of it, in
    /// ascending order.
    ///
    /// # Errors
    /// As for [`Extents::reserve`].
    pub fn reserve_pieces(&self, file_block: u64, count: u64, pieces: usize) -> Result<Reservation<'a>, IndexError> {
        if pieces > PIECES_MAX {
            check_range(file_block, count)?;
            return self.tree.reserve_many(file_block, pieces);
        }
        let end = check_range(file_block, count)?;
        self.reserve_in(self.tree.leaf_of(file_block)?.as_ref(), file_block, end, pieces.max(1))
    }

    /// The end of the map, if its last extent ends right before `file_block` and is the file's alone: one descent for
    /// who takes a block there and then maps it. `None` also where that is not seen at once.
    ///
    /// # Errors
    /// [`IndexError::Torn`].
    #[inline(always)]
    pub fn end_at(&self, file_block: u64) -> Result<Option<MapEnd<'a>>, IndexError> {
        let Some((leaf, None)) = self.tree.leaf_of(file_block)? else { return Ok(None) };
        let found = leaf.node.at_most(leaf.count, file_block);
        if found == 0 || (found < leaf.count && leaf.node.key(found) < FILE_BLOCK_LIMIT) {
            return Ok(None);
        }
        let position = found - 1;
        let last = FileExtent::from_entry((leaf.node.key(position), leaf.node.value(position)))?;
        let can_grow = last.end() == file_block && !last.shared && last.count < EXTENT_BLOCKS_MAX;
        let fits = file_block < FILE_BLOCK_LIMIT && last.block + last.count < BLOCK_LIMIT;
        Ok((can_grow && fits).then_some(MapEnd { leaf: leaf.node, position, last }))
    }

    /// The extent that holds a block, whole.
    ///
    /// # Errors
    /// [`IndexError::Torn`], [`IndexError::Invalid`].
    pub fn holding(&self, file_block: u64) -> Result<Option<FileExtent>, IndexError> {
        check_range(file_block, 1)?;
        Ok(self.floor(file_block)?.filter(|extent| file_block < extent.end()))
    }

    /// Maps `count` blocks (up to [`EXTENT_BLOCKS_MAX`]) from `file_block` on to volume blocks from `block` on.
    /// `displaced` is called with what was mapped there before, in descending order.
    ///
    /// # Errors
    /// [`IndexError::Invalid`] before anything changed. [`IndexError::Torn`]. [`IndexError::Full`] only if `nodes` is
    /// not from [`Extents::reserve`] of this range; the map is then to be rebuilt.
    pub fn map(
        &self,
        file_block: u64,
        block: u64,
        count: u64,
        nodes: &mut Reservation<'_>,
        displaced: &mut dyn FnMut(FileExtent),
    ) -> Result<(), IndexError> {
        self.map_extent(FileExtent { file_block, block, count, shared: false }, nodes, displaced)
    }

    /// The same for blocks that may be shared.
    ///
    /// # Errors
    /// As [`Extents::map`].
    pub fn map_extent(
        &self,
        new: FileExtent,
        nodes: &mut Reservation<'_>,
        displaced: &mut dyn FnMut(FileExtent),
    ) -> Result<(), IndexError> {
        let end = new.check()?;
        let leaf = self.tree.leaf_of(end - 1)?;
        self.map_near(leaf.as_ref(), new, nodes, displaced)
    }

    /// The same, with the leaf that covers the last of the blocks at hand.
    pub(super) fn map_near(
        &self,
        leaf: Option<&Covering<'a>>,
        mut new: FileExtent,
        nodes: &mut Reservation<'_>,
        displaced: &mut dyn FnMut(FileExtent),
    ) -> Result<(), IndexError> {
        if let Some(leaf) = leaf
            && map_in_leaf(leaf, new, displaced)?
        {
            return Ok(());
        }
        let FileExtent { file_block, count, .. } = new;
        let end = new.end();
        self.unmap(file_block, count, nodes, displaced)?;

        let left = match file_block.checked_sub(1) {
            Some(before) => self.floor(before)?.filter(|left| left.joins(new)),
            None => None,
        };
        if let Some(left) = left {
            new = FileExtent { count: left.count + count, ..left };
        }
        // The value of the entry right behind, if one begins there.
        if let Some(value) = self.tree.get(end)? {
            let right = FileExtent::from_entry((end, value))?;
            if new.joins(right) {
                new.count += right.count;
                self.tree.remove_keeping(end, nodes)?;
            }
        }
        if left.is_some() {
            self.tree.replace(new.file_block, new.value())?.ok_or(Torn)?;
        } else {
            self.tree.insert(new.file_block, new.value(), nodes)?;
        }
        Ok(())
    }

    /// Unmaps `count` blocks from `file_block` on. `displaced` is called with what was mapped, in descending order.
    ///
    /// # Errors
    /// As [`Extents::map`].
    pub fn unmap(
        &self,
        file_block: u64,
        count: u64,
        nodes: &mut Reservation<'_>,
        displaced: &mut dyn FnMut(FileExtent),
    ) -> Result<(), IndexError> {
        let end = check_range(file_block, count)?;
        // Ever fewer extents begin before `end`; each round takes one away or is the last.
        while let Some(extent) = self.floor(end - 1)? {
            if extent.end() <= file_block {
                break;
            }
            displaced(extent.part(file_block, end));
            let before = extent.file_block < file_block;
            if before {
                let rest = extent.part(extent.file_block, file_block);
                self.tree.replace(rest.file_block, rest.value())?.ok_or(Torn)?;
            } else {
                self.tree.remove_keeping(extent.file_block, nodes)?.ok_or(Torn)?;
            }
            if extent.end() > end {
                let rest = extent.part(end, extent.end());
                self.tree.insert(rest.file_block, rest.value(), nodes)?;
            }
            if before {
                break;
            }
        }
        Ok(())
    }

    /// Notes of all blocks mapped in a range whether others may refer to them. `nodes` is from
    /// [`Extents::reserve_edges`] of this range.
    ///
    /// # Errors
    /// [`IndexError::Invalid`] before anything changed; [`IndexError::Torn`]; [`IndexError::Full`] as for
    /// [`Extents::map`].
    pub fn set_shared(
        &self,
        file_block: u64,
        count: u64,
        shared: bool,
        nodes: &mut Reservation<'_>,
    ) -> Result<(), IndexError> {
        let end = check_range(file_block, count)?;
        for edge in [file_block, end] {
            self.split(edge, nodes)?;
        }
        let mut next = file_block;
        while let Some(extent) = self.ceiling(next)?.filter(|extent| extent.file_block < end) {
            if extent.end() <= next {
                return Err(Torn);
            }
            if extent.shared != shared {
                let value = FileExtent { shared, ..extent }.value();
                self.tree.replace(extent.file_block, value)?.ok_or(Torn)?;
            }
            next = extent.end();
        }
        Ok(())
    }

    /// Reserves the nodes that splitting the extents at both ends of a range can need.
    ///
    /// # Errors
    /// As [`Extents::reserve`].
    pub fn reserve_edges(&self, file_block: u64, count: u64) -> Result<Reservation<'a>, IndexError> {
        let end = check_range(file_block, count)?;
        self.tree.reserve(&[file_block, end])
    }

    /// Makes an extent that covers both sides of `at` two.
    fn split(&self, at: u64, nodes: &mut Reservation<'_>) -> Result<(), IndexError> {
        if let Some(before) = at.checked_sub(1)
            && let Some(extent) = self.floor(before)?
            && extent.end() > at
        {
            let (left, right) = (extent.part(extent.file_block, at), extent.part(at, extent.end()));
            self.tree.replace(left.file_block, left.value())?.ok_or(Torn)?;
            self.tree.insert(right.file_block, right.value(), nodes)?;
        }
        Ok(())
    }

    /// Moves everything from `first` on by `delta` blocks, as inserting and collapsing a range need it: for a
    /// negative `delta` the `-delta` blocks before `first` must be a hole. An extent that covers both sides of
    /// `first` is split. `nodes` is from [`Extents::reserve`] of one block at `first`.
    ///
    /// # Errors
    /// [`IndexError::Invalid`] before anything changed, if the gap is not a hole or the end passes
    /// [`FILE_BLOCK_LIMIT`]. [`IndexError::Torn`]; [`IndexError::Full`] as for [`Extents::map`].
    pub fn shift(&self, first: u64, delta: i64, nodes: &mut Reservation<'_>) -> Result<(), IndexError> {
        let distance = delta.unsigned_abs();
        if first >= FILE_BLOCK_LIMIT {
            return Err(Invalid);
        }
        if delta < 0 {
            let start = first.checked_sub(distance).ok_or(Invalid)?;
            match self.lookup(start)? {
                Mapping::Hole { count } if count >= distance => {}
                _ => return Err(Invalid),
            }
        } else {
            self.check_room(first, distance)?;
        }
        self.split(first, nodes)?;
        self.tree.shift_keys(first..FILE_BLOCK_LIMIT, delta)
    }

    /// Whether what stands from `first` on can move up by `distance` blocks.
    ///
    /// # Errors
    /// [`IndexError::Invalid`] if its end would pass [`FILE_BLOCK_LIMIT`]; [`IndexError::Torn`].
    pub fn check_room(&self, first: u64, distance: u64) -> Result<(), IndexError> {
        match self.floor(FILE_BLOCK_LIMIT - 1)? {
            Some(last)
                if last.end() > first && last.end().checked_add(distance).is_none_or(|end| end > FILE_BLOCK_LIMIT) =>
            {
                Err(Invalid)
            }
            _ => Ok(()),
        }
    }

    /// Calls `visit` with every extent that holds `first` or begins after it, in ascending order, until it returns
    /// false. The first one may begin before `first`.
    ///
    /// # Errors
    /// [`IndexError::Torn`].
    pub fn for_each_from(&self, first: u64, visit: &mut dyn FnMut(FileExtent) -> bool) -> Result<(), IndexError> {
        let from = match self.floor(first)? {
            Some(extent) if extent.end() > first => extent.file_block,
            _ => first,
        };
        let mut torn = false;
        self.tree.for_each_from(from, &mut |key, value| match FileExtent::from_entry((key, value)) {
            // Keys from here on are not of blocks.
            _ if key >= FILE_BLOCK_LIMIT => false,
            Ok(extent) => visit(extent),
            Err(_) => {
                torn = true;
                false
            }
        })?;
        if torn { Err(Torn) } else { Ok(()) }
    }

    /// Checks the tree and that extents do not overlap. Returns the number of mapped blocks.
    ///
    /// # Errors
    /// [`IndexError::Torn`] if anything is not as it must be.
    pub fn check(&self) -> Result<u64, IndexError> {
        self.tree.check()?;
        let (mut end, mut blocks, mut fits) = (0, 0, true);
        self.for_each_from(0, &mut |extent| {
            fits &= extent.file_block >= end && extent.end() <= FILE_BLOCK_LIMIT;
            end = extent.end();
            blocks += extent.count;
            fits
        })?;
        if fits { Ok(blocks) } else { Err(Torn) }
    }
}
