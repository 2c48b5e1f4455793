//! What settling a dead thread's logs wants to know of one: read in one walk.
//!
//! May touch: the medium, which it writes back as far as the dead thread may have stored to it. Relies on: the inode's lock, which is the dead
//! thread's still.

use super::Settled;
use crate::disk::Disk;
use crate::file_map::FileMap;
use crate::format::BLOCK_BYTES;
use crate::format::entry::{Entry, Owned, Partner, Payload};
use crate::format::page::LinePlace;
use crate::halves::{Half, decide_half};
use crate::log::{self, LogEnd, Met};
use crate::replay::binding_key;
use crate::survey::{Values, data_is_whole};
use gannet_vfs::{FileType, Result};
use std::collections::HashMap;

/// A log, as far as it matters to who settles it: a directory may have a million names, and a file as many blocks.
#[derive(Default)]
pub(super) struct ReadLog {
    /// The two newest pages, the newest last.
    newest: [Option<u64>; 2],
    /// Pages that are in the dead thread's hands.
    pages: Vec<u64>,
    /// The names, by their keys, of inodes that are in its hands.
    names: HashMap<u64, (u32, u32)>,
    map: FileMap,
    values: Values,
    size_bytes: u64,
    /// Before the last entry.
    size_before_bytes: u64,
    /// Of the last entry, with its sequence number.
    partner: Option<(Partner, u64)>,
}

impl ReadLog {
    pub(super) fn read(disk: &Disk, owned: Owned, head: u64, settled: &Settled) -> Result<(Self, LogEnd)> {
        let mut read = Self::default();
        let end = log::walk(disk, owned, head, &mut |met| {
            match met {
                Met::Page { block, .. } => {
                    read.newest = [read.newest[1], Some(block)];
                    if settled.is_in_hand(block, 1) {
                        read.pages.push(block);
                    }
                }
                Met::Entry { entry, .. } => read.take(owned, entry, settled),
            }
            Ok(())
        })?;
        Ok((read, end))
    }

    fn take(&mut self, owned: Owned, entry: &Entry<'_>, settled: &Settled) {
        self.partner = None;
        self.size_before_bytes = self.size_bytes;
        match entry.payload {
            Payload::Bind { first, second, partner, .. } => {
                self.partner = partner.map(|partner| (partner, entry.sequence));
                for binding in [Some(first), second].into_iter().flatten() {
                    let is_new = binding.file_type.is_some() && settled.hands.inodes.contains(&binding.inode);
                    if is_new || !self.names.is_empty() {
                        let key = binding_key(owned.key, &binding);
                        match is_new {
                            true => self.names.insert(key, (binding.inode, binding.generation)),
                            false => self.names.remove(&key),
                        };
                    }
                }
            }
            Payload::Write { size_bytes, .. }
            | Payload::Size { size_bytes, .. }
            | Payload::Remap { size_bytes, .. }
            | Payload::Shift { size_bytes, .. } => self.size_bytes = size_bytes,
            Payload::Attributes(attributes) | Payload::Resize { attributes, .. } => {
                self.size_bytes = attributes.size_bytes;
            }
            _ => {}
        }
        self.map.apply(&entry.payload);
        self.values.apply(&entry.payload);
    }

    /// Writes the newest pages back: a dead thread's stores are visible, and perhaps not durable.
    pub(super) fn flush_newest_pages(&self, disk: &Disk) -> Result<()> {
        let mut commit = disk.begin();
        // Only the last two can have been stored to since the fence of an operation that completed.
        for &page in self.newest.iter().flatten() {
            commit.flush(page * BLOCK_BYTES, BLOCK_BYTES)?;
        }
        commit.without_fence();
        Ok(())
    }

    /// Whether the last entry stands; then the file's data is written back. The dead thread stored what the entry's hash covers, what it clones,
    /// and what was being written in place under the inode's lock, of which nobody knows where it is.
    pub(super) fn last_stands(&self, disk: &Disk, owned: Owned, last: LinePlace, locked: &[u32]) -> Result<bool> {
        let mut room = [0; BLOCK_BYTES as usize];
        if !data_is_whole(disk, owned, last, self.size_before_bytes, &self.map, &mut room)? {
            return Ok(false);
        }
        let mut commit = disk.begin();
        for extent in self.map.iter() {
            commit.flush(extent.block * BLOCK_BYTES, extent.count as u64 * BLOCK_BYTES)?;
        }
        commit.without_fence();
        match self.partner {
            // Its other half was under the same thread's lock, or the rename was over before.
            Some((partner, sequence)) if locked.contains(&partner.inode) => {
                Ok(decide_half(disk, (owned.inode, owned.generation, sequence), partner)? != Half::Torn)
            }
            _ => Ok(true),
        }
    }

    /// Notes which of what is in the dead thread's hands the log refers to.
    pub(super) fn note(self, settled: &mut Settled, file_type: FileType) {
        let file = self.map.iter().filter(|_| file_type == FileType::Regular);
        let file = file.map(|extent| (extent.block, extent.count as u64));
        let values = self.values.runs().map(|(_, block, count)| (block, count));
        let found: Vec<_> = file.chain(values).filter(|&(block, count)| settled.is_in_hand(block, count)).collect();
        settled.runs.extend(found);
        settled.runs.extend(self.pages.into_iter().map(|page| (page, 1)));
        settled.named.extend(self.names.into_values());
    }
}
