//! Settling threads that died inside an operation: what the medium shows of it is taken as if a crash had come just then.
//!
//! For each inode that the dead thread had locked, its log is settled (a torn last entry is wiped, since no epoch separates
//! it from what comes next) and its record is dropped; the next user loads it. Whether the operation as a whole happened is
//! decided by the entry named in its commit hand; link counts and parents follow from that. Blocks and inode numbers in
//! its hands go back unless a settled log refers to them. What remains uncertain is only whether something is free: then
//! the volume's maps are counted again at the next attach.

mod log;

use self::log::ReadLog;
use crate::append::HAND_COMMIT;
use crate::counters::Counter;
use crate::create::HAND_LINKS;
use crate::disk::Disk;
use crate::format::entry::Owned;
use crate::format::page::{LINES, LinePlace, PageHeader};
use crate::format::slot::{self, Identity, Slot};
use crate::format::{BLOCK_BYTES, LINE_BYTES};
use crate::inode_table::CHUNKS_AT_ONCE;
use crate::log::{LogEnd, Met, walk};
use crate::ops::{Core, Op};
use crate::places::{CONTROL_PINNED, CONTROL_SUSPECTS, CONTROL_TAKEOVERS, SUSPECTS_MAX};
use crate::recover::kill;
use crate::rename::HAND_PARENT;
use crate::samples;
use crate::space::{Extent, HAND_BLOCKS};
use crate::storage::{self, HAND_INODES};
use crate::write::coarse_now;
use gannet_shm::{Arena, DeadThread, GoneParticipant, Ordering, Reaper, fence};
use gannet_vfs::{Errno, Result};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// The engine as an owner of what dead threads held.
pub(crate) struct EngineReaper {
    pub(crate) core: Arc<Core>,
}

impl Reaper for EngineReaper {
    fn settle(&self, dead: &DeadThread<'_>) -> gannet_shm::Result<()> {
        settle(&self.core, dead).map_err(gannet_shm::Error::owner)
    }

    fn participant_gone(&self, gone: &GoneParticipant<'_>) -> gannet_shm::Result<()> {
        // Most processes map nothing, and each that ends comes here.
        if gone.reaper.word(self.core.places.control(CONTROL_PINNED))?.load(Ordering::Acquire) != 0 {
            let space = self.core.space.blocks_in(gone.reaper.arena()).map_err(gannet_shm::Error::owner)?;
            let dropped = space.drop_pins_of(&gone.reaper, gone.info.id.index);
            dropped.map_err(|error| gannet_shm::Error::owner(storage::error(error)))?;
        }
        let op = Op::begin(&self.core, gone.reaper).map_err(gannet_shm::Error::owner)?;
        op.drop_maps_of(gone.info.id.index).map_err(gannet_shm::Error::owner)
    }

    fn slot_reserved(&self, arena: &Arena, slot: u32) -> gannet_shm::Result<()> {
        self.core.places.reserve_slot(arena, slot)
    }

    fn slot_taken(&self, arena: &Arena, slot: u32) {
        // Its counters, and the histograms of its first calls.
        let places = &self.core.places;
        arena.map_page(places.counters_of(slot));
        arena.map_page(samples::of_slot(places, slot));
    }
}

/// What the dead thread had in hand: only of that it matters whether a log refers to it.
#[derive(Default)]
struct InHand {
    /// Runs of blocks.
    blocks: Vec<Extent>,
    /// Numbers of inodes.
    inodes: Vec<u32>,
}

/// What the settled logs of the dead thread's inodes say of what it had in hand.
#[derive(Default)]
struct Settled {
    hands: InHand,
    /// Runs of blocks (first, count) that they refer to: those that meet one in hand, as they are there.
    runs: Vec<(u64, u64)>,
    /// Inodes in hand that their names refer to, with generation.
    named: HashSet<(u32, u32)>,
    /// Generation and end of each.
    ends: HashMap<u32, (u32, LogEnd)>,
    /// A log cannot be read. It is left as it is, and said to be damaged to whoever comes; what the dead thread had in hand counts as used until
    /// the volume has been repaired.
    is_damaged: bool,
}

impl Settled {
    /// Whether any of a run of blocks is in the dead thread's hands.
    fn is_in_hand(&self, block: u64, count: u64) -> bool {
        let end = block.saturating_add(count);
        self.hands.blocks.iter().any(|extent| block < extent.end() && extent.start < end)
    }

