//! A log read by fsck: what `log::walk` reads, and besides why it ends there, whether that can be the end, and what can
//! still be read where a page's header, a link, entries or whole pages are gone.
//!
//! Changes nothing. Written apart from `log` on purpose: two readers of one format check each other.

use super::ending::{judge_end, judge_lost_link};
use super::fixed::Chunks;
use super::strays::Strays;
use crate::bits::Bits;
use crate::dangling::proves_itself;
use crate::disk::{Block, Disk};
use crate::format::entry::{Entry, Owned, Payload};
use crate::format::page::{AT_NEXT, LINES, LinePlace, Link, PageHeader};
use crate::format::state::{EPOCH_MAX, Summary};
use crate::format::{BLOCK_BYTES, LINE_BYTES, get_u64};
use gannet_media::MediumOffset;
use gannet_vfs::Result;

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
    /// Inodes in use then, likewise.
    pub(super) saved_inodes: Option<Bits>,
    /// Pages that no link leads to: where a link is lost they are found here.
    pub(super) strays: Strays,
}

impl Ground<'_> {
    pub(super) fn clean(&self) -> bool {
        self.summary.is_some()
    }

    /// Whether an inode was in use when the volume was closed cleanly, as far as that is known.
    pub(super) fn was_in_use(&self, inode: u32) -> bool {
        self.saved_inodes.as_ref().is_some_and(|inodes| inodes.has(inode as u64))
    }
}

/// What is lost where a log is damaged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Loss {
    /// All could be read.
    Nothing,
    /// Some entries; what follows them could be read.
    Some,
    /// All from there on.
    Rest,
}

/// Something wrong with a log.
#[derive(Debug)]
pub(super) struct Fault {
    pub(super) structure: &'static str,
    pub(super) offset_bytes: u64,
    pub(super) what: String,
    pub(super) loss: Loss,
}

/// A log as it was read.
#[derive(Debug, Default)]
pub(super) struct Trace {
    /// What leads to the first page, whether the inode's slot says so or not.
    pub(super) head: Option<Link>,
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
    /// Sequences of entries that are lost, while later ones are there: from, and up to.
    pub(super) gaps: Vec<(u64, u64)>,
    /// A page was found that no link leads to.
    pub(super) searched: bool,
    /// Entries in the last page, the epoch in which it was linked, and what it begins with: a page behind it begins with more, so that
    /// none is met twice.
    pub(super) entries_on_page: u32,
    pub(super) page_epoch: u32,
    page_sequence: u64,
}

impl Trace {
    pub(super) fn see(&mut self, epoch: u32) {
        if epoch as u64 <= EPOCH_MAX {
            self.epoch_max = self.epoch_max.max(epoch);
        }
    }

    pub(super) fn fault(&mut self, structure: &'static str, offset_bytes: u64, what: impl Into<String>, loss: Loss) {
        self.faults.push(Fault { structure, offset_bytes, what: what.into(), loss });
    }

    /// Goes on behind entries that are lost.
    fn skip_to(&mut self, sequence: u64) {
        self.gaps.push((self.next_sequence, sequence));
        self.next_sequence = sequence;
    }
}

/// What a visitor says of an entry.
pub(super) enum Verdict {
    /// Go on.
    Good,
    /// It cannot be.
    Bad(String),
}

/// Where a link leads.
enum Led {
    Page(PageHeader),
    /// The header is damaged, the entries are there.
    Headless(PageHeader),
    Nowhere,
}

/// Takes an entry that stands in a log; the last argument says whether entries before it are lost.
pub(super) type Visit<'v> = dyn FnMut(LinePlace, &Entry<'_>, bool) -> Result<Verdict> + 'v;

pub(super) const HEAD: &str = "head link of a log";
pub(super) const NEXT: &str = "link to the next log page";
pub(super) const ENTRY: &str = "log entry";

