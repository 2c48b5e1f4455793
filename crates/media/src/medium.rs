//! [`Medium`]: the handle to a mapped volume, and the bounds check that every access goes through.

use std::ptr::NonNull;
use std::sync::Arc;

use crate::error::AccessError;
use crate::held::HeldFile;
use crate::join::Joined;
use crate::offset::MediumOffset;
use crate::open::MAGIC_RAMFS;
use crate::processor::WriteBack;
use crate::simulation::Recorder;
use crate::unreadable::Unreadable;

/// Bytes in a cache line, the unit of write-back.
pub(crate) const LINE_BYTES: u64 = 64;

/// How stores are made durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PersistMode {
    /// Persistent memory: non-temporal stores or write-back, then a fence.
    Persistent,
    /// Persistent memory on a platform that flushes its caches when power fails: a fence only.
    PersistentCache,
    /// Memory shared by processes or cached by the kernel: plain stores.
    Plain,
    /// The instructions of `Persistent` on ordinary memory, so that a benchmark pays for them.
    Emulated,
}

/// What a medium is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MediumKind {
    /// A character device that maps persistent or CXL memory.
    DeviceDax,
    /// A file mapped with `MAP_SYNC`.
    FileDax,
    /// A file on tmpfs or ramfs, or a memfd.
    Memory,
    /// A file on hugetlbfs.
    HugeMemory,
    /// A file on a disk file system.
    DiskFile,
    /// Simulated persistent memory.
    Simulated,
    /// A simulated file on a disk file system.
    SimulatedDiskFile,
}

impl MediumKind {
    /// What it is, in words for people.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            MediumKind::DeviceDax => "DAX device",
            MediumKind::FileDax => "file on a DAX file system",
            MediumKind::Memory => "memory (tmpfs)",
            MediumKind::HugeMemory => "memory (hugetlbfs)",
            MediumKind::DiskFile => "file on a disk",
            MediumKind::Simulated | MediumKind::SimulatedDiskFile => "simulated",
        }
    }

    /// What acknowledged operations survive, in words for people.
    #[must_use]
    pub fn survives(self) -> &'static str {
        match self {
            MediumKind::DeviceDax | MediumKind::FileDax => "power loss",
            MediumKind::Memory | MediumKind::HugeMemory => "the death of every process, but not a reboot",
            MediumKind::DiskFile => "the death of every process and a clean reboot, but not power loss",
            MediumKind::Simulated => "simulated power loss",
            MediumKind::SimulatedDiskFile => "simulated power loss, after a sync",
        }
    }
}

/// What a file of this kind is, in words for people: as [`MediumKind::name`], and ramfs by its own.
pub(crate) fn name_in(kind: MediumKind, file: Option<&HeldFile>) -> &'static str {
    let is_ramfs =
        || file.and_then(|file| rustix::fs::fstatfs(file).ok()).is_some_and(|below| below.f_type as u64 == MAGIC_RAMFS);
    if kind == MediumKind::Memory && is_ramfs() { "memory (ramfs)" } else { kind.name() }
}

/// What memory without a name survives.
const WHILE_OPEN: &str = "as long as somebody has it open or mapped";

/// What acknowledged operations on a file of this kind survive.
pub(crate) fn survives_in(kind: MediumKind, file: Option<&HeldFile>) -> &'static str {
    let is_memory = matches!(kind, MediumKind::Memory | MediumKind::HugeMemory);
    let is_nameless = || file.and_then(|file| file.status().ok()).is_some_and(|status| status.st_nlink == 0);
    if is_memory && is_nameless() { WHILE_OPEN } else { kind.survives() }
}

/// The map and the file, shared by all clones of a handle.
#[derive(Debug)]
pub(crate) struct Backing {
    /// Start of the reserved address range, which may begin before the medium for alignment.
    pub(crate) reserved: NonNull<u8>,
    /// Bytes of that range.
    pub(crate) reserved_bytes: usize,
    /// The mapped file, if there is one.
    pub(crate) file: Option<HeldFile>,
    /// What it is; of several, the one that survives least.
    pub(crate) kind: MediumKind,
    /// Where the files lie behind each other, if there are several: the first is `file`.
    pub(crate) members: Vec<Joined>,
}

// SAFETY: the address range belongs to the backing alone and is unmapped when it is dropped; nothing else in it is bound
// to a thread.
unsafe impl Send for Backing {}
// SAFETY: as above.
unsafe impl Sync for Backing {}

impl Drop for Backing {
    fn drop(&mut self) {
        // SAFETY: this is the map that was made for this backing, and no handle is left that could use it.
        let unmapped = unsafe { rustix::mm::munmap(self.reserved.as_ptr().cast(), self.reserved_bytes) };
        debug_assert!(unmapped.is_ok());
    }
}

/// A mapped volume. Cheap to clone; all clones are the same medium.
#[derive(Clone, Debug)]
pub struct Medium {
    base: NonNull<u8>,
    length: u64,
    /// As `length`, or zero if it may not be stored to: the bounds check of stores is the permission check too.
    length_writable: u64,
    mode: PersistMode,
    pub(crate) write_back: WriteBack,
    pub(crate) recorder: Option<Arc<Recorder>>,
    /// Where what cannot be read is taken for zeros: the places where that was so.
    pub(crate) unreadable: Option<Arc<Unreadable>>,
    pub(crate) backing: Arc<Backing>,
}

