//! Writes an inode's log anew, on pages that nobody uses: what the check made of the old one, as plain entries.
//!
//! The new log becomes the inode's by one word, its slot's head; until then the volume is as it was. Here its pages are only made:
//! what turns out to be impossible has changed nothing.

use super::SEQUENCE_CREDIBLE_MAX;
use super::examine::Examined;
use super::trace::Ground;
use crate::bits::Bits;
use crate::disk::Block;
use crate::format::BLOCK_BYTES;
use crate::format::entry::{Binding, EXTENTS_MAX, Entry, Extents, FileExtent, Owned, Payload, encode};
use crate::format::page::{AT_NEXT, LINES, LinePlace, Link, PageHeader};
use crate::format::{LINE_BYTES, put_u64};
use gannet_vfs::{Errno, Error, FileType, Result};

/// Free blocks, handed out in ascending order.
pub(super) struct FreeBlocks<'b> {
    used: &'b Bits,
    next: u64,
    end: u64,
}

impl<'b> FreeBlocks<'b> {
    pub(super) fn new(used: &'b Bits, first: u64, end: u64) -> Self {
        Self { used, next: first, end }
    }

    /// The first of `count` free blocks in a row.
    pub(super) fn take(&mut self, count: u64) -> Result<u64> {
        let mut run = 0;
        for block in self.next..self.end {
            run = if self.used.has(block) { 0 } else { run + 1 };
            if run == count {
                let first = block + 1 - count;
                (first..=block).for_each(|taken| {
                    let _ = self.used.set(taken);
                });
                if count == 1 {
                    self.next = block + 1;
                }
                return Ok(first);
            }
        }
        Err(Error::because(
            Errno::NOSPC,
            "no room for what repair must write: nothing was changed; make room, then repair again; where the volume cannot be opened, \
             --give-up names a file to make it empty",
        ))
    }
}

/// A name to be bound besides those that the old log binds.
#[derive(Clone, Debug)]
pub(super) struct AddedName {
    pub(super) name: Vec<u8>,
    pub(super) rank: u16,
    pub(super) inode: u32,
    pub(super) generation: u32,
    pub(super) file_type: FileType,
}

/// Pages of new logs, with the blocks that they go to.
pub(super) type NewPages = Vec<(u64, Box<Block>)>;

/// A log being written.
struct LogWriter<'w, 'b> {
    pages: &'w mut NewPages,
    free: &'w mut FreeBlocks<'b>,
    owned: Owned,
    epoch: u32,
    sequence: u64,
    page: Box<Block>,
    block: u64,
    line: u32,
}

impl LogWriter<'_, '_> {
    fn begin_page(&mut self) {
        let header = PageHeader {
            inode: self.owned.inode,
            generation: self.owned.generation,
            epoch: self.epoch,
            first_sequence: self.sequence,
        };
        self.page.fill(0);
        self.page[..LINE_BYTES as usize].copy_from_slice(&header.encode(self.owned.key));
        self.line = 1;
    }

    fn end_page(&mut self) {
        self.pages.push((self.block, self.page.clone()));
    }

    fn append(&mut self, time: i64, payload: &Payload<'_>) -> Result<()> {
        let lines = payload.lines();
        if self.line + lines > LINES {
            let next = self.free.take(1)?;
            put_u64(&mut self.page[..], AT_NEXT as usize, Link { block: next, epoch: self.epoch }.encode());
            self.end_page();
            self.block = next;
            self.begin_page();
        }
        let at = self.line as usize * LINE_BYTES as usize;
        encode(self.owned, self.epoch, self.sequence, time, payload, &mut self.page[at..]);
        self.line += lines;
        self.sequence += 1;
        Ok(())
    }
}

/// Makes the log of an inode, with names besides its own, and returns the link word that leads to it.
pub(super) fn write_log(
    ground: &Ground<'_>,
    pages: &mut NewPages,
    free: &mut FreeBlocks<'_>,
    examined: &Examined,
    added: &[AddedName],
) -> Result<u64> {
    let owned = Owned { key: ground.disk.key(), inode: examined.inode, generation: examined.generation };
    let epoch = ground.disk.epoch();
    let block = free.take(1)?;
    let mut writer = LogWriter {
        pages,
        free,
        owned,
        epoch,
        sequence: examined.sequence_floor.max(1),
        page: Box::new([0; BLOCK_BYTES as usize]),
        block,
        line: 1,
    };
    if writer.sequence > SEQUENCE_CREDIBLE_MAX {
        return Err(Error::because(Errno::OVERFLOW, "the sequence numbers of a log are used up"));
    }
    writer.begin_page();
    let time = examined.state.changed;
    if examined.birth.file_type == FileType::Symlink {
        // A collection that was cut short may have left pieces twice: those up to the size are the target.
        let mut missing_bytes = examined.state.logged.size_bytes;
        for &(place, length_bytes) in &examined.targets {
            if missing_bytes == 0 {
                break;
            }
            missing_bytes = missing_bytes.saturating_sub(length_bytes);
            with_entry(ground, owned, place, &mut |payload| match payload {
                Payload::Target(_) => writer.append(time, payload),
                _ => Ok(()),
            })?;
        }
        if examined.targets.is_empty() {
            writer.append(time, &Payload::Target(b"?"))?;
        }
    }
    for &place in examined.xattrs.values() {
        with_entry(ground, owned, place, &mut |payload| match payload {
            Payload::Xattr { .. } | Payload::LargeXattr { .. } => writer.append(time, payload),
            _ => Ok(()),
        })?;
    }
    for (&key, bound) in &examined.names {
        let Some(name) = bound.name(ground, examined.inode, examined.generation)? else { continue };
        let first = Binding {
            name: &name,
            rank: key as u16,
            file_type: Some(bound.file_type),
            inode: bound.inode,
            generation: bound.generation,
        };
        writer.append(time, &Payload::Bind { first, second: None, birth: None, partner: None })?;
    }
    for AddedName { name, rank, inode, generation, file_type } in added {
        let (rank, inode, generation) = (*rank, *inode, *generation);
        let first = Binding { name, rank, file_type: Some(*file_type), inode, generation };
        writer.append(time, &Payload::Bind { first, second: None, birth: None, partner: None })?;
    }
    let runs: Vec<FileExtent> = examined.map.iter().collect();
    for part in runs.chunks(EXTENTS_MAX) {
        let size_bytes = examined.state.logged.size_bytes;
        writer.append(time, &Payload::Write { size_bytes, hash: None, extents: Extents::List(part) })?;
    }
    writer.append(time, &Payload::Attributes(examined.state.logged))?;
    writer.end_page();
    Ok(Link { block, epoch }.encode())
}

fn with_entry(
    ground: &Ground<'_>,
    owned: Owned,
    place: LinePlace,
    take: &mut dyn FnMut(&Payload<'_>) -> Result<()>,
) -> Result<()> {
    let mut block = [0; BLOCK_BYTES as usize];
    let bytes = ground.disk.read_entry(place, &mut block)?;
    match Entry::decode(owned, bytes) {
        Some(entry) => take(&entry.payload),
        None => Err(Error::damaged("log entry", place.offset_bytes())),
    }
}
