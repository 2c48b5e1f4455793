//! What the program has set its signals to (`rt_sigaction`), and what the kernel is told instead: the wrapper.
//!
//! The only place that knows both. The table is written under a lock, which a fork takes, and read by the wrapper at any time.

use super::wrapper::{gannet_signal_return, gannet_signal_wrapper};
use super::{SIGBUS, SIGCANCEL, SIGNAL_LIMIT, SIGSEGV};
use crate::entry::Frame;
use crate::lock::Lock;
use crate::number;
use crate::raw::{is_error, syscall};
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

pub(super) const SIG_DFL: usize = 0;
pub(super) const SIG_IGN: usize = 1;
pub(super) const SA_RESTORER: u64 = 0x0400_0000;
pub(super) const SA_RESETHAND: u64 = 0x8000_0000;
const SA_ONSTACK: u64 = 0x0800_0000;
const SA_SIGINFO: u64 = 4;
const SA_NODEFER: u64 = 0x4000_0000;
const EFAULT: isize = -14;
pub(super) const SA_RESTART: u64 = 0x1000_0000;

/// The kernel's `struct sigaction`.
#[repr(C)]
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct KernelAction {
    pub(super) handler: usize,
    pub(super) flags: u64,
    pub(super) restorer: usize,
    pub(super) mask: u64,
}

// SAFETY: four words.
unsafe impl crate::memory::Plain for KernelAction {}

/// The program's actions. Written under [`LOCK`], read by the wrapper at any time.
pub(super) struct Action {
    pub(super) handler: AtomicUsize,
    pub(super) flags: AtomicU64,
    pub(super) restorer: AtomicUsize,
    pub(super) mask: AtomicU64,
}

pub(super) static ACTIONS: [Action; SIGNAL_LIMIT] = [const {
    Action {
        handler: AtomicUsize::new(SIG_DFL),
        flags: AtomicU64::new(0),
        restorer: AtomicUsize::new(0),
        mask: AtomicU64::new(0),
    }
}; SIGNAL_LIMIT];
/// Where the wrapper jumps at once: the program's handler, or 0 for the long way.
pub(super) static DIRECT: [AtomicUsize; SIGNAL_LIMIT] = [const { AtomicUsize::new(0) }; SIGNAL_LIMIT];
pub(super) static LOCK: Lock = Lock::new();

/// Takes over SIGSEGV and SIGBUS. At start, before the program runs.
#[unsafe(link_section = ".text.hot.gannet")]
pub(crate) fn initialise() {
    for signal in [SIGSEGV, SIGBUS] {
        let before = take_over(signal);
        if before != SIG_DFL {
            ACTIONS[signal].handler.store(before, Ordering::Relaxed);
        }
    }
}

/// Installs the wrapper where the program has no handler; what the kernel did before.
#[unsafe(link_section = ".text.hot.gannet")]
fn take_over(signal: usize) -> usize {
    let mut old = KernelAction::default();
    let ours = KernelAction {
        handler: gannet_signal_wrapper as *const () as usize,
        flags: SA_RESTORER | SA_SIGINFO | SA_ONSTACK | SA_NODEFER,
        restorer: gannet_signal_return as *const () as usize,
        mask: 0,
    };
    if is_error(kernel_action(signal, Some(&ours), Some(&mut old))) { SIG_DFL } else { old.handler }
}

/// In a forked child whose handlers the kernel has taken away (CLONE_CLEAR_SIGHAND): so it is for the program, whose signals that are ignored stay so,
/// and what is always ours is ours again. It is the only thread.
pub(crate) fn after_handlers_were_cleared() {
    for (signal, action) in ACTIONS.iter().enumerate().skip(1) {
        if action.handler.load(Ordering::Relaxed) != SIG_IGN {
            publish(signal, &KernelAction::default());
        }
        if matches!(signal, SIGSEGV | SIGBUS) {
            take_over(signal);
        }
    }
}

#[unsafe(link_section = ".text.hot.gannet")]
pub(super) fn kernel_action(signal: usize, new: Option<&KernelAction>, old: Option<&mut KernelAction>) -> isize {
    let new = new.map_or(0, |new| new as *const KernelAction as usize);
    let old = old.map_or(0, |old| old as *mut KernelAction as usize);
    // SAFETY: null or a valid action; the handlers passed here are the wrapper's or the program's own.
    unsafe { syscall(number::RT_SIGACTION, [signal, new, old, 8]) }
}