    /// Whether a log refers to a block in hand.
    fn refers_to(&self, block: u64) -> bool {
        self.runs.iter().any(|&(start, count)| block.wrapping_sub(start) < count)
    }

    /// One file that is damaged keeps nobody from what else the dead thread had locked.
    fn take_damage(&mut self, outcome: Result<()>) -> Result<()> {
        match outcome {
            Err(error) if error.errno() == Errno::UCLEAN => self.is_damaged = true,
            outcome => outcome?,
        }
        Ok(())
    }
}

fn settle(core: &Core, dead: &DeadThread<'_>) -> Result<()> {
    let locked: Vec<u32> = dead.locks().filter_map(|at| core.places.inode_of_lock(at)).collect();
    let hands: Vec<_> = dead.hands().map(|(_, content)| content).collect();
    let ours = [HAND_COMMIT, HAND_LINKS, HAND_PARENT, HAND_INODES, HAND_BLOCKS];
    let is_idle = locked.is_empty() && !hands.iter().any(|hand| ours.contains(&hand.kind));
    let core = if is_idle { core } else { core.to_settle(dead.reaper().arena())? };
    let op = Op::begin(core, dead.reaper())?;
    let disk = &core.disk;
    op.end_between(dead.slot())?;
    if is_idle {
        // It was in no operation of the engine. It may have made a file without a name that it did not come to open.
        note_suspect(core, dead)?;
    } else {
        op.set_uncertain()?;
    }
    let word = dead.reaper().word(core.places.control(CONTROL_TAKEOVERS)).map_err(crate::ops::shared_error)?;
    // Unnoticed [word]: a counter (`kills`).
    word.fetch_add(1, Ordering::Relaxed);

    let of_kind = |kind| hands.iter().filter(move |hand| hand.kind == kind);
    let in_hand = InHand {
        blocks: of_kind(HAND_BLOCKS).filter_map(|hand| Extent::unpack(hand.a)).collect(),
        inodes: of_kind(HAND_INODES).map(|hand| (hand.a >> 24) as u32).collect(),
    };
    let mut settled = Settled { hands: in_hand, ..Settled::default() };
    for &inode in &locked {
        let outcome = settle_log(disk, inode, &locked, &mut settled);
        settled.take_damage(outcome)?;
    }
    let committed = hands.iter().any(|hand| {
        hand.kind == HAND_COMMIT
            && settled.ends.get(&(hand.a as u32)).is_some_and(|(_, end)| end.next_sequence > hand.b)
    });
    let mut commit = disk.begin();
    for hand in &hands {
        let (before, after) = (hand.b & 0xFFFF_FFFF, hand.b >> 32);
        let word = match hand.kind {
            HAND_LINKS => slot::AT_LINKS,
            HAND_PARENT => slot::AT_PARENT,
            _ => continue,
        };
        if let Some(at) = disk.slot_at(hand.a as u32)? {
            // Unnoticed [flush]: after a crash link counts and parents are derived from the names.
            commit.store(at + word, if committed { after } else { before })?;
            if word == slot::AT_LINKS && after == 0 && committed {
                // It had a name, and gets none any more: a file that never had one has the time 0.
                // Unnoticed [store, flush]: nobody finds it after a crash; `remains` looks at what it is for.
                commit.store(at + slot::AT_CHANGED, coarse_now() as u64)?;
            }
            if word == slot::AT_LINKS && before == 0 && !committed {
                // It never had a name, and can get one still.
                // Unnoticed [store, flush]: the name is stored first, so that where it did not come to be nothing was stored here.
                commit.store(at + slot::AT_CHANGED, 0)?;
            }
        }
    }
    // Only who has a number in hand that has no slot yet makes chunks: that one's and those behind it.
    let slots = disk.geometry().slots_per_chunk();
    let numbers = hands.iter().filter(|hand| hand.kind == HAND_INODES).map(|hand| hand.a >> 24);
    let chunks_in_making = numbers.map(|inode| inode / slots).flat_map(|chunk| chunk..chunk + CHUNKS_AT_ONCE);
    for chunk in chunks_in_making.clone().filter(|&chunk| chunk < disk.geometry().chunks) {
        commit.flush(disk.geometry().map_word_at(chunk), 8)?;
    }
    // What a damaged log names nobody knows: nothing is taken back then.
    for hand in hands.iter().filter(|hand| hand.kind == HAND_INODES) {
        if !settled.is_damaged {
            let outcome = settle_birth(&op, &mut commit, hand.a, &mut settled);
            settled.take_damage(outcome)?;
        }
    }
    for hand in hands.iter().filter(|hand| hand.kind == HAND_BLOCKS && !settled.is_damaged) {
        let extent = Extent::unpack(hand.a).filter(|extent| !settled.refers_to(extent.start));
        if let Some(extent) = extent {
            wipe_unused_page(disk, &mut commit, extent)?;
        }
    }
    // All that was written back, killed and wiped: the locks are still the dead thread's, so nobody has built on any of it, and a
    // crash before this leaves what its own would have.
    let _ = commit.fence();

    let is_named = |inode: u64| {
        let inode = inode as u32;
        settled.is_damaged
            || matches!(disk.slot(inode), Ok(Slot::Used { .. } | Slot::Damaged))
            || locked.contains(&inode)
    };
    let is_chunk = |block: u64| {
        chunks_in_making.clone().any(|chunk| {
            matches!(disk.chunk_block(chunk), Ok(Some(first)) if block.wrapping_sub(first) < disk.geometry().chunk_blocks)
        })
    };
    let is_referenced = |block: u64| settled.is_damaged || settled.refers_to(block) || is_chunk(block);
    // Blocks first: which of them are a newborn inode's, or a chunk's, is known by the numbers in hand. Should this thread die in between, so it is
    // to the next.
    core.space.blocks(&op)?.settle(dead, &is_referenced).map_err(storage::error)?;
    core.space.inodes(&op)?.settle(dead, &is_named).map_err(storage::error)?;

    for &inode in &locked {
        let record = op.record(inode)?;
        match settled.ends.get(&inode) {
            Some((generation, end)) if *generation == record.last_generation() => {
                record.set_end(end);
                record.unload_but_end();
            }
            _ => record.unload(),
        }
        // Unnoticed [word]: it takes a writer in place that stands still meanwhile (`stopped`).
        record.leave_writers();
    }
    if is_idle { Ok(()) } else { note_suspect(core, dead) }
}

