//! Hand-off on one core: a thread that serves a stream of requests is of the policy SCHED_IDLE (`sched(7)`) as long as nothing else
//! wants its core.
//!
//! A reply wakes its caller, and the kernel looks for an idle core to do that on. The one that the reply is sent from is not, so with
//! idle cores about the caller moves, and its next request has to wake this thread, or another, across cores: twice a core is woken,
//! for one request. But a core that runs nothing except SCHED_IDLE counts as idle (`sched_idle_cpu` in the kernel's `select_idle_sibling`,
//! Linux 5.4): the caller stays where it was and preempts us, and both ways are a switch of context.
//!
//! Such a thread hardly runs while another of the ordinary policy wants its core (3 of 1,027 parts of the time). So it is one only
//! while requests stream in and cores are idle (`idle_cores`; with none the caller stays anyway), and a watch (`watch`) looks each millisecond:
//!
//! | what is seen of a thread | what is done |
//! | --- | --- |
//! | it takes [`STREAM_STEPS`] steps or more in a tick | SCHED_IDLE |
//! | no step, and it is runnable | back; it is held up, or its caller computes |
//! | after which it takes steps at once | it was held up: not again for a while, twice as long each time |
//! | the machine has no idle cores any more | back |
//! | it sleeps for [`QUIET_TICKS`] | back: whoever comes next finds it as everybody's equal |
//!
//! What a request can lose by it is two ticks, and each thread that once in a while.
//!
//! May touch: the policy of threads that serve. To come back from SCHED_IDLE takes CAP_SYS_NICE or a limit (RLIMIT_NICE) that
//! allows it: where that is missing, nothing is changed.

use std::sync::Arc;

use super::idle_cores::IdleCores;
use super::notify::{Turn, Turns};
use super::thread_stat::is_runnable;

/// Steps in a tick that make a stream: one in a quarter of a millisecond.
const STREAM_STEPS: u64 = 4;
/// Ticks asleep after which a stream has ended.
const QUIET_TICKS: u32 = 4;
/// How long a thread that was held up stays of the ordinary policy, in ticks: at first, and at most.
const REST_TICKS_MIN: u64 = 20;
const REST_TICKS_MAX: u64 = 2000;
/// A thread that was not held up for so many ticks while it was SCHED_IDLE begins with short rests again.
const FORGIVEN_TICKS: u32 = 500;

/// Who is SCHED_IDLE. Used by one watch.
pub(super) struct HandOff {
    turns: Turns,
    threads: Vec<Standing>,
    idle_cores: IdleCores,
    tick: u64,
}

/// A thread, as the watch sees it.
struct Standing {
    turn: Arc<Turn>,
    steps: u64,
    stands_back: bool,
    /// It was brought back because it was runnable: was it held up?
    suspected: bool,
    quiet_ticks: u32,
    good_ticks: u32,
    /// Not before this tick again, and how long the next rest is.
    rests_until: u64,
    rest_ticks: u64,
}

impl HandOff {
    /// For threads that take these turns. `None` where the policy cannot be changed back, or is not the ordinary one.
    pub(super) fn new(turns: &Turns) -> Option<Self> {
        policy_can_change().then(|| Self {
            turns: turns.clone(),
            threads: Vec::new(),
            idle_cores: IdleCores::new(),
            tick: 0,
        })
    }

    /// A tick has passed. `may` says of a thread, by its place among the turns, whether it may stand back now. Returns whether anything
    /// happened or goes on.
    pub(super) fn tick(&mut self, may: impl Fn(usize) -> bool) -> bool {
        self.tick += 1;
        for turn in self.turns.since(self.threads.len()) {
            self.threads.push(Standing::new(turn));
        }
        let tick = self.tick;
        self.idle_cores.look();
        let idle_cores = self.idle_cores.some();
        let mut awake = false;
        for (index, thread) in self.threads.iter_mut().enumerate() {
            awake |= thread.see(tick, idle_cores && may(index));
        }
        awake
    }

    /// Whether that thread is SCHED_IDLE.
    pub(super) fn stands_back(&self, index: usize) -> bool {
        self.threads.get(index).is_some_and(|thread| thread.stands_back)
    }

    /// Whether it would be if it served a stream and might.
    pub(super) fn ready(&self, index: usize) -> bool {
        self.idle_cores.some() && self.threads.get(index).is_some_and(|thread| self.tick >= thread.rests_until)
    }

    /// Its callers moved all the same: not again for a while.
    pub(super) fn rest(&mut self, index: usize) {
        let tick = self.tick;
        if let Some(thread) = self.threads.get_mut(index) {
            thread.rest(tick);
        }
    }
}

impl Drop for HandOff {
    fn drop(&mut self) {
        self.threads.iter_mut().for_each(Standing::come_back);
    }
}

impl Standing {
    fn new(turn: Arc<Turn>) -> Self {
        Self {
            steps: turn.count(),
            turn,
            stands_back: false,
            suspected: false,
            quiet_ticks: 0,
            good_ticks: 0,
            rests_until: 0,
            rest_ticks: REST_TICKS_MIN,
        }
    }

