//! The handler: what the entry calls on the engine stack with the program's registers.

use crate::entry::{self, Frame};
use crate::number::*;
use crate::raw::syscall;
use crate::thread::{self, Record};
use crate::{exec, front, process, signal};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// What becomes of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The program's own instruction makes it, with the registers in the frame.
    Pass,
    /// It is done; the program gets this.
    Done(isize),
}

const EIO: isize = -5;

/// Handles one system call.
///
/// # Safety
/// Called by the entry only, on the engine stack of a busy thread.
pub(crate) unsafe extern "C" fn dispatch(frame: *mut Frame) {
    // SAFETY: the entry's frame on this stack; nobody else refers to it.
    let frame = unsafe { &mut *frame };
    // SAFETY: the thread is busy, and this is the only reference.
    let record = unsafe { thread::record() };
    let error_number = error_number_address();
    // SAFETY: the C library's thread-local errno.
    let saved_error_number = unsafe { *error_number };
    let hidden_stack = hide_alternate_stack(frame, record);
    let in_child = process::in_vfork_child(record);
    exec::release_memory(record);
    // A panic is a defect of ours; it must cost one call, not the program.
    let outcome = catch_unwind(AssertUnwindSafe(|| handle(frame, record, in_child))).unwrap_or(Outcome::Done(EIO));
    if hidden_stack {
        show_alternate_stack(record);
    }
    // SAFETY: as above.
    unsafe { *error_number = saved_error_number };
    if let Outcome::Done(result) = outcome {
        frame.rax = result as usize;
        // Behind the two bytes of the trampoline's `syscall`.
        frame.continuation += 2;
    }
}

fn handle(frame: &mut Frame, record: &mut Record, in_child: bool) -> Outcome {
    match frame.rax {
        RT_SIGACTION => Outcome::Done(signal::sigaction(frame, in_child)),
        SIGALTSTACK => Outcome::Done(signal::alternate_stack(frame, record)),
        CLONE | CLONE3 | FORK | VFORK => process::clone(frame, record),
        EXIT => process::exit_thread(frame, record),
        EXECVE | EXECVEAT => exec::execute(frame, record, in_child),
        _ => front::handle(frame, record, in_child),
    }
}

/// While the program runs on its alternate signal stack the kernel, seeing the engine stack, would deliver the next
/// signal at the top of it, over the frames there. So it is hidden for the length of the operation.
#[inline]
fn hide_alternate_stack(frame: &Frame, record: &Record) -> bool {
    let (start, size) = record.alternate_stack;
    if size == 0 || frame.stack_pointer.wrapping_sub(start) > size || frame.rax == SIGALTSTACK {
        return false;
    }
    const SS_DISABLE: usize = 2;
    let disabled = [0, SS_DISABLE, 0];
    // SAFETY: a valid stack_t; we run on the engine stack, so the kernel allows it.
    unsafe { syscall(SIGALTSTACK, [disabled.as_ptr() as usize, 0]) };
    true
}

fn show_alternate_stack(record: &Record) {
    let (start, size) = record.alternate_stack;
    let stack = [start, record.alternate_stack_flags as u32 as usize, size];
    // SAFETY: what the program had set.
    unsafe { syscall(SIGALTSTACK, [stack.as_ptr() as usize, 0]) };
}

unsafe extern "C" {
    fn __errno_location() -> *mut i32;
}

/// Where `errno` of this thread is. The C library computes it from the thread pointer, without locks.
fn error_number_address() -> *mut i32 {
    // SAFETY: no arguments, no effects.
    unsafe { __errno_location() }
}

/// Prepares the filter and the entry. At start.
pub(crate) fn initialise() {
    entry::initialise();
}
