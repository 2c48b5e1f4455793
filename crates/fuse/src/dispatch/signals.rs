//! Signals to a program that waits for a lock, where the kernel does not tell of them.
//!
//! It tells by INTERRUPT, and over the ring not always: a signal that comes before the request has reached us is noted at the request and
//! never told. The program would then wait for the lock whatever is sent to it, SIGKILL included. So whoever waits over the ring looks what
//! the program's thread is at: it sleeps such that any signal wakes it, until one has; then such that only SIGKILL does, or nothing. A thread
//! that sleeps lightly has had no signal, and the kernel tells of those to come, for the request is with us: no more looks. One that sleeps
//! deeply has had one. As long as the thread is seen to do neither, for it has a processor or waits for one, what it has pending says so, too.

use std::time::{Duration, Instant};

use super::Dispatcher;
use super::set_id::status;
use crate::protocol::constants::InitFlags;
use crate::protocol::request::Header;

/// How long after a look the next one is, where that said nothing: at first, and at most.
const LOOK_FIRST: Duration = Duration::from_millis(2);
const LOOK_MAX: Duration = Duration::from_millis(250);

/// What one waiter knows of the signals of its caller.
pub(super) struct Signals {
    /// Nobody, where the kernel tells of all.
    header: Option<Header>,
    next_look: Instant,
    pause: Duration,
    /// What was pending at the last look, if that was a long one ago.
    pending: u64,
}

/// What a thread does while it waits for the answer to a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Sleep {
    /// Any signal would wake it: none has come.
    Light,
    /// A signal has woken it once.
    Deep,
    /// It runs, or is about to.
    Unknown,
}

impl Signals {
    pub(super) fn of(dispatcher: &Dispatcher, header: &Header) -> Self {
        // A process of another world, which has no number here, cannot be looked at.
        let untold = dispatcher.agreed(InitFlags::OVER_IO_URING) && header.process != 0;
        Self { header: untold.then_some(*header), next_look: Instant::now(), pause: LOOK_FIRST, pending: 0 }
    }

    /// Whether a signal has come that the kernel does not tell of.
    pub(super) fn wait(&mut self) -> bool {
        let Some(header) = &self.header else { return false };
        let now = Instant::now();
        if now < self.next_look {
            return false;
        }
        let status = status(header);
        match sleep(&status) {
            Sleep::Light => self.header = None,
            Sleep::Deep => return true,
            Sleep::Unknown => {}
        }
        // Only one that it has not taken between two looks counts: another thread of its process can take it, too.
        let mut before = 0;
        if self.pause == LOOK_MAX {
            before = std::mem::replace(&mut self.pending, deliverable(&status));
        }
        self.next_look = now + self.pause;
        self.pause = (self.pause * 2).min(LOOK_MAX);
        before & self.pending != 0
    }
}

/// How a thread sleeps, by its `status`.
fn sleep(status: &str) -> Sleep {
    match status.lines().find_map(|line| line.strip_prefix("State:")).map(str::trim_start) {
        Some(state) if state.starts_with('S') => Sleep::Light,
        Some(state) if state.starts_with('D') => Sleep::Deep,
        _ => Sleep::Unknown,
    }
}

/// The signals that a thread's `status` shows as pending, for it or its process, and that it does not block.
fn deliverable(status: &str) -> u64 {
    let set = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|set| u64::from_str_radix(set.trim(), 16).ok()).unwrap_or(0)
    };
    (set("SigPnd:") | set("ShdPnd:")) & !set("SigBlk:")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_that_are_not_blocked_are_found_in_a_status() {
        let status = |pending: &str, shared: &str, blocked: &str| {
            format!("Name:\tsh\nSigQ:\t0/9\nSigPnd:\t{pending}\nShdPnd:\t{shared}\nSigBlk:\t{blocked}\nSigIgn:\t0\n")
        };
        assert_eq!(deliverable(&status("0000000000000100", "0000000000000300", "0000000000000000")), 0x300);
        assert_eq!(deliverable(&status("0000000000000100", "0000000000000200", "0000000000000100")), 0x200);
        assert_eq!(deliverable(&status("0000000000000000", "8000000000000000", "8000000000000000")), 0);
        assert_eq!(deliverable(""), 0);
    }

    #[test]
    fn how_a_thread_sleeps_is_found_in_a_status() {
        assert_eq!(sleep("Name:\tsh\nState:\tS (sleeping)\nTgid:\t7\n"), Sleep::Light);
        assert_eq!(sleep("Name:\tsh\nState:\tD (disk sleep)\nTgid:\t7\n"), Sleep::Deep);
        assert_eq!(sleep("Name:\tsh\nState:\tR (running)\n"), Sleep::Unknown);
        assert_eq!(sleep("Name:\tState: S\n"), Sleep::Unknown);
        assert_eq!(sleep(""), Sleep::Unknown);
    }
}