/// Reads the log that begins at the link word `head`. `stop_at` is where an entry, or a page, shall not be read any more.
pub(super) fn trace(
    ground: &Ground<'_>,
    owned: Owned,
    head: u64,
    head_at: u64,
    stop_at: Option<LinePlace>,
    visit: &mut Visit<'_>,
) -> Result<Trace> {
    let disk = ground.disk;
    let mut trace = Trace { first_sequence: 1, next_sequence: 1, ..Trace::default() };
    let (mut word, mut word_at) = (head, head_at);
    let mut page: Block = [0; BLOCK_BYTES as usize];
    // A page must hold entries for the walk to go on, and sequences rise: the bound is a second line of defence.
    for _ in 0..disk.geometry().blocks {
        let Some((link, header)) = next_page(ground, owned, &mut trace, word, word_at, &mut page)? else {
            judge_empty_page(ground, &mut trace);
            return Ok(trace);
        };
        let first = trace.pages.is_empty();
        if header.epoch < trace.epoch
            || stop_at == Some(LinePlace::new(link.block, 0))
            || !first && header.first_sequence <= trace.page_sequence
        {
            return Ok(trace);
        }
        trace.see(header.epoch);
        if header.epoch > disk.epoch() {
            // The volume's epoch is wrong, not this page: the whole check begins anew with a better one.
            return Ok(trace);
        }
        if first {
            trace.head = Some(link);
            trace.first_sequence = header.first_sequence;
            trace.next_sequence = header.first_sequence;
        }
        trace.pages.push(link.block);
        (trace.page_epoch, trace.page_sequence) = (header.epoch, header.first_sequence);
        // No entry is older than its page.
        trace.epoch = trace.epoch.max(header.epoch);
        if !read_entries(ground, owned, &mut trace, link.block, stop_at, &page, visit)? {
            return Ok(trace);
        }
        (word, word_at) = (get_u64(&page, AT_NEXT as usize), link.block * BLOCK_BYTES + AT_NEXT);
    }
    Ok(trace)
}

/// A page and its first entry become durable together, and where entries were undone the volume was recovered before it was closed cleanly.
fn judge_empty_page(ground: &Ground<'_>, trace: &mut Trace) {
    let Some(&block) = trace.pages.last().filter(|_| trace.entries_on_page == 0) else { return };
    let at = LinePlace::new(block, 1).offset_bytes();
    let is_known = trace.faults.iter().any(|fault| fault.offset_bytes / BLOCK_BYTES == block);
    if ground.clean() && trace.page_epoch == ground.disk.epoch() && !is_known {
        trace.fault(ENTRY, at, "the last page of a log holds none", Loss::Rest);
    }
}

