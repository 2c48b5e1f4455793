//! Descriptors of arenas' files, which are open for a moment each, known to whoever is forked meanwhile.
//!
//! A child inherits what other threads of its parent have open just then, one that holds the gate or keeps a byte locked among it. Its
//! copy of the descriptor would keep that locked after its parent's death, for ever, even from the child itself. So each is on a list
//! from before it exists, and a child first closes what its parent had there ([`close_inherited`]). A file that is being made comes on
//! the list when it has an inode: whoever forks beside threads that open volumes keeps the two apart, as `run` does.
//!
//! Where processes share a table, or memory, an entry of one that is gone tells what it left open in this one's table, which is closed
//! then ([`close_what_others_left`]).
//!
//! An entry may be held while its owner waits for the gate. So who has the gate never waits for an entry ([`Opened::expect_another`]).
//!
//! Touches descriptors of arenas' files and nothing else.

use crate::descriptor::{Descriptor, are_shared, has_ended, shares_table_with};
use crate::file::ARENA_DIRECTORY;
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use rustix::fs::{FileType, Mode, OFlags, RawDir};
use rustix::process::{Pid, getpid};
use std::cell::Cell;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicU64, Ordering};

/// Descriptors of one process at a time; more wait.
const ENTRIES: usize = 64;
/// Stands for the number of a descriptor that is being opened. Numbers stand one higher.
const NOT_YET: u64 = 0;
/// Above this no descriptor is looked for whose number is not known, where there is no `/proc`.
const SEARCHED_MAX: RawFd = 1 << 16;

/// A place on the list.
struct Entry {
    /// Process id in the upper half, number of the descriptor in the lower one; 0: free.
    owner: AtomicU64,
    inode: AtomicU64,
}

static LIST: [Entry; ENTRIES] = [const { Entry { owner: AtomicU64::new(0), inode: AtomicU64::new(0) } }; ENTRIES];

/// A place on the list for what is about to be opened. Dropped: free again.
#[derive(Debug)]
pub(crate) struct Coming {
    entry: usize,
    owner: Cell<u64>,
}

/// An open arena's file that is on the list.
#[derive(Debug)]
pub(crate) struct Opened {
    /// Closed before the entry goes.
    fd: Descriptor,
    listed: Coming,
}

impl Coming {
    /// `inode`: the file's to be opened.
    pub(crate) fn new(inode: u64) -> Self {
        let owner = (getpid().as_raw_pid() as u64) << 32 | NOT_YET;
        loop {
            for (entry, place) in LIST.iter().enumerate() {
                let is_free = place.owner.load(Ordering::Relaxed) == 0;
                if is_free && place.owner.compare_exchange(0, owner, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                    // A child forked in between finds another arena's inode, of which it may have nothing open either.
                    place.inode.store(inode, Ordering::Release);
                    return Self { entry, owner: Cell::new(owner) };
                }
            }
            close_what_others_left();
            rustix::thread::sched_yield();
        }
    }

    /// It is open.
    pub(crate) fn is(self, fd: Descriptor) -> Opened {
        self.note(&fd);
        Opened { fd, listed: self }
    }

    /// It is open, under this number.
    pub(crate) fn note(&self, fd: impl AsFd) {
        self.change(fd.as_fd().as_raw_fd() as u64 + 1);
    }

    fn change(&self, number: u64) {
        let before = self.owner.get();
        let owner = before & !u64::from(u32::MAX) | number;
        // Unless it was taken for a dead process's.
        if LIST[self.entry].owner.compare_exchange(before, owner, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            self.owner.set(owner);
        }
    }
}

impl Opened {
    /// Another one of the same file is about to be opened: until its number is [noted](Coming::note) a child looks for all of them.
    pub(crate) fn expect_another(&self) {
        self.listed.change(NOT_YET);
    }

    /// The other one is closed again.
    pub(crate) fn expect_no_more(&self) {
        self.listed.note(&self.fd);
    }

