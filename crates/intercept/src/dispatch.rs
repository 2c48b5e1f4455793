//! The handler: what the entry calls on the engine stack with the program's registers.

use crate::entry::{self, Frame};
use crate::number::*;
use crate::raw::syscall;
use crate::thread::{self, Record};
use crate::{exec, front, objects, process, signal};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// What becomes of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The program's own instruction makes it, with the registers in the frame.
    Pass,
    /// It is done; the program gets this.
    Done(isize),
    /// It is made once more when the handlers of the signals that were deferred have run (SA_RESTART).
    Again,
}

const EIO: isize = -5;

/// Handles one system call.
///
/// # Safety
/// Called by the entry only, on the engine stack of a busy thread.
#[unsafe(link_section = ".text.way.gannet")]
pub(crate) unsafe extern "C" fn dispatch(frame: *mut Frame) {
    // SAFETY: the entry's frame on this stack; nobody else refers to it.
    let frame = unsafe { &mut *frame };
    // SAFETY: the thread is busy, and this is the only reference.
    let record = unsafe { thread::record() };
    let error_number = error_number_address();
    // SAFETY: the C library's thread-local errno.
    let saved_error_number = unsafe { *error_number };
    hide_alternate_stack();
    // SAFETY: the thread's own block.
    unsafe { (*entry::thread_state()).ends_empty = 0 };
    let in_child = process::in_vfork_child(record);
    let outcome = if !in_child {
        handle_for_process(frame, record)
    } else if frame.rax == RT_SIGACTION {
        handle_for_itself(frame)
    } else {
        handle_for_parent(frame, record)
    };
    // SAFETY: as above. Only if need be: after a fork a store costs a fault.
    unsafe {
        if *error_number != saved_error_number {
            *error_number = saved_error_number;
        }
    }
    if outcome == Outcome::Again {
        entry::make_again();
    }
    if let Outcome::Done(result) = outcome {
        frame.rax = result as usize;
        // SAFETY: the entry was given the address of the trampoline's instruction.
        frame.continuation = unsafe { crate::patch::behind(frame.continuation) };
    }
}

/// What the entry calls in place of [`dispatch`] where a call that was made comes back to have its answer looked at, and passes: it
/// is a call of ours inside of an operation, or there is no memory for an engine stack.
///
/// # Safety
/// Called by the entry only, with its frame on the stack.
pub(crate) unsafe extern "C" fn answer_as_it_is(frame: *mut Frame) {
    // SAFETY: as in `dispatch`.
    let frame = unsafe { &mut *frame };
    frame.rax = front::links::answer_unlooked(frame.rax, frame.arguments) as usize;
    // SAFETY: as in `dispatch`.
    frame.continuation = unsafe { crate::patch::behind(frame.continuation) };
}

/// A call of the process's own. Where another thread ends the process it waits for that, also behind the call: what it did not find
/// was perhaps put away already.
fn handle_for_process(frame: &mut Frame, record: &mut Record) -> Outcome {
    front::ends::wait_for_end(record);
    let outcome = handle_caught(frame, record, false);
    front::ends::wait_for_end(record);
    outcome
}

/// A call of a `vfork` child that needs neither a volume nor a lock of the memory it shares, and so nobody's life: the C library's
/// `posix_spawn` makes two for each signal.
#[cold]
fn handle_for_itself(frame: &mut Frame) -> Outcome {
    let outcome = catch_unwind(AssertUnwindSafe(|| Outcome::Done(signal::sigaction_of_child(frame))));
    // SAFETY: the thread's own block.
    unsafe { (*entry::thread_state()).child = 0 };
    outcome.unwrap_or(Outcome::Done(EIO))
}

/// A call of a `vfork` child, which acts in its parent's name. Where that was killed it is as if the volumes had failed.
#[cold]
fn handle_for_parent(frame: &mut Frame, record: &mut Record) -> Outcome {
    let parent = if record.vfork_by_others { 0 } else { record.vfork_parent };
    let outcome = match front::forks::act_for_parent(parent) {
        Ok(_acting) => handle_caught(frame, record, true),
        Err(()) if matches!(frame.rax, EXIT | EXIT_GROUP) => Outcome::Pass,
        Err(()) if frame.rax == entry::NOT_EXECUTED => exec::return_to_program(frame, record),
        Err(()) => Outcome::Done(EIO),
    };
    // SAFETY: the thread's own block.
    unsafe { (*entry::thread_state()).child = 0 };
    outcome
}

/// A panic is a defect of ours; it must cost one call, not the program.
#[unsafe(link_section = ".text.way.gannet")]
fn handle_caught(frame: &mut Frame, record: &mut Record, in_child: bool) -> Outcome {
    if frame.rax != entry::NOT_EXECUTED {
        exec::release_memory(record);
    }
    catch_unwind(AssertUnwindSafe(|| handle(frame, record, in_child))).unwrap_or(Outcome::Done(EIO))
}

fn handle(frame: &mut Frame, record: &mut Record, in_child: bool) -> Outcome {
    front::users::begin_call();
    match frame.rax {
        RT_SIGACTION => Outcome::Done(signal::sigaction(frame)),
        SIGALTSTACK => Outcome::Done(signal::alternate_stack(frame)),
        CLONE | CLONE3 | FORK | VFORK => process::clone(frame, record, in_child),
        EXIT => process::exit_thread(frame, record),
        EXIT_GROUP => {
            front::ends::end_process(frame.arguments[0], record, in_child);
            Outcome::Pass
        }
        // One that runs in another's memory has as little of it to hand on as a `vfork` child.
        EXECVE | EXECVEAT => exec::execute(frame, record, in_child || process::is_beside()),
        entry::NOT_EXECUTED => exec::failed(frame, record),
        entry::FAULTED => Outcome::Done(front::faulted(frame, record, in_child) as isize),
        MMAP if objects::concerns(&frame.arguments) => map_code(frame, record, in_child),
        _ => front::handle(frame, record, in_child),
    }
}

/// An `mmap` of code, whose system calls are rewritten before the program sees it.
fn map_code(frame: &mut Frame, record: &mut Record, in_child: bool) -> Outcome {
    let arguments = frame.arguments;
    let content = front::libraries::content_of_descriptor(record, arguments[4]);
    let result = match front::handle(frame, record, in_child) {
        Outcome::Done(result) => Some(result),
        Outcome::Pass | Outcome::Again => None,
    };
    Outcome::Done(objects::mapped(&arguments, result, content))
}

/// The second half of hiding the program's alternate signal stack, see [`entry`].
#[inline]
fn hide_alternate_stack() {
    // SAFETY: the thread's own block; the thread is busy, so that no handler of the program runs.
    let hidden = unsafe { (*entry::thread_state()).hidden };
    if hidden != 0 {
        const SS_DISABLE: usize = 2;
        let disabled = [0, SS_DISABLE, 0];
        // SAFETY: a valid stack_t; we run on the engine stack, so the kernel allows it.
        unsafe { syscall(SIGALTSTACK, [disabled.as_ptr() as usize, 0]) };
    }
}

unsafe extern "C" {
    fn __errno_location() -> *mut i32;
}

/// Where `errno` of this thread is. The C library computes it from the thread pointer, without locks.
fn error_number_address() -> *mut i32 {
    // SAFETY: no arguments, no effects.
    unsafe { __errno_location() }
}
