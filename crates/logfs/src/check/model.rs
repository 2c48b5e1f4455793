//! The volume in memory as the check understands it, and the order in which it is understood.
//!
//! Every step notes what is wrong and puts the model right at once, so that later steps see the volume as repair will
//! leave it, and repair has nothing to decide: it writes the model down. Nothing here changes the medium.

use super::SEQUENCE_CREDIBLE_MAX;
use super::examine::{Examined, SlotWords, examine};
use super::report::{CheckProgress, Findings};
use super::saved::{self, Map};
use super::strays::Strays;
use super::trace::Ground;
use crate::bits::Bits;
use crate::disk::Disk;
use crate::format::BLOCK_BYTES;
use crate::format::shares::SharedRun;
use crate::format::slot::Slot;
use crate::format::state::{CLEAN_AT, EPOCH_AT, Summary, is_repairing};
use gannet_vfs::Result;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

/// What is not on the volume, and yet holds.
#[derive(Clone, Copy, Default)]
pub(super) struct Given<'g> {
    /// The volume is about to be marked as closed cleanly with this summary.
    pub(super) closed: Option<Summary>,
    /// Files whose content is given up: numbers or paths.
    pub(super) give_up: &'g [&'g [u8]],
}

/// The model.
pub(super) struct Model<'d> {
    pub(super) ground: Ground<'d>,
    pub(super) findings: Findings,
    /// Inodes in use.
    pub(super) inodes: BTreeMap<u32, Examined>,
    /// Slots that are neither free nor sound.
    pub(super) damaged_slots: Vec<u32>,
    /// Blocks of files where chunks were found: copies of them.
    chunks_in_files: BTreeSet<u64>,
    /// Chunks of the inode table that are gone, and that inodes are made again in.
    pub(super) missing_chunks: BTreeSet<u64>,
    /// A few inode numbers that are free, with their generations.
    pub(super) free_inodes: Vec<(u32, u32)>,
    /// Names may have been lost: what has none now is worth keeping.
    pub(super) names_lost: bool,
    /// Inodes that get a name in `lost+found`.
    pub(super) reconnect: Vec<u32>,
    /// Inodes that are freed.
    pub(super) release: Vec<u32>,
    /// Link count and parent of every inode that has a name.
    pub(super) held: HashMap<u32, (u64, u32)>,
    /// Blocks in use.
    pub(super) used: Bits,
    /// Blocks that several files refer to.
    pub(super) shared: Vec<SharedRun>,
    /// The highest epoch that was met.
    pub(super) epoch_seen: u32,
}

/// What one thread read.
#[derive(Default)]
struct Part {
    inodes: Vec<Examined>,
    damaged_slots: Vec<u32>,
    free_inodes: Vec<(u32, u32)>,
}

impl<'d> Model<'d> {
    /// Reads and understands the whole volume.
    pub(super) fn of(
        disk: &'d Disk,
        given: Given<'_>,
        threads: usize,
        progress: &mut dyn FnMut(CheckProgress),
    ) -> Result<Self> {
        const ROUNDS_MAX: usize = 8;
        let mut not_in = BTreeSet::new();
        for _ in 1..ROUNDS_MAX {
            let model = Self::with(disk, given, threads, &not_in, progress)?;
            let found = model.chunks_in_files;
            if found.is_empty() {
                return Ok(Self { chunks_in_files: found, ..model });
            }
            not_in.extend(found);
        }
        Self::with(disk, given, threads, &not_in, progress)
    }

    /// Likewise, but that chunks of the inode table whose places are lost are not in these blocks.
    fn with(
        disk: &'d Disk,
        given: Given<'_>,
        threads: usize,
        not_in: &BTreeSet<u64>,
        progress: &mut dyn FnMut(CheckProgress),
    ) -> Result<Self> {
        let mut findings = Findings::default();
        let unfinished = is_repairing(disk.load(CLEAN_AT)?);
        let summary = match given.closed {
            Some(summary) => Some(summary),
            None => read_summary(disk, unfinished, &mut findings)?,
        };
        // Where the state is damaged, nobody knows that the volume was not closed cleanly.
        let state_is_damaged = findings.damaged() || disk.load(EPOCH_AT)? != disk.epoch() as u64;
        let chunks = super::fixed::chunks(disk, not_in, &mut findings)?;
        let names_lost = chunks.lost || unfinished || state_is_damaged;
        let strays = Strays::default();
        let mut ground = Ground { disk, chunks, summary, unfinished, saved_used: None, saved_inodes: None, strays };
        ground.saved_used = saved_used(&ground, &mut findings)?;
        ground.saved_inodes = saved_inodes(&ground)?;
        let used = Bits::new(disk.geometry().blocks);
        let mut model = Self {
            ground,
            findings,
            inodes: BTreeMap::new(),
            damaged_slots: Vec::new(),
            chunks_in_files: BTreeSet::new(),
            missing_chunks: BTreeSet::new(),
            free_inodes: Vec::new(),
            names_lost,
            reconnect: Vec::new(),
            release: Vec::new(),
            held: HashMap::new(),
            used,
            shared: Vec::new(),
            epoch_seen: 0,
        };
        model.read(threads, progress)?;
        if model.epoch_seen > disk.epoch() {
            // Everything must be read again under the right epoch.
            return Ok(model);
        }
        model.find_chunks()?;
        let mut stage = |stage, done| progress(CheckProgress { stage, done, total: 4 });
        stage("deciding", 0);
        model.find_strays()?;
        if model.rebuild_slots()? {
            // What belongs to the files that were made again is known now.
            model.find_strays()?;
        }
        model.chunks_in_files = model.chunks_that_files_have();
        if !model.chunks_in_files.is_empty() {
            // Everything must be read again, with others.
            return Ok(model);
        }
        model.claim_pages()?;
        model.decide_halves()?;
        stage("names", 1);
        model.hold_names()?;
        given.give_up.iter().try_for_each(|file| model.give_up(file))?;
        stage("space", 2);
        model.claim_space()?;
        model.check_dangling()?;
        model.check_sense()?;
        stage("maps", 3);
        model.check_links();
        model.check_maps()?;
        model.keep_references_past();
        let inodes = std::mem::take(&mut model.inodes);
        model.inodes = inodes
            .into_iter()
            .map(|(inode, mut examined)| {
                model.findings.append(std::mem::take(&mut examined.findings));
                (inode, examined)
            })
            .collect();
        stage("maps", 4);
        Ok(model)
    }

