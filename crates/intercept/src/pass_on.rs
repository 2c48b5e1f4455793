//! Signals to `gannet run` while its command runs: the terminal's go to the whole foreground group, so they are ignored here;
//! those sent to this process alone are passed on. None is lost on the way: all are held back until it is known to whom.
//!
//! Touches the actions and the mask of these signals, and gives them back.

use crate::number;
use crate::raw::syscall;
use core::sync::atomic::{AtomicU32, Ordering};
use std::io;

const SIGHUP: usize = 1;
const SIGINT: usize = 2;
const SIGQUIT: usize = 3;
const SIGUSR1: usize = 10;
const SIGUSR2: usize = 12;
const SIGTERM: usize = 15;
const IGNORED: [usize; 2] = [SIGINT, SIGQUIT];
const PASSED: [usize; 4] = [SIGHUP, SIGUSR1, SIGUSR2, SIGTERM];
const COUNT: usize = IGNORED.len() + PASSED.len();
const SIG_IGN: usize = 1;
const SIG_SETMASK: usize = 2;
const MASK_BYTES: usize = 8;

/// The process that gets them; 0: none.
static CHILD: AtomicU32 = AtomicU32::new(0);

fn signals() -> impl Iterator<Item = usize> {
    IGNORED.into_iter().chain(PASSED)
}

fn bit(signal: usize) -> u64 {
    1 << (signal - 1)
}

fn send(child: u32, signal: usize) {
    // SAFETY: sends a signal.
    unsafe { syscall(number::KILL, [child as usize, signal]) };
}

extern "C" fn forward(signal: i32) {
    match CHILD.load(Ordering::Relaxed) {
        0 => {}
        child => send(child, signal as usize),
    }
}

/// A signal mask in the kernel's form.
#[derive(Clone, Copy)]
pub(crate) struct Mask(u64);

impl Mask {
    /// Makes it this thread's. Async-signal-safe.
    pub(crate) fn set(self) {
        let arguments = [SIG_SETMASK, (&raw const self.0) as usize, 0, MASK_BYTES];
        // SAFETY: a mask in the kernel's form.
        unsafe { syscall(number::RT_SIGPROCMASK, arguments) };
    }
}

/// The signals wait; dropping it lets them come.
pub(crate) struct Held {
    before: Mask,
}

/// Holds them back. A child that is started meanwhile inherits that: it shall set [`Held::mask`] before it executes its program.
pub(crate) fn hold() -> Held {
    let mut mask = 0u64;
    const SIG_BLOCK: usize = 0;
    let blocked = signals().map(bit).fold(0, |all, one| all | one);
    let arguments = [SIG_BLOCK, (&raw const blocked) as usize, (&raw mut mask) as usize, MASK_BYTES];
    // SAFETY: two masks in the kernel's form.
    unsafe { syscall(number::RT_SIGPROCMASK, arguments) };
    Held { before: Mask(mask) }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.before.set();
    }
}

impl Held {
    /// The mask from before.
    pub(crate) fn mask(&self) -> Mask {
        self.before
    }

    /// Passes on what has come and what comes.
    pub(crate) fn pass_on_to(self, child: u32) -> Passing {
        const SA_RESTORER_RESTART: usize = 0x1400_0000;
        CHILD.store(child, Ordering::Relaxed);
        let mut pending = 0u64;
        // SAFETY: room for a mask.
        unsafe { syscall(number::RT_SIGPENDING, [(&raw mut pending) as usize, MASK_BYTES]) };
        let previous = core::array::from_fn(|index| {
            let signal = signals().nth(index).unwrap_or(SIGTERM);
            let ignored = IGNORED.contains(&signal);
            if ignored && pending & bit(signal) != 0 {
                // The terminal's, perhaps from before there was a child.
                send(child, signal);
            }
            let handler = if ignored { SIG_IGN } else { forward as *const () as usize };
            let new = [handler, SA_RESTORER_RESTART, crate::signal::return_address(), 0];
            let mut old = [0usize; 4];
            // SAFETY: valid actions in the kernel's form.
            unsafe {
                syscall(number::RT_SIGACTION, [signal, new.as_ptr() as usize, old.as_mut_ptr() as usize, 8]);
                // What was ignored stays ignored.
                if old[0] == SIG_IGN {
                    syscall(number::RT_SIGACTION, [signal, old.as_ptr() as usize, 0, 8]);
                }
            }
            old
        });
        Passing { child, previous }
    }
}

/// Passes them on; dropping it gives them back.
pub(crate) struct Passing {
    child: u32,
    /// Handler, flags, restorer and mask of each before.
    previous: [[usize; 4]; COUNT],
}

impl Passing {
    /// Waits until the child has ended, and passes nothing on any more. It must still be waited for: until then its number is nobody else's.
    ///
    /// # Errors
    /// What `waitid(2)` gives.
    pub(crate) fn until_it_ends(&self) -> io::Result<()> {
        use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};
        let child = Pid::from_raw(self.child as i32).ok_or(rustix::io::Errno::CHILD)?;
        let ended =
            rustix::io::retry_on_intr(|| waitid(WaitId::Pid(child), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT));
        CHILD.store(0, Ordering::Relaxed);
        ended?;
        Ok(())
    }
}

impl Drop for Passing {
    fn drop(&mut self) {
        CHILD.store(0, Ordering::Relaxed);
        for (signal, previous) in signals().zip(&self.previous) {
            // SAFETY: the action that was there before.
            unsafe { syscall(number::RT_SIGACTION, [signal, previous.as_ptr() as usize, 0, 8]) };
        }
    }
}
