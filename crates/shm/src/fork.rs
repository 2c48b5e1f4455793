//! Fork, exec and vfork.
//!
//! Fork without a gap: the child is a participant before it exists, so what it inherits (open file
//! descriptions, above all) is never without somebody who references it.
//!
//! Before the fork the parent takes a record and a byte for the child, its mapping this time one
//! that is inherited; after it, the parent gives its copy up and the child closes the inheritance
//! to its own children. A child forked without this joins at its first operation, if somebody
//! still has the volume open then.
//!
//! A `vfork` child has its parent's memory, and acts in the name of its parent's thread, which waits. When that is killed the kernel
//! says of the thread, and others of the process, that they are dead, while the child may be in the middle of something. So it says in
//! the thread's slot that it acts: first that, then it looks whether the thread is dead already; others look the other way
//! round. While it acts neither the thread nor the participant counts as dead, and it begins nothing in the name of the dead.

use crate::error::{Error, Result, again};
use crate::facade::{Ordering, fence};
use crate::file::{ArenaPath, LifeLock};
use crate::opened::{Coming, close_what_others_left};
use crate::participant::{ParticipantId, Process};
use crate::session::Session;
use crate::slot;
use crate::thread::Thread;
use rustix::fd::{AsFd, BorrowedFd, IntoRawFd, OwnedFd};
use rustix::io::FdFlags;

/// A participant's place kept for the child of a coming fork. Dropped without use: given up.
#[derive(Debug)]
#[must_use = "call `parent` and `child` after the fork"]
pub struct ForkTicket<'s> {
    session: &'s Session,
    id: ParticipantId,
    /// Index of the participant that forks.
    parent: u32,
    lock: Option<LifeLock>,
    used: bool,
}

impl Session {
    /// Prepares a fork by the calling thread: takes the child's place. Owners then add the
    /// child's references ([`ForkTicket::participant`]). After the fork the parent calls
    /// [`ForkTicket::parent`], the child [`ForkTicket::child`]. A child that another thread forks
    /// in between without a ticket would keep this one's byte locked while it lives.
    pub fn prepare_fork(&self) -> Result<ForkTicket<'_>> {
        self.joined()?;
        let (id, lock) = again(|| {
            let gate = match self.file() {
                None => None,
                Some(path) => Some(path.gate()?.ok_or(Error::Detached)?),
            };
            self.take_record(&Process::unknown(), gate.as_ref(), true)
        })?;
        Ok(ForkTicket { session: self, id, parent: self.participant().index, lock, used: false })
    }
}

/// A participant's place kept over an exec. Dropped: given up.
#[derive(Debug)]
#[must_use = "the place is given up when this is dropped"]
pub struct ExecTicket<'s> {
    session: &'s Session,
    id: ParticipantId,
    /// Dropped before its place on the list. `None`: another process's.
    life: Option<OwnedFd>,
    /// `None` where no other thread can fork a child that has it.
    _listed: Option<Coming>,
}

