//! Processes and threads: `fork`, `vfork`, `clone`, `exit`.
//!
//! Threads and `vfork` children start at the program's own instruction. A forked child starts inside the handler, so that no lock
//! of ours is held by a thread that does not exist in it.

use crate::dispatch::Outcome;
use crate::entry::{self, Frame};
use crate::front;
use crate::front::own_tables::CLONE_FILES;
use crate::front::users::{Before, CLONE_NEWUSER};
use crate::lock;
use crate::number::{CLONE, CLONE3, FORK, GETPID, GETTID, VFORK};
use crate::raw::syscall;
use crate::signal;
use crate::thread::{self, Record};
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering};
use gannet_vfs::shared::shm::share_descriptors;

const CLONE_VM: usize = 0x100;
const CLONE_SIGHAND: usize = 0x800;
const CLONE_VFORK: usize = 0x4000;
const CLONE_PARENT: usize = 0x8000;
const CLONE_SETTLS: usize = 0x80000;
const CLONE_CHILD_CLEARTID: usize = 0x20_0000;
const CLONE_THREAD: usize = 0x10000;
/// Of `clone3` alone.
const CLONE_CLEAR_SIGHAND: u64 = 1 << 32;
const SIGCHLD: usize = 17;
const CLONE3_SIZE_MAX: usize = 128;
const EPERM: isize = -1;

/// Called with `true` before a fork and `false` after it in both processes, for locks of the injected library itself.
static FORK_HOOK: AtomicUsize = AtomicUsize::new(0);

/// Sets what is called around a fork.
#[unsafe(link_section = ".text.hot.gannet")]
pub fn set_fork_hook(hook: fn(bool)) {
    FORK_HOOK.store(hook as usize, Ordering::Release);
}

fn run_fork_hook(before: bool) {
    let hook = FORK_HOOK.load(Ordering::Acquire);
    if hook != 0 {
        // SAFETY: only [`set_fork_hook`] stores here.
        let hook: fn(bool) = unsafe { core::mem::transmute(hook) };
        hook(before);
    }
}

/// This process.
#[inline]
pub(crate) fn process_id() -> i32 {
    // SAFETY: no arguments.
    unsafe { syscall(GETPID, []) as i32 }
}

/// Several processes may run in this memory.
static SEVERAL: AtomicBool = AtomicBool::new(false);

/// Whose memory this is, once others may run in it: the process that made the first of them; else 0.
static OWNER: AtomicI32 = AtomicI32::new(0);

/// Whether this process runs in the memory of another, beside it: what that has of the volumes is not its own to put away.
pub(crate) fn is_beside() -> bool {
    let owner = OWNER.load(Ordering::Relaxed);
    owner != 0 && process_id() != owner
}

/// Whether another process may run in this memory and go on when this one ends.
pub(crate) fn is_shared() -> bool {
    SEVERAL.load(Ordering::Relaxed)
}

/// This process, without a system call where that is sure.
#[inline]
pub(crate) fn known_process_id(record: &Record) -> i32 {
    let known = record.process.load(Ordering::Relaxed);
    let sure = known > 0 && record.vfork_parent == 0 && !SEVERAL.load(Ordering::Relaxed);
    if sure { known } else { look_up_process_id(record) }
}

#[cold]
fn look_up_process_id(record: &Record) -> i32 {
    let process = process_id();
    if record.vfork_parent == 0 {
        record.process.store(process, Ordering::Relaxed);
    }
    process
}

/// Whether the caller is the child of a `vfork` whose parent still waits. Also notices that the parent goes on.
///
/// Between the handler of `vfork` and the kernel's call, which a signal has the kernel begin anew, a signal handler of the parent may
/// come here: then there is no child yet, and what says that there will be one must stay. Each child makes a call, `execve` or
/// `exit_group` at least; where one was killed before, the parent asks who it is once for each call until its next `vfork`.
#[unsafe(link_section = ".text.way.gannet")]
pub(crate) fn in_vfork_child(record: &mut Record) -> bool {
    if record.vfork_parent == 0 {
        return false;
    }
    if process_id() != record.vfork_parent {
        if !record.vfork_child_seen {
            let clears = record.vfork_clears;
            lock::begin_child(record, clears);
        }
        // SAFETY: the thread's own block, which the child has from its parent.
        unsafe { (*entry::thread_state()).child = record.vfork_life };
        if !record.vfork_child_seen && !record.vfork_shares_descriptors {
            front::forks::vfork_child_begins();
        }
        record.vfork_child_seen = true;
        return true;
    }
    if !record.vfork_child_seen {
        return false;
    }
    record.vfork_parent = 0;
    lock::end_child(record);
    front::credentials::forget_child();
    front::forks::drop_private_table(record);
    false
}

