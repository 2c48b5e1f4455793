//! Fork without a gap: the child is a participant before it exists, so what it inherits (open file
//! descriptions, above all) is never without somebody who references it.
//!
//! Before the fork the parent takes a record and a byte for the child, its mapping this time one
//! that is inherited; after it, the parent gives its copy up and the child closes the inheritance
//! to its own children. A child forked without this joins at its first operation, if somebody
//! still has the volume open then.

use crate::error::{Error, Result};
use crate::file::LifeLock;
use crate::participant::{ParticipantId, Process};
use crate::session::Session;

/// A participant's place kept for the child of a coming fork. Dropped without use: given up.
#[derive(Debug)]
#[must_use = "call `parent` and `child` after the fork"]
pub struct ForkTicket<'s> {
    session: &'s Session,
    id: ParticipantId,
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
        let gate = match self.file() {
            None => None,
            Some(path) => Some(path.gate()?.ok_or(Error::Detached)?),
        };
        let (id, lock) = self.take_record(&Process::unknown(), gate.is_some(), true)?;
        Ok(ForkTicket { session: self, id, lock, used: false })
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
        if let Some(lock) = &lock {
            lock.keep_from_children()?;
        }
        self.session.become_participant(self.id, lock);
        Ok(())
    }
}

impl Drop for ForkTicket<'_> {
    fn drop(&mut self) {
        if !self.used {
            self.session.participants().leave(self.id);
        }
    }
}
