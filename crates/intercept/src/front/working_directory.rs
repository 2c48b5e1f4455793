//! The working directory is held: while a process is in a directory of a volume its inode stays, as the kernel's would, also once
//! somebody has removed it.
//!
//! It is held by an open file description of the process that entered it. Neither `fork` nor `execve` carries that on, since a
//! child that only executes something would have to join the volume for it: who finds itself in a directory that another process
//! holds opens a description of its own when it first uses a relative path ([`Front::hold_directory`]). Until then its parent's counts, as a rule a
//! shell's, which waits. Only what was removed already goes over an `execve`, as descriptors do.
//! A `vfork` child holds nothing: it executes something next.
//!
//! One thread at a time moves the directory: what is held, what the table says and where the kernel's own is are changed together ([`moving`]).
//! Other threads' calls read the table, all of one move ([`Table::directory`]). What remains is a call that was found to be about the host's
//! directory and reaches the kernel when another thread has entered a volume, so that the kernel's is `/`: where nothing is found there it is made
//! again ([`super::links`]).

use super::Front;
use super::table::{self, Table};
use crate::lock::Lock;
use crate::number::CHDIR;
use crate::raw::syscall;
use crate::thread;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use gannet_vfs::shared::shm::Session;
use gannet_vfs::shared::{AccessMode, Description};
use gannet_vfs::{Errno, FileSystem, NodeId};

/// The description, 0: none, or none could be had.
static DESCRIPTION: AtomicU64 = AtomicU64::new(0);
/// The volume it is of.
static MOUNT: AtomicU32 = AtomicU32::new(0);
/// The participant that holds it.
static HOLDER_INDEX: AtomicU32 = AtomicU32::new(u32::MAX);
static HOLDER_GENERATION: AtomicU64 = AtomicU64::new(0);

static MOVES: Lock = Lock::new();

/// Nobody else moves the directory meanwhile. Not inside of itself.
fn moving<T>(work: impl FnOnce() -> T) -> T {
    if thread::is_alone() { work() } else { MOVES.with(work) }
}

/// Takes the lock so that a forked child finds the table whole, or releases it.
pub(super) fn around_fork(before: bool) {
    MOVES.around_fork(before);
}

/// Whether it is this process that holds the directory, or tried to. In the child of a fork it is not.
#[inline]
fn is_own(session: &Session) -> bool {
    let participant = session.participant();
    session.has_joined()
        && HOLDER_INDEX.load(Ordering::Relaxed) == participant.index
        && HOLDER_GENERATION.load(Ordering::Acquire) == participant.generation
}

/// Notes what is held; returns what was, if this process held it.
fn replace(fs: &dyn FileSystem, mount: usize, description: u64) {
    let session = fs.shared().session();
    let participant = session.participant();
    DESCRIPTION.store(description, Ordering::Relaxed);
    MOUNT.store(mount as u32, Ordering::Relaxed);
    HOLDER_INDEX.store(participant.index, Ordering::Relaxed);
    HOLDER_GENERATION.store(participant.generation, Ordering::Release);
}

/// Opens a description of a directory; 0 if there is no room for one.
fn open(fs: &dyn FileSystem, node: NodeId) -> Result<u64, Errno> {
    match fs.shared().open(fs, node, AccessMode::PATH, 0) {
        Ok(description) => Ok(description.word()),
        Err(error) if error.errno() == Errno::STALE => Err(Errno::NOENT),
        Err(_) => Ok(0),
    }
}

impl Front {
    /// The directory that `table` says is used: from now on this process holds it, if another did.
    #[inline]
    pub(super) fn hold_directory(&self, table: &Table, mount: usize, node: NodeId) {
        if let Ok(fs) = self.file_system(mount)
            && !is_own(fs.shared().session())
            && core::ptr::eq(table, table::of_process())
        {
            moving(|| hold_now(fs, table, mount, node));
        }
    }

    /// Moves the working directory into a volume. `ENOENT` if it is gone.
    pub(super) fn enter_directory(&self, table: &Table, mount: usize, node: NodeId) -> Result<(), Errno> {
        let enter = || {
            let was_on_host = table.directory().is_none();
            table.set_directory(Some((mount, node)));
            if was_on_host {
                // SAFETY: a path of our own.
                unsafe { syscall(CHDIR, [c"/".as_ptr() as usize]) };
            }
        };
        if !core::ptr::eq(table, table::of_process()) {
            enter();
            return Ok(());
        }
        let fs = self.file_system(mount)?;
        let description = open(fs, node)?;
        moving(|| {
            self.release_now();
            enter();
            replace(fs, mount, description);
        });
        Ok(())
    }

    /// The kernel's working directory was moved by the program: it is the one that counts. False if another thread has moved it since `moves` was
    /// asked for, so that it may be elsewhere: then it is moved again.
    pub(super) fn leave_directory(&self, table: &Table, moves: u32, in_child: bool) -> bool {
        if !core::ptr::eq(table, table::of_process()) {
            table.set_directory(None);
            self.note_host_directory(in_child);
            return true;
        }
        moving(|| {
            let is_last = table.directory_moves() == moves;
            if is_last {
                self.release_now();
                table.set_directory(None);
                self.note_host_directory(in_child);
            }
            is_last
        })
    }

    /// The process no longer holds its working directory: it ends, or executes another program. Should that fail, the next
    /// relative path holds it again.
    pub(crate) fn release_directory(&self) {
        moving(|| self.release_now());
    }

    fn release_now(&self) {
        let Some((fs, description)) = self.held_directory() else { return };
        HOLDER_INDEX.store(u32::MAX, Ordering::Relaxed);
        if DESCRIPTION.swap(0, Ordering::Relaxed) != 0 {
            let _ = fs.shared().close(fs, description);
        }
    }

    /// What this process holds, if it does.
    fn held_directory(&self) -> Option<(&'static dyn FileSystem, Description)> {
        let description = Description::from_word(DESCRIPTION.load(Ordering::Relaxed))?;
        let mount = self.mounts.get(MOUNT.load(Ordering::Relaxed) as usize)?;
        // Not opened now for that.
        let fs = mount.is_open().then(|| self.file_system(MOUNT.load(Ordering::Relaxed) as usize).ok()).flatten()?;
        is_own(fs.shared().session()).then_some((fs, description))
    }

    /// The description of a working directory that has been removed: what the program about to be executed is told.
    pub(super) fn removed_directory(&self, table: &Table) -> Option<Description> {
        let (mount, node) = table.directory()?;
        let (fs, description) = self.held_directory()?;
        let is_it = MOUNT.load(Ordering::Relaxed) as usize == mount
            && fs.shared().info(description).is_ok_and(|info| info.node == node);
        (is_it && fs.attributes(node).is_ok_and(|all| all.links == 0)).then_some(description)
    }

    /// The new program takes over what the one before had.
    pub(super) fn adopt_directory(&self, mount: usize, word: u64) {
        let (Ok(fs), Some(description)) = (self.file_system(mount), Description::from_word(word)) else { return };
        if fs.shared().adopt(description).is_ok() {
            replace(fs, mount, word);
        }
    }
}

#[cold]
fn hold_now(fs: &'static dyn FileSystem, table: &Table, mount: usize, node: NodeId) {
    // Another thread has done so, or gone elsewhere.
    if is_own(fs.shared().session()) || table.directory() != Some((mount, node)) {
        return;
    }
    // Where it is gone already, that is so for good.
    let description = open(fs, node).unwrap_or(0);
    if fs.shared().session().has_joined() {
        replace(fs, mount, description);
    }
}
