//! Requests that wait: for others' locks, for the end of an open file that is being closed, for room, for what the kernel has yet to write back.
//!
//! Who must wait does so on a thread made for it: a server thread that waited could be the one that serves the unlock, or the write.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use gannet_vfs::shared::{LockOwner, LockRequest as SharedRequest};
use gannet_vfs::{Errno, InodeFlags, NodeId, Result};

use super::circles::{Circle, Look, Told};
use super::closing::Patience;
use super::locks::lock;
use super::room::Kept;
use super::seek::Seek;
use super::signals::Signals;
use super::{Dispatcher, Outcome};
use crate::protocol::request::{Header, LockRequest};
use crate::protocol::wire::FixedReply;

/// Requests of one mount that may wait at a time. Each has a thread, and over the ring an entry; any user of the mount can make one.
pub(super) const WAITERS_MAX: usize = 1024;
/// So many more, if it is not for a lock: those who wait for one may never end, and others still write, seek and set flags.
pub(super) const OTHERS_MAX: usize = 256;

/// A request that has to wait.
pub(crate) struct Wait {
    seat: Seat,
    header: Header,
    what_for: WaitsFor,
}

thread_local!(static LATE: Cell<bool> = const { Cell::new(false) });

/// Whether the calling thread answers a request that has waited. Nobody waits for such an answer to arrive: it must not say for how long
/// anything holds.
pub(super) fn is_late() -> bool {
    LATE.get()
}

/// One of those that may wait.
struct Seat(Arc<Dispatcher>);

impl Seat {
    /// Also above the limit, with `false`.
    fn take(dispatcher: &Arc<Dispatcher>, limit: usize) -> (Self, bool) {
        let before = dispatcher.locks.seats.fetch_add(1, Ordering::Relaxed);
        (Self(Arc::clone(dispatcher)), before < limit)
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.0.locks.seats.fetch_sub(1, Ordering::Relaxed);
    }
}

/// How many wait.
pub(super) type Seats = AtomicUsize;

/// What a request waits for.
pub(super) enum WaitsFor {
    /// Others' locks, or only a close that is under way (`impatient`).
    Lock { owner: Option<u64>, request: SharedRequest, told: Arc<Told>, impatient: bool },
    /// The end of an open file that had the owner's word.
    Predecessor { lock_request: LockRequest, wait: bool },
    /// Room in a full file system.
    Room(Kept),
    /// The pages of a file that the kernel may have.
    Pages(Seek),
    /// The same, before flags forbid to write.
    Flags { node: NodeId, flags: InodeFlags },
}

impl WaitsFor {
    /// How many may wait at a time when one of these is to.
    fn seats(&self) -> usize {
        match self {
            Self::Lock { .. } | Self::Predecessor { .. } => WAITERS_MAX,
            Self::Room(_) | Self::Pages(_) | Self::Flags { .. } => WAITERS_MAX + OTHERS_MAX,
        }
    }
}

/// What is in the way of a lock that is asked for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Blocker {
    /// Nothing that was there before is there still.
    Gone,
    /// The lock of an open file, by its handle, of which a descriptor was closed, maybe the last.
    Closing(u64),
    /// A lock that nobody is about to drop, as far as can be known.
    Stays,
}

impl Outcome {
    /// Of a request that may have waited.
    pub(super) fn late(reply: FixedReply) -> Self {
        Self::Late(Box::new(reply))
    }
}

impl Wait {
    /// Whose request it is.
    pub(crate) fn dispatcher(&self) -> &Arc<Dispatcher> {
        &self.seat.0
    }

    /// Whether it may be one of a circle.
    #[cfg(test)]
    pub(super) fn is_suspected(&self) -> bool {
        matches!(&self.what_for, WaitsFor::Lock { told, .. } if told.is_suspected())
    }

    /// Waits: to be called on a thread made for it.
    pub(crate) fn outcome(self) -> Outcome {
        LATE.set(true);
        let mut outcome = self.late_outcome();
        // Who has waited for one thing may have to wait for another. Always something is answered.
        while let Outcome::Waits(then) = outcome {
            outcome = then.late_outcome();
        }
        LATE.set(false);
        outcome
    }