impl Session {
    /// Prepares an exec: takes a place for the program to come, whose byte a descriptor keeps
    /// locked that exec does not close. Owners then add to it what shall live on. The new program
    /// attaches, takes over ([`Session::is_place`]) and calls [`Session::leave_place`]; this process's own
    /// participation ends with its memory at exec. If exec fails, owners take back what they gave, and the ticket is dropped.
    /// Who is killed on the way leaves a dead participant, as any other does.
    ///
    /// `shares_memory`: the caller is a `vfork` child. `None` for a private arena, which no exec survives, and where this process may no
    /// longer open the arena, as the new program may not.
    pub fn prepare_exec(&self, shares_memory: bool) -> Result<Option<ExecTicket<'_>>> {
        self.joined()?;
        let Some(path) = self.file() else { return Ok(None) };
        let gate = match path.gate() {
            Err(Error::Foreign { .. }) => return Ok(None),
            gate => gate?.ok_or(Error::Detached)?,
        };
        gate.expect_another();
        let life = path.open_to_keep()?;
        let mut locked = None;
        let mut take_byte = |index| {
            // The record was somebody else's after all.
            if let Some(index) = locked.take() {
                ArenaPath::unshare_byte(&life, index)?;
            }
            let is_ours = ArenaPath::share_byte(&life, index)?;
            locked = is_ours.then_some(index);
            Ok(is_ours)
        };
        let id = self.join_for_another(true, &mut take_byte)?;
        let listed = gate.open_keeping(&life).filter(|_| !shares_memory);
        let ticket = ExecTicket { session: self, id, life: Some(life), _listed: listed };
        rustix::io::fcntl_setfd(ticket.life(), FdFlags::empty())
            .map_err(Error::system("keep a descriptor over exec"))?;
        Ok(Some(ticket))
    }

    /// In the program after an exec: whether `life` is the descriptor that keeps `place` in this arena.
    pub fn is_place(&self, place: ParticipantId, life: impl AsFd) -> Result<bool> {
        let is_ours = self.file().map_or(Ok(false), |path| path.leads_to(life))?;
        Ok(is_ours && self.participants().live(place.index) == Some(place))
    }

    /// In the program after an exec that is a participant of its own and has taken over all that owners gave: gives the place up. The
    /// caller closes what kept it.
    pub fn leave_place(&self, place: ParticipantId) {
        self.participants().leave(place);
    }

    /// In a child that shares its parent's memory (vfork, posix_spawn), around whatever it does here: until the guard is dropped the
    /// parent's thread lives on in it, even if it is killed. `Detached` if it has been.
    pub fn act_for_parent(&self) -> Result<ActingChild<'_>> {
        let thread = self.thread()?;
        let child = u64::from(rustix::process::getpid().as_raw_pid() as u32);
        let acting = &thread.words()[slot::ACTING_CHILD];
        if acting.compare_exchange(0, child, Ordering::AcqRel, Ordering::Relaxed).is_err() {
            // Another's, who has the slot since the thread died.
            return Err(Error::Detached);
        }
        let guard = ActingChild { thread, child, incarnation: self.incarnation() };
        // Who finds the thread dead looks for the child afterwards: one of the two sees the other.
        fence(Ordering::SeqCst);
        if thread.is_still_ours()? { Ok(guard) } else { Err(Error::Detached) }
    }

    /// In the parent, when a child that shared its memory (vfork, posix_spawn) has gone its way: if
    /// it was killed inside an operation, what it held stands under the calling thread's slot.
    /// Settles that. The caller must have had nothing locked and nothing in hand when it forked.
    pub fn after_vfork(&self) -> Result<()> {
        close_what_others_left();
        let me = self.thread()?;
        me.words()[slot::ACTING_CHILD].store(0, Ordering::Release);
        let slot = me.slot();
        // A slot that the child took has its number, under which nobody would find this thread.
        let is_own = me.words()[slot::TID].load(Ordering::Relaxed) == rustix::thread::gettid().as_raw_pid() as u64;
        if is_own && me.holds_nothing() {
            return Ok(());
        }
        self.abandon_thread();
        self.reap_slot(&self.thread()?, slot, false).map(|_| ())
    }
}

/// A `vfork` child does something in the name of its parent's thread.
#[derive(Debug)]
#[must_use = "the child acts until this is dropped"]
pub struct ActingChild<'s> {
    thread: Thread<'s>,
    child: u64,
    incarnation: u64,
}

impl Drop for ActingChild<'_> {
    fn drop(&mut self) {
        // Not in what the child forked meanwhile, which has a copy of this.
        if self.thread.session().incarnation() != self.incarnation {
            return;
        }
        let acting = &self.thread.words()[slot::ACTING_CHILD];
        let _ = acting.compare_exchange(self.child, 0, Ordering::AcqRel, Ordering::Relaxed);
    }
}

impl ExecTicket<'_> {
    /// The place.
    pub fn participant(&self) -> ParticipantId {
        self.id
    }

    /// The descriptor that keeps the place; tell the new program its number.
    pub fn life(&self) -> BorrowedFd<'_> {
        self.life.as_ref().expect("only who forgets the ticket takes it").as_fd()
    }

    /// In the parent of a `vfork` child that took the ticket and executed a program, or is gone: the place is not ours, nor the
    /// descriptor.
    pub fn forget(mut self) {
        let _ = self.life.take().map(IntoRawFd::into_raw_fd);
    }
}

impl Drop for ExecTicket<'_> {
    fn drop(&mut self) {
        if self.life.is_some() {
            self.session.participants().leave(self.id);
        }
    }
}

impl ForkTicket<'_> {
    /// Who the child will be.
    pub fn participant(&self) -> ParticipantId {
        self.id
    }

    /// In the parent, after the fork. If there is no child after all, its place is given up, and
    /// owners must have taken back what they gave it.
    pub fn parent(mut self, forked: bool) {
        self.used = forked;
    }

    /// In the child, before anything else of this session: takes the place.
    pub fn child(mut self) -> Result<()> {
        self.used = true;
        let lock = self.lock.take();
        self.session.become_participant(self.id, lock, self.parent)
    }
}

impl Drop for ForkTicket<'_> {
    fn drop(&mut self) {
        if !self.used {
            self.session.participants().leave(self.id);
        }
    }
}
