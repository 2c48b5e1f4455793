//! Joining and leaving: first, beside others, last; again after a fork.
//!
//! All behind the gate (see `file`). The first participant builds a new arena and lets the volume's
//! owner recover and initialise; the last one lets it write its summary and removes the arena, so
//! an arena without participants is what was left by processes that were killed. The next one goes on
//! with it if the volume's owner finds that nothing has happened since; else it starts anew.

use crate::arena::Arena;
use crate::error::{Error, Result, again};
use crate::facade::Ordering;
use crate::file::{self, ArenaPath, Gate, VolumeIdentity};
use crate::layout::{ArenaLayout, ArenaOffset, Computed, HEADER_BYTES};
use crate::leftovers;
use crate::session::{
    ARENA_ID_AT, BOOT_AT, BYTES_AT, IN_CHARGE, LAYOUT_AT, MAGIC, MAGIC_AT, NONCE_AT, READY, READY_AT, Session, UUID_AT,
    VolumeGuard,
};
use rustix::fd::AsFd;
use rustix::thread::{Timespec, nanosleep};
use std::sync::Arc;

/// Who was killed behind the gate seems to live a moment longer than it has that. What it was at it has not finished, and who comes
/// next waits until it is gone, and does that anew.
const UNFINISHED: &str = "it is not complete";
pub(crate) const TURN: Timespec = Timespec { tv_sec: 0, tv_nsec: 200_000 };
pub(crate) const TURNS_MAX: u32 = 10_000;

impl Session {
    /// Opens the arena of a volume, or makes it if nobody has it, and joins.
    ///
    /// `guard` is told which of the two it was. Errors: `Foreign` if something else stands at the
    /// arena's name, `OtherVersion`, `Cut` if somebody lives in what was made shorter, `Full`, and what the guard refuses with.
    pub fn attach(identity: VolumeIdentity, layout: &ArenaLayout, guard: &mut dyn VolumeGuard) -> Result<Arc<Self>> {
        again(|| Self::attach_once(identity, layout, guard))
    }

    fn attach_once(identity: VolumeIdentity, layout: &ArenaLayout, guard: &mut dyn VolumeGuard) -> Result<Arc<Self>> {
        let path = ArenaPath::new(&identity);
        let mut turns = 0;
        loop {
            if let Some(gate) = path.gate()? {
                if file::any_life(gate.fd())? {
                    let layout = layout.compute_for(gate.bytes)?;
                    match Self::attach_to_others(&path, &gate, layout, &identity, guard) {
                        Err(Error::Foreign { why: UNFINISHED, .. }) if turns < TURNS_MAX => {
                            turns += 1;
                            drop(gate);
                            let _ = nanosleep(&TURN);
                            continue;
                        }
                        attached => return attached,
                    }
                }
                if !path.leads_to(gate.fd())? {
                    // Not the arena's was asked, but a file to which the program has given the number.
                    continue;
                }
                // Its last participant was killed.
                let dead = leftovers::identity_of(gate.fd());
                if let Ok(found) = layout.compute_for(gate.bytes)
                    && let Some(session) = Self::adopt(&path, &gate, found, &identity, guard)?
                {
                    drop(gate);
                    leftovers::remove_leftovers();
                    return Ok(session);
                }
                if path.leads_to(gate.fd())? {
                    path.unlink()?;
                }
                drop(gate);
                // Nobody who comes later could tell that its meeting places are of none, where an arena is there that he cannot ask.
                dead.map(leftovers::remove_leftovers_behind);
            }
            if let Some(session) = Self::attach_first(&path, layout.compute()?, &identity, guard)? {
                // Where another user had it open before, the arena has another name.
                leftovers::remove_leftovers_of(identity.nonce);
                return Ok(session);
            }
        }
    }

    /// Whether an arena of this volume stands there whose users were all killed: attaching goes on with it if it can.
    pub fn is_left_behind(identity: VolumeIdentity) -> Result<bool> {
        let Some(fd) = ArenaPath::new(&identity).open()? else { return Ok(false) };
        let bytes = rustix::fs::fstat(&fd).map_or(0, |status| status.st_size as u64);
        // Somebody may have emptied or cut it.
        let word = |at| header_word(&fd, at);
        let is_whole = word(MAGIC_AT) == Some(MAGIC)
            && word(BYTES_AT) == Some(bytes)
            && word(READY_AT).is_some_and(|state| [READY, IN_CHARGE].contains(&state));
        Ok(is_whole && !file::any_life(&fd)?)
    }

    /// Removes the arena of a volume whose last participant was killed; what it held of memory is
    /// free then. Returns whether there was one. The next attach starts anew then.
    pub fn remove_stale(identity: VolumeIdentity) -> Result<bool> {
        let path = ArenaPath::new(&identity);
        let Some(gate) = path.gate()? else { return Ok(false) };
        if file::any_life(gate.fd())? || !path.leads_to(gate.fd())? {
            return Ok(false);
        }
        let dead = leftovers::identity_of(gate.fd());
        path.unlink()?;
        drop(gate);
        dead.map(leftovers::remove_leftovers_behind);
        Ok(true)
    }

