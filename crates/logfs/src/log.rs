//! Reading an inode's log: from the head along the links, entry by entry, to the first that does not prove itself.
//!
//! Nothing here trusts the medium: a link must lead into the volume, a page must belong to this inode and begin with the
//! sequence that is expected, an entry must follow its predecessor in sequence and not precede it in epoch. Sequences
//! rise with every page, so a walk ends.
//!
//! An entry that went bad is not taken for the end, as far as that can be told: what a crash may leave behind an end is little.

use crate::disk::{Block, Disk};
use crate::format::entry::{AT_LINES, Entry, Owned};
use crate::format::page::{AT_NEXT, LINES, LinePlace, Link, PageHeader};
use crate::format::slot::AT_HEAD;
use crate::format::{BLOCK_BYTES, LINE_BYTES};
use crate::replay::TIMES_STAY;
use gannet_vfs::{Error, Result};

/// Where a log ends, and what it ends with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LogEnd {
    /// The next entry's place, or `None` for a log without pages. Its line may be [`LINES`]: the page is full.
    pub(crate) tail: Option<Tail>,
    /// Sequence number that the next entry gets.
    pub(crate) next_sequence: u64,
    /// Epoch of the last entry.
    pub(crate) epoch: u32,
    /// Epoch in which the last page was linked.
    pub(crate) page_epoch: u32,
    /// Place of the last entry.
    pub(crate) last: Option<LinePlace>,
    /// Number of pages.
    pub(crate) pages: u64,
    /// Number of lines that entries take, live or not.
    pub(crate) lines: u64,
    /// The link of the last page, if it leads to no page of this log; or of the slot, and there is no page. Else 0.
    pub(crate) dangling: u64,
    /// Something stands behind the end that no crash before the present epoch can have left: it is in flight, or was when somebody
    /// died, or an entry went bad.
    pub(crate) is_unexplained: bool,
}

impl LogEnd {
    /// Where the link stands that [`LogEnd::dangling`] is. `slot_at`: of the log's inode.
    pub(crate) fn link_at(&self, slot_at: impl FnOnce() -> Result<u64>) -> Result<u64> {
        match self.tail {
            Some(tail) => Ok(tail.block * BLOCK_BYTES + AT_NEXT),
            None => Ok(slot_at()? + AT_HEAD),
        }
    }

    /// `EUCLEAN` where a log does not end in zeros and without a link, as one does at which nobody works, and that was settled if somebody
    /// died at it: an entry, a page or a link went bad. To go on would lose what it said, and all that stands behind it.
    pub(crate) fn refuse_odd(&self, slot_at: impl FnOnce() -> Result<u64>) -> Result<()> {
        self.refuse_dangling(slot_at)?;
        match self.tail {
            Some(Tail { block, line }) if self.is_unexplained => {
                Err(Error::damaged("last entry of a log", LinePlace::new(block, line).offset_bytes()))
            }
            _ => Ok(()),
        }
    }

    /// The same of a log that somebody died at, whose last entry may be there in part: `EUCLEAN` where a link leads to no page of the log.
    pub(crate) fn refuse_dangling(&self, slot_at: impl FnOnce() -> Result<u64>) -> Result<()> {
        match self.dangling {
            0 => Ok(()),
            _ => Err(Error::damaged("link to a log page", self.link_at(slot_at)?)),
        }
    }
}

/// The end of a log's last page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tail {
    /// The page.
    pub(crate) block: u64,
    /// Its first free line.
    pub(crate) line: u32,
}

/// What a walk meets.
pub(crate) enum Met<'a> {
    /// A page, before its entries.
    Page {
        /// Its block.
        block: u64,
        /// Its header.
        header: &'a PageHeader,
    },
    /// An entry.
    Entry {
        /// Where.
        place: LinePlace,
        /// What.
        entry: &'a Entry<'a>,
    },
}

/// Room for a page that is being read. Of most logs, which are short, only some lines are ever copied out.
pub(crate) struct PageRoom {
    bytes: Block,
    block: u64,
    /// Lines that have been copied.
    lines: u32,
}

/// Lines copied at first: header, and the entries of a file that was written once.
const LINES_AT_FIRST: u32 = 4;

