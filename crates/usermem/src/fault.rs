//! Which instructions may fault, and where execution goes on when they do.
//!
//! For: handlers of SIGSEGV and SIGBUS. Everything here is async-signal-safe: loads of atomics and of constants, and, to
//! chain to an older handler, one `sigaction`. Relies on each registered routine being a leaf that leaves the stack pointer
//! alone, so that one continuation is right for every instruction of it.

use std::ffi::c_int;
use std::io;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};

/// The instructions from `start` up to `end` may fault; execution then goes on at `fixup`, with all registers as they were.
#[derive(Clone, Copy, Debug)]
pub struct FaultRange {
    start: *const u8,
    end: *const u8,
    fixup: *const u8,
}

// SAFETY: the addresses are code; nothing is ever loaded or stored through them.
unsafe impl Sync for FaultRange {}
// SAFETY: as above.
unsafe impl Send for FaultRange {}

impl FaultRange {
    /// Describes a routine.
    ///
    /// # Safety
    /// Continuing at `fixup` after a fault at any instruction of the range, registers and stack untouched, must be sound.
    #[must_use]
    pub const unsafe fn new(start: *const u8, end: *const u8, fixup: *const u8) -> FaultRange {
        FaultRange { start, end, fixup }
    }
}

/// Room for the tables of that many crates.
const TABLES_MAX: usize = 8;

struct Table {
    ranges: AtomicPtr<FaultRange>,
    /// Stored after `ranges`; zero while the place is free.
    count: AtomicUsize,
}

static TABLES: [Table; TABLES_MAX] =
    [const { Table { ranges: AtomicPtr::new(ptr::null_mut()), count: AtomicUsize::new(0) } }; TABLES_MAX];

/// Makes [`fixup`] know the routines of another crate. Doing it again with the same table changes nothing.
///
/// # Panics
/// If more than eight tables are registered: a mistake of the build, not of its input.
pub fn register(ranges: &'static [FaultRange]) {
    let address = ranges.as_ptr().cast_mut();
    for table in &TABLES {
        match table.ranges.compare_exchange(ptr::null_mut(), address, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => {
                table.count.store(ranges.len(), Ordering::Release);
                return;
            }
            Err(present) if present == address => return,
            Err(_) => {}
        }
    }
    panic!("more than {TABLES_MAX} tables of fault ranges");
}

/// Where to go on after a fault at `instruction_pointer`, if it lies in a copy routine. Async-signal-safe.
#[must_use]
pub fn fixup(instruction_pointer: usize) -> Option<usize> {
    let find = |ranges: &[FaultRange]| {
        ranges
            .iter()
            .find(|range| (range.start.addr()..range.end.addr()).contains(&instruction_pointer))
            .map(|range| range.fixup.addr())
    };
    if let Some(found) = find(&crate::routines::RANGES) {
        return Some(found);
    }
    for table in &TABLES {
        let count = table.count.load(Ordering::Acquire);
        if count == 0 {
            continue;
        }
        // SAFETY: pointer and count came from one `&'static [FaultRange]`; the count was stored after the pointer.
        let ranges = unsafe { std::slice::from_raw_parts(table.ranges.load(Ordering::Acquire), count) };
        if let Some(found) = find(ranges) {
            return Some(found);
        }
    }
    None
}

/// What handled a signal before us.
struct Previous {
    /// Written once, before our handler can run.
    action: std::cell::UnsafeCell<MaybeUninit<libc::sigaction>>,
    /// It was called, and was to be called once (`SA_RESETHAND`): now it is the default.
    is_spent: AtomicBool,
}

impl Previous {
    const fn none() -> Previous {
        let action = std::cell::UnsafeCell::new(MaybeUninit::zeroed());
        Previous { action, is_spent: AtomicBool::new(false) }
    }
}

// SAFETY: the action is written under the installer's lock before the handler that reads it is installed, never after.
unsafe impl Sync for Previous {}

static PREVIOUS_SEGMENTATION: Previous = Previous::none();
static PREVIOUS_BUS: Previous = Previous::none();
static INSTALLED: AtomicBool = AtomicBool::new(false);

