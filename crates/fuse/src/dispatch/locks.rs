//! Record locks and `flock`, shared with everybody who uses the volume.
//!
//! Only coherent mounts take locks here; the kernel keeps those of an exclusive mount. `flock` belongs to the open file, which
//! is a description already. The owner of a record lock is a word that the kernel makes up, a process's or an open file's;
//! each gets a description of its own per file, so that all programs behind this one process stay apart. A process's goes
//! when it closes the file (FLUSH), an open file's when that is released. The word is the address of a kernel structure, so the
//! next open file can have that of one whose release has yet to be told: `predecessor` says when.
//! Those that wait are in `waiting`, circles of them in `circles`.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use gannet_vfs::shared::{AccessMode, Description, LockOwner, LockRange, LockRequest as SharedRequest};
use gannet_vfs::{Errno, Error, NodeId, Result};

use super::circles::{Circle, Crowd, Waiters, Waiting};
use super::closing::{Closing, Patience};
use super::waiting::{Blocker, Seats, WaitsFor};
use super::{Dispatcher, Outcome};
use crate::protocol::constants::{InitFlags, LK_FLOCK};
use crate::protocol::reply;
use crate::protocol::request::{Header, LockRequest};
use crate::protocol::wire::FixedReply;

const F_RDLCK: u32 = 0;
const F_WRLCK: u32 = 1;
const F_UNLCK: u32 = 2;
/// A kernel's lock owner with locks on one file.
pub(super) struct Owner {
    pub(super) word: u64,
    /// The open files that its locks were taken through. None is left: it is gone.
    pub(super) handles: Vec<u64>,
    description: Description,
    /// Requests of this owner that wait.
    waiting: usize,
}

/// The owners and waiters of a mount.
#[derive(Default)]
pub(super) struct Locks {
    /// By the kernel's id of the file.
    owners: Mutex<HashMap<u64, Vec<Owner>>>,
    /// How many owners there are: closing a file asks nothing else while there are none.
    count: AtomicUsize,
    pub(super) waiters: Mutex<Waiters>,
    /// Whose waits are, or are about to be, in there: who waits for nothing needs not look.
    pub(super) crowd: Crowd,
    pub(super) seats: Seats,
    pub(super) closing: Closing,
}

#[cfg(test)]
impl Locks {
    /// How many owners there are, and of how many files some are remembered.
    pub(super) fn owners_known(&self) -> usize {
        lock(&self.owners).values().map(Vec::len).sum()
    }

    pub(super) fn files_known(&self) -> usize {
        lock(&self.owners).len()
    }
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn range(request: &LockRequest) -> LockRange {
    let end = if request.end >= i64::MAX as u64 { LockRange::END } else { request.end + 1 };
    LockRange { start: request.start.min(end), end }
}

impl Dispatcher {
    fn keeps_locks(&self) -> Result<()> {
        // Not agreed: the kernel keeps locks by itself and does not ask again.
        if self.agreed(InitFlags::POSIX_LOCKS) { Ok(()) } else { Err(Error::new(Errno::NOSYS)) }
    }

    /// The description behind a kernel's lock owner. Makes it if asked to; counts a use if it `takes` a lock.
    fn owner(
        &self,
        header: &Header,
        node: NodeId,
        request: &LockRequest,
        make: bool,
        takes: bool,
    ) -> Result<Option<Description>> {
        let file = header.node;
        let known = |owners: &mut HashMap<u64, Vec<Owner>>| {
            let owner = owners.get_mut(&file)?.iter_mut().find(|owner| owner.word == request.owner)?;
            owner.waiting += usize::from(takes);
            if takes && !owner.handles.contains(&request.handle) {
                owner.handles.push(request.handle);
            }
            Some(owner.description)
        };
        let found = known(&mut lock(&self.locks.owners));
        if found.is_some() || !make {
            return Ok(found);
        }
        let file_system = &*self.file_system;
        let access = AccessMode::READ | AccessMode::WRITE;
        let open = |user| file_system.shared().open_for(user, file_system, node, access, 0);
        // Others' locks do not wait while it is found out whose this one is.
        let made = self.for_user(header, open);
        let mut owners = lock(&self.locks.owners);
        if let Some(found) = known(&mut owners) {
            // Another thread of the same owner was faster.
            drop(owners);
            if let Ok(needless) = made {
                let _ = file_system.shared().close(file_system, needless);
            }
            return Ok(Some(found));
        }
        let description = made?;
        let waiting = usize::from(takes);
        owners.entry(file).or_default().push(Owner {
            word: request.owner,
            handles: vec![request.handle],
            description,
            waiting,
        });
        self.locks.count.fetch_add(1, Ordering::Relaxed);
        Ok(Some(description))
    }