/// Remembers the last file without a name that the dead thread made, if it has none yet, for who closes the volume or counts what is free.
fn note_suspect(core: &Core, dead: &DeadThread<'_>) -> Result<()> {
    let arena = dead.reaper().arena();
    let at = core.places.counters_of(dead.slot()).add(Counter::LastUnnamed as u64 * 8);
    let word = arena.word(at).map_err(crate::ops::shared_error)?;
    let made = word.load(Ordering::Acquire);
    let (inode, generation) = ((made >> 32) as u32, made as u32);
    if made == 0 {
        return Ok(());
    }
    if let Slot::Used { generation: found, links: 0, .. } = core.disk.slot(inode)?
        && found == generation
    {
        let suspects = arena.words(core.places.control(CONTROL_SUSPECTS), SUSPECTS_MAX);
        let mut suspects = suspects.map_err(crate::ops::shared_error)?.iter();
        // Several may be at it for different dead threads.
        let noted = suspects.any(|suspect| {
            suspect.load(Ordering::Relaxed) == made
                || suspect.compare_exchange(0, made, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        });
        if !noted {
            Op::begin(core, dead.reaper())?.set_uncertain()?;
        }
    }
    // Unnoticed [word]: the file is noted once more, and looked at again.
    word.store(0, Ordering::Release);
    Ok(())
}

/// An inode that was being made: if no name became durable its slot is free again.
fn settle_birth(op: &Op<'_>, commit: &mut crate::disk::Commit<'_>, hand_a: u64, settled: &mut Settled) -> Result<()> {
    let disk = op.disk();
    let inode = (hand_a >> 24) as u32;
    let Some(at) = disk.slot_at(inode)? else { return Ok(()) };
    commit.flush(at, slot::SLOT_BYTES)?;
    match disk.slot(inode)? {
        Slot::Free { .. } => {
            // Perhaps by one who died while settling it.
            // Unnoticed [word]: nobody knows the number yet; whoever is born there fills the record anew.
            op.record(inode)?.unload();
            Ok(())
        }
        Slot::Used { generation, birth, .. } if settled.named.contains(&(inode, generation)) => {
            // The pages that it is born with are in the dead thread's hands too, and no locked inode's log tells of them.
            let owned = Owned { key: disk.key(), inode, generation };
            walk(disk, owned, birth.head, &mut |met| {
                if let Met::Page { block, .. } = met {
                    settled.runs.push((block, 1));
                }
                Ok(())
            })
            .map(|_| ())
        }
        Slot::Used { .. } | Slot::Damaged => {
            let generation = disk.load(at)? as u32;
            // Unnoticed [store, flush]: without it the number stays taken until the next attach counts.
            commit.store(at + slot::AT_IDENTITY, Identity { generation, file_type: None }.freed().encode())?;
            // Unnoticed [store, flush]: whoever is born there later does not take a head for its own that leads to no page of its own.
            commit.store(at + slot::AT_HEAD, 0)?;
            // It may have been filled already, or be loaded at this moment by who comes with what the number was before: that one looks at the
            // slot once more behind it (`Op::load`).
            fence(Ordering::SeqCst);
            // Unnoticed [word]: as for the line above.
            op.record(inode)?.unload();
            Ok(())
        }
    }
}

/// Decides the last entry of a log, writes back what stands and wipes what does not, for [`settle`] to fence; notes what the log
/// refers to.
fn settle_log(disk: &Disk, inode: u32, locked: &[u32], settled: &mut Settled) -> Result<()> {
    if let Some(at) = disk.slot_at(inode)? {
        let mut commit = disk.begin();
        commit.flush(at, slot::SLOT_BYTES)?;
        commit.without_fence();
    }
    let Slot::Used { generation, birth, .. } = disk.slot(inode)? else { return Ok(()) };
    let owned = Owned { key: disk.key(), inode, generation };
    let (mut read, mut end) = ReadLog::read(disk, owned, birth.head, settled)?;
    read.flush_newest_pages(disk)?;
    // A page is stored before the link to it.
    end.refuse_dangling(|| Ok(disk.slot_at(inode)?.unwrap_or(0)))?;
    if let Some(last) = end.last
        && !read.last_stands(disk, owned, last, locked)?
    {
        let mut commit = disk.begin();
        kill(&mut commit, last)?;
        commit.without_fence();
        // Again, as it stands now.
        (read, end) = ReadLog::read(disk, owned, birth.head, settled)?;
    }
    wipe_behind(disk, &end)?;
    read.note(settled, birth.file_type);
    settled.ends.insert(inode, (generation, end));
    Ok(())
}

/// Wipes a log page that was written and that nothing leads to, of an inode that was being made or of a log that was being written anew:
/// the next log of the same inode and generation could begin with the very header, in the same epoch, and after a crash the entries
/// behind it would be its own.
fn wipe_unused_page(disk: &Disk, commit: &mut crate::disk::Commit<'_>, extent: Extent) -> Result<()> {
    // Pages are taken one by one.
    if extent.count != 1 || !disk.geometry().is_allocatable(extent.start) {
        return Ok(());
    }
    let at = extent.start * BLOCK_BYTES;
    let mut line = [0; LINE_BYTES as usize];
    disk.read(at, &mut line)?;
    match PageHeader::decode(disk.key(), &line) {
        // Unnoticed [store, flush]: no workload ends a thread just between the fence of such a page and the slot; `remains` does.
        Some(header) if header.epoch == disk.epoch() => commit.zero(at, BLOCK_BYTES),
        _ => Ok(()),
    }
}

/// Wipes what stands behind the end of a log: the epoch is the same, so nothing else tells it from what will be written.
fn wipe_behind(disk: &Disk, end: &LogEnd) -> Result<()> {
    let Some(tail) = end.tail.filter(|tail| tail.line < LINES) else { return Ok(()) };
    let mut commit = disk.begin();
    let at = LinePlace::new(tail.block, tail.line).offset_bytes();
    // Unnoticed [flush]: a thread stores an entry as a whole after the one before, so what a dead one leaves behind the end is part
    // of one entry, in whose further lines none begins; and before fsck takes the volume as closed cleanly its epoch is raised.
    commit.zero(at, (LINES - tail.line) as u64 * LINE_BYTES)?;
    // Unnoticed [store, flush]: it is 0: a page's header, with this word, is stored before the link to the page, and a link before the
    // entry that the page begins with.
    commit.store(tail.block * BLOCK_BYTES + crate::format::page::AT_NEXT, 0)?;
    commit.without_fence();
    Ok(())
}
