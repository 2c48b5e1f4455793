//! `flock` and the record locks of `fcntl`: the file system's shared state keeps them; here are the kernel's forms.

use super::Front;
use super::call::{Answer, Call, done};
use super::data;
use super::table::OpenFile;
use crate::dispatch::Outcome;
use crate::entry;
use crate::memory;
use crate::number::{CLOSE, FSTAT, STAT};
use crate::process::known_process_id;
use crate::raw::syscall;
use core::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use gannet_vfs::shared::shm::ParticipantId;
use gannet_vfs::shared::{LockOwner, LockRange, LockRequest};
use gannet_vfs::{Errno, FileSystem};
use std::os::fd::AsRawFd;

const LOCK_SHARED: usize = 1;
const LOCK_EXCLUSIVE: usize = 2;
const LOCK_NONBLOCKING: usize = 4;
const LOCK_UNLOCK: usize = 8;

/// This process may hold POSIX locks: then closing a descriptor must drop them.
static HAS_LOCKS: AtomicBool = AtomicBool::new(false);

/// Whether a signal was deferred, which ends a wait.
fn interrupted() -> bool {
    // SAFETY: the thread's own block.
    unsafe { (*entry::thread_state()).deferred.load(Ordering::Relaxed) != 0 }
}

fn take(fs: &dyn FileSystem, request: &LockRequest, waits: bool) -> Result<(), Errno> {
    let shared = fs.shared();
    let result = if waits { shared.lock(fs, request, &mut interrupted) } else { shared.try_lock(fs, request) };
    result.map_err(|error| error.errno())
}

/// What a wait that a signal ended comes to.
fn answer(result: Result<(), Errno>) -> Answer {
    match result {
        Err(Errno::INTR) if crate::signal::deferred_restart() => Ok(Outcome::Again),
        Err(errno) => Err(errno),
        Ok(()) => done(0),
    }
}

/// `flock`.
pub(crate) fn lock_whole(call: &Call<'_>) -> Answer {
    let [descriptor, operation, ..] = call.arguments;
    let Some(file) = call.open_file(descriptor) else { return Ok(Outcome::Pass) };
    const LOCK_MANDATORY: usize = 32;
    if operation & LOCK_MANDATORY != 0 {
        // Kernels since 5.18 ignore it.
        return done(0);
    }
    let exclusive = match operation & !LOCK_NONBLOCKING {
        LOCK_UNLOCK => None,
        LOCK_SHARED => Some(false),
        LOCK_EXCLUSIVE => Some(true),
        _ => return Err(Errno::INVAL),
    };
    data::check_not_path(&file)?;
    let request = LockRequest {
        node: file.node,
        owner: LockOwner::Flock(file.description),
        exclusive,
        range: LockRange::ALL,
        process: known_process_id(call.record) as u32,
    };
    answer(take(call.file_system(&file)?, &request, operation & LOCK_NONBLOCKING == 0))
}

/// `fcntl` with a lock command.
pub(crate) fn record_lock(call: &Call<'_>, file: &OpenFile, command: usize, address: usize) -> Answer {
    const F_GETLK: usize = 5;
    const F_OFD_GETLK: usize = 36;
    const F_WAITING: [usize; 2] = [7, 38];
    const F_RDLCK: i16 = 0;
    const F_WRLCK: i16 = 1;
    const F_UNLCK: i16 = 2;
    let mut words = [0u64; 4];
    memory::read_value(address, &mut words).map_err(|_| Errno::FAULT)?;
    let (kind, whence) = (words[0] as i16, (words[0] >> 16) as i16);
    let fs = call.file_system(file)?;
    let base = match whence {
        0 => 0,
        1 => fs.shared().offset(file.description).map_err(|error| error.errno())?.get() as i64,
        2 => fs.attributes(file.node).map_err(|error| error.errno())?.size_bytes as i64,
        _ => return Err(Errno::INVAL),
    };
    let start = base.checked_add(words[1] as i64).ok_or(Errno::OVERFLOW)?;
    let range = LockRange::new(start, words[2] as i64).map_err(|error| error.errno())?;
    let of_description = command >= F_OFD_GETLK;
    let owner = if of_description {
        if words[3] as u32 != 0 {
            return Err(Errno::INVAL);
        }
        LockOwner::OpenFile(file.description)
    } else {
        fs.shared().process_owner().map_err(|error| error.errno())?
    };
    let is_test = matches!(command, F_GETLK | F_OFD_GETLK);
    let exclusive = match kind {
        F_RDLCK => Some(false),
        F_WRLCK => Some(true),
        F_UNLCK if !is_test => None,
        _ => return Err(Errno::INVAL),
    };
    let request =
        LockRequest { node: file.node, owner, exclusive, range, process: known_process_id(call.record) as u32 };
    if is_test {
        let answer = match fs.shared().test_lock(&request).map_err(|error| error.errno())? {
            None => [words[0] & !0xffff | F_UNLCK as u64, words[1], words[2], words[3]],
            Some(other) => {
                let length = if other.range.end == LockRange::END { 0 } else { other.range.end - other.range.start };
                let kind = if other.exclusive { F_WRLCK } else { F_RDLCK };
                let process = match other.owner {
                    LockOwner::Process(_) => other.process,
                    _ => u32::MAX,
                };
                [kind as u64, other.range.start, length, u64::from(process)]
            }
        };
        memory::write_value(address, &answer).map_err(|_| Errno::FAULT)?;
        return done(0);
    }
    match exclusive {
        Some(true) => data::check_writable(file)?,
        Some(false) => data::check_readable(file)?,
        None => {}
    }
    if !of_description {
        HAS_LOCKS.store(true, Ordering::Relaxed);
    }
    answer(take(fs, &request, F_WAITING.contains(&command)))
}