    /// Whether the number still leads to the arena's file.
    pub(crate) fn is_ours(&self) -> bool {
        self.fd.is_ours()
    }

    /// The arena's file's device and inode.
    pub(crate) fn file(&self) -> (u64, u64) {
        self.fd.file()
    }

    /// The file's.
    pub(crate) fn inode(&self) -> u64 {
        LIST[self.listed.entry].inode.load(Ordering::Relaxed)
    }

    /// Closes this one; what was expected remains on the list.
    pub(crate) fn close(self) -> Coming {
        let Self { fd, listed } = self;
        drop(fd);
        listed
    }
}

impl Drop for Coming {
    fn drop(&mut self) {
        // Not where a child has a copy of this.
        let _ = LIST[self.entry].owner.compare_exchange(self.owner.get(), 0, Ordering::AcqRel, Ordering::Relaxed);
    }
}

impl AsFd for Opened {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl AsRawFd for Opened {
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}

/// What killed processes that had this memory left on the list, and by sharing the table in it, is taken away.
///
/// Where one table is shared the number of such a descriptor is another's once it is closed. So it is not closed while somebody opens
/// one whose number is not known yet; the next time will do.
pub(crate) fn close_what_others_left() {
    let me = getpid().as_raw_pid() as u64;
    let shared = are_shared();
    for (index, entry) in LIST.iter().enumerate() {
        let owner = entry.owner.load(Ordering::Acquire);
        let Some(pid) = Pid::from_raw((owner >> 32) as i32).filter(|pid| pid.as_raw_pid() as u64 != me) else {
            continue;
        };
        let is_gone = has_ended(pid);
        let is_copied = || shared && owner as u32 as u64 != NOT_YET && !shares_table_with(pid);
        let is_left = is_gone || is_copied();
        if !is_left || shared && somebody_opens(index) {
            continue;
        }
        let inode = entry.inode.load(Ordering::Acquire);
        // One that lives and has a table of its own keeps its entry: here is a copy of what it has.
        let is_claimed =
            !is_gone || entry.owner.compare_exchange(owner, 0, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        if shared && is_claimed {
            close_entry(owner, inode);
        }
    }
}

/// Whether anybody with this table, the entry `except` apart, is just opening one.
fn somebody_opens(except: usize) -> bool {
    let me = getpid().as_raw_pid();
    LIST.iter().enumerate().filter(|(index, _)| *index != except).any(|(_, entry)| {
        let owner = entry.owner.load(Ordering::Acquire);
        let pid = Pid::from_raw((owner >> 32) as i32);
        owner as u32 as u64 == NOT_YET && pid.is_some_and(|pid| pid.as_raw_pid() == me || shares_table_with(pid))
    })
}

/// Closes what an entry of another process tells of.
fn close_entry(owner: u64, inode: u64) {
    match owner & u64::from(u32::MAX) {
        NOT_YET => each_descriptor(|fd| close_if_it_is(fd, inode)),
        known => close_if_it_is((known - 1) as RawFd, inode),
    }
}

/// In a child with a table of descriptors of its own, before anything else: closes what other threads of its parent had open of
/// arenas' files when it was forked. `shares_memory`: with its parent (`vfork`), whose list this is.
#[inline]
pub fn close_inherited(shares_memory: bool) {
    if LIST.iter().any(|entry| entry.owner.load(Ordering::Acquire) != 0) {
        close_listed(shares_memory);
    }
}

/// Likewise, in a process of which is not known whether it is such a child, or whether that was done. The entries stay, as those of
/// others, since it can be a `vfork` child of such a child.
pub(crate) fn close_inherited_once() {
    static DONE_IN: AtomicU64 = AtomicU64::new(0);
    let me = getpid().as_raw_pid() as u64;
    if DONE_IN.swap(me, Ordering::Relaxed) != me {
        close_inherited(true);
    }
}

#[cold]
fn close_listed(shares_memory: bool) {
    let me = getpid().as_raw_pid() as u64;
    for entry in &LIST {
        let owner = entry.owner.load(Ordering::Acquire);
        if owner == 0 || owner >> 32 == me {
            continue;
        }
        // Not a copy: what that process has itself.
        if are_shared() && Pid::from_raw((owner >> 32) as i32).is_some_and(shares_table_with) {
            continue;
        }
        close_entry(owner, entry.inode.load(Ordering::Acquire));
        if !shares_memory {
            let _ = entry.owner.compare_exchange(owner, 0, Ordering::AcqRel, Ordering::Relaxed);
        }
    }
}

/// The numbers of this process's descriptors, and others where there is no `/proc`.
fn each_descriptor(mut look: impl FnMut(RawFd)) {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let Ok(directory) = rustix::fs::open("/proc/self/fd", flags, Mode::empty()) else {
        return (0..SEARCHED_MAX).for_each(look);
    };
    let mut buffer = [MaybeUninit::<u8>::uninit(); 2048];
    let mut entries = RawDir::new(&directory, &mut buffer);
    while let Some(Ok(entry)) = entries.next() {
        if let Some(number) = entry.file_name().to_str().ok().and_then(|name| name.parse().ok()) {
            look(number);
        }
    }
}

/// Closes a descriptor if it is of the arena's file with this inode and none of ours.
fn close_if_it_is(fd: RawFd, inode: u64) {
    let me = getpid().as_raw_pid();
    let has = |pid: Pid| pid.as_raw_pid() == me || are_shared() && shares_table_with(pid);
    let is_used = |owner: u64| owner as u32 == fd as u32 + 1 && Pid::from_raw((owner >> 32) as i32).is_some_and(has);
    if LIST.iter().any(|entry| is_used(entry.owner.load(Ordering::Acquire))) {
        return;
    }
    // SAFETY: only examined, whether it is open or not.
    let Ok(status) = rustix::fs::fstat(unsafe { BorrowedFd::borrow_raw(fd) }) else { return };
    let is_regular = FileType::from_raw_mode(status.st_mode) == FileType::RegularFile;
    let is_it = is_regular
        && status.st_ino == inode
        && rustix::fs::stat(ARENA_DIRECTORY).is_ok_and(|directory| directory.st_dev == status.st_dev);
    if is_it {
        // SAFETY: a copy of what a thread of another process has open; nothing in this one refers to it.
        unsafe { rustix::io::close(fd) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::descriptor::share_descriptors;
    use crate::file::{ArenaPath, VolumeIdentity};
    use std::process::{Child, Command};

    impl Coming {
        /// As if a process with this memory and table had opened it.
        fn become_that_of(&self, other: &Child) {
            let owner = u64::from(other.id()) << 32 | self.owner.get() & u64::from(u32::MAX);
            LIST[self.entry].owner.store(owner, Ordering::Release);
        }
    }

    impl Opened {
        pub(crate) fn become_that_of(&self, other: &Child) {
            self.listed.become_that_of(other);
        }
    }

    #[test]
    fn the_gate_is_not_kept_by_what_a_killed_process_left_in_the_common_table() {
        let path = ArenaPath::new(&VolumeIdentity { uuid: *b"shm-crate's left", nonce: std::process::id().into() });
        assert!(path.reveal(&path.create_hidden(4096, 4096).unwrap()).unwrap());
        share_descriptors();
        for is_number_known in [true, false] {
            // Ended, and not waited for: as a child that somebody killed, whose parent waits for the gate.
            let mut other = Command::new("true").spawn().unwrap();
            let gate = std::mem::ManuallyDrop::new(path.gate().unwrap().unwrap());
            if !is_number_known {
                gate.expect_another();
            }
            gate.become_that_of(&other);
            let (send, had) = std::sync::mpsc::channel();
            let name = path.clone();
            std::thread::spawn(move || send.send(name.gate().unwrap().map(|gate| gate.bytes)));
            assert_eq!(had.recv_timeout(std::time::Duration::from_secs(30)), Ok(Some(4096)));
            other.wait().unwrap();
        }
        path.unlink().unwrap();
    }
}
