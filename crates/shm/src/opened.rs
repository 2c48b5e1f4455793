//! Descriptors of arenas' files, which are open for a moment each, known to whoever is forked meanwhile.
//!
//! A child inherits what other threads of its parent have open just then, one that holds the gate or keeps a byte locked among it. Its
//! copy of the descriptor would keep that locked after its parent's death, for ever, even from the child itself. So each is on a list
//! from before it exists, and a child first closes what its parent had there ([`close_inherited`]). A file that is being made comes on
//! the list when it has an inode: whoever forks beside threads that open volumes keeps the two apart, as `run` does.
//!
//! An entry may be held while its owner waits for the gate. So who has the gate never waits for an entry ([`Opened::expect_another`]).
//!
//! Touches descriptors of arenas' files and nothing else.

use crate::file::ARENA_DIRECTORY;
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use rustix::fs::{FileType, Mode, OFlags, RawDir};
use rustix::io::Errno;
use rustix::process::{Pid, getpid, test_kill_process};
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
    owner: u64,
}

/// An open arena's file that is on the list.
#[derive(Debug)]
pub(crate) struct Opened {
    /// Closed before the entry goes.
    fd: OwnedFd,
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
                    return Self { entry, owner };
                }
            }
            forget_the_dead();
            rustix::thread::sched_yield();
        }
    }

    /// It is open.
    pub(crate) fn is(mut self, fd: OwnedFd) -> Opened {
        self.note(&fd);
        Opened { fd, listed: self }
    }

    /// It is open, under this number.
    pub(crate) fn note(&mut self, fd: impl AsFd) {
        self.change(fd.as_fd().as_raw_fd() as u64 + 1);
    }

    fn change(&mut self, number: u64) {
        let owner = self.owner & !u64::from(u32::MAX) | number;
        // Unless it was taken for a dead process's.
        if LIST[self.entry].owner.compare_exchange(self.owner, owner, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            self.owner = owner;
        }
    }
}

impl Opened {
    /// Another one of the same file is about to be opened: until its number is [noted](Coming::note) a child looks for all of them.
    pub(crate) fn expect_another(&mut self) {
        self.listed.change(NOT_YET);
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
        let _ = LIST[self.entry].owner.compare_exchange(self.owner, 0, Ordering::AcqRel, Ordering::Relaxed);
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

/// What `vfork` children that were killed left on the list.
pub(crate) fn forget_the_dead() {
    for entry in &LIST {
        let owner = entry.owner.load(Ordering::Relaxed);
        let is_gone = Pid::from_raw((owner >> 32) as i32).is_some_and(|pid| test_kill_process(pid) == Err(Errno::SRCH));
        if is_gone {
            let _ = entry.owner.compare_exchange(owner, 0, Ordering::AcqRel, Ordering::Relaxed);
        }
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
        let inode = entry.inode.load(Ordering::Acquire);
        match owner & u64::from(u32::MAX) {
            NOT_YET => each_descriptor(|fd| close_if_it_is(fd, inode)),
            known => close_if_it_is((known - 1) as RawFd, inode),
        }
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
    let me = getpid().as_raw_pid() as u64;
    let ours = me << 32 | (fd as u64 + 1);
    if LIST.iter().any(|entry| entry.owner.load(Ordering::Acquire) == ours) {
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
