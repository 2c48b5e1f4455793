//! `sigaltstack`, noted for the entry, which must not let the kernel put a signal's frame over that of a handler that runs there.

use crate::entry::{self, Frame};
use crate::number;
use crate::raw::{is_error, syscall};

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
