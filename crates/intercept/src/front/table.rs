//! Which descriptor of this process refers to which description, and the working directory.
//!
//! The kernel's descriptor is a placeholder; what it stands for is an entry here. The description itself, with offset, flags
//! and users, is the file system's ([`gannet_vfs::shared`]); the entry keeps what of it never changes. This
//! process is one user of a description, however many of its descriptors refer to it.
//!
//! A `vfork` child shares our memory but not its parent's descriptors: from its first change on, or its `execve`, it has
//! a table and a working directory of its own, named in the thread's record. It uses descriptions as its parent's process.

use super::open_names::{OpenName, OpenNames};
use crate::entry::{self, DESCRIPTOR_LIMIT};
use crate::number;
use crate::raw::{is_error, syscall};
use crate::thread::Record;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};
use gannet_vfs::shared::Description;
use gannet_vfs::{FileType, NodeId};

/// What a descriptor stands for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct OpenFile {
    pub(crate) description: Description,
    pub(crate) mount: usize,
    pub(crate) node: NodeId,
    pub(crate) file_type: FileType,
    /// Access mode and O_PATH, which never change; and O_NOATIME if the description ever had it. [`CREATED`], [`SHARED`].
    pub(crate) flags: u32,
}

/// The open made the file, among the flags of an [`OpenFile`]: what F_CREATED_QUERY asks for. Not known of what is inherited over `execve`.
pub(crate) const CREATED: u32 = 1 << 31;
/// Others may stand for the description, too, so that who closes the descriptor looks for them. Without it there is none: what an open made
/// and nobody duplicated is closed without a look at all the others.
pub(crate) const SHARED: u32 = 1 << 30;

/// Descriptions came in messages. Any of them may be one that the process had, whose descriptor does not say so.
static RECEIVED: AtomicBool = AtomicBool::new(false);

/// A description in a message is about to be entered.
pub(crate) fn note_received() {
    RECEIVED.store(true, Ordering::SeqCst);
}

/// Whether descriptors that are not [`SHARED`] may be all the same.
pub(crate) fn has_received() -> bool {
    RECEIVED.load(Ordering::SeqCst)
}

/// An entry, in words. A reader that meets a change sees nothing, or what was there before or behind it, never something of both.
struct Entry {
    /// The description, 0: not ours.
    word: AtomicU64,
    number: AtomicU64,
    generation_and_flags: AtomicU64,
    /// And, from [`VERSION_SHIFT`] on, how often the entry was stored.
    mount_and_type: AtomicU64,
}

const VERSION_SHIFT: u32 = 40;

/// What belongs to a process: one in static memory, one more per `vfork` child.
#[repr(C)]
pub(crate) struct Table {
    entries: [Entry; DESCRIPTOR_LIMIT],
    /// Of a `vfork` child's table; the process's has [`HEAD`].
    head: Head,
    names: OpenNames,
}

/// What of a table is not about one descriptor.
struct Head {
    /// Above the highest descriptor that was ever ours.
    used: AtomicU32,
    /// Odd while the working directory is moved, by one thread at a time ([`super::working_directory`]).
    directory_moves: AtomicU32,
    /// Mount + 1 of the working directory, 0: on the host.
    directory_mount: AtomicU32,
    directory_number: AtomicU64,
    directory_generation: AtomicU32,
}

impl Head {
    const fn new() -> Head {
        Head {
            used: AtomicU32::new(0),
            directory_moves: AtomicU32::new(0),
            directory_mount: AtomicU32::new(0),
            directory_number: AtomicU64::new(0),
            directory_generation: AtomicU32::new(0),
        }
    }
}

/// The process's own. Among what every start touches, since a path and the end of a process ask for it: the table would be a page more.
static HEAD: Head = Head::new();

