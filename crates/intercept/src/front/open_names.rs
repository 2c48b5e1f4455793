//! What descriptors' files are called, for `readlink` of `/proc/self/fd/N`.
//!
//! A file of a volume does not know its names. So what opens one notes beside the descriptor ([`OpenNames`]) the directory that it
//! was found in and its name there; `dup`, `fork` and `execve` carry the note on. When the link is read the note is looked at
//! anew: a file that was renamed is found where it is now, one that was removed has ` (deleted)` behind the name that it was opened
//! by.

use super::Front;
use super::table::{OpenFile, Table};
use crate::entry::DESCRIPTOR_LIMIT;
use core::sync::atomic::{AtomicU64, Ordering};
use gannet_vfs::shared::Description;
use gannet_vfs::{Errno, FileSystem, FileType, Name, NodeId};

/// Words for a name: longer ones are found by looking through their directory.
const NAME_WORDS: usize = 12;
const NAME_BYTES: usize = NAME_WORDS * 8;
/// How many entries of directories are looked at for a file that is no longer where it was opened.
const ENTRIES_MAX: usize = 1 << 16;

/// One descriptor's note. It counts while the descriptor stands for the description that it was made for.
struct Note {
    description: AtomicU64,
    directory: AtomicU64,
    /// Generation of the directory, and length of the name in bytes (0: too long to be kept).
    generation_and_length: AtomicU64,
    name: [AtomicU64; NAME_WORDS],
}

/// The notes of a table of descriptors. Zeros are none.
pub(crate) struct OpenNames {
    notes: [Note; DESCRIPTOR_LIMIT],
}

/// A file's directory when it was opened, and its name there.
pub(crate) struct OpenName {
    pub(crate) directory: NodeId,
    name: [u8; NAME_BYTES],
    length: usize,
}

impl OpenName {
    pub(crate) fn new(directory: NodeId, name: &[u8]) -> OpenName {
        let mut kept = OpenName { directory, name: [0; NAME_BYTES], length: 0 };
        if let Some(room) = kept.name.get_mut(..name.len()) {
            room.copy_from_slice(name);
            kept.length = name.len();
        }
        kept
    }

    /// The name; empty if it was too long.
    pub(crate) fn name(&self) -> &[u8] {
        &self.name[..self.length]
    }
}

impl OpenNames {
    pub(crate) const fn new() -> OpenNames {
        OpenNames {
            notes: [const {
                Note {
                    description: AtomicU64::new(0),
                    directory: AtomicU64::new(0),
                    generation_and_length: AtomicU64::new(0),
                    name: [const { AtomicU64::new(0) }; NAME_WORDS],
                }
            }; DESCRIPTOR_LIMIT],
        }
    }

    /// Notes under which name a descriptor's file was opened.
    pub(crate) fn set(&self, descriptor: usize, description: Description, name: &OpenName) {
        let Some(note) = self.notes.get(descriptor) else { return };
        note.description.store(0, Ordering::Release);
        note.directory.store(name.directory.number, Ordering::Relaxed);
        let generation_and_length = u64::from(name.directory.generation) << 32 | name.length as u64;
        note.generation_and_length.store(generation_and_length, Ordering::Relaxed);
        let words = name.name[..name.length.next_multiple_of(8)].as_chunks().0;
        for (word, bytes) in note.name.iter().zip(words) {
            word.store(u64::from_le_bytes(*bytes), Ordering::Relaxed);
        }
        note.description.store(description.word(), Ordering::Release);
    }

    /// The note of a descriptor, if it is of this description.
    pub(crate) fn get(&self, descriptor: usize, description: Description) -> Option<OpenName> {
        let note = self.notes.get(descriptor)?;
        let is_of_it = || note.description.load(Ordering::Acquire) == description.word();
        if !is_of_it() {
            return None;
        }
        let generation_and_length = note.generation_and_length.load(Ordering::Relaxed);
        let number = note.directory.load(Ordering::Relaxed);
        let directory = NodeId::new(number, (generation_and_length >> 32) as u32);
        let mut name = [0u8; NAME_BYTES];
        for (word, bytes) in note.name.iter().zip(name.as_chunks_mut().0) {
            *bytes = word.load(Ordering::Relaxed).to_le_bytes();
        }
        let length = (generation_and_length as u32 as usize).min(NAME_BYTES);
        is_of_it().then_some(OpenName { directory, name, length })
    }
}

