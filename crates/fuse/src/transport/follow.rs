//! A thread that reads `/dev/fuse` alone follows its callers from core to core: waking it there, and them, is a switch of context
//! instead of waking a core.
//!
//! May touch: where the calling thread, and the one that watches, may run. Reads `/proc` for the core that a caller ran on last.

use rustix::thread::{CpuSet, Pid, sched_getaffinity, sched_setaffinity};

use super::thread_stat::core_of;

/// A thread that has found its callers on its core looks after them less and less, down to every so many looks.
const PERIOD_MAX: u32 = 16;
/// A caller that was followed so many times in a row without being found there flees: on a machine with idle cores the kernel wakes it on
/// one that we do not occupy. It is then left alone for so many looks, twice as many each time.
const CHASES_MAX: u32 = 4;
const REST_LOOKS: u32 = 64;
const REST_DOUBLINGS_MAX: u32 = 6;

/// How the search for a caller goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Chase {
    /// It was found, or will be looked for again.
    On,
    /// It is never where the thread is.
    GivenUp,
}

/// Where a thread runs, seen from itself.
pub(super) struct Follower {
    /// Where it may run.
    cores: Option<CpuSet>,
    pinned: Option<usize>,
    /// Where it goes when the next request has come.
    goal: Option<usize>,
    /// The core that a caller was on at the last look, if that was not ours.
    candidate: Option<usize>,
    /// Looks between two at the caller, and since the last.
    period: u32,
    passed_over: u32,
    /// Moves since a caller was found on our core, and how often that was given up.
    chases: u32,
    rests: u32,
}

impl Follower {
    pub(super) const fn new() -> Self {
        Self { cores: None, pinned: None, goal: None, candidate: None, period: 1, passed_over: 0, chases: 0, rests: 0 }
    }

    /// The core that it is kept on.
    #[cfg(test)]
    pub(super) fn pinned(&self) -> Option<usize> {
        self.pinned
    }

    /// A request has come: goes where it was decided to. Now, because its caller sleeps: one that runs would change places with this thread,
    /// as the kernel looks for something to run on the core that is left.
    ///
    /// The watch stays away from there: whoever else runs when a caller is woken drives it off. It is moved by us because it sleeps; when it
    /// moves itself, it is the kernel's thread for that which runs.
    pub(super) fn go(&mut self, watch: u32) {
        let Some(core) = self.goal.take() else { return };
        self.pin(core);
        if let (Some(cores), Some(watch)) = (&self.cores, Pid::from_raw(watch.cast_signed())) {
            let mut others = *cores;
            others.unset(core);
            if others.count() > 0 {
                let _ = sched_setaffinity(Some(watch), &others);
            }
        }
    }

    /// Looks where a caller is, if it is time to, and decides to go there. Who hands off looks each time, and believes what it sees: a caller
    /// that was driven off stays away.
    pub(super) fn follow(&mut self, caller: u32, hands_off: bool) -> Chase {
        self.passed_over += 1;
        if hands_off {
            let there = core_of(caller);
            self.candidate = there;
            return there.map_or(Chase::On, |core| self.see(core));
        }
        if self.passed_over < self.period {
            return Chase::On;
        }
        self.passed_over = 0;
        core_of(caller).map_or(Chase::On, |core| self.see(core))
    }

    /// The caller was seen on a core.
    fn see(&mut self, core: usize) -> Chase {
        if self.pinned == Some(core) {
            self.candidate = None;
            self.period = (self.period * 2).min(PERIOD_MAX);
            (self.chases, self.rests) = (0, 0);
            return Chase::On;
        }
        self.period = 1;
        // Who was there once may have been on the way.
        if self.candidate.replace(core) != Some(core) {
            return Chase::On;
        }
        if self.chases < CHASES_MAX {
            self.goal = Some(core);
            self.chases += 1;
            return Chase::On;
        }
        self.unpin();
        self.period = REST_LOOKS << self.rests;
        self.rests = (self.rests + 1).min(REST_DOUBLINGS_MAX);
        self.chases = 0;
        Chase::GivenUp
    }

    /// Callers flee no more.
    pub(super) fn begin_anew(&mut self) {
        (self.period, self.passed_over, self.chases, self.rests) = (1, 0, 0, 0);
    }

    fn pin(&mut self, core: usize) {
        let Some(cores) = self.cores.or_else(|| sched_getaffinity(None).ok()) else { return };
        self.cores = Some(cores);
        self.candidate = None;
        if core < CpuSet::MAX_CPU && cores.is_set(core) {
            let mut only = CpuSet::new();
            only.set(core);
            if sched_setaffinity(None, &only).is_ok() {
                self.pinned = Some(core);
            }
        }
    }

    /// Stays on the core of that index, where there are two: the kernel wakes who has waited longest, and a caller that flees from each thread
    /// that answers it arrives where the other one is.
    pub(super) fn keep_to_own(&mut self, index: usize) {
        let Some(cores) = self.cores.or_else(|| sched_getaffinity(None).ok()) else { return };
        let own = (0..CpuSet::MAX_CPU).filter(|&core| cores.is_set(core)).nth(index);
        match own {
            Some(core) if cores.count() == 2 => {
                if self.pinned != Some(core) {
                    self.pin(core);
                }
            }
            _ => self.unpin(),
        }
    }

    /// Runs wherever it may.
    pub(super) fn unpin(&mut self) {
        self.goal = None;
        if let (Some(_), Some(cores)) = (self.pinned.take(), &self.cores) {
            let _ = sched_setaffinity(None, cores);
        }
        self.candidate = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_caller_that_flees_is_left_alone() {
        std::thread::scope(|scope| {
            // A thread of its own: its mask is changed.
            scope.spawn(|| {
                let before = sched_getaffinity(None).unwrap();
                let mut place = Follower::new();
                let cores: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|&core| before.is_set(core)).collect();
                let mut moves = 0;
                for look in 0..100 {
                    let was = place.pinned;
                    // Always where the thread is not, and for two looks.
                    let there = cores.iter().copied().find(|&core| Some(core) != place.pinned).unwrap_or(usize::MAX);
                    let outcome = place.see(there);
                    place.go(0);
                    moves += u32::from(place.pinned.is_some() && place.pinned != was);
                    if outcome == Chase::GivenUp {
                        assert!(look > 1 && place.pinned.is_none() && place.period > 1);
                        break;
                    }
                }
                assert!(moves == CHASES_MAX || cores.len() == 1);
                assert_eq!(sched_getaffinity(None).unwrap(), before);
                // Found once, all is forgiven.
                place.pin(cores[0]);
                place.see(cores[0]);
                assert_eq!((place.chases, place.rests), (0, 0));
            });
        });
    }
}
