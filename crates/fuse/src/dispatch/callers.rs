//! What the thread is doing that a request comes from, as `/proc/TID/syscall` shows it.
//!
//! Only that says whether a write waits for each of its pieces, and whether a program sets a file's size. Who cannot be looked at (`ptrace`
//! is restricted, or the thread is of another PID namespace) does something unknown. Touches no data.

use std::sync::LazyLock;
use std::time::Duration;

use super::Dispatcher;
use super::direct::Origin;
use super::nodes::OpenMode;
use crate::protocol::constants::InitFlags;
use crate::protocol::request::Header;

const O_DIRECT: u32 = 0o40000;
const O_APPEND: u32 = 0o2000;
/// A thread that runs at the moment is looked at so often, until it waits for the answer.
const LOOKS: usize = 5;
const PAUSE: Duration = Duration::from_micros(400);

/// What it says of a thread that runs, or waits for a processor.
const RUNS: &str = "running";
/// No system call, or a worker of the kernel's.
const NONE: i64 = -1;
/// Calls that wait for each piece, and are told how much was written.
const WAITING_CALLS: &[i64] = &[
    libc::SYS_write,
    libc::SYS_pwrite64,
    libc::SYS_writev,
    libc::SYS_pwritev,
    libc::SYS_pwritev2,
    libc::SYS_sendfile,
    libc::SYS_splice,
    libc::SYS_copy_file_range,
];
/// Calls by which a program sets a file's size.
const CUTTING_CALLS: &[i64] = &[
    libc::SYS_ftruncate,
    libc::SYS_truncate,
    libc::SYS_openat,
    libc::SYS_openat2,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_open,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_creat,
];
/// The same of 32-bit programs: `open`, `creat`, `truncate`, `ftruncate`, `truncate64` and `ftruncate64`. As numbers of 64-bit calls
/// none of them writes in pieces.
#[cfg(target_arch = "x86_64")]
const CUTTING_CALLS_32: &[i64] = &[5, 8, 92, 93, 193, 194];
#[cfg(not(target_arch = "x86_64"))]
const CUTTING_CALLS_32: &[i64] = &[];

/// `fcntl`, and as 32-bit programs call it. The other two numbers are those of 64-bit calls that take no locks.
#[cfg(target_arch = "x86_64")]
const LOCKING_CALLS: &[i64] = &[libc::SYS_fcntl, 55, 221];
#[cfg(not(target_arch = "x86_64"))]
const LOCKING_CALLS: &[i64] = &[libc::SYS_fcntl];
/// Calls by which a program sets a file's owner.
const OWNING_CALLS: &[i64] = &[
    libc::SYS_fchown,
    libc::SYS_fchownat,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_chown,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_lchown,
];
/// The same of 32-bit programs: `fchown` and `chown` with 16 bits, `lchown`, `fchown` and `chown` with 32, and `fchownat`. As numbers of
/// 64-bit calls none of them changes bytes of a file, as that of `lchown` with 16 bits does (`ioctl`).
#[cfg(target_arch = "x86_64")]
const OWNING_CALLS_32: &[i64] = &[95, 182, 198, 207, 212, 298];
#[cfg(not(target_arch = "x86_64"))]
const OWNING_CALLS_32: &[i64] = &[];

/// Whether the numbers below `/proc` are those of this process's PID namespace.
pub(super) static PROC_IS_OURS: LazyLock<bool> = LazyLock::new(|| {
    std::fs::read_link("/proc/self").is_ok_and(|shown| shown.to_str() == Some(&std::process::id().to_string()))
});

/// Who writes.
pub(super) struct Caller<'a> {
    pub(super) header: &'a Header,
    pub(super) handle: u64,
    pub(super) open_flags: u32,
}

impl Caller<'_> {
    pub(super) fn origin(&self) -> Origin {
        Origin { thread: self.header.process, handle: self.handle }
    }

    /// Where the kernel believes the end to be is where it writes.
    pub(super) fn appends(&self) -> bool {
        self.open_flags & O_APPEND != 0
    }
}

/// Who sets an attribute.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Setter {
    /// A program, by a call for that.
    Program,
    /// The kernel, within a call that writes.
    Kernel,
    /// Either.
    Unknown,
}

impl Dispatcher {
    /// Whether a write is sent one piece after the other, each when the one before is answered. Nothing if that cannot be seen.
    pub(super) fn waits_for_pieces(&self, caller: &Caller<'_>) -> Option<bool> {
        if self.exclusive() || self.users.mode(caller.handle) == Some(OpenMode::Cached) {
            return Some(caller.open_flags & O_DIRECT == 0);
        }
        call_of(caller.header).map(|call| WAITING_CALLS.contains(&call))
    }

