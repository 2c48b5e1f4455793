//! The list of a process's maps: what lies at an address is found without a look at all of them, however many there are.
//!
//! Everything here is under the lock of [`regions`](super::regions).

use super::PROT_WRITE;
use super::pins::{Pin, Pins};
use gannet_vfs::NodeId;
use gannet_vfs::shared::Description;
use std::collections::BTreeMap;

/// A map, or what is left of one.
#[derive(Clone, Copy)]
pub(super) struct Region {
    pub(super) start: usize,
    pub(super) end: usize,
    /// Where the pages begin that lay behind the end of the file when it was mapped; the end or more if there are none.
    pub(super) reached: usize,
    pub(super) mount: usize,
    pub(super) node: NodeId,
    /// What it was made from.
    pub(super) description: Description,
    /// Where in the file `start` is.
    pub(super) offset: u64,
    /// Index of the pin, shared by the pieces of one map.
    pub(super) pin: usize,
    pub(super) shared: bool,
    /// What the kernel allows there: as it was mapped with, or what `mprotect` said since.
    pub(super) protection: usize,
    /// It was mapped for writing, whatever it allows by now.
    pub(super) stores: bool,
    /// The descriptor was open for writing.
    pub(super) writable: bool,
    /// Some of it had no blocks: zeros that are nobody's.
    pub(super) holes: bool,
    /// Some of it had no blocks and gets them when it is used: see [`lazy`](super::lazy).
    pub(super) lazy: bool,
}

impl Region {
    /// Stores through it change the file now.
    pub(super) fn is_writable(&self) -> bool {
        self.shared && self.protection & PROT_WRITE != 0
    }

    /// Whether it is a piece of the same map as `part`, of the same kind: where one lies in memory and in the file says where the other does.
    pub(super) fn belongs_to(&self, part: &Part) -> bool {
        (self.mount, self.description, self.shared) == (part.mount, part.description, part.shared)
            && (self.protection, self.writable) == (part.protection, part.writable)
            && self.offset.wrapping_sub(part.offset) == (self.start as u64).wrapping_sub(part.start as u64)
    }

    /// What of it lies behind an address.
    pub(super) fn from(&self, address: usize) -> Part {
        let Region { end, mount, node, description, shared, protection, stores, writable, lazy, .. } = *self;
        let start = address.max(self.start);
        Part {
            start,
            end,
            mount,
            node,
            description,
            shared,
            protection,
            stores,
            writable,
            lazy,
            offset: self.offset + (start - self.start) as u64,
        }
    }
}

/// Part of a map, from an address on.
pub(super) struct Part {
    pub(super) start: usize,
    pub(super) end: usize,
    pub(super) mount: usize,
    pub(super) node: NodeId,
    pub(super) description: Description,
    pub(super) shared: bool,
    pub(super) protection: usize,
    pub(super) stores: bool,
    pub(super) writable: bool,
    pub(super) lazy: bool,
    pub(super) offset: u64,
}

#[derive(Clone, Default)]
pub(super) struct Maps {
    /// By their starts; none reaches into the next.
    regions: BTreeMap<usize, Region>,
    /// How many of them have holes.
    with_holes: usize,
    /// And how many are filled when they are used.
    lazy: usize,
    pub(super) pins: Pins,
}

impl Maps {
    /// How many pieces there are.
    pub(super) fn len(&self) -> usize {
        self.regions.len()
    }

    /// All of them, by their addresses.
    pub(super) fn iter(&self) -> impl DoubleEndedIterator<Item = &Region> {
        self.regions.values()
    }

    /// Whether a file that is written where it had no blocks can concern any.
    pub(super) fn have_holes(&self) -> bool {
        self.with_holes > 0
    }

    /// How many have holes that are filled when they are used.
    pub(super) fn lazy(&self) -> usize {
        self.lazy
    }

    /// What begins at an address.
    pub(super) fn beginning_at(&self, start: usize) -> Option<&Region> {
        self.regions.get(&start)
    }

    /// What begins below an address, the highest of it.
    pub(super) fn before(&self, address: usize) -> Option<&Region> {
        self.regions.range(..address).next_back().map(|(_, region)| region)
    }

    /// What has bytes in a range, by its addresses.
    pub(super) fn within(&self, start: usize, end: usize) -> impl Iterator<Item = &Region> {
        // What begins below may reach into it.
        let first = self.before(start).filter(|region| start < region.end).map_or(start, |region| region.start);
        // In no bytes there is nothing, also inside of one.
        let end = if start < end { end } else { first };
        self.regions.range(first..end).map(|(_, region)| region)
    }

    /// Adds a map, or a piece of one, with its pin. Nothing may lie there.
    pub(super) fn add(&mut self, region: Region) {
        self.pins.add_piece(region.pin);
        self.with_holes += usize::from(region.holes);
        self.lazy += usize::from(region.lazy);
        self.regions.insert(region.start, region);
    }

    /// Takes the piece that begins at an address; true if its pin has no other.
    fn take(&mut self, start: usize) -> Option<(Region, bool)> {
        let region = self.regions.remove(&start)?;
        self.with_holes -= usize::from(region.holes);
        self.lazy -= usize::from(region.lazy);
        Some((region, self.pins.take_piece(region.pin)))
    }

