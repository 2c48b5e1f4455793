//! Where a medium has bytes at all. Searches and what reads whole tables leave out holes of sparse files: nothing but zeros is there, and
//! reading them would make a file in memory take all the space that it says it has, which a forged superblock can choose.
//!
//! Changes nothing but the offsets of the files, which nobody uses.

use crate::format::BLOCK_BYTES;
use gannet_media::Medium;
use rustix::fs::{SeekFrom, seek};
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
        let mut at = 0;
        for piece in 0.. {
            let start = match seek(file, SeekFrom::Data(at)) {
                Ok(start) if piece < PIECES_MAX => start,
                Err(Errno::NXIO) => break,
                _ => {
                    add(member.start + at, end);
                    break;
                }
            };
            if start >= member.length {
                break;
            }
            at = seek(file, SeekFrom::Hole(start)).unwrap_or(member.length);
            add(member.start + start, (member.start + at).min(end));
        }
    }
    found
}
