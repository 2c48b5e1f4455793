//! Joining: a record and a byte for this process, or for one to come; anew after a fork.
//!
//! Behind the gate (see `file`). Who comes first, and who beside others, is `attach`'s.

use crate::attach::{TURN, TURNS_MAX};
use crate::error::{Error, Result, again};
use crate::facade::Ordering;
use crate::file::{self, ArenaPath, Gate, LifeLock};
use crate::layout::ArenaOffset;
use crate::opened::close_inherited_once;
use crate::participant::{ParticipantId, Process};
use crate::private::next_incarnation;
use crate::session::{ARENA_ID_AT, ArenaIdentity, READY, READY_AT, Session};
use rustix::fd::{AsFd, AsRawFd};
use rustix::thread::nanosleep;
use std::sync::atomic::{Ordering as Plain, fence};

impl Session {
    /// Takes a participant's record for this process and a new incarnation. Behind the gate, if
    /// there is one.
    pub(crate) fn join(&self, gate: Option<&Gate>) -> Result<()> {
        let process = self.own_process();
        let (id, lock) = self.take_record(&process, gate, false)?;
        // Whoever came through the gate before the record said that it lives took this process for nobody.
        fence(Plain::SeqCst);
        if let (Some(gate), Some(path)) = (gate, &self.file)
            && !path.leads_to(gate.fd()).unwrap_or(false)
        {
            self.participants().leave(id);
            return Err(Error::displaced());
        }
        self.enter(id, lock, Some(process.namespace()));
        Ok(())
    }

    /// What the record of this process says at first.
    fn own_process(&self) -> Process {
        if self.file.is_none() { Process::current_and_birth() } else { Process::current() }
    }

    /// A record and its byte for `process`: this one, or one to come.
    pub(crate) fn take_record(
        &self,
        process: &Process,
        gate: Option<&Gate>,
        is_to_come: bool,
    ) -> Result<(ParticipantId, Option<LifeLock>)> {
        let mut locked: Option<LifeLock> = None;
        let mut take_byte = |index| {
            let (Some(gate), Some(path)) = (gate, &self.file) else { return Ok(true) };
            // The record was somebody else's after all.
            locked = None;
            locked = gate.lock_life(path, index, is_to_come)?;
            Ok(locked.is_some())
        };
        let id = if is_to_come {
            self.join_for_another(gate.is_some(), &mut take_byte)?
        } else {
            self.participants().join(process, u32::MAX, gate.is_some(), &mut take_byte)?
        };
        Ok((id, locked))
    }

    /// A record for a process to come, by one that has joined. Who comes by itself cannot settle the dead before it has joined: so
    /// some records are left to it, as long as the dead have others.
    pub(crate) fn join_for_another(
        &self,
        exclusive: bool,
        take_byte: &mut dyn FnMut(u32) -> Result<bool>,
    ) -> Result<ParticipantId> {
        let all = self.participants().count();
        match self.participants().join(&Process::unknown(), all - all / 8, exclusive, take_byte) {
            Err(Error::Full { .. }) => {
                self.reap_dead()?;
                self.participants().join(&Process::unknown(), all, exclusive, take_byte)
            }
            taken => taken,
        }
    }

    /// Calls an owner's guard: while it runs, who looks for the dead looks through the gate's open file.
    pub(crate) fn behind<T>(&self, gate: &Gate, call: impl FnOnce() -> T) -> T {
        self.held_gate.store(gate.fd().as_raw_fd(), Plain::Relaxed);
        let result = call();
        self.held_gate.store(-1, Plain::Relaxed);
        result
    }

    /// This process is participant `id` from here on. `namespace`: what the record says, 0 for nothing yet; `None` if it does not even
    /// say who it is.
    fn enter(&self, id: ParticipantId, lock: Option<LifeLock>, namespace: Option<u64>) {
        let fields = self.page.fields();
        // A child forked while another thread was behind the gate has not got that.
        self.held_gate.store(-1, Plain::Relaxed);
        self.namespace.store(namespace.unwrap_or(0), Plain::Relaxed);
        fields.participant.store(u64::from(id.index), Plain::Relaxed);
        fields.generation.store(id.generation, Plain::Relaxed);
        fields.byte_lock.store(lock.map_or(0, |lock| lock.into_address() as u64), Plain::Relaxed);
        fields.is_described.store(u64::from(namespace.is_some()), Plain::Relaxed);
        fields.has_said_namespace.store(u64::from(namespace.is_some_and(|said| said != 0)), Plain::Relaxed);
        fields.incarnation.store(next_incarnation(), Plain::Release);
    }

    /// Takes a place that was kept for this process over a fork, by participant `parent`.
    pub(crate) fn become_participant(&self, id: ParticipantId, lock: Option<LifeLock>, parent: u32) -> Result<()> {
        let _alone = self.page.exclusive();
        self.arena.map_page(ArenaOffset::new(READY_AT));
        self.arena.map_page(self.participants().place(id.index));
        if self.participants().live(id.index) != Some(id) {
            return Err(Error::Detached);
        }
        match &lock {
            // Most children execute something else, or end, before they do anything here.
            Some(byte) => {
                byte.keep_from_children()?;
                self.participants().describe_child(id.index, parent);
                self.enter(id, lock, None);
            }
            None => {
                let process = Process::current_and_birth();
                self.participants().describe(id.index, &process);
                self.enter(id, None, Some(process.namespace()));
            }
        }
        Ok(())
    }

    /// Says in the record who this process is, if a fork left that for now.
    pub(crate) fn describe_self(&self) {
        let fields = self.page.fields();
        if fields.is_described.load(Plain::Acquire) != 0 {
            return;
        }
        let _alone = self.page.exclusive();
        if fields.is_described.load(Plain::Relaxed) == 0 {
            self.participants().describe(self.participant().index, &self.own_process());
            fields.is_described.store(1, Plain::Release);
        }
    }

    /// The incarnation, after joining if this is a forked child.
    pub(crate) fn joined(&self) -> Result<u64> {
        let incarnation = self.incarnation();
        if incarnation != 0 {
            return Ok(incarnation);
        }
        let _alone = self.page.exclusive();
        if self.detached.load(Plain::Relaxed) {
            return Err(Error::Detached);
        }
        if self.incarnation() == 0 {
            match &self.file {
                None => self.join(None)?,
                Some(path) => {
                    close_inherited_once();
                    again(|| self.join_anew(path))?;
                }
            }
        }
        Ok(self.incarnation())
    }

    fn join_anew(&self, path: &ArenaPath) -> Result<()> {
        let mut turns = 0;
        let gate = loop {
            let gate = path.gate()?.ok_or(Error::Detached)?;
            // The same arena still? Another one at that name means that all had left ours.
            if !file::any_life(gate.fd())? || read_identity(gate.fd())? != self.arena_identity() {
                break gate;
            }
            if self.arena.fixed(READY_AT).load(Ordering::Acquire) == READY {
                return self.join(Some(&gate));
            }
            if turns == TURNS_MAX {
                break gate;
            }
            turns += 1;
            drop(gate);
            let _ = nanosleep(&TURN);
        };
        Err(if path.leads_to(gate.fd())? { Error::Detached } else { Error::displaced() })
    }
}

fn read_identity(fd: impl AsFd) -> Result<ArenaIdentity> {
    let mut bytes = [0u8; 8];
    let read = rustix::io::pread(fd, &mut bytes, ARENA_ID_AT).map_err(Error::system("read the arena"))?;
    Ok(ArenaIdentity(if read == 8 { u64::from_le_bytes(bytes) } else { 0 }))
}
