//! What `--watch` has taken, and gives back at its end: the volume, which is closed if nobody else has it open, and the terminal. At a signal
//! too (SIGINT, SIGTERM, SIGHUP, SIGQUIT), by a thread that waits for them; the program ends by it then, as it would have without.

use super::terminal::Screen;
use crate::failure::{Failure, print};
use crate::volume;
use gannet_logfs::LogFs;
use nix::sys::signal::{SigSet, Signal, raise};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

/// What shells add to the number of the signal that ended a program.
const BY_SIGNAL: i32 = 128;
/// How long a signal waits for a look at the volume to end, and how long between two tries.
const PATIENCE: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_millis(5);

/// What has been taken.
#[derive(Default)]
struct Taken {
    /// Open, as by any other of its users.
    volume: Mutex<Option<Arc<LogFs>>>,
    /// Where a page is shown on it. By itself: a look at the volume may wait for somebody who is stopped.
    screen: Mutex<Option<Screen>>,
}

/// The same, for who watches and for who waits for signals: while one uses a part the other waits. Dropped by who watches: given back.
#[derive(Default)]
pub(super) struct Held(Arc<Taken>);

impl Held {
    /// The volume, as long as it has been taken.
    pub(super) fn volume(&self) -> MutexGuard<'_, Option<Arc<LogFs>>> {
        self.0.volume.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The terminal, as long as it has been taken.
    pub(super) fn screen(&self) -> MutexGuard<'_, Option<Screen>> {
        self.0.screen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Joins those who have the volume open.
    pub(super) fn take_volume(&self, path: &Path) -> Result<(), Failure> {
        let mut volume = self.volume();
        *volume = Some(volume::join(path).map_err(Failure::new)?);
        Ok(())
    }

    /// From here on everything is given back when a signal comes, and the program ends then. Signals that are ignored (`nohup`) stay so.
    pub(super) fn give_back_at_signals(&self, path: &Path) -> Result<(), Failure> {
        let ignored = std::fs::read_to_string("/proc/self/status").map_or(0, |status| ignored(&status));
        let signals = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGQUIT];
        let signals: SigSet = signals.into_iter().filter(|&signal| (ignored >> (signal as u32 - 1)) & 1 == 0).collect();
        // They come to the thread that waits for them.
        signals.thread_block().map_err(cannot)?;
        let (held, path) = (Self(Arc::clone(&self.0)), path.to_owned());
        let wait = move || {
            let Ok(signal) = signals.wait() else { return };
            // Who gives the terminal back from the background is not stopped for that; the next signal does what it does by default.
            let _ = SigSet::from(Signal::SIGTTOU).thread_block().and_then(|()| signals.thread_unblock());
            *held.screen() = None;
            // Kept until the end: nobody looks at a volume that was left.
            let left = held.volume_soon().map(|mut volume| {
                if let Some(volume) = volume.take()
                    && let Err(failure) = volume::leave(&path, &*volume)
                {
                    print(&failure.message);
                }
                volume
            });
            // Nothing but its default happens at it.
            let _ = raise(signal);
            drop(left);
            std::process::exit(BY_SIGNAL + signal as i32);
        };
        let started = std::thread::Builder::new().name("signals".to_owned()).spawn(wait);
        started.map(drop).map_err(cannot)
    }

    /// Waits for who just looks, but not for ever: it may wait for somebody who is stopped.
    fn volume_soon(&self) -> Option<MutexGuard<'_, Option<Arc<LogFs>>>> {
        let end = Instant::now() + PATIENCE;
        loop {
            match self.0.volume.try_lock() {
                Ok(volume) => return Some(volume),
                Err(TryLockError::Poisoned(volume)) => return Some(volume.into_inner()),
                Err(TryLockError::WouldBlock) if Instant::now() >= end => return None,
                Err(TryLockError::WouldBlock) => std::thread::sleep(PAUSE),
            }
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        *self.volume() = None;
        *self.screen() = None;
    }
}

fn cannot(error: impl std::fmt::Display) -> Failure {
    Failure::new(format_args!("signals cannot be handled: {error}"))
}

/// The signals that a process ignores, by its `/proc/PID/status`: bit 0 is signal 1.
fn ignored(status: &str) -> u64 {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_ignored_is_read() {
        assert_eq!(ignored("Name:\tx\nSigIgn:\t0000000000000001\nSigCgt:\t0000000000000002\n"), 1);
        assert_eq!(ignored("Name:\tx\n"), 0);
    }
}
