//! Joining and leaving: first, beside others, last; again after a fork.
//!
//! All behind the gate (see `file`). The first participant builds a new arena and lets the volume's
//! owner recover and initialise; the last one lets it write its summary and removes the arena, so
//! an arena without participants is what was left by processes that were killed. The next one goes on
//! with it if the volume's owner finds that nothing has happened since; else it starts anew.

use crate::arena::Arena;
use crate::error::{Error, Result};
use crate::facade::Ordering;
use crate::file::{self, ArenaPath, Gate, LifeLock, VolumeIdentity};
use crate::layout::{ArenaLayout, ArenaOffset, Computed};
use crate::opened::close_inherited_once;
use crate::participant::{ParticipantId, Process};
use crate::private::next_incarnation;
use crate::session::{
    ARENA_ID_AT, ArenaIdentity, BOOT_AT, BYTES_AT, LAYOUT_AT, MAGIC, MAGIC_AT, NONCE_AT, READY_AT, Session, UUID_AT,
    VolumeGuard,
};
use rustix::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::sync::atomic::Ordering as Plain;

impl Session {
    /// Opens the arena of a volume, or makes it if nobody has it, and joins.
    ///
    /// `guard` is told which of the two it was. Errors: `Foreign` if something else stands at the
    /// arena's name, `OtherVersion`, `Full`, and what the guard refuses with.
    pub fn attach(identity: VolumeIdentity, layout: &ArenaLayout, guard: &mut dyn VolumeGuard) -> Result<Arc<Self>> {
        let path = ArenaPath::new(&identity);
        loop {
            if let Some(gate) = path.gate()? {
                if file::any_life(gate.fd())? {
                    let layout = layout.compute_for(gate.bytes)?;
                    return Self::attach_to_others(&path, &gate, layout, &identity, guard);
                }
                // Its last participant was killed.
                let found = layout.compute_for(gate.bytes)?;
                if let Some(session) = Self::adopt(&path, &gate, found, &identity, guard)? {
                    drop(gate);
                    crate::leftovers::remove_leftovers();
                    return Ok(session);
                }
                path.unlink()?;
            }
            if let Some(session) = Self::attach_first(&path, layout.compute()?, &identity, guard)? {
                // Where another user had it open before, the arena has another name.
                crate::leftovers::remove_leftovers_of(identity.nonce);
                return Ok(session);
            }
        }
    }

    /// Whether an arena of this volume stands there whose users were all killed: attaching goes on with it if it can.
    pub fn is_left_behind(identity: VolumeIdentity) -> Result<bool> {
        match ArenaPath::new(&identity).open()? {
            Some(fd) => Ok(!file::any_life(&fd)?),
            None => Ok(false),
        }
    }

    /// Removes the arena of a volume whose last participant was killed; what it held of memory is
    /// free then. Returns whether there was one. The next attach starts anew then.
    pub fn remove_stale(identity: VolumeIdentity) -> Result<bool> {
        let path = ArenaPath::new(&identity);
        let Some(gate) = path.gate()? else { return Ok(false) };
        if file::any_life(gate.fd())? {
            return Ok(false);
        }
        path.unlink().map(|()| true)
    }

    /// An arena without a volume: only this process and children forked from it can reach it.
    pub fn private(layout: &ArenaLayout) -> Result<Arc<Self>> {
        let arena = Arena::map(layout.compute()?, None, None)?;
        let session = Self::build(arena, None)?;
        session.write_header(&VolumeIdentity { uuid: [0; 16], nonce: 0 });
        session.arena.fixed(READY_AT).store(1, Ordering::Release);
        session.joined()?;
        Ok(session)
    }

