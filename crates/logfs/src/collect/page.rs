//! A log page as collection reads it: no further than it looks.

use crate::disk::{Block, Disk};
use crate::format::entry::claimed_lines;
use crate::format::page::LINES;
use crate::format::{BLOCK_BYTES, LINE_BYTES};
use gannet_vfs::Result;
use std::ops::Range;

/// Lines of a page that are read together.
const LINES_READ: u32 = 8;

/// A log page, read as far as it is looked at.
pub(super) struct Page<'d> {
    disk: &'d Disk,
    pub(super) block: u64,
    bytes: Block,
    /// The lines that were read.
    lines: Range<u32>,
}

impl<'d> Page<'d> {
    pub(super) const fn new(disk: &'d Disk, block: u64) -> Self {
        Self { disk, block, bytes: [0; BLOCK_BYTES as usize], lines: 0..0 }
    }

    /// What stands from a line on: no less than the entry that begins there. Nothing from the end of the page on.
    #[inline]
    pub(super) fn rest(&mut self, line: u32) -> Result<&[u8]> {
        if line >= LINES {
            return Ok(&[]);
        }
        if !self.lines.contains(&line) {
            self.read_at(line)?;
        }
        let start = line as usize * LINE_BYTES as usize;
        let claimed = claimed_lines(&self.bytes[start..]).unwrap_or(1);
        if line + claimed > self.lines.end {
            self.read_to(line + claimed)?;
        }
        Ok(&self.bytes[start..self.lines.end as usize * LINE_BYTES as usize])
    }

    /// Reads a line that was not read yet, and those behind it.
    #[inline(never)]
    fn read_at(&mut self, line: u32) -> Result<()> {
        if line != self.lines.end {
            self.lines = line..line;
        }
        self.read_to(line + 1)
    }

    /// Reads on to a line, and a few more.
    #[inline(never)]
    fn read_to(&mut self, end: u32) -> Result<()> {
        let from = self.lines.end;
        self.lines.end = end.max(from + LINES_READ).min(LINES);
        let [start, stop] = [from, self.lines.end].map(|line| line as usize * LINE_BYTES as usize);
        self.disk.read(self.block * BLOCK_BYTES + start as u64, &mut self.bytes[start..stop])
    }
}