#[unsafe(link_section = ".bss.gannet_large")]
static TABLE: Table = Table {
    entries: [const {
        Entry {
            word: AtomicU64::new(0),
            number: AtomicU64::new(0),
            generation_and_flags: AtomicU64::new(0),
            mount_and_type: AtomicU64::new(0),
        }
    }; DESCRIPTOR_LIMIT],
    head: Head::new(),
    names: OpenNames::new(),
};

/// The process's own table.
pub(crate) fn of_process() -> &'static Table {
    &TABLE
}

/// The table to read.
pub(crate) fn current(record: &Record) -> &'static Table {
    private(record).unwrap_or(&TABLE)
}

/// The table of a `vfork` child, if it has one.
pub(crate) fn private(record: &Record) -> Option<&'static Table> {
    // SAFETY: made by `make_private` and unmapped only when the field is cleared.
    (record.private_table != 0).then(|| unsafe { &*(record.private_table as *const Table) })
}

/// Gives a `vfork` child its own table.
pub(crate) fn make_private(record: &mut Record) -> Option<()> {
    if record.private_table != 0 {
        return Some(());
    }
    const PROT_READ_WRITE: usize = 3;
    const MAP_PRIVATE_ANONYMOUS_NORESERVE: usize = 0x4022;
    let length = size_of::<Table>();
    // SAFETY: a new map of zeros, which is a valid table.
    let address =
        unsafe { syscall(number::MMAP, [0, length, PROT_READ_WRITE, MAP_PRIVATE_ANONYMOUS_NORESERVE, usize::MAX, 0]) };
    if is_error(address) {
        return None;
    }
    // SAFETY: as above.
    let copy = unsafe { &*(address as *const Table) };
    copy.take_over(&TABLE);
    record.private_table = address as usize;
    Some(())
}

/// Unmaps the table of a `vfork` child that is gone.
pub(crate) fn drop_private(record: &mut Record) {
    let address = core::mem::take(&mut record.private_table);
    if address != 0 {
        // SAFETY: made by `make_private`; nobody else knows it.
        unsafe { syscall(number::MUNMAP, [address, size_of::<Table>()]) };
    }
}

/// A process forked from a `vfork` child: what was private to that is now its own table.
#[inline]
pub(crate) fn adopt_private(record: &mut Record) {
    if record.private_table == 0 {
        return;
    }
    if let Some(private) = private(record) {
        TABLE.take_over(private);
        drop_private(record);
    }
}

impl Table {
    #[inline]
    fn head(&self) -> &Head {
        if core::ptr::eq(self, &TABLE) { &HEAD } else { &self.head }
    }

    /// What a descriptor stands for.
    #[inline]
    pub(crate) fn get(&self, descriptor: usize) -> Option<OpenFile> {
        let entry = self.entries.get(descriptor)?;
        loop {
            let word = entry.word.load(Ordering::Acquire);
            let description = Description::from_word(word)?;
            let mount_and_type = entry.mount_and_type.load(Ordering::Acquire);
            let generation_and_flags = entry.generation_and_flags.load(Ordering::Relaxed);
            let number = entry.number.load(Ordering::Relaxed);
            fence(Ordering::Acquire);
            // All of it is of one store, or it is looked at again.
            if entry.word.load(Ordering::Relaxed) != word
                || entry.mount_and_type.load(Ordering::Relaxed) != mount_and_type
            {
                continue;
            }
            return Some(OpenFile {
                description,
                mount: (mount_and_type & 0xffff_ffff) as usize,
                node: NodeId::new(number, (generation_and_flags >> 32) as u32),
                file_type: FileType::from_bits((mount_and_type >> 32) as u8)?,
                flags: generation_and_flags as u32,
            });
        }
    }

    /// [`get`](Self::get) for who makes another of it: both are [`SHARED`] from now on. Who closes this one later, or has found it and not
    /// yet taken it out, sees that.
    pub(crate) fn get_to_share(&self, descriptor: usize) -> Option<OpenFile> {
        loop {
            let file = self.get(descriptor)?;
            if file.flags & SHARED != 0 {
                return Some(file);
            }
            self.entries.get(descriptor)?.generation_and_flags.fetch_or(u64::from(SHARED), Ordering::SeqCst);
            // It is looked at again, behind that: of this and a [`take`](Self::take) one sees the other.
            fence(Ordering::SeqCst);
        }
    }

