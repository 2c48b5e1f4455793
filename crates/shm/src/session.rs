//! A process's membership in a volume: what it knows, whom it calls. How it begins and ends stands
//! in `attach`.

use crate::arena::Arena;
use crate::error::Result;
use crate::facade::{Ordering, Word};
use crate::file::{ArenaPath, LifeLock, VolumeIdentity};
use crate::layout::{ArenaOffset, HEADER_BYTES, PAGE_BYTES, SLOT_BYTES};
use crate::participant::{ParticipantId, ParticipantInfo, Participants, View};
use crate::private::PrivatePage;
use crate::reap::{ReapStage, Reaper};
use crate::slot;
use crate::sys;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering as Plain};
use std::sync::{Arc, RwLock, Weak};

// Header words, in bytes.
pub(crate) const MAGIC_AT: u64 = 0;
pub(crate) const LAYOUT_AT: u64 = 8;
pub(crate) const BYTES_AT: u64 = 16;
pub(crate) const UUID_AT: u64 = 24;
pub(crate) const NONCE_AT: u64 = 40;
pub(crate) const ARENA_ID_AT: u64 = 48;
pub(crate) const READY_AT: u64 = 56;
/// What stands there once the arena is complete.
pub(crate) const READY: u64 = 1;
/// Likewise, and somebody behind the gate acts for all: takes an arena over, or closes the volume.
pub(crate) const IN_CHARGE: u64 = 2;
const SLOT_HINT_AT: u64 = 64;
const ROSTER_LOCK_AT: u64 = 128;
pub(crate) const SLOTS_USED_AT: u64 = 192;
/// Above every participant that there ever was.
pub(crate) const PARTICIPANTS_USED_AT: u64 = 200;
/// Which boot of the machine the arena was made in; 0 if that is not known.
pub(crate) const BOOT_AT: u64 = 256;
/// Device and inode of the volume's file, and length and text of a path that led to it; length 0 if none is known.
pub(crate) const VOLUME_DEVICE_AT: u64 = 264;
pub(crate) const VOLUME_INODE_AT: u64 = 272;
pub(crate) const VOLUME_PATH_LENGTH_AT: u64 = 280;
/// Where in the volume's file its word stands that says which arena it is open in; 0 if that is not known.
pub(crate) const VOLUME_WORD_PLACE_AT: u64 = 288;
/// Not 0: somebody had the volume open to write to it.
pub(crate) const WRITERS_AT: u64 = 296;
const WRITERS: u64 = 1;
/// Likewise, and the last one has found the volume as it was left here, and closes it.
pub(crate) const CLOSING: u64 = 2;
/// Whose readers may remember; and how long an answer may take, with the lease in the high half, both in milliseconds.
pub(crate) const CACHING_AT: u64 = 320;
pub(crate) const PATIENCE_AT: u64 = 328;
pub(crate) const VOLUME_PATH_AT: u64 = PAGE_BYTES;
pub(crate) const VOLUME_PATH_BYTES_MAX: u64 = HEADER_BYTES - VOLUME_PATH_AT;

pub(crate) const MAGIC: u64 = u64::from_le_bytes(*b"GannetSh");

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

    /// Everybody who had the volume open was killed (or executed another program), and their arena stands as they left it, in
    /// this very boot. `true`: the volume names `arena` and nothing has happened to it since, all who are gone have been
    /// settled ([`Session::reap_dead`]), and this process goes on with the arena as it is. `false`: start anew, as the first.
    /// If this process dies in here, the next one is asked the same.
    fn adopted(&mut self, session: &Arc<Session>, arena: ArenaIdentity) -> Result<bool> {
        let _ = (session, arena);
        Ok(false)
    }

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
    pub(crate) arena: Arena,
    pub(crate) file: Option<ArenaPath>,
    pub(crate) page: PrivatePage,
    pub(crate) namespace: AtomicU64,
    pub(crate) detached: AtomicBool,
    /// The gate's descriptor while this process, joining, has it and calls the volume's owner; else -1.
    pub(crate) held_gate: AtomicI32,
    pub(crate) reapers: RwLock<Vec<(ReapStage, Arc<dyn Reaper>)>>,
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.file.as_ref().map(|file| file.path.as_str());
        f.debug_struct("Session").field("arena", &path).field("incarnation", &self.incarnation()).finish()
    }
}

impl Session {
    /// A session that has not joined yet.
    pub(crate) fn build(arena: Arena, file: Option<ArenaPath>) -> Result<Arc<Self>> {
        let page = PrivatePage::new()?;
        Ok(Arc::new_cyclic(|this| Self {
            this: this.clone(),
            arena,
            file,
            page,
            namespace: AtomicU64::new(0),
            detached: AtomicBool::new(false),
            held_gate: AtomicI32::new(-1),
            reapers: RwLock::new(Vec::new()),
        }))
    }

