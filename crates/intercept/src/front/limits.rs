//! The largest size that a process may make files (RLIMIT_FSIZE): beyond it a write ends, with SIGXFSZ and EFBIG. And the last moment before it has
//! no descriptors any more (RLIMIT_NOFILE) to open volumes with.

use super::call::{Answer, Call};
use crate::dispatch::Outcome;
use crate::memory;
use crate::number::*;
use crate::raw::{is_error, syscall, syscall6};
use core::sync::atomic::{AtomicU64, Ordering};
use gannet_vfs::{Errno, FileType};

const RLIMIT_FSIZE: usize = 1;
const RLIMIT_NOFILE: usize = 7;
/// Not asked for yet.
const UNKNOWN: u64 = 0;
/// The limit in bytes; infinite for most.
static LIMIT: AtomicU64 = AtomicU64::new(UNKNOWN);

/// The limit, [`u64::MAX`] for none.
#[inline]
fn limit() -> u64 {
    match LIMIT.load(Ordering::Relaxed) {
        UNKNOWN => ask(),
        limit => limit,
    }
}

/// Before a filter of system calls may forbid it.
pub(super) fn ask_now() {
    let _ = limit();
}

#[cold]
fn ask() -> u64 {
    let mut limits = [0u64; 2];
    // SAFETY: a buffer for `rlimit`.
    let result = unsafe { syscall(PRLIMIT64, [0, RLIMIT_FSIZE, 0, limits.as_mut_ptr() as usize]) };
    let limit = if is_error(result) { u64::MAX } else { limits[0] };
    LIMIT.store(limit, Ordering::Relaxed);
    limit
}

/// `setrlimit`, `prlimit64`.
pub(crate) fn set(call: &Call<'_>) -> Answer {
    /// With fewer descriptors a volume may not be opened.
    const DESCRIPTORS_FEW: u64 = 16;
    let (resource, wanted) = match (call.number, call.arguments) {
        (SETRLIMIT, [resource, wanted, ..]) => (resource as u32 as usize, wanted),
        (_, [_, resource, wanted, ..]) => (resource as u32 as usize, wanted),
    };
    let mut limit = 0u64;
    if resource == RLIMIT_NOFILE
        && wanted != 0
        && !call.in_child
        && memory::read_value(wanted, &mut limit).is_ok()
        && limit < DESCRIPTORS_FEW
    {
        call.front.join_all();
    }
    if resource != RLIMIT_FSIZE || wanted == 0 {
        return Ok(Outcome::Pass);
    }
    // SAFETY: the program's call.
    let result = unsafe { syscall6(call.number, call.arguments) };
    LIMIT.store(UNKNOWN, Ordering::Relaxed);
    Ok(Outcome::Done(result))
}

/// How many of `count` bytes may be written from where `start` says; asked only if there is a limit.
#[inline]
pub(crate) fn allowed(
    file_type: FileType,
    count: usize,
    start: impl FnOnce() -> Result<u64, Errno>,
) -> Result<usize, Errno> {
    match room(file_type, start)? {
        0 => Err(exceeded()),
        room => Ok(count.min(usize::try_from(room).unwrap_or(usize::MAX))),
    }
}

/// How many bytes may be written from where `start` says; nobody is told if that is none. Asked only if there is a limit.
#[inline]
pub(crate) fn room(file_type: FileType, start: impl FnOnce() -> Result<u64, Errno>) -> Result<u64, Errno> {
    match limit() {
        u64::MAX => Ok(u64::MAX),
        limit if file_type == FileType::Regular => Ok(limit.saturating_sub(start()?)),
        _ => Ok(u64::MAX),
    }
}

/// `EFBIG` if a file of `size` bytes may not become `new` bytes long.
pub(crate) fn check_size(new: u64, size: impl FnOnce() -> Result<u64, Errno>) -> Result<(), Errno> {
    if new > limit() && new > size()? { Err(exceeded()) } else { Ok(()) }
}

/// While it lives, this process may make files of a size that its limit forbids the program: what is made is ours.
pub(crate) struct Lifted {
    before: Option<[u64; 2]>,
}

impl Lifted {
    /// For a file of `size` bytes. `EFBIG` where even the hard limit is smaller, and the process may not change that.
    pub(crate) fn to(size: u64) -> Result<Lifted, Errno> {
        if size <= limit() {
            return Ok(Lifted { before: None });
        }
        let mut before = [0u64; 2];
        // SAFETY: a buffer for `rlimit`.
        let known = unsafe { syscall(PRLIMIT64, [0, RLIMIT_FSIZE, 0, before.as_mut_ptr() as usize]) };
        let lifted = [size, size.max(before[1])];
        // SAFETY: a valid `rlimit`.
        let result = unsafe { syscall(PRLIMIT64, [0, RLIMIT_FSIZE, lifted.as_ptr() as usize, 0]) };
        if is_error(known) || is_error(result) { Err(Errno::FBIG) } else { Ok(Lifted { before: Some(before) }) }
    }
}

impl Drop for Lifted {
    fn drop(&mut self) {
        if let Some(before) = self.before {
            // SAFETY: a valid `rlimit`, which was in force before.
            unsafe { syscall(PRLIMIT64, [0, RLIMIT_FSIZE, before.as_ptr() as usize, 0]) };
        }
    }
}

fn exceeded() -> Errno {
    const SIGXFSZ: usize = 25;
    // SAFETY: a signal to this thread, delivered behind the operation.
    unsafe {
        let (process, thread) = (syscall(GETPID, []) as usize, syscall(GETTID, []) as usize);
        syscall(TGKILL, [process, thread, SIGXFSZ]);
    }
    Errno::FBIG
}
