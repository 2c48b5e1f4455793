//! A process's membership in a volume: attaching, leaving, joining again after a fork.
//!
//! Joining and leaving happen behind the gate (see `file`). The first participant builds a new
//! arena and lets the volume's owner recover and initialise; the last one lets it write its summary
//! and removes the arena, so the arena never outlives its last participant. What a killed last
//! participant leaves is found by the next one, which starts anew.

use crate::arena::Arena;
use crate::error::{Error, Result};
use crate::facade::{Ordering, Word};
use crate::file::{self, ArenaPath, Gate, LifeLock, VolumeIdentity};
use crate::layout::{ArenaLayout, ArenaOffset, Computed, PAGE_BYTES, SLOT_BYTES};
use crate::participant::{ParticipantId, ParticipantInfo, Participants, Process, own_namespace};
use crate::private::{PrivatePage, next_incarnation};
use crate::reap::{ReapStage, Reaper};
use crate::slot::{self, Kind};
use crate::thread::{load_state, mark_dead};
use rustix::fd::AsFd;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering as Plain};
use std::sync::{Arc, RwLock, Weak};

// Header words, in bytes.
const MAGIC_AT: u64 = 0;
const LAYOUT_AT: u64 = 8;
const BYTES_AT: u64 = 16;
const UUID_AT: u64 = 24;
const NONCE_AT: u64 = 40;
const ARENA_ID_AT: u64 = 48;
const READY_AT: u64 = 56;
const SLOT_HINT_AT: u64 = 64;
const ROSTER_LOCK_AT: u64 = 128;
const SLOTS_USED_AT: u64 = 192;

const MAGIC: u64 = u64::from_le_bytes(*b"GannetSh");

/// One arena among all that a volume ever had: random, made with the arena.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ArenaIdentity(pub u64);

/// What the owner of a volume does when it is opened by the first, joined by another, closed by
/// the last. All are called while nobody else can join or leave.
pub trait VolumeGuard {
    /// The first participant has a new arena, all regions zero: refuse if the volume is open
    /// elsewhere, recover it unless clean, initialise the regions, record `arena` durably. Others
    /// wait meanwhile. If this process dies in here, the next participant starts again.
    fn first(&mut self, session: &Arc<Session>, arena: ArenaIdentity) -> Result<()>;

    /// Others have the volume open: check that the volume names `arena`, or refuse.
    fn joined(&mut self, session: &Arc<Session>, arena: ArenaIdentity) -> Result<()>;

    /// The last participant leaves: write the summary and mark the volume clean. On an error the
    /// volume just stays unclean.
    fn last(&mut self, session: &Session, arena: ArenaIdentity) -> Result<()>;
}

/// What detaching meant for the volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Detached {
    /// Others still have it open.
    OthersRemain,
    /// This was the last participant; the arena is gone.
    Last,
}

/// A process's membership in a volume. Dropping it without [`Session::detach`] is like being
/// killed, for the others.
pub struct Session {
    this: Weak<Session>,
    arena: Arena,
    file: Option<ArenaPath>,
    page: PrivatePage,
    namespace: AtomicU64,
    detached: AtomicBool,
    reapers: RwLock<Vec<(ReapStage, Arc<dyn Reaper>)>>,
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.file.as_ref().map(|file| file.path.as_str());
        f.debug_struct("Session").field("arena", &path).field("incarnation", &self.incarnation()).finish()
    }
}

impl Session {
    /// Opens the arena of a volume, or makes it if nobody has it, and joins.
    ///
    /// `guard` is told which of the two it was. Errors: `Foreign` if something else stands at the
    /// arena's name, `OtherVersion`, `Full`, and what the guard refuses with.
    pub fn attach(identity: VolumeIdentity, layout: &ArenaLayout, guard: &mut dyn VolumeGuard) -> Result<Arc<Self>> {
        let path = ArenaPath::new(&identity);
        loop {
            if let Some(gate) = path.gate()? {
                if file::any_life(&gate.fd, layout.compute()?.participants)? {
                    return Self::attach_to_others(&path, &gate, layout.compute()?, &identity, guard);
                }
                // Its last participant was killed.
                path.unlink()?;
            }
            if let Some(session) = Self::attach_first(&path, layout.compute()?, &identity, guard)? {
                return Ok(session);
            }
        }
    }

