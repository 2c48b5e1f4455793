//! A log read by fsck: what `log::walk` reads, and besides why it ends there, whether that can be the end, and what can
//! still be read where a page's header or a link is gone.
//!
//! Changes nothing. Written apart from `log` on purpose: two readers of one format check each other.

use super::fixed::Chunks;
use crate::bits::Bits;
use crate::disk::{Block, Disk};
use crate::format::entry::{Entry, Owned, claimed_lines};
use crate::format::page::{AT_NEXT, LINES, LinePlace, Link, PageHeader};
use crate::format::state::{EPOCH_MAX, Summary};
use crate::format::{BLOCK_BYTES, LINE_BYTES, get_u32, get_u64, put_u32, put_u64};
use crate::replay::TIMES_STAY;
use gannet_vfs::Result;
use std::collections::HashMap;

/// What the whole check stands on.
pub(super) struct Ground<'d> {
    pub(super) disk: &'d Disk,
    pub(super) chunks: Chunks,
    /// The summary, if the volume was closed cleanly: then nothing was in flight in the present epoch.
    pub(super) summary: Option<Summary>,
    /// A repair was cut short. What it has written may be sound, and yet lack names for which it had not come to give others.
    pub(super) unfinished: bool,
    /// Blocks in use when the volume was closed cleanly, if that is known.
    pub(super) saved_used: Option<Bits>,
    /// Pages that no link leads to, by inode and first sequence (0: the first of the log): where a link is lost they are
    /// found here.
    pub(super) strays: HashMap<(u32, u64), Link>,
}

impl Ground<'_> {
    pub(super) fn clean(&self) -> bool {
        self.summary.is_some()
    }
}

/// Something wrong with a log.
#[derive(Debug)]
pub(super) struct Fault {
    pub(super) structure: &'static str,
    pub(super) offset_bytes: u64,
    pub(super) what: String,
    /// Whether something is lost behind it; if not, all could be read.
    pub(super) loses: bool,
}

/// A log as it was read.
#[derive(Debug, Default)]
pub(super) struct Trace {
    pub(super) pages: Vec<u64>,
    pub(super) first_sequence: u64,
    pub(super) next_sequence: u64,
    /// Epoch of the last entry.
    pub(super) epoch: u32,
    pub(super) last: Option<LinePlace>,
    pub(super) faults: Vec<Fault>,
    /// The highest epoch met, also of what does not belong to the log.
    pub(super) epoch_max: u32,
    /// Where a link stands that leads nowhere, as a crash can leave it.
    pub(super) dangling: Option<u64>,
    /// The highest sequence met behind the end, plus one; 0 if none.
    pub(super) sequence_beyond: u64,
}

impl Trace {
    fn see(&mut self, epoch: u32) {
        if epoch as u64 <= EPOCH_MAX {
            self.epoch_max = self.epoch_max.max(epoch);
        }
    }
}

/// What a visitor says of an entry.
pub(super) enum Verdict {
    /// Go on.
    Good,
    /// It cannot be: the log ends before it.
    Bad(String),
}

/// Where a link leads.
enum Led {
    Page(PageHeader),
    /// The header is damaged, the entries are there.
    Headless(PageHeader),
    Nowhere,
}