/// `rt_sigaction` of the program.
pub(crate) fn sigaction(frame: &Frame) -> isize {
    let (signal, wanted) = match asked(frame) {
        Ok(asked) => asked,
        Err(error) => return error,
    };
    let always = matches!(signal, SIGSEGV | SIGBUS);
    LOCK.take();
    let previous = known(signal);
    let mut kernel_old = KernelAction::default();
    let result = if let Some(wanted) = wanted {
        let has_handler = wanted.handler != SIG_DFL && wanted.handler != SIG_IGN;
        let mut installed = wanted;
        if has_handler || always {
            installed.handler = gannet_signal_wrapper as *const () as usize;
            // Else the kernel leaves the information out, and what a signal is sent again with would be what lies on the stack.
            installed.flags |= SA_SIGINFO;
            // The kernel would forget the handler when the wrapper defers; the wrapper does it instead.
            installed.flags &= !SA_RESETHAND;
            if !has_handler {
                installed.flags |= SA_NODEFER | SA_ONSTACK;
            }
            if installed.flags & SA_RESTORER == 0 {
                installed.flags |= SA_RESTORER;
                installed.restorer = gannet_signal_return as *const () as usize;
            }
        }
        if has_handler {
            // Bad addresses, and what is mapped but not there yet, are noticed by them in handlers too.
            installed.mask &= !(1 << (SIGSEGV - 1) | 1 << (SIGBUS - 1));
            publish(signal, &wanted);
        }
        let result = kernel_action(signal, Some(&installed), Some(&mut kernel_old));
        if is_error(result) {
            publish(signal, &previous);
        } else if !has_handler {
            publish(signal, &wanted);
        }
        result
    } else {
        kernel_action(signal, None, Some(&mut kernel_old))
    };
    LOCK.release();
    told(frame, result, &kernel_old, || previous)
}

/// `rt_sigaction` of a `vfork` child, whose actions are the kernel's alone: without the lock, for which it could wait for ever if its
/// parent is killed.
pub(crate) fn sigaction_of_child(frame: &Frame) -> isize {
    let (signal, wanted) = match asked(frame) {
        Ok(asked) => asked,
        Err(error) => return error,
    };
    let mut kernel_old = KernelAction::default();
    let result = kernel_action(signal, wanted.as_ref(), Some(&mut kernel_old));
    told(frame, result, &kernel_old, || known(signal))
}

/// The signal that a call names, and what it is to be set to; or the call's error.
fn asked(frame: &Frame) -> Result<(usize, Option<KernelAction>), isize> {
    let [signal, new, _, size, ..] = frame.arguments;
    const EINVAL: isize = -22;
    if size != 8 || signal == 0 || signal >= SIGNAL_LIMIT {
        return Err(EINVAL);
    }
    let mut wanted = KernelAction::default();
    if new != 0 && crate::memory::read_value(new, &mut wanted).is_err() {
        return Err(EFAULT);
    }
    Ok((signal, (new != 0).then_some(wanted)))
}

/// What the program has set `signal` to.
fn known(signal: usize) -> KernelAction {
    let action = &ACTIONS[signal];
    KernelAction {
        handler: action.handler.load(Ordering::Relaxed),
        flags: action.flags.load(Ordering::Relaxed),
        restorer: action.restorer.load(Ordering::Relaxed),
        mask: action.mask.load(Ordering::Relaxed),
    }
}

/// The call's result, when the program has been told what was there before: where that is the wrapper, what stood in the table.
fn told(frame: &Frame, result: isize, kernel_old: &KernelAction, known: impl FnOnce() -> KernelAction) -> isize {
    let old = frame.arguments[2];
    if is_error(result) || old == 0 {
        return result;
    }
    let is_ours = kernel_old.handler == gannet_signal_wrapper as *const () as usize;
    let shown = if is_ours { known() } else { *kernel_old };
    if crate::memory::write_value(old, &shown).is_err() { EFAULT } else { 0 }
}

/// Makes `wanted` what the wrapper sees. Under the lock.
pub(super) fn publish(signal: usize, wanted: &KernelAction) {
    let action = &ACTIONS[signal];
    let has_handler = wanted.handler != SIG_DFL && wanted.handler != SIG_IGN;
    // What is mapped behind the end of a file may be there by now.
    let long_way = wanted.flags & SA_RESETHAND != 0 || matches!(signal, SIGCANCEL | SIGBUS);
    action.flags.store(wanted.flags, Ordering::Relaxed);
    action.restorer.store(wanted.restorer, Ordering::Relaxed);
    action.mask.store(wanted.mask, Ordering::Relaxed);
    action.handler.store(wanted.handler, Ordering::Release);
    DIRECT[signal].store(if has_handler && !long_way { wanted.handler } else { 0 }, Ordering::Release);
}

/// Takes the lock so that a forked child finds it free.
pub(crate) fn before_fork() {
    LOCK.take();
}

/// Releases it, in parent and child.
pub(crate) fn after_fork() {
    LOCK.release();
}