    /// An arena without a volume: only this process and children forked from it can reach it.
    pub fn private(layout: &ArenaLayout) -> Result<Arc<Self>> {
        let arena = Arena::map(layout.compute()?, None)?;
        let session = Self::build(arena, None)?;
        session.write_header(&VolumeIdentity { uuid: [0; 16], nonce: 0 });
        session.arena.fixed(READY_AT).store(1, Ordering::Release);
        session.joined()?;
        Ok(session)
    }

    fn build(arena: Arena, file: Option<ArenaPath>) -> Result<Arc<Self>> {
        let page = PrivatePage::new()?;
        Ok(Arc::new_cyclic(|this| Self {
            this: this.clone(),
            arena,
            file,
            page,
            namespace: AtomicU64::new(own_namespace()),
            detached: AtomicBool::new(false),
            reapers: RwLock::new(Vec::new()),
        }))
    }

    fn attach_to_others(
        path: &ArenaPath,
        gate: &Gate,
        layout: Computed,
        identity: &VolumeIdentity,
        guard: &mut dyn VolumeGuard,
    ) -> Result<Arc<Self>> {
        let other_version = || Error::OtherVersion { path: path.path.clone() };
        if path.stat(&gate.fd)?.st_size as u64 != layout.bytes {
            return Err(other_version());
        }
        let session = Self::build(map_again(path, layout)?, Some(path.clone()))?;
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
        session.join(true)?;
        if let Err(error) = guard.joined(&session, session.arena_identity()) {
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
            session.join(true)?;
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
            (MAGIC_AT, MAGIC),
        ] {
            self.arena.fixed(at).store(value, Ordering::Release);
        }
    }

    /// Takes a participant's record for this process and a new incarnation. Behind the gate, if
    /// there is one: then `exclusive`.
    fn join(&self, exclusive: bool) -> Result<()> {
        let process = Process::current(self.file.is_none());
        let (id, lock) = self.take_record(&process, exclusive, false)?;
        self.enter(id, lock);
        Ok(())
    }

    /// A record and its byte for `process`.
    pub(crate) fn take_record(
        &self,
        process: &Process,
        exclusive: bool,
        inherited: bool,
    ) -> Result<(ParticipantId, Option<LifeLock>)> {
        let mut lock: Option<LifeLock> = None;
        let id = self.participants().join(process, exclusive, |index| {
            lock = None;
            let Some(path) = &self.file else { return Ok(true) };
            lock = path.lock_life(index, inherited)?;
            Ok(lock.is_some())
        })?;
        Ok((id, lock))
    }

    /// This process is participant `id` from here on.
    fn enter(&self, id: ParticipantId, lock: Option<LifeLock>) {
        let fields = self.page.fields();
        self.namespace.store(own_namespace(), Plain::Relaxed);
        fields.participant.store(u64::from(id.index), Plain::Relaxed);
        fields.generation.store(id.generation, Plain::Relaxed);
        fields.byte_lock.store(lock.map_or(0, |lock| lock.into_address() as u64), Plain::Relaxed);
        fields.incarnation.store(next_incarnation(), Plain::Release);
    }

    /// A forked child takes the place that its parent kept for it.
    pub(crate) fn become_participant(&self, id: ParticipantId, lock: Option<LifeLock>) {
        let _alone = self.page.exclusive();
        self.participants().describe(id.index, &Process::current(self.file.is_none()));
        self.enter(id, lock);
    }

