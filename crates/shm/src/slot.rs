//! The record of one thread in the arena: its state, what it has in hand, whether it lives.
//! Only the layout and the state word; who changes it, and when, stands in `thread` and `reap`.
//!
//! State: `kind:4 · generation:22 · by:16 · by_generation:22`. FREE; JOIN and LIVE (by = the
//! participant); REAP (by = the reaper's slot and its generation). The generation grows each time
//! the slot becomes free, so a claim or a cached slot of an earlier life is recognised.

use crate::arena::Arena;
use crate::facade::Word;
use crate::layout::SLOT_BYTES;

/// Number of locks that a thread can hold at once.
pub const LOCKS_MAX: usize = 16;
/// Number of hands that a thread has.
pub const HANDS_MAX: usize = 16;

// Words of a slot.
pub(crate) const STATE: usize = 0;
/// The participant that the thread belongs to; kept beside the state, which a reaper overwrites.
pub(crate) const PARTICIPANT: usize = 1;
/// Non-zero: somebody sleeps on a lock of this thread.
pub(crate) const WAITERS: usize = 2;
/// Owner's private note: which entries of the lock intents are in use.
pub(crate) const LOCKS_USED: usize = 3;
/// Owner's private note: which hands are in use.
pub(crate) const HANDS_USED: usize = 4;
/// Thread id in the participant's PID namespace.
pub(crate) const TID: usize = 5;
/// Offset of the lock that the thread sleeps on, or 0.
pub(crate) const WAITING_ON: usize = 6;
/// 1 if the kernel marks the life word at the thread's death.
pub(crate) const LIFE_KIND: usize = 7;
/// Offsets of locks that the thread holds or is about to take.
pub(crate) const LOCK_INTENTS: usize = 8;
/// Hands: kind, a, b each. A hand is in use exactly while its kind is not 0.
pub(crate) const HANDS: usize = LOCK_INTENTS + LOCKS_MAX;
pub(crate) const HAND_WORDS: usize = 3;
/// Words of a slot before its life word, padding included.
pub(crate) const SLOT_WORDS: usize = 80;
/// Counts of the threads that had the slot: locks that were not free, and waits that ended asleep, and those in nanoseconds.
pub(crate) const WAITS: usize = HANDS + HANDS_MAX * HAND_WORDS;
pub(crate) const SLEEPS: usize = WAITS + 1;
pub(crate) const SLEPT_NS: usize = WAITS + 2;
/// Since when the thread sleeps on a lock, in nanoseconds of the coarse monotonic clock; it counts while `WAITING_ON` does.
pub(crate) const WAITING_SINCE: usize = WAITS + 3;
/// The `vfork` child that acts in the thread's name, in the thread's PID namespace; 0: none. See [`crate::fork`].
pub(crate) const ACTING_CHILD: usize = WAITS + 4;
/// Counts sleeps that only time ended though the lock was free, or its owner dead.
pub(crate) const LATE_WAKES: usize = WAITS + 5;
const _: () = assert!(LATE_WAKES < SLOT_WORDS && SLOT_WORDS * 8 <= LIFE_IN_SLOT as usize);

/// The bit of the life word that says that the thread is dead: the kernel's FUTEX_OWNER_DIED.
pub(crate) const OWNER_DIED: u32 = 0x4000_0000;
/// The bit that has the kernel wake one who waits for that: its FUTEX_WAITERS.
pub(crate) const LIFE_WAITERS: u32 = 0x8000_0000;
/// The bits of the life word that name the thread: the kernel's FUTEX_TID_MASK.
#[cfg(any(test, feature = "abandon"))]
pub(crate) const LIFE_TID: u32 = !(OWNER_DIED | LIFE_WAITERS);
/// Where in its slot, which is a page, the life word stands: at the end, so that glibc's list pointers of the
/// robust entry fall into the private page mapped behind it.
pub(crate) const LIFE_IN_SLOT: u64 = SLOT_BYTES - 8;

const GENERATION_BITS: u32 = 22;
const GENERATION_MASK: u64 = (1 << GENERATION_BITS) - 1;

/// What a slot is being used for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Free,
    Join,
    Live,
    Reap,
}

/// What tells one use of a slot from the next, from its state word: not 0.
#[inline(always)]
pub(crate) const fn tenure(state: u64) -> u64 {
    ((state >> 38) & GENERATION_MASK) + 1
}

/// A decoded state word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct State {
    pub(crate) kind: Kind,
    pub(crate) generation: u32,
    pub(crate) by: u16,
    pub(crate) by_generation: u32,
}

impl State {
    pub(crate) fn decode(value: u64) -> Option<Self> {
        let kind = match value >> 60 {
            0 => Kind::Free,
            1 => Kind::Join,
            2 => Kind::Live,
            3 => Kind::Reap,
            _ => return None,
        };
        Some(Self {
            kind,
            generation: ((value >> 38) & GENERATION_MASK) as u32,
            by: (value >> 22) as u16,
            by_generation: (value & GENERATION_MASK) as u32,
        })
    }

    pub(crate) fn encode(self) -> u64 {
        let kind = match self.kind {
            Kind::Free => 0u64,
            Kind::Join => 1,
            Kind::Live => 2,
            Kind::Reap => 3,
        };
        (kind << 60)
            | ((u64::from(self.generation) & GENERATION_MASK) << 38)
            | (u64::from(self.by) << 22)
            | (u64::from(self.by_generation) & GENERATION_MASK)
    }

    /// Free, one generation on.
    pub(crate) fn freed(generation: u32) -> Self {
        let next = (u64::from(generation) + 1) & GENERATION_MASK;
        Self { kind: Kind::Free, generation: next as u32, by: 0, by_generation: 0 }
    }
}

/// The words of slot `index`, which the caller has checked against the layout.
#[inline(always)]
pub(crate) fn words(arena: &Arena, index: u32) -> &[Word; SLOT_WORDS] {
    debug_assert!(index < arena.layout().threads);
    let at = slot_at(arena, index);
    // SAFETY: the slot table lies inside the mapping and slots are aligned to pages; words are atomics.
    unsafe { &*arena.address(at).cast::<[Word; SLOT_WORDS]>() }
}

/// Arena offset of slot `index`.
#[inline(always)]
pub(crate) fn slot_at(arena: &Arena, index: u32) -> u64 {
    arena.layout().slots_at + u64::from(index) * SLOT_BYTES
}

/// Arena offset of the life word of slot `index`.
pub(crate) fn life_at(arena: &Arena, index: u32) -> u64 {
    slot_at(arena, index) + LIFE_IN_SLOT
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn state_survives_encoding() {
        for kind in [Kind::Free, Kind::Join, Kind::Live, Kind::Reap] {
            for (generation, by, by_generation) in [(0, 0, 0), (1, 2, 3), (0x3f_ffff, 0xffff, 0x3f_ffff)] {
                let state = State { kind, generation, by, by_generation };
                assert_eq!(State::decode(state.encode()), Some(state));
            }
        }
        assert_eq!(State::decode(u64::MAX), None);
        assert_eq!(State::freed(0x3f_ffff).generation, 0);
    }
}
