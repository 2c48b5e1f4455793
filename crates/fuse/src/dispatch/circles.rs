//! Circles: requests that wait for record locks, each for what the owner of the next one holds.
//!
//! Whose request closes one is told (`EDEADLK`), and only that one: who looks has the waiters locked, and whoever is told is no longer one.
//! An owner that waits gets nothing, so a circle is closed by the last of its waits, and is seen when that begins, if all locks in the
//! way are looked at. Only a process with several threads can get a lock while it waits for another: then it looks again, after a
//! moment, for what a thread has got it may soon release. Knows the waiting requests and their owners; what they hold is asked of `locks`.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
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
/// How long it takes until a waiter looks again, whose owner got another lock.
const LOOK: Duration = Duration::from_millis(250);

/// What others tell a waiter.
#[derive(Default)]
pub(super) struct Told {
    stop: AtomicBool,
    look: AtomicBool,
}

impl Told {
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
        if told.look.swap(false, Ordering::Relaxed) && self.0.is_none() {
            self.0 = Some(Instant::now() + LOOK);
        }
        self.0.take_if(|due| Instant::now() >= *due).is_some()
    }
}

/// A request that waits for a lock.
pub(super) struct Waiting {
    pub(super) told: Arc<Told>,
    /// The kernel's owner of a record lock.
    owner: Option<u64>,
    /// The kernel's id of the file.
    file: u64,
    thread: u32,
    request: SharedRequest,
}

impl Waiting {
    pub(super) fn new(header: &Header, owner: Option<u64>, request: SharedRequest) -> Self {
        Self { told: Arc::default(), owner, file: header.node, thread: header.process, request }
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
    pub(super) fn insert(&mut self, unique: u64, waiting: Waiting) {
        if let Some(at) = self.early.iter().position(|&early| early == unique) {
            self.early.swap_remove(at);
            waiting.told.stop.store(true, Ordering::Relaxed);
        }
        if let Some(owner) = waiting.owner {
            self.by_owner.entry(owner).or_default().push(unique);
        }
        self.by_request.insert(unique, waiting);
    }

    /// A request waits no more, if it did.
    pub(super) fn remove(&mut self, unique: u64) {
        if let Some(owner) = self.by_request.remove(&unique).and_then(|waiting| waiting.owner)
            && let Some(of_owner) = self.by_owner.get_mut(&owner)
        {
            of_owner.retain(|&other| other != unique);
            if of_owner.is_empty() {
                self.by_owner.remove(&owner);
            }
        }
    }

    fn of_owner(&self, owner: u64) -> impl Iterator<Item = &Waiting> {
        let of_owner = self.by_owner.get(&owner).into_iter().flatten();
        of_owner.filter_map(|unique| self.by_request.get(unique))
    }

    /// An owner got a lock. If it waits for others, that may have closed a circle.
    pub(super) fn granted(&self, owner: u64) {
        self.of_owner(owner).for_each(|waiting| waiting.told.look.store(true, Ordering::Relaxed));
    }
}

impl Dispatcher {
    /// Whether the owner of a request would wait for itself: for one that waits, or that waits for another that waits, for what it holds.
    pub(super) fn is_circle(&self, waiters: &Waiters, waiting: &Waiting) -> bool {
        let Some(owner) = waiting.owner else { return false };
        // Linux looks for none when the lock of an open file is asked for, and does not see who waits for one; but the first lock in the
        // way may be one. Which they are the kernel does not say; that is looked up only if it matters.
        self.leads_back(waiters, owner, waiting, |_| true)
            && !waits_for_open_file_lock(waiting.thread)
            && self.leads_back(waiters, owner, waiting, |other| !waits_for_open_file_lock(other.thread))
    }

    fn leads_back(&self, waiters: &Waiters, owner: u64, from: &Waiting, counts: impl Fn(&Waiting) -> bool) -> bool {
        let (mut reached, mut followed) = (HashSet::new(), 0);
        let mut waits = vec![from];
        while let Some(waiting) = waits.pop() {
            // Another participant of the volume is looked at by nobody: what it waits for is not known here.
            for holder in self.owners_in_the_way(waiting.file, &waiting.request) {
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

    /// Whether a waiting request is one of a circle. Then it waits no more: the others of it see none.
    pub(super) fn leaves_circle(&self, unique: u64) -> bool {
        let mut waiters = lock(&self.locks.waiters);
        let is_circle = waiters.by_request.get(&unique).is_some_and(|waiting| self.is_circle(&waiters, waiting));
        if is_circle {
            waiters.remove(unique);
        }
        is_circle
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
