//! The bytes of a regular file: a sparse map of 4 KiB blocks.
//!
//! A block that is absent is a hole; one that is reserved has space but no bytes yet and reads as zeros. The one invariant:
//! **bytes of a block beyond the end of the file are zero**, so that growing a file never shows what was there before.

use std::collections::BTreeMap;

use gannet_usermem::{Destination, Source};
use gannet_vfs::{AllocateMode, Errno, Error, Result, SeekTarget};

/// The size of a block in bytes.
pub(crate) const BLOCK_BYTES: u64 = 4096;

/// The largest file, in bytes.
pub(crate) const FILE_BYTES_MAX: u64 = i64::MAX as u64;

type Bytes = [u8; BLOCK_BYTES as usize];

/// How many blocks exist and may exist in the whole file system.
#[derive(Debug)]
pub(crate) struct Space {
    pub(crate) blocks_used: u64,
    pub(crate) blocks_max: u64,
}

impl Space {
    fn take(&mut self, blocks: u64) -> Result<()> {
        if blocks > self.blocks_max - self.blocks_used {
            return Err(Error::new(Errno::NOSPC));
        }
        self.blocks_used += blocks;
        Ok(())
    }
}

/// The content of a regular file.
#[derive(Debug, Default)]
pub(crate) struct Data {
    size_bytes: u64,
    /// By index; `None` is reserved.
    blocks: BTreeMap<u64, Option<Box<Bytes>>>,
}

/// The part of block `index` that the bytes from `start` to `end` cover.
fn part_of(index: u64, start: u64, end: u64) -> core::ops::Range<usize> {
    let base = index * BLOCK_BYTES;
    (start.max(base) - base) as usize..(end - base).min(BLOCK_BYTES) as usize
}

impl Data {
    pub(crate) fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    pub(crate) fn blocks(&self) -> u64 {
        self.blocks.len() as u64
    }

    /// Copies out from `offset_bytes`; fewer bytes than asked for only at the end of the file or of the caller's memory.
    pub(crate) fn read(&self, offset_bytes: u64, into: &mut Destination<'_>) -> Result<usize> {
        let end = self.size_bytes.min(offset_bytes.saturating_add(into.remaining() as u64));
        let mut at = offset_bytes;
        while at < end {
            let part = part_of(at / BLOCK_BYTES, at, end);
            let copied = match self.blocks.get(&(at / BLOCK_BYTES)) {
                Some(Some(bytes)) => into.write_from(&bytes[part.clone()]),
                _ => into.write_zeros(part.len()),
            };
            at += copied.map_or_else(|fault| fault.copied, |()| part.len()) as u64;
            if let Err(fault) = copied {
                return if at == offset_bytes { Err(fault.into()) } else { Ok((at - offset_bytes) as usize) };
            }
        }
        Ok(at.saturating_sub(offset_bytes) as usize)
    }

    /// Copies all of `from` in at `offset_bytes`, or as much as space, the file-size limit and the caller's memory allow.
    pub(crate) fn write(&mut self, offset_bytes: u64, from: &mut Source<'_>, space: &mut Space) -> Result<usize> {
        if from.is_empty() {
            return Ok(0);
        }
        if offset_bytes >= FILE_BYTES_MAX {
            return Err(Error::new(Errno::FBIG));
        }
        let end = FILE_BYTES_MAX.min(offset_bytes.saturating_add(from.remaining() as u64));
        let mut at = offset_bytes;
        let mut outcome = Ok(());
        while at < end && outcome.is_ok() {
            let part = part_of(at / BLOCK_BYTES, at, end);
            // The caller's bytes are read before anything changes: bad memory must leave no trace in the file.
            let mut bounce = [0; BLOCK_BYTES as usize];
            let copied = from.read_into(&mut bounce[..part.len()]);
            let count = copied.map_or_else(|fault| fault.copied, |()| part.len());
            outcome = copied.map_err(Error::from);
            if count == 0 {
                break;
            }
            match self.bytes_of(at / BLOCK_BYTES, space) {
                Ok(bytes) => bytes[part.start..part.start + count].copy_from_slice(&bounce[..count]),
                Err(error) => {
                    outcome = Err(error);
                    break;
                }
            }
            at += count as u64;
            self.size_bytes = self.size_bytes.max(at);
        }
        if at == offset_bytes { outcome.map(|()| 0) } else { Ok((at - offset_bytes) as usize) }
    }

