//! Space: no block in two places, the data of a log's last entry whole, the maps of a clean detach as they must be.

use super::examine::Examined;
use super::model::Model;
use super::saved::Map;
use crate::bits::Bits;
use crate::format::BLOCK_BYTES;
use crate::format::entry::{Entry, Owned, Payload};
use crate::format::page::LinePlace;
use crate::format::state::SUMMARY_AT;
use crate::shares::{Counts, read_list};
use crate::survey::data_is_whole;
use crate::xattrs::read_value;
use gannet_vfs::Result;
use std::collections::{BTreeMap, BTreeSet, HashSet};

/// Blocks that somebody has, as runs that do not overlap: start to end.
#[derive(Clone, Default)]
pub(super) struct Claims {
    runs: BTreeMap<u64, u64>,
}

impl Claims {
    /// Claims a run; returns the parts that were claimed before.
    pub(super) fn claim(&mut self, start: u64, count: u64) -> Vec<(u64, u64)> {
        let end = start + count;
        let mut taken = Vec::new();
        let (mut new_start, mut new_end) = (start, end);
        while let Some((&other, &other_end)) = self.runs.range(..=new_end).next_back() {
            if other_end < new_start {
                break;
            }
            self.runs.remove(&other);
            let (from, to) = (other.max(start), other_end.min(end));
            if from < to {
                taken.push((from, to));
            }
            (new_start, new_end) = (new_start.min(other), new_end.max(other_end));
        }
        self.runs.insert(new_start, new_end);
        taken
    }

    /// The parts of a run that are claimed.
    fn taken(&self, start: u64, count: u64) -> Vec<(u64, u64)> {
        let end = start + count;
        let before = self.runs.range(..start).next_back();
        let touching = before.into_iter().chain(self.runs.range(start..end));
        touching.map(|(&from, &to)| (from.max(start), to.min(end))).filter(|&(from, to)| from < to).collect()
    }

    fn bits(&self, length: u64) -> Bits {
        let bits = Bits::new(length);
        for (&start, &end) in &self.runs {
            for block in start..end {
                let _ = bits.set(block);
            }
        }
        bits
    }
}

