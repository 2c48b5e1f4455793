//! Open file descriptions, shared by all processes below one `gannet run`.
//!
//! They live in a memory file that every process of the tree inherits and maps. A slot is claimed and counted with atomic
//! operations only, so that a process killed at any instruction harms no other; what it alone referred to stays
//! claimed until the tree ends. Nothing in the map is trusted beyond its bounds: indexes are checked, and a slot's
//! content is used only as arguments of calls that check them.

use crate::number;
use crate::raw::{is_error, syscall};
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use gannet_vfs::{FileType, NodeId};

/// Descriptions in one tree.
pub(crate) const DESCRIPTIONS_MAX: u32 = 1 << 16;
/// Record locks in one tree.
pub(crate) const RECORD_LOCKS_MAX: usize = 4096;

/// An open file description. 64 bytes, zero when free.
#[repr(C, align(64))]
pub(crate) struct Description {
    /// Descriptors that refer to it, in all processes. 0: free.
    pub(crate) references: AtomicU32,
    /// Status flags of `open`, as F_GETFL tells them.
    pub(crate) flags: AtomicU32,
    /// Offset in bytes; for directories the cookie.
    pub(crate) offset: AtomicU64,
    number: AtomicU64,
    generation: AtomicU32,
    /// Index of the mount, type of the file.
    mount_and_type: AtomicU32,
    /// The thread that moves the offset, or 0.
    offset_owner: AtomicU32,
    /// `flock`: 0 none, 1 shared, 2 exclusive.
    pub(crate) whole_lock: AtomicU32,
    /// It owns record locks itself.
    pub(crate) has_own_locks: AtomicU32,
    reserved: [AtomicU32; 3],
}
const _: () = assert!(size_of::<Description>() == 64);

/// A lock of `fcntl`. Under the session's lock.
#[repr(C)]
pub(crate) struct RecordLock {
    /// The process that holds it, or the description + 1 with the highest bit set; 0: free.
    pub(crate) owner: AtomicU64,
    /// The inode's number and, above it, the mount.
    pub(crate) node: AtomicU64,
    /// First byte.
    pub(crate) start: AtomicU64,
    /// Behind the last byte.
    pub(crate) end: AtomicU64,
    /// 0 read, 1 write.
    pub(crate) exclusive: AtomicU32,
    /// The process, for F_GETLK.
    pub(crate) process: AtomicU32,
}

/// The shared map.
#[repr(C)]
pub(crate) struct Shared {
    magic: AtomicU64,
    /// Above the highest description ever used.
    pub(crate) used: AtomicU32,
    hint: AtomicU32,
    lock_owner: AtomicU32,
    /// Above the highest record lock ever used.
    pub(crate) locks_used: AtomicU32,
    padding: [AtomicU64; 5],
    pub(crate) descriptions: [Description; DESCRIPTIONS_MAX as usize],
    pub(crate) locks: [RecordLock; RECORD_LOCKS_MAX],
}

const MAGIC: u64 = u64::from_le_bytes(*b"GNTRUN01");

/// Names a description.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct DescriptionId(pub(crate) u32);