impl Front {
    /// The path of what a descriptor refers to, as the kernel's links in `/proc/self/fd` give it.
    pub(crate) fn path_of(&self, table: &Table, descriptor: usize, file: &OpenFile) -> Result<Vec<u8>, Errno> {
        let known = table.open_name(descriptor, file);
        if file.file_type == FileType::Directory {
            match self.path_of_directory(file.mount, file.node) {
                Err(Errno::NOENT | Errno::STALE) => {}
                answer => return answer,
            }
        } else if let Some(path) = self.path_of_file(file, known.as_ref())? {
            return Ok(path);
        }
        // It has none any more.
        let place = &self.mounts.get(file.mount).ok_or(Errno::NOENT)?.place;
        let above = known.as_ref().and_then(|known| self.path_of_directory(file.mount, known.directory).ok());
        let mut path = above.unwrap_or_else(|| place.clone());
        path.push(b'/');
        match known.as_ref().map(OpenName::name) {
            Some(name) if !name.is_empty() => path.extend_from_slice(name),
            _ => path.extend_from_slice(format!("#{}", file.node.number).as_bytes()),
        }
        path.extend_from_slice(b" (deleted)");
        Ok(path)
    }

    /// The path of a file that is no directory; `None` if it has none any more.
    fn path_of_file(&self, file: &OpenFile, known: Option<&OpenName>) -> Result<Option<Vec<u8>>, Errno> {
        let fs = self.file_system(file.mount)?;
        let attributes = fs.attributes(file.node).map_err(|error| error.errno())?;
        if attributes.links == 0 {
            return Ok(None);
        }
        let whole = |directory, name: &[u8]| {
            let mut path = self.path_of_directory(file.mount, directory).ok()?;
            path.push(b'/');
            path.extend_from_slice(name);
            Some(path)
        };
        if let Some(known) = known {
            let is_there = |name| fs.lookup(known.directory, name).is_ok_and(|found| found.node == file.node);
            if Name::new(known.name()).is_ok_and(is_there) {
                return Ok(whole(known.directory, known.name()));
            }
            let mut entries_left = ENTRIES_MAX;
            if let Some(name) = name_in(fs, known.directory, file.node, &mut entries_left, &mut Vec::new()) {
                return Ok(whole(known.directory, &name));
            }
            if attributes.links > 1 {
                // One of several names, which is gone.
                return Ok(None);
            }
        }
        Ok(find(fs, file.node).and_then(|(directory, name)| whole(directory, &name)))
    }
}

/// A name that an inode has in a directory. Other directories in it are added to `further`.
fn name_in(
    fs: &dyn FileSystem,
    directory: NodeId,
    node: NodeId,
    entries_left: &mut usize,
    further: &mut Vec<Vec<u8>>,
) -> Option<Vec<u8>> {
    let mut found = None;
    let read = fs.read_directory(directory, 0, &mut |entry| {
        if entry.number == node.number {
            found = Some(entry.name.bytes().to_vec());
        } else if entry.file_type == FileType::Directory {
            further.push(entry.name.bytes().to_vec());
        }
        *entries_left = entries_left.saturating_sub(1);
        found.is_none() && *entries_left != 0
    });
    read.ok().and(found)
}

/// Looks through the tree for an inode: its directory and its name there.
fn find(fs: &dyn FileSystem, node: NodeId) -> Option<(NodeId, Vec<u8>)> {
    let mut entries_left = ENTRIES_MAX;
    let mut waiting = std::collections::VecDeque::from([fs.root()]);
    while let Some(directory) = waiting.pop_front().filter(|_| entries_left != 0) {
        let mut further = Vec::new();
        if let Some(name) = name_in(fs, directory, node, &mut entries_left, &mut further) {
            return Some((directory, name));
        }
        let inside = further.iter().filter_map(|name| fs.lookup(directory, Name::new(name).ok()?).ok());
        waiting.extend(inside.map(|found| found.node));
    }
    None
}