/// Reads the log that begins at the link word `head`. `stop_at` is where an entry, or a page, shall not be read any more.
pub(super) fn trace(
    ground: &Ground<'_>,
    owned: Owned,
    head: u64,
    head_at: u64,
    stop_at: Option<LinePlace>,
    visit: &mut dyn FnMut(LinePlace, &Entry<'_>) -> Result<Verdict>,
) -> Result<Trace> {
    let disk = ground.disk;
    let mut trace = Trace { first_sequence: 1, next_sequence: 1, ..Trace::default() };
    let (mut word, mut word_at) = (head, head_at);
    let mut page: Block = [0; BLOCK_BYTES as usize];
    // A page must hold entries for the walk to go on, and sequences rise: the bound is a second line of defence.
    for _ in 0..disk.geometry().blocks {
        let first = trace.pages.is_empty();
        let mut link = Link::decode(word);
        let mut led = match link {
            None => Led::Nowhere,
            Some(link) => led(ground, owned, link, if first { None } else { Some(trace.next_sequence) }, &mut page)?,
        };
        if let Led::Page(header) = &led
            && !first
            && header.first_sequence != trace.next_sequence
        {
            // An old page that a link of the past leads to ends the log; a later one means that something is missing.
            if header.first_sequence > trace.next_sequence && header.epoch >= trace.epoch {
                trace.sequence_beyond = trace.sequence_beyond.max(header.first_sequence);
                judge_beyond(
                    &mut trace,
                    header.epoch,
                    word_at,
                    "link to the next log page",
                    "it leads to a later part of the log; entries between are missing",
                );
            }
            return Ok(trace);
        }
        if matches!(led, Led::Nowhere)
            && let Some(stray) = ground.strays.get(&(owned.inode, if first { 0 } else { trace.next_sequence }))
            && !trace.pages.contains(&stray.block)
        {
            let found =
                self::led(ground, owned, *stray, if first { None } else { Some(trace.next_sequence) }, &mut page)?;
            if !matches!(found, Led::Nowhere) {
                trace.faults.push(Fault {
                    structure: if first { "head link of a log" } else { "link to the next log page" },
                    offset_bytes: word_at,
                    what: format!("it does not lead to the log's page; that was found in block {}", stray.block),
                    loses: false,
                });
                (led, link) = (found, Some(*stray));
            }
        }
        let (Some(link), header) = (
            link,
            match led {
                Led::Page(header) => Some(header),
                Led::Headless(header) => {
                    trace.faults.push(Fault {
                        structure: "log page header",
                        offset_bytes: link.map_or(0, |link| link.block * BLOCK_BYTES),
                        what: "it is damaged; the entries behind it are not".into(),
                        loses: false,
                    });
                    Some(header)
                }
                Led::Nowhere => None,
            },
        ) else {
            return Ok(trace);
        };
        let Some(header) = header else {
            judge_lost_link(ground, owned, &mut trace, link, word_at, first, &page);
            return Ok(trace);
        };
        if header.epoch < trace.epoch
            || stop_at == Some(LinePlace::new(link.block, 0))
            || trace.pages.contains(&link.block)
        {
            return Ok(trace);
        }
        trace.see(header.epoch);
        if header.epoch > disk.epoch() {
            // The volume's epoch is wrong, not this page: the whole check begins anew with a better one.
            return Ok(trace);
        }
        if first {
            trace.first_sequence = header.first_sequence;
            trace.next_sequence = header.first_sequence;
        }
        trace.pages.push(link.block);
        let mut line = 1;
        while line < LINES {
            let place = LinePlace::new(link.block, line);
            if stop_at == Some(place) {
                return Ok(trace);
            }
            let Some(entry) = Entry::decode(owned, &page[line as usize * LINE_BYTES as usize..]) else { break };
            if entry.sequence != trace.next_sequence || entry.epoch < trace.epoch || entry.epoch > disk.epoch() {
                break;
            }
            if let Verdict::Bad(what) = visit(place, &entry)? {
                trace.sequence_beyond = trace.sequence_beyond.max(entry.sequence + 1);
                trace.faults.push(Fault {
                    structure: "log entry",
                    offset_bytes: place.offset_bytes(),
                    what,
                    loses: true,
                });
                return Ok(trace);
            }
            let Some(next) = trace.next_sequence.checked_add(1) else { return Ok(trace) };
            trace.next_sequence = next;
            trace.epoch = entry.epoch;
            trace.see(entry.epoch);
            trace.last = Some(place);
            line += entry.lines;
        }
        if line < LINES {
            judge_end(ground, owned, &mut trace, link.block, line, &page);
        }
        if line == 1 {
            return Ok(trace);
        }
        (word, word_at) = (get_u64(&page, AT_NEXT as usize), link.block * BLOCK_BYTES + AT_NEXT);
    }
    Ok(trace)
}

/// Looks where a link leads, and reads the page.
fn led(ground: &Ground<'_>, owned: Owned, link: Link, expected: Option<u64>, page: &mut Block) -> Result<Led> {
    let disk = ground.disk;
    if !disk.geometry().is_allocatable(link.block) {
        return Ok(Led::Nowhere);
    }
    disk.read_block(link.block, page)?;
    let ours = |header: &PageHeader| header.inode == owned.inode && header.generation == owned.generation;
    if let Some(header) = PageHeader::decode(disk.key(), &page[..LINE_BYTES as usize]) {
        return Ok(if ours(&header) && header.epoch == link.epoch { Led::Page(header) } else { Led::Nowhere });
    }
    // Its entries prove whose page it is.
    let was_linked = ground.clean() && link.epoch == disk.epoch() || proves_itself(owned, page);
    let first = Entry::decode(owned, &page[LINE_BYTES as usize..]);
    Ok(match first {
        Some(entry)
            if was_linked
                && expected.is_none_or(|expected| expected == entry.sequence)
                && entry.epoch >= link.epoch
                && entry.epoch <= disk.epoch() =>
        {
            Led::Headless(PageHeader {
                inode: owned.inode,
                generation: owned.generation,
                epoch: link.epoch,
                first_sequence: entry.sequence,
            })
        }
        _ => Led::Nowhere,
    })
}

/// Whether a page holds two entries of this inode in a row. The header, the first entry and the link to the page become
/// durable together, so before the second one is written all three are: then it was no crash that took one of them.
pub(super) fn proves_itself(owned: Owned, page: &Block) -> bool {
    let entry = |line: u32| {
        let bytes = page.get(line as usize * LINE_BYTES as usize..)?;
        Entry::decode(owned, bytes)
    };
    (1..LINES).any(|line| {
        entry(line).is_some_and(|first| {
            entry(line + first.lines).is_some_and(|second| Some(second.sequence) == first.sequence.checked_add(1))
        })
    })
}

/// A link that leads to no page of this log: damage, or a page that was in flight at a crash.
fn judge_lost_link(
    ground: &Ground<'_>,
    owned: Owned,
    trace: &mut Trace,
    link: Link,
    at: u64,
    first: bool,
    page: &Block,
) {
    let epoch = ground.disk.epoch();
    let inside = ground.disk.geometry().is_allocatable(link.block);
    // A page whose only entry is the log's last may have been in flight: then its header may be torn behind the checksum,
    // and its link is what the block held before.
    if !first && !ground.clean() && trace.last == Some(LinePlace::new(at / BLOCK_BYTES, 1)) && trace.epoch == epoch {
        trace.dangling = Some(at);
        return;
    }
    let damage = !inside
        || link.epoch > epoch
        || (ground.clean() && link.epoch == epoch)
        || (ground.saved_used.as_ref().is_some_and(|used| used.has(link.block)) && looks_like(ground, owned, page))
        || proves_itself(owned, page);
    if !damage {
        trace.dangling = Some(at);
        return;
    }
    trace.faults.push(Fault {
        structure: if first { "head link of a log" } else { "link to the next log page" },
        offset_bytes: at,
        what: format!("block {} is no page of this log: what was written there cannot be read", link.block),
        loses: true,
    });
}

/// Whether a page without a valid header was one of this inode's log.
fn looks_like(ground: &Ground<'_>, owned: Owned, page: &Block) -> bool {
    PageHeader::decode(ground.disk.key(), &page[..LINE_BYTES as usize]).is_none()
        && ((get_u32(page, 4), get_u32(page, 8)) == (owned.inode, owned.generation)
            || Entry::decode(owned, &page[LINE_BYTES as usize..]).is_some())
}

/// Something of this log stands behind its end. An entry is durable before the next one is written, so nothing that a
/// crash leaves looks like this.
fn judge_beyond(trace: &mut Trace, epoch: u32, at: u64, structure: &'static str, what: &'static str) {
    trace.see(epoch);
    trace.faults.push(Fault { structure, offset_bytes: at, what: what.into(), loses: true });
}

/// Looks at the line where a page's entries end and at those behind it.
fn judge_end(ground: &Ground<'_>, owned: Owned, trace: &mut Trace, block: u64, line: u32, page: &Block) {
    let rest = |line: u32| &page[line as usize * LINE_BYTES as usize..];
    let at = LinePlace::new(block, line).offset_bytes();
    let epoch_now = ground.disk.epoch();
    if let Some(entry) = Entry::decode(owned, rest(line))
        && entry.sequence == trace.next_sequence
        && entry.epoch > epoch_now
    {
        return trace.see(entry.epoch);
    }
    for behind in line..LINES {
        let Some(entry) = Entry::decode(owned, rest(behind)) else { continue };
        let what = match behind {
            _ if entry.sequence < trace.next_sequence => continue,
            // Several that a collection wrote again stand under one fence, so that a crash takes any of them.
            _ if entry.time == TIMES_STAY && (!ground.clean() || entry.epoch < epoch_now) => continue,
            _ if behind == line && entry.sequence == trace.next_sequence => {
                "its epoch is below that of the entry before"
            }
            _ => "it is damaged, and entries follow it",
        };
        trace.sequence_beyond = trace.sequence_beyond.max(entry.sequence.saturating_add(1));
        return judge_beyond(trace, entry.epoch, at, "log entry", what);
    }
    // In the present epoch of a volume that was closed cleanly nothing was cut short. Of earlier epochs there may be
    // remains of a crash; in an epoch that has not ended cleanly the last operation may be in flight.
    if ground.clean() && damaged_entry(owned, trace.next_sequence, epoch_now, rest(line)) == Some(epoch_now) {
        judge_beyond(trace, epoch_now, at, "log entry", "the last entry of a log is damaged");
    }
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