    /// Reads all slots and logs with so many threads.
    fn read(&mut self, threads: usize, progress: &mut dyn FnMut(CheckProgress)) -> Result<()> {
        let ground = &self.ground;
        let chunks: Vec<u64> = ground.chunks.blocks.keys().copied().collect();
        let total = chunks.len() as u64;
        let mut parts = Vec::new();
        if threads <= 1 || total < 16 {
            let mut part = Part::default();
            for &chunk in &chunks {
                part.chunk(ground, chunk)?;
            }
            parts.push(part);
        } else {
            let next = AtomicU64::new(0);
            let (sender, receiver) = channel();
            std::thread::scope(|scope| -> Result<()> {
                for _ in 0..threads.min(256) {
                    let (sender, next, chunks) = (sender.clone(), &next, &chunks);
                    scope.spawn(move || {
                        let mut part = Part::default();
                        let outcome = loop {
                            let at = next.fetch_add(1, Ordering::Relaxed);
                            let Some(&chunk) = chunks.get(at as usize) else { break Ok(part) };
                            if let Err(error) = part.chunk(ground, chunk) {
                                break Err(error);
                            }
                        };
                        let _ = sender.send(outcome);
                    });
                }
                drop(sender);
                loop {
                    match receiver.recv_timeout(Duration::from_millis(100)) {
                        Ok(part) => parts.push(part?),
                        Err(RecvTimeoutError::Timeout) => {
                            let done = next.load(Ordering::Relaxed).min(total);
                            progress(CheckProgress { stage: "inodes", done, total });
                        }
                        Err(RecvTimeoutError::Disconnected) => break Ok(()),
                    }
                }
            })?;
        }
        parts.into_iter().for_each(|part| self.take_part(part));
        Ok(())
    }

    fn take_part(&mut self, part: Part) {
        for examined in part.inodes {
            self.note_epoch(&examined);
            self.inodes.insert(examined.inode, examined);
        }
        self.damaged_slots.extend(part.damaged_slots);
        self.free_inodes.extend(part.free_inodes);
        self.damaged_slots.sort_unstable();
        self.free_inodes.sort_unstable();
    }

    /// Searches for chunks of the inode table that names lead to, or in which inodes were in use, and that the map does not have. What is found may have
    /// names that lead to others.
    fn find_chunks(&mut self) -> Result<()> {
        const ROUNDS_MAX: u64 = 16;
        let slots = self.ground.disk.geometry().slots_per_chunk();
        let mut sought: BTreeSet<u64> = BTreeSet::new();
        for _ in 0..ROUNDS_MAX {
            let is_missing =
                |chunk| chunk < self.ground.disk.geometry().chunks && !self.ground.chunks.blocks.contains_key(&chunk);
            let named = self.inodes.values().flat_map(|examined| examined.names.values());
            let in_use = self.ground.saved_inodes.iter().flat_map(Bits::numbers);
            let missing: BTreeSet<u64> = named
                .map(|bound| bound.inode as u64)
                .chain(in_use)
                .map(|inode| inode / slots)
                .filter(|&chunk| is_missing(chunk) && !sought.contains(&chunk))
                .collect();
            if missing.is_empty() {
                break;
            }
            sought.extend(&missing);
            let missing: Vec<u64> = missing.into_iter().collect();
            let disk = self.ground.disk;
            for chunk in self.ground.chunks.find_missing(disk, &missing, &mut self.findings)? {
                let mut part = Part::default();
                part.chunk(&self.ground, chunk)?;
                self.take_part(part);
            }
        }
        Ok(())
    }

