//! Which descriptor of this process refers to which description, and the working directory.
//!
//! A `vfork` child shares our memory but not its parent's descriptors: from its first change on, or its `execve`, it has
//! a table and a working directory of its own, named in the thread's record.

use super::session::{DescriptionId, Shared};
use crate::entry::{self, DESCRIPTOR_LIMIT};
use crate::number;
use crate::raw::{is_error, syscall};
use crate::thread::Record;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use gannet_vfs::NodeId;

/// What belongs to a process: one in static memory, one more per `vfork` child.
#[repr(C)]
pub(crate) struct Table {
    /// Description + 1 per descriptor, 0: not ours.
    entries: [AtomicU32; DESCRIPTOR_LIMIT],
    /// Above the highest descriptor that was ever ours.
    used: AtomicU32,
    /// Mount + 1 of the working directory, 0: on the host.
    directory_mount: AtomicU32,
    directory_number: AtomicU64,
    directory_generation: AtomicU32,
}

static TABLE: Table = Table {
    entries: [const { AtomicU32::new(0) }; DESCRIPTOR_LIMIT],
    used: AtomicU32::new(0),
    directory_mount: AtomicU32::new(0),
    directory_number: AtomicU64::new(0),
    directory_generation: AtomicU32::new(0),
};

/// The process's own table.
pub(crate) fn of_process() -> &'static Table {
    &TABLE
}

/// The table to read.
pub(crate) fn current(record: &Record) -> &'static Table {
    if record.private_table == 0 {
        &TABLE
    } else {
        // SAFETY: made by `make_private` and unmapped only when the field is cleared.
        unsafe { &*(record.private_table as *const Table) }
    }
}

/// Gives a `vfork` child its own table, with a reference of its own on everything in it.
pub(crate) fn make_private(record: &mut Record, shared: &Shared) -> Option<()> {
    if record.private_table != 0 {
        return Some(());
    }
    const PROT_READ_WRITE: usize = 3;
    const MAP_PRIVATE_ANONYMOUS: usize = 0x22;
    // SAFETY: a new map of zeros, which is a valid table.
    let address = unsafe {
        syscall(number::MMAP, [0, size_of::<Table>(), PROT_READ_WRITE, MAP_PRIVATE_ANONYMOUS, usize::MAX, 0])
    };
    if is_error(address) {
        return None;
    }
    // SAFETY: as above.
    let copy = unsafe { &*(address as *const Table) };
    for (descriptor, id) in TABLE.iter() {
        shared.add_reference(id);
        copy.entries[descriptor].store(id.0 + 1, Ordering::Relaxed);
    }
    copy.used.store(TABLE.used.load(Ordering::Relaxed), Ordering::Relaxed);
    copy.set_directory(TABLE.directory());
    record.private_table = address as usize;
    Some(())
}

/// Forgets the table of a `vfork` child that is gone. The references are its successor's, or were released by its exit.
pub(crate) fn drop_private(record: &mut Record) {
    let address = core::mem::take(&mut record.private_table);
    if address != 0 {
        // SAFETY: made by `make_private`; nobody else knows it.
        unsafe { syscall(number::MUNMAP, [address, size_of::<Table>()]) };
    }
}

/// A process forked from a `vfork` child: what was private to that is now its own table.
pub(crate) fn adopt_private(record: &mut Record) {
    let address = record.private_table;
    if address == 0 {
        return;
    }
    // SAFETY: made by `make_private`; the fork copied it.
    let private = unsafe { &*(address as *const Table) };
    let used = TABLE.used.load(Ordering::Relaxed).max(private.used.load(Ordering::Relaxed));
    for (descriptor, entry) in TABLE.entries[..(used as usize).min(DESCRIPTOR_LIMIT)].iter().enumerate() {
        entry.store(private.entries[descriptor].load(Ordering::Relaxed), Ordering::Relaxed);
    }
    TABLE.used.store(used, Ordering::Relaxed);
    TABLE.set_directory(private.directory());
    drop_private(record);
}

impl Table {
    /// The description behind a descriptor.
    #[inline]
    pub(crate) fn get(&self, descriptor: usize) -> Option<DescriptionId> {
        let entry = self.entries.get(descriptor)?.load(Ordering::Acquire);
        entry.checked_sub(1).map(DescriptionId)
    }

    /// Makes a descriptor ours; returns what it referred to before.
    pub(crate) fn set(&self, descriptor: usize, id: DescriptionId) -> Option<DescriptionId> {
        let before = self.entries.get(descriptor)?.swap(id.0 + 1, Ordering::AcqRel);
        self.used.fetch_max(descriptor as u32 + 1, Ordering::AcqRel);
        entry::mark_descriptor(descriptor);
        before.checked_sub(1).map(DescriptionId)
    }

    /// Makes a descriptor no longer ours; returns what it referred to.
    pub(crate) fn take(&self, descriptor: usize) -> Option<DescriptionId> {
        let before = self.entries.get(descriptor)?.swap(0, Ordering::AcqRel);
        if before != 0 && core::ptr::eq(self, &TABLE) {
            entry::unmark_descriptor(descriptor);
        }
        before.checked_sub(1).map(DescriptionId)
    }

    /// All descriptors that are ours.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (usize, DescriptionId)> + '_ {
        let used = self.used.load(Ordering::Acquire) as usize;
        (0..used.min(DESCRIPTOR_LIMIT)).filter_map(|descriptor| self.get(descriptor).map(|id| (descriptor, id)))
    }

    /// Mount and inode of the working directory, if it is in a volume.
    #[inline]
    pub(crate) fn directory(&self) -> Option<(usize, NodeId)> {
        let mount = self.directory_mount.load(Ordering::Acquire).checked_sub(1)?;
        let (number, generation) =
            (self.directory_number.load(Ordering::Relaxed), self.directory_generation.load(Ordering::Relaxed));
        Some((mount as usize, NodeId::new(number, generation)))
    }

    /// Moves the working directory; `None`: to the host.
    pub(crate) fn set_directory(&self, directory: Option<(usize, NodeId)>) {
        let Some((mount, node)) = directory else {
            self.directory_mount.store(0, Ordering::Release);
            return;
        };
        self.directory_number.store(node.number, Ordering::Relaxed);
        self.directory_generation.store(node.generation, Ordering::Relaxed);
        self.directory_mount.store(mount as u32 + 1, Ordering::Release);
    }
}