    /// An arena without a volume: only this process and children forked from it can reach it.
    pub fn private(layout: &ArenaLayout) -> Result<Arc<Self>> {
        let arena = Arena::map(layout.compute()?, None, None)?;
        let session = Self::build(arena, None)?;
        session.write_header(&VolumeIdentity { uuid: [0; 16], nonce: 0 });
        session.arena.fixed(READY_AT).store(READY, Ordering::Release);
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
        let session = match Self::open_existing(path, gate, layout, identity, &[READY, IN_CHARGE]) {
            Ok(session) => session,
            Err(error) if error.is_displaced() => return Err(error),
            Err(_) => return Ok(None),
        };
        // What a killed mount's kernel remembers is believed for a while.
        if session.recall_caching().is_err()
            || boot == 0
            || session.arena.fixed(BOOT_AT).load(Ordering::Relaxed) != boot
        {
            return Ok(None);
        }
        session.arena.fixed(READY_AT).store(IN_CHARGE, Ordering::SeqCst);
        if !path.leads_to(gate.fd()).unwrap_or(false) {
            // Somebody else goes on with it, and says so when he has.
            session.arena.fixed(READY_AT).store(READY, Ordering::SeqCst);
            return Err(Error::displaced());
        }
        match session.join(Some(gate)) {
            Ok(()) => {}
            Err(error) if error.is_displaced() => return Err(error),
            Err(_) => return Ok(None),
        }
        match session.behind(gate, || guard.adopted(&session, session.arena_identity())) {
            Ok(true) => {
                session.arena.fixed(READY_AT).store(READY, Ordering::Release);
                Ok(Some(session))
            }
            other => {
                // Whoever is refused now may find a thread's slot here that says what cannot be.
                let _ = session.mark_own_threads_dead(None);
                // While the byte keeps others out.
                if !matches!(other, Err(Error::Owner(_))) && path.leads_to(gate.fd()).unwrap_or(false) {
                    path.unlink()?;
                }
                session.leave_record();
                match other {
                    Err(error @ Error::Owner(_)) => Err(error),
                    _ => Ok(None),
                }
            }
        }
    }

    /// Maps an arena that was made complete, after a look at its header.
    fn open_existing(
        path: &ArenaPath,
        gate: &Gate,
        layout: Computed,
        identity: &VolumeIdentity,
        states: &[u64],
    ) -> Result<Arc<Self>> {
        let other_version = || Error::OtherVersion { path: path.path.clone() };
        let cut = || Error::Cut { path: path.path.clone() };
        if gate.bytes != layout.bytes {
            return Err(if is_cut(gate) { cut() } else { other_version() });
        }
        let mut arena = map_again(path, gate, layout)?;
        arena.is_founded = true;
        // Both have memory since the file was made.
        arena.map_page(ArenaOffset::new(READY_AT));
        arena.map_page(ArenaOffset::new(arena.layout().participants_at));
        let session = Self::build(arena, Some(path.clone()))?;
        let header = |at| session.arena.fixed(at).load(Ordering::Acquire);
        // Of whichever version it is: cut, none is what it was.
        if header(MAGIC_AT) == MAGIC && header(BYTES_AT) > gate.bytes {
            return Err(cut());
        }
        if header(MAGIC_AT) != MAGIC || header(LAYOUT_AT) != session.arena.layout().checksum {
            return Err(other_version());
        }
        let [low, high] = uuid_words(identity);
        if header(BYTES_AT) != session.arena.bytes()
            || [header(UUID_AT), header(UUID_AT + 8), header(NONCE_AT)] != [low, high, identity.nonce]
        {
            return Err(path.foreign("its header is damaged"));
        }
        if !states.contains(&header(READY_AT)) {
            return Err(path.foreign(UNFINISHED));
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
        let session = Self::open_existing(path, gate, layout, identity, &[READY])?;
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
            let session = Self::build(map_again(path, &gate, layout)?, Some(path.clone()))?;
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
                session.arena.fixed(READY_AT).store(READY, Ordering::Release);
                Ok(Some(session))
            }
            Err(error) => {
                // Nobody can have joined, if the gate is ours.
                if path.leads_to(gate.fd()).unwrap_or(false) {
                    path.unlink()?;
                }
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
}

/// Whether the arena's file is shorter than it was made, in whichever version: without room for a header, or shorter than that says.
fn is_cut(gate: &Gate) -> bool {
    if gate.bytes < HEADER_BYTES {
        return true;
    }
    let word = |at| header_word(gate.fd(), at);
    word(MAGIC_AT) == Some(MAGIC) && word(BYTES_AT).is_some_and(|bytes| gate.bytes < bytes)
}

/// A word of the header of an arena that is not mapped; `None` behind its end.
fn header_word(arena: impl AsFd, at: u64) -> Option<u64> {
    let mut word = [0; 8];
    (rustix::io::pread(arena, &mut word, at) == Ok(word.len())).then_some(u64::from_le_bytes(word))
}

/// Maps the arena through an open file of its own: not the gate's, not the byte's, since children
/// inherit the mapping and with it whatever its open file has locked.
pub(crate) fn map_again(path: &ArenaPath, gate: &Gate, layout: Computed) -> Result<Arena> {
    let fd = path.open_again(gate)?;
    let mapped = Arena::map(layout, Some(&fd), Some(path));
    // Asked now, it says what was mapped, and nothing of that has been touched. The gate's file was examined when it was opened.
    if fd.close() { mapped } else { Err(Error::displaced()) }
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
