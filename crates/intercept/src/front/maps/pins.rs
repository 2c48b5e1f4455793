//! What keeps what is mapped: a map holds its file by the open file description that it was made from, as the kernel's does, and pins its
//! blocks. So it goes on when the descriptor is closed and the last name removed, and locks of the description stay as long.
//!
//! Each map that is made has a pin of its own; when nothing of the map is left the pin is given back, and the description if no
//! descriptor and no other map has it. A map in the making has one before it is in the list ([`Hold`]).
//!
//! Everything here is under the lock of [`regions`](super::regions), and the descriptor is looked at under it: who closes looks at the
//! maps behind that, so that one of the two sees the other.

use super::regions::{self, Part, Region, locked};
use super::{Holes, Pinned, Wish, lazy};
use crate::entry;
use crate::front::Front;
use crate::front::call::Call;
use crate::front::table::{self, OpenFile, Table};
use gannet_vfs::shared::Description;
use gannet_vfs::{Errno, FileSystem, MapAccess, MapToken, MappedExtent, NodeId};
use std::collections::BTreeMap;

/// What one map, or what is left of it, keeps.
#[derive(Clone, Copy)]
pub(super) struct Pin {
    pub(super) mount: usize,
    pub(super) description: Description,
    /// Of its blocks; none yet, or none could be had.
    pub(super) token: Option<MapToken>,
    /// How many pieces of the map are in the list.
    pieces: usize,
}

impl Pin {
    /// That of a map in the making.
    pub(super) fn new(mount: usize, description: Description) -> Self {
        Self { mount, description, token: None, pieces: 0 }
    }
}

/// All pins; regions name them by their places.
#[derive(Clone, Default)]
pub(super) struct Pins {
    list: Vec<Option<Pin>>,
    /// Places in the list that are free.
    free: Vec<usize>,
    /// How many there are of each description, by mount and word.
    of_each: BTreeMap<(usize, u64), usize>,
    /// How many are of maps in the making.
    pub(super) in_the_making: usize,
}

impl Pins {
    pub(super) fn put(&mut self, pin: Pin) -> usize {
        *self.of_each.entry((pin.mount, pin.description.word())).or_default() += 1;
        let index = self.free.pop().unwrap_or(self.list.len());
        if index == self.list.len() {
            self.list.push(None);
        }
        self.list[index] = Some(pin);
        index
    }

    pub(super) fn take(&mut self, index: usize) -> Option<Pin> {
        let pin = self.list.get_mut(index)?.take()?;
        self.free.push(index);
        let of_it = (pin.mount, pin.description.word());
        match self.of_each.get_mut(&of_it) {
            Some(count) if *count > 1 => *count -= 1,
            _ => drop(self.of_each.remove(&of_it)),
        }
        Some(pin)
    }

    /// All of them; nothing keeps anything any more.
    fn take_all(&mut self) -> impl Iterator<Item = Pin> + use<> {
        self.free = Vec::new();
        self.of_each = BTreeMap::new();
        core::mem::take(&mut self.list).into_iter().flatten()
    }

    /// A piece more of its map is in the list.
    pub(super) fn add_piece(&mut self, index: usize) {
        if let Some(Some(pin)) = self.list.get_mut(index) {
            pin.pieces += 1;
        }
    }

    /// A piece is taken from the list; true if there is no other.
    pub(super) fn take_piece(&mut self, index: usize) -> bool {
        let Some(Some(pin)) = self.list.get_mut(index) else { return false };
        pin.pieces = pin.pieces.saturating_sub(1);
        pin.pieces == 0
    }

    /// Those that nothing in the list has, out of it.
    fn take_unused(&mut self) -> Vec<Pin> {
        let is_unused = |pin: &Option<Pin>| pin.is_some_and(|pin| pin.pieces == 0);
        let unused: Vec<usize> = (0..self.list.len()).filter(|&index| is_unused(&self.list[index])).collect();
        unused.into_iter().filter_map(|index| self.take(index)).collect()
    }

    /// All of them, with their places.
    pub(super) fn iter(&self) -> impl Iterator<Item = (usize, &Pin)> {
        self.list.iter().enumerate().filter_map(|(index, pin)| pin.as_ref().map(|pin| (index, pin)))
    }

    /// Whether any is of this description.
    pub(super) fn hold(&self, mount: usize, description: Description) -> bool {
        self.of_each.contains_key(&(mount, description.word()))
    }
}

/// The pin of a map in the making. Dropped: it is given back.
pub(super) struct Hold {
    front: &'static Front,
    table: &'static Table,
    index: usize,
    pub(super) mount: usize,
    pub(super) description: Description,
}

impl Hold {
    /// Of the file that a descriptor stands for. `EBADF` if it no longer does.
    pub(super) fn of_descriptor(call: &Call<'_>, descriptor: usize, file: &OpenFile) -> Result<Self, Errno> {
        let table = call.table();
        let is_it = |now: OpenFile| (now.mount, now.description) == (file.mount, file.description);
        let still = || table.get(descriptor as u32 as usize).is_some_and(is_it);
        Self::if_so(call, file.mount, file.description, |_| still()).ok_or(Errno::BADF)
    }

    /// Of the file that a part of a map shows. `EFAULT` if nothing of its file is mapped any more.
    pub(super) fn of_part(call: &Call<'_>, part: &Part) -> Result<Self, Errno> {
        let Part { mount, description, .. } = *part;
        Self::if_so(call, mount, description, |pins| pins.hold(mount, description)).ok_or(Errno::FAULT)
    }