    /// The incarnation, after joining if this is a forked child.
    pub(crate) fn joined(&self) -> Result<u64> {
        let _alone = self.page.exclusive();
        if self.detached.load(Plain::Relaxed) {
            return Err(Error::Detached);
        }
        if self.incarnation() == 0 {
            match &self.file {
                None => self.join(false)?,
                Some(path) => {
                    let gate = path.gate()?.ok_or(Error::Detached)?;
                    // The same arena still? Another one at that name means that all had left ours.
                    let ours = self.arena_identity();
                    if !file::any_life(&gate.fd, self.arena.layout().participants)? || read_identity(&gate.fd)? != ours
                    {
                        return Err(Error::Detached);
                    }
                    self.join(true)?;
                }
            }
        }
        Ok(self.incarnation())
    }

    /// Leaves. No thread of this process may be inside an operation; their slots are settled as if
    /// they had died. Owners' `participant_gone` is called for this participant. The last one
    /// settles what others left and calls `guard.last`.
    ///
    /// After an error of an owner or the guard this process has left all the same.
    pub fn detach(&self, guard: &mut dyn VolumeGuard) -> Result<Detached> {
        // Before the gate, which a child that joins must pass as well.
        self.thread()?;
        let incarnation = self.incarnation();
        let gate = match &self.file {
            None => None,
            Some(path) => Some(path.gate()?.ok_or(Error::Detached)?),
        };
        let result = self.detach_behind_gate(guard);
        self.detached.store(true, Plain::Relaxed);
        self.forget_thread(incarnation);
        self.leave_record();
        if let Ok(mut reapers) = self.reapers.write() {
            reapers.clear();
        }
        drop(gate);
        result
    }

    fn detach_behind_gate(&self, guard: &mut dyn VolumeGuard) -> Result<Detached> {
        let me = self.thread()?;
        let settled = (|| {
            self.mark_own_threads_dead(Some(me.slot()))?;
            self.reap_threads_of(&me, self.participant())?;
            self.tell_gone(&me, self.participant())?;
            self.reap_dead()
        })();
        for index in 0..self.participants().count() {
            let Some(id) = self.participants().live(index) else { continue };
            if id != self.participant() && self.participants().is_alive(id, self.namespace())? {
                return settled.map(|_| Detached::OthersRemain);
            }
        }
        // Unclean is what a volume is whose state could not be settled.
        let last = settled.and_then(|_| guard.last(self, self.arena_identity()));
        if let Some(path) = &self.file {
            path.unlink()?;
        }
        last.map(|()| Detached::Last)
    }

