//! Where a medium has bytes at all. Searches and what reads whole tables leave out holes of sparse files: nothing but zeros is there, and
//! reading them would make a file in memory take all the space that it says it has, which a forged superblock can choose.
//!
//! Changes nothing but the offsets of the files, which nobody uses.

use crate::format::BLOCK_BYTES;
use gannet_media::Medium;
use rustix::fs::{SeekFrom, fstat, seek};
use rustix::io::Errno;
use std::ops::Range;

/// How many pieces are told apart: of files with more, the rest counts as without holes.
const PIECES_MAX: usize = 1 << 20;

/// Those of some blocks that are not in holes, ascending. All, where the medium does not tell.
pub(crate) fn written(medium: &Medium, blocks: Range<u64>) -> Vec<Range<u64>> {
    let mut found: Vec<Range<u64>> = Vec::new();
    let mut add = |start: u64, end: u64| {
        let piece = (start / BLOCK_BYTES).max(blocks.start)..end.div_ceil(BLOCK_BYTES).min(blocks.end);
        match found.last_mut() {
            _ if piece.is_empty() => {}
            Some(last) if piece.start <= last.end => last.end = last.end.max(piece.end),
            _ => found.push(piece),
        }
    };
    let members = medium.members();
    let mut files = medium.descriptors();
    for member in members {
        let end = member.start + member.length;
        let Some(file) = files.next() else {
            add(member.start, end);
            continue;
        };
        if !has_holes(file, member.length) {
            add(member.start, end);
            continue;
        }
        // Only where the blocks lie: each look costs what it passes over.
        let mut at = (blocks.start * BLOCK_BYTES).saturating_sub(member.start);
        let last = (blocks.end * BLOCK_BYTES).saturating_sub(member.start).min(member.length);
        for piece in 0.. {
            if at >= last {
                break;
            }
            let start = match seek(file, SeekFrom::Data(at)) {
                // Devices that do not know the question answer with where they are.
                Ok(start) if piece < PIECES_MAX && start >= at => start,
                Err(Errno::NXIO) => break,
                _ => {
                    add(member.start + at, end);
                    break;
                }
            };
            if start >= last {
                break;
            }
            at = seek(file, SeekFrom::Hole(start)).ok().filter(|&hole| hole > start).unwrap_or(member.length);
            add(member.start + start, (member.start + at).min(end));
        }
    }
    found
}

/// Whether a file of this length, or one that does not tell, has less space than that. One whose space was reserved has it all, and looking
/// for holes in it would pass over each of its pages.
fn has_holes(file: impl std::os::fd::AsFd, length: u64) -> bool {
    const UNIT_BYTES: u64 = 512;
    fstat(file).is_ok_and(|status| (status.st_blocks as u64).saturating_mul(UNIT_BYTES) < length)
}
