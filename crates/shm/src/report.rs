//! Who waits for whom, for people: a stopped process that holds a lock is alive, others wait for
//! it, and somebody must be able to see that.

use crate::facade::Ordering;
use crate::hand::{self, HandContent};
use crate::layout::ArenaOffset;
use crate::lock::coarse_ns;
use crate::lock_word;
use crate::participant::{ParticipantId, ParticipantInfo};
use crate::session::Session;
use crate::slot::{
    self, HANDS_MAX, Kind, LATE_WAKES, PARTICIPANT, SLEEPS, SLEPT_NS, TID, WAITING_ON, WAITING_SINCE, WAITS,
};
use crate::thread::load_state;

/// A thread, for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ThreadInfo {
    /// Its slot.
    pub slot: u32,
    /// Thread id, as its process sees it.
    pub tid: u32,
    /// Its process, unless that has just left.
    pub process: Option<ParticipantInfo>,
    /// Whether the process is stopped (a signal, a debugger); `None` if we cannot see it.
    pub stopped: Option<bool>,
}

/// A thread that sleeps on a lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Waiting {
    /// Who waits.
    pub waiter: ThreadInfo,
    /// For which lock.
    pub lock: ArenaOffset,
    /// For how long, in nanoseconds, to a few milliseconds.
    pub waited_ns: u64,
    /// Who has it, if somebody has it now.
    pub owner: Option<ThreadInfo>,
}

/// What all threads have met at locks since the arena was made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LockCounters {
    /// Locks that were not free at once.
    pub waits: u64,
    /// How often somebody had to sleep for one.
    pub sleeps: u64,
    /// How long those took together, in nanoseconds.
    pub slept_ns: u64,
    /// How often one slept on, up to a millisecond, though the lock was free or its owner dead.
    pub late_wakes: u64,
}

impl Session {
    /// All threads that sleep on a lock at this instant. For reports: everything may have changed
    /// when it returns.
    pub fn waiting(&self) -> Vec<Waiting> {
        let waits = |slot| {
            let state = load_state(self.arena(), slot).ok()?;
            let at = slot::words(self.arena(), slot)[WAITING_ON].load(Ordering::Relaxed);
            if state.kind != Kind::Live || at == 0 {
                return None;
            }
            let lock = ArenaOffset::new(at);
            let owner = lock_word::owner(self.word(lock).ok()?.load(Ordering::Relaxed));
            let owner = owner.filter(|owner| *owner < self.arena().layout().threads);
            let since = slot::words(self.arena(), slot)[WAITING_SINCE].load(Ordering::Relaxed);
            Some(Waiting {
                waiter: self.thread_info(slot),
                lock,
                waited_ns: coarse_ns().saturating_sub(since),
                owner: owner.map(|owner| self.thread_info(owner)),
            })
        };
        (0..self.slots_used()).filter_map(waits).collect()
    }

    /// All threads that live in this session at this instant. For reports, too.
    pub fn threads(&self) -> Vec<ThreadInfo> {
        let lives = |slot: &u32| load_state(self.arena(), *slot).is_ok_and(|state| state.kind == Kind::Live);
        (0..self.slots_used()).filter(lives).map(|slot| self.thread_info(slot)).collect()
    }

    /// Calls `visit` with what threads have in their hands, the dead included whom nobody has settled yet. Each hand is seen whole or not
    /// at all if it stays as it is meanwhile; of one that changes, the kind may be the old one and the words the new ones'.
    pub fn for_each_hand(&self, visit: &mut dyn FnMut(HandContent)) {
        for slot in 0..self.slots_used() {
            let words = slot::words(self.arena(), slot);
            (0..HANDS_MAX).map(|index| hand::content(words, index)).filter(|hand| hand.kind != 0).for_each(&mut *visit);
        }
    }

    /// What all threads have met at locks.
    pub fn lock_counters(&self) -> LockCounters {
        let mut sum = LockCounters::default();
        for slot in 0..self.slots_used() {
            let words = slot::words(self.arena(), slot);
            let load = |which: usize| words[which].load(Ordering::Relaxed);
            sum.waits = sum.waits.wrapping_add(load(WAITS));
            sum.sleeps = sum.sleeps.wrapping_add(load(SLEEPS));
            sum.slept_ns = sum.slept_ns.wrapping_add(load(SLEPT_NS));
            sum.late_wakes = sum.late_wakes.wrapping_add(load(LATE_WAKES));
        }
        sum
    }

    fn thread_info(&self, slot: u32) -> ThreadInfo {
        let words = slot::words(self.arena(), slot);
        let participant = words[PARTICIPANT].load(Ordering::Relaxed) as u32;
        let id = self.participants().live(participant);
        let process = id.map(|id| self.info_for_people(id));
        let seen = process.as_ref().filter(|process| process.same_namespace);
        let stopped = seen.and_then(|process| is_stopped(process.pid));
        ThreadInfo { slot, tid: words[TID].load(Ordering::Relaxed) as u32, process, stopped }
    }
}

impl Session {
    /// Who a participant is. Where its record does not say in which PID namespace: whether we see a process of that number that has the
    /// arena mapped.
    pub(crate) fn info_for_people(&self, id: ParticipantId) -> ParticipantInfo {
        let mut info = self.participants().info(id, || self.namespace());
        if !info.same_namespace && !info.other_namespace {
            let has_mapped = self.has_mapped_the_arena(info.pid);
            (info.same_namespace, info.other_namespace) = (has_mapped == Some(true), has_mapped == Some(false));
        }
        info
    }

    /// `None` where that cannot be seen: of another user's process, for instance, or of one outside of our user namespace.
    fn has_mapped_the_arena(&self, pid: u32) -> Option<bool> {
        let path = self.path()?.as_bytes();
        // Its numbers are those of the namespace that it was mounted in.
        let own = std::fs::read_link("/proc/self").ok()?;
        if own.to_str()?.parse() != Ok(std::process::id()) {
            return None;
        }
        match std::fs::read(format!("/proc/{pid}/maps")) {
            // The paths of other maps can be any bytes.
            Ok(maps) => Some(maps.windows(path.len()).any(|bytes| bytes == path)),
            // There is no such process, or none that we see.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                let process = rustix::process::Pid::from_raw(pid.cast_signed())?;
                (rustix::process::test_kill_process(process) == Err(rustix::io::Errno::SRCH)).then_some(false)
            }
            Err(_) => None,
        }
    }
}

/// Whether a process is stopped, by the state letter behind the last parenthesis of its `stat`.
fn is_stopped(pid: u32) -> Option<bool> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, rest) = stat.rsplit_once(')')?;
    Some(matches!(rest.trim_start().chars().next()?, 'T' | 't'))
}