    fn see(&mut self, tick: u64, may: bool) -> bool {
        let count = self.turn.count();
        let steps = count - self.steps;
        self.steps = count;
        if let Some(thread) = self.turn.thread() {
            if self.stands_back {
                self.see_standing_back(thread, steps, may);
            } else {
                self.see_ordinary(thread, steps, may, tick);
            }
        }
        steps > 0 || self.stands_back
    }

    fn see_ordinary(&mut self, thread: u32, steps: u64, may: bool, tick: u64) {
        // One step may be the end of what it was at when it was preempted.
        if std::mem::take(&mut self.suspected) && steps > 1 {
            self.rest(tick);
        }
        if may && steps >= STREAM_STEPS && tick >= self.rests_until && set_policy(thread, Policy::Idle) {
            self.stands_back = true;
            self.quiet_ticks = 0;
        }
    }

    fn see_standing_back(&mut self, thread: u32, steps: u64, may: bool) {
        let mut comes_back = !may;
        if steps == 0 {
            self.suspected = is_runnable(thread);
            self.quiet_ticks += 1;
            comes_back |= self.suspected || self.quiet_ticks >= QUIET_TICKS;
        } else {
            self.quiet_ticks = 0;
            self.good_ticks += 1;
            if self.good_ticks >= FORGIVEN_TICKS {
                self.rest_ticks = REST_TICKS_MIN;
            }
        }
        if comes_back {
            self.come_back();
        }
    }

    fn rest(&mut self, tick: u64) {
        self.rests_until = tick + self.rest_ticks;
        self.rest_ticks = (self.rest_ticks * 2).min(REST_TICKS_MAX);
        self.good_ticks = 0;
    }

    fn come_back(&mut self) {
        if std::mem::take(&mut self.stands_back)
            && let Some(thread) = self.turn.thread()
        {
            // It may have ended.
            set_policy(thread, Policy::Ordinary);
        }
    }
}

/// The calling thread, which serves, takes a turn of its own from now on.
pub(super) fn join(turn: &Turn) {
    turn.bind();
    keep_disk_priority();
}

/// Keeps the calling thread's requests to disks (volumes may lie on them) of the class that they are of now: unless one was set, it follows
/// the policy (`ioprio_set(2)`).
fn keep_disk_priority() {
    const THREAD: libc::c_int = 1;
    const CLASS_SHIFT: u32 = 13;
    const BEST_EFFORT: libc::c_long = 2;
    const LEVEL: libc::c_long = 4;
    // SAFETY: both calls take numbers only.
    unsafe {
        let now = libc::syscall(libc::SYS_ioprio_get, THREAD, 0);
        // Of a thread without a class of its own kernels say either none or what it comes to.
        match now >> CLASS_SHIFT {
            0 => libc::syscall(libc::SYS_ioprio_set, THREAD, 0, BEST_EFFORT << CLASS_SHIFT | LEVEL),
            BEST_EFFORT => libc::syscall(libc::SYS_ioprio_set, THREAD, 0, now),
            _ => 0,
        };
    }
}

/// What the scheduler does with a thread.
#[derive(Clone, Copy)]
enum Policy {
    Ordinary,
    Idle,
}

/// Sets the policy of a thread of this process; 0 is the calling one. False if it cannot be.
fn set_policy(thread: u32, policy: Policy) -> bool {
    let policy = match policy {
        Policy::Ordinary => libc::SCHED_OTHER,
        Policy::Idle => libc::SCHED_IDLE,
    };
    let parameters = libc::sched_param { sched_priority: 0 };
    // SAFETY: the structure is only read, during the call.
    unsafe { libc::sched_setscheduler(thread as libc::pid_t, policy, &raw const parameters) == 0 }
}

/// The policy of a thread of this process; 0 is the calling one.
fn policy_of(thread: u32) -> libc::c_int {
    // SAFETY: the call takes a number and gives one.
    unsafe { libc::sched_getscheduler(thread as libc::pid_t) }
}

/// Of a thread that one that serves has made: it has the same policy, and nobody would bring it back.
pub(super) fn be_ordinary() {
    // The process's first thread serves nobody: it has the policy that was given to all.
    if policy_of(0) == libc::SCHED_IDLE && policy_of(std::process::id()) == libc::SCHED_OTHER {
        set_policy(0, Policy::Ordinary);
    }
}

/// Whether this process may change its threads' policy and back, tried on a thread made for it. Not where somebody chose another policy
/// for the whole process.
fn policy_can_change() -> bool {
    let ordinary = policy_of(0) == libc::SCHED_OTHER;
    let tried = || set_policy(0, Policy::Idle) && set_policy(0, Policy::Ordinary);
    ordinary && std::thread::Builder::new().spawn(tried).is_ok_and(|thread| thread.join().unwrap_or(false))
}

#[cfg(test)]
mod tests;