    /// Whether anything may be ours: a descriptor was, or the working directory is in a volume.
    #[inline]
    pub(crate) fn may_have_any(&self) -> bool {
        let head = self.head();
        head.used.load(Ordering::Acquire) != 0 || head.directory_mount.load(Ordering::Relaxed) != 0
    }

    /// Whether any descriptor is ours, or the working directory is in a volume.
    pub(crate) fn has_any(&self) -> bool {
        let head = self.head();
        let used = (head.used.load(Ordering::Acquire) as usize).min(DESCRIPTOR_LIMIT);
        head.directory_mount.load(Ordering::Relaxed) != 0
            || self.entries[..used].iter().any(|entry| entry.word.load(Ordering::Acquire) != 0)
    }

    fn store(&self, descriptor: usize, file: &OpenFile) {
        let Some(entry) = self.entries.get(descriptor) else { return };
        entry.word.store(0, Ordering::Relaxed);
        fence(Ordering::Release);
        let version = (entry.mount_and_type.load(Ordering::Relaxed) >> VERSION_SHIFT).wrapping_add(1);
        let mount_and_type = file.mount as u64 | u64::from(file.file_type as u8) << 32 | version << VERSION_SHIFT;
        entry.mount_and_type.store(mount_and_type, Ordering::Relaxed);
        fence(Ordering::Release);
        entry.number.store(file.node.number, Ordering::Relaxed);
        let generation_and_flags = u64::from(file.node.generation) << 32 | u64::from(file.flags);
        entry.generation_and_flags.store(generation_and_flags, Ordering::Relaxed);
        entry.word.store(file.description.word(), Ordering::Release);
    }

    /// Makes a descriptor ours; returns what it stood for before, as one that may be shared.
    pub(crate) fn set(&self, descriptor: usize, file: &OpenFile) -> Option<OpenFile> {
        let before = self.get(descriptor).map(|before| OpenFile { flags: before.flags | SHARED, ..before });
        self.store(descriptor, file);
        super::process_links::note_placeholder(descriptor);
        self.head().used.fetch_max(descriptor as u32 + 1, Ordering::AcqRel);
        if core::ptr::eq(self, &TABLE) {
            entry::mark_descriptor(descriptor);
            super::held::changed(descriptor);
        } else {
            entry::mark_descriptor_of_child(descriptor);
        }
        before
    }

    /// What stands for this description has these flags, too. Nothing that others close or replace meanwhile comes back.
    pub(crate) fn add_flags(&self, description: Description, flags: u32) {
        let used = (self.head().used.load(Ordering::Acquire) as usize).min(DESCRIPTOR_LIMIT);
        for entry in
            self.entries[..used].iter().filter(|entry| entry.word.load(Ordering::Acquire) == description.word())
        {
            entry.generation_and_flags.fetch_or(u64::from(flags), Ordering::Relaxed);
        }
    }

    /// Makes a descriptor no longer ours; returns what it stood for.
    pub(crate) fn take(&self, descriptor: usize) -> Option<OpenFile> {
        let before = self.get(descriptor)?;
        let word = before.description.word();
        // Of two threads that close the same descriptor one gets it.
        let entry = self.entries.get(descriptor)?;
        entry.word.compare_exchange(word, 0, Ordering::SeqCst, Ordering::Relaxed).ok()?;
        // Who duplicated it since. The number is the program's until the kernel has closed it: nobody else's entry stands here yet.
        let shared = entry.generation_and_flags.load(Ordering::SeqCst) as u32 & SHARED;
        // At the end of the process other threads must not come by what the descriptor is to the kernel.
        if core::ptr::eq(self, &TABLE) && !super::ends::has_begun() {
            entry::unmark_descriptor(descriptor);
        }
        Some(OpenFile { flags: before.flags | shared, ..before })
    }