    /// The bytes of a block, made if there are none.
    fn bytes_of(&mut self, index: u64, space: &mut Space) -> Result<&mut Bytes> {
        if !self.blocks.contains_key(&index) {
            space.take(1)?;
        }
        Ok(self.blocks.entry(index).or_default().get_or_insert_with(|| Box::new([0; BLOCK_BYTES as usize])))
    }

    /// Truncates, or extends with zeros. What is allocated behind the end goes, unless the file grows.
    pub(crate) fn resize(&mut self, size_bytes: u64, space: &mut Space) -> Result<()> {
        if size_bytes > FILE_BYTES_MAX {
            return Err(Error::new(Errno::FBIG));
        }
        if size_bytes <= self.size_bytes {
            space.blocks_used -= self.blocks.split_off(&size_bytes.div_ceil(BLOCK_BYTES)).len() as u64;
            self.zero(size_bytes, size_bytes.next_multiple_of(BLOCK_BYTES));
        }
        self.size_bytes = size_bytes;
        Ok(())
    }

    /// Zeros the bytes of the range that exist.
    fn zero(&mut self, start: u64, end: u64) {
        if start < end {
            for (&index, bytes) in self.blocks.range_mut(start / BLOCK_BYTES..end.div_ceil(BLOCK_BYTES)) {
                if let Some(bytes) = bytes {
                    bytes[part_of(index, start, end)].fill(0);
                }
            }
        }
    }

    /// Makes a hole: whole blocks go, edges become zeros.
    fn punch(&mut self, start: u64, end: u64, space: &mut Space) {
        self.zero(start, end);
        let whole = start.div_ceil(BLOCK_BYTES)..end / BLOCK_BYTES;
        if whole.start < whole.end {
            let mut behind = self.blocks.split_off(&whole.start);
            let mut kept = behind.split_off(&whole.end);
            space.blocks_used -= behind.len() as u64;
            self.blocks.append(&mut kept);
        }
    }

    /// Reserves the blocks of a range, all or none.
    fn reserve(&mut self, start: u64, end: u64, space: &mut Space) -> Result<()> {
        let range = start / BLOCK_BYTES..end.div_ceil(BLOCK_BYTES);
        let present = self.blocks.range(range.clone()).count() as u64;
        space.take(range.end - range.start - present)?;
        range.for_each(|index| {
            self.blocks.entry(index).or_default();
        });
        Ok(())
    }

    /// `fallocate(2)`.
    pub(crate) fn allocate(
        &mut self,
        mode: AllocateMode,
        offset_bytes: u64,
        length_bytes: u64,
        space: &mut Space,
    ) -> Result<()> {
        let invalid = Err(Error::new(Errno::INVAL));
        if length_bytes == 0 {
            return invalid;
        }
        let end = offset_bytes.checked_add(length_bytes).filter(|&end| end <= FILE_BYTES_MAX);
        let Some(end) = end else { return Err(Error::new(Errno::FBIG)) };
        let aligned = offset_bytes.is_multiple_of(BLOCK_BYTES) && length_bytes.is_multiple_of(BLOCK_BYTES);
        match mode {
            AllocateMode::Extend | AllocateMode::KeepSize | AllocateMode::Unshare | AllocateMode::UnshareKeepSize => {
                self.reserve(offset_bytes, end, space)?;
            }
            AllocateMode::Zero | AllocateMode::ZeroKeepSize => {
                self.reserve(offset_bytes, end, space)?;
                self.zero(offset_bytes, end);
            }
            AllocateMode::PunchHole => self.punch(offset_bytes, end, space),
            AllocateMode::Collapse => {
                if !aligned || end >= self.size_bytes {
                    return invalid;
                }
                self.punch(offset_bytes, end, space);
                self.move_blocks(end / BLOCK_BYTES, offset_bytes / BLOCK_BYTES);
                self.size_bytes -= length_bytes;
            }
            AllocateMode::Insert => {
                if !aligned || offset_bytes >= self.size_bytes {
                    return invalid;
                }
                if length_bytes > FILE_BYTES_MAX - self.size_bytes {
                    return Err(Error::new(Errno::FBIG));
                }
                self.move_blocks(offset_bytes / BLOCK_BYTES, end / BLOCK_BYTES);
                self.size_bytes += length_bytes;
            }
        }
        if matches!(mode, AllocateMode::Extend | AllocateMode::Zero | AllocateMode::Unshare) {
            self.size_bytes = self.size_bytes.max(end);
        }
        Ok(())
    }