    /// Whether the kernel makes an I/O error of a short count. Who cannot be looked at is taken for one of the many that wait.
    pub(super) fn hides_short_counts(&self, caller: &Caller<'_>) -> bool {
        self.agreed(InitFlags::ASYNC_DIO) && self.waits_for_pieces(caller) == Some(false)
    }
}

/// Who sets a size, as far as that can be seen. A worker of io_uring does both for a program.
pub(super) fn cutter(header: &Header) -> Setter {
    match call_of(header) {
        None | Some(NONE) => Setter::Unknown,
        Some(call) if CUTTING_CALLS.contains(&call) || CUTTING_CALLS_32.contains(&call) => Setter::Program,
        Some(_) => Setter::Kernel,
    }
}

/// Who sets an owner, to none, as far as that can be seen. A worker of io_uring does so for the kernel only.
pub(super) fn owner_setter(header: &Header) -> Setter {
    match call_of(header) {
        None => Setter::Unknown,
        Some(call) if OWNING_CALLS.contains(&call) || OWNING_CALLS_32.contains(&call) => Setter::Program,
        Some(_) => Setter::Kernel,
    }
}

/// Whether a thread waits for a lock of an open file, not of a process. Nothing as long as it runs, or is about to; `false` if it cannot be
/// looked at.
pub(super) fn waits_for_open_file_lock(thread: u32) -> Option<bool> {
    match line_now(thread) {
        Some(line) if line.starts_with(RUNS) => None,
        line => Some(line.is_some_and(|line| is_open_file_lock(&line))),
    }
}

/// The system call that a thread is in, or [`NONE`]. Nothing if that cannot be seen.
fn call_of(header: &Header) -> Option<i64> {
    number_in(&line_of(header.process)?)
}

/// What `/proc/TID/syscall` says of a thread that does not run.
fn line_of(thread: u32) -> Option<String> {
    for look in 0..LOOKS {
        if look > 0 {
            std::thread::sleep(PAUSE);
        }
        let line = line_now(thread)?;
        if !line.starts_with(RUNS) {
            return Some(line);
        }
    }
    None
}

/// What it says at this moment.
fn line_now(thread: u32) -> Option<String> {
    if thread == 0 || !*PROC_IS_OURS {
        return None;
    }
    std::fs::read_to_string(format!("/proc/{thread}/syscall")).ok()
}

fn is_open_file_lock(line: &str) -> bool {
    let command = line.split_ascii_whitespace().nth(2).and_then(|word| word.strip_prefix("0x"));
    let command = command.and_then(|digits| u64::from_str_radix(digits, 16).ok());
    number_in(line).is_some_and(|number| LOCKING_CALLS.contains(&number))
        // An `int`: what is above it means nothing.
        && command.is_some_and(|command| command as i32 == libc::F_OFD_SETLKW)
}

/// What `/proc/TID/syscall` says of a thread that does not run: the number, arguments, stack and code. One that was never a program's has
/// no stack.
fn number_in(line: &str) -> Option<i64> {
    let mut words = line.split_ascii_whitespace();
    let number = words.next()?.parse().ok()?;
    let stack = words.rev().nth(1)?;
    Some(if stack == "0x0" { NONE } else { number })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_known_by_their_numbers() {
        let line =
            |number: &str, stack: &str| format!("{number} 0x3 0x7fdb0ccb2000 0x0 0x0 0x0 0x0 {stack} 0x7fdb0ce2d2ad\n");
        assert_eq!(number_in(&line("18", "0x7ffcc3b9e108")), Some(18));
        assert_eq!(number_in(&line("0", "0x0")), Some(NONE), "a worker of io_uring");
        assert_eq!(number_in("-1 0x7ffcc3b9e108 0x7fdb0ce2d2ad\n"), Some(NONE));
        assert_eq!(number_in("running\n"), None);
        let fcntl = |command: &str| format!("72 0x3 {command} 0x7ffc0 0x0 0x0 0x0 0x7ffcc3b9e108 0x7fdb0ce2d2ad\n");
        assert!(is_open_file_lock(&fcntl("0x26")) && !is_open_file_lock(&fcntl("0x7")));
        assert!(!is_open_file_lock(&line("18", "0x7ffcc3b9e108")) && !is_open_file_lock("running\n"));
        assert_eq!(number_in(""), None);
    }
}
