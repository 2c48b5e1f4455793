//! The few system calls that rustix does not wrap: open-file-description locks, the robust list, `kcmp`
//! and `tgkill`. Straight instructions, not libc, so that they never pass through an interceptor.

use rustix::fd::{AsFd, AsRawFd, RawFd};
use rustix::io::Errno;

#[cfg(target_arch = "x86_64")]
mod number {
    pub(super) const CLOSE: usize = 3;
    pub(super) const MADVISE: usize = 28;
    pub(super) const FCNTL: usize = 72;
    pub(super) const TGKILL: usize = 234;
    pub(super) const GET_ROBUST_LIST: usize = 274;
    pub(super) const KCMP: usize = 312;
}

const F_OFD_GETLK: usize = 36;
const F_OFD_SETLK: usize = 37;
const F_OFD_SETLKW: usize = 38;
const F_RDLCK: i16 = 0;
const F_WRLCK: i16 = 1;
const F_UNLCK: i16 = 2;

/// The kernel's `struct flock` on 64-bit machines.
#[repr(C)]
struct Flock {
    kind: i16,
    whence: i16,
    start: i64,
    len: i64,
    pid: i32,
}

/// # Safety
/// The arguments must be valid for the call: what they point to is read and written by the kernel.
#[cfg(target_arch = "x86_64")]
unsafe fn syscall3(number: usize, a: usize, b: usize, c: usize) -> Result<usize, Errno> {
    let result: isize;
    // SAFETY: the kernel's calling convention: rcx and r11 are clobbered, nothing else; memory as the caller vouches.
    unsafe {
        std::arch::asm!(
            "syscall",
            inlateout("rax") number as isize => result,
            in("rdi") a, in("rsi") b, in("rdx") c,
            lateout("rcx") _, lateout("r11") _,
            options(nostack)
        );
    }
    if (-4095..0).contains(&result) { Err(Errno::from_raw_os_error(-result as i32)) } else { Ok(result as usize) }
}

fn byte_lock(fd: impl AsFd, command: usize, kind: i16, start: u64, len: u64) -> Result<i16, Errno> {
    let mut flock = Flock { kind, whence: 0, start: start as i64, len: len as i64, pid: 0 };
    loop {
        // SAFETY: `flock` is a live, correctly laid out structure for the whole call.
        let result =
            unsafe { syscall3(number::FCNTL, fd.as_fd().as_raw_fd() as usize, command, (&raw mut flock) as usize) };
        match result {
            Err(Errno::INTR) => continue,
            Err(errno) => return Err(errno),
            Ok(_) => return Ok(flock.kind),
        }
    }
}

/// Locks bytes for this open file; waits while another open file holds one of them.
pub(crate) fn lock_bytes_wait(fd: impl AsFd, start: u64, len: u64) -> Result<(), Errno> {
    byte_lock(fd, F_OFD_SETLKW, F_WRLCK, start, len).map(|_| ())
}

/// Locks bytes for this open file unless another one holds one of them: then `false`.
pub(crate) fn lock_bytes_try(fd: impl AsFd, start: u64, len: u64) -> Result<bool, Errno> {
    granted(byte_lock(fd, F_OFD_SETLK, F_WRLCK, start, len))
}

/// The same, shared with others that ask for no more; a lock held exclusively becomes shared.
pub(crate) fn share_bytes_try(fd: impl AsFd, start: u64, len: u64) -> Result<bool, Errno> {
    granted(byte_lock(fd, F_OFD_SETLK, F_RDLCK, start, len))
}

fn granted(result: Result<i16, Errno>) -> Result<bool, Errno> {
    match result {
        Ok(_) => Ok(true),
        Err(Errno::AGAIN | Errno::ACCESS) => Ok(false),
        Err(errno) => Err(errno),
    }
}

/// Gives up this open file's locks on bytes.
pub(crate) fn unlock_bytes(fd: impl AsFd, start: u64, len: u64) -> Result<(), Errno> {
    byte_lock(fd, F_OFD_SETLK, F_UNLCK, start, len).map(|_| ())
}

/// Whether another open file holds a lock on one of these bytes.
pub(crate) fn bytes_locked_by_others(fd: impl AsFd, start: u64, len: u64) -> Result<bool, Errno> {
    Ok(byte_lock(fd, F_OFD_GETLK, F_WRLCK, start, len)? != F_UNLCK)
}

/// Whether the kernel knows thread `tid` of process `pid` (in our PID namespace).
pub(crate) fn thread_exists(pid: u32, tid: u32) -> bool {
    // SAFETY: no pointers; signal 0 is not delivered.
    !matches!(unsafe { syscall3(number::TGKILL, pid as usize, tid as usize, 0) }, Err(Errno::SRCH))
}

/// Whether process `pid` has the caller's table of descriptors: none, once it has ended.
pub(crate) fn has_table_of(pid: u32) -> Result<bool, Errno> {
    const KCMP_FILES: usize = 2;
    let me = rustix::process::getpid().as_raw_pid() as usize;
    // SAFETY: no pointers; what is asked takes no more arguments.
    unsafe { syscall3(number::KCMP, me, pid as usize, KCMP_FILES) }.map(|order| order == 0)
}

/// Closes a number, whatever the kernel says of it.
///
/// # Safety
/// Nobody relies on the number.
pub(crate) unsafe fn close(fd: RawFd) {
    // SAFETY: the caller's.
    let _ = unsafe { syscall3(number::CLOSE, fd as usize, 0, 0) };
}

/// The caller's PID namespace; 0: unknown.
pub(crate) fn pid_namespace() -> u64 {
    rustix::fs::stat("/proc/self/ns/pid").map_or(0, |stat| stat.st_ino)
}

/// Whether the caller is in this PID namespace, as far as it can know.
pub(crate) fn is_in_pid_namespace(namespace: u64) -> bool {
    let here = pid_namespace();
    here == 0 || here == namespace
}

/// The calling thread's robust-list head as registered with the kernel: address and size.
pub(crate) fn robust_list_head() -> Option<(usize, usize)> {
    let mut head = 0usize;
    let mut len = 0usize;
    // SAFETY: both pointers are to live words for the whole call; pid 0 is the caller.
    let result = unsafe { syscall3(number::GET_ROBUST_LIST, 0, (&raw mut head) as usize, (&raw mut len) as usize) };
    (result.is_ok() && head != 0).then_some((head, len))
}

/// `MADV_COLLAPSE` on a range: makes huge pages of what is there. Best effort.
///
/// # Safety
/// The range must be a mapping of the caller's.
pub(crate) unsafe fn collapse(address: *mut u8, bytes: usize) -> bool {
    const MADV_COLLAPSE: usize = 25;
    // SAFETY: advice; the caller vouches for the range.
    unsafe { syscall3(number::MADVISE, address as usize, bytes, MADV_COLLAPSE) }.is_ok()
}

/// What a program may do to descriptors it does not know.
#[cfg(test)]
pub(crate) fn close_from(first: u32) {
    const CLOSE_RANGE: usize = 436;
    // SAFETY: no pointers; the test that calls this uses no descriptor afterwards.
    let closed = unsafe { syscall3(CLOSE_RANGE, first as usize, u32::MAX as usize, 0) };
    assert!(closed.is_ok());
}
