//! Leaving: in order, behind the gate, and what is left out when the whole process ends.

use crate::error::{Error, Result};
use crate::file::Gate;
use crate::participant::View;
use crate::session::{Detached, IN_CHARGE, READY, READY_AT, Session, VolumeGuard};
use crate::slot::Kind;
use crate::thread::{load_state, mark_dead};
use std::sync::atomic::Ordering as Plain;

impl Session {
    /// The process is about to end, and all its memory with it: from here on it takes and gives back only what others would miss.
    /// Its threads must not begin operations any more but the calling one, which may still close what it has open, and detach.
    pub fn expect_end(&self) {
        self.page.fields().is_ending.store(1, Plain::Relaxed);
    }

    pub(crate) fn is_ending(&self) -> bool {
        self.page.fields().is_ending.load(Plain::Relaxed) != 0
    }

    /// Leaves. No thread of this process may be inside an operation; their slots are settled as if
    /// they had died. Owners' `participant_gone` is called for this participant. The last one
    /// settles what others left and calls `guard.last`.
    ///
    /// After an error of an owner or the guard this process has left all the same.
    pub fn detach(&self, guard: &mut dyn VolumeGuard) -> Result<Detached> {
        if self.file.is_some() && !self.has_joined() && !self.detached.swap(true, Plain::Relaxed) {
            // A forked child that never used the volume has nothing here.
            return Ok(Detached::OthersRemain);
        }
        // Before the gate, which a child that joins must pass as well.
        self.thread()?;
        let incarnation = self.incarnation();
        let gate = match &self.file {
            None => None,
            Some(path) => Some(path.gate()?.ok_or(Error::Detached)?),
        };
        let mut has_ended = false;
        let result = self.detach_behind_gate(guard, gate.as_ref(), &mut has_ended);
        self.detached.store(true, Plain::Relaxed);
        self.forget_thread(incarnation);
        self.leave_record();
        // Not waiting: a thread that did not survive a fork may have it for ever.
        if self.is_ending() {
            // The memory goes with the process.
        } else if let Ok(mut reapers) = self.reapers.try_write() {
            reapers.clear();
        }
        drop(gate);
        if has_ended {
            crate::leftovers::remove_leftovers_behind(self.arena_identity());
        }
        result
    }

    /// `has_ended`: the arena's name is gone.
    fn detach_behind_gate(
        &self,
        guard: &mut dyn VolumeGuard,
        gate: Option<&Gate>,
        has_ended: &mut bool,
    ) -> Result<Detached> {
        let me = self.thread()?;
        let settled = (|| {
            self.mark_own_threads_dead(Some(me.slot()))?;
            self.reap_threads_of(&me, self.participant())?;
            self.tell_gone(&me, self.participant())
        })();
        if let Some(gate) = gate
            && !self.arena().is_in(gate.fd())?
        {
            // The name leads to another arena here, where we are nobody.
            return settled.map(|()| Detached::OthersRemain);
        }
        let mut view = gate.map_or(View::None, |gate| View::Lent(gate.fd()));
        for index in 0..self.participants().used() {
            let Some(id) = self.participants().live(index) else { continue };
            if id != self.participant() && self.participants().seems_alive(id, || self.namespace(), &mut view)? {
                // Those who stay find the dead.
                return settled.map(|()| Detached::OthersRemain);
            }
        }
        let settled = settled.and_then(|()| self.reap_dead());
        if let (Some(path), Some(gate)) = (&self.file, gate) {
            let state = self.arena().fixed(READY_AT);
            state.store(IN_CHARGE, Plain::SeqCst);
            // Who came in, if the program took the gate's descriptor away, is not to find the arena gone: then it is one of the killed.
            if !path.leads_to(gate.fd()).unwrap_or(false) {
                state.store(READY, Plain::SeqCst);
                return settled.map(|_| Detached::OthersRemain);
            }
        }
        // Unclean is what a volume is whose state could not be settled.
        let last = settled.and_then(|_| guard.last(self, self.arena_identity()));
        if let Some(path) = &self.file {
            path.unlink()?;
            *has_ended = true;
        }
        last.map(|()| Detached::Last)
    }

    /// Whatever slots this process has, but one, are to be settled: their threads are at rest.
    pub(crate) fn mark_own_threads_dead(&self, except: Option<u32>) -> Result<()> {
        for slot in 0..self.slots_used() {
            let state = load_state(&self.arena, slot)?;
            let ours = u32::from(state.by) == self.participant().index;
            if matches!(state.kind, Kind::Join | Kind::Live) && ours && except != Some(slot) {
                mark_dead(&self.arena, slot);
            }
        }
        Ok(())
    }

    /// Gives up the participant's record and byte.
    pub(crate) fn leave_record(&self) {
        let fields = self.page.fields();
        if fields.incarnation.swap(0, Plain::AcqRel) != 0 {
            self.participants().leave(self.participant());
            // A record whose byte is still locked is not taken by others: the end of the process unlocks it.
            if !self.is_ending() {
                self.give_up_byte();
            }
        }
    }
}