    pub(super) fn leave_owner(&self, file: u64, word: u64) {
        if let Some(of_file) = lock(&self.locks.owners).get_mut(&file)
            && let Some(owner) = of_file.iter_mut().find(|owner| owner.word == word)
        {
            owner.waiting -= 1;
        }
    }

    /// Whether locks were taken under the owner's word through other open files only, which may all be gone in a moment.
    ///
    /// Then the word was an open file's, and is another's now: who took it for the same would lose its lock with the other's
    /// RELEASE. Or it is a process's, of which a child closed what it had inherited: that is found out by waiting, once.
    fn predecessor(&self, file: u64, request: &LockRequest) -> Option<Vec<u64>> {
        let owners = lock(&self.locks.owners);
        let owner = owners.get(&file)?.iter().find(|owner| owner.word == request.owner)?;
        let goes = |&handle: &u64| handle != request.handle && self.locks.closing.is_closing(handle);
        (!owner.handles.is_empty() && owner.handles.iter().all(goes)).then(|| owner.handles.clone())
    }

    /// Waits until the open file whose word the owner has is gone; less if it stays.
    pub(super) fn wait_for_predecessor(&self, file: u64, request: &LockRequest) {
        let mut patience = Patience::new();
        while let Some(handles) = self.predecessor(file, request) {
            if self.has_ended() {
                return;
            }
            if !patience.lasts() {
                return handles.iter().for_each(|&handle| self.locks.closing.stays(handle));
            }
        }
    }

    pub(super) fn set_lock(
        self: &Arc<Self>,
        header: &Header,
        lock_request: &LockRequest,
        wait: bool,
    ) -> Result<Outcome> {
        self.keeps_locks()?;
        let node = self.node(header.node)?;
        let exclusive = match lock_request.kind {
            F_RDLCK => Some(false),
            F_WRLCK => Some(true),
            F_UNLCK => None,
            _ => return Err(Error::new(Errno::INVAL)),
        };
        let is_flock = lock_request.flags & LK_FLOCK != 0;
        let waits = wait && exclusive.is_some();
        if exclusive.is_some() {
            self.locks.closing.used(lock_request.handle);
            if !is_flock && self.predecessor(header.node, lock_request).is_some() {
                let what_for = WaitsFor::Predecessor { lock_request: *lock_request, wait };
                return Ok(self.waits(header, what_for));
            }
        }
        let owner = if is_flock {
            let description = Description::from_word(lock_request.handle).ok_or(Error::new(Errno::BADF))?;
            LockOwner::Flock(description)
        } else {
            match self.owner(header, node, lock_request, exclusive.is_some(), exclusive.is_some())? {
                Some(description) => LockOwner::OpenFile(description),
                // Nothing was ever locked.
                None => return Ok(Outcome::Reply(0)),
            }
        };
        let request = SharedRequest {
            node,
            owner,
            exclusive,
            range: if is_flock { LockRange::ALL } else { range(lock_request) },
            process: lock_request.process,
        };
        let leave = || {
            if exclusive.is_some() && !is_flock {
                self.leave_owner(header.node, lock_request.owner);
            }
        };
        let of_owner = (!is_flock).then_some(lock_request.owner);
        let shared = self.file_system.shared();
        match self.for_user(header, |user| shared.try_lock_for(user, &*self.file_system, &request)) {
            Ok(()) => {
                leave();
                if let Some(owner) = of_owner.filter(|_| exclusive.is_some()) {
                    self.was_granted(owner);
                }
                Ok(Outcome::Reply(0))
            }
            Err(error)
                if error.errno() == Errno::AGAIN
                    && !waits
                    && !matches!(self.blocker(header.node, &request), Blocker::Stays) =>
            {
                let told = Arc::default();
                Ok(self.waits(header, WaitsFor::Lock { owner: of_owner, request, told, impatient: true }))
            }
            Err(error) if error.errno() == Errno::AGAIN && waits => {
                let waiting = Waiting::new(header, of_owner, request);
                let told = Arc::clone(&waiting.told);
                if let Some(owner) = of_owner {
                    self.locks.crowd.enter(owner);
                }
                let mut waiters = lock(&self.locks.waiters);
                // Under the lock: of two that wait for each other the later one sees the other.
                if self.circle(&waiters, &waiting) != Circle::No {
                    told.suspect();
                }
                waiters.insert(waiting);
                drop(waiters);
                Ok(self.waits(header, WaitsFor::Lock { owner: of_owner, request, told, impatient: false }))
            }
            Err(error) => {
                leave();
                Err(error)
            }
        }
    }

