//! Signals: the program's handlers are wrapped, so that one that arrives inside an operation runs after it.
//!
//! The kernel's disposition of every signal with a handler is [`gannet_signal_wrapper`]. Outside operations it
//! jumps to the program's handler with registers and stack untouched. Inside one it sends the signal to the thread again,
//! blocked, and the way out of the operation unblocks it with the program's registers in place. SIGSEGV and SIGBUS are always
//! ours: a fault of a copy from or to the program's memory becomes EFAULT.

use crate::entry::{self, Frame};
use crate::interruptible;
use crate::lock::Lock;
use crate::number;
use crate::patch::area;
use crate::raw::{is_error, syscall};
use crate::thread::is_busy;
use core::arch::global_asm;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

const SIGNAL_LIMIT: usize = 65;
pub(crate) const SIGBUS: usize = 7;
pub(crate) const SIGSEGV: usize = 11;
/// The C library cancels threads with it.
const SIGCANCEL: usize = 32;
const SIG_DFL: usize = 0;
const SIG_IGN: usize = 1;
const SA_RESTORER: u64 = 0x0400_0000;
const SA_RESETHAND: u64 = 0x8000_0000;
const SA_ONSTACK: u64 = 0x0800_0000;
const SA_SIGINFO: u64 = 4;
const SA_NODEFER: u64 = 0x4000_0000;
const SA_RESTART: u64 = 0x1000_0000;

/// The kernel's `struct sigaction`.
#[repr(C)]
#[derive(Clone, Copy, Default, Debug)]
struct KernelAction {
    handler: usize,
    flags: u64,
    restorer: usize,
    mask: u64,
}

// SAFETY: four words.
unsafe impl crate::memory::Plain for KernelAction {}

/// The program's actions. Written under [`LOCK`], read by the wrapper at any time.
struct Action {
    handler: AtomicUsize,
    flags: AtomicU64,
    restorer: AtomicUsize,
    mask: AtomicU64,
}

static ACTIONS: [Action; SIGNAL_LIMIT] = [const {
    Action {
        handler: AtomicUsize::new(SIG_DFL),
        flags: AtomicU64::new(0),
        restorer: AtomicUsize::new(0),
        mask: AtomicU64::new(0),
    }
}; SIGNAL_LIMIT];
/// Where the wrapper jumps at once: the program's handler, or 0 for the long way.
static DIRECT: [AtomicUsize; SIGNAL_LIMIT] = [const { AtomicUsize::new(0) }; SIGNAL_LIMIT];
static LOCK: Lock = Lock::new();

unsafe extern "C" {
    fn gannet_signal_wrapper();
    fn gannet_signal_return();
}

global_asm!(
    ".text",
    ".p2align 4",
    ".globl gannet_signal_wrapper",
    ".hidden gannet_signal_wrapper",
    ".type gannet_signal_wrapper, @function",
    "gannet_signal_wrapper:",
    ".cfi_startproc",
    "mov r11, qword ptr [rip + gannet_tls@GOTTPOFF]",
    "cmp byte ptr fs:[r11], 0",
    "jne {long}",
    "lea r11, [rip + {direct}]",
    "mov eax, edi",
    "mov r11, qword ptr [r11 + rax * 8]",
    "test r11, r11",
    "jz {long}",
    "xor eax, eax",
    "jmp r11",
    ".cfi_endproc",
    ".size gannet_signal_wrapper, . - gannet_signal_wrapper",
    // For SIGSEGV and SIGBUS before the program installs a handler. Unwinders know it by its bytes.
    ".p2align 4",
    "nop",
    ".globl gannet_signal_return",
    ".hidden gannet_signal_return",
    ".type gannet_signal_return, @function",
    "gannet_signal_return:",
    "mov rax, 15",
    "syscall",
    ".size gannet_signal_return, . - gannet_signal_return",
    long = sym wrapper_long,
    direct = sym DIRECT,
);