impl Model<'_> {
    fn fixed_claims(&self) -> Claims {
        let geometry = self.ground.disk.geometry();
        let mut claims = Claims::default();
        claims.claim(0, geometry.first_free);
        for block in geometry.headers().chain([geometry.replica()]) {
            claims.claim(block, 1);
        }
        for &block in self.ground.chunks.blocks.values() {
            claims.claim(block, geometry.chunk_blocks);
        }
        claims
    }

    /// Cuts logs off at pages that are somebody else's.
    pub(super) fn claim_pages(&mut self) -> Result<()> {
        let mut claims = self.fixed_claims();
        let mut cut = Vec::new();
        for examined in self.inodes.values() {
            for &page in &examined.log.pages {
                if !claims.claim(page, 1).is_empty() {
                    cut.push((examined.inode, page));
                    break;
                }
            }
        }
        for (inode, page) in cut {
            let what = format!("block {page} is already in use for something else");
            let remedy = "what the log says from there on is lost, what it says before is kept";
            self.findings.damage("log page", page * BLOCK_BYTES, inode, what, remedy);
            self.examine_again(inode, Some(LinePlace::new(page, 0)))?;
            if let Some(examined) = self.inodes.get_mut(&inode) {
                (examined.rewrite, examined.lossy) = (true, true);
            }
            self.names_lost = true;
        }
        Ok(())
    }

    /// Gives every block to the first that claims it, and checks what the last entry of a log made visible.
    pub(super) fn claim_space(&mut self) -> Result<()> {
        let mut overlapping = HashSet::new();
        self.claim_data(&mut overlapping);
        if self.check_data(&overlapping)? {
            self.claim_data(&mut overlapping);
        }
        Ok(())
    }

    /// A log of which something is lost may speak of blocks that were given up since: it comes last.
    fn by_certainty(&self) -> Vec<&Examined> {
        let (mut whole, lossy): (Vec<_>, Vec<_>) = self.inodes.values().partition(|examined| !examined.lossy);
        whole.extend(lossy);
        whole
    }

    /// Blocks of a file of which something is lost, and that were free when the volume was closed, held what had been given up: they become holes.
    fn claim_data(&mut self, overlapping: &mut HashSet<u32>) {
        let mut fixed = self.fixed_claims();
        for examined in self.inodes.values() {
            for &page in &examined.log.pages {
                fixed.claim(page, 1);
            }
        }
        self.claim_values(&mut fixed);
        // Of those who have a block, all but one know that they share it.
        let mut claims = fixed.clone();
        let (mut lost, mut given_up) = (Vec::new(), Vec::new());
        for examined in self.by_certainty() {
            for run in examined.map.iter() {
                let count = run.count as u64;
                if examined.lossy
                    && let Some(used) = &self.ground.saved_used
                {
                    let was_free = (run.block..run.block + count).filter(|&block| !used.has(block));
                    given_up.extend(was_free.map(|block| (examined.inode, run.file_block + (block - run.block))));
                }
                let taken = if run.shared { fixed.taken(run.block, count) } else { claims.claim(run.block, count) };
                for (from, to) in taken {
                    lost.push((examined.inode, run.file_block + (from - run.block), from, to - from));
                }
            }
        }
        for (inode, file_block, block, count) in lost {
            let what = format!("blocks {block} to {} are already in use for something else", block + count - 1);
            let remedy = "the file loses them: they become a hole";
            self.findings.damage("file data", block * BLOCK_BYTES, inode, what, remedy);
            if let Some(examined) = self.inodes.get_mut(&inode) {
                examined.map.unmap(file_block, file_block + count);
                examined.rewrite = true;
            }
            overlapping.insert(inode);
        }
        for (inode, file_block) in given_up {
            if let Some(examined) = self.inodes.get_mut(&inode) {
                examined.map.unmap(file_block, file_block + 1);
            }
        }
        self.used = fixed.bits(self.ground.disk.geometry().blocks);
        let shared = Counts::default();
        for run in self.inodes.values().flat_map(|examined| examined.map.iter()) {
            for block in run.block..run.block + run.count as u64 {
                if self.used.set(block) {
                    shared.again(block);
                }
            }
        }
        self.shared = shared.runs();
    }

    /// Values of extended attributes: each in blocks of its own, and what was written there.
    fn claim_values(&mut self, claims: &mut Claims) {
        let mut lost: Vec<(u32, Box<[u8]>, u64, &'static str)> = Vec::new();
        for examined in self.by_certainty() {
            for (name, block, count) in examined.values.runs() {
                if !claims.claim(block, count).is_empty() {
                    lost.push((examined.inode, name.into(), block, "its blocks are already in use for something else"));
                }
            }
        }
        for examined in self.inodes.values() {
            let names: BTreeSet<&[u8]> = examined.values.runs().map(|(name, ..)| name).collect();
            for name in names {
                let Some(&place) = examined.xattrs.get(name) else { continue };
                if !value_is_whole(&self.ground, examined, place) {
                    lost.push((examined.inode, name.into(), place.block(), "its checksum is wrong"));
                }
            }
        }
        for (inode, name, block, why) in lost {
            let Some(examined) = self.inodes.get_mut(&inode) else { continue };
            if examined.xattrs.remove(&name).is_some() {
                let what = format!("\"{}\": {why}", name.escape_ascii());
                let remedy = "the attribute is lost";
                examined.values.remove(&name);
                examined.rewrite = true;
                self.findings.damage("value of an extended attribute", block * BLOCK_BYTES, inode, what, remedy);
            }
        }
    }

    /// Checks the data hash of every last entry that has one. Returns whether an entry was killed.
    fn check_data(&mut self, overlapping: &HashSet<u32>) -> Result<bool> {
        let disk = self.ground.disk;
        let mut torn = Vec::new();
        let mut room = [0; BLOCK_BYTES as usize];
        for examined in self.inodes.values() {
            let (Some(place), Some(size_before)) = (examined.last.place, examined.last.hashed_after_bytes) else {
                continue;
            };
            let owned = Owned { key: disk.key(), inode: examined.inode, generation: examined.generation };
            if !examined.lossy
                && !overlapping.contains(&examined.inode)
                && !data_is_whole(disk, owned, place, size_before, &examined.map, &mut room)?
            {
                torn.push((examined.inode, place));
            }
        }
        let clean = self.ground.clean();
        for &(inode, place) in &torn {
            if clean {
                let what = "the bytes that the log's last entry speaks of are not those that were written";
                let remedy = "they are kept as they are, and may be wrong";
                self.findings.damage("file data", place.offset_bytes(), inode, what, remedy);
                if let Some(examined) = self.inodes.get_mut(&inode) {
                    examined.rewrite = true;
                }
                continue;
            }
            self.examine_again(inode, Some(place))?;
            if let Some(examined) = self.inodes.get_mut(&inode) {
                examined.kill = Some(place);
            }
        }
        Ok(!clean && !torn.is_empty())
    }

    /// Compares what a clean detach saved with what is so.
    pub(super) fn check_maps(&mut self) -> Result<()> {
        let Some(summary) = self.ground.summary else { return Ok(()) };
        let disk = self.ground.disk;
        let geometry = *disk.geometry();
        let remedy = "it is written anew; nothing is lost";
        if let Some(saved) = &self.ground.saved_used {
            let at = geometry.saved_blocks_start * BLOCK_BYTES;
            let nobody = saved.without(&self.used).count();
            if nobody > 0 {
                let what = format!("{nobody} blocks were in use when the volume was closed, and belong to nobody now");
                let remedy = "they are free from now on: what they held is lost, if no other finding says more";
                self.findings.damage("saved block map", at, 0, what, remedy);
            }
            differ(&mut self.findings, "saved block map", at, self.used.without(saved));
            let free = geometry.blocks - saved.count();
            if free != summary.blocks_free {
                let what = format!("it says {} free blocks, its map {free}", summary.blocks_free);
                self.findings.damage("summary", SUMMARY_AT, 0, what, remedy);
            }
        }
        match read_list(disk, summary.shares)? {
            None => self.findings.damage(
                "list of shared blocks",
                summary.shares.block * BLOCK_BYTES,
                0,
                "it is damaged",
                remedy,
            ),
            Some(list) if list != self.shared => {
                let what = "it says something else than the logs";
                self.findings.damage("list of shared blocks", summary.shares.block * BLOCK_BYTES, 0, what, remedy);
            }
            Some(_) => {}
        }
        let at = geometry.saved_inodes_start * BLOCK_BYTES;
        let Some(used) = Map::Inodes.load(disk, &summary)? else {
            self.findings.damage("saved inode map", at, 0, "its hash is wrong", remedy);
            return Ok(());
        };
        let in_use = Bits::new(geometry.inodes());
        self.inodes.keys().chain(&self.release).chain(&[0]).for_each(|&inode| {
            let _ = in_use.set(inode as u64);
        });
        let wrong: BTreeSet<u64> = used.without(&in_use).chain(in_use.without(&used)).collect();
        differ(&mut self.findings, "saved inode map", at, wrong.into_iter());
        if used.count() != summary.inodes_used {
            let what = format!("it says {} inodes in use, its map {}", summary.inodes_used, used.count());
            self.findings.damage("summary", SUMMARY_AT + 8, 0, what, remedy);
        }
        Ok(())
    }
}