    /// The kernel's owners of the record locks on a file that are in the way. Those of other participants are none.
    /// `looks` bounds at how many locks this looks, and is what is left of it.
    pub(super) fn owners_in_the_way(&self, file: u64, request: &SharedRequest, looks: &mut usize) -> Vec<u64> {
        // Who cannot be asked waits, and is not told.
        let Ok(found) = self.file_system.shared().owners_in_the_way(request, looks) else { return Vec::new() };
        let description =
            |owner| if let LockOwner::OpenFile(description) = owner { Some(description.word()) } else { None };
        let mut found: Vec<u64> = found.into_iter().filter_map(description).collect();
        found.sort_unstable();
        let owners = lock(&self.locks.owners);
        let of_file = owners.get(&file).into_iter().flatten();
        let in_the_way = of_file.filter(|owner| found.binary_search(&owner.description.word()).is_ok());
        in_the_way.map(|owner| owner.word).collect()
    }

    /// What is asked of the kernel's owner behind a description of a file.
    pub(super) fn find_owner<T>(&self, file: u64, description: Description, asked: impl Fn(&Owner) -> T) -> Option<T> {
        let owners = lock(&self.locks.owners);
        owners.get(&file)?.iter().find(|owner| owner.description == description).map(asked)
    }

    pub(super) fn get_lock(&self, header: &Header, lock_request: &LockRequest) -> Result<FixedReply> {
        self.keeps_locks()?;
        let node = self.node(header.node)?;
        let exclusive = match lock_request.kind {
            F_RDLCK => Some(false),
            F_WRLCK => Some(true),
            // Which ones its own description has.
            F_UNLCK => None,
            _ => return Err(Error::new(Errno::INVAL)),
        };
        // Asking needs an owner, too: one's own locks are not in the way.
        let description = self.owner(header, node, lock_request, true, false)?;
        let owner = LockOwner::OpenFile(description.ok_or(Error::new(Errno::NOLCK))?);
        let process = lock_request.process;
        let request = SharedRequest { node, owner, exclusive, range: range(lock_request), process };
        Ok(match self.file_system.shared().test_lock(&request)? {
            None => reply::lock(lock_request.start, lock_request.end, F_UNLCK, 0),
            Some(found) => {
                let last = if found.range.end >= LockRange::END { i64::MAX as u64 } else { found.range.end - 1 };
                let kind = if found.exclusive { F_WRLCK } else { F_RDLCK };
                reply::lock(found.range.start, last, kind, found.process)
            }
        })
    }

    /// A process closed a descriptor of the file: its record locks on it go.
    pub(super) fn flush(&self, header: &Header, handle: u64, owner: u64) -> Result<FixedReply> {
        self.keeps_locks()?;
        self.locks.closing.flushed(handle);
        self.drop_owners(header.node, |candidate| candidate.word == owner);
        Ok(FixedReply::new())
    }

    /// An open file is gone: so are the locks that belonged to it. (A process's own went with its last FLUSH.)
    pub(super) fn drop_locks_of_handle(&self, file: u64, handle: u64) {
        self.drop_owners(file, |candidate| {
            candidate.handles.retain(|&through| through != handle);
            candidate.handles.is_empty()
        });
    }

    /// Nothing is locked by it any more: nobody needs to wait for that.
    pub(super) fn end_of_handle(&self, handle: u64) {
        self.locks.closing.released(handle);
    }

    fn drop_owners(&self, file: u64, chosen: impl Fn(&mut Owner) -> bool) {
        if self.locks.count.load(Ordering::Relaxed) == 0 {
            return;
        }
        let file_system = &*self.file_system;
        let mut owners = lock(&self.locks.owners);
        let Some(of_file) = owners.get_mut(&file) else { return };
        of_file.retain_mut(|owner| {
            if !chosen(owner) {
                return true;
            }
            if owner.waiting > 0 {
                // A thread of the same process waits for more: it keeps the owner, but what it has goes.
                if let Ok(info) = file_system.shared().info(owner.description) {
                    let unlock = SharedRequest {
                        node: info.node,
                        owner: LockOwner::OpenFile(owner.description),
                        exclusive: None,
                        range: LockRange::ALL,
                        process: 0,
                    };
                    let _ = file_system.shared().try_lock(file_system, &unlock);
                }
                return true;
            }
            let _ = file_system.shared().close(file_system, owner.description);
            self.locks.count.fetch_sub(1, Ordering::Relaxed);
            false
        });
        if of_file.is_empty() {
            owners.remove(&file);
        }
    }

    /// The mount is gone, and nobody waits any more: nothing stays locked.
    pub(super) fn end_locks(&self) {
        let file_system = &*self.file_system;
        for owner in lock(&self.locks.owners).drain().flat_map(|(_, of_file)| of_file) {
            let _ = file_system.shared().close(file_system, owner.description);
        }
        self.locks.count.store(0, Ordering::Relaxed);
        self.locks.closing.clear();
    }
}