impl Default for PageRoom {
    fn default() -> Self {
        Self { bytes: [0; BLOCK_BYTES as usize], block: 0, lines: 0 }
    }
}

impl PageRoom {
    /// Begins to read a page.
    fn begin(&mut self, disk: &Disk, block: u64) -> Result<()> {
        (self.block, self.lines) = (block, 0);
        self.extend(disk, LINES_AT_FIRST)
    }

    /// Copies lines up to `lines` at least: four times as many as there are, so that a long page takes three steps.
    fn extend(&mut self, disk: &Disk, lines: u32) -> Result<()> {
        const LINE: usize = LINE_BYTES as usize;
        if lines > self.lines {
            let (from, to) = (self.lines as usize, lines.max(self.lines * 4).min(LINES) as usize);
            let at = self.block * BLOCK_BYTES + (from * LINE) as u64;
            disk.read(at, &mut self.bytes[from * LINE..to * LINE])?;
            self.lines = to as u32;
        }
        Ok(())
    }

    /// The page from `line` on, as far as the entry that begins there claims to reach.
    fn entry(&mut self, disk: &Disk, line: u32) -> Result<&[u8]> {
        const LINE: usize = LINE_BYTES as usize;
        self.extend(disk, line + 1)?;
        let claimed = self.bytes[line as usize * LINE + AT_LINES] as u32;
        self.extend(disk, (line + claimed).min(LINES))?;
        Ok(&self.bytes[line as usize * LINE..self.lines as usize * LINE])
    }

    /// Whether nothing but zeros stands at `line` and behind, as far as it has been copied.
    fn is_zero_from(&self, line: u32) -> bool {
        let copied = &self.bytes[line as usize * LINE_BYTES as usize..self.lines as usize * LINE_BYTES as usize];
        copied.chunks_exact(8).all(|word| word == [0; 8])
    }

    /// The room, for something else.
    pub(crate) fn bytes_mut(&mut self) -> &mut Block {
        &mut self.bytes
    }

    /// The link word, behind all entries.
    fn next(&self) -> u64 {
        crate::format::get_u64(&self.bytes, AT_NEXT as usize)
    }
}

/// The first page of a log, if its head link is set. Errors if the link does not lead to a page of this inode.
pub(crate) fn first_page(disk: &Disk, owned: Owned, head: u64) -> Result<Option<(Link, PageHeader)>> {
    let Some(link) = Link::decode(head) else { return Ok(None) };
    match disk.page_header(link)? {
        Some(header) if header.inode == owned.inode && header.generation == owned.generation => {
            Ok(Some((link, header)))
        }
        _ => Ok(None),
    }
}

