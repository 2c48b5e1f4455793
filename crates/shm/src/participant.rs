//! The table of processes that have the volume open, and whether each lives.
//!
//! A participant of a named arena lives while its byte is locked (see `file`) and its process, if
//! we can see it, exists. In a private arena, which only a process and its forks can reach, the
//! process is asked instead. A stopped process lives.

use crate::arena::Arena;
use crate::descriptor::Descriptor;
use crate::error::{Error, Result};
use crate::facade::{Ordering, Word, fence};
use crate::file::ArenaPath;
use crate::layout::{ArenaOffset, PARTICIPANT_BYTES};
use crate::session::{PARTICIPANTS_USED_AT, SLOTS_USED_AT};
use crate::slot::{self, Kind};
use crate::sys;
use crate::thread::load_state;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::BorrowedFd;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open, test_kill_process};

/// The number is that of volumes.
const TOO_MANY: &str = "no room for another process: 1024 have the volume open, the most there can be; end some, or let them use a mount (gannet mount)";
const _: () = assert!(crate::layout::PARTICIPANTS_DEFAULT == 1024);

const STATE: usize = 0;
const PID: usize = 1;
const NAMESPACE: usize = 2;
const BIRTH: usize = 3;
const NAME: usize = 4;
const WORDS: usize = PARTICIPANT_BYTES as usize / 8;

const FREE: u64 = 0;
const JOIN: u64 = 1;
const LIVE: u64 = 2;
const KIND_SHIFT: u32 = 56;
const GENERATION_MASK: u64 = (1 << KIND_SHIFT) - 1;

/// A participant and which of those that had its record: never the same twice in an arena.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ParticipantId {
    /// Index of the record; below the layout's number of participants.
    pub index: u32,
    /// Grows whenever the record becomes free.
    pub generation: u64,
}

/// Who a participant is, for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParticipantInfo {
    /// Which.
    pub id: ParticipantId,
    /// Process id, as the process itself sees it.
    pub pid: u32,
    /// Whether `pid` means the same to us, for certain.
    pub same_namespace: bool,
    /// Whether it means another process to us, or none, for certain: it is of another PID namespace.
    pub other_namespace: bool,
    /// Command name, at most 15 bytes.
    pub name: String,
}

impl ParticipantInfo {
    /// Whether `pid` means the same to us; `None` where that cannot be seen.
    #[must_use]
    pub fn is_of_our_namespace(&self) -> Option<bool> {
        (self.same_namespace || self.other_namespace).then_some(self.same_namespace)
    }
}

/// What identifies a process to others.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Process {
    pid: u32,
    namespace: u64,
    birth: u64,
}

impl Process {
    /// The calling process, by its number.
    pub(crate) fn current() -> Self {
        Self { pid: rustix::process::getpid().as_raw_pid() as u32, ..Self::unknown() }
    }

    /// Likewise, with its PID namespace and what tells it from a later one of the same number: all that a private arena
    /// knows of who lives.
    pub(crate) fn current_and_birth() -> Self {
        let birth = birth_of(rustix::process::getpid()).unwrap_or(0);
        Self { namespace: sys::pid_namespace(), birth, ..Self::current() }
    }

    /// Its PID namespace, 0 if unknown.
    pub(crate) fn namespace(&self) -> u64 {
        self.namespace
    }

    /// A process that is not there yet.
    pub(crate) fn unknown() -> Self {
        Self { pid: 0, namespace: 0, birth: 0 }
    }

    /// `Some(false)` if it is certainly gone, `Some(true)` if it certainly exists.
    fn exists(&self, own_namespace: impl FnOnce() -> u64) -> Option<bool> {
        if self.namespace == 0 {
            return None;
        }
        let own_namespace = own_namespace();
        if self.namespace != own_namespace {
            return None;
        }
        // A `vfork` child can be in another namespace than the process whose memory it has, and see nobody.
        self.is_seen().filter(|seen| *seen || sys::is_in_pid_namespace(own_namespace))
    }

    /// Likewise, as the caller's PID namespace has it.
    fn is_seen(&self) -> Option<bool> {
        let Some(pid) = pid_of(u64::from(self.pid)) else { return Some(false) };
        if test_kill_process(pid) == Err(Errno::SRCH) {
            return Some(false);
        }
        if self.birth == 0 {
            return None;
        }
        match birth_of(pid) {
            Ok(birth) => Some(birth == self.birth),
            Err(Errno::SRCH) => Some(false),
            Err(_) => None,
        }
    }
}