    /// Whatever slots this process has, but one, are to be settled: their threads are at rest.
    fn mark_own_threads_dead(&self, except: Option<u32>) -> Result<()> {
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
    fn leave_record(&self) {
        let fields = self.page.fields();
        if fields.incarnation.swap(0, Plain::AcqRel) != 0 {
            self.participants().leave(self.participant());
            self.give_up_byte();
        }
    }

    fn give_up_byte(&self) {
        let address = self.page.fields().byte_lock.swap(0, Plain::AcqRel);
        if address != 0 {
            drop(LifeLock::from_address(address as usize));
        }
    }

    /// The arena.
    #[inline(always)]
    pub fn arena(&self) -> &Arena {
        &self.arena
    }

    /// The word at `at`; see [`Arena::word`].
    #[inline(always)]
    pub fn word(&self, at: ArenaOffset) -> Result<&Word> {
        self.arena.word(at)
    }

    /// Which arena this is.
    pub fn arena_identity(&self) -> ArenaIdentity {
        ArenaIdentity(self.arena.fixed(ARENA_ID_AT).load(Ordering::Relaxed))
    }

    pub(crate) fn file(&self) -> Option<&ArenaPath> {
        self.file.as_ref()
    }

    /// Path of the arena's file, if it has one.
    pub fn path(&self) -> Option<&str> {
        self.file.as_ref().map(|file| file.path.as_str())
    }

    /// This process's place among the participants. In a forked child: after its first
    /// [`Session::thread`].
    pub fn participant(&self) -> ParticipantId {
        let fields = self.page.fields();
        ParticipantId {
            index: fields.participant.load(Plain::Relaxed) as u32,
            generation: fields.generation.load(Plain::Relaxed),
        }
    }

    /// Whether `id` still has the volume open. In doubt it has. Costs system calls.
    pub fn participant_is_alive(&self, id: ParticipantId) -> Result<bool> {
        if self.incarnation() != 0 && id == self.participant() {
            return Ok(true);
        }
        self.participants().is_alive(id, self.namespace())
    }

    /// All processes that have the volume open, dead ones not yet reaped included.
    pub fn participant_list(&self) -> Vec<ParticipantInfo> {
        let table = self.participants();
        (0..table.count()).filter_map(|i| table.live(i)).map(|id| table.info(id, self.namespace())).collect()
    }

    /// Registers an owner, before the session is used by others. Owners are called by stage, then
    /// in the order of registration. They are dropped at detach, so they may refer to the session.
    pub fn register_reaper(&self, stage: ReapStage, reaper: Arc<dyn Reaper>) {
        if let Ok(mut reapers) = self.reapers.write() {
            reapers.push((stage, reaper));
            reapers.sort_by_key(|(stage, _)| *stage);
        }
    }

    pub(crate) fn reapers(&self) -> Vec<Arc<dyn Reaper>> {
        let reapers = self.reapers.read();
        reapers.map(|list| list.iter().map(|(_, reaper)| reaper.clone()).collect()).unwrap_or_default()
    }

    #[inline(always)]
    pub(crate) fn incarnation(&self) -> u64 {
        self.page.fields().incarnation.load(Plain::Relaxed)
    }

    pub(crate) fn namespace(&self) -> u64 {
        self.namespace.load(Plain::Relaxed)
    }

    pub(crate) fn weak(&self) -> Weak<Session> {
        self.this.clone()
    }

    pub(crate) fn participants(&self) -> Participants<'_> {
        Participants::new(&self.arena, self.file.as_ref())
    }

    pub(crate) fn slot_hint(&self) -> &Word {
        self.arena.fixed(SLOT_HINT_AT)
    }

    pub(crate) fn roster_lock(&self) -> ArenaOffset {
        ArenaOffset::new(ROSTER_LOCK_AT)
    }

    /// No slot at or above this has ever been used.
    pub(crate) fn slots_used(&self) -> u32 {
        let used = self.arena.fixed(SLOTS_USED_AT).load(Ordering::Acquire);
        (used as u32).min(self.arena.layout().threads)
    }

    /// Gets memory for a slot that was never used, and raises the mark.
    pub(crate) fn reserve_slot(&self, slot: u32) -> Result<()> {
        if slot >= self.slots_used() {
            let at = ArenaOffset::new(self.arena.layout().slots_at + u64::from(slot) * SLOT_BYTES);
            self.arena.reserve(at, SLOT_BYTES)?;
            self.arena.reserve(ArenaOffset::new(slot::life_at(&self.arena, slot) & !(PAGE_BYTES - 1)), PAGE_BYTES)?;
            self.arena.fixed(SLOTS_USED_AT).fetch_max(u64::from(slot) + 1, Ordering::AcqRel);
        }
        Ok(())
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.give_up_byte();
    }
}

/// Maps the arena through an open file of its own: not the gate's, not the byte's, since children
/// inherit the mapping and with it whatever its open file has locked.
fn map_again(path: &ArenaPath, layout: Computed) -> Result<Arena> {
    let fd = path.open()?.ok_or(Error::Detached)?;
    Arena::map(layout, Some(fd.as_fd()))
}

fn read_identity(fd: impl AsFd) -> Result<ArenaIdentity> {
    let mut bytes = [0u8; 8];
    let read = rustix::io::pread(fd, &mut bytes, ARENA_ID_AT).map_err(Error::system("read the arena"))?;
    Ok(ArenaIdentity(if read == 8 { u64::from_le_bytes(bytes) } else { 0 }))
}

fn uuid_words(identity: &VolumeIdentity) -> [u64; 2] {
    let number = u128::from_le_bytes(identity.uuid);
    [number as u64, (number >> 64) as u64]
}
