//! What an error number means, in words: the standard library asks the C library's `strerror_r`, which translates, for which it opens files, allocates and
//! takes locks of the program's. None of that may happen inside the program's own system calls, so the name is defined here, for this
//! library only. The words are the C library's untranslated ones.

use core::arch::global_asm;
use core::ffi::{c_char, c_int};

global_asm!(
    ".pushsection .text.gannet_errors, \"ax\", @progbits",
    ".globl __xpg_strerror_r",
    ".hidden __xpg_strerror_r",
    ".type __xpg_strerror_r, @function",
    "__xpg_strerror_r: jmp {describe}",
    ".size __xpg_strerror_r, . - __xpg_strerror_r",
    ".popsection",
    describe = sym describe,
);

/// `strerror_r` of POSIX: 0, or ERANGE (34) where the words do not fit.
unsafe extern "C" fn describe(error: c_int, buffer: *mut c_char, length: usize) -> c_int {
    const ERANGE: c_int = 34;
    let words = words_of(error);
    if length <= words.len() {
        return ERANGE;
    }
    // SAFETY: the caller's buffer is that long.
    unsafe {
        core::ptr::copy_nonoverlapping(words.as_ptr(), buffer.cast(), words.len());
        buffer.add(words.len()).write(0);
    }
    0
}

/// Those that opening and using a volume can meet (errno(3)).
fn words_of(error: c_int) -> &'static str {
    match error {
        1 => "Operation not permitted",
        2 => "No such file or directory",
        4 => "Interrupted system call",
        5 => "Input/output error",
        6 => "No such device or address",
        9 => "Bad file descriptor",
        11 => "Resource temporarily unavailable",
        12 => "Cannot allocate memory",
        13 => "Permission denied",
        14 => "Bad address",
        16 => "Device or resource busy",
        17 => "File exists",
        19 => "No such device",
        20 => "Not a directory",
        21 => "Is a directory",
        22 => "Invalid argument",
        23 => "Too many open files in system",
        24 => "Too many open files",
        26 => "Text file busy",
        27 => "File too large",
        28 => "No space left on device",
        30 => "Read-only file system",
        35 => "Resource deadlock avoided",
        36 => "File name too long",
        37 => "No locks available",
        38 => "Function not implemented",
        40 => "Too many levels of symbolic links",
        75 => "Value too large for defined data type",
        95 => "Operation not supported",
        110 => "Connection timed out",
        116 => "Stale file handle",
        117 => "Structure needs cleaning",
        122 => "Disk quota exceeded",
        133 => "Memory page has hardware error",
        _ => "Unknown error",
    }
}
