//! What is said where the library itself fails: one line, by one call of the kernel's. The standard library would look for a backtrace, for which
//! it takes memory and locks, in a thread that may be in the midst of either.

use core::fmt::{self, Write};
use std::panic::PanicHookInfo;

const LINE_BYTES: usize = 512;

/// A line that is cut where it is too long.
struct Line {
    bytes: [u8; LINE_BYTES],
    length: usize,
}

impl Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        // One line, whatever is said.
        for byte in text.bytes().map(|byte| if byte == b'\n' { b' ' } else { byte }) {
            if self.length < LINE_BYTES - 1 {
                self.bytes[self.length] = byte;
                self.length += 1;
            }
        }
        Ok(())
    }
}

fn say(what: fmt::Arguments<'_>) {
    const WRITE: usize = 1;
    const STANDARD_ERROR: usize = 2;
    let mut line = Line { bytes: [0; LINE_BYTES], length: 0 };
    let _ = line.write_fmt(what);
    line.bytes[line.length] = b'\n';
    crate::allocator::syscall(WRITE, [STANDARD_ERROR, line.bytes.as_ptr().addr(), line.length + 1, 0, 0, 0]);
}

/// Has a panic say where it was; the call it was in says EIO.
pub(crate) fn install() {
    // Without state, so that nothing is allocated for it.
    std::panic::set_hook(Box::new(panicked));
}

fn panicked(panic: &PanicHookInfo<'_>) {
    let payload = panic.payload();
    let text = payload.downcast_ref::<&str>().copied().or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    let text = text.unwrap_or("a panic");
    match panic.location() {
        Some(at) => say(format_args!("gannet: a defect, the call says EIO: {text} ({}:{})", at.file(), at.line())),
        None => say(format_args!("gannet: a defect, the call says EIO: {text}")),
    }
}

/// There is no memory, and what wants it cannot go on without.
#[cold]
pub(crate) fn end_without_memory(bytes: usize) -> ! {
    /// As a shell tells of SIGABRT.
    const STATUS: usize = 134;
    const EXIT_GROUP: usize = 231;
    say(format_args!("gannet: no memory for {bytes} bytes inside the library: the process ends"));
    loop {
        crate::allocator::syscall(EXIT_GROUP, [STATUS, 0, 0, 0, 0, 0]);
    }
}