/// Installs a handler for SIGSEGV and SIGBUS that lets the copies of this crate, and of those that [`register`]ed theirs,
/// report faults. Every other fault goes to the handler that was there before. Doing it again changes nothing.
///
/// # Errors
/// What `sigaction` says.
pub fn install_fault_handler() -> io::Result<()> {
    static INSTALLING: Mutex<()> = Mutex::new(());
    let _one_at_a_time = INSTALLING.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    if INSTALLED.load(Ordering::Acquire) {
        return Ok(());
    }
    for (signal, Previous { action: previous, .. }) in
        [(libc::SIGSEGV, &PREVIOUS_SEGMENTATION), (libc::SIGBUS, &PREVIOUS_BUS)]
    {
        // SAFETY: a zeroed sigaction is a valid one; the previous one is written before our handler is in place, hence
        // before anything can read it; the handler has the signature that SA_SIGINFO asks for.
        unsafe {
            if libc::sigaction(signal, ptr::null(), previous.get().cast()) != 0 {
                return Err(io::Error::last_os_error());
            }
            let mut action: libc::sigaction = MaybeUninit::zeroed().assume_init();
            action.sa_sigaction = on_fault as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
            if libc::sigaction(signal, &raw const action, ptr::null_mut()) != 0 {
                return Err(io::Error::last_os_error());
            }
        }
    }
    INSTALLED.store(true, Ordering::Release);
    Ok(())
}

/// Blocks the signals that the kernel would block while this handler runs: what was blocked where the signal came, and what the
/// handler's action says. Returning from our handler brings back what there was.
///
/// # Safety
/// `context` is what the kernel passed to the running handler of `signal`.
unsafe fn block_as_asked(signal: c_int, action: &libc::sigaction, context: *const libc::ucontext_t) {
    // The kernel's sets are one word; the C library's are longer, and the kernel writes no more of them.
    // SAFETY: both structures begin their sets with that word, which is valid for any bits.
    let (before, more) = unsafe {
        ((&raw const (*context).uc_sigmask).cast::<u64>().read(), (&raw const action.sa_mask).cast::<u64>().read())
    };
    let itself = if action.sa_flags & libc::SA_NODEFER != 0 { 0 } else { 1 << (signal - 1) };
    let blocked: u64 = before | more | itself;
    // SAFETY: a set of the length that is said; of this thread's signals only what is blocked changes.
    unsafe {
        libc::syscall(
            libc::SYS_rt_sigprocmask,
            libc::SIG_SETMASK,
            &raw const blocked,
            ptr::null_mut::<u64>(),
            size_of::<u64>(),
        )
    };
}

extern "C" fn on_fault(signal: c_int, information: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel passes a valid siginfo and ucontext to an SA_SIGINFO handler, ours alone to change. `previous` was
    // written before this handler was installed. A previous handler is called as the kernel would have called it.
    unsafe {
        let machine = &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext;
        let at = machine.gregs[libc::REG_RIP as usize] as usize;
        // A positive code is the kernel's; kill(2) by somebody is not about the instruction it happened to hit.
        if (*information).si_code > 0
            && let Some(target) = fixup(at)
        {
            machine.gregs[libc::REG_RIP as usize] = target as i64;
            return;
        }
        let previous = if signal == libc::SIGBUS { &PREVIOUS_BUS } else { &PREVIOUS_SEGMENTATION };
        let (action, is_spent) = (previous.action.get().cast::<libc::sigaction>(), &previous.is_spent);
        let previous: *const libc::sigaction = action;
        let handler = match (*previous).sa_sigaction {
            handler @ (libc::SIG_DFL | libc::SIG_IGN) => handler,
            _ if (*previous).sa_flags & libc::SA_RESETHAND != 0 && is_spent.swap(true, Ordering::Relaxed) => {
                libc::SIG_DFL
            }
            handler => {
                block_as_asked(signal, &*previous, context.cast());
                handler
            }
        };
        match handler {
            libc::SIG_IGN if (*information).si_code <= 0 => {}
            libc::SIG_DFL | libc::SIG_IGN => {
                // Back to the default. A fault repeats at once and ends the process; a sent signal is sent again.
                let mut action: libc::sigaction = MaybeUninit::zeroed().assume_init();
                action.sa_sigaction = libc::SIG_DFL;
                libc::sigaction(signal, &raw const action, ptr::null_mut());
                if (*information).si_code <= 0 {
                    libc::raise(signal);
                }
            }
            handler if (*previous).sa_flags & libc::SA_SIGINFO != 0 => {
                let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut libc::c_void) =
                    std::mem::transmute(handler);
                handler(signal, information, context);
            }
            handler => {
                let handler: extern "C" fn(c_int) = std::mem::transmute(handler);
                handler(signal);
            }
        }
    }
}
