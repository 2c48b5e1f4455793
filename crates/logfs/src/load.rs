//! Loading an inode: its record and its index from its slot and its log, by its first user since the volume was opened,
//! since it was evicted, or since somebody died with it.
//!
//! Runs under the inode's lock. The index is built anew under a raised epoch, so whatever a dead writer left of the old
//! one is nobody's.

use crate::create::WAS_NAMED;
use crate::format::entry::{Entry, LoggedAttributes, Owned, Payload, XattrValue};
use crate::format::page::LinePlace;
use crate::format::slot::Slot;
use crate::index::IndexError;
use crate::index::{Extents, FILE_BLOCK_LIMIT, FileExtent, Tree};
use crate::log::{self, Met};
use crate::mapped::{MapsWord, SHIFTED};
use crate::ops::{Op, index_error};
use crate::record::{Collection, Record, State};
use crate::replay::{InodeState, NamePlace, binding_key, xattr_key};
use crate::whole_map::WholeMap;
use gannet_shm::{Ordering, fence};
use gannet_vfs::{Errno, Error, FileType, Result};

/// The extended attribute whose presence permission checks must know of.
pub(crate) const ACCESS_LIST: &[u8] = b"system.posix_acl_access";

/// How long it is waited, again and again, until a slot that seems damaged is looked at once more: its maker may have lost the processor
/// between two stores.
const SLOT_PAUSES_MS: [u64; 8] = [0, 1, 2, 4, 8, 16, 32, 64];

/// Counts that are kept beside an index.
#[derive(Default)]
struct Counts {
    entries: u64,
    directories: u64,
    xattrs: u64,
    blocks: u64,
    /// No block of the file ever stood at or behind this one.
    end: u64,
}

impl<'s> Op<'s> {
    /// Loads the record of `inode`, whose lock is held. `ESTALE` if the inode is not in use.
    #[cold]
    pub(crate) fn load(&self, inode: u32, record: &Record<'s>) -> Result<State> {
        let (generation, birth, links, parent, changed) = match self.whole_slot(inode)? {
            Slot::Used { generation, birth, links, parent, changed, .. } => (generation, birth, links, parent, changed),
            Slot::Free { .. } => return Err(Error::new(Errno::STALE)),
            Slot::Damaged => {
                return Err(Error::damaged("inode slot", self.disk().slot_at(inode)?.unwrap_or(0)));
            }
        };
        // Unnoticed [word]: whoever unloads a record, or fails to load it, drops its index as well.
        record.drop_index();
        let owned = Owned { key: self.disk().key(), inode, generation };
        let tree = self.tree(inode, record);
        let mut state = InodeState::new(&birth);
        let mut counts = Counts::default();
        let mut has_access_list = false;
        let mut target = None;
        let mut whole = WholeMap::default();
        let (mut pages, mut head_end) = (0_u64, u64::MAX);
        let end = log::walk(self.disk(), owned, birth.head, &mut |met| {
            if let Met::Page { header, .. } = met {
                pages += 1;
                head_end = if pages == 2 { header.first_sequence } else { head_end };
            }
            if let Met::Entry { place, entry } = met {
                state.apply(entry);
                self.index_entry(&tree, place, entry, &mut counts)?;
                whole
                    .take(entry, |at| Extents::new(tree).next_mapped(at))
                    .map_err(|error| entry_error(error, place))?;
                match entry.payload {
                    Payload::Xattr { name: ACCESS_LIST, value } => has_access_list = value.is_some(),
                    Payload::LargeXattr { name: ACCESS_LIST, .. } => has_access_list = true,
                    Payload::Target(_) => target = target.or(Some(place)),
                    _ => {}
                }
            }
            Ok(())
        })?;
        end.refuse_odd(|| self.slot_word(inode, 0))?;
        if birth.file_type == FileType::Regular {
            self.mark_shared(inode, record)?;
            if record.has_writers_left() {
                // Wherever they began: the log may say of their blocks that they are elsewhere, or behind the end.
                self.pass_stripes(inode, 0, counts.end.min(FILE_BLOCK_LIMIT))?;
            }
        }
        record.set_state(&state);
        let is_directory = birth.file_type == FileType::Directory;
        record.set_links(if is_directory { counts.directories } else { links });
        record.set_parent(match (is_directory, links) {
            // A file that never had a name may get one; its slot knows no time at which one came or went.
            (false, 0) if changed != 0 => WAS_NAMED,
            (true, 1..) => parent as u32,
            _ => 0,
        });
        record.set_end(&end);
        // What the last entry covers is not known here: everything is.
        record.set_unsealed_start(0);
        record.set_unsealed_end(if end.last.is_some() { u64::MAX } else { 0 });
        record.set_blocks(counts.blocks);
        record.set_entries(counts.entries);
        record.set_xattrs(counts.xattrs);
        // Somebody may have it mapped still.
        let is_same = record.last_generation() == generation;
        // A collection that was about to say the whole map goes on where it was. It was not if the oldest page may go as it is.
        let is_due = whole.shifted && whole.said_from < head_end;
        let part = Some(whole.part).filter(|part| is_due && part.to > 0);
        let (said_from, has_shifted) = part.map_or((whole.said_from, whole.shifted), |part| (part.from, part.shifted));
        let maps = if has_shifted { SHIFTED } else { 0 };
        record.change_maps(|word| if is_same { word.without(SHIFTED) } else { MapsWord(0) }.with(maps));
        match birth.file_type {
            FileType::Regular => record.set_map_said(said_from, part.map(|part| part.to)),
            _ => record.set_target_place(target),
        }
        // Unnoticed [word]: how far a collection had come is when the next piece is due; it begins its page anew.
        record.set_collection(Collection::default());
        let state = State { generation, file_type: birth.file_type, has_access_list };
        // From here on it holds.
        record.set_loaded(state);
        // An inode in the making is its maker's until it is announced, whoever has the lock: should that one have died, it is settled, and the
        // slot freed, without the lock, before the record is unloaded.
        fence(Ordering::SeqCst);
        match self.disk().slot(inode)? {
            Slot::Used { generation: found, .. } if found == generation => Ok(state),
            _ => {
                record.unload();
                Err(Error::new(Errno::STALE))
            }
        }
    }

