//! Maps made anew: those that this process has of a file whose blocks are others now, in place, as the kernel does with its own.
//!
//! For every call that changes blocks or the end of a file, and for what changes a part of a map alone. Maps of other processes stay as
//! they are.

use super::lay::lay;
use super::pins::Hold;
use super::regions::{Part, any, may_concern, next_of_file, placing};
use super::{Holes, MAP_PRIVATE, MAP_SHARED, PROT_WRITE, Wish};
use crate::front::call::Call;
use gannet_vfs::{Errno, FileSystem, NodeId};

/// How a file changed whose maps are made anew.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Change {
    /// Bytes were written: where there were none there are blocks now.
    Written,
    /// Blocks were taken away, moved, or came from elsewhere.
    Moved,
    /// The file ends elsewhere. What private maps had changed behind the end is gone, too.
    Cut,
}

/// Bytes of a file from `from` to `to` have other blocks now, or have some at last: the maps that this process has of them are made anew,
/// as the kernel does with its own. Maps of other processes stay as they are. Costs a load where nothing is mapped.
#[inline]
pub(crate) fn renew(call: &Call<'_>, mount: usize, node: NodeId, from: u64, to: u64, change: Change) {
    if any() && may_concern((mount, node), from..to, change) {
        renew_parts(call, mount, node, from, to, change);
    }
}

#[cold]
#[inline(never)]
fn renew_parts(call: &Call<'_>, mount: usize, node: NodeId, from: u64, to: u64, change: Change) {
    let Ok(fs) = call.front.file_system(mount) else { return };
    let renew_all = |from: u64, change: Change| {
        let (mut at, mut filled_from) = (0, None);
        let next = |at| next_of_file(at, (mount, node), from..to, change);
        while let Some(part) = placing(|| {
            let part = next(at)?;
            // A part that cannot be made anew stays as it is.
            let _ = renew_part(call, fs, &part, part.protection);
            Some(part)
        }) {
            if part.shared && part.protection & PROT_WRITE != 0 {
                filled_from = Some(filled_from.unwrap_or(u64::MAX).min(part.offset));
            }
            at = part.end;
        }
        filled_from
    };
    // A map for writing brings blocks where there were none; others may have been made anew before it.
    if let Some(filled_from) = renew_all(from, change) {
        renew_all(filled_from, Change::Written);
    }
}

/// Makes a part of a map anew, in place, so that other threads always find a map here, with this protection from now on. While [`placing`], in which
/// it was found: what the file system says of it now holds until it is in the list.
pub(super) fn renew_part(call: &Call<'_>, fs: &dyn FileSystem, part: &Part, protection: usize) -> Result<(), Errno> {
    let holes = if part.lazy { Holes::Leave } else { Holes::Judge };
    renew_part_with(call, fs, part, protection, holes)
}

/// The same, with this becoming of holes.
pub(super) fn renew_part_with(
    call: &Call<'_>,
    fs: &dyn FileSystem,
    part: &Part,
    protection: usize,
    holes: Holes,
) -> Result<(), Errno> {
    let flags = if part.shared { MAP_SHARED } else { MAP_PRIVATE };
    let Part { start, end, writable, offset, .. } = *part;
    let wish = Wish { address: start, length: end - start, protection, flags, offset, writable, holes };
    let pinned = Hold::of_part(call, part)?.pin(fs, part.node, &wish)?;
    let (hold, region) = lay(fs, part.node, start, &wish, pinned)?;
    hold.put(call, region);
    Ok(())
}