/// The calls that make processes and threads.
// In its caller's frame: a child has a page of the stack copied for each that it goes on from.
#[inline(always)]
pub(crate) fn clone(frame: &mut Frame, record: &mut Record, in_child: bool) -> Outcome {
    let mut arguments = [0u64; CLONE3_SIZE_MAX / 8];
    let flags = match frame.rax {
        FORK => SIGCHLD,
        VFORK => CLONE_VM | CLONE_VFORK | SIGCHLD,
        CLONE => frame.arguments[0],
        _ => {
            let [address, size, ..] = frame.arguments;
            let mut bytes = [0u8; CLONE3_SIZE_MAX];
            if !(64..=CLONE3_SIZE_MAX).contains(&size)
                || crate::memory::read_bytes(address, &mut bytes[..size]).is_err()
            {
                return Outcome::Pass;
            }
            for (word, chunk) in arguments.iter_mut().zip(bytes.chunks_exact(8)) {
                *word = u64::from_le_bytes(chunk.try_into().expect("eight bytes"));
            }
            arguments[0] as usize
        }
    };
    if flags & CLONE_NEWUSER != 0 && flags & CLONE_THREAD == 0 && flags & (CLONE_VM | CLONE_SETTLS) != 0 {
        // One memory, and one idea of who its process is; or none.
        return Outcome::Done(EPERM);
    }
    let goes_on_beside = flags & (CLONE_VM | CLONE_VFORK) == CLONE_VM;
    if flags & CLONE_THREAD == 0 && (flags & CLONE_FILES != 0 || goes_on_beside) {
        share_descriptors();
    }
    if flags & CLONE_VM != 0 {
        if flags & CLONE_VFORK != 0 && flags & CLONE_THREAD == 0 && !in_child {
            front::held::flush();
            front::forks::before_vfork();
            record.vfork_child_seen = false;
            record.vfork_by_others = flags & CLONE_PARENT != 0;
            record.vfork_shares_descriptors = flags & CLONE_FILES != 0;
            record.vfork_clears = flags & CLONE_CHILD_CLEARTID != 0;
            record.vfork_parent = process_id();
        } else if flags & CLONE_THREAD != 0 && flags & (CLONE_FILES | CLONE_SIGHAND) == CLONE_SIGHAND {
            // A thread with descriptors of its own, see [`front::own_tables`]. Without common handlers the kernel makes none at all.
            return Outcome::Done(EPERM);
        } else {
            front::held::stop();
            thread::note_thread();
            record.vfork_by_others |= in_child;
            if flags & (CLONE_THREAD | CLONE_VFORK) == 0 {
                // Where one that runs beside it makes another, the memory stays whose it is.
                let _ = OWNER.compare_exchange(0, process_id(), Ordering::Relaxed, Ordering::Relaxed);
                SEVERAL.store(true, Ordering::Relaxed);
            }
        }
        return Outcome::Pass;
    }
    if flags & CLONE_SETTLS != 0 {
        SEVERAL.store(true, Ordering::Relaxed);
        // The child would look for our state where there is none yet.
        return Outcome::Pass;
    }
    // A `vfork` child goes on when its parent ends; and the end cannot wait until a child has executed something.
    let is_short = !in_child && flags & CLONE_VFORK == 0;
    fork(frame, record, arguments, is_short, flags & CLONE_NEWUSER != 0)
}

#[unsafe(link_section = ".text.way.gannet")]
fn fork(
    frame: &mut Frame,
    record: &mut Record,
    mut arguments: [u64; CLONE3_SIZE_MAX / 8],
    is_short: bool,
    new_users: bool,
) -> Outcome {
    let number = frame.rax;
    let mut call = frame.arguments;
    let mut child_stack = 0;
    match number {
        CLONE => {
            child_stack = call[1];
            call[1] = 0;
        }
        CLONE3 => {
            child_stack = (arguments[5] + arguments[6]) as usize;
            arguments[5] = 0;
            arguments[6] = 0;
            call[0] = arguments.as_ptr() as usize;
        }
        _ => {}
    }
    front::held::flush();
    let before = new_users.then(Before::look);
    // A thread alone finds every lock of ours free, and its child with it.
    let alone = thread::is_alone();
    let tickets = front::forks::before_fork(record, alone);
    let may_end = !alone && is_short;
    if may_end && !front::ends::begin_fork() {
        front::forks::after_fork_in_parent(false, tickets, alone);
        front::ends::wait_for_end(record);
        return Outcome::Pass;
    }
    if !alone {
        signal::before_fork();
        run_fork_hook(true);
    }
    let clears_handlers = number == CLONE3 && arguments[0] & CLONE_CLEAR_SIGHAND != 0;
    // SAFETY: a process of its own memory: the child has a copy of this stack and goes on here as the parent does.
    let result = unsafe { crate::raw::syscall6(number, call) };
    if !alone {
        run_fork_hook(false);
        signal::after_fork();
    }
    if may_end {
        front::ends::fork_is_over();
    }
    if result == 0 {
        if clears_handlers {
            signal::after_handlers_were_cleared();
        }
        front::ends::not_in_child();
        crate::exec::after_fork_in_child();
        thread::note_fork_in_child();
        // SAFETY: no arguments.
        record.thread = unsafe { syscall(GETTID, []) as i32 };
        // In the record, whose page is written to anyway.
        record.process.store(record.thread, Ordering::Relaxed);
        if SEVERAL.load(Ordering::Relaxed) {
            SEVERAL.store(false, Ordering::Relaxed);
            OWNER.store(0, Ordering::Relaxed);
        }
        // A forked child of a `vfork` child has memory of its own: what it sees as its table is its table.
        record.vfork_parent = 0;
        lock::after_fork_in_child(record);
        if let Some(before) = before {
            Before::entered(before);
        }
        front::forks::after_fork_in_child(record, tickets, alone);
        if child_stack != 0 {
            frame.stack_pointer = child_stack;
        }
    } else {
        front::forks::after_fork_in_parent(result > 0, tickets, alone);
    }
    Outcome::Done(result)
}

/// A thread's end.
pub(crate) fn exit_thread(frame: &mut Frame, record: &mut Record) -> Outcome {
    if !front::filters::allow(front::filters::Need::ThreadEnd) {
        // Its memory goes with the process, and counts as a thread's until then.
        return Outcome::Pass;
    }
    // SAFETY: no arguments.
    let thread = unsafe { syscall(GETTID, []) as i32 };
    if thread == record.thread {
        front::ends::thread_exits();
        thread::note_exit();
        frame.continuation = entry::thread_exit_address();
    }
    Outcome::Pass
}