    /// The participant's byte is free from here on.
    pub(crate) fn give_up_byte(&self) {
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
    #[inline]
    pub fn arena_identity(&self) -> ArenaIdentity {
        ArenaIdentity(self.arena.fixed(ARENA_ID_AT).load(Ordering::Relaxed))
    }

    /// Which volume the arena belongs to; nothing but zeros for a [private](Session::private) one.
    pub fn volume(&self) -> VolumeIdentity {
        let word = |at| self.arena.fixed(at).load(Ordering::Relaxed);
        let mut uuid = [0; 16];
        uuid[..8].copy_from_slice(&word(UUID_AT).to_le_bytes());
        uuid[8..].copy_from_slice(&word(UUID_AT + 8).to_le_bytes());
        VolumeIdentity { uuid, nonce: word(NONCE_AT) }
    }

    /// Notes where the volume's file is, and at which byte of it the word stands that says which arena it is open in (its
    /// [identity](Session::arena_identity), little-endian): an arena whose users were all killed, and whose volume is gone as well or
    /// says otherwise, is removed by the next who attaches anything ([`crate::remove_leftovers`]). Called by the first participant's
    /// guard.
    pub fn note_volume(&self, path: &[u8], device: u64, inode: u64, word_at: u64) {
        let length = path.len() as u64;
        if length == 0 || length > VOLUME_PATH_BYTES_MAX {
            return;
        }
        self.arena.fixed(VOLUME_DEVICE_AT).store(device, Ordering::Relaxed);
        self.arena.fixed(VOLUME_INODE_AT).store(inode, Ordering::Relaxed);
        self.arena.fixed(VOLUME_WORD_PLACE_AT).store(word_at, Ordering::Relaxed);
        for (index, chunk) in path.chunks(8).enumerate() {
            let mut word = [0u8; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.arena.fixed(VOLUME_PATH_AT + index as u64 * 8).store(u64::from_le_bytes(word), Ordering::Relaxed);
        }
        self.arena.fixed(VOLUME_PATH_LENGTH_AT).store(length, Ordering::Release);
    }

    /// Notes that somebody has the volume open to write to it, before he does: where he is killed, and the volume says that it is closed, his arena
    /// is not removed by others.
    pub fn note_writer(&self) {
        self.arena.fixed(WRITERS_AT).store(WRITERS, Ordering::Release);
    }

    /// Notes that the volume is the one that was used here, and is closed now by the last who did, before he says so there: where he is killed, and
    /// the volume says that it is closed, it was he, and his arena is of no use any more.
    pub fn note_closing(&self) {
        self.arena.fixed(WRITERS_AT).store(CLOSING, Ordering::Release);
    }

    /// Whether anybody ever did.
    pub fn had_writers(&self) -> bool {
        self.arena.fixed(WRITERS_AT).load(Ordering::Acquire) != 0
    }

    /// Whether this very process is a participant: a forked child is not before its first operation.
    pub fn has_joined(&self) -> bool {
        self.incarnation() != 0
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
        self.participants().is_alive(id, || self.namespace(), &mut View::None)
    }

    /// All processes that have the volume open, dead ones not yet reaped included.
    pub fn participant_ids(&self) -> impl Iterator<Item = ParticipantId> {
        let table = self.participants();
        (0..table.used()).filter_map(move |index| table.live(index))
    }

    /// Likewise, for people: reads what `/proc` says of some.
    pub fn participant_list(&self) -> Vec<ParticipantInfo> {
        self.participant_ids().map(|id| self.info_for_people(id)).collect()
    }

    /// Registers an owner, before the session is used by others. Owners are called by stage, then
    /// in the order of registration. They are dropped at detach, so they may refer to the session.
    pub fn register_reaper(&self, stage: ReapStage, reaper: Arc<dyn Reaper>) {
        if let Ok(mut reapers) = self.reapers.write() {
            reapers.push((stage, reaper));
            reapers.sort_by_key(|(stage, _)| *stage);
        }
    }

    /// Calls `each` for all owners, in order, up to the first error.
    pub(crate) fn for_reapers(&self, mut each: impl FnMut(&dyn Reaper) -> Result<()>) -> Result<()> {
        // Held while they run: nothing is allocated here, and registering is over by now.
        let Ok(reapers) = self.reapers.read() else { return Ok(()) };
        reapers.iter().try_for_each(|(_, reaper)| each(reaper.as_ref()))
    }

    #[inline(always)]
    pub(crate) fn incarnation(&self) -> u64 {
        self.page.fields().incarnation.load(Plain::Relaxed)
    }

    /// This process's PID namespace; 0: not known. Looked up when it is first asked for, since that is a walk through `/proc`;
    /// never by a `vfork` child, which can be in another one and has another number.
    pub(crate) fn namespace(&self) -> u64 {
        let known = self.namespace.load(Plain::Relaxed);
        if known != 0 || self.incarnation() == 0 {
            return known;
        }
        let caller = rustix::process::getpid().as_raw_pid() as u32;
        if self.participants().pid(self.participant()) != caller {
            return 0;
        }
        let found = sys::pid_namespace();
        self.namespace.store(found, Plain::Relaxed);
        found
    }

    /// Says in this participant's record in which PID namespace it is: from then on others ask the kernel for its processes and threads,
    /// too. Before a thread lends its memory to a `vfork` child, which keeps the participant's byte locked after its parent's death,
    /// and where the kernel marks no life words. What is said once costs a load.
    pub fn say_namespace(&self) -> Result<()> {
        self.joined()?;
        self.describe_self();
        let fields = self.page.fields();
        if fields.has_said_namespace.load(Plain::Relaxed) == 0 {
            self.participants().say_namespace(self.participant().index, self.namespace());
            fields.has_said_namespace.store(1, Plain::Relaxed);
        }
        Ok(())
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
    pub fn slots_used(&self) -> u32 {
        self.participants().slots_used()
    }

    /// Gets memory for a slot that was never used, and raises the mark.
    pub(crate) fn reserve_slot(&self, slot: u32) -> Result<()> {
        if slot >= self.slots_used() {
            self.arena.reserve(ArenaOffset::new(slot::slot_at(&self.arena, slot)), SLOT_BYTES)?;
            self.for_reapers(|owner| owner.slot_reserved(&self.arena, slot))?;
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