/// Where a signal handler returns to.
pub(crate) fn return_address() -> usize {
    gannet_signal_return as *const () as usize
}

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
fn kernel_action(signal: usize, new: Option<&KernelAction>, old: Option<&mut KernelAction>) -> isize {
    let new = new.map_or(0, |new| new as *const KernelAction as usize);
    let old = old.map_or(0, |old| old as *mut KernelAction as usize);
    // SAFETY: null or a valid action; the handlers passed here are the wrapper's or the program's own.
    unsafe { syscall(number::RT_SIGACTION, [signal, new, old, 8]) }
}

/// `rt_sigaction` of the program. `in_child`: called by a `vfork` child, whose actions are not this table's.
pub(crate) fn sigaction(frame: &Frame, in_child: bool) -> isize {
    let [signal, new, old, size, ..] = frame.arguments;
    const EINVAL: isize = -22;
    const EFAULT: isize = -14;
    if size != 8 || signal == 0 || signal >= SIGNAL_LIMIT {
        return EINVAL;
    }
    let mut wanted = KernelAction::default();
    if new != 0 {
        let copied = crate::memory::read_value(new, &mut wanted);
        if copied.is_err() {
            return EFAULT;
        }
    }
    let wrapper = gannet_signal_wrapper as *const () as usize;
    let always = matches!(signal, SIGSEGV | SIGBUS) && !in_child;
    let action = &ACTIONS[signal];
    LOCK.take();
    let previous = KernelAction {
        handler: action.handler.load(Ordering::Relaxed),
        flags: action.flags.load(Ordering::Relaxed),
        restorer: action.restorer.load(Ordering::Relaxed),
        mask: action.mask.load(Ordering::Relaxed),
    };
    let mut kernel_old = KernelAction::default();
    let result = if new == 0 {
        kernel_action(signal, None, Some(&mut kernel_old))
    } else {
        let has_handler = wanted.handler != SIG_DFL && wanted.handler != SIG_IGN;
        let mut installed = wanted;
        if (has_handler || always) && !in_child {
            installed.handler = wrapper;
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
        if has_handler && !in_child {
            // Bad addresses, and what is mapped but not there yet, are noticed by them in handlers too.
            installed.mask &= !(1 << (SIGSEGV - 1) | 1 << (SIGBUS - 1));
            publish(signal, &wanted);
        }
        let result = kernel_action(signal, Some(&installed), Some(&mut kernel_old));
        if !in_child {
            if is_error(result) {
                publish(signal, &previous);
            } else if !has_handler {
                publish(signal, &wanted);
            }
        }
        result
    };
    LOCK.release();
    if is_error(result) {
        return result;
    }
    if old != 0 {
        let shown = if kernel_old.handler == wrapper { previous } else { kernel_old };
        if crate::memory::write_value(old, &shown).is_err() {
            return EFAULT;
        }
    }
    0
}

/// Makes `wanted` what the wrapper sees. Under the lock.
fn publish(signal: usize, wanted: &KernelAction) {
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

/// `sigaltstack` of the program: done, and noted for the entry. The kernel judges it with the engine's stack pointer, so
/// what depends on the program's is decided here.
pub(crate) fn alternate_stack(frame: &Frame) -> isize {
    const SS_ONSTACK: usize = 1;
    const SS_DISABLE: usize = 2;
    const SS_AUTODISARM: usize = 1 << 31;
    const EPERM: isize = -1;
    const EFAULT: isize = -14;
    let [new, old, ..] = frame.arguments;
    // SAFETY: the thread's own block; the thread is busy, so that no handler of the program runs.
    let state = unsafe { &mut *entry::thread_state() };
    let [start, flags, size] = state.alternate_stack;
    // A stack with SS_AUTODISARM is the kernel's business alone.
    let on_it = state.has_alternate_stack != 0 && frame.stack_pointer.wrapping_sub(start) <= size;
    let mut wanted = [0usize; 3];
    if new != 0 && crate::memory::read_value(new, &mut wanted).is_err() {
        return EFAULT;
    }
    let mut previous = [start, flags | if on_it { SS_ONSTACK } else { 0 }, size];
    if on_it {
        if new != 0 {
            return EPERM;
        }
    } else {
        // SAFETY: null or a valid stack_t; the program answers for the memory it names.
        let result = unsafe {
            let new = if new != 0 { wanted.as_ptr() as usize } else { 0 };
            syscall(number::SIGALTSTACK, [new, previous.as_mut_ptr() as usize])
        };
        if is_error(result) {
            return result;
        }
    }
    if new != 0 {
        let flags = wanted[1] & 0xffff_ffff;
        let disabled = flags & SS_DISABLE != 0;
        state.alternate_stack = if disabled { [0, SS_DISABLE, 0] } else { [wanted[0], flags & !SS_ONSTACK, wanted[2]] };
        state.has_alternate_stack = u8::from(!disabled && flags & SS_AUTODISARM == 0);
    }
    if old != 0 && crate::memory::write_value(old, &previous).is_err() {
        return EFAULT;
    }
    0
}

/// The kernel's `siginfo_t`, as far as it is looked at here.
#[repr(C)]
struct SignalInformation {
    signal: i32,
    error: i32,
    code: i32,
    padding: i32,
    /// Of a fault.
    address: usize,
    rest: [u8; 104],
}

/// Nothing is behind the address.
const BUS_ADRERR: i32 = 2;

/// Offsets in `ucontext_t` on x86-64.
const CONTEXT_RAX: usize = 40 + 13 * 8;
const CONTEXT_RCX: usize = 40 + 14 * 8;
const CONTEXT_RSP: usize = 40 + 15 * 8;
const CONTEXT_RIP: usize = 40 + 16 * 8;
const CONTEXT_MASK: usize = 40 + 23 * 8 + 8 + 64;

/// The long way of the wrapper: the thread is in an operation, or the action needs more than a jump.
///
/// # Safety
/// Called by the kernel as a signal handler only.
unsafe extern "C" fn wrapper_long(signal: i32, information: *mut SignalInformation, context: *mut u8) {
    let index = signal as usize;
    // SAFETY: the kernel passes both; the offsets are its ABI.
    let (code, rip, mask) = unsafe {
        ((*information).code, context.add(CONTEXT_RIP).cast::<usize>(), context.add(CONTEXT_MASK).cast::<u64>())
    };
    // A fault of the running instruction, not a signal somebody sent. Of an address that no memory can have the kernel says only
    // that the signal is its own (SI_KERNEL).
    let fault = matches!(index, SIGSEGV | SIGBUS) && code > 0;
    // SAFETY: as above.
    unsafe { entry::left::forget_if_left(*rip, *context.add(CONTEXT_RSP).cast::<usize>()) };
    if is_busy() {
        if fault {
            // SAFETY: the instruction pointer the kernel will return to.
            let at = unsafe { *rip };
            match entry::fixup(at).or_else(|| gannet_usermem::fixup(at)) {
                // SAFETY: as above.
                Some(fixup) => unsafe { *rip = fixup },
                None => die_by(index),
            }
            return;
        }
        // SAFETY: as above.
        unsafe {
            defer(index, information, mask);
            if let Some((end, result)) = interruptible::interrupted_at(*rip) {
                *rip = end;
                *context.add(CONTEXT_RAX).cast::<isize>() = result;
            }
        }
        return;
    }
    // SAFETY: for a fault the address stands behind the code.
    if fault && index == SIGBUS && code == BUS_ADRERR && entry::ask_about(unsafe { (*information).address }) {
        return;
    }
    let action = &ACTIONS[index];
    let handler = action.handler.load(Ordering::Acquire);
    match handler {
        SIG_IGN if !fault => return,
        SIG_DFL | SIG_IGN => {
            die_by(index);
            if !fault {
                // SAFETY: the information is the kernel's; blocked until the wrapper returns or not, the signal ends the process.
                unsafe { send_again(index, information) };
            }
            return;
        }
        _ => {}
    }
    if action.flags.load(Ordering::Relaxed) & SA_RESETHAND != 0 {
        LOCK.take();
        let default = KernelAction {
            flags: SA_RESTORER,
            restorer: action.restorer.load(Ordering::Relaxed),
            ..KernelAction::default()
        };
        publish(index, &default);
        if !matches!(index, SIGSEGV | SIGBUS) {
            kernel_action(index, Some(&default), None);
        }
        LOCK.release();
    }
    // SAFETY: as above.
    let at = unsafe { *rip };
    // SAFETY: as above.
    let stack = unsafe { context.add(CONTEXT_RSP).cast::<usize>() };
    // SAFETY: as above.
    let stack_at = unsafe { *stack };
    let shown = if index == SIGCANCEL {
        // SAFETY: the registers that the kernel saved; no operation runs.
        let here = unsafe { entry::program_behind(at, stack_at, *context.add(CONTEXT_RCX).cast::<usize>()) };
        let (slot, stack) = here.unwrap_or((at, stack_at));
        area::original_of(slot).map(|original| (original, stack))
    } else {
        None
    };
    if let Some((original, program_stack)) = shown {
        // The C library asks where the thread was and unwinds from there: show it its own code.
        // SAFETY: as above.
        unsafe { (*rip, *stack) = (original, program_stack) };
    }
    // SAFETY: the program installed this handler; the arguments are the kernel's.
    let handler: extern "C" fn(i32, *mut SignalInformation, *mut u8) = unsafe { core::mem::transmute(handler) };
    handler(signal, information, context);
    // SAFETY: as above. If the handler changed the instruction pointer itself, that stands.
    unsafe {
        if shown == Some((*rip, *stack)) {
            (*rip, *stack) = (at, stack_at);
        }
    }
}

/// Sets the default action, so that the fault or signal ends the process as it would have without us.
fn die_by(signal: usize) {
    let default = KernelAction {
        handler: SIG_DFL,
        flags: SA_RESTORER,
        restorer: gannet_signal_return as *const () as usize,
        mask: 0,
    };
    kernel_action(signal, Some(&default), None);
}

/// Puts a signal off until the operation is over: blocked when the wrapper returns, and sent to this thread again.
///
/// # Safety
/// Called from the wrapper with the kernel's arguments.
unsafe fn defer(signal: usize, information: *mut SignalInformation, mask: *mut u64) {
    let bit = 1u64 << (signal - 1);
    // SAFETY: blocks the signal for this thread, which it is anyway unless the program said SA_NODEFER.
    unsafe { syscall(number::RT_SIGPROCMASK, [0, (&raw const bit) as usize, 0, 8]) };
    // SAFETY: the caller's promise.
    unsafe {
        send_again(signal, information);
        *mask |= bit;
        let state = entry::thread_state();
        (*state).unblock |= bit;
        (*state).deferred.store(1, Ordering::Relaxed);
    }
}

/// Sends a signal to this thread with the information it came with.
///
/// # Safety
/// `information` must be the kernel's.
unsafe fn send_again(signal: usize, information: *mut SignalInformation) {
    // SAFETY: as the caller says.
    unsafe {
        let process = syscall(number::GETPID, []) as usize;
        let thread = syscall(number::GETTID, []) as usize;
        let sent = syscall(number::RT_TGSIGQUEUEINFO, [process, thread, signal, information as usize]);
        if is_error(sent) {
            // Better without its information than not at all.
            syscall(number::TGKILL, [process, thread, signal]);
        }
    }
}

/// Whether a signal waits for the end of the call in hand.
pub(crate) fn has_deferred() -> bool {
    // SAFETY: the thread's own block.
    unsafe { (*entry::thread_state()).deferred.load(Ordering::Relaxed) != 0 }
}

/// Whether every handler of the signals that were deferred wants interrupted calls to be made again.
pub(crate) fn deferred_restart() -> bool {
    // SAFETY: the thread's own block.
    let signals = unsafe { (*entry::thread_state()).unblock };
    signals != 0
        && (1..SIGNAL_LIMIT)
            .filter(|signal| signals & (1 << (signal - 1)) != 0)
            .all(|signal| ACTIONS[signal].flags.load(Ordering::Relaxed) & SA_RESTART != 0)
}

/// Takes the lock so that a forked child finds it free.
pub(crate) fn before_fork() {
    LOCK.take();
}

/// Releases it, in parent and child.
pub(crate) fn after_fork() {
    LOCK.release();
}