    fn late_outcome(self) -> Outcome {
        let Self { seat, header, what_for } = self;
        let dispatcher = &seat.0;
        match what_for {
            WaitsFor::Lock { owner, request, told, impatient } => {
                let file_system = &*dispatcher.file_system;
                let (mut signals, mut look, mut deadlock) = (Signals::of(dispatcher, &header), Look::default(), false);
                let mut stop = || {
                    if look.is_due(&told) {
                        match dispatcher.leaves_circle(header.unique) {
                            Circle::No => {}
                            Circle::Suspected(_) => told.suspect(),
                            Circle::Yes => deadlock = true,
                        }
                    }
                    deadlock || told.to_stop() || dispatcher.has_ended() || signals.wait()
                };
                let locked = match impatient {
                    true => dispatcher.lock_after_close(&header, &request, &mut stop),
                    false => {
                        let mut lock = |user| file_system.shared().lock_for(user, file_system, &request, &mut stop);
                        dispatcher.for_user(&header, &mut lock)
                    }
                };
                dispatcher.waits_no_more(&header, owner, locked.is_ok());
                match locked {
                    Ok(()) => Outcome::Reply(0),
                    Err(_) if deadlock => Outcome::Error(Errno::DEADLK),
                    Err(error) => Outcome::Error(error.errno()),
                }
            }
            WaitsFor::Predecessor { lock_request, wait } => {
                dispatcher.wait_for_predecessor(header.node, &lock_request);
                let outcome = dispatcher.set_lock(&header, &lock_request, wait);
                outcome.unwrap_or_else(|error| Outcome::Error(error.errno()))
            }
            WaitsFor::Room(kept) => dispatcher.serve_with_room(&header, &kept),
            WaitsFor::Pages(seek) => dispatcher.seek_written(header.node, seek),
            WaitsFor::Flags { node, flags } => dispatcher.set_flags_written(header.node, node, flags),
        }
    }

    /// It cannot wait: nothing was locked, and nothing of it is left.
    pub(crate) fn refuse(self) -> Outcome {
        match self.what_for {
            WaitsFor::Lock { owner, impatient, .. } => {
                self.seat.0.waits_no_more(&self.header, owner, false);
                Outcome::Error(if impatient { Errno::AGAIN } else { Errno::NOLCK })
            }
            WaitsFor::Predecessor { .. } => Outcome::Error(Errno::NOLCK),
            WaitsFor::Room(_) => Outcome::Error(Errno::NOSPC),
            // Whatever was said could be wrong.
            WaitsFor::Pages(_) | WaitsFor::Flags { .. } => Outcome::Error(Errno::NOMEM),
        }
    }
}

impl Dispatcher {
    pub(super) fn waits(self: &Arc<Self>, header: &Header, what_for: WaitsFor) -> Outcome {
        let (seat, free) = Seat::take(self, what_for.seats());
        let wait = Wait { seat, header: *header, what_for };
        if free && !self.has_ended() { Outcome::Waits(Box::new(wait)) } else { wait.refuse() }
    }

    /// The end of a wait for a lock, with the lock or without.
    fn waits_no_more(&self, header: &Header, owner: Option<u64>, granted: bool) {
        if let Some(owner) = owner {
            self.leave_owner(header.node, owner);
        }
        self.forget_waiting(&mut lock(&self.locks.waiters), header.unique);
        if let Some(owner) = owner.filter(|_| granted) {
            self.was_granted(owner);
        }
    }

    /// What is in the way of `request`, and whether a close may be about to take it away.
    pub(super) fn blocker(&self, file: u64, request: &SharedRequest) -> Blocker {
        let look = || self.file_system.shared().test_lock(request);
        let owner = match look() {
            Ok(Some(found)) => found.owner,
            Ok(None) => return Blocker::Gone,
            Err(_) => return Blocker::Stays,
        };
        let handle = match owner {
            LockOwner::Process(_) => None,
            LockOwner::Flock(description) => Some(description.word()),
            // Used through more than one, it is a process's.
            LockOwner::OpenFile(description) => self
                .find_owner(file, description, |owner| owner.handles.clone())
                .and_then(|handles| if let [handle] = handles[..] { Some(handle) } else { None }),
        };
        if let Some(handle) = handle.filter(|&handle| self.locks.closing.is_closing(handle)) {
            return Blocker::Closing(handle);
        }
        // What is no longer known as closing may be closed by now: locks go before the knowledge does.
        match look() {
            Ok(Some(found)) if found.owner == owner => Blocker::Stays,
            _ => Blocker::Gone,
        }
    }

    /// Takes a lock that the last close of an open file is about to drop. `EAGAIN` if it does not.
    fn lock_after_close(&self, header: &Header, request: &SharedRequest, stop: &mut dyn FnMut() -> bool) -> Result<()> {
        let mut patience = Patience::new();
        loop {
            let shared = self.file_system.shared();
            let outcome = self.for_user(header, |user| shared.try_lock_for(user, &*self.file_system, request));
            if !matches!(&outcome, Err(error) if error.errno() == Errno::AGAIN) || stop() {
                return outcome;
            }
            let blocker = self.blocker(header.node, request);
            if blocker == Blocker::Stays {
                return outcome;
            }
            if !patience.lasts() {
                if let Blocker::Closing(handle) = blocker {
                    self.locks.closing.stays(handle);
                }
                return outcome;
            }
        }
    }
}
