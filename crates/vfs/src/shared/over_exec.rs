//! What a process has over an exec, which makes it another participant: kept by a place of its own until the new program, a participant
//! already, has made itself a user of the same ([`Shared::adopt`]) and takes over the rest.

use super::{Description, Shared, error_of};
use crate::{FileSystem, Result};
use gannet_shm::{ExecTicket, ParticipantId};
use rustix::fd::AsFd;

impl Shared {
    /// Before an exec: a place that uses `descriptions` and, with `locks`, has this process's POSIX locks. `None` if there is nothing
    /// to keep, or nothing can be kept: in an arena that no exec survives, or that this process may no longer open.
    /// `shares_memory`: the caller is a `vfork` child. `EMFILE` or `ENFILE` where a descriptor more is too many.
    pub fn keep_over_exec(
        &self,
        descriptions: &[Description],
        locks: bool,
        shares_memory: bool,
    ) -> Result<Option<ExecTicket<'_>>> {
        let session = self.session();
        let locks = locks && session.has_joined() && self.has_process_locks(session.participant())?;
        if descriptions.is_empty() && !locks {
            return Ok(None);
        }
        let Some(ticket) = session.prepare_exec(shares_memory).map_err(error_of)? else { return Ok(None) };
        self.give(ticket.participant(), &mut descriptions.iter().copied())?;
        if locks && let Err(error) = self.move_process_locks(session.participant(), ticket.participant()) {
            let _ = self.move_process_locks(ticket.participant(), session.participant());
            self.take_back(ticket.participant())?;
            return Err(error);
        }
        Ok(Some(ticket))
    }

    /// The exec failed: what was kept is this process's alone again.
    pub fn exec_failed(
        &self,
        fs: &dyn FileSystem,
        ticket: ExecTicket<'_>,
        descriptions: &[Description],
        locks: bool,
    ) -> Result<()> {
        let moved = match locks {
            true => self.move_process_locks(ticket.participant(), self.session().participant()),
            false => Ok(()),
        };
        self.end_use(fs, ticket.participant(), descriptions);
        moved
    }

    /// In the new program, which has adopted what it inherited of `descriptions`, all that the place uses: the rest is taken over, and
    /// the place given up if it is one that `life` keeps. The caller closes that. Whether there were POSIX locks.
    pub fn take_over(
        &self,
        fs: &dyn FileSystem,
        place: ParticipantId,
        life: impl AsFd,
        descriptions: &[Description],
    ) -> Result<bool> {
        let session = self.session();
        session.thread().map_err(error_of)?;
        if !session.is_place(place, life).map_err(error_of)? {
            return Ok(false);
        }
        let locks = self.has_process_locks(place)?;
        if locks {
            self.move_process_locks(place, session.participant())?;
        }
        self.end_use(fs, place, descriptions);
        session.leave_place(place);
        Ok(locks)
    }

    /// A place no longer uses these. What is gone already is none of its.
    fn end_use(&self, fs: &dyn FileSystem, place: ParticipantId, descriptions: &[Description]) {
        for description in descriptions {
            let _ = self.close_for(fs, place, *description);
        }
    }
}
