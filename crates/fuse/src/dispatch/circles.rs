//! Circles: requests that wait for record locks, each for what the owner of the next one holds.
//!
//! Whose request closes one is told (`EDEADLK`), and only that one: who looks has the waiters locked, and whoever is told is no longer one.
//! An owner that waits gets nothing, so a circle is closed by the last of its waits, and is seen when that begins, if all locks in the
//! way are looked at. Only a process with several threads can get a lock while it waits for another: then it looks again, after a
//! moment, for what a thread has got it may soon release. Knows the waiting requests and their owners; what they hold is asked of `locks`.
//! Who is to be told depends on what the threads of the circle wait for, and a thread can be asked once it sleeps: so a circle is only
//! suspected when a wait begins, and the thread that the request waits on finds out, asking without a lock.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering, fence};
use std::time::{Duration, Instant};

use gannet_vfs::shared::LockRequest as SharedRequest;

use super::Dispatcher;
use super::callers::waits_for_open_file_lock;
use super::locks::lock;
use crate::protocol::request::Header;

/// Interrupts that came before their requests were seen to wait: the latest are remembered.
const EARLY_MAX: usize = 64;
/// Waiting requests that are followed in search of a circle. A longer one is not seen.
const FOLLOWED_MAX: usize = 256;
/// Locks that are looked at in one search, in their way or not. A circle behind more is not seen.
const LOOKED_AT_MAX: usize = 1 << 18;
/// How long it takes until a waiter looks again, whose owner got another lock.
const LOOK: Duration = Duration::from_millis(250);

/// What others tell a waiter.
#[derive(Default)]
pub(super) struct Told {
    stop: AtomicBool,
    look: AtomicBool,
    suspected: AtomicBool,
}

impl Told {
    /// It may be one of a circle.
    pub(super) fn suspect(&self) {
        self.suspected.store(true, Ordering::Relaxed);
    }

    #[cfg(test)]
    pub(super) fn is_suspected(&self) -> bool {
        self.suspected.load(Ordering::Relaxed)
    }

    /// Whether a signal came.
    pub(super) fn to_stop(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}

/// When a waiter looks for a circle again.
#[derive(Default)]
pub(super) struct Look(Option<Instant>);

impl Look {
    /// Whether it is time to, once for whatever was told meanwhile.
    pub(super) fn is_due(&mut self, told: &Told) -> bool {
        if told.suspected.swap(false, Ordering::Relaxed) {
            return true;
        }
        if told.look.swap(false, Ordering::Relaxed) && self.0.is_none() {
            self.0 = Some(Instant::now() + LOOK);
        }
        self.0.take_if(|due| Instant::now() >= *due).is_some()
    }
}

/// Whether somebody who waits is one of a circle, and is to be told.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Circle {
    No,
    /// It depends on these: requests, and the threads that they come from.
    Suspected(Vec<(u64, u32)>),
    Yes,
}

/// A request that waits for a lock.
pub(super) struct Waiting {
    pub(super) told: Arc<Told>,
    unique: u64,
    /// Whether the lock is to belong to an open file, once that has been found out.
    of_open_file: Option<bool>,
    /// The kernel's owner of a record lock.
    owner: Option<u64>,
    /// The kernel's id of the file.
    file: u64,
    thread: u32,
    request: SharedRequest,
}

impl Waiting {
    pub(super) fn new(header: &Header, owner: Option<u64>, request: SharedRequest) -> Self {
        let (unique, thread) = (header.unique, header.process);
        Self { told: Arc::default(), unique, of_open_file: None, owner, file: header.node, thread, request }
    }
}

/// Those of a mount.
#[derive(Default)]
pub(super) struct Waiters {
    by_request: HashMap<u64, Waiting>,
    by_owner: HashMap<u64, Vec<u64>>,
    /// Interrupts of requests that are none of these.
    early: Vec<u64>,
}

impl Waiters {
    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.by_request.is_empty() && self.by_owner.is_empty()
    }

    /// A request waits; not for long if it was interrupted before.
    pub(super) fn insert(&mut self, waiting: Waiting) {
        let unique = waiting.unique;
        if let Some(at) = self.early.iter().position(|&early| early == unique) {
            self.early.swap_remove(at);
            waiting.told.stop.store(true, Ordering::Relaxed);
        }
        if let Some(owner) = waiting.owner {
            self.by_owner.entry(owner).or_default().push(unique);
        }
        self.by_request.insert(unique, waiting);
    }

    /// A request waits no more, if it did; its owner.
    fn remove(&mut self, unique: u64) -> Option<u64> {
        let owner = self.by_request.remove(&unique)?.owner?;
        if let Some(of_owner) = self.by_owner.get_mut(&owner) {
            of_owner.retain(|&other| other != unique);
            if of_owner.is_empty() {
                self.by_owner.remove(&owner);
            }
        }
        Some(owner)
    }

    fn of_owner(&self, owner: u64) -> impl Iterator<Item = &Waiting> {
        let of_owner = self.by_owner.get(&owner).into_iter().flatten();
        of_owner.filter_map(|unique| self.by_request.get(unique))
    }

    /// An owner got a lock. If it waits for others, that may have closed a circle.
    fn granted(&self, owner: u64) {
        self.of_owner(owner).for_each(|waiting| waiting.told.look.store(true, Ordering::Relaxed));
    }
}