    /// Goes on with an arena that nobody has open any more; `None` if that cannot be, also where something in it is damaged: nobody
    /// lives who would need it, and a new one serves as well. Errors are the owner's.
    fn adopt(
        path: &ArenaPath,
        gate: &Gate,
        layout: Computed,
        identity: &VolumeIdentity,
        guard: &mut dyn VolumeGuard,
    ) -> Result<Option<Arc<Self>>> {
        let boot = current_boot();
        let Ok(session) = Self::open_existing(path, gate, layout, identity) else { return Ok(None) };
        // What a killed mount's kernel remembers is believed for a while.
        if session.recall_caching().is_err()
            || boot == 0
            || session.arena.fixed(BOOT_AT).load(Ordering::Relaxed) != boot
            || session.join(Some(gate)).is_err()
        {
            return Ok(None);
        }
        match session.behind(gate, || guard.adopted(&session, session.arena_identity())) {
            Ok(true) => Ok(Some(session)),
            other => {
                // Whoever is refused now may find a thread's slot here that says what cannot be.
                let _ = session.mark_own_threads_dead(None);
                session.leave_record();
                match other {
                    Err(error @ Error::Owner(_)) => Err(error),
                    _ => Ok(None),
                }
            }
        }
    }

    /// Maps an arena that was made complete, after a look at its header.
    fn open_existing(path: &ArenaPath, gate: &Gate, layout: Computed, identity: &VolumeIdentity) -> Result<Arc<Self>> {
        let other_version = || Error::OtherVersion { path: path.path.clone() };
        if gate.bytes != layout.bytes {
            return Err(other_version());
        }
        let mut arena = map_again(path, layout)?;
        arena.is_founded = true;
        // Both have memory since the file was made.
        arena.map_page(ArenaOffset::new(READY_AT));
        arena.map_page(ArenaOffset::new(arena.layout().participants_at));
        let session = Self::build(arena, Some(path.clone()))?;
        let header = |at| session.arena.fixed(at).load(Ordering::Acquire);
        if header(MAGIC_AT) != MAGIC || header(LAYOUT_AT) != session.arena.layout().checksum {
            return Err(other_version());
        }
        let [low, high] = uuid_words(identity);
        if header(READY_AT) != 1
            || header(BYTES_AT) != session.arena.bytes()
            || [header(UUID_AT), header(UUID_AT + 8), header(NONCE_AT)] != [low, high, identity.nonce]
        {
            return Err(path.foreign("its header is damaged"));
        }
        Ok(session)
    }

    fn attach_to_others(
        path: &ArenaPath,
        gate: &Gate,
        layout: Computed,
        identity: &VolumeIdentity,
        guard: &mut dyn VolumeGuard,
    ) -> Result<Arc<Self>> {
        let session = Self::open_existing(path, gate, layout, identity)?;
        session.recall_caching()?;
        session.join(Some(gate))?;
        if let Err(error) = session.behind(gate, || guard.joined(&session, session.arena_identity())) {
            // Slots that the guard's threads took; a later participant may get our record.
            session.mark_own_threads_dead(None)?;
            session.leave_record();
            return Err(error);
        }
        Ok(session)
    }

    /// `None` if somebody else made an arena meanwhile.
    fn attach_first(
        path: &ArenaPath,
        layout: Computed,
        identity: &VolumeIdentity,
        guard: &mut dyn VolumeGuard,
    ) -> Result<Option<Arc<Self>>> {
        let gate = path.create_hidden(layout.bytes, layout.slots_at)?;
        if !path.reveal(&gate)? {
            return Ok(None);
        }
        let build = || -> Result<Arc<Self>> {
            let session = Self::build(map_again(path, layout)?, Some(path.clone()))?;
            session.write_header(identity);
            session.join(Some(&gate))?;
            Ok(session)
        };
        let result = build().and_then(|session| {
            guard.first(&session, session.arena_identity())?;
            Ok(session)
        });
        match result {
            Ok(session) => {
                session.arena.fixed(READY_AT).store(1, Ordering::Release);
                Ok(Some(session))
            }
            Err(error) => {
                // Nobody can have joined: the gate is ours.
                path.unlink()?;
                Err(error)
            }
        }
    }