    /// The slot of an inode. Who makes an inode writes its slot without the inode's lock, for nobody can name it yet; but one who comes
    /// with what the number was before meets the lines half written. Damage is what stays.
    pub(crate) fn whole_slot(&self, inode: u32) -> Result<Slot> {
        for pause_ms in SLOT_PAUSES_MS {
            match self.disk().slot(inode)? {
                Slot::Damaged => crate::pause::pause(std::time::Duration::from_millis(pause_ms)),
                slot => return Ok(slot),
            }
        }
        self.disk().slot(inode)
    }

    fn index_entry(&self, tree: &Tree<'_>, place: LinePlace, entry: &Entry<'_>, counts: &mut Counts) -> Result<()> {
        let key = self.disk().key();
        let mut nodes = tree.no_reservation().map_err(|error| entry_error(error, place))?;
        match entry.payload {
            Payload::Bind { first, second, .. } => {
                for (index, binding) in [Some(first), second].into_iter().enumerate() {
                    let Some(binding) = binding else { continue };
                    let at = binding_key(key, &binding);
                    let old = match binding.file_type {
                        Some(file_type) => {
                            counts.entries += 1;
                            counts.directories += u64::from(file_type == FileType::Directory);
                            let value = NamePlace { place, second: index == 1, file_type }.encode();
                            tree.insert(at, value, &mut nodes).map_err(|error| entry_error(error, place))?
                        }
                        None => tree.remove(at).map_err(|error| entry_error(error, place))?,
                    };
                    if let Some(old) = old.and_then(NamePlace::decode) {
                        counts.entries -= 1;
                        counts.directories -= u64::from(old.file_type == FileType::Directory);
                    }
                }
            }
            Payload::Write { ref extents, .. } | Payload::Remap { ref extents, .. } => {
                if let Payload::Remap { file_block, count, .. } = entry.payload {
                    let count = count.min(FILE_BLOCK_LIMIT.saturating_sub(file_block));
                    self.unindex(tree, file_block, count, counts)?;
                }
                let map = Extents::new(*tree);
                for extent in extents.iter() {
                    if !self.disk().geometry().is_allocatable_run(extent.block, extent.count as u64) {
                        return Err(Error::damaged("extent outside the volume", place.offset_bytes()));
                    }
                    let mut gone = 0;
                    map.map(
                        extent.file_block,
                        extent.block,
                        extent.count as u64,
                        &mut nodes,
                        &mut |old: FileExtent| {
                            gone += old.count;
                        },
                    )
                    .map_err(|error| entry_error(error, place))?;
                    counts.blocks = counts.blocks + extent.count as u64 - gone;
                    counts.end = counts.end.max(extent.file_block + extent.count as u64);
                }
            }
            Payload::Size { size_bytes, .. }
            | Payload::Resize { attributes: LoggedAttributes { size_bytes, .. }, keeps: false, .. } => {
                let from = size_bytes.div_ceil(crate::format::BLOCK_BYTES);
                let count = FILE_BLOCK_LIMIT.saturating_sub(from);
                self.unindex(tree, from, count, counts)?;
            }
            Payload::Unmap { file_block, count } => {
                let count = count.min(FILE_BLOCK_LIMIT.saturating_sub(file_block));
                self.unindex(tree, file_block, count, counts)?;
            }
            Payload::Shift { file_block, distance, down, .. } => {
                let distance_signed =
                    i64::try_from(distance).map_err(|_| Error::damaged("shift entry", place.offset_bytes()))?;
                let map = Extents::new(*tree);
                if down {
                    let start =
                        file_block.checked_sub(distance).ok_or(Error::damaged("shift", place.offset_bytes()))?;
                    self.unindex(tree, start, distance, counts)?;
                }
                let delta = if down { -distance_signed } else { distance_signed };
                if !down {
                    counts.end = counts.end.saturating_add(distance);
                }
                map.shift(file_block, delta, &mut nodes).map_err(|error| entry_error(error, place))?;
            }
            Payload::Xattr { name, .. } | Payload::LargeXattr { name, .. } => {
                let at = self.xattr_place(tree, name)?;
                let is_set = !matches!(entry.payload, Payload::Xattr { value: None, .. });
                match (is_set, at) {
                    (true, (at, found)) => {
                        tree.insert(at, place.0, &mut nodes).map_err(|error| entry_error(error, place))?;
                        counts.xattrs += u64::from(!found);
                    }
                    (false, (at, true)) => {
                        tree.remove(at).map_err(|error| entry_error(error, place))?;
                        counts.xattrs -= 1;
                    }
                    (false, (_, false)) => {}
                }
            }
            Payload::Seal | Payload::Attributes(_) | Payload::Resize { keeps: true, .. } | Payload::Target(_) => {}
        }
        Ok(())
    }