    /// Blocks of chunks that were searched for, and that files have.
    fn chunks_that_files_have(&self) -> BTreeSet<u64> {
        let length = self.ground.disk.geometry().chunk_blocks;
        let found: BTreeSet<u64> = self
            .ground
            .chunks
            .wrong_words
            .iter()
            .filter_map(|&(_, block)| block)
            .flat_map(|block| block..block + length)
            .collect();
        if found.is_empty() {
            return found;
        }
        let runs = self.inodes.values().flat_map(|examined| examined.map.iter());
        runs.flat_map(|run| found.range(run.block..run.block + run.count as u64).copied().collect::<Vec<_>>()).collect()
    }

    pub(super) fn note_epoch(&mut self, examined: &Examined) {
        self.epoch_seen = self.epoch_seen.max(examined.log.epoch_max);
        // Without the maps of a clean detach a page that was found need not be all.
        let is_whole = !examined.lossy && (self.ground.saved_used.is_some() || !examined.log.searched);
        self.names_lost |= examined.is_directory() && !is_whole;
    }

    /// A log that is written anew begins behind every sequence that another directory refers to: what is referred to then
    /// counts as collected.
    fn keep_references_past(&mut self) {
        let references: Vec<_> = self.inodes.values().flat_map(|found| &found.partners).map(|found| found.2).collect();
        for partner in references.into_iter().filter(|partner| partner.sequence < SEQUENCE_CREDIBLE_MAX) {
            if let Some(other) = self.inodes.get_mut(&partner.inode)
                && other.rewrite
                && other.generation == partner.generation
            {
                other.sequence_floor = other.sequence_floor.max(partner.sequence + 1);
            }
        }
    }

    /// Reads an inode again, up to an entry.
    pub(super) fn examine_again(&mut self, inode: u32, stop_at: Option<crate::format::page::LinePlace>) -> Result<()> {
        let Some(before) = self.inodes.get(&inode) else { return Ok(()) };
        let slot = SlotWords {
            inode,
            generation: before.generation,
            birth: before.birth,
            links: before.links_cached,
            parent: before.parent_cached,
            at: self.ground.chunks.slot_at(self.ground.disk, inode).unwrap_or(0),
        };
        let mut again = examine(&self.ground, &slot, stop_at)?;
        again.rebuild = before.rebuild;
        again.rewrite |= before.rebuild && before.rewrite;
        again.sequence_floor = again.sequence_floor.max(before.sequence_floor);
        self.note_epoch(&again);
        self.inodes.insert(inode, again);
        Ok(())
    }
}

impl Part {
    fn chunk(&mut self, ground: &Ground<'_>, chunk: u64) -> Result<()> {
        let geometry = ground.disk.geometry();
        let slots = geometry.slots_per_chunk();
        if !ground.chunks.blocks.contains_key(&chunk) {
            return Ok(());
        }
        for inode in (chunk * slots).max(1)..((chunk + 1) * slots).min(geometry.inodes()) {
            let inode = inode as u32;
            match ground.chunks.slot(ground.disk, inode)? {
                Slot::Free { .. } if ground.was_in_use(inode) => self.damaged_slots.push(inode),
                Slot::Free { generation } => {
                    if self.free_inodes.len() < 4 {
                        self.free_inodes.push((inode, generation));
                    }
                }
                Slot::Damaged => self.damaged_slots.push(inode),
                Slot::Used { generation, birth, links, parent, .. } => {
                    let at = ground.chunks.slot_at(ground.disk, inode).unwrap_or(0);
                    let slot = SlotWords { inode, generation, birth, links, parent, at };
                    self.inodes.push(examine(ground, &slot, None)?);
                }
            }
        }
        Ok(())
    }
}

fn read_summary(disk: &Disk, unfinished: bool, findings: &mut Findings) -> Result<Option<Summary>> {
    if unfinished {
        findings.damage("state", CLEAN_AT, 0, "a repair was cut short", "it is done again");
    }
    let remedy = "the volume is taken as not closed cleanly: a last operation that is damaged is taken for one that was cut short";
    Ok(match saved::summary(disk)? {
        Ok(Some(summary)) if summary.epoch != disk.epoch() as u64 => {
            findings.damage("summary", CLEAN_AT, 0, "it is of another epoch than the volume", remedy);
            None
        }
        Ok(summary) => summary,
        Err(()) => {
            findings.damage("summary", CLEAN_AT, 0, "its checksum is wrong", remedy);
            None
        }
    })
}

/// The saved map of blocks in use, if it is sound.
fn saved_used(ground: &Ground<'_>, findings: &mut Findings) -> Result<Option<Bits>> {
    let Some(summary) = &ground.summary else { return Ok(None) };
    let disk = ground.disk;
    let used = Map::Blocks.load(disk, summary)?;
    if used.is_none() {
        let at = disk.geometry().saved_blocks_start * BLOCK_BYTES;
        findings.damage("saved block map", at, 0, "its hash is wrong", "it is written anew; nothing is lost");
    }
    Ok(used)
}

/// The saved map of inodes in use, if it is sound.
fn saved_inodes(ground: &Ground<'_>) -> Result<Option<Bits>> {
    let Some(summary) = &ground.summary else { return Ok(None) };
    Map::Inodes.load(ground.disk, summary)
}
