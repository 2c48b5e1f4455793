//! Where a log ends, as fsck sees it: whether that can be its end, whether what stands behind continues it, and what was there.
//!
//! Changes nothing.

use super::trace::{ENTRY, Ground, HEAD, Loss, NEXT, Trace};
use crate::dangling::proves_itself;
use crate::disk::Block;
use crate::format::entry::{Entry, KIND_SHIFT, Owned, Payload, claimed_lines};
use crate::format::page::{LINES, LinePlace, Link, PageHeader};
use crate::format::{BLOCK_BYTES, LINE_BYTES, get_u32, get_u64, put_u32, put_u64};
use crate::replay::TIMES_STAY;
use gannet_vfs::Result;

/// A link that leads to no page of this log: damage, or a page that was in flight at a crash.
pub(super) fn judge_lost_link(
    ground: &Ground<'_>,
    owned: Owned,
    trace: &mut Trace,
    link: Link,
    at: u64,
    first: bool,
) -> Result<()> {
    let mut page: Block = [0; BLOCK_BYTES as usize];
    if ground.disk.geometry().is_allocatable(link.block) {
        ground.disk.read_block(link.block, &mut page)?;
    }
    let page = &page;
    let epoch = ground.disk.epoch();
    let inside = ground.disk.geometry().is_allocatable(link.block);
    // A page whose only entry is the log's last may have been in flight: then its header may be torn behind the checksum,
    // and its link is what the block held before.
    if !first && !ground.clean() && trace.last == Some(LinePlace::new(at / BLOCK_BYTES, 1)) && trace.epoch == epoch {
        trace.dangling = Some(at);
        return Ok(());
    }
    let damage = !inside
        || link.epoch > epoch
        || ground.clean()
        || (ground.saved_used.as_ref().is_some_and(|used| used.has(link.block)) && looks_like(ground, owned, page))
        || proves_itself(owned, page, if first { 0 } else { trace.next_sequence }, epoch);
    if !damage {
        trace.dangling = Some(at);
        return Ok(());
    }
    let structure = if first { HEAD } else { NEXT };
    let what = format!("block {} is no page of this log: what was written there cannot be read", link.block);
    trace.fault(structure, at, what, Loss::Rest);
    Ok(())
}

/// Whether a page without a valid header was one of this inode's log.
fn looks_like(ground: &Ground<'_>, owned: Owned, page: &Block) -> bool {
    PageHeader::decode(ground.disk.key(), &page[..LINE_BYTES as usize]).is_none()
        && ((get_u32(page, 4), get_u32(page, 8)) == (owned.inode, owned.generation)
            || Entry::decode(owned, &page[LINE_BYTES as usize..]).is_some())
}

