//! What a process has over an exec, which makes it another participant: kept by a place of its own until the new program, a participant
//! already, has made itself a user of the same ([`Shared::adopt`]) and takes over the rest.

use super::{Description, Shared, error_of};
use crate::Result;
use gannet_shm::{ExecTicket, ParticipantId};
use rustix::fd::AsFd;

impl Shared {
    /// Before an exec: a place that uses `descriptions` and, with `locks`, has this process's POSIX locks. `None` if there is nothing
    /// to keep, or the arena is one that no exec survives. `EMFILE` or `ENFILE` where a descriptor more is too many.
    pub fn keep_over_exec(
        &self,
        descriptions: &mut dyn Iterator<Item = Description>,
        locks: bool,
    ) -> Result<Option<ExecTicket<'_>>> {
        let mut descriptions = descriptions.peekable();
        let session = self.session();
        let locks = locks && session.has_joined() && self.has_process_locks(session.participant())?;
        if descriptions.peek().is_none() && !locks {
            return Ok(None);
        }
        let Some(ticket) = session.prepare_exec().map_err(error_of)? else { return Ok(None) };
        self.give(ticket.participant(), &mut descriptions)?;
        if locks && let Err(error) = self.move_process_locks(session.participant(), ticket.participant()) {
            self.exec_failed(ticket, true)?;
            return Err(error);
        }
        Ok(Some(ticket))
    }

    /// The exec failed: what was kept is this process's again.
    pub fn exec_failed(&self, ticket: ExecTicket<'_>, locks: bool) -> Result<()> {
        if locks {
            self.move_process_locks(ticket.participant(), self.session().participant())?;
        }
        self.take_back(ticket.participant())
    }

    /// In the new program, which has adopted the descriptions: the rest is taken over, and the place given up if it is one that
    /// `life` keeps. The caller closes that. Whether there were POSIX locks.
    pub fn take_over(&self, place: ParticipantId, life: impl AsFd) -> Result<bool> {
        let session = self.session();
        session.thread().map_err(error_of)?;
        if !session.is_place(place, life).map_err(error_of)? {
            return Ok(false);
        }
        let locks = self.has_process_locks(place)?;
        if locks {
            self.move_process_locks(place, session.participant())?;
        }
        self.take_back(place)?;
        session.leave_place(place);
        Ok(locks)
    }
}