/// A process id, if a word is one.
fn pid_of(word: u64) -> Option<Pid> {
    i32::try_from(word).ok().filter(|&pid| pid > 0).and_then(Pid::from_raw)
}

/// A number that the kernel gives each process once: the inode of its pidfd, where those have
/// inodes of their own (Linux 6.9); else 0. SRCH if the process has ended, reaped or not.
fn birth_of(pid: Pid) -> std::result::Result<u64, Errno> {
    const PIDFS_MAGIC: u64 = 0x5049_4446;
    let fd = pidfd_open(pid, PidfdFlags::empty())?;
    let now = rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 };
    if poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&now))? > 0 {
        return Err(Errno::SRCH);
    }
    if rustix::fs::fstatfs(&fd)?.f_type as u64 != PIDFS_MAGIC {
        return Err(Errno::OPNOTSUPP);
    }
    Ok(rustix::fs::fstat(&fd)?.st_ino)
}

/// The arena's file, opened for looking at bytes: kept from one look to the next.
pub(crate) enum View<'a> {
    /// To be opened when it is needed.
    None,
    /// Opened for this.
    Own(Descriptor),
    /// The gate's, which the caller holds: it locks no participant's byte.
    Lent(BorrowedFd<'a>),
}

/// View of the table.
#[derive(Clone, Copy)]
pub(crate) struct Participants<'a> {
    arena: &'a Arena,
    file: Option<&'a ArenaPath>,
}

impl<'a> Participants<'a> {
    pub(crate) fn new(arena: &'a Arena, file: Option<&'a ArenaPath>) -> Self {
        Self { arena, file }
    }

    pub(crate) fn count(&self) -> u32 {
        self.arena.layout().participants
    }

    /// No record at or above this has ever been taken: what a search for participants need not look at.
    pub(crate) fn used(&self) -> u32 {
        let used = self.arena.fixed(PARTICIPANTS_USED_AT).load(Ordering::Acquire);
        (used as u32).min(self.count())
    }

    /// Where a record stands.
    pub(crate) fn place(&self, index: u32) -> ArenaOffset {
        ArenaOffset::new(self.arena.layout().participants_at + u64::from(index) * PARTICIPANT_BYTES)
    }