/// Finds and reads the page that a link word leads to, or should: one that no link leads to, or a later one, if pages between are lost.
/// `None` where the log ends.
fn next_page(
    ground: &Ground<'_>,
    owned: Owned,
    trace: &mut Trace,
    word: u64,
    word_at: u64,
    page: &mut Block,
) -> Result<Option<(Link, PageHeader)>> {
    let disk = ground.disk;
    let first = trace.pages.is_empty();
    let structure = if first { HEAD } else { NEXT };
    let expected = (!first).then_some(trace.next_sequence);
    let link = Link::decode(word);
    let led = match link {
        None => Led::Nowhere,
        Some(link) => led(ground, owned, link, expected, page)?,
    };
    let cannot_be_read = |link: &Link| disk.medium().is_unreadable(MediumOffset(link.block * BLOCK_BYTES));
    if let Some(link) = link.filter(cannot_be_read) {
        let what = "it cannot be read, or not whole: a memory error, or its file was cut";
        trace.fault("log page", link.block * BLOCK_BYTES, what, Loss::Some);
    }
    // A page without entries ends the log: the links behind it are of the past, unless they lead to what came later.
    let is_exact = first || trace.entries_on_page > 0;
    let mut later = None;
    match (led, link) {
        (Led::Page(header), Some(link)) if is_exact && expected.is_none_or(|next| header.first_sequence == next) => {
            return Ok(Some((link, header)));
        }
        (Led::Headless(header), Some(link)) if is_exact => {
            let what = "it is damaged; the entries behind it are not";
            trace.fault("log page header", link.block * BLOCK_BYTES, what, Loss::Nothing);
            return Ok(Some((link, header)));
        }
        // An old page that a link of the past leads to ends the log; a later one means that something is missing.
        (Led::Page(header), Some(link)) if header.first_sequence > trace.next_sequence => {
            later = (header.epoch >= trace.epoch).then_some((link, header.first_sequence));
        }
        _ => {}
    }
    let found = match expected {
        None => ground.strays.head(owned, ground.saved_used.is_some()),
        Some(expected) if is_exact => ground.strays.at(owned, expected, trace.epoch),
        Some(_) => None,
    };
    // What a link of an epoch that has not ended cleanly leads to is of that epoch; older pages may be of an inode that never came to be.
    let is_of_now = |link: Link| link.epoch == disk.epoch();
    let found = found.filter(|stray| ground.clean() || !link.is_some_and(is_of_now) || is_of_now(*stray));
    if let Some(stray) = found
        && let Led::Page(header) = self::led(ground, owned, stray, expected, page)?
        && (first || header.first_sequence > trace.page_sequence)
    {
        let what = format!("it does not lead to the log's page; that was found in block {}", stray.block);
        trace.fault(structure, word_at, what, Loss::Nothing);
        trace.searched = true;
        return Ok(Some((stray, header)));
    }
    // Pages of later entries, which only a log has that went on that far.
    let after = if first { None } else { ground.strays.after(owned, trace.next_sequence, trace.epoch) };
    let later = match (later, after) {
        (Some(one), Some(other)) => Some(if other.1 < one.1 { other } else { one }),
        (one, other) => one.or(other),
    };
    if let Some((link, sequence)) = later
        && let Led::Page(header) = self::led(ground, owned, link, Some(sequence), page)?
    {
        let (from, to) = (trace.next_sequence, sequence - 1);
        let what = format!("entries {from} to {to} of the log are missing; it goes on in block {}", link.block);
        trace.fault(structure, word_at, what, Loss::Some);
        trace.searched = true;
        trace.skip_to(sequence);
        return Ok(Some((link, header)));
    }
    match link {
        Some(link) if is_exact => judge_lost_link(ground, owned, trace, link, word_at, first)?,
        // Whoever ends the log there clears the link.
        Some(_) if ground.clean() => {
            trace.fault(structure, word_at, "it leads on from a page without entries", Loss::Nothing)
        }
        Some(_) => trace.dangling = Some(word_at),
        None => {}
    }
    Ok(None)
}

/// Takes the entries of a page. Returns whether the log can go on behind it.
fn read_entries(
    ground: &Ground<'_>,
    owned: Owned,
    trace: &mut Trace,
    block: u64,
    stop_at: Option<LinePlace>,
    page: &Block,
    visit: &mut Visit<'_>,
) -> Result<bool> {
    let epoch = ground.disk.epoch();
    trace.entries_on_page = 0;
    let mut line = 1;
    while line < LINES {
        let place = LinePlace::new(block, line);
        if stop_at == Some(place) {
            return Ok(false);
        }
        let entry = Entry::decode(owned, &page[line as usize * LINE_BYTES as usize..]);
        let fits = |entry: &Entry<'_>| {
            entry.sequence == trace.next_sequence && entry.epoch >= trace.epoch && entry.epoch <= epoch
        };
        let Some(entry) = entry.filter(fits) else {
            let Some((behind, sequence)) = judge_end(ground, owned, trace, block, line, page) else { break };
            trace.skip_to(sequence);
            line = behind;
            continue;
        };
        trace.entries_on_page += 1;
        match visit(place, &entry, !trace.gaps.is_empty())? {
            Verdict::Good => trace.last = Some(place),
            // Where blocks of a file moved that cannot have, nobody knows where later ones stand.
            Verdict::Bad(what) if matches!(entry.payload, Payload::Shift { .. }) => {
                trace.sequence_beyond = trace.sequence_beyond.max(entry.sequence + 1);
                trace.fault(ENTRY, place.offset_bytes(), what, Loss::Rest);
                return Ok(false);
            }
            Verdict::Bad(what) => {
                trace.fault(ENTRY, place.offset_bytes(), what, Loss::Some);
                trace.gaps.push((entry.sequence, entry.sequence + 1));
            }
        }
        let Some(next) = trace.next_sequence.checked_add(1) else { return Ok(false) };
        trace.next_sequence = next;
        trace.epoch = entry.epoch;
        trace.see(entry.epoch);
        line += entry.lines;
    }
    Ok(true)
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
    let was_linked =
        ground.clean() && link.epoch == disk.epoch() || proves_itself(owned, page, expected.unwrap_or(0), link.epoch);
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
