//! Locks on files, between all processes that have the volume attached. Those of a process that dies are released.

use crate::call::run_plain;
use crate::memory::{Input, Output};
use crate::table::OpenFile;
use crate::volume::Volume;
use gannet_vfs::shared::{LockOwner, LockRange, LockRequest};
use gannet_vfs::{Errno, Error, Result};
use std::ffi::c_int;
use std::sync::atomic::Ordering;

impl Volume {
    fn take(&self, request: &LockRequest, waits: bool) -> Result<()> {
        let (fs, shared) = (self.fs(), self.fs().shared());
        if waits { shared.lock(fs, request, &mut || false) } else { shared.try_lock(fs, request) }
    }

    fn lock_record(&self, file: &OpenFile, command: c_int, given: &libc::flock) -> Result<Option<libc::flock>> {
        let (of_description, tests, waits) = match command {
            libc::F_GETLK => (false, true, false),
            libc::F_SETLK => (false, false, false),
            libc::F_SETLKW => (false, false, true),
            libc::F_OFD_GETLK => (true, true, false),
            libc::F_OFD_SETLK => (true, false, false),
            libc::F_OFD_SETLKW => (true, false, true),
            _ => return Err(Error::because(Errno::INVAL, "not a command for record locks")),
        };
        let shared = self.fs().shared();
        let base = match c_int::from(given.l_whence) {
            libc::SEEK_SET => 0,
            libc::SEEK_CUR => shared.offset(file.description)?.get() as i64,
            libc::SEEK_END => self.fs().attributes(file.node)?.size_bytes as i64,
            _ => return Err(Error::because(Errno::INVAL, "not a place that locks count from")),
        };
        let start = base.checked_add(given.l_start).ok_or(Error::new(Errno::OVERFLOW))?;
        let range = LockRange::new(start, given.l_len)?;
        let owner = match of_description {
            true if given.l_pid != 0 => return Err(Error::because(Errno::INVAL, "l_pid is not 0")),
            true => LockOwner::OpenFile(file.description),
            false => shared.process_owner()?,
        };
        let exclusive = match c_int::from(given.l_type) {
            libc::F_RDLCK => Some(false),
            libc::F_WRLCK => Some(true),
            // A test of it tells what the description itself has.
            libc::F_UNLCK if !tests || of_description => None,
            _ => return Err(Error::because(Errno::INVAL, "not a type of lock")),
        };
        let request = LockRequest { node: file.node, owner, exclusive, range, process: std::process::id() };
        if tests {
            let mut told = *given;
            match shared.test_lock(&request)? {
                None => told.l_type = libc::F_UNLCK as _,
                Some(other) => {
                    let to_end = other.range.end == LockRange::END;
                    told.l_type = if other.exclusive { libc::F_WRLCK } else { libc::F_RDLCK } as _;
                    told.l_whence = libc::SEEK_SET as _;
                    told.l_start = other.range.start as i64;
                    told.l_len = if to_end { 0 } else { (other.range.end - other.range.start) as i64 };
                    told.l_pid = match other.owner {
                        LockOwner::Process(_) => other.process as i32,
                        _ => -1,
                    };
                }
            }
            return Ok(Some(told));
        }
        match exclusive {
            Some(true) => file.check_writable()?,
            Some(false) => file.check_opened_to_read()?,
            None => {}
        }
        if !of_description {
            self.has_locks.store(true, Ordering::Relaxed);
        }
        self.take(&request, waits).map(|()| None)
    }
}

/// Locks or unlocks a whole file for its open file description, as `flock(2)`: `LOCK_SH`, `LOCK_EX`, `LOCK_UN`, with
/// `LOCK_NB` without waiting. A signal does not end the wait.
///
/// Returns 0. -EAGAIN if another has it locked.
///
/// # Safety
/// `volume` is attached or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gannet_flock(volume: *mut Volume, descriptor: c_int, operation: c_int) -> c_int {
    let lock = |volume: &Volume| {
        volume.with_open(descriptor, |file| {
            let exclusive = match operation & !libc::LOCK_NB {
                libc::LOCK_SH => Some(false),
                libc::LOCK_EX => Some(true),
                libc::LOCK_UN => None,
                _ => return Err(Error::because(Errno::INVAL, "not an operation of flock")),
            };
            let request = LockRequest {
                node: file.node,
                owner: LockOwner::Flock(file.description),
                exclusive,
                range: LockRange::ALL,
                process: std::process::id(),
            };
            volume.take(&request, operation & libc::LOCK_NB == 0)
        })
    };
    // SAFETY: the caller's promise.
    unsafe { run_plain("gannet_flock", volume, lock) }
}

/// Locks, unlocks or asks about a range of a file, as `fcntl(2)` does: for the process (`F_SETLK`, `F_SETLKW`, `F_GETLK`) or
/// the open file description (`F_OFD_SETLK`, `F_OFD_SETLKW`, `F_OFD_GETLK`). A signal does not end the wait.
///
/// A process that has attached the volume twice is two processes to record locks: those made by one handle are in the way of the other,
/// and who waits for itself like that waits for ever.
///
/// Returns 0. -EAGAIN if another's lock is in the way, -EDEADLK if processes would wait for each other, -ENOLCK.
///
/// # Safety
/// `volume` is attached or NULL, `lock` can be read and written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gannet_lock(
    volume: *mut Volume,
    descriptor: c_int,
    command: c_int,
    lock: *mut libc::flock,
) -> c_int {
    // SAFETY: the caller's promise.
    let (given, told) = unsafe { (Input::new(lock.cast_const()), Output::new(lock)) };
    let lock = |volume: &Volume| {
        volume.with_open(descriptor, |file| match volume.lock_record(file, command, &given.get(0)?)? {
            Some(answer) => told.put(&answer),
            None => Ok(()),
        })
    };
    // SAFETY: the caller's promise.
    unsafe { run_plain("gannet_lock", volume, lock) }
}