    fn words(&self, index: u32) -> &'a [Word; WORDS] {
        debug_assert!(index < self.count());
        let at = self.place(index).get();
        // SAFETY: inside the table and aligned to 64; words are atomics.
        unsafe { &*self.arena.address(at).cast::<[Word; WORDS]>() }
    }

    fn state(&self, index: u32) -> (u64, u64) {
        let value = self.words(index)[STATE].load(Ordering::Acquire);
        (value >> KIND_SHIFT, value & GENERATION_MASK)
    }

    /// The live record of `index`, if there is one.
    pub(crate) fn live(&self, index: u32) -> Option<ParticipantId> {
        if index >= self.count() {
            return None;
        }
        let (kind, generation) = self.state(index);
        (kind == LIVE).then_some(ParticipantId { index, generation })
    }

    /// Takes a record below `limit` for `process`. `take_byte` locks the byte of an index, or says that somebody
    /// has it. `exclusive`: the caller is behind the gate, so a half-made record is a dead one's.
    pub(crate) fn join(
        &self,
        process: &Process,
        limit: u32,
        exclusive: bool,
        take_byte: &mut dyn FnMut(u32) -> Result<bool>,
    ) -> Result<ParticipantId> {
        for index in 0..limit.min(self.count()) {
            let words = self.words(index);
            let found = words[STATE].load(Ordering::Acquire);
            let (kind, generation) = (found >> KIND_SHIFT, found & GENERATION_MASK);
            if kind != FREE && !(kind == JOIN && exclusive) {
                continue;
            }
            if !take_byte(index)? {
                continue;
            }
            if index >= self.used() {
                self.arena.fixed(PARTICIPANTS_USED_AT).fetch_max(u64::from(index) + 1, Ordering::AcqRel);
            }
            let joining = (JOIN << KIND_SHIFT) | generation;
            if words[STATE].compare_exchange(found, joining, Ordering::AcqRel, Ordering::Relaxed).is_err() {
                continue;
            }
            self.describe(index, process);
            words[STATE].store((LIVE << KIND_SHIFT) | generation, Ordering::Release);
            return Ok(ParticipantId { index, generation });
        }
        Err(Error::Full { what: TOO_MANY })
    }

    /// Writes down who has the record. Read by others while it changes: the namespace, without
    /// which the rest counts for nothing, is cleared first and stored last.
    pub(crate) fn describe(&self, index: u32, process: &Process) {
        let words = self.words(index);
        words[NAMESPACE].store(0, Ordering::Release);
        words[PID].store(u64::from(process.pid), Ordering::Release);
        words[BIRTH].store(process.birth, Ordering::Release);
        for (word, part) in words[NAME..NAME + 2].iter().zip(command_name()) {
            word.store(part, Ordering::Release);
        }
        words[NAMESPACE].store(process.namespace, Ordering::Release);
    }

    /// Writes down in which PID namespace the process of a record is.
    pub(crate) fn say_namespace(&self, index: u32, namespace: u64) {
        self.words(index)[NAMESPACE].store(namespace, Ordering::Release);
    }

    /// Writes down who has a record that was taken over a fork: the process id, and its parent's name.
    pub(crate) fn describe_child(&self, index: u32, parent: u32) {
        let words = self.words(index);
        words[PID].store(u64::from(rustix::process::getpid().as_raw_pid() as u32), Ordering::Release);
        if parent < self.count() {
            for (word, theirs) in words[NAME..NAME + 2].iter().zip(&self.words(parent)[NAME..NAME + 2]) {
                word.store(theirs.load(Ordering::Relaxed), Ordering::Release);
            }
        }
    }

    /// Frees the record, if it is still that participant's.
    pub(crate) fn leave(&self, id: ParticipantId) {
        let old = (LIVE << KIND_SHIFT) | id.generation;
        let new = (FREE << KIND_SHIFT) | ((id.generation + 1) & GENERATION_MASK);
        let _ = self.words(id.index)[STATE].compare_exchange(old, new, Ordering::AcqRel, Ordering::Relaxed);
    }

    /// Whether `id` seems to have the volume open: by its byte alone, which the `vfork` child of one that was killed keeps locked
    /// while it lives.
    pub(crate) fn seems_alive(
        &self,
        id: ParticipantId,
        own_namespace: impl FnOnce() -> u64,
        view: &mut View<'_>,
    ) -> Result<bool> {
        if self.file.is_some() { self.has_byte(id, view) } else { self.is_alive(id, own_namespace, view) }
    }

    fn has_byte(&self, id: ParticipantId, view: &mut View<'_>) -> Result<bool> {
        let Some(path) = self.file else { return Ok(true) };
        if self.live(id.index) != Some(id) {
            return Ok(false);
        }
        let is_locked = byte_is_locked(self.arena, path, id.index, view)?;
        // In doubt it lives.
        Ok(is_locked.unwrap_or_else(|| self.live(id.index) == Some(id)))
    }

    /// Whether `id` has the volume open. In doubt it has. `own_namespace` is asked for only where the record says one.
    pub(crate) fn is_alive(
        &self,
        id: ParticipantId,
        own_namespace: impl FnOnce() -> u64,
        view: &mut View<'_>,
    ) -> Result<bool> {
        if self.live(id.index) != Some(id) {
            return Ok(false);
        }
        let words = self.words(id.index);
        let namespace = words[NAMESPACE].load(Ordering::Acquire);
        let process = Process {
            pid: words[PID].load(Ordering::Acquire) as u32,
            birth: words[BIRTH].load(Ordering::Acquire),
            namespace,
        };
        match process.exists(own_namespace) {
            Some(false) => match (0..self.slots_used()).find(|slot| self.acts_in_slot_of(*slot, id)) {
                None => return Ok(false),
                Some(slot) if self.file.is_none() => return self.is_acted_for(slot),
                Some(_) => {}
            },
            // The record may have changed hands while we read it.
            Some(true) if self.file.is_none() => return Ok(self.live(id.index) == Some(id)),
            _ => {}
        }
        self.has_byte(id, view)
    }

    /// No slot at or above this has ever been used.
    pub(crate) fn slots_used(&self) -> u32 {
        let used = self.arena.fixed(SLOTS_USED_AT).load(Ordering::Acquire);
        (used as u32).min(self.arena.layout().threads)
    }

    /// The process id that a `vfork` child left in a slot, or 0. What was read before, about its parent, was so before.
    fn acting_child(&self, slot: u32) -> u64 {
        fence(Ordering::SeqCst);
        slot::words(self.arena, slot)[slot::ACTING_CHILD].load(Ordering::Acquire)
    }

    fn participant_of(&self, slot: u32) -> u32 {
        slot::words(self.arena, slot)[slot::PARTICIPANT].load(Ordering::Relaxed) as u32
    }

    fn acts_in_slot_of(&self, slot: u32, id: ParticipantId) -> bool {
        let is_free = load_state(self.arena, slot).is_ok_and(|state| state.kind == Kind::Free);
        !is_free && self.participant_of(slot) == id.index && self.acting_child(slot) != 0
    }

    /// Whether a `vfork` child is in the middle of something in the name of this slot's thread. To be asked after the thread or
    /// its process has been found dead. The child has the memory that keeps the participant's byte locked, which everybody can see;
    /// a private arena has no bytes, and nobody in other PID namespaces.
    pub(crate) fn is_acted_for(&self, slot: u32) -> Result<bool> {
        let child = self.acting_child(slot);
        if child == 0 {
            return Ok(false);
        }
        let Some(path) = self.file else {
            let is_there = |child| !matches!(birth_of(child), Err(Errno::SRCH | Errno::INVAL | Errno::NOENT));
            return Ok(pid_of(child).is_some_and(is_there));
        };
        let participant = self.participant_of(slot).min(self.count() - 1);
        Ok(byte_is_locked(self.arena, path, participant, &mut View::None)?.unwrap_or(true))
    }

    /// The process id of `id`, as the process itself sees it.
    pub(crate) fn pid(&self, id: ParticipantId) -> u32 {
        self.words(id.index)[PID].load(Ordering::Relaxed) as u32
    }

    pub(crate) fn info(&self, id: ParticipantId, own_namespace: impl FnOnce() -> u64) -> ParticipantInfo {
        let words = self.words(id.index);
        let namespace = words[NAMESPACE].load(Ordering::Relaxed);
        let name: Vec<u8> = [NAME, NAME + 1]
            .iter()
            .flat_map(|word| words[*word].load(Ordering::Relaxed).to_le_bytes())
            .take_while(|byte| *byte != 0)
            .collect();
        let own = if namespace == 0 { 0 } else { own_namespace() };
        ParticipantInfo {
            id,
            pid: self.pid(id),
            same_namespace: own != 0 && namespace == own,
            other_namespace: own != 0 && namespace != own,
            name: String::from_utf8_lossy(&name).into_owned(),
        }
    }
}

/// Whether the byte of a participant is locked; `None` if that is not to be known: we gave up our privileges and may no longer look, or the
/// arena's name is gone, or leads to another file, as it does behind `chroot` and in other mount namespaces.
fn byte_is_locked(arena: &Arena, path: &ArenaPath, index: u32, view: &mut View<'_>) -> Result<Option<bool>> {
    if matches!(view, View::None) {
        *view = match path.open() {
            Err(Error::Foreign { .. }) => return Ok(None),
            opened => opened?.map_or(View::None, View::Own),
        };
    }
    match view {
        View::Own(fd) => arena.known_life(&*fd, index),
        View::Lent(fd) => arena.known_life(*fd, index),
        // Whoever removed the name, nothing says that nobody lives.
        View::None => Ok(None),
    }
}

fn command_name() -> [u64; 2] {
    let mut bytes = [0u8; 16];
    if let Ok(name) = rustix::thread::name() {
        let name = name.to_bytes();
        let len = name.len().min(15);
        bytes[..len].copy_from_slice(&name[..len]);
    }
    let (low, high) = bytes.split_at(8);
    [u64::from_le_bytes(low.try_into().unwrap_or_default()), u64::from_le_bytes(high.try_into().unwrap_or_default())]
}