    /// Makes of the piece that an address is inside of two, if it is one that `concerns`: up to there, and from there on.
    fn split(&mut self, at: usize, concerns: impl FnOnce(&Region) -> bool) {
        let Some((_, region)) = self.regions.range_mut(..at).next_back() else { return };
        if at < region.end && concerns(region) {
            let behind = Region { start: at, offset: region.offset + (at - region.start) as u64, ..*region };
            region.end = at;
            self.add(behind);
        }
    }

    /// Takes out what lies in a range; the pins that nothing is left of.
    pub(super) fn take_out(&mut self, start: usize, end: usize) -> Vec<Pin> {
        let mut given_back: Vec<Pin> = Vec::new();
        self.split(start, |_| true);
        self.split(end, |_| true);
        while let Some((&at, _)) = self.regions.range(start..end).next() {
            if let Some((region, true)) = self.take(at) {
                given_back.extend(self.pins.take(region.pin));
            }
        }
        given_back
    }

    /// What `mprotect` allows in a range from now on.
    pub(super) fn protect(&mut self, start: usize, end: usize, protection: usize) {
        let changes = |region: &Region| region.protection != protection;
        self.split(start, changes);
        self.split(end, changes);
        // What begins below and has this protection already reaches into it at most.
        for (_, region) in self.regions.range_mut(start..end) {
            region.protection = protection;
        }
    }

    /// Drops what is not there any more; the pins stay.
    pub(super) fn keep(&mut self, mut is_there: impl FnMut(&Region) -> bool) {
        let gone: Vec<usize> = self.iter().filter(|region| !is_there(region)).map(|region| region.start).collect();
        for start in gone {
            self.take(start);
        }
    }

    /// Gives a piece a pin of its own. The one that it had stays.
    pub(super) fn change_pin(&mut self, start: usize, pin: Pin) {
        let Some((region, _)) = self.take(start) else { return };
        let pin = self.pins.put(pin);
        self.add(Region { pin, ..region });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Where pieces lie and what they allow, in pages.
    fn told(maps: &Maps) -> Vec<(usize, usize, u64, usize)> {
        maps.iter()
            .map(|region| (region.start >> 12, region.end >> 12, region.offset >> 12, region.protection))
            .collect()
    }

    fn with(ranges: &[(usize, usize)]) -> Maps {
        let mut maps = Maps::default();
        for &(start, end) in ranges {
            let (node, description) = (NodeId::new(1, 1), Description::from_word(u64::MAX).expect("a word"));
            let pin = maps.pins.put(Pin::new(0, description));
            let (start, end) = (start << 12, end << 12);
            let offset = start as u64;
            let (shared, stores, writable) = (true, false, true);
            let (mount, protection, holes, reached) = (0, 1, start == 0, end);
            maps.add(Region {
                start,
                end,
                reached,
                mount,
                node,
                description,
                offset,
                pin,
                shared,
                protection,
                stores,
                writable,
                holes,
                lazy: false,
            });
        }
        maps
    }

    #[test]
    fn pieces_are_split_found_and_counted() {
        let mut maps = with(&[(8, 16), (0, 4), (16, 20)]);
        let within = |maps: &Maps, start: usize, end: usize| {
            maps.within(start << 12, end << 12).map(|region| region.start >> 12).collect::<Vec<_>>()
        };
        assert_eq!(within(&maps, 3, 9), [0, 8]);
        assert_eq!(within(&maps, 4, 8), []);
        assert_eq!(within(&maps, 15, 17), [8, 16]);
        assert_eq!(within(&maps, 30, 5), []);
        assert_eq!(within(&maps, 10, 10), []);
        assert_eq!(within(&maps, 10, 9), []);
        assert_eq!(within(&maps, 8, 8), []);
        // In the middle of one: its pin stays for both halves.
        assert_eq!(maps.take_out(10 << 12, 12 << 12).len(), 0);
        assert_eq!(told(&maps), [(0, 4, 0, 1), (8, 10, 8, 1), (12, 16, 12, 1), (16, 20, 16, 1)]);
        maps.protect(2 << 12, 18 << 12, 3);
        let halves = [(0, 2, 0, 1), (2, 4, 2, 3), (8, 10, 8, 3), (12, 16, 12, 3), (16, 18, 16, 3), (18, 20, 18, 1)];
        assert_eq!(told(&maps), halves);
        maps.protect(17 << 12, 18 << 12, 3);
        assert_eq!(told(&maps), halves);
        assert_eq!(maps.take_out(8 << 12, 10 << 12).len(), 0);
        assert_eq!(maps.take_out(9 << 12, 17 << 12).len(), 1);
        assert!(maps.have_holes());
        assert_eq!(maps.take_out(0, 4 << 12).len(), 1);
        assert!(!maps.have_holes());
        assert_eq!(maps.take_out(0, usize::MAX).len(), 1);
        assert_eq!((maps.len(), maps.pins.iter().count()), (0, 0));
    }
}