const STRIPES: usize = 256;

/// How many requests of owners wait, or are about to, by a part of the owner's word: who gets a lock need not look among the waiting for
/// others of its own where there are none.
pub(super) struct Crowd([AtomicU32; STRIPES]);

impl Default for Crowd {
    fn default() -> Self {
        Self(std::array::from_fn(|_| AtomicU32::new(0)))
    }
}

impl Crowd {
    fn stripe(&self, owner: u64) -> &AtomicU32 {
        &self.0[(owner.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as usize % STRIPES]
    }

    /// Before a circle is looked for. An owner that gets a lock and does not see this has got it before that search looks.
    pub(super) fn enter(&self, owner: u64) {
        self.stripe(owner).fetch_add(1, Ordering::SeqCst);
    }

    fn leave(&self, owner: u64) {
        self.stripe(owner).fetch_sub(1, Ordering::SeqCst);
    }

    fn may_wait(&self, owner: u64) -> bool {
        fence(Ordering::SeqCst);
        self.stripe(owner).load(Ordering::SeqCst) > 0
    }
}

impl Dispatcher {
    /// An owner got a lock.
    pub(super) fn was_granted(&self, owner: u64) {
        if self.locks.crowd.may_wait(owner) {
            lock(&self.locks.waiters).granted(owner);
        }
    }

    /// A request waits no more, if it did.
    pub(super) fn forget_waiting(&self, waiters: &mut Waiters, unique: u64) {
        if let Some(owner) = waiters.remove(unique) {
            self.locks.crowd.leave(owner);
        }
    }

    /// Whether the owner of a request would wait for itself: for one that waits, or that waits for another that waits, for what it holds.
    pub(super) fn circle(&self, waiters: &Waiters, waiting: &Waiting) -> Circle {
        let Some(owner) = waiting.owner else { return Circle::No };
        // Linux looks for none when the lock of an open file is asked for, and does not see who waits for one; but the first lock in the
        // way may be one. Which they are the kernel does not say; that is looked up only if it matters.
        let mut unknown = Vec::new();
        if waiting.of_open_file == Some(true)
            || !self.leads_back(waiters, owner, waiting, |other| {
                if other.of_open_file.is_none() {
                    unknown.push((other.unique, other.thread));
                }
                other.of_open_file != Some(true)
            })
        {
            return Circle::No;
        }
        let is_known = waiting.of_open_file == Some(false);
        if is_known && self.leads_back(waiters, owner, waiting, |other| other.of_open_file == Some(false)) {
            return Circle::Yes;
        }
        if !is_known {
            unknown.push((waiting.unique, waiting.thread));
        }
        Circle::Suspected(unknown)
    }

    fn leads_back(
        &self,
        waiters: &Waiters,
        owner: u64,
        from: &Waiting,
        mut counts: impl FnMut(&Waiting) -> bool,
    ) -> bool {
        let (mut reached, mut followed, mut looks) = (HashSet::new(), 0, LOOKED_AT_MAX);
        let mut waits = vec![from];
        while let Some(waiting) = waits.pop() {
            // Another participant of the volume is looked at by nobody: what it waits for is not known here.
            for holder in self.owners_in_the_way(waiting.file, &waiting.request, &mut looks) {
                if holder == owner {
                    return true;
                }
                if !reached.insert(holder) {
                    continue;
                }
                let is_first = std::ptr::eq(waiting, from);
                let of_holder = waiters.of_owner(holder).take(FOLLOWED_MAX - followed).inspect(|_| followed += 1);
                waits.extend(of_holder.filter(|&other| is_first || counts(other)));
            }
        }
        false
    }

    /// Whether a waiting request is one of a circle. Then it waits no more: the others of it see none. May ask what threads are at; where
    /// that cannot be said yet, it is `Suspected`.
    pub(super) fn leaves_circle(&self, unique: u64) -> Circle {
        loop {
            let unknown = {
                let mut waiters = lock(&self.locks.waiters);
                let Some(waiting) = waiters.by_request.get(&unique) else { return Circle::No };
                match self.circle(&waiters, waiting) {
                    Circle::Suspected(unknown) => unknown,
                    Circle::Yes => {
                        self.forget_waiting(&mut waiters, unique);
                        return Circle::Yes;
                    }
                    Circle::No => return Circle::No,
                }
            };
            let asked =
                unknown.iter().filter_map(|&(unique, thread)| Some((unique, waits_for_open_file_lock(thread)?)));
            let learned: Vec<(u64, bool)> = asked.collect();
            if learned.is_empty() {
                return Circle::Suspected(unknown);
            }
            let mut waiters = lock(&self.locks.waiters);
            for (unique, of_open_file) in learned {
                if let Some(waiting) = waiters.by_request.get_mut(&unique) {
                    waiting.of_open_file = Some(of_open_file);
                }
            }
        }
    }

    /// A signal came for the caller of a request.
    pub(super) fn interrupt(&self, unique: u64) {
        let mut waiters = lock(&self.locks.waiters);
        if let Some(waiting) = waiters.by_request.get(&unique) {
            waiting.told.stop.store(true, Ordering::Relaxed);
        } else {
            if waiters.early.len() == EARLY_MAX {
                waiters.early.remove(0);
            }
            waiters.early.push(unique);
        }
    }
}