/// Whether the blocks of an attribute's value hold what was written.
fn value_is_whole(ground: &super::trace::Ground<'_>, examined: &Examined, place: LinePlace) -> bool {
    let owned = Owned { key: ground.disk.key(), inode: examined.inode, generation: examined.generation };
    let mut block = [0; BLOCK_BYTES as usize];
    let Ok(bytes) = ground.disk.read_entry(place, &mut block) else { return false };
    let Some(Payload::LargeXattr { value, .. }) = Entry::decode(owned, bytes).map(|entry| entry.payload) else {
        return false;
    };
    let mut found = vec![0; value.bytes as usize];
    read_value(ground.disk, owned, &value, &mut found).is_ok()
}

fn differ(
    findings: &mut super::report::Findings,
    structure: &'static str,
    at: u64,
    mut wrong: impl Iterator<Item = u64>,
) {
    let Some(first) = wrong.next() else { return };
    let what = format!("it is wrong in {} places, the first is {first}", wrong.count() + 1);
    findings.damage(structure, at + first / 8, 0, what, "it is written anew; nothing is lost");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn claims_agree_with_a_set() {
        let mut state = 3_u64;
        let mut random = |below: u64| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) % below
        };
        for _ in 0..200 {
            let mut claims = Claims::default();
            let mut set = HashSet::new();
            for _ in 0..20 {
                let (start, count) = (random(100), 1 + random(20));
                let known = claims.taken(start, count);
                let mut taken: Vec<u64> = claims.claim(start, count).iter().flat_map(|&(from, to)| from..to).collect();
                taken.sort_unstable();
                let expected: Vec<u64> = (start..start + count).filter(|block| set.contains(block)).collect();
                assert_eq!(taken, expected);
                assert_eq!(known.iter().flat_map(|&(from, to)| from..to).collect::<Vec<u64>>(), expected);
                set.extend(start..start + count);
                assert_eq!(claims.bits(200).count(), set.len() as u64);
            }
        }
    }
}