    /// Notes under which name the file of a descriptor was opened.
    pub(crate) fn set_open_name(&self, descriptor: usize, file: &OpenFile, name: &OpenName) {
        self.names.set(descriptor, file.description, name);
    }

    /// Under which name the file of a descriptor was opened, if that is known.
    pub(crate) fn open_name(&self, descriptor: usize, file: &OpenFile) -> Option<OpenName> {
        self.names.get(descriptor, file.description)
    }

    /// All descriptors that are ours.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (usize, OpenFile)> + '_ {
        let used = self.head().used.load(Ordering::Acquire) as usize;
        (0..used.min(DESCRIPTOR_LIMIT)).filter_map(|descriptor| self.get(descriptor).map(|file| (descriptor, file)))
    }

    /// Whether any descriptor stands for this description of a volume; those of others have the same words.
    pub(crate) fn refers_to(&self, mount: usize, description: Description) -> bool {
        let used = (self.head().used.load(Ordering::Acquire) as usize).min(DESCRIPTOR_LIMIT);
        let word = description.word();
        let is_of = |entry: &Entry| entry.mount_and_type.load(Ordering::Relaxed) as u32 as usize == mount;
        self.entries[..used].iter().any(|entry| entry.word.load(Ordering::Acquire) == word && is_of(entry))
    }

    /// Becomes a copy of another, each of whose entries may be shared: what others duplicate meanwhile may be told of one of the two only.
    fn take_over(&self, other: &Table) {
        let used = self.head().used.load(Ordering::Relaxed).max(other.head().used.load(Ordering::Relaxed)) as usize;
        for descriptor in 0..used.min(DESCRIPTOR_LIMIT) {
            match other.get(descriptor) {
                Some(file) => {
                    let file = OpenFile { flags: file.flags | SHARED, ..file };
                    self.set(descriptor, &file);
                    if let Some(name) = other.open_name(descriptor, &file) {
                        self.set_open_name(descriptor, &file, &name);
                    }
                }
                None => {
                    self.take(descriptor);
                }
            }
        }
        self.set_directory(other.directory());
    }

    /// Mount and inode of the working directory, if it is in a volume.
    #[inline]
    pub(crate) fn directory(&self) -> Option<(usize, NodeId)> {
        let head = self.head();
        loop {
            let moves = head.directory_moves.load(Ordering::Acquire);
            let mount = head.directory_mount.load(Ordering::Relaxed);
            let number = head.directory_number.load(Ordering::Relaxed);
            let generation = head.directory_generation.load(Ordering::Relaxed);
            fence(Ordering::Acquire);
            if moves & 1 == 0 && head.directory_moves.load(Ordering::Relaxed) == moves {
                return Some((mount.checked_sub(1)? as usize, NodeId::new(number, generation)));
            }
            // SAFETY: gives the processor away.
            unsafe { syscall(number::SCHED_YIELD, []) };
        }
    }

    /// How often the working directory was moved, twice over.
    pub(crate) fn directory_moves(&self) -> u32 {
        self.head().directory_moves.load(Ordering::Acquire)
    }

    /// Moves the working directory; `None`: to the host. By one thread at a time.
    pub(crate) fn set_directory(&self, directory: Option<(usize, NodeId)>) {
        let head = self.head();
        let moves = head.directory_moves.load(Ordering::Relaxed);
        head.directory_moves.store(moves | 1, Ordering::Relaxed);
        fence(Ordering::Release);
        if let Some((_, node)) = directory {
            head.directory_number.store(node.number, Ordering::Relaxed);
            head.directory_generation.store(node.generation, Ordering::Relaxed);
        }
        head.directory_mount.store(directory.map_or(0, |(mount, _)| mount as u32 + 1), Ordering::Relaxed);
        head.directory_moves.store((moves | 1).wrapping_add(1), Ordering::Release);
    }
}