/// Walks the log that begins at the link word `head`.
///
/// A head that leads to no valid page is the end of an empty log: the page's header was in flight when the crash came.
/// Whether that may be is for the caller to judge (fsck does).
pub(crate) fn walk(
    disk: &Disk,
    owned: Owned,
    head: u64,
    visit: &mut dyn FnMut(Met<'_>) -> Result<()>,
) -> Result<LogEnd> {
    walk_in(&mut PageRoom::default(), disk, owned, head, visit)
}

/// The same for who walks through many logs, with room that need not be made for each.
pub(crate) fn walk_in(
    page: &mut PageRoom,
    disk: &Disk,
    owned: Owned,
    head: u64,
    visit: &mut dyn FnMut(Met<'_>) -> Result<()>,
) -> Result<LogEnd> {
    let mut end = LogEnd { next_sequence: 1, ..LogEnd::default() };
    let Some((mut link, mut header)) = first_page(disk, owned, head)? else {
        end.dangling = head;
        return Ok(end);
    };
    end.next_sequence = header.first_sequence;
    loop {
        if header.epoch > disk.epoch() {
            return Err(Error::damaged("log page: epoch of the future", link.block * BLOCK_BYTES));
        }
        page.begin(disk, link.block)?;
        end.pages += 1;
        // No entry is older than its page: what looks so is what the block held before.
        (end.page_epoch, end.epoch) = (header.epoch, end.epoch.max(header.epoch));
        visit(Met::Page { block: link.block, header: &header })?;
        let mut line = 1;
        while line < LINES {
            let Some(entry) = Entry::decode(owned, page.entry(disk, line)?) else { break };
            if entry.sequence != end.next_sequence || entry.epoch < end.epoch || entry.epoch > disk.epoch() {
                break;
            }
            let place = LinePlace::new(link.block, line);
            visit(Met::Entry { place, entry: &entry })?;
            end.next_sequence += 1;
            end.epoch = entry.epoch;
            end.last = Some(place);
            end.lines += entry.lines as u64;
            line += entry.lines;
        }
        end.tail = Some(Tail { block: link.block, line });
        // A page without entries ends the log: the links behind it are of the past.
        let next = page.next();
        let next_page = if line == 1 { None } else { next_of(disk, owned, next, &end)? };
        match next_page {
            Some((next_link, next_header)) => (link, header) = (next_link, next_header),
            None => {
                end.dangling = next;
                end.is_unexplained = look_behind(page, disk, owned, &end)?;
                return Ok(end);
            }
        }
    }
}

/// Looks at what stands behind the end of a log's last page, if anything does. An entry is durable before the next one is written, so an
/// entry behind the end says that one before it went bad; but for those of a collection, which stand under one fence, and of which a
/// crash leaves any. Returns whether the rest is what no crash before the present epoch can have left.
///
/// Where zeros stand at the end, lines behind it are looked at only as far as they have been copied: most logs end within the first few.
fn look_behind(page: &mut PageRoom, disk: &Disk, owned: Owned, end: &LogEnd) -> Result<bool> {
    let Some(Tail { block, line }) = end.tail.filter(|tail| tail.line < LINES) else { return Ok(false) };
    if page.is_zero_from(line) {
        return Ok(false);
    }
    page.extend(disk, LINES)?;
    // Behind the end of a page that was first used in this epoch stand zeros.
    let mut is_of_now = end.page_epoch == disk.epoch();
    for behind in line..LINES {
        let Some(entry) = Entry::decode(owned, page.entry(disk, behind)?) else { continue };
        if entry.sequence < end.next_sequence || entry.epoch < end.page_epoch {
            continue;
        }
        if entry.time != TIMES_STAY {
            return Err(Error::damaged("log entry, with others behind it", LinePlace::new(block, line).offset_bytes()));
        }
        is_of_now |= entry.epoch == disk.epoch();
    }
    Ok(is_of_now)
}

/// Where a log ends, by the headers of its pages and the entries of the last: what [`walk`] says of a log that is whole, for
/// the price of a line for each page. `tail`, `next_sequence` and `pages`.
pub(crate) fn find_end(disk: &Disk, owned: Owned, head: u64) -> Result<(Option<Tail>, u64, u64)> {
    let Some((mut link, mut header)) = first_page(disk, owned, head)? else { return Ok((None, 1, 0)) };
    let mut pages = 1;
    // Sequences that rise end the loop, whatever stands there.
    while let Some((next_link, next_header)) =
        first_page(disk, owned, disk.load(link.block * BLOCK_BYTES + crate::format::page::AT_NEXT)?)?
            .filter(|(_, next)| next.first_sequence > header.first_sequence)
    {
        (link, header) = (next_link, next_header);
        pages += 1;
    }
    // As far as entries go, which is not far in most logs.
    let mut room: Block = [0; BLOCK_BYTES as usize];
    let (mut line, mut next_sequence, mut epoch) = (1, header.first_sequence, header.epoch);
    while line < LINES {
        let entry = Entry::decode(owned, disk.read_entry(LinePlace::new(link.block, line), &mut room)?);
        let follows = |entry: &Entry<'_>| entry.sequence == next_sequence && entry.epoch >= epoch;
        let Some(entry) = entry.filter(follows) else { break };
        next_sequence += 1;
        epoch = entry.epoch;
        line += entry.lines;
    }
    Ok((Some(Tail { block: link.block, line }), next_sequence, pages))
}

fn next_of(disk: &Disk, owned: Owned, next: u64, end: &LogEnd) -> Result<Option<(Link, PageHeader)>> {
    Ok(first_page(disk, owned, next)?
        .filter(|(_, header)| header.first_sequence == end.next_sequence && header.epoch >= end.epoch))
}