impl Shared {
    /// Maps the session behind `descriptor`, making it if it is new.
    pub(crate) fn map(descriptor: i32) -> Option<&'static Shared> {
        let length = size_of::<Shared>().next_multiple_of(4096);
        const PROT_READ_WRITE: usize = 3;
        const MAP_SHARED: usize = 1;
        // SAFETY: grows our own memory file and maps it; zeros are a valid `Shared`.
        let address = unsafe {
            if is_error(syscall(number::FTRUNCATE, [descriptor as usize, length])) {
                return None;
            }
            syscall(number::MMAP, [0, length, PROT_READ_WRITE, MAP_SHARED, descriptor as usize, 0])
        };
        if is_error(address) {
            return None;
        }
        // SAFETY: mapped for the life of the process; all fields are atomic.
        let shared = unsafe { &*(address as *const Shared) };
        let found = shared.magic.compare_exchange(0, MAGIC, Ordering::AcqRel, Ordering::Acquire);
        (found.is_ok() || found == Err(MAGIC)).then_some(shared)
    }

    /// The description `id`.
    pub(crate) fn get(&self, id: DescriptionId) -> Option<&Description> {
        self.descriptions.get(id.0 as usize).filter(|description| description.references.load(Ordering::Relaxed) != 0)
    }

    /// A new description with one reference. `None` if there are too many.
    pub(crate) fn open(&self, mount: usize, node: NodeId, file_type: FileType, flags: u32) -> Option<DescriptionId> {
        let start = self.hint.load(Ordering::Relaxed) % DESCRIPTIONS_MAX;
        for step in 0..DESCRIPTIONS_MAX {
            let index = (start + step) % DESCRIPTIONS_MAX;
            let slot = &self.descriptions[index as usize];
            if slot.references.load(Ordering::Relaxed) != 0
                || slot.references.compare_exchange(0, 1, Ordering::AcqRel, Ordering::Relaxed).is_err()
            {
                continue;
            }
            slot.flags.store(flags, Ordering::Relaxed);
            slot.offset.store(0, Ordering::Relaxed);
            slot.number.store(node.number, Ordering::Relaxed);
            slot.generation.store(node.generation, Ordering::Relaxed);
            slot.mount_and_type.store(mount as u32 | (file_type as u32) << 16, Ordering::Relaxed);
            slot.offset_owner.store(0, Ordering::Relaxed);
            slot.has_own_locks.store(0, Ordering::Relaxed);
            slot.whole_lock.store(0, Ordering::Release);
            self.used.fetch_max(index + 1, Ordering::AcqRel);
            self.hint.store(index + 1, Ordering::Relaxed);
            return Some(DescriptionId(index));
        }
        None
    }

    /// One more descriptor refers to it.
    pub(crate) fn add_reference(&self, id: DescriptionId) {
        if let Some(description) = self.get(id) {
            description.references.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// One descriptor fewer. `Some` with mount and inode when it was the last on this inode in the tree.
    pub(crate) fn release(&self, id: DescriptionId) -> Option<(usize, NodeId)> {
        let description = self.get(id)?;
        let (mount, node) = (description.mount(), description.node());
        if description.references.load(Ordering::Acquire) == 1 {
            description.whole_lock.store(0, Ordering::Release);
        }
        // Never below zero, whatever another process stored here.
        let before = description
            .references
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |count| count.checked_sub(1))
            .ok()?;
        if before != 1 {
            return None;
        }
        self.hint.fetch_min(id.0, Ordering::Relaxed);
        (!self.is_in_use(mount, node)).then_some((mount, node))
    }

    /// Whether any description refers to the inode.
    pub(crate) fn is_in_use(&self, mount: usize, node: NodeId) -> bool {
        let used = (self.used.load(Ordering::Acquire) as usize).min(self.descriptions.len());
        self.descriptions[..used].iter().any(|other| {
            other.references.load(Ordering::Acquire) != 0
                && other.number.load(Ordering::Relaxed) == node.number
                && other.node() == node
                && other.mount() == mount
        })
    }

    /// Runs `work` while no other thread of the tree does. The lock of a dead thread is taken over.
    pub(crate) fn locked<T>(&self, work: impl FnOnce(&Self) -> T) -> T {
        acquire(&self.lock_owner);
        let result = work(self);
        self.lock_owner.store(0, Ordering::Release);
        result
    }
}

impl Description {
    /// Index of its mount.
    pub(crate) fn mount(&self) -> usize {
        (self.mount_and_type.load(Ordering::Relaxed) & 0xffff) as usize
    }

    /// Its inode.
    pub(crate) fn node(&self) -> NodeId {
        NodeId::new(self.number.load(Ordering::Relaxed), self.generation.load(Ordering::Relaxed))
    }

    /// The inode's type.
    pub(crate) fn file_type(&self) -> FileType {
        FileType::from_bits((self.mount_and_type.load(Ordering::Relaxed) >> 16) as u8).unwrap_or(FileType::Regular)
    }

    /// Runs `work` with the offset; what it returns first becomes the offset. Others that move it wait.
    pub(crate) fn with_offset<T>(&self, work: impl FnOnce(u64) -> (u64, T)) -> T {
        acquire(&self.offset_owner);
        let (offset, result) = work(self.offset.load(Ordering::Relaxed));
        self.offset.store(offset, Ordering::Relaxed);
        self.offset_owner.store(0, Ordering::Release);
        result
    }
}

/// Takes a lock word that holds its owner's thread number.
fn acquire(word: &AtomicU32) {
    let me = crate::entry::thread_number();
    let mut spins = 0u32;
    loop {
        let owner = match word.compare_exchange_weak(0, me, Ordering::Acquire, Ordering::Relaxed) {
            Ok(_) => return,
            Err(owner) => owner,
        };
        spins += 1;
        if !spins.is_multiple_of(64) {
            core::hint::spin_loop();
            continue;
        }
        const ESRCH: isize = -3;
        // SAFETY: signal 0 only asks whether the thread exists.
        let gone = owner != 0 && unsafe { syscall(number::TKILL, [owner as usize, 0]) } == ESRCH;
        if gone && word.compare_exchange(owner, me, Ordering::Acquire, Ordering::Relaxed).is_ok() {
            return;
        }
        // SAFETY: gives the processor away.
        unsafe { syscall(number::SCHED_YIELD, []) };
    }
}