    fn unindex(&self, tree: &Tree<'_>, file_block: u64, count: u64, counts: &mut Counts) -> Result<()> {
        if count > 0 {
            let mut nodes = tree.no_reservation().map_err(index_error)?;
            let mut gone = 0;
            Extents::new(*tree)
                .unmap(file_block, count, &mut nodes, &mut |old| gone += old.count)
                .map_err(index_error)?;
            counts.blocks -= gone;
        }
        Ok(())
    }

    /// The index key of an extended attribute, and whether it exists. If not, the key is free for it.
    pub(crate) fn xattr_place(&self, tree: &Tree<'_>, name: &[u8]) -> Result<(u64, bool)> {
        let first = xattr_key(self.disk().key(), name);
        // How many ranks are taken, without one between them that is free.
        let mut ranks = 0;
        let mut found = None;
        let mut failed = None;
        tree.for_each_from(first, &mut |at, value| {
            // The last keys of all are attributes' keys: nothing is added to `first`.
            if at.wrapping_sub(first) >= crate::replay::RANKS {
                return false;
            }
            match self.xattr_entry(LinePlace(value), |entry_name, _| entry_name == name) {
                Ok(true) => found = Some(at),
                Ok(false) if at == first + ranks => ranks += 1,
                Ok(false) => {}
                Err(error) => failed = Some(error),
            }
            found.is_none() && failed.is_none()
        })
        .map_err(index_error)?;
        match (failed, found) {
            (Some(error), _) => Err(error),
            (None, Some(at)) => Ok((at, true)),
            (None, None) if ranks < crate::replay::RANKS => Ok((first + ranks, false)),
            (None, None) => Err(Error::because(Errno::NOSPC, "65536 attribute names share one hash")),
        }
    }

    /// Calls `take` with name and value of the attribute entry at `place`.
    pub(crate) fn xattr_entry<T>(&self, place: LinePlace, take: impl FnOnce(&[u8], XattrValue<'_>) -> T) -> Result<T> {
        let mut block = [0; crate::format::BLOCK_BYTES as usize];
        let bytes = self.disk().read_entry(place, &mut block)?;
        let damaged = Error::damaged("extended attribute", place.offset_bytes());
        match crate::format::entry::peek_xattr(bytes) {
            Some((name, value)) => Ok(take(name, value)),
            None => Err(damaged),
        }
    }
}

/// An error of the index in which an entry of a log was to be entered: what no index can hold, no operation writes.
fn entry_error(error: IndexError, place: LinePlace) -> Error {
    match error {
        IndexError::Invalid => Error::damaged("log entry: beyond the largest file", place.offset_bytes()),
        error => index_error(error),
    }
}