// SAFETY: the mapped bytes are accessed only through volatile, atomic or assembly accesses, from any thread, and outlive
// the handle.
unsafe impl Send for Medium {}
// SAFETY: as above.
unsafe impl Sync for Medium {}

impl Medium {
    /// Assembles a handle. `base` must lie in the backing's range, `length` bytes from the end of it or more.
    pub(crate) fn assemble(
        backing: Backing,
        base: NonNull<u8>,
        length: u64,
        writable: bool,
        mode: PersistMode,
        recorder: Option<Arc<Recorder>>,
    ) -> Medium {
        debug_assert!(base >= backing.reserved);
        debug_assert!(base.addr().get() + length as usize <= backing.reserved.addr().get() + backing.reserved_bytes);
        // Chooses the copy loops and registers them with the fault handlers before the first copy.
        let _ = crate::kernels::kernels();
        Medium {
            base,
            length,
            length_writable: if writable { length } else { 0 },
            mode,
            write_back: crate::processor::write_back(),
            recorder,
            unreadable: None,
            backing: Arc::new(backing),
        }
    }

    /// Bytes of the medium.
    #[inline]
    #[must_use]
    pub fn length(&self) -> u64 {
        self.length
    }

    /// What the medium is; of several that were joined, the kind of the one that survives least.
    #[inline]
    #[must_use]
    pub fn kind(&self) -> MediumKind {
        self.backing.kind
    }

    /// What acknowledged operations survive, in words for people: as its kind does, but for memory that has no name (a memfd).
    #[must_use]
    pub fn survives(&self) -> &'static str {
        let mut all = self.files().map(|(file, kind, _)| survives_in(kind, Some(file)));
        all.find(|&said| said == WHILE_OPEN).unwrap_or(self.kind().survives())
    }

    /// How stores are made durable.
    #[must_use]
    pub fn mode(&self) -> PersistMode {
        self.mode
    }

    /// This medium, with the instructions of persistent memory executed where stores would be plain: see
    /// [`PersistMode::Emulated`]. Other handles stay as they are.
    #[must_use]
    pub fn with_emulated_persistence(mut self) -> Medium {
        if self.mode == PersistMode::Plain {
            self.mode = PersistMode::Emulated;
        }
        self
    }

    /// This medium, of which metadata and hashes take what cannot be read (poisoned memory, a file that was cut) for zeros and note
    /// where that was, for who checks or repairs. Other handles stay as they are.
    #[must_use]
    pub fn with_zeros_where_unreadable(mut self) -> Medium {
        self.unreadable = Some(Arc::default());
        self
    }

    /// The pages of which something was taken for zeros, since [`Medium::with_zeros_where_unreadable`].
    #[must_use]
    pub fn unreadable(&self) -> Vec<MediumOffset> {
        self.unreadable.as_ref().map_or_else(Vec::new, |unreadable| unreadable.pages())
    }

    /// Whether this thread took something of the page at `at` for zeros, or others did that it knows to have ended.
    #[must_use]
    pub fn is_unreadable(&self, at: MediumOffset) -> bool {
        self.unreadable.as_ref().is_some_and(|unreadable| unreadable.has(at))
    }

    /// The instruction set of the copy loops, for people.
    #[must_use]
    pub fn copy_loops(&self) -> &'static str {
        crate::kernels::kernels().name
    }

    /// Whether stores are refused.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        self.length_writable == 0
    }

    /// Whether stored lines must be written back from the cache.
    #[inline]
    pub(crate) fn needs_flush(&self) -> bool {
        matches!(self.mode, PersistMode::Persistent | PersistMode::Emulated)
    }

    /// The address of a range that may be loaded. One comparison.
    #[inline]
    pub(crate) fn readable(&self, at: MediumOffset, length: u64) -> Result<*mut u8, AccessError> {
        if at.0.saturating_add(length) > self.length {
            return Err(AccessError::OutOfRange { at, length });
        }
        // SAFETY: inside the map, as just checked.
        Ok(unsafe { self.base.as_ptr().add(at.0 as usize) })
    }

    /// The address of a range that may be stored to. One comparison.
    #[inline]
    pub(crate) fn writable(&self, at: MediumOffset, length: u64) -> Result<*mut u8, AccessError> {
        if at.0.saturating_add(length) > self.length_writable {
            return Err(if self.is_read_only() {
                AccessError::ReadOnly
            } else {
                AccessError::OutOfRange { at, length }
            });
        }
        // SAFETY: inside the map, as just checked.
        Ok(unsafe { self.base.as_ptr().add(at.0 as usize) })
    }

    /// The address of a range inside the map, for what must be handed out as memory (zero-copy reads). Whoever stores
    /// through it calls [`Medium::flush`] afterwards; no Rust reference may be made of it.
    ///
    /// # Errors
    /// [`AccessError::OutOfRange`].
    pub fn address_of(&self, at: MediumOffset, length: u64) -> Result<*mut u8, AccessError> {
        self.readable(at, length)
    }

    /// Start of the map.
    #[inline]
    pub(crate) fn base(&self) -> *mut u8 {
        self.base.as_ptr()
    }
}