    fn if_so(
        call: &Call<'_>,
        mount: usize,
        description: Description,
        condition: impl FnOnce(&Pins) -> bool,
    ) -> Option<Self> {
        let index = locked(|maps| {
            condition(&maps.pins).then(|| {
                maps.pins.in_the_making += 1;
                maps.pins.put(Pin::new(mount, description))
            })
        })?;
        Some(Self { front: call.front, table: call.table(), index, mount, description })
    }

    /// Pins what the map is to show.
    pub(super) fn pin(self, fs: &dyn FileSystem, node: NodeId, wish: &Wish) -> Result<Pinned, Errno> {
        let mut extents: Vec<MappedExtent> = Vec::new();
        let mut pinned = |access| {
            extents.clear();
            fs.map(node, access, wish.offset, wish.length as u64, &mut |extent| extents.push(*extent))
                .map_err(|error| error.errno())
        };
        let lazy = match wish.holes {
            Holes::Fill => false,
            Holes::Leave => wish.writes(),
            Holes::Judge => lazy::is_wanted(fs, node, wish),
        };
        let (token, lazy) = match lazy {
            true => (pinned(MapAccess::WriteAroundHoles)?, true),
            false if !wish.writes() => (pinned(MapAccess::Read)?, false),
            false => match pinned(MapAccess::Write) {
                // Where there is no room for all it may do for what is used.
                Err(Errno::NOSPC) if wish.holes != Holes::Fill && !lazy::somebody_blocks() => {
                    (pinned(MapAccess::WriteAroundHoles)?, true)
                }
                token => (token?, false),
            },
        };
        if lazy && wish.holes == Holes::Judge {
            // The first of them, perhaps: calls are looked at from now on for what they name.
            entry::mark_all_descriptors();
        }
        locked(|maps| {
            if let Some(Some(pin)) = maps.pins.list.get_mut(self.index) {
                pin.token = Some(token);
            }
        });
        Ok(Pinned { hold: self, extents, lazy })
    }

    /// The map is made: it takes the place of what was there, in one step, so that nobody finds nothing there in between.
    pub(super) fn put(self, call: &Call<'_>, region: Region) {
        let replaced = locked(|maps| {
            maps.pins.in_the_making -= 1;
            let replaced = maps.take_out(region.start, region.end);
            maps.add(Region { pin: self.index, ..region });
            replaced
        });
        core::mem::forget(self);
        for pin in replaced {
            give_back(call.front, call.table(), &pin);
        }
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        let pin = locked(|maps| {
            maps.pins.in_the_making -= 1;
            maps.pins.take(self.index)
        });
        if let Some(pin) = pin {
            give_back(self.front, self.table, &pin);
        }
    }
}

/// Nothing is left of a pin's map, and the pin is out of the list.
pub(super) fn give_back(front: &Front, table: &Table, pin: &Pin) {
    if let (Some(token), Ok(fs)) = (pin.token, front.file_system(pin.mount)) {
        let _ = fs.unmap(token);
    }
    front.end_use(table, pin.mount, pin.description, true);
}

/// Whether a map, or one in the making, holds this description.
pub(crate) fn hold(mount: usize, description: Description) -> bool {
    regions::any() && locked(|maps| maps.pins.hold(mount, description))
}

/// The descriptions that maps of a volume hold, some of them several times.
///
/// # Safety
/// The caller has the lock ([`around_fork`](super::around_fork)), or is the only thread.
pub(crate) unsafe fn held_of(mount: usize) -> impl Iterator<Item = Description> {
    // SAFETY: nobody else changes them meanwhile, as the caller says.
    let maps = unsafe { regions::MAPS.look() };
    let pins = maps.into_iter().flat_map(|maps| maps.pins.iter());
    pins.filter(move |(_, pin)| pin.mount == mount).map(|(_, pin)| pin.description)
}

/// The process ends: its maps no longer hold files. Their blocks stay pinned until it is gone.
pub(crate) fn end(front: &Front) {
    if !regions::any() {
        return;
    }
    for pin in locked(|maps| maps.pins.take_all()) {
        front.end_use(table::of_process(), pin.mount, pin.description, true);
    }
}

/// A forked child has its parent's maps, with their pins and descriptions on volumes that were `given` before the fork. Others, where
/// there was no place for the child then, it takes at once, while the parent most likely still has them.
pub(crate) fn after_fork_in_child(front: &Front, given: &[usize]) {
    if !regions::any() {
        return;
    }
    let mut abandoned: Vec<Pin> = Vec::new();
    locked(|maps| {
        // What other threads of the parent were making is nobody's here.
        maps.pins.in_the_making = 0;
        abandoned.extend(maps.pins.take_unused().into_iter().filter(|pin| given.contains(&pin.mount)));
        for pin in maps.pins.list.iter_mut().flatten().filter(|pin| !given.contains(&pin.mount)) {
            pin.token = None;
            if let Ok(fs) = front.file_system(pin.mount) {
                let _ = fs.shared().adopt(pin.description);
            }
        }
        let others: Vec<Region> = maps.iter().filter(|region| !given.contains(&region.mount)).copied().collect();
        for region in others {
            let length = (region.end - region.start) as u64;
            let access = if region.is_writable() { MapAccess::Inherited } else { MapAccess::Read };
            let pinned = front.file_system(region.mount).and_then(|fs| {
                fs.map(region.node, access, region.offset, length, &mut |_| {}).map_err(|error| error.errno())
            });
            // Pieces of one map get a pin each.
            let Region { mount, description, .. } = region;
            maps.change_pin(region.start, Pin { token: pinned.ok(), ..Pin::new(mount, description) });
        }
        // They are the parent's.
        maps.pins.take_unused();
    });
    for pin in abandoned {
        give_back(front, table::of_process(), &pin);
    }
}
