//! Signals to a program that waits for a lock, where the kernel does not tell of them.
//!
//! It tells by INTERRUPT, and over the ring not always: a signal that comes before the request has reached us is noted at the request and
//! never told. The program would then wait for the lock whatever is sent to it, SIGKILL included. So whoever waits over the ring looks
//! from time to time what the program has pending.

use std::time::{Duration, Instant};

use super::Dispatcher;
use super::set_id::status;
use crate::protocol::constants::InitFlags;
use crate::protocol::request::Header;

/// How often a waiter looks. Most signals are told at once.
const LOOK: Duration = Duration::from_millis(250);

/// What one waiter knows of the signals of its caller.
pub(super) struct Signals {
    /// Nobody, where the kernel tells of all.
    header: Option<Header>,
    next_look: Instant,
    /// What was pending at the last look.
    pending: u64,
}

impl Signals {
    pub(super) fn of(dispatcher: &Dispatcher, header: &Header) -> Self {
        // A process of another world, which has no number here, cannot be looked at.
        let untold = dispatcher.agreed(InitFlags::OVER_IO_URING) && header.process != 0;
        Self { header: untold.then_some(*header), next_look: Instant::now() + LOOK, pending: 0 }
    }

    /// Whether a signal waits for the thread. Only one that it has not taken between two looks counts: another thread of its process can
    /// take it, too.
    pub(super) fn wait(&mut self) -> bool {
        let Some(header) = &self.header else { return false };
        let now = Instant::now();
        if now < self.next_look {
            return false;
        }
        self.next_look = now + LOOK;
        let before = std::mem::replace(&mut self.pending, deliverable(&status(header)));
        before & self.pending != 0
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
}