    fn write_header(&self, identity: &VolumeIdentity) {
        let [low, high] = uuid_words(identity);
        let mut id = [0u8; 8];
        // Without the kernel's randomness the clock must do; it only has to differ from the last one's.
        if rustix::rand::getrandom(&mut id, rustix::rand::GetRandomFlags::empty()) != Ok(id.len()) {
            let now = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
            id = (now.tv_sec.wrapping_mul(1_000_000_007) ^ now.tv_nsec).to_le_bytes();
        }
        for (at, value) in [
            (LAYOUT_AT, self.arena.layout().checksum),
            (BYTES_AT, self.arena.bytes()),
            (UUID_AT, low),
            (UUID_AT + 8, high),
            (NONCE_AT, identity.nonce),
            (ARENA_ID_AT, u64::from_le_bytes(id)),
            (BOOT_AT, current_boot()),
            (MAGIC_AT, MAGIC),
        ] {
            self.arena.fixed(at).store(value, Ordering::Release);
        }
    }

    /// Takes a participant's record for this process and a new incarnation. Behind the gate, if
    /// there is one.
    fn join(&self, gate: Option<&Gate>) -> Result<()> {
        let process = self.own_process();
        let (id, lock) = self.take_record(&process, gate, false)?;
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
        let mut locked: Option<(u32, LifeLock)> = None;
        let mut take_byte = |index| {
            let Some(gate) = gate else { return Ok(true) };
            // The record was somebody else's after all: its byte must not stay locked by this open file.
            if let Some((index, lock)) = locked.take() {
                gate.unlock_life(index, lock)?;
            }
            locked = gate.lock_life(index, is_to_come)?.map(|lock| (index, lock));
            Ok(locked.is_some())
        };
        let id = if is_to_come {
            self.join_for_another(gate.is_some(), &mut take_byte)?
        } else {
            self.participants().join(process, u32::MAX, gate.is_some(), &mut take_byte)?
        };
        Ok((id, locked.map(|(_, lock)| lock)))
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
    fn behind<T>(&self, gate: &Gate, call: impl FnOnce() -> T) -> T {
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
                    let gate = path.gate()?.ok_or(Error::Detached)?;
                    // The same arena still? Another one at that name means that all had left ours.
                    let ours = self.arena_identity();
                    if !file::any_life(gate.fd())? || read_identity(gate.fd())? != ours {
                        return Err(Error::Detached);
                    }
                    self.join(Some(&gate))?;
                }
            }
        }
        Ok(self.incarnation())
    }
}

/// Maps the arena through an open file of its own: not the gate's, not the byte's, since children
/// inherit the mapping and with it whatever its open file has locked.
fn map_again(path: &ArenaPath, layout: Computed) -> Result<Arena> {
    let fd = path.open()?.ok_or(Error::Detached)?;
    Arena::map(layout, Some(fd.as_fd()), Some(path))
}

fn read_identity(fd: impl AsFd) -> Result<ArenaIdentity> {
    let mut bytes = [0u8; 8];
    let read = rustix::io::pread(fd, &mut bytes, ARENA_ID_AT).map_err(Error::system("read the arena"))?;
    Ok(ArenaIdentity(if read == 8 { u64::from_le_bytes(bytes) } else { 0 }))
}

/// A number for this boot of the machine; 0 if it is not to be had.
fn current_boot() -> u64 {
    let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::CLOEXEC;
    let path = "/proc/sys/kernel/random/boot_id";
    let Ok(fd) = rustix::fs::open(path, flags, rustix::fs::Mode::empty()) else { return 0 };
    let mut text = [0u8; 64];
    match rustix::io::read(&fd, &mut text) {
        Ok(length) if length >= 32 => crate::layout::checksum_of(&text[..length]),
        _ => 0,
    }
}

fn uuid_words(identity: &VolumeIdentity) -> [u64; 2] {
    let number = u128::from_le_bytes(identity.uuid);
    [number as u64, (number >> 64) as u64]
}
