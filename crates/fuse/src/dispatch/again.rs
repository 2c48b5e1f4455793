//! Callers who try again, because what they knew was old.
//!
//! Between two requests of one call others can replace a file, or a directory on the way to it: what the kernel found is gone then when it
//! opens it, asks for its attributes or looks into it, and it is told so (`ESTALE`). It begins anew, but only once; and where something is
//! replaced all the time it would be too late again. So what a caller finds at its second try is kept until the kernel forgets it, whatever
//! becomes of the name; in a directory that is gone nothing is found then (`ENOENT`). Touches nothing but its own words.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Callers that are remembered, by their thread numbers.
const CALLERS: usize = 64;
/// A second try finds the last name at most this often: when the kernel looks whether what it has is right, when it looks it up
/// since it is not, and once more where a call has two paths.
const FILES: u64 = 3;
/// It finds directories, twice each likewise, at most this often.
const DIRECTORIES: u64 = 511;

/// After this long it is no second try any more. (A busy machine may let a caller wait for long.)
const AT_ONCE_MS: u64 = 10_000;
const TIME_BITS: u64 = 20;

const DIRECTORY_BITS: u64 = 9;
const COUNT_BITS: u64 = DIRECTORY_BITS + 3;

/// What is found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    Directory,
    Other,
}

impl Kind {
    /// One of it, in a word.
    fn one(self) -> u64 {
        match self {
            Kind::Directory => 1,
            Kind::Other => 1 << DIRECTORY_BITS,
        }
    }

    /// How often it is yet to be found.
    fn left(self, word: u64) -> u64 {
        match self {
            Kind::Directory => word % (1 << DIRECTORY_BITS),
            Kind::Other => (word >> DIRECTORY_BITS) % (1 << (COUNT_BITS - DIRECTORY_BITS)),
        }
    }
}

/// Who was told that something is old: the thread's number, when that was (in milliseconds, the lower bits), and how often it has yet to find
/// files and directories.
pub(super) struct Again {
    told: [AtomicU64; CALLERS],
    /// Nobody waits for anybody.
    impatient: AtomicBool,
}

impl Default for Again {
    fn default() -> Self {
        Self { told: std::array::from_fn(|_| AtomicU64::new(0)), impatient: AtomicBool::new(false) }
    }
}

impl Again {
    fn word(&self, caller: u32) -> &AtomicU64 {
        &self.told[caller as usize % CALLERS]
    }

    /// The thread `caller` is told that what it knows is old, `now_ms` on some clock.
    pub(super) fn told(&self, caller: u32, now_ms: u64) {
        let time_ms = now_ms % (1 << TIME_BITS);
        let counts = FILES * Kind::Other.one() + DIRECTORIES;
        self.word(caller).store(u64::from(caller) << 32 | time_ms << COUNT_BITS | counts, Ordering::Relaxed);
    }

    /// Whether the caller tries again, and is yet to find something of this kind.
    pub(super) fn tries(&self, caller: u32, kind: Kind, now_ms: u64) -> bool {
        let word = self.word(caller).load(Ordering::Relaxed);
        let passed_ms = now_ms.wrapping_sub(word >> COUNT_BITS) % (1 << TIME_BITS);
        word >> 32 == u64::from(caller) && kind.left(word) > 0 && passed_ms < AT_ONCE_MS
    }

    /// Whether the caller tries again to find a file, and may wait.
    pub(super) fn waits(&self, caller: u32, now_ms: u64) -> bool {
        self.tries(caller, Kind::Other, now_ms) && !self.impatient.load(Ordering::Relaxed)
    }

    /// From now on nobody waits.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(super) fn lose_patience(&self) {
        self.impatient.store(true, Ordering::Relaxed);
    }

    /// A caller that tries again has found something, and that is kept. What was gone before it could be kept does not count: else
    /// one who is slow, and meets several of those, would be left with nothing.
    pub(super) fn found(&self, caller: u32, kind: Kind) {
        let word = self.word(caller);
        let before = word.load(Ordering::Relaxed);
        if kind.left(before) > 0 {
            word.store(before - kind.one(), Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_try_ends() {
        for (kind, other, finds) in [(Kind::Other, Kind::Directory, FILES), (Kind::Directory, Kind::Other, DIRECTORIES)]
        {
            let again = Again::default();
            assert!(!again.tries(7, kind, 5));
            let now_ms = (3 << TIME_BITS) - AT_ONCE_MS / 2;
            again.told(7, now_ms);
            assert!(!again.tries(7 + CALLERS as u32, kind, now_ms), "another caller");
            assert!(again.tries(7, kind, now_ms + AT_ONCE_MS - 1) && !again.tries(7, kind, now_ms + AT_ONCE_MS));
            for _ in 0..finds {
                assert!((0..100).all(|_| again.tries(7, kind, now_ms)), "what is not kept does not count");
                again.found(7, kind);
            }
            assert!(!again.tries(7, kind, now_ms) && again.tries(7, other, now_ms));
            again.found(7, kind);
            assert!(!again.tries(7, kind, now_ms) && again.tries(7, other, now_ms), "there are none left");
            assert_eq!(again.waits(7, now_ms), other == Kind::Other, "files are waited for");
        }
    }
}