/// Looks at the line where a page's entries end and at those behind it. An entry is durable before the next one is written, so nothing that
/// a crash leaves has later ones behind it. Where those continue the log, returns the line of the first, and its sequence.
pub(super) fn judge_end(
    ground: &Ground<'_>,
    owned: Owned,
    trace: &mut Trace,
    block: u64,
    line: u32,
    page: &Block,
) -> Option<(u32, u64)> {
    let rest = |line: u32| &page[line as usize * LINE_BYTES as usize..];
    let at = LinePlace::new(block, line).offset_bytes();
    let epoch_now = ground.disk.epoch();
    let (next, epoch_before) = (trace.next_sequence, trace.epoch);
    if let Some(entry) = Entry::decode(owned, rest(line))
        && entry.sequence == next
        && entry.epoch > epoch_now
    {
        trace.see(entry.epoch);
        return None;
    }
    let behind = (line..LINES).filter_map(|behind| Some((behind, Entry::decode(owned, rest(behind))?)));
    let is_later = |entry: &Entry<'_>| entry.sequence >= next && entry.epoch >= trace.page_epoch;
    let behind: Vec<_> = behind.filter(|(_, entry)| is_later(entry)).collect();
    // Several that a collection wrote again stand under one fence, so that a crash takes any of them.
    let is_of_a_crash = |entry: &Entry<'_>| entry.time == TIMES_STAY && (!ground.clean() || entry.epoch < epoch_now);
    let Some((first, found)) = behind.iter().find(|(_, entry)| !is_of_a_crash(entry)) else {
        // In the present epoch of a volume that was closed cleanly nothing was cut short. Of earlier epochs there may be
        // remains of a crash; in an epoch that has not ended cleanly the last operation may be in flight.
        // Behind the end of a page that was first used in this epoch stand zeros.
        let must_be_zero = trace.page_epoch == epoch_now && rest(line).iter().any(|&byte| byte != 0);
        if ground.clean() && (must_be_zero || damaged_entry(owned, next, epoch_now, rest(line)) == Some(epoch_now)) {
            trace.see(epoch_now);
            let what = format!("the last entry of a log is damaged{}", about(rest(line)));
            trace.fault(ENTRY, at, what, Loss::Rest);
        }
        return None;
    };
    trace.sequence_beyond = trace.sequence_beyond.max(found.sequence.saturating_add(1));
    trace.see(found.epoch);
    // Each that is lost took a line.
    let continues = |(behind, entry): &&(u32, Entry<'_>)| {
        entry.sequence - next <= (behind - line) as u64
            && *behind > line
            && entry.epoch >= epoch_before
            && entry.epoch <= epoch_now
    };
    let shifts = rest(line)[0] == KIND_SHIFT;
    if let Some((behind, entry)) = behind.iter().find(continues).filter(|_| !shifts) {
        let what = format!("it is damaged{}", about(&rest(line)[..(behind - line) as usize * LINE_BYTES as usize]));
        trace.fault(ENTRY, at, what, if entry.sequence > next { Loss::Some } else { Loss::Nothing });
        return Some((*behind, entry.sequence));
    }
    let what = if *first == line && found.sequence == next {
        "its epoch is below that of the entry before".into()
    } else {
        format!("it is damaged, and entries follow it{}", about(rest(line)))
    };
    trace.fault(ENTRY, at, what, Loss::Rest);
    None
}

/// What damaged entries seem to have been about: names, as far as they can still be read.
fn about(mut bytes: &[u8]) -> String {
    let mut names = Vec::new();
    while let Some(entry) = Entry::peek(bytes) {
        if let Payload::Bind { first, second, .. } = entry.payload {
            names.extend([Some(first), second].into_iter().flatten().map(|binding| match binding.file_type {
                Some(_) => format!("\"{}\" of inode {}", binding.name.escape_ascii(), binding.inode),
                None => format!("\"{}\", removed", binding.name.escape_ascii()),
            }));
        }
        bytes = &bytes[entry.lines as usize * LINE_BYTES as usize..];
    }
    if names.is_empty() { String::new() } else { format!(" (it seems to have been about {})", names.join("; ")) }
}

/// Whether the bytes were the entry of this sequence: they say so, or would be valid with one field put right. Returns
/// the epoch in which it was written, as far as that can be known.
fn damaged_entry(owned: Owned, sequence: u64, epoch_now: u32, bytes: &[u8]) -> Option<u32> {
    let valid_with = |change: &dyn Fn(&mut [u8])| {
        let mut copy = bytes.to_vec();
        change(&mut copy);
        Entry::decode(owned, &copy).map(|entry| entry.epoch)
    };
    if get_u64(bytes, 16) != sequence {
        // Garbage, or an entry of which just the sequence is wrong.
        claimed_lines(bytes)?;
        return valid_with(&|copy| put_u64(copy, 16, sequence));
    }
    if valid_with(&|copy| put_u64(copy, 8, !get_u64(bytes, 8))).is_some() {
        // Recovery killed it.
        return None;
    }
    let epoch = get_u32(bytes, 4);
    let was_present = epoch_now == 1 || valid_with(&|copy| put_u32(copy, 4, epoch_now)).is_some();
    Some(if was_present { epoch_now } else { epoch })
}