    /// Renumbers the blocks from `from` on so that they begin at `to`.
    fn move_blocks(&mut self, from: u64, to: u64) {
        let moved = self.blocks.split_off(&from);
        self.blocks.extend(moved.into_iter().map(|(index, bytes)| (index - from + to, bytes)));
    }

    /// `SEEK_DATA` and `SEEK_HOLE`; the end of the file counts as a hole.
    pub(crate) fn seek(&self, target: SeekTarget, offset_bytes: u64) -> Result<u64> {
        if offset_bytes >= self.size_bytes {
            return Err(Error::new(Errno::NXIO));
        }
        let mut data = self.blocks.range(offset_bytes / BLOCK_BYTES..).filter(|block| block.1.is_some());
        let found = match target {
            SeekTarget::Data => data.next().map_or(u64::MAX, |block| block.0 * BLOCK_BYTES),
            SeekTarget::Hole => {
                let mut hole = offset_bytes / BLOCK_BYTES;
                while data.next().is_some_and(|block| *block.0 == hole) {
                    hole += 1;
                }
                (hole * BLOCK_BYTES).min(self.size_bytes)
            }
        };
        if found >= self.size_bytes && target == SeekTarget::Data {
            return Err(Error::new(Errno::NXIO));
        }
        Ok(found.max(offset_bytes))
    }

    /// Calls `sink` with start and length in bytes of each run of blocks that overlaps the range.
    pub(crate) fn runs(&self, start: u64, end: u64, sink: &mut dyn FnMut(u64, u64) -> bool) {
        let mut run = None;
        for &index in self.blocks.range(start / BLOCK_BYTES..end.div_ceil(BLOCK_BYTES)).map(|block| block.0) {
            match run {
                Some((first, count)) if first + count == index => run = Some((first, count + 1)),
                _ => {
                    if run.is_some_and(|(first, count)| !sink(first * BLOCK_BYTES, count * BLOCK_BYTES)) {
                        return;
                    }
                    run = Some((index, 1));
                }
            }
        }
        if let Some((first, count)) = run {
            sink(first * BLOCK_BYTES, count * BLOCK_BYTES);
        }
    }

    /// The blocks of a range, for a clone: index within the range and bytes.
    pub(crate) fn copy_blocks(&self, first: u64, count: u64) -> BTreeMap<u64, Option<Box<Bytes>>> {
        let range = self.blocks.range(first..first.saturating_add(count));
        range.map(|(index, bytes)| (index - first, bytes.clone())).collect()
    }

    /// Puts copied blocks at `first`, in place of what the range of `count` blocks held; the size grows to `size_bytes`.
    pub(crate) fn replace_blocks(
        &mut self,
        first: u64,
        count: u64,
        blocks: BTreeMap<u64, Option<Box<Bytes>>>,
        size_bytes: u64,
        space: &mut Space,
    ) -> Result<()> {
        let end = first.saturating_add(count);
        let present = self.blocks.range(first..end).count() as u64;
        space.take((blocks.len() as u64).saturating_sub(present))?;
        space.blocks_used -= present.saturating_sub(blocks.len() as u64);
        let mut behind = self.blocks.split_off(&first);
        let mut kept = behind.split_off(&end);
        self.blocks.extend(blocks.into_iter().map(|(index, bytes)| (index + first, bytes)));
        self.blocks.append(&mut kept);
        self.size_bytes = self.size_bytes.max(size_bytes);
        let end_bytes = self.size_bytes;
        self.zero(end_bytes, end_bytes.next_multiple_of(BLOCK_BYTES));
        Ok(())
    }
}