/// Closing any descriptor of a file drops the process's POSIX locks on it.
pub(crate) fn closed(fs: &dyn FileSystem, file: &OpenFile) {
    if HAS_LOCKS.load(Ordering::Relaxed) {
        let _ = fs.shared().unlock_process(file.node);
    }
}

/// POSIX locks on their way over an `execve`: a participant's place whose life a descriptor keeps, which exec does not close.
#[derive(Clone, Copy)]
pub(crate) struct OverExec {
    pub(crate) mount: usize,
    pub(crate) place: ParticipantId,
    pub(crate) life: usize,
}

/// What the `execve` in hand was given. Of the only thread that has one in hand.
static OVER_EXEC: AtomicPtr<Vec<OverExec>> = AtomicPtr::new(core::ptr::null_mut());

/// Before an `execve`: the process's POSIX locks become those of places that live on.
pub(crate) fn before_exec(front: &Front) -> Vec<OverExec> {
    if !HAS_LOCKS.load(Ordering::Relaxed) {
        return Vec::new();
    }
    let mut all = Vec::new();
    for mount in 0..front.mounts.len() {
        let Ok(fs) = front.file_system(mount) else { continue };
        let (shared, me) = (fs.shared(), fs.shared().session().participant());
        if !shared.session().has_joined() || !shared.has_process_locks(me).unwrap_or(false) {
            continue;
        }
        let Ok(Some(ticket)) = shared.session().prepare_exec() else { continue };
        let Some(life) = ticket.life().map(|life| life.as_raw_fd() as usize) else { continue };
        let place = ticket.participant();
        if shared.move_process_locks(me, place).is_ok() {
            // Its end is the new program's, or that of `exec_failed`.
            core::mem::forget(ticket);
            all.push(OverExec { mount, place, life });
        }
    }
    take_over_exec();
    OVER_EXEC.store(Box::into_raw(Box::new(all.clone())), Ordering::Release);
    all
}

fn take_over_exec() -> Vec<OverExec> {
    let kept = OVER_EXEC.swap(core::ptr::null_mut(), Ordering::AcqRel);
    // SAFETY: made by `Box::into_raw`, and nobody else has it any more.
    if kept.is_null() { Vec::new() } else { *unsafe { Box::from_raw(kept) } }
}

/// The `execve` failed: the locks are this process's again.
pub(crate) fn exec_failed(front: &Front) {
    for kept in take_over_exec() {
        take_back(front, &kept);
    }
}

/// In the new program: the locks are this process's.
pub(crate) fn take_back(front: &Front, kept: &OverExec) {
    let Ok(fs) = front.file_system(kept.mount) else { return };
    let session = fs.shared().session();
    if !is_file(kept.life, session.path()) || session.thread().is_err() {
        return;
    }
    let _ = fs.shared().move_process_locks(kept.place, session.participant());
    HAS_LOCKS.store(true, Ordering::Relaxed);
    // The place, which has nothing any more, is reaped as that of a dead process.
    // SAFETY: a descriptor that was made for this.
    unsafe { syscall(CLOSE, [kept.life]) };
}

/// Whether a descriptor is of the file with this path.
fn is_file(descriptor: usize, path: Option<&str>) -> bool {
    let Some(path) = path else { return false };
    let path = format!("{path}\0");
    let (mut one, mut other) = ([0u64; 18], [0u64; 18]);
    // SAFETY: struct stat is 144 bytes; a path that ends in zero.
    let results = unsafe {
        [
            syscall(FSTAT, [descriptor, one.as_mut_ptr() as usize]),
            syscall(STAT, [path.as_ptr() as usize, other.as_mut_ptr() as usize]),
        ]
    };
    results == [0, 0] && one[..2] == other[..2]
}

/// A forked child has none of its parent's.
pub(crate) fn after_fork_in_child() {
    if HAS_LOCKS.load(Ordering::Relaxed) {
        HAS_LOCKS.store(false, Ordering::Relaxed);
    }
}
